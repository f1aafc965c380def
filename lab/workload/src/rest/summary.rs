//! Summarizes blocks of load as the rows of a run, and determines what limits the throughput of a server under
//! load.

use fordway_measure::{
    BlockRecord, CountersIncomplete, DisturbanceCause, LanePhaseKey, LanePhaseResult, LimitingResource,
    LoadGeneratorSummary, MeasurementWarning, ProcessCounters, RunRecords, SpeedRatio, SpeedVerdict,
    median_interval, ns_text, rate_text,
};

use super::block::LoadBlockResult;
use super::{ArrivalProcess, LoadRecorder, NetworkTraffic};

/// The share of the requested rate below which the rate counts as not reached.
const KEPT: f64 = 0.98;
/// The CPU time of this program, divided by the sum of its threads' elapsed times, above which this program itself
/// counts as the limit.
const SATURATED: f64 = 0.9;

/// The settings that the blocks of one row have in common.
#[derive(Clone, Debug)]
pub struct SummaryRowLoadSettings {
    /// The lane's name.
    pub lane: String,
    /// The phase's name.
    pub phase: String,
    /// The arrival process, which determined when requests started.
    pub arrivals: ArrivalProcess,
    /// Whether the requests, and not the responses, contain the bodies.
    pub uploads: bool,
    /// The number of connections of all threads together.
    pub connections: u64,
    /// The number of concurrent requests on each connection.
    pub streams: u64,
    /// The number of threads.
    pub threads: u64,
    /// The number of processors of the machine.
    pub cpus: usize,
}

/// The blocks of one lane in one phase, in the order of rounds.
#[derive(Debug)]
pub struct LaneBlocks {
    /// The settings of the load.
    pub settings: SummaryRowLoadSettings,
    /// The results of the blocks.
    pub blocks: Vec<LoadBlockResult>,
}

/// Returns the row for the blocks `of`, with the ratio to `reference`; `reference` is `None` if `of` is the reference
/// itself.
pub fn summarise(of: &LaneBlocks, reference: Option<&LaneBlocks>) -> LanePhaseResult {
    let total = SummaryRowTotals::of(&of.blocks);
    let (recorder, elapsed_s) = (&total.recorder, total.elapsed_ns as f64 / 1e9);
    let operations = recorder.latency.len();
    let per_second = |count: u64| (count > 0 && elapsed_s > 0.0).then(|| count as f64 / elapsed_s);
    let per_op = |counters: &Option<ProcessCounters>| {
        counters.as_ref().filter(|_| operations > 0).map(|used| used.cpu_ns as f64 / operations as f64)
    };
    let ops_per_s = per_second(recorder.in_time);
    let reached = RowThroughput {
        ops_per_s: ops_per_s.unwrap_or_default(),
        fell_behind: fell_behind(of, ops_per_s, recorder),
        elapsed_ns: total.elapsed_ns,
        load_cpu_ns: total.load_cpu_ns,
        client: total.client.as_ref(),
        server: total.server.as_ref(),
    };
    LanePhaseResult {
        lane: of.settings.lane.clone(),
        phase: of.settings.phase.clone(),
        operations,
        errors: recorder.failed(),
        bytes: recorder.body_bytes,
        ops_per_s,
        bytes_per_s: per_second(recorder.in_time_bytes),
        latency: recorder.latency.quantiles(),
        histogram: recorder.latency.to_base64(),
        client_cpu_ns_per_op: per_op(&total.client),
        server_cpu_ns_per_op: per_op(&total.server),
        ratio: reference.map(|reference| ratio(of, reference)),
        limit: limit(&of.settings, &reached),
        load: Some(load(&of.settings, &total)),
        transfer: None,
        parallel: None,
    }
}

/// The totals over all blocks of a row.
struct SummaryRowTotals {
    recorder: LoadRecorder,
    elapsed_ns: u64,
    traffic: NetworkTraffic,
    connections: Option<fordway_measure::TcpConnectionStats>,
    client: Option<ProcessCounters>,
    load_cpu_ns: u64,
    server: Option<ProcessCounters>,
    /// Whether the process that the user specified as the server used no CPU time, which shows that it is not the
    /// server.
    is_server_idle: bool,
}

