//! Reading directories.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, FileType, RawDir};
use rustix::io::{Errno, Result};

use crate::call::{self, statat};
use crate::name::text_to_name;

/// Room for the entries of one `getdents64`: about a thousand names a call.
const BUFFER_BYTES: usize = 32 * 1024;

/// What a directory entry says it is, without a look at the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Link,
    /// The file system does not say; a `stat` will.
    Unknown,
    /// A FIFO, socket or device.
    Other,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name, in the bytes the file system has.
    pub name: Vec<u8>,
    /// What it is.
    pub kind: EntryKind,
}

/// Calls `visit` for every entry of `dir` but `.` and `..`, in the file system's order.
/// A directory that is removed meanwhile has no more. Cost: one `getdents64` for about a thousand entries. `dir` is read from where it stands.
pub fn read_dir(dir: impl AsFd, mut visit: impl FnMut(&[u8], EntryKind)) -> Result<()> {
    let mut buffer = Vec::with_capacity(BUFFER_BYTES);
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    loop {
        if entries.is_buffer_empty() {
            call::point("getdents64")?;
        }
        let Some(entry) = entries.next() else { return Ok(()) };
        let entry = match entry {
            // It was removed meanwhile, and so was all that was in it.
            Err(Errno::NOENT) => return Ok(()),
            entry => entry?,
        };
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            visit(name, kind_of(entry.file_type()));
        }
    }
}

/// What `name` in `dir` is, for an entry that was [`EntryKind::Unknown`]; a link is not followed.
/// Cost: one `newfstatat`.
pub fn kind_in(dir: impl AsFd, name: &str) -> Result<EntryKind> {
    let stat = statat(dir, &*text_to_name(name), AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(kind_of(FileType::from_raw_mode(stat.st_mode)))
}

fn kind_of(kind: FileType) -> EntryKind {
    match kind {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Dir,
        FileType::Symlink => EntryKind::Link,
        FileType::Unknown => EntryKind::Unknown,
        _ => EntryKind::Other,
    }
}
