//! A response: its head, parsed in the receive buffer, and its body, read from the connection. A body's end is
//! determined by its length, by chunks, or by the end of the connection.

use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;

use fordway_store::{Error, ErrorKind, Result};

use super::Origin;
use super::client::ConnectionPool;
use super::connection::{BufferedConnection, io_error};

/// The maximum size of a head.
pub(super) const MAX_HEAD_BYTES: usize = 128 * 1024;
/// The maximum number of headers in a response.
const MAX_HEADERS: usize = 128;
/// The maximum size of a document read as a whole (a full page of a listing has about 1 MiB).
const MAX_DOCUMENT_BYTES: usize = 64 * 1024 * 1024;

/// A parsed head. The value stores positions in the connection's buffer, so that no header is copied.
#[derive(Default)]
pub struct ResponseHead {
    /// The status as the server sent it.
    pub status: u16,
    /// The position of the body's first byte in the buffer.
    pub end: usize,
    http_1_0: bool,
    headers: Vec<(Range<usize>, Range<usize>)>,
}

impl ResponseHead {
    /// Parses a head that starts at `within.start`. Replaces the previous head, and reuses its memory. Returns `false`
    /// if the head is incomplete. Errors: `BadResponse`.
    pub(super) fn parse(&mut self, buffer: &[u8], within: Range<usize>) -> Result<bool> {
        let mut fields = [const { MaybeUninit::uninit() }; MAX_HEADERS];
        let mut parsed = httparse::Response::new(&mut []);
        let bytes = &buffer[within.clone()];
        let done = httparse::ParserConfig::default().parse_response_with_uninit_headers(
            &mut parsed,
            bytes,
            &mut fields,
        );
        let length = match done {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Ok(false),
            Err(error) => {
                let start = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
                // The bytes begin with a TLS record that contains an alert (RFC 8446 section 5.1).
                let hint = if bytes.starts_with(&[21, 3]) { "; is the address https:// ?" } else { "" };
                let detail = format!("the response is not HTTP/1.1 (it starts with {start:?}{hint})");
                return Err(Error::new(ErrorKind::BadResponse, detail).caused_by(error));
            }
        };
        let position = |part: &[u8]| {
            let start = part.as_ptr().addr() - buffer.as_ptr().addr();
            start..start + part.len()
        };
        self.headers.clear();
        self.headers.extend(parsed.headers.iter().map(|h| (position(h.name.as_bytes()), position(h.value))));
        (self.status, self.http_1_0) = (parsed.code.unwrap_or(0), parsed.version == Some(0));
        self.end = within.start + length;
        Ok(true)
    }

    /// Returns all headers that are UTF-8, borrowed from the buffer of `connection`.
    pub(super) fn headers<'c>(
        &'c self,
        connection: &'c BufferedConnection,
    ) -> impl Iterator<Item = (&'c str, &'c str)> {
        self.headers.iter().filter_map(move |(name, value)| {
            let text = |range: &Range<usize>| std::str::from_utf8(connection.text(range.clone())).ok();
            Some((text(name)?, text(value)?))
        })
    }

    /// Returns whether the server accepts another request on the connection after a body with this `framing`.
    pub fn may_keep_alive(&self, connection: &BufferedConnection, framing: &BodyFraming) -> bool {
        let said = |word: &str| {
            let mut stated =
                self.headers(connection).filter(|(name, _)| name.eq_ignore_ascii_case("connection"));
            stated.any(|(_, value)| value.split(',').any(|token| token.trim().eq_ignore_ascii_case(word)))
        };
        let by_default = !self.http_1_0 || said("keep-alive");
        by_default && !said("close") && *framing != BodyFraming::UntilClose
    }
}

/// A response whose head has been received. Dropping the response returns the connection to the pool if the body was
/// read to its end, and closes it otherwise.
pub struct HttpResponse {
    head: ResponseHead,
    framing: BodyFraming,
    keep_alive: bool,
    /// Present until the response is dropped.
    connection: Option<BufferedConnection>,
    origin: Origin,
    pool: Arc<ConnectionPool>,
}

