//! `compare`: measures the cost of S3 on this machine, on every lane. The command starts the gateways that the lanes
//! need, and works in a temporary directory on the file system under test.

mod lanes;
mod network;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::ValueEnum;
use fordway_command::{CommandContext, CommandExit};
use fordway_machine::MachineWatch;
use fordway_measure::{
    LanePhaseResult, Machine, RowDescription, RunDocument, RunRecords, SCHEMA, SCHEMA_VERSION, bytes_text,
    table,
};
use fordway_store::{ETagPolicy, Error, ErrorKind, Result};
use fordway_workload::compare::{
    CacheEviction, CompareClients, ComparePhase, ComparePlan, CompareProgress, ComparisonResults,
    check_eviction, run as compare,
};
use fordway_workload::summary::{RunParallelism, forget_waiting, summarise};
use fordway_workload::{FileTree, TreeLimits, TreeProgress};
use serde::Serialize;
use serde_json::{Map, json};

use self::lanes::{ComparedLanes, LaneSite, lane_name};
use crate::args::{CacheArg, CompareArgs, GlobalArgs, LaneArg, TargetArg};
use crate::commands;
use crate::commands::run_output;
use crate::commands::scratch::ScratchDirectory;
use crate::commands::service;

pub(super) fn run(args: &CompareArgs, global: &GlobalArgs, context: &CommandContext) -> Result<CommandExit> {
    let targets = targets(args, global)?;
    let out = args.output.path("compare");
    run_output::check(&out)?;
    let seed = args.chance.seed()?;
    let limits = TreeLimits { max_files: args.max_files, max_bytes: args.max_bytes, seed };
    let tree = read_tree(&args.dir, &limits, context)?;
    let place = scratch_on(&args.dir, args.root.as_deref())?;
    let plan = plan(args, seed, place.path())?;
    let started = (jiff::Timestamp::now(), Instant::now());
    // Observe the machine before the measurement starts, because the measurement raises the load average.
    let machine = Machine::observe(&[("source", &args.dir), ("root", place.path())]);
    let open = |target: &TargetArg| service::open(target, global, context);
    let watch = || {
        let watch = MachineWatch::start(&[], args.trust.force)?;
        Ok(if targets.is_empty() { watch } else { watch.beside_unknown_servers() })
    };
    let link = args.link.as_ref().map(|link| network::enter(link, &targets)).transpose()?;
    let far = link.as_ref().map(network::far_end).transpose()?;
    let site = LaneSite { args, place: place.path(), far };
    let (mut lanes, watch) = ComparedLanes::open(&site, (&targets, &open), watch)?;
    introduce(args, &tree, &place, &plan, context);
    let outcome = measure(&plan, &tree, &mut lanes, context);
    let injected = lanes.mean_slept_ns();
    let names = lanes.descriptions();
    let closed = lanes.close();
    let is_early = outcome.as_ref().map_or(true, |outcome| outcome.early_end.is_some());
    if is_early {
        context.output.note(&format!("removed the temporary directory {}", place.path().display()));
        if let Err(left) = &closed {
            context.output.note(&format!("could not remove everything: {left}"));
        }
    }
    let outcome = outcome?;
    let mut run = describe((args, &targets), &plan, &tree, &outcome, machine, names, started);
    if let Some(lab) = &link {
        network::describe(lab, &mut run.parameters)?;
    }
    let check = injected.map(|injected_ns| InstrumentCheck::of(&outcome, run.lanes.len(), injected_ns));
    if let Some(check) = check {
        run.parameters.insert("instrument_check".into(), json!(check));
    }
    commands::judge_rounds(&mut run, &outcome.records, watch);
    let removed = remove(place);
    let exit = report((args, &out), &run, &outcome, check, context)?;
    // A failure of the clean-up does not invalidate the rounds, so the failure is returned only after the report of the
    // rounds.
    if !is_early {
        closed?;
    }
    removed.map(|()| exit)
}

/// The maximum number of concurrent calls, which the run file counts in 16 bits.
const CALLS_MAX: u32 = 4096;

