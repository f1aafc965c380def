//! The rungs: each does the work of one layer, with the code that does it in earnest where that can be
//! called by itself.

pub(super) mod files;
pub(super) mod memory;
pub(super) mod messages;
pub(super) mod round_trip;
pub(super) mod store;
pub(super) mod tls;

use fordway_store::{Error, ErrorKind, Result};

/// The largest size that a rung is made ready for; more would not fit in the memory of a small node.
pub(super) const SIZE_BYTES_MAX: u64 = 64 << 20;

/// Content that no layer can take for anything else: no page and no piece of it is like another.
pub(super) fn content(size_bytes: u64) -> Vec<u8> {
    let mut random = fordway_measure::Shuffle::new(size_bytes);
    let mut content: Vec<u8> =
        (0..size_bytes.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes()).collect();
    content.truncate(size_bytes as usize);
    content
}

/// Holds what an operation brought against what it should have. Errors: `Corrupt`.
pub(super) fn same(what: &[u8], wanted: &[u8]) -> Result<()> {
    match what == wanted {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Corrupt, "the operation brought other bytes than are stored")),
    }
}
