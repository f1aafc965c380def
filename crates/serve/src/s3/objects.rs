//! Reading objects.

use std::collections::BTreeMap;
use std::ops::Range as Bytes;

use fordway_store::{
    Bucket, ByteRange, Checksum, Conditions, Error, ErrorKind, GetOptions, Key, ObjectInfo, Store,
};
use fordway_wire::header_text;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use s3s::S3Response;
use s3s::dto::{
    ChecksumMode, ChecksumType, GetObjectInput, GetObjectOutput, HeadObjectInput, HeadObjectOutput, Range,
};

use super::convert::{
    count, etag, names, put_checksum, read_conditions, size, timestamp, type_of, version, version_name,
};
use super::error::{Failure, Outcome};
use super::multipart::part_number;
use crate::answer::Reply;
use crate::payload::Payload;

/// What S3 answers for an object that was stored without a type.
pub(crate) const DEFAULT_TYPE: &str = "binary/octet-stream";
/// How many tags an object has; the S3 layer knows it only of GET.
const TAG_COUNT_HEADER: HeaderName = HeaderName::from_static("x-amz-tagging-count");

/// The options of a read: GET and HEAD have fields of the same names.
macro_rules! read_options {
    ($input:expr, $range:expr) => {
        GetOptions {
            range: $range,
            part: $input.part_number.map(part_number).transpose()?,
            version: version($input.version_id.as_deref())?,
            conditions: read_conditions(
                $input.if_match,
                $input.if_none_match,
                $input.if_modified_since,
                $input.if_unmodified_since,
            ),
        }
    };
}

pub(super) fn get(store: &dyn Store, input: GetObjectInput) -> Outcome<S3Response<GetObjectOutput>> {
    let (bucket, key) = names(&input.bucket, &input.key)?;
    let options = read_options!(input, input.range.map(byte_range));
    let found = store.get(&bucket, &key, &options);
    let object =
        found.map_err(|error| explained(error, &options, |plain| store.head(&bucket, &key, plain)))?;

    let is_partial = options.range.is_some() || options.part.is_some();
    let checksum =
        shown_checksum(store, (&bucket, &key), &options, &object.info, input.checksum_mode.as_ref());
    let expires = object.info.metadata.expires.clone().filter(|_| input.response_expires.is_none());
    let (size_bytes, tags) = (object.info.size, object.info.tag_count);
    let mut output = describe(object.info, checksum);
    output.content_length = size(object.content.len());
    output.content_range = is_partial.then(|| content_range(&object.range, size_bytes));
    let mut response = S3Response::new(output);
    response.headers = extra_headers(expires, tags);
    response.extensions.insert(Payload::new(Reply::Content(object.content)));
    Ok(response)
}

pub(super) fn head(store: &dyn Store, input: HeadObjectInput) -> Outcome<S3Response<HeadObjectOutput>> {
    let (bucket, key) = names(&input.bucket, &input.key)?;
    let options = read_options!(input, None);
    let explain = |error| explained(error, &options, |plain| store.head(&bucket, &key, plain));
    let info = store.head(&bucket, &key, &options).map_err(explain)?;
    let wanted = match options.part {
        None => 0..info.size,
        Some(_) => {
            let parts = store.object_parts(&bucket, &key, &options).map_err(explain)?;
            options.wanted(info.size, &parts).map_err(explain)?
        }
    };
    let is_partial = options.part.is_some();
    let checksum = shown_checksum(store, (&bucket, &key), &options, &info, input.checksum_mode.as_ref());
    let (size_bytes, expires, tags) = (info.size, info.metadata.expires.clone(), info.tag_count);
    let output = HeadObjectOutput {
        content_length: size(wanted.end - wanted.start),
        content_range: is_partial.then(|| content_range(&wanted, size_bytes)),
        ..without_body(describe(info, checksum))
    };
    Ok(S3Response::with_headers(output, extra_headers(expires, tags)))
}

/// An empty part has no first and last byte; only the object's size is stated beside it.
fn content_range(range: &Bytes<u64>, size_bytes: u64) -> String {
    match range.is_empty() {
        true => format!("bytes */{size_bytes}"),
        false => format!("bytes {}-{}/{size_bytes}", range.start, range.end - 1),
    }
}

pub(super) fn byte_range(range: Range) -> ByteRange {
    match range {
        Range::Int { first, last: Some(last) } => ByteRange::Inclusive(first, last),
        Range::Int { first, last: None } => ByteRange::From(first),
        Range::Suffix { length } => ByteRange::Last(length),
    }
}

