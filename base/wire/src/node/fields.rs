//! The elements of messages: little-endian numbers, texts and lists, one after another. The store's own types are
//! encoded as their fields in the order of declaration.
//!
//! | type | bytes |
//! |---|---|
//! | numbers | their own size, little-endian; `usize` as 8 bytes |
//! | `bool` | 1: 0 or 1 |
//! | text | its length (4), UTF-8 |
//! | list, map | the number of its entries (4), the entries |
//! | option | 1: 0, or 1 and the value |
//! | result | 1: 0 and the value, or 1 and the error |
//! | time | seconds since 1970 (8, signed), nanoseconds (4) |

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fordway_store::{
    BoxedMetadata, Bucket, BucketDocumentKind, BucketInfo, ByteRange, Checksum, ChecksumAlgorithm,
    ChecksumAlgorithmAndType, ChecksumType, CompleteOptions, CompletedPart, Conditions, CopyOptions,
    DefaultRetention, DeleteOptions, DeleteResult, ETag, ETagMatch, ETagPolicy, Error, ErrorKind,
    ExpectedContent, GetOptions, Key, ListEntry, ListQuery, LockConfiguration, Metadata, ObjectInfo,
    ObjectListing, ObjectLock, ObjectPart, ObjectSummary, PartInfo, PartListing, PartOptions, PartsQuery,
    PutOptions, PutResult, RenameOptions, Result, Retention, RetentionMode, RetentionPeriod, UploadId,
    UploadListing, UploadSummary, UploadsQuery, VersionId, VersionListing, VersionSummary, VersioningState,
    VersionsQuery,
};

use crate::s3_error::to_s3;

/// The maximum number of list entries for which memory is reserved before they have arrived.
const ROOM_MAX: usize = 1024;

/// A type that can be appended to a message.
pub trait WriteField {
    /// Appends the value. Cost: no allocation except for `out`.
    fn put(&self, out: &mut Vec<u8>);
}

/// A type that can be read from a message.
pub trait ReadField: Sized {
    /// Reads a value. Errors: `InvalidArgument` if the bytes are not a valid value.
    fn take(input: &mut MessageCursor<'_>) -> Result<Self>;
}

/// The unread rest of a message.
#[derive(Debug)]
pub struct MessageCursor<'a>(&'a [u8]);

impl<'a> MessageCursor<'a> {
    /// Creates a cursor at the beginning of a message.
    pub fn new(bytes: &'a [u8]) -> Self {
        MessageCursor(bytes)
    }

    /// Reads a message that consists of one value. Errors: `InvalidArgument`, including for bytes after the value.
    pub fn all<T: ReadField>(bytes: &'a [u8]) -> Result<T> {
        let mut input = MessageCursor(bytes);
        let value = T::take(&mut input)?;
        input.end()?;
        Ok(value)
    }

    /// Checks that the whole message has been read. Errors: `InvalidArgument` if bytes are left over.
    pub fn end(&self) -> Result<()> {
        match self.0.len() {
            0 => Ok(()),
            _ => Err(malformed("it has more bytes than it states")),
        }
    }

    /// Returns the next `count` bytes, without copying them.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(|| malformed("it ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    /// Returns the next text, without copying it.
    pub fn text(&mut self) -> Result<&'a str> {
        let len = u32::take(self)? as usize;
        std::str::from_utf8(self.bytes(len)?).map_err(|_| malformed("a string is not UTF-8"))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }
}

/// Returns the error for bytes that no Fordway program would send.
pub(super) fn malformed(why: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("the message is malformed: {why}"))
}

macro_rules! numbers {
    ($($number:ty),*) => {
        $(impl WriteField for $number {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }

        impl ReadField for $number {
            fn take(input: &mut MessageCursor<'_>) -> Result<Self> {
                Ok(<$number>::from_le_bytes(input.array()?))
            }
        })*
    };
}

numbers!(u8, u16, u32, u64, i64);

