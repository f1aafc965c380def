//! Several ranges of one object in one answer: `Range` with a list, and `multipart/byteranges`
//! (RFC 9110 sections 14.2 and 14.6), which S3 itself does not have. No sockets: texts in, texts out.

use std::ops::Range;

use fordway_store::ByteRange;

use crate::range::parse_range;

mod parts;

pub use parts::{Malformed, Parts, Step, boundary_of};

/// The most ranges that one request may ask for.
pub const RANGES_MAX: usize = 1024;

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
}