fn plan(args: &CompareArgs, seed: u64, place: &Path) -> Result<ComparePlan> {
    if u32::from(args.clients) * u32::from(args.threads) > CALLS_MAX {
        let why = format!(
            "--clients {} and --threads {}: together at most {CALLS_MAX}",
            args.clients, args.threads
        );
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    if args.check_instrument && args.clients > 1 {
        let why = "--check-instrument injects a delay into this process; omit --clients";
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let is_cold = args.cache == CacheArg::Cold;
    if is_cold {
        check_eviction(place)?;
    }
    // The emulator of a link uses CPU time of this process, which must not count as the client's.
    let clients = match args.clients {
        1 if args.link.is_none() => CompareClients::ThisProcess,
        count => CompareClients::Children(usize::from(count)),
    };
    Ok(ComparePlan {
        rounds: args.rounds,
        warm_up: args.warm_up_rounds,
        seed,
        clients,
        threads: usize::from(args.threads),
        range_bytes: args.range_size.max(1),
        cold: is_cold.then(|| place.to_owned()),
    })
}

fn read_tree(dir: &Path, limits: &TreeLimits, context: &CommandContext) -> Result<FileTree> {
    context.output.start_counting();
    let mut progress = |at: TreeProgress| match at {
        TreeProgress::Found(files) => context.output.counted(files, "files found"),
        TreeProgress::Read(files) => context.output.counted(files, "files read"),
    };
    let tree = FileTree::read(dir, limits, context.interrupt.flag(), &mut progress);
    context.output.end_progress();
    tree
}

/// The name of the row for `--endpoint`.
const ENDPOINT: &str = "endpoint";

/// Returns the services that `--target` and `--endpoint` specify. Errors: `InvalidArgument` for an invalid endpoint,
/// and if two rows would have the same name.
fn targets(args: &CompareArgs, global: &GlobalArgs) -> Result<Vec<TargetArg>> {
    let mut targets = args.targets.clone();
    if let Some(endpoint) = &global.endpoint {
        let refused = |why: String| Error::new(ErrorKind::InvalidArgument, format!("--endpoint: {why}"));
        targets.push(TargetArg::at(ENDPOINT, endpoint).map_err(refused)?);
    }
    check_names(&targets)?;
    Ok(targets)
}

fn check_names(targets: &[TargetArg]) -> Result<()> {
    for (at, target) in targets.iter().enumerate() {
        let name = &target.name;
        let is_lane = LaneArg::value_variants().iter().any(|lane| lane_name(*lane) == *name);
        let why = match (is_lane, targets[..at].iter().any(|other| other.name == *name)) {
            (true, _) => "is the name of a Fordway lane",
            (_, true) => "is used twice",
            (false, false) => continue,
        };
        let detail = format!("--target {target}: the name {name} {why}; choose another");
        return Err(Error::new(ErrorKind::InvalidArgument, detail));
    }
    Ok(())
}

fn introduce(
    args: &CompareArgs,
    tree: &FileTree,
    place: &ScratchDirectory,
    plan: &ComparePlan,
    context: &CommandContext,
) {
    context.output.note(&format!(
        "{} files, {} of {}, in {}; {} rounds (and {} for warm-up), {}{} thread{}, seed {}",
        tree.items.len(),
        bytes_text(tree.bytes),
        args.dir.display(),
        place.path().display(),
        plan.rounds,
        plan.warm_up,
        if args.clients == 1 { String::new() } else { format!("{} clients with each ", args.clients) },
        plan.threads,
        if plan.threads == 1 { "" } else { "s" },
        plan.seed,
    ));
}

fn measure(
    plan: &ComparePlan,
    tree: &FileTree,
    lanes: &mut ComparedLanes,
    context: &CommandContext,
) -> Result<ComparisonResults> {
    context.output.start_steps();
    let mut progress = |at: CompareProgress| {
        context.output.steps(at.done, at.total, format_args!("round {} {}", at.round + 1, at.phase.name()));
    };
    let (targets, gateways) = lanes.parts();
    let mut renew = || gateways.start_again();
    let outcome = compare(plan, tree, targets, context.interrupt.flag(), &mut renew, &mut progress);
    context.output.end_progress();
    outcome
}

fn describe(
    args: (&CompareArgs, &[TargetArg]),
    plan: &ComparePlan,
    tree: &FileTree,
    outcome: &ComparisonResults,
    machine: Machine,
    lanes: Vec<RowDescription>,
    started: (jiff::Timestamp, Instant),
) -> RunDocument {
    let capacity = RunParallelism::of(plan.concurrency(), &machine);
    let mut summaries = summarise(&lanes, &outcome.records, capacity);
    let of_services = |row: &&mut LanePhaseResult| args.1.iter().any(|target| target.name == row.lane);
    summaries.iter_mut().filter(of_services).for_each(forget_waiting);
    let mut warnings = tree.warnings.clone();
    warnings.extend(outcome.failures.iter().map(|failure| format!("failed: {failure}")));
    warnings.extend(omitted_blocks(&outcome.records));
    let early_end = outcome.early_end.as_ref();
    warnings.extend(early_end.map(|end| end.warning(plan.rounds)));
    warnings.extend(outcome.eviction.and_then(still_warm));
    if args.0.cache == CacheArg::Cold {
        warnings.extend(args.1.iter().map(|target| {
            format!("--cache cold does not apply to {}, whose caches this command cannot reach", target.name)
        }));
    }
    warnings.extend(few_files(plan, tree));
    warnings.extend(few_rounds(early_end.map_or(plan.rounds, |end| end.rounds)));
    RunDocument {
        schema: SCHEMA.into(),
        schema_version: SCHEMA_VERSION,
        fordway_version: env!("CARGO_PKG_VERSION").into(),
        kind: "compare".into(),
        started: started.0.to_string(),
        elapsed_ns: started.1.elapsed().as_nanos() as u64,
        command: std::env::args().collect(),
        machine,
        parameters: parameters(args, plan, tree),
        lanes,
        phases: ComparePhase::ALL.iter().map(|phase| phase.name().to_owned()).collect(),
        summaries,
        scores: Vec::new(),
        warnings,
        conditions: None,
    }
}

fn parameters(
    (args, targets): (&CompareArgs, &[TargetArg]),
    plan: &ComparePlan,
    tree: &FileTree,
) -> Map<String, serde_json::Value> {
    let urls = targets.iter().map(|target| (target.name.clone(), target.url.clone().into()));
    let durability: fordway_posix::Durability = args.durability.into();
    let parameters = json!({
        "source": args.dir.display().to_string(),
        "files": tree.items.len(),
        "bytes": tree.bytes,
        "rounds": plan.rounds,
        "warm_up_rounds": plan.warm_up,
        "link": args.link.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string),
        "clients": args.clients,
        "threads": plan.threads,
        "cache": args.cache.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned()),
        "seed": plan.seed,
        "range_bytes_max": plan.range_bytes,
        "etag_policy": ETagPolicy::from(args.etag).name(),
        "durability": durability.name(),
        "targets": urls.collect::<Map<_, _>>(),
    });
    match parameters {
        serde_json::Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// The share of content that may remain in the page cache without a warning.
const REMAINING_MAX: f64 = 0.01;

/// Returns a warning if content that should be read from the disk remained in the page cache.
fn still_warm(eviction: CacheEviction) -> Option<String> {
    let share = eviction.remaining_share();
    (share > REMAINING_MAX).then(|| {
        format!(
            "{:.0} % of the content remained in the page cache, so its reads were not cold; a file that a process has \
             mapped, or that is being written, stays in memory",
            100.0 * share
        )
    })
}

/// Returns a warning if the tree has fewer files than the number of concurrent calls that the plan allows.
fn few_files(plan: &ComparePlan, tree: &FileTree) -> Option<String> {
    let (calls, files) = (plan.concurrency(), tree.items.len());
    (files < calls).then(|| {
        format!(
            "{calls} threads for {files} files: at most {files} calls are made at once; measure more files"
        )
    })
}

/// Returns how many blocks the ratios omit, if there are any, because operations failed in them.
fn omitted_blocks(records: &RunRecords) -> Option<String> {
    let (failed, all) = (records.blocks_with_failures().len(), records.blocks.len());
    (failed > 0).then(|| format!("operations failed in {failed} of {all} blocks, which the ratios omit"))
}

/// Returns advice if there are fewer than 5 rounds, which are too few for intervals.
fn few_rounds(rounds: u16) -> Option<String> {
    (rounds < 5).then(|| "fewer than 5 rounds: ratios have no intervals; increase --rounds".into())
}

fn report(
    (args, out): (&CompareArgs, &Path),
    run: &RunDocument,
    outcome: &ComparisonResults,
    check: Option<InstrumentCheck>,
    context: &CommandContext,
) -> Result<CommandExit> {
    commands::write_summaries(run, context)?;
    context.output.text(&table(run))?;
    commands::write_trust(run, context)?;
    if let Some(check) = check {
        commands::write_row(&check, ("", ""), run, context)?;
        context.output.text(&check.to_string())?;
    }
    run_output::write(out, run, &outcome.records)?;
    context.output.text(&format!("run: {}", out.display()))?;
    super::write_or_remove_page(out, args.page.no_report, context)?;
    if let Some(end) = &outcome.early_end {
        return Ok(CommandExit::of(&end.error));
    }
    let failed = run.summaries.iter().any(|summary| summary.errors > 0) || !outcome.failures.is_empty();
    Ok(if failed { CommandExit::Corrupt } else { CommandExit::Ok })
}

/// The delays that `--check-instrument` compares, in nanoseconds.
#[derive(Clone, Copy, Serialize)]
struct InstrumentCheck {
    /// The mean of the injected delays, as logged.
    injected_ns: f64,
    /// The mean delay that the records show.
    measured_ns: f64,
}

impl InstrumentCheck {
    /// Computes, from the records, the difference between the mean operation times of the last lane and of the first
    /// lane. `lanes` is the number of lanes.
    fn of(outcome: &ComparisonResults, lanes: usize, injected_ns: f64) -> Self {
        let mean_ns = |lane: usize| {
            let operations = outcome.records.operations.iter();
            let of_lane = operations.filter(|op| usize::from(op.lane) == lane && op.ok);
            let (count, sum) =
                of_lane.fold((0u64, 0u64), |(count, sum), op| (count + 1, sum + op.duration_ns));
            sum as f64 / count as f64
        };
        InstrumentCheck { injected_ns, measured_ns: mean_ns(lanes - 1) - mean_ns(0) }
    }
}

impl std::fmt::Display for InstrumentCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let InstrumentCheck { injected_ns, measured_ns } = self;
        write!(
            f,
            "instrument: injected {:.1} µs per call, measured {:.1} µs ({:+.1} %)",
            injected_ns / 1e3,
            measured_ns / 1e3,
            100.0 * (measured_ns / injected_ns - 1.0)
        )
    }
}

