//! Detects that a local directory and a prefix share files. On the embedded lane, and on the node lane over a socket,
//! the objects of a bucket are files on this machine. A `sync` between the two would copy files onto themselves, and
//! with `--delete` it would remove objects that exist nowhere else.

use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fordway_command::{CommandContext, StorageAddress};
use fordway_lanes::Lane;
use fordway_store::{Bucket, Error, ErrorKind, GetOptions, Key, ListQuery, ObjectContent, Result};

/// Checks that neither the local directory nor the prefix contains the other. Over HTTP, the place of the objects is
/// unknown, so nothing is checked. Errors: `InvalidArgument` if they share files; errors from opening the lane. Cost:
/// on the node lane, one listing and one read.
pub(super) fn check_separate(
    from: &StorageAddress,
    to: &StorageAddress,
    context: &CommandContext,
) -> Result<()> {
    let (path, bucket, prefix) = match (from, to) {
        (StorageAddress::Local(path), StorageAddress::S3(bucket, prefix))
        | (StorageAddress::S3(bucket, prefix), StorageAddress::Local(path)) => (path, bucket, prefix),
        _ => return Ok(()),
    };
    let Some(directory) = bucket_directory(&context.lane()?, bucket) else { return Ok(()) };
    let (local, objects) = (resolved(path), resolved(&directory.join(plain_path(prefix))));
    if !local.starts_with(&objects) && !objects.starts_with(&local) {
        return Ok(());
    }
    let why = format!(
        "one of {from} and {to} contains the other, because the objects are the files in {}; choose two separate \
         directories",
        objects.display()
    );
    Err(Error::new(ErrorKind::InvalidArgument, why))
}

/// Returns the directory of a bucket, if this process knows it.
fn bucket_directory(lane: &Lane, bucket: &Bucket) -> Option<PathBuf> {
    match &lane.root {
        Some(root) => Some(root.join(bucket.as_str())),
        None if lane.store.lane() == "node" => directory_of_open_file(lane, bucket),
        None => None,
    }
}

/// Returns the directory of a bucket on the node lane. The gateway passes large objects as open files, whose paths the
/// kernel knows. Returns `None` if the bucket's first page contains no such object.
fn directory_of_open_file(lane: &Lane, bucket: &Bucket) -> Option<PathBuf> {
    let page = lane.store.list(bucket, &ListQuery::default()).ok()?;
    let objects = page.entries.iter().filter_map(|entry| entry.object());
    let largest = objects.filter(|object| object.size > 0).max_by_key(|object| object.size)?;
    // The whole object is requested, because a small range would be sent inline.
    let opened = lane.store.get(bucket, &Key::new(largest.key.clone()).ok()?, &GetOptions::default()).ok()?;
    let ObjectContent::File(region) = opened.content else { return None };
    let path = std::fs::read_link(format!("/proc/self/fd/{}", region.file.as_raw_fd())).ok()?;
    // The gateway may see other mounts than this process.
    let (seen, passed) = (path.metadata().ok()?, region.file.metadata().ok()?);
    let is_same = (seen.dev(), seen.ino()) == (passed.dev(), passed.ino());
    let segments = Path::new(&largest.key).components().count();
    (is_same && path.ends_with(&largest.key))
        .then(|| path.ancestors().nth(segments))
        .flatten()
        .map(Path::to_owned)
}

/// Returns the directories of a prefix that are also directories of the bucket. The rest of the prefix may be encoded.
fn plain_path(prefix: &str) -> PathBuf {
    prefix.split('/').take_while(|segment| !matches!(*segment, "" | "." | ".." | ".fordway")).collect()
}

/// Returns an absolute path without links. The last directories of the path may be missing.
fn resolved(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let existing = path.ancestors().find_map(|ancestor| Some((ancestor, ancestor.canonicalize().ok()?)));
    match existing {
        Some((ancestor, found)) => match path.strip_prefix(ancestor) {
            Ok(rest) if rest.as_os_str().is_empty() => found,
            Ok(rest) => found.join(rest),
            Err(_) => found,
        },
        None => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_directories_and_links_are_resolved() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("real")).unwrap();
        std::os::unix::fs::symlink("real", root.join("link")).unwrap();
        assert_eq!(resolved(&root.join("link/none/deep")), root.join("real/none/deep"));
        assert_eq!(resolved(&root.join("real/../link/")), root.join("real"));
        assert_eq!(plain_path("a/b//c/"), Path::new("a/b"));
        assert_eq!(plain_path(""), Path::new(""));
    }
}
