//! A load generator's run as a table in the terminal.

use crate::table::{aligned, cpu, ratio};
use crate::{Quantiles, Run, Summary, bytes_text, ns_text, rate_text};

const HEADINGS: [&str; 14] = [
    "load",
    "lane",
    "req/s",
    "MiB/s",
    "first p50",
    "p50",
    "p99",
    "p99.9",
    "max",
    "header B",
    "client CPU/op",
    "server CPU/op",
    "server mem",
    "failed",
];

/// The run's summaries, a line each, a blank line between kinds of load.
pub fn load_table(run: &Run) -> String {
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    rows.extend(run.summaries.iter().map(cells));
    let mut text = aligned(&rows, &[0, 1]);
    let ratios = run.summaries.iter().filter_map(|summary| Some((summary, summary.ratio.as_ref()?)));
    for (number, (summary, of)) in ratios.enumerate() {
        let gap = if number == 0 { "\n" } else { "" };
        text += &format!("{gap}{}: {} is {} x {}\n", summary.phase, summary.lane, ratio(of), of.to);
    }
    text + "\nLatencies count from the intended start in the open loop. header B: sent+received per request, bodies \
            excluded.\n-: not measured, or none.\n"
}

fn cells(summary: &Summary) -> [String; 14] {
    let none = || "-".to_owned();
    let load = summary.load.as_ref();
    let latency =
        |pick: fn(&Quantiles) -> u64| summary.latency.as_ref().map_or_else(none, |all| ns_text(pick(all)));
    let first_byte = load.and_then(|load| load.first_byte.as_ref());
    let headers =
        load.and_then(|load| Some((load.header_sent_bytes_per_op?, load.header_received_bytes_per_op?)));
    let memory = load.and_then(|load| Some(load.server.as_ref()?.rss_bytes));
    [
        summary.phase.clone(),
        summary.lane.clone(),
        summary.ops_per_s.map_or_else(none, rate_text),
        summary.bytes_per_s.map_or_else(none, |rate| rate_text(rate / f64::from(1 << 20))),
        first_byte.map_or_else(none, |all| ns_text(all.p50_ns)),
        latency(|all| all.p50_ns),
        latency(|all| all.p99_ns),
        latency(|all| all.p999_ns),
        latency(|all| all.max_ns),
        headers.map_or_else(none, |(sent, received)| format!("{sent:.0}+{received:.0}")),
        cpu(summary.client_cpu_ns_per_op),
        cpu(summary.server_cpu_ns_per_op),
        memory.map_or_else(none, bytes_text),
        summary.errors.to_string(),
    ]
}
