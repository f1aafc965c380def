//! Lists everything below a directory or prefix, in byte order of the relative names, for either side of a transfer.
//! Determines the actions from the two listings alone.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::iter::Peekable;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{self, AtomicU64};
use std::time::{SystemTime, UNIX_EPOCH};

use fordway_command::{CommandContext, PRIVATE_AREA, StorageAddress, file_error};
use fordway_store::{Bucket, Error, ErrorKind, ListEntry, ListQuery, ObjectSummary, Result, Store};
use walkdir::{DirEntry, WalkDir};

use super::download::is_temporary;
use crate::wildcard::{FilterRules, WildcardPattern, directory, literal_prefix};

/// The direction of a transfer. The direction matters because downloads compare times differently, as in `aws s3 sync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncDirection {
    /// To a store.
    Upload,
    /// To this machine.
    Download,
    /// Within a store.
    Copy,
}

/// The criteria by which two items with the same name count as equal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SyncRules {
    pub(crate) direction: SyncDirection,
    pub(crate) size_only: bool,
    pub(crate) exact_timestamps: bool,
    pub(crate) delete: bool,
    /// Whether an existing item at the destination is kept even if it differs.
    pub(crate) keeps_existing: bool,
}

/// One step of a synchronization.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SyncStep {
    /// The source's item is missing or outdated at the destination.
    Copy(SyncItem),
    /// The destination has this item, but the source does not.
    Remove(SyncItem),
    /// Listing the source failed, so no further items are removed.
    KeepRest,
    /// Listing the destination failed, so no further items are compared.
    Stop,
}

impl SyncRules {
    /// Returns whether the destination's item is up to date.
    fn is_current(&self, source: &SyncItem, destination: &SyncItem) -> bool {
        if source.size != destination.size {
            return false;
        }
        match self.direction {
            _ if self.size_only => true,
            SyncDirection::Download => {
                let (from, to) = (whole_seconds(source.modified), whole_seconds(destination.modified));
                if self.exact_timestamps { from == to } else { to <= from }
            }
            // The times are not rounded. A file that was changed within the second of its upload would otherwise never
            // be uploaded. Therefore a file that was written within the second of its upload is uploaded twice if the
            // listing only shows seconds.
            SyncDirection::Upload | SyncDirection::Copy => destination.modified >= source.modified,
        }
    }
}

/// Returns the time in seconds since 1970, rounded down, because services keep times in seconds. Negative before 1970.
fn whole_seconds(time: SystemTime) -> i128 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => i128::from(since.as_secs()),
        Err(before) => {
            let before = before.duration();
            -i128::from(before.as_secs()) - i128::from(before.subsec_nanos() > 0)
        }
    }
}

/// Merges two listings, both in byte order, into steps. Keeps only one item of each listing in memory.
///
/// After an error at the source, no more items are removed, because items that could not be listed may still exist. The
/// next step is then [`SyncStep::KeepRest`]. If the error concerns only one entry, only the items with the name of the
/// entry and the items below this name are kept. After an error at the destination, no more items are copied, because
/// the items at the destination are unknown, and the last step is [`SyncStep::Stop`]. A listing that is not in byte order ends with an error.
pub(crate) fn sync(
    source: impl Iterator<Item = ListedItem>,
    destination: impl Iterator<Item = Result<SyncItem>>,
    rules: SyncRules,
) -> impl Iterator<Item = Result<SyncStep>> {
    let source = OrderCheckedListing::new("source", source).peekable();
    let destination = OrderCheckedListing::new("destination", destination).peekable();
    let kept = HashSet::new();
    ListingMerge { source, destination, rules, kept, keeps_rest: false, blind: false, stopped: false }
}

/// A listing in which each name is greater than the previous name. The listing ends with an error at the first name in
/// the wrong order. Without the error, the merge could treat a name that exists on both sides as a name of only one
/// side.
struct OrderCheckedListing<I> {
    side: &'static str,
    items: I,
    last: Option<String>,
    is_over: bool,
}

impl<I> OrderCheckedListing<I> {
    fn new(side: &'static str, items: I) -> Self {
        OrderCheckedListing { side, items, last: None, is_over: false }
    }

