//! `speedup`: runs one MPI program with several rank counts, over shared memory, TCP, namespaces, overlays and
//! containers. This file decides where the ranks run, and over which medium the ranks communicate. It also recomputes
//! published tables.

mod launch;
mod remote;

use std::path::PathBuf;
use std::time::Instant;

use fordway_command::{CommandContext, CommandExit, file_error};
use fordway_machine::MachineWatch;
use fordway_measure::{Machine, RowDescription, RunDocument, ns_text, parallel_table, unknown_name};
use fordway_netlab::setup::{KernelNetworks, MachineContainer, NetworkPair, NetworkSetup, WireSettings};
use fordway_store::{Error, ErrorKind, Result};
use fordway_workload::speedup::{
    JobTimeKind, RICHTER, SetupSpeedupFit, SpeedupPlan, SpeedupResults, check, describe, fits, measure,
};
use fordway_workload::summary::RunFileHeader;
use serde_json::{Map, Value, json};

use self::launch::{MpiJobRunner, MpiLauncher};
use crate::args::{SpeedupArgs, SpeedupTimeArg};
use crate::commands;
use crate::commands::run_output;

pub(super) fn run(args: &SpeedupArgs, context: &CommandContext) -> Result<CommandExit> {
    if let Some(table) = &args.check {
        return check_table(table, context);
    }
    if let Some(place) = &args.enter {
        return remote::enter(place, &args.command);
    }
    if let Some(address) = args.accept {
        return remote::accept(address);
    }
    let asked = asked(&args.setup)?;
    run_output::check(&args.output.path("speedup"))?;
    let started = (jiff::Timestamp::now(), Instant::now());
    let machine = Machine::observe(&[]);
    let watch = MachineWatch::start(&[], args.trust.force)?;
    let launcher = MpiLauncher::find(args)?;
    let mut warnings = Vec::new();
    let setups = bring_up(&asked, context, &mut warnings)?;
    let plan = plan(args, &setups)?;
    let lanes: Vec<RowDescription> = setups.iter().map(RunningJobSetup::lane).collect();
    let mut jobs = MpiJobRunner::new(args, &launcher, setups, context)?;
    let outcome = drive(&plan, &lanes, &mut jobs, context);
    drop(jobs);
    let outcome = outcome?;
    let fitted = fits(&plan, &lanes, &outcome);
    let header = RunFileHeader {
        machine,
        started: started.0.to_string(),
        elapsed: started.1.elapsed(),
        parameters: parameters(args, &plan, &launcher),
        warnings,
    };
    let mut run = describe(&plan, lanes, &outcome, header);
    commands::judge(&mut run, watch);
    report(args, &run, (&outcome, &fitted), context)?;
    if outcome.interrupted.is_some() {
        return Ok(CommandExit::Interrupted);
    }
    Ok(outcome.failures.first().map_or(CommandExit::Ok, |(_, _, error)| CommandExit::of(error)))
}

fn plan(args: &SpeedupArgs, setups: &[RunningJobSetup]) -> Result<SpeedupPlan> {
    let mut ranks = args.ranks.clone();
    // Always measure one rank, because speed-ups are relative to one rank.
    ranks.push(1);
    ranks.sort_unstable();
    ranks.dedup();
    if ranks.len() > 64 {
        return Err(Error::new(ErrorKind::InvalidArgument, "a run has at most 64 numbers of ranks"));
    }
    let time = match args.time {
        SpeedupTimeArg::Wall => JobTimeKind::Wall,
        SpeedupTimeArg::Work => JobTimeKind::Work,
    };
    let runs_alone = setups.iter().enumerate().map(|(at, setup)| at == 0 || setup.carrier.changes_one_rank());
    Ok(SpeedupPlan { ranks, runs_alone: runs_alone.collect(), repeat: args.rounds, seed: args.seed, time })
}

