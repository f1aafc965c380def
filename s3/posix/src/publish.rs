//! Publishes staged files.
//!
//! If a key has only one possible path and its bucket keeps no versions, an object is created by one `linkat`, which
//! fails if the name is taken. The creation needs no lock. Conditional creations on NFS, and conditional creations from
//! an upload, are exceptions. All other writes, including a put of a key that this process has already put, are made
//! under the key's lock.
//!
//! An object may be at its key's plain path or odd path. Readers check the plain path first. Three rules ensure that
//! all readers see a single object:
//!
//! 1. No file is put at an odd path without the key's lock.
//! 2. An object at one of the two paths remains there until it is deleted.
//! 3. If there are files at both paths, the plain file is the object. Two files may exist if a writer created the plain
//!    file before it detected the bucket's first odd key, or if a POSIX program created the plain file. The next write
//!    or delete of the key removes the odd file. In a bucket that keeps versions, the odd file is a version, and
//!    becomes an old version before the plain file is replaced or removed.

use fordway_store::{Conditions, Error, ErrorKind, Key, PutResult, Result, VersionId, VersioningState};
use fordway_sys::{
    Errno, FileStat, FileSystemSharing, link, link_unnamed, look_up_existing, remove_file, rename, stat,
    stat_in,
};

use crate::area::not_ours;
use crate::contested::check_odd_path;
use crate::dirs::DirectoryHandle;
use crate::errors::{from_errno, on_another_mount};
use crate::layout::{ObjectPath, odd, plain, tmp_dir};
use crate::object_lock::{VersionProtection, shield, shield_old};
use crate::private::PrivateDirectoryContents;
use crate::read::ObjectFile;
use crate::record::ObjectRecord;
use crate::shared::{give_way_on, leads_to};
use crate::stage::{HiddenName, MAX_RACES, StagedFile, give_way, hidden_name, hidden_name_of};
use crate::versions::KeptLatestVersion;
use crate::versions::names::{new_version, order_in};

impl StagedFile {
    /// Publishes the file as the object `key`, described by `record`, if `conditions` hold. Errors:
    /// `PreconditionFailed`; `NoSuchKey` for `If-Match` if there is no object; `NotImplemented` for `If-Match` or
    /// versions in a store without locks.
    pub(crate) fn publish(
        mut self,
        key: &Key,
        mut record: ObjectRecord,
        conditions: &Conditions,
    ) -> Result<PutResult> {
        self.try_publish(key, &mut record, conditions)
    }

    /// Publishes the file as [`StagedFile::publish`] does, but may be called again after the error `LockTimeout`.
    pub(crate) fn try_publish(
        &mut self,
        key: &Key,
        record: &mut ObjectRecord,
        conditions: &Conditions,
    ) -> Result<PutResult> {
        self.renew_parent(key)?;
        let seen = self.contents_for_write()?;
        match seen.may_notify {
            true => self.publish_and_record(key, record, conditions, seen),
            false => self.publish_object(key, record, conditions, seen),
        }
    }

    /// Publishes the file as [`StagedFile::try_publish`] does, but records no event. `seen` is the contents of the
    /// bucket's private area.
    pub(crate) fn publish_object(
        &mut self,
        key: &Key,
        record: &mut ObjectRecord,
        conditions: &Conditions,
        seen: PrivateDirectoryContents,
    ) -> Result<PutResult> {
        if self.may_be_marker(key, record, seen)
            && let Some(made) = self.publish_marker(key, record, conditions)?
        {
            return Ok(made);
        }
        let is_versioned = seen.versioning == VersioningState::Enabled;
        record.version = if is_versioned { Some(new_version(0)?) } else { None };
        if is_versioned {
            record.retain(seen)?;
        }
        let mut made = self.seal(record)?;
        let is_simple = seen.is_simple() && self.is_plain && record.lock.is_none();
        let has_none = conditions.is_empty();
        let creates_only = !has_none && *conditions == Conditions::create_only();
        if !has_none && !creates_only {
            self.inner.require_locks("If-Match on writes")?;
        }
        let recent = self.inner.recent_puts.hash(&self.bucket, key);
        let is_done = match is_simple {
            true if creates_only => self.publish_new(key)?,
            true if has_none => !self.inner.recent_puts.contains(recent) && self.link(Some(key))?,
            _ => false,
        };
        if !is_done {
            let (inner, bucket) = (self.inner.clone(), self.bucket.clone());
            inner
                .locked(&bucket, key, |contents| self.publish_locked(key, (conditions, record), contents))?;
            made.version = record.version.clone();
        }
        if is_simple {
            self.inner.recent_puts.insert(recent);
        }
        if record.version.is_none() && seen.versioning == VersioningState::Suspended {
            made.version = Some(VersionId::null());
        }
        self.sync_name()?;
        Ok(made)
    }

