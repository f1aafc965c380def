//! What only a benchmark of transports knows of its messages.

use serde::{Deserialize, Serialize};

use crate::Interval;

/// Messages of one size on one transport.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// What was done with them: `latency`, `bandwidth` or `half-round-trip`.
    pub exchange: String,
    /// Bytes of each message.
    pub size_bytes: u64,
    /// Messages under way at once.
    pub window: u64,
    /// Messages that were timed.
    pub messages: u64,
    /// The median over blocks of a message's median time, in ns; `null` of fewer than five blocks, and
    /// where several messages are under way.
    pub time_ns: Option<Interval>,
    /// The median over blocks of their bytes per second; `null` of fewer than five blocks.
    pub bytes_per_s: Option<Interval>,
    /// CPU time of the asking side for each message, the median over blocks.
    pub client_cpu_ns_per_message: f64,
    /// CPU time of the answering side likewise; `null` where there is none.
    pub server_cpu_ns_per_message: Option<f64>,
    /// Processors that both sides together kept busy, the median over blocks. One message at a time is work for
    /// one processor; what is more, was spent on waiting.
    pub processors_busy: f64,
}