impl HttpResponse {
    /// Takes over the connection on which `head` arrived. Errors: `BadResponse`.
    pub(super) fn new(
        head: ResponseHead,
        connection: BufferedConnection,
        method: &str,
        (origin, pool): (&Origin, &Arc<ConnectionPool>),
    ) -> Result<Self> {
        let (origin, pool) = (origin.clone(), pool.clone());
        let framing = BodyFraming::of(&head, &connection, method)?;
        let keep_alive = head.may_keep_alive(&connection, &framing);
        Ok(HttpResponse { head, framing, keep_alive, connection: Some(connection), origin, pool })
    }

    /// Marks this as the last response on its connection, because the request was not sent completely.
    pub(super) fn into_last(mut self) -> Self {
        self.keep_alive = false;
        self
    }

    /// Returns the status, 200 to 999.
    pub fn status(&self) -> u16 {
        self.head.status
    }

    /// Returns whether this is the first response on its connection.
    pub fn is_first(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| !connection.is_reused)
    }

    /// Returns the value of a header, if present and UTF-8.
    pub fn header(&self, name: &str) -> Option<&str> {
        let connection = self.connection.as_ref()?;
        let is_wanted =
            |found: &Range<usize>| connection.text(found.clone()).eq_ignore_ascii_case(name.as_bytes());
        let (_, value) = self.head.headers.iter().find(|(found, _)| is_wanted(found))?;
        std::str::from_utf8(connection.text(value.clone())).ok()
    }

    /// Returns all headers that are UTF-8.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.connection.iter().flat_map(|connection| self.head.headers(connection))
    }

    /// Returns the number of remaining bytes of the body, if the head specifies its length.
    pub fn body_bytes(&self) -> Option<u64> {
        self.framing.known_left()
    }

    /// Returns whether only the end of the connection marks the end of the body. A lost connection then looks like the
    /// end of the body.
    pub(super) fn ends_with_connection(&self) -> bool {
        self.framing == BodyFraming::UntilClose
    }

    /// Inspects the body without consuming it. Calls `look` with the bytes that have arrived, and again after more
    /// bytes have arrived, until `look` returns a result. Returns `None` if `look` has seen the whole body, or if the
    /// head specifies no length. Errors: as for [`HttpResponse::read_into`].
    pub(super) fn peek<T>(&mut self, mut look: impl FnMut(&[u8]) -> Option<T>) -> Result<Option<T>> {
        let Some(connection) = &mut self.connection else { return Ok(None) };
        let BodyFraming::Length(body_bytes) = self.framing else { return Ok(None) };
        loop {
            let waiting = connection.waiting();
            let body = &waiting[..waiting.len().min(usize::try_from(body_bytes).unwrap_or(usize::MAX))];
            if let Some(found) = look(body) {
                return Ok(Some(found));
            }
            // Once the whole body has arrived, do not wait for more bytes: on a connection that stays open, none would
            // arrive.
            if body.len() as u64 == body_bytes || connection.receive_more().map_err(body_error)? == 0 {
                return Ok(None);
            }
        }
    }

    /// Returns the connection, from which the response can be received again, including its head. Returns `None` if the
    /// connection also carries other responses (HTTP/2).
    pub(super) fn into_unread(mut self) -> Option<BufferedConnection> {
        let mut connection = self.connection.take()?;
        connection.unread().then_some(connection)
    }

    /// Reads exactly `target.len()` bytes of body, from the socket straight into `target`.
    /// Errors: `Unavailable`, `Timeout`, `BadResponse`, `Io`.
    pub fn read_into(&mut self, target: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < target.len() {
            let rest = &mut target[done..];
            let (missing, left) = (rest.len() as u64, self.framing.known_left());
            let got = match &mut self.connection {
                Some(connection) if left.is_some_and(|left| left >= missing) => {
                    let got = connection.read_all(rest).map_err(body_error)?;
                    self.framing.passed(got as u64);
                    got
                }
                _ => self.read(rest).map_err(body_error)?,
            };
            if got == 0 {
                return Err(short_body(missing));
            }
            done += got;
        }
        Ok(())
    }

    /// Checks that the body ends after the announced bytes, which have all been read. Errors: `BadResponse` if the body
    /// continues; otherwise as for [`HttpResponse::read_into`]. Cost: none if the head specifies the length.
    pub fn check_end(&mut self) -> Result<()> {
        match self.read(&mut [0]).map_err(body_error)? {
            0 => Ok(()),
            _ => {
                let detail = "the body continues after its stated end; do not trust this server";
                Err(Error::new(ErrorKind::BadResponse, detail))
            }
        }
    }

    /// Reads the whole body, regardless of its framing, up to 64 MiB. Errors: as for [`HttpResponse::read_into`],
    /// `EntityTooLarge`.
    pub fn read_document(&mut self) -> Result<Vec<u8>> {
        self.read_rest(MAX_DOCUMENT_BYTES)
    }

    /// Reads a whole body of at most `limit_bytes`. Errors: as for [`HttpResponse::read_into`], `EntityTooLarge`.
    pub fn read_rest(&mut self, limit_bytes: usize) -> Result<Vec<u8>> {
        let too_large = || {
            let detail = format!("the response has more than {limit_bytes} bytes");
            Error::new(ErrorKind::EntityTooLarge, detail)
        };
        if let Some(left) = self.framing.known_left() {
            let length = usize::try_from(left).ok().filter(|length| *length <= limit_bytes);
            let mut document = vec![0; length.ok_or_else(too_large)?];
            self.read_into(&mut document)?;
            return Ok(document);
        }
        let mut document = Vec::new();
        self.by_ref().take(limit_bytes as u64 + 1).read_to_end(&mut document).map_err(body_error)?;
        if document.len() > limit_bytes { Err(too_large()) } else { Ok(document) }
    }
}

