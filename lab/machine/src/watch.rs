//! Detects whether a run was disturbed by other processes, by a hypervisor, or by a quota.
//!
//! The kernel counts the time of processors, processes and control groups. [`MachineWatch`] reads these counters at the
//! start and at the end of a run, and evaluates the differences.

use std::collections::{HashMap, HashSet};

use crate::doctor::{SystemTree, throttled_periods};

/// The share of the machine's processor time that other processes may take before a result is doubtful. This includes
/// kernel threads, some of which work for the run itself.
const OTHERS_MAX: f64 = 0.15;
/// The share that the hypervisor may give to other guests.
const STOLEN_MAX: f64 = 0.02;
/// The share of a quota's periods in which the run may be stopped.
const STOPPED_MAX: f64 = 0.05;
/// The minimum number of ticks (10 ms per processor) for shares to be significant.
const TICKS_MIN: f64 = 20.0;

/// The counters at the start of a run.
#[derive(Debug)]
pub struct MachineWatch {
    tree: SystemTree,
    /// The processes whose time, including that of their descendants, belongs to the run.
    own: Vec<u32>,
    /// Whether the time of other processes raises doubts. It does not if an unknown server may be among them.
    counts_others: bool,
    start: TimeCounters,
}

/// Counters of the kernel. Times are in ticks.
#[derive(Clone, Debug, Default)]
struct TimeCounters {
    /// The time of all processors, idle or not.
    total: f64,
    /// The time spent in programs, and in the kernel on their behalf, excluding interrupts.
    busy: f64,
    stolen: f64,
    /// The time of the run's processes and their descendants, including ended ones.
    own: f64,
    /// The number of quota periods, and of those in which this process was stopped; `None` without a quota.
    periods: Option<(f64, f64)>,
}

impl MachineWatch {
    /// Reads the counters. The run consists of this process, the processes `servers`, and the descendants of both.
    /// Cost: reads one file for each process on the machine.
    pub fn start(servers: &[u32]) -> Self {
        let own = [&[std::process::id()], servers].concat();
        MachineWatch::at(SystemTree::at("/"), own)
    }

    fn at(tree: SystemTree, own: Vec<u32>) -> Self {
        let start = TimeCounters::read(&tree, &own);
        MachineWatch { tree, own, counts_others: true, start }
    }

    /// Ignores the time of other processes, because a measured server may be one of them.
    pub fn beside_unknown_servers(self) -> Self {
        MachineWatch { counts_others: false, ..self }
    }

    /// Returns reasons to doubt the measurements made since the start, each with advice. Cost: as
    /// [`MachineWatch::start`].
    pub fn doubts(&self) -> Vec<String> {
        self.start.doubts_until(&TimeCounters::read(&self.tree, &self.own), self.counts_others)
    }
}

impl TimeCounters {
    fn read(tree: &SystemTree, own: &[u32]) -> Self {
        let stat = tree.read("proc/stat").unwrap_or_default();
        let first = stat.lines().next().unwrap_or_default();
        // The fields are: user nice system idle iowait irq softirq steal. Guest time is already counted in user.
        let ticks: Vec<f64> =
            first.split_whitespace().skip(1).take(8).map_while(|tick| tick.parse().ok()).collect();
        let tick = |field: usize| ticks.get(field).copied().unwrap_or(0.0);
        let counters = TimeCounters {
            total: ticks.iter().sum(),
            busy: tick(0) + tick(1) + tick(2),
            stolen: tick(7),
            own: own_ticks(tree, own),
            periods: throttled_periods(tree),
        };
        // Discard the list of files read. Only findings of the doctor use it.
        tree.take_seen();
        counters
    }

    fn doubts_until(&self, end: &TimeCounters, counts_others: bool) -> Vec<String> {
        let total = end.total - self.total;
        if total < TICKS_MIN {
            return Vec::new();
        }
        let others = ((end.busy - self.busy) - (end.own - self.own)) / total;
        let stolen = (end.stolen - self.stolen) / total;
        let stopped = match (self.periods, end.periods) {
            (Some((periods, stopped)), Some((periods_now, stopped_now))) if periods_now > periods => {
                (stopped_now - stopped) / (periods_now - periods)
            }
            _ => 0.0,
        };
        let doubts = [
            (counts_others && others > OTHERS_MAX).then(|| {
                format!(
                    "other processes took {:.0} % of the machine's processor time during the run: times are longer and \
                     vary more; run it again when the machine is idle",
                    100.0 * others
                )
            }),
            (stolen > STOLEN_MAX).then(|| {
                format!(
                    "the hypervisor gave {:.0} % of the processor time to other guests during the run; ask for dedicated \
                     processors, or run it again",
                    100.0 * stolen
                )
            }),
            (stopped > STOPPED_MAX).then(|| {
                format!(
                    "the quota of processor time stopped the run in {:.0} % of its periods: times contain these stops; raise \
                     the quota (cpu.max), or start fewer threads",
                    100.0 * stopped
                )
            }),
        ];
        doubts.into_iter().flatten().collect()
    }
}

