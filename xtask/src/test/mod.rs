//! Runs all tests of the repository: builds and runs each suite, prints the totals and every skipped test.

mod programs;
mod skipped;
mod tally;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use programs::{ProgramSelection, TestProgramOutcome};
use skipped::{SkippedTest, SkippedTestLog};
use tally::{TestTally, pytest_line};

const PYTHON_TESTS: &str = "bind/python/tests";

/// The time limit of one test program in Rust, and of one test in Python, in seconds. With this limit, a test that
/// hangs is reported by name as a failure, and the other tests still run.
const LIMIT_SECONDS: u32 = 900;

/// The time limit, in milliseconds, for proptest's shrinking of a failing case. Without a limit, a failure that takes
/// seconds to reproduce takes hours to shrink.
const SHRINK_MILLISECONDS: &str = "60000";

/// The number of test programs whose times are printed.
const SLOWEST: usize = 12;

/// A group of tests that one runner executes.
struct TestSuite {
    name: &'static str,
    /// Returns what the machine lacks for this suite (checked before the build); `None` if the suite can run.
    missing: fn() -> Option<String>,
    /// Commands that must all succeed before `run`.
    build: Vec<Vec<String>>,
    run: TestRunMethod,
}

/// How a suite's tests run.
enum TestRunMethod {
    /// One command runs the tests, and its output contains lines with counts.
    Command(Vec<String>, fn(&str) -> Option<TestTally>),
    /// The tests are programs that cargo builds.
    Programs(ProgramSelection),
}

/// The outcome of a suite.
#[derive(Debug)]
enum SuiteOutcome {
    Skipped(String),
    NotBuilt(String),
    Ran {
        tally: TestTally,
        ended_well: bool,
        told_skips: Vec<SkippedTest>,
        /// The programs, if the suite consists of programs.
        programs: Vec<TestProgramOutcome>,
    },
}

struct SuiteReport {
    name: &'static str,
    end: SuiteOutcome,
    build_time: Duration,
    run_time: Duration,
}

/// The number of test programs, or of Python tests, that run at the same time: one more than there are processors, and
/// at least three. More tests than processors run, because most tests often wait for programs that they have started.
/// With two tests at a time on two processors, the processors were idle for a third of the time.
fn workers() -> usize {
    std::thread::available_parallelism().map_or(3, |count| count.get().max(2) + 1)
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

/// Returns all suites. `python` is the interpreter of the virtual environment; its `maturin` is in the same directory.
fn suites(python: &str) -> Vec<TestSuite> {
    let maturin = Path::new(python).with_file_name("maturin").display().to_string();
    let develop = "develop --locked --quiet --manifest-path bind/python/Cargo.toml";
    // All tests of a file run in one worker, because they share servers.
    let pytest = format!(
        "-m pytest -rs --color=no --numprocesses={} --dist=loadfile --timeout={LIMIT_SECONDS}",
        workers()
    );
    let pytest = [vec![python.to_owned()], words(&pytest), vec![PYTHON_TESTS.to_owned()]].concat();
    let programs = |cargo: &str, has_doc_tests| {
        TestRunMethod::Programs(ProgramSelection {
            cargo: cargo.to_owned(),
            has_doc_tests,
            targets: Vec::new(),
        })
    };
    vec![
        TestSuite {
            name: "rust",
            missing: || None,
            build: vec![
                words("tools/build-libs3 target/test-libraries dev"),
                words("tools/build-capi target/test-libraries dev"),
            ],
            // This command also builds both binaries, which the lab's and the Python tests run. Tests that need MPI are
            // a separate suite, which shares compiled crates with this suite.
            run: programs("cargo test --workspace --locked --exclude fordway-mpi", true),
        },
        TestSuite {
            name: "python",
            missing: || None,
            build: vec![[vec![maturin], words(develop)].concat()],
            run: TestRunMethod::Command(pytest, pytest_line),
        },
        TestSuite {
            name: "mpi",
            missing: missing_for_mpi,
            build: Vec::new(),
            run: programs("cargo test --workspace --locked --test mpirun", false),
        },
    ]
}

/// Returns the missing requirement of the MPI suite: an MPI installation, or libclang, which parses its header.
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

/// Searches the same directories as `clang-sys`: the directory in `LIBCLANG_PATH`, the directory that `llvm-config`
/// prints, and the usual directories.
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

/// Returns whether `dir` contains a file such as `libclang.so` or `libclang-14.so.1`. `libclang-cpp.so` does not count.
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

/// Returns the suites in `selected`, each limited to its selected targets (`SUITE:TARGET`); all suites if `selected` is
/// empty.
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
    match &mut suite.run {
        TestRunMethod::Command(words, _) if !targets.is_empty() => {
            words.pop();
            words.extend(targets.iter().map(|target| format!("{PYTHON_TESTS}/{target}")));
        }
        TestRunMethod::Command(..) => {}
        TestRunMethod::Programs(selection) => {
            selection.targets = targets.iter().map(|target| (*target).to_owned()).collect();
        }
    }
    Some(suite)
}

