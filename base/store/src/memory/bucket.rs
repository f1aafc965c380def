//! The content of one bucket in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use bytes::Bytes;

use crate::version::versions_after;
use crate::{
    BucketDocumentKind, Checksum, CompletedPart, Conditions, DeleteMarker, DeleteResult, Error, ErrorKind,
    GetOptions, Key, LockConfiguration, ObjectInfo, ObjectLock, ObjectPart, PartInfo, PutOptions, PutResult,
    RenameOptions, Result, UploadId, VersionId, VersionListing, VersionPageBuilder, VersionSummary,
    VersioningState, VersionsQuery, WalkInstruction, no_object_lock,
};

pub(super) struct BucketState {
    pub(super) created: SystemTime,
    pub(super) versioning: VersioningState,
    /// The latest version of each key, unless that version is a delete marker.
    pub(super) objects: BTreeMap<String, StoredObject>,
    /// Overwritten and deleted versions, from the oldest to the newest. If a key is missing from `objects`, its last
    /// version in this map is a delete marker.
    older: BTreeMap<String, Vec<StoredVersion>>,
    pub(super) uploads: BTreeMap<UploadId, MemoryUpload>,
    pub(super) documents: BTreeMap<BucketDocumentKind, Vec<u8>>,
    pub(super) object_lock: Option<LockConfiguration>,
}

#[derive(Clone)]
pub(super) struct StoredObject {
    pub(super) info: ObjectInfo,
    pub(super) body: Bytes,
    pub(super) tags: crate::Tags,
    pub(super) parts: Vec<ObjectPart>,
    /// The upload whose completion created the object.
    pub(super) made_by: Option<UploadId>,
}

pub(super) struct MemoryUpload {
    pub(super) key: Key,
    pub(super) started: SystemTime,
    pub(super) options: PutOptions,
    pub(super) parts: BTreeMap<u16, (PartInfo, Bytes)>,
}

enum StoredVersion {
    Object(StoredObject),
    Marker(VersionId, SystemTime),
}

impl StoredVersion {
    fn id(&self) -> VersionId {
        match self {
            StoredVersion::Object(object) => object.id(),
            StoredVersion::Marker(id, _) => id.clone(),
        }
    }

    fn summary(&self, key: &str, is_latest: bool) -> VersionSummary {
        match self {
            StoredVersion::Object(object) => object.summary(key, is_latest),
            StoredVersion::Marker(version, modified) => VersionSummary {
                key: key.to_owned(),
                version: version.clone(),
                is_latest,
                modified: *modified,
                content: None,
                checksum: None,
            },
        }
    }
}

impl StoredObject {
    fn id(&self) -> VersionId {
        self.info.version.clone().unwrap_or_else(VersionId::null)
    }

    fn summary(&self, key: &str, is_latest: bool) -> VersionSummary {
        VersionSummary {
            key: key.to_owned(),
            version: self.id(),
            is_latest,
            modified: self.info.modified,
            content: Some((self.info.size, self.info.etag.clone())),
            checksum: self.info.checksum.as_ref().map(Checksum::plan),
        }
    }
}

