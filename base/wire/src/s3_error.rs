//! S3's error codes and statuses for every [`ErrorKind`], in both directions, and the messages of error documents.
//!
//! If S3 has a code for a kind, that code is used. A kind without an S3 code (for a full disk or a quota, for example)
//! has a code that only Fordway uses. A Fordway client recovers the kind from this code. Other clients can still
//! recognize the class of the failure by the HTTP status.

use fordway_store::{Error, ErrorKind};

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

/// Returns the kind of error that a server's response reports. `code` is empty if there was no error document (as in
/// responses to HEAD). If the code is empty or unknown, the status determines the kind.
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

/// AWS's message for a `Content-MD5` that is not a digest.
pub const INVALID_MD5: &str = "The Content-Md5 you specified is not valid.";

/// AWS's usual message for `AccessDenied`. This message is not in the table, because AWS has other messages for this
/// code.
pub const ACCESS_DENIED: &str = "Access Denied.";

/// AWS's messages for codes that always have the same message.
const AWS_MESSAGES: [(&str, &str); 38] = [
    (
        "BucketAlreadyExists",
        "The requested bucket name is not available. The bucket namespace is shared by all users of the system. Please select a different name and try again.",
    ),
    (
        "BucketAlreadyOwnedByYou",
        "Your previous request to create the named bucket succeeded and you already own it.",
    ),
    ("BucketNotEmpty", "The bucket you tried to delete is not empty."),
    (
        "ConditionalRequestConflict",
        "The conditional request cannot succeed due to a conflicting operation against this resource.",
    ),
    ("EntityTooLarge", "Your proposed upload exceeds the maximum allowed object size."),
    ("EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size"),
    ("IncompleteBody", "You did not provide the number of bytes specified by the Content-Length HTTP header"),
    ("InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records."),
    ("InvalidBucketName", "The specified bucket is not valid."),
    ("InvalidDigest", INVALID_MD5),
    ("InvalidLocationConstraint", "The specified location-constraint is not valid"),
    (
        "InvalidPart",
        "One or more of the specified parts could not be found.  The part may not have been uploaded, or the specified entity tag may not match the part's entity tag.",
    ),
    (
        "InvalidPartOrder",
        "The list of parts was not in ascending order. Parts must be ordered by part number.",
    ),
    ("InvalidRange", "The requested range is not satisfiable"),
    ("KeyTooLongError", "Your key is too long."),
    (
        "MalformedXML",
        "The XML you provided was not well-formed or did not validate against our published schema.",
    ),
    ("MaxMessageLengthExceeded", "Your request was too big."),
    ("MetadataTooLarge", "Your metadata headers exceed the maximum allowed metadata size"),
    ("MethodNotAllowed", "The specified method is not allowed against this resource."),
    ("MissingContentLength", "You must provide the Content-Length HTTP header."),
    ("NoSuchBucket", "The specified bucket does not exist."),
    ("NoSuchBucketPolicy", "The bucket policy does not exist."),
    ("NoSuchCORSConfiguration", "The CORS configuration does not exist"),
    ("NoSuchKey", "The specified key does not exist."),
    ("NoSuchLifecycleConfiguration", "The lifecycle configuration does not exist"),
    ("NoSuchPublicAccessBlockConfiguration", "The public access block configuration was not found"),
    ("NoSuchTagSet", "The TagSet does not exist."),
    (
        "NoSuchUpload",
        "The specified multipart upload does not exist. The upload ID may be invalid, or the upload may have been aborted or completed.",
    ),
    ("NoSuchVersion", "The specified version does not exist."),
    ("NoSuchWebsiteConfiguration", "The specified bucket does not have a website configuration"),
    ("ObjectLockConfigurationNotFoundError", "Object Lock configuration does not exist for this bucket."),
    ("OwnershipControlsNotFoundError", "The bucket ownership controls were not found."),
    ("PreconditionFailed", "At least one of the pre-conditions you specified did not hold."),
    ("ReplicationConfigurationNotFoundError", "The replication configuration was not found"),
    ("RequestTimeTooSkewed", "The difference between the request time and the current time is too large."),
    (
        "ServerSideEncryptionConfigurationNotFoundError",
        "The server side encryption configuration was not found",
    ),
    (
        "SignatureDoesNotMatch",
        "The request signature we calculated does not match the signature you provided. Check your key and signing method.",
    ),
    (
        "XAmzContentSHA256Mismatch",
        "The provided 'x-amz-content-sha256' header does not match what was computed.",
    ),
];

/// Returns AWS's message for errors with this code; `None` if AWS has several messages for this code, or has no such
/// code.
pub fn aws_message(code: &str) -> Option<&'static str> {
    let position = AWS_MESSAGES.binary_search_by_key(&code, |(known, _)| known).ok()?;
    Some(AWS_MESSAGES[position].1)
}

