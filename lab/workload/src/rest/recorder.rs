//! What one thread keeps of its requests.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fordway_measure::{Clock, Latencies, Operation};

use super::Answer;

/// Counts and distributions; [`Recorder::add`] joins threads and blocks.
#[derive(Clone, Debug, Default)]
pub(super) struct Recorder {
    pub(super) latency: Latencies,
    pub(super) first_byte: Latencies,
    /// How much later than intended requests were sent; only in the open loop.
    pub(super) lateness: Latencies,
    /// Failures by kind, each with a count and one sentence.
    pub(super) failures: BTreeMap<String, (u64, String)>,
    pub(super) body_bytes: u64,
    /// Successes that ended within the run.
    pub(super) in_time: u64,
    pub(super) in_time_bytes: u64,
    pub(super) skipped: u64,
    pub(super) retries: u64,
    pub(super) operations: Vec<Operation>,
}

/// How records of operations are made, where they are kept.
#[derive(Clone, Copy)]
pub(super) struct Keep {
    pub(super) clock: Clock,
    pub(super) lane: u8,
    pub(super) phase: u8,
    pub(super) round: u16,
    pub(super) block: u32,
    pub(super) thread: u16,
}

impl Recorder {
    /// Counts an answer to a request that was intended for `intended`; `None` is for when it was sent.
    pub(super) fn answer(
        &mut self,
        answer: Answer,
        intended: Option<Instant>,
        end: Option<Instant>,
        keep: Option<Keep>,
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

    pub(super) fn failed(&self) -> u64 {
        self.failures.values().map(|(count, _)| count).sum()
    }

    pub(super) fn add(&mut self, other: Recorder) {
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
        self.retries += other.retries;
        self.operations.extend(other.operations);
    }
}

impl Keep {
    fn operation(&self, answer: &Answer, intended: Option<Instant>) -> Operation {
        Operation {
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
