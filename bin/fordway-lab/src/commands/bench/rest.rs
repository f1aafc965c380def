//! `bench rest`: generates HTTP load on one server, for each combination of values for the options that accept lists.
//! The load generator of each HTTP version is a [`RequestChannel`] of the workload.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use fordway_client::s3::{RequestSigner, S3Config, S3Credentials};
use fordway_command::{CommandContext, CommandExit};
use fordway_http::{Timeouts, TlsRoots};
#[cfg(feature = "http3")]
use fordway_load::Http3LoadGenerator;
use fordway_load::{
    FinishedRequest, Http1LoadGenerator, Http2LoadGenerator, LoadGenerator, LoadMethod, RequestSequence,
    RequestTemplate,
};
use fordway_machine::MachineWatch;
use fordway_measure::{
    LanePhaseResult, Machine, RowDescription, RunClock, RunDocument, SCHEMA, SCHEMA_VERSION,
    TcpConnectionStats, exact_bytes_text, load_table, rate_text,
};
use fordway_store::{Error, ErrorKind, Result};
use fordway_workload::rest::{
    self, ArrivalProcess, BlockPosition, CompletedRequest, LaneBlocks, LoadBlockResult, LoadFailure,
    LoadPlan, NetworkTraffic, RequestChannel, SummaryRowLoadSettings,
};
use serde_json::json;

use crate::args::{ArrivalProcessArg, GlobalArgs, HttpMethodArg, HttpVersionArg, RestBenchArgs};
use crate::commands;
use crate::commands::run_output;

pub(super) fn run(
    args: &RestBenchArgs,
    global: &GlobalArgs,
    context: &CommandContext,
) -> Result<CommandExit> {
    args.output.out.as_deref().map_or(Ok(()), run_output::check)?;
    check_server(args)?;
    let seed = args.chance.seed()?;
    let started = (jiff::Timestamp::now(), Instant::now());
    let machine = Machine::observe(&[]);
    let watch = MachineWatch::start(args.server_pid.as_slice(), args.trust.force)?;
    // Without its process ID, the server cannot be distinguished from other processes on this machine.
    let watch = if args.server_pid.is_none() { watch.beside_unknown_servers() } else { watch };
    let points = points(args)?;
    pin_server(args)?;
    let all = points.iter().map(|point| requests(args, global, point)).collect::<Result<Vec<_>>>()?;
    context.output.start_counting();
    let rows = measure(args, &points, &all, (seed, machine.cpus_at_once()), context);
    context.output.end_progress();
    let (rows, early_end) = rows?;
    let points = &points[..rows.len() / args.http.len()];
    let mut run = describe(args, points, rows, machine, seed, started)?;
    if let Some(error) = &early_end {
        let warning =
            format!("interrupted: the results cover only what was measured before; the reason: {error}");
        run.0.warnings.push(warning);
    }
    commands::judge_rounds(&mut run.0, &run.1, watch);
    let exit = report(args, run, context)?;
    Ok(early_end.map_or(exit, |error| CommandExit::of(&error)))
}

/// Measures all combinations; for each combination, the HTTP versions take turns. Returns the table's rows, and the
/// error that ended the measurement early, which is `Interrupted` after a signal. After an early end, the rows cover
/// only complete rounds, or the first block if a signal arrives before any round is complete. Errors: the error that
/// ended the measurement before anything was measured.
fn measure(
    args: &RestBenchArgs,
    points: &[RestParameterSet],
    requests: &[Arc<RequestSequence>],
    (seed, cpus): (u64, usize),
    context: &CommandContext,
) -> Result<(Vec<LaneBlocks>, Option<Error>)> {
    let clock = RunClock::start();
    let mut rows = Vec::new();
    let mut number = 0;
    let mut early_end = None;
    for (phase, point) in points.iter().enumerate() {
        let settings = |http: &HttpVersionArg| settings(args, point, *http, cpus);
        let mut of_point: Vec<LaneBlocks> = args
            .http
            .iter()
            .map(|http| LaneBlocks { settings: settings(http), blocks: Vec::new() })
            .collect();
        for round in 0..args.rounds {
            let ended = args.http.iter().enumerate().try_for_each(|(lane, http)| {
                context.interrupt.check()?;
                let place = BlockPosition { lane: lane as u8, phase: phase as u8, round, block: number };
                let block = block(args, point, *http, &requests[phase], (seed, place, clock), context)?;
                of_point[lane].blocks.push(block);
                Ok(())
            });
            // A signal may also be the cause of a failure, so check for a signal first.
            if let Err(error) = context.interrupt.check().and(ended) {
                // After a signal, the last block is shorter than the other blocks, and is kept only if there are no
                // other results.
                let is_only = rows.is_empty() && context.interrupt.is_raised();
                let complete = usize::from(round).max(usize::from(is_only));
                of_point.iter_mut().for_each(|row| row.blocks.truncate(complete));
                early_end = Some(error);
                break;
            }
            // All HTTP versions have now completed the same block.
            number += 1;
        }
        if of_point.iter().any(|row| !row.blocks.is_empty()) {
            rows.extend(of_point);
        }
        if early_end.is_some() {
            break;
        }
    }
    match early_end {
        Some(error) if rows.is_empty() => Err(error),
        early_end => Ok((rows, early_end)),
    }
}

