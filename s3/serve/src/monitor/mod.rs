//! What an operator sees of a gateway: counters, the access log, health.
//!
//! * `request_id`: names of requests
//! * `trace`: what is known of one request
//! * `metrics`: what is counted of all
//! * `access_log`: a line for each
//! * `listener`: where counters and health are asked for

mod access_log;
mod listener;
mod metrics;
mod request_id;
mod trace;

use std::time::Instant;

use http::{HeaderName, StatusCode};

use crate::caller::Caller;

pub(crate) use access_log::AccessLog;
pub(crate) use listener::{Health, serve};
pub(crate) use metrics::{Metrics, Operation};
pub(crate) use request_id::{HOST_ID, REQUEST_ID, RequestId, RequestIds};
pub(crate) use trace::{Signed, Trace};

/// The header of a request that wants to know where its time went.
pub(crate) const TIMING_WANTED: HeaderName = HeaderName::from_static("x-fordway-timing");
/// The header of the answer that says it.
pub(crate) const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// Takes note of requests, for all threads of a gateway.
pub(crate) struct Monitor {
    pub(crate) metrics: Metrics,
    pub(crate) log: Option<AccessLog>,
    pub(crate) ids: RequestIds,
}

/// How an answer ended.
pub(crate) struct Ending {
    pub(crate) status: StatusCode,
    /// Bytes of the body, where they were known before it was sent.
    pub(crate) body_bytes: Option<u64>,
    /// When the answer's head was ready.
    pub(crate) ready: Instant,
    /// Whether the client took all of it.
    pub(crate) is_complete: bool,
}

impl Monitor {
    /// Counts from zero, and writes to `log` if there is one.
    pub(crate) fn new(log: Option<AccessLog>) -> Self {
        Monitor { metrics: Metrics::new(), log, ids: RequestIds::new() }
    }

    /// A request has arrived, which was first looked at at `start`.
    pub(crate) fn start(&self, method: &str, target: &str, caller: &Caller, start: Instant) -> Trace {
        self.metrics.started();
        let log = self.log.as_ref();
        Trace::new(self.ids.next(), start, log.map(|_| trace::Asked::new(method, target, caller)))
    }

    /// Its answer is sent, or will never be.
    pub(crate) fn finish(&self, trace: &Trace, ending: &Ending) {
        let end = Instant::now();
        let took = end.duration_since(trace.start);
        self.metrics.finished(trace.operation(), ending.status, took, trace.bytes_in(), ending.body_bytes);
        if let (Some(log), Some(asked)) = (&self.log, &trace.asked) {
            log.write(&trace::line(trace, asked, ending, end));
        }
    }
}
