//! What a run of IO500's phases comes to.

use serde::{Deserialize, Serialize};

/// One lane's scores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaneScore {
    /// The lane's name.
    pub lane: String,
    /// Its scores, where every phase succeeded.
    pub scores: Option<Scores>,
    /// Why they do not count.
    pub stamp: Option<String>,
}

/// Geometric means, as IO500 has them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Of the four bandwidths, GiB/s.
    pub bandwidth_gib_per_s: f64,
    /// Of the eight rates, thousands of operations per second.
    pub metadata_kiops: f64,
    /// Of the two.
    pub total: f64,
}
