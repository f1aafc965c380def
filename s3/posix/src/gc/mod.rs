//! Removes files that interrupted work has left behind. The removal is safe while other processes write. Only three
//! kinds of entries are removed: old files, files that were rechecked under their key's lock, and empty directories.
//! Writers recreate a removed directory if necessary.

mod events;
mod sidecars;
mod tree;
mod uploads;

use std::fs::File;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fordway_store::{Bucket, Error, ErrorKind, Result};
use fordway_sys::{Errno, FileStat, with_lock_patience};

use crate::actors::{ImpersonatedUserCache, bucket_owner};
use crate::area::not_ours;
use crate::errors::{LEAVES_BUCKET, from_errno};
use crate::layout::is_private;
use crate::removal::{INTERRUPTED, end_interrupted_removals};
use crate::scan::{BucketArea, ChosenBuckets, PROGRESS_ENTRIES, each_entry};
use crate::sidecar::SidecarIdentities;
use crate::store::LANE;
use crate::{PosixStore, PosixStoreState};

/// The options of [`PosixStore::collect_garbage`].
#[derive(Clone, Debug)]
pub struct GcOptions {
    /// The buckets to clean. If the list is empty, all buckets are cleaned.
    pub buckets: Vec<Bucket>,
    /// The time for which a file must have been unchanged before it is removed. The time applies to staged files,
    /// remains of an upload whose record is gone, sidecar files whose objects are gone, and second names of the latest
    /// version. The value must be longer than the longest pause of any writer between two writes.
    pub staged_age: Duration,
    /// The time for which an upload must have been inactive before it is removed.
    pub upload_age: Duration,
    /// The time for which a directory must have been empty before it is removed. A put whose directory is removed
    /// recreates the directory, but only a limited number of times. If this time is far longer than the tick of the
    /// file system's clock (10 ms), a put recreates a directory at most once.
    pub empty_dir_age: Duration,
    /// The time for which the record of an event must have waited for delivery before the record is removed.
    pub event_age: Duration,
    /// Whether to only report what would be removed.
    pub dry_run: bool,
}

impl Default for GcOptions {
    /// Returns the defaults: all buckets; a week for uploads, 30 days for events, a day for everything else.
    fn default() -> Self {
        let day = Duration::from_secs(24 * 60 * 60);
        GcOptions {
            buckets: Vec::new(),
            staged_age: day,
            upload_age: 7 * day,
            empty_dir_age: day,
            event_age: 30 * day,
            dry_run: false,
        }
    }
}

impl PosixStore {
    /// Removes files left behind by interrupted work, and reports each removed file to `tell`. A process that may act
    /// as other users works in each bucket as the bucket's owner, and on other users' files as the users who own them.
    /// Memory: one open directory for each level of the tree, and about 20 bytes for each old sidecar file in one
    /// bucket. Cost: one `getdents64` for about every thousand entries, and two or three calls for each directory and
    /// for each file or directory removed. If there are old sidecar files, also one `newfstatat` for each file, and one
    /// `openat`, `pread` and `close` for each sidecar file. Errors: `NoSuchBucket` before anything is removed; errors
    /// that `tell` returns.
    pub fn collect_garbage(
        &self,
        options: &GcOptions,
        tell: &mut dyn FnMut(GcEvent) -> Result<()>,
    ) -> Result<GcSummary> {
        let chosen = ChosenBuckets::of(self, &options.buckets)?;
        let actors = Rc::new(ImpersonatedUserCache::new(&self.inner));
        let mut sweep = GcRun::new(&self.inner, actors.clone(), options, tell);
        for (bucket, error) in chosen.unreadable {
            sweep.tell_failure(&bucket, bucket.as_str(), error)?;
        }
        for bucket in &chosen.buckets {
            // Nothing may be changed through a link to a directory within a bucket: the locks and the private area of
            // that bucket would not be found. `fsck` reports such a link.
            if self.inner.volume.root.leads_into_bucket(bucket) {
                if !options.buckets.is_empty() {
                    let error = from_errno(LEAVES_BUCKET, "examining the bucket");
                    sweep.tell_failure(bucket, bucket.as_str(), error)?;
                }
                continue;
            }
            match bucket_owner(&self.inner, bucket) {
                Ok(Some(owner)) => actors.act_as(owner, || sweep.bucket(bucket))?,
                // The bucket's owner has removed the bucket in the meantime. Garbage in the other buckets must still be
                // collected.
                Ok(None) => {}
                Err(error) => sweep.tell_failure(bucket, bucket.as_str(), error)?,
            }
        }
        if !options.dry_run {
            end_interrupted_removals(&self.inner, INTERRUPTED);
        }
        Ok(sweep.into_summary())
    }
}

