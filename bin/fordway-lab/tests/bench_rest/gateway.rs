//! Tests load on Fordway's own gateway, which runs as a separate process: signed requests, and the options that pin the
//! client and the gateway to processors.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::command::{bench, command, stderr, summaries};

const BODY_BYTES: u64 = 2000;

/// Returns the path of the gateway program, which is next to the program under test; `cargo build` builds both.
fn gateway_program() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_fordway-lab")).with_file_name("fordway")
}

/// A gateway on a new directory that contains the bucket `bucket`.
struct Gateway {
    child: Child,
    endpoint: String,
    dir: TempDir,
}

impl Gateway {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("bucket")).unwrap();
        let mut child = Command::new(gateway_program())
            .args(["serve", "--listen", "127.0.0.1:0"])
            .arg(dir.path())
            .env("AWS_ACCESS_KEY_ID", "key")
            .env("AWS_SECRET_ACCESS_KEY", "secret")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let endpoint = line.trim().rsplit(' ').next().unwrap().to_owned();
        Gateway { child, endpoint, dir }
    }

    /// Sends twenty requests with `method`, signed with `secret`.
    fn load(&self, method: &str, secret: &str) -> (Output, Value) {
        let (url, size) = (format!("{}/bucket/o-{{number}}", self.endpoint), BODY_BYTES.to_string());
        let args = ["--method", method, "--size", &size, "--objects", "4", "--requests", "20", "--sign"];
        let mut command = command(&[&[url.as_str(), "--warm-up", "0s"], &args[..]].concat());
        command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", secret);
        command.env("AWS_REGION", "us-east-1").env_remove("AWS_PROFILE").env_remove("AWS_SESSION_TOKEN");
        let (output, mut rows) = summaries(command);
        assert_eq!(rows.len(), 1, "{}", stderr(&output));
        (output, rows.remove(0))
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn signed_requests_are_let_in_and_wrong_keys_are_a_column() {
    let gateway = Gateway::start();
    for method in ["PUT", "GET"] {
        let (output, summary) = gateway.load(method, "secret");
        assert!(output.status.success(), "{method}: {}", stderr(&output));
        assert_eq!((summary["operations"].as_u64(), summary["errors"].as_u64()), (Some(20), Some(0)));
        assert_eq!(summary["bytes"], 20 * BODY_BYTES);
    }
    for number in 0..4 {
        let object = gateway.dir.path().join(format!("bucket/o-{number}"));
        assert_eq!(object.metadata().unwrap().len(), BODY_BYTES);
    }
    let (output, summary) = gateway.load("GET", "another");
    assert_eq!(output.status.code(), Some(7));
    assert_eq!((summary["operations"].as_u64(), summary["errors"].as_u64()), (Some(0), Some(20)));
    assert_eq!(summary["load"]["errors"]["status 403"], 20, "{summary}");
    assert!(stderr(&output).contains("20 requests failed (status 403)"), "{}", stderr(&output));
}

/// If the user forgets `--sign`, the message must name that option.
#[test]
fn a_gateway_that_wants_signatures_names_the_option() {
    let gateway = Gateway::start();
    let url = format!("{}/bucket/o", gateway.endpoint);
    let (output, rows) = summaries(command(&[&url, "--requests", "5", "--warm-up", "0s"]));
    assert_eq!((output.status.code(), rows[0]["errors"].as_u64()), (Some(7), Some(5)));
    assert!(stderr(&output).contains("use --sign to sign them"), "{}", stderr(&output));
    let (output, _) = gateway.load("GET", "another");
    assert!(!stderr(&output).contains("use --sign to sign them"), "{}", stderr(&output));
}

#[test]
fn signing_needs_a_key() {
    let mut command = command(&["http://127.0.0.1:1/x", "--sign", "--requests", "1"]);
    command.env_clear().env("HOME", "/nonexistent").env("FORDWAY_LAB_FORCE", "1");
    let (output, _) = summaries(command);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--sign needs credentials"), "{}", stderr(&output));
}

/// Returns the processors that a thread of a process may use, as the kernel lists them.
fn allowed(status: &Path) -> Option<String> {
    let text = std::fs::read_to_string(status).ok()?;
    Some(text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim().to_owned())
}

#[test]
fn client_and_server_stay_on_their_processors() {
    let gateway = Gateway::start();
    let pid = gateway.pid();
    let last = allowed(Path::new("/proc/self/status")).unwrap();
    // Use the last processor of the list, which differs from the first if the list contains several processors.
    let cpu = last.rsplit([',', '-']).next().unwrap().to_owned();
    let url = format!("{}/bucket", gateway.endpoint);
    let mut load = command(&[&url, "--duration", "2s", "--warm-up", "0s", "--server-pid", &pid]);
    load.args(["--pin-client", &cpu, "--pin-server", &cpu]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut load = load.spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    let tasks = format!("/proc/{}/task", load.id());
    let is_pinned = || {
        let mut threads = std::fs::read_dir(&tasks).into_iter().flatten().flatten();
        threads.any(|thread| allowed(&thread.path().join("status")).as_ref() == Some(&cpu))
    };
    while !is_pinned() {
        assert!(Instant::now() < end, "no thread of the client is kept on processor {cpu}");
        std::thread::sleep(Duration::from_millis(5));
    }
    load.wait().unwrap();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        assert_eq!(allowed(&thread.unwrap().path().join("status")), Some(cpu.clone()));
    }
}

#[test]
fn processors_that_are_not_there_are_refused() {
    let gateway = Gateway::start();
    let (url, pid) = (format!("{}/bucket", gateway.endpoint), gateway.pid());
    for args in [&["--pin-client", "1000"][..], &["--pin-server", "1000", "--server-pid", &pid]] {
        let (output, summaries) = bench(&[&[&*url, "--requests", "1"], args].concat());
        assert_eq!((output.status.code(), summaries.len()), (Some(2), 0), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("processors [1000]"), "{}", stderr(&output));
    }
}
