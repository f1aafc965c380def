//! Files on web servers, for the commands that accept an `http(s)://` or `dav(s)://` address. A download is written to
//! a hidden part file. A failed download removes its part file, unless the next download can resume from it. If the
//! part file is kept, a message names it.

pub(crate) use fordway_command::web::{http_url, is_address};

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use fordway_command::replicas::{OpenedRemoteFile, ReplicaOpener};
use fordway_command::units::human_bytes;
use fordway_command::{
    CommandContext, IncompleteFileKind, TemporaryFile, check_not_private, file_error, shown_name,
};
use fordway_http::vector::{RemoteFile, copy_unsized, is_without_size};
use fordway_store::{ByteRange, Error, ErrorKind, Result};
use fordway_wire::file_hash::{FileHash, FileHashAlgorithm, FileHasher};
use fordway_wire::uri;
use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::Serialize;

use crate::args::TransferArgs;
use crate::replicas;
use crate::transfer::{
    FileAccessRights, MadeDirectories, NEW_FILE_MODE, OverwritePolicy, PRIVATE_MODE, SourceFate, finish_file,
    is_open_file, parent, rename_to_new,
};

fn open(url: &str, context: &CommandContext) -> Result<RemoteFile> {
    RemoteFile::open(context.web()?, &http_url(url))
}

/// Checks that a file exists. Errors: the errors of opening the file.
pub(crate) fn check_exists(url: &str, context: &CommandContext) -> Result<()> {
    match open(url, context) {
        Err(error) if !is_without_size(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Checks that no option of a copy from or to a web server would be without effect. Errors: `InvalidArgument`.
pub(crate) fn check_transfer(args: &TransferArgs) -> Result<()> {
    match args.checksum_algorithm {
        Some(_) => {
            let why = "--checksum-algorithm only applies to objects, not to files on web servers";
            Err(Error::new(ErrorKind::InvalidArgument, why))
        }
        None => Ok(()),
    }
}

/// Writes a file, or a range of it, to standard output. With `--metalink`, `url` may be empty.
pub(crate) fn write_out(
    url: &str,
    range: Option<ByteRange>,
    places: &ReplicaOpener<'_>,
    context: &CommandContext,
) -> Result<()> {
    let mut file = match places.open(url, context) {
        Err(error) if is_without_size(&error) && range.is_none() => {
            copy_unsized(context.web()?, &http_url(url), places.verify, &mut |bytes| {
                context.interrupt.check()?;
                context.output.data(bytes)
            })?;
            return context.output.flush();
        }
        opened => opened?,
    };
    if let (OpenedRemoteFile::Many(file), None) = (&mut file, &range) {
        file.ask_for_digest();
    }
    let size = file.size_bytes();
    let range = range.map_or(Ok(0..size), |range| range.resolve(size))?;
    file.copy_range(range, (url, places, context), &mut |bytes| {
        context.interrupt.check()?;
        context.output.data(bytes)
    })?;
    context.output.flush()
}

/// The output of `stat` for a file on a web server.
#[derive(Serialize)]
struct WebStatOutput<'r> {
    url: &'r str,
    size_bytes: u64,
    etag: Option<&'r str>,
    last_modified: Option<&'r str>,
}

impl fmt::Display for WebStatOutput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "      File: {}", shown_name(self.url))?;
        write!(f, "      Size: {} ({} bytes)", human_bytes(self.size_bytes), self.size_bytes)?;
        if let Some(time) = self.last_modified {
            write!(f, "\n  Modified: {time}")?;
        }
        if let Some(etag) = self.etag {
            write!(f, "\n      ETag: {etag}")?;
        }
        Ok(())
    }
}

/// Shows the metadata that the server provides for a file.
pub(crate) fn stat(url: &str, context: &CommandContext) -> Result<()> {
    let file = open(url, context)?;
    let version = file.version();
    let (etag, last_modified) = (version.etag.as_deref(), version.last_modified.as_deref());
    context.output.record(&WebStatOutput { url, size_bytes: version.size_bytes, etag, last_modified })
}

