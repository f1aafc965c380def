//! The components of the ledger. Each component does the work of one layer, with the layer's own code if that code can
//! be called separately. This file contains the components that work in memory: a clock reading, a copy and digests.

pub(super) mod connections;
pub(super) mod framing;
pub(super) mod handshake;
#[cfg(feature = "http3")]
pub(super) mod protection;
#[cfg(feature = "http3")]
pub(super) mod quic;
pub(super) mod request;
pub(super) mod round_trip;
#[cfg(feature = "http3")]
pub(super) mod socket_pair;
pub(super) mod storage;

use std::hint::black_box;

use bytes::Bytes;
use fordway_store::{
    Checksum, ChecksumAlgorithm, ContentHasher, ETagPolicy, Error, ErrorKind, ExpectedContent, Result,
};
use fordway_wire::sigv4::payload_hash;
use fordway_workload::ledger::LedgerComponent;

/// The largest size that a component supports. Larger content would not fit in the memory of a small node.
pub(super) const SIZE_BYTES_MAX: u64 = 64 << 20;

/// Content in which no two pages or pieces are equal, so that the check detects a layer that mixes up pages or pieces.
/// Objects of all sizes begin with the same bytes.
#[derive(Clone)]
pub(super) struct NonrepeatingContent(Bytes);

impl NonrepeatingContent {
    /// Creates content for objects of up to `most_bytes`.
    pub(super) fn new(most_bytes: u64) -> Self {
        let mut random = fordway_measure::SeededRandom::new(1);
        let words = 0..most_bytes.div_ceil(8);
        NonrepeatingContent(words.flat_map(|_| random.next_u64().to_le_bytes()).collect::<Vec<_>>().into())
    }

    /// Returns the content of the object whose size is `size_bytes`.
    pub(super) fn of(&self, size_bytes: u64) -> &[u8] {
        &self.0[..size_bytes as usize]
    }

    /// Like [`of`](Self::of), but returns the content with shared ownership. The content is not copied.
    pub(super) fn share(&self, size_bytes: u64) -> Bytes {
        self.0.slice(..size_bytes as usize)
    }
}

/// The operation that a request performs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectOperation {
    Get,
    Put,
}

impl ObjectOperation {
    /// Returns the key of the operation's object with `size_bytes` of content. Puts and gets use different objects.
    pub(super) fn name(self, size_bytes: u64) -> String {
        match self {
            ObjectOperation::Get => storage::name_of_size(size_bytes),
            ObjectOperation::Put => format!("upload-{size_bytes}"),
        }
    }

    /// Returns the name of the path that performs this operation over `protocol`.
    pub(super) fn path_over(self, protocol: &str) -> String {
        match self {
            ObjectOperation::Get => format!("{protocol} get"),
            ObjectOperation::Put => format!("{protocol} put"),
        }
    }
}

/// Wraps the error of a component that works only in memory in an `Internal` error.
fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Internal, "running the codecs in memory").caused_by(error)
}

/// Checks that an operation returned the expected bytes. Errors: `Corrupt`.
pub(super) fn same(what: &[u8], wanted: &[u8]) -> Result<()> {
    match what == wanted {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::Corrupt,
            "the operation returned bytes that differ from the stored ones",
        )),
    }
}

/// A component that does nothing. Its time is the time of two clock readings, which every other figure includes.
pub(super) struct ClockReadingComponent;

impl LedgerComponent for ClockReadingComponent {
    fn moves_content(&self) -> bool {
        false
    }

    fn prepare(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A copy into memory whose pages are already mapped.
pub(super) struct MemoryCopyComponent {
    contents: NonrepeatingContent,
    to: Vec<u8>,
}

impl MemoryCopyComponent {
    pub(super) fn new(contents: &NonrepeatingContent) -> Self {
        MemoryCopyComponent { contents: contents.clone(), to: Vec::new() }
    }
}

impl LedgerComponent for MemoryCopyComponent {
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

/// Computes a digest of the content.
pub(super) struct DigestComponent {
    of: fn(&[u8]),
    contents: NonrepeatingContent,
    size_bytes: u64,
}

impl DigestComponent {
    fn new(contents: &NonrepeatingContent, of: fn(&[u8])) -> Self {
        DigestComponent { of, contents: contents.clone(), size_bytes: 0 }
    }

    /// Returns a component that computes SHA-256, which signed payloads need.
    pub(super) fn sha256(contents: &NonrepeatingContent) -> Self {
        DigestComponent::new(contents, |bytes| drop(black_box(payload_hash(bytes))))
    }

    /// Returns a component that computes MD5, which the gateway uses for ETags.
    pub(super) fn md5(contents: &NonrepeatingContent) -> Self {
        DigestComponent::new(contents, |bytes| {
            let mut hasher = ContentHasher::new(ETagPolicy::Md5, false, None);
            hasher.update(bytes);
            let _ = black_box(hasher.finish(&ExpectedContent::default()));
        })
    }

    /// Returns a component that computes CRC-64/NVME, the checksum that S3 uses by default.
    pub(super) fn crc64nvme(contents: &NonrepeatingContent) -> Self {
        DigestComponent::new(contents, |bytes| {
            drop(black_box(Checksum::of(ChecksumAlgorithm::Crc64Nvme, bytes)))
        })
    }
}

impl LedgerComponent for DigestComponent {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.size_bytes = size_bytes;
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        (self.of)(black_box(self.contents.of(self.size_bytes)));
        Ok(())
    }
}
