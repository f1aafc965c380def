//! GET and HEAD of whole objects, of one range, or of several ranges. These operations have a separate route for two
//! reasons. The S3 layer refuses headers that HTTP requires servers to ignore, and it sends fewer headers for HEAD than
//! for GET.
//!
//! Returning several ranges in one response (`multipart/byteranges`, RFC 9110 section 14.6) is Fordway's extension to
//! S3. The extension turns a vectored read of thousands of small ranges into one request.

use std::ops::Range;

use fordway_store::{
    Bucket, ByteRange, Checksum, ChecksumType, Conditions, Error, ErrorKind, GetOptions, Key, ObjectContent,
    ObjectInfo, OpenObject, Store, VersioningState,
};
use fordway_wire::byteranges::parse_ranges;
use fordway_wire::date::{format_http, parse_http};
use fordway_wire::range::parse_range;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use s3s::{Body, S3Response};

use crate::answer::PreparedBody;
use crate::content::{BodyExtension, MultipartContent, MultipartTexts, RangeSource};
use crate::s3::convert::{
    CONDITIONS, VERSION_ID, add_text, checksum_headers, conditions_in, describe, names, parameter, version,
};
use crate::s3::error::{OperationResult, S3Failure};
use crate::s3::multipart::part_number;

const UNVERSIONED: VersioningState = VersioningState::Unversioned;

/// The content type that S3 returns for an object that was stored without one.
pub(crate) const DEFAULT_TYPE: &str = "binary/octet-stream";

/// Query parameters with which a client overrides headers of the response.
const CHOSEN: [(&str, HeaderName); 6] = [
    ("response-cache-control", header::CACHE_CONTROL),
    ("response-content-disposition", header::CONTENT_DISPOSITION),
    ("response-content-encoding", header::CONTENT_ENCODING),
    ("response-content-language", header::CONTENT_LANGUAGE),
    ("response-content-type", header::CONTENT_TYPE),
    ("response-expires", header::EXPIRES),
];

/// The parameters of a read.
pub(super) struct ReadRequest {
    bucket: Bucket,
    key: Key,
    options: GetOptions,
    /// Two or more ranges; a single range is in `options`.
    ranges: Vec<ByteRange>,
    if_range: Option<HeaderValue>,
    wants_checksum: bool,
    chosen: Vec<(HeaderName, HeaderValue)>,
}

impl ReadRequest {
    /// Reads the parameters from a request. Errors: `InvalidArgument`, errors for invalid names.
    pub(super) fn read(
        (bucket, key): &(String, String),
        headers: &HeaderMap,
        uri: &Uri,
        is_head: bool,
    ) -> OperationResult<Self> {
        let (bucket, key) = names(bucket, key)?;
        let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        // An invalid range is ignored (RFC 9110 section 14.2).
        let range = text(header::RANGE).and_then(parse_range).filter(is_range);
        let ranges = text(header::RANGE).and_then(parse_ranges).unwrap_or_default();
        let part = parameter(uri, "partNumber").map(|number| part_number(number.parse().unwrap_or(0)));
        let options = GetOptions {
            range,
            part: part.transpose()?,
            version: version(parameter(uri, "versionId").as_deref())?,
            conditions: conditions_in(headers, &CONDITIONS)?,
        };
        let ranges = if is_head || ranges.len() < 2 { Vec::new() } else { ranges };
        if options.part.is_some() && (options.range.is_some() || !ranges.is_empty()) {
            let words = "Cannot specify both Range header and partNumber query parameter";
            return Err(S3Failure::aws(
                "InvalidRequest",
                StatusCode::BAD_REQUEST,
                words,
                "request one of them",
            ));
        }
        let mode = headers.get("x-amz-checksum-mode").map(HeaderValue::as_bytes);
        Ok(ReadRequest {
            bucket,
            key,
            options,
            ranges,
            if_range: headers.get(header::IF_RANGE).cloned(),
            wants_checksum: mode.is_some_and(|mode| mode.eq_ignore_ascii_case(b"ENABLED")),
            chosen: chosen(uri)?,
        })
    }

