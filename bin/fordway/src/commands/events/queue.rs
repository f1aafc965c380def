//! The events that wait in one bucket, and the times at which they are tried.
//!
//! Records are tried in the order of their names, in windows of limited size. Records that the receiver refuses are set
//! aside and tried again in the next pass, which begins after a pause that grows with each pass. Later records do not
//! wait for this pause. A pass reads all names from the start, because the name of a new record may sort before names
//! that have already been read.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use fordway_posix::WaitingEvents;

use super::BATCH_MAX;

/// The first and the longest pause after a failure.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// The events that wait in one bucket.
pub(super) struct BucketQueue {
    /// The names of records that this pass has not tried yet, the oldest first.
    names: VecDeque<String>,
    /// The names of records that the receiver has refused, in the order of their last attempts.
    tried: VecDeque<String>,
    /// The number of names at the front of `tried` that are tried again in this pass.
    retries: usize,
    /// The greatest name that this pass has read.
    after: Option<String>,
    /// Whether this pass has names to read after `after`.
    has_more: bool,
    /// Whether names of refused records were discarded, because there were too many. The next pass reads these names
    /// again.
    has_forgotten: bool,
    /// The maximum number of names in each of `names` and `tried`.
    names_max: usize,
    /// The number of failures since the last delivery.
    failures: u32,
    /// The number of records at the last count, minus the records that were delivered or dropped since then.
    pub(super) waiting: u64,
    /// The earliest time at which the records are counted again without reading their names.
    pub(super) next_count: Instant,
    /// Whether the journal may contain records whose names have not been read.
    pub(super) is_incomplete: bool,
    pub(super) batch: usize,
    /// The time spent since the last delivery on batches without events.
    pub(super) spent: Duration,
    pub(super) pause: Pause,
    /// The pause until the next pass, if records were refused.
    retry: Pause,
}

impl Default for BucketQueue {
    fn default() -> Self {
        BucketQueue {
            names: VecDeque::new(),
            tried: VecDeque::new(),
            retries: 0,
            after: None,
            has_more: false,
            has_forgotten: false,
            names_max: BATCH_MAX,
            failures: 0,
            waiting: 0,
            next_count: Instant::now(),
            is_incomplete: true,
            batch: BATCH_MAX,
            spent: Duration::ZERO,
            pause: Pause::default(),
            retry: Pause::default(),
        }
    }
}

/// Names of records that are sent in one request.
pub(super) struct EventRecordBatch {
    pub(super) names: Vec<String>,
    /// Whether the receiver has already refused these events.
    is_retry: bool,
}

impl BucketQueue {
    /// Returns whether to read names now, starting after [`BucketQueue::after`]. Begins a new pass if the previous pass
    /// is complete and the pause for refused records is over.
    pub(super) fn wants_names(&mut self, now: Instant) -> bool {
        if !self.names.is_empty() || self.has_more {
            return self.names.is_empty();
        }
        if self.retries > 0 || (self.has_refused() && !self.retry.is_over(now)) {
            return self.is_incomplete;
        }
        let is_wanted = self.is_incomplete || self.has_refused();
        (self.after, self.retries) = (None, self.tried.len());
        is_wanted
    }

    pub(super) fn after(&self) -> Option<&str> {
        self.after.as_deref()
    }

    /// Adds the names that were read from the journal, at most `names_max`.
    pub(super) fn found(&mut self, found: WaitingEvents, names_max: usize) {
        // Within a pass, a record whose name sorts before the names in `found` may have been added.
        self.is_incomplete &= self.has_more;
        self.has_forgotten &= self.after.is_some();
        self.has_more = found.later > found.names.len() as u64;
        (self.waiting, self.names_max) = (found.total, names_max);
        if let Some(last) = found.names.last() {
            self.after = Some(last.clone());
        }
        let tried: HashSet<&str> = self.tried.iter().map(String::as_str).collect();
        self.names = found.names.into_iter().filter(|name| !tried.contains(name.as_str())).collect();
        if found.total == 0 {
            self.pause.end();
        }
    }

    /// Takes the names for the next request: names that have not been tried, then names that the receiver has refused.
    pub(super) fn take(&mut self) -> Option<EventRecordBatch> {
        let is_retry = self.names.is_empty();
        let (from, left) = match is_retry {
            true => (&mut self.tried, self.retries),
            false => (&mut self.names, usize::MAX),
        };
        let count = self.batch.min(left).min(from.len());
        let names: Vec<String> = from.drain(..count).collect();
        self.retries -= if is_retry { count } else { 0 };
        (!names.is_empty()).then_some(EventRecordBatch { names, is_retry })
    }

