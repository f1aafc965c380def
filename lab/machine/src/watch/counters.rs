//! The kernel's counters of CPU time, quotas and pressure; a run uses the differences between two readings.

use std::collections::{HashMap, HashSet};

use crate::doctor::{CpuQuotaCounters, SystemTree, quota_counters};

/// Counters of the machine at one moment. CPU times are in ticks.
#[derive(Clone, Debug, Default)]
pub(super) struct MachineCounters {
    /// The total time of all processors, idle or not.
    pub(super) total: f64,
    /// The time spent in programs, and in the kernel on their behalf, excluding interrupts.
    pub(super) busy: f64,
    pub(super) stolen: f64,
    /// The CPU time of the run's processes and their descendants, including the descendants that have exited.
    pub(super) own: f64,
    /// The counters of the quota; `None` if there is no quota.
    pub(super) quota: Option<CpuQuotaCounters>,
    pub(super) pressure: PressureCounters,
}

/// The time, in seconds, in which at least one task has waited for a processor, memory or storage; `None` if the kernel
/// does not count this time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PressureCounters {
    pub(super) cpu_s: Option<f64>,
    pub(super) memory_s: Option<f64>,
    pub(super) io_s: Option<f64>,
}

impl MachineCounters {
    /// Reads the counters of the machine. Cost: reads one file for each process on the machine.
    pub(super) fn read(tree: &SystemTree, own: &[u32]) -> Self {
        let stat = tree.read("proc/stat").unwrap_or_default();
        let first = stat.lines().next().unwrap_or_default();
        // The fields are: user nice system idle iowait irq softirq steal. `user` already includes the time of guests.
        let ticks: Vec<f64> =
            first.split_whitespace().skip(1).take(8).map_while(|tick| tick.parse().ok()).collect();
        let tick = |field: usize| ticks.get(field).copied().unwrap_or(0.0);
        let counters = MachineCounters {
            total: ticks.iter().sum(),
            busy: tick(0) + tick(1) + tick(2),
            stolen: tick(7),
            own: own_ticks(tree, own),
            quota: quota_counters(tree),
            pressure: PressureCounters::read(tree),
        };
        // Discard the list of files read, because only findings of the doctor use this list.
        tree.take_seen();
        counters
    }
}

impl PressureCounters {
    pub(super) fn read(tree: &SystemTree) -> Self {
        let some_s = |resource: &str| {
            let text = tree.read(&format!("proc/pressure/{resource}")).ok()?;
            let total = text.lines().find(|line| line.starts_with("some "))?.split("total=").nth(1)?;
            Some(total.trim().parse::<f64>().ok()? / 1e6)
        };
        PressureCounters { cpu_s: some_s("cpu"), memory_s: some_s("memory"), io_s: some_s("io") }
    }
}

/// The parent and the CPU time of a process, from `/proc/PID/stat`.
struct ProcessCpuTime {
    parent: u32,
    /// The CPU time of the process and of its descendants that have exited.
    ticks: f64,
}

impl ProcessCpuTime {
    /// Parses `/proc/PID/stat`. The name in parentheses may contain any character.
    fn parse(stat: &str) -> Option<Self> {
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let times = fields.get(11..15)?;
        Some(ProcessCpuTime {
            parent: fields.get(1)?.parse().ok()?,
            ticks: times.iter().filter_map(|ticks| ticks.parse::<f64>().ok()).sum(),
        })
    }
}

/// Returns the CPU time of the processes `roots` and of their descendants, in ticks.
fn own_ticks(tree: &SystemTree, roots: &[u32]) -> f64 {
    let numbers =
        tree.names("proc").unwrap_or_default().into_iter().filter_map(|name| name.parse::<u32>().ok());
    let processes: HashMap<u32, ProcessCpuTime> = numbers
        .filter_map(|number| {
            let stat = tree.read(&format!("proc/{number}/stat")).ok()?;
            Some((number, ProcessCpuTime::parse(&stat)?))
        })
        .collect();
    let mut own: HashSet<u32> = roots.iter().copied().collect();
    loop {
        let children =
            processes.iter().filter(|(number, of)| own.contains(&of.parent) && !own.contains(number));
        let children: Vec<u32> = children.map(|(number, _)| *number).collect();
        if children.is_empty() {
            break;
        }
        own.extend(children);
    }
    own.iter().filter_map(|number| processes.get(number)).map(|of| of.ticks).sum()
}
