//! Determines the files involved in a copy or move whose source or destination is a web server.

use std::path::{Path, PathBuf};

use fordway_command::{CommandContext, CommandExit, StorageAddress, check_not_private};
use fordway_http::Origin;
use fordway_http::webdav::{WebDavClient, member_url, parent_url, without_query};
use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::uri;

use super::client;
use super::conflicts::DavConflictCheck;
use super::task::{DavCopier, DavCopyTask};
use crate::args::{CpArgs, MvArgs, ReplicaArgs, ThirdPartyCopyArg, TransferArgs};
use crate::replicas;
use crate::transfer::{
    self, ClaimedDestinations, ObjectMetadataRules, OverwritePolicy, PostponedRemovals,
    parent as directory_of, plan,
};
use crate::web::{self, http_url};
use crate::wildcard::FilterRules;

/// The options of `cp` and `mv`.
#[derive(Clone)]
pub(crate) struct DavCopyOptions<'o> {
    pub(crate) sources: &'o [String],
    pub(crate) destination: &'o str,
    pub(crate) recursive: bool,
    pub(crate) existing: OverwritePolicy,
    pub(crate) third_party: ThirdPartyCopyArg,
    pub(crate) transfer: &'o TransferArgs,
    /// How to use replicas of downloaded files.
    pub(crate) replicas: ReplicaArgs,
    filters: FilterRules,
    /// Whether each source is removed after it has been copied.
    pub(crate) moves: bool,
}

impl<'o> DavCopyOptions<'o> {
    pub(crate) fn of_cp(args: &'o CpArgs, existing: OverwritePolicy) -> Self {
        DavCopyOptions {
            sources: &args.paths.sources,
            destination: &args.paths.destination,
            recursive: args.recursive,
            existing,
            third_party: args.third_party,
            transfer: &args.transfer,
            replicas: args.replicas.clone(),
            filters: args.transfer.selection(),
            moves: false,
        }
    }

    pub(crate) fn of_mv(args: &'o MvArgs, existing: OverwritePolicy) -> Self {
        DavCopyOptions {
            sources: &args.paths.sources,
            destination: &args.paths.destination,
            recursive: args.recursive,
            existing,
            third_party: args.third_party,
            transfer: &args.transfer,
            replicas: ReplicaArgs::default(),
            filters: args.transfer.selection().refusing_linked_directories(),
            moves: true,
        }
    }

    /// Returns whether a source or the destination is on a web server.
    pub(crate) fn concerns_web(&self) -> bool {
        self.sources.iter().map(String::as_str).chain([self.destination]).any(web::is_address)
    }
}

/// The source or destination of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum DavCopyEndpoint {
    Web(String),
    Local(PathBuf),
    Stdin,
}

impl DavCopyEndpoint {
    /// Parses an address. Errors: `InvalidArgument` for an address that cannot be combined with a web server.
    fn parse(text: &str) -> Result<Self> {
        if web::is_address(text) {
            return Ok(DavCopyEndpoint::Web(http_url(text)));
        }
        match StorageAddress::parse(text)? {
            StorageAddress::Local(path) => Ok(DavCopyEndpoint::Local(path)),
            StorageAddress::Stdio => Ok(DavCopyEndpoint::Stdin),
            other => {
                let why =
                    format!("{other} cannot be copied to or from a web server; copy it to a file first");
                Err(Error::new(ErrorKind::InvalidArgument, why))
            }
        }
    }

    /// Returns the last segment of the path, percent-decoded for a URL. Errors: `InvalidArgument` if there is no such
    /// segment.
    fn name(&self) -> Result<String> {
        let name = match self {
            DavCopyEndpoint::Local(path) => {
                path.file_name().and_then(|name| name.to_str()).map(str::to_owned)
            }
            DavCopyEndpoint::Web(url) => {
                let path = without_query(url).trim_end_matches('/');
                let name = path.splitn(4, '/').nth(3).and_then(|path| path.rsplit('/').next());
                name.and_then(uri::decode_segment)
            }
            DavCopyEndpoint::Stdin => None,
        };
        name.filter(|name| !matches!(name.as_str(), "" | "." | "..") && !name.contains('/')).ok_or_else(
            || {
                let why = format!("{self} does not end in a name; specify the name of the copy");
                Error::new(ErrorKind::InvalidArgument, why)
            },
        )
    }