    /// Stores `name` as the last name. Errors: `BadResponse` if `name` is not greater than the previous last name.
    fn check(&mut self, name: &str) -> Result<()> {
        match &mut self.last {
            Some(last) if name <= last.as_str() => {
                self.is_over = true;
                let why = format!(
                    "the {} lists {name} after {last}, which is not the order of keys, so the rest is neither \
                     compared nor deleted; run the command again",
                    self.side
                );
                Err(Error::new(ErrorKind::BadResponse, why))
            }
            last => {
                let last = last.get_or_insert_default();
                last.clear();
                last.push_str(name);
                Ok(())
            }
        }
    }
}

impl<E: From<Error>, I: Iterator<Item = std::result::Result<SyncItem, E>>> Iterator
    for OrderCheckedListing<I>
{
    type Item = std::result::Result<SyncItem, E>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let item = self.items.next()?;
        Some(item.and_then(|item| self.check(&item.relative).map(|()| item).map_err(E::from)))
    }
}

struct ListingMerge<S: Iterator<Item = ListedItem>, D: Iterator<Item = Result<SyncItem>>> {
    source: Peekable<S>,
    destination: Peekable<D>,
    rules: SyncRules,
    /// The names of entries at the source that could not be listed.
    kept: HashSet<String>,
    /// Whether [`SyncStep::KeepRest`] is the next step.
    keeps_rest: bool,
    /// Whether listing the destination failed.
    blind: bool,
    /// Whether [`SyncStep::Stop`] has been returned.
    stopped: bool,
}

impl<S, D> ListingMerge<S, D>
where
    S: Iterator<Item = ListedItem>,
    D: Iterator<Item = Result<SyncItem>>,
{
    /// Compares the next names of both sides; `None` when both sides are exhausted.
    fn smaller(&mut self) -> Option<Ordering> {
        match (self.source.peek(), self.destination.peek()) {
            (None, None) => None,
            (Some(Err(_)), _) | (Some(_), None) => Some(Ordering::Less),
            (_, Some(Err(_))) | (None, Some(_)) => Some(Ordering::Greater),
            (Some(Ok(source)), Some(Ok(destination))) => Some(source.relative.cmp(&destination.relative)),
        }
    }

    fn next_of_source(&mut self) -> Option<Result<SyncStep>> {
        match self.source.next()? {
            Ok(item) => Some(Ok(SyncStep::Copy(item))),
            Err(failure) => Some(Err(self.failed(failure))),
        }
    }

    /// Determines what is no longer removed after an error at the source.
    fn failed(&mut self, failure: LocalListingError) -> Error {
        match failure.entry {
            Some(name) => drop(self.kept.insert(name)),
            None => self.keeps_rest |= std::mem::take(&mut self.rules.delete),
        }
        failure.error
    }

    /// Returns whether an item has the name of an entry that could not be listed, or is below this name.
    fn is_kept(&self, item: &SyncItem) -> bool {
        let mut directories = item.relative.match_indices('/').map(|(slash, _)| &item.relative[..slash]);
        !self.kept.is_empty()
            && (self.kept.contains(&item.relative) || directories.any(|name| self.kept.contains(name)))
    }

    /// Returns the step for an item that only the destination has; `None` if the item is kept.
    fn next_of_destination(&mut self) -> Option<Result<SyncStep>> {
        match self.destination.next()? {
            Ok(item) => (self.rules.delete && !self.is_kept(&item)).then_some(Ok(SyncStep::Remove(item))),
            Err(error) => {
                self.blind = true;
                Some(Err(error))
            }
        }
    }

    fn next_of_both(&mut self) -> Option<Result<SyncStep>> {
        match (self.source.next()?, self.destination.next()?) {
            (Ok(_), Ok(_)) if self.rules.keeps_existing => None,
            (Ok(source), Ok(destination)) if self.rules.is_current(&source, &destination) => None,
            (Ok(source), _) => Some(Ok(SyncStep::Copy(source))),
            (Err(failure), _) => Some(Err(self.failed(failure))),
        }
    }
}

impl<S, D> Iterator for ListingMerge<S, D>
where
    S: Iterator<Item = ListedItem>,
    D: Iterator<Item = Result<SyncItem>>,
{
    type Item = Result<SyncStep>;

    fn next(&mut self) -> Option<Result<SyncStep>> {
        if std::mem::take(&mut self.keeps_rest) {
            return Some(Ok(SyncStep::KeepRest));
        }
        while !self.blind {
            let step = match self.smaller()? {
                Ordering::Less => self.next_of_source(),
                Ordering::Greater => self.next_of_destination(),
                Ordering::Equal => self.next_of_both(),
            };
            if step.is_some() {
                return step;
            }
        }
        (!std::mem::replace(&mut self.stopped, true)).then_some(Ok(SyncStep::Stop))
    }
}

