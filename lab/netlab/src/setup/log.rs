//! What programs of a set-up say, kept in memory until somebody wants to know why one failed.

use std::fs::File;
use std::io::Read;
use std::io::{Seek, SeekFrom};
use std::process::Stdio;

use fordway_store::{Error, ErrorKind, Result};
use rustix::fs::{MemfdFlags, memfd_create};

/// The most that is told of it.
const TOLD_BYTES_MAX: u64 = 2_000;

/// A file without a name that programs write to.
#[derive(Debug)]
pub(super) struct Log(File);

impl Log {
    pub(super) fn new() -> Result<Self> {
        let made = memfd_create("fordway-log", MemfdFlags::CLOEXEC).map_err(std::io::Error::from);
        made.map(|file| Log(file.into()))
            .map_err(|error| Error::new(ErrorKind::Io, "making a file in memory").caused_by(error))
    }

    /// As a stream that a program may write to. A log that cannot be shared is none.
    pub(super) fn stream(&self) -> Stdio {
        self.0.try_clone().map_or_else(|_| Stdio::null(), Stdio::from)
    }

    /// Its end, in one line.
    pub(super) fn told(&self) -> String {
        let mut file = &self.0;
        let len = file.metadata().map_or(0, |metadata| metadata.len());
        let mut end = Vec::new();
        let start = len.saturating_sub(TOLD_BYTES_MAX);
        let read = file.seek(SeekFrom::Start(start)).and_then(|_| file.read_to_end(&mut end));
        // The programs write where this position is: it must be the end again.
        let _ = file.seek(SeekFrom::End(0));
        let text = String::from_utf8_lossy(&end);
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        match (read, lines.is_empty()) {
            (Err(_), _) | (_, true) => "it said nothing".to_owned(),
            _ => format!("it said: {}", lines[lines.len().saturating_sub(3)..].join(" / ")),
        }
    }
}
