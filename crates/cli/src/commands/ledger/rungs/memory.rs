//! What is done to bytes in memory: nothing, a copy, digests.

use std::hint::black_box;

use fordway_store::{Checksum, ChecksumAlgorithm, ETagPolicy, Expected, Hasher, Result};
use fordway_wire::sigv4::payload_hash;
use fordway_workload::ledger::Rung;

use super::{content, same};

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
#[derive(Default)]
pub(in super::super) struct Copy {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Rung for Copy {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        if self.from.len() as u64 != size_bytes {
            self.from = content(size_bytes);
        }
        self.to.resize(size_bytes as usize, 0);
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        self.to.copy_from_slice(black_box(&self.from));
        black_box(&self.to);
        Ok(())
    }

    fn check(&self) -> Result<()> {
        same(&self.to, &self.from)
    }
}

/// A digest of the content.
pub(in super::super) struct Digest {
    of: fn(&[u8]),
    bytes: Vec<u8>,
}

impl Digest {
    fn new(of: fn(&[u8])) -> Self {
        Digest { of, bytes: Vec::new() }
    }

    /// SHA-256, as a signed payload needs it.
    pub(in super::super) fn sha256() -> Self {
        Digest::new(|bytes| drop(black_box(payload_hash(bytes))))
    }

    /// MD5, which the gateway makes ETags of.
    pub(in super::super) fn md5() -> Self {
        Digest::new(|bytes| {
            let mut hasher = Hasher::new(ETagPolicy::Md5, false, None);
            hasher.update(bytes);
            let _ = black_box(hasher.finish(&Expected::default()));
        })
    }

    /// CRC-64/NVME, the checksum that S3 takes by default.
    pub(in super::super) fn crc64nvme() -> Self {
        Digest::new(|bytes| drop(black_box(Checksum::of(ChecksumAlgorithm::Crc64Nvme, bytes))))
    }
}

impl Rung for Digest {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        if self.bytes.len() as u64 != size_bytes {
            self.bytes = content(size_bytes);
        }
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        (self.of)(black_box(&self.bytes));
        Ok(())
    }
}
