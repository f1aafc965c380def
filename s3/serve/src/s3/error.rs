//! Converts the store's errors to S3's, and refuses S3 operations that this gateway does not support. The error for an
//! unsupported operation contains the name of the operation. The gateway checks the signature and the bucket first, so
//! that unauthenticated clients learn nothing about buckets.

use fordway_store::{Bucket, Error, ErrorKind, GetOptions, Key, LEAVES_BUCKET, Store};
use fordway_sys::is_to_be_done_again;
use fordway_wire::s3_error::{ACCESS_DENIED, aws_message, detail, facts_of_target, to_s3};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use s3s::{S3Error, S3ErrorCode};

use crate::aws_chunked::{BAD_TRAILER, CUT_SHORT, LARGE_CHUNK, NOT_CHUNKED, SMALL_CHUNK};
use crate::gate::NO_ACLS;
use crate::http1::{BROKEN, STALLED};
use crate::limits::LimitRefusal;
use crate::message::composed;

/// The header with the code of an error, sent in addition to the document because a response to HEAD has no document.
const CODE_HEADER: HeaderName = HeaderName::from_static("x-fordway-error-code");

/// The response header that reports that a delete marker hides the object.
const DELETE_MARKER_HEADER: HeaderName = HeaderName::from_static("x-amz-delete-marker");

/// The result of an S3 operation.
pub(crate) type OperationResult<T> = Result<T, S3Failure>;

/// An error that will be sent to the client. The operator `?` converts errors from the store and from the S3 layer to
/// this type.
#[derive(Debug)]
pub(crate) struct S3Failure(pub(crate) S3Error);

impl S3Failure {
    /// Creates an error whose code corresponds to no [`ErrorKind`].
    pub(super) fn new(code: &str, status: StatusCode, message: impl Into<String>) -> Self {
        let mut error = S3Error::with_message(code_of(code), message.into());
        error.set_status_code(status);
        let mut failure = S3Failure(error);
        if let Ok(code) = HeaderValue::from_str(code) {
            failure.add_header(CODE_HEADER, code);
        }
        failure
    }

    /// Creates an error with AWS's message. `detail` is the gateway's own message, which may be empty.
    pub(crate) fn aws(code: &str, status: StatusCode, words: &str, detail: &str) -> Self {
        S3Failure::new(code, status, composed(words, detail, &[]))
    }

    /// Creates an error for an invalid argument, with AWS's message.
    pub(super) fn argument(words: &str, name: &str, value: &str) -> Self {
        let facts = [("ArgumentName", name), ("ArgumentValue", value)];
        let facts = if value.is_empty() { &facts[..1] } else { &facts[..] };
        S3Failure::new("InvalidArgument", StatusCode::BAD_REQUEST, composed(words, "", facts))
    }

    /// Returns whether the operation failed because it did not get a lock within the lock timeout. Such an operation
    /// may be repeated.
    pub(super) fn is_lock_timeout(&self) -> bool {
        self.0.headers().is_some_and(|headers| headers.contains_key(RETRY_AFTER))
    }

    /// Adds a header to the response.
    pub(super) fn add_header(&mut self, name: HeaderName, value: HeaderValue) {
        let mut headers = self.0.headers().cloned().unwrap_or_else(|| {
            // The S3 layer sets the type of the document only if no other header is set.
            HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/xml"))])
        });
        headers.insert(name, value);
        self.0.set_headers(headers);
    }
}