    pub(super) fn get(&self, store: &dyn Store) -> OperationResult<S3Response<Body>> {
        let whole = GetOptions { range: None, ..self.options.clone() };
        let mut found = store.get(&self.bucket, &self.key, &self.options);
        let has_changed = self.if_range.is_some() && self.has_changed(store, &whole, &found)?;
        if has_changed && self.options.range.is_some() {
            found = store.get(&self.bucket, &self.key, &whole);
        }
        let options = if has_changed { &whole } else { &self.options };
        let object = found.map_err(|error| self.explained(store, error))?;
        let headers = self.headers(store, options, &object.info)?;
        if !self.ranges.is_empty() && !has_changed {
            let size = object.info.size;
            let parts = several(object, &self.ranges, headers);
            return parts.map_err(|error| crate::s3::reads::outside(self.named(error), size));
        }
        let mut response = answer(options, &object.info, &object.range, headers);
        response.extensions.insert(BodyExtension::new(PreparedBody::Content(object.content)));
        Ok(response)
    }

    pub(super) fn head(&self, store: &dyn Store) -> OperationResult<S3Response<Body>> {
        let explain = |error| self.explained(store, error);
        let info = store.head(&self.bucket, &self.key, &self.options).map_err(explain)?;
        let mut options = self.options.clone();
        if options.range.is_some() && self.if_range.is_some() && !self.means(&info) {
            options.range = None;
        }
        let parts = match options.part {
            None => Vec::new(),
            Some(_) => store.object_parts(&self.bucket, &self.key, &options).map_err(explain)?,
        };
        let range = options.wanted(info.size, &parts).map_err(explain)?;
        let mut headers = self.headers(store, &options, &info)?;
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(range.end - range.start));
        Ok(answer(&options, &info, &range, headers))
    }

    /// Returns whether the object that was found does not meet the condition in `If-Range`. The response is then the
    /// whole object. The check needs the object that was opened, because another writer may replace the object at any
    /// time.
    fn has_changed(
        &self,
        store: &dyn Store,
        whole: &GetOptions,
        found: &fordway_store::Result<OpenObject>,
    ) -> OperationResult<bool> {
        match found {
            Ok(object) => Ok(!self.means(&object.info)),
            Err(error) if error.kind() == ErrorKind::InvalidRange => {
                let info = store.head(&self.bucket, &self.key, whole);
                Ok(!self.means(&info.map_err(|error| self.explained(store, error))?))
            }
            Err(_) => Ok(false),
        }
    }

    fn means(&self, info: &ObjectInfo) -> bool {
        let Some(named) = self.if_range.as_ref().and_then(|value| value.to_str().ok()) else { return true };
        let seconds = |time: std::time::SystemTime| {
            time.duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs()
        };
        match parse_http(named) {
            Some(date) => seconds(date) == seconds(info.modified),
            None => named == format!("\"{}\"", info.etag),
        }
    }

    /// Returns the headers that describe the object. These headers do not depend on the requested range.
    fn headers(
        &self,
        store: &dyn Store,
        options: &GetOptions,
        info: &ObjectInfo,
    ) -> OperationResult<HeaderMap> {
        let mut headers = match self.shown_checksum(store, options, info) {
            Some((kind, checksum)) => checksum_headers(Some(&checksum), Some(kind)),
            None => HeaderMap::new(),
        };
        let described = describe(info, &mut |name, value| {
            let (name, value) = (HeaderName::try_from(name), HeaderValue::from_bytes(value));
            name.ok().zip(value.ok()).map(|(name, value)| _ = headers.append(name, value))
        });
        let keeps_versions = || store.versioning(&self.bucket).is_ok_and(|state| state != UNVERSIONED);
        if let (Some(version), None) = (&options.version, &info.version)
            && keeps_versions()
        {
            // The object was stored before versioning was enabled, so its version is `null`.
            add_text(&mut headers, VERSION_ID, version.as_str());
        }
        let content_type = info.metadata.content_type.as_deref().unwrap_or(DEFAULT_TYPE);
        let content_type = described.and_then(|()| HeaderValue::from_bytes(content_type.as_bytes()).ok());
        let unwritable =
            || Error::new(ErrorKind::Internal, "the object's metadata cannot be sent in headers");
        headers.insert(header::CONTENT_TYPE, content_type.ok_or_else(unwritable)?);
        for (name, value) in &self.chosen {
            headers.insert(name, value.clone());
        }
        Ok(headers)
    }

    /// Returns the checksum for the response: the part's checksum if a part is read, otherwise the object's checksum. A
    /// response with a range has no checksum, because a client could not compare the range with the object's checksum.
    /// The checksum type is always the object's.
    fn shown_checksum(
        &self,
        store: &dyn Store,
        options: &GetOptions,
        info: &ObjectInfo,
    ) -> Option<(ChecksumType, Checksum)> {
        let is_whole = options.range.is_none() && self.ranges.is_empty();
        let whole = info.checksum.as_ref().filter(|_| self.wants_checksum && is_whole)?;
        let shown = match options.part.filter(|_| info.part_count.is_some()) {
            None => whole.clone(),
            Some(number) => {
                // Another writer may have replaced the object after `info` was read. The condition ensures that the
                // parts belong to the object described by `info`.
                let conditions = Conditions::only_if(info.etag.clone());
                let same = GetOptions { version: options.version.clone(), conditions, ..Default::default() };
                let parts = store.object_parts(&self.bucket, &self.key, &same).ok()?;
                parts.into_iter().find(|part| part.number == number)?.checksum?
            }
        };
        Some((whole.checksum_type(), shown))
    }

    fn named(&self, error: Error) -> Error {
        error.during("get", "http", self.bucket.as_str(), self.key.as_str())
    }

    /// Adds the headers that HTTP requires for some errors: `ETag` for 304, `Allow` for 405, the size for 416 (RFC 9110
    /// sections 15.4.5, 15.5.6 and 15.5.17). There is no `ETag` if another writer has replaced the object meanwhile.
    /// For a delete marker, also adds the version ID of the marker and, for 405, the time of the marker.
    fn explained(&self, store: &dyn Store, error: Error) -> S3Failure {
        let kind = error.kind();
        if kind == ErrorKind::InvalidPart {
            let (words, detail) =
                ("The requested partnumber is not satisfiable.", fordway_wire::s3_error::detail(&error));
            return S3Failure::aws("InvalidPartNumber", StatusCode::RANGE_NOT_SATISFIABLE, words, &detail);
        }
        let marker = error.marker().cloned();
        let mut failure = S3Failure::from(error);
        if let Some(marker) = marker {
            if let Ok(version) = HeaderValue::try_from(marker.version.as_str()) {
                failure.add_header(VERSION_ID, version);
            }
            if kind == ErrorKind::MethodNotAllowed
                && let Ok(created) = HeaderValue::try_from(format_http(marker.created))
            {
                failure.add_header(header::LAST_MODIFIED, created);
            }
        }
        if kind == ErrorKind::MethodNotAllowed {
            failure.add_header(header::ALLOW, HeaderValue::from_static("DELETE"));
        }
        let plain = GetOptions { version: self.options.version.clone(), ..Default::default() };
        if matches!(kind, ErrorKind::NotModified | ErrorKind::InvalidRange)
            && let Ok(info) = store.head(&self.bucket, &self.key, &plain)
        {
            let is_still =
                || self.options.conditions.check_read(&info).is_err_and(|error| error.kind() == kind);
            let header = match kind {
                ErrorKind::NotModified => is_still().then(|| (header::ETAG, format!("\"{}\"", info.etag))),
                _ => Some((header::CONTENT_RANGE, format!("bytes */{}", info.size))),
            };
            if let Some((name, value)) = header
                && let Ok(value) = HeaderValue::try_from(value)
            {
                failure.add_header(name, value);
            }
        }
        failure
    }
}

