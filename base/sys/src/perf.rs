//! Hardware counters through `perf_event_open`, where the machine has them and lets us read them.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::FromRawFd;

use rustix::io::{Errno, Result};

use crate::xattr::last_errno;

/// Counted events, in the order of [`HardwareCounts`]' fields (`PERF_TYPE_HARDWARE`).
const EVENTS: [u64; 4] = [
    0, // PERF_COUNT_HW_CPU_CYCLES
    9, // PERF_COUNT_HW_REF_CPU_CYCLES
    1, // PERF_COUNT_HW_INSTRUCTIONS
    3, // PERF_COUNT_HW_CACHE_MISSES
];
/// Bits of `perf_event_attr`: threads that are started later count too; not the hypervisor.
const INHERIT: u64 = 1 << 1;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
/// `PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING`.
const WITH_TIMES: u64 = 3;

/// The first published form of the kernel's `perf_event_attr`, which every kernel takes.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint_type: u32,
    breakpoint_address: u64,
}

/// Events counted; `None` is not measured: the machine lacks the counter, or it did not run all the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardwareCounts {
    /// Cycles of the processor.
    pub cycles: Option<u64>,
    /// Cycles at the processor's nominal frequency.
    pub reference_cycles: Option<u64>,
    /// Instructions.
    pub instructions: Option<u64>,
    /// Misses of the last-level cache.
    pub cache_misses: Option<u64>,
}

/// Counters of some processes, user and kernel mode; they count from when they are opened.
pub struct HardwareCounters([Option<Vec<File>>; 4]);

impl HardwareCounters {
    /// Opens the counters for all threads of `pids` and for those that these will start. An event that
    /// cannot be counted on all of them is not counted at all.
    pub fn open(pids: &[u32]) -> Self {
        let threads: Vec<i32> = pids.iter().flat_map(|pid| threads_of(*pid)).collect();
        let on_all = |event: u64| -> Option<Vec<File>> {
            let opened: Result<Vec<File>> = threads.iter().map(|thread| open_event(event, *thread)).collect();
            opened.ok().filter(|files| !files.is_empty())
        };
        HardwareCounters(EVENTS.map(on_all))
    }

    /// Counts so far. A counter that the kernel took off the processor for some time is refused:
    /// what it missed is not known.
    pub fn read(&self) -> HardwareCounts {
        let sum = |files: &Option<Vec<File>>| files.as_ref()?.iter().map(read_event).sum::<Option<u64>>();
        let [cycles, reference_cycles, instructions, cache_misses] = &self.0;
        HardwareCounts {
            cycles: sum(cycles),
            reference_cycles: sum(reference_cycles),
            instructions: sum(instructions),
            cache_misses: sum(cache_misses),
        }
    }
}

fn threads_of(pid: u32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
}

fn open_event(event: u64, thread: i32) -> Result<File> {
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        config: event,
        read_format: WITH_TIMES,
        flags: INHERIT | EXCLUDE_HYPERVISOR,
        ..Attributes::default()
    };
    const ANY_CPU: i32 = -1;
    const NO_GROUP: i32 = -1;
    const CLOEXEC: u64 = 1 << 3;
    // SAFETY: `attributes` is a whole `perf_event_attr` of the size that it states.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attributes, thread, ANY_CPU, NO_GROUP, CLOEXEC)
    };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just given us this descriptor, and nobody else knows it.
        Ok(fd) if fd >= 0 => Ok(unsafe { File::from_raw_fd(fd) }),
        Ok(_) => Err(last_errno()),
        Err(_) => Err(Errno::OVERFLOW),
    }
}

fn read_event(mut file: &File) -> Option<u64> {
    let mut bytes = [0_u8; 24];
    file.read_exact(&mut bytes).ok()?;
    let word = |at: usize| u64::from_ne_bytes(bytes[8 * at..8 * at + 8].try_into().unwrap_or_default());
    let (count, enabled_ns, running_ns) = (word(0), word(1), word(2));
    (running_ns == enabled_ns).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_grow_or_are_absent() {
        assert_eq!(size_of::<Attributes>(), 64);
        let counters = HardwareCounters::open(&[std::process::id()]);
        let before = counters.read().instructions;
        std::hint::black_box((0..1_000_000_u64).fold(0, |sum, n| sum ^ std::hint::black_box(n)));
        if let (Some(before), Some(after)) = (before, counters.read().instructions) {
            assert!(after > before + 1_000_000);
        }
        assert_eq!(HardwareCounters::open(&[0x7fff_fff0]).read(), HardwareCounts::default());
    }
}
