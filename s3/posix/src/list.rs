//! Lists objects: reads directories, sorts their names, and walks them in the byte order of keys.

mod indexed;

use std::cell::Cell;
use std::fs::File;
use std::iter::Peekable;
use std::sync::Arc;
use std::time::Duration;
use std::vec::IntoIter;

use fordway_store::{
    Bucket, Error, ErrorKind, Key, ListPageBuilder, ListQuery, MAX_KEY_BYTES, ObjectListing, ObjectSummary,
    Result, WalkInstruction,
};
use fordway_sys::{
    EntryKind, Errno, FileStat, FileSystemSharing, forget_names, get_xattr_in, look_again, rewind, stat_in,
    stat_now, text_to_name,
};

use crate::PosixStoreState;
use crate::any_object::any_object;
use crate::encoded::{EncodedKeyTree, EncodedKeyWalk};
use crate::errors::{from_errno, is_stale};
use crate::index::DirectoryRole;
use crate::layout::{ATTRIBUTE, ObjectPath, is_left_behind, is_never_an_object, join, odd, plain};
use crate::locks::ALL_KEYS;
use crate::names::{ListedName, ListingFreshness, SortedNames, state_before};
use crate::patience::within;
use crate::private::PrivateDirectoryContents;
use crate::read::{NameLookup, ObjectFile};
use crate::server_clock::is_recent;
use crate::shared::retry_stale;
use crate::sidecar::RECORD_BYTES;
use crate::stage::is_bare;
use crate::summary::{is_of_one_file, leads_to_dir, summary_of, summary_of_bare, summary_of_link};
use crate::walk::WalkPath;

/// The longest total time that a listing waits for writers in its directories and for other nodes' changes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// The maximum number of names that are read from an index at a time.
const INDEX_PAGE: usize = 1024;
/// The minimum number of names that a directory must have to be indexed for the further pages of a listing. In a
/// smaller directory, removing 1,000 objects between two pages changes too large a share of the names for the index to
/// remain.
const CONTINUED_FEWEST: usize = 5_000;

/// The next step of the walk.
enum WalkContinuation {
    On,
    /// Continue after all keys that begin with this prefix.
    Behind(String),
    Stop,
}

/// The first names of a directory.
enum FirstNames {
    /// The names need not be read: the walk has offered all that it needs.
    Offered(WalkContinuation),
    Read {
        dir: File,
        stat: FileStat,
        is_known: bool,
        names: Arc<SortedNames>,
    },
}

/// How a listing treats symbolic links to directories, and directories that the caller is not permitted to read.
#[derive(Clone, Copy)]
pub(crate) enum LinkedDirectories<'l> {
    /// The objects in the linked directories are listed. A directory that cannot be read is an error, except in a
    /// bucket with the sticky bit.
    Listed,
    /// The objects in the linked directories, and in directories that cannot be read, are not listed.
    Skipped(&'l UnlistedDirectories),
}

/// The directories that a listing has skipped. Each cell receives the key of one of the directories.
#[derive(Default)]
pub(crate) struct UnlistedDirectories {
    /// A symbolic link to a directory.
    pub(crate) link: Cell<Option<String>>,
    /// A directory that the caller is not permitted to read.
    pub(crate) closed: Cell<Option<String>>,
}

struct BucketWalk<'w> {
    inner: &'w PosixStoreState,
    bucket: &'w Bucket,
    query: &'w ListQuery,
    linked: LinkedDirectories<'w>,
    contents: PrivateDirectoryContents,
    page: ListPageBuilder<'w>,
    /// The odd keys that have not been offered yet.
    odd: Peekable<IntoIter<Key>>,
    /// Whether there are more odd keys after these.
    has_more_odd: bool,
    /// Whether the page may lack odd keys.
    lacks_odd: bool,
    /// The directories from the start of the walk down to the current one, so that a symbolic link to one of these
    /// directories does not cause endless recursion.
    path: WalkPath,
    /// The common prefix whose keys were skipped last.
    skipped: Option<String>,
}

impl PosixStoreState {
    pub(crate) fn list(&self, bucket: &Bucket, query: &ListQuery) -> Result<ObjectListing> {
        self.list_linked(bucket, query, LinkedDirectories::Listed)
    }

    pub(crate) fn list_linked(
        &self,
        bucket: &Bucket,
        query: &ListQuery,
        linked: LinkedDirectories<'_>,
    ) -> Result<ObjectListing> {
        within(PATIENCE, || self.list_page(bucket, query, linked))
    }

