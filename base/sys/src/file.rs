//! Files: staging, publishing, reading and copying, and their extended attributes.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, IFlags, Mode, OFlags, RenameFlags, SeekFrom, Stat, StatVfsMountFlags, Statx,
    StatxFlags, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags,
};
use rustix::io::{Errno, Result};
use rustix::path::Arg;
use rustix::thread::{CapabilitySet, UnshareFlags};

use super::dir::{text_to_name, with_name};
use crate::call::{
    self, copy_file_range, fchmod, fchown, fdatasync, fgetxattr, fremovexattr, fsetxattr, fstat, fstatvfs,
    fsync, ftruncate, futimens, ioctl_getflags, ioctl_setflags, lgetxattr, link_by_descriptor, linkat, lseek,
    mkdirat, open_tmpfile, openat, point, pread, pwrite, renameat, renameat_with, statat, statx, unlinkat,
};
use crate::identity::with_capabilities;

/// Whether the kernel allows this process to call `linkat` with `AT_EMPTY_PATH`; cleared when the kernel refuses this
/// call and the fallback succeeds.
static LINK_BY_DESCRIPTOR: AtomicBool = AtomicBool::new(true);

/// The metadata of a file, in the units Fordway uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStat {
    /// The length in bytes.
    pub size: u64,
    /// The time of the last change of the content, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// The time of the last change of content, name or attributes, in nanoseconds since 1970.
    pub changed_ns: i64,
    /// The inode number.
    pub inode: u64,
    /// The device number.
    pub device: u64,
    /// The number of hard links to the file; 0 for an unnamed or removed file.
    pub links: u64,
    /// The user ID of the owner.
    pub user: u32,
    /// The group ID.
    pub group: u32,
    /// Permission bits, including set-user-ID, set-group-ID and the sticky bit, but not the file type.
    pub mode: u32,
    /// Whether the file is a regular file.
    pub is_file: bool,
    /// Whether the file is a directory.
    pub is_dir: bool,
    /// Whether the file is a symbolic link.
    pub is_link: bool,
}

impl FileStat {
    fn new(stat: &Stat) -> Self {
        let kind = FileType::from_raw_mode(stat.st_mode);
        FileStat {
            size: stat.st_size as u64,
            modified_ns: nanoseconds(stat.st_mtime, stat.st_mtime_nsec as i64),
            changed_ns: change_time(stat.st_ctime, stat.st_ctime_nsec as i64),
            inode: stat.st_ino,
            device: stat.st_dev,
            links: stat.st_nlink,
            user: stat.st_uid,
            group: stat.st_gid,
            mode: stat.st_mode & 0o7777,
            is_file: kind == FileType::RegularFile,
            is_dir: kind == FileType::Directory,
            is_link: kind == FileType::Symlink,
        }
    }
}

impl FileStat {
    /// Converts the `statx` result of a file on `device`.
    pub(crate) fn of_statx(stat: &Statx, device: u64) -> Self {
        let kind = FileType::from_raw_mode(stat.stx_mode.into());
        FileStat {
            size: stat.stx_size,
            modified_ns: nanoseconds(stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec.into()),
            changed_ns: change_time(stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec.into()),
            inode: stat.stx_ino,
            device,
            links: stat.stx_nlink.into(),
            user: stat.stx_uid,
            group: stat.stx_gid,
            mode: u32::from(stat.stx_mode) & 0o7777,
            is_file: kind == FileType::RegularFile,
            is_dir: kind == FileType::Directory,
            is_link: kind == FileType::Symlink,
        }
    }
}

/// Returns a time in nanoseconds. Times before 1677-09-21 and after 2262-04-11 do not fit into 64 bits and are clamped.
fn nanoseconds(seconds: i64, nanoseconds: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

/// Returns the time of the last change of a file's name or attributes, in nanoseconds. A test may set it back.
fn change_time(seconds: i64, nanoseconds_of_second: i64) -> i64 {
    let time_ns = nanoseconds(seconds, nanoseconds_of_second);
    #[cfg(feature = "faults")]
    let time_ns = time_ns.saturating_sub(crate::fault::age_ns());
    time_ns
}

/// Returns the metadata of an open file. Cost: one `fstat`.
pub fn stat(file: impl AsFd) -> Result<FileStat> {
    fstat(file).map(|stat| FileStat::new(&stat))
}

/// Returns the metadata of `name` in `dir`, without following a link. Cost: one `newfstatat`.
pub fn stat_in(dir: impl AsFd, name: &str) -> Result<FileStat> {
    with_name(name, |name| statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)).map(|stat| FileStat::new(&stat))
}

