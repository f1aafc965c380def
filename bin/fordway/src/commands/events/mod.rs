//! Delivers the events of buckets to the webhooks of a gateway. Each webhook has its own thread, so a slow receiver
//! delays neither requests nor other webhooks.
//!
//! The thread gives each bucket a turn: it sends up to 100 events of the bucket in one request, and then continues with
//! the next bucket. If the receiver refuses a request or does not answer, the thread pauses only the bucket, and the
//! next request for the bucket has half as many events and begins with later ones. One event that the receiver refuses
//! therefore stops neither the other events of its bucket nor other buckets. If there is no connection to the receiver,
//! the thread pauses altogether. Pauses grow from 1 s to 5 min.
//!
//! Several programs may deliver the events of one root. A lock of each bucket ensures that one of them sends at a time;
//! the kernel releases the lock when the program dies, and another one sends the events again.

mod message;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fordway_posix::{EventJournal, EventSignal, PosixConfig, PosixStore, ReadEvents};
use fordway_serve::{Webhook, WebhookFailure};
use fordway_store::{Bucket, Error, ErrorKind, Result};

/// The maximum number of events in a request.
const BATCH_MAX: usize = 100;
/// The maximum number of names of one bucket in memory.
const NAMES_MAX: usize = 16_384;
/// The number of names in memory that all buckets share.
const NAMES_SHARED: usize = 262_144;
/// The shortest time between two searches for events that other processes have recorded.
const SEARCH_INTERVAL: Duration = Duration::from_secs(2);
/// Searching takes at most one part in this number of the thread's time.
const SEARCH_SHARE: u32 = 20;
/// The time that a bucket may cost in each search although it has no events to deliver.
const SEARCH_COST: Duration = Duration::from_millis(20);
/// The time until the next attempt in a bucket in which another program is delivering.
const BUSY: Duration = Duration::from_secs(1);
/// The warning about records that cannot be removed after their delivery.
const STUCK: &str = "events are not delivered, because the gateway is not permitted to remove their records; run the \
                     gateway as root or as the bucket's owner, and once `fordway fsck ROOT --migrate` as root, which \
                     gives .fordway/events to the bucket's owner";
/// The first and the longest pause after a failure.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// Delivers events to `webhook` on a thread that ends with the process. Events that are older than `age_max` are
/// dropped.
pub(super) fn in_background(
    root: &Path,
    config: PosixConfig,
    webhook: Arc<Webhook>,
    (age_max, region): (Duration, &str),
) -> Result<()> {
    let signal = config.event_signal.clone();
    // The store has its own lock tables, so a lock that this thread holds during a request delays no writer.
    let store = PosixStore::open(root, config)?;
    let (name, region) = (format!("fordway-events-{}", webhook.name()), region.to_owned());
    let work = move || {
        let journal = store.event_journal();
        let (queues, pause, idle) = (BTreeMap::new(), Pause::default(), Duration::ZERO);
        let warned = RefCell::default();
        EventDelivery { journal, webhook, age_max, region, queues, pause, idle, warned }.run(&signal)
    };
    let started = thread::Builder::new().name(name).spawn(work);
    started
        .map(drop)
        .map_err(|error| Error::new(ErrorKind::Io, "starting the thread for events").caused_by(error))
}

/// The deliveries to one webhook.
struct EventDelivery {
    journal: EventJournal,
    webhook: Arc<Webhook>,
    age_max: Duration,
    region: String,
    /// The buckets in which events may wait.
    queues: BTreeMap<Bucket, BucketQueue>,
    /// The pause of the whole webhook.
    pause: Pause,
    /// The time spent on buckets without events since the last search.
    idle: Duration,
    /// The problems that were logged, so that each is logged once.
    warned: RefCell<BTreeSet<(Bucket, &'static str)>>,
}

/// The events that wait in one bucket.
struct BucketQueue {
    /// The names of records, the oldest first, followed by those that were sent in this round and not accepted.
    names: VecDeque<String>,
    /// The number of names that were sent in this round and not accepted.
    refused: usize,
    /// The number of records when they were last counted, less those that were delivered.
    waiting: u64,
    /// Whether there may be records that are not in `names`.
    is_incomplete: bool,
    batch: usize,
    /// The time that was spent since the last delivery.
    spent: Duration,
    pause: Pause,
}

impl Default for BucketQueue {
    fn default() -> Self {
        let (names, pause) = (VecDeque::new(), Pause::default());
        let spent = Duration::ZERO;
        BucketQueue { names, refused: 0, waiting: 0, is_incomplete: true, batch: BATCH_MAX, spent, pause }
    }
}

impl BucketQueue {
    /// Puts names that were not tried back to the front.
    fn give_back(&mut self, names: Vec<String>) {
        names.into_iter().rev().for_each(|name| self.names.push_front(name));
    }
}

/// A pause that doubles with each failure.
#[derive(Debug, Default)]
struct Pause {
    until: Option<Instant>,
    last: Duration,
}

impl Pause {
    fn is_over(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until <= now)
    }