/// A kind of garbage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GarbageKind {
    /// A file that a writer staged and never published.
    StagedFile,
    /// An abandoned multipart upload.
    Upload,
    /// The files of an upload whose record is gone. Such an upload can never be completed.
    UploadRest,
    /// The second file of an object, hidden by the file at the key's plain path, in a bucket that keeps no versions.
    HiddenFile,
    /// An empty directory that was created by a put.
    EmptyDir,
    /// A sidecar file whose object is gone or has since been replaced.
    Sidecar,
    /// The record of an event that was not delivered.
    Event,
    /// A name, among the old versions, of a version that is still the latest or has become the latest again.
    VersionAlias,
}

impl GarbageKind {
    /// Returns the name used in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            GarbageKind::StagedFile => "staged-file",
            GarbageKind::Upload => "upload",
            GarbageKind::UploadRest => "upload-rest",
            GarbageKind::HiddenFile => "hidden-file",
            GarbageKind::EmptyDir => "empty-dir",
            GarbageKind::Sidecar => "sidecar",
            GarbageKind::Event => "event",
            GarbageKind::VersionAlias => "version-alias",
        }
    }
}

/// A file or directory that was removed or, in a dry run, would have been removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GarbageFile {
    /// The kind of garbage.
    pub kind: GarbageKind,
    /// The path, relative to the root.
    pub path: String,
    /// The size of the content in bytes.
    pub size_bytes: u64,
}

/// An event during a collection. The receiver can stop the collection by returning an error.
#[derive(Debug)]
pub enum GcEvent {
    /// The number of directory entries examined so far.
    Progress {
        /// The number of entries examined since the start.
        entries: u64,
    },
    /// A file or directory was removed or, in a dry run, would have been removed.
    Removed(GarbageFile),
    /// A file or directory could not be examined or removed; the collection continues.
    Failed(Error),
}

/// The totals of a collection or a dry run: examined entries, removed files and directories, and failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcSummary {
    /// The number of directory entries examined.
    pub entries: u64,
    /// The number of files and directories removed.
    pub removed: u64,
    /// The total size, in bytes, of the content removed.
    pub freed_bytes: u64,
    /// The number of files and directories that could not be examined or removed.
    pub failed: u64,
}

const OPERATION: &str = "collect garbage in";

/// A collection in progress.
pub(super) struct GcRun<'s> {
    pub(super) inner: &'s PosixStoreState,
    pub(super) actors: Rc<ImpersonatedUserCache>,
    pub(super) options: &'s GcOptions,
    now_ns: i64,
    tell: &'s mut dyn FnMut(GcEvent) -> Result<()>,
    summary: GcSummary,
    /// Whether waiting for a lock in the current bucket has timed out. After a timeout, the run does not wait for other
    /// locks in this bucket, so that a user who holds all locks cannot stop the run.
    finds_locks_held: bool,
    identities: SidecarIdentities,
}