fn block(
    args: &RestBenchArgs,
    point: &RestParameterSet,
    http: HttpVersionArg,
    requests: &Arc<RequestSequence>,
    (seed, place, clock): (u64, BlockPosition, RunClock),
    context: &CommandContext,
) -> Result<LoadBlockResult> {
    let threads = point.threads as usize;
    let plan = LoadPlan {
        arrivals: arrivals(args),
        duration: args.duration,
        requests: args.requests,
        warm_up: args.warm_up,
        threads,
        // In a block, the requests of all HTTP versions have the same arrival times.
        seed: seed.wrapping_add(u64::from(place.block)),
        client_cpus: args.pins.pin_client.clone(),
        server_pid: args.server_pid,
        keep_operations: args.output.out.is_some(),
    };
    let connect = |thread: usize| {
        let connections = point.connections as usize;
        // If the connections cannot be divided equally, each of the first threads gets one more connection.
        let share = connections / threads + usize::from(thread < connections % threads);
        let own = ThreadConnectionOptions {
            http,
            connections: share,
            streams: point.streams as usize,
            timeout: args.timeout,
            roots: args.ca_bundle.clone().map_or(TlsRoots::System, TlsRoots::File),
        };
        connect(&own, requests, context.interrupt.flag())
    };
    let label = format!("requests, {} {}", point.label(args), lane_name(http));
    let mut progress = |at: rest::LoadBlockProgress| {
        let rate = rate_text(at.requests as f64 / at.elapsed.as_secs_f64());
        context
            .output
            .counted(at.requests, format_args!("{label}, {rate}/s over {:.0} s", at.elapsed.as_secs_f64()));
    };
    rest::run_block(&plan, place, clock, &connect, context.interrupt.flag(), &mut progress)
}

fn requests(
    args: &RestBenchArgs,
    global: &GlobalArgs,
    point: &RestParameterSet,
) -> Result<Arc<RequestSequence>> {
    let method = method(args.method);
    let size_bytes = point.size_bytes;
    let url = match size_bytes {
        Some(size) => args.url.replace("{size}", &size.to_string()),
        None => args.url.clone(),
    };
    let signer = if args.sign { Some(signer(global)?) } else { None };
    RequestSequence::new(RequestTemplate {
        method,
        url,
        objects: args.objects,
        size_bytes,
        range: args.range,
        signer,
    })
    .map(Arc::new)
}

/// Returns the signer for `--sign`. Errors: `InvalidArgument` if there are no credentials.
fn signer(global: &GlobalArgs) -> Result<RequestSigner> {
    let config = S3Config::resolve(None, &|name| crate::commands::variable(global, name))?;
    if config.credentials == S3Credentials::Anonymous {
        let detail =
            "--sign needs credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile";
        return Err(Error::new(ErrorKind::InvalidArgument, detail));
    }
    Ok(RequestSigner::new(config.credentials, config.region))
}

fn arrivals(args: &RestBenchArgs) -> ArrivalProcess {
    match (args.rate, args.arrivals) {
        (None, _) => ArrivalProcess::Closed,
        (Some(rate), ArrivalProcessArg::Fixed) => ArrivalProcess::Fixed(rate),
        (Some(rate), ArrivalProcessArg::Poisson) => ArrivalProcess::Poisson(rate),
    }
}

fn settings(
    args: &RestBenchArgs,
    point: &RestParameterSet,
    http: HttpVersionArg,
    cpus: usize,
) -> SummaryRowLoadSettings {
    SummaryRowLoadSettings {
        lane: lane_name(http).to_owned(),
        phase: point.label(args),
        arrivals: arrivals(args),
        uploads: args.method == HttpMethodArg::Put,
        connections: u64::from(point.connections),
        streams: if http == HttpVersionArg::Http1 { 1 } else { u64::from(point.streams) },
        threads: u64::from(point.threads),
        cpus,
    }
}

