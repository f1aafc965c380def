//! Writes objects and their records: puts, copies and tags. When an object is copied within the store, the kernel
//! copies the content, or shares its extents if the file system supports sharing.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use fordway_store::{
    BoxedMetadata, Bucket, Checksum, ChecksumAlgorithm, CommitFailure, Conditions, ContentHasher,
    CopyOptions, ETagPolicy, Error, ErrorKind, ExpectedContent, Key, Metadata, ObjectLock, PutOptions,
    PutResult, Result, Tags, VersionId, Writer, check_tags,
};
use fordway_sys::{Errno, FileStat, Mode, copy_range, next_data, set_xattr, stat_in};
use fordway_wire::notification::EventKind;

use crate::PosixStoreState;
use crate::contested::check_odd_path;
use crate::errors::from_errno;
use crate::events::{ChangeRecorder, EventFacts};
use crate::layout::{ATTRIBUTE, meta_dir, odd, plain};
use crate::object_lock::{VersionProtection, check_lockable, shield, unshield};
use crate::read::system_time;
use crate::record::{ObjectRecord, etag_of_file};
use crate::sidecar::{ATTRIBUTE_BYTES, is_no_room, place_of};
use crate::stage::{FILE_MODE, StagedFile, bare_mode, be_bare_no_more};

/// The maximum size of an object's metadata, in bytes; S3 allows 2 KiB of user metadata.
const MAX_METADATA_BYTES: usize = 8 * 1024;
/// An object being written.
pub(crate) struct ObjectWriter {
    pub(crate) bucket: Bucket,
    pub(crate) key: Key,
    pub(crate) staged: StagedFile,
    pub(crate) hasher: ContentHasher,
    pub(crate) metadata: BoxedMetadata,
    pub(crate) tags: Tags,
    pub(crate) lock: ObjectLock,
    pub(crate) conditions: Conditions,
    /// The record to publish; `None` until all content has arrived.
    pub(crate) record: Option<ObjectRecord>,
}

