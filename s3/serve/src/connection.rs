//! One client connection, from the first byte to the last byte: TLS if the gateway has a certificate, then HTTP/1.1 or
//! HTTP/2. The socket is a TCP socket with or without TLS, or a Unix socket of the node gateway. Time limits cost
//! nothing unless the gateway is waiting for the client.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, Sleep};
use tokio_rustls::server::TlsStream;

use crate::answer::{GatewayState, too_many_connections};
use crate::gateway::StopReceiver;
use crate::http1::turn_away;
use crate::limits::ConnectionLimitState;
use crate::tls::TlsVersion;
use crate::unsigned::ConnectionPeer;
use crate::{http1, http2};

/// Serves one connection until it ends, or until the gateway is stopped and the connection's requests in progress have
/// been answered.
pub(crate) async fn serve(socket: std::net::TcpStream, shared: &Arc<GatewayState>, stopped: StopReceiver) {
    match speak(socket, shared, stopped).await {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            tracing::warn!(%error, "an object could not be read to its end");
        }
        Err(error) => tracing::debug!(%error, "a connection ended early"),
    }
}

async fn speak(
    socket: std::net::TcpStream,
    shared: &Arc<GatewayState>,
    stopped: StopReceiver,
) -> io::Result<()> {
    let peer = socket.peer_addr()?;
    let Some(account) = shared.addresses.admit(peer.ip()) else { return refuse(socket, shared).await };
    let plain = TcpStream::from_std(socket)?;
    let socket = match &shared.tls {
        None => ClientSocket::Plain(plain),
        Some(tls) => tls.accept(plain, shared.limits.header_timeout).await?,
    };
    let caller = ConnectionPeer::Remote { address: peer, tls: socket.tls_version() };
    match socket.chose_http2() {
        true => http2::serve(socket, Vec::new(), (caller, account), shared, stopped).await,
        false => exchange(socket, Vec::new(), (caller, account), shared, stopped).await,
    }
}

/// Responds to a client whose address has too many connections. With TLS, closes the connection without a response,
/// because a handshake would cost more than the request.
async fn refuse(socket: std::net::TcpStream, shared: &GatewayState) -> io::Result<()> {
    if shared.tls.is_some() {
        return Ok(());
    }
    let socket = ClientSocket::Plain(TcpStream::from_std(socket)?);
    turn_away(socket, too_many_connections(), shared.limits.body.clone()).await
}

/// Serves a connection with the HTTP version that its first bytes indicate; `ahead` contains the bytes that were
/// already read.
pub(crate) async fn exchange(
    socket: ClientSocket,
    ahead: Vec<u8>,
    (caller, account): (ConnectionPeer, Arc<ConnectionLimitState>),
    shared: &Arc<GatewayState>,
    stopped: StopReceiver,
) -> io::Result<()> {
    match http1::serve(socket, ahead, (&caller, &account), shared, stopped.clone()).await? {
        Some((socket, ahead)) => http2::serve(socket, ahead, (caller, account), shared, stopped).await,
        None => Ok(()),
    }
}

