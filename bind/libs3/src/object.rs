//! Object and multipart-upload requests, and presigned URLs.

use std::ffi::{CString, c_char, c_int, c_void};
use std::io::{self, Read};
use std::time::SystemTime;

use fordway_client::s3::S3Store;
use fordway_store::{
    Bucket, ByteRange, CompleteOptions, CompletedPart, CopyOptions, DeleteOptions, Error, ErrorKind,
    ExpectedContent, GetOptions, Key, ObjectContent, PartListing, PartOptions, PartsQuery, PutOptions,
    PutResult, UploadId, UploadListing, UploadsQuery, Writer, content_error,
};
use fordway_wire::s3_xml;

use super::response::{PIECE_BYTES, PutBodySource, RequestFailure, RequestResult, with_piece};
use crate::abi::{
    GetDataCallback, ListMultipartUpload, ListPart, ListPartsCallback, ListUploadsCallback,
    MAX_QUERY_STRING_BYTES,
};
use crate::arguments::ParsedPutProperties;
use crate::bucket::BATCH;
use crate::lane::ConnectedBucket;
use crate::response::{
    CallbackResponder, MultipartResult, QuotedETag, SuccessProperties, c_text, checked, seconds, write_text,
};
use crate::status::Status;

/// The memory to which a copy writes its result, in addition to passing the result to the callbacks.
pub(crate) struct CopyOutputPointers {
    pub(crate) last_modified_s: *mut i64,
    pub(crate) etag: *mut c_char,
    pub(crate) etag_capacity: usize,
}

impl CopyOutputPointers {
    /// Writes the values that a program reads if the copy fails: the time -1, and an empty ETag.
    ///
    /// # Safety
    /// The pointers meet the requirements of [`CopyOutputPointers::tell`] during this call.
    pub(crate) unsafe fn clear(&self) {
        // SAFETY: the caller guarantees that each pointer is NULL or valid for writes.
        unsafe {
            if let Some(last_modified_s) = self.last_modified_s.as_mut() {
                *last_modified_s = -1;
            }
            write_text(self.etag, self.etag_capacity, "");
        }
    }

    /// # Safety
    /// Whenever callbacks may run, each pointer is NULL or valid for writes, and `etag` is valid for `etag_capacity`
    /// bytes.
    pub(crate) unsafe fn tell(&self, made: &PutResult, responder: &CallbackResponder) -> RequestResult {
        // SAFETY: the caller guarantees that each pointer is NULL or valid for writes.
        responder.call(|| unsafe {
            if let Some(last_modified_s) = self.last_modified_s.as_mut() {
                *last_modified_s = seconds(made.modified);
            }
            write_text(self.etag, self.etag_capacity, &format!("\"{}\"", made.etag));
            Ok(())
        })
    }
}

/// Stores the content of `source`. Errors: `ErrorInvalidURI` if there is no key. [`touch_bucket`] handles an empty put
/// without a key.
pub(crate) fn put(
    target: &ConnectedBucket,
    key: Option<&Key>,
    said: ParsedPutProperties,
    source: PutBodySource,
    responder: &CallbackResponder,
) -> RequestResult<PutResult> {
    let Some(key) = key else { return Err(no_key()) };
    let options = PutOptions {
        metadata: said.metadata,
        check_md5: said.md5.is_some(),
        size_hint: Some(source.left_bytes()),
        ..Default::default()
    };
    with_piece(|piece| match said.md5 {
        None if source.left_bytes() <= PIECE_BYTES as u64 => {
            let mut source = source;
            let filled = source.fill(piece, responder)?;
            Ok(target.lane.store.put(&target.bucket, key, &piece[..filled], &options)?)
        }
        md5 => {
            let expected = ExpectedContent { size: options.size_hint, md5, ..Default::default() };
            let writer = target.lane.store.writer(&target.bucket, key, &options)?;
            write_all(writer, source, piece, &expected, responder)
        }
    })
}

/// Writes all of `source` to `writer`, and publishes the object.
pub(crate) fn write_all(
    mut writer: Box<dyn Writer>,
    mut source: PutBodySource,
    piece: &mut [u8],
    expected: &ExpectedContent,
    responder: &CallbackResponder,
) -> RequestResult<PutResult> {
    while source.left_bytes() > 0 {
        let filled = source.fill(piece, responder)?;
        writer.write(&piece[..filled])?;
    }
    Ok(writer.commit(expected)?)
}

