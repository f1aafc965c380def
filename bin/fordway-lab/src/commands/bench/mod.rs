//! `bench`, with one file per family of benchmarks. This file contains the benchmarks that run on ranks. Each rank is a
//! thread. The endpoints and directories on the command line are called sites. The sites take turns.

mod pingpong;
mod rest;
pub(super) mod transport;
mod vector;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use fordway_client::s3::S3Config;
use fordway_command::{CommandContext, CommandExit, file_error};
use fordway_machine::MachineWatch;
use fordway_measure::{
    LaneIo500Score, Machine, RowDescription, RunClock, RunDocument, RunRecords, result_file,
};
use fordway_posix::{Durability, PosixConfig, PosixStore};
use fordway_store::{Bucket, ETagPolicy, Error, ErrorKind, Result, Store};
use fordway_workload::bench::{
    MeasuredLane, MeasuredRounds, MeasurementArgs, RunMetadata, WorkloadPlan, describe,
};
use fordway_workload::io500::published::PublishedTable;
use fordway_workload::report::{beside_published, table};
use fordway_workload::{RunControl, WorkloadLocation, WorkloadRank, io500, team};

use crate::args::{BenchArgs, BenchEndpointArgs, BenchmarkCommand, GlobalArgs};
use crate::commands;
use crate::commands::gateway::GatewayProcess;
use crate::commands::run_output;

pub(super) fn run(args: &BenchArgs, global: &GlobalArgs, context: &CommandContext) -> Result<CommandExit> {
    let on_ranks = |workload: WorkloadPlan, common: &BenchEndpointArgs, published: &[u8]| {
        check_named(common, global)?;
        run_ranks(workload, common, published, context)
    };
    match &args.benchmark {
        BenchmarkCommand::Rest(args) => rest::run(args, global, context),
        BenchmarkCommand::Transport(args) => transport::run(args, context),
        BenchmarkCommand::Pingpong(args) => pingpong::run(args, context),
        BenchmarkCommand::Vector(args) => vector::run(args, context),
        BenchmarkCommand::Ior(args) => on_ranks(WorkloadPlan::Ior(args.plan.clone()), &args.common, &[]),
        BenchmarkCommand::Mdtest(args) => {
            on_ranks(WorkloadPlan::Mdtest(args.plan.clone()), &args.common, &[])
        }
        BenchmarkCommand::Mdworkbench(args) => {
            on_ranks(WorkloadPlan::Mdworkbench(args.plan.clone()), &args.common, &[])
        }
        BenchmarkCommand::Io500(args) => {
            let plan = args.ranks.plan.clone();
            on_ranks(WorkloadPlan::Io500(plan), &args.ranks.common, &args.published)
        }
    }
}

/// Runs `workload` and reports its results; for IO500, also prints the published tables that `published` selects, for
/// comparison.
fn run_ranks(
    workload: WorkloadPlan,
    args: &BenchEndpointArgs,
    published: &[u8],
    context: &CommandContext,
) -> Result<CommandExit> {
    workload.check(usize::from(args.threads))?;
    let path = args.setting.path(&workload);
    run_output::check(&path)?;
    let places = BenchLocations::open(args, context)?;
    let started = (jiff::Timestamp::now(), Instant::now());
    let roles: Vec<(&str, &Path)> = places.dirs.iter().map(|dir| ("root", dir.as_path())).collect();
    // Observe the machine before the measurement starts, because the measurement raises the load average.
    let machine = Machine::observe(&roles);
    let watch = MachineWatch::start(&[], args.trust.force)?;
    let watch = match places.sites.iter().any(WorkloadLocation::has_unknown_server) {
        // A server that this command did not start cannot be distinguished from other processes on this machine.
        true => watch.beside_unknown_servers(),
        false => watch,
    };
    context.output.start_counting();
    let measured = measure_ranks(&workload, args, &places.sites, context);
    context.output.end_progress();
    let closed = places.close();
    let is_early = measured.as_ref().map_or(true, |measured| measured.early_end.is_some());
    if let (true, Err(left)) = (is_early, &closed) {
        context.output.note(&format!("could not remove everything: {left}"));
    }
    let measured = measured?;
    let lanes = &measured.lanes;
    let header = RunMetadata {
        cpus_at_once: machine.cpus_at_once(),
        machine,
        started: started.0.to_string(),
        elapsed: started.1.elapsed(),
        ranks: usize::from(args.threads),
        parameters: args.setting.parameters(),
    };
    let (mut run, records) = describe(&workload, header, &measured);
    commands::judge_rounds(&mut run, &records, watch);
    report(&workload, (&run, &records), lanes, &path, context)?;
    for table in published.iter().filter_map(|number| PublishedTable::find(*number)) {
        context.output.text(&beside_published(lanes, table))?;
    }
    if let Some(end) = &measured.early_end {
        return Ok(CommandExit::of(&end.error));
    }
    // A failure of a gateway does not invalidate the rounds, so the failure is returned only after the report of the
    // rounds.
    closed?;
    Ok(measured.first_failure().map_or(CommandExit::Ok, CommandExit::of_kind))
}

fn measure_ranks(
    workload: &WorkloadPlan,
    args: &BenchEndpointArgs,
    sites: &[WorkloadLocation],
    context: &CommandContext,
) -> Result<MeasuredRounds> {
    let clock = RunClock::start();
    let show = |phase: &str, done: u64| context.output.counted(done, phase);
    let watch = RunControl::new(context.interrupt.flag(), &show);
    let results = team::threads(usize::from(args.threads), |team| {
        args.setting.run(workload, &WorkloadRank::new(team, &watch, clock), sites)
    });
    first_rank(results)
}

