//! Runs all tests of the repository: builds and runs each suite, prints the totals and every skipped test.

mod skipped;
mod tally;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use skipped::{SkipRecord, SkippedTest};
use tally::{TestTally, cargo_line, pytest_line};

const PYTHON_TESTS: &str = "bind/python/tests";

/// A group of tests with a common runner.
struct TestSuite {
    name: &'static str,
    /// Returns the requirement that the machine lacks, checked before the build; `None` if the suite can run.
    missing: fn() -> Option<String>,
    /// Commands that must all succeed before `run`.
    build: Vec<Vec<String>>,
    run: Vec<String>,
    count: fn(&str) -> Option<TestTally>,
}

/// The outcome of a suite.
#[derive(Debug, PartialEq, Eq)]
enum SuiteEnd {
    Skipped(String),
    NotBuilt(String),
    Ran { tally: TestTally, ended_well: bool, told_skips: Vec<SkippedTest> },
}

struct SuiteReport {
    name: &'static str,
    end: SuiteEnd,
    build_time: Duration,
    run_time: Duration,
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

/// Returns all suites. `python` is the interpreter of the virtual environment; its `maturin` is in the same directory.
fn suites(python: &str) -> Vec<TestSuite> {
    let maturin = Path::new(python).with_file_name("maturin").display().to_string();
    // Tests that need MPI are a separate suite, which shares compiled crates with this one.
    let rust = "cargo test --workspace --locked --exclude fordway-mpi";
    let mpi = "cargo test --workspace --locked --test mpirun";
    let develop = "develop --locked --quiet --manifest-path bind/python/Cargo.toml";
    let pytest = "-m pytest -rs --color=no";
    vec![
        TestSuite {
            name: "rust",
            missing: || None,
            build: vec![
                words("tools/build-libs3 target/test-libraries dev"),
                words("tools/build-capi target/test-libraries dev"),
                // The lab's tests start gateways, and the Python tests run commands.
                words("cargo build --locked"),
                words(&format!("{rust} --no-run")),
            ],
            run: words(&format!("{rust} --no-fail-fast")),
            count: cargo_line,
        },
        TestSuite {
            name: "python",
            missing: || None,
            build: vec![[vec![maturin], words(develop)].concat()],
            run: [vec![python.to_owned()], words(pytest), vec![PYTHON_TESTS.to_owned()]].concat(),
            count: pytest_line,
        },
        TestSuite {
            name: "mpi",
            missing: missing_for_mpi,
            build: vec![words(&format!("{mpi} --no-run"))],
            run: words(&format!("{mpi} --no-fail-fast")),
            count: cargo_line,
        },
    ]
}

/// Checks for an MPI installation, and for libclang, which parses its header.
fn missing_for_mpi() -> Option<String> {
    let runs =
        |program: &str| Command::new(program).arg("--version").output().is_ok_and(|ran| ran.status.success());
    let lacking = ["mpicc", "mpirun"].into_iter().find(|program| !runs(program));
    match lacking {
        Some(program) => Some(format!("{program} is not installed; `make mpi` installs an MPI")),
        None if !has_libclang() => Some(
            "libclang is not installed; `make mpi` installs it, or set LIBCLANG_PATH to its directory"
                .to_owned(),
        ),
        None => None,
    }
}

/// Searches the same directories as `clang-sys`: the one named by the environment, that of `llvm-config`, and the usual
/// ones.
fn has_libclang() -> bool {
    let named = std::env::var_os("LIBCLANG_PATH").map(PathBuf::from);
    let told = Command::new("llvm-config").arg("--libdir").output().ok();
    let told = told.map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    let entries =
        |dir: &str| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let versioned = entries("/usr/lib").chain(entries("/usr/local")).map(|path| path.join("lib"));
    let usual = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64"].map(PathBuf::from);
    let in_usual = entries("/usr/lib").filter(|path| path.to_string_lossy().ends_with("-linux-gnu"));
    named
        .into_iter()
        .chain(told)
        .chain(versioned)
        .chain(usual)
        .chain(in_usual)
        .any(|dir| holds_libclang(&dir))
}

/// Accepts names such as `libclang.so` or `libclang-14.so.1`, but not `libclang-cpp.so`.
fn holds_libclang(dir: &Path) -> bool {
    let is_one = |name: &str| {
        name == "libclang.so"
            || name.starts_with("libclang.so.")
            || name
                .strip_prefix("libclang-")
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let mut names = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.any(|name| is_one(&name.to_string_lossy()))
}

/// Returns the suites named in `selected`, each limited to the targets named there; all suites if it is empty.
fn select(suites: Vec<TestSuite>, selected: &[&str]) -> Result<Vec<TestSuite>> {
    let known = |name: &str| suites.iter().any(|suite| suite.name == name);
    let unknown = selected.iter().find(|one| !known(one.split(':').next().unwrap_or_default()));
    ensure!(
        unknown.is_none(),
        "there is no suite {}; the suites are rust, python and mpi",
        unknown.unwrap_or(&"")
    );
    if selected.is_empty() {
        return Ok(suites);
    }
    Ok(suites.into_iter().filter_map(|suite| narrowed(suite, selected)).collect())
}

/// Returns the suite limited to its selected targets; `None` if it is not selected.
fn narrowed(mut suite: TestSuite, selected: &[&str]) -> Option<TestSuite> {
    let names = selected.iter().map(|one| one.split_once(':').unwrap_or((one, "")));
    let targets: Vec<_> = names.filter(|(name, _)| *name == suite.name).map(|(_, target)| target).collect();
    if targets.is_empty() {
        return None;
    }
    let targets: Vec<_> = targets.into_iter().filter(|target| !target.is_empty()).collect();
    if suite.name == "python" && !targets.is_empty() {
        suite.run.pop();
        suite.run.extend(targets.iter().map(|target| format!("{PYTHON_TESTS}/{target}")));
    } else {
        suite.run.extend(targets.iter().flat_map(|target| match *target {
            "lib" => vec!["--lib".to_owned()],
            program => vec!["--test".to_owned(), program.to_owned()],
        }));
    }
    Some(suite)
}

/// Runs all selected suites, even after a failure, then prints the skipped tests with their reasons, and the totals.
/// Errors: a test failed, a suite was not built or ran no test, or (in CI) a test was skipped that `.ci/may-skip` does
/// not list.
pub(crate) fn run(root: &Path, python: &str, selected: &[&str]) -> Result<()> {
    let suites = select(suites(python), selected)?;
    let record = root.join("target/skipped-tests");
    let skips = SkipRecord::recorded_in(&record)?;
    let reports: Vec<_> = suites.iter().map(|suite| report(suite, &record)).collect::<Result<_>>()?;
    let skipped = skips.collect(&reports)?;
    let sum = print_sum(&reports, &skipped);
    if std::env::var_os("CI").is_some() {
        skipped::expect_only(&skipped, &root.join(".ci/may-skip"))?;
    }
    for SuiteReport { name, end, .. } in &reports {
        match end {
            SuiteEnd::Skipped(_) => {}
            SuiteEnd::NotBuilt(step) => anyhow::bail!("the {name} suite was not built: `{step}` failed"),
            SuiteEnd::Ran { tally, ended_well, .. } => {
                ensure!(tally.passed + tally.failed > 0, "the {name} suite ran no test");
                ensure!(*ended_well && tally.failed == 0, "the {name} suite failed; its output is above");
            }
        }
    }
    ensure!(sum.failed == 0, "{} tests failed", sum.failed);
    Ok(())
}

fn report(suite: &TestSuite, record: &Path) -> Result<SuiteReport> {
    let (name, begun) = (suite.name, Instant::now());
    let ended = |end, build_time, run_time| Ok(SuiteReport { name, end, build_time, run_time });
    if let Some(missing) = (suite.missing)() {
        return ended(SuiteEnd::Skipped(missing), Duration::ZERO, Duration::ZERO);
    }
    for command in &suite.build {
        if !command_of(command)?.status().is_ok_and(|status| status.success()) {
            return ended(SuiteEnd::NotBuilt(command.join(" ")), begun.elapsed(), Duration::ZERO);
        }
    }
    let (build_time, begun) = (begun.elapsed(), Instant::now());
    let end = run_suite(suite, record)?;
    ended(end, build_time, begun.elapsed())
}

fn command_of(command: &[String]) -> Result<Command> {
    let (program, arguments) = command.split_first().context("a suite has no command")?;
    let mut command = Command::new(program);
    command.args(arguments);
    Ok(command)
}

/// Runs the tests, passes on their output, and adds up the counts that the suite parses from it.
fn run_suite(suite: &TestSuite, record: &Path) -> Result<SuiteEnd> {
    let mut command = command_of(&suite.run)?;
    command.env(fordway_needs::RECORD_VARIABLE, record).stdout(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ok(SuiteEnd::NotBuilt(format!("{} ({error})", suite.run.join(" ")))),
    };
    let output = child.stdout.take().context("the output was not piped")?;
    let (mut tally, mut told_skips) = (TestTally::default(), Vec::new());
    for line in BufReader::new(output).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        println!("{line}");
        tally += (suite.count)(&line).unwrap_or_default();
        told_skips.extend(skipped::pytest_skip(&line).or_else(|| skipped::libtest_ignored(&line)));
    }
    Ok(SuiteEnd::Ran { tally, ended_well: child.wait()?.success(), told_skips })
}

/// Prints each suite's line, the skipped tests by reason, and the totals as the last line. A suite that was not built
/// counts as one failure.
fn print_sum(reports: &[SuiteReport], skipped: &[SkippedTest]) -> TestTally {
    let mut sum = TestTally::default();
    for SuiteReport { name, end, build_time, run_time } in reports {
        let seconds = format!("built in {} s, ran in {} s", build_time.as_secs(), run_time.as_secs());
        match end {
            SuiteEnd::Skipped(reason) => println!("{name}: skipped, because {reason}"),
            SuiteEnd::NotBuilt(step) => {
                sum.failed += 1;
                println!("{name}: failed, because it was not built: {step}");
            }
            SuiteEnd::Ran { tally, .. } => {
                let tally = tally.without_skipped(skipped.iter().filter(|test| test.suite == *name));
                println!("{name}: {tally}; {seconds}");
                sum += tally;
            }
        }
    }
    skipped::print_by_reason(skipped);
    println!("{sum}");
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite(build: &str, run: &str) -> TestSuite {
        let shell = |script: &str| vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()];
        TestSuite {
            name: "x",
            missing: || None,
            build: vec![shell(build)],
            run: shell(run),
            count: cargo_line,
        }
    }

