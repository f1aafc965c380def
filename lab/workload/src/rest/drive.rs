//! The two loops of one thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fordway_store::Result;

use super::arrivals::Schedule;
use super::recorder::{Keep, Recorder};
use super::{Answer, Channel};

/// The longest wait without a look at whether to stop.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// When a stretch of load starts and ends, and what is told to the outside meanwhile.
pub(super) struct Stretch<'a> {
    pub(super) start: Instant,
    /// No request starts after it.
    pub(super) end: Option<Instant>,
    /// Requests that may still be started, on all threads; `None` is any number.
    pub(super) budget: Option<&'a AtomicU64>,
    pub(super) stop: &'a AtomicBool,
    /// Requests that have ended, on all threads.
    pub(super) done: &'a AtomicU64,
    pub(super) keep: Option<Keep>,
}

impl Stretch<'_> {
    fn is_over(&self, now: Instant) -> bool {
        self.end.is_some_and(|end| now >= end) || self.stop.load(Ordering::Relaxed)
    }

    /// Takes a request from the budget.
    fn may_start(&self) -> bool {
        let Some(budget) = self.budget else { return true };
        budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    fn count(&self, answers: usize) {
        self.done.fetch_add(answers as u64, Ordering::Relaxed);
    }
}

/// Keeps a request on every slot until the stretch is over, and waits for the last answers.
pub(super) fn closed(channel: &mut dyn Channel, stretch: &Stretch, recorder: &mut Recorder) -> Result<()> {
    let mut answers: Vec<Answer> = Vec::with_capacity(channel.slots());
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

/// Starts requests when they are due, or as soon after as a slot is free. What was due within the stretch
/// and did not start is counted as skipped. Arrivals are not kept while they wait: at a rate far beyond
/// what the server can do they would fill the memory.
pub(super) fn open(
    channel: &mut dyn Channel,
    mut schedule: Schedule,
    stretch: &Stretch,
    recorder: &mut Recorder,
) -> Result<()> {
    let slots = channel.slots();
    let mut answers: Vec<Answer> = Vec::with_capacity(slots);
    let mut intended = vec![stretch.start; slots];
    let mut idle: VecDeque<usize> = (0..slots).collect();
    let mut has_more = true;
    loop {
        let now = Instant::now();
        has_more = has_more && !stretch.is_over(now);
        while let Some(due) = stretch.next(&schedule).filter(|due| has_more && *due <= now) {
            let Some(slot) = idle.pop_front() else { break };
            if !stretch.may_start() {
                has_more = false;
                idle.push_front(slot);
                break;
            }
            intended[slot] = due;
            schedule.advance();
            channel.start(slot);
        }
        has_more = has_more && stretch.next(&schedule).is_some();
        if !has_more && idle.len() == slots {
            recorder.skipped += stretch.skipped(schedule);
            return Ok(());
        }
        let limit = if has_more && !idle.is_empty() { stretch.until(&schedule) } else { LOOK_EVERY };
        channel.wait(limit, &mut answers)?;
        stretch.count(answers.len());
        for answer in answers.drain(..) {
            let slot = answer.slot;
            idle.push_back(slot);
            recorder.answer(answer, Some(intended[slot]), stretch.end, stretch.keep);
        }
    }
}

/// The open loop's view of a stretch.
impl Stretch<'_> {
    /// The next arrival, if it lies within.
    fn next(&self, schedule: &Schedule) -> Option<Instant> {
        let next = self.start + Duration::from_nanos(schedule.peek_ns());
        self.end.is_none_or(|end| next < end).then_some(next)
    }

    /// Until that.
    fn until(&self, schedule: &Schedule) -> Duration {
        let next = self.next(schedule).map(|next| next.saturating_duration_since(Instant::now()));
        next.unwrap_or(LOOK_EVERY).min(LOOK_EVERY)
    }

    /// Arrivals that were due within and are still in `schedule`; none where a number of requests was
    /// asked for, and not those after a stop.
    fn skipped(&self, mut schedule: Schedule) -> u64 {
        let Some(end) = self.end else { return 0 };
        let end_ns = end.min(Instant::now()).duration_since(self.start).as_nanos() as u64;
        let mut skipped = 0;
        while schedule.peek_ns() < end_ns {
            schedule.advance();
            skipped += 1;
        }
        skipped
    }
}