/// Handles an empty put without a key: stores nothing, and succeeds if the bucket exists. Some programs create their
/// top directory this way. Errors: `NoSuchBucket`.
pub(crate) fn touch_bucket(target: &ConnectedBucket, responder: &CallbackResponder) -> RequestResult {
    target.lane.store.head_bucket(&target.bucket)?;
    responder.succeeded_plainly()
}

/// Converts a range of libs3: `count` bytes from `start`, or everything from `start` if `count` is 0.
pub(crate) fn range(start: u64, count: u64) -> Option<ByteRange> {
    match (start, count) {
        (0, 0) => None,
        (start, 0) => Some(ByteRange::From(start)),
        (start, count) => Some(ByteRange::Inclusive(start, start.saturating_add(count - 1))),
    }
}

/// Reads an object, and passes it to `callback` piece by piece.
pub(crate) fn get(
    target: &ConnectedBucket,
    key: &Key,
    options: &GetOptions,
    callback: Option<GetDataCallback>,
    responder: &CallbackResponder,
) -> RequestResult {
    let lane = target.lane.store.lane();
    let object = target.lane.store.get(&target.bucket, key, options);
    let object = object.map_err(|error| RequestFailure::of_get(error, lane))?;
    let bytes = object.content.len();
    responder.succeeded(|| SuccessProperties::of_object(&object.info, bytes))?;
    let Some(callback) = callback else { return Ok(()) };
    // The name is needed only for the error of a failed read, and content in memory needs no read.
    let name = match object.content {
        ObjectContent::Bytes(_) => None,
        _ => Some((target.bucket.clone(), key.clone())),
    };
    let content = object.content;
    responder.finish_by(bytes, move |responder| {
        let failed = |error: Error| {
            let name = name.as_ref().map(|(bucket, key)| (bucket.as_str(), key.as_str()));
            let (bucket, key) = name.unwrap_or_default();
            RequestFailure::of_get(error.during("get", lane, bucket, key), lane)
        };
        match content {
            ObjectContent::Bytes(bytes) => {
                bytes.chunks(PIECE_BYTES).try_for_each(|piece| hand_over(piece, callback, responder))
            }
            ObjectContent::File(mut region) => deliver(&mut region, bytes, callback, responder, failed),
            content => deliver(&mut content.into_reader(), bytes, callback, responder, failed),
        }
    })
}

/// Passes a piece of content to the program.
fn hand_over(piece: &[u8], callback: GetDataCallback, responder: &CallbackResponder) -> RequestResult {
    responder.call(|| {
        // SAFETY: the program guarantees that its callback may be called with its data. A piece has at most
        // `PIECE_BYTES` bytes, which fit in an `int`.
        checked(unsafe { callback(piece.len() as i32, piece.as_ptr().cast(), responder.data()) })
    })
}

/// Passes the remaining `left` bytes of `reader` to the program. `failed` converts an error to a failure that names the
/// object.
fn deliver(
    reader: &mut dyn Read,
    mut left: u64,
    callback: GetDataCallback,
    responder: &CallbackResponder,
    failed: impl Fn(Error) -> RequestFailure,
) -> RequestResult {
    let least = responder.piece_bytes_min();
    with_piece(|piece| {
        while left > 0 {
            let wanted = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let filled = fill(reader, &mut piece[..wanted], least.clamp(1, wanted))
                .map_err(|error| failed(content_error(error, left)))?;
            hand_over(&piece[..filled], callback, responder)?;
            left -= filled as u64;
        }
        Ok(())
    })
}

