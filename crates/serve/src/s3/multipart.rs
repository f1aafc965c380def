//! Multipart uploads.

use fordway_store::{
    Bucket, CompletedPart, ETag, Error, ErrorKind, PartsQuery, PutOptions, Store, UploadId, UploadsQuery,
    checked_part_number,
};
use s3s::S3Request;
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, CompleteMultipartUploadInput,
    CompleteMultipartUploadOutput, CopyPartResult, CreateMultipartUploadInput, CreateMultipartUploadOutput,
    ListMultipartUploadsInput, ListMultipartUploadsOutput, ListPartsInput, ListPartsOutput, MultipartUpload,
    Part, UploadPartCopyInput, UploadPartCopyOutput,
};

use super::convert::{
    algorithm, count, etag, metadata_of, names, page_size, put_checksum, read_conditions, refuse,
    refuse_unsupported, size, timestamp, write_conditions,
};
use super::error::Outcome;
use super::list::Encoding;
use super::objects::{copy_source, copy_source_options};

/// The most entries in one answer (S3's limit).
const PAGE_MAX: usize = 1000;

/// Errors: `InvalidArgument` outside of 1 to 10,000.
pub(super) fn part_number(number: i32) -> Outcome<u16> {
    // What does not fit is out of range in any case.
    Ok(checked_part_number(u16::try_from(number).unwrap_or(0))?)
}

pub(super) fn create(
    store: &dyn Store,
    request: S3Request<CreateMultipartUploadInput>,
) -> Outcome<CreateMultipartUploadOutput> {
    let (mut input, headers) = (request.input, request.headers);
    refuse_unsupported!(input)?;
    let (bucket, key) = names(&input.bucket, &input.key)?;
    let checksum = input.checksum_algorithm.as_ref().map(|name| algorithm(name.as_str())).transpose()?;
    let options = PutOptions { metadata: metadata_of!(input, &headers), checksum, ..Default::default() };
    let upload = store.create_upload(&bucket, &key, &options)?;
    Ok(CreateMultipartUploadOutput {
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(upload.as_str().to_owned()),
        checksum_algorithm: input.checksum_algorithm,
        checksum_type: input.checksum_type,
        ..Default::default()
    })
}

pub(super) fn copy_part(store: &dyn Store, input: UploadPartCopyInput) -> Outcome<UploadPartCopyOutput> {
    let (bucket, key) = names(&input.bucket, &input.key)?;
    let upload = UploadId::new(input.upload_id)?;
    let number = part_number(input.part_number)?;
    let (from_bucket, from_key) = copy_source(&input.copy_source)?;
    let conditions = read_conditions(
        input.copy_source_if_match,
        input.copy_source_if_none_match,
        input.copy_source_if_modified_since,
        input.copy_source_if_unmodified_since,
    );
    let options = copy_source_options(input.copy_source_range.as_deref(), conditions)?;
    let copied = store.copy_part((&from_bucket, &from_key), &options, (&bucket, &key, &upload, number));
    let made = copied.map_err(as_copy_condition)?;
    let mut result = CopyPartResult {
        e_tag: etag(&made.etag),
        last_modified: timestamp(made.modified),
        ..Default::default()
    };
    put_checksum!(result, &made.checksum);
    Ok(UploadPartCopyOutput { copy_part_result: Some(result), ..Default::default() })
}

/// A copy answers 412 where a read would answer 304.
fn as_copy_condition(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotModified => Error::new(ErrorKind::PreconditionFailed, error.detail()),
        _ => error,
    }
}

pub(super) fn complete(
    store: &dyn Store,
    input: CompleteMultipartUploadInput,
) -> Outcome<CompleteMultipartUploadOutput> {
    let (bucket, key) = names(&input.bucket, &input.key)?;
    let upload = UploadId::new(input.upload_id)?;
    let parts = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
    let parts = parts.into_iter().map(completed_part).collect::<Outcome<Vec<_>>>()?;
    let conditions = write_conditions(input.if_match, input.if_none_match);
    let made = store.complete_upload(&bucket, &key, &upload, &parts, &conditions)?;
    let mut output = CompleteMultipartUploadOutput {
        location: Some(format!("/{}/{}", input.bucket, input.key)),
        bucket: Some(input.bucket),
        key: Some(input.key),
        e_tag: etag(&made.etag),
        ..Default::default()
    };
    put_checksum!(output, &made.checksum);
    Ok(output)
}

