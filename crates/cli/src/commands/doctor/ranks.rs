//! The round trip between two MPI ranks of this node, by `fordway-mpi`.

use std::process::Stdio;
use std::time::Duration;

use fordway_machine::doctor::Finding;
use fordway_measure::{Run, ns_text};

use super::super::bench::transport::mpi;

/// How long the ranks may take: a few seconds, unless an MPI waits for something that never comes.
const PATIENCE: Duration = Duration::from_secs(30);
/// Half round trips of a byte.
const PLAN: [&str; 6] = ["--sizes", "1", "--rounds", "5", "--messages", "1000"];
/// What the run calls them.
const PHASE: &str = "half-round-trip";

/// As a finding: it is measured, or it says why not.
pub(super) fn round_trip() -> Finding {
    match measure() {
        Ok((round_trip_ns, library)) => Finding::of_ranks(round_trip_ns, &library),
        Err(why) => Finding::without_ranks(&why),
    }
}
