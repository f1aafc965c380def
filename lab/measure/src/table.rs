//! Formats runs as tables for the terminal, and numbers with readable units: sizes in powers of 1,024, times in powers
//! of 1,000.

use crate::{
    ConfidenceInterval, LanePhaseResult, LatencyQuantiles, MessageExchangeResult, ParallelJobSummary,
    RunDocument, SpeedRatio, SpeedVerdict,
};

const HEADINGS: [&str; 10] =
    ["phase", "lane", "ops/s", "MiB/s", "p50", "p99", "client CPU/op", "server CPU/op", "", "limit"];

/// Returns a table of the run's summaries, one per line, with a blank line between phases.
pub fn table(run: &RunDocument) -> String {
    let reference = run.lanes.first().map_or("", |lane| lane.name.as_str());
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    rows[0][8] = format!("x {reference} [95 %]");
    rows.extend(run.summaries.iter().map(cells));
    aligned(&rows, &[0, 1, 8, 9]) + &legend(run)
}

/// Lays out `rows` in columns. The first row contains the headings. A row is preceded by a blank line if its first cell
/// differs from the first cell of the row above.
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

fn cells(summary: &LanePhaseResult) -> [String; 10] {
    let latency = |pick: fn(&LatencyQuantiles) -> u64| {
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
        summary.ratio.as_ref().map_or("1".to_owned(), ratio_text),
        summary.limit.name.clone(),
    ]
}

pub(crate) fn cpu(ns: Option<f64>) -> String {
    ns.map_or("-".to_owned(), |ns| ns_text(ns.round() as u64))
}

/// Formats a ratio with its interval, and appends `cannot tell` if the interval does not allow a conclusion.
pub fn ratio_text(ratio: &SpeedRatio) -> String {
    let Some(interval) = &ratio.interval else { return "cannot tell: too few blocks".to_owned() };
    // Print two significant digits of a small ratio. Otherwise, a lane with 0.3 % of the reference's speed would have
    // the ratio `0.00`.
    let decimals =
        if interval.value > 0.0 { (1.0 - interval.value.log10().floor()).clamp(2.0, 9.0) } else { 2.0 };
    let [value, low, high] =
        [interval.value, interval.low, interval.high].map(|of| format!("{of:.*}", decimals as usize));
    let text = format!("{value} [{low}, {high}]");
    match ratio.verdict {
        SpeedVerdict::CannotTell => format!("{text} cannot tell"),
        SpeedVerdict::Faster | SpeedVerdict::Slower => text,
    }
}

fn legend(run: &RunDocument) -> String {
    let parameter = |name: &str| run.parameters.get(name).map_or("?".to_owned(), |value| value.to_string());
    let plain = |name: &str| parameter(name).trim_matches('"').to_owned();
    let targets = run.parameters.get("targets").and_then(serde_json::Value::as_object);
    let except = match targets.map(|targets| targets.keys().cloned().collect::<Vec<_>>()) {
        Some(names) if !names.is_empty() => format!(" except {}", names.join(", ")),
        _ => String::new(),
    };
    format!(
        "\nx {}: speed over blocks of the same work done in turn, above 1 is faster; median and 95 % \
         interval.\nOn all lanes{except}: durability {}, ETag policy {} (posix has no ETags). -: not measured, or none.\n",
        run.lanes.first().map_or("", |lane| lane.name.as_str()),
        plain("durability"),
        plain("etag_policy"),
    )
}

const LOAD_HEADINGS: [&str; 15] = [
    "load",
    "lane",
    "req/s",
    "MiB/s",
    "first p50",
    "p50",
    "p99",
    "p99.9",
    "max",
    "late p99",
    "header B",
    "client CPU/op",
    "server CPU/op",
    "server mem",
    "failed",
];

/// Returns a table of the run's summaries, one per line, with a blank line between kinds of load.
pub fn load_table(run: &RunDocument) -> String {
    let mut rows = vec![LOAD_HEADINGS.map(str::to_owned)];
    rows.extend(run.summaries.iter().map(load_cells));
    let mut text = aligned(&rows, &[0, 1]);
    let ratios = run.summaries.iter().filter_map(|summary| Some((summary, summary.ratio.as_ref()?)));
    for (number, (summary, of)) in ratios.enumerate() {
        let gap = if number == 0 { "\n" } else { "" };
        text += &format!("{gap}{}: {} is {} x {}\n", summary.phase, summary.lane, ratio_text(of), of.to);
    }
    text + "\nLatencies count from the intended start in the open loop. late: the start of requests after their \
            intended start. header B: sent+received per request, bodies \
            excluded.\n-: not measured, or none.\n"
}