fn drive(
    plan: &SpeedupPlan,
    lanes: &[RowDescription],
    jobs: &mut MpiJobRunner<'_>,
    context: &CommandContext,
) -> Result<SpeedupResults> {
    context.output.start_steps();
    let mut progress = |done, total, lane: usize, ranks| {
        context.output.steps(done, total, format_args!("{} x {ranks}", lanes[lane].name));
    };
    let outcome = measure(plan, jobs, context.interrupt.flag(), &mut progress);
    context.output.end_progress();
    outcome
}

fn parameters(args: &SpeedupArgs, plan: &SpeedupPlan, launcher: &MpiLauncher) -> Map<String, Value> {
    let words: Vec<_> = args.command.iter().map(|word| word.to_string_lossy()).collect();
    let time = if plan.time == JobTimeKind::Wall { "wall" } else { "work" };
    let all = json!({
        "job": words,
        "ranks": plan.ranks,
        "repeat": plan.repeat,
        "seed": plan.seed,
        "deadline_ns": args.deadline.as_nanos() as u64,
        "time": time,
        "launcher": launcher.version,
        "pmpi": launcher.pmpi.as_ref().map(|path| path.display().to_string()),
    });
    all.as_object().cloned().unwrap_or_default()
}

/// Writes the run file, with the fits in `speedup.json`. `run.json` is written last.
fn write(
    args: &SpeedupArgs,
    run: &RunDocument,
    outcome: &SpeedupResults,
    fitted: &[SetupSpeedupFit],
) -> Result<()> {
    let out = args.output.path("speedup");
    let text = serde_json::to_string_pretty(&json!({ "fits": fitted }))
        .map_err(|error| Error::new(ErrorKind::Internal, "writing the fits as JSON").caused_by(error))?
        + "\n";
    let further = Some(("speedup.json", text.as_bytes()));
    run_output::write_with(&out, run, &outcome.records, further)
}

fn report(
    args: &SpeedupArgs,
    run: &RunDocument,
    (outcome, fitted): (&SpeedupResults, &[SetupSpeedupFit]),
    context: &CommandContext,
) -> Result<()> {
    commands::write_summaries(run, context)?;
    context.output.text(&parallel_table(run))?;
    for fit in fitted {
        commands::write_row(fit, (&fit.lane, ""), run, context)?;
        context.output.text(&sentence(fit))?;
    }
    commands::write_trust(run, context)?;
    write(args, run, outcome, fitted)?;
    let out = args.output.path("speedup");
    context.output.text(&format!("run: {}", out.display()))?;
    commands::write_or_remove_page(&out, args.page.no_report, context)
}

/// Describes a fit, and states whether the fit is reliable.
fn sentence(fitted: &SetupSpeedupFit) -> String {
    let lane = &fitted.lane;
    let Some(fit) = &fitted.fit else { return format!("{lane}: no model: fewer than 2 numbers of ranks") };
    let time = |ns: f64| ns_text(ns.round() as u64);
    let law = format!(
        "{lane}: T(n) = {} + {} / n + {} (n - 1), serial share {:.1} %",
        time(fit.serial_ns),
        time(fit.parallel_ns),
        time(fit.further_rank_ns),
        100.0 * fit.serial_share
    );
    match fit.is_tested {
        true => format!("{law}; off by at most {:.1} %", 100.0 * fit.error_max),
        false => format!(
            "{law}; unreliable, because 3 costs are fitted to {} numbers of ranks; measure more --ranks",
            fit.points
        ),
    }
}

/// The suffix of a set-up's name that makes waiting ranks yield the processor.
const YIELD: &str = "+yield";

/// The medium over which the ranks of a job exchange messages.
#[derive(Debug)]
enum JobMessageMedium {
    /// The medium that MPI chooses.
    Default,
    SharedMemory,
    Loopback,
    /// Two networks with half of the ranks in each.
    Networks(NetworkPair),
    /// Shared memory in a container with all ranks.
    Container(MachineContainer),
    /// Two networks with a container in each. Each container has half of the ranks.
    Containers(MachineContainer, NetworkPair),
    /// Two kernels, each with half of the ranks.
    Kernels(KernelNetworks),
}

