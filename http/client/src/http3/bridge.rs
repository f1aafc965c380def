//! Translates between HTTP/1.1 on a socket and HTTP/3. Requests are sent as they arrive, each in a stream of its own,
//! and responses are written in the order of their requests.
//!
//! A failure closes the socket, so the caller sees a connection that ends before the response, or within its body.

use std::future::poll_fn;
use std::io;

use bytes::{Buf as _, Bytes, BytesMut};
use fordway_wire::range::digits;
use h3::client::{RequestStream, SendRequest};
use h3_quinn::{BidiStream, OpenStreams, RecvStream, SendStream};
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{spawn_local, yield_now};

use crate::heads::{head_of_response, request_of_head};
use crate::response::MAX_HEAD_BYTES;

/// The maximum number of requests in flight.
pub(super) const PIPELINE_MAX: usize = 32;
/// The number of pieces of a response that wait for the caller. QUIC's flow control then stops the server.
const PIECES_MAX: usize = 16;
/// The number of body bytes that are read from the caller at a time.
const CHUNK_BYTES: usize = 256 << 10;

type Sending = RequestStream<SendStream<Bytes>, Bytes>;
type Receiving = RequestStream<RecvStream, Bytes>;

/// A piece of a response in HTTP/1.1 form. A response whose pieces end without [`ResponsePiece::End`] is broken.
enum ResponsePiece {
    Bytes(Bytes),
    End,
}

/// Runs until the caller closes the socket or the connection ends.
pub(super) async fn run(socket: UnixStream, quic: &quinn::Connection) {
    let Ok((mut driver, send)) = h3::client::new(h3_quinn::Connection::new(quic.clone())).await else {
        return;
    };
    let (incoming, outgoing) = socket.into_split();
    let (queue, responses) = mpsc::channel(PIPELINE_MAX);
    let mut writing = spawn_local(write_responses(outgoing, responses));
    let mut requests = RequestReader { incoming, received: BytesMut::new() };
    tokio::select! {
        end = poll_fn(|context| driver.poll_close(context)) => {
            tracing::debug!(%end, "an HTTP/3 connection ended");
            // Bytes that have arrived are still written.
            let _ = (&mut writing).await;
        }
        read = requests.send_each(send, queue) => match read {
            Ok(()) => writing.abort(),
            Err(error) => {
                tracing::debug!(%error, "a request cannot be sent over HTTP/3");
                let _ = (&mut writing).await;
            }
        },
        _ = &mut writing => {}
    }
}

/// The caller's side: requests in HTTP/1.1 form.
struct RequestReader {
    incoming: OwnedReadHalf,
    received: BytesMut,
}

impl RequestReader {
    /// Sends requests until the caller closes the socket. Errors: an invalid request, or a connection that takes no
    /// more requests.
    async fn send_each(
        &mut self,
        mut send: SendRequest<OpenStreams, Bytes>,
        queue: mpsc::Sender<mpsc::Receiver<ResponsePiece>>,
    ) -> io::Result<()> {
        while let Some(head) = self.head().await? {
            let (mut request, body_bytes) = translated(&head)?;
            let is_awaited = request.headers_mut().remove(header::EXPECT).is_some();
            let method = request.method().clone();
            let (pieces, response) = mpsc::channel(PIECES_MAX);
            if queue.send(response).await.is_err() {
                return Ok(());
            }
            if is_awaited {
                let _ = pieces.send(ResponsePiece::Bytes(Bytes::from_static(CONTINUE))).await;
            }
            let stream = send.send_request(request).await.map_err(io::Error::other)?;
            let (mut sending, receiving) = split(stream);
            let (report, sent) = oneshot::channel();
            spawn_local(async move {
                if let Err(error) = receive(receiving, &method, sent, &pieces).await {
                    tracing::debug!(%error, "an HTTP/3 response ended early");
                }
            });
            let is_sent = self.send_body(&mut sending, body_bytes).await?;
            let _ = report.send(is_sent);
        }
        Ok(())
    }

    /// Returns the next head; `None` if the caller has closed the socket. Errors: a head that is too long or incomplete.
    async fn head(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            if let Some(end) = find(&self.received, b"\r\n\r\n") {
                return Ok(Some(self.received.split_to(end + 4).freeze()));
            }
            if self.received.len() > MAX_HEAD_BYTES {
                return Err(invalid("a request head is too long"));
            }
            if self.incoming.read_buf(&mut self.received).await? == 0 {
                return Ok(None);
            }
        }
    }

    /// Sends the body; returns whether the server took all of it. If the server refuses the rest, that is discarded, so
    /// that the caller gets to read the response.
    async fn send_body(&mut self, sending: &mut Sending, body_bytes: u64) -> io::Result<bool> {
        let (mut left, mut is_taken) = (body_bytes, true);
        while left > 0 {
            if self.received.is_empty() {
                self.received.reserve(CHUNK_BYTES);
                if self.incoming.read_buf(&mut self.received).await? == 0 {
                    sending.stop_stream(h3::error::Code::H3_REQUEST_CANCELLED);
                    return Err(invalid("the caller closed the socket within a body"));
                }
            }
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(self.received.len());
            let piece = self.received.split_to(count).freeze();
            left -= count as u64;
            is_taken = is_taken && sending.send_data(piece).await.is_ok();
            // Responses to earlier requests must not wait until the whole body has been sent.
            yield_now().await;
        }
        Ok(is_taken && sending.finish().await.is_ok())
    }
}

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