/// A file or object below a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SyncItem {
    /// The item's name relative to the root, with `/` between the parts.
    pub(crate) relative: String,
    /// The item's size in bytes.
    pub(crate) size: u64,
    /// The time of the item's last modification.
    pub(crate) modified: SystemTime,
}

/// A stream of items. An error does not necessarily end the stream.
pub(crate) type SyncItemIterator = Box<dyn Iterator<Item = Result<SyncItem>>>;

/// An item of the source of a synchronisation, or the failure to list it.
pub(crate) type ListedItem = std::result::Result<SyncItem, LocalListingError>;

/// Returns whether a directory is the private area of a bucket or root. Listings of local files skip this directory, as
/// listings of objects do. Its files are locks, uploads in progress, and the content of other objects and versions.
pub(super) fn is_private_area(path: &Path) -> bool {
    let entries =
        ["locks", "tmp", "odd", "mpu", "meta", "versions", "versioning", "markers", "events", "format"];
    path.ends_with(PRIVATE_AREA) && path.is_dir() && entries.iter().any(|name| path.join(name).exists())
}

/// Lists all files below a directory, or all objects below a prefix (which ends in `/`, or is empty). The `filters`
/// only determine which errors are ignored: entries that they exclude may be unreadable. Counts the files of unfinished
/// downloads, which are left out, in `context`.
pub(crate) fn items(
    context: &CommandContext,
    root: &StorageAddress,
    filters: &FilterRules,
) -> Result<SyncItemIterator> {
    match root {
        StorageAddress::Local(path) => {
            note_private_area(context, path);
            let found = find_files(path, filters, Some(context.unfinished_downloads.clone()))?;
            Ok(Box::new(found.map(|item| item.map_err(|failure| failure.error))))
        }
        StorageAddress::S3(bucket, prefix) => Ok(below(context.store()?, bucket.clone(), prefix.clone())),
        other => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{other} is neither a directory nor a prefix"),
        )),
    }
}

/// Like [`items`], for the source of a synchronisation: names the entries that could not be listed.
pub(crate) fn sync_source(
    context: &CommandContext,
    root: &StorageAddress,
    filters: &FilterRules,
) -> Result<Box<dyn Iterator<Item = ListedItem>>> {
    match root {
        StorageAddress::Local(path) => {
            note_private_area(context, path);
            Ok(Box::new(find_files(path, filters, Some(context.unfinished_downloads.clone()))?))
        }
        _ => Ok(Box::new(items(context, root, filters)?.map(|item| item.map_err(LocalListingError::from)))),
    }
}

fn note_private_area(context: &CommandContext, root: &Path) {
    let private = root.join(PRIVATE_AREA);
    if is_private_area(&private) {
        let shown = private.display();
        context.output.note(&format!("skipping {shown}, which holds Fordway's records of a bucket or root"));
    }
}

/// Lists the objects that match a wildcard, with names relative to the directory of its literal prefix.
pub(crate) fn matching(
    context: &CommandContext,
    bucket: &Bucket,
    wildcard: &str,
) -> Result<SyncItemIterator> {
    let pattern = WildcardPattern::of_address(wildcard);
    let literal = literal_prefix(wildcard).to_owned();
    let cut = directory(&literal).len();
    let found = objects(context.store()?, bucket.clone(), ListQuery::prefix(literal));
    let wanted =
        found.filter(move |found| found.as_ref().map_or(true, |entry| pattern.matches(entry.name())));
    Ok(Box::new(wanted.filter_map(move |found| found.map(|entry| item(&entry, cut)).transpose())))
}

fn below(store: Arc<dyn Store>, bucket: Bucket, prefix: String) -> SyncItemIterator {
    let cut = prefix.len();
    let found = objects(store, bucket, ListQuery::prefix(prefix));
    Box::new(found.filter_map(move |found| found.map(|entry| item(&entry, cut)).transpose()))
}

fn item(entry: &ListEntry, cut: usize) -> Option<SyncItem> {
    let ObjectSummary { key, size, modified, .. } = entry.object()?;
    Some(SyncItem { relative: key[cut..].to_owned(), size: *size, modified: *modified })
}

