//! The code that an input reached: the counters of `-C instrument-coverage`, read within the process. Without that
//! option there are no counters, and mutation is unguided.
//!
//! Only this workspace's crates are instrumented (`tools/soak-fuzz` builds them through a wrapper around rustc).
//! Reading the counters after each input therefore takes only microseconds.

use fordway_sys::{clear_coverage_counters, coverage_counters};

/// The hit counts of all counters that were ever reached, grouped into classes: 1, 2, 3, up to 7, up to 15, up to 31,
/// up to 127, and more.
#[derive(Debug, Default)]
pub struct CoverageMap {
    classes: Vec<u8>,
}

/// The code that a run reached and that no earlier run had reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewCoverage {
    /// Whether the run reached code for the first time.
    pub is_new_code: bool,
    /// Whether the run reached code, or a class of hit counts, for the first time.
    pub is_new_class: bool,
}

impl CoverageMap {
    /// Returns whether this program was built with coverage counters.
    pub fn is_counted() -> bool {
        !coverage_counters().is_empty()
    }

    /// Runs `act`, and returns the code that it reached for the first time.
    pub fn extend_by(&mut self, act: impl FnOnce()) -> NewCoverage {
        clear_coverage_counters();
        act();
        self.add(coverage_counters())
    }

    /// Returns the number of counters that were reached.
    pub fn reached(&self) -> usize {
        self.classes.iter().filter(|classes| **classes != 0).count()
    }

    fn add(&mut self, counts: &[u64]) -> NewCoverage {
        self.classes.resize(counts.len(), 0);
        let mut new = NewCoverage::default();
        for (known, count) in self.classes.iter_mut().zip(counts).filter(|(_, count)| **count != 0) {
            let class = class_of(*count);
            new.is_new_code |= *known == 0;
            new.is_new_class |= *known & class == 0;
            *known |= class;
        }
        new
    }
}

/// Returns the bit that represents a hit count's class.
fn class_of(count: u64) -> u8 {
    match count {
        0 => 0,
        1 => 1,
        2 => 2,
        3 => 4,
        4..=7 => 8,
        8..=15 => 16,
        16..=31 => 32,
        32..=127 => 64,
        _ => 128,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_counters_and_new_classes_are_noticed() {
        let mut reached = CoverageMap::default();
        let new = |is_new_code, is_new_class| NewCoverage { is_new_code, is_new_class };
        assert_eq!(reached.add(&[0, 1, 0]), new(true, true));
        assert_eq!(reached.add(&[0, 1, 0]), new(false, false));
        assert_eq!(reached.add(&[0, 5, 0]), new(false, true));
        assert_eq!(reached.add(&[0, 6, 0]), new(false, false));
        assert_eq!(reached.add(&[1, 0, 0]), new(true, true));
        assert_eq!(reached.reached(), 2);
    }
}
