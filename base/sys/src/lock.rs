//! Locks between threads, processes and nodes. Each lock is one byte of a lock file. Every wait has a time limit,
//! because any user who can open a lock file can hold its lock forever.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::io::{Errno, Result};

use super::file::last_errno;
use crate::{FileStat, call};

/// The number of in-process locks, which provide mutual exclusion between threads that share the open lock file.
const STRIPES: usize = 256;

/// The first pause between two attempts to take a lock that another process holds.
const PAUSE_MIN: Duration = Duration::from_micros(20);
/// The longest pause between two attempts to take a lock.
const PAUSE_MAX: Duration = Duration::from_millis(2);

/// One year, a duration that the clocks of condition variables can certainly represent.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

thread_local! {
    static PATIENCE: Cell<Duration> = const { Cell::new(Duration::MAX) };
}

/// Runs `work` with a lock timeout. The waits of `work` for locks take at most `patience` in total, regardless of the
/// timeout that each wait specifies.
pub fn with_lock_patience<T>(patience: Duration, work: impl FnOnce() -> T) -> T {
    /// Restores the thread's previous lock timeout when dropped, even if `work` panics.
    struct LockTimeoutGuard(Duration);
    impl Drop for LockTimeoutGuard {
        fn drop(&mut self) {
            PATIENCE.set(self.0);
        }
    }
    let _before = LockTimeoutGuard(PATIENCE.replace(patience));
    work()
}

/// A wait for a lock, with a time limit.
struct LockRetryTimer {
    longest: Duration,
    /// The time at which the wait began; `None` before the first pause.
    begin: Option<Instant>,
    pause: Duration,
}

impl LockRetryTimer {
    fn new(longest: Duration) -> Self {
        LockRetryTimer { longest: longest.min(PATIENCE.get()), begin: None, pause: PAUSE_MIN }
    }

    fn left(&mut self) -> Duration {
        self.longest.saturating_sub(self.begin.get_or_insert_with(Instant::now).elapsed())
    }

    /// Sleeps before the next attempt, for at most [`PAUSE_MAX`]. Errors: `TIMEDOUT` if there is no time left.
    fn pause(&mut self) -> Result<()> {
        let left = self.left();
        if left.is_zero() {
            return Err(Errno::TIMEDOUT);
        }
        std::thread::sleep(self.pause.min(left));
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Ok(())
    }
}

impl Drop for LockRetryTimer {
    /// Deducts the time of this wait from the thread's lock timeout, so that the next wait gets the rest.
    fn drop(&mut self) {
        if let Some(begin) = self.begin
            && PATIENCE.get() != Duration::MAX
        {
            PATIENCE.set(PATIENCE.get().saturating_sub(begin.elapsed()));
        }
    }
}

/// Waits for a lock on the whole `file`, which must be open for writing, and holds it until the last descriptor of this
/// open file is closed. Errors: `NOLCK` if the file system has no locks; `TIMEDOUT` if another holder keeps the lock
/// for longer than `patience`.
pub fn lock_file(file: impl AsFd, patience: Duration) -> Result<()> {
    // A length of 0 means all bytes up to the end of the file, even if the file grows.
    wait_for(file.as_fd(), (0, 0), &mut LockRetryTimer::new(patience))
}

/// Releases the lock that [`lock_file`] has taken, even for other descriptors of this open file, such as those that a
/// forked child has inherited.
pub fn unlock_file(file: impl AsFd) {
    let _ = control(file.as_fd(), libc::F_OFD_SETLK, libc::F_UNLCK, 0, 0);
}

/// The locked bytes of a [`lock_range`]. Dropping the guard unlocks the bytes and closes the file.
#[derive(Debug)]
pub struct ByteRangeGuard {
    file: OwnedFd,
    start: i64,
    length: i64,
}

/// Waits for a lock on all of `bytes`, a range of at least one byte. `file` must be open for writing. The lock excludes
/// all users of other open files, including the threads of this process. Errors: `NOLCK` if the file system has no
/// locks; `TIMEDOUT` if other holders keep a byte for longer than `patience` or the timeout of [`with_lock_patience`].
/// Cost: one `fcntl`, repeated while a byte is locked, and one to unlock.
pub fn lock_range(file: OwnedFd, bytes: Range<u32>, patience: Duration) -> Result<ByteRangeGuard> {
    let (start, length) = (i64::from(bytes.start), i64::try_from(bytes.len()).map_err(|_| Errno::INVAL)?);
    wait_for(file.as_fd(), (start, length), &mut LockRetryTimer::new(patience))?;
    Ok(ByteRangeGuard { file, start, length })
}

