//! Performs one copy: an upload, a download, a copy within a server, or a copy from one server to another.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fordway_command::{CommandContext, CommandExit, file_error};
use fordway_http::vector::RemoteFile;
use fordway_http::webdav::{
    CopyDirection, DavResource, DavUploadOptions, ThirdPartyCopy, WebDavClient, collection_url, without_query,
};
use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::file_hash::{FileHash, FileHashAlgorithm, FileHasher};

use super::DavActionOutput;
use super::copy::{DavCopyEndpoint, DavCopyOptions, content_type, is_one_server, parent};
use crate::args::ThirdPartyCopyArg;
use crate::replicas::ReplicaOpener;
use crate::transfer::{
    CopyAttempts, LocalSourceStamps, OverwritePolicy, PostponedRemovals, SharedTransferCounts, SourceFate,
    WrittenFiles, changed, check_unchanged, finish_file, missing, parent as directory_of, sync_names,
};
use crate::web;

/// The number of bytes read from a file at a time.
const CHUNK_BYTES: usize = 256 * 1024;
/// The maximum time without a progress report from a server that makes a copy. Such servers report their progress every
/// few seconds.
const SILENCE: Duration = Duration::from_secs(300);

/// The source and the destination of one copy.
#[derive(Debug)]
pub(super) struct DavCopyTask {
    pub(super) from: DavCopyEndpoint,
    pub(super) to: DavCopyEndpoint,
    /// The path relative to the source, which is matched against filters.
    pub(super) relative: String,
    pub(super) size_bytes: Option<u64>,
    /// Whether the task creates a directory or collection, which may stay empty.
    pub(super) is_directory: bool,
}

/// The outcome of a copy that did not fail.
enum DavCopyOutcome {
    Done {
        operation: &'static str,
        size_bytes: Option<u64>,
        by: Option<&'static str>,
    },
    /// The copy is complete, and its event has been printed.
    Told,
    Skipped,
    /// A directory, which is neither printed nor counted.
    Unmentioned,
}

/// The state of a move's source before the copy.
enum MoveSourceSnapshot {
    File(LocalSourceStamps),
    Web(DavResource),
}

/// The state that all copies of a command share.
pub(super) struct DavCopier<'c> {
    dav: &'c WebDavClient,
    order: &'c DavCopyOptions<'c>,
    context: &'c CommandContext,
    tally: SharedTransferCounts,
    attempts: CopyAttempts,
    /// The collections that are known to exist.
    made: Mutex<HashSet<String>>,
    postponed: PostponedRemovals,
    written: WrittenFiles,
}

impl<'c> DavCopier<'c> {
    pub(super) fn new(
        dav: &'c WebDavClient,
        order: &'c DavCopyOptions<'c>,
        postponed: PostponedRemovals,
        context: &'c CommandContext,
    ) -> Self {
        let (tally, attempts) = (SharedTransferCounts::default(), CopyAttempts::default());
        let (made, written) = (Mutex::default(), WrittenFiles::default());
        DavCopier { dav, order, context, tally, attempts, made, postponed, written }
    }

    /// Performs and counts a copy, and reports the outcome. A failure does not end the other copies.
    pub(super) fn perform(&self, task: Result<DavCopyTask>) {
        let ended = task.and_then(|task| {
            // Standard input cannot be read again. A repeated move might not find its source.
            let copied = match self.order.moves || task.from == DavCopyEndpoint::Stdin {
                true => self.copy(&task)?,
                false => self.attempts.perform(|| self.copy(&task))?,
            };
            self.tell(&task, copied)
        });
        if let Err(error) = ended {
            self.tally.failed(self.context, &error);
        }
    }

    pub(super) fn finish(self) -> Result<CommandExit> {
        self.postponed.finish().iter().for_each(|error| self.tally.failed(self.context, error));
        self.tally.finish(self.context)
    }

