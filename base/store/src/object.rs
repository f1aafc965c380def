//! Objects, their metadata, and the options for reading and writing them.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use crate::{
    ByteRange, Checksum, ChecksumAlgorithm, ChecksumAlgorithmAndType, ChecksumType, Conditions, ETag,
    ETagPolicy, Error, ErrorKind, ObjectLock, Result, Tags, VersionId, check_tags, receive_exact,
};

/// The number of bytes per step when content is streamed: large enough to hide the cost of a call, and small enough to
/// stay in the L2 cache.
const CHUNK_BYTES: usize = 256 * 1024;

/// The name and the creation time of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketInfo {
    /// The name of the bucket.
    pub name: crate::Bucket,
    /// The time at which the bucket was created; 1970-01-01 if the time is unknown.
    pub created: SystemTime,
}

impl ObjectPart {
    /// Converts the parts of an upload to parts of the completed object.
    pub fn of(chosen: &[&crate::PartInfo]) -> Vec<Self> {
        let part = |(number, part): (u16, &&crate::PartInfo)| ObjectPart {
            number,
            size: part.size,
            checksum: part.checksum.clone(),
        };
        (1..).zip(chosen).map(part).collect()
    }

    /// Returns the byte range of part `number` in an object of `size` bytes; an object that was put as a whole has a
    /// single part, number 1.
    fn range(parts: &[ObjectPart], number: u16, size: u64) -> Result<std::ops::Range<u64>> {
        if parts.is_empty() && number == 1 {
            return Ok(0..size);
        }
        let before = usize::from(number).checked_sub(1).filter(|before| *before < parts.len());
        let before = before.ok_or_else(|| {
            Error::new(ErrorKind::InvalidPart, format!("it has {} parts, and no part {number}", parts.len()))
        })?;
        let start: u64 = parts[..before].iter().map(|part| part.size).sum();
        Ok(start..start + parts[before].size)
    }
}

/// The properties that a writer may specify for an object in addition to its content. An empty string is stored as an
/// empty string, not as `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// `Content-Type`; S3 returns `binary/octet-stream` if the writer specified no type.
    pub content_type: Option<String>,
    /// `Content-Encoding`.
    pub content_encoding: Option<String>,
    /// `Content-Language`.
    pub content_language: Option<String>,
    /// `Content-Disposition`.
    pub content_disposition: Option<String>,
    /// `Cache-Control`.
    pub cache_control: Option<String>,
    /// `Expires`, as the client wrote it.
    pub expires: Option<String>,
    /// `x-amz-meta-*`, without that prefix, in lower case.
    pub user: BTreeMap<String, String>,
}

/// The metadata to which an empty [`BoxedMetadata`] dereferences.
static NOTHING_SAID: Metadata = Metadata {
    content_type: None,
    content_encoding: None,
    content_language: None,
    content_disposition: None,
    cache_control: None,
    expires: None,
    user: BTreeMap::new(),
};

/// The form in which requests and objects store [`Metadata`]. Metadata is usually empty. This value is then a single
/// word without an allocation, so moving and dropping it costs almost nothing.
#[derive(Clone, Default)]
pub struct BoxedMetadata(Option<Box<Metadata>>);

impl BoxedMetadata {
    /// Empty metadata, without an allocation.
    pub const EMPTY: BoxedMetadata = BoxedMetadata(None);

    /// Returns whether the metadata is empty; a store need not store empty metadata.
    pub fn is_empty(&self) -> bool {
        self.0.as_deref().is_none_or(|said| *said == NOTHING_SAID)
    }

    /// Returns the metadata as a plain [`Metadata`].
    pub fn into_inner(self) -> Metadata {
        self.0.map(|said| *said).unwrap_or_default()
    }
}

impl PartialEq for BoxedMetadata {
    fn eq(&self, other: &Self) -> bool {
        let is_nothing = self.0.is_none() && other.0.is_none();
        is_nothing || **self == **other
    }
}

impl Eq for BoxedMetadata {}

impl From<Metadata> for BoxedMetadata {
    fn from(said: Metadata) -> Self {
        BoxedMetadata((said != NOTHING_SAID).then(|| Box::new(said)))
    }
}

impl std::ops::Deref for BoxedMetadata {
    type Target = Metadata;

