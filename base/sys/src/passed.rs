//! Sockets that a service manager opens and passes to the program that it starts: the protocol of `sd_listen_fds(3)`.

use std::env;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, FdFlags, Result, fcntl_getfd, fcntl_setfd};
use rustix::net::SocketType;
use rustix::net::sockopt::{socket_acceptconn, socket_type};

/// The number of the first passed descriptor. The passed descriptors have consecutive numbers.
const FIRST: RawFd = 3;

/// A socket that a service manager passed.
#[derive(Debug)]
pub struct ActivationSocket {
    /// The name of the socket in `LISTEN_FDNAMES`; empty if the service manager set no name.
    pub name: String,
    /// The purpose of the socket.
    pub role: ActivationSocketKind,
    /// The socket itself.
    pub socket: OwnedFd,
}

/// The purpose of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationSocketKind {
    /// The socket listens for stream connections.
    StreamListener,
    /// The socket receives datagrams.
    Datagram,
    /// The socket has another purpose.
    Other,
}

/// Takes the sockets that a service manager passed to this process. The list is empty if there is no service manager,
/// and on later calls. Programs started by this process do not inherit the sockets. Errors: `BADF` if fewer descriptors
/// are open than the environment specifies; `NOTSOCK` if one of them is not a socket. Cost: four system calls for each
/// socket, and one more for each stream socket.
pub fn take_passed_sockets() -> Result<Vec<ActivationSocket>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let variable = |name| env::var(name).unwrap_or_default();
    // A child of the started program inherits the variables, but must not use them.
    let is_meant = variable("LISTEN_PID").parse() == Ok(std::process::id());
    let count = variable("LISTEN_FDS").parse().unwrap_or(0);
    if !is_meant || count == 0 || TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    let names = variable("LISTEN_FDNAMES");
    let mut names = names.split(':');
    (FIRST..FIRST.saturating_add(count))
        .map(|number| take(number, names.next().unwrap_or_default()))
        .collect()
}

fn take(number: RawFd, name: &str) -> Result<ActivationSocket> {
    // SAFETY: the call checks whether the descriptor is open, and changes nothing.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the descriptor is open, and the service manager passed it to this process only; the caller takes it once.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl_setfd(&socket, fcntl_getfd(&socket)? | FdFlags::CLOEXEC)?;
    Ok(ActivationSocket { name: name.to_owned(), role: role_of(&socket)?, socket })
}

fn role_of(socket: impl AsFd) -> Result<ActivationSocketKind> {
    Ok(match socket_type(&socket)? {
        SocketType::STREAM if socket_acceptconn(&socket)? => ActivationSocketKind::StreamListener,
        SocketType::DGRAM => ActivationSocketKind::Datagram,
        _ => ActivationSocketKind::Other,
    })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    #[test]
    fn a_role_is_what_the_socket_can_do() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(role_of(&listener), Ok(ActivationSocketKind::StreamListener));
        assert_eq!(role_of(&stream), Ok(ActivationSocketKind::Other));
        assert_eq!(role_of(&datagrams), Ok(ActivationSocketKind::Datagram));
        assert_eq!(role_of(std::fs::File::open("/dev/null").unwrap()), Err(Errno::NOTSOCK));
    }

    /// A child process must ignore `LISTEN_*` variables that were meant for its parent.
    #[test]
    fn without_a_service_manager_there_is_none() {
        assert!(take_passed_sockets().unwrap().is_empty());
    }
}
