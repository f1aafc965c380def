//! `ledger`: measures the cost of each layer, and checks whether these costs add up to the cost of the whole.
//!
//! This file also chooses the processors on which the two sides of a round trip run. A component and the paths that
//! contain it must use the same placement, because waking a thread on another processor takes several times as long as
//! on the same processor. The scheduler's choice would vary between pairs of processes.

mod components;
mod echo;
mod setup;

use std::path::Path;
use std::time::Instant;

use clap::ValueEnum;
use fordway_command::{CommandContext, CommandExit, file_error};
use fordway_machine::MachineWatch;
use fordway_measure::{
    LimitingResource, Machine, RowDescription, RunClock, RunDocument, RunRecords, SCHEMA, SCHEMA_VERSION,
    bytes_text, exact_bytes_text,
};
use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{pin_process, pin_thread};
use fordway_workload::ledger::{
    LedgerCostReport, LedgerPlan, LedgerProgress, MEDIANS_NOTE, component_table, entry_table, measure,
};
use fordway_workload::summary::{RunParallelism, summarise_phase};
use serde_json::json;

use self::components::SIZE_BYTES_MAX;
use self::setup::PreparedLedgerRun;
use crate::args::{CpuPlacementArg, LedgerArgs, LedgerPathArg};
use crate::commands;
use crate::commands::run_output;
use crate::commands::scratch::ScratchDirectory;

/// The content sizes, in bytes, for which costs are measured to fit the cost functions. The sizes range from 1 byte to
/// a size that exceeds the caches. There are values on both sides of 64 KiB, because larger content is sent separately
/// from the head.
const SIZES: [u64; 13] = [
    1,
    512,
    4 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
    2 << 20,
    4 << 20,
    16 << 20,
];
/// The sizes that are printed by default.
const PRINTED: [u64; 2] = [4 << 10, 1 << 20];
/// The maximum ratio of a residual to the total time. Larger residuals cause a warning.
const RESIDUAL_SHARE_MAX: f64 = 0.15;

pub(super) fn run(args: &LedgerArgs, context: &CommandContext) -> Result<CommandExit> {
    if let (Some(address), Some(file)) = (&args.echo, &args.echo_file) {
        return echo::serve(address, file);
    }
    let (printed, sizes) = sizes(args)?;
    let out = args.output.path("ledger");
    run_output::check(&out)?;
    let plan = LedgerPlan { sizes, duration: args.duration, seed: args.chance.seed()? };
    let paths = match args.paths.is_empty() {
        true => LedgerPathArg::value_variants().to_vec(),
        false => args.paths.clone(),
    };
    let started = (jiff::Timestamp::now(), Instant::now());
    let parent = args.root.clone().unwrap_or_else(std::env::temp_dir);
    // Observe the machine before the measurement starts, because the measurement raises the load average.
    let machine = Machine::observe(&[("root", &parent)]);
    let watch = MachineWatch::start(&[], args.trust.force)?;
    let place = ScratchDirectory::new("ledger", &parent);
    let place = place.map_err(|error| file_error("creating a directory in", parent.display(), error))?;
    let work = work(place.path(), &plan, &paths, args, context)?;
    let removed = place.close().map_err(|error| file_error("removing", "the temporary directory", error));
    let mut run = describe(&plan, &work, &printed, machine, started);
    commands::judge(&mut run, watch);
    let exit = report(&out, &printed, &run, &work, context)?;
    if work.is_early {
        return Ok(CommandExit::Interrupted);
    }
    // A failure of the clean-up does not invalidate the rounds, so the failure is returned only after the report of the
    // rounds.
    work.closed?;
    removed.map(|()| exit)
}

/// Returns the sizes to print and the sizes to measure.
fn sizes(args: &LedgerArgs) -> Result<(Vec<u64>, Vec<u64>)> {
    let printed = if args.sizes.is_empty() { PRINTED.to_vec() } else { args.sizes.clone() };
    if let Some(bad) = printed.iter().find(|size| !(1..=SIZE_BYTES_MAX).contains(*size)) {
        let most = bytes_text(SIZE_BYTES_MAX);
        return Err(Error::new(ErrorKind::InvalidArgument, format!("--size {bad}: use 1 B to {most}")));
    }
    let mut measured = printed.clone();
    if !args.only_sizes {
        measured.extend(SIZES);
    }
    measured.sort_unstable();
    measured.dedup();
    Ok((printed, measured))
}

