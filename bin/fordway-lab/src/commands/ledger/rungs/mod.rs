//! The rungs: each does the work of one layer, with the code that does it in earnest where that can be
//! called by itself.

pub(super) mod event_loop;
pub(super) mod files;
pub(super) mod heads;
pub(super) mod http2;
pub(super) mod layer;
pub(super) mod memory;
pub(super) mod node_frames;
pub(super) mod publish;
pub(super) mod request;
pub(super) mod round_trip;
pub(super) mod store;
pub(super) mod tls;

use bytes::Bytes;
use fordway_store::{Error, ErrorKind, Result};

/// The largest size that a rung is made ready for; more would not fit in the memory of a small node.
pub(super) const SIZE_BYTES_MAX: u64 = 64 << 20;

/// Content that no layer can take for anything else: no page and no piece of it is like another.
/// Objects of all sizes begin alike.
#[derive(Clone)]
pub(super) struct Contents(Bytes);

impl Contents {
    /// Of objects up to `most_bytes`.
    pub(super) fn new(most_bytes: u64) -> Self {
        let mut random = fordway_measure::Shuffle::new(1);
        let words = 0..most_bytes.div_ceil(8);
        Contents(words.flat_map(|_| random.next_u64().to_le_bytes()).collect::<Vec<_>>().into())
    }

    /// That of the object of `size_bytes`.
    pub(super) fn of(&self, size_bytes: u64) -> &[u8] {
        &self.0[..size_bytes as usize]
    }

    /// The same, to be kept; not copied.
    pub(super) fn share(&self, size_bytes: u64) -> Bytes {
        self.0.slice(..size_bytes as usize)
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Get,
    Put,
}

impl Operation {
    /// The key of its object with `size_bytes` of content: what is put is none of what is read.
    pub(super) fn name(self, size_bytes: u64) -> String {
        match self {
            Operation::Get => files::name(size_bytes),
            Operation::Put => format!("upload-{size_bytes}"),
        }
    }
}

/// What went wrong in a rung that needs nothing but memory. Errors: `Internal`.
fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Internal, "doing in memory what else goes through sockets").caused_by(error)
}

/// Holds what an operation brought against what it should have. Errors: `Corrupt`.
pub(super) fn same(what: &[u8], wanted: &[u8]) -> Result<()> {
    match what == wanted {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Corrupt, "the operation brought other bytes than are stored")),
    }
}
