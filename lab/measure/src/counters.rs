//! Counts the resources that processes use within a period, and the bytes on connections.

use std::fmt;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use fordway_sys::{HardwareCounters, HardwareEventCounts, ProcessResourceUsage, descendants, usage_of};
use serde::{Deserialize, Serialize};

/// The resources used by a set of processes within a period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessCounters {
    /// A description of the processes that were counted.
    pub scope: String,
    /// The duration that the counters cover.
    pub covered_ns: u64,
    /// The number of threads of all processes at the end, which is also the maximum number of processors that they can
    /// use at once.
    pub threads: u64,
    /// CPU time (task clock).
    pub cpu_ns: u64,
    /// CPU time spent in user mode. Its resolution is one tick of the kernel, usually 10 ms.
    pub user_ns: u64,
    /// CPU time spent in the kernel. Its resolution is one tick of the kernel, usually 10 ms.
    pub system_ns: u64,
    /// Voluntary context switches: a thread blocked.
    pub voluntary_switches: u64,
    /// Involuntary context switches.
    pub involuntary_switches: u64,
    /// Resident memory of all processes at the end of the period.
    pub rss_bytes: u64,
    /// The sum, over all processes, of each process's peak resident memory since it started.
    pub max_rss_bytes: u64,
    /// Processor cycles. This counter and the following counters are `null` if they were not measured.
    pub cycles: Option<u64>,
    /// Processor cycles at nominal frequency.
    pub reference_cycles: Option<u64>,
    /// Instructions executed.
    pub instructions: Option<u64>,
    /// Last-level cache misses.
    pub cache_misses: Option<u64>,
}

/// Counters that have been started and not yet stopped.
pub struct RunningCounters {
    scope: String,
    /// The process whose descendants are also counted; `None` if only this process is counted.
    root: Option<u32>,
    before: Vec<(u32, ProcessResourceUsage)>,
    /// The CPU time of the thread that observes the run, which is a thread of this process.
    observer_before_ns: u64,
    hardware: HardwareCounters,
    hardware_before: HardwareEventCounts,
    started: Instant,
}

/// The thread that observes the run; 0 if there is none.
static OBSERVER: AtomicU32 = AtomicU32::new(0);

/// Excludes the calling thread from [`own_cpu_ns`] and from the CPU time of [`RunningCounters::start_own`], because it
/// observes the run and does none of the run's work. Only the last caller is excluded, as long as its thread runs.
pub fn exclude_this_thread() {
    OBSERVER.store(fordway_sys::thread_id(), Ordering::Relaxed);
}

/// Returns the CPU time of all threads of this process, without the thread that observes the run, in nanoseconds. Cost:
/// two `clock_gettime`.
pub fn own_cpu_ns() -> u64 {
    let observer_ns = observer_cpu_ns();
    let all_ns = fordway_sys::process_cpu_ns(std::process::id());
    all_ns.unwrap_or_default().saturating_sub(observer_ns)
}

/// Returns the CPU time of the thread that observes the run; 0 if there is none.
fn observer_cpu_ns() -> u64 {
    match OBSERVER.load(Ordering::Relaxed) {
        0 => 0,
        // In a child process, the observer is a thread of another process, so its CPU clock cannot be read here.
        thread => fordway_sys::cpu_ns_of_thread(thread).unwrap_or_default(),
    }
}

/// The error for counters that do not cover the whole period. Such counters are discarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountersIncomplete(String);

impl fmt::Display for CountersIncomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CountersIncomplete {}

impl RunningCounters {
    /// Starts counting the resources used by process `pid` and its descendants. Errors: the process does not exist or
    /// belongs to another user. Cost: a walk through `/proc`.
    pub fn start(pid: u32) -> Result<Self, CountersIncomplete> {
        Self::start_all(family_of(pid)?, Some(pid))
    }

    /// Starts counting the resources used by this process, excluding its child processes. The CPU time excludes the
    /// thread that observes the run; the other counters include it.
    pub fn start_own() -> Result<Self, CountersIncomplete> {
        Self::start_all(vec![std::process::id()], None)
    }

    fn start_all(family: Vec<u32>, root: Option<u32>) -> Result<Self, CountersIncomplete> {
        let hardware = HardwareCounters::open(&family);
        let before = family.iter().map(|pid| Ok((*pid, usage(*pid)?))).collect::<Result<Vec<_>, _>>()?;
        let scope = match (root, before.len()) {
            (None, _) => "this process, all threads".to_owned(),
            (Some(root), 1) => format!("process {root}, all threads"),
            (Some(root), all) => format!("process {root} and {} that it started, all threads", all - 1),
        };
        Ok(RunningCounters {
            scope,
            root,
            before,
            observer_before_ns: observer_cpu_ns(),
            hardware_before: hardware.read(),
            hardware,
            started: Instant::now(),
        })
    }

    /// Stops counting and returns the resources used since the start. Errors: the set of processes has changed, or the
    /// counters cover less than `run_ns`. Counters of a part of the run could be mistaken for counters of the whole
    /// run.
    pub fn stop(self, run_ns: u64) -> Result<ProcessCounters, CountersIncomplete> {
        let covered_ns = self.started.elapsed().as_nanos() as u64;
        let hardware = self.hardware.read();
        if covered_ns < run_ns {
            let detail = format!("counters of {} covered {covered_ns} of {run_ns} ns", self.scope);
            return Err(CountersIncomplete(detail));
        }
        let mut total = self.counted(covered_ns, hardware);
        for (pid, before) in &self.before {
            let after = usage(*pid)?;
            if after.started_ticks != before.started_ticks {
                return Err(CountersIncomplete(format!(
                    "process {pid} ended during the run, and another has its number"
                )));
            }
            total.add_use(before, &after);
        }
        if self.root.is_none() {
            let observer_ns = observer_cpu_ns().saturating_sub(self.observer_before_ns);
            total.cpu_ns = total.cpu_ns.saturating_sub(observer_ns);
        }
        let after = self.root.map_or(Ok(1), |root| family_of(root).map(|family| family.len()))?;
        if after != self.before.len() {
            let before = self.before.len();
            return Err(CountersIncomplete(format!(
                "the server had {before} processes at the start of the run and {after} at its end"
            )));
        }
        Ok(total)
    }

