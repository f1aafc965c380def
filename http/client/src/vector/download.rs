//! Copies a file in order, in a single response unless something fails.
//!
//! If the server sends a digest, the received bytes are checked against it: `Content-MD5` (RFC 1864), `Digest` (RFC
//! 3230), `Repr-Digest` and `Content-Digest` (RFC 9530), and S3's checksums.

use std::io::Read;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime};

use fordway_store::{
    Checksum, ChecksumAlgorithm, ContentHasher, ETagPolicy, Error, ErrorKind, ExpectedContent, Result,
};
use fordway_wire::file_hash::{FileHash, FileHashAlgorithm, FileHasher};
use fordway_wire::range::parse_content_range;

use super::open::{
    DOCUMENT_BYTES_MAX, FileOrRedirect, OpenFailure, ask, has_file, is_passing, not_the_file, without_end,
};
use super::redirect::{HOPS_MAX, RedirectResponse, RedirectRoute};
use super::source::{AtomicHttpTrafficCounts, RemoteFileSource, SourceLocation, changed};
use super::{HttpSession, RemoteFile, RemoteResource as _, VersionPrecondition, WebFileResource};
use crate::HttpResponse;
use crate::response::{body_error, short_body};
use crate::retry::{PROGRESS_BYTES, RetryBudget, pause, retry_after};

/// The maximum number of bytes received and passed on at once.
const CHUNK_BYTES: usize = 256 * 1024;
/// The maximum number of bytes that are requested again to compare them, if no validator identifies the version.
const OVERLAP_BYTES: usize = 16 * 1024;

/// A function that receives the bytes in order.
type DownloadSink<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

/// A function that returns a reader of all bytes received so far, from the first byte.
type PartialDownloadOpenFunction<'a> = dyn Fn() -> Result<Box<dyn Read>> + 'a;

impl RemoteFile {
    /// Passes the bytes of `range` to `sink`, in order and exactly once. An interrupted response is resumed where it
    /// ended, in the version that was opened. If no validator identifies the version, the last 16 KiB that have arrived
    /// are requested again and compared. Errors: as for [`RemoteFile::read_ranges`], and errors of `sink`, which end
    /// the copy. Cost: one request, plus one per interruption; 256 KiB of memory.
    pub fn copy_range(&self, range: Range<u64>, sink: &mut DownloadSink<'_>) -> Result<()> {
        if range.end > self.size_bytes() || range.start > range.end {
            let detail = format!("bytes {range:?} of a file of {} bytes", self.size_bytes());
            return Err(self.named(Error::new(ErrorKind::InvalidRange, detail)));
        }
        copy(&self.source, range, &mut None, sink).map_err(|error| self.named(error))
    }

    /// Asks the server for a digest of the whole file, for a copy that consists of several ranges. Returns `None` if
    /// the server states no digest, refuses the request, or describes another version. Cost: one request (HEAD), which
    /// is not retried.
    pub(crate) fn stated_digest(&self) -> Option<FileDigest> {
        let place = self.source.place();
        let _permit = place.session.permit(place.target.origin()).ok()?;
        let answer = ask(&place.session, &*place.target, &self.source.traffic, "HEAD", &WANTED);
        // The digest is optional, and a server that is down fails the reads as well.
        let answer = answer.inspect_err(|error| tracing::debug!(%error, "no digest was received")).ok()?;
        let (etag, modified) = (answer.header("etag"), answer.header("last-modified"));
        let is_described = has_file(answer.status()) && place.version.check(etag, modified, false).is_ok();
        is_described.then(|| FileDigest::best(answer.headers(), true)).flatten()
    }

