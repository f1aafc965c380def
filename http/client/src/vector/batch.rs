//! The fragments of one call, which may be in any order and may overlap. The plan lists each byte to receive once, and
//! uses neither sockets nor buffers. The batch tracks which bytes are missing, and where arriving bytes go.

use std::cmp::Reverse;
use std::ops::Range;
use std::time::Instant;

use fordway_store::{Error, ErrorKind};

use super::sink::FragmentSink;

/// The kind of bytes at a position in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteRunKind {
    /// This many wanted bytes.
    Wanted(usize),
    /// This many bytes that are not wanted, or no longer wanted.
    Unwanted(u64),
}

/// The fragments of one call.
pub(super) struct FragmentBatch<S> {
    plan: ReceivePlan,
    /// For each [`DirectReceive`], the number of bytes from its start that have arrived.
    filled: Vec<usize>,
    missing_bytes: u64,
    /// The index of the receive to which the last bytes belonged; the next bytes most likely follow them.
    cursor: usize,
    sink: S,
    /// The number of requests in flight for this batch.
    pub(super) requests: usize,
    /// The time at which an incomplete batch fails with `Timeout`.
    pub(super) until: Option<Instant>,
    /// Why the batch cannot be completed.
    pub(super) failure: Option<Error>,
}

impl<S: FragmentSink> FragmentBatch<S> {
    /// Creates a batch. `sink` has memory for `fragments`, which are (offset, length) pairs.
    pub(super) fn new(fragments: &[(u64, usize)], sink: S) -> Self {
        let plan = ReceivePlan::new(fragments);
        let missing_bytes = plan.receives.iter().map(|receive| receive.len as u64).sum();
        let mut batch = FragmentBatch {
            filled: vec![0; plan.receives.len()],
            missing_bytes,
            cursor: 0,
            plan,
            sink,
            requests: 0,
            until: None,
            failure: None,
        };
        batch.complete_if_all_is_there();
        batch
    }

    /// Returns whether the batch is complete or has failed.
    pub(super) fn has_ended(&self) -> bool {
        self.missing_bytes == 0 || self.failure.is_some()
    }

    /// Returns whether the batch is complete or has failed, and all responses for it have ended. Their connections are
    /// then free for other batches.
    pub(super) fn is_settled(&self) -> bool {
        self.has_ended() && self.requests == 0
    }

    pub(super) fn missing_bytes(&self) -> u64 {
        self.missing_bytes
    }

    /// Returns the number of bytes that have arrived.
    pub(super) fn delivered_bytes(&self) -> u64 {
        self.filled.iter().map(|filled| *filled as u64).sum()
    }

    /// Returns the memory, or the batch's failure.
    pub(super) fn into_result(self) -> Result<S, Error> {
        self.failure.map_or(Ok(self.sink), Err)
    }

    /// Returns the missing bytes within `range`, in order, with adjacent ranges joined.
    pub(super) fn missing(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let first = self.plan.receives.partition_point(|receive| receive.end() <= range.start);
        let mut spans: Vec<Range<u64>> = Vec::new();
        for (receive, filled) in self.plan.receives[first..].iter().zip(&self.filled[first..]) {
            if receive.at >= range.end {
                break;
            }
            let start = (receive.at + *filled as u64).max(range.start);
            let end = receive.end().min(range.end);
            match spans.last_mut() {
                _ if start >= end => {}
                Some(last) if last.end == start => last.end = end,
                _ => spans.push(start..end),
            }
        }
        spans
    }

    /// Returns the kind of bytes at `at`, and moves the cursor to that position.
    pub(super) fn look(&mut self, at: u64) -> ByteRunKind {
        let receives = &self.plan.receives;
        let is_near = |cursor: usize| {
            receives.get(cursor).is_some_and(|receive| at < receive.end())
                && (cursor == 0 || receives[cursor - 1].end() <= at)
        };
        self.cursor = match (is_near(self.cursor), is_near(self.cursor + 1)) {
            (true, _) => self.cursor,
            (_, true) => self.cursor + 1,
            _ => receives.partition_point(|receive| receive.end() <= at),
        };
        let Some(receive) = receives.get(self.cursor) else { return ByteRunKind::Unwanted(u64::MAX) };
        let filled = self.filled[self.cursor];
        let next = receive.at + filled as u64;
        match at.cmp(&next) {
            std::cmp::Ordering::Equal => ByteRunKind::Wanted(receive.len - filled),
            std::cmp::Ordering::Less => ByteRunKind::Unwanted(next - at),
            // Bytes before this position are missing, so the rest of the range will be requested again.
            std::cmp::Ordering::Greater => ByteRunKind::Unwanted(receive.end() - at),
        }
    }

