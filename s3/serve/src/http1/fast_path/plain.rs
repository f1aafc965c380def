//! Decides whether a request is plain. A plain request is for an object, and contains only headers and parameters that
//! clients commonly send.

use std::mem;

use fordway_store::{Bucket, ByteRange, ChecksumAlgorithm, Conditions, ETag, Key};
use fordway_wire::range::parse_range;
use fordway_wire::sigv4::UNSIGNED_PAYLOAD;
use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

use crate::domains::BucketDomains;
use crate::gate::{HEADER_BYTES_MAX, is_readable};
use crate::http1::fast_path::signature::{PresignedQuery, decoded, is_unreserved};
use crate::http1::head::{RequestFraming, RequestHead};
use crate::monitor::OperationCode;

/// Headers that do not change the response.
const WITHOUT_EFFECT: &[&str] = &[
    "accept",
    "accept-encoding",
    "accept-language",
    "amz-sdk-invocation-id",
    "amz-sdk-request",
    "connection",
    "content-length",
    "expect",
    "user-agent",
    "x-amz-user-agent",
    "x-fordway-timing",
];

/// Headers that describe an uploaded object, except checksums and user metadata.
const OF_UPLOAD: &[&str] = &[
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-md5",
    "content-type",
    "expires",
    "if-match",
    "if-none-match",
    "x-amz-sdk-checksum-algorithm",
];

const METHODS: [&str; 4] = ["GET", "HEAD", "PUT", "DELETE"];
/// SHA-256 of empty content.
const EMPTY_HASH: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// The operation of a request on an object.
pub(super) enum ObjectMethod {
    Get,
    Head,
    Put(PlainPutHeaders),
    Delete,
}

impl ObjectMethod {
    pub(super) fn operation(&self) -> OperationCode {
        match self {
            ObjectMethod::Get => OperationCode::GET_OBJECT,
            ObjectMethod::Head => OperationCode::HEAD_OBJECT,
            ObjectMethod::Put(_) => OperationCode::PUT_OBJECT,
            ObjectMethod::Delete => OperationCode::DELETE_OBJECT,
        }
    }
}

/// The description of the object in the head of a PUT.
pub(super) struct PlainPutHeaders {
    pub(super) headers: HeaderMap,
    pub(super) bytes: u64,
    /// The SHA-256 of the content, if the signature covers it.
    pub(super) sha256: Option<[u8; 32]>,
}

/// A plain request for an object. The signature has not been checked yet.
pub(super) struct PlainObjectRequest<'h> {
    pub(super) method: ObjectMethod,
    host: &'h str,
    path: &'h str,
    /// The requested range; `None` for the whole object.
    pub(super) range: Option<ByteRange>,
    if_match: Option<&'h str>,
    pub(super) wants_checksum: bool,
    /// The signature; `None` if a part of it is missing.
    pub(super) signature: Option<UncheckedSignature<'h>>,
}

/// The unchecked signature of a request: the signer, and the signed parts.
pub(super) enum UncheckedSignature<'h> {
    Header(SignatureHeaders<'h>),
    /// A presigned URL.
    Query(PresignedQuery<'h>),
}

/// The parts of a signature that the headers of a request contain.
#[derive(Clone, Copy)]
pub(super) struct SignatureHeaders<'h> {
    pub(super) authorization: &'h str,
    pub(super) amz_date: &'h str,
    pub(super) payload_hash: &'h str,
}

/// The headers that the fast path evaluates. Each of them occurs at most once in a plain request.
#[derive(Default)]
struct PlainHeaders<'h> {
    host: Option<&'h str>,
    authorization: Option<&'h str>,
    amz_date: Option<&'h str>,
    payload_hash: Option<&'h str>,
    range: Option<&'h str>,
    if_match: Option<&'h str>,
    checksum_mode: Option<&'h str>,
    /// Headers that describe an uploaded object.
    of_upload: HeaderMap,
    has_length: bool,
}

