//! An index of the names in directories that are listed repeatedly while they change.
//!
//! Without an index, a program that lists by prefix after each delete, as IOR does, would read the whole directory each
//! time. The index of a directory contains its names in sorted order. The kernel's queue of changes (inotify) keeps the
//! index up to date. Every listing first applies all changes that any process made before the listing. A listing by
//! prefix then costs one lookup. An index is possible only on a file system that no other kernel changes.
//!
//! While a directory is watched, each change in it costs about 1 µs more, so the watch ends when the directory has not
//! been listed for 3 s. For a program that does not list directories, the index has no cost.

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fordway_sys::{
    CoarseInstant, DirectoryChange, DirectoryWatcher, Errno, FileStat, Mode, OFlags, WatchId, name_to_text,
    open_in, stat, stat_in,
};

use crate::dirs::DirectoryHandle;
use crate::layout::is_never_an_object;
use crate::memory::{CacheMemory, CacheOwner, CacheSlot};
use crate::names::{ListedName, MOST_BYTES, SortedNames};
use crate::versions::names::is_stray;

/// The time for which a directory is watched after a listing.
pub(crate) const KEPT: Duration = Duration::from_secs(3);
/// The minimum number of names that a directory must have to be indexed. Reading a smaller directory costs less than
/// the index saves.
pub(crate) const FEWEST: usize = 32;
/// The maximum number of indexed directories.
const MOST: usize = 16;
/// If the number of queued changes exceeds this constant plus a quarter of the number of names, the directory is read
/// again, and the changes are dropped.
const MOST_CHANGES: usize = 64;
/// The maximum number of changes that are recorded while the names are read.
const MOST_CHANGES_READING: usize = 1 << 16;
/// The approximate memory, in bytes, that the index needs for each name in addition to the name's own bytes.
const NAME_BYTES: usize = 48;

/// The growth of an index, in bytes, that does not count towards the memory limit.
const UNCOUNTED_BYTES: usize = 1 << 16;

/// The device number and inode number of a directory.
pub(crate) type DirectoryId = (u64, u64);

/// The indexes of a store.
#[derive(Default)]
pub(crate) struct NameIndexes {
    /// The number of indexed directories. While it is 0, no lock is taken.
    count: AtomicUsize,
    watched: Mutex<WatchedDirectories>,
    /// The versions directories that were read recently, the most recently read last.
    read: Mutex<VecDeque<(DirectoryId, CoarseInstant)>>,
    pub(crate) owner: CacheOwner,
}

/// The role of an indexed directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectoryRole {
    /// A bucket, or a directory of objects inside a bucket.
    Objects,
    /// The directory of a key's old versions.
    Versions,
}

/// The names that an [`NameIndexQuery`] selects from a directory, in key order.
pub(crate) struct IndexedNames {
    pub(crate) names: SortedNames,
    /// Whether `names` contains the last of the requested names.
    pub(crate) is_last: bool,
    /// The device number and inode number of the directory.
    pub(crate) id: DirectoryId,
}

#[derive(Default)]
struct WatchedDirectories {
    /// The queue of changes. The queue is kept open even if no directory is watched, because closing it is slow.
    queue: Option<DirectoryWatcher>,
    all: Vec<WatchedDirectory>,
}

struct WatchedDirectory {
    id: DirectoryId,
    watch: WatchId,
    role: DirectoryRole,
    dir: File,
    /// The handle in the directory cache that is known to refer to this directory.
    held: Option<DirectoryHandle>,
    /// The names, with a trailing `/` for a directory; `None` while the directory is read.
    names: Option<BTreeSet<Box<str>>>,
    /// The names whose types have to be looked up by each listing, such as symbolic links. Each of them is in `names`
    /// twice: as a file and as a directory.
    unknown: BTreeSet<Box<str>>,
    /// In a versions directory, the names that cannot be computed from their version's ID (see [`is_stray`]).
    strays: BTreeSet<Box<str>>,
    /// The changes that have not been applied yet, such as changes made while the names are read.
    changes: Vec<(Box<[u8]>, NameChange)>,
    bytes: usize,
    /// The part of the memory limit that the names use. If this slot loses its content, the watch ends.
    memory: Option<Arc<CacheSlot<()>>>,
    /// The number of bytes that `memory` counts, which may differ from `bytes` by [`UNCOUNTED_BYTES`].
    counted_bytes: usize,
    used: CoarseInstant,
}

