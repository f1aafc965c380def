//! Decodes an `aws-chunked` body whose chunks are not signed, or whose signatures have no meaning.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame, SizeHint};

use crate::http1::{ChunkDecoder, ChunkStep};

/// The error message for a body that is not encoded as its head specifies. The conversion to an S3 error recognizes
/// this message.
pub(crate) const NOT_CHUNKED: &str = "the body is not valid aws-chunked encoding";

/// The error message for a body that ends within a chunk.
const CUT_SHORT: &str = "the body ended within a chunk";

/// The trailers of an `aws-chunked` body, stored as an extension of its request. The trailers are available after the
/// body has been read.
#[derive(Clone, Default)]
pub(crate) struct TrailerFields(Arc<OnceLock<HeaderMap>>);

impl TrailerFields {
    /// Returns all trailers, or `None` if the body has not been read.
    pub(crate) fn all(&self) -> Option<&HeaderMap> {
        self.0.get()
    }
}

/// Returns a body that decodes `body`. `length` is the length of the content, if known. The trailers are in `trailers`
/// once the body has been read.
pub(crate) fn decoded(body: s3s::Body, length: Option<u64>, trailers: TrailerFields) -> s3s::Body {
    s3s::Body::http_body_unsync(UnchunkedBody::new(body, length, trailers))
}

/// The error type of bodies.
type UnchunkedBodyError = Box<dyn std::error::Error + Send + Sync>;

/// Decodes the content of an `aws-chunked` body. The decoder does not copy the content.
struct UnchunkedBody {
    inner: s3s::Body,
    decoder: ChunkDecoder,
    at_hand: Bytes,
    /// The number of content bytes that have not been read yet, if known.
    left: Option<u64>,
    found: HeaderMap,
    trailers: TrailerFields,
}

impl UnchunkedBody {
    fn new(inner: s3s::Body, left: Option<u64>, trailers: TrailerFields) -> Self {
        let (decoder, found) = (ChunkDecoder::of_aws_chunked(), HeaderMap::new());
        UnchunkedBody { inner, decoder, at_hand: Bytes::new(), left, found, trailers }
    }

    fn poll_content(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, UnchunkedBodyError>> {
        loop {
            let step = self.decoder.step(&self.at_hand, usize::MAX);
            match step.map_err(|refusal| format!("{NOT_CHUNKED}: {}", refusal.why))? {
                ChunkStep::Skip(count) => self.at_hand.advance(count),
                ChunkStep::Trailer(count) => self.note_trailer(count)?,
                ChunkStep::Data(count) => {
                    self.left = self.left.map(|left| left.saturating_sub(count as u64));
                    return Poll::Ready(Ok(Some(self.at_hand.split_to(count))));
                }
                // The rest of the body is read and discarded, so that the connection is positioned at the start of the
                // next request.
                ChunkStep::End => {
                    self.at_hand.clear();
                    if !ready!(self.poll_more(context))? {
                        break;
                    }
                }
                ChunkStep::More => match ready!(self.poll_more(context))? {
                    true => {}
                    // Some senders omit the empty line after the last trailer.
                    false if self.decoder.is_behind_data() && self.at_hand.is_empty() => break,
                    false => return Poll::Ready(Err(CUT_SHORT.into())),
                },
            }
        }
        // The value cannot be set already, because the body ends only once.
        let _ = self.trailers.0.set(std::mem::take(&mut self.found));
        Poll::Ready(Ok(None))
    }

    /// Appends the next frame to `at_hand`. Returns false at the end of the body.
    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, UnchunkedBodyError>> {
        let Some(frame) = ready!(Pin::new(&mut self.inner).poll_frame(context)) else {
            return Poll::Ready(Ok(false));
        };
        let Ok(data) = frame?.into_data() else { return Poll::Ready(Ok(true)) };
        if self.at_hand.is_empty() {
            self.at_hand = data;
        } else {
            let mut joined = BytesMut::with_capacity(self.at_hand.len() + data.len());
            joined.extend_from_slice(&self.at_hand);
            joined.extend_from_slice(&data);
            self.at_hand = joined.freeze();
        }
        Poll::Ready(Ok(true))
    }

    /// Removes the trailer from the start of `at_hand` and records it. The trailer has `count` bytes, including the end
    /// of the line.
    fn note_trailer(&mut self, count: usize) -> Result<(), UnchunkedBodyError> {
        let line = self.at_hand.split_to(count);
        let colon = line.iter().position(|&byte| byte == b':').ok_or(NOT_CHUNKED)?;
        let name = HeaderName::from_bytes(&line[..colon])?;
        self.found.append(name, HeaderValue::from_bytes(line[colon + 1..].trim_ascii())?);
        Ok(())
    }
}

impl Body for UnchunkedBody {
    type Data = Bytes;
    type Error = UnchunkedBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UnchunkedBodyError>>> {
        self.poll_content(context).map(|content| content.map(|data| data.map(Frame::data)).transpose())
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map(SizeHint::with_exact).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes `body`, which arrives in pieces of `piece` bytes. Returns the content, and the value of `trailer`.
    fn content(body: &[u8], piece: usize, trailer: &str) -> Result<(Vec<u8>, Option<String>), String> {
        let pieces = body.chunks(piece).map(Bytes::copy_from_slice).collect();
        let (trailers, pieces) = (TrailerFields::default(), s3s::Body::http_body_unsync(InPieces(pieces)));
        let mut unchunked = UnchunkedBody::new(pieces, None, trailers.clone());
        let (mut content, mut context) = (Vec::new(), Context::from_waker(std::task::Waker::noop()));
        loop {
            match unchunked.poll_content(&mut context) {
                Poll::Ready(Ok(Some(data))) => content.extend_from_slice(&data),
                Poll::Ready(Ok(None)) => return Ok((content, text_of(&trailers, trailer))),
                Poll::Ready(Err(error)) => return Err(error.to_string()),
                Poll::Pending => unreachable!("all pieces have arrived"),
            }
        }
    }

    fn text_of(trailers: &TrailerFields, name: &str) -> Option<String> {
        Some(trailers.all()?.get(name)?.to_str().unwrap().to_owned())
    }

    struct InPieces(std::collections::VecDeque<Bytes>);

    impl Body for InPieces {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
        }
    }