    fn list_page(
        &self,
        bucket: &Bucket,
        query: &ListQuery,
        linked: LinkedDirectories<'_>,
    ) -> Result<ObjectListing> {
        let contents = self.volume.contents_of_existing(bucket)?;
        // Usually, each odd key becomes an entry. One additional key shows whether the page is full.
        let mut most_odd = query.max_keys.saturating_add(2);
        loop {
            let (odd, has_more_odd) =
                if contents.has_odd { self.odd_keys(bucket, query, most_odd)? } else { Default::default() };
            if let Some(page) = self.list_with_odd(bucket, (query, linked), contents, (odd, has_more_odd))? {
                return Ok(page);
            }
            most_odd = most_odd.saturating_mul(4);
        }
    }

    /// Returns the page, or `None` if `odd` does not contain all odd keys that the page needs.
    fn list_with_odd(
        &self,
        bucket: &Bucket,
        (query, linked): (&ListQuery, LinkedDirectories<'_>),
        contents: PrivateDirectoryContents,
        (odd, has_more_odd): (Vec<Key>, bool),
    ) -> Result<Option<ObjectListing>> {
        let (page, odd) = (ListPageBuilder::new(query), odd.into_iter().peekable());
        let mut walk = BucketWalk {
            inner: self,
            bucket,
            query,
            linked,
            contents,
            page,
            odd,
            has_more_odd,
            lacks_odd: false,
            path: WalkPath::default(),
            skipped: None,
        };
        // The walk starts at the deepest directory that all keys with the prefix share.
        let start = query.prefix.rfind('/').map_or("", |at| &query.prefix[..=at]);
        let is_path = Key::new(format!("{start}x")).is_ok_and(|key| plain(bucket, &key).is_some());
        let mut flow = match is_path && !start.is_empty() {
            true => walk.marker(start)?,
            false => WalkContinuation::On,
        };
        if is_path && matches!(flow, WalkContinuation::On) {
            flow = walk.directory(start)?;
        }
        if !matches!(flow, WalkContinuation::Stop) {
            walk.rest_of_odd()?;
        }
        Ok((!walk.lacks_odd).then(|| walk.page.finish()))
    }

    /// Returns, in order, at most `most` of the odd keys that a page needs, and whether there are more odd keys. All
    /// these keys are read before the plain directories, because an object may move from its odd path to its plain
    /// path, but not back.
    fn odd_keys(&self, bucket: &Bucket, query: &ListQuery, most: usize) -> Result<(Vec<Key>, bool)> {
        let range = (&*query.prefix, query.start_after.as_deref());
        let mut walk = EncodedKeyWalk::start(self, bucket, EncodedKeyTree::Odd, range)?;
        let mut keys: Vec<Key> = Vec::new();
        while let Some(key) = walk.next()? {
            if keys.len() >= most {
                return Ok((keys, true));
            }
            // One key is sufficient for the entry of its common prefix, so the other keys with this prefix are skipped.
            if let Some(prefix) = query.common_prefix(key.as_str()) {
                walk.skip(prefix);
            }
            keys.push(key);
        }
        Ok((keys, false))
    }

    /// Returns an object's listing entry, or `None` if the object is gone or is not a file.
    fn summary<'p>(
        &self,
        (bucket, sharing): (&Bucket, FileSystemSharing),
        (dir, name): (&File, &str),
        place: impl Fn() -> ObjectPath<'p>,
        key: &str,
    ) -> Result<Option<ObjectSummary>> {
        let found = self.try_summary((bucket, sharing), (dir, name), &place, key)?;
        if found.is_some() || sharing != FileSystemSharing::Nfs {
            return Ok(found);
        }
        let again = || self.try_summary((bucket, sharing), (dir, name), &place, key);
        let is_missing = |again: &Result<Option<ObjectSummary>>| matches!(again, Ok(None));
        self.read_between_writes((bucket, &Key::new(key)?), again, is_missing).unwrap_or(Ok(None))
    }

