//! The job board: the jobs, the streams that carry them out, and the replicas that streams read from. The board uses
//! neither threads nor sockets, and receives the time as an argument. The board also supervises the streams. A slow
//! stream is compared with a stream that reads from another replica, and one of the two is stopped.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind};

use super::job::{JobRanges, PartialJob};
use super::site::ReplicaSite;
use super::stream::RateMeter;

pub(super) type RangeJobId = u64;
pub(super) type ReplicaStreamId = u64;

/// The total size, in bytes, of the jobs that a stream holds until its rate is known.
const HELD_BYTES_FIRST: u64 = 8 << 20;
/// The maximum total size, in bytes, of the jobs that a stream holds.
const HELD_BYTES_MAX: u64 = 32 << 20;
/// The number of consecutive failures, without any bytes delivered in between, after which a replica is excluded.
const STRIKES_MAX: u32 = 3;
/// How long a stalled or slow stream is tolerated before another replica is tried.
#[derive(Clone, Copy, Debug)]
pub(super) struct StallPolicy {
    /// A stream is stalled if no bytes arrive for this long.
    pub(super) stall: Duration,
    /// A stream is replaced if it is slow for this long.
    pub(super) detection: Duration,
    /// A stream is slow if its rate is below this value.
    pub(super) floor_bytes_per_s: f64,
}

/// The result of a job, shared by all callers that wait for it.
pub(super) type RangeJobResult = Result<Arc<Vec<u8>>, SharedError>;

/// An error that can be reported to several callers.
#[derive(Clone, Debug)]
pub(super) struct SharedError {
    pub(super) kind: ErrorKind,
    pub(super) detail: String,
}

impl From<&SharedError> for Error {
    fn from(told: &SharedError) -> Self {
        Error::new(told.kind, told.detail.clone())
    }
}

pub(super) struct RangeJob {
    pub(super) ranges: JobRanges,
    pub(super) bytes: u64,
    holders: Vec<ReplicaStreamId>,
    /// The bytes that earlier streams received.
    partial: Option<PartialJob>,
    pub(super) outcome: Option<RangeJobResult>,
    /// The number of callers that need the job's result.
    pub(super) interest: usize,
}

pub(super) struct ReplicaStream {
    replica: Option<usize>,
    held: Vec<RangeJobId>,
    pub(super) meter: RateMeter,
    /// When the stream began to use its replica.
    since: Instant,
    /// When bytes last arrived, or when the stream began to wait for the first byte.
    moved: Instant,
    /// When the job that is first in `held` became the first.
    front_since: Instant,
    /// Whether the stream has nothing to do.
    is_idle: bool,
    /// The stream with which this stream is compared, if this stream is a hedge.
    hedges: Option<ReplicaStreamId>,
    pub(super) is_leaving: bool,
    rests_until: Option<Instant>,
}

/// The replica that a stream must read from.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReplicaChoice {
    Replica(usize),
    /// No replica is available yet: try again after this time.
    Wait(Duration),
    /// The stream must end: no replica is left, or the stream is not needed.
    End,
}

/// Assigns the jobs of a read to streams, and the streams to replicas. A job reads some of the requested ranges.
pub(super) struct RangeJobScheduler {
    pub(super) jobs: BTreeMap<RangeJobId, RangeJob>,
    queue: BTreeSet<RangeJobId>,
    pub(super) streams: BTreeMap<ReplicaStreamId, ReplicaStream>,
    pub(super) sites: Vec<ReplicaSite>,
    pub(super) is_closing: bool,
    patience: StallPolicy,
    next_id: u64,
    /// The number of bytes for which jobs are expected to be added later.
    pub(super) expected_bytes: u64,
}