    /// Publishes the file at its plain path if no object has the key. Returns `false` if the outcome can be decided
    /// only under the lock. Errors: `PreconditionFailed`.
    fn publish_new(&mut self, key: &Key) -> Result<bool> {
        // While a node replaces an object that is open on that node, NFS shows no object to other nodes. The content of
        // an upload could not be withdrawn, because it leaves the upload when it becomes the object. An object on NFS
        // or from an upload is therefore published under the lock.
        if self.sharing() == FileSystemSharing::Nfs || self.is_named_in_upload() {
            return Ok(false);
        }
        if !self.link(Some(key))? {
            // The cached state of the name may be stale. Publishing under the lock queries the server.
            if self.sharing().is_shared() {
                return Ok(false);
            }
            return match stat_in(&self.parent, &self.place.name) {
                Ok(stat) if !stat.is_dir => Err(exists()),
                // The name is a directory, or has since disappeared. In both cases, the outcome is decided under the
                // lock.
                Ok(_) | Err(Errno::NOENT | Errno::STALE) => Ok(false),
                Err(errno) => Err(from_errno(errno, "reading the metadata of the existing file")),
            };
        }
        match self.check_alone(key) {
            Err(error) if error.kind() != ErrorKind::PreconditionFailed => self.take_back(error),
            done => done.map(|()| true),
        }
    }

    /// Checks that the file, which has just been published at its plain path, hides no object at the key's odd path:
    /// the bucket's first odd key may have been created after the contents were read, and may be this key. If there is
    /// such an object, withdraws the file. Errors: `PreconditionFailed`; other errors, after which the file still has
    /// its name. Cost: usually one `fstat`.
    fn check_alone(&self, key: &Key) -> Result<()> {
        let (inner, bucket) = (&self.inner, &self.bucket);
        if !inner.volume.contents(bucket)?.has_odd {
            return Ok(());
        }
        inner.locked(bucket, key, |_| match inner.volume.open_file(bucket, &odd(bucket, key))? {
            None => Ok(()),
            Some(_) => self.withdraw().and(Err(exists())),
        })
    }

    /// Withdraws the file, whose publication fails with `error`. Otherwise, a client that sends the same conditional
    /// request again would find its own object and conclude that another writer had created it. Returns `error`.
    #[cold]
    fn take_back(&mut self, error: Error) -> Result<bool> {
        // The kernel cannot link an unnamed file that had a name and lost it. The file therefore gets a hidden name
        // first, so that the caller can publish it again.
        let is_repeated = error.kind() == ErrorKind::LockTimeout && self.hidden.is_none();
        let hidden = if is_repeated { Some(self.hide()) } else { None };
        self.withdraw_without_lock()?;
        if let Some(hidden) = hidden {
            self.hidden = Some(hidden?);
        }
        Err(error)
    }

    /// Removes this file's new name, unless another program has replaced the file. The caller holds the key's lock.
    fn withdraw(&self) -> Result<()> {
        match self.is_at(&self.parent, &self.place.name) {
            true => {
                remove_file(&self.parent, &self.place.name).map_err(|errno| from_errno(errno, "withdrawing"))
            }
            false => Ok(()),
        }
    }

