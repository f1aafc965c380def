//! The engine behind `cp`, `sync`, `rm` and `rb --force`: actions stream in from listings, are done
//! by a few threads, and each failure is reported while the others go on.
//!
//! - `tree` lists either side, `plan` decides from listings alone;
//! - `queue` is the bounded queue between the lister and the threads;
//! - `upload`, `download` and `copy` move one object each; `content` is what they share;
//! - `run` (below) joins them, counts, and picks the exit code.

mod content;
mod copy;
mod download;
pub(crate) mod plan;
pub(crate) mod queue;
mod remove;
pub(crate) mod taken;
pub(crate) mod tally;
pub(crate) mod tree;
mod upload;

use std::fmt;
use std::path::PathBuf;

use fordway_command::{Address, Context, Exit, file_error};
use fordway_lanes::Lane;
use fordway_store::{
    BoxedMetadata, Bucket, ChecksumAlgorithm, DeleteOptions, Error, ErrorKind, GetOptions, Key, Metadata,
    Result, Store, VersionId,
};
use serde::Serialize;

pub(crate) use content::Verifier;
pub(crate) use download::temporary_beside;

use crate::args::TransferArgs;
use tally::Tally;

/// What to do about something that is at the destination already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    Replace,
    Skip,
    Fail,
}

/// How actions are done.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) dry_run: bool,
    pub(crate) existing: Existing,
    /// The version that is read of a source; `None` is the latest.
    source_version: Option<VersionId>,
    jobs: u16,
    concurrency: u16,
    part_size_bytes: u64,
    multipart_threshold_bytes: Option<u64>,
    checksum: Option<ChecksumAlgorithm>,
    metadata: BoxedMetadata,
    guess_content_type: bool,
    verify: bool,
    removes_sources: bool,
}

impl Settings {
    /// Settings as the command line gives them.
    pub(crate) fn of(args: &TransferArgs, existing: Existing) -> Self {
        let user = args.metadata.iter().cloned().collect();
        Settings {
            dry_run: args.dry_run,
            existing,
            source_version: None,
            jobs: args.jobs,
            concurrency: args.concurrency,
            part_size_bytes: args.part_size,
            multipart_threshold_bytes: args.multipart_threshold,
            checksum: args.checksum_algorithm,
            metadata: Metadata { content_type: args.content_type.clone(), user, ..Default::default() }.into(),
            guess_content_type: !args.no_guess_mime_type,
            verify: !args.no_verify,
            removes_sources: false,
        }
    }

    /// The same, taking away each source when it was copied.
    pub(crate) fn removing_sources(self) -> Self {
        Settings { removes_sources: true, ..self }
    }

    /// The same, reading that version of the source; `None` is the latest.
    pub(crate) fn reading(self, source_version: Option<VersionId>) -> Self {
        Settings { source_version, ..self }
    }

    /// Settings of commands that only remove.
    pub(crate) fn removal(dry_run: bool, jobs: u16) -> Self {
        Settings {
            dry_run,
            existing: Existing::Replace,
            source_version: None,
            jobs,
            concurrency: 1,
            part_size_bytes: 0,
            multipart_threshold_bytes: None,
            checksum: None,
            metadata: BoxedMetadata::EMPTY,
            guess_content_type: false,
            verify: false,
            removes_sources: false,
        }
    }
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Make `to` what `from` is.
    Copy { from: Address, to: Address, size: Option<u64> },
    /// Remove an object or a file.
    Remove(Address),
}

/// What a worker takes from the queue.
enum Task {
    Copy { from: Address, to: Address, size: Option<u64> },
    RemoveObjects(Bucket, Vec<Key>),
    RemoveFile(PathBuf),
    Failed(Error),
}

/// How a copy ended that did not fail.
enum Copied {
    /// With this many bytes, where that is known.
    Done(Option<u64>),
    /// Something is at the destination, and is to stay.
    Skipped,
}

/// What was done (or would be), as a line or as JSON.
#[derive(Serialize)]
struct Event<'e> {
    operation: &'static str,
    source: &'e str,
    #[serde(skip_serializing_if = "Option::is_none")]
    destination: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size_bytes: Option<u64>,
    dry_run: bool,
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dry = if self.dry_run { "(dryrun) " } else { "" };
        write!(f, "{dry}{}: {}", self.operation, self.source)?;
        self.destination.map_or(Ok(()), |destination| write!(f, " to {destination}"))
    }
}

/// Does all actions; one that fails is reported and the others go on.
///
/// The first failure decides the exit code. Errors: only from opening the lane.
pub(crate) fn run(
    context: &Context,
    settings: &Settings,
    actions: impl Iterator<Item = Result<Action>>,
) -> Result<Exit> {
    let runner = Runner { context, settings, lane: context.lane()?, tally: Tally::default() };
    let actions = actions.take_while(|_| !context.interrupt.is_raised());
    context.output.start_progress();
    queue::for_each(settings.jobs, remove::batched(actions), |task| runner.perform(task));
    context.output.end_progress();
    runner.tally.finish(context)
}

/// What every worker shares.
struct Runner<'c> {
    context: &'c Context,
    settings: &'c Settings,
    lane: Lane,
    tally: Tally,
}

