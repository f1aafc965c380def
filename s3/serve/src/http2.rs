//! HTTP/2 (RFC 9113) on one socket, from which some bytes may have been read already. hyper implements frames and flow
//! control. This module implements limits, the requests in progress and the transfer of content.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::ALT_SVC;
use http::{Request, Response};
use hyper::body::{Body as _, Incoming};
use hyper::rt::Executor;
use hyper::server::conn::http2::{Builder, Connection};
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::answer::GatewayState;
use crate::connection::{ClientSocket, WaitDeadline};
use crate::gateway::{IDLE_CLOSE_DELAY, StopReceiver};
use crate::limits::{BodyTransferLimits, ConnectionLimitState};
use crate::multiplexed::{ClientWait, ReplyBody, SharedConnectionState};
use crate::unread_body::ReadToEndBody;
use crate::unsigned::ConnectionPeer;
use crate::{multiplexed, workers};

/// The maximum number of requests in progress on one connection.
const STREAMS_MAX: u32 = 256;
/// The flow-control window of one request: the number of bytes that a client may send before the gateway reads them.
/// With a round trip of 1 ms, this window allows 1 GiB/s.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// The flow-control window of a connection in bytes, for all its requests together. This window limits the memory that
/// a client can occupy.
const CONNECTION_WINDOW_BYTES: u32 = 2 << 20;
/// The largest piece of a body that a client may send in one frame, in bytes.
const FRAME_BYTES_MAX: u32 = 64 * 1024;
/// The maximum number of bytes of a response that hyper keeps until it can send them.
const SEND_BUFFER_BYTES_MAX: usize = 256 * 1024;
/// The maximum number of requests that a client may reset before they are processed, and the maximum number of stream
/// errors that a client may cause. If either number is exceeded, the connection is closed. Well-behaved clients stay
/// far below this limit, because the gateway reads the rest of small bodies ([`ReadToEndBody`]). The limit prevents the
/// attacks described in CVE-2023-44487 and CVE-2025-8671.
const RESETS_MAX: usize = 64;

/// Serves one connection until it ends, or until the gateway is stopped and the connection's requests in progress have
/// been answered. `ahead` contains the bytes that were already read. Errors: socket errors and HTTP/2 protocol errors.
pub(crate) async fn serve(
    socket: ClientSocket,
    ahead: Vec<u8>,
    (caller, account): (ConnectionPeer, Arc<ConnectionLimitState>),
    shared: &Arc<GatewayState>,
    stopped: StopReceiver,
) -> io::Result<()> {
    workers::stay();
    let streams = StreamExecutor::new(shared.limits.body.clone());
    let state = SharedConnectionState::new(account);
    // The future that answers a request is larger than the state for sending the response. The future is boxed, so that
    // its memory is freed when the response begins.
    let service =
        service_fn(|request| Box::pin(exchange((shared.clone(), state.clone()), caller.clone(), request)));
    let io = TokioIo::new(RewoundSocket::new(socket, ahead));
    let connection = pin!(builder(&streams, shared.limits.head_bytes_max).serve_connection(io, service));
    run(connection, (&streams, &state.account), shared.limits.header_timeout, stopped).await
}

