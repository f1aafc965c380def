//! Decides what to read ahead: predicts the next reads from past reads, and sets the size of the window to the number
//! of bytes that arrive in two round trips.

use std::time::{Duration, Instant};

use super::ServerProfile;

/// The initial size of a window, and its size after a jump.
const FIRST_BYTES: u64 = 256 << 10;
/// The window size up to which more memory is worthwhile on any link.
const USUAL_BYTES: u64 = 4 << 20;
/// The minimum time over which a rate is measured; over a shorter time, the rate depends on buffers instead of the
/// link.
const EPOCH: Duration = Duration::from_millis(5);

/// The window of a reader, which grows as reads continue.
#[derive(Debug)]
pub(super) struct ReadAheadWindow {
    window_bytes: u64,
    max_bytes: u64,
    /// The number of bytes read since `since`.
    bytes: u64,
    since: Instant,
    /// The number of bytes read since the window was last doubled.
    since_doubled: u64,
}

impl ReadAheadWindow {
    pub(super) fn new(max_bytes: u64) -> Self {
        let window_bytes = FIRST_BYTES.min(max_bytes);
        ReadAheadWindow { window_bytes, max_bytes, bytes: 0, since: Instant::now(), since_doubled: 0 }
    }

    /// Resets the window to its initial size and restarts the measurement of the rate.
    pub(super) fn restart(&mut self) {
        *self = ReadAheadWindow::new(self.max_bytes);
    }

    pub(super) fn window_bytes(&self) -> u64 {
        self.window_bytes
    }

    /// Returns the size of one request. A window contains several requests, so that it moves smoothly.
    pub(super) fn request_bytes(&self) -> u64 {
        (self.window_bytes / 8).clamp(64 << 10, 2 << 20)
    }

    /// Records that `bytes` more bytes have been read, the last of them at `now`.
    pub(super) fn read(&mut self, bytes: u64, now: Instant, learned: impl FnOnce() -> ServerProfile) {
        self.bytes += bytes;
        self.since_doubled += bytes;
        if self.since_doubled >= self.window_bytes && self.window_bytes < USUAL_BYTES {
            self.widen(self.window_bytes * 2);
            self.since_doubled = 0;
        }
        let elapsed = now.duration_since(self.since);
        if elapsed < EPOCH {
            return;
        }
        let ServerProfile { round_trip, bytes_per_s, .. } = learned();
        let round_trip = round_trip.unwrap_or_default();
        if elapsed >= round_trip {
            let rate = (self.bytes as f64 / elapsed.as_secs_f64()).max(bytes_per_s.unwrap_or_default());
            self.widen((2.0 * rate * round_trip.as_secs_f64()) as u64);
            (self.bytes, self.since) = (0, now);
        }
    }

    fn widen(&mut self, window_bytes: u64) {
        self.window_bytes = self.window_bytes.max(window_bytes).min(self.max_bytes);
    }
}

/// The predicted pattern of reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessPattern {
    /// The bytes after the last read, without gaps or with gaps that are small compared with the read-ahead.
    Sequential,
    /// Reads of equal length at constant distances.
    Strided { stride: u64, len: usize },
    /// Unpredictable.
    Random,
}

/// The reads so far, in the order in which they were made.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AccessPatternDetector {
    last: Option<(u64, usize)>,
    /// The distance between the last two reads.
    stride: u64,
    /// The number of successive reads of equal length at that distance.
    repeats: u32,
}

/// The number of equal distances that form a pattern; two distances need three reads.
const REPEATS: u32 = 2;
/// Gaps up to this size are read along with the data around them, because separate requests would cost more.
const GAP_BYTES: u64 = 16 << 10;

