//! `gc` removes the leftover files of interrupted operations. `fsck` checks the files on disk against their metadata
//! records.

use std::fmt;
use std::path::Path;

use fordway_command::units::human_bytes;
use fordway_command::{CommandContext, CommandExit, shown_name};
use fordway_posix::{
    FsckEvent, FsckFinding, FsckOptions, FsckSummary, GarbageFile, GcEvent, GcOptions, MigrationEvent,
    MigrationStep, PosixConfig, PosixStore,
};
use fordway_serve::document_problem;
use fordway_store::{Error, ErrorKind, Result};
use serde::Serialize;

use super::report;
use crate::args::{FsckArgs, GcArgs, StoreRootArgs};

/// Returns a message if `root` seems to be a bucket. In that case, the directories in this bucket would be mistaken for
/// buckets.
fn bucket_problem(store: &PosixStore, root: &Path) -> Option<String> {
    if !store.resembles_bucket() {
        return None;
    }
    let parent = root.canonicalize().ok().and_then(|root| root.parent().map(Path::to_owned));
    let advice = parent.map_or_else(String::new, |parent| format!("; its root is {}", parent.display()));
    let root = root.display();
    Some(format!("{root} looks like a bucket, not like the root of buckets{advice}"))
}

/// Opens the root that the command changes. Errors: `InvalidArgument` if ROOT seems to be a bucket.
fn open_to_change(args: &StoreRootArgs) -> Result<PosixStore> {
    let store = PosixStore::open_for_care(&args.root, PosixConfig::default())?;
    check_not_bucket(&store, &args.root).map(|()| store)
}

/// Checks that the root of `store` is not a bucket. Errors: `InvalidArgument`.
pub(super) fn check_not_bucket(store: &PosixStore, root: &Path) -> Result<()> {
    bucket_problem(store, root).map_or(Ok(()), |why| Err(Error::new(ErrorKind::InvalidArgument, why)))
}

/// Opens the root that the command checks. Prints a warning if ROOT seems to be a bucket.
fn open_to_check(args: &StoreRootArgs, context: &CommandContext) -> Result<PosixStore> {
    let store = PosixStore::open_for_care(&args.root, PosixConfig::default())?;
    if let Some(why) = bucket_problem(&store, &args.root) {
        context.output.note(&why);
    }
    Ok(store)
}

pub(super) fn gc(args: &GcArgs, context: &CommandContext) -> Result<CommandExit> {
    let store = open_to_change(&args.directory)?;
    let options = GcOptions {
        buckets: args.directory.buckets.clone(),
        staged_age: args.older_than,
        upload_age: args.uploads_older_than,
        event_age: args.events_older_than,
        empty_dir_age: args.older_than,
        dry_run: args.dry_run,
    };
    let mut first_failure = CommandExit::Ok;
    context.output.start_counting();
    let collected = store.collect_garbage(&options, &mut |event| {
        context.interrupt.check()?;
        match event {
            GcEvent::Progress { entries } => context.output.counted(entries, "entries"),
            GcEvent::Removed(garbage) => {
                let report = GarbageItemReport::new(&garbage, args.dry_run);
                if args.dry_run {
                    context.output.event(&report)?
                } else {
                    context.output.completed(&report)?
                }
            }
            GcEvent::Failed(error) => {
                let exit = report(context, error)?;
                first_failure = if first_failure == CommandExit::Ok { exit } else { first_failure };
            }
        }
        Ok(())
    });
    context.output.end_progress();
    let summary = collected?;
    context.output.event(&GcTotals {
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
struct GarbageItemReport<'r> {
    kind: &'static str,
    path: &'r str,
    size_bytes: u64,
    dry_run: bool,
}

impl<'r> GarbageItemReport<'r> {
    fn new(garbage: &'r GarbageFile, dry_run: bool) -> Self {
        let GarbageFile { kind, path, size_bytes } = garbage;
        GarbageItemReport { kind: kind.name(), path, size_bytes: *size_bytes, dry_run }
    }
}

impl fmt::Display for GarbageItemReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}remove {}: {}", prefix(self.dry_run), self.kind, shown_name(self.path))?;
        if self.size_bytes > 0 { write!(f, " ({})", human_bytes(self.size_bytes)) } else { Ok(()) }
    }
}

#[derive(Serialize)]
struct GcTotals {
    kind: &'static str,
    dry_run: bool,
    entries: u64,
    removed: u64,
    freed_bytes: u64,
    failed: u64,
}

