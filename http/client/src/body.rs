//! Where a body ends: by length, by chunks, or with the connection.

use std::io;

use fordway_store::{Error, ErrorKind, Result};

use super::connection::Connection;
use super::response::Head;

/// The longest line between two chunks, extensions and trailers included.
const MAX_LINE_BYTES: usize = 8 * 1024;

/// How the end of a body is known, and how far off it is.
#[derive(Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is none, or it has ended.
    Empty,
    /// This many bytes are left.
    Length(u64),
    /// In chunks (RFC 9112 section 7.1).
    Chunked(Chunk),
    /// It ends when the connection does.
    UntilClose,
}

/// Where in a chunked body the next byte lies.
#[derive(Debug, PartialEq, Eq)]
pub enum Chunk {
    /// Before the line with a chunk's size.
    Size,
    /// Within a chunk that has this many bytes left.
    Data(u64),
    /// Before the line break that ends a chunk.
    DataEnd,
    /// Among the trailers.
    Trailer,
}

impl Framing {
    /// What the head says (RFC 9112 section 6.3). Errors: `BadResponse` where it contradicts itself.
    pub fn of(head: &Head, connection: &Connection, method: &str) -> Result<Self> {
        if method == "HEAD" || matches!(head.status, 204 | 304) {
            return Ok(Framing::Empty);
        }
        let named = |wanted: &'static str| {
            head.headers(connection).filter(move |(name, _)| name.eq_ignore_ascii_case(wanted))
        };
        if let Some((_, coding)) = named("transfer-encoding").next() {
            return match coding.trim().eq_ignore_ascii_case("chunked") {
                true => Ok(Framing::Chunked(Chunk::Size)),
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
            Some(0) => Framing::Empty,
            Some(length) => Framing::Length(length),
            None => Framing::UntilClose,
        })
    }

    /// Bytes to come, where that is known.
    pub fn known_left(&self) -> Option<u64> {
        match self {
            Framing::Empty => Some(0),
            Framing::Length(left) => Some(*left),
            Framing::Chunked(_) | Framing::UntilClose => None,
        }
    }

    /// Whether all of the body has passed.
    pub fn has_ended(&self) -> bool {
        *self == Framing::Empty
    }

    /// Counts bytes of body that were read without [`Framing::read`]: at most as many as
    /// [`Framing::run`] said.
    pub fn passed(&mut self, count: u64) {
        match self {
            Framing::Length(left) => {
                *left -= count;
                if *left == 0 {
                    *self = Framing::Empty;
                }
            }
            Framing::Chunked(chunk) => chunk.passed(count),
            Framing::Empty | Framing::UntilClose => {}
        }
    }

    /// The bytes of body that are next, with nothing between them: 0 is the end of the body. Receives
    /// only what lies between chunks.
    pub(super) fn run(&mut self, connection: &mut Connection, keep_until: usize) -> io::Result<u64> {
        let run = match self {
            Framing::Empty => 0,
            Framing::Length(left) => *left,
            Framing::UntilClose => u64::MAX,
            Framing::Chunked(chunk) => chunk.run(connection, keep_until)?,
        };
        if run == 0 {
            *self = Framing::Empty;
        }
        Ok(run)
    }

    /// Reads some of the body; 0 is its end. An early end of the connection is an error that holds
    /// `IncompleteBody`.
    pub fn read(
        &mut self,
        connection: &mut Connection,
        keep_until: usize,
        target: &mut [u8],
    ) -> io::Result<usize> {
        match self {
            Framing::Empty => Ok(0),
            Framing::Length(left) => {
                let got = read_some(connection, *left, target)?;
                self.passed(got as u64);
                Ok(got)
            }
            Framing::UntilClose => {
                let got = connection.read(target)?;
                if got == 0 {
                    *self = Framing::Empty;
                }
                Ok(got)
            }
            Framing::Chunked(_) => {
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

impl Chunk {
    fn passed(&mut self, count: u64) {
        if let Chunk::Data(left) = self {
            *left -= count;
            if *left == 0 {
                *self = Chunk::DataEnd;
            }
        }
    }

    /// The bytes left of the chunk, or of the next one. 0 is the end of the body.
    fn run(&mut self, connection: &mut Connection, keep_until: usize) -> io::Result<u64> {
        loop {
            match self {
                Chunk::Data(left) => return Ok(*left),
                Chunk::Size => {
                    let size = line(connection, keep_until, chunk_size)??;
                    *self = if size == 0 { Chunk::Trailer } else { Chunk::Data(size) };
                }
                Chunk::DataEnd => {
                    if !line(connection, keep_until, <[u8]>::is_empty)? {
                        return Err(broken("a chunk is longer than its size"));
                    }
                    *self = Chunk::Size;
                }
                Chunk::Trailer => {
                    if line(connection, keep_until, <[u8]>::is_empty)? {
                        return Ok(0);
                    }
                }
            }
        }
    }
}

/// Reads up to `left` bytes; the end of the connection is an error here.
fn read_some(connection: &mut Connection, left: u64, target: &mut [u8]) -> io::Result<usize> {
    let wanted = target.len().min(usize::try_from(left).unwrap_or(usize::MAX));
    match connection.read(&mut target[..wanted])? {
        0 => Err(io::Error::other(short_body(left))),
        got => Ok(got),
    }
}

/// Takes the next line, without its break, as `parse` reads it.
fn line<T>(connection: &mut Connection, keep_until: usize, parse: impl FnOnce(&[u8]) -> T) -> io::Result<T> {
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