    fn deref(&self) -> &Metadata {
        self.0.as_deref().unwrap_or(&NOTHING_SAID)
    }
}

impl std::ops::DerefMut for BoxedMetadata {
    fn deref_mut(&mut self) -> &mut Metadata {
        self.0.get_or_insert_default()
    }
}

impl std::fmt::Debug for BoxedMetadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

/// Everything that is known about an object without reading its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// The size of the whole object in bytes.
    pub size: u64,
    /// The time at which the object was last written.
    pub modified: SystemTime,
    /// The entity tag.
    pub etag: ETag,
    /// The metadata that the writer specified.
    pub metadata: BoxedMetadata,
    /// The checksum that was verified when the object was written.
    pub checksum: Option<Checksum>,
    /// The version ID; `None` for the version `null`, which was written while the bucket kept no versions.
    pub version: Option<VersionId>,
    /// The number of the object's tags.
    pub tag_count: usize,
    /// The number of parts that the object was completed from; `None` if it was put as a whole.
    pub part_count: Option<u16>,
    /// The lock of this version.
    pub lock: ObjectLock,
}

impl ObjectInfo {
    /// Returns the description of an object without metadata, modified at the epoch.
    pub fn new(size: u64, etag: ETag) -> Self {
        ObjectInfo {
            size,
            etag,
            modified: UNIX_EPOCH,
            metadata: BoxedMetadata::EMPTY,
            checksum: None,
            version: None,
            tag_count: 0,
            part_count: None,
            lock: ObjectLock::NONE,
        }
    }
}

/// A part that an object was completed from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectPart {
    /// The part number: 1 for the first part, regardless of the number it was uploaded with.
    pub number: u16,
    /// The size in bytes.
    pub size: u64,
    /// The checksum of the part, if the upload had one.
    pub checksum: Option<Checksum>,
}

/// Options for `put` and for starting a multipart upload.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PutOptions {
    /// The metadata to store with the object.
    pub metadata: BoxedMetadata,
    /// The tags of the object.
    pub tags: Tags,
    /// Conditions that must hold at the moment of publishing.
    pub conditions: Conditions,
    /// The ETag policy; `None` uses the store's own policy.
    pub etag_policy: Option<ETagPolicy>,
    /// Computes an MD5 to check against [`crate::ExpectedContent::md5`], regardless of the ETag policy.
    pub check_md5: bool,
    /// Computes and stores this checksum; an upload gets one for each part and one for the object.
    pub checksum: Option<ChecksumAlgorithm>,
    /// The checksum type of an object that is uploaded in parts; `None` uses the algorithm's
    /// [default](ChecksumType::default_of).
    pub checksum_type: Option<ChecksumType>,
    /// The length of the content, if it is known. A lane uses the length to choose the best way to send the content.
    pub size_hint: Option<u64>,
    /// The lock of the new version. Errors: `InvalidArgument` in a bucket without object lock.
    pub lock: ObjectLock,
}

impl PutOptions {
    /// Returns the algorithm and type of the checksum of an upload that is started with these options.
    pub fn checksum_plan(&self) -> Option<ChecksumAlgorithmAndType> {
        let algorithm = self.checksum?;
        let kind = self.checksum_type.unwrap_or(ChecksumType::default_of(algorithm));
        Some(ChecksumAlgorithmAndType { algorithm, kind })
    }

    /// Checks the options of an upload against S3's rules. Errors: `InvalidTag` for invalid tags; `InvalidArgument` for
    /// a checksum type that the algorithm does not support, or for a checksum type without an algorithm.
    pub fn check_upload(&self) -> Result<()> {
        check_tags(&self.tags)?;
        match (self.checksum_type, self.checksum) {
            (Some(kind), Some(algorithm)) => kind.check(algorithm),
            (Some(_), None) => {
                Err(Error::new(ErrorKind::InvalidArgument, "a checksum type needs a checksum algorithm"))
            }
            (None, _) => Ok(()),
        }
    }
}

/// Options of one part of a multipart upload.
#[derive(Clone, Debug, Default)]
pub struct PartOptions {
    /// Computes an MD5 to check against [`crate::ExpectedContent::md5`], regardless of the ETag policy.
    pub check_md5: bool,
    /// Computes this checksum, to check against [`crate::ExpectedContent::checksum`]; `None` uses the upload's
    /// algorithm. Errors: `InvalidArgument` if the upload uses another algorithm.
    pub checksum: Option<ChecksumAlgorithm>,
    /// The length of the part, if it is known.
    pub size_hint: Option<u64>,
}

