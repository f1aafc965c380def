//! The model of an S3 object store: names, metadata, conditions, listings, errors, and the blocking [`Store`] trait
//! that every lane implements. This crate does not depend on files, sockets or HTTP.
//!
//! [`MemoryStore`] is the smallest complete implementation. The conformance suite and the random-operation tests
//! compare every other lane with this store.

mod conditions;
mod digest;
mod error;
mod etag;
mod extensions;
mod list;
mod lock;
mod memory;
mod multipart;
mod name;
mod object;
mod receive;
mod upload_page;
mod version;

pub use conditions::{ByteRange, Conditions, ETagMatch};
pub use digest::{
    Checksum, ChecksumAlgorithm, ChecksumAlgorithmAndType, ChecksumType, ContentHasher, ExpectedContent,
    HashResult,
};
pub use error::{DeleteMarker, Error, ErrorKind, LEAVES_BUCKET, Result};
pub use etag::{ETag, ETagPolicy};
pub use extensions::{
    BucketDocumentKind, BucketDocumentOperations, MAX_DOCUMENT_BYTES, MAX_TAGS, MultipartUploadOperations,
    ObjectBatchOperations, ObjectRenameOperations, ObjectTagOperations, ObjectVersionOperations, Tags,
    check_document, check_tags, is_of_tags, is_reserved_tag,
};
pub use list::{
    ListEntry, ListPageBuilder, ListQuery, MAX_KEYS, ObjectListing, ObjectSummary, WalkInstruction,
};
pub use lock::{
    DefaultRetention, LockConfiguration, ObjectLock, ObjectLockOperations, Retention, RetentionMode,
    RetentionPeriod, ms_since_1970, no_object_lock,
};
pub use memory::MemoryStore;
pub use multipart::{
    CompleteOptions, CompletedPart, MAX_PARTS, MIN_PART_BYTES, PartInfo, PartListing, PartsQuery, UploadId,
    UploadListing, UploadSummary, UploadsQuery, checked_part_number, multipart_checksum, multipart_etag,
};
pub use name::{Bucket, Key, MAX_KEY_BYTES, contains_byte};
pub use object::{
    BoxedMetadata, BucketInfo, CopyOptions, DeleteOptions, FileRegion, GetOptions, Metadata, ObjectContent,
    ObjectInfo, ObjectPart, OpenObject, PartOptions, PutOptions, PutResult, RenameOptions, content_error,
};
pub use receive::{TRUSTED_BYTES, check_room, receive_exact, receive_rest};
pub use upload_page::UploadPage;
pub use version::{
    DeleteResult, VersionId, VersionListing, VersionPageBuilder, VersionSummary, VersioningState,
    VersionsQuery,
};

use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// An S3 object store on any lane: [`Objects`] and all other features of S3.
pub trait Store:
    ObjectBatchOperations
    + ObjectRenameOperations
    + ObjectTagOperations
    + ObjectVersionOperations
    + ObjectLockOperations
    + MultipartUploadOperations
    + BucketDocumentOperations
{
    /// Returns a confined version of the store, which follows no symbolic link out of the requested bucket. A gateway
    /// uses the confined store for users who may access only some buckets. Returns `None` if the store has no symbolic
    /// links. Errors: the errors of opening the confined store.
    fn within_buckets(&self) -> Result<Option<Arc<dyn Store>>> {
        Ok(None)
    }

    /// Returns the file server that calls on `bucket` may wait for without a time limit. Returns `None` if there is no
    /// file server, or if such waits have a time limit. The name [`ROOT_DIR`] means the directory that contains the
    /// buckets, and an empty name means all buckets. Cost: no request to a file server, and no system call, except that
    /// the first call may read the list of mounts.
    fn file_server(&self, _bucket: &str) -> Option<FileServerProbe> {
        None
    }
}

/// In [`Store::file_server`], the name of the directory that contains the buckets. No bucket has this name.
pub const ROOT_DIR: &str = ".";

