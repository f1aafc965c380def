//! An answer: its head, read where it was received, and its body, read from the connection. A body ends by length, by chunks,
//! or with the connection.

use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;

use fordway_store::{Error, ErrorKind, Result};

use super::Origin;
use super::client::ConnectionPool;
use super::connection::{BufferedConnection, io_error};

/// The most bytes a head may have.
pub(super) const MAX_HEAD_BYTES: usize = 128 * 1024;
/// The most headers an answer may have.
const MAX_HEADERS: usize = 128;
/// The most bytes of a document that is read whole (a full page of a listing has about 1 MiB).
const MAX_DOCUMENT_BYTES: usize = 64 * 1024 * 1024;

/// A parsed head: positions in the connection's buffer, so that no header is copied.
#[derive(Default)]
pub struct ResponseHead {
    /// As the server wrote it.
    pub status: u16,
    /// Where the body starts in the buffer.
    pub end: usize,
    http_1_0: bool,
    headers: Vec<(Range<usize>, Range<usize>)>,
}

impl ResponseHead {
    /// Parses a head that starts at `within.start`; what was parsed before is forgotten, its memory
    /// is used again. `false` if the head is not all there yet. Errors: `BadResponse`.
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
                // A record of TLS that holds an alert (RFC 8446 section 5.1).
                let hint = if bytes.starts_with(&[21, 3]) { "; is the address https:// ?" } else { "" };
                let detail = format!("the answer is not HTTP/1.1 (it starts with {start:?}{hint})");
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

    /// All headers that are UTF-8, as they lie in the buffer of `connection`.
    pub(super) fn headers<'c>(
        &'c self,
        connection: &'c BufferedConnection,
    ) -> impl Iterator<Item = (&'c str, &'c str)> {
        self.headers.iter().filter_map(move |(name, value)| {
            let text = |range: &Range<usize>| std::str::from_utf8(connection.text(range.clone())).ok();
            Some((text(name)?, text(value)?))
        })
    }

    /// Whether the other side will take another request after a body that ends by `framing`.
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

/// An answer whose head was received. When it is dropped, the connection goes back to the pool if
/// the body was read to its end, and is closed if not.
pub struct HttpResponse {
    head: ResponseHead,
    framing: BodyFraming,
    keep_alive: bool,
    /// There until the answer is dropped.
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

    /// The same, as the last one on its connection: the request was not all sent.
    pub(super) fn into_last(mut self) -> Self {
        self.keep_alive = false;
        self
    }

    /// The status, 200 to 999.
    pub fn status(&self) -> u16 {
        self.head.status
    }