    /// Returns the location of `relative` below this location. `relative` is a decoded path with `/` between its
    /// segments.
    pub(super) fn below(&self, relative: &str) -> Self {
        match self {
            DavCopyEndpoint::Web(url) => {
                let mut encoded = String::new();
                uri::push_path(&mut encoded, relative);
                DavCopyEndpoint::Web(member_url(url, &encoded))
            }
            DavCopyEndpoint::Local(path) => DavCopyEndpoint::Local(path.join(relative)),
            DavCopyEndpoint::Stdin => DavCopyEndpoint::Stdin,
        }
    }

    /// Like [`below`](Self::below), for a name at which content is written. Errors: `InvalidArgument` for a local path
    /// that may be in the private area of a bucket.
    fn destination_below(&self, relative: &str) -> Result<Self> {
        if let DavCopyEndpoint::Local(root) = self {
            check_not_private(root, relative)?;
        }
        Ok(self.below(relative))
    }
}

impl std::fmt::Display for DavCopyEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // Do not print the query, because it may contain a signature.
            DavCopyEndpoint::Web(url) => f.write_str(without_query(url)),
            DavCopyEndpoint::Local(path) => path.display().fmt(f),
            DavCopyEndpoint::Stdin => f.write_str("-"),
        }
    }
}

/// Copies or moves files. Reports failures and continues with the other files.
pub(crate) fn copy(order: &DavCopyOptions<'_>, context: &CommandContext) -> Result<CommandExit> {
    let destination = DavCopyEndpoint::parse(order.destination)?;
    check_options(order, &destination)?;
    let sources =
        order.sources.iter().map(|text| DavCopyEndpoint::parse(text)).collect::<Result<Vec<_>>>()?;
    let is_directory = order.destination.ends_with('/')
        || sources.len() > 1
        || matches!(&destination, DavCopyEndpoint::Local(path) if path.is_dir() && !order.recursive);
    if destination == DavCopyEndpoint::Stdin {
        let why = "only `cp` and `cat` can write to standard output, one file at a time";
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let filters = local_filters(order, &sources, &destination)?;
    let order = &DavCopyOptions { filters, ..order.clone() };
    let dav = client(context)?;
    let conflicts =
        DavConflictCheck { dav: &dav, sources: &sources, destination: &destination, filters: &order.filters };
    if order.recursive {
        conflicts.check_trees()?
    } else {
        conflicts.check_files()?
    }
    // A dry run removes nothing, so no removal has to wait.
    let removes = order.moves && !order.transfer.dry_run;
    let local = sources.iter().filter_map(|source| match source {
        DavCopyEndpoint::Local(path) if removes => Some(path.as_path()),
        _ => None,
    });
    let postponed = PostponedRemovals::of(local, &order.filters, &context.interrupt);
    let copier = DavCopier::new(&dav, order, postponed, context);
    let plan = |source: &'_ DavCopyEndpoint| plan(&dav, context, order, source, (&destination, is_directory));
    let mut taken = ClaimedDestinations::by(sources.len());
    let tasks = sources.iter().flat_map(plan).map(|task| {
        let task = task?;
        // Several sources may have the same directories.
        match task.is_directory {
            true => Ok(task),
            false => taken.take(&task.from, &task.to).map(|()| task),
        }
    });
    let tasks = tasks.take_while(|_| !context.interrupt.is_raised());
    context.output.start_progress();
    transfer::for_each(order.transfer.jobs, tasks, |task| copier.perform(task));
    context.output.end_progress();
    copier.finish()
}

/// Returns the filters, in which an absolute pattern may name local paths. Errors: `InvalidArgument` for an absolute
/// pattern that names no path of this copy.
fn local_filters(
    order: &DavCopyOptions<'_>,
    sources: &[DavCopyEndpoint],
    destination: &DavCopyEndpoint,
) -> Result<FilterRules> {
    let root_of = |place: &DavCopyEndpoint| match place {
        DavCopyEndpoint::Local(path) if order.recursive && path.is_dir() => Some(path.clone()),
        DavCopyEndpoint::Local(path) => Some(directory_of(path).to_owned()),
        _ => None,
    };
    let mut roots: Vec<PathBuf> = sources.iter().filter_map(root_of).collect();
    if let DavCopyEndpoint::Local(path) = destination {
        roots.push(path.clone());
    }
    match roots.is_empty() {
        true => Ok(order.filters.clone()),
        false => order.filters.relative_to(&roots),
    }
}

/// Checks that no option would be without effect. Errors: `InvalidArgument`.
fn check_options(order: &DavCopyOptions<'_>, destination: &DavCopyEndpoint) -> Result<()> {
    let metadata = ObjectMetadataRules::of(&order.transfer.object)?;
    match destination {
        DavCopyEndpoint::Local(path) => {
            metadata.check(&StorageAddress::Service, &StorageAddress::Local(path.clone()))?;
        }
        DavCopyEndpoint::Web(_) | DavCopyEndpoint::Stdin => metadata.check_web()?,
    }
    web::check_transfer(order.transfer)?;
    if !matches!(destination, DavCopyEndpoint::Local(_)) {
        return replicas::check_unused(&order.replicas);
    }
    // A list of replicas describes certain files, so its digests do not apply to other files.
    if order.replicas.metalink.as_deref().is_some_and(|source| source != "none") {
        let why = "--metalink cannot be used with several URLs or with --recursive; copy the files separately, or copy \
                   all files that the Metalink describes without giving a URL";
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    Ok(())
}

/// Returns the copy tasks for one source.
fn plan<'p>(
    dav: &'p WebDavClient,
    context: &CommandContext,
    order: &'p DavCopyOptions<'_>,
    source: &DavCopyEndpoint,
    (destination, is_directory): (&DavCopyEndpoint, bool),
) -> Box<dyn Iterator<Item = Result<DavCopyTask>> + 'p> {
    let filters = &order.filters;
    let found = match order.recursive {
        // Without filters, one MOVE request moves the whole collection; with filters, files are moved one by one.
        true if order.moves && is_within_server(source, destination) && filters.is_empty() => {
            Ok(Box::new(std::iter::once(Ok(whole(source, destination)))) as _)
        }
        true => below(dav, context, filters, (source, destination)),
        false if is_skipped_link(source, filters) => Ok(Box::new(std::iter::empty()) as _),
        false => one(source, destination, is_directory).map(|task| Box::new(std::iter::once(Ok(task))) as _),
    };
    match found {
        Ok(tasks) => {
            Box::new(tasks.filter(|task| task.as_ref().map_or(true, |task| filters.admit(&task.relative))))
        }
        Err(error) => Box::new(std::iter::once(Err(error))),
    }
}