impl PartOptions {
    /// Returns the checksum algorithm for this part in an upload that uses `whole`. Errors: `InvalidArgument` if the
    /// two algorithms differ.
    pub fn checksum_within(&self, whole: Option<ChecksumAlgorithm>) -> Result<Option<ChecksumAlgorithm>> {
        match (self.checksum, whole) {
            (Some(part), Some(whole)) if part != whole => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "Checksum Type mismatch occurred, expected checksum Type: {}, actual checksum Type: {}",
                    whole.name(),
                    part.name()
                ),
            )),
            (part, whole) => Ok(part.or(whole)),
        }
    }
}

/// The result of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutResult {
    /// The ETag of the new object or part.
    pub etag: ETag,
    /// The time at which the object or part was published.
    pub modified: SystemTime,
    /// The requested checksum.
    pub checksum: Option<Checksum>,
    /// The new version; `None` for a part, and in a bucket that never kept versions.
    pub version: Option<VersionId>,
}

/// Options of `get`, `read` and `head`.
#[derive(Clone, Debug, Default)]
pub struct GetOptions {
    /// The requested bytes; `None` for all.
    pub range: Option<ByteRange>,
    /// The number of the requested part (1 for the first), instead of a range. An object that was not completed from
    /// parts has a single part, number 1.
    pub part: Option<u16>,
    /// The requested version; `None` for the latest.
    pub version: Option<VersionId>,
    /// Conditions that the object must meet.
    pub conditions: Conditions,
}

impl GetOptions {
    /// Returns options with only a version.
    pub fn version(version: VersionId) -> Self {
        GetOptions { version: Some(version), ..Default::default() }
    }

    /// Returns the byte range requested from an object of `size` bytes that was completed from `parts`. Errors:
    /// `InvalidRange` or `InvalidPart` if the object lacks the range or the part; `InvalidArgument` if both a range and
    /// a part are requested.
    pub fn wanted(&self, size: u64, parts: &[ObjectPart]) -> Result<std::ops::Range<u64>> {
        match (self.range, self.part) {
            (None, None) => Ok(0..size),
            (Some(range), None) => range.resolve(size),
            (None, Some(number)) => ObjectPart::range(parts, number, size),
            (Some(_), Some(_)) => {
                Err(Error::new(ErrorKind::InvalidArgument, "a range and a part cannot both be requested"))
            }
        }
    }

    /// Returns options with only a range.
    pub fn range(range: ByteRange) -> Self {
        GetOptions { range: Some(range), ..Default::default() }
    }
}

/// Options of `delete`.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    /// Conditions that must hold (`if_match` only).
    pub conditions: Conditions,
    /// The version to remove permanently. `None` deletes the latest version, which a versioned bucket keeps as an old
    /// version.
    pub version: Option<VersionId>,
    /// Deletes the version even if its retention in governance mode has not ended. Only users who may change the
    /// bucket's settings may set this option. A bucket without object lock ignores this option.
    pub bypass_governance: bool,
}

/// Options of `rename`.
#[derive(Clone, Debug, Default)]
pub struct RenameOptions {
    /// Conditions on the object that is renamed.
    pub source_conditions: Conditions,
    /// Conditions on the object that is replaced.
    pub conditions: Conditions,
}

impl RenameOptions {
    /// Checks the keys of a rename. Errors: `InvalidArgument` if the two keys are equal.
    pub fn check(&self, from: &crate::Key, to: &crate::Key) -> Result<()> {
        match from == to {
            true => Err(Error::new(
                ErrorKind::InvalidArgument,
                "the new key of a rename must differ from the old one",
            )),
            false => Ok(()),
        }
    }

    /// Returns the error `NotImplemented` for a rename in a bucket that keeps versions.
    pub fn keeps_versions() -> Error {
        let why = "an object cannot be renamed in a bucket that keeps versions, because old versions belong to their \
                   key; copy the object, then delete it";
        Error::new(ErrorKind::NotImplemented, why)
    }
}

