//! Checks the framing of an `aws-chunked` body while the body is read.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Request;
use http_body::{Body, Frame, SizeHint};

use crate::aws_chunked::{TRAILER, is_in_chunks, is_in_signed_chunks};
use crate::http1::{ChunkDecoder, ChunkStep};

/// The error message for a body whose last chunk is incomplete or missing.
pub(crate) const CUT_SHORT: &str = "the body ended before the end of its last chunk";
/// The error message for a body in which a chunk other than the last one is too small. The conversion to an S3 error
/// recognizes this message.
pub(crate) const SMALL_CHUNK: &str = "a chunk before the last one is smaller than 8192 bytes";
/// The error message for a body that has a trailer without a name, or that lacks the trailers that its head announces.
/// The conversion to an S3 error recognizes this message.
pub(crate) const BAD_TRAILER: &str = "a trailer of the body is missing or has no name";
/// The minimum size in bytes of a chunk that is not the last chunk (S3's limit).
const CHUNK_BYTES_MIN: u64 = 8192;

/// The error message for a signed chunk that is too large. The conversion to an S3 error recognizes this message.
pub(crate) const LARGE_CHUNK: &str = "a signed chunk is larger than 16 MiB";
/// The maximum size in bytes of a signed chunk, which the S3 layer keeps in memory until its signature is checked. SDKs
/// sign chunks of 64 KiB to 1 MiB.
const SIGNED_CHUNK_BYTES_MAX: u64 = 16 << 20;
/// The number of hexadecimal digits of a signature.
const SIGNATURE_DIGITS: usize = 64;

/// Replaces the body of a request with a body that checks its chunks while it is read. Reading fails if the body ends
/// before its last chunk, if a chunk before the last chunk is too small, if a signed chunk is too large, or if a
/// trailer is missing or has no name. The decoder of the body detects all other faults. Without this check, the S3
/// layer would accept a body whose last chunk is truncated or missing, although no signature confirms the end of such a
/// body. Cost: for an `aws-chunked` body, a check of the bytes between its chunks.
pub(crate) fn ending_whole(request: Request<s3s::Body>) -> Request<s3s::Body> {
    if !is_in_chunks(request.headers()) {
        return request;
    }
    let has_trailers = request.headers().get(TRAILER).is_some_and(|names| !names.is_empty());
    let is_signed = is_in_signed_chunks(request.headers());
    let decoder = ChunkDecoder::of_aws_chunked();
    let watch = Some(ChunkFramingCheck { decoder, has_trailers, is_signed, ..Default::default() });
    request.map(|inner| s3s::Body::http_body_unsync(FramingCheckedBody { inner, watch }))
}

struct FramingCheckedBody {
    inner: s3s::Body,
    /// The check of the framing; `None` if the bytes are not `aws-chunked`.
    watch: Option<ChunkFramingCheck>,
}

/// Checks the framing of an `aws-chunked` body while the body is read.
#[derive(Default)]
struct ChunkFramingCheck {
    decoder: ChunkDecoder,
    /// The first part of a line between chunks, whose rest is in the next frame. The decoder limits the length of a
    /// line.
    line: Vec<u8>,
    /// The number of bytes of the current chunk that have arrived.
    chunk_bytes: u64,
    /// Whether the previous chunk was smaller than [`CHUNK_BYTES_MIN`]. Such a chunk must be the last chunk with
    /// content.
    is_after_small: bool,
    /// Whether the head announces trailers.
    has_trailers: bool,
    /// Whether a trailer has arrived.
    has_seen_trailer: bool,
    /// Whether the chunks are signed.
    is_signed: bool,
}

