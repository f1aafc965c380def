//! The share of a block that one client performs: its calls, and the verification of their results.
//!
//! The results are verified after the last call, so that the verification does not distort the measurement. A share
//! and its result can be sent to another process.

use std::cmp::Reverse;
use std::ops::Range;

use fordway_measure::{RunClock, own_cpu_ns};
use fordway_store::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::ComparePhase;
use crate::{FileTree, MeasuredTarget};

/// The byte that fills a buffer before a read, so that bytes of an earlier read cannot be mistaken for new bytes.
const POISON: u8 = 0xa5;

/// The tree, the targets, and the other inputs that all clients share.
#[derive(Clone, Copy)]
pub(super) struct SharedInputs<'c> {
    pub tree: &'c FileTree,
    pub targets: &'c [Box<dyn MeasuredTarget>],
    /// The number of threads of each client.
    pub threads: usize,
    /// The clock of all records. Children of this process read the same clock.
    pub clock: RunClock,
}

/// One file of the tree, and the range of the file to read.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct FileRangeAccess {
    /// The index of the file in the tree.
    pub file: usize,
    pub offset: u64,
    pub len: u64,
}

/// The calls of one client in one block.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BlockShare {
    /// The index of the target.
    pub target: usize,
    pub phase: ComparePhase,
    pub jobs: Vec<FileRangeAccess>,
    /// The time of the first call, ns since the start of the run. If that time has passed, the client starts
    /// immediately.
    pub start_ns: u64,
}

/// The results of a share, in the order of its calls.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ShareResult {
    pub accesses: Vec<CheckedAccess>,
    /// The CPU time of the client during the calls.
    pub cpu_ns: u64,
}

/// One call, after the verification of its result.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CheckedAccess {
    pub start_ns: u64,
    pub end_ns: u64,
    /// The thread that made the call, counted over all clients.
    pub thread: u16,
    pub outcome: AccessOutcome,
}

/// Whether a call succeeded.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum AccessOutcome {
    /// The result equals the source.
    Right,
    /// The call succeeded, but its result differs from the source.
    Wrong,
    Failed(AccessError),
}

/// An error in a form that can be sent to another process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AccessError {
    /// The name of the error's kind.
    kind: String,
    text: String,
    /// The error itself; `None` if it occurred in another process.
    #[serde(skip)]
    original: Option<Error>,
}

impl AccessOutcome {
    pub(super) fn is_right(&self) -> bool {
        matches!(self, AccessOutcome::Right)
    }
}

impl AccessError {
    pub(super) fn kind(&self) -> ErrorKind {
        let known = ErrorKind::ALL.iter().find(|kind| kind.name() == self.kind);
        known.copied().unwrap_or(ErrorKind::Internal)
    }
}

impl From<Error> for AccessError {
    fn from(error: Error) -> Self {
        AccessError { kind: error.kind().name().to_owned(), text: error.to_string(), original: Some(error) }
    }
}

impl From<AccessError> for Error {
    fn from(error: AccessError) -> Self {
        let kind = error.kind();
        let of_a_child = || Error::new(kind, format!("a client process reported: {}", error.text));
        error.original.unwrap_or_else(of_a_child)
    }
}

impl ShareResult {
    /// Returns the wall time from the start of the first call to the end of the last, in nanoseconds.
    pub(super) fn elapsed_ns(&self) -> u64 {
        let first = self.accesses.iter().map(|done| done.start_ns).min().unwrap_or_default();
        let last = self.accesses.iter().map(|done| done.end_ns).max().unwrap_or_default();
        last - first
    }
}

/// A client, with the buffers that it reads into.
pub(super) struct ShareWork<'c> {
    inputs: SharedInputs<'c>,
    /// The number of the client, from 0.
    client: usize,
    /// One buffer for each position in a share. The buffers are reused, so that no measured read includes the first
    /// access to new memory.
    buffers: Vec<Vec<u8>>,
}

impl<'c> ShareWork<'c> {
    pub(super) fn new(inputs: SharedInputs<'c>, client: usize) -> Self {
        ShareWork { inputs, client, buffers: Vec::new() }
    }

    pub(super) fn clock(&self) -> RunClock {
        self.inputs.clock
    }

    /// Makes the calls of `share`, and then verifies their results.
    pub(super) fn perform(&mut self, share: &BlockShare) -> ShareResult {
        let sizes = share.jobs.iter().map(|job| match share.phase {
            ComparePhase::Get => self.inputs.tree.items[job.file].body.len(),
            ComparePhase::Range => job.len as usize,
            _ => 0,
        });
        give_out(&mut self.buffers, &sizes.collect::<Vec<_>>());
        let buffers = &mut self.buffers[..share.jobs.len()];
        buffers.iter_mut().for_each(|buffer| buffer.fill(POISON));
        while self.inputs.clock.now_ns() < share.start_ns {
            std::hint::spin_loop();
        }
        let before = own_cpu_ns();
        let done = do_jobs(self.inputs, share, buffers);
        let cpu_ns = own_cpu_ns().saturating_sub(before);
        let checked = done.into_iter().enumerate().map(|(at, done)| CheckedAccess {
            start_ns: done.start_ns,
            end_ns: done.end_ns,
            thread: (self.client * self.inputs.threads.max(1)) as u16 + done.thread,
            outcome: self.check(share.phase, share.jobs[at], at, done.result),
        });
        ShareResult { accesses: checked.collect(), cpu_ns }
    }

