//! The counters that `-C instrument-coverage` adds to this program, for fuzzing. Only a build with `--cfg
//! fordway_coverage` has these counters (`tools/soak-fuzz`).

pub use counters::{clear_coverage_counters, coverage_counters};

#[cfg(not(fordway_coverage))]
mod counters {
    /// Returns an empty slice, because this build has no counters.
    pub fn coverage_counters() -> &'static [u64] {
        &[]
    }

    /// Does nothing, because this build has no counters.
    pub fn clear_coverage_counters() {}
}

/// The section with LLVM's counters. The linker defines symbols for its start and end.
#[cfg(fordway_coverage)]
mod counters {
    unsafe extern "C" {
        #[link_name = "__start___llvm_prf_cnts"]
        static mut START: u64;
        #[link_name = "__stop___llvm_prf_cnts"]
        static mut STOP: u64;
    }

    fn section() -> (*mut u64, usize) {
        let (start, stop) = (&raw mut START, &raw mut STOP);
        (start, (stop.addr() - start.addr()) / size_of::<u64>())
    }

    /// Returns how often each counted region of this program was executed. Cost: none.
    pub fn coverage_counters() -> &'static [u64] {
        let (start, count) = section();
        // SAFETY: the section consists of initialized, aligned counters, and is mapped for the life of the program.
        // Code that runs in the meantime may increment the counters; their values are used only as hints.
        unsafe { std::slice::from_raw_parts(start, count) }
    }

    /// Sets all counters to zero.
    pub fn clear_coverage_counters() {
        let (start, count) = section();
        // SAFETY: the section consists of initialized, aligned counters, for which zero is valid. If this write
        // overwrites an increment, only a hint is lost.
        unsafe { start.write_bytes(0, count) }
    }
}