    fn tell(&self, task: &DavCopyTask, copied: DavCopyOutcome) -> Result<()> {
        let (operation, size_bytes, by) = match copied {
            DavCopyOutcome::Skipped => {
                self.tally.skipped();
                return Ok(());
            }
            DavCopyOutcome::Told => {
                self.tally.done();
                return Ok(());
            }
            DavCopyOutcome::Unmentioned => return Ok(()),
            DavCopyOutcome::Done { operation, size_bytes, by } => (operation, size_bytes, by),
        };
        let (source, destination) = (task.from.to_string(), task.to.to_string());
        let dry_run = self.order.transfer.dry_run;
        self.context.output.completed(&DavActionOutput {
            operation,
            source: &source,
            destination: Some(&destination),
            size_bytes,
            by,
            dry_run,
        })?;
        self.tally.done();
        Ok(())
    }

    fn copy(&self, task: &DavCopyTask) -> Result<DavCopyOutcome> {
        self.context.interrupt.check()?;
        if task.is_directory {
            return self.make_directory(&task.to);
        }
        if task.from == task.to {
            let why = format!("the source and the destination are both {}", task.from);
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        if self.order.existing != OverwritePolicy::Replace && self.exists(&task.to)? {
            let why = format!("{} already exists", task.to);
            let refused = Error::new(ErrorKind::PreconditionFailed, why);
            return if self.order.existing == OverwritePolicy::Skip {
                Ok(DavCopyOutcome::Skipped)
            } else {
                Err(refused)
            };
        }
        if self.order.transfer.dry_run {
            self.rehearse(task)?;
            let operation = if self.order.moves { "move" } else { "copy" };
            return Ok(DavCopyOutcome::Done { operation, size_bytes: task.size_bytes, by: None });
        }
        if self.order.recursive
            && let Some(parent) = parent(&task.to)
        {
            self.make_parent(&parent)?;
        }
        match self.copy_content(task) {
            // Another program created the destination after the check. --no-clobber keeps the destination.
            Err(error)
                if error.kind() == ErrorKind::PreconditionFailed
                    && self.order.existing == OverwritePolicy::Skip =>
            {
                Ok(DavCopyOutcome::Skipped)
            }
            copied => copied,
        }
    }

    /// Checks in a dry run that the source exists, unless a listing contained its size, and that a local destination is
    /// not a directory. Errors: the errors of the copy.
    fn rehearse(&self, task: &DavCopyTask) -> Result<()> {
        match &task.from {
            DavCopyEndpoint::Local(path) => {
                path.metadata().map_err(|error| file_error("reading", path.display(), error))?;
            }
            // The source may be a whole collection.
            DavCopyEndpoint::Web(url) if self.order.recursive && task.size_bytes.is_none() => {
                self.dav.stat(url)?;
            }
            DavCopyEndpoint::Web(url) if task.size_bytes.is_none() => web::check_exists(url, self.context)?,
            DavCopyEndpoint::Web(_) | DavCopyEndpoint::Stdin => {}
        }
        match &task.to {
            DavCopyEndpoint::Local(path) => web::regular_target(path).map(drop),
            DavCopyEndpoint::Web(_) | DavCopyEndpoint::Stdin => Ok(()),
        }
    }

    fn copy_content(&self, task: &DavCopyTask) -> Result<DavCopyOutcome> {
        let source = if self.order.moves { self.source_of_move(&task.from)? } else { None };
        let copied = match (&task.from, &task.to) {
            (DavCopyEndpoint::Local(path), DavCopyEndpoint::Web(url)) => {
                self.upload(path, url, task.size_bytes)?
            }
            (DavCopyEndpoint::Stdin, DavCopyEndpoint::Web(url)) => self.upload_stream(url)?,
            (DavCopyEndpoint::Web(url), DavCopyEndpoint::Local(path)) => {
                let places = ReplicaOpener::usual(&self.order.replicas, !self.order.transfer.no_verify);
                // If another program creates the file now, the download must fail, so that a move does not remove its
                // source. `copy` converts the failure to a skip.
                let existing = if self.only_new() { OverwritePolicy::Fail } else { OverwritePolicy::Replace };
                let path = web::regular_target(path)?;
                if self.order.moves {
                    self.written.claim(&path)?;
                }
                let made: Vec<PathBuf> =
                    missing(directory_of(&path)).into_iter().map(Path::to_owned).collect();
                web::download_to_target(url, &path, existing, &places, self.context)?;
                if self.order.moves {
                    let written = sync_only_copy(&path, &made);
                    written.map_err(|error| file_error("writing", path.display(), error))?;
                }
                DavCopyOutcome::Told
            }
            (DavCopyEndpoint::Web(from), DavCopyEndpoint::Web(to)) if is_one_server(from, to) => {
                return self.within_server(from, to);
            }
            (DavCopyEndpoint::Web(from), DavCopyEndpoint::Web(to)) => self.between_servers(from, to)?,
            (from, to) => {
                let why = format!("cannot copy {from} to {to}: one of them must be a web address");
                return Err(Error::new(ErrorKind::InvalidArgument, why));
            }
        };
        match (&task.from, source) {
            (DavCopyEndpoint::Local(path), Some(MoveSourceSnapshot::File(file))) => {
                self.postponed.remove(path, &file)?;
            }
            (_, Some(MoveSourceSnapshot::Web(found))) => self.remove_copied(&found)?,
            _ => {}
        }
        Ok(copied)
    }

    /// Looks up the source of a move before it is copied. Errors: `InvalidArgument` for a collection without
    /// `--recursive`, because removing the collection would also remove its members, which are not copied.
    fn source_of_move(&self, from: &DavCopyEndpoint) -> Result<Option<MoveSourceSnapshot>> {
        Ok(match from {
            DavCopyEndpoint::Local(path) => Some(MoveSourceSnapshot::File(LocalSourceStamps::find(path)?)),
            DavCopyEndpoint::Web(url) => {
                let found = self.dav.stat(url)?;
                if found.is_collection && !self.order.recursive {
                    return Err(not_recursive(url));
                }
                Some(MoveSourceSnapshot::Web(found))
            }
            DavCopyEndpoint::Stdin => None,
        })
    }

    /// Removes the source of a move if it still has the version from before the copy. Looks up the source again,
    /// because some servers ignore the conditions of requests. Errors: `ConditionalConflict` if the source has another
    /// version.
    fn remove_copied(&self, before: &DavResource) -> Result<()> {
        let is_unchanged = match self.dav.stat(&before.url) {
            Ok(now) => before.is_same_version(&now),
            // Another program has removed the source, so nothing remains to be done.
            Err(error) if error.kind() == ErrorKind::NoSuchKey => return Ok(()),
            Err(error) => return Err(error),
        };
        let name = without_query(&before.url);
        if !is_unchanged {
            return Err(changed(name));
        }
        match self.dav.remove_version(before) {
            Err(error) if error.kind() == ErrorKind::PreconditionFailed => Err(changed(name)),
            removed => removed,
        }
    }

    fn exists(&self, place: &DavCopyEndpoint) -> Result<bool> {
        match place {
            DavCopyEndpoint::Web(url) => match self.dav.stat(url) {
                Ok(_) => Ok(true),
                Err(error) if error.kind() == ErrorKind::NoSuchKey => Ok(false),
                Err(error) => Err(error),
            },
            DavCopyEndpoint::Local(path) => Ok(path.symlink_metadata().is_ok()),
            DavCopyEndpoint::Stdin => Ok(false),
        }
    }

    /// Creates a directory or collection, unless it exists.
    fn make_directory(&self, place: &DavCopyEndpoint) -> Result<DavCopyOutcome> {
        if !self.order.transfer.dry_run {
            match place {
                DavCopyEndpoint::Web(url) => self.make_parent(&collection_url(url))?,
                DavCopyEndpoint::Local(path) => std::fs::create_dir_all(path)
                    .map_err(|error| file_error("writing", path.display(), error))?,
                DavCopyEndpoint::Stdin => {}
            }
        }
        Ok(DavCopyOutcome::Unmentioned)
    }

    /// Creates a collection once. Other copies that need the collection wait until it exists.
    fn make_parent(&self, parent: &str) -> Result<()> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if !made.contains(parent) {
            let failed = self.dav.make_collections(parent).err();
            // Ignore the error if the collection exists: the user may lack the permission to create it.
            let is_there = || self.dav.stat(parent).is_ok_and(|found| found.is_collection);
            if let Some(error) = failed
                && !is_there()
            {
                return Err(error);
            }
            made.insert(parent.to_owned());
        }
        Ok(())
    }

