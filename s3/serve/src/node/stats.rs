//! Counters of requests and of busy connections. The number of busy connections determines whether polling for the next
//! request is worthwhile.
//!
//! Waking a sleeping thread takes several times as long as a small get. If a processor is idle, a thread saves this
//! time by polling its connection for a few microseconds before it sleeps. If more threads poll than there are
//! processors, they slow each other down.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fordway_wire::node::Request;

use crate::node::access::NodeLimits;

/// Counters since the gateway started. The counters may change while they are read.
pub(super) struct NodeStats {
    start: Instant,
    pub(super) connections: MonotonicCounter,
    pub(super) connections_ended: MonotonicCounter,
    pub(super) http_connections: MonotonicCounter,
    pub(super) refused: MonotonicCounter,
    /// The number of requests of each kind, indexed by the code of the operation.
    requests: [MonotonicCounter; 256],
    pub(super) failed: MonotonicCounter,
    /// The number of requests that were refused because of a limit on memory or on the request's user.
    pub(super) limited: MonotonicCounter,
    pub(super) malformed: MonotonicCounter,
    pub(super) inline_bytes_out: MonotonicCounter,
    body_bytes_in: MonotonicCounter,
    pub(super) descriptors_out: MonotonicCounter,
    pub(super) descriptor_bytes_out: MonotonicCounter,
    pub(super) descriptor_bytes_in: MonotonicCounter,
}

/// A counter that only grows.
#[derive(Debug, Default)]
pub(super) struct MonotonicCounter(AtomicU64);

impl MonotonicCounter {
    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl NodeStats {
    pub(super) fn new() -> Self {
        let counter = MonotonicCounter::default;
        NodeStats {
            start: Instant::now(),
            connections: counter(),
            connections_ended: counter(),
            http_connections: counter(),
            refused: counter(),
            requests: std::array::from_fn(|_| counter()),
            failed: counter(),
            limited: counter(),
            malformed: counter(),
            inline_bytes_out: counter(),
            body_bytes_in: counter(),
            descriptors_out: counter(),
            descriptor_bytes_out: counter(),
            descriptor_bytes_in: counter(),
        }
    }

    /// Counts a request with `body_bytes` of content.
    pub(super) fn note(&self, code: u8, body_bytes: usize) {
        self.requests[usize::from(code)].add(1);
        self.body_bytes_in.add(body_bytes as u64);
    }

    /// Returns all counters with their names, except for kinds of requests that did not occur.
    pub(super) fn counters(&self, limits: &NodeLimits) -> Vec<(String, u64)> {
        let ended = self.connections_ended.get();
        let requests = || self.requests.iter().map(MonotonicCounter::get);
        let all = [
            ("uptime_s", self.start.elapsed().as_secs()),
            ("connections", self.connections.get()),
            ("connections_open", self.connections.get().saturating_sub(ended)),
            ("connections_http", self.http_connections.get()),
            ("connections_refused", self.refused.get()),
            ("requests", requests().sum()),
            ("requests_failed", self.failed.get()),
            ("requests_limited", self.limited.get()),
            ("messages_malformed", self.malformed.get()),
            ("bytes_in", self.body_bytes_in.get()),
            ("bytes_out", self.inline_bytes_out.get()),
            ("descriptors_out", self.descriptors_out.get()),
            ("descriptor_bytes_in", self.descriptor_bytes_in.get()),
            ("descriptor_bytes_out", self.descriptor_bytes_out.get()),
            ("memory_bytes", limits.memory.taken() as u64),
        ];
        let kinds = Request::CODES.iter().zip(Request::NAMES).map(|(code, name)| {
            (format!("requests_{}", snake_case(name)), self.requests[usize::from(*code)].get())
        });
        let all = all.map(|(name, count)| (name.to_owned(), count));
        all.into_iter().chain(kinds.filter(|(_, count)| *count > 0)).collect()
    }
}

/// Converts a name such as `GetMany` to a name such as `get_many`.
fn snake_case(name: &str) -> String {
    let mut all = String::with_capacity(name.len() + 4);
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !all.is_empty() {
            all.push('_');
        }
        all.push(letter.to_ascii_lowercase());
    }
    all
}

/// The length of a period. Connections with a request in the current or the previous period count as busy.
const PERIOD: Duration = Duration::from_millis(10);
/// The number of low bits that contain the count of a period. The other bits contain the number of the period.
const COUNT_BITS: u32 = 20;
/// The number of consecutive unsuccessful polls after which a thread polls only rarely.
const MISSES_MAX: u32 = 4;
/// A thread that polls only rarely polls once in this number of waits.
const RARELY: u32 = 64;

/// The state that all connections share.
#[derive(Debug)]
pub(super) struct BusyConnectionCounter {
    start: Instant,
    cores: u64,
    /// The number of busy connections in each of the two latest periods, packed with the period's number.
    periods: [AtomicU64; 2],
}

/// The number of successful polls after which the thread may move again without a pause.
const HITS_MIN: u32 = 64;
/// The maximum number of times that the pause between two moves doubles.
const DOUBLINGS_MAX: u32 = 12;

/// The polling state of one connection, which determines whether the connection's thread polls and whether the thread
/// moves to another processor.
#[derive(Debug, Default)]
pub(super) struct AdaptivePollState {
    period: u64,
    /// The number of unsuccessful polls since the last successful poll or move.
    misses: u32,
    /// The number of successful polls since the last move.
    hits: u32,
    /// The number of moves since [`HITS_MIN`] polls were successful.
    moves: u32,
}

