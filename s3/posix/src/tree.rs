//! Paths beneath the root, and the one rule for where their links may lead.
//!
//! What people keep in a bucket may have links. What Fordway keeps beside it has none: a writer of the
//! bucket could use one to lead programs that work there, root's `gc` included, to files of others.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use fordway_store::Result;
use fordway_sys::{Errno, Links, Mode, OFlags, Root};

use crate::format;
use crate::layout::is_private;

/// How far symbolic links in a bucket may lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LinkRule {
    /// Anywhere beneath the root, to another bucket too.
    #[default]
    BeneathRoot,
    /// Nowhere out of the bucket, which is none itself: for a user who is given some buckets only.
    BeneathBucket,
}

/// The directory whose directories are the buckets.
pub(crate) struct Tree {
    root: Root,
    rule: LinkRule,
}

impl Tree {
    pub(crate) fn new(root: Root, rule: LinkRule) -> Self {
        Tree { root, rule }
    }

    /// The root itself.
    pub(crate) fn dir(&self) -> &OwnedFd {
        self.root.dir()
    }

    /// Opens `path`, which begins with the name of a bucket. Cost: one `openat2`; two more and a `close`
    /// where a link is on the way that the rule has to be checked against.
    /// Errors: `XDEV` or `LOOP` for a link that may not lead there, errors of `openat`.
    pub(crate) fn open_beneath(&self, path: &str, flags: OFlags, mode: Mode) -> Result<File, Errno> {
        if self.rule == LinkRule::BeneathRoot && !is_private(path) {
            return self.root.open_beneath(path, flags, mode);
        }
        match self.root.open_from(self.dir(), path, Links::None, flags, mode) {
            Err(Errno::LOOP) => self.open_through_links(path, flags, mode),
            done => done,
        }
    }

    /// In two steps, so that links beneath the bucket can be told from the bucket itself.
    fn open_through_links(&self, path: &str, flags: OFlags, mode: Mode) -> Result<File, Errno> {
        let Some((bucket, below)) = path.split_once('/') else { return Err(Errno::LOOP) };
        let to_bucket = match self.rule {
            LinkRule::BeneathRoot => Links::Beneath,
            LinkRule::BeneathBucket => Links::None,
        };
        let in_bucket = if is_private(path) { Links::None } else { Links::Beneath };
        let step = OFlags::PATH | OFlags::DIRECTORY;
        let bucket = self.root.open_from(self.dir(), bucket, to_bucket, step, Mode::empty())?;
        self.root.open_from(&bucket, below, in_bucket, flags, mode)
    }

    /// The version of the format that the root has. Errors: as when it is opened.
    pub(crate) fn format(&self, path: &Path) -> Result<u32> {
        format::check(&self.root, path)
    }

    /// Says that the root has this program's version. Errors: from the file system.
    pub(crate) fn write_format(&self) -> Result<()> {
        format::write(&self.root)
    }

    /// Opens `name` in `dir`, a directory beneath the root; a link is not followed.
    pub(crate) fn open_in(&self, dir: impl AsFd, name: &str, flags: OFlags) -> Result<File, Errno> {
        self.root.open_in(dir, name, flags)
    }
}
