//! Multipart uploads.

use fordway_store::{
    Bucket, ByteRange, ChecksumType, CompleteOptions, CompletedPart, ETag, Error, ErrorKind, GetOptions, Key,
    PartInfo, PartsQuery, PutOptions, Store, UploadId, checked_part_number,
};
use s3s::S3Request;
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, CompleteMultipartUploadInput,
    CompleteMultipartUploadOutput, CopyPartResult, CreateMultipartUploadInput, CreateMultipartUploadOutput,
    ListPartsInput, ListPartsOutput, Part, UploadPartCopyInput, UploadPartCopyOutput,
};

use super::convert::{
    algorithm, checksum_type, count, etag, metadata_of, names, page_size, put_checksum, read_conditions,
    refuse, refuse_unsupported, size, stated_checksum, tags, timestamp, type_of, version_name,
    write_conditions,
};
use super::copy::{copy_source, copy_source_options};
use super::error::Outcome;

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
    let stated_type = input.checksum_type.as_ref().map(|name| checksum_type(name.as_str())).transpose()?;
    let options = PutOptions {
        metadata: metadata_of!(input, &headers),
        tags: tags(input.tagging.as_deref())?,
        checksum,
        checksum_type: stated_type,
        ..Default::default()
    };
    let kind = stated_type.or(checksum.map(ChecksumType::default_of));
    let upload = store.create_upload(&bucket, &key, &options)?;
    Ok(CreateMultipartUploadOutput {
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(upload.as_str().to_owned()),
        checksum_algorithm: input.checksum_algorithm,
        checksum_type: kind.map(|kind| s3s::dto::ChecksumType::from_static(kind.name())),
        ..Default::default()
    })
}

pub(super) fn copy_part(
    store: &dyn Store,
    request: S3Request<UploadPartCopyInput>,
) -> Outcome<UploadPartCopyOutput> {
    let input = request.input;
    let (bucket, key) = names(&input.bucket, &input.key)?;
    let upload = UploadId::new(input.upload_id)?;
    let number = part_number(input.part_number)?;
    let (from_bucket, from_key, version) = copy_source(&input.copy_source, &request.extensions)?;
    let conditions = read_conditions(
        input.copy_source_if_match,
        input.copy_source_if_none_match,
        input.copy_source_if_modified_since,
        input.copy_source_if_unmodified_since,
    );
    let options = copy_source_options(input.copy_source_range.as_deref(), version.clone(), conditions)?;
    check_within(store, (&from_bucket, &from_key), &options)?;
    let copied = store.copy_part((&from_bucket, &from_key), &options, (&bucket, &key, &upload, number));
    let made = copied.map_err(as_copy_condition)?;
    let mut result = CopyPartResult {
        e_tag: etag(&made.etag),
        last_modified: timestamp(made.modified),
        ..Default::default()
    };
    put_checksum!(result, &made.checksum);
    Ok(UploadPartCopyOutput {
        copy_part_result: Some(result),
        copy_source_version_id: version_name(version),
        ..Default::default()
    })
}

/// A read gets what there is of its range; a copied part must be all that was asked for, or its writer
/// would not know that it is short. Errors: `InvalidRange`, and those of the store.
fn check_within(store: &dyn Store, (bucket, key): (&Bucket, &Key), options: &GetOptions) -> Outcome<()> {
    let Some(ByteRange::Inclusive(_, last)) = options.range else { return Ok(()) };
    let source = GetOptions { version: options.version.clone(), ..Default::default() };
    let size = store.head(bucket, key, &source)?.size;
    match last < size {
        true => Ok(()),
        false => {
            let detail = format!("byte {last} is not in the source, which has {size} bytes");
            Err(Error::new(ErrorKind::InvalidRange, detail).into())
        }
    }
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
    let options = CompleteOptions {
        checksum: stated_checksum!(input)?,
        size: input.mpu_object_size.map(stated_size).transpose()?,
        conditions: write_conditions(input.if_match, input.if_none_match),
    };
    let upload = UploadId::new(input.upload_id)?;
    let parts = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
    let parts = parts.into_iter().map(completed_part).collect::<Outcome<Vec<_>>>()?;
    let made = store.complete_upload(&bucket, &key, &upload, &parts, &options)?;
    let mut output = CompleteMultipartUploadOutput {
        location: Some(format!("/{}/{}", input.bucket, input.key)),
        bucket: Some(input.bucket),
        key: Some(input.key),
        e_tag: etag(&made.etag),
        checksum_type: made.checksum.as_ref().map(type_of),
        version_id: version_name(made.version),
        ..Default::default()
    };
    put_checksum!(output, &made.checksum);
    Ok(output)
}

fn stated_size(bytes: i64) -> Outcome<u64> {
    let negative = |_| Error::new(ErrorKind::InvalidArgument, "x-amz-mp-object-size is negative");
    Ok(u64::try_from(bytes).map_err(negative)?)
}

fn completed_part(part: s3s::dto::CompletedPart) -> Outcome<CompletedPart> {
    let missing = |what| Error::new(ErrorKind::InvalidArgument, format!("a part without {what}"));
    let number = part.part_number.ok_or_else(|| missing("PartNumber"))?;
    let tag = part.e_tag.as_ref().ok_or_else(|| missing("ETag"))?;
    Ok(CompletedPart {
        number: part_number(number)?,
        etag: ETag::new(tag.value()),
        checksum: stated_checksum!(part)?,
    })
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
    let parts = listing.parts.into_iter().map(listed_part);
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

fn listed_part(part: PartInfo) -> Part {
    let mut listed = Part {
        part_number: Some(i32::from(part.number)),
        size: size(part.size),
        e_tag: etag(&part.etag),
        last_modified: timestamp(part.modified),
        ..Default::default()
    };
    put_checksum!(listed, &part.checksum);
    listed
}