impl ChunkFramingCheck {
    /// Checks the next bytes. Returns `None` if the bytes are not chunks. Errors: [`SMALL_CHUNK`], [`LARGE_CHUNK`],
    /// [`BAD_TRAILER`], [`CUT_SHORT`].
    fn pass(mut self, mut bytes: &[u8]) -> Result<Option<Self>, &'static str> {
        while !bytes.is_empty() {
            let begun = self.line.len();
            if begun > 0 {
                let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
                self.line.extend_from_slice(&bytes[..end]);
            }
            let at_hand = if begun > 0 { &self.line[..] } else { bytes };
            let Ok(step) = self.decoder.step(at_hand, usize::MAX) else {
                let is_nameless = self.decoder.is_behind_data() && at_hand.first() == Some(&b':');
                return if is_nameless { Err(BAD_TRAILER) } else { Ok(None) };
            };
            let taken = match step {
                ChunkStep::Data(count) => self.note_data(count)?,
                ChunkStep::Skip(count) => {
                    if self.chunk_bytes > 0 {
                        self.is_after_small = self.chunk_bytes < CHUNK_BYTES_MIN;
                        self.chunk_bytes = 0;
                    }
                    if self.is_signed && self.decoder.data_left() > SIGNED_CHUNK_BYTES_MAX {
                        return Err(LARGE_CHUNK);
                    }
                    count
                }
                ChunkStep::Trailer(count) => {
                    self.has_seen_trailer = true;
                    checked_trailer(&at_hand[..count])?
                }
                ChunkStep::End if self.has_trailers && !self.has_seen_trailer => return Err(BAD_TRAILER),
                ChunkStep::End => return Ok(Some(self)),
                ChunkStep::More => {
                    let rest = if begun > 0 { self.line.len() - begun } else { bytes.len() };
                    if begun == 0 {
                        self.line.extend_from_slice(bytes);
                    }
                    bytes = &bytes[rest..];
                    continue;
                }
            };
            bytes = &bytes[taken - begun..];
            self.line.clear();
        }
        Ok(Some(self))
    }

    /// Counts `count` further bytes of a chunk, and returns `count`. Errors: [`SMALL_CHUNK`] if the previous chunk was
    /// too small.
    fn note_data(&mut self, count: usize) -> Result<usize, &'static str> {
        self.chunk_bytes += count as u64;
        if self.is_after_small { Err(SMALL_CHUNK) } else { Ok(count) }
    }

    /// Returns whether the last chunk and all trailers have arrived. Some senders omit the empty line at the end if
    /// there are no trailers.
    fn is_whole(&self) -> bool {
        self.decoder.is_done() || (self.decoder.is_behind_data() && !self.has_trailers)
    }
}

/// Returns a trailer's length in bytes. Errors: [`CUT_SHORT`] for a trailer signature that does not have 64 digits.
fn checked_trailer(line: &[u8]) -> Result<usize, &'static str> {
    let signature = line.strip_prefix(b"x-amz-trailer-signature:").map(<[u8]>::trim_ascii);
    match signature.is_none_or(|signature| signature.len() == SIGNATURE_DIGITS) {
        true => Ok(line.len()),
        false => Err(CUT_SHORT),
    }
}

/// Feeds a body to the framing check in pieces of `piece` bytes. Returns whether the body is complete; `None` if the
/// bytes are not chunks. Errors: as for [`ChunkFramingCheck::pass`].
#[cfg(feature = "fuzzing")]
pub(crate) fn check_framing(body: &[u8], piece: usize) -> Result<Option<bool>, &'static str> {
    let pass = |watch: Option<ChunkFramingCheck>, bytes| watch.map_or(Ok(None), |watch| watch.pass(bytes));
    let watch = body.chunks(piece).try_fold(Some(ChunkFramingCheck::default()), pass)?;
    Ok(watch.map(|watch| watch.is_whole()))
}