    fn try_summary<'p>(
        &self,
        (bucket, sharing): (&Bucket, FileSystemSharing),
        (dir, name): (&File, &str),
        place: &impl Fn() -> ObjectPath<'p>,
        key: &str,
    ) -> Result<Option<ObjectSummary>> {
        // NFS does not need this call, because its client looks names up again when the directory has changed.
        if self.volume.is_strong() && sharing == FileSystemSharing::Unknown {
            look_again(dir, name);
        }
        match stat_in(dir, name) {
            // Most entries are bare, so this case avoids the large `ObjectInfo`.
            Ok(stat) if stat.is_file && is_bare(&stat) => return Ok(Some(summary_of_bare(key, &stat))),
            Ok(stat) => {
                if let Ok(NameLookup::Found(object)) = self.volume.describe_stat(dir, name, &stat) {
                    return Ok(Some(summary_of(key, object.into_info())));
                }
            }
            Err(_) => {}
        }
        match (self.summary_by_open(bucket, &place(), key), stat_in(dir, name)) {
            // A file that the caller is not permitted to open is also listed, because its error must not hide the other
            // files. After any other error, the entry would have a wrong ETag.
            (Err(error), Ok(stat)) if stat.is_file && is_of_one_file(error.kind()) => {
                Ok(Some(summary_of_bare(key, &stat)))
            }
            (summary, _) => summary,
        }
    }

    /// Waits until no writer is replacing an object in the bucket, so that `dir`, a directory on NFS, can be read again
    /// from its start. Returns `false` if another read would find no further names.
    #[cold]
    pub(crate) fn settle_names(&self, bucket: &Bucket, dir: &File) -> bool {
        // If another node has removed the directory, the directory has no further names.
        let state = stat_now(dir);
        let may_change = self.volume.is_strong() || state.is_ok_and(|dir| is_recent(&dir));
        if !may_change || self.await_replacements(bucket, ALL_KEYS, PATIENCE).is_none() {
            return false;
        }
        let _ = stat_now(dir);
        forget_names(dir);
        rewind(dir).is_ok()
    }

    /// Returns the listing entry of the object with `key`, an odd key. On NFS, waits for a writer that is replacing the
    /// object (see [`PosixStoreState::settled`]).
    fn summary_of_odd(
        &self,
        (bucket, sharing): (&Bucket, FileSystemSharing),
        place: &ObjectPath,
        key: &Key,
    ) -> Result<Option<ObjectSummary>> {
        let found = self.summary_by_open(bucket, place, key.as_str())?;
        if found.is_some() || sharing != FileSystemSharing::Nfs {
            return Ok(found);
        }
        let again = || self.summary_by_open(bucket, place, key.as_str());
        let is_missing = |again: &Result<Option<ObjectSummary>>| matches!(again, Ok(None));
        self.read_between_writes((bucket, key), again, is_missing).unwrap_or(Ok(None))
    }

    /// Returns the listing entry of a file that has to be opened, because it is the target of a symbolic link or has an
    /// odd key.
    pub(crate) fn summary_by_open(
        &self,
        bucket: &Bucket,
        place: &ObjectPath,
        key: &str,
    ) -> Result<Option<ObjectSummary>> {
        let Some(opened) = self.volume.open_file(bucket, place)? else { return Ok(None) };
        Ok(Some(summary_of(key, opened.into_info().1)))
    }
}

