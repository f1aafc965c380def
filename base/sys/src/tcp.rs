//! What the kernel knows of a TCP connection, how it sends, and when it wakes up who waits.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::{Errno, Result};
use rustix::net::sockopt::set_tcp_congestion;

use crate::xattr::last_errno;

/// A connection's state as the kernel measured it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round-trip time, microseconds.
    pub rtt_us: u32,
    /// Segments that were sent again.
    pub retransmits: u32,
    /// The largest segment sent, bytes.
    pub mss_bytes: u32,
}

/// Asks the kernel (`TCP_INFO`). Errors: `OPNOTSUPP` and others for what is no TCP socket.
pub fn tcp_info(socket: impl AsFd) -> Result<TcpInfo> {
    // SAFETY: `tcp_info` is plain data, for which all zeros is a valid value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: `info` has room for `length` bytes, which is all that the kernel may fill; an older
    // kernel fills less.
    let done = unsafe {
        libc::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut length)
    };
    match done {
        0 => Ok(TcpInfo {
            rtt_us: info.tcpi_rtt,
            retransmits: info.tcpi_total_retrans,
            mss_bytes: info.tcpi_snd_mss,
        }),
        _ => Err(last_errno()),
    }
}

/// Has a connection to `peer` sent without pacing if both ends are on this host: there is no line between
/// them that anybody else uses. Where the machine's congestion control paces (BBR), a timer for each burst
/// costs more there than the sending. Cost: one `setsockopt`, of loopback connections only.
pub fn send_unpaced_on_loopback(socket: impl AsFd, peer: IpAddr) -> Result<()> {
    if !peer.to_canonical().is_loopback() {
        return Ok(());
    }
    match set_tcp_congestion(socket, "reno") {
        // Reno is in every kernel, but an administrator may allow other algorithms alone.
        Err(Errno::PERM) => Ok(()),
        done => done,
    }
}

/// Has the kernel wake up who waits for the socket only when `bytes` have arrived (`SO_RCVLOWAT`), the
/// other side has ended, or its buffer is full. The buffer grows to hold twice as many.
pub fn set_receive_low_water(socket: impl AsFd, bytes: usize) -> Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the value is an int that lives across the call, and `length` is its size.
    let done = unsafe {
        libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, (&raw const bytes).cast(), length)
    };
    if done == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Has a connection to `peer` offer room for `bytes` from the start, as far as `net.ipv4.tcp_rmem` allows it, unless both
/// ends are on this host. By itself the kernel offers 64 KiB, and more by what was read in a round trip: that lags behind
/// a sender that doubles what it sends with each. Nothing is held for it before it comes. Unlike by `SO_RCVBUF`, the buffer goes
/// on to grow by itself. Cost: two `setsockopt`, none on loopback.
pub fn offer_room(socket: impl AsFd, peer: IpAddr, bytes: usize) -> Result<()> {
    if peer.to_canonical().is_loopback() {
        return Ok(());
    }
    let socket = socket.as_fd();
    set_receive_low_water(socket, bytes)?;
    set_receive_low_water(socket, 1)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn who_waits_is_woken_when_enough_is_there() {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (receiver, _) = listener.accept().unwrap();
        set_receive_low_water(&receiver, 1000).unwrap();
        let is_ready = |seconds: i64| {
            let limit = Timespec { tv_sec: seconds, tv_nsec: 0 };
            poll(&mut [PollFd::new(&receiver, PollFlags::IN)], Some(&limit)).unwrap() == 1
        };
        std::io::Write::write_all(&mut sender, &[0; 999]).unwrap();
        // A write on loopback has arrived when it returns.
        assert!(!is_ready(0));
        std::io::Write::write_all(&mut sender, &[0]).unwrap();
        assert!(is_ready(30));
        set_receive_low_water(File::open("/proc/self/stat").unwrap(), 1).expect_err("a file is no socket");
    }

    #[test]
    fn what_goes_to_this_host_is_not_paced() {
        use rustix::net::sockopt::tcp_congestion;

        let allowed = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control").unwrap();
        let is_allowed = allowed.split_ascii_whitespace().any(|name| name == "reno");
        if !is_allowed && !fordway_needs::root("use reno, which this machine does not allow to everybody") {
            return;
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let before = tcp_congestion(&stream).unwrap();
        send_unpaced_on_loopback(&stream, [192, 0, 2, 1].into()).unwrap();
        assert_eq!(tcp_congestion(&stream).unwrap(), before);
        send_unpaced_on_loopback(&stream, stream.peer_addr().unwrap().ip()).unwrap();
        assert_eq!(tcp_congestion(&stream).unwrap(), "reno");
    }

    #[test]
    fn room_is_offered_to_other_hosts_from_the_start() {
        use rustix::net::sockopt::socket_recv_buffer_size;

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let before = socket_recv_buffer_size(&stream).unwrap();
        offer_room(&stream, stream.peer_addr().unwrap().ip(), 1 << 20).unwrap();
        assert_eq!(socket_recv_buffer_size(&stream).unwrap(), before);
        // The kernel takes half of the most that a buffer may grow to.
        let most = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").unwrap();
        let most: usize = most.split_whitespace().last().unwrap().parse().unwrap();
        offer_room(&stream, [192, 0, 2, 1].into(), most).unwrap();
        assert!(socket_recv_buffer_size(&stream).unwrap() > most / 2);
    }

    #[test]
    fn a_connection_has_a_round_trip_and_a_file_has_none() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let info = tcp_info(&stream).unwrap();
        assert!(info.rtt_us > 0 && info.mss_bytes > 500 && info.retransmits == 0, "{info:?}");
        tcp_info(File::open("/proc/self/stat").unwrap()).expect_err("a file is no socket");
    }
}
