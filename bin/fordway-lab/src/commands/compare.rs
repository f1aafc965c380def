//! `compare`: measures the cost of S3 on this machine, on every lane. The command starts the gateways that the lanes
//! need, and works in a temporary directory on the file system under test.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use fordway_command::{CommandContext, CommandExit, file_error};
use fordway_http::HttpVersion;
use fordway_machine::MachineWatch;
use fordway_measure::{
    LanePhaseResult, Machine, RowDescription, RunDocument, SCHEMA, SCHEMA_VERSION, bytes_text, table,
};
use fordway_posix::{Durability, PosixConfig, PosixStore};
use fordway_store::{Bucket, ETagPolicy, Error, ErrorKind, Result};
use fordway_workload::compare::{
    ComparePhase, ComparePlan, CompareProgress, ComparisonResults, run as compare,
};
use fordway_workload::summary::{RunParallelism, forget_waiting, summarise};
use fordway_workload::{
    DelayInjectingTarget, FileTree, InjectedDelayCounter, MeasuredTarget, PosixTarget, StoreTarget,
    SyncLevel, TreeLimits, TreeProgress,
};
use serde::Serialize;
use serde_json::{Map, json};

use crate::args::{CompareArgs, GlobalArgs, LaneArg, TargetArg};
use crate::commands;
use crate::commands::gateway::GatewayProcess;
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
    let plan = ComparePlan {
        rounds: args.rounds,
        warm_up: args.warm_up_rounds,
        seed,
        threads: usize::from(args.threads),
        range_bytes: args.range_size.max(1),
    };
    let started = (jiff::Timestamp::now(), Instant::now());
    // Observe the machine before the measurement starts, because the measurement raises the load average.
    let machine = Machine::observe(&[("source", &args.dir), ("root", place.path())]);
    let open = |target: &TargetArg| service::open(target, global, context);
    let watch = || {
        let watch = MachineWatch::start(&[], args.trust.force)?;
        Ok(if targets.is_empty() { watch } else { watch.beside_unknown_servers() })
    };
    let (lanes, watch) = ComparedLanes::open(args, place.path(), (&targets, &open), watch)?;
    introduce(args, &tree, &place, &plan, context);
    let outcome = measure(&plan, &tree, &lanes, context);
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
    let check = injected.map(|injected_ns| InstrumentCheck::of(&outcome, run.lanes.len(), injected_ns));
    if let Some(check) = check {
        run.parameters.insert("instrument_check".into(), json!(check));
    }
    commands::judge(&mut run, watch);
    let removed = remove(place);
    let exit = report((args, &out), &run, &outcome, check, context)?;
    // A failure of the clean-up does not invalidate the rounds, so the failure is returned only after the report of the
    // rounds.
    if !is_early {
        closed?;
    }
    removed.map(|()| exit)
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
        "{} files, {} of {}, in {}; {} rounds (and {} for warm-up), {} thread{}, seed {}",
        tree.items.len(),
        bytes_text(tree.bytes),
        args.dir.display(),
        place.path().display(),
        plan.rounds,
        plan.warm_up,
        plan.threads,
        if plan.threads == 1 { "" } else { "s" },
        plan.seed,
    ));
}

fn measure(
    plan: &ComparePlan,
    tree: &FileTree,
    lanes: &ComparedLanes,
    context: &CommandContext,
) -> Result<ComparisonResults> {
    context.output.start_steps();
    let mut progress = |at: CompareProgress| {
        context.output.steps(at.done, at.total, format_args!("round {} {}", at.round + 1, at.phase.name()));
    };
    let outcome = compare(plan, tree, lanes.targets(), context.interrupt.flag(), &mut progress);
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
    let capacity = RunParallelism::of(plan.threads, &machine);
    let mut summaries = summarise(&lanes, &outcome.records, capacity);
    let of_services = |row: &&mut LanePhaseResult| args.1.iter().any(|target| target.name == row.lane);
    summaries.iter_mut().filter(of_services).for_each(forget_waiting);
    let mut warnings = tree.warnings.clone();
    warnings.extend(outcome.failures.iter().map(|failure| format!("failed: {failure}")));
    let early_end = outcome.early_end.as_ref();
    warnings.extend(early_end.map(|end| end.warning(plan.rounds)));
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
        "threads": plan.threads,
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
        context.output.row(&check)?;
        context.output.text(&check.to_string())?;
    }
    run_output::write(out, run, &outcome.records)?;
    context.output.text(&format!("run: {}", out.display()))?;
    if !args.page.no_report {
        super::write_page(out, context)?;
    }
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