    #[test]
    fn chunks_are_undone_however_they_are_cut() {
        let signed = format!(
            "5;chunk-signature={0}\r\nhello\r\n3;chunk-signature={0}\r\n, w\r\n0;chunk-signature={0}\r\n\
             x-amz-checksum-crc32:AAAA==\r\nx-amz-trailer-signature:{0}\r\n\r\n",
            "ab".repeat(32)
        );
        let bare = "5\r\nhello\r\n3\r\n, w\r\n0\r\nX-Amz-Checksum-CRC32: AAAA==\r\n";
        // MinIO's client for Go sends a line feed before the line break of a trailer.
        let fed = "5\r\nhello\r\n3\r\n, w\r\n0\r\nx-amz-checksum-crc32:AAAA==\n\r\n";
        for body in [signed.as_str(), bare, &format!("{bare}\r\n"), fed, &format!("{fed}\r\n")] {
            for piece in [1, 2, 7, 1000] {
                let (content, trailer) = content(body.as_bytes(), piece, "x-amz-checksum-crc32").unwrap();
                assert_eq!(
                    (content.as_slice(), trailer.as_deref()),
                    (&b"hello, w"[..], Some("AAAA==")),
                    "{piece}"
                );
            }
        }
        assert_eq!(content(b"0\r\n\r\n", 100, "none"), Ok((Vec::new(), None)));
    }

    #[test]
    fn what_is_cut_short_or_wrong_is_an_error() {
        for short in ["", "5\r\nhell", "5\r\nhello\r\n", "5\r\nhello\r\n0\r\nx-amz-check"] {
            let error = content(short.as_bytes(), 3, "x").expect_err(short);
            assert!(!error.contains(NOT_CHUNKED), "{error}");
        }
        for wrong in [
            "hello\r\n",
            "5\r\nhelloo\r\n0\r\n\r\n",
            "5\r\nhello\r\n0\r\nno trailer\r\n\r\n",
            "0\r\na:b\nc:d\r\n\r\n",
        ] {
            let error = content(wrong.as_bytes(), 3, "x").expect_err(wrong);
            assert!(error.contains(NOT_CHUNKED), "{error}");
        }
    }
}
