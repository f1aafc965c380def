//! Runs one block of load: starts the threads together, runs each thread's closed or open loop, and reads the counters
//! before and after the load.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

use fordway_measure::{CountersIncomplete, ProcessCounters, RunClock, RunningCounters, TcpConnectionStats};
use fordway_store::{Error, ErrorKind, Result};

use super::{
    ArrivalProcess, ArrivalSchedule, CompletedRequest, LoadRecorder, NetworkTraffic, OperationRecordContext,
    RequestChannel,
};

/// The interval at which progress is reported.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// The load to generate.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// The arrival process, which determines when requests start.
    pub arrivals: ArrivalProcess,
    /// The duration of the block, excluding the warm-up, if `requests` is `None`.
    pub duration: Duration,
    /// The number of requests after which the block ends, regardless of `duration`; `None` if the block ends after
    /// `duration`.
    pub requests: Option<u64>,
    /// The duration of the warm-up before the block. The load of the warm-up is not recorded.
    pub warm_up: Duration,
    /// The number of threads, at least 1. Each thread has its own channel.
    pub threads: usize,
    /// The seed of random arrivals.
    pub seed: u64,
    /// Processors to which the threads are pinned; empty for no pinning.
    pub client_cpus: Vec<usize>,
    /// The server's process. The counters include the process's descendants.
    pub server_pid: Option<u32>,
    /// Whether a record of every request is kept.
    pub keep_operations: bool,
}

/// The position of a block in a run.
#[derive(Clone, Copy, Debug)]
pub struct BlockPosition {
    /// Index into the run's lanes.
    pub lane: u8,
    /// Index into the run's phases.
    pub phase: u8,
    /// The round, from 0.
    pub round: u16,
    /// The number of the block. Blocks on different lanes that are compared with each other have the same number.
    pub block: u32,
}

/// The progress of a block.
#[derive(Clone, Copy, Debug)]
pub struct LoadBlockProgress {
    /// The number of requests that have ended, warm-up excluded.
    pub requests: u64,
    /// Time since the block's start, warm-up excluded.
    pub elapsed: Duration,
}

/// The results of a block.
#[derive(Debug)]
pub struct LoadBlockResult {
    pub(super) place: BlockPosition,
    pub(super) recorder: LoadRecorder,
    /// The time over which throughput is computed.
    pub(super) elapsed_ns: u64,
    pub(super) traffic: NetworkTraffic,
    pub(super) connections: Option<TcpConnectionStats>,
    pub(super) client: Result<ProcessCounters, CountersIncomplete>,
    /// The CPU time of the threads that generate the load. Threads that open connections are not among them.
    pub(super) load_cpu_ns: u64,
    /// The counters of the server; `None` if the plan has no server process.
    pub(super) server: Option<Result<ProcessCounters, CountersIncomplete>>,
}

impl LoadBlockResult {
    /// Returns the numbers of requests that succeeded and that failed.
    pub fn counts(&self) -> (u64, u64) {
        (self.recorder.latency.len(), self.recorder.failed())
    }
}

/// The results of one thread.
struct ThreadResult {
    recorder: LoadRecorder,
    traffic: NetworkTraffic,
    connections: Option<TcpConnectionStats>,
    cpu_ns: u64,
    ended: Instant,
}

enum LoadThreadMessage {
    Connected(Result<()>),
    Done(Result<ThreadResult>),
}

/// State shared by the threads of a block.
struct SharedBlockState<'a> {
    plan: &'a LoadPlan,
    place: BlockPosition,
    clock: RunClock,
    stop: &'a AtomicBool,
    /// A barrier for all load threads and the watching thread.
    barrier: Barrier,
    start: OnceLock<Instant>,
    /// Whether all threads have a connection.
    go: AtomicBool,
    budget: Option<AtomicU64>,
    done: AtomicU64,
}

