//! Files that hold secrets: only those that are ours alone.

use std::fs::OpenOptions;
use std::io::{ErrorKind as IoKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use fordway_store::{Error, ErrorKind, Result};

/// More is no token, certificate or list of passwords.
const BYTES_MAX: u64 = 1 << 20;

/// Where a secret may be.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// Somebody named this file: it has to be there.
    Named(PathBuf),
    /// Where such files usually are. It may be missing, and in `/tmp` it may be somebody else's.
    Usual(PathBuf),
}

impl Place {
    pub(super) fn path(&self) -> &Path {
        let (Place::Named(path) | Place::Usual(path)) = self;
        path
    }

    /// The content; `None` where a usual place has nothing of ours. Errors: `AccessDenied` where others
    /// could read it too or it is not ours, `InvalidArgument` where it is missing, `Io`.
    pub(super) fn read(&self) -> Result<Option<Vec<u8>>> {
        let (path, is_named) = (self.path(), matches!(self, Place::Named(_)));
        let failed = |kind, error| Error::new(kind, format!("reading {}", path.display())).caused_by(error);
        // A pipe that somebody left at a usual place must not hold us up.
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let file = match OpenOptions::new().read(true).custom_flags(nonblocking).open(path) {
            Ok(file) => file,
            Err(_) if !is_named => return Ok(None),
            Err(error) if error.kind() == IoKind::NotFound => {
                return Err(failed(ErrorKind::InvalidArgument, error));
            }
            Err(error) => return Err(failed(ErrorKind::AccessDenied, error)),
        };
        let about = file.metadata().map_err(|error| failed(ErrorKind::Io, error))?;
        let is_ours = about.uid() == fordway_sys::user_id() && about.is_file();
        match () {
            () if !is_ours && !is_named => {
                tracing::warn!(path = %path.display(), "not used: it belongs to somebody else");
                return Ok(None);
            }
            () if !is_ours => {
                return Err(refused(path, "does not belong to you; copy it to a file that does"));
            }
            () if about.mode() & 0o077 != 0 => {
                let why = format!("can be read by others; run: chmod 600 {}", path.display());
                return Err(refused(path, &why));
            }
            () => {}
        }
        let mut content = Vec::new();
        file.take(BYTES_MAX).read_to_end(&mut content).map_err(|error| failed(ErrorKind::Io, error))?;
        Ok(Some(content))
    }

    /// The same for what is text. Errors: as [`Place::read`]; `InvalidArgument`.
    pub(super) fn read_text(&self) -> Result<Option<String>> {
        let Some(content) = self.read()? else { return Ok(None) };
        let text = String::from_utf8(content).map_err(|error| {
            let detail = format!("{} is not text", self.path().display());
            Error::new(ErrorKind::InvalidArgument, detail).caused_by(error.utf8_error())
        })?;
        Ok(Some(text))
    }
}

fn refused(path: &Path, why: &str) -> Error {
    Error::new(ErrorKind::AccessDenied, format!("{} {why}", path.display()))
}
