//! The content of a response. This module checks the head of the response against the request, and writes the bytes of
//! the body to their destinations, regardless of the framing.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use fordway_store::{Error, ErrorKind};
use fordway_wire::byteranges::{ByterangesParser, ByterangesParserStep, MalformedByteranges, boundary_of};
use fordway_wire::range::parse_content_range;

use super::batch::{ByteRunKind, FragmentBatch};
use super::open::has_file;
use super::request::RangeRequest;
use super::sink::FragmentSink;
use super::source::FileVersion;
use crate::response::{lost, short_body};
use crate::retry::retry_after;

/// The maximum number of bytes read from a refusal's document.
const DOCUMENT_BYTES_MAX: usize = 64 * 1024;

/// The content of a response whose head has been received.
pub(super) struct RangeResponseBody {
    kind: BodyKind,
    /// The file offset of the next byte.
    pub(super) at: u64,
    /// The file offset of the first byte of the current part.
    part_start: u64,
    /// The unwanted bytes of the current part that passed through a buffer.
    gaps: PartGaps,
    /// The number of received bytes that had been missing.
    pub(super) new_bytes: u64,
}

/// The kind of a body.
enum BodyKind {
    /// One range of the file, up to this offset.
    Range(u64),
    /// Several ranges, each with its own head, and the number of ranges received so far.
    Parts(ByterangesParser, usize),
    /// The whole file, up to this offset.
    Whole(u64),
    /// A refusal, which contains none of the file's content.
    Refusal(UnsuccessfulResponse),
}

/// A response without the file.
#[derive(Debug, Default)]
pub(super) struct UnsuccessfulResponse {
    pub(super) status: u16,
    pub(super) retry_after: Option<Duration>,
    pub(super) location: Option<String>,
    pub(super) document: Vec<u8>,
}

/// The response headers that this module uses.
#[derive(Default)]
pub(super) struct ContentHeaders<'c> {
    etag: Option<&'c str>,
    last_modified: Option<&'c str>,
    content_range: Option<&'c str>,
    content_type: Option<&'c str>,
    retry_after: Option<&'c str>,
    location: Option<&'c str>,
}

impl<'c> ContentHeaders<'c> {
    pub(super) fn of(headers: impl Iterator<Item = (&'c str, &'c str)>) -> Self {
        let mut found = ContentHeaders::default();
        for (name, value) in headers {
            let field = match () {
                () if name.eq_ignore_ascii_case("etag") => &mut found.etag,
                () if name.eq_ignore_ascii_case("last-modified") => &mut found.last_modified,
                () if name.eq_ignore_ascii_case("content-range") => &mut found.content_range,
                () if name.eq_ignore_ascii_case("content-type") => &mut found.content_type,
                () if name.eq_ignore_ascii_case("retry-after") => &mut found.retry_after,
                () if name.eq_ignore_ascii_case("location") => &mut found.location,
                () => continue,
            };
            *field = Some(value);
        }
        found
    }
}

impl RangeResponseBody {
    /// Creates the content of a response to `request`; `length` is the size of the body in bytes, if known. Errors:
    /// `PreconditionFailed` for a different version; `BadResponse` for ranges that were not requested.
    pub(super) fn new(
        (status, headers): (u16, &ContentHeaders<'_>),
        length: Option<u64>,
        request: &RangeRequest,
        version: &FileVersion,
    ) -> Result<Self, Error> {
        let mut at = 0;
        let kind = match status {
            206 => {
                version.check(headers.etag, headers.last_modified, false)?;
                match headers.content_type.and_then(boundary_of) {
                    Some(boundary) => BodyKind::Parts(ByterangesParser::new(&boundary), 0),
                    None => {
                        let range = only_range(headers.content_range, request, version, length)?;
                        at = range.start;
                        BodyKind::Range(range.end)
                    }
                }
            }
            status if has_file(status) => {
                version.check(headers.etag, headers.last_modified, true)?;
                version.check_size(length)?;
                BodyKind::Whole(version.size_bytes)
            }
            status => BodyKind::Refusal(UnsuccessfulResponse {
                status,
                retry_after: headers.retry_after.and_then(|text| retry_after(text, SystemTime::now())),
                location: headers.location.map(str::to_owned),
                document: Vec::new(),
            }),
        };
        Ok(RangeResponseBody { kind, at, part_start: at, gaps: PartGaps::default(), new_bytes: 0 })
    }

    /// Returns whether the body is the whole file.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.kind, BodyKind::Whole(_))
    }

    /// Returns the refusal, if the response is a refusal.
    pub(super) fn into_refusal(self) -> Option<UnsuccessfulResponse> {
        if let BodyKind::Refusal(refusal) = self.kind { Some(refusal) } else { None }
    }

    /// Returns the number of ranges received.
    pub(super) fn ranges(&self) -> usize {
        if let BodyKind::Parts(_, count) = &self.kind { *count } else { 1 }
    }

