//! A stream: a thread that takes jobs and reads them from one replica, until the replica fails or another replica is
//! better. A stream's rate is measured while it has work. If a replica does not support ranges, the file is read in one
//! pass, from which the jobs take their bytes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};

use super::ReplicatedFileState;
use super::board::{RangeJobId, ReplicaChoice, ReplicaStreamId};
use super::job::{JobBufferGuard, JobBufferMailbox, JobRanges, PartialJob, overlap};
use crate::vector::{HttpSession, RangeReadTicket, RemoteFile};

/// How often a stream checks whether it is still needed.
pub(super) const TICK: Duration = Duration::from_millis(50);
/// How long a stream without a replica waits before it asks the board for a replica again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Starts the thread of a stream that has been added to the board. If no thread can be created, the stream ends.
pub(super) fn spawn(shared: &Arc<ReplicatedFileState>, id: ReplicaStreamId) {
    let guard = StreamGuard { shared: shared.clone(), id };
    let thread = std::thread::Builder::new().name(format!("replica-{id}"));
    // Signals belong to the program's own threads.
    let started = fordway_sys::with_signals_blocked(|| thread.spawn(move || run(&guard)));
    if let Err(error) = started {
        tracing::warn!(%error, "a stream cannot be started; close files or raise `ulimit -u`");
    }
}

/// Removes the stream from the board when its thread ends, for any reason.
struct StreamGuard {
    shared: Arc<ReplicatedFileState>,
    id: ReplicaStreamId,
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.shared.closed(self.id);
        self.shared.board().ended(self.id, Instant::now());
        self.shared.changed.notify_all();
    }
}

fn run(guard: &StreamGuard) {
    let (shared, id) = (&guard.shared, guard.id);
    let session = shared.session();
    loop {
        let choice = shared.board().choose(id, Instant::now());
        let site = match choice {
            ReplicaChoice::Replica(site) => site,
            ReplicaChoice::Wait(time) => {
                std::thread::sleep(time.min(LOOK_AGAIN));
                continue;
            }
            ReplicaChoice::End => return,
        };
        let served = open(shared, &session, site).and_then(|file| {
            let file = shared.opened(id, file);
            let mut serving =
                StreamWorker { shared, id, site, file, held: VecDeque::new(), last: Instant::now() };
            let served = serving.run();
            serving.give_up();
            shared.closed(id);
            served
        });
        if let Err(error) = served {
            let mut board = shared.board();
            let has_brought = board.has_brought(id);
            board.failed(site, &error, has_brought, Instant::now());
            drop(board);
            shared.changed.notify_all();
        }
    }
}

/// Opens the file at a replica. Errors: the errors of opening the file; `BadDigest` if the replica has a file of
/// another size.
fn open(shared: &ReplicatedFileState, session: &Arc<HttpSession>, site: usize) -> Result<RemoteFile> {
    if let Some(file) = shared.take_spare(site) {
        return Ok(file);
    }
    let url = shared.board().sites[site].url.clone();
    let file = RemoteFile::open(&shared.options.credentials.session(session, &url), &url)?;
    if file.size_bytes() != shared.size_bytes {
        let (found, wanted) = (file.size_bytes(), shared.size_bytes);
        let detail = format!("it has {found} bytes instead of {wanted}: it is a different file");
        return Err(Error::new(ErrorKind::BadDigest, detail));
    }
    Ok(file)
}

/// A job in progress.
struct ActiveRangeJob {
    job: RangeJobId,
    ranges: JobRanges,
    ticket: Option<RangeReadTicket>,
    home: Arc<JobBufferMailbox>,
    wanted_bytes: u64,
    /// The number of bytes already reported to the board.
    told_bytes: u64,
}

/// A stream that reads from a replica.
pub(super) struct StreamWorker<'a> {
    pub(super) shared: &'a Arc<ReplicatedFileState>,
    pub(super) id: ReplicaStreamId,
    pub(super) site: usize,
    pub(super) file: Arc<RemoteFile>,
    held: VecDeque<ActiveRangeJob>,
    /// When progress was last reported.
    last: Instant,
}