/// After this many responses, every server has used a measurable amount of CPU time.
const RESPONSES_MIN: u64 = 100;

impl SummaryRowTotals {
    fn of(blocks: &[LoadBlockResult]) -> Self {
        let mut total = SummaryRowTotals {
            recorder: LoadRecorder::default(),
            elapsed_ns: 0,
            traffic: NetworkTraffic::default(),
            connections: None,
            client: joined(blocks.iter().map(|block| Some(&block.client))),
            load_cpu_ns: blocks.iter().map(|block| block.load_cpu_ns).sum(),
            server: joined(blocks.iter().map(|block| block.server.as_ref())),
            is_server_idle: false,
        };
        for block in blocks {
            total.recorder.add(LoadRecorder { operations: Vec::new(), ..block.recorder.clone() });
            total.elapsed_ns += block.elapsed_ns;
            total.traffic += block.traffic;
            total.connections = block.connections.or(total.connections);
        }
        let has_responses = total.recorder.latency.len() >= RESPONSES_MIN;
        total.is_server_idle = has_responses && total.server.as_ref().is_some_and(|used| used.cpu_ns == 0);
        if total.is_server_idle {
            total.server = None;
        }
        total
    }
}

/// Adds up the counters of all blocks. Returns `None` if the counters of one block are missing, because the sum would
/// not cover the whole row.
fn joined<'b>(
    mut all: impl Iterator<Item = Option<&'b Result<ProcessCounters, CountersIncomplete>>>,
) -> Option<ProcessCounters> {
    let mut sum = all.next()??.as_ref().ok()?.clone();
    for counters in all {
        sum.add(counters?.as_ref().ok()?);
    }
    Some(sum)
}

fn load(settings: &SummaryRowLoadSettings, total: &SummaryRowTotals) -> LoadGeneratorSummary {
    let SummaryRowTotals { recorder, traffic, .. } = total;
    let answered = recorder.latency.len();
    // Failed requests also transferred bytes, which belong to no operation. Therefore, header sizes are not computed if
    // any request failed.
    let clean = answered > 0 && recorder.failures.is_empty();
    let header = |bytes: u64| clean.then(|| bytes as f64 / answered as f64);
    let (mut sent, mut received) = (traffic.sent_bytes, traffic.received_bytes);
    let with_bodies = if settings.uploads { &mut sent } else { &mut received };
    *with_bodies = with_bodies.saturating_sub(recorder.body_bytes);
    LoadGeneratorSummary {
        arrivals: settings.arrivals.name().to_owned(),
        rate_asked_per_s: settings.arrivals.rate(),
        connections: settings.connections,
        streams: settings.streams,
        threads: settings.threads,
        skipped: recorder.skipped,
        errors: recorder.failures.iter().map(|(kind, (count, _))| (kind.clone(), *count)).collect(),
        first_byte: recorder.first_byte.quantiles(),
        first_byte_histogram: recorder.first_byte.to_base64(),
        lateness: recorder.lateness.quantiles(),
        header_sent_bytes_per_op: header(sent),
        header_received_bytes_per_op: header(received),
        reconnects: traffic.connections,
        retries: recorder.retries,
        tcp: total.connections,
        client: total.client.clone(),
        server: total.server.clone(),
    }
}

/// Returns the records of all blocks for the run file.
pub fn records(rows: Vec<LaneBlocks>) -> RunRecords {
    let mut records = RunRecords::default();
    for block in rows.into_iter().flat_map(|row| row.blocks) {
        records.blocks.push(BlockRecord {
            lane: block.place.lane,
            phase: block.place.phase,
            round: block.place.round,
            block: block.place.block,
            operations: block.recorder.latency.len() as u32,
            bytes: block.recorder.body_bytes,
            elapsed_ns: block.elapsed_ns,
            client_cpu_ns: block.client.map_or(0, |used| used.cpu_ns),
            server_cpu_ns: block.server.and_then(|used| Some(used.ok()?.cpu_ns)),
        });
        records.operations.extend(block.recorder.operations);
    }
    records
}

