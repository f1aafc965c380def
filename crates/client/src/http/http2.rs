//! HTTP/2 for who reads HTTP/1.1: a transport that takes a request as HTTP/1.1 has it, and gives the
//! answer back so (RFC 9113 section 8).
//!
//! All of it runs in the calling thread, on a runtime that the connection has for itself: a request
//! costs no change of threads. A connection has one request at a time, as those of HTTP/1.1; many at
//! once on one connection are what [`super::load`] is for.

use std::future::{Future, poll_fn};
use std::io::{self, Read};
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::Process;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderName, Method, Request, Response, Uri};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};

use super::socket::Socket;
use super::tls::TlsConnector;
use super::{Origin, Timeouts};

/// What the server may send on a request before it is read; 10 ms away, that is 800 MB/s.
const WINDOW_BYTES: u32 = 8 << 20;
/// The largest piece of a body in one frame.
const FRAME_BYTES_MAX: u32 = 256 << 10;
/// The most of a body that is handed over at a time.
const PIECE_BYTES: usize = 256 << 10;
/// The most headers of a request.
const HEADERS_MAX: usize = 128;

/// A connection. In a process that was forked from the one which made it, it is of no use.
pub(super) struct Http2 {
    /// There until it is dropped.
    driver: Option<Driver>,
    opened_by: Process,
    is_tls: bool,
    timeout: Duration,
    exchange: Exchange,
    /// The same socket, to ask the kernel about it.
    pub(super) socket: Socket,
}

/// What has the connection move.
struct Driver {
    runtime: Runtime,
    send: SendRequest<Bytes>,
}

/// Where a request and its answer stand.
#[derive(Default)]
enum Exchange {
    #[default]
    Idle,
    /// With the bytes of the body that are left.
    Sending(SendStream<Bytes>, u64, ResponseFuture),
    Waiting(ResponseFuture),
    /// The head as text, as far as it was not read yet, and the body's piece at hand.
    Receiving(Bytes, RecvStream),
}

impl Http2 {
    /// Begins on a new `socket` by prior knowledge, or through TLS in whose handshake HTTP/2 is chosen.
    /// Errors: `Unavailable`, `Timeout`, `InvalidArgument`; `BadResponse` for a server without HTTP/2.
    pub(super) fn connect(
        origin: &Origin,
        socket: Socket,
        timeouts: &Timeouts,
        tls: &TlsConnector,
    ) -> Result<Self> {
        let unreachable = |error: io::Error| {
            Error::new(ErrorKind::Unavailable, format!("no HTTP/2 with {origin}")).caused_by(error)
        };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(unreachable)?;
        let stream = socket.share().map_err(unreachable)?;
        let start = async {
            let stream = TcpStream::from_std(stream).map_err(unreachable)?;
            if !origin.tls {
                return handshake(stream).await.map_err(unreachable);
            }
            let (config, name) = (tls.config()?, TlsConnector::name(origin)?);
            let stream = tokio_rustls::TlsConnector::from(config).connect(name, stream).await;
            let stream = stream.map_err(unreachable)?;
            if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
                let detail = format!("{origin} does not speak HTTP/2; ask it in HTTP/1.1");
                return Err(Error::new(ErrorKind::BadResponse, detail));
            }
            handshake(stream).await.map_err(unreachable)
        };
        let late = || Error::new(ErrorKind::Timeout, format!("{origin} did not begin HTTP/2 in time"));
        let send = runtime
            .block_on(async { tokio::time::timeout(timeouts.first_byte, start).await })
            .map_err(|_| late())??;
        Ok(Http2 {
            driver: Some(Driver { runtime, send }),
            opened_by: Process::current(),
            is_tls: origin.tls,
            timeout: timeouts.progress,
            exchange: Exchange::Idle,
            socket,
        })
    }

    /// How long calls wait from now on.
    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Whether the server takes another request, as far as it has said.
    pub(super) fn is_open(&mut self) -> bool {
        self.exchange = Exchange::Idle;
        let Some(driver) = self.driver.as_mut().filter(|_| self.opened_by.is_current()) else { return false };
        let send = &mut driver.send;
        driver.runtime.block_on(async {
            // What has arrived is read by the connection's own task, which has its turn here.
            for _ in 0..2 {
                tokio::task::yield_now().await;
            }
            poll_fn(|context| Poll::Ready(matches!(send.poll_ready(context), Poll::Ready(Ok(()))))).await
        })
    }

    /// Takes a whole head, or some of the body that it has announced; returns how many bytes.
    /// Errors: `TimedOut`, `ConnectionReset`, `InvalidInput` for a head that HTTP/2 cannot have.
    pub(super) fn write(&mut self, head: &[u8], body: &[u8]) -> io::Result<usize> {
        if !head.is_empty() {
            self.start(head, body.len() as u64)?;
            return Ok(head.len());
        }
        let Exchange::Sending(mut stream, left, response) = std::mem::take(&mut self.exchange) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let wanted = body.len().min(PIECE_BYTES);
        stream.reserve_capacity(wanted);
        let sent = self.drive(async {
            let room = poll_fn(|context| stream.poll_capacity(context)).await;
            let room = room.ok_or(io::ErrorKind::BrokenPipe)?.map_err(cut)?.min(wanted);
            let is_last = room as u64 == left;
            stream.send_data(Bytes::copy_from_slice(&body[..room]), is_last).map_err(cut)?;
            Ok(room)
        });
        // An answer may be there although the server takes no more.
        self.exchange = match &sent {
            Ok(sent) if (*sent as u64) < left => Exchange::Sending(stream, left - *sent as u64, response),
            _ => Exchange::Waiting(response),
        };
        sent
    }

    fn start(&mut self, head: &[u8], body_bytes: u64) -> io::Result<()> {
        let request = request(head, self.is_tls).ok_or(io::ErrorKind::InvalidInput)?;
        let driver = self.driver.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let send = driver.send.clone();
        let (response, stream) = self.drive(async {
            let mut send = send.ready().await.map_err(cut)?;
            send.send_request(request, body_bytes == 0).map_err(cut)
        })?;
        self.exchange = match body_bytes {
            0 => Exchange::Waiting(response),
            left => Exchange::Sending(stream, left, response),
        };
        Ok(())
    }

    /// Some of the answer: its head, then its body; 0 at its end. Fills `room` where `is_all_wanted`.
    fn receive(&mut self, room: &mut [u8], is_all_wanted: bool) -> io::Result<usize> {
        let exchange = std::mem::take(&mut self.exchange);
        let (mut at_hand, mut body) = match exchange {
            Exchange::Receiving(at_hand, body) => (at_hand, body),
            Exchange::Waiting(response) | Exchange::Sending(_, _, response) => {
                let answer = self.drive(async { response.await.map_err(cut) })?;
                (Bytes::from(text(&answer)), answer.into_body())
            }
            Exchange::Idle => return Ok(0),
        };
        let done = self.drive(async {
            let mut done = 0;
            while done < room.len() {
                if at_hand.is_empty() {
                    if done > 0 && !is_all_wanted {
                        break;
                    }
                    let Some(piece) = body.data().await else { break };
                    at_hand = piece.map_err(cut)?;
                    body.flow_control().release_capacity(at_hand.len()).map_err(cut)?;
                    continue;
                }
                let count = at_hand.len().min(room.len() - done);
                at_hand.copy_to_slice(&mut room[done..done + count]);
                done += count;
            }
            Ok(done)
        })?;
        self.exchange = Exchange::Receiving(at_hand, body);
        Ok(done)
    }

    /// Receives until `room` is full or the body ends.
    pub(super) fn receive_all(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.receive(room, true)
    }

    /// Has the connection move in this thread until `work` is done. Errors: `TimedOut`.
    fn drive<T>(&self, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let driver = self.driver.as_ref().filter(|_| self.opened_by.is_current());
        let driver = driver.ok_or(io::ErrorKind::NotConnected)?;
        let limited = async { tokio::time::timeout(self.timeout, work).await };
        driver.runtime.block_on(limited).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Read for Http2 {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.receive(room, false)
    }
}

