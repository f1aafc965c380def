//! Several ranges of one object in one response: `Range` with a list, and `multipart/byteranges` (RFC 9110 sections
//! 14.2 and 14.6), which S3 itself does not support. This module works on text, without sockets. Clients parse a
//! `multipart/byteranges` body with [`ByterangesParser`], which accepts pieces of any size as they arrive.

use std::fmt;
use std::ops::Range;

use fordway_store::ByteRange;

use crate::range::{parse_content_range, parse_range};

/// The maximum number of ranges in one request.
pub const RANGES_MAX: usize = 1024;

/// Parses a `Range` header with 1 to [`RANGES_MAX`] ranges. Returns `None` for anything else, such as a list in which a
/// range ends before it begins (RFC 9110 section 14.1.1).
pub fn parse_ranges(text: &str) -> Option<Vec<ByteRange>> {
    let list = text.strip_prefix("bytes=")?;
    let is_ordered = |range: &ByteRange| !matches!(range, ByteRange::Inclusive(first, last) if first > last);
    let ranges = list
        .split(',')
        .map(|range| parse_range(&format!("bytes={}", range.trim_matches([' ', '\t']))).filter(is_ordered));
    ranges.take(RANGES_MAX + 1).collect::<Option<Vec<_>>>().filter(|ranges| ranges.len() <= RANGES_MAX)
}

/// The text around the parts' content in a `multipart/byteranges` body.
pub struct ByterangesFraming<'a> {
    /// The boundary between the parts; must not occur in any part.
    pub boundary: &'a str,
    /// The content type of the whole object.
    pub content_type: &'a str,
    /// The size of the whole object in bytes.
    pub size: u64,
}

impl ByterangesFraming<'_> {
    /// Returns the `Content-Type` of the response.
    pub fn media_type(&self) -> String {
        format!("multipart/byteranges; boundary={}", self.boundary)
    }

    /// Returns the text before the bytes of `range`, which must not be empty.
    pub fn before(&self, range: &Range<u64>) -> String {
        let ByterangesFraming { boundary, content_type, size } = self;
        let (first, last) = (range.start, range.end - 1);
        format!(
            "\r\n--{boundary}\r\ncontent-type: {content_type}\r\ncontent-range: bytes {first}-{last}/{size}\r\n\r\n"
        )
    }

    /// Returns the text after the last part.
    pub fn end(&self) -> String {
        format!("\r\n--{}--\r\n", self.boundary)
    }
}

/// The maximum number of bytes that a reader accepts before a part's content: the part's head, and before the first
/// part also the preamble.
const BETWEEN_BYTES_MAX: usize = 8 * 1024;

/// Returns the boundary in a `Content-Type`, which is a token or a quoted string; `None` if the type is not
/// `multipart/byteranges`.
pub fn boundary_of(content_type: &str) -> Option<String> {
    let (media_type, mut rest) = content_type.split_once(';')?;
    if !media_type.trim().eq_ignore_ascii_case("multipart/byteranges") {
        return None;
    }
    loop {
        let (name, after) = rest.split_once('=')?;
        let (value, behind) = parameter_value(after.trim_start())?;
        if name.trim().eq_ignore_ascii_case("boundary") {
            return Some(value).filter(|boundary| (1..=70).contains(&boundary.len()));
        }
        (_, rest) = behind.split_once(';')?;
    }
}

/// Parses a token or a quoted string (RFC 9110 section 5.6.6); also returns the text after it.
fn parameter_value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(';').unwrap_or(text.len());
        return Some((text[..end].trim_end().to_owned(), &text[end..]));
    };
    let (mut value, mut letters) = (String::new(), quoted.char_indices());
    loop {
        match letters.next()? {
            (at, '"') => return Some((value, &quoted[at + 1..])),
            (_, '\\') => value.push(letters.next()?.1),
            (_, letter) => value.push(letter),
        }
    }
}

