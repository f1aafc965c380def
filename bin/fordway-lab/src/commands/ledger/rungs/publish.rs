//! What is done to the file of a new object by system calls alone.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{
    Errno, Mode, create_unnamed, link_unnamed, remove_file, set_modified, stat, stat_in, write_all_at,
};
use fordway_workload::ledger::Rung;

use super::Contents;
use fordway_command::file_error;

const NAME: &str = "file";
const MODE: Mode = Mode::from_raw_mode(0o644);

fn failed(errno: Errno) -> Error {
    file_error("writing", "a new file", errno.into())
}

fn opened(dir: &Path) -> Result<File> {
    File::open(dir).map_err(|error| file_error("opening", dir.display(), error))
}

/// Making an empty file that is seen only once it is whole: by the calls that the store makes beside the write.
pub(in super::super) struct Publish {
    dir: File,
}

impl Publish {
    /// In the directory `dir`, which is made.
    pub(in super::super) fn new(dir: &Path) -> Result<Self> {
        std::fs::create_dir(dir).map_err(|error| file_error("making", dir.display(), error))?;
        Ok(Publish { dir: opened(dir)? })
    }
}

impl Rung for Publish {
    fn prepare(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    fn before(&mut self) -> Result<()> {
        match remove_file(&self.dir, NAME) {
            Err(Errno::NOENT) => Ok(()),
            removed => removed.map_err(failed),
        }
    }

    fn run(&mut self) -> Result<()> {
        let file = create_unnamed(&self.dir, MODE).map_err(failed)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        set_modified(&file, now.as_nanos() as i64).map_err(failed)?;
        stat(&file).map_err(failed)?;
        link_unnamed(&file, &self.dir, NAME).map_err(failed)
    }

    fn check(&self) -> Result<()> {
        stat_in(&self.dir, NAME).map(drop).map_err(failed)
    }
}

/// Writing content to a new file. The one before is given back first, so that its memory is used again.
pub(in super::super) struct Write {
    dir: File,
    file: Option<OwnedFd>,
    contents: Contents,
    size_bytes: u64,
}

impl Write {
    /// To files that never have a name, in the file system of `dir`.
    pub(in super::super) fn new(dir: &Path, contents: &Contents) -> Result<Self> {
        Ok(Write { dir: opened(dir)?, file: None, contents: contents.clone(), size_bytes: 0 })
    }
}

impl Rung for Write {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.size_bytes = size_bytes;
        Ok(())
    }

    fn before(&mut self) -> Result<()> {
        self.file = None;
        self.file = Some(create_unnamed(&self.dir, MODE).map_err(failed)?);
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        write_all_at(file, self.contents.of(self.size_bytes), 0).map_err(failed)
    }

    fn check(&self) -> Result<()> {
        let Some(file) = &self.file else { return Err(ErrorKind::Internal.into()) };
        match stat(file).map_err(failed)?.size {
            size if size == self.size_bytes => Ok(()),
            size => {
                let why = format!("{size} bytes were written of {}", self.size_bytes);
                Err(Error::new(ErrorKind::IncompleteBody, why))
            }
        }
    }
}
