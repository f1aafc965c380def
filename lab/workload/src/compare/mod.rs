//! Stores, lists, reads and deletes one tree of files on every target, in interleaved blocks.
//!
//! The files of a round are shuffled and divided into blocks. All targets run each block, one target after the other.
//! The order is random for each block, so that drift on a noisy machine affects all targets alike. The content that a
//! block has read is verified after the block's last clock reading, so that the check does not distort the measurement.

//!
//! [`share`] performs the part of a block that one client works on. A client is this process, or a child of it
//! ([`clients`]). [`cache`] removes content from the page cache before it is read.

mod cache;
mod clients;
mod share;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use fordway_measure::{BlockRecord, OperationRecord, RunClock, RunRecords, SeededRandom};
use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::process_cpu_ns;
use serde::{Deserialize, Serialize};

pub use self::cache::{CacheEviction, check_eviction};

use self::clients::ClientProcess;
use self::share::{
    AccessOutcome, BlockShare, CheckedAccess, FileRangeAccess, ShareResult, ShareWork, SharedInputs,
};
use super::tree;
use crate::{EarlyEnd, FileTree, MeasuredTarget, TreeFile};

/// The number of files per thread in a block, large enough that the time to read the CPU clocks is negligible.
const BLOCK_FILES: usize = 64;
/// The maximum number of bytes per thread in a block, unless the files of a block of one file per thread are larger.
const BLOCK_BYTES: usize = 8 << 20;
/// The number of listings in a round; each listing is a separate block.
const LISTINGS: usize = 3;
/// The number of failures kept as messages; further failures are only counted.
const MESSAGES: usize = 5;

/// The phases, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

    /// Returns whether the phase reads the content of objects.
    const fn reads_content(self) -> bool {
        matches!(self, ComparePhase::Get | ComparePhase::Range)
    }

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
#[derive(Clone, Debug)]
pub struct ComparePlan {
    /// The number of recorded rounds.
    pub rounds: u16,
    /// The number of warm-up rounds, which are not recorded. The warm-up rounds make memory and directories equally
    /// warm in all recorded rounds.
    pub warm_up: u16,
    /// The seed of every random order and every random range.
    pub seed: u64,
    /// The processes that make the calls.
    pub clients: CompareClients,
    /// The number of threads of each client that work on a block concurrently.
    pub threads: usize,
    /// The maximum length of a range read, bytes.
    pub range_bytes: u64,
    /// The directory whose files are removed from the page cache before each phase that reads content; `None` to leave
    /// the page cache unchanged.
    pub cold: Option<PathBuf>,
}

/// The processes that make the calls of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareClients {
    /// The calling process.
    ThisProcess,
    /// This number of children, which the calling process forks before the first round. The calling process only
    /// distributes the work, so its CPU time does not count. A target must be fork-safe, and its objects must be the
    /// same for all processes.
    Children(usize),
}

impl ComparePlan {
    /// Returns the number of calls that are made concurrently.
    pub fn concurrency(&self) -> usize {
        self.threads.max(1) * self.clients.count()
    }
}

