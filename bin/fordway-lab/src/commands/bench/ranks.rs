//! Benchmarks on ranks: each rank a thread, the places in turn.

use std::path::Path;
use std::time::Instant;

use fordway_command::{Context, Exit, file_error};
use fordway_measure::{Clock, LaneScore, Machine, Run};
use fordway_store::{Error, ErrorKind, Result};
use fordway_workload::bench::{Header, LaneResults, Workload, describe};
use fordway_workload::io500;
use fordway_workload::io500::published::Published;
use fordway_workload::report::{beside_published, table};
use fordway_workload::{Crew, Site, Watch, team};

use super::places::Places;
use crate::args::RankArgs;

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
        parameters: args.setting.parameters(),
    };
    let (run, records) = describe(&workload, header, &lanes);
    let path = args.setting.path(&workload);
    run.write(&path, &records).map_err(|error| Error::new(ErrorKind::Io, error.to_string()))?;
    report(&workload, &run, &lanes, &path, context)?;
    for table in published.iter().filter_map(|number| Published::find(*number)) {
        context.output.text(&beside_published(&lanes, table))?;
    }
    let failed = run.summaries.iter().any(|summary| summary.errors > 0);
    Ok(if failed { Exit::Failure } else { Exit::Ok })
}

fn measure(
    workload: &Workload,
    args: &RankArgs,
    sites: &[Site],
    context: &Context,
) -> Result<Vec<LaneResults>> {
    let clock = Clock::start();
    let show = |phase: &str, done: u64| context.output.counted(done, phase);
    let watch = Watch::new(context.interrupt.flag(), &show);
    let results = team::threads(usize::from(args.threads), |team| {
        args.setting.run(workload, &Crew::new(team, &watch, clock), sites)
    });
    first_rank(results)
}

/// What rank 0 answered, or else the error that ended a rank, not those that only waited for it.
fn first_rank(results: Vec<Result<Vec<LaneResults>>>) -> Result<Vec<LaneResults>> {
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
        for (score, text) in io500::score(plan, lanes) {
            write_score(&score, &text, path, context)?;
        }
    }
    context.output.text(&format!("run: {}", path.display()))
}

/// One lane's scores, also as a file of IO500's form.
fn write_score(score: &LaneScore, text: &str, path: &Path, context: &Context) -> Result<()> {
    let file = path.join(format!("result-{}.txt", score.lane));
    std::fs::write(&file, text).map_err(|error| file_error("writing", file.display(), error))?;
    let last = text.lines().last().unwrap_or_default();
    context.output.text(&format!("{}: {last}\n  {}", score.lane, file.display()))?;
    context.output.row(score)
}
