//! The client of a connection, and requests from clients that the kernel has identified. Signatures of such requests
//! have no meaning, so this module removes them, and decodes `aws-chunked` bodies.

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::{AUTHORIZATION, CONTENT_LENGTH, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{HeaderMap, Request, Uri};
use http_body::{Body, Frame, SizeHint};
use serde::{Serialize, Serializer};

use crate::http1::{ChunkDecoder, ChunkStep};
use crate::tls::TlsVersion;
use crate::users::User;

/// The text of the error for a body that is not encoded as its head specifies. The conversion to an S3 error recognizes
/// this text.
pub(crate) const NOT_CHUNKED: &str = "the body is not valid aws-chunked encoding";

/// The text of the error for a body that ends within a chunk.
const CUT_SHORT: &str = "the body ended within a chunk";

/// The header that specifies how the body is signed.
const CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");
const DECODED_LENGTH: HeaderName = HeaderName::from_static("x-amz-decoded-content-length");
/// Headers that have no meaning without a signature.
const SIGNATURE_HEADERS: [HeaderName; 5] = [
    AUTHORIZATION,
    CONTENT_SHA256,
    DECODED_LENGTH,
    HeaderName::from_static("x-amz-date"),
    HeaderName::from_static("x-amz-security-token"),
];
/// Parameters of a presigned URL, of signature versions 4 and 2.
const SIGNATURE_PARAMETERS: [&str; 11] = [
    "X-Amz-Algorithm",
    "X-Amz-Content-Sha256",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-Security-Token",
    "X-Amz-Signature",
    "X-Amz-SignedHeaders",
    "AWSAccessKeyId",
    "Expires",
    "Signature",
];

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

/// Returns the request without its signature. The signature, its date and the SHA-256 of the body are not checked.
/// Checksums are still checked.
pub(crate) fn unsigned(request: Request<s3s::Body>) -> Request<s3s::Body> {
    let (mut parts, mut body) = request.into_parts();
    parts.uri = without_signature(parts.uri);
    let headers = &mut parts.headers;
    if headers.get(CONTENT_SHA256).is_some_and(|value| value.as_bytes().starts_with(b"STREAMING-")) {
        let length = headers.get(DECODED_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let trailers = TrailerFields::default();
        body = s3s::Body::http_body_unsync(UnchunkedBody::new(body, length, trailers.clone()));
        parts.extensions.insert(trailers);
        match length {
            Some(length) => headers.insert(CONTENT_LENGTH, HeaderValue::from(length)),
            None => headers.remove(CONTENT_LENGTH),
        };
    }
    for name in SIGNATURE_HEADERS {
        headers.remove(name);
    }
    Request::from_parts(parts, body)
}

/// Returns whether `name` is a parameter of presigned URLs.
pub(crate) fn is_of_signature(name: &str) -> bool {
    SIGNATURE_PARAMETERS.contains(&name)
}

fn without_signature(uri: Uri) -> Uri {
    with_parameters(uri, |pair| !is_of_signature(pair.split('=').next().unwrap_or_default()))
}

/// Returns the URI with only those parameters of its query for which `is_kept` returns true. `is_kept` gets a parameter
/// with its value, both still encoded.
pub(crate) fn with_parameters(uri: Uri, is_kept: impl Fn(&str) -> bool) -> Uri {
    let query = uri.query().unwrap_or_default();
    if query.split('&').all(&is_kept) {
        return uri;
    }
    let kept: Vec<&str> = query.split('&').filter(|pair| is_kept(pair)).collect();
    let target = match kept.is_empty() {
        true => uri.path().to_owned(),
        false => format!("{}?{}", uri.path(), kept.join("&")),
    };
    let mut parts = uri.into_parts();
    // The conversion always succeeds, because the new target is part of a valid target.
    parts.path_and_query = PathAndQuery::try_from(target).ok();
    Uri::from_parts(parts).unwrap_or_default()
}

/// The error type of bodies.
type UnchunkedBodyError = Box<dyn std::error::Error + Send + Sync>;

/// Decodes the content of an `aws-chunked` body. The chunks have the format of HTTP/1.1, with signatures as extensions
/// and checksums as trailers. The decoder does not copy the content.
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
        let (decoder, found) = (ChunkDecoder::default(), HeaderMap::new());
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

/// The client of a connection.
#[derive(Clone)]
pub(crate) enum ConnectionPeer {
    /// A client at a remote address. Its requests must be signed.
    Remote {
        address: SocketAddr,
        /// The version of TLS; `None` for a connection that is not encrypted.
        tls: Option<TlsVersion>,
    },
    /// A program on this machine, whose user the kernel has identified. The signatures of its requests have no meaning.
    Unix(Arc<User>),
}

impl fmt::Display for ConnectionPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectionPeer::Remote { address, .. } => address.fmt(f),
            ConnectionPeer::Unix(user) => f.write_str(&user.name),
        }
    }
}

impl Serialize for ConnectionPeer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_of_the_signature_leaves_the_query() {
        let stripped = |text: &str| without_signature(text.parse().unwrap()).to_string();
        assert_eq!(
            stripped("/b/k?X-Amz-Signature=1&partNumber=2&X-Amz-Date=3&uploadId=x"),
            "/b/k?partNumber=2&uploadId=x"
        );
        assert_eq!(stripped("/b/k?AWSAccessKeyId=a&Signature=b&Expires=1"), "/b/k");
        assert_eq!(
            stripped("/b/k%20?versionId=1&response-expires=x"),
            "/b/k%20?versionId=1&response-expires=x"
        );
        assert_eq!(stripped("http://h:1/b?X-Amz-Date=3"), "http://h:1/b");
    }

    /// Decodes `body`, which arrives in pieces of `piece` bytes. Returns the content, and the value of `trailer`.
    fn decoded(body: &[u8], piece: usize, trailer: &str) -> Result<(Vec<u8>, Option<String>), String> {
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
        for body in [signed.as_str(), bare, &format!("{bare}\r\n")] {
            for piece in [1, 2, 7, 1000] {
                let (content, trailer) = decoded(body.as_bytes(), piece, "x-amz-checksum-crc32").unwrap();
                assert_eq!(
                    (content.as_slice(), trailer.as_deref()),
                    (&b"hello, w"[..], Some("AAAA==")),
                    "{piece}"
                );
            }
        }
        assert_eq!(decoded(b"0\r\n\r\n", 100, "none"), Ok((Vec::new(), None)));
    }

    #[test]
    fn what_is_cut_short_or_wrong_is_an_error() {
        for short in ["", "5\r\nhell", "5\r\nhello\r\n", "5\r\nhello\r\n0\r\nx-amz-check"] {
            let error = decoded(short.as_bytes(), 3, "x").expect_err(short);
            assert!(!error.contains(NOT_CHUNKED), "{error}");
        }
        for wrong in ["hello\r\n", "5\r\nhelloo\r\n0\r\n\r\n", "5\r\nhello\r\n0\r\nno trailer\r\n\r\n"] {
            let error = decoded(wrong.as_bytes(), 3, "x").expect_err(wrong);
            assert!(error.contains(NOT_CHUNKED), "{error}");
        }
    }
}
