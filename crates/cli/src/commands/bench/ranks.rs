//! Benchmarks on ranks: each rank a thread, the places in turn.

use std::path::{Path, PathBuf};
use std::time::Instant;

use fordway_measure::{Clock, Machine, Run};
use fordway_store::{Error, ErrorKind, Result};
use fordway_workload::bench::{Header, LaneResults, Workload, describe};
use fordway_workload::io500::published::Published;
use fordway_workload::io500::{Scores, result_text};
use fordway_workload::report::{beside_published, table};
use fordway_workload::{Crew, PhaseResult, Site, Watch, team};
use serde::Serialize;

use super::places::Places;
use crate::args::RankArgs;
use crate::context::Context;
use crate::exit::{Exit, file_error};

/// Runs `workload` and reports it, IO500 beside the tables `published`.
pub(super) fn run(workload: Workload, args: &RankArgs, published: &[u8], context: &Context) -> Result<Exit> {
    workload.check(usize::from(args.threads))?;
    let places = Places::open(args, context)?;
    let started = (jiff::Timestamp::now(), Instant::now());
    let roles: Vec<(&str, &Path)> = places.dirs.iter().map(|dir| ("root", dir.as_path())).collect();
    // Looked at before the work, which would show in the load average.
    let machine = Machine::observe(&roles);
    context.output.start_counting();
    let measured = measure(&workload, args, &places.sites, context);
    context.output.end_progress();
    places.close()?;
    let lanes = measured?;
    let header = Header {
        machine,
        started: started.0.to_string(),
        elapsed: started.1.elapsed(),
        ranks: usize::from(args.threads),
        parameters: parameters(args),
    };
    let (run, records) = describe(&workload, header, &lanes);
    let path = args.run.clone().unwrap_or_else(|| PathBuf::from(format!("{}.run", workload.name())));
    run.write(&path, &records).map_err(|error| Error::new(ErrorKind::Io, error.to_string()))?;
    report(&workload, &run, &lanes, &path, context)?;
    for table in published.iter().filter_map(|number| Published::find(*number)) {
        context.output.text(&beside_published(&lanes, table))?;
    }
    let failed = run.summaries.iter().any(|summary| summary.errors > 0);
    Ok(if failed { Exit::Failure } else { Exit::Ok })
}

fn parameters(args: &RankArgs) -> serde_json::Map<String, serde_json::Value> {
    let entries = [("places", args.places.clone().into()), ("rounds", args.rounds.into())];
    entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn measure(
    workload: &Workload,
    args: &RankArgs,
    sites: &[Site],
    context: &Context,
) -> Result<Vec<LaneResults>> {
    let clock = Clock::start();
    let mut lanes: Vec<LaneResults> =
        sites.iter().map(|site| LaneResults { lane: site.lane().clone(), rounds: Vec::new() }).collect();
    for _ in 0..args.rounds {
        for (site, lane) in sites.iter().zip(&mut lanes) {
            let name = &site.lane().name;
            let show =
                |phase: &str, done: u64| context.output.counted(done, format_args!("{phase} on {name}"));
            let watch = Watch::new(context.interrupt.flag(), &show);
            let results = team::threads(usize::from(args.threads), |team| {
                workload.run(&Crew::new(team, &watch, clock), site, args.keep)
            });
            lane.rounds.push(first_rank(results)?);
        }
    }
    Ok(lanes)
}

/// What rank 0 answered, or else the error that ended a rank, not those that only waited for it.
fn first_rank(results: Vec<Result<Vec<PhaseResult>>>) -> Result<Vec<PhaseResult>> {
    let (answers, mut errors): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    errors.sort_by_key(|error| error.as_ref().is_err_and(|error| error.kind() == ErrorKind::Internal));
    match errors.into_iter().next() {
        Some(error) => error,
        None => answers.into_iter().next().unwrap_or_else(|| Err(ErrorKind::Internal.into())),
    }
}

fn report(
    workload: &Workload,
    run: &Run,
    lanes: &[LaneResults],
    path: &Path,
    context: &Context,
) -> Result<()> {
    for summary in &run.summaries {
        context.output.row(summary)?;
    }
    context.output.text(&table(run, lanes))?;
    for warning in &run.warnings {
        context.output.note(&format!("warning: {warning}"));
    }
    if let Workload::Io500(plan) = workload {
        for lane in lanes {
            let results = lane.rounds.first().map_or(&[][..], Vec::as_slice);
            let stamp = plan.stamp(results);
            score(&lane.lane.name, results, stamp, path, context)?;
        }
    }
    context.output.text(&format!("run: {}", path.display()))
}

#[derive(Serialize)]
struct Score<'s> {
    lane: &'s str,
    scores: Option<Scores>,
    stamp: Option<String>,
}

/// IO500's scores of one lane, also as a file of its form.
fn score(
    lane: &str,
    results: &[PhaseResult],
    stamp: Option<String>,
    path: &Path,
    context: &Context,
) -> Result<()> {
    let text = result_text(results, stamp.as_deref());
    let file = path.join(format!("result-{lane}.txt"));
    std::fs::write(&file, &text).map_err(|error| file_error("writing", file.display(), error))?;
    let last = text.lines().last().unwrap_or_default();
    context.output.text(&format!("{lane}: {last}\n  {}", file.display()))?;
    context.output.row(&Score { lane, scores: Scores::of(results), stamp })
}
