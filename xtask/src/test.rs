//! All tests of the repository, and one sum of them.

use std::io::{BufRead, BufReader};
use std::ops::AddAssign;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// Tests by how they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// The leaf with a workspace of its own.
const MPI: [&str; 8] = [
    "cargo",
    "test",
    "--manifest-path",
    "crates/mpi/Cargo.toml",
    "--target-dir",
    "target",
    "--locked",
    "--no-fail-fast",
];

/// Whether there is what the tests on MPI need.
fn has_mpi() -> bool {
    let runs =
        |program: &str| Command::new(program).arg("--version").output().is_ok_and(|ran| ran.status.success());
    runs("mpicc") && runs("mpirun")
}

/// Runs all suites to their ends, even where the first fails, and prints the sum as the last line.
/// Errors: a test failed, a suite did not end as its tests did, or a suite ran none.
pub(crate) fn run_all(python: &str) -> Result<()> {
    let cargo = ["cargo", "test", "--workspace", "--locked", "--no-fail-fast"];
    let pytest = [python, "-m", "pytest", "-rs", "--color=no", "python/tests"];
    let mut suites = vec![suite("rust", &cargo, cargo_line)?, suite("python", &pytest, pytest_line)?];
    match has_mpi() {
        true => suites.push(suite("mpi", &MPI, cargo_line)?),
        false => println!("mpi: skipped, because there is no mpicc and mpirun; `make mpi` installs them"),
    }
    let mut sum = Tally::default();
    for (name, tally, _) in &suites {
        println!("{name}: {} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped);
        sum += *tally;
    }
    println!("{} passed, {} failed", sum.passed, sum.failed);
    for (name, tally, ended_well) in suites {
        ensure!(tally.passed + tally.failed > 0, "the {name} suite ran no test");
        ensure!(ended_well && tally.failed == 0, "the {name} suite failed; its output is above");
    }
    Ok(())
}

/// Runs `command`, passes its output on, and adds up the lines that `count` understands.
fn suite(
    name: &'static str,
    command: &[&str],
    count: fn(&str) -> Option<Tally>,
) -> Result<(&'static str, Tally, bool)> {
    let [program, arguments @ ..] = command else { bail!("no command for {name}") };
    let mut child = Command::new(program)
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("{program} cannot be started; run `make setup`"))?;
    let output = child.stdout.take().context("the output was not piped")?;
    let mut tally = Tally::default();
    for line in BufReader::new(output).lines() {
        let line = line?;
        println!("{line}");
        if let Some(counted) = count(&line) {
            tally += counted;
        }
    }
    Ok((name, tally, child.wait()?.success()))
}

/// `test result: ok. 3 passed; 0 failed; 1 ignored; ...`, one for each test program.
fn cargo_line(line: &str) -> Option<Tally> {
    let line = line.strip_prefix("test result: ")?;
    let (_, counts) = line.split_once(". ")?;
    Some(counted(counts.split("; "), "ignored"))
}

/// `===== 2 failed, 3 passed, 1 skipped in 0.12s =====`, once at the end.
fn pytest_line(line: &str) -> Option<Tally> {
    let (counts, _) = line.strip_prefix("=")?.trim_matches(['=', ' ']).rsplit_once(" in ")?;
    Some(counted(counts.split(", "), "skipped"))
}

/// Adds up phrases such as `3 passed`; an error outside a test counts as a failure.
fn counted<'a>(phrases: impl Iterator<Item = &'a str>, skipped: &str) -> Tally {
    let mut tally = Tally::default();
    for (number, word) in phrases.filter_map(|phrase| phrase.split_once(' ')) {
        let number = number.parse().unwrap_or(0);
        match word {
            "passed" => tally.passed += number,
            "failed" | "error" | "errors" => tally.failed += number,
            _ if word == skipped => tally.skipped += number,
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
        assert_eq!(cargo_line(line), Some(Tally { passed: 3, failed: 2, skipped: 1 }));
        assert_eq!(cargo_line("test store::put ... ok"), None);
    }

    #[test]
    fn lines_of_pytest() {
        let line = "========= 1 failed, 12 passed, 2 skipped, 1 warning, 1 error in 1.32s =========";
        assert_eq!(pytest_line(line), Some(Tally { passed: 12, failed: 2, skipped: 2 }));
        assert_eq!(pytest_line("=== no tests ran in 0.01s ==="), Some(Tally::default()));
        assert_eq!(pytest_line("=== FAILURES ==="), None);
        assert_eq!(pytest_line("tests/test_store.py .... [100%]"), None);
    }

    #[test]
    fn a_suite_is_counted_and_its_end_is_told() {
        let run = |script| suite("x", &["sh", "-c", script], cargo_line).unwrap();
        let (_, tally, ended_well) = run("echo 'test result: ok. 2 passed; 0 failed; 0 ignored'; exit 3");
        assert_eq!((tally.passed, ended_well), (2, false));
        assert!(run("true").2);
        assert!(suite("x", &["/does/not/exist"], cargo_line).is_err());
    }
}