impl WriteField for usize {
    fn put(&self, out: &mut Vec<u8>) {
        (*self as u64).put(out);
    }
}

impl ReadField for usize {
    fn take(input: &mut MessageCursor<'_>) -> Result<Self> {
        usize::try_from(u64::take(input)?).map_err(|_| malformed("a number is too large"))
    }
}

impl WriteField for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl ReadField for bool {
    fn take(input: &mut MessageCursor<'_>) -> Result<Self> {
        match u8::take(input)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(malformed("a bool is neither 0 nor 1")),
        }
    }
}

impl<const N: usize> WriteField for [u8; N] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

impl<const N: usize> ReadField for [u8; N] {
    fn take(input: &mut MessageCursor<'_>) -> Result<Self> {
        input.array()
    }
}

impl WriteField for str {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        out.extend_from_slice(self.as_bytes());
    }
}

impl WriteField for String {
    fn put(&self, out: &mut Vec<u8>) {
        self.as_str().put(out);
    }
}

impl ReadField for String {
    fn take(input: &mut MessageCursor<'_>) -> Result<Self> {
        input.text().map(str::to_owned)
    }
}

impl WriteField for () {
    fn put(&self, _: &mut Vec<u8>) {}
}

impl ReadField for () {
    fn take(_: &mut MessageCursor<'_>) -> Result<Self> {
        Ok(())
    }
}

impl<A: WriteField, B: WriteField> WriteField for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
}

impl<A: ReadField, B: ReadField> ReadField for (A, B) {
    fn take(input: &mut MessageCursor<'_>) -> Result<Self> {
        Ok((A::take(input)?, B::take(input)?))
    }
}

impl<T: WriteField> WriteField for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
}

impl<T: ReadField> ReadField for Option<T> {
    fn take(input: &mut MessageCursor<'_>) -> Result<Self> {
        bool::take(input)?.then(|| T::take(input)).transpose()
    }
}

impl<T: WriteField> WriteField for Result<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_err().put(out);
        match self {
            Ok(value) => value.put(out),
            Err(error) => error.put(out),
        }
    }
}

impl<T: ReadField> ReadField for Result<T> {
    fn take(input: &mut MessageCursor<'_>) -> Result<Self> {
        Ok(match bool::take(input)? {
            false => Ok(T::take(input)?),
            true => Err(Error::take(input)?),
        })
    }
}

impl<T: WriteField> WriteField for [T] {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        self.iter().for_each(|entry| entry.put(out));
    }
}

impl<T: WriteField> WriteField for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.as_slice().put(out);
    }
}

impl<T: ReadField> ReadField for Vec<T> {
    fn take(input: &mut MessageCursor<'_>) -> Result<Self> {
        let count = u32::take(input)? as usize;
        // The declared number alone must not cause a large allocation.
        let mut list = Vec::with_capacity(count.min(ROOM_MAX));
        for _ in 0..count {
            // If entries could be empty, four bytes could represent a list of four billion entries.
            let before = input.0.len();
            list.push(T::take(input)?);
            if input.0.len() == before {
                return Err(malformed("a list has entries without bytes"));
            }
        }
        Ok(list)
    }
}

impl WriteField for BTreeMap<String, String> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        for (name, value) in self {
            name.put(out);
            value.put(out);
        }
    }
}

impl ReadField for BTreeMap<String, String> {
    fn take(input: &mut MessageCursor<'_>) -> Result<Self> {
        let count = u32::take(input)?;
        (0..count).map(|_| <(String, String)>::take(input)).collect()
    }
}

impl<T: WriteField + ToOwned + ?Sized> WriteField for Cow<'_, T> {
    fn put(&self, out: &mut Vec<u8>) {
        (**self).put(out);
    }
}

impl<T: ToOwned + ?Sized> ReadField for Cow<'_, T>
where
    T::Owned: ReadField,
{
    fn take(input: &mut MessageCursor<'_>) -> Result<Self> {
        T::Owned::take(input).map(Cow::Owned)
    }
}