/// Returns the median over rounds of (throughput of `of` / throughput of `reference`). Omits rounds in which a request
/// of one of them failed, because refusing a request takes less time than serving it.
fn ratio(of: &LaneBlocks, reference: &LaneBlocks) -> SpeedRatio {
    // A block without a successful request has no speed, and a ratio of 0 would make the run unreadable.
    let rate = |block: &LoadBlockResult| {
        let is_clean = block.recorder.failed() == 0;
        let has_speed = is_clean && block.recorder.in_time > 0 && block.elapsed_ns > 0;
        has_speed.then(|| block.recorder.in_time as f64 / block.elapsed_ns as f64)
    };
    let pairs = of.blocks.iter().zip(&reference.blocks).filter_map(|(a, b)| Some(rate(a)? / rate(b)?));
    let interval = median_interval(&pairs.collect::<Vec<_>>());
    SpeedRatio { to: reference.settings.lane.clone(), interval, verdict: SpeedVerdict::of(interval.as_ref()) }
}

/// Returns the reasons to doubt the row `summary` of `of`, each with a remedy.
pub fn warnings(of: &LaneBlocks, summary: &LanePhaseResult) -> Vec<String> {
    let total = SummaryRowTotals::of(&of.blocks);
    let row = format!("{} {}", of.settings.phase, of.settings.lane);
    let mut warnings = Vec::new();
    warnings.extend(rate_not_kept(of, summary, &total.recorder).map(|text| format!("{row}: {text}")));
    for (kind, (count, detail)) in &total.recorder.failures {
        warnings.push(format!("{row}: {count} requests failed ({kind}); the first failure: {detail}"));
    }
    let refused = of.blocks.iter().filter_map(|block| block.server.as_ref()?.as_ref().err());
    warnings.extend(refused.map(|why| format!("{row}: the server's counters are not used: {why}")).next());
    if total.is_server_idle {
        warnings.push(format!(
            "{row}: the process of --server-pid used no CPU time, so it is not the server, and its counters are not used"
        ));
    }
    let busy = total.load_cpu_ns as f64 / (total.elapsed_ns as f64 * of.settings.threads as f64);
    if busy > SATURATED {
        warnings.push(format!(
            "{row}: this program used {:.0} % of its threads' CPU time, so it may be the limit itself; add --threads",
            100.0 * busy
        ));
    }
    warnings
}

/// The share of the 99th-percentile latency that lateness can account for without a warning.
const LATE_SHARE_MAX: f64 = 0.5;
/// The maximum lateness, in ns, that the kernel's timers alone can cause.
const LATE_NS_MIN: u64 = 500_000;

/// Returns a warning about the rows whose latencies consist mostly of lateness. Requests start later than intended if
/// this program has no processor, or if no connection is free.
pub fn late_requests(summaries: &[LanePhaseResult]) -> Option<MeasurementWarning> {
    let lateness = |summary: &LanePhaseResult| {
        let late_ns = summary.load.as_ref()?.lateness?.p99_ns;
        let share = late_ns as f64 / summary.latency?.p99_ns.max(1) as f64;
        (late_ns >= LATE_NS_MIN && share > LATE_SHARE_MAX).then_some(late_ns)
    };
    let late: Vec<(&LanePhaseResult, u64)> =
        summaries.iter().filter_map(|summary| Some((summary, lateness(summary)?))).collect();
    let worst_ns = late.iter().map(|(_, ns)| *ns).max()?;
    let cell =
        |summary: &LanePhaseResult| LanePhaseKey { lane: summary.lane.clone(), phase: summary.phase.clone() };
    Some(MeasurementWarning {
        cause: DisturbanceCause::Generator,
        observed: format!(
            "requests started up to {} late (99th percentile), which is most of their latency: this program waited \
             for a processor or for a free connection",
            ns_text(worst_ns)
        ),
        remedy: "measure on an idle machine, lower --rate, or add --connections or --threads".to_owned(),
        cells: late.iter().map(|(summary, _)| cell(summary)).collect(),
    })
}

