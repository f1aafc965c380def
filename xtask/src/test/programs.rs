//! Test programs: lists what cargo has built, and runs several at a time.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cargo_metadata::{Artifact, Message, TargetKind};

use super::skipped::{self, SkippedTest};
use super::tally::{TestTally, cargo_line};
use super::{LIMIT_SECONDS, command_of, test_command, words};

/// Programs that measure times, or keep all processors busy, in the form `PACKAGE_DIRECTORY/PROGRAM`. These programs
/// run one by one, after all others.
const ALONE: &[&str] = &[
    "fordway-lab/disturbed",
    "fordway-lab/netlab",
    "fordway-lab/open_loop",
    "netlab/lab",
    "serve/latency",
    "testkit/neighbours",
];

/// Programs that run several machines, which must respond to each other in time. Such a program counts as two programs
/// while other programs run at the same time.
const DOUBLE: &[&str] = &["testkit/shared"];

/// Programs whose tests mostly sleep. These programs run more tests at a time than there are processors.
const SLEEPING: &[&str] = &["testkit/faults", "testkit/tenants"];

/// The number of tests of a program in [`SLEEPING`] that run at the same time.
const SLEEPING_TESTS: &str = "8";

/// The programs that take longest. These programs start first, so that none of them is still running when all others
/// have ended.
const LONGEST: &[&str] = &[
    "testkit/shared",
    "testkit/faults",
    "testkit/tenants",
    "testkit/replicas",
    "testkit/vectored",
    "testkit/http",
    "libs3/contexts",
    "fordway-lab/doctor",
];

/// How to build the test programs of a suite, and which of them to run.
pub(super) struct ProgramSelection {
    /// The `cargo test` command, without options for the run.
    pub(super) cargo: String,
    /// Whether to run the examples in documentation comments.
    pub(super) has_doc_tests: bool,
    /// Names of programs in `tests`, or `lib` for all unit tests of libraries; all programs if empty.
    pub(super) targets: Vec<String>,
}

/// A program with tests, and how to run it.
#[derive(Debug)]
pub(super) struct TestProgram {
    /// The name, in the form that [`ALONE`] uses.
    name: String,
    command: Vec<String>,
    /// Cargo runs tests in the directory of their package.
    directory: PathBuf,
}

/// The outcome of one test program.
#[derive(Debug)]
pub(super) struct TestProgramOutcome {
    pub(super) name: String,
    pub(super) tally: TestTally,
    pub(super) told_skips: Vec<SkippedTest>,
    pub(super) ended_well: bool,
    pub(super) time: Duration,
}

impl ProgramSelection {
    /// Builds all test programs, and returns the selected ones in the order in which they start; `None` if the build
    /// fails.
    pub(super) fn build(&self) -> Result<Option<Vec<TestProgram>>> {
        let mut cargo = command_of(&words(&self.build_command()))?;
        let mut child = cargo.stdout(Stdio::piped()).spawn().context("cargo cannot be started")?;
        let output = child.stdout.take().context("the output was not piped")?;
        let messages: Vec<_> = Message::parse_stream(BufReader::new(output)).collect::<Result<_, _>>()?;
        if !child.wait()?.success() {
            return Ok(None);
        }
        let artifacts = messages.into_iter().filter_map(|message| match message {
            Message::CompilerArtifact(artifact) => Some(artifact),
            _ => None,
        });
        let mut programs: Vec<_> = artifacts.filter_map(|artifact| self.program(&artifact)).collect();
        if self.has_doc_tests && self.targets.is_empty() {
            let command = limited(&words(&format!("{} --doc --no-fail-fast", self.cargo)));
            programs.push(TestProgram { name: "doc".to_owned(), command, directory: PathBuf::from(".") });
        }
        programs.sort_by_key(|program| {
            LONGEST.iter().position(|name| *name == program.name).unwrap_or(LONGEST.len())
        });
        Ok(Some(programs))
    }

    pub(super) fn build_command(&self) -> String {
        format!("{} --no-run --message-format=json-render-diagnostics", self.cargo)
    }