impl Drop for Http2 {
    fn drop(&mut self) {
        if !self.opened_by.is_current() {
            // The parent waits for the same sockets by the same list in the kernel: taking them off
            // here would take them off there.
            std::mem::forget(self.driver.take());
        }
    }
}

async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> io::Result<SendRequest<Bytes>> {
    let (send, connection) = h2::client::Builder::new()
        .initial_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .enable_push(false)
        .handshake(stream)
        .await
        .map_err(cut)?;
    tokio::spawn(async move {
        // Requests on it learn of its end by themselves.
        if let Err(error) = connection.await {
            tracing::debug!(%error, "an HTTP/2 connection ended");
        }
    });
    Ok(send)
}

/// The connection, or this request's part of it, has come to an early end.
fn cut(error: h2::Error) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, error)
}

/// A head of HTTP/1.1 in the terms of HTTP/2; `None` for what is no such head.
fn request(head: &[u8], is_tls: bool) -> Option<Request<()>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    parsed.parse(head).ok()?;
    let host = parsed.headers.iter().find(|header| header.name.eq_ignore_ascii_case("host"))?;
    let scheme = if is_tls { "https" } else { "http" };
    let uri =
        Uri::builder().scheme(scheme).authority(host.value).path_and_query(parsed.path?).build().ok()?;
    let mut request = Request::builder().method(Method::from_bytes(parsed.method?.as_bytes()).ok()?).uri(uri);
    for header in parsed.headers.iter().filter(|header| !header.name.eq_ignore_ascii_case("host")) {
        request = request.header(HeaderName::from_bytes(header.name.as_bytes()).ok()?, header.value);
    }
    request.body(()).ok()
}

/// The head of an answer as HTTP/1.1 writes it.
fn text(answer: &Response<RecvStream>) -> Vec<u8> {
    let mut text = Vec::with_capacity(1024);
    let mut put = |piece: &[u8]| text.extend_from_slice(piece);
    put(b"HTTP/1.1 ");
    put(answer.status().as_str().as_bytes());
    put(b"\r\n");
    for (name, value) in answer.headers() {
        put(name.as_str().as_bytes());
        put(b": ");
        put(value.as_bytes());
        put(b"\r\n");
    }
    put(b"\r\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_keeps_all_that_it_says() {
        let head =
            b"PUT /b/a%20b?x=1 HTTP/1.1\r\nHost: h:9\r\nContent-Length: 5\r\nx-amz-meta-a: 1, 2\r\n\r\n";
        let request = request(head, true).unwrap();
        assert_eq!(
            (request.method().as_str(), request.uri().to_string().as_str()),
            ("PUT", "https://h:9/b/a%20b?x=1")
        );
        let headers: Vec<_> =
            request.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(headers, [("content-length", "5"), ("x-amz-meta-a", "1, 2")]);
        assert!(super::request(b"GET / HTTP/1.1\r\n\r\n", true).is_none(), "there is no host");
    }
}