/// The elements that AWS adds to error documents with these codes. Programs read them, for instance `BucketName` when a
/// bucket exists already.
pub const ERROR_FACTS: [(&str, &[&str]); 20] = [
    ("BucketAlreadyExists", &["BucketName"]),
    ("BucketAlreadyOwnedByYou", &["BucketName"]),
    ("BucketNotEmpty", &["BucketName"]),
    ("InvalidBucketName", &["BucketName"]),
    ("InvalidRange", &["RangeRequested", "ActualObjectSize"]),
    ("NoSuchBucket", &["BucketName"]),
    ("NoSuchBucketPolicy", &["BucketName"]),
    ("NoSuchCORSConfiguration", &["BucketName"]),
    ("NoSuchKey", &["Key"]),
    ("NoSuchLifecycleConfiguration", &["BucketName"]),
    ("NoSuchPublicAccessBlockConfiguration", &["BucketName"]),
    ("NoSuchTagSet", &["BucketName"]),
    ("NoSuchUpload", &["UploadId"]),
    ("NoSuchVersion", &["Key", "VersionId"]),
    ("NoSuchWebsiteConfiguration", &["BucketName"]),
    ("ObjectLockConfigurationNotFoundError", &["BucketName"]),
    ("OwnershipControlsNotFoundError", &["BucketName"]),
    ("PreconditionFailed", &["Condition"]),
    ("ReplicationConfigurationNotFoundError", &["BucketName"]),
    ("ServerSideEncryptionConfigurationNotFoundError", &["BucketName"]),
];

/// Returns the names of the elements that AWS adds to error documents with this code.
pub fn facts_of(code: &str) -> &'static [&'static str] {
    let position = ERROR_FACTS.binary_search_by_key(&code, |(known, _)| known);
    position.map_or(&[], |position| ERROR_FACTS[position].1)
}

/// Returns those elements that the target of an error (`s3://bucket/key`) determines, with their values.
pub fn facts_of_target<'t>(code: &str, target: &'t str) -> Vec<(&'static str, &'t str)> {
    let names = target.strip_prefix("s3://").unwrap_or_default();
    let (bucket, key) = names.split_once('/').unwrap_or((names, ""));
    let facts = facts_of(code).iter().filter_map(|name| match *name {
        "BucketName" => Some((*name, bucket)),
        "Key" => Some((*name, key)),
        _ => None,
    });
    facts.filter(|(_, value)| !value.is_empty()).collect()
}

/// Returns our own message for the client: what failed, why, and what to do next. Errors from the operating system are
/// left out, because they may contain paths on this machine; the log contains them.
pub fn detail(error: &Error) -> String {
    let why = if error.detail().is_empty() { error.kind().name() } else { error.detail() };
    let mut text = match error.target() {
        "" => why.to_owned(),
        target => format!("{target}: {why}"),
    };
    if !error.advice().is_empty() {
        text.push_str("; ");
        text.push_str(error.advice());
    }
    printable(text)
}

/// Escapes control characters: keys may contain characters that XML does not allow.
fn printable(text: String) -> String {
    if !text.contains(char::is_control) {
        return text;
    }
    let shown = |character: char| match character.is_control() {
        true => character.escape_default().to_string(),
        false => character.to_string(),
    };
    text.chars().map(shown).collect()
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
    fn messages_are_found_by_their_codes() {
        assert!(AWS_MESSAGES.is_sorted_by_key(|(code, _)| code));
        assert_eq!(aws_message("NoSuchKey"), Some("The specified key does not exist."));
        assert_eq!(aws_message("InvalidArgument"), None);
    }

    #[test]
    fn facts_are_found_by_their_codes() {
        assert!(ERROR_FACTS.is_sorted_by_key(|(code, _)| code));
        assert!(ERROR_FACTS.iter().all(|(code, _)| aws_message(code).is_some()));
        assert_eq!(facts_of("NoSuchKey"), ["Key"]);
        assert!(facts_of("AccessDenied").is_empty());
        assert_eq!(facts_of_target("NoSuchVersion", "s3://b/k/l"), [("Key", "k/l")]);
        assert_eq!(facts_of_target("NoSuchBucket", "s3://b"), [("BucketName", "b")]);
        assert!(facts_of_target("NoSuchKey", "/a/path").is_empty());
    }

    #[test]
    fn a_detail_names_the_object_but_no_place_on_this_machine() {
        let hidden = std::io::Error::other("/secret/place");
        let error =
            Error::new(ErrorKind::NoSpace, "writing").caused_by(hidden).during("put", "embedded", "b", "k");
        assert_eq!(detail(&error), "s3://b/k: writing; free space on the file system, or use another one");
    }

    #[test]
    fn a_status_alone_is_enough_for_the_class() {
        assert_eq!(from_s3(404, ""), ErrorKind::NoSuchKey);
        assert_eq!(from_s3(412, ""), ErrorKind::PreconditionFailed);
        assert_eq!(from_s3(503, "SlowDown"), ErrorKind::Unavailable);
        assert_eq!(from_s3(418, "Teapot"), ErrorKind::InvalidArgument);
    }
}