fn load_cells(summary: &LanePhaseResult) -> [String; 15] {
    let none = || "-".to_owned();
    let load = summary.load.as_ref();
    let latency = |pick: fn(&LatencyQuantiles) -> u64| {
        summary.latency.as_ref().map_or_else(none, |all| ns_text(pick(all)))
    };
    let first_byte = load.and_then(|load| load.first_byte.as_ref());
    let lateness = load.and_then(|load| load.lateness.as_ref());
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
        lateness.map_or_else(none, |all| ns_text(all.p99_ns)),
        headers.map_or_else(none, |(sent, received)| format!("{sent:.0}+{received:.0}")),
        cpu(summary.client_cpu_ns_per_op),
        cpu(summary.server_cpu_ns_per_op),
        memory.map_or_else(none, bytes_text),
        summary.errors.to_string(),
    ]
}

const PARALLEL_HEADINGS: [&str; 8] =
    ["ranks", "set-up", "wall [95 %]", "work", "S [95 %]", "E [95 %]", "communication", "late"];

/// Returns a table of the run's summaries, one per line, with a blank line between rank counts.
pub fn parallel_table(run: &RunDocument) -> String {
    let mut rows = vec![PARALLEL_HEADINGS.map(str::to_owned)];
    rows.extend(
        run.summaries.iter().filter_map(|summary| Some(parallel_cells(summary, summary.parallel.as_ref()?))),
    );
    aligned(&rows, &[1]) + PARALLEL_LEGEND
}

const PARALLEL_LEGEND: &str = "
wall: median of a job, launch included. work: from when the first rank could communicate until the last had nothing more to say.
S: time of one rank in the first set-up / time here, in the same round. E: S / ranks.
communication: share of the ranks' time in calls of MPI, waiting included. late: the last rank's end after the first's.
-: not measured.
";

fn parallel_cells(summary: &LanePhaseResult, of: &ParallelJobSummary) -> [String; 8] {
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

fn time(interval: &ConfidenceInterval) -> String {
    ns_text(interval.value.round() as u64)
}

fn time_with_ends(interval: &ConfidenceInterval) -> String {
    let [low, high] = [interval.low, interval.high].map(|end| ns_text(end.round() as u64));
    format!("{} [{low}, {high}]", time(interval))
}

fn figure(interval: &ConfidenceInterval, factor: f64, unit: &str) -> String {
    let ConfidenceInterval { value, low, high, .. } = interval;
    // Use more decimal places for small values, so that both 2 and 0.009 are readable.
    let decimals = if value * factor >= 10.0 { 1 } else { 3 - usize::from(value * factor >= 0.1) };
    let [value, low, high] = [value, low, high].map(|of| format!("{:.decimals$}", of * factor));
    format!("{value}{unit} [{low}, {high}]")
}

const TRANSFER_HEADINGS: [&str; 9] =
    ["phase", "lane", "time", "[95 %]", "MiB/s", "client CPU", "server CPU", "busy", ""];

/// Returns a table of the run's summaries, one per line, with a blank line between sizes.
pub fn transfer_table(run: &RunDocument) -> String {
    let mut rows = vec![TRANSFER_HEADINGS.map(str::to_owned)];
    rows[0][8] = format!("x {} [95 %]", run.lanes.first().map_or("", |lane| lane.name.as_str()));
    rows.extend(
        run.summaries.iter().filter_map(|summary| Some(transfer_cells(summary, summary.transfer.as_ref()?))),
    );
    aligned(&rows, &[0, 1, 8]) + TRANSFER_LEGEND
}

const TRANSFER_LEGEND: &str = "
latency: from the request for a message until all of it is here. bandwidth: several under way. half-round-trip: half the time \
of a message there and one as large back.
time: median over blocks. client, server CPU: of the side that asks and the side that answers, for each message.
busy: processors that both kept busy. One message at a time is work for one; a transport with 2.00 polls while it waits.
-: not measured, or none.
";

fn transfer_cells(summary: &LanePhaseResult, of: &MessageExchangeResult) -> [String; 9] {
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
        summary.ratio.as_ref().map_or_else(|| "1".to_owned(), ratio_text),
    ]
}

