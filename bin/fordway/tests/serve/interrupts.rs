//! Tests that a signal ends a command within a few seconds, even if the server does not respond.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::tls::{Gateway, KEYS, Place};

/// The maximum time from a signal to the end of a command. Without the signal, the command would wait for about 30 s.
const SOON: Duration = Duration::from_secs(8);

/// A command whose server stops responding, with a description of the command.
struct Stalled {
    child: Child,
    name: String,
}

impl Stalled {
    fn start(place: &Place, endpoint: &str, version: &str, words: &[&str]) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_fordway"))
            .args(["--quiet", "--endpoint", endpoint])
            .args(words)
            .current_dir(place.path(""))
            .env("AWS_ACCESS_KEY_ID", KEYS[0])
            .env("AWS_SECRET_ACCESS_KEY", KEYS[1])
            .env("AWS_REGION", "us-east-1")
            .env("AWS_CA_BUNDLE", place.path("cert"))
            .env("FORDWAY_HTTP_VERSION", version)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Stalled { child, name: format!("HTTP {version}: {words:?}") }
    }

    /// Sends one signal, and checks how the command ends.
    fn stop(mut self, signal: Signal) {
        assert!(self.child.try_wait().unwrap().is_none(), "{} has ended early", self.name);
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let begin = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            if begin.elapsed() > SOON {
                self.child.kill().unwrap();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(130), "{}: {said}", self.name);
    }
}

fn names(directory: &Path) -> Vec<String> {
    let names = directory.read_dir().unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).collect()
}

#[test]
fn a_signal_ends_transfers_with_a_server_that_does_not_respond() {
    let place = Place::new();
    place.write_certificate();
    std::fs::File::create(place.path("root/bucket/big")).unwrap().set_len(1 << 30).unwrap();
    std::fs::create_dir(place.path("tree")).unwrap();
    for local in ["local", "tree/file"] {
        std::fs::File::create(place.path(local)).unwrap().set_len(1 << 30).unwrap();
    }
    let mut command = place.command();
    let versions: &[&str] = if cfg!(feature = "http3") { &["1.1", "2", "3"] } else { &["1.1", "2"] };
    if cfg!(feature = "http3") {
        command.arg("--http3");
    }
    let mut gateway = Gateway(command.args(["--user-rate", "20MB"]).spawn().unwrap());
    let mut ready = String::new();
    BufReader::new(gateway.0.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let endpoint = ready.trim().rsplit_once(" at ").unwrap().1;
    let mut commands = Vec::new();
    for (at, version) in versions.iter().enumerate() {
        let (down, up) = (format!("down-{at}"), format!("s3://bucket/up-{at}"));
        let synced = format!("s3://bucket/synced-{at}/");
        for words in [
            &["cp", "s3://bucket/big", &down][..],
            &["cat", "s3://bucket/big"],
            &["cp", "local", &up],
            &["cp", "local", &up, "--multipart-threshold", "2G"],
            &["sync", "tree", &synced],
        ] {
            commands.push(Stalled::start(&place, endpoint, version, words));
        }
    }
    std::thread::sleep(Duration::from_secs(3));
    let server = Pid::from_child(&gateway.0);
    kill_process(server, Signal::STOP).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    for (command, signal) in commands.into_iter().zip([Signal::INT, Signal::TERM].into_iter().cycle()) {
        command.stop(signal);
    }
    let left = names(&place.path(""));
    assert!(!left.iter().any(|name| name.contains("down")), "{left:?}");
}
