//! Detects whether a local directory and a prefix share files. This process may have access to the files of a bucket's
//! objects: on the embedded lane, and if a gateway serves a directory of this machine or of a shared file system. A
//! `sync` between the directory and the prefix would then copy files onto themselves. With `--delete`, it would remove
//! objects that exist nowhere else. A `cp -r` into its own source would find its own copies, and might never end.

use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fordway_command::{CommandContext, StorageAddress};
use fordway_lanes::Lane;
use fordway_posix::etag_of_bare_file;
use fordway_store::{
    Bucket, Error, ErrorKind, GetOptions, Key, ListQuery, ObjectContent, ObjectSummary, Result,
};

use crate::transfer::resolved;

/// The local side of a `sync`, and the directory of the bucket. The two directories share no files, unless links lead
/// from one directory to the other.
pub(super) struct SeparateDirectories {
    local: PathBuf,
    bucket: PathBuf,
}

impl SeparateDirectories {
    /// Returns whether an object is a file on the local side, which is possible if the object's path contains a
    /// symbolic link below the prefix.
    pub(super) fn share(&self, key: &str) -> bool {
        let path = self.bucket.join(plain_path(key)).canonicalize();
        path.is_ok_and(|path| path.starts_with(&self.local))
    }
}

/// The directories of a local path and of a prefix, without links.
struct ComparedDirectories {
    local: PathBuf,
    bucket: PathBuf,
    /// The directory of the prefix.
    objects: PathBuf,
}

impl ComparedDirectories {
    /// Returns `None` if the addresses are not a local path and a prefix, or if the directory of the bucket is unknown.
    /// Errors and cost: as for [`check_separate`].
    fn find(from: &StorageAddress, to: &StorageAddress, context: &CommandContext) -> Result<Option<Self>> {
        let (path, bucket, prefix) = match (from, to) {
            (StorageAddress::Local(path), StorageAddress::S3(bucket, prefix))
            | (StorageAddress::S3(bucket, prefix), StorageAddress::Local(path)) => (path, bucket, prefix),
            _ => return Ok(None),
        };
        let local = resolved(path);
        Ok(bucket_directory(&context.lane()?, bucket, &local).map(|bucket| {
            let objects = resolved(&bucket.join(plain_path(prefix)));
            ComparedDirectories { local, bucket, objects }
        }))
    }
}

/// Returns the path of the destination relative to the source, with a slash at its end, if the destination is a
/// directory inside the source. Errors and cost: as for [`check_separate`].
pub(super) fn path_inside(
    from: &StorageAddress,
    to: &StorageAddress,
    context: &CommandContext,
) -> Result<Option<String>> {
    let Some(found) = ComparedDirectories::find(from, to, context)? else { return Ok(None) };
    let (source, destination) = match from {
        StorageAddress::Local(_) => (&found.local, &found.objects),
        _ => (&found.objects, &found.local),
    };
    let inside = destination.strip_prefix(source).ok().filter(|inside| !inside.as_os_str().is_empty());
    Ok(inside.map(|inside| format!("{}/", inside.display())))
}

/// Checks that neither the local directory nor the prefix contains the other. Returns the two directories, or `None` if
/// nothing was checked because the directory of the objects is unknown. Errors: `InvalidArgument` if the directories
/// share files; errors from opening the lane. Cost on the node lane: one listing and one get, and a search by name if
/// the gateway passes no open file. Cost on the HTTP lane: a search by name. This search costs one listing if a local
/// directory has the name of the bucket; otherwise, it costs no request.
pub(super) fn check_separate(
    from: &StorageAddress,
    to: &StorageAddress,
    context: &CommandContext,
) -> Result<Option<SeparateDirectories>> {
    let Some(found) = ComparedDirectories::find(from, to, context)? else { return Ok(None) };
    let ComparedDirectories { local, bucket, objects } = found;
    if !local.starts_with(&objects) && !objects.starts_with(&local) {
        return Ok(Some(SeparateDirectories { local, bucket }));
    }
    let why = format!(
        "one of {from} and {to} contains the other, because the objects are the files in {}; choose two separate \
         directories",
        objects.display()
    );
    Err(Error::new(ErrorKind::InvalidArgument, why))
}

