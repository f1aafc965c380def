//! A run of transports as a table in the terminal.

use crate::table::{aligned, cpu, ratio};
use crate::{Interval, Run, Summary, Transfer, ns_text, rate_text};

const HEADINGS: [&str; 9] =
    ["phase", "lane", "time", "[95 %]", "MiB/s", "client CPU", "server CPU", "busy", ""];

/// The run's summaries, a line each, a blank line between sizes.
pub fn transfer_table(run: &Run) -> String {
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    rows[0][8] = format!("x {} [95 %]", run.lanes.first().map_or("", |lane| lane.name.as_str()));
    rows.extend(run.summaries.iter().filter_map(|summary| Some(cells(summary, summary.transfer.as_ref()?))));
    aligned(&rows, &[0, 1, 8]) + LEGEND
}

const LEGEND: &str = "
latency: from asking for a message until all of it is here. bandwidth: several under way. half-round-trip: half the time \
of a message there and one as large back.
time: median over blocks. client, server CPU: of the side that asks and the side that answers, for each message.
busy: processors that both kept busy. One message at a time is work for one; a transport with 2.00 polls while it waits.
-: not measured, or none.
";

fn cells(summary: &Summary, of: &Transfer) -> [String; 9] {
    let none = || "-".to_owned();
    let one_at_a_time = of.exchange != "bandwidth";
    let time = match &of.time_ns {
        Some(interval) => Some(interval.value.round() as u64),
        None => summary.latency.as_ref().filter(|_| one_at_a_time).map(|latency| latency.p50_ns),
    };
    let rate = of.bytes_per_s.as_ref().map(|interval| interval.value).or(summary.bytes_per_s);
    let lane = match summary.errors {
        0 => summary.lane.clone(),
        errors => format!("{} ({errors} wrong)", summary.lane),
    };
    [
        summary.phase.clone(),
        lane,
        time.map_or_else(none, ns_text),
        of.time_ns.as_ref().map_or_else(none, ends),
        rate.map_or_else(none, |rate| rate_text(rate / f64::from(1 << 20))),
        cpu(Some(of.client_cpu_ns_per_message)),
        cpu(of.server_cpu_ns_per_message),
        format!("{:.2}", of.processors_busy),
        summary.ratio.as_ref().map_or_else(|| "1".to_owned(), ratio),
    ]
}

fn ends(interval: &Interval) -> String {
    format!("[{}, {}]", ns_text(interval.low.round() as u64), ns_text(interval.high.round() as u64))
}
