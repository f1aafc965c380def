//! HTTP/2: many requests at once on each connection (RFC 9113).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{TcpInfo, tcp_info};
use h2::client::SendRequest;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector as AsyncTls;

use super::multiplex::{ExchangeSender, FailedExchange, MultiplexedLoadGenerator, TimedExchange, failed};
use super::{NetworkTraffic, RequestSequence, answered_early, is_success};
use fordway_http::parts::TlsConnector;
use fordway_http::{Timeouts, TlsRoots};

/// The flow-control window, large enough not to limit the load.
const WINDOW_BYTES: u32 = 16 << 20;
/// Maximum number of body bytes passed to h2 at a time.
const PIECE_BYTES: usize = 256 << 10;

/// A load generator for HTTP/2: over TCP with prior knowledge, or over TLS if the URL scheme is `https`.
pub type Http2LoadGenerator = MultiplexedLoadGenerator<Http2Sender>;

/// An HTTP/2 connection, on which each request is a stream.
#[derive(Clone)]
pub struct Http2Sender {
    send: SendRequest<Bytes>,
    requests: Arc<RequestSequence>,
    counted: Arc<ConnectionByteCounters>,
}

/// The bytes sent and received on a connection.
#[derive(Default)]
struct ConnectionByteCounters {
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    /// A duplicate of the socket, kept to query the kernel's TCP statistics.
    socket: std::sync::OnceLock<std::os::fd::OwnedFd>,
}

impl ExchangeSender for Http2Sender {
    async fn connect(requests: &Arc<RequestSequence>, timeouts: Timeouts, roots: &TlsRoots) -> Result<Self> {
        let origin = requests.origin();
        let unreachable = |error: io::Error| {
            Error::new(ErrorKind::Unavailable, format!("cannot connect to {origin}")).caused_by(error)
        };
        let tcp = TcpStream::connect((origin.host.as_str(), origin.port)).await.map_err(unreachable)?;
        tcp.set_nodelay(true).map_err(unreachable)?;
        let counted = Arc::new(ConnectionByteCounters::default());
        if let Ok(socket) = std::os::fd::AsFd::as_fd(&tcp).try_clone_to_owned() {
            let _ = counted.socket.set(socket);
        }
        let send = if origin.tls {
            let config = TlsConnector::new(roots.clone(), b"h2").config()?;
            let name = TlsConnector::name(origin)?;
            let tls = AsyncTls::from(config).connect(name, tcp).await.map_err(unreachable)?;
            if tls.get_ref().1.alpn_protocol() != Some(b"h2") {
                let detail = format!("{origin} does not support HTTP/2; leave 2 out of --http");
                return Err(Error::new(ErrorKind::BadResponse, detail));
            }
            handshake(tls, counted.clone(), timeouts).await?
        } else {
            handshake(tcp, counted.clone(), timeouts).await?
        };
        Ok(Http2Sender { send, requests: requests.clone(), counted })
    }

    async fn exchange(&mut self, exchange: &mut TimedExchange) -> Result<(), FailedExchange> {
        let mut send = self.send.clone().ready().await.map_err(broken)?;
        let body = self.requests.body().clone();
        let request = self.requests.http_request()?;
        let (answer, mut upload) = send.send_request(request, body.is_empty()).map_err(broken)?;
        let is_sent =
            body.is_empty() || push_body(&mut upload, Bytes::from_owner(body)).await.map_err(broken)?;
        let answer = answer.await.map_err(broken)?;
        exchange.first_byte = Some(Instant::now());
        exchange.status = answer.status().as_u16();
        if !is_sent && is_success(exchange.status) {
            return Err(answered_early(exchange.status).into());
        }
        let mut body = answer.into_body();
        while let Some(piece) = body.data().await {
            let length = piece.map_err(broken)?.len();
            exchange.body_bytes += length as u64;
            body.flow_control().release_capacity(length).map_err(broken)?;
        }
        Ok(())
    }

    fn traffic(&self) -> NetworkTraffic {
        NetworkTraffic {
            sent_bytes: self.counted.sent_bytes.load(Ordering::Relaxed),
            received_bytes: self.counted.received_bytes.load(Ordering::Relaxed),
            connections: 1,
        }
    }

    fn tcp(&self) -> Option<TcpInfo> {
        tcp_info(self.counted.socket.get()?).ok()
    }
}

/// Converts an error of the `h2` library. After a stream reset, the connection remains usable, unless the server
/// refused the stream before processing the request (RFC 9113 section 8.7).
fn broken(error: h2::Error) -> FailedExchange {
    let ends_connection = !error.is_reset() || error.reason() == Some(h2::Reason::REFUSED_STREAM);
    FailedExchange { error: failed("HTTP/2", error), ends_connection }
}

async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    counted: Arc<ConnectionByteCounters>,
    timeouts: Timeouts,
) -> Result<SendRequest<Bytes>> {
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(WINDOW_BYTES).initial_connection_window_size(WINDOW_BYTES);
    let handshake = builder.handshake(CountingStream { stream, counted });
    let (send, connection) = tokio::time::timeout(timeouts.first_byte, handshake)
        .await
        .map_err(|_| Error::new(ErrorKind::Timeout, "the server did not answer the HTTP/2 preface"))?
        .map_err(|error| failed("HTTP/2", error))?;
    tokio::task::spawn_local(async move {
        // Only log the error, because each request on the connection gets its own error when the connection is closed.
        if let Err(error) = connection.await {
            tracing::debug!(%error, "an HTTP/2 connection ended");
        }
    });
    Ok(send)
}

/// Returns whether the whole body was sent. A server may reject a request before it has received the body; the response
/// then contains the reason.
async fn push_body(
    upload: &mut h2::SendStream<Bytes>,
    mut body: Bytes,
) -> std::result::Result<bool, h2::Error> {
    while !body.is_empty() {
        upload.reserve_capacity(body.len().min(PIECE_BYTES));
        let Some(room) = std::future::poll_fn(|context| upload.poll_capacity(context)).await else {
            return Ok(false);
        };
        let piece = body.split_to(room?.min(body.len()));
        upload.send_data(piece, body.is_empty())?;
    }
    Ok(true)
}

/// A stream that counts the bytes sent and received.
struct CountingStream<S> {
    stream: S,
    counted: Arc<ConnectionByteCounters>,
}

impl<S: AsyncRead + Unpin> AsyncRead for CountingStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let done = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.counted.received_bytes.fetch_add((buffer.filled().len() - before) as u64, Ordering::Relaxed);
        done
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountingStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(context, data);
        self.count(&done);
        done
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.count(&done);
        done
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl<S> CountingStream<S> {
    fn count(&self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(count)) = written {
            self.counted.sent_bytes.fetch_add(*count as u64, Ordering::Relaxed);
        }
    }
}