/// Returns whether the range is valid. A range is invalid if its first byte is after its last byte.
fn is_range(range: &ByteRange) -> bool {
    !matches!(range, ByteRange::Inclusive(first, last) if first > last)
}

/// The maximum number of bytes of a response header that a client sets through a query parameter. A file name of 1,024
/// bytes fits even if it is percent-encoded.
const CHOSEN_BYTES_MAX: usize = 4 * 1024;

/// Returns the response headers that a client sets through query parameters. Errors: `InvalidArgument` for a value that
/// is too long or cannot be sent in a header.
fn chosen(uri: &Uri) -> OperationResult<Vec<(HeaderName, HeaderValue)>> {
    if uri.query().is_none_or(|query| !query.contains("response-")) {
        return Ok(Vec::new());
    }
    let chosen = CHOSEN.iter().filter_map(|(name, header)| Some((name, header, parameter(uri, name)?)));
    let chosen = chosen.map(|(name, header, value)| {
        if value.len() > CHOSEN_BYTES_MAX {
            let why = format!("{name} has more than {CHOSEN_BYTES_MAX} bytes; shorten it");
            return Err(Error::new(ErrorKind::InvalidArgument, why).into());
        }
        let value = HeaderValue::try_from(value);
        let wrong = |_| Error::new(ErrorKind::InvalidArgument, format!("{name} cannot be sent in a header"));
        Ok((header.clone(), value.map_err(wrong)?))
    });
    chosen.collect()
}

