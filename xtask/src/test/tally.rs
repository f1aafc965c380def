//! Counts passed, failed and skipped tests from the runners' own output lines.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::AddAssign;

use super::skipped::{SkipReportedStatus, SkippedTest};

/// The number of tests with each result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TestTally {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) skipped: u64,
}

impl AddAssign for TestTally {
    fn add_assign(&mut self, other: TestTally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for TestTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

impl TestTally {
    /// Corrects the counts for skipped tests. libtest counts a test that skips itself as passed, and does not count
    /// ignored tests. pytest counts skipped tests.
    pub(super) fn without_skipped<'a>(mut self, skipped: impl Iterator<Item = &'a SkippedTest>) -> Self {
        let tests: Vec<_> = skipped.collect();
        let count = |counted| {
            let names = tests.iter().filter(|test| test.counted == counted).map(|test| &test.name);
            names.collect::<BTreeSet<_>>().len() as u64
        };
        self.passed = self.passed.saturating_sub(count(SkipReportedStatus::Passed));
        self.skipped += count(SkipReportedStatus::Passed) + count(SkipReportedStatus::Nothing);
        self
    }
}

/// Parses `test result: ok. 3 passed; 0 failed; 1 ignored; ...`, one line for each test program. Ignored tests are read
/// from their own lines.
pub(super) fn cargo_line(line: &str) -> Option<TestTally> {
    let line = line.strip_prefix("test result: ")?;
    let (_, counts) = line.split_once(". ")?;
    Some(counted(counts.split("; ")))
}

/// Parses `===== 2 failed, 3 passed, 1 skipped in 0.12s =====`, one line at the end.
pub(super) fn pytest_line(line: &str) -> Option<TestTally> {
    let (counts, _) = line.strip_prefix("=")?.trim_matches(['=', ' ']).rsplit_once(" in ")?;
    Some(counted(counts.split(", ")))
}

/// Adds up phrases such as `3 passed`; an error outside a test counts as a failure.
fn counted<'a>(phrases: impl Iterator<Item = &'a str>) -> TestTally {
    let mut tally = TestTally::default();
    for (number, word) in phrases.filter_map(|phrase| phrase.split_once(' ')) {
        let number = number.parse().unwrap_or(0);
        match word {
            "passed" => tally.passed += number,
            "failed" | "error" | "errors" => tally.failed += number,
            "skipped" => tally.skipped += number,
            _ => {}
        }
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_cargo() {
        let line = "test result: FAILED. 3 passed; 2 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.0s";
        assert_eq!(cargo_line(line), Some(TestTally { passed: 3, failed: 2, skipped: 0 }));
        assert_eq!(cargo_line("test store::put ... ok"), None);
    }

    #[test]
    fn lines_of_pytest() {
        let line = "========= 1 failed, 12 passed, 2 skipped, 1 warning, 1 error in 1.32s =========";
        assert_eq!(pytest_line(line), Some(TestTally { passed: 12, failed: 2, skipped: 2 }));
        assert_eq!(pytest_line("=== no tests ran in 0.01s ==="), Some(TestTally::default()));
        assert_eq!(pytest_line("=== FAILURES ==="), None);
        assert_eq!(pytest_line("tests/test_store.py .... [100%]"), None);
    }

    #[test]
    fn a_test_that_skipped_twice_is_one_skipped_test() {
        let skipped = |name: &str, counted| SkippedTest {
            suite: "x".into(),
            name: name.into(),
            reason: String::new(),
            counted,
        };
        let tests = [
            skipped("a", SkipReportedStatus::Passed),
            skipped("a", SkipReportedStatus::Passed),
            skipped("b", SkipReportedStatus::Passed),
            skipped("c.py:1", SkipReportedStatus::Skipped),
            skipped("d", SkipReportedStatus::Nothing),
        ];
        let tally = TestTally { passed: 5, failed: 1, skipped: 1 };
        assert_eq!(tally.without_skipped(tests.iter()), TestTally { passed: 3, failed: 1, skipped: 4 });
    }
}
