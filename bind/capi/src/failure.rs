//! Reports failures to the caller: an errno, and a message for each thread.

use std::cell::RefCell;
use std::error::Error as _;
use std::ffi::{CString, c_char, c_int};
use std::io;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fordway_store::{Error, ErrorKind};

/// Why a call failed: an errno and a message.
#[derive(Debug)]
pub(crate) struct CallFailure {
    pub(crate) errno: c_int,
    pub(crate) sentence: String,
}

impl CallFailure {
    pub(crate) fn new(errno: c_int, sentence: impl Into<String>) -> Self {
        CallFailure { errno, sentence: sentence.into() }
    }

    /// Returns the failure for an error of a read of an open file. A file that no longer exists is reported as
    /// `ESTALE`, like a file that was replaced, because the version that was opened no longer exists.
    pub(crate) fn of_read(error: Error) -> Self {
        match error.kind() {
            ErrorKind::NoSuchBucket | ErrorKind::NoSuchKey | ErrorKind::NoSuchVersion => {
                CallFailure::new(libc::ESTALE, format!("{error}; it was removed after it was opened"))
            }
            _ => CallFailure::from(error),
        }
    }
}

impl From<Error> for CallFailure {
    fn from(error: Error) -> Self {
        let of_system = error.source().and_then(|source| source.downcast_ref::<io::Error>());
        let errno = match (error.kind(), of_system.and_then(io::Error::raw_os_error)) {
            _ if of_system.is_some_and(|cause| cause.kind() == io::ErrorKind::OutOfMemory) => libc::ENOMEM,
            (ErrorKind::Io, Some(errno)) => errno,
            (ErrorKind::Unavailable, _) if error.is_at_lost_connection() => libc::ECONNRESET,
            (kind, _) => errno_of(kind),
        };
        CallFailure::new(errno, error.to_string())
    }
}

/// Returns the errno for an error of this kind.
const fn errno_of(kind: ErrorKind) -> c_int {
    use ErrorKind as Kind;
    match kind {
        Kind::NoSuchBucket | Kind::NoSuchKey | Kind::NoSuchUpload | Kind::NoSuchVersion => libc::ENOENT,
        Kind::BucketAlreadyExists | Kind::BucketAlreadyOwnedByYou => libc::EEXIST,
        Kind::BucketNotEmpty => libc::ENOTEMPTY,
        Kind::InvalidBucketName | Kind::InvalidKey | Kind::InvalidArgument | Kind::InvalidTag => libc::EINVAL,
        Kind::EntityTooSmall | Kind::InvalidPart | Kind::InvalidPartOrder => libc::EINVAL,
        Kind::KeyTooLong => libc::ENAMETOOLONG,
        Kind::InvalidRange => libc::ERANGE,
        // The file is no longer the version that was opened.
        Kind::NotModified | Kind::PreconditionFailed => libc::ESTALE,
        Kind::ConditionalConflict | Kind::LockTimeout => libc::EBUSY,
        Kind::BadDigest | Kind::Corrupt => libc::EBADMSG,
        Kind::IncompleteBody | Kind::BadResponse => libc::EPROTO,
        Kind::EntityTooLarge => libc::EFBIG,
        Kind::AccessDenied | Kind::SignatureDoesNotMatch | Kind::InvalidAccessKeyId => libc::EACCES,
        Kind::RequestTimeTooSkewed => libc::EACCES,
        Kind::NoSpace => libc::ENOSPC,
        Kind::QuotaExceeded => libc::EDQUOT,
        Kind::ReadOnly => libc::EROFS,
        Kind::TooManyOpenFiles => libc::EMFILE,
        Kind::NotImplemented => libc::ENOTSUP,
        Kind::MethodNotAllowed => libc::EPERM,
        Kind::Unavailable => libc::EHOSTUNREACH,
        Kind::Timeout => libc::ETIMEDOUT,
        Kind::Interrupted => libc::EINTR,
        Kind::Io | Kind::Internal => libc::EIO,
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
    /// Replaces `LAST` after the thread has destroyed that variable, because exit handlers and destructors of
    /// thread-specific data may also call functions. This variable has no destructor.
    static LATE: RefCell<ManuallyDrop<Option<CString>>> = const { RefCell::new(ManuallyDrop::new(None)) };
}

/// Returns the message of this thread's last failure. The pointer is valid until the thread's next failure.
pub(crate) fn last_sentence() -> *const c_char {
    let late = || LATE.with_borrow(|late| late.as_ref().map_or(c"".as_ptr(), |late| late.as_ptr()));
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or_else(|_| late())
}

fn keep_sentence(sentence: &str) {
    let mut text = Some(CString::new(sentence.replace('\0', "?")).unwrap_or_default());
    let kept = LAST.try_with(|last| *last.borrow_mut() = text.take().unwrap_or_default());
    if kept.is_err() {
        drop(ManuallyDrop::into_inner(LATE.replace(ManuallyDrop::new(text))));
    }
}

/// Runs `work`. If it fails or panics, sets errno and the thread's message, and returns -1.
pub(crate) fn guarded<T: From<i8>>(work: impl FnOnce() -> Result<T, CallFailure>) -> T {
    let bug = |_| Err(CallFailure::new(libc::EIO, "a bug in fordway; please report this"));
    let CallFailure { errno, sentence } = match catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(bug) {
        Ok(value) => return value,
        Err(failure) => failure,
    };
    keep_sentence(&sentence);
    // SAFETY: this thread's errno is always valid.
    unsafe { *libc::__errno_location() = errno };
    T::from(-1)
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn sentence() -> String {
        // SAFETY: the pointer refers to this thread's C string, and this thread makes no other call before using it.
        unsafe { CStr::from_ptr(last_sentence()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn every_kind_has_a_number_that_tells_it() {
        for kind in ErrorKind::ALL {
            let failure = CallFailure::from(Error::new(*kind, "because"));
            assert!(failure.errno > 0 && failure.sentence.contains("because"), "{kind:?}");
            let is_vague = failure.errno == libc::EIO;
            assert_eq!(is_vague, matches!(kind, ErrorKind::Io | ErrorKind::Internal), "{kind:?}");
        }
        let full = Error::new(ErrorKind::Io, "").caused_by(io::Error::from_raw_os_error(libc::ENXIO));
        assert_eq!(CallFailure::from(full).errno, libc::ENXIO);
    }

    #[test]
    fn a_file_that_no_longer_exists_is_stale() {
        for kind in ErrorKind::ALL {
            let is_gone =
                matches!(kind, ErrorKind::NoSuchBucket | ErrorKind::NoSuchKey | ErrorKind::NoSuchVersion);
            let wanted = if is_gone { libc::ESTALE } else { errno_of(*kind) };
            assert_eq!(CallFailure::of_read(Error::new(*kind, "because")).errno, wanted, "{kind:?}");
        }
    }

    #[test]
    fn failures_and_panics_are_told_and_success_is_silent() {
        assert_eq!(guarded::<i64>(|| Err(CallFailure::new(libc::EBADF, "a\0b"))), -1);
        assert_eq!(
            (io::Error::last_os_error().raw_os_error(), sentence()),
            (Some(libc::EBADF), "a?b".into())
        );
        assert_eq!(guarded::<i64>(|| Ok(7)), 7);
        assert_eq!(sentence(), "a?b");
        assert_eq!(guarded::<i32>(|| panic!("on purpose")), -1);
        assert!(sentence().contains("a bug in fordway"));
    }
}
