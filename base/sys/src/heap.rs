//! The heap of this process.

/// Bytes that were freed, and that the allocator keeps for what comes next; 0 where it does not tell.
/// Cost: a look at each list of free blocks, in microseconds unless there are very many.
pub fn unused_heap_bytes() -> u64 {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: it reads the allocator's own counters under the allocator's own locks.
        unsafe { libc::mallinfo2() }.fordblks as u64
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    0
}

/// Gives the system back what the heap does not use. Cost: a millisecond for some 10 MiB; what else allocates
/// waits for that.
pub fn give_back_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it touches only memory that the allocator holds free.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_freed_is_given_back() {
        let mut blocks: Vec<Vec<u8>> = (0..2_000).map(|_| vec![7; 20_000]).collect();
        let before = unused_heap_bytes();
        // The last one stays, and keeps those before it from going back by themselves.
        blocks.drain(..1_999);
        let unused = unused_heap_bytes();
        assert!(cfg!(not(target_env = "gnu")) || unused > before + (10 << 20), "{before} {unused}");
        give_back_heap();
    }
}