impl BucketState {
    pub(super) fn new() -> Self {
        BucketState {
            created: SystemTime::now(),
            versioning: VersioningState::default(),
            objects: BTreeMap::new(),
            older: BTreeMap::new(),
            uploads: BTreeMap::new(),
            documents: BTreeMap::new(),
            object_lock: None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.older.is_empty()
    }

    /// Returns the requested version, or the latest one.
    pub(super) fn object(&self, key: &Key, version: Option<&VersionId>) -> Result<&StoredObject> {
        let latest = self.objects.get(key.as_str());
        let Some(wanted) = version else { return latest.ok_or_else(|| self.missing(key)) };
        wanted.check_generated()?;
        if let Some(found) = latest.filter(|latest| latest.id() == *wanted) {
            return Ok(found);
        }
        let older = self.older.get(key.as_str()).into_iter().flatten();
        match older.rev().find(|version| version.id() == *wanted) {
            Some(StoredVersion::Object(found)) => Ok(found),
            Some(StoredVersion::Marker(version, created)) => {
                let why = "the version is a delete marker";
                let marker = DeleteMarker { version: version.clone(), created: *created };
                Err(Error::new(ErrorKind::MethodNotAllowed, why).at_marker(marker))
            }
            None => Err(Error::new(ErrorKind::NoSuchVersion, wanted.as_str())),
        }
    }

    fn missing(&self, key: &Key) -> Error {
        let error = Error::from(ErrorKind::NoSuchKey);
        match self.older.get(key.as_str()).and_then(|older| older.last()) {
            Some(StoredVersion::Marker(version, created)) => {
                error.at_marker(DeleteMarker { version: version.clone(), created: *created })
            }
            _ => error,
        }
    }

    /// Returns the requested version, or the latest one, after checking the conditions in `options`.
    pub(super) fn checked(&self, key: &Key, options: &GetOptions) -> Result<&StoredObject> {
        let found = self.object(key, options.version.as_ref())?;
        options.conditions.check_read(&found.info)?;
        Ok(found)
    }

    pub(super) fn set_tags(
        &mut self,
        key: &Key,
        version: Option<&VersionId>,
        tags: &crate::Tags,
    ) -> Result<()> {
        let object = self.object_mut(key, version)?;
        object.tags = tags.clone();
        object.info.tag_count = tags.len();
        Ok(())
    }

    /// Returns a mutable reference to the requested version, or to the latest one.
    fn object_mut(&mut self, key: &Key, version: Option<&VersionId>) -> Result<&mut StoredObject> {
        let (id, missing) = (self.object(key, version)?.id(), self.missing(key));
        let latest = self.objects.get_mut(key.as_str()).into_iter();
        let older =
            self.older.get_mut(key.as_str()).into_iter().flatten().filter_map(|version| match version {
                StoredVersion::Object(object) => Some(object),
                StoredVersion::Marker(..) => None,
            });
        latest.chain(older).find(|object| object.id() == id).ok_or(missing)
    }

    /// Changes the lock of a version. Errors: `InvalidArgument` in a bucket without object lock, and from `change`.
    pub(super) fn change_lock(
        &mut self,
        key: &Key,
        version: Option<&VersionId>,
        change: impl FnOnce(ObjectLock) -> Result<ObjectLock>,
    ) -> Result<()> {
        self.object_lock.ok_or_else(no_object_lock)?;
        let object = self.object_mut(key, version)?;
        object.info.lock = change(object.info.lock)?;
        Ok(())
    }

    /// Checks that a new version may have the requested lock. Errors: `InvalidArgument` for a lock in a bucket without
    /// object lock, and for a retention that has ended.
    pub(super) fn check_lock(&self, asked: ObjectLock) -> Result<()> {
        asked.check_new(SystemTime::now())?;
        self.lock_of(asked).map(drop)
    }

    /// Returns the lock of a new version whose writer requests `asked`. Errors: `InvalidArgument` for a lock in a
    /// bucket without object lock.
    fn lock_of(&self, asked: ObjectLock) -> Result<ObjectLock> {
        match self.object_lock {
            Some(configuration) => Ok(configuration.lock_of(asked, SystemTime::now())),
            None if asked.is_none() => Ok(asked),
            None => Err(no_object_lock()),
        }
    }

    /// Changes the key of the object `from` to `to`.
    pub(super) fn rename(&mut self, from: &Key, to: &Key, options: &RenameOptions) -> Result<()> {
        options.check(from, to)?;
        if self.versioning != VersioningState::Unversioned {
            return Err(RenameOptions::keeps_versions());
        }
        options.source_conditions.check_copy_source(&self.object(from, None)?.info)?;
        options.conditions.check_replace(self.objects.get(to.as_str()).map(|object| &object.info))?;
        if let Some(object) = self.objects.remove(from.as_str()) {
            self.objects.insert(to.as_str().to_owned(), object);
        }
        Ok(())
    }

    /// Makes `new` the latest version; its version ID is `fresh` if versioning is enabled.
    pub(super) fn publish(
        &mut self,
        key: &Key,
        mut new: StoredObject,
        fresh: VersionId,
        conditions: &Conditions,
    ) -> Result<PutResult> {
        conditions.check_write(self.objects.get(key.as_str()).map(|object| &object.info.etag))?;
        new.info.lock = self.lock_of(new.info.lock)?;
        let version = self.retire(key, fresh);
        new.info.version = version.clone().filter(|version| !version.is_null());
        let info = &new.info;
        let (etag, modified, checksum) = (info.etag.clone(), info.modified, info.checksum.clone());
        self.objects.insert(key.as_str().to_owned(), new);
        Ok(PutResult { etag, modified, checksum, version })
    }

    /// Prepares for a new latest version of `key`, and keeps the current version if the versioning state requires this.
    /// Returns the ID of the new version; `None` in a bucket without versions.
    fn retire(&mut self, key: &Key, fresh: VersionId) -> Option<VersionId> {
        let latest = self.objects.remove(key.as_str());
        let version = match self.versioning {
            VersioningState::Unversioned => return None,
            VersioningState::Enabled => fresh,
            VersioningState::Suspended => VersionId::null(),
        };
        let older = self.older.entry(key.as_str().to_owned()).or_default();
        older.extend(latest.map(StoredVersion::Object));
        older.retain(|old| old.id() != version);
        if older.is_empty() {
            self.older.remove(key.as_str());
        }
        Some(version)
    }

    /// Removes the object; in a bucket with versions, hides it behind a delete marker.
    pub(super) fn delete(&mut self, key: &Key, marker: VersionId) -> DeleteResult {
        let version = self.retire(key, marker);
        if let Some(version) = &version {
            let marker = StoredVersion::Marker(version.clone(), SystemTime::now());
            self.older.entry(key.as_str().to_owned()).or_default().push(marker);
        }
        DeleteResult { is_marker: version.is_some(), version }
    }

    /// Removes one version; the newest remaining version becomes the latest. Errors: `AccessDenied` if the version is
    /// locked.
    pub(super) fn delete_version(
        &mut self,
        key: &Key,
        version: &VersionId,
        bypass: bool,
    ) -> Result<DeleteResult> {
        if let Ok(object) = self.object(key, Some(version)) {
            object.info.lock.check_delete(SystemTime::now(), bypass)?;
        }
        let mut all = self.older.remove(key.as_str()).unwrap_or_default();
        all.extend(self.objects.remove(key.as_str()).map(StoredVersion::Object));
        let is_marker =
            all.iter().any(|found| matches!(found, StoredVersion::Marker(id, _) if id == version));
        all.retain(|found| found.id() != *version);
        match all.pop() {
            Some(StoredVersion::Object(latest)) => drop(self.objects.insert(key.as_str().to_owned(), latest)),
            marker => all.extend(marker),
        }
        if !all.is_empty() {
            self.older.insert(key.as_str().to_owned(), all);
        }
        Ok(DeleteResult { version: Some(version.clone()), is_marker })
    }

    pub(super) fn list_versions(&self, query: &VersionsQuery) -> Result<VersionListing> {
        let mut page = VersionPageBuilder::new(query);
        let keys: BTreeSet<&String> = self.objects.keys().chain(self.older.keys()).collect();
        for key in keys {
            let versions = |after: Option<&VersionId>| Ok(versions_after(self.versions_of(key), after));
            if page.offer(key, versions, |version| Ok(Some(version)))? == WalkInstruction::Full {
                break;
            }
        }
        Ok(page.finish())
    }

    /// Returns all versions of `key`, from the newest to the oldest.
    fn versions_of(&self, key: &str) -> Vec<(VersionId, VersionSummary)> {
        let latest = self.objects.get(key).map(|object| object.summary(key, true));
        let hidden = latest.is_none();
        let older = self.older.get(key).into_iter().flatten().rev().enumerate();
        let older = older.map(|(at, version)| version.summary(key, hidden && at == 0));
        latest.into_iter().chain(older).map(|summary| (summary.version.clone(), summary)).collect()
    }

    /// Returns the result of completing `upload` from `parts`, if the object that this completion created is the
    /// current or an old version of `key`.
    pub(super) fn made_before(
        &self,
        key: &Key,
        upload: &UploadId,
        parts: &[CompletedPart],
    ) -> Option<PutResult> {
        let is_same = |found: &&StoredObject| {
            found.made_by.as_ref() == Some(upload) && CompletedPart::could_make(parts, &found.info.etag)
        };
        let older = self.older.get(key.as_str()).into_iter().flatten();
        let older = older.filter_map(|version| match version {
            StoredVersion::Object(object) => Some(object),
            StoredVersion::Marker(..) => None,
        });
        let found = self.objects.get(key.as_str()).into_iter().chain(older).find(is_same)?;
        let info = found.info.clone();
        let (etag, checksum, version) = (info.etag, info.checksum, info.version);
        Some(PutResult { etag, modified: info.modified, checksum, version })
    }

    pub(super) fn upload(&mut self, key: &Key, upload: &UploadId) -> Result<&mut MemoryUpload> {
        self.uploads
            .get_mut(upload)
            .filter(|found| found.key == *key)
            .ok_or_else(|| Error::new(ErrorKind::NoSuchUpload, upload.as_str()))
    }
}
