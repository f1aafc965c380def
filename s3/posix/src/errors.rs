//! Maps `errno` values to the error kinds of the store.

use std::path::Path;

use fordway_store::{Error, ErrorKind};
use fordway_sys::Errno;

/// The error of a change whose path leads through a symbolic link out of its bucket. None of the system calls that the
/// store makes returns this error.
pub(crate) const LEAVES_BUCKET: Errno = Errno::MULTIHOP;

/// Returns the store's error for `errno` in an operation on an object; `doing` names the step that failed.
#[cold]
pub(crate) fn from_errno(errno: Errno, doing: &str) -> Error {
    let error = std::io::Error::from(errno);
    let kind = match errno {
        Errno::XDEV | Errno::LOOP | LEAVES_BUCKET => ErrorKind::AccessDenied,
        Errno::NOENT | Errno::NOTDIR => ErrorKind::NoSuchKey,
        Errno::STALE => ErrorKind::ConditionalConflict,
        Errno::AGAIN => ErrorKind::LockTimeout,
        _ => ErrorKind::from(&error),
    };
    match why(kind, errno) {
        Some(why) => Error::new(kind, format!("{doing}: {why}")),
        None if errno == Errno::STALE => {
            let why = format!("{doing}: another node has removed it in the meantime; try again");
            Error::new(kind, why).caused_by(error)
        }
        None => Error::new(kind, doing).caused_by(error),
    }
}

/// The end of the message for the errors `EACCES` and `EPERM`.
const NO_PERMISSION: &str = "permission denied";

/// Returns the meaning of this kind of error in this store; `None` if the system's own message is sufficient.
fn why(kind: ErrorKind, errno: Errno) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::AccessDenied if matches!(errno, Errno::XDEV | Errno::LOOP) => {
            "a symbolic link is not allowed: it leads out of the root (or, for a user with only some \
             buckets, out of the bucket) or into .fordway, or is part of a loop of symbolic links; or, for a \
             change, it leads to a directory that does not exist, or belongs neither to you nor to root"
        }
        ErrorKind::AccessDenied if errno == LEAVES_BUCKET => fordway_store::LEAVES_BUCKET,
        ErrorKind::AccessDenied => NO_PERMISSION,
        ErrorKind::LockTimeout if errno == Errno::AGAIN => {
            "another program holds a lease on the file, or keeps renaming directories on its path"
        }
        ErrorKind::NoSpace => "the file system is full",
        ErrorKind::QuotaExceeded => "the quota is used up",
        ErrorKind::ReadOnly => "the file system is read-only",
        ErrorKind::KeyTooLong => "the path is longer than the file system allows",
        ErrorKind::EntityTooLarge => "the file is larger than the file system allows",
        ErrorKind::TooManyOpenFiles => "no file descriptor is left",
        ErrorKind::NoSuchKey => "it does not exist",
        _ => return None,
    })
}

/// Returns the error for a change of a key whose file is on a different mount from its bucket's private area. A file
/// cannot be renamed or linked from one mount to another. In addition, files on two mounts may have the same inode
/// number, but sidecar files are named after inode numbers.
#[cold]
pub(crate) fn on_another_mount() -> Error {
    Error::new(
        ErrorKind::NotImplemented,
        "the key is not on the same mount as its bucket's .fordway, so S3 clients can neither write to it nor keep \
         versions of it: mount it as a bucket, or write to it as a directory",
    )
}

/// Returns whether the operating system refused an operation because the caller lacks a permission. Other errors of the
/// kind `AccessDenied` mean that the store must not use a file.
pub(crate) fn lacks_permission(error: &Error) -> bool {
    error.kind() == ErrorKind::AccessDenied && error.detail().ends_with(NO_PERMISSION)
}

/// Returns whether the cause of the error is `ESTALE`: another node has removed the file from the server.
pub fn is_stale(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<std::io::Error>());
    source.is_some_and(|source| source.raw_os_error() == Some(Errno::STALE.raw_os_error()))
}

/// Returns the error for a root directory that cannot be opened. A missing root is `InvalidArgument`, not `NoSuchKey`.
pub(crate) fn on_root(errno: Errno, root: &Path) -> Error {
    let root = root.display();
    match errno {
        Errno::NOENT => {
            let why =
                format!("the directory {root} does not exist; correct the path, or create the directory");
            Error::new(ErrorKind::InvalidArgument, why).caused_by(std::io::Error::from(errno))
        }
        Errno::NOTDIR => Error::new(ErrorKind::InvalidArgument, format!("{root} is not a directory")),
        errno => from_errno(errno, &format!("opening {root}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_operator_must_tell_apart_is_told_apart() {
        let errnos = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::ACCESS, Errno::NAMETOOLONG, Errno::IO];
        let mut kinds: Vec<_> = errnos.map(|errno| from_errno(errno, "writing").kind()).to_vec();
        kinds.sort();
        kinds.dedup();
        assert_eq!(kinds.len(), errnos.len());
    }

    /// Files are opened in non-blocking mode, so opening a file on which another program has a lease (`F_SETLEASE`)
    /// fails with `EAGAIN`.
    #[test]
    fn a_leased_file_is_one_to_come_back_for() {
        let error = from_errno(Errno::AGAIN, "opening");
        assert_eq!(error.kind(), ErrorKind::LockTimeout);
        assert!(error.to_string().contains("holds a lease"), "{error}");
    }
}
