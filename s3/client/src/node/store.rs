//! [`NodeStore`]: implements the methods of [`Store`] as messages to a gateway.

use std::borrow::Cow;
use std::sync::Arc;

use fordway_store::{
    Bucket, BucketDocumentKind, BucketDocumentOperations, BucketInfo, ByteRange, CompleteOptions,
    CompletedPart, Conditions, CopyOptions, DeleteOptions, DeleteResult, GetOptions, Key, ListQuery,
    LockConfiguration, MultipartUploadOperations, ObjectBatchOperations, ObjectInfo, ObjectListing,
    ObjectLockOperations, ObjectPart, ObjectRenameOperations, ObjectTagOperations, ObjectVersionOperations,
    Objects, OpenObject, PartListing, PartOptions, PartsQuery, PutOptions, PutResult, RenameOptions, Result,
    Retention, Store, Tags, UploadId, UploadListing, UploadsQuery, VersionId, VersionListing,
    VersioningState, VersionsQuery, Writer, check_tags, checked_part_number,
};
use fordway_wire::node::{FIELDS_BYTES_MAX, RANGES_BYTES_MAX, Request, longest_bytes};

use crate::node::connection::NodeAddress;
use crate::node::session::{NodeCallTarget, NodeSession};
use crate::node::write::{NodeWriter, WriteKind, WriteTarget};
use crate::node::{LANE, batch, read, write};

/// The maximum number of ranges in one message. A range takes up to 17 bytes, and the other fields have ample room.
const RANGES_MAX: usize = (FIELDS_BYTES_MAX - (64 << 10)) / 17;

/// A store that a node gateway serves. Clones share connections; each thread uses one connection at a time.
#[derive(Clone)]
pub struct NodeStore {
    session: Arc<NodeSession>,
}

impl NodeStore {
    /// Creates a store at `address`. Does not connect yet.
    pub fn new(address: NodeAddress) -> Self {
        NodeStore { session: Arc::new(NodeSession::new(address)) }
    }

    /// Returns the gateway's counters by name. The name of a counter ends with its unit (`_bytes`, `_s`). Counters
    /// whose names have no unit are plain numbers. Errors: `Unavailable`.
    pub fn stats(&self) -> Result<Vec<(String, u64)>> {
        self.session.ask(&on_service("get statistics"), &Request::Stats {})
    }
}

fn on_service(operation: &'static str) -> NodeCallTarget<'static> {
    NodeCallTarget { operation, bucket: "", key: "", is_idempotent: true }
}

fn on_bucket<'c>(operation: &'static str, bucket: &'c Bucket) -> NodeCallTarget<'c> {
    NodeCallTarget { operation, bucket: bucket.as_str(), key: "", is_idempotent: true }
}

fn on_object<'c>(operation: &'static str, bucket: &'c Bucket, key: &'c Key) -> NodeCallTarget<'c> {
    NodeCallTarget { operation, bucket: bucket.as_str(), key: key.as_str(), is_idempotent: true }
}

impl NodeCallTarget<'_> {
    /// Marks a call as not idempotent: a second attempt would see the effect of the first attempt.
    fn once(self) -> Self {
        NodeCallTarget { is_idempotent: false, ..self }
    }

    fn once_if(self, only_once: bool) -> Self {
        if only_once { self.once() } else { self }
    }
}

/// Borrows an operand.
fn of<T: ToOwned + ?Sized>(operand: &T) -> Cow<'_, T> {
    Cow::Borrowed(operand)
}