    /// Returns the artifact as a test program, if it is selected.
    fn program(&self, artifact: &Artifact) -> Option<TestProgram> {
        let path = artifact.executable.as_ref().filter(|_| artifact.profile.test)?;
        let is_library = !artifact.target.is_test() && !artifact.target.kind.contains(&TargetKind::Bin);
        let target = if is_library { "lib" } else { &artifact.target.name };
        let is_selected = self.targets.is_empty() || self.targets.iter().any(|one| one == target);
        let command = limited(&[path.to_string()]);
        let directory = artifact.manifest_path.parent()?;
        let name = format!("{}/{}", directory.file_name()?, artifact.target.name);
        is_selected.then(|| TestProgram { name, command, directory: directory.as_std_path().to_owned() })
    }
}

/// Returns the command with the time limit of a test program.
fn limited(command: &[String]) -> Vec<String> {
    [&words(&format!("timeout --kill-after=10 {LIMIT_SECONDS}")), command].concat()
}

/// Runs the programs, three or more at a time, and then the programs that must run alone, one by one. `logs` is a
/// directory for their output, which is printed when a program ends.
pub(super) fn run(programs: Vec<TestProgram>, record: &Path, logs: &Path) -> Result<Vec<TestProgramOutcome>> {
    fs::create_dir_all(logs).with_context(|| format!("{} cannot be made", logs.display()))?;
    let (alone, others): (Vec<_>, Vec<_>) =
        programs.into_iter().partition(|program| ALONE.contains(&program.name.as_str()));
    let mut ends = run_at_once(others, super::workers(), record, logs)?;
    ends.extend(run_at_once(alone, 1, record, logs)?);
    Ok(ends)
}

fn run_at_once(
    programs: Vec<TestProgram>,
    workers: usize,
    record: &Path,
    logs: &Path,
) -> Result<Vec<TestProgramOutcome>> {
    let waiting = Mutex::new(VecDeque::from(programs));
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let places = FreePlaces::new(workers);
    let work = || -> Result<Vec<TestProgramOutcome>> {
        std::iter::from_fn(next)
            .map(|program| {
                let needed = if DOUBLE.contains(&&*program.name) { 2.min(workers) } else { 1 };
                places.with(needed, || program.run(record, &logs.join(program.name.replace('/', "-"))))
            })
            .collect()
    };
    let ends = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("a worker panicked"))
            .collect::<Result<Vec<_>>>()
    })?;
    Ok(ends.into_iter().flatten().collect())
}

/// The number of programs that may still start.
struct FreePlaces {
    free: Mutex<usize>,
    changed: Condvar,
}

impl FreePlaces {
    fn new(count: usize) -> Self {
        FreePlaces { free: Mutex::new(count), changed: Condvar::new() }
    }

    /// Waits until `needed` places are free, and runs `work` in them.
    fn with<T>(&self, needed: usize, work: impl FnOnce() -> T) -> T {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let enough = self.changed.wait_while(free, |free| *free < needed);
        *enough.unwrap_or_else(PoisonError::into_inner) -= needed;
        let done = work();
        *self.free.lock().unwrap_or_else(PoisonError::into_inner) += needed;
        self.changed.notify_all();
        done
    }
}

impl TestProgram {
    /// Runs the program with its output in `log`, because a process that it leaves behind could keep a pipe open.
    fn run(&self, record: &Path, log: &Path) -> Result<TestProgramOutcome> {
        let (begun, name) = (Instant::now(), &self.name);
        println!("     Running {name}");
        let output = File::create(log).with_context(|| format!("{} cannot be written", log.display()))?;
        let mut command = test_command(&self.command, record)?;
        command.current_dir(&self.directory);
        if SLEEPING.contains(&&**name) {
            command.env("RUST_TEST_THREADS", SLEEPING_TESTS);
        }
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let status = command.status().with_context(|| format!("{name} cannot be started"))?;
        let (time, output) = (begun.elapsed(), String::from_utf8_lossy(&fs::read(log)?).into_owned());
        println!("\n     Ended {name} after {} s with {status}\n{output}", time.as_secs());
        let mut tally = TestTally::default();
        output.lines().filter_map(cargo_line).for_each(|counts| tally += counts);
        if !status.success() && tally.failed == 0 {
            // The program was killed, or reached its time limit.
            tally.failed = 1;
        }
        let told_skips = output.lines().filter_map(skipped::libtest_ignored).collect();
        Ok(TestProgramOutcome { name: name.clone(), tally, told_skips, ended_well: status.success(), time })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(name: &str, script: &str) -> TestProgram {
        let command = vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()];
        TestProgram { name: name.to_owned(), command, directory: std::env::temp_dir() }
    }