impl Drop for HttpResponse {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take()
            && self.keep_alive
            && self.framing.has_ended()
            && connection.has_nothing_left()
        {
            self.pool.put(&self.origin, connection);
        }
    }
}

impl Read for HttpResponse {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        match &mut self.connection {
            Some(connection) if !target.is_empty() => self.framing.read(connection, self.head.end, target),
            _ => Ok(0),
        }
    }
}

pub(super) fn body_error(error: io::Error) -> Error {
    io_error(error, "receiving the body", "the body stopped arriving")
}

/// The maximum size of all trailers.
const MAX_TRAILER_BYTES: usize = 64 * 1024;
/// The maximum length of a line between two chunks, extensions and trailers included.
const MAX_LINE_BYTES: usize = 8 * 1024;

/// How a body ends, and how much of it remains.
#[derive(Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// There is no body, or it has ended.
    Empty,
    /// The body has a declared length; the value is the number of bytes left.
    Length(u64),
    /// The body consists of chunks (RFC 9112 section 7.1).
    Chunked(ChunkDecoderState),
    /// The body ends when the connection ends.
    UntilClose,
    /// The `END_STREAM` flag marks the end of the body (HTTP/2).
    UntilMark,
}

/// The position of the next byte in a chunked body.
#[derive(Debug, PartialEq, Eq)]
pub enum ChunkDecoderState {
    /// Before the line with a chunk's size.
    Size,
    /// Within a chunk; the value is the number of bytes left in it.
    Data(u64),
    /// Before the line break that ends a chunk.
    DataEnd,
    /// In the trailers; the value is the number of bytes of trailers so far.
    Trailer(usize),
}

