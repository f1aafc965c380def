//! Load on a server: when requests are sent, and what is recorded of them. How they are sent is the
//! business of a [`Channel`], one for each thread.
//!
//! In the closed loop each slot sends its next request when the answer to the last one is there, so a
//! server that stalls is asked less, and its stalls are hardly seen. In the open loop requests have
//! intended times that do not depend on answers, and latency counts from them.

mod arrivals;
mod block;
mod drive;
mod limit;
mod recorder;
mod summary;

use std::borrow::Cow;
use std::time::{Duration, Instant};

use fordway_measure::Connections;
use fordway_store::Result;

pub use arrivals::Arrivals;
pub use block::{Block, Place, Plan, Progress, run_block};
pub use summary::{LaneBlocks, Settings, records, summarise, warnings};

/// One thread's way to the server: requests in flight, each on a slot.
pub trait Channel {
    /// Requests that can be in flight at once, at least 1.
    fn slots(&self) -> usize;

    /// Sends the next request on `slot`, on which none is in flight.
    fn start(&mut self, slot: usize);

    /// Waits until a request has ended, or for `limit`, and adds all that ended to `answers`. Every
    /// request that was started ends at some time. Errors: those that are no single request's.
    fn wait(&mut self, limit: Duration, answers: &mut Vec<Answer>) -> Result<()>;

    /// What went over its connections so far.
    fn traffic(&self) -> Traffic;

    /// What the kernel knows of the connections; `None` where they are not TCP.
    fn connections(&self) -> Option<Connections>;
}

/// Bytes on connections, bodies included, and how many connections were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Sent.
    pub sent_bytes: u64,
    /// Received.
    pub received_bytes: u64,
    /// Connections made.
    pub connections: u64,
}

/// The end of a request.
#[derive(Debug)]
pub struct Answer {
    /// Where it was started.
    pub slot: usize,
    /// When it was sent.
    pub started: Instant,
    /// When its answer began, if one did.
    pub first_byte: Option<Instant>,
    /// When its answer was whole, or it failed.
    pub ended: Instant,
    /// Bytes of body that it moved.
    pub body_bytes: u64,
    /// How often it was sent again before it came to this end.
    pub retries: u32,
    /// What was wrong.
    pub failure: Option<Failure>,
}

/// Why a request failed.
#[derive(Debug)]
pub struct Failure {
    /// What it is counted under.
    pub kind: Cow<'static, str>,
    /// A sentence.
    pub detail: String,
}
