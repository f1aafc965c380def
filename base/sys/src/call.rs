//! The file-system calls of this crate. Each call has its own function in this file, or another module makes the call
//! after [`point`]. A test can therefore count each call, make it fail, or kill the process just before the call.

use std::ffi::CString;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};

use rustix::buffer::Buffer;
use rustix::fs::{
    self, Advice, AtFlags, IFlags, Mode, OFlags, RenameFlags, ResolveFlags, SeekFrom, Stat, StatFs, StatVfs,
    Statx, StatxFlags, Timestamps, XattrFlags, inotify,
};
use rustix::io::{self, Errno, Result};
use rustix::path::Arg;

/// Marks the point before the call `name`. The caller makes the call only if this function returns `Ok`.
#[inline(always)]
pub(crate) fn point(name: &'static str) -> Result<()> {
    #[cfg(feature = "faults")]
    return crate::fault::point(name);
    #[cfg(not(feature = "faults"))]
    {
        let _ = name;
        Ok(())
    }
}

/// Returns the result of the call after [`point`], unless a test simulates the loss of the reply.
#[inline(always)]
fn reply<T>(result: Result<T>) -> Result<T> {
    #[cfg(feature = "faults")]
    return crate::fault::reply(result);
    #[cfg(not(feature = "faults"))]
    result
}

/// Replaces `NOENT` with `STALE` in the error of a call on an open file. GlusterFS may return `NOENT` for an open file
/// that its server no longer has. FUSE file systems may return `NOENT` for an open file whose name was removed. A
/// missing name is a different case, which callers interpret as the absence of an object.
#[inline(always)]
pub(crate) fn of_open_file(errno: Errno) -> Errno {
    if errno == Errno::NOENT { Errno::STALE } else { errno }
}

/// Defines functions for calls. Each call after `on open files:` takes an open file and no name (see
/// [`of_open_file`]).
macro_rules! calls {
    ($(fn $name:ident $(<$generic:ident: $bound:path>)? ($($arg:ident: $type:ty),*) -> $result:ty = $call:path;)*
     on open files:
     $(fn $named:ident $(<$generic_of:ident: $bound_of:path>)? ($($arg_of:ident: $type_of:ty),*) -> $result_of:ty = $call_of:path;)*) => {
        $(#[inline]
        pub(crate) fn $name $(<$generic: $bound>)? ($($arg: $type),*) -> Result<$result> {
            point(stringify!($name))?;
            reply($call($($arg),*))
        })*
        $(#[inline]
        pub(crate) fn $named $(<$generic_of: $bound_of>)? ($($arg_of: $type_of),*) -> Result<$result_of> {
            point(stringify!($named)).and_then(|()| reply($call_of($($arg_of),*))).map_err(of_open_file)
        })*
    };
}

