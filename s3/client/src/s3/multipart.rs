//! Implements multipart uploads, and lists the parts of a completed object.

use std::time::Instant;

use fordway_http::BodySink;
use fordway_store::{
    Bucket, ByteRange, Checksum, ChecksumAlgorithm, ChecksumType, CompleteOptions, CompletedPart,
    ContentHasher, ETagPolicy, Error, ErrorKind, ExpectedContent, GetOptions, Key, MAX_PARTS, ObjectInfo,
    ObjectPart, PartListing, PartsQuery, PutOptions, PutResult, Result, UploadId, UploadListing,
    UploadSummary, UploadsQuery, checked_part_number,
};
use fordway_wire::range::{digits, format_range};
use fordway_wire::s3_xml;
use fordway_wire::s3_xml::{CopyResult, ObjectPartsPage, UploadCompletionResult};

use crate::s3::headers::{
    OF_COPY_SOURCE, OF_OBJECT, add_checksum, add_conditions, add_lock, add_metadata, add_tags, answered_at,
    put_result, version,
};
use crate::s3::list::{ListingLoopDetector, next_of};
use crate::s3::request::{S3Call, base64_digest, base64_md5};
use crate::s3::session::S3Session;
use crate::s3::store::head;
use crate::s3::{failure, read, store};

/// The maximum number of entries in one page.
const MAX_PAGE: usize = 1000;

/// Creates an upload. Declares the checksum algorithm in `options`, if any.
pub(super) fn create(
    session: &S3Session,
    (bucket, key): (&Bucket, &Key),
    options: &PutOptions,
) -> Result<UploadId> {
    let mut call = S3Call::on_object("POST", "create upload", bucket, key).query("uploads", "").once();
    options.check_upload().map_err(|error| call.named(error))?;
    add_metadata(&mut call, &options.metadata)?;
    add_tags(&mut call, &options.tags);
    add_lock(&mut call, &options.lock);
    if let Some(algorithm) = options.checksum {
        let kind = options.checksum_type.unwrap_or(ChecksumType::default_of(algorithm));
        call.header("x-amz-checksum-algorithm", algorithm.name());
        call.header("x-amz-checksum-type", kind.name());
    }
    session.run(&call, |mut response| s3_xml::initiate_multipart_upload(&response.read_document()?))
}

/// Identifies one part of a multipart upload.
pub(super) struct UploadPartId<'a> {
    pub(super) bucket: &'a Bucket,
    pub(super) key: &'a Key,
    pub(super) upload: &'a UploadId,
    pub(super) number: u16,
}

/// The digest with which the server checks a part.
pub(super) enum PartDigest {
    /// A checksum with this algorithm, which was declared when the upload was created.
    Checksum(ChecksumAlgorithm),
    /// A checksum that is already known.
    Known(Checksum),
    /// An MD5, which is computed if the value is `None`.
    Md5(Option<[u8; 16]>),
}

