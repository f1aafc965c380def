//! `gc`: what interrupted work left behind, removed.

use std::fmt;

use fordway_command::units::human_bytes;
use fordway_command::{Context, Exit};
use fordway_posix::{Garbage, GcEvent, GcOptions, PosixConfig, PosixStore};
use fordway_store::Result;
use serde::Serialize;

use super::report;
use crate::args::GcArgs;

pub(super) fn run(args: &GcArgs, context: &Context) -> Result<Exit> {
    let store = PosixStore::open(&args.directory.root, PosixConfig::default())?;
    let options = GcOptions {
        buckets: args.directory.buckets.clone(),
        staged_age: args.older_than,
        upload_age: args.uploads_older_than,
        empty_dir_age: args.older_than,
        dry_run: args.dry_run,
    };
    let mut first_failure = Exit::Ok;
    context.output.start_counting();
    let collected = store.collect_garbage(&options, &mut |event| {
        context.interrupt.check()?;
        match event {
            GcEvent::Progress { entries } => context.output.counted(entries, "entries"),
            GcEvent::Removed(garbage) => context.output.event(&Removed::new(&garbage, args.dry_run))?,
            GcEvent::Failed(error) => {
                let exit = report(context, error)?;
                first_failure = if first_failure == Exit::Ok { exit } else { first_failure };
            }
        }
        Ok(())
    });
    context.output.end_progress();
    let summary = collected?;
    context.output.event(&Summary {
        kind: "summary",
        dry_run: args.dry_run,
        entries: summary.entries,
        removed: summary.removed,
        freed_bytes: summary.freed_bytes,
        failed: summary.failed,
    })?;
    Ok(first_failure)
}

#[derive(Serialize)]
struct Removed<'r> {
    kind: &'static str,
    path: &'r str,
    size_bytes: u64,
    dry_run: bool,
}

impl<'r> Removed<'r> {
    fn new(garbage: &'r Garbage, dry_run: bool) -> Self {
        let Garbage { kind, path, size_bytes } = garbage;
        Removed { kind: kind.name(), path, size_bytes: *size_bytes, dry_run }
    }
}

impl fmt::Display for Removed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}remove {}: {}", prefix(self.dry_run), self.kind, self.path)?;
        if self.size_bytes > 0 { write!(f, " ({})", human_bytes(self.size_bytes)) } else { Ok(()) }
    }
}

#[derive(Serialize)]
struct Summary {
    kind: &'static str,
    dry_run: bool,
    entries: u64,
    removed: u64,
    freed_bytes: u64,
    failed: u64,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let freed = human_bytes(self.freed_bytes);
        let (prefix, removed) = (prefix(self.dry_run), self.removed);
        write!(f, "{prefix}removed {removed} of {} entries, {freed} freed", self.entries)?;
        if self.failed > 0 { write!(f, ", {} failed", self.failed) } else { Ok(()) }
    }
}

fn prefix(dry_run: bool) -> &'static str {
    if dry_run { "(dry run) " } else { "" }
}