impl PosixStoreState {
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
            lock: options.lock,
            conditions: options.conditions.clone(),
            record: None,
        })
    }

    /// Stores `body` in one call. Has the same effect as an [`ObjectWriter`], but does not allocate a writer.
    pub(crate) fn put(
        self: &Arc<Self>,
        bucket: &Bucket,
        key: &Key,
        body: &[u8],
        options: &PutOptions,
    ) -> Result<PutResult> {
        let mut staged = self.stage_object(bucket, key, options)?;
        staged.write(body)?;
        let mut record = ObjectRecord::default();
        if self.etag_policy(options) == ETagPolicy::Md5 || options.checksum.is_some() {
            let mut hasher = self.hasher(options);
            hasher.update(body);
            let found = hasher.finish(&ExpectedContent::default())?;
            (record.etag, record.checksum) = (found.etag, found.checksum);
        }
        if !says_nothing(options) {
            (record.metadata, record.tags) = (options.metadata.clone(), options.tags.clone());
            record.lock = options.lock;
        }
        staged.try_publish(key, &mut record, &options.conditions)
    }

    fn etag_policy(&self, options: &PutOptions) -> ETagPolicy {
        options.etag_policy.unwrap_or(self.volume.config.etag_policy)
    }

    fn hasher(&self, options: &PutOptions) -> ContentHasher {
        ContentHasher::new(self.etag_policy(options), options.check_md5, options.checksum)
    }

    /// Stages a file for an object with these options. Errors: `InvalidArgument` for too much metadata; `InvalidTag`;
    /// errors from [`StagedFile::at`].
    fn stage_object(
        self: &Arc<Self>,
        bucket: &Bucket,
        key: &Key,
        options: &PutOptions,
    ) -> Result<StagedFile> {
        check_metadata(&options.metadata)?;
        check_tags(&options.tags)?;
        check_lockable(&self.volume, bucket, options.lock)?;
        let is_bare = self.etag_policy(options) == ETagPolicy::Fast
            && options.checksum.is_none()
            && says_nothing(options);
        self.stage(bucket, key, if is_bare { bare_mode() } else { FILE_MODE })
    }

    /// Stages a file for `key`, to be published at its plain path. If a parent of that path is a file, or the key
    /// cannot be a path, the file is published at the odd path.
    pub(crate) fn stage(self: &Arc<Self>, bucket: &Bucket, key: &Key, mode: Mode) -> Result<StagedFile> {
        if let Some(place) = plain(bucket, key) {
            let staged = StagedFile::with_mode(self, bucket, place, true, mode);
            if !staged.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoSuchKey) {
                return staged;
            }
        }
        check_odd_path(&self.volume, bucket, key)?;
        StagedFile::with_mode(self, bucket, odd(bucket, key), false, mode)
    }

    /// Stores an object's record with the open `file`, whose metadata is `stat`. If the file system has no extended
    /// attributes, replaces a `fast` ETag with the ETag derived from the file itself.
    pub(crate) fn store_record(
        self: &Arc<Self>,
        bucket: &Bucket,
        file: impl AsFd,
        stat: &FileStat,
        (record, policy): (&mut ObjectRecord, ETagPolicy),
    ) -> Result<()> {
        let packed = record.encode();
        let stored = match packed.len() <= ATTRIBUTE_BYTES {
            true => set_xattr(&file, ATTRIBUTE, &packed),
            false => Err(Errno::TOOBIG),
        };
        match stored {
            Ok(()) => be_bare_no_more(&file, stat),
            Err(Errno::OPNOTSUPP) => {
                if policy == ETagPolicy::Fast && record.parts.is_empty() {
                    record.etag = Some(etag_of_file(stat));
                }
                match record.says_no_more_than(stat) {
                    true => {
                        // Removes a sidecar file that is left over from an earlier record, or from another file that
                        // had this inode number.
                        let contents = self.volume.contents(bucket)?;
                        let volume = &self.volume;
                        if contents.has_meta && volume.remove_sidecar_of(bucket, stat, contents.device) {
                            // The removed record must not be back after a power cut.
                            let synced =
                                volume.open_dir(&meta_dir(bucket)).and_then(|dir| volume.sync_names(dir));
                            synced.map_err(|errno| from_errno(errno, "removing the metadata"))?;
                        }
                        Ok(())
                    }
                    false => {
                        self.write_sidecar(bucket, stat, &record.sealed_for(stat))?;
                        be_bare_no_more(&file, stat)
                    }
                }
            }
            Err(errno) if is_no_room(errno, &file) => {
                // The record is sealed even if it does not depend on the content, because a later file may get this
                // inode number.
                let sealed = record.sealed_for(stat);
                self.write_sidecar(bucket, stat, &sealed)?;
                match set_xattr(&file, ATTRIBUTE, &sealed.kept_short().encode()) {
                    Ok(()) | Err(Errno::OPNOTSUPP) => be_bare_no_more(&file, stat),
                    Err(errno) => Err(from_errno(errno, "storing the metadata")),
                }
            }
            Err(errno) => Err(from_errno(errno, "storing the metadata")),
        }
    }

    /// Writes `sealed`, the whole record of the file whose metadata is `stat`, to the file's sidecar file. Errors: as
    /// for a write; `NotImplemented` if the file is not on the device of the bucket's private area.
    pub(crate) fn write_sidecar(
        self: &Arc<Self>,
        bucket: &Bucket,
        stat: &FileStat,
        sealed: &ObjectRecord,
    ) -> Result<()> {
        let mut staged = StagedFile::at(self, bucket, place_of(bucket, stat))?;
        staged.require_device(stat.device)?;
        staged.write(&sealed.encode())?;
        staged.publish_private()
    }

    pub(crate) fn copy(
        self: &Arc<Self>,
        from: (&Bucket, &Key),
        bucket: &Bucket,
        key: &Key,
        options: &CopyOptions,
    ) -> Result<PutResult> {
        options.check_target(from, (bucket, key))?;
        let source = self.open_settled(from.0, from.1, options.source_version.as_ref());
        let mut source = source.map_err(of_source("copy", from))?;
        self.check_not_itself(from, (bucket, key), &source.stat)?;
        if options.metadata.is_none() || options.tags.is_none() {
            self.volume.require_whole(from.0, &mut source).map_err(of_source("copy", from))?;
        }
        let (stat, record) = (&source.stat, source.record());
        // The source's metadata was checked when it was stored, unless another program has written the record.
        let metadata = options.metadata.clone().unwrap_or_else(|| valid_metadata(&record.metadata));
        let tags = options.tags.clone().unwrap_or_else(|| record.tags.clone());
        options.metadata.as_ref().map_or(Ok(()), check_metadata)?;
        check_tags(&tags)?;
        check_lockable(&self.volume, bucket, options.lock)?;
        // If the source has no stored ETag, the copy stores the ETag derived from the source file, because the copy has
        // a different inode number.
        let etag = record.etag.clone().unwrap_or_else(|| etag_of_file(stat));
        let mut copied = ObjectRecord {
            etag: Some(etag),
            checksum: record.checksum.clone(),
            parts: record.parts.clone(),
            metadata,
            tags,
            lock: options.lock,
            ..Default::default()
        };
        let (size, before) = (stat.size, *stat);
        let (file, info) = source.into_info();
        options.source_conditions.check_copy_source(&info)?;
        let mut staged = self.stage(bucket, key, FILE_MODE)?;
        staged.require_mount_for(size)?;
        staged.event = EventKind::Copy;
        match options.new_checksum(copied.checksum.as_ref()) {
            None => append_range(&mut staged, &file, 0, size)?,
            Some(algorithm) => {
                copied.checksum = append_with_checksum(&mut staged, &file, size, algorithm)?;
                copied.parts.iter_mut().for_each(|part| part.checksum = None);
            }
        }
        // An object that is a directory has no content that could change.
        if before.is_file {
            self.volume.require_unchanged(&file, (before.size, system_time(before.modified_ns)))?;
        }
        staged.publish(key, copied, &options.conditions)
    }

    /// Checks that a copy does not replace its own source, whose metadata is `stat`, under another key. Errors:
    /// `InvalidArgument`. Cost: one `newfstatat`.
    fn check_not_itself(&self, from: (&Bucket, &Key), to: (&Bucket, &Key), stat: &FileStat) -> Result<()> {
        let (Some(source), Some(target)) = (plain(from.0, from.1), plain(to.0, to.1)) else { return Ok(()) };
        let dir = self.volume.dirs.open(&self.volume.root, &target.dir);
        let found = dir.and_then(|dir| stat_in(&dir, &target.name));
        let is_source = |found: FileStat| (found.device, found.inode) == (stat.device, stat.inode);
        match from != to && found.is_ok_and(is_source) {
            true => self.volume.check_two_entries(&source, &target),
            false => Ok(()),
        }
    }

    pub(crate) fn tags(&self, bucket: &Bucket, key: &Key, version: Option<&VersionId>) -> Result<Tags> {
        Ok(self.open_settled(bucket, key, version)?.record().tags.clone())
    }

    /// Sets the tags under the key's lock, so that the record is never a mixture of two concurrent writers' changes.
    /// Setting an attribute changes neither size nor modification time, so the seal remains valid.
    pub(crate) fn set_tags(
        self: &Arc<Self>,
        bucket: &Bucket,
        key: &Key,
        version: Option<&VersionId>,
        tags: &Tags,
    ) -> Result<()> {
        check_tags(tags)?;
        let kind = if tags.is_empty() { EventKind::DeleteTags } else { EventKind::PutTags };
        let pending = self.locked(bucket, key, |contents| {
            let pending = ChangeRecorder::of(self, bucket, contents).prepare(key, kind)?;
            let protection = VersionProtection { volume: &self.volume, bucket, contents };
            let mut opened = protection.open_to_change(key, version)?;
            let lock = protection.lock_of(&opened);
            let record = opened.recorded.get_or_insert_default();
            let _unshielded = unshield(&opened.file, lock)?;
            record.tags = tags.clone();
            // The object must keep the ETag that clients have already received.
            let tag_is_kept = (&mut **record, ETagPolicy::Md5);
            self.store_record(bucket, &opened.file, &opened.stat, tag_is_kept)?;
            self.volume.sync_record(&opened.file)?;
            shield(&self.volume.config, &opened.file, lock)?;
            Ok(pending.map(|pending| {
                let version = version.cloned().or_else(|| opened.recorded.as_ref()?.version.clone());
                (pending, EventFacts { size: None, etag: Some(opened.etag()), version })
            }))
        })?;
        pending.map_or(Ok(()), |(pending, facts)| pending.record(facts))
    }
}

