//! `bench vector`: reads the same ranges with several windows, which take turns.

use std::time::Instant;

use fordway_command::reading::{FinishedReadCall, ReadSelection, ReadSpecification, measure, read_ranges};
use fordway_command::{CommandContext, CommandExit};
use fordway_machine::MachineWatch;
use fordway_measure::{
    BlockRecord, Machine, OperationRecord, RowDescription, RunClock, RunDocument, RunRecords, SCHEMA,
    SCHEMA_VERSION, ns_text, own_cpu_ns, rate_text,
};
use fordway_store::{Error, Result};
use fordway_workload::summary::{RunParallelism, forget_waiting, summarise_phase};
use serde_json::json;

use crate::args::{ReplicaArgs, VectorReadBenchArgs};
use crate::commands;
use crate::commands::run_output;

/// The name of the only phase.
const PHASE: &str = "read";
/// The warning of a run whose figures are not the cost of reading ranges.
const IGNORES_RANGES: &str =
    "the server ignores ranges and sent the whole file, so the results show the cost of downloads";

pub(super) fn run(args: &VectorReadBenchArgs, context: &CommandContext) -> Result<CommandExit> {
    args.output.out.as_deref().map_or(Ok(()), run_output::check)?;
    commands::refuse_repeats("--window", &args.window)?;
    let started = (jiff::Timestamp::now(), Instant::now());
    let machine = Machine::observe(&[]);
    let watch = MachineWatch::start(&[], args.trust.force)?.beside_unknown_servers();
    let ranges = read_ranges(&args.ranges, context)?;
    let passes = u64::from(args.rounds) * args.window.len() as u64;
    let bytes: u64 = ranges.iter().map(|(_, length)| *length as u64).sum();
    context.output.start_progress();
    context.output.expect_bytes(bytes * passes);
    let mut ignores_ranges = false;
    let measured = measure_all(args, &ranges, &mut ignores_ranges, context);
    context.output.end_progress();
    let (records, early_end) = measured?;
    let mut run = describe(args, machine, started, &records, &ranges);
    if ignores_ranges {
        run.warnings.push(IGNORES_RANGES.into());
    }
    if let Some(error) = &early_end {
        let complete = records.blocks.len() / args.window.len();
        run.warnings.push(format!(
            "only {complete} of {} rounds are complete, and the results cover these rounds only; the reason: {error}",
            args.rounds
        ));
    }
    commands::judge_rounds(&mut run, &records, watch);
    report(args, &run, &records, context)?;
    Ok(early_end.map_or(CommandExit::Ok, |error| CommandExit::of(&error)))
}

/// Measures all rounds. Returns the records of the complete rounds, and the error that ended the measurement early.
/// Sets `ignores_ranges` if the server sent the whole file. Errors: the error that ended the measurement before the
/// first round was complete.
fn measure_all(
    args: &VectorReadBenchArgs,
    ranges: &[(u64, usize)],
    ignores_ranges: &mut bool,
    context: &CommandContext,
) -> Result<(RunRecords, Option<Error>)> {
    let (clock, mut records) = (RunClock::start(), RunRecords::default());
    for round in 0..args.rounds {
        match measure_round(args, ranges, (round, clock), ignores_ranges, context) {
            Ok(measured) => {
                records.operations.extend(measured.operations);
                records.blocks.extend(measured.blocks);
            }
            Err(error) if round == 0 => return Err(error),
            Err(error) => return Ok((records, Some(error))),
        }
    }
    Ok((records, None))
}

/// Reads all ranges once with each window.
fn measure_round(
    args: &VectorReadBenchArgs,
    ranges: &[(u64, usize)],
    (round, clock): (u16, RunClock),
    ignores_ranges: &mut bool,
    context: &CommandContext,
) -> Result<RunRecords> {
    let mut records = RunRecords::default();
    for (lane, window) in args.window.iter().enumerate() {
        let window = *window as usize;
        let what = ReadSelection::Ranges { ranges, window };
        let replicas = ReplicaArgs { metalink: Some("none".to_owned()), ..ReplicaArgs::default() };
        let reading =
            ReadSpecification { url: &args.url, what, calls: &args.calls, replicas: &replicas, verify: true };
        *ignores_ranges |= measure_one(&reading, (lane as u8, round), clock, &mut records, context)?;
    }
    Ok(records)
}

