//! Collects skipped tests, prints them with their reasons, and checks them against the list of tests that CI may skip.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::{SuiteOutcome, SuiteReport};

/// A test, or a whole suite, that did not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SkippedTest {
    pub(super) suite: String,
    /// `program::module::test`, `file.py:line`, or the suite's own name.
    pub(super) name: String,
    pub(super) reason: String,
    pub(super) counted: SkipReportedStatus,
}

/// How the runner counts a skipped test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SkipReportedStatus {
    /// The test counts as passed. libtest does this for a test that skips itself.
    Passed,
    /// The test counts as skipped. pytest does this.
    Skipped,
    /// The test is not counted. libtest does this for an ignored test.
    Nothing,
}

/// The file that `fordway_needs::skip` appends to.
pub(super) struct SkippedTestLog {
    record: PathBuf,
}

impl SkippedTestLog {
    /// Starts an empty record, replacing the record of an earlier run.
    pub(super) fn recorded_in(record: &Path) -> Result<Self> {
        if let Some(dir) = record.parent() {
            fs::create_dir_all(dir)?;
        }
        fs::write(record, "").with_context(|| format!("{} cannot be written", record.display()))?;
        Ok(SkippedTestLog { record: record.to_owned() })
    }

    /// Returns all skipped tests of all suites; each pair of test and reason occurs once.
    pub(super) fn collect(self, reports: &[SuiteReport]) -> Result<Vec<SkippedTest>> {
        let mut all: Vec<_> = reports.iter().flat_map(of_suite).collect();
        let records = fs::read_to_string(&self.record)?;
        all.extend(records.lines().filter_map(libtest_skip));
        all.sort_by(|a, b| (&a.reason, &a.name).cmp(&(&b.reason, &b.name)));
        all.dedup();
        Ok(all)
    }
}

fn of_suite(report: &SuiteReport) -> Vec<SkippedTest> {
    match &report.end {
        SuiteOutcome::Skipped(reason) => {
            let (suite, name) = (report.name.to_owned(), report.name.to_owned());
            vec![SkippedTest { suite, name, reason: reason.clone(), counted: SkipReportedStatus::Nothing }]
        }
        SuiteOutcome::NotBuilt(_) => Vec::new(),
        SuiteOutcome::Ran { told_skips, .. } => told_skips.clone(),
    }
}

/// Parses a line of the record. Test programs of the MPI suite are recognized by their names.
fn libtest_skip(line: &str) -> Option<SkippedTest> {
    let (name, reason) = line.split_once('\t')?;
    let suite = if name.starts_with("mpirun::") { "mpi" } else { "rust" };
    let (suite, name) = (suite.to_owned(), name.to_owned());
    Some(SkippedTest { suite, name, reason: reason.to_owned(), counted: SkipReportedStatus::Passed })
}

/// Parses lines such as `test NAME ... ignored, REASON`. A helper that other tests run as a process is not a test; the
/// reason of a helper begins with `run by`.
pub(super) fn libtest_ignored(line: &str) -> Option<SkippedTest> {
    let (name, reason) = line.strip_prefix("test ")?.split_once(" ... ignored")?;
    let reason = reason.strip_prefix(", ").unwrap_or("ignored without a reason");
    let (suite, name) = ("rust".to_owned(), name.to_owned());
    let test = SkippedTest { suite, name, reason: reason.to_owned(), counted: SkipReportedStatus::Nothing };
    (!reason.starts_with("run by ")).then_some(test)
}

/// Parses lines such as `SKIPPED [1] bind/python/tests/test_x.py:12: reason`, from the end of the output of `pytest
/// -rs`.
pub(super) fn pytest_skip(line: &str) -> Option<SkippedTest> {
    let (_, told) = line.strip_prefix("SKIPPED [")?.split_once("] ")?;
    let (name, reason) = told.split_once(": ")?;
    let (suite, name) = ("python".to_owned(), name.to_owned());
    Some(SkippedTest { suite, name, reason: reason.to_owned(), counted: SkipReportedStatus::Skipped })
}

/// Prints one line per reason, with the tests to which the reason applies.
pub(super) fn print_by_reason(skipped: &[SkippedTest]) {
    let mut by_reason = BTreeMap::<_, Vec<_>>::new();
    for test in skipped {
        by_reason.entry(&test.reason).or_default().push(test.name.as_str());
    }
    for (reason, names) in by_reason {
        println!("skipped: {reason}: {}", names.join(", "));
    }
}

/// Checks the skipped tests. Errors: no line of the file `may_skip` covers a skipped test. A line consists of the start
/// of a test's name, blanks, and the reason why CI may skip it; `#` begins a comment.
pub(super) fn expect_only(skipped: &[SkippedTest], may_skip: &Path) -> Result<()> {
    let text =
        fs::read_to_string(may_skip).with_context(|| format!("{} cannot be read", may_skip.display()))?;
    let expected: Vec<_> =
        text.lines().filter(|line| !line.starts_with('#')).filter_map(first_word).collect();
    let is_expected = |test: &&SkippedTest| !expected.iter().any(|start| test.name.starts_with(start));
    let unexpected: Vec<_> = skipped.iter().filter(is_expected).collect();
    let named: Vec<_> = unexpected.iter().map(|test| format!("{} ({})", test.name, test.reason)).collect();
    ensure!(
        unexpected.is_empty(),
        "CI must run these tests, but skipped them; add what they need to tools/setup-system:\n{}",
        named.join("\n")
    );
    Ok(())
}

fn first_word(line: &str) -> Option<&str> {
    line.split_ascii_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read() {
        let test = libtest_skip("full_disk::fills\ta tmpfs cannot be mounted").unwrap();
        assert_eq!((test.suite.as_str(), test.name.as_str()), ("rust", "full_disk::fills"));
        assert_eq!(test.counted, SkipReportedStatus::Passed);
        assert_eq!(libtest_skip("no tab"), None);
        let test =
            pytest_skip("SKIPPED [2] bind/python/tests/test_x.py:12: there is no y: install it").unwrap();
        assert_eq!(
            (test.name.as_str(), test.reason.as_str()),
            ("bind/python/tests/test_x.py:12", "there is no y: install it")
        );
        assert_eq!(pytest_skip("bind/python/tests/test_x.py ..s"), None);
        assert_eq!(
            libtest_ignored("test a_child ... ignored, run by another test, as a process of its own"),
            None
        );
        assert_eq!(libtest_ignored("test slow ... ignored, too slow").unwrap().reason, "too slow");
        assert_eq!(libtest_ignored("test slow ... ok"), None);
    }

    #[test]
    fn ci_may_skip_what_is_listed_and_nothing_else() {
        let file = std::env::temp_dir().join(format!("may-skip-{}", std::process::id()));
        fs::write(&file, "# a comment\nlarge::   needs 11 GiB\n").unwrap();
        let skipped = |name: &str| libtest_skip(&format!("{name}\treason")).unwrap();
        expect_only(&[skipped("large::objects")], &file).unwrap();
        let refused = expect_only(&[skipped("large::objects"), skipped("cold::reads")], &file).unwrap_err();
        fs::remove_file(&file).unwrap();
        let text = refused.to_string();
        assert!(text.contains("cold::reads (reason)") && !text.contains("large::objects"), "{text}");
    }
}
