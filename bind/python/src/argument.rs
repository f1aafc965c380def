//! Converts Python's arguments to the store's types.

use std::collections::BTreeMap;

use fordway_store::{
    BoxedMetadata, Bucket, ByteRange, ChecksumAlgorithm, Conditions, ETag, ETagMatch, Error, ErrorKind,
    FileRegion, GetOptions, Key, MAX_PARTS, Metadata, ObjectContent, OpenObject, PutOptions, Result, Tags,
    VersionId, checked_part_number,
};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::interpreter::to_python;

/// A non-negative number of bytes: a position in an object, or a length. Errors: `InvalidArgument` for a number that is
/// negative or exceeds 64 bits; `TypeError` for anything that is not an integer.
#[derive(Clone, Copy)]
pub(crate) struct ByteCount(pub(crate) u64);

impl<'py> FromPyObject<'_, 'py> for ByteCount {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        given.extract().map(ByteCount).map_err(|error| {
            if !error.is_instance_of::<PyOverflowError>(given.py()) {
                return error;
            }
            let why = format!("{} is not a position or length in an object; count bytes from 0", *given);
            to_python(given.py(), &Error::new(ErrorKind::InvalidArgument, why))
        })
    }
}

/// The number of a part. Errors: `InvalidArgument` outside 1 to 10,000; `TypeError` for anything that is not an
/// integer.
#[derive(Clone, Copy)]
pub(crate) struct PartNumber(pub(crate) u16);

impl<'py> FromPyObject<'_, 'py> for PartNumber {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let number = short_number(&given, "a part number")?;
        checked_part_number(number).map(PartNumber).map_err(|error| to_python(given.py(), &error))
    }
}

/// Returns the number after which a page of parts begins. Errors: `InvalidArgument` outside 0 to 65,535; `TypeError`
/// for anything that is not an integer.
pub(crate) fn part_marker(given: &Bound<'_, PyAny>) -> PyResult<u16> {
    short_number(given, "a part number, or 0")
}

fn short_number(given: &Bound<'_, PyAny>, what: &str) -> PyResult<u16> {
    given.extract().map_err(|error: PyErr| {
        if !error.is_instance_of::<PyOverflowError>(given.py()) {
            return error;
        }
        let why = format!("{given} is not {what}; parts have the numbers 1 to {MAX_PARTS}");
        to_python(given.py(), &Error::new(ErrorKind::InvalidArgument, why))
    })
}

/// The start of a range. In Python, a negative number counts from the end of the object.
#[derive(Clone, Copy)]
pub(crate) enum StartOffset {
    FromStart(u64),
    /// This many bytes (at least 1) before the end, or the first byte if the object has fewer bytes.
    FromEnd(u64),
}

impl<'py> FromPyObject<'_, 'py> for StartOffset {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match given.extract::<i64>() {
            Ok(before_end @ ..0) => Ok(StartOffset::FromEnd(before_end.unsigned_abs())),
            // The value is non-negative, too large for an `i64`, or not a number.
            _ => given.extract().map(|ByteCount(start)| StartOffset::FromStart(start)),
        }
    }
}

/// Returns `start` and `length` as the range of a request, or `None` for the whole object. If the start counts from the
/// end, the range extends to the end of the object, and the caller must truncate the content. Errors: `InvalidArgument`
/// for a length of 0.
pub(crate) fn range(start: Option<StartOffset>, length: Option<ByteCount>) -> Result<Option<ByteRange>> {
    use StartOffset::{FromEnd, FromStart};
    match (start, length) {
        (None, None) => Ok(None),
        (_, Some(ByteCount(0))) => {
            Err(Error::new(ErrorKind::InvalidArgument, "a length of 0; request one byte or more"))
        }
        (Some(FromEnd(count)), _) => Ok(Some(ByteRange::Last(count))),
        (Some(FromStart(start)), None) => Ok(Some(ByteRange::From(start))),
        (None, Some(length)) => Ok(Some(ByteRange::Inclusive(0, length.0 - 1))),
        (Some(FromStart(start)), Some(length)) => {
            Ok(Some(ByteRange::Inclusive(start, start.saturating_add(length.0 - 1))))
        }
    }
}

/// Returns the first `length` bytes of `content`, without reading the rest.
fn shortened(content: ObjectContent, length: u64) -> ObjectContent {
    match content {
        ObjectContent::File(region) => {
            let len = region.len.min(length);
            ObjectContent::File(FileRegion { len, ..region })
        }
        ObjectContent::Stream(reader, len) => ObjectContent::Stream(reader, len.min(length)),
        ObjectContent::Bytes(mut bytes) => {
            bytes.truncate(usize::try_from(length).unwrap_or(usize::MAX));
            ObjectContent::Bytes(bytes)
        }
    }
}

/// The arguments of a read: the requested bytes and version, and the conditions.
#[derive(Default)]
pub(crate) struct ReadArguments<'a> {
    pub(crate) start: Option<StartOffset>,
    pub(crate) length: Option<ByteCount>,
    pub(crate) version: Option<String>,
    pub(crate) if_match: Option<&'a str>,
    pub(crate) if_none_match: Option<&'a str>,
}