/// Reads all ranges once. Returns whether the server ignored the ranges.
fn measure_one(
    reading: &ReadSpecification,
    (lane, round): (u8, u16),
    clock: RunClock,
    records: &mut RunRecords,
    context: &CommandContext,
) -> Result<bool> {
    let block = u32::from(round);
    let operations = &mut records.operations;
    let cpu_before_ns = own_cpu_ns();
    let cost = measure(reading, context, &mut |call: FinishedReadCall<'_>| {
        operations.push(OperationRecord {
            lane,
            phase: 0,
            round,
            block,
            thread: 0,
            start_ns: clock.at_ns(call.started),
            duration_ns: call.took.as_nanos() as u64,
            bytes: call.bytes.len() as u64,
            ok: true,
            intended_ns: None,
            first_byte_ns: None,
        });
        Ok(())
    })?;
    records.blocks.push(BlockRecord {
        lane,
        phase: 0,
        round,
        block,
        operations: cost.calls as u32,
        bytes: cost.bytes,
        elapsed_ns: (cost.seconds * 1e9) as u64,
        // The total of the reading includes the thread that observes the run.
        client_cpu_ns: own_cpu_ns().saturating_sub(cpu_before_ns),
        server_cpu_ns: None,
    });
    Ok(cost.server_ignores_ranges)
}

fn describe(
    args: &VectorReadBenchArgs,
    machine: Machine,
    started: (jiff::Timestamp, Instant),
    records: &RunRecords,
    ranges: &[(u64, usize)],
) -> RunDocument {
    let lanes: Vec<RowDescription> = args.window.iter().map(|window| lane(*window)).collect();
    let capacity = RunParallelism::of(1, &machine);
    let mut summaries = summarise_phase(&lanes, (0, PHASE), records, capacity);
    summaries.iter_mut().for_each(forget_waiting);
    let parameters = json!({
        "url": args.url,
        "ranges": ranges.len(),
        "range_bytes": ranges.iter().map(|(_, length)| *length as u64).sum::<u64>(),
        "ranges_digest": digest(ranges),
        "per_call": args.calls.per_call,
        "connections": args.calls.connections,
        "http": args.calls.http.number(),
        "rounds": args.rounds,
    });
    RunDocument {
        schema: SCHEMA.into(),
        schema_version: SCHEMA_VERSION,
        fordway_version: env!("CARGO_PKG_VERSION").into(),
        kind: "vector".into(),
        started: started.0.to_string(),
        elapsed_ns: started.1.elapsed().as_nanos() as u64,
        command: std::env::args().collect(),
        machine,
        parameters: parameters.as_object().cloned().unwrap_or_default(),
        summaries,
        lanes,
        phases: vec![PHASE.into()],
        scores: Vec::new(),
        warnings: Vec::new(),
        conditions: None,
    }
}

/// Returns a digest of the ranges (FNV-1a, 64 bits), which shows whether two runs read the same ranges.
fn digest(ranges: &[(u64, usize)]) -> String {
    let numbers = ranges.iter().flat_map(|(offset, length)| [*offset, *length as u64]);
    let mixed = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let hash = numbers.flat_map(u64::to_le_bytes).fold(0xcbf2_9ce4_8422_2325, mixed);
    format!("{hash:016x}")
}

fn lane(window: u32) -> RowDescription {
    let description = match window {
        1 => "each call waits for the previous one".to_owned(),
        window => format!("{window} calls are in flight"),
    };
    RowDescription { name: format!("window-{window}"), description }
}

fn report(
    args: &VectorReadBenchArgs,
    run: &RunDocument,
    records: &RunRecords,
    context: &CommandContext,
) -> Result<()> {
    for (summary, number) in run.summaries.iter().zip(0..) {
        commands::write_row(summary, (&summary.lane, &summary.phase), run, context)?;
        let mut seconds: Vec<u64> = records
            .blocks
            .iter()
            .filter(|block| block.lane == number)
            .map(|block| block.elapsed_ns)
            .collect();
        seconds.sort_unstable();
        let latency = summary.latency.map_or(0, |latency| latency.p50_ns);
        context.output.text(&format!(
            "{}: {} (median of {} rounds; {} to {}), {} MiB/s, {} per call (median), {} of CPU time per call",
            summary.lane,
            ns_text(seconds[seconds.len() / 2]),
            seconds.len(),
            ns_text(seconds[0]),
            ns_text(seconds[seconds.len() - 1]),
            rate_text(summary.bytes_per_s.unwrap_or(0.0) / f64::from(1 << 20)),
            ns_text(latency),
            ns_text(summary.client_cpu_ns_per_op.unwrap_or(0.0) as u64),
        ))?;
    }
    commands::write_trust(run, context)?;
    if let Some(dir) = &args.output.out {
        run_output::write(dir, run, records)?;
        context.output.text(&format!("run: {}", dir.display()))?;
    }
    Ok(())
}
