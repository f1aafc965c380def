//! Holds the end of an `aws-chunked` body against its framing, before the S3 layer sees it: that takes a body whose last
//! chunk is cut, or missing, for a whole one, and nobody has signed that nothing follows.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderName, Request};
use http_body::{Body, Frame, SizeHint};

use crate::http1::{ChunkDecoder, ChunkStep};

const CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");
/// Said by a body without the whole of its last chunk.
const CUT_SHORT: &str = "the body ended before its last chunk did";

/// The request with a body that is an error where it ends before its last chunk. What else is wrong with it is left to
/// the S3 layer. Cost: for bodies in such chunks a look at what lies between them.
pub(crate) fn ending_whole(request: Request<s3s::Body>) -> Request<s3s::Body> {
    let payload = request.headers().get(CONTENT_SHA256);
    if !payload.is_some_and(|value| value.as_bytes().starts_with(b"STREAMING-")) {
        return request;
    }
    request.map(|inner| s3s::Body::http_body_unsync(Watched { inner, watch: Some(Watch::default()) }))
}

struct Watched {
    inner: s3s::Body,
    /// `None` once it is known that these are no such chunks.
    watch: Option<Watch>,
}

/// Follows the framing of a body that passes by.
#[derive(Default)]
struct Watch {
    decoder: ChunkDecoder,
    /// A line between chunks of which the rest is in the next frame: the decoder bounds it.
    line: Vec<u8>,
}

impl Watch {
    /// Looks at the next bytes; `None` if they are no chunks.
    fn pass(mut self, mut bytes: &[u8]) -> Option<Self> {
        while !bytes.is_empty() {
            let begun = self.line.len();
            if begun > 0 {
                let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
                self.line.extend_from_slice(&bytes[..end]);
            }
            let at_hand = if begun > 0 { &self.line[..] } else { bytes };
            let taken = match self.decoder.step(at_hand, usize::MAX).ok()? {
                ChunkStep::Skip(count) | ChunkStep::Trailer(count) | ChunkStep::Data(count) => count,
                ChunkStep::End => return Some(self),
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
        Some(self)
    }

    /// Whether the last chunk was there. Some senders leave out the empty line behind it.
    fn is_whole(&self) -> bool {
        self.decoder.is_done() || self.decoder.is_behind_data()
    }
}

impl Body for Watched {
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
                    self.watch = watch.pass(data);
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

    fn is_whole(body: &[u8], piece: usize) -> Option<bool> {
        let watched = body.chunks(piece).try_fold(Watch::default(), Watch::pass);
        watched.map(|watch| watch.is_whole())
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