/// The socket of a client: TCP, TCP with TLS, or a Unix socket.
pub(crate) enum ClientSocket {
    Plain(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl ClientSocket {
    /// Returns whether the client chose HTTP/2 in its TLS handshake (ALPN, RFC 7301).
    pub(crate) fn chose_http2(&self) -> bool {
        match self {
            ClientSocket::Plain(_) | ClientSocket::Unix(_) => false,
            ClientSocket::Tls(stream) => stream.get_ref().1.alpn_protocol() == Some(b"h2"),
        }
    }

    /// Returns the version of TLS; `None` for a socket without TLS.
    fn tls_version(&self) -> Option<TlsVersion> {
        match self {
            ClientSocket::Plain(_) | ClientSocket::Unix(_) => None,
            ClientSocket::Tls(stream) => Some(TlsVersion::of(stream.get_ref().1)),
        }
    }

    /// Returns whether this process must encrypt the data that it sends. If this process encrypts the data, the kernel
    /// cannot send files directly.
    pub(crate) fn is_encrypted(&self) -> bool {
        matches!(self, ClientSocket::Tls(_))
    }

    /// Moves the socket's registration from its previous runtime to the runtime of the calling thread. Keeps the TLS
    /// state. Errors: the errors of the operating system.
    pub(crate) fn register_anew(&mut self) -> io::Result<()> {
        match self {
            ClientSocket::Plain(stream) => anew(stream),
            ClientSocket::Tls(stream) => anew(stream.get_mut().0),
            ClientSocket::Unix(stream) => {
                let again = std::os::unix::net::UnixStream::from(stream.as_fd().try_clone_to_owned()?);
                *stream = UnixStream::from_std(again)?;
                Ok(())
            }
        }
    }

    /// Calls `send` as soon as the socket is writable. `send` makes the kernel send up to `len` bytes.
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
                // The socket's buffer is full. The error `WouldBlock` makes the runtime mark the socket as not
                // writable. The next call then waits, and does not make a system call that would fail.
                if sent > 0 && sent < len && !fordway_sys::is_writable(socket)? {
                    last = sent;
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                Ok(sent)
            };
            let sent = match self {
                ClientSocket::Plain(stream) => {
                    ready!(stream.poll_write_ready(context))?;
                    stream.try_io(Interest::WRITABLE, || attempt(stream.as_fd()))
                }
                ClientSocket::Unix(stream) => {
                    ready!(stream.poll_write_ready(context))?;
                    stream.try_io(Interest::WRITABLE, || attempt(stream.as_fd()))
                }
                ClientSocket::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
            };
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && last == 0 => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Ready(Ok(last)),
                sent => return Poll::Ready(sent),
            }
        }
    }
}

/// Registers a duplicate of the descriptor, because a descriptor can be registered with only one runtime at a time.
fn anew(stream: &mut TcpStream) -> io::Result<()> {
    let again = std::net::TcpStream::from(stream.as_fd().try_clone_to_owned()?);
    *stream = TcpStream::from_std(again)?;
    Ok(())
}

/// Evaluates `$call` with the stream of the socket, for any kind of socket.
macro_rules! on_any {
    ($socket:expr, $stream:ident => $call:expr) => {
        match $socket.get_mut() {
            ClientSocket::Plain($stream) => $call,
            ClientSocket::Unix($stream) => $call,
            ClientSocket::Tls($stream) => $call,
        }
    };
}

impl AsyncRead for ClientSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = on_any!(self, stream => Pin::new(stream).poll_read(context, room));
        match read {
            // Many clients end TLS without `close_notify`. Such an end counts as a normal end, because the framing of
            // HTTP marks the end of each message.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            read => read,
        }
    }
}

impl AsyncWrite for ClientSocket {
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

/// The deadline of a wait. The deadline is set when the wait begins, and cleared when the wait ends. The underlying
/// timer keeps running between waits and is checked only when it fires, because setting a timer for every wait would
/// take longer than most waits.
#[derive(Default)]
pub(crate) struct WaitDeadline {
    deadline: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl WaitDeadline {
    /// Ends the wait.
    pub(crate) fn end(&mut self) {
        self.deadline = None;
    }

    /// Becomes ready when the wait has lasted for `timeout`. The first call begins the wait.
    pub(crate) fn poll_over(&mut self, context: &mut Context<'_>, timeout: Duration) -> Poll<()> {
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + timeout);
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if timer.deadline() > deadline {
            timer.as_mut().reset(deadline);
        }
        loop {
            ready!(timer.as_mut().poll(context));
            if timer.deadline() >= deadline {
                return Poll::Ready(());
            }
            timer.as_mut().reset(deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[test]
    fn a_wait_lasts_as_long_as_it_may_and_the_next_one_too() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut patience = WaitDeadline::default();
            for timeout_ms in [50, 20, 80] {
                let (start, timeout) = (Instant::now(), Duration::from_millis(timeout_ms));
                poll_fn(|context| patience.poll_over(context, timeout)).await;
                let took = start.elapsed();
                assert!(took >= timeout && took < timeout + Duration::from_millis(500), "{took:?}");
                patience.end();
            }
        });
    }
}
