//! The rungs: each does the work of one layer, with the code that does it in earnest where that can be
//! called by itself.

pub(super) mod files;
pub(super) mod memory;
pub(super) mod messages;
pub(super) mod round_trip;
pub(super) mod store;
pub(super) mod tls;

use std::sync::Arc;

use fordway_store::{Error, ErrorKind, Result};

/// The largest size that a rung is made ready for; more would not fit in the memory of a small node.
pub(super) const SIZE_BYTES_MAX: u64 = 64 << 20;

/// Content that no layer can take for anything else: no page and no piece of it is like another.
/// Objects of all sizes begin alike.
#[derive(Clone)]
pub(super) struct Contents(Arc<[u8]>);

impl Contents {
    /// Of objects up to `most_bytes`.
    pub(super) fn new(most_bytes: u64) -> Self {
        let mut random = fordway_measure::Shuffle::new(1);
        Contents((0..most_bytes.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes()).collect())
    }

    /// That of the object of `size_bytes`.
    pub(super) fn of(&self, size_bytes: u64) -> &[u8] {
        &self.0[..size_bytes as usize]
    }
}

/// Holds what an operation brought against what it should have. Errors: `Corrupt`.
pub(super) fn same(what: &[u8], wanted: &[u8]) -> Result<()> {
    match what == wanted {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Corrupt, "the operation brought other bytes than are stored")),
    }
}
