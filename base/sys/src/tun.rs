//! Network devices whose wire is a descriptor (TUN).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use rustix::io::Errno;

use crate::xattr::last_errno;

/// What precedes each packet: see [`PacketHeader`].
const HEADER_BYTES: usize = 10;

/// The most that one read gives: a header, and a packet of 64 KiB.
pub const TUN_READ_BYTES_MAX: usize = HEADER_BYTES + 65_536;

/// A device in the network namespace of the thread that made it. What the kernel sends through it is
/// read here, a packet of IP at a time behind its header; what is written here the kernel receives.
/// Reads and writes do not wait. The device is gone when this is dropped.
#[derive(Debug)]
pub struct Tun(File);

/// What the kernel says of a packet, at the start of what is read (the fields of `virtio_net_hdr` that count).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketHeader {
    /// Bytes of headers that every segment has; 0 where it is not segmented.
    pub header_bytes: u64,
    /// Bytes of content in each segment; 0 where the packet is a segment by itself.
    pub segment_bytes: u64,
}

impl PacketHeader {
    /// Takes the header off what was read; `None` for what is too short to be a packet.
    pub fn split(read: &[u8]) -> Option<(Self, &[u8])> {
        let (head, packet) = read.split_at_checked(HEADER_BYTES)?;
        let number = |at: usize| u64::from(u16::from_ne_bytes([head[at], head[at + 1]]));
        let is_segmented = head[1] != 0;
        let (header_bytes, segment_bytes) = if is_segmented { (number(2), number(4)) } else { (0, 0) };
        Some((PacketHeader { header_bytes, segment_bytes }, packet))
    }
}

impl Tun {
    /// Makes a device called `name` (at most 15 bytes), which is down and has no address. With `large_packets`
    /// the kernel may leave TCP's segmentation to the other side, and hand over up to 64 KiB in a packet.
    ///
    /// Errors: `PERM` without CAP_NET_ADMIN over the thread's network namespace, `NOENT` where there is no
    /// `/dev/net/tun`, `INVAL` for a name that is too long, `BUSY` for one that is taken.
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
        // SAFETY: the request is what TUNSETIFF reads, and outlives the call.
        check(unsafe { libc::ioctl(file, libc::TUNSETIFF, &raw const request) })?;
        let header_bytes = HEADER_BYTES as libc::c_int;
        // SAFETY: TUNSETVNETHDRSZ reads one int, which outlives the call.
        check(unsafe { libc::ioctl(file, libc::TUNSETVNETHDRSZ, &raw const header_bytes) })?;
        let offload = if large_packets { libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 } else { 0 };
        // SAFETY: TUNSETOFFLOAD takes its argument by value.
        check(unsafe { libc::ioctl(file, libc::TUNSETOFFLOAD, libc::c_ulong::from(offload)) })?;
        Ok(Tun(device))
    }

    /// Reads one packet with its header into `buf`, of which [`TUN_READ_BYTES_MAX`] are enough for any;
    /// `None` if there is none now. Cost: one `read`.
    pub fn receive(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::io::read(&self.0, buf) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Hands the kernel one packet with its header, as read from a device; it is received before this returns.
    /// Errors: from a device that is down or gone, or of a packet that is none. Cost: one `write`.
    pub fn send(&self, packet: &[u8]) -> io::Result<()> {
        rustix::io::write(&self.0, packet)?;
        Ok(())
    }
}

impl std::os::fd::AsFd for Tun {
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
    fn headers_are_taken_apart() {
        let mut read = vec![0, 1];
        for field in [52u16, 1448, 0, 0] {
            read.extend(field.to_ne_bytes());
        }
        read.push(69);
        let (header, packet) = PacketHeader::split(&read).unwrap();
        assert_eq!(header, PacketHeader { header_bytes: 52, segment_bytes: 1448 });
        assert_eq!(packet, [69]);
        read[1] = 0;
        assert_eq!(PacketHeader::split(&read).unwrap().0, PacketHeader { header_bytes: 0, segment_bytes: 0 });
        assert_eq!(PacketHeader::split(&read[..9]), None);
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
            let tun = Tun::new(name, true).unwrap();
            assert!(devices().contains(name));
            let taken = Tun::new(name, true).expect_err("the name is taken");
            assert_eq!(Errno::from_io_error(&taken), Some(Errno::BUSY));
            let long = Tun::new("a-name-of-16-let", true).expect_err("the name is too long");
            assert_eq!(Errno::from_io_error(&long), Some(Errno::INVAL));
            drop(tun);
            assert!(!devices().contains(name));
        })
        .join()
        .unwrap();
        assert!(!devices().contains(name));
    }
}