/// Returns whether a rate was requested and not reached.
fn fell_behind(of: &LaneBlocks, ops_per_s: Option<f64>, recorder: &LoadRecorder) -> bool {
    let Some(asked) = of.settings.arrivals.rate() else { return false };
    let (skipped, ended) = (recorder.skipped as f64, recorder.latency.len() as f64);
    let too_few = skipped > (1.0 - KEPT) * (skipped + ended);
    let too_slow = ops_per_s.unwrap_or(0.0) < KEPT * asked && recorder.failures.is_empty();
    (skipped > 0.0 && (too_few || too_slow)) || recorder.backlog.grew(1.0 - KEPT)
}

/// Returns the warning that the requested rate was not reached; `None` if the rate was reached. If the rate is not
/// reached, latencies grow with the length of the run.
fn rate_not_kept(of: &LaneBlocks, summary: &LanePhaseResult, recorder: &LoadRecorder) -> Option<String> {
    let asked = of.settings.arrivals.rate()?;
    fell_behind(of, summary.ops_per_s, recorder).then(|| {
        let (left, remedy) = match recorder.skipped {
            0 => (
                format!("{} requests had not ended when the last one was due", recorder.backlog.at_end),
                "lower --rate",
            ),
            skipped => (format!("{skipped} requests never started"), "lower --rate, or add --connections"),
        };
        format!(
            "the rate of {} requests/s was not reached: {} were achieved, and {left}. Latencies then grow with the \
             length of the run and mean nothing: {remedy}",
            rate_text(asked),
            rate_text(summary.ops_per_s.unwrap_or(0.0)),
        )
    })
}

/// The share of the available CPU time above which processors count as busy.
const BUSY: f64 = 0.9;
/// The share of the available CPU time below which processors are not the limit.
const IDLE: f64 = 0.5;

/// The number of processors above which the threads that open connections are mentioned.
const CONNECTING: f64 = 0.05;

/// The throughput and the resources of a row, from which its limit is determined.
pub(super) struct RowThroughput<'c> {
    pub(super) ops_per_s: f64,
    /// Whether a rate was requested and not reached.
    pub(super) fell_behind: bool,
    pub(super) elapsed_ns: u64,
    /// The CPU time of the threads that generate the load.
    pub(super) load_cpu_ns: u64,
    pub(super) client: Option<&'c ProcessCounters>,
    pub(super) server: Option<&'c ProcessCounters>,
}

/// Returns the limit of a row, judging by the counters. The threads of the load or a server can use at most as many
/// processors as there are threads. Client and server together can use at most the processors of the machine.
pub(super) fn limit(settings: &SummaryRowLoadSettings, reached: &RowThroughput) -> LimitingResource {
    // An open loop that reached its rate was limited by that rate, regardless of how busy the processors were.
    if let Some(asked) = settings.arrivals.rate().filter(|_| !reached.fell_behind) {
        let (asked, reached) = (rate_text(asked), rate_text(reached.ops_per_s));
        return named("rate", format!("{reached} of the {asked} requests/s that were requested"));
    }
    let Some(client) = reached.client.filter(|_| reached.elapsed_ns > 0) else {
        return named("cannot tell", "the CPU time of this process is not known".to_owned());
    };
    let processors = |used: &ProcessCounters| used.cpu_ns as f64 / reached.elapsed_ns as f64;
    let cpus = settings.cpus as f64;
    let (client, client_room) = (processors(client), cpus.min(settings.threads as f64));
    // The threads that open connections use processors too, but `settings.threads` does not limit them.
    let load = reached.load_cpu_ns as f64 / reached.elapsed_ns as f64;
    let is_client_busy = load >= BUSY * client_room || client >= BUSY * cpus;
    let mut evidence = format!("client {load:.2} of {client_room} processors");
    if client > load + CONNECTING {
        evidence += &format!(", other threads of the client {:.2}", client - load);
    }
    let Some(counters) = reached.server else {
        let name = if is_client_busy { "client cpu" } else { "cannot tell" };
        return named(name, evidence + "; the server was not watched (--server-pid)");
    };
    let (server, server_room) = (processors(counters), cpus.min(counters.threads.max(1) as f64));
    evidence += &format!(", server {server:.2} of {server_room}, machine {cpus}");
    let name = match (is_client_busy, server >= BUSY * server_room) {
        (true, true) => "client and server cpu",
        (true, false) => "client cpu",
        (false, true) => "server cpu",
        // Neither side uses all processors that are available to it, but both sides share the machine, whose processors
        // are all busy.
        _ if client + server >= BUSY * cpus => "client and server cpu",
        _ if client + server < IDLE * client_room.min(server_room) => "waiting",
        _ => "cannot tell",
    };
    named(name, evidence)
}

