//! What HTTP/2 and HTTP/3 have in common: many requests at once, each with a body that comes in pieces.
//!
//! * `incoming`: bodies of requests, in pieces as large as a store likes to write
//! * `outgoing`: bodies of answers, read as the client takes them

mod incoming;
mod outgoing;

use std::time::Instant;

use http::{HeaderValue, Method, Request, Response};
use http_body::SizeHint;
use std::sync::Arc;

use crate::answer::{self, Shared};
use crate::caller::Caller;
use crate::monitor::{self, Ending};
pub(crate) use incoming::gathered;
pub(crate) use outgoing::ReplyBody;

/// Answers a request, of whose body `length` is known.
pub(crate) async fn exchange(
    shared: &Shared,
    caller: &Caller,
    request: Request<s3s::Body>,
    length: SizeHint,
) -> Response<ReplyBody> {
    let (method, path) = (request.method().as_str(), request.uri().path());
    let trace = Arc::new(shared.monitor.start(method, path, caller, Instant::now()));
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
    // What becomes of the body is known to nobody here: frames of many answers share the socket.
    let (status, body_bytes) = (response.status(), response.body().len());
    shared.monitor.finish(&trace, &Ending { status, body_bytes, ready, is_complete: true });
    outgoing::response(response, is_head)
}