/// Creates a temporary directory in `root`. Without `root`, creates it in the first writable directory on the file
/// system of `dir`: one of the usual temporary directories, the current directory, or one of `dir`'s ancestors. Errors:
/// `InvalidArgument` if there is no such directory, or `root` is not writable.
fn scratch_on(dir: &Path, root: Option<&Path>) -> Result<ScratchDirectory> {
    let make_in = |path: &Path| ScratchDirectory::new("compare", path);
    if let Some(root) = root {
        return make_in(root).map_err(|error| {
            Error::new(ErrorKind::InvalidArgument, format!("--root {} is not writable", root.display()))
                .caused_by(error)
        });
    }
    let device = std::fs::metadata(dir).map(|meta| meta.dev()).ok();
    let is_on_it =
        |path: &PathBuf| device.is_some() && std::fs::metadata(path).ok().map(|m| m.dev()) == device;
    let full = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let usual = [std::env::temp_dir(), "/var/tmp".into(), std::env::current_dir().unwrap_or_default()];
    let parents = full.ancestors().skip(1).map(Path::to_owned);
    let mut candidates = usual.into_iter().chain(parents).filter(is_on_it);
    candidates.find_map(|path| make_in(&path).ok()).ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "no writable directory found on the file system of {}; give one with --root",
                dir.display()
            ),
        )
    })
}