    /// Passes the bytes from `start` to the end to `sink`, and then checks the whole file against the digest that the
    /// server sent, if any. `received` reads back the bytes before `start`; it is not called if `start` is 0. Returns
    /// the name of the digest. Errors: as for [`RemoteFile::copy_range`]; `BadDigest`, after all bytes have been passed
    /// on.
    pub fn copy_verified(
        &self,
        start: u64,
        received: &PartialDownloadOpenFunction<'_>,
        sink: &mut DownloadSink<'_>,
    ) -> Result<Option<&'static str>> {
        let mut check = Some(DigestCheck::default());
        let copied = copy(&self.source, start.min(self.size_bytes())..self.size_bytes(), &mut check, sink);
        let verified = copied.and_then(|()| check.unwrap_or_default().finish(received));
        verified.map_err(|error| self.named(error))
    }
}

/// Copies a file whose size the server does not report. Passes its bytes to `sink` as they arrive, and then checks them
/// against the digest that the server sent, if any. Returns the name of the digest. A copy of unknown size cannot be
/// resumed. Without `verify`, the bytes are not checked. Errors: as for [`RemoteFile::open`] and
/// [`RemoteFile::copy_verified`]; `BadResponse` if the response does not specify where it ends. Cost: one request, plus
/// one per redirection.
pub fn copy_unsized(
    session: &Arc<HttpSession>,
    url: &str,
    verify: bool,
    sink: &mut DownloadSink<'_>,
) -> Result<Option<&'static str>> {
    let mut route = RedirectRoute::start(session, WebFileResource::parse(url)?)?;
    let mut retries = session.retries();
    loop {
        match begin_unsized(&route) {
            Ok(ContentOrRedirect::Content(mut answer)) => {
                return pass_on(&mut answer, verify, &retries, sink)
                    .map_err(|error| route.named("read", error));
            }
            Ok(ContentOrRedirect::Elsewhere(moved)) => {
                route.follow(&moved).map_err(|error| route.named("read", error))?;
            }
            Err(OpenFailure { error, retry_after }) => {
                let may_pass = is_passing(error.kind());
                let wait = retries.after(error, may_pass, retry_after);
                pause(wait.map_err(|error| route.named("read", error))?)?;
            }
        }
    }
}

/// The response to a request for a whole file.
enum ContentOrRedirect {
    Content(HttpResponse),
    Elsewhere(RedirectResponse),
}

fn begin_unsized(route: &RedirectRoute) -> Result<ContentOrRedirect, OpenFailure> {
    let _permit = route.session.permit(route.file.origin())?;
    let traffic = AtomicHttpTrafficCounts::default();
    let answer = ask(&route.session, &route.file, &traffic, "GET", &[])?;
    match answer.status() {
        // If only the end of the connection marks the end of the body, a truncated body cannot be detected.
        status if has_file(status) && answer.ends_with_connection() => Err(without_end().into()),
        status if has_file(status) => Ok(ContentOrRedirect::Content(answer)),
        _ => match not_the_file(answer, &route.file)? {
            FileOrRedirect::Elsewhere(moved) => Ok(ContentOrRedirect::Elsewhere(moved)),
            FileOrRedirect::File(_) => Err(Error::from(ErrorKind::Internal).into()),
        },
    }
}

/// Passes the whole body to `sink`, and with `verify` checks it against the digest in the head, if any.
fn pass_on(
    answer: &mut HttpResponse,
    verify: bool,
    retries: &RetryBudget,
    sink: &mut DownloadSink<'_>,
) -> Result<Option<&'static str>> {
    let (mut check, mut buffer) = (DigestCheck::default(), vec![0; CHUNK_BYTES]);
    if verify {
        check.begin(answer, 0);
    }
    loop {
        let got = answer.read(&mut buffer).map_err(body_error)?;
        if got == 0 {
            return check.finish(&|| Err(ErrorKind::Internal.into()));
        }
        check.running.iter_mut().for_each(|running| running.update(&buffer[..got]));
        sink(&buffer[..got])?;
        retries.check_time()?;
    }
}

/// Checks a copy against the digest in the first response, if any.
#[derive(Default)]
struct DigestCheck {
    was_asked: bool,
    stated: Option<FileDigest>,
    /// The running digest of all bytes so far, if the copy began with the first byte.
    running: Option<DigestHasher>,
}

