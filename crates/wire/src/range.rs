//! `Range` and `Content-Range` headers (RFC 9110 section 14).

use std::ops::Range;

use fordway_store::ByteRange;

/// The value of `Range` that asks for `range`.
pub fn format_range(range: ByteRange) -> String {
    match range {
        ByteRange::From(first) => format!("bytes={first}-"),
        ByteRange::Inclusive(first, last) => format!("bytes={first}-{last}"),
        ByteRange::Last(count) => format!("bytes=-{count}"),
    }
}

/// Reads a `Range` that asks for one range. `None` for what is not one.
pub fn parse_range(text: &str) -> Option<ByteRange> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    match (first, last) {
        ("", count) => Some(ByteRange::Last(digits(count)?)),
        (first, "") => Some(ByteRange::From(digits(first)?)),
        (first, last) => Some(ByteRange::Inclusive(digits(first)?, digits(last)?)),
    }
}

/// Reads a `Content-Range`: the bytes that follow and the size of the whole, where it is stated.
/// `None` for what is not one.
pub fn parse_content_range(text: &str) -> Option<(Range<u64>, Option<u64>)> {
    let (range, size) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last) = (digits(first)?, digits(last)?);
    let size = if size == "*" { None } else { Some(digits(size)?) };
    let is_within = first <= last && size.is_none_or(|size| last < size);
    is_within.then(|| (first..last.saturating_add(1), size))
}

/// A number as HTTP writes it: decimal digits and nothing else.
pub fn digits(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways() {
        assert_eq!(format_range(ByteRange::From(5)), "bytes=5-");
        assert_eq!(format_range(ByteRange::Inclusive(5, 9)), "bytes=5-9");
        assert_eq!(format_range(ByteRange::Last(3)), "bytes=-3");
        for range in [ByteRange::From(5), ByteRange::Inclusive(5, 9), ByteRange::Last(3)] {
            assert_eq!(parse_range(&format_range(range)), Some(range));
        }
        for bad in
            ["", "bytes=", "bytes=-", "bytes=1", "bytes=1-2,3-4", "bytes=+1-2", "bytes= 1-2", "lines=1-2"]
        {
            assert_eq!(parse_range(bad), None, "{bad}");
        }
        assert_eq!(parse_content_range("bytes 5-9/20"), Some((5..10, Some(20))));
        assert_eq!(parse_content_range("bytes 5-9/*"), Some((5..10, None)));
        for bad in ["", "bytes 9-5/20", "bytes 5-20/20", "bytes +5-9/20", "bytes */20", "5-9/20"] {
            assert_eq!(parse_content_range(bad), None, "{bad}");
        }
    }
}
