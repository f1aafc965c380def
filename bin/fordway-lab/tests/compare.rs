//! The main job as a process: what it prints, what it leaves behind, how it ends.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use fordway_measure::Run;
use fordway_sys::terminate;

fn fordway(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-lab"));
    // No setting of the machine may decide a test.
    command.args(words).env_clear().env("HOME", "/nonexistent").env("PATH", "/nonexistent");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A tree of a few small files, and one that is larger than all buffers.
fn tree(dir: &Path) {
    for i in 0..30 {
        let at = dir.join(format!("d{}", i % 4));
        std::fs::create_dir_all(&at).unwrap();
        std::fs::write(at.join(format!("f{i}")), vec![i as u8; i * 100]).unwrap();
    }
    std::fs::write(dir.join("large"), vec![7; 3_000_000]).unwrap();
}

fn compare(dir: &Path, more: &[&str]) -> Command {
    let mut command = fordway(&["compare", "source", "--root", ".", "--no-report"]);
    command.args(more).current_dir(dir);
    command
}

fn entries(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// All lanes, all phases, all content verified; nothing is left but the run, which can be read.
#[test]
fn every_lane_does_every_phase() {
    let dir = tempfile::tempdir().unwrap();
    tree(&dir.path().join("source"));
    let ran = compare(dir.path(), &["--check-instrument", "--seed", "7"]).output().unwrap();
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let table = text(&ran.stdout);
    assert!(table.contains("instrument: ") && table.contains("run: compare.run"), "{table}");
    assert_eq!(entries(dir.path()), ["compare.run", "source"]);

    let run = Run::read(&dir.path().join("compare.run")).unwrap();
    let lanes: Vec<_> = run.lanes.iter().map(|lane| lane.name.as_str()).collect();
    assert_eq!(lanes, ["posix", "embedded", "node", "http", "posix+delay"]);
    assert_eq!(run.summaries.len(), 6 * 5);
    for row in &run.summaries {
        let operations = match row.phase.as_str() {
            "list" => 15,
            "range" => 5 * 30,
            _ => 5 * 31,
        };
        assert_eq!((row.operations, row.errors), (operations, 0), "{} {}", row.phase, row.lane);
        let has_server = ["node", "http"].contains(&row.lane.as_str());
        assert_eq!(row.server_cpu_ns_per_op.is_some(), has_server, "{} {}", row.phase, row.lane);
        assert!(table.contains(row.phase.as_str()) && table.contains(row.lane.as_str()));
    }
    assert_eq!(run.parameters["seed"], 7);
    assert_eq!(run.parameters["durability"], "none");
}

/// The gateway with a certificate of its own, and in HTTP/2, are rows beside the plain one.
#[test]
fn tls_and_http2_are_rows() {
    let dir = tempfile::tempdir().unwrap();
    tree(&dir.path().join("source"));
    let ran =
        compare(dir.path(), &["--lane", "http", "--lane", "https", "--lane", "http2"]).output().unwrap();
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let run = Run::read(&dir.path().join("compare.run")).unwrap();
    let lanes: Vec<_> = run.lanes.iter().map(|lane| lane.name.as_str()).collect();
    assert_eq!(lanes, ["http", "https", "http2"]);
    assert!(run.lanes[1].description.contains("TLS") && run.lanes[2].description.contains("HTTP/2"));
    for row in &run.summaries {
        assert!(row.operations > 0 && row.errors == 0, "{} {}", row.phase, row.lane);
        assert!(row.server_cpu_ns_per_op.is_some(), "{} {}", row.phase, row.lane);
    }
}

/// JSON is a row a line, and nothing else.
#[test]
fn json_is_rows() {
    let dir = tempfile::tempdir().unwrap();
    tree(&dir.path().join("source"));
    let ran = compare(dir.path(), &["--json", "--lane", "posix", "--lane", "embedded"]).output().unwrap();
    let stdout = text(&ran.stdout);
    let rows: Vec<serde_json::Value> =
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 12);
    assert_eq!(
        (&rows[1]["lane"], &rows[1]["server_cpu_ns_per_op"]),
        (&"embedded".into(), &serde_json::Value::Null)
    );
}

fn wait(mut child: Child, at_most: Duration) -> Output {
    let end = Instant::now() + at_most;
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "it did not end in {at_most:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

/// Ctrl-C and SIGTERM in the middle: nothing is left behind, and the message says so.
#[test]
fn a_signal_cleans_up() {
    let dir = tempfile::tempdir().unwrap();
    tree(&dir.path().join("source"));
    let mut command = compare(dir.path(), &["--rounds", "1000"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    let is_at_work = || {
        entries(dir.path()).iter().any(|name| {
            name.starts_with("fordway-compare-")
                && entries(&dir.path().join(name)).contains(&"posix".to_owned())
        })
    };
    while !is_at_work() {
        assert!(Instant::now() < end, "it never began");
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(100));
    terminate(child.id()).unwrap();
    let ended = wait(child, Duration::from_secs(20));
    assert_eq!(ended.status.code(), Some(130), "{}", text(&ended.stderr));
    assert!(text(&ended.stderr).contains("was removed"), "{}", text(&ended.stderr));
    assert_eq!(entries(dir.path()), ["source"]);
}

#[test]
fn what_is_no_directory_is_said_in_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    std::fs::write(dir.path().join("file"), "x").unwrap();
    for (source, says) in
        [("missing", "cannot be read"), ("empty", "no regular file"), ("file", "not a directory")]
    {
        let ran = fordway(&["compare", source]).current_dir(dir.path()).output().unwrap();
        assert_eq!(ran.status.code(), Some(2));
        assert!(text(&ran.stderr).contains(says), "{}", text(&ran.stderr));
    }
    let ran =
        fordway(&["compare", ".", "--root", "/does/not/exist"]).current_dir(dir.path()).output().unwrap();
    assert_eq!(ran.status.code(), Some(2));
    assert!(text(&ran.stderr).contains("--root /does/not/exist"), "{}", text(&ran.stderr));
}
