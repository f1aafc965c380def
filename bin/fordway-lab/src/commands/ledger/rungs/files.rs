//! What is done to files by system calls alone.

use std::fs::File;
use std::hint::black_box;
use std::path::{Path, PathBuf};

use fordway_store::Result;
use fordway_sys::{Errno, read_cached, read_into_spare};
use fordway_workload::ledger::Rung;

use super::http2::PIECE_BYTES;
use super::{Contents, same};
use fordway_command::file_error;

/// Where the objects of all sizes are, as files.
#[derive(Clone)]
pub(in super::super) struct Files(PathBuf, Contents);

impl Files {
    pub(in super::super) fn new(dir: &Path, contents: &Contents) -> Self {
        Files(dir.to_owned(), contents.clone())
    }

    /// The file with `size_bytes` of content.
    pub(in super::super) fn path(&self, size_bytes: u64) -> PathBuf {
        self.0.join(name(size_bytes))
    }
}

/// The key of the object with `size_bytes` of content.
pub(in super::super) fn name(size_bytes: u64) -> String {
    format!("object-{size_bytes}")
}

fn opened(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| file_error("opening", path.display(), error))
}

/// Opening a file by its absolute path, its size, and closing it.
pub(in super::super) struct Open {
    pub(in super::super) files: Files,
    path: PathBuf,
}

impl Open {
    pub(in super::super) fn new(files: &Files) -> Self {
        Open { files: files.clone(), path: PathBuf::new() }
    }
}

impl Rung for Open {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.path = self.files.path(size_bytes);
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let size = opened(&self.path)?.metadata().map(|meta| meta.len());
        black_box(size.map_err(|error| file_error("looking at", self.path.display(), error))?);
        Ok(())
    }
}

/// Reading the whole of a file that is open and in memory.
pub(in super::super) struct Pread {
    files: Files,
    file: Option<File>,
    buffer: Vec<u8>,
    size_bytes: u64,
}

impl Pread {
    pub(in super::super) fn new(files: &Files) -> Self {
        Pread { files: files.clone(), file: None, buffer: Vec::new(), size_bytes: 0 }
    }
}

impl Rung for Pread {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.file = Some(opened(&self.files.path(size_bytes))?);
        self.size_bytes = size_bytes;
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        self.buffer.clear();
        read_into_spare(file, &mut self.buffer, 0, self.size_bytes as usize)
            .map_err(|error| file_error("reading", "a file", error.into()))?;
        Ok(())
    }

    fn check(&self) -> Result<()> {
        same(&self.buffer, self.files.1.of(self.size_bytes))
    }
}

/// Reading the whole of a file that is open and in memory in pieces, as a gateway does that hands each on.
pub(in super::super) struct PreadPieces {
    files: Files,
    file: Option<File>,
    /// In turn, as long as others are on their way.
    buffers: [Vec<u8>; 4],
    size_bytes: u64,
}

impl PreadPieces {
    pub(in super::super) fn new(files: &Files) -> Self {
        PreadPieces { files: files.clone(), file: None, buffers: Default::default(), size_bytes: 0 }
    }
}

impl Rung for PreadPieces {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.file = Some(opened(&self.files.path(size_bytes))?);
        self.size_bytes = size_bytes;
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let failed = |errno: Errno| file_error("reading", "a file", errno.into());
        for offset in (0..self.size_bytes).step_by(PIECE_BYTES) {
            self.buffers.rotate_left(1);
            let (buffer, len) = (&mut self.buffers[0], PIECE_BYTES.min((self.size_bytes - offset) as usize));
            buffer.clear();
            match read_cached(file, buffer, offset, len) {
                Err(Errno::AGAIN) => read_into_spare(file, buffer, offset, len).map_err(failed)?,
                read => read.map_err(failed)?,
            };
        }
        Ok(())
    }

    /// The last piece stands for all.
    fn check(&self) -> Result<()> {
        let content = self.files.1.of(self.size_bytes);
        same(&self.buffers[0], content.chunks(PIECE_BYTES).last().unwrap_or_default())
    }
}

/// The whole of what a careful program does to read a file by its absolute path.
pub(in super::super) struct PosixGet {
    files: Files,
    path: PathBuf,
    buffer: Vec<u8>,
    size_bytes: u64,
}

impl PosixGet {
    pub(in super::super) fn new(files: &Files) -> Self {
        PosixGet { files: files.clone(), path: PathBuf::new(), buffer: Vec::new(), size_bytes: 0 }
    }
}

impl Rung for PosixGet {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.path = self.files.path(size_bytes);
        self.size_bytes = size_bytes;
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let file = opened(&self.path)?;
        let size = file.metadata().map_err(|e| file_error("looking at", self.path.display(), e))?.len();
        self.buffer.clear();
        read_into_spare(&file, &mut self.buffer, 0, size as usize)
            .map_err(|error| file_error("reading", self.path.display(), error.into()))?;
        Ok(())
    }

    fn check(&self) -> Result<()> {
        same(&self.buffer, self.files.1.of(self.size_bytes))
    }
}
