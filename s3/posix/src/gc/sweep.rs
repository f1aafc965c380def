//! What all searches for garbage share: removing, counting and telling.

use std::fs::File;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fordway_store::{Bucket, Error, Result};
use fordway_sys::{Errno, FileStat};

use super::{Garbage, GcEvent, GcOptions, GcSummary};
use crate::Inner;
use crate::actors::Actors;
use crate::area::not_ours;
use crate::errors::from_errno;
use crate::layout::is_private;
use crate::scan::{Area, PROGRESS_ENTRIES, each_entry};
use crate::store::LANE;

const OPERATION: &str = "collect garbage in";

/// A collection that is going on.
pub(super) struct Sweep<'s> {
    pub(super) inner: &'s Inner,
    pub(super) actors: Rc<Actors>,
    pub(super) options: &'s GcOptions,
    now_ns: i64,
    tell: &'s mut dyn FnMut(GcEvent) -> Result<()>,
    summary: GcSummary,
}

impl<'s> Sweep<'s> {
    pub(super) fn new(
        inner: &'s Inner,
        actors: Rc<Actors>,
        options: &'s GcOptions,
        tell: &'s mut dyn FnMut(GcEvent) -> Result<()>,
    ) -> Self {
        Sweep { inner, actors, options, now_ns: now_ns(), tell, summary: GcSummary::default() }
    }

    pub(super) fn into_summary(self) -> GcSummary {
        self.summary
    }

    pub(super) fn bucket(&mut self, bucket: &Bucket) -> Result<()> {
        // First, so that a rehearsal finds what the real run does: that removes some objects' files.
        self.sidecars(bucket)?;
        self.staged_files(bucket)?;
        self.uploads(bucket)?;
        for area in Area::all(bucket) {
            self.tree(&area)?;
        }
        Ok(())
    }

    /// Removes `garbage`, which is `owner`'s, unless this is only a rehearsal, and tells; says whether it is
    /// gone, or would be.
    pub(super) fn remove(
        &mut self,
        bucket: &Bucket,
        (garbage, owner): (Garbage, u32),
        remove: impl Fn() -> Result<bool>,
    ) -> Result<bool> {
        let removed = if self.options.dry_run { Ok(true) } else { self.actors.or_as(Some(owner), remove) };
        match removed {
            Ok(true) => {
                self.summary.removed += 1;
                self.summary.freed_bytes += garbage.size_bytes;
                (self.tell)(GcEvent::Removed(garbage)).map(|()| true)
            }
            // Somebody needs it after all.
            Ok(false) => Ok(false),
            Err(error) => self.tell_failure(bucket, &garbage.path, error).map(|()| false),
        }
    }

    /// Calls `visit` for every name that can be ours in the directory at `path`, if there is one.
    pub(super) fn each_below(
        &mut self,
        bucket: &Bucket,
        path: &str,
        mut visit: impl FnMut(&mut Self, &File, &str) -> Result<()>,
    ) -> Result<()> {
        let dir = match self.inner.open_to_scan(path) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return self.failed(bucket, errno, "opening", path),
        };
        let read = each_entry(&dir, |name, _| {
            self.looked_at_one()?;
            std::str::from_utf8(name).map_or(Ok(()), |name| visit(self, &dir, name))
        })?;
        read.or_else(|errno| self.failed(bucket, errno, "reading", path))
    }

    pub(super) fn looked_at_one(&mut self) -> Result<()> {
        self.summary.entries += 1;
        let entries = self.summary.entries;
        if entries.is_multiple_of(PROGRESS_ENTRIES) {
            (self.tell)(GcEvent::Progress { entries })
        } else {
            Ok(())
        }
    }

    pub(super) fn failed(&mut self, bucket: &Bucket, errno: Errno, doing: &str, path: &str) -> Result<()> {
        let error = match errno {
            Errno::NOTDIR | Errno::LOOP if is_private(path) => {
                not_ours(path, "is no directory, or lies behind a link")
            }
            errno => from_errno(errno, doing),
        };
        self.tell_failure(bucket, path, error)
    }

    pub(super) fn tell_failure(&mut self, bucket: &Bucket, path: &str, error: Error) -> Result<()> {
        self.summary.failed += 1;
        let below = path.get(bucket.as_str().len() + 1..).unwrap_or_default();
        (self.tell)(GcEvent::Failed(error.during(OPERATION, LANE, bucket.as_str(), below)))
    }

    /// Whether a change at that time is no longer ago than `limit`.
    pub(super) fn is_younger(&self, changed_ns: i64, limit: Duration) -> bool {
        let limit_ns = i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX);
        self.now_ns.saturating_sub(changed_ns) <= limit_ns
    }
}

/// Whether a call removed something; what is gone, or in use again, is no failure.
pub(super) fn removed(done: Result<(), Errno>) -> Result<bool> {
    match done {
        Ok(()) => Ok(true),
        Err(Errno::NOENT | Errno::NOTEMPTY | Errno::NOTDIR | Errno::ISDIR) => Ok(false),
        Err(errno) => Err(from_errno(errno, "removing")),
    }
}

/// A program can set the time of the last write into the past, but not the time of the last change.
pub(super) fn newest_ns(stat: &FileStat) -> i64 {
    stat.modified_ns.max(stat.changed_ns)
}

/// A second name keeps the bytes where they are.
pub(super) fn size_freed(stat: &FileStat) -> u64 {
    if stat.links > 1 || stat.is_dir { 0 } else { stat.size }
}

fn now_ns() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_nanos()).unwrap_or(i64::MAX)
}
