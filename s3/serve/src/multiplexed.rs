//! Code shared by HTTP/2 and HTTP/3. This code serves concurrent requests, passes request bodies to the store in large
//! pieces, and reads response bodies as the client receives them.
//!
//! Data that is read ahead waits in memory for the client's flow-control window and for the socket. A few connections
//! may have thousands of responses that their clients do not read, so the amount of waiting data is limited. When this
//! amount reaches the limit, the next piece of a response is read only after the previous piece has been sent. At twice
//! the limit, the pieces are also smaller. No response waits for the window of another response, so a client that keeps
//! one window closed does not delay other responses.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use bytes::{Buf as _, Bytes};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};

use crate::answer::{ConnectionRequestLimits, GatewayState, PreparedBody};
use crate::buffers::{CHUNK_BYTES, PartialChunk};
use crate::content::{ContentPieces, PIECE_BYTES};
use crate::http1::{BROKEN, STALLED};
use crate::limits::{
    BodyTransferLimits, ConnectionLimitState, LimitReason, RatePacer, TransferRateMeter, UserResourceUsage,
    is_shared, take_turn,
};
use crate::monitor::{RequestMonitor, RequestTrace, ResponseOutcome};
use crate::unsigned::ConnectionPeer;
use crate::{answer, monitor};

/// The state that the requests of a connection share. Clones share the same state.
#[derive(Clone)]
pub(crate) struct SharedConnectionState {
    held: UnsentByteCounter,
    pub(crate) account: Arc<ConnectionLimitState>,
}

impl SharedConnectionState {
    pub(crate) fn new(account: Arc<ConnectionLimitState>) -> Self {
        SharedConnectionState { held: UnsentByteCounter::default(), account }
    }
}

/// Whether a request waits for its client: for more of the request's body, or until the client has received data of the
/// response. Otherwise, the gateway is working on the request or waiting for the store. Clones share the state.
#[derive(Clone, Default)]
pub(crate) struct ClientWait(Arc<AtomicU8>);

impl ClientWait {
    /// The gateway is preparing the response.
    const ANSWERING: u8 = 0;
    /// The response is not ready, because the gateway needs more of the request's body.
    const FOR_BODY: u8 = 1;
    /// The response has begun, and the gateway is reading its next piece.
    const READING: u8 = 2;
    /// The response has begun, and its next piece is waiting for the client.
    const FOR_RECEIPT: u8 = 3;

    /// Returns whether the request waits for its client.
    pub(crate) fn is_for_client(&self) -> bool {
        matches!(self.0.load(Ordering::Relaxed), Self::FOR_BODY | Self::FOR_RECEIPT)
    }

    /// Records whether the response needs more of the request's body. Has no effect after the response has begun.
    fn set_for_body(&self, waits: bool) {
        let (from, to) =
            if waits { (Self::ANSWERING, Self::FOR_BODY) } else { (Self::FOR_BODY, Self::ANSWERING) };
        let _ = self.0.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Records that the response has begun, and whether its next piece is being read.
    fn set_sending(&self, is_reading: bool) {
        self.0.store(if is_reading { Self::READING } else { Self::FOR_RECEIPT }, Ordering::Relaxed);
    }
}

/// Answers a request. `length` is the length of the request's body, if known. Until the response's body is dropped,
/// `waits` shows whether the request waits for its client.
pub(crate) async fn exchange<B: IncomingFrames>(
    (shared, connection, waits): (&GatewayState, &SharedConnectionState, ClientWait),
    caller: &ConnectionPeer,
    request: Request<Option<B>>,
    length: SizeHint,
) -> Response<ReplyBody> {
    let account = &connection.account;
    if is_shared(account.user_id()) {
        take_turn(account.user()).await;
    }
    let (method, path) = (request.method().as_str(), request.uri().path());
    let trace = Arc::new(shared.monitor.start((method, path), (caller, account), Instant::now()));
    let mut counted = RequestMonitorGuard { monitor: &shared.monitor, trace: trace.clone(), is_over: false };
    trace.parsed(length.exact().unwrap_or(0));
    let is_head = request.method() == Method::HEAD;
    let wants_timing = request.headers().contains_key(monitor::TIMING_WANTED);
    let request = request.map(|body| gathered(body, &shared.limits, (&trace, &waits)));
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
    // This code cannot determine whether the client receives the body, because frames of many responses share the
    // socket.
    let (status, body_bytes) = (response.status(), response.body().len());
    counted.is_over = true;
    account.answered(trace.account(), trace.is_authenticated(), status);
    shared.monitor.finish(&trace, &ResponseOutcome { status, body_bytes, ready, is_complete: true });
    let held = connection.held.answer(trace.account().cloned());
    waits.set_sending(false);
    response_of(response, is_head, (held, waits, Some(trace)))
}

/// A request in progress. If the value is dropped before the response is ready, the client has cancelled the request or
/// stopped sending it. The drop then records the end of the request.
struct RequestMonitorGuard<'r> {
    monitor: &'r RequestMonitor,
    trace: Arc<RequestTrace>,
    is_over: bool,
}