fn completed_part(part: s3s::dto::CompletedPart) -> Outcome<CompletedPart> {
    let missing = |what| Error::new(ErrorKind::InvalidArgument, format!("a part without {what}"));
    let number = part.part_number.ok_or_else(|| missing("PartNumber"))?;
    let tag = part.e_tag.ok_or_else(|| missing("ETag"))?;
    Ok(CompletedPart::new(part_number(number)?, ETag::new(tag.value())))
}

pub(super) fn abort(
    store: &dyn Store,
    input: AbortMultipartUploadInput,
) -> Outcome<AbortMultipartUploadOutput> {
    refuse(&[("x-amz-if-match-initiated-time", input.if_match_initiated_time.is_some())])?;
    let (bucket, key) = names(&input.bucket, &input.key)?;
    store.abort_upload(&bucket, &key, &UploadId::new(input.upload_id)?)?;
    Ok(AbortMultipartUploadOutput::default())
}

pub(super) fn list_parts(store: &dyn Store, input: ListPartsInput) -> Outcome<ListPartsOutput> {
    let (bucket, key) = names(&input.bucket, &input.key)?;
    let upload = UploadId::new(input.upload_id.as_str())?;
    let after = u16::try_from(input.part_number_marker.unwrap_or(0))
        .map_err(|_| Error::new(ErrorKind::InvalidArgument, "part-number-marker is not a part's number"))?;
    let query = PartsQuery { after, max_parts: page_size(input.max_parts, PAGE_MAX)? };
    let listing = store.list_parts(&bucket, &key, &upload, &query)?;
    let next = listing.parts.last().filter(|_| listing.truncated).map(|part| i32::from(part.number));
    let parts = listing.parts.into_iter().map(|part| Part {
        part_number: Some(i32::from(part.number)),
        size: size(part.size),
        e_tag: etag(&part.etag),
        last_modified: timestamp(part.modified),
        ..Default::default()
    });
    Ok(ListPartsOutput {
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(input.upload_id),
        part_number_marker: Some(i32::from(after)),
        next_part_number_marker: next,
        max_parts: count(query.max_parts),
        is_truncated: Some(listing.truncated),
        parts: Some(parts.collect()),
        ..Default::default()
    })
}

pub(super) fn list_uploads(
    store: &dyn Store,
    input: ListMultipartUploadsInput,
) -> Outcome<ListMultipartUploadsOutput> {
    let grouped = input.delimiter.as_deref().is_some_and(|delimiter| !delimiter.is_empty());
    refuse(&[("a delimiter in ListMultipartUploads", grouped)])?;
    let bucket = Bucket::new(input.bucket.as_str())?;
    let query = UploadsQuery {
        prefix: input.prefix.clone().unwrap_or_default(),
        key_after: input.key_marker.clone().filter(|marker| !marker.is_empty()),
        upload_after: input.upload_id_marker.clone().filter(|marker| !marker.is_empty()),
        max_uploads: page_size(input.max_uploads, PAGE_MAX)?,
    };
    let listing = store.list_uploads(&bucket, &query)?;
    let encoding = Encoding::new(input.encoding_type.as_ref())?;
    let last = listing.uploads.last().filter(|_| listing.truncated).cloned();
    let uploads = listing.uploads.into_iter().map(|upload| MultipartUpload {
        key: Some(encoding.apply(&upload.key)),
        upload_id: Some(upload.upload.as_str().to_owned()),
        initiated: timestamp(upload.started),
        ..Default::default()
    });
    Ok(ListMultipartUploadsOutput {
        bucket: Some(input.bucket),
        prefix: Some(encoding.apply(&query.prefix)),
        key_marker: input.key_marker.as_deref().map(|marker| encoding.apply(marker)),
        upload_id_marker: input.upload_id_marker,
        next_key_marker: last.as_ref().map(|upload| encoding.apply(&upload.key)),
        next_upload_id_marker: last.map(|upload| upload.upload.as_str().to_owned()),
        max_uploads: count(query.max_uploads),
        is_truncated: Some(listing.truncated),
        uploads: Some(uploads.collect()),
        encoding_type: input.encoding_type,
        ..Default::default()
    })
}
