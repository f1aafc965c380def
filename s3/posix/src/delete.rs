//! Removes objects, and the directories that become empty as a result.

use std::os::fd::AsFd;
use std::sync::Arc;

use fordway_store::{
    Bucket, DeleteOptions, DeleteResult, Error, ErrorKind, Key, Result, VersionId, VersioningState,
};
use fordway_sys::{
    Errno, Mode, OFlags, get_xattr_in, name_to_text, open_in, read_dir, remove_dir, remove_file,
    remove_xattr, stat, stat_in, stat_now,
};

use crate::PosixStoreState;
use crate::contested::callers_place;
use crate::emptied::remove_later;
use crate::errors::from_errno;
use crate::events::{ChangeRecorder, EventFacts, kind_of_delete, unrecorded};
use crate::layout::{
    ATTRIBUTE, OUR_DIR, ObjectPath, PRIVATE_DIR, marked_dir, odd, plain, private_dir, split,
};
use crate::object_lock::VersionProtection;
use crate::private::PrivateDirectoryContents;
use crate::sidecar::UnlinkingFile;

fn is_full(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::QuotaExceeded)
}

impl PosixStoreState {
    pub(crate) fn delete(
        self: &Arc<Self>,
        bucket: &Bucket,
        key: &Key,
        options: &DeleteOptions,
    ) -> Result<DeleteResult> {
        if !options.conditions.is_empty() {
            self.require_locks("If-Match on deletes")?;
        }
        options.version.as_ref().map_or(Ok(()), VersionId::check_generated)?;
        let (mut pending, mut late) = (None, None);
        let delete = |contents: PrivateDirectoryContents| {
            if !options.conditions.is_empty() {
                self.volume.refresh(bucket, key, contents)?;
                let open = || self.volume.versions(bucket, key).open_version(options.version.as_ref());
                let mut found = open();
                if found.is_err() && contents.sharing.is_shared() {
                    self.volume.reveal_object(bucket, key, contents)?;
                    found = open();
                }
                if !options.conditions.check_delete(found.map(|opened| opened.etag()))? {
                    return Ok(DeleteResult { version: options.version.clone(), is_marker: false });
                }
            }
            let kind = kind_of_delete(options, contents);
            match ChangeRecorder::of(self, bucket, contents).prepare(key, kind) {
                // On a full file system, the removal itself frees the space for its record.
                Err(error) if is_full(&error) => late = Some((contents, kind)),
                prepared => pending = prepared?,
            }
            if contents.versioning != VersioningState::Unversioned {
                return self.delete_versioned((bucket, key), options, contents);
            }
            // In a bucket without versioning, the object itself is the version `null`.
            if options.version.as_ref().is_none_or(VersionId::is_null) {
                self.remove(bucket, key, contents)?;
            }
            Ok(DeleteResult { version: options.version.clone(), is_marker: false })
        };
        // An unconditional delete must be possible even if the file system has no room for a lock table.
        let deleted = match options.conditions.is_empty() {
            true => self.locked_if_room(bucket, key, delete),
            false => self.locked(bucket, key, delete),
        }?;
        if let Some((contents, kind)) = late {
            let prepared = ChangeRecorder::of(self, bucket, contents).prepare(key, kind);
            pending = prepared.map_err(|error| unrecorded(kind, key, error))?;
        }
        if let Some(pending) = pending {
            pending.record(EventFacts::removed(deleted.version.clone()))?;
        }
        Ok(deleted)
    }