/// A file server, and a function that checks whether the server responds.
#[derive(Clone)]
pub struct FileServerProbe {
    /// A number that identifies the file system on this machine.
    pub file_system: u64,
    /// Sends a request to the server. Returns when the server has responded, regardless of the result.
    pub ask: Arc<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for FileServerProbe {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("FileServerProbe")
            .field("file_system", &self.file_system)
            .finish_non_exhaustive()
    }
}

/// Buckets and the objects in them, the basis of every store.
///
/// Calls block until they are done. Threads can share a store. Readers see a published object as a whole or not at all.
/// The last writer wins unless [`PutOptions::conditions`] specify otherwise.
///
/// Each error has an [`ErrorKind`], which every binding maps to its own errors. The documentation of each method names
/// the kinds that callers should handle. Any method may also fail with the kinds for machine problems, such as `Io`,
/// `NoSpace`, `AccessDenied` and `Unavailable`.
pub trait Objects: Send + Sync {
    /// Returns the lane's name, for tables and messages, such as `embedded`, `http` or `memory`.
    fn lane(&self) -> &'static str;

    /// Returns all buckets in byte order of their names.
    fn list_buckets(&self) -> Result<Vec<BucketInfo>>;

    /// Returns the first `most` of the buckets whose names `wanted` accepts, in byte order of their names. Other
    /// buckets are not examined, if the store can avoid it.
    fn find_buckets(&self, wanted: &dyn Fn(&Bucket) -> bool, most: usize) -> Result<Vec<BucketInfo>> {
        let all = self.list_buckets()?.into_iter();
        Ok(all.filter(|bucket| wanted(&bucket.name)).take(most).collect())
    }

    /// Creates an empty bucket. Errors: `BucketAlreadyOwnedByYou`; `BucketAlreadyExists` if the bucket belongs to
    /// another user; `InvalidBucketName`.
    fn create_bucket(&self, bucket: &Bucket) -> Result<()>;

    /// Returns the name and the creation time of a bucket. Errors: `NoSuchBucket`.
    fn head_bucket(&self, bucket: &Bucket) -> Result<BucketInfo>;

    /// Removes an empty bucket, which has no objects, versions or delete markers.
    /// Errors: `NoSuchBucket`, `BucketNotEmpty`.
    fn delete_bucket(&self, bucket: &Bucket) -> Result<()>;

    /// Creates a writer for a new object; nothing is visible before [`Writer::commit`].
    /// Errors: `NoSuchBucket`, `PreconditionFailed` (possibly only at the commit).
    fn writer(&self, bucket: &Bucket, key: &Key, options: &PutOptions) -> Result<Box<dyn Writer>>;

    /// Stores `body` under `key` in one call.
    fn put(&self, bucket: &Bucket, key: &Key, body: &[u8], options: &PutOptions) -> Result<PutResult> {
        let mut writer = self.writer(bucket, key, options)?;
        writer.write(body)?;
        writer.commit(&ExpectedContent::default())
    }