impl Drop for RequestMonitorGuard<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let status = StatusCode::from_u16(CLIENT_IS_GONE).unwrap_or(StatusCode::REQUEST_TIMEOUT);
            let ending =
                ResponseOutcome { status, body_bytes: Some(0), ready: Instant::now(), is_complete: false };
            self.monitor.finish(&self.trace, &ending);
        }
    }
}

/// The status that is logged for a request if the client no longer waits for the response.
const CLIENT_IS_GONE: u16 = 499;

/// The error type of bodies.
type MultiplexedBodyError = Box<dyn std::error::Error + Send + Sync>;

/// A request's body that arrives in frames, over HTTP/2 or HTTP/3.
pub(crate) trait IncomingFrames:
    Body<Data = Bytes, Error: std::error::Error + Send + Sync> + Unpin + Send + 'static
{
}

impl<B> IncomingFrames for B where
    B: Body<Data = Bytes, Error: std::error::Error + Send + Sync> + Unpin + Send + 'static
{
}

/// Returns the body for the S3 layer. Reading the body fails if it exceeds the limits.
fn gathered<B: IncomingFrames>(
    incoming: Option<B>,
    limits: &ConnectionRequestLimits,
    (trace, waits): (&Arc<RequestTrace>, &ClientWait),
) -> s3s::Body {
    match incoming.filter(|incoming| !incoming.is_end_stream()) {
        None => s3s::Body::empty(),
        Some(incoming) => s3s::Body::http_body_unsync(CoalescedFrames {
            incoming,
            over: Bytes::new(),
            chunk: PartialChunk::default(),
            room_bytes: limits.body_bytes_max,
            limits: limits.body.clone(),
            progress: TransferRateMeter::default(),
            pacer: RatePacer::default(),
            trace: trace.clone(),
            waits: waits.clone(),
        }),
    }
}

/// A request body whose frames are joined by copying. One write of 256 KiB, including the copies, costs less than
/// sixteen writes of 16 KiB.
struct CoalescedFrames<B> {
    incoming: B,
    /// The part of a frame that did not fit into the previous piece.
    over: Bytes,
    chunk: PartialChunk,
    /// The number of bytes that may still arrive.
    room_bytes: u64,
    limits: BodyTransferLimits,
    progress: TransferRateMeter,
    pacer: RatePacer,
    trace: Arc<RequestTrace>,
    waits: ClientWait,
}

impl<B> CoalescedFrames<B> {
    fn gather(&mut self) {
        let room = self.chunk.room();
        let count = self.over.len().min(room.len());
        room[..count].copy_from_slice(&self.over[..count]);
        self.over.advance(count);
        self.chunk.add(count);
    }

    /// Adds a frame. Errors: the body exceeds the gateway's limit, or arrives too slowly.
    fn receive(&mut self, data: Bytes) -> Result<(), MultiplexedBodyError> {
        if let Some(account) = self.trace.account() {
            account.charge(data.len() as u64);
        }
        if !self.progress.moved(data.len() as u64, &self.limits) {
            self.limits.count_slow();
            self.trace.limited(LimitReason::Slow);
            return Err(io::Error::new(io::ErrorKind::TimedOut, STALLED).into());
        }
        let left = self.room_bytes.checked_sub(data.len() as u64);
        self.room_bytes = left.ok_or_else(|| format!("{BROKEN}: it exceeds this gateway's limit"))?;
        self.over = data;
        Ok(())
    }
}