/// Generates the load of `plan`: connects, warms up, then measures. Each thread calls `connect` once, with its
/// number. Errors: the first error of `connect`; `InvalidArgument` for processors that do not exist.
pub fn run_block(
    plan: &LoadPlan,
    place: BlockPosition,
    clock: RunClock,
    connect: &(dyn Fn(usize) -> Result<Box<dyn RequestChannel>> + Sync),
    stop: &AtomicBool,
    progress: &mut dyn FnMut(LoadBlockProgress),
) -> Result<LoadBlockResult> {
    let shared = SharedBlockState {
        plan,
        place,
        clock,
        stop,
        barrier: Barrier::new(plan.threads + 1),
        start: OnceLock::new(),
        go: AtomicBool::new(true),
        budget: plan.requests.map(AtomicU64::new),
        done: AtomicU64::new(0),
    };
    std::thread::scope(|scope| {
        let (sender, receiver) = channel();
        for thread in 0..plan.threads {
            let (sender, shared) = (sender.clone(), &shared);
            scope.spawn(move || shared.run_thread(thread, connect, &sender));
        }
        shared.watch(&receiver, progress)
    })
}

/// Converts a panic (a bug) into an error. Otherwise, all other threads would wait forever for the panicking thread.
fn without_panic<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "a load thread panicked")))
}

