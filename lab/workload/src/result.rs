//! The result of a phase, over all ranks.

use fordway_measure::{BlockRecord, LatencyHistogram, OperationRecord, RankRecord, RunRecords};
use fordway_store::ErrorKind;
use serde::{Deserialize, Serialize};

/// The result of one rank in a phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankResult {
    /// Operations that succeeded.
    pub operations: u64,
    /// Operations that failed or returned wrong content.
    pub errors: u64,
    /// Bytes of content transferred by successful operations.
    pub bytes: u64,
    /// The time from the common start until this rank finished, excluding `aside_ns`.
    pub elapsed_ns: u64,
    /// Time spent generating and verifying content, and showing progress.
    pub aside_ns: u64,
    /// CPU time of this rank, including generating and verifying content.
    pub cpu_ns: u64,
    /// Latencies of the successful operations, in the encoding of [`LatencyHistogram::to_base64`].
    pub latencies: String,
    /// Operations, failed operations included, that are counted but not kept as individual records.
    pub not_kept: u64,
    /// Descriptions of the first failures.
    pub failures: Vec<String>,
    /// The name of the first failure's error kind.
    #[serde(default)]
    pub first_failure: Option<String>,
}

/// The result of a phase on one lane.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PhaseResult {
    /// The name of the phase.
    pub phase: String,
    /// The result of each rank, by rank.
    pub ranks: Vec<RankResult>,
    /// The individual operations (up to [`crate::MAX_RAW_OPERATIONS`] of each rank); only on rank 0.
    pub operations: Vec<OperationRecord>,
    /// The start of the phase, on rank 0's clock.
    pub origin_ns: u64,
    /// CPU time of the lane's server during the phase; `None` if it cannot be read.
    pub server_cpu_ns: Option<u64>,
    /// Whether this result covers one of several kinds of operation in the same phase. The CPU times of such a result
    /// include all kinds of operation.
    pub is_part: bool,
}

