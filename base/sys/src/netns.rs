//! Network namespaces, and processes that do not outlive their starter.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Result;
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// Puts the calling thread, and no other, into a new network namespace in which there is nothing but
/// a loopback device that is down. The namespace has no name: it lives as long as a thread is in it or
/// a descriptor of it is open, so nothing is left of it after any death of its maker.
///
/// Errors: `PERM` without CAP_SYS_ADMIN, which root has, and everybody in a user namespace of their own.
pub fn new_network_namespace() -> io::Result<OwnedFd> {
    // SAFETY: the flag does not touch the descriptors that threads share, which is what makes others unsafe.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET)? };
    Ok(File::open("/proc/thread-self/ns/net")?.into())
}

/// Puts the calling thread, and no other, into a network namespace. Threads and processes that it starts
/// later are in it too. Errors: `PERM` as above, `INVAL` for what is no network namespace.
pub fn enter_network_namespace(namespace: impl AsFd) -> Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
}

/// The next process that the calling thread starts is the first of a new process namespace: when it
/// ends, all that it started end, whether they detached themselves or not. The thread can start no
/// other process once that one has ended. Errors: `PERM` as above.
pub fn own_process_namespace() -> Result<()> {
    // SAFETY: as above; this one concerns only processes that are made later.
    unsafe { unshare_unsafe(UnshareFlags::NEWPID) }
}

/// Has the process that `command` starts be killed when the thread that starts it ends, however
/// that comes to be. Errors: the start fails where the kernel refuses, which none does.
pub fn end_with_thread(command: &mut Command) {
    let end = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY: between fork and exec only a system call is made; no memory is taken and no lock.
    unsafe { command.pre_exec(end) };
}
