//! What HTTP/2 and HTTP/3 have in common: many requests at once, each with a body that comes in pieces.
//!
//! * `held`: how much of answers is read ahead of their clients
//! * `incoming`: bodies of requests, in pieces as large as a store likes to write
//! * `outgoing`: bodies of answers, read as the client takes them

mod held;
mod incoming;
mod outgoing;

use std::time::Instant;

use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body::SizeHint;
use std::sync::Arc;

use crate::answer::{self, Shared};
use crate::caller::Caller;
use crate::monitor::{self, Ending, Monitor, Trace};
pub(crate) use held::HeldBytes;
pub(crate) use incoming::gathered;
pub(crate) use outgoing::ReplyBody;

/// Answers a request, of whose body `length` is known.
pub(crate) async fn exchange(
    (shared, held): (&Shared, &HeldBytes),
    caller: &Caller,
    request: Request<s3s::Body>,
    length: SizeHint,
) -> Response<ReplyBody> {
    let (method, path) = (request.method().as_str(), request.uri().path());
    let trace = Arc::new(shared.monitor.start(method, path, caller, Instant::now()));
    let mut counted = Counted { monitor: &shared.monitor, trace: &trace, is_over: false };
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
    // What becomes of the body is known to nobody here: frames of many answers share the socket.
    let (status, body_bytes) = (response.status(), response.body().len());
    counted.is_over = true;
    shared.monitor.finish(&trace, &Ending { status, body_bytes, ready, is_complete: true });
    outgoing::response(response, is_head, held)
}

/// A request that has begun, and is over also where it is dropped: its client took it back, or did not go
/// on with it.
struct Counted<'r> {
    monitor: &'r Monitor,
    trace: &'r Trace,
    is_over: bool,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let status = StatusCode::from_u16(CLIENT_IS_GONE).unwrap_or(StatusCode::REQUEST_TIMEOUT);
            let ending = Ending { status, body_bytes: Some(0), ready: Instant::now(), is_complete: false };
            self.monitor.finish(self.trace, &ending);
        }
    }
}

/// What servers write into their logs for a request that nobody waits for any more.
const CLIENT_IS_GONE: u16 = 499;
