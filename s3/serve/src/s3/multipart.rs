//! Multipart uploads: their parts, their completion, and the list of uploads in progress. A delimiter can group the
//! keys in that list, as in a listing of objects.

use std::sync::Arc;

use fordway_store::{
    Bucket, ByteRange, ChecksumAlgorithmAndType, ChecksumType, CompleteOptions, CompletedPart, Error,
    ErrorKind, GetOptions, Key, MAX_PARTS, PartInfo, PartsQuery, PutOptions, PutResult, Store, UploadId,
    UploadPage, UploadSummary, UploadsQuery, checked_part_number,
};
use fordway_wire::date::format_iso8601;
use fordway_wire::s3_xml::{ResponseDocumentBuilder, completed_parts};
use http::{HeaderMap, HeaderName, StatusCode, Uri};
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, EncodingType, ListMultipartUploadsInput,
    ListMultipartUploadsOutput, ListPartsInput, ListPartsOutput, Owner,
};
use s3s::{Body, S3Request, S3Response};

use crate::answer::UrlScheme;
use crate::message::composed;
use crate::s3::apart::change_apart;
use crate::s3::convert::{
    CONDITIONS, TAGGING, add_text, add_version, algorithm, checksum_headers, checksum_type, conditions_in,
    document, invalid_request, location, metadata, names, page_size, parameter, quoted, stated_checksum,
    tags, written,
};
use crate::s3::copy::{add_versions, copied, copy_source, copy_source_options, source_failure};
use crate::s3::error::{OperationResult, S3Failure, unreadable_body};
use crate::s3::list::{NameEncoding, write_owner};
use crate::s3::lock;
use crate::users::User;

/// The maximum number of entries in one response (S3's limit).
const PAGE_MAX: usize = 1000;

/// Checks a part number. Errors: `InvalidArgument` outside 1 to 10,000.
pub(super) fn part_number(number: i32) -> OperationResult<u16> {
    // A number that does not fit into 16 bits is replaced by 0, which is also out of range.
    checked_part_number(u16::try_from(number).unwrap_or(0)).map_err(|_| {
        let words = "Part number must be an integer between 1 and 10000, inclusive.";
        S3Failure::argument(words, "partNumber", &number.to_string())
    })
}

pub(super) fn create(
    store: &dyn Store,
    (bucket, key): &(String, String),
    headers: &HeaderMap,
) -> OperationResult<S3Response<Body>> {
    let (bucket, key) = names(bucket, key)?;
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let options = PutOptions {
        metadata: metadata(headers)?,
        tags: tags(text(TAGGING.as_str()))?,
        checksum: text("x-amz-checksum-algorithm").map(algorithm).transpose()?,
        checksum_type: text("x-amz-checksum-type").map(checksum_type).transpose()?,
        lock: lock::stated(store, &bucket, headers)?,
        ..Default::default()
    };
    options.check_upload().map_err(|error| unfit_checksum(&options, error))?;
    let upload = store.create_upload(&bucket, &key, &options)?;
    let mut result = ResponseDocumentBuilder::new("InitiateMultipartUploadResult");
    result.element("Bucket", bucket.as_str()).element("Key", key.as_str());
    result.element("UploadId", upload.as_str());
    let mut response = document(result);
    if let Some(ChecksumAlgorithmAndType { algorithm, kind }) = options.checksum_plan() {
        add_text(&mut response.headers, CHECKSUM_ALGORITHM, algorithm.name());
        response.headers.extend(checksum_headers(None, Some(kind)));
    }
    Ok(response)
}

/// Returns the error for an invalid combination of checksum algorithm and type, with AWS's message.
fn unfit_checksum(options: &PutOptions, error: Error) -> S3Failure {
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
) -> OperationResult<S3Response<Body>> {
    let (bucket, key) = names(bucket, key)?;
    let asked = |name: &str| parameter(uri, name).unwrap_or_default();
    let upload = UploadId::new(asked("uploadId"))?;
    let number = part_number(asked("partNumber").parse().unwrap_or(0))?;
    let (from_bucket, from_key, version) = match copy_source(headers) {
        Ok(source) => source,
        // AWS reports a missing bucket rather than an invalid source.
        Err(failure) => return Err(store.head_bucket(&bucket).err().map_or(failure, S3Failure::from)),
    };
    let options = copy_source_options(headers, version.clone())?;
    check_within(store, (&from_bucket, &from_key), &options)?;
    let made = store.copy_part((&from_bucket, &from_key), &options, (&bucket, &key, &upload, number));
    let made = made.map_err(|error| source_failure(as_copy_condition(error)))?;
    let mut response = document(copied("CopyPartResult", &made));
    add_versions(&mut response, version.as_ref(), None);
    Ok(response)
}