/// The delay that `--check-instrument` injects.
const DELAY: Duration = Duration::from_millis(1);

/// The opened lanes and services, and the gateways that serve the lanes.
#[derive(Default)]
struct ComparedLanes {
    targets: Vec<Box<dyn MeasuredTarget>>,
    delays: Option<InjectedDelayCounter>,
    /// The gateways that were started, each with the lane that it serves.
    gateways: Vec<(LaneArg, GatewayProcess)>,
}

/// The services that have separate rows, and the function that opens a service.
type ComparedServices<'s> = (&'s [TargetArg], &'s dyn Fn(&TargetArg) -> Result<Box<dyn MeasuredTarget>>);

impl ComparedLanes {
    /// Opens `services`, and the lanes that `args` names; these lanes work in the empty directory `place`. Calls
    /// `watch` after opening the services, so that an unusable service is reported before the machine is judged. The
    /// lanes are opened after that call, because opening them starts their gateways. On errors, removes everything that
    /// was created.
    fn open(
        args: &CompareArgs,
        place: &Path,
        services: ComparedServices,
        watch: impl FnOnce() -> Result<MachineWatch>,
    ) -> Result<(Self, MachineWatch)> {
        let mut lanes = ComparedLanes::default();
        let opened = lanes.add_services(services).and_then(|()| {
            let watch = watch()?;
            lanes.add_own(args, place).map(|()| watch)
        });
        match opened {
            Ok(watch) => Ok((lanes, watch)),
            Err(error) => {
                // Ignore errors of the clean-up, and return the error that made the clean-up necessary.
                let _ = lanes.close();
                Err(error)
            }
        }
    }

    fn add_services(&mut self, (services, open): ComparedServices) -> Result<()> {
        for service in services {
            self.targets.push(open(service)?);
        }
        Ok(())
    }

    fn add_own(&mut self, args: &CompareArgs, place: &Path) -> Result<()> {
        let mut asked: Vec<LaneArg> = Vec::new();
        for lane in &args.lanes {
            if !asked.contains(lane) {
                asked.push(*lane);
            }
        }
        let root = place.join("s3");
        std::fs::create_dir(&root).map_err(|error| file_error("creating", root.display(), error))?;
        for (at, lane) in asked.iter().enumerate() {
            let target = self.target(*lane, &lane_name(*lane), args, place, &root)?;
            // The rows of Fordway's own lanes come before the rows of services, although services were opened first.
            self.targets.insert(at, target);
        }
        if let (true, Some(first)) = (args.check_instrument, asked.first()) {
            let within = self.target(*first, "instrument-check", args, place, &root)?;
            let delayed = DelayInjectingTarget::new(within, DELAY);
            self.delays = Some(delayed.log());
            self.targets.push(Box::new(delayed));
        }
        Ok(())
    }

    fn target(
        &mut self,
        lane: LaneArg,
        place_name: &str,
        args: &CompareArgs,
        place: &Path,
        root: &Path,
    ) -> Result<Box<dyn MeasuredTarget>> {
        let durability: Durability = args.durability.into();
        let bucket = Bucket::new(place_name)?;
        match lane {
            LaneArg::Posix => Ok(Box::new(PosixTarget::new(&place.join(place_name), waits_for(durability))?)),
            LaneArg::Embedded => {
                let config =
                    PosixConfig { etag_policy: args.etag.into(), durability, ..PosixConfig::default() };
                let store = PosixStore::open(root, config)?;
                let lane = described(lane, "S3 semantics as POSIX calls in this process: no server, no copy");
                Ok(Box::new(StoreTarget::new(lane, Arc::new(store), bucket, None)?))
            }
            LaneArg::Node => {
                let gateway = self.gateway(lane, args, root)?;
                let lane = described(
                    lane,
                    "messages over a Unix socket to a gateway process on the same directory, descriptors of large files",
                );
                Ok(Box::new(StoreTarget::new(lane, gateway.client()?, bucket, Some(gateway.pid()))?))
            }
            LaneArg::Http => self.rest_target(lane, "HTTP/1.1", bucket, args, root),
            LaneArg::Https => self.rest_target(lane, "HTTP/1.1 and TLS", bucket, args, root),
            LaneArg::Http2 => self.rest_target(lane, "HTTP/2", bucket, args, root),
            #[cfg(feature = "http3")]
            LaneArg::Http3 => self.rest_target(lane, "HTTP/3", bucket, args, root),
        }
    }