/// Adds the source of a copy to an error that occurred while the source was read. Otherwise, the error would name the
/// copy's target.
pub(crate) fn of_source<'e>(
    operation: &'static str,
    (bucket, key): (&'e Bucket, &'e Key),
) -> impl FnOnce(Error) -> Error + 'e {
    move |error| error.during(operation, crate::store::LANE, bucket.as_str(), key.as_str())
}

/// Returns whether the options contain no metadata, no tags and no lock.
fn says_nothing(options: &PutOptions) -> bool {
    options.metadata.is_empty() && options.tags.is_empty() && options.lock.is_none()
}

impl ObjectWriter {
    pub(crate) fn append(&mut self, data: &[u8]) -> Result<()> {
        self.hasher.update(data);
        self.staged.write(data)
    }

    /// Returns the object's record. Must be called after all content has arrived. Errors: `BadDigest`,
    /// `IncompleteBody`.
    fn digest(&mut self, expected: &ExpectedContent) -> Result<ObjectRecord> {
        let idle = ContentHasher::new(ETagPolicy::Fast, false, None);
        let found = std::mem::replace(&mut self.hasher, idle).finish(expected)?;
        let (metadata, tags) = (std::mem::take(&mut self.metadata), std::mem::take(&mut self.tags));
        let (etag, checksum, lock) = (found.etag, found.checksum, self.lock);
        Ok(ObjectRecord { etag, checksum, metadata, tags, lock, ..Default::default() })
    }

