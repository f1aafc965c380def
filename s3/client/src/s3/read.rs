//! Reads objects. Finds the requested bytes in a response, and receives these bytes without a copy.
//! [`fordway_http::vector`] reads many ranges of one object.

use std::borrow::Cow;
use std::io;
use std::io::Read;
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use fordway_http::vector::{
    FileVersion, Fragment, HttpTrafficCounts, RemoteFile, RemoteResource, UnconsumedResponse,
    VersionPrecondition, is_passing,
};
use fordway_http::{HttpResponse, Origin};
use fordway_store::{
    Bucket, ByteRange, Checksum, Conditions, ContentHasher, ETagPolicy, Error, ErrorKind, ExpectedContent,
    GetOptions, Key, ObjectContent, ObjectInfo, OpenObject, Result, TRUSTED_BYTES, VersionId, receive_exact,
    receive_rest,
};
use fordway_wire::range::{digits, format_range, parse_content_range};

use crate::s3::failure;
use crate::s3::headers::{OF_OBJECT, add_conditions, etag, object_info};
use crate::s3::request::S3Call;
use crate::s3::session::{CallAddress, S3Session};
use crate::s3::store::{described, head};

/// The maximum number of bytes buffered for an object of unknown length. Only servers that generate content on the fly
/// omit the length.
const MAX_UNSIZED_BYTES: usize = 1 << 30;

/// Returns the request for an object (`GET`) or its description (`HEAD`).
pub(super) fn call<'a>(
    session: &S3Session,
    method: &'static str,
    operation: &'static str,
    (bucket, key): (&'a Bucket, &'a Key),
    options: &GetOptions,
) -> S3Call<'a> {
    let mut call = S3Call::on_object(method, operation, bucket, key).version(options.version.as_ref());
    if session.config.verify_reads {
        call.header("x-amz-checksum-mode", "ENABLED");
    }
    if let Some(range) = options.range.filter(|_| method == "GET") {
        call.header("range", format_range(range));
    }
    if let Some(part) = options.part.filter(|_| method == "GET") {
        call = call.query("partNumber", part.to_string());
    }
    add_conditions(&mut call, &options.conditions, &OF_OBJECT);
    call
}

/// A response whose head has arrived, and the information about the object in the head.
struct ObjectReadResponse {
    info: ObjectInfo,
    range: Range<u64>,
    /// The checksum of the content; set only if the content is the whole object.
    checksum: Option<Checksum>,
    response: HttpResponse,
    body: ObjectBody,
}

enum ObjectBody {
    /// The requested bytes are the next bytes to receive from the connection; `ends` indicates whether the body ends
    /// after them.
    Streaming { ends: bool },
    /// The requested bytes, which have already been received, because the server did not send a length.
    Buffered(Vec<u8>),
}