impl Body for FramingCheckedBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let (Some(watch), Some(data)) = (self.watch.take(), frame.data_ref()) {
                    match watch.pass(data) {
                        Ok(watch) => self.watch = watch,
                        Err(fault) => return Poll::Ready(Some(Err(fault.into()))),
                    }
                }
            }
            None if self.watch.take().is_some_and(|watch| !watch.is_whole()) => {
                return Poll::Ready(Some(Err(CUT_SHORT.into())));
            }
            Some(Err(_)) | None => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream() && self.watch.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(body: &[u8], piece: usize) -> Result<Option<ChunkFramingCheck>, &'static str> {
        let pass =
            |watch: Option<ChunkFramingCheck>, bytes| watch.map_or(Ok(None), |watch| watch.pass(bytes));
        body.chunks(piece).try_fold(Some(ChunkFramingCheck::default()), pass)
    }

    fn is_whole(body: &[u8], piece: usize) -> Option<bool> {
        watched(body, piece).expect("no fault of its own").map(|watch| watch.is_whole())
    }

    #[test]
    fn small_chunks_stand_last_and_trailers_have_names() {
        let chunk = |size: usize| format!("{size:x}\r\n{}\r\n", "x".repeat(size));
        let body = |sizes: &[usize]| sizes.iter().map(|size| chunk(*size)).collect::<String>() + "0\r\n\r\n";
        for piece in [1, 7, 8192, 100_000] {
            for fit in [&[10][..], &[8192, 10], &[9000, 8192]] {
                assert_eq!(is_whole(body(fit).as_bytes(), piece), Some(true), "{piece} {fit:?}");
            }
            for small in [&[10, 10][..], &[8191, 1], &[8192, 10, 8192]] {
                assert_eq!(
                    watched(body(small).as_bytes(), piece).err(),
                    Some(SMALL_CHUNK),
                    "{piece} {small:?}"
                );
            }
            let bad = b"5\r\nhello\r\n0\r\n:AAAA==\r\n\r\n";
            assert_eq!(watched(bad, piece).err(), Some(BAD_TRAILER), "{piece}");
            let signed =
                |digits| format!("5\r\nhello\r\n0\r\nx-amz-trailer-signature:{}\r\n\r\n", "a".repeat(digits));
            assert_eq!(is_whole(signed(64).as_bytes(), piece), Some(true), "{piece}");
            for digits in [0, 63, 65] {
                assert_eq!(watched(signed(digits).as_bytes(), piece).err(), Some(CUT_SHORT), "{piece}");
            }
        }
    }

    #[test]
    fn a_signed_chunk_is_not_too_large() {
        let announced = |size: u64, is_signed| {
            let line = format!("{size:x}\r\n");
            ChunkFramingCheck { is_signed, ..Default::default() }
                .pass(line.as_bytes())
                .map(|watch| watch.is_some())
        };
        assert_eq!(announced(SIGNED_CHUNK_BYTES_MAX, true), Ok(true));
        assert_eq!(announced(SIGNED_CHUNK_BYTES_MAX + 1, true), Err(LARGE_CHUNK));
        assert_eq!(announced(SIGNED_CHUNK_BYTES_MAX << 20, false), Ok(true));
    }

    #[test]
    fn announced_trailers_arrive() {
        let announced = |body: &[u8]| {
            ChunkFramingCheck { has_trailers: true, ..Default::default() }
                .pass(body)
                .map(|watch| watch.is_some())
        };
        let signature = format!("x-amz-trailer-signature:{}\r\n\r\n", "a".repeat(64));
        let data = "5\r\nhello\r\n0\r\n";
        let missing = format!("{data}\r\n{signature}");
        assert_eq!(announced(missing.as_bytes()), Err(BAD_TRAILER));
        let there = format!("{data}x-amz-checksum-crc32:AAAA==\r\n{signature}");
        assert_eq!(announced(there.as_bytes()), Ok(true));
    }

    #[test]
    fn a_body_is_whole_once_its_last_chunk_is_there() {
        let signed = format!("5;chunk-signature={0}\r\nhello\r\n0;chunk-signature={0}\r\n", "ab".repeat(32));
        let trailing = format!("{signed}x-amz-checksum-crc32:AAAA==\r\n\r\n");
        for piece in 1..=signed.len() {
            for whole in [&signed, &format!("{signed}\r\n"), &trailing] {
                assert_eq!(is_whole(whole.as_bytes(), piece), Some(true), "{piece}");
            }
            for cut in 1..signed.len() {
                assert_eq!(
                    is_whole(&signed.as_bytes()[..signed.len() - cut], piece),
                    Some(false),
                    "{piece} {cut}"
                );
            }
        }
        assert_eq!(is_whole(b"hello\r\n", 3), None);
        assert_eq!(is_whole(b"", 1), Some(false));
    }
}
