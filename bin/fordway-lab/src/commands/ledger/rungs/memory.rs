//! What is done to bytes in memory: nothing, a copy, digests.

use std::hint::black_box;

use fordway_store::{Checksum, ChecksumAlgorithm, ETagPolicy, Expected, Hasher, Result};
use fordway_wire::sigv4::payload_hash;
use fordway_workload::ledger::Rung;

use super::{Contents, same};

/// Nothing: what two readings of the clock cost, which is in every other figure.
pub(in super::super) struct Nothing;

impl Rung for Nothing {
    fn prepare(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A copy into memory that was used before.
pub(in super::super) struct Copy {
    contents: Contents,
    to: Vec<u8>,
}

impl Copy {
    pub(in super::super) fn new(contents: &Contents) -> Self {
        Copy { contents: contents.clone(), to: Vec::new() }
    }
}

impl Rung for Copy {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.to.resize(size_bytes as usize, 0);
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let from = self.contents.of(self.to.len() as u64);
        self.to.copy_from_slice(black_box(from));
        black_box(&self.to);
        Ok(())
    }

    fn check(&self) -> Result<()> {
        same(&self.to, self.contents.of(self.to.len() as u64))
    }
}

/// A digest of the content.
pub(in super::super) struct Digest {
    of: fn(&[u8]),
    contents: Contents,
    size_bytes: u64,
}

impl Digest {
    fn new(contents: &Contents, of: fn(&[u8])) -> Self {
        Digest { of, contents: contents.clone(), size_bytes: 0 }
    }

    /// SHA-256, as a signed payload needs it.
    pub(in super::super) fn sha256(contents: &Contents) -> Self {
        Digest::new(contents, |bytes| drop(black_box(payload_hash(bytes))))
    }

    /// MD5, which the gateway makes ETags of.
    pub(in super::super) fn md5(contents: &Contents) -> Self {
        Digest::new(contents, |bytes| {
            let mut hasher = Hasher::new(ETagPolicy::Md5, false, None);
            hasher.update(bytes);
            let _ = black_box(hasher.finish(&Expected::default()));
        })
    }

    /// CRC-64/NVME, the checksum that S3 takes by default.
    pub(in super::super) fn crc64nvme(contents: &Contents) -> Self {
        Digest::new(contents, |bytes| drop(black_box(Checksum::of(ChecksumAlgorithm::Crc64Nvme, bytes))))
    }
}

impl Rung for Digest {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.size_bytes = size_bytes;
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        (self.of)(black_box(self.contents.of(self.size_bytes)));
        Ok(())
    }
}