/// Runs all selected suites, even after a failure, then prints the skipped tests with their reasons, and the totals.
/// Errors: a test failed, a suite was not built or ran no test, or (in CI) `.ci/may-skip` does not list a skipped test.
pub(crate) fn run(root: &Path, python: &str, selected: &[&str]) -> Result<()> {
    let suites = select(suites(python), selected)?;
    let record = root.join("target/skipped-tests");
    let skips = SkippedTestLog::recorded_in(&record)?;
    let reports: Vec<_> = suites.iter().map(|suite| report(suite, &record)).collect::<Result<_>>()?;
    let skipped = skips.collect(&reports)?;
    let sum = print_sum(&reports, &skipped);
    if std::env::var_os("CI").is_some() {
        skipped::expect_only(&skipped, &root.join(".ci/may-skip"))?;
    }
    for SuiteReport { name, end, .. } in &reports {
        match end {
            SuiteOutcome::Skipped(_) => {}
            SuiteOutcome::NotBuilt(step) => anyhow::bail!("the {name} suite was not built: `{step}` failed"),
            SuiteOutcome::Ran { tally, ended_well, .. } => {
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
        return ended(SuiteOutcome::Skipped(missing), Duration::ZERO, Duration::ZERO);
    }
    for command in &suite.build {
        if !command_of(command)?.status().is_ok_and(|status| status.success()) {
            return ended(SuiteOutcome::NotBuilt(command.join(" ")), begun.elapsed(), Duration::ZERO);
        }
    }
    match &suite.run {
        TestRunMethod::Command(words, count) => {
            let (build_time, begun) = (begun.elapsed(), Instant::now());
            ended(run_command(words, *count, record)?, build_time, begun.elapsed())
        }
        TestRunMethod::Programs(selection) => {
            let built = selection.build()?;
            let (build_time, begun) = (begun.elapsed(), Instant::now());
            let Some(built) = built else {
                return ended(SuiteOutcome::NotBuilt(selection.build_command()), build_time, Duration::ZERO);
            };
            let logs = record.with_file_name("test-output");
            let end = of_programs(programs::run(built, record, &logs)?);
            ended(end, build_time, begun.elapsed())
        }
    }
}

/// Returns the command without the environment variables that cargo sets for xtask. Those variables would look like a
/// change to the build script of `ring`, and everything that depends on `ring` would be compiled again.
fn command_of(command: &[String]) -> Result<Command> {
    let (program, arguments) = command.split_first().context("a suite has no command")?;
    let mut command = Command::new(program);
    command.args(arguments);
    let set_by_cargo = ["CARGO_PKG_", "CARGO_MANIFEST_"];
    for (name, _) in std::env::vars() {
        if set_by_cargo.iter().any(|start| name.starts_with(start)) {
            command.env_remove(name);
        }
    }
    Ok(command)
}

/// Returns the command with the environment variables for tests.
fn test_command(command: &[String], record: &Path) -> Result<Command> {
    let mut command = command_of(command)?;
    command.env(fordway_needs::RECORD_VARIABLE, record);
    command.env("PROPTEST_MAX_SHRINK_TIME", SHRINK_MILLISECONDS);
    Ok(command)
}

fn of_programs(programs: Vec<TestProgramOutcome>) -> SuiteOutcome {
    let mut tally = TestTally::default();
    programs.iter().for_each(|program| tally += program.tally);
    let ended_well = programs.iter().all(|program| program.ended_well);
    let told_skips = programs.iter().flat_map(|program| program.told_skips.clone()).collect();
    SuiteOutcome::Ran { tally, ended_well, told_skips, programs }
}

/// Runs the tests, forwards their output, and adds up the counts in it.
fn run_command(
    words: &[String],
    count: fn(&str) -> Option<TestTally>,
    record: &Path,
) -> Result<SuiteOutcome> {
    let mut child = match test_command(words, record)?.stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => return Ok(SuiteOutcome::NotBuilt(format!("{} ({error})", words.join(" ")))),
    };
    let output = child.stdout.take().context("the output was not piped")?;
    let (mut tally, mut told_skips) = (TestTally::default(), Vec::new());
    for line in BufReader::new(output).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        println!("{line}");
        tally += count(&line).unwrap_or_default();
        told_skips.extend(skipped::pytest_skip(&line));
    }
    Ok(SuiteOutcome::Ran { tally, ended_well: child.wait()?.success(), told_skips, programs: Vec::new() })
}

/// Prints each suite's line, the skipped tests by reason, and the totals as the last line. A suite that was not built
/// counts as one failure.
fn print_sum(reports: &[SuiteReport], skipped: &[SkippedTest]) -> TestTally {
    let mut sum = TestTally::default();
    for SuiteReport { name, end, build_time, run_time } in reports {
        let seconds = format!("built in {} s, ran in {} s", build_time.as_secs(), run_time.as_secs());
        match end {
            SuiteOutcome::Skipped(reason) => println!("{name}: skipped, because {reason}"),
            SuiteOutcome::NotBuilt(step) => {
                sum.failed += 1;
                println!("{name}: failed, because it was not built: {step}");
            }
            SuiteOutcome::Ran { tally, programs, .. } => {
                let tally = tally.without_skipped(skipped.iter().filter(|test| test.suite == *name));
                print_programs(name, programs);
                println!("{name}: {tally}; {seconds}");
                sum += tally;
            }
        }
    }
    skipped::print_by_reason(skipped);
    println!("{sum}");
    sum
}