calls! {
    fn fadvise(file: impl AsFd, offset: u64, len: Option<NonZeroU64>, advice: Advice) -> () = fs::fadvise;
    fn inotify_add_watch(queue: impl AsFd, path: impl Arg, flags: inotify::WatchFlags) -> i32 = inotify::add_watch;
    fn inotify_init(flags: inotify::CreateFlags) -> OwnedFd = inotify::init;
    fn inotify_rm_watch(queue: impl AsFd, watch: i32) -> () = inotify::remove_watch;
    fn lgetxattr(path: impl Arg, name: impl Arg, value: &mut [u8]) -> usize = fs::lgetxattr;
    fn ioctl_getflags(file: impl AsFd) -> IFlags = fs::ioctl_getflags;
    fn ioctl_setflags(file: impl AsFd, flags: IFlags) -> () = fs::ioctl_setflags;
    fn linkat(from_dir: impl AsFd, from: impl Arg, to_dir: impl AsFd, to: impl Arg, flags: AtFlags) -> () = fs::linkat;
    fn link_by_descriptor(file: impl AsFd, from: impl Arg, to_dir: impl AsFd, to: impl Arg, flags: AtFlags) -> () = fs::linkat;
    fn mkdirat(dir: impl AsFd, path: impl Arg, mode: Mode) -> () = fs::mkdirat;
    fn openat(dir: impl AsFd, path: impl Arg, flags: OFlags, mode: Mode) -> OwnedFd = fs::openat;
    fn open_tmpfile(dir: impl AsFd, path: impl Arg, flags: OFlags, mode: Mode) -> OwnedFd = fs::openat;
    fn openat2(dir: impl AsFd, path: impl Arg, flags: OFlags, mode: Mode, resolve: ResolveFlags) -> OwnedFd = fs::openat2;
    fn read<B: Buffer<u8>>(file: impl AsFd, buffer: B) -> B::Output = io::read;
    fn readlinkat(dir: impl AsFd, path: impl Arg, reuse: Vec<u8>) -> CString = fs::readlinkat;
    fn renameat(from_dir: impl AsFd, from: impl Arg, to_dir: impl AsFd, to: impl Arg) -> () = fs::renameat;
    fn renameat_with(from_dir: impl AsFd, from: impl Arg, to_dir: impl AsFd, to: impl Arg, flags: RenameFlags) -> () = fs::renameat_with;
    fn sendfile(to: impl AsFd, from: impl AsFd, offset: Option<&mut u64>, len: usize) -> usize = fs::sendfile;
    fn statat(dir: impl AsFd, path: impl Arg, flags: AtFlags) -> Stat = fs::statat;
    fn statx(dir: impl AsFd, path: impl Arg, flags: AtFlags, mask: StatxFlags) -> Statx = fs::statx;
    fn unlinkat(dir: impl AsFd, path: impl Arg, flags: AtFlags) -> () = fs::unlinkat;
on open files:
    fn copy_file_range(from: impl AsFd, from_offset: Option<&mut u64>, to: impl AsFd, to_offset: Option<&mut u64>, len: usize) -> usize = fs::copy_file_range;
    fn fchmod(file: impl AsFd, mode: Mode) -> () = fs::fchmod;
    fn fchown(file: impl AsFd, user: Option<fs::Uid>, group: Option<fs::Gid>) -> () = fs::fchown;
    fn fdatasync(file: impl AsFd) -> () = fs::fdatasync;
    fn fsync(file: impl AsFd) -> () = fs::fsync;
    fn ftruncate(file: impl AsFd, bytes: u64) -> () = fs::ftruncate;
    fn fgetxattr(file: impl AsFd, name: impl Arg, value: &mut [u8]) -> usize = fs::fgetxattr;
    fn fremovexattr(file: impl AsFd, name: impl Arg) -> () = fs::fremovexattr;
    fn fsetxattr(file: impl AsFd, name: impl Arg, value: &[u8], flags: XattrFlags) -> () = fs::fsetxattr;
    fn fstat(file: impl AsFd) -> Stat = fs::fstat;
    fn fstatfs(file: impl AsFd) -> StatFs = fs::fstatfs;
    fn fstatvfs(file: impl AsFd) -> StatVfs = fs::fstatvfs;
    fn futimens(file: impl AsFd, times: &Timestamps) -> () = fs::futimens;
    fn lseek(file: impl AsFd, to: SeekFrom) -> u64 = fs::seek;
    fn pread<B: Buffer<u8>>(file: impl AsFd, buffer: B, offset: u64) -> B::Output = io::pread;
    fn pwrite(file: impl AsFd, data: &[u8], offset: u64) -> usize = io::pwrite;
}

#[cfg(test)]
mod tests {
    /// Checks that these modules import no file-system function of rustix, because tests could neither count calls of
    /// such a function nor make them fail.
    #[test]
    fn the_file_system_is_reached_through_here_only() {
        let sources = [
            ("dir", include_str!("dir.rs")),
            ("file", include_str!("file.rs")),
            ("lock", include_str!("lock.rs")),
            ("nowait", include_str!("nowait.rs")),
            ("root", include_str!("root.rs")),
            ("watch", include_str!("watch.rs")),
        ];
        for (module, source) in sources {
            let imports = source.split("use rustix::").skip(1).filter_map(|rest| rest.split(';').next());
            let names = imports.flat_map(|import| {
                let (_, names) = import.rsplit_once("::").unwrap_or(("", import));
                names.trim_matches(['{', '}', '\n', ' ']).split(',')
            });
            for name in names.map(str::trim).filter(|name| !name.is_empty()) {
                assert!(name.starts_with(char::is_uppercase), "{module}.rs imports `{name}` past call.rs");
            }
        }
    }
}
