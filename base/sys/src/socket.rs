//! Sockets: streams that pass descriptors, the credentials of peers, and sends that do not block. For TCP connections,
//! this module also provides the kernel's statistics, pacing, and the amount of data that wakes up a waiting thread.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, Result};
use rustix::net::sockopt::{self, set_tcp_congestion, socket_peercred};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recv, recvmsg, send, sendmsg,
};

use super::file::last_errno;
use crate::call::sendfile;
use crate::signal::after_signal;

/// Whether a receive call waits for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketBlockingMode {
    /// Waits until something arrives, or the socket's time limit passes.
    Yes,
    /// Does not wait: `WOULDBLOCK` if nothing has arrived.
    No,
}

impl SocketBlockingMode {
    fn flags(self) -> RecvFlags {
        match self {
            SocketBlockingMode::Yes => RecvFlags::empty(),
            SocketBlockingMode::No => RecvFlags::DONTWAIT,
        }
    }
}

/// Sends all of `first` and then all of `second`; `descriptor` is sent with the first byte. Errors: `PIPE` and
/// `CONNRESET` if the other side has closed the connection; `WOULDBLOCK` if the socket's time limit passed; `CANCELED`
/// if a signal arrived and the program must stop. Cost: one `sendmsg`, or one `send` if `first` is sent alone; more
/// calls if the buffer of the socket is full.
pub fn send_all(
    socket: impl AsFd,
    mut first: &[u8],
    mut second: &[u8],
    mut descriptor: Option<BorrowedFd<'_>>,
) -> Result<()> {
    while !(first.is_empty() && second.is_empty()) {
        let sent = match descriptor {
            None if second.is_empty() => send(&socket, first, SendFlags::NOSIGNAL),
            _ => send_parts(&socket, &[IoSlice::new(first), IoSlice::new(second)], descriptor),
        };
        let sent = match sent {
            Err(Errno::INTR) => {
                after_signal()?;
                continue;
            }
            sent => sent?,
        };
        descriptor = None;
        let of_first = sent.min(first.len());
        (first, second) = (&first[of_first..], &second[sent - of_first..]);
    }
    Ok(())
}

fn send_parts(socket: impl AsFd, parts: &[IoSlice<'_>], descriptor: Option<BorrowedFd<'_>>) -> Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let passed = descriptor.map(|descriptor| [descriptor]);
    if let Some(passed) = &passed {
        control.push(SendAncillaryMessage::ScmRights(passed));
    }
    sendmsg(socket, parts, &mut control, SendFlags::NOSIGNAL)
}

/// Receives the bytes that have arrived, up to the length of `buffer`; returns 0 at the end of the stream. Passed
/// descriptors are closed. Errors: as for [`send_all`]. Cost: one `recv`.
pub fn receive(socket: impl AsFd, buffer: &mut [u8], wait: SocketBlockingMode) -> Result<usize> {
    loop {
        match recv(&socket, &mut *buffer, wait.flags()) {
            Err(Errno::INTR) => after_signal()?,
            done => return done.map(|(count, _)| count),
        }
    }
}

/// Returns whether the peer has closed the connection, or the connection is broken, and no received bytes are left.
/// Cost: one `recvfrom`.
pub fn is_closed_by_peer(socket: impl AsFd) -> bool {
    match recv(&socket, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((count, _)) => count == 0,
        Err(errno) => !matches!(errno, Errno::AGAIN | Errno::INTR),
    }
}

/// Receives bytes like [`receive`], and also returns the descriptor if one was passed with these bytes. The result for
/// the descriptor is `MFILE` if this process has too many open files; the kernel has then closed the passed descriptor.
/// Cost: one `recvmsg`.
pub fn receive_with_descriptor(
    socket: impl AsFd,
    buffer: &mut [u8],
    wait: SocketBlockingMode,
) -> Result<(usize, Option<Result<OwnedFd>>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = wait.flags() | RecvFlags::CMSG_CLOEXEC;
        let received = match recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Err(Errno::INTR) => {
                after_signal()?;
                continue;
            }
            received => received?,
        };
        let mut descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let passed = descriptors.next().and_then(|mut passed| passed.next()).map(Ok);
        let lost = received.flags.contains(ReturnFlags::CTRUNC).then_some(Err(Errno::MFILE));
        return Ok((received.bytes, passed.or(lost)));
    }
}

/// Limits how long receive calls wait before they fail with `WOULDBLOCK`; `None` removes the limit.
pub fn set_receive_timeout(socket: impl AsFd, limit: Option<std::time::Duration>) -> Result<()> {
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, limit)
}

