//! Checks the form of a signature before the signature itself is verified. Errors have AWS's codes and messages, which
//! clients and their users know.

use fordway_wire::date;
use fordway_wire::date::UtcTime;
use fordway_wire::sigv4::MAX_EXPIRES_S;
use http::header::{AUTHORIZATION, DATE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use percent_encoding::percent_decode_str;

use crate::aws_chunked::{CONTENT_SHA256, TRAILER, check_decoded_length};
use crate::gate::GateRefusal;
use crate::identity::is_region;
use crate::message::composed;
use crate::signature_v2;

pub(crate) const ALGORITHM: &str = "AWS4-HMAC-SHA256";
pub(crate) const AMZ_DATE: HeaderName = HeaderName::from_static("x-amz-date");

/// Checks the form of a request's signature. An anonymous request passes this check; the rules of the bucket are
/// checked later. If only `Date` contains the time of the request, adds the `x-amz-date` header, which the S3 layer
/// reads. Errors: AWS's errors, one for each kind of malformed signature; `InvalidArgument` for several `Authorization`
/// headers.
pub(crate) fn check_form(
    headers: &mut HeaderMap,
    uri: &Uri,
    region: &str,
    allows_version_2: bool,
) -> Result<(), GateRefusal> {
    // The S3 layer treats a request with several such headers as anonymous.
    if headers.get_all(AUTHORIZATION).iter().nth(1).is_some() {
        let message = "the header authorization appears twice; send it once".to_owned();
        return Err(bad("InvalidArgument", message));
    }
    let query = PresignedParameters::read(uri);
    let header = headers.get(AUTHORIZATION).map(|value| value.to_str().unwrap_or_default().to_owned());
    if header.is_some() && (query.is_signed() || query.has("Signature")) {
        return Err(signed_twice());
    }
    let is_version_2 = header.as_deref().is_some_and(|value| value.starts_with("AWS "));
    if is_version_2 || query.has("Signature") {
        let is_whole = !is_version_2 || header.is_some_and(|value| value.contains(':'));
        return match allows_version_2 && is_whole {
            true if is_version_2 => signature_v2::check_date(headers),
            true => Ok(()),
            false => Err(version_2_refused()),
        };
    }
    match header {
        None if query.is_signed() => query.check(region),
        Some(value) => {
            check_header(&value, headers, region)?;
            check_payload_hash(headers)
        }
        None => Ok(()),
    }
}

/// Returns the error for a request that has both a signed URL and the `Authorization` header. The conditions of a
/// policy must not depend on a header that nobody verifies.
fn signed_twice() -> GateRefusal {
    let words = "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query string \
                 parameter or the Authorization header should be specified";
    let detail = "send the presigned URL without the header Authorization";
    bad("InvalidArgument", composed(words, detail, &[("ArgumentName", "Authorization")]))
}

/// AWS's message for a request that does not contain its time.
pub(crate) const NO_DATE: &str = "AWS authentication requires a valid Date or x-amz-date header.";

/// Returns the error for a version 2 signature, with S3's exact message. s3cmd recognizes this message, and then signs
/// the request again with Signature Version 4.
pub(crate) fn version_2_refused() -> GateRefusal {
    let words =
        "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.";
    let detail =
        "in boto3 that is Config(signature_version='s3v4'); or start the gateway with --signature-v2";
    bad("InvalidRequest", composed(words, detail, &[]))
}

fn bad(code: &'static str, message: String) -> GateRefusal {
    GateRefusal { status: StatusCode::BAD_REQUEST, code, message }
}

fn wrong_argument(words: &str, name: &str, value: &str) -> GateRefusal {
    bad("InvalidArgument", composed(words, "", &[("ArgumentName", name), ("ArgumentValue", value)]))
}

/// An error in a credential. The caller adds the name of the header or parameter before `words`.
pub(crate) struct CredentialError {
    pub(crate) words: String,
    region: Option<String>,
}

/// Checks a credential: the access key, followed by the scope (day, region and service).
pub(crate) fn check_credential(
    credential: &str,
    day: Option<&str>,
    region: &str,
) -> Result<(), CredentialError> {
    let wrong = |words: String| Err(CredentialError { words, region: None });
    let parts: Vec<&str> = credential.split('/').collect();
    let [_, date, asked, service, end] = parts[..] else {
        return wrong(
            "the Credential is mal-formed; expecting \"<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request\"."
                .to_owned(),
        );
    };
    if end != "aws4_request" {
        return wrong(format!("incorrect terminal \"{end}\". This endpoint uses \"aws4_request\"."));
    }
    if !["s3", "sts"].contains(&service) {
        return wrong(format!("incorrect service \"{service}\". This endpoint belongs to \"s3\"."));
    }
    if date.len() != 8 || !date.bytes().all(|byte| byte.is_ascii_digit()) {
        let form = "This date in the credential must be in the format \"yyyyMMdd\".";
        return wrong(format!("incorrect date format \"{date}\". {form}"));
    }
    // The error names the right region, because s3cmd signs for `US` until it learns the right region.
    if !is_region(asked) {
        let words = format!("the region \"{asked}\" is wrong; expecting \"{region}\"");
        return Err(CredentialError { words, region: Some(region.to_owned()) });
    }
    match day.filter(|day| *day != date) {
        Some(day) => {
            let words = format!("Invalid credential date \"{date}\".");
            wrong(format!("{words} This date is not the same as X-Amz-Date: \"{day}\"."))
        }
        None => Ok(()),
    }
}

fn malformed(why: &str) -> GateRefusal {
    header_refused(CredentialError { words: why.to_owned(), region: None })
}

fn header_refused(wrong: CredentialError) -> GateRefusal {
    let words = format!("The authorization header is malformed; {}", wrong.words);
    let facts: Vec<_> = wrong.region.iter().map(|region| ("Region", region.as_str())).collect();
    bad("AuthorizationHeaderMalformed", composed(&words, "", &facts))
}

fn check_header(value: &str, headers: &mut HeaderMap, region: &str) -> Result<(), GateRefusal> {
    let Some((algorithm, rest)) = value.split_once(' ') else {
        let words = "Authorization header is invalid -- one and only one ' ' (space) required.";
        return Err(wrong_argument(words, "Authorization", value));
    };
    if algorithm != ALGORITHM {
        return Err(wrong_argument("Unsupported Authorization Type", "Authorization", algorithm));
    }
    let credential = check_components(rest)?;
    let Some(stamp) = stamp(headers) else {
        check_credential(credential, None, region).map_err(header_refused)?;
        let message = composed(NO_DATE, "write x-amz-date as 20130524T000000Z", &[]);
        return Err(GateRefusal { status: StatusCode::FORBIDDEN, code: "AccessDenied", message });
    };
    check_credential(credential, stamp.get(..8), region).map_err(header_refused)?;
    if let Ok(value) = HeaderValue::from_str(&stamp) {
        headers.insert(AMZ_DATE, value);
    }
    Ok(())
}

/// Checks that an `Authorization` header has its three components, and returns the credential.
fn check_components(text: &str) -> Result<&str, GateRefusal> {
    let components: Vec<&str> = text.split(',').map(str::trim).collect();
    if components.len() != 3 {
        return Err(malformed(
            "the authorization header requires three components: Credential, SignedHeaders, and Signature.",
        ));
    }
    let mut credential = "";
    let mut missing = vec!["Credential", "SignedHeaders", "Signature"];
    for component in components {
        let Some((name, value)) = component.split_once('=') else {
            return Err(malformed(&format!("the authorization component \"{component}\" is malformed.")));
        };
        missing.retain(|known| *known != name);
        if name == "Credential" {
            credential = value;
        }
    }
    match missing.first() {
        Some(name) => Err(malformed(&format!("missing {name}."))),
        None => Ok(credential),
    }
}

/// Returns the time in the headers of a request, in the format that signatures use: `20130524T000000Z`.
fn stamp(headers: &HeaderMap) -> Option<String> {
    match headers.get(AMZ_DATE).map(|value| value.to_str().unwrap_or_default()) {
        Some(text) if is_stamp(text) => Some(text.to_owned()),
        Some(text) if !text.is_empty() => None,
        _ => {
            let date = headers.get(DATE)?.to_str().ok()?;
            Some(UtcTime::from(date::parse_http(date)?).amz_date())
        }
    }
}

fn is_stamp(text: &str) -> bool {
    let is_fit = |(at, byte): (usize, u8)| match at {
        8 => byte == b'T',
        15 => byte == b'Z',
        _ => byte.is_ascii_digit(),
    };
    text.len() == 16 && text.bytes().enumerate().all(is_fit)
}

fn check_payload_hash(headers: &HeaderMap) -> Result<(), GateRefusal> {
    const KNOWN: [&str; 6] = [
        "UNSIGNED-PAYLOAD",
        "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
        "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD",
        "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD-TRAILER",
    ];
    let Some(value) = headers.get(CONTENT_SHA256) else {
        let words = "Missing required header for this request: x-amz-content-sha256";
        let detail = "send the SHA-256 of the body, or UNSIGNED-PAYLOAD; for curl, `fordway env curl` prints the options";
        return Err(bad("InvalidRequest", composed(words, detail, &[])));
    };
    let value = value.to_str().unwrap_or_default();
    let is_hash = value.len() == 64 && value.bytes().all(|byte| byte.is_ascii_hexdigit());
    match is_hash || KNOWN.contains(&value) {
        true if value.starts_with("STREAMING-") => check_decoded_length(headers),
        true => Ok(()),
        false => {
            let known = KNOWN.join(", ");
            let words = format!("x-amz-content-sha256 must be {known} or a valid sha256 value.");
            Err(wrong_argument(&words, "x-amz-content-sha256", value))
        }
    }
}

/// Adds an empty `x-amz-trailer` header if the request has no such header. The S3 layer requires this header, although
/// a chunked body need not have trailers. This function must be called after the signature's form has been checked.
pub(crate) fn announce_trailers(headers: &mut HeaderMap) {
    if headers.get(CONTENT_SHA256).is_some_and(|value| value.as_bytes().ends_with(b"-TRAILER"))
        && !headers.contains_key(TRAILER)
    {
        headers.insert(TRAILER, HeaderValue::from_static(""));
    }
}

/// The parameters of a presigned URL, decoded.
struct PresignedParameters(Vec<(String, String)>);

impl PresignedParameters {
    /// The parameters that a presigned URL must have, in the order in which AWS checks them.
    const REQUIRED: [&str; 6] = [
        "X-Amz-Algorithm",
        "X-Amz-Credential",
        "X-Amz-Signature",
        "X-Amz-Date",
        "X-Amz-SignedHeaders",
        "X-Amz-Expires",
    ];

    fn read(uri: &Uri) -> Self {
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let pairs = uri.query().unwrap_or_default().split('&');
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        PresignedParameters(pairs.map(|(name, value)| (decoded(name), decoded(value))).collect())
    }

    fn get(&self, wanted: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str())
    }

    fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Returns whether the URL has any parameter that only presigned URLs have.
    fn is_signed(&self) -> bool {
        ["X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Signature"].iter().any(|name| self.has(name))
    }

    fn check(&self, region: &str) -> Result<(), GateRefusal> {
        let wrong = |words: &str| Err(bad("AuthorizationQueryParametersError", composed(words, "", &[])));
        let values = Self::REQUIRED.map(|name| self.get(name).filter(|value| !value.is_empty()));
        let [Some(algorithm), Some(credential), Some(signature), Some(date), Some(_), Some(expires)] = values
        else {
            return wrong(
                "Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, \
                 X-Amz-Signature, X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters.",
            );
        };
        match algorithm {
            ALGORITHM => {}
            "AWS4-ECDSA-P256-SHA256" => return wrong("X-Amz-Algorithm only supports \"AWS4-HMAC-SHA256\""),
            _ => {
                return wrong(
                    "X-Amz-Algorithm only supports \"AWS4-HMAC-SHA256 and AWS4-ECDSA-P256-SHA256\"",
                );
            }
        }
        if !is_stamp(date) {
            return wrong("X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\"");
        }
        if let Err(found) = check_credential(credential, date.get(..8), region) {
            // A date that differs from `X-Amz-Date` is not an error in the form of the credential.
            let is_of_date = found.words.starts_with("Invalid credential date");
            let place = if is_of_date { "" } else { "Error parsing the X-Amz-Credential parameter; " };
            return wrong(&format!("{place}{}", found.words));
        }
        match expires.strip_prefix('-').map_or(expires.parse::<u64>(), str::parse) {
            Err(_) => wrong("X-Amz-Expires should be a number"),
            Ok(_) if expires.starts_with('-') => wrong("X-Amz-Expires must be non-negative"),
            Ok(seconds) if seconds > MAX_EXPIRES_S => wrong(
                "X-Amz-Expires must be less than a week (in seconds); that is, the given X-Amz-Expires must \
                 be less than 604800 seconds",
            ),
            Ok(_) if is_signature(signature) => Ok(()),
            // This check precedes the S3 layer, which would report missing parameters instead of a wrong signature.
            Ok(_) => Err(GateRefusal {
                status: StatusCode::FORBIDDEN,
                code: "SignatureDoesNotMatch",
                message: composed(MISMATCH, "X-Amz-Signature is cut or changed; copy the whole URL", &[]),
            }),
        }
    }
}

