//! The hidden file that a download from a web server grows in. It is removed when the download fails, unless the next
//! one goes on from it; then that is said.

use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};

use fordway_command::units::human_bytes;
use fordway_command::{Context, Leftover, Temporary, file_error};
use fordway_store::{Error, ErrorKind, Result};

use crate::transfer::Existing;

/// A part that this process alone writes.
pub(crate) struct PartFile<'c> {
    path: PathBuf,
    file: File,
    leftover: Leftover,
    context: &'c Context,
    /// It is where it belongs, or kept for the next download.
    is_settled: bool,
    /// For a signal that ends the process.
    _temporary: Temporary,
}

impl<'c> PartFile<'c> {
    /// The part of a copy to `path` that `hasher` has told from others; what is in it stays.
    /// Errors: `Unavailable` while another process writes it.
    pub(crate) fn open(
        path: &Path,
        (hasher, leftover): (&DefaultHasher, Leftover),
        context: &'c Context,
    ) -> Result<Self> {
        let path = beside(path, hasher)?;
        let failed = |error| file_error("writing", path.display(), error);
        let file = OpenOptions::new().append(true).create(true).open(&path).map_err(failed)?;
        file.try_lock().map_err(|error| {
            let detail = format!("another copy is writing {}; wait for it", path.display());
            Error::new(ErrorKind::Unavailable, detail).caused_by(error)
        })?;
        let _temporary = context.interrupt.temporary(&path, leftover);
        Ok(PartFile { path, file, leftover, context, is_settled: false, _temporary })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// To append to.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// The same content as the part of another copy, unless that is there already.
    pub(crate) fn given_to(self, path: &Path, identity: (&DefaultHasher, Leftover)) -> Result<Self> {
        let other = beside(path, identity.0)?;
        if !other.exists() {
            std::fs::rename(&self.path, &other)
                .map_err(|error| file_error("writing", other.display(), error))?;
        }
        let context = self.context;
        drop(self);
        PartFile::open(path, identity, context)
    }

    /// A download has failed, with `bytes` in the part. They are kept if the same command would go on from them, and
    /// the user is told; else the part is removed.
    pub(crate) fn failed(mut self, error: &Error, bytes: u64) {
        use ErrorKind as K;
        // A download never resumes from wrong bytes, or from bytes of another version.
        let is_wrong = matches!(error.kind(), K::BadDigest | K::BadResponse | K::PreconditionFailed);
        if is_wrong || self.leftover == Leftover::Useless || bytes == 0 {
            return;
        }
        self.is_settled = true;
        let kept = format!("{} are kept in {}", human_bytes(bytes), self.path.display());
        self.context.output.note(&format!("{kept}; give the same command again to go on from there"));
    }

    /// The part becomes the file at `path`. Errors: `PreconditionFailed` if that must not be replaced.
    pub(crate) fn publish(mut self, path: &Path, existing: Existing) -> Result<()> {
        let failed = |error| file_error("writing", path.display(), error);
        if existing == Existing::Replace {
            std::fs::rename(&self.path, path).map_err(failed)?;
            self.is_settled = true;
            return Ok(());
        }
        // A link, unlike a rename, replaces nothing; the name of the part goes when this is dropped.
        match std::fs::hard_link(&self.path, path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Err(there_already(path)),
            linked => linked.map_err(failed),
        }
    }
}

impl Drop for PartFile<'_> {
    fn drop(&mut self) {
        if !self.is_settled {
            // What cannot be removed is cut off by the next copy.
            let _removed = std::fs::remove_file(&self.path);
        }
    }
}

/// The path of a part.
fn beside(path: &Path, hasher: &DefaultHasher) -> Result<PathBuf> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent).map_err(|error| file_error("making", parent.display(), error))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(parent.join(format!(".{name}.{:016x}.part", hasher.finish())))
}

pub(crate) fn there_already(path: &Path) -> Error {
    Error::new(ErrorKind::PreconditionFailed, format!("{} exists", path.display()))
}