impl SharedBlockState<'_> {
    fn run_thread(
        &self,
        thread: usize,
        connect: &(dyn Fn(usize) -> Result<Box<dyn RequestChannel>> + Sync),
        sender: &Sender<LoadThreadMessage>,
    ) {
        // Sending cannot fail: the watching thread receives until all threads have reported.
        let tell = |message| drop(sender.send(message));
        match self.pin().and_then(|()| without_panic(|| connect(thread))) {
            Ok(mut channel) => {
                tell(LoadThreadMessage::Connected(Ok(())));
                self.barrier.wait();
                if self.go.load(Ordering::Relaxed) {
                    tell(LoadThreadMessage::Done(self.load(thread, &mut *channel)));
                }
            }
            Err(error) => {
                tell(LoadThreadMessage::Connected(Err(error)));
                self.barrier.wait();
            }
        }
    }

    fn pin(&self) -> Result<()> {
        if !self.plan.client_cpus.is_empty() {
            fordway_sys::pin_thread(&self.plan.client_cpus).map_err(|errno| {
                let cpus = &self.plan.client_cpus;
                let detail =
                    format!("threads cannot be bound to processors {cpus:?}; name existing processors");
                Error::new(ErrorKind::InvalidArgument, detail).caused_by(std::io::Error::from(errno))
            })?;
        }
        // Without precise timers, waits are up to 50 µs longer, which is reported as lateness.
        if let Err(errno) = fordway_sys::precise_timers() {
            tracing::debug!(%errno, "timers are not precise");
        }
        Ok(())
    }

    fn load(&self, thread: usize, channel: &mut dyn RequestChannel) -> Result<ThreadResult> {
        let warmed = without_panic(|| self.warm_up(thread, channel));
        // The thread waits even after a failed warm-up, because all other threads wait at this barrier.
        self.barrier.wait();
        self.barrier.wait();
        warmed?;
        let start = *self.start.get_or_init(Instant::now);
        let place = self.place;
        let keep = self.plan.keep_operations.then_some(OperationRecordContext {
            clock: self.clock,
            lane: place.lane,
            phase: place.phase,
            round: place.round,
            block: place.block,
            thread: thread as u16,
        });
        let (before, cpu_before_ns) = (channel.traffic(), fordway_sys::thread_cpu_ns());
        let end = Some(start + self.plan.duration).filter(|_| self.plan.requests.is_none());
        let mut recorder = LoadRecorder::default();
        let bounds = (end, self.budget.as_ref(), keep);
        without_panic(|| self.drive(thread, channel, start, bounds, &mut recorder))?;
        let (ended, cpu_ns) = (Instant::now(), fordway_sys::thread_cpu_ns() - cpu_before_ns);
        let traffic = channel.traffic().since(before);
        Ok(ThreadResult { recorder, traffic, connections: channel.connections(), cpu_ns, ended })
    }

    fn warm_up(&self, thread: usize, channel: &mut dyn RequestChannel) -> Result<()> {
        if self.plan.warm_up.is_zero() {
            return Ok(());
        }
        let start = Instant::now();
        let end = Some(start + self.plan.warm_up);
        self.drive(thread, channel, start, (end, None, None), &mut LoadRecorder::default())
    }

    fn drive(
        &self,
        thread: usize,
        channel: &mut dyn RequestChannel,
        start: Instant,
        (end, budget, keep): (Option<Instant>, Option<&AtomicU64>, Option<OperationRecordContext>),
        recorder: &mut LoadRecorder,
    ) -> Result<()> {
        let halves = self.halves(start, end);
        let stretch = LoadPeriod { start, end, halves, budget, stop: self.stop, done: &self.done, keep };
        match ArrivalSchedule::new(self.plan.arrivals, thread, self.plan.threads, self.plan.seed) {
            None => closed(channel, &stretch, recorder),
            Some(schedule) => open(channel, schedule, &stretch, recorder),
        }
    }

    /// Returns the middle and the end of the time in which requests of an open loop are due; `None` in the closed loop.
    fn halves(&self, start: Instant, end: Option<Instant>) -> Option<[Instant; 2]> {
        let rate = self.plan.arrivals.rate()?;
        let whole = match end {
            Some(end) => end.duration_since(start),
            None => Duration::try_from_secs_f64(self.plan.requests? as f64 / rate).ok()?,
        };
        Some([start.checked_add(whole / 2)?, start.checked_add(whole)?])
    }

    /// Reads the counters before and after the load, and reports progress in between.
    fn watch(
        &self,
        messages: &Receiver<LoadThreadMessage>,
        progress: &mut dyn FnMut(LoadBlockProgress),
    ) -> Result<LoadBlockResult> {
        let connected = (0..self.plan.threads).map(|_| match messages.recv() {
            Ok(LoadThreadMessage::Connected(connected)) => connected,
            _ => Err(ErrorKind::Internal.into()),
        });
        // Receive the message of every thread before returning the first error.
        let connected = connected.collect::<Vec<_>>().into_iter().collect::<Result<()>>();
        self.go.store(connected.is_ok(), Ordering::Relaxed);
        self.barrier.wait();
        connected?;
        self.barrier.wait();
        // All threads wait at the barrier, so no request ends now.
        let warm_up = self.done.load(Ordering::Relaxed);
        let server = self.plan.server_pid.map(RunningCounters::start);
        let client = RunningCounters::start_own();
        let start = *self.start.get_or_init(Instant::now);
        self.barrier.wait();
        let parts = self.parts(messages, (start, warm_up), progress);
        let run_ns = start.elapsed().as_nanos() as u64;
        let client = client.and_then(|counters| counters.stop(run_ns));
        let server = server.map(|counters| counters.and_then(|counters| counters.stop(run_ns)));
        Ok(self.joined(parts?, start, client, server))
    }

    fn parts(
        &self,
        messages: &Receiver<LoadThreadMessage>,
        (start, warm_up): (Instant, u64),
        progress: &mut dyn FnMut(LoadBlockProgress),
    ) -> Result<Vec<ThreadResult>> {
        let mut parts = Vec::new();
        while parts.len() < self.plan.threads {
            match messages.recv_timeout(TELL_EVERY) {
                Ok(LoadThreadMessage::Done(part)) => parts.push(part),
                Ok(LoadThreadMessage::Connected(_)) => {}
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    progress(LoadBlockProgress {
                        requests: self.done.load(Ordering::Relaxed) - warm_up,
                        elapsed: start.elapsed(),
                    });
                }
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(ErrorKind::Internal.into());
                }
            }
        }
        parts.into_iter().collect()
    }

    fn joined(
        &self,
        parts: Vec<ThreadResult>,
        start: Instant,
        client: Result<ProcessCounters, CountersIncomplete>,
        server: Option<Result<ProcessCounters, CountersIncomplete>>,
    ) -> LoadBlockResult {
        let stopped = self.stop.load(Ordering::Relaxed) || self.plan.requests.is_some();
        let ended = parts.iter().map(|part| part.ended).max().unwrap_or(start);
        let elapsed = if stopped { ended.duration_since(start) } else { self.plan.duration };
        let mut block = LoadBlockResult {
            place: self.place,
            recorder: LoadRecorder::default(),
            elapsed_ns: elapsed.as_nanos() as u64,
            traffic: NetworkTraffic::default(),
            connections: None,
            client,
            load_cpu_ns: 0,
            server,
        };
        for part in parts {
            block.load_cpu_ns += part.cpu_ns;
            block.recorder.add(part.recorder);
            block.traffic += part.traffic;
            block.connections = both(block.connections, part.connections);
        }
        block
    }
}