    /// Returns the memory for up to `len` wanted bytes at the position of the last call to `look`.
    pub(super) fn room(&mut self, len: usize) -> &mut [u8] {
        let (DirectReceive { to, .. }, filled) = (self.plan.receives[self.cursor], self.filled[self.cursor]);
        let place = FragmentPosition { within: to.within + filled, ..to };
        self.sink.slice(place, len)
    }

    /// Appends the destinations of the bytes in `range`, and their lengths, to `places` in file order. Stops after
    /// `most` destinations, or at the first byte that is unwanted or follows a missing byte. Returns whether the whole
    /// range was added.
    pub(super) fn places(
        &self,
        range: Range<u64>,
        places: &mut Vec<(FragmentPosition, usize)>,
        most: usize,
    ) -> bool {
        let mut at = range.start;
        let first = self.plan.receives.partition_point(|receive| receive.end() <= at);
        for (receive, filled) in self.plan.receives[first..].iter().zip(&self.filled[first..]) {
            if at >= range.end || receive.at + *filled as u64 != at || places.len() >= most {
                break;
            }
            let end = receive.end().min(range.end);
            let place = FragmentPosition { within: receive.to.within + filled, ..receive.to };
            places.push((place, (end - at) as usize));
            at = end;
        }
        at >= range.end
    }

    /// See [`FragmentSink::slice`].
    pub(super) fn slice(&mut self, place: FragmentPosition, len: usize) -> &mut [u8] {
        self.sink.slice(place, len)
    }

    /// See [`FragmentSink::slices`].
    pub(super) fn slices(&mut self, places: &[(FragmentPosition, usize)]) -> Vec<&mut [u8]> {
        self.sink.slices(places)
    }

    /// Records bytes that were written into [`FragmentBatch::room`].
    pub(super) fn filled(&mut self, len: usize) {
        let (to, filled) = (self.plan.receives[self.cursor].to, self.filled[self.cursor]);
        self.sink.arrived(FragmentPosition { within: to.within + filled, ..to }, len);
        self.filled[self.cursor] += len;
        self.missing_bytes -= len as u64;
        self.complete_if_all_is_there();
    }

    /// Returns the memory of the bytes in `range` that have arrived, in file order, up to the first missing byte.
    pub(super) fn arrived(&self, range: &Range<u64>) -> Vec<(FragmentPosition, usize)> {
        let mut at = range.start;
        let first = self.plan.receives.partition_point(|receive| receive.end() <= at);
        let mut places = Vec::new();
        for (receive, filled) in self.plan.receives[first..].iter().zip(&self.filled[first..]) {
            let end = (receive.at + *filled as u64).min(range.end);
            if receive.at > at || end <= at {
                break;
            }
            let within = receive.to.within + (at - receive.at) as usize;
            places.push((FragmentPosition { within, ..receive.to }, (end - at) as usize));
            at = end;
        }
        places
    }

    /// Marks the bytes in `range` as missing, although they have arrived. Only the beginning of a fragment can be
    /// present, so later bytes of the same fragment are also missing. Returns `range`, extended by these bytes.
    pub(super) fn lose(&mut self, range: Range<u64>) -> Range<u64> {
        let first = self.plan.receives.partition_point(|receive| receive.end() <= range.start);
        let mut end = range.end;
        for (receive, filled) in self.plan.receives[first..].iter().zip(&mut self.filled[first..]) {
            if receive.at >= range.end || range.is_empty() {
                break;
            }
            let kept = range.start.saturating_sub(receive.at) as usize;
            if kept < *filled {
                end = end.max(receive.at + *filled as u64);
                self.missing_bytes += (*filled - kept) as u64;
                *filled = kept;
                self.sink.arrived(FragmentPosition { within: receive.to.within + kept, ..receive.to }, 0);
            }
        }
        range.start..end
    }

    /// Records that a response was wrong. If bytes are missing, they are requested again. If the batch is complete, its
    /// bytes cannot be trusted, and the batch fails.
    pub(super) fn refute(&mut self, error: &Error) {
        if self.missing_bytes == 0 && error.kind() == ErrorKind::BadResponse {
            self.failure.get_or_insert_with(|| error.repeated());
        }
    }

