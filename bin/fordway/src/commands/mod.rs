//! The commands. A command turns its options into output records, or into actions for the transfer engine. Similar
//! commands share a file. This file contains code that several commands use: [`SourceSelection`] selects objects by an
//! address, and `run_lab` runs `fordway-lab` for the measuring commands.

mod admin;
mod batches;
mod care;
mod change;
mod conflicts;
mod cp;
mod env;
mod env_file;
mod events;
mod lifecycle;
mod ls;
mod manual;
mod metalink;
mod overlap;
mod policy;
mod read;
mod serve;
mod stat;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::{fmt, io};

use fordway_command::program::finish;
use fordway_command::{CommandContext, CommandExit, StorageAddress, external, file_error};
use fordway_http::TlsRoots;
use fordway_http::vector::SessionOptions;
use fordway_lanes::LaneConfigOverrides;
use fordway_store::{Bucket, Error, ErrorKind, GetOptions, Key, ListQuery, Result};

use super::transfer::plan::{self, SyncItemIterator};
use crate::args::{BuiltinCommand, CommandLine};
use crate::wildcard::{FilterRules, WildcardPattern, directory, has_wildcard, literal_prefix};

/// Runs the command of a parsed command line. Reports all errors before it returns.
pub fn run(cli: CommandLine, context: &CommandContext) -> CommandExit {
    let lane = cli.lane_options();
    let prepared = if cli.connection.no_verify_ssl { verify_nobody(context) } else { Ok(()) };
    finish(prepared.and_then(|()| dispatch(cli.command, &lane, context)), context)
}

fn verify_nobody(context: &CommandContext) -> Result<()> {
    context.output.note("certificates are not verified, so somebody else may read and change everything");
    context.use_web_options(SessionOptions { tls_roots: TlsRoots::Unverified, ..context.web_options()? });
    Ok(())
}

/// Checks that the options that select a service were given only to commands that access one. Errors:
/// `InvalidArgument`.
fn check_lane_options(command: &BuiltinCommand, lane: &LaneConfigOverrides) -> Result<()> {
    let has_region = match command {
        BuiltinCommand::Serve(_) => true,
        BuiltinCommand::Node(_)
        | BuiltinCommand::Gc(_)
        | BuiltinCommand::Lifecycle(_)
        | BuiltinCommand::Fsck(_) => false,
        _ => return Ok(()),
    };
    let unused = [
        ("--endpoint", lane.endpoint.is_some()),
        ("--profile", lane.profile.is_some()),
        ("--region", lane.region.is_some() && !has_region),
        ("--no-sign-request", lane.credentials.is_some()),
    ];
    match unused.iter().find(|(_, is_given)| *is_given) {
        None => Ok(()),
        Some((option, _)) => {
            let why = format!("this command works on a directory, so {option} has no effect; remove it");
            Err(Error::new(ErrorKind::InvalidArgument, why))
        }
    }
}

fn dispatch(
    command: BuiltinCommand,
    lane: &LaneConfigOverrides,
    context: &CommandContext,
) -> Result<CommandExit> {
    check_lane_options(&command, lane)?;
    if has_many_open_files(&command) {
        // If the limit cannot be raised, fewer copies are made at a time.
        let _ = fordway_sys::raise_open_files();
    }
    match command {
        BuiltinCommand::Ls(args) => ls::run(&args, context),
        BuiltinCommand::Cp(args) => cp::run(&args, context),
        BuiltinCommand::Cat(args) => read::cat(&args, context),
        BuiltinCommand::Metalink(args) => metalink::run(&args, context),
        BuiltinCommand::Read(args) => read::run(&args, context),
        BuiltinCommand::Mv(args) => cp::mv(&args, context),
        BuiltinCommand::Mkdir(args) => change::mkdir(&args, context),
        BuiltinCommand::Rm(args) => change::rm(&args, context),
        BuiltinCommand::Stat(args) => stat::run(&args, context),
        BuiltinCommand::Mb(args) => change::mb(&args, context),
        BuiltinCommand::Rb(args) => change::rb(&args, context),
        BuiltinCommand::Du(args) => stat::du(&args, context),
        BuiltinCommand::Sync(args) => cp::sync(&args, context),
        BuiltinCommand::Tag(args) => change::tag(&args, context),
        BuiltinCommand::Versioning(args) => change::versioning(&args, context),
        BuiltinCommand::Policy(args) => policy::run(&args, context),
        BuiltinCommand::Admin(args) => admin::run(&args, context),
        BuiltinCommand::Presign(args) => read::presign(&args, context),
        BuiltinCommand::Env(args) => env::run(&args, lane, context),
        BuiltinCommand::Serve(args) => serve::run(&args, lane.region.as_deref(), context),
        BuiltinCommand::Node(args) => serve::node(&args, context),
        BuiltinCommand::Lab(_) => run_lab(),
        BuiltinCommand::Gc(args) => care::gc(&args, context),
        BuiltinCommand::Lifecycle(args) => lifecycle::run(&args, context),
        BuiltinCommand::Fsck(args) => care::fsck(&args, context),
        BuiltinCommand::Completions(args) => manual::completions(&args, context),
        BuiltinCommand::Man(args) => manual::man(&args, context),
        BuiltinCommand::External(words) => external::run(&words),
    }
}

