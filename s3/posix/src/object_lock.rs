//! Object lock: the locks on versions, and the bucket's setting.
//!
//! A version's lock is in its record, so the lock moves with the file. The bucket's setting is in the file
//! `versioning`, because object lock needs versioning. A bucket without object lock therefore has no extra cost, and a
//! bucket never has object lock without versioning. Releases that predate object lock treat the setting as `Enabled`.
//!
//! A user of the file system can replace `versioning`, or move a directory with locked versions to another bucket. In a
//! bucket without object lock, a lock in a version's record therefore counts if the file has the immutable flag: a
//! gateway has set the flag while the bucket, or the bucket from which the file was moved, had object lock. Without the
//! flag, the lock does not count, because any user who may write to the file may have written the lock.
//!
//! ```text
//! Enabled                     keeps versions
//! Suspended                   keeps the existing versions, and creates no new ones
//! Locked                      keeps versions, with object lock
//! Locked GOVERNANCE 30 days   keeps versions, with object lock and a default retention
//! Locked COMPLIANCE 1 years   keeps versions, with object lock and a default retention
//! ```

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::SystemTime;

use fordway_store::{
    Bucket, DefaultRetention, ETagPolicy, Error, ErrorKind, Key, LockConfiguration, ObjectLock, Result,
    Retention, RetentionMode, RetentionPeriod, VersionId, VersioningState, no_object_lock,
};
use fordway_sys::{Errno, get_xattr, is_immutable, set_immutable};

use crate::area::read_small;
use crate::errors::from_errno;
use crate::layout::{ATTRIBUTE, ObjectPath, VERSIONING, private_dir, versions_of};
use crate::private::{PrivateDirectoryContents, VERSIONING_BYTES};
use crate::read::ObjectFile;
use crate::record::ObjectRecord;
use crate::stage::{SETTING_MODE, StagedFile};
use crate::versions::names::{NoncurrentVersionName, archived_place};
use crate::volume::StoreDirectoryTree;
use crate::{PosixConfig, PosixStoreState};

/// The first word of `versioning`.
const ENABLED: &str = "Enabled";
const SUSPENDED: &str = "Suspended";
const LOCKED: &str = "Locked";
/// The units of a default retention.
const DAYS: &str = "days";
const YEARS: &str = "years";

/// The parsed content of the file `versioning`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VersioningAndLockSetting {
    pub(crate) versioning: VersioningState,
    /// The object lock of a bucket whose versioning is enabled.
    pub(crate) object_lock: Option<LockConfiguration>,
}

impl VersioningAndLockSetting {
    pub(crate) const ENABLED: VersioningAndLockSetting =
        VersioningAndLockSetting { versioning: VersioningState::Enabled, object_lock: None };

    /// Parses the content of the file `versioning`; `None` if the content is not valid.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text.trim_ascii()).ok()?;
        match text.split(' ').collect::<Vec<_>>()[..] {
            [ENABLED] => Some(VersioningAndLockSetting::ENABLED),
            [SUSPENDED] => {
                Some(VersioningAndLockSetting { versioning: VersioningState::Suspended, object_lock: None })
            }
            [LOCKED] => Some(VersioningAndLockSetting::locked(LockConfiguration::default())),
            [LOCKED, mode, count, unit] => {
                let count = count.parse().ok()?;
                let period = match unit {
                    DAYS => RetentionPeriod::Days(count),
                    YEARS => RetentionPeriod::Years(count),
                    _ => return None,
                };
                let default = DefaultRetention { mode: RetentionMode::from_name(mode)?, period };
                let configuration = LockConfiguration { default: Some(default) };
                configuration.check().ok().map(|()| VersioningAndLockSetting::locked(configuration))
            }
            _ => None,
        }
    }

    fn locked(configuration: LockConfiguration) -> Self {
        VersioningAndLockSetting { object_lock: Some(configuration), ..VersioningAndLockSetting::ENABLED }
    }

    /// Returns the setting as the content of the file `versioning`.
    fn text(&self) -> String {
        match (self.versioning, self.object_lock) {
            (VersioningState::Enabled, Some(LockConfiguration { default: None })) => format!("{LOCKED}\n"),
            (VersioningState::Enabled, Some(LockConfiguration { default: Some(default) })) => {
                let (count, unit) = match default.period {
                    RetentionPeriod::Days(days) => (days, DAYS),
                    RetentionPeriod::Years(years) => (years, YEARS),
                };
                format!("{LOCKED} {} {count} {unit}\n", default.mode.name())
            }
            (VersioningState::Enabled, None) => format!("{ENABLED}\n"),
            _ => format!("{SUSPENDED}\n"),
        }
    }
}

