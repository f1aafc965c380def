//! Content held against its digests.

use std::fs::File;

use fordway_store::{Checksum, Digests, ETag, ETagPolicy, Expected, Hasher, Result};
use fordway_sys::{Errno, read_into_spare, stat};

use super::{Check, FindingKind, is_sealed};
use crate::record::Record;

/// Content read at a time: enough to hide a system call, little enough to stay in the cache.
const CHUNK_BYTES: usize = 256 * 1024;
/// Content between two words about progress.
const PROGRESS_CHUNKS: u64 = 16;

/// Whether a record has something that the content can be held against.
pub(super) fn can_be_checked(record: &Record) -> bool {
    record.checksum.is_some() || stored_md5(record).is_some()
}

impl Check<'_> {
    /// Reads the sealed `file` and compares. Cost: its content once, and what its digests cost.
    pub(super) fn content(&mut self, path: &str, file: &File, record: &Record) -> Result<()> {
        if !can_be_checked(record) {
            return Ok(());
        }
        let algorithm = record.checksum.as_ref().map(|checksum| checksum.algorithm);
        let mut hasher = Hasher::new(ETagPolicy::Fast, stored_md5(record).is_some(), algorithm);
        if let Err(errno) = self.read_all(file, &mut hasher)? {
            return self.unreadable(path, errno, "reading");
        }
        let now = match stat(file) {
            Ok(now) => now,
            Err(errno) => return self.unreadable(path, errno, "looking at"),
        };
        if !is_sealed(record, &now) {
            return self.changed(path, record, &now);
        }
        self.summary.read_files += 1;
        match difference(record, &hasher.finish(&Expected::default())?) {
            Some(detail) => self.found(FindingKind::Corrupt, path, detail),
            None => Ok(()),
        }
    }

    fn read_all(&mut self, file: &File, hasher: &mut Hasher) -> Result<Result<(), Errno>> {
        let mut offset = 0;
        loop {
            self.buffer.clear();
            match read_into_spare(file, &mut self.buffer, offset, CHUNK_BYTES) {
                Ok(0) => return Ok(Ok(())),
                Ok(got) => {
                    hasher.update(&self.buffer);
                    offset += got as u64;
                    self.summary.read_bytes += got as u64;
                    if got < CHUNK_BYTES {
                        return Ok(Ok(()));
                    }
                }
                Err(errno) => return Ok(Err(errno)),
            }
            if (offset / CHUNK_BYTES as u64).is_multiple_of(PROGRESS_CHUNKS) {
                self.progress()?;
            }
        }
    }
}

fn stored_md5(record: &Record) -> Option<[u8; 16]> {
    record.etag.as_ref().and_then(ETag::as_md5)
}

/// What is stored and what was found, where they differ.
fn difference(record: &Record, found: &Digests) -> Option<String> {
    if stored_md5(record).is_some() && found.md5 != stored_md5(record) {
        let now = ETag::from_md5(found.md5.unwrap_or_default());
        let stored = record.etag.as_ref()?;
        return Some(format!("the content's MD5 is {now}, the stored ETag says {stored}"));
    }
    if record.checksum != found.checksum {
        let stored = record.checksum.as_ref()?;
        let (name, stored) = (stored.algorithm.name(), stored.to_base64());
        let now = found.checksum.as_ref().map(Checksum::to_base64).unwrap_or_default();
        return Some(format!("the content's {name} is {now}, the stored one is {stored}"));
    }
    None
}
