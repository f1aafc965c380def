//! Network, PID and mount namespaces, processes that end with the thread that started them, and TUN devices, whose
//! packets are read and written through a file descriptor.

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::{Errno, Result};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use super::file::last_errno;

/// Moves the calling thread, and no other, into a new network namespace that has only a loopback device, which is down.
/// The namespace has no name, and exists as long as a thread is in it or a descriptor for it is open. The kernel
/// therefore removes the namespace even if the process that created it crashes.
///
/// Errors: `PERM` without CAP_SYS_ADMIN. Root has this capability, and every user has it in a user namespace that they
/// created.
pub fn new_network_namespace() -> io::Result<OwnedFd> {
    // SAFETY: this flag does not affect the descriptors that threads share; only flags that affect them are unsafe.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET)? };
    Ok(File::open("/proc/thread-self/ns/net")?.into())
}

/// Moves the calling thread, and no other, into a network namespace. Threads and processes that the thread starts later
/// are also in the namespace. Errors: `PERM` as for [`new_network_namespace`]; `INVAL` if `namespace` is not a network
/// namespace.
pub fn enter_network_namespace(namespace: impl AsFd) -> Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
}

/// Puts the next process that the calling thread starts into a new PID namespace, as its first process. When that
/// process ends, the kernel kills all its descendants, even detached ones. After that, the thread cannot start another
/// process. Errors: `PERM` as for [`new_network_namespace`].
pub fn own_process_namespace() -> Result<()> {
    // SAFETY: this flag affects only processes that are created later.
    unsafe { unshare_unsafe(UnshareFlags::NEWPID) }
}

/// Gives the process of `command` its own `/proc`, for its PID namespace; see [`own_process_namespace`]. Without its
/// own `/proc`, the process would find other processes under its process IDs. Errors: the start fails without
/// CAP_SYS_ADMIN. If the kernel does not allow the mount, as in a user namespace of a container that hides parts of
/// `/proc`, or in a chroot whose root is no mount point, the `/proc` of this process remains.
pub fn own_proc_directory(command: &mut Command) {
    let own = || {
        // SAFETY: this flag does not affect descriptors, and the new process has only this thread.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS)? };
        let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        // Without the first call, the mount would be visible to other processes.
        let _ = mount(c"none", c"/", c"", libc::MS_REC | libc::MS_PRIVATE)
            .and_then(|()| mount(c"proc", c"/proc", c"proc", flags));
        Ok(())
    };
    // SAFETY: between fork and exec, the closure only makes system calls. It allocates no memory and takes no lock.
    unsafe { command.pre_exec(own) };
}

/// Makes the kernel kill the process of `command` as soon as the thread that started this process ends for any reason.
/// Errors: the start fails if the kernel refuses, which no known kernel does.
pub fn end_with_thread(command: &mut Command) {
    let end = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY: between fork and exec, the closure only makes a system call. It allocates no memory and takes no lock.
    unsafe { command.pre_exec(end) };
}

/// Moves the calling thread, and no other, into a new mount namespace, in which `directory` is an empty file system in
/// memory. Files in this file system are invisible outside the namespace. These files disappear when the last process
/// has left the namespace and its last descriptor is closed. All other mounts are copied unchanged. Later mounts of the
/// thread are visible only inside the namespace.
///
/// Errors: `PERM` without CAP_SYS_ADMIN; `NOENT` if there is no such directory.
pub fn new_mount_namespace(directory: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: this flag does not affect the descriptors that threads share; only flags that affect them are unsafe.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS)? };
    mount(c"none", c"/", c"", libc::MS_REC | libc::MS_PRIVATE)?;
    mount(c"fordway", directory, c"tmpfs", libc::MS_NOSUID | libc::MS_NODEV)?;
    Ok(File::open("/proc/thread-self/ns/mnt")?.into())
}

/// Moves the calling thread, and processes that it starts later, into a mount namespace. The root directory of the
/// namespace becomes the thread's working directory. Errors: `PERM` as for [`new_mount_namespace`]; `INVAL` if
/// `namespace` is not a mount namespace.
pub fn enter_mount_namespace(namespace: impl AsFd) -> io::Result<()> {
    // SAFETY: this flag does not affect the descriptors that threads share. The kernel lets no thread enter a mount
    // namespace while it shares its root and working directory with other threads, so the thread stops sharing them
    // first.
    unsafe { unshare_unsafe(UnshareFlags::FS)? };
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))?)
}

fn mount(source: &CStr, target: &CStr, kind: &CStr, flags: libc::c_ulong) -> io::Result<()> {
    // SAFETY: all arguments are strings that end with a NUL byte and outlive the call; there is no data argument.
    let answer =
        unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, std::ptr::null()) };
    if answer < 0 { Err(last_errno().into()) } else { Ok(()) }
}

/// The size of the [`VirtioNetHeader`] that precedes each packet.
const HEADER_BYTES: usize = 10;

/// The maximum size of one read: a header and a packet of 64 KiB.
pub const TUN_READ_BYTES_MAX: usize = HEADER_BYTES + 65_536;

