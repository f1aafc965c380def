//! The kernel's counters for any process, the processors that a process may use, and precise timers. Hardware counters
//! are read through `perf_event_open`, if the machine has such counters and permits access. This module also contains
//! the time-stamp counter, which counts reference cycles, and a coarse clock, which may be a few milliseconds behind.

use std::fs::{self, File};
use std::io::{self, Read};
use std::num::NonZeroU64;
use std::os::fd::FromRawFd;
use std::time::Duration;

use rustix::io::{Errno, Result};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity, set_current_timer_slack};

use super::file::last_errno;
use crate::process_cpu_ns;

/// The resources that one process has used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessResourceUsage {
    /// The start time, in the kernel's ticks since boot. The start time distinguishes this process from a later process
    /// with the same ID.
    pub started_ticks: u64,
    /// CPU time of all threads of the process, including ended ones.
    pub cpu_ns: u64,
    /// CPU time in user mode (at the kernel's resolution, usually 10 ms).
    pub user_ns: u64,
    /// CPU time in the kernel (with the same resolution as `user_ns`).
    pub system_ns: u64,
    /// Voluntary context switches of the threads that are still alive.
    pub voluntary_switches: u64,
    /// Involuntary context switches of the threads that are still alive.
    pub involuntary_switches: u64,
    /// The current resident memory.
    pub rss_bytes: u64,
    /// The peak of the resident memory.
    pub max_rss_bytes: u64,
    /// The number of threads that are alive.
    pub threads: u64,
}

/// Reads the resources that process `pid` has used. Errors: `NotFound` if there is no such process. Cost: reads a few
/// files in `/proc`, and one more for each thread.
pub fn usage_of(pid: u32) -> io::Result<ProcessResourceUsage> {
    let invalid =
        || io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat has an unknown format"));
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The process name may contain any character, so the fields are counted from the last closing parenthesis, which
    // follows the name.
    let fields: Vec<&str> = stat.rsplit_once(')').ok_or_else(invalid)?.1.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok()).ok_or_else(invalid);
    let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    let mut usage = ProcessResourceUsage {
        started_ticks: number(19)?,
        cpu_ns: process_cpu_ns(pid).map_err(io::Error::from)?,
        user_ns: number(11)? * tick_ns,
        system_ns: number(12)? * tick_ns,
        ..ProcessResourceUsage::default()
    };
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    usage.rss_bytes = value_of(&status, "VmRSS").unwrap_or(0) * 1024;
    usage.max_rss_bytes = value_of(&status, "VmHWM").unwrap_or(0) * 1024;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread that ended after the directory was read has no such file and is skipped.
        let Ok(status) = fs::read_to_string(thread?.path().join("status")) else { continue };
        usage.threads += 1;
        usage.voluntary_switches += value_of(&status, "voluntary_ctxt_switches").unwrap_or(0);
        usage.involuntary_switches += value_of(&status, "nonvoluntary_ctxt_switches").unwrap_or(0);
    }
    Ok(usage)
}

fn value_of(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// Returns the IDs of `pid` and all its descendants, in ascending order. Cost: reads one file in `/proc` for each
/// process of the machine.
pub fn descendants(pid: u32) -> io::Result<Vec<u32>> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(child) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(format!("/proc/{child}/stat")) else { continue };
        let parent =
            stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(1)?.parse().ok());
        parents.extend(parent.map(|parent: u32| (child, parent)));
    }
    let mut family = vec![pid];
    let mut at = 0;
    while let Some(&parent) = family.get(at) {
        family.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(child, _)| *child));
        at += 1;
    }
    family.sort_unstable();
    Ok(family)
}

/// Pins the calling thread, and threads that it starts later, to `cpus`. Errors: `INVAL` if none of `cpus` can be used.
pub fn pin_thread(cpus: &[usize]) -> rustix::io::Result<()> {
    sched_setaffinity(None, &set_of(cpus)?)
}

/// Pins all threads of process `pid` to `cpus`. Errors: `INVAL` as for [`pin_thread`], `SRCH`, `PERM`.
pub fn pin_process(pid: u32, cpus: &[usize]) -> rustix::io::Result<()> {
    let set = set_of(cpus)?;
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| Errno::SRCH)?;
    for task in tasks {
        let name = task.map_err(|_| Errno::SRCH)?.file_name();
        let thread = name.to_str().and_then(|name| Pid::from_raw(name.parse().ok()?)).ok_or(Errno::SRCH)?;
        match sched_setaffinity(Some(thread), &set) {
            // The thread has ended.
            Err(Errno::SRCH) => {}
            done => done?,
        }
    }
    Ok(())
}

fn set_of(cpus: &[usize]) -> rustix::io::Result<CpuSet> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(Errno::INVAL);
        }
        set.set(cpu);
    }
    Ok(set)
}

/// Makes waits of the calling thread end on time; by default, the kernel may add 50 µs (the timer slack).
pub fn precise_timers() -> rustix::io::Result<()> {
    set_current_timer_slack(NonZeroU64::new(1))
}

/// Counted events, in the order of [`HardwareEventCounts`]' fields (`PERF_TYPE_HARDWARE`).
const EVENTS: [u64; 4] = [
    0, // PERF_COUNT_HW_CPU_CYCLES
    9, // PERF_COUNT_HW_REF_CPU_CYCLES
    1, // PERF_COUNT_HW_INSTRUCTIONS
    3, // PERF_COUNT_HW_CACHE_MISSES
];
/// Flags of `perf_event_attr`. `INHERIT` also counts threads that are started later; `EXCLUDE_HYPERVISOR` excludes the
/// hypervisor.
const INHERIT: u64 = 1 << 1;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
/// `PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING`.
const WITH_TIMES: u64 = 3;

