//! Which units of a file are missing: as runs, so that what is known of a file takes memory by what has arrived, and
//! not by how large somebody says that it is.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// Numbers of units, as runs that neither touch nor overlap: the first of each, and the one behind its last.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct MissingUnits(BTreeMap<u64, u64>);

impl MissingUnits {
    /// All bytes of a file of this size.
    pub(super) fn all(count: u64) -> Self {
        MissingUnits((count > 0).then_some((0, count)).into_iter().collect())
    }

    /// `units` are there. Cost: logarithmic in the number of runs, and linear in those that it touches.
    pub(super) fn remove(&mut self, units: Range<u64>) {
        if units.is_empty() {
            return;
        }
        let before = self.0.range(..units.start).next_back().map(|(start, end)| (*start, *end));
        if let Some((start, end)) = before.filter(|(_, end)| *end > units.start) {
            self.0.insert(start, units.start);
            self.keep_behind(units.end, end);
        }
        while let Some((start, end)) = self.0.range(units.clone()).next().map(|(start, end)| (*start, *end)) {
            self.0.remove(&start);
            self.keep_behind(units.end, end);
        }
    }

    fn keep_behind(&mut self, start: u64, end: u64) {
        if end > start {
            self.0.insert(start, end);
        }
    }

    /// The first that is missing.
    pub(super) fn first(&self) -> Option<u64> {
        self.0.keys().next().copied()
    }

    /// The runs, from first to last.
    pub(super) fn runs(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(start, end)| *start..*end)
    }

    /// The runs as bytes of a file of `size_bytes` in units of `unit_bytes`.
    pub(super) fn byte_ranges(&self, unit_bytes: u64, size_bytes: u64) -> VecDeque<Range<u64>> {
        let bytes = |unit: u64| unit.saturating_mul(unit_bytes).min(size_bytes);
        self.runs().map(|run| bytes(run.start)..bytes(run.end)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn neighbours_are_one_run() {
        let mut missing = MissingUnits::all(7);
        missing.remove(2..4);
        missing.remove(5..6);
        assert_eq!(missing.byte_ranges(10, 65), [0..20, 40..50, 60..65]);
        assert!(MissingUnits::all(0).byte_ranges(10, 0).is_empty());
        assert!(MissingUnits::all(u64::MAX).byte_ranges(1 << 20, 1 << 62).iter().eq([&(0..1 << 62)]));
    }

    proptest! {
        #[test]
        fn it_is_a_set(removed in prop::collection::vec((0_u64..40, 0_u64..9), 0..20)) {
            let (mut missing, mut model) = (MissingUnits::all(40), (0..40).collect::<BTreeSet<u64>>());
            for (start, count) in removed {
                let units = start..(start + count).min(40);
                missing.remove(units.clone());
                model.retain(|unit| !units.contains(unit));
                let found: Vec<u64> = missing.runs().flatten().collect();
                prop_assert_eq!(&found, &model.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(missing.first(), model.first().copied());
                let runs: Vec<_> = missing.runs().collect();
                prop_assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start));
            }
        }
    }
}