impl BodyFraming {
    /// Returns the framing according to RFC 9112 section 6.3. Errors: `BadResponse` if the head contradicts itself.
    pub fn of(head: &ResponseHead, connection: &BufferedConnection, method: &str) -> Result<Self> {
        // A response to HEAD, or with status 204 or 304, has no body, regardless of the length in its head.
        if method == "HEAD" || matches!(head.status, 204 | 304) {
            return Ok(BodyFraming::Empty);
        }
        let named = |wanted: &'static str| {
            head.headers(connection).filter(move |(name, _)| name.eq_ignore_ascii_case(wanted))
        };
        // A transfer coding overrides a length. If this client and a proxy on the path disagreed about the end of a
        // body, a server could smuggle in a second response. Two different lengths are rejected below for this reason.
        if let Some((_, coding)) = named("transfer-encoding").next() {
            return match coding.trim().eq_ignore_ascii_case("chunked") {
                true => Ok(BodyFraming::Chunked(ChunkDecoderState::Size)),
                false => Err(bad(format!("the transfer encoding {coding:?} is unknown"))),
            };
        }
        let mut length = None;
        for (_, value) in named("content-length") {
            let stated = fordway_wire::range::digits(value.trim())
                .ok_or_else(|| bad(format!("the Content-Length {value:?} is not a number")))?;
            if length.is_some_and(|before| before != stated) {
                return Err(bad("the response states two lengths"));
            }
            length = Some(stated);
        }
        Ok(match length {
            Some(0) => BodyFraming::Empty,
            Some(length) => BodyFraming::Length(length),
            None if connection.is_http2() => BodyFraming::UntilMark,
            None => BodyFraming::UntilClose,
        })
    }

    /// Returns the number of remaining body bytes; `None` if the framing does not specify it.
    pub fn known_left(&self) -> Option<u64> {
        match self {
            BodyFraming::Empty => Some(0),
            BodyFraming::Length(left) => Some(*left),
            BodyFraming::Chunked(_) | BodyFraming::UntilClose | BodyFraming::UntilMark => None,
        }
    }

    /// Returns whether the whole body has been read.
    pub fn has_ended(&self) -> bool {
        *self == BodyFraming::Empty
    }

    /// Accounts for body bytes that were read without [`BodyFraming::read`]; `count` must not exceed the result of
    /// [`BodyFraming::run`].
    pub fn passed(&mut self, count: u64) {
        match self {
            BodyFraming::Length(left) => {
                *left -= count;
                if *left == 0 {
                    *self = BodyFraming::Empty;
                }
            }
            BodyFraming::Chunked(chunk) => chunk.passed(count),
            BodyFraming::Empty | BodyFraming::UntilClose | BodyFraming::UntilMark => {}
        }
    }

    /// Returns the number of contiguous body bytes that follow, or 0 at the end of the body. Receives only the bytes
    /// between chunks.
    pub(super) fn run(&mut self, connection: &mut BufferedConnection, keep_until: usize) -> io::Result<u64> {
        let run = match self {
            BodyFraming::Empty => 0,
            BodyFraming::Length(left) => *left,
            BodyFraming::UntilClose | BodyFraming::UntilMark => u64::MAX,
            BodyFraming::Chunked(chunk) => chunk.run(connection, keep_until)?,
        };
        if run == 0 {
            *self = BodyFraming::Empty;
        }
        Ok(run)
    }

    /// Reads part of the body; returns 0 at its end. If the connection ends early, the error wraps `Unavailable`.
    pub fn read(
        &mut self,
        connection: &mut BufferedConnection,
        keep_until: usize,
        target: &mut [u8],
    ) -> io::Result<usize> {
        match self {
            BodyFraming::Empty => Ok(0),
            BodyFraming::Length(left) => {
                let got = read_some(connection, *left, target)?;
                self.passed(got as u64);
                Ok(got)
            }
            BodyFraming::UntilClose | BodyFraming::UntilMark => {
                let got = connection.read(target)?;
                if got == 0 {
                    *self = BodyFraming::Empty;
                }
                Ok(got)
            }
            BodyFraming::Chunked(_) => {
                let run = self.run(connection, keep_until)?;
                if run == 0 {
                    return Ok(0);
                }
                let got = read_some(connection, run, target)?;
                self.passed(got as u64);
                Ok(got)
            }
        }
    }
}