/// The state of a name after a change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NameChange {
    File,
    Directory,
    Gone,
    GoneDirectory,
    /// A file was renamed to another name. If the rename was an exchange, the name still exists.
    Moved,
    MovedDirectory,
}

/// Selects the names to return from a directory.
#[derive(Clone, Copy)]
pub(crate) struct NameIndexQuery<'q> {
    /// The first requested name.
    pub(crate) from: &'q str,
    /// The prefix of all requested names.
    pub(crate) prefix: &'q str,
    /// The maximum number of names to return.
    pub(crate) most: usize,
}

impl NameIndexes {
    /// Returns whether no directory is indexed. Cost: one atomic load.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Returns names from the index of the existing directory `dir`, or `None` if `dir` has no index. Cost: one `read`,
    /// one `fstat` whenever `dir` has been reopened, and one `fstatat` for each file created and each name renamed
    /// since the last call.
    pub(crate) fn names(
        &self,
        dir: &DirectoryHandle,
        role: DirectoryRole,
        query: NameIndexQuery,
    ) -> Option<IndexedNames> {
        self.with_current(dir, role, |indexed| indexed.select(query))
    }

    /// Calls `answer` with all names of the existing versions directory `dir`, and with the stray names among them.
    /// Returns `None` if `dir` has no index. Cost: as for [`NameIndexes::names`].
    pub(crate) fn versions<T>(
        &self,
        dir: &DirectoryHandle,
        answer: impl FnOnce(&BTreeSet<Box<str>>, &BTreeSet<Box<str>>) -> T,
    ) -> Option<T> {
        self.with_current(dir, DirectoryRole::Versions, |indexed| {
            indexed.note_use();
            Some(answer(indexed.names.as_ref()?, &indexed.strays))
        })
    }

    /// Calls `act` with the index of `dir`, which includes all changes that were made before this call.
    fn with_current<T>(
        &self,
        dir: &DirectoryHandle,
        role: DirectoryRole,
        act: impl FnOnce(&mut WatchedDirectory) -> Option<T>,
    ) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        self.with(|watched| {
            let watch = watched.find(dir, role)?;
            watched.catch_up();
            // Applying the changes may have ended the watch.
            act(watched.all.iter_mut().find(|indexed| indexed.watch == watch)?)
        })
    }

    /// Returns whether the versions directory with this metadata was read within the last [`KEPT`], and is therefore
    /// worth indexing.
    pub(crate) fn is_known_to_be_read(&self, stat: &FileStat) -> bool {
        let id = (stat.device, stat.inode);
        let read = self.read.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        read.iter().any(|(known, when)| *known == id && when.elapsed() < KEPT)
    }

    /// Records that all names of the versions directory with this metadata were read.
    pub(crate) fn note_read(&self, stat: &FileStat) {
        let id = (stat.device, stat.inode);
        let mut read = self.read.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        read.retain(|(known, _)| *known != id);
        if read.len() >= MOST {
            read.pop_front();
        }
        read.push_back((id, CoarseInstant::now()));
    }

    /// Reads all names of `dir` with `read`, returns them, and keeps them in an index if possible. `stat` is the
    /// directory's metadata.
    pub(crate) fn read(
        &self,
        dir: &File,
        stat: &FileStat,
        role: DirectoryRole,
        read: impl FnOnce() -> Result<SortedNames, Errno>,
    ) -> Result<SortedNames, Errno> {
        let watch = self.with(|watched| watched.watch(dir, stat, role));
        let names = read();
        if let Some(watch) = watch {
            self.with(|watched| match &names {
                Ok(names) if role == DirectoryRole::Objects || !names.has_links() => {
                    watched.fill(watch, names, &self.owner)
                }
                _ => watched.end(watch),
            });
        }
        names
    }

    /// Stops watching directories that are no longer listed. Cost: one atomic load if no directory is watched.
    pub(crate) fn end_unused(&self) {
        if !self.is_empty() {
            self.with(WatchedDirectories::end_unused);
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut WatchedDirectories) -> T) -> T {
        let mut watched = self.watched.lock().unwrap_or_else(|poisoned| {
            // The panic that poisoned the lock may have lost changes, so all indexes are dropped.
            let mut watched = poisoned.into_inner();
            *watched = WatchedDirectories::default();
            self.watched.clear_poison();
            watched
        });
        let done = act(&mut watched);
        self.count.store(watched.all.len(), Ordering::Relaxed);
        done
    }
}