/// The output of `cp` for a file on a web server.
#[derive(Serialize)]
pub(crate) struct WebCopyOutput<'r> {
    pub(crate) action: &'static str,
    pub(crate) from: &'r str,
    pub(crate) to: String,
    pub(crate) bytes: u64,
    /// The number of bytes that an interrupted copy had already transferred.
    pub(crate) resumed_bytes: u64,
    /// The kind of digest that verified the file. The server or a Metalink provided the digest.
    pub(crate) verified: Option<&'static str>,
}

impl fmt::Display for WebCopyOutput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "download: {} to {}", shown_name(self.from), shown_name(&self.to))
    }
}

/// Copies a file to `destination`, or into `destination` if it is a directory. Writes a part file next to the target
/// and renames it at the end. Resumes an interrupted copy of the same version from its part file. If a copy does not
/// match the digest from the server, copies once more from the start.
pub(crate) fn download(
    url: &str,
    destination: &str,
    existing: OverwritePolicy,
    places: &ReplicaOpener<'_>,
    context: &CommandContext,
) -> Result<()> {
    let path = place(&name_of(url), url, destination)?;
    context.output.start_progress();
    let fetched = download_to(url, &path, existing, places, context);
    context.output.end_progress();
    fetched
}

/// Downloads the file at `url` to `path`. Creates the parent directory if it is missing. The caller shows and removes
/// the progress bar.
fn download_to(
    url: &str,
    path: &Path,
    existing: OverwritePolicy,
    places: &ReplicaOpener<'_>,
    context: &CommandContext,
) -> Result<()> {
    download_to_target(url, &regular_target(path)?, existing, places, context)
}

/// Like [`download_to`], for a path that [`regular_target`] has returned.
pub(crate) fn download_to_target(
    url: &str,
    path: &Path,
    existing: OverwritePolicy,
    places: &ReplicaOpener<'_>,
    context: &CommandContext,
) -> Result<()> {
    if !is_wanted(path, existing)? {
        return Ok(());
    }
    let file = match places.open(url, context) {
        Ok(OpenedRemoteFile::One(file)) => file,
        Err(error) if is_without_size(&error) => {
            return download_unsized((url, places.verify), path, existing, context);
        }
        Err(error) => return Err(error),
        Ok(OpenedRemoteFile::Many(file)) => return replicas::copy(file, url, path, existing, context),
    };
    let mut hasher = DefaultHasher::new();
    (url, &file.version().etag, file.size_bytes()).hash(&mut hasher);
    let leftover = if is_marked(&file) { IncompleteFileKind::Resumable } else { IncompleteFileKind::Useless };
    let part = PartialDownloadFile::open(path, (&hasher, leftover), context)?;
    match copy_one(&file, &part, places.verify, context) {
        Ok((resumed_bytes, verified)) => {
            part.publish(path, existing)?;
            let (to, bytes) = (path.display().to_string(), file.size_bytes());
            context.output.completed(&WebCopyOutput {
                action: "download",
                from: url,
                to,
                bytes,
                resumed_bytes,
                verified,
            })
        }
        Err(error) => {
            let received = ReceivedPrefix::of(part.path(), &error)?;
            let error = match places.instead((url, Some(file.size_bytes())), error, context) {
                // The copy from the replicas keeps the bytes received so far, if digests can verify them.
                Ok(file) => {
                    let (hasher, leftover) = replicas::identity(&file);
                    let part = part.given_to(path, (&hasher, leftover))?;
                    return replicas::copy_into(&file, (part, received), (url, path), existing, context);
                }
                Err(error) => error,
            };
            let bytes = part.file().metadata().map_or(0, |about| about.len());
            // A complete part file cannot be resumed, so pass 0, which removes the part file.
            part.failed(&error, if bytes < file.size_bytes() { bytes } else { 0 });
            Err(error)
        }
    }
}

