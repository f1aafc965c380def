//! Walks all files and directories in a bucket, whether they are objects or not. Only one path is in memory at a time.

use std::collections::HashSet;
use std::fs::File;

use fordway_store::{Bucket, Error, ErrorKind, Key, MAX_KEY_BYTES, Objects, Result};
use fordway_sys::{EntryKind, Errno, Mode, OFlags, kind_in, open_in, read_dir, stat, stat_in};

use crate::PosixStore;
use crate::errors::lacks_permission;
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

/// The buckets that a command examines.
#[derive(Debug, Default)]
pub struct ChosenBuckets {
    /// The buckets. A directory that has several names in the root is included under one name only: the directory's own
    /// name, if the other names are symbolic links.
    pub buckets: Vec<Bucket>,
    /// The buckets whose directories cannot be opened, for example because they are on a mount that does not respond.
    pub unreadable: Vec<(Bucket, Error)>,
}

impl ChosenBuckets {
    /// Returns the buckets `named`, or all buckets if `named` is empty. Errors: `NoSuchBucket` and other errors of a
    /// named bucket; errors of reading the root directory.
    pub fn of(store: &PosixStore, named: &[Bucket]) -> Result<Self> {
        let mut chosen = ChosenBuckets::default();
        if !named.is_empty() {
            let names = named.iter().map(|bucket| store.head_bucket(bucket).map(|info| info.name));
            chosen.buckets = names.collect::<Result<_>>()?;
            return Ok(chosen);
        }
        let volume = &store.inner.volume;
        let is_link =
            |name: &Bucket| !stat_in(volume.root.dir(), name.as_str()).is_ok_and(|stat| stat.is_dir);
        let mut names = store.inner.bucket_names()?;
        names.sort_by_cached_key(|name| (is_link(name), name.clone()));
        let mut seen = HashSet::new();
        for name in names {
            match store.inner.head_bucket(&name) {
                Ok(_) => {
                    let found = volume.open_dir(name.as_str()).and_then(stat);
                    if found.map_or(true, |found| seen.insert((found.device, found.inode))) {
                        chosen.buckets.push(name);
                    }
                }
                // The bucket has been removed in the meantime, or the name is a link that leads nowhere.
                Err(error) if error.kind() == ErrorKind::NoSuchBucket => {}
                // The name is a link that leads out of the root, or is part of a loop of links.
                Err(error) if error.kind() == ErrorKind::AccessDenied && !lacks_permission(&error) => {}
                Err(error) => chosen.unreadable.push((name, error)),
            }
        }
        chosen.buckets.sort_unstable();
        Ok(chosen)
    }
}

/// Opens the directory `name` in `parent` for [`each_entry`], without following a symbolic link. Errors: also `ACCESS`
/// if the caller may read the names in the directory, but may not examine the files to which they belong.
pub(crate) fn open_child(parent: &File, name: &str) -> Result<File, Errno> {
    let dir = open_in(parent, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    stat_in(&dir, ".")?;
    Ok(dir.into())
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