/// Options of `copy`.
#[derive(Clone, Debug, Default)]
pub struct CopyOptions {
    /// `Some` replaces the source's metadata, `None` keeps it.
    pub metadata: Option<BoxedMetadata>,
    /// `Some` replaces the source's tags, `None` keeps them.
    pub tags: Option<Tags>,
    /// The version of the source to copy; `None` is the latest.
    pub source_version: Option<VersionId>,
    /// Conditions on the source.
    pub source_conditions: Conditions,
    /// Conditions on the destination.
    pub conditions: Conditions,
    /// The algorithm of the checksum to compute from the copy's content; `None` keeps the source's checksum.
    pub checksum: Option<ChecksumAlgorithm>,
    /// The lock of the copy. The source's lock is not copied.
    pub lock: ObjectLock,
}

impl CopyOptions {
    /// Returns the algorithm of the checksum that a copy must compute. Returns `None` if no algorithm is requested, or
    /// if the source has a checksum of its whole content with this algorithm.
    pub fn new_checksum(&self, source: Option<&Checksum>) -> Option<ChecksumAlgorithm> {
        let has = |algorithm: &ChecksumAlgorithm| {
            source.is_some_and(|sum| sum.algorithm == *algorithm && sum.parts.is_none())
        };
        self.checksum.filter(|algorithm| !has(algorithm))
    }

    /// Checks the destination of a copy. Errors: `InvalidArgument` if a copy of the latest version onto itself would
    /// change nothing.
    pub fn check_target(
        &self,
        from: (&crate::Bucket, &crate::Key),
        to: (&crate::Bucket, &crate::Key),
    ) -> Result<()> {
        let changes = self.metadata.is_some()
            || self.tags.is_some()
            || self.source_version.is_some()
            || self.checksum.is_some();
        match from == to && !changes {
            true => Err(Error::new(
                ErrorKind::InvalidArgument,
                "a copy onto itself must change the metadata or the tags",
            )),
            false => Ok(()),
        }
    }
}

/// An object that was opened for reading.
#[derive(Debug)]
pub struct OpenObject {
    /// Information on the whole object.
    pub info: ObjectInfo,
    /// The range of the object that `content` contains.
    pub range: std::ops::Range<u64>,
    /// The bytes of the range.
    pub content: ObjectContent,
}

/// The content, in a form that the lane can provide without copying it.
pub enum ObjectContent {
    /// In memory.
    Bytes(Bytes),
    /// In a file that the caller may read, map, send, or pass to another process.
    File(FileRegion),
    /// Not received yet; the value is the number of bytes that are still to arrive.
    Stream(Box<dyn Read + Send>, u64),
}

/// Bytes `offset .. offset + len` of an open file, which is owned or borrowed.
#[derive(Clone, Debug)]
pub struct FileRegion<F = File> {
    /// The file, opened read-only. The open file keeps the content of this version, even if another version is
    /// published later.
    pub file: F,
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub len: u64,
}