/// Lists the entries of a bucket, page by page. An error ends the stream.
pub(crate) fn objects(
    store: Arc<dyn Store>,
    bucket: Bucket,
    mut query: ListQuery,
) -> impl Iterator<Item = Result<ListEntry>> {
    let mut page = Vec::new().into_iter();
    let mut more = true;
    std::iter::from_fn(move || {
        loop {
            if let Some(entry) = page.next() {
                return Some(Ok(entry));
            }
            if !more {
                return None;
            }
            match store.list(&bucket, &query) {
                Ok(listing) => {
                    more = listing.next.is_some();
                    query.start_after = listing.next;
                    page = listing.entries.into_iter();
                }
                Err(error) => {
                    more = false;
                    return Some(Err(error));
                }
            }
        }
    })
}

/// Like [`items`], lists the regular files below `root`. Skips each entry that cannot be a copy of an object, and
/// passes the error of this entry to `skipped`. Errors in the stream mean that a directory could not be read.
pub(crate) fn local_destination<'c>(
    root: &Path,
    filters: &FilterRules,
    mut skipped: impl FnMut(&Error) + 'c,
) -> Result<Box<dyn Iterator<Item = Result<SyncItem>> + 'c>> {
    let found = find_files(root, filters, None)?;
    Ok(Box::new(found.filter_map(move |item| match item {
        Err(failure) if failure.entry.is_some() => {
            skipped(&failure.error);
            None
        }
        item => Some(item.map_err(|failure| failure.error)),
    })))
}

fn files(root: &Path, filters: &FilterRules) -> Result<SyncItemIterator> {
    let found = find_files(root, filters, None)?;
    Ok(Box::new(found.map(|item| item.map_err(|failure| failure.error))))
}

/// Lists the files below `root` whose relative paths begin with `start`, without `start`, which is empty, the path of a
/// file, or the path of a directory with a slash at its end. Skips entries that cannot be read.
pub(crate) fn readable_files(root: &Path, start: &str, filters: &FilterRules) -> SyncItemIterator {
    let path = root.join(start);
    let is_directory = start.is_empty() || start.ends_with('/');
    match path.metadata() {
        Ok(about) if about.is_dir() && is_directory => {
            Box::new(files(&path, filters).into_iter().flatten().filter(Result::is_ok))
        }
        Ok(about) if about.is_file() && !is_directory => {
            let modified = about.modified().unwrap_or(UNIX_EPOCH);
            Box::new(std::iter::once(Ok(SyncItem { relative: String::new(), size: about.len(), modified })))
        }
        _ => Box::new(std::iter::empty()),
    }
}

/// Returns the empty directories at and below `root`, relative to `root`. Skips directories that cannot be read, which
/// [`items`] reports.
pub(crate) fn empty_directories(root: &Path, filters: &FilterRules) -> Vec<String> {
    let is_empty = |path: &Path| path.read_dir().is_ok_and(|mut entries| entries.next().is_none());
    if is_empty(root) {
        return vec![String::new()];
    }
    let entries = walk_entries(root, filters.skips_links(), filters.refuses_linked_directories());
    let empty = entries.flatten().filter(|entry| entry.file_type().is_dir() && is_empty(entry.path()));
    let relative =
        empty.filter_map(|entry| entry.path().strip_prefix(root).ok()?.to_str().map(str::to_owned));
    relative.collect()
}

/// The failure to list a source, or one entry of a local directory.
pub(crate) struct LocalListingError {
    error: Error,
    /// The relative name, if the error concerns only one entry, which is not a directory: a dangling link, a special
    /// file, or a name that cannot be a key. Otherwise, the content of a directory is unknown.
    entry: Option<String>,
}

impl From<Error> for LocalListingError {
    fn from(error: Error) -> Self {
        LocalListingError { error, entry: None }
    }
}

impl LocalListingError {
    fn of_entry(error: Error, path: &Path, root: &Path) -> Self {
        let name = path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
        LocalListingError { error, entry: Some(name) }
    }

    fn of_walk(error: walkdir::Error, root: &Path) -> Self {
        // The target of a link may be missing, a part of a loop, or in a directory that is not accessible.
        let leads_nowhere = |path: &Path| path.is_symlink() && path.metadata().is_err();
        let is_of_entry = error.loop_ancestor().is_some() || error.path().is_some_and(leads_nowhere);
        match error.path().map(Path::to_owned).filter(|_| is_of_entry) {
            Some(path) => Self::of_entry(walk_error(error), &path, root),
            None => walk_error(error).into(),
        }
    }
}

