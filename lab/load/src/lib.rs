//! Load generators: one thread keeps many requests in flight, and reports the times of each request.
//!
//! [`Http1LoadGenerator`] runs our client's HTTP/1.1 code on non-blocking sockets. A small request costs one `sendmsg`
//! and one `recv`; one `epoll_wait` reports all connections on which a response has arrived. If all requests have the
//! same head, nothing is allocated per request. Bodies received from plain sockets are not copied. Helper threads open
//! connections, so that no request waits for the connection of another. The caller decides when each request is sent
//! and how the times are used.

mod http1;
mod http2;
#[cfg(feature = "http3")]
mod http3;
mod multiplex;
mod opener;
pub mod pingpong;
mod requests;

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::TcpInfo;

pub use fordway_measure::NetworkTraffic;
pub use http1::Http1LoadGenerator;
pub use http2::Http2LoadGenerator;
#[cfg(feature = "http3")]
pub use http3::Http3LoadGenerator;
pub use requests::{LoadMethod, RequestSequence, RequestTemplate};

/// The number of connections that a generator opens at the same time before the load. More would overflow the queues of
/// servers that accept slowly, and each attempt that overflows a queue is retried only after a second.
const CONNECTS_AT_ONCE: usize = 32;

/// The pause after a failed attempt to connect, during which no other failure is reported. Without the pause, a server
/// that is down would cause a busy loop.
const AFTER_REFUSAL: Duration = Duration::from_millis(1);

/// A load generator that runs on one thread. Each of its slots holds one request in flight.
pub trait LoadGenerator {
    /// Returns the number of requests that can be in flight at once.
    fn slots(&self) -> usize;

    /// Sends the next request on `slot`, on which no request is in flight. If sending fails, the next
    /// [`LoadGenerator::wait`] reports the failure.
    fn start(&mut self, slot: usize);

    /// Waits until at least one request has ended or `limit` has passed, and appends all ended requests to `finished`.
    /// Errors: only errors that affect all requests.
    fn wait(&mut self, limit: Duration, finished: &mut Vec<FinishedRequest>) -> Result<()>;

    /// Returns the bytes sent and received on all connections so far, and the number of connections opened.
    fn traffic(&self) -> NetworkTraffic;

    /// Returns the kernel's statistics of each open connection; empty if the kernel keeps no statistics for the
    /// protocol.
    fn tcp(&self) -> Vec<TcpInfo>;
}

/// A request that has ended.
#[derive(Debug)]
pub struct FinishedRequest {
    /// The slot given to [`LoadGenerator::start`].
    pub slot: usize,
    /// The time at which the request began. If the last connection was lost, the request begins before a new connection
    /// is opened.
    pub started: Instant,
    /// The time at which the first byte of the response arrived; `None` if nothing was received.
    pub first_byte: Option<Instant>,
    /// The time at which the last byte arrived, or at which the request was abandoned.
    pub ended: Instant,
    /// The number of content bytes: for a PUT, the bytes sent; otherwise, the bytes received.
    pub body_bytes: u64,
    /// The problem with the response; `None` if the response was correct.
    pub problem: Option<ResponseProblem>,
}

/// A problem with a response.
#[derive(Debug)]
pub enum ResponseProblem {
    /// A status other than 2xx.
    Status(u16),
    /// A body whose size differs from the expected size.
    Size {
        /// The expected size of the body.
        expected_bytes: u64,
        /// The size of the body that was received.
        received_bytes: u64,
    },
    /// The whole object instead of the requested range.
    RangeIgnored,
    /// No complete response was received.
    Failed(Error),
}

impl ResponseProblem {
    /// Returns the label under which problems of this kind are counted: `status 503`, `wrong size`, `range
    /// ignored`, or the kind of an error.
    pub fn label(&self) -> Cow<'static, str> {
        match self {
            ResponseProblem::Status(status) => format!("status {status}").into(),
            ResponseProblem::Size { .. } => "wrong size".into(),
            ResponseProblem::RangeIgnored => "range ignored".into(),
            ResponseProblem::Failed(error) => error.kind().name().into(),
        }
    }

    /// Returns the problem with a complete response, if there is one.
    fn of(status: u16, received_bytes: u64, requests: &RequestSequence) -> Option<Self> {
        match requests.expected_bytes() {
            _ if !is_success(status) => Some(ResponseProblem::Status(status)),
            _ if requests.is_for_part() && status != PARTIAL_CONTENT => Some(ResponseProblem::RangeIgnored),
            Some(expected_bytes) if expected_bytes != received_bytes => {
                Some(ResponseProblem::Size { expected_bytes, received_bytes })
            }
            _ => None,
        }
    }
}

impl fmt::Display for ResponseProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResponseProblem::Status(status) => write!(f, "the server answered with status {status}"),
            ResponseProblem::Size { expected_bytes, received_bytes } => {
                write!(f, "the body has {received_bytes} bytes, not the {expected_bytes} of --size")
            }
            ResponseProblem::RangeIgnored => {
                f.write_str("the server ignored --range and sent the whole object")
            }
            ResponseProblem::Failed(error) => error.fmt(f),
        }
    }
}

/// The status of a response that contains only the requested range.
const PARTIAL_CONTENT: u16 = 206;

fn is_success(status: u16) -> bool {
    (200..300).contains(&status)
}

/// Creates the error for a server that reports success although it cannot have received the whole request. The time of
/// such a request says nothing about the transfer of its body.
fn answered_early(status: u16) -> Error {
    let detail = format!("the server answered with status {status} before the body was sent");
    Error::new(ErrorKind::BadResponse, detail)
}

fn no_answer_within(limit: Duration) -> ResponseProblem {
    ResponseProblem::Failed(Error::new(
        ErrorKind::Timeout,
        format!("no complete response arrived within {limit:?}"),
    ))
}

fn stopped() -> Error {
    Error::new(ErrorKind::Interrupted, "a signal arrived while connecting")
}