/// Parses a `multipart/byteranges` body. Lines may end with CR LF or with LF alone; a preamble and an epilogue are
/// skipped. Keeps at most one line of a part's head in memory.
#[derive(Debug)]
pub struct ByterangesParser {
    /// The boundary with its two hyphens.
    delimiter: Vec<u8>,
    state: ByterangesParserState,
    /// The beginning of an incomplete line.
    line: Vec<u8>,
    /// Whether the body is malformed, so that the parser has returned an error.
    is_malformed: bool,
    /// The number of bytes since the last content.
    between_bytes: usize,
    /// The number of bytes between the contents of the last two parts, without the digits of the range.
    form_bytes: Option<usize>,
    /// The line break that ended the last part's head, and that must also end the part's content.
    line_break: &'static [u8],
}

#[derive(Debug)]
enum ByterangesParserState {
    /// Before the first delimiter of the body.
    Preamble,
    /// In a part's head, with the value of its `Content-Range`.
    Head(Option<(Range<u64>, Option<u64>)>),
    /// In a part's content; the value is the number of bytes that have not arrived yet.
    Data(u64),
    /// After the content of a part: the delimiter's line break comes next.
    AfterData,
    /// After the line break that precedes a delimiter: the delimiter itself comes next.
    Delimiter,
    Done,
}

/// The element at the beginning of the input.
#[derive(Debug, PartialEq, Eq)]
pub enum ByterangesParserStep {
    /// Bytes that the caller must skip.
    Skip(usize),
    /// The end of a part's head, which the caller must skip. The other values are the range of the part's content
    /// within the object, and the object's size, if the header contains it.
    Part(usize, Range<u64>, Option<u64>),
    /// Bytes of the part.
    Data(usize),
    /// The delimiter after the last part, or bytes after this delimiter, which the caller must skip.
    End(usize),
}

impl ByterangesParserStep {
    /// Returns the length of the step in bytes.
    pub fn len(&self) -> usize {
        match self {
            ByterangesParserStep::Skip(count)
            | ByterangesParserStep::Part(count, ..)
            | ByterangesParserStep::Data(count)
            | ByterangesParserStep::End(count) => *count,
        }
    }

    /// Returns whether the step is empty, which happens only if the parser received no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The reason why a body is not valid `multipart/byteranges`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedByteranges(&'static str);

impl fmt::Display for MalformedByteranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for MalformedByteranges {}

impl ByterangesParser {
    /// Creates a parser for a body with this boundary; see [`boundary_of`].
    pub fn new(boundary: &str) -> Self {
        let delimiter = [b"--", boundary.as_bytes()].concat();
        let (state, line) = (ByterangesParserState::Preamble, Vec::new());
        let is_malformed = false;
        ByterangesParser {
            delimiter,
            state,
            line,
            is_malformed,
            between_bytes: 0,
            form_bytes: None,
            line_break: b"\r\n",
        }
    }

    /// Returns the number of content bytes that follow without interruption.
    pub fn data_left(&self) -> u64 {
        if let ByterangesParserState::Data(left) = self.state { left } else { 0 }
    }

    /// Returns whether the last part has ended. If the body ends earlier, it is truncated.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, ByterangesParserState::Done)
    }

    /// Returns whether a part's content was received, but the delimiter after the content was not. If the body is
    /// malformed at this point, the length in the part's head is wrong, and the content of the part cannot be used.
    pub fn is_content_unconfirmed(&self) -> bool {
        matches!(self.state, ByterangesParserState::AfterData | ByterangesParserState::Delimiter)
    }

    /// Returns a check for the current part's content, for a body that ends before the delimiter after this content.
    /// Returns `None` before a part's content, and after the last delimiter.
    pub fn content_check(&self) -> Option<PartContentCheck> {
        let behind = match self.state {
            ByterangesParserState::Data(_) => Vec::new(),
            ByterangesParserState::AfterData => self.line.clone(),
            ByterangesParserState::Delimiter => [self.line_break, &self.line].concat(),
            _ => return None,
        };
        let delimiter = [self.line_break, &self.delimiter].concat();
        let is_refuted = self.is_malformed;
        Some(PartContentCheck { delimiter, behind, is_refuted, tail: Vec::new(), passed: 0, found: None })
    }

