//! S3's error codes and statuses for every [`ErrorKind`], in both directions.
//!
//! If S3 has a code for a kind, that code is used. If S3 has none (for a full disk or a quota, for example), the kind
//! has a code of our own: a Fordway client recovers the kind from this code, and other clients can still tell the class
//! of the failure from the HTTP status.

use fordway_store::ErrorKind;

/// Returns the HTTP status and the `Code` of S3's error document for `kind`.
pub const fn to_s3(kind: ErrorKind) -> (u16, &'static str) {
    match kind {
        ErrorKind::NoSuchBucket => (404, "NoSuchBucket"),
        ErrorKind::NoSuchKey => (404, "NoSuchKey"),
        ErrorKind::NoSuchUpload => (404, "NoSuchUpload"),
        ErrorKind::NoSuchVersion => (404, "NoSuchVersion"),
        ErrorKind::BucketAlreadyExists => (409, "BucketAlreadyExists"),
        ErrorKind::BucketAlreadyOwnedByYou => (409, "BucketAlreadyOwnedByYou"),
        ErrorKind::BucketNotEmpty => (409, "BucketNotEmpty"),
        ErrorKind::InvalidBucketName => (400, "InvalidBucketName"),
        ErrorKind::InvalidKey => (400, "InvalidURI"),
        ErrorKind::KeyTooLong => (400, "KeyTooLongError"),
        ErrorKind::InvalidRange => (416, "InvalidRange"),
        ErrorKind::InvalidArgument => (400, "InvalidArgument"),
        ErrorKind::InvalidTag => (400, "InvalidTag"),
        ErrorKind::NotModified => (304, "NotModified"),
        ErrorKind::PreconditionFailed => (412, "PreconditionFailed"),
        ErrorKind::ConditionalConflict => (409, "ConditionalRequestConflict"),
        ErrorKind::BadDigest => (400, "BadDigest"),
        ErrorKind::IncompleteBody => (400, "IncompleteBody"),
        ErrorKind::EntityTooLarge => (400, "EntityTooLarge"),
        ErrorKind::EntityTooSmall => (400, "EntityTooSmall"),
        ErrorKind::InvalidPart => (400, "InvalidPart"),
        ErrorKind::InvalidPartOrder => (400, "InvalidPartOrder"),
        ErrorKind::AccessDenied => (403, "AccessDenied"),
        ErrorKind::SignatureDoesNotMatch => (403, "SignatureDoesNotMatch"),
        ErrorKind::InvalidAccessKeyId => (403, "InvalidAccessKeyId"),
        ErrorKind::RequestTimeTooSkewed => (403, "RequestTimeTooSkewed"),
        ErrorKind::NoSpace => (507, "InsufficientStorage"),
        ErrorKind::QuotaExceeded => (507, "QuotaExceeded"),
        ErrorKind::ReadOnly => (403, "ReadOnlyFileSystem"),
        ErrorKind::TooManyOpenFiles => (503, "TooManyOpenFiles"),
        ErrorKind::NotImplemented => (501, "NotImplemented"),
        ErrorKind::MethodNotAllowed => (405, "MethodNotAllowed"),
        ErrorKind::Unavailable => (503, "ServiceUnavailable"),
        ErrorKind::LockTimeout => (503, "SlowDown"),
        ErrorKind::Timeout => (400, "RequestTimeout"),
        ErrorKind::BadResponse => (502, "BadGateway"),
        ErrorKind::Corrupt => (500, "CorruptObject"),
        ErrorKind::Interrupted => (503, "RequestInterrupted"),
        ErrorKind::Io => (500, "InternalError"),
        ErrorKind::Internal => (500, "InternalFailure"),
    }
}

/// Returns the kind of error that a server's response reports. `code` is empty if there was no error document (as for
/// HEAD). If the code is empty or unknown, the status determines the kind.
pub fn from_s3(status: u16, code: &str) -> ErrorKind {
    // Another server may send `SlowDown` for any reason, so it does not mean `LockTimeout`.
    let is_said = |kind: &&ErrorKind| **kind != ErrorKind::LockTimeout && to_s3(**kind).1 == code;
    if let Some(kind) = ErrorKind::ALL.iter().find(is_said) {
        return *kind;
    }
    match (code, status) {
        ("SlowDown" | "Busy", _) => ErrorKind::Unavailable,
        ("InvalidDigest" | "XAmzContentSHA256Mismatch" | "XAmzContentChecksumMismatch", _) => {
            ErrorKind::BadDigest
        }
        ("InvalidBucketState", _) => ErrorKind::InvalidArgument,
        ("InvalidPartNumber", _) => ErrorKind::InvalidPart,
        ("RequestExpired" | "ExpiredToken" | "InvalidToken", _) => ErrorKind::AccessDenied,
        ("XMinioStorageFull", _) => ErrorKind::NoSpace,
        (_, 304) => ErrorKind::NotModified,
        (_, 401 | 403) => ErrorKind::AccessDenied,
        (_, 404) => ErrorKind::NoSuchKey,
        (_, 405) => ErrorKind::MethodNotAllowed,
        (_, 408) => ErrorKind::Timeout,
        (_, 409) => ErrorKind::ConditionalConflict,
        (_, 412) => ErrorKind::PreconditionFailed,
        (_, 416) => ErrorKind::InvalidRange,
        (_, 501) => ErrorKind::NotImplemented,
        (_, 507) => ErrorKind::NoSpace,
        (_, 429 | 502..=504) => ErrorKind::Unavailable,
        (_, 400..=499) => ErrorKind::InvalidArgument,
        (_, 500..=599) => ErrorKind::Io,
        _ => ErrorKind::BadResponse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_the_wire() {
        for kind in ErrorKind::ALL {
            let (status, code) = to_s3(*kind);
            let expected = match kind {
                ErrorKind::LockTimeout => ErrorKind::Unavailable,
                kind => *kind,
            };
            assert_eq!(from_s3(status, code), expected);
            assert!((300..600).contains(&status), "{kind:?}");
        }
    }

    #[test]
    fn a_status_alone_is_enough_for_the_class() {
        assert_eq!(from_s3(404, ""), ErrorKind::NoSuchKey);
        assert_eq!(from_s3(412, ""), ErrorKind::PreconditionFailed);
        assert_eq!(from_s3(503, "SlowDown"), ErrorKind::Unavailable);
        assert_eq!(from_s3(418, "Teapot"), ErrorKind::InvalidArgument);
    }
}
