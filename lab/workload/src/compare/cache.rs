//! Cold content: files whose content is not in the page cache, so that the next read comes from the storage device or
//! the file server.
//!
//! The content of each file is written to the device first, because the kernel keeps modified pages. Names and inodes
//! stay in memory. The caches of the device, of a virtual machine's host, and of a file server are not emptied either.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use fordway_store::{Error, ErrorKind, Result};
use walkdir::WalkDir;

/// The result of removing files from the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheEviction {
    /// The number of files.
    pub files: u64,
    /// The total size of the files.
    pub bytes: u64,
    /// The part of `bytes` that was still in the page cache afterwards.
    pub remaining_bytes: u64,
}

impl CacheEviction {
    pub(super) fn add(&mut self, other: CacheEviction) {
        self.files += other.files;
        self.bytes += other.bytes;
        self.remaining_bytes += other.remaining_bytes;
    }

    /// Returns the share of the bytes that remained in the page cache, from 0 to 1.
    pub fn remaining_share(&self) -> f64 {
        if self.bytes == 0 { 0.0 } else { self.remaining_bytes as f64 / self.bytes as f64 }
    }
}

/// The size of the file that [`check_eviction`] writes.
const PROBE_BYTES: usize = 1 << 20;

/// Checks whether files in `dir` can be removed from the page cache, with a file that is removed at the end. Errors:
/// `InvalidArgument` if the file system keeps its files in memory, as tmpfs does; errors of writing the file.
pub fn check_eviction(dir: &Path) -> Result<()> {
    let path = dir.join("cache-probe");
    let probe = || -> std::io::Result<u64> {
        File::create(&path)?.write_all(&vec![1; PROBE_BYTES])?;
        let remaining = evict_file(&path)?.remaining_bytes;
        std::fs::remove_file(&path)?;
        Ok(remaining)
    };
    match probe() {
        Ok(0) => Ok(()),
        Ok(_) => {
            let why = format!(
                "the file system of {} keeps content in memory, so that it cannot be read cold; give a directory on \
                 a disk or a file server with --root",
                dir.display()
            );
            Err(Error::new(ErrorKind::InvalidArgument, why))
        }
        Err(error) => Err(failed(&path, error)),
    }
}

/// Removes the content of all files below `dir` from the page cache. Opens, syncs and maps each file, so the time
/// includes writing modified content. Errors: `Interrupted` when `stop` is set; errors of reading or writing files.
pub(super) fn evict(dir: &Path, stop: &AtomicBool) -> Result<CacheEviction> {
    let mut all = CacheEviction::default();
    for entry in WalkDir::new(dir) {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Interrupted, "stopped by request"));
        }
        let entry = entry.map_err(|error| failed(dir, error.into()))?;
        if entry.file_type().is_file() {
            all.add(evict_file(entry.path()).map_err(|error| failed(entry.path(), error))?);
        }
    }
    Ok(all)
}

fn evict_file(path: &Path) -> std::io::Result<CacheEviction> {
    let file = File::open(path)?;
    let bytes = file.metadata()?.len();
    // The kernel keeps modified pages.
    fordway_sys::sync_data(&file)?;
    fordway_sys::drop_cached(&file)?;
    let remaining_bytes = fordway_sys::cached_bytes(&file, bytes)?;
    Ok(CacheEviction { files: 1, bytes, remaining_bytes })
}

fn failed(path: &Path, error: std::io::Error) -> Error {
    let what = format!("removing {} from the page cache", path.display());
    Error::new(ErrorKind::from(&error), what).caused_by(error)
}
