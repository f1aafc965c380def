//! Memory that a thread reuses, because allocating a buffer costs more than reading data into the buffer.

use std::cell::RefCell;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::LocalKey;

use bytes::Bytes;

/// The size of a chunk in bytes. Uploaded data is collected in chunks before it is written. Content that is sent from
/// memory is also sent in chunks.
pub(crate) const CHUNK_BYTES: usize = 256 * 1024;
/// The maximum number of chunks that a thread keeps for reuse.
const SPARE_CHUNKS_MAX: usize = 16;
/// The maximum number of small buffers that a thread keeps for reuse.
const SPARE_BUFFERS_MAX: usize = 32;
/// The maximum capacity of a small buffer that is kept for reuse.
const SPARE_BUFFER_BYTES_MAX: usize = 128 * 1024;

thread_local! {
    static SPARE_CHUNKS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    static SPARE_BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Returns an empty vector, usually a reused vector that already has capacity.
pub(crate) fn take_buffer() -> Vec<u8> {
    SPARE_BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// Keeps a vector for reuse, and discards its content.
pub(crate) fn give_buffer(mut buffer: Vec<u8>) {
    if buffer.capacity() == 0 || buffer.capacity() > SPARE_BUFFER_BYTES_MAX {
        return;
    }
    buffer.clear();
    keep(&SPARE_BUFFERS, SPARE_BUFFERS_MAX, buffer);
}

/// Wraps a small buffer in [`Bytes`]. The thread that drops the last reference keeps the buffer for reuse.
pub(crate) fn lend_buffer(buffer: Vec<u8>) -> Bytes {
    Bytes::from_owner(PooledBuffer(buffer))
}

struct PooledBuffer(Vec<u8>);

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        give_buffer(std::mem::take(&mut self.0));
    }
}

fn keep<M>(stock: &'static LocalKey<RefCell<Vec<M>>>, count_max: usize, memory: M) {
    // When a thread ends, its list of spare memory may be destroyed before the last buffers are dropped. These buffers
    // are freed.
    let _ = stock.try_with(|spare| {
        let mut spare = spare.borrow_mut();
        if spare.len() < count_max {
            spare.push(memory);
        }
    });
}

/// The number of chunks in use above which memory counts as scarce.
const SCARCE_CHUNKS: usize = 128;
/// If memory is scarce, a chunk with at least this number of filled bytes is passed on before the chunk is full.
const SCARCE_BYTES: usize = 16 * 1024;
/// The number of chunks in use across all threads.
static CHUNKS: AtomicUsize = AtomicUsize::new(0);

/// [`CHUNK_BYTES`] of memory. The thread that drops a chunk keeps the memory for reuse.
pub(crate) struct BufferChunk(Vec<u8>);

/// A chunk that is filled piece by piece. Memory is allocated when [`PartialChunk::room`] is called.
#[derive(Default)]
pub(crate) struct PartialChunk {
    chunk: Option<BufferChunk>,
    filled: usize,
    /// The filled part, after it was moved out of the chunk because memory is scarce.
    parked: Vec<u8>,
}

impl PartialChunk {
    /// Returns the number of bytes that are filled.
    pub(crate) fn filled(&self) -> usize {
        self.filled
    }

    /// Returns the memory for further bytes. The memory may contain data from its previous use.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        let chunk = self.chunk.get_or_insert_with(BufferChunk::new);
        if !self.parked.is_empty() {
            chunk.memory()[..self.filled].copy_from_slice(&self.parked);
            self.parked = Vec::new();
        }
        &mut chunk.memory()[self.filled..]
    }

    /// Records that the next `count` bytes of the memory are filled.
    pub(crate) fn add(&mut self, count: usize) {
        self.filled += count;
    }

    /// Takes the filled bytes; returns `None` if no bytes are filled.
    pub(crate) fn take(&mut self) -> Option<Bytes> {
        let (filled, parked) = (mem::take(&mut self.filled), mem::take(&mut self.parked));
        let chunk = self.chunk.take().filter(|_| filled > 0);
        let bytes = chunk.map(|chunk| chunk.into_bytes(filled));
        bytes.or_else(|| (!parked.is_empty()).then(|| parked.into()))
    }

    /// Prepares for a wait for more bytes. Returns true if memory is scarce and at least [`SCARCE_BYTES`] are filled.
    /// In this case, the caller should pass on the filled bytes before it waits. If memory is scarce and fewer bytes
    /// are filled, moves the bytes to a buffer of exactly their size. Cost if memory is not scarce: one atomic load.
    pub(crate) fn is_to_be_passed_on(&mut self) -> bool {
        if CHUNKS.load(Ordering::Relaxed) <= SCARCE_CHUNKS {
            return false;
        }
        if self.filled >= SCARCE_BYTES {
            return true;
        }
        if let Some(mut chunk) = self.chunk.take() {
            self.parked = chunk.memory()[..self.filled].to_vec();
        }
        false
    }
}

