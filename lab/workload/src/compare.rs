//! Stores, lists, reads and deletes one tree of files on every target, in interleaved blocks.
//!
//! The files of a round are shuffled and divided into blocks. All targets run each block, one target after the other.
//! The order is random for each block, so that drift on a noisy machine affects all targets alike. The content that a
//! block has read is verified after the block's last clock reading, so that the check does not distort the measurement.

use std::sync::atomic::{AtomicBool, Ordering};

use fordway_measure::{BlockRecord, OperationRecord, RunClock, RunRecords, SeededRandom};
use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::process_cpu_ns;

use super::tree;
use crate::{EarlyEnd, FileTree, MeasuredTarget, TreeFile};

/// The number of files per thread in a block, large enough that the time to read the CPU clocks is negligible.
const BLOCK_FILES: usize = 64;
/// The maximum number of bytes in a block, unless a single file is larger.
const BLOCK_BYTES: usize = 8 << 20;
/// The number of listings in a round; each listing is a separate block.
const LISTINGS: usize = 3;
/// The byte that fills a buffer before a read, so that bytes of an earlier read cannot be mistaken for new bytes.
const POISON: u8 = 0xa5;
/// The number of failures kept as messages; further failures are only counted.
const MESSAGES: usize = 5;

/// The phases, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparePhase {
    /// Store every file.
    Put,
    /// List all keys.
    List,
    /// Fetch every object's size.
    Head,
    /// Read every object.
    Get,
    /// Read a random range of every object that is not empty.
    Range,
    /// Remove every object.
    Delete,
}

impl ComparePhase {
    /// All phases, in order.
    pub const ALL: [ComparePhase; 6] = [
        ComparePhase::Put,
        ComparePhase::List,
        ComparePhase::Head,
        ComparePhase::Get,
        ComparePhase::Range,
        ComparePhase::Delete,
    ];

    /// Returns the phase's name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            ComparePhase::Put => "put",
            ComparePhase::List => "list",
            ComparePhase::Head => "head",
            ComparePhase::Get => "get",
            ComparePhase::Range => "range",
            ComparePhase::Delete => "delete",
        }
    }
}

/// The settings of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct ComparePlan {
    /// The number of recorded rounds.
    pub rounds: u16,
    /// The number of warm-up rounds, which are not recorded. The warm-up rounds make memory and directories equally
    /// warm in all recorded rounds.
    pub warm_up: u16,
    /// The seed of every random order and every random range.
    pub seed: u64,
    /// The number of threads that work on a block concurrently.
    pub threads: usize,
    /// The maximum length of a range read, bytes.
    pub range_bytes: u64,
}

/// The results of a comparison.
#[derive(Debug, Default)]
pub struct ComparisonResults {
    /// Every operation and block of the recorded rounds.
    pub records: RunRecords,
    /// Descriptions of the first failures.
    pub failures: Vec<String>,
    /// The early end; `None` if all rounds were complete. At least one recorded round is complete.
    pub early_end: Option<EarlyEnd>,
}

/// The progress of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct CompareProgress {
    /// Blocks done, over all targets.
    pub done: u64,
    /// The total number of blocks.
    pub total: u64,
    /// The current phase.
    pub phase: ComparePhase,
    /// The round, from 0, warm-up included.
    pub round: u16,
}

/// Runs `plan` on `tree`. Errors in individual operations are counted. Errors that would affect every later operation
/// (no space, no permission, server unreachable) end the run early. Setting `stop` also ends the run early. The outcome
/// of a run that ends early contains the complete recorded rounds. Errors: the reason for the early end (`Interrupted`
/// for `stop`) if no recorded round was complete.
pub fn run(
    plan: &ComparePlan,
    tree: &FileTree,
    targets: &[Box<dyn MeasuredTarget>],
    stop: &AtomicBool,
    progress: &mut dyn FnMut(CompareProgress),
) -> Result<ComparisonResults> {
    let mut comparison = ComparisonState {
        plan,
        targets,
        stop,
        progress,
        clock: RunClock::start(),
        random: SeededRandom::new(plan.seed),
        outcome: ComparisonResults::default(),
        buffers: Vec::new(),
        blocks: 0,
        done: 0,
        total: 0,
    };
    for round in 0..plan.warm_up + plan.rounds {
        match comparison.round(tree, round) {
            // Neither a signal nor a server that stops answering invalidates the complete rounds.
            Err(error) if round > plan.warm_up => {
                let complete = round - plan.warm_up;
                comparison.outcome.records.keep_rounds(complete);
                comparison.outcome.early_end = Some(EarlyEnd::new(complete, error, stop));
                break;
            }
            done => done?,
        }
    }
    Ok(comparison.outcome)
}

