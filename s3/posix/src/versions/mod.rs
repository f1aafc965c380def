//! Old versions and delete markers in buckets that keep versions.
//!
//! The latest version is stored where an object without versions would be, so POSIX programs see it. An overwritten or
//! deleted version gets a second name (a hard link) in the key's directory below `versions/` before it loses its first
//! name:
//!
//! ```text
//! versions/KEY/ORDER-VERSION           an old version; ORDER (16 hex digits) rises with time
//! versions/KEY/ORDER-VERSION-marker    a delete marker, empty
//! ```
//!
//! If a process is killed between these two steps, the version has both names. It is then still the latest version, and
//! its name below `versions/` is ignored. All these changes are made under the key's lock.

pub(crate) mod delete;
pub(crate) mod list;
mod lookup;
pub(crate) mod names;
pub(crate) mod owners;

use std::fs::File;
use std::sync::Arc;
use std::time::SystemTime;

use fordway_store::{
    Bucket, DeleteOptions, DeleteResult, ETagPolicy, Error, ErrorKind, Key, Result, VersionId,
    VersioningState,
};
use fordway_sys::{
    Errno, OFlags, file_user, link, link_unnamed, open_in, remove_dir, rename, set_modified, stat_in,
};

use self::delete::VersionDeletion;
use self::lookup::VersionNameMatches;
use self::names::{NoncurrentVersionName, archived_place, new_version, now_ns, order_in};
use self::owners::{VersionOwners, owner_and_caller};
use crate::PosixStoreState;
use crate::contested::check_odd_path;
use crate::dirs::DirectoryHandle;
use crate::errors::{from_errno, on_another_mount};
use crate::layout::{ObjectPath, odd, plain, split, versions_dir, versions_of};
use crate::object_lock::{
    ObjectLockManager, UnshieldedFile, VersionProtection, VersioningAndLockSetting, shield_old, unshield,
};
use crate::private::PrivateDirectoryContents;
use crate::read::ObjectFile;
use crate::record::ObjectRecord;
use crate::shared::MAX_STALE;
use crate::stage::{FILE_MODE, MAX_RACES, StagedFile, give_way};
use crate::volume::StoreDirectoryTree;

/// The versions of one key: the latest, and the old versions and delete markers in the key's versions directory.
#[derive(Clone, Copy)]
pub(crate) struct KeyVersions<'v> {
    pub(crate) volume: &'v StoreDirectoryTree,
    pub(crate) bucket: &'v Bucket,
    pub(crate) key: &'v Key,
}

