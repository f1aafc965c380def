//! Where bytes go: memory of the caller's, or memory that travels with the request.

use super::plan::{Duplicate, Place};

/// Memory for the fragments of one batch.
pub(super) trait Sink: Send {
    /// `len` bytes at `place`.
    fn slice(&mut self, place: Place, len: usize) -> &mut [u8];

    /// `len` bytes have been put at `place`.
    fn arrived(&mut self, _place: Place, _len: usize) {}

    /// Copies what was received for one fragment into another.
    fn copy(&mut self, duplicate: &Duplicate);
}

/// Memory of a caller's that bytes are received into while other things are done, piece by piece.
/// It is dropped when nothing will be put there any more.
pub trait Memory: Send {
    /// `len` bytes of fragment number `fragment`, from its byte `within` on.
    fn slice(&mut self, fragment: usize, within: usize, len: usize) -> &mut [u8];

    /// `len` bytes of fragment number `fragment` have been received, from its byte `within` on.
    fn arrived(&mut self, _fragment: usize, _within: usize, _len: usize) {}

    /// Copies `len` bytes of a fragment into another; a place is a fragment's number and a byte in it.
    fn copy(&mut self, from: (usize, usize), to: (usize, usize), len: usize);
}

/// Where batches go that nobody waits for yet.
pub(super) enum Landing {
    Arena(Arena),
    Memory(Box<dyn Memory>),
}

impl Landing {
    /// The bytes, unless they are in memory of the caller's.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        match self {
            Landing::Arena(arena) => arena.bytes,
            Landing::Memory(_) => Vec::new(),
        }
    }
}

impl Sink for Landing {
    fn slice(&mut self, place: Place, len: usize) -> &mut [u8] {
        match self {
            Landing::Arena(arena) => arena.slice(place, len),
            Landing::Memory(memory) => memory.slice(place.fragment, place.within, len),
        }
    }

    fn arrived(&mut self, place: Place, len: usize) {
        if let Landing::Memory(memory) = self {
            memory.arrived(place.fragment, place.within, len);
        }
    }

    fn copy(&mut self, duplicate: &Duplicate) {
        match self {
            Landing::Arena(arena) => arena.copy(duplicate),
            Landing::Memory(memory) => {
                let Duplicate { from, to, len } = *duplicate;
                memory.copy((from.fragment, from.within), (to.fragment, to.within), len);
            }
        }
    }
}

/// Bytes wanted, and where they go.
#[derive(Debug)]
pub struct Fragment<'a> {
    /// The first byte's position in the file.
    pub offset: u64,
    /// Filled; its length is how many bytes are wanted.
    pub buffer: &'a mut [u8],
}

impl Sink for &mut [Fragment<'_>] {
    fn slice(&mut self, place: Place, len: usize) -> &mut [u8] {
        &mut self[place.fragment].buffer[place.within..][..len]
    }

    fn copy(&mut self, duplicate: &Duplicate) {
        let Duplicate { from, to, len } = *duplicate;
        let (first, second) = self.split_at_mut(from.fragment.max(to.fragment));
        let (lower, higher) = (&mut first[from.fragment.min(to.fragment)], &mut second[0]);
        let (source, target) = if from.fragment < to.fragment { (lower, higher) } else { (higher, lower) };
        target.buffer[to.within..][..len].copy_from_slice(&source.buffer[from.within..][..len]);
    }
}

/// One piece of memory with all fragments in it, one behind the other in the order asked for.
pub(super) struct Arena {
    pub(super) bytes: Vec<u8>,
    /// Where each fragment begins.
    starts: Vec<usize>,
}

impl Arena {
    /// For `ranges` (offset, length), in `memory`, which is used again; what it held is lost.
    pub(super) fn new(ranges: &[(u64, usize)], memory: Vec<u8>) -> Self {
        let mut total = 0;
        let after = |(_, len): &(u64, usize)| {
            total += len;
            total - len
        };
        let starts = ranges.iter().map(after).collect();
        let mut bytes = memory;
        if bytes.capacity() < total {
            // Fresh memory comes zeroed from the system, and costs most when it is first touched. The
            // room to spare is not touched; it has the next batch, a little larger, fit too.
            bytes = vec![0; total + total / 4];
            bytes.truncate(total);
        }
        bytes.resize(total, 0);
        Arena { bytes, starts }
    }

    fn position(&self, place: Place) -> usize {
        self.starts[place.fragment] + place.within
    }
}

impl Sink for Arena {
    fn slice(&mut self, place: Place, len: usize) -> &mut [u8] {
        let start = self.position(place);
        &mut self.bytes[start..][..len]
    }

    fn copy(&mut self, duplicate: &Duplicate) {
        let (from, to) = (self.position(duplicate.from), self.position(duplicate.to));
        self.bytes.copy_within(from..from + duplicate.len, to);
    }
}
