//! Several ranges of one object in one answer: `Range` with a list, and `multipart/byteranges`
//! (RFC 9110 sections 14.2 and 14.6), which S3 itself does not have. No sockets: texts in, texts out.

use std::ops::Range;

use fordway_store::ByteRange;

use crate::range::{parse_content_range, parse_range};

/// The most ranges that one request may ask for.
pub const RANGES_MAX: usize = 1024;
/// The most bytes of a part's head that a reader accepts.
const PART_HEAD_BYTES_MAX: usize = 8 * 1024;

/// Reads a `Range` that asks for 1 to [`RANGES_MAX`] ranges. `None` for what is not one.
pub fn parse_ranges(text: &str) -> Option<Vec<ByteRange>> {
    let list = text.strip_prefix("bytes=")?;
    let ranges =
        list.split(',').map(|range| parse_range(&format!("bytes={}", range.trim_matches([' ', '\t']))));
    ranges.take(RANGES_MAX + 1).collect::<Option<Vec<_>>>().filter(|ranges| ranges.len() <= RANGES_MAX)
}

/// What lies between the contents of a `multipart/byteranges` body.
pub struct Frame<'a> {
    /// What separates the parts; must not occur in them.
    pub boundary: &'a str,
    /// The type of the whole object.
    pub content_type: &'a str,
    /// The bytes of the whole object.
    pub size: u64,
}

impl Frame<'_> {
    /// The value of `Content-Type` of the answer.
    pub fn media_type(&self) -> String {
        format!("multipart/byteranges; boundary={}", self.boundary)
    }

    /// What stands before the bytes of `range`, which must not be empty.
    pub fn before(&self, range: &Range<u64>) -> String {
        let Frame { boundary, content_type, size } = self;
        let (first, last) = (range.start, range.end - 1);
        format!(
            "\r\n--{boundary}\r\ncontent-type: {content_type}\r\ncontent-range: bytes {first}-{last}/{size}\r\n\r\n"
        )
    }

    /// What stands behind the last part.
    pub fn end(&self) -> String {
        format!("\r\n--{}--\r\n", self.boundary)
    }
}

/// The boundary that a `Content-Type` names; `None` if it is not `multipart/byteranges`.
pub fn boundary_of(content_type: &str) -> Option<&str> {
    let mut fields = content_type.split(';').map(str::trim);
    let is_ours = fields.next()?.eq_ignore_ascii_case("multipart/byteranges");
    let boundary = fields.find_map(|field| {
        let (name, value) = field.split_once('=')?;
        name.eq_ignore_ascii_case("boundary").then(|| value.trim_matches('"'))
    });
    boundary.filter(|boundary| is_ours && (1..=70).contains(&boundary.len()))
}

/// Takes a `multipart/byteranges` body apart as it arrives.
pub struct Parts<'a> {
    boundary: &'a str,
    state: State,
}

enum State {
    Between,
    Data(u64),
    Done,
}

/// What the bytes at hand begin with.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// The head of a part, to be skipped; the bytes of the object that follow, and its size.
    Part(usize, Range<u64>, Option<u64>),
    /// Bytes of the part.
    Data(usize),
    /// The end of the body, to be skipped.
    End(usize),
    /// More bytes are needed to tell.
    More,
}

impl<'a> Parts<'a> {
    /// For a body with this boundary; see [`boundary_of`].
    pub fn new(boundary: &'a str) -> Self {
        Parts { boundary, state: State::Between }
    }

    /// Says what `bytes` begin with; the caller takes that many off before it asks again.
    /// `None` for what is no such body.
    pub fn step(&mut self, bytes: &[u8]) -> Option<Step> {
        match self.state {
            State::Done => Some(Step::End(0)),
            State::Between => self.between(bytes),
            State::Data(left) => {
                let count = left.min(bytes.len() as u64);
                self.state = if count == left { State::Between } else { State::Data(left - count) };
                Some(if count == 0 { Step::More } else { Step::Data(count as usize) })
            }
        }
    }

