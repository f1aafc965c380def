//! `speedup`: one MPI program on several numbers of ranks, over shared memory, TCP, namespaces and overlays.

mod check;
mod enter;
mod lanes;
mod launch;
mod launcher;

use std::time::Instant;

use fordway_command::{Context, Exit, file_error};
use fordway_measure::{Lane, Machine, Run, ns_text, parallel_table};
use fordway_store::{Error, ErrorKind, Result};
use fordway_workload::speedup::{Fitted, Outcome, Plan, Time, describe, fits, measure};
use fordway_workload::summary::Header;
use serde_json::{Map, Value, json};

use self::lanes::Way;
use self::launch::Jobs;
use self::launcher::Launcher;
use super::page;
use crate::args::{SpeedupArgs, TimeArg};

pub(super) fn run(args: &SpeedupArgs, context: &Context) -> Result<Exit> {
    if let Some(table) = &args.check {
        return check::run(table, context);
    }
    if let Some(network) = &args.enter {
        return enter::run(network, &args.command);
    }
    let started = (jiff::Timestamp::now(), Instant::now());
    let machine = Machine::observe(&[]);
    let launcher = Launcher::find(args)?;
    let mut warnings = Vec::new();
    let ways = lanes::bring_up(&args.setup, context, &mut warnings)?;
    let plan = plan(args, ways.len())?;
    let lanes: Vec<Lane> = ways.iter().map(Way::lane).collect();
    let mut jobs = Jobs::new(args, &launcher, ways, context)?;
    let outcome = drive(&plan, &lanes, &mut jobs, context);
    drop(jobs);
    let outcome = outcome?;
    let fitted = fits(&plan, &lanes, &outcome);
    let header = Header {
        machine,
        started: started.0.to_string(),
        elapsed: started.1.elapsed(),
        parameters: parameters(args, &plan, &launcher),
        warnings,
    };
    let run = describe(&plan, lanes, &outcome, header);
    write(args, &run, &outcome, &fitted)?;
    report(args, &run, &fitted, context)?;
    Ok(outcome.failures.first().map_or(Exit::Ok, |(_, _, error)| Exit::of(error)))
}

fn plan(args: &SpeedupArgs, lanes: usize) -> Result<Plan> {
    let mut ranks = args.ranks.clone();
    ranks.push(1);
    ranks.sort_unstable();
    ranks.dedup();
    if ranks.len() > 64 {
        return Err(Error::new(ErrorKind::InvalidArgument, "a run has at most 64 numbers of ranks"));
    }
    let time = match args.time {
        TimeArg::Wall => Time::Wall,
        TimeArg::Work => Time::Work,
    };
    Ok(Plan { ranks, lanes, repeat: args.repeat, seed: args.seed, time })
}

fn drive(plan: &Plan, lanes: &[Lane], jobs: &mut Jobs<'_>, context: &Context) -> Result<Outcome> {
    context.output.start_steps();
    let mut progress = |done, total, lane: usize, ranks| {
        context.output.steps(done, total, format_args!("{} x {ranks}", lanes[lane].name));
    };
    let outcome = measure(plan, jobs, context.interrupt.flag(), &mut progress);
    context.output.end_progress();
    outcome
}

fn parameters(args: &SpeedupArgs, plan: &Plan, launcher: &Launcher) -> Map<String, Value> {
    let words: Vec<_> = args.command.iter().map(|word| word.to_string_lossy()).collect();
    let time = if plan.time == Time::Wall { "wall" } else { "work" };
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

/// The run, with the fits beside it; `run.json` comes last.
fn write(args: &SpeedupArgs, run: &Run, outcome: &Outcome, fitted: &[Fitted]) -> Result<()> {
    let path = args.out.join("speedup.json");
    let failed = |error| file_error("writing", path.display(), error);
    let text = serde_json::to_string_pretty(&json!({ "fits": fitted }))
        .map_err(|error| Error::new(ErrorKind::Internal, "writing the fits as JSON").caused_by(error))?;
    std::fs::create_dir_all(&args.out).map_err(failed)?;
    std::fs::write(&path, text + "\n").map_err(failed)?;
    run.write(&args.out, &outcome.records).map_err(|error| Error::new(ErrorKind::Io, error.to_string()))
}

fn report(args: &SpeedupArgs, run: &Run, fitted: &[Fitted], context: &Context) -> Result<()> {
    for summary in &run.summaries {
        context.output.row(summary)?;
    }
    context.output.text(&parallel_table(run))?;
    for fitted in fitted {
        context.output.row(fitted)?;
        context.output.text(&sentence(fitted))?;
    }
    for warning in &run.warnings {
        context.output.note(&format!("warning: {warning}"));
    }
    context.output.text(&format!("run: {}", args.out.display()))?;
    if args.no_report { Ok(()) } else { page::write(&args.out, context) }
}

/// What a fit says, and whether it can be believed.
fn sentence(fitted: &Fitted) -> String {
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
            "{law}; unreliable: {} numbers of ranks for 3 costs, so nothing tests it; more --ranks do",
            fit.points
        ),
    }
}