fn is_skipped_link(source: &DavCopyEndpoint, filters: &FilterRules) -> bool {
    matches!(source, DavCopyEndpoint::Local(path) if filters.skips_links() && path.is_symlink())
}

fn is_within_server(source: &DavCopyEndpoint, destination: &DavCopyEndpoint) -> bool {
    matches!((source, destination), (DavCopyEndpoint::Web(from), DavCopyEndpoint::Web(to)) if is_one_server(from, to))
}

/// Returns the task for a whole collection, which a server can move in response to one request.
fn whole(source: &DavCopyEndpoint, destination: &DavCopyEndpoint) -> DavCopyTask {
    let (from, to) = (source.below(""), destination.below(""));
    DavCopyTask { from, to, relative: String::new(), size_bytes: None, is_directory: false }
}

pub(super) fn one(
    source: &DavCopyEndpoint,
    destination: &DavCopyEndpoint,
    is_directory: bool,
) -> Result<DavCopyTask> {
    if let DavCopyEndpoint::Local(path) = source
        && path.is_dir()
    {
        let why = format!("{} is a directory; add --recursive to select everything below it", path.display());
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    if let DavCopyEndpoint::Local(path) = source
        && path.metadata().is_ok_and(|about| !about.is_file())
    {
        // Opening a pipe would wait for its writer, even after a signal.
        let why = format!("{} is not a regular file; pipe it in and use - as the source", path.display());
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let to = match is_directory {
        true => destination.destination_below(&source.name()?)?,
        false => destination.clone(),
    };
    let relative = if *source == DavCopyEndpoint::Stdin { String::new() } else { source.name()? };
    let size_bytes = size_of(source);
    Ok(DavCopyTask { from: source.clone(), to, relative, size_bytes, is_directory: false })
}

fn size_of(source: &DavCopyEndpoint) -> Option<u64> {
    match source {
        DavCopyEndpoint::Local(path) => {
            path.metadata().ok().filter(std::fs::Metadata::is_file).map(|about| about.len())
        }
        DavCopyEndpoint::Web(_) | DavCopyEndpoint::Stdin => None,
    }
}

type CopyTaskIterator<'p> = Box<dyn Iterator<Item = Result<DavCopyTask>> + 'p>;

/// Returns the tasks that copy all files below a source to the same relative names below the destination. Without
/// filters, the tasks also create the directories or collections, which may be empty.
fn below<'p>(
    dav: &'p WebDavClient,
    context: &CommandContext,
    filters: &FilterRules,
    (source, to): (&DavCopyEndpoint, &DavCopyEndpoint),
) -> Result<CopyTaskIterator<'p>> {
    let (source, to) = (source.clone(), to.clone());
    match &source {
        DavCopyEndpoint::Stdin => {
            Err(Error::new(ErrorKind::InvalidArgument, "--recursive cannot be used with -"))
        }
        DavCopyEndpoint::Local(path) if !path.is_dir() && is_skipped_link(&source, filters) => {
            Ok(Box::new(std::iter::empty()))
        }
        DavCopyEndpoint::Local(path) if !path.is_dir() => {
            one(&source, &to, false).map(|task| Box::new(std::iter::once(Ok(task))) as _)
        }
        DavCopyEndpoint::Local(path) => {
            let items = plan::items(context, &StorageAddress::Local(path.clone()), filters)?;
            let empty = filters.is_empty().then(|| plan::empty_directories(path, filters));
            let empty: Vec<_> = empty.into_iter().flatten().collect();
            let (directory, place) = (source.clone(), to.clone());
            let made = empty.into_iter().map(move |relative| {
                let (from, to) = (directory.below(&relative), place.below(&relative));
                Ok(DavCopyTask { from, to, relative, size_bytes: None, is_directory: true })
            });
            Ok(Box::new(made.chain(items.map(move |item| {
                let item = item?;
                let (from, to) = (source.below(&item.relative), to.below(&item.relative));
                let size_bytes = Some(item.size);
                Ok(DavCopyTask { from, to, relative: item.relative, size_bytes, is_directory: false })
            }))))
        }
        DavCopyEndpoint::Web(url) => {
            let has_filters = !filters.is_empty();
            let mut found = dav.walk(url).peekable();
            // If the collection cannot be listed, nothing is created.
            let is_listed = !matches!(found.peek(), Some(Err(_)));
            let (from, place) = (source.clone(), to.clone());
            let root = (is_listed && !has_filters).then(|| {
                let relative = String::new();
                Ok(DavCopyTask { from, to: place, relative, size_bytes: None, is_directory: true })
            });
            let wanted = found.filter(move |found| {
                found.as_ref().map_or(true, |found| !(has_filters && found.is_collection))
            });
            Ok(Box::new(root.into_iter().chain(wanted.map(move |found| {
                let found = found?;
                Ok(DavCopyTask {
                    from: DavCopyEndpoint::Web(found.url),
                    to: to.destination_below(&found.relative)?,
                    relative: found.relative,
                    size_bytes: found.size_bytes,
                    is_directory: found.is_collection,
                })
            }))))
        }
    }
}

/// Returns the collection that must exist before a copy to `place`.
pub(super) fn parent(place: &DavCopyEndpoint) -> Option<String> {
    match place {
        DavCopyEndpoint::Web(url) => parent_url(url),
        DavCopyEndpoint::Local(_) | DavCopyEndpoint::Stdin => None,
    }
}

/// Returns whether two URLs refer to the same server.
pub(super) fn is_one_server(a: &str, b: &str) -> bool {
    let origin = |url: &str| Origin::parse(without_query(url)).map(|(origin, _)| origin).ok();
    origin(a).is_some_and(|ours| origin(b) == Some(ours))
}

/// Returns the content type from the options, or else a guess from the file's name.
pub(super) fn content_type(path: &Path, order: &DavCopyOptions<'_>) -> Option<String> {
    let object = &order.transfer.object;
    let guess = || mime_guess::from_path(path).first().map(|kind| kind.to_string());
    object.content_type.clone().or_else(|| (!object.no_guess_mime_type).then(guess).flatten())
}
