//! Monitoring of a gateway: counters, the access log, health. `/metrics`, `/health` and `/ready` are served at a
//! separate address, without signatures.
//!
//! * `trace`: data about one request
//! * `metrics`: counters of all requests; `limits`: counters for limits
//! * `access_log`: a line for each request, and the IDs of requests

mod access_log;
mod limits;
mod metrics;
mod trace;

pub(crate) use access_log::AccessLog;
pub(crate) use access_log::{HOST_ID, REQUEST_ID, RequestId, RequestIdGenerator};
pub(crate) use limits::put_limits;
pub(crate) use metrics::{GatewayMetrics, OperationCode, put_help};
pub(crate) use trace::{IdentifiedOperation, RequestTrace};

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderName, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::gateway::is_warning_due;
use crate::limits::ConnectionLimitState;
use crate::unsigned::ConnectionPeer;

/// The request header that requests timing information.
pub(crate) const TIMING_WANTED: HeaderName = HeaderName::from_static("x-fordway-timing");
/// The response header with the timing information.
pub(crate) const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// The metrics, the access log and the request IDs, shared by all threads of a gateway.
pub(crate) struct RequestMonitor {
    pub(crate) metrics: GatewayMetrics,
    pub(crate) log: Option<AccessLog>,
    pub(crate) ids: RequestIdGenerator,
}

/// The outcome of a response.
pub(crate) struct ResponseOutcome {
    pub(crate) status: StatusCode,
    /// The number of bytes of the body, if this number was known before the body was sent.
    pub(crate) body_bytes: Option<u64>,
    /// The time at which the head of the response was ready.
    pub(crate) ready: Instant,
    /// Whether the client received the whole response.
    pub(crate) is_complete: bool,
}

impl RequestMonitor {
    /// Creates a monitor whose counters are zero. The monitor writes to `log`, if there is one.
    pub(crate) fn new(log: Option<AccessLog>) -> Self {
        RequestMonitor { metrics: GatewayMetrics::new(), log, ids: RequestIdGenerator::new() }
    }

    /// Records that a request has arrived from `caller` on `connection`. Its processing began at `start`.
    pub(crate) fn start(
        &self,
        (method, target): (&str, &str),
        (caller, connection): (&ConnectionPeer, &Arc<ConnectionLimitState>),
        start: Instant,
    ) -> RequestTrace {
        self.metrics.started();
        let log = self.log.as_ref();
        RequestTrace::new(
            self.ids.next(),
            start,
            log.map(|_| trace::LoggedRequest::new(method, target, caller)),
            connection.clone(),
        )
    }

    /// Records that the response was sent, or that no response will be sent.
    pub(crate) fn finish(&self, trace: &RequestTrace, ending: &ResponseOutcome) {
        let end = Instant::now();
        let took = end.duration_since(trace.start);
        self.metrics.finished(trace.operation(), ending.status, took, trace.bytes_in(), ending.body_bytes);
        if let (Some(log), Some(asked)) = (&self.log, &trace.asked) {
            log.write(&trace::line(trace, asked, ending, end));
        }
    }
}

/// The maximum number of bytes of a request for `/metrics`, `/health` or `/ready`.
const REQUEST_BYTES_MAX: usize = 8 * 1024;
/// The maximum time for receiving and answering a request for `/metrics`, `/health` or `/ready`.
const PATIENCE: Duration = Duration::from_secs(5);

/// The source of the data for responses at `/metrics`, `/health` and `/ready`.
pub(crate) trait HealthMetricsSource: Send + Sync + 'static {
    /// Returns whether the gateway can serve requests: it is not stopping, and the served directory exists.
    fn is_ready(&self) -> bool;
    /// Returns the counters as text.
    fn metrics(&self) -> String;
}

/// Answers requests for `/metrics`, `/health` and `/ready` until the returned future is dropped.
pub(crate) async fn serve(listener: TcpListener, health: std::sync::Arc<impl HealthMetricsSource>) {
    let mut warned = None;
    loop {
        match listener.accept().await {
            Ok((socket, _)) => {
                let health = health.clone();
                tokio::spawn(async move {
                    // A client that does not read in time gets no response.
                    let _ = tokio::time::timeout(PATIENCE, answer(socket, &*health)).await;
                });
            }
            Err(error) => {
                if is_warning_due(&mut warned) {
                    tracing::warn!(%error, "a request for metrics or health cannot be accepted");
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn answer(mut socket: TcpStream, health: &impl HealthMetricsSource) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        if head.len() > REQUEST_BYTES_MAX || socket.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let (status, kind, body) = match line {
        line if line.starts_with(b"GET /metrics ") => {
            ("200 OK", "text/plain; version=0.0.4", health.metrics())
        }
        line if line.starts_with(b"GET /health ") => ("200 OK", "text/plain", "alive\n".to_owned()),
        line if line.starts_with(b"GET /ready ") && health.is_ready() => {
            ("200 OK", "text/plain", "ready\n".to_owned())
        }
        line if line.starts_with(b"GET /ready ") => (
            "503 Service Unavailable",
            "text/plain",
            "the directory is missing, or the gateway is stopping\n".to_owned(),
        ),
        _ => ("404 Not Found", "text/plain", "the paths here are /metrics, /health and /ready\n".to_owned()),
    };
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    socket.write_all(answer.as_bytes()).await?;
    socket.shutdown().await
}
