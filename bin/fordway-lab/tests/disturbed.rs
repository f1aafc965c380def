//! Runs the instruments on a machine that other processes keep busy. Each instrument must mark its results as doubtful
//! or as refused. The output, the run file and the JSON must name other processes as the cause.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

/// Processes that keep every processor busy (two per processor) until this value is dropped. Each process exits after
/// at most five minutes.
struct BusyLoops(Vec<Child>);

impl BusyLoops {
    fn start() -> Self {
        let count = 2 * std::thread::available_parallelism().map_or(1, usize::from);
        let busy = || {
            let mut command = Command::new("timeout");
            command.args(["--foreground", "300", "sh", "-c", "while :; do :; done"]).stdin(Stdio::null());
            command.spawn().unwrap()
        };
        let loops = BusyLoops((0..count).map(|_| busy()).collect());
        // Give all loops time to start before an instrument observes the machine.
        std::thread::sleep(Duration::from_millis(300));
        loops
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // `timeout` passes SIGTERM on to the loop.
            let _ = Command::new("kill").arg(child.id().to_string()).status();
            let _ = child.wait();
        }
    }
}

/// A running `pingpong pong` and its URL. The process exits when this value is dropped.
struct Pong(Child, String);

impl Pong {
    fn start() -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-lab"));
        command.args(["pingpong", "pong", "--until-eof"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().rsplit(' ').next().unwrap().to_owned();
        Pong(child, url)
    }
}

impl Drop for Pong {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn lab(words: &[&str], dir: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-lab"));
    command.args(words).env("FORDWAY_LAB_FORCE", "1").current_dir(dir).output().unwrap()
}

fn check_doubt(what: &str, conditions: &Value) {
    assert_ne!(conditions["verdict"], "measured", "{what}: {conditions}");
    let doubts = conditions["doubts"].as_array().unwrap();
    let names_others = |doubt: &Value| {
        let observed = doubt["observed"].as_str().unwrap();
        doubt["cause"] == "other-processes" && observed.contains("other processes")
    };
    assert!(doubts.iter().any(names_others), "{what}: {conditions}");
}

/// Runs the instrument, and checks what it prints and writes.
fn check_run(words: &[&str], dir: &Path) {
    check_output(&words.join(" "), &lab(&[words, &["--out", "x.run"]].concat(), dir), dir);
}

fn check_output(what: &str, done: &Output, dir: &Path) {
    let table = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{what}: {}", String::from_utf8_lossy(&done.stderr));
    assert!(table.contains("conditions: ") && table.contains("other processes"), "{what}: {table}");
    let run: Value = serde_json::from_slice(&std::fs::read(dir.join("x.run/run.json")).unwrap()).unwrap();
    check_doubt(what, &run["conditions"]);
}

/// Runs the instrument with `--json`, and checks the conditions in its output.
fn check_json(words: &[&str], dir: &Path) {
    let done = lab(&[words, &["--json"]].concat(), dir);
    assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let conditions: Vec<Value> = rows.map(|row| row["conditions"].clone()).collect();
    assert!(!conditions.is_empty());
    conditions.iter().for_each(|conditions| check_doubt(&words.join(" "), conditions));
}

#[test]
fn every_instrument_names_other_work() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    let tree = dir.join("tree");
    std::fs::create_dir(&tree).unwrap();
    (0..20).for_each(|at| std::fs::write(tree.join(format!("f{at}")), vec![at; 4000]).unwrap());
    std::fs::write(dir.join("ranges"), "0 10\n50 10\n").unwrap();
    let pong = Pong::start();
    let (get, object) = (format!("{}/{{size}}", pong.1), format!("{}/1000", pong.1));
    let _busy = BusyLoops::start();
    let runs: [&[&str]; 8] = [
        &["compare", "tree", "--root", ".", "--lane", "posix,embedded", "--rounds", "5", "--no-report"],
        &["ledger", "--root", ".", "--duration", "1s", "--size", "4KiB", "--path", "posix,embedded"],
        &["bench", "rest", &get, "--size", "100", "--duration", "500ms", "--warm-up", "0s"],
        &["bench", "vector", &object, "--ranges", "ranges", "--rounds", "3"],
        &["bench", "ior", ".", "--rounds", "1"],
        &["bench", "mdtest", ".", "--items", "500", "--rounds", "2"],
        &["bench", "transport", "--root", ".", "--transport", "tcp", "--size", "1..64KiB", "--no-report"],
        &[
            "bench",
            "pingpong",
            "--setup",
            "loopback",
            "--rounds",
            "1",
            "--max",
            "100",
            "--points",
            "2",
            "--warm-up",
            "0s",
        ],
    ];
    for words in runs {
        check_run(words, dir);
    }
    check_json(&["machines", "probe"], dir);
    check_json(&["machines", "measure", "--feature", "threads", "--rounds", "1"], dir);
    check_json(&["bench", "mdtest", ".", "--items", "500", "--rounds", "1"], dir);
}

#[test]
fn speedup_names_other_work() {
    if !fordway_needs::programs(&["mpirun"]) {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let _busy = BusyLoops::start();
    let done = lab(
        &["speedup", "--setup", "shm", "--no-report", "--out", "x.run", "--", "sleep", "0.2"],
        place.path(),
    );
    check_output("speedup", &done, place.path());
}
