//! Translates between HTTP/1.1 on a socket and HTTP/3. Each request is sent as it arrives, in a stream of its own.
//! Responses are written in the order of their requests.
//!
//! A failure closes the socket, so the caller sees a connection that ends before a response or within the response's
//! body.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use fordway_wire::range::digits;
use h3::client::{RequestStream, SendRequest};
use h3_quinn::SendStream;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{spawn_local, yield_now};
use tokio::time::timeout;

use super::filtered::{FilteredBidiStream, FilteredConnection, FilteredOpener, FilteredRecvStream};
use super::{ConnectionEndReason, violation_error};
use crate::client::success_before_content;
use crate::heads::{OF_CONNECTION, head_of_response, request_of_head};
use crate::response::MAX_HEAD_BYTES;

/// The maximum number of requests in flight.
pub(super) const PIPELINE_MAX: usize = 32;
/// The maximum number of pieces of a response that wait for the caller. Beyond this number, QUIC's flow control stops
/// the server.
const PIECES_MAX: usize = 64;
/// The number of body bytes that are read from the caller at a time.
const CHUNK_BYTES: usize = 256 << 10;
/// The maximum length of the line before a chunk.
const LINE_BYTES_MAX: usize = 64;

type Sending = RequestStream<SendStream<Bytes>, Bytes>;
type Receiving = RequestStream<FilteredRecvStream, Bytes>;

/// A piece of a response in HTTP/1.1 form. A response whose pieces end without [`ResponsePiece::End`] is incomplete.
enum ResponsePiece {
    Bytes(Bytes),
    End,
}

impl ResponsePiece {
    fn slice(&self) -> Option<IoSlice<'_>> {
        match self {
            ResponsePiece::Bytes(bytes) => Some(IoSlice::new(bytes)),
            ResponsePiece::End => None,
        }
    }
}

