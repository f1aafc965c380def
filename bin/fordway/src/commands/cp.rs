//! `cp` copies files to objects, objects to files, and objects to objects. `mv` removes each source after its copy, or
//! uses a rename or move operation of the store or server. `sync` makes the contents of one directory or prefix match
//! the contents of another.

use std::path::{Path, PathBuf};

use fordway_command::{CommandContext, CommandExit, StorageAddress, file_error};
use fordway_store::{Error, ErrorKind, Result};

use super::change::only_object;
use super::conflicts::SourceConflictCheck;
use super::overlap::{self, SeparateDirectories};
use super::{AddressOptions, SourceSelection};
use crate::args::{CpArgs, MvArgs, SyncArgs};
use crate::replicas::{self, ReplicaOpener};
use crate::transfer::plan::{
    self, ListedItem, LocalListingError, SyncDirection, SyncItem, SyncItemIterator, SyncRules, SyncStep,
};
use crate::transfer::{
    self, ClaimedDestinations, ObjectMetadataRules, OverwritePolicy, PostponedRemovals, TransferAction,
    TransferSettings, unsupported,
};
use crate::wildcard::{FilterRules, has_wildcard, object_name};
use crate::{dav, web};

type TransferActionIterator<'a> = Box<dyn Iterator<Item = Result<TransferAction>> + 'a>;

pub(super) fn run(args: &CpArgs, context: &CommandContext) -> Result<CommandExit> {
    if let [url] = args.paths.sources.as_slice()
        && web::is_address(url)
        && args.paths.destination != "-"
        && !web::is_address(&args.paths.destination)
        && !args.recursive
        && !args.transfer.dry_run
    {
        return copy_url(url, args, context);
    }
    if let (Some(source), true) = (&args.replicas.metalink, args.paths.sources.is_empty())
        && args.paths.destination != "-"
    {
        return copy_described(source, args, context);
    }
    if args.paths.destination == "-" {
        return super::read::copy_out(args, context);
    }
    let existing = existing(args.no_clobber, args.if_none_match);
    let order = dav::DavCopyOptions::of_cp(args, existing);
    if order.concerns_web() {
        check_no_version(args)?;
        return dav::copy(&order, context);
    }
    replicas::check_unused(&args.replicas)?;
    let has_version = args.version_id.is_some();
    let options = AddressOptions { recursive: args.recursive, raw: args.raw, has_version };
    let sources = sources(&args.paths.sources, options, context)?;
    if args.version_id.is_some() {
        only_object(&sources)?;
    }
    let settings = TransferSettings::of(&args.transfer, existing)?.reading(args.version_id.clone());
    copy_all(&sources, &args.paths.destination, &args.transfer.selection(), &settings, context)
}

/// Resolves the addresses into sources. Errors: the errors of [`SourceSelection::resolve`].
fn sources(
    addresses: &[String],
    options: AddressOptions,
    context: &CommandContext,
) -> Result<Vec<SourceSelection>> {
    addresses.iter().map(|text| SourceSelection::resolve(text, options, context)).collect()
}

/// Copies all files and objects of the sources.
pub(super) fn copy_all(
    sources: &[SourceSelection],
    to: &str,
    filters: &FilterRules,
    settings: &TransferSettings,
    context: &CommandContext,
) -> Result<CommandExit> {
    let destination = StorageAddress::parse(to)?;
    let several =
        sources.len() > 1 || sources.iter().any(|source| !matches!(source, SourceSelection::One(_)));
    let target = DestinationPathRule::new(to, destination, several)?;
    let filters = &local_filters(sources, &target, filters)?;
    let conflicts = SourceConflictCheck { sources, target: &target, filters, context };
    for source in sources {
        check_places(source, target.directory())?;
        settings.metadata.check(&source.root(), target.directory())?;
        conflicts.check_inside(source)?;
    }
    conflicts.check_replaced()?;
    if settings.removes_sources() {
        conflicts.check_left_behind()?;
    }
    let plan = |source| {
        actions(context, source, &target, filters)
            .unwrap_or_else(|error| Box::new(std::iter::once(Err(error))))
    };
    let mut taken = ClaimedDestinations::by(sources.len());
    let actions = sources.iter().flat_map(plan).map(|action| {
        if let Ok(TransferAction::Copy { from, to, .. }) = &action {
            taken.take(from, to)?;
        }
        action
    });
    // A dry run removes nothing, so no removal has to wait.
    if !settings.removes_sources() || settings.dry_run {
        return transfer::run(context, settings, actions);
    }
    let local = sources.iter().filter_map(SourceSelection::local);
    let postponed = PostponedRemovals::of(local, filters, &context.interrupt);
    transfer::run_move(context, settings, &postponed, actions)
}

