//! HTTP/2 on one socket (RFC 9113): frames and flow control by hyper, the limits and the content by
//! ourselves.
//!
//! * `streams`: requests in progress, and those that do not move any more
//! * `rewound`: a socket of which the start was read already

mod rewound;
mod streams;

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::ALT_SVC;
use http::{Request, Response};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http2::{Builder, Connection};
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};

use crate::answer::Shared;
use crate::caller::Caller;
use crate::gateway::Stopped;
use crate::multiplexed::{self, HeldBytes, ReplyBody, gathered};
use crate::patience::Patience;
use crate::socket::Socket;
use crate::workers;
use rewound::Rewound;
use streams::Streams;

/// Requests in progress on one connection.
const STREAMS_MAX: u32 = 256;
/// What a client may send on one request before it is read; 1 ms away, that is 1 GiB/s.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// What a client may send on all requests before it is read: a bound on what it makes us keep.
const CONNECTION_WINDOW_BYTES: u32 = 2 << 20;
/// The largest piece of a body that a client may send in one frame.
const FRAME_BYTES_MAX: u32 = 64 * 1024;
/// What is kept of an answer that the client does not take yet.
const SEND_BUFFER_BYTES_MAX: usize = 256 * 1024;
/// Requests that a client took back before they were looked at, and errors of its own making, after
/// which the connection ends: nobody who means well comes near (CVE-2023-44487, CVE-2025-8671).
const RESETS_MAX: usize = 64;

/// Serves one connection, of which `ahead` was read already, until it ends, or until `stopped` and its
/// requests in progress are answered. Errors: from the socket and of the protocol.
pub(crate) async fn serve(
    socket: Socket,
    ahead: Vec<u8>,
    caller: Caller,
    shared: &Arc<Shared>,
    stopped: Stopped,
) -> io::Result<()> {
    workers::stay();
    let (streams, held) = (Streams::new(shared.limits.stall_timeout), HeldBytes::default());
    let service = service_fn(|request| exchange((shared.clone(), held.clone()), caller.clone(), request));
    let io = TokioIo::new(Rewound::new(socket, ahead));
    let connection = pin!(builder(&streams, shared.limits.head_bytes_max).serve_connection(io, service));
    run(connection, &streams, shared.limits.header_timeout, stopped).await
}

/// `head_bytes_max` counts as RFC 9113 has it (section 6.5.2).
fn builder(streams: &Streams, head_bytes_max: usize) -> Builder<Streams> {
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

/// How long a client without a request has to take its leave when we stop: one that looks at its connection
/// only when it has something to ask would take for ever.
const LEAVE_TAKING: Duration = Duration::from_secs(1);

/// Drives a connection. One without a request for `idle_timeout`, be it that no head arrives or that
/// none is ever finished, is told to go, and is cut after as long again.
async fn run<S>(
    mut connection: Pin<&mut Connection<TokioIo<Rewound>, S, Streams>>,
    streams: &Streams,
    idle_timeout: Duration,
    stopped: Stopped,
) -> io::Result<()>
where
    S: HttpService<Incoming, ResBody = ReplyBody, Error = Infallible>,
    S::Future: Send + 'static,
{
    let mut stop = pin!(stopped.over());
    let mut idle = Idle { patience: Patience::default(), timeout: idle_timeout };
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
        if is_stopped {
            idle.shorten(LEAVE_TAKING);
        }
        if !is_ending && (is_idle || is_stopped) {
            is_ending = true;
            connection.as_mut().graceful_shutdown();
            // It and the timer want to be looked at from now on.
            context.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await
}

struct Idle {
    patience: Patience,
    timeout: Duration,
}

impl Idle {
    /// From now on so long is enough.
    fn shorten(&mut self, timeout: Duration) {
        self.patience.end();
        self.timeout = self.timeout.min(timeout);
    }

    /// Ready once for every time that no request was in progress for the whole of `timeout`.
    fn poll(&mut self, context: &mut Context<'_>, streams: &Streams) -> Poll<()> {
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
    (shared, held): (Arc<Shared>, HeldBytes),
    caller: Caller,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Infallible> {
    let length = request.body().size_hint();
    let request = request.map(|body| gathered(body, shared.limits.body_bytes_max));
    let mut response = multiplexed::exchange((&shared, &held), &caller, request, length).await;
    if let Some(elsewhere) = &shared.http3 {
        response.headers_mut().insert(ALT_SVC, elsewhere.clone());
    }
    Ok(response)
}
