//! The measuring part of the instrument, free of what is being measured: a clock, records of
//! operations and blocks, histograms, statistics, the machine's fingerprint, and the run file.
//!
//! Times are integer nanoseconds, sizes integer bytes. What was not measured is `None`, which a run
//! file says as `null`; it is never 0 and never guessed.

mod counters;
mod histogram;
mod load;
mod load_table;
mod machine;
mod parallel;
mod parallel_table;
mod record;
mod run;
mod score;
mod stats;
mod table;
mod transfer;
mod transfer_table;
mod units;

pub use counters::{Counters, NotCovered, ProcessCounters};
pub use histogram::Latencies;
pub use load::{Connections, Load};
pub use load_table::load_table;
pub use machine::{FileSystem, Machine};
pub use parallel::Parallel;
pub use parallel_table::parallel_table;
pub use record::{Block, ObjectRecord, Operation, RankRecord, Records};
pub use run::{Lane, Limit, Quantiles, Ratio, Run, RunError, SCHEMA, SCHEMA_VERSION, Summary, Verdict};
pub use score::{LaneScore, Scores};
pub use stats::{Interval, Shuffle, median, median_interval};
pub use table::table;
pub use transfer::Transfer;
pub use transfer_table::transfer_table;
pub use units::{bytes_text, ns_text, rate_text};

use std::time::Instant;

/// Nanoseconds since the start of a run, from the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// A clock that stands at zero.
    pub fn start() -> Self {
        Clock(Instant::now())
    }

    /// Nanoseconds since the start. Cost: one `clock_gettime`, without a system call.
    pub fn now_ns(self) -> u64 {
        self.at_ns(Instant::now())
    }

    /// Nanoseconds from the start to `instant`; 0 if that lies before it.
    pub fn at_ns(self, instant: Instant) -> u64 {
        u64::try_from(instant.saturating_duration_since(self.0).as_nanos()).unwrap_or(u64::MAX)
    }
}
