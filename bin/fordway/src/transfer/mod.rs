//! The engine behind `cp`, `sync`, `rm` and `rb --force`. Listings yield a stream of actions, which a few threads
//! perform. A failed action is reported, and the other actions continue.
//!
//! - `plan` lists the source or the destination, and determines the actions from the listings alone;
//! - `upload` and `download` transfer one object; code that both modules use is in `download`;
//! - `budget` limits the memory of concurrent uploads;
//! - `blocked` keeps downloads that have to wait for removals;
//! - `access` gives a downloaded file the access rights of the file that it replaces;
//! - `directories` records which directories were created for downloads;
//! - `finish` checks that a file was written before its source is removed;
//! - `links` removes links that lead out of a bucket, instead of the objects reached through them;
//! - `open_files` repeats copies that failed because this process has too many open files;
//! - `metadata` determines the metadata of new objects;
//! - `receive` continues a download whose connection broke;
//! - `special` opens destinations that are not regular files;
//! - `moved` removes the source of a move;
//! - `postponed` removes, at the end of a move, the sources that links point to;
//! - `workers` calls a function for many items on a few threads;
//! - `written` records which files a move has written, because links can lead to the same file;
//! - `run` (below) connects these modules, counts results, and chooses the exit code.

mod access;
mod blocked;
mod budget;
mod directories;
mod download;
mod finish;
mod links;
mod metadata;
mod moved;
mod open_files;
pub(crate) mod plan;
mod postponed;
mod receive;
mod special;
mod upload;
mod workers;
mod written;

pub(crate) use access::{FileAccessRights, NEW_FILE_MODE, PRIVATE_MODE};
pub(crate) use directories::{MadeDirectories, missing};
pub(crate) use download::{ContentVerifier, parent, temporary_beside};
pub(crate) use finish::{SourceFate, finish_file, rename_to_new, sync_content, sync_names};
pub(crate) use links::{LinkRemoval, RemovedLinks};
pub(crate) use metadata::ObjectMetadataRules;
pub(crate) use moved::{LocalSourceStamps, changed};
pub(crate) use open_files::CopyAttempts;
pub(crate) use postponed::PostponedRemovals;
pub(crate) use receive::ObjectReceiver;
pub(crate) use special::{is_open_file, open_special};
pub(crate) use upload::check_unchanged;
pub(crate) use workers::for_each;
pub(crate) use written::{WrittenFiles, resolved};

use std::collections::HashSet;
use std::fmt::{self, Display};
use std::hash::Hash;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use fordway_command::{CommandContext, CommandExit, StorageAddress, file_error, shown_name};
use fordway_lanes::Lane;
use fordway_store::{
    Bucket, ChecksumAlgorithm, Error, ErrorKind, GetOptions, Key, RenameOptions, Result, Store, VersionId,
};
use serde::Serialize;

use self::blocked::{BlockedDownload, BlockedDownloads, is_blocked};
use self::budget::{UPLOAD_MEMORY_BYTES, UploadMemoryBudget};
use self::moved::CopiedSource;
use crate::args::TransferArgs;

/// Returns the error for a local source. If the source is missing, the error contains advice.
fn source_error(doing: &str, path: &Path, error: std::io::Error) -> Error {
    if error.kind() != std::io::ErrorKind::NotFound {
        return file_error(doing, path.display(), error);
    }
    let why = match path.is_symlink() {
        true => format!("{} is a dangling link", path.display()),
        false => format!(
            "{} does not exist; check the path, or write s3://BUCKET/KEY for an object",
            path.display()
        ),
    };
    Error::new(ErrorKind::Io, why).caused_by(error)
}

/// The action to take if the destination exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OverwritePolicy {
    Replace,
    Skip,
    Fail,
}

/// The settings for all actions of a command.
#[derive(Clone, Debug)]
pub(crate) struct TransferSettings {
    pub(crate) dry_run: bool,
    pub(crate) existing: OverwritePolicy,
    /// The version of each source to read; `None` for the latest.
    source_version: Option<VersionId>,
    jobs: u16,
    concurrency: u16,
    part_size_bytes: u64,
    multipart_threshold_bytes: Option<u64>,
    checksum: Option<ChecksumAlgorithm>,
    pub(crate) metadata: ObjectMetadataRules,
    verify: bool,
    removes_sources: bool,
    /// Whether the command also removes files and objects that the source does not have, as `sync --delete` does.
    removes_extras: bool,
    /// The prefixes below which a link out of the bucket is removed instead of the objects behind it.
    removes_links_below: Vec<(Bucket, String)>,
}

