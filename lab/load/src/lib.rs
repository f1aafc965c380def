//! Load: one thread keeps many requests in flight and hands each answer back with its times.
//!
//! [`Http1Load`] is the HTTP/1.1 path of our client on sockets that do not wait: a small request costs one
//! `sendmsg` and one `recv`, and one `epoll_wait` serves all connections that have an answer. Nothing
//! is allocated per request, and no body is copied that came through a plain socket.
//! What is sent when, and what becomes of the times, is the caller's.

mod http1;
mod http2;
#[cfg(feature = "http3")]
mod http3;
mod multiplex;
pub mod pingpong;
mod requests;

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::TcpInfo;

pub use fordway_measure::NetworkTraffic;
pub use http1::Http1Load;
pub use http2::Http2;
#[cfg(feature = "http3")]
pub use http3::Http3;
pub use requests::{LoadMethod, RequestPlan, RequestSequence};

/// The requests that one thread has in flight, each on a slot of its own.
pub trait RequestSlots {
    /// Requests that can be in flight at once.
    fn slots(&self) -> usize;

    /// Sends the next request on `slot`, on which none is in flight. What goes wrong is told by the
    /// next [`RequestSlots::wait`].
    fn start(&mut self, slot: usize);

    /// Waits until at least one request has ended, or for `limit`, and adds all that ended.
    /// Errors: those that are no single request's.
    fn wait(&mut self, limit: Duration, finished: &mut Vec<FinishedRequest>) -> Result<()>;

    /// Bytes on all connections so far.
    fn traffic(&self) -> NetworkTraffic;

    /// What the kernel knows of each connection that is open; empty where it does not count them.
    fn tcp(&self) -> Vec<TcpInfo>;
}

/// A request that is over.
#[derive(Debug)]
pub struct FinishedRequest {
    /// Which was given to [`RequestSlots::start`].
    pub slot: usize,
    /// When it was handed to the kernel.
    pub started: Instant,
    /// When the first byte of the answer was there; `None` if nothing came.
    pub first_byte: Option<Instant>,
    /// When the last byte was there, or it was given up.
    pub ended: Instant,
    /// Bytes of content: of a PUT those sent, otherwise those received.
    pub body_bytes: u64,
    /// What was wrong with it.
    pub problem: Option<ResponseProblem>,
}

/// What was wrong with an answer.
#[derive(Debug)]
pub enum ResponseProblem {
    /// A status that is no success.
    Status(u16),
    /// A body of another size than was expected.
    Size {
        /// What was expected.
        expected_bytes: u64,
        /// What came.
        received_bytes: u64,
    },
    /// No whole answer.
    Failed(Error),
}

impl ResponseProblem {
    /// What such problems are counted under: `status 503`, `wrong size`, or the kind of an error.
    pub fn label(&self) -> Cow<'static, str> {
        match self {
            ResponseProblem::Status(status) => format!("status {status}").into(),
            ResponseProblem::Size { .. } => "wrong size".into(),
            ResponseProblem::Failed(error) => error.kind().name().into(),
        }
    }

    /// The problem with an answer that came whole, if there is one.
    fn of(status: u16, received_bytes: u64, expected_bytes: Option<u64>) -> Option<Self> {
        match expected_bytes {
            _ if !(200..300).contains(&status) => Some(ResponseProblem::Status(status)),
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
            ResponseProblem::Failed(error) => error.fmt(f),
        }
    }
}

fn no_answer_within(limit: Duration) -> ResponseProblem {
    ResponseProblem::Failed(Error::new(ErrorKind::Timeout, format!("no whole answer came within {limit:?}")))
}