/// Checks that the process of `--server-pid` exists. Errors: `InvalidArgument`.
fn check_server(args: &RestBenchArgs) -> Result<()> {
    let Some(pid) = args.server_pid else { return Ok(()) };
    fordway_sys::process_cpu_ns(pid).map(drop).map_err(|errno| {
        let detail =
            format!("the process {pid} of --server-pid cannot be measured; name the server's process");
        Error::new(ErrorKind::InvalidArgument, detail).caused_by(std::io::Error::from(errno))
    })
}

fn pin_server(args: &RestBenchArgs) -> Result<()> {
    if args.pins.pin_server.is_empty() {
        return Ok(());
    }
    let Some(pid) = args.server_pid else {
        let detail = "--pin-server needs the process of the server; give it with --server-pid";
        return Err(Error::new(ErrorKind::InvalidArgument, detail));
    };
    let failed = |error: std::io::Error| {
        let detail = format!("process {pid} cannot be pinned to processors {:?}", args.pins.pin_server);
        Error::new(ErrorKind::InvalidArgument, detail).caused_by(error)
    };
    for process in fordway_sys::descendants(pid).map_err(failed)? {
        fordway_sys::pin_process(process, &args.pins.pin_server).map_err(|errno| failed(errno.into()))?;
    }
    Ok(())
}

fn describe(
    args: &RestBenchArgs,
    points: &[RestParameterSet],
    rows: Vec<LaneBlocks>,
    machine: Machine,
    seed: u64,
    started: (jiff::Timestamp, Instant),
) -> Result<(RunDocument, fordway_measure::RunRecords)> {
    let lanes = args.http.len();
    let (mut summaries, mut warnings) = (Vec::new(), Vec::new());
    for of_point in rows.chunks(lanes) {
        for (lane, row) in of_point.iter().enumerate().filter(|(_, row)| !row.blocks.is_empty()) {
            let summary = rest::summarise(row, (lane > 0).then(|| &of_point[0]));
            warnings.extend(rest::warnings(row, &summary));
            summaries.push(summary);
        }
    }
    warnings.extend(unsigned(args, &summaries));
    let lane = |http: &HttpVersionArg| RowDescription {
        name: lane_name(*http).to_owned(),
        description: format!("requests over {} to {}", lane_name(*http), args.url),
    };
    let run = RunDocument {
        schema: SCHEMA.into(),
        schema_version: SCHEMA_VERSION,
        fordway_version: env!("CARGO_PKG_VERSION").into(),
        kind: "rest".into(),
        started: started.0.to_string(),
        elapsed_ns: started.1.elapsed().as_nanos() as u64,
        command: std::env::args().collect(),
        machine,
        parameters: parameters(args, seed),
        lanes: args.http.iter().map(lane).collect(),
        phases: points.iter().map(|point| point.label(args)).collect(),
        summaries,
        scores: Vec::new(),
        warnings,
        conditions: None,
    };
    Ok((run, rest::records(rows)))
}

/// Returns advice if the server rejects the requests because the requests are not signed.
fn unsigned(args: &RestBenchArgs, summaries: &[LanePhaseResult]) -> Option<String> {
    let is_refused = |summary: &LanePhaseResult| {
        let errors = summary.load.as_ref().map(|load| &load.errors);
        errors.is_some_and(|errors| {
            errors.keys().any(|kind| ["status 401", "status 403"].contains(&kind.as_str()))
        })
    };
    (!args.sign && summaries.iter().any(is_refused)).then(|| {
        "the server rejects unsigned requests; use --sign to sign them with the AWS credentials from the environment variables and configuration files"
            .to_owned()
    })
}

fn parameters(args: &RestBenchArgs, seed: u64) -> serde_json::Map<String, serde_json::Value> {
    let parameters = json!({
        "url": args.url,
        "method": method(args.method).name(),
        "objects": args.objects,
        "rounds": args.rounds,
        "duration_ns": args.duration.as_nanos() as u64,
        "requests": args.requests,
        "rate": args.rate,
        "arrivals": arrivals(args).name(),
        "warm_up_ns": args.warm_up.as_nanos() as u64,
        "timeout_ns": args.timeout.as_nanos() as u64,
        "range": args.range.map(fordway_wire::range::format_range),
        "signed": args.sign,
        "seed": seed,
        "pin_client": args.pins.pin_client,
        "pin_server": args.pins.pin_server,
    });
    match parameters {
        serde_json::Value::Object(map) => map,
        _ => serde_json::Map::new(),
    }
}