impl DigestCheck {
    fn begin(&mut self, answer: &HttpResponse, start: u64) {
        if !std::mem::replace(&mut self.was_asked, true) {
            self.stated = FileDigest::best(answer.headers(), answer.status() == 200);
            self.running = self.stated.as_ref().filter(|_| start == 0).map(FileDigest::start);
        }
    }

    fn finish(self, received: &PartialDownloadOpenFunction<'_>) -> Result<Option<&'static str>> {
        match (&self.stated, self.running) {
            (None, _) => return Ok(None),
            (Some(stated), Some(running)) => stated.check(running)?,
            (Some(stated), None) => stated.check_all(received()?)?,
        }
        Ok(self.stated.map(|stated| stated.name()))
    }
}

/// The last bytes that were passed on, at most 16 KiB.
#[derive(Default)]
struct RecentBytes(Vec<u8>);

impl RecentBytes {
    fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(OVERLAP_BYTES)..];
        let surplus = (self.0.len() + bytes.len()).saturating_sub(OVERLAP_BYTES);
        self.0.drain(..surplus);
        self.0.extend_from_slice(bytes);
    }
}

fn copy(
    source: &RemoteFileSource,
    mut left: Range<u64>,
    check: &mut Option<DigestCheck>,
    sink: &mut DownloadSink<'_>,
) -> Result<()> {
    let (mut buffer, mut moves, start) = (vec![0; CHUNK_BYTES], 0, left.start);
    let (mut has_asked_again, mut recent) = (false, RecentBytes::default());
    let mut retries = source.place().session.retries();
    while !left.is_empty() {
        let (place, before) = (source.place(), left.start);
        let mut from_sink = None;
        let mut deliver = |bytes: &[u8]| sink(bytes).map_err(|error| from_sink = Some(error));
        let context =
            DownloadContext { check, retries: &retries, recent: &mut recent, deliver: &mut deliver };
        let tried = try_copy((source, &place), &mut left, &mut buffer, context);
        if let Some(error) = from_sink {
            return Err(error);
        }
        if left.start > before {
            (moves, has_asked_again) = (0, false);
            retries.brought(left.start - before);
            source.is_begun.store(true, Ordering::Relaxed);
        }
        match tried {
            Ok(None) => {}
            Ok(Some(moved)) if moves < HOPS_MAX => {
                moves += 1;
                source.follow(&place, &moved, left.start > start)?;
            }
            Ok(Some(moved)) => return Err(place.refusal(moved.status, Some(&moved.location), b"")),
            Err(OpenFailure { error, .. }) if !has_asked_again && source.may_be_elsewhere(&place, &error) => {
                has_asked_again = true;
                source.ask_again(&place)?;
            }
            // All bytes have arrived, so a retry cannot help.
            Err(OpenFailure { error, .. }) if left.is_empty() => return Err(error),
            Err(OpenFailure { error, retry_after }) => {
                let may_pass = is_passing(error.kind());
                pause(retries.after(error, may_pass, retry_after)?)?;
            }
        }
    }
    Ok(())
}

/// The state of a copy that its requests share.
struct DownloadContext<'a> {
    check: &'a mut Option<DigestCheck>,
    retries: &'a RetryBudget,
    /// The last bytes that were passed on, which are compared if the copy is resumed without a strong validator.
    recent: &'a mut RecentBytes,
    /// Receives the bytes.
    deliver: &'a mut dyn FnMut(&[u8]) -> Result<(), ()>,
}