    /// Returns an untried batch to the front of its queue.
    pub(super) fn give_back(&mut self, EventRecordBatch { names, is_retry }: EventRecordBatch) {
        self.retries += if is_retry { names.len() } else { 0 };
        let to = if is_retry { &mut self.tried } else { &mut self.names };
        names.into_iter().rev().for_each(|name| to.push_front(name));
    }

    /// Sets aside names that were tried and whose records stay in the journal.
    pub(super) fn set_aside(&mut self, batch: EventRecordBatch) {
        let room = self.names_max.saturating_sub(self.tried.len());
        self.has_forgotten |= batch.names.len() > room;
        self.tried.extend(batch.names.into_iter().take(room));
    }

    /// Updates the queue after `events` events were delivered or dropped, and ends its pause.
    pub(super) fn succeeded(&mut self, events: u64) {
        self.waiting = self.waiting.saturating_sub(events);
        self.batch = (self.batch * 2).min(BATCH_MAX);
        (self.spent, self.failures) = (Duration::ZERO, 0);
        self.pause.end();
    }

    /// Updates the queue after the receiver refused a batch, or did not respond. `spent` is the time since the start of
    /// the turn. A batch of several events is put back, and tried again in smaller batches. A single event is set
    /// aside. The next batch then waits for 1 s, or for `spent` if `spent` is longer. It does not wait if the receiver
    /// responded, and the batch had several events or nothing is left to try in this pass. Returns whether to log the
    /// failure as a warning.
    pub(super) fn refused(
        &mut self,
        batch: EventRecordBatch,
        has_response: bool,
        (now, spent): (Instant, Duration),
    ) -> bool {
        self.failures = self.failures.saturating_add(1);
        let count = batch.names.len();
        self.batch = (count / 2).max(1);
        match count > 1 {
            true => self.give_back(batch),
            false => self.set_aside(batch),
        }
        if count == 1 || !has_response {
            let is_needed = !has_response || !self.is_at_end();
            self.pause.until = is_needed.then(|| now + spent.max(PAUSES.0));
        }
        self.failures.is_power_of_two() || self.is_at_end()
    }

    /// Begins the pause until the next pass if this pass is at its end. Must be called after each turn.
    pub(super) fn end_turn(&mut self, now: Instant) {
        match self.has_refused() {
            _ if !self.is_at_end() => {}
            false => self.retry.end(),
            true if self.retry.is_over(now) => self.retry.after_failure(now),
            true => {}
        }
    }

    /// Returns whether nothing is left to try in this pass.
    fn is_at_end(&self) -> bool {
        self.names.is_empty() && !self.has_more && self.retries == 0
    }

    /// Returns whether the next turn reads no names, because names are still in memory or the queue pauses.
    pub(super) fn is_delayed(&self, now: Instant) -> bool {
        !self.names.is_empty() || !self.pause.is_over(now)
    }

    fn has_refused(&self) -> bool {
        self.has_forgotten || !self.tried.is_empty()
    }

    /// Returns whether the queue can be dropped, because a new queue would behave in the same way.
    pub(super) fn is_spare(&self) -> bool {
        self.is_at_end() && !self.has_refused() && self.pause.last.is_zero()
    }

    /// Returns the end of the pause before the next attempt; `None` if there is no pause or nothing to attempt.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.is_incomplete || !self.is_at_end() {
            true => self.pause.until,
            false if self.has_refused() => self.pause.until.max(self.retry.until),
            false => None,
        }
    }
}

/// A pause with exponential backoff: it doubles with each failure.
#[derive(Debug, Default)]
pub(super) struct Pause {
    pub(super) until: Option<Instant>,
    pub(super) last: Duration,
}

