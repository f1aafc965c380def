//! Changes an object's key with one `rename` call, while holding the locks of both keys.
//!
//! All renames take the two locks in the same order, so that two renames do not deadlock. A put of a new key takes no
//! lock. If no object has the new key yet, the rename must therefore fail if a put creates the new name first.

use std::sync::Arc;

use fordway_store::{Bucket, Error, ErrorKind, Key, RenameOptions, Result, VersioningState};
use fordway_sys::{Errno, FileStat, link, look_up_existing, remove_file, rename, rename_new, stat_in};
use fordway_wire::notification::EventKind;

use crate::contested::check_odd_path;
use crate::dirs::DirectoryHandle;
use crate::errors::from_errno;
use crate::events::{ChangeRecorder, EventFacts, PendingEvent};
use crate::layout::{ObjectPath, odd, plain};
use crate::private::PrivateDirectoryContents;
use crate::shared::leads_to;
use crate::stage::{MAX_RACES, give_way, sync_dir};
use crate::{Durability, PosixStoreState};

/// The object that is renamed.
struct RenameSource {
    place: ObjectPath<'static>,
    /// The device and inode numbers of its file.
    identity: (u64, u64),
}

/// A rename of one object.
pub(crate) struct ObjectRename<'r> {
    pub(crate) store: &'r Arc<PosixStoreState>,
    pub(crate) bucket: &'r Bucket,
    pub(crate) from: &'r Key,
    pub(crate) to: &'r Key,
    pub(crate) options: &'r RenameOptions,
}