impl KeyVersions<'_> {
    /// Returns the path of the key's versions directory.
    fn path(&self) -> String {
        versions_of(self.bucket, self.key)
    }

    /// Returns the path of an old version or a delete marker.
    fn place_of(&self, found: &NoncurrentVersionName) -> ObjectPath<'static> {
        archived_place(self.bucket, self.key, found)
    }

    /// Opens the latest version of an object, or the version with the ID `version`. Errors: `NoSuchKey`,
    /// `NoSuchVersion`, `NoSuchBucket`; `MethodNotAllowed` for a delete marker.
    pub(crate) fn open_version(&self, version: Option<&VersionId>) -> Result<ObjectFile> {
        self.volume.freshen(self.bucket, self.key)?;
        let Some(version) = version else {
            let mut latest = self.volume.open_object(self.bucket, self.key)?;
            self.disown_copy(&latest.stat, &mut latest.recorded)?;
            return Ok(latest);
        };
        version.check_generated()?;
        let mut seen = None;
        for race in 0..MAX_RACES {
            give_way(race);
            let latest = match self.find_latest(version) {
                // A damaged record of the latest version does not hide the old versions.
                Err(error) if error.kind() == ErrorKind::Corrupt && !version.is_null() => None,
                found => found?,
            };
            let owner = latest.as_ref().map(|latest| latest.stat.user);
            let latest_version = match latest {
                Some(latest) if latest.version() == *version => return Ok(latest),
                latest => latest.map(|latest| latest.version()),
            };
            if let Some(kept) = self.open_by_name(version, owner)? {
                return Ok(kept);
            }
            let archived = self.look_up_version(version, VersionOwners::Any)?;
            if let Some(found) = self.preferred_name(&archived.names, owner)?
                && let Some(mut opened) = self.open_archived(found)?
            {
                // If the file was archived under a new ID, its record contains another ID or no ID.
                if opened.version() != *version {
                    opened.recorded.get_or_insert_default().version =
                        Some(version.clone()).filter(|version| !version.is_null());
                }
                return Ok(opened);
            }
            if let Some(hidden) = self.open_hidden(version)? {
                return Ok(hidden);
            }
            // While an old version is becoming the latest, a reader that looks first in one directory and then in the
            // other may miss the version in both directories. The lookup is therefore repeated until nothing has
            // changed.
            let now = Some((latest_version, archived));
            if now == seen {
                break;
            }
            seen = now;
        }
        self.volume.require_bucket(self.bucket)?;
        Err(Error::new(ErrorKind::NoSuchVersion, version.as_str()))
    }

    /// Opens the old version by the order contained in its ID; returns `None` if there is no name with that order.
    /// `owner` is the owner of the latest version. Errors: `MethodNotAllowed` for a delete marker.
    fn open_by_name(&self, version: &VersionId, owner: Option<u32>) -> Result<Option<ObjectFile>> {
        let Some(kept) = NoncurrentVersionName::of(version, false) else { return Ok(None) };
        if let Some(opened) = self.open_archived(&kept)? {
            // Anyone who may write to the bucket may have created another file with this name. In a bucket with the
            // sticky bit, the version of another user may then have another name.
            let is_certain = owner == Some(opened.stat.user)
                || self
                    .volume
                    .contents(self.bucket)?
                    .guard
                    .is_none_or(|guard| guard.trusts(opened.stat.user));
            return Ok(Some(opened).filter(|opened| is_certain && opened.version() == *version));
        }
        let marker = NoncurrentVersionName { is_marker: true, ..kept };
        match self.volume.open_file(self.bucket, &self.place_of(&marker))? {
            Some(_) => Err(is_delete_marker(&marker)),
            None => Ok(None),
        }
    }

    /// Opens an old version; returns `None` if it is no longer an old version. Errors: `MethodNotAllowed` for a delete
    /// marker.
    fn open_archived(&self, found: &NoncurrentVersionName) -> Result<Option<ObjectFile>> {
        if found.is_marker {
            return Err(is_delete_marker(found));
        }
        self.volume.open_file(self.bucket, &self.place_of(found))
    }

    /// Opens the file at the key's odd path if it is `version`. If a POSIX program has created a file at the plain
    /// path, that file hides this one, which is an old version although it has no name among the old versions yet.
    /// Cost: none if no object of the bucket is at an odd path.
    fn open_hidden(&self, version: &VersionId) -> Result<Option<ObjectFile>> {
        if !self.volume.contents(self.bucket)?.has_odd {
            return Ok(None);
        }
        match self.volume.open_file(self.bucket, &odd(self.bucket, self.key)) {
            // The ID of a file whose record is damaged is unknown.
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(None),
            opened => Ok(opened?.filter(|opened| opened.version() == *version)),
        }
    }

    /// Returns the newest old version that `is_it` accepts, among the `most` newest old versions of the key. Cost: one
    /// read of the key's versions directory, and an open of each version that is examined.
    pub(crate) fn find_recent_version(
        &self,
        most: usize,
        is_it: impl Fn(&ObjectFile) -> bool,
    ) -> Result<Option<ObjectFile>> {
        for version in self.newest_versions(most)? {
            if let Some(found) = self.open_archived(&version)?.filter(&is_it) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Creates a name in the key's versions directory. If the directory is gone, recreates it. Another process may have
    /// removed the last name in the directory while this process had the directory open.
    fn among_versions<T>(&self, make: impl Fn(&DirectoryHandle) -> Result<T, Errno>) -> Result<T> {
        let path = self.path();
        for race in 0..MAX_RACES {
            give_way(race);
            let dir = self.volume.parent_of(self.bucket, &path)?;
            match make(&dir).and_then(|made| self.volume.sync_names(&dir).map(|()| made)) {
                Err(_) if dir.is_removed() => self.volume.dirs.forget(&path),
                Err(Errno::NOENT | Errno::STALE)
                    if race < MAX_STALE && self.volume.sharing_of(self.bucket).is_shared() =>
                {
                    self.volume.renew_dirs(self.bucket, &path);
                }
                // The latest version is on a mount within the bucket.
                Err(Errno::XDEV) => return Err(on_another_mount()),
                done => return done.map_err(|errno| from_errno(errno, "naming a version")),
            }
        }
        Err(ErrorKind::ConditionalConflict.into())
    }

    fn make_marker(&self, marker: &NoncurrentVersionName) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        self.among_versions(|dir| open_in(dir, &marker.name(), flags, FILE_MODE).map(drop))
    }

    /// Makes `newest` the latest version. The rename replaces, and thus removes, the version at `place`.
    fn promote_over(&self, newest: &NoncurrentVersionName, place: &ObjectPath) -> Result<()> {
        let from = self.versions_opened()?;
        self.put_in_place(place, |to| rename(&from, &newest.name(), to, &place.name))?
            .map_err(|errno| from_errno(errno, "making an old version the latest"))
    }

    /// Calls `put` with the directory of `place`, and again whenever another node has removed that directory.
    fn put_in_place(
        &self,
        place: &ObjectPath,
        put: impl Fn(&DirectoryHandle) -> Result<(), Errno>,
    ) -> Result<Result<(), Errno>> {
        let mut race = 0;
        loop {
            let dir = self.volume.parent_of(self.bucket, &place.dir)?;
            match put(&dir).and_then(|()| self.volume.sync_names(&dir)) {
                Err(Errno::NOENT | Errno::STALE)
                    if race < MAX_STALE && self.volume.sharing_of(self.bucket).is_shared() =>
                {
                    self.volume.renew_dirs(self.bucket, &place.dir);
                }
                done => return Ok(done),
            }
            race += 1;
        }
    }

    /// Makes `newest` the latest version of a key that has no latest version. The file keeps its name among the old
    /// versions. Returns `false` if the key now has a latest version. Errors: `AccessDenied` if the version would get
    /// the odd path, and another user could hide it there.
    fn promote(&self, newest: &NoncurrentVersionName) -> Result<bool> {
        let from = self.versions_opened()?;
        let name = newest.name();
        let plain = plain(self.bucket, self.key).map(|place| (place, false));
        for (place, is_odd) in plain.into_iter().chain([(odd(self.bucket, self.key), true)]) {
            if is_odd {
                check_odd_path(self.volume, self.bucket, self.key)?;
            }
            match self.put_in_place(&place, |to| link(&from, &name, to, &place.name)) {
                // A POSIX program, or another writer that needs no lock, has just created a newer version.
                Ok(Err(Errno::EXIST)) if self.volume.is_file(&place.path()) => return Ok(false),
                Ok(Err(Errno::EXIST)) => {}
                // Another key's file has replaced a parent directory, so the version cannot be put at this path.
                Err(error) if error.kind() == ErrorKind::NoSuchKey => {}
                done => {
                    let done = done?.map_err(|errno| from_errno(errno, "making an old version the latest"));
                    return done.map(|()| true);
                }
            }
        }
        Ok(false)
    }

    /// Opens the versions directory again, because another process may have removed and recreated the directory while
    /// this process had it open.
    fn versions_opened(&self) -> Result<File> {
        self.volume.open_dir(&self.path()).map_err(|errno| from_errno(errno, "opening the versions"))
    }

    /// Removes the key's versions directory if it is empty, and then each parent below `versions/` that becomes empty.
    fn remove_empty(&self) {
        let (own, top) = (self.path(), versions_dir(self.bucket));
        let mut path = own.as_str();
        while path.len() > top.len() {
            let (parent, name) = split(path);
            let removed = self.volume.open_dir(parent).and_then(|parent| remove_dir(&parent, name));
            self.volume.dirs.forget(path);
            if removed.is_err() {
                return;
            }
            path = parent;
        }
    }
}

