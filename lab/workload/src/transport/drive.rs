//! Measures all sizes on all transports in interleaved blocks, and creates a run file from the blocks.

use std::sync::atomic::{AtomicBool, Ordering};

use fordway_measure::{
    BlockRecord, LanePhaseResult, LimitingResource, Machine, MessageExchangeResult, OperationRecord,
    RowDescription, RunClock, RunDocument, RunRecords, SCHEMA, SCHEMA_VERSION, SeededRandom,
    exact_bytes_text, median, median_interval,
};
use fordway_store::{Error, ErrorKind, Result};

use super::{MessageBlockResult, MessageBlockTask, MessageExchangePattern, MessageTransport};
use crate::summary::{RunFileHeader, RunParallelism, summarise_phase};

/// The maximum number of windows in a block.
const WINDOWS: u64 = 10;
/// The number of counted messages for each warm-up message.
const WARM_UP_SHARE: u64 = 10;
/// The maximum number of bytes in flight, unless a single message is larger.
const WINDOW_BYTES: u64 = 16 << 20;
/// The maximum number of phases in a run file.
const MAX_PHASES: usize = 255;

/// The plan of a transport benchmark.
#[derive(Clone, Debug)]
pub struct TransportPlan {
    /// The sizes in bytes, each at least 1.
    pub sizes: Vec<u64>,
    /// The number of blocks of each size for each transport.
    pub rounds: u16,
    /// Maximum number of messages in a block that measures latency or half round trips.
    pub messages: u64,
    /// Maximum number of bytes in a block, unless a single message is larger.
    pub block_bytes: u64,
    /// Maximum number of messages in flight when bandwidth is measured.
    pub window: u64,
    /// The seed of every random order.
    pub seed: u64,
}

/// The results of a transport benchmark.
#[derive(Debug, Default)]
pub struct TransportResults {
    /// A record of every operation and of every block. An operation is one message or, for bandwidth, a whole block.
    pub records: RunRecords,
    /// The task of each phase, in the order of phases.
    pub tasks: Vec<MessageBlockTask>,
    /// The number of rounds that were complete, if the benchmark was interrupted after these rounds.
    pub interrupted_after: Option<u16>,
}

/// The progress of a transport benchmark.
#[derive(Clone, Debug)]
pub struct TransportProgress {
    /// Blocks done so far, over all transports.
    pub done: u64,
    /// The total number of blocks.
    pub total: u64,
    /// The current phase.
    pub phase: String,
}

impl TransportPlan {
    /// Returns the tasks of all phases that at least one of `transports` supports. Errors: `InvalidArgument` if there
    /// are more phases than a run can have.
    fn tasks(&self, transports: &[Box<dyn MessageTransport>]) -> Result<Vec<MessageBlockTask>> {
        let is_possible =
            |exchange: &MessageExchangePattern| transports.iter().any(|transport| transport.can(*exchange));
        let of_exchange = |exchange| self.sizes.iter().map(move |size| self.task(exchange, *size));
        let tasks: Vec<MessageBlockTask> =
            MessageExchangePattern::ALL.into_iter().filter(is_possible).flat_map(of_exchange).collect();
        match tasks.len() {
            0..=MAX_PHASES => Ok(tasks),
            phases => {
                let why = format!("{phases} phases are more than {MAX_PHASES}; name fewer sizes");
                Err(Error::new(ErrorKind::InvalidArgument, why))
            }
        }
    }

    /// Returns a task for a block of messages of this size. The number of messages is limited so that the block remains
    /// short.
    fn task(&self, exchange: MessageExchangePattern, size_bytes: u64) -> MessageBlockTask {
        let at_most = |bytes: u64, most: u64| (bytes / size_bytes).clamp(1, most.max(1));
        let window = match exchange {
            MessageExchangePattern::Stream => at_most(WINDOW_BYTES, self.window),
            MessageExchangePattern::Fetch | MessageExchangePattern::PingPong => 1,
        };
        let count = match exchange {
            MessageExchangePattern::Stream => (self.block_bytes / (size_bytes * window)).clamp(1, WINDOWS),
            MessageExchangePattern::Fetch | MessageExchangePattern::PingPong => {
                at_most(self.block_bytes, self.messages)
            }
        };
        MessageBlockTask { exchange, size_bytes, window, count, warm_up: count.div_ceil(WARM_UP_SHARE) }
    }
}