    fn counted(&self, covered_ns: u64, hardware: HardwareEventCounts) -> ProcessCounters {
        let since = |after: Option<u64>, before: Option<u64>| Some(after?.saturating_sub(before?));
        let before = self.hardware_before;
        ProcessCounters {
            scope: self.scope.clone(),
            covered_ns,
            threads: 0,
            cpu_ns: 0,
            user_ns: 0,
            system_ns: 0,
            voluntary_switches: 0,
            involuntary_switches: 0,
            rss_bytes: 0,
            max_rss_bytes: 0,
            cycles: since(hardware.cycles, before.cycles),
            reference_cycles: since(hardware.reference_cycles, before.reference_cycles),
            instructions: since(hardware.instructions, before.instructions),
            cache_misses: since(hardware.cache_misses, before.cache_misses),
        }
    }
}

impl ProcessCounters {
    fn add_use(&mut self, before: &ProcessResourceUsage, after: &ProcessResourceUsage) {
        self.cpu_ns += after.cpu_ns - before.cpu_ns;
        self.user_ns += after.user_ns.saturating_sub(before.user_ns);
        self.system_ns += after.system_ns.saturating_sub(before.system_ns);
        // The context switches of threads that have ended are missing from `after`, so the difference could be
        // negative.
        self.voluntary_switches += after.voluntary_switches.saturating_sub(before.voluntary_switches);
        self.involuntary_switches += after.involuntary_switches.saturating_sub(before.involuntary_switches);
        self.threads += after.threads;
        self.rss_bytes += after.rss_bytes;
        self.max_rss_bytes += after.max_rss_bytes;
    }

    /// Adds `later`: the counters of the same processes in a later period.
    pub fn add(&mut self, later: &ProcessCounters) {
        let sum = |a: Option<u64>, b: Option<u64>| Some(a? + b?);
        self.covered_ns += later.covered_ns;
        self.cpu_ns += later.cpu_ns;
        self.user_ns += later.user_ns;
        self.system_ns += later.system_ns;
        self.voluntary_switches += later.voluntary_switches;
        self.involuntary_switches += later.involuntary_switches;
        self.threads = self.threads.max(later.threads);
        self.rss_bytes = later.rss_bytes;
        self.max_rss_bytes = self.max_rss_bytes.max(later.max_rss_bytes);
        self.cycles = sum(self.cycles, later.cycles);
        self.reference_cycles = sum(self.reference_cycles, later.reference_cycles);
        self.instructions = sum(self.instructions, later.instructions);
        self.cache_misses = sum(self.cache_misses, later.cache_misses);
    }
}

fn family_of(pid: u32) -> Result<Vec<u32>, CountersIncomplete> {
    descendants(pid).map_err(|error| CountersIncomplete(format!("/proc cannot be read: {error}")))
}

fn usage(pid: u32) -> Result<ProcessResourceUsage, CountersIncomplete> {
    usage_of(pid).map_err(|error| CountersIncomplete(format!("process {pid} cannot be watched: {error}")))
}

/// Bytes transferred over connections, bodies included. For HTTP/1.1 and 2 these are the bytes inside TLS; for
/// HTTP/3 they are the encrypted payload of the UDP packets, acknowledgements included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkTraffic {
    /// The number of bytes sent.
    pub sent_bytes: u64,
    /// The number of bytes received.
    pub received_bytes: u64,
    /// The number of connections opened.
    pub connections: u64,
}

impl NetworkTraffic {
    /// Returns the traffic added since `before`.
    pub fn since(self, before: NetworkTraffic) -> NetworkTraffic {
        NetworkTraffic {
            sent_bytes: self.sent_bytes - before.sent_bytes,
            received_bytes: self.received_bytes - before.received_bytes,
            connections: self.connections - before.connections,
        }
    }
}

impl AddAssign for NetworkTraffic {
    fn add_assign(&mut self, other: NetworkTraffic) {
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
        self.connections += other.connections;
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn child(script: &str) -> Child {
        Command::new("sh").args(["-c", script]).spawn().unwrap()
    }

    #[test]
    fn work_of_another_process_is_counted() {
        let mut busy = child("while :; do :; done");
        let counters = RunningCounters::start(busy.id()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        let counted = counters.stop(300_000_000);
        busy.kill().unwrap();
        busy.wait().unwrap();
        let counted = counted.unwrap();
        assert!(counted.cpu_ns > 30_000_000 && counted.cpu_ns <= counted.covered_ns, "{counted:?}");
        assert!(counted.rss_bytes > 0 && counted.scope.ends_with("all threads"));
    }

    #[test]
    fn counters_that_do_not_cover_the_run_are_refused() {
        let mut short = child("sleep 60");
        let too_short = RunningCounters::start(short.id()).unwrap().stop(3_600_000_000_000);
        let gone = RunningCounters::start(short.id()).unwrap();
        short.kill().unwrap();
        short.wait().unwrap();
        assert!(too_short.expect_err("an hour was not covered").to_string().contains("covered"));
        assert!(gone.stop(0).expect_err("the process has ended").to_string().contains("cannot be watched"));
        assert!(RunningCounters::start(0x7fff_fff0).is_err());
    }
}
