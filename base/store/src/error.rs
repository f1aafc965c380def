//! All error kinds in one list, and the human-readable error message.

use std::fmt::{self, Write as _};
use std::io;
use std::time::SystemTime;

use crate::VersionId;

/// The separator between the reason of an error and the advice on what to do next.
const ADVICE_FOLLOWS: &str = "; ";

/// The reason for refusing a change to a key if a symbolic link in its path leads out of the bucket.
pub const LEAVES_BUCKET: &str = "the key leads through a symbolic link out of its bucket, and the locks and versions \
                                 there would not be checked; use the key to which the link leads";

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $advice:literal;)*) => {
        /// All ways in which an operation can fail. Each binding (S3 code and status, exit code, Python exception, ...)
        /// maps every kind explicitly, and a test checks the mapping of all kinds in [`ErrorKind::ALL`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ErrorKind { $($(#[$doc])* $kind,)* }

        impl ErrorKind {
            /// All kinds, in the order of their declaration.
            pub const ALL: &'static [ErrorKind] = &[$(ErrorKind::$kind),*];

            /// Returns the variant's name, as it appears in JSON output and logs.
            pub const fn name(self) -> &'static str {
                match self { $(ErrorKind::$kind => stringify!($kind)),* }
            }

            /// Returns general advice on what the user can do next; empty if none is needed.
            pub const fn advice(self) -> &'static str {
                match self { $(ErrorKind::$kind => $advice),* }
            }
        }
    };
}

kinds! {
    /// The bucket does not exist.
    NoSuchBucket = "check the name with `fordway ls`, or make it with `fordway mb`";
    /// The object does not exist.
    NoSuchKey = "list the existing keys with `fordway ls`";
    /// The multipart upload does not exist, or was completed or aborted.
    NoSuchUpload = "start a new multipart upload";
    /// The object has no such version.
    NoSuchVersion = "list the existing versions";
    /// The bucket belongs to another user.
    BucketAlreadyExists = "choose another bucket name";
    /// The bucket already exists and belongs to the caller.
    BucketAlreadyOwnedByYou = "";
    /// The bucket contains objects, so it cannot be removed.
    BucketNotEmpty = "empty it first, or use `fordway rb --force`";
    /// The name is not valid for a bucket.
    InvalidBucketName = "use 3 to 63 lower-case letters, digits, dots and hyphens, starting with a letter or digit; \
                         without S3, capitals, underscores and up to 255 characters are possible too";
    /// The key is empty, is not UTF-8, or contains a NUL byte.
    InvalidKey = "use a key of 1 to 1,024 bytes of UTF-8";
    /// The key is longer than 1,024 bytes, or its path is longer than the file system allows.
    KeyTooLong = "shorten the key; S3 allows 1,024 bytes, and most file systems 255 bytes between two slashes";
    /// The range is outside the object.
    InvalidRange = "compare the range with the object's size (`fordway stat`)";
    /// An argument has a value that the operation does not accept.
    InvalidArgument = "";
    /// There are too many tags, a tag is too long, or a name occurs twice.
    InvalidTag = "use at most 10 tags, with names of 1 to 128 and values of up to 256 characters";
    /// According to `If-None-Match` or `If-Modified-Since`, the caller's copy is current.
    NotModified = "";
    /// `If-Match`, `If-None-Match` or `If-Unmodified-Since` is not satisfied.
    PreconditionFailed = "read the current state, and try again if the change still makes sense";
    /// Another writer changed the same key at the same time.
    ConditionalConflict = "retry";
    /// The content does not match the MD5 or checksum from the caller or from the description of a file.
    BadDigest = "the data changed in transit, or the digest is of other data: check the digest, and try again";
    /// The number of bytes that arrived differs from the announced number.
    IncompleteBody = "repeat the transfer";
    /// The object is larger than the store allows.
    EntityTooLarge = "use a multipart upload, or split the object";
    /// A part other than the last is smaller than 5 MiB.
    EntityTooSmall = "use parts of at least 5 MiB, except for the last";
    /// A part named at completion was never sent, or has another ETag.
    InvalidPart = "list the parts and send what is missing";
    /// The parts named at completion are not in ascending order of number.
    InvalidPartOrder = "list the parts in ascending order of number";
    /// Permission was denied.
    AccessDenied = "check the owner and mode of the files, or the permissions of the access key";
    /// The request's signature does not match the secret key.
    SignatureDoesNotMatch = "check the secret key";
    /// The access key is not known to the server.
    InvalidAccessKeyId = "check the access key";
    /// The clocks of client and server differ by more than 15 minutes.
    RequestTimeTooSkewed = "set this machine's clock (NTP)";
    /// The file system is full.
    NoSpace = "free space on the file system, or use another one";
    /// A quota is used up.
    QuotaExceeded = "free space within the quota, or have it raised";
    /// The file system is mounted read-only.
    ReadOnly = "remount the file system read-write, or use another one";
    /// The process or the system has run out of file descriptors.
    TooManyOpenFiles = "raise `ulimit -n`";
    /// The store does not implement the operation.
    NotImplemented = "";
    /// The operation does not apply to this object.
    MethodNotAllowed = "";
    /// The endpoint cannot be reached, or tells the client to retry later.
    Unavailable = "check that the server runs and the endpoint is right";
    /// Another program held the required lock for longer than the maximum wait; nothing was changed.
    LockTimeout = "try again; if it keeps failing, find out with `lslocks` which process locks the bucket's .fordway";
    /// A deadline passed.
    Timeout = "retry, or raise the time limit";
    /// The server sent an invalid response.
    BadResponse = "check the address, and which server responds there";
    /// Data on disk is not in a valid format.
    Corrupt = "restore the file, or remove its `user.fordway` attribute to accept the file as it is";
    /// The caller interrupted the operation.
    Interrupted = "";
    /// Any other error from the operating system, which is stored as the source of this error.
    Io = "";
    /// A bug in this program.
    Internal = "please report this";
}