    fn after_failure(&mut self, now: Instant) {
        self.last = (self.last * 2).clamp(PAUSES.0, PAUSES.1);
        self.until = Some(now + self.last);
    }

    fn end(&mut self) {
        *self = Pause::default();
    }
}

/// The outcome of one turn of a bucket.
enum Turn {
    /// Events were delivered or dropped.
    Progress,
    /// Nothing waits in the bucket.
    Idle,
    /// The bucket pauses.
    Paused,
}

impl EventDelivery {
    fn run(mut self, signal: &EventSignal) {
        let (mut seen, mut next_search) = (0, Instant::now());
        loop {
            if next_search <= Instant::now() {
                next_search = Instant::now() + self.search();
            }
            let has_progress = self.round();
            next_search += std::mem::take(&mut self.idle) * SEARCH_SHARE;
            self.webhook.set_waiting(self.queues.values().map(|queue| queue.waiting).sum());
            let patience = match has_progress {
                true => Duration::ZERO,
                false => self.next_attempt(next_search).saturating_duration_since(Instant::now()),
            };
            let (count, changed) = signal.wait(seen, patience);
            seen = count;
            for bucket in changed {
                self.queues.entry(bucket).or_default().is_incomplete = true;
            }
        }
    }

    /// Finds the buckets that have a journal. Returns the time until the next search.
    fn search(&mut self) -> Duration {
        let start = Instant::now();
        match self.journal.buckets() {
            Ok(buckets) => {
                for bucket in buckets {
                    self.queues.entry(bucket).or_default().is_incomplete = true;
                }
            }
            Err(error) => tracing::warn!(%error, "events of other processes cannot be found"),
        }
        SEARCH_INTERVAL.max(start.elapsed() * SEARCH_SHARE)
    }

    /// Gives each bucket a turn. Returns whether any bucket made progress.
    fn round(&mut self) -> bool {
        let mut has_progress = false;
        let buckets: Vec<Bucket> = self.queues.keys().cloned().collect();
        for bucket in buckets {
            let now = Instant::now();
            if !self.pause.is_over(now) {
                return false;
            }
            let Some(mut queue) = self.queues.remove(&bucket) else { continue };
            let turn = match queue.pause.is_over(now) {
                true => self.turn(&bucket, &mut queue),
                false => Ok(Turn::Paused),
            };
            match turn {
                Ok(Turn::Progress) => has_progress = true,
                Ok(Turn::Paused) => {}
                // The pauses of a bucket that only fails must go on growing.
                Ok(Turn::Idle) if queue.pause.last.is_zero() => continue,
                Ok(Turn::Idle) => {}
                Err(error) if error.kind() == ErrorKind::NoSuchBucket => continue,
                Err(error) => {
                    tracing::warn!(%bucket, webhook = self.webhook.name(), %error, "events cannot be read");
                    // The names that were read are lost, and are found again after the pause.
                    queue.is_incomplete = true;
                    queue.pause.after_failure(Instant::now());
                }
            }
            self.queues.insert(bucket, queue);
        }
        has_progress
    }

    fn turn(&mut self, bucket: &Bucket, queue: &mut BucketQueue) -> Result<Turn> {
        let start = Instant::now();
        // A round ends when each name was tried, so events that the receiver always refuses do not hide newer ones.
        let is_new_round = queue.refused >= queue.names.len();
        if is_new_round {
            queue.refused = 0;
        }
        if is_new_round && queue.is_incomplete {
            let names_max = (NAMES_SHARED / (self.queues.len() + 1)).clamp(BATCH_MAX, NAMES_MAX);
            let found = self.journal.waiting(bucket, self.webhook.name(), names_max)?;
            queue.is_incomplete = found.total > found.names.len() as u64;
            (queue.names, queue.waiting) = (found.names.into(), found.total);
            if queue.waiting == 0 {
                queue.pause.end();
            }
        }
        if queue.names.is_empty() {
            return Ok(self.idle_turn(queue, start));
        }
        let count = queue.batch.min(queue.names.len() - queue.refused);
        let names: Vec<String> = queue.names.drain(..count).collect();
        let webhook = self.webhook.clone();
        let attempt = self.journal.claim(bucket, webhook.name(), || self.attempt(bucket, &names))?;
        let Some(attempt) = attempt else {
            queue.give_back(names);
            queue.pause.until = Some(Instant::now() + BUSY);
            return Ok(Turn::Paused);
        };
        match attempt? {
            Ok(events) => {
                queue.spent = if events > 0 { Duration::ZERO } else { queue.spent + start.elapsed() };
                queue.waiting = queue.waiting.saturating_sub(names.len() as u64);
                queue.batch = (queue.batch * 2).min(BATCH_MAX);
                queue.pause.end();
                self.pause.end();
                Ok(Turn::Progress)
            }
            Err(failure) => {
                self.failed(bucket, queue, (names, &failure));
                Ok(Turn::Paused)
            }
        }
    }

