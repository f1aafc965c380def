//! Files that a writer staged and never published.

use fordway_store::{Bucket, Result};
use fordway_sys::stat_in;

use super::sweep::{Sweep, newest_ns, removed, size_freed};
use super::{Garbage, GarbageKind};
use crate::area::remove_staged;
use crate::layout::{is_hidden_name, join, tmp_dir};

impl Sweep<'_> {
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
            let garbage = Garbage {
                kind: GarbageKind::StagedFile,
                path: join(&path, name),
                size_bytes: size_freed(&stat),
            };
            sweep.remove(bucket, (garbage, stat.user), || removed(remove_staged(dir, name))).map(drop)
        })
    }
}