impl AsFd for ByteRangeGuard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for ByteRangeGuard {
    fn drop(&mut self) {
        // Closing the file is not sufficient, because a forked child may have inherited it.
        let _ = control(self.file.as_fd(), libc::F_OFD_SETLK, libc::F_UNLCK, self.start, self.length);
    }
}

/// Waits until no other open file holds a lock on any of `bytes`, a range of at least one byte. The caller gets no
/// lock, so nobody waits for the caller. Errors: `TIMEDOUT` if a byte is locked for longer than `patience` or the
/// timeout of [`with_lock_patience`]. Cost: one `fcntl`, repeated while a byte is locked.
pub fn await_unlocked(file: impl AsFd, bytes: Range<u32>, patience: Duration) -> Result<()> {
    let (start, length) = (i64::from(bytes.start), i64::try_from(bytes.len()).map_err(|_| Errno::INVAL)?);
    let mut patience = LockRetryTimer::new(patience);
    loop {
        let found = control(file.as_fd(), libc::F_OFD_GETLK, libc::F_WRLCK, start, length)?;
        if found == libc::F_UNLCK {
            return Ok(());
        }
        patience.pause()?;
    }
}

/// Tries repeatedly to take the lock, because the kernel's own wait has no time limit.
fn wait_for(file: BorrowedFd<'_>, (start, length): (i64, i64), patience: &mut LockRetryTimer) -> Result<()> {
    loop {
        match control(file, libc::F_OFD_SETLK, libc::F_WRLCK, start, length) {
            Err(Errno::AGAIN | Errno::ACCESS) => patience.pause()?,
            Err(Errno::INTR) => {}
            done => return done.map(drop),
        }
    }
}

/// A table of byte locks on one open file (open-file-description locks, Linux 3.15). Whether the locks work between
/// nodes depends on the file system's mount.
#[derive(Debug)]
pub struct ByteRangeLocks {
    file: OwnedFd,
    stripes: Vec<LockStripe>,
    /// The bytes that this process has locked with [`ByteRangeLocks::try_lock_apart`].
    apart: Mutex<BTreeSet<u32>>,
}

/// A byte that is locked apart from the stripes. Dropping the guard unlocks the byte.
#[derive(Debug)]
pub struct ApartByteLockGuard<'l> {
    locks: &'l ByteRangeLocks,
    offset: u32,
}

/// A locked byte. Dropping the guard unlocks the byte.
#[derive(Debug)]
pub struct ByteLockGuard<'l> {
    locks: &'l ByteRangeLocks,
    byte: i64,
    /// `None` if the thread holds the stripe through another guard.
    _stripe: Option<LockStripeGuard<'l>>,
}

/// A lock between the threads of this process; a wait for it can have a deadline. Without waiting threads, the lock
/// costs two atomic operations, half as many as a mutex around a flag.
#[derive(Debug, Default)]
struct LockStripe {
    /// `FREE`, `HELD`, or `CONTENDED`.
    state: AtomicU32,
    /// A thread holds this mutex from its last check of `state` until it sleeps, so that no wake-up is lost in between.
    asleep: Mutex<()>,
    is_free: Condvar,
}

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and a thread may be waiting.
const CONTENDED: u32 = 2;

#[derive(Debug)]
struct LockStripeGuard<'l>(&'l LockStripe);

impl LockStripe {
    /// Waits for the lock and takes it. Errors: `TIMEDOUT`.
    #[inline]
    fn take(&self, patience: &mut LockRetryTimer) -> Result<LockStripeGuard<'_>> {
        match self.try_take() {
            Some(guard) => Ok(guard),
            None => self.wait(patience),
        }
    }

    #[cold]
    fn wait(&self, patience: &mut LockRetryTimer) -> Result<LockStripeGuard<'_>> {
        // A thread that takes the lock after a wait marks it as contended, because others may still be waiting.
        let is_held = |(): &mut ()| self.state.swap(CONTENDED, Ordering::Acquire) != FREE;
        let waited = self.is_free.wait_timeout_while(self.asleep(), patience.left().min(LONGEST), is_held);
        match waited.unwrap_or_else(|poisoned| poisoned.into_inner()).1.timed_out() {
            true => Err(Errno::TIMEDOUT),
            false => Ok(LockStripeGuard(self)),
        }
    }

    fn try_take(&self) -> Option<LockStripeGuard<'_>> {
        let taken = self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        // The guard is created only if the lock was free, because dropping a guard releases the lock.
        taken.is_ok().then(|| LockStripeGuard(self))
    }

    fn asleep(&self) -> MutexGuard<'_, ()> {
        self.asleep.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for LockStripeGuard<'_> {
    fn drop(&mut self) {
        if self.0.state.swap(FREE, Ordering::Release) == CONTENDED {
            drop(self.0.asleep());
            self.0.is_free.notify_one();
        }
    }
}

