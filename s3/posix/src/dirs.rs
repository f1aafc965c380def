//! Keeps directories open, so that a lookup resolves one name instead of a whole path.
//!
//! If another program moves or replaces a directory, the cache detects the change within [`HOLD`]. The cache detects a
//! removed directory immediately, because its link count is then zero. S3 operations create and remove directories but
//! never move them, so the cache detects all changes by S3 operations immediately.

use std::fs::File;
use std::hash::BuildHasher;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use foldhash::HashMap;
use fordway_sys::{CoarseInstant, Errno, Mode, OFlags, stat};

use crate::errors::LEAVES_BUCKET;
use crate::index::NameIndexes;
use crate::volume::BucketsRoot;

/// The time for which a held directory is assumed to be at its path, with the precision of the kernel's clock tick.
/// During this time, a thousand operations can share the cost of opening the directory. The store may also fail to
/// detect during this time that another program has renamed the directory.
pub(crate) const HOLD: Duration = Duration::from_millis(10);
/// The maximum number of held directories.
const MOST: usize = 512;

/// The number of slots for remembered path requests; a power of two.
const SLOTS: usize = 64;

/// A cache of the directories that are used often.
pub(crate) struct DirectoryCache {
    held: RwLock<HashMap<Box<str>, DirectoryCacheEntry>>,
    /// Hashes of requested paths whose directories were not held. Only a directory that is requested again soon is
    /// added to `held`. A walk over many directories requests each of them only once, and must not fill `held`.
    asked: [AtomicU64; SLOTS],
    /// The names of directories that are listed often.
    pub(crate) indexes: NameIndexes,
}

impl Default for DirectoryCache {
    fn default() -> Self {
        DirectoryCache {
            held: RwLock::default(),
            asked: [const { AtomicU64::new(0) }; SLOTS],
            indexes: NameIndexes::default(),
        }
    }
}

#[derive(Clone)]
struct DirectoryCacheEntry {
    dir: Arc<File>,
    opened: CoarseInstant,
    refusal: Option<Errno>,
}

/// An open directory, in which names are looked up, created and removed.
#[derive(Clone)]
pub(crate) struct DirectoryHandle {
    file: Arc<File>,
    /// Whether the directory was just opened, rather than found among the held directories.
    is_fresh: bool,
    /// The reason why nothing in the directory may be changed: its path leads through another user's symbolic link, or
    /// out of the bucket.
    refusal: Option<Errno>,
}

impl AsFd for DirectoryHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl DirectoryHandle {
    /// Wraps a directory that was just opened.
    pub(crate) fn new(opened: File) -> Self {
        DirectoryHandle { file: Arc::new(opened), is_fresh: true, refusal: None }
    }

    /// Returns the directory for use by callers that create or remove names in it. Errors: `LOOP` if its path leads
    /// through a symbolic link that belongs neither to the caller nor to root, or `LEAVES_BUCKET`.
    pub(crate) fn for_change(self) -> Result<Self, Errno> {
        self.refusal.map_or(Ok(self), Err)
    }

    /// Returns whether the directory may only be read.
    pub(crate) fn is_read_only(&self) -> bool {
        self.refusal.is_some()
    }

    /// Returns whether this directory was removed while it was held. A name that is missing from a removed directory
    /// may exist in a new directory at the same path. Cost: one `fstat`.
    pub(crate) fn is_gone(&self) -> bool {
        !self.is_fresh && self.is_removed()
    }

    /// Returns the open directory (`O_PATH`).
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Returns a number that is unique among the directories held for the same path at the same time. The number is
    /// never 0.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.file).addr()
    }

    /// Returns whether both handles refer to the same directory and that directory still exists. Cost: one or two
    /// `fstat`.
    pub(crate) fn is_same_as(&self, other: &DirectoryHandle) -> bool {
        let Ok(this) = stat(self) else { return false };
        let is_same = || stat(other).is_ok_and(|of| (of.device, of.inode) == (this.device, this.inode));
        this.links > 0 && (Arc::ptr_eq(&self.file, &other.file) || is_same())
    }

    /// Returns whether the directory has been removed since it was opened. Cost: one `fstat`.
    pub(crate) fn is_removed(&self) -> bool {
        stat(self).map_or(true, |stat| stat.links == 0)
    }
}