fn named(name: &str, evidence: String) -> LimitingResource {
    LimitingResource { name: name.to_owned(), evidence }
}

#[cfg(test)]
mod tests {
    use fordway_measure::LatencyQuantiles;

    use super::*;
    use crate::rest::{ArrivalProcess, BlockPosition};

    fn counters(cpu_ns: u64, threads: u64) -> ProcessCounters {
        ProcessCounters {
            scope: String::new(),
            covered_ns: 1_000,
            threads,
            cpu_ns,
            user_ns: 0,
            system_ns: 0,
            voluntary_switches: 0,
            involuntary_switches: 0,
            rss_bytes: 0,
            max_rss_bytes: 0,
            cycles: None,
            reference_cycles: None,
            instructions: None,
            cache_misses: None,
        }
    }

    /// Returns the limit of a row that covers 1,000 ns, measured on 4 processors by a client that has one thread.
    fn name(
        arrivals: ArrivalProcess,
        fell_behind: bool,
        client_ns: u64,
        server: Option<(u64, u64)>,
    ) -> String {
        let settings = settings(arrivals);
        let client = counters(client_ns, 2);
        let server = server.map(|(ns, threads)| counters(ns, threads));
        let (client, server) = (Some(&client), server.as_ref());
        let reached = RowThroughput {
            ops_per_s: 1.0,
            fell_behind,
            elapsed_ns: 1_000,
            load_cpu_ns: client_ns,
            client,
            server,
        };
        limit(&settings, &reached).name
    }

    #[test]
    fn rows_whose_latency_is_lateness_are_in_doubt() {
        let quantiles = |p99_ns| LatencyQuantiles {
            min_ns: 1,
            p50_ns: 1,
            p90_ns: 1,
            p99_ns,
            p999_ns: p99_ns,
            max_ns: p99_ns,
            mean_ns: 1,
        };
        let row = |phase: &str, late_ns| {
            let settings = SummaryRowLoadSettings {
                lane: "http1".into(),
                phase: phase.into(),
                arrivals: ArrivalProcess::Fixed(1000.0),
                uploads: false,
                connections: 1,
                streams: 1,
                threads: 1,
                cpus: 2,
            };
            let mut summary = summarise(&LaneBlocks { settings, blocks: Vec::new() }, None);
            summary.latency = Some(quantiles(328_000_000));
            summary.load.as_mut().unwrap().lateness = Some(quantiles(late_ns));
            summary
        };
        let doubt = late_requests(&[row("a", 300_000_000), row("b", 1_000_000)]).unwrap();
        assert_eq!(doubt.cells, [LanePhaseKey { lane: "http1".into(), phase: "a".into() }]);
        assert!(doubt.observed.contains("300 ms late"), "{}", doubt.observed);
        assert_eq!(late_requests(&[row("b", 1_000_000)]), None);
    }