/// Checks that the range of a copied part is within the source. A read may return less than its range, but a copied
/// part must be complete, because nobody would notice a part that is too short. Errors: `InvalidArgument`, and errors
/// from the store.
fn check_within(
    store: &dyn Store,
    (bucket, key): (&Bucket, &Key),
    options: &GetOptions,
) -> OperationResult<()> {
    let Some(ByteRange::Inclusive(_, last)) = options.range else { return Ok(()) };
    let source = GetOptions { version: options.version.clone(), ..Default::default() };
    let size = store.head(bucket, key, &source).map_err(source_failure)?.size;
    match last < size {
        true => Ok(()),
        false => {
            let words = format!("Range specified is not valid for source object of size: {size}");
            Err(S3Failure::argument(&words, "x-amz-copy-source-range", &size.to_string()))
        }
    }
}

/// Converts the error for a failed condition, because a copy responds with 412 in cases where a read responds with 304.
fn as_copy_condition(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotModified => Error::new(ErrorKind::PreconditionFailed, error.detail()),
        _ => error,
    }
}

pub(super) fn abort(
    store: &dyn Store,
    input: AbortMultipartUploadInput,
) -> OperationResult<AbortMultipartUploadOutput> {
    let (bucket, key) = names(&input.bucket, &input.key)?;
    store.abort_upload(&bucket, &key, &UploadId::new(input.upload_id)?)?;
    Ok(AbortMultipartUploadOutput::default())
}

pub(super) fn list_parts(
    store: &dyn Store,
    owner: &Owner,
    input: ListPartsInput,
) -> OperationResult<S3Response<ListPartsOutput>> {
    let (bucket, key) = names(&input.bucket, &input.key)?;
    let upload = UploadId::new(input.upload_id.as_str())?;
    let after = u16::try_from(input.part_number_marker.unwrap_or(0)).map_err(|_| {
        Error::new(ErrorKind::InvalidArgument, "part-number-marker is not a valid part number")
    })?;
    let query = PartsQuery { after, max_parts: page_size("max-parts", input.max_parts, PAGE_MAX)? };
    let listing = store.list_parts(&bucket, &key, &upload, &query)?;
    let next = listing.parts.last().filter(|_| listing.truncated).map(|part| part.number.to_string());
    let mut document = ResponseDocumentBuilder::new("ListPartsResult");
    document.element("Bucket", bucket.as_str()).element("Key", key.as_str());
    document.element("UploadId", upload.as_str()).element("PartNumberMarker", &after.to_string());
    document.maybe("NextPartNumberMarker", next.as_deref());
    document.element("MaxParts", &query.max_parts.to_string());
    document.element("IsTruncated", if listing.truncated { "true" } else { "false" });
    listing.parts.iter().for_each(|part| write_part(&mut document, part));
    write_upload(&mut document, owner, listing.checksum);
    Ok(written(ListPartsOutput::default(), document))
}

fn write_part(document: &mut ResponseDocumentBuilder, part: &PartInfo) {
    document.open("Part").element("PartNumber", &part.number.to_string());
    document.element("LastModified", &format_iso8601(part.modified));
    document.element("ETag", &quoted(&part.etag)).element("Size", &part.size.to_string());
    document.checksum(part.checksum.as_ref()).close();
}

/// Writes the elements about an upload that are the same in all listings.
pub(super) fn write_upload(
    document: &mut ResponseDocumentBuilder,
    owner: &Owner,
    checksum: Option<ChecksumAlgorithmAndType>,
) {
    for element in ["Initiator", "Owner"] {
        write_owner(document, element, owner);
    }
    document.element("StorageClass", "STANDARD");
    if let Some(ChecksumAlgorithmAndType { algorithm, kind }) = checksum {
        document.element("ChecksumAlgorithm", algorithm.name()).element("ChecksumType", kind.name());
    }
}

