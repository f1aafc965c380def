//! A client's socket: TCP with TLS or without, or the Unix socket of a node.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

/// What bytes of a client come and go through.
pub(crate) enum Socket {
    Plain(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Socket {
    /// Whether the client chose HTTP/2 in its handshake (ALPN, RFC 7301).
    pub(crate) fn chose_http2(&self) -> bool {
        match self {
            Socket::Plain(_) | Socket::Unix(_) => false,
            Socket::Tls(stream) => stream.get_ref().1.alpn_protocol() == Some(b"h2"),
        }
    }

    /// Whether what is sent must pass through this process.
    pub(crate) fn is_encrypted(&self) -> bool {
        matches!(self, Socket::Tls(_))
    }

    /// Has the runtime of the calling thread tell what happens on the socket, in place of the one that
    /// did so until now. What TLS keeps for it is kept. Errors: from the system.
    pub(crate) fn register_anew(&mut self) -> io::Result<()> {
        match self {
            Socket::Plain(stream) => anew(stream),
            Socket::Tls(stream) => anew(stream.get_mut().0),
            Socket::Unix(stream) => {
                let again = std::os::unix::net::UnixStream::from(stream.as_fd().try_clone_to_owned()?);
                *stream = UnixStream::from_std(again)?;
                Ok(())
            }
        }
    }

    /// Has the kernel send up to `len` bytes by `send` as soon as the socket takes something.
    /// Errors: `Unsupported` for a socket with TLS, and errors of `send`.
    pub(crate) fn poll_send(
        &self,
        context: &mut Context<'_>,
        len: usize,
        send: impl Fn(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut last = 0;
            let mut attempt = |socket: BorrowedFd<'_>| {
                let sent = send(socket)?;
                // Full: the next call had best wait, and not be the one that is told so.
                if sent > 0 && sent < len && !fordway_sys::is_writable(socket)? {
                    last = sent;
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                Ok(sent)
            };
            let sent = match self {
                Socket::Plain(stream) => {
                    ready!(stream.poll_write_ready(context))?;
                    stream.try_io(Interest::WRITABLE, || attempt(stream.as_fd()))
                }
                Socket::Unix(stream) => {
                    ready!(stream.poll_write_ready(context))?;
                    stream.try_io(Interest::WRITABLE, || attempt(stream.as_fd()))
                }
                Socket::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
            };
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && last == 0 => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Ready(Ok(last)),
                sent => return Poll::Ready(sent),
            }
        }
    }
}

/// A descriptor can be registered with one runtime at a time, so the new one gets another.
fn anew(stream: &mut TcpStream) -> io::Result<()> {
    let again = std::net::TcpStream::from(stream.as_fd().try_clone_to_owned()?);
    *stream = TcpStream::from_std(again)?;
    Ok(())
}

/// The same call on any kind.
macro_rules! on_any {
    ($socket:expr, $stream:ident => $call:expr) => {
        match $socket.get_mut() {
            Socket::Plain($stream) => $call,
            Socket::Unix($stream) => $call,
            Socket::Tls($stream) => $call,
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = on_any!(self, stream => Pin::new(stream).poll_read(context, room));
        match read {
            // Many clients end TLS without a word. HTTP says by itself where its messages end.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            read => read,
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        on_any!(self, stream => Pin::new(stream).poll_write(context, data))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_any!(self, stream => Pin::new(stream).poll_write_vectored(context, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_any!(self, stream => Pin::new(stream).poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_any!(self, stream => Pin::new(stream).poll_shutdown(context))
    }
}
