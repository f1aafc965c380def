//! Delivers the events of buckets to the webhooks of a gateway. Each webhook has its own thread, so a slow receiver
//! delays neither requests nor other webhooks.
//!
//! The thread gives each bucket a turn: it sends up to 100 events of the bucket in one request, and then continues with
//! the next bucket. If the receiver refuses a request, the thread tries the events again in smaller requests, until the
//! refused events are identified. The thread sets these events aside, and tries them again after a pause that grows
//! from 1 s to 5 min. A refused event therefore does not stop other buckets. The other events of its own bucket wait
//! for about 1 s. If the receiver is unreachable, the thread pauses for all buckets.
//!
//! Several programs may deliver the events of one root. Each bucket has a lock, which ensures that only one program
//! sends at a time. If this program dies, the kernel releases the lock, and another program sends the events again.

mod message;
mod queue;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fordway_posix::{EventJournal, EventSignal, PosixConfig, PosixStore, ReadEvents};
use fordway_serve::{Webhook, WebhookFailure};
use fordway_store::{Bucket, Error, ErrorKind, Result};

use queue::{BucketQueue, EventRecordBatch, Pause};

/// The maximum number of events in a request.
const BATCH_MAX: usize = 100;
/// The maximum number of names of one bucket in memory.
const NAMES_MAX: usize = 16_384;
/// The maximum number of names of untried events in memory, over all buckets. The names of refused events have a
/// separate limit of the same size.
const NAMES_SHARED: usize = 262_144;
/// The shortest time between two searches for events that other processes have recorded.
const SEARCH_INTERVAL: Duration = Duration::from_secs(2);
/// Searches may take at most 1/N of the thread's time, where N is this value.
const SEARCH_SHARE: u32 = 20;
/// The time that the thread may spend on a bucket without events to deliver. A bucket that takes longer pauses.
const SEARCH_COST: Duration = Duration::from_millis(20);
/// The pause of a bucket whose events another program is delivering.
const BUSY: Duration = Duration::from_secs(1);
/// The warning about records that cannot be read.
const UNREADABLE: &str = "events are not delivered, because the gateway is not permitted to read their records in \
                          .fordway/events; run `chmod a+r` on the records, or run the gateway as root";
/// The warning about records that the gateway is not permitted to remove. Their events are not delivered, because
/// otherwise they would be delivered repeatedly.
const STUCK: &str = "events are not delivered, because the gateway is not permitted to remove their records; run the \
                     gateway as root or as the bucket's owner, and once `fordway fsck ROOT --migrate` as root, which \
                     gives .fordway/events to the bucket's owner";
/// Delivers events to `webhook` on a thread that ends when the process exits. Events that are older than `age_max` are
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
        let journal = EventJournal::of(&store);
        let (queues, pause, idle) = (BTreeMap::new(), Pause::default(), Duration::ZERO);
        let warned = RefCell::default();
        WebhookDispatcher { journal, webhook, age_max, region, queues, pause, idle, warned }.run(&signal)
    };
    let started = thread::Builder::new().name(name).spawn(work);
    started
        .map(drop)
        .map_err(|error| Error::new(ErrorKind::Io, "starting the thread for events").caused_by(error))
}