fn ends(interval: &ConfidenceInterval) -> String {
    format!("[{}, {}]", ns_text(interval.low.round() as u64), ns_text(interval.high.round() as u64))
}

/// Formats a size in bytes: `1536` becomes `1.50 KiB`.
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = (bytes.max(1).ilog2() / 10) as usize;
    if power == 0 {
        return format!("{bytes} B");
    }
    format!("{} {}", three_digits(bytes as f64 / (1u64 << (10 * power)) as f64), UNITS[power])
}

/// Formats a size without rounding (`4096` is `4 KiB`, and `4097` is `4097 B`). The names of phases contain sizes in
/// this form, because different phases must have different names.
pub fn exact_bytes_text(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let fits = |(power, _): &(u32, &str)| bytes > 0 && bytes.is_multiple_of(1 << power);
    let (power, unit) = units.into_iter().find(fits).unwrap_or((0, "B"));
    format!("{} {unit}", bytes >> power)
}

/// Formats a time in nanoseconds: `1500` becomes `1.50 µs`.
pub fn ns_text(ns: u64) -> String {
    let (divisor, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (1e3, "µs"),
        1_000_000..1_000_000_000 => (1e6, "ms"),
        _ => (1e9, "s"),
    };
    format!("{} {unit}", three_digits(ns as f64 / divisor))
}

/// Formats a rate in operations or units per second with three digits. Rates from 10,000 have the unit `k`, and rates
/// from 1,000,000 the unit `M`.
pub fn rate_text(per_second: f64) -> String {
    match per_second {
        rate if rate >= 1e6 => format!("{} M", three_digits(rate / 1e6)),
        rate if rate >= 1e4 => format!("{} k", three_digits(rate / 1e3)),
        rate => three_digits(rate),
    }
}

fn three_digits(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v if v >= 0.0995 || v <= 0.0 => format!("{v:.2}"),
        // Print two significant digits of a small value, because `0.00` looks like zero.
        v => format!("{v:.*}", (1.0 - v.log10().floor()).min(9.0) as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_sizes_have_one_name() {
        let names = [0, 1, 1023, 1024, 4096, 4097, 3 << 20, 1 << 30].map(exact_bytes_text);
        assert_eq!(names, ["0 B", "1 B", "1023 B", "1 KiB", "4 KiB", "4097 B", "3 MiB", "1 GiB"]);
    }

    #[test]
    fn texts() {
        assert_eq!(["0 B", "1023 B", "1.50 KiB", "16.0 EiB"], [0, 1023, 1536, u64::MAX].map(bytes_text)[..]);
        assert_eq!(
            ["999 ns", "1.50 µs", "12.3 ms", "2.00 s"],
            [999, 1500, 12_345_678, 2_000_000_000].map(ns_text)[..]
        );
        assert_eq!(
            ["0.50", "123", "9999", "12.3 k", "1.50 M"],
            [0.5, 123.4, 9999.0, 12_345.0, 1.5e6].map(rate_text)[..]
        );
        assert_eq!(["0.00", "0.10", "0.019", "0.0034"], [0.0, 0.0996, 0.0191, 0.003_44].map(rate_text)[..]);
    }

    #[test]
    fn small_ratios_have_digits() {
        let of = |value: f64| {
            let interval = ConfidenceInterval {
                value,
                low: value / 2.0,
                high: 2.0 * value,
                confidence: 0.95,
                samples: 5,
            };
            ratio_text(&SpeedRatio {
                to: "a".into(),
                interval: Some(interval),
                verdict: SpeedVerdict::Slower,
            })
        };
        assert_eq!(["0.50 [0.25, 1.00]", "0.0048 [0.0024, 0.0096]"], [0.5, 0.0048].map(of)[..]);
        assert_eq!("12.00 [6.00, 24.00]", of(12.0));
    }
}
