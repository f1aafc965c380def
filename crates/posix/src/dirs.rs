//! Directories held open, so that a look-up walks one name and not a path.
//!
//! A directory that another program moves or replaces is found again within [`HOLD`]; one that was
//! removed is found at once, because the kernel knows a removed directory. What S3 operations do to
//! directories (make, prune) is of the second kind, so they never see a stale one.

use std::cell::Cell;
use std::fs::File;
use std::hash::BuildHasher;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use foldhash::HashMap;
use fordway_sys::{Errno, Mode, OFlags, Root, Tick, stat};

/// How long a directory is trusted to be where its path says, give or take a tick of the kernel. A thousand operations share the cost
/// of opening it, and a program that renames directories beneath a running store waits no longer.
pub(crate) const HOLD: Duration = Duration::from_millis(10);
/// The most directories held.
const MOST: usize = 512;

/// Paths whose last use is remembered; a power of two.
const SLOTS: usize = 64;

/// The directories that were used last.
pub(crate) struct Dirs {
    /// Tells these from those of other stores.
    id: u64,
    held: RwLock<HashMap<Box<str>, Held>>,
    /// Hashes of paths that were asked for and not held: one that is asked for again soon is worth
    /// holding, while a walk over many directories leaves the table alone.
    asked: [AtomicU64; SLOTS],
    /// How often one was forgotten. What threads took before that is not used again.
    forgotten: AtomicU64,
}

impl Default for Dirs {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Dirs {
            id,
            held: RwLock::default(),
            asked: [const { AtomicU64::new(0) }; SLOTS],
            forgotten: AtomicU64::new(0),
        }
    }
}

#[derive(Clone)]
struct Held {
    dir: Arc<File>,
    opened: Tick,
}

impl Held {
    fn is_good(&self) -> bool {
        self.opened.elapsed() < HOLD
    }
}

/// A directory in the hands of one thread.
#[derive(Clone)]
struct Taken {
    /// [`Dirs::id`] and [`Dirs::forgotten`] at the time.
    of: (u64, u64),
    path: Box<str>,
    held: Held,
}

thread_local! {
    /// The one that the thread used last. Most requests go where the one before went, and taking it
    /// from here needs none of the atomic operations of the table, on which all threads meet.
    static LAST: Cell<Option<Taken>> = const { Cell::new(None) };
}

/// A directory to work in.
#[derive(Clone)]
pub(crate) struct Dir {
    /// `None` only while it is dropped.
    taken: Option<Taken>,
    /// Whether it was opened just now, rather than held.
    is_fresh: bool,
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.taken.as_ref().expect("it is not being dropped").held.dir.as_fd()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // At the end of a thread there may be no place for it any more.
        let _ = LAST.try_with(|last| last.set(self.taken.take()));
    }
}

impl Dir {
    /// Whether a name that is missing in it might be there after all, because this directory was
    /// removed while it was held. Cost: one `fstat`.
    pub(crate) fn is_gone(&self) -> bool {
        !self.is_fresh && self.is_removed()
    }

    /// Whether it was removed, even if just after it was opened. Cost: one `fstat`.
    pub(crate) fn is_removed(&self) -> bool {
        stat(self).map_or(true, |stat| stat.links == 0)
    }
}

impl Dirs {
    /// The directory at `path` beneath `root`. Cost: one `openat2` each 10 ms, else none.
    pub(crate) fn open(&self, root: &Root, path: &str) -> Result<Dir, Errno> {
        match self.held(path) {
            Some(dir) => Ok(dir),
            None => self.open_fresh(root, path, self.is_asked_again(path)),
        }
    }

    /// The directory at `path` if it is held, or used often enough to be worth it: for callers that
    /// can do without.
    pub(crate) fn open_if_busy(&self, root: &Root, path: &str) -> Result<Option<Dir>, Errno> {
        match self.held(path) {
            Some(dir) => Ok(Some(dir)),
            None if self.is_asked_again(path) => self.open_fresh(root, path, true).map(Some),
            None => Ok(None),
        }
    }

    fn open_fresh(&self, root: &Root, path: &str, is_busy: bool) -> Result<Dir, Errno> {
        let dir = root.open_beneath(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
        let held = Held { dir: Arc::new(dir), opened: Tick::now() };
        if is_busy {
            self.hold(path, held.clone());
        }
        Ok(Dir { taken: Some(Taken { of: self.now(), path: path.into(), held }), is_fresh: true })
    }

    /// Whether `path` was asked for before, and no other of its slot since.
    fn is_asked_again(&self, path: &str) -> bool {
        let all = self.held.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let hash = all.hasher().hash_one(path);
        self.asked[hash as usize % SLOTS].swap(hash, Ordering::Relaxed) == hash
    }

    fn hold(&self, path: &str, held: Held) {
        let mut all = self.held.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        if all.len() >= MOST {
            all.retain(|_, held| held.is_good());
        }
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(path.into(), held);
    }

    /// Forgets the directory at `path`, which turned out to be gone.
    pub(crate) fn forget(&self, path: &str) {
        self.held.write().unwrap_or_else(|poisoned| poisoned.into_inner()).remove(path);
        self.forgotten.fetch_add(1, Ordering::Release);
    }

    fn now(&self) -> (u64, u64) {
        (self.id, self.forgotten.load(Ordering::Acquire))
    }

    fn held(&self, path: &str) -> Option<Dir> {
        let now = self.now();
        let is_it = |last: &Taken| last.of == now && *last.path == *path && last.held.is_good();
        let taken = match LAST.take().filter(is_it) {
            Some(last) => last,
            None => {
                let all = self.held.read().unwrap_or_else(|poisoned| poisoned.into_inner());
                let held = all.get(path).filter(|held| held.is_good())?.clone();
                Taken { of: now, path: path.into(), held }
            }
        };
        Some(Dir { taken: Some(taken), is_fresh: false })
    }
}