    /// Adds transferred bytes to the progress display. Errors: `Interrupted` if the command must stop.
    fn advance(&self, bytes: u64) -> Result<()> {
        self.context.output.advance_bytes(bytes);
        self.context.interrupt.check()
    }

    fn only_new(&self) -> bool {
        self.order.existing != OverwritePolicy::Replace
    }

    fn upload(&self, path: &Path, url: &str, size_bytes: Option<u64>) -> Result<DavCopyOutcome> {
        let failed = |error| file_error("reading", path.display(), error);
        // The file is opened before the request, because some servers empty the destination when a PUT begins.
        let mut file = File::open(path).map_err(failed)?;
        let name = path.display().to_string();
        let mut is_repeated = false;
        let kind = content_type(path, self.order);
        let upload =
            DavUploadOptions { size_bytes, content_type: kind.as_deref(), only_new: self.only_new() };
        self.context.output.expect_bytes(size_bytes.unwrap_or(0));
        let mut buffer = vec![0; CHUNK_BYTES];
        self.dav.put(url, &upload, &mut |sink| {
            if std::mem::replace(&mut is_repeated, true) {
                file.rewind().map_err(failed)?;
            }
            let before = file.metadata().map_err(failed)?;
            loop {
                let got = file.read(&mut buffer).map_err(failed)?;
                if got == 0 {
                    return check_unchanged(&name, &before, &file);
                }
                sink(&buffer[..got])?;
                self.advance(got as u64)?;
            }
        })?;
        Ok(DavCopyOutcome::Done { operation: "upload", size_bytes, by: None })
    }