    /// Returns the expected number of bytes between the current content and the content of `next`, which must not be
    /// empty. The number is correct if the server writes all heads in the same form. Returns `None` before the first
    /// part.
    pub fn bytes_before(&self, next: &Range<u64>) -> Option<usize> {
        self.form_bytes.map(|form| form + digits_of(next))
    }

    /// Counts bytes of content that the caller consumed itself, up to [`ByterangesParser::data_left`].
    pub fn passed(&mut self, count: u64) {
        if let ByterangesParserState::Data(left) = self.state {
            self.state = if count >= left {
                ByterangesParserState::AfterData
            } else {
                ByterangesParserState::Data(left - count)
            };
        }
    }

    /// Parses the beginning of `bytes`; the caller must drop the step's bytes before it passes the next bytes. A step
    /// has at least one byte if `bytes` has any. Errors: a malformed body.
    pub fn step(&mut self, bytes: &[u8]) -> Result<ByterangesParserStep, MalformedByteranges> {
        match self.state {
            ByterangesParserState::Done => Ok(ByterangesParserStep::End(bytes.len())),
            ByterangesParserState::Data(left) => {
                let count = left.min(bytes.len() as u64);
                self.passed(count);
                Ok(ByterangesParserStep::Data(count as usize))
            }
            _ => self.between(bytes),
        }
    }

    /// Consumes one line, or the beginning of a line.
    fn between(&mut self, bytes: &[u8]) -> Result<ByterangesParserStep, MalformedByteranges> {
        self.line(bytes).inspect_err(|_| self.is_malformed = true)
    }

    fn line(&mut self, bytes: &[u8]) -> Result<ByterangesParserStep, MalformedByteranges> {
        let end = memchr::memchr(b'\n', bytes).map(|at| at + 1);
        let taken = &bytes[..end.unwrap_or(bytes.len())];
        self.between_bytes += taken.len();
        if self.between_bytes > BETWEEN_BYTES_MAX {
            return Err(MalformedByteranges("8 KiB without a part's content"));
        }
        if self.line.is_empty() && end.is_some() {
            return self.line_ended(taken, taken.len());
        }
        self.line.extend_from_slice(taken);
        // A body may end right after its last delimiter, without a line break.
        if end.is_none() && !self.is_last_delimiter(&self.line) {
            return Ok(ByterangesParserStep::Skip(taken.len()));
        }
        let mut line = std::mem::take(&mut self.line);
        let step = self.line_ended(&line, taken.len());
        line.clear();
        self.line = line;
        step
    }

    /// Returns whether `line` closes the body; always false within a part's head.
    fn is_last_delimiter(&self, line: &[u8]) -> bool {
        let rest = line.strip_prefix(&self.delimiter[..]);
        let may_end =
            matches!(self.state, ByterangesParserState::Preamble | ByterangesParserState::Delimiter);
        may_end && rest.is_some_and(|rest| rest.starts_with(b"--"))
    }

