//! Version 2 signatures, for gateways that accept them. The S3 layer verifies the signatures. This module checks the
//! dates of signatures, and appends a slash to a bucket's path if the client signed the path with a slash.

use std::borrow::Cow;
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fordway_wire::{date, sigv2};
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::header::{AUTHORIZATION, CONTENT_TYPE, DATE};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, Request, StatusCode, Uri};
use percent_encoding::percent_decode_str;

use crate::Users;
use crate::gate::GateRefusal;
use crate::identity::CLOCK_SKEW_MAX;
use crate::message::composed;
use crate::signature::{AMZ_DATE, NO_DATE};

const CONTENT_MD5: HeaderName = HeaderName::from_static("content-md5");

/// Checks the date of a version 2 signature. Without this check, a request could be replayed forever. Presigned URLs
/// need no such check, because they contain their expiry time.
pub(crate) fn check_date(headers: &HeaderMap) -> Result<(), GateRefusal> {
    let refused = |code, message| Err(GateRefusal { status: StatusCode::FORBIDDEN, code, message });
    let stated = headers.get(AMZ_DATE).or_else(|| headers.get(DATE));
    let date = stated.and_then(|value| value.to_str().ok()).and_then(date_of_any_weekday);
    let Some(date) = date.filter(|date| *date > SystemTime::UNIX_EPOCH) else {
        return refused("AccessDenied", composed(NO_DATE, "send an HTTP date", &[]));
    };
    let now = SystemTime::now();
    let skew = now.duration_since(date).unwrap_or_else(|ahead| ahead.duration());
    match skew <= CLOCK_SKEW_MAX {
        true => Ok(()),
        false => {
            refused("RequestTimeTooSkewed", "the clocks differ by over 15 minutes; set your clock".to_owned())
        }
    }
}

/// Parses an HTTP date. A wrong weekday is accepted, because the rest of the date determines the time.
fn date_of_any_weekday(text: &str) -> Option<SystemTime> {
    let Some((_, rest)) = text.split_once(", ") else { return date::parse_http(text) };
    let days = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
    days.iter().find_map(|day| date::parse_http(&format!("{day}, {rest}")))
}

/// Appends a slash to the path of a bucket if the signature covers a path with a slash, because boto3 requests
/// `/bucket` and signs `/bucket/`. The S3 layer verifies a signature only for the path of the request.
pub(crate) fn spell_path_as_signed<B>(request: &mut Request<B>, users: &Users) {
    let Some((access_key, signature)) = credentials(request.headers()) else { return };
    let is_bucket = request.uri().path().rfind('/') == Some(0) && request.uri().path().len() > 1;
    let user = if is_bucket { users.find(access_key) } else { None };
    let Some(secret_key) = user.as_ref().and_then(|user| user.keys.as_ref()).map(|keys| &keys.secret_key)
    else {
        return;
    };
    let mut mac =
        Hmac::<sha1::Sha1>::new_from_slice(secret_key.as_bytes()).expect("HMAC takes keys of any size");
    mac.update(string_to_sign(request).as_bytes());
    if STANDARD.decode(signature).is_ok_and(|signature| mac.verify_slice(&signature).is_ok())
        && let Some(uri) = with_slash(request.uri())
    {
        *request.uri_mut() = uri;
    }
}

/// Returns the access key and the signature in the header of a version 2 signature.
fn credentials(headers: &HeaderMap) -> Option<(&str, &str)> {
    headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("AWS ")?.split_once(':')
}

/// Returns the string to sign for a bucket with a slash after its name.
fn string_to_sign<B>(request: &Request<B>) -> String {
    let headers = request.headers();
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let date = if headers.contains_key(AMZ_DATE) { "" } else { text(DATE) };
    let mut signed = format!("{}\n{}\n{}\n{date}\n", request.method(), text(CONTENT_MD5), text(CONTENT_TYPE));
    let mut names: Vec<_> = headers.keys().filter(|name| name.as_str().starts_with("x-amz-")).collect();
    names.sort_by_key(|name| name.as_str());
    for name in names {
        let values = headers.get_all(name).iter().map(|value| value.to_str().unwrap_or_default().trim());
        signed.push_str(&format!("{name}:{}\n", values.collect::<Vec<_>>().join(",")));
    }
    signed.push_str(&format!("{}/", request.uri().path()));
    let query = request.uri().query().unwrap_or_default();
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let pairs: Vec<_> = pairs.map(|(name, value)| (decoded(name), decoded(value))).collect();
    let pairs: Vec<_> = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    signed.push_str(&sigv2::signed_query(&pairs));
    signed
}

fn with_slash(uri: &Uri) -> Option<Uri> {
    let query = uri.query().map_or(Cow::Borrowed(""), |query| Cow::Owned(format!("?{query}")));
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(format!("{}/{query}", uri.path())).ok()?);
    Uri::from_parts(parts).ok()
}
