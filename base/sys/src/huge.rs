//! Memory in huge pages.

use rustix::mm::{Advice, madvise};
use rustix::param::page_size;

/// Has the kernel back `memory` by huge pages (2 MiB on x86-64) when it is first touched: a fault for each of them
/// instead of one for each 4 KiB. Worth it for fresh memory of several MiB that will all be used. It is a hint
/// (`MADV_HUGEPAGE`), which changes no byte; where the kernel has no such pages to give, nothing happens.
/// Cost: one `madvise`.
pub fn in_huge_pages(memory: &mut [u8]) {
    let aligned = memory.as_ptr().align_offset(page_size());
    let Some(whole) = memory.get_mut(aligned..) else { return };
    let len = whole.len() / page_size() * page_size();
    // SAFETY: the pages lie within `memory`, which is ours alone here, and the advice leaves their content as it is.
    let _as_usual = unsafe { madvise(whole.as_mut_ptr().cast(), len, Advice::LinuxHugepage) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_stays_and_any_memory_will_do() {
        let mut memory = vec![7; 5 << 20];
        in_huge_pages(&mut memory);
        in_huge_pages(&mut memory[1..100]);
        in_huge_pages(&mut []);
        assert!(memory.iter().all(|byte| *byte == 7));
    }
}
