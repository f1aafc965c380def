//! Objects and versions: empty directories, files that others hide, names of what is the latest.

use std::fs::File;

use fordway_store::Result;
use fordway_sys::{EntryKind, Errno, remove_dir, stat, stat_in};

use super::sweep::{Sweep, newest_ns, removed, size_freed};
use super::{Garbage, GarbageKind};
use crate::delete::is_marked;
use crate::layout::{join, odd, plain};
use crate::scan::{Area, Held, each_entry, known_kind, open_child, path_of_child};

impl Sweep<'_> {
    /// Sweeps all that lies in `area`.
    pub(super) fn tree(&mut self, area: &Area) -> Result<()> {
        match self.inner.open_to_scan(&area.top) {
            Ok(dir) => self.directory(area, &dir, &area.top).map(drop),
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => self.failed(area.bucket, errno, "opening", &area.top),
        }
    }

    /// Sweeps what is in `dir`, which lies at `path`; says whether it leaves nothing.
    fn directory(&mut self, area: &Area, dir: &File, path: &str) -> Result<bool> {
        let mut is_empty = true;
        let read = each_entry(dir, |name, kind| {
            self.looked_at_one()?;
            let is_gone = match std::str::from_utf8(name) {
                Ok(text) if !area.is_private(path, name) => self.entry(area, dir, path, text, kind)?,
                _ => false,
            };
            is_empty &= is_gone;
            Ok(())
        })?;
        if let Err(errno) = read {
            self.failed(area.bucket, errno, "reading", path)?;
            return Ok(false);
        }
        Ok(is_empty)
    }

    /// Says whether the entry is gone now.
    fn entry(&mut self, area: &Area, dir: &File, path: &str, name: &str, kind: EntryKind) -> Result<bool> {
        match (known_kind(dir, name, kind), area.held) {
            (EntryKind::Dir, _) => self.child(area, dir, path, name),
            (EntryKind::File, Held::Odd) => self.hidden_file(area, dir, &join(path, name), name),
            (EntryKind::File, Held::Versions) => self.version(area, dir, path, name),
            _ => Ok(false),
        }
    }

    fn child(&mut self, area: &Area, parent: &File, path: &str, name: &str) -> Result<bool> {
        let Some(path) = path_of_child(area.bucket, path, name) else { return Ok(false) };
        let dir = match open_child(parent, name) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => return Ok(true),
            // A writer has put a file in its place.
            Err(Errno::NOTDIR | Errno::LOOP) => return Ok(false),
            Err(errno) => return self.failed(area.bucket, errno, "opening", &path).map(|()| false),
        };
        // Before what is below it goes, which is a change of it too.
        let changed_ns = stat(&dir).map_or(i64::MAX, |stat| newest_ns(&stat));
        if !self.directory(area, &dir, &path)? || self.is_younger(changed_ns, self.options.empty_dir_age) {
            return Ok(false);
        }
        // All below our own directory is ours; elsewhere an empty one may be what somebody wants.
        if area.held == Held::Plain && !is_marked(parent, name) {
            return Ok(false);
        }
        let inner = self.inner;
        let remove = || match area.decode(&path).filter(|_| area.held == Held::Versions) {
            // Whoever keeps a version of the key counts on its directory.
            Some(key) => inner.locked(area.bucket, &key, |_| removed(remove_dir(parent, name))),
            None => removed(remove_dir(parent, name)),
        };
        let garbage = Garbage { kind: GarbageKind::EmptyDir, path: path.clone(), size_bytes: 0 };
        self.remove(area.bucket, garbage, remove)
    }

    /// Removes an odd file if a plain one has its key: as a delete of the key would, but for the
    /// plain file.
    fn hidden_file(&mut self, area: &Area, dir: &File, path: &str, name: &str) -> Result<bool> {
        let bucket = area.bucket;
        let Some(key) = area.decode(path) else { return Ok(false) };
        let Some(plain) = plain(bucket, &key).map(|place| place.path()) else { return Ok(false) };
        let (Ok(stat), true) = (stat_in(dir, name), self.inner.is_file(&plain)) else { return Ok(false) };
        let garbage =
            Garbage { kind: GarbageKind::HiddenFile, path: path.to_owned(), size_bytes: size_freed(&stat) };
        let inner = self.inner;
        // Nobody removes the plain file while we hold the key's lock.
        self.remove(bucket, garbage, || {
            inner.locked(bucket, &key, |contents| match inner.is_file(&plain) {
                true => inner.remove_at(bucket, &odd(bucket, &key), contents),
                false => Ok(false),
            })
        })
    }
}
