//! A run as a table in the terminal.

use crate::{Quantiles, Ratio, Run, Summary, Verdict, ns_text, rate_text};

const HEADINGS: [&str; 10] =
    ["phase", "lane", "ops/s", "MiB/s", "p50", "p99", "client CPU/op", "server CPU/op", "", "limit"];

/// The run's summaries, a line each, a blank line between phases.
pub fn table(run: &Run) -> String {
    let reference = run.lanes.first().map_or("", |lane| lane.name.as_str());
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    rows[0][8] = format!("x {reference} [95 %]");
    rows.extend(run.summaries.iter().map(cells));
    aligned(&rows, &[0, 1, 8, 9]) + &legend(run)
}

/// Lays out `rows` in columns, the first row being headings; a blank line wherever the first cell changes.
pub(crate) fn aligned<const N: usize>(rows: &[[String; N]], left: &[usize]) -> String {
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        if number > 0 && (number == 1 || row[0] != rows[number - 1][0]) {
            text.push('\n');
        }
        let cell = |(at, text): (usize, &String)| match left.contains(&at) {
            true => format!("{text:<width$}", width = widths[at]),
            false => format!("{text:>width$}", width = widths[at]),
        };
        text.push_str(row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn cells(summary: &Summary) -> [String; 10] {
    let latency = |pick: fn(&Quantiles) -> u64| {
        summary.latency.as_ref().map_or("-".to_owned(), |quantiles| ns_text(pick(quantiles)))
    };
    let moves_bytes = summary.bytes_per_s.filter(|_| summary.bytes > 0);
    let lane = match summary.errors {
        0 => summary.lane.clone(),
        errors => format!("{} ({errors} failed)", summary.lane),
    };
    [
        summary.phase.clone(),
        lane,
        summary.ops_per_s.map_or("-".to_owned(), rate_text),
        moves_bytes.map_or("-".to_owned(), |rate| rate_text(rate / f64::from(1 << 20))),
        latency(|quantiles| quantiles.p50_ns),
        latency(|quantiles| quantiles.p99_ns),
        cpu(summary.client_cpu_ns_per_op),
        cpu(summary.server_cpu_ns_per_op),
        summary.ratio.as_ref().map_or("1".to_owned(), ratio),
        summary.limit.name.clone(),
    ]
}

pub(crate) fn cpu(ns: Option<f64>) -> String {
    ns.map_or("-".to_owned(), |ns| ns_text(ns.round() as u64))
}

pub(crate) fn ratio(ratio: &Ratio) -> String {
    let Some(interval) = &ratio.interval else { return "cannot tell: too few blocks".to_owned() };
    let text = format!("{:.2} [{:.2}, {:.2}]", interval.value, interval.low, interval.high);
    match ratio.verdict {
        Verdict::CannotTell => format!("{text} cannot tell"),
        Verdict::Faster | Verdict::Slower => text,
    }
}

fn legend(run: &Run) -> String {
    let parameter = |name: &str| run.parameters.get(name).map_or("?".to_owned(), |value| value.to_string());
    let plain = |name: &str| parameter(name).trim_matches('"').to_owned();
    format!(
        "\nx {}: speed over blocks of the same work done in turn, above 1 is faster; median and 95 % bootstrap \
         interval.\nOn all lanes: durability {}, ETag policy {} (posix has no ETags). -: not measured, or none.\n",
        run.lanes.first().map_or("", |lane| lane.name.as_str()),
        plain("durability"),
        plain("etag_policy"),
    )
}
