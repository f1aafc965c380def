//! Walks the keys whose encoded forms are paths below a directory, in the byte order of the keys. There are two such
//! directories: `odd/`, and `versions/`.
//!
//! A short encoded key is a name in the top directory. A long encoded key continues in a subdirectory, whose name ends
//! in `%`. The walk reads a subdirectory only when it reaches the first key that the subdirectory may contain. A page
//! of a listing therefore does not read the subdirectories of keys on other pages.

use std::fs::File;
use std::sync::{Arc, Mutex};

use fordway_store::{Bucket, ErrorKind, Key, Result};
use fordway_sys::{EntryKind, Errno, FileStat, FileSystemSharing};

use crate::PosixStoreState;
use crate::entries::collect_entries;
use crate::errors::{from_errno, is_stale};
use crate::layout::{decode, decode_start, is_left_behind, is_part_of_name, join, odd_dir, versions_dir};
use crate::memory::{CacheMemory, CacheOwner, CacheSlot};
use crate::names::{FEWEST, MOST_BYTES, MOST_DIRS, state_before};
use crate::private::{is_settled, times};

/// A directory of encoded keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EncodedKeyTree {
    /// The objects that are not at their plain paths. The last part of a key is a file.
    Odd,
    /// The old versions. The last part of a key is a directory.
    Versions,
}

/// The keys and subdirectories in one directory of encoded keys.
#[derive(Default)]
struct EncodedDirectory {
    /// The keys, sorted.
    keys: Vec<Key>,
    /// The subdirectories, sorted by the start of their keys.
    parts: Vec<EncodedSubdirectory>,
}

/// A subdirectory, which contains the rest of long keys.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct EncodedSubdirectory {
    /// The bytes that all keys in the subdirectory begin with.
    start: Box<[u8]>,
    /// The path of the subdirectory, relative to the top directory.
    path: Box<str>,
}

/// A directory with its state when it was read.
struct CachedDirectory {
    state: (u64, u64, (i64, i64)),
    content: Arc<CacheSlot<EncodedDirectory>>,
}

/// A cache of recently read directories of encoded keys, the most recently read last.
#[derive(Default)]
pub(crate) struct EncodedKeyCache {
    all: Mutex<Vec<CachedDirectory>>,
    pub(crate) owner: CacheOwner,
}

impl EncodedKeyCache {
    /// Returns the content of the directory at `path`, relative to the top of `tree`. Caches the content as long as the
    /// directory is unchanged, unless other nodes may change the file system.
    fn read(
        &self,
        inner: &PosixStoreState,
        (bucket, tree): (&Bucket, EncodedKeyTree),
        path: &str,
    ) -> Result<Arc<EncodedDirectory>> {
        let top = match tree {
            EncodedKeyTree::Odd => odd_dir(bucket),
            EncodedKeyTree::Versions => versions_dir(bucket),
        };
        let full = if path.is_empty() { top } else { join(&top, path) };
        match self.try_read(inner, (bucket, tree), path, &full) {
            // Another node has removed the directory after it was opened, and may have created it again.
            Err(error) if is_stale(&error) => {
                inner.volume.refresh_dirs(&full);
                match self.try_read(inner, (bucket, tree), path, &full) {
                    Err(error) if is_stale(&error) => Ok(Arc::default()),
                    read => read,
                }
            }
            read => read,
        }
    }