impl From<Error> for S3Failure {
    fn from(error: Error) -> Self {
        let (status, code) = to_s3(error.kind());
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // Errors for unsupported operations are not logged, because the client causes them. Errors from work that will
        // be repeated are not logged either.
        let is_ours = status.is_server_error() && error.kind() != ErrorKind::NotImplemented;
        let is_locked = error.kind() == ErrorKind::LockTimeout;
        if is_ours && !is_locked && !is_to_be_done_again() {
            tracing::error!(%error, "a request failed");
        }
        let mut failure = match error.kind() {
            ErrorKind::AccessDenied if is_by_object_lock(&error) => {
                S3Failure::aws(code, status, OBJECT_LOCK, &detail(&error))
            }
            // AWS has no error for a key that leads out of its bucket. Most programs show only the message, so the
            // message states the reason.
            ErrorKind::AccessDenied if error.leaves_bucket() => {
                S3Failure::aws(code, status, LEAVES_BUCKET, &detail(&error))
            }
            ErrorKind::AccessDenied => S3Failure::aws(code, status, ACCESS_DENIED, &detail(&error)),
            _ => S3Failure::new(code, status, text_of(code, &error)),
        };
        if is_locked {
            failure.add_header(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if error.is_at_delete_marker() {
            failure.add_header(DELETE_MARKER_HEADER, HeaderValue::from_static("true"));
        }
        failure
    }
}

/// Returns the string from which an error's document is made, with the names from the error's target if AWS's document
/// has them.
fn text_of(code: &str, error: &Error) -> String {
    let facts = facts_of_target(code, error.target());
    match aws_message(code) {
        Some(words) if !facts.is_empty() => composed(words, &detail(error), &facts),
        _ => detail(error),
    }
}

/// AWS's message for a change that a lock forbids.
const OBJECT_LOCK: &str = "Access Denied because object protected by object lock.";
/// The prefixes of error messages for failures that a lock causes. Only the message identifies these errors, because
/// they also arrive over the node protocol.
const LOCK_REASONS: [&str; 3] =
    ["the version has a legal hold", "the version is retained", "the present retention"];

/// Returns whether the cause of the error is the retention or the legal hold of a version.
fn is_by_object_lock(error: &Error) -> bool {
    LOCK_REASONS.iter().any(|reason| error.detail().starts_with(reason))
}

impl From<S3Error> for S3Failure {
    fn from(error: S3Error) -> Self {
        S3Failure(error)
    }
}

/// Returns the error for a request that exceeds a limit on its user.
pub(crate) fn beyond_limit(refusal: LimitRefusal) -> S3Error {
    let why = refusal.reason.why();
    let detail = format!("{why}; try again after {} s", refusal.retry_after_s);
    let words = "Please reduce your request rate.";
    let mut failure = S3Failure::aws("SlowDown", StatusCode::SERVICE_UNAVAILABLE, words, &detail);
    failure.add_header(RETRY_AFTER, HeaderValue::from(refusal.retry_after_s));
    failure.0
}

/// Converts a code to the S3 layer's type.
fn code_of(code: &str) -> S3ErrorCode {
    S3ErrorCode::from_bytes(code.as_bytes()).unwrap_or(S3ErrorCode::InternalError)
}

/// Converts the error from a body that could not be read. The types of these errors are private to the S3 layer, so
/// only their messages distinguish them.
pub(super) fn unreadable_body(error: &(dyn std::error::Error + Send + Sync)) -> S3Failure {
    let text = error.to_string();
    let says = |words: &str| text.contains(words);
    if says("Sha256Mismatch") {
        return wrong_sha256();
    }
    if says(SMALL_CHUNK) {
        let words = "Only the last chunk is allowed to have a size less than 8192 bytes";
        return S3Failure::aws("InvalidChunkSizeError", StatusCode::BAD_REQUEST, words, "send larger chunks");
    }
    if says(LARGE_CHUNK) {
        let message = format!("{LARGE_CHUNK}; sign smaller chunks, or send the body as UNSIGNED-PAYLOAD");
        return S3Failure::new("InvalidChunkSizeError", StatusCode::BAD_REQUEST, message);
    }
    if says(BAD_TRAILER) {
        return malformed_trailer(BAD_TRAILER);
    }
    if says("FormatError") || says("TooLarge") || says("TooMany") || says(NOT_CHUNKED) || says(CUT_SHORT) {
        let words = "The request body terminated unexpectedly";
        return S3Failure::aws("IncompleteBody", StatusCode::BAD_REQUEST, words, NOT_CHUNKED);
    }
    let (kind, detail) = if says(STALLED) {
        (ErrorKind::Timeout, STALLED)
    } else if says(BROKEN) {
        (ErrorKind::InvalidArgument, BROKEN)
    } else if says("SignatureMismatch") {
        (ErrorKind::SignatureDoesNotMatch, "a chunk's signature does not match")
    } else {
        (ErrorKind::IncompleteBody, "the body ended before its announced length")
    };
    Error::new(kind, detail).into()
}

/// Returns the error for trailers that differ from the announcement in the head. `detail` is the gateway's own message.
pub(super) fn malformed_trailer(detail: &str) -> S3Failure {
    let words = "The request contained trailing data that was not well-formed or did not conform to our published schema.";
    S3Failure::aws("MalformedTrailerError", StatusCode::BAD_REQUEST, words, detail)
}

/// Returns the error for a body whose SHA-256 differs from the signed SHA-256.
pub(super) fn wrong_sha256() -> S3Failure {
    let message = "the body does not match its x-amz-content-sha256; send it again";
    S3Failure::new("XAmzContentSHA256Mismatch", StatusCode::BAD_REQUEST, message)
}

/// AWS's message for an operation that is not implemented.
const NOT_IMPLEMENTED: &str = "A header you provided implies functionality that is not implemented.";

/// Returns the error for an unsupported operation. `has_document` is true if the request has a body.
pub(super) fn refusal(
    store: &dyn Store,
    (bucket, key): &(String, String),
    operation: &str,
    has_document: bool,
) -> S3Failure {
    // s3cmd copies the ACL of an object as a document. s3cmd continues after NotImplemented, but fails after AWS's
    // error.
    let is_access_list = has_document && operation == "PutObjectAcl";
    let checked = if is_access_list { Ok(()) } else { unconfigured(store, bucket, key, operation) };
    match checked {
        Err(failure) => failure,
        Ok(()) => {
            // Programs recognize AWS's message, and name the operation themselves.
            let detail = format!("{operation} is not supported");
            S3Failure::aws("NotImplemented", StatusCode::NOT_IMPLEMENTED, NOT_IMPLEMENTED, &detail)
        }
    }
}

/// Checks that the bucket of an unsupported operation exists, and refuses changes to the ACLs of objects. Errors: AWS's
/// errors for a bucket with ACLs disabled; errors from the store.
fn unconfigured(store: &dyn Store, bucket: &str, key: &str, operation: &str) -> OperationResult<()> {
    if bucket.is_empty() {
        return Ok(());
    }
    let bucket = Bucket::new(bucket)?;
    store.head_bucket(&bucket)?;
    match operation {
        "PutObjectAcl" => {
            store.head(&bucket, &Key::new(key)?, &GetOptions::default())?;
            Err(no_access_lists())
        }
        _ => Ok(()),
    }
}

fn no_access_lists() -> S3Failure {
    let detail =
        "objects have no ACLs of their own; remove the ACL, and use a policy to permit access to objects";
    S3Failure::aws("AccessControlListNotSupported", StatusCode::BAD_REQUEST, NO_ACLS, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_keeps_its_code_and_status() {
        for kind in ErrorKind::ALL {
            let (status, code) = to_s3(*kind);
            let S3Failure(error) = Error::new(*kind, "why").into();
            assert_eq!(error.code().as_str(), code);
            assert_eq!(error.status_code().unwrap().as_u16(), status, "{kind:?}");
        }
    }

    #[test]
    fn a_lock_has_a_message_of_its_own() {
        use fordway_store::{ObjectLock, Retention, RetentionMode};
        let now = std::time::SystemTime::now();
        let held = ObjectLock { retention: None, legal_hold: Some(true) };
        let mut refusals = vec![held.check_delete(now, true).unwrap_err()];
        for mode in RetentionMode::ALL {
            let retained =
                ObjectLock { retention: Some(Retention { mode, until_ms: u64::MAX }), legal_hold: None };
            refusals.push(retained.check_delete(now, false).unwrap_err());
            refusals.push(retained.with_retention(None, now, false).unwrap_err());
        }
        for refusal in refusals {
            assert!(is_by_object_lock(&refusal), "{refusal}");
            let S3Failure(error) = refusal.into();
            assert!(error.message().unwrap().starts_with(OBJECT_LOCK));
        }
        assert!(!is_by_object_lock(&Error::new(ErrorKind::AccessDenied, "permission denied")));
    }

    #[test]
    fn a_change_out_of_the_bucket_has_a_message_of_its_own() {
        let refusal = Error::new(ErrorKind::AccessDenied, format!("opening: {LEAVES_BUCKET}"));
        let S3Failure(error) = refusal.into();
        let message = error.message().unwrap();
        assert!(message.starts_with(LEAVES_BUCKET) && message.contains("\nopening: "), "{message}");
        assert_eq!(error.code().as_str(), "AccessDenied");
    }

    #[test]
    fn body_errors_are_told_apart() {
        let code = |text: &str| unreadable_body(&*Box::<dyn std::error::Error + Send + Sync>::from(text)).0;
        assert_eq!(code("UploadStreamError: Sha256Mismatch").code().as_str(), "XAmzContentSHA256Mismatch");
        assert_eq!(code("AwsChunkedStreamError: SignatureMismatch").code().as_str(), "SignatureDoesNotMatch");
        assert_eq!(code("UploadStreamError: Incomplete").code().as_str(), "IncompleteBody");
        assert_eq!(code(&format!("Underlying: {STALLED}")).code().as_str(), "RequestTimeout");
        assert_eq!(code(&format!("Underlying: {SMALL_CHUNK}")).code().as_str(), "InvalidChunkSizeError");
        assert_eq!(code(&format!("Underlying: {LARGE_CHUNK}")).code().as_str(), "InvalidChunkSizeError");
        assert_eq!(code(&format!("Underlying: {BAD_TRAILER}")).code().as_str(), "MalformedTrailerError");
    }
}
