//! Connects to one of a host's addresses. An address that does not respond must not use up the time for the other
//! addresses. IPv6 is often announced but filtered, and a name with several addresses often includes a server that is
//! down. Therefore, the next address is tried after a short delay, and the first address that accepts is used (RFC
//! 8305).

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

/// The delay before the next address is tried (RFC 8305 section 8). If all attempts so far have failed, the next
/// address is tried immediately.
pub(super) const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(250);

/// Connects to the first of `addresses` that accepts, within `limit` in total. Errors: the failure of the last attempt;
/// `TimedOut`; `CANCELED` if the program must stop; `NotFound` if there are no addresses.
pub fn connect_any(
    addresses: impl IntoIterator<Item = SocketAddr>,
    limit: Duration,
) -> io::Result<TcpStream> {
    let start = Instant::now();
    let (deadline, mut next_at) = (start + limit, start);
    let mut untried = by_turns(addresses).into_iter();
    let mut waiting: Vec<OwnedFd> = Vec::new();
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    loop {
        if waiting.is_empty() || next_at <= Instant::now() {
            match untried.next().map(begin) {
                Some(Ok(socket)) => {
                    waiting.push(socket);
                    next_at = Instant::now() + NEXT_ADDRESS_AFTER;
                }
                Some(Err(error)) => {
                    last = error;
                    continue;
                }
                None if waiting.is_empty() => return Err(last),
                None => next_at = deadline,
            }
        }
        match accepted(&mut waiting, next_at.min(deadline))? {
            Some(Ok(stream)) => return Ok(stream),
            Some(Err(error)) => last = error,
            None if Instant::now() >= deadline => return Err(io::ErrorKind::TimedOut.into()),
            None => {}
        }
    }
}

/// Returns the addresses, alternating between IPv6 and IPv4, beginning with the family of the first address. A family
/// that does not work at all then causes only a single delay.
fn by_turns(addresses: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let addresses: Vec<_> = addresses.into_iter().collect();
    let is_first_family = |address: &SocketAddr| address.is_ipv6() == addresses[0].is_ipv6();
    let (ours, others): (Vec<_>, Vec<_>) = addresses.iter().copied().partition(is_first_family);
    let (mut ours, mut others) = (ours.into_iter(), others.into_iter());
    let mut mixed = Vec::with_capacity(addresses.len());
    while mixed.len() < addresses.len() {
        mixed.extend(ours.next());
        mixed.extend(others.next());
    }
    mixed
}

/// Begins to connect, without waiting.
fn begin(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match connect(&socket, &address) {
        // The kernel continues to connect after a signal.
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// Waits until one of the sockets is connected, one has failed (which removes it), or `until` is reached. Errors:
/// `CANCELED` if the program must stop.
fn accepted(waiting: &mut Vec<OwnedFd>, until: Instant) -> io::Result<Option<io::Result<TcpStream>>> {
    let left = until.saturating_duration_since(Instant::now());
    let step = Timespec::try_from(fordway_sys::wait_at_most(left)).ok();
    let mut polled: Vec<_> = waiting.iter().map(|socket| PollFd::new(socket, PollFlags::OUT)).collect();
    match poll(&mut polled, step.as_ref()) {
        Ok(0) | Err(Errno::INTR) => fordway_sys::after_signal()?,
        Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    let Some(index) = polled.iter().position(|socket| !socket.revents().is_empty()) else { return Ok(None) };
    let socket = waiting.swap_remove(index);
    let connected = sockopt::socket_error(&socket)?.map_err(io::Error::from).and_then(|()| {
        let stream = TcpStream::from(socket);
        stream.set_nonblocking(false).map(|()| stream)
    });
    Ok(Some(connected))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use rustix::net::{bind, getsockname, listen};

    use super::*;

    /// Returns an address that does not respond, because the queue of its listener is full. Also returns the sockets
    /// that keep the queue full.
    fn silent() -> (SocketAddr, Vec<OwnedFd>) {
        let listener =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        bind(&listener, &any).unwrap();
        listen(&listener, 0).unwrap();
        let address = SocketAddr::try_from(getsockname(&listener).unwrap()).unwrap();
        let mut held = vec![listener];
        held.extend((0..4).map(|_| begin(address).unwrap()));
        (address, held)
    }

    #[test]
    fn an_address_that_does_not_respond_delays_the_next_and_no_more() {
        let ((silent, _held), listener) = (silent(), TcpListener::bind("127.0.0.1:0").unwrap());
        let there = listener.local_addr().unwrap();
        let limit = Duration::from_secs(60);
        let stream = connect_any([silent, silent, there], limit).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), there);
        let late = connect_any([silent, silent], Duration::from_millis(20)).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn an_address_that_refuses_is_passed_over() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = listener.local_addr().unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let limit = Duration::from_secs(60);
        assert_eq!(connect_any([closed, there], limit).unwrap().peer_addr().unwrap(), there);
        assert_eq!(connect_any([closed], limit).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(connect_any([], limit).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn families_take_turns() {
        let addresses = ["[::1]:1", "[::1]:2", "[::1]:3", "127.0.0.1:4", "127.0.0.1:5"];
        let mixed = by_turns(addresses.map(|address| address.parse().unwrap()));
        assert_eq!(mixed.iter().map(SocketAddr::port).collect::<Vec<_>>(), [1, 4, 2, 5, 3]);
    }
}
