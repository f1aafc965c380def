//! Writing objects.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use fordway_store::{
    BoxedMetadata, Bucket, Conditions, ETagPolicy, Error, ErrorKind, Expected, Hasher, Key, PutOptions,
    PutResult, Result, Tags, Uncommitted, Writer, check_tags,
};

use fordway_sys::Mode;

use crate::Inner;
use crate::bare::bare_mode;
use crate::layout::{odd, plain};
use crate::record::Record;
use crate::stage::{FILE_MODE, Staged};

/// The most bytes of metadata an object may carry; S3 allows 2 KiB of user metadata.
const MAX_METADATA_BYTES: usize = 8 * 1024;

/// An object being written.
pub(crate) struct ObjectWriter {
    pub(crate) bucket: Bucket,
    pub(crate) key: Key,
    pub(crate) staged: Staged,
    pub(crate) hasher: Hasher,
    pub(crate) metadata: BoxedMetadata,
    pub(crate) tags: Tags,
    pub(crate) conditions: Conditions,
    /// What is to be published, once all has arrived.
    pub(crate) record: Option<Record>,
}

impl Inner {
    pub(crate) fn object_writer(
        self: &Arc<Self>,
        bucket: &Bucket,
        key: &Key,
        options: &PutOptions,
    ) -> Result<ObjectWriter> {
        let staged = self.stage_object(bucket, key, options)?;
        Ok(ObjectWriter {
            bucket: bucket.clone(),
            key: key.clone(),
            staged,
            hasher: self.hasher(options),
            metadata: options.metadata.clone(),
            tags: options.tags.clone(),
            conditions: options.conditions.clone(),
            record: None,
        })
    }

    /// Stores `body` in one go: what a writer would do, without one to be made and moved about.
    pub(crate) fn put(
        self: &Arc<Self>,
        bucket: &Bucket,
        key: &Key,
        body: &[u8],
        options: &PutOptions,
    ) -> Result<PutResult> {
        let mut staged = self.stage_object(bucket, key, options)?;
        staged.write(body)?;
        let mut record = Record::default();
        if self.etag_policy(options) == ETagPolicy::Md5 || options.checksum.is_some() {
            let mut hasher = self.hasher(options);
            hasher.update(body);
            let found = hasher.finish(&Expected::default())?;
            (record.etag, record.checksum) = (found.etag, found.checksum);
        }
        if !says_nothing(options) {
            (record.metadata, record.tags) = (options.metadata.clone(), options.tags.clone());
        }
        staged.publish(key, record, &options.conditions)
    }

    fn etag_policy(&self, options: &PutOptions) -> ETagPolicy {
        options.etag_policy.unwrap_or(self.config.etag_policy)
    }

    fn hasher(&self, options: &PutOptions) -> Hasher {
        Hasher::new(self.etag_policy(options), options.check_md5, options.checksum)
    }

    /// Stages a file for what `options` say of an object.
    /// Errors: `InvalidArgument` for too much metadata, `InvalidTag`, and errors of [`Staged::at`].
    fn stage_object(self: &Arc<Self>, bucket: &Bucket, key: &Key, options: &PutOptions) -> Result<Staged> {
        check_metadata(&options.metadata)?;
        check_tags(&options.tags)?;
        let is_bare = self.etag_policy(options) == ETagPolicy::Fast
            && options.checksum.is_none()
            && says_nothing(options);
        self.stage(bucket, key, if is_bare { bare_mode() } else { FILE_MODE })
    }

    /// Stages a file for `key`: beside its plain path, or, where a parent of that is a file or the
    /// key is no path, beside its odd one.
    pub(crate) fn stage(self: &Arc<Self>, bucket: &Bucket, key: &Key, mode: Mode) -> Result<Staged> {
        if let Some(place) = plain(bucket, key) {
            match Staged::with_mode(self, bucket, place, mode) {
                Ok(mut staged) => {
                    staged.is_plain = true;
                    return Ok(staged);
                }
                Err(error) if error.kind() == ErrorKind::NoSuchKey => {}
                Err(error) => return Err(error),
            }
        }
        Staged::with_mode(self, bucket, odd(bucket, key), mode)
    }
}

/// Whether nothing is to be kept beside the bytes and what is computed of them.
fn says_nothing(options: &PutOptions) -> bool {
    options.metadata.is_empty() && options.tags.is_empty()
}

impl ObjectWriter {
    pub(crate) fn append(&mut self, data: &[u8]) -> Result<()> {
        self.hasher.update(data);
        self.staged.write(data)
    }

    /// What is known of the object now that all of it has arrived. Errors: `BadDigest`, `IncompleteBody`.
    fn digest(&mut self, expected: &Expected) -> Result<Record> {
        let idle = Hasher::new(ETagPolicy::Fast, false, None);
        let found = std::mem::replace(&mut self.hasher, idle).finish(expected)?;
        let (metadata, tags) = (std::mem::take(&mut self.metadata), std::mem::take(&mut self.tags));
        Ok(Record { etag: found.etag, checksum: found.checksum, metadata, tags, ..Default::default() })
    }

    /// May be tried again after the error `LockTimeout`.
    fn finish(&mut self, expected: &Expected) -> Result<PutResult> {
        let mut record = match self.record.take() {
            Some(record) => record,
            None => self.digest(expected)?,
        };
        let made = self.staged.try_publish(&self.key, &mut record, &self.conditions);
        self.record = Some(record);
        made.map_err(|error| error.during("put", crate::store::LANE, self.bucket.as_str(), self.key.as_str()))
    }
}

impl Writer for ObjectWriter {
    fn write(&mut self, data: &[u8]) -> Result<()> {
        let result = self.append(data);
        result
            .map_err(|error| error.during("put", crate::store::LANE, self.bucket.as_str(), self.key.as_str()))
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.hasher.is_idle().then(|| self.staged.file().as_fd())
    }

    fn filled(&mut self, bytes: u64) -> Result<()> {
        self.hasher.skip(bytes);
        self.staged.filled(bytes)
    }

    fn retarget(&mut self, key: &Key) -> bool {
        let is_fit = plain(&self.bucket, key).is_some_and(|place| self.staged.retarget(place));
        if is_fit {
            self.key = key.clone();
        }
        is_fit
    }

    fn commit(mut self: Box<Self>, expected: &Expected) -> Result<PutResult> {
        self.finish(expected)
    }

    fn try_commit(mut self: Box<Self>, expected: &Expected) -> Result<PutResult, Uncommitted> {
        self.finish(expected).map_err(|error| match error.kind() {
            ErrorKind::LockTimeout => Uncommitted::Locked(self, error),
            _ => Uncommitted::Failed(error),
        })
    }
}

/// Errors: `InvalidArgument` if there is more metadata than an attribute may be asked to hold.
pub(crate) fn check_metadata(metadata: &BoxedMetadata) -> Result<()> {
    if metadata.is_empty() {
        return Ok(());
    }
    let record = Record { metadata: metadata.clone(), ..Default::default() };
    let bytes = record.encode().len();
    match bytes <= MAX_METADATA_BYTES && Record::decode(&record.encode()) == Some(record) {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "the metadata takes {bytes} bytes or has a name of over 255; {MAX_METADATA_BYTES} are allowed"
            ),
        )),
    }
}
