//! `S3Status`: the numbers of both ABIs, and the status for each [`ErrorKind`].

use std::error::Error as _;
use std::ffi::CStr;

use fordway_store::{Error, ErrorKind};

use crate::abi::{AbiVersion, S3StatusCode};

macro_rules! statuses {
    ($($name:ident),* $(,)?) => {
        /// The outcome of a request. The names are the names in libs3 4.1 without the prefix `S3Status`. The
        /// discriminants are the numbers in 4.1.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i32)]
        #[expect(missing_docs, reason = "the names are those of the C interface")]
        pub enum Status { $($name),* }

        impl Status {
            /// All statuses, in the order of their numbers.
            pub const ALL: &'static [Status] = &[$(Status::$name),*];

            /// Returns the name that `S3_get_status_name` returns.
            pub const fn name(self) -> &'static CStr {
                const NAMES: &[&[u8]] = &[$(concat!(stringify!($name), "\0").as_bytes()),*];
                match CStr::from_bytes_with_nul(NAMES[self as usize]) {
                    Ok(name) => name,
                    Err(_) => c"Unknown",
                }
            }
        }
    };
}

statuses! {
    OK, InternalError, OutOfMemory, Interrupted, InvalidBucketNameTooLong, InvalidBucketNameFirstCharacter,
    InvalidBucketNameCharacter, InvalidBucketNameCharacterSequence, InvalidBucketNameTooShort,
    InvalidBucketNameDotQuadNotation, QueryParamsTooLong, FailedToInitializeRequest, MetaDataHeadersTooLong,
    BadMetaData, BadContentType, ContentTypeTooLong, BadMD5, MD5TooLong, BadCacheControl,
    CacheControlTooLong, BadContentDispositionFilename, ContentDispositionFilenameTooLong,
    BadContentEncoding, ContentEncodingTooLong, BadIfMatchETag, IfMatchETagTooLong, BadIfNotMatchETag,
    IfNotMatchETagTooLong, HeadersTooLong, KeyTooLong, UriTooLong, XmlParseFailure, EmailAddressTooLong,
    UserIdTooLong, UserDisplayNameTooLong, GroupUriTooLong, PermissionTooLong, TargetBucketTooLong,
    TargetPrefixTooLong, TooManyGrants, BadGrantee, BadPermission, XmlDocumentTooLarge, NameLookupError,
    FailedToConnect, ServerFailedVerification, ConnectionFailed, AbortedByCallback, NotSupported,
    ErrorAccessDenied, ErrorAccountProblem, ErrorAmbiguousGrantByEmailAddress, ErrorBadDigest,
    ErrorBucketAlreadyExists, ErrorBucketAlreadyOwnedByYou, ErrorBucketNotEmpty,
    ErrorCredentialsNotSupported, ErrorCrossLocationLoggingProhibited, ErrorEntityTooSmall,
    ErrorEntityTooLarge, ErrorExpiredToken, ErrorIllegalVersioningConfigurationException,
    ErrorIncompleteBody, ErrorIncorrectNumberOfFilesInPostRequest, ErrorInlineDataTooLarge,
    ErrorInternalError, ErrorInvalidAccessKeyId, ErrorInvalidAddressingHeader, ErrorInvalidArgument,
    ErrorInvalidBucketName, ErrorInvalidBucketState, ErrorInvalidDigest,
    ErrorInvalidEncryptionAlgorithmError, ErrorInvalidLocationConstraint, ErrorInvalidObjectState,
    ErrorInvalidPart, ErrorInvalidPartOrder, ErrorInvalidPayer, ErrorInvalidPolicyDocument,
    ErrorInvalidRange, ErrorInvalidRequest, ErrorInvalidSecurity, ErrorInvalidSOAPRequest,
    ErrorInvalidStorageClass, ErrorInvalidTargetBucketForLogging, ErrorInvalidToken, ErrorInvalidURI,
    ErrorKeyTooLong, ErrorMalformedACLError, ErrorMalformedPOSTRequest, ErrorMalformedXML,
    ErrorMaxMessageLengthExceeded, ErrorMaxPostPreDataLengthExceededError, ErrorMetadataTooLarge,
    ErrorMethodNotAllowed, ErrorMissingAttachment, ErrorMissingContentLength, ErrorMissingRequestBodyError,
    ErrorMissingSecurityElement, ErrorMissingSecurityHeader, ErrorNoLoggingStatusForKey, ErrorNoSuchBucket,
    ErrorNoSuchKey, ErrorNoSuchLifecycleConfiguration, ErrorNoSuchUpload, ErrorNoSuchVersion,
    ErrorNotImplemented, ErrorNotSignedUp, ErrorNoSuchBucketPolicy, ErrorOperationAborted,
    ErrorPermanentRedirect, ErrorPreconditionFailed, ErrorRedirect, ErrorRestoreAlreadyInProgress,
    ErrorRequestIsNotMultiPartContent, ErrorRequestTimeout, ErrorRequestTimeTooSkewed,
    ErrorRequestTorrentOfBucketError, ErrorSignatureDoesNotMatch, ErrorServiceUnavailable, ErrorSlowDown,
    ErrorTemporaryRedirect, ErrorTokenRefreshRequired, ErrorTooManyBuckets, ErrorUnexpectedContent,
    ErrorUnresolvableGrantByEmailAddress, ErrorUserKeyMustBeSpecified, ErrorQuotaExceeded, ErrorUnknown,
    HttpErrorMovedTemporarily, HttpErrorBadRequest, HttpErrorForbidden, HttpErrorNotFound,
    HttpErrorConflict, HttpErrorUnknown,
}

