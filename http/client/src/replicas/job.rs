//! A job: ranges that one stream fetches, and the bytes that have arrived so far.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fordway_wire::metalink::{FileHash, PieceHashes};

use crate::vector::{FragmentMemory, in_order};

/// Ranges (offset, length) of one job.
pub(super) type JobRanges = Arc<[(u64, usize)]>;

/// The bytes of a job that have arrived. The buffer has room for all ranges of the job, one after the other.
pub(super) struct PartialJob {
    pub(super) bytes: Vec<u8>,
    /// The number of valid bytes at the start of each range.
    filled: Vec<usize>,
    /// The replicas that sent the bytes.
    pub(super) sources: Vec<usize>,
}

impl PartialJob {
    /// Creates the buffer for a job of which no bytes have arrived yet.
    pub(super) fn new(ranges: &[(u64, usize)]) -> Self {
        let bytes = ranges.iter().map(|(_, len)| len).sum();
        PartialJob { bytes: vec![0; bytes], filled: vec![0; ranges.len()], sources: Vec::new() }
    }

    /// Returns the missing bytes, as ranges with their destinations.
    fn missing(&self, ranges: &[(u64, usize)]) -> (Vec<(u64, usize)>, Vec<RangeDestination>) {
        let (mut wanted, mut slots, mut start) = (Vec::new(), Vec::new(), 0);
        for (range, ((offset, len), filled)) in ranges.iter().zip(&self.filled).enumerate() {
            if filled < len {
                wanted.push((offset + *filled as u64, len - filled));
                slots.push(RangeDestination { range, start: start + filled, filled: *filled });
            }
            start += len;
        }
        (wanted, slots)
    }

    /// Stores the parts of `bytes` that `ranges` cover; `bytes` begins at file offset `at`.
    pub(super) fn fill(&mut self, ranges: &[(u64, usize)], at: u64, bytes: &[u8]) {
        let (end, mut start) = (at + bytes.len() as u64, 0);
        for (offset, len) in ranges {
            let (from, until) = (at.max(*offset), end.min(offset + *len as u64));
            if from < until {
                let place = start + (from - offset) as usize;
                let taken = &bytes[(from - at) as usize..(until - at) as usize];
                self.bytes[place..][..taken.len()].copy_from_slice(taken);
            }
            start += len;
        }
    }

    /// Returns whether any bytes have arrived.
    pub(super) fn is_worth_keeping(&self) -> bool {
        self.filled.iter().any(|filled| *filled > 0)
    }

    /// Checks each range, which is a piece of the file, against its digest. Marks ranges that do not match as missing.
    /// Returns whether any range did not match.
    pub(super) fn reject_bad_pieces(&mut self, ranges: &[(u64, usize)], pieces: &PieceHashes) -> bool {
        let (mut start, mut has_bad) = (0, false);
        for (range, (offset, len)) in ranges.iter().enumerate() {
            let bytes = &self.bytes[start..start + len];
            let index = usize::try_from(offset / pieces.length_bytes).unwrap_or(usize::MAX);
            let is_good =
                pieces.hex.get(index).is_some_and(|hex| FileHash::of(pieces.kind, bytes).hex == *hex);
            self.filled[range] = if is_good { *len } else { 0 };
            has_bad |= !is_good;
            start += len;
        }
        has_bad
    }
}

/// The destination of a requested range.
struct RangeDestination {
    range: usize,
    /// The offset of the range in the job's memory.
    start: usize,
    /// The number of bytes at the start of the range that arrived earlier.
    filled: usize,
}

/// The memory of a job that a stream is filling. Dropping this guard returns the memory to the mailbox.
pub(super) struct JobBufferGuard {
    partial: Option<PartialJob>,
    slots: Vec<RangeDestination>,
    home: Arc<JobBufferMailbox>,
}

/// The mailbox through which a job's bytes, and the number of these bytes, reach the stream's thread.
#[derive(Default)]
pub(super) struct JobBufferMailbox {
    partial: Mutex<Option<PartialJob>>,
    arrived_bytes: AtomicU64,
}

impl JobBufferMailbox {
    /// Returns the number of bytes that have arrived.
    pub(super) fn arrived_bytes(&self) -> u64 {
        self.arrived_bytes.load(Ordering::Relaxed)
    }

