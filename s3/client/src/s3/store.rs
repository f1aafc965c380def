//! [`S3Store`]: implements the methods of [`Store`] with the functions of the neighbouring modules.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fordway_store::{
    Bucket, BucketDocumentKind, BucketDocumentOperations, BucketInfo, ByteRange, Checksum, ChecksumAlgorithm,
    CompleteOptions, CompletedPart, CopyOptions, DeleteOptions, DeleteResult, Error, ErrorKind, GetOptions,
    Key, ListQuery, LockConfiguration, MultipartUploadOperations, ObjectBatchOperations, ObjectInfo,
    ObjectListing, ObjectLockOperations, ObjectPart, ObjectRenameOperations, ObjectTagOperations,
    ObjectVersionOperations, Objects, OpenObject, PartListing, PartOptions, PartsQuery, PutOptions,
    PutResult, RenameOptions, Result, Retention, Store, Tags, UploadId, UploadListing, UploadsQuery,
    VersionId, VersionListing, VersioningState, VersionsQuery, Writer, check_tags, checked_part_number,
};
use fordway_wire::{range, s3_xml, uri};

use crate::s3::S3Config;
use crate::s3::failure;
use crate::s3::headers::{
    OF_COPY_SOURCE, OF_OBJECT, add_conditions, add_lock, add_metadata, add_tags, object_info,
};
use crate::s3::multipart::{self, UploadPartId};
use crate::s3::request::S3Call;
use crate::s3::session::S3Session;
use crate::s3::writer::{self, BufferedPartWriter, S3ObjectWriter};
use crate::s3::{delete, list, lock, read};
use fordway_http::vector::RemoteFile;
use fordway_http::{BodySink, HttpResponse};

/// The lane's name.
pub(super) const LANE: &str = "http";

/// An S3 service. Clones share connections and configuration.
#[derive(Clone)]
pub struct S3Store {
    session: Arc<S3Session>,
}

impl S3Store {
    /// Creates a store at the endpoint of `config`. Sends nothing yet.
    /// Errors: `InvalidArgument` for an invalid endpoint or setting.
    pub fn new(config: S3Config) -> Result<Self> {
        Ok(S3Store { session: Arc::new(S3Session::new(config)?) })
    }

    /// Returns a store that shares this store's connections, but has another [`S3Config::timeout`].
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        S3Store { session: Arc::new(self.session.with_timeout(timeout)) }
    }

    /// Returns a presigned URL. Anyone who has the URL can send `method` for the object, with the rights of this
    /// store's credentials, until `expires_s` seconds (1 to 604,800) after `now`. Sends no request. Errors:
    /// `InvalidArgument` if `expires_s` is out of range, or the store has no credentials.
    pub fn presign(
        &self,
        method: &'static str,
        bucket: &Bucket,
        key: &Key,
        expires_s: u64,
        now: SystemTime,
    ) -> Result<String> {
        self.session.presign(&S3Call::on_object(method, "presign", bucket, key), expires_s, now)
    }

    /// Returns a presigned URL with which anyone can send `method` for the bucket, such as `GET` to list the bucket.
    /// Otherwise as [`S3Store::presign`].
    pub fn presign_bucket(
        &self,
        method: &'static str,
        bucket: &Bucket,
        expires_s: u64,
        now: SystemTime,
    ) -> Result<String> {
        self.session.presign(&S3Call::on_bucket(method, "presign", bucket), expires_s, now)
    }

    /// Returns the region that the service states for a bucket; `None` if it states no region. Errors: as for
    /// [`Objects::head_bucket`]. Cost: one HEAD.
    pub fn bucket_region(&self, bucket: &Bucket) -> Result<Option<String>> {
        self.session.run(&S3Call::on_bucket("HEAD", "head bucket", bucket), |mut response| {
            let region = response.header("x-amz-bucket-region").map(str::to_owned);
            failure::check_done(&mut response)?;
            Ok(region)
        })
    }

    /// Returns whether [`S3Store::put_part_streamed`] is available: whether signatures need not cover the content.
    pub fn streams_parts(&self) -> bool {
        !self.session.config.sign_payload
    }

    /// Sends `bytes` as a part of an upload, while `produce` produces them by calling its argument. Buffers nothing, so
    /// the request is sent again only if nothing was produced, and the server checks the content only if there is an
    /// MD5. Without an MD5, the ETag in the response is checked, if it is an MD5. Buckets with object lock require an
    /// MD5. Errors: as for [`Writer::commit`] of a part; errors of `produce`.
    pub fn put_part_streamed(
        &self,
        (bucket, key): (&Bucket, &Key),
        (upload, number): (&UploadId, u16),
        content: (u64, Option<[u8; 16]>),
        produce: &mut dyn FnMut(&mut BodySink<'_>) -> Result<()>,
    ) -> Result<PutResult> {
        UploadPartId { bucket, key, upload, number }.put_streamed(&self.session, content, produce)
    }

    /// Returns the algorithm of the checksum that is sent with uploads whose options name no algorithm; see
    /// [`S3Config::checksum`].
    pub fn usual_checksum(&self) -> Option<ChecksumAlgorithm> {
        self.session.config.checksum
    }

    /// Opens the current version of an object for vectored reads and read-ahead.
    /// Errors: as for `head`. Cost: one HEAD.
    pub fn open_file(&self, bucket: &Bucket, key: &Key) -> Result<RemoteFile> {
        read::open(&self.session, (bucket, key))
    }
}

