//! The mark on a setting or an event record, which shows that the owner of the file gave the file its name.
//!
//! Anyone who may write to a directory without the sticky bit can rename any file in it, and a file keeps its owner.
//! Where others may rename files, the ownership of a file in a private directory therefore does not prove that the
//! owner put the file there: another user may have moved in one of the owner's objects, or an older setting or event
//! record. Fordway sets the mark, an attribute of the file, when it publishes the file:
//!
//! ```text
//! user.fordway.owner = "1 KIND BUCKET FILE TIME"     the identities of the bucket's directory and of the file, and the
//!                                                    change time of the file just before the mark was set, in ns
//! ```
//!
//! An identity is an inode number and the creation time, in ns (INODE.CREATED). A mark is valid if the kind and the
//! identities match, the file was created at most [`SETTLING_NS`] before `TIME`, and the file's last change was at most
//! [`SETTLING_NS`] after `TIME`.
//!
//! - Nobody else can set the mark, because only the owner may write to the file ([`is_writable_by_others`]). If others
//!   could write to the file earlier, they may have set a mark then. Such a mark is valid only if the file was just
//!   created when they set it, and the owner closed the file within the following [`SETTLING_NS`].
//! - A rename changes the change time, which no program can set. An older document that is moved aside and later moved
//!   back is therefore not trusted. This does not hold if the whole `.fordway` is moved aside and later moved back:
//!   this changes only the directory. In a bucket where others may rename files, they can therefore bring back an older
//!   document of the owner; only the sticky bit prevents this.
//! - The identities distinguish the file from a copy, and prevent a file from being trusted in another bucket even if
//!   the file system does not change the time on a rename.
//! - Copying or restoring a root invalidates the marks, and the owners must set the documents again. Nothing in a copied
//!   file shows that its owner, and not another user, gave it its name.
//!
//! Where nobody else may rename, and in a bucket with the sticky bit, no mark is needed, and none is read.

use std::os::fd::AsFd;

use fordway_store::{Bucket, Error, ErrorKind, Result};
use fordway_sys::{
    Errno, FileStat, get_xattr, is_same_user, recorded_creation_ns, set_xattr, stat, sync_all,
};

use crate::area::{TrustedOwner, is_writable_by_others};
use crate::errors::from_errno;
use crate::layout::{OWNER_MARK, private_dir};
use crate::volume::StoreDirectoryTree;
use crate::{Durability, ReadConsistency};

/// The time in ns, after the creation of a file, within which the file can get a mark. A change of the file that is
/// made later than this time after the mark invalidates the mark. Setting the mark and publishing the file are changes
/// too. The time is compared with times of the same file, so the clocks of nodes do not matter.
const SETTLING_NS: i64 = 2_000_000_000;
/// The maximum length of a mark, in bytes.
const MARK_BYTES: usize = 192;
/// The number of attempts to set a mark. On a busy file server, an attempt may take longer than [`SETTLING_NS`].
pub(crate) const ATTEMPTS: usize = 3;

/// Sets and checks the marks of one kind of file in one bucket.
#[derive(Clone, Debug)]
pub(crate) struct OwnerMark<'k> {
    kind: &'k str,
    bucket: String,
}

impl OwnerMark<'_> {
    /// Sets the mark on a file that the caller has just created. Returns `false` if the file system has no attributes
    /// or no creation times. Cost: usually one `fsetxattr`, one `statx` and two `fstat`.
    pub(crate) fn set(&self, file: impl AsFd) -> Result<bool, Errno> {
        let mut state = stat(&file)?;
        let Some(created_ns) = recorded_creation_ns(&file)? else { return Ok(false) };
        let OwnerMark { kind, bucket } = self;
        for _ in 0..ATTEMPTS {
            let mark = format!("1 {kind} {bucket} {}.{created_ns} {}", state.inode, state.changed_ns);
            match set_xattr(&file, OWNER_MARK, mark.as_bytes()) {
                Err(Errno::OPNOTSUPP) => return Ok(false),
                done => done?,
            }
            let before_ns = state.changed_ns;
            state = stat(&file)?;
            if is_soon_after(before_ns, state.changed_ns) {
                break;
            }
        }
        Ok(true)
    }

    /// Sets the mark again if the file was published too long after [`OwnerMark::set`]. Returns whether the mark is
    /// valid: if the file was created too long ago, it cannot have a mark.
    pub(crate) fn settle(&self, file: impl AsFd, durability: Durability) -> Result<bool, Errno> {
        if self.is_on(&file, &stat(&file)?) {
            return Ok(true);
        }
        self.set(&file)?;
        if durability != Durability::None {
            sync_all(&file)?;
        }
        Ok(self.is_on(&file, &stat(&file)?))
    }

    /// Returns whether the open file, whose metadata is `state`, has a valid mark. Cost: one `fgetxattr`; if there is a
    /// mark, one `statx`.
    pub(crate) fn is_on(&self, file: impl AsFd, state: &FileStat) -> bool {
        let mut buffer = [0; MARK_BYTES];
        let Ok(Some(mark)) = get_xattr(&file, OWNER_MARK, &mut buffer) else { return false };
        let matches = |mark: StoredMark| {
            mark.kind == self.kind
                && mark.bucket == self.bucket
                && is_soon_after(mark.time_ns, state.changed_ns)
                && recorded_creation_ns(&file).is_ok_and(|created_ns| {
                    created_ns.is_some_and(|created_ns| {
                        is_soon_after(created_ns, mark.time_ns)
                            && mark.file == format!("{}.{created_ns}", state.inode)
                    })
                })
        };
        !is_writable_by_others(state) && StoredMark::parse(mark).is_some_and(matches)
    }
}

