//! Locks keys. Every operation that may replace or remove a key's object holds the key's lock.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use foldhash::HashMap;
use fordway_store::{Bucket, Error, ErrorKind, Key, Result};
use fordway_sys::{
    ByteLockGuard, ByteRangeLocks, Errno, FileSystemSharing, LockOrderKey, Mode, OFlags, await_unlocked,
    open_in, stat_in, stat_now,
};

use crate::PosixStoreState;
use crate::emptied;
use crate::errors::{from_errno, is_stale};
use crate::layout::{LOCKS, ObjectPath, lock_byte, plain, private_dir};
use crate::patience::{left_of, pause, spend};
use crate::private::PrivateDirectoryContents;
use crate::server_clock::is_recent;
use crate::shared::{PAUSE, give_way_on, look_before_opening};
use crate::site::require_fit;
use crate::stage::MAX_RACES;
use crate::volume::{StoreDirectoryTree, unreadable};

/// The maximum number of lock tables that are kept open for reuse.
const MOST_TABLES: usize = 128;

/// The byte of the lock table that an operation on a whole bucket locks. This byte follows the bytes for keys.
const RUNNER_BYTE: u32 = 0x0100_0000;
/// The first of the bytes that programs lock while they deliver events. Each hash of a webhook's name has one byte.
const FIRST_DELIVERER_BYTE: u32 = 0x0200_0000;
/// The lock table bytes for keys.
pub(crate) const ALL_KEYS: Range<u32> = 0..RUNNER_BYTE;

/// The time after which a read that does not find the object is no longer repeated.
const REPLACEMENTS_MAX: Duration = Duration::from_millis(750);
/// The longest time that a read waits for a writer that may be replacing the object.
const REPLACEMENT: Duration = Duration::from_millis(250);
/// The number of successive reads that must find neither the object nor a writer. One read is not sufficient, because a
/// writer may have acquired the lock just before the read.
const MISSES_MIN: usize = 2;

/// The longest wait for the lock of an emptied directory's key.
const EMPTIED_PATIENCE: Duration = Duration::from_millis(250);

/// The condition under which an operation runs without the lock of its key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LockBypassCondition {
    Never,
    NoSpace,
}

/// The open lock tables of the buckets in which this process has overwritten or deleted objects.
#[derive(Default)]
pub(crate) struct BucketLocks {
    tables: Mutex<HashMap<Bucket, Arc<ByteRangeLocks>>>,
}

impl BucketLocks {
    /// Returns the lock table of a bucket, and opens it if necessary. Errors: `NotImplemented` on a mount whose locks
    /// have no effect on other nodes, and errors from the file system.
    fn of(&self, volume: &StoreDirectoryTree, bucket: &Bucket) -> Result<Arc<ByteRangeLocks>> {
        if let Some(locks) = self.tables().get(bucket) {
            return Ok(locks.clone());
        }
        let unfit = volume.contents_for_write(bucket)?.unfit;
        require_fit(unfit, &volume.config, "the bucket's mount")?;
        let file = volume.open_shared_file(bucket, LOCKS)?;
        let locks = Arc::new(ByteRangeLocks::new(file.into()));
        let mut all = self.tables();
        if all.len() >= MOST_TABLES {
            // Tables in use by an operation are kept. Even if a bucket's table is opened a second time, a lock taken
            // through either open table excludes the same lock taken through the other.
            all.retain(|_, locks| Arc::strong_count(locks) > 1);
        }
        all.insert(bucket.clone(), locks.clone());
        Ok(locks)
    }

    /// Drops the bucket's lock table, which is closed when no operation uses it any more.
    pub(crate) fn close(&self, bucket: &Bucket) {
        self.tables().remove(bucket);
    }

    /// Closes the lock tables of all buckets for which `is_used` returns `false`, unless an operation is using them.
    pub(crate) fn close_unused(&self, is_used: impl Fn(&Bucket) -> bool) {
        self.tables().retain(|bucket, locks| is_used(bucket) || Arc::strong_count(locks) > 1);
    }