    fn line_ended(&mut self, line: &[u8], taken: usize) -> Result<ByterangesParserStep, MalformedByteranges> {
        let text = line.trim_ascii_end();
        if let ByterangesParserState::Head(found) = &mut self.state {
            if text.is_empty() {
                let (range, size) =
                    found.take().ok_or(MalformedByteranges("a part without a Content-Range"))?;
                self.state = ByterangesParserState::Data(range.end - range.start);
                self.form_bytes = self.between_bytes.checked_sub(digits_of(&range));
                self.between_bytes = 0;
                self.line_break = if line.ends_with(b"\r\n") { b"\r\n" } else { b"\n" };
                return Ok(ByterangesParserStep::Part(taken, range, size));
            }
            if let Some(value) = content_range(text) {
                *found = Some(
                    parse_content_range(value).ok_or(MalformedByteranges("an unreadable Content-Range"))?,
                );
            }
            return Ok(ByterangesParserStep::Skip(taken));
        }
        if matches!(self.state, ByterangesParserState::AfterData) {
            return self.content_ended(line, taken);
        }
        if self.is_last_delimiter(line) {
            self.state = ByterangesParserState::Done;
            return Ok(ByterangesParserStep::End(taken));
        }
        if text == self.delimiter {
            if matches!(self.state, ByterangesParserState::Preamble) && self.between_bytes == taken {
                // A body may begin with the delimiter; a line break precedes all other delimiters.
                self.between_bytes += line.len() - text.len();
            }
            self.state = ByterangesParserState::Head(None);
        } else if matches!(self.state, ByterangesParserState::Delimiter) {
            return Err(MalformedByteranges("a part that is longer than its Content-Range"));
        }
        Ok(ByterangesParserStep::Skip(taken))
    }

    /// Checks that a part's content ends where its delimiter's line break begins (RFC 2046 section 5.1.1). If the
    /// content is shorter than its `Content-Range` specifies, the parser has already counted part of that line break as
    /// content.
    fn content_ended(
        &mut self,
        line: &[u8],
        taken: usize,
    ) -> Result<ByterangesParserStep, MalformedByteranges> {
        if line != self.line_break {
            return Err(MalformedByteranges("a part that is not as long as its Content-Range"));
        }
        self.state = ByterangesParserState::Delimiter;
        Ok(ByterangesParserStep::Skip(taken))
    }
}

/// Checks the content of a part whose delimiter has not arrived completely. If the part is shorter than its head
/// specifies, the bytes that were counted as content may contain the delimiter, or may end with the beginning of the
/// delimiter.
#[derive(Debug)]
pub struct PartContentCheck {
    /// The delimiter with the line break before it.
    delimiter: Vec<u8>,
    /// The bytes that arrived after the content.
    behind: Vec<u8>,
    /// Whether the bytes after the content are known to be no delimiter.
    is_refuted: bool,
    /// The last bytes of the content, which are fewer than the bytes of the delimiter.
    tail: Vec<u8>,
    /// The number of content bytes that were checked.
    passed: u64,
    /// The offset in the content at which the delimiter begins, if the content contains the delimiter.
    found: Option<u64>,
}

impl PartContentCheck {
    /// Checks the next bytes of the content.
    pub fn content(&mut self, bytes: &[u8]) {
        let kept = self.delimiter.len() - 1;
        let before = self.passed - self.tail.len() as u64;
        self.tail.extend_from_slice(&bytes[..bytes.len().min(kept)]);
        let in_tail = memchr::memmem::find(&self.tail, &self.delimiter).map(|at| before + at as u64);
        let in_bytes = || memchr::memmem::find(bytes, &self.delimiter).map(|at| self.passed + at as u64);
        self.found = self.found.or(in_tail).or_else(in_bytes);
        if bytes.len() >= kept {
            self.tail.clear();
            self.tail.extend_from_slice(&bytes[bytes.len() - kept..]);
        } else {
            self.tail.drain(..self.tail.len().saturating_sub(kept));
        }
        self.passed += bytes.len() as u64;
    }

    /// Returns the number of usable bytes at the beginning of the content: the bytes before the delimiter, of which
    /// only the beginning may have arrived. Returns 0 if no delimiter can begin within the content or directly after
    /// it.
    pub fn usable_bytes(mut self) -> u64 {
        if self.is_refuted {
            return 0;
        }
        let (content, before) = (self.tail.len(), self.passed - self.tail.len() as u64);
        self.tail.append(&mut self.behind);
        let begins = |at: &usize| self.may_be_delimiter(&self.tail[*at..]);
        let in_tail = (0..=content).find(begins).map(|at| before + at as u64);
        self.found.or(in_tail).unwrap_or(0)
    }

