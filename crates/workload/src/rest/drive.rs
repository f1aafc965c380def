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

/// Starts requests when they are due, or as soon after as a slot is free. What is still due at the end
/// of the stretch is counted as skipped.
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
    let mut due: VecDeque<Instant> = VecDeque::new();
    let mut is_over = false;
    loop {
        let now = Instant::now();
        is_over = is_over || stretch.is_over(now);
        let no_more = take_due(&mut schedule, stretch, now, &mut due);
        while !is_over && !due.is_empty() && !idle.is_empty() {
            let (Some(at), Some(slot)) = (due.pop_front(), idle.pop_front()) else { break };
            intended[slot] = at;
            channel.start(slot);
        }
        if (is_over || (no_more && due.is_empty())) && idle.len() == slots {
            recorder.skipped += due.len() as u64;
            return Ok(());
        }
        channel.wait(wait_limit(&schedule, stretch, is_over, idle.is_empty()), &mut answers)?;
        stretch.count(answers.len());
        for answer in answers.drain(..) {
            let slot = answer.slot;
            idle.push_back(slot);
            recorder.answer(answer, Some(intended[slot]), stretch.end, stretch.keep);
        }
    }
}

/// Moves the arrivals whose time has come, and lies within the stretch, to `due`. Answers whether the
/// requests that may be started are used up.
fn take_due(schedule: &mut Schedule, stretch: &Stretch, now: Instant, due: &mut VecDeque<Instant>) -> bool {
    loop {
        let next = stretch.start + Duration::from_nanos(schedule.peek_ns());
        if next > now || stretch.end.is_some_and(|end| next >= end) {
            return false;
        }
        if !stretch.may_start() {
            return true;
        }
        due.push_back(next);
        schedule.take_ns();
    }
}

/// Until the next arrival, if that could be sent; else for answers.
fn wait_limit(schedule: &Schedule, stretch: &Stretch, is_over: bool, all_busy: bool) -> Duration {
    if is_over || all_busy {
        return LOOK_EVERY;
    }
    let next = stretch.start + Duration::from_nanos(schedule.peek_ns());
    let next = stretch.end.map_or(next, |end| next.min(end));
    next.saturating_duration_since(Instant::now()).min(LOOK_EVERY)
}