/// Returns the response without its content.
fn answer(
    options: &GetOptions,
    info: &ObjectInfo,
    range: &std::ops::Range<u64>,
    mut headers: HeaderMap,
) -> S3Response<Body> {
    // A 206 response must specify its first and last byte (RFC 9110 section 15.3.7), which an empty part does not have.
    let is_partial = (options.range.is_some() || options.part.is_some()) && !range.is_empty();
    if is_partial && let Ok(text) = HeaderValue::try_from(content_range(range, info.size)) {
        headers.insert(header::CONTENT_RANGE, text);
    }
    let status = if is_partial { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let mut response = S3Response::with_status(Body::empty(), status);
    response.headers = headers;
    response
}

/// Returns the value of `Content-Range` for a range that is not empty.
fn content_range(range: &std::ops::Range<u64>, size_bytes: u64) -> String {
    format!("bytes {}-{}/{size_bytes}", range.start, range.end - 1)
}

/// Returns the response with several ranges. `headers` are the headers that describe the object. Errors:
/// `InvalidRange`.
pub(super) fn several(
    object: OpenObject,
    ranges: &[ByteRange],
    mut headers: HeaderMap,
) -> Result<S3Response<Body>, Error> {
    let size = object.info.size;
    let source = match object.content {
        ObjectContent::File(region) => Ok(RangeSource::File(region)),
        ObjectContent::Bytes(bytes) => Ok(RangeSource::Bytes(bytes)),
        stream => Err(stream),
    };
    let (status, reply) = match source {
        // If content can be read only once, the response is the whole object, which every client must accept.
        Err(stream) => (StatusCode::OK, PreparedBody::Content(stream)),
        Ok(source) => {
            let (ranges, boundary) = (satisfiable(ranges, size)?, boundary()?);
            let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
            let content_type = content_type.unwrap_or(DEFAULT_TYPE).to_owned();
            let texts = MultipartTexts { boundary, content_type, size };
            let media_type = texts.media_type();
            let reply = MultipartContent::new(source, ranges.into(), texts);
            // The conversion always succeeds, because a boundary consists of letters and digits.
            if let Ok(media_type) = HeaderValue::try_from(media_type) {
                headers.insert(header::CONTENT_TYPE, media_type);
            }
            (StatusCode::PARTIAL_CONTENT, PreparedBody::Parts(reply))
        }
    };
    let mut response = S3Response::with_status(Body::empty(), status);
    response.headers = headers;
    response.extensions.insert(BodyExtension::new(reply));
    Ok(response)
}

/// Returns the ranges that overlap with the object. Errors: `InvalidRange` if no range overlaps, or if the ranges
/// together are longer than the object. No client needs more bytes than the object has, and without this limit a small
/// request could cause a huge response.
fn satisfiable(ranges: &[ByteRange], size: u64) -> Result<Vec<Range<u64>>, Error> {
    let found: Vec<_> = ranges.iter().filter_map(|range| range.resolve(size).ok()).collect();
    let total = found.iter().fold(0u64, |sum, range| sum.saturating_add(range.end - range.start));
    let detail = match (found.is_empty(), total > size) {
        (true, _) => "the ranges contain no byte of the object",
        (false, true) => "the total length of the ranges exceeds the object's size; request each byte once",
        (false, false) => return Ok(found),
    };
    Err(Error::new(ErrorKind::InvalidRange, detail))
}

/// Returns a boundary of 128 random bits, so that nobody can craft content that contains the boundary.
fn boundary() -> Result<String, Error> {
    let mut random = [0; 16];
    getrandom::fill(&mut random)
        .map_err(|error| Error::new(ErrorKind::Io, "no random bytes for a boundary").caused_by(error))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(random)))
}