impl TransferSettings {
    /// Returns the settings from the command line. Errors: `InvalidArgument` if options contradict each other.
    pub(crate) fn of(args: &TransferArgs, existing: OverwritePolicy) -> Result<Self> {
        Ok(TransferSettings {
            dry_run: args.dry_run,
            existing,
            source_version: None,
            jobs: args.jobs,
            concurrency: args.concurrency,
            part_size_bytes: args.part_size,
            multipart_threshold_bytes: args.multipart_threshold,
            checksum: args.checksum_algorithm,
            metadata: ObjectMetadataRules::of(&args.object)?,
            verify: !args.no_verify,
            removes_sources: false,
            removes_extras: false,
            removes_links_below: Vec::new(),
        })
    }

    /// Makes the command remove each source after copying it.
    pub(crate) fn removing_sources(self) -> Self {
        TransferSettings { removes_sources: true, ..self }
    }

    /// Returns whether each source is removed after it is copied.
    pub(crate) fn removes_sources(&self) -> bool {
        self.removes_sources
    }

    /// Returns whether each source is kept or removed after it is copied.
    fn source_fate(&self) -> SourceFate {
        if self.removes_sources { SourceFate::Removed } else { SourceFate::Kept }
    }

    /// Sets whether the command also removes files and objects that the source does not have.
    pub(crate) fn removing_extras(self, removes_extras: bool) -> Self {
        TransferSettings { removes_extras, ..self }
    }

    /// Makes the command read this version of the source; `None` selects the latest version.
    pub(crate) fn reading(self, source_version: Option<VersionId>) -> Self {
        TransferSettings { source_version, ..self }
    }

    /// Returns the settings for a command that only removes objects. Below the prefixes in `removes_links_below`, the
    /// command removes everything.
    pub(crate) fn removal(dry_run: bool, jobs: u16, removes_links_below: Vec<(Bucket, String)>) -> Self {
        TransferSettings {
            dry_run,
            existing: OverwritePolicy::Replace,
            source_version: None,
            jobs,
            concurrency: 1,
            part_size_bytes: 0,
            multipart_threshold_bytes: None,
            checksum: None,
            metadata: ObjectMetadataRules::default(),
            verify: false,
            removes_sources: false,
            removes_extras: false,
            removes_links_below,
        }
    }
}

/// One action on a single object or file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TransferAction {
    /// Copy `from` to `to`.
    Copy { from: StorageAddress, to: StorageAddress, size: Option<u64> },
    /// Remove an object or a file.
    Remove(StorageAddress),
}

/// The unit of work that a worker takes from the queue.
enum TransferTask {
    Copy { from: StorageAddress, to: StorageAddress, size: Option<u64> },
    RemoveObjects(Bucket, Vec<Key>),
    RemoveFile(PathBuf),
    Failed(Error),
}

/// The outcome of a copy that did not fail.
enum TransferCopyOutcome {
    /// The copy is complete. Contains the number of bytes, if it is known.
    Done(Option<u64>),
    /// The destination exists and is kept.
    Skipped,
}

/// A completed (or, in a dry run, intended) action, printed as a line or as JSON.
#[derive(Serialize)]
struct TransferActionOutput<'e> {
    operation: &'static str,
    source: &'e str,
    #[serde(skip_serializing_if = "Option::is_none")]
    destination: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size_bytes: Option<u64>,
    dry_run: bool,
}

impl fmt::Display for TransferActionOutput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dry = if self.dry_run { "(dryrun) " } else { "" };
        write!(f, "{dry}{}: {}", self.operation, shown_name(self.source))?;
        self.destination.map_or(Ok(()), |destination| write!(f, " to {}", shown_name(destination)))
    }
}

/// Performs all actions. A failed action is reported, and the other actions continue.
///
/// The first failure decides the exit code. Errors: the lane cannot be opened.
pub(crate) fn run(
    context: &CommandContext,
    settings: &TransferSettings,
    actions: impl Iterator<Item = Result<TransferAction>>,
) -> Result<CommandExit> {
    run_move(context, settings, &PostponedRemovals::default(), actions)
}