/// The locks on a store's versions, and its buckets' settings of object lock.
pub(crate) struct ObjectLockManager<'s> {
    pub(crate) store: &'s Arc<PosixStoreState>,
}

impl ObjectLockManager<'_> {
    /// Replaces the content of `versioning`. In a bucket with object lock, the file has the immutable flag if the
    /// configuration requires it for locked versions. `before` is the setting that is replaced.
    fn write_versioning(
        &self,
        bucket: &Bucket,
        before: VersioningAndLockSetting,
        setting: VersioningAndLockSetting,
    ) -> Result<()> {
        let place = ObjectPath { dir: private_dir(bucket).into(), name: VERSIONING.into() };
        let unshielded = match before.object_lock {
            Some(_) => self.unshield_versioning(bucket, &place)?,
            None => UnshieldedFile::NONE,
        };
        let mut staged = StagedFile::with_mode(self.store, bucket, place, false, SETTING_MODE)?;
        staged.write(setting.text().as_bytes())?;
        let file = staged.file().try_clone();
        staged.publish_private()?;
        unshielded.leave();
        self.store.volume.private.forget(bucket);
        if self.store.volume.config.immutable_locks && setting.object_lock.is_some() {
            let failed = |error| Error::new(ErrorKind::from(&error), "opening the setting").caused_by(error);
            set_flag(file.map_err(failed)?)?;
        }
        Ok(())
    }

    fn unshield_versioning(&self, bucket: &Bucket, place: &ObjectPath) -> Result<UnshieldedFile> {
        let volume = &self.store.volume;
        match volume.open_private(place, volume.sharing_of(bucket)) {
            Ok(file) => unshield_setting(file.into()).map_err(|errno| match errno {
                Errno::PERM => immutable("the bucket's setting is protected, and its file"),
                errno => from_errno(errno, "reading the setting"),
            }),
            Err(Errno::NOENT) => Ok(UnshieldedFile::NONE),
            Err(errno) => Err(from_errno(errno, "opening the setting")),
        }
    }

    pub(crate) fn configuration(&self, bucket: &Bucket) -> Result<Option<LockConfiguration>> {
        self.store.volume.require_bucket(bucket)?;
        Ok(self.store.volume.contents(bucket)?.object_lock)
    }

    pub(crate) fn set_configuration(&self, bucket: &Bucket, configuration: &LockConfiguration) -> Result<()> {
        configuration.check()?;
        self.store.volume.require_bucket(bucket)?;
        self.store.require_locks("object lock")?;
        self.store.volume.check_decides(bucket, "has object lock")?;
        self.with_setting(bucket, |setting| {
            setting.versioning.check_lockable()?;
            Ok(VersioningAndLockSetting::locked(*configuration))
        })
    }

    /// Changes the setting under a lock, so that no concurrent change, such as enabling object lock, is lost.
    pub(crate) fn with_setting(
        &self,
        bucket: &Bucket,
        change: impl FnOnce(VersioningAndLockSetting) -> Result<VersioningAndLockSetting>,
    ) -> Result<()> {
        // The lock is the lock of the key `versioning`; no object with this key needs to exist.
        self.store.locked(bucket, &Key::new(VERSIONING)?, |contents| {
            let PrivateDirectoryContents { versioning, object_lock, .. } = contents;
            let before = VersioningAndLockSetting { versioning, object_lock };
            let setting = change(before)?;
            self.write_versioning(bucket, before, setting)?;
            if setting != before {
                self.store.volume.private.outlast(&contents);
            }
            Ok(())
        })
    }

    pub(crate) fn set_retention(
        &self,
        (bucket, key): (&Bucket, &Key),
        version: Option<&VersionId>,
        retention: Option<Retention>,
        bypass: bool,
    ) -> Result<()> {
        if bypass {
            check_bypass(&self.store.volume, bucket)?;
        }
        self.change_lock((bucket, key), version, |lock| {
            lock.with_retention(retention, SystemTime::now(), bypass)
        })
    }

    pub(crate) fn set_legal_hold(
        &self,
        (bucket, key): (&Bucket, &Key),
        version: Option<&VersionId>,
        is_on: bool,
    ) -> Result<()> {
        if is_on {
            check_lockable(
                &self.store.volume,
                bucket,
                ObjectLock { legal_hold: Some(true), ..ObjectLock::NONE },
            )?;
        }
        self.change_lock((bucket, key), version, |lock| Ok(ObjectLock { legal_hold: Some(is_on), ..lock }))
    }

    /// Changes the lock of a version under the key's lock. The record stays sealed, because setting an attribute
    /// changes neither size nor modification time. In a bucket without object lock, a version that has a lock can be
    /// changed, so that its lock can be removed.
    fn change_lock(
        &self,
        (bucket, key): (&Bucket, &Key),
        version: Option<&VersionId>,
        change: impl FnOnce(ObjectLock) -> Result<ObjectLock>,
    ) -> Result<()> {
        self.store.require_locks("object lock")?;
        self.store.locked(bucket, key, |contents| {
            let protection = VersionProtection { volume: &self.store.volume, bucket, contents };
            let opened = protection.open_to_change(key, version);
            let has_lock = opened.as_ref().is_ok_and(|opened| !opened.record().lock.is_none());
            if contents.object_lock.is_none() && !has_lock {
                return Err(no_object_lock());
            }
            let mut opened = opened?;
            if opened.stat.is_dir {
                let why = "the object is a directory, which cannot be locked; put the object again";
                return Err(Error::new(ErrorKind::NotImplemented, why));
            }
            let needs_flag = contents.object_lock.is_some() || !protection.lock_of(&opened).is_none();
            let record = opened.recorded.get_or_insert_default();
            let lock = change(record.lock)?;
            let unshielded = unshield(&opened.file, record.lock)?;
            record.lock = lock;
            // The object must keep the ETag that clients have already received.
            let lock_is_kept = (&mut **record, ETagPolicy::Md5);
            self.store.store_record(bucket, &opened.file, &opened.stat, lock_is_kept)?;
            if !lock.is_active(SystemTime::now()) {
                unshielded.leave();
            }
            self.store.volume.sync_record(&opened.file)?;
            shield(&self.store.volume.config, &opened.file, if needs_flag { lock } else { ObjectLock::NONE })
        })
    }
}

