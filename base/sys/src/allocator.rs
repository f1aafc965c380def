//! The allocator of Fordway's programs and libraries, whose large blocks begin in the middle of a page.
//!
//! malloc places a large block 16 bytes after the start of a page. Content in the page cache begins at the start of a
//! page. Some processors copy such content to a malloc block several times more slowly than to other addresses. A
//! third-generation AMD EPYC takes 5.7 times as long, because each store appears to overlap the bytes that are loaded
//! next. Placing the blocks of our programs at the start of a page would help only the first copy. Most programs then
//! copy the content into their own malloc blocks. Such a copy takes up to twice as long if its source begins at the
//! start of a page. A block in the middle of a page avoids both slowdowns (`bench/copy-alignment`). An allocator can
//! place all buffers in the middle of a page, including the buffers of callers and libraries.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;

/// The size of the smallest block that begins in the middle of a page. A copy to a smaller block is short, so its
/// address hardly matters.
const LARGE_BYTES: usize = 32 << 10;
/// The size of a page on x86-64, which is also the distance at which x86-64 processors treat two addresses as the same
/// address (4K aliasing).
const PAGE_BYTES: usize = 4096;
/// The offset at which a large block begins within its page.
const OFFSET_BYTES: usize = PAGE_BYTES / 2;
/// The alignment of malloc's blocks. This alignment is large enough for the number that is recorded in front of a large
/// block.
const MALLOC_ALIGN: usize = 16;

/// An allocator on top of malloc whose blocks of 32 KiB and more begin in the middle of a page. Each of these blocks
/// takes 4 KiB more address space than a malloc block, but no more memory, because no additional page is touched.
/// Declare the allocator once in a program:
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: fordway_sys::HalfPageAllocator = fordway_sys::HalfPageAllocator;
/// # assert_eq!(vec![0_u8; 1 << 20].as_ptr().addr() % 4096, 2048);
/// ```
#[derive(Debug)]
pub struct HalfPageAllocator;

/// Returns whether a block with this layout is large. The result depends only on the layout, so that a block that was
/// allocated as large is also freed as large.
#[inline]
fn is_large(layout: Layout) -> bool {
    layout.size() >= LARGE_BYTES && layout.align() <= MALLOC_ALIGN
}

/// Returns the layout of the malloc block around a large block of `size` bytes, or `None` if the size exceeds the
/// largest layout.
fn outer(size: usize) -> Option<Layout> {
    Layout::from_size_align(size.checked_add(PAGE_BYTES)?, MALLOC_ALIGN).ok()
}

/// Returns the distance of a large block from the start of its malloc block at `base`: a multiple of `MALLOC_ALIGN`,
/// from `MALLOC_ALIGN` up to the size of a page.
fn distance_from(base: *mut u8) -> usize {
    PAGE_BYTES - (base.addr() + PAGE_BYTES - OFFSET_BYTES) % PAGE_BYTES
}

/// Returns the large block within the malloc block at `base`, or null if `base` is null. Records the distance between
/// the two blocks in front of the large block.
///
/// # Safety
/// `base` is null, or begins a malloc block with the layout of [`outer`].
unsafe fn place(base: *mut u8) -> *mut u8 {
    if base.is_null() {
        return base;
    }
    let distance = distance_from(base);
    // SAFETY: the malloc block is one page larger than the large block, so `distance` bytes from its start are within
    // it. There is room for an aligned number in front of that address, because `distance` is a multiple of 16 above 0.
    unsafe {
        let block = base.add(distance);
        block.cast::<usize>().sub(1).write(distance);
        block
    }
}

/// Returns the distance of a large block from the start of its malloc block.
///
/// # Safety
/// [`place`] returned `block`.
unsafe fn distance_of(block: *mut u8) -> usize {
    // SAFETY: `place` has recorded the distance in front of the block.
    unsafe { block.cast::<usize>().sub(1).read() }
}