/// Adds what HTTP wants beside some errors: the tag beside 304, the size beside 416
/// (RFC 9110 sections 15.4.5 and 15.5.17). `describe` looks at the object with nothing asked of it.
fn explained(
    error: Error,
    options: &GetOptions,
    describe: impl FnOnce(&GetOptions) -> fordway_store::Result<ObjectInfo>,
) -> Failure {
    let kind = error.kind();
    if kind == ErrorKind::InvalidPart {
        let message = super::error::message(&error);
        return Failure::new("InvalidPartNumber", StatusCode::RANGE_NOT_SATISFIABLE, message);
    }
    let mut failure = Failure::from(error);
    if matches!(kind, ErrorKind::NotModified | ErrorKind::InvalidRange)
        && let Ok(info) = describe(&GetOptions { version: options.version.clone(), ..Default::default() })
    {
        let (name, value) = match kind {
            ErrorKind::NotModified => (header::ETAG, format!("\"{}\"", info.etag)),
            _ => (header::CONTENT_RANGE, format!("bytes */{}", info.size)),
        };
        if let Ok(value) = HeaderValue::try_from(value) {
            failure.add_header(name, value);
        }
    }
    failure
}

/// What the S3 layer does not write as it is: it knows `Expires` only as a time, and tags only of GET.
fn extra_headers(expires: Option<String>, tag_count: usize) -> HeaderMap {
    let expires = expires.and_then(|text| HeaderValue::try_from(text).ok());
    let expires = expires.map(|value| (header::EXPIRES, value));
    let tags = (tag_count > 0).then(|| (TAG_COUNT_HEADER, HeaderValue::from(tag_count)));
    expires.into_iter().chain(tags).collect()
}

/// User metadata as headers can carry it.
fn user_headers(user: BTreeMap<String, String>) -> s3s::dto::Metadata {
    user.into_iter().map(|(name, text)| (name, header_text::encode(&text).into_owned())).collect()
}

/// What a client that wants checksums is told: that of the part it reads, or of the object; none beside
/// a range, whose bytes it could not be held against. The type is always that of the object's.
fn shown_checksum(
    store: &dyn Store,
    (bucket, key): (&Bucket, &Key),
    options: &GetOptions,
    info: &ObjectInfo,
    mode: Option<&ChecksumMode>,
) -> Option<(ChecksumType, Checksum)> {
    let is_wanted = mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED);
    let whole = info.checksum.as_ref().filter(|_| is_wanted && options.range.is_none())?;
    let shown = match options.part.filter(|_| info.part_count.is_some()) {
        None => whole.clone(),
        Some(number) => {
            // The object may be another one by now.
            let conditions = Conditions::only_if(info.etag.clone());
            let same = GetOptions { version: options.version.clone(), conditions, ..Default::default() };
            let parts = store.object_parts(bucket, key, &same).ok()?;
            parts.into_iter().find(|part| part.number == number)?.checksum?
        }
    };
    Some((type_of(whole), shown))
}

/// All that an answer says of an object, save its length.
fn describe(info: ObjectInfo, checksum: Option<(ChecksumType, Checksum)>) -> GetObjectOutput {
    let metadata = info.metadata.into_inner();
    let mut output = GetObjectOutput {
        accept_ranges: Some("bytes".to_owned()),
        e_tag: etag(&info.etag),
        last_modified: timestamp(info.modified),
        content_type: Some(metadata.content_type.unwrap_or_else(|| DEFAULT_TYPE.to_owned())),
        content_encoding: metadata.content_encoding,
        content_language: metadata.content_language,
        content_disposition: metadata.content_disposition,
        cache_control: metadata.cache_control,
        metadata: (!metadata.user.is_empty()).then(|| user_headers(metadata.user)),
        parts_count: info.part_count.and_then(|parts| count(parts.into())),
        version_id: version_name(info.version),
        ..Default::default()
    };
    if let Some((kind, checksum)) = checksum {
        output.checksum_type = Some(kind);
        put_checksum!(output, Some(&checksum));
    }
    output
}

fn without_body(output: GetObjectOutput) -> HeadObjectOutput {
    HeadObjectOutput {
        accept_ranges: output.accept_ranges,
        e_tag: output.e_tag,
        last_modified: output.last_modified,
        content_type: output.content_type,
        content_encoding: output.content_encoding,
        content_language: output.content_language,
        content_disposition: output.content_disposition,
        cache_control: output.cache_control,
        metadata: output.metadata,
        checksum_crc32: output.checksum_crc32,
        checksum_crc32c: output.checksum_crc32c,
        checksum_crc64nvme: output.checksum_crc64nvme,
        checksum_sha1: output.checksum_sha1,
        checksum_sha256: output.checksum_sha256,
        checksum_type: output.checksum_type,
        parts_count: output.parts_count,
        version_id: output.version_id,
        ..Default::default()
    }
}
