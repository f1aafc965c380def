//! Maps unsuccessful responses to errors, and decides whether another attempt may succeed.

use std::time::{Duration, SystemTime};

use fordway_store::{Error, ErrorKind};
use fordway_wire::s3_xml::{ErrorDocument, error_document};
use fordway_wire::{date, s3_error};

use crate::s3::S3Config;
use crate::s3::request::S3Call;
use fordway_http::retry::retry_after;
use fordway_http::{HttpResponse, ReplayPolicy};

/// The maximum number of bytes read from an error document.
const MAX_DOCUMENT_BYTES: usize = 256 * 1024;

/// Headers in which gateways send the error code if the response has no body (HEAD).
const CODE_HEADERS: [&str; 2] = ["x-fordway-error-code", "x-minio-error-code"];

/// A failed attempt at a call.
pub(super) struct FailedAttempt {
    pub(super) error: Error,
    /// Whether another attempt is allowed and may succeed.
    pub(super) may_pass: bool,
    /// The time for which the server asks the client to wait before the next attempt.
    pub(super) retry_after: Option<Duration>,
}

impl FailedAttempt {
    /// Creates the failure for an error that occurs after the response's head has been received.
    pub(super) fn while_receiving(error: Error, call: &S3Call) -> Self {
        let may_pass = match call.replay {
            ReplayPolicy::Idempotent => is_passing(error.kind()) || error.kind() == ErrorKind::BadDigest,
            // Without a code, the response was lost.
            ReplayPolicy::IfUnsent => {
                call.is_sent_again_if_failed && is_passing(error.kind()) && error.s3_code().is_some()
            }
        };
        FailedAttempt { error, may_pass, retry_after: None }
    }
}

/// Returns whether a connection or service failure of this kind may be temporary.
pub(super) fn is_passing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Io)
}

/// Returns the failure that a response reports.
pub(super) fn of_answer(
    mut response: HttpResponse,
    call: &S3Call,
    config: &S3Config,
    sent: SystemTime,
) -> FailedAttempt {
    let document = response.read_rest(MAX_DOCUMENT_BYTES).unwrap_or_default();
    let mut said = error_document(&document).ok().flatten().unwrap_or_default();
    if said.code.is_empty() {
        let header = CODE_HEADERS.iter().find_map(|name| response.header(name));
        said.code = header.unwrap_or_default().to_owned();
    }
    if said.region.is_empty() {
        said.region = response.header("x-amz-bucket-region").unwrap_or_default().to_owned();
    }
    if said.request_id.is_empty() {
        said.request_id = response.header("x-amz-request-id").unwrap_or_default().to_owned();
    }
    let status = response.status();
    let kind = kind_of(status, &said, call);
    let wish = response.header("retry-after").and_then(|text| retry_after(text, SystemTime::now()));
    let error = with_code(Error::new(kind, detail(&response, &said, kind, config, sent)), status, &said);
    FailedAttempt {
        error: match response.header("x-amz-delete-marker") {
            Some("true") => error.at_delete_marker(),
            _ if copies_marker(&said) => error.at_delete_marker(),
            _ => error,
        },
        may_pass: match call.replay {
            ReplayPolicy::Idempotent => {
                matches!(status, 408 | 429 | 500 | 502..=504) || kind == ErrorKind::Timeout
            }
            // With status 429 or 503, the server did not act on the request. A status 500 without a code may come from
            // a proxy, while the server still acts on the request.
            ReplayPolicy::IfUnsent => {
                let has_failed = status == 500 && !said.code.is_empty();
                matches!(status, 429 | 503) || (call.is_sent_again_if_failed && has_failed)
            }
        },
        retry_after: wish,
    }
}

/// Returns the error in a response with `status` and the body `document`.
pub(super) fn of_status(status: u16, document: &[u8], call: &S3Call, config: &S3Config) -> Error {
    let said = error_document(document).ok().flatten().unwrap_or_default();
    let kind = kind_of(status, &said, call);
    let mut detail = advised_sentence(status, &said, kind);
    add_credentials(&mut detail, status, config);
    with_code(Error::new(kind, detail), status, &said)
}

/// Returns the error of a call whose response has status 200 and an error document.
pub(super) fn of_document(said: &ErrorDocument) -> Error {
    let kind = s3_error::from_s3(500, &said.code);
    with_code(Error::new(kind, sentence(200, said, kind)), 500, said)
}

/// Checks that the body of a successful response is empty or an XML document. Any other body shows that the response is
/// not from an S3 service, but for example from the login page of a proxy, so the call had no effect. Errors:
/// `BadResponse`; the error in the document, if it is an error document.
pub(super) fn check_done(response: &mut HttpResponse) -> Result<(), Error> {
    let document = response.read_document()?;
    let text = document.trim_ascii_start();
    if text.is_empty() {
        return Ok(());
    }
    let is_html = |text: &[u8]| {
        let starts_with = |start: &str| {
            text.get(..start.len()).is_some_and(|found| found.eq_ignore_ascii_case(start.as_bytes()))
        };
        starts_with("<!doctype html") || starts_with("<html")
    };
    match error_document(&document) {
        Ok(Some(said)) => Err(of_document(&said)),
        Ok(None) if !is_html(text) => Ok(()),
        _ => {
            let (status, kind) =
                (response.status(), response.header("content-type").unwrap_or("unknown type"));
            let detail = format!(
                "the response has status {status} but a body ({kind}) that is not from an S3 service; check the \
                 endpoint"
            );
            Err(Error::new(ErrorKind::BadResponse, detail))
        }
    }
}