    fn upload_stream(&self, url: &str) -> Result<DavCopyOutcome> {
        let upload = DavUploadOptions { size_bytes: None, content_type: None, only_new: self.only_new() };
        let (mut buffer, mut bytes) = (vec![0; CHUNK_BYTES], 0);
        self.dav.put(url, &upload, &mut |sink| {
            // If the HTTP client repeats the request, this call fails, because standard input cannot be read again.
            let mut input = self.context.take_input()?;
            bytes = 0;
            loop {
                let got = input
                    .read(&mut buffer)
                    .map_err(|error| file_error("reading", "standard input", error))?;
                if got == 0 {
                    return Ok(());
                }
                bytes += got as u64;
                sink(&buffer[..got])?;
                self.advance(got as u64)?;
            }
        })?;
        Ok(DavCopyOutcome::Done { operation: "upload", size_bytes: Some(bytes), by: None })
    }

    /// Requests that the server copy or move a resource. If the server does not support the operation, this program
    /// copies the content itself.
    fn within_server(&self, from: &str, to: &str) -> Result<DavCopyOutcome> {
        let source = self.dav.stat(from)?;
        if source.is_collection && !self.order.recursive {
            return Err(not_recursive(from));
        }
        let operation = if self.order.moves { "move" } else { "copy" };
        if self.is_copied_already(&source, to)? {
            return Ok(DavCopyOutcome::Done { operation, size_bytes: source.size_bytes, by: None });
        }
        let act = |replaces| match self.order.moves {
            true => self.dav.rename_version(&source, to, replaces),
            false => self.dav.copy(from, to, replaces),
        };
        // The first attempt does not replace anything. If the destination exists, `may_replace` checks that it is not a
        // collection, because replacing a collection would remove all its members. The status 412 can also mean that
        // the source of a move has changed, so `check_moved` looks up the source.
        let done = match act(false) {
            Err(error) if error.kind() == ErrorKind::PreconditionFailed => {
                self.check_moved(&source, to)?;
                if self.only_new() {
                    return Err(error);
                }
                self.may_replace(to)?;
                act(true)
            }
            done => done,
        };
        match done {
            Err(error) if error.kind() == ErrorKind::PreconditionFailed => {
                self.check_moved(&source, to)?;
                return Err(error);
            }
            Ok(()) => {
                return Ok(DavCopyOutcome::Done {
                    operation,
                    size_bytes: source.size_bytes,
                    by: Some("by the server"),
                });
            }
            // A collection has no content that could be copied.
            Err(error) if source.is_collection || !is_unknown(&error) => return Err(error),
            Err(error) => self.note(&error),
        }
        let copied = self.stream(from, to)?;
        // The source is removed last, so that a failure of the copy loses no content.
        if self.order.moves {
            self.remove_copied(&source)?;
        }
        Ok(copied)
    }

