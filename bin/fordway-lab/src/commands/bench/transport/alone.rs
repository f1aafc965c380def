//! Two MPI ranks by themselves, as their MPI places and connects them, to measure the round trip alone.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use fordway_measure::Run;

use super::mpi;
use super::process::Program;

/// A byte, often enough for a median that holds, in less than a second.
const PLAN: [&str; 6] = ["--sizes", "1", "--rounds", "5", "--messages", "1000"];
const EXCHANGE: &str = "half-round-trip";

/// Half the round trip of a byte between two ranks of this node in nanoseconds, and the library.
/// Errors: the sentence that says what is missing or failed. Cost: the launcher's start, and a second.
pub(in crate::commands) fn half_round_trip_ns() -> Result<(u64, String), String> {
    let (mut command, library) = mpi::two_ranks()?;
    let place = tempfile::tempdir().map_err(|error| format!("no place for the run: {error}"))?;
    run(&mut command, place.path())?;
    let run = Run::read(&place.path().join("ranks.run")).map_err(|error| error.to_string())?;
    let is_wanted = |exchange: &str| exchange == EXCHANGE;
    let summary = run
        .summaries
        .iter()
        .find(|summary| summary.transfer.as_ref().is_some_and(|transfer| is_wanted(&transfer.exchange)));
    let latency = summary.and_then(|summary| summary.latency);
    Ok((latency.ok_or("fordway-mpi made a run without round trips")?.p50_ns, library))
}

fn run(command: &mut Command, place: &Path) -> Result<(), String> {
    let log = place.join("messages");
    let messages = File::create(&log).map_err(|error| format!("no place for its messages: {error}"))?;
    command.args(PLAN).arg("--out").arg(place.join("ranks.run"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(messages);
    let ended = Program::start("fordway-mpi", command).and_then(Program::finish);
    ended.map_err(|error| {
        let messages = std::fs::read_to_string(&log).unwrap_or_default();
        let last = messages.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim();
        format!("{error} ({last})")
    })
}