    /// Publishes the object. May be called again after the error `LockTimeout`.
    fn finish(&mut self, expected: &ExpectedContent) -> Result<PutResult> {
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

    fn is_unnamed(&self) -> bool {
        self.staged.hidden.is_none()
    }

    fn retarget(&mut self, key: &Key) -> bool {
        let is_fit = plain(&self.bucket, key).is_some_and(|place| self.staged.retarget(place));
        if is_fit {
            self.key = key.clone();
        }
        is_fit
    }

    fn note_form(&mut self) {
        self.staged.event = EventKind::Post;
    }

    fn commit(mut self: Box<Self>, expected: &ExpectedContent) -> Result<PutResult> {
        self.finish(expected)
    }

    fn try_commit(mut self: Box<Self>, expected: &ExpectedContent) -> Result<PutResult, CommitFailure> {
        self.finish(expected).map_err(|error| match error.kind() {
            ErrorKind::LockTimeout => CommitFailure::Locked(self, error),
            _ => CommitFailure::Failed(error),
        })
    }
}

/// Checks new metadata. Errors: `InvalidArgument` for metadata that does not fit into an attribute, or that HTTP cannot
/// transfer.
pub(crate) fn check_metadata(metadata: &BoxedMetadata) -> Result<()> {
    if metadata.is_empty() {
        return Ok(());
    }
    check_sendable(metadata)?;
    let record = ObjectRecord { metadata: metadata.clone(), ..Default::default() };
    let bytes = record.encode().len();
    match bytes <= MAX_METADATA_BYTES && ObjectRecord::decode(&record.encode()) == Some(record) {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "the metadata takes {bytes} bytes or has a name of over 255; {MAX_METADATA_BYTES} are allowed"
            ),
        )),
    }
}