impl<'h> PlainHeaders<'h> {
    /// Reads the headers of a request. Returns `None` if there is a header that no plain request has, or if a header
    /// occurs twice.
    fn read(head: &RequestHead<'h>) -> Option<Self> {
        let mut fields = PlainHeaders::default();
        let is_put = head.method == "PUT";
        for header in head.headers {
            let field = match header.name {
                name if is(name, "host") => &mut fields.host,
                name if is(name, "authorization") => &mut fields.authorization,
                name if is(name, "x-amz-date") => &mut fields.amz_date,
                name if is(name, "x-amz-content-sha256") => &mut fields.payload_hash,
                name if is_put && is_of_upload(name) => {
                    fields.note_of_upload(name, header.value)?;
                    continue;
                }
                name if is(name, "range") => &mut fields.range,
                name if is(name, "if-match") => &mut fields.if_match,
                name if is(name, "x-amz-checksum-mode") => &mut fields.checksum_mode,
                name if WITHOUT_EFFECT.iter().any(|known| is(name, known)) => {
                    fields.has_length |= is(name, "content-length");
                    continue;
                }
                _ => return None,
            };
            let value = head.value(header)?;
            if field.replace(value).is_some() {
                return None;
            }
        }
        Some(fields)
    }

    fn note_of_upload(&mut self, name: &str, value: &[u8]) -> Option<()> {
        let (name, value) =
            (HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_bytes(value).ok()?);
        if !is_readable(&name, &value) {
            return None;
        }
        self.of_upload.insert(name, value).is_none().then_some(())
    }

    /// Returns the signature of the request; `None` if the request is signed twice, or if its query does not belong to
    /// a plain presigned URL.
    fn signature(
        &self,
        method: &str,
        path: &'h str,
        query: Option<&'h str>,
    ) -> Option<Option<UncheckedSignature<'h>>> {
        let PlainHeaders { authorization, amz_date, payload_hash, .. } = *self;
        let Some(query) = query else {
            let signed = authorization.zip(amz_date).zip(payload_hash);
            return Some(signed.map(|((authorization, amz_date), payload_hash)| {
                UncheckedSignature::Header(SignatureHeaders { authorization, amz_date, payload_hash })
            }));
        };
        let is_signed_twice = authorization.or(amz_date).or(payload_hash).is_some();
        let presigned = PresignedQuery::read(method, path, query).filter(|_| !is_signed_twice)?;
        Some(Some(UncheckedSignature::Query(presigned)))
    }

    /// Returns the requested operation on the object; `None` for any other request, and for content in chunks or
    /// without a declared length.
    fn method(&mut self, head: &RequestHead<'h>) -> Option<ObjectMethod> {
        let RequestFraming::Length(bytes) = head.framing else { return None };
        let is_without_content =
            bytes == 0 && self.payload_hash.is_none_or(|hash| hash == UNSIGNED_PAYLOAD || hash == EMPTY_HASH);
        match head.method {
            "PUT" if self.has_length => {
                let of_content = self.payload_hash.filter(|hash| *hash != UNSIGNED_PAYLOAD);
                let sha256 = of_content.map_or(Some(None), |hash| sha256_of(hash).map(Some))?;
                Some(ObjectMethod::Put(PlainPutHeaders {
                    headers: mem::take(&mut self.of_upload),
                    bytes,
                    sha256,
                }))
            }
            "GET" if is_without_content => Some(ObjectMethod::Get),
            "HEAD" if is_without_content && self.range.is_none() => Some(ObjectMethod::Head),
            "DELETE" if is_without_content => Some(ObjectMethod::Delete),
            _ => None,
        }
    }
}

impl<'h> PlainObjectRequest<'h> {
    /// Parses the head; returns `None` for a request that is not plain.
    pub(super) fn read(head: &RequestHead<'h>) -> Option<Self> {
        let (path, query) = match head.target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (head.target, None),
        };
        if !METHODS.contains(&head.method) || !is_canonical(path) {
            return None;
        }
        // The limit `HEADER_BYTES_MAX` applies only to the headers. If the whole head exceeds the limit, the request is
        // left to the S3 layer, which counts only the bytes of the headers.
        if head.bytes > HEADER_BYTES_MAX {
            return None;
        }
        let mut fields = PlainHeaders::read(head)?;
        let method = fields.method(head)?;
        let is_read = matches!(method, ObjectMethod::Get | ObjectMethod::Head);
        let is_usual = match fields.checksum_mode {
            None => true,
            Some(mode) => mode == "ENABLED" && is_read,
        };
        if !is_usual || (fields.range.is_some() && !is_read) {
            return None;
        }
        Some(PlainObjectRequest {
            method,
            host: fields.host?,
            path,
            range: fields.range.map_or(Some(None), |range| parse_range(range).map(Some))?,
            if_match: fields.if_match.map_or(Some(None), |tag| unquoted(tag).map(Some))?,
            wants_checksum: fields.checksum_mode.is_some(),
            signature: fields.signature(head.method, path, query)?,
        })
    }

    /// Returns the conditions that the object must meet.
    pub(super) fn conditions(&self) -> Conditions {
        self.if_match.map_or_else(Conditions::default, |tag| Conditions::only_if(ETag::new(tag)))
    }

    /// Returns the bucket and the key; `None` if the bucket's name or the key is invalid.
    pub(super) fn names(&self, domains: &BucketDomains) -> Option<(Bucket, Key)> {
        let path = self.path.strip_prefix('/')?;
        let (bucket, key) = match domains.bucket_of(self.host) {
            Some(bucket) => (bucket, path),
            None => path.split_once('/')?,
        };
        let key = percent_decode_str(key).decode_utf8().ok()?;
        Some((Bucket::new(bucket).ok()?, Key::new(key).ok().filter(|key| !key.as_str().is_empty())?))
    }
}