impl RangeJobScheduler {
    pub(super) fn new(sites: Vec<ReplicaSite>, patience: StallPolicy) -> Self {
        RangeJobScheduler {
            jobs: BTreeMap::new(),
            queue: BTreeSet::new(),
            streams: BTreeMap::new(),
            sites,
            is_closing: false,
            patience,
            next_id: 0,
            expected_bytes: 0,
        }
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Adds a job whose result one caller needs.
    pub(super) fn add(&mut self, ranges: JobRanges) -> RangeJobId {
        let id = self.id();
        let bytes = ranges.iter().map(|(_, len)| *len as u64).sum();
        let job = RangeJob { ranges, bytes, holders: Vec::new(), partial: None, outcome: None, interest: 1 };
        self.jobs.insert(id, job);
        self.queue.insert(id);
        id
    }

    /// Releases one caller's interest in a job. A job that no caller needs any longer is dropped.
    pub(super) fn release(&mut self, id: RangeJobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.interest = job.interest.saturating_sub(1);
        if job.interest == 0 {
            self.jobs.remove(&id);
            self.queue.remove(&id);
        }
    }

    /// Adds a stream, or a hedge that is compared with another stream.
    pub(super) fn start(&mut self, hedges: Option<ReplicaStreamId>, now: Instant) -> ReplicaStreamId {
        let id = self.id();
        let stream = ReplicaStream {
            replica: None,
            held: Vec::new(),
            meter: RateMeter::default(),
            since: now,
            moved: now,
            front_since: now,
            is_idle: false,
            hedges,
            is_leaving: false,
            rests_until: None,
        };
        self.streams.insert(id, stream);
        id
    }

    /// Returns the number of streams, without hedges and without streams that are about to end.
    pub(super) fn regular_streams(&self) -> usize {
        self.streams.values().filter(|stream| !stream.is_leaving && stream.hedges.is_none()).count()
    }

    /// Returns the replica that a stream reads from next: the best of the replicas with the fewest streams.
    pub(super) fn choose(&mut self, id: ReplicaStreamId, now: Instant) -> ReplicaChoice {
        let is_needed = self.streams.get(&id).is_some_and(|stream| !stream.is_leaving);
        if self.is_closing || !is_needed {
            return ReplicaChoice::End;
        }
        let is_hedge = self.streams[&id].hedges.is_some();
        let best = self.best_site(now, is_hedge);
        let wait = self.sites.iter().filter_map(|site| site.ready_at(STRIKES_MAX)).min();
        match (best, wait) {
            (Some(site), _) => {
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.replica = Some(site);
                    (stream.since, stream.moved, stream.meter) = (now, now, RateMeter::default());
                    stream.is_idle = false;
                }
                ReplicaChoice::Replica(site)
            }
            (None, Some(until)) if !is_hedge => ReplicaChoice::Wait(until.saturating_duration_since(now)),
            _ => ReplicaChoice::End,
        }
    }

    fn best_site(&self, now: Instant, only_unused: bool) -> Option<usize> {
        let used = |site: usize| {
            self.streams.values().filter(|stream| stream.replica == Some(site) && !stream.is_leaving).count()
        };
        let eligible = self.sites.iter().enumerate().filter(|(_, site)| site.is_eligible(now, STRIKES_MAX));
        let ranked = eligible.map(|(index, site)| (used(index), site.rank(now), index));
        ranked.filter(|(used, ..)| !only_unused || *used == 0).min().map(|(.., index)| index)
    }

    /// Returns a job for a stream: the first unclaimed job, or else a job on which another stream is too slow.
    pub(super) fn claim(
        &mut self,
        id: ReplicaStreamId,
        now: Instant,
    ) -> Option<(RangeJobId, JobRanges, Option<PartialJob>)> {
        let held_bytes = self.held_bytes(id);
        let stream = self.streams.get(&id).filter(|stream| !stream.is_leaving)?;
        let rate = stream.meter.bytes_per_s();
        let enough = rate.map_or(HELD_BYTES_FIRST, |rate| (rate as u64).min(HELD_BYTES_MAX));
        if !stream.held.is_empty() && held_bytes >= enough {
            return None;
        }
        let has_work = !stream.held.is_empty();
        let job = match self.queue.first().copied() {
            Some(job) => {
                self.queue.remove(&job);
                job
            }
            None if has_work => return None,
            None => self.job_to_race(id, now)?,
        };
        let stream = self.streams.get_mut(&id)?;
        if stream.held.is_empty() {
            (stream.moved, stream.front_since, stream.is_idle) = (now, now, false);
        }
        stream.held.push(job);
        let job_of = self.jobs.get_mut(&job)?;
        job_of.holders.push(id);
        Some((job, job_of.ranges.clone(), job_of.partial.take()))
    }

