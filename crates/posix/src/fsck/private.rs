//! What else lies in a bucket's private directory.

use fordway_store::{Bucket, Result};
use fordway_sys::{Errno, Mode, OFlags, name_to_text, read_into_spare};

use super::finding::show_name;
use super::{Check, FindingKind};
use crate::layout::{VERSIONING, join, meta_dir, private_dir};
use crate::private::versioning_of;
use crate::scan::each_entry;
use crate::sidecar::inode_of;

/// More than `versioning` ever holds.
const SHOWN_BYTES: usize = 64;

impl Check<'_> {
    /// Whether all sidecar files are called as such. Their content is checked with their objects.
    pub(super) fn sidecar_names(&mut self, bucket: &Bucket) -> Result<()> {
        let path = meta_dir(bucket);
        let dir = match self.inner.open_to_scan(&path) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return self.unreadable(&path, errno, "opening"),
        };
        let read = each_entry(&dir, |name, _| {
            self.looked_at_one()?;
            match std::str::from_utf8(name).ok().and_then(inode_of) {
                Some(_) => Ok(()),
                None => self.found(FindingKind::SidecarName, join(&path, &name_to_text(name)), ""),
            }
        })?;
        read.or_else(|errno| self.unreadable(&path, errno, "reading"))
    }

    /// Whether the bucket says clearly if it keeps old versions.
    pub(super) fn versioning(&mut self, bucket: &Bucket) -> Result<()> {
        let path = join(&private_dir(bucket), VERSIONING);
        let mut text = Vec::new();
        let read = self
            .inner
            .root
            .open_beneath(&path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())
            .and_then(|file| read_into_spare(&file, &mut text, 0, SHOWN_BYTES));
        match read {
            Ok(_) if versioning_of(&text).is_some() => Ok(()),
            Ok(_) => self.found(FindingKind::BadVersioning, path, format!("it says {:?}", show_name(&text))),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(errno) => self.unreadable(&path, errno, "reading"),
        }
    }
}
