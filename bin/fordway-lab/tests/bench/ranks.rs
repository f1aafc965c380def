//! Tests `fordway bench` as a separate process: all lanes, its output and files, and an endpoint that becomes
//! unavailable.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use fordway_measure::RunDocument;
use fordway_sys::terminate;

/// Returns the path of the gateway program, which is next to the program under test; `cargo build` builds both.
fn gateway_program() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_fordway-lab")).with_file_name("fordway")
}

fn fordway(dir: &Path, words: &[&str]) -> Command {
    run(Path::new(env!("CARGO_BIN_EXE_fordway-lab")), dir, words)
}

fn run(program: &Path, dir: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    // The machine's settings must not affect a test.
    command
        .args(words)
        .env_clear()
        .env("HOME", "/nonexistent")
        .env("FORDWAY_LAB_FORCE", "1")
        .env("PATH", "/nonexistent")
        .current_dir(dir);
    command
        .env("AWS_ACCESS_KEY_ID", "key")
        .env("AWS_SECRET_ACCESS_KEY", "secret")
        .env("AWS_REGION", "us-east-1");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn entries(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names.retain(|name| name != ".fordway");
    names
}

fn succeeds(dir: &Path, words: &[&str]) -> Output {
    let output = fordway(dir, words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    output
}

/// Every workload must run on every lane, with one round and with five rounds, without errors. With five rounds, the
/// ratio of each lane to `posix` must have a confidence interval. The run file must be the only file that remains.
#[test]
fn every_workload_runs_on_all_lanes() {
    let dir = tempfile::tempdir().unwrap();
    for (words, phases) in [
        ("ior --block-size 4MiB --rounds 5", 2),
        ("mdtest --mode hard --items 20", 4),
        ("mdworkbench --datasets 2 --objects 5 --buckets dataset", 7),
        (
            "io500 --stonewall 1 --easy-bytes 2MiB --hard-transfers 3 --easy-files 9 --hard-files 9 --published 4",
            12,
        ),
    ] {
        let mut all = vec!["bench"];
        all.extend(words.split(' '));
        all.extend([".", "--all-lanes", "--threads", "2", "--out", "x.run"]);
        let output = succeeds(dir.path(), &all);
        let run = RunDocument::read(&dir.path().join("x.run")).unwrap();
        let lanes: Vec<_> = run.lanes.iter().map(|lane| lane.name.as_str()).collect();
        assert_eq!(lanes, ["posix", "embedded", "node", "http"]);
        assert_eq!(run.summaries.len(), 4 * phases, "{words}");
        for row in &run.summaries {
            assert_eq!((row.errors, row.operations > 0), (0, true), "{words} {} {}", row.phase, row.lane);
            let has_interval = row.ratio.as_ref().is_some_and(|ratio| ratio.interval.is_some());
            assert_eq!(has_interval, words.contains("rounds 5") && row.lane != "posix");
            let has_server = ["node", "http"].contains(&row.lane.as_str());
            assert_eq!(
                row.server_cpu_ns_per_op.is_some(),
                has_server && !row.phase.starts_with("benchmark-")
            );
        }
        let table = text(&output.stdout);
        assert!(table.contains("2 ranks;") && table.contains("x posix"), "{table}");
        assert_eq!(table.contains("S3Embedded"), words.starts_with("io500"), "{table}");
        assert_eq!(entries(dir.path()), ["x.run"]);
    }
    let result = std::fs::read_to_string(dir.path().join("x.run/result-embedded.txt")).unwrap();
    assert!(result.contains("[RESULT]       ior-easy-write") && result.contains("non-compliant"), "{result}");
}

#[test]
fn json_is_rows() {
    let dir = tempfile::tempdir().unwrap();
    let output = succeeds(dir.path(), &["--json", "bench", "mdtest", ".", "--items", "5"]);
    let rows: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let phases: Vec<_> = rows.iter().map(|row| row["phase"].as_str().unwrap()).collect();
    assert_eq!(phases, ["mdtest-create", "mdtest-stat", "mdtest-read", "mdtest-delete"]);
}

#[test]
fn what_cannot_be_done_is_usage() {
    let dir = tempfile::tempdir().unwrap();
    let missing = fordway(dir.path(), &["bench", "ior", "/does/not/exist"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(3));
    assert!(text(&missing.stderr).contains("give an existing directory"), "{}", text(&missing.stderr));
    for (words, why) in [
        (&["bench", "ior", ".", "-t", "3MiB", "-b", "4MiB"][..], "not a multiple"),
        (&["bench", "ior", "/dev/null"], "is not a directory"),
        (&["bench", "mdtest", "ftp://x"], "scheme"),
        (&["bench", "mdtest", ".", "--name", "A/b"], "--name"),
    ] {
        let output = fordway(dir.path(), words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
    }
    assert!(entries(dir.path()).is_empty());
}

/// Starts a gateway on `dir`; returns the process and its address.
fn gateway(dir: &Path) -> (Child, String) {
    let mut child = run(&gateway_program(), dir, &["serve", "--listen", "127.0.0.1:0", "."])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let endpoint = line.trim().rsplit(' ').next().unwrap().to_owned();
    (child, endpoint)
}

/// If an endpoint becomes unavailable during a benchmark, its failures must be counted and the run file must be
/// written.
#[test]
fn an_endpoint_that_goes_away_is_a_column() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("root")).unwrap();
    let (mut server, endpoint) = gateway(&dir.path().join("root"));
    let words = ["bench", "mdtest", &endpoint, "--items", "100000000", "--stonewall", "3", "--keep"];
    let job = fordway(dir.path(), &words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(800));
    server.kill().unwrap();
    server.wait().unwrap();
    let output = job.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("stopped the phase"), "{}", text(&output.stderr));
    let run = RunDocument::read(&dir.path().join("mdtest.run")).unwrap();
    assert!(run.summaries[0].operations > 0 && run.summaries.iter().all(|row| row.errors > 0));
}

/// A server that the user started is part of the measurement, although its process is unknown.
#[test]
fn a_server_of_the_user_is_no_disturbance() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("root")).unwrap();
    let (mut server, endpoint) = gateway(&dir.path().join("root"));
    let output = fordway(dir.path(), &["bench", "mdtest", &endpoint, "--items", "500"]).output().unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let run = RunDocument::read(&dir.path().join("mdtest.run")).unwrap();
    let doubts = run.conditions.unwrap().doubts;
    assert!(!doubts.iter().any(|doubt| doubt.observed.contains("during the run: times")), "{doubts:?}");
    let limits: Vec<&str> = run.summaries.iter().map(|row| row.limit.name.as_str()).collect();
    assert!(!limits.contains(&"waiting"), "{limits:?}");
}