/// An error: what failed, on which object, why, after how many attempts, and what to do next.
#[derive(Debug)]
pub struct Error(Box<ErrorFields>);

/// A delete marker that an operation found instead of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteMarker {
    /// The version ID.
    pub version: VersionId,
    /// The time at which the delete marker was created.
    pub created: SystemTime,
}

#[derive(Debug)]
struct ErrorFields {
    kind: ErrorKind,
    detail: String,
    operation: &'static str,
    lane: &'static str,
    target: String,
    tries: u32,
    is_delete_marker: bool,
    marker: Option<DeleteMarker>,
    is_lost_connection: bool,
    is_untrusted_server: bool,
    s3_code: Option<Box<str>>,
    /// Advice that replaces the general advice of [`ErrorKind::advice`].
    advice: Option<&'static str>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// Creates an error of `kind`. `detail` is a sentence fragment that states the reason, and may be empty. If the
    /// general advice of [`ErrorKind::advice`] does not fit the reason, `detail` ends with a semicolon and advice that
    /// fits.
    // All functions that create errors are marked as cold. The compiler therefore separates the code that handles
    // errors from the code that usually runs.
    #[cold]
    pub fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        let (operation, lane, target) = ("", "", String::new());
        Error(Box::new(ErrorFields {
            kind,
            detail: detail.into(),
            operation,
            lane,
            target,
            tries: 1,
            is_delete_marker: false,
            marker: None,
            is_lost_connection: false,
            is_untrusted_server: false,
            s3_code: None,
            advice: None,
            source: None,
        }))
    }

    /// Replaces the reason.
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.0.detail = detail.into();
        self
    }

    /// Replaces the general advice of [`ErrorKind::advice`], which does not fit every situation. The node protocol does
    /// not transfer the new advice; a store states its advice in the reason instead.
    pub fn with_advice(mut self, advice: &'static str) -> Self {
        self.0.advice = Some(advice);
        self
    }

    /// Stores the error that caused this error.
    pub fn caused_by(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Records which operation failed on which object, unless an inner layer already did so.
    #[cold]
    pub fn during(mut self, operation: &'static str, lane: &'static str, bucket: &str, key: &str) -> Self {
        if self.0.operation.is_empty() {
            self.0.operation = operation;
            self.0.lane = lane;
            self.0.target = match (bucket, key) {
                ("", _) => String::new(),
                (bucket, "") => format!("s3://{bucket}"),
                (bucket, key) => format!("s3://{bucket}/{key}"),
            };
        }
        self
    }

    /// Records which operation failed, for a target with this URL or path, unless an inner layer already did so.
    pub fn during_at(mut self, operation: &'static str, lane: &'static str, target: &str) -> Self {
        if self.0.operation.is_empty() {
            (self.0.operation, self.0.lane, self.0.target) = (operation, lane, target.to_owned());
        }
        self
    }

    /// Records the number of attempts.
    pub fn after_tries(mut self, tries: u32) -> Self {
        self.0.tries = tries;
        self
    }

    /// Records that the operation found a delete marker instead of an object.
    pub fn at_delete_marker(mut self) -> Self {
        self.0.is_delete_marker = true;
        self
    }

    /// Records that the operation found the delete marker `marker` instead of an object.
    pub fn at_marker(mut self, marker: DeleteMarker) -> Self {
        self.0.marker = Some(marker);
        self.at_delete_marker()
    }

    /// Returns the delete marker that the operation found; `None` if the operation found no delete marker, or if the
    /// version of the marker is unknown. The node protocol does not transfer this version.
    pub fn marker(&self) -> Option<&DeleteMarker> {
        self.0.marker.as_ref()
    }

    /// Returns whether the operation is known to have found a delete marker instead of an object.
    pub fn is_at_delete_marker(&self) -> bool {
        self.0.is_delete_marker
    }

    /// Records that a connection existed, and ended before the whole response had arrived. Without this record,
    /// `Unavailable` can also mean that there was no connection.
    pub fn at_lost_connection(mut self) -> Self {
        self.0.is_lost_connection = true;
        self
    }

    /// Returns whether a connection is known to have ended before the whole response had arrived.
    pub fn is_at_lost_connection(&self) -> bool {
        self.0.is_lost_connection
    }

    /// Records that a server could not prove its identity, for example because its certificate is not trusted.
    pub fn at_untrusted_server(mut self) -> Self {
        self.0.is_untrusted_server = true;
        self
    }

    /// Returns whether a server is known not to have proved its identity.
    pub fn is_at_untrusted_server(&self) -> bool {
        self.0.is_untrusted_server
    }

    /// Records the S3 error code that a server sent for the failure. Several codes have the same [`ErrorKind`], and
    /// some callers need to distinguish these codes. A string that cannot be an error code is ignored.
    pub fn with_s3_code(mut self, code: &str) -> Self {
        let is_code = (1..=64).contains(&code.len()) && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
        self.0.s3_code = is_code.then(|| code.into());
        self
    }

    /// Returns the S3 error code that a server sent for the failure; `None` if no server sent a code.
    pub fn s3_code(&self) -> Option<&str> {
        self.0.s3_code.as_deref()
    }

    /// Returns an error for another call that failed because of this failure. The new error omits the operation, its
    /// target and the source, because these belong to the first call.
    #[cold]
    pub fn repeated(&self) -> Self {
        let mut error = Error::new(self.kind(), self.detail()).after_tries(self.tries());
        error.0.s3_code.clone_from(&self.0.s3_code);
        error.0.advice = self.0.advice;
        error.0.is_lost_connection = self.0.is_lost_connection;
        error.0.is_untrusted_server = self.0.is_untrusted_server;
        error
    }

    /// Returns the kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the reason for the failure, without the target and the advice.
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// Returns whether a change was refused because its key leads through a symbolic link out of its bucket. On every
    /// lane, the reason for such an error contains [`LEAVES_BUCKET`].
    pub fn leaves_bucket(&self) -> bool {
        self.0.kind == ErrorKind::AccessDenied && self.0.detail.contains(LEAVES_BUCKET)
    }

    /// Returns the URL (`s3://bucket/key`) or the path of the operation's target, or an empty string.
    pub fn target(&self) -> &str {
        &self.0.target
    }

    /// Returns what to do next: the advice from [`Error::with_advice`], or the general advice of [`ErrorKind::advice`].
    /// Returns an empty string if the reason already contains advice, because the general advice may not fit the
    /// reason. In a reason, a semicolon precedes advice and nothing else.
    pub fn advice(&self) -> &'static str {
        match self.0.advice {
            Some(advice) => advice,
            None if self.0.detail.contains(ADVICE_FOLLOWS) => "",
            None => self.0.kind.advice(),
        }
    }

    /// Returns whether the message of the error that caused this error contains advice.
    fn is_advised_by_source(&self) -> bool {
        let source = self.0.source.as_deref().and_then(|source| source.downcast_ref::<Error>());
        source.is_some_and(|inner| !inner.advice().is_empty() || inner.detail().contains(ADVICE_FOLLOWS))
    }

    /// Returns the number of attempts.
    pub fn tries(&self) -> u32 {
        self.0.tries
    }
}

