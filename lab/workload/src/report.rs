//! Formats a run of a workload on several ranks as tables for the terminal.

use std::fmt::Write as _;

use fordway_measure::{LanePhaseResult, RunDocument, ns_text, rate_text, ratio_text};

use crate::PhaseResult;
use crate::bench::MeasuredLane;
use crate::io500::published::PublishedTable;
use crate::io500::{figure, scored_round, unit};

/// Returns a table of the phases, with a row for each lane and a blank line between phases.
/// `docs/reference/bench.md` explains the columns.
pub fn table(run: &RunDocument, lanes: &[MeasuredLane]) -> String {
    let reference = run.lanes.first().map_or("", |lane| lane.name.as_str());
    let headings =
        ["phase", "lane", "ops", "errors", "time", "fastest rank", "ops/s", "MiB/s", "p50", "p99", "max"];
    let mut rows = vec![headings.map(str::to_owned).to_vec()];
    rows[0].push(format!("x {reference}"));
    for summary in &run.summaries {
        let lane = lanes.iter().find(|lane| lane.lane.name == summary.lane);
        rows.push(cells(summary, &lane.map_or_else(Vec::new, |lane| lane.phase(&summary.phase)), run));
    }
    let mut text = columns(&rows, 2);
    let ranks = run.parameters.get("ranks").and_then(serde_json::Value::as_u64).unwrap_or(1);
    let _ = write!(
        text,
        "\n{ranks} rank{}; time: from the common start to the end of the slowest rank, without generating and \
         checking content.\nx {reference}: rate in units of its rate. -: not measured, or none.\n",
        if ranks == 1 { "" } else { "s" }
    );
    text
}

fn cells(summary: &LanePhaseResult, rounds: &[&PhaseResult], run: &RunDocument) -> Vec<String> {
    let time_ns: u64 = rounds.iter().map(|round| round.elapsed_ns()).sum();
    let fastest_ns: u64 = rounds.iter().map(|round| round.fastest_ns()).sum();
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let latency = |pick: fn(&fordway_measure::LatencyQuantiles) -> u64| {
        or_dash(summary.latency.as_ref().map(|quantiles| ns_text(pick(quantiles))))
    };
    vec![
        summary.phase.clone(),
        summary.lane.clone(),
        summary.operations.to_string(),
        summary.errors.to_string(),
        ns_text(time_ns),
        ns_text(fastest_ns),
        or_dash(summary.ops_per_s.map(rate_text)),
        or_dash(summary.bytes_per_s.map(|rate| rate_text(rate / f64::from(1 << 20)))),
        latency(|quantiles| quantiles.p50_ns),
        latency(|quantiles| quantiles.p99_ns),
        latency(|quantiles| quantiles.max_ns),
        or_dash(against_reference(summary, run)),
    ]
}

/// Returns the rate as a multiple of the reference's rate, with its interval if there is one.
fn against_reference(summary: &LanePhaseResult, run: &RunDocument) -> Option<String> {
    let Some(ratio) = &summary.ratio else { return Some("1".to_owned()) };
    if ratio.interval.is_some() {
        return Some(ratio_text(ratio));
    }
    let of_reference = |other: &&LanePhaseResult| other.phase == summary.phase && other.lane == ratio.to;
    let reference = run.summaries.iter().find(of_reference)?;
    Some(format!("{} (too few rounds)", rate_text(summary.ops_per_s? / reference.ops_per_s?)))
}

/// Returns a table of IO500's phases in IO500's units, next to published figures. The percentages in brackets are
/// relative to the first lane for our figures, and to the first system for the published figures.
pub fn beside_published(lanes: &[MeasuredLane], published: &PublishedTable) -> String {
    let mut headings = vec!["phase".to_owned(), "unit".to_owned()];
    headings.extend(lanes.iter().map(|lane| lane.lane.name.clone()));
    headings.extend(published.systems.iter().map(|system| format!("| {system}")));
    let mut rows = vec![headings];
    // The rounds that also determine the scores.
    let rounds: Vec<&[PhaseResult]> = lanes
        .iter()
        .map(|lane| lane.rounds.get(scored_round(&lane.rounds)).map_or(&[][..], Vec::as_slice))
        .collect();
    for result in rounds.first().copied().unwrap_or_default() {
        let theirs = published.row(&result.phase);
        let same = |one: &&PhaseResult| one.phase == result.phase;
        let ours: Vec<Option<f64>> =
            rounds.iter().map(|round| round.iter().find(same).and_then(figure)).collect();
        let unit = unit(&result.phase);
        let printed = match theirs {
            Some(row) if row.unit == unit => row.figures.to_vec(),
            Some(row) => {
                row.figures.iter().map(|figure| figure.map(|value| value * scale(row.unit, unit))).collect()
            }
            None => vec![None; published.systems.len()],
        };
        let mut row = vec![result.phase.clone(), unit.to_owned()];
        row.extend(shares(&ours));
        row.extend(shares(&printed));
        rows.push(row);
    }
    format!(
        "{}\nTable {} of Gadban and Kunkel 2021 (doi 10.3390/app11188540): {}.\n\
         In brackets: the share of the first lane here, and of the first system in the paper. Only these shares are comparable.\n",
        columns(&rows, 2),
        published.table,
        published.setup
    )
}

/// Returns the factor that converts a figure from the unit `from` to the unit `to`.
fn scale(from: &str, to: &str) -> f64 {
    match (from, to) {
        ("MiB/s", "GiB/s") => 1.0 / 1024.0,
        ("IOPS", "kIOPS") => 1e-3,
        _ => 1.0,
    }
}

fn shares(figures: &[Option<f64>]) -> Vec<String> {
    let first = figures.first().copied().flatten();
    let text = |(at, value): (usize, &Option<f64>)| match (value, first) {
        (None, _) => "-".to_owned(),
        (Some(value), Some(first)) if at > 0 => format!("{value:.3} ({:.0} %)", 100.0 * value / first),
        (Some(value), _) => format!("{value:.3}"),
    };
    figures.iter().enumerate().map(text).collect()
}

/// Lays out `rows` in columns, with the first `left` columns aligned to the left, and a blank line where the first
/// cell changes.
fn columns(rows: &[Vec<String>], left: usize) -> String {
    let count = rows.first().map_or(0, Vec::len);
    let width = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..count).map(|at| width(at).unwrap_or_default()).collect();
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        let groups = rows.iter().skip(1).zip(rows.iter().skip(2)).any(|(one, next)| one[0] == next[0]);
        if number == 1 || (groups && number > 1 && row[0] != rows[number - 1][0]) {
            text.push('\n');
        }
        let cell = |(at, cell): (usize, &String)| match at < left {
            true => format!("{cell:<width$}", width = widths[at]),
            false => format!("{cell:>width$}", width = widths[at]),
        };
        text.push_str(row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}