/// Merges the statistics of two threads' connections. The merged median is inexact: it is the larger of the two
/// medians.
fn both(a: Option<TcpConnectionStats>, b: Option<TcpConnectionStats>) -> Option<TcpConnectionStats> {
    let (Some(a), Some(b)) = (a, b) else { return a.or(b) };
    Some(TcpConnectionStats {
        count: a.count + b.count,
        rtt_us: a.rtt_us.max(b.rtt_us),
        rtt_max_us: a.rtt_max_us.max(b.rtt_max_us),
        retransmits: a.retransmits + b.retransmits,
        mss_bytes: a.mss_bytes.min(b.mss_bytes),
    })
}

/// The longest wait before the stop flag is checked.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A period of load: its start and end, the requests that may still start, and the requests that have ended.
pub(super) struct LoadPeriod<'a> {
    pub(super) start: Instant,
    /// The time after which no request starts; `None` for no limit.
    pub(super) end: Option<Instant>,
    /// The middle and the end of the time in which requests are due; `None` in the closed loop.
    pub(super) halves: Option<[Instant; 2]>,
    /// The number of requests that all threads together may still start; `None` for no limit.
    pub(super) budget: Option<&'a AtomicU64>,
    pub(super) stop: &'a AtomicBool,
    /// The number of requests that have ended, on all threads.
    pub(super) done: &'a AtomicU64,
    pub(super) keep: Option<OperationRecordContext>,
}

impl LoadPeriod<'_> {
    fn is_over(&self, now: Instant) -> bool {
        self.end.is_some_and(|end| now >= end) || self.stop.load(Ordering::Relaxed)
    }

    /// Takes one request from the budget. Returns false if the budget is exhausted, and true if there is no limit.
    fn may_start(&self) -> bool {
        let Some(budget) = self.budget else { return true };
        budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    fn count(&self, answers: usize) {
        self.done.fetch_add(answers as u64, Ordering::Relaxed);
    }
}

/// Keeps one request in flight on every slot until the period ends, then waits for the last responses.
pub(super) fn closed(
    channel: &mut dyn RequestChannel,
    stretch: &LoadPeriod,
    recorder: &mut LoadRecorder,
) -> Result<()> {
    let mut answers: Vec<CompletedRequest> = Vec::with_capacity(channel.slots());
    let mut in_flight = 0;
    for slot in 0..channel.slots() {
        if stretch.may_start() {
            channel.start(slot);
            in_flight += 1;
        }
    }
    while in_flight > 0 {
        channel.wait(LOOK_EVERY, &mut answers)?;
        stretch.count(answers.len());
        for answer in answers.drain(..) {
            if !stretch.is_over(answer.ended) && stretch.may_start() {
                channel.start(answer.slot);
            } else {
                in_flight -= 1;
            }
            recorder.answer(answer, None, stretch.end, stretch.keep);
        }
    }
    Ok(())
}

/// Starts each request when it is due. If no slot is free at that time, starts the request as soon as a slot is free.
/// Requests that were due within the period but did not start are counted as skipped. Arrivals are not stored in a
/// queue, because the queue would exhaust the memory at a rate far beyond the server's capacity.
pub(super) fn open(
    channel: &mut dyn RequestChannel,
    mut schedule: ArrivalSchedule,
    stretch: &LoadPeriod,
    recorder: &mut LoadRecorder,
) -> Result<()> {
    let slots = channel.slots();
    let mut answers: Vec<CompletedRequest> = Vec::with_capacity(slots);
    let mut intended = vec![stretch.start; slots];
    let mut idle: VecDeque<usize> = (0..slots).collect();
    let mut has_more = true;
    let mut stopped_at = None;
    loop {
        let now = Instant::now();
        if stretch.stop.load(Ordering::Relaxed) {
            stopped_at.get_or_insert(now);
        }
        has_more = has_more && !stretch.is_over(now);
        while let Some(due) = stretch.next(&schedule).filter(|due| has_more && *due <= now) {
            let Some(slot) = idle.pop_front() else { break };
            if !stretch.may_start() {
                has_more = false;
                idle.push_front(slot);
                break;
            }
            // Latency is measured from the time at which the request was due, not from the time at which a slot became
            // free. Otherwise, a stalled server would delay the start of requests, and this delay would not be
            // measured.
            intended[slot] = due;
            schedule.advance();
            channel.start(slot);
        }
        has_more = has_more && stretch.next(&schedule).is_some();
        if !has_more && idle.len() == slots {
            recorder.skipped += stretch.skipped(schedule, stopped_at);
            return Ok(());
        }
        // Without an idle slot, no request can start even if one is due, so wait for a response first.
        let limit = if has_more && !idle.is_empty() { stretch.until(&schedule) } else { LOOK_EVERY };
        channel.wait(limit, &mut answers)?;
        stretch.count(answers.len());
        for answer in answers.drain(..) {
            let slot = answer.slot;
            idle.push_back(slot);
            if let Some(halves) = stretch.halves {
                recorder.backlog.answer(intended[slot], answer.ended, halves);
            }
            recorder.answer(answer, Some(intended[slot]), stretch.end, stretch.keep);
        }
    }
}