impl Runner<'_> {
    fn perform(&self, task: Task) {
        match task {
            Task::Copy { from, to, size } => match self.copy(&from, &to, size) {
                Ok(Copied::Done(size)) => {
                    let name = if self.settings.removes_sources { "move" } else { copy_name(&from, &to) };
                    self.done(name, &from, Some(&to), size);
                }
                Ok(Copied::Skipped) => self.tally.skipped(),
                Err(error) => self.failed(&error),
            },
            Task::RemoveObjects(bucket, keys) => self.remove_objects(&bucket, &keys),
            Task::RemoveFile(path) => self.remove_file(path),
            Task::Failed(error) => self.failed(&error),
        }
    }

    fn copy(&self, from: &Address, to: &Address, size: Option<u64>) -> Result<Copied> {
        self.context.interrupt.check()?;
        tracing::debug!(%from, %to, "copy");
        if self.settings.existing == Existing::Skip && self.exists(to)? {
            return Ok(Copied::Skipped);
        }
        if self.settings.dry_run {
            return Ok(Copied::Done(size));
        }
        self.context.output.expect_bytes(size.unwrap_or(0));
        let copied = self.copy_content(from, to, size);
        match copied.and_then(|bytes| self.settle(from, to).map(|()| bytes)) {
            Ok(bytes) => Ok(Copied::Done(bytes.or(size))),
            // Somebody was faster than our look; with --no-clobber that is theirs to keep.
            Err(error)
                if error.kind() == ErrorKind::PreconditionFailed
                    && self.settings.existing == Existing::Skip =>
            {
                Ok(Copied::Skipped)
            }
            Err(error) => Err(error),
        }
    }

    /// After a copy: a move takes its source away.
    fn settle(&self, from: &Address, to: &Address) -> Result<()> {
        match from {
            _ if !self.settings.removes_sources => Ok(()),
            _ if from == to => {
                let why = format!("{from} would be moved to itself");
                Err(Error::new(ErrorKind::InvalidArgument, why))
            }
            Address::S3(bucket, key) => {
                self.store().delete(bucket, &Key::new(key)?, &DeleteOptions::default()).map(drop)
            }
            Address::Local(path) => {
                std::fs::remove_file(path).map_err(|error| file_error("removing", path.display(), error))
            }
            Address::Service | Address::Stdio => Ok(()),
        }
    }

    /// Answers the number of bytes, where it is known.
    fn copy_content(&self, from: &Address, to: &Address, size: Option<u64>) -> Result<Option<u64>> {
        match (from, to) {
            (Address::Local(path), Address::S3(bucket, key)) => {
                self.upload_file(path, bucket, &Key::new(key)?).map(Some)
            }
            (Address::Stdio, Address::S3(bucket, key)) => {
                self.upload_stream(bucket, &Key::new(key)?).map(Some)
            }
            (Address::S3(bucket, key), Address::Local(path)) => {
                self.download((bucket, &Key::new(key)?), size, path).map(Some)
            }
            (Address::S3(bucket, key), Address::S3(to_bucket, to_key)) => {
                self.copy_object((bucket, &Key::new(key)?), to_bucket, &Key::new(to_key)?, size)
            }
            _ => Err(Error::new(ErrorKind::InvalidArgument, unsupported(from, to))),
        }
    }

    fn exists(&self, place: &Address) -> Result<bool> {
        match place {
            Address::S3(bucket, key) => {
                match self.lane.store.head(bucket, &Key::new(key)?, &GetOptions::default()) {
                    Ok(_) => Ok(true),
                    Err(error) if error.kind() == ErrorKind::NoSuchKey => Ok(false),
                    Err(error) => Err(error),
                }
            }
            Address::Local(path) => Ok(path.symlink_metadata().is_ok()),
            Address::Service | Address::Stdio => Ok(false),
        }
    }

    /// Counts what was done and tells of it.
    fn done(&self, operation: &'static str, from: &Address, to: Option<&Address>, size: Option<u64>) {
        let (source, destination) = (from.to_string(), to.map(Address::to_string));
        let dry_run = self.settings.dry_run;
        let event = Event {
            operation,
            source: &source,
            destination: destination.as_deref(),
            size_bytes: size,
            dry_run,
        };
        self.tally.done();
        // Work goes on although nobody reads of it: the copies are what was asked for.
        match self.context.output.event(&event) {
            Err(error) if !self.context.output.is_reader_gone(&error) => self.failed(&error),
            _ => {}
        }
    }

    fn failed(&self, error: &Error) {
        self.tally.failed(self.context, error);
    }

    /// What is asked of a source: the version to read.
    fn source(&self) -> GetOptions {
        GetOptions { version: self.settings.source_version.clone(), ..Default::default() }
    }

    fn store(&self) -> &dyn Store {
        &*self.lane.store
    }

    /// Objects of at least this many bytes go in parts.
    fn threshold_bytes(&self) -> Option<u64> {
        self.settings.multipart_threshold_bytes.or(self.lane.multipart_threshold_bytes)
    }

    /// Bytes were moved: shows them, and stops here if that was asked for.
    fn advance(&self, bytes: u64) -> Result<()> {
        self.context.output.advance_bytes(bytes);
        self.context.interrupt.check()
    }
}

fn copy_name(from: &Address, to: &Address) -> &'static str {
    match (from, to) {
        (Address::S3(..), Address::S3(..)) => "copy",
        (_, Address::S3(..)) => "upload",
        _ => "download",
    }
}

/// Why two places cannot be copied between.
pub(crate) fn unsupported(from: impl fmt::Display, to: &Address) -> String {
    format!("cannot copy {from} to {to}: at least one of the two must be of the form s3://BUCKET/KEY")
}