    /// Returns the number of file bytes that follow, up to the next part's head.
    pub(super) fn data_left(&self) -> u64 {
        match &self.kind {
            BodyKind::Range(end) | BodyKind::Whole(end) => end - self.at,
            BodyKind::Parts(parts, _) => parts.data_left(),
            BodyKind::Refusal(_) => 0,
        }
    }

    /// Predicts the part that follows after `count` other parts. Returns the number of bytes before the content of that
    /// part, and its range; `None` if they are unknown.
    pub(super) fn part_ahead(&self, count: usize, request: &RangeRequest) -> Option<(usize, Range<u64>)> {
        let BodyKind::Parts(parts, seen) = &self.kind else { return None };
        let next = request.spans.get(seen + count)?;
        Some((parts.bytes_before(next)?, next.clone()))
    }

    /// Accepts `count` bytes at offset `at` that are already in place, if they are the next bytes and are wanted.
    /// Returns the number of accepted bytes.
    pub(super) fn take_placed<S: FragmentSink>(
        &mut self,
        at: u64,
        count: usize,
        batch: &mut FragmentBatch<S>,
    ) -> usize {
        let is_next = self.at == at && self.data_left() >= count as u64;
        if !is_next || !matches!(batch.look(at), ByteRunKind::Wanted(len) if len >= count) {
            return 0;
        }
        batch.filled(count);
        self.new_bytes += count as u64;
        self.passed(count as u64);
        count
    }

    /// Accounts for bytes of the file that bypassed [`RangeResponseBody::take`].
    pub(super) fn passed(&mut self, count: u64) {
        self.at += count;
        if let BodyKind::Parts(parts, _) = &mut self.kind {
            parts.passed(count);
        }
    }

    /// Returns whether the rest of the body need not be received, because the first 64 KiB of a refusal's document have
    /// arrived.
    pub(super) fn is_enough(&self) -> bool {
        matches!(&self.kind, BodyKind::Refusal(refusal) if refusal.document.len() >= DOCUMENT_BYTES_MAX)
    }

    /// Processes at least one byte of `bytes`; returns the number of bytes processed. Errors: `BadResponse`,
    /// `PreconditionFailed`.
    pub(super) fn take<S: FragmentSink>(
        &mut self,
        bytes: &[u8],
        (request, batch, version): (&RangeRequest, &mut FragmentBatch<S>, &FileVersion),
    ) -> Result<usize, Error> {
        let data_left = self.data_left();
        match &mut self.kind {
            BodyKind::Range(_) | BodyKind::Whole(_) => {
                let count = data_left.min(bytes.len() as u64) as usize;
                if count == 0 {
                    return Err(batch.distrust(bad(
                        "the body continues after the last byte of its range; do not trust this server"
                            .to_owned(),
                    )));
                }
                self.new_bytes += deliver(&mut self.at, &bytes[..count], batch, None);
                Ok(count)
            }
            BodyKind::Parts(parts, count) => {
                let malformed = |error: MalformedByteranges| bad(error.to_string());
                let step = match parts.step(bytes) {
                    Err(error) if parts.is_content_unconfirmed() => {
                        return Err(batch.distrust(malformed(error)));
                    }
                    step => step.map_err(malformed)?,
                };
                match &step {
                    ByterangesParserStep::Part(_, range, size) => {
                        version.check_size(*size)?;
                        *count += 1;
                        // Limit the number of parts, because a server that sends unrequested parts might never stop.
                        if *count > request.spans.len() || !request.wants_of(range) {
                            return Err(not_asked(range));
                        }
                        (self.at, self.part_start) = (range.start, range.start);
                        self.gaps.clear();
                    }
                    ByterangesParserStep::Data(count) => {
                        let gaps = Some(&mut self.gaps);
                        self.new_bytes += deliver(&mut self.at, &bytes[..*count], batch, gaps);
                    }
                    ByterangesParserStep::Skip(_) | ByterangesParserStep::End(_) => {}
                }
                Ok(step.len())
            }
            BodyKind::Refusal(refusal) => {
                // Skip the rest, so that the server cannot make the client allocate unlimited memory for a document.
                let room = DOCUMENT_BYTES_MAX.saturating_sub(refusal.document.len());
                refusal.document.extend_from_slice(&bytes[..bytes.len().min(room)]);
                Ok(bytes.len())
            }
        }
    }

    /// Returns whether all received content can be used even if the rest of the body does not arrive.
    pub(super) fn is_confirmed(&self) -> bool {
        !matches!(&self.kind, BodyKind::Parts(parts, _) if parts.content_check().is_some())
    }