impl WatchedDirectories {
    /// Returns the watch of `dir`, if the names of `dir` are indexed as `role`.
    fn find(&mut self, dir: &DirectoryHandle, role: DirectoryRole) -> Option<WatchId> {
        let is_same = |held: &DirectoryHandle| held.address() == dir.address();
        let known = self.all.iter().find(|indexed| indexed.held.as_ref().is_some_and(is_same));
        let found = match known {
            Some(found) => found,
            None => {
                let state = stat(dir).ok()?;
                let found = self.all.iter_mut().find(|indexed| indexed.id == (state.device, state.inode))?;
                found.held = Some(dir.clone());
                found
            }
        };
        (found.role == role).then_some(found.watch)
    }

    /// Starts to watch `dir`. Returns `None` if `dir` cannot be watched or is already watched, or if the maximum number
    /// of watched directories has been reached.
    fn watch(&mut self, dir: &File, stat: &FileStat, role: DirectoryRole) -> Option<WatchId> {
        self.end_unused();
        if self.all.len() >= MOST {
            // `catch_up` ends the watches of directories that were removed.
            self.catch_up();
        }
        let id = (stat.device, stat.inode);
        if self.all.len() >= MOST || self.all.iter().any(|indexed| indexed.id == id) {
            return None;
        }
        // The directory is opened again, because the read position of the caller's file is in use.
        let dir = open_in(dir, ".", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).ok()?.into();
        if self.queue.is_none() {
            self.queue = Some(DirectoryWatcher::new().ok()?);
        }
        let watch = self.queue.as_ref()?.watch(&dir).ok()?;
        self.all.push(WatchedDirectory {
            id,
            watch,
            role,
            dir,
            held: None,
            names: None,
            unknown: BTreeSet::new(),
            strays: BTreeSet::new(),
            changes: Vec::new(),
            bytes: 0,
            memory: None,
            counted_bytes: 0,
            used: CoarseInstant::now(),
        });
        Some(watch)
    }

    /// Stores the names that were read after `watch` began.
    fn fill(&mut self, watch: WatchId, names: &SortedNames, owner: &CacheOwner) {
        let others: usize = self.all.iter().map(|indexed| indexed.bytes).sum();
        // Every name is counted as `set` counts it. In `names`, the two names of a link share one string.
        let bytes = (0..names.len()).map(|at| names.get(at).text.len() + NAME_BYTES).sum();
        let Some(indexed) = self.all.iter_mut().find(|indexed| indexed.watch == watch) else { return };
        if others + bytes > MOST_BYTES {
            return self.end(watch);
        }
        let all = || (0..names.len()).map(|at| names.get(at).text);
        if indexed.role == DirectoryRole::Versions {
            indexed.strays = all().filter(|name| is_stray(name)).map(Box::from).collect();
        }
        let listed = (0..names.len()).map(|at| names.get(at));
        indexed.unknown =
            listed.filter(|name| !name.is_known && !name.is_dir()).map(|name| name.text.into()).collect();
        indexed.names = Some(all().map(Box::from).collect());
        (indexed.bytes, indexed.counted_bytes) = (bytes, bytes);
        indexed.memory = Some(CacheMemory::of_process().keep(owner, Arc::new(()), bytes));
        if !indexed.apply() {
            self.end(watch);
        }
    }

    /// Applies all changes that were made before this call. Ends the watch of a directory whose changes were lost.
    fn catch_up(&mut self) {
        let Some(queue) = &mut self.queue else { return };
        let (all, mut lost) = (&mut self.all, Vec::new());
        let read = queue.changes(|watch, change| {
            let Some(indexed) = all.iter_mut().find(|indexed| indexed.watch == watch) else { return };
            match change {
                DirectoryChange::Made { name, is_dir: true } => indexed.note(name, NameChange::Directory),
                DirectoryChange::Made { name, is_dir: false } => indexed.note(name, NameChange::File),
                DirectoryChange::Moved { name, is_dir: true } => {
                    indexed.note(name, NameChange::MovedDirectory)
                }
                DirectoryChange::Moved { name, is_dir: false } => indexed.note(name, NameChange::Moved),
                DirectoryChange::Gone { name, is_dir: true } => indexed.note(name, NameChange::GoneDirectory),
                DirectoryChange::Gone { name, is_dir: false } => indexed.note(name, NameChange::Gone),
                DirectoryChange::Itself => lost.push(watch),
            }
        });
        match read {
            Ok(()) => self.end_where(|indexed| {
                let is_current = match indexed.names {
                    Some(_) => indexed.apply() && indexed.bytes <= MOST_BYTES,
                    None => indexed.changes.len() <= MOST_CHANGES_READING,
                };
                lost.contains(&indexed.watch) || !is_current || !indexed.has_memory()
            }),
            Err(_) => self.end_where(|_| true),
        }
    }