/// The measurements, and the account computed from them.
struct LedgerRunResult {
    lanes: Vec<RowDescription>,
    records: RunRecords,
    account: LedgerCostReport,
    placement: CpuPlacementArg,
    left_out: Vec<String>,
    /// Whether a signal ended the measurement. After a signal, the records cover only the complete rounds.
    is_early: bool,
    /// The first failure of a gateway when it stopped, if any.
    closed: Result<()>,
}

fn work(
    dir: &Path,
    plan: &LedgerPlan,
    paths: &[LedgerPathArg],
    args: &LedgerArgs,
    context: &CommandContext,
) -> Result<LedgerRunResult> {
    let mut setup = PreparedLedgerRun::new(dir, &plan.sizes, paths, &args.setup)?;
    let placement = choose_placement(&setup, args.placement)?;
    let lanes: Vec<RowDescription> = setup.components.iter().map(|component| component.row.clone()).collect();
    let names: Vec<String> = lanes.iter().map(|lane| lane.name.clone()).collect();
    let clock = RunClock::start();
    context.output.start_steps();
    let total_ms = plan.duration.as_millis() as u64;
    let mut progress = |at: LedgerProgress| {
        context.output.steps(at.elapsed_ns / 1_000_000, total_ms, format_args!("round {}", at.round));
    };
    let stop = context.interrupt.flag();
    let measured = measure(plan, &mut setup.components, &|| clock.now_ns(), stop, &mut progress);
    context.output.end_progress();
    let records = measured?;
    let account = LedgerCostReport::of(&names, &plan.sizes, &setup.paths, &records, plan.seed)?;
    let mut left_out = std::mem::take(&mut setup.left_out);
    let is_early = context.interrupt.check().is_err();
    let closed = setup.close();
    if is_early {
        left_out.push(
            "interrupted: the results cover only the rounds that were complete; run it again".to_owned(),
        );
    }
    Ok(LedgerRunResult { lanes, records, account, placement, left_out, is_early, closed })
}

fn describe(
    plan: &LedgerPlan,
    work: &LedgerRunResult,
    printed: &[u64],
    machine: Machine,
    started: (jiff::Timestamp, Instant),
) -> RunDocument {
    let LedgerRunResult { lanes, records, account, placement, left_out, .. } = work;
    let phases: Vec<String> = plan.sizes.iter().map(|size| exact_bytes_text(*size)).collect();
    let capacity = RunParallelism::of(1, &machine);
    let of_phase = |(number, name): (usize, &String)| {
        let mut summaries = summarise_phase(lanes, (number as u8, name), records, capacity);
        for summary in &mut summaries {
            // Components do different work, so their speeds cannot be compared.
            summary.ratio = None;
            summary.limit = LimitingResource {
                name: "cannot tell".to_owned(),
                evidence: "CPU time includes preparation and checks, which are not timed".to_owned(),
            };
        }
        summaries
    };
    let parameters = json!({
        "sizes_bytes": plan.sizes,
        "printed_bytes": printed,
        "duration_ns": plan.duration.as_nanos() as u64,
        "rounds": records.blocks.iter().map(|block| block.round + 1).max(),
        "seed": plan.seed,
        "placement": placement.to_possible_value().map(|value| value.get_name().to_owned()),
    });
    RunDocument {
        schema: SCHEMA.into(),
        schema_version: SCHEMA_VERSION,
        fordway_version: env!("CARGO_PKG_VERSION").into(),
        kind: "ledger".into(),
        started: started.0.to_string(),
        elapsed_ns: started.1.elapsed().as_nanos() as u64,
        command: std::env::args().collect(),
        machine,
        parameters: parameters.as_object().cloned().unwrap_or_default(),
        summaries: phases.iter().enumerate().flat_map(of_phase).collect(),
        lanes: lanes.clone(),
        phases,
        scores: Vec::new(),
        warnings: left_out.iter().cloned().chain(doubts(account, printed)).collect(),
        conditions: None,
    }
}

