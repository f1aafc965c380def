//! What the round trip between two MPI ranks of the node says. It is measured elsewhere: this crate knows
//! no MPI.

use fordway_measure::ns_text;

use super::finding::{Finding, Said};

const CHECK: &str = "mpi-latency";
const RICHTER: &[u8] = &[6, 9];
/// Shared memory takes less than this for half a round trip, TCP on one node more.
const SHARED_MEMORY_NS: u64 = 5_000;

impl Finding {
    /// From half the round trip of a byte between two ranks of `library` on this node, in nanoseconds.
    pub fn of_ranks(half_round_trip_ns: u64, library: &str) -> Finding {
        let so = format!("{} for a byte between two ranks here, by {library}", ns_text(half_round_trip_ns));
        let said = match half_round_trip_ns {
            ..SHARED_MEMORY_NS => Said::ok(so),
            _ => Said::costs(
                format!(
                    "{so}: shared memory takes a few µs at most, so this is TCP, or ranks wait for processors"
                ),
                "see that MPI may use shared memory (/dev/shm, its options), and that each rank has a processor of its own",
            ),
        };
        said.measured("half a round trip", half_round_trip_ns as f64, "ns").put_down(CHECK, RICHTER)
    }

    /// Where it was not measured, and `why` not.
    pub fn without_ranks(why: &str) -> Finding {
        Said::cannot_see(format!("not measured: {why}"), "put fordway-mpi beside fordway, or on PATH")
            .put_down(CHECK, RICHTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn shared_memory_is_fast() {
        assert_eq!(Finding::of_ranks(600, "Open MPI").verdict, Verdict::Ok);
        let slow = Finding::of_ranks(20_000, "Open MPI");
        assert!(slow.verdict == Verdict::Costs && slow.what.starts_with("20.0 µs"));
        let missing = Finding::without_ranks("there is no fordway-mpi");
        assert!(missing.verdict == Verdict::CannotSee && missing.measured.is_empty());
    }
}
