//! Exit codes, which let a script distinguish outcomes without parsing messages.

use std::io;

use fordway_store::{Error, ErrorKind};
use rustix::io::Errno;

/// The outcome of a command, which determines the exit code of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CommandExit {
    /// Everything succeeded.
    Ok = 0,
    /// A failure without a more specific exit code, or a listing that matched nothing.
    Failure = 1,
    /// The command line is invalid, or contains an invalid name or value.
    Usage = 2,
    /// The bucket, object, upload, file or directory does not exist.
    NotFound = 3,
    /// Permission was denied, or the credentials are invalid.
    Denied = 4,
    /// A condition failed: the object exists or changed, or the bucket is not empty.
    Conflict = 5,
    /// The file system or a quota is full.
    NoSpace = 6,
    /// The endpoint is unreachable, too slow, or sends invalid responses.
    Unavailable = 7,
    /// The data does not match its checksum or size.
    Corrupt = 8,
    /// The command was stopped by Ctrl-C, or by a request to terminate.
    Interrupted = 130,
}

impl CommandExit {
    /// Returns the code for an error. If a missing local file or directory caused an `Io` or `InvalidArgument` error,
    /// the code is `NotFound`.
    pub fn of(error: &Error) -> Self {
        let system = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
        match (error.kind(), system.map(io::Error::kind)) {
            (ErrorKind::Io | ErrorKind::InvalidArgument, Some(io::ErrorKind::NotFound)) => {
                CommandExit::NotFound
            }
            (kind, _) => CommandExit::of_kind(kind),
        }
    }

    /// Returns the code for a kind of error. The `match` lists every kind, so a new kind without a code is a compile
    /// error.
    pub fn of_kind(kind: ErrorKind) -> Self {
        use ErrorKind as K;
        match kind {
            K::NoSuchBucket | K::NoSuchKey | K::NoSuchUpload | K::NoSuchVersion => CommandExit::NotFound,
            K::InvalidBucketName
            | K::InvalidKey
            | K::KeyTooLong
            | K::InvalidRange
            | K::InvalidArgument
            | K::InvalidTag
            | K::EntityTooLarge
            | K::EntityTooSmall
            | K::MethodNotAllowed => CommandExit::Usage,
            K::AccessDenied
            | K::SignatureDoesNotMatch
            | K::InvalidAccessKeyId
            | K::RequestTimeTooSkewed
            | K::ReadOnly => CommandExit::Denied,
            K::BucketAlreadyExists
            | K::BucketAlreadyOwnedByYou
            | K::BucketNotEmpty
            | K::NotModified
            | K::PreconditionFailed
            | K::ConditionalConflict => CommandExit::Conflict,
            K::NoSpace | K::QuotaExceeded => CommandExit::NoSpace,
            K::Unavailable | K::LockTimeout | K::Timeout | K::BadResponse => CommandExit::Unavailable,
            K::BadDigest | K::IncompleteBody | K::InvalidPart | K::Corrupt => CommandExit::Corrupt,
            K::Interrupted => CommandExit::Interrupted,
            K::InvalidPartOrder | K::TooManyOpenFiles | K::NotImplemented | K::Io | K::Internal => {
                CommandExit::Failure
            }
        }
    }
}

impl From<CommandExit> for std::process::ExitCode {
    fn from(exit: CommandExit) -> Self {
        std::process::ExitCode::from(exit as u8)
    }
}

/// Converts an error of the operating system to an [`Error`] of the matching kind, whose message names the action and
/// the file. The error `ECANCELED` means that a signal interrupted a wait.
pub fn file_error(doing: &str, path: impl std::fmt::Display, error: io::Error) -> Error {
    let is_interrupted = error.raw_os_error() == Some(Errno::CANCELED.raw_os_error());
    let kind = if is_interrupted { ErrorKind::Interrupted } else { ErrorKind::from(&error) };
    Error::new(kind, format!("{doing} {path}")).caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the codes against the table in the manual. Scripts depend on these codes, so users notice every change.
    #[test]
    fn every_kind_has_the_documented_code() {
        let documented = |kind: ErrorKind| match kind.name() {
            name if name.starts_with("NoSuch") => 3,
            "InvalidBucketName" | "InvalidKey" | "KeyTooLong" | "InvalidRange" | "InvalidArgument" => 2,
            "InvalidTag" | "EntityTooLarge" | "EntityTooSmall" | "MethodNotAllowed" => 2,
            "AccessDenied" | "SignatureDoesNotMatch" | "InvalidAccessKeyId" => 4,
            "RequestTimeTooSkewed" | "ReadOnly" => 4,
            "BucketAlreadyExists" | "BucketAlreadyOwnedByYou" | "BucketNotEmpty" => 5,
            "NotModified" | "PreconditionFailed" | "ConditionalConflict" => 5,
            "NoSpace" | "QuotaExceeded" => 6,
            "Unavailable" | "LockTimeout" | "Timeout" | "BadResponse" => 7,
            "BadDigest" | "IncompleteBody" | "InvalidPart" | "Corrupt" => 8,
            "Interrupted" => 130,
            "InvalidPartOrder" | "TooManyOpenFiles" | "NotImplemented" | "Io" | "Internal" => 1,
            other => panic!("{other} has no documented exit code"),
        };
        for &kind in ErrorKind::ALL {
            assert_eq!(CommandExit::of_kind(kind) as u8, documented(kind), "{kind:?}");
        }
    }

    #[test]
    fn a_missing_file_is_not_found() {
        let error = file_error("opening", "x", io::ErrorKind::NotFound.into());
        assert_eq!(CommandExit::of(&error), CommandExit::NotFound);
        let named = |kind: io::ErrorKind| {
            CommandExit::of(&Error::new(ErrorKind::InvalidArgument, "x").caused_by(io::Error::from(kind)))
        };
        assert_eq!(named(io::ErrorKind::NotFound), CommandExit::NotFound);
        assert_eq!(named(io::ErrorKind::InvalidInput), CommandExit::Usage);
        let full = file_error("opening", "x", io::Error::from_raw_os_error(24));
        assert_eq!(full.kind(), ErrorKind::TooManyOpenFiles);
        assert_eq!(
            CommandExit::of(&file_error("opening", "x", io::ErrorKind::StorageFull.into())),
            CommandExit::NoSpace
        );
    }
}