impl WriteField for SystemTime {
    fn put(&self, out: &mut Vec<u8>) {
        let (seconds, nanoseconds) = match self.duration_since(UNIX_EPOCH) {
            Ok(since) => (since.as_secs() as i64, since.subsec_nanos()),
            // Before 1970, whole seconds are rounded down, and nanoseconds are added to them.
            Err(before) => match before.duration() {
                before if before.subsec_nanos() == 0 => (-(before.as_secs() as i64), 0),
                before => (-(before.as_secs() as i64) - 1, 1_000_000_000 - before.subsec_nanos()),
            },
        };
        seconds.put(out);
        nanoseconds.put(out);
    }
}

impl ReadField for SystemTime {
    fn take(input: &mut MessageCursor<'_>) -> Result<Self> {
        let (seconds, nanoseconds) = (i64::take(input)?, u32::take(input)?);
        let whole = Duration::from_secs(seconds.unsigned_abs());
        let start = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
        let time = start.filter(|_| nanoseconds < 1_000_000_000);
        time.and_then(|time| time.checked_add(Duration::from_nanos(nanoseconds.into())))
            .ok_or_else(|| malformed("a time is out of range"))
    }
}

/// Encodes structs as their fields.
macro_rules! structs {
    ($($name:ident { $($field:ident),* $(,)? })*) => {
        $(impl WriteField for $name {
            fn put(&self, out: &mut Vec<u8>) {
                // The pattern names all fields, so that a new field breaks the build here.
                let $name { $($field),* } = self;
                $($field.put(out);)*
            }
        }

        impl ReadField for $name {
            fn take(input: &mut MessageCursor<'_>) -> Result<Self> {
                $(let $field = ReadField::take(input)?;)*
                Ok($name { $($field),* })
            }
        })*
    };
}

structs! {
    BucketInfo { name, created }
    Metadata { content_type, content_encoding, content_language, content_disposition, cache_control, expires, user }
    ObjectInfo { size, modified, etag, metadata, checksum, version, tag_count, part_count, lock }
    ObjectLock { retention, legal_hold }
    Retention { mode, until_ms }
    LockConfiguration { default }
    DefaultRetention { mode, period }
    ObjectPart { number, size, checksum }
    PutOptions { metadata, tags, conditions, etag_policy, check_md5, checksum, checksum_type, size_hint, lock }
    PartOptions { check_md5, checksum, size_hint }
    PutResult { etag, modified, checksum, version }
    GetOptions { range, part, version, conditions }
    DeleteOptions { conditions, version, bypass_governance }
    RenameOptions { source_conditions, conditions }
    CopyOptions { metadata, tags, source_version, source_conditions, conditions, checksum, lock }
    Conditions { if_match, if_none_match, if_modified_since, if_unmodified_since }
    Checksum { algorithm, value, parts }
    ChecksumAlgorithmAndType { algorithm, kind }
    ExpectedContent { size, md5, checksum }
    ListQuery { prefix, delimiter, start_after, max_keys }
    ObjectListing { entries, next }
    ObjectSummary { key, size, etag, modified, checksum }
    CompletedPart { number, etag, checksum }
    CompleteOptions { conditions, checksum, size }
    PartInfo { number, size, etag, modified, checksum }
    PartsQuery { after, max_parts }
    PartListing { parts, truncated, checksum }
    UploadsQuery { prefix, key_after, upload_after, max_uploads }
    UploadSummary { key, upload, started, checksum }
    UploadListing { uploads, truncated }
    DeleteResult { version, is_marker }
    VersionSummary { key, version, is_latest, modified, content, checksum }
    VersionsQuery { prefix, delimiter, key_after, version_after, max_keys }
    VersionListing { versions, prefixes, next }
}

/// Metadata is usually empty. Empty metadata is encoded as one byte.
impl WriteField for BoxedMetadata {
    fn put(&self, out: &mut Vec<u8>) {
        let is_said = !self.is_empty();
        is_said.put(out);
        if is_said {
            (**self).put(out);
        }
    }
}

