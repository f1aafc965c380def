//! The destination of received bytes: the caller's memory, or memory that belongs to the batch.

use std::sync::{Arc, Mutex, PoisonError};

use super::batch::{DuplicateBytes, FragmentPosition};

/// Memory for the fragments of one batch.
pub(super) trait FragmentSink: Send {
    /// Returns `len` bytes at `place`.
    fn slice(&mut self, place: FragmentPosition, len: usize) -> &mut [u8];

    /// Returns slices of the given lengths at `places`, which do not overlap: at the first place, and at as many
    /// further places as can be borrowed together with the first.
    fn slices(&mut self, places: &[(FragmentPosition, usize)]) -> Vec<&mut [u8]>;

    /// Called after `len` bytes have been written at `place`. With `len` 0, the bytes of this fragment that were
    /// written at `place` and behind it are missing again.
    fn arrived(&mut self, _place: FragmentPosition, _len: usize) {}

    /// Copies the bytes received for one fragment into another.
    fn copy(&mut self, duplicate: &DuplicateBytes);
}

/// The caller's memory, which is filled in the background, piece by piece. The memory is dropped as soon as no more
/// bytes will be written to it.
pub trait FragmentMemory: Send {
    /// Returns `len` bytes of fragment number `fragment`, starting at byte `within` of the fragment.
    fn slice(&mut self, fragment: usize, within: usize, len: usize) -> &mut [u8];

    /// Returns memory at several places (fragment, offset within it, length) that do not overlap. The result contains
    /// the first place, and as many further places as can be borrowed together with the first. The more places are
    /// returned, the fewer system calls are needed to fill them.
    fn slices(&mut self, places: &[(usize, usize, usize)]) -> Vec<&mut [u8]> {
        places
            .first()
            .map(|(fragment, within, len)| self.slice(*fragment, *within, *len))
            .into_iter()
            .collect()
    }

    /// Called after `len` bytes of fragment number `fragment`, starting at byte `within` of the fragment, have been
    /// received. With `len` 0, the bytes received from byte `within` on are missing again, and will be received again.
    fn arrived(&mut self, _fragment: usize, _within: usize, _len: usize) {}

    /// Copies `len` bytes from one fragment to another; `from` and `to` are a fragment's number and an offset in it.
    fn copy(&mut self, from: (usize, usize), to: (usize, usize), len: usize);
}

/// The memory of batches that run in the background.
pub(super) enum BatchMemory {
    Arena(FragmentArena),
    Memory(Box<dyn FragmentMemory>),
}

impl BatchMemory {
    /// Returns the bytes, unless they are in the caller's memory.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        match self {
            BatchMemory::Arena(mut arena) => {
                arena.memory();
                arena.bytes
            }
            BatchMemory::Memory(_) => Vec::new(),
        }
    }
}

impl FragmentSink for BatchMemory {
    fn slice(&mut self, place: FragmentPosition, len: usize) -> &mut [u8] {
        match self {
            BatchMemory::Arena(arena) => arena.slice(place, len),
            BatchMemory::Memory(memory) => memory.slice(place.fragment, place.within, len),
        }
    }

    fn slices(&mut self, places: &[(FragmentPosition, usize)]) -> Vec<&mut [u8]> {
        match self {
            BatchMemory::Arena(arena) => arena.slices(places),
            BatchMemory::Memory(memory) => {
                let places = places.iter().map(|(place, len)| (place.fragment, place.within, *len));
                memory.slices(&places.collect::<Vec<_>>())
            }
        }
    }

    fn arrived(&mut self, place: FragmentPosition, len: usize) {
        if let BatchMemory::Memory(memory) = self {
            memory.arrived(place.fragment, place.within, len);
        }
    }

    fn copy(&mut self, duplicate: &DuplicateBytes) {
        match self {
            BatchMemory::Arena(arena) => arena.copy(duplicate),
            BatchMemory::Memory(memory) => {
                let DuplicateBytes { from, to, len } = *duplicate;
                memory.copy((from.fragment, from.within), (to.fragment, to.within), len);
            }
        }
    }
}