/// Opens `name` in `dir`, without following a link. Errors: `INVAL` if `name` is a path, because a name that was read
/// from a file must not lead out of `dir`.
pub fn open_in(dir: impl AsFd, name: &str, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    if name.contains('/') || name == ".." {
        return Err(Errno::INVAL);
    }
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    with_name(name, |name| openat(dir, name, flags, mode))
}

/// Creates a file in `dir` that has no name until [`link_unnamed`] links it; after a crash, nothing remains of an
/// unnamed file. Errors: `OPNOTSUPP` (or `ISDIR` on old kernels) if the file system has no `O_TMPFILE`.
pub fn create_unnamed(dir: impl AsFd, mode: Mode) -> Result<OwnedFd> {
    open_tmpfile(dir, ".", OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC, mode)
}

/// Links the unnamed `file` into `dir` as `name`. Errors: `EXIST` if the name exists.
pub fn link_unnamed(file: impl AsFd, dir: impl AsFd, name: &str) -> Result<()> {
    let name = text_to_name(name);
    if LINK_BY_DESCRIPTOR.load(Ordering::Relaxed) {
        match link_by_descriptor(&file, "", &dir, &*name, AtFlags::EMPTY_PATH) {
            // ENOENT means that the process lacks the required permission, or that the directory is gone. If the
            // directory is gone, the fallback also fails.
            Err(Errno::NOENT | Errno::INVAL | Errno::PERM) => {}
            done => return done,
        }
    }
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    linkat(CWD, path.as_str(), dir, &*name, AtFlags::SYMLINK_FOLLOW)?;
    LINK_BY_DESCRIPTOR.store(false, Ordering::Relaxed);
    Ok(())
}

/// Sets the time of the last change of the content, in nanoseconds since 1970; file systems may round the time.
pub fn set_modified(file: impl AsFd, modified_ns: i64) -> Result<()> {
    let (seconds, ns) = (modified_ns.div_euclid(1_000_000_000), modified_ns.rem_euclid(1_000_000_000));
    let last_modification = Timespec { tv_sec: seconds, tv_nsec: ns };
    let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    futimens(file, &Timestamps { last_access, last_modification })
}

/// Sets the permission bits of an open file, including set-user-ID, set-group-ID and the sticky bit.
pub fn set_mode(file: impl AsFd, mode: u32) -> Result<()> {
    fchmod(file, Mode::from_raw_mode(mode))
}

/// Changes the group of an open file. The owner of the file may choose any group that the owner belongs to.
pub fn set_group(file: impl AsFd, group: u32) -> Result<()> {
    fchown(file, None, Some(Gid::from_raw(group)))
}

/// Changes the owner of an open file or directory. Errors: `PERM` unless the caller is root.
pub fn set_owner(file: impl AsFd, user: u32) -> Result<()> {
    fchown(file, Some(Uid::from_raw(user)), None)
}

/// The first pause before a retry on a busy file. Each further pause is twice as long as the previous pause, and the
/// last pause is 512 ms.
const BUSY_PAUSE: Duration = Duration::from_millis(1);
const BUSY_TRIES: u32 = 10;

/// Retries a call that acts on a name if an NFS server reports that another client has the file open (NFS4ERR_FILE_OPEN
/// in RFC 8881, `TXTBSY` in Linux). The server reports this error while it recalls a delegation. Local file systems
/// never report it.
fn once_free(act: impl Fn() -> Result<()>) -> Result<()> {
    for round in 0..BUSY_TRIES {
        match act() {
            Err(Errno::TXTBSY) => std::thread::sleep(BUSY_PAUSE * 2_u32.pow(round)),
            done => return done,
        }
    }
    act()
}

/// Calls `act` with two names, and retries like [`once_free`].
fn with_names(from: &str, to: &str, act: impl Fn(&CStr, &CStr) -> Result<()>) -> Result<()> {
    with_name(from, |from| with_name(to, |to| once_free(|| act(from, to))))
}

/// Creates a hard link `to` in one directory to the file `from` in another directory. Errors: `EXIST`.
pub fn link(from_dir: impl AsFd, from: &str, to_dir: impl AsFd, to: &str) -> Result<()> {
    with_names(from, to, |from, to| linkat(&from_dir, from, &to_dir, to, AtFlags::empty()))
}