impl CompareClients {
    /// Returns the number of processes that make calls.
    pub fn count(self) -> usize {
        match self {
            CompareClients::ThisProcess => 1,
            CompareClients::Children(count) => count.max(1),
        }
    }
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
    /// The result of removing files from the page cache; `None` if nothing was removed.
    pub eviction: Option<CacheEviction>,
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
///
/// Calls `renew` between rounds, which restarts the servers of targets. Otherwise, a server that happens to be fast or
/// slow, for example because of its memory layout, would be so in all rounds, and the intervals would not show this
/// variation.
pub fn run(
    plan: &ComparePlan,
    tree: &FileTree,
    targets: &[Box<dyn MeasuredTarget>],
    stop: &AtomicBool,
    renew: &mut dyn FnMut() -> Result<()>,
    progress: &mut dyn FnMut(CompareProgress),
) -> Result<ComparisonResults> {
    let clock = RunClock::start();
    let inputs = SharedInputs { tree, targets, threads: plan.threads, clock };
    let clients = match plan.clients {
        CompareClients::ThisProcess => Vec::new(),
        CompareClients::Children(count) => {
            (0..count.max(1)).map(|client| ClientProcess::start(inputs, client)).collect::<Result<_>>()?
        }
    };
    let mut comparison = ComparisonState {
        plan,
        targets,
        stop,
        progress,
        random: SeededRandom::new(plan.seed),
        outcome: ComparisonResults::default(),
        own: ShareWork::new(inputs, 0),
        clients,
        blocks: 0,
        done: 0,
        total: 0,
    };
    for round in 0..plan.warm_up + plan.rounds {
        let renewed = if round == 0 { Ok(()) } else { renew().and_then(|()| comparison.connect()) };
        match renewed.and_then(|()| comparison.round(tree, round)) {
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
    random: SeededRandom,
    outcome: ComparisonResults,
    /// The work of this process, which makes the calls if there are no children.
    own: ShareWork<'c>,
    clients: Vec<ClientProcess>,
    blocks: u32,
    done: u64,
    total: u64,
}

impl ComparisonState<'_> {
    /// Makes one call on each thread of each client to every target that has a server, so that no measured call opens
    /// a connection. Errors: the errors of the calls.
    fn connect(&mut self) -> Result<()> {
        let calls = vec![FileRangeAccess { file: 0, offset: 0, len: 0 }; self.plan.concurrency()];
        for lane in 0..self.targets.len() {
            if self.targets[lane].server_pid().is_none() {
                continue;
            }
            for done in self.perform(lane, ComparePhase::List, &calls)?.accesses {
                if let AccessOutcome::Failed(error) = done.outcome {
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// Performs one block. The clients start at the same time.
    fn perform(
        &mut self,
        target: usize,
        phase: ComparePhase,
        jobs: &[FileRangeAccess],
    ) -> Result<ShareResult> {
        match self.clients.is_empty() {
            true => Ok(self.own.perform(&BlockShare { target, phase, jobs: jobs.to_vec(), start_ns: 0 })),
            false => clients::perform(&mut self.clients, (target, phase), jobs, self.own.clock()),
        }
    }

    fn round(&mut self, tree: &FileTree, round: u16) -> Result<()> {
        let mut files: Vec<usize> = (0..tree.items.len()).collect();
        self.random.shuffle(&mut files);
        let jobs: Vec<FileRangeAccess> = files.into_iter().map(|file| self.job(tree, file)).collect();
        self.note_objects(tree, round, &jobs);
        let concurrency = self.plan.concurrency();
        let blocks = cut(tree, &jobs, concurrency);
        let ranged: Vec<FileRangeAccess> = jobs.iter().copied().filter(|job| job.len > 0).collect();
        let range_blocks = cut(tree, &ranged, concurrency);
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
            self.make_cold(phase)?;
            for block in blocks {
                self.block(tree, phase, round, block)?;
            }
        }
        self.expect_nothing_left()
    }

    /// Before a phase that reads content, removes this content from the page cache if the plan requires it.
    fn make_cold(&mut self, phase: ComparePhase) -> Result<()> {
        let Some(dir) = self.plan.cold.as_ref().filter(|_| phase.reads_content()) else { return Ok(()) };
        let evicted = cache::evict(dir, self.stop)?;
        self.outcome.eviction.get_or_insert_default().add(evicted);
        Ok(())
    }

    fn note_objects(&mut self, tree: &FileTree, round: u16, jobs: &[FileRangeAccess]) {
        if let Some(counted) = round.checked_sub(self.plan.warm_up) {
            let items = jobs.iter().map(|job| &tree.items[job.file]);
            let objects = items.map(|item| (item.key.as_str(), item.body.len() as u64));
            self.outcome.records.objects.extend(tree::directory_records(counted, objects));
        }
    }

    fn job(&mut self, tree: &FileTree, file: usize) -> FileRangeAccess {
        let size = tree.items[file].body.len() as u64;
        let len = size.min(self.plan.range_bytes);
        let offset = self.random.below((size - len + 1) as usize) as u64;
        FileRangeAccess { file, offset, len }
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
        let server_cpu = || target.server_pid().and_then(|pid| process_cpu_ns(pid).ok());
        let server_before = server_cpu();
        let done = self.perform(lane, phase, jobs)?;
        // The servers are idle while clients verify content, so the verification does not count as their CPU time.
        let server_after = server_cpu();
        let mut counted = BlockRecord {
            lane: lane as u8,
            phase: phase as u8,
            round: round.saturating_sub(self.plan.warm_up),
            block: self.blocks,
            operations: 0,
            bytes: 0,
            elapsed_ns: done.elapsed_ns(),
            client_cpu_ns: done.cpu_ns,
            server_cpu_ns: server_before
                .zip(server_after)
                .map(|(before, after)| after.saturating_sub(before)),
        };
        for (job, done) in jobs.iter().zip(done.accesses) {
            let operation = self.count(tree, phase, job, done, &counted)?;
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
    /// Returns the record of an operation, and notes a failure.
    fn count(
        &mut self,
        tree: &FileTree,
        phase: ComparePhase,
        job: &FileRangeAccess,
        done: CheckedAccess,
        block: &BlockRecord,
    ) -> Result<OperationRecord> {
        let ok = done.outcome.is_right();
        if !ok {
            self.note_failure(phase, &tree.items[job.file], block.lane, done.outcome)?;
        }
        let bytes = match phase {
            ComparePhase::Put | ComparePhase::Get => tree.items[job.file].body.len() as u64,
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
            bytes: if ok { bytes } else { 0 },
            ok,
            intended_ns: None,
            first_byte_ns: None,
        })
    }

    fn note_failure(
        &mut self,
        phase: ComparePhase,
        item: &TreeFile,
        lane: u8,
        outcome: AccessOutcome,
    ) -> Result<()> {
        let lane = &self.targets[usize::from(lane)].lane().name;
        let message = match outcome {
            AccessOutcome::Failed(error) if ends_the_run(error.kind()) => return Err(error.into()),
            AccessOutcome::Failed(error) => Error::from(error).to_string(),
            AccessOutcome::Right | AccessOutcome::Wrong => format!(
                "{} of {} on lane {lane} returned content that differs from the source",
                phase.name(),
                item.key
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

/// Divides `jobs` into blocks, each of which has work for `concurrency` threads, except the last.
fn cut<'j>(tree: &FileTree, jobs: &'j [FileRangeAccess], concurrency: usize) -> Vec<&'j [FileRangeAccess]> {
    let mut blocks = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (at, job) in jobs.iter().enumerate() {
        let size = tree.items[job.file].body.len();
        let is_full =
            at - start >= BLOCK_FILES * concurrency || bytes + size > BLOCK_BYTES.saturating_mul(concurrency);
        if at - start >= concurrency && is_full {
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
