//! Directories that no other process sees.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::xattr::last_errno;

/// Puts the calling thread, and no other, into a new mount namespace, in which `directory` is empty and in
/// memory: what is written there is seen by nobody outside, and gone with the last process within and the
/// last descriptor of the namespace. All else is as it was; what is mounted later stays within.
///
/// Errors: `PERM` without CAP_SYS_ADMIN, `NOENT` if there is no such directory.
pub fn new_mount_namespace(directory: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: the flag does not touch the descriptors that threads share, which is what makes others unsafe.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS)? };
    mount(c"none", c"/", c"", libc::MS_REC | libc::MS_PRIVATE)?;
    mount(c"fordway", directory, c"tmpfs", libc::MS_NOSUID | libc::MS_NODEV)?;
    Ok(File::open("/proc/thread-self/ns/mnt")?.into())
}

/// Puts the calling thread, and no other, into a mount namespace, with processes that it starts later.
/// Its working directory is the root from then on. Errors: `PERM` as above, `INVAL` for what is no mount namespace.
pub fn enter_mount_namespace(namespace: impl AsFd) -> io::Result<()> {
    // SAFETY: as above. A thread that shares its root and working directory with others may not leave.
    unsafe { unshare_unsafe(UnshareFlags::FS)? };
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))?)
}

fn mount(source: &CStr, target: &CStr, kind: &CStr, flags: libc::c_ulong) -> io::Result<()> {
    // SAFETY: all are strings that end with a zero and outlive the call; there is no data.
    let answer =
        unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, std::ptr::null()) };
    if answer < 0 { Err(last_errno().into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_there_is_seen_by_nobody_outside() {
        if !fordway_needs::root("make mount namespaces") {
            return;
        }
        let name = "/run/fordway-of-a-test";
        let namespace = std::thread::spawn(move || {
            let namespace = new_mount_namespace(c"/run").unwrap();
            std::fs::write(name, "x").unwrap();
            namespace
        });
        let namespace = namespace.join().unwrap();
        assert!(!std::path::Path::new(name).exists());
        let again = std::thread::spawn(move || {
            enter_mount_namespace(&namespace).unwrap();
            std::fs::read_to_string(name).unwrap()
        });
        assert_eq!(again.join().unwrap(), "x");
        let missing = std::thread::spawn(|| new_mount_namespace(c"/no/such/directory")).join().unwrap();
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
