//! Load on a server: the intended starts of requests, and the records that each thread keeps. A [`RequestChannel`],
//! one for each thread, sends the requests.
//!
//! In the closed loop, each slot sends its next request when the last response has arrived. A server that stalls
//! therefore receives fewer requests, and the stalls barely affect the measured latencies. In the open loop, requests
//! have intended starts that do not depend on responses, and latency is measured from the intended starts.

mod block;
mod summary;

pub use block::{BlockPosition, LoadBlockProgress, LoadBlockResult, LoadPlan, run_block};
pub use fordway_measure::NetworkTraffic;
pub use summary::{LaneBlocks, SummaryRowLoadSettings, late_requests, records, summarise, warnings};

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fordway_measure::{LatencyHistogram, OperationRecord, RunClock, SeededRandom, TcpConnectionStats};
use fordway_store::Result;

/// One thread's connections to the server, and its requests in flight, each in its own slot.
pub trait RequestChannel {
    /// Returns the number of requests that can be in flight at once, at least 1.
    fn slots(&self) -> usize;

    /// Sends the next request on `slot`, on which no request is in flight.
    fn start(&mut self, slot: usize);

    /// Waits until a request has ended, or for `limit`, and appends all requests that have ended to `answers`. Every
    /// started request ends eventually. Errors: only errors that are not specific to a single request.
    fn wait(&mut self, limit: Duration, answers: &mut Vec<CompletedRequest>) -> Result<()>;

    /// Returns the traffic on the channel's connections so far.
    fn traffic(&self) -> NetworkTraffic;

    /// Returns the kernel's statistics of the connections; `None` if the connections do not use TCP.
    fn connections(&self) -> Option<TcpConnectionStats>;
}

/// A request that has ended.
#[derive(Debug)]
pub struct CompletedRequest {
    /// The slot on which the request was started.
    pub slot: usize,
    /// The time at which the request was sent.
    pub started: Instant,
    /// The time at which the first byte of the response arrived; `None` if nothing was received.
    pub first_byte: Option<Instant>,
    /// The time at which the response was complete, or the request failed.
    pub ended: Instant,
    /// Body bytes transferred.
    pub body_bytes: u64,
    /// The number of retries before the request ended.
    pub retries: u32,
    /// The reason why the request failed; `None` if the request succeeded.
    pub failure: Option<LoadFailure>,
}

/// The reason why a request failed.
#[derive(Debug)]
pub struct LoadFailure {
    /// The kind under which the failure is counted.
    pub kind: Cow<'static, str>,
    /// A sentence that explains the failure.
    pub detail: String,
}

/// The event that starts a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ArrivalProcess {
    /// The response to the previous request.
    Closed,
    /// A clock that ticks at equal intervals. The value is the request rate across all threads, in requests per second.
    Fixed(f64),
    /// A Poisson process: exponentially distributed intervals, as with many independent users. The value is the mean
    /// request rate across all threads, in requests per second.
    Poisson(f64),
}

impl ArrivalProcess {
    /// Returns the name of the arrival process in run files.
    pub const fn name(self) -> &'static str {
        match self {
            ArrivalProcess::Closed => "closed",
            ArrivalProcess::Fixed(_) => "fixed",
            ArrivalProcess::Poisson(_) => "poisson",
        }
    }

    /// Returns the request rate across all threads, in requests per second; `None` in the closed loop.
    pub const fn rate(self) -> Option<f64> {
        match self {
            ArrivalProcess::Closed => None,
            ArrivalProcess::Fixed(rate) | ArrivalProcess::Poisson(rate) => Some(rate),
        }
    }
}

/// An endless series of one thread's intended starts, in ns from the start of the period of load.
struct ArrivalSchedule {
    arrivals: ArrivalProcess,
    interval_ns: f64,
    next_ns: f64,
    random: SeededRandom,
}

