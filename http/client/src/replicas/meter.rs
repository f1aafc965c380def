//! How fast a stream is while it has something to do.

use std::collections::VecDeque;
use std::time::Duration;

/// What the rate is taken over: less says more of buffers than of the way.
pub(super) const SPAN: Duration = Duration::from_secs(2);
/// Before this there is no rate.
const FIRST: Duration = Duration::from_millis(200);

/// Bytes over time, of the last [`SPAN`] in which there was something to wait for.
#[derive(Debug, Default)]
pub(super) struct Meter {
    samples: VecDeque<(Duration, u64)>,
    span: Duration,
    bytes: u64,
    /// All time with something to wait for.
    pub(super) busy: Duration,
    /// All bytes.
    pub(super) total_bytes: u64,
}

impl Meter {
    /// This many bytes came within `took`.
    pub(super) fn push(&mut self, took: Duration, bytes: u64) {
        self.samples.push_back((took, bytes));
        self.span += took;
        self.busy += took;
        self.bytes += bytes;
        self.total_bytes += bytes;
        while let Some((first, count)) = self.samples.front().copied()
            && self.span - first >= SPAN
        {
            self.samples.pop_front();
            self.span -= first;
            self.bytes -= count;
        }
    }

    /// Bytes in a second, if that can be said.
    pub(super) fn bytes_per_s(&self) -> Option<f64> {
        (self.span >= FIRST).then(|| self.bytes as f64 / self.span.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_of_the_last_seconds() {
        let mut meter = Meter::default();
        meter.push(Duration::from_millis(100), 1_000_000);
        assert_eq!(meter.bytes_per_s(), None);
        meter.push(Duration::from_millis(100), 1_000_000);
        assert_eq!(meter.bytes_per_s(), Some(10_000_000.0));
        (0..100).for_each(|_| meter.push(Duration::from_millis(50), 1_000));
        assert_eq!(meter.bytes_per_s(), Some(20_000.0));
        assert_eq!((meter.busy, meter.total_bytes), (Duration::from_millis(5_200), 2_100_000));
    }
}
