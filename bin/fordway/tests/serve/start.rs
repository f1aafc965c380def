//! Tests the gateway as a separate process: its output, the files that remain, and its exit code.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use fordway_sys::terminate;

const KEYS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")];

fn fordway(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway"));
    // The machine's settings must not affect a test.
    command.args(words).env_clear().env("HOME", "/nonexistent").env("PATH", "/nonexistent");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A gateway that is stopped when the test ends.
struct Serving {
    child: Child,
    endpoint: String,
}

impl Serving {
    fn start(root: &Path) -> Self {
        let mut command =
            fordway(&["serve", root.to_str().unwrap(), "--listen", "127.0.0.1:0", "--until-eof"]);
        let mut child = command
            .envs(KEYS)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let endpoint = line.trim().rsplit_once(" at ").expect(&line).1.to_owned();
        Serving { child, endpoint }
    }

    fn client(&self, words: &[&str], keys: [(&str, &str); 2]) -> Output {
        fordway(&[words, &["--endpoint", &self.endpoint]].concat()).envs(keys).output().unwrap()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// An object written over HTTP is a file at its key's path. SIGTERM ends the gateway with exit code 0.
#[test]
fn a_gateway_serves_a_directory_until_it_is_told_to_end() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("note"), "hello").unwrap();
    let root = dir.path().join("root");
    std::fs::create_dir_all(root.join("bucket")).unwrap();
    let mut serving = Serving::start(&root);
    let note = dir.path().join("note");
    let ran = serving.client(&["cp", note.to_str().unwrap(), "s3://bucket/a/b.txt"], KEYS);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    assert_eq!(std::fs::read(root.join("bucket/a/b.txt")).unwrap(), b"hello");
    assert_eq!(text(&serving.client(&["cat", "s3://bucket/a/b.txt"], KEYS).stdout), "hello");
    terminate(serving.child.id()).unwrap();
    assert!(serving.child.wait().unwrap().success());
}

/// With a wrong key, the exit code is the code for missing permission, and the message names the source of the key.
#[test]
fn a_wrong_key_names_its_source() {
    let dir = tempfile::tempdir().unwrap();
    let serving = Serving::start(dir.path());
    let wrong_secret = [KEYS[0], ("AWS_SECRET_ACCESS_KEY", "other")];
    let wrong_key = [("AWS_ACCESS_KEY_ID", "nobody"), KEYS[1]];
    for (keys, says) in [(wrong_secret, "signature does not match"), (wrong_key, "invalid access key id")] {
        let ran = serving.client(&["ls"], keys);
        let said = text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(4), "{said}");
        assert!(said.contains(says) && said.contains("AWS_ACCESS_KEY_ID in the environment"), "{said}");
    }
}

#[test]
fn a_port_in_use_and_half_a_key_pair_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let serving = Serving::start(dir.path());
    let address = serving.endpoint.strip_prefix("http://").unwrap();
    let ran = fordway(&["serve", ".", "--listen", address]).current_dir(dir.path()).output().unwrap();
    assert_eq!(ran.status.code(), Some(2));
    assert!(text(&ran.stderr).contains("is in use by another program"), "{}", text(&ran.stderr));
    let half = fordway(&["serve", "."]).envs([KEYS[0]]).current_dir(dir.path()).output().unwrap();
    assert!(text(&half.stderr).contains("set both"), "{}", text(&half.stderr));
    let ran = serving.client(&["mb", "s3://x"], KEYS);
    assert!(text(&ran.stderr).contains("invalid bucket name"), "{}", text(&ran.stderr));
}

/// Without keys in the environment, the printed key pair works.
#[test]
fn a_generated_pair_works() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = fordway(&["serve", ".", "--listen", "127.0.0.1:0", "--until-eof", "--json"]);
    let mut child =
        command.current_dir(dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
    let key = |at: usize| ready["generated"][at].as_str().unwrap();
    let ran = fordway(&["mb", "s3://made", "--endpoint", ready["endpoint"].as_str().unwrap()])
        .envs([("AWS_ACCESS_KEY_ID", key(0)), ("AWS_SECRET_ACCESS_KEY", key(1))])
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    assert!(dir.path().join("made").is_dir());
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    let mut rest = String::new();
    child.stdout.unwrap().read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}