/// A locked version's file whose immutable flag is off while its key is changed. Dropping the value sets the flag
/// again, so that the version keeps its protection if the change fails. The file stays open until the value is dropped.
/// Keeping the file open is harmless, because NFS and FUSE, which rename a file that is removed while it is open, do
/// not have the flag.
#[must_use = "the flag is set again when this is dropped"]
pub(crate) struct UnshieldedFile(Option<OwnedFd>);

impl UnshieldedFile {
    pub(crate) const NONE: UnshieldedFile = UnshieldedFile(None);

    /// Leaves the flag off, because the version has been removed or is no longer locked.
    pub(crate) fn leave(mut self) {
        self.0 = None;
    }
}

impl Drop for UnshieldedFile {
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            // No error is expected, because the process was permitted to remove the flag. An error is ignored, because
            // the lock itself is in the record and does not need the flag.
            let _ = set_immutable(file, true);
        }
    }
}

/// Sets the immutable flag on the file of a locked version, if the configuration requires it. Through S3, a file
/// without the flag is still locked. Cost: none without a lock. Errors: `NotImplemented` if the file system does not
/// have this flag.
pub(crate) fn shield(config: &PosixConfig, file: impl AsFd, lock: ObjectLock) -> Result<()> {
    if !config.immutable_locks || !lock.is_active(SystemTime::now()) {
        return Ok(());
    }
    set_flag(file)
}

