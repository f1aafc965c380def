//! Uploads whose body has the content coding `aws-chunked`: chunks in the format of HTTP/1.1, with signatures as chunk
//! extensions and checksums as trailers. The S3 layer decodes only bodies with signed chunks. This module decodes all
//! other bodies, because the S3 layer keeps a whole chunk in memory, and stores the body of a request without a version
//! 4 signature as it arrives.
//!
//! * `framing`: checks of the chunks while they arrive
//! * `decoder`: decodes bodies whose chunks are not signed

mod decoder;
mod framing;

use std::sync::{Arc, Mutex, PoisonError};

use http::header::{AUTHORIZATION, CONTENT_ENCODING, HeaderValue};
use http::{Extensions, HeaderMap, HeaderName, Request, StatusCode};

use crate::gate::{GateRefusal, OperationRule};
use crate::message::composed;

pub(crate) use decoder::{NOT_CHUNKED, TrailerFields, decoded};
#[cfg(feature = "fuzzing")]
pub(crate) use framing::check_framing;
pub(crate) use framing::{BAD_TRAILER, CUT_SHORT, LARGE_CHUNK, SMALL_CHUNK, ending_whole};

/// The header that specifies how the body is signed.
pub(crate) const CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");
/// The header with the length of the content.
pub(crate) const DECODED_LENGTH: HeaderName = HeaderName::from_static("x-amz-decoded-content-length");
/// The header that names the trailers of the body.
pub(crate) const TRAILER: HeaderName = HeaderName::from_static("x-amz-trailer");
/// The start of the values of [`CONTENT_SHA256`] for a body in chunks.
const IN_CHUNKS: &[u8] = b"STREAMING-";
/// The value of [`CONTENT_SHA256`] for chunks that are not signed.
const UNSIGNED_CHUNKS: &[u8] = b"STREAMING-UNSIGNED-PAYLOAD-TRAILER";

/// Returns whether the body is `aws-chunked`. Some SDKs send [`CONTENT_SHA256`] only if they sign the request; the body
/// then has the form that the other headers state.
pub(crate) fn is_in_chunks(headers: &HeaderMap) -> bool {
    match headers.get(CONTENT_SHA256) {
        Some(value) => value.as_bytes().starts_with(IN_CHUNKS),
        None => states_chunks(headers),
    }
}

/// Returns whether `Content-Encoding` and the header with the decoded length show that the body is in chunks.
pub(crate) fn states_chunks(headers: &HeaderMap) -> bool {
    let is_listed = |value: &HeaderValue| {
        value
            .as_bytes()
            .split(|byte| *byte == b',')
            .any(|name| name.trim_ascii().eq_ignore_ascii_case(b"aws-chunked"))
    };
    headers.contains_key(DECODED_LENGTH) && headers.get_all(CONTENT_ENCODING).iter().any(is_listed)
}

/// Returns whether the body is `aws-chunked`, and its chunks are signed.
fn is_in_signed_chunks(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_SHA256)
        .is_some_and(|value| value.as_bytes().starts_with(IN_CHUNKS) && value.as_bytes() != UNSIGNED_CHUNKS)
}

/// Returns the content length that is stated in the head of a request with an `aws-chunked` body.
pub(crate) fn decoded_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(DECODED_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Checks that the head of a request with an `aws-chunked` body states the length of the content. Errors:
/// `MissingContentLength`.
pub(crate) fn check_decoded_length(headers: &HeaderMap) -> Result<(), GateRefusal> {
    decoded_length(headers).map(drop).ok_or_else(|| GateRefusal {
        status: StatusCode::LENGTH_REQUIRED,
        code: "MissingContentLength",
        message: "x-amz-decoded-content-length is not a number of bytes; correct it".to_owned(),
    })
}

/// The decoded body of an upload, stored as an extension of its request. The S3 layer would decode the body once more
/// if the request itself contained it.
#[derive(Clone)]
struct DecodedBody(Arc<Mutex<Option<s3s::Body>>>);

/// Decodes the body of an upload whose chunks are not signed, and moves it into the request's extensions. Signed chunks
/// are left to the S3 layer, which checks their signatures. Call this function after the form of the signature has been
/// checked. Errors: `InvalidRequest` if the headers contradict each other, or if no code would check the signatures of
/// the chunks; `MissingContentLength`.
pub(crate) fn take_upload(request: &mut Request<s3s::Body>) -> Result<(), GateRefusal> {
    let operation = request.extensions().get::<&'static OperationRule>();
    if !operation.is_some_and(|operation| operation.is_upload()) {
        return Ok(());
    }
    let headers = request.headers();
    if !is_in_chunks(headers) {
        return match states_chunks(headers) {
            true => Err(refused(
                "Content-Encoding names aws-chunked, but x-amz-content-sha256 does not; omit one",
            )),
            false => Ok(()),
        };
    }
    if is_in_signed_chunks(headers) {
        let authorization = headers.get(AUTHORIZATION).map_or(&b""[..], HeaderValue::as_bytes);
        return match authorization.starts_with(b"AWS4-") {
            true => Ok(()),
            false => Err(refused("signed chunks need a version 4 signature in the header Authorization")),
        };
    }
    check_decoded_length(headers)?;
    let (length, trailers) = (decoded_length(headers), TrailerFields::default());
    let body = decoded(std::mem::take(request.body_mut()), length, trailers.clone());
    let extensions = request.extensions_mut();
    extensions.insert(DecodedBody(Arc::new(Mutex::new(Some(body)))));
    extensions.insert(trailers);
    Ok(())
}

/// Returns the body that [`take_upload`] moved into the extensions of a request; `None` if the request itself has the
/// body.
pub(crate) fn taken_body(extensions: &mut Extensions) -> Option<s3s::Body> {
    let DecodedBody(body) = extensions.remove()?;
    body.lock().unwrap_or_else(PoisonError::into_inner).take()
}

fn refused(detail: &str) -> GateRefusal {
    let words = "The value of x-amz-content-sha256 header is invalid.";
    GateRefusal {
        status: StatusCode::BAD_REQUEST,
        code: "InvalidRequest",
        message: composed(words, detail, &[]),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use bytes::Bytes;
    use http_body::{Body, Frame};

    use super::*;
    use crate::gate::operation_named;

    /// The start of a body, whose rest has not arrived.
    struct Unfinished(Option<Bytes>);

    impl Body for Unfinished {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            self.0.take().map_or(Poll::Pending, |bytes| Poll::Ready(Some(Ok(Frame::data(bytes)))))
        }
    }

    /// The memory for an upload must not depend on the size of its chunks.
    #[test]
    fn content_is_passed_on_before_its_chunk_is_whole() {
        let start = Unfinished(Some(Bytes::from_static(b"40000000\r\nhello")));
        let mut request = Request::new(s3s::Body::http_body_unsync(start));
        request.extensions_mut().insert(operation_named("PutObject"));
        for (name, value) in
            [(CONTENT_SHA256, "STREAMING-UNSIGNED-PAYLOAD-TRAILER"), (DECODED_LENGTH, "1073741824")]
        {
            request.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        let mut request = ending_whole(request);
        take_upload(&mut request).unwrap();
        let mut body = taken_body(request.extensions_mut()).unwrap();
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut context) else {
            panic!("the content waits for the rest of its chunk");
        };
        assert_eq!(frame.into_data().unwrap(), "hello");
    }
}
