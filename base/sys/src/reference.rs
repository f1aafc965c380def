//! The counter that reference cycles are counted by.

/// The processor's time-stamp counter, which runs at the clock of reference cycles whatever the cores do;
/// `None` on processors other than x86-64, whose counters run at a clock of their own.
#[allow(clippy::unnecessary_wraps, reason = "only on this architecture is it always there")]
pub fn reference_cycles() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 processor has the instruction, and it reads nothing but a counter.
        Some(unsafe { core::arch::x86_64::_rdtsc() })
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_up() {
        let Some(before) = reference_cycles() else { return };
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(reference_cycles() > Some(before));
    }
}