/// A range to read, and the memory for it.
#[derive(Debug)]
pub struct Fragment<'a> {
    /// The offset of the first byte in the file.
    pub offset: u64,
    /// The memory to fill; its length is the number of bytes wanted.
    pub buffer: &'a mut [u8],
}

impl FragmentSink for &mut [Fragment<'_>] {
    fn slice(&mut self, place: FragmentPosition, len: usize) -> &mut [u8] {
        &mut self[place.fragment].buffer[place.within..][..len]
    }

    fn slices(&mut self, places: &[(FragmentPosition, usize)]) -> Vec<&mut [u8]> {
        let mut fragments = self.iter_mut().enumerate();
        let mut slices = Vec::with_capacity(places.len());
        let mut current: Option<(usize, usize, &mut [u8])> = None;
        for (place, len) in places {
            if current.as_ref().is_none_or(|(fragment, ..)| *fragment != place.fragment) {
                // Fragments that the iterator has passed cannot be borrowed again.
                let next = fragments.find(|(fragment, _)| *fragment == place.fragment);
                current = next.map(|(fragment, next)| (fragment, 0, &mut *next.buffer));
            }
            let Some((fragment, passed, buffer)) = current.take() else { break };
            let Some(skipped) = place.within.checked_sub(passed) else { break };
            let (slice, rest) = buffer[skipped..].split_at_mut(*len);
            slices.push(slice);
            current = Some((fragment, place.within + len, rest));
        }
        slices
    }

    fn copy(&mut self, duplicate: &DuplicateBytes) {
        let DuplicateBytes { from, to, len } = *duplicate;
        let (first, second) = self.split_at_mut(from.fragment.max(to.fragment));
        let (lower, higher) = (&mut first[from.fragment.min(to.fragment)], &mut second[0]);
        let (source, target) = if from.fragment < to.fragment { (lower, higher) } else { (higher, lower) };
        target.buffer[to.within..][..len].copy_from_slice(&source.buffer[from.within..][..len]);
    }
}

/// The minimum size of a buffer for which huge pages are requested.
const HUGE_BYTES: usize = 4 << 20;

/// Memory returned by callers, for the next batch that receives bytes.
pub(super) type SpareBufferPool = Arc<Mutex<Vec<Vec<u8>>>>;

/// One buffer for all fragments, one after the other in the requested order. The buffer is allocated when the first
/// byte arrives, because most of the batches in flight have not received any bytes yet.
pub(super) struct FragmentArena {
    pub(super) bytes: Vec<u8>,
    /// The total size of the fragments.
    total: usize,
    /// The start of each fragment.
    starts: Vec<usize>,
    spares: SpareBufferPool,
}

impl FragmentArena {
    /// Returns an arena for `ranges` (offset, length). If possible, its memory is taken from `spares`; the previous
    /// content of that memory is lost.
    pub(super) fn new(ranges: &[(u64, usize)], spares: &SpareBufferPool) -> Self {
        let mut total = 0;
        let after = |(_, len): &(u64, usize)| {
            total += len;
            total - len
        };
        let starts = ranges.iter().map(after).collect();
        FragmentArena { bytes: Vec::new(), total, starts, spares: spares.clone() }
    }

    fn position(&self, place: FragmentPosition) -> usize {
        self.starts[place.fragment] + place.within
    }

    /// Returns the whole buffer. The first call allocates the buffer, or takes it from the spare buffers.
    fn memory(&mut self) -> &mut [u8] {
        if self.bytes.len() < self.total {
            let spare = self.spares.lock().unwrap_or_else(PoisonError::into_inner).pop();
            self.bytes =
                spare.filter(|spare| spare.capacity() >= self.total).unwrap_or_else(|| fresh(self.total));
            self.bytes.resize(self.total, 0);
        }
        &mut self.bytes
    }
}

