//! Tests `fordway bench vector` as a user would run it.

use std::io::Write;
use std::process::{Command, Stdio};

use fordway_measure::RunDocument;
use fordway_testkit::hostile::{HostileServer, ResponseFaultScript};

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
    assert!(run.summaries[0].ratio.is_none() && run.summaries[1].ratio.is_some());
}
