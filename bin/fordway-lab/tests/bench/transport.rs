//! Tests `fordway bench transport` as a separate process with tiny messages: the transports that are found, the skipped
//! transports, and the remaining files.

use std::path::Path;
use std::process::{Command, Output};

use fordway_measure::RunDocument;

fn transport(dir: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-lab"));
    // Programs installed on the machine must not affect a test.
    command
        .env_clear()
        .env("HOME", "/nonexistent")
        .env("FORDWAY_LAB_FORCE", "1")
        .env("PATH", "/nonexistent")
        .current_dir(dir);
    command.args(["bench", "transport", "--out", "x.run", "--no-report"]).args(words);
    if !words.contains(&"--root") {
        command.args(["--root", "."]);
    }
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn entries(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).collect()
}

#[test]
fn all_that_need_no_other_program_run() {
    let dir = tempfile::tempdir().unwrap();
    let words =
        ["--transport", "embedded,node,tcp,http", "--size", "1,70000", "--messages", "3", "--rounds", "5"];
    let output = transport(dir.path(), &words);
    let (table, told) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{told}");
    let run = RunDocument::read(&dir.path().join("x.run")).unwrap();
    let lanes: Vec<_> = run.lanes.iter().map(|lane| lane.name.as_str()).collect();
    assert_eq!((run.kind.as_str(), lanes), ("transport", vec!["tcp", "http", "node", "embedded"]));
    assert_eq!(run.summaries.len(), 2 * 2 * 4 + 2);
    for row in &run.summaries {
        assert_eq!((row.errors, row.operations > 0), (0, true), "{} {}", row.phase, row.lane);
        let of = row.transfer.as_ref().unwrap();
        assert_eq!(
            of.server_cpu_ns_per_message.is_some(),
            row.lane != "embedded",
            "{} {}",
            row.phase,
            row.lane
        );
    }
    assert!(table.contains("latency 70000 B") && table.contains("x tcp [95 %]"), "{table}");
    assert!(table.contains("http: signed GET"), "{table}");
    assert_eq!(entries(dir.path()), ["x.run"]);
}

#[test]
fn json_is_rows() {
    let dir = tempfile::tempdir().unwrap();
    let output = transport(dir.path(), &["--json", "--transport", "tcp", "--size", "8", "--rounds", "1"]);
    let rows: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let phases: Vec<_> = rows.iter().map(|row| row["phase"].as_str().unwrap()).collect();
    assert_eq!(phases, ["latency 8 B", "bandwidth 8 B", "half-round-trip 8 B"]);
    // A single round yields no confidence interval, so the output must contain no interval.
    assert!(rows.iter().all(|row| row["transfer"]["time_ns"].is_null()));
    assert!(text(&output.stderr).contains("fewer than 5 rounds"));
}

#[test]
fn what_is_not_installed_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["--size", "1", "--messages", "1", "--rounds", "1"];
    let asked = ["--transport", "mpi", "--mpi", "/does/not/exist/fordway-mpi"];
    let refused = transport(dir.path(), &[&words[..], &asked[..]].concat());
    assert_eq!(refused.status.code(), Some(7));
    assert!(text(&refused.stderr).contains("/does/not/exist/fordway-mpi cannot be started"), "{refused:?}");
    let left_out = transport(dir.path(), &[&words[..], &asked[2..]].concat());
    assert!(left_out.status.success(), "{left_out:?}");
    assert!(text(&left_out.stderr).contains("skipped MPI"), "{left_out:?}");
    let run = RunDocument::read(&dir.path().join("x.run")).unwrap();
    assert!(run.warnings.iter().any(|warning| warning.contains("skipped MPI")), "{:?}", run.warnings);
    assert_eq!(entries(dir.path()), ["x.run"]);
}

/// Characters of the directory's name that have a meaning in nginx's configuration must not have an effect.
#[test]
fn nginx_serves_from_any_directory() {
    if fordway_needs::program("nginx").is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = "a b; {c} $d 'e' \"f\"";
    std::fs::create_dir(dir.path().join(root)).unwrap();
    let words =
        ["--root", root, "--transport", "tcp,nginx", "--size", "1KiB", "--messages", "1", "--rounds", "1"];
    let output = transport(dir.path(), &words);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let run = RunDocument::read(&dir.path().join("x.run")).unwrap();
    assert!(run.summaries.iter().any(|row| row.lane == "nginx" && row.errors == 0), "{:?}", run.warnings);
}

#[test]
fn what_cannot_be_sent_is_usage() {
    let dir = tempfile::tempdir().unwrap();
    for (words, why) in [
        (&["--size", "0"][..], "0 bytes is not possible"),
        (&["--size", "8..4"], "goes down"),
        (&["--transport", "pigeon"], "pigeon"),
        (&["--size", "1", "--transport", "tcp", "--pin-server", "1000000"], "choose others"),
    ] {
        let output = transport(dir.path(), words);
        assert_eq!(output.status.code(), Some(2), "{words:?} {output:?}");
        assert!(text(&output.stderr).contains(why), "{output:?}");
    }
    assert!(entries(dir.path()).is_empty());
}