/// The order in which a thread takes two locks of one table. If all threads of all processes follow this order, they do
/// not deadlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockOrderKey {
    stripe: usize,
    offset: u32,
}

impl LockOrderKey {
    /// Returns the position of the byte at `offset` in the order.
    pub fn of(offset: u32) -> Self {
        LockOrderKey { stripe: stripe_of(offset), offset }
    }
}

fn stripe_of(offset: u32) -> usize {
    offset as usize % STRIPES
}

impl ByteRangeLocks {
    /// Creates a table of locks on `file`, which must be open for writing but is never written to.
    pub fn new(file: OwnedFd) -> Self {
        let stripes = (0..STRIPES).map(|_| LockStripe::default()).collect();
        ByteRangeLocks { file, stripes, apart: Mutex::default() }
    }

    /// Waits for the byte at `offset` and locks it. Cost: one `fcntl` to lock the byte, and one to unlock it. Errors:
    /// `NOLCK` if the file system has no locks; `TIMEDOUT` if another holder keeps the byte for longer than `patience`
    /// or the timeout of [`with_lock_patience`].
    pub fn lock(&self, offset: u32, patience: Duration) -> Result<ByteLockGuard<'_>> {
        let mut patience = LockRetryTimer::new(patience);
        let stripe = self.stripes[stripe_of(offset)].take(&mut patience)?;
        let byte = i64::from(offset);
        wait_for(self.file.as_fd(), (byte, 1), &mut patience)?;
        Ok(ByteLockGuard { locks: self, byte, _stripe: Some(stripe) })
    }

    /// Locks a second byte, which must follow the byte of `held` in the order of [`LockOrderKey`]. Cost and errors: as
    /// for [`ByteRangeLocks::lock`].
    pub fn lock_after(
        &self,
        held: &ByteLockGuard<'_>,
        offset: u32,
        patience: Duration,
    ) -> Result<ByteLockGuard<'_>> {
        let (first, byte) = (u32::try_from(held.byte).unwrap_or_default(), i64::from(offset));
        debug_assert!(LockOrderKey::of(first) < LockOrderKey::of(offset));
        let mut patience = LockRetryTimer::new(patience);
        // If both bytes share a stripe, the caller already holds the stripe.
        let stripe = match stripe_of(first) == stripe_of(offset) {
            true => None,
            false => Some(self.stripes[stripe_of(offset)].take(&mut patience)?),
        };
        wait_for(self.file.as_fd(), (byte, 1), &mut patience)?;
        Ok(ByteLockGuard { locks: self, byte, _stripe: stripe })
    }

    /// Locks the byte at `offset` without waiting. Returns `None` if another process has locked the byte, or if a
    /// thread of this process holds the in-process lock of the byte, which several bytes share. Cost: as for
    /// [`ByteRangeLocks::lock`]. Errors: `NOLCK`.
    pub fn try_lock(&self, offset: u32) -> Result<Option<ByteLockGuard<'_>>> {
        let Some(stripe) = self.stripes[stripe_of(offset)].try_take() else { return Ok(None) };
        let byte = i64::from(offset);
        match self.control(libc::F_OFD_SETLK, libc::F_WRLCK, byte) {
            Ok(_) => Ok(Some(ByteLockGuard { locks: self, byte, _stripe: Some(stripe) })),
            Err(Errno::AGAIN | Errno::ACCESS) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Locks the byte at `offset` as [`ByteRangeLocks::try_lock`] does, but without an in-process lock that other bytes
    /// share. The holder may therefore lock any other byte, and other threads can lock every other byte. No other
    /// function may lock this byte. Cost and errors: as for [`ByteRangeLocks::try_lock`].
    pub fn try_lock_apart(&self, offset: u32) -> Result<Option<ApartByteLockGuard<'_>>> {
        let mut apart = self.apart();
        // The kernel would grant the byte a second time, because both locks belong to the same open file.
        if apart.contains(&offset) {
            return Ok(None);
        }
        match self.control(libc::F_OFD_SETLK, libc::F_WRLCK, offset.into()) {
            Ok(_) => {
                apart.insert(offset);
                Ok(Some(ApartByteLockGuard { locks: self, offset }))
            }
            Err(Errno::AGAIN | Errno::ACCESS) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn apart(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        // The set is consistent after each insert or remove, even if a panic follows.
        self.apart.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns the metadata of the lock file. Cost: one `fstat`.
    pub fn state(&self) -> Result<FileStat> {
        crate::stat(&self.file)
    }

    /// Returns the metadata of the lock file, which is requested from the server if the file system is shared. Errors:
    /// `STALE` if the server no longer has the lock file. Cost: one `statx`.
    pub fn state_now(&self) -> Result<FileStat> {
        crate::stat_now(&self.file)
    }

    fn control(&self, command: libc::c_int, kind: libc::c_int, byte: i64) -> Result<libc::c_int> {
        control(self.file.as_fd(), command, kind, byte, 1)
    }
}

/// Executes `command`, and returns the lock type that is in the structure after the call. `F_OFD_GETLK` sets this type.
fn control(
    file: BorrowedFd<'_>,
    command: libc::c_int,
    kind: libc::c_int,
    start: i64,
    length: i64,
) -> Result<libc::c_int> {
    call::point("fcntl").map_err(call::of_open_file)?;
    // SAFETY: `flock` is plain data, for which all zeros is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = start;
    lock.l_len = length;
    // The C library's `fcntl` is not used, because processing its arguments takes longer than this whole function.
    // SAFETY: the descriptor is open for as long as it is borrowed, and `lock` outlives the call. On 64-bit Linux,
    // `flock` is the structure that the kernel expects.
    let result = unsafe { libc::syscall(libc::SYS_fcntl, file.as_raw_fd(), command, &raw mut lock) };
    if result == 0 { Ok(lock.l_type.into()) } else { Err(call::of_open_file(last_errno())) }
}

impl Drop for ByteLockGuard<'_> {
    fn drop(&mut self) {
        // Unlocking a locked byte cannot fail; if it failed, closing the file would release the byte.
        let _ = self.locks.control(libc::F_OFD_SETLK, libc::F_UNLCK, self.byte);
    }
}

impl Drop for ApartByteLockGuard<'_> {
    fn drop(&mut self) {
        // The byte is unlocked before other threads of this process can lock it again.
        let mut apart = self.locks.apart();
        let _ = self.locks.control(libc::F_OFD_SETLK, libc::F_UNLCK, self.offset.into());
        apart.remove(&self.offset);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::UnsafeCell;
    use std::sync::Arc;

    use super::*;
    use std::sync::atomic::AtomicU64;

    struct Counter(UnsafeCell<u64>);
    // SAFETY: the test accesses the counter only while it holds the lock under test.
    unsafe impl Sync for Counter {}

    /// Two tables on the same file simulate two processes. The two threads that use each table simulate the threads of
    /// one process.
    #[test]
    fn excludes_threads_and_open_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("locks");
        let counter = Arc::new(Counter(UnsafeCell::new(0)));
        let tables: Vec<_> = (0..2)
            .map(|_| {
                let options =
                    std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(&path);
                Arc::new(ByteRangeLocks::new(options.unwrap().into()))
            })
            .collect();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (table, counter) = (tables[thread % 2].clone(), counter.clone());
                scope.spawn(move || {
                    for _ in 0..2_000 {
                        let _held = table.lock(7, Duration::from_secs(60)).unwrap();
                        // SAFETY: the lock is held.
                        unsafe { *counter.0.get() += 1 };
                    }
                });
            }
        });
        // SAFETY: all threads have ended.
        assert_eq!(unsafe { *counter.0.get() }, 8_000);
    }

    /// Waiting threads, with long and short timeouts, never miss a release of the lock.
    #[test]
    fn waiting_threads_exclude_each_other_and_are_woken() {
        let (stripe, counter, taken) =
            (LockStripe::default(), Counter(UnsafeCell::new(0)), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (stripe, counter, taken) = (&stripe, &counter, &taken);
                scope.spawn(move || {
                    for _ in 0..5_000 {
                        let is_patient = thread % 3 > 0;
                        let patience = Duration::from_micros(if is_patient { 60_000_000 } else { 5 });
                        let held = stripe.take(&mut LockRetryTimer::new(patience));
                        assert!(held.is_ok() || !is_patient);
                        if held.is_ok() {
                            // SAFETY: the lock is held.
                            unsafe { *counter.0.get() += 1 };
                            taken.fetch_add(1, Ordering::Relaxed);
                            std::thread::yield_now();
                        }
                    }
                });
            }
        });
        // SAFETY: all threads have ended.
        assert_eq!(unsafe { *counter.0.get() }, taken.into_inner());
        assert!(stripe.try_take().is_some());
    }

    #[test]
    fn the_end_of_a_lock_is_awaited_without_a_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("locks");
        let locks = ByteRangeLocks::new(std::fs::File::create(&path).unwrap().into());
        let reader = std::fs::File::open(&path).unwrap();
        let soon = Duration::from_millis(20);
        let held = locks.lock(7, soon).unwrap();
        assert_eq!(await_unlocked(&reader, 0..9, soon), Err(Errno::TIMEDOUT));
        assert_eq!(await_unlocked(&reader, 8..9, soon), Ok(()));
        drop(held);
        assert_eq!(await_unlocked(&reader, 0..9, soon), Ok(()));
        assert!(locks.try_lock(7).unwrap().is_some());
    }

    /// A byte locked apart excludes only itself: between threads, between open files, but not from other bytes of the
    /// stripe.
    #[test]
    fn a_byte_locked_apart_excludes_only_itself() {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            let file = std::fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open(dir.path().join("l"));
            ByteRangeLocks::new(file.unwrap().into())
        };
        let (one, other) = (open(), open());
        let (apart, same_stripe) = (STRIPES as u32 * 4, STRIPES as u32);
        let held = one.try_lock_apart(apart).unwrap().unwrap();
        assert!(
            one.try_lock_apart(apart).unwrap().is_none() && other.try_lock_apart(apart).unwrap().is_none()
        );
        assert!(one.lock(same_stripe, Duration::ZERO).is_ok());
        let beside = one.try_lock_apart(apart + 1).unwrap().unwrap();
        drop(held);
        let held = other.try_lock_apart(apart).unwrap();
        assert!(held.is_some() && one.try_lock_apart(apart).unwrap().is_none());
        drop((held, beside));
        assert!(one.try_lock_apart(apart).unwrap().is_some());
    }

    /// A locked range excludes the threads of this process, and ends with its guard even if the file stays open.
    #[test]
    fn a_range_excludes_every_other_open_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("locks");
        let locks = ByteRangeLocks::new(std::fs::File::create(&path).unwrap().into());
        let file: OwnedFd = std::fs::OpenOptions::new().write(true).open(&path).unwrap().into();
        let inherited = file.try_clone().unwrap();
        let soon = Duration::from_millis(20);
        let one = locks.lock(7, soon).unwrap();
        assert_eq!(lock_range(inherited.try_clone().unwrap(), 0..9, soon).err(), Some(Errno::TIMEDOUT));
        drop(one);
        let range = lock_range(file, 0..9, soon).unwrap();
        assert_eq!(locks.lock(7, soon).err(), Some(Errno::TIMEDOUT));
        assert!(locks.lock(9, soon).is_ok());
        drop(range);
        assert!(locks.lock(7, soon).is_ok());
        drop(inherited);
    }

    /// A wait ends at its time limit, regardless of whether a thread of this process or another process holds the lock.
    #[test]
    fn a_wait_has_an_end() {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            let options = std::fs::OpenOptions::new();
            let mut options = options.clone();
            options.write(true).create(true).truncate(false);
            ByteRangeLocks::new(options.open(dir.path().join("locks")).unwrap().into())
        };
        let (one, other) = (open(), open());
        let (short, long) = (Duration::from_millis(30), Duration::from_secs(60));
        let held = one.lock(7, long).unwrap();
        for table in [&one, &other] {
            let started = Instant::now();
            assert_eq!(table.lock(7, short).err(), Some(Errno::TIMEDOUT));
            assert!((short..20 * short).contains(&started.elapsed()));
            let at_once = with_lock_patience(Duration::ZERO, || table.lock(7, long).err());
            assert_eq!(at_once, Some(Errno::TIMEDOUT));
            assert!(table.try_lock(7).unwrap().is_none() && table.try_lock(7).unwrap().is_none());
        }
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| one.lock(7, long).map(drop));
            std::thread::sleep(short);
            drop(held);
            assert_eq!(waiting.join().unwrap(), Ok(()));
        });
        assert!(other.lock(7, Duration::ZERO).is_ok());
        let file = std::fs::OpenOptions::new().write(true).open(dir.path().join("locks")).unwrap();
        let _held = other.lock(9, long).unwrap();
        assert_eq!(lock_file(&file, short), Err(Errno::TIMEDOUT));
    }
}
