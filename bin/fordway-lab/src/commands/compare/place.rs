//! Where a comparison works: a temporary directory on the file system that is to be measured.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fordway_store::{Error, ErrorKind, Result};
use tempfile::TempDir;

/// A temporary directory that is gone when this is.
pub(super) struct Place(TempDir);

impl Place {
    /// A new directory in `root`, or else in the first directory on the file system of `dir` that
    /// may be written to: the usual temporary ones, the current one, then `dir`'s parents.
    /// Errors: `InvalidArgument` if there is none.
    pub(super) fn new(dir: &Path, root: Option<&Path>) -> Result<Self> {
        if let Some(root) = root {
            return make_in(root).map(Place).map_err(|error| {
                Error::new(
                    ErrorKind::InvalidArgument,
                    format!("--root {} cannot be written to", root.display()),
                )
                .caused_by(error)
            });
        }
        let device = std::fs::metadata(dir).map(|meta| meta.dev()).ok();
        let is_on_it =
            |path: &PathBuf| device.is_some() && std::fs::metadata(path).ok().map(|m| m.dev()) == device;
        let full = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        let usual = [std::env::temp_dir(), "/var/tmp".into(), std::env::current_dir().unwrap_or_default()];
        let parents = full.ancestors().skip(1).map(Path::to_owned);
        let mut candidates = usual.into_iter().chain(parents).filter(is_on_it);
        candidates.find_map(|path| make_in(&path).ok()).map(Place).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "no directory on the file system of {} can be written to; name one with --root",
                    dir.display()
                ),
            )
        })
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Removes the directory with all in it. Errors: `Io`.
    pub(super) fn remove(self) -> Result<()> {
        let path = self.path().to_owned();
        self.0.close().map_err(|error| {
            Error::new(
                ErrorKind::Io,
                format!("the temporary directory {} could not be removed", path.display()),
            )
            .caused_by(error)
        })
    }
}

fn make_in(path: &Path) -> std::io::Result<TempDir> {
    tempfile::Builder::new().prefix("fordway-compare-").tempdir_in(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_on_the_same_file_system_and_goes_away() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::new(dir.path(), None).unwrap();
        let path = place.path().to_owned();
        let device = |path: &Path| std::fs::metadata(path).unwrap().dev();
        assert_eq!(device(&path), device(dir.path()));
        place.remove().unwrap();
        assert!(!path.exists());
        let wrong = Place::new(dir.path(), Some(Path::new("/does/not/exist"))).err().expect("no such root");
        assert!(wrong.to_string().contains("--root /does/not/exist"), "{wrong}");
    }
}