/// The bytes that a server has sent before its connection broke. A copy from the replicas of the file must begin with
/// the same bytes: if it does not, the replicas are of another version.
pub(crate) struct ReceivedPrefix {
    bytes: u64,
    digest: FileHash,
}

impl ReceivedPrefix {
    /// Reads the prefix from a part file. Returns `None` if the failure means that the received bytes are wrong.
    fn of(part: &Path, failure: &Error) -> Result<Option<Self>> {
        use ErrorKind as K;
        if matches!(failure.kind(), K::BadDigest | K::BadResponse | K::PreconditionFailed) {
            return Ok(None);
        }
        let bytes = part.metadata().map_or(0, |about| about.len());
        Ok(Some(ReceivedPrefix { bytes, digest: digest_of_start(part, bytes)? }))
    }

    /// Checks that a complete copy begins with the prefix. Errors: `BadDigest`.
    pub(crate) fn check(&self, copy: &Path) -> Result<()> {
        if digest_of_start(copy, self.bytes)? == self.digest {
            return Ok(());
        }
        let detail = "the connection broke, and the replicas differ from the bytes that the server had sent; their \
                      Metalink may describe an older version of the file";
        Err(Error::new(ErrorKind::BadDigest, detail))
    }
}

/// Returns a digest of the first `bytes` bytes of a file.
fn digest_of_start(path: &Path, bytes: u64) -> Result<FileHash> {
    let failed = |error| file_error("reading", path.display(), error);
    let mut start = File::open(path).map_err(failed)?.take(bytes);
    let (mut running, mut buffer) = (FileHasher::new(FileHashAlgorithm::Sha256), vec![0; 256 * 1024]);
    loop {
        match start.read(&mut buffer).map_err(failed)? {
            0 => return Ok(running.finish()),
            got => running.update(&buffer[..got]),
        }
    }
}

/// Copies a file whose size the server does not report, and verifies it if `verify` is set.
fn download_unsized(
    (url, verify): (&str, bool),
    path: &Path,
    existing: OverwritePolicy,
    context: &CommandContext,
) -> Result<()> {
    let mut hasher = DefaultHasher::new();
    url.hash(&mut hasher);
    let part = PartialDownloadFile::open(path, (&hasher, IncompleteFileKind::Useless), context)?;
    let failed = |error| file_error("writing", part.path().display(), error);
    part.file().set_len(0).map_err(failed)?;
    let mut bytes = 0;
    let verified = copy_unsized(context.web()?, &http_url(url), verify, &mut |chunk| {
        context.interrupt.check()?;
        bytes += chunk.len() as u64;
        part.file().write_all(chunk).map_err(failed)
    })?;
    part.publish(path, existing)?;
    let to = path.display().to_string();
    context.output.completed(&WebCopyOutput {
        action: "download",
        from: url,
        to,
        bytes,
        resumed_bytes: 0,
        verified,
    })
}

/// Completes the part file. Returns the number of bytes that were kept from an earlier download, and the kind of digest
/// that verified the file.
fn copy_one(
    file: &RemoteFile,
    part: &PartialDownloadFile<'_>,
    verify: bool,
    context: &CommandContext,
) -> Result<(u64, Option<&'static str>)> {
    let failed = |error| file_error("writing", part.path().display(), error);
    let resumed_bytes = resumable_bytes(part.file(), file).map_err(failed)?;
    context.output.expect_bytes(file.size_bytes() - resumed_bytes);
    match fetch(file, part, (resumed_bytes, verify), context) {
        Err(error) if error.kind() == ErrorKind::BadDigest => {
            tracing::warn!(%error, "copying again from the start");
            context.output.expect_bytes(file.size_bytes());
            Ok((resumed_bytes, fetch(file, part, (0, verify), context)?))
        }
        fetched => Ok((resumed_bytes, fetched?)),
    }
}

