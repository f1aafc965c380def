//! Runs Debian's unmodified client `s3` with our libs3 2.0 library instead of Debian's.

mod harness;

use std::path::Path;
use std::process::Command;

use harness::{Lane, built, run};

/// Returns a command that runs the client on a lane.
fn s3(lane: &Lane, words: &[&str]) -> Command {
    let mut command = Command::new("s3");
    // `-u` means HTTP without TLS; `-f` accepts bucket names that are valid only in a path.
    command.args(["-u", "-f"]).args(words).env("LD_LIBRARY_PATH", built().join("lib"));
    let keys = [&lane.access_key, &lane.secret_key].map(|key| if key.is_empty() { "none" } else { key });
    command
        .env("S3_ACCESS_KEY_ID", keys[0])
        .env("S3_SECRET_ACCESS_KEY", keys[1])
        .env("S3_HOSTNAME", &lane.host);
    command
}

fn succeeds(mut command: Command) -> String {
    let said = command.output().unwrap();
    assert!(!String::from_utf8_lossy(&said.stderr).contains("ERROR"), "{said:?}");
    String::from_utf8_lossy(&said.stdout).into_owned()
}

/// Checks that a command of the client fails with `status`. The client always exits with status 0, so this function
/// examines its output.
fn fails(mut command: Command, status: &str) {
    let said = command.output().unwrap();
    assert!(String::from_utf8_lossy(&said.stderr).contains(&format!("ERROR: {status}\n")), "{said:?}");
}

fn put(lane: &Lane, target: &str, file: &Path) {
    let file = format!("filename={}", file.display());
    succeeds(s3(lane, &["put", target, &file, "contentType=text/x-test", "x-amz-meta-a=b"]));
}

fn works(lane: &Lane) {
    let library = run(Command::new("ldd").arg(which("s3")).env("LD_LIBRARY_PATH", built().join("lib")));
    assert!(library.contains("test-libraries/lib/libs3.so.2"), "the client loads another library: {library}");
    let files = tempfile::TempDir::new().unwrap();
    let (sent, got) = (files.path().join("sent"), files.path().join("got"));
    let body: Vec<u8> = (0..700_000u32).flat_map(|i| i.to_le_bytes()).collect();
    std::fs::write(&sent, &body).unwrap();

    succeeds(s3(lane, &["create", "my-bucket"]));
    assert!(succeeds(s3(lane, &["test", "my-bucket"])).contains("my-bucket"));
    put(lane, "my-bucket/a/b", &sent);
    assert_eq!(std::fs::read(lane.root.path().join("my-bucket/a/b")).unwrap(), body);
    succeeds(s3(lane, &["get", "my-bucket/a/b", &format!("filename={}", got.display())]));
    assert_eq!(std::fs::read(&got).unwrap(), body);
    let head = succeeds(s3(lane, &["head", "my-bucket/a/b"]));
    for said in ["Content-Type: text/x-test", "Content-Length: 2800000", "x-amz-meta-a: b"] {
        assert!(head.contains(said), "{head}");
    }
    succeeds(s3(lane, &["copy", "my-bucket/a/b", "my-bucket/c"]));
    let list = succeeds(s3(lane, &["list", "my-bucket"]));
    assert!(list.contains("a/b") && list.lines().any(|line| line.starts_with("c ")), "{list}");
    assert!(succeeds(s3(lane, &["list"])).contains("my-bucket"));

    fails(s3(lane, &["head", "my-bucket/none"]), "HttpErrorNotFound");
    fails(s3(lane, &["get", "my-bucket/none"]), "ErrorNoSuchKey");
    fails(s3(lane, &["delete", "my-bucket"]), "ErrorBucketNotEmpty");
    succeeds(s3(lane, &["delete", "my-bucket/a/b"]));
    succeeds(s3(lane, &["delete", "my-bucket/c"]));
    succeeds(s3(lane, &["delete", "my-bucket"]));
    assert!(!lane.root.path().join("my-bucket").exists());
}

fn which(program: &str) -> String {
    run(Command::new("sh").args(["-c", &format!("command -v {program}")])).trim().to_owned()
}

#[test]
fn works_on_the_embedded_lane() {
    if fordway_needs::programs(&["s3"]) {
        works(&Lane::embedded());
    }
}

#[test]
fn works_against_a_gateway() {
    if fordway_needs::programs(&["s3"]) {
        works(&Lane::http());
    }
}

/// If the requested expiry time has passed, the URL must be valid for only one second.
#[test]
fn signed_urls_expire_when_they_should() {
    if !fordway_needs::programs(&["s3"]) {
        return;
    }
    let lane = Lane::http();
    let url = |words: &[&str]| succeeds(s3(&lane, &[&["gqs", "my-bucket/key"], words].concat()));
    assert!(url(&["expires=2001-01-01T00:00:00Z"]).contains("X-Amz-Expires=1&"));
    assert!(url(&["expires=2999-01-01T00:00:00Z"]).contains("X-Amz-Expires=604800&"));
    assert!(url(&[]).contains("X-Amz-Expires=604800&"));
}

#[test]
fn works_on_the_node_lane() {
    if fordway_needs::programs(&["s3"]) {
        works(&Lane::node());
    }
}