fn split(stream: RequestStream<BidiStream<Bytes>, Bytes>) -> (Sending, Receiving) {
    stream.split()
}

/// Returns the request, and the length of its body. Errors: an invalid head, or one whose body has no stated length.
fn translated(head: &[u8]) -> io::Result<(Request<()>, u64)> {
    let mut request = request_of_head(head, true).ok_or_else(|| invalid("a request head is invalid"))?;
    let headers = request.headers_mut();
    if headers.contains_key(header::TRANSFER_ENCODING) {
        return Err(invalid("a request body has no stated length"));
    }
    headers.remove(header::CONNECTION);
    let body_bytes = content_length(headers)?.unwrap_or(0);
    Ok((request, body_bytes))
}

/// Returns the stated length. Errors: several lengths, or one that is not a number.
fn content_length(headers: &HeaderMap) -> io::Result<Option<u64>> {
    let mut stated = headers.get_all(header::CONTENT_LENGTH).iter();
    let Some(first) = stated.next() else { return Ok(None) };
    let length = first.to_str().ok().and_then(digits).ok_or_else(|| invalid("a length is not a number"))?;
    match stated.next() {
        None => Ok(Some(length)),
        Some(_) => Err(invalid("a message states several lengths")),
    }
}

/// Receives a response, and passes it on in HTTP/1.1 form. Errors: an incomplete or invalid response; a success although
/// the server did not take the whole request.
async fn receive(
    mut receiving: Receiving,
    method: &Method,
    sent: oneshot::Receiver<bool>,
    pieces: &mpsc::Sender<ResponsePiece>,
) -> io::Result<()> {
    let response = loop {
        let response = receiving.recv_response().await.map_err(io::Error::other)?;
        if !response.status().is_informational() {
            break response;
        }
    };
    if response.status().is_success() && !sent.await.unwrap_or(false) {
        return Err(invalid("the server reported success before it had the whole request"));
    }
    let has_body = *method != Method::HEAD
        && ![StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&response.status());
    let length = content_length(response.headers())?;
    let mut framing = match (has_body, length) {
        (false, _) => OutgoingFraming::Length(0),
        (true, Some(length)) => OutgoingFraming::Length(length),
        (true, None) => OutgoingFraming::Chunked,
    };
    let passed = pieces.send(ResponsePiece::Bytes(response_head(response, &framing))).await;
    passed.map_err(|_| invalid("the caller is gone"))?;
    while let Some(mut data) = receiving.recv_data().await.map_err(io::Error::other)? {
        let data = data.copy_to_bytes(data.remaining());
        for piece in framing.framed(data)? {
            let passed = pieces.send(ResponsePiece::Bytes(piece)).await;
            passed.map_err(|_| invalid("the caller is gone"))?;
        }
    }
    if let Some(last) = framing.end()? {
        let _ = pieces.send(ResponsePiece::Bytes(last)).await;
    }
    let _ = pieces.send(ResponsePiece::End).await;
    Ok(())
}

/// Returns the head without the headers that only one connection has (RFC 9114 section 4.2).
fn response_head(mut response: Response<()>, framing: &OutgoingFraming) -> Bytes {
    for name in ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"] {
        response.headers_mut().remove(name);
    }
    let mut head = head_of_response(&response);
    if matches!(framing, OutgoingFraming::Chunked) {
        head.extend_from_slice(b"transfer-encoding: chunked\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head.into()
}

/// How the body of a response is framed in HTTP/1.1.
enum OutgoingFraming {
    /// The number of bytes to come.
    Length(u64),
    Chunked,
}

impl OutgoingFraming {
    /// Returns the pieces that carry `data`. Errors: more bytes than the head states, which would be taken for the next
    /// response.
    fn framed(&mut self, data: Bytes) -> io::Result<Vec<Bytes>> {
        match self {
            _ if data.is_empty() => Ok(Vec::new()),
            OutgoingFraming::Length(left) => {
                let rest = left.checked_sub(data.len() as u64);
                *left = rest.ok_or_else(|| invalid("a body is longer than its stated length"))?;
                Ok(vec![data])
            }
            OutgoingFraming::Chunked => {
                let size = format!("{:x}\r\n", data.len());
                Ok(vec![size.into(), data, Bytes::from_static(b"\r\n")])
            }
        }
    }

    /// Returns the bytes that end the body. Errors: fewer bytes than the head states.
    fn end(&self) -> io::Result<Option<Bytes>> {
        match self {
            OutgoingFraming::Length(0) => Ok(None),
            OutgoingFraming::Length(_) => Err(invalid("a body is shorter than its stated length")),
            OutgoingFraming::Chunked => Ok(Some(Bytes::from_static(b"0\r\n\r\n"))),
        }
    }
}

/// Writes responses in the order of their requests, until one is broken or no more requests come.
async fn write_responses(
    mut outgoing: OwnedWriteHalf,
    mut responses: mpsc::Receiver<mpsc::Receiver<ResponsePiece>>,
) {
    while let Some(mut response) = responses.recv().await {
        loop {
            match response.recv().await {
                Some(ResponsePiece::Bytes(piece)) => {
                    if outgoing.write_all(&piece).await.is_err() {
                        return;
                    }
                }
                Some(ResponsePiece::End) => break,
                None => return,
            }
        }
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