/// Returns the directory of a bucket; `None` if this process cannot determine it.
fn bucket_directory(lane: &Lane, bucket: &Bucket, local: &Path) -> Option<PathBuf> {
    match &lane.root {
        Some(root) => Some(root.join(bucket.as_str())),
        None => {
            let open_file = (lane.store.lane() == "node").then(|| directory_of_open_file(lane, bucket));
            open_file.flatten().or_else(|| directory_with_same_files(lane, bucket, local))
        }
    }
}

/// Returns the directory that has the name of the bucket and contains one of the bucket's objects. Checks the local
/// directory, its parent directories, and its subdirectory with the bucket's name. An object without a stored ETag
/// identifies its file, because its ETag is computed from the file's metadata. Returns `None` if no object on the
/// bucket's first page identifies a file in these directories.
fn directory_with_same_files(lane: &Lane, bucket: &Bucket, local: &Path) -> Option<PathBuf> {
    let has_name = |directory: &&Path| directory.file_name().is_some_and(|name| name == bucket.as_str());
    let around = local.ancestors().filter(has_name).map(Path::to_owned);
    let mut candidates = around.chain([local.join(bucket.as_str())]).filter(|path| path.is_dir()).peekable();
    candidates.peek()?;
    let page = lane.store.list(bucket, &ListQuery::default()).ok()?;
    let objects: Vec<_> = page.entries.iter().filter_map(|entry| entry.object()).collect();
    candidates.find(|directory| objects.iter().any(|object| is_file_of(directory, object)))
}

/// Returns whether the object is the file at the plain path of the object's key in the directory.
fn is_file_of(directory: &Path, object: &ObjectSummary) -> bool {
    let about = directory.join(plain_path(&object.key)).metadata();
    about.is_ok_and(|about| about.is_file() && etag_of_bare_file(&about) == object.etag)
}

/// Returns the directory of a bucket on the node lane. The gateway passes large objects as open files, whose paths are
/// the targets of links in `/proc/self/fd`. Returns `None` if the gateway passes no open file for the largest object on
/// the bucket's first page.
fn directory_of_open_file(lane: &Lane, bucket: &Bucket) -> Option<PathBuf> {
    let page = lane.store.list(bucket, &ListQuery::default()).ok()?;
    let objects = page.entries.iter().filter_map(|entry| entry.object());
    let largest = objects.filter(|object| object.size > 0).max_by_key(|object| object.size)?;
    // The whole object is requested, because a small range would be sent inline.
    let opened = lane.store.get(bucket, &Key::new(largest.key.clone()).ok()?, &GetOptions::default()).ok()?;
    let ObjectContent::File(region) = opened.content else { return None };
    let path = std::fs::read_link(format!("/proc/self/fd/{}", region.file.as_raw_fd())).ok()?;
    // The gateway and this process may have different mounts, so check that the path leads to the same file here.
    let (seen, passed) = (path.metadata().ok()?, region.file.metadata().ok()?);
    let is_same = (seen.dev(), seen.ino()) == (passed.dev(), passed.ino());
    let segments = Path::new(&largest.key).components().count();
    (is_same && path.ends_with(&largest.key))
        .then(|| path.ancestors().nth(segments))
        .flatten()
        .map(Path::to_owned)
}

/// Returns the segments of a prefix or key before the first segment that is empty, `.`, `..` or `.fordway`. If this
/// segment is not the end of the prefix, the objects have odd keys, which are stored percent-encoded elsewhere.
fn plain_path(prefix: &str) -> PathBuf {
    prefix.split('/').take_while(|segment| !matches!(*segment, "" | "." | ".." | ".fordway")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_a_prefix_ends_before_odd_segments() {
        assert_eq!(plain_path("a/b//c/"), Path::new("a/b"));
        assert_eq!(plain_path(""), Path::new(""));
    }
}
