//! A run of jobs of several numbers of ranks as a table in the terminal.

use crate::table::aligned;
use crate::{Interval, Parallel, Run, Summary, ns_text};

const HEADINGS: [&str; 8] =
    ["ranks", "set-up", "wall [95 %]", "work", "S [95 %]", "E [95 %]", "communication", "late"];

/// The run's summaries, a line each, a blank line between numbers of ranks.
pub fn parallel_table(run: &Run) -> String {
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    rows.extend(run.summaries.iter().filter_map(|summary| Some(cells(summary, summary.parallel.as_ref()?))));
    aligned(&rows, &[1]) + LEGEND
}

const LEGEND: &str = "
wall: median of a job, launch included. work: from when the first rank could communicate until the last had nothing more to say.
S: time of one rank in the first set-up / time here, in the same round. E: S / ranks.
communication: share of the ranks' time in calls of MPI, waiting included. late: the last rank's end after the first's.
-: not measured.
";

fn cells(summary: &Summary, of: &Parallel) -> [String; 8] {
    let none = || "-".to_owned();
    let lane = match summary.errors {
        0 => summary.lane.clone(),
        errors => format!("{} ({errors} failed)", summary.lane),
    };
    let wall = of.wall_ns.as_ref().map(time_with_ends);
    let wall = wall.or_else(|| summary.latency.as_ref().map(|latency| ns_text(latency.p50_ns)));
    [
        of.ranks.to_string(),
        lane,
        wall.unwrap_or_else(none),
        of.work_ns.as_ref().map_or_else(none, time),
        of.speedup.as_ref().map_or_else(none, |s| figure(s, 1.0, "")),
        of.efficiency.as_ref().map_or_else(none, |e| figure(e, 100.0, " %")),
        of.communication_share.as_ref().map_or_else(none, |share| format!("{:.1} %", 100.0 * share.value)),
        of.late_ns.as_ref().map_or_else(none, time),
    ]
}

fn time(interval: &Interval) -> String {
    ns_text(interval.value.round() as u64)
}

fn time_with_ends(interval: &Interval) -> String {
    let [low, high] = [interval.low, interval.high].map(|end| ns_text(end.round() as u64));
    format!("{} [{low}, {high}]", time(interval))
}

fn figure(interval: &Interval, factor: f64, unit: &str) -> String {
    let Interval { value, low, high, .. } = interval;
    // Three digits, whether it is 2 or 0.009.
    let decimals = if value * factor >= 10.0 { 1 } else { 3 - usize::from(value * factor >= 0.1) };
    let [value, low, high] = [value, low, high].map(|of| format!("{:.decimals$}", of * factor));
    format!("{value}{unit} [{low}, {high}]")
}