    fn end(suite: &TestSuite) -> SuiteEnd {
        report(suite, Path::new("/dev/null")).unwrap().end
    }

    #[test]
    fn a_suite_is_counted_and_its_end_is_told() {
        let counted = end(&suite("true", "echo 'test result: ok. 2 passed; 0 failed; 0 ignored'; exit 3"));
        let tally = TestTally { passed: 2, ..TestTally::default() };
        assert_eq!(counted, SuiteEnd::Ran { tally, ended_well: false, told_skips: Vec::new() });
    }

    #[test]
    fn a_suite_that_does_not_build_or_start_is_a_failure() {
        for broken in
            [suite("exit 1", "true"), TestSuite { run: words("/does/not/exist"), ..suite("true", "") }]
        {
            let report = report(&broken, Path::new("/dev/null")).unwrap();
            assert!(matches!(report.end, SuiteEnd::NotBuilt(_)), "{:?}", report.end);
            assert_eq!(print_sum(&[report], &[]).failed, 1);
        }
    }

    #[test]
    fn suites_and_targets_are_selected() {
        let runs = |selected: &[&str]| -> Vec<String> {
            select(suites("p"), selected).unwrap().iter().map(|suite| suite.run.join(" ")).collect()
        };
        assert_eq!(runs(&[]).len(), 3);
        let netlab = runs(&["rust:netlab", "rust:lab"]);
        assert!(
            netlab.len() == 1 && netlab[0].ends_with("--no-fail-fast --test netlab --test lab"),
            "{netlab:?}"
        );
        let python = runs(&["mpi", "python:test_store.py"]);
        assert!(
            python.len() == 2 && python[0].ends_with("--color=no bind/python/tests/test_store.py"),
            "{python:?}"
        );
        let Err(refused) = select(suites("p"), &["rsut"]) else {
            panic!("a suite that is not there was found")
        };
        assert!(refused.to_string().contains("no suite rsut"));
    }

    #[test]
    fn a_suite_whose_needs_are_missing_is_not_compiled() {
        let lacking = TestSuite { missing: || Some("there is no x".to_owned()), ..suite("exit 1", "exit 1") };
        assert_eq!(end(&lacking), SuiteEnd::Skipped("there is no x".to_owned()));
    }
}
