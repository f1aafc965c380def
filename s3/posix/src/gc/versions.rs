//! Names among the old versions that say nothing, because what has them is the latest version.

use std::fs::File;

use fordway_store::{Bucket, Key, Result};
use fordway_sys::{FileStat, stat_in};

use super::sweep::{Sweep, newest_ns};
use super::{Garbage, GarbageKind};
use crate::Inner;
use crate::layout::{Place, join};
use crate::private::Contents;
use crate::scan::Area;
use crate::versions::Archived;

impl Sweep<'_> {
    /// Removes the name of a version that did not become an old one, because its writer died on the
    /// way. Says whether the name is gone.
    pub(super) fn version(&mut self, area: &Area, dir: &File, path: &str, name: &str) -> Result<bool> {
        let (Some(key), Some(found)) = (area.decode(path), Archived::parse(name)) else { return Ok(false) };
        let Ok(stat) = stat_in(dir, name) else { return Ok(false) };
        // What has one name is an old version and nothing else.
        if found.is_marker || stat.links < 2 || self.is_younger(newest_ns(&stat), self.options.staged_age) {
            return Ok(false);
        }
        let (inner, bucket, place) = (self.inner, area.bucket, join(path, name));
        let is_latest = |contents| inner.is_latest(bucket, &key, &stat, contents);
        match inner.contents(bucket).and_then(is_latest) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) => return self.tell_failure(bucket, &place, error).map(|()| false),
        }
        let garbage = Garbage { kind: GarbageKind::VersionAlias, path: place.clone(), size_bytes: 0 };
        self.remove(bucket, (garbage, stat.user), || {
            inner.locked(bucket, &key, |contents| match is_latest(contents)? {
                true => inner.remove_at(bucket, &Place::of_path(place.clone()), contents),
                false => Ok(false),
            })
        })
    }
}

impl Inner {
    /// Whether a file with the state `stat` is the latest version of `key`.
    fn is_latest(&self, bucket: &Bucket, key: &Key, stat: &FileStat, contents: Contents) -> Result<bool> {
        let latest = self.locate(bucket, key, contents)?.map(|(_, opened)| opened.stat);
        Ok(latest.is_some_and(|latest| (latest.device, latest.inode) == (stat.device, stat.inode)))
    }
}