/// Lists the regular files below `root`, without the temporary files of downloads and without Fordway's private areas.
/// Follows links unless the filters exclude them. The stream contains an error for an entry that cannot be read, and
/// for a link to a directory that must not be entered. It contains no error for an entry that the filters exclude.
/// Counts the temporary files that the filters admit in `unfinished_downloads`. Errors: `root` is not a directory, or
/// is a link that must not be entered.
fn find_files(
    root: &Path,
    filters: &FilterRules,
    unfinished_downloads: Option<Arc<AtomicU64>>,
) -> Result<impl Iterator<Item = ListedItem> + use<>> {
    let about = root.metadata().map_err(|error| super::source_error("reading", root, error))?;
    if !about.is_dir() {
        return Err(Error::new(ErrorKind::InvalidArgument, format!("{} is not a directory", root.display())));
    }
    let refuses_links = filters.refuses_linked_directories();
    // The path `link/` names the directory that the link points to, not the link itself.
    if refuses_links && root.is_symlink() {
        return Err(linked_source(root));
    }
    let (root, filters) = (root.to_owned(), filters.clone());
    let skips_links = filters.skips_links();
    let is_temporary = counter_of_temporary_files(&root, &filters, unfinished_downloads);
    let found = walk_entries(&root, skips_links, refuses_links).filter(move |entry| {
        entry.as_ref().map_or(true, |entry| {
            let is_part_of_tree = entry.file_type().is_dir() && !(refuses_links && entry.path_is_symlink());
            let is_skipped_link = skips_links && entry.path_is_symlink();
            !is_part_of_tree && !is_skipped_link && !is_temporary(entry)
        })
    });
    Ok(found.filter_map(move |entry| {
        let (path, is_loop) = match &entry {
            Ok(entry) => (Some(entry.path().to_owned()), false),
            Err(error) => (error.path().map(Path::to_owned), error.loop_ancestor().is_some()),
        };
        let item = local_item(&root, entry, refuses_links);
        let is_excluded = |path: PathBuf| {
            let name = path.strip_prefix(&root).unwrap_or(&path).to_string_lossy();
            // Even if the filters exclude a directory's name, they may admit files in the directory. A link that forms
            // a loop leads to no further files.
            let may_hold_files = path.is_dir() && !is_loop;
            (!may_hold_files && !filters.admit(&name)) || filters.exclude_all_below(&format!("{name}/"))
        };
        let is_skipped = item.is_err() && path.is_some_and(is_excluded);
        (!is_skipped).then_some(item)
    }))
}

/// Returns the function that recognizes temporary files, and counts those that the filters admit in `count`.
fn counter_of_temporary_files(
    root: &Path,
    filters: &FilterRules,
    count: Option<Arc<AtomicU64>>,
) -> impl Fn(&DirEntry) -> bool + use<> {
    let (root, filters) = (root.to_owned(), filters.clone());
    move |entry| {
        let is_found = is_temporary(Path::new(entry.file_name()));
        if let Some(count) = count.as_ref().filter(|_| is_found) {
            let name = entry.path().strip_prefix(&root).unwrap_or(entry.path()).to_string_lossy();
            count.fetch_add(u64::from(filters.admit(&name)), atomic::Ordering::Relaxed);
        }
        is_found
    }
}

/// Walks the tree below `root`, without Fordway's private areas. With `refuses_links`, the walk returns links to
/// directories, but does not enter them.
fn walk_entries(
    root: &Path,
    skips_links: bool,
    refuses_links: bool,
) -> impl Iterator<Item = walkdir::Result<DirEntry>> + use<> {
    let mut order = DirectoryKeySorter::default();
    let walk = WalkDir::new(root)
        .follow_links(!skips_links)
        .min_depth(1)
        .sort_by(move |a, b| order.sort_name(a).cmp(&order.sort_name(b)));
    let mut walk = walk.into_iter().filter_entry(|entry| !is_private_area(entry.path()));
    std::iter::from_fn(move || {
        let entry = walk.next()?;
        if refuses_links && entry.as_ref().is_ok_and(is_linked_directory) {
            walk.skip_current_dir();
        }
        Some(entry)
    })
}

/// Returns whether an entry is a link that the walk has followed to a directory.
fn is_linked_directory(entry: &DirEntry) -> bool {
    entry.path_is_symlink() && entry.file_type().is_dir()
}

