//! Removes the files of unfinished writes: multipart uploads and staged files.

use std::fs::File;

use fordway_store::{Bucket, Result};
use fordway_sys::{Errno, name_to_text, remove_file, stat, stat_in};

use crate::area::remove_staged;
use crate::errors::from_errno;
use crate::gc::{GarbageFile, GarbageKind, GcRun, newest_ns, removed, size_freed};
use crate::layout::{is_hidden_name, join, tmp_dir, upload_of, uploads_dir};
use crate::multipart::parts::{CLOSED, UPLOAD, remove_upload_dir};
use crate::scan::open_child;

impl GcRun<'_> {
    pub(super) fn uploads(&mut self, bucket: &Bucket) -> Result<()> {
        let path = uploads_dir(bucket);
        self.each_below(bucket, &path, |sweep, dir, name| {
            if upload_of(name).is_none() {
                return Ok(());
            }
            let owner = stat_in(dir, name).ok().map(|state| state.user);
            let look = || UploadDirectoryInfo::of(dir, name).map_err(|errno| from_errno(errno, "examining"));
            let Ok(found) = sweep.actors.or_as(owner, look) else { return Ok(()) };
            if !sweep.is_abandoned(&found) {
                return Ok(());
            }
            let kind = if found.has_record { GarbageKind::Upload } else { GarbageKind::UploadRest };
            let garbage = GarbageFile { kind, path: join(&path, name), size_bytes: found.size_bytes };
            let is_abandoned = |now: &UploadDirectoryInfo| now.newest_ns == found.newest_ns;
            let owner = found.owner;
            sweep.remove(bucket, (garbage, owner), || remove_upload(dir, name, is_abandoned)).map(drop)
        })
    }

    fn is_abandoned(&self, upload: &UploadDirectoryInfo) -> bool {
        let limit = if upload.has_record { self.options.upload_age } else { self.options.staged_age };
        !self.is_younger(upload.newest_ns, limit)
    }
}

/// The state of an upload's directory.
struct UploadDirectoryInfo {
    /// The time at which the directory or a file in it last changed.
    newest_ns: i64,
    has_record: bool,
    size_bytes: u64,
    owner: u32,
}

impl UploadDirectoryInfo {
    /// Reads the state of the upload directory `name` in `uploads`. Errors: `NOENT` or `STALE` if the upload has ended;
    /// `NOTDIR` if the name does not belong to an upload.
    fn of(uploads: &File, name: &str) -> Result<Self, Errno> {
        let dir = open_child(uploads, name)?;
        let state = stat(&dir)?;
        let mut found = UploadDirectoryInfo {
            newest_ns: state.modified_ns,
            has_record: false,
            size_bytes: 0,
            owner: state.user,
        };
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

/// Removes an upload if it has not changed since it was found. The record of the upload is removed first, so that late
/// parts are refused. Without this order, a client could get a success response for a part that is then discarded.
fn remove_upload(
    uploads: &File,
    name: &str,
    is_unchanged: impl Fn(&UploadDirectoryInfo) -> bool,
) -> Result<bool> {
    let remove = || {
        if !is_unchanged(&UploadDirectoryInfo::of(uploads, name)?) {
            return Ok(false);
        }
        match remove_file(open_child(uploads, name)?, UPLOAD) {
            Ok(()) | Err(Errno::NOENT) => remove_upload_dir(uploads, name).map(|()| true),
            Err(errno) => Err(errno),
        }
    };
    match remove() {
        // The upload was completed or aborted, or a part has just arrived.
        Err(Errno::NOENT | Errno::STALE | Errno::NOTEMPTY) => Ok(false),
        done => done.map_err(|errno| from_errno(errno, "removing")),
    }
}

/// Returns the latest time at which a file in the directory `name` changed; 0 if the directory is empty or gone.
fn newest_in(parent: &File, name: &str) -> Result<i64, Errno> {
    let dir = match open_child(parent, name) {
        Err(Errno::NOENT | Errno::STALE) => return Ok(0),
        opened => opened?,
    };
    let mut newest = 0;
    fordway_sys::read_dir(&dir, |name, _| {
        if let Ok(stat) = stat_in(&dir, &name_to_text(name)) {
            newest = newest_ns(&stat).max(newest);
        }
    })?;
    Ok(newest)
}

impl GcRun<'_> {
    pub(super) fn staged_files(&mut self, bucket: &Bucket) -> Result<()> {
        let path = tmp_dir(bucket);
        let limit = self.options.staged_age;
        self.each_below(bucket, &path, |sweep, dir, name| {
            if !is_hidden_name(name) {
                return Ok(());
            }
            let Ok(stat) = stat_in(dir, name) else { return Ok(()) };
            let is_ours = stat.is_file || stat.is_dir;
            if !is_ours || sweep.is_younger(newest_ns(&stat), limit) {
                return Ok(());
            }
            // While a writer fills a file in its own directory, the times of the directory do not change.
            if stat.is_dir {
                let look = || newest_in(dir, name).map_err(|errno| from_errno(errno, "examining"));
                match sweep.actors.or_as(Some(stat.user), look) {
                    Ok(newest) if !sweep.is_younger(newest, limit) => {}
                    Ok(_) => return Ok(()),
                    Err(error) => return sweep.tell_failure(bucket, &join(&path, name), error),
                }
            }
            let garbage = GarbageFile {
                kind: GarbageKind::StagedFile,
                path: join(&path, name),
                size_bytes: size_freed(&stat),
            };
            sweep.remove(bucket, (garbage, stat.user), || removed(remove_staged(dir, name))).map(drop)
        })
    }
}
