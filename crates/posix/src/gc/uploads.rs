//! Multipart uploads that nobody went on with.

use std::fs::File;

use fordway_store::{Bucket, Result};
use fordway_sys::{Errno, remove_file, stat, stat_in};

use super::sweep::{Sweep, newest_ns, size_freed};
use super::{Garbage, GarbageKind};
use crate::delete::remove_tree;
use crate::errors::from_errno;
use crate::layout::{join, uploads_dir};
use crate::parts::{CLOSED, UPLOAD};
use crate::scan::open_child;

impl Sweep<'_> {
    pub(super) fn uploads(&mut self, bucket: &Bucket) -> Result<()> {
        let path = uploads_dir(bucket);
        self.each_below(bucket, &path, |sweep, dir, name| {
            let Ok(found) = UploadState::of(dir, name) else { return Ok(()) };
            if !sweep.is_abandoned(&found) {
                return Ok(());
            }
            let kind = if found.has_record { GarbageKind::Upload } else { GarbageKind::UploadRest };
            let garbage = Garbage { kind, path: join(&path, name), size_bytes: found.size_bytes };
            let is_abandoned = |now: &UploadState| now.newest_ns == found.newest_ns;
            sweep.remove(bucket, garbage, || remove_upload(dir, name, is_abandoned)).map(drop)
        })
    }

    fn is_abandoned(&self, upload: &UploadState) -> bool {
        let limit = if upload.has_record { self.options.upload_age } else { self.options.staged_age };
        !self.is_younger(upload.newest_ns, limit)
    }
}

/// What lies in the directory of an upload.
struct UploadState {
    /// When something last arrived in it.
    newest_ns: i64,
    has_record: bool,
    size_bytes: u64,
}

impl UploadState {
    /// Errors: `NOENT` if it ended meanwhile, `NOTDIR` for what is no upload.
    fn of(uploads: &File, name: &str) -> Result<Self, Errno> {
        let dir = open_child(uploads, name)?;
        let mut found = UploadState { newest_ns: stat(&dir)?.modified_ns, has_record: false, size_bytes: 0 };
        fordway_sys::read_dir(&dir, |name, _| {
            found.has_record |= name == UPLOAD.as_bytes() || name == CLOSED.as_bytes();
            let stat = std::str::from_utf8(name).ok().and_then(|name| stat_in(&dir, name).ok());
            if let Some(stat) = stat {
                found.newest_ns = found.newest_ns.max(newest_ns(&stat));
                found.size_bytes += size_freed(&stat);
            }
        })?;
        Ok(found)
    }
}

/// Removes an upload that is as it was found. Its record goes first: from then on a late part is
/// refused, so that no client is told of a part that is then thrown away.
fn remove_upload(
    uploads: &File,
    name: &str,
    is_unchanged: impl FnOnce(&UploadState) -> bool,
) -> Result<bool> {
    let remove = || {
        if !is_unchanged(&UploadState::of(uploads, name)?) {
            return Ok(false);
        }
        match remove_file(open_child(uploads, name)?, UPLOAD) {
            Ok(()) | Err(Errno::NOENT) => remove_tree(uploads, name).map(|()| true),
            Err(errno) => Err(errno),
        }
    };
    match remove() {
        // It was completed or aborted, or a part arrives at this moment.
        Err(Errno::NOENT | Errno::NOTEMPTY) => Ok(false),
        done => done.map_err(|errno| from_errno(errno, "removing")),
    }
}