impl<B> Body for CoalescedFrames<B>
where
    B: Body<Data = Bytes, Error: std::error::Error + Send + Sync + 'static> + Unpin,
{
    type Data = Bytes;
    type Error = MultiplexedBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, MultiplexedBodyError>>> {
        let body = &mut *self;
        body.waits.set_for_body(false);
        if let Some(account) = body.trace.account() {
            ready!(body.pacer.poll_allowed(account, context));
        }
        loop {
            if !body.over.is_empty() {
                if body.chunk.filled() == 0 && body.incoming.is_end_stream() {
                    return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut body.over)))));
                }
                body.gather();
                if body.chunk.filled() < CHUNK_BYTES {
                    continue;
                }
                return Poll::Ready(body.chunk.take().map(|piece| Ok(Frame::data(piece))));
            }
            let Poll::Ready(frame) = Pin::new(&mut body.incoming).poll_frame(context) else {
                body.progress.wait();
                return match body.chunk.is_to_be_passed_on() {
                    true => Poll::Ready(body.chunk.take().map(|piece| Ok(Frame::data(piece)))),
                    false => {
                        body.waits.set_for_body(true);
                        Poll::Pending
                    }
                };
            };
            match frame {
                Some(Ok(frame)) => body.receive(frame.into_data().unwrap_or_default())?,
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(body.chunk.take().map(|piece| Ok(Frame::data(piece)))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.over.is_empty() && self.chunk.filled() == 0 && self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let held = (self.over.len() + self.chunk.filled()) as u64;
        let left = self.incoming.size_hint().exact();
        left.map(|left| SizeHint::with_exact(left + held)).unwrap_or_default()
    }
}

impl<B> Drop for CoalescedFrames<B> {
    fn drop(&mut self) {
        self.waits.set_for_body(false);
    }
}

/// Converts the response to the form in which it is sent; the response to HEAD has no body.
pub(super) fn response_of(
    response: Response<PreparedBody>,
    is_head: bool,
    (held, waits, trace): (BacklogShare, ClientWait, Option<Arc<RequestTrace>>),
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
    let left = RemainingBody::of(reply);
    let pacer = RatePacer::default();
    Response::from_parts(parts, ReplyBody { left, held, pacer, waits, _trace: trace })
}

/// A future that reads the next piece. Its output is the piece and the remaining content.
type ContentReadFuture = Pin<Box<dyn Future<Output = io::Result<(Bytes, ContentPieces)>> + Send>>;

/// The body of a response that the client has not received yet.
pub(crate) struct ReplyBody {
    left: RemainingBody,
    held: BacklogShare,
    pacer: RatePacer,
    waits: ClientWait,
    /// The request is in flight until the body is dropped.
    _trace: Option<Arc<RequestTrace>>,
}

enum RemainingBody {
    Content(ContentPieces),
    Reading(ContentReadFuture),
    Document(s3s::Body),
    Nothing,
}

