//! Byte ranges as callers ask for them (RFC 9110 section 14).

use std::fmt;
use std::ops::Range;

use crate::{Error, ErrorKind, Result};

/// One range of an object, not yet checked against its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteRange {
    /// From this byte to the end.
    From(u64),
    /// First and last byte, both included.
    Inclusive(u64, u64),
    /// The last bytes, this many of them.
    Last(u64),
}

impl ByteRange {
    /// The bytes meant in an object of `size` bytes; an end past the object is cut.
    /// Errors: `InvalidRange` when no byte of the object is in the range.
    pub fn resolve(self, size: u64) -> Result<Range<u64>> {
        let range = match self {
            ByteRange::From(first) => first..size,
            ByteRange::Inclusive(first, last) => first..size.min(last.saturating_add(1)),
            ByteRange::Last(count) => size.saturating_sub(count)..size,
        };
        if range.start < range.end {
            return Ok(range);
        }
        Err(Error::new(ErrorKind::InvalidRange, format!("bytes {self} of an object of {size} bytes")))
    }
}

/// As after `bytes=` in a request: `5-10`, `5-`, `-10`.
impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ByteRange::From(first) => write!(f, "{first}-"),
            ByteRange::Inclusive(first, last) => write!(f, "{first}-{last}"),
            ByteRange::Last(count) => write!(f, "-{count}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolves_against_the_size() {
        assert_eq!(ByteRange::From(3).resolve(10).unwrap(), 3..10);
        assert_eq!(ByteRange::Inclusive(0, 0).resolve(10).unwrap(), 0..1);
        assert_eq!(ByteRange::Inclusive(5, u64::MAX).resolve(10).unwrap(), 5..10);
        assert_eq!(ByteRange::Last(20).resolve(10).unwrap(), 0..10);
        for (range, size) in [
            (ByteRange::From(10), 10),
            (ByteRange::Inclusive(4, 3), 10),
            (ByteRange::Last(0), 10),
            (ByteRange::Last(5), 0),
        ] {
            assert_eq!(range.resolve(size).unwrap_err().kind(), ErrorKind::InvalidRange, "{range:?}");
        }
        for (range, shown) in
            [(ByteRange::From(10), "10-"), (ByteRange::Inclusive(4, 3), "4-3"), (ByteRange::Last(0), "-0")]
        {
            let error = range.resolve(10).expect_err("it is empty");
            assert_eq!(error.detail(), format!("bytes {shown} of an object of 10 bytes"));
        }
    }
}