/// Requests the remaining bytes, `left`, and advances the start of `left` past the delivered bytes. Returns the
/// redirection, if there was one.
fn try_copy(
    (source, place): (&RemoteFileSource, &SourceLocation),
    left: &mut Range<u64>,
    buffer: &mut [u8],
    mut context: DownloadContext<'_>,
) -> Result<Option<RedirectResponse>, OpenFailure> {
    let _permit = place.session.permit(place.target.origin())?;
    let (check, retries) = (&mut *context.check, context.retries);
    // Parts may be put together only with a strong validator (RFC 9110 section 15.3.7.3).
    let is_identified = place.version.condition(place.target.pin()).is_some();
    let overlap = if is_identified { Vec::new() } else { context.recent.0.clone() };
    let asked_range = left.start - overlap.len() as u64..left.end;
    let wants_digest = check.as_ref().is_some_and(|check| !check.was_asked)
        && place.target.pin() == VersionPrecondition::IfRange
        && !place.learned().refuses_digests;
    let asked = Instant::now();
    let mut answer = request(source, place, &asked_range, wants_digest);
    let is_too_late = |error: &Error| {
        error.kind() == ErrorKind::Timeout && asked.elapsed() >= place.session.options.timeouts.first_byte
    };
    if wants_digest && answer.as_ref().map_or_else(is_too_late, |answer| answer.status() >= 400) {
        // XRootD servers without checksums refuse requests for a digest. Other XRootD servers compute a missing digest
        // before they respond, which may take minutes. Any other error will recur without the header.
        drop(answer);
        retries.check_time()?;
        answer = request(source, place, &asked_range, false);
        if answer.as_ref().is_ok_and(|answer| answer.status() < 400) {
            place.learn(|server| server.refuses_digests = true);
        }
    }
    let mut answer = answer?;
    if let Some(moved) = RedirectResponse::of(answer.status(), answer.header("location")) {
        let _document = answer.read_rest(DOCUMENT_BYTES_MAX);
        return Ok(Some(moved));
    }
    let (unwanted, end) = content_of(place, &mut answer, &asked_range, left.start)?;
    // A server that does not support ranges sends more than requested, up to the end of the file.
    let is_to_end = answer.status() == 206 || left.end == place.version.size_bytes;
    if let Some(check) = check {
        check.begin(&answer, left.start);
    }
    receive(&mut answer, left, (unwanted, &overlap, end), buffer, &mut context)?;
    if is_to_end {
        answer.check_end()?;
    }
    Ok(None)
}

/// Receives the body up to the file offset `end`: discards `unwanted` bytes, compares the next bytes with `overlap`,
/// and passes on the rest.
fn receive(
    answer: &mut HttpResponse,
    left: &mut Range<u64>,
    (mut unwanted, mut overlap, end): (u64, &[u8], u64),
    buffer: &mut [u8],
    context: &mut DownloadContext<'_>,
) -> Result<(), OpenFailure> {
    while left.start < end {
        let wanted = match (unwanted, overlap.len()) {
            (0, 0) => end - left.start,
            (0, known) => known as u64,
            _ => unwanted,
        };
        let room = buffer.len().min(usize::try_from(wanted).unwrap_or(usize::MAX));
        let got = answer.read(&mut buffer[..room]).map_err(body_error)?;
        match got {
            0 => return Err(short_body(end - left.start).into()),
            _ if unwanted > 0 => unwanted -= got as u64,
            _ if !overlap.is_empty() => {
                let (known, rest) = overlap.split_at(got);
                if known != &buffer[..got] {
                    let how = format!("the server now sends different bytes before byte {}", left.start);
                    return Err(changed(&how).into());
                }
                overlap = rest;
            }
            _ => {
                let bytes = &buffer[..got];
                if let Some(running) = context.check.as_mut().and_then(|check| check.running.as_mut()) {
                    running.update(bytes);
                }
                context.recent.push(bytes);
                (context.deliver)(bytes).map_err(|()| Error::from(ErrorKind::Interrupted))?;
                left.start += got as u64;
            }
        }
        context.retries.check_time().map_err(|error| OpenFailure { error, retry_after: None })?;
    }
    Ok(())
}

/// Sends the request. The whole file is requested without a range, because every server supports such a request.
fn request(
    source: &RemoteFileSource,
    place: &SourceLocation,
    left: &Range<u64>,
    wants_digest: bool,
) -> Result<HttpResponse> {
    let range = format!("bytes={}-{}", left.start, left.end.saturating_sub(1));
    let mut headers = vec![("range", range.as_str())];
    headers.extend(place.version.condition(place.target.pin()));
    if *left == (0..place.version.size_bytes) {
        headers.clear();
    }
    if wants_digest {
        headers.extend(WANTED);
    }
    ask(&place.session, &*place.target, &source.traffic, "GET", &headers)
}

