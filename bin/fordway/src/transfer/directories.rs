//! The directories that a command creates for its downloads. A failed download removes the directories that were
//! created for it.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::download::parent;
use super::finish::sync_names;

/// The maximum number of times that a directory is recreated after another download has removed it.
const MAX_TRIES: usize = 100;

/// The directories that this command has created.
#[derive(Debug, Default)]
pub(crate) struct MadeDirectories(Mutex<HashSet<PathBuf>>);

impl MadeDirectories {
    /// Creates `directory` and its missing parents, and then calls `open`, which creates a file in the directory.
    pub(crate) fn open_in<T>(
        &self,
        directory: &Path,
        mut open: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        let mut tries = 1..MAX_TRIES;
        loop {
            self.make(directory)?;
            match open() {
                // Another download has failed in the meantime and removed the empty directory, so create the directory
                // again.
                Err(error) if error.kind() == ErrorKind::NotFound && tries.next().is_some() => {}
                opened => return opened,
            }
        }
    }

    /// Removes `directory` and its parents, up to the first directory that is not empty or that this command did not
    /// create.
    pub(crate) fn remove_empty(&self, directory: &Path) {
        let mut made = self.made();
        for directory in directory.ancestors() {
            // Stop at the first directory that is not empty, because its other entries need the directory and its
            // parents.
            if !made.contains(directory) || std::fs::remove_dir(directory).is_err() {
                return;
            }
            made.remove(directory);
        }
    }

    /// Forces the names in `directory` to stable storage, and the names of the directory and its parents as far as this
    /// command has created them. Cost: one `fsync`, and one for each of these directories.
    pub(crate) fn sync_names(&self, directory: &Path) -> io::Result<()> {
        sync_names(directory)?;
        let is_made = |directory: &&Path| self.made().contains(*directory);
        directory.ancestors().take_while(is_made).try_for_each(|made| sync_names(parent(made)))
    }

    fn make(&self, directory: &Path) -> io::Result<()> {
        let mut made = self.made();
        for directory in missing(directory).into_iter().rev() {
            match std::fs::create_dir(directory) {
                Ok(()) => made.insert(directory.to_owned()),
                Err(error) if error.kind() == ErrorKind::AlreadyExists && directory.is_dir() => false,
                Err(error) => return Err(error),
            };
        }
        Ok(())
    }

    fn made(&self) -> MutexGuard<'_, HashSet<PathBuf>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the directories on the path of `directory` that do not exist, from `directory` up.
pub(crate) fn missing(directory: &Path) -> Vec<&Path> {
    let is_missing = |directory: &&Path| !directory.as_os_str().is_empty() && !directory.exists();
    directory.ancestors().take_while(is_missing).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_made_and_is_empty_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let made = MadeDirectories::default();
        std::fs::create_dir(root.path().join("old")).unwrap();
        let (deep, side) = (root.path().join("old/a/b/c"), root.path().join("old/a/side"));
        for directory in [&deep, &side] {
            made.open_in(directory, || std::fs::write(directory.join("file"), "")).unwrap();
        }
        made.remove_empty(&deep);
        assert!(deep.exists(), "it is not empty");
        std::fs::remove_file(deep.join("file")).unwrap();
        made.remove_empty(&deep);
        assert!(!root.path().join("old/a/b").exists() && side.exists());
        std::fs::remove_file(side.join("file")).unwrap();
        made.remove_empty(&side);
        assert!(root.path().join("old").exists() && !root.path().join("old/a").exists());
    }

    #[test]
    fn a_directory_that_disappears_is_made_again() {
        let root = tempfile::tempdir().unwrap();
        let made = MadeDirectories::default();
        let directory = root.path().join("a");
        let mut others = 3;
        made.open_in(&directory, || {
            if others > 0 {
                others -= 1;
                made.remove_empty(&directory);
            }
            std::fs::write(directory.join("file"), "")
        })
        .unwrap();
        assert!(directory.join("file").exists());
    }
}