impl PhaseResult {
    /// Returns the time from the common start to the end of the slowest rank. The time to generate and verify content
    /// is excluded, as in IOR and mdtest.
    pub fn elapsed_ns(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.elapsed_ns).max().unwrap_or_default()
    }

    /// Returns the time of the fastest rank.
    pub fn fastest_ns(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.elapsed_ns).min().unwrap_or_default()
    }

    /// Returns the time from the common start to the end of the slowest rank, including the time to generate and verify
    /// content.
    pub(crate) fn wall_ns(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.elapsed_ns + rank.aside_ns).max().unwrap_or_default()
    }

    /// Returns the number of successful operations of all ranks.
    pub fn succeeded(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.operations).sum()
    }

    /// Returns the number of operations, over all ranks, that failed or returned wrong content.
    pub fn errors(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.errors).sum()
    }

    /// Returns the bytes of content transferred by all ranks.
    pub fn bytes(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.bytes).sum()
    }

    /// Returns operations per second; `None` if no operation succeeded.
    pub fn ops_per_s(&self) -> Option<f64> {
        self.per_second(self.succeeded())
    }

    /// Returns bytes per second; `None` if no bytes were transferred.
    pub fn bytes_per_s(&self) -> Option<f64> {
        self.per_second(self.bytes())
    }

    /// Returns the sum of the ranks' CPU times, in nanoseconds.
    pub(crate) fn client_cpu_ns(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.cpu_ns).sum()
    }

    fn per_second(&self, count: u64) -> Option<f64> {
        let elapsed_ns = self.elapsed_ns();
        (count > 0 && elapsed_ns > 0).then(|| count as f64 / (elapsed_ns as f64 / 1e9))
    }

    /// Returns descriptions of the first failures.
    pub fn failures(&self) -> Vec<String> {
        let of_rank = |(rank, share): (usize, &RankResult)| {
            share
                .failures
                .iter()
                .map(|failure| format!("{} on rank {rank}: {failure}", self.phase))
                .collect::<Vec<_>>()
        };
        self.ranks.iter().enumerate().flat_map(of_rank).collect()
    }

    /// Returns the kind of the first failure on the lowest rank that names a kind; `None` if nothing failed. Returns
    /// `Internal` if operations failed, but no rank names a kind that this version defines: a rank may run another
    /// version of this program.
    pub fn first_failure(&self) -> Option<ErrorKind> {
        let known = |name: &str| ErrorKind::ALL.iter().find(|kind| kind.name() == name).copied();
        let named = self.ranks.iter().filter_map(|rank| rank.first_failure.as_deref()).find_map(known);
        named.or_else(|| (self.errors() > 0).then_some(ErrorKind::Internal))
    }

    /// Combines `parts`, the results of several kinds of operation in the same phase, into one result called `name`.
    pub(crate) fn sum(name: &str, parts: &[PhaseResult]) -> Self {
        let mut sum = PhaseResult { phase: name.to_owned(), ..PhaseResult::default() };
        for other in parts {
            sum.origin_ns = other.origin_ns;
            sum.server_cpu_ns = other.server_cpu_ns;
            sum.ranks.resize(other.ranks.len(), RankResult::default());
            for (mine, theirs) in sum.ranks.iter_mut().zip(&other.ranks) {
                mine.add(theirs);
            }
        }
        sum
    }

    pub(crate) fn latencies(&self) -> LatencyHistogram {
        let mut all = LatencyHistogram::default();
        let shares = self.ranks.iter().filter_map(|rank| LatencyHistogram::from_base64(&rank.latencies));
        shares.for_each(|latencies| all.add(&latencies));
        all
    }

    /// Adds the phase to the records of a run, with the given lane, phase, round and block numbers.
    pub fn record(&self, (lane, phase, round): (u8, u8, u16), block: u32, records: &mut RunRecords) {
        records.operations.extend(self.operations.iter().map(|op| OperationRecord {
            lane,
            phase,
            round,
            block,
            ..*op
        }));
        records.ranks.extend((0u32..).zip(&self.ranks).map(|(rank, share)| RankRecord {
            lane,
            phase,
            round,
            rank,
            operations: share.operations,
            errors: share.errors,
            bytes: share.bytes,
            start_ns: self.origin_ns,
            elapsed_ns: share.elapsed_ns,
            aside_ns: share.aside_ns,
            cpu_ns: share.cpu_ns,
        }));
        if self.is_part {
            return;
        }
        records.blocks.push(BlockRecord {
            lane,
            phase,
            round,
            block,
            operations: self.succeeded() as u32,
            bytes: self.bytes(),
            elapsed_ns: self.elapsed_ns(),
            client_cpu_ns: self.client_cpu_ns(),
            server_cpu_ns: self.server_cpu_ns,
        });
    }
}

impl RankResult {
    fn add(&mut self, other: &RankResult) {
        let mut latencies = LatencyHistogram::from_base64(&self.latencies).unwrap_or_default();
        if let Some(more) = LatencyHistogram::from_base64(&other.latencies) {
            latencies.add(&more);
        }
        self.latencies = latencies.to_base64();
        self.first_failure = self.first_failure.take().or_else(|| other.first_failure.clone());
        self.operations += other.operations;
        self.errors += other.errors;
        self.bytes += other.bytes;
        self.cpu_ns = self.cpu_ns.max(other.cpu_ns);
        self.elapsed_ns = self.elapsed_ns.max(other.elapsed_ns);
        self.aside_ns = self.aside_ns.max(other.aside_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(errors: u64, first_failure: Option<&str>) -> RankResult {
        RankResult { errors, first_failure: first_failure.map(str::to_owned), ..RankResult::default() }
    }

    /// If operations failed, but no rank names a known kind of error, the first failure must be `Internal`.
    #[test]
    fn errors_without_a_known_kind_are_failures() {
        for (ranks, kind) in [
            (vec![rank(0, None), rank(0, None)], None),
            (vec![rank(0, None), rank(1, None)], Some(ErrorKind::Internal)),
            (vec![rank(1, Some("OfALaterVersion"))], Some(ErrorKind::Internal)),
            (vec![rank(1, Some("OfALaterVersion")), rank(1, Some("NoSpace"))], Some(ErrorKind::NoSpace)),
            (vec![rank(1, Some("Corrupt")), rank(1, Some("NoSpace"))], Some(ErrorKind::Corrupt)),
        ] {
            assert_eq!(PhaseResult { ranks, ..PhaseResult::default() }.first_failure(), kind);
        }
    }
}