struct ComparisonState<'c> {
    plan: &'c ComparePlan,
    targets: &'c [Box<dyn MeasuredTarget>],
    stop: &'c AtomicBool,
    progress: &'c mut dyn FnMut(CompareProgress),
    clock: RunClock,
    random: SeededRandom,
    outcome: ComparisonResults,
    /// One buffer for each position in a block. The buffers are reused, so that no measured read includes the first
    /// access to new memory.
    buffers: Vec<Vec<u8>>,
    blocks: u32,
    done: u64,
    total: u64,
}

/// One file in a block, and the range of the file to read.
#[derive(Clone, Copy)]
struct FileRangeAccess<'t> {
    item: &'t TreeFile,
    offset: u64,
    len: u64,
}

/// The result of one operation on a file.
struct TimedFileAccess {
    start_ns: u64,
    end_ns: u64,
    thread: u16,
    result: Result<VerifiableResponse>,
}

/// The data to verify.
enum VerifiableResponse {
    /// The content is in the buffer, or there is nothing to verify.
    Read,
    Size(u64),
    Keys(Vec<(String, u64)>),
}

impl ComparisonState<'_> {
    fn round(&mut self, tree: &FileTree, round: u16) -> Result<()> {
        let mut items: Vec<&TreeFile> = tree.items.iter().collect();
        self.random.shuffle(&mut items);
        let jobs: Vec<FileRangeAccess> = items.into_iter().map(|item| self.job(item)).collect();
        self.note_objects(round, &jobs);
        let blocks = cut(&jobs, BLOCK_FILES * self.plan.threads);
        let ranged: Vec<FileRangeAccess> = jobs.iter().copied().filter(|job| job.len > 0).collect();
        let range_blocks = cut(&ranged, BLOCK_FILES * self.plan.threads);
        let listings: Vec<&[FileRangeAccess]> = vec![&jobs[..1]; LISTINGS];
        let rounds = u64::from(self.plan.warm_up + self.plan.rounds);
        self.total =
            rounds * self.targets.len() as u64 * (4 * blocks.len() + range_blocks.len() + LISTINGS) as u64;
        for phase in ComparePhase::ALL {
            let blocks = match phase {
                ComparePhase::List => &listings,
                ComparePhase::Range => &range_blocks,
                _ => &blocks,
            };
            for block in blocks {
                self.block(tree, phase, round, block)?;
            }
        }
        self.expect_nothing_left()
    }

    fn note_objects(&mut self, round: u16, jobs: &[FileRangeAccess]) {
        if let Some(counted) = round.checked_sub(self.plan.warm_up) {
            let objects = jobs.iter().map(|job| (job.item.key.as_str(), job.item.body.len() as u64));
            self.outcome.records.objects.extend(tree::directory_records(counted, objects));
        }
    }

    fn job<'t>(&mut self, item: &'t TreeFile) -> FileRangeAccess<'t> {
        let size = item.body.len() as u64;
        let len = size.min(self.plan.range_bytes);
        let offset = self.random.below((size - len + 1) as usize) as u64;
        FileRangeAccess { item, offset, len }
    }

    /// Runs one block on every target, in a new random order.
    fn block(
        &mut self,
        tree: &FileTree,
        phase: ComparePhase,
        round: u16,
        jobs: &[FileRangeAccess],
    ) -> Result<()> {
        let mut order: Vec<usize> = (0..self.targets.len()).collect();
        self.random.shuffle(&mut order);
        for lane in order {
            self.block_on(tree, lane, phase, round, jobs)?;
            self.done += 1;
            (self.progress)(CompareProgress { done: self.done, total: self.total, phase, round });
        }
        self.blocks += 1;
        Ok(())
    }

    fn block_on(
        &mut self,
        tree: &FileTree,
        lane: usize,
        phase: ComparePhase,
        round: u16,
        jobs: &[FileRangeAccess],
    ) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Interrupted, "stopped by request"));
        }
        let target = &*self.targets[lane];
        self.buffers.resize_with(self.buffers.len().max(jobs.len()), Vec::new);
        let buffers = &mut self.buffers[..jobs.len()];
        buffers.iter_mut().for_each(|buffer| buffer.fill(POISON));
        let server_cpu = || target.server_pid().and_then(|pid| process_cpu_ns(pid).ok());
        let own_cpu = || process_cpu_ns(std::process::id()).unwrap_or_default();
        let (server_before, own_before) = (server_cpu(), own_cpu());
        let done = do_jobs(target, phase, jobs, buffers, self.plan.threads, self.clock);
        // Read the CPU clocks before verifying the content, so that the verification does not count as CPU time of a
        // target.
        let (own_after, server_after) = (own_cpu(), server_cpu());
        let mut counted = BlockRecord {
            lane: lane as u8,
            phase: phase as u8,
            round: round.saturating_sub(self.plan.warm_up),
            block: self.blocks,
            operations: 0,
            bytes: 0,
            elapsed_ns: elapsed(&done),
            client_cpu_ns: own_after.saturating_sub(own_before),
            server_cpu_ns: server_before
                .zip(server_after)
                .map(|(before, after)| after.saturating_sub(before)),
        };
        for (index, done) in done.into_iter().enumerate() {
            let operation = self.verify(tree, phase, &jobs[index], index, done, &counted)?;
            counted.operations += u32::from(operation.ok);
            counted.bytes += operation.bytes;
            if round >= self.plan.warm_up {
                self.outcome.records.operations.push(operation);
            }
        }
        if round >= self.plan.warm_up {
            self.outcome.records.blocks.push(counted);
        }
        Ok(())
    }

    /// Compares an operation's result with the source, and returns the record of the operation.
    fn verify(
        &mut self,
        tree: &FileTree,
        phase: ComparePhase,
        job: &FileRangeAccess,
        index: usize,
        done: TimedFileAccess,
        block: &BlockRecord,
    ) -> Result<OperationRecord> {
        let body = &job.item.body;
        let (offset, end) = (job.offset as usize, (job.offset + job.len) as usize);
        let right = match (phase, &done.result) {
            (_, Err(_)) => false,
            (ComparePhase::Get, Ok(_)) => self.buffers[index] == *body,
            (ComparePhase::Range, Ok(_)) => self.buffers[index] == body[offset..end],
            (_, Ok(VerifiableResponse::Size(size))) => *size == body.len() as u64,
            (_, Ok(VerifiableResponse::Keys(keys))) => same_keys(keys, tree),
            (_, Ok(VerifiableResponse::Read)) => true,
        };
        if !right {
            self.note_failure(phase, job, block.lane, done.result.err())?;
        }
        let bytes = match phase {
            ComparePhase::Put | ComparePhase::Get => body.len() as u64,
            ComparePhase::Range => job.len,
            ComparePhase::List | ComparePhase::Head | ComparePhase::Delete => 0,
        };
        Ok(OperationRecord {
            lane: block.lane,
            phase: block.phase,
            round: block.round,
            block: block.block,
            thread: done.thread,
            start_ns: done.start_ns,
            duration_ns: done.end_ns - done.start_ns,
            bytes: if right { bytes } else { 0 },
            ok: right,
            intended_ns: None,
            first_byte_ns: None,
        })
    }

    fn note_failure(
        &mut self,
        phase: ComparePhase,
        job: &FileRangeAccess,
        lane: u8,
        error: Option<Error>,
    ) -> Result<()> {
        let lane = &self.targets[usize::from(lane)].lane().name;
        let message = match error {
            Some(error) if ends_the_run(error.kind()) => return Err(error),
            Some(error) => error.to_string(),
            None => format!(
                "{} of {} on lane {lane} returned content that differs from the source",
                phase.name(),
                job.item.key
            ),
        };
        if self.outcome.failures.len() < MESSAGES {
            self.outcome.failures.push(message);
        }
        Ok(())
    }

    /// Checks that every target is empty after the deletes, and adds a failure message for each target that is not
    /// empty.
    fn expect_nothing_left(&mut self) -> Result<()> {
        for target in self.targets {
            let left = target.list()?;
            if !left.is_empty() && self.outcome.failures.len() < MESSAGES {
                let message =
                    format!("lane {} still lists {} keys after the deletes", target.lane().name, left.len());
                self.outcome.failures.push(message);
            }
        }
        Ok(())
    }
}