/// Checks the head of a response against the request for the range `left`, of which only the bytes from `new` on are
/// new. Returns how many bytes precede the requested bytes, and the file offset at which the response ends.
fn content_of(
    place: &SourceLocation,
    answer: &mut HttpResponse,
    left: &Range<u64>,
    new: u64,
) -> Result<(u64, u64), OpenFailure> {
    let (etag, modified) = (answer.header("etag"), answer.header("last-modified"));
    match answer.status() {
        206 => {
            place.version.check(etag, modified, false)?;
            let stated = answer.header("content-range").and_then(parse_content_range);
            // The bytes will be written at the requested offsets, so bytes from any other range would corrupt the copy.
            // A server may send less than was requested (RFC 9110 section 15.3.7), but not so little that the requests
            // never end.
            let is_start = |range: &Range<u64>| {
                let is_enough = range.end == left.end || range.end >= new + PROGRESS_BYTES;
                range.start == left.start && range.end <= left.end && is_enough
            };
            let Some((range, size)) = stated.filter(|(range, _)| is_start(range)) else {
                let detail = "the server sent a different range from the one requested";
                return Err(Error::new(ErrorKind::BadResponse, detail).into());
            };
            place.version.check_size(size)?;
            match answer.body_bytes() {
                Some(bytes) if bytes != range.end - range.start => {
                    let wanted = range.end - range.start;
                    let detail = format!("the server announced {bytes} bytes for a range of {wanted}");
                    Err(Error::new(ErrorKind::BadResponse, detail).into())
                }
                _ => Ok((0, range.end)),
            }
        }
        status if has_file(status) => {
            place.version.check(etag, modified, new > 0)?;
            place.version.check_size(answer.body_bytes())?;
            Ok((left.start, left.end))
        }
        412 => Err(changed("HTTP status 412").into()),
        status => {
            let document = answer.read_rest(DOCUMENT_BYTES_MAX).unwrap_or_default();
            let wish = answer.header("retry-after").and_then(|text| retry_after(text, SystemTime::now()));
            let error = place.refusal(status, answer.header("location"), &document);
            Err(OpenFailure { error, retry_after: wish })
        }
    }
}

/// The header fields that request any of the supported digests. XRootD ignores the weights and uses the first digest,
/// so the first digest is one that XRootD supports.
pub(super) const WANTED: [(&str, &str); 2] = [
    ("want-digest", "adler32;q=0.3, md5;q=0.5, sha;q=0.6, sha-256"),
    ("want-repr-digest", "sha-256=9, md5=3"),
];

/// A digest of a whole file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileDigest {
    /// One of S3's checksums.
    Checksum(Checksum),
    Hash(FileHash),
}

/// A digest that is being computed.
pub(crate) enum DigestHasher {
    Checksum(ContentHasher),
    Hash(FileHasher),
}

