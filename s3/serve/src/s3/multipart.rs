//! Multipart uploads.

use fordway_store::{
    Bucket, ByteRange, ChecksumPlan, Error, ErrorKind, GetOptions, Key, PartInfo, PartsQuery, PutOptions,
    Store, UploadId, checked_part_number,
};
use fordway_wire::date::format_iso8601;
use fordway_wire::s3_xml::AnswerDocument;
use http::{HeaderMap, HeaderName, Uri};
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, ListPartsInput, ListPartsOutput, Owner,
};
use s3s::{Body, S3Response};

use crate::message::composed;
use crate::s3::convert::{
    TAGGING, add_text, algorithm, checksum_headers, checksum_type, document, invalid_request, metadata,
    names, page_size, parameter, quoted, tags, written,
};
use crate::s3::copy::{add_versions, copied, copy_source, copy_source_options};
use crate::s3::error::{Failure, Outcome};
use crate::s3::list::write_owner;

/// The most entries in one answer (S3's limit).
const PAGE_MAX: usize = 1000;

/// Errors: `InvalidArgument` outside of 1 to 10,000.
pub(super) fn part_number(number: i32) -> Outcome<u16> {
    // What does not fit is out of range in any case.
    checked_part_number(u16::try_from(number).unwrap_or(0)).map_err(|_| {
        let words = "Part number must be an integer between 1 and 10000, inclusive.";
        Failure::argument(words, "partNumber", &number.to_string())
    })
}

pub(super) fn create(
    store: &dyn Store,
    (bucket, key): &(String, String),
    headers: &HeaderMap,
) -> Outcome<S3Response<Body>> {
    let (bucket, key) = names(bucket, key)?;
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let options = PutOptions {
        metadata: metadata(headers),
        tags: tags(text(TAGGING.as_str()))?,
        checksum: text("x-amz-checksum-algorithm").map(algorithm).transpose()?,
        checksum_type: text("x-amz-checksum-type").map(checksum_type).transpose()?,
        ..Default::default()
    };
    options.check_upload().map_err(|error| unfit_checksum(&options, error))?;
    let upload = store.create_upload(&bucket, &key, &options)?;
    let mut result = AnswerDocument::new("InitiateMultipartUploadResult");
    result.element("Bucket", bucket.as_str()).element("Key", key.as_str());
    result.element("UploadId", upload.as_str());
    let mut response = document(result);
    if let Some(ChecksumPlan { algorithm, kind }) = options.checksum_plan() {
        add_text(&mut response.headers, CHECKSUM_ALGORITHM, algorithm.name());
        response.headers.extend(checksum_headers(None, Some(kind)));
    }
    Ok(response)
}

/// What is wrong with an upload's checksum, in AWS's words.
fn unfit_checksum(options: &PutOptions, error: Error) -> Failure {
    let words = match (options.checksum_type, options.checksum) {
        _ if error.kind() != ErrorKind::InvalidArgument => return error.into(),
        (Some(kind), Some(algorithm)) => format!(
            "The {} checksum type cannot be used with the {} checksum algorithm.",
            kind.name(),
            algorithm.name().to_lowercase()
        ),
        _ => "The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header."
            .to_owned(),
    };
    invalid_request(composed(&words, error.detail(), &[]))
}

const CHECKSUM_ALGORITHM: HeaderName = HeaderName::from_static("x-amz-checksum-algorithm");

pub(super) fn copy_part(
    store: &dyn Store,
    (bucket, key): &(String, String),
    headers: &HeaderMap,
    uri: &Uri,
) -> Outcome<S3Response<Body>> {
    let (bucket, key) = names(bucket, key)?;
    let asked = |name: &str| parameter(uri, name).unwrap_or_default();
    let upload = UploadId::new(asked("uploadId"))?;
    let number = part_number(asked("partNumber").parse().unwrap_or(0))?;
    let (from_bucket, from_key, version) = copy_source(headers)?;
    let options = copy_source_options(headers, version.clone())?;
    check_within(store, (&from_bucket, &from_key), &options)?;
    let made = store.copy_part((&from_bucket, &from_key), &options, (&bucket, &key, &upload, number));
    let made = made.map_err(as_copy_condition)?;
    let mut response = document(copied("CopyPartResult", &made));
    add_versions(&mut response, version.as_ref(), None);
    Ok(response)
}

/// A read gets what there is of its range; a copied part must be all that was asked for, or its writer
/// would not know that it is short. Errors: `InvalidRange`, and errors of the store.
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

pub(super) fn abort(
    store: &dyn Store,
    input: AbortMultipartUploadInput,
) -> Outcome<AbortMultipartUploadOutput> {
    let (bucket, key) = names(&input.bucket, &input.key)?;
    store.abort_upload(&bucket, &key, &UploadId::new(input.upload_id)?)?;
    Ok(AbortMultipartUploadOutput::default())
}

pub(super) fn list_parts(
    store: &dyn Store,
    owner: &Owner,
    input: ListPartsInput,
) -> Outcome<S3Response<ListPartsOutput>> {
    let (bucket, key) = names(&input.bucket, &input.key)?;
    let upload = UploadId::new(input.upload_id.as_str())?;
    let after = u16::try_from(input.part_number_marker.unwrap_or(0))
        .map_err(|_| Error::new(ErrorKind::InvalidArgument, "part-number-marker is not a part's number"))?;
    let query = PartsQuery { after, max_parts: page_size("max-parts", input.max_parts, PAGE_MAX)? };
    let listing = store.list_parts(&bucket, &key, &upload, &query)?;
    let next = listing.parts.last().filter(|_| listing.truncated).map(|part| part.number.to_string());
    let mut document = AnswerDocument::new("ListPartsResult");
    document.element("Bucket", bucket.as_str()).element("Key", key.as_str());
    document.element("UploadId", upload.as_str()).element("PartNumberMarker", &after.to_string());
    document.maybe("NextPartNumberMarker", next.as_deref());
    document.element("MaxParts", &query.max_parts.to_string());
    document.element("IsTruncated", if listing.truncated { "true" } else { "false" });
    listing.parts.iter().for_each(|part| write_part(&mut document, part));
    write_upload(&mut document, owner, listing.checksum);
    Ok(written(ListPartsOutput::default(), document))
}

fn write_part(document: &mut AnswerDocument, part: &PartInfo) {
    document.open("Part").element("PartNumber", &part.number.to_string());
    document.element("LastModified", &format_iso8601(part.modified));
    document.element("ETag", &quoted(&part.etag)).element("Size", &part.size.to_string());
    document.checksum(part.checksum.as_ref()).close();
}

/// What is the same of an upload in every listing.
pub(super) fn write_upload(document: &mut AnswerDocument, owner: &Owner, checksum: Option<ChecksumPlan>) {
    for element in ["Initiator", "Owner"] {
        write_owner(document, element, owner);
    }
    document.element("StorageClass", "STANDARD");
    if let Some(ChecksumPlan { algorithm, kind }) = checksum {
        document.element("ChecksumAlgorithm", algorithm.name()).element("ChecksumType", kind.name());
    }
}