    fn end_unused(&mut self) {
        self.end_where(|indexed| indexed.used.elapsed() > KEPT || !indexed.has_memory());
    }

    fn end(&mut self, watch: WatchId) {
        self.end_where(|indexed| indexed.watch == watch);
    }

    fn end_where(&mut self, mut is_over: impl FnMut(&mut WatchedDirectory) -> bool) {
        let queue = &self.queue;
        self.all.retain_mut(|indexed| {
            let is_over = is_over(indexed);
            if is_over && let Some(queue) = queue {
                queue.unwatch(indexed.watch);
            }
            !is_over
        });
    }
}

impl WatchedDirectory {
    fn note(&mut self, name: &[u8], state: NameChange) {
        if !is_never_an_object(name) {
            self.changes.push((name.into(), state));
        }
    }

    /// Returns whether the memory limit still permits the names.
    fn has_memory(&mut self) -> bool {
        let Some(memory) = &self.memory else { return true };
        if self.bytes.abs_diff(self.counted_bytes) > UNCOUNTED_BYTES {
            self.counted_bytes = self.bytes;
            CacheMemory::of_process().resize(memory, self.bytes);
        }
        memory.has_content()
    }

    /// Records that the names are used.
    fn note_use(&mut self) {
        self.used = CoarseInstant::now();
        if let Some(memory) = &self.memory {
            memory.get();
        }
    }

    /// Applies the recorded changes to the names. Returns `false` if the directory has to be read again because too
    /// many names changed, or because a versions directory contains a symbolic link.
    fn apply(&mut self) -> bool {
        let Some(names) = &self.names else { return false };
        if self.changes.len() > MOST_CHANGES + names.len() / 4 {
            return false;
        }
        let mut is_complete = true;
        for (name, state) in std::mem::take(&mut self.changes) {
            let name = name_to_text(&name).into_owned();
            match self.unknown.contains(name.as_str()) {
                true => self.look_up(&name),
                false => is_complete &= self.apply_to_known(name, state),
            }
        }
        is_complete
    }

    /// Applies a change of a name that is absent or has a known type. Returns `false` if the directory has to be read
    /// again.
    fn apply_to_known(&mut self, name: String, state: NameChange) -> bool {
        let mut text = name;
        let is_there = match state {
            NameChange::Gone | NameChange::GoneDirectory => false,
            NameChange::Directory => true,
            NameChange::File | NameChange::Moved => match stat_in(&self.dir, &text) {
                Ok(stat) if stat.is_link && self.role == DirectoryRole::Versions => return false,
                Ok(stat) if stat.is_link => {
                    self.look_up(&text);
                    return true;
                }
                // If the name has been removed again, or is now a directory, a later change in the queue reports the
                // removal or the directory.
                stat => stat.is_ok_and(|stat| stat.is_file),
            },
            // An exchange of two names may have put another directory in this place. In the queue, the arrival of that
            // directory precedes the departure of the old one.
            NameChange::MovedDirectory => stat_in(&self.dir, &text).is_ok_and(|stat| stat.is_dir),
        };
        let directories = [NameChange::Directory, NameChange::GoneDirectory, NameChange::MovedDirectory];
        if directories.contains(&state) {
            text.push('/');
        }
        if self.role == DirectoryRole::Versions && is_stray(&text) {
            match is_there {
                true => drop(self.strays.insert(text.as_str().into())),
                false => drop(self.strays.remove(text.as_str())),
            }
        }
        self.set(&text, is_there);
        true
    }

    /// Stores the current type of a name that is, or was, a symbolic link. Earlier changes in the queue may be older
    /// than this type, but later ones lead to the same result.
    #[cold]
    fn look_up(&mut self, name: &str) {
        let (is_file, is_dir, is_link) = match stat_in(&self.dir, name) {
            Ok(stat) => (stat.is_file, stat.is_dir, stat.is_link),
            Err(_) => (false, false, false),
        };
        self.set(name, is_file || is_link);
        self.set(&format!("{name}/"), is_dir || is_link);
        match is_link {
            true => drop(self.unknown.insert(name.into())),
            false => drop(self.unknown.remove(name)),
        }
    }

