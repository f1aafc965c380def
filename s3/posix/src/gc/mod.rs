//! Removing what interrupted work left behind. Safe beside writers: whatever is removed is old, or
//! checked again under its key's lock, or an empty directory, which a writer makes again.

mod garbage;
mod sidecars;
mod staged;
mod sweep;
mod tree;
mod uploads;
mod versions;

use std::rc::Rc;
use std::time::Duration;

use fordway_store::{Bucket, Result};

pub use garbage::{Garbage, GarbageKind, GcEvent, GcSummary};

use crate::PosixStore;
use crate::actors::Actors;
use sweep::Sweep;

/// What [`PosixStore::collect_garbage`] looks at.
#[derive(Clone, Debug)]
pub struct GcOptions {
    /// The buckets; none means all.
    pub buckets: Vec<Bucket>,
    /// How long a staged file, the rest of an upload without its record, a sidecar file without its
    /// object, or a second name of the latest version, must not have changed.
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
    /// All buckets; uploads of a week, everything else of a day.
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

impl PosixStore {
    /// Removes what interrupted work left behind, and tells `tell` of each thing. A process that may act as
    /// other users does so in each bucket as its owner, and on what is another's as that user.
    /// Memory: one open directory for each level of the tree, and about 20 bytes for each old sidecar
    /// file of one bucket. Cost: one `getdents64` for about a thousand entries, and two or three calls
    /// for each directory and each thing removed; where there are old sidecar files, one `newfstatat`
    /// for each file, and one `openat`, `pread` and `close` for each sidecar file.
    /// Errors: `NoSuchBucket` before anything is removed; what `tell` returns.
    pub fn collect_garbage(
        &self,
        options: &GcOptions,
        tell: &mut dyn FnMut(GcEvent) -> Result<()>,
    ) -> Result<GcSummary> {
        let buckets = self.chosen_buckets(&options.buckets)?;
        let actors = Rc::new(Actors::new());
        let mut sweep = Sweep::new(&self.inner, actors.clone(), options, tell);
        for bucket in &buckets {
            actors.in_bucket(&self.inner, bucket, || sweep.bucket(bucket))?;
        }
        Ok(sweep.into_summary())
    }
}