    /// Returns the unclaimed job with the lowest offset at or after `at`.
    pub(super) fn claim_ahead(
        &mut self,
        id: ReplicaStreamId,
        at: u64,
        now: Instant,
    ) -> Option<(RangeJobId, JobRanges)> {
        let start = |job: &RangeJobId| self.jobs.get(job)?.ranges.iter().map(|(offset, _)| *offset).min();
        let ahead = self.queue.iter().filter_map(|job| Some((start(job)?, *job)));
        let (_, job) = ahead.filter(|(start, _)| *start >= at).min()?;
        let stream = self.streams.get_mut(&id)?;
        if stream.held.is_empty() {
            stream.front_since = now;
        }
        (stream.moved, stream.is_idle) = (now, false);
        stream.held.push(job);
        self.queue.remove(&job);
        let found = self.jobs.get_mut(&job)?;
        found.holders.push(id);
        found.partial = None;
        Some((job, found.ranges.clone()))
    }

    /// Returns whether a stream should continue reading from its replica.
    pub(super) fn is_serving(&self, id: ReplicaStreamId, site: usize) -> bool {
        let is_wanted = self.streams.get(&id).is_some_and(|stream| !stream.is_leaving);
        !self.is_closing && is_wanted && self.sites.get(site).is_some_and(ReplicaSite::is_open)
    }

    fn held_bytes(&self, id: ReplicaStreamId) -> u64 {
        let held = self.streams.get(&id).map(|stream| stream.held.as_slice()).unwrap_or_default();
        held.iter().filter_map(|job| self.jobs.get(job)).map(|job| job.bytes).sum()
    }

    /// Returns the job that is expected to finish last, if this stream can finish the job sooner than the job's current
    /// stream.
    fn job_to_race(&self, id: ReplicaStreamId, now: Instant) -> Option<RangeJobId> {
        let own_rate = self.rate_of(id, now);
        let mut worst: Option<(f64, RangeJobId)> = None;
        for (other, stream) in self.streams.iter().filter(|(other, _)| **other != id) {
            let mut ahead_bytes = 0;
            for job in &stream.held {
                let Some(found) = self.jobs.get(job) else { continue };
                ahead_bytes += found.bytes;
                if found.outcome.is_some() || found.holders.len() > 1 {
                    continue;
                }
                let is_stuck = now.duration_since(stream.moved) >= self.patience.stall || stream.is_leaving;
                let theirs = match self.rate_of(*other, now) {
                    _ if is_stuck => f64::INFINITY,
                    Some(rate) => ahead_bytes as f64 / rate.max(1.0),
                    None => continue,
                };
                let ours = own_rate.map_or(0.0, |rate| found.bytes as f64 / rate.max(1.0));
                let is_sooner = theirs > 1.5 * ours && theirs > 0.05;
                if is_sooner && worst.is_none_or(|(time, _)| time < theirs) {
                    worst = Some((theirs, *job));
                }
            }
        }
        worst.map(|(_, job)| job)
    }

    /// Returns the stream's rate in bytes per second. If this rate is not known yet, returns the rate last measured for
    /// the stream's server.
    fn rate_of(&self, id: ReplicaStreamId, now: Instant) -> Option<f64> {
        let stream = self.streams.get(&id)?;
        stream.meter.bytes_per_s().or_else(|| self.sites.get(stream.replica?)?.bytes_per_s(now))
    }

    /// Returns whether a job has already been completed, or is no longer needed by any caller.
    pub(super) fn is_over(&self, job: RangeJobId) -> bool {
        self.jobs.get(&job).is_none_or(|job| job.outcome.is_some())
    }

    /// Returns whether jobs are waiting for a stream.
    pub(super) fn has_work(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns the number of jobs that are waiting for a stream.
    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Returns the number of streams that are waiting for jobs.
    pub(super) fn idle_streams(&self) -> usize {
        self.streams.values().filter(|stream| stream.is_idle && !stream.is_leaving).count()
    }

    /// Records how many bytes a stream received in a period of time.
    pub(super) fn progress(&mut self, id: ReplicaStreamId, took: Duration, bytes: u64, now: Instant) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if !stream.held.is_empty() {
            stream.meter.push(took, bytes);
        }
        if bytes > 0 {
            stream.moved = now;
        }
    }