impl Objects for NodeStore {
    fn lane(&self) -> &'static str {
        LANE
    }

    fn list_buckets(&self) -> Result<Vec<BucketInfo>> {
        self.session.ask(&on_service("list buckets"), &Request::ListBuckets {})
    }

    fn create_bucket(&self, bucket: &Bucket) -> Result<()> {
        let call = on_bucket("create bucket", bucket).once();
        self.session.ask(&call, &Request::CreateBucket { bucket: of(bucket) })
    }

    fn head_bucket(&self, bucket: &Bucket) -> Result<BucketInfo> {
        self.session.ask(&on_bucket("head bucket", bucket), &Request::HeadBucket { bucket: of(bucket) })
    }

    fn delete_bucket(&self, bucket: &Bucket) -> Result<()> {
        let call = on_bucket("delete bucket", bucket).once();
        self.session.ask(&call, &Request::DeleteBucket { bucket: of(bucket) })
    }

    /// Buffers up to 128 KiB in memory. A missing bucket is reported only when the first message is sent.
    fn writer(&self, bucket: &Bucket, key: &Key, options: &PutOptions) -> Result<Box<dyn Writer>> {
        check_tags(&options.tags).map_err(|error| on_object("put", bucket, key).named(error))?;
        let what = WriteKind::Object(options.clone());
        let target = WriteTarget { bucket: bucket.clone(), key: key.clone(), what };
        Ok(Box::new(NodeWriter::new(&self.session, target)?))
    }

    /// Sends up to 128 KiB in one message. Writes larger content to a file that the gateway passes, or sends it in
    /// several messages if the gateway passes no file.
    fn put(&self, bucket: &Bucket, key: &Key, body: &[u8], options: &PutOptions) -> Result<PutResult> {
        write::put(&self.session, (bucket, key), body, options)
    }

    fn get(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<OpenObject> {
        let request = Request::Get { bucket: of(bucket), key: of(key), options: of(options) };
        read::get(&self.session, &on_object("get", bucket, key), &request)
    }

    fn read(&self, bucket: &Bucket, key: &Key, options: &GetOptions, buffer: &mut Vec<u8>) -> Result<u64> {
        read::read(&self.session, (bucket, key), options, buffer)
    }

    /// Reads up to about 119,000 ranges of up to 8 MiB in total in one message. Reads more ranges in several messages,
    /// after a HEAD. For larger ranges, opens the object once.
    fn read_ranges(
        &self,
        bucket: &Bucket,
        key: &Key,
        ranges: &[ByteRange],
        options: &GetOptions,
    ) -> Result<Vec<Vec<u8>>> {
        if longest_bytes(ranges) > RANGES_BYTES_MAX {
            return read::read_large_ranges(&self.session, (bucket, key), ranges, options);
        }
        if ranges.len() <= RANGES_MAX {
            return read::read_ranges(&self.session, (bucket, key), ranges, options);
        }
        // Each message reads the version that the HEAD has described.
        let info = self.head(bucket, key, options)?;
        let same = GetOptions { conditions: Conditions::only_if(info.etag), ..options.clone() };
        let mut all = Vec::with_capacity(ranges.len());
        for some in ranges.chunks(RANGES_MAX) {
            all.append(&mut read::read_ranges(&self.session, (bucket, key), some, &same)?);
        }
        Ok(all)
    }

    fn head(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<ObjectInfo> {
        let request = Request::Head { bucket: of(bucket), key: of(key), options: of(options) };
        self.session.ask(&on_object("head", bucket, key), &request)
    }

    fn delete(&self, bucket: &Bucket, key: &Key, options: &DeleteOptions) -> Result<DeleteResult> {
        let call = on_object("delete", bucket, key).once_if(!options.conditions.is_empty());
        let request = Request::Delete { bucket: of(bucket), key: of(key), options: of(options) };
        self.session.ask(&call, &request)
    }

    fn copy(
        &self,
        from: (&Bucket, &Key),
        bucket: &Bucket,
        key: &Key,
        options: &CopyOptions,
    ) -> Result<PutResult> {
        let call = on_object("copy", bucket, key).once_if(!options.conditions.is_empty());
        let (from_bucket, from_key) = (of(from.0), of(from.1));
        let (bucket, key, options) = (of(bucket), of(key), of(options));
        self.session.ask(&call, &Request::Copy { from_bucket, from_key, bucket, key, options })
    }

    /// Cost: one message per 4,096 entries.
    fn list(&self, bucket: &Bucket, query: &ListQuery) -> Result<ObjectListing> {
        let (mut page, mut found) = (query.clone(), ObjectListing::default());
        loop {
            let request = Request::List { bucket: of(bucket), query: of(&page) };
            let mut more: ObjectListing = self.session.ask(&on_bucket("list", bucket), &request)?;
            let is_empty = more.entries.is_empty();
            found.entries.append(&mut more.entries);
            found.next = more.next;
            if found.next.is_none() || found.entries.len() >= query.max_keys || is_empty {
                return Ok(found);
            }
            page.start_after = found.next.take();
            page.max_keys = query.max_keys - found.entries.len();
        }
    }
}

impl ObjectBatchOperations for NodeStore {
    fn delete_many(&self, bucket: &Bucket, keys: &[Key]) -> Vec<Result<DeleteResult>> {
        batch::delete_many(&self.session, bucket, keys)
    }

    fn get_many(&self, bucket: &Bucket, keys: &[Key]) -> Vec<Result<Vec<u8>>> {
        batch::get_many(&self.session, bucket, keys)
    }

    fn head_many(&self, bucket: &Bucket, keys: &[Key]) -> Vec<Result<ObjectInfo>> {
        batch::head_many(&self.session, bucket, keys)
    }

    fn put_many(
        &self,
        bucket: &Bucket,
        objects: &[(Key, &[u8])],
        options: &PutOptions,
    ) -> Vec<Result<PutResult>> {
        batch::put_many(&self.session, bucket, objects, options)
    }
}

impl ObjectRenameOperations for NodeStore {
    fn rename(&self, bucket: &Bucket, from: &Key, to: &Key, options: &RenameOptions) -> Result<()> {
        // The call must not be repeated, because a second attempt would not find the source.
        let call = on_object("rename", bucket, from).once();
        let (from, to, options) = (of(from), of(to), of(options));
        self.session.ask(&call, &Request::Rename { bucket: of(bucket), from, to, options })
    }
}

impl ObjectTagOperations for NodeStore {
    fn tags(&self, bucket: &Bucket, key: &Key, version: Option<&VersionId>) -> Result<Tags> {
        let request = Request::Tags { bucket: of(bucket), key: of(key), version: version.map(of) };
        self.session.ask(&on_object("get tags", bucket, key), &request)
    }

    fn set_tags(&self, bucket: &Bucket, key: &Key, version: Option<&VersionId>, tags: &Tags) -> Result<()> {
        let (version, tags) = (version.map(of), of(tags));
        let request = Request::SetTags { bucket: of(bucket), key: of(key), version, tags };
        self.session.ask(&on_object("set tags", bucket, key), &request)
    }
}

impl ObjectVersionOperations for NodeStore {
    fn versioning(&self, bucket: &Bucket) -> Result<VersioningState> {
        self.session.ask(&on_bucket("get versioning", bucket), &Request::Versioning { bucket: of(bucket) })
    }

    fn set_versioning(&self, bucket: &Bucket, versioning: VersioningState) -> Result<()> {
        let request = Request::SetVersioning { bucket: of(bucket), versioning };
        self.session.ask(&on_bucket("set versioning", bucket), &request)
    }

    /// Cost: one message per 4,096 entries.
    fn list_versions(&self, bucket: &Bucket, query: &VersionsQuery) -> Result<VersionListing> {
        let (mut page, mut found) = (query.clone(), VersionListing::default());
        loop {
            let request = Request::ListVersions { bucket: of(bucket), query: of(&page) };
            let mut more: VersionListing = self.session.ask(&on_bucket("list versions", bucket), &request)?;
            let is_empty = more.versions.is_empty() && more.prefixes.is_empty();
            found.versions.append(&mut more.versions);
            found.prefixes.append(&mut more.prefixes);
            let entries = found.versions.len() + found.prefixes.len();
            match more.next {
                Some((key, version)) if entries < query.max_keys && !is_empty => {
                    (page.key_after, page.version_after) = (Some(key), version);
                    page.max_keys = query.max_keys - entries;
                }
                next => return Ok(VersionListing { next, ..found }),
            }
        }
    }
}

impl ObjectLockOperations for NodeStore {
    fn lock_configuration(&self, bucket: &Bucket) -> Result<Option<LockConfiguration>> {
        let request = Request::LockConfiguration { bucket: of(bucket) };
        self.session.ask(&on_bucket("get object lock", bucket), &request)
    }

    fn set_lock_configuration(&self, bucket: &Bucket, configuration: &LockConfiguration) -> Result<()> {
        let request = Request::SetLockConfiguration { bucket: of(bucket), configuration: *configuration };
        self.session.ask(&on_bucket("set object lock", bucket), &request)
    }

    fn set_retention(
        &self,
        bucket: &Bucket,
        key: &Key,
        version: Option<&VersionId>,
        retention: Option<Retention>,
        bypass: bool,
    ) -> Result<()> {
        let (call, version) = (on_object("set retention", bucket, key), version.map(of));
        let (bucket, key) = (of(bucket), of(key));
        self.session.ask(&call, &Request::SetRetention { bucket, key, version, retention, bypass })
    }

    fn set_legal_hold(
        &self,
        bucket: &Bucket,
        key: &Key,
        version: Option<&VersionId>,
        is_on: bool,
    ) -> Result<()> {
        let request =
            Request::SetLegalHold { bucket: of(bucket), key: of(key), version: version.map(of), is_on };
        self.session.ask(&on_object("set legal hold", bucket, key), &request)
    }
}

impl BucketDocumentOperations for NodeStore {
    fn document(&self, bucket: &Bucket, kind: &BucketDocumentKind) -> Result<Option<Vec<u8>>> {
        let request = Request::Document { bucket: of(bucket), kind: of(kind) };
        self.session.ask(&on_bucket("get document", bucket), &request)
    }

    fn set_document(&self, bucket: &Bucket, kind: &BucketDocumentKind, document: &[u8]) -> Result<()> {
        let request = Request::SetDocument { bucket: of(bucket), kind: of(kind), document: of(document) };
        self.session.ask(&on_bucket("set document", bucket), &request)
    }

    fn delete_document(&self, bucket: &Bucket, kind: &BucketDocumentKind) -> Result<()> {
        let request = Request::DeleteDocument { bucket: of(bucket), kind: of(kind) };
        self.session.ask(&on_bucket("delete document", bucket), &request)
    }

    /// Returns no owner, because the node protocol does not transfer owners.
    fn bucket_owner(&self, bucket: &Bucket) -> Result<Option<u32>> {
        self.head_bucket(bucket).map(|_| None)
    }
}

impl MultipartUploadOperations for NodeStore {
    fn object_parts(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<Vec<ObjectPart>> {
        let request = Request::ObjectParts { bucket: of(bucket), key: of(key), options: of(options) };
        self.session.ask(&on_object("get parts", bucket, key), &request)
    }

    fn create_upload(&self, bucket: &Bucket, key: &Key, options: &PutOptions) -> Result<UploadId> {
        // If this request were sent twice, an unused second upload would remain.
        let call = on_object("create upload", bucket, key).once();
        let request = Request::CreateUpload { bucket: of(bucket), key: of(key), options: of(options) };
        self.session.ask(&call, &request)
    }

    fn part_writer(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        number: u16,
        options: &PartOptions,
    ) -> Result<Box<dyn Writer>> {
        checked_part_number(number).map_err(|error| on_object("put part", bucket, key).named(error))?;
        let what = WriteKind::Part(upload.clone(), number, options.clone());
        let target = WriteTarget { bucket: bucket.clone(), key: key.clone(), what };
        Ok(Box::new(NodeWriter::new(&self.session, target)?))
    }

    fn copy_part(
        &self,
        from: (&Bucket, &Key),
        options: &GetOptions,
        (bucket, key, upload, number): (&Bucket, &Key, &UploadId, u16),
    ) -> Result<PutResult> {
        let call = on_object("copy part", bucket, key);
        let (from_bucket, from_key, options) = (of(from.0), of(from.1), of(options));
        let (bucket, key, upload) = (of(bucket), of(key), of(upload));
        let request = Request::CopyPart { from_bucket, from_key, options, bucket, key, upload, number };
        self.session.ask(&call, &request)
    }

    fn list_parts(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        query: &PartsQuery,
    ) -> Result<PartListing> {
        let (upload, query) = (of(upload), of(query));
        let request = Request::ListParts { bucket: of(bucket), key: of(key), upload, query };
        self.session.ask(&on_object("list parts", bucket, key), &request)
    }

    /// Cost: one message per 4,096 uploads.
    fn list_uploads(&self, bucket: &Bucket, query: &UploadsQuery) -> Result<UploadListing> {
        let (mut page, mut found) = (query.clone(), UploadListing::default());
        loop {
            let request = Request::ListUploads { bucket: of(bucket), query: of(&page) };
            let mut more: UploadListing = self.session.ask(&on_bucket("list uploads", bucket), &request)?;
            found.uploads.append(&mut more.uploads);
            found.truncated = more.truncated;
            let Some(last) = found.uploads.last() else { return Ok(found) };
            if !found.truncated || found.uploads.len() >= query.max_uploads {
                return Ok(found);
            }
            page.key_after = Some(last.key.clone());
            page.upload_after = Some(last.upload.as_str().to_owned());
            page.max_uploads = query.max_uploads - found.uploads.len();
        }
    }

    fn complete_upload(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        parts: &[CompletedPart],
        options: &CompleteOptions,
    ) -> Result<PutResult> {
        let call = on_object("complete upload", bucket, key).once();
        let (upload, parts, options) = (of(upload), of(parts), of(options));
        let request = Request::CompleteUpload { bucket: of(bucket), key: of(key), upload, parts, options };
        self.session.ask(&call, &request)
    }

    fn abort_upload(&self, bucket: &Bucket, key: &Key, upload: &UploadId) -> Result<()> {
        let call = on_object("abort upload", bucket, key).once();
        let request = Request::AbortUpload { bucket: of(bucket), key: of(key), upload: of(upload) };
        self.session.ask(&call, &request)
    }
}

impl Store for NodeStore {}