impl ReadField for BoxedMetadata {
    fn take(input: &mut MessageCursor<'_>) -> Result<Self> {
        let said: Option<Metadata> = ReadField::take(input)?;
        Ok(said.map(BoxedMetadata::from).unwrap_or_default())
    }
}

/// Encodes enums as the number of the variant, followed by its values.
macro_rules! choices {
    ($($name:ident { $($number:literal $choice:ident $(($($value:ident),*))?),* $(,)? })*) => {
        $(impl WriteField for $name {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $($name::$choice $(($($value),*))? => {
                        out.push($number);
                        $($($value.put(out);)*)?
                    })*
                }
            }
        }

        impl ReadField for $name {
            fn take(input: &mut MessageCursor<'_>) -> Result<Self> {
                match u8::take(input)? {
                    $($number => Ok($name::$choice $(($({
                        let $value = ReadField::take(input)?;
                        $value
                    }),*))?),)*
                    _ => Err(malformed(concat!("there is no such ", stringify!($name)))),
                }
            }
        })*
    };
}

choices! {
    ByteRange { 0 From(first), 1 Inclusive(first, last), 2 Last(count) }
    ChecksumAlgorithm { 0 Crc32, 1 Crc32c, 2 Crc64Nvme, 3 Sha1, 4 Sha256, 5 Sha512, 6 Md5, 7 XxHash64, 8 XxHash3, 9 XxHash128 }
    ChecksumType { 0 FullObject, 1 Composite }
    ETagMatch { 0 Any, 1 Tags(tags) }
    ETagPolicy { 0 Md5, 1 Fast }
    RetentionMode { 0 Governance, 1 Compliance }
    RetentionPeriod { 0 Days(days), 1 Years(years) }
    ListEntry { 0 Object(summary), 1 CommonPrefix(prefix) }
    VersioningState { 0 Unversioned, 1 Enabled, 2 Suspended }
}

/// Encodes types that wrap a string, which is validated when it is read.
macro_rules! names {
    ($($name:ident = $read:expr;)*) => {
        $(impl WriteField for $name {
            fn put(&self, out: &mut Vec<u8>) {
                self.as_str().put(out);
            }
        }

        impl ReadField for $name {
            fn take(input: &mut MessageCursor<'_>) -> Result<Self> {
                let read: fn(&str) -> Result<$name> = $read;
                read(input.text()?)
            }
        })*
    };
}

names! {
    Bucket = |text| Bucket::new(text);
    Key = |text| Key::new(text);
    ETag = |text| Ok(ETag::new(text));
    UploadId = |text| UploadId::new(text);
    VersionId = |text| VersionId::new(text);
    BucketDocumentKind = |text| BucketDocumentKind::new(text);
}

/// Errors are encoded with the name of their kind, which has the same meaning in every version of client and gateway.
/// The target and the number of attempts are omitted, because the receiver records its own values. The receiver derives
/// the S3 error code from the kind.
impl WriteField for Error {
    fn put(&self, out: &mut Vec<u8>) {
        self.kind().name().put(out);
        let mut detail = self.detail().to_owned();
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            detail = if detail.is_empty() { cause.to_string() } else { format!("{detail}: {cause}") };
            source = cause.source();
        }
        detail.put(out);
        self.is_at_delete_marker().put(out);
    }
}

impl ReadField for Error {
    fn take(input: &mut MessageCursor<'_>) -> Result<Self> {
        let (name, detail, is_at_marker) = (input.text()?, String::take(input)?, bool::take(input)?);
        let error = match ErrorKind::ALL.iter().find(|kind| kind.name() == name) {
            Some(kind) => Error::new(*kind, detail).with_s3_code(to_s3(*kind).1),
            None => Error::new(ErrorKind::Io, format!("{name}, which is unknown to this version: {detail}")),
        };
        Ok(if is_at_marker { error.at_delete_marker() } else { error })
    }
}