/// Returns whether `path` is a link to a directory that contains the link, directly or at any depth.
pub(crate) fn forms_loop(path: &Path) -> bool {
    let parent = path.parent().map(Path::canonicalize);
    let target = path.is_symlink().then(|| path.canonicalize());
    matches!((&parent, &target), (Some(Ok(parent)), Some(Ok(target))) if parent.starts_with(target))
}

/// Returns the item for an entry of a tree.
fn local_item(root: &Path, entry: walkdir::Result<DirEntry>, refuses_links: bool) -> ListedItem {
    let of_entry = |error, path: &Path| LocalListingError::of_entry(error, path, root);
    match entry {
        Ok(entry) if refuses_links && is_linked_directory(&entry) => {
            Err(of_entry(linked_directory(entry.path(), root), entry.path()))
        }
        Ok(entry) => file_item(root, &entry).map_err(|error| of_entry(error, entry.path())),
        // A link that forms a loop is also a link to a directory.
        Err(error) if refuses_links && error.loop_ancestor().is_some() => {
            let path = error.path().unwrap_or(root);
            Err(of_entry(linked_directory(path, root), path))
        }
        Err(error) => Err(LocalListingError::of_walk(error, root)),
    }
}

/// Returns the error for a move whose source is a link to a directory.
fn linked_source(link: &Path) -> Error {
    let link = link.display();
    let why = format!(
        "{link} is a link to a directory, and a move would remove the files in that directory; to move them, write \
         {link}/"
    );
    Error::new(ErrorKind::InvalidArgument, why)
}

/// Returns the error for a move of a tree that contains a link to a directory.
fn linked_directory(link: &Path, root: &Path) -> Error {
    let name = link.strip_prefix(root).unwrap_or(link).display();
    let why = format!(
        "{} is a link to a directory, and a move would remove the files in that directory; skip the link with \
         --exclude '{name}/*', or all links with --no-follow-symlinks",
        link.display()
    );
    Error::new(ErrorKind::InvalidArgument, why)
}

/// Sorts the entries of a directory like keys: a subdirectory sorts by its name followed by a slash.
#[derive(Default)]
struct DirectoryKeySorter {
    /// The directory that is being sorted.
    parent: PathBuf,
    /// Whether each link in that directory points to a directory. The results are cached, because a sort needs the same
    /// result for each comparison of an entry.
    links: HashMap<OsString, bool>,
}

impl DirectoryKeySorter {
    fn sort_name(&mut self, entry: &DirEntry) -> Vec<u8> {
        let mut name = entry.file_name().as_encoded_bytes().to_vec();
        if entry.file_type().is_dir() || (entry.path_is_symlink() && self.is_link_to_directory(entry)) {
            name.push(b'/');
        }
        name
    }

    /// Returns whether a link points to a directory. Entries are sorted before the walk follows links, so this function
    /// follows the link itself.
    fn is_link_to_directory(&mut self, entry: &DirEntry) -> bool {
        let parent = entry.path().parent().unwrap_or(Path::new(""));
        if self.parent != parent {
            self.links.clear();
            parent.clone_into(&mut self.parent);
        }
        *self.links.entry(entry.file_name().to_owned()).or_insert_with(|| entry.path().is_dir())
    }
}

fn file_item(root: &Path, entry: &DirEntry) -> Result<SyncItem> {
    let path = entry.path();
    if !entry.file_type().is_file() {
        let why = format!("{} is neither a file nor a directory; skip it with --exclude", path.display());
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let relative = path.strip_prefix(root).unwrap_or(path).to_str().ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidKey,
            format!("the name of {} is not UTF-8, so it cannot be a key", path.display()),
        )
    })?;
    let about = entry.metadata().map_err(walk_error)?;
    let modified = about.modified().unwrap_or(UNIX_EPOCH);
    Ok(SyncItem { relative: relative.to_owned(), size: about.len(), modified })
}