/// Renames `from` in one directory to `to` in another directory, replacing an existing `to`.
pub fn rename(from_dir: impl AsFd, from: &str, to_dir: impl AsFd, to: &str) -> Result<()> {
    with_names(from, to, |from, to| renameat(&from_dir, from, &to_dir, to))
}

/// Renames `from` in one directory to `to` in another directory, if `to` does not exist. Errors: `EXIST` if `to`
/// exists; `INVAL` where the file system does not support such a rename (NFS).
pub fn rename_new(from_dir: impl AsFd, from: &str, to_dir: impl AsFd, to: &str) -> Result<()> {
    with_names(from, to, |from, to| renameat_with(&from_dir, from, &to_dir, to, RenameFlags::NOREPLACE))
}

/// Sets or clears the immutable flag of an open file (`FS_IOC_SETFLAGS`). Until the flag is cleared, nobody, including
/// the owner and root, can change, link, rename or remove the file. Errors: `PERM` without the `CAP_LINUX_IMMUTABLE`
/// capability; `NOTTY` or `OPNOTSUPP` where the file system has no such flag. Returns whether the flag
/// changed. Cost: one call if the flag already has this value, otherwise five.
pub fn set_immutable(file: impl AsFd, is_immutable: bool) -> Result<bool> {
    let flags = ioctl_getflags(&file)?;
    let mut wanted = flags;
    wanted.set(IFlags::IMMUTABLE, is_immutable);
    if wanted == flags {
        return Ok(false);
    }
    with_capabilities(CapabilitySet::LINUX_IMMUTABLE | CapabilitySet::FOWNER, || {
        ioctl_setflags(&file, wanted).map(|()| true)
    })?
}

/// Returns whether an open file has the immutable flag. Errors: as for [`set_immutable`].
pub fn is_immutable(file: impl AsFd) -> Result<bool> {
    Ok(ioctl_getflags(&file)?.contains(IFlags::IMMUTABLE))
}

/// Removes the file `name`. Errors: `ISDIR` (or `PERM`) if `name` is a directory.
pub fn remove_file(dir: impl AsFd, name: &str) -> Result<()> {
    with_name(name, |name| once_free(|| unlinkat(&dir, name, AtFlags::empty())))
}

/// Removes the empty directory `name`. Errors: `NOTEMPTY`.
pub fn remove_dir(dir: impl AsFd, name: &str) -> Result<()> {
    match with_name(name, |name| unlinkat(dir, name, AtFlags::REMOVEDIR)) {
        Err(Errno::EXIST) => Err(Errno::NOTEMPTY),
        done => done,
    }
}

/// Creates the directory `name`; returns whether it is new.
pub fn make_dir(dir: impl AsFd, name: &str, mode: Mode) -> Result<bool> {
    match with_name(name, |name| mkdirat(dir, name, mode)) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Creates the directory `name` with the permissions `mode` in one step, regardless of the process's umask; returns
/// whether the directory is new. If the kernel does not permit this, or the thread cannot be started, the umask
/// applies. Cost: as for [`make_dir`]; if the umask would remove some of the permissions, also one `newfstatat` and a
/// thread.
pub fn make_dir_regardless_of_umask(dir: impl AsFd, name: &str, mode: Mode) -> Result<bool> {
    if mode.as_raw_mode() & umask_at_start() == 0 {
        return make_dir(dir, name, mode);
    }
    match stat_in(&dir, name) {
        Ok(_) => return Ok(false),
        Err(Errno::NOENT) => point("mkdirat")?,
        Err(error) => return Err(error),
    }
    let dir = dir.as_fd();
    let make = || {
        // SAFETY: only this thread, which makes a single call, gets its own working directory and umask.
        if unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }.is_ok() {
            rustix::process::umask(Mode::empty());
        }
        make_dir(dir, name, mode)
    };
    std::thread::scope(|scope| match std::thread::Builder::new().spawn_scoped(scope, make) {
        Ok(thread) => thread.join().unwrap_or(Err(Errno::IO)),
        Err(_) => make_dir(dir, name, mode),
    })
}

/// Returns the umask that the process had when this function was first called. Without `/proc`, returns a umask that
/// removes all permissions of other users.
fn umask_at_start() -> u32 {
    static UMASK: LazyLock<u32> = LazyLock::new(|| {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let stated = status.lines().find_map(|line| line.strip_prefix("Umask:"));
        stated.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok()).unwrap_or(0o077)
    });
    *UMASK
}

