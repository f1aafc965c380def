//! Extended attributes.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::XattrFlags;
use rustix::io::{Errno, Result};
use rustix::path::Arg;

use crate::call::{self, fgetxattr, fremovexattr, fsetxattr, lgetxattr};
use crate::name::text_to_name;

/// The number of `getxattrat` on every architecture (Linux 6.13).
const SYS_GETXATTRAT: libc::c_long = 464;

/// Whether the kernel has `getxattrat`; learned at the first refusal.
static HAS_GETXATTRAT: AtomicBool = AtomicBool::new(true);

/// Reads the attribute `name` of an open file into `buffer`; `None` if the file has none.
/// Errors: `RANGE` if it does not fit, `OPNOTSUPP` where the file system has no attributes.
/// Cost: one `fgetxattr`.
pub fn get_xattr<'b>(file: impl AsFd, name: &CStr, buffer: &'b mut [u8]) -> Result<Option<&'b [u8]>> {
    let length = absent_is_none(fgetxattr(file, name, &mut *buffer))?;
    Ok(length.map(|length| &buffer[..length]))
}

/// As [`get_xattr`], of `file_name` in `dir`, without opening it and not following a link.
/// Cost: one `getxattrat`, or one `lgetxattr` through `/proc` on kernels before 6.13.
pub fn get_xattr_in<'b>(
    dir: impl AsFd,
    file_name: &str,
    name: &CStr,
    buffer: &'b mut [u8],
) -> Result<Option<&'b [u8]>> {
    let file_name = text_to_name(file_name);
    if HAS_GETXATTRAT.load(Ordering::Relaxed) {
        let dir = dir.as_fd().as_raw_fd();
        match (&*file_name).into_with_c_str(|file_name| getxattrat(dir, file_name, name, &mut *buffer)) {
            Err(Errno::NOSYS | Errno::PERM) => HAS_GETXATTRAT.store(false, Ordering::Relaxed),
            found => return Ok(absent_is_none(found)?.map(|length| &buffer[..length])),
        }
    }
    let mut path = format!("/proc/self/fd/{}/", dir.as_fd().as_raw_fd()).into_bytes();
    path.extend_from_slice(&file_name);
    let length = absent_is_none(lgetxattr(path.as_slice(), name, &mut *buffer))?;
    Ok(length.map(|length| &buffer[..length]))
}

/// Sets the attribute `name` of an open file. Errors: `NOTSUP` where the file system has none,
/// `NOSPC`, `DQUOT` or `2BIG` where it does not fit.
pub fn set_xattr(file: impl AsFd, name: &CStr, value: &[u8]) -> Result<()> {
    fsetxattr(file, name, value, XattrFlags::empty())
}

/// Removes the attribute `name` of an open file; says whether there was one.
pub fn remove_xattr(file: impl AsFd, name: &CStr) -> Result<bool> {
    match fremovexattr(file, name) {
        Ok(()) => Ok(true),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn absent_is_none(result: Result<usize>) -> Result<Option<usize>> {
    match result {
        Ok(length) => Ok(Some(length)),
        Err(Errno::NODATA) => Ok(None),
        Err(error) => Err(error),
    }
}

/// `struct xattr_args` of the kernel's interface.
#[repr(C)]
struct XattrArgs {
    value: u64,
    size: u32,
    flags: u32,
}

fn getxattrat(dir: i32, file_name: &CStr, name: &CStr, buffer: &mut [u8]) -> Result<usize> {
    call::point("getxattrat")?;
    let size = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
    let args = XattrArgs { value: buffer.as_mut_ptr() as u64, size, flags: 0 };
    // SAFETY: both strings end in NUL; `args` is the structure the kernel expects, of the size
    // stated, and points to `size` bytes that are ours alone during the call.
    let length = unsafe {
        libc::syscall(
            SYS_GETXATTRAT,
            dir,
            file_name.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
            name.as_ptr(),
            &raw const args,
            size_of::<XattrArgs>(),
        )
    };
    if length >= 0 { Ok(length as usize) } else { Err(last_errno()) }
}

/// The calling thread's `errno`.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All three ways of reading agree, on a file system that has attributes.
    #[test]
    fn attributes_round_trip() {
        let dir = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(dir.path().join("f")).unwrap();
        let name = c"user.fordway.test";
        let mut buffer = [0; 16];
        match set_xattr(&file, name, b"value") {
            Err(Errno::OPNOTSUPP) => {
                assert_eq!(get_xattr(&file, name, &mut buffer), Err(Errno::OPNOTSUPP));
                return;
            }
            set => set.unwrap(),
        }
        assert_eq!(get_xattr(&file, c"user.none", &mut buffer), Ok(None));
        let dir = std::fs::File::open(dir.path()).unwrap();
        assert_eq!(get_xattr(&file, name, &mut buffer), Ok(Some(&b"value"[..])));
        assert_eq!(get_xattr_in(&dir, "f", name, &mut buffer), Ok(Some(&b"value"[..])));
        HAS_GETXATTRAT.store(false, Ordering::Relaxed);
        assert_eq!(get_xattr_in(&dir, "f", name, &mut buffer), Ok(Some(&b"value"[..])));
        assert_eq!(get_xattr_in(&dir, "f", c"user.none", &mut buffer), Ok(None));
        assert_eq!(get_xattr(&file, name, &mut buffer[..2]), Err(Errno::RANGE));
    }
}