impl PosixStoreState {
    pub(crate) fn set_versioning(
        self: &Arc<Self>,
        bucket: &Bucket,
        versioning: VersioningState,
    ) -> Result<()> {
        versioning.check_settable()?;
        self.volume.require_bucket(bucket)?;
        self.require_locks("keeping versions")?;
        self.volume.check_decides(bucket, "keeps old versions")?;
        ObjectLockManager { store: self }.with_setting(
            bucket,
            |VersioningAndLockSetting { object_lock, .. }| {
                versioning.check_lock(object_lock.is_some())?;
                Ok(VersioningAndLockSetting { versioning, object_lock })
            },
        )
    }

    /// Archives the latest version of a key, and the version that it hides (see [`PosixStoreState::archive_hidden`]),
    /// before a new version replaces the latest. `by_null` is true if the ID of the new version will be `null`. Returns
    /// `None` if another program has replaced or removed the file in the meantime, so that it has no name left. The
    /// caller then has to look up the latest version again.
    pub(crate) fn keep_latest(
        self: &Arc<Self>,
        (bucket, key): (&Bucket, &Key),
        (place, latest): &(ObjectPath<'static>, ObjectFile),
        by_null: bool,
        contents: PrivateDirectoryContents,
    ) -> Result<Option<KeptLatestVersion>> {
        self.volume.require_own_file(bucket, key, latest)?;
        let hidden_order = self.remove_hidden_odd(bucket, key, place, contents)?;
        let protection = VersionProtection { volume: &self.volume, bucket, contents };
        let lock = protection.lock_of(latest);
        if by_null && latest.version().is_null() {
            // The new version `null` replaces this one.
            protection.check_unlocked(latest, false)?;
        }
        let unshielded = unshield(&latest.file, lock)?;
        let kept = match self.keep_version(bucket, key, latest, by_null) {
            // The kernel links no file that has lost its last name.
            Err(error) if error.kind() == ErrorKind::NoSuchKey && latest.is_nameless() => return Ok(None),
            kept => kept?,
        };
        let locked = Some(kept.version).filter(|_| lock.is_active(SystemTime::now()));
        let floor = kept.floor.max(hidden_order);
        Ok(Some(KeptLatestVersion { floor, locked, _unshielded: unshielded }))
    }

    /// Makes the file at `hidden`, the key's odd path, an old version, and removes this path. The file is hidden if a
    /// POSIX program has created a file at the key's plain path, for example after removing a directory there. Returns
    /// the order that the ID of a new version must exceed; 0 if there is no file.
    pub(crate) fn archive_hidden(
        self: &Arc<Self>,
        bucket: &Bucket,
        key: &Key,
        hidden: &ObjectPath,
        contents: PrivateDirectoryContents,
    ) -> Result<u64> {
        let mut opened = self.volume.open_to_keep(bucket, hidden)?;
        if opened.is_none() && contents.sharing.is_shared() {
            self.volume.reveal(hidden, contents.sharing)?;
            opened = self.volume.open_to_keep(bucket, hidden)?;
        }
        let Some(opened) = opened else { return Ok(0) };
        let _unshielded = unshield(&opened.file, opened.record().lock)?;
        let kept = self.keep_version(bucket, key, &opened, false)?;
        // FUSE renames a file that is removed while it is open.
        drop(opened);
        self.remove_at(bucket, hidden, contents)?;
        Ok(kept.floor)
    }

    /// Archives the object of a key without a file, before a new version replaces the object: `folder`, if the object
    /// is a directory. `by_null` is as for [`PosixStoreState::keep_latest`]. Returns the order that the ID of the new
    /// version must exceed.
    pub(crate) fn keep_folder(
        self: &Arc<Self>,
        bucket: &Bucket,
        key: &Key,
        folder: Option<&ObjectFile>,
        by_null: bool,
    ) -> Result<u64> {
        match folder {
            _ if by_null => Ok(0),
            Some(folder) => self.copy_folder(bucket, key, folder),
            None => self.highest_order(bucket, key, &[file_user()]),
        }
    }

    /// Stores an empty file with the record of `folder` among the old versions. A directory has no second name, so it
    /// cannot be an old version itself. Returns the order of the old version.
    #[cold]
    fn copy_folder(self: &Arc<Self>, bucket: &Bucket, key: &Key, folder: &ObjectFile) -> Result<u64> {
        let owners = owner_and_caller(folder.stat.user);
        let owners = VersionOwners::Of(&owners);
        let archived = self.volume.versions(bucket, key).look_up_version(&VersionId::null(), owners)?;
        let newest = archived.newest().map_or(0, |newest| newest.order);
        let version = match archived.names.iter().any(|found| !found.is_marker) {
            true => new_version(newest)?,
            false => VersionId::null(),
        };
        if version.is_null() {
            // Only delete markers with the ID `null` are left, which the version `null` replaces.
            self.remove_archived(bucket, key, &archived.names)?;
        }
        let made_ns = folder.stat.modified_ns.max(folder.stat.changed_ns);
        let made = u64::try_from(made_ns).unwrap_or_default().min(now_ns());
        let order = order_in(&version).unwrap_or_else(|| made.max(newest.saturating_add(1)));
        let mut record = folder.record().clone();
        record.version = Some(version.clone()).filter(|version| !version.is_null());
        let kept = NoncurrentVersionName { order, version, is_marker: false };
        let mut file = StagedFile::at(self, bucket, archived_place(bucket, key, &kept))?;
        // Without the permission, the old version gets a later time.
        let _ = set_modified(&file.file, folder.stat.modified_ns);
        file.seal(&mut record)?;
        match file.link(None)? {
            true => file.sync_name().map(|()| order),
            false => Err(ErrorKind::ConditionalConflict.into()),
        }
    }

    /// Archives `current`, which a new version is about to replace; `by_null` is true if the ID of the new version will
    /// be `null`. The caller must have removed the immutable flag of `current`: otherwise the file could not get
    /// another name. No old version is removed. If a POSIX program has replaced the latest version, another file among
    /// the old versions may have the ID of `current`; `current` then gets a new ID. A file whose record cannot be
    /// decoded also gets a new ID, because its ID is unknown, and a file archived as the version `null` would later be
    /// replaced. Cost: one `linkat`; also one [`KeyVersions::look_up_version`] if the ID of `current` does not
    /// contain its order.
    pub(crate) fn keep_version(
        self: &Arc<Self>,
        bucket: &Bucket,
        key: &Key,
        current: &ObjectFile,
        by_null: bool,
    ) -> Result<KeptVersion> {
        if current.recorded.is_none() {
            return self.keep_undecoded(bucket, key, current);
        }
        let version = current.version();
        if by_null && version.is_null() {
            return Ok(KeptVersion { version, floor: 0 });
        }
        match NoncurrentVersionName::of(&version, false) {
            Some(kept) => self.keep_as(bucket, key, current, kept),
            None => self.keep_without_order(bucket, key, current, version),
        }
    }

    /// Archives `current`, whose record cannot be decoded.
    #[cold]
    fn keep_undecoded(
        self: &Arc<Self>,
        bucket: &Bucket,
        key: &Key,
        current: &ObjectFile,
    ) -> Result<KeptVersion> {
        let archived = self.volume.versions(bucket, key).archived()?;
        let floor = self.highest_order(bucket, key, &owner_and_caller(current.stat.user))?;
        let is_kept = |found: &&NoncurrentVersionName| {
            !found.is_marker && self.volume.versions(bucket, key).is_name_of(found, &current.stat)
        };
        match archived.iter().filter(|_| current.stat.links > 1).find(is_kept) {
            // A process that died has already archived the file.
            Some(found) => Ok(KeptVersion { version: found.version.clone(), floor }),
            None => self.keep_as_new(bucket, key, current, floor),
        }
    }

    /// Archives `current`, whose ID does not contain its order.
    fn keep_without_order(
        self: &Arc<Self>,
        bucket: &Bucket,
        key: &Key,
        current: &ObjectFile,
        version: VersionId,
    ) -> Result<KeptVersion> {
        let owners = owner_and_caller(current.stat.user);
        let archived =
            self.volume.versions(bucket, key).look_up_version(&version, VersionOwners::Of(&owners))?;
        let newest = archived.newest().map_or(0, |newest| newest.order);
        let files = || archived.names.iter().filter(|found| !found.is_marker);
        if files().any(|found| self.volume.versions(bucket, key).is_name_of(found, &current.stat)) {
            // A process that died has already archived the file.
            return Ok(KeptVersion { version, floor: newest });
        }
        if files().next().is_some() {
            return self.keep_as_new(bucket, key, current, newest);
        }
        if version.is_null() {
            // Only delete markers with the ID `null` are left, which the version `null` replaces.
            self.remove_archived(bucket, key, &archived.names)?;
        }
        // The order is the time at which the version that this file replaced became an old version, so it must not be
        // earlier. A POSIX program may have set any modification time.
        let made_ns = current.stat.modified_ns.max(current.stat.changed_ns);
        let made = u64::try_from(made_ns).unwrap_or_default().min(now_ns());
        let order = archived.newest().map_or(0, |newest| newest.order.saturating_add(1)).max(made);
        self.keep_as(bucket, key, current, NoncurrentVersionName { order, version, is_marker: false })
    }

    /// Gives the file of `current` the name `kept` among the key's versions, or another name if that name is taken.
    fn keep_as(
        self: &Arc<Self>,
        bucket: &Bucket,
        key: &Key,
        current: &ObjectFile,
        kept: NoncurrentVersionName,
    ) -> Result<KeptVersion> {
        if let Some(kept) = self.keep_named(bucket, key, current, kept.clone())? {
            return Ok(kept);
        }
        let highest = self.highest_order(bucket, key, &owner_and_caller(current.stat.user))?;
        if self.volume.versions(bucket, key).is_version_at(&kept, current.stat.user)? {
            return self.keep_as_new(bucket, key, current, highest);
        }
        // The file with this name is not a version that Fordway stored. The file is kept, because its record may be
        // missing only temporarily. `current` gets a name with a higher order, which takes precedence.
        let order = highest.saturating_add(1).max(now_ns());
        let named = self.keep_named(bucket, key, current, NoncurrentVersionName { order, ..kept })?;
        named.ok_or_else(|| ErrorKind::ConditionalConflict.into())
    }

    /// Archives `current` under a new ID, whose order is higher than `floor`.
    fn keep_as_new(
        self: &Arc<Self>,
        bucket: &Bucket,
        key: &Key,
        current: &ObjectFile,
        floor: u64,
    ) -> Result<KeptVersion> {
        let kept = NoncurrentVersionName::of(&new_version(floor)?, false).ok_or(ErrorKind::Internal)?;
        let named = self.keep_named(bucket, key, current, kept)?;
        let kept = named.ok_or_else(|| Error::from(ErrorKind::ConditionalConflict))?;
        self.store_new_id(bucket, current, &kept.version);
        Ok(kept)
    }

    /// Stores the ID under which `current` was archived in its record, so that the version keeps this ID if it becomes
    /// the latest again. An error is ignored, because the name of an old version contains its ID. The record is not
    /// replaced if it cannot be decoded, or if a part of it is missing. The record is also not replaced if the file has
    /// other names, because the ID would be wrong at these names.
    fn store_new_id(self: &Arc<Self>, bucket: &Bucket, current: &ObjectFile, version: &VersionId) {
        let record = current.recorded.as_ref().filter(|record| !record.is_apart && current.stat.links == 1);
        if let Some(record) = record {
            let mut record = ObjectRecord { version: Some(version.clone()), ..(**record).clone() };
            // The object must keep the ETag that clients have already received.
            let _ = self.store_record(bucket, &current.file, &current.stat, (&mut record, ETagPolicy::Md5));
        }
    }

    /// Gives the file of `current` the name `kept` among the key's versions. Returns `None` if the name belongs to
    /// another file.
    fn keep_named(
        &self,
        bucket: &Bucket,
        key: &Key,
        current: &ObjectFile,
        kept: NoncurrentVersionName,
    ) -> Result<Option<KeptVersion>> {
        let name = kept.name();
        let is_kept = self.volume.versions(bucket, key).among_versions(|dir| keep_in(dir, current, &name))?;
        Ok(is_kept.then_some(KeptVersion { version: kept.version, floor: kept.order }))
    }

    /// Returns the highest order among the key's old versions and delete markers. In a bucket with the sticky bit, only
    /// names of `owners`, the bucket's owner and root count.
    pub(crate) fn highest_order(&self, bucket: &Bucket, key: &Key, owners: &[u32]) -> Result<u64> {
        let newest = self.volume.versions(bucket, key).newest_archived(VersionOwners::Of(owners))?;
        Ok(newest.map_or(0, |newest| newest.order))
    }

    /// Removes an old version `null`, because a new version `null` replaces it.
    pub(crate) fn forget_null(
        &self,
        bucket: &Bucket,
        key: &Key,
        contents: PrivateDirectoryContents,
    ) -> Result<()> {
        let caller = [file_user()];
        let owners = VersionOwners::replaceable(contents.guard, &caller);
        let mut found = self.volume.versions(bucket, key).look_up_version(&VersionId::null(), owners)?;
        let protection = VersionProtection { volume: &self.volume, bucket, contents };
        protection.spare_locked(key, &mut found.names)?;
        self.remove_archived(bucket, key, &found.names).map(drop)
    }

    /// Removes the names of a version; returns whether the version was a delete marker.
    fn remove_archived(&self, bucket: &Bucket, key: &Key, names: &[NoncurrentVersionName]) -> Result<bool> {
        let contents = self.volume.contents(bucket)?;
        let mut was_marker = false;
        for found in names {
            self.remove_at(bucket, &archived_place(bucket, key, found), contents)?;
            was_marker |= found.is_marker;
        }
        Ok(was_marker)
    }

    /// Hides the object behind a delete marker, which becomes the latest version.
    pub(crate) fn delete_latest(
        self: &Arc<Self>,
        bucket: &Bucket,
        key: &Key,
        contents: PrivateDirectoryContents,
    ) -> Result<DeleteResult> {
        self.require_locks("a delete in a bucket that keeps versions")?;
        let by_null = contents.versioning != VersioningState::Enabled;
        // The file has already been closed, because FUSE renames a file that is removed while it is open.
        let (current_place, kept) = self.keep_to_delete(bucket, key, by_null, contents)?;
        let caller = [file_user()];
        let owners = VersionOwners::replaceable(contents.guard, &caller);
        let mut old_null = match by_null {
            true => self.volume.versions(bucket, key).look_up_version(&VersionId::null(), owners)?,
            false => VersionNameMatches::default(),
        };
        let floor = match (by_null, contents.guard) {
            (true, Some(_)) => self.highest_order(bucket, key, &caller)?,
            (true, None) => old_null.newest().map_or(0, |newest| newest.order),
            (false, _) => kept.floor,
        };
        let version = if by_null { VersionId::null() } else { new_version(floor)? };
        let order = order_in(&version).unwrap_or_else(|| now_ns().max(floor.saturating_add(1)));
        let marker = NoncurrentVersionName { order, version: version.clone(), is_marker: true };
        self.volume.versions(bucket, key).make_marker(&marker)?;
        let protection = VersionProtection { volume: &self.volume, bucket, contents };
        protection.spare_locked(key, &mut old_null.names)?;
        self.remove_archived(bucket, key, &old_null.names)?;
        self.remove_latest(bucket, key, current_place.as_ref(), contents)?;
        if let Some(locked) = &kept.locked {
            shield_old(&self.volume, (bucket, key), locked)?;
        }
        Ok(DeleteResult { version: Some(version), is_marker: true })
    }

    /// Archives the latest version before a delete marker hides it. Returns the path of the latest version's file;
    /// `None` if there is no file.
    fn keep_to_delete(
        self: &Arc<Self>,
        bucket: &Bucket,
        key: &Key,
        by_null: bool,
        contents: PrivateDirectoryContents,
    ) -> Result<(Option<ObjectPath<'static>>, KeptLatestVersion)> {
        for race in 0..MAX_RACES {
            give_way(race);
            let Some(current) = self.volume.locate(bucket, key, contents)? else {
                self.volume.require_bucket(bucket)?;
                let folder = self.volume.open_marker(bucket, key, contents)?;
                let floor = self.keep_folder(bucket, key, folder.as_ref(), by_null)?;
                return Ok((None, KeptLatestVersion::without_file(floor)));
            };
            if let Some(kept) = self.keep_latest((bucket, key), &current, by_null, contents)? {
                return Ok((Some(current.0), kept));
            }
        }
        Err(ErrorKind::ConditionalConflict.into())
    }

    /// Removes the names of the latest version, at `place` if it is a file.
    fn remove_latest(
        self: &Arc<Self>,
        bucket: &Bucket,
        key: &Key,
        place: Option<&ObjectPath>,
        contents: PrivateDirectoryContents,
    ) -> Result<()> {
        if let Some(place) = place {
            // The hidden version is archived first. In the opposite order, it would reappear as the latest version when
            // the file that hides it is removed.
            self.remove_hidden_odd(bucket, key, place, contents)?;
            self.remove_at(bucket, place, contents)?;
        }
        self.remove_marker(bucket, key, contents).map(drop)
    }

    /// Finishes a delete whose process was killed after it had created the delete marker: removes the version that is
    /// still the latest. Returns whether there was a delete to finish. Cost: one
    /// [`KeyVersions::newest_archived`].
    pub(crate) fn end_delete(
        self: &Arc<Self>,
        bucket: &Bucket,
        key: &Key,
        contents: PrivateDirectoryContents,
    ) -> Result<bool> {
        let has_newer_marker = |owners| {
            let newest = self.volume.versions(bucket, key).newest_archived(owners)?;
            Ok::<_, Error>(newest.is_some_and(|newest| newest.is_marker))
        };
        if !has_newer_marker(VersionOwners::Any)? {
            return Ok(false);
        }
        let Some((place, opened)) = self.volume.locate(bucket, key, contents)? else { return Ok(false) };
        // Another user may have created the marker.
        if contents.guard.is_some() && !has_newer_marker(VersionOwners::Of(&[opened.stat.user]))? {
            return Ok(false);
        }
        self.volume.require_own_file(bucket, key, &opened)?;
        let protection = VersionProtection { volume: &self.volume, bucket, contents };
        let (version, lock) = (opened.version(), protection.lock_of(&opened));
        // While the latest version is being deleted, its file also has a name among the old versions. Another user may
        // have given that name to another file. The removal of the latest version would then destroy the version
        // instead of hiding it. A version whose delete marker has since been removed also has both names, but no delete
        // marker is newer than this version.
        let is_kept =
            |found: &NoncurrentVersionName| self.volume.versions(bucket, key).is_name_of(found, &opened.stat);
        let archived = self.volume.versions(bucket, key).look_up_version(&version, VersionOwners::Any)?;
        if !archived.names.iter().any(|found| !found.is_marker && is_kept(found)) {
            return Ok(false);
        }
        let _unshielded = unshield(&opened.file, lock)?;
        drop(opened);
        self.remove_latest(bucket, key, Some(&place), contents)?;
        if lock.is_active(SystemTime::now()) {
            shield_old(&self.volume, (bucket, key), &version)?;
        }
        Ok(true)
    }

    /// Deletes the object or one version, according to `options`. The caller holds the key's lock.
    pub(crate) fn delete_versioned(
        self: &Arc<Self>,
        (bucket, key): (&Bucket, &Key),
        options: &DeleteOptions,
        contents: PrivateDirectoryContents,
    ) -> Result<DeleteResult> {
        // The permission to change the directory is checked before any name is created among the old versions.
        self.volume.require_own_dir(bucket, key, "removing")?;
        match &options.version {
            Some(version) => {
                let bypass = options.bypass_governance;
                VersionDeletion { store: self, bucket, key, version, contents, bypass }.run()
            }
            None => self.delete_latest(bucket, key, contents),
        }
    }
}

/// A version that was archived.
pub(crate) struct KeptVersion {
    /// The ID under which the version was archived.
    pub(crate) version: VersionId,
    /// The order that the ID of the next version must exceed.
    pub(crate) floor: u64,
}

/// The result of archiving the latest version.
pub(crate) struct KeptLatestVersion {
    /// The order that the ID of the next version must exceed.
    pub(crate) floor: u64,
    /// The ID of the archived version, if its lock is active.
    pub(crate) locked: Option<VersionId>,
    /// Sets the version's immutable flag again when the change of the key ends.
    _unshielded: UnshieldedFile,
}

impl KeptLatestVersion {
    /// Describes a key that had no file to archive.
    pub(crate) fn without_file(floor: u64) -> Self {
        KeptLatestVersion { floor, locked: None, _unshielded: UnshieldedFile::NONE }
    }
}

/// Links `current` to a name among the old versions. Returns `false` if another file has this name. For example, a
/// POSIX program may have copied an old version, with its ID, to the object's path.
fn keep_in(dir: &DirectoryHandle, current: &ObjectFile, name: &str) -> Result<bool, Errno> {
    match link_unnamed(&current.file, dir, name) {
        Err(Errno::EXIST) => {}
        done => return done.map(|()| true),
    }
    // A process that died may already have linked the file to this name.
    let there = stat_in(dir, name)?;
    Ok((there.device, there.inode) == (current.stat.device, current.stat.inode))
}

fn is_delete_marker(found: &NoncurrentVersionName) -> Error {
    Error::new(ErrorKind::MethodNotAllowed, "the version is a delete marker").at_marker(found.as_marker())
}

#[cfg(test)]
mod tests {
    use fordway_store::{GetOptions, ObjectVersionOperations, Objects, PutOptions, VersionsQuery};
    use fordway_sys::set_xattr;

