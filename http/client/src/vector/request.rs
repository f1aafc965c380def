//! The spans that are still to be requested, and the requests made up of these spans.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use fordway_wire::range::push_range;

use super::learned::ServerProfile;

/// Identifies a batch within its file.
pub(super) type BatchId = u64;

/// Spans that are not requested yet, in the order in which callers want them.
#[derive(Default)]
pub(super) struct SpanQueue {
    spans: VecDeque<(BatchId, Range<u64>)>,
    /// The most recently written range list, kept to reuse its capacity.
    list: Vec<u8>,
}

/// A request in flight.
#[derive(Debug)]
pub(super) struct RangeRequest {
    pub(super) batch: BatchId,
    /// The requested spans, in order.
    pub(super) spans: Vec<Range<u64>>,
    /// The total size of the spans in bytes.
    pub(super) bytes: u64,
    /// The length of the range list.
    pub(super) list_bytes: usize,
    pub(super) sent: Instant,
    /// Whether another request was in flight on the same connection when this request was queued.
    pub(super) is_pipelined: bool,
    /// Whether the request was sent together with the previous one.
    pub(super) came_along: bool,
    /// How long the head of the response took to arrive.
    pub(super) waited: Option<Duration>,
}

impl SpanQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Returns the number of spans that are not requested yet.
    pub(super) fn len(&self) -> usize {
        self.spans.len()
    }

    /// Appends spans in the given order.
    pub(super) fn push(&mut self, batch: BatchId, spans: impl IntoIterator<Item = Range<u64>>) {
        self.spans.extend(spans.into_iter().map(|span| (batch, span)));
    }

    /// Puts the spans of an unanswered request back at the front.
    pub(super) fn put_back(&mut self, batch: BatchId, spans: Vec<Range<u64>>) {
        spans.into_iter().rev().for_each(|span| self.spans.push_front((batch, span)));
    }

    /// Drops the spans of a batch.
    pub(super) fn forget(&mut self, batch: BatchId) {
        self.spans.retain(|(of, _)| *of != batch);
    }

    /// Takes as many spans of one batch as fit into a request to this server and into `room_bytes`, but at least one.
    /// Joins adjacent spans if that is cheaper. Also returns the value of the request's `Range` header.
    pub(super) fn next(&mut self, server: &ServerProfile, room_bytes: u64) -> Option<(RangeRequest, &[u8])> {
        let (batch, first) = self.spans.pop_front()?;
        let mut request = RangeRequest {
            batch,
            bytes: first.end - first.start,
            spans: vec![first],
            list_bytes: 0,
            sent: Instant::now(),
            is_pipelined: false,
            came_along: false,
            waited: None,
        };
        self.list.clear();
        self.list.extend_from_slice(b"bytes=");
        let gap_bytes = server.gap_bytes();
        while let Some((_, next)) = self.spans.front().filter(|(of, _)| *of == batch) {
            let Some(last) = request.spans.last_mut() else { break };
            // The spans of several failed requests may be in the queue in any order. Within a request, spans ascend.
            let Some(gap) = next.start.checked_sub(last.end) else { break };
            let gap = Some(gap).filter(|gap| *gap <= gap_bytes);
            // A server that does not support ranges sends the whole file for every request, so put everything into a
            // single request.
            if request.bytes + (next.end - next.start) > room_bytes && !server.ignores_ranges {
                break;
            }
            if gap.is_none() {
                // Write the range only now, because its end moves while adjacent spans are joined.
                push_range(&mut self.list, last);
                let is_full = request.spans.len() >= server.ranges_per_request
                    || self.list.len() + RANGE_BYTES_MAX > server.list_bytes;
                if is_full {
                    request.list_bytes = self.list.len();
                    return Some((request, &self.list));
                }
                request.spans.push(next.clone());
            } else {
                last.end = next.end;
            }
            request.bytes += gap.unwrap_or(0) + next.end - next.start;
            self.spans.pop_front();
        }
        if let Some(last) = request.spans.last() {
            push_range(&mut self.list, last);
        }
        request.list_bytes = self.list.len();
        Some((request, &self.list))
    }
}

/// The maximum length of a range in a list: a comma, two numbers of up to 20 digits and a hyphen.
const RANGE_BYTES_MAX: usize = 42;

impl RangeRequest {
    /// Drops everything beyond the end of a file of `size_bytes`, because no server sends it.
    pub(super) fn cut_at(&mut self, size_bytes: u64) {
        self.spans.retain(|span| span.start < size_bytes);
        self.spans.iter_mut().for_each(|span| span.end = span.end.min(size_bytes));
        self.bytes = self.spans.iter().map(|span| span.end - span.start).sum();
    }

    /// Adds `range` to the spans.
    pub(super) fn include(&mut self, range: Range<u64>) {
        self.spans.push(range);
        self.spans.sort_unstable_by_key(|span| span.start);
        self.spans.dedup_by(|next, last| {
            let is_joined = next.start <= last.end;
            last.end = if is_joined { last.end.max(next.end) } else { last.end };
            is_joined
        });
    }