/// Records the server's error code, unless the rest of the response says more about the failure than the code.
fn with_code(error: Error, status: u16, said: &ErrorDocument) -> Error {
    let is_of_code = s3_error::from_s3(status, &said.code) == error.kind();
    let code = if said.code.is_empty() { code_of(status) } else { &said.code };
    if is_of_code || is_elsewhere(status, said) { error.with_s3_code(code) } else { error }
}

/// Returns the error code for a response without a code (such as a response to HEAD, or from a proxy), if the status
/// has a single meaning. Without a code, an `Unavailable` error could also mean that there was no response.
fn code_of(status: u16) -> &'static str {
    match status {
        301 | 308 => "PermanentRedirect",
        302 | 307 => "TemporaryRedirect",
        429 => "SlowDown",
        502..=504 => "ServiceUnavailable",
        _ => "",
    }
}

fn kind_of(status: u16, said: &ErrorDocument, call: &S3Call) -> ErrorKind {
    if is_elsewhere(status, said) {
        return ErrorKind::InvalidArgument;
    }
    if status == 400 && call.selects_version() && says_no_version(said) {
        return ErrorKind::NoSuchVersion;
    }
    // For the following errors, AWS's message is more precise than its code.
    if copies_marker(said) {
        return ErrorKind::MethodNotAllowed;
    }
    if said.code == "InvalidRequest" && said.message.contains("x-amz-mp-object-size") {
        return ErrorKind::IncompleteBody;
    }
    if said.code == "BadRequest" && said.message.contains("tags cannot be greater") {
        return ErrorKind::InvalidTag;
    }
    if said.code == "InvalidArgument" && said.message.starts_with("Range specified is not valid") {
        return ErrorKind::InvalidRange;
    }
    match s3_error::from_s3(status, &said.code) {
        // A 404 without a code means that the bucket or the object of the request is missing. If the 404 has a code
        // that this client does not know, a configuration may be missing although the bucket exists.
        ErrorKind::NoSuchKey if call.key.is_empty() && speaks_of_bucket(&said.code) => {
            ErrorKind::NoSuchBucket
        }
        ErrorKind::NoSuchKey if call.key.is_empty() && !call.is_for_document => ErrorKind::InvalidArgument,
        ErrorKind::NoSuchKey if said.code.is_empty() && call.names("versionId") => ErrorKind::NoSuchVersion,
        kind => kind,
    }
}

/// Returns whether the error means that the requested version of a copy's source is a delete marker.
fn copies_marker(said: &ErrorDocument) -> bool {
    said.code == "InvalidRequest" && said.message.contains("refer to a delete marker by version id")
}

/// Returns whether the error means that the service never generates version IDs in the form of the requested version
/// ID. Also returns true if the response has no message, like every response to HEAD, and no more specific code.
fn says_no_version(said: &ErrorDocument) -> bool {
    let says_nothing = said.message.is_empty() && matches!(said.code.as_str(), "" | "InvalidArgument");
    says_nothing || said.message.starts_with("Invalid version id")
}

/// Returns whether the error code of a 404 contains no more information than the status, which then means that the
/// bucket is missing.
fn speaks_of_bucket(code: &str) -> bool {
    ["", "NotFound", "NoSuchKey", "404"].contains(&code)
}

/// Returns whether the bucket is in another region or at another endpoint.
fn is_elsewhere(status: u16, said: &ErrorDocument) -> bool {
    matches!(status, 301 | 302 | 307 | 308) || said.code == "AuthorizationHeaderMalformed"
}

fn detail(
    response: &HttpResponse,
    said: &ErrorDocument,
    kind: ErrorKind,
    config: &S3Config,
    sent: SystemTime,
) -> String {
    let mut detail = advised_sentence(response.status(), said, kind);
    if is_elsewhere(response.status(), said) {
        detail.push_str(&direction(response, said, config));
    }
    if kind == ErrorKind::RequestTimeTooSkewed {
        let server = [said.server_time.as_str(), response.header("date").unwrap_or("an unknown time")];
        let server = server.into_iter().find(|time| !time.is_empty()).unwrap_or_default();
        let ours = date::format_http(sent);
        detail.push_str(&format!("; this machine's clock says {ours}, the server's says {server}"));
    }
    add_credentials(&mut detail, response.status(), config);
    detail
}

/// Adds the credentials of the request to the message, if the service may have refused the request because of them.
fn add_credentials(detail: &mut String, status: u16, config: &S3Config) {
    if matches!(status, 401 | 403) {
        detail.push_str(&format!("; the request was made with {}", config.credentials.described()));
    }
}