    /// Determines why a server refused a move. Returns `Ok` if the destination exists. Errors: `ConditionalConflict` if
    /// the source has changed.
    fn check_moved(&self, source: &DavResource, to: &str) -> Result<()> {
        if !self.order.moves || self.exists(&DavCopyEndpoint::Web(to.to_owned()))? {
            return Ok(());
        }
        let why = format!("{} was changed meanwhile, so it was not moved", without_query(&source.url));
        Err(Error::new(ErrorKind::ConditionalConflict, why))
    }

    /// Checks that the destination is not a collection, because servers replace a whole collection with the resource
    /// that is copied to its address (RFC 4918 section 9.8.4). Errors: `InvalidArgument` if it is a collection.
    fn may_replace(&self, to: &str) -> Result<()> {
        match self.dav.stat(to)?.is_collection {
            true => {
                let to = without_query(to);
                let why = format!(
                    "{to} is a collection, which the copy would replace; to copy into it, end its address \
                     with /"
                );
                Err(Error::new(ErrorKind::InvalidArgument, why))
            }
            false => Ok(()),
        }
    }

    fn between_servers(&self, from: &str, to: &str) -> Result<DavCopyOutcome> {
        // Ignore an error, because a server without PROPFIND can still be the source of a copy.
        if let Ok(source) = self.dav.stat(from)
            && self.is_copied_already(&source, to)?
        {
            let size_bytes = source.size_bytes;
            return Ok(DavCopyOutcome::Done { operation: "copy", size_bytes, by: None });
        }
        let (direction, by) = match self.order.third_party {
            ThirdPartyCopyArg::Pull => (CopyDirection::Pull, "third-party copy, pulled"),
            ThirdPartyCopyArg::Push => (CopyDirection::Push, "third-party copy, pushed"),
            ThirdPartyCopyArg::Never => return self.stream(from, to),
        };
        let copy = ThirdPartyCopy { from, to, direction, replaces: !self.only_new(), silence: SILENCE };
        let (mut shown, mut is_expected) = (0, false);
        let copied = self.dav.third_party_copy(&copy, &mut |bytes, size_bytes| {
            if !std::mem::replace(&mut is_expected, true) {
                self.context.output.expect_bytes(size_bytes.unwrap_or(0));
            }
            let more = bytes.saturating_sub(shown);
            shown = shown.max(bytes);
            self.advance(more)
        });
        match copied {
            Ok(size_bytes) => Ok(DavCopyOutcome::Done { operation: "copy", size_bytes, by: Some(by) }),
            Err(error) if error.kind() == ErrorKind::NotImplemented => {
                self.note(&error);
                self.stream(from, to)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns whether `to` already is a copy of the file `source`. `to` may then be another address of the same file,
    /// which a copy would destroy: a server may have several names, and may accept several spellings of a path. Errors:
    /// `InvalidArgument` for a move, which would remove this file; errors of reading the two files. Cost: one PROPFIND.
    /// If size, time and ETag of the two files are equal, both files are also read, because some servers derive the
    /// ETag from size and time.
    fn is_copied_already(&self, source: &DavResource, to: &str) -> Result<bool> {
        let is_known = source.etag.is_some() || source.modified.is_some();
        let is_similar = |there: DavResource| is_known && source.is_same_version(&there);
        if !self.dav.stat(to).is_ok_and(is_similar) {
            return Ok(false);
        }
        let is_equal = source.is_collection || self.digest(&source.url)? == self.digest(to)?;
        if is_equal && self.order.moves {
            let (from, to) = (without_query(&source.url), without_query(to));
            let why = format!(
                "{from} and {to} seem to be the same file, because their contents, sizes, times and ETags are equal; \
                 remove one of them if they are not"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        Ok(is_equal)
    }

    /// Returns a digest of the content of a file on a server. Cost: the requests of opening the file, and one GET.
    fn digest(&self, url: &str) -> Result<FileHash> {
        let file = RemoteFile::open(self.dav.session(), url)?;
        let mut running = FileHasher::new(FileHashAlgorithm::Sha256);
        file.copy_range(0..file.size_bytes(), &mut |chunk| {
            running.update(chunk);
            self.context.interrupt.check()
        })?;
        Ok(running.finish())
    }

    /// Prints a note with the reason why this program, and not the server, copies the content.
    fn note(&self, error: &Error) {
        self.context.output.note(&format!("{error}; copying through this machine"));
    }

    /// Reads a file from one server and writes it to the other server.
    fn stream(&self, from: &str, to: &str) -> Result<DavCopyOutcome> {
        let file = RemoteFile::open(self.dav.session(), from)?;
        // Read the start of the file first, because some servers empty the destination when a PUT begins.
        let mut start = vec![0; CHUNK_BYTES.min(usize::try_from(file.size_bytes()).unwrap_or(CHUNK_BYTES))];
        let got = file.read_at(0, &mut start)?;
        start.truncate(got);
        let size_bytes = Some(file.size_bytes());
        self.context.output.expect_bytes(file.size_bytes());
        let upload = DavUploadOptions { size_bytes, content_type: None, only_new: self.only_new() };
        self.dav.put(to, &upload, &mut |sink| {
            let mut pass = |chunk: &[u8]| {
                sink(chunk)?;
                self.advance(chunk.len() as u64)
            };
            pass(&start)?;
            file.copy_range(start.len() as u64..file.size_bytes(), &mut pass)
        })?;
        Ok(DavCopyOutcome::Done { operation: "copy", size_bytes, by: Some("through this machine") })
    }
}

fn not_recursive(url: &str) -> Error {
    let why = format!("{} is a collection; add --recursive to select its members", without_query(url));
    Error::new(ErrorKind::InvalidArgument, why)
}

/// Forces a downloaded file to stable storage, with its name and the names of the directories `made` for it, because
/// its source is removed next.
fn sync_only_copy(path: &Path, made: &[PathBuf]) -> std::io::Result<()> {
    finish_file(&File::open(path)?, SourceFate::Removed)?;
    sync_names(directory_of(path))?;
    made.iter().try_for_each(|made| sync_names(directory_of(made)))
}

/// Returns whether a server does not support the request.
fn is_unknown(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::MethodNotAllowed | ErrorKind::InvalidArgument | ErrorKind::NotImplemented
    )
}
