//! A decoder for the chunked transfer coding (RFC 9112 section 7.1).

use crate::http1::head::MessageRefusal;

/// The maximum number of bytes of a chunk's size line, enough for a size and a short extension.
const SIZE_LINE_BYTES_MAX: usize = 256;
/// The maximum number of bytes of all trailers together.
const TRAILER_BYTES_MAX: usize = 8 * 1024;

/// A decoder of a chunked body. The state of the decoder determines the element to which the next byte belongs.
#[derive(Debug, Default)]
pub(crate) struct ChunkDecoder {
    state: ChunkState,
    trailer_bytes: usize,
    /// Whether a line feed may precede the line break of a trailer.
    accepts_line_feeds: bool,
}

#[derive(Debug, Default)]
enum ChunkState {
    #[default]
    Size,
    Data(u64),
    /// The line break that follows a chunk's data.
    DataEnd,
    Trailers,
    Done,
}

/// The next element of the body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChunkStep {
    /// Framing, which the caller skips.
    Skip(usize),
    /// A trailer, including its line break.
    Trailer(usize),
    /// Content.
    Data(usize),
    /// The end of the body. The remaining bytes do not belong to the body.
    End,
    /// More bytes are needed to determine the next element.
    More,
}

impl ChunkDecoder {
    /// Returns a decoder of a body in the `aws-chunked` encoding. Some clients, such as MinIO's for Go, send a line
    /// feed and then a line break after each trailer, as AWS's examples of signed trailers show.
    pub(crate) fn of_aws_chunked() -> Self {
        ChunkDecoder { accepts_line_feeds: true, ..ChunkDecoder::default() }
    }

    /// Returns the element at the start of `bytes`; content is limited to `data_max` bytes. The caller removes the
    /// bytes of the element before the next call. Errors: framing that does not follow the RFC exactly.
    pub(crate) fn step(&mut self, bytes: &[u8], data_max: usize) -> Result<ChunkStep, MessageRefusal> {
        match self.state {
            ChunkState::Done => Ok(ChunkStep::End),
            ChunkState::Size => self.size(bytes),
            ChunkState::Data(left) => Ok(self.data(left, bytes.len().min(data_max))),
            ChunkState::DataEnd => self.data_end(bytes),
            ChunkState::Trailers => self.trailer(bytes),
        }
    }

    /// Returns whether the last byte of the body has been consumed.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.state, ChunkState::Done)
    }

    /// Returns the number of bytes of the current chunk that have not been consumed.
    pub(crate) fn data_left(&self) -> u64 {
        if let ChunkState::Data(left) = self.state { left } else { 0 }
    }

    fn size(&mut self, bytes: &[u8]) -> Result<ChunkStep, MessageRefusal> {
        let Some(line) = line(bytes, SIZE_LINE_BYTES_MAX)? else { return Ok(ChunkStep::More) };
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let (size, extension) = line.split_at(digits);
        let is_extension = extension.trim_ascii_start().first().is_none_or(|&byte| byte == b';');
        let is_blank_only = !extension.is_empty() && extension.trim_ascii().is_empty();
        if size.is_empty() || size.len() > 15 || !is_extension || is_blank_only {
            return Err(MessageRefusal::bad("a chunk's size is not a hexadecimal number"));
        }
        // The size has at most 15 digits, so the sum does not overflow.
        let size = size.iter().fold(0, |sum, &digit| sum * 16 + u64::from(hex_value(digit)));
        self.state = if size == 0 { ChunkState::Trailers } else { ChunkState::Data(size) };
        Ok(ChunkStep::Skip(line.len() + 2))
    }

    fn data(&mut self, left: u64, available: usize) -> ChunkStep {
        let taken = left.min(available as u64);
        if taken == 0 {
            return ChunkStep::More;
        }
        self.state = if taken == left { ChunkState::DataEnd } else { ChunkState::Data(left - taken) };
        ChunkStep::Data(taken as usize)
    }

    fn data_end(&mut self, bytes: &[u8]) -> Result<ChunkStep, MessageRefusal> {
        match bytes {
            [b'\r', b'\n', ..] => {
                self.state = ChunkState::Size;
                Ok(ChunkStep::Skip(2))
            }
            [] | [b'\r'] => Ok(ChunkStep::More),
            _ => Err(MessageRefusal::bad("a chunk is longer than its size says")),
        }
    }

    /// Returns whether all content has been received, but the end of the trailers has not.
    pub(crate) fn is_behind_data(&self) -> bool {
        matches!(self.state, ChunkState::Trailers)
    }

    /// Reads one line of the trailers. An empty line ends the trailers.
    fn trailer(&mut self, bytes: &[u8]) -> Result<ChunkStep, MessageRefusal> {
        let bytes_max = TRAILER_BYTES_MAX.saturating_sub(self.trailer_bytes);
        let fed = if self.accepts_line_feeds { line_before_feed(bytes, bytes_max) } else { None };
        let (line, length) = match fed {
            Some((line, [b'\r', b'\n', ..])) => (line, line.len() + 3),
            Some((_, [] | [b'\r'])) => return Ok(ChunkStep::More),
            _ => match line(bytes, bytes_max)? {
                Some(line) => (line, line.len() + 2),
                None => return Ok(ChunkStep::More),
            },
        };
        if line.is_empty() {
            self.state = ChunkState::Done;
            return Ok(ChunkStep::Skip(2));
        }
        let name = line.split(|&byte| byte == b':').next().unwrap_or_default();
        let is_header = name.len() < line.len() && !name.is_empty() && name.iter().all(is_token);
        if !is_header {
            return Err(MessageRefusal::bad("a trailer is not a header"));
        }
        self.trailer_bytes += length;
        Ok(ChunkStep::Trailer(length))
    }
}