    use super::*;
    use crate::layout::ATTRIBUTE;
    use crate::record::ContentChangeStamp;
    use crate::stage::hidden_name;
    use crate::{PosixConfig, PosixStore};

    struct Root {
        dir: tempfile::TempDir,
        store: PosixStore,
        bucket: Bucket,
        key: Key,
    }

    impl Root {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
            let (bucket, key) = (Bucket::new("bucket").unwrap(), Key::new("k").unwrap());
            store.create_bucket(&bucket).unwrap();
            store.set_versioning(&bucket, VersioningState::Enabled).unwrap();
            Root { dir, store, bucket, key }
        }

        fn put(&self, body: &str) -> VersionId {
            let made = self.store.put(&self.bucket, &self.key, body.as_bytes(), &PutOptions::default());
            made.unwrap().version.unwrap()
        }

        fn listed(&self) -> Vec<VersionId> {
            let listing = self.store.list_versions(&self.bucket, &VersionsQuery::default()).unwrap();
            listing.versions.into_iter().map(|version| version.version).collect()
        }

        fn content(&self, version: &VersionId) -> Vec<u8> {
            let options = GetOptions::version(version.clone());
            self.store.get(&self.bucket, &self.key, &options).unwrap().content.into_vec().unwrap()
        }

        /// Gives the latest version the ID that an earlier release would have given it at `time`.
        fn call_latest(&self, time: u64) -> VersionId {
            let volume = &self.store.inner.volume;
            let opened = volume.find_object(&self.bucket, &self.key).unwrap().unwrap();
            let version = VersionId::new(format!("{time:016x}{}", hidden_name().unwrap())).unwrap();
            let seal = Some(ContentChangeStamp::of(&opened.stat));
            let record = ObjectRecord { version: Some(version.clone()), seal, ..opened.record().clone() };
            set_xattr(&opened.file, ATTRIBUTE, &record.encode()).unwrap();
            version
        }
    }