/// With --write-env, the keys are only in a file that only its owner can read. A shell that sources the file can use
/// the gateway.
#[test]
fn an_env_file_has_all_that_a_client_needs() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("s3.env"), "older, for all to read").unwrap();
    let mut command =
        fordway(&["serve", ".", "--listen", "127.0.0.1:0", "--until-eof", "--write-env", "s3.env"]);
    let mut child =
        command.current_dir(dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    let lines = [said.next().unwrap().unwrap(), said.next().unwrap().unwrap()];
    assert_eq!(lines[1], "fordway: endpoint and keys are in s3.env");
    let mode = std::fs::metadata(dir.path().join("s3.env")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut shell = Command::new("/bin/sh");
    let words = ["-c", ". ./s3.env && \"$0\" mb s3://made", env!("CARGO_BIN_EXE_fordway")];
    let ran =
        shell.args(words).env_clear().env("HOME", "/nonexistent").current_dir(dir.path()).output().unwrap();
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    assert!(dir.path().join("made").is_dir());
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert!(said.all(|line| !line.unwrap().contains("SECRET")));
}

/// A gateway with `--region` works for clients that use this region, and the file of --write-env has the region.
#[test]
fn a_gateway_may_have_a_region() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["serve", ".", "--listen", "127.0.0.1:0", "--until-eof", "--region", "eu-west-1"];
    let mut command = fordway(&words);
    command.args(["--write-env", "s3.env"]).current_dir(dir.path());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    said.by_ref().nth(1).unwrap().unwrap();
    let shell = |line: &str| {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &format!(". ./s3.env && {line}"), env!("CARGO_BIN_EXE_fordway")]);
        shell.env_clear().env("HOME", "/nonexistent").current_dir(dir.path()).output().unwrap()
    };
    let ran = shell("\"$0\" mb s3://made && echo $AWS_REGION");
    assert_eq!(text(&ran.stdout).lines().last(), Some("eu-west-1"), "{}", text(&ran.stderr));
    let refused = shell("\"$0\" mb s3://other --region eu-north-1");
    assert!(text(&refused.stderr).contains("--region eu-west-1"), "{}", text(&refused.stderr));
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

/// Options that select a service have no effect on commands that work on a directory, so they are errors.
#[test]
fn options_without_an_effect_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_str().unwrap();
    for (command, options) in [
        ("serve", &["--endpoint", "http://h"][..]),
        ("serve", &["--no-sign-request"]),
        ("node", &["--region", "eu-west-1"]),
        ("node", &["--profile", "nope"]),
        ("gc", &["--endpoint", "http://h"]),
    ] {
        let ended = fordway(&[command, root]).args(options).stdin(Stdio::null()).output().unwrap();
        assert_eq!(ended.status.code(), Some(2), "{command} {options:?}");
        assert!(text(&ended.stderr).contains(options[0]), "{}", text(&ended.stderr));
    }
}

/// A gateway that cannot set the immutable flag must fail at the start, not at the first locked object.
#[test]
fn immutable_locks_without_the_capability_are_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let words = [
        "serve",
        dir.path().to_str().unwrap(),
        "--listen",
        "127.0.0.1:0",
        "--until-eof",
        "--immutable-locks",
    ];
    let mut command = match fordway_sys::may_set_immutable() {
        false => fordway(&words),
        true => {
            let Some(setpriv) = fordway_needs::program("setpriv") else { return };
            let mut command = Command::new(setpriv);
            command.args(["--bounding-set=-linux_immutable", env!("CARGO_BIN_EXE_fordway")]).args(words);
            command
        }
    };
    let ended = command.envs(KEYS).stdin(Stdio::null()).output().unwrap();
    let said = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(4), "{said}");
    assert!(
        said.contains("--immutable-locks needs the CAP_LINUX_IMMUTABLE capability; run the gateway as"),
        "{said}"
    );
}

/// With `ProtectHome=read-only`, systemd mounts home directories read-only for the unit. The gateway must report a root
/// on such a mount.
#[test]
fn a_read_only_mount_is_said_at_the_start() {
    if !fordway_needs::root("mount a directory read-only") || !fordway_needs::programs(&["unshare", "mount"])
    {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let script = "mount --bind \"$1\" \"$1\" && mount --options remount,bind,ro \"$1\" || exit 77
        exec \"$0\" serve \"$1\" --listen 127.0.0.1:0 --until-eof";
    let words = ["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_fordway"), dir.path().to_str().unwrap()];
    let ended = Command::new("unshare").args(words).envs(KEYS).stdin(Stdio::null()).output().unwrap();
    let said = text(&ended.stderr);
    if matches!(ended.status.code(), Some(1 | 77)) {
        return fordway_needs::skip(format_args!("no directory can be mounted: {said}"));
    }
    assert!(ended.status.success(), "{said}");
    assert!(
        said.contains("is on a read-only mount, so all writes will fail") && said.contains("ProtectHome="),
        "{said}"
    );
}