    fn between(&mut self, bytes: &[u8]) -> Option<Step> {
        let seen = &bytes[..bytes.len().min(PART_HEAD_BYTES_MAX)];
        let text = match std::str::from_utf8(seen) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&seen[..error.valid_up_to()]).ok()?,
        };
        let is_cut = seen.len() < PART_HEAD_BYTES_MAX;
        let delimiter = format!("--{}", self.boundary);
        // The first delimiter has no line before it to end.
        let start = if text.starts_with("\r\n") { 2 } else { 0 };
        let Some(rest) = text[start..].strip_prefix(&delimiter) else {
            return (is_cut && delimiter.starts_with(&text[start..]) || text == "\r").then_some(Step::More);
        };
        if rest.starts_with("--") {
            self.state = State::Done;
            return Some(Step::End(start + delimiter.len() + 2));
        }
        let Some(length) = rest.find("\r\n\r\n") else { return is_cut.then_some(Step::More) };
        let value = rest[..length].split("\r\n").find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-range").then_some(value)
        });
        let (range, size) = parse_content_range(value?)?;
        self.state = State::Data(range.end - range.start);
        Some(Step::Part(start + delimiter.len() + length + 4, range, size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_ranges() {
        assert_eq!(
            parse_ranges("bytes=0-1, 5-,\t-3"),
            Some(vec![ByteRange::Inclusive(0, 1), ByteRange::From(5), ByteRange::Last(3)])
        );
        assert_eq!(parse_ranges("bytes=7-9"), Some(vec![ByteRange::Inclusive(7, 9)]));
        for bad in ["", "bytes=", "bytes=0-1,", "bytes=,0-1", "bytes=0-1;2-3", "bytes=0-1,x", "0-1,2-3"] {
            assert_eq!(parse_ranges(bad), None, "{bad}");
        }
        assert!(parse_ranges(&format!("bytes={}", ["0-0"; RANGES_MAX].join(","))).is_some());
        assert!(parse_ranges(&format!("bytes={}", ["0-0"; RANGES_MAX + 1].join(","))).is_none());
    }

    /// The ranges and contents in a body that arrives in pieces of `piece` bytes.
    fn read(boundary: &str, body: &[u8], piece: usize) -> Option<Vec<(Range<u64>, Vec<u8>)>> {
        let (mut parts, mut at_hand, mut pieces) = (Parts::new(boundary), Vec::new(), body.chunks(piece));
        let mut found: Vec<(Range<u64>, Vec<u8>)> = Vec::new();
        loop {
            match parts.step(&at_hand)? {
                Step::Part(count, range, _) => {
                    at_hand.drain(..count);
                    found.push((range, Vec::new()));
                }
                Step::Data(count) => found.last_mut()?.1.extend(at_hand.drain(..count)),
                Step::End(_) => return Some(found),
                Step::More => at_hand.extend_from_slice(pieces.next()?),
            }
        }
    }

    #[test]
    fn what_is_written_is_read_however_it_arrives() {
        let frame = Frame { boundary: "b0undary", content_type: "text/plain", size: 100 };
        assert_eq!(boundary_of(&frame.media_type()), Some("b0undary"));
        let contents = [(0..3, b"abc".to_vec()), (50..58, b"\r\n--b0un".to_vec()), (9..10, vec![0xff])];
        let mut body = Vec::new();
        for (range, content) in &contents {
            body.extend_from_slice(frame.before(range).as_bytes());
            body.extend_from_slice(content);
        }
        body.extend_from_slice(frame.end().as_bytes());
        for piece in 1..=body.len() {
            assert_eq!(read("b0undary", &body, piece).unwrap(), contents, "{piece}");
            assert_eq!(read("b0undary", &body[2..], piece).unwrap(), contents, "{piece}");
        }
        assert_eq!(read("b0undary", &body[..body.len() - 5], 7), None);
        assert_eq!(read("other", &body, 7), None);
        assert!(matches!(Parts::new("b0undary").step(&body), Some(Step::Part(_, _, Some(100)))));
    }

    #[test]
    fn damage_is_noticed_or_harmless() {
        let frame = Frame { boundary: "b", content_type: "x/y", size: 100 };
        let body = format!("{}abc{}", frame.before(&(0..3)), frame.end()).into_bytes();
        for at in 0..body.len() {
            for byte in [b'\r', b'-', b'0', b' ', 0xff] {
                let mut damaged = body.clone();
                damaged[at] = byte;
                if let Some(parts) = read("b", &damaged, 5) {
                    assert!(parts.iter().all(|(range, bytes)| range.end - range.start == bytes.len() as u64));
                }
            }
        }
    }

    #[test]
    fn other_types_have_no_boundary() {
        assert_eq!(boundary_of("multipart/byteranges; boundary=\"x y\""), Some("x y"));
        for other in [
            "text/plain",
            "multipart/mixed; boundary=x",
            "multipart/byteranges",
            "multipart/byteranges; boundary=",
        ] {
            assert_eq!(boundary_of(other), None, "{other}");
        }
    }
}