/// Returns whether to copy to `path`, given the policy for existing files. Errors: `PreconditionFailed` if an existing
/// file must not be replaced.
pub(crate) fn is_wanted(path: &Path, existing: OverwritePolicy) -> Result<bool> {
    match existing {
        OverwritePolicy::Skip if path.exists() => Ok(false),
        OverwritePolicy::Fail if path.exists() => Err(there_already(path)),
        _ => Ok(true),
    }
}

/// Truncates the part to `start` bytes, and appends the rest of the file. With `verify`, checks the whole file against
/// the server's digest, if any.
fn fetch(
    file: &RemoteFile,
    part: &PartialDownloadFile<'_>,
    (start, verify): (u64, bool),
    context: &CommandContext,
) -> Result<Option<&'static str>> {
    let (path, mut part) = (part.path(), part.file());
    let failed = |error| file_error("writing", path.display(), error);
    part.set_len(start).map_err(failed)?;
    let received = || {
        let again = File::open(path).map_err(|error| file_error("reading", path.display(), error))?;
        Ok(Box::new(again) as Box<dyn Read>)
    };
    let mut append = |chunk: &[u8]| {
        context.interrupt.check()?;
        context.output.advance_bytes(chunk.len() as u64);
        part.write_all(chunk).map_err(failed)
    };
    match verify {
        true => file.copy_verified(start, &received, &mut append),
        false => file.copy_range(start..file.size_bytes(), &mut append).map(|()| None),
    }
}

/// Returns how many bytes of a part belong to the opened version. The hash in the part's name identifies the version if
/// the version has a strong ETag.
fn resumable_bytes(part: &File, file: &RemoteFile) -> std::io::Result<u64> {
    let there = part.metadata()?.len();
    Ok(if is_marked(file) && there <= file.size_bytes() { there } else { 0 })
}

/// Returns whether the file's version has a strong ETag, which is unique to that version.
fn is_marked(file: &RemoteFile) -> bool {
    file.version().etag.as_deref().is_some_and(|etag| etag.starts_with('"'))
}

/// Returns the local name for a file at `url`, percent-decoded if the result is a valid file name. For the URL of a
/// Metalink, omits the suffix `.meta4` or `.metalink`.
pub(crate) fn name_of(url: &str) -> String {
    let address = url.split(['?', '#']).next().unwrap_or_default();
    let (_, rest) = address.split_once("://").unwrap_or_default();
    let name = rest.split_once('/').and_then(|(_, path)| path.rsplit('/').next()).unwrap_or_default();
    let decoded = uri::decode_segment(name).filter(|decoded| !decoded.contains(['/', '\0']));
    let name = decoded.unwrap_or_else(|| name.to_owned());
    let endings = [".meta4", ".metalink"];
    endings.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(&name).to_owned()
}

/// Returns the path that the file is copied to. Errors: `InvalidArgument`.
pub(crate) fn place(name: &str, url: &str, destination: &str) -> Result<PathBuf> {
    let refused = |why: String| Err(Error::new(ErrorKind::InvalidArgument, why));
    let url = uri::without_secrets(url);
    if destination.contains("://") {
        return refused(format!("{url} cannot be copied to {destination}; copy it to a file first"));
    }
    let path = Path::new(destination);
    if !destination.ends_with('/') && !path.is_dir() {
        return regular_target(path);
    }
    match name {
        "" | "." | ".." => {
            refused(format!("{url} does not end in a name; specify the name of the destination file"))
        }
        name => {
            check_not_private(path, name)?;
            Ok(path.join(name))
        }
    }
}

/// Resolves symbolic links to a regular file, so that the copy replaces the file and not the link. Errors:
/// `InvalidArgument` for a file of any other type, and for a file that a process has open (such as `/dev/stdout`),
/// because a rename would replace the file.
pub(crate) fn regular_target(path: &Path) -> Result<PathBuf> {
    match path.metadata() {
        Ok(about) if !about.is_file() || is_open_file(path) => {
            let why = format!("{} is not a file; write to - instead", path.display());
            Err(Error::new(ErrorKind::InvalidArgument, why))
        }
        Ok(_) => path.canonicalize().map_err(|error| file_error("reading", path.display(), error)),
        Err(_) => Ok(path.to_owned()),
    }
}

