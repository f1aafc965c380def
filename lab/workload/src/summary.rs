//! Summarizes the records of a run as rows of a table.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fordway_measure::{
    BlockRecord, ConfidenceInterval, LanePhaseResult, LatencyHistogram, LimitingResource, Machine,
    OperationRecord, RowDescription, RunRecords, SpeedRatio, SpeedVerdict, median, median_interval,
};

use crate::compare::ComparePhase;

/// The share of the available CPU time above which processors are the limit.
const BUSY: f64 = 0.9;
/// The share of the available CPU time below which processors are not the limit.
const IDLE: f64 = 0.5;

/// The parts of a run file other than its results.
pub struct RunFileHeader {
    /// The machine, described before the work started.
    pub machine: Machine,
    /// The start time of the run, RFC 3339.
    pub started: String,
    /// The duration of the run.
    pub elapsed: Duration,
    /// The chosen parameters, by name.
    pub parameters: serde_json::Map<String, serde_json::Value>,
    /// Reasons to doubt a result, or why a result is missing.
    pub warnings: Vec<String>,
}

/// The number of threads and processors available to a run.
#[derive(Clone, Copy, Debug)]
pub struct RunParallelism {
    /// The number of threads that made calls.
    pub threads: usize,
    /// The number of processors of the machine.
    pub cpus: usize,
}

impl RunParallelism {
    /// Returns the parallelism of `threads` threads on this machine. A quota of CPU time reduces the number of threads
    /// that can be busy all the time, but not the number of processors that can be busy within a short time.
    pub fn of(threads: usize, machine: &Machine) -> Self {
        RunParallelism { threads: threads.min(machine.cpus_at_once()), cpus: machine.cpus }
    }

    /// Returns the parallelism of a phase: a listing is one call, and a small tree has too few files for all threads.
    fn used_in(self, phase: u8, records: &RunRecords) -> Self {
        let of_phase = records.operations.iter().filter(|operation| operation.phase == phase);
        let threads: BTreeSet<u16> = of_phase.map(|operation| operation.thread).collect();
        RunParallelism { threads: self.threads.min(threads.len().max(1)), ..self }
    }
}

/// Returns one summary for each phase of a comparison and each lane, sorted by phase. The first lane is the
/// reference.
pub fn summarise(
    lanes: &[RowDescription],
    records: &RunRecords,
    capacity: RunParallelism,
) -> Vec<LanePhaseResult> {
    let of_phase = |phase: ComparePhase| {
        let capacity = capacity.used_in(phase as u8, records);
        summarise_phase(lanes, (phase as u8, phase.name()), records, capacity)
    };
    ComparePhase::ALL.into_iter().flat_map(of_phase).collect()
}

/// Returns one summary for each lane, for the phase with this index and name.
pub fn summarise_phase(
    lanes: &[RowDescription],
    phase: (u8, &str),
    records: &RunRecords,
    capacity: RunParallelism,
) -> Vec<LanePhaseResult> {
    let row = |lane: usize| SummaryRow::new(lanes, records, phase, lane as u8).summary(capacity);
    (0..lanes.len()).map(row).collect()
}

struct SummaryRow<'r> {
    lanes: &'r [RowDescription],
    phase: &'r str,
    lane: u8,
    operations: Vec<&'r OperationRecord>,
    blocks: Vec<&'r BlockRecord>,
    reference: Vec<&'r BlockRecord>,
    /// The numbers of the blocks in which an operation of this lane or of the reference failed.
    failed: BTreeSet<u32>,
}

