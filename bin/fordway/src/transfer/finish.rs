//! The last steps of writing a file: checking that the content was written, and renaming the file. A network file
//! system may write the data after the last `write` has succeeded, and then report a full disk or an exceeded quota.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, fstatfs, renameat_with};
use rustix::io::Errno;

/// Whether a command removes the source after writing a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceFate {
    Kept,
    Removed,
}

const NFS_MAGIC: u64 = 0x6969;
const CEPH_MAGIC: u64 = 0x00c3_6400;

/// Checks that the content of a file was written. Must be called before the file replaces another file, before the
/// source is removed, and before any attribute is set, because NFS writes the data before it sets an attribute, and
/// ignores the errors of the write. If the source will be removed, also forces the content to stable storage, because
/// the file then is the only copy. Errors: the errors of delayed writes. Cost: one `fstatfs`, one `fcntl` and one
/// `close`, or one `fdatasync`.
pub(crate) fn finish_file(file: &File, source: SourceFate) -> io::Result<()> {
    if source == SourceFate::Kept && !only_sync_reports_all(file)? {
        return Ok(fordway_sys::close_errors(file)?);
    }
    sync_content(file)
}

/// Forces the content of a file to stable storage. If a file was extended to its final length before its content was
/// written, call this before the file is renamed and its modification time is set. Otherwise, the file could have the
/// right name, length and time after a power failure, but zeros as its content. Then `sync` would mistake it for the
/// object.
pub(crate) fn sync_content(file: &File) -> io::Result<()> {
    without_unsupported(file.sync_data())
}

/// Forces the names in a directory to stable storage. Has no effect if the process lacks permission to read the
/// directory, or if the file system cannot sync directories.
pub(crate) fn sync_names(directory: &Path) -> io::Result<()> {
    match File::open(directory) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        opened => without_unsupported(opened?.sync_all()),
    }
}

/// Ignores the errors for files that cannot be synced: pipes, character devices, and the directories of some file
/// systems.
fn without_unsupported(synced: io::Result<()>) -> io::Result<()> {
    match synced {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

/// Returns whether only `fdatasync` reports all errors of delayed writes. Ceph reports none when a file is closed, and
/// NFS does not report errors of data that the kernel has written early. Block devices report errors only to
/// `fdatasync`.
fn only_sync_reports_all(file: &File) -> io::Result<bool> {
    let is_device = file.metadata()?.file_type().is_block_device();
    Ok(is_device || fstatfs(file).is_ok_and(|about| matches!(about.f_type as u64, NFS_MAGIC | CEPH_MAGIC)))
}

/// Renames a file, unless the new name exists. Returns whether the file was renamed. On file systems that have neither
/// such a rename nor hard links, a file that another program creates at the same time may be replaced.
pub(crate) fn rename_to_new(from: &Path, to: &Path) -> io::Result<bool> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // The kernel or the file system does not support the flag.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => link_to_new(from, to),
        Err(Errno::EXIST) => Ok(false),
        renamed => Ok(renamed.map(|()| true)?),
    }
}

/// Like [`rename_to_new`], with a hard link, or with a check before the rename if there are no hard links.
fn link_to_new(from: &Path, to: &Path) -> io::Result<bool> {
    match std::fs::hard_link(from, to) {
        Ok(()) => std::fs::remove_file(from).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(_) if to.symlink_metadata().is_ok() => Ok(false),
        Err(_) => std::fs::rename(from, to).map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rename_to_a_new_name_replaces_nothing() {
        for rename in [rename_to_new, link_to_new] {
            let dir = tempfile::tempdir().unwrap();
            let [old, new, other] = ["old", "new", "other"].map(|name| dir.path().join(name));
            std::fs::write(&old, "old").unwrap();
            std::fs::write(&other, "other").unwrap();
            assert!(!rename(&old, &other).unwrap());
            assert!(rename(&old, &new).unwrap());
            assert_eq!(std::fs::read(&new).unwrap(), b"old");
            assert_eq!(std::fs::read(&other).unwrap(), b"other");
            assert!(!old.exists());
        }
    }
}