impl MessageBlockTask {
    /// Returns the name of the task's phase.
    pub(super) fn phase(&self) -> String {
        format!("{} {}", self.exchange.name(), exact_bytes_text(self.size_bytes))
    }
}

/// Runs `plan`. If `stop` is set, returns early: the outcome then contains the complete rounds. Errors: `Interrupted`
/// if no round was complete, and the error of a transport that fails.
pub fn run(
    plan: &TransportPlan,
    transports: &mut [Box<dyn MessageTransport>],
    stop: &AtomicBool,
    progress: &mut dyn FnMut(TransportProgress),
) -> Result<TransportResults> {
    let clock = RunClock::start();
    let mut random = SeededRandom::new(plan.seed);
    let mut outcome = TransportResults { tasks: plan.tasks(transports)?, ..TransportResults::default() };
    let TransportResults { tasks, records, .. } = &mut outcome;
    let total = u64::from(plan.rounds) * tasks.len() as u64 * transports.len() as u64;
    let (mut done, mut block) = (0, 0);
    let mut measure_round = |round: u16| -> Result<()> {
        for (phase, task) in tasks.iter().enumerate() {
            let mut lanes: Vec<usize> = (0..transports.len()).collect();
            random.shuffle(&mut lanes);
            for lane in lanes {
                if stop.load(Ordering::Relaxed) {
                    return Err(Error::new(ErrorKind::Interrupted, "stopped by request"));
                }
                if transports[lane].can(task.exchange) {
                    let result = transports[lane].carry_out(task)?;
                    let place = TransportBlockPosition { lane: lane as u8, phase: phase as u8, round, block };
                    place.keep(task, &result, clock.now_ns(), records);
                }
                done += 1;
                progress(TransportProgress { done, total, phase: task.phase() });
            }
            block += 1;
        }
        Ok(())
    };
    for round in 0..plan.rounds {
        let Err(error) = measure_round(round) else { continue };
        // A signal also ends the programs on the other side, so a transport may fail after a signal.
        if round == 0 || !stop.load(Ordering::Relaxed) {
            return Err(error);
        }
        outcome.records.keep_rounds(round);
        outcome.interrupted_after = Some(round);
        break;
    }
    Ok(outcome)
}

#[derive(Clone, Copy)]
struct TransportBlockPosition {
    lane: u8,
    phase: u8,
    round: u16,
    block: u32,
}

impl TransportBlockPosition {
    /// Records one block, which ended at `end_ns`. If the received bytes were wrong, the last message counts as
    /// failed.
    fn keep(self, task: &MessageBlockTask, done: &MessageBlockResult, end_ns: u64, records: &mut RunRecords) {
        let TransportBlockPosition { lane, phase, round, block } = self;
        let messages = task.count * task.window;
        let (durations_ns, bytes) = match task.exchange {
            MessageExchangePattern::Stream => (&[done.elapsed_ns][..], messages * task.size_bytes),
            MessageExchangePattern::Fetch | MessageExchangePattern::PingPong => {
                (&done.durations_ns[..], task.size_bytes)
            }
        };
        let mut start_ns = end_ns.saturating_sub(done.elapsed_ns);
        let first = records.operations.len();
        for &duration_ns in durations_ns {
            let (thread, ok, intended_ns, first_byte_ns) = (0, true, None, None);
            records.operations.push(OperationRecord {
                lane,
                phase,
                round,
                block,
                thread,
                start_ns,
                duration_ns,
                bytes,
                ok,
                intended_ns,
                first_byte_ns,
            });
            start_ns += duration_ns * task.exchange.trips();
        }
        let all = &mut records.operations[first..];
        if let Some(last) = all.last_mut().filter(|_| !done.is_right) {
            (last.ok, last.bytes) = (false, 0);
        }
        records.blocks.push(BlockRecord {
            lane,
            phase,
            round,
            block,
            operations: all.iter().filter(|operation| operation.ok).count() as u32,
            bytes: all.iter().map(|operation| operation.bytes).sum(),
            elapsed_ns: done.elapsed_ns,
            client_cpu_ns: done.client_cpu_ns,
            server_cpu_ns: done.server_cpu_ns,
        });
    }
}

