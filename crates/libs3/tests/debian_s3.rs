//! Debian's own client, unmodified, with our library of version 2.0 in the place of its own.

mod harness;

use std::path::Path;
use std::process::Command;

use harness::{Lane, built, is_installed, run};

/// A call of the client on a lane.
fn s3(lane: &Lane, words: &[&str]) -> Command {
    let mut command = Command::new("s3");
    // `-u` is HTTP without TLS, `-f` takes bucket names that fit in a path only.
    command.args(["-u", "-f"]).args(words).env("LD_LIBRARY_PATH", built().join("lib"));
    let keys = [&lane.access_key, &lane.secret_key].map(|key| if key.is_empty() { "none" } else { key });
    command
        .env("S3_ACCESS_KEY_ID", keys[0])
        .env("S3_SECRET_ACCESS_KEY", keys[1])
        .env("S3_HOSTNAME", &lane.host);
    command
}

fn put(lane: &Lane, target: &str, file: &Path) {
    run(s3(lane, &["put", target, &format!("filename={}", file.display()), "contentType=text/x-test"])
        .args(["x-amz-meta-a=b"]));
}

fn works(lane: &Lane) {
    let library = run(Command::new("ldd").arg(which("s3")).env("LD_LIBRARY_PATH", built().join("lib")));
    assert!(library.contains("out/lib/libs3.so.2"), "the client loads another library: {library}");
    let files = tempfile::TempDir::new().unwrap();
    let (sent, got) = (files.path().join("sent"), files.path().join("got"));
    let body: Vec<u8> = (0..700_000u32).flat_map(|i| i.to_le_bytes()).collect();
    std::fs::write(&sent, &body).unwrap();

    run(&mut s3(lane, &["create", "My_bucket"]));
    assert!(run(&mut s3(lane, &["test", "My_bucket"])).contains("My_bucket"));
    put(lane, "My_bucket/a/b", &sent);
    assert_eq!(std::fs::read(lane.root.path().join("My_bucket/a/b")).unwrap(), body);
    run(&mut s3(lane, &["get", "My_bucket/a/b", &format!("filename={}", got.display())]));
    assert_eq!(std::fs::read(&got).unwrap(), body);
    let head = run(&mut s3(lane, &["head", "My_bucket/a/b"]));
    for said in ["Content-Type: text/x-test", "Content-Length: 2800000", "x-amz-meta-a: b"] {
        assert!(head.contains(said), "{head}");
    }
    run(&mut s3(lane, &["copy", "My_bucket/a/b", "My_bucket/c"]));
    let list = run(&mut s3(lane, &["list", "My_bucket"]));
    assert!(list.contains("a/b") && list.lines().any(|line| line.starts_with("c ")), "{list}");
    assert!(run(&mut s3(lane, &["list"])).contains("My_bucket"));

    let missing = s3(lane, &["head", "My_bucket/none"]).output().unwrap();
    assert!(!missing.status.success(), "a missing object was found");
    assert!(String::from_utf8_lossy(&missing.stderr).contains("HttpErrorNotFound"), "{missing:?}");
    let full = s3(lane, &["delete", "My_bucket"]).output().unwrap();
    assert!(!full.status.success(), "a bucket with objects was removed");
    assert!(String::from_utf8_lossy(&full.stderr).contains("ErrorBucketNotEmpty"), "{full:?}");
    run(&mut s3(lane, &["delete", "My_bucket/a/b"]));
    run(&mut s3(lane, &["delete", "My_bucket/c"]));
    run(&mut s3(lane, &["delete", "My_bucket"]));
    assert!(!lane.root.path().join("My_bucket").exists());
}

fn which(program: &str) -> String {
    run(Command::new("sh").args(["-c", &format!("command -v {program}")])).trim().to_owned()
}

#[test]
fn works_on_the_embedded_lane() {
    if is_installed("s3") {
        works(&Lane::embedded());
    }
}

#[test]
fn works_against_a_gateway() {
    if is_installed("s3") {
        works(&Lane::http());
    }
}
