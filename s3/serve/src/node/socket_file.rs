//! The Unix socket of a node gateway as a file: creating the file, replacing the socket of a gateway that no longer
//! runs, and removing the file.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::user_id;
use rustix::fs::OFlags;

/// The maximum length of a socket's path (`sun_path`, without its final NUL).
const PATH_BYTES_MAX: usize = 107;

/// A listening Unix socket. Dropping this value removes the socket's file.
#[derive(Debug)]
pub(super) struct SocketFile {
    pub(super) listener: UnixListener,
    path: PathBuf,
    /// The device and inode numbers of the socket's file, to check whether the path still refers to this file.
    identity: (u64, u64),
}

impl SocketFile {
    /// Listens on `path`, with a file that has the permissions `mode`. Replaces the socket of a gateway that is no
    /// longer running. Errors: `InvalidArgument` for a path that is too long or in use, and for a file at this path
    /// that is not a socket; `AccessDenied`, including for another user's socket.
    pub(super) fn listen(path: &Path, mode: u32) -> Result<Self> {
        let shown = path.display();
        if path.as_os_str().as_bytes().len() > PATH_BYTES_MAX {
            let why = format!(
                "the socket path {shown} is longer than {PATH_BYTES_MAX} bytes, the system's maximum; choose a shorter one"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        let failed = |error| cannot_listen(path, error);
        let _starting = StartLock::take(path)?;
        make_way(path)?;
        let listener = UnixListener::bind(path).map_err(failed)?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let made = fs::symlink_metadata(path).map_err(failed)?;
        Ok(SocketFile { listener, path: path.to_owned(), identity: (made.dev(), made.ino()) })
    }

    /// Returns the path of the socket's file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours = |found: &fs::Metadata| (found.dev(), found.ino()) == self.identity;
        if fs::symlink_metadata(&self.path).is_ok_and(|found| is_ours(&found)) {
            // Errors are ignored, because the next gateway replaces a remaining file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A lock for the start of a gateway. If two gateways start at the same time, the second gateway waits until the first
/// gateway is listening. The lock is on a file that only the gateway's user can open, so no other user can hold the
/// lock. Dropping this value removes the file and releases the lock.
struct StartLock {
    path: PathBuf,
    _file: File,
}

impl StartLock {
    /// Waits for the lock of `socket`. Errors: `AccessDenied` if the file belongs to another user.
    fn take(socket: &Path) -> Result<Self> {
        let mut name = OsString::from(socket);
        name.push(".lock");
        let path = PathBuf::from(name);
        loop {
            let file = Self::open(&path).map_err(|error| cannot_listen(&path, error))?;
            let opened = file.metadata().map_err(|error| cannot_listen(&path, error))?;
            if opened.uid() != user_id() || !opened.is_file() {
                let shown = path.display();
                let why = format!(
                    "{shown} is not a file of this user; remove it, or choose another path for the socket"
                );
                return Err(Error::new(ErrorKind::AccessDenied, why));
            }
            file.lock().map_err(|error| cannot_listen(&path, error))?;
            // The previous holder may have removed the file.
            let is_same = |found: fs::Metadata| (found.dev(), found.ino()) == (opened.dev(), opened.ino());
            if fs::symlink_metadata(&path).is_ok_and(is_same) {
                return Ok(StartLock { path, _file: file });
            }
        }
    }

    fn open(path: &Path) -> io::Result<File> {
        // If the path is a FIFO, opening it must not block.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(flags as i32)
            .open(path)
    }
}

impl Drop for StartLock {
    fn drop(&mut self) {
        // The file is removed while it is locked. Errors are ignored, because the next gateway uses a remaining file.
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes a socket at `path` whose gateway is no longer running.
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
            format!("{shown} exists and is not a socket; choose another path"),
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
            let why = format!("another gateway listens on {shown}; stop it, or choose another path");
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
        assert!(refused.to_string().contains("another gateway listens"), "{refused}");
        drop(live);
        assert!(!path.exists());
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let again = SocketFile::listen(&path, 0o600).unwrap();
        // Dropping a socket does not remove another socket that was created at the same path.
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

    /// Anyone who may read the socket's directory may lock the directory. The start of a gateway must therefore not
    /// wait for a lock on the directory.
    #[test]
    fn nobody_else_can_delay_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let locked = File::open(dir.path()).unwrap();
        locked.lock().unwrap();
        drop(SocketFile::listen(&path, 0o600).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "the lock's file is removed");
        let lock = dir.path().join("s.lock");
        rustix::fs::mkfifoat(rustix::fs::CWD, &lock, rustix::fs::Mode::RWXU).unwrap();
        let refused = SocketFile::listen(&path, 0o600).expect_err("it is a FIFO");
        assert!(refused.to_string().contains("s.lock"), "{refused}");
        fs::remove_file(&lock).unwrap();
        if user_id() == 0 {
            fs::write(&lock, "").unwrap();
            std::os::unix::fs::chown(&lock, Some(54_321), None).unwrap();
            let refused = SocketFile::listen(&path, 0o600).expect_err("it is another user's");
            assert_eq!(refused.kind(), ErrorKind::AccessDenied);
        }
    }

    #[test]
    fn of_gateways_that_start_together_one_listens() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        for _ in 0..20 {
            drop(UnixListener::bind(&path).unwrap());
            let listening = std::thread::scope(|scope| {
                let all: Vec<_> =
                    (0..4).map(|_| scope.spawn(|| SocketFile::listen(&path, 0o600).ok())).collect();
                all.into_iter().filter_map(|one| one.join().unwrap()).collect::<Vec<_>>()
            });
            assert_eq!(listening.len(), 1);
            UnixStream::connect(&path).unwrap();
        }
    }
}