    fn tables(&self) -> MutexGuard<'_, HashMap<Bucket, Arc<ByteRangeLocks>>> {
        // The map is consistent after each insert or remove, even if a panic follows.
        self.tables.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl PosixStoreState {
    /// Runs `act` while holding the lock of `key`. While `act` runs, no other writer replaces or deletes the key, in
    /// any process on any node that shares the file system's locks. `act` receives the contents of the bucket's private
    /// directory. If the store is configured without locks, `act` runs without the lock.
    pub(crate) fn locked<T>(
        &self,
        bucket: &Bucket,
        key: &Key,
        act: impl FnOnce(PrivateDirectoryContents) -> Result<T>,
    ) -> Result<T> {
        self.locked_unless(LockBypassCondition::Never, (bucket, key, None), act)
    }

    /// Runs `act` as [`PosixStoreState::locked`] does, but holds the locks of two keys.
    pub(crate) fn locked_both<T>(
        &self,
        bucket: &Bucket,
        (one, other): (&Key, &Key),
        act: impl FnOnce(PrivateDirectoryContents) -> Result<T>,
    ) -> Result<T> {
        let order = |key| LockOrderKey::of(lock_byte(key));
        let (first, second) = if order(one) < order(other) { (one, other) } else { (other, one) };
        let second = Some(second).filter(|second| lock_byte(second) != lock_byte(first));
        self.locked_unless(LockBypassCondition::Never, (bucket, first, second), act)
    }

    /// Runs `act` as [`PosixStoreState::locked`] does. If the bucket has no lock table and the file system is full,
    /// runs `act` without the lock, because deleting must be possible on a full disk.
    pub(crate) fn locked_if_room<T>(
        &self,
        bucket: &Bucket,
        key: &Key,
        act: impl FnOnce(PrivateDirectoryContents) -> Result<T>,
    ) -> Result<T> {
        self.locked_unless(LockBypassCondition::NoSpace, (bucket, key, None), act)
    }

    fn locked_unless<T>(
        &self,
        without: LockBypassCondition,
        (bucket, key, second): (&Bucket, &Key, Option<&Key>),
        act: impl FnOnce(PrivateDirectoryContents) -> Result<T>,
    ) -> Result<T> {
        if !self.volume.config.if_match {
            return act(self.volume.contents(bucket)?);
        }
        if let Some(known) = self.volume.private.held(bucket)
            && let Some(locks) = known.lock_table()
        {
            let held = hold_known(locks, (key, second), self.volume.config.lock_patience)?;
            // The bucket may have been replaced during the wait, so the known contents must be recent.
            if held.is_some() && known.is_recent() && known.is_unchanged() {
                return self.act_and_release(held, || act(known.contents));
            }
        }
        let (begin, patience) = (Instant::now(), self.volume.config.lock_patience);
        for race in 0..MAX_RACES {
            let locks = match self.locks.of(&self.volume, bucket) {
                Ok(locks) => Some(locks),
                Err(error) if without == LockBypassCondition::NoSpace && is_no_room(&error) => None,
                Err(error) => return Err(error),
            };
            let Some(locks) = locks else { return act(self.volume.contents(bucket)?) };
            let left = patience.saturating_sub(begin.elapsed());
            let held = hold_known(&locks, (key, second), left)?;
            let glance = self.volume.private.glance(&self.volume.root, bucket).map_err(unreadable)?;
            if held.is_some() && self.is_current(&locks, bucket, glance.contents)? {
                glance.vouch_for(locks.clone());
                return self.act_and_release(held, || act(glance.contents));
            }
            self.reopen_later(bucket, race);
        }
        Err(ErrorKind::ConditionalConflict.into())
    }

    /// Runs `act`, drops `held`, the locks of keys, and then removes the directories that `act` has emptied.
    #[inline]
    fn act_and_release<T>(&self, held: impl Sized, act: impl FnOnce() -> T) -> T {
        let (done, emptied) = emptied::collect(act);
        drop(held);
        for dir in &emptied {
            self.prune(&dir.bucket, &dir.path, dir.contents);
        }
        done
    }

    /// Closes a lock table that no longer belongs to the bucket, so that the next call opens the bucket's current lock
    /// table. Either the bucket was removed and recreated along with its lock table, or the server of a shared file
    /// system no longer has the open file. On a shared file system, this node's cached names of the file are dropped
    /// too.
    #[cold]
    fn reopen_later(&self, bucket: &Bucket, race: usize) {
        self.locks.close(bucket);
        let sharing = self.volume.sharing_of(bucket);
        if sharing.is_shared() {
            give_way_on(sharing, race);
            self.volume.forget_file(&ObjectPath { dir: private_dir(bucket).into(), name: LOCKS.into() });
        }
    }

    /// Runs `act` while holding the lock of `key`. Returns `None` if the lock cannot be taken, or if another thread or
    /// process holds it for longer than [`EMPTIED_PATIENCE`]. The thread must not hold the lock of any key. `act`
    /// receives the contents of the bucket's private directory.
    pub(crate) fn locked_if_soon_free<T>(
        &self,
        bucket: &Bucket,
        key: &Key,
        act: impl FnOnce(PrivateDirectoryContents) -> T,
    ) -> Option<T> {
        if !self.volume.config.if_match {
            return self.volume.contents(bucket).ok().map(act);
        }
        let locks = self.locks.of(&self.volume, bucket).ok()?;
        let patience = EMPTIED_PATIENCE.min(self.volume.config.lock_patience);
        let _held = locks.lock(lock_byte(key), patience).ok()?;
        let contents = self.volume.contents(bucket).ok()?;
        self.is_current(&locks, bucket, contents).is_ok_and(|current| current).then(|| act(contents))
    }

    /// Runs `act` and returns its result, or returns `None` immediately if another process is running this function for
    /// the same bucket. The function holds a byte lock, like the locks of keys, so the kernel releases the lock when
    /// the process dies. `act` may take the locks of keys.
    pub(crate) fn alone_in<T>(&self, bucket: &Bucket, act: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        self.require_locks("one run at a time")?;
        let locks = self.locks.of(&self.volume, bucket)?;
        let held = locks.try_lock_apart(RUNNER_BYTE).map_err(not_locked)?;
        match held.is_some() && self.is_current(&locks, bucket, self.volume.contents(bucket)?)? {
            true => act().map(Some),
            false => Ok(None),
        }
    }

    /// Returns the lock table of a bucket for [`alone_for`]; `None` if the store takes no locks.
    pub(crate) fn claims_of(&self, bucket: &Bucket) -> Result<Option<Arc<ByteRangeLocks>>> {
        if !self.volume.config.if_match {
            return Ok(None);
        }
        let locks = self.locks.of(&self.volume, bucket)?;
        if !self.is_current(&locks, bucket, self.volume.contents(bucket)?)? {
            self.locks.close(bucket);
            return self.locks.of(&self.volume, bucket).map(Some);
        }
        Ok(Some(locks))
    }

    /// Runs `read`, which reads `key`. If `read` finds no object on NFS, waits until no writer holds the key's lock,
    /// and runs `read` again. The reason is that a node may be replacing a file that is open on that node. The NFS
    /// client of that node renames the old file to `.nfs...` before it renames the new file. Between these two
    /// requests, other nodes see no file with the name of the object. Further cost: none if an object is found. If no
    /// object is found on NFS: one request for the directory's state and, if the directory has changed recently,
    /// usually two opens, two `fcntl` calls and two further reads.
    pub(crate) fn settled<T>(
        &self,
        (bucket, key): (&Bucket, &Key),
        mut read: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        match read() {
            Err(error) if is_missing(&error) => self
                .read_between_writes((bucket, key), read, |again| again.as_ref().is_err_and(is_missing))
                .unwrap_or(Err(error)),
            done => done,
        }
    }

    /// Runs `read` when no writer holds the key's lock. Repeats `read` until the object is found, or until
    /// [`MISSES_MIN`] successive reads have found neither the object nor a writer. Also stops after
    /// [`REPLACEMENTS_MAX`], or when the operation has used up its waiting time. Returns `None` if the result that the
    /// caller already has remains valid. Not inlined, because only file systems that several nodes share need this
    /// function.
    #[cold]
    pub(crate) fn read_between_writes<T>(
        &self,
        (bucket, key): (&Bucket, &Key),
        mut read: impl FnMut() -> T,
        is_missing: impl Fn(&T) -> bool,
    ) -> Option<T> {
        // The check whether the file system is shared comes first, because this check costs no system call.
        self.volume.remote_dir(bucket.as_str())?;
        if self.volume.sharing_of(bucket) != FileSystemSharing::Nfs || !self.may_be_replaced(bucket, key) {
            return None;
        }
        let (begin, byte) = (Instant::now(), lock_byte(key));
        let mut misses = 0;
        loop {
            let had_to_wait = self.await_replacements(bucket, byte..byte + 1, REPLACEMENT)?;
            self.volume.refresh_name(bucket, key);
            let found = read();
            misses = if had_to_wait { 0 } else { misses + 1 };
            // Without time left to wait, the loop would only repeat requests.
            let is_over = begin.elapsed() > REPLACEMENTS_MAX || left_of(REPLACEMENT).is_zero();
            if !is_missing(&found) || misses >= MISSES_MIN || is_over {
                return Some(found);
            }
        }
    }

    /// Returns whether the key's directory has changed so recently that a file in it may be in the middle of being
    /// replaced. With [`ReadConsistency::Strong`], the result does not depend on clocks.
    ///
    /// [`ReadConsistency::Strong`]: crate::ReadConsistency::Strong
    fn may_be_replaced(&self, bucket: &Bucket, key: &Key) -> bool {
        let has_odd = || self.volume.contents(bucket).is_ok_and(|contents| contents.has_odd);
        let Some(place) = plain(bucket, key).filter(|_| !self.volume.is_strong()) else { return true };
        let changed = self.volume.open_dir(&place.dir).and_then(stat_now);
        changed.is_ok_and(|dir| is_recent(&dir)) || has_odd()
    }

    /// Waits until no writer holds a lock on any of these bytes. Returns whether a writer held such a lock. If the
    /// caller may not write to the bucket, and therefore may not open the lock file, waits for a short time instead.
    /// Returns `None` if the bucket has no lock file. Nobody can then have replaced an object in the bucket. Takes no
    /// lock, so no writer waits for readers. A user with permission to lock a byte could hold the lock forever, so the
    /// wait is limited to `most`. The limit is shorter within an operation that has waited before (see
    /// [`crate::patience`]). Reaching the limit is not an error.
    pub(crate) fn await_replacements(
        &self,
        bucket: &Bucket,
        bytes: Range<u32>,
        most: Duration,
    ) -> Option<bool> {
        let dir = self.volume.open_dir(&private_dir(bucket)).ok()?;
        look_before_opening(&dir, LOCKS, FileSystemSharing::Nfs).ok()?;
        let locks = match open_in(&dir, LOCKS, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
            Err(Errno::ACCESS) => {
                pause(PAUSE);
                return Some(false);
            }
            opened => opened.ok()?,
        };
        if await_unlocked(&locks, bytes.clone(), Duration::ZERO).is_ok() {
            return Some(false);
        }
        let begin = Instant::now();
        let _ = await_unlocked(&locks, bytes, left_of(most));
        spend(begin.elapsed());
        Some(true)
    }

    /// Returns whether the open lock table is still the bucket's lock file. The function also checks the file's name,
    /// because the file's owner can rename the file, but other processes find the lock table by its name. The name is
    /// not checked on FUSE, where a file may have two inode numbers. Cost: one `fstat` and usually one `newfstatat`.
    fn is_current(
        &self,
        locks: &ByteRangeLocks,
        bucket: &Bucket,
        contents: PrivateDirectoryContents,
    ) -> Result<bool> {
        let state = match contents.sharing.is_shared() {
            true => locks.state_now(),
            false => locks.state(),
        };
        let state = match state {
            Err(Errno::STALE) => return Ok(false),
            state => state.map_err(|errno| from_errno(errno, "locking the key"))?,
        };
        if state.links == 0 || contents.sharing == FileSystemSharing::Unknown {
            return Ok(state.links > 0);
        }
        let named = self.volume.open_dir(&private_dir(bucket)).and_then(|dir| stat_in(dir, LOCKS));
        Ok(match named {
            Ok(named) => (named.device, named.inode) == (state.device, state.inode),
            // On NFS, this node may have cached the name as missing, so the lock table is assumed to be current.
            Err(_) => contents.sharing == FileSystemSharing::Nfs,
        })
    }

    /// Checks that this store takes locks. Errors: `NotImplemented` if the store takes no locks.
    pub(crate) fn require_locks(&self, what: &str) -> Result<()> {
        match self.volume.config.if_match {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::NotImplemented,
                format!("{what} needs locks, but this store was opened without locks"),
            )),
        }
    }
}