impl ObjectContent {
    /// Returns the number of bytes in the content.
    pub fn len(&self) -> u64 {
        match self {
            ObjectContent::Bytes(bytes) => bytes.len() as u64,
            ObjectContent::File(region) => region.len,
            ObjectContent::Stream(_, len) => *len,
        }
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads all the content into `buffer`, which is cleared first.
    /// Errors: `IncompleteBody` if the source ends early; `Io`.
    pub fn read_to(self, buffer: &mut Vec<u8>) -> Result<()> {
        buffer.clear();
        let len = usize::try_from(self.len()).map_err(|_| Error::from(ErrorKind::EntityTooLarge))?;
        match self {
            ObjectContent::Bytes(bytes) => buffer.extend_from_slice(&bytes),
            ObjectContent::File(FileRegion { file, mut offset, .. }) => {
                receive_exact(buffer, len, |piece| {
                    file.read_exact_at(piece, offset).map_err(|e| content_error(e, len as u64))?;
                    offset += piece.len() as u64;
                    Ok(())
                })?;
            }
            ObjectContent::Stream(mut reader, _) => {
                receive_exact(buffer, len, |piece| {
                    reader.read_exact(piece).map_err(|e| content_error(e, len as u64))
                })?;
            }
        }
        Ok(())
    }

    /// Returns all the content as one vector.
    pub fn into_vec(self) -> Result<Vec<u8>> {
        let mut buffer = Vec::new();
        self.read_to(&mut buffer)?;
        Ok(buffer)
    }

    /// Passes all the content to `consume`, at most 256 KiB at a time and with bounded memory.
    /// Errors: `IncompleteBody` if the source ends early; `Io`; errors of `consume`.
    pub fn for_each_chunk(self, mut consume: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let total = self.len();
        if let ObjectContent::Bytes(bytes) = self {
            return bytes.chunks(CHUNK_BYTES).try_for_each(consume);
        }
        let mut reader = self.into_reader();
        let mut buffer = vec![0; CHUNK_BYTES.min(total.max(1) as usize)];
        let mut left = total;
        while left > 0 {
            let wanted = buffer.len().min(left as usize);
            let got = match reader.read(&mut buffer[..wanted]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read.map_err(|error| content_error(error, left))?,
            };
            if got == 0 {
                return Err(content_error(io::ErrorKind::UnexpectedEof.into(), left));
            }
            consume(&buffer[..got])?;
            left -= got as u64;
        }
        Ok(())
    }

    /// Returns the content as a reader that ends after [`ObjectContent::len`] bytes.
    pub fn into_reader(self) -> Box<dyn Read + Send> {
        match self {
            ObjectContent::Bytes(bytes) => Box::new(io::Cursor::new(bytes)),
            ObjectContent::File(region) => Box::new(region),
            ObjectContent::Stream(reader, len) => Box::new(reader.take(len)),
        }
    }
}

impl<F: Borrow<File>> Read for FileRegion<F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(self.len).unwrap_or(usize::MAX));
        let got = self.file.borrow().read_at(&mut buffer[..wanted], self.offset)?;
        self.offset += got as u64;
        self.len -= got as u64;
        Ok(got)
    }
}

impl std::fmt::Debug for ObjectContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let form = match self {
            ObjectContent::Bytes(_) => "Bytes",
            ObjectContent::File(_) => "File",
            ObjectContent::Stream(..) => "Stream",
        };
        write!(f, "{form}({} bytes)", self.len())
    }
}

/// Returns the error for a failed read of content; up to `left` bytes were still missing. If a lane wrapped an
/// [`Error`] in the `io::Error`, returns a copy of the wrapped error. Otherwise, the kind is `IncompleteBody` for a
/// premature end, `Timeout` for a time limit, and `Io` for other failures.
pub fn content_error(error: io::Error, left: u64) -> Error {
    if let Some(inner) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        return inner.repeated();
    }
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Error::new(
            ErrorKind::IncompleteBody,
            format!("the content ended early: up to {left} bytes are missing"),
        ),
        // A socket with a time limit fails with EAGAIN.
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            Error::new(ErrorKind::Timeout, "the content stopped arriving")
        }
        _ => Error::new(ErrorKind::Io, "reading the content").caused_by(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_give_the_same_bytes() {
        let data: Vec<u8> = (0..600_000u32).map(|i| i as u8).collect();
        let bytes = || ObjectContent::Bytes(Bytes::from(data.clone()));
        let stream = || ObjectContent::Stream(Box::new(io::Cursor::new(data.clone())), data.len() as u64);
        for content in [bytes(), stream()] {
            assert_eq!(content.into_vec().unwrap(), data);
        }
        for content in [bytes(), stream()] {
            let mut seen = Vec::new();
            let collect = |chunk: &[u8]| {
                assert!(chunk.len() <= CHUNK_BYTES);
                seen.extend_from_slice(chunk);
                Ok(())
            };
            content.for_each_chunk(collect).unwrap();
            assert_eq!(seen, data);
        }
    }

    #[test]
    fn content_that_stops_arriving_is_a_timeout() {
        for kind in [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut] {
            let error = content_error(kind.into(), 1);
            assert_eq!((error.kind(), error.detail()), (ErrorKind::Timeout, "the content stopped arriving"));
        }
    }

    #[test]
    fn an_early_end_is_an_error() {
        let short = || ObjectContent::Stream(Box::new(io::Cursor::new(vec![1, 2, 3])), 4);
        assert_eq!(short().into_vec().unwrap_err().kind(), ErrorKind::IncompleteBody);
        assert_eq!(short().for_each_chunk(|_| Ok(())).unwrap_err().kind(), ErrorKind::IncompleteBody);
    }
}