impl ReadArguments<'_> {
    /// Opens the object with these arguments.
    pub(crate) fn open(
        self,
        store: &dyn fordway_store::Store,
        bucket: String,
        key: String,
    ) -> Result<OpenObject> {
        self.request(bucket, key)?.open(store)
    }

    /// Converts the arguments to a request. Errors: as for [`ReadArguments::options`]; `InvalidName`.
    pub(crate) fn request(self, bucket: String, key: String) -> Result<ObjectReadRequest> {
        let from_end = matches!(self.start, Some(StartOffset::FromEnd(_)));
        let length = self.length.filter(|_| from_end);
        Ok(ObjectReadRequest {
            bucket: Bucket::new(bucket)?,
            key: Key::new(key)?,
            options: self.options()?,
            length,
        })
    }

    /// Converts the arguments to options. Errors: `InvalidArgument` for an invalid range; `NoSuchVersion` for an
    /// invalid version.
    pub(crate) fn options(self) -> Result<GetOptions> {
        Ok(GetOptions {
            range: range(self.start, self.length)?,
            version: self.version.map(VersionId::new).transpose()?,
            conditions: conditions(self.if_match, self.if_none_match),
            ..GetOptions::default()
        })
    }
}

/// The arguments of a read, which can be made several times.
pub(crate) struct ObjectReadRequest {
    bucket: Bucket,
    key: Key,
    options: GetOptions,
    /// The length of a range that starts relative to the end of the object.
    length: Option<ByteCount>,
}

impl ObjectReadRequest {
    /// Opens the object.
    pub(crate) fn open(&self, store: &dyn fordway_store::Store) -> Result<OpenObject> {
        let mut found = store.get(&self.bucket, &self.key, &self.options)?;
        if let Some(ByteCount(length)) = self.length {
            found.content = shortened(found.content, length);
        }
        Ok(found)
    }
}

/// Headers that are stored with an object, apart from `Content-Type`. The header names are case-insensitive. Errors:
/// `InvalidArgument` for the name of any other header.
pub(crate) struct StoredHeaders(Metadata);

impl<'py> FromPyObject<'_, 'py> for StoredHeaders {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let mut headers = Metadata::default();
        let by_name = given.extract::<BTreeMap<String, String>>()?;
        check_distinct("headers", by_name.keys()).map_err(|error| to_python(given.py(), &error))?;
        for (name, value) in by_name {
            let field = match &*name.to_ascii_lowercase() {
                "cache-control" => &mut headers.cache_control,
                "content-disposition" => &mut headers.content_disposition,
                "content-encoding" => &mut headers.content_encoding,
                "content-language" => &mut headers.content_language,
                "expires" => &mut headers.expires,
                _ => {
                    let why = format!(
                        "{name} is not one of the headers that are stored with an object: cache-control, \
                         content-disposition, content-encoding, content-language, expires; use `metadata` for your own \
                         names, and `content_type` for the type"
                    );
                    return Err(to_python(given.py(), &Error::new(ErrorKind::InvalidArgument, why)));
                }
            };
            *field = Some(value);
        }
        Ok(StoredHeaders(headers))
    }
}

/// Errors: `InvalidArgument` for two names that differ only in case. The store treats these names as equal, so one of
/// the values would be lost.
fn check_distinct<'a>(what: &str, names: impl Iterator<Item = &'a String>) -> Result<()> {
    let mut seen = BTreeMap::new();
    for name in names {
        if let Some(other) = seen.insert(name.to_lowercase(), name) {
            let why = format!(
                "the names {other:?} and {name:?} in the {what} differ only in case; use one of them"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
    }
    Ok(())
}

/// Properties of an object that its writer can set, apart from its content.
#[derive(Default)]
pub(crate) struct ObjectPropertyArguments {
    pub(crate) content_type: Option<String>,
    pub(crate) metadata: Option<BTreeMap<String, String>>,
    pub(crate) headers: Option<StoredHeaders>,
    pub(crate) tags: Option<Tags>,
}

impl ObjectPropertyArguments {
    /// Returns whether the content type, metadata or headers are set.
    pub(crate) fn has_metadata(&self) -> bool {
        self.content_type.is_some() || self.metadata.is_some() || self.headers.is_some()
    }

    /// Returns the metadata, with its names in lower case. Errors: `InvalidArgument` for two names that differ only in
    /// case.
    pub(crate) fn metadata(&mut self) -> Result<BoxedMetadata> {
        let given = self.metadata.take().unwrap_or_default();
        check_distinct("metadata", given.keys())?;
        let user = given.into_iter().map(|(name, value)| (name.to_lowercase(), value)).collect();
        let headers = self.headers.take().map(|headers| headers.0).unwrap_or_default();
        Ok(BoxedMetadata::from(Metadata { content_type: self.content_type.take(), user, ..headers }))
    }

    /// Returns the options of a put. Raises the error of [`ObjectPropertyArguments::metadata`].
    pub(crate) fn put_options(mut self, py: Python<'_>, conditions: Conditions) -> PyResult<PutOptions> {
        Ok(PutOptions {
            metadata: self.metadata().map_err(|error| to_python(py, &error))?,
            tags: self.tags.unwrap_or_default(),
            conditions,
            ..PutOptions::default()
        })
    }
}

/// Returns the checksum algorithm with this name. Errors: `InvalidArgument` for an unknown algorithm.
pub(crate) fn checksum_algorithm(name: &str) -> Result<ChecksumAlgorithm> {
    let unknown = || {
        let why = format!(
            "the checksum {name:?} is unknown; use CRC32, CRC32C, CRC64NVME, SHA1, SHA256, SHA512, MD5, XXHASH64, \
             XXHASH3 or XXHASH128"
        );
        Error::new(ErrorKind::InvalidArgument, why)
    };
    ChecksumAlgorithm::from_name(name).ok_or_else(unknown)
}

pub(crate) fn conditions(if_match: Option<&str>, if_none_match: Option<&str>) -> Conditions {
    let tags = |text: &str| match text {
        "*" => ETagMatch::Any,
        tag => ETagMatch::Tags(vec![ETag::new(tag)]),
    };
    Conditions {
        if_match: if_match.map(tags),
        if_none_match: if_none_match.map(tags),
        ..Conditions::default()
    }
}
