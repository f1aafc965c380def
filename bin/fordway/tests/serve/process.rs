//! A gateway in a separate process.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use fordway_client::s3::{S3Config, S3Credentials, S3Store};
use fordway_store::Bucket;

pub(crate) const KEYS: (&str, &str) = ("me", "secret");

/// Creates a directory that contains `root/bucket`.
pub(crate) fn place() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("root/bucket")).unwrap();
    dir
}

pub(crate) fn bucket() -> Bucket {
    Bucket::new("bucket").unwrap()
}

/// Returns a client of a gateway, or of a proxy in front of a gateway, with the default number of retries.
pub(crate) fn client(endpoint: &str, (access_key, secret_key): (&str, &str)) -> S3Store {
    let keys = S3Credentials::keys(access_key, secret_key, "this test");
    S3Store::new(S3Config::new(endpoint, "us-east-1", keys)).unwrap()
}

/// A gateway, which is killed when this value is dropped.
pub(crate) struct Process {
    child: Child,
    said: Option<ChildStderr>,
    pub(crate) endpoint: String,
    metrics: Option<String>,
}

impl Process {
    pub(crate) fn start(dir: &Path, options: &[&str]) -> Self {
        Process::of(&mut command(dir, options), options.contains(&"--metrics"))
    }

    /// Starts a gateway with `command`, and waits until it is ready.
    pub(crate) fn of(command: &mut Command, has_metrics: bool) -> Self {
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = || {
            let mut line = String::new();
            output.read_line(&mut line).unwrap();
            line.trim().rsplit_once(" at http://").map(|(_, address)| address.to_owned())
        };
        let address = line().expect("the gateway is ready");
        let metrics = has_metrics.then(|| line().expect("so are its metrics"));
        let metrics = metrics.map(|address| address.trim_end_matches("/metrics").to_owned());
        let said = child.stderr.take();
        Process { child, said, endpoint: format!("http://{address}"), metrics }
    }

    /// Returns the error message of a gateway that fails to start.
    pub(crate) fn refusal(dir: &Path, options: &[&str]) -> String {
        let ended = command(dir, options).output().unwrap();
        assert!(!ended.status.success(), "it started");
        String::from_utf8(ended.stderr).unwrap()
    }

    pub(crate) fn client(&self) -> S3Store {
        client(&self.endpoint, KEYS)
    }

    pub(crate) fn client_of(&self, access_key: &str, secret_key: &str) -> S3Store {
        client(&self.endpoint, (access_key, secret_key))
    }

    pub(crate) fn ask_metrics(&self, path: &str) -> String {
        super::ask(self.metrics.as_ref().unwrap(), path)
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn hang_up(&self) {
        signal(self.child.id(), rustix::process::Signal::HUP);
    }

    /// Kills the gateway, so that it cannot print anything.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops the gateway with SIGTERM; returns its log.
    pub(crate) fn stop_well(mut self) -> String {
        signal(self.child.id(), rustix::process::Signal::TERM);
        let mut said = String::new();
        self.said.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(self.child.wait().unwrap().success(), "{said}");
        said
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

pub(crate) fn command(dir: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway"));
    command.arg("serve").arg(dir.join("root")).args(["--listen", "127.0.0.1:0"]).args(options);
    command.env("AWS_ACCESS_KEY_ID", KEYS.0).env("AWS_SECRET_ACCESS_KEY", KEYS.1).env_remove("FORDWAY_LOG");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}
