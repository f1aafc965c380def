//! The transport for requests: a socket or a TLS session. A TLS session with a server may run inside a TLS session with
//! a proxy.

use std::io::{self, BufRead as _, IoSlice, Read, Write};

use rustls::{ClientConnection, StreamOwned};

use super::socket::TcpSocket;

/// A TLS session and its underlying transport.
pub(super) type TlsStream = StreamOwned<ClientConnection, Carrier>;

/// A connection to a server or proxy.
pub(super) enum Carrier {
    Tcp(TcpSocket),
    Tls(Box<TlsStream>),
}

impl Carrier {
    /// Returns the underlying socket.
    pub(super) fn tcp(&self) -> &TcpSocket {
        match self {
            Carrier::Tcp(socket) => socket,
            Carrier::Tls(stream) => stream.sock.tcp(),
        }
    }

    /// Returns the underlying socket, so that the caller can change its settings.
    pub(super) fn tcp_mut(&mut self) -> &mut TcpSocket {
        match self {
            Carrier::Tcp(socket) => socket,
            Carrier::Tls(stream) => stream.sock.tcp_mut(),
        }
    }
}

impl Carrier {
    /// Receives bytes without consuming them. The next call returns the same bytes, unless they have been consumed.
    pub(super) fn peek(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Carrier::Tcp(socket) => socket.peek(room),
            Carrier::Tls(stream) => {
                let received = stream.fill_buf()?;
                let count = received.len().min(room.len());
                room[..count].copy_from_slice(&received[..count]);
                Ok(count)
            }
        }
    }

    /// Consumes bytes that [`Carrier::peek`] has returned.
    pub(super) fn consume(&mut self, count: usize) -> io::Result<()> {
        match self {
            Carrier::Tcp(socket) => socket.read_exact(&mut vec![0; count]),
            Carrier::Tls(stream) => {
                stream.consume(count);
                Ok(())
            }
        }
    }
}

impl Read for Carrier {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Carrier::Tcp(socket) => socket.read(room),
            Carrier::Tls(stream) => stream.read(room),
        }
    }
}

impl Write for Carrier {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(data)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Carrier::Tcp(socket) => socket.write_vectored(pieces),
            Carrier::Tls(stream) => stream.write_vectored(pieces),
        }
    }

    /// Sends data that a TLS session has buffered because the buffer of its socket was full.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Carrier::Tcp(socket) => socket.flush(),
            Carrier::Tls(stream) => stream.flush(),
        }
    }
}