impl StreamWorker<'_> {
    /// Carries out jobs until this stream is no longer needed. Errors: the replica's failure.
    fn run(&mut self) -> Result<()> {
        loop {
            if !self.drop_what_is_over() {
                return Ok(());
            }
            let is_swept = self.file.learned().ignores_ranges;
            if is_swept && self.held.is_empty() && self.shared.board().has_work() {
                self.last = Instant::now();
                self.sweep()?;
                continue;
            }
            // Once the server is known to ignore ranges, complete the requests in flight normally, and request no more
            // ranges.
            if !is_swept || self.held.is_empty() {
                self.take_jobs()?;
            }
            let Some(front) = self.held.front() else {
                self.rest();
                continue;
            };
            let has_ended = front
                .ticket
                .as_ref()
                .is_none_or(|ticket| self.file.wait_until(ticket, Instant::now() + TICK));
            self.report();
            if has_ended {
                self.finish_front()?;
            }
        }
    }

    /// Drops jobs that other streams have completed, or that no caller needs. Returns whether the stream continues
    /// reading from this replica.
    fn drop_what_is_over(&mut self) -> bool {
        let mut over = Vec::new();
        {
            let mut board = self.shared.board();
            if !board.is_serving(self.id, self.site) {
                return false;
            }
            let now = Instant::now();
            for index in (0..self.held.len()).rev() {
                if board.is_over(self.held[index].job)
                    && let Some(held) = self.held.remove(index)
                {
                    board.give_back(self.id, held.job, None, now);
                    over.push(held);
                }
            }
        }
        over.into_iter().filter_map(|held| held.ticket).for_each(|ticket| self.file.cancel(ticket));
        true
    }

    fn take_jobs(&mut self) -> Result<()> {
        loop {
            let claimed = self.shared.board().claim(self.id, Instant::now());
            let Some((job, ranges, partial)) = claimed else { return Ok(()) };
            if self.held.is_empty() {
                self.last = Instant::now();
            }
            let (wanted, landing, home) = JobBufferGuard::new(&ranges, partial, self.site);
            let wanted_bytes = wanted.iter().map(|(_, len)| *len as u64).sum();
            self.held.push_back(ActiveRangeJob {
                job,
                ranges,
                ticket: None,
                home,
                wanted_bytes,
                told_bytes: 0,
            });
            let mut ticket = Some(self.file.submit_into(&wanted, Box::new(landing))?);
            self.held.back_mut().into_iter().for_each(|held| held.ticket = ticket.take());
        }
    }

    /// Marks the stream as idle, and waits for at most 1 s until there may be a job for it.
    fn rest(&self) {
        let mut board = self.shared.board();
        board.idle(self.id);
        let is_alone = board.streams.len() == 1;
        if board.has_work() || board.is_closing {
            return;
        }
        // If there are other streams, check at short intervals, because no signal reports that a stream has become too
        // slow with its job.
        let limit = if is_alone { Duration::from_secs(1) } else { TICK };
        drop(self.shared.changed.wait_timeout(board, limit));
    }

    /// Reports the bytes received since the last report.
    fn report(&mut self) {
        let mut bytes = 0;
        for held in &mut self.held {
            // Bytes that arrived, were lost and arrive again are reported once.
            let arrived = held.home.arrived_bytes().max(held.told_bytes);
            bytes += arrived - held.told_bytes;
            held.told_bytes = arrived;
        }
        self.report_bytes(bytes);
    }

    pub(super) fn report_bytes(&mut self, bytes: u64) {
        let now = Instant::now();
        self.shared.board().progress(self.id, now.duration_since(self.last), bytes, now);
        self.last = now;
    }

    /// Waits for the first job, and completes the job if its bytes are valid. Errors: the replica's failure;
    /// `BadDigest`.
    fn finish_front(&mut self) -> Result<()> {
        let Some(mut front) = self.held.pop_front() else { return Ok(()) };
        let ended = front.ticket.take().map_or(Ok(()), |ticket| self.file.wait(ticket).map(drop));
        let partial = front.home.take();
        if let Err(error) = ended {
            // After an invalid response, bytes that have arrived may be from a different position.
            let partial = partial.filter(|_| error.kind() != ErrorKind::BadResponse);
            self.return_job(front.job, &front.ranges, partial);
            return Err(error);
        }
        let unreported = front.wanted_bytes - front.told_bytes;
        self.shared.board().progress(self.id, Duration::ZERO, unreported, Instant::now());
        match partial {
            Some(partial) => self.finish(front.job, &front.ranges, partial),
            None => Ok(()),
        }
    }

    /// Checks a job whose bytes have all arrived. Completes the job if the bytes are valid, and otherwise returns the
    /// job to the board. Errors: `BadDigest`.
    pub(super) fn finish(
        &mut self,
        job: RangeJobId,
        ranges: &JobRanges,
        mut partial: PartialJob,
    ) -> Result<()> {
        let pieces = self.shared.pieces.as_ref();
        let is_bad = pieces.is_some_and(|pieces| partial.reject_bad_pieces(ranges, pieces));
        let (now, mut board) = (Instant::now(), self.shared.board());
        if !is_bad {
            board.complete(self.id, job, partial.bytes, now);
            drop(board);
            self.shared.changed.notify_all();
            return Ok(());
        }
        let is_to_blame = partial.sources == [self.site];
        partial.sources.clear();
        board.give_back(self.id, job, Some(partial), now);
        drop(board);
        self.shared.changed.notify_all();
        // If several replicas contributed to a piece, request the piece again from a single replica.
        if is_to_blame { Err(bad_piece()) } else { Ok(()) }
    }

    /// Returns all jobs to the board, together with the bytes that have arrived.
    fn give_up(&mut self) {
        while let Some(mut held) = self.held.pop_front() {
            if let Some(ticket) = held.ticket.take() {
                self.file.cancel(ticket);
            }
            self.return_job(held.job, &held.ranges, held.home.take());
        }
        self.shared.changed.notify_all();
    }

    pub(super) fn return_job(&self, job: RangeJobId, ranges: &JobRanges, partial: Option<PartialJob>) {
        let partial = partial.filter(|_| !overlap(ranges));
        self.shared.board().give_back(self.id, job, partial, Instant::now());
    }
}