/// Removes `place` and its contents. Errors: the errors of the removal.
fn remove(place: ScratchDirectory) -> Result<()> {
    let path = place.path().to_owned();
    place.close().map_err(|error| {
        let why = format!("the temporary directory {} could not be removed", path.display());
        Error::new(ErrorKind::from(&error), why).caused_by(error)
    })
}

#[cfg(test)]
mod tests {
    use fordway_measure::{BlockRecord, OperationRecord};

    use super::*;

    #[test]
    fn it_is_on_the_same_file_system_and_goes_away() {
        let dir = tempfile::tempdir().unwrap();
        let place = scratch_on(dir.path(), None).unwrap();
        let path = place.path().to_owned();
        let device = |path: &Path| std::fs::metadata(path).unwrap().dev();
        assert_eq!(device(&path), device(dir.path()));
        remove(place).unwrap();
        assert!(!path.exists());
        let wrong = scratch_on(dir.path(), Some(Path::new("/does/not/exist"))).err().expect("no such root");
        assert!(wrong.to_string().contains("--root /does/not/exist"), "{wrong}");
    }

    #[test]
    fn omitted_blocks_are_counted() {
        let mut records = RunRecords::default();
        records.blocks.resize(20, BlockRecord::default());
        let operation = |block, ok| OperationRecord { block, ok, ..OperationRecord::default() };
        records.operations = vec![operation(0, true), operation(1, true)];
        assert_eq!(omitted_blocks(&records), None);
        records.operations.extend([operation(1, false), operation(1, false), operation(7, false)]);
        assert!(omitted_blocks(&records).unwrap().starts_with("operations failed in 2 of 20 blocks"));
    }
}