/// The `errno` value for too many open files in the process. This value and [`ENFILE`] are the same on every Unix.
const EMFILE: i32 = 24;
/// The `errno` value for too many open files in the system.
const ENFILE: i32 = 23;

/// This conversion is the only place that maps errors of the operating system to kinds. A missing file becomes `Io`,
/// because its meaning depends on the caller.
impl From<&io::Error> for ErrorKind {
    fn from(error: &io::Error) -> Self {
        match error.kind() {
            _ if matches!(error.raw_os_error(), Some(EMFILE | ENFILE)) => ErrorKind::TooManyOpenFiles,
            io::ErrorKind::PermissionDenied => ErrorKind::AccessDenied,
            io::ErrorKind::StorageFull => ErrorKind::NoSpace,
            io::ErrorKind::QuotaExceeded => ErrorKind::QuotaExceeded,
            io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
            io::ErrorKind::InvalidFilename => ErrorKind::KeyTooLong,
            io::ErrorKind::FileTooLarge => ErrorKind::EntityTooLarge,
            io::ErrorKind::TimedOut => ErrorKind::Timeout,
            _ => ErrorKind::Io,
        }
    }
}

impl ErrorKind {
    /// Returns the variant's name in words: `NoSuchKey` becomes "no such key".
    fn words(self) -> String {
        let mut words = String::new();
        for letter in self.name().chars() {
            if letter.is_uppercase() && !words.is_empty() {
                words.push(' ');
            }
            words.push(letter.to_ascii_lowercase());
        }
        words
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        if !inner.operation.is_empty() {
            f.write_str(inner.operation)?;
            if !inner.target.is_empty() {
                f.write_str(" ")?;
                // A name may contain line feeds and escape sequences, which must not reach a log or a terminal.
                inner.target.chars().try_for_each(|c| match c.is_control() {
                    true => write!(f, "{}", c.escape_debug()),
                    false => f.write_char(c),
                })?;
            }
            write!(f, " ({}): ", inner.lane)?;
        }
        f.write_str(&inner.kind.words())?;
        if !inner.detail.is_empty() {
            write!(f, ": {}", inner.detail)?;
        }
        if let Some(source) = &inner.source {
            write!(f, ": {source}")?;
        }
        if inner.tries > 1 {
            write!(f, ", after {} tries", inner.tries)?;
        }
        match self.advice() {
            advice if advice.is_empty() || self.is_advised_by_source() => Ok(()),
            advice => write!(f, "{ADVICE_FOLLOWS}{advice}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

impl From<ErrorKind> for Error {
    #[cold]
    fn from(kind: ErrorKind) -> Self {
        Error::new(kind, "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_says_what_where_why_and_what_next() {
        let error = Error::new(ErrorKind::NoSpace, "4096 of 65536 bytes written")
            .during("put", "embedded", "b", "k")
            .during("complete", "http", "other", "other")
            .after_tries(3);
        assert_eq!(
            error.to_string(),
            "put s3://b/k (embedded): no space: 4096 of 65536 bytes written, after 3 tries; \
             free space on the file system, or use another one"
        );
    }

    #[test]
    fn advice_is_given_once_and_the_specific_advice_wins() {
        let locked = Error::new(ErrorKind::AccessDenied, "the version is retained; wait until its date");
        assert_eq!(locked.to_string(), "access denied: the version is retained; wait until its date");
        assert_eq!(locked.advice(), "");
        let outer = Error::new(ErrorKind::AccessDenied, "deleting").caused_by(locked);
        assert_eq!(
            outer.to_string(),
            "access denied: deleting: access denied: the version is retained; wait until its date"
        );
        let plain = Error::new(ErrorKind::AccessDenied, "permission denied");
        let advice = ErrorKind::AccessDenied.advice();
        let outer = Error::new(ErrorKind::AccessDenied, "opening").caused_by(plain).to_string();
        assert!(outer.ends_with(advice) && outer.matches(advice).count() == 1, "{outer}");
    }

    #[test]
    fn a_repeated_error_has_another_target() {
        let first = Error::new(ErrorKind::NoSpace, "why")
            .with_s3_code("Code")
            .at_lost_connection()
            .at_untrusted_server()
            .after_tries(2)
            .during("put", "l", "b", "k");
        let second = first.repeated().during("put", "l", "b", "other");
        assert_eq!((second.kind(), second.detail(), second.tries()), (ErrorKind::NoSpace, "why", 2));
        assert_eq!((second.s3_code(), second.target()), (Some("Code"), "s3://b/other"));
        assert!(second.is_at_lost_connection() && second.is_at_untrusted_server());
    }

    #[test]
    fn advice_can_be_replaced() {
        let error = Error::new(ErrorKind::Corrupt, "why").with_advice("copy again");
        assert_eq!((error.to_string().as_str(), error.advice()), ("corrupt: why; copy again", "copy again"));
        assert_eq!(error.repeated().advice(), "copy again");
        let none = Error::new(ErrorKind::Corrupt, "why").with_advice("");
        assert_eq!(none.to_string(), "corrupt: why");
    }

    #[test]
    fn only_codes_are_kept_as_codes() {
        let coded = |code: &str| Error::new(ErrorKind::Io, "").with_s3_code(code);
        assert_eq!(coded("InvalidObjectState").s3_code(), Some("InvalidObjectState"));
        for text in ["", "not a code", "<a>", &"x".repeat(65)] {
            assert_eq!(coded(text).s3_code(), None, "{text}");
        }
    }

    #[test]
    fn names_are_distinct() {
        let mut names: Vec<_> = ErrorKind::ALL.iter().map(|kind| kind.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ErrorKind::ALL.len());
    }
}