    #[test]
    fn a_name_that_another_file_has_taken_is_not_believed() {
        let root = Root::new();
        let first = root.put("0");
        let versions = root.dir.path().join("bucket/.fordway/versions/k");
        let name = NoncurrentVersionName::of(&first, false).unwrap().name();
        std::fs::create_dir_all(&versions).unwrap();
        std::fs::write(versions.join(&name), "another").unwrap();
        let second = root.put("1");
        assert_eq!(root.content(&first), b"0");
        assert_eq!(root.listed(), [second, first]);
    }

    /// If versioning is enabled while a put waits for the key's lock, the put does not replace the version `null`.
    #[test]
    fn a_put_that_waits_while_versioning_is_enabled_keeps_the_old_version() {
        let root = Root::new();
        let (bucket, key) = (&root.bucket, &root.key);
        root.store.set_versioning(bucket, VersioningState::Suspended).unwrap();
        root.store.put(bucket, key, b"old", &PutOptions::default()).unwrap();
        let other = PosixStore::open(root.dir.path(), PosixConfig::default()).unwrap();
        std::thread::scope(|scope| {
            let enabled = root.store.inner.locked(bucket, key, |_| {
                scope.spawn(|| other.put(bucket, key, b"new", &PutOptions::default()).unwrap());
                std::thread::sleep(std::time::Duration::from_millis(200));
                root.store.set_versioning(bucket, VersioningState::Enabled)
            });
            enabled.unwrap();
        });
        assert_eq!(root.listed().len(), 2);
        assert_eq!(root.content(&VersionId::null()), b"old");
    }

