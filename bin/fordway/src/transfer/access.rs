//! The access rights of a file that a download replaces. A download writes a new file and renames it over the old file.
//! The new file gets the rights of the old file: its permission bits, its ACL, and, if the process may set them, its
//! owner and group.

use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr, getxattr};

/// The mode of a new file that replaces nothing. The kernel applies the process's umask to it.
pub(crate) const NEW_FILE_MODE: u32 = 0o666;
/// The mode of a new file that later gets the rights of another file.
pub(crate) const PRIVATE_MODE: u32 = 0o600;
const ACL: &str = "system.posix_acl_access";
/// The kernel's limit for the size of an attribute.
const MAX_ACL_BYTES: usize = 64 << 10;

/// The access rights of an existing regular file.
pub(crate) struct FileAccessRights {
    about: Metadata,
    acl: Option<Vec<u8>>,
}

impl FileAccessRights {
    /// Returns the rights of a file; `None` if there is no regular file at `path`.
    pub(crate) fn find(path: &Path) -> Option<Self> {
        let about = path.metadata().ok().filter(Metadata::is_file)?;
        let mut acl = vec![0; MAX_ACL_BYTES];
        let acl = getxattr(path, ACL, acl.as_mut_slice()).ok().map(|len| {
            acl.truncate(len);
            acl
        });
        Some(FileAccessRights { about, acl })
    }

    /// Sets these rights, plus the permission bits in `more_bits`, on `file`. If the process may not set the group or
    /// the ACL, nobody gains access through the group: the group gets at most the rights that everyone has.
    pub(crate) fn give_to(&self, file: &File, more_bits: u32) -> io::Result<()> {
        let has_group = self.give_owner(file)?;
        // A directory can have a default ACL, which every new file inherits.
        let has_acl = match &self.acl {
            Some(acl) => fsetxattr(file, ACL, acl, XattrFlags::empty()).is_ok(),
            None => fremovexattr(file, ACL).is_ok() || has_no_acl(file),
        };
        let bits = self.about.mode() & 0o777;
        let group_bits = if has_group && has_acl { 0o070 } else { (bits & 0o007) << 3 };
        let mode = (bits & (0o707 | group_bits)) | more_bits;
        // Some file systems refuse every change of the mode, and give all files the same mode.
        if file.metadata()?.mode() & 0o7777 == mode {
            return Ok(());
        }
        file.set_permissions(Permissions::from_mode(mode))
    }

    /// Sets the owner and the group, if the process is permitted to. Returns whether `file` has the group of the old
    /// file.
    fn give_owner(&self, file: &File) -> io::Result<bool> {
        let now = file.metadata()?;
        if now.uid() != self.about.uid() {
            std::os::unix::fs::fchown(file, Some(self.about.uid()), None).ok();
        }
        let is_set = now.gid() == self.about.gid();
        Ok(is_set || std::os::unix::fs::fchown(file, None, Some(self.about.gid())).is_ok())
    }
}

/// Returns whether a file has no ACL, or its file system has no ACLs.
fn has_no_acl(file: &File) -> bool {
    fgetxattr(file, ACL, &mut [0_u8; 0][..]).is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_those_of_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        assert!(FileAccessRights::find(&old).is_none() && FileAccessRights::find(dir.path()).is_none());
        std::fs::write(&old, "").unwrap();
        let file = File::create(&new).unwrap();
        for mode in [0o600, 0o640, 0o444, 0o755, 0o4755] {
            std::fs::set_permissions(&old, Permissions::from_mode(mode)).unwrap();
            let rights = FileAccessRights::find(&old).unwrap();
            rights.give_to(&file, 0).unwrap();
            assert_eq!(file.metadata().unwrap().mode() & 0o7777, mode & 0o777, "{mode:o}");
            rights.give_to(&file, 0o200).unwrap();
            assert_eq!(file.metadata().unwrap().mode() & 0o7777, (mode & 0o777) | 0o200, "{mode:o}");
        }
    }
}
