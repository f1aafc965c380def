//! Multipart uploads. As parts of uniform size arrive, they are written at their final offsets in the future object, so
//! that completing the upload takes only a rename. See [`parts`] for the files of an upload.

mod complete;
pub(crate) mod list;
pub(crate) mod parts;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use fordway_store::{
    Bucket, ByteRange, Conditions, ContentHasher, ETagPolicy, Error, ErrorKind, ExpectedContent, FileRegion,
    GetOptions, Key, MAX_PARTS, ObjectContent, ObjectPart, OpenObject, PartInfo, PartListing, PartOptions,
    PartsQuery, PutOptions, PutResult, Result, UploadId, Writer, checked_part_number, multipart_checksum,
    multipart_etag,
};
use parts::{
    ArrivedPart, DATA, PartSink, UPLOAD, UploadDirectory, being_completed, in_upload, part_name, part_number,
};

use crate::PosixStoreState;
use crate::errors::is_stale;
use crate::layout::{upload_dir, upload_of};
use crate::object_lock::check_lockable;
use crate::record::ObjectRecord;
use crate::stage::StagedFile;
use crate::write::{check_metadata, for_each_piece, of_source};

/// The multipart uploads of a store.
pub(crate) struct MultipartUploadManager<'s> {
    inner: &'s Arc<PosixStoreState>,
}

impl<'s> MultipartUploadManager<'s> {
    pub(crate) fn of(inner: &'s Arc<PosixStoreState>) -> Self {
        MultipartUploadManager { inner }
    }
}

/// An upload in progress.
struct OpenUpload {
    record: ObjectRecord,
    dir: String,
    /// Whether the upload accepts parts. An upload that is being completed, or whose completion was interrupted,
    /// accepts no parts.
    accepts_parts: bool,
}

/// A part being written.
pub(crate) struct PartWriter {
    inner: Arc<PosixStoreState>,
    bucket: Bucket,
    key: Key,
    dir: String,
    number: u16,
    hasher: ContentHasher,
    sink: PartSink,
}

impl Writer for PartWriter {
    fn write(&mut self, data: &[u8]) -> Result<()> {
        self.hasher.update(data);
        let written = self.sink.write(data);
        written.map_err(|error| {
            error.during("put part", crate::store::LANE, self.bucket.as_str(), self.key.as_str())
        })
    }

    /// Returns the file only if it belongs to this part alone. A part that is written in place shares its file with
    /// other parts.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.sink {
            PartSink::Apart(staged) if self.hasher.is_idle() => Some(staged.file().as_fd()),
            _ => None,
        }
    }

    fn filled(&mut self, bytes: u64) -> Result<()> {
        self.hasher.skip(bytes);
        match &mut self.sink {
            PartSink::Apart(staged) => staged.filled(bytes),
            PartSink::InPlace { .. } => {
                Err(Error::new(ErrorKind::NotImplemented, "the file of this part cannot be lent"))
            }
        }
    }

    fn commit(self: Box<Self>, expected: &ExpectedContent) -> Result<PutResult> {
        let PartWriter { inner, bucket, key, dir, number, hasher, sink } = *self;
        let publish = || {
            let found = hasher.finish(expected)?;
            let record = ObjectRecord { etag: found.etag, checksum: found.checksum, ..Default::default() };
            sink.publish(&inner, &bucket, (&dir, number), record)
        };
        publish().map_err(|error| error.during("put part", crate::store::LANE, bucket.as_str(), key.as_str()))
    }
}

