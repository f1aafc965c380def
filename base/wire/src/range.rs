//! `Range` and `Content-Range` headers (RFC 9110 section 14).

use std::ops::Range;

use fordway_store::ByteRange;

/// Returns the value of a `Range` header that requests `range`.
pub fn format_range(range: ByteRange) -> String {
    format!("bytes={range}")
}

/// Appends `range`, which must not be empty, to a list of ranges, in the form `first-last`. Ranges are separated by a
/// comma without a space, because some servers treat a space as the end of the list.
pub fn push_range(list: &mut Vec<u8>, range: &Range<u64>) {
    if list.last().is_some_and(u8::is_ascii_digit) {
        list.push(b',');
    }
    push_number(list, range.start);
    list.push(b'-');
    push_number(list, range.end - 1);
}

fn push_number(text: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return text.extend_from_slice(&digits[first..]);
        }
    }
}

/// Reads the `Content-Range` of a 416 response (range not satisfiable); returns the size of the whole object.
pub fn parse_unsatisfied_range(text: &str) -> Option<u64> {
    digits(text.trim().strip_prefix("bytes")?.trim_start().strip_prefix("*/")?)
}

/// Reads a `Range` header that requests a single range. Returns `None` for anything else. A position that does not fit
/// into 64 bits becomes `u64::MAX`, because any position beyond the end of an object means the object's end (RFC 9110
/// section 14.1.2).
pub fn parse_range(text: &str) -> Option<ByteRange> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    match (first, last) {
        ("", count) => Some(ByteRange::Last(clamped(count)?)),
        (first, "") => Some(ByteRange::From(clamped(first)?)),
        (first, last) => Some(ByteRange::Inclusive(clamped(first)?, clamped(last)?)),
    }
}

/// Reads a number. A number that does not fit into 64 bits becomes `u64::MAX`.
fn clamped(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Reads a `Content-Range`; returns the range, and the size of the whole object if the header contains it. Returns
/// `None` for anything else.
pub fn parse_content_range(text: &str) -> Option<(Range<u64>, Option<u64>)> {
    let (range, size) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last) = (digits(first)?, digits(last)?);
    let size = if size == "*" { None } else { Some(digits(size)?) };
    let end = last.checked_add(1)?;
    let is_within = first < end && size.is_none_or(|size| end <= size);
    is_within.then_some((first..end, size))
}

/// Reads a number as HTTP defines it: decimal digits and nothing else.
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
        let beyond = "99999999999999999999";
        assert_eq!(parse_range(&format!("bytes=5-{beyond}")), Some(ByteRange::Inclusive(5, u64::MAX)));
        assert_eq!(parse_range(&format!("bytes=-{beyond}")), Some(ByteRange::Last(u64::MAX)));
        assert_eq!(parse_content_range("bytes 5-9/20"), Some((5..10, Some(20))));
        assert_eq!(parse_content_range("bytes 5-9/*"), Some((5..10, None)));
        assert_eq!(parse_content_range("bytes 0-18446744073709551615/*"), None, "no size has room for it");
        assert_eq!(parse_unsatisfied_range("bytes */20"), Some(20));
        assert_eq!(parse_unsatisfied_range("bytes 5-9/20"), None);
        for bad in ["", "bytes 9-5/20", "bytes 5-20/20", "bytes +5-9/20", "bytes */20", "5-9/20"] {
            assert_eq!(parse_content_range(bad), None, "{bad}");
        }
    }
    #[test]
    fn lists_have_no_spaces() {
        let mut list = b"bytes=".to_vec();
        for range in [0..1, 5..10, u64::MAX - 1..u64::MAX] {
            push_range(&mut list, &range);
        }
        assert_eq!(list, b"bytes=0-0,5-9,18446744073709551614-18446744073709551614");
    }
}