impl FileDigest {
    /// Returns the best digest in the headers of a response; `is_whole` is true if the body of the response is the
    /// whole file. Skips unreadable values, and composite checksums (checksums of the parts' checksums).
    pub(super) fn best<'h>(
        headers: impl Iterator<Item = (&'h str, &'h str)>,
        is_whole: bool,
    ) -> Option<Self> {
        let mut found = Vec::new();
        for (name, value) in headers {
            let name = name.to_ascii_lowercase();
            match name.as_str() {
                "content-md5" if is_whole => found.extend(of_instance("md5", value.trim())),
                "digest" => found.extend(members(value).filter_map(|(name, value)| of_instance(name, value))),
                "repr-digest" => found.extend(of_fields(value)),
                "content-digest" if is_whole => found.extend(of_fields(value)),
                // A value that ends with the number of parts is a composite checksum of a multipart object.
                name if is_whole && !value.contains('-') => {
                    let algorithm =
                        name.strip_prefix("x-amz-checksum-").and_then(ChecksumAlgorithm::from_name);
                    found.extend(algorithm.and_then(|algorithm| checksum(algorithm, value.trim())));
                }
                _ => {}
            }
        }
        found.into_iter().max_by_key(FileDigest::strength)
    }

    fn strength(&self) -> u8 {
        match self {
            FileDigest::Hash(hash) => match hash.kind {
                FileHashAlgorithm::Adler32 => 0,
                FileHashAlgorithm::Md5 => 4,
                FileHashAlgorithm::Sha1 => 5,
                FileHashAlgorithm::Sha256 => 6,
                FileHashAlgorithm::Sha384 => 7,
                FileHashAlgorithm::Sha512 => 8,
            },
            FileDigest::Checksum(Checksum { algorithm, .. }) => match algorithm {
                ChecksumAlgorithm::Crc32 => 1,
                ChecksumAlgorithm::Crc32c => 2,
                ChecksumAlgorithm::Crc64Nvme
                | ChecksumAlgorithm::XxHash64
                | ChecksumAlgorithm::XxHash3
                | ChecksumAlgorithm::XxHash128 => 3,
                ChecksumAlgorithm::Md5 => 4,
                ChecksumAlgorithm::Sha1 => 5,
                ChecksumAlgorithm::Sha256 => 6,
                ChecksumAlgorithm::Sha512 => 8,
            },
        }
    }

    /// Returns the value of the digest as a string.
    pub(crate) fn text(&self) -> String {
        match self {
            FileDigest::Checksum(checksum) => checksum.to_base64(),
            FileDigest::Hash(hash) => hash.hex.clone(),
        }
    }

    /// Returns the name of the digest.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            FileDigest::Checksum(checksum) => checksum.algorithm.name(),
            // S3 uses these names.
            FileDigest::Hash(hash) => match hash.kind {
                FileHashAlgorithm::Adler32 => "ADLER32",
                FileHashAlgorithm::Md5 => "MD5",
                FileHashAlgorithm::Sha1 => "SHA1",
                FileHashAlgorithm::Sha256 => "SHA256",
                FileHashAlgorithm::Sha384 => "SHA384",
                FileHashAlgorithm::Sha512 => "SHA512",
            },
        }
    }

    pub(crate) fn start(&self) -> DigestHasher {
        match self {
            FileDigest::Checksum(Checksum { algorithm, .. }) => {
                DigestHasher::Checksum(ContentHasher::new(ETagPolicy::Fast, false, Some(*algorithm)))
            }
            FileDigest::Hash(hash) => DigestHasher::Hash(FileHasher::new(hash.kind)),
        }
    }

    /// Checks the digest. Errors: `BadDigest` if the digests differ.
    pub(crate) fn check(&self, running: DigestHasher) -> Result<()> {
        let is_right = match (self, running) {
            (FileDigest::Checksum(checksum), DigestHasher::Checksum(hasher)) => hasher
                .finish(&ExpectedContent { checksum: Some(checksum.clone()), ..ExpectedContent::default() })
                .is_ok(),
            (FileDigest::Hash(hash), DigestHasher::Hash(running)) => running.finish() == *hash,
            _ => false,
        };
        let detail = || format!("the received bytes do not match the {} that the server states", self.name());
        is_right.then_some(()).ok_or_else(|| Error::new(ErrorKind::BadDigest, detail()))
    }

    /// Checks the digest over all bytes of `content`. Errors: `BadDigest`; `Io` if `content` cannot be read.
    pub(super) fn check_all(&self, mut content: impl Read) -> Result<()> {
        let (mut running, mut chunk) = (self.start(), vec![0; 256 * 1024]);
        loop {
            match content.read(&mut chunk) {
                Ok(0) => return self.check(running),
                Ok(count) => running.update(&chunk[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(Error::new(ErrorKind::Io, "reading back what had arrived").caused_by(error));
                }
            }
        }
    }
}

impl DigestHasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            DigestHasher::Checksum(hasher) => hasher.update(bytes),
            DigestHasher::Hash(hash) => hash.update(bytes),
        }
    }
}