    /// Fails the batch, because bytes that have already arrived may belong to a position other than the one that the
    /// server specified. Returns the error.
    pub(super) fn distrust(&mut self, error: Error) -> Error {
        self.failure.get_or_insert_with(|| error.repeated());
        error
    }

    fn complete_if_all_is_there(&mut self) {
        if self.missing_bytes == 0 {
            self.plan.duplicates.iter().for_each(|duplicate| self.sink.copy(duplicate));
        }
    }
}

/// A position in the caller's memory: a fragment, and an offset within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FragmentPosition {
    pub(super) fragment: usize,
    pub(super) within: usize,
}

/// Bytes of the file that are received directly into their destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DirectReceive {
    /// The offset in the file.
    pub(super) at: u64,
    pub(super) len: usize,
    pub(super) to: FragmentPosition,
}

impl DirectReceive {
    pub(super) fn end(&self) -> u64 {
        self.at + self.len as u64
    }
}

/// Bytes of the file that belong to more than one fragment. The bytes are received into the first fragment, and copied
/// to the others when the batch is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DuplicateBytes {
    pub(super) from: FragmentPosition,
    pub(super) to: FragmentPosition,
    pub(super) len: usize,
}

/// The plan for a set of fragments.
#[derive(Debug, Default)]
pub(super) struct ReceivePlan {
    /// The receives, in file order, without overlaps; none is empty.
    pub(super) receives: Vec<DirectReceive>,
    pub(super) duplicates: Vec<DuplicateBytes>,
}

impl ReceivePlan {
    /// Plans fragments, which are (offset, length) pairs; none may end beyond 2^64. Cost: a sort, which is linear if
    /// the fragments are already in order.
    pub(super) fn new(fragments: &[(u64, usize)]) -> Self {
        let mut order: Vec<usize> = (0..fragments.len()).filter(|index| fragments[*index].1 > 0).collect();
        order.sort_unstable_by_key(|index| (fragments[*index].0, Reverse(fragments[*index].1)));
        let mut plan = ReceivePlan { receives: Vec::with_capacity(order.len()), duplicates: Vec::new() };
        let mut covered = 0;
        for fragment in order {
            let (offset, length) = fragments[fragment];
            let known = covered.clamp(offset, offset + length as u64);
            if known > offset {
                plan.duplicate(offset, (known - offset) as usize, fragment);
            }
            let within = (known - offset) as usize;
            if within < length {
                let to = FragmentPosition { fragment, within };
                plan.receives.push(DirectReceive { at: known, len: length - within, to });
                covered = offset + length as u64;
            }
        }
        plan
    }

    /// Returns the bytes to receive, with adjacent ranges joined.
    pub(super) fn spans(&self) -> Vec<Range<u64>> {
        let mut spans: Vec<Range<u64>> = Vec::new();
        for receive in &self.receives {
            match spans.last_mut() {
                Some(last) if last.end == receive.at => last.end = receive.end(),
                _ => spans.push(receive.at..receive.end()),
            }
        }
        spans
    }

