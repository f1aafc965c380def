//! Tests signals to the process group of a measuring command. A terminal sends such signals after Ctrl-C, and `timeout`
//! sends them after its time limit. The command must report the complete rounds, and leave nothing else behind.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use fordway_measure::RunDocument;
use tempfile::TempDir;

/// A command that leads its own process group, and the directory in which it works.
struct GroupLeader {
    child: Child,
    dir: TempDir,
}

impl GroupLeader {
    /// Starts `fordway-lab` with `words`, and with the keys of [`SlowGateway`].
    fn start(words: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (source, scratch) = (dir.path().join("source"), dir.path().join("tmp"));
        std::fs::create_dir(&source).unwrap();
        std::fs::create_dir(&scratch).unwrap();
        (0..4).for_each(|at| std::fs::write(source.join(format!("f{at}")), vec![at; 1000]).unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-lab"));
        command
            .args(words)
            .args(["--out", "x.run"])
            .env_clear()
            .env("HOME", "/nonexistent")
            .env("PATH", "/nonexistent")
            .env("TMPDIR", &scratch)
            .env("FORDWAY_LAB_FORCE", "1")
            .envs(KEYS)
            .current_dir(dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        GroupLeader { child: command.spawn().unwrap(), dir }
    }

    /// Sends SIGINT to all processes of the group.
    fn interrupt(&self) {
        let group = format!("-{}", self.child.id());
        assert!(Command::new("kill").args(["-INT", "--", &group]).status().unwrap().success());
    }

    fn wait(mut self) -> (Output, TempDir) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < end, "it did not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        // These reads return only when no process of the command remains, because such a process would keep the pipes
        // open.
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        self.child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
        self.child.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
        (Output { status: self.child.wait().unwrap(), stdout, stderr }, self.dir)
    }
}

const KEYS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")];

/// A gateway whose responses arrive late.
struct SlowGateway {
    child: Child,
    root: TempDir,
    endpoint: String,
}

impl SlowGateway {
    /// The delay of each response. The delay is longer than the interval at which a client checks for signals.
    const DELAY: Duration = Duration::from_millis(300);

    fn start() -> Self {
        let root = tempfile::tempdir().unwrap();
        let program = Path::new(env!("CARGO_BIN_EXE_fordway-lab")).with_file_name("fordway");
        let mut command = Command::new(program);
        command.args(["--quiet", "serve", "--listen", "127.0.0.1:0"]).arg(root.path());
        let mut child = command.envs(KEYS).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
        let address = ready.trim().rsplit('/').next().unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        // The thread runs until the test process exits.
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(&address) else { return };
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || forward(from, to, Duration::ZERO));
                std::thread::spawn(move || forward(server, client, Self::DELAY));
            }
        });
        SlowGateway { child, root, endpoint }
    }
}

impl Drop for SlowGateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Forwards all bytes, each piece after `delay`, until one side closes its connection.
fn forward(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let mut buffer = [0; 65_536];
    while let Ok(len) = from.read(&mut buffer)
        && len > 0
    {
        std::thread::sleep(delay);
        if to.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

fn entries(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

/// Starts a command with many short rounds, and sends a signal to its process group after 4 s. Checks that nothing but
/// the run of the complete rounds remains.
fn keeps_complete_rounds(words: &[&str]) {
    let command = GroupLeader::start(words);
    std::thread::sleep(Duration::from_secs(4));
    command.interrupt();
    let (ended, dir) = command.wait();
    let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(130), "{words:?}: {stderr}");
    assert!(stderr.contains("the results cover these rounds only"), "{words:?}: {stderr}");
    assert!(!stderr.contains("could not"), "{words:?}: {stderr}");
    let run = RunDocument::read(&dir.path().join("x.run")).unwrap();
    assert!(run.lanes.len() == 4 && run.summaries.iter().all(|row| row.operations > 0 && row.errors == 0));
    assert_eq!(entries(dir.path()), ["source", "tmp", "x.run"], "{words:?}");
    assert_eq!(entries(&dir.path().join("tmp")), [""; 0], "{words:?}");
    assert_eq!(entries(&dir.path().join("source")), ["f0", "f1", "f2", "f3"], "{words:?}");
}

#[test]
fn an_interrupted_comparison_keeps_its_complete_rounds() {
    keeps_complete_rounds(&["compare", "source", "--root", ".", "--no-report", "--rounds", "1000"]);
}

#[test]
fn an_interrupted_workload_keeps_its_complete_rounds() {
    keeps_complete_rounds(&["bench", "mdtest", "source", "--all-lanes", "--items", "5", "--rounds", "1000"]);
}

/// After a signal, the command must still remove its bucket, even if the removal has to wait for a slow server.
#[test]
fn an_interrupted_workload_leaves_no_bucket_on_a_slow_server() {
    let gateway = SlowGateway::start();
    let command = GroupLeader::start(&["bench", "mdtest", &gateway.endpoint, "--items", "5"]);
    let bucket = gateway.root.path().join("fordway-bench");
    let end = Instant::now() + Duration::from_secs(20);
    let has_object = || {
        bucket
            .read_dir()
            .is_ok_and(|mut entries| entries.any(|entry| entry.unwrap().file_name() != ".fordway"))
    };
    while !has_object() {
        assert!(Instant::now() < end, "it never began");
        std::thread::sleep(Duration::from_millis(10));
    }
    command.interrupt();
    let (ended, _) = command.wait();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(130), "{stderr}");
    assert!(!bucket.exists(), "{stderr}");
}

/// A second signal must end the command immediately, but its temporary directories must still be removed.
#[test]
fn a_second_signal_leaves_no_temporary_directory() {
    let command =
        GroupLeader::start(&["compare", "source", "--root", ".", "--no-report", "--rounds", "1000"]);
    let end = Instant::now() + Duration::from_secs(20);
    let is_at_work = |name: &String| {
        let place = command.dir.path().join(name);
        name.starts_with("fordway-compare-") && place.join("posix").exists()
    };
    while !entries(command.dir.path()).iter().any(is_at_work) {
        assert!(Instant::now() < end, "it never began");
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(300));
    command.interrupt();
    command.interrupt();
    let (ended, dir) = command.wait();
    assert_eq!(ended.status.code(), Some(130), "{}", String::from_utf8_lossy(&ended.stderr));
    let left: Vec<_> = entries(dir.path()).into_iter().filter(|name| name != "x.run").collect();
    assert_eq!(left, ["source", "tmp"]);
    assert_eq!(entries(&dir.path().join("tmp")), [""; 0]);
}