/// Makes the kernel detect that the peer of a TCP connection is gone. After 30 s of silence, the kernel sends three
/// probes, 10 s apart, and then gives up.
pub fn keep_alive(socket: impl AsFd) -> Result<()> {
    let seconds = std::time::Duration::from_secs;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, seconds(30))?;
    sockopt::set_tcp_keepintvl(&socket, seconds(10))?;
    sockopt::set_tcp_keepcnt(&socket, 3)
}

/// The credentials of a user. The kernel records the credentials of the peer of a Unix socket when the peer connects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PeerCredentials {
    /// The user ID.
    pub uid: u32,
    /// The group ID.
    pub gid: u32,
    /// The supplementary groups; in ascending order if [`peer_of`] returned them.
    pub groups: Vec<u32>,
}

/// Returns the credentials of the socket's peer, as recorded by the kernel (`SO_PEERCRED`, and `SO_PEERGROUPS` of Linux
/// 4.13). Errors: if `socket` is not a connected Unix socket.
pub fn peer_of(socket: impl AsFd) -> Result<PeerCredentials> {
    let credentials = socket_peercred(&socket)?;
    let mut groups = vec![0u32; 64];
    loop {
        let mut length = size_of_val(groups.as_slice()) as libc::socklen_t;
        let socket = socket.as_fd().as_raw_fd();
        // SAFETY: `groups` has room for `length` bytes, which is all that the kernel may fill.
        let done = unsafe {
            let room = groups.as_mut_ptr().cast();
            libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERGROUPS, room, &raw mut length)
        };
        let count = length as usize / size_of::<u32>();
        match (done, if done == 0 { Errno::INVAL } else { last_errno() }) {
            (0, _) => {
                groups.truncate(count);
                groups.sort_unstable();
                return Ok(PeerCredentials {
                    uid: credentials.uid.as_raw(),
                    gid: credentials.gid.as_raw(),
                    groups,
                });
            }
            (_, Errno::RANGE) if count > groups.len() => groups.resize(count, 0),
            (_, errno) => return Err(errno),
        }
    }
}

/// Sends up to `len` bytes of `file` from `offset` without copying them through this process. Returns the number of
/// bytes sent, which is 0 at the end of the file. Errors: `AGAIN` if the socket's buffer is full. Cost: one `sendfile`;
/// the calling thread waits for bytes that are not in memory.
pub fn send_file(socket: impl AsFd, file: impl AsFd, offset: u64, len: usize) -> Result<usize> {
    sendfile(socket, file, Some(&mut { offset }), len)
}

/// Sends `data` or the beginning of `data`, and tells the kernel that more data follows immediately. The kernel may
/// then send all of this data in one segment. Returns the number of bytes sent. Errors: `AGAIN` if the socket's buffer
/// is full.
pub fn send_more(socket: impl AsFd, data: &[u8]) -> Result<usize> {
    rustix::net::send(socket, data, SendFlags::MORE | SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

/// Returns whether `socket` accepts data now. Cost: one `poll`, which is much cheaper than a failed send.
pub fn is_writable(socket: impl AsFd) -> Result<bool> {
    let mut wanted = [PollFd::new(&socket, PollFlags::OUT)];
    Ok(rustix::event::poll(&mut wanted, Some(&Timespec::default()))? > 0)
}

/// A connection's state as measured by the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// The smoothed round-trip time, in microseconds.
    pub rtt_us: u32,
    /// The number of segments that were retransmitted.
    pub retransmits: u32,
    /// The maximum size of a segment that the kernel sends, in bytes.
    pub mss_bytes: u32,
}

/// Returns the kernel's state of a connection (`TCP_INFO`). Errors: `OPNOTSUPP` or another error if `socket` is not a
/// TCP socket.
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

/// Turns off pacing for a connection to `peer` if both ends are on this host, because such a connection shares no link
/// with other traffic. If the machine's congestion control paces (BBR), the timer for each burst costs more than
/// sending the burst. Cost: one `setsockopt`, for loopback connections only.
pub fn send_unpaced_on_loopback(socket: impl AsFd, peer: IpAddr) -> Result<()> {
    if !peer.to_canonical().is_loopback() {
        return Ok(());
    }
    match set_tcp_congestion(socket, "reno") {
        // Every kernel has Reno, but an administrator may allow only other algorithms.
        Err(Errno::PERM) => Ok(()),
        done => done,
    }
}

/// Sets `SO_RCVLOWAT`: the kernel wakes up a thread that waits for the socket only when `bytes` have arrived, the
/// sender has ended the stream, or the receive buffer is full. The buffer grows to twice `bytes`.
pub fn set_receive_low_water(socket: impl AsFd, bytes: usize) -> Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the value is an int that outlives the call, and `length` is its size.
    let done = unsafe {
        libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, (&raw const bytes).cast(), length)
    };
    if done == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Makes a connection to `peer` offer a receive window of `bytes` from the start, up to the limit that