    /// Removes the key's file, at its plain path or its odd path. A key may have two files. The first file was written
    /// to the odd path while the plain path was taken. The second file was written to the plain path later, and hides
    /// the first. The hidden file is removed first. Otherwise, readers would see the hidden file after a crash, or
    /// between the two steps. If only one of the files is the caller's, only this file is removed (see
    /// [`crate::contested`]).
    pub(crate) fn remove(
        &self,
        bucket: &Bucket,
        key: &Key,
        contents: PrivateDirectoryContents,
    ) -> Result<()> {
        if !contents.exists {
            // Later deletes are cheaper if the private directory exists. If this directory cannot be created, later
            // deletes cost as much as this delete.
            let _ = self.volume.make_dirs(bucket, &private_dir(bucket));
        }
        self.recent_puts.remove(self.recent_puts.hash(bucket, key));
        // If the key has both a marker and an object at its odd path, the object hides the marker, so the marker is
        // removed first.
        let marker = contents.has_markers && self.remove_marker(bucket, key, contents)?;
        if let Some(own) = callers_place(&self.volume, bucket, key, contents) {
            return self.remove_at(bucket, &own, contents).map(drop);
        }
        let odd = contents.has_odd && self.remove_at(bucket, &odd(bucket, key), contents)?;
        let plain = match plain(bucket, key) {
            Some(place) => self.remove_at(bucket, &place, contents)?,
            None => false,
        };
        if !plain && !odd && !marker {
            self.volume.require_bucket(bucket)?;
        }
        Ok(())
    }

    /// Removes the key's file as [`PosixStoreState::remove`] does, but keeps a hidden file at the key's odd path that
    /// the plain file must not replace ([`StoreDirectoryTree::may_replace_odd`]). The caller has examined only the
    /// plain file.
    pub(crate) fn remove_seen(
        &self,
        bucket: &Bucket,
        key: &Key,
        contents: PrivateDirectoryContents,
    ) -> Result<()> {
        if contents.has_odd
            && contents.guard.is_some()
            && let Some(place) = plain(bucket, key)
            && self.volume.is_file(&place.path())
        {
            let hidden = odd(bucket, key);
            let stat = self.volume.open_dir(&hidden.dir).and_then(|dir| stat_in(dir, &hidden.name));
            if let Ok(stat) = stat
                && !self.volume.may_replace_odd(bucket, &place, &stat)?
            {
                return self.remove_at(bucket, &place, contents).map(drop);
            }
        }
        self.remove(bucket, key, contents)
    }

    /// Removes the file at the key's odd path, which the file at `place` hides. Does nothing if `place` is the odd
    /// path. In a bucket that keeps versions, the hidden file is a version, and becomes an old version before the odd
    /// path is removed. Another user's file remains (see [`crate::contested`]). Returns the order that the ID of a new
    /// version must exceed; 0 if no file became an old version.
    pub(crate) fn remove_hidden_odd(
        self: &Arc<Self>,
        bucket: &Bucket,
        key: &Key,
        place: &ObjectPath,
        contents: PrivateDirectoryContents,
    ) -> Result<u64> {
        let odd = odd(bucket, key);
        if !contents.has_odd || *place == odd {
            return Ok(0);
        }
        if callers_place(&self.volume, bucket, key, contents).is_some() {
            return Ok(0);
        }
        match contents.versioning {
            VersioningState::Unversioned => self.remove_at(bucket, &odd, contents).map(|_removed| 0),
            _ => self.archive_hidden(bucket, key, &odd, contents),
        }
    }

    /// Removes the file at `place`, then each parent directory that was created by Fordway and is now empty. Returns
    /// whether there was a file at `place`.
    pub(crate) fn remove_at(
        &self,
        bucket: &Bucket,
        place: &ObjectPath,
        contents: PrivateDirectoryContents,
    ) -> Result<bool> {
        let mut removed = self.unlink(bucket, place, contents);
        if matches!(removed, Err(Errno::NOENT | Errno::STALE)) && contents.sharing.is_shared() {
            self.volume.reveal(place, contents.sharing)?;
            removed = self.unlink(bucket, place, contents);
        }
        let protection = VersionProtection { volume: &self.volume, bucket, contents };
        if matches!(removed, Err(Errno::PERM)) && protection.unshield_moved(place)? {
            removed = self.unlink(bucket, place, contents);
        }
        match removed {
            Ok(gone) => {
                self.volume.remove_sidecar(bucket, gone);
                self.prune(bucket, &place.dir, contents);
                Ok(true)
            }
            Err(Errno::NOENT | Errno::STALE | Errno::NOTDIR | Errno::ISDIR | Errno::NAMETOOLONG) => Ok(false),
            Err(errno) => Err(from_errno(errno, "removing")),
        }
    }

