//! Reads that do not wait for a device, so that a thread with many clients never does.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::StatFs;
use rustix::io::{Errno, Result};

use crate::call::{fstatfs, point, pread};
use crate::xattr::last_errno;

/// The type that `statfs` gives of files in memory.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// What a file system without `RWF_NOWAIT` is; learned at the first file of one. A process that
/// serves two of them may read from the second as if it were the first, which costs time only.
static WITHOUT_NOWAIT: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const IN_MEMORY: u8 = 1;
const ON_A_DEVICE: u8 = 2;

/// Appends up to `len` bytes from `offset` to `buffer` if they are in memory; returns how many,
/// which may be fewer where only some are, and 0 at the end of the file.
/// Errors: `AGAIN` where the first of them would have to be waited for, or where the file system
/// cannot tell. Cost: one `preadv2`; where the file system has no `RWF_NOWAIT`, a `pread` as well.
pub fn read_cached(file: impl AsFd, buffer: &mut Vec<u8>, offset: u64, len: usize) -> Result<usize> {
    buffer.reserve(len);
    let room = &mut buffer.spare_capacity_mut()[..len];
    let count = match pread_nowait(&file, room, offset) {
        Err(Errno::OPNOTSUPP) if is_in_memory(&file)? => pread(&file, room, offset)?.0.len(),
        Err(Errno::OPNOTSUPP) => return Err(Errno::AGAIN),
        done => done?,
    };
    // SAFETY: the kernel has just initialised `count` bytes right behind the vector's length.
    unsafe { buffer.set_len(buffer.len() + count) };
    Ok(count)
}

/// Whether the byte at `offset` can be read without waiting; the end of the file can.
/// Cost: one `preadv2` of a byte.
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
    // SAFETY: `piece` is all of `to`, which may be written to, and outlives the call.
    let count = unsafe { libc::preadv2(file, &raw const piece, 1, offset, libc::RWF_NOWAIT) };
    usize::try_from(count).map_err(|_| last_errno())
}

fn is_in_memory(file: impl AsFd) -> Result<bool> {
    if WITHOUT_NOWAIT.load(Ordering::Relaxed) == UNKNOWN {
        let StatFs { f_type, .. } = fstatfs(file)?;
        let found = if f_type == TMPFS_MAGIC { IN_MEMORY } else { ON_A_DEVICE };
        WITHOUT_NOWAIT.store(found, Ordering::Relaxed);
    }
    Ok(WITHOUT_NOWAIT.load(Ordering::Relaxed) == IN_MEMORY)
}

/// Has the kernel forget what it holds of a file that is written out, so that the next read waits.
/// Meant for measurements and tests; a file system may ignore it.
pub fn drop_cached(file: impl AsFd) -> Result<()> {
    crate::call::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)
}

#[cfg(test)]
mod tests {
    use std::io::{Seek as _, Write as _};

    use super::*;

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

    /// On a file system that forgets; tmpfs has nowhere to read it from again. Asking for a byte has the
    /// kernel fetch what is around it, so the two places are far apart.
    #[test]
    fn what_is_not_in_memory_is_not_waited_for() {
        const FAR: u64 = 31 << 20;
        let mut file = tempfile::tempfile_in("/var/tmp").unwrap();
        file.write_all(&vec![7; 32 << 20]).unwrap();
        file.sync_all().unwrap();
        drop_cached(&file).unwrap();
        let mut buffer = Vec::new();
        if is_cached(&file, 0).unwrap() {
            // In memory whatever is asked: nothing to be waited for.
            assert_eq!(read_cached(&file, &mut buffer, FAR, 10), Ok(10));
            return;
        }
        assert_eq!(read_cached(&file, &mut buffer, FAR, 10), Err(Errno::AGAIN));
        assert!(buffer.is_empty());
    }
}
