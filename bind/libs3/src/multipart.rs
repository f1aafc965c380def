//! Multipart uploads.

use std::ffi::{CString, c_int, c_void};

use fordway_store::{
    CompleteOptions, CompletedPart, Expected, GetOptions, Key, PartListing, PartOptions, PartsQuery,
    PutOptions, PutResult, UploadId, UploadListing, UploadsQuery,
};
use fordway_wire::s3_xml;

use crate::abi::{
    CommitCallback, ListMultipartUpload, ListPart, ListPartsCallback, ListUploadsCallback, UploadIdCallback,
};
use crate::arguments::ContentProperties;
use crate::bucket::BATCH;
use crate::failure::{Failure, Outcome};
use crate::lane::Target;
use crate::object::write_all;
use crate::piece::{PIECE_BYTES, Source, with_piece};
use crate::response::{Properties, QuotedTag, Responder, c_text, checked, seconds};
use crate::status::Status;

/// The longest document that names the parts: 10,000 of them in 400 bytes each.
const MAX_DOCUMENT_BYTES: u64 = 4_000_000;
/// What S3 calls the only class that there is here.
const STORAGE_CLASS: &std::ffi::CStr = c"STANDARD";

/// Starts an upload.
pub(crate) fn initiate(
    target: &Target,
    key: &Key,
    said: ContentProperties,
    callback: Option<UploadIdCallback>,
    responder: &Responder,
) -> Outcome {
    let options = PutOptions { metadata: said.metadata, ..Default::default() };
    let upload = target.lane.store.create_upload(&target.bucket, key, &options)?;
    responder.succeeded(Properties::default)?;
    let Some(callback) = callback else { return Ok(()) };
    let id = c_text(upload.as_str());
    // SAFETY: the handler's creator vouches for the callback and its data; `id` outlives the call.
    checked(unsafe { callback(id.as_ptr(), responder.data()) })
}

/// Which part of which upload.
pub(crate) struct Part {
    pub(crate) key: Key,
    pub(crate) upload: UploadId,
    pub(crate) number: u16,
}

/// A part's number. Errors: what cannot be one.
pub(crate) fn part_number(number: c_int) -> Outcome<u16> {
    u16::try_from(number).ok().filter(|number| (1..=fordway_store::MAX_PARTS).contains(number)).ok_or_else(
        || {
            let why =
                format!("part {number} cannot be; parts are numbered from 1 to {}", fordway_store::MAX_PARTS);
            Failure::refused(Status::ErrorInvalidArgument, why)
        },
    )
}

/// The identifier a caller got when it started an upload. Errors: there is none.
pub(crate) fn upload_id(id: Option<&str>) -> Outcome<UploadId> {
    let none =
        || Failure::refused(Status::ErrorNoSuchUpload, "the upload id is empty; start an upload first");
    id.map(UploadId::foreign).ok_or_else(none)
}

/// Stores what `source` gives as a part.
pub(crate) fn upload_part(
    target: &Target,
    part: &Part,
    md5: Option<[u8; 16]>,
    source: Source,
) -> Outcome<PutResult> {
    let size = Some(source.left_bytes());
    let options = PartOptions { check_md5: md5.is_some(), size_hint: size, ..Default::default() };
    let store = &target.lane.store;
    let writer = store.part_writer(&target.bucket, &part.key, &part.upload, part.number, &options)?;
    with_piece(|piece| write_all(writer, source, piece, &Expected { size, md5, ..Default::default() }))
}

/// Fills a part from `count` bytes of an object from `start` on; 0 is to the end.
pub(crate) fn copy_part(
    target: &Target,
    key: &Key,
    (start, count): (u64, u64),
    to: (&fordway_store::Bucket, &Part),
) -> Outcome<PutResult> {
    let options = GetOptions { range: crate::object::range(start, count), ..Default::default() };
    let (bucket, part) = to;
    let to = (bucket, &part.key, &part.upload, part.number);
    Ok(target.lane.store.copy_part((&target.bucket, key), &options, to)?)
}

/// Publishes the object made of the parts that the document of `source` names.
pub(crate) fn complete(
    target: &Target,
    (key, upload): (&Key, &UploadId),
    source: Source,
    callback: Option<CommitCallback>,
    responder: &Responder,
) -> Outcome {
    let parts = read_parts(source)?;
    let options = CompleteOptions::default();
    let made = target.lane.store.complete_upload(&target.bucket, key, upload, &parts, &options)?;
    responder.succeeded(|| Properties::of_written(&made))?;
    let Some(callback) = callback else { return Ok(()) };
    let (location, etag) = (c_text(&format!("/{}/{key}", target.bucket)), QuotedTag::new(&made.etag));
    // SAFETY: the handler's creator vouches for the callback and its data; the texts outlive the call.
    checked(unsafe { callback(location.as_ptr(), etag.as_ptr(), responder.data()) })
}

