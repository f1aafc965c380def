//! Runs several processes that use one directory concurrently. Each process is another instance of the test program.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::Bucket;

/// The variable that contains the number and the role of a member process, and the directory.
const MEMBER: &str = "FORDWAY_TEST_MEMBER";
/// The test that exists only to run a member's task.
const MEMBER_TEST: &str = "a_member_of_a_team";
/// How long members may take to start.
const START: Duration = Duration::from_secs(30);

/// One process of a team.
pub(crate) struct Member {
    pub(crate) number: usize,
    pub(crate) store: PosixStore,
    report: Vec<String>,
}

/// The name of a role, and the function that its members run.
pub(crate) type Role = (&'static str, fn(&mut Member));

/// A directory with a bucket, and with files for the members' reports.
pub(crate) struct Ground(tempfile::TempDir);

impl Ground {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("root").join(bucket().as_str())).unwrap();
        Ground(dir)
    }

    pub(crate) fn store(&self) -> PosixStore {
        open(self.0.path())
    }

    /// Runs one process for each of `roles`. All processes start at the same time. Returns the report of each process.
    /// Panics if a process fails.
    pub(crate) fn run(&self, roles: &[&str]) -> Vec<Vec<String>> {
        let dir = self.0.path();
        let mut members: Vec<Child> =
            roles.iter().enumerate().map(|(number, role)| start(dir, number, role)).collect();
        let deadline = Instant::now() + START;
        for number in 0..roles.len() {
            while !file(dir, "ready", number).exists() {
                assert!(Instant::now() < deadline, "member {number} does not start");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        // Each member waits for the end of its input, so closing the inputs starts all members.
        members.iter_mut().for_each(|member| drop(member.stdin.take()));
        let ended: Vec<bool> = members.iter_mut().map(|member| member.wait().unwrap().success()).collect();
        let failed: Vec<usize> = (0..roles.len()).filter(|number| !ended[*number]).collect();
        assert!(failed.is_empty(), "members {failed:?} of {roles:?} failed; what they say is above");
        let report = |number| fs::read_to_string(file(dir, "report", number)).unwrap();
        (0..roles.len()).map(|number| report(number).lines().map(str::to_owned).collect()).collect()
    }
}

fn start(dir: &Path, number: usize, role: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", MEMBER_TEST, "--nocapture"]);
    command.env(MEMBER, format!("{number} {role} {}", dir.display()));
    command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}

/// The body of the test [`MEMBER_TEST`]. Performs the task of a member process. In other processes, does nothing.
pub(crate) fn serve(roles: &[Role]) {
    let Ok(task) = std::env::var(MEMBER) else { return };
    let [number, role, dir] = task.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{task}") };
    let (number, dir) = (number.parse().unwrap(), Path::new(dir));
    let (_, act) = roles.iter().find(|(name, _)| *name == role).unwrap();
    let mut member = Member { number, store: open(dir), report: Vec::new() };
    fs::write(file(dir, "ready", number), "").unwrap();
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    act(&mut member);
    fs::write(file(dir, "report", number), member.report.join("\n")).unwrap();
}

impl Member {
    /// Adds a line to the report for the parent process.
    pub(crate) fn report(&mut self, line: impl Into<String>) {
        self.report.push(line.into());
    }
}

pub(crate) fn bucket() -> Bucket {
    Bucket::new("bucket").unwrap()
}

/// Returns `full` in a soak test, otherwise `usual`.
pub(crate) fn at_length(full: usize, usual: usize) -> usize {
    if std::env::var_os("FORDWAY_SOAK").is_some() { full } else { usual }
}

fn open(dir: &Path) -> PosixStore {
    PosixStore::open(&dir.join("root"), PosixConfig::default()).unwrap()
}

fn file(dir: &Path, what: &str, number: usize) -> PathBuf {
    dir.join(format!("{what}-{number}"))
}

/// A simple random number generator. Its output is determined by its seed, which must not be 0.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}
