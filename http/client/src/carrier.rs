//! The transport for requests: a socket or a TLS session. A TLS session with a server may run inside a TLS session with
//! a proxy.

use std::io::{self, BufRead as _, IoSlice, Read, Write};

use rustls::{ClientConnection, StreamOwned};

use super::socket::TcpSocket;

/// A TLS session and its underlying transport.
pub(super) type TlsStream = StreamOwned<ClientConnection, TcpOrTlsStream>;

/// A connection to a server or proxy.
pub(super) enum TcpOrTlsStream {
    Tcp(TcpSocket),
    Tls(Box<TlsStream>),
}

impl TcpOrTlsStream {
    /// Returns the socket below all TLS sessions.
    pub(super) fn tcp(&self) -> &TcpSocket {
        match self {
            TcpOrTlsStream::Tcp(socket) => socket,
            TcpOrTlsStream::Tls(stream) => stream.sock.tcp(),
        }
    }

    /// Returns the socket below all TLS sessions, so that the caller can change the socket's settings.
    pub(super) fn tcp_mut(&mut self) -> &mut TcpSocket {
        match self {
            TcpOrTlsStream::Tcp(socket) => socket,
            TcpOrTlsStream::Tls(stream) => stream.sock.tcp_mut(),
        }
    }
}

impl TcpOrTlsStream {
    /// Receives bytes without consuming them. The next call returns the same bytes, unless they have been consumed.
    pub(super) fn peek(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            TcpOrTlsStream::Tcp(socket) => socket.peek(room),
            TcpOrTlsStream::Tls(stream) => {
                let received = stream.fill_buf()?;
                let count = received.len().min(room.len());
                room[..count].copy_from_slice(&received[..count]);
                Ok(count)
            }
        }
    }

    /// Consumes bytes that [`TcpOrTlsStream::peek`] has returned.
    pub(super) fn consume(&mut self, count: usize) -> io::Result<()> {
        match self {
            TcpOrTlsStream::Tcp(socket) => socket.read_exact(&mut vec![0; count]),
            TcpOrTlsStream::Tls(stream) => {
                stream.consume(count);
                Ok(())
            }
        }
    }
}

impl Read for TcpOrTlsStream {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            TcpOrTlsStream::Tcp(socket) => socket.read(room),
            TcpOrTlsStream::Tls(stream) => stream.read(room),
        }
    }
}

impl Write for TcpOrTlsStream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(data)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            TcpOrTlsStream::Tcp(socket) => socket.write_vectored(pieces),
            TcpOrTlsStream::Tls(stream) => stream.write_vectored(pieces),
        }
    }

    /// Sends data that a TLS session has buffered because the buffer of its socket was full.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            TcpOrTlsStream::Tcp(socket) => socket.flush(),
            TcpOrTlsStream::Tls(stream) => stream.flush(),
        }
    }
}
