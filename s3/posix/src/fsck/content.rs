//! Compares the content of files with the digests in their records.

use std::fs::File;

use fordway_store::{
    Checksum, ContentHasher, ETag, ETagPolicy, ExpectedContent, HashResult, ObjectPart, Result,
};
use fordway_sys::{Errno, read_into_spare, stat};

use super::{FindingKind, FsckRun, is_sealed};
use crate::record::ObjectRecord;

/// The number of content bytes read at a time: large enough to amortize the cost of a system call, and small enough to
/// stay in the processor's cache.
const CHUNK_BYTES: usize = 256 * 1024;
/// The number of content bytes between two progress reports.
const PROGRESS_BYTES: u64 = 16 * CHUNK_BYTES as u64;

/// A range of content, and its expected digests.
struct ContentSpan<'r> {
    /// The number of the part; `None` if the range is not a part.
    part: Option<u16>,
    size: u64,
    md5: Option<[u8; 16]>,
    checksum: Option<&'r Checksum>,
}

/// Returns whether `record` has a digest against which the content can be checked.
pub(super) fn can_be_checked(record: &ObjectRecord) -> bool {
    !pieces_of(record).is_empty()
}

/// Returns the ranges that have digests: the whole content, or its parts if only the parts have digests. The result is
/// empty if there is no digest.
fn pieces_of(record: &ObjectRecord) -> Vec<ContentSpan<'_>> {
    let Some(seal) = record.seal else { return Vec::new() };
    let (md5, checksum) = (record.etag.as_ref().and_then(ETag::as_md5), record.checksum.as_ref());
    if checksum.is_some_and(|checksum| checksum.parts.is_some()) {
        return record.parts.iter().map(piece_of_part).collect::<Option<_>>().unwrap_or_default();
    }
    match md5.is_some() || checksum.is_some() {
        true => vec![ContentSpan { part: None, size: seal.size, md5, checksum }],
        false => Vec::new(),
    }
}

fn piece_of_part(part: &ObjectPart) -> Option<ContentSpan<'_>> {
    let checksum = part.checksum.as_ref()?;
    Some(ContentSpan { part: Some(part.number), size: part.size, md5: None, checksum: Some(checksum) })
}

impl FsckRun<'_> {
    /// Reads `file`, whose state matches its record's seal, and compares the digests of the content with those in
    /// `record`. Cost: reading the content once and computing the digests.
    pub(super) fn content(&mut self, path: &str, file: &File, record: &ObjectRecord) -> Result<()> {
        let pieces = pieces_of(record);
        if pieces.is_empty() {
            return Ok(());
        }
        let (mut offset, mut wrong) = (0, None);
        for piece in &pieces {
            let mut hasher = piece.hasher();
            if let Err(errno) = self.read_stretch(file, offset, piece.size, &mut hasher)? {
                return self.unreadable(path, errno, "reading");
            }
            wrong = wrong.or(piece.difference(&hasher.finish(&ExpectedContent::default())?));
            offset += piece.size;
        }
        let now = match stat(file) {
            Ok(now) => now,
            Err(errno) => return self.unreadable(path, errno, "examining"),
        };
        if !is_sealed(record, &now) {
            return self.changed(path, record, &now);
        }
        self.summary.read_files += 1;
        match wrong.or_else(|| misfit(record, offset)) {
            Some(detail) => self.found(FindingKind::Corrupt, path, detail),
            None => Ok(()),
        }
    }

    /// Hashes `len` bytes of `file` from `start` on, or fewer bytes if the file ends earlier.
    fn read_stretch(
        &mut self,
        file: &File,
        start: u64,
        len: u64,
        hasher: &mut ContentHasher,
    ) -> Result<Result<(), Errno>> {
        let mut done = 0;
        while done < len {
            self.buffer.clear();
            let wanted = (len - done).min(CHUNK_BYTES as u64) as usize;
            match read_into_spare(file, &mut self.buffer, start + done, wanted) {
                Ok(0) => break,
                Ok(got) => {
                    hasher.update(&self.buffer);
                    done += got as u64;
                    self.summary.read_bytes += got as u64;
                }
                Err(errno) => return Ok(Err(errno)),
            }
            if done.is_multiple_of(PROGRESS_BYTES) {
                self.progress()?;
            }
        }
        Ok(Ok(()))
    }
}

impl ContentSpan<'_> {
    fn hasher(&self) -> ContentHasher {
        let algorithm = self.checksum.map(|checksum| checksum.algorithm);
        ContentHasher::new(ETagPolicy::Fast, self.md5.is_some(), algorithm)
    }

    /// Returns a message with the stored and the computed digest, if they differ.
    fn difference(&self, found: &HashResult) -> Option<String> {
        let what = self.part.map_or("the content".to_owned(), |number| format!("part {number}"));
        if let Some(stored) = self.md5
            && found.md5 != self.md5
        {
            let (now, stored) = (ETag::from_md5(found.md5.unwrap_or_default()), ETag::from_md5(stored));
            return Some(format!("{what}'s MD5 is {now}, the stored ETag says {stored}"));
        }
        let stored = self.checksum.filter(|stored| found.checksum.as_ref() != Some(stored))?;
        let now = found.checksum.as_ref().map(Checksum::to_base64).unwrap_or_default();
        Some(format!(
            "{what}'s {} is {now}, the stored one is {}",
            stored.algorithm.name(),
            stored.to_base64()
        ))
    }
}

/// Describes the mismatch, if there is one, between the object and the parts in its record. `size` is the total size of
/// the parts in bytes.
fn misfit(record: &ObjectRecord, size: u64) -> Option<String> {
    let sealed = record.seal?.size;
    if size != sealed {
        return Some(format!("its parts have {size} bytes, but the object has {sealed}"));
    }
    let stored = record.checksum.as_ref().filter(|stored| stored.parts.is_some())?;
    let sums: Vec<&Checksum> = record.parts.iter().filter_map(|part| part.checksum.as_ref()).collect();
    let made = Checksum::composite(stored.algorithm, &sums);
    let (name, made_text, stored_text) = (stored.algorithm.name(), made.to_base64(), stored.to_base64());
    (made != *stored)
        .then(|| format!("the {name} of all its parts is {made_text}, the stored one is {stored_text}"))
}
