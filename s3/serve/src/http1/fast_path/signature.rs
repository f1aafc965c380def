//! Checks the signature in the headers or the URL of a plain request: the signer, the date, and whether the signature
//! covers all headers that must be signed.

use std::borrow::Cow;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use fordway_wire::date::parse_amz_date;
use fordway_wire::sigv4::{
    AuthorizationHeader, CanonicalRequest, MAX_EXPIRES_S, SigningKey, UNSIGNED_PAYLOAD, cut,
};
use percent_encoding::percent_decode_str;

use crate::AccessKeyPair;
use crate::http1::fast_path::plain::SignatureHeaders;
use crate::http1::head::RequestHead;
use crate::identity::{CLOCK_SKEW_MAX, is_region};
use crate::s3::is_printable;

/// The maximum number of cached signing keys. The cache of a user has one key for each day and region in the user's
/// valid signatures.
const KEYS_MAX: usize = 16;
/// The maximum number of headers that a request may sign.
const SIGNED_MAX: usize = 24;

pub(crate) struct SignatureVerifier {
    identity: AccessKeyPair,
    keys: RwLock<Vec<DailySigningKey>>,
}

struct DailySigningKey {
    day: String,
    region: String,
    key: SigningKey,
}

impl SignatureVerifier {
    pub(crate) fn new(identity: AccessKeyPair) -> Self {
        SignatureVerifier { identity, keys: RwLock::new(Vec::new()) }
    }

    /// Returns whether the signature is valid and the S3 layer would also accept it. The hash of the content is checked
    /// separately.
    pub(super) fn has_signed(
        &self,
        head: &RequestHead<'_>,
        stated: SignatureHeaders<'_>,
        authorization: &AuthorizationHeader<'_>,
    ) -> bool {
        if !self.is_for_us(authorization) || !is_now(stated.amz_date, authorization.day) {
            return false;
        }
        let mut room = [("", ""); SIGNED_MAX];
        let Some(headers) = signed_headers(head, authorization.signed_headers, &mut room) else {
            return false;
        };
        self.verifies(
            authorization,
            stated.amz_date,
            &CanonicalRequest {
                method: head.method,
                path: head.target,
                query: "",
                headers,
                payload_hash: stated.payload_hash,
            },
        )
    }

    /// Returns whether the signature in a presigned URL is valid and the S3 layer would also accept it.
    pub(super) fn has_presigned(&self, head: &RequestHead<'_>, stated: &PresignedQuery<'_>) -> bool {
        let Some(authorization) = stated.authorization() else { return false };
        if !self.is_for_us(&authorization) || !stated.is_valid_now(authorization.day) {
            return false;
        }
        let mut room = [("", ""); SIGNED_MAX];
        let Some(headers) = signed_headers(head, authorization.signed_headers, &mut room) else {
            return false;
        };
        let request = CanonicalRequest {
            method: head.method,
            path: stated.path,
            query: &stated.canonical_query,
            headers,
            payload_hash: UNSIGNED_PAYLOAD,
        };
        self.verifies(&authorization, stated.amz_date, &request)
    }

    fn is_for_us(&self, authorization: &AuthorizationHeader<'_>) -> bool {
        authorization.access_key == self.identity.access_key
            && authorization.service == "s3"
            && is_region(authorization.region)
    }

    fn verifies(
        &self,
        authorization: &AuthorizationHeader<'_>,
        amz_date: &str,
        request: &CanonicalRequest<'_>,
    ) -> bool {
        let AuthorizationHeader { day, region, service, signature, .. } = *authorization;
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = keys.iter().find(|known| known.day == day && known.region == region) {
            return known.key.verifies(signature, amz_date, request);
        }
        drop(keys);
        let key = SigningKey::for_day(&self.identity.secret_key, day, region, service);
        let is_right = key.verifies(signature, amz_date, request);
        // Only valid signatures add keys to the cache. If invalid signatures also added keys, unauthenticated clients
        // could displace cached keys by inventing regions.
        if is_right {
            let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
            if keys.len() >= KEYS_MAX {
                keys.clear();
            }
            keys.push(DailySigningKey { day: day.to_owned(), region: region.to_owned(), key });
        }
        is_right
    }
}

/// Parameters of a presigned URL in the order of the canonical query. Some SDKs add the last parameter, `x-id`, which
/// has no effect.
const PARAMETERS: [&str; 7] = [
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-Signature",
    "X-Amz-SignedHeaders",
    "x-id",
];
const AT_SIGNATURE: usize = 4;

/// The unchecked parameters of a presigned URL.
pub(super) struct PresignedQuery<'h> {
    path: &'h str,
    credential: Cow<'h, str>,
    signed_headers: Cow<'h, str>,
    signature: &'h str,
    amz_date: &'h str,
    expires_s: u64,
    canonical_query: String,
}