    fn forget_dir(&self, dir: &str, contents: PrivateDirectoryContents) {
        match contents.sharing.is_shared() {
            true => self.volume.refresh_dirs(dir),
            false => self.volume.dirs.forget(dir),
        }
    }

    /// Removes the file. If the file may have had a sidecar file, returns the removed file.
    fn unlink(
        &self,
        bucket: &Bucket,
        place: &ObjectPath,
        contents: PrivateDirectoryContents,
    ) -> Result<Option<UnlinkingFile>, Errno> {
        let mut dir = self.volume.dirs.open(&self.volume.root, &place.dir)?.for_change()?;
        if contents.sharing.is_shared() {
            // Without this call, this node's file system client may fail to see a name that another node has just
            // created.
            let _ = stat_now(&dir);
        }
        let gone = self.volume.may_have_sidecar((bucket, contents), &dir, &place.name);
        let mut removed = remove_file(&dir, &place.name);
        if removed == Err(Errno::STALE) || (removed == Err(Errno::NOENT) && dir.is_gone()) {
            self.forget_dir(&place.dir, contents);
            dir = self.volume.dirs.open(&self.volume.root, &place.dir)?.for_change()?;
            removed = remove_file(&dir, &place.name);
        }
        match removed {
            // For a directory, unlink(2) fails with EISDIR on Linux, and with EPERM according to POSIX.
            Err(Errno::PERM) if stat_in(&dir, &place.name).is_ok_and(|stat| stat.is_dir) => {
                return Err(Errno::ISDIR);
            }
            done => done?,
        }
        self.volume.sync_names(&dir)?;
        Ok(gone)
    }

    /// Removes `dir` and its parents as long as they are empty and were created by Fordway. A directory that cannot be
    /// removed remains. An empty directory is not an object, so it is not visible through S3. If `dir` may be an object
    /// and the thread holds a key's lock, the directories are removed after the lock is released.
    pub(crate) fn prune(&self, bucket: &Bucket, dir: &str, contents: PrivateDirectoryContents) {
        let mut dir = dir;
        while dir.len() > bucket.as_str().len() {
            let (parent, name) = split(dir);
            let Ok(opened) = self.volume.root.open_to_change(parent) else { return };
            if !may_be_ours(&opened, name) {
                return;
            }
            let remove = || remove_dir(&opened, name).is_ok();
            let is_removed = match self.key_of_dir(bucket, dir, contents) {
                None => remove(),
                Some(_) if remove_later(bucket, dir, contents) => return,
                Some(key) => self.remove_unless_marker(bucket, &key, remove),
            };
            if !is_removed {
                return;
            }
            dir = parent;
        }
    }

    /// Removes the record of the directory that is the object `key`, so that the directory is no longer an object. Also
    /// removes the directory if it is empty and was created by Fordway. Returns whether the directory was an object.
    pub(crate) fn remove_marker(
        &self,
        bucket: &Bucket,
        key: &Key,
        contents: PrivateDirectoryContents,
    ) -> Result<bool> {
        let Some(marker) = self.volume.open_marker(bucket, key, contents)? else { return Ok(false) };
        let failed = |errno| from_errno(errno, "removing");
        if let Some(path) = marked_dir(bucket, key) {
            let own = self.volume.root.open_to_change(&path).and_then(stat).map_err(failed)?;
            if (own.device, own.inode) != (marker.stat.device, marker.stat.inode) {
                return Err(ErrorKind::ConditionalConflict.into());
            }
        }
        let removed = remove_xattr(&marker.file, ATTRIBUTE).map_err(failed)?;
        self.volume.sync_record(&marker.file)?;
        if let Some(path) = marked_dir(bucket, key) {
            let (parent, name) = split(&path);
            let is_pruned = self
                .volume
                .root
                .open_to_change(parent)
                .is_ok_and(|parent| is_marked(&parent, name) && remove_dir(&parent, name).is_ok());
            if is_pruned {
                self.prune(bucket, parent, contents);
            }
        }
        Ok(removed)
    }