fn walk_error(error: walkdir::Error) -> Error {
    let path = error.path().map(Path::to_owned).unwrap_or_default();
    let message = error.to_string();
    let cause = error.into_io_error().unwrap_or_else(|| std::io::Error::other(message));
    if cause.kind() == std::io::ErrorKind::NotFound && path.is_symlink() {
        let why = format!("{} is a dangling link; skip it with --exclude", path.display());
        return Error::new(ErrorKind::Io, why).caused_by(cause);
    }
    file_error("reading", path.display(), cause)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const RULES: SyncRules = SyncRules {
        direction: SyncDirection::Upload,
        size_only: false,
        exact_timestamps: false,
        delete: true,
        keeps_existing: false,
    };

    fn item(name: &str, size: u64, seconds: u64) -> Result<SyncItem> {
        let modified = UNIX_EPOCH + Duration::from_secs(seconds);
        Ok(SyncItem { relative: name.to_owned(), size, modified })
    }

    fn steps<E: Into<LocalListingError>>(
        source: Vec<std::result::Result<SyncItem, E>>,
        destination: Vec<Result<SyncItem>>,
        rules: SyncRules,
    ) -> String {
        let show = |step: Result<SyncStep>| match step {
            Ok(SyncStep::Copy(item)) => format!("+{}", item.relative),
            Ok(SyncStep::Remove(item)) => format!("-{}", item.relative),
            Ok(SyncStep::KeepRest) => "keep".to_owned(),
            Ok(SyncStep::Stop) => "stop".to_owned(),
            Err(error) => format!("!{:?}", error.kind()),
        };
        let source = source.into_iter().map(|item| item.map_err(Into::into));
        sync(source, destination.into_iter(), rules).map(show).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn missing_changed_equal_and_surplus() {
        let source = || vec![item("a", 1, 5), item("b", 1, 5), item("c", 2, 5), item("d", 1, 9)];
        let destination =
            || vec![item("0", 1, 5), item("b", 1, 5), item("c", 1, 5), item("d", 1, 5), item("e", 1, 5)];
        assert_eq!(steps(source(), destination(), RULES), "-0 +a +c +d -e");
        let keep = SyncRules { delete: false, ..RULES };
        assert_eq!(steps(source(), destination(), keep), "+a +c +d");
        let size_only = SyncRules { size_only: true, ..keep };
        assert_eq!(steps(source(), destination(), size_only), "+a +c");
    }

    #[test]
    fn times_count_by_direction() {
        let copied =
            |from, to, rules| !steps(vec![item("a", 1, from)], vec![item("a", 1, to)], rules).is_empty();
        let download = SyncRules { direction: SyncDirection::Download, ..RULES };
        let exact = SyncRules { exact_timestamps: true, ..download };
        for (from, to, upload, down, exactly) in
            [(5, 5, false, false, false), (5, 6, false, true, true), (6, 5, true, false, true)]
        {
            assert_eq!(copied(from, to, RULES), upload, "upload {from} {to}");
            assert_eq!(copied(from, to, download), down, "download {from} {to}");
            assert_eq!(copied(from, to, exact), exactly, "exact {from} {to}");
        }
    }

    #[test]
    fn fractions_of_a_second_count_if_the_listing_has_them() {
        let at = |ns| UNIX_EPOCH + Duration::from_nanos(5_000_000_000 + ns);
        let copied = |from: u64, to: u64, rules: SyncRules| {
            let item = |ns| SyncItem { relative: "a".to_owned(), size: 1, modified: at(ns) };
            !rules.is_current(&item(from), &item(to))
        };
        let download = SyncRules { direction: SyncDirection::Download, ..RULES };
        let exact = SyncRules { exact_timestamps: true, ..download };
        for (from, to, upload) in [
            (300_000_002, 300_000_001, true),
            (300_000_001, 300_000_001, false),
            (300_000_001, 300_000_002, false),
            // Listings in milliseconds and seconds. The file may have been changed after its upload.
            (300_999_999, 300_000_000, true),
            (300_000_000, 300_000_000, false),
            (700_000_000, 0, true),
            (0, 0, false),
        ] {
            for direction in [SyncDirection::Upload, SyncDirection::Copy] {
                assert_eq!(copied(from, to, SyncRules { direction, ..RULES }), upload, "{from} {to}");
            }
            assert!(!copied(from, to, download) && !copied(from, to, exact), "{from} {to}");
        }
    }

    #[test]
    fn times_before_1970_are_compared() {
        let before = |ms| UNIX_EPOCH - Duration::from_millis(ms);
        assert_eq!([1, 1000, 1001].map(|ms| whole_seconds(before(ms))), [-1, -1, -2]);
        let item = |modified| SyncItem { relative: "a".to_owned(), size: 1, modified };
        let download = SyncRules { direction: SyncDirection::Download, ..RULES };
        let exact = SyncRules { exact_timestamps: true, ..download };
        let (old, new) = (item(before(2_000_000)), item(before(1_000_000)));
        assert!(
            exact.is_current(&old, &old) && !exact.is_current(&old, &new) && !exact.is_current(&new, &old)
        );
        assert!(!download.is_current(&old, &new) && download.is_current(&new, &old));
    }

    #[test]
    fn what_could_not_be_listed_is_not_removed() {
        let failed = || Err(Error::from(ErrorKind::AccessDenied));
        let source = vec![item("a", 1, 1), failed(), item("z", 1, 1)];
        let destination = vec![item("0", 1, 1), item("m", 1, 1), item("zz", 1, 1)];
        assert_eq!(steps(source, destination, RULES), "-0 +a !AccessDenied keep +z");
        let blind = steps(vec![item("a", 1, 1), item("b", 1, 1)], vec![item("a", 1, 1), failed()], RULES);
        assert_eq!(blind, "!AccessDenied stop");
        let kept = SyncRules { delete: false, ..RULES };
        assert_eq!(steps(vec![failed()], vec![item("m", 1, 1)], kept), "!AccessDenied");
    }

    #[test]
    fn one_entry_that_could_not_be_listed_keeps_only_its_own_name() {
        let failed = || {
            let error = Error::from(ErrorKind::InvalidArgument);
            Err(LocalListingError::of_entry(error, Path::new("/s/d/m"), Path::new("/s")))
        };
        let listed = |name| item(name, 1, 1).map_err(LocalListingError::from);
        let source = vec![listed("a"), failed(), listed("z")];
        let destination = ["0", "d", "d/m", "d/m.txt", "d/m/x", "d/m/y/z", "zz"].map(|name| item(name, 1, 1));
        let done = steps(source, destination.into(), RULES);
        assert_eq!(done, "-0 +a !InvalidArgument -d -d/m.txt +z -zz");
    }

    #[test]
    fn files_come_in_the_order_of_keys() {
        let root = tempfile::tempdir().unwrap();
        for name in ["a.txt", "a/x", "a/y/z", "a0", "B"] {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, name).unwrap();
        }
        let found: Vec<String> =
            files(root.path(), &FilterRules::default()).unwrap().map(|item| item.unwrap().relative).collect();
        assert_eq!(found, ["B", "a.txt", "a/x", "a/y/z", "a0"]);
        let mut sorted = found.clone();
        sorted.sort();
        assert_eq!(found, sorted);
    }

    #[test]
    fn linked_directories_come_in_the_order_of_keys() {
        let root = tempfile::tempdir().unwrap();
        for name in ["real.d/x", "sub-2", "sub.txt", "sub0"] {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, name).unwrap();
        }
        std::os::unix::fs::symlink("real.d", root.path().join("sub")).unwrap();
        let found: Vec<String> =
            files(root.path(), &FilterRules::default()).unwrap().map(|item| item.unwrap().relative).collect();
        assert_eq!(found, ["real.d/x", "sub-2", "sub.txt", "sub/x", "sub0"]);
    }

    #[test]
    fn a_listing_that_goes_backwards_ends_with_an_error() {
        let ordered = || vec![item("a", 1, 5), item("b", 1, 5), item("c", 1, 5)];
        let backwards = || vec![item("a", 1, 5), item("c", 1, 5), item("b", 1, 5)];
        assert_eq!(steps(backwards(), ordered(), RULES), "-b !BadResponse keep");
        assert_eq!(steps(ordered(), backwards(), RULES), "+b !BadResponse stop");
        let twice = vec![item("a", 1, 5), item("a", 1, 5)];
        assert_eq!(steps(vec![item("a", 1, 5), item("b", 1, 5)], twice, RULES), "!BadResponse stop");
    }

    #[test]
    fn a_dangling_link_is_an_error_and_the_rest_goes_on() {
        let root = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("nowhere", root.path().join("dangling")).unwrap();
        std::fs::write(root.path().join("file"), "x").unwrap();
        let found: Vec<_> = files(root.path(), &FilterRules::default()).unwrap().collect();
        assert_eq!(found.len(), 2);
        let error = found[0].as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("is a dangling link"), "{error}");
        assert_eq!(found[1].as_ref().unwrap().relative, "file");
        assert!(files(&root.path().join("none"), &FilterRules::default()).is_err());
    }
}