impl RemainingBody {
    fn of(reply: PreparedBody) -> Self {
        match reply {
            PreparedBody::Nothing => RemainingBody::Nothing,
            PreparedBody::Content(content) => RemainingBody::Content(ContentPieces::new(content)),
            PreparedBody::Parts(parts) => RemainingBody::Content(ContentPieces::Parts(parts)),
            PreparedBody::Remote(region) => RemainingBody::Content(ContentPieces::Remote(region)),
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
                        self.waits.set_sending(false);
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
        self.waits.set_sending(true);
        if let RemainingBody::Document(document) = &mut self.left {
            let frame = ready!(Pin::new(document).poll_frame(context));
            self.waits.set_sending(false);
            return Poll::Ready(frame);
        }
        let body = &mut *self;
        if let Some(user) = &body.held.of_user {
            ready!(body.pacer.poll_allowed(user, context));
        }
        let piece = ready!(self.poll_piece(context));
        self.waits.set_sending(false);
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

/// The number of unsent bytes on a connection above which read-ahead for its responses is limited.
const CONNECTION_BYTES: u64 = 4 << 20;
/// The number of unsent bytes on all connections of a user above which read-ahead is limited.
const USER_BYTES: u64 = 16 << 20;
/// The number of unsent bytes on all connections of the process above which read-ahead is limited. This limit applies
/// only to users with more than [`CONNECTION_BYTES`] unsent bytes.
const PROCESS_BYTES: u64 = 32 << 20;
/// The number of bytes read at a time while the amount of waiting data is at least twice the limit.
const SMALL_BYTES: u64 = 4 << 10;

static OF_PROCESS: AtomicU64 = AtomicU64::new(0);

/// Counts the bytes that wait for a connection's client. Clones share the counters.
#[derive(Clone, Default)]
pub(crate) struct UnsentByteCounter(Arc<AtomicU64>);

/// The number of waiting bytes of one response.
#[derive(Default)]
struct ResponseBacklog {
    bytes: AtomicU64,
    /// Wakes the task that waits until all these bytes have been sent.
    waker: Mutex<Option<Waker>>,
}

/// One response's part of the waiting bytes.
pub(super) struct BacklogShare {
    of_connection: UnsentByteCounter,
    of_user: Option<Arc<UserResourceUsage>>,
    own: Arc<ResponseBacklog>,
}

impl UnsentByteCounter {
    /// Returns the backlog of a new response on the connection. `of_user` is the user who sent the request.
    pub(super) fn answer(&self, of_user: Option<Arc<UserResourceUsage>>) -> BacklogShare {
        BacklogShare { of_connection: self.clone(), of_user, own: Arc::default() }
    }
}

impl BacklogShare {
    /// Returns the factor by which the waiting bytes exceed the limit of the connection, the user or the process,
    /// rounded down; 0 means that no limit is reached. A user with little waiting data is not limited by the waiting
    /// data of other users.
    fn excess(&self) -> u64 {
        let load = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
        let (ours, all) = (load(&self.of_connection.0), load(&OF_PROCESS));
        let users = self.of_user.as_ref().map_or(0, |user| load(&user.held_bytes));
        let of_process = if users > CONNECTION_BYTES { all / PROCESS_BYTES } else { 0 };
        (ours / CONNECTION_BYTES).max(users / USER_BYTES).max(of_process)
    }

    /// Returns the number of bytes that may be read next. If a limit is reached, waits until the previous piece of the
    /// response has been sent.
    pub(super) fn poll_room(&self, context: &Context<'_>) -> Poll<u64> {
        let excess = self.excess();
        if excess > 0 && self.own.is_held() {
            *self.own.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
            // A second check is needed, because the bytes may have been sent before the waker was stored.
            if self.own.is_held() {
                return Poll::Pending;
            }
        }
        Poll::Ready(if excess > 1 { SMALL_BYTES } else { PIECE_BYTES })
    }

    /// Returns `piece`. The bytes of `piece` count as waiting until the last reference to the piece is dropped.
    pub(super) fn hold(&self, piece: Bytes) -> Bytes {
        let bytes = piece.len() as u64;
        for held in [&self.of_connection.0, &self.own.bytes, &OF_PROCESS] {
            held.fetch_add(bytes, Ordering::Relaxed);
        }
        if let Some(user) = &self.of_user {
            user.held_bytes.fetch_add(bytes, Ordering::Relaxed);
            user.charge(bytes);
        }
        let (of_connection, of_user) = (self.of_connection.clone(), self.of_user.clone());
        Bytes::from_owner(BacklogPiece { piece, of_connection, of_user, own: self.own.clone() })
    }
}

impl ResponseBacklog {
    fn is_held(&self) -> bool {
        self.bytes.load(Ordering::SeqCst) > 0
    }
}

struct BacklogPiece {
    piece: Bytes,
    of_connection: UnsentByteCounter,
    of_user: Option<Arc<UserResourceUsage>>,
    own: Arc<ResponseBacklog>,
}

impl AsRef<[u8]> for BacklogPiece {
    fn as_ref(&self) -> &[u8] {
        &self.piece
    }
}

impl Drop for BacklogPiece {
    fn drop(&mut self) {
        let bytes = self.piece.len() as u64;
        self.of_connection.0.fetch_sub(bytes, Ordering::Relaxed);
        OF_PROCESS.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(user) = &self.of_user {
            user.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
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
        let (one, other) = (UnsentByteCounter::default(), UnsentByteCounter::default());
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let context = Context::from_waker(&waker);
        let greedy = one.answer(None);
        let mut held = Vec::new();
        while greedy.poll_room(&context).is_ready() {
            held.push(greedy.hold(piece()));
        }
        assert_eq!(held.len() as u64 * PIECE_BYTES, CONNECTION_BYTES);
        assert_eq!(one.answer(None).poll_room(&context), Poll::Ready(PIECE_BYTES), "another response");
        assert_eq!(other.answer(None).poll_room(&context), Poll::Ready(PIECE_BYTES), "another client");
        let many: Vec<_> =
            (0..held.len()).map(|_| (one.answer(None), one.answer(None).hold(piece()))).collect();
        assert_eq!(one.answer(None).poll_room(&context), Poll::Ready(SMALL_BYTES));
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