    /// Records that a stream has nothing to do.
    pub(super) fn idle(&mut self, id: ReplicaStreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.is_idle = true;
        }
    }

    /// Records that a stream has completed a job.
    pub(super) fn complete(&mut self, id: ReplicaStreamId, job: RangeJobId, bytes: Vec<u8>, now: Instant) {
        self.let_go(id, job, now);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.moved = now;
            let rate = stream.meter.bytes_per_s();
            if let Some(site) = stream.replica.and_then(|site| self.sites.get_mut(site)) {
                site.served(bytes.len() as u64, rate, now);
            }
        }
        if let Some(found) = self.jobs.get_mut(&job).filter(|job| job.outcome.is_none()) {
            found.outcome = Some(Ok(Arc::new(bytes)));
        }
    }

    /// Takes a job back from a stream, along with the bytes received so far.
    pub(super) fn give_back(
        &mut self,
        id: ReplicaStreamId,
        job: RangeJobId,
        partial: Option<PartialJob>,
        now: Instant,
    ) {
        self.let_go(id, job, now);
        let Some(found) = self.jobs.get_mut(&job).filter(|job| job.outcome.is_none()) else { return };
        if found.partial.is_none() {
            found.partial = partial.filter(PartialJob::is_worth_keeping);
        }
        if found.holders.is_empty() {
            self.queue.insert(job);
        }
    }

    fn let_go(&mut self, id: ReplicaStreamId, job: RangeJobId, now: Instant) {
        if let Some(stream) = self.streams.get_mut(&id) {
            // The removal of a later job does not change how long the first job has waited.
            if stream.held.first() == Some(&job) {
                stream.front_since = now;
            }
            stream.held.retain(|held| *held != job);
        }
        if let Some(found) = self.jobs.get_mut(&job) {
            found.holders.retain(|holder| *holder != id);
        }
    }

    /// Records a permanent or temporary failure of a replica. `has_brought` is true if the replica had already
    /// delivered data to the stream.
    pub(super) fn failed(&mut self, site: usize, error: &Error, has_brought: bool, now: Instant) {
        if let Some(site) = self.sites.get_mut(site) {
            site.failed(error, has_brought, now);
        }
    }

    /// Returns whether a stream has received any bytes from its replica.
    pub(super) fn has_brought(&self, id: ReplicaStreamId) -> bool {
        self.streams.get(&id).is_some_and(|stream| stream.meter.total_bytes > 0)
    }

    /// Removes a stream. If neither a stream nor a usable replica is left, the jobs fail.
    pub(super) fn ended(&mut self, id: ReplicaStreamId, now: Instant) {
        let Some(stream) = self.streams.remove(&id) else { return };
        for job in stream.held {
            self.give_back(id, job, None, now);
        }
        let is_last = self.streams.values().all(|stream| stream.is_leaving);
        if is_last && !self.is_closing && !self.sites.iter().any(|site| site.may_serve(STRIKES_MAX)) {
            self.fail_all();
        }
    }

    fn fail_all(&mut self) {
        let told = super::site::told(&self.sites);
        for job in self.jobs.values_mut().filter(|job| job.outcome.is_none()) {
            job.outcome = Some(Err(told.clone()));
        }
        self.queue.clear();
        // Let a repeated call retry all replicas that may have recovered.
        self.sites.iter_mut().for_each(ReplicaSite::forgive);
    }
}

/// A hedge for a slow stream is worth another connection only if the stream alone would need more time than this for
/// all remaining jobs. Half of this time is enough if the stream's first job has been first for half of this time.
const WORTHWHILE: Duration = Duration::from_secs(1);
/// The time after which a hedge that has received bytes is stopped, if it has not replaced the slow stream by then.
const TRIAL: Duration = Duration::from_secs(3);
/// The number of bytes that a hedge must receive before it can replace a slow stream that is not stalled.
const TRIAL_BYTES: u64 = 256 << 10;
/// How long after a comparison a stream is exempt from further comparisons.
const REST: Duration = Duration::from_secs(15);
/// A hedge replaces a slow stream if the hedge is faster by more than this factor.
const MUCH_SLOWER: f64 = 2.0;
/// A stream is compared with another replica if that replica's known rate is higher by more than this factor.
const SUSPECT: f64 = 4.0;

