//! The frames of an HTTP/3 stream (RFC 9114 section 7), as they are passed to h3.
//!
//! h3 collects every frame except DATA as a whole, regardless of its length, and cannot distinguish an empty DATA frame
//! from the end of a body. If a body consists of many DATA frames, h3 receives content before its caller requests it.
//! [`FrameFilter`] therefore passes the heads of messages frame by frame, each limited in length, and each body as a
//! single DATA frame without an end.

use std::fmt::{self, Display, Formatter};

use bytes::{Buf as _, Bytes, BytesMut};

const DATA: u64 = 0x00;
const HEADERS: u64 = 0x01;
/// A frame of WebTransport, which has no length.
const WEBTRANSPORT: u64 = 0x41;
/// The stream type of a control stream.
const CONTROL: u64 = 0x00;

/// The head of a DATA frame with the greatest possible length.
const BODY_HEAD: [u8; 9] = [DATA as u8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
/// The maximum length of two variable-length integers, in bytes.
const HEAD_BYTES_MAX: usize = 16;

/// A violation of the protocol that ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameViolation {
    /// A frame of this type and length, in bytes, is longer than the recipient accepts.
    TooLong { kind: u64, length: u64 },
    /// A frame of this type must not occur at this point.
    Unexpected { kind: u64 },
    /// The stream ended within a frame.
    Incomplete,
}

impl FrameViolation {
    /// Returns the error code of the connection (RFC 9114 section 8.1).
    pub(crate) fn code(self) -> u32 {
        match self {
            FrameViolation::TooLong { .. } => 0x107,
            FrameViolation::Unexpected { .. } => 0x105,
            FrameViolation::Incomplete => 0x106,
        }
    }
}

impl Display for FrameViolation {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            FrameViolation::TooLong { kind, length } => {
                write!(out, "a frame of type {kind:#x} has {length} bytes, which is too long")
            }
            FrameViolation::Unexpected { kind } => {
                write!(out, "a frame of type {kind:#x} is not allowed here")
            }
            FrameViolation::Incomplete => write!(out, "a stream ended within a frame"),
        }
    }
}

impl std::error::Error for FrameViolation {}

/// Type and length of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FrameHead {
    kind: u64,
    length: u64,
}

impl FrameHead {
    /// Parses a head; `None` if `bytes` is only the beginning of a head.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = integer(bytes)?;
        // A frame of WebTransport has no length, so bytes that follow the type must not be parsed.
        let length = if kind == WEBTRANSPORT { 0 } else { integer(rest)?.0 };
        Some(FrameHead { kind, length })
    }
}

/// Parses a variable-length integer (RFC 9000 section 16). Returns the integer and the bytes after it; `None` if
/// `bytes` is only the beginning of an integer.
fn integer(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let first = *bytes.first()?;
    let (integer, rest) = bytes.split_at_checked(1 << (first >> 6))?;
    let value =
        integer[1..].iter().fold(u64::from(first & 0x3f), |value, byte| value << 8 | u64::from(*byte));
    Some((value, rest))
}

/// The kind of the bytes that follow on a stream.
enum Following {
    /// The type of a unidirectional stream.
    StreamType,
    FrameHead,
    /// The given number of bytes of a frame that is passed on as a whole.
    WholeFrame(u64),
    /// The given number of bytes of content.
    Content(u64),
    /// The given number of bytes of a frame that is not passed on.
    Ignored(u64),
    /// Bytes of a stream that does not consist of frames.
    Opaque,
}

/// The part of a stream to which the next frames belong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StreamPart {
    Control,
    /// The heads of a message.
    Heads,
    Body,
    Trailers,
}

/// Divides the bytes of one received stream into pieces for h3. Holds at most one frame, never longer than the limit.
pub(crate) struct FrameFilter {
    following: Following,
    part: StreamPart,
    /// The received bytes of an incomplete integer, head or frame.
    held: BytesMut,
    /// The maximum length of a frame that is not DATA, in bytes.
    frame_bytes_max: u64,
}

impl FrameFilter {
    /// Returns the filter of a stream that carries a request or a response.
    pub(crate) fn of_message(frame_bytes_max: u64) -> Self {
        let (following, held) = (Following::FrameHead, BytesMut::new());
        FrameFilter { following, part: StreamPart::Heads, held, frame_bytes_max }
    }

