//! Removes three kinds of remains of objects and versions: empty directories, odd files hidden by a plain file with the
//! same key in a bucket without versions, and names below `versions/` whose file is still the latest version.

use std::fs::File;

use fordway_store::{Bucket, Error, ErrorKind, Key, Result, VersioningState};
use fordway_sys::{EntryKind, Errno, FileStat, get_xattr_in, name_to_text, remove_dir, stat, stat_in};

use crate::PosixStoreState;
use crate::delete::is_marked;
use crate::gc::{GarbageFile, GarbageKind, GcRun, newest_ns, removed, size_freed};
use crate::layout::{ATTRIBUTE, ObjectPath, join, odd, plain};
use crate::private::PrivateDirectoryContents;
use crate::scan::{BucketArea, BucketAreaKind, each_entry, known_kind, open_child, path_of_child};
use crate::versions::names::NoncurrentVersionName;
use crate::volume::StoreDirectoryTree;

impl GcRun<'_> {
    /// Removes the garbage in all of `area`.
    pub(super) fn tree(&mut self, area: &BucketArea) -> Result<()> {
        match self.inner.volume.open_to_scan(&area.top) {
            Ok(dir) => self.directory(area, &dir, &area.top).map(drop),
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => self.failed(area.bucket, errno, "opening", &area.top),
        }
    }

    /// Removes the garbage in `dir`, whose path is `path`. Returns whether the directory is then empty.
    fn directory(&mut self, area: &BucketArea, dir: &File, path: &str) -> Result<bool> {
        let mut is_empty = true;
        let read = each_entry(dir, |name, kind| {
            self.looked_at_one()?;
            is_empty &= !area.is_private(name) && self.entry(area, dir, path, &name_to_text(name), kind)?;
            Ok(())
        })?;
        if let Err(errno) = read {
            self.failed(area.bucket, errno, "reading", path)?;
            return Ok(false);
        }
        Ok(is_empty)
    }

    /// Removes an entry if it is garbage. Removes the garbage in a directory first. Returns whether the entry is now
    /// gone.
    fn entry(
        &mut self,
        area: &BucketArea,
        dir: &File,
        path: &str,
        name: &str,
        kind: EntryKind,
    ) -> Result<bool> {
        match (known_kind(dir, name, kind), area.held) {
            (EntryKind::Dir, _) => self.child(area, dir, path, name),
            (EntryKind::File, BucketAreaKind::Odd) => self.hidden_file(area, dir, &join(path, name), name),
            (EntryKind::File, BucketAreaKind::Versions) => self.version(area, dir, path, name),
            _ => Ok(false),
        }
    }

    fn child(&mut self, area: &BucketArea, parent: &File, path: &str, name: &str) -> Result<bool> {
        let Some(path) = path_of_child(area.bucket, path, name) else { return Ok(false) };
        let (dir, owner) = match open_child(parent, name) {
            Ok(dir) => (dir, None),
            Err(Errno::NOENT) => return Ok(true),
            // A writer has replaced the directory with a file.
            Err(Errno::NOTDIR | Errno::LOOP) => return Ok(false),
            Err(errno) => match self.actors.open_as_owner(parent, name, errno) {
                Ok((dir, owner)) => (dir, Some(owner)),
                Err(errno) => return self.failed(area.bucket, errno, "opening", &path).map(|()| false),
            },
        };
        // The state is read before the content is removed, because removing the content changes the directory's times.
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

    /// Removes an empty directory that was created by a put. Returns whether the directory is gone.
    fn empty_dir(
        &mut self,
        area: &BucketArea,
        (parent, name): (&File, &str),
        path: String,
        (state, looked_at_by): (&FileStat, Option<u32>),
    ) -> Result<bool> {
        if self.is_younger(newest_ns(state), self.options.empty_dir_age) {
            return Ok(false);
        }
        let inner = self.inner;
        // Outside the private area, an empty directory may be an object, or a user may want to keep it.
        let is_ours = match area.held {
            BucketAreaKind::Plain => {
                let look = || {
                    let is_made = is_marked(parent, name) && has_record(parent, name) == Ok(false);
                    Ok(is_made && !is_marker(&inner.volume, area.bucket, &path))
                };
                looked_at_by.map_or_else(look, |owner| self.actors.act_as(owner, look))?
            }
            BucketAreaKind::Odd | BucketAreaKind::Versions => area.is_our_dir(&path),
        };
        if !is_ours {
            return Ok(false);
        }
        let garbage = GarbageFile { kind: GarbageKind::EmptyDir, path: path.clone(), size_bytes: 0 };
        let remove = || remove_empty_dir(inner, area, (parent, name), &path);
        self.remove(area.bucket, (garbage, state.user), remove)
    }

    /// Removes an odd file if a plain file has the same key, and the bucket keeps no versions. Works like a delete of
    /// the key, but keeps the plain file. Returns whether the odd file is gone.
    fn hidden_file(&mut self, area: &BucketArea, dir: &File, path: &str, name: &str) -> Result<bool> {
        let (inner, bucket) = (self.inner, area.bucket);
        let Some(key) = area.decode(path) else { return Ok(false) };
        let Some(place) = plain(bucket, &key).map(ObjectPath::into_owned) else { return Ok(false) };
        let plain = place.path();
        let (Ok(stat), true) = (stat_in(dir, name), inner.volume.is_file(&plain)) else { return Ok(false) };
        // In a bucket that keeps versions, the odd file is a version. The next write or delete of the key archives it.
        let is_garbage = |contents: PrivateDirectoryContents| -> Result<bool> {
            let is_hidden = contents.versioning == VersioningState::Unversioned;
            Ok(is_hidden && inner.volume.may_replace_odd(bucket, &place, &stat)?)
        };
        match inner.volume.contents(bucket).and_then(|contents| Ok((contents, is_garbage(contents)?))) {
            Ok((_, true)) => {}
            Ok((contents, false)) if contents.versioning == VersioningState::Unversioned => {
                let error = hides_anothers(&plain);
                return self.tell_failure(bucket, path, error).map(|()| false);
            }
            Ok(_) => return Ok(false),
            Err(error) => return self.tell_failure(bucket, path, error).map(|()| false),
        }
        let garbage = GarbageFile {
            kind: GarbageKind::HiddenFile,
            path: path.to_owned(),
            size_bytes: size_freed(&stat),
        };
        // No other writer can remove the plain file while this process holds the key's lock.
        self.remove(bucket, (garbage, stat.user), || {
            let hidden = odd(bucket, &key);
            inner.locked(bucket, &key, |contents| {
                // Another node may have removed the plain file, while this node still has it cached.
                inner.volume.refresh(bucket, &key, contents)?;
                match is_garbage(contents)? && inner.volume.is_file(&plain) {
                    true => inner.remove_at(bucket, &hidden, contents),
                    false => Ok(false),
                }
            })
        })
    }
}