/// The deliveries to one webhook.
struct WebhookDispatcher {
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
    /// The problems that were logged for each bucket, so that each problem is logged only once.
    warned: RefCell<BTreeSet<(Bucket, &'static str)>>,
}

/// The numbers of events that an attempt delivered and dropped.
struct DeliveryCounts {
    delivered: u64,
    dropped: u64,
}

/// The outcome of one turn of a bucket.
enum TurnOutcome {
    /// Events were delivered or dropped, or the bucket has more events to try immediately.
    Progress,
    /// The bucket has no event to try now.
    Idle,
    /// The bucket pauses.
    Paused,
}

impl WebhookDispatcher {
    fn run(mut self, signal: &EventSignal) {
        let (mut seen, mut next_search) = (0, Instant::now());
        loop {
            if next_search <= Instant::now() {
                next_search = Instant::now() + self.search();
                self.recount();
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

    /// Counts the waiting events of each bucket for which the next turn reads no names. These are the buckets that
    /// pause or still have names in memory, or all buckets if the whole webhook pauses. A bucket whose journal takes a
    /// long time to read is counted less often, and delays the next search only a little.
    fn recount(&mut self) {
        let start = Instant::now();
        let is_pausing = !self.pause.is_over(start);
        for (bucket, queue) in &mut self.queues {
            let now = Instant::now();
            if now < queue.next_count || !(is_pausing || queue.is_delayed(now)) {
                continue;
            }
            // Errors are reported when the bucket has its turn.
            if let Ok(found) = self.journal.waiting(bucket, self.webhook.name(), None, 0) {
                queue.waiting = found.total;
            }
            let cost = now.elapsed();
            queue.next_count = now + cost * SEARCH_SHARE;
            self.idle += cost.min(SEARCH_COST);
        }
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
                false => Ok(TurnOutcome::Paused),
            };
            match turn {
                Ok(TurnOutcome::Progress) => has_progress = true,
                Ok(TurnOutcome::Paused) => {}
                // Keep the queue of a bucket in which all attempts fail, so that its pauses continue to grow.
                Ok(TurnOutcome::Idle) if queue.is_spare() => continue,
                Ok(TurnOutcome::Idle) => {}
                Err(error) if error.kind() == ErrorKind::NoSuchBucket => continue,
                Err(error) => {
                    tracing::warn!(%bucket, webhook = self.webhook.name(), %error, "events cannot be read");
                    queue.is_incomplete = true;
                    queue.pause.after_failure(Instant::now());
                }
            }
            self.queues.insert(bucket, queue);
        }
        has_progress
    }

    fn turn(&mut self, bucket: &Bucket, queue: &mut BucketQueue) -> Result<TurnOutcome> {
        let start = Instant::now();
        let turn = self.attempt_turn(bucket, queue, start);
        queue.end_turn(Instant::now());
        turn
    }

    /// Performs a turn that began at `start`: reads names if necessary, and tries one batch.
    fn attempt_turn(
        &mut self,
        bucket: &Bucket,
        queue: &mut BucketQueue,
        start: Instant,
    ) -> Result<TurnOutcome> {
        let webhook = self.webhook.clone();
        if queue.wants_names(start) {
            let names_max = (NAMES_SHARED / (self.queues.len() + 1)).clamp(BATCH_MAX, NAMES_MAX);
            let found = self.journal.waiting(bucket, webhook.name(), queue.after(), names_max)?;
            queue.found(found, names_max);
        }
        let Some(batch) = queue.take() else { return Ok(self.idle_turn(queue, start)) };
        match self.journal.claim(bucket, webhook.name(), || self.attempt(bucket, &batch.names)) {
            Ok(Some(Ok(Ok(done)))) => Ok(self.finished(queue, done, start)),
            Ok(Some(Ok(Err(failure)))) => Ok(self.failed(bucket, queue, (batch, &failure), start)),
            Ok(None) => {
                queue.give_back(batch);
                queue.pause.until = Some(Instant::now() + BUSY);
                Ok(TurnOutcome::Paused)
            }
            Ok(Some(Err(error))) | Err(error) => {
                queue.set_aside(batch);
                Err(error)
            }
        }
    }

    /// Ends a turn, begun at `start`, in which no request failed.
    fn finished(&mut self, queue: &mut BucketQueue, done: DeliveryCounts, start: Instant) -> TurnOutcome {
        if done.delivered > 0 {
            self.pause.end();
        }
        match done.delivered + done.dropped {
            // No entry of the batch is an event to deliver. As in `idle_turn`, a bucket with many such entries must not
            // take this thread's time from other buckets.
            0 => {
                queue.spent += start.elapsed();
                if queue.spent <= SEARCH_COST {
                    return TurnOutcome::Progress;
                }
                queue.pause.for_cost(std::mem::take(&mut queue.spent) * SEARCH_SHARE);
                TurnOutcome::Paused
            }
            events => {
                queue.succeeded(events);
                TurnOutcome::Progress
            }
        }
    }

    /// Ends a turn, begun at `start`, of a bucket without events. Pauses the bucket if reading its journal took a long
    /// time. The journal may contain many entries that are not records, and reading these entries must not take this
    /// thread's time from other buckets.
    fn idle_turn(&mut self, queue: &mut BucketQueue, start: Instant) -> TurnOutcome {
        let spent = std::mem::take(&mut queue.spent) + start.elapsed();
        if spent <= SEARCH_COST {
            self.idle += spent;
            return TurnOutcome::Idle;
        }
        queue.pause.for_cost(spent * SEARCH_SHARE);
        TurnOutcome::Paused
    }

    /// Reads the records with these names, sends their events, and removes the records. The outer error is an error of
    /// the journal, and the inner error is a failure of the receiver.
    fn attempt(
        &self,
        bucket: &Bucket,
        names: &[String],
    ) -> Result<std::result::Result<DeliveryCounts, WebhookFailure>> {
        let webhook = self.webhook.name();
        let ReadEvents { events, expired, unwanted, ignored, stuck, unreadable } =
            self.journal.read(bucket, webhook, names, self.age_max)?;
        if expired + unwanted > 0 {
            tracing::warn!(%bucket, webhook, expired, unwanted, "dropped events");
            self.webhook.count_dropped(expired, unwanted);
        }
        if ignored > 0 {
            tracing::debug!(%bucket, webhook, ignored, "ignored entries of the journal that are not records");
        }
        self.warn_once(bucket, stuck, STUCK);
        self.warn_once(bucket, unreadable, UNREADABLE);
        let done = DeliveryCounts { delivered: events.len() as u64, dropped: expired + unwanted };
        if events.is_empty() {
            return Ok(Ok(done));
        }
        let document = message::message(&events, self.journal.owner(bucket)?, &self.region);
        match self.webhook.deliver(&document, done.delivered) {
            Ok(()) => self.journal.remove(bucket, &events).map(|()| Ok(done)),
            Err(failure) => Ok(Err(failure)),
        }
    }

    /// Logs `problem` once for each bucket. Logs nothing if `count`, the number of entries with this problem, is 0.
    fn warn_once(&self, bucket: &Bucket, count: u64, problem: &'static str) {
        let webhook = self.webhook.name();
        if count > 0 && self.warned.borrow_mut().insert((bucket.clone(), problem)) {
            tracing::warn!(%bucket, webhook, count, "{problem}");
        }
    }

    /// Ends a turn, begun at `start`, whose request failed.
    fn failed(
        &mut self,
        bucket: &Bucket,
        queue: &mut BucketQueue,
        (batch, failure): (EventRecordBatch, &WebhookFailure),
        start: Instant,
    ) -> TurnOutcome {
        let now = Instant::now();
        let is_news = match failure {
            WebhookFailure::Unreachable(_) => {
                queue.give_back(batch);
                self.pause.after_failure(now);
                true
            }
            WebhookFailure::Refused(_) => queue.refused(batch, true, (now, start.elapsed())),
            WebhookFailure::NoResponse(_) => queue.refused(batch, false, (now, start.elapsed())),
        };
        queue.end_turn(now);
        let until = if self.pause.is_over(now) { queue.due() } else { self.pause.until };
        let pause_s = until.map_or(0, |until| until.saturating_duration_since(now).as_secs());
        let webhook = self.webhook.name();
        match is_news {
            true => tracing::warn!(%bucket, webhook, %failure, pause_s, "events were not delivered"),
            false => tracing::debug!(%bucket, webhook, %failure, pause_s, "events were not delivered"),
        }
        // A batch that is tried again in smaller batches does not pause.
        match self.pause.is_over(now) && queue.pause.is_over(now) {
            true => TurnOutcome::Progress,
            false => TurnOutcome::Paused,
        }
    }

    /// Returns the time at which there may be work again: the next search, or the end of a pause.
    fn next_attempt(&self, next_search: Instant) -> Instant {
        let now = Instant::now();
        if !self.pause.is_over(now) {
            // Do not sleep beyond the next search, because searches also count the waiting events.
            return self.pause.until.map_or(next_search, |until| until.min(next_search));
        }
        self.queues.values().filter_map(BucketQueue::due).fold(next_search, Instant::min)
    }
}