impl ArrivalSchedule {
    /// Creates the schedule of one thread; `None` in the closed loop. At a fixed rate, the threads take turns; with
    /// Poisson arrivals, each thread has its own Poisson process.
    fn new(arrivals: ArrivalProcess, thread: usize, threads: usize, seed: u64) -> Option<Self> {
        let interval_ns = 1e9 / arrivals.rate()? * threads as f64;
        let random = SeededRandom::new(seed.wrapping_mul(1 << 16).wrapping_add(thread as u64));
        let mut schedule = ArrivalSchedule { arrivals, interval_ns, next_ns: 0.0, random };
        schedule.next_ns = match arrivals {
            ArrivalProcess::Poisson(_) => schedule.gap_ns(),
            _ => interval_ns * thread as f64 / threads as f64,
        };
        Some(schedule)
    }

    /// Returns the next intended start.
    fn peek_ns(&self) -> u64 {
        self.next_ns as u64
    }

    /// Advances to the next start.
    fn advance(&mut self) {
        self.next_ns += self.gap_ns();
    }

    fn gap_ns(&mut self) -> f64 {
        match self.arrivals {
            ArrivalProcess::Poisson(_) => {
                // The random number must be in (0, 1], because the logarithm of 0 is undefined.
                let uniform = ((self.random.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
                -uniform.ln() * self.interval_ns
            }
            _ => self.interval_ns,
        }
    }
}

/// Counters and distributions of one thread; [`LoadRecorder::add`] merges the recorders of several threads and blocks.
#[derive(Clone, Debug, Default)]
struct LoadRecorder {
    latency: LatencyHistogram,
    first_byte: LatencyHistogram,
    /// The delays from the intended starts of requests to their actual starts; empty in the closed loop.
    lateness: LatencyHistogram,
    /// Failures by kind, each with a count and one description.
    failures: BTreeMap<String, (u64, String)>,
    body_bytes: u64,
    /// The number of successful requests that ended within the period of load.
    in_time: u64,
    in_time_bytes: u64,
    skipped: u64,
    backlog: RequestBacklog,
    retries: u64,
    operations: Vec<OperationRecord>,
}

/// The requests of an open loop that were due but had not ended. If the server keeps up with the rate, the number of
/// these requests is about the same at any time, regardless of how long a request takes. Otherwise, the number grows.
#[derive(Clone, Copy, Debug, Default)]
struct RequestBacklog {
    at_middle: u64,
    at_end: u64,
    /// The number of requests that were due in the second half of the period.
    due_late: u64,
}

impl RequestBacklog {
    fn answer(&mut self, due: Instant, ended: Instant, [middle, end]: [Instant; 2]) {
        self.at_middle += u64::from(due < middle && ended > middle);
        self.at_end += u64::from(due < end && ended > end);
        self.due_late += u64::from((middle..end).contains(&due));
    }

    fn add(&mut self, other: RequestBacklog) {
        self.at_middle += other.at_middle;
        self.at_end += other.at_end;
        self.due_late += other.due_late;
    }

    /// Returns whether the backlog grew, in the second half of the period, by more than `share` of the requests that
    /// were due in that half. Random variation of a backlog that does not grow does not count: it is below three
    /// standard deviations of the difference between two independent Poisson counts.
    fn grew(&self, share: f64) -> bool {
        let growth = self.at_end as f64 - self.at_middle as f64;
        let random = 3.0 * (2.0 * self.at_middle.max(1) as f64).sqrt();
        growth > random.max(share * self.due_late as f64)
    }
}

/// The clock and indices for recording operations.
#[derive(Clone, Copy)]
struct OperationRecordContext {
    clock: RunClock,
    lane: u8,
    phase: u8,
    round: u16,
    block: u32,
    thread: u16,
}

impl LoadRecorder {
    /// Records the response to a request. `intended` is the request's intended start; `None` if the intended start
    /// equals the time at which the request was sent.
    fn answer(
        &mut self,
        answer: CompletedRequest,
        intended: Option<Instant>,
        end: Option<Instant>,
        keep: Option<OperationRecordContext>,
    ) {
        let due = intended.unwrap_or(answer.started);
        self.retries += u64::from(answer.retries);
        if let Some(keep) = keep {
            self.operations.push(keep.operation(&answer, intended));
        }
        if let Some(failure) = answer.failure {
            let kind = self.failures.entry(failure.kind.into_owned()).or_insert((0, failure.detail));
            kind.0 += 1;
            return;
        }
        self.latency.record(ns(answer.ended, due));
        self.body_bytes += answer.body_bytes;
        if let Some(first_byte) = answer.first_byte {
            self.first_byte.record(ns(first_byte, due));
        }
        if intended.is_some() {
            self.lateness.record(ns(answer.started, due));
        }
        if end.is_none_or(|end| answer.ended <= end) {
            self.in_time += 1;
            self.in_time_bytes += answer.body_bytes;
        }
    }

    fn failed(&self) -> u64 {
        self.failures.values().map(|(count, _)| count).sum()
    }

    fn add(&mut self, other: LoadRecorder) {
        self.latency.add(&other.latency);
        self.first_byte.add(&other.first_byte);
        self.lateness.add(&other.lateness);
        for (kind, (count, detail)) in other.failures {
            self.failures.entry(kind).or_insert((0, detail)).0 += count;
        }
        self.body_bytes += other.body_bytes;
        self.in_time += other.in_time;
        self.in_time_bytes += other.in_time_bytes;
        self.skipped += other.skipped;
        self.backlog.add(other.backlog);
        self.retries += other.retries;
        self.operations.extend(other.operations);
    }
}

impl OperationRecordContext {
    fn operation(&self, answer: &CompletedRequest, intended: Option<Instant>) -> OperationRecord {
        OperationRecord {
            lane: self.lane,
            phase: self.phase,
            round: self.round,
            block: self.block,
            thread: self.thread,
            start_ns: self.clock.at_ns(answer.started),
            duration_ns: ns(answer.ended, answer.started),
            bytes: answer.body_bytes,
            ok: answer.failure.is_none(),
            intended_ns: intended.map(|intended| self.clock.at_ns(intended)),
            first_byte_ns: answer.first_byte.map(|first_byte| ns(first_byte, answer.started)),
        }
    }
}

fn ns(later: Instant, earlier: Instant) -> u64 {
    let between: Duration = later.saturating_duration_since(earlier);
    u64::try_from(between.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(arrivals: ArrivalProcess, thread: usize, threads: usize, seed: u64, count: usize) -> Vec<u64> {
        let mut schedule = ArrivalSchedule::new(arrivals, thread, threads, seed).unwrap();
        let mut next = || {
            let next = schedule.peek_ns();
            schedule.advance();
            next
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn a_backlog_grows_only_if_the_rate_exceeds_the_capacity() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let halves = [at(1_000), at(2_000)];
        // 200 requests/s for 2 s, each of which takes 200 ms; 10 % of them end after the period.
        let mut steady = RequestBacklog::default();
        (0..400).for_each(|number| steady.answer(at(5 * number), at(5 * number + 200), halves));
        assert!(steady.at_end == 39 && !steady.grew(0.02), "{steady:?}");
        // The server responds to only 190 of 200 requests/s, or to only 50.
        for (each_us, is_clear) in [(5_263, false), (20_000, true)] {
            let mut behind = RequestBacklog::default();
            let ended = |number: u64| start + Duration::from_micros(each_us * (number + 1));
            (0..400).for_each(|number| behind.answer(at(5 * number), ended(number), halves));
            assert_eq!(behind.grew(0.02), is_clear, "{behind:?}");
        }
    }

    #[test]
    fn threads_share_a_fixed_rate_evenly() {
        assert_eq!(starts(ArrivalProcess::Fixed(1e6), 0, 2, 1, 3), [0, 2_000, 4_000]);
        assert_eq!(starts(ArrivalProcess::Fixed(1e6), 1, 2, 1, 3), [1_000, 3_000, 5_000]);
        assert!(ArrivalSchedule::new(ArrivalProcess::Closed, 0, 1, 1).is_none());
    }

    /// The intervals of a Poisson process have a standard deviation equal to their mean.
    #[test]
    fn chance_has_the_rate_and_spread_it_should_and_repeats() {
        let poisson = ArrivalProcess::Poisson(1e6);
        let all = starts(poisson, 0, 1, 7, 100_000);
        assert_eq!(all[..100], starts(poisson, 0, 1, 7, 100));
        assert_ne!(all[..100], starts(poisson, 0, 1, 8, 100));
        let gaps: Vec<f64> = all.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!(
            (mean - 1_000.0).abs() < 20.0 && (variance.sqrt() - 1_000.0).abs() < 30.0,
            "{mean} {variance}"
        );
    }
}
