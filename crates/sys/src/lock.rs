//! Locks between threads, processes and nodes: one byte of a lock file each.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use rustix::io::{Errno, Result};

use crate::call;
use crate::forks::Process;
use crate::xattr::last_errno;

/// Locks within the process, so that threads which share the open lock file exclude each other too.
const STRIPES: usize = 256;

/// Waits for the whole of `file`, which must be open for writing, and holds it until the last
/// descriptor of this open file is closed. Errors: `NOLCK` where the file system has no locks.
pub fn lock_file(file: impl AsFd) -> Result<()> {
    // A length of 0 is "to the end, wherever that will be".
    loop {
        match control(file.as_fd(), libc::F_OFD_SETLKW, libc::F_WRLCK, 0, 0) {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

/// A table of byte locks on one open file (open-file-description locks, Linux 3.15). Whether they
/// hold between nodes is up to the file system's mount.
#[derive(Debug)]
pub struct ByteLocks {
    file: OwnedFd,
    id: u64,
    opened_by: Process,
    stripes: Vec<Mutex<()>>,
}

/// A byte held; dropping it lets it go.
#[derive(Debug)]
pub struct LockGuard<'l> {
    locks: &'l ByteLocks,
    byte: i64,
    _stripe: MutexGuard<'l, ()>,
}

impl ByteLocks {
    /// Locks on `file`, which must be open for writing and is never written.
    pub fn new(file: OwnedFd) -> Self {
        static TABLES: AtomicU64 = AtomicU64::new(1);
        ByteLocks {
            file,
            id: TABLES.fetch_add(1, Ordering::Relaxed),
            opened_by: Process::current(),
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
        }
    }

    /// What tells it from every other table of this process, those that are closed included; never 0.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Waits for the byte at `offset` and holds it. Cost: one `fcntl`, and one when it is let go.
    /// Errors: `NOLCK` where the file system has no locks.
    pub fn lock(&self, offset: u32) -> Result<LockGuard<'_>> {
        let stripe = &self.stripes[offset as usize % STRIPES];
        // The mutex guards no data, so one that a panic poisoned is as good as new.
        let stripe = stripe.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let byte = i64::from(offset);
        while let Err(error) = self.control(libc::F_OFD_SETLKW, libc::F_WRLCK, byte) {
            if error != Errno::INTR {
                return Err(error);
            }
        }
        Ok(LockGuard { locks: self, byte, _stripe: stripe })
    }

    /// Holds the byte at `offset` if nobody else does, in this process or another.
    /// Cost and errors: as [`ByteLocks::lock`].
    pub fn try_lock(&self, offset: u32) -> Result<Option<LockGuard<'_>>> {
        let Ok(stripe) = self.stripes[offset as usize % STRIPES].try_lock() else { return Ok(None) };
        let byte = i64::from(offset);
        match self.control(libc::F_OFD_SETLK, libc::F_WRLCK, byte) {
            Ok(()) => Ok(Some(LockGuard { locks: self, byte, _stripe: stripe })),
            Err(Errno::AGAIN | Errno::ACCESS) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Whether this process made it. One that a parent made excludes everybody but that parent, with
    /// which the open file is shared. Cost: none.
    pub fn is_of_this_process(&self) -> bool {
        self.opened_by.is_current()
    }

    /// Whether the lock file still has a name, so that others who open it come to the same locks.
    /// Cost: one `fstat`.
    pub fn is_current(&self) -> Result<bool> {
        crate::stat(&self.file).map(|stat| stat.links > 0)
    }

    fn control(&self, command: libc::c_int, kind: libc::c_int, byte: i64) -> Result<()> {
        control(self.file.as_fd(), command, kind, byte, 1)
    }
}

fn control(
    file: BorrowedFd<'_>,
    command: libc::c_int,
    kind: libc::c_int,
    start: i64,
    length: i64,
) -> Result<()> {
    call::point("fcntl")?;
    // SAFETY: `flock` is plain data, for which all zeros is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = start;
    lock.l_len = length;
    // SAFETY: the descriptor is open for as long as it is borrowed, and `lock` outlives the call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const lock) };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

impl Drop for LockGuard<'_> {
    fn drop(&mut self) {
        // Unlocking a byte that is held cannot fail; were it to, closing the file lets go of it.
        let _ = self.locks.control(libc::F_OFD_SETLK, libc::F_UNLCK, self.byte);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::UnsafeCell;
    use std::sync::Arc;

    use super::*;

    struct Counter(UnsafeCell<u64>);
    // SAFETY: the test touches the counter only under the lock it proves.
    unsafe impl Sync for Counter {}

    /// Two tables on the same file stand for two processes, two threads on each for threads.
    #[test]
    fn excludes_threads_and_open_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("locks");
        let counter = Arc::new(Counter(UnsafeCell::new(0)));
        let tables: Vec<_> = (0..2)
            .map(|_| {
                let options =
                    std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(&path);
                Arc::new(ByteLocks::new(options.unwrap().into()))
            })
            .collect();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (table, counter) = (tables[thread % 2].clone(), counter.clone());
                scope.spawn(move || {
                    for _ in 0..2_000 {
                        let _held = table.lock(7).unwrap();
                        // SAFETY: the lock is held.
                        unsafe { *counter.0.get() += 1 };
                    }
                });
            }
        });
        // SAFETY: all threads have ended.
        assert_eq!(unsafe { *counter.0.get() }, 8_000);
    }
}