/// The number of busy processors above which a side must have polled, if only one message was in flight at a time.
const POLLS: f64 = 1.5;

/// Returns the run file of `outcome`, which `plan` measured on `lanes`.
pub fn describe(
    plan: &TransportPlan,
    lanes: Vec<RowDescription>,
    outcome: &TransportResults,
    header: RunFileHeader,
) -> RunDocument {
    let summaries: Vec<LanePhaseResult> = outcome
        .tasks
        .iter()
        .enumerate()
        .flat_map(|(phase, task)| of_phase(&lanes, (phase as u8, task), &outcome.records, &header.machine))
        .collect();
    let mut warnings = header.warnings;
    warnings.extend(outcome.interrupted_after.map(|rounds| {
        format!("interrupted after {rounds} of {} rounds: the results cover these rounds only", plan.rounds)
    }));
    warnings.extend(doubts(plan, &header.machine));
    warnings.extend(polling(&lanes, &summaries));
    RunDocument {
        schema: SCHEMA.into(),
        schema_version: SCHEMA_VERSION,
        fordway_version: env!("CARGO_PKG_VERSION").into(),
        kind: "transport".into(),
        started: header.started,
        elapsed_ns: header.elapsed.as_nanos() as u64,
        command: std::env::args().collect(),
        machine: header.machine,
        parameters: header.parameters,
        phases: outcome.tasks.iter().map(MessageBlockTask::phase).collect(),
        lanes,
        summaries,
        scores: Vec::new(),
        warnings,
        conditions: None,
    }
}

/// Returns one summary for each lane that ran the phase.
fn of_phase(
    lanes: &[RowDescription],
    (phase, task): (u8, &MessageBlockTask),
    records: &RunRecords,
    machine: &Machine,
) -> Vec<LanePhaseResult> {
    // With one message in flight, one side waits while the other side works. With several messages in flight, both
    // sides work at the same time.
    let threads = if task.exchange == MessageExchangePattern::Stream { machine.cpus_at_once() } else { 1 };
    let capacity = RunParallelism { threads, cpus: machine.cpus };
    let name = task.phase();
    let mut summaries = summarise_phase(lanes, (phase, &name), records, capacity);
    for (lane, summary) in summaries.iter_mut().enumerate() {
        let is_here = |in_lane: u8, in_phase: u8| (usize::from(in_lane), in_phase) == (lane, phase);
        let blocks: Vec<&BlockRecord> =
            records.blocks.iter().filter(|block| is_here(block.lane, block.phase)).collect();
        let operations = records.operations.iter().filter(|op| is_here(op.lane, op.phase) && op.ok);
        summary.transfer = transfer(task, &blocks, &operations.collect::<Vec<_>>());
        // Each half of a round trip carries one message, and the operations count round trips.
        let trips = task.exchange.trips() as f64;
        summary.ops_per_s = summary.ops_per_s.map(|per_s| trips * per_s);
        summary.bytes_per_s = summary.bytes_per_s.map(|per_s| trips * per_s);
        if let Some(limit) = summary.transfer.as_ref().and_then(polls) {
            summary.limit = limit;
        }
    }
    summaries.retain(|summary| summary.transfer.is_some());
    summaries
}