fn bad_piece() -> Error {
    Error::new(ErrorKind::BadDigest, "its bytes do not match the digest in the Metalink")
}

/// A job waiting for the pass over the file to reach its bytes.
struct WaitingJob {
    job: RangeJobId,
    ranges: JobRanges,
    partial: PartialJob,
    /// The end of the job's last range.
    end: u64,
}

impl StreamWorker<'_> {
    /// Reads the file from its beginning, as long as there are jobs that need bytes further ahead. Errors: the
    /// replica's failure.
    pub(super) fn sweep(&mut self) -> Result<()> {
        let (mut waiting, mut at, mut passed, mut is_over) = (None::<WaitingJob>, 0, 0, false);
        let file = self.file.clone();
        let mut swept = file.copy_range(0..file.size_bytes(), &mut |bytes| {
            let end = at + bytes.len() as u64;
            self.report_bytes(bytes.len() as u64);
            loop {
                if waiting.is_none() {
                    waiting = self.next_ahead(passed);
                }
                let Some(job) = waiting.as_mut().filter(|_| self.is_wanted()) else {
                    // The only way to stop a copy is to return an error. This error is not a failure; the code below
                    // ignores it.
                    is_over = true;
                    return Err(Error::from(ErrorKind::Interrupted));
                };
                job.partial.fill(&job.ranges, at, bytes);
                if job.end > end {
                    break;
                }
                passed = job.end;
                if let Some(WaitingJob { job, ranges, partial, .. }) = waiting.take() {
                    self.finish(job, &ranges, partial)?;
                }
            }
            at = end;
            Ok(())
        });
        if is_over {
            swept = Ok(());
        }
        if let Some(left) = waiting {
            self.return_job(left.job, &left.ranges, None);
        }
        swept
    }

    /// Returns the next job that begins at or after `at`. If there is no such job, waits as long as one may still be
    /// added.
    fn next_ahead(&self, at: u64) -> Option<WaitingJob> {
        let mut board = self.shared.board();
        loop {
            if let Some((job, ranges)) = board.claim_ahead(self.id, at, Instant::now()) {
                let end = ranges.iter().map(|(offset, len)| offset + *len as u64).max().unwrap_or(at);
                let mut partial = PartialJob::new(&ranges);
                partial.sources.push(self.site);
                return Some(WaitingJob { job, ranges, partial, end });
            }
            let is_more_coming = board.expected_bytes > 0 && !board.has_work();
            if !is_more_coming || !board.is_serving(self.id, self.site) {
                return None;
            }
            let waited = self.shared.changed.wait_timeout(board, TICK);
            board = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    fn is_wanted(&self) -> bool {
        self.shared.board().is_serving(self.id, self.site)
    }
}

/// The time over which the rate is measured; over a shorter time, the rate depends on buffers instead of the network.
pub(super) const SPAN: Duration = Duration::from_secs(2);
/// The minimum measured time before a rate is known.
const FIRST: Duration = Duration::from_millis(200);

/// The rate over the last [`SPAN`] of time spent waiting for bytes.
#[derive(Debug, Default)]
pub(super) struct RateMeter {
    samples: VecDeque<(Duration, u64)>,
    span: Duration,
    bytes: u64,
    /// The total time spent waiting for bytes.
    pub(super) busy: Duration,
    /// The total number of bytes.
    pub(super) total_bytes: u64,
}

impl RateMeter {
    /// Records that `bytes` arrived in the time `took`.
    pub(super) fn push(&mut self, took: Duration, bytes: u64) {
        self.samples.push_back((took, bytes));
        self.span += took;
        self.busy += took;
        self.bytes += bytes;
        self.total_bytes += bytes;
        while let Some((first, count)) = self.samples.front().copied()
            && self.span - first >= SPAN
        {
            self.samples.pop_front();
            self.span -= first;
            self.bytes -= count;
        }
    }

    /// Returns the rate in bytes per second, once it is known.
    pub(super) fn bytes_per_s(&self) -> Option<f64> {
        (self.span >= FIRST).then(|| self.bytes as f64 / self.span.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_of_the_last_seconds() {
        let mut meter = RateMeter::default();
        meter.push(Duration::from_millis(100), 1_000_000);
        assert_eq!(meter.bytes_per_s(), None);
        meter.push(Duration::from_millis(100), 1_000_000);
        assert_eq!(meter.bytes_per_s(), Some(10_000_000.0));
        (0..100).for_each(|_| meter.push(Duration::from_millis(50), 1_000));
        assert_eq!(meter.bytes_per_s(), Some(20_000.0));
        assert_eq!((meter.busy, meter.total_bytes), (Duration::from_millis(5_200), 2_100_000));
    }
}