/// Returns a warning for each printed entry whose residual is large.
fn doubts(account: &LedgerCostReport, printed: &[u64]) -> Vec<String> {
    let entries = account.entries.iter().filter(|entry| printed.contains(&entry.size_bytes));
    let large = entries.filter(|entry| entry.residual_share.value.abs() > RESIDUAL_SHARE_MAX);
    large
        .map(|entry| {
            format!(
                "{} of {}: no component explains {:.0} % of the time; docs/explain/ledger.md lists known \
                 causes",
                entry.path,
                bytes_text(entry.size_bytes),
                100.0 * entry.residual_share.value
            )
        })
        .collect()
}

/// Writes the run file, with the account in `ledger.json`. `run.json` is written last.
fn write(dir: &Path, run: &RunDocument, work: &LedgerRunResult) -> Result<()> {
    let text = serde_json::to_vec_pretty(&work.account)
        .map_err(|error| Error::new(ErrorKind::Internal, "writing the ledger as JSON").caused_by(error))?;
    let further = Some(("ledger.json", text.as_slice()));
    run_output::write_with(dir, run, &work.records, further)
}

fn report(
    out: &Path,
    printed: &[u64],
    run: &RunDocument,
    work: &LedgerRunResult,
    context: &CommandContext,
) -> Result<CommandExit> {
    let account = &work.account;
    for component in &account.components {
        commands::write_row(component, ("", ""), run, context)?;
    }
    context.output.text(&component_table(account))?;
    for path in &account.paths {
        for entry in printed.iter().filter_map(|size| account.entry(&path.name, *size)) {
            commands::write_row(entry, ("", ""), run, context)?;
            context.output.text(&entry_table(entry))?;
        }
    }
    context.output.text(MEDIANS_NOTE)?;
    commands::write_trust(run, context)?;
    write(out, run, work)?;
    context.output.text(&format!("run: {}", out.display()))?;
    Ok(CommandExit::Ok)
}

/// Pins this thread and the processes behind the components to processors as `wanted` specifies; returns the placement
/// used. Errors: `InvalidArgument` if there are too few processors; `Io` if pinning fails.
fn choose_placement(setup: &PreparedLedgerRun, wanted: Option<CpuPlacementArg>) -> Result<CpuPlacementArg> {
    let cpus = allowed();
    let (placement, own, others) = match (wanted, cpus.as_slice()) {
        (None | Some(CpuPlacementArg::Apart), [own, other, ..]) => (CpuPlacementArg::Apart, *own, *other),
        (Some(CpuPlacementArg::Together), [own, ..]) => (CpuPlacementArg::Together, *own, *own),
        (None | Some(CpuPlacementArg::Free), _) => return Ok(CpuPlacementArg::Free),
        (Some(_), _) => {
            let why = format!("--placement needs more than the {} processors of this machine", cpus.len());
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
    };
    let failed = |errno: fordway_sys::Errno| {
        let why = "pinning the two sides to their processors; use --placement free";
        Error::new(ErrorKind::Io, why).caused_by(errno)
    };
    for process in setup.components.iter().filter_map(|component| component.component.server_pid()) {
        pin_process(process, &[others]).map_err(failed)?;
    }
    pin_thread(&[own]).map_err(failed)?;
    Ok(placement)
}

/// Returns the processors that this process may use, as the kernel lists them; empty if the kernel does not list them.
fn allowed() -> Vec<usize> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.map(|list| numbers(list.trim())).unwrap_or_default()
}

/// Parses a list in the kernel's format: `0-2,5` means 0, 1, 2 and 5.
fn numbers(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(numbers("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(numbers("3"), [3]);
        assert_eq!(numbers(""), [0usize; 0]);
        assert!(!allowed().is_empty());
    }
}
