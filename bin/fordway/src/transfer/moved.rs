//! Removes the source of a move, unless the source may have changed since it was copied. Another program may have
//! replaced the source. The copy itself may also have replaced the source, because a local path can be the file of an
//! object.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fordway_command::{StorageAddress, file_error};
use fordway_store::{Bucket, Conditions, DeleteOptions, ETag, Error, ErrorKind, GetOptions, Key, Result};

use super::TransferRunner;

/// The source that was copied.
pub(super) enum CopiedSource {
    /// A local file.
    File(LocalSourceStamps),
    /// An object.
    Object {
        /// The ETag of the content that was copied.
        etag: ETag,
        /// Whether the copy replaced a local file.
        replaced_file: bool,
    },
    /// A stream, or an object that the command copies without moving it.
    NotRemovable,
}

/// The state of a local path, and the state of the file that the path leads to. The two states differ if the path is a
/// symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocalSourceStamps {
    link: FileChangeStamp,
    file: FileChangeStamp,
}

/// At least one of these values changes when a program changes the file or renames another file to its path. The times
/// are in seconds and nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileChangeStamp {
    device: u64,
    inode: u64,
    size_bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl LocalSourceStamps {
    /// Returns the state from the metadata of the path and of the opened file.
    pub(super) fn new(path: &Metadata, file: &Metadata) -> Self {
        LocalSourceStamps { link: FileChangeStamp::new(path), file: FileChangeStamp::new(file) }
    }

    /// Returns the current state of a path.
    pub(crate) fn find(path: &Path) -> Result<Self> {
        let both = path.symlink_metadata().and_then(|link| Ok((link, path.metadata()?)));
        let (link, file) = both.map_err(|error| file_error("reading", path.display(), error))?;
        Ok(LocalSourceStamps::new(&link, &file))
    }

    /// Removes the path if it still leads to the copied file. Errors: `ConditionalConflict`, `Io`.
    pub(crate) fn remove(&self, path: &Path) -> Result<()> {
        if LocalSourceStamps::find(path)? != *self {
            return Err(changed(&path.display().to_string()));
        }
        std::fs::remove_file(path).map_err(|error| file_error("removing", path.display(), error))
    }
}

impl FileChangeStamp {
    fn new(about: &Metadata) -> Self {
        FileChangeStamp {
            device: about.dev(),
            inode: about.ino(),
            size_bytes: about.size(),
            modified: (about.mtime(), about.mtime_nsec()),
            changed: (about.ctime(), about.ctime_nsec()),
        }
    }
}

impl TransferRunner<'_> {
    /// Completes a copy. If this is a move, removes the source. Errors: `InvalidArgument` if source and destination are
    /// the same; `ConditionalConflict` if the source has changed since it was copied, and is kept.
    pub(super) fn settle(
        &self,
        from: &StorageAddress,
        to: &StorageAddress,
        copied: &CopiedSource,
    ) -> Result<()> {
        if !self.settings.removes_sources {
            return Ok(());
        }
        if from == to {
            let why = format!("the source and the destination are both {from}");
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        match (from, copied) {
            (StorageAddress::S3(bucket, key), CopiedSource::Object { etag, replaced_file }) => {
                let key = Key::new(key)?;
                let removed = self.remove_copied_object(bucket, &key, etag, *replaced_file);
                removed.map_err(|error| {
                    error.during("delete", self.store().lane(), bucket.as_str(), key.as_str())
                })
            }
            (StorageAddress::Local(path), CopiedSource::File(source)) => source.remove(path),
            _ => Ok(()),
        }
    }

    /// Removes an object that still has this ETag. Usually, a conditional request is sufficient. However, if the copy
    /// replaced a local file, that file may have been the file of the object. In that case, the ETag is checked first,
    /// because some services ignore the condition.
    fn remove_copied_object(
        &self,
        bucket: &Bucket,
        key: &Key,
        etag: &ETag,
        replaced_file: bool,
    ) -> Result<()> {
        if replaced_file {
            self.check_unchanged(bucket, key, etag)?;
        }
        let only_if = DeleteOptions { conditions: Conditions::only_if(etag.clone()), ..Default::default() };
        match self.store().delete(bucket, key, &only_if) {
            Ok(_) => Ok(()),
            Err(error) => match error.kind() {
                ErrorKind::PreconditionFailed => Err(changed("the object")),
                ErrorKind::NoSuchKey => Ok(()),
                // Check the ETag, and delete without the condition. Some services and file systems do not support the
                // condition, and a full file system may have no space for the lock that the condition needs.
                ErrorKind::NotImplemented | ErrorKind::NoSpace | ErrorKind::QuotaExceeded => {
                    self.check_unchanged(bucket, key, etag)?;
                    self.store().delete(bucket, key, &DeleteOptions::default()).map(drop)
                }
                _ => Err(error),
            },
        }
    }

    fn check_unchanged(&self, bucket: &Bucket, key: &Key, etag: &ETag) -> Result<()> {
        match self.store().head(bucket, key, &GetOptions::default())?.etag == *etag {
            true => Ok(()),
            false => Err(changed("the object")),
        }
    }
}

/// Returns the error for a source that was copied but is not removed.
pub(crate) fn changed(name: &str) -> Error {
    let why = format!(
        "{name} was changed during the copy, or the copy itself replaced it, so it was copied but not removed"
    );
    Error::new(ErrorKind::ConditionalConflict, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_removed_only_if_it_and_its_link_are_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other, link) =
            (dir.path().join("file"), dir.path().join("other"), dir.path().join("link"));
        std::fs::write(&path, "old").unwrap();
        std::fs::write(&other, "new").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        let (of_path, of_link) =
            (LocalSourceStamps::find(&path).unwrap(), LocalSourceStamps::find(&link).unwrap());
        std::fs::rename(&other, &path).unwrap();
        for (source, path) in [(&of_path, &path), (&of_link, &link)] {
            assert_eq!(source.remove(path).unwrap_err().kind(), ErrorKind::ConditionalConflict);
            assert!(path.exists());
        }
        LocalSourceStamps::find(&link).unwrap().remove(&link).unwrap();
        LocalSourceStamps::find(&path).unwrap().remove(&path).unwrap();
        assert_eq!(dir.path().read_dir().unwrap().count(), 0);
    }
}
