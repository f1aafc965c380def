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

/// The state of a local path, and the state of the file that the path points to. The two states differ if the path is a
/// symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocalSourceStamps {
    link: FileChangeStamp,
    file: FileChangeStamp,
}

/// At least one of the values except `links` changes when a program changes the file or renames another file to its
/// path. The times are in seconds and nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileChangeStamp {
    device: u64,
    inode: u64,
    size_bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    /// The number of hard links.
    links: u64,
}

/// The device and inode numbers of a file, or of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FileId(u64, u64);

impl FileId {
    pub(super) fn of(about: &Metadata) -> Self {
        FileId(about.dev(), about.ino())
    }
}

impl LocalSourceStamps {
    /// Returns the device and inode numbers of the path itself, which may be a link.
    pub(super) fn id(&self) -> FileId {
        FileId(self.link.device, self.link.inode)
    }

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

    /// Removes the path if it still points to the copied file. Errors: `ConditionalConflict`, `Io`.
    pub(crate) fn remove(&self, path: &Path) -> Result<()> {
        let failed = |error| file_error("reading", path.display(), error);
        let link = path.symlink_metadata().map_err(failed)?;
        let is_same_file = match path.metadata() {
            Ok(file) => self.file.is_still(&FileChangeStamp::new(&file)),
            // The same command may have moved the target of the link in the meantime.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && link.is_symlink() => true,
            Err(error) => return Err(failed(error)),
        };
        if !is_same_file || !self.link.is_still(&FileChangeStamp::new(&link)) {
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
            links: about.nlink(),
        }
    }

    /// Returns whether `now`, a later stamp, describes the same file with unchanged content.
    fn is_still(&self, now: &FileChangeStamp) -> bool {
        // A move of several hard links removes them one after the other, and each removal changes the ctime of the
        // file.
        let lost_a_name = now.links < self.links;
        let expected = FileChangeStamp {
            changed: if lost_a_name { now.changed } else { self.changed },
            links: now.links,
            ..self.clone()
        };
        expected == *now
    }
}

impl TransferRunner<'_> {
    /// Completes a copy. If this is a move, removes the source. Errors: `InvalidArgument` if source and destination are
    /// the same; `ConditionalConflict` if the source has changed since it was copied; such a source is kept.
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
            (StorageAddress::Local(path), CopiedSource::File(source)) => self.postponed.remove(path, source),
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

    /// All names of a file may be in one tree. The move of one name must not prevent the move of another name.
    #[test]
    fn hard_links_and_links_within_a_tree_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let [first, second, link] = ["first", "second", "link"].map(|name| dir.path().join(name));
        std::fs::write(&first, "content").unwrap();
        std::fs::hard_link(&first, &second).unwrap();
        std::os::unix::fs::symlink("first", &link).unwrap();
        let paths = [&first, &second, &link];
        let stamps = paths.map(|path| LocalSourceStamps::find(path).unwrap());
        paths.iter().zip(&stamps).for_each(|(path, stamp)| stamp.remove(path).unwrap());
        assert_eq!(dir.path().read_dir().unwrap().count(), 0);

        std::fs::write(&first, "content").unwrap();
        std::fs::hard_link(&first, &second).unwrap();
        let stamp = LocalSourceStamps::find(&first).unwrap();
        std::fs::remove_file(&second).unwrap();
        std::fs::write(&first, "changed").unwrap();
        assert_eq!(stamp.remove(&first).unwrap_err().kind(), ErrorKind::ConditionalConflict);
        // A new hard link changes the ctime but not the content, and the stamp does not distinguish this change from a
        // change of the content.
        let stamp = LocalSourceStamps::find(&first).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::hard_link(&first, &second).unwrap();
        assert_eq!(stamp.remove(&first).unwrap_err().kind(), ErrorKind::ConditionalConflict);
    }
}