/// Returns the line at the start of `bytes` that ends with a line feed alone, and the bytes after the line feed.
fn line_before_feed(bytes: &[u8], bytes_max: usize) -> Option<(&[u8], &[u8])> {
    let at = bytes[..bytes.len().min(bytes_max)].iter().position(|byte| matches!(byte, b'\r' | b'\n'))?;
    (at > 0 && bytes[at] == b'\n').then(|| (&bytes[..at], &bytes[at + 1..]))
}

/// Returns the line at the start of `bytes`, without its line break; `None` if the line break has not arrived. Errors:
/// the line is too long, or contains a control character other than a tab.
fn line(bytes: &[u8], bytes_max: usize) -> Result<Option<&[u8]>, MessageRefusal> {
    let seen = &bytes[..bytes.len().min(bytes_max)];
    let control = |byte: &u8| byte.is_ascii_control() && *byte != b'\t';
    match seen.iter().position(control) {
        Some(at) if bytes[at] != b'\r' => Err(MessageRefusal::bad("a control character between chunks")),
        Some(at) => match bytes.get(at + 1) {
            None => Ok(None),
            Some(b'\n') => Ok(Some(&bytes[..at])),
            Some(_) => Err(MessageRefusal::bad("a lone carriage return between chunks")),
        },
        None if seen.len() == bytes_max => Err(MessageRefusal::bad("a line between chunks is too long")),
        None => Ok(None),
    }
}

fn hex_value(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

/// Returns whether a byte may occur in the name of a header (RFC 9110 section 5.6.2).
fn is_token(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `bytes` to a decoder in pieces of `piece` bytes. Returns the content, and the bytes after the body's end.
    fn decode(bytes: &[u8], piece: usize) -> Result<(Vec<u8>, Vec<u8>), Option<MessageRefusal>> {
        let (mut decoder, mut content, mut at_hand) = (ChunkDecoder::default(), Vec::new(), Vec::new());
        let mut pieces = bytes.chunks(piece);
        loop {
            match decoder.step(&at_hand, 1 + piece * 2).map_err(Some)? {
                ChunkStep::Skip(count) | ChunkStep::Trailer(count) => drop(at_hand.drain(..count)),
                ChunkStep::Data(count) => content.extend(at_hand.drain(..count)),
                ChunkStep::End => {
                    return Ok((content, [at_hand, pieces.flatten().copied().collect()].concat()));
                }
                ChunkStep::More => at_hand.extend_from_slice(pieces.next().ok_or(None)?),
            }
        }
    }

    #[test]
    fn content_comes_out_however_it_arrives() {
        let body = b"4\r\nWiki\r\n6;note=\"x\"\r\npedia \r\nE \t;a\r\nin \r\n\r\nchunks.\r\n0\r\nX-Sum: 1\r\n\r\nNEXT";
        for piece in 1..body.len() {
            let (content, rest) = decode(body, piece).unwrap();
            assert_eq!(content, b"Wikipedia in \r\n\r\nchunks.", "{piece}");
            assert_eq!(rest, b"NEXT", "{piece}");
        }
    }

    #[test]
    fn framing_that_is_not_exact_is_refused() {
        let long = format!("5;{}\r\n", "x".repeat(300));
        let trailers = format!("0\r\n{}", "X: yyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n".repeat(400));
        for body in [
            "\r\n",
            "x\r\n",
            "-1\r\n",
            "+5\r\n",
            "0x5\r\n",
            "5\n",
            "5 \r\n",
            "5\rx",
            "5 5\r\n",
            ";a\r\n",
            "5\0\r\n",
            "fffffffffffffffff\r\n",
            "2\r\nabc\r\n",
            "2\r\nab\n",
            "0\r\nno colon\r\n",
            "0\r\n: x\r\n",
            "0\r\nX : y\r\n",
            &long,
            &trailers,
        ] {
            for piece in [1, 7, body.len()] {
                assert!(matches!(decode(body.as_bytes(), piece), Err(Some(_))), "{body:?} by {piece}");
            }
        }
    }

    /// Tests bodies whose first trailer has a length just below, at or just above the limit.
    #[test]
    fn trailers_have_an_end() {
        for first in TRAILER_BYTES_MAX - 70..TRAILER_BYTES_MAX + 3 {
            let body = format!("0\r\nX: {}\r\n{}\r\n", "y".repeat(first - 3), "Z: z\r\n".repeat(100));
            assert!(matches!(decode(body.as_bytes(), 4096), Err(Some(_))), "{first}");
        }
    }

    #[test]
    fn a_body_without_an_end_has_none() {
        for body in ["5\r\nab", "2\r\nab\r\n", "0\r\n", "0\r\nX: y\r\n"] {
            assert_eq!(decode(body.as_bytes(), 3), Err(None), "{body:?}");
        }
    }

    /// Decoding a randomly damaged body terminates, and never yields more content than the number of bytes that
    /// arrived.
    #[test]
    fn damage_does_no_harm() {
        let good = b"a\r\n0123456789\r\n3;x=y\r\nabc\r\n0\r\nT: v\r\n\r\n";
        let mut state = 7u32;
        let mut next = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as usize
        };
        let mut whole = 0;
        for _ in 0..100_000 {
            let mut body = good.to_vec();
            for _ in 0..next() % 3 {
                let at = next() % body.len();
                body[at] = b"\r\n0f;: x\0\xff"[next() % 10];
            }
            if let Ok((content, rest)) = decode(&body, 1 + next() % 40) {
                assert!(content.len() + rest.len() < body.len());
                whole += 1;
            }
        }
        assert!(whole > 1000, "{whole}");
    }
}