/// `net.ipv4.tcp_rmem` sets, unless both ends are on this host. By default, the kernel first offers 64 KiB. The kernel
/// then increases the window according to the number of bytes that were read in a round trip. This increase lags behind
/// a sender that doubles its congestion window in each round trip. No memory is used before bytes arrive. Unlike with
/// `SO_RCVBUF`, the buffer still grows automatically. Cost: two `setsockopt`; on loopback, no system call.
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
    use std::io::{Read, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn bytes_and_a_descriptor_arrive_together() {
        let (one, other) = UnixStream::pair().unwrap();
        let file = std::fs::File::open("/proc/self/comm").unwrap();
        send_all(&one, b"head", b"body", Some(file.as_fd())).unwrap();
        let mut buffer = [0; 16];
        let (count, descriptor) =
            receive_with_descriptor(&other, &mut buffer, SocketBlockingMode::Yes).unwrap();
        assert_eq!(&buffer[..count], b"headbody");
        let (mut sent, mut passed) = (String::new(), String::new());
        std::fs::File::from(descriptor.unwrap().unwrap()).read_to_string(&mut passed).unwrap();
        { file }.read_to_string(&mut sent).unwrap();
        assert!(passed.is_empty() != sent.is_empty(), "both read one open file: {passed:?} {sent:?}");
        assert_eq!(receive(&other, &mut buffer, SocketBlockingMode::No), Err(Errno::WOULDBLOCK));
        drop(one);
        assert_eq!(receive_with_descriptor(&other, &mut buffer, SocketBlockingMode::Yes).unwrap().0, 0);
        assert_eq!(send_all(&other, b"x", b"", None), Err(Errno::PIPE));
    }

    #[test]
    fn long_messages_arrive_in_order() {
        let (one, other) = UnixStream::pair().unwrap();
        let (first, second) = (vec![1u8; 300_000], vec![2u8; 700_000]);
        let sender = std::thread::spawn(move || send_all(&one, &first, &second, None).unwrap());
        let mut all = Vec::new();
        { other }.read_to_end(&mut all).unwrap();
        sender.join().unwrap();
        assert_eq!(all.len(), 1_000_000);
        assert!(all[..300_000].iter().all(|byte| *byte == 1) && all[300_000..].iter().all(|byte| *byte == 2));
    }

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = peer_of(&one).unwrap();
        assert_eq!(peer.uid, crate::user_id());
        peer_of(std::fs::File::open("/proc/self/comm").unwrap()).expect_err("a file has no peer");
    }

    #[test]
    fn a_file_goes_out_behind_its_head() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        let (near, mut far) = UnixStream::pair().unwrap();
        assert_eq!(send_more(&near, b"head "), Ok(5));
        assert_eq!(send_file(&near, &file, 3, 4), Ok(4));
        assert_eq!(send_file(&near, &file, 10, 4), Ok(0));
        assert_eq!(is_writable(&near), Ok(true));
        drop(near);
        let mut taken = String::new();
        far.read_to_string(&mut taken).unwrap();
        assert_eq!(taken, "head 3456");
    }

    #[test]
    fn a_connection_that_the_peer_has_closed_is_recognized() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        assert!(!is_closed_by_peer(&near));
        far.write_all(b"x").unwrap();
        drop(far);
        let mut byte = [0];
        (&near).read_exact(&mut byte).unwrap();
        // The end of the connection may arrive a little later.
        let begin = std::time::Instant::now();
        while !is_closed_by_peer(&near) {
            assert!(begin.elapsed() < std::time::Duration::from_secs(10));
        }
    }

    #[test]
    fn a_full_socket_is_not_writable() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut sent = 0;
        while is_writable(&near).unwrap() {
            sent += send_more(&near, &[7; 4096]).unwrap();
        }
        far.read_exact(&mut vec![0; sent]).unwrap();
        assert_eq!(is_writable(&near), Ok(true));
    }

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
        // On loopback, bytes have arrived by the time the write returns.
        assert!(!is_ready(0));
        std::io::Write::write_all(&mut sender, &[0]).unwrap();
        assert!(is_ready(30));
        set_receive_low_water(File::open("/proc/self/stat").unwrap(), 1).expect_err("a file is not a socket");
    }

    #[test]
    fn what_goes_to_this_host_is_not_paced() {
        use rustix::net::sockopt::tcp_congestion;

        let allowed = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control").unwrap();
        let is_allowed = allowed.split_ascii_whitespace().any(|name| name == "reno");
        if !is_allowed && !fordway_needs::root("use reno, which this machine does not allow for all users") {
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
        // The kernel limits `SO_RCVLOWAT` to half of the maximum size of a buffer.
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
        tcp_info(File::open("/proc/self/stat").unwrap()).expect_err("a file is not a socket");
    }
}
