//! `fsck`: what lies on disk, checked against what is stored about it.

use std::fmt;

use fordway_command::units::human_bytes;
use fordway_command::{Context, Exit};
use fordway_posix::{Finding, FsckEvent, FsckOptions, FsckSummary, PosixConfig, PosixStore};
use fordway_store::Result;
use serde::Serialize;

use crate::args::FsckArgs;

pub(super) fn run(args: &FsckArgs, context: &Context) -> Result<Exit> {
    let store = PosixStore::open(&args.directory.root, PosixConfig::default())?;
    if args.migrate {
        store.migrate(&args.directory.buckets, &mut |migrated| {
            context.interrupt.check()?;
            context.output.event(&Done { kind: "migrated", path: &migrated.path, done: migrated.done })
        })?;
    }
    let options = FsckOptions { buckets: args.directory.buckets.clone(), read: args.read };
    context.output.start_counting();
    let checked = store.check(&options, &mut |event| {
        context.interrupt.check()?;
        match event {
            FsckEvent::Progress(done) => {
                let read = if args.read { human_bytes(done.read_bytes) } else { String::new() };
                context.output.counted(done.files, format_args!("files {read}"));
                Ok(())
            }
            FsckEvent::Found(finding) => context.output.beside_progress(&Line::new(&finding)),
        }
    });
    context.output.end_progress();
    let summary = checked?;
    context.output.event(&Summary::new(&summary))?;
    Ok(match summary {
        FsckSummary { corrupt: 1.., .. } => Exit::Corrupt,
        FsckSummary { unreadable: 1.., .. } => Exit::Failure,
        _ => Exit::Ok,
    })
}

#[derive(Serialize)]
struct Done<'d> {
    kind: &'static str,
    path: &'d str,
    done: &'static str,
}

impl fmt::Display for Done<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "migrated: {}: {}", self.path.escape_debug(), self.done)
    }
}

#[derive(Serialize)]
struct Line<'l> {
    severity: &'static str,
    kind: &'static str,
    path: &'l str,
    detail: &'l str,
    next: &'static str,
}

impl<'l> Line<'l> {
    fn new(finding: &'l Finding) -> Self {
        let Finding { kind, path, detail } = finding;
        Line { severity: kind.severity().name(), kind: kind.name(), path, detail, next: kind.advice() }
    }
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A name may hold line breaks, and a finding is one line.
        write!(f, "{}: {}: {}", self.severity, self.kind, self.path.escape_debug())?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        write!(f, "; {}", self.next)
    }
}

#[derive(Serialize)]
struct Summary {
    kind: &'static str,
    files: u64,
    size_bytes: u64,
    read_files: u64,
    read_bytes: u64,
    corrupt: u64,
    unreadable: u64,
    notes: u64,
}

impl Summary {
    fn new(done: &FsckSummary) -> Self {
        let &FsckSummary { files, size_bytes, read_files, read_bytes, corrupt, unreadable, notes, .. } = done;
        Summary { kind: "summary", files, size_bytes, read_files, read_bytes, corrupt, unreadable, notes }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { files, corrupt, unreadable, notes, .. } = self;
        write!(f, "checked {files} files ({})", human_bytes(self.size_bytes))?;
        if self.read_files > 0 {
            write!(f, ", read {} of them ({})", self.read_files, human_bytes(self.read_bytes))?;
        }
        write!(f, ": {corrupt} corrupt, {unreadable} unreadable, {notes} notes")
    }
}