/// Reads at least `least` bytes into `piece`, and returns the number of bytes read. Errors: `UnexpectedEof`, errors of
/// the reader.
fn fill(reader: &mut dyn Read, piece: &mut [u8], least: usize) -> io::Result<usize> {
    let mut filled = 0;
    while filled < least {
        match reader.read(&mut piece[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => filled += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Returns the properties of an object, or of the bucket if there is no key.
pub(crate) fn head(
    target: &ConnectedBucket,
    key: Option<&Key>,
    responder: &CallbackResponder,
) -> RequestResult {
    let store = &target.lane.store;
    let Some(key) = key else {
        store.head_bucket(&target.bucket).map_err(RequestFailure::Head)?;
        return responder.succeeded_plainly();
    };
    match store.head(&target.bucket, key, &GetOptions::default()) {
        // The match borrows the value, because the value is large and a move would copy it.
        Ok(ref info) => responder.succeeded(|| SuccessProperties::of_object(info, info.size)),
        Err(error) => Err(RequestFailure::Head(error)),
    }
}

/// Deletes an object. Without a key, deletes nothing, and succeeds if the bucket exists.
pub(crate) fn delete(
    target: &ConnectedBucket,
    key: Option<&Key>,
    responder: &CallbackResponder,
) -> RequestResult {
    match key {
        Some(key) => drop(target.lane.store.delete(&target.bucket, key, &DeleteOptions::default())?),
        None => drop(target.lane.store.head_bucket(&target.bucket)?),
    }
    responder.succeeded_plainly()
}

/// Copies `key` of `target` to `to`. If `said` is not `None`, `said` replaces the metadata.
pub(crate) fn copy(
    target: &ConnectedBucket,
    key: &Key,
    to: (&Bucket, &Key),
    said: Option<ParsedPutProperties>,
) -> RequestResult<PutResult> {
    let changes_nothing = said.is_none() && (&target.bucket, key) == to;
    let options = CopyOptions { metadata: said.map(|said| said.metadata), ..Default::default() };
    let made = target.lane.store.copy((&target.bucket, key), to.0, to.1, &options);
    Ok(made.map_err(|error| match error.kind() {
        // S3 returns this code if a copy of an object to itself would change nothing. The lanes for directories report
        // only the kind of the error.
        ErrorKind::InvalidArgument if changes_nothing => error.with_s3_code("InvalidRequest"),
        _ => error,
    })?)
}

fn no_key() -> RequestFailure {
    RequestFailure::refused(Status::ErrorInvalidURI, "the key is empty; name the object to store")
}

/// The maximum size of the document that lists the parts: 400 bytes for each of 10,000 parts.
const MAX_DOCUMENT_BYTES: u64 = 4_000_000;
/// S3's name for the only supported storage class.
const STORAGE_CLASS: &std::ffi::CStr = c"STANDARD";

/// Starts an upload, and stores its ID in `result`.
pub(crate) fn initiate_upload(
    target: &ConnectedBucket,
    key: &Key,
    said: ParsedPutProperties,
    result: Option<&MultipartResult>,
    responder: &CallbackResponder,
) -> RequestResult {
    let options = PutOptions { metadata: said.metadata, ..Default::default() };
    let upload = target.lane.store.create_upload(&target.bucket, key, &options)?;
    responder.succeeded_plainly()?;
    if let Some(result) = result {
        result.set([c_text(upload.as_str()), CString::default()]);
    }
    Ok(())
}

/// The part to which a request writes.
pub(crate) struct UploadPartTarget {
    pub(crate) key: Key,
    pub(crate) upload: UploadId,
    pub(crate) number: u16,
}

/// Converts a part number. Errors: `ErrorInvalidArgument` if it is out of range.
pub(crate) fn part_number(number: c_int) -> RequestResult<u16> {
    u16::try_from(number).ok().filter(|number| (1..=fordway_store::MAX_PARTS).contains(number)).ok_or_else(
        || {
            let why = format!(
                "there is no part {number}; parts are numbered from 1 to {}",
                fordway_store::MAX_PARTS
            );
            RequestFailure::refused(Status::ErrorInvalidArgument, why)
        },
    )
}

/// Converts the upload ID that a caller received when it started an upload. Errors: `ErrorNoSuchUpload` if it is
/// missing.
pub(crate) fn upload_id(id: Option<&str>) -> RequestResult<UploadId> {
    let none = || {
        RequestFailure::refused(Status::ErrorNoSuchUpload, "the upload id is empty; start an upload first")
    };
    id.map(UploadId::foreign).ok_or_else(none)
}

/// Stores the content of `source` as a part.
pub(crate) fn upload_part(
    target: &ConnectedBucket,
    part: &UploadPartTarget,
    md5: Option<[u8; 16]>,
    source: PutBodySource,
    responder: &CallbackResponder,
) -> RequestResult<PutResult> {
    let size = Some(source.left_bytes());
    if let Some(service) = target.streams_part(source.left_bytes()) {
        return stream_part(service, target, part, md5, source, responder);
    }
    let options = PartOptions { check_md5: md5.is_some(), size_hint: size, ..Default::default() };
    let store = &target.lane.store;
    let writer = store.part_writer(&target.bucket, &part.key, &part.upload, part.number, &options)?;
    let expected = ExpectedContent { size, md5, ..Default::default() };
    with_piece(|piece| write_all(writer, source, piece, &expected, responder))
}

/// Sends the content of `source` as a part, while callbacks provide it.
fn stream_part(
    service: &S3Store,
    target: &ConnectedBucket,
    part: &UploadPartTarget,
    md5: Option<[u8; 16]>,
    mut source: PutBodySource,
    responder: &CallbackResponder,
) -> RequestResult<PutResult> {
    let content = (source.left_bytes(), md5);
    let mut failed = None;
    let made = with_piece(|piece| {
        let mut produce = |sink: &mut (dyn FnMut(&[u8]) -> fordway_store::Result<()> + '_)| {
            while source.left_bytes() > 0 {
                let filled = source.fill(piece, responder).map_err(|failure| {
                    failed = Some(failure);
                    Error::from(ErrorKind::Interrupted)
                })?;
                sink(&piece[..filled])?;
            }
            Ok(())
        };
        let to = ((&target.bucket, &part.key), (&part.upload, part.number));
        service.put_part_streamed(to.0, to.1, content, &mut produce)
    });
    // The failure of a callback is more precise than the error that it caused.
    match failed {
        Some(failure) => Err(failure),
        None => Ok(made?),
    }
}

/// Converts the range of a copy. libs3 sends `bytes=START-(START + COUNT)`, so programs (such as `s3`) pass a count
/// that is one less than the number of bytes to copy. If `count` is 0, the range extends to the end of the object.
pub(crate) fn copied_range(start: u64, count: u64) -> Option<ByteRange> {
    match (start, count) {
        (0, 0) => None,
        (start, 0) => Some(ByteRange::From(start)),
        (start, count) => Some(ByteRange::Inclusive(start, start.saturating_add(count))),
    }
}

/// Fills a part with a range of an object. Errors: `InvalidRange` if the range extends beyond the object.
pub(crate) fn copy_part(
    target: &ConnectedBucket,
    key: &Key,
    range: Option<ByteRange>,
    to: (&fordway_store::Bucket, &UploadPartTarget),
) -> RequestResult<PutResult> {
    let options = GetOptions { range, ..Default::default() };
    let (bucket, part) = to;
    let to = (bucket, &part.key, &part.upload, part.number);
    Ok(target.lane.store.copy_part((&target.bucket, key), &options, to)?)
}

/// Publishes the object assembled from the parts that the document in `source` lists. Stores the object's location and
/// ETag in `result`.
pub(crate) fn complete_upload(
    target: &ConnectedBucket,
    (key, upload): (&Key, &UploadId),
    source: PutBodySource,
    result: Option<&MultipartResult>,
    responder: &CallbackResponder,
) -> RequestResult {
    let parts = read_parts(source, responder)?;
    let options = CompleteOptions::default();
    let made = target.lane.store.complete_upload(&target.bucket, key, upload, &parts, &options)?;
    responder.succeeded(|| SuccessProperties::of_written(&made))?;
    if let Some(result) = result {
        let location = c_text(&format!("/{}/{key}", target.bucket));
        result.set([location, c_text(&format!("\"{}\"", made.etag))]);
    }
    Ok(())
}

fn read_parts(mut source: PutBodySource, responder: &CallbackResponder) -> RequestResult<Vec<CompletedPart>> {
    if source.left_bytes() > MAX_DOCUMENT_BYTES {
        let why = format!("the list of parts has over {MAX_DOCUMENT_BYTES} bytes; use fewer parts");
        return Err(RequestFailure::refused(Status::XmlDocumentTooLarge, why));
    }
    let mut document = vec![0; source.left_bytes() as usize];
    for piece in document.chunks_mut(PIECE_BYTES) {
        source.fill(piece, responder)?;
    }
    s3_xml::completed_parts(&document).map_err(|error| {
        let why = format!("the document that names the parts: {}", error.detail());
        RequestFailure::refused(Status::ErrorMalformedXML, why)
    })
}

/// Aborts an upload.
pub(crate) fn abort_upload(
    target: &ConnectedBucket,
    (key, upload): (&Key, &UploadId),
    responder: &CallbackResponder,
) -> RequestResult {
    target.lane.store.abort_upload(&target.bucket, key, upload)?;
    responder.succeeded_plainly()
}

/// Passes one page of an upload's parts to the callback, in batches.
pub(crate) fn list_parts(
    target: &ConnectedBucket,
    (key, upload): (&Key, &UploadId),
    query: &PartsQuery,
    callback: Option<ListPartsCallback>,
    responder: &CallbackResponder,
) -> RequestResult {
    let page = target.lane.store.list_parts(&target.bucket, key, upload, query)?;
    responder.succeeded_plainly()?;
    callback.map_or(Ok(()), |callback| responder.call(|| tell_parts(&page, callback, responder.data())))
}

fn tell_parts(page: &PartListing, callback: ListPartsCallback, data: *mut c_void) -> RequestResult {
    let last = page.parts.last().filter(|_| page.truncated).map(|part| part.number.to_string());
    let (marker, none) = (c_text(last.as_deref().unwrap_or_default()), c"".as_ptr());
    for (index, batch) in page.parts.chunks(BATCH).enumerate() {
        let etags: Vec<QuotedETag> = batch.iter().map(|part| QuotedETag::new(&part.etag)).collect();
        let parts = batch.iter().zip(&etags).map(|(part, etag)| ListPart {
            etag: etag.as_ptr(),
            last_modified_s: seconds(part.modified),
            part_number: u64::from(part.number),
            size: part.size,
        });
        let parts: Vec<ListPart> = parts.collect();
        let (truncated, before) = (i32::from(page.truncated), (index * BATCH) as i32);
        let class = STORAGE_CLASS.as_ptr();
        // SAFETY: the program guarantees that its callback may be called with its data; all strings and `parts` outlive
        // the call.
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

/// Passes one page of a bucket's uploads to the callback, in batches.
pub(crate) fn list_uploads(
    target: &ConnectedBucket,
    query: &UploadsQuery,
    callback: Option<ListUploadsCallback>,
    responder: &CallbackResponder,
) -> RequestResult {
    let page = target.lane.store.list_uploads(&target.bucket, query)?;
    responder.succeeded_plainly()?;
    callback.map_or(Ok(()), |callback| responder.call(|| tell_uploads(&page, callback, responder.data())))
}

fn tell_uploads(page: &UploadListing, callback: ListUploadsCallback, data: *mut c_void) -> RequestResult {
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
        // SAFETY: the program guarantees that its callback may be called with its data; all strings and `uploads`
        // outlive the call.
        checked(unsafe { callback(truncated, key, id, count, uploads.as_ptr(), 0, std::ptr::null(), data) })?;
    }
    Ok(())
}

/// The maximum lifetime of a URL: seven days, as Signature Version 4 requires.
const MAX_LIFETIME_S: i64 = 7 * 86_400;

/// Returns a URL for `method` (`None` means GET) of the object, or of the bucket if there is no key. The URL is valid
/// for `lifetime_s` seconds, limited to the range from 1 s to seven days; a negative lifetime means the maximum.
/// Errors: a lane without URLs, a method or subresource that cannot be signed, missing keys, or a URL that is too long.
pub(crate) fn presigned_url(
    target: &ConnectedBucket,
    key: Option<&Key>,
    lifetime_s: i64,
    subresource: Option<&str>,
    method: Option<&str>,
) -> RequestResult<String> {
    let Some(service) = &target.lane.service else {
        let why = format!("the {} lane has no URLs; use the address of a gateway", target.lane.store.lane());
        return Err(RequestFailure::refused(Status::NotSupported, why));
    };
    if let Some(subresource) = subresource {
        let why = format!("a URL for {subresource:?} cannot be signed here; leave the resource NULL");
        return Err(RequestFailure::refused(Status::NotSupported, why));
    }
    let lifetime_s = if lifetime_s < 0 { MAX_LIFETIME_S } else { lifetime_s.clamp(1, MAX_LIFETIME_S) };
    let method = known_method(method.unwrap_or("GET"))?;
    let (lifetime_s, now) = (lifetime_s as u64, SystemTime::now());
    let url = match key {
        Some(key) => service.presign(method, &target.bucket, key, lifetime_s, now)?,
        None => service.presign_bucket(method, &target.bucket, lifetime_s, now)?,
    };
    match url.len() < MAX_QUERY_STRING_BYTES {
        true => Ok(url),
        false => {
            let why = format!(
                "the URL has {} bytes, more than the caller's buffer can hold; use a shorter key",
                url.len()
            );
            Err(RequestFailure::refused(Status::UriTooLong, why))
        }
    }
}

fn known_method(method: &str) -> RequestResult<&'static str> {
    const METHODS: [&str; 4] = ["GET", "HEAD", "PUT", "DELETE"];
    METHODS.into_iter().find(|known| known.eq_ignore_ascii_case(method)).ok_or_else(|| {
        let why = format!("a URL cannot be signed for {method}; use one of {}", METHODS.join(", "));
        RequestFailure::refused(Status::NotSupported, why)
    })
}
