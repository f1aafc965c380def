//! `compare`: what S3 costs on this machine, by every lane there is.

mod place;
mod setup;

use std::time::Instant;

use fordway_command::{Context, Exit};
use fordway_measure::{Lane, Machine, Run, SCHEMA, SCHEMA_VERSION, bytes_text, table};
use fordway_store::{ETagPolicy, Error, ErrorKind, Result};
use fordway_workload::compare::{Outcome, Phase, Plan, Progress, run as compare};
use fordway_workload::summary::{Capacity, summarise};
use fordway_workload::{Tree, TreeLimits};
use serde_json::json;

use self::place::Place;
use self::setup::Lanes;
use crate::args::CompareArgs;
use crate::commands::page;

pub(super) fn run(args: &CompareArgs, context: &Context) -> Result<Exit> {
    let seed = match args.seed {
        Some(seed) => seed,
        None => {
            u64::from(getrandom::u32().map_err(|e| Error::new(ErrorKind::Io, "no random seed").caused_by(e))?)
        }
    };
    let limits = TreeLimits { max_files: args.max_files, max_bytes: args.max_bytes, seed };
    let tree = Tree::read(&args.dir, &limits)?;
    let place = Place::new(&args.dir, args.root.as_deref())?;
    let plan = Plan {
        rounds: args.rounds,
        warm_up: args.warm_up,
        seed,
        threads: usize::from(args.threads),
        range_bytes: args.range_size.max(1),
    };
    let started = (jiff::Timestamp::now(), Instant::now());
    // Looked at before the work, which would show in the load average.
    let machine = Machine::observe(&[("source", &args.dir), ("root", place.path())]);
    let lanes = Lanes::open(args, place.path())?;
    introduce(args, &tree, &place, &plan, context);
    let outcome = measure(&plan, &tree, &lanes, context);
    let injected = lanes.mean_slept_ns();
    let names = lanes.descriptions();
    lanes.close()?;
    let outcome = outcome.inspect_err(|_| {
        context.output.note(&format!("the temporary directory {} was removed", place.path().display()));
    })?;
    let run = describe(args, &plan, &tree, &outcome, machine, names, started);
    place.remove()?;
    run.write(&args.out, &outcome.records).map_err(|e| Error::new(ErrorKind::Io, e.to_string()))?;
    report(args, &run, &outcome, injected, context)
}

fn introduce(args: &CompareArgs, tree: &Tree, place: &Place, plan: &Plan, context: &Context) {
    context.output.note(&format!(
        "{} files, {} of {}, in {}; {} rounds after {} to warm up, {} thread{}, seed {}",
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

fn measure(plan: &Plan, tree: &Tree, lanes: &Lanes, context: &Context) -> Result<Outcome> {
    context.output.start_steps();
    let mut progress = |at: Progress| {
        context.output.steps(at.done, at.total, format_args!("round {} {}", at.round + 1, at.phase.name()));
    };
    let outcome = compare(plan, tree, lanes.targets(), context.interrupt.flag(), &mut progress);
    context.output.end_progress();
    outcome
}

fn describe(
    args: &CompareArgs,
    plan: &Plan,
    tree: &Tree,
    outcome: &Outcome,
    machine: Machine,
    lanes: Vec<Lane>,
    started: (jiff::Timestamp, Instant),
) -> Run {
    let capacity = Capacity { threads: plan.threads, cpus: machine.cpus };
    let summaries = summarise(&lanes, &outcome.records, capacity, plan.seed);
    let mut warnings = tree.warnings.clone();
    warnings.extend(outcome.failures.iter().map(|failure| format!("failed: {failure}")));
    warnings.extend(doubts(&machine, plan));
    Run {
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
        phases: Phase::ALL.iter().map(|phase| phase.name().to_owned()).collect(),
        summaries,
        scores: Vec::new(),
        warnings,
    }
}

fn parameters(args: &CompareArgs, plan: &Plan, tree: &Tree) -> serde_json::Map<String, serde_json::Value> {
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
    });
    match parameters {
        serde_json::Value::Object(map) => map,
        _ => serde_json::Map::new(),
    }
}

/// Why a result may be doubted, and what helps.
fn doubts(machine: &Machine, plan: &Plan) -> Vec<String> {
    let mut doubts = Vec::new();
    if let Some(load) = machine.load_1min.filter(|load| *load > 0.5 * machine.cpus as f64) {
        doubts.push(format!(
            "the load average was {load} on {} processors before the start: other work makes times longer and \
             intervals wider; run it again when the machine is idle",
            machine.cpus
        ));
    }
    if machine.cpu_governor.as_deref().is_some_and(|governor| governor != "performance") {
        doubts.push(
            "the processors change their frequency; `cpupower frequency-set -g performance` steadies them"
                .into(),
        );
    }
    if plan.rounds < 5 {
        doubts.push(
            "fewer than 5 rounds: lists have too few blocks for a narrow interval; raise --rounds".into(),
        );
    }
    doubts
}

fn report(
    args: &CompareArgs,
    run: &Run,
    outcome: &Outcome,
    injected_ns: Option<f64>,
    context: &Context,
) -> Result<Exit> {
    for summary in &run.summaries {
        context.output.row(summary)?;
    }
    context.output.text(&table(run))?;
    for warning in &run.warnings {
        context.output.note(&format!("warning: {warning}"));
    }
    if let Some(injected_ns) = injected_ns {
        context.output.text(&instrument(run, outcome, injected_ns))?;
    }
    context.output.text(&format!("run: {}", args.out.display()))?;
    if !args.no_report {
        page::write(&args.out, context)?;
    }
    let failed = run.summaries.iter().any(|summary| summary.errors > 0) || !outcome.failures.is_empty();
    Ok(if failed { Exit::Corrupt } else { Exit::Ok })
}

/// Holds the delay that was logged against the one in the records of the last lane.
fn instrument(run: &Run, outcome: &Outcome, injected_ns: f64) -> String {
    let mean_ns = |lane: usize| {
        let of_lane = outcome.records.operations.iter().filter(|op| usize::from(op.lane) == lane && op.ok);
        let (count, sum) = of_lane.fold((0u64, 0u64), |(count, sum), op| (count + 1, sum + op.duration_ns));
        sum as f64 / count as f64
    };
    let recovered_ns = mean_ns(run.lanes.len() - 1) - mean_ns(0);
    format!(
        "instrument: {:.1} µs a call were injected and logged, {:.1} µs recovered ({:+.1} %)",
        injected_ns / 1e3,
        recovered_ns / 1e3,
        100.0 * (recovered_ns / injected_ns - 1.0)
    )
}