    /// Calls `remove` for the empty directory at `path`, unless the directory is an object. If the bucket has markers,
    /// calls `remove` under the lock of the key that the directory would have as an object. If this lock is not free
    /// soon, does not call `remove`. The thread must not hold the lock of any key. Returns the result of `remove`, or
    /// `false` if `remove` was not called.
    pub(crate) fn unless_marker(
        &self,
        bucket: &Bucket,
        path: &str,
        contents: PrivateDirectoryContents,
        remove: impl FnOnce() -> bool,
    ) -> bool {
        match self.key_of_dir(bucket, path, contents) {
            Some(key) => self.remove_unless_marker(bucket, &key, remove),
            None => remove(),
        }
    }

    /// Returns the key that the directory at `path` would have as an object; `None` if it cannot be an object.
    fn key_of_dir(&self, bucket: &Bucket, path: &str, contents: PrivateDirectoryContents) -> Option<Key> {
        // The bucket's first marker may have been created since `contents` was read.
        if !contents.has_markers && self.volume.contents(bucket).is_ok_and(|now| !now.has_markers) {
            return None;
        }
        let path = path.get(bucket.as_str().len() + 1..)?;
        // No directory in the private directory is an object.
        let is_private = path.split('/').next() == Some(PRIVATE_DIR);
        if is_private { None } else { Key::new(format!("{path}/")).ok() }
    }

    fn remove_unless_marker(&self, bucket: &Bucket, key: &Key, remove: impl FnOnce() -> bool) -> bool {
        let removed = self.locked_if_soon_free(bucket, key, |contents| {
            matches!(self.volume.open_marker(bucket, key, contents), Ok(None)) && remove()
        });
        removed.unwrap_or_default()
    }
}

/// Returns whether the directory has the mark that Fordway sets on directories created for a put.
pub(crate) fn is_marked(parent: impl AsFd, name: &str) -> bool {
    matches!(get_xattr_in(parent, name, OUR_DIR, &mut [0; 8]), Ok(Some(_)))
}

/// Returns whether the directory is marked, or the file system cannot mark directories. Without the second condition, a
/// bucket on such a file system could never be emptied.
fn may_be_ours(parent: impl AsFd, name: &str) -> bool {
    matches!(get_xattr_in(parent, name, OUR_DIR, &mut [0; 8]), Ok(Some(_)) | Err(Errno::OPNOTSUPP))
}

/// The maximum depth of a tree of encoded keys. The longest encoded key has 13 names.
const DEEPEST_TREE: usize = 32;

/// Removes the directory `name` in `parent` with all directories below it, if they contain nothing else. A missing
/// directory is not an error. Errors: `NOTEMPTY`, including for a tree that is deeper than any tree that Fordway
/// creates.
pub(crate) fn remove_empty_tree(parent: &impl AsFd, name: &str) -> Result<(), Errno> {
    remove_empty_levels(parent, name, DEEPEST_TREE)
}

fn remove_empty_levels(parent: &impl AsFd, name: &str, levels: usize) -> Result<(), Errno> {
    let below = levels.checked_sub(1).ok_or(Errno::NOTEMPTY)?;
    let dir = match open_in(parent, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
        Ok(dir) => dir,
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTDIR | Errno::LOOP) => return Err(Errno::NOTEMPTY),
        Err(errno) => return Err(errno),
    };
    let mut names = Vec::new();
    read_dir(&dir, |name, _| names.push(name_to_text(name).into_owned()))?;
    for name in &names {
        remove_empty_levels(&dir, name, below)?;
    }
    match remove_dir(parent, name) {
        Err(Errno::NOENT) => Ok(()),
        done => done,
    }
}