    /// Ends a turn, begun at `start`, of a bucket without events. A bucket whose journal took long to read pauses. Its
    /// writers may have filled the journal with entries that are not records, and must not take this thread's time from
    /// other buckets.
    fn idle_turn(&mut self, queue: &mut BucketQueue, start: Instant) -> Turn {
        let spent = std::mem::take(&mut queue.spent) + start.elapsed();
        if spent <= SEARCH_COST {
            self.idle += spent;
            return Turn::Idle;
        }
        queue.pause.until = Some(Instant::now() + (spent * SEARCH_SHARE).min(PAUSES.1));
        Turn::Paused
    }

    /// Reads the records with these names, sends their events, and removes the records. Returns the number of events
    /// that were delivered or dropped. The outer result is an error of the journal, the inner one a failure of the
    /// receiver.
    fn attempt(&self, bucket: &Bucket, names: &[String]) -> Result<std::result::Result<u64, WebhookFailure>> {
        let webhook = self.webhook.name();
        let ReadEvents { events, expired, unwanted, ignored, stuck } =
            self.journal.read(bucket, webhook, names, self.age_max)?;
        if expired + unwanted > 0 {
            tracing::warn!(%bucket, webhook, expired, unwanted, "dropped events");
            self.webhook.count_dropped(expired, unwanted);
        }
        if ignored > 0 {
            tracing::debug!(%bucket, webhook, ignored, "ignored entries of the journal that are not records");
        }
        self.warn_once(bucket, stuck, STUCK);
        let (count, dropped) = (events.len() as u64, expired + unwanted);
        if events.is_empty() {
            return Ok(Ok(dropped));
        }
        let document = message::message(&events, self.journal.owner(bucket)?, &self.region);
        match self.webhook.deliver(&document, count) {
            Ok(()) => self.journal.remove(bucket, &events).map(|()| Ok(count + dropped)),
            Err(failure) => Ok(Err(failure)),
        }
    }

    /// Logs `problem` at the first time that entries of the bucket's journal have it. `count` is their number.
    fn warn_once(&self, bucket: &Bucket, count: u64, problem: &'static str) {
        let webhook = self.webhook.name();
        if count > 0 && self.warned.borrow_mut().insert((bucket.clone(), problem)) {
            tracing::warn!(%bucket, webhook, count, "{problem}");
        }
    }

    fn failed(
        &mut self,
        bucket: &Bucket,
        queue: &mut BucketQueue,
        (names, failure): (Vec<String>, &WebhookFailure),
    ) {
        let now = Instant::now();
        let pause = match failure {
            WebhookFailure::Unreachable(_) => {
                queue.give_back(names);
                &mut self.pause
            }
            WebhookFailure::Refused(_) | WebhookFailure::NoResponse(_) => {
                queue.batch = (names.len() / 2).max(1);
                queue.refused += names.len();
                queue.names.extend(names);
                &mut queue.pause
            }
        };
        pause.after_failure(now);
        let pause_s = pause.last.as_secs();
        tracing::warn!(%bucket, webhook = self.webhook.name(), %failure, pause_s, "events were not delivered");
    }

    /// Returns the time at which there may be work again: the next search, or the end of a pause.
    fn next_attempt(&self, next_search: Instant) -> Instant {
        let now = Instant::now();
        if !self.pause.is_over(now) {
            return self.pause.until.unwrap_or(next_search);
        }
        let busy = self.queues.values().filter(|queue| queue.is_incomplete || !queue.names.is_empty());
        let pauses = busy.filter_map(|queue| queue.pause.until);
        pauses.fold(next_search, Instant::min)
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
}
