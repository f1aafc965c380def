//! Walks all files and directories in a bucket, whether they are objects or not. Only one path is in memory at a time.

use std::fs::File;

use fordway_store::{Bucket, Key, MAX_KEY_BYTES, Objects, Result};
use fordway_sys::{EntryKind, Errno, Mode, OFlags, kind_in, open_in, read_dir};

use crate::PosixStore;
use crate::layout::{PRIVATE_DIR, decode, is_part_of_name, join, odd_dir, split, versions_dir};

/// The number of entries between two progress reports.
pub(crate) const PROGRESS_ENTRIES: u64 = 1024;

/// The kind of files in an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BucketAreaKind {
    /// Objects whose paths are the same as their keys.
    Plain,
    /// Objects whose keys cannot be paths.
    Odd,
    /// Old versions and delete markers.
    Versions,
}

/// An area of a bucket: all files of one kind, below one directory.
pub(crate) struct BucketArea<'b> {
    pub(crate) bucket: &'b Bucket,
    pub(crate) held: BucketAreaKind,
    /// The directory, relative to the root.
    pub(crate) top: String,
}

impl<'b> BucketArea<'b> {
    /// Returns the areas of all objects and versions of a bucket. The area of odd files comes before the area of the
    /// plain files that may hide them.
    pub(crate) fn all(bucket: &'b Bucket) -> [Self; 3] {
        [
            BucketArea { bucket, held: BucketAreaKind::Odd, top: odd_dir(bucket) },
            BucketArea { bucket, held: BucketAreaKind::Plain, top: bucket.as_str().to_owned() },
            BucketArea { bucket, held: BucketAreaKind::Versions, top: versions_dir(bucket) },
        ]
    }

    /// Decodes a path below `top` into the key that the path encodes.
    pub(crate) fn decode(&self, path: &str) -> Option<Key> {
        path.get(self.top.len() + 1..).and_then(decode)
    }

    /// Returns whether the directory at `path` in the private area has a name that Fordway gives to directories. Such a
    /// name is a part of a long name, or the name of a key's versions directory.
    pub(crate) fn is_our_dir(&self, path: &str) -> bool {
        let (_, name) = split(path);
        let is_key = self.held == BucketAreaKind::Versions && self.decode(path).is_some();
        is_key || is_part_of_name(name)
    }

    /// Returns whether an entry with this name is the private area, or may be the private area of another bucket that
    /// was moved into this bucket. Neither contains objects of this bucket at plain paths.
    pub(crate) fn is_private(&self, name: &[u8]) -> bool {
        self.held == BucketAreaKind::Plain && name == PRIVATE_DIR.as_bytes()
    }
}

/// Returns the buckets to examine: the buckets `named`, which must exist, or all buckets if `named` is empty.
pub(crate) fn chosen_buckets(store: &PosixStore, named: &[Bucket]) -> Result<Vec<Bucket>> {
    if named.is_empty() {
        return Ok(store.list_buckets()?.into_iter().map(|info| info.name).collect());
    }
    named.iter().map(|bucket| store.head_bucket(bucket).map(|info| info.name)).collect()
}

/// Opens the directory `name` in `parent` for [`each_entry`], without following a symbolic link.
pub(crate) fn open_child(parent: &File, name: &str) -> Result<File, Errno> {
    open_in(parent, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).map(File::from)
}

/// Calls `visit` for every entry of `dir` until `visit` fails. The outer result contains an error from `visit`; the
/// inner result contains an error from reading the directory.
pub(crate) fn each_entry(
    dir: &File,
    mut visit: impl FnMut(&[u8], EntryKind) -> Result<()>,
) -> Result<Result<(), Errno>> {
    let mut visited = Ok(());
    let read = read_dir(dir, |name, kind| {
        if visited.is_ok() {
            visited = visit(name, kind);
        }
    });
    visited.map(|()| read)
}

/// Returns `kind`. If the file system did not report the kind, returns the kind according to the file's state.
pub(crate) fn known_kind(dir: &File, name: &str, kind: EntryKind) -> EntryKind {
    match kind {
        EntryKind::Unknown => kind_in(dir, name).unwrap_or(kind),
        kind => kind,
    }
}

/// Returns the path of the directory `name` in `path`, or `None` if every key below it would be too long.
pub(crate) fn path_of_child(bucket: &Bucket, path: &str, name: &str) -> Option<String> {
    let path = join(path, name);
    let key_bytes = path.len() - bucket.as_str().len();
    // The path of an odd key begins with the private directory, and encodes each byte of the key as up to three bytes.
    (key_bytes <= 4 * MAX_KEY_BYTES).then_some(path)
}
