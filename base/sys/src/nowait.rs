//! Lookups and reads that never wait for a device, for threads that serve many clients.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::StatFs;
use rustix::io::{Errno, Result};

use super::file::last_errno;
use crate::call::{fstatfs, point, pread};

/// How the calling thread looks up names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PathLookupMode {
    Waits,
    AsksMemory,
    /// The thread tried only cached lookups, and one of them failed.
    WouldHaveWaited,
    /// The thread may wait for lookups, but must not read a large directory.
    ScansLittle,
    /// The thread encountered a large directory.
    WouldHaveScanned,
}

/// Lets the thread wait again when dropped, even if its work panics.
struct LookupModeGuard;

impl Drop for LookupModeGuard {
    fn drop(&mut self) {
        MODE.set(PathLookupMode::Waits);
        IS_ONLY_IN_MEMORY.set(false);
    }
}

thread_local! {
    static MODE: Cell<PathLookupMode> = const { Cell::new(PathLookupMode::Waits) };
    /// Whether the thread is within [`only_in_memory`].
    static IS_ONLY_IN_MEMORY: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`. Meanwhile, a [`RootDirectory`](crate::RootDirectory) that opens files on this thread looks up names
/// only in the kernel's cache. Returns `None` if a lookup would have waited: `work` then got `AGAIN`, and its result is
/// discarded. `work` must change nothing, and a thread that may wait must be able to repeat `work`. Reading the state
/// of a name (`stat_in`, `get_xattr_in`) may still wait, because the kernel offers no alternative. Calls must not be
/// nested.
///
/// Cost: no system call.
pub fn without_waiting<T>(work: impl FnOnce() -> T) -> Option<T> {
    let _waits = LookupModeGuard;
    MODE.set(PathLookupMode::AsksMemory);
    let done = work();
    (MODE.get() != PathLookupMode::WouldHaveWaited).then_some(done)
}

/// Runs `work` like [`without_waiting`], for a thread that holds a lock of the whole process. On file systems without
/// cached lookups, [`without_waiting`] opens files, and may wait. This function returns `None` for these file systems,
/// for all file systems that may ask a server when a file is opened (NFS, FUSE and others), and for other file systems
/// mounted beneath the root.
///
/// Cost: one `statx` per opened file.
pub fn only_in_memory<T>(work: impl FnOnce() -> T) -> Option<T> {
    IS_ONLY_IN_MEMORY.set(true);
    without_waiting(work)
}

/// Returns whether the calling thread is within [`only_in_memory`].
pub(crate) fn is_only_in_memory() -> bool {
    IS_ONLY_IN_MEMORY.get()
}

/// Runs `work`. Meanwhile, [`read_dir_briefly`](crate::read_dir_briefly) on this thread reads at most about a thousand
/// names. Returns `None` if a directory had more names: `work` then got `AGAIN`, and its result is discarded. After a
/// failure, a thread that is allowed to read large directories runs `work` again, so `work` may make only changes that
/// can be repeated. Calls must not be nested.
///
/// Cost: no system call.
pub fn without_scanning<T>(work: impl FnOnce() -> T) -> Option<T> {
    let _waits = LookupModeGuard;
    MODE.set(PathLookupMode::ScansLittle);
    let done = work();
    (MODE.get() != PathLookupMode::WouldHaveScanned).then_some(done)
}

/// Called before a long scan. Returns whether the calling thread is within [`without_scanning`]; the caller must then
/// fail instead of scanning.
pub(crate) fn would_scan() -> bool {
    let is_to_fail = matches!(MODE.get(), PathLookupMode::ScansLittle | PathLookupMode::WouldHaveScanned);
    if is_to_fail {
        MODE.set(PathLookupMode::WouldHaveScanned);
    }
    is_to_fail
}

/// Called before a wait for a device. Returns whether the calling thread is within [`without_waiting`]; the caller must
/// then fail instead of waiting. A thread that is allowed to block then repeats the work.
pub fn would_wait() -> bool {
    let is_to_fail = is_asking();
    if is_to_fail {
        MODE.set(PathLookupMode::WouldHaveWaited);
    }
    is_to_fail
}

/// Returns whether the calling thread's current work will be repeated. This is the case if a lookup or read within
/// [`without_waiting`] would have waited, or if a directory within [`without_scanning`] was large. The result of such
/// work, including any error, is discarded. This function changes nothing.
pub fn is_to_be_done_again() -> bool {
    matches!(MODE.get(), PathLookupMode::WouldHaveWaited | PathLookupMode::WouldHaveScanned)
}

fn is_asking() -> bool {
    matches!(MODE.get(), PathLookupMode::AsksMemory | PathLookupMode::WouldHaveWaited)
}

/// Determines whether cached lookups (`RESOLVE_CACHED`) ever succeed on a file system. If they do not, each attempt is
/// wasted, because the lookup must then be repeated. NFS, FUSE and Lustre may ask their server about every name,
/// regardless of what the kernel has cached. After the first success, cached lookups are always tried. Before the first
/// success, a name that was not cached is looked up in the cache again right after it was opened. After [`IN_VAIN_MAX`]
/// failures of this second lookup, cached lookups are no longer tried. A single failure is not enough, because any
/// concurrent rename can cause it.
#[derive(Debug, Default)]
pub(crate) struct CachedLookupProbe(AtomicU8);

/// No cached lookup has been tried yet.
const UNKNOWN: u8 = 0;
/// A cached lookup has failed, and none has succeeded. Each cached lookup that fails right after the name was opened
/// adds 1 to this value.
const IN_DOUBT: u8 = 1;
const IN_VAIN_MAX: u8 = 8;
const NEVER: u8 = IN_DOUBT + IN_VAIN_MAX;
const ANSWERS: u8 = u8::MAX;

impl CachedLookupProbe {
    /// Returns whether the calling thread should look up names only in the kernel's cache.
    pub(crate) fn is_to_be_asked(&self) -> bool {
        is_asking() && self.0.load(Ordering::Relaxed) != NEVER
    }

    /// Returns whether the calling thread, which may wait, should look up again the name that it has just opened.
    pub(crate) fn is_in_doubt(&self) -> bool {
        !is_asking() && (IN_DOUBT..NEVER).contains(&self.0.load(Ordering::Relaxed))
    }

    /// Records that a cached lookup succeeded.
    pub(crate) fn has_answered(&self) {
        // The value is written only once, so that threads do not contend for it.
        if self.0.load(Ordering::Relaxed) != ANSWERS {
            self.0.store(ANSWERS, Ordering::Relaxed);
        }
    }

    /// Returns whether cached lookups are no longer tried.
    pub(crate) fn never_answers(&self) -> bool {
        self.0.load(Ordering::Relaxed) == NEVER
    }

    /// Returns whether a cached lookup has ever succeeded.
    #[cfg(test)]
    pub(crate) fn is_believed(&self) -> bool {
        self.0.load(Ordering::Relaxed) == ANSWERS
    }

    /// Records that a cached lookup failed, perhaps because the name was not cached.
    pub(crate) fn has_not_answered(&self) {
        // If the exchange fails, another thread has already recorded this failure, or a success.
        let _ = self.0.compare_exchange(UNKNOWN, IN_DOUBT, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Records that a cached lookup failed although the name should have been cached.
    pub(crate) fn was_in_vain(&self) {
        let next = |count| (IN_DOUBT..NEVER).contains(&count).then(|| count + 1);
        // The failure is not counted if a lookup of another thread succeeded at the same time.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// Records that the kernel does not support cached lookups.
    pub(crate) fn gives_up(&self) {
        self.0.store(NEVER, Ordering::Relaxed);
    }
}

/// The type that `statfs` returns for tmpfs.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// The kind of a file system without `RWF_NOWAIT`, determined when its first file is read. A process that uses two such
/// file systems may treat the second like the first, which only costs time.
static WITHOUT_NOWAIT: AtomicU8 = AtomicU8::new(NOT_ASKED);
const NOT_ASKED: u8 = 0;
const IN_MEMORY: u8 = 1;
const ON_A_DEVICE: u8 = 2;

/// Appends up to `len` bytes from `offset` to `buffer` if they are in memory. Returns the number of bytes, which is
/// smaller than `len` if the rest is not in memory, and 0 at the end of the file. Errors: `AGAIN` if the first byte is
/// not in memory, or if the file system cannot determine whether the byte is in memory. Cost: one `preadv2`; on tmpfs,
/// also one `pread`.
pub fn read_cached(file: impl AsFd, buffer: &mut Vec<u8>, offset: u64, len: usize) -> Result<usize> {
    buffer.reserve(len);
    let room = &mut buffer.spare_capacity_mut()[..len];
    let count = match pread_nowait(&file, room, offset) {
        Err(Errno::OPNOTSUPP) if is_in_memory(&file)? => pread(&file, room, offset)?.0.len(),
        Err(Errno::OPNOTSUPP) => return Err(Errno::AGAIN),
        done => done?,
    };
    // SAFETY: the kernel has just initialised `count` bytes right after the end of the vector.
    unsafe { buffer.set_len(buffer.len() + count) };
    Ok(count)
}

/// Returns whether the byte at `offset` can be read without a wait; true at the end of the file. Cost: one `preadv2` of
/// a byte.
pub fn is_cached(file: impl AsFd, offset: u64) -> Result<bool> {
    match pread_nowait(&file, &mut [MaybeUninit::uninit()], offset) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN) => Ok(false),
        Err(Errno::OPNOTSUPP) => is_in_memory(&file),
        Err(error) => Err(error),
    }
}

fn pread_nowait(file: impl AsFd, to: &mut [MaybeUninit<u8>], offset: u64) -> Result<usize> {
    point("preadv2")?;
    let piece = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let file = file.as_fd().as_raw_fd();
    let offset = libc::off_t::try_from(offset).map_err(|_| Errno::INVAL)?;
    // SAFETY: `piece` covers all of `to`, which may be written to and outlives the call.
    let count = unsafe { libc::preadv2(file, &raw const piece, 1, offset, libc::RWF_NOWAIT) };
    usize::try_from(count).map_err(|_| last_errno())
}

fn is_in_memory(file: impl AsFd) -> Result<bool> {
    if WITHOUT_NOWAIT.load(Ordering::Relaxed) == NOT_ASKED {
        let StatFs { f_type, .. } = fstatfs(file)?;
        let found = if f_type == TMPFS_MAGIC { IN_MEMORY } else { ON_A_DEVICE };
        WITHOUT_NOWAIT.store(found, Ordering::Relaxed);
    }
    Ok(WITHOUT_NOWAIT.load(Ordering::Relaxed) == IN_MEMORY)
}

/// Makes the kernel drop its cached pages of a file whose content has been written back, so that the next read waits.
/// This function is meant for measurements and tests; a file system may ignore the request.
pub fn drop_cached(file: impl AsFd) -> Result<()> {
    crate::call::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)
}

#[cfg(test)]
mod tests {
    use std::io::{Seek as _, Write as _};

    use super::*;

    #[test]
    fn what_would_have_waited_counts_for_nothing() {
        assert_eq!(without_waiting(|| 1), Some(1));
        assert_eq!(without_waiting(would_wait), None);
        assert_eq!(without_waiting(|| (would_wait(), 1).1), None);
        assert_eq!(without_waiting(is_to_be_done_again), Some(false));
        let mut again = (false, false);
        let done = without_waiting(|| again = (would_wait(), is_to_be_done_again()));
        assert_eq!((done, again), (None, (true, true)));
        assert!(!is_to_be_done_again(), "only while it is done");
        assert!(!would_wait(), "outside, one may wait");
        std::panic::catch_unwind(|| without_waiting(|| panic!("in the middle"))).expect_err("it panics");
        assert!(!would_wait(), "also after a panic");
        assert_eq!(without_waiting(|| 2), Some(2));
        assert_eq!(without_waiting(is_only_in_memory), Some(false));
        assert_eq!(only_in_memory(is_only_in_memory), Some(true));
        assert_eq!(only_in_memory(would_wait), None);
        assert!(!is_only_in_memory(), "outside, one may wait");
    }

    #[test]
    fn who_never_answers_is_asked_no_more() {
        let recall = CachedLookupProbe::default();
        let is_asked = || without_waiting(|| recall.is_to_be_asked()) == Some(true);
        assert!(is_asked() && !recall.is_in_doubt());
        assert!(!recall.is_to_be_asked(), "a thread that may wait does");
        recall.has_not_answered();
        for _ in 0..IN_VAIN_MAX {
            assert!(is_asked() && recall.is_in_doubt());
            recall.was_in_vain();
        }
        assert!(!is_asked() && !recall.is_in_doubt());
        recall.was_in_vain();
        assert!(!is_asked());
    }

    #[test]
    fn one_answer_settles_it() {
        let recall = CachedLookupProbe::default();
        recall.has_not_answered();
        recall.was_in_vain();
        recall.has_answered();
        for _ in 0..2 * IN_VAIN_MAX {
            recall.has_not_answered();
            recall.was_in_vain();
        }
        assert!(!recall.is_in_doubt());
        assert_eq!(without_waiting(|| recall.is_to_be_asked()), Some(true));
    }

    #[test]
    fn what_is_in_memory_is_read_and_the_end_is_the_end() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        file.rewind().unwrap();
        let mut buffer = b"x".to_vec();
        assert_eq!(read_cached(&file, &mut buffer, 2, 5), Ok(5));
        assert_eq!(buffer, b"x23456");
        assert_eq!(read_cached(&file, &mut buffer, 10, 5), Ok(0));
        assert_eq!(is_cached(&file, 3), Ok(true));
        let directory = std::fs::File::open("/").unwrap();
        read_cached(&directory, &mut buffer, 0, 1).expect_err("a directory is not read");
    }

    /// The test needs a file system that can drop cached pages; tmpfs keeps them, because it has no other copy. The
    /// kernel may keep pages, so a read is either complete or refused.
    #[test]
    fn what_is_not_in_memory_is_not_waited_for() {
        const FAR: u64 = 31 << 20;
        let mut file = tempfile::tempfile_in("/var/tmp").unwrap();
        file.write_all(&vec![7; 32 << 20]).unwrap();
        file.sync_all().unwrap();
        drop_cached(&file).unwrap();
        let mut buffer = Vec::new();
        match read_cached(&file, &mut buffer, FAR, 10) {
            Ok(count) => return assert_eq!(buffer, vec![7; count]),
            Err(error) => assert_eq!(error, Errno::AGAIN),
        }
        assert!(buffer.is_empty());
    }
}
