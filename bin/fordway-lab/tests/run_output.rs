//! Tests measuring commands with directories to which a run cannot be written. The commands must refuse these
//! directories before they measure. If the disk becomes full later, the commands must still print their tables.

use std::path::Path;
use std::process::{Command, Output};

/// Creates a run directory in which the first write of a run fails, as on a full disk.
fn full(dir: &Path) {
    std::fs::create_dir(dir).unwrap();
    // The directory contains an older run, which the new run replaces.
    std::fs::write(dir.join("run.json"), r#"{"schema": "fordway.run"}"#).unwrap();
    std::os::unix::fs::symlink("/dev/full", dir.join(".operations.arrow.tmp")).unwrap();
}

fn lab(words: &[&str], dir: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-lab"));
    command.args(words).env("FORDWAY_LAB_FORCE", "1").current_dir(dir).output().unwrap()
}

#[test]
fn a_file_is_refused_before_the_measurement() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    std::fs::create_dir(dir.join("tree")).unwrap();
    std::fs::write(dir.join("tree/f"), "content").unwrap();
    std::fs::write(dir.join("ranges"), "0 1\n").unwrap();
    std::fs::write(dir.join("file"), "not a directory").unwrap();
    let commands: [&[&str]; 8] = [
        &["compare", "tree", "--root", "."],
        &["ledger", "--root", "."],
        &["bench", "rest", "http://127.0.0.1:1"],
        &["bench", "vector", "http://127.0.0.1:1/x", "--ranges", "ranges"],
        &["bench", "mdtest", "tree"],
        &["bench", "transport", "--root", "."],
        &["bench", "pingpong", "--setup", "loopback"],
        &["speedup", "--setup", "shm", "--out", "file", "--", "true"],
    ];
    for words in commands {
        let out: &[&str] = if words[0] == "speedup" { &[] } else { &["--out", "file"] };
        let ended = lab(&[words, out].concat(), dir);
        let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(2), "{words:?}: {stderr}");
        assert!(
            stderr.contains("file") && stderr.contains("choose another directory"),
            "{words:?}: {stderr}"
        );
        assert!(ended.stdout.is_empty(), "{words:?}");
    }
    assert_eq!(std::fs::read(dir.join("file")).unwrap(), b"not a directory");
}

/// A small tmpfs, which is unmounted when this value is dropped.
struct SmallDisk<'d>(&'d Path);

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

/// If the target's disk becomes full during the writes, later reads find wrong content. The exit code must report the
/// first error, which is the full disk.
#[test]
fn a_target_that_becomes_full_sets_the_exit_code() {
    let place = tempfile::tempdir().unwrap();
    let target = place.path().join("target");
    std::fs::create_dir(&target).unwrap();
    let options = ["-t", "tmpfs", "-o", "size=256k,nr_inodes=100", "tmpfs"];
    if !Command::new("mount").args(options).arg(&target).status().is_ok_and(|status| status.success()) {
        return fordway_needs::skip("a tmpfs cannot be mounted here; root is needed");
    }
    let disk = SmallDisk(&target);
    let benchmarks: [&[&str]; 4] = [
        &["ior", "--block-size", "1MiB", "--transfer-size", "64KiB"],
        &["ior", "--mapping", "bucket", "--block-size", "1MiB", "--transfer-size", "64KiB"],
        &["mdtest", "--items", "500"],
        &["mdworkbench"],
    ];
    for words in benchmarks {
        let words =
            [&["bench"], words, &["target", "--all-lanes", "--rounds", "1", "--out", "out.run"]].concat();
        let ended = lab(&words, place.path());
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(6), "{words:?}: {stderr}");
        assert!(!stderr.contains("user.fordway"), "{stderr}");
    }
    drop(disk);
}

/// A page of an older run must not remain next to a new run, even if the new run has no page.
#[test]
fn the_page_of_an_older_run_is_removed() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    std::fs::create_dir(dir.join("tree")).unwrap();
    std::fs::write(dir.join("tree/f"), "content").unwrap();
    let page = "<!doctype html><head><meta name=\"generator\" content=\"Fordway\"></head>";
    for (content, remains) in [(page, false), ("<!doctype html>mine", true)] {
        std::fs::write(dir.join("x.html"), content).unwrap();
        let words = ["compare", "tree", "--root", ".", "--no-report", "--lane", "posix", "--rounds", "1"];
        let ended = lab(&[&words[..], &["--out", "x.run"]].concat(), dir);
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        assert_eq!(dir.join("x.html").exists(), remains);
    }
}

#[test]
fn a_full_disk_does_not_lose_the_table() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    std::fs::create_dir(dir.join("tree")).unwrap();
    std::fs::write(dir.join("tree/f"), "content").unwrap();
    let commands: [&[&str]; 2] = [
        &["compare", "tree", "--root", ".", "--no-report", "--lane", "posix,embedded", "--rounds", "2"],
        &["bench", "mdtest", ".", "--items", "10"],
    ];
    for (number, words) in commands.into_iter().enumerate() {
        let out = format!("{number}.run");
        full(&dir.join(&out));
        let ended = lab(&[words, &["--out", &out]].concat(), dir);
        let (stdout, stderr) =
            (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
        assert_eq!(ended.status.code(), Some(6), "{words:?}: {stderr}");
        let names_run = stdout.lines().any(|line| line.starts_with("run: "));
        assert!(stdout.contains("posix") && !names_run, "{words:?}: {stdout}");
    }
}
