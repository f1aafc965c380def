//! One answer on its way: what its head promises is held against the request, and its bytes go
//! where they belong.

use std::io;
use std::ops::Range;
use std::time::{Duration, SystemTime};

use fordway_store::{Error, ErrorKind};
use fordway_wire::byteranges::{Parts, Step, boundary_of};
use fordway_wire::range::parse_content_range;

use super::batch::{Batch, Here};
use super::request::Request;
use super::sink::Sink;
use super::version::FileVersion;
use crate::http::body::{Framing, short_body};
use crate::http::connection::Connection;
use crate::http::response::Head;
use crate::retry::retry_after;

/// Pieces from this size on are received straight into place.
const DIRECT_BYTES: usize = 8 * 1024;
/// Received in the same call behind such a piece: the next part's head fits.
const BEHIND_BYTES: usize = 1024;
/// Received at once where pieces are smaller.
const STAGING_BYTES: usize = 64 * 1024;
/// Unwanted bytes from this number on are dropped in the kernel.
const DISCARD_BYTES: u64 = 16 * 1024;
/// More of a refusal's document is not worth reading.
const DOCUMENT_BYTES_MAX: usize = 64 * 1024;

/// An answer whose head was received.
pub(super) struct Answer {
    framing: Framing,
    content: Content,
    /// Whether the connection takes further requests behind it.
    pub(super) keeps_alive: bool,
    /// The position in the file of the next byte.
    at: u64,
    /// Bytes that came and were missing.
    pub(super) new_bytes: u64,
}

/// What the body is.
enum Content {
    /// The bytes of the file up to there.
    Range(u64),
    /// Ranges with heads of their own; so many were there yet.
    Parts(Parts, usize),
    /// All of the file, up to there if that is known.
    Whole(Option<u64>),
    /// Why there are no bytes.
    Refusal(Refusal),
}

/// An answer of status 300 and more.
#[derive(Debug, Default)]
pub(super) struct Refusal {
    pub(super) status: u16,
    pub(super) retry_after: Option<Duration>,
    pub(super) location: Option<String>,
    pub(super) document: Vec<u8>,
}

/// The headers that matter.
#[derive(Default)]
struct Headers<'c> {
    etag: Option<&'c str>,
    last_modified: Option<&'c str>,
    content_range: Option<&'c str>,
    content_type: Option<&'c str>,
    retry_after: Option<&'c str>,
    location: Option<&'c str>,
}