/// Returns the results of rank 0, or the error of a rank. If one rank fails, the ranks that wait for this rank fail as
/// well. Their errors are returned only if there is no other error.
fn first_rank(results: Vec<Result<MeasuredRounds>>) -> Result<MeasuredRounds> {
    let (answers, mut errors): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    errors.sort_by_key(|error| error.as_ref().is_err_and(|error| error.kind() == ErrorKind::Internal));
    match errors.into_iter().next() {
        Some(error) => error,
        None => answers.into_iter().next().unwrap_or_else(|| Err(ErrorKind::Internal.into())),
    }
}

fn report(
    workload: &WorkloadPlan,
    (run, records): (&RunDocument, &RunRecords),
    lanes: &[MeasuredLane],
    path: &Path,
    context: &CommandContext,
) -> Result<()> {
    commands::write_summaries(run, context)?;
    context.output.text(&table(run, lanes))?;
    commands::write_trust(run, context)?;
    run_output::write(path, run, records)?;
    if let WorkloadPlan::Io500(plan) = workload {
        for (score, text) in io500::score(plan, lanes, run.conditions.as_ref()) {
            write_score(&score, &text, (run, path), context)?;
        }
    }
    context.output.text(&format!("run: {}", path.display()))
}

/// Prints one lane's scores and writes them to a file in IO500's format.
fn write_score(
    score: &LaneIo500Score,
    text: &str,
    (run, path): (&RunDocument, &Path),
    context: &CommandContext,
) -> Result<()> {
    let file = path.join(result_file(&score.lane));
    std::fs::write(&file, text).map_err(|error| file_error("writing", file.display(), error))?;
    let last = text.lines().last().unwrap_or_default();
    context.output.text(&format!("{}: {last}\n  {}", score.lane, file.display()))?;
    commands::write_row(score, (&score.lane, ""), run, context)
}

/// Checks that the user specified a target or an endpoint. Otherwise, a benchmark would create thousands of objects at
/// the default endpoint, which is AWS. Errors: `InvalidArgument` if the user specified neither.
fn check_named(args: &BenchEndpointArgs, global: &GlobalArgs) -> Result<()> {
    let variable = |name: &str| super::variable(global, name);
    if !args.setting.places.is_empty()
        || S3Config::find_endpoint(global.endpoint.as_deref(), &variable)?.is_some()
    {
        return Ok(());
    }
    let why = "specify a target: a DIRECTORY, file:///DIRECTORY or http(s)://HOST[:PORT], or set an endpoint";
    Err(Error::new(ErrorKind::InvalidArgument, why))
}

/// All sites, and the gateways that this command started for some of the sites.
#[derive(Default)]
struct BenchLocations {
    sites: Vec<WorkloadLocation>,
    /// The directories that the description of the machine includes.
    dirs: Vec<PathBuf>,
    gateways: Vec<GatewayProcess>,
}

impl BenchLocations {
    /// Opens the sites that `args` specifies. Errors: `InvalidArgument`, and errors of the lanes.
    fn open(args: &BenchEndpointArgs, context: &CommandContext) -> Result<Self> {
        let mut places = BenchLocations::default();
        let MeasurementArgs { places: named, name, .. } = &args.setting;
        for place in named {
            match place.contains("://") {
                true => places.add_store(context.lane_at(place)?.store, place, name, None),
                false => places.add_dir(Path::new(place), args)?,
            }
        }
        if named.is_empty() {
            places.add_store(
                context.store()?,
                "the endpoint of the command line or the environment",
                &args.setting.name,
                None,
            );
        }
        WorkloadLocation::number_lanes(&mut places.sites);
        Ok(places)
    }

    fn add_dir(&mut self, dir: &Path, args: &BenchEndpointArgs) -> Result<()> {
        let refused = |what: &str| {
            let why = format!("{} {what}; give an existing directory", dir.display());
            Error::new(ErrorKind::InvalidArgument, why)
        };
        let found = dir.canonicalize().map_err(|error| refused("cannot be found").caused_by(error))?;
        let dir = found.is_dir().then_some(found).ok_or_else(|| refused("is not a directory"))?;
        self.dirs.push(dir.clone());
        self.sites.push(WorkloadLocation::files(&dir, args.setting.name.clone()));
        if args.all_lanes {
            let name = |lane: &str| Bucket::new(format!("{}-{lane}", args.setting.name));
            let store = PosixStore::open(&dir, PosixConfig::default())?;
            self.add_store(Arc::new(store), "POSIX calls in this process", &name("embedded")?, None);
            let gateway = GatewayProcess::start_node(&dir, ETagPolicy::Fast, Durability::None)?;
            let what = "a gateway process on the same directory, messages over a Unix socket";
            self.add_store(gateway.client()?, what, &name("node")?, Some(gateway.pid()));
            self.gateways.push(gateway);
            let gateway = GatewayProcess::start(&dir, ETagPolicy::Fast, Durability::None)?;
            let what = "a gateway process on the same directory, HTTP/1.1 on loopback";
            self.add_store(gateway.client()?, what, &name("http")?, Some(gateway.pid()));
            self.gateways.push(gateway);
        }
        Ok(())
    }

    fn add_store(&mut self, store: Arc<dyn Store>, behind: &str, name: &Bucket, server_pid: Option<u32>) {
        let lane = RowDescription { name: store.lane().to_owned(), description: format!("S3 on {behind}") };
        self.sites.push(WorkloadLocation::objects(lane, store, name.clone(), server_pid));
    }

    /// Stops the gateways. Continues after an error. Errors: the first error.
    fn close(self) -> Result<()> {
        self.gateways.into_iter().map(GatewayProcess::stop).fold(Ok(()), Result::and)
    }
}
