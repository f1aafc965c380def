//! Code shared by HTTP/2 and HTTP/3. It serves many requests at once, passes request bodies to the store in large
//! pieces, and reads response bodies as the client receives them.
//!
//! Data that is read ahead waits in memory for the client's flow-control window and for the socket, and a few
//! connections may have thousands of responses that their clients do not read. Once much data waits, a response gets
//! its next piece only when the previous one has been sent; at twice that amount, the pieces become small. No response
//! waits for the window of another, so a client that keeps one window closed delays no other response.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use bytes::{Buf as _, Bytes};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};

use crate::answer::{GatewayState, PreparedBody};
use crate::buffers::{BufferChunk, CHUNK_BYTES};
use crate::content::{ContentPieces, PIECE_BYTES};
use crate::http1::BROKEN;
use crate::monitor::{RequestMonitor, RequestTrace, ResponseEnding};
use crate::unsigned::ConnectionPeer;
use crate::{answer, monitor};

/// Answers a request whose body has the given `length`, as far as it is known.
pub(crate) async fn exchange(
    (shared, held): (&GatewayState, &HeldBytes),
    caller: &ConnectionPeer,
    request: Request<s3s::Body>,
    length: SizeHint,
) -> Response<ReplyBody> {
    let (method, path) = (request.method().as_str(), request.uri().path());
    let trace = Arc::new(shared.monitor.start(method, path, caller, Instant::now()));
    let mut counted = CountedRequest { monitor: &shared.monitor, trace: &trace, is_over: false };
    trace.parsed(length.exact().unwrap_or(0));
    let is_head = request.method() == Method::HEAD;
    let wants_timing = request.headers().contains_key(monitor::TIMING_WANTED);
    let mut response = match length.lower() > shared.limits.body_bytes_max {
        true => answer::too_large(),
        false => answer::answer(shared, caller, request, trace.clone()).await,
    };
    let ready = Instant::now();
    if let Some(timing) = HeaderValue::from_str(&trace.server_timing(ready)).ok().filter(|_| wants_timing) {
        response.headers_mut().insert(monitor::SERVER_TIMING, timing);
    }
    if let Ok(id) = HeaderValue::from_str(trace.id.as_str()) {
        response.headers_mut().insert(monitor::REQUEST_ID, id);
    }
    response.headers_mut().insert(monitor::HOST_ID, shared.monitor.ids.host().clone());
    // Whether the client receives the body is not known here, because frames of many responses share the socket.
    let (status, body_bytes) = (response.status(), response.body().len());
    counted.is_over = true;
    shared.monitor.finish(&trace, &ResponseEnding { status, body_bytes, ready, is_complete: true });
    response_of(response, is_head, held)
}

/// A request in progress. Dropping it also records its end: the client cancelled the request, or stopped sending it.
struct CountedRequest<'r> {
    monitor: &'r RequestMonitor,
    trace: &'r RequestTrace,
    is_over: bool,
}

impl Drop for CountedRequest<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let status = StatusCode::from_u16(CLIENT_IS_GONE).unwrap_or(StatusCode::REQUEST_TIMEOUT);
            let ending =
                ResponseEnding { status, body_bytes: Some(0), ready: Instant::now(), is_complete: false };
            self.monitor.finish(self.trace, &ending);
        }
    }
}

/// The status that is logged for a request whose client no longer waits for it.
const CLIENT_IS_GONE: u16 = 499;

/// The error type of bodies.
type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// Returns the body for the S3 layer. It fails beyond `bytes_max`.
pub(crate) fn gathered<B>(incoming: B, bytes_max: u64) -> s3s::Body
where
    B: Body<Data = Bytes, Error: std::error::Error + Send + Sync> + Unpin + Send + 'static,
{
    match incoming.is_end_stream() {
        true => s3s::Body::empty(),
        false => {
            let (over, room_bytes) = (Bytes::new(), bytes_max);
            s3s::Body::http_body_unsync(GatheredFrames { incoming, over, chunk: None, filled: 0, room_bytes })
        }
    }
}

/// Joins frames by copying: one write of 256 KiB, including the copies, costs less than sixteen writes of 16 KiB.
struct GatheredFrames<B> {
    incoming: B,
    /// The part of a frame that had no room in the previous piece.
    over: Bytes,
    chunk: Option<BufferChunk>,
    filled: usize,
    /// The number of bytes that may still arrive.
    room_bytes: u64,
}

impl<B> GatheredFrames<B> {
    fn gather(&mut self) {
        let chunk = self.chunk.get_or_insert_with(BufferChunk::new);
        let count = self.over.len().min(CHUNK_BYTES - self.filled);
        chunk.memory()[self.filled..self.filled + count].copy_from_slice(&self.over[..count]);
        self.over.advance(count);
        self.filled += count;
    }

