//! The transport for HTTP/2: a non-blocking socket, with or without TLS.

use std::io::{self, IoSlice, Read, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::carrier::{TcpOrTlsStream, TlsStream};
use crate::socket::TcpSocket;

/// The maximum number of bytes received by one call. Frames are usually shorter, and one call per frame would cost more
/// than copying the data.
const BUFFER_BYTES: usize = 128 << 10;

/// The socket, presented to the HTTP/2 library as an asynchronous stream. The stream never wakes a task; the thread
/// that drives the connection polls again when the socket is ready.
pub(super) struct Http2Socket {
    transport: SocketTransport,
    /// A buffer in which the bytes in `used..filled` have been received but not yet passed on.
    buffer: Vec<u8>,
    used: usize,
    filled: usize,
    gauge: Arc<SocketFlowLimiter>,
}

/// A socket, with or without TLS.
pub(super) enum SocketTransport {
    Plain(TcpSocket),
    Tls(Box<TlsStream>),
}

impl From<TcpOrTlsStream> for SocketTransport {
    fn from(carrier: TcpOrTlsStream) -> Self {
        match carrier {
            TcpOrTlsStream::Tcp(socket) => SocketTransport::Plain(socket),
            TcpOrTlsStream::Tls(stream) => SocketTransport::Tls(stream),
        }
    }
}

/// Counts the bytes that pass through a socket, and limits the number of received bytes.
#[derive(Default)]
pub(super) struct SocketFlowLimiter {
    /// The number of bytes that may still be received before [`SocketFlowLimiter::open`] is called again.
    room_bytes: AtomicUsize,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    /// Whether the socket's buffer had no room at the last attempt to send.
    is_blocked: AtomicBool,
    /// Whether the server has sent a TLS alert on a connection without TLS.
    wants_tls: AtomicBool,
}

/// The start of a TLS alert (RFC 8446 section 5.1): its type, and the first byte of the version. No HTTP/2 connection
/// begins with these bytes.
const TLS_ALERT: [u8; 2] = [21, 3];

impl SocketFlowLimiter {
    /// Allows this many bytes to be received.
    pub(super) fn open(&self, room_bytes: usize) {
        self.room_bytes.store(room_bytes, Ordering::Relaxed);
    }

    /// Returns whether all allowed bytes have been received, in which case more bytes may be waiting.
    pub(super) fn is_used_up(&self) -> bool {
        self.room_bytes.load(Ordering::Relaxed) == 0
    }

    /// Returns the number of bytes received since the connection was opened.
    pub(super) fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that the socket has accepted since the connection was opened.
    pub(super) fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked.load(Ordering::Relaxed)
    }

    /// Returns whether the server accepts only TLS, but this connection does not use TLS.
    pub(super) fn wants_tls(&self) -> bool {
        self.wants_tls.load(Ordering::Relaxed)
    }

    fn sent<T>(&self, done: io::Result<T>) -> Poll<io::Result<T>> {
        let is_blocked = matches!(&done, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        self.is_blocked.store(is_blocked, Ordering::Relaxed);
        if is_blocked { Poll::Pending } else { Poll::Ready(done) }
    }
}

impl Http2Socket {
    pub(super) fn new(mut transport: SocketTransport, gauge: Arc<SocketFlowLimiter>) -> Self {
        match &mut transport {
            SocketTransport::Plain(socket) => socket.set_waiting(false),
            SocketTransport::Tls(stream) => stream.sock.tcp_mut().set_waiting(false),
        }
        Http2Socket { transport, buffer: vec![0; BUFFER_BYTES], used: 0, filled: 0, gauge }
    }

    /// Receives into the empty buffer. Returns 0 at the end of the stream.
    fn receive(&mut self) -> io::Result<usize> {
        let got = again(|| match &mut self.transport {
            SocketTransport::Plain(socket) => socket.read(&mut self.buffer),
            SocketTransport::Tls(stream) => stream.read(&mut self.buffer),
        })?;
        (self.used, self.filled) = (0, got);
        let before = self.gauge.received_bytes.fetch_add(got as u64, Ordering::Relaxed);
        let is_plain = matches!(self.transport, SocketTransport::Plain(_));
        if before == 0 && is_plain && self.buffer[..got].starts_with(&TLS_ALERT) {
            self.gauge.wants_tls.store(true, Ordering::Relaxed);
        }
        Ok(got)
    }
}

impl AsyncRead for Http2Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        target: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = self.gauge.room_bytes.load(Ordering::Relaxed);
        if room == 0 {
            return Poll::Pending;
        }
        if self.used == self.filled {
            match self.receive() {
                Ok(0) => return Poll::Ready(Ok(())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        let count = (self.filled - self.used).min(target.remaining()).min(room);
        target.put_slice(&self.buffer[self.used..self.used + count]);
        self.used += count;
        self.gauge.open(room - count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Http2Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(data)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = again(|| match &mut self.transport {
            SocketTransport::Plain(socket) => socket.write_vectored(pieces),
            SocketTransport::Tls(stream) => stream.write_vectored(pieces),
        });
        self.gauge.sent_bytes.fetch_add(*sent.as_ref().unwrap_or(&0) as u64, Ordering::Relaxed);
        self.gauge.sent(sent)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            // A plain socket sends immediately, so there is nothing to flush.
            SocketTransport::Plain(_) => Poll::Ready(Ok(())),
            SocketTransport::Tls(stream) => {
                let sent = again(|| stream.flush());
                self.gauge.sent(sent)
            }
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}