impl JobMessageMedium {
    /// Returns whether the launcher starts half of the ranks at another end.
    fn has_two_ends(&self) -> bool {
        matches!(
            self,
            JobMessageMedium::Networks(_) | JobMessageMedium::Containers(..) | JobMessageMedium::Kernels(_)
        )
    }

    /// Returns whether the set-up affects the time of a single rank, which sends no messages.
    fn changes_one_rank(&self) -> bool {
        matches!(self, JobMessageMedium::Container(_) | JobMessageMedium::Kernels(_))
    }
}

/// A set-up that has been brought up.
#[derive(Debug)]
struct RunningJobSetup {
    name: String,
    description: String,
    carrier: JobMessageMedium,
    is_yielding: bool,
}

impl RunningJobSetup {
    fn lane(&self) -> RowDescription {
        let how = if self.is_yielding { "; ranks yield while they wait" } else { "" };
        RowDescription { name: self.name.clone(), description: format!("{}{how}", self.description) }
    }
}

/// A set-up that has not been brought up yet.
struct PlannedJobSetup<'n> {
    name: &'n str,
    carrier: PlannedMessageMedium,
    is_yielding: bool,
}

enum PlannedMessageMedium {
    Default,
    SharedMemory,
    Loopback,
    Networks(NetworkSetup),
    Container,
    Containers(NetworkSetup),
    Kernels,
}

/// The names of set-ups that exist only in `speedup`. The command also accepts the set-ups that create networks.
const OWN: [&str; 4] = ["default", "shm", "two-containers", "two-kernels"];

/// Resolves `names`, so that a mistyped name is reported before the first set-up is brought up.
///
/// Errors: `InvalidArgument` for unknown or repeated names, and for more than 64 names.
fn asked(names: &[String]) -> Result<Vec<PlannedJobSetup<'_>>> {
    if names.len() > 64 {
        return Err(Error::new(ErrorKind::InvalidArgument, "a run has at most 64 set-ups; omit some"));
    }
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            let detail = format!("there are two set-ups called {name:?}; give each only once");
            return Err(Error::new(ErrorKind::InvalidArgument, detail));
        }
    }
    names.iter().map(|name| asked_setup(name)).collect()
}

fn asked_setup(name: &str) -> Result<PlannedJobSetup<'_>> {
    let (base, is_yielding) = match name.strip_suffix(YIELD) {
        Some(base) => (base, true),
        None => (name, false),
    };
    let carrier = match base {
        "default" => PlannedMessageMedium::Default,
        "shm" => PlannedMessageMedium::SharedMemory,
        "loopback" => PlannedMessageMedium::Loopback,
        "container" => PlannedMessageMedium::Container,
        "two-containers" => PlannedMessageMedium::Containers(NetworkSetup::load("bare")?),
        "two-kernels" => PlannedMessageMedium::Kernels,
        other => PlannedMessageMedium::Networks(load(other)?),
    };
    Ok(PlannedJobSetup { name, carrier, is_yielding })
}

/// Loads a set-up of networks. Errors: the errors of [`NetworkSetup::load`]. For an unknown name, the message also
/// suggests the names that only `speedup` accepts.
fn load(name: &str) -> Result<NetworkSetup> {
    let mut known = OWN.to_vec();
    known.extend(NetworkSetup::names());
    if name.contains('/') || name.ends_with(".toml") || known.contains(&name) {
        return NetworkSetup::load(name);
    }
    let detail = format!("{}; or give a file", unknown_name("set-up", name, &known));
    Err(Error::new(ErrorKind::InvalidArgument, detail))
}