    /// Whether it is the first on its connection.
    pub fn is_first(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| !connection.is_reused)
    }

    /// A header's value, if it is there and is UTF-8.
    pub fn header(&self, name: &str) -> Option<&str> {
        let connection = self.connection.as_ref()?;
        let is_wanted =
            |found: &Range<usize>| connection.text(found.clone()).eq_ignore_ascii_case(name.as_bytes());
        let (_, value) = self.head.headers.iter().find(|(found, _)| is_wanted(found))?;
        std::str::from_utf8(connection.text(value.clone())).ok()
    }

    /// All headers that are UTF-8.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.connection.iter().flat_map(|connection| self.head.headers(connection))
    }

    /// The bytes of body still to come, where the head says so.
    pub fn body_bytes(&self) -> Option<u64> {
        self.framing.known_left()
    }

    /// Looks at the body, of which nothing is used up by that: `look` is shown what has arrived, and again when it
    /// finds nothing and more has. `None` at the end, or where the body is not sent as it is.
    /// Errors: as [`HttpResponse::read_into`].
    pub(super) fn peek<T>(&mut self, mut look: impl FnMut(&[u8]) -> Option<T>) -> Result<Option<T>> {
        let Some(connection) = &mut self.connection else { return Ok(None) };
        if !matches!(self.framing, BodyFraming::Length(_)) {
            return Ok(None);
        }
        loop {
            if let Some(found) = look(connection.waiting()) {
                return Ok(Some(found));
            }
            if connection.receive_more().map_err(body_error)? == 0 {
                return Ok(None);
            }
        }
    }

    /// The connection, with the answer to be received once more, from its head on. `None` where it carries other
    /// answers too (HTTP/2).
    pub(super) fn into_unread(mut self) -> Option<BufferedConnection> {
        let mut connection = self.connection.take()?;
        connection.unread().then_some(connection)
    }

    /// Reads exactly `target.len()` bytes of body, from the socket straight into `target`.
    /// Errors: `IncompleteBody`, `Timeout`, `BadResponse`, `Io`.
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

    /// Holds the end of the body against what was read of it, which is all that was announced.
    /// Errors: `BadResponse` where it goes on; as [`HttpResponse::read_into`].
    /// Cost: none where the head states the length.
    pub fn check_end(&mut self) -> Result<()> {
        match self.read(&mut [0]).map_err(body_error)? {
            0 => Ok(()),
            _ => {
                let detail =
                    "the body goes on behind the bytes that it was to have; do not trust this server";
                Err(Error::new(ErrorKind::BadResponse, detail))
            }
        }
    }

    /// Reads the whole body, whatever its framing, up to 64 MiB.
    /// Errors: as [`HttpResponse::read_into`], `EntityTooLarge`.
    pub fn read_document(&mut self) -> Result<Vec<u8>> {
        self.read_rest(MAX_DOCUMENT_BYTES)
    }

    /// Reads the whole body of at most `limit_bytes`. Errors: as [`HttpResponse::read_into`],
    /// `EntityTooLarge`.
    pub fn read_rest(&mut self, limit_bytes: usize) -> Result<Vec<u8>> {
        let too_large = || {
            let detail = format!("the answer has more than {limit_bytes} bytes");
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

/// The longest line between two chunks, extensions and trailers included.
const MAX_LINE_BYTES: usize = 8 * 1024;

/// How the end of a body is known, and how far off it is.
#[derive(Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// There is none, or it has ended.
    Empty,
    /// This many bytes are left.
    Length(u64),
    /// In chunks (RFC 9112 section 7.1).
    Chunked(ChunkPosition),
    /// It ends when the connection does.
    UntilClose,
}

/// Where in a chunked body the next byte lies.
#[derive(Debug, PartialEq, Eq)]
pub enum ChunkPosition {
    /// Before the line with a chunk's size.
    Size,
    /// Within a chunk that has this many bytes left.
    Data(u64),
    /// Before the line break that ends a chunk.
    DataEnd,
    /// Among the trailers.
    Trailer,
}

impl BodyFraming {
    /// What the head says (RFC 9112 section 6.3). Errors: `BadResponse` where it contradicts itself.
    pub fn of(head: &ResponseHead, connection: &BufferedConnection, method: &str) -> Result<Self> {
        // These have no body, whatever length they state.
        if method == "HEAD" || matches!(head.status, 204 | 304) {
            return Ok(BodyFraming::Empty);
        }
        let named = |wanted: &'static str| {
            head.headers(connection).filter(move |(name, _)| name.eq_ignore_ascii_case(wanted))
        };
        // A transfer coding overrides a length. Reading it the other way round than a proxy on the way would let a
        // server slip in a second answer; two lengths that differ are refused below for the same reason.
        if let Some((_, coding)) = named("transfer-encoding").next() {
            return match coding.trim().eq_ignore_ascii_case("chunked") {
                true => Ok(BodyFraming::Chunked(ChunkPosition::Size)),
                false => Err(bad(format!("the transfer encoding {coding:?} is not known"))),
            };
        }
        let mut length = None;
        for (_, value) in named("content-length") {
            let stated = fordway_wire::range::digits(value.trim())
                .ok_or_else(|| bad(format!("the Content-Length {value:?} is not a number")))?;
            if length.is_some_and(|before| before != stated) {
                return Err(bad("the answer states two lengths"));
            }
            length = Some(stated);
        }
        Ok(match length {
            Some(0) => BodyFraming::Empty,
            Some(length) => BodyFraming::Length(length),
            None => BodyFraming::UntilClose,
        })
    }

    /// Bytes to come, where that is known.
    pub fn known_left(&self) -> Option<u64> {
        match self {
            BodyFraming::Empty => Some(0),
            BodyFraming::Length(left) => Some(*left),
            BodyFraming::Chunked(_) | BodyFraming::UntilClose => None,
        }
    }

    /// Whether all of the body has passed.
    pub fn has_ended(&self) -> bool {
        *self == BodyFraming::Empty
    }

    /// Counts bytes of body that were read without [`BodyFraming::read`]: at most as many as
    /// [`BodyFraming::run`] said.
    pub fn passed(&mut self, count: u64) {
        match self {
            BodyFraming::Length(left) => {
                *left -= count;
                if *left == 0 {
                    *self = BodyFraming::Empty;
                }
            }
            BodyFraming::Chunked(chunk) => chunk.passed(count),
            BodyFraming::Empty | BodyFraming::UntilClose => {}
        }
    }

    /// The bytes of body that are next, with nothing between them: 0 is the end of the body. Receives
    /// only what lies between chunks.
    pub(super) fn run(&mut self, connection: &mut BufferedConnection, keep_until: usize) -> io::Result<u64> {
        let run = match self {
            BodyFraming::Empty => 0,
            BodyFraming::Length(left) => *left,
            BodyFraming::UntilClose => u64::MAX,
            BodyFraming::Chunked(chunk) => chunk.run(connection, keep_until)?,
        };
        if run == 0 {
            *self = BodyFraming::Empty;
        }
        Ok(run)
    }

    /// Reads some of the body; 0 is its end. An early end of the connection is an error that holds
    /// `IncompleteBody`.
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
            BodyFraming::UntilClose => {
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

impl ChunkPosition {
    fn passed(&mut self, count: u64) {
        if let ChunkPosition::Data(left) = self {
            *left -= count;
            if *left == 0 {
                *self = ChunkPosition::DataEnd;
            }
        }
    }

    /// The bytes left of the chunk, or of the next one. 0 is the end of the body.
    fn run(&mut self, connection: &mut BufferedConnection, keep_until: usize) -> io::Result<u64> {
        loop {
            match self {
                ChunkPosition::Data(left) => return Ok(*left),
                ChunkPosition::Size => {
                    let size = line(connection, keep_until, chunk_size)??;
                    *self = if size == 0 { ChunkPosition::Trailer } else { ChunkPosition::Data(size) };
                }
                ChunkPosition::DataEnd => {
                    if !line(connection, keep_until, <[u8]>::is_empty)? {
                        return Err(broken("a chunk is longer than its size"));
                    }
                    *self = ChunkPosition::Size;
                }
                ChunkPosition::Trailer => {
                    if line(connection, keep_until, <[u8]>::is_empty)? {
                        return Ok(0);
                    }
                }
            }
        }
    }
}

/// Reads up to `left` bytes; the end of the connection is an error here.
fn read_some(connection: &mut BufferedConnection, left: u64, target: &mut [u8]) -> io::Result<usize> {
    let wanted = target.len().min(usize::try_from(left).unwrap_or(usize::MAX));
    match connection.read(&mut target[..wanted])? {
        0 => Err(io::Error::other(short_body(left))),
        got => Ok(got),
    }
}

/// Takes the next line, without its break, as `parse` reads it.
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
            let detail = "the connection ended between two chunks";
            return Err(io::Error::other(Error::new(ErrorKind::IncompleteBody, detail)));
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

/// The body ended `missing` bytes before its end.
pub fn short_body(missing: u64) -> Error {
    let detail = format!("the connection ended with {missing} bytes of the body to come");
    Error::new(ErrorKind::IncompleteBody, detail)
}

fn broken(detail: &str) -> io::Error {
    io::Error::other(bad(detail))
}

fn bad(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadResponse, detail)
}