/// Returns whether a failure of this kind would also affect every later operation.
fn ends_the_run(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NoSpace
            | ErrorKind::QuotaExceeded
            | ErrorKind::ReadOnly
            | ErrorKind::AccessDenied
            | ErrorKind::Unavailable
            | ErrorKind::SignatureDoesNotMatch
            | ErrorKind::InvalidAccessKeyId
            | ErrorKind::RequestTimeTooSkewed
            | ErrorKind::TooManyOpenFiles
    )
}

fn same_keys(keys: &[(String, u64)], tree: &FileTree) -> bool {
    let wanted = tree.items.iter().map(|item| (item.key.as_str(), item.body.len() as u64));
    keys.iter().map(|(key, size)| (key.as_str(), *size)).eq(wanted)
}

fn cut<'j, 't>(jobs: &'j [FileRangeAccess<'t>], most: usize) -> Vec<&'j [FileRangeAccess<'t>]> {
    let mut blocks = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (at, job) in jobs.iter().enumerate() {
        let size = job.item.body.len();
        if at > start && (at - start >= most || bytes + size > BLOCK_BYTES) {
            blocks.push(&jobs[start..at]);
            (start, bytes) = (at, 0);
        }
        bytes += size;
    }
    if start < jobs.len() {
        blocks.push(&jobs[start..]);
    }
    blocks
}

