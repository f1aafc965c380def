//! Several stores on one directory, which are used in round-robin order as if they were one store. Each store therefore
//! reads data that other stores wrote, as on the nodes of a cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fordway_store::{
    Bucket, BucketDocumentKind, BucketDocumentOperations, BucketInfo, ByteRange, CompleteOptions,
    CompletedPart, CopyOptions, DeleteOptions, DeleteResult, GetOptions, Key, ListQuery, LockConfiguration,
    MultipartUploadOperations, ObjectBatchOperations, ObjectInfo, ObjectListing, ObjectLockOperations,
    ObjectPart, ObjectRenameOperations, ObjectTagOperations, ObjectVersionOperations, Objects, OpenObject,
    PartListing, PartOptions, PartsQuery, PutOptions, PutResult, RenameOptions, Result, Retention, Store,
    Tags, UploadId, UploadListing, UploadsQuery, VersionId, VersionListing, VersioningState, VersionsQuery,
    Writer,
};

/// A store that passes its calls to several stores in round-robin order.
pub struct RoundRobinStore {
    stores: Vec<Arc<dyn Store>>,
    /// The number of calls so far.
    calls: AtomicUsize,
}

impl RoundRobinStore {
    /// Creates a store that passes its first call to the first of `stores`. `stores` must not be empty.
    pub fn new(stores: Vec<Arc<dyn Store>>) -> Self {
        assert!(!stores.is_empty());
        RoundRobinStore { stores, calls: AtomicUsize::new(0) }
    }

    fn next(&self) -> &dyn Store {
        &*self.stores[self.calls.fetch_add(1, Ordering::Relaxed) % self.stores.len()]
    }
}

/// Implements methods that call the same method of the next store.
macro_rules! in_turn {
    ($of:ident: $(fn $call:ident($($name:ident: $kind:ty),* $(,)?) -> $result:ty;)*) => {
        impl $of for RoundRobinStore {
            $(fn $call(&self, $($name: $kind),*) -> $result {
                self.next().$call($($name),*)
            })*
        }
    };
}

in_turn! { Objects:
    fn lane() -> &'static str;
    fn list_buckets() -> Result<Vec<BucketInfo>>;
    fn find_buckets(wanted: &dyn Fn(&Bucket) -> bool, most: usize) -> Result<Vec<BucketInfo>>;
    fn create_bucket(bucket: &Bucket) -> Result<()>;
    fn head_bucket(bucket: &Bucket) -> Result<BucketInfo>;
    fn delete_bucket(bucket: &Bucket) -> Result<()>;
    fn writer(bucket: &Bucket, key: &Key, options: &PutOptions) -> Result<Box<dyn Writer>>;
    fn put(bucket: &Bucket, key: &Key, body: &[u8], options: &PutOptions) -> Result<PutResult>;
    fn get(bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<OpenObject>;
    fn read(bucket: &Bucket, key: &Key, options: &GetOptions, buffer: &mut Vec<u8>) -> Result<u64>;
    fn read_ranges(bucket: &Bucket, key: &Key, ranges: &[ByteRange], options: &GetOptions) -> Result<Vec<Vec<u8>>>;
    fn head(bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<ObjectInfo>;
    fn delete(bucket: &Bucket, key: &Key, options: &DeleteOptions) -> Result<DeleteResult>;
    fn copy(from: (&Bucket, &Key), bucket: &Bucket, key: &Key, options: &CopyOptions) -> Result<PutResult>;
    fn list(bucket: &Bucket, query: &ListQuery) -> Result<ObjectListing>;
}

in_turn! { ObjectBatchOperations:
    fn delete_many(bucket: &Bucket, keys: &[Key]) -> Vec<Result<DeleteResult>>;
    fn delete_versions(bucket: &Bucket, versions: &[(Key, VersionId)]) -> Vec<Result<DeleteResult>>;
    fn get_many(bucket: &Bucket, keys: &[Key]) -> Vec<Result<Vec<u8>>>;
    fn head_many(bucket: &Bucket, keys: &[Key]) -> Vec<Result<ObjectInfo>>;
    fn put_many(bucket: &Bucket, objects: &[(Key, &[u8])], options: &PutOptions) -> Vec<Result<PutResult>>;
}

in_turn! { ObjectRenameOperations:
    fn rename(bucket: &Bucket, from: &Key, to: &Key, options: &RenameOptions) -> Result<()>;
}

in_turn! { ObjectTagOperations:
    fn tags(bucket: &Bucket, key: &Key, version: Option<&VersionId>) -> Result<Tags>;
    fn set_tags(bucket: &Bucket, key: &Key, version: Option<&VersionId>, tags: &Tags) -> Result<()>;
}

in_turn! { ObjectVersionOperations:
    fn versioning(bucket: &Bucket) -> Result<VersioningState>;
    fn set_versioning(bucket: &Bucket, versioning: VersioningState) -> Result<()>;
    fn list_versions(bucket: &Bucket, query: &VersionsQuery) -> Result<VersionListing>;
}

in_turn! { ObjectLockOperations:
    fn lock_configuration(bucket: &Bucket) -> Result<Option<LockConfiguration>>;
    fn set_lock_configuration(bucket: &Bucket, configuration: &LockConfiguration) -> Result<()>;
    fn set_retention(
        bucket: &Bucket, key: &Key, version: Option<&VersionId>, retention: Option<Retention>, bypass: bool,
    ) -> Result<()>;
    fn set_legal_hold(bucket: &Bucket, key: &Key, version: Option<&VersionId>, is_on: bool) -> Result<()>;
}

in_turn! { MultipartUploadOperations:
    fn object_parts(bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<Vec<ObjectPart>>;
    fn create_upload(bucket: &Bucket, key: &Key, options: &PutOptions) -> Result<UploadId>;
    fn part_writer(
        bucket: &Bucket, key: &Key, upload: &UploadId, number: u16, options: &PartOptions,
    ) -> Result<Box<dyn Writer>>;
    fn copy_part(
        from: (&Bucket, &Key), options: &GetOptions, to: (&Bucket, &Key, &UploadId, u16),
    ) -> Result<PutResult>;
    fn list_parts(bucket: &Bucket, key: &Key, upload: &UploadId, query: &PartsQuery) -> Result<PartListing>;
    fn list_uploads(bucket: &Bucket, query: &UploadsQuery) -> Result<UploadListing>;
    fn complete_upload(
        bucket: &Bucket, key: &Key, upload: &UploadId, parts: &[CompletedPart], options: &CompleteOptions,
    ) -> Result<PutResult>;
    fn abort_upload(bucket: &Bucket, key: &Key, upload: &UploadId) -> Result<()>;
}

in_turn! { BucketDocumentOperations:
    fn document(bucket: &Bucket, kind: &BucketDocumentKind) -> Result<Option<Vec<u8>>>;
    fn set_document(bucket: &Bucket, kind: &BucketDocumentKind, document: &[u8]) -> Result<()>;
    fn delete_document(bucket: &Bucket, kind: &BucketDocumentKind) -> Result<()>;
    fn bucket_owner(bucket: &Bucket) -> Result<Option<u32>>;
}

impl Store for RoundRobinStore {}
