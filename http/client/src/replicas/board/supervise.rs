//! Looking after streams: who is slow is compared with another, and the slower leaves.

use std::time::{Duration, Instant};

use super::{Board, Stream, StreamId};

/// Less of a slow replica's work left than this is not worth another connection.
const WORTHWHILE: Duration = Duration::from_secs(1);
/// A hedge is judged by what it did in this time, or by this many bytes.
pub(super) const TRIAL: Duration = Duration::from_secs(3);
const TRIAL_BYTES: u64 = 256 << 10;
/// A stream that has been compared with another is left alone for a while.
const REST: Duration = Duration::from_secs(15);
/// Whoever is slower than another by this is left.
const MUCH_SLOWER: f64 = 2.0;
/// A stream slower than what is known of another replica by this is compared with it.
const SUSPECT: f64 = 4.0;

impl Board {
    /// Looks at the streams: leaves those that others have overtaken. Returns the stream that another
    /// is to be started beside, if there is one.
    pub(in crate::replicas) fn supervise(&mut self, now: Instant) -> Option<StreamId> {
        let hedges: Vec<(StreamId, StreamId)> =
            self.streams.iter().filter_map(|(id, stream)| Some((*id, stream.hedges?))).collect();
        for (hedge, of) in hedges {
            self.judge(hedge, of, now);
        }
        let is_comparing = self.streams.values().any(|stream| stream.hedges.is_some() && !stream.is_leaving);
        if is_comparing || self.best_site(now, true).is_none() {
            return None;
        }
        let suspects = self.streams.iter().filter(|(id, _)| self.is_suspect(**id, now));
        suspects.map(|(id, _)| *id).next()
    }

    fn is_suspect(&self, id: StreamId, now: Instant) -> bool {
        let Some(stream) = self.streams.get(&id) else { return false };
        let is_resting = stream.rests_until.is_some_and(|until| now < until);
        if stream.is_leaving || stream.is_idle || is_resting {
            return false;
        }
        if self.is_stalled(stream, now) {
            return true;
        }
        let Some(rate) = stream.meter.bytes_per_s() else { return false };
        let known_of_others = self.sites.iter().enumerate().filter(|(site, _)| Some(*site) != stream.replica);
        let best = known_of_others.filter_map(|(_, site)| site.bytes_per_s(now)).fold(0.0, f64::max);
        let is_slow = rate < self.patience.floor_bytes_per_s || rate * SUSPECT < best;
        let open: u64 = self.jobs.values().filter(|job| job.outcome.is_none()).map(|job| job.bytes).sum();
        let left_s = (open + self.expected_bytes) as f64 / rate.max(1.0);
        let has_waited = now.duration_since(stream.front_since) >= WORTHWHILE / 2;
        is_slow
            && stream.meter.busy >= self.patience.detection
            && (has_waited || left_s > WORTHWHILE.as_secs_f64())
            && left_s > WORTHWHILE.as_secs_f64() / 2.0
    }

    fn is_stalled(&self, stream: &Stream, now: Instant) -> bool {
        let is_busy = !stream.held.is_empty() || (!stream.is_idle && stream.replica.is_some());
        is_busy && now.duration_since(stream.moved) >= self.patience.stall
    }

    /// Compares a hedge with the stream that it was started beside; one of the two leaves.
    fn judge(&mut self, hedge: StreamId, of: StreamId, now: Instant) {
        let Some(first) = self.streams.get(&of).filter(|stream| !stream.is_leaving) else {
            // It stays in the place of the other.
            self.streams.get_mut(&hedge).into_iter().for_each(|hedge| hedge.hedges = None);
            return;
        };
        let Some(second) = self.streams.get(&hedge).filter(|stream| !stream.is_leaving) else { return };
        let (brought, age) = (second.meter.total_bytes, now.duration_since(second.since));
        let rates = (first.meter.bytes_per_s().unwrap_or(0.0), second.meter.bytes_per_s());
        let has_overtaken = match rates {
            _ if self.is_stalled(first, now) => brought > 0,
            (ours, Some(theirs)) => brought >= TRIAL_BYTES && theirs > MUCH_SLOWER * ours,
            (_, None) => false,
        };
        let is_over = age >= TRIAL && brought > 0 && !self.is_stalled(first, now);
        if has_overtaken {
            self.leave(of);
            self.streams.get_mut(&hedge).into_iter().for_each(|hedge| hedge.hedges = None);
        } else if is_over {
            self.leave(hedge);
            self.streams.get_mut(&of).into_iter().for_each(|first| first.rests_until = Some(now + REST));
        }
    }

    fn leave(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.is_leaving = true;
        let rate = stream.meter.bytes_per_s();
        if let Some(site) = stream.replica.and_then(|site| self.sites.get_mut(site)) {
            tracing::debug!(url = site.shown, ?rate, "leaving a replica that another has overtaken");
            site.left(rate, Instant::now());
        }
    }
}