impl ObjectReadResponse {
    /// Finds the requested bytes, and skips the bytes that the server sends before them. Errors: `InvalidRange`,
    /// `BadResponse`, `PreconditionFailed`.
    fn new(mut response: HttpResponse, options: &GetOptions, verify: bool) -> Result<Self> {
        check_version(&response, &options.conditions)?;
        let wanted = options.range;
        let (range, size, body) = match (response.status(), response.body_bytes()) {
            (206, length) => {
                let (range, size) = match options.part {
                    Some(_) => part(&response, length)?,
                    None => partial(&response, wanted, length)?,
                };
                (range, size, ObjectBody::Streaming { ends: true })
            }
            // An empty part has no range, so the response is like the response for an empty object.
            (200, Some(0)) if has_part(&response, options) => (0..0, 0, ObjectBody::Streaming { ends: true }),
            // A server that does not support parts sends the whole object, which is valid only as part 1.
            (_, _) if options.part.is_some_and(|number| number > 1) => {
                let detail = "the server sent a whole object although a part was requested";
                return Err(Error::new(ErrorKind::BadResponse, detail));
            }
            // A server that does not support ranges sends the whole object, so the bytes before the range are skipped.
            (_, Some(size)) => {
                let range = wanted.map_or(Ok(0..size), |wanted| wanted.resolve(size))?;
                skip(&mut response, range.start)?;
                let ends = range.end == size;
                (range, size, ObjectBody::Streaming { ends })
            }
            (_, None) => {
                let mut all = response.read_rest(MAX_UNSIZED_BYTES)?;
                let size = all.len() as u64;
                let range = wanted.map_or(Ok(0..size), |wanted| wanted.resolve(size))?;
                all.truncate(range.end as usize);
                all.drain(..range.start as usize);
                (range, size, ObjectBody::Buffered(all))
            }
        };
        let info = object_info(&response, size);
        let is_whole = range == (0..size) && options.part.is_none_or(|number| number == 1);
        let checksum = info.checksum.clone().filter(|sum| verify && is_whole && sum.parts.is_none());
        Ok(ObjectReadResponse { info, range, checksum, response, body })
    }

    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// Checks that the response is for a version in `If-Match`, because some servers ignore that header. Without
/// this check, the parts of a download could belong to different versions. Errors: `PreconditionFailed`.
pub(super) fn check_version(response: &HttpResponse, conditions: &Conditions) -> Result<()> {
    match &conditions.if_match {
        Some(wanted) if !wanted.matches(Some(&etag(response))) => {
            let detail = format!("the server sent another version, with the ETag \"{}\"", etag(response));
            Err(Error::new(ErrorKind::PreconditionFailed, detail))
        }
        _ => Ok(()),
    }
}

/// Returns the range in a partial response, and the object's size. Errors: `BadResponse` if the range is not the
/// requested one.
fn partial(
    response: &HttpResponse,
    wanted: Option<ByteRange>,
    length: Option<u64>,
) -> Result<(Range<u64>, u64)> {
    let bad = |detail: String| Error::new(ErrorKind::BadResponse, detail);
    let stated = response.header("content-range").unwrap_or_default();
    let Some((range, Some(size))) = parse_content_range(stated) else {
        return Err(bad(format!("the partial response has the Content-Range {stated:?}")));
    };
    let asked = wanted.and_then(|wanted| wanted.resolve(size).ok());
    if asked.as_ref() != Some(&range) {
        return Err(bad(format!("the server sent bytes {range:?} instead of the requested {asked:?}")));
    }
    if length.is_some_and(|length| length != range.end - range.start) {
        return Err(bad(format!("{length:?} bytes were announced for the range {stated:?}")));
    }
    Ok((range, size))
}

/// Returns the range of a part, which only the server knows, and the object's size. An empty part has no range; the
/// server then returns only the size.
fn part(response: &HttpResponse, length: Option<u64>) -> Result<(Range<u64>, u64)> {
    let stated = response.header("content-range").unwrap_or_default();
    if let Some(size) = stated.strip_prefix("bytes */").and_then(digits) {
        return Ok((size..size, size));
    }
    match parse_content_range(stated) {
        Some((range, Some(size))) if length.is_none_or(|length| length == range.end - range.start) => {
            Ok((range, size))
        }
        _ => {
            let detail = format!("the response for the part has the Content-Range {stated:?}");
            Err(Error::new(ErrorKind::BadResponse, detail))
        }
    }
}

/// Returns whether the object was completed from parts, of which one has the requested number.
fn has_part(response: &HttpResponse, options: &GetOptions) -> bool {
    let count = response.header("x-amz-mp-parts-count").and_then(digits);
    options.part.zip(count).is_some_and(|(number, count)| u64::from(number) <= count)
}

/// Returns the description of the whole object, of which a part was read. `info` is the description in the response.
/// The response for an empty part, which can only be the last part, does not state the size of the object. Cost: none,
/// or a HEAD request for an empty part.
fn of_whole_object(
    session: &S3Session,
    target: (&Bucket, &Key),
    options: &GetOptions,
    info: ObjectInfo,
) -> Result<ObjectInfo> {
    if info.size > 0 || options.part.is_none_or(|number| number == 1) {
        return Ok(info);
    }
    let version = info.version.or_else(|| options.version.clone());
    let conditions = Conditions::only_if(info.etag);
    head(session, target, &GetOptions { version, conditions, ..Default::default() })
}

/// Discards the bytes that a server without range support sends before the requested bytes.
fn skip(response: &mut HttpResponse, count: u64) -> Result<()> {
    let mut rest = vec![0; count.min(64 * 1024) as usize];
    let mut left = count;
    while left > 0 {
        let step = left.min(rest.len() as u64);
        response.read_into(&mut rest[..step as usize])?;
        left -= step;
    }
    Ok(())
}

/// Opens an object as a stream. If the connection breaks later, reading the stream fails.
pub(super) fn get(
    session: &S3Session,
    bucket: &Bucket,
    key: &Key,
    options: &GetOptions,
) -> Result<OpenObject> {
    let call = call(session, "GET", "get", (bucket, key), options);
    let mut object = session.run(&call, |response| {
        let opened = ObjectReadResponse::new(response, options, session.config.verify_reads)?;
        let len = opened.len();
        let ObjectReadResponse { info, range, checksum, response, body } = opened;
        let content = match body {
            ObjectBody::Buffered(bytes) => {
                verify(checksum.as_ref(), &bytes)?;
                ObjectContent::Bytes(Bytes::from(bytes))
            }
            ObjectBody::Streaming { ends } => {
                let check = checksum.map(ChecksumCheck::new);
                ObjectContent::Stream(Box::new(ObjectStream { response, left: len, ends, check }), len)
            }
        };
        Ok(OpenObject { info, range, content })
    })?;
    object.info = of_whole_object(session, (bucket, key), options, object.info)?;
    if object.range.is_empty() {
        object.range = object.info.size..object.info.size;
    }
    Ok(object)
}

/// Reads an object from the socket directly into `buffer`.
pub(super) fn read(
    session: &S3Session,
    (bucket, key): (&Bucket, &Key),
    options: &GetOptions,
    buffer: &mut Vec<u8>,
) -> Result<u64> {
    let call = call(session, "GET", "get", (bucket, key), options);
    let done = session.run(&call, |response| {
        let mut opened = ObjectReadResponse::new(response, options, session.config.verify_reads)?;
        let len = usize::try_from(opened.len()).map_err(|_| Error::from(ErrorKind::EntityTooLarge))?;
        match opened.body {
            ObjectBody::Buffered(bytes) => *buffer = bytes,
            ObjectBody::Streaming { ends } => {
                receive_exact(buffer, len, |piece| opened.response.read_into(piece))?;
                if ends {
                    opened.response.check_end()?;
                }
            }
        }
        verify(opened.checksum.as_ref(), buffer)?;
        Ok(opened.info)
    });
    let done = done.and_then(|info| of_whole_object(session, (bucket, key), options, info));
    let done = done.map(|info| info.size);
    if done.is_err() {
        buffer.clear();
    }
    done
}

fn verify(checksum: Option<&Checksum>, bytes: &[u8]) -> Result<()> {
    match checksum {
        Some(stated) if Checksum::of(stated.algorithm, bytes) != *stated => {
            let detail = format!("the received content does not match its {}", stated.algorithm.name());
            Err(Error::new(ErrorKind::BadDigest, detail))
        }
        _ => Ok(()),
    }
}

/// A checksum that is being computed, and the checksum that the server sent.
struct ChecksumCheck {
    hasher: ContentHasher,
    stated: Checksum,
}

impl ChecksumCheck {
    fn new(stated: Checksum) -> Self {
        ChecksumCheck { hasher: ContentHasher::new(ETagPolicy::Fast, false, Some(stated.algorithm)), stated }
    }