    /// Returns the filter of a unidirectional stream.
    pub(crate) fn of_unidirectional(frame_bytes_max: u64) -> Self {
        let (following, held) = (Following::StreamType, BytesMut::new());
        FrameFilter { following, part: StreamPart::Control, held, frame_bytes_max }
    }

    /// Removes bytes from the front of `received`, and returns the next piece for h3; `None` if more bytes must be
    /// received first. Errors: a violation of the protocol.
    pub(crate) fn next(&mut self, received: &mut Bytes) -> Result<Option<Bytes>, FrameViolation> {
        while !received.is_empty() {
            let piece = match self.following {
                Following::StreamType => self.stream_type(received),
                Following::FrameHead => self.frame_head(received)?,
                Following::WholeFrame(left) => self.whole_frame(left, received),
                Following::Content(0) | Following::Ignored(0) => self.begin(Following::FrameHead),
                Following::Content(left) => {
                    let piece = taken(received, left);
                    self.following = Following::Content(left - piece.len() as u64);
                    Some(piece)
                }
                Following::Ignored(left) => {
                    self.following = Following::Ignored(left - taken(received, left).len() as u64);
                    None
                }
                Following::Opaque => Some(received.split_off(0)),
            };
            if piece.is_some() {
                return Ok(piece);
            }
        }
        Ok(None)
    }

    /// Checks that the stream may end here. Errors: `Incomplete`.
    pub(crate) fn end(&self) -> Result<(), FrameViolation> {
        match self.following {
            // The recipient must tolerate a stream that ends before its type (RFC 9114 section 6.2).
            Following::StreamType | Following::Opaque | Following::Content(0) | Following::Ignored(0) => {
                Ok(())
            }
            Following::FrameHead if self.held.is_empty() => Ok(()),
            _ => Err(FrameViolation::Incomplete),
        }
    }

    fn begin(&mut self, following: Following) -> Option<Bytes> {
        self.following = following;
        None
    }

    fn stream_type(&mut self, received: &mut Bytes) -> Option<Bytes> {
        let (kind, _) = self.parsed(received, integer_alone)?;
        self.following = if kind == CONTROL { Following::FrameHead } else { Following::Opaque };
        Some(self.held.split().freeze())
    }

    /// Receives the head of a frame, and decides how the frame is processed. Returns a piece if one is complete.
    fn frame_head(&mut self, received: &mut Bytes) -> Result<Option<Bytes>, FrameViolation> {
        let Some(FrameHead { kind, length }) = self.parsed(received, FrameHead::parse) else {
            return Ok(None);
        };
        let is_data = kind == DATA;
        if kind == WEBTRANSPORT || is_data && [StreamPart::Control, StreamPart::Trailers].contains(&self.part)
        {
            return Err(FrameViolation::Unexpected { kind });
        }
        if !is_data && length > self.frame_bytes_max {
            return Err(FrameViolation::TooLong { kind, length });
        }
        match self.part {
            StreamPart::Heads if is_data => {
                self.part = StreamPart::Body;
                self.held.clear();
                self.following = Following::Content(length);
                return Ok(Some(Bytes::from_static(&BODY_HEAD)));
            }
            StreamPart::Heads | StreamPart::Control => return Ok(self.whole_frame(length, received)),
            StreamPart::Body | StreamPart::Trailers => self.held.clear(),
        }
        self.following = match kind {
            DATA => Following::Content(length),
            HEADERS if self.part == StreamPart::Body => {
                self.part = StreamPart::Trailers;
                Following::Ignored(length)
            }
            // Frames of the control stream, and of HTTP/2 (RFC 9114 section 11.2.1).
            HEADERS..=0x09 | 0x0d => return Err(FrameViolation::Unexpected { kind }),
            _ => Following::Ignored(length),
        };
        Ok(None)
    }

    /// Collects a frame, of which `left` bytes have not been received. Returns the frame if it is complete.
    fn whole_frame(&mut self, left: u64, received: &mut Bytes) -> Option<Bytes> {
        let arrived = taken(received, left);
        self.held.extend_from_slice(&arrived);
        let left = left - arrived.len() as u64;
        self.following = if left == 0 { Following::FrameHead } else { Following::WholeFrame(left) };
        (left == 0).then(|| self.held.split().freeze())
    }

