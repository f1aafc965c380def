//! Removing what interrupted work left behind. Safe beside writers: whatever is removed is old, or
//! checked again under its key's lock, or an empty directory, which a writer makes again.

use std::fs::File;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fordway_store::{Bucket, Error, Result};
use fordway_sys::{EntryKind, Errno, FileStat, remove_dir, remove_file, stat, stat_in};

use crate::delete::{is_marked, remove_tree};
use crate::errors::from_errno;
use crate::layout::{PRIVATE_DIR, decode, join, odd, odd_dir, plain, tmp_dir, uploads_dir};
use crate::parts::{CLOSED, UPLOAD};
use crate::scan::{PROGRESS_ENTRIES, each_entry, known_kind, open_child, path_of_child};
use crate::store::LANE;
use crate::{Inner, PosixStore};

const OPERATION: &str = "collect garbage in";

/// What [`PosixStore::collect_garbage`] looks at.
#[derive(Clone, Debug)]
pub struct GcOptions {
    /// The buckets; none means all.
    pub buckets: Vec<Bucket>,
    /// How long a staged file, or the rest of an upload without its record, must not have changed.
    /// Must be longer than any writer takes between two writes.
    pub staged_age: Duration,
    /// How long nothing must have arrived for an upload.
    pub upload_age: Duration,
    /// How long a directory must have been empty. A put that finds its directory gone makes it again
    /// a few times; far above the tick of the file system's clock (10 ms), it never needs to do so
    /// twice.
    pub empty_dir_age: Duration,
    /// Whether to tell only.
    pub dry_run: bool,
}

impl Default for GcOptions {
    /// All buckets; staged files and empty directories of a day, uploads of a week.
    fn default() -> Self {
        let day = Duration::from_secs(24 * 60 * 60);
        GcOptions {
            buckets: Vec::new(),
            staged_age: day,
            upload_age: 7 * day,
            empty_dir_age: day,
            dry_run: false,
        }
    }
}

/// What kind of thing nobody needs any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GarbageKind {
    /// A file that a writer staged and never published.
    StagedFile,
    /// A multipart upload that nobody went on with.
    Upload,
    /// The rest of an upload whose record is gone, so that it can never be completed.
    UploadRest,
    /// An object's second file, which the one at the key's own path hides.
    HiddenFile,
    /// An empty directory that a put had made.
    EmptyDir,
}

impl GarbageKind {
    /// The name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            GarbageKind::StagedFile => "staged-file",
            GarbageKind::Upload => "upload",
            GarbageKind::UploadRest => "upload-rest",
            GarbageKind::HiddenFile => "hidden-file",
            GarbageKind::EmptyDir => "empty-dir",
        }
    }
}

/// One thing that was removed, or would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Garbage {
    /// What it was.
    pub kind: GarbageKind,
    /// Where it lay, relative to the root.
    pub path: String,
    /// The bytes of content in it.
    pub size_bytes: u64,
}

/// What a collection tells while it goes on. Whoever is told may end it with an error.
#[derive(Debug)]
pub enum GcEvent {
    /// So many directory entries have been looked at.
    Progress {
        /// Entries since the start.
        entries: u64,
    },
    /// Something was removed, or would be.
    Removed(Garbage),
    /// Something could not be looked at or removed; the collection goes on.
    Failed(Error),
}

/// What a collection did, or would do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcSummary {
    /// Directory entries looked at.
    pub entries: u64,
    /// Things removed.
    pub removed: u64,
    /// Bytes of content in them.
    pub freed_bytes: u64,
    /// Things that could not be looked at or removed.
    pub failed: u64,
}

