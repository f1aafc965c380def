//! Bare objects: their file says all there is to say.
//!
//! A put with the ETag policy `fast` and nothing beside its bytes makes one. Its ETag is made of the
//! file's inode, size and modification time, and that time is set to the nanosecond: the clock that
//! file systems take times from ticks every few milliseconds, in which an inode may be freed and used
//! again, but no two files have one inode within a nanosecond. The sticky bit, which means nothing to
//! Linux on a file, says that there is no record to look for: a reader saves a system call, and a
//! writer two. Without that bit a record is looked for, and its absence is as good.

use std::os::fd::AsFd;

use fordway_store::Result;
use fordway_sys::{FileStat, Mode, set_mode, set_modified, stat};

use crate::errors::from_errno;
use crate::stage::{FILE_MODE, Staged};
use crate::versions::now_ns;

/// The bit that says so (`S_ISVTX`).
const STICKY: u32 = 0o1000;

/// The mode of a file that is to be a bare object, before the process's umask.
pub(crate) fn bare_mode() -> Mode {
    FILE_MODE | Mode::from_raw_mode(STICKY)
}

/// Whether the file says that it has no record.
pub(crate) fn is_bare(stat: &FileStat) -> bool {
    stat.is_file && stat.mode & STICKY != 0
}

/// Has a file that gets a record say no longer that it has none.
pub(crate) fn be_bare_no_more(file: impl AsFd, stat: &FileStat) -> Result<()> {
    match is_bare(stat) {
        true => {
            set_mode(file, stat.mode & !STICKY).map_err(|errno| from_errno(errno, "storing the metadata"))
        }
        false => Ok(()),
    }
}

impl Staged {
    /// Makes the file one whose own state tells it from every other version, and answers that state;
    /// `None` where the file system keeps no times as fine as that.
    pub(crate) fn stamp(&self) -> Result<Option<FileStat>> {
        let now_ns = i64::try_from(now_ns()).unwrap_or(i64::MAX);
        if set_modified(&self.file, now_ns).is_err() {
            return Ok(None);
        }
        let stat = stat(&self.file).map_err(|errno| from_errno(errno, "reading the file's state"))?;
        Ok(Some(stat).filter(|stat| is_bare(stat) && stat.modified_ns == now_ns))
    }
}
