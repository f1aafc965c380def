//! Tests with `strace` that files reach stable storage before they get their names, and before their sources are
//! removed.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Runs `fordway` on the root `root/store`, with the local files in `root`. Returns, in order, the calls that sync
/// files or change file names, with their paths.
fn traced(root: &Path, words: &[&str]) -> Vec<String> {
    let log = root.join("log");
    let calls = "trace=fsync,fdatasync,linkat,rename,renameat,renameat2,unlink,unlinkat";
    let ran = Command::new("strace")
        .args(["-f", "-qq", "-y", "-e", "signal=none", "-e", calls, "-o"])
        .arg(&log)
        .arg(env!("CARGO_BIN_EXE_fordway"))
        .args(["--endpoint", &format!("file://{}", root.join("store").display())])
        .args(words)
        .current_dir(root)
        .env_remove("AWS_ENDPOINT_URL")
        .env_remove("AWS_ENDPOINT_URL_S3")
        .output()
        .unwrap();
    assert!(ran.status.success(), "{words:?}: {}", String::from_utf8_lossy(&ran.stderr));
    let is_done = |line: &&str| !line.contains("= -1 ");
    fs::read_to_string(log).unwrap().lines().filter(is_done).map(str::to_owned).collect()
}

/// Returns the position of the first call that contains all strings in `texts`.
#[track_caller]
fn position(calls: &[String], texts: &[&str]) -> usize {
    let found = calls.iter().position(|call| texts.iter().all(|text| call.contains(text)));
    found.unwrap_or_else(|| panic!("no {texts:?} in {calls:#?}"))
}

fn prepared() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["store/one", "store/two"] {
        fs::create_dir_all(dir.path().join(name)).unwrap();
    }
    fs::write(dir.path().join("store/one/big"), vec![7; 12 << 20]).unwrap();
    fs::write(dir.path().join("store/one/small"), "content").unwrap();
    dir
}

/// A file whose length is set before its content arrives would otherwise be a file of zeros, with the right size and
/// time, after a power cut.
#[test]
fn a_download_in_parts_is_on_stable_storage_before_it_has_its_name() {
    if !fordway_needs::programs(&["strace"]) {
        return;
    }
    let dir = prepared();
    let parts = ["--multipart-threshold", "5MiB", "--part-size", "5MiB"];
    let calls = traced(dir.path(), &[&["cp", "s3://one/big", "big"][..], &parts].concat());
    assert!(
        position(&calls, &["fdatasync(", ".part"]) < position(&calls, &["rename", ".part"]),
        "{calls:#?}"
    );
    let calls = traced(dir.path(), &["cp", "s3://one/small", "small"]);
    assert!(!calls.iter().any(|call| call.contains("sync(")), "a stream grows with its content: {calls:#?}");
}

#[test]
fn a_moved_object_has_a_durable_name_before_its_source_is_removed() {
    if !fordway_needs::programs(&["strace"]) {
        return;
    }
    let dir = prepared();
    let calls = traced(dir.path(), &["mv", "s3://one/small", "in/new/small"]);
    let removed = position(&calls, &["unlinkat(", "\"small\""]);
    let named = position(&calls, &["rename", "in/new/small\""]);
    assert!(position(&calls, &["fdatasync(", ".part"]) < named, "{calls:#?}");
    for directory in ["in/new>", "in>", &format!("{}>", dir.path().display())] {
        let synced = position(&calls, &["fsync(", directory]);
        assert!(named < synced && synced < removed, "{directory}: {calls:#?}");
    }
}

#[test]
fn a_moved_file_is_a_durable_object_before_it_is_removed() {
    if !fordway_needs::programs(&["strace"]) {
        return;
    }
    let dir = prepared();
    fs::write(dir.path().join("file"), "content").unwrap();
    for (from, to, source) in [("file", "s3://one/k", "file\""), ("s3://one/big", "s3://two/k", "\"big\"")] {
        let calls = traced(dir.path(), &["mv", from, to]);
        let removed = position(&calls, &["unlink", source]);
        let named = position(&calls, &["linkat(", "\"k\""]);
        let bucket = if to.contains("one") { "store/one>" } else { "store/two>" };
        let synced = position(&calls, &["fsync(", bucket]);
        assert!(position(&calls, &["fsync("]) < named && named < synced && synced < removed, "{calls:#?}");
    }
    let calls = traced(dir.path(), &["mv", "s3://one/small", "s3://one/renamed"]);
    assert!(!calls.iter().any(|call| call.contains("sync(")), "a rename removes no content: {calls:#?}");
}