fn read_parts(mut source: Source) -> Outcome<Vec<CompletedPart>> {
    if source.left_bytes() > MAX_DOCUMENT_BYTES {
        let why =
            format!("the document that names the parts has over {MAX_DOCUMENT_BYTES} bytes; use fewer parts");
        return Err(Failure::refused(Status::XmlDocumentTooLarge, why));
    }
    let mut document = vec![0; source.left_bytes() as usize];
    for piece in document.chunks_mut(PIECE_BYTES) {
        source.fill(piece)?;
    }
    s3_xml::completed_parts(&document).map_err(|error| {
        let why = format!("the document that names the parts: {}", error.detail());
        Failure::refused(Status::ErrorMalformedXML, why)
    })
}

/// Forgets an upload.
pub(crate) fn abort(target: &Target, (key, upload): (&Key, &UploadId), responder: &Responder) -> Outcome {
    target.lane.store.abort_upload(&target.bucket, key, upload)?;
    responder.succeeded(Properties::default)
}

/// Tells of one page of an upload's parts, in batches.
pub(crate) fn list_parts(
    target: &Target,
    (key, upload): (&Key, &UploadId),
    query: &PartsQuery,
    callback: Option<ListPartsCallback>,
    responder: &Responder,
) -> Outcome {
    let page = target.lane.store.list_parts(&target.bucket, key, upload, query)?;
    responder.succeeded(Properties::default)?;
    callback.map_or(Ok(()), |callback| tell_parts(&page, callback, responder.data()))
}

fn tell_parts(page: &PartListing, callback: ListPartsCallback, data: *mut c_void) -> Outcome {
    let last = page.parts.last().filter(|_| page.truncated).map(|part| part.number.to_string());
    let (marker, none) = (c_text(last.as_deref().unwrap_or_default()), c"".as_ptr());
    for (index, batch) in page.parts.chunks(BATCH).enumerate() {
        let etags: Vec<QuotedTag> = batch.iter().map(|part| QuotedTag::new(&part.etag)).collect();
        let parts = batch.iter().zip(&etags).map(|(part, etag)| ListPart {
            etag: etag.as_ptr(),
            last_modified_s: seconds(part.modified),
            part_number: u64::from(part.number),
            size: part.size,
        });
        let parts: Vec<ListPart> = parts.collect();
        let (truncated, before) = (i32::from(page.truncated), (index * BATCH) as i32);
        let class = STORAGE_CLASS.as_ptr();
        // SAFETY: the handler's creator vouches for the callback and its data; all texts and `parts`
        // outlive the call.
        checked(unsafe {
            let count = parts.len() as i32;
            callback(
                truncated,
                marker.as_ptr(),
                none,
                none,
                none,
                none,
                class,
                count,
                before,
                parts.as_ptr(),
                data,
            )
        })?;
    }
    Ok(())
}

/// Tells of one page of a bucket's uploads, in batches.
pub(crate) fn list_uploads(
    target: &Target,
    query: &UploadsQuery,
    callback: Option<ListUploadsCallback>,
    responder: &Responder,
) -> Outcome {
    let page = target.lane.store.list_uploads(&target.bucket, query)?;
    responder.succeeded(Properties::default)?;
    callback.map_or(Ok(()), |callback| tell_uploads(&page, callback, responder.data()))
}

fn tell_uploads(page: &UploadListing, callback: ListUploadsCallback, data: *mut c_void) -> Outcome {
    let last = page.uploads.last().filter(|_| page.truncated);
    let next_key = c_text(last.map_or("", |upload| &upload.key));
    let next_id = c_text(last.map_or("", |upload| upload.upload.as_str()));
    let none = c"".as_ptr();
    for batch in page.uploads.chunks(BATCH) {
        let texts: Vec<(CString, CString)> =
            batch.iter().map(|upload| (c_text(&upload.key), c_text(upload.upload.as_str()))).collect();
        let uploads = batch.iter().zip(&texts).map(|(upload, (key, id))| ListMultipartUpload {
            key: key.as_ptr(),
            upload_id: id.as_ptr(),
            initiator_id: none,
            initiator_display_name: none,
            owner_id: none,
            owner_display_name: none,
            storage_class: STORAGE_CLASS.as_ptr(),
            initiated_s: seconds(upload.started),
        });
        let uploads: Vec<ListMultipartUpload> = uploads.collect();
        let (truncated, count) = (i32::from(page.truncated), uploads.len() as i32);
        let (key, id) = (next_key.as_ptr(), next_id.as_ptr());
        // SAFETY: the handler's creator vouches for the callback and its data; all texts and
        // `uploads` outlive the call.
        checked(unsafe { callback(truncated, key, id, count, uploads.as_ptr(), 0, std::ptr::null(), data) })?;
    }
    Ok(())
}