/// Runs until the caller closes the socket, the connection ends, or there has been no request for `idle`.
pub(super) async fn run(
    socket: UnixStream,
    quic: &quinn::Connection,
    idle: Duration,
    notice: &ConnectionEndReason,
) {
    let connection = FilteredConnection::new(quic.clone(), MAX_HEAD_BYTES as u64);
    let guard = connection.guard();
    let mut builder = h3::client::builder();
    let builder = builder.max_field_section_size(MAX_HEAD_BYTES as u64);
    let Ok((mut driver, send)) = builder.build(connection).await else {
        return notice.tell(quic);
    };
    let (incoming, outgoing) = socket.into_split();
    let (queue, responses) = mpsc::channel(PIPELINE_MAX);
    let unanswered = Rc::new(Cell::new(0));
    let (counter, (teller, end)) = (unanswered.clone(), (notice.clone(), quic.clone()));
    let mut writing = spawn_local(async move {
        let mut outgoing = outgoing;
        write_responses(&mut outgoing, responses, &counter).await;
        // Record why the connection ended before the socket is closed, because the caller queries the reason as soon as
        // the socket is closed.
        guard.violation().iter().for_each(|violation| teller.set(&violation_error(violation)));
        teller.tell(&end);
    });
    let notice = notice.clone();
    let mut requests = BridgedRequestReader { incoming, received: BytesMut::new(), unanswered, idle, notice };
    tokio::select! {
        end = poll_fn(|context| driver.poll_close(context)) => {
            tracing::debug!(%end, "an HTTP/3 connection ended");
            // Response bytes that have arrived are still written to the caller.
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

/// Reads the caller's requests, which are in HTTP/1.1 form, and sends them over HTTP/3.
struct BridgedRequestReader {
    incoming: OwnedReadHalf,
    received: BytesMut,
    /// The number of requests whose responses have not been written completely.
    unanswered: Rc<Cell<usize>>,
    idle: Duration,
    notice: ConnectionEndReason,
}

impl BridgedRequestReader {
    /// Sends requests until the caller closes the socket or has been idle for too long. Errors: an invalid request, or
    /// a connection that accepts no more requests.
    async fn send_each(
        &mut self,
        mut send: SendRequest<FilteredOpener, Bytes>,
        queue: mpsc::Sender<mpsc::Receiver<ResponsePiece>>,
    ) -> io::Result<()> {
        while let Some(head) = self.head().await? {
            let (request, framing) = translated(&head)?;
            let method = request.method().clone();
            let (pieces, response) = mpsc::channel(PIECES_MAX);
            self.unanswered.set(self.unanswered.get() + 1);
            if queue.send(response).await.is_err() {
                return Ok(());
            }
            let stream = send.send_request(request).await.map_err(io::Error::other)?;
            let (mut sending, receiving) = split(stream);
            let (report, sent) = oneshot::channel();
            let (answer, answered) = oneshot::channel();
            let notice = self.notice.clone();
            spawn_local(async move {
                if let Err(error) = receive(receiving, &method, (answer, sent, notice), &pieces).await {
                    tracing::debug!(%error, "an HTTP/3 response ended early");
                }
            });
            self.send_body(&mut sending, framing, (answered, report)).await?;
        }
        Ok(())
    }

    /// Returns the next head; `None` if the caller has closed the socket, or has been idle for too long. Errors: a head
    /// that is too long or incomplete.
    async fn head(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            if let Some(end) = find(&self.received, b"\r\n\r\n") {
                return Ok(Some(self.received.split_to(end + 4).freeze()));
            }
            if self.received.len() > MAX_HEAD_BYTES {
                return Err(invalid("a request head is too long"));
            }
            let has_ended = match timeout(self.idle, self.incoming.read_buf(&mut self.received)).await {
                Ok(read) => read? == 0,
                Err(_) => self.unanswered.get() == 0,
            };
            if has_ended {
                return Ok(None);
            }
        }
    }

    /// Sends the body, and reports whether the server accepted all of it. If the server has responded or refuses the
    /// rest of the body, discards the rest, so that the caller can finish sending and read the response.
    async fn send_body(
        &mut self,
        sending: &mut Sending,
        mut framing: BridgedRequestFraming,
        (mut answered, report): (oneshot::Receiver<()>, oneshot::Sender<bool>),
    ) -> io::Result<()> {
        let mut report = Some(report);
        loop {
            let piece = match self.piece(&mut framing).await {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                Err(error) => {
                    sending.stop_stream(h3::error::Code::H3_REQUEST_CANCELLED);
                    return Err(error);
                }
            };
            if report.is_some() {
                let is_taken = tokio::select! {
                    biased;
                    _ = &mut answered => false,
                    sent = sending.send_data(piece) => sent.is_ok(),
                };
                report.take_if(|_| !is_taken).map(|report| report.send(false));
            }
            // Responses to earlier requests must not wait until the whole body has been sent.
            yield_now().await;
        }
        if let Some(report) = report {
            let _ = report.send(sending.finish().await.is_ok());
        }
        Ok(())
    }

    /// Returns the next piece of a body, without its framing; `None` at the end. Errors: a body that is incomplete, or
    /// whose framing is invalid.
    async fn piece(&mut self, framing: &mut BridgedRequestFraming) -> io::Result<Option<Bytes>> {
        loop {
            match framing {
                BridgedRequestFraming::Length(0) => return Ok(None),
                BridgedRequestFraming::Length(left) | BridgedRequestFraming::Chunk(left) if *left > 0 => {
                    if self.received.is_empty() {
                        self.receive().await?;
                    }
                    let count = usize::try_from(*left).unwrap_or(usize::MAX).min(self.received.len());
                    *left -= count as u64;
                    return Ok(Some(self.received.split_to(count).freeze()));
                }
                BridgedRequestFraming::Length(_) | BridgedRequestFraming::Chunk(_) => {
                    self.empty_line().await?;
                    *framing = BridgedRequestFraming::ChunkSize;
                }
                BridgedRequestFraming::ChunkSize => {
                    let line = self.line().await?;
                    let size =
                        std::str::from_utf8(&line).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
                    match size.ok_or_else(|| invalid("a chunk has no size"))? {
                        0 => {
                            self.empty_line().await?;
                            *framing = BridgedRequestFraming::Length(0);
                        }
                        size => *framing = BridgedRequestFraming::Chunk(size),
                    }
                }
            }
        }
    }

    async fn empty_line(&mut self) -> io::Result<()> {
        if self.line().await?.is_empty() { Ok(()) } else { Err(invalid("a chunk is longer than its size")) }
    }

    /// Returns the next line, without its end.
    async fn line(&mut self) -> io::Result<Bytes> {
        loop {
            if let Some(end) = find(&self.received, b"\r\n") {
                let line = self.received.split_to(end).freeze();
                self.received.advance(2);
                return Ok(line);
            }
            if self.received.len() > LINE_BYTES_MAX {
                return Err(invalid("a line between two chunks is too long"));
            }
            self.receive().await?;
        }
    }

    /// Receives more bytes of a body.
    async fn receive(&mut self) -> io::Result<()> {
        self.received.reserve(CHUNK_BYTES);
        match self.incoming.read_buf(&mut self.received).await? {
            0 => Err(invalid("the caller closed the socket within a body")),
            _ => Ok(()),
        }
    }
}

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

fn split(stream: RequestStream<FilteredBidiStream<Bytes>, Bytes>) -> (Sending, Receiving) {
    stream.split()
}

/// How the body of a request is framed in HTTP/1.1.
enum BridgedRequestFraming {
    /// The number of remaining bytes of the body.
    Length(u64),
    /// The number of remaining bytes of this chunk.
    Chunk(u64),
    /// The line before a chunk.
    ChunkSize,
}

/// Returns the request, and the framing of its body. Errors: an invalid head.
fn translated(head: &[u8]) -> io::Result<(Request<()>, BridgedRequestFraming)> {
    let request = request_of_head(head, true).ok_or_else(|| invalid("a request head is invalid"))?;
    let length = content_length(request.headers())?;
    let framing = match is_chunked(head) {
        true => BridgedRequestFraming::ChunkSize,
        false => BridgedRequestFraming::Length(length.unwrap_or(0)),
    };
    Ok((request, framing))
}

/// Returns whether the body of this request is sent in chunks.
fn is_chunked(head: &[u8]) -> bool {
    head.split(|byte| *byte == b'\n').any(|line| {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        name.eq_ignore_ascii_case(header::TRANSFER_ENCODING.as_str().as_bytes())
    })
}

/// Returns the declared length. Errors: several lengths, or a length that is not a number.
fn content_length(headers: &HeaderMap) -> io::Result<Option<u64>> {
    let mut stated = headers.get_all(header::CONTENT_LENGTH).iter();
    let Some(first) = stated.next() else { return Ok(None) };
    let length = first.to_str().ok().and_then(digits).ok_or_else(|| invalid("a length is not a number"))?;
    match stated.next() {
        None => Ok(Some(length)),
        Some(_) => Err(invalid("a message states several lengths")),
    }
}

/// Receives a response, and passes it on in HTTP/1.1 form. Reports the arrival of the final response through `answer`.
/// Errors: an incomplete or invalid response; a success although the server did not accept the whole request.
async fn receive(
    mut receiving: Receiving,
    method: &Method,
    (answer, sent, notice): (oneshot::Sender<()>, oneshot::Receiver<bool>, ConnectionEndReason),
    pieces: &mpsc::Sender<ResponsePiece>,
) -> io::Result<()> {
    let response = loop {
        let response = receiving.recv_response().await.map_err(io::Error::other)?;
        match response.status() {
            StatusCode::CONTINUE => pass(pieces, Bytes::from_static(CONTINUE)).await?,
            status if status.is_informational() => {}
            _ => break response,
        }
    };
    let _ = answer.send(());
    if response.status().is_success() && !sent.await.unwrap_or(false) {
        // The caller may already have written the whole body, and would treat this response as a success.
        notice.set(&success_before_content(response.status().as_u16()));
        return Err(invalid("the server reported success before it had the whole request"));
    }
    let has_body = *method != Method::HEAD
        && ![StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&response.status());
    let length = content_length(response.headers())?;
    let mut framing = match (has_body, length) {
        (false, _) => BridgedBodyFraming::Length(0),
        (true, Some(length)) => BridgedBodyFraming::Length(length),
        (true, None) => BridgedBodyFraming::Chunked,
    };
    pass(pieces, response_head(response, &framing)).await?;
    while let Some(mut data) = receiving.recv_data().await.map_err(io::Error::other)? {
        let data = data.copy_to_bytes(data.remaining());
        for piece in framing.framed(data)? {
            pass(pieces, piece).await?;
        }
    }
    if let Some(last) = framing.end()? {
        let _ = pieces.send(ResponsePiece::Bytes(last)).await;
    }
    let _ = pieces.send(ResponsePiece::End).await;
    Ok(())
}

async fn pass(pieces: &mpsc::Sender<ResponsePiece>, piece: Bytes) -> io::Result<()> {
    pieces.send(ResponsePiece::Bytes(piece)).await.map_err(|_| invalid("the caller has dropped the response"))
}

/// Returns the head without connection-specific headers (RFC 9114 section 4.2).
fn response_head(mut response: Response<()>, framing: &BridgedBodyFraming) -> Bytes {
    for name in OF_CONNECTION {
        response.headers_mut().remove(name);
    }
    let mut head = head_of_response(&response);
    if matches!(framing, BridgedBodyFraming::Chunked) {
        head.extend_from_slice(b"transfer-encoding: chunked\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head.into()
}

/// How the body of a response is framed in HTTP/1.1.
enum BridgedBodyFraming {
    /// The number of remaining bytes of the body.
    Length(u64),
    Chunked,
}

impl BridgedBodyFraming {
    /// Returns the pieces that carry `data`. Errors: more bytes than the head specifies, which the caller would parse
    /// as the next response.
    fn framed(&mut self, data: Bytes) -> io::Result<Vec<Bytes>> {
        match self {
            _ if data.is_empty() => Ok(Vec::new()),
            BridgedBodyFraming::Length(left) => {
                let rest = left.checked_sub(data.len() as u64);
                *left = rest.ok_or_else(|| invalid("a body is longer than its stated length"))?;
                Ok(vec![data])
            }
            BridgedBodyFraming::Chunked => {
                let size = format!("{:x}\r\n", data.len());
                Ok(vec![size.into(), data, Bytes::from_static(b"\r\n")])
            }
        }
    }

    /// Returns the bytes that end the body. Errors: fewer bytes than the head specifies.
    fn end(&self) -> io::Result<Option<Bytes>> {
        match self {
            BridgedBodyFraming::Length(0) => Ok(None),
            BridgedBodyFraming::Length(_) => Err(invalid("a body is shorter than its stated length")),
            BridgedBodyFraming::Chunked => Ok(Some(Bytes::from_static(b"0\r\n\r\n"))),
        }
    }
}

/// Writes responses in the order of their requests, until a response is incomplete or there are no more requests.
async fn write_responses(
    outgoing: &mut OwnedWriteHalf,
    mut responses: mpsc::Receiver<mpsc::Receiver<ResponsePiece>>,
    unanswered: &Cell<usize>,
) {
    while let Some(response) = responses.recv().await {
        if write_response(outgoing, response).await.is_err() {
            return;
        }
        unanswered.set(unanswered.get() - 1);
    }
}

/// Writes one response. A piece is no longer than a packet, so pieces that have arrived together are written with one
/// system call. Errors: a response that ends early; a caller that has closed the socket.
async fn write_response(
    outgoing: &mut OwnedWriteHalf,
    mut response: mpsc::Receiver<ResponsePiece>,
) -> io::Result<()> {
    let mut arrived = Vec::with_capacity(PIECES_MAX);
    loop {
        if response.recv_many(&mut arrived, PIECES_MAX).await == 0 {
            return Err(invalid("a response ended early"));
        }
        let is_whole = matches!(arrived.last(), Some(ResponsePiece::End));
        write_pieces(outgoing, &arrived).await?;
        if is_whole {
            return Ok(());
        }
        arrived.clear();
    }
}

async fn write_pieces(outgoing: &mut OwnedWriteHalf, pieces: &[ResponsePiece]) -> io::Result<()> {
    let mut slices: Vec<_> = pieces.iter().filter_map(ResponsePiece::slice).collect();
    let mut left = &mut slices[..];
    // Skip empty pieces: a write of 0 bytes returns 0, which the loop would treat as a failure.
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match outgoing.write_vectored(left).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => IoSlice::advance_slices(&mut left, written),
        }
    }
    Ok(())
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
