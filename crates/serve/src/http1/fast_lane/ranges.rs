//! Several ranges of an object in one answer, an extension of ours: a vectored read of thousands of
//! small pieces is one request.

use std::ops::Range;

use fordway_store::{Bucket, ByteRange, Conditions, Content, Error, ErrorKind, GetOptions, Key, Store};
use fordway_wire::byteranges::Frame;
use http::StatusCode;

use super::written;
use crate::answer::Reply;
use crate::http1::outgoing::{Form, Outgoing, Parts, put, put_number};
use crate::s3::{DEFAULT_TYPE, failed_read};

/// `None` where the store hands out content that cannot be read at several places.
pub(super) fn get(
    store: &dyn Store,
    (bucket, key): (&Bucket, &Key),
    ranges: &[ByteRange],
    conditions: Conditions,
) -> Option<Outgoing> {
    let options = GetOptions { conditions, ..Default::default() };
    let object = match store.get(bucket, key, &options) {
        Ok(object) => object,
        Err(error) => return Some(failed(error, None)),
    };
    if matches!(object.content, Content::Stream(..)) {
        return None;
    }
    let size = object.info.size;
    let ranges = match satisfiable(ranges, size) {
        Ok(ranges) => ranges,
        Err(error) => {
            return Some(failed(error.during("get", "http", bucket.as_str(), key.as_str()), Some(size)));
        }
    };
    let content_type = object.info.metadata.content_type.as_deref().unwrap_or(DEFAULT_TYPE);
    let boundary = boundary()?;
    let frame = Frame { boundary: &boundary, content_type, size };
    let parts: Vec<_> = ranges.into_iter().map(|range| (frame.before(&range), range)).collect();
    let end = frame.end();
    let of_part = |(before, range): &(String, Range<u64>)| before.len() as u64 + range.end - range.start;
    let length = parts.iter().map(of_part).sum::<u64>() + end.len() as u64;
    let mut head = written::common(StatusCode::PARTIAL_CONTENT, &object.info)?;
    put(&mut head, "content-type", frame.media_type().as_bytes());
    put_number(&mut head, "content-length", length);
    Some(Outgoing::in_parts(head, Parts { content: object.content, parts, end }))
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
fn boundary() -> Option<String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).ok()?;
    Some(format!("{:032x}", u128::from_ne_bytes(random)))
}

fn failed(error: Error, size_bytes: Option<u64>) -> Outgoing {
    let form = Form { is_http_1_1: true, is_head: false };
    Outgoing::new(failed_read(error, size_bytes).map(Reply::Document), form)
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