impl<'h> PresignedQuery<'h> {
    /// Reads the parameters of a presigned URL. Returns `None` if there is an unexpected parameter, or if a parameter
    /// occurs twice or is not in its canonical spelling.
    pub(super) fn read(method: &str, path: &'h str, query: &'h str) -> Option<Self> {
        let mut found = [None; PARAMETERS.len()];
        for pair in fields(query, b'&') {
            let (name, value) = cut(pair, b'=')?;
            let at = PARAMETERS.iter().position(|known| *known == name)?;
            if found[at].replace(value).is_some() {
                return None;
            }
        }
        let [algorithm, credential, amz_date, expires, signature, signed_headers, id] = found;
        let is_of_method = id.is_none_or(|id| match method {
            "PUT" => id == "PutObject",
            "DELETE" => id == "DeleteObject",
            _ => id == "GetObject" || id == "HeadObject",
        });
        let is_usual = algorithm == Some("AWS4-HMAC-SHA256") && is_of_method;
        let expires =
            expires.filter(|text| text.len() <= 6 && text.bytes().all(|byte| byte.is_ascii_digit()))?;
        let mut canonical_query = String::with_capacity(query.len());
        for (at, (name, value)) in PARAMETERS.iter().zip(found).enumerate() {
            let Some(value) = value.filter(|_| at != AT_SIGNATURE) else { continue };
            let between = if canonical_query.is_empty() { "" } else { "&" };
            canonical_query.extend([between, name, "=", value]);
        }
        let presigned = PresignedQuery {
            path,
            credential: decoded(credential?)?,
            signed_headers: decoded(signed_headers?)?,
            signature: signature.filter(|text| text.len() == 64)?,
            amz_date: amz_date?,
            expires_s: expires.parse().ok()?,
            canonical_query,
        };
        is_usual.then_some(presigned)
    }

    /// Returns the signer and the scope; `None` if the credential is malformed.
    pub(super) fn authorization(&self) -> Option<AuthorizationHeader<'_>> {
        let mut scope = fields(&self.credential, b'/');
        let [access_key, day, region, service, end] =
            std::array::from_fn(|_| scope.next().unwrap_or_default());
        let is_whole = end == "aws4_request" && scope.next().is_none();
        let (signed_headers, signature) = (&*self.signed_headers, self.signature);
        is_whole.then_some(AuthorizationHeader {
            access_key,
            day,
            region,
            service,
            signed_headers,
            signature,
        })
    }

    /// Returns whether the URL was signed on `day`, was not signed in the future, and has not expired.
    fn is_valid_now(&self, day: &str) -> bool {
        let Some(signed) = parse_amz_date(self.amz_date) else { return false };
        let Ok(age) = SystemTime::now().duration_since(signed) else { return false };
        let is_of_day = self.amz_date.starts_with(day) && day.len() == 8;
        is_of_day && self.expires_s <= MAX_EXPIRES_S && age < Duration::from_secs(self.expires_s)
    }
}

/// Decodes `text`; returns `None` if it is not in canonical encoding, or not UTF-8.
pub(super) fn decoded(text: &str) -> Option<Cow<'_, str>> {
    let bytes = text.as_bytes();
    let (mut at, mut is_escaped) = (0, false);
    while at < bytes.len() {
        at += match bytes[at] {
            b'%' => match bytes.get(at + 1..at + 3).and_then(byte_of) {
                Some(byte) if !is_unreserved(byte) => {
                    is_escaped = true;
                    3
                }
                _ => return None,
            },
            byte if is_unreserved(byte) => 1,
            _ => return None,
        };
    }
    if is_escaped { percent_decode_str(text).decode_utf8().ok() } else { Some(text.into()) }
}

pub(super) fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Parses two hexadecimal digits in upper case.
fn byte_of(digits: &[u8]) -> Option<u8> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    };
    Some(value(digits[0])? * 16 + value(digits[1])?)
}

fn is_now(amz_date: &str, day: &str) -> bool {
    let Some(signed) = parse_amz_date(amz_date) else { return false };
    let now = SystemTime::now();
    let apart = now.duration_since(signed).unwrap_or_else(|ahead| ahead.duration());
    amz_date.starts_with(day) && day.len() == 8 && apart < CLOCK_SKEW_MAX
}

/// Splits `text` at each `separator`, which must be ASCII. For short fields, this function needs fewer instructions
/// than [`str::split`].
fn fields(text: &str, separator: u8) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest.take()?;
        let Some((field, after)) = cut(text, separator) else { return Some(text) };
        rest = Some(after);
        Some(field)
    })
}

/// Returns the signed headers with their values, or `None` if a requirement is not met. The names must be sorted, and
/// each header must occur once and be printable ASCII. `host` and all `x-amz-` headers of the request must be signed.
fn signed_headers<'h, 'r>(
    head: &RequestHead<'h>,
    names: &'h str,
    room: &'r mut [(&'h str, &'h str); SIGNED_MAX],
) -> Option<&'r [(&'h str, &'h str)]> {
    let mut count = 0;
    for name in fields(names, b';') {
        let is_in_order = count == 0 || room[count - 1].0 < name;
        let is_lower = !name.bytes().any(|byte| byte.is_ascii_uppercase());
        if !is_in_order || !is_lower || count == SIGNED_MAX {
            return None;
        }
        room[count] = (name, value_of(head, name)?);
        count += 1;
    }
    let signed = &room[..count];
    let must_be_signed = |name: &str| {
        name.eq_ignore_ascii_case("host")
            || name.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("x-amz-"))
    };
    // Each signed name occurs in exactly one header, so equal counts mean that all headers that must be signed are
    // signed.
    let due = head.headers.iter().filter(|header| must_be_signed(header.name)).count();
    let done = signed.iter().filter(|(name, _)| must_be_signed(name)).count();
    (due == done).then_some(signed)
}

/// Returns the value of a header; `None` if the header does not occur exactly once, or is not printable ASCII. A
/// printable ASCII value has only one normal form.
fn value_of<'h>(head: &RequestHead<'h>, name: &str) -> Option<&'h str> {
    let mut found = None;
    for header in head.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name)) {
        if found.replace(header).is_some() {
            return None;
        }
    }
    head.value(found.filter(|header| is_printable(header.value))?)
}