    /// Opens a whole object, or a range or part of it.
    /// Errors: `NoSuchKey`, `NoSuchVersion`, `InvalidRange`, `InvalidPart`, `NotModified`,
    /// `PreconditionFailed`; `MethodNotAllowed` for a version that is a delete marker.
    fn get(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<OpenObject>;

    /// Reads an object (or the requested range) into `buffer`, which is cleared first and keeps its capacity between
    /// calls. Returns the size of the whole object. This method is for callers that need only the bytes. It looks up no
    /// other property unless `options` has conditions.
    fn read(&self, bucket: &Bucket, key: &Key, options: &GetOptions, buffer: &mut Vec<u8>) -> Result<u64> {
        let object = self.get(bucket, key, options)?;
        object.content.read_to(buffer)?;
        Ok(object.info.size)
    }

    /// Reads many ranges of one version of an object; returns one vector per range, in order. `options.range` is
    /// ignored. Errors: as for [`Objects::get`], even if `ranges` is empty; a range outside the object makes the whole
    /// call fail.
    fn read_ranges(
        &self,
        bucket: &Bucket,
        key: &Key,
        ranges: &[ByteRange],
        options: &GetOptions,
    ) -> Result<Vec<Vec<u8>>> {
        if ranges.is_empty() {
            return self.head(bucket, key, options).map(|_| Vec::new());
        }
        let mut options = options.clone();
        let read = |range: &ByteRange| {
            options.range = Some(*range);
            let object = self.get(bucket, key, &options)?;
            if options.conditions.if_match.is_none() {
                // All other ranges must be read from the same version.
                options.conditions = Conditions::only_if(object.info.etag.clone());
            }
            object.content.into_vec()
        };
        ranges.iter().map(read).collect()
    }

    /// Returns the properties of an object. `options.range` and `options.part` are ignored. Errors: as for
    /// [`Objects::get`].
    fn head(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<ObjectInfo>;

    /// Removes an object; removing a missing object succeeds, as in S3. In a bucket that keeps versions, the object
    /// becomes an old version, and a delete marker becomes the latest version. Deleting a version removes only that
    /// version, and the newest remaining version becomes the latest. Errors: `NoSuchBucket`, `PreconditionFailed`.
    fn delete(&self, bucket: &Bucket, key: &Key, options: &DeleteOptions) -> Result<DeleteResult>;

    /// Copies an object within the store.
    /// Errors: `NoSuchKey` for a missing source; `InvalidArgument` for a copy onto itself that changes nothing; errors
    /// of [`Objects::put`].
    fn copy(
        &self,
        from: (&Bucket, &Key),
        bucket: &Bucket,
        key: &Key,
        options: &CopyOptions,
    ) -> Result<PutResult>;

    /// Lists one page of a bucket in byte order of the keys. Errors: `NoSuchBucket`.
    fn list(&self, bucket: &Bucket, query: &ListQuery) -> Result<ObjectListing>;
}

/// An object or part being written. A writer that is dropped without a commit publishes nothing and leaves no data
/// behind.
pub trait Writer: Send {
    /// Appends `data`.
    fn write(&mut self, data: &[u8]) -> Result<()>;

    /// Returns the file that receives the content. Instead of calling [`Writer::write`], a caller may write the content
    /// to the file, from the file's first byte on, and then call [`Writer::filled`]. Returns `None` if there is no
    /// file, if the file contains more than this content, or if the writer must see the bytes to digest them.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Declares that the caller filled the [file](Writer::file) with `bytes` bytes. Errors: `IncompleteBody` if the
    /// file has a different size; `NotImplemented` without a file.
    fn filled(&mut self, bytes: u64) -> Result<()> {
        Err(Error::new(ErrorKind::NotImplemented, format!("{bytes} bytes were written to no file")))
    }

    /// Switches to another key of the same bucket, before anything has been written. Returns `false` and changes
    /// nothing if the other key needs a new writer.
    fn retarget(&mut self, _key: &Key) -> bool {
        false
    }

    /// Returns whether the [file](Writer::file) has no name until the commit. On file systems without unnamed files, an
    /// open file with a name can prevent the removal of its bucket.
    fn is_unnamed(&self) -> bool {
        false
    }

    /// Declares that the content comes from an HTML form. The event that reports the object then has the name
    /// `ObjectCreated:Post`.
    fn note_form(&mut self) {}

    /// Checks the content against `expected`, then publishes it.
    /// Errors: `BadDigest`, `IncompleteBody`, `PreconditionFailed`, `LockTimeout`.
    fn commit(self: Box<Self>, expected: &ExpectedContent) -> Result<PutResult>;

    /// Commits like [`Writer::commit`], but returns the writer if another writer holds the key's lock, so that the
    /// caller can wait without blocking a thread. For a writer that needs no lock, this method does the same as
    /// `commit`.
    fn try_commit(self: Box<Self>, expected: &ExpectedContent) -> Result<PutResult, CommitFailure> {
        self.commit(expected).map_err(CommitFailure::Failed)
    }
}

/// The reason why a writer did not commit.
pub enum CommitFailure {
    /// The commit failed, and the writer was dropped.
    Failed(Error),
    /// Another writer holds the lock (`LockTimeout`). Nothing was published, and the caller may commit the returned
    /// writer again.
    Locked(Box<dyn Writer>, Error),
}
