//! What is remembered of servers: failures, which are forgiven with time, and rates.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// After this time a failure counts half.
const HALF_LIFE: Duration = Duration::from_secs(60);
/// A server is asked after the others while it has more than this.
const AVOIDED_OVER: f64 = 0.5;
/// Rates are believed for so long.
const RATE_LIFETIME: Duration = Duration::from_secs(300);
/// Servers that are remembered, at most.
const REMEMBERED_MAX: usize = 10_000;

/// How a server has done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Standing {
    /// Failures, and when that was up to date.
    penalty: Option<(f64, Instant)>,
    rate: Option<(f64, Instant)>,
}

impl Standing {
    /// Failures that count now.
    pub(super) fn penalty(&self, now: Instant) -> f64 {
        self.penalty.map_or(0.0, |(penalty, at)| {
            let age = now.saturating_duration_since(at).as_secs_f64();
            penalty * 0.5_f64.powf(age / HALF_LIFE.as_secs_f64())
        })
    }

    /// Whether others are asked first.
    pub(super) fn is_avoided(&self, now: Instant) -> bool {
        self.penalty(now) > AVOIDED_OVER
    }

    /// Bytes in a second, where that was seen lately.
    pub(super) fn bytes_per_s(&self, now: Instant) -> Option<f64> {
        self.rate.filter(|(_, at)| now.saturating_duration_since(*at) < RATE_LIFETIME).map(|(rate, _)| rate)
    }

    pub(super) fn failed(&mut self, weight: f64, now: Instant) {
        self.penalty = Some((self.penalty(now) + weight, now));
    }

    pub(super) fn served(&mut self, bytes_per_s: Option<f64>, now: Instant) {
        self.penalty = Some((self.penalty(now) / 2.0, now));
        self.rate = bytes_per_s.map(|rate| (rate, now)).or(self.rate);
    }
}

/// By scheme, host and port, for the life of the process.
static REMEMBERED: LazyLock<Mutex<HashMap<String, Standing>>> = LazyLock::new(Mutex::default);

/// What is remembered of a server.
pub(super) fn of(origin: &str) -> Standing {
    remembered().get(origin).copied().unwrap_or_default()
}

/// Changes what is remembered.
pub(super) fn note(origin: &str, change: impl FnOnce(&mut Standing)) {
    let mut remembered = remembered();
    if remembered.len() >= REMEMBERED_MAX {
        remembered.clear();
    }
    change(remembered.entry(origin.to_owned()).or_default());
}

fn remembered() -> MutexGuard<'static, HashMap<String, Standing>> {
    REMEMBERED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_forgiven_with_time_and_by_service() {
        let now = Instant::now();
        let mut standing = Standing::default();
        assert!(!standing.is_avoided(now));
        standing.failed(1.0, now);
        assert!(standing.is_avoided(now) && standing.is_avoided(now + HALF_LIFE / 2));
        assert!(!standing.is_avoided(now + HALF_LIFE * 2));
        standing.served(Some(1e6), now);
        assert!(!standing.is_avoided(now));
        assert_eq!(standing.bytes_per_s(now), Some(1e6));
        assert_eq!(standing.bytes_per_s(now + RATE_LIFETIME), None);
        assert_eq!(Standing { penalty: None, rate: None }.penalty(now), 0.0);
    }
}