    /// If a POSIX program creates an object's file just before an old version becomes the latest, the old version does
    /// not get the odd path. At the odd path, the file would hide the version, and the next write would remove it.
    #[test]
    fn a_version_does_not_become_the_latest_behind_the_file_of_a_program() {
        let root = Root::new();
        let first = root.put("0");
        root.store.delete(&root.bucket, &root.key, &DeleteOptions::default()).unwrap();
        std::fs::write(root.dir.path().join("bucket/k"), "program").unwrap();
        let kept = NoncurrentVersionName::of(&first, false).unwrap();
        let volume = &root.store.inner.volume;
        assert!(!volume.versions(&root.bucket, &root.key).promote(&kept).unwrap());
        assert!(volume.open_file(&root.bucket, &odd(&root.bucket, &root.key)).unwrap().is_none());
    }

    #[test]
    fn versions_of_earlier_programs_and_of_fast_clocks_keep_their_order() {
        let root = Root::new();
        let mut made = vec![root.put("0")];
        made.push(root.put("1"));
        // The renamed versions look as if an earlier release, whose IDs contain no order, had written them on a node
        // whose clock is an hour ahead.
        let ahead = now_ns() + 3_600_000_000_000;
        let versions = root.dir.path().join("bucket/.fordway/versions/k");
        let first = std::fs::read_dir(&versions).unwrap().next().unwrap().unwrap();
        std::fs::rename(first.path(), versions.join(format!("{ahead:016x}-{}", made[0]))).unwrap();
        made[1] = root.call_latest(ahead + 1);
        made.extend(["2", "3"].map(|body| root.put(body)));
        let options = DeleteOptions::default();
        made.push(root.store.delete(&root.bucket, &root.key, &options).unwrap().version.unwrap());
        made.push(root.put("5"));
        let newest_first: Vec<VersionId> = made.iter().rev().cloned().collect();
        assert_eq!(root.listed(), newest_first);
        for (at, version) in made.iter().enumerate().filter(|(at, _)| *at != 4) {
            assert_eq!(root.content(version), at.to_string().as_bytes());
        }
        // A version is found even if its name does not match the order in its ID.
        assert_eq!(root.content(&made[0]), b"0");
        let options = DeleteOptions { version: Some(made[5].clone()), ..Default::default() };
        root.store.delete(&root.bucket, &root.key, &options).unwrap();
        assert_eq!(root.listed(), newest_first[1..]);
        let options = DeleteOptions { version: Some(made[4].clone()), ..Default::default() };
        assert!(root.store.delete(&root.bucket, &root.key, &options).unwrap().is_marker);
        assert_eq!(root.listed(), newest_first[2..]);
        assert_eq!(root.content(&made[3]), b"3");
    }
}