impl BucketWalk<'_> {
    /// Offers to the page, in order, the keys below the directory `at` (empty, or ending in `/`).
    fn directory(&mut self, at: &str) -> Result<WalkContinuation> {
        let path = self.path_of(at);
        let mut from = self.first_wanted(at).to_owned();
        if let Some(flow) = self.indexed_directory(at, &path, &mut from)? {
            return Ok(flow);
        }
        self.inner.volume.freshen_dir(&path, !self.path.is_empty(), self.contents.sharing);
        let mut read = self.first_names(at, &path, &from)?;
        if read.is_none() {
            // The directory may have been created again.
            self.inner.volume.refresh_dirs(&path);
            read = self.first_names(at, &path, &from)?;
        }
        let (dir, stat, is_known, mut names) = match read {
            Some(FirstNames::Read { dir, stat, is_known, names }) => (dir, stat, is_known, names),
            Some(FirstNames::Offered(flow)) => return Ok(flow),
            None => return Ok(WalkContinuation::On),
        };
        let id = (stat.device, stat.inode);
        let visit = self.path.begin(names.has_links());
        let is_whole = from.is_empty() && self.query.prefix.len() <= at.len();
        let mut flow = self.names(at, (&dir, id), &names, &from)?;
        // Only a part of the names may be cached.
        while matches!(flow, WalkContinuation::On)
            && let Some(next) = self.next_window(at, &names)
        {
            let Some(further) = self.names_from(at, (&dir, &stat), &next)? else { break };
            names = further;
            flow = self.names(at, (&dir, id), &names, &next)?;
        }
        self.path.end(visit, Some(id).filter(|_| is_whole), at.len());
        // The next page does not need a directory that this page has skipped.
        if matches!(flow, WalkContinuation::Behind(_)) && !is_known {
            self.inner.remembered.forget(id);
        }
        Ok(flow)
    }

    /// Opens the directory `at`, and reads its names from `from` on. Returns `None` if another node has removed the
    /// directory in the meantime. This function does not call itself through its callees, so that each level of
    /// directories needs little stack.
    #[inline(never)]
    fn first_names(&mut self, at: &str, path: &str, from: &str) -> Result<Option<FirstNames>> {
        let on = Ok(Some(FirstNames::Offered(WalkContinuation::On)));
        let Some(dir) = self.inner.volume.open_to_list(path)? else { return on };
        let failed = |errno| from_errno(errno, "reading a directory");
        let stat = match state_before(&dir, self.contents.sharing) {
            Err(errno) if self.is_removed(at, errno) => return Ok(None),
            stat => stat.map_err(failed)?,
        };
        let id = (stat.device, stat.inode);
        if self.path.has(id) || self.path.knows_as_empty(id, at.len()) {
            return on;
        }
        let is_known = self.inner.remembered.recall(&stat).is_some();
        if !is_known {
            self.inner.volume.freshen_names(&dir, self.contents.sharing);
        }
        // One common prefix may represent all keys below the directory.
        let is_rolled_up = || self.query.prefix.len() <= at.len() && self.query.common_prefix(at).is_some();
        if !is_known && from.is_empty() && is_rolled_up() {
            let bucket = (self.bucket, self.contents.sharing);
            if let Some(key) = any_object(&self.inner.volume, bucket, at, &dir) {
                // The page does not describe the object, because its common prefix becomes the entry.
                return self.file((&dir, ""), false, &key).map(FirstNames::Offered).map(Some);
            }
            rewind(&dir).map_err(failed)?;
        }
        match self.read(at, (&dir, &stat), from) {
            Err(errno) if self.is_removed(at, errno) => Ok(None),
            names => Ok(Some(FirstNames::Read { names: names.map_err(failed)?, dir, stat, is_known })),
        }
    }

    /// Reads the names in `dir`, the directory `at`, again, from `from` on. Returns `None` if another node has removed
    /// the directory, which then has no further names.
    #[inline(never)]
    fn names_from(
        &self,
        at: &str,
        (dir, stat): (&File, &FileStat),
        from: &str,
    ) -> Result<Option<Arc<SortedNames>>> {
        let failed = |errno| from_errno(errno, "reading a directory");
        rewind(dir).map_err(failed)?;
        match self.read(at, (dir, stat), from) {
            Err(errno) if self.is_removed(at, errno) => Ok(None),
            names => names.map(Some).map_err(failed),
        }
    }

    /// Returns whether this error of the open directory `at` means that another node has removed the directory. If the
    /// directory is the bucket's own, the listing fails.
    fn is_removed(&self, at: &str, errno: Errno) -> bool {
        errno == Errno::STALE && !at.is_empty() && self.contents.sharing.is_shared()
    }

    /// Returns the path of the directory `at`, relative to the root.
    fn path_of(&self, at: &str) -> String {
        if at.is_empty() { self.bucket.as_str().to_owned() } else { join(self.bucket.as_str(), at) }
    }

    /// Returns the first string that the walk needs in the directory `at` after `names`. Returns `None` if `names`
    /// contains all further names that the walk needs.
    fn next_window(&self, at: &str, names: &SortedNames) -> Option<String> {
        let wanted = self.query.prefix.get(at.len()..).unwrap_or_default();
        let last = names.cut_after()?;
        if last > wanted && !last.starts_with(wanted) {
            return None;
        }
        self.next_name(at, last)
    }

    /// Returns the first string that the walk needs in the directory `at` after the names up to `last`. Returns `None` if
    /// the walk needs no further names.
    fn next_name(&self, at: &str, last: &str) -> Option<String> {
        let skipped = self.skipped.as_deref().and_then(|skipped| skipped.strip_prefix(at));
        match skipped.filter(|skipped| last.starts_with(skipped)) {
            Some(skipped) => text_after(skipped),
            // The smallest string that sorts after the last name.
            None => Some(format!("{last}\0")),
        }
    }

    /// Reads the names in a directory that may lead to requested keys. The result may also contain other names, because
    /// all names of a directory may be cached for the next page. If not all names of the directory fit into the cache,
    /// the result may contain only some of the names from `from` on (see [`SortedNames::cut_after`]).
    fn read(&self, at: &str, (dir, stat): (&File, &FileStat), from: &str) -> Result<Arc<SortedNames>, Errno> {
        let remembered = &self.inner.remembered;
        let wanted = self.query.prefix.get(at.len()..).unwrap_or_default();
        let from = from.max(wanted);
        if let Some(names) = remembered.recall(stat).or_else(|| remembered.recall_window(stat, from)) {
            return Ok(names);
        }
        let prefix = text_to_name(wanted);
        let before = Some(stat).filter(|_| !self.contents.sharing.is_shared());
        let read = |all| {
            let is_wanted = |name: &[u8]| (all || name.starts_with(&prefix)) && !is_never_an_object(name);
            let mut is_replacing = false;
            let look = |name: &[u8]| {
                is_replacing |= is_left_behind(name);
                is_wanted(name)
            };
            let names = SortedNames::read(dir, before, look)?;
            match is_replacing && self.contents.sharing == FileSystemSharing::Nfs {
                true => self.read_between_writes(dir, names, || SortedNames::read(dir, before, is_wanted)),
                false => Ok(names),
            }
        };
        let freshness = remembered.last_listing(stat);
        let has_all = wanted.is_empty() || freshness != ListingFreshness::Unknown;
        let names = match freshness {
            ListingFreshness::Changed { names }
                if self.is_worth_indexing(at, names) && self.is_watchable(dir, stat) =>
            {
                let indexes = &self.inner.volume.dirs.indexes;
                Arc::new(indexes.read(dir, stat, DirectoryRole::Objects, || read(true))?)
            }
            // The first page of a listing by prefix needs only names with the prefix, so other names are neither kept
            // nor sorted.
            ListingFreshness::Unknown if !wanted.is_empty() => Arc::new(read(false)?),
            _ => remembered
                .names(stat, self.inner.volume.directory_times(self.contents.sharing), || read(true))?,
        };
        if has_all && remembered.need_window(stat, &names) && self.is_watchable(dir, stat) {
            remembered.keep_window(stat, &names, from);
        }
        remembered.note_listing(stat, names.read_count());
        Ok(names)
    }

    /// Reads a directory on NFS again when no writer is replacing an object in the bucket, and adds the names found to
    /// `names`. The caller has found the hidden name of a file that was removed or replaced while it was open. `names`
    /// may therefore lack an object (see [`PosixStoreState::settled`]).
    #[cold]
    fn read_between_writes(
        &self,
        dir: &File,
        mut names: SortedNames,
        read: impl FnOnce() -> Result<SortedNames, Errno>,
    ) -> Result<SortedNames, Errno> {
        if !self.inner.settle_names(self.bucket, dir) {
            return Ok(names);
        }
        match read() {
            Ok(further) => names.add(further),
            Err(Errno::STALE | Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        Ok(names)
    }

    /// Adds the keys at and below `names` to the page, starting at `from`. The names are in the directory `at`, opened
    /// as `dir`.
    fn names(
        &mut self,
        at: &str,
        (dir, id): (&File, (u64, u64)),
        names: &SortedNames,
        from: &str,
    ) -> Result<WalkContinuation> {
        if self.path.has(id) {
            return Ok(WalkContinuation::On);
        }
        self.path.enter(id);
        let flow = self.each_name(at, dir, names, from);
        self.path.leave();
        flow
    }

    fn each_name(
        &mut self,
        at: &str,
        dir: &File,
        names: &SortedNames,
        from: &str,
    ) -> Result<WalkContinuation> {
        let wanted = self.query.prefix.get(at.len()..).unwrap_or_default();
        let (mut index, end) = (names.first_from(from.max(wanted)), names.end_of(wanted));
        let mut key = at.to_owned();
        // The type that was looked up last. A name of unknown type often occurs twice in succession.
        let mut last_kind = None;
        while index < end {
            let name = names.get(index);
            index += 1;
            key.truncate(at.len());
            key.push_str(name.text);
            let flow = match name.is_known {
                true if name.is_dir() => self.subdirectory(dir, name.text, &key)?,
                true => self.file((dir, name.text), false, &key)?,
                false => self.unknown((at, dir), name, &key, &mut last_kind)?,
            };
            match flow {
                WalkContinuation::On => {}
                WalkContinuation::Behind(prefix) => {
                    // All keys in the directory begin with this prefix, so the rest of the directory is skipped as
                    // well.
                    let Some(rest) = prefix.strip_prefix(at).filter(|rest| !rest.is_empty()) else {
                        return Ok(WalkContinuation::Behind(prefix));
                    };
                    index = index.max(names.end_of(rest));
                    self.skipped = Some(prefix);
                }
                WalkContinuation::Stop => return Ok(WalkContinuation::Stop),
            }
        }
        Ok(WalkContinuation::On)
    }

    /// Looks up the actual type of a name that is listed both as a file and as a directory, and offers the name only if
    /// the type of `name` is the actual type. `last` is the name that was looked up last, with its type.
    #[cold]
    fn unknown(
        &mut self,
        (at, dir): (&str, &File),
        name: ListedName,
        key: &str,
        last: &mut Option<(String, EntryKind)>,
    ) -> Result<WalkContinuation> {
        if name.is_dir() && !self.is_wanted(key) {
            return Ok(WalkContinuation::On);
        }
        let bare = name.text.trim_end_matches('/');
        let kind = match last {
            Some((known, kind)) if known == bare => *kind,
            _ => self.resolve(dir, &self.path_of(at), bare)?,
        };
        *last = Some((bare.to_owned(), kind));
        match kind {
            EntryKind::Dir if name.is_dir() => self.subdirectory(dir, name.text, key),
            EntryKind::File | EntryKind::Link if !name.is_dir() => {
                self.file((dir, name.text), kind == EntryKind::Link, key)
            }
            _ => Ok(WalkContinuation::On),
        }
    }

    /// Offers the keys at and below the directory `name` in `dir`, whose key is `key`.
    fn subdirectory(&mut self, dir: &File, name: &str, key: &str) -> Result<WalkContinuation> {
        // All keys in the directory are too long to be listed.
        if key.len() > MAX_KEY_BYTES {
            self.path.note_long();
            return Ok(WalkContinuation::On);
        }
        if !self.is_wanted(key) {
            return Ok(WalkContinuation::On);
        }
        let flow = match self.has_record(dir, name) {
            true => self.marked_directory(key),
            false => self.directory(key),
        };
        flow.or_else(|error| self.behind_closed(key, error))
    }

    /// Continues after the directory `key`, which the caller is not permitted to read, if the bucket has the sticky
    /// bit, or if the listing skips such directories. Without this rule, a user who makes a directory unreadable could
    /// prevent other users from listing such a bucket. Errors: `error` in other listings of a bucket without the sticky
    /// bit, so that the listing does not seem complete.
    #[cold]
    fn behind_closed(&mut self, key: &str, error: Error) -> Result<WalkContinuation> {
        if error.kind() != ErrorKind::AccessDenied {
            return Err(error);
        }
        match self.linked {
            LinkedDirectories::Skipped(skipped) => skipped.closed.set(Some(key.to_owned())),
            LinkedDirectories::Listed if self.inner.volume.guard_now(self.bucket)?.is_none() => {
                return Err(error);
            }
            LinkedDirectories::Listed => {}
        }
        self.path.note_found();
        // With a delimiter, the directory is listed as a common prefix, regardless of its content.
        self.page.offer(&format!("{key}_"), || Ok(None)).map(WalkContinuation::from)
    }

    /// Returns the first name in the directory `at` that can lead to a key after `start_after`.
    fn first_wanted(&self, at: &str) -> &str {
        let start = self.query.start_after.as_deref().and_then(|start| start.strip_prefix(at));
        let start = start.unwrap_or_default();
        // If the start is in a subdirectory, that subdirectory is also needed. A subdirectory sorts as its name with a
        // trailing slash.
        start.find('/').map_or(start, |slash| &start[..=slash])
    }

    /// Returns whether the directory `name` in `dir` may be an object.
    fn has_record(&self, dir: &File, name: &str) -> bool {
        let name = name.trim_end_matches('/');
        self.contents.has_markers && get_xattr_in(dir, name, ATTRIBUTE, &mut [0; RECORD_BYTES]) != Ok(None)
    }

    /// Offers to the page a directory that may be an object, and the keys below the directory.
    fn marked_directory(&mut self, key: &str) -> Result<WalkContinuation> {
        match self.marker(key)? {
            WalkContinuation::On => self.directory(key),
            other => Ok(other),
        }
    }

    /// Offers the directory `key`, which ends in `/`, to the page if the directory is an object.
    fn marker(&mut self, key: &str) -> Result<WalkContinuation> {
        if !self.contents.has_markers || key.len() > MAX_KEY_BYTES {
            return Ok(WalkContinuation::On);
        }
        if matches!(self.odd_before(key)?, WalkContinuation::Stop) {
            return Ok(WalkContinuation::Stop);
        }
        if self.odd.peek().is_some_and(|odd| odd.as_str() == key) {
            return Ok(WalkContinuation::On);
        }
        match self.open_marker(&Key::new(key)?)? {
            Some(marker) => {
                self.path.note_found();
                let summary = summary_of(key, marker.into_info().1);
                self.page.offer(key, || Ok(Some(summary))).map(WalkContinuation::from)
            }
            None => Ok(WalkContinuation::On),
        }
    }

    /// Opens the directory that represents the object `key`. Returns `None` if there is no such object, or if another
    /// node has removed the directory.
    fn open_marker(&self, key: &Key) -> Result<Option<ObjectFile>> {
        let volume = &self.inner.volume;
        let refresh = || volume.refresh_dirs(self.path_of(key.as_str()).trim_end_matches('/'));
        match retry_stale(is_stale, refresh, || volume.open_marker(self.bucket, key, self.contents)) {
            Err(error) if is_stale(&error) => Ok(None),
            opened => opened,
        }
    }

    /// Offers to the page the odd keys that precede `key`.
    fn odd_before(&mut self, key: &str) -> Result<WalkContinuation> {
        while self.odd.peek().is_some_and(|odd| odd.as_str() < key) {
            if matches!(self.next_odd()?, WalkContinuation::Stop) {
                return Ok(WalkContinuation::Stop);
            }
        }
        Ok(self.check_odd())
    }

    /// Stops the walk if further odd keys may come next.
    fn check_odd(&mut self) -> WalkContinuation {
        self.lacks_odd = self.has_more_odd && self.odd.peek().is_none();
        if self.lacks_odd { WalkContinuation::Stop } else { WalkContinuation::On }
    }

    /// Offers the file `name` in `dir`. If the name is a symbolic link, the file's properties can be read only by
    /// opening the file.
    fn file(&mut self, (dir, name): (&File, &str), is_link: bool, key: &str) -> Result<WalkContinuation> {
        if key.len() > MAX_KEY_BYTES {
            self.path.note_long();
            return Ok(WalkContinuation::On);
        }
        if matches!(self.odd_before(key)?, WalkContinuation::Stop) {
            return Ok(WalkContinuation::Stop);
        }
        // A plain file hides an odd file with the same key.
        self.odd.next_if(|odd| odd.as_str() == key);
        let inner = self.inner;
        let place = || ObjectPath::of_path(join(self.bucket.as_str(), key));
        let skips_closed = matches!(self.linked, LinkedDirectories::Skipped(_));
        let (mut is_object, mut is_refused) = (true, false);
        let describe = || {
            let described = match is_link {
                false => inner.summary((self.bucket, self.contents.sharing), (dir, name), place, key)?,
                true => summary_of_link(inner, self.bucket, (&place(), key), skips_closed, &mut is_refused)?,
            };
            is_object = described.is_some();
            Ok(described)
        };
        let offered = self.page.offer(key, describe)?;
        if is_refused {
            self.path.note_refused_link();
        }
        if is_object {
            self.path.note_found();
        }
        Ok(offered.into())
    }

    fn next_odd(&mut self) -> Result<WalkContinuation> {
        let Some(key) = self.odd.next() else { return Ok(WalkContinuation::On) };
        let (inner, place) = (self.inner, odd(self.bucket, &key));
        let describe = || {
            if let Ok(Some(info)) = inner.volume.describe(&place) {
                return Ok(Some(summary_of(key.as_str(), info)));
            }
            match inner.summary_of_odd((self.bucket, self.contents.sharing), &place, &key) {
                // The name is a symbolic link that does not lead to an object, or a file whose state the caller is not
                // permitted to read.
                Err(error) if error.kind() == ErrorKind::AccessDenied => Ok(None),
                // The record cannot be decoded.
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    let info = inner.volume.describe_without_record(&place)?;
                    Ok(info.map(|info| summary_of(key.as_str(), info)))
                }
                described => described,
            }
        };
        self.page.offer(key.as_str(), describe).map(WalkContinuation::from)
    }

    fn rest_of_odd(&mut self) -> Result<()> {
        while self.odd.peek().is_some() {
            if matches!(self.next_odd()?, WalkContinuation::Stop) {
                return Ok(());
            }
        }
        self.check_odd();
        Ok(())
    }

    /// Returns the kind of a symbolic link's target, or of an entry whose kind the file system does not report: a
    /// directory, a file, a link to a file, or another kind. `path` is the directory's path. Cost: one `newfstatat`;
    /// for a link, also one `openat2`.
    fn resolve(&self, dir: &File, path: &str, name: &str) -> Result<EntryKind> {
        Ok(match stat_in(dir, name) {
            Ok(stat) if stat.is_dir => EntryKind::Dir,
            Ok(stat) if stat.is_file => EntryKind::File,
            Ok(stat) if !stat.is_link => EntryKind::Other,
            Ok(_) if leads_to_dir(&self.inner.volume, &join(path, name))? => match self.linked {
                LinkedDirectories::Listed => EntryKind::Dir,
                LinkedDirectories::Skipped(skipped) => {
                    let above = path.get(self.bucket.as_str().len() + 1..).unwrap_or_default();
                    skipped.link.set(Some(format!("{above}{name}")));
                    EntryKind::Other
                }
            },
            // If another node has removed the directory, opening the name by its path shows whether there is an object.
            Ok(_) | Err(Errno::NOENT | Errno::STALE) => EntryKind::Link,
            Err(errno) => return Err(from_errno(errno, "reading the metadata of a file")),
        })
    }

    /// Returns whether keys below the directory `key` can be on this page.
    fn is_wanted(&self, key: &str) -> bool {
        let in_prefix = key.starts_with(&self.query.prefix) || self.query.prefix.starts_with(key);
        let after_start = match self.query.start_after.as_deref() {
            None => true,
            Some(start) if start.starts_with(key) => {
                start != key || self.query.is_after_start(&format!("{key}x"))
            }
            Some(_) => self.query.is_after_start(key),
        };
        in_prefix && after_start
    }
}