impl MultipartUploadManager<'_> {
    pub(crate) fn create_upload(&self, bucket: &Bucket, key: &Key, options: &PutOptions) -> Result<UploadId> {
        check_metadata(&options.metadata)?;
        options.check_upload()?;
        check_lockable(&self.inner.volume, bucket, options.lock)?;
        // Without this check, the completion would be refused only after the client had sent all parts.
        self.inner.volume.require_own_dir(bucket, key, "starting the upload")?;
        self.inner.volume.require_own_mount(bucket, key)?;
        let random = getrandom::u64()
            .map_err(|error| Error::new(ErrorKind::Io, "no random number").caused_by(error))?;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        // Upload IDs sort by the uploads' start times.
        let id = UploadId::new(format!("{:016x}{random:016x}", now.as_nanos() as u64))?;
        let record = ObjectRecord {
            metadata: options.metadata.clone(),
            tags: options.tags.clone(),
            lock: options.lock,
            upload_checksum: options.checksum_plan(),
            key: Some(key.as_str().to_owned()),
            etag_policy: Some(options.etag_policy.unwrap_or(self.inner.volume.config.etag_policy)),
            ..Default::default()
        };
        let dir = upload_dir(bucket, &id);
        StagedFile::at(self.inner, bucket, in_upload(&dir, DATA))?.publish_private()?;
        // The record is written last, so that an upload has all its files by the time it can be found.
        let mut staged = StagedFile::at(self.inner, bucket, in_upload(&dir, UPLOAD))?;
        staged.write(&record.encode())?;
        staged.publish_private()?;
        Ok(id)
    }

    pub(crate) fn part_writer(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        number: u16,
        options: &PartOptions,
    ) -> Result<PartWriter> {
        checked_part_number(number)?;
        let found = self.upload_for_parts(bucket, key, upload)?;
        self.inner.volume.check_keeping(bucket, &found.dir)?;
        let checksum = options.checksum_within(found.record.upload_checksum.map(|plan| plan.algorithm))?;
        Ok(PartWriter {
            inner: self.inner.clone(),
            bucket: bucket.clone(),
            key: key.clone(),
            number,
            hasher: ContentHasher::new(found.etag_policy(), options.check_md5, checksum),
            sink: PartSink::open(self.inner, bucket, &found.dir, number, options.size_hint)?,
            dir: found.dir,
        })
    }

    /// Fills a part from an object or a range of it. If no digest of the bytes is needed, the kernel copies them, and
    /// shares extents if the file system supports sharing. Errors: `InvalidRange` if the range extends beyond the
    /// object. A read would shorten such a range, but a shortened part would remain undetected.
    pub(crate) fn copy_part(
        &self,
        from: (&Bucket, &Key),
        options: &GetOptions,
        (bucket, key, upload, number): (&Bucket, &Key, &UploadId, u16),
    ) -> Result<PutResult> {
        let source = self.inner.get(from.0, from.1, options).map_err(Conditions::of_copy_source);
        let OpenObject { info, content, .. } = source.map_err(of_source("copy part", from))?;
        if let Some(range @ ByteRange::Inclusive(_, last)) = options.range.filter(|_| options.part.is_none())
            && last >= info.size
        {
            let why = format!("bytes {range} of an object of {} bytes", info.size);
            return Err(Error::new(ErrorKind::InvalidRange, why));
        }
        let part = PartOptions { size_hint: Some(content.len()), ..Default::default() };
        let mut writer = self.part_writer(bucket, key, upload, number, &part)?;
        match content {
            ObjectContent::File(FileRegion { file, offset, len }) => {
                if writer.hasher.is_idle() {
                    writer.sink.copy(&file, offset, len)?;
                    writer.hasher.skip(len);
                } else {
                    for_each_piece(&file, offset, len, |piece| writer.write(piece))?;
                }
                self.inner.volume.require_unchanged(&file, (info.size, info.modified))?;
            }
            content => content.for_each_chunk(|chunk| writer.write(chunk))?,
        }
        Box::new(writer).commit(&ExpectedContent::default())
    }

    /// Returns whether other nodes may change the file system of `bucket`. Cost: usually none.
    fn is_shared(&self, bucket: &Bucket) -> bool {
        self.inner.volume.sharing_of(bucket).is_shared()
    }

    /// Returns the upload if it belongs to `key`. Errors: `NoSuchUpload`, `NoSuchBucket`.
    fn upload(&self, bucket: &Bucket, key: &Key, upload: &UploadId) -> Result<OpenUpload> {
        // An upload ID that was not generated by Fordway may be any string, even a path.
        let ours = upload_of(upload.as_str());
        match ours.map_or(Ok(None), |ours| self.find_upload(bucket, &ours))? {
            Some(found) if found.record.key.as_deref() == Some(key.as_str()) => Ok(found),
            _ => Err(self.inner.volume.missing(bucket, ErrorKind::NoSuchUpload)),
        }
    }

    /// Returns the upload as [`Self::upload`] does, but only if the upload accepts parts. If a completion was
    /// interrupted, the upload is reopened first. Errors: as for [`Self::upload`], and `LockTimeout` if a completion
    /// may still be running.
    fn upload_for_parts(&self, bucket: &Bucket, key: &Key, upload: &UploadId) -> Result<OpenUpload> {
        let found = self.upload(bucket, key, upload)?;
        if found.accepts_parts {
            return Ok(found);
        }
        self.reopen_abandoned(bucket, key, upload)?;
        match self.upload(bucket, key, upload)? {
            found if found.accepts_parts => Ok(found),
            _ => Err(being_completed()),
        }
    }

    fn find_upload(&self, bucket: &Bucket, upload: &UploadId) -> Result<Option<OpenUpload>> {
        let dir = upload_dir(bucket, upload);
        let mut found = UploadDirectory::new(&self.inner.volume, &dir).record_of_upload();
        let is_doubtful = match &found {
            Ok(found) => found.as_ref().is_none_or(|found| !found.accepts_parts),
            Err(error) => is_stale(error),
        };
        if is_doubtful && self.is_shared(bucket) {
            // Another node may have started, ended or reopened the upload, while this node's cache still shows the
            // earlier state.
            self.inner.volume.refresh_dirs(&dir);
            found = UploadDirectory::new(&self.inner.volume, &dir).record_of_upload();
        }
        Ok(found?.map(|found| OpenUpload { record: found.record, dir, accepts_parts: found.accepts_parts }))
    }
}