/// Like [`run`], for a move that postpones some of its removals to the end.
pub(crate) fn run_move(
    context: &CommandContext,
    settings: &TransferSettings,
    postponed: &PostponedRemovals,
    actions: impl Iterator<Item = Result<TransferAction>>,
) -> Result<CommandExit> {
    let (tally, made, links) =
        (SharedTransferCounts::default(), MadeDirectories::default(), RemovedLinks::default());
    let (lane, found, written) = (context.lane()?, Mutex::default(), WrittenFiles::default());
    let (blocked, attempts) = (BlockedDownloads::default(), CopyAttempts::default());
    let memory = UploadMemoryBudget::new(UPLOAD_MEMORY_BYTES);
    let runner = TransferRunner {
        context,
        settings,
        lane,
        tally,
        made,
        links,
        found,
        postponed,
        written,
        blocked,
        attempts,
        memory,
    };
    let actions = actions.take_while(|_| !context.interrupt.is_raised());
    context.output.start_progress();
    for_each(settings.jobs, upload::batched(actions), |task| runner.perform(task));
    for_each(settings.jobs, runner.blocked.take(), |BlockedDownload { from, to, size }| {
        runner.perform_copy(&from, &to, size);
    });
    postponed.finish().iter().for_each(|error| runner.failed(error));
    context.output.end_progress();
    runner.tally.finish(context)
}

/// The state that all workers share.
struct TransferRunner<'c> {
    context: &'c CommandContext,
    settings: &'c TransferSettings,
    lane: Lane,
    tally: SharedTransferCounts,
    made: MadeDirectories,
    links: RemovedLinks,
    /// The buckets that a dry run has found.
    found: Mutex<HashSet<Bucket>>,
    postponed: &'c PostponedRemovals,
    written: WrittenFiles,
    blocked: BlockedDownloads,
    attempts: CopyAttempts,
    memory: UploadMemoryBudget,
}