/// Returns the filters of a copy, in which an absolute pattern may name local paths. Errors: `InvalidArgument` for an
/// absolute pattern that names no path of this copy. In a copy between stores, a key may begin with a slash.
fn local_filters(
    sources: &[SourceSelection],
    target: &DestinationPathRule,
    filters: &FilterRules,
) -> Result<FilterRules> {
    let mut roots: Vec<PathBuf> = sources
        .iter()
        .filter_map(|source| match source.root() {
            StorageAddress::Local(path) => Some(path),
            _ => None,
        })
        .collect();
    match target {
        DestinationPathRule::Below(StorageAddress::Local(path)) => roots.push(path.clone()),
        DestinationPathRule::Exactly(StorageAddress::Local(_)) => {}
        _ if roots.is_empty() => return Ok(filters.clone()),
        _ => {}
    }
    filters.relative_to(&roots)
}

/// Copies a file from a web server; the file must be the only source.
fn copy_url(url: &str, args: &CpArgs, context: &CommandContext) -> Result<CommandExit> {
    check_download(args)?;
    let directory = PathBuf::from(&args.paths.destination);
    if !args.transfer.filters.relative_to(&[directory])?.admit(&web::name_of(url)) {
        return Ok(CommandExit::Ok);
    }
    let places = ReplicaOpener::usual(&args.replicas, !args.transfer.no_verify);
    let existing = existing(args.no_clobber, args.if_none_match);
    web::download(url, &args.paths.destination, existing, &places, context).map(|()| CommandExit::Ok)
}