/// The number of hexadecimal digits of a signature.
const SIGNATURE_DIGITS: usize = 64;

/// AWS's message for a signature that does not match the request and the secret key.
const MISMATCH: &str = "The request signature we calculated does not match the signature you provided. Check your key \
     and signing method.";

/// Returns whether a string has the form of a version 4 signature.
fn is_signature(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == SIGNATURE_DIGITS && text.bytes().all(is_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_whose_signature_is_cut_has_a_wrong_signature() {
        let whole = "a1".repeat(32);
        let code = |signature: &str| {
            let uri = format!(
                "/b/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=A%2F20130524%2Fus-east-1%2Fs3%2Faws4_request\
                 &X-Amz-Date=20130524T000000Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Signature={signature}"
            );
            check_form(&mut HeaderMap::new(), &uri.parse().unwrap(), "us-east-1", false)
                .map_err(|refusal| refusal.code)
        };
        assert_eq!(code(&whole), Ok(()));
        for cut in [&whole[1..], &format!("{whole}x"), &whole.to_uppercase(), &whole.replacen('a', "g", 1)] {
            assert_eq!(code(cut), Err("SignatureDoesNotMatch"), "{cut}");
        }
        assert_eq!(code(""), Err("AuthorizationQueryParametersError"));
    }

    /// The conditions of a policy must not depend on a header that nobody verifies.
    #[test]
    fn a_signed_url_excludes_the_header_authorization() {
        for query in ["X-Amz-Signature=a", "X-Amz-Credential=a", "Signature=a&AWSAccessKeyId=b&Expires=1"] {
            for header in ["", "Bearer x", "AWS4-x", "AWS a:b", "AWS4-HMAC-SHA256 Credential=a"] {
                let mut headers = HeaderMap::from_iter([(AUTHORIZATION, header.parse().unwrap())]);
                let uri = format!("/b/k?{query}").parse().unwrap();
                for allows_version_2 in [false, true] {
                    let refused = check_form(&mut headers, &uri, "us-east-1", allows_version_2);
                    let refused = refused.map_err(|refusal| (refusal.status, refusal.code));
                    assert_eq!(
                        refused,
                        Err((StatusCode::BAD_REQUEST, "InvalidArgument")),
                        "{query} {header}"
                    );
                }
            }
        }
    }
}
