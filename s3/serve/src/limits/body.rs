//! Limits on the transfer of bodies: the minimum rate of a client, and the pauses of a user who exceeds their rate
//! limit.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::time::{Sleep, sleep};

use super::UserResourceUsage;

/// Counters of bodies and connections that were ended or refused. The counters are not per user.
#[derive(Debug, Default)]
pub(crate) struct LimitCounters {
    /// The number of bodies that were ended because the client sent or received too slowly.
    pub(crate) slow_bodies: AtomicU64,
    /// The number of connections that were refused because their address has too many connections without a valid
    /// signature.
    pub(crate) refused_connections: AtomicU64,
    /// The number of connections that were closed after too many requests without a valid signature.
    pub(crate) closed_connections: AtomicU64,
}

/// A gateway's limits on the transfer of bodies.
#[derive(Clone, Debug)]
pub(crate) struct BodyTransferLimits {
    /// The maximum time between two pieces of a body, in either direction.
    pub(crate) stall_timeout: Duration,
    /// The minimum number of bytes per second, averaged over periods. A period ends when the gateway has waited for the
    /// client for a total of `stall_timeout`.
    pub(crate) bytes_per_s_min: u64,
    pub(crate) counters: Arc<LimitCounters>,
}

impl BodyTransferLimits {
    /// Returns limits without a minimum rate.
    #[cfg(test)]
    pub(crate) fn of_tests(stall_timeout: Duration) -> Self {
        BodyTransferLimits { stall_timeout, bytes_per_s_min: 0, counters: Arc::default() }
    }

    /// Counts a body that ends because the client is too slow.
    pub(crate) fn count_slow(&self) {
        self.counters.slow_bodies.fetch_add(1, Ordering::Relaxed);
    }
}

/// Measures how fast a client sends or receives a body. Only the time during which the gateway waits for the client
/// counts. Cost: reads the clock twice for each wait.
#[derive(Debug, Default)]
pub(crate) struct TransferRateMeter {
    since: Option<Instant>,
    waited: Duration,
    bytes: u64,
}

impl TransferRateMeter {
    /// Records that the gateway starts to wait for the client, unless it is waiting already.
    pub(crate) fn wait(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    /// Records that `bytes` bytes were transferred to or from the client. Returns whether the client is fast enough.
    pub(crate) fn moved(&mut self, bytes: u64, limits: &BodyTransferLimits) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        let Some(since) = self.since.take() else { return true };
        self.has_waited(since.elapsed(), limits)
    }

    fn has_waited(&mut self, time: Duration, limits: &BodyTransferLimits) -> bool {
        self.waited += time;
        if self.waited < limits.stall_timeout {
            return true;
        }
        let is_enough = self.bytes as f64 >= limits.bytes_per_s_min as f64 * self.waited.as_secs_f64();
        *self = TransferRateMeter::default();
        is_enough
    }
}

/// Delays the body of a user who exceeds their rate limit.
#[derive(Debug, Default)]
pub(crate) struct RatePacer(Option<Pin<Box<Sleep>>>);

/// The longest time between two polls of a delayed body. This time is so short that a delayed body is not mistaken for
/// a stalled body.
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl RatePacer {
    /// Becomes ready when more bytes of the body may be transferred.
    pub(crate) fn poll_allowed(
        &mut self,
        account: &UserResourceUsage,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        loop {
            if let Some(pause) = &mut self.0 {
                ready!(pause.as_mut().poll(context));
                self.0 = None;
            }
            let pause = account.pause();
            if pause.is_zero() {
                return Poll::Ready(());
            }
            self.0 = Some(Box::pin(sleep(pause.min(PAUSE_MAX))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits() -> BodyTransferLimits {
        BodyTransferLimits { stall_timeout: 10 * SECOND, bytes_per_s_min: 100, counters: Arc::default() }
    }

    /// Returns the number of steps after which a client counts as too slow. In each step, the client transfers `bytes`
    /// in a second of waiting. Before the first step, the client has already transferred `first` bytes.
    fn steps(bytes: u64, first: u64) -> Option<usize> {
        let mut watch = TransferRateMeter { bytes: first, ..Default::default() };
        (1..=40).find(|_| {
            watch.bytes += bytes;
            !watch.has_waited(SECOND, &limits())
        })
    }

    #[test]
    fn a_client_below_the_least_rate_is_too_slow_at_the_end_of_a_period() {
        assert_eq!(steps(99, 0), Some(10));
        assert_eq!(steps(100, 0), None);
        assert_eq!(steps(1, 1_000_000), Some(20), "a fast start counts for one period");
    }

    #[test]
    fn time_without_a_wait_does_not_count() {
        let mut watch = TransferRateMeter::default();
        assert!((0..1000).all(|_| watch.moved(1, &limits())));
        assert_eq!((watch.waited, watch.bytes), (Duration::ZERO, 1000));
    }
}