/// Prints the programs that failed, and the [`SLOWEST`] programs that took longest.
fn print_programs(suite: &str, programs: &[TestProgramOutcome]) {
    let mut by_time: Vec<_> = programs.iter().collect();
    by_time.sort_by_key(|program| std::cmp::Reverse(program.time));
    let failed: Vec<_> = programs.iter().filter(|program| !program.ended_well).collect();
    for TestProgramOutcome { name, tally, .. } in failed {
        println!("{suite}: in {name}, {} FAILED", tally.failed);
    }
    let times = by_time.iter().take(SLOWEST).map(|end| format!("{} {} s", end.name, end.time.as_secs()));
    if programs.len() > 1 {
        println!("{suite}: slowest of {}: {}", programs.len(), times.collect::<Vec<_>>().join(", "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tally::cargo_line;

    fn suite(build: &str, run: &str) -> TestSuite {
        let shell = |script: &str| vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()];
        TestSuite {
            name: "x",
            missing: || None,
            build: vec![shell(build)],
            run: TestRunMethod::Command(shell(run), cargo_line),
        }
    }

    fn end(suite: &TestSuite) -> SuiteOutcome {
        report(suite, Path::new("/dev/null")).unwrap().end
    }

    #[test]
    fn a_suite_is_counted_and_its_end_is_told() {
        let counted = end(&suite("true", "echo 'test result: ok. 2 passed; 0 failed; 0 ignored'; exit 3"));
        let SuiteOutcome::Ran { tally, ended_well, .. } = counted else { panic!("{counted:?}") };
        assert_eq!((tally.passed, tally.failed, ended_well), (2, 0, false));
    }

    #[test]
    fn a_suite_that_does_not_build_or_start_is_a_failure() {
        for broken in [
            suite("exit 1", "true"),
            TestSuite {
                run: TestRunMethod::Command(words("/does/not/exist"), cargo_line),
                ..suite("true", "")
            },
        ] {
            let report = report(&broken, Path::new("/dev/null")).unwrap();
            assert!(matches!(report.end, SuiteOutcome::NotBuilt(_)), "{:?}", report.end);
            assert_eq!(print_sum(&[report], &[]).failed, 1);
        }
    }

    #[test]
    fn suites_and_targets_are_selected() {
        let selected = |names: &[&str]| select(suites("p"), names).unwrap();
        assert_eq!(selected(&[]).len(), 3);
        let rust = selected(&["rust:netlab", "rust:lab"]);
        let [TestSuite { run: TestRunMethod::Programs(programs), .. }] = &rust[..] else {
            panic!("not one suite")
        };
        assert_eq!(programs.targets, ["netlab", "lab"]);
        let two = selected(&["mpi", "python:test_store.py"]);
        let [TestSuite { run: TestRunMethod::Command(python, _), .. }, _] = &two[..] else {
            panic!("not Python and MPI")
        };
        assert!(python.join(" ").ends_with("--timeout=900 bind/python/tests/test_store.py"), "{python:?}");
        let Err(refused) = select(suites("p"), &["rsut"]) else {
            panic!("a suite that does not exist was found")
        };
        assert!(refused.to_string().contains("no suite rsut"));
    }

    /// The soak tests run for hours, so check here that the names in them exist.
    #[test]
    fn the_soak_tests_name_tests_that_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let metadata = cargo_metadata::MetadataCommand::new().current_dir(&root).no_deps().exec().unwrap();
        let targets: Vec<_> = metadata.packages.iter().flat_map(|package| &package.targets).collect();
        let script = std::fs::read_to_string(root.join("tools/soak-fresh")).unwrap();
        let named: Vec<_> = script.split_whitespace().filter_map(|word| word.split_once(':')).collect();
        for (suite, name) in named.iter().filter(|(_, name)| !name.is_empty()) {
            match *suite {
                "rust" => assert!(
                    *name == "lib" || targets.iter().any(|target| target.is_test() && target.name == *name),
                    "tools/soak-fresh names rust:{name}, which is not a test"
                ),
                "python" => assert!(root.join(PYTHON_TESTS).join(name).exists(), "no Python test {name}"),
                _ => {}
            }
        }
        assert!(named.contains(&("rust", "netlab")) && named.contains(&("python", "test_doctor_fix.py")));
    }

    #[test]
    fn a_suite_whose_needs_are_missing_is_not_compiled() {
        let lacking = TestSuite { missing: || Some("there is no x".to_owned()), ..suite("exit 1", "exit 1") };
        let SuiteOutcome::Skipped(reason) = end(&lacking) else { panic!("the suite was not skipped") };
        assert_eq!(reason, "there is no x");
    }
}