/// Converts an error from a read. If no range can be satisfied, adds the object's size to the response (RFC 9110
/// section 15.5.17).
pub(super) fn outside(error: Error, size_bytes: u64) -> S3Failure {
    let is_range = error.kind() == ErrorKind::InvalidRange;
    let mut failure = S3Failure::from(error);
    if let Ok(value) = HeaderValue::try_from(format!("bytes */{size_bytes}"))
        && is_range
    {
        failure.add_header(header::CONTENT_RANGE, value);
    }
    failure
}

#[cfg(test)]
mod tests {
    use fordway_store::{MemoryStore, Objects as _, PutOptions};

    use super::*;

    /// Many ranges with a long content type need the memory of one content type.
    #[test]
    fn the_content_type_of_many_ranges_is_kept_once() {
        let (store, long) = (MemoryStore::default(), "x".repeat(64 * 1024));
        let (bucket, key) = (Bucket::new("bucket").unwrap(), Key::new("k").unwrap());
        store.create_bucket(&bucket).unwrap();
        store.put(&bucket, &key, &[7; 1 << 20], &PutOptions::default()).unwrap();
        let object = store.get(&bucket, &key, &GetOptions::default()).unwrap();
        let ranges: Vec<_> = (0..1024).map(|n| ByteRange::Inclusive(n * 1000, n * 1000 + 9)).collect();
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::try_from(&long).unwrap())]);
        let response = several(object, &ranges, headers).unwrap();
        let body = response.extensions.get::<BodyExtension>().unwrap().clone().take();
        let Some(PreparedBody::Parts(parts)) = body else { panic!("the response has several parts") };
        assert!(parts.len() > 1024 * long.len() as u64);
        let MultipartTexts { boundary, content_type, .. } = &parts.texts;
        let kept_bytes =
            boundary.capacity() + content_type.capacity() + size_of_val(parts.ranges.as_slices().0);
        assert!(kept_bytes < long.len() + 32 * 1024, "{kept_bytes}");
    }

    /// Another writer may replace the object before the headers of the error are written.
    #[test]
    fn the_etag_of_304_is_that_of_the_version_that_the_client_has() {
        let store = MemoryStore::default();
        let (bucket, key) = (Bucket::new("bucket").unwrap(), Key::new("k").unwrap());
        store.create_bucket(&bucket).unwrap();
        let put = |content: &[u8]| {
            let made = store.put(&bucket, &key, content, &PutOptions::default()).unwrap();
            HeaderValue::try_from(format!("\"{}\"", made.etag)).unwrap()
        };
        let old = put(b"old");
        let headers = HeaderMap::from_iter([(header::IF_NONE_MATCH, old.clone())]);
        let names = ("bucket".to_owned(), "k".to_owned());
        let request = ReadRequest::read(&names, &headers, &Uri::from_static("/bucket/k"), false).unwrap();
        let etag = || {
            let S3Failure(error) =
                request.explained(&store, Error::new(ErrorKind::NotModified, "not modified"));
            error.headers().unwrap().get(header::ETAG).cloned()
        };
        assert_eq!(etag(), Some(old));
        put(b"new");
        assert_eq!(etag(), None);
    }

    #[test]
    fn what_lies_outside_is_left_out_and_too_much_is_refused() {
        let of_ten = |ranges: &[ByteRange]| satisfiable(ranges, 10).map_err(|error| error.kind());
        let (inside, outside) = (ByteRange::Inclusive(2, 4), ByteRange::From(10));
        assert_eq!(of_ten(&[inside, outside, ByteRange::Last(2)]), Ok(vec![2..5, 8..10]));
        assert_eq!(of_ten(&[outside, ByteRange::Last(0)]), Err(ErrorKind::InvalidRange));
        assert_eq!(of_ten(&[ByteRange::From(0), inside]), Err(ErrorKind::InvalidRange));
        assert_eq!(of_ten(&[inside, inside]), Ok(vec![2..5, 2..5]));
    }
}