/// Returns whether a command may open more files and connections than most shells permit.
fn has_many_open_files(command: &BuiltinCommand) -> bool {
    matches!(
        command,
        BuiltinCommand::Cp(_)
            | BuiltinCommand::Mv(_)
            | BuiltinCommand::Sync(_)
            | BuiltinCommand::Rm(_)
            | BuiltinCommand::Rb(_)
            | BuiltinCommand::Read(_)
    )
}

/// Calls `act` for each item. Reports failures and continues with the other items. Returns the first failure.
pub(crate) fn for_each<T>(
    context: &CommandContext,
    items: impl IntoIterator<Item = T>,
    mut act: impl FnMut(T) -> Result<CommandExit>,
) -> Result<CommandExit> {
    let mut first_failure = CommandExit::Ok;
    for item in items {
        context.interrupt.check()?;
        let exit = match act(item) {
            Ok(exit) => exit,
            Err(error) => report(context, error)?,
        };
        if first_failure == CommandExit::Ok {
            first_failure = exit;
        }
    }
    Ok(first_failure)
}

/// Reports an error that does not end the command. Errors: `error` itself, without a report, if it ends the command.
/// `Interrupted`, any error after a signal, and a failed write to an output whose reader has exited end the command.
pub(crate) fn report(context: &CommandContext, error: Error) -> Result<CommandExit> {
    let is_stopped = error.kind() == ErrorKind::Interrupted || context.interrupt.is_raised();
    if is_stopped || context.output.is_reader_gone(&error) {
        return Err(error);
    }
    context.output.error(&error);
    Ok(CommandExit::of(&error))
}

/// The sources of a command, parsed from an address.
enum SourceSelection {
    /// One object or file, or standard input.
    One(StorageAddress),
    /// Everything below a directory or prefix.
    Below(StorageAddress),
    /// The objects of a bucket that match a wildcard.
    Matching(Bucket, String),
}

impl fmt::Display for SourceSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceSelection::One(place) | SourceSelection::Below(place) => place.fmt(f),
            SourceSelection::Matching(bucket, wildcard) => write!(f, "s3://{bucket}/{wildcard}"),
        }
    }
}

/// The options that determine what an address selects.
#[derive(Clone, Copy)]
struct AddressOptions {
    recursive: bool,
    raw: bool,
    /// Whether the address names a version.
    has_version: bool,
}

impl SourceSelection {
    /// Parses `text` for a command without `--recursive`, which accepts objects and wildcards. Errors: the errors of
    /// [`SourceSelection::resolve`].
    fn resolve_flat(text: &str, raw: bool, has_version: bool, context: &CommandContext) -> Result<Self> {
        let options = AddressOptions { recursive: false, raw, has_version };
        Self::resolve(text, options, context).map_err(|error| match StorageAddress::parse(text) {
            Ok(StorageAddress::S3(bucket, key))
                if error.kind() == ErrorKind::InvalidArgument && (key.is_empty() || key.ends_with('/')) =>
            {
                let place = format!("s3://{bucket}/{key}");
                let why =
                    format!("{place} is not an object; to select everything below it, write '{place}*'");
                Error::new(ErrorKind::InvalidArgument, why)
            }
            _ => error,
        })
    }

