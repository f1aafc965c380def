//! Objects and versions: empty directories, files that others hide, names of what is the latest.

use std::fs::File;

use fordway_store::{Bucket, Key, Result};
use fordway_sys::{EntryKind, Errno, FileStat, name_to_text, remove_dir, stat, stat_in};

use super::sweep::{Sweep, newest_ns, removed, size_freed};
use super::{Garbage, GarbageKind};
use crate::Inner;
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
            is_empty &=
                !area.is_private(path, name) && self.entry(area, dir, path, &name_to_text(name), kind)?;
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
        let (dir, owner) = match open_child(parent, name) {
            Ok(dir) => (dir, None),
            Err(Errno::NOENT) => return Ok(true),
            // A writer has put a file in its place.
            Err(Errno::NOTDIR | Errno::LOOP) => return Ok(false),
            Err(errno) => match self.actors.open_as_owner(parent, name, errno) {
                Ok((dir, owner)) => (dir, Some(owner)),
                Err(errno) => return self.failed(area.bucket, errno, "opening", &path).map(|()| false),
            },
        };
        // Before what is below it goes, which is a change of it too.
        let state = stat(&dir).ok();
        let is_empty = match owner {
            None => self.directory(area, &dir, &path)?,
            Some(owner) => self.actors.clone().act_as(owner, || self.directory(area, &dir, &path))?,
        };
        match state {
            Some(state) if is_empty => self.empty_dir(area, (parent, name), path, (&state, owner)),
            _ => Ok(false),
        }
    }

    /// Removes an empty directory that a put had made; says whether it is gone.
    fn empty_dir(
        &mut self,
        area: &Area,
        (parent, name): (&File, &str),
        path: String,
        (state, looked_at_by): (&FileStat, Option<u32>),
    ) -> Result<bool> {
        if self.is_younger(newest_ns(state), self.options.empty_dir_age) {
            return Ok(false);
        }
        let inner = self.inner;
        // Elsewhere than among our own an empty one may be what somebody wants, or an object.
        let is_ours = match area.held {
            Held::Plain => {
                let look = || Ok(is_marked(parent, name) && !inner.is_marker(area.bucket, &path));
                looked_at_by.map_or_else(look, |owner| self.actors.act_as(owner, look))?
            }
            Held::Odd | Held::Versions => area.is_our_dir(&path),
        };
        if !is_ours {
            return Ok(false);
        }
        let garbage = Garbage { kind: GarbageKind::EmptyDir, path: path.clone(), size_bytes: 0 };
        let remove = || inner.remove_empty_dir(area, (parent, name), &path);
        self.remove(area.bucket, (garbage, state.user), remove)
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
        self.remove(bucket, (garbage, stat.user), || {
            inner.locked(bucket, &key, |contents| match inner.is_file(&plain) {
                true => inner.remove_at(bucket, &odd(bucket, &key), contents),
                false => Ok(false),
            })
        })
    }
}

impl Inner {
    /// Whether the directory at `path` is an object, or may be.
    fn is_marker(&self, bucket: &Bucket, path: &str) -> bool {
        let contents = self.contents(bucket);
        let key = path.get(bucket.as_str().len() + 1..).and_then(|below| Key::new(format!("{below}/")).ok());
        match (contents, key) {
            (Ok(contents), Some(key)) => !matches!(self.open_marker(bucket, &key, contents), Ok(None)),
            (contents, _) => contents.is_err(),
        }
    }

    fn remove_empty_dir(&self, area: &Area, (parent, name): (&File, &str), path: &str) -> Result<bool> {
        let remove = || removed(remove_dir(parent, name));
        match (area.held, area.decode(path)) {
            // Whoever keeps a version of the key counts on its directory.
            (Held::Versions, Some(key)) => self.locked(area.bucket, &key, |_| remove()),
            (Held::Plain, _) => {
                let mut done = Ok(false);
                self.unless_marker(area.bucket, path, self.contents(area.bucket)?, || {
                    done = remove();
                    matches!(done, Ok(true))
                });
                done
            }
            _ => remove(),
        }
    }
}
