//! Downloads files that have replicas.

pub(crate) use fordway_command::replicas::{ReplicaOpener, named};

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::hash::{DefaultHasher, Hash};
use std::path::Path;

use fordway_command::{CommandContext, CommandExit, IncompleteFileKind, file_error};
use fordway_http::replicas::ReplicatedFile;
use fordway_store::{Error, ErrorKind, Result};

use super::web::{PartialDownloadFile, ReceivedPrefix};
use crate::args::ReplicaArgs;
use crate::transfer::{OverwritePolicy, sync_content};
use crate::wildcard::FilterRules;
use crate::{commands, web};

/// Checks that no option for replicas was given to a command that reads no files from web servers. Errors:
/// `InvalidArgument`.
pub(crate) fn check_unused(args: &ReplicaArgs) -> Result<()> {
    let options = [
        ("--metalink", args.metalink.is_some()),
        ("--streams", args.streams.is_some()),
        ("--location", !args.location.is_empty()),
    ];
    match options.into_iter().find(|(_, is_given)| *is_given) {
        Some((name, _)) => {
            let why = format!("{name} only applies to downloads from web servers");
            Err(Error::new(ErrorKind::InvalidArgument, why))
        }
        None => Ok(()),
    }
}

/// Copies the files of the Metalink or list of URLs at `source`, except files that the filters exclude. Reports
/// failures and continues with the other files.
pub(crate) fn copy_all(
    source: &str,
    (destination, existing): (&str, OverwritePolicy),
    filters: &FilterRules,
    places: &ReplicaOpener<'_>,
    context: &CommandContext,
) -> Result<CommandExit> {
    let metalink = places.read(source, context)?;
    let is_directory = destination.ends_with('/') || Path::new(destination).is_dir();
    if metalink.files.len() != 1 && !is_directory {
        let count = metalink.files.len();
        let why = format!("{source} describes {count} files; specify a directory, such as {destination}/");
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let mut taken = HashSet::new();
    commands::for_each(context, &metalink.files, |described| {
        let first = described.replicas.first().map_or("", |replica| replica.url.as_str());
        let name = if described.name.is_empty() { web::name_of(first) } else { described.name.clone() };
        if !filters.admit(&name) {
            return Ok(CommandExit::Ok);
        }
        let path = web::regular_target(&web::place(&name, source, destination)?)?;
        if !taken.insert(path.clone()) {
            let why = format!("{source} describes two files that would be copied to {}", path.display());
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        if web::is_wanted(&path, existing)? {
            context.output.start_progress();
            let opened = places.replicated(described, named(&[source]), context);
            let copied = opened.and_then(|file| copy(file, source, &path, existing, context));
            context.output.end_progress();
            copied?;
        }
        Ok(CommandExit::Ok)
    })
}

/// Copies a file to `path`, through a part file next to it.
pub(crate) fn copy(
    mut file: ReplicatedFile,
    from: &str,
    path: &Path,
    existing: OverwritePolicy,
    context: &CommandContext,
) -> Result<()> {
    file.ask_for_digest();
    let (hasher, leftover) = identity(&file);
    let part = PartialDownloadFile::open(path, (&hasher, leftover), context)?;
    copy_into(&file, (part, None), (from, path), existing, context)
}

/// Returns a hash that distinguishes this file's partial download from the partial downloads of other files, and
/// whether the partial download can be resumed. Without digests, a download cannot be resumed, because its content
/// cannot be verified.
pub(crate) fn identity(file: &ReplicatedFile) -> (DefaultHasher, IncompleteFileKind) {
    let mut hasher = DefaultHasher::new();
    file.identity().hash(&mut hasher);
    (hasher, file.digest_name().map_or(IncompleteFileKind::Useless, |_| IncompleteFileKind::Resumable))
}

/// Like [`copy`], with a part file that is already open. The copy must begin with the bytes `received` before, if any.
pub(crate) fn copy_into(
    file: &ReplicatedFile,
    (part, received): (PartialDownloadFile<'_>, Option<ReceivedPrefix>),
    (from, path): (&str, &Path),
    existing: OverwritePolicy,
    context: &CommandContext,
) -> Result<()> {
    let bytes = file.size_bytes();
    context.output.expect_bytes(bytes);
    let mut there_bytes = 0;
    let completed = complete(file, part.path(), &mut |bytes| {
        there_bytes += bytes;
        context.output.advance_bytes(bytes);
        context.interrupt.check()
    });
    let verified = file.digest_name();
    let resumed_bytes = match completed {
        Ok(resumed_bytes) => resumed_bytes,
        Err(error) => {
            part.failed(&error, there_bytes);
            return Err(error);
        }
    };
    received.map_or(Ok(()), |received| received.check(part.path()))?;
    part.publish(path, existing)?;
    let to = path.display().to_string();
    context.output.completed(&web::WebCopyOutput {
        action: "download",
        from,
        to,
        bytes,
        resumed_bytes,
        verified,
    })
}

/// Completes the part file at `part` with the content of `file`; returns the number of bytes that the part file already
/// contained.
fn complete(file: &ReplicatedFile, part: &Path, progress: &mut dyn FnMut(u64) -> Result<()>) -> Result<u64> {
    let failed = |error| file_error("writing", part.display(), error);
    let part = OpenOptions::new().read(true).write(true).open(part).map_err(failed)?;
    let resumed_bytes = file.complete(&part, progress)?;
    // Some file systems report a delayed error only to the descriptor that was used for the write.
    sync_content(&part).map_err(failed)?;
    Ok(resumed_bytes)
}
