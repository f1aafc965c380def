//! Deletes one version permanently.

use std::sync::Arc;

use fordway_store::{Bucket, DeleteResult, ETagPolicy, ErrorKind, Key, ObjectLock, Result, VersionId};
use fordway_sys::{file_user, stat_in};

use super::lookup::VersionNameMatches;
use super::names::{NoncurrentVersionName, archived_place};
use super::owners::VersionOwners;
use crate::PosixStoreState;
use crate::layout::{ObjectPath, plain, versions_of};
use crate::object_lock::{UnshieldedFile, VersionProtection, shield, unshield};
use crate::private::PrivateDirectoryContents;
use crate::read::ObjectFile;

/// The permanent deletion of one version, whose key is locked by the caller. The newest remaining version becomes the
/// latest.
pub(crate) struct VersionDeletion<'d> {
    pub(crate) store: &'d Arc<PosixStoreState>,
    pub(crate) bucket: &'d Bucket,
    pub(crate) key: &'d Key,
    pub(crate) version: &'d VersionId,
    pub(crate) contents: PrivateDirectoryContents,
    /// Whether the deletion bypasses a retention in governance mode.
    pub(crate) bypass: bool,
}

/// The key's latest version before the deletion.
struct LatestVersion {
    place: ObjectPath<'static>,
    version: VersionId,
    /// The user ID of the file's owner.
    owner: u32,
    /// The file of the latest version, if it is a copy of the deleted version.
    copy: Option<ObjectFile>,
}

/// The versions of the key that the deletion affects, as they were before the deletion.
struct ConcernedVersions {
    latest: Option<LatestVersion>,
    /// Whether the deleted version is the latest.
    is_latest: bool,
    /// The names of the deleted version among the old versions.
    names: Vec<NoncurrentVersionName>,
    /// The newest of the other old versions, unless it is a delete marker.
    next: Option<NoncurrentVersionName>,
    /// Whether the deleted version is a delete marker, and newer than all other old versions.
    is_newest_marker: bool,
}