    /// Reads the directory as [`EncodedKeyCache::read`] does; `full` is its path relative to the root. Errors: also
    /// `ESTALE` if another node removes the directory.
    fn try_read(
        &self,
        inner: &PosixStoreState,
        (bucket, tree): (&Bucket, EncodedKeyTree),
        path: &str,
        full: &str,
    ) -> Result<Arc<EncodedDirectory>> {
        let volume = &inner.volume;
        let dir = match volume.open_to_list(full) {
            Ok(Some(dir)) => dir,
            Ok(None) => return Ok(Arc::default()),
            // A user who makes a directory unreadable, or replaces it with a symbolic link, must not hide other users'
            // objects.
            Err(error) if !path.is_empty() && error.kind() == ErrorKind::AccessDenied => {
                return Ok(Arc::default());
            }
            Err(error) => return Err(error),
        };
        let failed = |errno| from_errno(errno, "reading a directory");
        let sharing = volume.contents(bucket)?.sharing;
        let stat = state_before(&dir, sharing).map_err(failed)?;
        if let Some(known) = self.recall(&stat).filter(|_| !sharing.is_shared()) {
            return Ok(known);
        }
        volume.freshen_names(&dir, sharing);
        // This check must precede the read. Otherwise, a change during the read might leave the directory with the
        // times in `stat`.
        let shows_changes = !sharing.is_shared() && is_settled(&stat);
        let before = Some(&stat).filter(|_| !sharing.is_shared());
        let (mut content, is_replacing) = EncodedDirectory::read(&dir, before, tree, path).map_err(failed)?;
        if is_replacing && sharing == FileSystemSharing::Nfs && inner.settle_names(bucket, &dir) {
            match EncodedDirectory::read(&dir, None, tree, path) {
                Ok((further, _)) => content.extend(further),
                // Another node has removed the directory, which has no further names.
                Err(Errno::STALE | Errno::NOENT) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        content.sort();
        let content = Arc::new(content);
        if shows_changes {
            self.keep(&stat, &content);
        }
        Ok(content)
    }

    fn recall(&self, stat: &FileStat) -> Option<Arc<EncodedDirectory>> {
        let all = self.all.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        all.iter().find(|cached| cached.state == state_of(stat)).and_then(|cached| cached.content.get())
    }

    /// Caches a directory whose state was `stat` before the directory was read. Every change since then alters this
    /// state. Does not cache a small directory.
    fn keep(&self, stat: &FileStat, content: &Arc<EncodedDirectory>) {
        let EncodedDirectory { keys, parts } = &**content;
        if keys.len() + parts.len() < FEWEST {
            return;
        }
        let of_keys = keys.iter().map(|key| key.as_str().len() + size_of::<Key>());
        let of_parts =
            parts.iter().map(|part| part.start.len() + part.path.len() + size_of::<EncodedSubdirectory>());
        let bytes = of_keys.sum::<usize>() + of_parts.sum::<usize>();
        if bytes > MOST_BYTES {
            return;
        }
        let content = CacheMemory::of_process().keep(&self.owner, content.clone(), bytes);
        let mut all = self.all.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        all.retain(|cached| (cached.state.0, cached.state.1) != (stat.device, stat.inode));
        all.push(CachedDirectory { state: state_of(stat), content });
        if all.len() > MOST_DIRS {
            all.remove(0);
        }
    }
}

fn state_of(stat: &FileStat) -> (u64, u64, (i64, i64)) {
    (stat.device, stat.inode, times(stat))
}

/// A directory that the walk has reached, and the positions of the keys and subdirectories that come next.
struct ReachedDirectory {
    content: Arc<EncodedDirectory>,
    key: usize,
    part: usize,
}

impl ReachedDirectory {
    fn key(&self) -> Option<&Key> {
        self.content.keys.get(self.key)
    }

    fn part(&self) -> Option<&EncodedSubdirectory> {
        self.content.parts.get(self.part)
    }
}

/// A walk through the keys that begin with a given prefix and sort after a given key.
pub(crate) struct EncodedKeyWalk<'w> {
    inner: &'w PosixStoreState,
    bucket: &'w Bucket,
    tree: EncodedKeyTree,
    prefix: &'w str,
    start_after: Option<String>,
    /// The prefix of the keys that were skipped last.
    skipped: Option<String>,
    reached: Vec<ReachedDirectory>,
    /// The next key, if it has been found but not returned yet.
    next: Option<Key>,
}

impl<'w> EncodedKeyWalk<'w> {
    /// Starts a walk. Cost: an `openat2`, an `fstat` and a `close`; if the top directory has changed, also a read of
    /// its names.
    pub(crate) fn start(
        inner: &'w PosixStoreState,
        bucket: &'w Bucket,
        tree: EncodedKeyTree,
        (prefix, start_after): (&'w str, Option<&str>),
    ) -> Result<Self> {
        let (skipped, reached, next) = (None, Vec::new(), None);
        let start_after = start_after.map(str::to_owned);
        let mut walk = EncodedKeyWalk { inner, bucket, tree, prefix, start_after, skipped, reached, next };
        walk.enter("")?;
        Ok(walk)
    }

    /// Returns the next key without moving past it.
    pub(crate) fn peek(&mut self) -> Result<Option<&Key>> {
        if self.next.is_none() {
            self.next = self.find_next()?;
        }
        Ok(self.next.as_ref())
    }

    /// Returns the next key, and moves past it. Cost: none, except before the first key of a subdirectory: one read of
    /// that subdirectory.
    pub(crate) fn next(&mut self) -> Result<Option<Key>> {
        self.peek()?;
        Ok(self.next.take())
    }

    /// Moves past all keys that begin with `prefix`. The key returned last must begin with `prefix`.
    pub(crate) fn skip(&mut self, prefix: &str) {
        let is_over = |key: &Key| key.as_str() < prefix || key.as_str().starts_with(prefix);
        for dir in &mut self.reached {
            dir.key = dir.content.keys.partition_point(is_over);
        }
        self.skipped = Some(prefix.to_owned());
        self.next = None;
    }

    fn find_next(&mut self) -> Result<Option<Key>> {
        loop {
            self.reached.retain(|dir| dir.key().is_some() || dir.part().is_some());
            // All keys in a subdirectory begin with its `start`, so no key sorts before `start`.
            let parts =
                self.reached.iter().enumerate().filter_map(|(at, dir)| Some((&*dir.part()?.start, at)));
            let keys = self
                .reached
                .iter()
                .enumerate()
                .filter_map(|(at, dir)| Some((dir.key()?.as_str().as_bytes(), at)));
            match (parts.min(), keys.min()) {
                (Some((start, at)), key) if key.is_none_or(|(key, _)| start <= key) => {
                    let (is_needed, path) =
                        (self.may_contain(start), self.reached[at].part().map(|part| part.path.clone()));
                    self.reached[at].part += 1;
                    if let Some(path) = path.filter(|_| is_needed) {
                        self.enter(&path)?;
                    }
                }
                (_, Some((key, at))) => {
                    if !key.starts_with(self.prefix.as_bytes()) {
                        // This key and all further keys sort after the keys with the prefix.
                        self.reached.clear();
                        return Ok(None);
                    }
                    let found = self.reached[at].key().cloned();
                    self.reached[at].key += 1;
                    return Ok(found);
                }
                _ => return Ok(None),
            }
        }
    }

    /// Returns whether the walk can reach a key that begins with `start`.
    fn may_contain(&self, start: &[u8]) -> bool {
        let prefix = self.prefix.as_bytes();
        let is_after = |after: &str| start > after.as_bytes() || after.as_bytes().starts_with(start);
        let is_skipped = self.skipped.as_ref().is_some_and(|skipped| start.starts_with(skipped.as_bytes()));
        let has_prefix = start.starts_with(prefix) || prefix.starts_with(start);
        has_prefix && !is_skipped && self.start_after.as_deref().is_none_or(is_after)
    }

    /// Adds the directory at `path`, relative to the top directory, to the directories that the walk has reached.
    fn enter(&mut self, path: &str) -> Result<()> {
        let content = self.inner.encoded_keys.read(self.inner, (self.bucket, self.tree), path)?;
        let is_before = |key: &Key| {
            let key = key.as_str();
            let is_skipped = |skipped: &String| key < skipped.as_str() || key.starts_with(skipped.as_str());
            key < self.prefix
                || self.start_after.as_deref().is_some_and(|start| key <= start)
                || self.skipped.as_ref().is_some_and(is_skipped)
        };
        let key = content.keys.partition_point(is_before);
        let part = content.parts.iter().position(|part| self.may_contain(&part.start));
        let part = part.unwrap_or(content.parts.len());
        self.reached.push(ReachedDirectory { content, key, part });
        Ok(())
    }
}

impl EncodedDirectory {
    /// Reads the directory at `path`, relative to the top directory, as [`collect_entries`] does. Also returns whether
    /// the directory contains the hidden name of a file that was removed or replaced while it was open.
    fn read(
        dir: &File,
        before: Option<&FileStat>,
        tree: EncodedKeyTree,
        path: &str,
    ) -> Result<(Self, bool), Errno> {
        let mut is_replacing = false;
        let content = collect_entries(dir, before, EncodedDirectory::default, |content, name, kind| {
            is_replacing |= is_left_behind(name);
            if let Ok(name) = str::from_utf8(name) {
                content.add(tree, if path.is_empty() { name.to_owned() } else { join(path, name) }, kind);
            }
        })?;
        Ok((content, is_replacing))
    }

    fn extend(&mut self, further: EncodedDirectory) {
        self.keys.extend(further.keys);
        self.parts.extend(further.parts);
    }

    /// Sorts the entries. An entry that was added twice is kept once.
    fn sort(&mut self) {
        self.keys.sort_unstable();
        self.keys.dedup();
        self.parts.sort_unstable();
        self.parts.dedup();
    }

    /// Adds the entry at `path`, relative to the top directory, if the entry belongs to a key.
    fn add(&mut self, tree: EncodedKeyTree, path: String, kind: EntryKind) {
        let name = path.rsplit('/').next().unwrap_or_default();
        if is_part_of_name(name) {
            if kind != EntryKind::File
                && let Some(start) = decode_start(&path)
            {
                self.parts.push(EncodedSubdirectory { start: start.into(), path: path.into() });
            }
            return;
        }
        let is_key = match tree {
            EncodedKeyTree::Odd => kind != EntryKind::Dir,
            EncodedKeyTree::Versions => kind != EntryKind::File,
        };
        self.keys.extend(decode(&path).filter(|_| is_key));
    }
}