    /// Returns a target that sends S3 requests over `protocol` to the gateway of `lane`.
    fn rest_target(
        &mut self,
        lane: LaneArg,
        protocol: &str,
        bucket: Bucket,
        args: &CompareArgs,
        root: &Path,
    ) -> Result<Box<dyn MeasuredTarget>> {
        let gateway = self.gateway(lane, args, root)?;
        let description =
            format!("S3 REST over {protocol} on loopback to a gateway process on the same directory");
        let lane = described(lane, &description);
        Ok(Box::new(StoreTarget::new(lane, gateway.client()?, bucket, Some(gateway.pid()))?))
    }

    /// Returns the gateway of `lane`, which is started on first use.
    fn gateway(&mut self, lane: LaneArg, args: &CompareArgs, root: &Path) -> Result<&GatewayProcess> {
        let known = self.gateways.iter().position(|(of, _)| *of == lane);
        let at = match known {
            Some(at) => at,
            None => {
                let (etag, durability) = (args.etag.into(), args.durability.into());
                let gateway = match lane {
                    LaneArg::Posix | LaneArg::Embedded => {
                        return Err(Error::new(ErrorKind::Internal, "this lane needs no gateway"));
                    }
                    LaneArg::Node => GatewayProcess::start_node(root, etag, durability)?,
                    LaneArg::Http => GatewayProcess::start(root, etag, durability)?,
                    LaneArg::Https => GatewayProcess::start_tls(root, etag, durability)?,
                    LaneArg::Http2 => {
                        GatewayProcess::start(root, etag, durability)?.asked_in(HttpVersion::Http2)
                    }
                    #[cfg(feature = "http3")]
                    LaneArg::Http3 => GatewayProcess::start_http3(root, etag, durability)?,
                };
                self.gateways.push((lane, gateway));
                self.gateways.len() - 1
            }
        };
        Ok(&self.gateways[at].1)
    }

    fn targets(&self) -> &[Box<dyn MeasuredTarget>] {
        &self.targets
    }

    fn descriptions(&self) -> Vec<RowDescription> {
        self.targets.iter().map(|target| target.lane().clone()).collect()
    }

    /// Returns the mean of the injected delays; `None` if no delay was injected.
    fn mean_slept_ns(&self) -> Option<f64> {
        self.delays.as_ref().and_then(InjectedDelayCounter::mean_ns)
    }

    /// Removes everything that the lanes created (buckets first), and stops the gateways. Continues after an error.
    /// Errors: the first error.
    fn close(self) -> Result<()> {
        let cleaned = self.targets.iter().map(|target| target.clean_up()).fold(Ok(()), Result::and);
        let stopped = self.gateways.into_iter().map(|(_, gateway)| gateway.stop()).fold(Ok(()), Result::and);
        cleaned.and(stopped)
    }
}

fn waits_for(durability: Durability) -> SyncLevel {
    match durability {
        Durability::None => SyncLevel::Nothing,
        Durability::Data => SyncLevel::Content,
        Durability::Full => SyncLevel::ContentAndName,
    }
}

/// Returns the name of a lane on the command line.
fn lane_name(lane: LaneArg) -> String {
    lane.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn described(lane: LaneArg, description: &str) -> RowDescription {
    RowDescription { name: lane_name(lane), description: description.to_owned() }
}

/// Creates a temporary directory in `root`. Without `root`, creates it in the first writable directory on the file
/// system of `dir`: one of the usual temporary directories, the current directory, or one of `dir`'s parents. Errors:
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

/// Removes `place` and its contents. Errors: errors of the removal.
fn remove(place: ScratchDirectory) -> Result<()> {
    let path = place.path().to_owned();
    place.close().map_err(|error| {
        let why = format!("the temporary directory {} could not be removed", path.display());
        Error::new(ErrorKind::from(&error), why).caused_by(error)
    })
}

#[cfg(test)]
mod tests {
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
}