/// Copies the files that a Metalink describes.
fn copy_described(source: &str, args: &CpArgs, context: &CommandContext) -> Result<CommandExit> {
    check_download(args)?;
    if args.transfer.dry_run || args.recursive {
        let why = "--dry-run and --recursive cannot be used with --metalink without a URL";
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let places = ReplicaOpener::usual(&args.replicas, !args.transfer.no_verify);
    let existing = existing(args.no_clobber, args.if_none_match);
    let to = (args.paths.destination.as_str(), existing);
    let filters = args.transfer.filters.relative_to(&[PathBuf::from(to.0)])?;
    replicas::copy_all(source, to, &filters, &places, context)
}

/// Checks that no option of a download from a web server would be without effect. Errors: `InvalidArgument`.
fn check_download(args: &CpArgs) -> Result<()> {
    check_no_version(args)?;
    web::check_transfer(&args.transfer)?;
    let to = StorageAddress::Local(PathBuf::from(&args.paths.destination));
    ObjectMetadataRules::of(&args.transfer.object)?.check(&StorageAddress::Service, &to)
}

fn check_no_version(args: &CpArgs) -> Result<()> {
    match args.version_id {
        Some(_) => {
            let why = "--version-id cannot be used with an http(s) or dav(s) address";
            Err(Error::new(ErrorKind::InvalidArgument, why))
        }
        None => Ok(()),
    }
}

/// Checks that the source or the destination is in a store. Errors: `InvalidArgument` if neither of them is in a store.
fn check_places(from: &SourceSelection, to: &StorageAddress) -> Result<()> {
    match (from.root(), to) {
        (StorageAddress::S3(..), _) | (_, StorageAddress::S3(..)) => Ok(()),
        _ => Err(Error::new(ErrorKind::InvalidArgument, unsupported(from, to))),
    }
}

/// Returns the policy that the options set for objects and files that already exist at the destination.
pub(super) fn existing(no_clobber: bool, if_none_match: bool) -> OverwritePolicy {
    match (no_clobber, if_none_match) {
        (true, _) => OverwritePolicy::Skip,
        (_, true) => OverwritePolicy::Fail,
        _ => OverwritePolicy::Replace,
    }
}

/// The rule for the destination path of a copy.
pub(super) enum DestinationPathRule {
    /// The destination itself is the path of the copy.
    Exactly(StorageAddress),
    /// The copy keeps the name of the source, below this directory or prefix.
    Below(StorageAddress),
}

impl DestinationPathRule {
    fn new(text: &str, destination: StorageAddress, several: bool) -> Result<Self> {
        let is_directory = match &destination {
            StorageAddress::Service => {
                return Err(Error::new(ErrorKind::InvalidArgument, "the destination s3:// has no bucket"));
            }
            StorageAddress::S3(_, key) => key.is_empty() || key.ends_with('/'),
            StorageAddress::Local(path) => text.ends_with('/') || path.is_dir(),
            StorageAddress::Stdio => false,
        };
        match &destination {
            StorageAddress::Local(path) if several && path.exists() && !path.is_dir() => {
                let why =
                    format!("several objects cannot be copied to {text}, which is a file; give a directory");
                Err(Error::new(ErrorKind::InvalidArgument, why))
            }
            _ if is_directory || several => Ok(DestinationPathRule::Below(destination.into_directory())),
            _ => Ok(DestinationPathRule::Exactly(destination)),
        }
    }

    pub(super) fn directory(&self) -> &StorageAddress {
        match self {
            DestinationPathRule::Exactly(place) | DestinationPathRule::Below(place) => place,
        }
    }

    fn place(&self, name: &str) -> Result<StorageAddress> {
        match self {
            DestinationPathRule::Exactly(place) => Ok(place.clone()),
            DestinationPathRule::Below(directory) => directory.destination_below(name),
        }
    }
}

/// Returns the actions for one source.
fn actions<'a>(
    context: &CommandContext,
    source: &'a SourceSelection,
    target: &'a DestinationPathRule,
    filters: &'a FilterRules,
) -> Result<TransferActionIterator<'a>> {
    let root = source.root();
    match (source, source.items(context, filters)?) {
        (_, Some(items)) => Ok(many(context.store()?.lane(), items, root, target, filters)),
        (SourceSelection::One(place), None) => {
            let action = one(place, target, filters).transpose();
            Ok(Box::new(action.into_iter()))
        }
        _ => Ok(Box::new(std::iter::empty())),
    }
}

/// Returns the copy of a single source; `None` if a filter excludes the source.
pub(super) fn one(
    from: &StorageAddress,
    target: &DestinationPathRule,
    filters: &FilterRules,
) -> Result<Option<TransferAction>> {
    let name = match from {
        StorageAddress::S3(_, key) => object_name(key).to_owned(),
        StorageAddress::Local(path) => base_name(path)?,
        StorageAddress::Service | StorageAddress::Stdio
            if matches!(target, DestinationPathRule::Exactly(_)) =>
        {
            String::new()
        }
        StorageAddress::Service | StorageAddress::Stdio => {
            let why = "standard input has no name; give the full key as the destination";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
    };
    let is_skipped_link =
        || matches!(from, StorageAddress::Local(path) if filters.skips_links() && path.is_symlink());
    if !name.is_empty() && (!filters.admit(&name) || is_skipped_link()) {
        return Ok(None);
    }
    let size = match from {
        StorageAddress::Local(path) => path.metadata().ok().map(|about| about.len()),
        _ => None,
    };
    Ok(Some(TransferAction::Copy { from: from.clone(), to: target.place(&name)?, size }))
}

fn base_name(path: &Path) -> Result<String> {
    path.file_name().and_then(|name| name.to_str()).map(str::to_owned).ok_or_else(|| {
        Error::new(ErrorKind::InvalidKey, format!("the name of {} cannot be a key", path.display()))
    })
}

/// Returns the copies for a listing. Skips prefix markers (empty objects such as `dir/`), which are not content. Also
/// skips objects below the destination, because otherwise copies would be copied again.
fn many<'a>(
    lane: &'static str,
    items: SyncItemIterator,
    root: StorageAddress,
    target: &'a DestinationPathRule,
    filters: &'a FilterRules,
) -> TransferActionIterator<'a> {
    let own_copies = nested(&root, target.directory());
    Box::new(items.filter_map(move |item| {
        let item = match item {
            Ok(item) => item,
            Err(error) => return Some(Err(error)),
        };
        let inside = own_copies.as_deref().is_some_and(|prefix| item.relative.starts_with(prefix));
        (is_content(&item) && !inside && filters.admit(&item.relative)).then(|| {
            let from = from_item(&root, &item);
            let to = target.place(&item.relative).map_err(|error| about(error, &from, lane))?;
            Ok(TransferAction::Copy { from, to, size: Some(item.size) })
        })
    }))
}