pub(super) fn list_uploads(
    store: &dyn Store,
    owner: &Owner,
    input: ListMultipartUploadsInput,
) -> OperationResult<S3Response<ListMultipartUploadsOutput>> {
    let bucket = Bucket::new(input.bucket.as_str())?;
    let query = UploadsQuery {
        prefix: input.prefix.clone().unwrap_or_default(),
        key_after: input.key_marker.clone().filter(|marker| !marker.is_empty()),
        upload_after: input.upload_id_marker.clone().filter(|marker| !marker.is_empty()),
        max_uploads: page_size("max-uploads", input.max_uploads, PAGE_MAX)?,
    };
    let delimiter = input.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty());
    let page = UploadPage::read(store, &bucket, &query, delimiter)?;
    let encoding = NameEncoding::new(input.encoding_type.as_ref())?;
    let mut document = ResponseDocumentBuilder::new("ListMultipartUploadsResult");
    document.element("Bucket", bucket.as_str());
    document.element("KeyMarker", &encoding.apply(input.key_marker.as_deref().unwrap_or_default()));
    document.element("UploadIdMarker", input.upload_id_marker.as_deref().unwrap_or_default());
    if let Some((key, upload)) = &page.next {
        document
            .element("NextKeyMarker", &encoding.apply(key))
            .element("NextUploadIdMarker", upload.as_str());
    }
    document.element("Prefix", &encoding.apply(&query.prefix));
    document.maybe("Delimiter", delimiter.map(|delimiter| encoding.apply(delimiter)).as_deref());
    document.maybe("EncodingType", input.encoding_type.as_ref().map(EncodingType::as_str));
    document.element("MaxUploads", &query.max_uploads.to_string());
    document.element("IsTruncated", if page.next.is_some() { "true" } else { "false" });
    page.uploads.iter().for_each(|upload| write_summary(&mut document, upload, encoding, owner));
    for prefix in &page.prefixes {
        document.open("CommonPrefixes").element("Prefix", &encoding.apply(prefix)).close();
    }
    Ok(written(ListMultipartUploadsOutput::default(), document))
}

fn write_summary(
    document: &mut ResponseDocumentBuilder,
    upload: &UploadSummary,
    encoding: NameEncoding,
    owner: &Owner,
) {
    document.open("Upload").element("Key", &encoding.apply(&upload.key));
    document.element("UploadId", upload.upload.as_str());
    document.element("Initiated", &format_iso8601(upload.started));
    write_upload(document, owner, upload.checksum);
    document.close();
}

pub(super) async fn complete(
    user: Arc<User>,
    names: (String, String),
    mut request: S3Request<Body>,
) -> OperationResult<S3Response<Body>> {
    // `crate::gate` has already limited the size of the body.
    let document = request.input.store_all_limited(usize::MAX).await;
    let document = document.map_err(|error| unreadable_body(&*error))?;
    let scheme = request.extensions.get::<UrlScheme>().copied();
    let location = location(&names, scheme, &request.headers);
    let made = change_apart(user, move |store| {
        let wanted = CompletionRequest::read(&names, &request.headers, &request.uri)?;
        let parts = completed_parts(&document).map_err(malformed)?;
        wanted.complete(store, &parts).map(|made| (names, made))
    });
    let ((bucket, key), made) = made.await?;
    Ok(answer(&bucket, &key, location.as_deref(), &made))
}

fn malformed(error: Error) -> S3Failure {
    let argument = |words: &str, name: &str| {
        let message = composed(words, error.detail(), &[("ArgumentName", name)]);
        S3Failure::new("InvalidArgument", StatusCode::BAD_REQUEST, message)
    };
    match error.kind() {
        ErrorKind::InvalidArgument => {
            argument("Invalid Base64 or multiple checksums present in request", "Checksum")
        }
        ErrorKind::InvalidPart => argument("PartNumber must be >= 1", "PartNumber"),
        _ => no_document(error.detail().to_owned()),
    }
}

fn no_document(message: String) -> S3Failure {
    S3Failure::new("MalformedXML", StatusCode::BAD_REQUEST, message)
}

/// The values in the head of a CompleteMultipartUpload request.
struct CompletionRequest {
    bucket: fordway_store::Bucket,
    key: fordway_store::Key,
    upload: UploadId,
    kind: Option<ChecksumType>,
    options: CompleteOptions,
}

impl CompletionRequest {
    fn read((bucket, key): &(String, String), headers: &HeaderMap, uri: &Uri) -> OperationResult<Self> {
        let (bucket, key) = names(bucket, key)?;
        let upload = UploadId::new(parameter(uri, "uploadId").unwrap_or_default())?;
        let checksum = stated_checksum(headers).map_err(invalid_request)?;
        let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        let kind = text("x-amz-checksum-type").map(checksum_type).transpose()?;
        let not_a_size = |size: &str| {
            let why = if size.starts_with('-') { "less than zero" } else { "invalid" };
            let words = format!("Value for x-amz-mp-object-size header is {why}: '{size}'");
            invalid_request(composed(&words, "", &[]))
        };
        let size = text("x-amz-mp-object-size").map(|size| size.parse().map_err(|_| not_a_size(size)));
        let options = CompleteOptions {
            checksum,
            size: size.transpose()?,
            conditions: conditions_in(headers, &CONDITIONS)?,
        };
        Ok(CompletionRequest { bucket, key, upload, kind, options })
    }

