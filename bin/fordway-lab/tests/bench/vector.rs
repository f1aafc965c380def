//! Tests `fordway bench vector` as a user would run it.

use std::io::Write;
use std::process::{Command, Stdio};

use fordway_measure::RunDocument;
use fordway_testkit::hostile::{HostileServer, ResponseFault, ResponseFaultScript};

const RANGES: &str = "# offset length\n90 10\n\n0 3 # the beginning\n95 2\n50 0\n1 2\n";

#[test]
fn a_benchmark_makes_a_run() {
    let server = HostileServer::start((0..100).collect::<Vec<u8>>(), ResponseFaultScript::honest());
    let dir = tempfile::tempdir().unwrap();
    let url = server.url();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-lab"));
    command
        .args([
            "bench",
            "vector",
            &url,
            "--ranges",
            "-",
            "--window",
            "1,2",
            "--rounds",
            "3",
            "--per-call",
            "2",
        ])
        .args(["--out", "v.run"])
        .current_dir(dir.path());
    let mut bench = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    bench.stdin.take().unwrap().write_all(RANGES.as_bytes()).unwrap();
    let output = bench.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("window-1: ") && said.contains("window-2: "), "{said}");
    let run = RunDocument::read(&dir.path().join("v.run")).unwrap();
    assert_eq!((run.kind.as_str(), run.summaries.len()), ("vector", 2));
    for summary in &run.summaries {
        assert_eq!((summary.operations, summary.errors, summary.bytes), (9, 0, 3 * 17), "{}", summary.lane);
    }
    assert_eq!((&run.parameters["ranges"], &run.parameters["range_bytes"]), (&5.into(), &17.into()));
    assert_eq!(run.parameters["ranges_digest"].as_str().map(str::len), Some(16));
    assert!(run.summaries[0].ratio.is_none() && run.summaries[1].ratio.is_some());
}

#[test]
fn a_server_that_ignores_ranges_is_noticed() {
    for (script, is_warned) in [
        (ResponseFaultScript::honest(), false),
        (ResponseFaultScript::honest().always(ResponseFault::WholeForRange), true),
    ] {
        let server = HostileServer::start(vec![7; 1_000_000], script);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ranges"), RANGES).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-lab"));
        command.args(["bench", "vector", &server.url(), "--ranges", "ranges", "--rounds", "1"]);
        let output = command.args(["--out", "v.run"]).current_dir(dir.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let run = RunDocument::read(&dir.path().join("v.run")).unwrap();
        let has_warning = run.warnings.iter().any(|warning| warning.contains("ignores ranges"));
        assert_eq!(has_warning, is_warned, "{:?}", run.warnings);
    }
}

#[test]
fn a_window_is_measured_once() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-lab"));
    command.args(["bench", "vector", "http://127.0.0.1:1/", "--ranges", "/dev/null", "--window", "4,4"]);
    let output = command.output().unwrap();
    let warned = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2) && warned.contains("--window contains a value twice"),
        "{warned}"
    );
}

/// A server that fails after some rounds must not discard these rounds.
#[test]
fn complete_rounds_are_kept_after_an_error() {
    let script = ResponseFaultScript::honest().on_requests(30..usize::MAX, ResponseFault::Status(404, None));
    let server = HostileServer::start((0..100).collect::<Vec<u8>>(), script);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("ranges"), RANGES).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-lab"));
    command.args(["bench", "vector", &server.url(), "--ranges", "ranges", "--window", "1,2"]);
    command.args(["--rounds", "20", "--per-call", "2", "--out", "v.run"]);
    let output = command.current_dir(dir.path()).output().unwrap();
    let (said, warned) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(3), "{warned}");
    assert!(
        warned.contains("of 20 rounds are complete, and the results cover these rounds only"),
        "{warned}"
    );
    assert!(said.contains("window-1: ") && said.contains("window-2: "), "{said}");
    let run = RunDocument::read(&dir.path().join("v.run")).unwrap();
    let operations: Vec<u64> = run.summaries.iter().map(|summary| summary.operations).collect();
    assert!(operations[0] >= 3 && operations[0] == operations[1], "{operations:?}");
}