/// Returns the metadata of a copy's source without the fields that a put would refuse. Otherwise, no gateway could
/// serve the copy. If the rest is still too long, returns no metadata.
fn valid_metadata(metadata: &BoxedMetadata) -> BoxedMetadata {
    if check_metadata(metadata).is_ok() {
        return metadata.clone();
    }
    let valid = |value: &Option<String>| value.clone().filter(|value| !value.bytes().any(is_control));
    let kept = Metadata {
        content_type: valid(&metadata.content_type),
        content_encoding: valid(&metadata.content_encoding),
        content_language: valid(&metadata.content_language),
        content_disposition: valid(&metadata.content_disposition),
        cache_control: valid(&metadata.cache_control),
        expires: valid(&metadata.expires),
        user: metadata.user.iter().filter(|(name, _)| is_header_name(name)).map(owned_pair).collect(),
    };
    let kept = BoxedMetadata::from(kept);
    if check_metadata(&kept).is_ok() { kept } else { BoxedMetadata::EMPTY }
}

fn owned_pair((name, value): (&String, &String)) -> (String, String) {
    (name.clone(), value.clone())
}

/// Returns whether a name is valid in an HTTP header.
fn is_header_name(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token)
}

/// Returns whether a byte is invalid in the value of an HTTP header.
fn is_control(byte: u8) -> bool {
    byte.is_ascii_control() && byte != b'\t'
}