/// The maximum time to wait for the lock of a part file.
const LOCK_WITHIN: Duration = Duration::from_millis(300);
const LOCK_POLL: Duration = Duration::from_millis(10);

/// A part file that only this process writes.
pub(crate) struct PartialDownloadFile<'c> {
    path: PathBuf,
    file: File,
    leftover: IncompleteFileKind,
    /// Whether the part file has a random name instead of a lock.
    has_random_name: bool,
    context: &'c CommandContext,
    made: MadeDirectories,
    /// Whether the part has been published, or is kept for the next download.
    is_settled: bool,
    /// Removes the part if a signal ends the process.
    _temporary: TemporaryFile,
}

impl<'c> PartialDownloadFile<'c> {
    /// Opens the part file for a copy to `path`, identified by `hasher`, and keeps its content. If `path` exists, the
    /// part file gets the access rights of the file at `path`. Until the returned value is dropped, no other copy
    /// writes, renames or removes the part file. On a file system without locks, creates a part file with a random name
    /// instead, from which no later copy can resume. Errors: `Unavailable` while another process writes the part file;
    /// `AccessDenied` if the part file does not belong to this user.
    pub(crate) fn open(
        path: &Path,
        (hasher, leftover): (&DefaultHasher, IncompleteFileKind),
        context: &'c CommandContext,
    ) -> Result<Self> {
        let rights = FileAccessRights::find(path);
        let made = MadeDirectories::default();
        let mode = if rights.is_some() { PRIVATE_MODE } else { NEW_FILE_MODE };
        let part = beside(path, hasher);
        let locked = open_locked(&part, mode, &made)?;
        let has_random_name = locked.is_none();
        let (file, path, leftover) = match locked {
            Some(file) => (file, part, leftover),
            None => {
                let (file, part) = create_unlocked(path, mode, &made)?;
                (file, part, IncompleteFileKind::Useless)
            }
        };
        let failed = |error| file_error("writing", path.display(), error);
        // The next download must be able to open the part, regardless of the target's rights.
        rights.map_or(Ok(()), |rights| rights.give_to(&file, PRIVATE_MODE)).map_err(failed)?;
        let _temporary = context.interrupt.temporary(&path, leftover);
        Ok(PartialDownloadFile {
            path,
            file,
            leftover,
            has_random_name,
            context,
            made,
            is_settled: false,
            _temporary,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file to append to.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Renames this part file to the part file of another copy with the same content, without releasing the lock. If
    /// the other copy already has a part file, opens that part file instead.
    pub(crate) fn given_to(
        mut self,
        path: &Path,
        identity: (&DefaultHasher, IncompleteFileKind),
    ) -> Result<Self> {
        let other = beside(path, identity.0);
        // On a file system without locks, the part file keeps its random name.
        if self.has_random_name {
            return Ok(self);
        }
        if rename_to_new(&self.path, &other).map_err(|error| file_error("writing", other.display(), error))? {
            self._temporary = self.context.interrupt.temporary(&other, identity.1);
            (self.path, self.leftover) = (other, identity.1);
            return Ok(self);
        }
        let (context, made) = (self.context, std::mem::take(&mut self.made));
        drop(self);
        let mut opened = PartialDownloadFile::open(path, identity, context)?;
        opened.made = made;
        Ok(opened)
    }

    /// Ends a failed download whose part file contains `bytes` bytes. If a repetition of the command would resume from
    /// these bytes, keeps the part file and prints a note. Otherwise, removes the part file.
    pub(crate) fn failed(mut self, error: &Error, bytes: u64) {
        use ErrorKind as K;
        // A download never resumes from wrong bytes, or from bytes of another version.
        let is_wrong = matches!(error.kind(), K::BadDigest | K::BadResponse | K::PreconditionFailed);
        if is_wrong || self.leftover == IncompleteFileKind::Useless || bytes == 0 {
            return;
        }
        self.is_settled = true;
        let kept = format!("{} are kept in {}", human_bytes(bytes), self.path.display());
        self.context.output.note(&format!("{kept}; run the same command again to resume"));
    }

    /// Checks that the part was written, renames it to `path`, and removes the part files of earlier copies to `path`.
    /// Errors: the errors of delayed writes; `PreconditionFailed` if an existing file must not be replaced;
    /// `ConditionalConflict` if the part file was removed or replaced, for example by the user.
    pub(crate) fn publish(mut self, path: &Path, existing: OverwritePolicy) -> Result<()> {
        let failed = |error| file_error("writing", path.display(), error);
        if !is_at(&self.file, &self.path) {
            let why = format!("{} was removed or replaced during the copy", self.path.display());
            return Err(Error::new(ErrorKind::ConditionalConflict, why));
        }
        finish_file(&self.file, SourceFate::Kept).map_err(failed)?;
        if existing == OverwritePolicy::Replace {
            let rights = FileAccessRights::find(path);
            rights.map_or(Ok(()), |rights| rights.give_to(&self.file, 0)).map_err(failed)?;
            std::fs::rename(&self.path, path).map_err(failed)?;
            self.is_settled = true;
            remove_superseded(path, self.context);
            return Ok(());
        }
        if !rename_to_new(&self.path, path).map_err(failed)? {
            return Err(there_already(path));
        }
        self.is_settled = true;
        remove_superseded(path, self.context);
        Ok(())
    }
}

/// Removes the part files of earlier copies to `path`, which has just been published. No later copy could find these
/// files after the source has changed, because their names depend on the version. Keeps the part files of copies that
/// are in progress. Cost: each command reads a directory at most once.
fn remove_superseded(path: &Path, context: &CommandContext) {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return };
    // The part files of names with the same beginning cannot be told apart if the names were truncated.
    if name.len() > PART_NAME_BYTES_MAX {
        return;
    }
    let directory = parent(path);
    let mut known = context.part_files.lock().unwrap_or_else(PoisonError::into_inner);
    let names = known.entry(directory.to_owned()).or_insert_with(|| part_files(directory));
    let superseded: Vec<_> = names.extract_if(.., |found| is_part_of(found, name)).collect();
    drop(known);
    superseded.iter().for_each(|found| remove_unused(&directory.join(found)));
}

/// Returns the names in a directory that may be names of part files.
fn part_files(directory: &Path) -> Vec<String> {
    let names = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with('.') && name.ends_with(PART_NAME_END)).collect()
}

/// Returns whether `found` is the name of a part file for a copy to `name`, as in [`beside`].
fn is_part_of(found: &str, name: &str) -> bool {
    let hash = found.strip_prefix('.').and_then(|found| found.strip_prefix(name)?.strip_prefix('.'));
    let hash = hash.and_then(|hash| hash.strip_suffix(PART_NAME_END));
    hash.is_some_and(|hash| {
        hash.len() == 16 && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// Removes a part file that belongs to this user and that no copy writes.
fn remove_unused(path: &Path) {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let Ok(file) = OpenOptions::new().append(true).custom_flags(flags).open(path) else { return };
    if file.try_lock().is_ok() && is_at(&file, path) && check_own(&file, path).is_ok() {
        // Ignore the error: a part file that remains does no harm.
        let _removed = std::fs::remove_file(path);
    }
}

/// The number of attempts to open and lock a part file. Another attempt is needed if another copy has published or
/// removed the part file before this copy had the lock.
const OPEN_ATTEMPTS: usize = 10;

/// Opens the part file at `path` and locks it. Returns `None` if the file system has no locks. Errors:
/// `Unavailable` while another process writes the part file; `AccessDenied` if the part file does not belong to this
/// user.
fn open_locked(path: &Path, mode: u32, made: &MadeDirectories) -> Result<Option<File>> {
    // Any user who may write to the directory can predict the name, and could put a link or a FIFO there.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let open = || OpenOptions::new().append(true).create(true).mode(mode).custom_flags(flags).open(path);
    for _ in 0..OPEN_ATTEMPTS {
        let file = made.open_in(parent(path), open).map_err(|error| match path.is_symlink() {
            true => not_own(path),
            false => file_error("writing", path.display(), error),
        })?;
        match lock(&file) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(written_by_another(path)),
            Err(TryLockError::Error(error)) if has_no_locks(&error) => {
                check_own(&file, path)?;
                // Another node may have mounted the file system with locks, and may resume from the content.
                if file.metadata().is_ok_and(|about| about.len() == 0) && is_at(&file, path) {
                    // Ignore the error: an empty file that remains does no harm.
                    let _removed = std::fs::remove_file(path);
                }
                return Ok(None);
            }
            Err(TryLockError::Error(error)) => return Err(file_error("locking", path.display(), error)),
        }
        // The copy that had the lock may have published the file. The file is then complete, and no longer a part file.
        if is_at(&file, path) {
            check_own(&file, path)?;
            return Ok(Some(file));
        }
    }
    Err(written_by_another(path))
}

/// Returns whether an attempt to lock a file has failed because the file system has no locks, like a Lustre mount
/// without the `flock` option, or because the lock service of an NFS server does not respond.
fn has_no_locks(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOSYS | Errno::NOLCK | Errno::OPNOTSUPP))
}

/// Creates a part file for a copy to `path` with a random name, which no other copy uses.
fn create_unlocked(path: &Path, mode: u32, made: &MadeDirectories) -> Result<(File, PathBuf)> {
    let part = beside(path, &RandomState::new().build_hasher());
    let create = || OpenOptions::new().append(true).create_new(true).mode(mode).open(&part);
    let file = made.open_in(parent(&part), create);
    file.map(|file| (file, part.clone())).map_err(|error| file_error("writing", part.display(), error))
}

fn written_by_another(path: &Path) -> Error {
    let next = "wait until it has ended, and run the command again";
    Error::new(ErrorKind::Unavailable, format!("another copy is writing {}", path.display()))
        .with_advice(next)
}

/// Returns whether `path` is a name of this opened file.
fn is_at(file: &File, path: &Path) -> bool {
    let both = file.metadata().and_then(|about| Ok((about, path.symlink_metadata()?)));
    both.is_ok_and(|(about, named)| (about.dev(), about.ino()) == (named.dev(), named.ino()))
}

/// Checks that an existing part file belongs to this user and has no other name. Errors: `AccessDenied`.
fn check_own(file: &File, path: &Path) -> Result<()> {
    let about = file.metadata().map_err(|error| file_error("writing", path.display(), error))?;
    let is_own = about.is_file() && about.uid() == fordway_sys::user_id() && about.nlink() <= 1;
    if is_own { Ok(()) } else { Err(not_own(path)) }
}

fn not_own(path: &Path) -> Error {
    let why = format!("{} is a link, or a file of another user; remove it", path.display());
    Error::new(ErrorKind::AccessDenied, why)
}

/// Locks a part file, or returns the error of the last attempt. A lock may briefly outlive its process, while another
/// program that lists open files inspects the part file.
fn lock(file: &File) -> std::result::Result<(), TryLockError> {
    let since = Instant::now();
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if since.elapsed() < LOCK_WITHIN => std::thread::sleep(LOCK_POLL),
            locked => return locked,
        }
    }
}

