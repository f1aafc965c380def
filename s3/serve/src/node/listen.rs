//! Making the socket, and whose it may replace.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::user_id;

/// The longest path that a socket can have (`sun_path`, without its final NUL).
const PATH_BYTES_MAX: usize = 107;

/// A listening socket whose name goes with it.
#[derive(Debug)]
pub(super) struct SocketFile {
    pub(super) listener: UnixListener,
    path: PathBuf,
    /// Device and inode, by which its name is known to be still its own.
    identity: (u64, u64),
}

impl SocketFile {
    /// Listens at `path` with these permissions. The socket of a gateway that is gone is replaced.
    /// Errors: `InvalidArgument` for a path that is too long, in use, or something else's;
    /// `AccessDenied`, also for the socket of another user.
    pub(super) fn listen(path: &Path, mode: u32) -> Result<Self> {
        let shown = path.display();
        if path.as_os_str().as_bytes().len() > PATH_BYTES_MAX {
            let why = format!(
                "the socket path {shown} is longer than {PATH_BYTES_MAX} bytes, the most that the system takes; choose a shorter one"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        let failed = |error| cannot_listen(path, error);
        // Of two gateways that start at once, one waits here until the other listens.
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let starting = File::open(dir).map_err(failed)?;
        starting.lock().map_err(failed)?;
        make_way(path)?;
        let listener = UnixListener::bind(path).map_err(failed)?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let made = fs::symlink_metadata(path).map_err(failed)?;
        Ok(SocketFile { listener, path: path.to_owned(), identity: (made.dev(), made.ino()) })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours = |found: &fs::Metadata| (found.dev(), found.ino()) == self.identity;
        if fs::symlink_metadata(&self.path).is_ok_and(|found| is_ours(&found)) {
            // What stays is replaced by the next gateway.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes what a gateway that is gone left at `path`.
fn make_way(path: &Path) -> Result<()> {
    let shown = path.display();
    let refuse = |kind, why: String| Err(Error::new(kind, why));
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(cannot_listen(path, error)),
    };
    if !found.file_type().is_socket() {
        return refuse(
            ErrorKind::InvalidArgument,
            format!("{shown} exists and is no socket; choose another path"),
        );
    }
    if found.uid() != user_id() {
        let why = format!(
            "the socket {shown} belongs to the user with the id {}; choose another path",
            found.uid()
        );
        return refuse(ErrorKind::AccessDenied, why);
    }
    match UnixStream::connect(path) {
        Ok(_) => {
            let why = format!("another gateway serves at {shown}; stop it, or choose another path");
            refuse(ErrorKind::InvalidArgument, why)
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|error| cannot_listen(path, error))
        }
        Err(error) => Err(cannot_listen(path, error)),
    }
}

fn cannot_listen(path: &Path, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied => ErrorKind::AccessDenied,
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => ErrorKind::InvalidArgument,
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("making the socket {}", path.display())).caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_socket_is_replaced_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let kind = |path: &Path| SocketFile::listen(path, 0o600).err().map(|error| error.kind());
        let live = SocketFile::listen(&path, 0o640).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        let refused = SocketFile::listen(&path, 0o600).unwrap_err();
        assert!(refused.to_string().contains("another gateway serves"), "{refused}");
        drop(live);
        assert!(!path.exists());
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let again = SocketFile::listen(&path, 0o600).unwrap();
        // A socket that was put in its place is not removed with it.
        fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        drop(again);
        assert!(path.exists());
        drop(other);
        if user_id() == 0 {
            std::os::unix::fs::chown(&path, Some(54_321), None).unwrap();
            assert_eq!(kind(&path), Some(ErrorKind::AccessDenied));
        }
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        assert_eq!(kind(&path), Some(ErrorKind::InvalidArgument));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        assert_eq!(kind(&dir.path().join("x".repeat(108))), Some(ErrorKind::InvalidArgument));
        assert_eq!(kind(&dir.path().join("none/s")), Some(ErrorKind::InvalidArgument));
    }
}