impl VersionDeletion<'_> {
    /// Deletes the version. Errors: `AccessDenied` if the version is locked; `NoSuchBucket`; errors of
    /// [`VersionDeletion::locate_latest`]; errors of the file system.
    pub(crate) fn run(&self) -> Result<DeleteResult> {
        let VersionDeletion { store, bucket, key, version, contents, .. } = *self;
        store.require_locks("a delete in a bucket that keeps versions")?;
        if contents.sharing.is_shared() {
            store.volume.refresh_dirs(&versions_of(bucket, key));
        }
        let mut unshielded = Vec::new();
        let latest = self.check_latest(&mut unshielded)?;
        if let Some(LatestVersion { place, .. }) = &latest {
            // The hidden version may be the deleted version, or the version that becomes the latest.
            store.remove_hidden_odd(bucket, key, place, contents)?;
        }
        let mut concerned = self.find_concerned(latest, &mut unshielded)?;
        let promoted = self.open_promoted(&concerned)?;
        let lock = promoted.as_ref().map_or(ObjectLock::NONE, |promoted| self.protection().lock_of(promoted));
        let _unshielded = match &promoted {
            Some(promoted) => unshield(&promoted.file, lock)?,
            None => UnshieldedFile::NONE,
        };
        if let Some(copy) = concerned.latest.as_mut().and_then(|latest| latest.copy.take()) {
            self.store_without_id(copy)?;
        }
        let is_marker = self.remove(&concerned)?;
        unshielded.into_iter().for_each(UnshieldedFile::leave);
        if let Some(promoted) = &promoted {
            shield(&store.volume.config, &promoted.file, lock)?;
        }
        store.volume.versions(bucket, key).remove_empty();
        Ok(DeleteResult { version: Some(version.clone()), is_marker })
    }

    fn protection(&self) -> VersionProtection<'_> {
        VersionProtection { volume: &self.store.volume, bucket: self.bucket, contents: self.contents }
    }

    /// Finds the latest version. If the deletion removes this version, checks its lock, and adds its file to
    /// `unshielded`.
    fn check_latest(&self, unshielded: &mut Vec<UnshieldedFile>) -> Result<Option<LatestVersion>> {
        let VersionDeletion { store, bucket, key, version, contents, bypass } = *self;
        let Some((place, mut opened, is_copy)) = self.locate_latest()? else {
            store.volume.require_bucket(bucket)?;
            return Ok(None);
        };
        // If the key is a symbolic link to a file of another bucket, only the link is removed, and that bucket keeps
        // the version.
        let is_own = |opened: &ObjectFile| store.volume.require_own_file(bucket, key, opened).is_ok();
        if opened.version() == *version && is_own(&opened) {
            store.volume.renew_record(bucket, &mut opened, contents.sharing)?;
            unshielded.push(self.protection().unshield_to_remove(&opened, bypass)?);
        }
        let (latest, owner) = (opened.version(), opened.stat.user);
        let copy = Some(opened).filter(|opened| is_copy && is_own(opened));
        Ok(Some(LatestVersion { place, version: latest, owner, copy }))
    }

    /// Opens the latest version; also returns whether the latest version is a copy of the deleted version. A copy of an
    /// old version has no version ID, even if the copy is recent (see
    /// [`crate::versions::KeyVersions::disown_copy`]). Errors: `Corrupt` if the latest version would be removed in
    /// a bucket with object lock, and its record cannot be decoded: the record may contain a lock.
    fn locate_latest(&self) -> Result<Option<(ObjectPath<'static>, ObjectFile, bool)>> {
        let VersionDeletion { store, bucket, key, version: deleted, contents, .. } = *self;
        let Some((place, mut latest)) = store.volume.locate(bucket, key, contents)? else { return Ok(None) };
        let is_concerned = |version: &VersionId| deleted.is_null() || version == deleted;
        let is_copy = store.volume.versions(bucket, key).disown_any_copy(&mut latest, is_concerned)?;
        if latest.recorded.is_none() && contents.object_lock.is_some() && deleted.is_null() {
            self.protection().open_to_check(&place)?;
            // The record could be decoded this time, so another program has just changed it.
            return Err(ErrorKind::ConditionalConflict.into());
        }
        Ok(Some((place, latest, is_copy && !deleted.is_null())))
    }

    /// Finds the names of the deleted version, checks their locks, and adds their files to `unshielded`.
    fn find_concerned(
        &self,
        latest: Option<LatestVersion>,
        unshielded: &mut Vec<UnshieldedFile>,
    ) -> Result<ConcernedVersions> {
        let VersionDeletion { store, bucket, key, version, contents, .. } = *self;
        let is_latest = latest.as_ref().is_some_and(|latest| latest.version == *version);
        let only = store.volume.versions(bucket, key).only_name_of(version, contents).filter(|_| !is_latest);
        let VersionNameMatches { mut names, newest_other } = match only {
            // Only the removal of the latest version makes another version the latest. If an object is the latest
            // version, or if this version is not a delete marker, then this version is not the latest.
            Some(only) if latest.is_some() || !only.is_marker => {
                VersionNameMatches { names: vec![only], newest_other: None }
            }
            _ => self.look_up(latest.as_ref().filter(|_| is_latest))?,
        };
        self.check_names(&mut names, unshielded)?;
        let is_newest_marker = names.first().is_some_and(|first| {
            first.is_marker && newest_other.as_ref().is_none_or(|other| other.order <= first.order)
        });
        let next = newest_other.filter(|other| !other.is_marker);
        Ok(ConcernedVersions { latest, is_latest, names, next, is_newest_marker })
    }

    /// Looks up the names of the deleted version, and the newest other name. `latest` is the latest version if it is
    /// the deleted version. In a bucket with the sticky bit, other users may have created names with the ID of the
    /// deleted version, and names that look like newer versions. The caller's names are then removed without the
    /// others. Only names of the owners of the deleted version, or of trusted users, can become the latest version.
    fn look_up(&self, latest: Option<&LatestVersion>) -> Result<VersionNameMatches> {
        let VersionDeletion { store, bucket, key, version, contents, .. } = *self;
        let mut found = store.volume.versions(bucket, key).look_up_version(version, VersionOwners::Any)?;
        let Some(guard) = contents.guard else { return Ok(found) };
        let owner_of =
            |name: &NoncurrentVersionName| store.volume.versions(bucket, key).owner_of_version(name);
        let caller = file_user();
        let is_callers = |name: &NoncurrentVersionName| owner_of(name) == Some(caller);
        let has_own =
            latest.is_some_and(|latest| latest.owner == caller) || found.names.iter().any(is_callers);
        if has_own && !guard.trusts(caller) {
            found.names.retain(is_callers);
        }
        let mut owners: Vec<u32> = latest.map(|latest| latest.owner).into_iter().collect();
        owners.extend(found.names.iter().filter_map(owner_of));
        owners.retain(|owner| !guard.trusts(*owner));
        if owners.is_empty() {
            owners.extend(store.volume.versions(bucket, key).only_other_owner(guard)?);
        }
        let counted =
            store.volume.versions(bucket, key).look_up_version(version, VersionOwners::Of(&owners))?;
        Ok(VersionNameMatches { newest_other: counted.newest_other, ..found })
    }

    /// Checks the locks of the files with these names, and adds the files to `unshielded`.
    fn check_names(
        &self,
        names: &mut Vec<NoncurrentVersionName>,
        unshielded: &mut Vec<UnshieldedFile>,
    ) -> Result<()> {
        let protection = self.protection();
        for at in (0..names.len()).rev().filter(|at| !names[*at].is_marker).collect::<Vec<_>>() {
            let has_lock = self.contents.object_lock.is_some();
            match protection.open_to_check(&archived_place(self.bucket, self.key, &names[at])) {
                Ok(Some(opened)) => unshielded.push(protection.unshield_to_remove(&opened, self.bypass)?),
                // A name whose lock could not be checked is not removed, because its file may reappear and may be
                // locked.
                Ok(None) if has_lock => drop(names.remove(at)),
                Ok(None) => {}
                // In a bucket without object lock, a file with a damaged record can be deleted. If the file is
                // immutable, the kernel refuses the deletion.
                Err(error)
                    if !has_lock && matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::AccessDenied) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Opens the version that becomes the latest, because it may have the immutable flag. If a key has neither a latest
    /// version nor a delete marker, a POSIX program has removed its file, and no version becomes the latest.
    fn open_promoted(&self, concerned: &ConcernedVersions) -> Result<Option<ObjectFile>> {
        let is_promoting = concerned.is_latest || concerned.is_newest_marker;
        match &concerned.next {
            Some(next) if is_promoting => {
                match self.store.volume.versions(self.bucket, self.key).open_archived(next) {
                    // A version that the caller may not read, or whose record is damaged, can become the latest. If its
                    // file is immutable, the kernel refuses the change.
                    Err(error)
                        if self.contents.object_lock.is_none()
                            && matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::AccessDenied) =>
                    {
                        Ok(None)
                    }
                    opened => opened,
                }
            }
            _ => Ok(None),
        }
    }

    /// Stores the record of `copy`, from which the version ID has been removed, before the original is removed.
    /// Otherwise, the copy would become the version with this ID after the removal of the original.
    #[cold]
    fn store_without_id(&self, mut copy: ObjectFile) -> Result<()> {
        let record = copy.recorded.get_or_insert_default();
        // The object must keep the ETag that clients have already received.
        let id_is_removed = (&mut **record, ETagPolicy::Md5);
        self.store.store_record(self.bucket, &copy.file, &copy.stat, id_is_removed)?;
        self.store.volume.sync_record(&copy.file)
    }

    /// Removes the version. If the version is the latest, or is the delete marker that hides the key, makes the next
    /// version the latest, unless the next version is a delete marker. Returns whether the version was a delete marker.
    fn remove(&self, concerned: &ConcernedVersions) -> Result<bool> {
        let VersionDeletion { store, bucket, key, version, contents, .. } = *self;
        let ConcernedVersions { latest, is_latest, names, next, is_newest_marker } = concerned;
        let is_promoted = match (latest, next) {
            // The version becomes the latest before the delete marker is removed, so that there is always a latest
            // version.
            (None, Some(next)) if *is_newest_marker => store.volume.versions(bucket, key).promote(next)?,
            _ => false,
        };
        let is_marker = store.remove_archived(bucket, key, names)? && !is_latest;
        if version.is_null() {
            // An object that is a directory was put before versioning was enabled.
            store.remove_marker(bucket, key, contents)?;
        }
        match (latest, next) {
            (Some(LatestVersion { place, .. }), next) if *is_latest => match next {
                Some(next) => store.volume.versions(bucket, key).promote_over(next, place)?,
                None => drop(store.remove_at(bucket, place, contents)?),
            },
            (None, Some(next)) if is_promoted => {
                store.remove_at(bucket, &archived_place(bucket, key, next), contents)?;
            }
            (None, _) if version.is_null() => self.remove_link()?,
            _ => {}
        }
        Ok(is_marker)
    }

    /// Removes the symbolic link at the key's plain path if the link leads to a directory or to nothing, so that the
    /// key has no latest version. In a bucket that keeps no versions, any delete of the key removes such a link.
    fn remove_link(&self) -> Result<()> {
        let Some(place) = plain(self.bucket, self.key) else { return Ok(()) };
        let state = self.store.volume.open_dir(&place.dir).and_then(|dir| stat_in(dir, &place.name));
        match state.is_ok_and(|state| state.is_link) {
            true => self.store.remove_at(self.bucket, &place, self.contents).map(drop),
            false => Ok(()),
        }
    }
}
