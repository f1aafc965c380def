//! The parts that all measurements share: a clock, records of operations and blocks, histograms, statistics, a
//! description of the machine, and the run file. This crate does not depend on the measured systems.
//!
//! Times are integer nanoseconds, and sizes are integer bytes. A value that was not measured is `None` (`null` in a run
//! file), never 0 or a guess.

mod conditions;
mod counters;
mod machine;
mod modes;
mod names;
mod record;
mod run;
mod stats;
mod table;

pub use conditions::{
    DisturbanceCause, DisturbanceFigures, LanePhaseKey, MeasurementWarning, ResultReliability,
    RunReliability, RunReliabilityReport,
};
pub use counters::{
    CountersIncomplete, NetworkTraffic, ProcessCounters, RunningCounters, exclude_this_thread, own_cpu_ns,
};
pub use machine::{FileSystem, Machine};
pub use modes::doubts_about_modes;
pub use names::unknown_name;
pub use record::{BlockRecord, ObjectDirectoryCounts, OperationRecord, RankRecord, RunRecords};
pub use run::{
    Io500Scores, LaneIo500Score, LanePhaseResult, LatencyQuantiles, LimitingResource, LoadGeneratorSummary,
    MessageExchangeResult, ParallelJobSummary, RowDescription, RunDocument, RunError, SCHEMA, SCHEMA_VERSION,
    SpeedRatio, SpeedVerdict, TcpConnectionStats, result_file,
};
pub use stats::{ConfidenceInterval, LatencyHistogram, SeededRandom, median, median_interval};
pub use table::{
    bytes_text, exact_bytes_text, load_table, ns_text, parallel_table, rate_text, ratio_text, table,
    transfer_table,
};

use std::time::Instant;

/// A clock that counts nanoseconds since the start of a run, based on the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct RunClock(Instant);

impl RunClock {
    /// Starts a clock at zero.
    pub fn start() -> Self {
        RunClock(Instant::now())
    }

    /// Returns the nanoseconds since the start. Cost: one `clock_gettime`, without a system call.
    pub fn now_ns(self) -> u64 {
        self.at_ns(Instant::now())
    }

    /// Returns the nanoseconds from the start to `instant`; 0 if `instant` is before the start.
    pub fn at_ns(self, instant: Instant) -> u64 {
        u64::try_from(instant.saturating_duration_since(self.0).as_nanos()).unwrap_or(u64::MAX)
    }
}