impl RangeJobScheduler {
    /// Checks the streams. When the comparison of two streams is decided, stops one of them. Returns the stream for
    /// which a hedge must be started, if any.
    pub(super) fn supervise(&mut self, now: Instant) -> Option<ReplicaStreamId> {
        let hedges: Vec<(ReplicaStreamId, ReplicaStreamId)> =
            self.streams.iter().filter_map(|(id, stream)| Some((*id, stream.hedges?))).collect();
        for (hedge, of) in hedges {
            self.judge(hedge, of, now);
        }
        let is_comparing = self.streams.values().any(|stream| stream.hedges.is_some() && !stream.is_leaving);
        if is_comparing || self.best_site(now, true).is_none() {
            return None;
        }
        let suspects = self.streams.iter().filter(|(id, _)| self.is_suspect(**id, now));
        suspects.map(|(id, _)| *id).next()
    }

    fn is_suspect(&self, id: ReplicaStreamId, now: Instant) -> bool {
        let Some(stream) = self.streams.get(&id) else { return false };
        let is_resting = stream.rests_until.is_some_and(|until| now < until);
        if stream.is_leaving || stream.is_idle || is_resting {
            return false;
        }
        if self.is_stalled(stream, now) {
            return true;
        }
        let Some(rate) = stream.meter.bytes_per_s() else { return false };
        let known_of_others = self.sites.iter().enumerate().filter(|(site, _)| Some(*site) != stream.replica);
        let best = known_of_others.filter_map(|(_, site)| site.bytes_per_s(now)).fold(0.0, f64::max);
        let is_slow = rate < self.patience.floor_bytes_per_s || rate * SUSPECT < best;
        let open: u64 = self.jobs.values().filter(|job| job.outcome.is_none()).map(|job| job.bytes).sum();
        let left_s = (open + self.expected_bytes) as f64 / rate.max(1.0);
        let has_waited = now.duration_since(stream.front_since) >= WORTHWHILE / 2;
        is_slow
            && stream.meter.busy >= self.patience.detection
            && (has_waited || left_s > WORTHWHILE.as_secs_f64())
            && left_s > WORTHWHILE.as_secs_f64() / 2.0
    }

    fn is_stalled(&self, stream: &ReplicaStream, now: Instant) -> bool {
        let is_busy = !stream.held.is_empty() || (!stream.is_idle && stream.replica.is_some());
        is_busy && now.duration_since(stream.moved) >= self.patience.stall
    }

    /// Compares a hedge with the slow stream for which the hedge was started. When the comparison is decided, stops one
    /// of the two streams.
    fn judge(&mut self, hedge: ReplicaStreamId, of: ReplicaStreamId, now: Instant) {
        let Some(first) = self.streams.get(&of).filter(|stream| !stream.is_leaving) else {
            // The slow stream has ended or is about to end, so the hedge becomes a regular stream.
            self.streams.get_mut(&hedge).into_iter().for_each(|hedge| hedge.hedges = None);
            return;
        };
        let Some(second) = self.streams.get(&hedge).filter(|stream| !stream.is_leaving) else { return };
        let (brought, age) = (second.meter.total_bytes, now.duration_since(second.since));
        let rates = (first.meter.bytes_per_s().unwrap_or(0.0), second.meter.bytes_per_s());
        let has_overtaken = match rates {
            _ if self.is_stalled(first, now) => brought > 0,
            (ours, Some(theirs)) => brought >= TRIAL_BYTES && theirs > MUCH_SLOWER * ours,
            (_, None) => false,
        };
        let is_over = age >= TRIAL && brought > 0 && !self.is_stalled(first, now);
        if has_overtaken {
            self.leave(of);
            self.streams.get_mut(&hedge).into_iter().for_each(|hedge| hedge.hedges = None);
        } else if is_over {
            self.leave(hedge);
            self.streams.get_mut(&of).into_iter().for_each(|first| first.rests_until = Some(now + REST));
        }
    }

    fn leave(&mut self, id: ReplicaStreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.is_leaving = true;
        let rate = stream.meter.bytes_per_s();
        if let Some(site) = stream.replica.and_then(|site| self.sites.get_mut(site)) {
            tracing::debug!(url = site.shown, ?rate, "leaving a replica that another has overtaken");
            site.left(rate, Instant::now());
        }
    }
}
