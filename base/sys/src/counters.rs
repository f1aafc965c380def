//! What the kernel counts of any process, which processors it may use, and timers that keep time.

use std::fs;
use std::io;
use std::num::NonZeroU64;

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity, set_current_timer_slack};

use crate::process_cpu_ns;

/// What one process has used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// When it started, in the kernel's ticks since boot: tells a process from a later one of the same number.
    pub started_ticks: u64,
    /// CPU time of all its threads, ended ones included.
    pub cpu_ns: u64,
    /// The part in user mode (resolution of the kernel: usually 10 ms).
    pub user_ns: u64,
    /// The part in the kernel (resolution as above).
    pub system_ns: u64,
    /// Times that threads which are still alive waited of their own will.
    pub voluntary_switches: u64,
    /// Times that they were made to wait.
    pub involuntary_switches: u64,
    /// Resident memory now.
    pub rss_bytes: u64,
    /// The most resident memory so far.
    pub max_rss_bytes: u64,
    /// Threads that are alive.
    pub threads: u64,
}

/// Reads what process `pid` has used. Errors: `NotFound` if there is none.
/// Cost: a few files in `/proc`, one more for each thread.
pub fn usage_of(pid: u32) -> io::Result<ProcessUsage> {
    let invalid =
        || io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat is not as expected"));
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name before may hold anything, so fields are counted from its closing bracket.
    let fields: Vec<&str> = stat.rsplit_once(')').ok_or_else(invalid)?.1.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok()).ok_or_else(invalid);
    let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    let mut usage = ProcessUsage {
        started_ticks: number(19)?,
        cpu_ns: process_cpu_ns(pid).map_err(io::Error::from)?,
        user_ns: number(11)? * tick_ns,
        system_ns: number(12)? * tick_ns,
        ..ProcessUsage::default()
    };
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    usage.rss_bytes = value_of(&status, "VmRSS").unwrap_or(0) * 1024;
    usage.max_rss_bytes = value_of(&status, "VmHWM").unwrap_or(0) * 1024;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end while its siblings are looked at.
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

/// `pid` and all processes that it started, directly or not, in ascending order.
/// Cost: one file in `/proc` for each process of the machine.
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

/// Keeps the calling thread, and threads that it will start, on `cpus`.
/// Errors: `INVAL` if none of them is there to be used.
pub fn pin_thread(cpus: &[usize]) -> rustix::io::Result<()> {
    sched_setaffinity(None, &set_of(cpus)?)
}

/// Keeps all threads of process `pid` on `cpus`. Errors: `INVAL` as above, `SRCH`, `PERM`.
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

/// Has waits of the calling thread end on time; by default the kernel may add 50 µs.
pub fn precise_timers() -> rustix::io::Result<()> {
    set_current_timer_slack(NonZeroU64::new(1))
}

#[cfg(test)]
mod tests {
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
}