    fn finish(self) -> Result<()> {
        let expected = ExpectedContent { checksum: Some(self.stated), ..Default::default() };
        self.hasher.finish(&expected).map(|_| ())
    }
}

/// A stream of an object's bytes. After the last byte, checks that the body has ended and that the checksum matches.
struct ObjectStream {
    response: HttpResponse,
    left: u64,
    /// Whether the body ends with the last byte of the stream.
    ends: bool,
    check: Option<ChecksumCheck>,
}

impl ObjectStream {
    fn check_end(&mut self) -> Result<()> {
        if self.ends {
            self.response.check_end()?;
        }
        self.check.take().map_or(Ok(()), ChecksumCheck::finish)
    }
}

impl Read for ObjectStream {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let wanted = target.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if wanted == 0 {
            return Ok(0);
        }
        let got = self.response.read(&mut target[..wanted])?;
        if got == 0 {
            let detail = format!("the body ended {} bytes early", self.left);
            return Err(io::Error::other(Error::new(ErrorKind::Unavailable, detail).at_lost_connection()));
        }
        self.left -= got as u64;
        if let Some(check) = &mut self.check {
            check.hasher.update(&target[..got]);
        }
        if self.left == 0 {
            self.check_end().map_err(io::Error::other)?;
        }
        Ok(got)
    }
}

