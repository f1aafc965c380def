//! What only a load generator knows of its requests and connections.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{ProcessCounters, Quantiles};

/// How load was made, and what became of it besides latency and throughput.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// `closed`, or when requests were intended to start: `fixed` or `poisson`.
    pub arrivals: String,
    /// Requests per second asked for; `null` in the closed loop.
    pub rate_asked_per_s: Option<f64>,
    /// Connections at once.
    pub connections: u64,
    /// Requests at once on each connection.
    pub streams: u64,
    /// Threads that made requests.
    pub threads: u64,
    /// Arrivals that were due within the run and never started.
    pub skipped: u64,
    /// Failures by kind; their sum is the summary's `errors`.
    pub errors: BTreeMap<String, u64>,
    /// Times to the first byte of the answer, counted from where latencies are.
    pub first_byte: Option<Quantiles>,
    /// The same as HdrHistogram V2, base64.
    pub first_byte_histogram: String,
    /// How much later than intended requests were sent; `null` in the closed loop.
    pub lateness: Option<Quantiles>,
    /// Bytes sent per operation that are no body.
    pub header_sent_bytes_per_op: Option<f64>,
    /// Bytes received per operation that are no body.
    pub header_received_bytes_per_op: Option<f64>,
    /// Connections that were made anew within the run.
    pub reconnects: u64,
    /// Requests that were sent again, by whom we asked as well as by us.
    #[serde(default)]
    pub retries: u64,
    /// What the kernel knew of the connections at the end; `null` where they are not TCP.
    pub tcp: Option<Connections>,
    /// What this process used; `null` if that could not be read.
    pub client: Option<ProcessCounters>,
    /// What the server's processes used; `null` if they are not known or were not there all the time.
    pub server: Option<ProcessCounters>,
}

/// TCP connections, as the kernel sees them from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connections {
    /// Connections asked.
    pub count: u64,
    /// The median of their smoothed round-trip times.
    pub rtt_us: u64,
    /// The largest of them.
    pub rtt_max_us: u64,
    /// Segments sent again, on all of them since they were made.
    pub retransmits: u64,
    /// The smallest of their maximum segment sizes.
    pub mss_bytes: u64,
}
