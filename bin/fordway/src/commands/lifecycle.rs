//! `lifecycle` removes the objects, versions and uploads that have expired according to the rules of the buckets: once,
//! or in the background of a gateway.

use std::fmt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use fordway_command::units::human_bytes;
use fordway_command::{CommandContext, CommandExit, shown_name};
use fordway_posix::{
    LifecycleAction, LifecycleChange, LifecycleEvent, LifecycleOptions, LifecycleSummary, PosixConfig,
    PosixStore,
};
use fordway_store::{Error, ErrorKind, Result};
use serde::Serialize;

use super::care::check_not_bucket;
use super::report;
use crate::args::LifecycleRunArgs;

pub(super) fn run(args: &LifecycleRunArgs, context: &CommandContext) -> Result<CommandExit> {
    let store = PosixStore::open(&args.directory.root, PosixConfig::default())?;
    check_not_bucket(&store, &args.directory.root)?;
    let options = LifecycleOptions {
        buckets: args.directory.buckets.clone(),
        dry_run: args.dry_run,
        rate: args.rate.map(f64::from),
        day: args.day,
    };
    let mut first_failure = CommandExit::Ok;
    context.output.start_counting();
    let done = store.run_lifecycle(&options, &mut |event| {
        context.interrupt.check()?;
        match event {
            LifecycleEvent::Progress { entries } => context.output.counted(entries, "entries"),
            LifecycleEvent::Changed(change) => {
                let report = LifecycleChangeReport::new(&change, args.dry_run);
                if args.dry_run {
                    context.output.event(&report)?
                } else {
                    context.output.completed(&report)?
                }
            }
            LifecycleEvent::Busy(bucket) => {
                context.output.note(&format!("skipped the bucket {bucket}: another run is processing it"))
            }
            LifecycleEvent::SkippedLink(bucket, key) => context.output.note(&format!(
                "links to directories in the bucket {bucket} are skipped, such as {}: what is behind them does \
                 not expire",
                shown_name(&key)
            )),
            LifecycleEvent::SkippedDirectory(bucket, key) => context.output.note(&format!(
                "directories in the bucket {bucket} that the run may not read are skipped, such as {}: the objects in \
                 them do not expire",
                shown_name(&key)
            )),
            LifecycleEvent::Failed(error) => {
                let exit = report(context, error)?;
                first_failure = if first_failure == CommandExit::Ok { exit } else { first_failure };
            }
        }
        Ok(())
    });
    context.output.end_progress();
    context.output.event(&LifecycleRunSummary::new(&done?, args.dry_run))?;
    Ok(first_failure)
}

/// Applies the rules of all buckets repeatedly, with pauses of `interval`, on a thread that ends when the process
/// exits. If the process ends during a run, the next run on the directory completes the interrupted run.
pub(super) fn in_background(
    root: &Path,
    config: PosixConfig,
    interval: Duration,
    day: Duration,
) -> Result<()> {
    let store = PosixStore::open(root, config)?;
    let options = LifecycleOptions { day, ..LifecycleOptions::default() };
    let work = move || loop {
        match store.run_lifecycle(&options, &mut log) {
            Ok(LifecycleSummary { changed: 0, .. }) => {}
            Ok(LifecycleSummary { changed, expired_bytes, locked, failed, .. }) => {
                tracing::info!(changed, expired_bytes, locked, failed, "applied the lifecycle rules");
            }
            Err(error) => tracing::error!(%error, "the lifecycle rules were not applied"),
        }
        thread::sleep(interval);
    };
    let started = thread::Builder::new().name("fordway-lifecycle".to_owned()).spawn(work);
    started.map(drop).map_err(|error| {
        Error::new(ErrorKind::Io, "starting the thread for lifecycle rules").caused_by(error)
    })
}

fn log(event: LifecycleEvent) -> Result<()> {
    match event {
        LifecycleEvent::Failed(error) => tracing::warn!(%error, "lifecycle"),
        LifecycleEvent::Changed(LifecycleChange { action, bucket, key, rule, .. }) => {
            tracing::debug!(action = action.name(), %bucket, key, rule, "lifecycle");
        }
        LifecycleEvent::Progress { .. }
        | LifecycleEvent::Busy(_)
        | LifecycleEvent::SkippedLink(..)
        | LifecycleEvent::SkippedDirectory(..) => {}
    }
    Ok(())
}

#[derive(Serialize)]
struct LifecycleChangeReport<'c> {
    kind: &'static str,
    bucket: &'c str,
    key: &'c str,
    version: Option<&'c str>,
    rule: &'c str,
    size_bytes: u64,
    dry_run: bool,
}

impl<'c> LifecycleChangeReport<'c> {
    fn new(change: &'c LifecycleChange, dry_run: bool) -> Self {
        LifecycleChangeReport {
            kind: change.action.name(),
            bucket: change.bucket.as_str(),
            key: &change.key,
            version: change.version.as_deref(),
            rule: &change.rule,
            size_bytes: change.size_bytes,
            dry_run,
        }
    }
}

impl fmt::Display for LifecycleChangeReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}: s3://{}/{}", prefix(self.dry_run), self.kind, self.bucket, shown_name(self.key))?;
        // The version that a delete marker hides is kept.
        let version = self.version.filter(|_| self.kind != LifecycleAction::Hide.name());
        version.map_or(Ok(()), |version| write!(f, " {}", version.escape_debug()))?;
        write!(f, " by {}", self.rule.escape_debug())
    }
}

#[derive(Serialize)]
struct LifecycleRunSummary {
    kind: &'static str,
    dry_run: bool,
    entries: u64,
    changed: u64,
    expired_bytes: u64,
    locked: u64,
    busy_buckets: u64,
    failed: u64,
}

impl LifecycleRunSummary {
    fn new(done: &LifecycleSummary, dry_run: bool) -> Self {
        LifecycleRunSummary {
            kind: "summary",
            dry_run,
            entries: done.entries,
            changed: done.changed,
            expired_bytes: done.expired_bytes,
            locked: done.locked,
            busy_buckets: done.busy,
            failed: done.failed,
        }
    }
}

impl fmt::Display for LifecycleRunSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LifecycleRunSummary { entries, changed, locked, failed, .. } = self;
        let expired = human_bytes(self.expired_bytes);
        write!(f, "{}{changed} of {entries} entries expired, {expired}", prefix(self.dry_run))?;
        if *locked > 0 {
            write!(f, ", {locked} locked")?;
        }
        if *failed > 0 { write!(f, ", {failed} failed") } else { Ok(()) }
    }
}

fn prefix(dry_run: bool) -> &'static str {
    if dry_run { "(dry run) " } else { "" }
}
