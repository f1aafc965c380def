//! Checks the directory to which a run is written. Each measuring program checks this directory before it measures, so
//! that no measurement is lost because its run cannot be written.

use std::io;
use std::path::Path;

use fordway_measure::RunDocument;
use fordway_store::{Error, ErrorKind, Result};

/// The size of the trial file: one block. File systems can store less than a block without allocating space.
const TRIAL_BYTES: usize = 4096;

/// Checks that a run can be written to `dir`: creates the directory and a file in it, and removes both. Errors, each
/// with advice: `InvalidArgument` if `dir` is a file, if it contains files but no run, or for a failure that would
/// otherwise be `Io`; for other failures, an error of the corresponding kind, such as `NoSpace`.
pub fn check(dir: &Path) -> Result<()> {
    // A run replaces the files of an older run, and would replace any other file with the same name.
    if RunDocument::may_be_written_to(dir).is_ok_and(|may| !may) {
        let why = format!("{} holds files but no run; choose another directory with --out", dir.display());
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    let missing: Vec<&Path> = dir.ancestors().take_while(is_missing).collect();
    let tried = std::fs::create_dir_all(dir).and_then(|()| {
        let mut file = tempfile::Builder::new().prefix(".fordway-trial-").tempfile_in(dir)?;
        io::Write::write_all(&mut file, &[0; TRIAL_BYTES])?;
        file.close()
    });
    // A command that exits without writing a run must not leave an empty directory.
    for path in missing {
        let _ = std::fs::remove_dir(path);
    }
    tried.map_err(|error| {
        let kind = match ErrorKind::from(&error) {
            ErrorKind::Io => ErrorKind::InvalidArgument,
            kind => kind,
        };
        // The error is text here and not the cause, because a missing file as the cause would mean that an input is
        // missing.
        let dir = dir.display();
        Error::new(
            kind,
            format!("the run cannot be written to {dir}: {error}; choose another directory with --out"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usable_directory_is_left_as_it_was() {
        let place = tempfile::tempdir().unwrap();
        let new = place.path().join("a/b.run");
        check(&new).unwrap();
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
        std::fs::create_dir_all(&new).unwrap();
        std::fs::write(new.join("run.json"), r#"{"schema": "fordway.run", "schema_version": 9}"#).unwrap();
        check(&new).unwrap();
        assert_eq!(std::fs::read_dir(&new).unwrap().count(), 1);
    }

    #[test]
    fn a_directory_with_other_files_is_refused() {
        let place = tempfile::tempdir().unwrap();
        for name in ["operations.arrow", "notes.txt", "run.json"] {
            let dir = place.path().join(name);
            std::fs::create_dir(&dir).unwrap();
            std::fs::write(dir.join(name), "{}").unwrap();
            let error = check(&dir).expect_err("it holds no run");
            assert!(error.to_string().contains("holds files but no run"), "{error}");
        }
    }

    #[test]
    fn an_unusable_directory_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        std::fs::write(&file, "x").unwrap();
        for path in [file.clone(), file.join("below")] {
            let error = check(&path).expect_err("it is a file");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.to_string().contains("--out"), "{error}");
        }
        // Every write to this file system fails.
        let error = check(Path::new("/proc/x.run")).expect_err("nothing can be created there");
        assert!(error.to_string().contains("/proc/x.run"), "{error}");
        assert!(std::error::Error::source(&error).is_none(), "{error}");
    }
}