/// Returns false for a prefix marker (an empty object such as `dir/`), which is not content.
pub(super) fn is_content(item: &SyncItem) -> bool {
    !(item.size == 0 && (item.relative.is_empty() || item.relative.ends_with('/')))
}

/// Returns the address of an item at the source. The name of the item may be invalid for a new object.
pub(super) fn from_item(root: &StorageAddress, item: &SyncItem) -> StorageAddress {
    match root {
        StorageAddress::S3(bucket, prefix) => {
            StorageAddress::S3(bucket.clone(), format!("{prefix}{}", item.relative))
        }
        StorageAddress::Local(path) => StorageAddress::Local(path.join(&item.relative)),
        other => other.clone(),
    }
}

/// Adds the name of the source to the error about an invalid destination.
pub(super) fn about(error: Error, from: &StorageAddress, lane: &'static str) -> Error {
    match from {
        StorageAddress::S3(bucket, key) => error.during("copy", lane, bucket.as_str(), key),
        StorageAddress::Local(path) => error.during_at("copy", lane, &path.display().to_string()),
        StorageAddress::Service | StorageAddress::Stdio => error,
    }
}

/// If `inner` is below `outer`, returns the prefix of `inner` relative to `outer`.
pub(super) fn nested(outer: &StorageAddress, inner: &StorageAddress) -> Option<String> {
    match (outer, inner) {
        (StorageAddress::S3(from, prefix), StorageAddress::S3(to, key))
            if from == to && key.len() > prefix.len() =>
        {
            key.strip_prefix(prefix.as_str()).map(str::to_owned)
        }
        _ => None,
    }
}

pub(super) fn mv(args: &MvArgs, context: &CommandContext) -> Result<CommandExit> {
    let existing = existing(args.no_clobber, args.if_none_match);
    let order = dav::DavCopyOptions::of_mv(args, existing);
    if order.concerns_web() {
        return dav::copy(&order, context);
    }
    let settings = TransferSettings::of(&args.transfer, existing)?.removing_sources();
    let options = AddressOptions { recursive: args.recursive, raw: args.raw, has_version: false };
    let sources = sources(&args.paths.sources, options, context)?;
    let selection = args.transfer.selection().refusing_linked_directories();
    super::check_filters_of_removal(&sources, &selection)?;
    copy_all(&sources, &args.paths.destination, &selection, &settings, context)
}

