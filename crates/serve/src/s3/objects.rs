//! Reading, deleting and copying objects.

use std::collections::BTreeMap;

use fordway_store::{
    ByteRange, Conditions, CopyOptions, DeleteOptions, Error, ErrorKind, GetOptions, ObjectInfo, Store,
};
use fordway_wire::header_text;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use s3s::dto::{
    ChecksumMode, ChecksumType, CopyObjectInput, CopyObjectOutput, CopyObjectResult, CopySource,
    DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, DeletedObject,
    GetObjectInput, GetObjectOutput, HeadObjectInput, HeadObjectOutput, MetadataDirective, Range,
};
use s3s::{S3Request, S3Response};

use super::convert::{
    conditions_of, etag, metadata_of, names, only_current_version, put_checksum, read_conditions, refuse,
    refuse_unsupported, size, timestamp, write_conditions,
};
use super::error::{Failure, Outcome, message};
use crate::body::Payload;

/// What S3 answers for an object that was stored without a type.
const DEFAULT_TYPE: &str = "binary/octet-stream";
/// The most keys one DeleteObjects may name (S3's limit).
const DELETE_KEYS_MAX: usize = 1000;

pub(super) fn get(
    store: &dyn Store,
    request: S3Request<GetObjectInput>,
) -> Outcome<S3Response<GetObjectOutput>> {
    let input = request.input;
    only_current_version(input.version_id.as_deref())?;
    refuse(&[("partNumber", input.part_number.is_some())])?;
    let (bucket, key) = names(&input.bucket, &input.key)?;
    let conditions = read_conditions(
        input.if_match,
        input.if_none_match,
        input.if_modified_since,
        input.if_unmodified_since,
    );
    let options = GetOptions { range: input.range.map(byte_range), conditions };
    let found = store.get(&bucket, &key, &options);
    let object = found.map_err(|error| {
        let current = || store.head(&bucket, &key, &GetOptions::default());
        explained(error, current)
    })?;

    let part = options.range.is_some();
    let wants_checksum = input.checksum_mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED);
    let expires = object.info.metadata.expires.clone().filter(|_| input.response_expires.is_none());
    let size_bytes = object.info.size;
    let mut output = describe(object.info, wants_checksum && !part);
    output.content_length = size(object.content.len());
    output.content_range =
        part.then(|| format!("bytes {}-{}/{size_bytes}", object.range.start, object.range.end - 1));
    let mut response = S3Response::new(output);
    response.headers = expires_header(expires);
    response.extensions.insert(Payload::new(object.content)?);
    Ok(response)
}

pub(super) fn head(
    store: &dyn Store,
    request: S3Request<HeadObjectInput>,
) -> Outcome<S3Response<HeadObjectOutput>> {
    let input = request.input;
    only_current_version(input.version_id.as_deref())?;
    refuse(&[("partNumber", input.part_number.is_some())])?;
    let (bucket, key) = names(&input.bucket, &input.key)?;
    let conditions = read_conditions(
        input.if_match,
        input.if_none_match,
        input.if_modified_since,
        input.if_unmodified_since,
    );
    let found = store.head(&bucket, &key, &GetOptions { range: None, conditions });
    let info = found.map_err(|error| {
        let current = || store.head(&bucket, &key, &GetOptions::default());
        explained(error, current)
    })?;
    let wants_checksum = input.checksum_mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED);
    let expires = info.metadata.expires.clone();
    let length = size(info.size);
    let output = HeadObjectOutput { content_length: length, ..without_body(describe(info, wants_checksum)) };
    Ok(S3Response::with_headers(output, expires_header(expires)))
}

fn byte_range(range: Range) -> ByteRange {
    match range {
        Range::Int { first, last: Some(last) } => ByteRange::Inclusive(first, last),
        Range::Int { first, last: None } => ByteRange::From(first),
        Range::Suffix { length } => ByteRange::Last(length),
    }
}

/// Adds what HTTP wants beside some errors: the tag beside 304, the size beside 416
/// (RFC 9110 sections 15.4.5 and 15.5.17).
fn explained(error: Error, current: impl FnOnce() -> fordway_store::Result<ObjectInfo>) -> Failure {
    let kind = error.kind();
    let mut failure = Failure::from(error);
    if matches!(kind, ErrorKind::NotModified | ErrorKind::InvalidRange)
        && let Ok(info) = current()
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

/// The S3 layer knows `Expires` only as a time; it is answered as it was written.
fn expires_header(expires: Option<String>) -> HeaderMap {
    let value = expires.and_then(|text| HeaderValue::try_from(text).ok());
    value.map(|value| (header::EXPIRES, value)).into_iter().collect()
}

/// User metadata as headers can carry it.
fn user_headers(user: BTreeMap<String, String>) -> s3s::dto::Metadata {
    user.into_iter().map(|(name, text)| (name, header_text::encode(&text).into_owned())).collect()
}

/// All that an answer says of an object, save its length.
fn describe(info: ObjectInfo, with_checksum: bool) -> GetObjectOutput {
    let metadata = info.metadata;
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
        ..Default::default()
    };
    if let Some(checksum) = info.checksum.filter(|_| with_checksum) {
        put_checksum!(output, Some(&checksum));
        output.checksum_type = Some(ChecksumType::from_static(ChecksumType::FULL_OBJECT));
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
        ..Default::default()
    }
}