    fn block(in_time: u64) -> LoadBlockResult {
        LoadBlockResult {
            place: BlockPosition { lane: 0, phase: 0, round: 0, block: 0 },
            recorder: LoadRecorder { in_time, ..LoadRecorder::default() },
            elapsed_ns: 1_000,
            traffic: NetworkTraffic::default(),
            connections: None,
            client: Ok(counters(0, 1)),
            load_cpu_ns: 0,
            server: None,
        }
    }

    #[test]
    fn rounds_in_which_everything_failed_have_no_ratio() {
        let row = |in_time: &[u64]| {
            let settings = settings(ArrivalProcess::Closed);
            LaneBlocks { settings, blocks: in_time.iter().copied().map(block).collect() }
        };
        let reference = row(&[10; 6]);
        assert_eq!(ratio(&row(&[5, 0, 5, 5, 5]), &reference).interval, None);
        let interval = ratio(&row(&[5, 0, 5, 5, 5, 5]), &reference).interval.unwrap();
        assert_eq!((interval.value, interval.low, interval.samples), (0.5, 0.5, 5));
        assert_eq!(ratio(&reference, &row(&[0; 5])).interval, None);
    }

    #[test]
    fn rounds_with_failures_have_no_ratio() {
        let row =
            |blocks: Vec<LoadBlockResult>| LaneBlocks { settings: settings(ArrivalProcess::Closed), blocks };
        let reference = row((0..6).map(|_| block(10)).collect());
        let mut blocks: Vec<_> = (0..6).map(|_| block(5)).collect();
        blocks[3].recorder.in_time = 1_000;
        blocks[3].recorder.failures.insert("status 503".to_owned(), (1, String::new()));
        let interval = ratio(&row(blocks), &reference).interval.unwrap();
        assert_eq!((interval.high, interval.samples), (0.5, 5));
    }

    fn settings(arrivals: ArrivalProcess) -> SummaryRowLoadSettings {
        SummaryRowLoadSettings {
            lane: String::new(),
            phase: String::new(),
            arrivals,
            uploads: false,
            connections: 1,
            streams: 1,
            threads: 1,
            cpus: 4,
        }
    }

    /// The threads that open connections must not make the threads of the load look busy.
    #[test]
    fn threads_that_open_connections_are_not_the_limit() {
        let settings = settings(ArrivalProcess::Closed);
        let row = |load_cpu_ns| {
            let block = LoadBlockResult { client: Ok(counters(2_700, 34)), load_cpu_ns, ..block(10) };
            LaneBlocks { settings: settings.clone(), blocks: vec![block] }
        };
        for (load_ns, name) in [(400, "cannot tell"), (950, "client cpu")] {
            let row = row(load_ns);
            let summary = summarise(&row, None);
            assert_eq!(summary.limit.name, name, "{}", summary.limit.evidence);
            let is_warned = warnings(&row, &summary).iter().any(|warning| warning.contains("add --threads"));
            assert_eq!(is_warned, name == "client cpu", "{load_ns}");
        }
    }

    #[test]
    fn each_limit_is_named() {
        let closed = |client_ns, server| name(ArrivalProcess::Closed, false, client_ns, server);
        assert_eq!(closed(950, Some((500, 1))), "client cpu");
        assert_eq!(closed(700, Some((980, 1))), "server cpu");
        assert_eq!(closed(950, Some((980, 1))), "client and server cpu");
        assert_eq!(closed(800, Some((2_900, 8))), "client and server cpu");
        assert_eq!(closed(100, Some((100, 8))), "waiting");
        assert_eq!(closed(700, Some((700, 8))), "cannot tell");
        assert_eq!((closed(950, None), closed(100, None)), ("client cpu".into(), "cannot tell".into()));
        assert_eq!(name(ArrivalProcess::Fixed(1.0), false, 990, Some((990, 1))), "rate");
        assert_eq!(name(ArrivalProcess::Fixed(9.0), true, 100, Some((990, 1))), "server cpu");
    }
}