/// Returns the error for an object that the file of another user hides, in a bucket with the sticky bit.
fn hides_anothers(plain: &str) -> Error {
    let why = format!(
        "another user's file, {plain}, hides this object; compare the two files, and have the bucket's owner remove one"
    );
    Error::new(ErrorKind::AccessDenied, why)
}

/// Returns whether the directory at `path` is an object, or may be one.
fn is_marker(volume: &StoreDirectoryTree, bucket: &Bucket, path: &str) -> bool {
    let contents = volume.contents(bucket);
    let key = path.get(bucket.as_str().len() + 1..).and_then(|below| Key::new(format!("{below}/")).ok());
    match (contents, key) {
        (Ok(contents), Some(key)) => !matches!(volume.open_marker(bucket, &key, contents), Ok(None)),
        (contents, _) => contents.is_err(),
    }
}

/// Returns whether the directory has an object's record. The directory is then an object, even if the bucket's private
/// area does not state that there are such objects: the directory may be below a bucket that was moved into this
/// bucket, or the private area may be lost.
fn has_record(parent: &File, name: &str) -> Result<bool, Errno> {
    match get_xattr_in(parent, name, ATTRIBUTE, &mut [0; 8]) {
        Ok(found) => Ok(found.is_some()),
        Err(Errno::RANGE) => Ok(true),
        Err(Errno::OPNOTSUPP) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn remove_empty_dir(
    inner: &PosixStoreState,
    area: &BucketArea,
    (parent, name): (&File, &str),
    path: &str,
) -> Result<bool> {
    let remove = || removed(remove_dir(parent, name));
    match (area.held, area.decode(path)) {
        // The key is locked because a writer that keeps an old version of the key relies on this directory.
        (BucketAreaKind::Versions, Some(key)) => inner.locked(area.bucket, &key, |_| remove()),
        (BucketAreaKind::Plain, _) => {
            let mut done = Ok(false);
            inner.unless_marker(area.bucket, path, inner.volume.contents(area.bucket)?, || {
                // If the caller may not read the record, the directory's owner has just found none.
                done = if has_record(parent, name) == Ok(true) { Ok(false) } else { remove() };
                matches!(done, Ok(true))
            });
            done
        }
        _ => remove(),
    }
}

impl GcRun<'_> {
    /// Removes a name among the old versions if its file is still the latest version. Such a name remains if a writer
    /// died before it replaced the latest version. Returns whether the name is gone.
    pub(super) fn version(&mut self, area: &BucketArea, dir: &File, path: &str, name: &str) -> Result<bool> {
        let (Some(key), Some(found)) = (area.decode(path), NoncurrentVersionName::parse(name)) else {
            return Ok(false);
        };
        let Ok(stat) = stat_in(dir, name) else { return Ok(false) };
        // A file with only one name can only be an old version.
        if found.is_marker || stat.links < 2 || self.is_younger(newest_ns(&stat), self.options.staged_age) {
            return Ok(false);
        }
        let (inner, bucket, place) = (self.inner, area.bucket, join(path, name));
        let is_latest = |contents| is_latest(&inner.volume, bucket, &key, &stat, contents);
        match inner.volume.contents(bucket).and_then(is_latest) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) => return self.tell_failure(bucket, &place, error).map(|()| false),
        }
        let garbage = GarbageFile { kind: GarbageKind::VersionAlias, path: place.clone(), size_bytes: 0 };
        self.remove(bucket, (garbage, stat.user), || {
            inner.locked(bucket, &key, |contents| match is_latest(contents)? {
                true => inner.remove_at(bucket, &ObjectPath::of_path(place.clone()), contents),
                false => Ok(false),
            })
        })
    }
}

/// Returns whether a file whose metadata is `stat` is the latest version of `key`.
fn is_latest(
    volume: &StoreDirectoryTree,
    bucket: &Bucket,
    key: &Key,
    stat: &FileStat,
    contents: PrivateDirectoryContents,
) -> Result<bool> {
    let latest = volume.locate(bucket, key, contents)?.map(|(_, opened)| opened.stat);
    Ok(latest.is_some_and(|latest| (latest.device, latest.inode) == (stat.device, stat.inode)))
}