    /// Takes the gathered bytes, if there are any.
    fn take(&mut self) -> Option<Bytes> {
        let filled = std::mem::take(&mut self.filled);
        self.chunk.take().map(|chunk| chunk.into_bytes(filled))
    }

    /// Adds a frame. Errors: the body exceeds the gateway's limit.
    fn receive(&mut self, data: Bytes) -> Result<(), BodyError> {
        let left = self.room_bytes.checked_sub(data.len() as u64);
        self.room_bytes = left.ok_or_else(|| format!("{BROKEN}: it is larger than this gateway takes"))?;
        self.over = data;
        Ok(())
    }
}

impl<B> Body for GatheredFrames<B>
where
    B: Body<Data = Bytes, Error: std::error::Error + Send + Sync + 'static> + Unpin,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let body = &mut *self;
        loop {
            if !body.over.is_empty() {
                if body.chunk.is_none() && body.incoming.is_end_stream() {
                    return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut body.over)))));
                }
                body.gather();
                if body.filled < CHUNK_BYTES {
                    continue;
                }
                return Poll::Ready(body.take().map(|piece| Ok(Frame::data(piece))));
            }
            match ready!(Pin::new(&mut body.incoming).poll_frame(context)) {
                Some(Ok(frame)) => body.receive(frame.into_data().unwrap_or_default())?,
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(body.take().map(|piece| Ok(Frame::data(piece)))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.over.is_empty() && self.chunk.is_none() && self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let held = (self.over.len() + self.filled) as u64;
        let left = self.incoming.size_hint().exact();
        left.map(|left| SizeHint::with_exact(left + held)).unwrap_or_default()
    }
}