impl<'a> UploadPartId<'a> {
    fn call(&self, operation: &'static str) -> Result<S3Call<'a>> {
        let call = S3Call::on_object("PUT", operation, self.bucket, self.key);
        checked_part_number(self.number).map_err(|error| call.named(error))?;
        Ok(call.query("partNumber", self.number.to_string()).query("uploadId", self.upload.as_str()))
    }

    /// Sends the part's bytes. The request is idempotent, so it may be sent again.
    pub(super) fn put(&self, session: &S3Session, body: &'a [u8], check: PartDigest) -> Result<PutResult> {
        let mut call = self.call("put part")?.body(body);
        let sent = match check {
            PartDigest::Checksum(algorithm) => Some(Checksum::of(algorithm, body)),
            PartDigest::Known(checksum) => Some(checksum),
            PartDigest::Md5(md5) => {
                call.header("content-md5", md5.map_or_else(|| base64_md5(body), base64_digest));
                None
            }
        };
        if let Some(checksum) = &sent {
            add_checksum(&mut call, checksum);
        }
        session.run(&call, |mut response| {
            response.read_document()?;
            let made = put_result(&response)?;
            Ok(PutResult { checksum: made.checksum.or_else(|| sent.clone()), ..made })
        })
    }

    /// Sends the part's `bytes` while `produce` produces them. The request is sent again only if nothing was produced.
    /// Without an MD5, the server cannot check the content, so the ETag in the response is compared with the MD5 of the
    /// produced bytes, if the ETag is an MD5. Errors: `BadDigest` if they differ.
    pub(super) fn put_streamed(
        &self,
        session: &S3Session,
        (bytes, md5): (u64, Option<[u8; 16]>),
        produce: &mut dyn FnMut(&mut BodySink<'_>) -> Result<()>,
    ) -> Result<PutResult> {
        let mut call = self.call("put part")?;
        call.streamed_bytes = Some(bytes);
        if let Some(md5) = md5 {
            call.header("content-md5", base64_digest(md5));
        }
        let mut hasher = md5.is_none().then(|| ContentHasher::new(ETagPolicy::Fast, true, None));
        let mut produce_hashed = |sink: &mut BodySink<'_>| {
            produce(&mut |piece| {
                hasher.iter_mut().for_each(|hasher| hasher.update(piece));
                sink(piece)
            })
        };
        let made = session.run_streamed(&call, &mut produce_hashed, |mut response| {
            response.read_document()?;
            put_result(&response)
        })?;
        let Some(hasher) = hasher else { return Ok(made) };
        let sent = hasher.finish(&ExpectedContent::default())?.md5;
        match made.etag.as_md5() {
            stored if stored.is_none() || stored == sent => Ok(made),
            _ => {
                let detail =
                    "the ETag of the part is not the MD5 of the content that was sent; send the part again";
                Err(call.named(Error::new(ErrorKind::BadDigest, detail)))
            }
        }
    }

    /// Makes the server copy an object, or a range of an object, into the part.
    pub(super) fn copy(
        &self,
        session: &S3Session,
        from: (&Bucket, &Key),
        options: &GetOptions,
    ) -> Result<PutResult> {
        let mut call = self.call("copy part")?.slow();
        call.header("x-amz-copy-source", store::copy_source(from, options.version.as_ref()));
        add_conditions(&mut call, &options.conditions, &OF_COPY_SOURCE);
        if let Some(range) = closed(session, from, options)? {
            call.header("x-amz-copy-source-range", format_range(range));
        }
        session.run(&call, copied)
    }
}

/// Returns the requested range, or the range of the requested part, with an explicit first and last byte, as copies
/// require. Cost: none if the range specifies both ends; otherwise a HEAD, and for a part also the requests of
/// [`object_parts`].
fn closed(session: &S3Session, from: (&Bucket, &Key), options: &GetOptions) -> Result<Option<ByteRange>> {
    let parts = match (options.range, options.part) {
        (None, None) => return Ok(None),
        (Some(range @ ByteRange::Inclusive(..)), None) => return Ok(Some(range)),
        (_, None) => Vec::new(),
        (_, Some(_)) => object_parts(session, from, options)?,
    };
    let plain = GetOptions { version: options.version.clone(), ..Default::default() };
    let wanted = options.wanted(store::head(session, from, &plain)?.size, &parts)?;
    match wanted.is_empty() {
        true => {
            Err(Error::new(ErrorKind::InvalidRange, "the part is empty, and S3 cannot copy an empty range"))
        }
        false => Ok(Some(ByteRange::Inclusive(wanted.start, wanted.end - 1))),
    }
}

/// Reads the response to a copy, which may report a failure with status 200.
pub(super) fn copied(mut response: fordway_http::HttpResponse) -> Result<PutResult> {
    match s3_xml::copied(&response.read_document()?)? {
        CopyResult::Done(etag, modified, checksum) => {
            Ok(PutResult { etag, modified, checksum, version: version(&response) })
        }
        CopyResult::Failed(said) => Err(failure::of_document(&said)),
    }
}

/// Completes an upload. A service may require the checksum of every part. If the service refuses a request because a
/// checksum is missing, the checksums are requested from the service, and the completion is sent again.
pub(super) fn complete(
    session: &S3Session,
    target: (&Bucket, &Key, &UploadId),
    parts: &[CompletedPart],
    options: &CompleteOptions,
) -> Result<PutResult> {
    let refusal = match complete_once(session, target, parts, options) {
        Err(error) if misses_checksum(&error) => error,
        done => return done,
    };
    match with_checksums(session, target, parts) {
        Ok(Some(parts)) => complete_once(session, target, &parts, options),
        Ok(None) => Err(refusal),
        Err(error) => {
            let refusal = refusal.detail();
            let detail =
                format!("{} (the parts are listed because the completion failed: {refusal})", error.detail());
            Err(error.with_detail(detail))
        }
    }
}

/// Returns whether a completion was refused because it does not contain the checksum of a part. AWS has no separate
/// error code for this reason, so the message must be examined.
fn misses_checksum(error: &Error) -> bool {
    error.s3_code() == Some("InvalidRequest") && error.detail().contains("must include the checksum")
}

/// Returns `parts` with the checksums that the service lists for them; `None` if the service lists no checksum that
/// `parts` lack. The ETags still determine which parts the object consists of. Cost: none if all parts have checksums.
/// Errors: as for [`list_parts`].
fn with_checksums(
    session: &S3Session,
    target: (&Bucket, &Key, &UploadId),
    parts: &[CompletedPart],
) -> Result<Option<Vec<CompletedPart>>> {
    if parts.iter().all(|part| part.checksum.is_some()) {
        return Ok(None);
    }
    let query = PartsQuery { max_parts: usize::from(MAX_PARTS), ..PartsQuery::default() };
    let listed = list_parts(session, target, &query)?.parts;
    let checksum_of = |part: &CompletedPart| {
        let found = listed.binary_search_by_key(&part.number, |listed| listed.number).ok()?;
        listed[found].checksum.clone().filter(|_| listed[found].etag == part.etag)
    };
    let filled = parts.iter().map(|part| {
        let checksum = part.checksum.clone().or_else(|| checksum_of(part));
        CompletedPart { checksum, ..part.clone() }
    });
    Ok(Some(filled.collect::<Vec<_>>()).filter(|filled| filled != parts))
}

fn complete_once(
    session: &S3Session,
    (bucket, key, upload): (&Bucket, &Key, &UploadId),
    parts: &[CompletedPart],
    options: &CompleteOptions,
) -> Result<PutResult> {
    let document = s3_xml::complete_multipart_upload(parts);
    let mut call = S3Call::on_object("POST", "complete upload", bucket, key)
        .query("uploadId", upload.as_str())
        .document(&document)
        .once()
        .again_if_failed()
        .slow();
    add_conditions(&mut call, &options.conditions, &OF_OBJECT);
    if let Some(checksum) = &options.checksum {
        add_checksum(&mut call, checksum);
    }
    if let Some(size) = options.size {
        call.header("x-amz-mp-object-size", size.to_string());
    }
    let completed = session.run(&call, |mut response| {
        match s3_xml::complete_multipart_upload_result(&response.read_document()?)? {
            UploadCompletionResult::Published(etag, checksum) => {
                let (modified, version) = (answered_at(&response), version(&response));
                Ok(PutResult { etag, modified, checksum, version })
            }
            UploadCompletionResult::Failed(said) => Err(failure::of_document(&said)),
        }
    });
    match completed {
        Err(error) if error.tries() > 1 => made_before(session, (bucket, key, upload), parts, error),
        done => done,
    }
}

/// Returns the result of an earlier attempt at a completion, if that attempt took effect although the server said that
/// it failed. In this case, the last attempt, which failed with `error`, did not find the upload, and the object may
/// have been made from `parts`. Errors: `error`.
fn made_before(
    session: &S3Session,
    (bucket, key, upload): (&Bucket, &Key, &UploadId),
    parts: &[CompletedPart],
    error: Error,
) -> Result<PutResult> {
    let is_upload_gone = || {
        let query = PartsQuery { max_parts: 1, ..PartsQuery::default() };
        let listed = list_parts(session, (bucket, key, upload), &query);
        listed.is_err_and(|error| error.kind() == ErrorKind::NoSuchUpload)
    };
    let was_completed = match error.kind() {
        ErrorKind::NoSuchUpload => true,
        // The condition may have failed because of the object that an earlier attempt published.
        ErrorKind::PreconditionFailed => is_upload_gone(),
        _ => false,
    };
    if !was_completed {
        return Err(error);
    }
    match head(session, (bucket, key), &GetOptions::default()) {
        Ok(info) if CompletedPart::could_make(parts, &info.etag) => {
            let ObjectInfo { etag, modified, checksum, version, .. } = info;
            Ok(PutResult { etag, modified, checksum, version })
        }
        _ => Err(error),
    }
}

pub(super) fn abort(session: &S3Session, bucket: &Bucket, key: &Key, upload: &UploadId) -> Result<()> {
    let call =
        S3Call::on_object("DELETE", "abort upload", bucket, key).query("uploadId", upload.as_str()).once();
    session.run_for_status(&call)
}

pub(super) fn list_parts(
    session: &S3Session,
    (bucket, key, upload): (&Bucket, &Key, &UploadId),
    query: &PartsQuery,
) -> Result<PartListing> {
    let (mut found, until) = (PartListing::default(), session.until());
    loop {
        let after = found.parts.last().map_or(query.after, |part| part.number);
        let wanted = query.max_parts.saturating_sub(found.parts.len()).clamp(1, MAX_PAGE);
        let call = S3Call::on_object("GET", "list parts", bucket, key)
            .query("uploadId", upload.as_str())
            .query("part-number-marker", after.to_string())
            .query("max-parts", wanted.to_string());
        let document = session.run_for_page(&call, until)?;
        let mut page = s3_xml::list_parts(&document).map_err(|error| call.named(error))?;
        page.parts.retain(|part| part.number > after);
        if !page.parts.is_sorted_by(|a, b| a.number < b.number) {
            return Err(call.named(bad("the list of parts is not in order of their numbers")));
        }
        // The next page begins after the last part, so a truncated page without new parts is an error. Without this
        // check, the same page would be requested forever.
        let goes_on = page.truncated.then_some(()).zip((!page.parts.is_empty()).then_some(()));
        let is_last = next_of(page.truncated, goes_on).map_err(|error| call.named(error))?.is_none();
        found.parts.append(&mut page.parts);
        found.checksum = page.checksum;
        if is_last || found.parts.len() >= query.max_parts {
            found.truncated = !is_last || found.parts.len() > query.max_parts;
            found.parts.truncate(query.max_parts);
            return Ok(found);
        }
    }
}

pub(super) fn list_uploads(
    session: &S3Session,
    bucket: &Bucket,
    query: &UploadsQuery,
) -> Result<UploadListing> {
    let mut found = UploadListing::default();
    let (mut key_after, mut upload_after) = (query.key_after.clone(), query.upload_after.clone());
    let mut pages = ListingLoopDetector::starting_at(&(&key_after, &upload_after));
    let until = session.until();
    loop {
        let wanted = query.max_uploads.saturating_sub(found.uploads.len()).clamp(1, MAX_PAGE);
        let start = (key_after.clone(), upload_after.clone());
        let mut call = S3Call::on_bucket("GET", "list uploads", bucket)
            .query("uploads", "")
            .query("encoding-type", "url")
            .query("max-uploads", wanted.to_string())
            .query("prefix", query.prefix.as_str());
        if let Some(key) = key_after.take() {
            call = call.query("key-marker", key);
            call = upload_after.take().into_iter().fold(call, |call, id| call.query("upload-id-marker", id));
        }
        let document = session.run_for_page(&call, until)?;
        let mut page = s3_xml::list_uploads(&document).map_err(|error| call.named(error))?;
        if page.listing.uploads.iter().any(|upload| !may_follow(&start, upload)) {
            return Err(call.named(bad("the list of uploads contains an upload from before its start")));
        }
        key_after = next_of(page.listing.truncated, page.next_key).map_err(|error| call.named(error))?;
        upload_after = page.next_upload;
        let (is_last, count) = (key_after.is_none(), page.listing.uploads.len());
        found.uploads.append(&mut page.listing.uploads);
        if !is_last {
            pages.go_on(&(&key_after, &upload_after), count).map_err(|error| call.named(error))?;
        }
        if is_last || found.uploads.len() >= query.max_uploads {
            found.truncated = !is_last || found.uploads.len() > query.max_uploads;
            found.uploads.truncate(query.max_uploads);
            return Ok(found);
        }
    }
}

/// Returns whether an upload may be on the page of a list that begins after `start`, a key and an upload ID. Services
/// sort the uploads of one key in different orders, and some services include the key of `start`.
fn may_follow(start: &(Option<String>, Option<String>), upload: &UploadSummary) -> bool {
    match start {
        (None, _) => true,
        (Some(key), None) => upload.key >= *key,
        (Some(key), Some(id)) => upload.key > *key || (upload.key == *key && upload.upload.as_str() != id),
    }
}

fn bad(detail: &str) -> Error {
    Error::new(ErrorKind::BadResponse, format!("{detail}; report this to the service's operator"))
}

/// Returns all parts of an object, numbered consecutively from 1, regardless of their numbers in the upload.
pub(super) fn object_parts(
    session: &S3Session,
    target: (&Bucket, &Key),
    options: &GetOptions,
) -> Result<Vec<ObjectPart>> {
    if !options.conditions.is_empty() {
        // The request for the parts does not support conditions, so a HEAD request checks the conditions first.
        head(session, target, options)?;
    }
    let (mut parts, mut after, until) = (Vec::new(), None, session.until());
    loop {
        let ObjectPartsPage { parts: page, total, next } = page(session, target, options, (after, until))?;
        if usize::from(total).max(parts.len() + page.len()) > usize::from(MAX_PARTS) {
            return Err(bad(&format!("the object has more than {MAX_PARTS} parts")));
        }
        // The service returns only the number of parts, so each part is requested separately.
        if page.is_empty() && parts.len() < usize::from(total) {
            return (1..=total).map(|number| one(session, target, options, number)).collect();
        }
        parts.extend(page);
        if next.is_some() && next <= after {
            let detail = "the service repeats a page of the list of parts; report this to its operator";
            return Err(Error::new(ErrorKind::BadResponse, detail));
        }
        after = next;
        if after.is_none() {
            break;
        }
    }
    Ok((1..).zip(parts).map(|(number, part)| ObjectPart { number, ..part }).collect())
}

fn page(
    session: &S3Session,
    (bucket, key): (&Bucket, &Key),
    options: &GetOptions,
    (after, until): (Option<u16>, Option<Instant>),
) -> Result<ObjectPartsPage> {
    let mut call = S3Call::on_object("GET", "get parts", bucket, key)
        .query("attributes", "")
        .version(options.version.as_ref());
    call.header("x-amz-object-attributes", "ObjectParts");
    if let Some(after) = after {
        call.header("x-amz-part-number-marker", after.to_string());
    }
    let document = session.run_for_page(&call, until)?;
    s3_xml::object_attributes(&document).map_err(|error| call.named(error))
}

/// Returns the properties of a part that the service does not list. Cost: one HEAD.
fn one(
    session: &S3Session,
    target: (&Bucket, &Key),
    options: &GetOptions,
    number: u16,
) -> Result<ObjectPart> {
    let plain = GetOptions { version: options.version.clone(), ..Default::default() };
    let call =
        read::call(session, "HEAD", "get parts", target, &plain).query("partNumber", number.to_string());
    session.run(&call, |response| {
        let size = response.header("content-length").and_then(digits);
        let missing =
            || Error::new(ErrorKind::BadResponse, format!("the response for part {number} has no length"));
        Ok(ObjectPart { number, size: size.ok_or_else(missing)?, checksum: None })
    })
}