/// Writes all of `data` at `offset`; after an error, some of the data may have been written. Errors: `NOSPC`, `DQUOT`,
/// `FBIG`, `IO`.
pub fn write_all_at(file: impl AsFd, mut data: &[u8], mut offset: u64) -> Result<()> {
    while !data.is_empty() {
        match pwrite(&file, data, offset) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => {
                data = &data[written..];
                offset += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Appends up to `len` bytes from `offset` to `buffer`, without initialising its memory first; returns the number of
/// bytes. The number is smaller than `len` only at the end of the file. Errors: `NOMEM` if there is no memory for `len`
/// bytes: a sparse file may be larger than memory, and must not abort the process. Cost: one `pread` if the first one
/// returns all bytes.
pub fn read_into_spare(file: impl AsFd, buffer: &mut Vec<u8>, offset: u64, len: usize) -> Result<usize> {
    buffer.try_reserve(len).map_err(|_| Errno::NOMEM)?;
    let got = read_uninit(file, &mut buffer.spare_capacity_mut()[..len], offset)?;
    // SAFETY: the kernel has just initialised `got` bytes right after the end of the vector.
    unsafe { buffer.set_len(buffer.len() + got) };
    Ok(got)
}

/// Reads from `offset` into memory that need not be initialised; returns the number of bytes read, which are then
/// initialised. The number is smaller than the length of `room` only at the end of the file. Cost: one `pread` if the
/// first one returns all bytes.
pub fn read_uninit(file: impl AsFd, room: &mut [MaybeUninit<u8>], offset: u64) -> Result<usize> {
    let mut got = 0;
    while got < room.len() {
        let count = match pread(&file, &mut room[got..], offset + got as u64) {
            Ok((filled, _)) => filled.len(),
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error),
        };
        if count == 0 {
            break;
        }
        got += count;
    }
    Ok(got)
}

/// Copies `len` bytes within the kernel, which shares extents if the file system supports sharing. Returns the number
/// of bytes copied, which is smaller than `len` only at the end of `from`. Errors: `XDEV`, `NOSYS`, `OPNOTSUPP` or
/// `INVAL` if this pair of files needs a plain copy.
pub fn copy_range(from: impl AsFd, from_offset: u64, to: impl AsFd, to_offset: u64, len: u64) -> Result<u64> {
    let (mut source, mut target, mut copied) = (from_offset, to_offset, 0);
    while copied < len {
        let wanted = usize::try_from(len - copied).unwrap_or(usize::MAX).min(1 << 30);
        match copy_file_range(&from, Some(&mut source), &to, Some(&mut target), wanted) {
            Ok(0) => break,
            Ok(count) => copied += count as u64,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(copied)
}

/// Returns the first range of an open file, at or after byte `from`, that contains data; `None` if only a hole follows.
/// The file system decides how long a hole must be to be reported, and some file systems report no holes. Errors:
/// `INVAL` where the file system cannot look for holes. Cost: two `lseek`, which change the file's position.
pub fn next_data(file: impl AsFd, from: u64) -> Result<Option<Range<u64>>> {
    let start = match lseek(&file, SeekFrom::Data(from)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    Ok(Some(start..lseek(&file, SeekFrom::Hole(start))?))
}

/// Sets the length of an open file. A file that becomes longer ends with a hole. Cost: one `ftruncate`.
pub fn set_size(file: impl AsFd, bytes: u64) -> Result<()> {
    ftruncate(file, bytes)
}

/// Forces a file's content to stable storage. Cost: one `fdatasync`.
pub fn sync_data(file: impl AsFd) -> Result<()> {
    fdatasync(file)
}

/// Reports the errors that closing the file would report. NFS, FUSE and other network file systems send written data to
/// the server later, and report that the server has refused the data when the file is closed. The file stays open, and
/// keeps its `flock` locks. Local file systems reserve space at each write, so they have nothing to report. Errors: the
/// errors of the delayed writes, such as `NOSPC`, `DQUOT` or `IO`. Cost: one `fcntl` and one `close`.
pub fn close_errors(file: impl AsFd) -> Result<()> {
    let copy = rustix::io::fcntl_dupfd_cloexec(file, 0)?;
    // SAFETY: `into_raw_fd` passes the ownership of the descriptor to this function, which closes it once.
    match unsafe { libc::close(copy.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Forces a file's content, attributes and times, or a directory's entries and attributes, to stable storage. Cost: one
/// `fsync`.
pub fn sync_all(file: impl AsFd) -> Result<()> {
    fsync(file)
}

/// Returns the creation time of a file or directory, in nanoseconds since 1970. If the file system does not record the
/// creation time, returns the time of the last change. Cost: one `statx`.
pub fn created_ns(file: impl AsFd) -> Result<i64> {
    let wanted = StatxFlags::BTIME | StatxFlags::MTIME;
    let stat = statx(file, "", AtFlags::EMPTY_PATH, wanted)?;
    let known = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
    let time = if known { stat.stx_btime } else { stat.stx_mtime };
    Ok(nanoseconds(time.tv_sec, time.tv_nsec.into()))
}

/// Returns the creation time of a file or directory as [`created_ns`] does; `None` if the file system does not record
/// the creation time.
pub fn recorded_creation_ns(file: impl AsFd) -> Result<Option<i64>> {
    let stat = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME)?;
    let is_known = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
    Ok(is_known.then(|| nanoseconds(stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec.into())))
}

/// Returns the number of hard links to the file `name` in `dir`, as the file system itself reports it. The kernel's
/// cached number may be a second old on a network file system or FUSE. Cost: one `statx`.
pub fn links_in(dir: impl AsFd, name: &str) -> Result<u64> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
    with_name(name, |name| statx(dir, name, flags, StatxFlags::NLINK)).map(|stat| u64::from(stat.stx_nlink))
}

/// Returns the number of bytes that an ordinary user may still write to the file system of `file`.
pub fn free_bytes(file: impl AsFd) -> Result<u64> {
    fstatvfs(file).map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Returns whether the mount of an open file is read-only, for this process's mount namespace. Cost: one `fstatvfs`.
pub fn is_read_only(file: impl AsFd) -> Result<bool> {
    fstatvfs(file).map(|stat| stat.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// Returns the number of bytes that were free (see [`free_bytes`]) before a failed write. `written` is the size of
/// `file` before that write. Blocks that the failed write has allocated for `file` count as free.
pub fn free_bytes_before(file: impl AsFd, written: u64) -> Result<u64> {
    let stat = fstat(&file)?;
    let allocated = u64::try_from(stat.st_blocks).unwrap_or_default().saturating_mul(512);
    Ok(free_bytes(file)?.saturating_add(allocated.saturating_sub(written)))
}

/// The system call number of `getxattrat` on every architecture (Linux 6.13).
const SYS_GETXATTRAT: libc::c_long = 464;

/// Whether the kernel has `getxattrat`; cleared when the kernel first refuses it.
static HAS_GETXATTRAT: AtomicBool = AtomicBool::new(true);

/// Reads the extended attribute `name` of an open file into `buffer`; `None` if the file has no such attribute. Errors:
/// `RANGE` if the value does not fit; `OPNOTSUPP` where the file system has no extended attributes. Cost: one
/// `fgetxattr`.
pub fn get_xattr<'b>(file: impl AsFd, name: &CStr, buffer: &'b mut [u8]) -> Result<Option<&'b [u8]>> {
    let length = absent_is_none(fgetxattr(file, name, &mut *buffer))?;
    Ok(length.map(|length| &buffer[..length]))
}

/// Reads an attribute like [`get_xattr`], but of the file `file_name` in `dir`. Does not open the file, and does not
/// follow a link. Cost: one `getxattrat`, or one `lgetxattr` through `/proc` on kernels before 6.13.
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

/// Sets the extended attribute `name` of an open file. Errors: `NOTSUP` where the file system has no extended
/// attributes; `NOSPC`, `DQUOT` or `2BIG` if the value does not fit.
pub fn set_xattr(file: impl AsFd, name: &CStr, value: &[u8]) -> Result<()> {
    fsetxattr(file, name, value, XattrFlags::empty())
}

/// Removes the extended attribute `name` of an open file; returns whether it existed.
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

/// The kernel's `struct xattr_args`.
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
    // SAFETY: both strings end in NUL. `args` is the structure that the kernel expects, and its size is passed. The
    // pointer in `args` refers to `size` bytes that nothing else accesses during the call.
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

/// Returns the calling thread's `errno`.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a file system with extended attributes, all three ways of reading an attribute return the same result.
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
