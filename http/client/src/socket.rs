//! A TCP socket whose calls never raise SIGPIPE, because this library also runs in programs that do not ignore this
//! signal.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
#[cfg(feature = "http3")]
use std::os::fd::OwnedFd;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use fordway_store::{Error, ErrorKind, Result};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recv, recvmsg, sendmsg};

use super::connection::is_stop;
use super::dial::connect_any;
#[cfg(feature = "http3")]
use super::http3::ConnectionEndReason;
use super::{Origin, Timeouts};

/// The receive window in bytes advertised from the start: the bandwidth-delay product of 1 Gbit/s and 60 ms.
const ROOM_BYTES: usize = 8 << 20;

/// A connected socket with `TCP_NODELAY`.
pub struct TcpSocket {
    stream: TcpStream,
    read_timeout: Duration,
    write_timeout: Duration,
    waits: bool,
    /// The number of bytes that must arrive before a waiting thread wakes up.
    low_water_bytes: usize,
    /// The reason why an HTTP/3 connection ended; present if the other end of the socket is in this process.
    #[cfg(feature = "http3")]
    notice: Option<ConnectionEndReason>,
}

impl TcpSocket {
    /// Connects to the host's address that accepts the connection first; see [`connect_any`]. Errors: `Unavailable`,
    /// `Timeout`; `Interrupted` if the program must stop.
    pub(super) fn connect(origin: &Origin, timeouts: &Timeouts) -> Result<Self> {
        let unreachable = |why: &str| Error::new(ErrorKind::Unavailable, format!("{why} {origin}"));
        let addresses = (origin.host.as_str(), origin.port)
            .to_socket_addrs()
            .map_err(|error| unreachable("cannot find the address of").caused_by(error))?;
        let stream = connect_any(addresses, timeouts.connect).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => {
                let detail = format!("{origin} did not accept a connection within {:?}", timeouts.connect);
                Error::new(ErrorKind::Timeout, detail)
            }
            _ if is_stop(&error) => Error::new(ErrorKind::Interrupted, "a signal arrived while connecting"),
            _ => unreachable("cannot connect to").caused_by(error),
        })?;
        Self::prepared(stream, timeouts)
    }

    /// Wraps one end of a socket pair, which an HTTP/3 connection uses. The other end is in this process. Errors: `Io`.
    #[cfg(feature = "http3")]
    pub(super) fn bridged(end: OwnedFd, timeouts: &Timeouts, notice: ConnectionEndReason) -> Result<Self> {
        let socket = Self::over(TcpStream::from(end), timeouts);
        socket.apply_timeouts().map_err(setting_up)?;
        Ok(TcpSocket { notice: Some(notice), ..socket })
    }

    /// Returns whether the other end of the socket is in this process, as it is for HTTP/3.
    pub(super) fn is_bridge(&self) -> bool {
        #[cfg(feature = "http3")]
        return self.notice.is_some();
        #[cfg(not(feature = "http3"))]
        false
    }

    /// Returns `got`, the result of receiving into a buffer of `room` bytes. If an HTTP/3 connection has ended and the
    /// reason is known, returns the reason as an error.
    fn arrived(&self, got: io::Result<usize>, room: usize) -> io::Result<usize> {
        #[cfg(feature = "http3")]
        {
            let is_end = got.as_ref().map_or_else(
                |error| error.kind() == io::ErrorKind::ConnectionReset,
                |got| *got == 0 && room > 0,
            );
            if is_end && let Some(error) = self.notice.as_ref().and_then(ConnectionEndReason::error) {
                return Err(io::Error::other(error));
            }
        }
        let _ = room;
        got
    }

    /// Wraps a stream; sets no options.
    pub(super) fn over(stream: TcpStream, timeouts: &Timeouts) -> Self {
        TcpSocket {
            stream,
            read_timeout: timeouts.first_byte,
            write_timeout: timeouts.progress,
            waits: true,
            low_water_bytes: 1,
            #[cfg(feature = "http3")]
            notice: None,
        }
    }

    fn apply_timeouts(&self) -> io::Result<()> {
        self.stream.set_read_timeout(Some(fordway_sys::wait_at_most(self.read_timeout)))?;
        self.stream.set_write_timeout(Some(fordway_sys::wait_at_most(self.write_timeout)))
    }

    fn prepared(stream: TcpStream, timeouts: &Timeouts) -> Result<Self> {
        let set = || -> io::Result<()> {
            stream.set_nodelay(true)?;
            let peer = stream.peer_addr()?.ip();
            fordway_sys::send_unpaced_on_loopback(&stream, peer)?;
            // If the kernel refuses, the first round trips transfer less data; nothing else changes.
            let _as_usual = fordway_sys::offer_room(&stream, peer, ROOM_BYTES);
            Ok(())
        };
        set().map_err(setting_up)?;
        let socket = Self::over(stream, timeouts);
        socket.apply_timeouts().map_err(setting_up)?;
        Ok(socket)
    }

    /// Returns a second handle to the same socket.
    #[cfg(feature = "http2")]
    pub(super) fn share(&self) -> io::Result<Self> {
        Ok(TcpSocket {
            stream: self.stream.try_clone()?,
            #[cfg(feature = "http3")]
            notice: self.notice.clone(),
            ..*self
        })
    }

    /// Sets the timeout for writes. Costs a system call only if the value changes.
    pub(super) fn set_write_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        let timeout = timeout.max(Duration::from_millis(1));
        if timeout != self.write_timeout {
            self.stream.set_write_timeout(Some(fordway_sys::wait_at_most(timeout)))?;
            self.write_timeout = timeout;
        }
        Ok(())
    }

    /// Sets the timeout for reads. Costs a system call only if the value changes.
    pub(super) fn set_read_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        let timeout = timeout.max(Duration::from_millis(1));
        let (before, now) =
            (fordway_sys::wait_at_most(self.read_timeout), fordway_sys::wait_at_most(timeout));
        if now != before {
            self.stream.set_read_timeout(Some(now))?;
        }
        self.read_timeout = timeout;
        Ok(())
    }

    /// Returns how long a read may take; zero if calls do not block.
    fn read_limit(&self) -> Duration {
        if self.waits { self.read_timeout } else { Duration::ZERO }
    }

    /// Sets whether calls block from now on, or fail with `WouldBlock`.
    pub(super) fn set_waiting(&mut self, waits: bool) {
        self.waits = waits;
    }

    /// Makes waiting threads sleep until `bytes` (at least 1) have arrived or the connection has ended. Costs a system
    /// call only if the value changes.
    pub(super) fn set_low_water(&mut self, bytes: usize) {
        // If the kernel does not support the low-water mark, threads wake up more often; nothing else changes.
        if bytes != self.low_water_bytes && fordway_sys::set_receive_low_water(&self.stream, bytes).is_ok() {
            self.low_water_bytes = bytes;
        }
    }

    fn receive_flags(&self) -> RecvFlags {
        if self.waits { RecvFlags::empty() } else { RecvFlags::DONTWAIT }
    }

    /// Discards up to `scratch.len()` received bytes without copying them; returns the number of bytes discarded.
    pub(super) fn discard(&mut self, scratch: &mut [u8]) -> io::Result<usize> {
        let flags = self.receive_flags() | RecvFlags::TRUNC;
        let got = within(self.read_limit(), || Ok(recv(&self.stream, &mut *scratch, flags)?.1));
        self.arrived(got, scratch.len())
    }

    /// Receives bytes without consuming them, so the next call receives the same bytes.
    pub(super) fn peek(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let flags = self.receive_flags() | RecvFlags::PEEK;
        within(self.read_limit(), || Ok(recv(&self.stream, &mut *room, flags)?.1))
    }

    /// Returns whether the connection is open and all bytes that have arrived have been read.
    pub(super) fn is_quiet(&self) -> bool {
        let peeked = recv(&self.stream, &mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        matches!(peeked, Err(rustix::io::Errno::AGAIN))
    }

    /// Receives until `buffer` is full, the stream ends, or nothing arrives within the timeout. The kernel fills the
    /// buffer in one call. Returns the number of bytes received.
    pub(super) fn receive_all(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let received =
            within(self.read_timeout, || Ok(recv(&self.stream, &mut *buffer, RecvFlags::WAITALL)?.1))?;
        if received < buffer.len() {
            // If bytes have arrived, a signal ends the wait without an error.
            fordway_sys::after_signal()?;
        }
        self.arrived(Ok(received), buffer.len())
    }
}