/// Runs mdtest in `dir`, and terminates it after it has begun.
fn terminated(dir: &Path, words: &[&str]) -> Output {
    let job = fordway(dir, words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while !dir.join("fordway-bench/mdtest").exists() {
        assert!(Instant::now() < end, "it never began");
        std::thread::sleep(Duration::from_millis(10));
    }
    terminate(job.id()).unwrap();
    job.wait_with_output().unwrap()
}

/// After SIGTERM, the ranks must stop at their next operation, and their files must be removed.
#[test]
fn a_signal_cleans_up() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["bench", "mdtest", ".", "--items", "100000000", "--threads", "2"];
    let output = terminated(dir.path(), &words);
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("stopped by a signal"), "{}", text(&output.stderr));
    assert!(entries(dir.path()).is_empty(), "{:?}", entries(dir.path()));
}

#[test]
fn a_signal_keeps_the_complete_rounds() {
    let dir = tempfile::tempdir().unwrap();
    for place in ["a", "b"] {
        std::fs::create_dir(dir.path().join(place)).unwrap();
    }
    let words = [
        "bench",
        "mdtest",
        "a",
        "b",
        "--items",
        "2000",
        "--rounds",
        "1000",
        "--threads",
        "2",
        "--out",
        "x.run",
    ];
    let job = fordway(dir.path(), &words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Each round works in `a` and then in `b`, so a round is complete when `b` is in use for the second time.
    let end = Instant::now() + Duration::from_secs(60);
    for is_used in [true, false, true] {
        while dir.path().join("b/fordway-bench").exists() != is_used {
            assert!(Instant::now() < end, "no second round");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    terminate(job.id()).unwrap();
    let output = job.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    let run = RunDocument::read(&dir.path().join("x.run")).unwrap();
    let is_said = run.warnings.iter().any(|warning| warning.starts_with("interrupted after "));
    assert!(is_said, "{:?}", run.warnings);
    let lanes: Vec<_> = run.lanes.iter().map(|lane| lane.name.as_str()).collect();
    assert_eq!(lanes, ["posix", "posix-2"]);
    let operations: Vec<u64> = run.summaries.iter().map(|row| row.operations).collect();
    assert!(operations.iter().all(|count| *count == operations[0] && count % 4000 == 0), "{operations:?}");
    assert!(["a", "b"].iter().all(|place| entries(&dir.path().join(place)).is_empty()));
}

/// With `--keep`, every round creates the directory again, so only the directory of the last round remains.
#[test]
fn the_last_round_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("root")).unwrap();
    let words = ["bench", "mdtest", "root", "--items", "20", "--keep", "--rounds", "2"];
    let output = fordway(dir.path(), &words).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(entries(&dir.path().join("root")), ["fordway-bench"]);
}

/// With `--keep`, the directory of the round that a signal interrupted remains.
#[test]
fn the_interrupted_round_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["bench", "mdtest", ".", "--items", "100000000", "--keep", "--rounds", "2"];
    assert_eq!(terminated(dir.path(), &words).status.code(), Some(130));
    assert_eq!(entries(dir.path()), ["fordway-bench"]);
}

/// The `cleanup` phase of mdworkbench removes the files that `--keep` preserves, so the command must reject `--keep`
/// with this phase.
#[test]
fn keep_is_refused_with_a_phase_that_removes_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let output = fordway(dir.path(), &["bench", "mdworkbench", ".", "--keep"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("leave cleanup out of --phases"), "{}", text(&output.stderr));
    assert!(entries(dir.path()).is_empty());
    succeeds(dir.path(), &["bench", "mdworkbench", ".", "--objects", "2", "--keep", "--phases", "precreate"]);
    assert_eq!(entries(dir.path()), ["fordway-bench", "mdworkbench-precreate.run"]);
}

#[test]
fn nothing_is_made_where_nobody_named_a_place() {
    let dir = tempfile::tempdir().unwrap();
    for benchmark in ["ior", "mdtest", "mdworkbench", "io500"] {
        let output = fordway(dir.path(), &["bench", benchmark]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{benchmark}");
        assert!(text(&output.stderr).contains("specify a target"), "{}", text(&output.stderr));
    }
    assert!(entries(dir.path()).is_empty());
}