impl ObjectRename<'_> {
    /// Renames the object. Errors: as for [`fordway_store::ObjectRenameOperations::rename`].
    pub(crate) fn run(&self) -> Result<()> {
        let ObjectRename { store, bucket, from, to, options } = *self;
        options.check(from, to)?;
        store.require_locks("a rename")?;
        store.volume.require_bucket(bucket)?;
        store.locked_both(bucket, (from, to), |contents| self.run_locked(contents))
    }

    fn run_locked(&self, contents: PrivateDirectoryContents) -> Result<()> {
        let ObjectRename { store, bucket, from, to, options } = *self;
        if contents.versioning != VersioningState::Unversioned {
            return Err(RenameOptions::keeps_versions());
        }
        let source = self.source(contents)?;
        let changes = ChangeRecorder::of(store, bucket, contents);
        let created = changes.prepare(to, EventKind::Copy)?;
        let removed = changes.prepare(from, EventKind::Delete)?;
        if store.volume.open_marker(bucket, to, contents)?.is_some() {
            return Err(is_directory(to));
        }
        for race in 0..MAX_RACES {
            give_way(race);
            let is_required = options.conditions.if_match.is_some();
            let found = store.volume.locate_required(bucket, to, (contents, is_required))?;
            let (place, info) = match found {
                Some((place, opened)) => {
                    (Some((place, identity_of(&opened.stat))), Some(opened.into_info().1))
                }
                None => (None, None),
            };
            options.conditions.check_replace(info.as_ref())?;
            let is_done = match &place {
                // A POSIX program has linked both names to one file, in which case `rename` would do nothing.
                Some((place, found)) if *found == source.identity && !self.is_link(place) => {
                    store.volume.check_two_entries(&source.place, place)?;
                    store.remove_at(bucket, &source.place, contents)?
                }
                Some((place, _)) => self.move_over(&source, place, contents)?,
                None => self.move_to_new(&source, contents)?,
            };
            if is_done {
                store.recent_puts.remove(store.recent_puts.hash(bucket, from));
                store.prune(bucket, &source.place.dir, contents);
                return self.record(created, removed);
            }
        }
        Err(ErrorKind::ConditionalConflict.into())
    }

    /// Records the rename as two events: a new object and a removed object.
    fn record(&self, created: Option<PendingEvent>, removed: Option<PendingEvent>) -> Result<()> {
        if let Some(created) = created {
            let found = self.store.volume.find_object(self.bucket, self.to)?;
            let size = found.as_ref().map(|found| found.stat.size);
            created.record(EventFacts { size, etag: found.map(|found| found.etag()), version: None })?;
        }
        removed.map_or(Ok(()), |removed| removed.record(EventFacts::removed(None)))
    }

    /// Returns the object to rename. Errors: `NoSuchKey`, `PreconditionFailed`; `NotImplemented` for a directory or a
    /// symbolic link.
    fn source(&self, contents: PrivateDirectoryContents) -> Result<RenameSource> {
        let ObjectRename { store, bucket, from, options, .. } = *self;
        let Some((place, opened)) = store.volume.locate_required(bucket, from, (contents, true))? else {
            return match store.volume.open_marker(bucket, from, contents)? {
                Some(_) => Err(is_directory(from)),
                None => Err(store.volume.missing_object(bucket, from)),
            };
        };
        let identity = identity_of(&opened.stat);
        options.source_conditions.check_copy_source(&opened.into_info().1)?;
        if self.is_link(&place) {
            let why = format!(
                "{from} is a symbolic link, which may lead to another file at the new path; copy it instead"
            );
            return Err(Error::new(ErrorKind::NotImplemented, why));
        }
        // Without this call, an object at the odd path of the old key would become visible after the rename.
        store.remove_hidden_odd(bucket, from, &place, contents)?;
        Ok(RenameSource { place, identity })
    }

    fn is_link(&self, place: &ObjectPath) -> bool {
        let volume = &self.store.volume;
        let state = volume.open_dir(&place.dir).and_then(|dir| stat_in(dir, &place.name));
        state.is_ok_and(|state| state.is_link)
    }

    /// Replaces the object at `place`. Returns `false` if a POSIX program has changed the name in the meantime.
    fn move_over(
        &self,
        source: &RenameSource,
        place: &ObjectPath,
        contents: PrivateDirectoryContents,
    ) -> Result<bool> {
        let ObjectRename { store, bucket, to, .. } = *self;
        let dirs = self.both_dirs(&source.place, place)?;
        let old = store.volume.may_have_sidecar((bucket, contents), &dirs.1, &place.name);
        let moved = match rename(&dirs.0, &source.place.name, &dirs.1, &place.name) {
            Err(Errno::NOENT) if self.was_moved(source, &dirs, place, contents) => Ok(()),
            done => done,
        };
        match moved {
            Ok(()) => {
                store.volume.remove_sidecar(bucket, old);
                store.remove_hidden_odd(bucket, to, place, contents)?;
                self.sync_both(&dirs)?;
                Ok(true)
            }
            Err(errno) => self.lost_race(&source.place, place, errno),
        }
    }

    /// Moves the object to the plain path of its new key. If that path is taken by a directory or by the object of
    /// another key, moves the object to the odd path of its new key. Returns `false` if another writer has just created
    /// the object.
    fn move_to_new(&self, source: &RenameSource, contents: PrivateDirectoryContents) -> Result<bool> {
        if let Some(place) = plain(self.bucket, self.to) {
            match self.move_to(source, &place, contents) {
                Ok(is_done) => return Ok(is_done),
                // The name belongs to a directory, or a file has replaced a parent directory.
                Err(error) if matches!(error.kind(), ErrorKind::NoSuchKey | ErrorKind::InvalidKey) => {}
                Err(error) => return Err(error),
            }
        }
        let (volume, odd) = (&self.store.volume, odd(self.bucket, self.to));
        // As for a put: with the directory of the odd path visible, this lookup finds a plain file that was created
        // before and would hide the object at the odd path.
        volume.parent_of(self.bucket, &odd.dir)?;
        if let Some(place) = plain(self.bucket, self.to)
            && volume.open_file(self.bucket, &place)?.is_some()
        {
            return Ok(false);
        }
        check_odd_path(volume, self.bucket, self.to)?;
        self.move_to(source, &odd, contents)
    }

    /// Moves the object to `place` if that name is free, or if it is the name of a FIFO, a socket, a device or a
    /// symbolic link that leads to nothing. Such a name is not an object, and a put replaces it too. Errors:
    /// `NoSuchKey` if a parent of `place` is a file; `InvalidKey` if `place` is a directory or a link to one.
    fn move_to(
        &self,
        source: &RenameSource,
        place: &ObjectPath,
        contents: PrivateDirectoryContents,
    ) -> Result<bool> {
        let dirs = self.both_dirs(&source.place, place)?;
        let from = &source.place.name;
        let moved = match rename_new(&dirs.0, from, &dirs.1, &place.name) {
            // The file system does not support a rename that fails if the new name is taken. The file is therefore
            // linked to the new name before the old name is removed. For a moment, the object exists under both keys.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                link(&dirs.0, from, &dirs.1, &place.name).and_then(|()| remove_file(&dirs.0, from))
            }
            done => done,
        };
        match moved {
            Err(Errno::EXIST | Errno::NOENT) if self.was_moved(source, &dirs, place, contents) => {
                self.sync_both(&dirs).map(|()| true)
            }
            Ok(()) => self.sync_both(&dirs).map(|()| true),
            Err(Errno::EXIST) => match stat_in(&dirs.1, &place.name) {
                Ok(taken) if taken.is_dir => Err(ErrorKind::InvalidKey.into()),
                Ok(taken) if !taken.is_file => self.move_over_other(source, place, contents),
                _ => Ok(false),
            },
            Err(errno) => self.lost_race(&source.place, place, errno),
        }
    }

    /// Replaces a name that is neither a regular file nor a directory. Returns `false` if the name is now an object.
    /// Errors: `InvalidKey` if the name is a symbolic link to a directory, through which other objects may have keys.
    #[cold]
    fn move_over_other(
        &self,
        source: &RenameSource,
        place: &ObjectPath,
        contents: PrivateDirectoryContents,
    ) -> Result<bool> {
        let volume = &self.store.volume;
        if volume.open_file(self.bucket, place)?.is_some() {
            return Ok(false);
        }
        match volume.open_dir(&place.path()) {
            Ok(_) => Err(ErrorKind::InvalidKey.into()),
            Err(_) => self.move_over(source, place, contents),
        }
    }

    /// Returns whether the object has its new name, and only this name, although the call that gave it the name has
    /// failed with `EXIST` or `NOENT`. If a file server's response is lost, the client sends the request again, and the
    /// server then finds that the new name exists, or that the old name is missing. Cost: none on a local file system.
    #[cold]
    fn was_moved(
        &self,
        source: &RenameSource,
        (from, to): &(DirectoryHandle, DirectoryHandle),
        place: &ObjectPath,
        contents: PrivateDirectoryContents,
    ) -> bool {
        if !contents.sharing.is_shared() {
            return false;
        }
        look_up_existing(to, &place.name);
        if !leads_to(to, &place.name, source.identity) {
            return false;
        }
        let has_old_name = leads_to(from, &source.place.name, source.identity);
        !has_old_name || matches!(remove_file(from, &source.place.name), Ok(()) | Err(Errno::NOENT))
    }

    fn both_dirs(
        &self,
        source: &ObjectPath,
        place: &ObjectPath,
    ) -> Result<(DirectoryHandle, DirectoryHandle)> {
        let volume = &self.store.volume;
        // The source's directory is opened last, because creating the other directory may remove the source's
        // directory.
        let to = volume.parent_of(self.bucket, &place.dir)?;
        Ok((volume.parent_of(self.bucket, &source.dir)?, to))
    }

    /// Looks up both directories again if a rename has failed because a name was missing or was a directory. Returns
    /// `false`, so that the rename is tried again. Errors: all other errors of the rename; `NotImplemented` if the two
    /// keys are on different mounts.
    fn lost_race(&self, source: &ObjectPath, place: &ObjectPath, errno: Errno) -> Result<bool> {
        match errno {
            Errno::NOENT | Errno::STALE | Errno::ISDIR => {
                self.store.volume.refresh_dirs(&source.dir);
                self.store.volume.refresh_dirs(&place.dir);
                Ok(false)
            }
            Errno::XDEV => Err(Error::new(
                ErrorKind::NotImplemented,
                "the two keys are on different mounts; copy the object, then delete it",
            )),
            errno => Err(from_errno(errno, "renaming")),
        }
    }

    fn sync_both(&self, (from, to): &(DirectoryHandle, DirectoryHandle)) -> Result<()> {
        if self.store.volume.config.durability != Durability::Full {
            return Ok(());
        }
        // The directory of the new name is synced first: after a crash between the two syncs, the object has both names
        // instead of no name.
        [to, from]
            .into_iter()
            .try_for_each(sync_dir)
            .map_err(|errno| from_errno(errno, "writing the names to stable storage"))
    }
}

/// Returns the device and inode numbers, which identify a file.
fn identity_of(stat: &FileStat) -> (u64, u64) {
    (stat.device, stat.inode)
}

fn is_directory(key: &Key) -> Error {
    let why = format!("{key} is a directory; put the object under its new key, then delete this one");
    Error::new(ErrorKind::NotImplemented, why)
}