/// A TUN device in the network namespace of the thread that created it. Each read returns one IP packet that the kernel
/// sent through the device, preceded by its header. Each write passes one packet, with its header, to the kernel. Reads
/// and writes do not block. The device is removed when this value is dropped.
#[derive(Debug)]
pub struct TunDevice(File);

/// The kernel's description of a packet, which precedes the packet in each read (the relevant fields of
/// `virtio_net_hdr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtioNetHeader {
    /// The length of the headers of every segment, in bytes; 0 if the packet is not segmented.
    pub header_bytes: u64,
    /// The length of the content of each segment, in bytes; 0 if the packet is a single segment.
    pub segment_bytes: u64,
}

impl VirtioNetHeader {
    /// Splits the bytes of a read into header and packet; `None` if there are too few bytes for a header.
    pub fn split(read: &[u8]) -> Option<(Self, &[u8])> {
        let (head, packet) = read.split_at_checked(HEADER_BYTES)?;
        let number = |at: usize| u64::from(u16::from_ne_bytes([head[at], head[at + 1]]));
        let is_segmented = head[1] != 0;
        let (header_bytes, segment_bytes) = if is_segmented { (number(2), number(4)) } else { (0, 0) };
        Some((VirtioNetHeader { header_bytes, segment_bytes }, packet))
    }
}

impl TunDevice {
    /// Creates a device called `name` (at most 15 bytes), which is down and has no address. With `large_packets`, the
    /// kernel may leave TCP's segmentation to the reader of the device, and pass packets of up to 64 KiB.
    ///
    /// Errors: `PERM` without CAP_NET_ADMIN over the thread's network namespace; `NOENT` if there is no `/dev/net/tun`;
    /// `INVAL` if the name is too long; `BUSY` if the name is taken.
    pub fn new(name: &str, large_packets: bool) -> io::Result<Self> {
        let device =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
        // SAFETY: `ifreq` is plain data, for which all zeros is a valid value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if name.len() >= request.ifr_name.len() {
            return Err(Errno::INVAL.into());
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
        let file = device.as_raw_fd();
        // SAFETY: the request is the structure that TUNSETIFF reads, and outlives the call.
        check(unsafe { libc::ioctl(file, libc::TUNSETIFF, &raw const request) })?;
        let header_bytes = HEADER_BYTES as libc::c_int;
        // SAFETY: TUNSETVNETHDRSZ reads one int, which outlives the call.
        check(unsafe { libc::ioctl(file, libc::TUNSETVNETHDRSZ, &raw const header_bytes) })?;
        let offload = if large_packets { libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 } else { 0 };
        // SAFETY: TUNSETOFFLOAD takes its argument by value.
        check(unsafe { libc::ioctl(file, libc::TUNSETOFFLOAD, libc::c_ulong::from(offload)) })?;
        Ok(TunDevice(device))
    }

    /// Reads one packet with its header into `buf`. [`TUN_READ_BYTES_MAX`] bytes suffice for any packet. Returns `None`
    /// if no packet is waiting. Cost: one `read`.
    pub fn receive(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::io::read(&self.0, buf) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Passes one packet with its header to the kernel, in the format of [`TunDevice::receive`]. When this call
    /// returns, the kernel has received the packet. Errors: if the device is down or was removed, or if the packet is
    /// invalid. Cost: one `write`.
    pub fn send(&self, packet: &[u8]) -> io::Result<()> {
        rustix::io::write(&self.0, packet)?;
        Ok(())
    }
}

impl std::os::fd::AsFd for TunDevice {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn check(answer: libc::c_int) -> io::Result<()> {
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

    #[test]
    fn headers_are_taken_apart() {
        let mut read = vec![0, 1];
        for field in [52u16, 1448, 0, 0] {
            read.extend(field.to_ne_bytes());
        }
        read.push(69);
        let (header, packet) = VirtioNetHeader::split(&read).unwrap();
        assert_eq!(header, VirtioNetHeader { header_bytes: 52, segment_bytes: 1448 });
        assert_eq!(packet, [69]);
        read[1] = 0;
        assert_eq!(
            VirtioNetHeader::split(&read).unwrap().0,
            VirtioNetHeader { header_bytes: 0, segment_bytes: 0 }
        );
        assert_eq!(VirtioNetHeader::split(&read[..9]), None);
    }

    #[test]
    fn a_device_is_in_the_namespace_of_its_thread() {
        if !fordway_needs::root("make network devices") {
            return;
        }
        let devices = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let name = "fordway-tun0";
        std::thread::spawn(move || {
            crate::new_network_namespace().unwrap();
            let tun = TunDevice::new(name, true).unwrap();
            assert!(devices().contains(name));
            let taken = TunDevice::new(name, true).expect_err("the name is taken");
            assert_eq!(Errno::from_io_error(&taken), Some(Errno::BUSY));
            let long = TunDevice::new("a-name-of-16-let", true).expect_err("the name is too long");
            assert_eq!(Errno::from_io_error(&long), Some(Errno::INVAL));
            drop(tun);
            assert!(!devices().contains(name));
        })
        .join()
        .unwrap();
        assert!(!devices().contains(name));
    }
}