/// The maximum number of bytes that are requested at once for a long range. Because of this limit, a length that a
/// server reports cannot by itself cause a larger allocation.
const PIECE_BYTES: usize = 64 << 20;

/// Reads `ranges` of the current version, or of the version in `options`. Cost: as few GETs as the service
/// allows; the GETs after the first GET are sent together. If there are conditions, or if a range does not specify its
/// end, a HEAD precedes the GETs.
pub(super) fn read_ranges(
    session: &Arc<S3Session>,
    (bucket, key): (&Bucket, &Key),
    ranges: &[ByteRange],
    options: &GetOptions,
) -> Result<Vec<Vec<u8>>> {
    if let Some(wanted) = bounded(ranges).filter(|_| options.conditions == Conditions::default()) {
        let object = Box::new(RangeReadTarget::new(session, (bucket, key), options.version.clone()));
        let opened = RemoteFile::open_target_reading(&session.vector, object, &wanted);
        match opened.and_then(|(file, begun)| read_fragments(&file, ranges, begun)) {
            // The code below makes a second attempt, because the object may have been replaced between the requests. If
            // the server refused the first attempt, the HEAD of the second attempt yields a clearer error.
            Err(error) if !is_final(error.kind()) => {}
            read => return read,
        }
    }
    let info = head(session, (bucket, key), options)?;
    let version = FileVersion::tagged(info.size, info.etag.as_str());
    let object =
        RangeReadTarget::new(session, (bucket, key), info.version.or_else(|| options.version.clone()));
    let file =
        RemoteFile::of_version(&session.vector, Box::new(object), version, HttpTrafficCounts::default());
    read_fragments(&file, ranges, None)
}

/// Returns whether a second attempt would fail in the same way, or the program must stop.
fn is_final(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::InvalidRange | ErrorKind::Interrupted) || is_passing(kind)
}

/// Returns the ranges as (offset, length) pairs if all of them state their ends.
fn bounded(ranges: &[ByteRange]) -> Option<Vec<(u64, usize)>> {
    let bounded = |range: &ByteRange| match *range {
        ByteRange::Inclusive(first, last) => {
            let length = last.checked_sub(first)?.checked_add(1)?;
            first.checked_add(length)?;
            Some((first, usize::try_from(length).ok()?))
        }
        _ => None,
    };
    ranges.iter().map(bounded).collect()
}