/// The statuses that 4.1 added to 2.0, each with the status that programs built for 2.0 receive instead. All other
/// statuses are in the same order in both versions.
const SINCE_4_1: &[(Status, Status)] = &[
    (Status::NotSupported, Status::ErrorNotImplemented),
    (Status::ErrorIllegalVersioningConfigurationException, Status::ErrorInvalidArgument),
    (Status::ErrorInvalidBucketState, Status::ErrorOperationAborted),
    (Status::ErrorInvalidEncryptionAlgorithmError, Status::ErrorInvalidArgument),
    (Status::ErrorInvalidObjectState, Status::ErrorAccessDenied),
    (Status::ErrorInvalidPart, Status::ErrorInvalidArgument),
    (Status::ErrorInvalidPartOrder, Status::ErrorInvalidArgument),
    (Status::ErrorInvalidRequest, Status::ErrorInvalidArgument),
    (Status::ErrorMalformedPOSTRequest, Status::ErrorInvalidArgument),
    (Status::ErrorMissingRequestBodyError, Status::ErrorIncompleteBody),
    (Status::ErrorNoSuchLifecycleConfiguration, Status::HttpErrorNotFound),
    (Status::ErrorNoSuchUpload, Status::HttpErrorNotFound),
    (Status::ErrorNoSuchVersion, Status::ErrorNoSuchKey),
    (Status::ErrorNoSuchBucketPolicy, Status::HttpErrorNotFound),
    (Status::ErrorRestoreAlreadyInProgress, Status::ErrorOperationAborted),
    (Status::ErrorServiceUnavailable, Status::ErrorSlowDown),
    (Status::ErrorQuotaExceeded, Status::ErrorUnknown),
];

impl Status {
    /// Returns the number in 2.0, or the number of the nearest status if 2.0 does not have this status.
    pub fn number_in_2_0(self) -> S3StatusCode {
        let stand_in = SINCE_4_1.iter().find(|(new, _)| *new == self).map(|(_, stand_in)| *stand_in);
        let known = stand_in.unwrap_or(self);
        let added_before = SINCE_4_1.iter().filter(|(new, _)| (*new as S3StatusCode) < known as S3StatusCode);
        known as S3StatusCode - added_before.count() as S3StatusCode
    }