    /// Moves bytes from `received` to the held bytes, until `parse` finds a value in them.
    fn parsed<T>(&mut self, received: &mut Bytes, parse: fn(&[u8]) -> Option<T>) -> Option<T> {
        while received.has_remaining() {
            self.held.extend_from_slice(&[received.get_u8()]);
            debug_assert!(self.held.len() <= HEAD_BYTES_MAX);
            if let Some(value) = parse(&self.held) {
                return Some(value);
            }
        }
        None
    }
}

fn integer_alone(bytes: &[u8]) -> Option<(u64, usize)> {
    integer(bytes).map(|(value, rest)| (value, rest.len()))
}

/// Removes up to `count` bytes from the front of `received`.
fn taken(received: &mut Bytes, count: u64) -> Bytes {
    received.split_to(usize::try_from(count).unwrap_or(usize::MAX).min(received.len()))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const LIMIT: u64 = 1000;
    const SETTINGS: u64 = 0x04;
    const UNKNOWN: u64 = 0x21;

    /// Encodes an integer in at least `1 << width` bytes, up to 8.
    fn encoded(value: u64, width: u8) -> Vec<u8> {
        let fits = |width: &u8| value < 1 << ((8 << width) - 2);
        let width = (width..4).find(fits).expect("it is below 2^62");
        let mut bytes = value.to_be_bytes()[8 - (1 << width)..].to_vec();
        bytes[0] |= width << 6;
        bytes
    }

    fn head(kind: u64, length: u64, width: u8) -> Vec<u8> {
        [encoded(kind, width), encoded(length, width)].concat()
    }

    fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
        [head(kind, payload.len() as u64, 0), payload.to_vec()].concat()
    }

    /// Passes `stream` through the filter in pieces of `at_once` bytes. Returns all that h3 receives, and the state at
    /// the end of the stream.
    fn passed(
        mut filter: FrameFilter,
        stream: &[u8],
        at_once: usize,
    ) -> (Vec<u8>, Result<(), FrameViolation>) {
        let mut passed = Vec::new();
        for received in stream.chunks(at_once) {
            let mut received = Bytes::copy_from_slice(received);
            loop {
                match filter.next(&mut received) {
                    Ok(Some(piece)) => passed.extend_from_slice(&piece),
                    Ok(None) => break,
                    Err(violation) => return (passed, Err(violation)),
                }
                assert!(filter.held.len() as u64 <= LIMIT + HEAD_BYTES_MAX as u64);
            }
            assert!(received.is_empty());
        }
        (passed, filter.end())
    }

    fn message(stream: &[u8]) -> (Vec<u8>, Result<(), FrameViolation>) {
        let whole = passed(FrameFilter::of_message(LIMIT), stream, usize::MAX);
        assert_eq!(passed(FrameFilter::of_message(LIMIT), stream, 1), whole);
        whole
    }

    fn unidirectional(stream: &[u8]) -> (Vec<u8>, Result<(), FrameViolation>) {
        let whole = passed(FrameFilter::of_unidirectional(LIMIT), stream, usize::MAX);
        assert_eq!(passed(FrameFilter::of_unidirectional(LIMIT), stream, 1), whole);
        whole
    }

    #[test]
    fn a_body_is_one_frame_without_an_end() {
        let heads = [frame(UNKNOWN, b"grease"), frame(HEADERS, b"100"), frame(HEADERS, b"head")].concat();
        let body = [frame(DATA, b""), frame(DATA, b"hello"), frame(UNKNOWN, b"x"), frame(DATA, b"")];
        let stream =
            [heads.clone(), body.concat(), frame(DATA, b"world"), frame(HEADERS, b"trailers")].concat();
        let stream = [stream, frame(UNKNOWN, b"")].concat();
        let expected = [heads.as_slice(), &BODY_HEAD, b"helloworld"].concat();
        assert_eq!(message(&stream), (expected, Ok(())));
    }

    #[test]
    fn a_long_frame_is_refused_at_its_head() {
        for kind in [HEADERS, UNKNOWN] {
            let refused = Err(FrameViolation::TooLong { kind, length: 1 << 40 });
            assert_eq!(message(&head(kind, 1 << 40, 0)).1, refused);
            assert_eq!(unidirectional(&[vec![0], head(kind, 1 << 40, 0)].concat()).1, refused);
            let in_body = [frame(HEADERS, b"head"), frame(DATA, b"x"), head(kind, 1 << 40, 0)].concat();
            assert_eq!(message(&in_body).1, refused);
            assert!(message(&frame(kind, &[7; LIMIT as usize])).1.is_ok());
        }
        let long = [head(DATA, (1 << 62) - 1, 0), vec![1; 5000]].concat();
        let (passed, end) = message(&long);
        assert_eq!((passed.len(), end), (BODY_HEAD.len() + 5000, Err(FrameViolation::Incomplete)));
    }

    #[test]
    fn frames_in_wrong_places_are_refused() {
        let body = frame(DATA, b"x");
        let trailers = [body.clone(), frame(HEADERS, b"t")].concat();
        for (stream, kind) in [
            (frame(WEBTRANSPORT, b""), WEBTRANSPORT),
            ([body.clone(), frame(SETTINGS, b"")].concat(), SETTINGS),
            ([trailers.clone(), body].concat(), DATA),
            ([trailers.clone(), frame(HEADERS, b"t")].concat(), HEADERS),
        ] {
            assert_eq!(message(&stream).1, Err(FrameViolation::Unexpected { kind }));
        }
        let control = [vec![0], frame(DATA, b"")].concat();
        assert_eq!(unidirectional(&control).1, Err(FrameViolation::Unexpected { kind: DATA }));
    }

    #[test]
    fn streams_other_than_control_streams_pass_as_they_are() {
        let stream = [vec![0x40, 0x02], head(HEADERS, 1 << 40, 0)].concat();
        assert_eq!(unidirectional(&stream), (stream, Ok(())));
        let control = [vec![0], frame(SETTINGS, b"\x06\x01")].concat();
        assert_eq!(unidirectional(&control), (control, Ok(())));
    }

    proptest! {
        #[test]
        fn integers_are_read_in_every_width(value in 0_u64..1 << 62, shift in 0_u32..62, width in 0_u8..4) {
            let value = value >> shift;
            let bytes = encoded(value, width);
            let followed = [&bytes[..], b"rest"].concat();
            prop_assert_eq!(integer(&followed), Some((value, &b"rest"[..])));
            prop_assert_eq!(integer(&bytes[..bytes.len() - 1]), None);
        }

        /// For any frames, in any pieces, h3 receives the heads unchanged and the content of the body. The end of the
        /// stream is accepted only between frames.
        #[test]
        fn content_passes_whole(
            heads in vec((prop_oneof![Just(HEADERS), Just(UNKNOWN)], vec(any::<u8>(), 0..60), 0_u8..4), 0..4),
            body in vec((prop_oneof![3 => Just(DATA), 1 => Just(UNKNOWN)], vec(any::<u8>(), 0..60), 0_u8..4), 0..8),
            at_once in 1_usize..100,
            cut in any::<prop::sample::Index>(),
        ) {
            let (mut stream, mut expected, mut ends) = (Vec::new(), Vec::new(), vec![0]);
            for (kind, payload, width) in &heads {
                stream.extend([head(*kind, payload.len() as u64, *width), payload.clone()].concat());
                ends.push(stream.len());
            }
            expected.extend_from_slice(&stream);
            let mut has_data = false;
            for (kind, payload, width) in &body {
                let whole = [head(*kind, payload.len() as u64, *width), payload.clone()].concat();
                stream.extend_from_slice(&whole);
                ends.push(stream.len());
                match *kind {
                    DATA => {
                        expected.extend_from_slice(if has_data { &[] } else { &BODY_HEAD });
                        expected.extend_from_slice(payload);
                        has_data = true;
                    }
                    _ if has_data => {}
                    _ => expected.extend_from_slice(&whole),
                }
            }
            let result = passed(FrameFilter::of_message(LIMIT), &stream, at_once);
            prop_assert_eq!(result, (expected, Ok(())));
            let cut = cut.index(stream.len() + 1);
            let (_, end) = passed(FrameFilter::of_message(LIMIT), &stream[..cut], at_once);
            prop_assert_eq!(end.is_ok(), ends.contains(&cut));
        }

        /// For any received bytes, the result does not depend on how many bytes arrive together.
        #[test]
        fn pieces_make_no_difference(stream in vec(any::<u8>(), 0..300)) {
            let _ = message(&stream);
            let _ = unidirectional(&stream);
        }
    }
}