/// A parsed mark.
struct StoredMark<'m> {
    kind: &'m str,
    bucket: &'m str,
    file: &'m str,
    time_ns: i64,
}

impl<'m> StoredMark<'m> {
    fn parse(mark: &'m [u8]) -> Option<Self> {
        match std::str::from_utf8(mark).ok()?.split(' ').collect::<Vec<_>>()[..] {
            ["1", kind, bucket, file, time] => {
                Some(StoredMark { kind, bucket, file, time_ns: time.parse().ok()? })
            }
            _ => None,
        }
    }
}

fn is_soon_after(before_ns: i64, after_ns: i64) -> bool {
    (0..=SETTLING_NS).contains(&after_ns.saturating_sub(before_ns))
}

impl TrustedOwner {
    /// Returns whether users other than the bucket's owner and root may rename the owner's files in the private
    /// directory whose metadata is `private`, or the directory itself. `of` is the metadata of the bucket's directory.
    pub(crate) fn is_open_to_others(of: &FileStat, private: &FileStat) -> bool {
        let owner = TrustedOwner::alone(of);
        [of, private].into_iter().any(|dir| owner.danger(dir, of.user).is_some())
    }
}

impl StoreDirectoryTree {
    /// Returns the mark of files of this kind in the bucket. Cost: one `openat2`, one `fstat` and one `statx`.
    pub(crate) fn owner_mark<'k>(&self, bucket: &Bucket, kind: &'k str) -> Result<OwnerMark<'k>> {
        // A new directory may get the inode number of a removed directory, but not its creation time.
        let identity = |dir| Ok((stat(&dir)?.inode, recorded_creation_ns(&dir)?.unwrap_or_default()));
        let identity = self.open_dir(bucket.as_str()).and_then(identity);
        let (inode, created_ns) = identity.map_err(|errno| from_errno(errno, "examining the bucket"))?;
        Ok(OwnerMark { kind, bucket: format!("{inode}.{created_ns}") })
    }

    /// Returns whether users other than the bucket's owner and root may rename the owner's files in the private
    /// directory. The result may be 10 ms old. Cost: usually none. `of` is the metadata of the bucket's directory.
    pub(crate) fn may_others_rename(&self, bucket: &Bucket, of: &FileStat) -> Result<bool> {
        let is_open = match self.private.glance_for_write(&self.root, bucket, ReadConsistency::FileSystem) {
            Ok(contents) if contents.exists => contents.is_open_to_others,
            _ => {
                // The private directory was created after its state was cached.
                let private = self.open_dir(&private_dir(bucket)).and_then(stat);
                let private = private.map_err(|errno| from_errno(errno, "examining .fordway"))?;
                TrustedOwner::is_open_to_others(of, &private)
            }
        };
        // The owner's ID may stand for several users. Only the kernel then knows whose the directories are.
        let is_ambiguous = || !is_same_user(of.user, of.user);
        Ok(is_open && !(is_ambiguous() && self.is_callers_alone(bucket, of)))
    }
}

/// Returns the error for the file at `path`, whose author is unknown.
pub(crate) fn unmarked(path: &str) -> Error {
    let why = format!(
        "users other than its owner may have moved {path} there, because they may rename files in the bucket; check or \
         remove it, then set it again"
    );
    Error::new(ErrorKind::AccessDenied, why)
}

/// Returns the error for the file at `path`, which others may have written.
pub(crate) fn writable(path: &str) -> Error {
    let why = format!("users other than its owner may write to {path}; remove it and set it again");
    Error::new(ErrorKind::AccessDenied, why)
}

/// Returns the error for a file that cannot have a mark.
pub(crate) fn unmarkable() -> Error {
    let why = "the file system has no extended attributes or no creation times, so another user of the bucket could \
               replace the setting; use a bucket to which only its owner may write";
    Error::new(ErrorKind::NotImplemented, why)
}

/// Returns the error for a file that took too long to publish.
pub(crate) fn unsettled() -> Error {
    let why = "the file system took longer than 2 s to publish a small file, so the file does not count";
    Error::new(ErrorKind::ConditionalConflict, why)
}