impl TransferRunner<'_> {
    fn perform(&self, task: TransferTask) {
        match task {
            TransferTask::Copy { from, to, size } if self.is_postponed(&to) => {
                self.blocked.add(BlockedDownload { from, to, size });
            }
            TransferTask::Copy { from, to, size } => self.perform_copy(&from, &to, size),
            TransferTask::RemoveObjects(bucket, keys) => self.remove_objects(&bucket, &keys),
            TransferTask::RemoveFile(path) => self.remove_file(path),
            TransferTask::Failed(error) => self.failed(&error),
        }
    }

    /// Returns whether a copy has to wait for the removals of this command.
    fn is_postponed(&self, to: &StorageAddress) -> bool {
        self.settings.removes_extras && !self.settings.dry_run && is_blocked(to)
    }

    fn perform_copy(&self, from: &StorageAddress, to: &StorageAddress, size: Option<u64>) {
        // Standard input cannot be read again. A move that must not replace anything would find its own copy.
        let may_be_repeated = *from != StorageAddress::Stdio
            && !(self.settings.removes_sources && self.settings.existing != OverwritePolicy::Replace);
        let copied = match may_be_repeated {
            true => self.attempts.perform(|| self.copy(from, to, size)),
            false => self.copy(from, to, size),
        };
        match copied {
            Ok(TransferCopyOutcome::Done(size)) => {
                let name = if self.settings.removes_sources { "move" } else { copy_name(from, to) };
                self.done(name, from, Some(to), size);
            }
            Ok(TransferCopyOutcome::Skipped) => self.tally.skipped(),
            Err(error) => self.failed(&error),
        }
    }

    fn copy(
        &self,
        from: &StorageAddress,
        to: &StorageAddress,
        size: Option<u64>,
    ) -> Result<TransferCopyOutcome> {
        self.context.interrupt.check()?;
        tracing::debug!(%from, %to, "copy");
        if self.must_look_for(to) && self.is_taken(from, to)? {
            return match self.settings.existing {
                OverwritePolicy::Skip => Ok(TransferCopyOutcome::Skipped),
                _ => Err(already_exists(to)),
            };
        }
        if self.settings.dry_run {
            self.rehearse(from, to, size)?;
            return Ok(TransferCopyOutcome::Done(size));
        }
        self.context.output.expect_bytes(size.unwrap_or(0));
        let moved = match self.rename(from, to) {
            Ok(true) => self.advance(size.unwrap_or(0)).map(|()| size),
            Ok(false) => {
                let copied = self.copy_content(from, to, size);
                copied.and_then(|(bytes, source)| self.settle(from, to, &source).map(|()| bytes))
            }
            Err(error) => Err(error),
        };
        match moved {
            Ok(bytes) => Ok(TransferCopyOutcome::Done(bytes.or(size))),
            // Another program created the destination after the check. --no-clobber keeps the destination.
            Err(error)
                if error.kind() == ErrorKind::PreconditionFailed
                    && self.settings.existing == OverwritePolicy::Skip =>
            {
                Ok(TransferCopyOutcome::Skipped)
            }
            Err(error) => Err(error),
        }
    }

    /// Checks in a dry run what a copy would check first: that the source exists (unless a listing contained the size
    /// of the object), that the destination's bucket exists, that the copy may replace the destination, and that the
    /// destination is not a directory. Errors: the errors of the copy. Cost: at most one request for a source whose
    /// size is unknown, one request for each bucket, and with [`OverwritePolicy::Fail`] one request for each
    /// destination.
    fn rehearse(&self, from: &StorageAddress, to: &StorageAddress, size: Option<u64>) -> Result<()> {
        match from {
            StorageAddress::S3(bucket, key) if size.is_none() => {
                self.lane.store.head(bucket, &Key::new(key)?, &self.source())?;
            }
            // The size of a single source is known even if the source is a pipe, which cannot be copied.
            StorageAddress::Local(path) => {
                let about = path.metadata().map_err(|error| source_error("reading", path, error))?;
                if !about.is_file() {
                    let why = format!("{} is not a regular file", path.display());
                    return Err(Error::new(ErrorKind::InvalidArgument, why));
                }
            }
            _ => {}
        }
        if let StorageAddress::S3(bucket, _) = to {
            self.find_bucket(bucket)?;
        }
        if self.settings.existing == OverwritePolicy::Fail && self.exists(to)? {
            return Err(already_exists(to));
        }
        match to {
            // The removals of this command may make room for the copy.
            StorageAddress::Local(_) if self.settings.removes_extras => Ok(()),
            StorageAddress::Local(path) => download::check_destination(path),
            _ => Ok(()),
        }
    }

    /// Checks in a dry run that a bucket exists. Cost: one request for each bucket.
    fn find_bucket(&self, bucket: &Bucket) -> Result<()> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if !found.contains(bucket) {
            self.lane.store.head_bucket(bucket)?;
            found.insert(bucket.clone());
        }
        Ok(())
    }

    /// Renames the object instead of copying it, if this is a move within one bucket and the store supports renaming.
    /// Returns whether the object was renamed. Over HTTP, objects are copied instead, because a service without support
    /// for RenameObject would store an empty object.
    fn rename(&self, from: &StorageAddress, to: &StorageAddress) -> Result<bool> {
        let (StorageAddress::S3(bucket, source), StorageAddress::S3(to_bucket, target)) = (from, to) else {
            return Ok(false);
        };
        let settings = self.settings;
        let is_plain =
            settings.metadata.keep_all() && settings.checksum.is_none() && settings.source_version.is_none();
        let is_within = bucket == to_bucket && source != target;
        if !settings.removes_sources || !is_plain || !is_within || self.store().lane() == "http" {
            return Ok(false);
        }
        let options = RenameOptions { conditions: self.conditions(), ..Default::default() };
        match self.store().rename(bucket, &Key::new(source)?, &Key::new(target)?, &options) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotImplemented => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Copies the content; returns the number of bytes, if it is known, and the copied source.
    fn copy_content(
        &self,
        from: &StorageAddress,
        to: &StorageAddress,
        size: Option<u64>,
    ) -> Result<(Option<u64>, CopiedSource)> {
        match (from, to) {
            (StorageAddress::Local(path), StorageAddress::S3(bucket, key)) => {
                let (size, source) = self.upload_file(path, bucket, &Key::new(key)?)?;
                Ok((Some(size), CopiedSource::File(source)))
            }
            (StorageAddress::Stdio, StorageAddress::S3(bucket, key)) => {
                let size = self.upload_stream(bucket, &Key::new(key)?)?;
                Ok((Some(size), CopiedSource::NotRemovable))
            }
            (StorageAddress::S3(bucket, key), StorageAddress::Local(path)) => {
                let replaced_file = self.settings.removes_sources && path.is_file();
                let info = self.download((bucket, &Key::new(key)?), size, path)?;
                Ok((Some(info.size), CopiedSource::Object { etag: info.etag, replaced_file }))
            }
            (StorageAddress::S3(bucket, key), StorageAddress::S3(to_bucket, to_key)) => {
                let key = Key::new(key)?;
                let source = self.source_of_move(bucket, &key)?;
                let size = self.copy_object((bucket, &key), to_bucket, &Key::new(to_key)?, size)?;
                Ok((size, source))
            }
            _ => Err(Error::new(ErrorKind::InvalidArgument, unsupported(from, to))),
        }
    }

    /// Looks up an object before the store copies it. If another program replaces the object after this lookup, the
    /// ETag differs, and the move does not remove the new content.
    fn source_of_move(&self, bucket: &Bucket, key: &Key) -> Result<CopiedSource> {
        if !self.settings.removes_sources {
            return Ok(CopiedSource::NotRemovable);
        }
        let etag = self.store().head(bucket, key, &self.source())?.etag;
        Ok(CopiedSource::Object { etag, replaced_file: false })
    }

    /// Returns whether a copy has to look for the destination first. All copies that must not replace anything have a
    /// condition, but some services ignore this condition, and would replace the destination. A dry run looks for the
    /// destination in [`rehearse`](Self::rehearse).
    fn must_look_for(&self, to: &StorageAddress) -> bool {
        let is_on_service = matches!(to, StorageAddress::S3(..)) && self.store().lane() == "http";
        match self.settings.existing {
            OverwritePolicy::Replace => false,
            OverwritePolicy::Skip => true,
            OverwritePolicy::Fail => is_on_service && !self.settings.dry_run,
        }
    }

    /// Returns whether the destination exists. Services refuse to tell this to users without permission to list the
    /// bucket. Returns false for these users if the copy is an upload, because all common services support the
    /// condition of an upload. Fewer services support the condition of a copy within the service.
    fn is_taken(&self, from: &StorageAddress, to: &StorageAddress) -> Result<bool> {
        match self.exists(to) {
            Err(error)
                if error.kind() == ErrorKind::AccessDenied && !matches!(from, StorageAddress::S3(..)) =>
            {
                Ok(false)
            }
            found => found,
        }
    }

    fn exists(&self, place: &StorageAddress) -> Result<bool> {
        match place {
            StorageAddress::S3(bucket, key) => {
                match self.lane.store.head(bucket, &Key::new(key)?, &GetOptions::default()) {
                    Ok(_) => Ok(true),
                    Err(error) if error.kind() == ErrorKind::NoSuchKey => Ok(false),
                    Err(error) => Err(error),
                }
            }
            StorageAddress::Local(path) => Ok(path.symlink_metadata().is_ok()),
            StorageAddress::Service | StorageAddress::Stdio => Ok(false),
        }
    }

    /// Prints a completed action and counts it. An action that cannot be printed counts as failed.
    fn done(
        &self,
        operation: &'static str,
        from: &StorageAddress,
        to: Option<&StorageAddress>,
        size: Option<u64>,
    ) {
        let (source, destination) = (from.to_string(), to.map(StorageAddress::to_string));
        let dry_run = self.settings.dry_run;
        let event = TransferActionOutput {
            operation,
            source: &source,
            destination: destination.as_deref(),
            size_bytes: size,
            dry_run,
        };
        match self.context.output.completed(&event) {
            Ok(()) => self.tally.done(),
            Err(error) => self.failed(&error),
        }
    }

    fn failed(&self, error: &Error) {
        self.tally.failed(self.context, error);
    }

    /// Returns the options for reading a source, including the version to read.
    fn source(&self) -> GetOptions {
        GetOptions { version: self.settings.source_version.clone(), ..Default::default() }
    }

    fn content_source<'s>(&'s self, object: (&'s Bucket, &'s Key)) -> ObjectReceiver<'s> {
        let (version, interrupt) = (self.settings.source_version.as_ref(), &self.context.interrupt);
        ObjectReceiver { store: self.store(), object, version, interrupt }
    }

    fn store(&self) -> &dyn Store {
        &*self.lane.store
    }

    /// Returns the minimum size, in bytes, of objects that are transferred in parts.
    fn threshold_bytes(&self) -> Option<u64> {
        self.settings.multipart_threshold_bytes.or(self.lane.multipart_threshold_bytes)
    }

    /// Adds transferred bytes to the progress display. Errors: `Interrupted` if the command must stop.
    fn advance(&self, bytes: u64) -> Result<()> {
        self.context.output.advance_bytes(bytes);
        self.context.interrupt.check()
    }
}