fn direction(response: &HttpResponse, said: &ErrorDocument, config: &S3Config) -> String {
    if !said.region.is_empty() {
        let (right, asked) = (&said.region, &config.region);
        return format!(
            "; the bucket is in region {right}, the request was for {asked}: set AWS_REGION={right}"
        );
    }
    let elsewhere =
        if said.endpoint.is_empty() { response.header("location") } else { Some(&*said.endpoint) };
    match elsewhere {
        Some(endpoint) => format!("; use the endpoint {endpoint}"),
        None => format!(
            "; the bucket is not at this endpoint or not in region {}: set AWS_ENDPOINT_URL and AWS_REGION to those of \
             the bucket",
            config.region
        ),
    }
}

/// Returns the result of [`sentence`]. For a refusal, appends advice, unless the result already contains advice. The
/// error itself would not add advice, because facts about the request are appended to the result later.
fn advised_sentence(status: u16, said: &ErrorDocument, kind: ErrorKind) -> String {
    let sentence = sentence(status, said, kind);
    let general = match kind {
        // The usual advice is also about files, so it applies only if the server's message contains it.
        ErrorKind::AccessDenied if !said.message.ends_with(kind.advice()) => {
            "check the permissions of the access key"
        }
        kind => kind.advice(),
    };
    let is_complete = general.is_empty() || sentence.contains("; ") || !matches!(status, 401 | 403);
    if is_complete { sentence } else { format!("{sentence}; {general}") }
}

/// Returns the status with the server's message, code and request ID, or only the status if there is no message.
fn sentence(status: u16, said: &ErrorDocument, kind: ErrorKind) -> String {
    let id = match said.request_id.as_str() {
        "" => String::new(),
        id => format!(", request {id}"),
    };
    match (own_words(said.message.trim_end_matches('.'), kind), said.code.as_str()) {
        ("", "") => format!("HTTP status {status}{id}"),
        ("", code) => format!("{code} (HTTP status {status}{id})"),
        (message, code) => format!("{message} ({code}, HTTP status {status}{id})"),
    }
}

/// Returns the part of a server's message that our own error does not already contain. A message from our gateway
/// begins with the object's address and ends with advice. Our own error also contains the address, and the advice
/// unless it is specific to the cause. Returns an empty string if only the name of the error kind remains.
pub(super) fn own_words(message: &str, kind: ErrorKind) -> &str {
    let ending = match kind.advice() {
        "" => String::new(),
        advice => format!("; {advice}"),
    };
    let words = match message.strip_suffix(&ending) {
        Some(words) => words,
        None if message.contains("; ") => message,
        None => return message,
    };
    let words = match words.strip_prefix("s3://").and_then(|rest| rest.split_once(": ")) {
        Some((_, words)) => words,
        None => words,
    };
    if words == kind.name() { "" } else { words }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(message: &str) -> String {
        let said = ErrorDocument {
            code: "NoSuchKey".to_owned(),
            message: message.to_owned(),
            ..ErrorDocument::default()
        };
        sentence(404, &said, ErrorKind::NoSuchKey)
    }

    #[test]
    fn what_a_gateway_of_ours_says_is_not_said_twice() {
        let advice = ErrorKind::NoSuchKey.advice();
        assert_eq!(said(&format!("s3://b/k: NoSuchKey; {advice}")), "NoSuchKey (HTTP status 404)");
        let whole = said(&format!("s3://b/k: it went away: just now; {advice}"));
        assert_eq!(whole, "it went away: just now (NoSuchKey, HTTP status 404)");
        assert_eq!(said(&format!("gone; {advice}")), "gone (NoSuchKey, HTTP status 404)");
    }

    #[test]
    fn a_refusal_has_the_advice_that_fits() {
        let refused = |message: &str| {
            let said = ErrorDocument {
                code: "AccessDenied".to_owned(),
                message: message.to_owned(),
                ..ErrorDocument::default()
            };
            advised_sentence(403, &said, ErrorKind::AccessDenied)
        };
        assert_eq!(
            refused("s3://b/k: this access key is read-only; use another"),
            "this access key is read-only; use another (AccessDenied, HTTP status 403)"
        );
        assert_eq!(
            refused("Access Denied."),
            "Access Denied (AccessDenied, HTTP status 403); check the permissions of the access key"
        );
        let files = ErrorKind::AccessDenied.advice();
        assert_eq!(
            refused(&format!("s3://b/k: permission denied; {files}")),
            format!("permission denied (AccessDenied, HTTP status 403); {files}")
        );
    }

    #[test]
    fn a_kind_without_advice_has_just_its_place_before_it() {
        let kind = ErrorKind::BucketAlreadyOwnedByYou;
        assert_eq!(own_words("s3://b: BucketAlreadyOwnedByYou", kind), "");
    }

    #[test]
    fn what_others_say_is_theirs() {
        assert_eq!(said("s3://b/k: gone."), "s3://b/k: gone (NoSuchKey, HTTP status 404)");
        assert_eq!(said(""), "NoSuchKey (HTTP status 404)");
    }
}