impl Pause {
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until <= now)
    }

    pub(super) fn after_failure(&mut self, now: Instant) {
        self.last = (self.last * 2).clamp(PAUSES.0, PAUSES.1);
        self.until = Some(now + self.last);
    }

    /// Pauses for `length`, but not longer than the longest pause after a failure.
    pub(super) fn for_cost(&mut self, length: Duration) {
        self.until = Some(Instant::now() + length.min(PAUSES.1));
    }

    pub(super) fn end(&mut self) {
        *self = Pause::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_five_minutes() {
        let (mut pause, now) = (Pause::default(), Instant::now());
        assert!(pause.is_over(now));
        let mut lengths = Vec::new();
        for _ in 0..11 {
            pause.after_failure(now);
            lengths.push(pause.last.as_secs());
        }
        assert_eq!(lengths, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert!(
            !pause.is_over(now + Duration::from_secs(299)) && pause.is_over(now + Duration::from_secs(300))
        );
        pause.end();
        assert!(pause.is_over(now) && pause.last.is_zero());
    }

    /// A journal, and a receiver that refuses all requests with names that begin with `bad`.
    struct Rig {
        journal: Vec<&'static str>,
        queue: BucketQueue,
        now: Instant,
        names_max: usize,
        accepted: Vec<(String, u64)>,
        requests: usize,
        start: Instant,
    }

    impl Rig {
        fn new(journal: &[&'static str], names_max: usize) -> Self {
            let (journal, queue, now) = (journal.to_vec(), BucketQueue::default(), Instant::now());
            Rig { journal, queue, now, names_max, accepted: Vec::new(), requests: 0, start: now }
        }

        /// Runs turns for `seconds` of simulated time.
        fn run(&mut self, seconds: u64) {
            let end = self.now + Duration::from_secs(seconds);
            while self.now < end {
                if !self.queue.pause.is_over(self.now) || !self.turn() {
                    let due = self.queue.due().filter(|due| *due > self.now).unwrap_or(end);
                    self.now = due.min(end);
                }
            }
        }

        /// Returns whether the turn tried anything.
        fn turn(&mut self) -> bool {
            if self.queue.wants_names(self.now) {
                let after = self.queue.after().unwrap_or_default().to_owned();
                let later: Vec<&str> =
                    self.journal.iter().copied().filter(|name| *name > &after[..]).collect();
                let names = later.iter().take(self.names_max).map(|name| (*name).to_owned()).collect();
                let (later, total) = (later.len() as u64, self.journal.len() as u64);
                self.queue.found(WaitingEvents { names, later, total }, self.names_max);
            }
            let Some(batch) = self.queue.take() else {
                self.queue.end_turn(self.now);
                return false;
            };
            self.requests += 1;
            if batch.names.iter().any(|name| name.starts_with("bad")) {
                self.queue.refused(batch, true, (self.now, Duration::ZERO));
            } else {
                self.journal.retain(|name| !batch.names.iter().any(|sent| sent == name));
                let at = (self.now - self.start).as_secs();
                self.queue.succeeded(batch.names.len() as u64);
                self.accepted.extend(batch.names.into_iter().map(|name| (name, at)));
            }
            self.queue.end_turn(self.now);
            true
        }
    }

    const BAD: [&str; 14] = [
        "bad01", "bad02", "bad03", "bad04", "bad05", "bad06", "bad07", "bad08", "bad09", "bad10", "bad11",
        "bad12", "bad13", "bad14",
    ];

    #[test]
    fn refused_events_delay_others_by_a_second_each() {
        let journal = [&BAD[..], &["good"]].concat();
        let mut rig = Rig::new(&journal, 100);
        rig.run(15);
        assert_eq!(rig.accepted, [("good".to_owned(), 14)]);
        // A later event does not wait for the pause of the refused events.
        rig.run(600);
        rig.journal.push("later");
        rig.queue.is_incomplete = true;
        let start = rig.now;
        rig.run(2);
        assert_eq!(rig.accepted[1].0, "later");
        assert!(rig.accepted[1].1 - (start - rig.start).as_secs() <= 1);
        // The pauses between passes grow.
        let before = rig.requests;
        rig.run(3600);
        assert!(rig.requests - before < 13 * 20, "{} requests", rig.requests - before);
        rig.journal.clear();
        assert!(!rig.queue.is_spare());
    }

    #[test]
    fn events_beyond_the_names_in_memory_are_tried() {
        let journal = [&BAD[..], &["good"]].concat();
        let mut rig = Rig::new(&journal, 3);
        rig.run(20);
        assert_eq!(rig.accepted, [("good".to_owned(), 14)]);
        assert_eq!(rig.queue.tried.len(), 3);
        // The next pass finds the discarded names again. It also finds a name that sorts before the names already read.
        rig.journal.insert(0, "a");
        rig.run(60);
        assert_eq!(rig.accepted[1].0, "a");
    }
}
