//! Runs `fordway bench rest` as a user would.

use std::process::{Command, Output};

use serde_json::Value;

/// Returns the `fordway bench rest --json ARGS` command, not yet started.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-lab"));
    command.args(["bench", "rest", "--json"]).args(args).env_remove("AWS_CA_BUNDLE");
    command
}

/// Runs `fordway bench rest --json ARGS`; returns its output and its summaries.
pub(crate) fn bench(args: &[&str]) -> (Output, Vec<Value>) {
    summaries(command(args))
}

/// Runs `command`; returns its output and its summaries.
pub(crate) fn summaries(mut command: Command) -> (Output, Vec<Value>) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let summaries = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (output, summaries)
}

/// Like [`bench`], for a run with exactly one summary.
pub(crate) fn one(args: &[&str]) -> (Output, Value) {
    let (output, mut summaries) = bench(args);
    assert_eq!(summaries.len(), 1, "{}", stderr(&output));
    (output, summaries.remove(0))
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