/// Returns the smallest string that sorts after every string that begins with `prefix`; `None` if there is none.
fn text_after(prefix: &str) -> Option<String> {
    let mut chars = prefix.chars();
    while let Some(last) = chars.next_back() {
        // The range of characters has a gap, the surrogates.
        if let Some(next) = (last..=char::MAX).nth(1) {
            return Some(format!("{}{next}", chars.as_str()));
        }
    }
    None
}

impl From<WalkInstruction> for WalkContinuation {
    fn from(step: WalkInstruction) -> Self {
        match step {
            WalkInstruction::Next => WalkContinuation::On,
            WalkInstruction::SkipPrefix(prefix) => WalkContinuation::Behind(prefix),
            WalkInstruction::Full => WalkContinuation::Stop,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::memory::{CacheMemory, CacheOwner};
    use crate::{PosixConfig, PosixStore};

    /// Returns the names of all entries of all pages.
    fn pages(store: &PosixStore, bucket: &Bucket, query: &ListQuery) -> Vec<String> {
        let (mut query, mut all) = (query.clone(), Vec::new());
        loop {
            let page = store.inner.list(bucket, &query).unwrap();
            all.extend(page.entries.iter().map(|entry| entry.name().to_owned()));
            match page.next {
                Some(next) => query.start_after = Some(next),
                None => return all,
            }
        }
    }

    /// In tests, the memory of a store is 256 KiB, so that only one of these two directories can be cached.
    #[test]
    fn pages_of_two_directories_in_turns_seldom_read_the_names() {
        let _other = CacheMemory::of_process().keep(&CacheOwner::default(), Arc::new(()), 1);
        let dir = tempfile::tempdir().unwrap();
        let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
        let names = Vec::from_iter((0..1_300).map(|number| format!("{number:0100}")));
        let buckets = ["one", "two"].map(|name| Bucket::new(name).unwrap());
        for bucket in &buckets {
            store.inner.create_bucket(bucket).unwrap();
            let path = dir.path().join(bucket.as_str());
            names.iter().for_each(|name| fs::write(path.join(name), "").unwrap());
        }
        std::thread::sleep(Duration::from_millis(50));
        let mut found = [Vec::new(), Vec::new()];
        for _ in 0..65 {
            for (bucket, found) in buckets.iter().zip(&mut found) {
                let query =
                    ListQuery { max_keys: 20, start_after: found.last().cloned(), ..Default::default() };
                let page = store.inner.list(bucket, &query).unwrap();
                found.extend(page.entries.iter().map(|entry| entry.name().to_owned()));
            }
        }
        assert!(found == [names.clone(), names]);
        let reads = store.inner.remembered.reads.load(std::sync::atomic::Ordering::Relaxed);
        assert!(reads < 20, "130 pages read the names {reads} times");
    }

    /// In tests, the limit of the cache is 256 KiB, so that this directory is listed through windows.
    #[test]
    fn pages_of_a_directory_with_too_many_names_are_complete() {
        let dir = tempfile::tempdir().unwrap();
        let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
        let bucket = Bucket::new("bucket").unwrap();
        store.inner.create_bucket(&bucket).unwrap();
        let mut all: Vec<String> = (0..2_500).map(|number| format!("d/{number:04}-{:0100}", 0)).collect();
        all[1_000].push_str("/x/y");
        for key in &all {
            let path = dir.path().join("bucket").join(key);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "content").unwrap();
        }
        std::thread::sleep(Duration::from_millis(50));
        let query = ListQuery { max_keys: 90, ..Default::default() };
        assert_eq!(pages(&store, &bucket, &query), all);
        assert!(!store.inner.remembered.has_no_windows());
        for prefix in ["d/", "d/0", "d/1", "d/24", "d/09", "d/3", "d/0999-", "d/1000-"] {
            let found = pages(&store, &bucket, &ListQuery { prefix: prefix.to_owned(), ..query.clone() });
            let expected: Vec<_> = all.iter().filter(|key| key.starts_with(prefix)).cloned().collect();
            assert_eq!(found, expected, "{prefix}");
        }
        for delimiter in ["-", "00", "1", "/x"] {
            let delimited = ListQuery { delimiter: Some(delimiter.to_owned()), ..query.clone() };
            let found = pages(&store, &bucket, &delimited);
            let expected: std::collections::BTreeSet<_> = all
                .iter()
                .map(|key| delimited.common_prefix(key).map_or_else(|| key.clone(), str::to_owned))
                .collect();
            assert_eq!(found, Vec::from_iter(expected), "{delimiter}");
        }
    }
}