    fn complete(&self, store: &dyn Store, parts: &[CompletedPart]) -> OperationResult<PutResult> {
        self.check_checksums(store, parts)?;
        let made = store.complete_upload(&self.bucket, &self.key, &self.upload, parts, &self.options);
        made.map_err(|error| match (error.kind(), self.options.size) {
            (ErrorKind::InvalidArgument, _) if parts.is_empty() => {
                no_document("the document names no part; name at least one".to_owned())
            }
            (ErrorKind::IncompleteBody, Some(stated)) => self.wrong_size(store, parts, stated),
            _ => error.into(),
        })
    }

    /// Checks that the checksum type in the request, if any, is the upload's type, and that the parts' checksums use
    /// the upload's algorithm. Errors: `InvalidRequest`, `BadDigest`.
    fn check_checksums(&self, store: &dyn Store, parts: &[CompletedPart]) -> OperationResult<()> {
        let query = PartsQuery { max_parts: 0, ..Default::default() };
        // The upload may already have been completed. The store's `complete_upload` then determines the result.
        let Ok(upload) = store.list_parts(&self.bucket, &self.key, &self.upload, &query) else {
            return Ok(());
        };
        let Some(plan) = upload.checksum else { return Ok(()) };
        if let Some(stated) = self.kind.filter(|stated| *stated != plan.kind) {
            let words = format!(
                "The upload was created using the {} checksum mode. The complete request must use the same \
                 checksum mode.",
                plan.kind.name()
            );
            return Err(invalid_request(composed(&words, &format!("not {}", stated.name()), &[])));
        }
        parts.iter().try_for_each(|part| check_part(plan, part))
    }

    /// Returns the error for an object that does not have the declared size.
    fn wrong_size(&self, store: &dyn Store, parts: &[CompletedPart], stated: u64) -> S3Failure {
        let query = PartsQuery { max_parts: usize::from(MAX_PARTS), ..Default::default() };
        let listed = store.list_parts(&self.bucket, &self.key, &self.upload, &query);
        let is_named = |part: &&PartInfo| parts.iter().any(|named| named.number == part.number);
        let sum = |parts: &[PartInfo]| parts.iter().filter(is_named).map(|part| part.size).sum::<u64>();
        let computed = listed.map_or(0, |listed| sum(&listed.parts));
        let words = format!(
            "The provided 'x-amz-mp-object-size' header value {stated} does not match what was computed: {computed}"
        );
        invalid_request(composed(&words, "", &[]))
    }
}

/// Checks the checksum of a part in a CompleteMultipartUpload request, if the upload has checksums. Errors: `BadDigest`
/// if the checksum's algorithm differs from the upload's; `InvalidRequest` if the checksum is missing and the upload's
/// checksum type is `COMPOSITE`.
fn check_part(plan: ChecksumAlgorithmAndType, part: &CompletedPart) -> OperationResult<()> {
    let number = part.number;
    match &part.checksum {
        Some(stated) if stated.algorithm != plan.algorithm => {
            let name = stated.algorithm.name().to_lowercase();
            let words = format!("The {name} you specified for part {number} did not match what we received.");
            let detail = format!("the upload has a {}", plan.algorithm.name());
            Err(S3Failure::aws("BadDigest", StatusCode::BAD_REQUEST, &words, &detail))
        }
        None if plan.kind == ChecksumType::Composite => {
            let name = plan.algorithm.name().to_lowercase();
            let words = format!(
                "The upload was created using a {name} checksum. The complete request must include the checksum for \
                 each part. It was missing for part {number} in the request."
            );
            Err(invalid_request(composed(&words, "", &[])))
        }
        Some(_) | None => Ok(()),
    }
}

fn answer(bucket: &str, key: &str, location: Option<&str>, made: &PutResult) -> S3Response<Body> {
    let mut result = ResponseDocumentBuilder::new("CompleteMultipartUploadResult");
    if let Some(location) = location {
        result.element("Location", location);
    }
    result.element("Bucket", bucket).element("Key", key).element("ETag", &quoted(&made.etag));
    result.checksum_with_type(made.checksum.as_ref());
    let mut response = document(result);
    add_version(&mut response.headers, made.version.as_ref());
    response
}