/// A process in `/proc`.
struct ProcessTime {
    parent: u32,
    /// Its own time, plus that of its ended descendants.
    ticks: f64,
}

impl ProcessTime {
    /// Parses `/proc/PID/stat`. The name in parentheses may contain anything.
    fn parse(stat: &str) -> Option<Self> {
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let times = fields.get(11..15)?;
        Some(ProcessTime {
            parent: fields.get(1)?.parse().ok()?,
            ticks: times.iter().filter_map(|ticks| ticks.parse::<f64>().ok()).sum(),
        })
    }
}

/// Returns the ticks of `roots` and their descendants.
fn own_ticks(tree: &SystemTree, roots: &[u32]) -> f64 {
    let numbers =
        tree.names("proc").unwrap_or_default().into_iter().filter_map(|name| name.parse::<u32>().ok());
    let processes: HashMap<u32, ProcessTime> = numbers
        .filter_map(|number| {
            let stat = tree.read(&format!("proc/{number}/stat")).ok()?;
            Some((number, ProcessTime::parse(&stat)?))
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn process(root: &Path, number: u32, parent: u32, user: u32, ended: u32) {
        let stat = format!("{number} (a) b) S {parent} 1 1 0 -1 0 0 0 0 0 {user} 0 {ended} 0 20 0 1 0 5");
        write(root, &format!("proc/{number}/stat"), &stat);
    }

    /// Process 10, its child 11 and grandchild 12; process 20 is unrelated.
    fn machine(busy: u32, idle: u32, stolen: u32, own: [u32; 3]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "proc/stat", &format!("cpu  {busy} 0 0 {idle} 0 0 0 {stolen} 0 0\ncpu0 1 2 3\n"));
        process(root.path(), 10, 1, own[0], 0);
        process(root.path(), 11, 10, own[1], 0);
        process(root.path(), 12, 11, own[2], 0);
        process(root.path(), 20, 1, 777, 0);
        root
    }

    fn read(root: &tempfile::TempDir) -> TimeCounters {
        TimeCounters::read(&SystemTree::at(root.path()), &[10])
    }

    #[test]
    fn own_work_raises_no_doubt_and_others_do() {
        let start = read(&machine(1000, 1000, 0, [10, 0, 0]));
        assert_eq!(start.own, 10.0);
        let alone = read(&machine(1100, 1100, 0, [40, 30, 35]));
        assert_eq!(start.doubts_until(&alone, true), Vec::<String>::new());
        let beside_others = read(&machine(1150, 1050, 0, [40, 30, 35]));
        let doubts = start.doubts_until(&beside_others, true);
        assert!(doubts.len() == 1 && doubts[0].starts_with("other processes took 28 %"), "{doubts:?}");
        assert!(start.doubts_until(&beside_others, false).is_empty());
    }

    #[test]
    fn what_a_descendant_took_counts_after_its_end() {
        let start = read(&machine(1000, 1000, 0, [10, 0, 0]));
        let root = machine(1150, 1050, 0, [40, 0, 0]);
        fs::remove_dir_all(root.path().join("proc/11")).unwrap();
        fs::remove_dir_all(root.path().join("proc/12")).unwrap();
        process(root.path(), 10, 1, 40, 110);
        assert_eq!(start.doubts_until(&read(&root), true), Vec::<String>::new());
    }

    #[test]
    fn stolen_time_and_quotas_raise_doubts() {
        let start = read(&machine(1000, 1000, 0, [10, 0, 0]));
        let stolen = start.doubts_until(&read(&machine(1000, 1090, 10, [10, 0, 0])), true);
        assert!(
            stolen.len() == 1 && stolen[0].contains("10 %") && stolen[0].contains("hypervisor"),
            "{stolen:?}"
        );
        let with =
            |periods| TimeCounters { periods: Some(periods), total: 100.0 * periods.0, ..Default::default() };
        let stopped = with((10.0, 0.0)).doubts_until(&with((20.0, 5.0)), true);
        assert!(stopped.len() == 1 && stopped[0].contains("in 50 % of its periods"), "{stopped:?}");
    }

    #[test]
    fn an_unreadable_machine_raises_no_doubt() {
        let root = tempfile::tempdir().unwrap();
        let watch = MachineWatch::at(SystemTree::at(root.path()), vec![10]);
        assert!(watch.doubts().is_empty());
    }
}
