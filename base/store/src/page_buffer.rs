//! Memory for content that begins at a page.
//!
//! An allocator puts a large block 16 bytes behind the start of a page. The kernel copies to and from such an address
//! slower than to one at the start of a page: by a tenth on some processors, three to four times as slow on others
//! (AMD's third generation of EPYC). `bench/copy-alignment` says by how much here.

use std::ops::{Deref, DerefMut};

/// Bytes of a page, on x86-64 and most others; where pages are larger, this alignment does as well.
const PAGE_BYTES: usize = 4096;

/// Memory whose first byte lies at the start of a page. Shorter buffers than a page are not worth that, and lie anywhere.
#[derive(Debug, Default)]
pub struct PageBuffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl PageBuffer {
    /// `len` bytes, all zero. Cost: an allocation of up to a page more.
    pub fn new(len: usize) -> Self {
        if len < PAGE_BYTES {
            return PageBuffer { memory: vec![0; len], start: 0, len };
        }
        let memory = vec![0; len + PAGE_BYTES];
        let start = memory.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES);
        PageBuffer { memory, start, len }
    }
}

impl Deref for PageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_buffers_begin_at_a_page() {
        for len in [0, 1, 4095, 4096, 5000, 256 << 10, 3 << 20] {
            let mut buffer = PageBuffer::new(len);
            assert_eq!((buffer.len(), buffer.iter().all(|byte| *byte == 0)), (len, true));
            assert!(len < PAGE_BYTES || buffer.as_ptr().addr().is_multiple_of(PAGE_BYTES), "{len}");
            buffer.fill(7);
            // Memory that is moved stays where it is.
            let moved = Box::new(buffer);
            assert!(moved.iter().all(|byte| *byte == 7));
        }
    }
}