/// Runs `act`, unless another program with these `locks` runs this function for the same webhook. The kernel releases
/// the lock when the process dies.
pub(crate) fn alone_for<T>(
    locks: &ByteRangeLocks,
    webhook: &str,
    act: impl FnOnce() -> T,
) -> Result<Option<T>> {
    let hash = webhook.bytes().fold(0_u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    let held = locks.try_lock_apart(FIRST_DELIVERER_BYTE + (hash & 0xffff)).map_err(not_locked)?;
    Ok(held.is_some().then(act))
}

/// Locks the first key, and then the second key, if a second key is given. The guards are dropped in the opposite
/// order, because the first guard may also exclude the process's other threads from the second key.
#[inline]
fn hold<'l>(
    locks: &'l ByteRangeLocks,
    (first, second): (&Key, Option<&Key>),
    patience: Duration,
) -> Result<(Option<ByteLockGuard<'l>>, ByteLockGuard<'l>)> {
    let held = locks.lock(lock_byte(first), patience).map_err(not_locked)?;
    let also = second.map(|key| locks.lock_after(&held, lock_byte(key), patience));
    Ok((also.transpose().map_err(not_locked)?, held))
}

/// Locks the keys as [`hold`] does, but returns `None` if the server of a shared file system no longer has the open
/// lock table.
#[inline]
fn hold_known<'l>(
    locks: &'l ByteRangeLocks,
    keys: (&Key, Option<&Key>),
    patience: Duration,
) -> Result<Option<(Option<ByteLockGuard<'l>>, ByteLockGuard<'l>)>> {
    match hold(locks, keys, patience) {
        Err(error) if is_stale(&error) => Ok(None),
        held => held.map(Some),
    }
}

/// Returns the error for a lock that could not be taken; `LockTimeout` if another program held it for too long.
pub(crate) fn not_locked(errno: Errno) -> Error {
    match errno {
        Errno::TIMEDOUT => {
            let why = "another program held the lock until the time limit, so nothing was changed";
            Error::new(ErrorKind::LockTimeout, why)
        }
        // Lustre without `flock` returns `NOSYS`.
        Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP => {
            let why = "the file system grants no locks; mount it with them (NFS: vers=4.2; Lustre: `flock`), or \
                       disable If-Match with conditions=none-match-only";
            Error::new(ErrorKind::NotImplemented, why)
        }
        errno => from_errno(errno, "locking the key"),
    }
}

/// Returns whether the error means that there is no such object or version.
fn is_missing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NoSuchKey | ErrorKind::NoSuchVersion)
}

fn is_no_room(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::QuotaExceeded)
}
