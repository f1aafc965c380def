//! What is counted.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters since the start; read while they change.
#[derive(Debug, Default)]
pub(super) struct Stats {
    pub(super) connections: Counter,
    pub(super) refused: Counter,
    pub(super) requests: Counter,
    pub(super) failed: Counter,
    pub(super) malformed: Counter,
    pub(super) inline_bytes_out: Counter,
    pub(super) body_bytes_in: Counter,
    pub(super) descriptors_out: Counter,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }
}

/// One line for each, `name value`.
impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = [
            ("connections", &self.connections),
            ("connections_refused", &self.refused),
            ("requests", &self.requests),
            ("requests_failed", &self.failed),
            ("messages_malformed", &self.malformed),
            ("inline_bytes_out", &self.inline_bytes_out),
            ("body_bytes_in", &self.body_bytes_in),
            ("descriptors_out", &self.descriptors_out),
        ];
        for (name, counter) in lines {
            writeln!(f, "{name} {}", counter.0.load(Ordering::Relaxed))?;
        }
        Ok(())
    }
}