impl fmt::Display for GcTotals {
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

pub(super) fn fsck(args: &FsckArgs, context: &CommandContext) -> Result<CommandExit> {
    let (store, migrated) = match args.migrate {
        true => {
            let store = open_to_change(&args.directory)?;
            let migrated = migrate(&store, args, context)?;
            (store, migrated)
        }
        false => (open_to_check(&args.directory, context)?, CommandExit::Ok),
    };
    let options = FsckOptions {
        buckets: args.directory.buckets.clone(),
        read: args.read,
        immutable_locks: args.immutable_locks,
        document_problem: Some(document_problem),
    };
    context.output.start_counting();
    let checked = store.check(&options, &mut |event| {
        context.interrupt.check()?;
        match event {
            FsckEvent::Progress(done) => {
                let read = if args.read { human_bytes(done.read_bytes) } else { String::new() };
                context.output.counted(done.files, format_args!("files {read}"));
                Ok(())
            }
            FsckEvent::Found(finding) => context.output.beside_progress(&FsckFindingReport::new(&finding)),
        }
    });
    context.output.end_progress();
    let summary = checked?;
    context.output.event(&FsckTotals::new(&summary))?;
    // Corruption takes precedence over read errors: an unreadable file may be correct, but a corrupt file is not.
    Ok(match summary {
        FsckSummary { corrupt: 1.., .. } => CommandExit::Corrupt,
        FsckSummary { unreadable: 1.., .. } => CommandExit::Failure,
        _ => migrated,
    })
}

/// Migrates the root. Returns the exit code of the first failure.
fn migrate(store: &PosixStore, args: &FsckArgs, context: &CommandContext) -> Result<CommandExit> {
    let mut first_failure = CommandExit::Ok;
    store.migrate(&args.directory.buckets, &mut |event| {
        context.interrupt.check()?;
        match event {
            MigrationEvent::Done(MigrationStep { path, done }) => {
                context.output.completed(&MigrationStepReport { kind: "migrated", path: &path, done })
            }
            MigrationEvent::Failed(error) => {
                let exit = report(context, error)?;
                first_failure = if first_failure == CommandExit::Ok { exit } else { first_failure };
                Ok(())
            }
        }
    })?;
    Ok(first_failure)
}

#[derive(Serialize)]
struct MigrationStepReport<'d> {
    kind: &'static str,
    path: &'d str,
    done: &'static str,
}

impl fmt::Display for MigrationStepReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "migrated: {}: {}", self.path.escape_debug(), self.done)
    }
}

#[derive(Serialize)]
struct FsckFindingReport<'l> {
    severity: &'static str,
    kind: &'static str,
    path: &'l str,
    detail: &'l str,
    next: &'static str,
}

impl<'l> FsckFindingReport<'l> {
    fn new(finding: &'l FsckFinding) -> Self {
        let FsckFinding { kind, path, detail } = finding;
        FsckFindingReport {
            severity: kind.severity().name(),
            kind: kind.name(),
            path,
            detail,
            next: kind.advice(),
        }
    }
}

impl fmt::Display for FsckFindingReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A name may contain line breaks, but a finding must be one line.
        write!(f, "{}: {}: {}", self.severity, self.kind, self.path.escape_debug())?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        write!(f, "; {}", self.next)
    }
}

#[derive(Serialize)]
struct FsckTotals {
    kind: &'static str,
    files: u64,
    size_bytes: u64,
    read_files: u64,
    read_bytes: u64,
    corrupt: u64,
    unreadable: u64,
    notes: u64,
}

impl FsckTotals {
    fn new(done: &FsckSummary) -> Self {
        let &FsckSummary { files, size_bytes, read_files, read_bytes, corrupt, unreadable, notes, .. } = done;
        FsckTotals { kind: "summary", files, size_bytes, read_files, read_bytes, corrupt, unreadable, notes }
    }
}

impl fmt::Display for FsckTotals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FsckTotals { files, corrupt, unreadable, notes, .. } = self;
        write!(f, "checked {files} files ({})", human_bytes(self.size_bytes))?;
        if self.read_files > 0 {
            write!(f, ", read {} of them ({})", self.read_files, human_bytes(self.read_bytes))?;
        }
        write!(f, ": {corrupt} corrupt, {unreadable} unreadable, {notes} notes")
    }
}