    /// Returns the status with this number in `abi`.
    pub fn from_number(abi: AbiVersion, number: S3StatusCode) -> Option<Status> {
        let is_known = |status: &Status| match abi {
            AbiVersion::V4_1 => true,
            AbiVersion::V2_0 => !SINCE_4_1.iter().any(|(new, _)| new == status),
        };
        Status::ALL.iter().copied().filter(is_known).nth(usize::try_from(number).ok()?)
    }

    /// Returns whether a request may be retried, according to the list in libs3's `S3_status_is_retryable`, on which
    /// programs rely.
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Status::NameLookupError
                | Status::FailedToConnect
                | Status::ConnectionFailed
                | Status::ErrorInternalError
                | Status::ErrorOperationAborted
                | Status::ErrorRequestTimeout
        )
    }

    /// Returns the status for an S3 error code, which is the status's name without the prefix `Error`.
    pub fn from_s3_code(code: &str) -> Option<Status> {
        // AWS's name for this error has a different ending from the name in libs3.
        let code = if code == "KeyTooLongError" { "KeyTooLong" } else { code };
        let is_named =
            |status: &Status| status.name().to_bytes().strip_prefix(b"Error") == Some(code.as_bytes());
        Status::ALL.iter().copied().find(is_named)
    }

    /// Returns the status to report if the response has no body (such as the response to HEAD) and only its HTTP status
    /// is known.
    pub fn without_body(self) -> Status {
        match self {
            Status::ErrorNoSuchKey | Status::ErrorNoSuchBucket => Status::HttpErrorNotFound,
            Status::ErrorAccessDenied
            | Status::ErrorSignatureDoesNotMatch
            | Status::ErrorInvalidAccessKeyId
            | Status::ErrorRequestTimeTooSkewed => Status::HttpErrorForbidden,
            Status::ErrorOperationAborted => Status::HttpErrorConflict,
            Status::ErrorInvalidURI | Status::ErrorKeyTooLong | Status::ErrorInvalidArgument => {
                Status::HttpErrorBadRequest
            }
            other => other,
        }
    }
}

impl From<&Error> for Status {
    /// If a server returned an S3 error code, the code determines the status, because several codes have the same kind.
    /// A connection that ended has a different status from a connection that could not be opened, and from a server
    /// whose certificate is not trusted. Lack of memory has a status of its own.
    fn from(error: &Error) -> Status {
        let stated = error.s3_code().and_then(Status::from_s3_code);
        stated.unwrap_or_else(|| match error.kind() {
            _ if is_out_of_memory(error) => Status::OutOfMemory,
            _ if error.is_at_untrusted_server() => Status::ServerFailedVerification,
            ErrorKind::Unavailable if error.is_at_lost_connection() => Status::ConnectionFailed,
            kind => kind.into(),
        })
    }
}

/// Returns whether the cause of an error is that there is no memory.
fn is_out_of_memory(error: &Error) -> bool {
    let of_system = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    of_system.is_some_and(|cause| cause.kind() == std::io::ErrorKind::OutOfMemory)
}