    /// Parses `text`. Without `--recursive`, an address that ends in a slash selects the object with this key, if there
    /// is such an object. `mkdir` and other programs create these objects. With `--recursive`, an address selects the
    /// object with this key if the object exists and there is nothing below the address. Errors: the errors of
    /// [`SourceSelection::find`] and of the store. Cost: without `--recursive`, one HEAD for an address that ends in a
    /// slash; with `--recursive`, a listing of one key, and one HEAD if the listing is empty.
    fn resolve(text: &str, options: AddressOptions, context: &CommandContext) -> Result<Self> {
        let AddressOptions { recursive, raw, has_version } = options;
        let place = StorageAddress::parse(text)?;
        if let StorageAddress::S3(bucket, key) = &place
            && !recursive
            && key.ends_with('/')
            && (raw || !has_wildcard(key))
            // Do not look up the latest version if the command line names another version: the latest may be a delete
            // marker.
            && (has_version || exists(context, bucket, key)?)
        {
            return Ok(SourceSelection::One(place));
        }
        let found = Self::find(text, recursive, raw)?;
        match (&found, &place) {
            (SourceSelection::Below(StorageAddress::S3(bucket, prefix)), StorageAddress::S3(_, key))
                if key != prefix && !has_version && is_only_object(context, bucket, key) =>
            {
                Ok(SourceSelection::One(place))
            }
            _ => Ok(found),
        }
    }

    /// Parses `text`. With `raw`, wildcards are literal characters. Errors: `InvalidArgument` for a directory or prefix
    /// without `recursive`, for `s3://` without a bucket, and for other invalid addresses; `InvalidBucketName`.
    fn find(text: &str, recursive: bool, raw: bool) -> Result<Self> {
        match StorageAddress::parse(text)? {
            StorageAddress::S3(bucket, key) if !raw && has_wildcard(&key) => {
                Ok(SourceSelection::Matching(bucket, key))
            }
            StorageAddress::S3(bucket, key) if recursive => {
                Ok(SourceSelection::Below(StorageAddress::S3(bucket, key).into_directory()))
            }
            StorageAddress::S3(bucket, key) if key.is_empty() || key.ends_with('/') => {
                let why = format!(
                    "s3://{bucket}/{key} is not an object; add --recursive to select everything below it"
                );
                Err(Error::new(ErrorKind::InvalidArgument, why))
            }
            StorageAddress::Local(path) if path.is_dir() && recursive => {
                Ok(SourceSelection::Below(StorageAddress::Local(path)))
            }
            StorageAddress::Local(path) if path.is_dir() => {
                let why = format!(
                    "{} is a directory; add --recursive to select everything below it",
                    path.display()
                );
                Err(Error::new(ErrorKind::InvalidArgument, why))
            }
            StorageAddress::Service => Err(Error::new(ErrorKind::InvalidArgument, "s3:// has no bucket")),
            other => Ok(SourceSelection::One(other)),
        }
    }

    /// Returns the directory or prefix that the names of this source's items are relative to.
    fn root(&self) -> StorageAddress {
        match self {
            SourceSelection::Below(root) => root.clone(),
            SourceSelection::Matching(bucket, wildcard) => {
                StorageAddress::S3(bucket.clone(), directory(literal_prefix(wildcard)).to_owned())
            }
            SourceSelection::One(StorageAddress::S3(bucket, key)) => {
                StorageAddress::S3(bucket.clone(), directory(key).to_owned())
            }
            SourceSelection::One(StorageAddress::Local(path)) => {
                StorageAddress::Local(path.parent().unwrap_or(Path::new("")).to_owned())
            }
            SourceSelection::One(other) => other.clone(),
        }
    }

    /// Returns the path of a local file or directory.
    fn local(&self) -> Option<&Path> {
        match self {
            SourceSelection::One(StorageAddress::Local(path))
            | SourceSelection::Below(StorageAddress::Local(path)) => Some(path),
            _ => None,
        }
    }

    /// Returns whether an object below the root belongs to this source.
    fn selects(&self, key: &str) -> bool {
        match self {
            SourceSelection::Matching(_, wildcard) => WildcardPattern::of_address(wildcard).matches(key),
            SourceSelection::One(_) | SourceSelection::Below(_) => true,
        }
    }

    /// Returns whether the source may select an object below the path `inside`, which is relative to the root and ends
    /// in a slash.
    fn may_select_below(&self, inside: &str) -> bool {
        let SourceSelection::Matching(_, wildcard) = self else { return true };
        let literal = literal_prefix(wildcard);
        let path = format!("{}{inside}", directory(literal));
        literal.starts_with(&path) || path.starts_with(literal)
    }