impl<'c> Headers<'c> {
    fn of(head: &'c Head, connection: &'c Connection) -> Self {
        let mut found = Headers::default();
        for (name, value) in head.headers(connection) {
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

impl Answer {
    /// Errors: `PreconditionFailed` for another version, `BadResponse` for what was not asked.
    pub(super) fn new(
        head: &Head,
        connection: &Connection,
        request: &Request,
        version: &FileVersion,
    ) -> Result<Self, Error> {
        let framing = Framing::of(head, connection, "GET")?;
        let keeps_alive = head.may_keep_alive(connection, &framing);
        let headers = Headers::of(head, connection);
        let mut at = 0;
        let content = match head.status {
            206 => {
                version.check(headers.etag, headers.last_modified, false)?;
                match headers.content_type.and_then(boundary_of) {
                    Some(boundary) => Content::Parts(Parts::new(&boundary), 0),
                    None => {
                        let range =
                            only_range(headers.content_range, request, version, framing.known_left())?;
                        at = range.start;
                        Content::Range(range.end)
                    }
                }
            }
            200..=299 => {
                version.check(headers.etag, headers.last_modified, true)?;
                version.check_size(framing.known_left())?;
                Content::Whole(framing.known_left())
            }
            status => Content::Refusal(Refusal {
                status,
                retry_after: headers.retry_after.and_then(|text| retry_after(text, SystemTime::now())),
                location: headers.location.map(str::to_owned),
                document: Vec::new(),
            }),
        };
        Ok(Answer { framing, content, keeps_alive, at, new_bytes: 0 })
    }

    /// Whether all of the file comes.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.content, Content::Whole(_))
    }

    /// The refusal, if it is one.
    pub(super) fn into_refusal(self) -> Option<Refusal> {
        if let Content::Refusal(refusal) = self.content { Some(refusal) } else { None }
    }

    /// Ranges that came.
    pub(super) fn ranges(&self) -> usize {
        if let Content::Parts(_, count) = &self.content { *count } else { 1 }
    }

    /// Whether more is to come than it would cost to make another connection.
    pub(super) fn is_long(&self) -> bool {
        self.framing.known_left().is_none_or(|left| left > 256 << 10)
    }

    /// Bytes of the body that are known to be on their way.
    pub(super) fn bytes_left(&self) -> u64 {
        self.framing.known_left().unwrap_or(0)
    }

    /// Takes what has arrived. `false` if more is to come and the socket has nothing now.
    /// Errors: `IncompleteBody`, `BadResponse`, `PreconditionFailed`, `Unavailable`, and those of sockets.
    pub(super) fn advance<S: Sink>(
        &mut self,
        connection: &mut Connection,
        (request, batch, version): (&Request, &mut Batch<S>, &FileVersion),
    ) -> io::Result<bool> {
        loop {
            let run = match self.framing.run(connection, 0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                run => run?,
            };
            if run == 0 {
                return self.check_end().map(|()| true).map_err(io::Error::other);
            }
            if connection.has_nothing_left() {
                match self.receive(connection, batch, run) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                    received => received?,
                }
                continue;
            }
            let waiting = connection.waiting();
            let bytes = &waiting[..waiting.len().min(usize::try_from(run).unwrap_or(usize::MAX))];
            let taken = self.take(bytes, request, batch, version).map_err(io::Error::other)?;
            connection.consume(taken);
            self.framing.passed(taken as u64);
        }
    }

    /// Receives what is next: into place, into nothing, or to be looked at.
    fn receive<S: Sink>(
        &mut self,
        connection: &mut Connection,
        batch: &mut Batch<S>,
        run: u64,
    ) -> io::Result<()> {
        let data = run.min(self.data_left());
        let here = if data >= DIRECT_BYTES as u64 { batch.look(self.at) } else { Here::Wanted(0) };
        let got = match here {
            Here::Wanted(len) if len >= DIRECT_BYTES => {
                let len = len.min(usize::try_from(data).unwrap_or(usize::MAX));
                let got = connection.read_through(batch.room(len), BEHIND_BYTES)?;
                batch.filled(got);
                self.new_bytes += got as u64;
                self.passed(got as u64);
                got
            }
            Here::Unwanted(len) if len.min(data) >= DISCARD_BYTES => {
                let got = connection.discard_next(usize::try_from(len.min(data)).unwrap_or(usize::MAX))?;
                self.passed(got as u64);
                got
            }
            _ => connection.receive_next(STAGING_BYTES)?,
        };
        match (got, &self.framing) {
            (1.., _) => Ok(()),
            (0, Framing::UntilClose) => {
                self.framing = Framing::Empty;
                Ok(())
            }
            (0, framing) => Err(io::Error::other(short_body(framing.known_left().unwrap_or(1)))),
        }
    }

    /// Bytes of the file that are next, with no part's head between them.
    fn data_left(&self) -> u64 {
        match &self.content {
            Content::Range(end) => end - self.at,
            Content::Parts(parts, _) => parts.data_left(),
            Content::Whole(end) => end.map_or(u64::MAX, |end| end - self.at),
            Content::Refusal(_) => 0,
        }
    }

    /// Counts bytes of the file that did not go through [`Answer::take`].
    fn passed(&mut self, count: u64) {
        self.at += count;
        self.framing.passed(count);
        if let Content::Parts(parts, _) = &mut self.content {
            parts.passed(count);
        }
    }

    /// Takes some of `bytes`, at least one; returns how many.
    fn take<S: Sink>(
        &mut self,
        bytes: &[u8],
        request: &Request,
        batch: &mut Batch<S>,
        version: &FileVersion,
    ) -> Result<usize, Error> {
        match &mut self.content {
            Content::Range(_) | Content::Whole(_) => {
                let count = self.data_left().min(bytes.len() as u64) as usize;
                if count == 0 {
                    return Err(bad("the body is longer than the range that it states".to_owned()));
                }
                self.new_bytes += deliver(&mut self.at, &bytes[..count], batch);
                Ok(count)
            }
            Content::Parts(parts, count) => {
                let step = parts.step(bytes).map_err(|error| bad(error.to_string()))?;
                match &step {
                    Step::Part(_, range, size) => {
                        version.check_size(*size)?;
                        *count += 1;
                        if *count > request.spans.len() || !request.wants_of(range) {
                            return Err(not_asked(range));
                        }
                        self.at = range.start;
                    }
                    Step::Data(count) => self.new_bytes += deliver(&mut self.at, &bytes[..*count], batch),
                    Step::Skip(_) | Step::End(_) => {}
                }
                Ok(step.len())
            }
            Content::Refusal(refusal) => {
                let room = DOCUMENT_BYTES_MAX.saturating_sub(refusal.document.len());
                refusal.document.extend_from_slice(&bytes[..bytes.len().min(room)]);
                if room == 0 {
                    // What is left of it is not worth the connection.
                    (self.framing, self.keeps_alive) = (Framing::Empty, false);
                }
                Ok(bytes.len())
            }
        }
    }

    /// Whether the body ended where it should.
    fn check_end(&self) -> Result<(), Error> {
        match &self.content {
            Content::Range(end) if self.at < *end => Err(short_body(end - self.at)),
            Content::Parts(parts, _) if !parts.has_ended() => {
                Err(Error::new(ErrorKind::IncompleteBody, "the body ended before its last boundary"))
            }
            Content::Parts(_, 0) => Err(bad("the multipart body has no parts".to_owned())),
            _ => Ok(()),
        }
    }
}

/// Puts bytes from `at` on where they belong, and moves `at` behind them; returns how many of them
/// were missing.
fn deliver<S: Sink>(at: &mut u64, mut bytes: &[u8], batch: &mut Batch<S>) -> u64 {
    let missing = batch.missing_bytes();
    while !bytes.is_empty() {
        let count = match batch.look(*at) {
            Here::Wanted(len) => {
                let count = len.min(bytes.len());
                batch.room(count).copy_from_slice(&bytes[..count]);
                batch.filled(count);
                count
            }
            Here::Unwanted(len) => len.min(bytes.len() as u64) as usize,
        };
        *at += count as u64;
        bytes = &bytes[count..];
    }
    missing - batch.missing_bytes()
}

/// The range of an answer that has only one.
fn only_range(
    stated: Option<&str>,
    request: &Request,
    version: &FileVersion,
    length: Option<u64>,
) -> Result<Range<u64>, Error> {
    let Some((range, size)) = stated.and_then(parse_content_range) else {
        return Err(bad(format!("a partial answer has the Content-Range {:?}", stated.unwrap_or_default())));
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
    bad(format!("the server sent bytes {} to {}, which were not asked for", range.start, range.end))
}

fn bad(detail: String) -> Error {
    Error::new(ErrorKind::BadResponse, detail)
}
