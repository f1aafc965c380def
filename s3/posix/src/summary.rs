//! The entries of listings, and the targets of symbolic links in a bucket.
//!
//! A link that leads to no object does not make a listing fail. Any other error does: a program that mirrors a bucket
//! removes its copies of the objects that a listing lacks, so an object must not be left out because of an error.

use std::fs::File;

use fordway_store::{Bucket, Checksum, ErrorKind, ObjectInfo, ObjectSummary, Result};
use fordway_sys::{Errno, FileStat, Mode, OFlags, stat};

use crate::PosixStoreState;
use crate::errors::from_errno;
use crate::layout::{ObjectPath, split};
use crate::read::system_time;
use crate::record::etag_of_file;
use crate::volume::StoreDirectoryTree;

/// Returns the listing entry of a file without a record.
pub(crate) fn summary_of_bare(key: &str, stat: &FileStat) -> ObjectSummary {
    ObjectSummary {
        key: key.to_owned(),
        size: stat.size,
        etag: etag_of_file(stat),
        modified: system_time(stat.modified_ns),
        checksum: None,
    }
}

/// Returns the listing entry of the object with these properties.
pub(crate) fn summary_of(key: &str, info: ObjectInfo) -> ObjectSummary {
    ObjectSummary {
        key: key.to_owned(),
        size: info.size,
        etag: info.etag,
        modified: info.modified,
        checksum: info.checksum.as_ref().map(Checksum::plan),
    }
}

/// Returns whether the symbolic link at `path` leads to a directory beneath the root. Cost: one `openat2`, and the cost
/// of the link. Errors: any error that shows neither where the link leads, nor that it cannot be followed.
pub(crate) fn leads_to_dir(volume: &StoreDirectoryTree, path: &str) -> Result<bool> {
    match follow(volume, path, OFlags::PATH | OFlags::DIRECTORY) {
        Ok(_) => Ok(true),
        Err(errno) if leads_nowhere(errno) || is_closed(errno) => Ok(false),
        Err(errno) => Err(from_errno(errno, "following a symbolic link")),
    }
}

/// Opens the target of the symbolic link at `path`. Looks every name up again if another node has removed a directory
/// on the way.
fn follow(volume: &StoreDirectoryTree, path: &str, flags: OFlags) -> Result<File, Errno> {
    let open = || volume.root.open_beneath(path, flags, Mode::empty());
    match open() {
        Err(Errno::STALE) => {
            volume.refresh_dirs(split(path).0);
            open()
        }
        opened => opened,
    }
}

/// Returns the listing entry of the file to which the symbolic link at `place` leads, or `None` if it leads to no
/// object. Sets `is_refused` if the link cannot be followed. A file that the caller is not permitted to open, or whose
/// record cannot be decoded, is described as if it had no record. Errors: `AccessDenied` if the caller is not permitted
/// to reach the file, unless `skips_closed` is set or the bucket has the sticky bit; all other errors.
pub(crate) fn summary_of_link(
    store: &PosixStoreState,
    bucket: &Bucket,
    (place, key): (&ObjectPath, &str),
    skips_closed: bool,
    is_refused: &mut bool,
) -> Result<Option<ObjectSummary>> {
    let error = match store.summary_by_open(bucket, place, key) {
        Err(error) if is_of_one_file(error.kind()) => error,
        done => return done,
    };
    match follow(&store.volume, &place.path(), OFlags::PATH).and_then(stat) {
        Ok(stat) => Ok(stat.is_file.then(|| summary_of_bare(key, &stat))),
        Err(errno) if leads_nowhere(errno) || is_closed(errno) => {
            *is_refused = true;
            let is_sticky = || store.volume.guard_now(bucket).map(|guard| guard.is_some());
            let is_skipped = leads_nowhere(errno) || skips_closed || is_sticky()?;
            if is_skipped { Ok(None) } else { Err(error) }
        }
        Err(errno) => Err(from_errno(errno, "following a symbolic link")),
    }
}

/// Returns whether an error of this kind can be a property of one file, so that the file is listed without its record:
/// the caller is not permitted to open the file, the record cannot be decoded, or another program has a lease.
pub(crate) fn is_of_one_file(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::AccessDenied | ErrorKind::Corrupt | ErrorKind::LockTimeout)
}

/// Returns whether the error shows that a link leads to nothing beneath the root, or that another node has just removed
/// the link or its target.
fn leads_nowhere(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT | Errno::NOTDIR | Errno::STALE | Errno::LOOP | Errno::XDEV | Errno::NAMETOOLONG
    )
}

fn is_closed(errno: Errno) -> bool {
    matches!(errno, Errno::ACCESS | Errno::PERM)
}
