//! A store in which copies, listings and the completion of uploads take a long time.

use std::time::Duration;

use fordway_store::{
    Bucket, BucketDocumentKind, BucketDocumentOperations, BucketInfo, CompleteOptions, CompletedPart,
    CopyOptions, DeleteOptions, DeleteResult, GetOptions, Key, ListQuery, LockConfiguration, MemoryStore,
    MultipartUploadOperations, ObjectBatchOperations, ObjectInfo, ObjectListing, ObjectLockOperations,
    ObjectPart, ObjectRenameOperations, ObjectTagOperations, ObjectVersionOperations, Objects, OpenObject,
    PartListing, PartOptions, PartsQuery, PutOptions, PutResult, RenameOptions, Result, Retention, Store,
    Tags, UploadId, UploadListing, UploadsQuery, VersionId, VersionListing, VersioningState, VersionsQuery,
    Writer,
};

pub struct SlowStore {
    pub inner: MemoryStore,
    pub delay: Duration,
    /// Called after every `head`, to imitate another writer that changes the store at that moment.
    pub after_head: fn(&MemoryStore),
}

impl Objects for SlowStore {
    fn lane(&self) -> &'static str {
        self.inner.lane()
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
        self.inner.writer(bucket, key, options)
    }

    fn get(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<OpenObject> {
        self.inner.get(bucket, key, options)
    }

    fn head(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<ObjectInfo> {
        let info = self.inner.head(bucket, key, options);
        (self.after_head)(&self.inner);
        info
    }

    fn delete(&self, bucket: &Bucket, key: &Key, options: &DeleteOptions) -> Result<DeleteResult> {
        self.inner.delete(bucket, key, options)
    }

    fn copy(
        &self,
        from: (&Bucket, &Key),
        bucket: &Bucket,
        key: &Key,
        options: &CopyOptions,
    ) -> Result<PutResult> {
        std::thread::sleep(self.delay);
        self.inner.copy(from, bucket, key, options)
    }

    fn list(&self, bucket: &Bucket, query: &ListQuery) -> Result<ObjectListing> {
        std::thread::sleep(self.delay);
        self.inner.list(bucket, query)
    }
}

impl ObjectBatchOperations for SlowStore {}

impl ObjectRenameOperations for SlowStore {
    fn rename(&self, bucket: &Bucket, from: &Key, to: &Key, options: &RenameOptions) -> Result<()> {
        self.inner.rename(bucket, from, to, options)
    }
}

impl ObjectTagOperations for SlowStore {
    fn tags(&self, bucket: &Bucket, key: &Key, version: Option<&VersionId>) -> Result<Tags> {
        self.inner.tags(bucket, key, version)
    }

    fn set_tags(&self, bucket: &Bucket, key: &Key, version: Option<&VersionId>, tags: &Tags) -> Result<()> {
        self.inner.set_tags(bucket, key, version, tags)
    }
}

impl ObjectVersionOperations for SlowStore {
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

impl ObjectLockOperations for SlowStore {
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

impl BucketDocumentOperations for SlowStore {
    fn document(&self, bucket: &Bucket, kind: &BucketDocumentKind) -> Result<Option<Vec<u8>>> {
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

impl MultipartUploadOperations for SlowStore {
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
        self.inner.part_writer(bucket, key, upload, number, options)
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
        std::thread::sleep(self.delay);
        self.inner.complete_upload(bucket, key, upload, parts, options)
    }

    fn abort_upload(&self, bucket: &Bucket, key: &Key, upload: &UploadId) -> Result<()> {
        self.inner.abort_upload(bucket, key, upload)
    }
}

impl Store for SlowStore {}