impl OpenUpload {
    /// Returns the record of the object that consists of the parts `chosen`.
    fn record_of(&self, chosen: &[&PartInfo]) -> ObjectRecord {
        let checksum = self.record.upload_checksum;
        ObjectRecord {
            etag: Some(multipart_etag(self.etag_policy(), chosen)),
            checksum: checksum.and_then(|plan| multipart_checksum(plan.algorithm, plan.kind, chosen)),
            parts: ObjectPart::of(chosen),
            metadata: self.record.metadata.clone(),
            tags: self.record.tags.clone(),
            lock: self.record.lock,
            ..Default::default()
        }
    }

    fn etag_policy(&self) -> ETagPolicy {
        self.record.etag_policy.unwrap_or_default()
    }
}

/// The maximum number of consecutive missing parts that are looked up one by one. After that, the directory is read.
/// Reading a directory of a thousand parts costs about as much as this number of lookups.
const GAP_MAX: u16 = 64;

impl MultipartUploadManager<'_> {
    /// Lists the parts of an upload. Cost: one read for each part on the page, and one for the part after the page; if
    /// part numbers are far apart, also a read of the directory.
    pub(crate) fn list_parts(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        query: &PartsQuery,
    ) -> Result<PartListing> {
        let found = self.upload(bucket, key, upload)?;
        let (dir, checksum) = (found.dir, found.record.upload_checksum);
        let volume = &self.inner.volume;
        volume.freshen_dir(&dir, false, volume.sharing_of(bucket));
        let (mut parts, mut gap) = (Vec::new(), 0);
        for number in query.after.saturating_add(1)..=MAX_PARTS {
            if parts.len() > query.max_parts {
                break;
            }
            if gap == GAP_MAX {
                self.add_named_parts(&dir, number, query.max_parts, &mut parts)?;
                break;
            }
            let found = self.part_info(&dir, number)?;
            gap = if found.is_some() { 0 } else { gap + 1 };
            parts.extend(found);
        }
        let truncated = parts.len() > query.max_parts;
        parts.truncate(query.max_parts);
        Ok(PartListing { parts, truncated, checksum })
    }

    /// Lists the directory and appends its parts to `parts` in order, from part number `first` on. Stops when `parts`
    /// contains `most + 1` parts, so that the caller can determine whether there are more.
    fn add_named_parts(&self, dir: &str, first: u16, most: usize, parts: &mut Vec<PartInfo>) -> Result<()> {
        let names = self.inner.volume.names_in(dir)?;
        let mut numbers: Vec<u16> = names.iter().filter_map(|name| part_number(name)).collect();
        numbers.retain(|number| *number >= first);
        numbers.sort_unstable();
        for number in numbers {
            if parts.len() > most {
                break;
            }
            parts.extend(self.part_info(dir, number)?);
        }
        Ok(())
    }

    /// Returns the part that a record describes, or `None` if the part has not arrived.
    fn part_info(&self, dir: &str, number: u16) -> Result<Option<PartInfo>> {
        let Some((record, modified_ns)) =
            UploadDirectory::new(&self.inner.volume, dir).record(&part_name(number))?
        else {
            return Ok(None);
        };
        Ok(ArrivedPart::of(number, record, modified_ns).map(|part| part.info))
    }
}