/// Returns the value of `x-amz-copy-source`.
pub(super) fn copy_source((bucket, key): (&Bucket, &Key), version: Option<&VersionId>) -> String {
    let mut source = format!("/{bucket}/");
    uri::push_path(&mut source, key.as_str());
    if let Some(version) = version {
        source.push_str("?versionId=");
        uri::push_query(&mut source, version.as_str());
    }
    source
}

/// Returns the properties of an object. Cost: one HEAD.
pub(super) fn head(session: &S3Session, target: (&Bucket, &Key), options: &GetOptions) -> Result<ObjectInfo> {
    let call = read::call(session, "HEAD", "head", target, options);
    session.run(&call, |response| {
        read::check_version(&response, &options.conditions)?;
        described(&response)
    })
}

/// Returns the description of an object, from the response to a HEAD request. Errors: `BadResponse` if the response
/// does not specify the size, because an object of unknown size must not be mistaken for an empty object.
pub(super) fn described(response: &HttpResponse) -> Result<ObjectInfo> {
    let size = response.header("content-length").and_then(range::digits);
    let detail = "the server's response to HEAD states no size (Content-Length)";
    let size = size.ok_or_else(|| Error::new(ErrorKind::BadResponse, detail))?;
    Ok(object_info(response, size))
}

impl Objects for S3Store {
    fn lane(&self) -> &'static str {
        LANE
    }

    fn list_buckets(&self) -> Result<Vec<BucketInfo>> {
        list::list_buckets(&self.session)
    }

    fn create_bucket(&self, bucket: &Bucket) -> Result<()> {
        let call = S3Call::on_bucket("PUT", "create bucket", bucket).once();
        bucket.for_creation().map_err(|error| call.named(error))?;
        match self.session.config.region.as_str() {
            // No document is sent for `us-east-1`, the only region that S3 does not accept in the document.
            "us-east-1" => self.session.run_for_status(&call),
            region => {
                let document = s3_xml::create_bucket_configuration(region);
                self.session.run_for_status(&call.document(&document))
            }
        }
    }

    /// S3 does not return the creation time of the bucket, so `created` is the Unix epoch.
    fn head_bucket(&self, bucket: &Bucket) -> Result<BucketInfo> {
        self.session.run_for_status(&S3Call::on_bucket("HEAD", "head bucket", bucket))?;
        Ok(BucketInfo { name: bucket.clone(), created: UNIX_EPOCH })
    }

    fn delete_bucket(&self, bucket: &Bucket) -> Result<()> {
        self.session.run_for_status(&S3Call::on_bucket("DELETE", "delete bucket", bucket).once())
    }

    /// Buffers up to one part (8 MiB unless configured) in memory, or the whole content if its size hint is at most 64
    /// MiB. A missing bucket is reported only when the first bytes are sent.
    fn writer(&self, bucket: &Bucket, key: &Key, options: &PutOptions) -> Result<Box<dyn Writer>> {
        Ok(Box::new(S3ObjectWriter::new(&self.session, bucket, key, options)?))
    }

    /// Sends one request, without copying `body`.
    fn put(&self, bucket: &Bucket, key: &Key, body: &[u8], options: &PutOptions) -> Result<PutResult> {
        let algorithm = options.checksum.or(self.session.config.checksum);
        let checksum = algorithm.map(|algorithm| Checksum::of(algorithm, body));
        let md5 = options.check_md5.then(|| fast_md5::digest(body));
        writer::put(&self.session, (bucket, key), body, options, (checksum.as_ref(), md5))
    }

    fn get(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<OpenObject> {
        read::get(&self.session, bucket, key, options)
    }

    fn read(&self, bucket: &Bucket, key: &Key, options: &GetOptions, buffer: &mut Vec<u8>) -> Result<u64> {
        read::read(&self.session, (bucket, key), options, buffer)
    }

    fn read_ranges(
        &self,
        bucket: &Bucket,
        key: &Key,
        wanted: &[ByteRange],
        options: &GetOptions,
    ) -> Result<Vec<Vec<u8>>> {
        match wanted {
            // A missing object and a condition that does not hold are errors even without ranges.
            [] => head(&self.session, (bucket, key), options).map(|_| Vec::new()),
            _ => read::read_ranges(&self.session, (bucket, key), wanted, options),
        }
    }

    fn head(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<ObjectInfo> {
        head(&self.session, (bucket, key), options)
    }

    fn delete(&self, bucket: &Bucket, key: &Key, options: &DeleteOptions) -> Result<DeleteResult> {
        delete::delete(&self.session, bucket, key, options)
    }

    fn copy(
        &self,
        from: (&Bucket, &Key),
        bucket: &Bucket,
        key: &Key,
        options: &CopyOptions,
    ) -> Result<PutResult> {
        let mut call = S3Call::on_object("PUT", "copy", bucket, key).slow();
        if !options.conditions.is_empty() {
            call = call.once();
        }
        call.header("x-amz-copy-source", copy_source(from, options.source_version.as_ref()));
        if let Some(metadata) = &options.metadata {
            call.header("x-amz-metadata-directive", "REPLACE");
            add_metadata(&mut call, metadata)?;
        }
        if let Some(tags) = &options.tags {
            check_tags(tags).map_err(|error| call.named(error))?;
            call.header("x-amz-tagging-directive", "REPLACE");
            add_tags(&mut call, tags);
        }
        if let Some(algorithm) = options.checksum {
            call.header("x-amz-checksum-algorithm", algorithm.name());
        }
        add_lock(&mut call, &options.lock);
        add_conditions(&mut call, &options.source_conditions, &OF_COPY_SOURCE);
        add_conditions(&mut call, &options.conditions, &OF_OBJECT);
        self.session.run(&call, multipart::copied)
    }

    fn list(&self, bucket: &Bucket, query: &ListQuery) -> Result<ObjectListing> {
        list::list(&self.session, bucket, query)
    }
}

impl ObjectBatchOperations for S3Store {
    fn delete_many(&self, bucket: &Bucket, keys: &[Key]) -> Vec<Result<DeleteResult>> {
        let objects: Vec<_> = keys.iter().map(|key| (key, None)).collect();
        delete::delete_many(&self.session, bucket, &objects)
    }

    fn delete_versions(&self, bucket: &Bucket, versions: &[(Key, VersionId)]) -> Vec<Result<DeleteResult>> {
        let versions: Vec<_> = versions.iter().map(|(key, version)| (key, Some(version))).collect();
        delete::delete_many(&self.session, bucket, &versions)
    }
}

impl ObjectRenameOperations for S3Store {
    fn rename(&self, bucket: &Bucket, from: &Key, to: &Key, options: &RenameOptions) -> Result<()> {
        lock::rename(&self.session, bucket, (from, to), options)
    }
}

impl ObjectTagOperations for S3Store {
    fn tags(&self, bucket: &Bucket, key: &Key, version: Option<&VersionId>) -> Result<Tags> {
        let call = S3Call::on_object("GET", "get tags", bucket, key).query("tagging", "").version(version);
        let document = self.session.run_for_document(&call)?;
        s3_xml::object_tags(&document).map_err(|error| call.named(error))
    }

    fn set_tags(&self, bucket: &Bucket, key: &Key, version: Option<&VersionId>, tags: &Tags) -> Result<()> {
        let document = s3_xml::tagging(tags);
        let call = S3Call::on_object("PUT", "set tags", bucket, key).query("tagging", "").version(version);
        check_tags(tags).map_err(|error| call.named(error))?;
        self.session.run_for_status(&call.document(&document))
    }
}

impl ObjectVersionOperations for S3Store {
    fn versioning(&self, bucket: &Bucket) -> Result<VersioningState> {
        list::versioning(&self.session, bucket)
    }

    fn set_versioning(&self, bucket: &Bucket, versioning: VersioningState) -> Result<()> {
        list::set_versioning(&self.session, bucket, versioning)
    }

    fn list_versions(&self, bucket: &Bucket, query: &VersionsQuery) -> Result<VersionListing> {
        list::list_versions(&self.session, bucket, query)
    }
}

impl ObjectLockOperations for S3Store {
    fn lock_configuration(&self, bucket: &Bucket) -> Result<Option<LockConfiguration>> {
        lock::configuration(&self.session, bucket)
    }

    fn set_lock_configuration(&self, bucket: &Bucket, configuration: &LockConfiguration) -> Result<()> {
        lock::set_configuration(&self.session, bucket, configuration)
    }

    fn set_retention(
        &self,
        bucket: &Bucket,
        key: &Key,
        version: Option<&VersionId>,
        retention: Option<Retention>,
        bypass: bool,
    ) -> Result<()> {
        lock::set_retention(&self.session, (bucket, key, version), retention, bypass)
    }

    fn set_legal_hold(
        &self,
        bucket: &Bucket,
        key: &Key,
        version: Option<&VersionId>,
        is_on: bool,
    ) -> Result<()> {
        lock::set_legal_hold(&self.session, (bucket, key, version), is_on)
    }
}

impl BucketDocumentOperations for S3Store {
    fn document(&self, bucket: &Bucket, kind: &BucketDocumentKind) -> Result<Option<Vec<u8>>> {
        delete::get_document(&self.session, bucket, kind)
    }

    fn set_document(&self, bucket: &Bucket, kind: &BucketDocumentKind, document: &[u8]) -> Result<()> {
        delete::set_document(&self.session, bucket, kind, document)
    }

    fn delete_document(&self, bucket: &Bucket, kind: &BucketDocumentKind) -> Result<()> {
        delete::delete_document(&self.session, bucket, kind)
    }

    /// Returns no owner, because S3 has no numeric user IDs.
    fn bucket_owner(&self, bucket: &Bucket) -> Result<Option<u32>> {
        self.head_bucket(bucket).map(|_| None)
    }
}

impl MultipartUploadOperations for S3Store {
    /// Cost: one request per 1,000 parts, or one request per part if the service does not list the parts. S3 itself
    /// does not list parts that were sent without checksums.
    fn object_parts(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<Vec<ObjectPart>> {
        multipart::object_parts(&self.session, (bucket, key), options)
    }

    fn create_upload(&self, bucket: &Bucket, key: &Key, options: &PutOptions) -> Result<UploadId> {
        multipart::create(&self.session, (bucket, key), options)
    }

    /// Buffers the part in memory until it is committed, so a missing upload is reported only by the commit. If an
    /// upload was created with a checksum algorithm, S3 itself accepts only parts with a checksum of that algorithm,
    /// which the caller must request.
    fn part_writer(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        number: u16,
        options: &PartOptions,
    ) -> Result<Box<dyn Writer>> {
        checked_part_number(number)
            .map_err(|error| error.during("put part", LANE, bucket.as_str(), key.as_str()))?;
        let part = UploadPartId { bucket, key, upload, number };
        Ok(Box::new(BufferedPartWriter::new(&self.session, part, options)?))
    }

    fn copy_part(
        &self,
        from: (&Bucket, &Key),
        options: &GetOptions,
        (bucket, key, upload, number): (&Bucket, &Key, &UploadId, u16),
    ) -> Result<PutResult> {
        UploadPartId { bucket, key, upload, number }.copy(&self.session, from, options)
    }

    fn list_parts(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        query: &PartsQuery,
    ) -> Result<PartListing> {
        multipart::list_parts(&self.session, (bucket, key, upload), query)
    }

    fn list_uploads(&self, bucket: &Bucket, query: &UploadsQuery) -> Result<UploadListing> {
        multipart::list_uploads(&self.session, bucket, query)
    }

    fn complete_upload(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        parts: &[CompletedPart],
        options: &CompleteOptions,
    ) -> Result<PutResult> {
        multipart::complete(&self.session, (bucket, key, upload), parts, options)
    }

    fn abort_upload(&self, bucket: &Bucket, key: &Key, upload: &UploadId) -> Result<()> {
        multipart::abort(&self.session, bucket, key, upload)
    }
}

impl Store for S3Store {}