    /// Adds a name to the names, or removes it from them.
    fn set(&mut self, text: &str, is_there: bool) {
        let Some(names) = &mut self.names else { return };
        let bytes = text.len() + NAME_BYTES;
        match is_there {
            true if names.insert(text.into()) => self.bytes += bytes,
            false if names.remove(text) => self.bytes -= bytes,
            _ => {}
        }
    }

    /// Returns the requested names, or `None` while the names are being read.
    fn select(&mut self, query: NameIndexQuery) -> Option<IndexedNames> {
        self.note_use();
        let from = query.from.max(query.prefix);
        let names = self.names.as_ref()?.range::<str, _>((Bound::Included(from), Bound::Unbounded));
        let mut names = names.take_while(|name| name.starts_with(query.prefix));
        let is_known =
            |name: &str| self.unknown.is_empty() || !self.unknown.contains(name.trim_end_matches('/'));
        let listed = names.by_ref().map(|text| ListedName { text, is_known: is_known(text) });
        let block = SortedNames::of_sorted(listed.take(query.most));
        Some(IndexedNames { names: block, is_last: names.next().is_none(), id: self.id })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{CWD, RenameFlags, renameat_with};

    use super::*;

    #[test]
    fn links_that_are_removed_one_by_one_are_counted_as_they_were_added() {
        let root = tempfile::tempdir().unwrap();
        let at = |number: usize| root.path().join(format!("{number:0200}"));
        (0..40).for_each(|number| std::os::unix::fs::symlink("missing", at(number)).unwrap());
        let (indexes, dir) = (NameIndexes::default(), File::open(root.path()).unwrap());
        let read = || SortedNames::read(&dir, None, |_| true);
        indexes.read(&dir, &stat(&dir).unwrap(), DirectoryRole::Objects, read).unwrap();
        let handle = DirectoryHandle::new(dir.try_clone().unwrap());
        for number in 0..40 {
            fs::remove_file(at(number)).unwrap();
            let query = NameIndexQuery { from: "", prefix: "", most: 100 };
            let found = indexes.names(&handle, DirectoryRole::Objects, query).unwrap().names;
            assert_eq!(found.len(), 2 * (39 - number));
        }
        assert!(indexes.with(|watched| watched.all.iter().all(|indexed| indexed.bytes == 0)));
    }

    /// For an exchange, the kernel queues the departure of the second name after its arrival.
    #[test]
    fn names_that_were_exchanged_stay() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for file in ["a", "b", "gone"] {
            fs::write(at(file), file).unwrap();
        }
        for dir in ["c", "d", "inside"] {
            fs::create_dir(at(dir)).unwrap();
        }
        fs::create_dir(at("inside/away")).unwrap();
        let (indexes, dir) = (NameIndexes::default(), File::open(root.path()).unwrap());
        let read = || SortedNames::read(&dir, None, |_| true);
        indexes.read(&dir, &stat(&dir).unwrap(), DirectoryRole::Objects, read).unwrap();
        let handle = DirectoryHandle::new(dir.try_clone().unwrap());
        let names = || {
            let query = NameIndexQuery { from: "", prefix: "", most: 100 };
            let found = indexes.names(&handle, DirectoryRole::Objects, query).unwrap().names;
            (0..found.len()).map(|at| found.get(at).text.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(), ["a", "b", "c/", "d/", "gone", "inside/"]);
        let exchange = |one, other| {
            renameat_with(CWD, at(one), CWD, at(other), RenameFlags::EXCHANGE).unwrap();
        };
        exchange("a", "b");
        assert_eq!(names(), ["a", "b", "c/", "d/", "gone", "inside/"]);
        exchange("c", "d");
        exchange("inside/away", "d");
        assert_eq!(names(), ["a", "b", "c/", "d/", "gone", "inside/"]);
        exchange("a", "c");
        assert_eq!(names(), ["a/", "b", "c", "d/", "gone", "inside/"]);
        exchange("a", "c");
        exchange("c", "a");
        fs::rename(at("gone"), at("inside/gone")).unwrap();
        fs::rename(at("d"), at("inside/d")).unwrap();
        assert_eq!(names(), ["a/", "b", "c", "inside/"]);
    }
}
