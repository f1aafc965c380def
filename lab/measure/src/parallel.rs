//! What only a measurement of speed-up knows of its jobs.

use serde::{Deserialize, Serialize};

use crate::Interval;

/// Jobs of one number of ranks in one set-up. Intervals are `null` of fewer than five jobs that succeeded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parallel {
    /// Ranks of each job.
    pub ranks: u32,
    /// The median wall time of a job, its launch included, ns.
    pub wall_ns: Option<Interval>,
    /// From when the first rank could communicate until the last one had nothing more to say, ns; `null` where
    /// the ranks did not report.
    pub work_ns: Option<Interval>,
    /// S: the time of one rank in the reference set-up, divided by this one's, over pairs of the same round.
    pub speedup: Option<Interval>,
    /// E = S / ranks.
    pub efficiency: Option<Interval>,
    /// The share of all ranks' time that they spent in calls of MPI, waiting included; `null` where they did not
    /// report.
    pub communication_share: Option<Interval>,
    /// How much later than the first the last rank came to its end, ns; likewise.
    pub late_ns: Option<Interval>,
}
