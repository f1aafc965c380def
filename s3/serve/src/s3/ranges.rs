//! Several ranges of an object in one answer (`multipart/byteranges`, RFC 9110 section 14.6), an
//! extension of ours: a vectored read of thousands of small pieces is one request.

use std::ops::Range;

use fordway_store::{ByteRange, Content, Error, ErrorKind, Object};
use fordway_wire::byteranges::Frame;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use s3s::{Body, S3Response};

use super::error::Failure;
use crate::answer::Reply;
use crate::content::{Parts, Source};
use crate::payload::Payload;

/// The answer with all of the ranges, to which `headers` belong that describe the object.
/// Errors: `InvalidRange`.
pub(super) fn several(
    object: Object,
    ranges: &[ByteRange],
    mut headers: HeaderMap,
) -> Result<S3Response<Body>, Error> {
    let size = object.info.size;
    let source = match object.content {
        Content::File(region) => Ok(Source::File(region)),
        Content::Bytes(bytes) => Ok(Source::Bytes(bytes)),
        stream => Err(stream),
    };
    let (status, reply) = match source {
        // What can be read once only is sent whole, which every client must expect.
        Err(stream) => (StatusCode::OK, Reply::Content(stream)),
        Ok(source) => {
            let (ranges, boundary) = (satisfiable(ranges, size)?, boundary()?);
            let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
            let content_type = content_type.unwrap_or(super::DEFAULT_TYPE);
            let frame = Frame { boundary: &boundary, content_type, size };
            let parts = ranges.into_iter().map(|range| (frame.before(&range), range)).collect();
            let (reply, media_type) = (Parts::new(source, parts, frame.end()), frame.media_type());
            // A boundary is letters and digits.
            if let Ok(media_type) = HeaderValue::try_from(media_type) {
                headers.insert(header::CONTENT_TYPE, media_type);
            }
            (StatusCode::PARTIAL_CONTENT, Reply::Parts(reply))
        }
    };
    let mut response = S3Response::with_status(Body::empty(), status);
    response.headers = headers;
    response.extensions.insert(Payload::new(reply));
    Ok(response)
}

/// The ranges with a byte of the object in them.
/// Errors: `InvalidRange` if there is none, or if together they are longer than the object: nobody
/// needs that, and it would make a large answer of a small request.
fn satisfiable(ranges: &[ByteRange], size: u64) -> Result<Vec<Range<u64>>, Error> {
    let found: Vec<_> = ranges.iter().filter_map(|range| range.resolve(size).ok()).collect();
    let total = found.iter().fold(0u64, |sum, range| sum.saturating_add(range.end - range.start));
    let detail = match (found.is_empty(), total > size) {
        (true, _) => "no byte of the object is in any of the ranges",
        (false, true) => "the ranges are longer than the object together; ask for each byte once",
        (false, false) => return Ok(found),
    };
    Err(Error::new(ErrorKind::InvalidRange, detail))
}

/// 128 random bits: no content can be made to hold it.
fn boundary() -> Result<String, Error> {
    let mut random = [0; 16];
    getrandom::fill(&mut random)
        .map_err(|error| Error::new(ErrorKind::Io, "no random bytes for a boundary").caused_by(error))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(random)))
}

/// The answer to ranges that cannot be had says how long the object is (RFC 9110 section 15.5.17).
pub(super) fn outside(error: Error, size_bytes: u64) -> Failure {
    let is_range = error.kind() == ErrorKind::InvalidRange;
    let mut failure = Failure::from(error);
    if let Ok(value) = HeaderValue::try_from(format!("bytes */{size_bytes}"))
        && is_range
    {
        failure.add_header(header::CONTENT_RANGE, value);
    }
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_outside_is_left_out_and_too_much_is_refused() {
        let of_ten = |ranges: &[ByteRange]| satisfiable(ranges, 10).map_err(|error| error.kind());
        let (inside, outside) = (ByteRange::Inclusive(2, 4), ByteRange::From(10));
        assert_eq!(of_ten(&[inside, outside, ByteRange::Last(2)]), Ok(vec![2..5, 8..10]));
        assert_eq!(of_ten(&[outside, ByteRange::Last(0)]), Err(ErrorKind::InvalidRange));
        assert_eq!(of_ten(&[ByteRange::From(0), inside]), Err(ErrorKind::InvalidRange));
        assert_eq!(of_ten(&[inside, inside]), Ok(vec![2..5, 2..5]));
    }
}