impl<'s> GcRun<'s> {
    pub(super) fn new(
        inner: &'s PosixStoreState,
        actors: Rc<ImpersonatedUserCache>,
        options: &'s GcOptions,
        tell: &'s mut dyn FnMut(GcEvent) -> Result<()>,
    ) -> Self {
        let (now_ns, summary) = (now_ns(), GcSummary::default());
        GcRun {
            inner,
            actors,
            options,
            now_ns,
            tell,
            summary,
            finds_locks_held: false,
            identities: SidecarIdentities::default(),
        }
    }

    pub(super) fn into_summary(self) -> GcSummary {
        self.summary
    }

    pub(super) fn bucket(&mut self, bucket: &Bucket) -> Result<()> {
        self.finds_locks_held = false;
        // Sidecar files are collected first. A real run removes objects' files further down, and would otherwise find
        // sidecar files that a dry run does not find.
        self.sidecars(bucket)?;
        self.staged_files(bucket)?;
        self.uploads(bucket)?;
        self.events(bucket)?;
        for area in BucketArea::all(bucket) {
            self.tree(&area)?;
        }
        Ok(())
    }

    /// Removes `garbage`, which belongs to the user `owner`, and reports the removal. In a dry run, only reports the
    /// garbage. Returns whether the garbage was removed or, in a dry run, would have been removed.
    pub(super) fn remove(
        &mut self,
        bucket: &Bucket,
        (garbage, owner): (GarbageFile, u32),
        remove: impl Fn() -> Result<bool>,
    ) -> Result<bool> {
        let removed = match (self.options.dry_run, self.finds_locks_held) {
            (true, _) => Ok(true),
            (false, false) => self.actors.or_as(Some(owner), remove),
            (false, true) => with_lock_patience(Duration::ZERO, || self.actors.or_as(Some(owner), remove)),
        };
        self.finds_locks_held |= removed.as_ref().is_err_and(|error| error.kind() == ErrorKind::LockTimeout);
        match removed {
            Ok(true) => {
                self.summary.removed += 1;
                self.summary.freed_bytes += garbage.size_bytes;
                (self.tell)(GcEvent::Removed(garbage)).map(|()| true)
            }
            // The file was found to be still in use.
            Ok(false) => Ok(false),
            Err(error) => self.tell_failure(bucket, &garbage.path, error).map(|()| false),
        }
    }

    /// Calls `visit` for every name that Fordway could have written in the directory at `path`. Does nothing if the
    /// directory does not exist.
    pub(super) fn each_below(
        &mut self,
        bucket: &Bucket,
        path: &str,
        mut visit: impl FnMut(&mut Self, &File, &str) -> Result<()>,
    ) -> Result<()> {
        let dir = match self.inner.volume.open_to_scan(path) {
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
                not_ours(path, "is not a directory, or is reached through a link")
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

    /// Returns whether the time `changed_ns` is at most `limit` ago.
    pub(super) fn is_younger(&self, changed_ns: i64, limit: Duration) -> bool {
        let limit_ns = i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX);
        self.now_ns.saturating_sub(changed_ns) <= limit_ns
    }
}

/// Returns whether a removal with the result `done` removed anything. A file that is already gone, or in use again, is
/// not a failure.
pub(super) fn removed(done: Result<(), Errno>) -> Result<bool> {
    match done {
        Ok(()) => Ok(true),
        Err(Errno::NOENT | Errno::NOTEMPTY | Errno::NOTDIR | Errno::ISDIR) => Ok(false),
        Err(errno) => Err(from_errno(errno, "removing")),
    }
}

/// Returns the later of modification time and change time. A program can set the modification time to a time in the
/// past, but not the change time.
pub(super) fn newest_ns(stat: &FileStat) -> i64 {
    stat.modified_ns.max(stat.changed_ns)
}

/// Returns the number of bytes that a removal frees: 0 if the file has a second name.
pub(super) fn size_freed(stat: &FileStat) -> u64 {
    if stat.links > 1 || stat.is_dir { 0 } else { stat.size }
}

fn now_ns() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_nanos()).unwrap_or(i64::MAX)
}