fn report(
    args: &RestBenchArgs,
    (run, records): (RunDocument, fordway_measure::RunRecords),
    context: &CommandContext,
) -> Result<CommandExit> {
    commands::write_summaries(&run, context)?;
    context.output.text(&load_table(&run))?;
    commands::write_trust(&run, context)?;
    if let Some(dir) = &args.output.out {
        run_output::write(dir, &run, &records)?;
        context.output.text(&format!("run: {}", dir.display()))?;
    }
    Ok(exit(&run.summaries))
}

/// Returns the exit code. If the server has run out of space, this error takes precedence, even if some requests
/// succeeded. `Unavailable` means that no request of any combination succeeded.
fn exit(summaries: &[LanePhaseResult]) -> CommandExit {
    let nothing_succeeded = !summaries.iter().any(|summary| summary.operations > 0);
    let failed = summaries.iter().any(|summary| summary.errors > 0 || summary.operations == 0);
    let errors =
        summaries.iter().filter_map(|summary| summary.load.as_ref()).flat_map(|load| load.errors.keys());
    let is_full = errors.into_iter().any(|kind| kind == "status 507");
    match (is_full, nothing_succeeded, failed) {
        (true, ..) => CommandExit::NoSpace,
        (false, true, _) => CommandExit::Unavailable,
        (false, false, true) => CommandExit::Failure,
        (false, false, false) => CommandExit::Ok,
    }
}

/// The size of a PUT's body if `--size` is not given.
const DEFAULT_PUT_BYTES: u64 = 1024;

/// One combination of values for the options that accept lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RestParameterSet {
    size_bytes: Option<u64>,
    connections: u32,
    streams: u32,
    threads: u32,
}

impl RestParameterSet {
    /// Returns the combination's name in tables.
    fn label(&self, args: &RestBenchArgs) -> String {
        let size = self.size_bytes.map_or(String::new(), |bytes| format!(" {}", exact_bytes_text(bytes)));
        let streams = if self.streams > 1 { format!(" x {} streams", self.streams) } else { String::new() };
        let method = method(args.method).name();
        format!("{method}{size} c={}{streams} t={}", self.connections, self.threads)
    }
}

/// Checks the options that accept lists. Errors: `InvalidArgument` if a list contains a value twice.
fn refuse_repeats(args: &RestBenchArgs) -> Result<()> {
    commands::refuse_repeats("--size", &args.size)?;
    commands::refuse_repeats("--http", &args.http)?;
    commands::refuse_repeats("--connections", &args.connections)?;
    commands::refuse_repeats("--streams", &args.streams)?;
    commands::refuse_repeats("--threads", &args.threads)
}

/// Returns all combinations, grouped by size. Errors: `InvalidArgument` for invalid options, an impossible combination,
/// or more than 255 combinations.
fn points(args: &RestBenchArgs) -> Result<Vec<RestParameterSet>> {
    let refused = |detail: &str| Err(Error::new(ErrorKind::InvalidArgument, detail));
    if args.url.contains("{size}") && args.size.is_empty() {
        return refused("the URL contains {size}, but --size is missing; give the sizes");
    }
    if args.duration.is_zero() {
        return refused("a --duration of 0 measures nothing; use one such as 10s");
    }
    refuse_repeats(args)?;
    let sizes: Vec<Option<u64>> = match (args.method, args.size.is_empty()) {
        (HttpMethodArg::Put, true) => vec![Some(DEFAULT_PUT_BYTES)],
        (_, true) => vec![None],
        (_, false) => args.size.iter().copied().map(Some).collect(),
    };
    let mut points = Vec::new();
    for size_bytes in sizes {
        for &connections in &args.connections {
            for &streams in &args.streams {
                for &threads in &args.threads {
                    if threads > connections {
                        return refused("there are more --threads than --connections; raise --connections");
                    }
                    points.push(RestParameterSet { size_bytes, connections, streams, threads });
                }
            }
        }
    }
    match u8::try_from(points.len()) {
        Ok(_) => Ok(points),
        Err(_) => refused("a sweep has at most 255 combinations; omit some"),
    }
}

const fn method(method: HttpMethodArg) -> LoadMethod {
    match method {
        HttpMethodArg::Get => LoadMethod::Get,
        HttpMethodArg::Put => LoadMethod::Put,
        HttpMethodArg::Head => LoadMethod::Head,
        HttpMethodArg::Delete => LoadMethod::Delete,
    }
}

const fn lane_name(http: HttpVersionArg) -> &'static str {
    match http {
        HttpVersionArg::Http1 => "http/1.1",
        HttpVersionArg::Http2 => "http/2",
        #[cfg(feature = "http3")]
        HttpVersionArg::Http3 => "http/3",
    }
}