impl<'r> SummaryRow<'r> {
    fn new(
        lanes: &'r [RowDescription],
        records: &'r RunRecords,
        (number, phase): (u8, &'r str),
        lane: u8,
    ) -> Self {
        let blocks_of = |lane: u8| -> Vec<&BlockRecord> {
            let mut blocks: Vec<&BlockRecord> = records.blocks.iter().collect();
            blocks.retain(|block| block.lane == lane && block.phase == number && block.elapsed_ns > 0);
            blocks.sort_unstable_by_key(|block| block.block);
            blocks
        };
        let wanted = |op: &&OperationRecord| op.lane == lane && op.phase == number;
        let operations = records.operations.iter().filter(wanted).collect();
        let failed = records.blocks_with_failures().into_iter();
        let failed = failed.filter(|(of, phase, _)| *phase == number && [0, lane].contains(of));
        let failed = failed.map(|(_, _, block)| block).collect();
        SummaryRow {
            lanes,
            phase,
            lane,
            operations,
            blocks: blocks_of(lane),
            reference: blocks_of(0),
            failed,
        }
    }

    fn summary(&self, capacity: RunParallelism) -> LanePhaseResult {
        let mut latencies = LatencyHistogram::default();
        let succeeded = self.operations.iter().filter(|op| op.ok);
        succeeded.for_each(|op| latencies.record(op.duration_ns));
        let operations = latencies.len();
        let sum = |value: fn(&BlockRecord) -> u64| self.blocks.iter().map(|block| value(block)).sum::<u64>();
        let (bytes, elapsed_s) = (sum(|block| block.bytes), sum(|block| block.elapsed_ns) as f64 / 1e9);
        let per_second = |count: u64| (count > 0 && elapsed_s > 0.0).then(|| count as f64 / elapsed_s);
        let per_op = |ns: u64| (operations > 0).then(|| ns as f64 / operations as f64);
        let server_cpu = self.blocks.iter().map(|block| block.server_cpu_ns).sum::<Option<u64>>();
        let has_server = !self.blocks.is_empty() && server_cpu.is_some();
        LanePhaseResult {
            lane: self.lanes[usize::from(self.lane)].name.clone(),
            phase: self.phase.to_owned(),
            operations,
            errors: self.operations.len() as u64 - operations,
            bytes,
            ops_per_s: per_second(operations),
            bytes_per_s: per_second(bytes),
            latency: latencies.quantiles(),
            histogram: latencies.to_base64(),
            client_cpu_ns_per_op: per_op(sum(|block| block.client_cpu_ns)),
            server_cpu_ns_per_op: server_cpu.filter(|_| has_server).and_then(per_op),
            ratio: (self.lane != 0).then(|| self.ratio()),
            limit: limit(
                sum(|block| block.client_cpu_ns),
                server_cpu.filter(|_| has_server),
                elapsed_s,
                capacity,
            ),
            load: None,
            transfer: None,
            parallel: None,
        }
    }

    /// Returns the median over blocks of (time of the reference / time of this lane) for the same work. Omits blocks in
    /// which an operation failed on either lane, or the two lanes completed different numbers of operations.
    fn ratio(&self) -> SpeedRatio {
        let pairs = self.blocks.iter().filter_map(|block| {
            let other = self.reference.binary_search_by_key(&block.block, |other| other.block).ok()?;
            let other = self.reference[other];
            let is_clean = block.operations > 0 && !self.failed.contains(&block.block);
            let is_same = is_clean && block.operations == other.operations;
            is_same.then(|| (block.round, other.elapsed_ns as f64 / block.elapsed_ns as f64))
        });
        let interval = interval_of_rounds(&pairs.collect::<Vec<_>>());
        SpeedRatio { to: self.lanes[0].name.clone(), interval, verdict: SpeedVerdict::of(interval.as_ref()) }
    }
}

/// Returns the median of `pairs`, each a round and a ratio, with its interval; `None` for fewer than five rounds. The
/// blocks of a round share its disturbances, so only the rounds are independent. The ends of the interval are therefore
/// computed from the medians of the rounds.
fn interval_of_rounds(pairs: &[(u16, f64)]) -> Option<ConfidenceInterval> {
    let mut rounds = BTreeMap::<u16, Vec<f64>>::new();
    pairs.iter().for_each(|(round, ratio)| rounds.entry(*round).or_default().push(*ratio));
    let medians: Vec<f64> = rounds.values().filter_map(|ratios| median(ratios)).collect();
    let value = median(&pairs.iter().map(|(_, ratio)| *ratio).collect::<Vec<_>>())?;
    let ends = median_interval(&medians)?;
    Some(ConfidenceInterval {
        value,
        low: ends.low.min(value),
        high: ends.high.max(value),
        samples: pairs.len(),
        ..ends
    })
}

/// The maximum plausible ratio of counted CPU time to the time of all processors. Counters are read one after another,
/// so the ratio may exceed 1.
const COUNTED_MAX: f64 = 1.1;

/// Returns the limit of a lane's speed. The limit follows from the CPU time that client and server used together, as a
/// share of the CPU time that was available in `elapsed_s`.
pub(crate) fn limit(
    client_ns: u64,
    server_ns: Option<u64>,
    elapsed_s: f64,
    capacity: RunParallelism,
) -> LimitingResource {
    let at_once = capacity.threads.min(capacity.cpus) as f64;
    let used_s = (client_ns + server_ns.unwrap_or_default()) as f64 / 1e9;
    let share = if elapsed_s > 0.0 { used_s / elapsed_s / at_once } else { f64::NAN };
    let server = server_ns.unwrap_or_default();
    if elapsed_s > 0.0 && used_s / elapsed_s > COUNTED_MAX * capacity.cpus as f64 {
        let evidence = format!(
            "{:.2} processors were counted on a machine of {}: please report this bug",
            used_s / elapsed_s,
            capacity.cpus
        );
        return LimitingResource { name: "cannot tell".to_owned(), evidence };
    }
    // One side alone is the limit only if the other side used less than about half as much CPU time.
    let name = match share {
        share if share >= BUSY && server > 2 * client_ns => "server cpu",
        share if share >= BUSY && server > client_ns / 2 => "client and server cpu",
        share if share >= BUSY => "client cpu",
        share if share < IDLE => "waiting",
        _ => "cannot tell",
    };
    let evidence = match share.is_nan() {
        true => "nothing was measured".to_owned(),
        false => {
            format!(
                "{:.2} processors were used; {at_once} can be if client and server take turns",
                used_s / elapsed_s
            )
        }
    };
    LimitingResource { name: name.to_owned(), evidence }
}

/// Replaces the limit `waiting` by `cannot tell`. The CPU time of a server that this run did not start is unknown, so
/// an idle client does not prove that the server is also idle.
pub fn forget_waiting(row: &mut LanePhaseResult) {
    if row.limit.name == "waiting" {
        row.limit.name = "cannot tell".into();
        row.limit.evidence += "; the CPU time of the server is unknown";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: RunParallelism = RunParallelism { threads: 1, cpus: 2 };

    #[test]
    fn more_processors_than_there_are_is_a_bug_and_no_limit() {
        let parallel = limit(900_000_000, Some(900_000_000), 1.0, CAPACITY);
        assert!(parallel.name == "client and server cpu" && parallel.evidence.starts_with("1.80 processors"));
        let impossible = limit(900_000_000, Some(2_120_000_000), 1.0, CAPACITY);
        assert!(impossible.name == "cannot tell" && impossible.evidence.contains("report this bug"));
    }

    fn block(
        lane: u8,
        number: u32,
        elapsed_ns: u64,
        client_cpu_ns: u64,
        server_cpu_ns: Option<u64>,
    ) -> BlockRecord {
        let (phase, round, operations, bytes) = (ComparePhase::Get as u8, number as u16, 1, 0);
        BlockRecord {
            lane,
            phase,
            round,
            block: number,
            operations,
            bytes,
            elapsed_ns,
            client_cpu_ns,
            server_cpu_ns,
        }
    }

    fn operation(lane: u8, block: u32, duration_ns: u64) -> OperationRecord {
        let phase = ComparePhase::Get as u8;
        OperationRecord {
            lane,
            phase,
            round: 0,
            block,
            thread: 0,
            start_ns: 0,
            duration_ns,
            bytes: 0,
            ok: true,
            intended_ns: None,
            first_byte_ns: None,
        }
    }

    /// Returns the summaries of ten blocks on two lanes. The second lane takes twice as long as the first lane, and
    /// uses the given CPU times.
    fn get_rows(client_cpu_ns: u64, server_cpu_ns: Option<u64>) -> Vec<LanePhaseResult> {
        let mut records = RunRecords::default();
        for number in 0..10 {
            records.blocks.push(block(0, number, 1_000, 990, None));
            records.blocks.push(block(1, number, 2_000, client_cpu_ns, server_cpu_ns));
            records.operations.extend([operation(0, number, 1_000), operation(1, number, 2_000)]);
        }
        let lane = |name: &str| RowDescription { name: name.into(), description: String::new() };
        let mut rows = summarise(&[lane("a"), lane("b")], &records, CAPACITY);
        rows.retain(|row| row.phase == "get");
        rows
    }

    /// Failing takes less time than working, so without a block that is free of failures there is no ratio.
    #[test]
    fn failures_in_every_block_leave_no_ratio() {
        let mut records = RunRecords::default();
        for number in 0..10 {
            records.blocks.extend([0, 1].map(|lane| block(lane, number, 1_000, 0, None)));
            records.operations.extend([0, 1].map(|lane| operation(lane, number, 1_000)));
            records.operations.push(OperationRecord { ok: false, ..operation(1, number, 10) });
        }
        let lane = |name: &str| RowDescription { name: name.into(), description: String::new() };
        let phase = (ComparePhase::Get as u8, "get");
        let rows = summarise_phase(&[lane("a"), lane("b")], phase, &records, CAPACITY);
        let ratio = rows[1].ratio.as_ref().unwrap();
        assert_eq!((&ratio.interval, &ratio.verdict), (&None, &SpeedVerdict::of(None)));
        assert_eq!(rows[1].errors, 10);
    }

    /// A listing is one call, so one busy thread of four is the limit.
    #[test]
    fn only_threads_that_made_calls_could_be_busy() {
        let phase = ComparePhase::List as u8;
        let mut records = RunRecords::default();
        records.blocks.push(BlockRecord { phase, ..block(0, 0, 1_000, 990, None) });
        records.operations.push(OperationRecord { phase, ..operation(0, 0, 1_000) });
        let lane = RowDescription { name: "a".into(), description: String::new() };
        let rows = summarise(&[lane], &records, RunParallelism { threads: 4, cpus: 8 });
        let list = rows.iter().find(|row| row.phase == "list").unwrap();
        assert_eq!(list.limit.name, "client cpu", "{:?}", list.limit);
    }

    #[test]
    fn the_counters_name_the_limit() {
        let limit = |client, server| get_rows(client, server)[1].limit.name.clone();
        assert_eq!(limit(1_950, None), "client cpu");
        assert_eq!(limit(900, Some(1_000)), "client and server cpu");
        assert_eq!(limit(300, Some(1_600)), "server cpu");
        assert_eq!(limit(300, None), "waiting");
        assert_eq!(limit(1_400, None), "cannot tell");
    }

    /// Returns the ratio of the second lane to the first lane. A block consists of its round, and of the operations and
    /// the time of each lane.
    fn ratio_of(blocks: &[(u16, [(u32, u64); 2])]) -> SpeedRatio {
        let mut records = RunRecords::default();
        for (number, (round, lanes)) in blocks.iter().enumerate() {
            for (lane, (operations, elapsed_ns)) in lanes.iter().enumerate() {
                let block = block(lane as u8, number as u32, *elapsed_ns, 0, None);
                records.blocks.push(BlockRecord { round: *round, operations: *operations, ..block });
            }
        }
        let lane = |name: &str| RowDescription { name: name.into(), description: String::new() };
        let phase = (ComparePhase::Get as u8, "get");
        summarise_phase(&[lane("a"), lane("b")], phase, &records, CAPACITY).swap_remove(1).ratio.unwrap()
    }

    /// Failed operations must not count as fast: a server that rejects every request responds sooner than a server that
    /// serves requests.
    #[test]
    fn failures_are_not_speed() {
        let refused = (0..10).map(|round| (round, [(64, 1_000), (0, 100)])).collect::<Vec<_>>();
        assert_eq!(ratio_of(&refused).verdict, SpeedVerdict::CannotTell);
        let lane = |round: u16| if round < 5 { (64, 2_000) } else { (9, 100) };
        let partly = (0..10).map(|round| (round, [(64, 1_000), lane(round)])).collect::<Vec<_>>();
        let interval = ratio_of(&partly).interval.unwrap();
        assert_eq!((interval.value, interval.samples), (0.5, 5));
    }

    /// Both lanes may fail equally often, and quickly.
    #[test]
    fn blocks_in_which_both_lanes_failed_have_no_ratio() {
        let mut records = RunRecords::default();
        for number in 0..10 {
            let elapsed_ns = if number < 5 { 1_000 } else { 10 };
            records.blocks.push(block(0, number, elapsed_ns, 0, None));
            records.blocks.push(block(1, number, 2 * 1_000, 0, None));
            for lane in [0, 1] {
                records.operations.push(OperationRecord { ok: number < 5, ..operation(lane, number, 10) });
            }
        }
        let lane = |name: &str| RowDescription { name: name.into(), description: String::new() };
        let phase = (ComparePhase::Get as u8, "get");
        let rows = summarise_phase(&[lane("a"), lane("b")], phase, &records, CAPACITY);
        let interval = rows[1].ratio.as_ref().unwrap().interval.as_ref().unwrap();
        assert_eq!((interval.value, interval.samples), (0.5, 5));
    }

    /// In all blocks of two of the five rounds, the lane takes twice as long as the reference. An interval that treats
    /// blocks as independent would exclude a ratio of 1.
    #[test]
    fn rounds_and_not_blocks_are_independent() {
        let lane = |at: u16| if at / 20 < 2 { (64, 2_000) } else { (64, 1_000 - u64::from(at)) };
        let blocks = (0..100).map(|at| (at / 20, [(64, 1_000), lane(at)])).collect::<Vec<_>>();
        let ratio = ratio_of(&blocks);
        let interval = ratio.interval.unwrap();
        assert_eq!((interval.low, interval.samples, ratio.verdict), (0.5, 100, SpeedVerdict::CannotTell));
        assert_eq!(ratio_of(&blocks[..80]).interval, None);
    }

    #[test]
    fn ratios_are_of_pairs_and_absent_for_the_reference() {
        let rows = get_rows(1_950, Some(10));
        assert_eq!((rows[0].ratio.as_ref(), rows[0].server_cpu_ns_per_op), (None, None));
        let ratio = rows[1].ratio.as_ref().unwrap();
        let interval = ratio.interval.as_ref().unwrap();
        assert_eq!((ratio.verdict, interval.value, interval.low), (SpeedVerdict::Slower, 0.5, 0.5));
        assert_eq!(rows[1].ops_per_s.map(f64::round), Some(500_000.0));
        assert_eq!(rows[1].server_cpu_ns_per_op, Some(10.0));
    }
}
