//! Moving bytes and checking them, for uploads and downloads alike.

use std::io::{self, Read};

use fordway_store::{
    ChecksumAlgorithm, ETagPolicy, Error, ErrorKind, Expected, Hasher, ObjectInfo, PageBuffer, PutResult,
    Result, Writer,
};

use super::Runner;
use fordway_command::file_error;

/// Bytes moved at a time: large enough to hide the cost of a call, small enough for the cache.
pub(super) const CHUNK_BYTES: usize = 256 * 1024;

/// Holds what was read against what the object's writer said about it.
///
/// A stored checksum is preferred; an ETag that looks like an MD5 is the second choice, for the
/// ETags of some encrypted objects look like one and are none.
pub(crate) struct Verifier(Option<(Hasher, Expected)>);

impl Verifier {
    /// A verifier of the whole object; one that checks nothing if there is nothing to check.
    pub(crate) fn new(info: &ObjectInfo, verify: bool) -> Self {
        let size = Some(info.size);
        // One that was made of parts' checksums says nothing of the content as it is read.
        let checksum = info.checksum.as_ref().filter(|checksum| checksum.parts.is_none());
        Verifier(match (checksum, info.etag.as_md5()) {
            _ if !verify => None,
            (Some(checksum), _) => {
                let hasher = Hasher::new(ETagPolicy::Fast, false, Some(checksum.algorithm));
                Some((hasher, Expected { size, md5: None, checksum: Some(checksum.clone()) }))
            }
            (None, Some(md5)) => {
                let hasher = Hasher::new(ETagPolicy::Md5, false, None);
                Some((hasher, Expected { size, md5: Some(md5), checksum: None }))
            }
            (None, None) => None,
        })
    }

    /// Whether there is anything to hold the content against.
    pub(crate) fn is_needed(&self) -> bool {
        self.0.is_some()
    }

    /// Takes in the next bytes.
    pub(crate) fn update(&mut self, data: &[u8]) {
        if let Some((hasher, _)) = &mut self.0 {
            hasher.update(data);
        }
    }

    /// Errors: `BadDigest`, `IncompleteBody`.
    pub(crate) fn finish(self) -> Result<()> {
        match self.0 {
            Some((hasher, expected)) => hasher.finish(&expected).map(drop),
            None => Ok(()),
        }
    }
}

/// Holds what was read of a source against the size that it stated.
/// Errors: `InvalidArgument` where that was 0, as of the kernel's files in /proc; `IncompleteBody`.
fn check_size(name: &str, stated: Option<u64>, read_bytes: u64) -> Result<()> {
    let (kind, why) = match stated {
        Some(0) if read_bytes > 0 => (
            ErrorKind::InvalidArgument,
            format!("{name} says that it is empty, and has content; pipe it in and use - as the source"),
        ),
        Some(size) if size != read_bytes => (
            ErrorKind::IncompleteBody,
            format!("{name} changed while it was read: {read_bytes} bytes instead of {size}"),
        ),
        _ => return Ok(()),
    };
    Err(Error::new(kind, why))
}

impl Runner<'_> {
    /// Feeds `reader` to `writer` and publishes it; `size` is what is expected where that is known.
    /// The checksum is computed here too, so that the store's side is checked against ours.
    pub(super) fn pump(
        &self,
        name: &str,
        reader: &mut dyn Read,
        mut writer: Box<dyn Writer>,
        size: Option<u64>,
    ) -> Result<(PutResult, u64)> {
        let mut hasher = self.checksum().map(|name| Hasher::new(ETagPolicy::Fast, false, Some(name)));
        let mut buffer = PageBuffer::new(size.map_or(CHUNK_BYTES, |size| CHUNK_BYTES.min(size as usize + 1)));
        let mut total_bytes = 0;
        loop {
            let chunk = read_some(reader, &mut buffer).map_err(|error| file_error("reading", name, error))?;
            if chunk.is_empty() {
                break;
            }
            if let Some(hasher) = &mut hasher {
                hasher.update(chunk);
            }
            writer.write(chunk)?;
            total_bytes += chunk.len() as u64;
            self.advance(chunk.len() as u64)?;
        }
        check_size(name, size, total_bytes)?;
        let checksum = match hasher {
            Some(hasher) => hasher.finish(&Expected::default())?.checksum,
            None => None,
        };
        // Ctrl-C ends the program that feeds us too: its early end must not become an object.
        self.context.interrupt.check()?;
        let made = writer.commit(&Expected { size: Some(total_bytes), md5: None, checksum })?;
        Ok((made, total_bytes))
    }

    /// The checksum that uploads carry: the one asked for; over HTTP, CRC-64/NVME otherwise.
    pub(super) fn checksum(&self) -> Option<ChecksumAlgorithm> {
        let default = (self.store().lane() == "http").then_some(ChecksumAlgorithm::Crc64Nvme);
        self.settings.checksum.or(default)
    }
}

/// Reads once, again if a signal came between; empty at the end.
fn read_some<'b>(reader: &mut dyn Read, buffer: &'b mut [u8]) -> io::Result<&'b [u8]> {
    loop {
        match reader.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(count) => return Ok(&buffer[..count]),
        }
    }
}