impl BufferChunk {
    pub(crate) fn new() -> Self {
        CHUNKS.fetch_add(1, Ordering::Relaxed);
        let spare = SPARE_CHUNKS.with_borrow_mut(Vec::pop);
        BufferChunk(spare.unwrap_or_else(|| vec![0; CHUNK_BYTES]))
    }

    /// Returns all of the memory. The memory may contain data from its previous use.
    pub(crate) fn memory(&mut self) -> &mut [u8] {
        &mut self.0
    }

    /// Turns the first `len` bytes into [`Bytes`].
    pub(crate) fn into_bytes(self, len: usize) -> Bytes {
        Bytes::from_owner(FilledChunk(self, len))
    }
}

impl Drop for BufferChunk {
    fn drop(&mut self) {
        CHUNKS.fetch_sub(1, Ordering::Relaxed);
        keep(&SPARE_CHUNKS, SPARE_CHUNKS_MAX, std::mem::take(&mut self.0));
    }
}

/// The filled part of a chunk.
struct FilledChunk(BufferChunk, usize);

impl AsRef<[u8]> for FilledChunk {
    fn as_ref(&self) -> &[u8] {
        &self.0.0[..self.1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_used_again_but_not_while_they_are_held() {
        let mut first = BufferChunk::new();
        let memory = first.memory().as_ptr();
        first.memory()[..3].copy_from_slice(b"abc");
        let held = first.into_bytes(3);
        let second = BufferChunk::new();
        assert_ne!(second.0.as_ptr(), memory);
        assert_eq!(held, "abc");
        drop(held);
        assert_eq!(BufferChunk::new().0.as_ptr(), memory);
    }

    #[test]
    fn a_partial_chunk_keeps_its_bytes_in_little_memory_while_memory_is_scarce() {
        let mut partial = PartialChunk::default();
        let fill = |partial: &mut PartialChunk, bytes: &[u8]| {
            partial.room()[..bytes.len()].copy_from_slice(bytes);
            partial.add(bytes.len());
        };
        assert!(partial.take().is_none());
        let others: Vec<_> = (0..=SCARCE_CHUNKS).map(|_| BufferChunk::new()).collect();
        fill(&mut partial, b"one ");
        assert!(!partial.is_to_be_passed_on());
        assert!(partial.chunk.is_none() && partial.parked.capacity() < 64);
        fill(&mut partial, b"two ");
        assert!(!partial.is_to_be_passed_on() && partial.chunk.is_none());
        assert_eq!(partial.take().unwrap(), "one two ");
        assert!(partial.take().is_none());
        fill(&mut partial, &[7; SCARCE_BYTES]);
        assert!(partial.is_to_be_passed_on());
        assert_eq!(partial.take().unwrap(), [7; SCARCE_BYTES][..]);
        fill(&mut partial, b"three");
        partial.is_to_be_passed_on();
        drop(others);
        fill(&mut partial, b" four");
        assert_eq!(partial.take().unwrap(), "three four");
    }

    #[test]
    fn a_buffer_comes_back_empty_and_a_huge_one_not_at_all() {
        let mut buffer = take_buffer();
        buffer.extend_from_slice(&[1; 5000]);
        let (memory, capacity) = (buffer.as_ptr(), buffer.capacity());
        give_buffer(buffer);
        let again = take_buffer();
        assert_eq!((again.as_ptr(), again.capacity(), again.len()), (memory, capacity, 0));
        give_buffer(Vec::with_capacity(SPARE_BUFFER_BYTES_MAX + 1));
        assert!(take_buffer().capacity() <= SPARE_BUFFER_BYTES_MAX);
        let lent = lend_buffer(again);
        drop(lent);
        let again = take_buffer();
        assert_eq!(again.as_ptr(), memory);
    }
}