    /// Lists the items of a source. Returns `None` for a single object or file. The filters only determine which errors
    /// are ignored, as in [`plan::items`]. Errors: `NoSuchKey` if no object matches the wildcard, or if no object is
    /// below the prefix. A whole bucket may be empty.
    fn items(&self, context: &CommandContext, filters: &FilterRules) -> Result<Option<SyncItemIterator>> {
        match self {
            SourceSelection::One(_) => Ok(None),
            SourceSelection::Below(root) => items_below(context, root, filters).map(Some),
            SourceSelection::Matching(bucket, wildcard) => {
                let mut items = plan::matching(context, bucket, wildcard)?.peekable();
                if items.peek().is_none() {
                    return Err(Error::new(
                        ErrorKind::NoSuchKey,
                        format!(
                            "no object matches s3://{bucket}/{wildcard} (add --raw to treat * and ? as \
                             literal characters)"
                        ),
                    ));
                }
                Ok(Some(Box::new(items)))
            }
        }
    }
}

/// Lists everything below a directory or prefix, as [`plan::items`] does. Errors: `NoSuchKey` if no object is below the
/// prefix. A whole bucket may be empty.
fn items_below(
    context: &CommandContext,
    root: &StorageAddress,
    filters: &FilterRules,
) -> Result<SyncItemIterator> {
    let mut items = plan::items(context, root, filters)?.peekable();
    match root {
        StorageAddress::S3(_, prefix) if !prefix.is_empty() && items.peek().is_none() => {
            Err(Error::new(ErrorKind::NoSuchKey, format!("there is no object below {root}")))
        }
        _ => Ok(Box::new(items)),
    }
}

/// Checks the filters of a command that removes its sources. Errors: `InvalidArgument` for filters that select more
/// with a wildcard than in s5cmd, where only names that match an `--include` are selected. `aws s3` has no wildcards.
fn check_filters_of_removal(sources: &[SourceSelection], filters: &FilterRules) -> Result<()> {
    let has_wildcard = sources.iter().any(|source| matches!(source, SourceSelection::Matching(..)));
    if !has_wildcard || !filters.admit_more_than_included() {
        return Ok(());
    }
    let why = "these filters also select objects that match no --include, unlike in s5cmd; to select only the objects \
               that match, write --exclude '*' --include PATTERN; to use the filters of `aws s3`, replace the wildcard \
               with --recursive";
    Err(Error::new(ErrorKind::InvalidArgument, why))
}

/// Returns whether an object exists. Errors: the errors of the store.
fn exists(context: &CommandContext, bucket: &Bucket, key: &str) -> Result<bool> {
    match context.store()?.head(bucket, &Key::new(key)?, &GetOptions::default()) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NoSuchKey => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns whether there is an object with this key, and no object below the key. Returns false after an error, which
/// the later listing reports.
fn is_only_object(context: &CommandContext, bucket: &Bucket, key: &str) -> bool {
    let query = ListQuery { max_keys: 1, ..ListQuery::prefix(format!("{key}/")) };
    let below = context.store().and_then(|store| store.list(bucket, &query));
    below.is_ok_and(|page| page.entries.is_empty()) && exists(context, bucket, key).unwrap_or(false)
}

const PROGRAM: &str = "fordway-lab";

/// Replaces this process with `fordway-lab`, which receives the same command line. Returns only if `fordway-lab` cannot
/// be started. Errors: `InvalidArgument` if there is no program `fordway-lab`.
fn run_lab() -> Result<CommandExit> {
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_else(|| OsString::from("fordway"));
    let program = program();
    match std::process::Command::new(&program).arg0(name).args(words).exec() {
        error if error.kind() == io::ErrorKind::NotFound => Err(Error::new(
            ErrorKind::InvalidArgument,
            "this command needs the program fordway-lab, which is neither next to fordway nor in PATH; \
             install it, or build it with `make build`",
        )),
        error => Err(file_error("running", program.display(), error)),
    }
}

/// Returns the output of `fordway-lab` for these arguments. The output is empty if the program is not installed.
fn lab_output(words: &[&str]) -> Vec<u8> {
    let output = std::process::Command::new(program()).args(words).output();
    output.map(|output| output.stdout).unwrap_or_default()
}

fn program() -> PathBuf {
    external::beside(PROGRAM).unwrap_or_else(|| PathBuf::from(PROGRAM))
}