    /// Compares the result of a call with the source.
    fn check(
        &self,
        phase: ComparePhase,
        job: FileRangeAccess,
        at: usize,
        result: Result<VerifiableResponse>,
    ) -> AccessOutcome {
        let tree = self.inputs.tree;
        let body = &tree.items[job.file].body;
        let (offset, end) = (job.offset as usize, (job.offset + job.len) as usize);
        let right = match (phase, result) {
            (_, Err(error)) => return AccessOutcome::Failed(error.into()),
            (ComparePhase::Get, Ok(_)) => self.buffers[at] == *body,
            (ComparePhase::Range, Ok(_)) => self.buffers[at] == body[offset..end],
            (_, Ok(VerifiableResponse::Size(size))) => size == body.len() as u64,
            (_, Ok(VerifiableResponse::Keys(keys))) => same_keys(&keys, tree),
            (_, Ok(VerifiableResponse::Read)) => true,
        };
        if right { AccessOutcome::Right } else { AccessOutcome::Wrong }
    }
}

fn same_keys(keys: &[(String, u64)], tree: &FileTree) -> bool {
    let wanted = tree.items.iter().map(|item| (item.key.as_str(), item.body.len() as u64));
    keys.iter().map(|(key, size)| (key.as_str(), *size)).eq(wanted)
}

/// The result of one call.
struct TimedFileAccess {
    start_ns: u64,
    end_ns: u64,
    /// The thread of the client.
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

/// Divides `count` jobs evenly among up to `workers` workers, and returns the jobs of each worker that has any.
pub(super) fn divide(count: usize, workers: usize) -> impl Iterator<Item = Range<usize>> {
    let workers = workers.clamp(1, count.max(1));
    let start = move |worker: usize| worker * (count / workers) + worker.min(count % workers);
    (0..workers).map(move |worker| start(worker)..start(worker + 1))
}

/// Orders `buffers`, so that the largest buffers are at the positions of the largest results. Otherwise, the buffer of
/// every position would grow to the size of the largest file.
fn give_out(buffers: &mut Vec<Vec<u8>>, sizes: &[usize]) {
    buffers.resize_with(buffers.len().max(sizes.len()), Vec::new);
    buffers.sort_by_key(|buffer| Reverse(buffer.capacity()));
    let mut positions: Vec<usize> = (0..sizes.len()).collect();
    positions.sort_by_key(|at| Reverse(sizes[*at]));
    let mut given: Vec<(usize, Vec<u8>)> = positions.into_iter().zip(buffers.drain(..sizes.len())).collect();
    given.sort_by_key(|(at, _)| *at);
    buffers.splice(..0, given.into_iter().map(|(_, buffer)| buffer));
}

fn do_jobs(inputs: SharedInputs, share: &BlockShare, buffers: &mut [Vec<u8>]) -> Vec<TimedFileAccess> {
    let jobs = &share.jobs;
    let work = |thread: usize, jobs: &[FileRangeAccess], buffers: &mut [Vec<u8>]| -> Vec<TimedFileAccess> {
        let pairs = jobs.iter().zip(buffers);
        pairs.map(|(job, buffer)| do_job(inputs, share, *job, buffer, thread as u16)).collect()
    };
    if inputs.threads <= 1 || jobs.len() <= 1 {
        return work(0, jobs, buffers);
    }
    std::thread::scope(|scope| {
        let mut rest = buffers;
        let mut workers = Vec::with_capacity(inputs.threads);
        for (thread, part) in divide(jobs.len(), inputs.threads).enumerate() {
            let buffers = rest.split_off_mut(..part.len()).unwrap_or_default();
            workers.push(scope.spawn(move || work(thread, &jobs[part], buffers)));
        }
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap_or_else(|e| std::panic::resume_unwind(e)))
            .collect()
    })
}

fn do_job(
    inputs: SharedInputs,
    share: &BlockShare,
    job: FileRangeAccess,
    buffer: &mut Vec<u8>,
    thread: u16,
) -> TimedFileAccess {
    let (target, item) = (&inputs.targets[share.target], &inputs.tree.items[job.file]);
    let (key, clock) = (&item.key, inputs.clock);
    let start_ns = clock.now_ns();
    let result = match share.phase {
        ComparePhase::Put => target.put(key, &item.body).map(|()| VerifiableResponse::Read),
        ComparePhase::List => target.list().map(VerifiableResponse::Keys),
        ComparePhase::Head => target.head(key).map(VerifiableResponse::Size),
        ComparePhase::Get => target.get(key, buffer).map(|()| VerifiableResponse::Read),
        ComparePhase::Range => {
            target.get_range(key, job.offset, job.len, buffer).map(|()| VerifiableResponse::Read)
        }
        ComparePhase::Delete => target.delete(key).map(|()| VerifiableResponse::Read),
    };
    TimedFileAccess { start_ns, end_ns: clock.now_ns(), thread, result }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_file_needs_one_buffer_at_any_position() {
        let mut buffers = Vec::new();
        for large in [2, 0, 3, 1] {
            let mut sizes = [100, 10, 10, 10];
            sizes.swap(0, large);
            give_out(&mut buffers, &sizes);
            buffers.iter_mut().zip(sizes).for_each(|(buffer, size)| buffer.resize(size, 0));
        }
        give_out(&mut buffers, &[10, 10]);
        let large = buffers.iter().filter(|buffer| buffer.capacity() >= 100).count();
        assert_eq!((buffers.len(), large), (4, 1));
    }

    #[test]
    fn every_worker_has_a_job_if_there_are_enough() {
        let sizes = |count, workers| divide(count, workers).map(|part| part.len()).collect::<Vec<_>>();
        assert_eq!(sizes(5, 4), [2, 1, 1, 1]);
        assert_eq!(sizes(9, 4), [3, 2, 2, 2]);
        assert_eq!(sizes(64, 4), [16; 4]);
        assert_eq!(sizes(3, 4), [1; 3]);
        assert_eq!(divide(9, 4).last(), Some(7..9));
        assert_eq!(sizes(0, 4), [0]);
    }
}
