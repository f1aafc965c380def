//! The downloads of `sync --delete` that have to wait until files are removed, because a directory has become an object
//! or an object has become a directory.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use fordway_command::StorageAddress;
use walkdir::WalkDir;

/// A download whose destination is blocked.
pub(super) struct BlockedDownload {
    pub(super) from: StorageAddress,
    pub(super) to: StorageAddress,
    pub(super) size: Option<u64>,
}

/// The downloads that wait until all removals are done.
#[derive(Default)]
pub(super) struct BlockedDownloads(Mutex<Vec<BlockedDownload>>);

impl BlockedDownloads {
    pub(super) fn add(&self, download: BlockedDownload) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(download);
    }

    /// Returns all downloads that have waited, and removes directories without files at their destinations. A download
    /// that is still blocked fails with the usual error.
    pub(super) fn take(&self) -> impl Iterator<Item = BlockedDownload> + use<> {
        let waiting = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.into_iter().inspect(|download| {
            if let StorageAddress::Local(path) = &download.to {
                remove_without_files(path);
            }
        })
    }
}

/// Returns whether `to` is a local path at which a file cannot be created yet: a directory has this name, or a file has
/// the name of one of its parents.
pub(super) fn is_blocked(to: &StorageAddress) -> bool {
    let StorageAddress::Local(path) = to else { return false };
    match path.metadata() {
        Ok(about) => about.is_dir(),
        Err(error) => error.kind() == ErrorKind::NotADirectory,
    }
}

/// Removes a directory that contains nothing except such directories. Keeps a link to a directory.
fn remove_without_files(directory: &Path) {
    if directory.is_symlink() {
        return;
    }
    let entries = WalkDir::new(directory).contents_first(true).into_iter();
    let paths = entries.map(|entry| Some(entry.ok().filter(|entry| entry.file_type().is_dir())?.into_path()));
    let Some(directories) = paths.collect::<Option<Vec<PathBuf>>>() else { return };
    for directory in directories {
        // Another program may have created a file in the meantime. The download then fails with an error about the
        // directory.
        if std::fs::remove_dir(directory).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_without_files_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        for directory in ["empty/a/b", "empty/c", "full/a/b", "full/c"] {
            std::fs::create_dir_all(path(directory)).unwrap();
        }
        std::fs::write(path("full/c/file"), "").unwrap();
        std::os::unix::fs::symlink("empty", path("link")).unwrap();
        for name in ["full", "link", "full/c/file", "none"] {
            remove_without_files(&path(name));
        }
        assert!(path("full/a/b").is_dir() && path("full/c/file").is_file());
        assert!(path("link").is_symlink() && path("empty/a/b").is_dir());
        remove_without_files(&path("empty"));
        assert!(!path("empty").exists());
    }

    #[test]
    fn directories_and_files_in_place_of_parents_block() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("file"), "").unwrap();
        let is_blocked = |name: &str| is_blocked(&StorageAddress::Local(root.path().join(name)));
        assert!(is_blocked("") && is_blocked("file/a") && is_blocked("file/a/b"));
        assert!(!is_blocked("file") && !is_blocked("none") && !is_blocked("none/a"));
    }
}
