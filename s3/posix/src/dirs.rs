//! Directories held open, so that a look-up walks one name and not a path.
//!
//! A directory that another program moves or replaces is found again within [`HOLD`]; one that was
//! removed is found at once, because the kernel knows a removed directory. What S3 operations do to
//! directories (make, prune) is of the second kind, so they never see a stale one.

use std::fs::File;
use std::hash::BuildHasher;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use foldhash::HashMap;
use fordway_sys::{CoarseInstant, Errno, Mode, OFlags, stat};

use crate::volume::BucketTree;

/// How long a directory is trusted to be where its path says, give or take a tick of the kernel. A thousand operations share the cost
/// of opening it, and a program that renames directories beneath a running store waits no longer.
pub(crate) const HOLD: Duration = Duration::from_millis(10);
/// The most directories held.
const MOST: usize = 512;

/// Paths whose last use is remembered; a power of two.
const SLOTS: usize = 64;

/// The directories that were used last.
pub(crate) struct DirectoryCache {
    held: RwLock<HashMap<Box<str>, HeldDirectory>>,
    /// Hashes of paths that were asked for and not held: one that is asked for again soon is worth
    /// holding, while a walk over many directories leaves the table alone.
    asked: [AtomicU64; SLOTS],
}

impl Default for DirectoryCache {
    fn default() -> Self {
        DirectoryCache { held: RwLock::default(), asked: [const { AtomicU64::new(0) }; SLOTS] }
    }
}

#[derive(Clone)]
struct HeldDirectory {
    dir: Arc<File>,
    opened: CoarseInstant,
}

/// A directory to work in.
#[derive(Clone)]
pub(crate) struct WorkDirectory {
    file: Arc<File>,
    /// Whether it was opened just now, rather than held.
    is_fresh: bool,
}

impl AsFd for WorkDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl WorkDirectory {
    /// One that was opened just now.
    pub(crate) fn new(opened: File) -> Self {
        WorkDirectory { file: Arc::new(opened), is_fresh: true }
    }

    /// Whether a name that is missing in it might be there after all, because this directory was
    /// removed while it was held. Cost: one `fstat`.
    pub(crate) fn is_gone(&self) -> bool {
        !self.is_fresh && self.is_removed()
    }

    /// Tells directories that were opened for one path apart, as long as they are held. Never 0.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.file).addr()
    }

    /// Whether both are one directory, still there. Cost: two `fstat`, or one.
    pub(crate) fn is_same_as(&self, other: &WorkDirectory) -> bool {
        let Ok(this) = stat(self) else { return false };
        let is_same = || stat(other).is_ok_and(|of| (of.device, of.inode) == (this.device, this.inode));
        this.links > 0 && (Arc::ptr_eq(&self.file, &other.file) || is_same())
    }

    /// Whether it was removed, even if just after it was opened. Cost: one `fstat`.
    pub(crate) fn is_removed(&self) -> bool {
        stat(self).map_or(true, |stat| stat.links == 0)
    }
}

impl DirectoryCache {
    /// The directory at `path` beneath `root`. Cost: one `openat2` each 10 ms, else none.
    pub(crate) fn open(&self, root: &BucketTree, path: &str) -> Result<WorkDirectory, Errno> {
        if let Some(dir) = self.held(path) {
            return Ok(WorkDirectory { file: dir, is_fresh: false });
        }
        Ok(self.keep(path, root.open_beneath(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?))
    }

    /// `opened`, the directory at `path`; held if it was asked for before.
    pub(crate) fn keep(&self, path: &str, opened: File) -> WorkDirectory {
        let file = Arc::new(opened);
        if self.is_asked_again(path) {
            self.hold(path, &file);
        }
        WorkDirectory { file, is_fresh: true }
    }

    /// The directory at `path` if it is held, or used often enough to be worth it: for callers that
    /// can do without.
    pub(crate) fn open_if_busy(&self, root: &BucketTree, path: &str) -> Result<Option<WorkDirectory>, Errno> {
        if let Some(dir) = self.held(path) {
            return Ok(Some(WorkDirectory { file: dir, is_fresh: false }));
        }
        if !self.is_asked_again(path) {
            return Ok(None);
        }
        let dir = root.open_beneath(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
        let file = Arc::new(dir);
        self.hold(path, &file);
        Ok(Some(WorkDirectory { file, is_fresh: true }))
    }

    /// Whether `path` was asked for before, and no other of its slot since.
    fn is_asked_again(&self, path: &str) -> bool {
        let all = self.held.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let hash = all.hasher().hash_one(path);
        self.asked[hash as usize % SLOTS].swap(hash, Ordering::Relaxed) == hash
    }

    /// Forgets that `path` was asked for, because the same caller comes again for the same.
    pub(crate) fn unask(&self, path: &str) {
        let all = self.held.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let hash = all.hasher().hash_one(path);
        // Where another path has taken the slot, that stays.
        let slot = &self.asked[hash as usize % SLOTS];
        let _ = slot.compare_exchange(hash, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn hold(&self, path: &str, dir: &Arc<File>) {
        let held = HeldDirectory { dir: dir.clone(), opened: CoarseInstant::now() };
        let mut all = self.held.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        if all.len() >= MOST {
            all.retain(|_, held| held.opened.elapsed() < HOLD);
        }
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(path.into(), held);
    }

    /// Forgets the directory at `path`, which turned out to be gone.
    pub(crate) fn forget(&self, path: &str) {
        self.held.write().unwrap_or_else(|poisoned| poisoned.into_inner()).remove(path);
    }

    fn held(&self, path: &str) -> Option<Arc<File>> {
        let all = self.held.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let held = all.get(path)?;
        (held.opened.elapsed() < HOLD).then(|| held.dir.clone())
    }
}