/// The number of connections of one thread, and the options of these connections.
#[derive(Clone)]
struct ThreadConnectionOptions {
    http: HttpVersionArg,
    connections: usize,
    streams: usize,
    timeout: Duration,
    roots: TlsRoots,
}

/// Opens a thread's connections. Errors: `Unavailable`, `Timeout`, `InvalidArgument`; `Interrupted` if `stop` is set.
fn connect(
    own: &ThreadConnectionOptions,
    requests: &Arc<RequestSequence>,
    stop: &AtomicBool,
) -> Result<Box<dyn RequestChannel>> {
    let timeouts = Timeouts { first_byte: own.timeout, progress: own.timeout, ..Timeouts::default() };
    let (requests, roots) = (requests.clone(), own.roots.clone());
    let of_each = (own.connections, own.streams);
    let load: Box<dyn LoadGenerator> = match own.http {
        HttpVersionArg::Http1 => {
            Box::new(Http1LoadGenerator::connect(requests, own.connections, timeouts, roots, stop)?)
        }
        HttpVersionArg::Http2 => {
            Box::new(Http2LoadGenerator::connect(requests, of_each, timeouts, roots, stop)?)
        }
        #[cfg(feature = "http3")]
        HttpVersionArg::Http3 => {
            Box::new(Http3LoadGenerator::connect(requests, of_each, timeouts, roots, stop)?)
        }
    };
    Ok(Box::new(HttpChannel { load, finished: Vec::with_capacity(own.connections * own.streams) }))
}

struct HttpChannel {
    load: Box<dyn LoadGenerator>,
    finished: Vec<FinishedRequest>,
}

impl RequestChannel for HttpChannel {
    fn slots(&self) -> usize {
        self.load.slots()
    }

    fn start(&mut self, slot: usize) {
        self.load.start(slot);
    }

    fn wait(&mut self, limit: Duration, answers: &mut Vec<CompletedRequest>) -> Result<()> {
        self.load.wait(limit, &mut self.finished)?;
        answers.extend(self.finished.drain(..).map(answer));
        Ok(())
    }

    fn traffic(&self) -> NetworkTraffic {
        self.load.traffic()
    }

    fn connections(&self) -> Option<TcpConnectionStats> {
        let all = self.load.tcp();
        let mut rtts: Vec<u64> = all.iter().map(|info| u64::from(info.rtt_us)).collect();
        rtts.sort_unstable();
        Some(TcpConnectionStats {
            count: all.len() as u64,
            rtt_us: *rtts.get(rtts.len() / 2)?,
            rtt_max_us: *rtts.last()?,
            retransmits: all.iter().map(|info| u64::from(info.retransmits)).sum(),
            mss_bytes: u64::from(all.iter().map(|info| info.mss_bytes).min()?),
        })
    }
}

fn answer(finished: FinishedRequest) -> CompletedRequest {
    let failure = |problem: fordway_load::ResponseProblem| LoadFailure {
        kind: problem.label(),
        detail: problem.to_string(),
    };
    CompletedRequest {
        slot: finished.slot,
        started: finished.started,
        first_byte: finished.first_byte,
        ended: finished.ended,
        body_bytes: finished.body_bytes,
        retries: 0,
        failure: finished.problem.map(failure),
    }
}

#[cfg(test)]
mod tests {
    use fordway_measure::LimitingResource;

    use super::*;

    fn result(operations: u64, errors: u64) -> LanePhaseResult {
        LanePhaseResult {
            lane: "http".to_owned(),
            phase: "get".to_owned(),
            operations,
            errors,
            bytes: 0,
            ops_per_s: None,
            bytes_per_s: None,
            latency: None,
            histogram: String::new(),
            client_cpu_ns_per_op: None,
            server_cpu_ns_per_op: None,
            ratio: None,
            limit: LimitingResource { name: "waiting".to_owned(), evidence: String::new() },
            load: None,
            transfer: None,
            parallel: None,
        }
    }

    #[test]
    fn the_server_is_unavailable_only_if_no_request_succeeded() {
        assert_eq!(exit(&[result(0, 9), result(0, 0)]), CommandExit::Unavailable);
        assert_eq!(exit(&[result(0, 9), result(9, 0)]), CommandExit::Failure);
        assert_eq!(exit(&[result(9, 1), result(9, 0)]), CommandExit::Failure);
        assert_eq!(exit(&[result(9, 0), result(9, 0)]), CommandExit::Ok);
    }
}
