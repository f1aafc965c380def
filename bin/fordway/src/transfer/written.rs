//! The files that a move has written. Links at the destination can lead from several requested paths to the same file,
//! and some file systems ignore the case of names. A second download would then replace the content of the first, whose
//! source no longer exists.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use fordway_store::{Error, ErrorKind, Result};

use super::download::probe_in;

/// The files that the downloads of a move have written or are writing.
#[derive(Default)]
pub(crate) struct WrittenFiles {
    hasher: RandomState,
    /// The hashes of the paths, to save memory. If two paths had the same hash, the second object would not be moved.
    claimed: Mutex<HashSet<u64>>,
}

impl WrittenFiles {
    /// Claims the file at `path` for one download. `path` itself must not be a link that the download follows, but its
    /// directories may be links. Errors: `InvalidArgument` if another download has claimed the file. Cost: if another
    /// claimed path differs only in case, creates a file to find out whether the file system ignores case.
    pub(crate) fn claim(&self, path: &Path) -> Result<()> {
        self.claim_unless(path, ignores_case)
    }

    /// Like [`claim`](Self::claim). `ignores_case` returns whether names in a directory that differ only in case are
    /// the same name.
    fn claim_unless(&self, path: &Path, ignores_case: impl FnOnce(&Path) -> bool) -> Result<()> {
        let directory = resolved(super::parent(path));
        let file = directory.join(path.file_name().unwrap_or_default());
        let folded = file.to_string_lossy().to_lowercase();
        let mut claimed = self.claimed.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = claimed.insert(self.hasher.hash_one((false, &file)));
        let is_new_folded = claimed.insert(self.hasher.hash_one((true, &folded)));
        drop(claimed);
        let cause = match is_new {
            true if is_new_folded || !ignores_case(&directory) => return Ok(()),
            true => "the destination does not distinguish upper and lower case",
            false => "a link at the destination leads to the file",
        };
        let why = format!(
            "{cause}, so {} is the destination of two sources; this source was not moved",
            file.display()
        );
        Err(Error::new(ErrorKind::InvalidArgument, why))
    }
}

/// Returns whether two names that differ only in case are the same name in `directory`, as on FAT and NTFS. If the
/// directory does not exist yet, returns the result for its closest parent.
fn ignores_case(directory: &Path) -> bool {
    let Some(directory) = directory.ancestors().find(|directory| directory.is_dir()) else { return false };
    let Ok(probe) = probe_in(directory) else { return false };
    let name = probe.path().file_name().unwrap_or_default().to_string_lossy().to_uppercase();
    directory.join(name).symlink_metadata().is_ok()
}

/// Returns an absolute path without links. The last directories of the path need not exist.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let existing = path.ancestors().find_map(|ancestor| Some((ancestor, ancestor.canonicalize().ok()?)));
    match existing {
        Some((ancestor, found)) => match path.strip_prefix(ancestor) {
            Ok(rest) if rest.as_os_str().is_empty() => found,
            Ok(rest) => found.join(rest),
            Err(_) => found,
        },
        None => path,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn missing_directories_and_links_are_resolved() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("real")).unwrap();
        symlink("real", root.join("link")).unwrap();
        assert_eq!(resolved(&root.join("link/none/deep")), root.join("real/none/deep"));
        assert_eq!(resolved(&root.join("real/../link/")), root.join("real"));
    }

    #[test]
    fn a_file_is_claimed_once_through_any_link() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("real")).unwrap();
        symlink("real", dir.path().join("link")).unwrap();
        let written = WrittenFiles::default();
        let claim = |path: &str| written.claim(&dir.path().join(path));
        for path in ["real/a", "link/b", "real/new/a", "a"] {
            claim(path).unwrap();
        }
        for path in ["link/a", "real/b", "link/new/a"] {
            assert_eq!(claim(path).unwrap_err().kind(), ErrorKind::InvalidArgument, "{path}");
        }
    }

    #[test]
    fn a_file_is_claimed_once_if_case_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        for (ignores_case, is_refused) in [(true, true), (false, false)] {
            let written = WrittenFiles::default();
            let claim = |path: &str| written.claim_unless(&dir.path().join(path), |_| ignores_case);
            claim("p/A").unwrap();
            claim("p/b").unwrap();
            claim("p/\u{e4}").unwrap();
            for path in ["p/a", "P/B", "P/\u{c4}"] {
                assert_eq!(claim(path).is_err(), is_refused, "{path}");
            }
        }
        assert!(!ignores_case(&dir.path().join("none")));
        assert_eq!(dir.path().read_dir().unwrap().count(), 0);
    }
}