fn already_exists(place: &StorageAddress) -> Error {
    Error::new(ErrorKind::PreconditionFailed, format!("{place} already exists"))
}

fn copy_name(from: &StorageAddress, to: &StorageAddress) -> &'static str {
    match (from, to) {
        (StorageAddress::S3(..), StorageAddress::S3(..)) => "copy",
        (_, StorageAddress::S3(..)) => "upload",
        _ => "download",
    }
}

/// Returns the reason why one address cannot be copied to the other.
pub(crate) fn unsupported(from: impl fmt::Display, to: &StorageAddress) -> String {
    format!("cannot copy {from} to {to}: at least one of them must have the form s3://BUCKET/KEY")
}

#[derive(Default)]
pub(crate) struct SharedTransferCounts(Mutex<TransferCounts>);

#[derive(Clone, Copy, Default)]
struct TransferCounts {
    done: u64,
    skipped: u64,
    failed: u64,
    first_failure: Option<CommandExit>,
}

impl SharedTransferCounts {
    fn change(&self, change: impl FnOnce(&mut TransferCounts)) -> TransferCounts {
        let mut counts = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        change(&mut counts);
        *counts
    }

    pub(crate) fn done(&self) {
        self.change(|counts| counts.done += 1);
    }

    pub(crate) fn skipped(&self) {
        self.change(|counts| counts.skipped += 1);
    }