impl Drop for PartialDownloadFile<'_> {
    fn drop(&mut self) {
        if self.is_settled {
            return;
        }
        if is_at(&self.file, &self.path) {
            // If the part cannot be removed, the next copy truncates it.
            let _removed = std::fs::remove_file(&self.path);
        }
        self.made.remove_empty(parent(&self.path));
    }
}

/// The maximum number of bytes of a file's name in the name of its part file. The part file's name has 23 more bytes,
/// and most file systems allow 255 bytes.
const PART_NAME_BYTES_MAX: usize = 255 - 23;
const PART_NAME_END: &str = ".part";

/// Returns the path of the part file for a copy to `path`.
fn beside(path: &Path, hasher: &DefaultHasher) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = &name[..name.floor_char_boundary(PART_NAME_BYTES_MAX)];
    parent(path).join(format!(".{name}.{:016x}{PART_NAME_END}", hasher.finish()))
}

pub(crate) fn there_already(path: &Path) -> Error {
    Error::new(ErrorKind::PreconditionFailed, format!("{} already exists", path.display()))
}

#[cfg(test)]
mod tests {
    use fordway_command::{CommandOutputStreams, InterruptFlag, OutputFormat};

    use super::*;

    fn context() -> CommandContext {
        let output = CommandOutputStreams::to(std::io::sink(), std::io::sink(), OutputFormat::Text, false);
        let no_lane = |_: Option<&str>| Err(ErrorKind::NotImplemented.into());
        CommandContext::new(no_lane, output, std::io::empty(), InterruptFlag::default())
    }