// SAFETY: `System` allocates each small block directly. For each large block, `System` allocates a block that contains
// the large block and is one page larger. The layout alone decides whether a block is small or large, and the caller
// frees a block with the layout it was allocated with.
unsafe impl GlobalAlloc for HalfPageAllocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !is_large(layout) {
            // SAFETY: the caller ensures that the layout has a nonzero size.
            return unsafe { System.alloc(layout) };
        }
        let Some(outer) = outer(layout.size()) else { return ptr::null_mut() };
        // SAFETY: the layout has a nonzero size, and the block has that layout.
        unsafe { place(System.alloc(outer)) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !is_large(layout) {
            // SAFETY: the caller ensures that the layout has a nonzero size.
            return unsafe { System.alloc_zeroed(layout) };
        }
        let Some(outer) = outer(layout.size()) else { return ptr::null_mut() };
        // SAFETY: the layout has a nonzero size, and the block has that layout. The recorded number is outside the
        // large block, which remains zero.
        unsafe { place(System.alloc_zeroed(outer)) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if !is_large(layout) {
            // SAFETY: the caller passes a block of this allocator, and the layout with which the block was allocated.
            // A block with this layout is small, so `System` allocated it with this layout.
            return unsafe { System.dealloc(block, layout) };
        }
        let outer = outer(layout.size()).unwrap_or(layout);
        // SAFETY: a block with this layout is large, so `place` returned it, and its malloc block was allocated with
        // the layout `outer`.
        unsafe { System.dealloc(block.sub(distance_of(block)), outer) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller promises that `new_size` is not 0 and does not overflow when rounded up to the alignment.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        match (is_large(layout), is_large(new_layout)) {
            // SAFETY: the block is small, so `System` allocated it with this layout. The caller ensures that `new_size`
            // is not 0 and does not overflow when rounded up to the alignment.
            (false, false) => unsafe { System.realloc(block, layout, new_size) },
            // SAFETY: both layouts describe large blocks.
            (true, true) => unsafe { resize_large(block, layout.size(), new_size) },
            // SAFETY: `move_to` has the same requirements as `realloc`, which the caller fulfils.
            _ => unsafe { self.move_to(block, layout, new_layout) },
        }
    }
}

impl HalfPageAllocator {
    /// Replaces a small block with a large one, or a large block with a small one.
    ///
    /// # Safety
    /// As for `realloc`.
    unsafe fn move_to(&self, block: *mut u8, layout: Layout, new_layout: Layout) -> *mut u8 {
        // SAFETY: `new_layout` has a nonzero size. The two blocks do not overlap, and neither is shorter than the
        // copied range. The caller gives up the old block.
        unsafe {
            let moved = self.alloc(new_layout);
            if !moved.is_null() {
                ptr::copy_nonoverlapping(block, moved, layout.size().min(new_layout.size()));
                self.dealloc(block, layout);
            }
            moved
        }
    }
}

/// Resizes a large block of `size` bytes. malloc remaps the pages of very large blocks without a copy, which preserves
/// the offset within the page. If the offset changes, the content is moved within the new block.
///
/// # Safety
/// `block` is a large block of `size` bytes, which the caller gives up if the result is not null. Both sizes are at
/// least `LARGE_BYTES`.
unsafe fn resize_large(block: *mut u8, size: usize, new_size: usize) -> *mut u8 {
    let (Some(outer), Some(new_outer)) = (outer(size), outer(new_size)) else { return ptr::null_mut() };
    // SAFETY: `place` returned the block, so its malloc block begins `distance` bytes before it and has the layout
    // `outer`. After the resize, the content begins `distance` bytes after the new start; content that does not fit is
    // lost. Both regions of `size.min(new_size)` bytes are within the new block, which is one page larger than
    // `new_size`. The regions may overlap.
    unsafe {
        let distance = distance_of(block);
        let base = System.realloc(block.sub(distance), outer, new_outer.size());
        if base.is_null() {
            return base;
        }
        let new_distance = distance_from(base);
        if new_distance != distance {
            ptr::copy(base.add(distance), base.add(new_distance), size.min(new_size));
        }
        place(base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All blocks keep their content when they are resized, and large blocks begin in the middle of a page.
    #[test]
    fn content_survives_every_resize() {
        let sizes = [1, 100, LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, 100_000, 300_000, 5 << 20];
        let pattern: Vec<u8> = (0..5 << 20).map(|at| (at % 251) as u8).collect();
        for align in [1, 16, 64, 8192] {
            for (from, to) in sizes.iter().flat_map(|from| sizes.iter().map(move |to| (*from, *to))) {
                let layout = Layout::from_size_align(from, align).unwrap();
                let new_layout = Layout::from_size_align(to, align).unwrap();
                // SAFETY: the layouts have nonzero sizes, and each block is used within its size and freed once with
                // its layout.
                unsafe {
                    let block = HalfPageAllocator.alloc(layout);
                    check_place(block, layout);
                    block.copy_from_nonoverlapping(pattern.as_ptr(), from);
                    let block = HalfPageAllocator.realloc(block, layout, to);
                    check_place(block, new_layout);
                    let kept = from.min(to);
                    assert!(
                        std::slice::from_raw_parts(block, kept) == &pattern[..kept],
                        "{from} {to} {align}"
                    );
                    HalfPageAllocator.dealloc(block, new_layout);
                    let block = HalfPageAllocator.alloc_zeroed(new_layout);
                    check_place(block, new_layout);
                    assert!(std::slice::from_raw_parts(block, to).iter().all(|byte| *byte == 0), "{to}");
                    HalfPageAllocator.dealloc(block, new_layout);
                }
            }
        }
    }

    fn check_place(block: *mut u8, layout: Layout) {
        let (align, offset) = if is_large(layout) { (PAGE_BYTES, OFFSET_BYTES) } else { (layout.align(), 0) };
        assert!(!block.is_null() && block.addr() % align == offset, "{layout:?}");
    }

    #[test]
    fn what_no_memory_can_hold_is_null() {
        let layout = Layout::from_size_align(isize::MAX as usize - 15, 16).unwrap();
        // SAFETY: the layout has a nonzero size; a null result is not used.
        unsafe {
            assert!(HalfPageAllocator.alloc(layout).is_null());
            assert!(HalfPageAllocator.alloc_zeroed(layout).is_null());
            let small = Layout::from_size_align(LARGE_BYTES, 1).unwrap();
            let block = HalfPageAllocator.alloc(small);
            assert!(HalfPageAllocator.realloc(block, small, isize::MAX as usize).is_null());
            HalfPageAllocator.dealloc(block, small);
        }
    }
}