fn read_fragments(
    file: &RemoteFile,
    ranges: &[ByteRange],
    begun: Option<UnconsumedResponse>,
) -> Result<Vec<Vec<u8>>> {
    let resolved = ranges.iter().map(|range| range.resolve(file.size_bytes())).collect::<Result<Vec<_>>>();
    let resolved = resolved.map_err(|error| file.named(error))?;
    let length = |range: &Range<u64>| usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    let at_once = |range: &Range<u64>| length(range).min(TRUSTED_BYTES);
    let mut buffers: Vec<Vec<u8>> = resolved.iter().map(|range| vec![0; at_once(range)]).collect();
    let mut fragments: Vec<_> = resolved
        .iter()
        .zip(&mut buffers)
        .map(|(range, buffer)| Fragment { offset: range.start, buffer })
        .collect();
    file.read_begun(&mut fragments, begun)?;
    for (range, buffer) in resolved.iter().zip(&mut buffers) {
        let mut offset = range.start + buffer.len() as u64;
        receive_rest(buffer, length(range), PIECE_BYTES, |piece| {
            let bytes = piece.len() as u64;
            file.read_ranges(&mut [Fragment { offset, buffer: piece }])?;
            offset += bytes;
            Ok(())
        })?;
    }
    Ok(buffers)
}

/// Opens the current version of an object for vectored reads. Cost: a HEAD.
pub(super) fn open(session: &Arc<S3Session>, (bucket, key): (&Bucket, &Key)) -> Result<RemoteFile> {
    let options = GetOptions::default();
    let call = call(session, "HEAD", "head", (bucket, key), &options);
    let (info, opening) = session.run(&call, |response| {
        let opening = HttpTrafficCounts { requests: 1, connections: response.is_first().into() };
        Ok((described(&response)?, opening))
    })?;
    let version = FileVersion::tagged(info.size, info.etag.as_str());
    let object = RangeReadTarget::new(session, (bucket, key), info.version);
    Ok(RemoteFile::of_version(&session.vector, Box::new(object), version, opening))
}

/// A version of an object whose ranges can be requested.
struct RangeReadTarget {
    session: Arc<S3Session>,
    bucket: Bucket,
    key: Key,
    version: Option<VersionId>,
    address: CallAddress,
}

impl RangeReadTarget {
    fn new(session: &Arc<S3Session>, (bucket, key): (&Bucket, &Key), version: Option<VersionId>) -> Self {
        let call = S3Call::on_object("GET", "get", bucket, key).version(version.as_ref());
        let address = session.address(&call);
        RangeReadTarget {
            session: session.clone(),
            bucket: bucket.clone(),
            key: key.clone(),
            version,
            address,
        }
    }

    fn call(&self, method: &'static str) -> S3Call<'_> {
        S3Call::on_object(method, "get", &self.bucket, &self.key).version(self.version.as_ref())
    }
}

impl RemoteResource for RangeReadTarget {
    fn origin(&self) -> &Origin {
        &self.address.origin
    }

    fn named(&self, _: &'static str, error: Error) -> Error {
        self.call("GET").named(error)
    }

    fn pin(&self) -> VersionPrecondition {
        VersionPrecondition::IfMatch
    }

    /// S3 itself responds to a request for several ranges with the whole object; other services may support such
    /// requests.
    fn may_know_many_ranges(&self) -> bool {
        !self.address.origin.host.ends_with(".amazonaws.com")
    }

    fn implements_head(&self) -> bool {
        true
    }

    fn write_head(&self, method: &'static str, headers: &[(&str, &str)], head: &mut Vec<u8>) {
        let mut call = self.call(method);
        for (name, value) in headers {
            call.header(Cow::Owned((*name).to_owned()), (*value).to_owned());
        }
        // If keys cannot be renewed, the service refuses the request, and `refusal` gives the reason.
        let credentials =
            self.session.credentials().unwrap_or_else(|_| self.session.config.credentials.last());
        self.session.write_head(head, &call, &self.address, (&credentials, SystemTime::now()));
    }

    fn refusal(&self, status: u16, _: Option<&str>, document: &[u8]) -> Error {
        failure::of_status(status, document, &self.call("GET"), &self.session.config)
    }
}