    /// Returns how often this process has the file at `path` open.
    fn opened(path: &Path) -> usize {
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
        descriptors
            .filter(|entry| std::fs::read_link(entry.as_ref().unwrap().path()).is_ok_and(|to| to == path))
            .count()
    }

    fn write(part: &PartialDownloadFile<'_>, content: &str) {
        part.file().set_len(0).unwrap();
        part.file().write_all(content.as_bytes()).unwrap();
    }

    /// While a copy waits for the lock of a part file, the copy that has the lock publishes the file. The other copy
    /// must then use a new part file, because the old one is now the complete copy.
    #[test]
    fn a_copy_does_not_write_to_a_file_that_another_copy_has_published() {
        let (dir, context) = (tempfile::tempdir().unwrap(), context());
        let path = dir.path().canonicalize().unwrap().join("file");
        let hasher = DefaultHasher::new();
        let open = || PartialDownloadFile::open(&path, (&hasher, IncompleteFileKind::Useless), &context);
        let read = || std::fs::read_to_string(&path).unwrap();
        for existing in [OverwritePolicy::Replace, OverwritePolicy::Fail] {
            // The second copy only waits 300 ms, so a slow machine may need several attempts.
            let second = std::iter::repeat_with(|| {
                let _ = std::fs::remove_file(&path);
                let first = open().unwrap();
                write(&first, "complete");
                let second = std::thread::scope(|scope| {
                    let second = scope.spawn(open);
                    while opened(&first.path) < 2 && !second.is_finished() {
                        std::thread::yield_now();
                    }
                    first.publish(&path, existing).unwrap();
                    second.join().unwrap()
                });
                second.ok()
            });
            let second = second.take(20).flatten().next().unwrap();
            write(&second, "half of the cont");
            assert_eq!(read(), "complete");
            let third = open().map(|_| ()).unwrap_err();
            assert_eq!(third.kind(), ErrorKind::Unavailable);
            write(&second, "complete again");
            second.publish(&path, OverwritePolicy::Replace).unwrap();
            assert_eq!(read(), "complete again");
            assert_eq!(dir.path().read_dir().unwrap().count(), 1);
        }
    }

    /// Another process has removed the part file, and another copy has started.
    #[test]
    fn a_part_file_that_was_replaced_is_not_published() {
        let (dir, context) = (tempfile::tempdir().unwrap(), context());
        let path = dir.path().join("file");
        let hasher = DefaultHasher::new();
        let open = || PartialDownloadFile::open(&path, (&hasher, IncompleteFileKind::Useless), &context);
        let first = open().unwrap();
        std::fs::remove_file(first.path()).unwrap();
        let second = open().unwrap();
        let refused = first.publish(&path, OverwritePolicy::Replace).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConditionalConflict);
        assert!(second.path().exists() && !path.exists());
    }
}