/// Configures hyper. The size of a head is counted as in RFC 9113 section 6.5.2.
fn builder(streams: &StreamExecutor, head_bytes_max: usize) -> Builder<StreamExecutor> {
    let mut builder = Builder::new(streams.clone());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_send_buf_size(SEND_BUFFER_BYTES_MAX)
        .max_header_list_size(u32::try_from(head_bytes_max).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(RESETS_MAX)
        .max_local_error_reset_streams(RESETS_MAX);
    builder
}

/// Drives a connection. If no request is in progress for `idle_timeout`, asks the client to close the connection, and
/// closes the connection after another `idle_timeout`. Also asks a client to close the connection if the client sends
/// too many requests without a valid signature, or if its user has too many connections; such a connection is closed
/// sooner.
async fn run<S>(
    mut connection: Pin<&mut Connection<TokioIo<RewoundSocket>, S, StreamExecutor>>,
    (streams, account): (&StreamExecutor, &ConnectionLimitState),
    idle_timeout: Duration,
    stopped: StopReceiver,
) -> io::Result<()>
where
    S: HttpService<Incoming, ResBody = ReplyBody, Error = Infallible>,
    S::Future: Send + 'static,
{
    let mut stop = pin!(stopped.over());
    let mut idle = IdleTimeout { patience: WaitDeadline::default(), timeout: idle_timeout };
    let mut is_ending = false;
    poll_fn(|context| {
        if let Poll::Ready(ended) = connection.as_mut().poll(context) {
            return Poll::Ready(ended.map_err(io::Error::other));
        }
        let is_idle = idle.poll(context, streams).is_ready();
        if is_ending && is_idle {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let is_stopped = !is_ending && stop.as_mut().poll(context).is_ready();
        let is_unwelcome = !is_ending && !account.is_welcome();
        if is_stopped || is_unwelcome {
            idle.shorten(IDLE_CLOSE_DELAY);
        }
        if !is_ending && (is_idle || is_stopped || is_unwelcome) {
            is_ending = true;
            connection.as_mut().graceful_shutdown();
            // The connection and the timer must be polled again after `graceful_shutdown`.
            context.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await
}

struct IdleTimeout {
    patience: WaitDeadline,
    timeout: Duration,
}

impl IdleTimeout {
    /// Restarts the wait, which lasts for at most `timeout` from now on.
    fn shorten(&mut self, timeout: Duration) {
        self.patience.end();
        self.timeout = self.timeout.min(timeout);
    }

    /// Becomes ready when no request has been in progress for the whole `timeout`.
    fn poll(&mut self, context: &mut Context<'_>, streams: &StreamExecutor) -> Poll<()> {
        if streams.are_open() {
            self.patience.end();
        }
        let over = self.patience.poll_over(context, self.timeout);
        if over.is_ready() {
            self.patience.end();
        }
        over
    }
}

async fn exchange(
    (shared, state): (Arc<GatewayState>, SharedConnectionState),
    caller: ConnectionPeer,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Infallible> {
    let waits = CLIENT_WAIT.try_with(ClientWait::clone).unwrap_or_default();
    let length = request.body().size_hint();
    let request = request.map(|incoming| Some(ReadToEndBody::new(incoming)));
    let mut response = multiplexed::exchange((&shared, &state, waits), &caller, request, length).await;
    if let Some(elsewhere) = &shared.http3 {
        response.headers_mut().insert(ALT_SVC, elsewhere.clone());
    }
    Ok(response)
}

/// The maximum time that a request waits while other requests on its connection make progress, as a multiple of the
/// stall timeout. This time exceeds the stall timeout because the other requests may use all of a slow link.
const PATIENCE_AMONG_OTHERS: u32 = 10;

/// Starts a task for each request, on the thread of the request's connection, and ends a task that makes no progress.
#[derive(Clone)]
pub(super) struct StreamExecutor {
    all: Arc<ConnectionActivity>,
    limits: BodyTransferLimits,
}

/// The state that the requests of a connection share.
struct ConnectionActivity {
    open: AtomicUsize,
    started: Instant,
    /// The time at which a request last made progress, in ms after `started`.
    moved_ms: AtomicU64,
}

impl StreamExecutor {
    pub(super) fn new(limits: BodyTransferLimits) -> Self {
        let all = ConnectionActivity {
            open: AtomicUsize::new(0),
            started: Instant::now(),
            moved_ms: AtomicU64::new(0),
        };
        StreamExecutor { all: Arc::new(all), limits }
    }

    /// Returns whether any request is in progress.
    pub(super) fn are_open(&self) -> bool {
        self.all.open.load(Ordering::Relaxed) > 0
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, request: F) {
        self.all.open.fetch_add(1, Ordering::Relaxed);
        let open = OpenRequestGuard(self.all.clone());
        let (request, limits) = (Box::pin(request), self.limits.clone());
        let (timer, waits, moved) = (None, ClientWait::default(), self.all.started);
        tokio::spawn(RequestWithTimeout { request, timer, waits, moved, limits, open });
    }
}

/// Counts a request as open until the guard is dropped.
struct OpenRequestGuard(Arc<ConnectionActivity>);

impl Drop for OpenRequestGuard {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

tokio::task_local! {
    /// The state of the request that the current task serves. hyper creates the task's future from the future of
    /// [`exchange`], so the state cannot be passed as an argument.
    static CLIENT_WAIT: ClientWait;
}

/// A request with a timeout. If the request waits for its client, and neither the body nor the response makes progress
/// for too long, the request and its stream end. The time for which the gateway works on the request is not limited.
struct RequestWithTimeout<F> {
    request: Pin<Box<F>>,
    timer: Option<Pin<Box<Sleep>>>,
    waits: ClientWait,
    moved: Instant,
    limits: BodyTransferLimits,
    open: OpenRequestGuard,
}

enum RequestTimeoutOutcome {
    Over,
    /// The gateway is working on the request, or other requests on the connection have made progress since this request
    /// last made progress.
    Extended,
}

impl<F> RequestWithTimeout<F> {
    /// Records progress, and resets the timer.
    fn note(&mut self) -> &mut Pin<Box<Sleep>> {
        self.moved = Instant::now();
        let all = &self.open.0;
        let moved_ms = self.moved.duration_since(all.started).as_millis() as u64;
        all.moved_ms.store(moved_ms, Ordering::Relaxed);
        let deadline = self.moved + self.limits.stall_timeout;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        timer.as_mut().reset(deadline);
        timer
    }

    /// Becomes ready when the timer fires. Returns whether the request has timed out or its deadline was extended.
    fn poll_timer(&mut self, context: &mut Context<'_>) -> Poll<RequestTimeoutOutcome> {
        let Some(timer) = &mut self.timer else { return Poll::Pending };
        ready!(timer.as_mut().poll(context));
        loop {
            let all = &self.open.0;
            let mut last = all.started + Duration::from_millis(all.moved_ms.load(Ordering::Relaxed));
            if !self.waits.is_for_client() {
                self.moved = Instant::now();
                last = self.moved;
            }
            let patience = self.moved + PATIENCE_AMONG_OTHERS * self.limits.stall_timeout;
            let deadline = patience.min(last + self.limits.stall_timeout);
            if deadline <= Instant::now() {
                return Poll::Ready(RequestTimeoutOutcome::Over);
            }
            timer.as_mut().reset(deadline);
            if timer.as_mut().poll(context).is_pending() {
                return Poll::Ready(RequestTimeoutOutcome::Extended);
            }
        }
    }
}

impl<F: Future<Output = ()>> Future for RequestWithTimeout<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let timer = self.poll_timer(context);
        if let Poll::Ready(RequestTimeoutOutcome::Over) = timer {
            let time = self.limits.stall_timeout;
            tracing::debug!("a request on an HTTP/2 connection made no progress for {time:?}");
            self.limits.count_slow();
            return Poll::Ready(());
        }
        let waits = self.waits.clone();
        if CLIENT_WAIT.sync_scope(waits, || self.request.as_mut().poll(context)).is_ready() {
            return Poll::Ready(());
        }
        match timer {
            // The timer caused this poll, so the poll is not a sign of progress.
            Poll::Ready(_) => Poll::Pending,
            Poll::Pending => self.note().as_mut().poll(context),
        }
    }
}

/// A socket that first returns the bytes that were read ahead.
pub(super) struct RewoundSocket {
    socket: ClientSocket,
    ahead: Vec<u8>,
}

impl RewoundSocket {
    pub(super) fn new(socket: ClientSocket, ahead: Vec<u8>) -> Self {
        RewoundSocket { socket, ahead }
    }
}

impl AsyncRead for RewoundSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.socket).poll_read(context, room);
        }
        let count = room.remaining().min(self.ahead.len());
        room.put_slice(&self.ahead[..count]);
        self.ahead.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for RewoundSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