pub(super) fn sync(args: &SyncArgs, context: &CommandContext) -> Result<CommandExit> {
    let from = synchronized(&args.source, args.raw)?;
    let to = synchronized(&args.destination, args.raw)?;
    let rules = SyncRules {
        direction: direction(&from, &to)?,
        size_only: args.size_only,
        exact_timestamps: args.exact_timestamps,
        delete: args.delete,
        keeps_existing: args.no_clobber,
    };
    if rules.exact_timestamps && rules.direction != SyncDirection::Download {
        let why = "--exact-timestamps only applies to downloads";
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let settings = TransferSettings::of(&args.transfer, existing(args.no_clobber, false))?;
    let settings = settings.removing_extras(args.delete);
    settings.metadata.check(&from, &to)?;
    let separate = overlap::check_separate(&from, &to, context)?;
    let local = [&from, &to].into_iter().find_map(|place| match place {
        StorageAddress::Local(path) => Some(path.clone()),
        _ => None,
    });
    let selection = &match local {
        Some(root) => args.transfer.selection().relative_to(&[root])?,
        None => args.transfer.selection(),
    };
    // Both sides are filtered, so that --delete does not remove objects and files that the filters exclude.
    let source = wanted(source_items(context, &from, selection, args.delete)?, selection);
    let destination = wanted(destination_items(context, &to, selection)?, selection);
    let lane = context.store()?.lane();
    let copy = |item: SyncItem| {
        let source = from_item(&from, &item);
        let target = to.destination_below(&item.relative).map_err(|error| about(error, &source, lane))?;
        check_not_special(&target)?;
        Ok(TransferAction::Copy { from: source, to: target, size: Some(item.size) })
    };
    let mut links = DestinationLinks::below(&to);
    let actions = plan::sync(source, destination, rules).filter_map(|step| match step {
        Ok(SyncStep::Copy(item)) => Some(copy(item)),
        Ok(SyncStep::Remove(item)) if exists_locally(&from, &item) || links.lead_to(&item, context) => None,
        Ok(SyncStep::Remove(item)) if is_shared(separate.as_ref(), &from_item(&to, &item), context) => None,
        Ok(SyncStep::Remove(item)) => Some(Ok(TransferAction::Remove(from_item(&to, &item)))),
        Ok(SyncStep::KeepRest) => {
            let why = "the source could not be listed completely, so nothing more is removed";
            context.output.note(why);
            None
        }
        Ok(SyncStep::Stop) => {
            context
                .output
                .note("the destination could not be listed completely, so the rest was not compared");
            None
        }
        Err(error) => Some(Err(error)),
    });
    let exit = transfer::run(context, &settings, actions)?;
    if exit == CommandExit::Ok && !settings.dry_run {
        make_destination(&to)?;
    }
    Ok(exit)
}

/// Parses an address of `sync`. Errors: `InvalidArgument` for a wildcard, unless `raw` is set. Otherwise, a source with
/// a wildcard would count as an empty prefix.
fn synchronized(text: &str, raw: bool) -> Result<StorageAddress> {
    match StorageAddress::parse(text)? {
        StorageAddress::S3(_, key) if !raw && has_wildcard(&key) => {
            let why = format!(
                "`sync` does not expand the wildcard in {text}; use `cp`, or select objects below a prefix with \
                 --exclude '*' --include PATTERN (add --raw to treat * and ? as literal characters)"
            );
            Err(Error::new(ErrorKind::InvalidArgument, why))
        }
        place => Ok(place.into_directory()),
    }
}

/// Lists the source. Errors: the errors of [`plan::sync_source`]; with `deletes`, `NoSuchKey` if no object is below a prefix,
/// because the prefix may be mistyped, and everything at the destination would be removed. A whole bucket may be empty.
fn source_items(
    context: &CommandContext,
    from: &StorageAddress,
    filters: &FilterRules,
    deletes: bool,
) -> Result<Box<dyn Iterator<Item = ListedItem>>> {
    match from {
        StorageAddress::S3(_, prefix) if deletes && !prefix.is_empty() => {
            let items = super::items_below(context, from, filters)?;
            Ok(Box::new(items.map(|item| item.map_err(LocalListingError::from))))
        }
        _ => plan::sync_source(context, from, filters),
    }
}

/// Returns whether an item exists at the source although the listing of the source does not contain it. Another program
/// may have created the item after the listing, or the listing may be wrong. Or the item is a link that forms a loop:
/// the listing of the source reports such a link as an error, but only after files whose names continue with a hyphen,
/// because links to directories are sorted as if their names ended with a slash. In all these cases, `sync --delete`
/// must not remove the item's copy at the destination.
fn exists_locally(from: &StorageAddress, item: &SyncItem) -> bool {
    match from.below(&item.relative) {
        Ok(StorageAddress::Local(path)) => path.is_file() || plan::forms_loop(&path),
        _ => false,
    }
}

/// Returns whether an object is a file of the source, which is possible if the object's path contains a symbolic link
/// below the prefix. Prints a note about such an object, which `sync --delete` must not remove.
fn is_shared(
    separate: Option<&SeparateDirectories>,
    place: &StorageAddress,
    context: &CommandContext,
) -> bool {
    let (Some(separate), StorageAddress::S3(_, key)) = (separate, place) else { return false };
    let is_shared = separate.share(key);
    if is_shared {
        let why = "is a file of the source, to which a link leads, so --delete does not remove it";
        context.output.note(&format!("{place} {why}"));
    }
    is_shared
}

/// The links to directories at a local destination. Files that such a link points to may belong to another directory
/// tree, so `sync --delete` does not remove them.
struct DestinationLinks {
    /// The destination; `None` if it is not a local directory.
    root: Option<PathBuf>,
    /// The link in the most recent note.
    last: Option<PathBuf>,
}

impl DestinationLinks {
    fn below(to: &StorageAddress) -> Self {
        let root = match to {
            StorageAddress::Local(path) => Some(path.clone()),
            _ => None,
        };
        DestinationLinks { root, last: None }
    }

    /// Returns whether an item is below a link to a directory. Prints one note for consecutive items below the same
    /// link.
    fn lead_to(&mut self, item: &SyncItem, context: &CommandContext) -> bool {
        let Some(root) = &self.root else { return false };
        let parents = item.relative.match_indices('/').map(|(slash, _)| root.join(&item.relative[..slash]));
        let Some(link) = parents.into_iter().find(|parent| parent.is_symlink()) else { return false };
        if self.last.as_ref() != Some(&link) {
            let shown = link.display();
            context
                .output
                .note(&format!("{shown} is a link to a directory, so --delete removes nothing below it"));
            self.last = Some(link);
        }
        true
    }
}

fn direction(from: &StorageAddress, to: &StorageAddress) -> Result<SyncDirection> {
    match (from, to) {
        (StorageAddress::S3(one, source), StorageAddress::S3(other, target))
            if one == other
                && (source.starts_with(target.as_str()) || target.starts_with(source.as_str())) =>
        {
            let why = format!("one of {from} and {to} contains the other; choose two separate prefixes");
            Err(Error::new(ErrorKind::InvalidArgument, why))
        }
        (StorageAddress::S3(..), StorageAddress::S3(..)) => Ok(SyncDirection::Copy),
        (StorageAddress::S3(..), StorageAddress::Local(_)) => Ok(SyncDirection::Download),
        (StorageAddress::Local(_), StorageAddress::S3(..)) => Ok(SyncDirection::Upload),
        _ => Err(Error::new(ErrorKind::InvalidArgument, unsupported(from, to))),
    }
}

/// Checks that the destination is not a device or a pipe. A write to a pipe would wait for a reader. Errors:
/// `InvalidArgument`.
fn check_not_special(to: &StorageAddress) -> Result<()> {
    match to {
        StorageAddress::Local(path)
            if path.metadata().is_ok_and(|about| !about.is_file() && !about.is_dir()) =>
        {
            let why = format!("{} is not a regular file, so `sync` does not replace it", path.display());
            Err(Error::new(ErrorKind::InvalidArgument, why))
        }
        _ => Ok(()),
    }
}

/// Lists the destination. A missing local directory counts as empty, because the downloads create the directory. A note
/// names each local entry that is neither compared nor removed.
fn destination_items<'c>(
    context: &'c CommandContext,
    to: &StorageAddress,
    filters: &FilterRules,
) -> Result<Box<dyn Iterator<Item = Result<SyncItem>> + 'c>> {
    match to {
        StorageAddress::Local(path) if !path.exists() => Ok(Box::new(std::iter::empty())),
        StorageAddress::Local(path) => plan::local_destination(path, filters, |error| {
            context.output.note(&format!("skipping an entry at the destination: {error}"));
        }),
        _ => plan::items(context, to, filters),
    }
}

/// Creates the local destination of a synchronisation that succeeded without copying anything.
fn make_destination(to: &StorageAddress) -> Result<()> {
    match to {
        StorageAddress::Local(path) => {
            std::fs::create_dir_all(path).map_err(|error| file_error("creating", path.display(), error))
        }
        _ => Ok(()),
    }
}

/// Returns the items that the filters admit, without prefix markers (empty objects such as `dir/`), which are not
/// content.
fn wanted<'a, E: 'a>(
    items: impl Iterator<Item = std::result::Result<SyncItem, E>> + 'a,
    filters: &'a FilterRules,
) -> impl Iterator<Item = std::result::Result<SyncItem, E>> + 'a {
    items.filter(move |item| {
        item.as_ref().map_or(true, |item| is_content(item) && filters.admit(&item.relative))
    })
}