fn set_flag(file: impl AsFd) -> Result<()> {
    set_immutable(file, true).map(|_was_unset| ()).map_err(|errno| match errno {
        Errno::PERM => from_errno(errno, "setting the immutable flag, which needs CAP_LINUX_IMMUTABLE"),
        errno => {
            let why = "the file system has no immutable flag; omit --immutable-locks";
            Error::new(ErrorKind::NotImplemented, why).caused_by(std::io::Error::from(errno))
        }
    })
}

/// Opens an old version, and sets the immutable flag on its file as [`shield`] does.
pub(crate) fn shield_old(
    volume: &StoreDirectoryTree,
    (bucket, key): (&Bucket, &Key),
    version: &VersionId,
) -> Result<()> {
    if !volume.config.immutable_locks {
        return Ok(());
    }
    let opened = volume.versions(bucket, key).open_version(Some(version))?;
    shield(&volume.config, &opened.file, opened.record().lock)
}

/// Removes the immutable flag, if it is set, from a locked version's file. If the lock is active, the flag is set again
/// when the result is dropped. The flag stays if the lock is not in the file's attribute: others can change the sidecar
/// file of an immutable file. Cost: none without a lock.
pub(crate) fn unshield(file: impl AsFd, lock: ObjectLock) -> Result<UnshieldedFile> {
    if lock.is_none() || !has_attribute(&file) {
        return Ok(UnshieldedFile::NONE);
    }
    // The descriptor is duplicated before the flag is removed. If the duplication failed after the removal, the flag
    // could not be set again.
    let held = file.as_fd().try_clone_to_owned();
    let failed = |error| Error::new(ErrorKind::from(&error), "opening the locked version").caused_by(error);
    let held = held.map_err(failed)?;
    match set_immutable(file, false) {
        Ok(was_set) if was_set && lock.is_active(SystemTime::now()) => Ok(UnshieldedFile(Some(held))),
        Err(Errno::PERM) => Err(immutable("the version is locked, and its file")),
        // If the file system does not have this flag, there is nothing to remove.
        _ => Ok(UnshieldedFile::NONE),
    }
}

fn immutable(what: &str) -> Error {
    let why = format!("{what} is immutable, so only a gateway run by root can change it");
    Error::new(ErrorKind::AccessDenied, why)
}

/// Removes the immutable flag from the file `versioning` of a bucket. The flag is set again when the result is dropped.
/// A file that is not a setting keeps its flag: anyone who may rename directories can give this path to a directory
/// with locked versions. Cost: a read of the file, and one call to get an attribute.
pub(crate) fn unshield_setting(file: OwnedFd) -> Result<UnshieldedFile, Errno> {
    let text = read_small(&file, VERSIONING_BYTES)?;
    let is_setting = text.is_some_and(|(text, _)| VersioningAndLockSetting::parse(&text).is_some());
    if !is_setting || has_attribute(&file) {
        return Ok(UnshieldedFile::NONE);
    }
    match set_immutable(&file, false) {
        Ok(true) => Ok(UnshieldedFile(Some(file))),
        Err(Errno::PERM) => Err(Errno::PERM),
        // The file has no flag, or the file system has none.
        _ => Ok(UnshieldedFile::NONE),
    }
}

/// Returns whether the file may have the attribute of an object.
fn has_attribute(file: impl AsFd) -> bool {
    !matches!(get_xattr(file, ATTRIBUTE, &mut [0; 8]), Ok(None) | Err(Errno::OPNOTSUPP))
}

/// Checks that a new version may have the requested lock, `asked`. Cost: none without a lock. Errors: `InvalidArgument`
/// in a bucket without object lock, and for a retention that has ended.
pub(crate) fn check_lockable(volume: &StoreDirectoryTree, bucket: &Bucket, asked: ObjectLock) -> Result<()> {
    asked.retention.map_or(Ok(()), |_| asked.check_new(SystemTime::now()))?;
    match asked.is_none() || volume.contents(bucket)?.object_lock.is_some() {
        true => Ok(()),
        false => volume.require_bucket(bucket).and(Err(no_object_lock())),
    }
}