/// Returns the response as it is sent; the response to HEAD has no body.
pub(super) fn response_of(
    response: Response<PreparedBody>,
    is_head: bool,
    held: &HeldBytes,
) -> Response<ReplyBody> {
    let (mut parts, reply) = response.into_parts();
    let is_without_body = matches!(parts.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if !is_without_body
        && let Some(length) = reply.len()
        && !parts.headers.contains_key(header::CONTENT_LENGTH)
    {
        parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    let reply = if is_without_body || is_head { PreparedBody::Nothing } else { reply };
    Response::from_parts(parts, ReplyBody { left: RemainingBody::of(reply), held: held.answer() })
}

/// A piece that is being read, and the content after it.
type Reading = Pin<Box<dyn Future<Output = io::Result<(Bytes, ContentPieces)>> + Send>>;

/// The body of a response that the client has not received yet.
pub(crate) struct ReplyBody {
    left: RemainingBody,
    held: HeldAnswer,
}

enum RemainingBody {
    Content(ContentPieces),
    Reading(Reading),
    Document(s3s::Body),
    Nothing,
}

impl RemainingBody {
    fn of(reply: PreparedBody) -> Self {
        match reply {
            PreparedBody::Nothing => RemainingBody::Nothing,
            PreparedBody::Content(content) => RemainingBody::Content(ContentPieces::new(content)),
            PreparedBody::Parts(parts) => RemainingBody::Content(ContentPieces::Parts(parts)),
            PreparedBody::Document(document) => RemainingBody::Document(document),
        }
    }
}

impl ReplyBody {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        loop {
            match std::mem::replace(&mut self.left, RemainingBody::Nothing) {
                RemainingBody::Content(pieces) if pieces.len() > 0 => {
                    let Poll::Ready(room) = self.held.poll_room(context) else {
                        self.left = RemainingBody::Content(pieces);
                        return Poll::Pending;
                    };
                    self.left = RemainingBody::Reading(Box::pin(pieces.next(room)));
                }
                RemainingBody::Reading(mut reading) => {
                    let Poll::Ready(read) = reading.as_mut().poll(context) else {
                        self.left = RemainingBody::Reading(reading);
                        return Poll::Pending;
                    };
                    let (piece, rest) = read?;
                    self.left = RemainingBody::Content(rest);
                    return Poll::Ready(Ok(Some(self.held.hold(piece))));
                }
                _ => return Poll::Ready(Ok(None)),
            }
        }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let RemainingBody::Document(document) = &mut self.left {
            return Pin::new(document).poll_frame(context).map_err(Into::into);
        }
        let piece = ready!(self.poll_piece(context));
        let piece =
            piece.inspect_err(|error| tracing::warn!(%error, "an object could not be read to its end"));
        Poll::Ready(piece.map_err(Into::into).transpose().map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.left {
            RemainingBody::Nothing => true,
            RemainingBody::Content(pieces) => pieces.len() == 0,
            RemainingBody::Reading(_) => false,
            RemainingBody::Document(document) => document.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.left {
            RemainingBody::Nothing => SizeHint::with_exact(0),
            RemainingBody::Content(pieces) => SizeHint::with_exact(pieces.len()),
            RemainingBody::Reading(_) => SizeHint::default(),
            RemainingBody::Document(document) => document.size_hint(),
        }
    }
}

/// The maximum number of bytes that may wait for the client of one connection before read-ahead of its responses is
/// limited.
const CONNECTION_BYTES: u64 = 4 << 20;
/// The maximum number of bytes that may wait for all clients of the process before read-ahead is limited.
const PROCESS_BYTES: u64 = 32 << 20;
/// The number of bytes read at a time while the waiting bytes reach twice the limit.
const SMALL_BYTES: u64 = 4 << 10;

static OF_PROCESS: AtomicU64 = AtomicU64::new(0);

/// The bytes that wait for the client of a connection. Clones count the same bytes.
#[derive(Clone, Default)]
pub(crate) struct HeldBytes(Arc<AtomicU64>);

/// The number of bytes of one response that wait.
#[derive(Default)]
struct ResponseBacklog {
    bytes: AtomicU64,
    /// Wakes the task that waits until these bytes are gone.
    waker: Mutex<Option<Waker>>,
}

/// The share of one response in the waiting bytes.
pub(super) struct HeldAnswer {
    of_connection: HeldBytes,
    own: Arc<ResponseBacklog>,
}

impl HeldBytes {
    /// Returns the share of another response on the connection.
    pub(super) fn answer(&self) -> HeldAnswer {
        HeldAnswer { of_connection: self.clone(), own: Arc::default() }
    }

    /// Returns how many times the waiting bytes fill the limit, of the connection or of the process: 0, 1, ...
    fn excess(&self) -> u64 {
        let (ours, all) = (self.0.load(Ordering::Relaxed), OF_PROCESS.load(Ordering::Relaxed));
        (ours / CONNECTION_BYTES).max(all / PROCESS_BYTES)
    }
}

impl HeldAnswer {
    /// Returns how many bytes may be read next.
    pub(super) fn poll_room(&self, context: &Context<'_>) -> Poll<u64> {
        let excess = self.of_connection.excess();
        if excess > 0 && self.own.is_held() {
            *self.own.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
            // The bytes may have been sent before the waker was stored.
            if self.own.is_held() {
                return Poll::Pending;
            }
        }
        Poll::Ready(if excess > 1 { SMALL_BYTES } else { PIECE_BYTES })
    }

    /// Returns the same piece, counted as waiting until its last reference is dropped.
    pub(super) fn hold(&self, piece: Bytes) -> Bytes {
        let bytes = piece.len() as u64;
        for held in [&self.of_connection.0, &self.own.bytes, &OF_PROCESS] {
            held.fetch_add(bytes, Ordering::Relaxed);
        }
        let (of_connection, own) = (self.of_connection.clone(), self.own.clone());
        Bytes::from_owner(HeldPiece { piece, of_connection, own })
    }
}

impl ResponseBacklog {
    fn is_held(&self) -> bool {
        self.bytes.load(Ordering::SeqCst) > 0
    }
}

struct HeldPiece {
    piece: Bytes,
    of_connection: HeldBytes,
    own: Arc<ResponseBacklog>,
}

impl AsRef<[u8]> for HeldPiece {
    fn as_ref(&self) -> &[u8] {
        &self.piece
    }
}

impl Drop for HeldPiece {
    fn drop(&mut self) {
        let bytes = self.piece.len() as u64;
        self.of_connection.0.fetch_sub(bytes, Ordering::Relaxed);
        OF_PROCESS.fetch_sub(bytes, Ordering::Relaxed);
        if self.own.bytes.fetch_sub(bytes, Ordering::SeqCst) == bytes {
            let waker = self.own.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn piece() -> Bytes {
        Bytes::from(vec![7; PIECE_BYTES as usize])
    }

    #[test]
    fn an_answer_waits_for_itself_alone() {
        let (one, other) = (HeldBytes::default(), HeldBytes::default());
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let context = Context::from_waker(&waker);
        let greedy = one.answer();
        let mut held = Vec::new();
        while greedy.poll_room(&context).is_ready() {
            held.push(greedy.hold(piece()));
        }
        assert_eq!(held.len() as u64 * PIECE_BYTES, CONNECTION_BYTES);
        assert_eq!(one.answer().poll_room(&context), Poll::Ready(PIECE_BYTES), "another answer");
        assert_eq!(other.answer().poll_room(&context), Poll::Ready(PIECE_BYTES), "another client");
        let many: Vec<_> = (0..held.len()).map(|_| (one.answer(), one.answer().hold(piece()))).collect();
        assert_eq!(one.answer().poll_room(&context), Poll::Ready(SMALL_BYTES));
        let rest = held[0].slice(5..9);
        held.clear();
        assert_eq!((woken.0.load(Ordering::Relaxed), &rest[..]), (0, &[7; 4][..]));
        drop(rest);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1, "its last piece is gone");
        drop(many);
        assert_eq!(one.0.load(Ordering::Relaxed), 0);
        assert_eq!(greedy.poll_room(&context), Poll::Ready(PIECE_BYTES));
    }
}
