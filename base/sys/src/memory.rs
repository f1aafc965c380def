//! Memory: mapped files, huge pages, and the heap of this process.

use std::fs::File;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::LazyLock;

use rustix::io::{Errno, Result};
use rustix::mm::{Advice, madvise};
use rustix::param::page_size;

use super::file::last_errno;
use crate::call::point;

/// Bytes of a file, mapped for reading.
///
/// The mapped content always belongs to one version of an object, because an object is replaced by another file and
/// never modified in place. If a POSIX program truncates the file, an access beyond its new end raises `SIGBUS`. A
/// caller that cannot rule out such a program must read the file instead.
#[derive(Debug)]
pub struct FileMapping {
    /// The first page; dangling if nothing is mapped.
    pages: NonNull<u8>,
    mapped_bytes: usize,
    /// The offset of the requested bytes within the first page.
    offset: usize,
    /// The number of requested bytes.
    len: usize,
}

// SAFETY: only the mapping owns the memory, which is read-only for as long as the mapping exists.
unsafe impl Send for FileMapping {}
// SAFETY: the memory is read-only, so concurrent reads need no synchronization.
unsafe impl Sync for FileMapping {}

static PAGE_BYTES: LazyLock<u64> = LazyLock::new(|| rustix::param::page_size() as u64);

impl FileMapping {
    /// Maps `len` bytes of `file` from `offset`. The file must contain all of these bytes. Cost: one `mmap`, a page
    /// fault for each page (or group of pages) touched, one `munmap`. Errors: `NODEV` where the file system cannot map
    /// files; `NOMEM`, `OVERFLOW`.
    pub fn new(file: &File, offset: u64, len: u64) -> Result<Self> {
        let before = offset % *PAGE_BYTES;
        let mapped = usize::try_from(len.checked_add(before).ok_or(Errno::OVERFLOW)?);
        let mapped_bytes = mapped.map_err(|_| Errno::OVERFLOW)?;
        let (start, len) = (offset - before, mapped_bytes - before as usize);
        let mut mapping =
            FileMapping { pages: NonNull::dangling(), mapped_bytes: 0, offset: before as usize, len };
        // The kernel refuses empty mappings.
        if len > 0 {
            mapping.pages = map(file, start, mapped_bytes)?;
            mapping.mapped_bytes = mapped_bytes;
        } else {
            mapping.offset = 0;
        }
        Ok(mapping)
    }
}

/// Returns how many of the first `len` bytes of `file` are in the page cache, in whole pages but at most `len`. The
/// kernel reports this only to users who may write to the file; to other users, it reports all bytes. Cost: an `mmap`,
/// an `munmap`, and a `mincore` for each 16 MiB. Errors: as for [`FileMapping::new`].
pub fn cached_bytes(file: &File, len: u64) -> Result<u64> {
    /// The number of pages that one call reports.
    const PAGES: usize = 4096;
    let mapping = FileMapping::new(file, 0, len)?;
    let (page_bytes, mut cached) = (page_size(), 0);
    for start in (0..mapping.mapped_bytes).step_by(PAGES * page_bytes) {
        let bytes = (mapping.mapped_bytes - start).min(PAGES * page_bytes);
        let mut pages = [0_u8; PAGES];
        // SAFETY: the `bytes` bytes from `start` on are mapped, and `pages` has an element for each of their pages.
        let done = unsafe {
            let from = mapping.pages.as_ptr().add(start);
            libc::mincore(from.cast(), bytes, pages.as_mut_ptr())
        };
        if done != 0 {
            return Err(last_errno());
        }
        cached += pages.iter().filter(|page| **page & 1 == 1).count() as u64;
    }
    Ok((cached * *PAGE_BYTES).min(len))
}

fn map(file: &File, start: u64, bytes: usize) -> Result<NonNull<u8>> {
    point("mmap")?;
    let start = libc::off_t::try_from(start).map_err(|_| Errno::OVERFLOW)?;
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
    let address = unsafe {
        libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), start)
    };
    match address {
        libc::MAP_FAILED => Err(last_errno()),
        address => NonNull::new(address.cast()).ok_or(Errno::NOMEM),
    }
}

impl Deref for FileMapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `offset + len` bytes from `pages` on are mapped until `self` is dropped, or `len` and
        // `offset` are 0 and the pointer is not null.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr().add(self.offset), self.len) }
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        if self.mapped_bytes > 0 {
            // SAFETY: exactly these pages were mapped by `new`, and nothing borrows from them any longer.
            unsafe { libc::munmap(self.pages.as_ptr().cast(), self.mapped_bytes) };
        }
    }
}

/// Asks the kernel to back `memory` with huge pages (2 MiB on x86-64) when it is first touched. Each huge page then
/// causes one page fault, instead of one for each 4 KiB. Huge pages are worthwhile for several MiB of fresh memory that
/// will all be used. The call is only a hint (`MADV_HUGEPAGE`) and leaves the content unchanged. If the kernel has no
/// huge pages available, nothing happens. Cost: one `madvise`.
pub fn in_huge_pages(memory: &mut [u8]) {
    let aligned = memory.as_ptr().align_offset(page_size());
    let Some(whole) = memory.get_mut(aligned..) else { return };
    let len = whole.len() / page_size() * page_size();
    // SAFETY: the pages are within `memory`, to which we have exclusive access here, and the advice leaves their
    // content unchanged.
    let _as_usual = unsafe { madvise(whole.as_mut_ptr().cast(), len, Advice::LinuxHugepage) };
}