    /// Reports `error`, unless it only means that the command must stop.
    pub(crate) fn failed(&self, context: &CommandContext, error: &Error) {
        if error.kind() == ErrorKind::Interrupted {
            return;
        }
        context.output.error(error);
        self.change(|counts| {
            counts.failed += 1;
            counts.first_failure.get_or_insert(CommandExit::of(error));
        });
    }

    /// Counts an action by its result, and reports its error.
    pub(crate) fn count(&self, context: &CommandContext, result: Result<()>) {
        match result {
            Ok(()) => self.done(),
            Err(error) => self.failed(context, &error),
        }
    }

    /// Returns whether anything has failed so far.
    pub(crate) fn has_failed(&self) -> bool {
        self.change(|_| {}).failed > 0
    }

    /// Prints the number of source files that were left out, and a summary if at least one of several actions failed.
    /// Returns the exit code of the first failure. Errors: `Interrupted` after a signal.
    pub(crate) fn finish(&self, context: &CommandContext) -> Result<CommandExit> {
        let TransferCounts { done, skipped, failed, first_failure } = self.change(|_| {});
        if context.interrupt.is_raised() {
            let why = format!(
                "stopped by a signal after {done} objects; incomplete objects were removed, but the server may still \
                 carry out requests that it has received"
            );
            return Err(Error::new(ErrorKind::Interrupted, why));
        }
        note_unfinished_downloads(context);
        if failed > 0 && failed + done + skipped > 1 {
            let total = failed + done + skipped;
            context.output.note(&format!("{failed} of {total} failed, {done} done, {skipped} skipped"));
        }
        Ok(first_failure.unwrap_or(CommandExit::Ok))
    }
}

/// Prints the number of source files that were left out because of their names.
fn note_unfinished_downloads(context: &CommandContext) {
    let left_out = context.unfinished_downloads.swap(0, Ordering::Relaxed);
    if left_out > 0 {
        let files = if left_out == 1 { "file" } else { "files" };
        context.output.note(&format!(
            "left out {left_out} {files} with the hidden name of an unfinished download, such as \
             .NAME.0123456789abcdef.part"
        ));
    }
}

/// The destinations of several sources. Two sources can yield the same destination, for example if the files `a/x` and
/// `b/x` are copied to one directory. If both copies were made, it would be unpredictable which file remains, and a
/// move would lose the other file. A single source never yields the same destination twice.
pub(crate) struct ClaimedDestinations<P>(Option<HashSet<P>>);

impl<P: Clone + Display + Eq + Hash> ClaimedDestinations<P> {
    /// Creates the set. To save memory, destinations are remembered only if there are several sources.
    pub(crate) fn by(sources: usize) -> Self {
        ClaimedDestinations((sources > 1).then(HashSet::new))
    }

    /// Claims the destination `to` for `from`. Errors: `InvalidArgument` if `to` is already claimed.
    pub(crate) fn take(&mut self, from: &P, to: &P) -> Result<()> {
        if self.0.as_mut().is_none_or(|places| places.insert(to.clone())) {
            return Ok(());
        }
        let why = format!("{from} and another source would both be copied to {to}; copy them separately");
        Err(Error::new(ErrorKind::InvalidArgument, why))
    }
}