impl AsFd for TcpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Read for TcpSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let flags = self.receive_flags();
        let got = within(self.read_limit(), || Ok(recv(&self.stream, &mut *buffer, flags)?.1));
        self.arrived(got, buffer.len())
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let flags = self.receive_flags();
        let mut control = RecvAncillaryBuffer::default();
        let got =
            within(self.read_limit(), || Ok(recvmsg(&self.stream, buffers, &mut control, flags)?.bytes));
        self.arrived(got, 1)
    }
}

impl Write for TcpSocket {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(data)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let waiting = if self.waits { SendFlags::empty() } else { SendFlags::DONTWAIT };
        let flags = SendFlags::NOSIGNAL | waiting;
        let limit = if self.waits { self.write_timeout } else { Duration::ZERO };
        let sent =
            within(limit, || sendmsg(&self.stream, pieces, &mut SendAncillaryBuffer::default(), flags))?;
        if self.waits && sent < pieces.iter().map(|piece| piece.len()).sum() {
            // A call that has already sent some data also returns early after a signal or at the end of a short wait.
            fordway_sys::after_signal()?;
        }
        Ok(sent)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn setting_up(error: io::Error) -> Error {
    Error::new(ErrorKind::Io, "setting up a connection").caused_by(error)
}

/// Repeats `call` after a signal and after each timeout of the kernel, until the total wait reaches `limit`. The
/// kernel's timeout may be shorter than `limit`. Errors: the errors of `call`; `CANCELED` if the program must stop.
fn within(limit: Duration, mut call: impl FnMut() -> rustix::io::Result<usize>) -> io::Result<usize> {
    let (step, mut waited) = (fordway_sys::wait_at_most(limit), Duration::ZERO);
    loop {
        match call() {
            Err(rustix::io::Errno::INTR) => fordway_sys::after_signal()?,
            Err(rustix::io::Errno::AGAIN) if waited + step < limit => {
                waited += step;
                fordway_sys::after_signal()?;
            }
            done => return Ok(done?),
        }
    }
}