/// Checks that the caller may bypass a retention in governance mode. Errors: `AccessDenied`.
fn check_bypass(volume: &StoreDirectoryTree, bucket: &Bucket) -> Result<()> {
    volume.check_decides(bucket, "bypasses governance retention")
}

/// Checks the locks of the versions in one bucket.
pub(crate) struct VersionProtection<'v> {
    pub(crate) volume: &'v StoreDirectoryTree,
    pub(crate) bucket: &'v Bucket,
    pub(crate) contents: PrivateDirectoryContents,
}

impl VersionProtection<'_> {
    /// Returns the lock of the version in `opened`, if the lock counts: the bucket has object lock, or the file has the
    /// immutable flag. Call this before the flag is removed. Cost: one `ioctl` for a version with a lock in a bucket
    /// without object lock, otherwise none.
    pub(crate) fn lock_of(&self, opened: &ObjectFile) -> ObjectLock {
        let lock = opened.record().lock;
        let counts = lock.is_none()
            || self.contents.object_lock.is_some()
            || !matches!(is_immutable(&opened.file), Ok(false) | Err(Errno::NOTTY | Errno::OPNOTSUPP));
        if counts { lock } else { ObjectLock::NONE }
    }

    /// Checks that the version in `opened` may be deleted, whether or not the bucket has object lock. Cost: as for
    /// [`VersionProtection::lock_of`]. Errors: `AccessDenied`.
    pub(crate) fn check_unlocked(&self, opened: &ObjectFile, bypass: bool) -> Result<()> {
        let lock = self.lock_of(opened);
        if lock.is_none() {
            return Ok(());
        }
        let now = SystemTime::now();
        match lock.check_delete(now, false) {
            Err(_) if bypass && lock.check_delete(now, true).is_ok() => {
                check_bypass(self.volume, self.bucket)
            }
            checked => checked,
        }
    }

    /// Removes the immutable flag from the version in `opened`, which is going to be removed or replaced. Errors: as
    /// for [`VersionProtection::check_unlocked`] and [`unshield`].
    pub(crate) fn unshield_to_remove(&self, opened: &ObjectFile, bypass: bool) -> Result<UnshieldedFile> {
        self.check_unlocked(opened, bypass)?;
        unshield(&opened.file, opened.record().lock)
    }

    /// Removes the immutable flag from the object at `place` in a bucket that keeps no versions, if the object has a
    /// lock that has ended. A POSIX program may have moved the file there. Returns whether the flag was removed.
    /// Errors: `AccessDenied` if the lock has not ended.
    #[cold]
    pub(crate) fn unshield_moved(&self, place: &ObjectPath) -> Result<bool> {
        if self.contents.versioning != VersioningState::Unversioned {
            return Ok(false);
        }
        match self.open_to_check(place) {
            Ok(Some(opened))
                if is_immutable(&opened.file) == Ok(true) && !self.lock_of(&opened).is_none() =>
            {
                self.unshield_to_remove(&opened, false)?.leave();
                Ok(is_immutable(&opened.file) == Ok(false))
            }
            _ => Ok(false),
        }
    }

    /// Removes the names of locked versions from `names`, so that a new version does not replace them. Cost: an open of
    /// each version in `names`.
    pub(crate) fn spare_locked(&self, key: &Key, names: &mut Vec<NoncurrentVersionName>) -> Result<()> {
        for at in (0..names.len()).rev().filter(|at| !names[*at].is_marker).collect::<Vec<_>>() {
            match self.open_to_check(&archived_place(self.bucket, key, &names[at])) {
                Ok(Some(opened)) if self.check_unlocked(&opened, false).is_err() => drop(names.remove(at)),
                Ok(_) => {}
                // Without a readable record, there is no lock. If the file is immutable, the kernel prevents its
                // removal.
                Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::AccessDenied) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Opens the file at `place` to check its lock. On a shared file system, this node may have cached the version or
    /// its record as missing, and a locked version would then appear to be unlocked. The version and its record are
    /// therefore looked up again.
    pub(crate) fn open_to_check(&self, place: &ObjectPath) -> Result<Option<ObjectFile>> {
        let VersionProtection { volume, bucket, contents } = *self;
        let mut opened = volume.open_file(bucket, place)?;
        if opened.is_none() && contents.sharing.is_shared() {
            volume.reveal(place, contents.sharing)?;
            opened = volume.open_file(bucket, place)?;
        }
        if let Some(opened) = &mut opened {
            volume.unhide_record(bucket, opened)?;
            volume.renew_record(bucket, opened, contents.sharing)?;
        }
        Ok(opened)
    }

    /// Opens a version, as [`KeyVersions::open_version`] does, to change its record under the key's lock.
    /// Errors: as for [`KeyVersions::open_version`]; `AccessDenied` if a symbolic link in the key's path
    /// points to another bucket; `MethodNotAllowed` if a part of the record is missing. If `fsck --migrate` found the
    /// missing part later, it would undo the change.
    pub(crate) fn open_to_change(&self, key: &Key, version: Option<&VersionId>) -> Result<ObjectFile> {
        let VersionProtection { volume, bucket, contents } = *self;
        volume.refresh(bucket, key, contents)?;
        if contents.sharing.is_shared() && version.is_some() {
            volume.refresh_dirs(&versions_of(bucket, key));
        }
        let mut opened = volume.versions(bucket, key).open_version(version)?;
        volume.require_own_file(bucket, key, &opened)?;
        volume.unhide_record(bucket, &mut opened)?;
        volume.renew_record(bucket, &mut opened, contents.sharing)?;
        // The record that the sticky bit hid may show that the file is a copy of an old version.
        if volume.versions(bucket, key).disown_any_copy(&mut opened, |_| true)?
            && version.is_some_and(|version| !version.is_null())
        {
            return Err(ErrorKind::ConditionalConflict.into());
        }
        volume.require_whole(bucket, &mut opened)?;
        Ok(opened)
    }
}

impl ObjectRecord {
    /// Sets the bucket's default retention in the record of a new version, unless the record has a retention. Returns
    /// whether the record changed. Errors: `InvalidArgument` for a lock in a bucket without object lock.
    pub(crate) fn retain(&mut self, contents: PrivateDirectoryContents) -> Result<bool> {
        match contents.object_lock {
            Some(configuration) => {
                let lock = configuration.lock_of(self.lock, SystemTime::now());
                Ok(std::mem::replace(&mut self.lock, lock) != lock)
            }
            None if self.lock.is_none() => Ok(false),
            None => Err(no_object_lock()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_round_trip_and_nothing_else_is_one() {
        let default = |mode, period| LockConfiguration { default: Some(DefaultRetention { mode, period }) };
        for (setting, text) in [
            (VersioningAndLockSetting::ENABLED, "Enabled\n"),
            (
                VersioningAndLockSetting { versioning: VersioningState::Suspended, object_lock: None },
                "Suspended\n",
            ),
            (VersioningAndLockSetting::locked(LockConfiguration::default()), "Locked\n"),
            (
                VersioningAndLockSetting::locked(default(
                    RetentionMode::Governance,
                    RetentionPeriod::Days(30),
                )),
                "Locked GOVERNANCE 30 days\n",
            ),
            (
                VersioningAndLockSetting::locked(default(
                    RetentionMode::Compliance,
                    RetentionPeriod::Years(100),
                )),
                "Locked COMPLIANCE 100 years\n",
            ),
        ] {
            assert_eq!(setting.text(), text);
            assert_eq!(VersioningAndLockSetting::parse(text.as_bytes()), Some(setting));
        }
        for text in [
            "",
            "enabled",
            "Enabled Locked",
            "Locked GOVERNANCE",
            "Locked GOVERNANCE 0 days",
            "Locked GOVERNANCE 36501 days",
            "Locked governance 1 days",
            "Locked COMPLIANCE -1 years",
            "Locked COMPLIANCE 1 weeks",
            "Locked  COMPLIANCE 1 days",
        ] {
            assert_eq!(VersioningAndLockSetting::parse(text.as_bytes()), None, "{text:?}");
        }
    }
}