impl DirectoryCache {
    /// Returns the directory at `path` beneath `root`, opening it unless it is held. Cost for a directory in use: one
    /// `openat2` every 10 ms.
    pub(crate) fn open(&self, root: &BucketsRoot, path: &str) -> Result<DirectoryHandle, Errno> {
        if let Some(dir) = self.held(path) {
            return Ok(dir);
        }
        let dir = look_up(root, path)?;
        if self.is_asked_again(path) {
            self.hold(path, &dir);
        }
        Ok(dir)
    }

    /// Wraps `opened`, the directory at `path`. If this is not the first request for the directory, the cache keeps it
    /// open. The path must not lead through another user's symbolic link or out of the bucket.
    pub(crate) fn keep(&self, path: &str, opened: File) -> DirectoryHandle {
        let dir = DirectoryHandle::new(opened);
        if self.is_asked_again(path) {
            self.hold(path, &dir);
        }
        dir
    }

    /// Returns the directory at `path` if the cache keeps it open, or if it is used often enough to be kept open.
    /// Intended for callers that can do without the directory.
    pub(crate) fn open_if_busy(
        &self,
        root: &BucketsRoot,
        path: &str,
    ) -> Result<Option<DirectoryHandle>, Errno> {
        if let Some(dir) = self.held(path) {
            return Ok(Some(dir));
        }
        if !self.is_asked_again(path) {
            return Ok(None);
        }
        let dir = look_up(root, path)?;
        self.hold(path, &dir);
        Ok(Some(dir))
    }

    /// Returns whether the previous request in the slot of `path` was also for `path`. Remembers this request.
    fn is_asked_again(&self, path: &str) -> bool {
        let all = self.held.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let hash = all.hasher().hash_one(path);
        self.asked[hash as usize % SLOTS].swap(hash, Ordering::Relaxed) == hash
    }

    /// Forgets the last request for `path`: the same caller is about to repeat the request, which must not count as a
    /// second use.
    pub(crate) fn unask(&self, path: &str) {
        let all = self.held.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let hash = all.hasher().hash_one(path);
        // If another path has taken the slot in the meantime, the slot remains unchanged.
        let slot = &self.asked[hash as usize % SLOTS];
        let _ = slot.compare_exchange(hash, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn hold(&self, path: &str, dir: &DirectoryHandle) {
        self.indexes.end_unused();
        let DirectoryHandle { file, refusal, .. } = dir.clone();
        let held = DirectoryCacheEntry { dir: file, opened: CoarseInstant::now(), refusal };
        let mut all = self.held.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        if all.len() >= MOST {
            all.retain(|_, held| held.opened.elapsed() < HOLD);
        }
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(path.into(), held);
    }

    /// Closes the directories that were not in use for `unused`, so that other programs can unmount their file systems.
    /// The next use opens the directory again, as for a directory that was opened more than 10 ms ago.
    pub(crate) fn close_unused(&self, unused: Duration) {
        self.indexes.end_unused();
        let mut all = self.held.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        all.retain(|_, held| held.opened.elapsed() < unused);
    }

    /// Forgets the directory at `path`, which no longer exists.
    pub(crate) fn forget(&self, path: &str) {
        self.held.write().unwrap_or_else(|poisoned| poisoned.into_inner()).remove(path);
    }

    /// Forgets all directories. A thread that begins to act as another user must call this method, because the user
    /// determines which symbolic links may be followed for changes.
    pub(crate) fn forget_all(&self) {
        self.held.write().unwrap_or_else(|poisoned| poisoned.into_inner()).clear();
    }

    fn held(&self, path: &str) -> Option<DirectoryHandle> {
        let all = self.held.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let held = all.get(path)?;
        let DirectoryCacheEntry { dir, refusal, .. } = held;
        (held.opened.elapsed() < HOLD).then(|| DirectoryHandle {
            file: dir.clone(),
            is_fresh: false,
            refusal: *refusal,
        })
    }
}

/// Opens the directory at `path`. If another user's symbolic link, or a symbolic link out of the bucket, leads to the
/// directory, it is opened only for reading.
fn look_up(root: &BucketsRoot, path: &str) -> Result<DirectoryHandle, Errno> {
    match root.open_to_change(path) {
        Err(errno @ (Errno::LOOP | LEAVES_BUCKET)) => {
            let dir = root.open_beneath(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
            Ok(DirectoryHandle { refusal: Some(errno), ..DirectoryHandle::new(dir) })
        }
        opened => opened.map(DirectoryHandle::new),
    }
}