impl BusyConnectionCounter {
    /// Creates the state for a machine with `cores` cores.
    pub(super) fn new(cores: usize) -> Self {
        BusyConnectionCounter {
            start: Instant::now(),
            cores: cores as u64,
            periods: [AtomicU64::new(0), AtomicU64::new(0)],
        }
    }

    /// Counts a request of the connection to which `lookout` belongs. Returns whether the client and the thread of this
    /// connection can both poll without taking processors from other threads. Cost: reading the clock once.
    pub(super) fn note(&self, lookout: &mut AdaptivePollState) -> bool {
        // Periods are counted from 1, so that 0 marks a slot that no period has used.
        let period = 1 + (self.start.elapsed().as_millis() / PERIOD.as_millis()) as u64;
        if lookout.period != period {
            lookout.period = period;
            let counted =
                |now: u64| Some(if now >> COUNT_BITS == period { now + 1 } else { period << COUNT_BITS | 1 });
            // `counted` always returns a value.
            let _ = self.slot(period).fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted);
        }
        2 * self.count(period).max(self.count(period - 1)) <= self.cores
    }

    fn slot(&self, period: u64) -> &AtomicU64 {
        &self.periods[period as usize % 2]
    }

    fn count(&self, period: u64) -> u64 {
        let slot = self.slot(period).load(Ordering::Relaxed);
        if slot >> COUNT_BITS == period { slot & ((1 << COUNT_BITS) - 1) } else { 0 }
    }
}

impl AdaptivePollState {
    /// Returns whether the thread should poll before its next sleep. After several unsuccessful polls, the thread polls
    /// only rarely.
    pub(super) fn pays(&mut self) -> bool {
        self.misses < MISSES_MAX || self.misses.is_multiple_of(RARELY)
    }

    /// Records whether a request arrived while the thread polled.
    pub(super) fn learn(&mut self, came: bool) {
        self.misses = if came { 0 } else { self.misses.saturating_add(1) };
        self.hits = self.hits.saturating_add(u32::from(came));
        if self.hits >= HITS_MIN {
            self.moves = 0;
        }
    }

    /// Returns whether the thread should move to another processor. If the client and the thread share a processor,
    /// they take turns, so polling never helps. The kernel may keep the client and the thread on this processor for as
    /// long as they run. Each request then takes several times as long. If the client pauses between its requests,
    /// polling does not help either, even after a move. Each move therefore doubles the pause before the next move.
    pub(super) fn should_move(&mut self) -> bool {
        let pause = if self.moves == 0 { MISSES_MAX } else { RARELY << self.moves.min(DOUBLINGS_MAX) };
        let is_time = self.misses >= pause;
        if is_time {
            (self.misses, self.hits, self.moves) = (0, 0, self.moves.saturating_add(1));
        }
        is_time
    }

    /// Records that the thread went to sleep without polling.
    pub(super) fn skip(&mut self) {
        if self.misses >= MISSES_MAX {
            self.misses += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_out_ends_when_cores_are_few() {
        let activity = BusyConnectionCounter::new(4);
        let mut connections: Vec<AdaptivePollState> = (0..3).map(|_| AdaptivePollState::default()).collect();
        assert!(activity.note(&mut connections[0]) && activity.note(&mut connections[0]));
        assert!(activity.note(&mut connections[1]), "two clients and two threads fit four cores");
        assert!(!activity.note(&mut connections[2]) && !activity.note(&mut connections[0]));
        std::thread::sleep(3 * PERIOD);
        assert!(activity.note(&mut connections[0]), "the others have been silent for long");
    }

    #[test]
    fn looking_out_for_nothing_becomes_rare() {
        let mut lookout = AdaptivePollState::default();
        let mut times = 0;
        for _ in 0..1000 {
            if lookout.pays() {
                times += 1;
                lookout.learn(false);
            } else {
                lookout.skip();
            }
        }
        assert!((10..40).contains(&times), "{times}");
        while !lookout.pays() {
            lookout.skip();
        }
        lookout.learn(true);
        assert!(lookout.pays());
    }

    /// Returns the number of moves during `requests` requests. No request arrives while the thread polls.
    fn moves_during(lookout: &mut AdaptivePollState, requests: usize) -> usize {
        let request = |_: &usize| match lookout.pays() {
            true => {
                lookout.learn(false);
                lookout.should_move()
            }
            false => {
                lookout.skip();
                false
            }
        };
        (0..requests).filter(request).count()
    }

    #[test]
    fn a_thread_moves_at_once_and_then_ever_more_rarely() {
        let mut lookout = AdaptivePollState::default();
        assert_eq!(moves_during(&mut lookout, MISSES_MAX as usize), 1, "it is about to stop polling");
        assert!(lookout.pays(), "after a move, polling may help again");
        assert!((2..12).contains(&moves_during(&mut lookout, 100_000)));
        // The thread of a client that sometimes pauses is not moved repeatedly.
        lookout.learn(true);
        assert_eq!(moves_during(&mut lookout, 100), 0);
        (0..HITS_MIN).for_each(|_| lookout.learn(true));
        assert_eq!(moves_during(&mut lookout, MISSES_MAX as usize), 1);
    }
}
