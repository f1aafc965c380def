//! The store's own types as fields, in the order of their declaration.

use fordway_store::{
    BoxedMetadata, Bucket, BucketInfo, ByteRange, Checksum, ChecksumAlgorithm, ChecksumPlan, ChecksumType,
    CompleteOptions, CompletedPart, Conditions, CopyOptions, DeleteOptions, Deleted, DocumentKind, ETag,
    ETagMatch, ETagPolicy, Entry, Error, ErrorKind, Expected, GetOptions, Key, ListQuery, Listing, Metadata,
    ObjectInfo, ObjectPart, ObjectSummary, PartInfo, PartListing, PartOptions, PartsQuery, PutOptions,
    PutResult, Result, UploadId, UploadListing, UploadSummary, UploadsQuery, VersionId, VersionListing,
    VersionSummary, Versioning, VersionsQuery,
};

use super::fields::{Input, Put, Take, malformed};

/// Types that are their fields.
macro_rules! structs {
    ($($name:ident { $($field:ident),* $(,)? })*) => {
        $(impl Put for $name {
            fn put(&self, out: &mut Vec<u8>) {
                // All fields by name: one that is added stops the build here.
                let $name { $($field),* } = self;
                $($field.put(out);)*
            }
        }

        impl Take for $name {
            fn take(input: &mut Input<'_>) -> Result<Self> {
                $(let $field = Take::take(input)?;)*
                Ok($name { $($field),* })
            }
        })*
    };
}

structs! {
    BucketInfo { name, created }
    Metadata { content_type, content_encoding, content_language, content_disposition, cache_control, expires, user }
    ObjectInfo { size, modified, etag, metadata, checksum, version, tag_count, part_count }
    ObjectPart { number, size, checksum }
    PutOptions { metadata, tags, conditions, etag_policy, check_md5, checksum, checksum_type, size_hint }
    PartOptions { check_md5, checksum, size_hint }
    PutResult { etag, modified, checksum, version }
    GetOptions { range, part, version, conditions }
    DeleteOptions { conditions, version }
    CopyOptions { metadata, tags, source_version, source_conditions, conditions, checksum }
    Conditions { if_match, if_none_match, if_modified_since, if_unmodified_since }
    Checksum { algorithm, value, parts }
    ChecksumPlan { algorithm, kind }
    Expected { size, md5, checksum }
    ListQuery { prefix, delimiter, start_after, max_keys }
    Listing { entries, next }
    ObjectSummary { key, size, etag, modified, checksum }
    CompletedPart { number, etag, checksum }
    CompleteOptions { conditions, checksum, size }
    PartInfo { number, size, etag, modified, checksum }
    PartsQuery { after, max_parts }
    PartListing { parts, truncated, checksum }
    UploadsQuery { prefix, key_after, upload_after, max_uploads }
    UploadSummary { key, upload, started, checksum }
    UploadListing { uploads, truncated }
    Deleted { version, is_marker }
    VersionSummary { key, version, is_latest, modified, content, checksum }
    VersionsQuery { prefix, delimiter, key_after, version_after, max_keys }
    VersionListing { versions, prefixes, next }
}

/// Mostly nothing is said, in one byte.
impl Put for BoxedMetadata {
    fn put(&self, out: &mut Vec<u8>) {
        let is_said = !self.is_empty();
        is_said.put(out);
        if is_said {
            (**self).put(out);
        }
    }
}

impl Take for BoxedMetadata {
    fn take(input: &mut Input<'_>) -> Result<Self> {
        let said: Option<Metadata> = Take::take(input)?;
        Ok(said.map(BoxedMetadata::from).unwrap_or_default())
    }
}

/// Types that are one of several, each by its number.
macro_rules! choices {
    ($($name:ident { $($number:literal $choice:ident $(($($value:ident),*))?),* $(,)? })*) => {
        $(impl Put for $name {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $($name::$choice $(($($value),*))? => {
                        out.push($number);
                        $($($value.put(out);)*)?
                    })*
                }
            }
        }

        impl Take for $name {
            fn take(input: &mut Input<'_>) -> Result<Self> {
                match u8::take(input)? {
                    $($number => Ok($name::$choice $(($({
                        let $value = Take::take(input)?;
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
    Entry { 0 Object(summary), 1 CommonPrefix(prefix) }
    Versioning { 0 Unversioned, 1 Enabled, 2 Suspended }
}

/// Types that are a text which must be checked.
macro_rules! names {
    ($($name:ident = $read:expr;)*) => {
        $(impl Put for $name {
            fn put(&self, out: &mut Vec<u8>) {
                self.as_str().put(out);
            }
        }

        impl Take for $name {
            fn take(input: &mut Input<'_>) -> Result<Self> {
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
    DocumentKind = |text| DocumentKind::new(text);
}

/// By the name of its kind, which says the same in every version of either side; where and by how
/// many tries it happened, the other side knows better.
impl Put for Error {
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

impl Take for Error {
    fn take(input: &mut Input<'_>) -> Result<Self> {
        let (name, detail, is_at_marker) = (input.text()?, String::take(input)?, bool::take(input)?);
        let error = match ErrorKind::ALL.iter().find(|kind| kind.name() == name) {
            Some(kind) => Error::new(*kind, detail),
            None => Error::new(ErrorKind::Io, format!("{name}, which this version does not know: {detail}")),
        };
        Ok(if is_at_marker { error.at_delete_marker() } else { error })
    }
}