/// Returns the ETag of a condition without its quotes; `None` if the condition is not a single quoted ETag.
fn unquoted(tag: &str) -> Option<&str> {
    let tag = tag.strip_prefix('"')?.strip_suffix('"')?;
    tag.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-').then_some(tag)
}

/// Parses a SHA-256 in the form that signatures use: 64 hexadecimal digits in lower case.
fn sha256_of(hex: &str) -> Option<[u8; 32]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut sum = [0; 32];
    let pairs = hex.as_bytes().chunks_exact(2);
    for (byte, pair) in sum.iter_mut().zip(pairs) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    (hex.len() == 64).then_some(sum)
}

/// Returns whether a header describes an uploaded object.
fn is_of_upload(name: &str) -> bool {
    let begins = |start: &str| name.get(..start.len()).is_some_and(|begin| is(begin, start));
    OF_UPLOAD.iter().any(|known| is(name, known))
        || begins("x-amz-meta-")
        || ChecksumAlgorithm::ALL.iter().any(|algorithm| is(name, algorithm.header()))
}

fn is(name: &str, known: &str) -> bool {
    name.eq_ignore_ascii_case(known)
}

/// Returns whether a target is a path in exactly the encoding that signatures require. Such a path has only one
/// spelling, so the client and the gateway interpret the path in the same way.
fn is_canonical(target: &str) -> bool {
    // Most paths have no escapes, and need not be decoded.
    let is_simple = target.bytes().all(|byte| byte == b'/' || is_unreserved(byte));
    let is_part = |part| decoded(part).is_some_and(|text| !text.contains('/'));
    target.starts_with('/') && (is_simple || target.split('/').all(is_part))
}

/// Returns whether the fast path serves a request with this head. The signature must be well-formed, but is not
/// verified.
#[cfg(feature = "fuzzing")]
pub(crate) fn is_plain_request(head: &RequestHead<'_>) -> bool {
    use fordway_wire::sigv4::AuthorizationHeader;

    let Some(request) = PlainObjectRequest::read(head) else { return false };
    let is_signed = match &request.signature {
        None => false,
        Some(UncheckedSignature::Header(signed)) => {
            AuthorizationHeader::parse(signed.authorization).is_some()
        }
        Some(UncheckedSignature::Query(signed)) => signed.authorization().is_some(),
    };
    let _conditions = request.conditions();
    request.names(&BucketDomains::none()).is_some() && is_signed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_spelling_of_a_path_is_canonical() {
        for good in ["/b/k", "/b/a%20b", "/b/%C3%A4~._-", "/b/a//b", "/b/%25"] {
            assert!(is_canonical(good), "{good}");
        }
        for bad in [
            "",
            "b/k",
            "/b/k?x",
            "/b/k?",
            "/b/a+b",
            "/b/%2F",
            "/b/%41",
            "/b/%2f",
            "/b/%c3",
            "/b/%2",
            "/b/a b",
            "http://h/b/k",
            "*",
            "/b/(1)",
            "/b/%7E",
        ] {
            assert!(!is_canonical(bad), "{bad}");
        }
    }

    #[test]
    fn one_spelling_of_a_sha256_is_taken() {
        assert_eq!(sha256_of(&"0f".repeat(32)), Some([15; 32]));
        for bad in ["", "0f", &"0F".repeat(32), &"0g".repeat(32), &"0f".repeat(33), UNSIGNED_PAYLOAD] {
            assert_eq!(sha256_of(bad), None, "{bad}");
        }
    }
}