    /// Marks received content as missing if it may be part of a delimiter. Called if the body ends before the delimiter
    /// that follows the current part. If the part is shorter than its `Content-Range` specifies, bytes of this
    /// delimiter may have been received as content. Returns the range that is missing again, if any.
    pub(super) fn lose_unconfirmed<S: FragmentSink>(
        &self,
        batch: &mut FragmentBatch<S>,
    ) -> Option<Range<u64>> {
        let BodyKind::Parts(parts, _) = &self.kind else { return None };
        let mut check = parts.content_check()?;
        let mut at = self.part_start;
        while at < self.at {
            let before = at;
            for (place, len) in batch.arrived(&(at..self.at)) {
                check.content(batch.slice(place, len));
                at += len as u64;
            }
            if let Some(bytes) = self.gaps.at(at).filter(|_| at < self.at) {
                check.content(bytes);
                at += bytes.len() as u64;
            }
            if at == before {
                break;
            }
        }
        let usable = if at == self.at { check.usable_bytes() } else { check.usable_bytes_before_unknown() };
        let lost = self.part_start + usable..self.at;
        (!lost.is_empty()).then(|| batch.lose(lost))
    }

    /// Checks that the body is complete. Errors: `Unavailable`, `BadResponse`.
    pub(super) fn check_end(&self) -> Result<(), Error> {
        match &self.kind {
            BodyKind::Range(end) | BodyKind::Whole(end) if self.at < *end => Err(short_body(end - self.at)),
            BodyKind::Parts(parts, _) if !parts.has_ended() => {
                Err(lost("the body ended before its last boundary"))
            }
            BodyKind::Parts(_, 0) => Err(bad("the multipart body has no parts".to_owned())),
            _ => Ok(()),
        }
    }
}

/// The maximum number of unwanted bytes that are kept of a part. Requests join ranges only across small gaps.
const GAP_BYTES_MAX: usize = 64 * 1024;

/// The unwanted bytes between the wanted bytes of a part, which are needed to check the part's content.
#[derive(Default)]
struct PartGaps {
    /// The file offset of each run of bytes, and the start of the run in `bytes`.
    runs: Vec<(u64, usize)>,
    bytes: Vec<u8>,
}

impl PartGaps {
    fn clear(&mut self) {
        self.runs.clear();
        self.bytes.clear();
    }

    /// Adds bytes at file offset `at`, which is beyond all earlier bytes, unless there are too many bytes already.
    fn push(&mut self, at: u64, bytes: &[u8]) {
        if self.bytes.len() + bytes.len() <= GAP_BYTES_MAX {
            self.runs.push((at, self.bytes.len()));
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// Returns the run of bytes that begins at file offset `at`.
    fn at(&self, at: u64) -> Option<&[u8]> {
        let index = self.runs.binary_search_by_key(&at, |(at, _)| *at).ok()?;
        let end = self.runs.get(index + 1).map_or(self.bytes.len(), |(_, start)| *start);
        Some(&self.bytes[self.runs[index].1..end])
    }
}

/// Copies bytes at offset `at` to their destinations, and advances `at`. Returns how many of the bytes had been
/// missing.
fn deliver<S: FragmentSink>(
    at: &mut u64,
    mut bytes: &[u8],
    batch: &mut FragmentBatch<S>,
    mut gaps: Option<&mut PartGaps>,
) -> u64 {
    let missing = batch.missing_bytes();
    while !bytes.is_empty() {
        let count = match batch.look(*at) {
            ByteRunKind::Wanted(len) => {
                let count = len.min(bytes.len());
                batch.room(count).copy_from_slice(&bytes[..count]);
                batch.filled(count);
                count
            }
            ByteRunKind::Unwanted(len) => {
                let count = len.min(bytes.len() as u64) as usize;
                if let Some(gaps) = &mut gaps {
                    gaps.push(*at, &bytes[..count]);
                }
                count
            }
        };
        *at += count as u64;
        bytes = &bytes[count..];
    }
    missing - batch.missing_bytes()
}

/// Returns the range of a single-range response.
fn only_range(
    stated: Option<&str>,
    request: &RangeRequest,
    version: &FileVersion,
    length: Option<u64>,
) -> Result<Range<u64>, Error> {
    let Some((range, size)) = stated.and_then(parse_content_range) else {
        return Err(bad(format!(
            "a partial response has the Content-Range {:?}",
            stated.unwrap_or_default()
        )));
    };
    version.check_size(size)?;
    if !request.wants_of(&range) {
        return Err(not_asked(&range));
    }
    match length {
        Some(length) if length != range.end - range.start => {
            Err(bad(format!("{length} bytes were announced for the range {}", stated.unwrap_or_default())))
        }
        _ => Ok(range),
    }
}

fn not_asked(range: &Range<u64>) -> Error {
    bad(format!("the server sent bytes {} to {}, which were not requested", range.start, range.end))
}

fn bad(detail: String) -> Error {
    Error::new(ErrorKind::BadResponse, detail)
}
