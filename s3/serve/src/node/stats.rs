//! What is counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use fordway_wire::node::Request;

use super::limits::Limits;

/// Counters since the start; read while they change.
pub(super) struct Stats {
    start: Instant,
    pub(super) connections: Counter,
    pub(super) connections_ended: Counter,
    pub(super) http_connections: Counter,
    pub(super) refused: Counter,
    /// By the code of the operation.
    requests: [Counter; 256],
    pub(super) failed: Counter,
    pub(super) malformed: Counter,
    pub(super) inline_bytes_out: Counter,
    body_bytes_in: Counter,
    pub(super) descriptors_out: Counter,
    pub(super) descriptor_bytes_out: Counter,
    pub(super) descriptor_bytes_in: Counter,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Stats {
    pub(super) fn new() -> Self {
        let counter = Counter::default;
        Stats {
            start: Instant::now(),
            connections: counter(),
            connections_ended: counter(),
            http_connections: counter(),
            refused: counter(),
            requests: std::array::from_fn(|_| counter()),
            failed: counter(),
            malformed: counter(),
            inline_bytes_out: counter(),
            body_bytes_in: counter(),
            descriptors_out: counter(),
            descriptor_bytes_out: counter(),
            descriptor_bytes_in: counter(),
        }
    }

    /// Counts a request with so much content.
    pub(super) fn note(&self, code: u8, body_bytes: usize) {
        self.requests[usize::from(code)].add(1);
        self.body_bytes_in.add(body_bytes as u64);
    }

    /// All by name; of requests the kinds that there were.
    pub(super) fn counters(&self, limits: &Limits) -> Vec<(String, u64)> {
        let ended = self.connections_ended.get();
        let requests = || self.requests.iter().map(Counter::get);
        let all = [
            ("uptime_s", self.start.elapsed().as_secs()),
            ("connections", self.connections.get()),
            ("connections_open", self.connections.get().saturating_sub(ended)),
            ("connections_http", self.http_connections.get()),
            ("connections_refused", self.refused.get()),
            ("requests", requests().sum()),
            ("requests_failed", self.failed.get()),
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

/// `GetMany` as `get_many`.
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