    fn run_here(programs: Vec<TestProgram>) -> Vec<TestProgramOutcome> {
        let logs = std::env::temp_dir().join(format!("test-programs-{}", std::process::id()));
        run(programs, Path::new("/dev/null"), &logs).unwrap()
    }

    #[test]
    fn results_are_read_from_the_output() {
        let result = "echo 'test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured'";
        let told = format!("{result}; echo 'test slow ... ignored, too slow'");
        let ends = run_here(vec![program("a/one", &told), program("a/two", result)]);
        assert_eq!(ends.iter().map(|end| end.tally.passed).sum::<u64>(), 4);
        assert_eq!(ends.iter().flat_map(|end| &end.told_skips).count(), 1);
        assert!(ends.iter().all(|end| end.ended_well));
    }

    #[test]
    fn a_program_that_is_killed_is_a_failure() {
        let ends =
            run_here(vec![program("a/killed", "kill -KILL $$"), program("a/missing", "exec /no/where")]);
        for end in ends {
            assert_eq!((end.ended_well, end.tally.failed), (false, 1), "{}", end.name);
        }
    }

    /// Each program waits for a file that the other creates.
    #[test]
    fn programs_run_at_the_same_time() {
        let dir = std::env::temp_dir().join(format!("test-pairs-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let meets = |mine: &str, other: &str| {
            let wait = format!("for i in $(seq 600); do [ -e {other} ] && exit 0; sleep 0.05; done; exit 1");
            let script = format!("cd {} && touch {mine} && {wait}", dir.display());
            program(&format!("a/{mine}"), &script)
        };
        let ends = run_here(vec![meets("one", "other"), meets("other", "one")]);
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(ends.iter().all(|end| end.ended_well), "{ends:?}");
    }

    #[test]
    fn selected_programs_get_a_time_limit() {
        let selection = |targets: &[&str]| ProgramSelection {
            cargo: String::new(),
            has_doc_tests: false,
            targets: targets.iter().map(|target| (*target).to_owned()).collect(),
        };
        let artifact = |name: &str, kind: &str, is_test: bool| -> Artifact {
            let target = serde_json::json!({
                "name": name, "kind": [kind], "crate_types": ["bin"], "src_path": "/x/lib.rs", "edition": "2024",
            });
            let profile = serde_json::json!({
                "opt_level": "0", "debug_assertions": true, "overflow_checks": true, "test": is_test,
            });
            serde_json::from_value(serde_json::json!({
                "package_id": "p", "manifest_path": "/a/serve/Cargo.toml", "target": target, "profile": profile,
                "features": [], "filenames": [], "executable": "/a/program", "fresh": true,
            }))
            .unwrap()
        };
        let (tests, unit_tests) = (artifact("tls", "test", true), artifact("fordway_serve", "lib", true));
        let program = selection(&[]).program(&tests).unwrap();
        assert_eq!(
            (program.name.as_str(), program.directory.as_path()),
            ("serve/tls", Path::new("/a/serve"))
        );
        assert_eq!(program.command.join(" "), "timeout --kill-after=10 900 /a/program");
        assert!(selection(&["lib"]).program(&unit_tests).is_some());
        assert!(selection(&["lib"]).program(&tests).is_none());
        assert!(
            selection(&["tls"]).program(&tests).is_some() && selection(&["tl"]).program(&tests).is_none()
        );
        assert!(selection(&[]).program(&artifact("fordway", "bin", false)).is_none(), "it has no tests");
    }

    #[test]
    fn programs_with_an_order_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let metadata = cargo_metadata::MetadataCommand::new().current_dir(root).no_deps().exec().unwrap();
        let mut names = Vec::new();
        for package in &metadata.packages {
            let directory = package.manifest_path.parent().unwrap().file_name().unwrap();
            names.extend(package.targets.iter().map(|target| format!("{directory}/{}", target.name)));
        }
        for name in ALONE.iter().chain(LONGEST).chain(DOUBLE) {
            assert!(names.iter().any(|one| one == name), "there is no test program {name}");
        }
    }
}
