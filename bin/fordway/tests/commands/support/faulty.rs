//! A store in which operations on chosen keys fail.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use fordway_command::InterruptFlag;
use fordway_store::{
    Bucket, BucketDocumentKind, BucketDocumentOperations, BucketInfo, CompleteOptions, CompletedPart,
    Conditions, CopyOptions, DeleteOptions, DeleteResult, Error, ErrorKind, GetOptions, Key, ListQuery,
    LockConfiguration, MemoryStore, MultipartUploadOperations, ObjectBatchOperations, ObjectInfo,
    ObjectListing, ObjectLockOperations, ObjectPart, ObjectRenameOperations, ObjectTagOperations,
    ObjectVersionOperations, Objects, OpenObject, PartListing, PartOptions, PartsQuery, PutOptions,
    PutResult, RenameOptions, Result, Retention, Store, Tags, UploadId, UploadListing, UploadsQuery,
    VersionId, VersionListing, VersioningState, VersionsQuery, Writer,
};

use super::corrupted;

/// A fault to inject.
pub(crate) enum Fault {
    /// Reading, writing, copying, renaming, removing or tagging a key that contains this string fails with this kind of
    /// error. Reading a bucket document of a kind that contains this string fails too.
    Fails(&'static str, ErrorKind),
    /// Reading a key that contains this string returns bytes that differ from the stored bytes.
    Corrupts(&'static str),
    /// Reading a key that contains this string acts as if the user had pressed Ctrl-C.
    Interrupts(&'static str, InterruptFlag),
    /// While a key that contains this string is written, read or copied, the store calls this function, which acts as
    /// another program.
    Meanwhile(&'static str, Box<dyn Fn() + Send + Sync>),
    /// Removing a batch of objects takes a while, and then acts as if the user had pressed Ctrl-C. The function is
    /// called for each batch.
    InterruptsRemovals(InterruptFlag, Box<dyn Fn() + Send + Sync>),
    /// The store acts as a service that ignores conditions on the destination.
    IgnoresConditions,
    /// Looking up a missing object fails with `AccessDenied`, as for a user without permission to list the bucket.
    HidesMissing,
    /// Removing versions of a key fails while another thread removes versions of the same key. Contains the keys whose
    /// versions are being removed.
    RefusesParallelRemovals(Mutex<HashSet<Key>>),
    /// Storing a part with this number fails.
    FailsPart(u16),
    /// Responses for ranges that start at or after this offset contain an object size that is one byte too large.
    Grows(u64),
}

pub(crate) struct FaultyStore {
    pub(crate) inner: MemoryStore,
    pub(crate) fault: Fault,
}

impl FaultyStore {
    /// Calls the function of [`Fault::Meanwhile`], if the fault applies to this key.
    fn meanwhile(&self, key: &Key) {
        if let Fault::Meanwhile(text, act) = &self.fault
            && key.as_str().contains(text)
        {
            act();
        }
    }

    /// Returns the conditions on the destination that the store obeys.
    fn obeyed(&self, conditions: &Conditions) -> Conditions {
        match self.fault {
            Fault::IgnoresConditions => Conditions::default(),
            _ => conditions.clone(),
        }
    }

    fn check(&self, operation: &'static str, bucket: &Bucket, key: &Key) -> Result<()> {
        match self.fault {
            Fault::Fails(text, kind) if key.as_str().contains(text) => {
                Err(Error::from(kind).during(operation, "memory", bucket.as_str(), key.as_str()))
            }
            _ => Ok(()),
        }
    }
}

impl Objects for FaultyStore {
    fn lane(&self) -> &'static str {
        match self.fault {
            Fault::IgnoresConditions => "http",
            _ => self.inner.lane(),
        }
    }

    fn list_buckets(&self) -> Result<Vec<BucketInfo>> {
        self.inner.list_buckets()
    }

    fn create_bucket(&self, bucket: &Bucket) -> Result<()> {
        self.inner.create_bucket(bucket)
    }

    fn head_bucket(&self, bucket: &Bucket) -> Result<BucketInfo> {
        self.inner.head_bucket(bucket)
    }

    fn delete_bucket(&self, bucket: &Bucket) -> Result<()> {
        self.inner.delete_bucket(bucket)
    }

    fn writer(&self, bucket: &Bucket, key: &Key, options: &PutOptions) -> Result<Box<dyn Writer>> {
        self.check("put", bucket, key)?;
        self.meanwhile(key);
        let conditions = self.obeyed(&options.conditions);
        self.inner.writer(bucket, key, &PutOptions { conditions, ..options.clone() })
    }

    fn get(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<OpenObject> {
        self.check("get", bucket, key)?;
        let mut object = self.inner.get(bucket, key, options)?;
        self.meanwhile(key);
        if let Fault::Grows(offset) = self.fault
            && object.range.start >= offset
        {
            object.info.size += 1;
        }
        match &self.fault {
            Fault::Corrupts(text) if key.as_str().contains(text) => corrupted(object),
            Fault::Interrupts(text, interrupt) if key.as_str().contains(text) => {
                interrupt.raise();
                Ok(object)
            }
            _ => Ok(object),
        }
    }

    fn head(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<ObjectInfo> {
        self.check("head", bucket, key)?;
        match self.inner.head(bucket, key, options) {
            Err(error)
                if error.kind() == ErrorKind::NoSuchKey && matches!(self.fault, Fault::HidesMissing) =>
            {
                Err(ErrorKind::AccessDenied.into())
            }
            found => found,
        }
    }

    fn delete(&self, bucket: &Bucket, key: &Key, options: &DeleteOptions) -> Result<DeleteResult> {
        self.check("delete", bucket, key)?;
        self.inner.delete(bucket, key, options)
    }

    fn copy(
        &self,
        from: (&Bucket, &Key),
        bucket: &Bucket,
        key: &Key,
        options: &CopyOptions,
    ) -> Result<PutResult> {
        self.check("copy", from.0, from.1)?;
        self.meanwhile(from.1);
        let conditions = self.obeyed(&options.conditions);
        self.inner.copy(from, bucket, key, &CopyOptions { conditions, ..options.clone() })
    }

    fn list(&self, bucket: &Bucket, query: &ListQuery) -> Result<ObjectListing> {
        self.inner.list(bucket, query)
    }
}

impl ObjectBatchOperations for FaultyStore {
    fn delete_many(&self, bucket: &Bucket, keys: &[Key]) -> Vec<Result<DeleteResult>> {
        self.before_batch();
        keys.iter().map(|key| self.delete(bucket, key, &DeleteOptions::default())).collect()
    }

    fn delete_versions(&self, bucket: &Bucket, versions: &[(Key, VersionId)]) -> Vec<Result<DeleteResult>> {
        self.before_batch();
        let Fault::RefusesParallelRemovals(busy) = &self.fault else {
            return self.inner.delete_versions(bucket, versions);
        };
        let keys: HashSet<_> = versions.iter().map(|(key, _)| key.clone()).collect();
        let keys: Vec<_> = keys.into_iter().filter(|key| busy.lock().unwrap().insert(key.clone())).collect();
        let remove = |(key, version): &(Key, VersionId)| match keys.contains(key) {
            true => {
                let options = DeleteOptions { version: Some(version.clone()), ..Default::default() };
                self.inner.delete(bucket, key, &options)
            }
            false => Err(ErrorKind::LockTimeout.into()),
        };
        let removed = versions.iter().map(remove).collect();
        // Meanwhile, the command lists more versions.
        std::thread::sleep(Duration::from_millis(100));
        busy.lock().unwrap().retain(|key| !keys.contains(key));
        removed
    }
}

impl FaultyStore {
    fn before_batch(&self) {
        if let Fault::InterruptsRemovals(interrupt, count) = &self.fault {
            count();
            // Meanwhile, the command lists more objects.
            std::thread::sleep(Duration::from_millis(300));
            interrupt.raise();
        }
    }
}

impl ObjectRenameOperations for FaultyStore {
    fn rename(&self, bucket: &Bucket, from: &Key, to: &Key, options: &RenameOptions) -> Result<()> {
        self.check("rename", bucket, from)?;
        self.inner.rename(bucket, from, to, options)
    }
}

impl ObjectTagOperations for FaultyStore {
    fn tags(&self, bucket: &Bucket, key: &Key, version: Option<&VersionId>) -> Result<Tags> {
        self.check("get tags", bucket, key)?;
        self.inner.tags(bucket, key, version)
    }

    fn set_tags(&self, bucket: &Bucket, key: &Key, version: Option<&VersionId>, tags: &Tags) -> Result<()> {
        self.check("set tags", bucket, key)?;
        self.inner.set_tags(bucket, key, version, tags)
    }
}

impl ObjectVersionOperations for FaultyStore {
    fn versioning(&self, bucket: &Bucket) -> Result<VersioningState> {
        self.inner.versioning(bucket)
    }

    fn set_versioning(&self, bucket: &Bucket, versioning: VersioningState) -> Result<()> {
        self.inner.set_versioning(bucket, versioning)
    }

    fn list_versions(&self, bucket: &Bucket, query: &VersionsQuery) -> Result<VersionListing> {
        self.inner.list_versions(bucket, query)
    }
}

impl ObjectLockOperations for FaultyStore {
    fn lock_configuration(&self, bucket: &Bucket) -> Result<Option<LockConfiguration>> {
        self.inner.lock_configuration(bucket)
    }

    fn set_lock_configuration(&self, bucket: &Bucket, configuration: &LockConfiguration) -> Result<()> {
        self.inner.set_lock_configuration(bucket, configuration)
    }

    fn set_retention(
        &self,
        bucket: &Bucket,
        key: &Key,
        version: Option<&VersionId>,
        retention: Option<Retention>,
        bypass: bool,
    ) -> Result<()> {
        self.inner.set_retention(bucket, key, version, retention, bypass)
    }

    fn set_legal_hold(
        &self,
        bucket: &Bucket,
        key: &Key,
        version: Option<&VersionId>,
        is_on: bool,
    ) -> Result<()> {
        self.inner.set_legal_hold(bucket, key, version, is_on)
    }
}

impl BucketDocumentOperations for FaultyStore {
    fn document(&self, bucket: &Bucket, kind: &BucketDocumentKind) -> Result<Option<Vec<u8>>> {
        self.check("get document", bucket, &Key::new(kind.as_str())?)?;
        self.inner.document(bucket, kind)
    }

    fn set_document(&self, bucket: &Bucket, kind: &BucketDocumentKind, document: &[u8]) -> Result<()> {
        self.inner.set_document(bucket, kind, document)
    }

    fn delete_document(&self, bucket: &Bucket, kind: &BucketDocumentKind) -> Result<()> {
        self.inner.delete_document(bucket, kind)
    }

    fn bucket_owner(&self, bucket: &Bucket) -> Result<Option<u32>> {
        self.inner.bucket_owner(bucket)
    }
}

impl MultipartUploadOperations for FaultyStore {
    fn object_parts(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<Vec<ObjectPart>> {
        self.inner.object_parts(bucket, key, options)
    }

    fn create_upload(&self, bucket: &Bucket, key: &Key, options: &PutOptions) -> Result<UploadId> {
        self.inner.create_upload(bucket, key, options)
    }

    fn part_writer(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        number: u16,
        options: &PartOptions,
    ) -> Result<Box<dyn Writer>> {
        match self.fault {
            Fault::FailsPart(bad) if bad == number => Err(ErrorKind::Unavailable.into()),
            _ => self.inner.part_writer(bucket, key, upload, number, options),
        }
    }

    fn list_parts(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        query: &PartsQuery,
    ) -> Result<PartListing> {
        self.inner.list_parts(bucket, key, upload, query)
    }

    fn list_uploads(&self, bucket: &Bucket, query: &UploadsQuery) -> Result<UploadListing> {
        self.inner.list_uploads(bucket, query)
    }

    fn complete_upload(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        parts: &[CompletedPart],
        options: &CompleteOptions,
    ) -> Result<PutResult> {
        self.inner.complete_upload(bucket, key, upload, parts, options)
    }

    fn abort_upload(&self, bucket: &Bucket, key: &Key, upload: &UploadId) -> Result<()> {
        self.inner.abort_upload(bucket, key, upload)
    }
}

impl Store for FaultyStore {}