/// Methods for the open loop.
impl LoadPeriod<'_> {
    /// Returns the time of the next arrival, if it is within the period.
    fn next(&self, schedule: &ArrivalSchedule) -> Option<Instant> {
        let next = self.start + Duration::from_nanos(schedule.peek_ns());
        self.end.is_none_or(|end| next < end).then_some(next)
    }

    /// Returns the time until the next arrival, but at most [`LOOK_EVERY`].
    fn until(&self, schedule: &ArrivalSchedule) -> Duration {
        let next = self.next(schedule).map(|next| next.saturating_duration_since(Instant::now()));
        next.unwrap_or(LOOK_EVERY).min(LOOK_EVERY)
    }

    /// Returns the number of arrivals that were due within the period and are still in `schedule`, excluding arrivals
    /// after a stop. Returns 0 if the block ends after a given number of requests instead of at a given time.
    fn skipped(&self, mut schedule: ArrivalSchedule, stopped_at: Option<Instant>) -> u64 {
        let Some(end) = self.end else { return 0 };
        // The last responses may arrive long after a stop, so the current time is not the time of the stop.
        let end = end.min(stopped_at.unwrap_or_else(Instant::now));
        let end_ns = end.saturating_duration_since(self.start).as_nanos() as u64;
        let mut skipped = 0;
        while schedule.peek_ns() < end_ns {
            schedule.advance();
            skipped += 1;
        }
        skipped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that responds to every request after [`SlowChannel::DELAY`], and a signal that arrives before the first
    /// response.
    struct SlowChannel<'a> {
        started: Vec<Option<Instant>>,
        stop: &'a AtomicBool,
    }

    impl SlowChannel<'_> {
        const DELAY: Duration = Duration::from_millis(600);
    }

    impl RequestChannel for SlowChannel<'_> {
        fn slots(&self) -> usize {
            self.started.len()
        }

        fn start(&mut self, slot: usize) {
            self.started[slot] = Some(Instant::now());
        }

        fn wait(&mut self, limit: Duration, answers: &mut Vec<CompletedRequest>) -> Result<()> {
            std::thread::sleep(limit.min(Duration::from_millis(10)));
            self.stop.store(true, Ordering::Relaxed);
            let ended = Instant::now();
            for (slot, request) in self.started.iter_mut().enumerate() {
                if let Some(started) = request.take_if(|started| ended.duration_since(*started) > Self::DELAY)
                {
                    let (body_bytes, retries) = (0, 0);
                    let first_byte = Some(ended);
                    answers.push(CompletedRequest {
                        slot,
                        started,
                        first_byte,
                        ended,
                        body_bytes,
                        retries,
                        failure: None,
                    });
                }
            }
            Ok(())
        }

        fn traffic(&self) -> NetworkTraffic {
            NetworkTraffic::default()
        }

        fn connections(&self) -> Option<TcpConnectionStats> {
            None
        }
    }

    #[test]
    fn arrivals_after_a_stop_are_not_missed() {
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        let mut channel = SlowChannel { started: vec![None; 100], stop: &stop };
        let schedule = ArrivalSchedule::new(ArrivalProcess::Fixed(1e3), 0, 1, 1).unwrap();
        let start = Instant::now();
        let end = Some(start + Duration::from_secs(60));
        let stretch =
            LoadPeriod { start, end, halves: None, budget: None, stop: &stop, done: &done, keep: None };
        let mut recorder = LoadRecorder::default();
        open(&mut channel, schedule, &stretch, &mut recorder).unwrap();
        assert!(!recorder.latency.is_empty() && start.elapsed() > SlowChannel::DELAY);
        // In the time until the last response, there are 600 arrivals.
        assert!(recorder.skipped < 300, "{}", recorder.skipped);
    }
}