/// Returns how many freed bytes the allocator keeps for later allocations; 0 if it does not report the number. With
/// glibc before 2.33, the number wraps around at 4 GiB. Cost: a walk over the lists of free blocks, which takes
/// microseconds unless there are very many free blocks.
pub fn unused_heap_bytes() -> u64 {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        static MALLINFO2: std::sync::OnceLock<Option<Mallinfo2Function>> = std::sync::OnceLock::new();
        free_bytes(*MALLINFO2.get_or_init(mallinfo2))
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    0
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
type Mallinfo2Function = unsafe extern "C" fn() -> libc::mallinfo2;

/// Looks up `mallinfo2`, which glibc has had since version 2.33. A program that was linked against `mallinfo2` would
/// not start with an older glibc.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn mallinfo2() -> Option<Mallinfo2Function> {
    // SAFETY: the name ends with a NUL byte, and looking it up changes nothing.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"mallinfo2".as_ptr()) };
    // SAFETY: null becomes `None`, and glibc's function of this name has this type.
    unsafe { std::mem::transmute::<*mut libc::c_void, Option<Mallinfo2Function>>(found) }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn free_bytes(newer: Option<Mallinfo2Function>) -> u64 {
    match newer {
        // SAFETY: the function reads the allocator's own counters while holding the allocator's own locks.
        Some(mallinfo2) => unsafe { mallinfo2() }.fordblks as u64,
        // SAFETY: as for `mallinfo2`. The counters of `mallinfo` are of type `int` and wrap around.
        None => u64::from(unsafe { libc::mallinfo() }.fordblks.cast_unsigned()),
    }
}

/// Returns unused heap memory to the system. Cost: about a millisecond per 10 MiB, during which other allocations wait.
pub fn give_back_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the function touches only memory that the allocator has marked as free.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Mutex;

    use super::*;

    /// Held by each test that looks at the free memory of the process, because each changes it by up to 100 MB.
    static FREE_MEMORY: Mutex<()> = Mutex::new(());

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn old_and_new_glibc_tell_alike_of_free_memory() {
        let _alone = FREE_MEMORY.lock().unwrap();
        // The blocks are small, and another block follows them, so that malloc keeps the memory of the freed blocks.
        let blocks: Vec<Vec<u8>> = (0..100_000).map(|_| vec![1; 1000]).collect();
        let last = vec![1_u8; 1000];
        drop(blocks);
        // Other tests allocate and free memory at the same time.
        for told in [free_bytes(mallinfo2()), free_bytes(None), unused_heap_bytes()] {
            assert!((50_000_000..1_000_000_000).contains(&told), "{told} bytes");
        }
        drop(last);
    }

    #[test]
    fn any_range_is_what_the_file_holds() {
        let mut file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..20_000_u32).map(|at| (at / 7) as u8).collect();
        file.write_all(&content).unwrap();
        for (offset, len) in
            [(0, 20_000), (0, 0), (4096, 4096), (4095, 2), (19_999, 1), (20_000, 0), (5000, 0)]
        {
            let mapping = FileMapping::new(&file, offset, len).unwrap();
            assert_eq!(&*mapping, &content[offset as usize..][..len as usize], "{len} bytes at {offset}");
        }
        assert_eq!(FileMapping::new(&file, u64::MAX, 2).unwrap_err(), Errno::OVERFLOW);
    }

    #[test]
    fn cached_bytes_are_counted() {
        let mut file = tempfile::tempfile_in("/var/tmp").unwrap();
        file.write_all(&vec![1; 20_000_000]).unwrap();
        for len in [0, 1, 4096, 4097, 20_000_000] {
            assert_eq!(cached_bytes(&file, len), Ok(len));
        }
        file.sync_data().unwrap();
        crate::drop_cached(&file).unwrap();
        // A file system may keep all of its files in memory.
        assert!([0, 20_000_000].contains(&cached_bytes(&file, 20_000_000).unwrap()));
    }

    #[test]
    fn content_stays_and_any_memory_will_do() {
        let mut memory = vec![7; 5 << 20];
        in_huge_pages(&mut memory);
        in_huge_pages(&mut memory[1..100]);
        in_huge_pages(&mut []);
        assert!(memory.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn what_was_freed_is_given_back() {
        let _alone = FREE_MEMORY.lock().unwrap();
        let mut blocks: Vec<Vec<u8>> = (0..2_000).map(|_| vec![7; 20_000]).collect();
        let before = unused_heap_bytes();
        // The last block remains allocated, so that the allocator does not return the blocks before it to the system on
        // its own.
        blocks.drain(..1_999);
        let unused = unused_heap_bytes();
        assert!(cfg!(not(target_env = "gnu")) || unused > before + (10 << 20), "{before} {unused}");
        give_back_heap();
    }
}