    /// Returns whether the request includes any byte of `range`.
    pub(super) fn wants_of(&self, range: &Range<u64>) -> bool {
        let next = self.spans.partition_point(|span| span.end <= range.start);
        self.spans.get(next).is_some_and(|span| span.start < range.end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn server(ranges_per_request: usize) -> ServerProfile {
        let mut server = ServerProfile::guess(true);
        server.ranges_per_request = ranges_per_request;
        server
    }

    fn lists(queue: &mut SpanQueue, server: &ServerProfile, room_bytes: u64) -> Vec<String> {
        let next = |queue: &mut SpanQueue| {
            queue.next(server, room_bytes).map(|(request, list)| {
                assert_eq!(request.list_bytes, list.len());
                String::from_utf8(list.to_vec()).unwrap()
            })
        };
        std::iter::from_fn(|| next(queue)).collect()
    }

    #[test]
    fn requests_keep_to_the_servers_limits() {
        let spans = [0..10, 20..30, 1000..1010, 5000..5010, 9000..9010];
        let asked = |server: &ServerProfile, room_bytes: u64| {
            let mut queue = SpanQueue::default();
            queue.push(7, spans.clone());
            queue.push(8, std::iter::once(0..1));
            lists(&mut queue, server, room_bytes)
        };
        assert_eq!(asked(&server(9), 1 << 20), ["bytes=0-29,1000-1009,5000-5009,9000-9009", "bytes=0-0"]);
        assert_eq!(
            asked(&server(2), 1 << 20),
            ["bytes=0-29,1000-1009", "bytes=5000-5009,9000-9009", "bytes=0-0"]
        );
        assert_eq!(asked(&server(9), 35), ["bytes=0-29", "bytes=1000-1009,5000-5009,9000-9009", "bytes=0-0"]);
        let mut short = server(9);
        short.list_bytes = 60;
        assert_eq!(asked(&short, 1 << 20)[0], "bytes=0-29,1000-1009");
        let mut whole = server(1);
        whole.range_ignored();
        assert_eq!(asked(&whole, 10), ["bytes=0-9009", "bytes=0-0"]);
    }

    #[test]
    fn nothing_is_awaited_from_behind_the_end() {
        let mut queue = SpanQueue::default();
        queue.push(0, [0..10, 5000..6000, 9000..u64::MAX]);
        let (mut request, _) = queue.next(&server(9), u64::MAX).unwrap();
        request.cut_at(5600);
        assert_eq!((request.spans, request.bytes), (vec![0..10, 5000..5600], 610));
    }

    #[test]
    fn the_spans_of_a_request_ascend() {
        let mut queue = SpanQueue::default();
        queue.put_back(0, vec![0..1, 3000..3001]);
        queue.put_back(0, vec![7000..7001, 9000..9001]);
        queue.put_back(0, vec![5000..5001, 6000..6001]);
        assert_eq!(
            lists(&mut queue, &server(9), 99),
            ["bytes=5000-5000,6000-6000,7000-7000,9000-9000", "bytes=0-0,3000-3000"]
        );
    }

    #[test]
    fn spans_are_joined_with_what_was_lost() {
        let mut queue = SpanQueue::default();
        queue.push(0, [1000..1010, 5000..5010, 9000..9010]);
        let (mut request, _) = queue.next(&server(9), 1 << 20).unwrap();
        for (lost, spans) in [
            (5002..5004, vec![1000..1010, 5000..5010, 9000..9010]),
            (5005..6000, vec![1000..1010, 5000..6000, 9000..9010]),
            (100..200, vec![100..200, 1000..1010, 5000..6000, 9000..9010]),
            (150..6500, vec![100..6500, 9000..9010]),
        ] {
            request.include(lost);
            assert_eq!(request.spans, spans);
        }
    }

    #[test]
    fn what_goes_back_comes_first() {
        let mut queue = SpanQueue::default();
        queue.push(1, std::iter::once(5000..5001));
        queue.put_back(0, vec![0..1, 3000..3001]);
        assert_eq!(lists(&mut queue, &server(9), 99), ["bytes=0-0,3000-3000", "bytes=5000-5000"]);
        queue.push(1, std::iter::once(5000..5001));
        queue.forget(1);
        assert!(queue.is_empty());
    }

    proptest! {
        #[test]
        fn everything_is_asked_for(starts in prop::collection::btree_set(0_u64..100_000, 1..80), ranges in 1_usize..9, room in 1_u64..5000) {
            let spans: Vec<_> = starts.iter().map(|start| start * 10..start * 10 + 7).collect();
            let mut queue = SpanQueue::default();
            queue.push(0, spans.clone());
            let mut asked: Vec<Range<u64>> = Vec::new();
            while let Some((request, _)) = queue.next(&server(ranges), room) {
                prop_assert!(request.spans.len() <= ranges);
                prop_assert!(spans.iter().filter(|span| request.wants_of(span)).count() >= request.spans.len());
                asked.extend(request.spans);
            }
            prop_assert!(asked.windows(2).all(|pair| pair[0].end <= pair[1].start));
            prop_assert!(spans.iter().all(|span| asked.iter().any(|a| a.start <= span.start && span.end <= a.end)));
        }
    }
}