impl PosixStore {
    /// Removes what interrupted work left behind, and tells `tell` of each thing.
    /// Memory: one open directory for each level of the tree. Cost: one `getdents64` for about a
    /// thousand entries, and two or three calls for each directory and each thing removed.
    /// Errors: `NoSuchBucket` before anything is removed; what `tell` returns.
    pub fn collect_garbage(
        &self,
        options: &GcOptions,
        tell: &mut dyn FnMut(GcEvent) -> Result<()>,
    ) -> Result<GcSummary> {
        let buckets = self.chosen_buckets(&options.buckets)?;
        let summary = GcSummary::default();
        let mut sweep = Sweep { inner: &self.inner, options, now_ns: now_ns(), tell, summary };
        for bucket in &buckets {
            sweep.staged_files(bucket)?;
            sweep.uploads(bucket)?;
            sweep.tree(bucket, &odd_dir(bucket))?;
            sweep.tree(bucket, bucket.as_str())?;
        }
        Ok(sweep.summary)
    }
}

struct Sweep<'s> {
    inner: &'s Inner,
    options: &'s GcOptions,
    now_ns: i64,
    tell: &'s mut dyn FnMut(GcEvent) -> Result<()>,
    summary: GcSummary,
}

impl Sweep<'_> {
    fn staged_files(&mut self, bucket: &Bucket) -> Result<()> {
        let path = tmp_dir(bucket);
        let limit = self.options.staged_age;
        self.each_below(bucket, &path, |sweep, dir, name| {
            let Ok(stat) = stat_in(dir, name) else { return Ok(()) };
            if !stat.is_file || sweep.is_younger(newest_ns(&stat), limit) {
                return Ok(());
            }
            let garbage = Garbage {
                kind: GarbageKind::StagedFile,
                path: join(&path, name),
                size_bytes: size_freed(&stat),
            };
            sweep.remove(bucket, garbage, || removed(remove_file(dir, name))).map(drop)
        })
    }

    fn uploads(&mut self, bucket: &Bucket) -> Result<()> {
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

    /// Sweeps the tree of objects at `path`: the plain ones of a bucket, or its odd ones.
    fn tree(&mut self, bucket: &Bucket, path: &str) -> Result<()> {
        match self.inner.open_to_scan(path) {
            Ok(dir) => self.directory(bucket, &dir, path).map(drop),
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => self.failed(bucket, errno, "opening", path),
        }
    }

    /// Sweeps what is in `dir`, which lies at `path`; says whether it leaves nothing.
    fn directory(&mut self, bucket: &Bucket, dir: &File, path: &str) -> Result<bool> {
        let mut is_empty = true;
        let read = each_entry(dir, |name, kind| {
            self.looked_at_one()?;
            let is_private = name == PRIVATE_DIR.as_bytes() && path == bucket.as_str();
            let is_gone = match std::str::from_utf8(name) {
                Ok(name) if !is_private => self.entry(bucket, dir, path, name, kind)?,
                _ => false,
            };
            is_empty &= is_gone;
            Ok(())
        })?;
        if let Err(errno) = read {
            self.failed(bucket, errno, "reading", path)?;
            return Ok(false);
        }
        Ok(is_empty)
    }

    /// Says whether the entry is gone now.
    fn entry(
        &mut self,
        bucket: &Bucket,
        dir: &File,
        path: &str,
        name: &str,
        kind: EntryKind,
    ) -> Result<bool> {
        let is_odd = path.len() > bucket.as_str().len() && path.starts_with(&odd_dir(bucket));
        match known_kind(dir, name, kind) {
            EntryKind::Dir => self.child(bucket, dir, path, name, is_odd),
            EntryKind::File if is_odd => self.hidden_file(bucket, dir, &join(path, name), name),
            _ => Ok(false),
        }
    }

    fn child(
        &mut self,
        bucket: &Bucket,
        parent: &File,
        path: &str,
        name: &str,
        is_odd: bool,
    ) -> Result<bool> {
        let Some(path) = path_of_child(bucket, path, name) else { return Ok(false) };
        let dir = match open_child(parent, name) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => return Ok(true),
            // A writer has put a file in its place.
            Err(Errno::NOTDIR | Errno::LOOP) => return Ok(false),
            Err(errno) => return self.failed(bucket, errno, "opening", &path).map(|()| false),
        };
        // Before what is below it goes, which is a change of it too.
        let changed_ns = stat(&dir).map_or(self.now_ns, |stat| newest_ns(&stat));
        if !self.directory(bucket, &dir, &path)? || self.is_younger(changed_ns, self.options.empty_dir_age) {
            return Ok(false);
        }
        // All below `odd/` is ours; elsewhere an empty directory may be what somebody wants.
        let is_ours = is_odd || is_marked(parent, name);
        if !is_ours {
            return Ok(false);
        }
        let garbage = Garbage { kind: GarbageKind::EmptyDir, path, size_bytes: 0 };
        self.remove(bucket, garbage, || removed(remove_dir(parent, name)))
    }

    /// Removes an odd file if a plain one has its key: as a delete of the key would, but for the
    /// plain file.
    fn hidden_file(&mut self, bucket: &Bucket, dir: &File, path: &str, name: &str) -> Result<bool> {
        let below = path.get(odd_dir(bucket).len() + 1..).unwrap_or_default();
        let Some(key) = decode(below) else { return Ok(false) };
        let Some(plain) = plain(bucket, &key).map(|place| place.path()) else { return Ok(false) };
        let (Ok(stat), true) = (stat_in(dir, name), self.inner.is_file(&plain)) else { return Ok(false) };
        let garbage =
            Garbage { kind: GarbageKind::HiddenFile, path: path.to_owned(), size_bytes: size_freed(&stat) };
        let inner = self.inner;
        // Nobody removes the plain file while we hold the key's lock.
        let remove = || match inner.is_file(&plain) {
            true => inner.remove_at(bucket, &odd(bucket, &key), inner.contents(bucket)?),
            false => Ok(false),
        };
        self.remove(bucket, garbage, || inner.locked(bucket, &key, |_| remove()))
    }

    /// Removes `garbage` unless this is only a rehearsal, and tells; says whether it is gone, or
    /// would be.
    fn remove(
        &mut self,
        bucket: &Bucket,
        garbage: Garbage,
        remove: impl FnOnce() -> Result<bool>,
    ) -> Result<bool> {
        let removed = if self.options.dry_run { Ok(true) } else { remove() };
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
    fn each_below(
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

    fn looked_at_one(&mut self) -> Result<()> {
        self.summary.entries += 1;
        let entries = self.summary.entries;
        if entries.is_multiple_of(PROGRESS_ENTRIES) {
            (self.tell)(GcEvent::Progress { entries })
        } else {
            Ok(())
        }
    }

    fn failed(&mut self, bucket: &Bucket, errno: Errno, doing: &str, path: &str) -> Result<()> {
        self.tell_failure(bucket, path, from_errno(errno, doing))
    }

    fn tell_failure(&mut self, bucket: &Bucket, path: &str, error: Error) -> Result<()> {
        self.summary.failed += 1;
        let below = path.get(bucket.as_str().len() + 1..).unwrap_or_default();
        (self.tell)(GcEvent::Failed(error.during(OPERATION, LANE, bucket.as_str(), below)))
    }

    /// Whether a change at that time is no longer ago than `limit`.
    fn is_younger(&self, changed_ns: i64, limit: Duration) -> bool {
        let limit_ns = i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX);
        self.now_ns.saturating_sub(changed_ns) <= limit_ns
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

/// Whether a call removed something; what is gone, or in use again, is no failure.
fn removed(done: Result<(), Errno>) -> Result<bool> {
    match done {
        Ok(()) => Ok(true),
        Err(Errno::NOENT | Errno::NOTEMPTY | Errno::NOTDIR | Errno::ISDIR) => Ok(false),
        Err(errno) => Err(from_errno(errno, "removing")),
    }
}

/// A program can set the time of the last write into the past, but not that of the last change.
fn newest_ns(stat: &FileStat) -> i64 {
    stat.modified_ns.max(stat.changed_ns)
}

/// A second name keeps the bytes where they are.
fn size_freed(stat: &FileStat) -> u64 {
    if stat.links > 1 || stat.is_dir { 0 } else { stat.size }
}

fn now_ns() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_nanos()).unwrap_or(i64::MAX)
}