pub(super) fn delete(store: &dyn Store, input: DeleteObjectInput) -> Outcome<DeleteObjectOutput> {
    only_current_version(input.version_id.as_deref())?;
    refuse(&[
        ("x-amz-if-match-size", input.if_match_size.is_some()),
        ("x-amz-if-match-last-modified-time", input.if_match_last_modified_time.is_some()),
    ])?;
    let (bucket, key) = names(&input.bucket, &input.key)?;
    let options = DeleteOptions { conditions: write_conditions(input.if_match, None) };
    store.delete(&bucket, &key, &options)?;
    Ok(DeleteObjectOutput::default())
}

pub(super) fn delete_many(store: &dyn Store, input: DeleteObjectsInput) -> Outcome<DeleteObjectsOutput> {
    let bucket = fordway_store::Bucket::new(input.bucket)?;
    let objects = input.delete.objects;
    if objects.is_empty() || objects.len() > DELETE_KEYS_MAX {
        let message = format!("name 1 to {DELETE_KEYS_MAX} keys, not {}", objects.len());
        return Err(Failure::new("MalformedXML", StatusCode::BAD_REQUEST, message));
    }
    for object in &objects {
        only_current_version(object.version_id.as_deref())?;
        let conditional =
            object.e_tag.is_some() || object.size.is_some() || object.last_modified_time.is_some();
        refuse(&[("a condition on a key of DeleteObjects", conditional)])?;
    }
    store.head_bucket(&bucket)?;

    let quiet = input.delete.quiet.unwrap_or(false);
    let (mut keys, mut errors, mut deleted) = (Vec::with_capacity(objects.len()), Vec::new(), Vec::new());
    for object in objects {
        match fordway_store::Key::new(object.key.clone()) {
            Ok(key) => keys.push(key),
            Err(error) => errors.push(not_deleted(object.key, &error)),
        }
    }
    for (key, result) in keys.iter().zip(store.delete_many(&bucket, &keys)) {
        match result {
            Ok(()) if quiet => {}
            Ok(()) => {
                deleted.push(DeletedObject { key: Some(key.as_str().to_owned()), ..Default::default() });
            }
            Err(error) => errors.push(not_deleted(key.as_str().to_owned(), &error)),
        }
    }
    Ok(DeleteObjectsOutput { deleted: Some(deleted), errors: Some(errors), request_charged: None })
}

fn not_deleted(key: String, error: &Error) -> s3s::dto::Error {
    let (_, code) = fordway_wire::s3_error::to_s3(error.kind());
    s3s::dto::Error {
        code: Some(code.to_owned()),
        key: Some(key),
        message: Some(message(error)),
        version_id: None,
    }
}

pub(super) fn copy(store: &dyn Store, request: S3Request<CopyObjectInput>) -> Outcome<CopyObjectOutput> {
    let (mut input, headers) = (request.input, request.headers);
    refuse_unsupported!(input)?;
    let (bucket, key) = names(&input.bucket, &input.key)?;
    let (from_bucket, from_key) = copy_source(&input.copy_source)?;
    let replaces = input
        .metadata_directive
        .as_ref()
        .is_some_and(|directive| directive.as_str() == MetadataDirective::REPLACE);
    let source_conditions = read_conditions(
        input.copy_source_if_match.take(),
        input.copy_source_if_none_match.take(),
        input.copy_source_if_modified_since.take(),
        input.copy_source_if_unmodified_since.take(),
    );
    let metadata = replaces.then(|| metadata_of!(input, &headers));
    let options = CopyOptions { metadata, source_conditions, conditions: conditions_of(&headers)? };
    let made = store.copy((&from_bucket, &from_key), &bucket, &key, &options)?;

    let mut result = CopyObjectResult {
        e_tag: etag(&made.etag),
        last_modified: timestamp(made.modified),
        ..Default::default()
    };
    put_checksum!(result, &made.checksum);
    Ok(CopyObjectOutput { copy_object_result: Some(result), ..Default::default() })
}

/// The object that a copy reads.
pub(super) fn copy_source(source: &CopySource) -> Outcome<(fordway_store::Bucket, fordway_store::Key)> {
    match source {
        CopySource::Bucket { bucket, key, version_id } => {
            only_current_version(version_id.as_deref())?;
            names(bucket, key)
        }
        _ => {
            Err(Error::new(ErrorKind::NotImplemented, "copy from /bucket/key; there are no access points")
                .into())
        }
    }
}

/// What a copied part asks of its source, with the range it takes.
pub(super) fn copy_source_options(range: Option<&str>, conditions: Conditions) -> Outcome<GetOptions> {
    let range = range.map(Range::parse).transpose();
    let range = range.map_err(|_| {
        Error::new(ErrorKind::InvalidArgument, "x-amz-copy-source-range is not bytes=first-last")
    })?;
    Ok(GetOptions { range: range.map(byte_range), conditions })
}
