//! Stream sockets that pass descriptors, and their peers.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, Result};
use rustix::net::sockopt::{self, socket_peercred};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, send, sendmsg,
};

use crate::xattr::last_errno;

/// Whether a call waits for the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until something arrives, or the socket's time limit passes.
    Yes,
    /// Not at all: `WOULDBLOCK` if nothing is there.
    No,
}

impl Wait {
    fn flags(self) -> RecvFlags {
        match self {
            Wait::Yes => RecvFlags::empty(),
            Wait::No => RecvFlags::DONTWAIT,
        }
    }
}

/// Sends `first` and then `second`, all of both; a `descriptor` goes with the first byte.
/// Errors: `PIPE` and `CONNRESET` if the other side is gone, `WOULDBLOCK` if the socket's time limit
/// passed. Cost: one `sendmsg` (one `send` of `first` alone), more if the buffer of the socket is full.
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
            Err(Errno::INTR) => continue,
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

/// Receives what has arrived, up to the length of `buffer`; 0 at the end of the stream. Descriptors
/// that were passed are closed. Cost: one `recv`.
pub fn receive(socket: impl AsFd, buffer: &mut [u8], wait: Wait) -> Result<usize> {
    loop {
        match recv(&socket, &mut *buffer, wait.flags()) {
            Err(Errno::INTR) => {}
            done => return done.map(|(count, _)| count),
        }
    }
}

/// As [`receive`], with a descriptor if one was passed with these bytes. Cost: one `recvmsg`.
pub fn receive_with_descriptor(
    socket: impl AsFd,
    buffer: &mut [u8],
    wait: Wait,
) -> Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = wait.flags() | RecvFlags::CMSG_CLOEXEC;
        let received = match recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Err(Errno::INTR) => continue,
            received => received?,
        };
        let mut descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        return Ok((received.bytes, descriptors.next().and_then(|mut passed| passed.next())));
    }
}

/// Has the kernel find out that the other end of a TCP connection is gone: after 30 s of silence it
/// asks, and gives up after three times 10 s.
pub fn keep_alive(socket: impl AsFd) -> Result<()> {
    let seconds = std::time::Duration::from_secs;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, seconds(30))?;
    sockopt::set_tcp_keepintvl(&socket, seconds(10))?;
    sockopt::set_tcp_keepcnt(&socket, 3)
}

/// Who is at the other end of a Unix socket, as the kernel saw them when they connected.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Further groups, in rising order.
    pub groups: Vec<u32>,
}

/// Asks the kernel for the peer (`SO_PEERCRED`, and `SO_PEERGROUPS` of Linux 4.13).
/// Errors: from what is no connected Unix socket.
pub fn peer_of(socket: impl AsFd) -> Result<Peer> {
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
                return Ok(Peer { uid: credentials.uid.as_raw(), gid: credentials.gid.as_raw(), groups });
            }
            (_, Errno::RANGE) if count > groups.len() => groups.resize(count, 0),
            (_, errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn bytes_and_a_descriptor_arrive_together() {
        let (one, other) = UnixStream::pair().unwrap();
        let file = std::fs::File::open("/proc/self/comm").unwrap();
        send_all(&one, b"head", b"body", Some(file.as_fd())).unwrap();
        let mut buffer = [0; 16];
        let (count, descriptor) = receive_with_descriptor(&other, &mut buffer, Wait::Yes).unwrap();
        assert_eq!(&buffer[..count], b"headbody");
        let (mut sent, mut passed) = (String::new(), String::new());
        std::fs::File::from(descriptor.unwrap()).read_to_string(&mut passed).unwrap();
        { file }.read_to_string(&mut sent).unwrap();
        assert!(passed.is_empty() != sent.is_empty(), "both read one open file: {passed:?} {sent:?}");
        assert_eq!(receive(&other, &mut buffer, Wait::No), Err(Errno::WOULDBLOCK));
        drop(one);
        assert_eq!(receive_with_descriptor(&other, &mut buffer, Wait::Yes).unwrap().0, 0);
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
}