/// Splits `name=value` pairs at commas; a value may itself contain `=`.
fn members(list: &str) -> impl Iterator<Item = (&str, &str)> {
    list.split(',').filter_map(|member| {
        let (name, value) = member.trim().split_once('=')?;
        Some((name.trim(), value.trim()))
    })
}

/// Parses one member of a `Digest` header.
fn of_instance(name: &str, value: &str) -> Option<FileDigest> {
    FileHash::from_digest_header(FileHashAlgorithm::from_name(name)?, value).map(FileDigest::Hash)
}

/// Returns the byte sequences of a structured field that is a dictionary; they are enclosed in colons (RFC 8941 section
/// 3.3.5).
fn of_fields(value: &str) -> impl Iterator<Item = FileDigest> {
    members(value).filter_map(|(name, value)| {
        let bytes = value.split(';').next()?.trim().strip_prefix(':')?.strip_suffix(':')?;
        // RFC 9530 does not define ADLER32, so it never has this form.
        of_instance(name, bytes).filter(|_| !name.eq_ignore_ascii_case("adler32"))
    })
}

fn checksum(algorithm: ChecksumAlgorithm, text: &str) -> Option<FileDigest> {
    Checksum::from_base64(algorithm, text).ok().map(FileDigest::Checksum)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DATA: &[u8] = b"Wikipedia";
    const MD5: &str = "nGdyhoZqrTj46bZg9UEYFA==";

    fn best(headers: &[(&str, &str)]) -> Option<&'static str> {
        FileDigest::best(headers.iter().copied(), true).map(|stated| stated.name())
    }

    fn sha256(data: &[u8]) -> String {
        Checksum::of(ChecksumAlgorithm::Sha256, data).to_base64()
    }

    #[test]
    fn the_strongest_that_can_be_read_is_taken() {
        let sha = sha256(DATA);
        let fields = format!("md5=:{MD5}:, sha-256=:{sha}:;x=1, sha-512=:AA==:");
        assert_eq!(best(&[("Digest", "adler32=11e60398"), ("Content-MD5", MD5)]), Some("MD5"));
        assert_eq!(best(&[("repr-digest", &fields)]), Some("SHA256"));
        assert_eq!(best(&[("digest", &format!("MD5={MD5},SHA-256={sha}"))]), Some("SHA256"));
        assert_eq!(best(&[("x-amz-checksum-crc64nvme", "AAAAAAAAAAA=")]), Some("CRC64NVME"));
        for (name, value) in [
            ("digest", "adler32=xyz"),
            ("digest", "adler32=123456789"),
            ("content-md5", "short"),
            ("repr-digest", "md5=plain"),
            ("x-amz-checksum-crc32c", "AAAAAA==-3"),
            ("x-amz-checksum-algorithm", "CRC32C"),
        ] {
            assert_eq!(best(&[(name, value)]), None, "{name}: {value}");
        }
        let of_part =
            [("content-md5", MD5), ("content-digest", &fields), ("x-amz-checksum-crc32", "AAAAAA==")];
        assert_eq!(FileDigest::best(of_part.into_iter(), false), None);
        assert!(FileDigest::best([("repr-digest", fields.as_str())].into_iter(), false).is_some());
    }

    #[test]
    fn other_bytes_are_noticed() {
        let stated = [
            of_instance("adler32", "11E60398").unwrap(),
            of_instance("md5", MD5).unwrap(),
            FileDigest::Checksum(Checksum::of(ChecksumAlgorithm::Crc32c, DATA)),
            checksum(ChecksumAlgorithm::Sha256, &sha256(DATA)).unwrap(),
        ];
        for stated in &stated {
            stated.check_all(DATA).unwrap();
            let error = stated.check_all(&b"Wikipedie"[..]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadDigest);
            assert!(error.to_string().contains(stated.name()), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_header_is_read(name in "digest|repr-digest|content-md5|x-amz-checksum-sha1", value in "\\PC{0,80}") {
            let _ = FileDigest::best([(name.as_str(), value.as_str())].into_iter(), true);
        }
    }
}
