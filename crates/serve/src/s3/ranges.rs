//! Several ranges of an object in one answer (`multipart/byteranges`, RFC 9110 section 14.6), an
//! extension of ours: a vectored read of thousands of small pieces is one request.

use std::ops::Range;

use fordway_store::{Bucket, ByteRange, Content, Error, ErrorKind, GetOptions, Key, Object, Store};
use fordway_wire::byteranges::{Frame, parse_ranges};
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use percent_encoding::percent_decode_str;
use s3s::route::S3Route;
use s3s::service::S3Service;
use s3s::{Body, S3Request, S3Response, S3Result};

use super::convert::{conditions_of, version};
use super::describe::describe;
use super::error::{Failure, Outcome};
use super::{DEFAULT_TYPE, caller, source};
use crate::answer::Reply;
use crate::content::{Parts, Source};
use crate::domains::Domains;
use crate::identity::Admission;
use crate::monitor::Operation;
use crate::payload::Payload;

/// Takes reads of several ranges before the S3 layer, which does not know them, refuses them; and copies
/// from buckets whose names it does not know.
pub(super) struct SeveralRanges {
    pub(super) admission: Admission,
    pub(super) domains: Domains,
    /// Answers such copies; `None` where these come from here.
    pub(super) copies: Option<S3Service>,
}

#[async_trait::async_trait]
impl S3Route for SeveralRanges {
    fn is_match(&self, method: &Method, uri: &Uri, headers: &HeaderMap, _: &mut Extensions) -> bool {
        if self.copies.is_some() && source::is_from_other_name(method, headers) {
            return true;
        }
        let wanted = ranges_of(headers);
        method == Method::GET && wanted.len() > 1 && is_plain(headers) && version_of(uri).is_some()
    }

    async fn check_access(&self, request: &mut S3Request<Body>) -> S3Result<()> {
        let user = self.admission.admit_request(request)?;
        if request.method == Method::GET {
            Admission::take_note(&mut request.extensions, &user, Operation::GET_OBJECT, || None);
        }
        request.extensions.insert(user);
        Ok(())
    }

    async fn call(&self, request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        if let Some(copies) = self.copies.as_ref().filter(|_| request.method == Method::PUT) {
            return source::copy(copies, request).await;
        }
        let user = caller(&request)?;
        self.get(&*user.store, &request).map_err(|Failure(error)| error)
    }
}

impl SeveralRanges {
    fn get(&self, store: &dyn Store, request: &S3Request<Body>) -> Outcome<S3Response<Body>> {
        let (bucket, key) = self.names(request)?;
        let version = version(version_of(&request.uri).flatten().as_deref())?;
        let conditions = conditions_of(&request.headers)?;
        let object = store.get(&bucket, &key, &GetOptions { version, conditions, ..Default::default() })?;
        answer(object, &ranges_of(&request.headers)).map_err(|(error, size)| {
            outside(error.during("get", "http", bucket.as_str(), key.as_str()), size)
        })
    }

    /// The object that host and path name.
    fn names(&self, request: &S3Request<Body>) -> Outcome<(Bucket, Key)> {
        let host = request.headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let path = request.uri.path();
        let path = percent_decode_str(path.strip_prefix('/').unwrap_or(path)).decode_utf8_lossy();
        let (bucket, key) = match self.domains.bucket_of(host) {
            Some(bucket) => (bucket, &*path),
            None => path.split_once('/').unwrap_or((&path, "")),
        };
        Ok((Bucket::new(bucket)?, Key::new(key)?))
    }
}

/// The ranges asked for; none where they are not understood.
fn ranges_of(headers: &HeaderMap) -> Vec<ByteRange> {
    let range = headers.get(header::RANGE).and_then(|range| range.to_str().ok());
    range.and_then(parse_ranges).unwrap_or_default()
}

/// Whether nothing is asked besides that is not answered here.
fn is_plain(headers: &HeaderMap) -> bool {
    [header::IF_MODIFIED_SINCE, header::IF_UNMODIFIED_SINCE, header::IF_RANGE]
        .iter()
        .all(|name| !headers.contains_key(name))
}

/// The version that the query names, if it does; `None` for a query that asks for anything else.
fn version_of(uri: &Uri) -> Option<Option<String>> {
    let mut version = None;
    for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=').unwrap_or((pair, "")) {
            ("versionId", name) => version = Some(percent_decode_str(name).decode_utf8().ok()?.into_owned()),
            (name, _) if crate::unsigned::is_of_signature(name) => {}
            ("x-id", _) => {}
            _ => return None,
        }
    }
    Some(version)
}

/// Errors: `InvalidRange` with the object's size.
fn answer(object: Object, ranges: &[ByteRange]) -> Result<S3Response<Body>, (Error, u64)> {
    let info = object.info;
    let mut headers = HeaderMap::new();
    let described = describe(&info, &mut |name, value| {
        let (name, value) = (HeaderName::try_from(name), HeaderValue::from_bytes(value));
        name.ok().zip(value.ok()).map(|(name, value)| _ = headers.append(name, value))
    });
    let content_type = info.metadata.content_type.as_deref().unwrap_or(DEFAULT_TYPE);
    let failed = || Error::new(ErrorKind::Internal, "the object's metadata cannot stand in headers");
    let unwritable = || (failed(), info.size);
    described.ok_or_else(unwritable)?;
    let source = match object.content {
        Content::File(region) => Ok(Source::File(region)),
        Content::Bytes(bytes) => Ok(Source::Bytes(bytes)),
        stream => Err(stream),
    };
    let (status, content_type, reply) = match source {
        // What can be read once only is sent whole, which every client must expect.
        Err(stream) => (StatusCode::OK, content_type.to_owned(), Reply::Content(stream)),
        Ok(source) => {
            let ranges = satisfiable(ranges, info.size).map_err(|error| (error, info.size))?;
            let boundary = boundary().map_err(|error| (error, info.size))?;
            let frame = Frame { boundary: &boundary, content_type, size: info.size };
            let parts = ranges.into_iter().map(|range| (frame.before(&range), range)).collect();
            let reply = Reply::Parts(Parts::new(source, parts, frame.end()));
            (StatusCode::PARTIAL_CONTENT, frame.media_type(), reply)
        }
    };
    let content_type = HeaderValue::try_from(content_type).map_err(|_| unwritable())?;
    headers.insert(header::CONTENT_TYPE, content_type);
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
fn outside(error: Error, size_bytes: u64) -> Failure {
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

    #[test]
    fn a_query_may_name_a_version_and_a_signature() {
        let named = |target: &str| version_of(&target.parse().unwrap());
        assert_eq!(named("/b/k"), Some(None));
        assert_eq!(named("/b/k?versionId=a%2Bb&X-Amz-Signature=x"), Some(Some("a+b".to_owned())));
        assert_eq!(named("/b/k?partNumber=1"), None);
    }
}