    /// Returns the number of usable bytes at the beginning of the content, if more content follows that cannot be
    /// checked. A delimiter may begin in the content and end in the unknown bytes.
    pub fn usable_bytes_before_unknown(self) -> u64 {
        if self.is_refuted { 0 } else { self.found.unwrap_or(self.passed - self.tail.len() as u64) }
    }

    fn may_be_delimiter(&self, bytes: &[u8]) -> bool {
        self.delimiter.starts_with(bytes) || bytes.starts_with(&self.delimiter)
    }
}

/// Returns the number of decimal digits in the string `first-last` of a range.
fn digits_of(range: &Range<u64>) -> usize {
    let digits = |number: u64| number.checked_ilog10().unwrap_or(0) as usize + 1;
    digits(range.start) + digits(range.end - 1)
}

/// Returns the value of `Content-Range`, if the line is that header.
fn content_range(line: &[u8]) -> Option<&str> {
    let at = memchr::memchr(b':', line)?;
    let is_it = line[..at].eq_ignore_ascii_case(b"content-range");
    std::str::from_utf8(&line[at + 1..]).ok().filter(|_| is_it)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{ByterangesFraming, *};

    #[test]
    fn lists_of_ranges() {
        assert_eq!(
            parse_ranges("bytes=0-1, 5-,\t-3"),
            Some(vec![ByteRange::Inclusive(0, 1), ByteRange::From(5), ByteRange::Last(3)])
        );
        assert_eq!(parse_ranges("bytes=7-9"), Some(vec![ByteRange::Inclusive(7, 9)]));
        for bad in [
            "",
            "bytes=",
            "bytes=0-1,",
            "bytes=,0-1",
            "bytes=0-1;2-3",
            "bytes=0-1,x",
            "0-1,2-3",
            "bytes=1-0,0-0",
        ] {
            assert_eq!(parse_ranges(bad), None, "{bad}");
        }
        assert!(parse_ranges(&format!("bytes={}", ["0-0"; RANGES_MAX].join(","))).is_some());
        assert!(parse_ranges(&format!("bytes={}", ["0-0"; RANGES_MAX + 1].join(","))).is_none());
    }

    type Found = Vec<(Range<u64>, Vec<u8>)>;

    /// Returns the ranges and contents in a body that arrives in these pieces.
    fn read<'a>(boundary: &str, pieces: impl IntoIterator<Item = &'a [u8]>) -> Option<Found> {
        let (mut parts, mut found) = (ByterangesParser::new(boundary), Found::new());
        for mut piece in pieces {
            while !piece.is_empty() {
                let step = parts.step(piece).ok()?;
                assert!(!step.is_empty());
                match &step {
                    ByterangesParserStep::Part(_, range, _) => found.push((range.clone(), Vec::new())),
                    ByterangesParserStep::Data(count) => {
                        found.last_mut()?.1.extend_from_slice(&piece[..*count])
                    }
                    ByterangesParserStep::Skip(_) | ByterangesParserStep::End(_) => {}
                }
                piece = &piece[step.len()..];
            }
        }
        parts.has_ended().then_some(found)
    }

    fn contents() -> Found {
        vec![(0..3, b"abc".to_vec()), (50..58, b"\r\n--b0un".to_vec()), (9..10, vec![0xff])]
    }

    fn body_of(contents: &Found) -> Vec<u8> {
        let frame = ByterangesFraming { boundary: "b0undary", content_type: "text/plain", size: 100 };
        assert_eq!(boundary_of(&frame.media_type()).as_deref(), Some("b0undary"));
        let mut body = Vec::new();
        for (range, content) in contents {
            body.extend_from_slice(frame.before(range).as_bytes());
            body.extend_from_slice(content);
        }
        body.extend_from_slice(frame.end().as_bytes());
        body
    }

    #[test]
    fn what_is_written_is_read_however_it_arrives() {
        let (contents, body) = (contents(), body_of(&contents()));
        for piece in 1..=body.len() {
            assert_eq!(read("b0undary", body.chunks(piece)).unwrap(), contents, "{piece}");
            assert_eq!(read("b0undary", body[2..].chunks(piece)).unwrap(), contents, "{piece}");
        }
        assert_eq!(read("b0undary", body[..body.len() - 5].chunks(7)), None);
        assert_eq!(read("other", body.chunks(7)), None);
    }

    #[test]
    fn heads_that_are_written_alike_are_foreseen() {
        let frame = ByterangesFraming { boundary: "b", content_type: "text/plain", size: 2000 };
        let ranges = [7..8, 0..1, 9..10, 9..11, 10..100, 999..1001, 1000..1999];
        // A body may begin with or without a line break.
        for skipped in [0, 2] {
            let mut parts = ByterangesParser::new("b");
            assert_eq!(parts.bytes_before(&ranges[0]), None);
            for (before, range) in ranges.iter().enumerate() {
                let head = frame.before(range);
                assert!(before == 0 || parts.bytes_before(range) == Some(head.len()), "{range:?}");
                let mut left = &head.as_bytes()[if before == 0 { skipped } else { 0 }..];
                while !left.is_empty() {
                    left = &left[parts.step(left).unwrap().len()..];
                }
                parts.passed(range.end - range.start);
            }
        }
    }

    #[test]
    fn forms_that_servers_have() {
        let found = Some(vec![(1..3, b"bc".to_vec()), (7..8, b"h".to_vec())]);
        for body in [
            // This body has one-byte line breaks, and no line break at the end.
            "--b\ncontent-range: bytes 1-2/9\n\nbc\n--b\nContent-Range:bytes 7-7/*\n\nh\n--b--",
            // This body has a preamble, white space after a boundary, other headers, and an epilogue.
            "a word before\r\n--bc\r\n\r\n--b \t\r\nContent-Type: x/y\r\nCONTENT-RANGE: bytes 1-2/9\r\n\r\nbc\r\n\
             --b\r\ncontent-range: bytes 7-7/9\r\ncontent-type: x/y\r\n\r\nh\r\n--b--\r\nand one after",
        ] {
            for piece in 1..=body.len() {
                assert_eq!(read("b", body.as_bytes().chunks(piece)), found, "{piece} {body:?}");
            }
        }
        let nothing = read("b", ["\r\n--b--\r\n".as_bytes()]);
        assert_eq!(nothing, Some(Vec::new()));
    }

    #[test]
    fn what_is_wrong_is_refused() {
        let long = "x: y\r\n".repeat(2000);
        for body in [
            "--b\r\ncontent-type: x/y\r\n\r\nabc\r\n--b--\r\n",
            "--b\r\ncontent-range: bytes 2-1/9\r\n\r\nabc\r\n--b--\r\n",
            "--b\r\ncontent-range: bytes 0-1/9\r\n\r\nabc\r\n--b--\r\n",
            "--b\r\ncontent-range: bytes 0-2/9\r\n\r\nabc\r\n",
            "--b\r\ncontent-range: bytes 0-2/9\r\n\r\nab",
            // The content is one or two bytes shorter than declared, and the line break before the delimiter must not
            // count as content.
            "--b\r\ncontent-range: bytes 0-2/9\r\n\r\nab\r\n--b--\r\n",
            "--b\r\ncontent-range: bytes 0-2/9\r\n\r\na\r\n--b--\r\n",
            "--b\ncontent-range: bytes 0-2/9\n\nab\n--b--\n",
            "--b\r\ncontent-range: bytes 0-2/9\r\n\r\nab\r\n--b\r\ncontent-range: bytes 4-4/9\r\n\r\ne\r\n--b--\r\n",
            // The content is followed by two line breaks instead of one.
            "--b\r\ncontent-range: bytes 0-2/9\r\n\r\nabc\r\n\r\n--b--\r\n",
            &format!("--b\r\n{long}content-range: bytes 0-2/9\r\n\r\nabc\r\n--b--\r\n"),
            &"no boundary\r\n".repeat(2000),
            "",
        ] {
            assert_eq!(read("b", [body.as_bytes()]), None, "{body:?}");
        }
    }

    /// Returns the number of usable bytes of a part's content if only the first `end` bytes of `body` arrive.
    fn usable(body: &[u8], end: usize, piece: usize) -> Option<u64> {
        let (mut parts, mut content, mut left) = (ByterangesParser::new("b"), Vec::new(), &body[..end]);
        while !left.is_empty() {
            let step = parts.step(left).unwrap();
            if let ByterangesParserStep::Data(count) = step {
                content.extend_from_slice(&left[..count]);
            }
            left = &left[step.len()..];
        }
        let mut check = parts.content_check()?;
        content.chunks(piece).for_each(|bytes| check.content(bytes));
        Some(check.usable_bytes())
    }

    #[test]
    fn the_content_of_a_part_that_is_cut_off_is_used_up_to_its_delimiter() {
        let head = "--b\r\ncontent-range: bytes 0-9/90\r\n\r\n";
        // If the last bytes that arrived look like the beginning of a delimiter, they are not usable, even if they are
        // content.
        for (content, alike) in
            [("0123456789", 0..0), ("0123\r\n--a9", 5..9), ("01234567", 0..0), ("0", 0..0)]
        {
            let body = format!("{head}{content}\r\n--b\r\ncontent-range: ");
            for (received, piece) in (0..15).flat_map(|received| (1..12).map(move |piece| (received, piece)))
            {
                let found = usable(body.as_bytes(), head.len() + received, piece);
                let expected = if alike.contains(&received) { 4 } else { received.min(content.len()) };
                assert_eq!(found, Some(expected as u64), "{content:?} {received} {piece}");
            }
        }
        // The delimiter is complete, so the content needs no check.
        let body = format!("{head}0123456789\r\n--b\r\n");
        assert_eq!(usable(body.as_bytes(), body.len(), 1), None);
        // The part is longer than its head specifies, so none of its content is usable.
        let body = format!("{head}0123456789a\r\n");
        assert_eq!(usable(body.as_bytes(), body.len() - 2, 1), Some(0));
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same(cuts in prop::collection::vec(0_usize..400, 0..12), damage in prop::option::of((0_usize..300, any::<u8>()))) {
            let mut body = body_of(&contents());
            if let Some((at, byte)) = damage {
                let at = at % body.len();
                body[at] = byte;
            }
            let whole = read("b0undary", [&body[..]]);
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(body.len())).collect();
            cuts.extend([0, body.len()]);
            cuts.sort_unstable();
            let pieces = cuts.windows(2).map(|pair| &body[pair[0]..pair[1]]);
            prop_assert_eq!(&read("b0undary", pieces), &whole);
            let is_sound = |(range, bytes): &(Range<u64>, Vec<u8>)| range.end - range.start == bytes.len() as u64;
            prop_assert!(whole.is_none_or(|parts| parts.iter().all(is_sound)));
        }

        #[test]
        fn noise_never_panics(noise in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = read("b", noise.chunks(11));
        }
    }

    #[test]
    fn boundaries_are_found() {
        for (content_type, boundary) in [
            ("multipart/byteranges; boundary=\"x y\"", "x y"),
            ("Multipart/ByteRanges;BOUNDARY=00000000000000000001", "00000000000000000001"),
            ("multipart/byteranges; charset=\"a;boundary=no\"; boundary=yes", "yes"),
            ("multipart/byteranges; boundary=\"a\\\"b;c\" ; x=y", "a\"b;c"),
        ] {
            assert_eq!(boundary_of(content_type).as_deref(), Some(boundary), "{content_type}");
        }
        for other in [
            "text/plain",
            "multipart/mixed; boundary=x",
            "multipart/byteranges",
            "multipart/byteranges; boundary=",
            "multipart/byteranges; boundary=\"open",
            "multipart/byteranges; x=boundary",
        ] {
            assert_eq!(boundary_of(other), None, "{other}");
        }
    }
}
