//! Temporary directories of commands. If a command is killed, its directory remains. The next command that creates a
//! directory for the same purpose in the same parent directory removes the remaining directory.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use fordway_command::{IncompleteFileKind, InterruptFlag, TemporaryFile};
use fordway_sys::{FileSystemSharing, Mode, OFlags, open_in, user_id};
use tempfile::TempDir;

/// The name of the locked file.
const LOCK: &str = ".lock";

/// A directory that is younger than this duration may belong to a command that has not locked the directory yet.
const NEW: Duration = Duration::from_secs(60);

/// The command's interrupt flag, where the directories are registered. If a second signal ends the process immediately,
/// the registered directories are removed. The flag is the same for the whole process, so it is not passed to every
/// function that creates a directory.
static INTERRUPT: OnceLock<InterruptFlag> = OnceLock::new();

/// Makes a second signal remove all directories that are created later.
pub(super) fn remove_on_second_signal(interrupt: &InterruptFlag) {
    let _ = INTERRUPT.set(interrupt.clone());
}

/// A temporary directory that is removed when this value is dropped. A file in it is locked while the command runs.
pub(super) struct ScratchDirectory {
    dir: TempDir,
    /// The locked file. The directory itself cannot be locked, because a gateway locks the directory of its socket.
    _lock: File,
    _registered: Option<TemporaryFile>,
}

impl ScratchDirectory {
    /// Creates a directory in `parent`, and removes the directories of killed commands there. `purpose` is a part of
    /// the directory's name. Errors: the errors of creating the directory.
    pub(super) fn new(purpose: &str, parent: &Path) -> io::Result<Self> {
        let prefix = format!("fordway-{purpose}-");
        // Ignore the error: this command does not depend on the removal of old directories.
        let _ = remove_abandoned(&prefix, parent);
        // `compare` copies the user's files, which others may not be allowed to read.
        let private = Permissions::from_mode(0o700);
        let dir = tempfile::Builder::new().prefix(&prefix).permissions(private).tempdir_in(parent)?;
        let lock = File::create(dir.path().join(LOCK))?;
        // Ignore the error, so that the command also runs on a file system without locks. On such a file system,
        // directories of killed commands are not removed.
        let _ = lock.try_lock();
        let register = |flag: &InterruptFlag| flag.temporary(dir.path(), IncompleteFileKind::Directory);
        let registered = INTERRUPT.get().map(register);
        Ok(ScratchDirectory { dir, _lock: lock, _registered: registered })
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Removes the directory and its contents. Errors: the errors of the removal.
    pub(super) fn close(self) -> io::Result<()> {
        self.dir.close()
    }
}

/// Removes the abandoned directories in `parent` whose names begin with `prefix`. A directory is abandoned if it
/// belongs to this user, is old enough and is not locked. Does nothing on file systems that nodes share, because locks
/// of other nodes may be invisible there.
fn remove_abandoned(prefix: &str, parent: &Path) -> io::Result<()> {
    let opened = File::open(parent)?;
    if FileSystemSharing::of(&opened).map_or(true, FileSystemSharing::is_shared) {
        return Ok(());
    }
    for entry in std::fs::read_dir(parent)?.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with(prefix)) else { continue };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let Ok(dir) = open_in(&opened, name, flags, Mode::empty()).map(File::from) else { continue };
        if is_abandoned(&dir) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

fn is_abandoned(dir: &File) -> bool {
    let is_old = |state: std::fs::Metadata| {
        let age = state.modified().ok().and_then(|modified| modified.elapsed().ok());
        state.uid() == user_id() && age.is_some_and(|age| age > NEW)
    };
    let lock = || open_in(dir, LOCK, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).map(File::from);
    dir.metadata().is_ok_and(is_old) && lock().is_ok_and(|lock| lock.try_lock().is_ok())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_directory_of_a_killed_command_is_removed_by_the_next() {
        let parent = tempfile::tempdir().unwrap();
        let make = |name: &str, age: Duration| {
            let path = parent.path().join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("file"), b"content").unwrap();
            std::fs::write(path.join(LOCK), b"").unwrap();
            File::open(&path).unwrap().set_modified(SystemTime::now() - age).unwrap();
            path
        };
        let (killed, new) = (make("fordway-compare-a", 2 * NEW), make("fordway-compare-b", NEW / 2));
        let (other, foreign) = (make("fordway-ledger-a", 2 * NEW), make("compare", 2 * NEW));
        std::os::unix::fs::symlink(&foreign, parent.path().join("fordway-compare-c")).unwrap();
        let running = make("fordway-compare-d", 2 * NEW);
        let lock = File::open(running.join(LOCK)).unwrap();
        lock.try_lock().unwrap();
        let made = ScratchDirectory::new("compare", parent.path()).unwrap();
        assert_eq!(made.path().metadata().unwrap().mode() & 0o777, 0o700);
        assert!(!killed.exists());
        assert!([&new, &other, &foreign, &running].iter().all(|path| path.join("file").exists()));
        // A later command must not remove the directory of this command.
        File::open(made.path()).unwrap().set_modified(SystemTime::now() - 2 * NEW).unwrap();
        drop((lock, ScratchDirectory::new("compare", parent.path()).unwrap()));
        assert!(made.path().exists());
        let path = made.path().to_owned();
        made.close().unwrap();
        assert!(!path.exists());
    }
}