impl From<ErrorKind> for Status {
    fn from(kind: ErrorKind) -> Status {
        match kind {
            ErrorKind::NoSuchBucket => Status::ErrorNoSuchBucket,
            ErrorKind::NoSuchKey => Status::ErrorNoSuchKey,
            ErrorKind::NoSuchUpload => Status::ErrorNoSuchUpload,
            ErrorKind::NoSuchVersion => Status::ErrorNoSuchVersion,
            ErrorKind::BucketAlreadyExists => Status::ErrorBucketAlreadyExists,
            ErrorKind::BucketAlreadyOwnedByYou => Status::ErrorBucketAlreadyOwnedByYou,
            ErrorKind::BucketNotEmpty => Status::ErrorBucketNotEmpty,
            ErrorKind::InvalidBucketName => Status::ErrorInvalidBucketName,
            ErrorKind::InvalidKey => Status::ErrorInvalidURI,
            ErrorKind::KeyTooLong => Status::ErrorKeyTooLong,
            ErrorKind::InvalidRange => Status::ErrorInvalidRange,
            ErrorKind::InvalidArgument | ErrorKind::InvalidTag => Status::ErrorInvalidArgument,
            // libs3 has no status for HTTP's 304.
            ErrorKind::NotModified => Status::HttpErrorUnknown,
            ErrorKind::PreconditionFailed => Status::ErrorPreconditionFailed,
            ErrorKind::ConditionalConflict => Status::ErrorOperationAborted,
            ErrorKind::BadDigest => Status::ErrorBadDigest,
            ErrorKind::IncompleteBody => Status::ErrorIncompleteBody,
            ErrorKind::EntityTooLarge => Status::ErrorEntityTooLarge,
            ErrorKind::EntityTooSmall => Status::ErrorEntityTooSmall,
            ErrorKind::InvalidPart => Status::ErrorInvalidPart,
            ErrorKind::InvalidPartOrder => Status::ErrorInvalidPartOrder,
            ErrorKind::AccessDenied | ErrorKind::ReadOnly => Status::ErrorAccessDenied,
            ErrorKind::SignatureDoesNotMatch => Status::ErrorSignatureDoesNotMatch,
            ErrorKind::InvalidAccessKeyId => Status::ErrorInvalidAccessKeyId,
            ErrorKind::RequestTimeTooSkewed => Status::ErrorRequestTimeTooSkewed,
            ErrorKind::NoSpace | ErrorKind::QuotaExceeded => Status::ErrorQuotaExceeded,
            ErrorKind::TooManyOpenFiles | ErrorKind::LockTimeout => Status::ErrorSlowDown,
            ErrorKind::NotImplemented => Status::ErrorNotImplemented,
            ErrorKind::MethodNotAllowed => Status::ErrorMethodNotAllowed,
            ErrorKind::Unavailable => Status::FailedToConnect,
            ErrorKind::Timeout => Status::ErrorRequestTimeout,
            ErrorKind::BadResponse => Status::ConnectionFailed,
            ErrorKind::Corrupt | ErrorKind::Io => Status::ErrorInternalError,
            ErrorKind::Interrupted => Status::Interrupted,
            ErrorKind::Internal => Status::InternalError,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kinds that deliberately share a status with another kind; every other kind has its own status.
    const SHARED: &[&[ErrorKind]] = &[
        &[ErrorKind::AccessDenied, ErrorKind::ReadOnly],
        &[ErrorKind::NoSpace, ErrorKind::QuotaExceeded],
        &[ErrorKind::Corrupt, ErrorKind::Io],
        &[ErrorKind::TooManyOpenFiles, ErrorKind::LockTimeout],
        &[ErrorKind::InvalidArgument, ErrorKind::InvalidTag],
    ];

    #[test]
    fn every_kind_has_a_status_of_its_own_unless_it_shares_one_on_purpose() {
        for kind in ErrorKind::ALL {
            assert_ne!(Status::from(*kind), Status::OK, "{kind:?}");
            for other in ErrorKind::ALL.iter().filter(|other| *other != kind) {
                let shares = SHARED.iter().any(|group| group.contains(kind) && group.contains(other));
                assert_eq!(Status::from(*kind) == Status::from(*other), shares, "{kind:?}, {other:?}");
            }
        }
    }

    #[test]
    fn a_servers_code_is_more_precise_than_its_kind() {
        let said = |kind, code: &str| Status::from(&Error::new(kind, "").with_s3_code(code));
        assert_eq!(said(ErrorKind::AccessDenied, "InvalidObjectState"), Status::ErrorInvalidObjectState);
        assert_eq!(said(ErrorKind::Unavailable, "SlowDown"), Status::ErrorSlowDown);
        assert_eq!(said(ErrorKind::KeyTooLong, "KeyTooLongError"), Status::ErrorKeyTooLong);
        // Codes that libs3 does not define.
        assert_eq!(said(ErrorKind::NoSpace, "InsufficientStorage"), Status::ErrorQuotaExceeded);
        assert_eq!(said(ErrorKind::Io, "HttpErrorNotFound"), Status::ErrorInternalError);
        assert_eq!(said(ErrorKind::Io, ""), Status::ErrorInternalError);
        let unavailable = || Error::new(ErrorKind::Unavailable, "");
        assert_eq!(Status::from(&unavailable()), Status::FailedToConnect);
        assert_eq!(Status::from(&unavailable().at_lost_connection()), Status::ConnectionFailed);
    }

    /// Programs repeat requests whose status is retryable. A certificate does not become trusted, and a 409 without a
    /// body is not retryable in libs3 either.
    #[test]
    fn failures_that_a_retry_does_not_help_are_not_retryable() {
        let untrusted = Status::from(&Error::new(ErrorKind::BadResponse, "").at_untrusted_server());
        assert_eq!(untrusted, Status::ServerFailedVerification);
        let conflict = Status::from(ErrorKind::ConditionalConflict).without_body();
        assert_eq!(conflict, Status::HttpErrorConflict);
        let cause = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
        let full = Status::from(&Error::new(ErrorKind::EntityTooLarge, "").caused_by(cause));
        assert_eq!(full, Status::OutOfMemory);
        assert!([untrusted, conflict, full].iter().all(|status| !status.is_retryable()));
    }

    /// A directory reports errors by kind, and its gateways report errors by code. The kind and the code must lead to
    /// the same status.
    #[test]
    fn the_code_of_a_kind_has_the_status_of_the_kind() {
        for kind in ErrorKind::ALL {
            let code = fordway_wire::s3_error::to_s3(*kind).1;
            let expected = match kind {
                // This kind without a code means that no server could be reached, or that the root is missing.
                ErrorKind::Unavailable => Status::ErrorServiceUnavailable,
                kind => Status::from(*kind),
            };
            assert_eq!(Status::from(&Error::new(*kind, "").with_s3_code(code)), expected, "{kind:?}");
        }
    }

    #[test]
    fn every_kind_is_a_failure_with_a_name_in_both_numberings() {
        for kind in ErrorKind::ALL {
            for (abi, largest) in [(AbiVersion::V4_1, 134), (AbiVersion::V2_0, 117)] {
                let number = abi.number(Status::from(*kind));
                assert!((1..=largest).contains(&number), "{kind:?} is {number} in {abi:?}");
                assert!(Status::from_number(abi, number).is_some(), "{kind:?}");
            }
        }
    }

    #[test]
    fn the_numbers_are_those_of_the_two_headers() {
        for (status, in_4_1, in_2_0) in [
            (Status::OK, 0, 0),
            (Status::Interrupted, 3, 3),
            (Status::AbortedByCallback, 47, 47),
            (Status::NotSupported, 48, 93),
            (Status::ErrorAccessDenied, 49, 48),
            (Status::ErrorBadDigest, 52, 51),
            (Status::ErrorBucketAlreadyExists, 53, 52),
            (Status::ErrorBucketAlreadyOwnedByYou, 54, 53),
            (Status::ErrorBucketNotEmpty, 55, 54),
            (Status::ErrorInvalidRange, 79, 72),
            (Status::ErrorNoSuchBucket, 101, 91),
            (Status::ErrorNoSuchKey, 102, 92),
            (Status::ErrorPreconditionFailed, 111, 97),
            (Status::HttpErrorNotFound, 132, 115),
            (Status::HttpErrorUnknown, 134, 117),
        ] {
            assert_eq!(
                (AbiVersion::V4_1.number(status), AbiVersion::V2_0.number(status)),
                (in_4_1, in_2_0),
                "{status:?}"
            );
        }
    }

    #[test]
    fn numbers_lead_back_to_their_status() {
        for abi in [AbiVersion::V2_0, AbiVersion::V4_1] {
            for number in 0..=abi.number(Status::HttpErrorUnknown) {
                let status = Status::from_number(abi, number).expect("numbers have no gaps");
                assert_eq!(abi.number(status), number);
            }
            assert_eq!(Status::from_number(abi, abi.number(Status::HttpErrorUnknown) + 1), None);
            assert_eq!(Status::from_number(abi, -1), None);
        }
        assert_eq!(Status::ErrorNoSuchKey.name(), c"ErrorNoSuchKey");
    }
}