/// Returns the transfer figures of one lane in one phase; `None` if the lane did not run the phase.
fn transfer(
    task: &MessageBlockTask,
    blocks: &[&BlockRecord],
    operations: &[&OperationRecord],
) -> Option<MessageExchangeResult> {
    if blocks.is_empty() {
        return None;
    }
    let of_block = task.count * task.window;
    let each = |value: &dyn Fn(&BlockRecord) -> f64| {
        median(&blocks.iter().map(|block| value(block)).collect::<Vec<_>>()).unwrap_or_default()
    };
    let client_ns = each(&|block| block.client_cpu_ns as f64 / of_block as f64);
    let has_server = blocks.iter().all(|block| block.server_cpu_ns.is_some());
    let server_ns = each(&|block| block.server_cpu_ns.unwrap_or_default() as f64 / of_block as f64);
    let busy = |block: &BlockRecord| {
        (block.client_cpu_ns + block.server_cpu_ns.unwrap_or_default()) as f64
            / block.elapsed_ns.max(1) as f64
    };
    let trips = task.exchange.trips() as f64;
    let rate = |block: &&BlockRecord| trips * block.bytes as f64 * 1e9 / block.elapsed_ns.max(1) as f64;
    let rates: Vec<f64> = blocks.iter().map(rate).collect();
    let time_ns = match task.exchange {
        MessageExchangePattern::Stream => None,
        MessageExchangePattern::Fetch | MessageExchangePattern::PingPong => {
            median_interval(&medians(operations))
        }
    };
    Some(MessageExchangeResult {
        exchange: task.exchange.name().to_owned(),
        size_bytes: task.size_bytes,
        window: task.window,
        messages: blocks.len() as u64 * of_block,
        time_ns,
        bytes_per_s: median_interval(&rates),
        client_cpu_ns_per_message: client_ns,
        server_cpu_ns_per_message: has_server.then_some(server_ns),
        processors_busy: each(&busy),
    })
}

/// Returns, for each block, the median time of a message in nanoseconds.
fn medians(operations: &[&OperationRecord]) -> Vec<f64> {
    let blocks = operations.chunk_by(|a, b| a.block == b.block);
    let of_block = |block: &[&OperationRecord]| {
        median(&block.iter().map(|operation| operation.duration_ns as f64).collect::<Vec<_>>())
    };
    blocks.filter_map(of_block).collect()
}

/// Returns the limit `cannot tell` for a transport that polls, because its busy processors do not show the limit;
/// `None` if the transport does not poll.
fn polls(transfer: &MessageExchangeResult) -> Option<LimitingResource> {
    if transfer.exchange == MessageExchangePattern::Stream.name() || transfer.processors_busy < POLLS {
        return None;
    }
    let evidence = format!(
        "{:.2} processors were busy with one message at a time: a side polls while it waits, so CPU time does \
         not tell",
        transfer.processors_busy
    );
    Some(LimitingResource { name: "cannot tell".into(), evidence })
}

/// Returns a warning for each lane that polled, with the number of processors that the lane kept busy.
fn polling(lanes: &[RowDescription], summaries: &[LanePhaseResult]) -> Vec<String> {
    let latency = MessageExchangePattern::Fetch.name();
    let busy = |lane: &RowDescription| {
        let rows = summaries.iter().filter(|row| row.lane == lane.name);
        let transfers = rows.filter_map(|row| row.transfer.as_ref()).filter(|of| of.exchange == latency);
        median(&transfers.map(|of| of.processors_busy).collect::<Vec<_>>())
    };
    let said = |lane: &RowDescription| {
        let busy = busy(lane).filter(|busy| *busy >= POLLS)?;
        Some(format!(
            "{} polls while it waits: {busy:.2} processors were busy with one message at a time. Its latency \
             requires processors that do nothing else",
            lane.name
        ))
    };
    lanes.iter().filter_map(said).collect()
}

fn doubts(plan: &TransportPlan, machine: &Machine) -> Vec<String> {
    let mut doubts = Vec::new();
    if machine.cpus_at_once() < 2 {
        doubts.push("both sides share one processor: a side that polls keeps the other from working".into());
    }
    if plan.rounds < 5 {
        doubts.push("fewer than 5 rounds: there are no intervals; raise --rounds".into());
    }
    doubts
}