/// Brings up the set-ups. A set-up that cannot be brought up is omitted with a warning. The first set-up is the
/// reference, and is never omitted.
///
/// Errors: `Interrupted`; `InvalidArgument` for a set-up that cannot contain the ranks of a job; any error in bringing
/// up the reference.
fn bring_up(
    asked: &[PlannedJobSetup],
    context: &CommandContext,
    warnings: &mut Vec<String>,
) -> Result<Vec<RunningJobSetup>> {
    let mut setups: Vec<RunningJobSetup> = Vec::new();
    for (at, setup) in asked.iter().enumerate() {
        context.interrupt.check()?;
        match start(setup) {
            Ok(running) => setups.push(running),
            Err(error) if at == 0 || error.kind() == ErrorKind::InvalidArgument => return Err(error),
            Err(error) => warnings.push(format!("skipped {}: {error}", setup.name)),
        }
    }
    Ok(setups)
}

fn start(asked: &PlannedJobSetup) -> Result<RunningJobSetup> {
    let (carrier, description) = match &asked.carrier {
        PlannedMessageMedium::Default => (JobMessageMedium::Default, "Chosen by MPI".to_owned()),
        PlannedMessageMedium::SharedMemory => {
            (JobMessageMedium::SharedMemory, "Shared memory of this machine".to_owned())
        }
        PlannedMessageMedium::Loopback => {
            (JobMessageMedium::Loopback, "TCP on this machine's loopback device".to_owned())
        }
        PlannedMessageMedium::Networks(setup) => (
            JobMessageMedium::Networks(networks(setup)?),
            format!("Half of the ranks on each side of: {}", setup.description),
        ),
        PlannedMessageMedium::Container => (
            JobMessageMedium::Container(MachineContainer::new()?),
            "Shared memory of one container with all ranks".to_owned(),
        ),
        PlannedMessageMedium::Containers(setup) => (
            JobMessageMedium::Containers(MachineContainer::new()?, networks(setup)?),
            "Half of the ranks in each of two containers, whose networks are joined by a wire".to_owned(),
        ),
        PlannedMessageMedium::Kernels => (
            JobMessageMedium::Kernels(KernelNetworks::lay(&wire(), &this_program()?)?),
            "Half of the ranks in each of two user-mode Linux kernels, whose networks are joined by a wire"
                .to_owned(),
        ),
    };
    Ok(RunningJobSetup { name: asked.name.to_owned(), description, carrier, is_yielding: asked.is_yielding })
}

fn networks(setup: &NetworkSetup) -> Result<NetworkPair> {
    NetworkPair::lay(setup, &wire(), &this_program()?)
}

/// Returns the settings of the emulated wire. The wire accepts large segments, because in a cluster the network cards
/// split them (TSO).
fn wire() -> WireSettings {
    WireSettings { is_offloading: true, ..WireSettings::default() }
}

fn this_program() -> Result<PathBuf> {
    std::env::current_exe()
        .map_err(|error| Error::new(ErrorKind::Io, "finding this program").caused_by(error))
}

/// The name of the built-in table.
const BUILT_IN: &str = "richter";

/// Recomputes a table. Returns `Corrupt` if a printed value does not follow from the times, except for the built-in
/// table.
fn check_table(table: &str, context: &CommandContext) -> Result<CommandExit> {
    let text = match table {
        BUILT_IN => RICHTER.to_owned(),
        file => std::fs::read_to_string(file).map_err(|error| file_error("reading", file, error))?,
    };
    let rows = check(&text)?;
    let headings = ["n", "wall s", "S", "= S", "E %", "= E %"];
    let [ranks, wall, speedup, own_speedup, efficiency, own_efficiency] = headings;
    context.output.text(&format!(
        "{:<56} {ranks:>2} {wall:>6} {speedup:>5} {own_speedup:>5} {efficiency:>4} {own_efficiency:>6}",
        "set-up"
    ))?;
    for row in &rows {
        context.output.record(row)?;
    }
    let wrong = rows.iter().filter(|row| row.problem().is_some()).count();
    context.output.text(&format!(
        "\n= S: time of the first row / time; = E: = S / n. {wrong} of {} rows do not agree with their times.",
        rows.len()
    ))?;
    // The command succeeds despite errors in the built-in table, because the table was published by others and cannot
    // be corrected.
    Ok(if wrong == 0 || table == BUILT_IN { CommandExit::Ok } else { CommandExit::Corrupt })
}