    /// Removes this file's new name as [`StagedFile::withdraw`] does, but without the key's lock. The holder of the
    /// lock may replace the file at any time. The name is therefore moved to a hidden name, and the file is examined
    /// there.
    #[cold]
    fn withdraw_without_lock(&self) -> Result<()> {
        if !self.is_at(&self.parent, &self.place.name) {
            return Ok(());
        }
        let failed = |errno| from_errno(errno, "withdrawing");
        let (dir, _shelter) = self.inner.volume.staging_dir(&self.bucket)?;
        let aside = hidden_name()?;
        match rename(&self.parent, &self.place.name, &dir, &aside) {
            Err(Errno::NOENT) => return Ok(()),
            done => done.map_err(failed)?,
        }
        if !self.is_at(&dir, &aside) {
            match link(&dir, &aside, &self.parent, &self.place.name) {
                // A later writer has created the object again.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        remove_file(&dir, &aside).map_err(failed)
    }

    /// Returns whether `name` in `dir` is a name of this file.
    fn is_at(&self, dir: &DirectoryHandle, name: &str) -> bool {
        stat(&self.file).is_ok_and(|file| leads_to(dir, name, (file.device, file.inode)))
    }

    /// Publishes the file under the key's lock. While the lock is held, no other writer replaces or removes the object,
    /// or puts an object at the key's odd path. Only the creation of an object at its plain path can interfere, because
    /// the creation needs no lock; the attempt is then repeated.
    fn publish_locked(
        &mut self,
        key: &Key,
        (conditions, record): (&Conditions, &mut ObjectRecord),
        contents: PrivateDirectoryContents,
    ) -> Result<()> {
        let (inner, bucket) = (self.inner.clone(), self.bucket.clone());
        let is_versioned = contents.versioning != VersioningState::Unversioned;
        if is_versioned {
            inner.require_locks("a write to a bucket that keeps versions")?;
        }
        let mut is_changed = record.retain(contents)?;
        if contents.versioning == VersioningState::Enabled && record.version.is_none() {
            // Versioning was enabled while this call waited for the lock. The new version must not be `null`, because
            // it would then replace an existing version `null`.
            record.version = Some(new_version(0)?);
            is_changed = true;
        }
        if is_changed {
            self.seal(record)?;
        }
        // The parent directory is looked up again, because it may have been moved during a long wait for the lock.
        self.renew_parent(key)?;
        if contents.is_simple() && conditions.is_empty() && self.is_plain {
            return self.replace(key, contents);
        }
        for race in 0..MAX_RACES {
            give_way(race);
            let is_required = conditions.if_match.is_some();
            let current = inner.volume.locate_required(&bucket, key, (contents, is_required))?;
            let folder = match &current {
                Some(_) => None,
                None => inner.volume.open_marker(&bucket, key, contents)?,
            };
            let seen = current.as_ref().map(|(_, opened)| opened).or(folder.as_ref());
            conditions.check_write(seen.map(ObjectFile::etag).as_ref())?;
            let mut kept = KeptLatestVersion::without_file(0);
            if is_versioned {
                let by_null = record.version.is_none();
                kept = match &current {
                    Some(current) => match inner.keep_latest((&bucket, key), current, by_null, contents)? {
                        Some(kept) => kept,
                        None => continue,
                    },
                    None => {
                        let floor = inner.keep_folder(&bucket, key, folder.as_ref(), by_null)?;
                        KeptLatestVersion::without_file(floor)
                    }
                };
                self.come_after(kept.floor, record)?;
            }
            // The old file has already been closed, because NFS and FUSE rename a file that is replaced while it is
            // open.
            drop(folder);
            let place = current.map(|(place, _)| place);
            let is_done = match &place {
                Some(place) => {
                    self.turn_to(place)?;
                    self.replace(key, contents)?;
                    true
                }
                None => self.create_anywhere(key, contents)?,
            };
            if is_done {
                self.clean_up(key, record, contents);
                if let Some(locked) = &kept.locked {
                    shield_old(&inner.volume, (&bucket, key), locked)?;
                }
                return shield(&inner.volume.config, &self.file, record.lock);
            }
        }
        Err(ErrorKind::ConditionalConflict.into())
    }

    /// Removes what the published object has replaced at other paths. An error is ignored, because the object is
    /// already in effect: if the write failed, the client would send the request again, and a condition would then fail
    /// because of the client's own object. The object hides any file that remains, and the next write or delete of the
    /// key removes this file.
    fn clean_up(&self, key: &Key, record: &ObjectRecord, contents: PrivateDirectoryContents) {
        let (inner, bucket) = (&self.inner, &self.bucket);
        let is_versioned = contents.versioning != VersioningState::Unversioned;
        if is_versioned && record.version.is_none() {
            let _ = inner.forget_null(bucket, key, contents);
        }
        let _ = inner.remove_marker(bucket, key, contents);
        if !is_versioned {
            let _ = inner.remove_hidden_odd(bucket, key, &self.place, contents);
        }
    }

    /// Gives the version a new ID if its current ID does not sort after `floor`, the highest order among the key's
    /// versions. An ID may sort too early if the clocks of two nodes differ.
    fn come_after(&mut self, floor: u64, record: &mut ObjectRecord) -> Result<()> {
        let is_after = |version: &VersionId| order_in(version).is_some_and(|order| order > floor);
        if record.version.as_ref().is_none_or(is_after) {
            return Ok(());
        }
        record.version = Some(new_version(floor)?);
        self.seal(record).map(drop)
    }

    /// Creates the object at its plain or odd path. Returns `false` if another writer has created the object first.
    fn create_anywhere(&mut self, key: &Key, contents: PrivateDirectoryContents) -> Result<bool> {
        if self.link(Some(key))? {
            return Ok(true);
        }
        let is_file = || stat_in(&self.parent, &self.place.name).is_ok_and(|stat| !stat.is_dir);
        if contents.sharing.is_shared() && is_file() {
            // Another node has created the object, or this node still has a cache entry for a name that is gone.
            return Ok(false);
        }
        self.move_to_odd(key)?;
        Ok(self.plain_file(key)?.is_none() && self.link(Some(key))?)
    }

    /// Returns the key's plain path if an object is there. The caller has switched to the odd path. The directory of
    /// the odd path is therefore visible, and this lookup finds a plain file that was created before. A writer that
    /// creates a plain file later finds the odd file.
    fn plain_file(&self, key: &Key) -> Result<Option<ObjectPath<'static>>> {
        match plain(&self.bucket, key) {
            Some(place) if self.inner.volume.open_file(&self.bucket, &place)?.is_some() => {
                Ok(Some(place.into_owned()))
            }
            _ => Ok(None),
        }
    }

    /// Gives the file its name if the name is free. Returns whether the name was free. `key` is `None` unless the file
    /// is an object.
    pub(crate) fn link(&mut self, key: Option<&Key>) -> Result<bool> {
        for race in 0..MAX_RACES {
            give_way_on(self.sharing(), race);
            let name = &self.place.name;
            let linked = match &self.hidden {
                None => link_unnamed(&self.file, &self.parent, name),
                Some(hidden) => hidden.move_to_new(&self.parent, name, |dir, name| self.has_name(dir, name)),
            };
            match linked {
                Ok(()) => return Ok(true),
                Err(Errno::EXIST) => return Ok(self.hidden.is_none() && self.has_name(&self.parent, name)),
                // A delete has just removed the directory.
                Err(Errno::NOENT | Errno::STALE) => {
                    if !self.reopen_parent(key)? {
                        return Ok(false);
                    }
                }
                Err(errno) => return Err(self.publishing_failed(errno)),
            }
        }
        Err(ErrorKind::ConditionalConflict.into())
    }

    /// Replaces the existing file at the publication path, under the key's lock. If the name is a directory, switches
    /// to the key's odd path, unless another writer has just created the object at the plain path.
    fn replace(&mut self, key: &Key, contents: PrivateDirectoryContents) -> Result<()> {
        for race in 0..MAX_RACES {
            give_way_on(self.sharing(), race);
            let of = (&self.bucket, contents);
            let old = self.inner.volume.may_have_sidecar(of, &self.parent, &self.place.name);
            match self.rename_into_place()? {
                Ok(()) => {
                    self.inner.volume.remove_sidecar(&self.bucket, old);
                    return Ok(());
                }
                Err(Errno::ISDIR | Errno::EXIST | Errno::NOTEMPTY) if self.move_to_odd(key)? => {
                    self.turn_back(key)?;
                }
                Err(Errno::NOENT | Errno::STALE) => {
                    if !self.reopen_parent(Some(key))? {
                        self.move_to_odd(key)?;
                        self.turn_back(key)?;
                    }
                }
                Err(Errno::PERM) if self.unshield_replaced(contents)? => {}
                Err(errno) => return Err(self.publishing_failed(errno)),
            }
        }
        Err(ErrorKind::ConditionalConflict.into())
    }

    fn unshield_replaced(&self, contents: PrivateDirectoryContents) -> Result<bool> {
        let (volume, bucket) = (&self.inner.volume, &self.bucket);
        VersionProtection { volume, bucket, contents }.unshield_moved(&self.place)
    }

    /// Returns the error for a file that could not get its name. In a bucket's private directory, Fordway gives such a
    /// name only to a file, so a directory with the name is not Fordway's.
    pub(crate) fn publishing_failed(&self, errno: Errno) -> Error {
        match errno {
            Errno::ISDIR | Errno::NOTDIR | Errno::NOTEMPTY | Errno::EXIST if !self.is_plain => {
                not_ours(&self.place.path(), "is not a regular file")
            }
            Errno::XDEV => on_another_mount(),
            errno => from_errno(errno, "publishing"),
        }
    }

    /// Renames the file to its publication path, and replaces any existing file. An unnamed file first gets a hidden
    /// name.
    pub(crate) fn rename_into_place(&mut self) -> Result<Result<(), Errno>> {
        let hidden = match self.hidden.take() {
            Some(hidden) => hidden,
            None => self.hide()?,
        };
        let renamed = match rename(&hidden.dir, &hidden.name, &self.parent, &self.place.name) {
            Err(Errno::NOENT) if self.was_renamed() => Ok(()),
            done => done,
        };
        match renamed {
            Ok(()) => hidden.forget(),
            Err(_) => self.hidden = Some(hidden),
        }
        Ok(renamed)
    }

    /// Returns whether `name` in `dir` belongs to this file although the call that gave the file this name has failed
    /// with `EXIST` or `NOENT`. If a file server's response is lost, for example because the server restarts, the
    /// client sends the request again. The server then finds that the new name exists, or that the old name is missing.
    /// Cost: none on a local file system; elsewhere, an `fstat`, a `newfstatat`, and usually a round trip.
    fn has_name(&self, dir: &DirectoryHandle, name: &str) -> bool {
        let is_of = |file: FileStat| leads_to(dir, name, (file.device, file.inode));
        self.sharing().is_shared() && stat(&self.file).is_ok_and(is_of)
    }

    /// Returns whether the file has its name although renaming the file has failed with `NOENT` (see
    /// [`StagedFile::has_name`]). This node may have cached that the name belongs to the file that was replaced.
    #[cold]
    fn was_renamed(&self) -> bool {
        if self.sharing().is_shared() {
            look_up_existing(&self.parent, &self.place.name);
        }
        self.has_name(&self.parent, &self.place.name)
    }

    /// Gives an unnamed file a hidden name. The name is the file's inode number, which is unique among staged files on
    /// this file system, so no random number is needed.
    fn hide(&self) -> Result<HiddenName> {
        let mut name = self.inode.map_or_else(hidden_name, |inode| Ok(hidden_name_of(inode)))?;
        for race in 0..MAX_RACES {
            give_way(race);
            let (dir, shelter) = self.inner.volume.staging_dir(&self.bucket)?;
            match link_unnamed(&self.file, &dir, &name) {
                Ok(()) => return Ok(HiddenName { dir, name, is_temporary: true, _shelter: shelter }),
                // Another program has created a file with this name, or a directory of the bucket is on another file
                // system, which has its own inode numbers.
                Err(Errno::EXIST) => name = hidden_name()?,
                // A concurrent removal of the bucket has removed the directory.
                Err(Errno::NOENT | Errno::STALE) if dir.is_removed() => {
                    self.inner.volume.dirs.forget(&tmp_dir(&self.bucket));
                }
                Err(Errno::XDEV) => return Err(on_another_mount()),
                Err(errno) => return Err(from_errno(errno, "naming the staged file")),
            }
        }
        Err(ErrorKind::ConditionalConflict.into())
    }

    /// Looks up the parent directory again if the file was started more than 10 ms ago. Another program may have moved
    /// the directory while the content arrived. Without the lookup, the file would then be published at a path that
    /// does not belong to the key. Cost: usually none; for a slow put, an `openat2` and one or two `fstat`.
    fn renew_parent(&mut self, key: &Key) -> Result<()> {
        if !self.is_long_started() {
            return Ok(());
        }
        let volume = &self.inner.volume;
        let named = volume.dirs.open(&volume.root, &self.place.dir);
        if !named.is_ok_and(|named| named.is_same_as(&self.parent)) && !self.reopen_parent(Some(key))? {
            self.move_to_odd(key)?;
        }
        Ok(())
    }

    /// Finds or recreates the parent directory after a delete has removed it. Returns `false` if another key's file has
    /// taken the directory's place; `key` is then an odd key.
    fn reopen_parent(&mut self, key: Option<&Key>) -> Result<bool> {
        match self.sharing().is_shared() {
            true => self.inner.volume.renew_dirs(&self.bucket, &self.place.dir),
            false => self.inner.volume.dirs.forget(&self.place.dir),
        }
        match self.inner.volume.parent_of(&self.bucket, &self.place.dir) {
            Ok(parent) => {
                self.parent = parent;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::NoSuchKey && key.is_some() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Switches to the key's odd path. Returns whether the odd path differs from the previous path.
    fn move_to_odd(&mut self, key: &Key) -> Result<bool> {
        let place = odd(&self.bucket, key);
        let is_other = place != self.place;
        if is_other {
            check_odd_path(&self.inner.volume, &self.bucket, key)?;
        }
        self.turn_to(&place)?;
        Ok(is_other)
    }

    /// Switches back from the key's odd path if another writer has created the object at the plain path. That object
    /// would hide a file at the odd path.
    #[cold]
    fn turn_back(&mut self, key: &Key) -> Result<()> {
        self.plain_file(key)?.map_or(Ok(()), |place| self.turn_to(&place))
    }

    /// Sets the publication path to `place`.
    fn turn_to(&mut self, place: &ObjectPath) -> Result<()> {
        if *place != self.place {
            self.parent = self.inner.volume.parent_of(&self.bucket, &place.dir)?;
            self.place = place.clone().into_owned();
            self.is_plain = false;
        }
        Ok(())
    }
}

fn exists() -> Error {
    Error::new(ErrorKind::PreconditionFailed, "the object exists")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fordway_store::{Bucket, GetOptions, Objects, PutOptions};

    use super::*;
    use crate::{PosixConfig, PosixStore};

    #[test]
    fn a_hidden_name_that_another_file_has_taken_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
        let (bucket, key) = (Bucket::new("bucket").unwrap(), Key::new("k").unwrap());
        store.create_bucket(&bucket).unwrap();
        for content in ["0", "1"] {
            store.put(&bucket, &key, content.as_bytes(), &PutOptions::default()).unwrap();
        }
        let place = plain(&bucket, &key).unwrap().into_owned();
        let mut staged = StagedFile::at(&store.inner, &bucket, place).unwrap();
        (staged.is_plain, staged.hidden) = (true, None);
        staged.write(b"2").unwrap();
        let inode = stat(&staged.file).unwrap().inode;
        let taken = dir.path().join("bucket/.fordway/tmp").join(hidden_name_of(inode));
        std::fs::write(&taken, "another").unwrap();
        staged.publish(&key, ObjectRecord::default(), &Conditions::default()).unwrap();
        let object = store.get(&bucket, &key, &GetOptions::default()).unwrap();
        assert_eq!(object.content.into_vec().unwrap(), b"2");
        assert_eq!(std::fs::read(&taken).unwrap(), b"another");
    }

    /// The bucket's first odd key appears during a conditional creation, so the creation needs the key's lock, which
    /// another writer holds for too long. The file has then lost its name, and can still be published.
    #[test]
    fn a_creation_can_be_repeated_after_a_lock_timeout() {
        let dir = tempfile::tempdir().unwrap();
        let config = PosixConfig { lock_patience: Duration::from_millis(50), ..Default::default() };
        let [store, other] = [(); 2].map(|()| PosixStore::open(dir.path(), config.clone()).unwrap());
        let (bucket, key) = (Bucket::new("bucket").unwrap(), Key::new("k").unwrap());
        store.create_bucket(&bucket).unwrap();
        let place = plain(&bucket, &key).unwrap().into_owned();
        let create = Conditions::create_only();
        let (mut staged, mut record) = (None, ObjectRecord::default());
        let timeout = other.inner.locked(&bucket, &key, |_| {
            let started = staged.insert(StagedFile::at(&store.inner, &bucket, place).unwrap());
            started.is_plain = true;
            started.write(b"content").unwrap();
            std::fs::create_dir(dir.path().join("bucket/.fordway/odd")).unwrap();
            Ok(started.try_publish(&key, &mut record, &create).map(drop))
        });
        assert_eq!(timeout.unwrap().unwrap_err().kind(), ErrorKind::LockTimeout);
        assert!(!dir.path().join("bucket/k").exists());
        staged.unwrap().try_publish(&key, &mut record, &create).unwrap();
        assert_eq!(std::fs::read(dir.path().join("bucket/k")).unwrap(), b"content");
        let left = std::fs::read_dir(dir.path().join("bucket/.fordway/tmp"));
        assert_eq!(left.map_or(0, Iterator::count), 0);
    }
}
