//! From fragments, in whatever order and however they overlap, to what has to be received, once.
//! No sockets, no buffers.

use std::cmp::Reverse;
use std::ops::Range;

/// A place in the caller's memory: a fragment, and a position within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) fragment: usize,
    pub(super) within: usize,
}

/// Bytes of the file that are received straight into place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Receive {
    /// Position in the file.
    pub(super) at: u64,
    pub(super) len: usize,
    pub(super) to: Place,
}

impl Receive {
    pub(super) fn end(&self) -> u64 {
        self.at + self.len as u64
    }
}

/// Bytes that more than one fragment wants: received by the first, copied for the others when all is
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Duplicate {
    pub(super) from: Place,
    pub(super) to: Place,
    pub(super) len: usize,
}

/// What has to be done for a set of fragments.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// In the order of the file, none overlapping another, none empty.
    pub(super) receives: Vec<Receive>,
    pub(super) duplicates: Vec<Duplicate>,
}

impl Plan {
    /// For fragments of (offset, length), none ending beyond 2^64. Cost: a sort, which is linear for
    /// fragments in order.
    pub(super) fn new(fragments: &[(u64, usize)]) -> Self {
        let mut order: Vec<usize> = (0..fragments.len()).filter(|index| fragments[*index].1 > 0).collect();
        order.sort_unstable_by_key(|index| (fragments[*index].0, Reverse(fragments[*index].1)));
        let mut plan = Plan { receives: Vec::with_capacity(order.len()), duplicates: Vec::new() };
        let mut covered = 0;
        for fragment in order {
            let (offset, length) = fragments[fragment];
            let known = covered.clamp(offset, offset + length as u64);
            if known > offset {
                plan.duplicate(offset, (known - offset) as usize, fragment);
            }
            let within = (known - offset) as usize;
            if within < length {
                let to = Place { fragment, within };
                plan.receives.push(Receive { at: known, len: length - within, to });
                covered = offset + length as u64;
            }
        }
        plan
    }

    /// What is received, neighbours as one.
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

    /// Has the first `len` bytes of `fragment`, from `offset` of the file, copied from those that
    /// receive them.
    fn duplicate(&mut self, offset: u64, len: usize, fragment: usize) {
        let mut done = 0;
        let first = self.receives.partition_point(|receive| receive.end() <= offset);
        for receive in &self.receives[first..] {
            let skipped = (offset + done as u64 - receive.at) as usize;
            let count = (receive.len - skipped).min(len - done);
            let from = Place { within: receive.to.within + skipped, ..receive.to };
            self.duplicates.push(Duplicate { from, to: Place { fragment, within: done }, len: count });
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

    use super::*;

    fn naive(file: &[u8], fragments: &[(u64, usize)]) -> Vec<Vec<u8>> {
        fragments.iter().map(|(offset, length)| file[*offset as usize..][..*length].to_vec()).collect()
    }

    fn carried_out(file: &[u8], fragments: &[(u64, usize)]) -> Vec<Vec<u8>> {
        let plan = Plan::new(fragments);
        let mut buffers: Vec<Vec<u8>> = fragments.iter().map(|(_, length)| vec![0; *length]).collect();
        let mut end = 0;
        for Receive { at, len, to } in plan.receives {
            assert!(at >= end && len > 0, "received twice");
            end = at + len as u64;
            buffers[to.fragment][to.within..][..len].copy_from_slice(&file[at as usize..][..len]);
        }
        for Duplicate { from, to, len } in plan.duplicates {
            let bytes = buffers[from.fragment][from.within..][..len].to_vec();
            buffers[to.fragment][to.within..][..len].copy_from_slice(&bytes);
        }
        buffers
    }

    #[test]
    fn nothing_is_received_twice() {
        let plan = Plan::new(&[(10, 5), (0, 5), (10, 5), (12, 10), (3, 0)]);
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