    /// Plans copies into the first `len` bytes of `fragment`, which begin at `offset` in the file. The bytes are copied
    /// from the fragments that receive them.
    fn duplicate(&mut self, offset: u64, len: usize, fragment: usize) {
        let mut done = 0;
        let first = self.receives.partition_point(|receive| receive.end() <= offset);
        for receive in &self.receives[first..] {
            let skipped = (offset + done as u64 - receive.at) as usize;
            let count = (receive.len - skipped).min(len - done);
            let from = FragmentPosition { within: receive.to.within + skipped, ..receive.to };
            self.duplicates.push(DuplicateBytes {
                from,
                to: FragmentPosition { fragment, within: done },
                len: count,
            });
            done += count;
            if done == len {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::sink::{FragmentArena, SpareBufferPool};
    use super::*;

    fn batch(ranges: &[(u64, usize)]) -> FragmentBatch<FragmentArena> {
        FragmentBatch::new(ranges, FragmentArena::new(ranges, &SpareBufferPool::default()))
    }

    #[test]
    fn bytes_are_taken_in_any_order_of_parts_and_once() {
        let mut batch = batch(&[(20, 4), (0, 4), (4, 2), (21, 2)]);
        assert_eq!(batch.missing(&(0..100)), [0..6, 20..24]);
        assert_eq!(batch.look(20), ByteRunKind::Wanted(4));
        batch.room(3).copy_from_slice(b"uvw");
        batch.filled(3);
        assert_eq!((batch.look(20), batch.look(23)), (ByteRunKind::Unwanted(3), ByteRunKind::Wanted(1)));
        assert_eq!(batch.missing(&(0..100)), [0..6, 23..24]);
        assert_eq!(batch.missing(&(1..5)), vec![1..5]);
        assert_eq!(
            (batch.look(1), batch.look(6), batch.look(24)),
            (ByteRunKind::Unwanted(3), ByteRunKind::Unwanted(17), ByteRunKind::Unwanted(u64::MAX))
        );
        for (at, bytes) in [(0, &b"abcd"[..]), (4, b"ef"), (23, b"x")] {
            assert_eq!(batch.look(at), ByteRunKind::Wanted(bytes.len()));
            batch.room(bytes.len()).copy_from_slice(bytes);
            batch.filled(bytes.len());
        }
        assert!(batch.has_ended());
        assert_eq!(batch.into_result().unwrap().bytes, b"uvwxabcdefvw");
    }

    #[test]
    fn bytes_that_are_lost_are_missing_with_all_behind_them() {
        let mut batch = batch(&[(0, 10), (10, 10), (30, 10), (0, 5)]);
        for at in [0, 10, 30] {
            assert_eq!(batch.look(at), ByteRunKind::Wanted(10));
            batch.room(10).fill(1);
            batch.filled(10);
        }
        assert!(batch.has_ended());
        assert_eq!((batch.lose(5..5), batch.missing_bytes()), (5..5, 0));
        assert_eq!(batch.lose(8..12), 8..20);
        assert_eq!(batch.missing(&(0..100)), vec![8..20]);
        assert_eq!(batch.arrived(&(0..40)).iter().map(|(_, len)| *len).collect::<Vec<_>>(), [8]);
        for at in [8, 10] {
            let ByteRunKind::Wanted(len) = batch.look(at) else { panic!("{at} is not wanted") };
            batch.room(len).fill(2);
            batch.filled(len);
        }
        let bytes = batch.into_result().unwrap().bytes;
        assert_eq!((bytes[7..11].to_vec(), bytes[30..].to_vec()), (vec![1, 2, 2, 2], vec![1; 5]));
    }

    #[test]
    fn nothing_asked_is_done_at_once() {
        assert!(batch(&[]).has_ended() && batch(&[(7, 0)]).has_ended());
    }

    fn naive(file: &[u8], fragments: &[(u64, usize)]) -> Vec<Vec<u8>> {
        fragments.iter().map(|(offset, length)| file[*offset as usize..][..*length].to_vec()).collect()
    }

    fn carried_out(file: &[u8], fragments: &[(u64, usize)]) -> Vec<Vec<u8>> {
        let plan = ReceivePlan::new(fragments);
        let mut buffers: Vec<Vec<u8>> = fragments.iter().map(|(_, length)| vec![0; *length]).collect();
        let mut end = 0;
        for DirectReceive { at, len, to } in plan.receives {
            assert!(at >= end && len > 0, "received twice");
            end = at + len as u64;
            buffers[to.fragment][to.within..][..len].copy_from_slice(&file[at as usize..][..len]);
        }
        for DuplicateBytes { from, to, len } in plan.duplicates {
            let bytes = buffers[from.fragment][from.within..][..len].to_vec();
            buffers[to.fragment][to.within..][..len].copy_from_slice(&bytes);
        }
        buffers
    }

    #[test]
    fn nothing_is_received_twice() {
        let plan = ReceivePlan::new(&[(10, 5), (0, 5), (10, 5), (12, 10), (3, 0)]);
        let received: Vec<_> = plan.receives.iter().map(|r| (r.at, r.len, r.to.fragment)).collect();
        assert_eq!(received, [(0, 5, 1), (10, 5, 0), (15, 7, 3)]);
        assert_eq!(plan.duplicates.len(), 2);
    }

    proptest! {
        #[test]
        fn fragments_are_what_a_copy_gives(fragments in prop::collection::vec((0_u64..200, 0_usize..56), 0..40)) {
            let file: Vec<u8> = (0..=255).collect();
            prop_assert_eq!(carried_out(&file, &fragments), naive(&file, &fragments));
        }
    }
}