/// Allocates a quarter more memory than needed, so that the memory is also large enough for a slightly larger next
/// batch. The extra memory costs little, because it is not accessed. The system provides memory that is already zeroed,
/// so memory mainly costs time when it is first accessed.
fn fresh(bytes: usize) -> Vec<u8> {
    let mut memory = vec![0; bytes + bytes / 4];
    if bytes >= HUGE_BYTES {
        fordway_sys::in_huge_pages(&mut memory);
    }
    memory.truncate(bytes);
    memory
}

impl FragmentSink for FragmentArena {
    fn slice(&mut self, place: FragmentPosition, len: usize) -> &mut [u8] {
        let start = self.position(place);
        &mut self.memory()[start..][..len]
    }

    fn slices(&mut self, places: &[(FragmentPosition, usize)]) -> Vec<&mut [u8]> {
        let position = |(place, len): &(FragmentPosition, usize)| (self.position(*place), *len);
        let pieces: Vec<_> = places.iter().map(position).collect();
        in_order(self.memory(), pieces.into_iter())
    }

    fn copy(&mut self, duplicate: &DuplicateBytes) {
        let (from, to) = (self.position(duplicate.from), self.position(duplicate.to));
        self.memory().copy_within(from..from + duplicate.len, to);
    }
}

/// Returns slices of `memory` (start, length), up to the first slice that begins before the end of the previous one.
pub(crate) fn in_order(
    mut memory: &mut [u8],
    pieces: impl Iterator<Item = (usize, usize)>,
) -> Vec<&mut [u8]> {
    let mut passed = 0;
    let mut slices = Vec::with_capacity(pieces.size_hint().0);
    for (start, len) in pieces {
        let Some(skipped) = start.checked_sub(passed) else { break };
        let (slice, rest) = memory[skipped..].split_at_mut(len);
        slices.push(slice);
        (memory, passed) = (rest, start + len);
    }
    slices
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(fragment: usize, within: usize) -> FragmentPosition {
        FragmentPosition { fragment, within }
    }

    #[test]
    fn memory_is_taken_when_the_first_byte_comes() {
        let spares = SpareBufferPool::default();
        let [mut first, mut second] = [5, 6].map(|len| FragmentArena::new(&[(0, len)], &spares));
        assert!(first.bytes.is_empty() && second.bytes.is_empty());
        spares.lock().unwrap().push(vec![7; 5]);
        assert_eq!(second.slice(place(0, 5), 1), [0], "memory that is too small is useless");
        assert!(spares.lock().unwrap().is_empty());
        spares.lock().unwrap().push(Vec::with_capacity(8));
        let at = spares.lock().unwrap()[0].as_ptr();
        assert_eq!(first.slice(place(0, 0), 5).as_ptr(), at);
        assert_eq!(first.bytes.len(), 5);
    }

    #[test]
    fn places_are_lent_together_as_far_as_they_are_in_order() {
        let ranges = [(0, 4), (90, 3), (50, 5)];
        let wanted = [(place(0, 1), 2), (place(0, 3), 1), (place(2, 1), 3), (place(1, 0), 3)];
        let mut arena = FragmentArena::new(&ranges, &SpareBufferPool::default());
        let mut buffers = ranges.map(|(_, len)| vec![0; len]);
        let mut fragments: Vec<_> =
            buffers.iter_mut().map(|buffer| Fragment { offset: 0, buffer: &mut buffer[..] }).collect();
        for sink in [&mut arena as &mut dyn FragmentSink, &mut &mut fragments[..]] {
            let slices = sink.slices(&wanted);
            assert_eq!(slices.iter().map(|slice| slice.len()).collect::<Vec<_>>(), [2, 1, 3]);
            for (slice, letter) in slices.into_iter().zip(b"xyz") {
                slice.fill(*letter);
            }
            assert_eq!(sink.slice(place(0, 0), 4), b"\0xxy");
            assert_eq!(sink.slice(place(2, 0), 5), b"\0zzz\0");
        }
    }
}
