//! `multipart/byteranges`: the body, and the boundary in its content type.

use std::ops::Range;

use fordway_wire::byteranges::{
    ByterangesFraming, ByterangesParser, ByterangesParserStep, boundary_of, parse_ranges,
};

/// The boundary that the corpus uses.
const BOUNDARY: &str = "b";
/// The maximum length of a range that is written back, in bytes.
const CONTENT_BYTES_MAX: u64 = 1 << 16;

/// A part: its range, and the position of its content in the body.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ParsedByterangesPart {
    range: Range<u64>,
    place: Range<usize>,
}

/// Parses a body in pieces of several sizes, and writes the parts back. All sizes must yield the same parts.
pub(super) fn body(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _boundary = boundary_of(text);
        let _ranges = parse_ranges(text);
    }
    let parts = read(bytes, bytes.len().max(1));
    for piece in [1, 7, 512] {
        assert_eq!(read(bytes, piece), parts, "in pieces of {piece} bytes");
    }
    let Some(parts) = parts else { return };
    for part in &parts {
        check_end(bytes, part);
    }
    write_again(&parts);
}

/// Returns the parts; `None` if the body is malformed or has no final delimiter.
fn read(bytes: &[u8], piece: usize) -> Option<Vec<ParsedByterangesPart>> {
    let (mut parser, mut parts, mut used) =
        (ByterangesParser::new(BOUNDARY), Vec::<ParsedByterangesPart>::new(), 0);
    for mut piece in bytes.chunks(piece) {
        while !piece.is_empty() {
            let step = parser.step(piece).ok()?;
            assert!(!step.is_empty(), "a step without bytes");
            used += step.len();
            match &step {
                ByterangesParserStep::Part(_, range, size) => {
                    assert!(range.start < range.end && size.is_none_or(|size| range.end <= size));
                    assert_eq!(parser.data_left(), range.end - range.start);
                    parts.push(ParsedByterangesPart { range: range.clone(), place: used..used });
                }
                ByterangesParserStep::Data(_) => parts.last_mut()?.place.end = used,
                ByterangesParserStep::Skip(_) | ByterangesParserStep::End(_) => {}
            }
            piece = &piece[step.len()..];
        }
    }
    parser.has_ended().then_some(parts)
}

/// Checks that the content is as long as its range, and that a line break and the delimiter follow (RFC 2046 section
/// 5.1.1). This line break must have the same form as the line break at the end of the part's head.
fn check_end(bytes: &[u8], part: &ParsedByterangesPart) {
    let ParsedByterangesPart { range, place } = part;
    assert_eq!(place.len() as u64, range.end - range.start, "{range:?}");
    let line_break: &[u8] = if bytes[..place.start].ends_with(b"\r\n") { b"\r\n" } else { b"\n" };
    let behind = bytes[place.end..].strip_prefix(line_break);
    let is_delimited = behind.is_some_and(|rest| rest.starts_with(format!("--{BOUNDARY}").as_bytes()));
    assert!(is_delimited, "no delimiter after the content of {range:?}");
}

/// Writes a body with these ranges, as the gateway does, with and without a line break before the first delimiter. The
/// parser must predict the lengths of all heads except the first.
fn write_again(parts: &[ParsedByterangesPart]) {
    let ranges = parts.iter().map(|part| &part.range);
    let ranges: Vec<_> = ranges.filter(|range| range.end - range.start <= CONTENT_BYTES_MAX).collect();
    let frame = ByterangesFraming { boundary: BOUNDARY, content_type: "text/plain", size: u64::MAX };
    for skipped in [0, 2] {
        let mut parser = ByterangesParser::new(BOUNDARY);
        for (before, range) in ranges.iter().enumerate() {
            let head = frame.before(range);
            let foreseen = parser.bytes_before(range);
            assert!(before == 0 || foreseen == Some(head.len()), "{foreseen:?} bytes before {range:?}");
            let mut left = &head.as_bytes()[if before == 0 { skipped } else { 0 }..];
            while !left.is_empty() {
                let step = parser.step(left).expect("a head written by this target");
                left = &left[step.len()..];
            }
            parser.passed(range.end - range.start);
        }
        let mut end = frame.end().into_bytes();
        while !end.is_empty() && !ranges.is_empty() {
            let step = parser.step(&end).expect("an end written by this target");
            end.drain(..step.len());
        }
        assert!(ranges.is_empty() || parser.has_ended());
    }
    assert_eq!(boundary_of(&frame.media_type()).as_deref(), Some(BOUNDARY));
}
