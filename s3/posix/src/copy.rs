//! Copies within the store: by the kernel, sharing extents where the file system can.

use std::fs::File;
use std::sync::Arc;

use fordway_store::{
    Bucket, Checksum, ChecksumAlgorithm, CopyOptions, ETagPolicy, Error, ErrorKind, Expected, Hasher, Key,
    PutResult, Result, check_tags,
};
use fordway_sys::{Errno, copy_range};

use crate::Inner;
use crate::errors::from_errno;
use crate::record::{Record, etag_of_file};
use crate::stage::{FILE_MODE, Staged};
use crate::write::check_metadata;

/// Bytes moved at a time where the kernel cannot copy between the two files.
const BOUNCE_BYTES: usize = 256 * 1024;

impl Inner {
    pub(crate) fn copy(
        self: &Arc<Self>,
        from: (&Bucket, &Key),
        bucket: &Bucket,
        key: &Key,
        options: &CopyOptions,
    ) -> Result<PutResult> {
        options.check_target(from, (bucket, key))?;
        let source = self.open_version(from.0, from.1, options.source_version.as_ref())?;
        let (stat, record) = (&source.stat, source.record());
        let metadata = options.metadata.clone().unwrap_or_else(|| record.metadata.clone());
        let tags = options.tags.clone().unwrap_or_else(|| record.tags.clone());
        check_metadata(&metadata)?;
        check_tags(&tags)?;
        // Without a stored ETag the copy gets one that it keeps, whatever its own inode is.
        let etag = record.etag.clone().unwrap_or_else(|| etag_of_file(stat));
        let mut copied = Record {
            etag: Some(etag),
            checksum: record.checksum.clone(),
            parts: record.parts.clone(),
            metadata,
            tags,
            ..Default::default()
        };
        let size = stat.size;
        let (file, info) = source.into_info();
        options.source_conditions.check_copy_source(&info)?;
        let mut staged = self.stage(bucket, key, FILE_MODE)?;
        match options.new_checksum(copied.checksum.as_ref()) {
            None => append_range(&mut staged, &file, 0, size)?,
            Some(algorithm) => {
                copied.checksum = append_with_checksum(&mut staged, &file, size, algorithm)?;
                copied.parts.iter_mut().for_each(|part| part.checksum = None);
            }
        }
        staged.publish(key, copied, &options.conditions)
    }
}

/// Appends `size` bytes of `file`, and computes the checksum of just these.
/// Errors: as [`append_range`].
fn append_with_checksum(
    staged: &mut Staged,
    file: &File,
    size: u64,
    algorithm: ChecksumAlgorithm,
) -> Result<Option<Checksum>> {
    let mut hasher = Hasher::new(ETagPolicy::Fast, false, Some(algorithm));
    for_each_piece(file, 0, size, |piece| {
        hasher.update(piece);
        staged.write(piece)
    })?;
    Ok(hasher.finish(&Expected::default())?.checksum)
}

/// Appends `len` bytes of `file` from `offset` to `staged`.
/// Errors: `IncompleteBody` if the file is shorter by then, and errors of a write.
pub(crate) fn append_range(staged: &mut Staged, file: &File, offset: u64, len: u64) -> Result<()> {
    let copied = match copy_range(file, offset, staged.file(), staged.written(), len) {
        Ok(copied) => copied,
        Err(errno) if needs_plain_copy(errno) => 0,
        Err(errno) => return Err(staged.failed_write(errno, len as usize)),
    };
    staged.advance(copied);
    for_each_piece(file, offset + copied, len - copied, |piece| staged.write(piece))
}

/// Whether the kernel cannot copy between just these two files.
pub(crate) fn needs_plain_copy(errno: Errno) -> bool {
    matches!(errno, Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL)
}

/// Reads `left` bytes of `file` from `offset`, piece by piece.
/// Errors: `IncompleteBody` if the file is shorter by then, and errors of `consume`.
pub(crate) fn for_each_piece(
    file: &File,
    mut offset: u64,
    mut left: u64,
    mut consume: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut buffer = Vec::new();
    while left > 0 {
        buffer.clear();
        let wanted = left.min(BOUNCE_BYTES as u64) as usize;
        let got = fordway_sys::read_into_spare(file, &mut buffer, offset, wanted)
            .map_err(|errno| from_errno(errno, "reading the source"))?;
        if got == 0 {
            return Err(Error::new(ErrorKind::IncompleteBody, "the source was cut while it was copied"));
        }
        consume(&buffer)?;
        offset += got as u64;
        left -= got as u64;
    }
    Ok(())
}