    /// Takes the memory, if it has been returned.
    pub(super) fn take(&self) -> Option<PartialJob> {
        self.partial.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl JobBufferGuard {
    /// Creates memory for the bytes of `ranges` that `partial` lacks. Also returns the ranges to request.
    pub(super) fn new(
        ranges: &[(u64, usize)],
        partial: Option<PartialJob>,
        replica: usize,
    ) -> (Vec<(u64, usize)>, Self, Arc<JobBufferMailbox>) {
        let mut partial = partial.unwrap_or_else(|| PartialJob::new(ranges));
        if !partial.sources.contains(&replica) {
            partial.sources.push(replica);
        }
        let (wanted, slots) = partial.missing(ranges);
        let home = Arc::new(JobBufferMailbox::default());
        (wanted, JobBufferGuard { partial: Some(partial), slots, home: home.clone() }, home)
    }

    fn position(&self, (slot, within): (usize, usize)) -> usize {
        self.slots[slot].start + within
    }
}

impl FragmentMemory for JobBufferGuard {
    fn slice(&mut self, fragment: usize, within: usize, len: usize) -> &mut [u8] {
        let start = self.position((fragment, within));
        let Some(partial) = &mut self.partial else { return &mut [] };
        &mut partial.bytes[start..][..len]
    }

    fn slices(&mut self, places: &[(usize, usize, usize)]) -> Vec<&mut [u8]> {
        let (Some(partial), slots) = (&mut self.partial, &self.slots) else { return Vec::new() };
        in_order(
            &mut partial.bytes,
            places.iter().map(|(slot, within, len)| (slots[*slot].start + within, *len)),
        )
    }

    fn arrived(&mut self, fragment: usize, within: usize, len: usize) {
        let slot = &self.slots[fragment];
        let Some(partial) = &mut self.partial else { return };
        let filled = std::mem::replace(&mut partial.filled[slot.range], slot.filled + within + len);
        let lost_bytes = filled.saturating_sub(slot.filled + within);
        self.home.arrived_bytes.fetch_add(len as u64, Ordering::Relaxed);
        self.home.arrived_bytes.fetch_sub(lost_bytes as u64, Ordering::Relaxed);
    }

    fn copy(&mut self, from: (usize, usize), to: (usize, usize), len: usize) {
        let (from, to) = (self.position(from), self.position(to));
        if let Some(partial) = &mut self.partial {
            partial.bytes.copy_within(from..from + len, to);
        }
    }
}

impl Drop for JobBufferGuard {
    fn drop(&mut self) {
        *self.home.partial.lock().unwrap_or_else(PoisonError::into_inner) = self.partial.take();
    }
}

/// Returns whether ranges overlap. If they overlap, the start of one range may arrive as part of another range, so the
/// partial progress of each range is unknown.
pub(super) fn overlap(ranges: &[(u64, usize)]) -> bool {
    let mut sorted: Vec<_> = ranges.iter().filter(|(_, len)| *len > 0).collect();
    sorted.sort_unstable();
    sorted.windows(2).any(|pair| pair[0].0 + pair[0].1 as u64 > pair[1].0)
}

#[cfg(test)]
mod tests {
    use fordway_wire::metalink::FileHashAlgorithm;

    use super::*;

    #[test]
    fn what_has_arrived_is_not_asked_for_again() {
        let ranges = [(100, 4), (200, 3)];
        let (wanted, mut landing, home) = JobBufferGuard::new(&ranges, None, 7);
        assert_eq!(wanted, ranges);
        landing.slice(0, 0, 4)[..2].copy_from_slice(b"ab");
        landing.arrived(0, 0, 2);
        landing.slice(0, 2, 2)[..1].copy_from_slice(b"c");
        assert!(home.take().is_none() && home.arrived_bytes() == 2);
        landing.arrived(0, 2, 1);
        // The last byte is missing again.
        landing.arrived(0, 2, 0);
        assert_eq!(home.arrived_bytes(), 2);
        drop(landing);
        let partial = home.take().unwrap();
        assert!(partial.is_worth_keeping());
        let (wanted, mut landing, home) = JobBufferGuard::new(&ranges, Some(partial), 8);
        assert_eq!(wanted, [(102, 2), (200, 3)]);
        landing.slice(1, 0, 3).copy_from_slice(b"xyz");
        landing.slice(0, 0, 2).copy_from_slice(b"cd");
        drop(landing);
        let partial = home.take().unwrap();
        assert_eq!((partial.bytes, partial.sources), (b"abcdxyz".to_vec(), vec![7, 8]));
    }

    #[test]
    fn bad_pieces_are_missing_again() {
        let hex =
            [&b"abcd"[..], b"xyz"].map(|piece| FileHash::of(FileHashAlgorithm::Sha1, piece).hex).to_vec();
        let pieces = PieceHashes { length_bytes: 4, kind: FileHashAlgorithm::Sha1, hex };
        let ranges = [(0, 4), (4, 3)];
        let mut partial = PartialJob { bytes: b"abcdxyZ".to_vec(), ..PartialJob::new(&ranges) };
        assert!(partial.reject_bad_pieces(&ranges, &pieces));
        let (wanted, landing, home) = JobBufferGuard::new(&ranges, Some(partial), 0);
        assert_eq!(wanted, [(4, 3)]);
        drop(landing);
        let mut partial = home.take().unwrap();
        partial.bytes[6] = b'z';
        assert!(!partial.reject_bad_pieces(&ranges, &pieces));
    }

    #[test]
    fn overlaps_are_seen() {
        assert!(overlap(&[(10, 5), (0, 11)]) && overlap(&[(3, 1), (3, 1)]));
        assert!(!overlap(&[(10, 5), (0, 10), (12, 0)]));
    }
}