/// Checks that a gateway can send the metadata in HTTP headers. Without this check, a gateway might be unable to serve
/// the object. Values of user metadata may contain any characters, because they are encoded if necessary.
fn check_sendable(metadata: &Metadata) -> Result<()> {
    if let Some(name) = metadata.user.keys().find(|name| !is_header_name(name)) {
        let why =
            format!("the metadata name {name:?} is invalid in a header; use letters, digits and hyphens");
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let standard = [
        ("content type", &metadata.content_type),
        ("content encoding", &metadata.content_encoding),
        ("content language", &metadata.content_language),
        ("content disposition", &metadata.content_disposition),
        ("cache control", &metadata.cache_control),
        ("expiry date", &metadata.expires),
    ];
    for (name, value) in standard {
        if let Some(value) = value.as_deref().filter(|value| value.bytes().any(is_control)) {
            let why = format!("the {name} {value:?} has a control character, which is invalid in a header");
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
    }
    Ok(())
}

/// The number of bytes copied at a time when the kernel cannot copy between the two files.
const BOUNCE_BYTES: usize = 256 * 1024;

/// Appends the first `size` bytes of `file`, and computes their checksum. Errors: as for [`append_range`].
fn append_with_checksum(
    staged: &mut StagedFile,
    file: &File,
    size: u64,
    algorithm: ChecksumAlgorithm,
) -> Result<Option<Checksum>> {
    let mut hasher = ContentHasher::new(ETagPolicy::Fast, false, Some(algorithm));
    for_each_extent(staged, file, 0..size, |staged, extent| match extent {
        FileExtent::Data { offset, bytes } => for_each_piece(file, offset, bytes, |piece| {
            hasher.update(piece);
            staged.write(piece)
        }),
        FileExtent::Hole { bytes } => {
            hash_zeros(&mut hasher, bytes);
            staged.append_hole(bytes)
        }
    })?;
    Ok(hasher.finish(&ExpectedContent::default())?.checksum)
}

/// Updates the checksum with `left` zero bytes.
fn hash_zeros(hasher: &mut ContentHasher, mut left: u64) {
    let zeros = vec![0; left.min(BOUNCE_BYTES as u64) as usize];
    while left > 0 {
        let bytes = left.min(zeros.len() as u64);
        hasher.update(&zeros[..bytes as usize]);
        left -= bytes;
    }
}

/// A part of a file: data or a hole.
enum FileExtent {
    Data { offset: u64, bytes: u64 },
    Hole { bytes: u64 },
}

/// The minimum size, in bytes, of a file in which it is worth looking for holes.
const SPARSE_BYTES_MIN: u64 = 64 * 1024;

/// Calls `consume` for the parts of `file` in `range`, in order. On a file system that other nodes may change, all
/// parts count as data, because this node may have a stale state of the file.
fn for_each_extent(
    staged: &mut StagedFile,
    file: &File,
    range: Range<u64>,
    mut consume: impl FnMut(&mut StagedFile, FileExtent) -> Result<()>,
) -> Result<()> {
    let mut at = range.start;
    let may_have_holes =
        range.end - at >= SPARSE_BYTES_MIN && staged.is_settled_on_this_node(file, range.end);
    while at < range.end {
        let data = match may_have_holes.then(|| next_data(file, at)) {
            Some(Ok(None)) => range.end..range.end,
            Some(Ok(Some(data))) if data.end > at => data.start.min(range.end)..data.end.min(range.end),
            // The file system does not support searching for holes.
            _ => at..range.end,
        };
        if data.start > at {
            consume(staged, FileExtent::Hole { bytes: data.start - at })?;
        }
        if !data.is_empty() {
            consume(staged, FileExtent::Data { offset: data.start, bytes: data.end - data.start })?;
        }
        at = data.end;
    }
    Ok(())
}

/// Appends `len` bytes of `file` from `offset` to `staged`, and keeps holes. Errors: as for a write; `IncompleteBody`
/// if the file has become shorter.
pub(crate) fn append_range(staged: &mut StagedFile, file: &File, offset: u64, len: u64) -> Result<()> {
    for_each_extent(staged, file, offset..offset + len, |staged, extent| match extent {
        FileExtent::Data { offset, bytes } => append_data(staged, file, offset, bytes),
        FileExtent::Hole { bytes } => staged.append_hole(bytes),
    })
}

fn append_data(staged: &mut StagedFile, file: &File, offset: u64, len: u64) -> Result<()> {
    let copied = match copy_range(file, offset, staged.file(), staged.written(), len) {
        Ok(copied) => copied,
        Err(errno) if needs_plain_copy(errno) => 0,
        Err(errno) => return Err(staged.failed_write(errno, len as usize)),
    };
    staged.advance(copied);
    for_each_piece(file, offset + copied, len - copied, |piece| staged.write(piece))
}

/// Returns whether the error means that the kernel cannot copy between these two files.
pub(crate) fn needs_plain_copy(errno: Errno) -> bool {
    matches!(errno, Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL)
}

/// Reads `left` bytes of `file` from `offset`, piece by piece. Errors: `IncompleteBody` if the file has become shorter,
/// and errors from `consume`.
pub(crate) fn for_each_piece(
    file: &File,
    mut offset: u64,
    mut left: u64,
    mut consume: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut buffer = Vec::new();
    while left > 0 {
        buffer.clear();
        let wanted = left.min(BOUNCE_BYTES as u64) as usize;
        let got = fordway_sys::read_into_spare(file, &mut buffer, offset, wanted)
            .map_err(|errno| from_errno(errno, "reading the source"))?;
        if got == 0 {
            return Err(Error::new(
                ErrorKind::IncompleteBody,
                "the source was truncated while it was copied",
            ));
        }
        consume(&buffer)?;
        offset += got as u64;
        left -= got as u64;
    }
    Ok(())
}