impl AccessPatternDetector {
    /// Records a read. A jump forward to an offset of at most `reach` still counts as sequential.
    pub(super) fn observe(&mut self, offset: u64, len: usize, reach: u64) -> AccessPattern {
        let Some((last, last_len)) = self.last.replace((offset, len)) else {
            return if offset == 0 { AccessPattern::Sequential } else { AccessPattern::Random };
        };
        let stride = offset.saturating_sub(last);
        self.repeats =
            if stride > 0 && stride == self.stride && len == last_len { self.repeats + 1 } else { 1 };
        self.stride = stride;
        match offset.checked_sub(last + last_len as u64) {
            Some(gap) if gap <= GAP_BYTES => AccessPattern::Sequential,
            Some(_) if self.repeats >= REPEATS => AccessPattern::Strided { stride, len },
            Some(_) if offset <= reach => AccessPattern::Sequential,
            _ => AccessPattern::Random,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(round_trip_ms: u64) -> ServerProfile {
        let mut learned = ServerProfile::guess(true);
        learned.round_trip = Some(Duration::from_millis(round_trip_ms));
        learned
    }

    /// Reads at the rate of a link with this round-trip time until the window stops growing.
    fn settled(max_bytes: u64, round_trip_ms: u64, bytes_per_ms: u64) -> u64 {
        let mut pace = ReadAheadWindow::new(max_bytes);
        let mut now = pace.since;
        for _ in 0..200 {
            // At most one window of data arrives per round trip.
            let bytes = (bytes_per_ms * round_trip_ms).min(pace.window_bytes());
            now += Duration::from_millis(round_trip_ms.max(5));
            pace.read(bytes, now, || link(round_trip_ms));
            assert!(pace.window_bytes() <= max_bytes);
        }
        pace.window_bytes()
    }

    #[test]
    fn the_window_becomes_what_two_round_trips_hold_and_keeps_to_its_bound() {
        assert_eq!(settled(64 << 20, 120, 125_000), 30_000_000);
        assert_eq!(settled(8 << 20, 120, 125_000), 8 << 20);
        assert_eq!(settled(64 << 20, 1, 125_000), USUAL_BYTES);
        assert_eq!(settled(1000, 120, 125_000), 1000);
    }

    #[test]
    fn a_jump_begins_again() {
        let mut pace = ReadAheadWindow::new(64 << 20);
        pace.read(FIRST_BYTES, pace.since, || link(1));
        assert_eq!((pace.window_bytes(), pace.request_bytes()), (2 * FIRST_BYTES, 64 << 10));
        pace.restart();
        assert_eq!(pace.window_bytes(), FIRST_BYTES);
    }

    fn last_of(reads: &[(u64, usize)], reach: u64) -> AccessPattern {
        let mut history = AccessPatternDetector::default();
        reads.iter().map(|(offset, len)| history.observe(*offset, *len, reach)).last().unwrap()
    }

    #[test]
    fn the_begin_of_a_file_is_read_on_and_any_other_place_is_not() {
        assert_eq!(last_of(&[(0, 10)], 0), AccessPattern::Sequential);
        assert_eq!(last_of(&[(10, 10)], 0), AccessPattern::Random);
        assert_eq!(last_of(&[(10, 10), (20, 10)], 0), AccessPattern::Sequential);
    }

    #[test]
    fn jumps_within_reach_go_on() {
        assert_eq!(last_of(&[(0, 10), (100_000, 10)], 100_000), AccessPattern::Sequential);
        assert_eq!(last_of(&[(0, 10), (100_000, 10)], 99_999), AccessPattern::Random);
        assert_eq!(last_of(&[(100_000, 10), (0, 10)], 1 << 30), AccessPattern::Random);
    }

    #[test]
    fn equal_steps_are_a_stride_unless_little_lies_between() {
        let wide = [(7, 100), (1_000_007, 100), (2_000_007, 100)];
        assert_eq!(last_of(&wide, 0), AccessPattern::Strided { stride: 1_000_000, len: 100 });
        assert_eq!(last_of(&wide[..2], 0), AccessPattern::Random);
        assert_eq!(last_of(&[(7, 100), (1_000_007, 100), (2_000_007, 90)], 0), AccessPattern::Random);
        assert_eq!(last_of(&[(0, 100), (200, 100), (400, 100)], 0), AccessPattern::Sequential);
        assert_eq!(last_of(&[(9, 9), (9, 9), (9, 9)], 0), AccessPattern::Random);
    }
}