/// Returns the wall time from the start of the first operation to the end of the last, in nanoseconds.
fn elapsed(done: &[TimedFileAccess]) -> u64 {
    let first = done.iter().map(|done| done.start_ns).min().unwrap_or_default();
    let last = done.iter().map(|done| done.end_ns).max().unwrap_or_default();
    last - first
}

fn do_jobs(
    target: &dyn MeasuredTarget,
    phase: ComparePhase,
    jobs: &[FileRangeAccess],
    buffers: &mut [Vec<u8>],
    threads: usize,
    clock: RunClock,
) -> Vec<TimedFileAccess> {
    let work = |thread: usize, jobs: &[FileRangeAccess], buffers: &mut [Vec<u8>]| -> Vec<TimedFileAccess> {
        let pairs = jobs.iter().zip(buffers);
        pairs.map(|(job, buffer)| do_job(target, phase, job, buffer, thread as u16, clock)).collect()
    };
    if threads <= 1 || jobs.len() <= 1 {
        return work(0, jobs, buffers);
    }
    let share = jobs.len().div_ceil(threads);
    std::thread::scope(|scope| {
        let shares = jobs.chunks(share).zip(buffers.chunks_mut(share)).enumerate();
        let workers: Vec<_> = shares
            .map(|(thread, (jobs, buffers))| scope.spawn(move || work(thread, jobs, buffers)))
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap_or_else(|e| std::panic::resume_unwind(e)))
            .collect()
    })
}

fn do_job(
    target: &dyn MeasuredTarget,
    phase: ComparePhase,
    job: &FileRangeAccess,
    buffer: &mut Vec<u8>,
    thread: u16,
    clock: RunClock,
) -> TimedFileAccess {
    let FileRangeAccess { item, offset, len } = *job;
    let key = &item.key;
    let start_ns = clock.now_ns();
    let result = match phase {
        ComparePhase::Put => target.put(key, &item.body).map(|()| VerifiableResponse::Read),
        ComparePhase::List => target.list().map(VerifiableResponse::Keys),
        ComparePhase::Head => target.head(key).map(VerifiableResponse::Size),
        ComparePhase::Get => target.get(key, buffer).map(|()| VerifiableResponse::Read),
        ComparePhase::Range => target.get_range(key, offset, len, buffer).map(|()| VerifiableResponse::Read),
        ComparePhase::Delete => target.delete(key).map(|()| VerifiableResponse::Read),
    };
    TimedFileAccess { start_ns, end_ns: clock.now_ns(), thread, result }
}