impl ChunkDecoderState {
    fn passed(&mut self, count: u64) {
        if let ChunkDecoderState::Data(left) = self {
            *left -= count;
            if *left == 0 {
                *self = ChunkDecoderState::DataEnd;
            }
        }
    }

    /// Returns the number of remaining bytes in this chunk, or the size of the next chunk, or 0 at the end of the body.
    fn run(&mut self, connection: &mut BufferedConnection, keep_until: usize) -> io::Result<u64> {
        loop {
            match self {
                ChunkDecoderState::Data(left) => return Ok(*left),
                ChunkDecoderState::Size => {
                    let size = line(connection, keep_until, chunk_size)??;
                    *self =
                        if size == 0 { ChunkDecoderState::Trailer(0) } else { ChunkDecoderState::Data(size) };
                }
                ChunkDecoderState::DataEnd => {
                    if !line(connection, keep_until, <[u8]>::is_empty)? {
                        return Err(broken("a chunk is longer than its size"));
                    }
                    *self = ChunkDecoderState::Size;
                }
                ChunkDecoderState::Trailer(bytes) => {
                    let length = line(connection, keep_until, <[u8]>::len)?;
                    if length == 0 {
                        return Ok(0);
                    }
                    *bytes += length;
                    if *bytes > MAX_TRAILER_BYTES {
                        return Err(broken("the trailers of the body are too long"));
                    }
                }
            }
        }
    }
}

/// Reads up to `left` bytes; the end of the connection is an error.
fn read_some(connection: &mut BufferedConnection, left: u64, target: &mut [u8]) -> io::Result<usize> {
    let wanted = target.len().min(usize::try_from(left).unwrap_or(usize::MAX));
    match connection.read(&mut target[..wanted])? {
        0 => Err(io::Error::other(short_body(left))),
        got => Ok(got),
    }
}

/// Consumes the next line, and returns the result of `parse` for the line without its line break.
fn line<T>(
    connection: &mut BufferedConnection,
    keep_until: usize,
    parse: impl FnOnce(&[u8]) -> T,
) -> io::Result<T> {
    loop {
        let waiting = connection.waiting();
        if let Some(end) = waiting.iter().position(|b| *b == b'\n') {
            let text = &waiting[..end];
            let value = parse(text.strip_suffix(b"\r").unwrap_or(text));
            connection.consume(end + 1);
            return Ok(value);
        }
        if waiting.len() > MAX_LINE_BYTES {
            return Err(broken("a line between two chunks is too long"));
        }
        if connection.receive_behind(keep_until)? == 0 {
            return Err(io::Error::other(lost("the connection ended between two chunks")));
        }
    }
}

fn chunk_size(line: &[u8]) -> io::Result<u64> {
    let digits = line.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
    let text = std::str::from_utf8(digits).unwrap_or_default();
    let plain = (1..=15).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
    let size = plain.then(|| u64::from_str_radix(text, 16).ok()).flatten();
    size.ok_or_else(|| broken("a chunk's size is not a number"))
}

/// Returns the error for a body that ended `missing` bytes too early.
pub fn short_body(missing: u64) -> Error {
    let detail = format!("the connection ended with {missing} bytes of the body missing");
    lost(detail)
}

/// Returns the error for a response that was cut off. `IncompleteBody` would mean that the request was incomplete.
pub(super) fn lost(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unavailable, detail).at_lost_connection()
}

fn broken(detail: &str) -> io::Error {
    io::Error::other(bad(detail))
}

fn bad(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadResponse, detail)
}
