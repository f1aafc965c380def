//! The end of writing a file. A network file system may write the data after the last `write` has succeeded, and then
//! report a full disk or an exceeded quota.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileTypeExt;

use rustix::fs::fstatfs;

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
/// the file then is the only copy. Errors: those of delayed writes. Cost: one `fstatfs`, one `fcntl` and one `close`, or
/// one `fdatasync`.
pub(crate) fn finish_file(file: &File, source: SourceFate) -> io::Result<()> {
    if source == SourceFate::Kept && !only_sync_reports_all(file)? {
        return Ok(fordway_sys::close_errors(file)?);
    }
    match file.sync_data() {
        // A pipe or a character device.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

/// Returns whether only `fdatasync` reports all errors of delayed writes. Ceph reports none when a file is closed, and
/// NFS does not report those of data that the kernel has written early. Block devices report errors only to
/// `fdatasync`.
fn only_sync_reports_all(file: &File) -> io::Result<bool> {
    let is_device = file.metadata()?.file_type().is_block_device();
    Ok(is_device || fstatfs(file).is_ok_and(|about| matches!(about.f_type as u64, NFS_MAGIC | CEPH_MAGIC)))
}
