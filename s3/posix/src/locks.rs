//! The lock of a key, held by every operation that may replace or remove it.

use std::sync::{Arc, Mutex, MutexGuard};

use foldhash::HashMap;
use fordway_store::{Bucket, Error, ErrorKind, Key, Result};
use fordway_sys::{ByteLocks, Errno};

use crate::SharedStore;
use crate::errors::from_errno;
use crate::layout::{LOCKS, lock_byte};
use crate::private::AreaContents;
use crate::site::require_fit;
use crate::stage::MAX_RACES;
use crate::volume::{RootVolume, unreadable};

/// The most lock tables that are kept open for later.
const MOST_TABLES: usize = 128;

/// What a lock may be done without for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LockWaiver {
    Nothing,
    Room,
}

/// The lock table of every bucket that this process has overwritten or deleted in.
#[derive(Default)]
pub(crate) struct BucketLocks {
    tables: Mutex<HashMap<Bucket, Arc<ByteLocks>>>,
}

impl BucketLocks {
    /// Errors: `NotImplemented` on a mount that keeps its locks to this node, and errors of the file system.
    fn of(&self, volume: &RootVolume, bucket: &Bucket) -> Result<Arc<ByteLocks>> {
        if let Some(locks) = self.tables().get(bucket).filter(|locks| locks.is_of_this_process()) {
            return Ok(locks.clone());
        }
        let unfit = volume.contents_for_write(bucket)?.unfit;
        require_fit(unfit, &volume.config, "the bucket's mount")?;
        let file = volume.open_shared_file(bucket, LOCKS)?;
        let locks = Arc::new(ByteLocks::new(file.into()));
        let mut all = self.tables();
        if all.len() >= MOST_TABLES {
            // Whoever is at work with one keeps it; two of one bucket exclude each other all the same.
            all.retain(|_, locks| Arc::strong_count(locks) > 1);
        }
        all.insert(bucket.clone(), locks.clone());
        Ok(locks)
    }

    /// Closes the bucket's lock table once nobody is at work with it.
    pub(crate) fn close(&self, bucket: &Bucket) {
        self.tables().remove(bucket);
    }

    fn tables(&self) -> MutexGuard<'_, HashMap<Bucket, Arc<ByteLocks>>> {
        // A map is whole after every single insert or remove, even if a panic follows.
        self.tables.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl SharedStore {
    /// Runs `act` with the lock of `key` held: no other writer that replaces or deletes it, in any
    /// process on any node that shares the file system's locks, is at work meanwhile. `act` is told
    /// what lies in the bucket's private directory. Without locks, by choice, it just runs.
    pub(crate) fn locked<T>(
        &self,
        bucket: &Bucket,
        key: &Key,
        act: impl FnOnce(AreaContents) -> Result<T>,
    ) -> Result<T> {
        self.locked_unless(LockWaiver::Nothing, (bucket, key), act)
    }

    /// As [`SharedStore::locked`]; but where the bucket has no lock table, and the file system no room for one,
    /// `act` just runs: a full disk must let itself be emptied. Who locks later finds it done.
    pub(crate) fn locked_if_room<T>(
        &self,
        bucket: &Bucket,
        key: &Key,
        act: impl FnOnce(AreaContents) -> Result<T>,
    ) -> Result<T> {
        self.locked_unless(LockWaiver::Room, (bucket, key), act)
    }

    fn locked_unless<T>(
        &self,
        without: LockWaiver,
        (bucket, key): (&Bucket, &Key),
        act: impl FnOnce(AreaContents) -> Result<T>,
    ) -> Result<T> {
        if !self.volume.config.if_match {
            return act(self.volume.contents(bucket)?);
        }
        for _ in 0..MAX_RACES {
            let locks = match self.locks.of(&self.volume, bucket) {
                Ok(locks) => Some(locks),
                Err(error) if without == LockWaiver::Room && is_no_room(&error) => None,
                Err(error) => return Err(error),
            };
            let Some(locks) = locks else { return act(self.volume.contents(bucket)?) };
            let _held = locks.lock(lock_byte(key), self.volume.config.lock_patience).map_err(not_locked)?;
            let glance = self.volume.private.glance(&self.volume.root, bucket).map_err(unreadable)?;
            if glance.vouches_for(&locks) {
                return act(glance.contents);
            }
            if is_current(&locks, glance.contents)? {
                glance.vouch_for(&locks);
                return act(glance.contents);
            }
            // The bucket was removed and made again: so was its lock table.
            self.locks.tables().remove(bucket);
        }
        Err(ErrorKind::ConditionalConflict.into())
    }

    /// Runs `act` with the lock of `key` held, if nobody holds it; `None` if somebody does, or the
    /// lock cannot be had.
    pub(crate) fn locked_if_free<T>(&self, bucket: &Bucket, key: &Key, act: impl FnOnce() -> T) -> Option<T> {
        if !self.volume.config.if_match {
            return Some(act());
        }
        let locks = self.locks.of(&self.volume, bucket).ok()?;
        let _held = locks.try_lock(lock_byte(key)).ok()??;
        locks.is_current().is_ok_and(|current| current).then(act)
    }

    /// Errors: `NotImplemented` where this store takes no locks.
    pub(crate) fn require_locks(&self, what: &str) -> Result<()> {
        match self.volume.config.if_match {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::NotImplemented,
                format!("{what} needs locks, which this store was opened without"),
            )),
        }
    }
}

/// Why a lock was not had. Errors: `LockTimeout`.
pub(crate) fn not_locked(errno: Errno) -> Error {
    match errno {
        Errno::TIMEDOUT => {
            let why = "another program held the lock for longer than is waited for, and nothing was changed";
            Error::new(ErrorKind::LockTimeout, why)
        }
        Errno::NOLCK => {
            let why = "the file system grants no locks; mount it with them (NFS: vers=4.2; Lustre: `flock`), or give up \
                       If-Match with conditions=none-match-only";
            Error::new(ErrorKind::NotImplemented, why)
        }
        errno => from_errno(errno, "locking the key"),
    }
}

/// Whether the lock file is still the bucket's.
fn is_current(locks: &ByteLocks, contents: AreaContents) -> Result<bool> {
    let is_current = match contents.sharing.is_shared() {
        true => locks.is_current_now(),
        false => locks.is_current(),
    };
    match is_current {
        Err(Errno::STALE) => Ok(false),
        is_current => is_current.map_err(|errno| from_errno(errno, "locking the key")),
    }
}

fn is_no_room(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::QuotaExceeded)
}