/// The first published form of the kernel's `perf_event_attr`, which every kernel accepts.
#[repr(C)]
#[derive(Default)]
struct PerfEventAttributes {
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

/// Event counts. `None` means that the event was not measured: the machine lacks the counter, or the counter did not
/// run all the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardwareEventCounts {
    /// Processor cycles.
    pub cycles: Option<u64>,
    /// Cycles at the processor's nominal frequency.
    pub reference_cycles: Option<u64>,
    /// Instructions.
    pub instructions: Option<u64>,
    /// Misses of the last-level cache.
    pub cache_misses: Option<u64>,
}

/// Counters of a set of processes, in user and kernel mode. The counters start when [`HardwareCounters::open`] opens
/// them.
pub struct HardwareCounters([Option<Vec<File>>; 4]);

impl HardwareCounters {
    /// Opens the counters for all threads of `pids` and for threads that they start later. An event that cannot be
    /// counted for all of these threads is not counted at all.
    pub fn open(pids: &[u32]) -> Self {
        let threads: Vec<i32> = pids.iter().flat_map(|pid| threads_of(*pid)).collect();
        let on_all = |event: u64| -> Option<Vec<File>> {
            let opened: Result<Vec<File>> = threads.iter().map(|thread| open_event(event, *thread)).collect();
            opened.ok().filter(|files| !files.is_empty())
        };
        HardwareCounters(EVENTS.map(on_all))
    }

    /// Returns the counts so far. An event whose counter the kernel paused for some time is `None`, because the number
    /// of missed events is unknown.
    pub fn read(&self) -> HardwareEventCounts {
        let sum = |files: &Option<Vec<File>>| files.as_ref()?.iter().map(read_event).sum::<Option<u64>>();
        let [cycles, reference_cycles, instructions, cache_misses] = &self.0;
        HardwareEventCounts {
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
    let attributes = PerfEventAttributes {
        size: size_of::<PerfEventAttributes>() as u32,
        config: event,
        read_format: WITH_TIMES,
        flags: INHERIT | EXCLUDE_HYPERVISOR,
        ..PerfEventAttributes::default()
    };
    const ANY_CPU: i32 = -1;
    const NO_GROUP: i32 = -1;
    const CLOEXEC: u64 = 1 << 3;
    // SAFETY: `attributes` is a complete `perf_event_attr`, and its `size` field is correct.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attributes, thread, ANY_CPU, NO_GROUP, CLOEXEC)
    };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
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

/// Returns the processor's time-stamp counter, which counts reference cycles regardless of the cores' frequencies.
/// Returns `None` on processors other than x86-64, because their counters run at a different rate.
#[allow(clippy::unnecessary_wraps, reason = "only on this architecture is it always there")]
pub fn reference_cycles() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 processor has the instruction, and the instruction only reads a counter.
        Some(unsafe { core::arch::x86_64::_rdtsc() })
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// The time of the monotonic clock at the kernel's last tick, which was at most 10 ms ago (1 ms on kernels with 1,000
/// ticks per second). Reading this clock takes a fifth of the time of `Instant::now`, which reads the processor's
/// counter. Neither read makes a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CoarseInstant {
    /// The time since the clock started.
    ns: u64,
}

impl CoarseInstant {
    /// Returns the time of the last tick.
    #[inline]
    pub fn now() -> Self {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer refers to a local `timespec`. The call cannot fail for this clock. The C library's
        // function is used because it also works under debuggers that hide the vDSO from a process.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
        // The clock starts at boot, so it is never negative; 64 bits last for 584 years.
        CoarseInstant { ns: time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64 }
    }

    /// Returns the time between this value and the last tick.
    #[inline]
    pub fn elapsed(self) -> Duration {
        Duration::from_nanos(CoarseInstant::now().ns.saturating_sub(self.ns))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn usage_is_read_and_children_are_found() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (parent, family) = (std::process::id(), descendants(std::process::id()).unwrap());
        let usage = usage_of(child.id());
        let pinned = pin_process(child.id(), &[0]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(family.contains(&child.id()) && family.contains(&parent));
        let usage = usage.unwrap();
        assert!(usage.started_ticks > 0 && usage_of(parent).unwrap().rss_bytes > 0);
        assert_eq!(usage.threads, 1);
        pinned.unwrap();
        assert_eq!(usage_of(child.id()).expect_err("it has ended").kind(), io::ErrorKind::NotFound);
        assert_eq!(pin_process(child.id(), &[0]), Err(Errno::SRCH));
        assert_eq!(pin_thread(&[1 << 20]), Err(Errno::INVAL));
    }

    #[test]
    fn counts_grow_or_are_absent() {
        assert_eq!(size_of::<PerfEventAttributes>(), 64);
        let counters = HardwareCounters::open(&[std::process::id()]);
        let before = counters.read().instructions;
        std::hint::black_box((0..1_000_000_u64).fold(0, |sum, n| sum ^ std::hint::black_box(n)));
        if let (Some(before), Some(after)) = (before, counters.read().instructions) {
            assert!(after > before + 1_000_000);
        }
        assert_eq!(HardwareCounters::open(&[0x7fff_fff0]).read(), HardwareEventCounts::default());
    }

    #[test]
    fn it_counts_up() {
        let Some(before) = reference_cycles() else { return };
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(reference_cycles() > Some(before));
    }

    #[test]
    fn it_is_at_most_a_tick_behind() {
        let (start, tick) = (Instant::now(), CoarseInstant::now());
        std::thread::sleep(Duration::from_millis(30));
        let (exact, coarse) = (start.elapsed(), tick.elapsed());
        assert!(coarse + Duration::from_millis(11) > exact, "{coarse:?} of {exact:?}");
        assert!(coarse < exact + Duration::from_millis(11), "{coarse:?} of {exact:?}");
    }
}
