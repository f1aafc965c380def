//! Determines whether a machine is idle enough for measurements, and whether a run was disturbed. Disturbances come
//! from other processes, a hypervisor, a quota, a lack of memory, or processors that slow down.
//!
//! Before the run, [`MachineWatch`] repeats a fixed task on each processor. The run itself uses no CPU time at this
//! stage, so any lost time was taken by other programs. During the run, a thread takes samples. After the run, the
//! changes in the kernel's counters are evaluated.

mod counters;
mod sampler;

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use fordway_measure::{
    DisturbanceCause, DisturbanceFigures, MeasurementWarning, RunReliability, RunReliabilityReport,
};
use fordway_store::{Error, ErrorKind, Result};

use self::counters::{MachineCounters, PressureCounters};
use self::sampler::{RunSampler, RunSamples};
use crate::doctor::{SystemNoise, SystemTree, WorkQuantum};

/// The time for which the fixed task is repeated before the run. This time must be long compared with the kernel's time
/// slices, which are a few milliseconds.
const LISTEN: Duration = Duration::from_millis(100);
/// The share of time that the fixed task can lose to other programs before the run without making the results doubtful.
const LOST_MAX: f64 = 0.15;
/// The share of lost time above which a run is refused, because less than a fifth of each processor is available to the
/// run.
const LOST_REFUSED: f64 = 0.8;
/// The share of time that the fixed task can lose to other programs after the run without making the results doubtful.
/// After the run, the kernel may still be writing the run's data.
const LOST_AFTER_MAX: f64 = 0.3;
/// The share of the machine's CPU time that other processes can take without making the results doubtful. The share
/// includes kernel threads, some of which work for the run itself.
const OTHERS_MAX: f64 = 0.15;
/// The share of time that the run's threads can spend in run queues because of other processes without making the
/// results doubtful.
const QUEUED_MAX: f64 = 0.1;
/// The share of CPU time that the hypervisor can give to other guests without making the results doubtful.
const STOLEN_MAX: f64 = 0.02;
/// The share of a quota's periods in which the run can be throttled without making the results doubtful.
const STOPPED_MAX: f64 = 0.05;
/// The share of time in which a task can wait for memory without making the results doubtful.
const MEMORY_MAX: f64 = 0.05;
/// The share of the time before the run in which a task can wait for storage without making the results doubtful.
const STORAGE_MAX: f64 = 0.5;
/// The factor by which the CPU time of the fixed task can increase during the run without making the results doubtful.
const SLOWDOWN_MAX: f64 = 1.5;
/// The minimum duration of a run, in ticks of 10 ms, for shares of CPU time to be significant.
const TICKS_MIN: f64 = 20.0;
/// The usual period of a quota of CPU time.
const QUOTA_PERIOD: Duration = Duration::from_millis(100);
/// The number of ticks per second.
const TICKS_PER_S: f64 = 100.0;

const IDLE_MACHINE: &str = "run it again when the machine is idle";

/// The observation of a run: the conditions found before the run, and the counters at its start.
#[derive(Debug)]
pub struct MachineWatch {
    tree: SystemTree,
    /// The processes that belong to the run, with their descendants.
    own: Vec<u32>,
    /// Whether CPU time that other processes use during the run makes the results doubtful; false if one of these
    /// processes may be a server that belongs to the run but is unknown to this program.
    counts_others: bool,
    before: PreRunConditions,
    begin: (Instant, MachineCounters),
    sampler: Option<RunSampler>,
}

/// The conditions before the run.
#[derive(Debug, Default)]
struct PreRunConditions {
    /// The CPU time of the fixed task, ns.
    work_ns: u64,
    lost_share: Option<f64>,
    pressure_io_share: Option<f64>,
}

impl MachineWatch {
    /// Checks whether the machine is idle enough to measure, and starts observing the run. The run consists of this
    /// process, the processes `servers`, and the descendants of both.
    ///
    /// Errors: `Unavailable` if other processes leave less than a fifth of each processor idle, unless `is_forced`.
    /// Cost: 0.1 s on all processors, and reading one file for each process on the machine.
    pub fn start(servers: &[u32], is_forced: bool) -> Result<Self> {
        let own = [&[std::process::id()], servers].concat();
        let (tree, work) = (SystemTree::at("/"), WorkQuantum::calibrate());
        let before = PreRunConditions::observe(&tree, &work);
        if let Some(lost) = before.lost_share.filter(|lost| *lost > LOST_REFUSED && !is_forced) {
            let detail = format!(
                "nothing was measured: {} before the run; wait until the machine is idle, or use --force to measure \
                 anyway",
                lost_text(lost)
            );
            return Err(Error::new(ErrorKind::Unavailable, detail));
        }
        let begin = (Instant::now(), MachineCounters::read(&tree, &own));
        let sampler = RunSampler::start("/", own.clone(), work);
        Ok(MachineWatch { tree, own, counts_others: true, before, begin, sampler })
    }

    /// Ignores CPU time used by other processes during the run, because a measured server may be one of these
    /// processes. CPU time used by other processes before and after the run still counts.
    pub fn beside_unknown_servers(self) -> Self {
        MachineWatch { counts_others: false, ..self }
    }

    /// Ends the observation and returns the conditions of the run. Cost: the same as [`MachineWatch::start`], but
    /// without the 0.1 s if all servers are known.
    pub fn conditions(self) -> RunReliabilityReport {
        let end = MachineCounters::read(&self.tree, &self.own);
        let elapsed_s = self.begin.0.elapsed().as_secs_f64();
        let samples = self.sampler.map(RunSampler::stop).unwrap_or_default();
        let after = if self.counts_others { None } else { listen() };
        let after = after.map(|noise| noise.share);
        let figures = figures(&self.before, (&self.begin.1, &end), elapsed_s, &samples, after);
        judge(figures, self.counts_others, elapsed_s * TICKS_PER_S >= TICKS_MIN)
    }
}

impl PreRunConditions {
    fn observe(tree: &SystemTree, work: &WorkQuantum) -> Self {
        let (begin, pressure) = (Instant::now(), PressureCounters::read(tree));
        let noise = listen();
        let elapsed_s = begin.elapsed().as_secs_f64();
        let waited_s = difference(pressure.io_s, PressureCounters::read(tree).io_s);
        tree.take_seen();
        if noise.as_ref().is_some_and(|noise| noise.quota_share > 0.0) {
            // The fixed task has used the quota of this period, so the run must not start in it.
            std::thread::sleep(QUOTA_PERIOD);
        }
        PreRunConditions {
            work_ns: (0..8).map(|_| work.processor_ns()).min().unwrap_or(0),
            lost_share: noise.map(|noise| noise.share),
            pressure_io_share: waited_s.map(|waited_s| (waited_s / elapsed_s).min(1.0)),
        }
    }
}

/// Repeats the fixed task on all allowed processors, and returns the share of time that the task lost to other programs
/// and to a quota of CPU time.
fn listen() -> Option<SystemNoise> {
    SystemNoise::listen(&fordway_sys::usable_cores(), LISTEN, &AtomicBool::new(false))
}

fn difference(begin: Option<f64>, end: Option<f64>) -> Option<f64> {
    Some((end? - begin?).max(0.0))
}

fn figures(
    before: &PreRunConditions,
    (begin, end): (&MachineCounters, &MachineCounters),
    elapsed_s: f64,
    samples: &RunSamples,
    lost_after_share: Option<f64>,
) -> DisturbanceFigures {
    let total = end.total - begin.total;
    let of_machine = |ticks: f64| (total > 0.0).then(|| (ticks / total).clamp(0.0, 1.0));
    let waited = |select: fn(&PressureCounters) -> Option<f64>| {
        let waited_s = difference(select(&begin.pressure), select(&end.pressure))?;
        Some((waited_s / elapsed_s).min(1.0))
    };
    let throttled = begin.quota.as_ref().zip(end.quota.as_ref()).map(|(begin, end)| end.since(begin));
    let (running_s, queued_s) = samples.running_and_queued_s();
    let work_ns = samples.work_ns().filter(|_| before.work_ns > 0);
    DisturbanceFigures {
        lost_before_share: before.lost_share,
        lost_after_share,
        others_share: of_machine((end.busy - begin.busy) - (end.own - begin.own)),
        stolen_share: of_machine(end.stolen - begin.stolen),
        run_queue_share: (running_s > 0.0).then(|| queued_s / (running_s + queued_s)),
        quota_processors: end.quota.as_ref().and_then(|quota| quota.processors),
        throttled_share: throttled.map(|throttled| throttled.share()),
        throttled_s: throttled.map(|throttled| throttled.seconds),
        pressure_cpu_share: waited(|pressure| pressure.cpu_s),
        pressure_memory_share: waited(|pressure| pressure.memory_s),
        pressure_io_share: waited(|pressure| pressure.io_s),
        pressure_io_before_share: before.pressure_io_share,
        work_slowdown: work_ns.map(|ns| ns as f64 / before.work_ns as f64),
        frequency_min_mhz: samples.frequency_min_mhz,
        frequency_max_mhz: samples.frequency_max_mhz,
    }
}

/// Derives the verdict from the figures. `is_long` is true if the run was long enough for the counters of CPU time,
/// which have a resolution of 10 ms.
fn judge(figures: DisturbanceFigures, counts_others: bool, is_long: bool) -> RunReliabilityReport {
    let mut conditions = RunReliabilityReport { figures, ..RunReliabilityReport::default() };
    let doubts = [
        before_doubt(&figures),
        is_long.then(|| during_doubt(&figures, counts_others)).flatten(),
        above(figures.stolen_share.filter(|_| is_long), STOLEN_MAX).map(|share| {
            doubt(
                DisturbanceCause::Hypervisor,
                format!("the hypervisor gave {} of the processor time to other guests during the run", percent(share)),
                "ask for dedicated processors, or run it again",
            )
        }),
        above(figures.throttled_share, STOPPED_MAX).map(|share| {
            doubt(
                DisturbanceCause::Quota,
                format!(
                    "the quota of processor time stopped the run in {} of its periods: times contain these stops",
                    percent(share)
                ),
                "raise the quota (cpu.max), or start fewer threads",
            )
        }),
        above(figures.pressure_memory_share.filter(|_| is_long), MEMORY_MAX).map(|share| {
            doubt(
                DisturbanceCause::Memory,
                format!("for {} of the run some task waited for memory", percent(share)),
                "measure less data at once, or end other programs",
            )
        }),
        above(figures.pressure_io_before_share, STORAGE_MAX).map(|share| {
            doubt(
                DisturbanceCause::Storage,
                format!("for {} of the time before the run some task waited for storage", percent(share)),
                "run it again when no other program reads or writes",
            )
        }),
        above(figures.work_slowdown, SLOWDOWN_MAX).map(|factor| {
            doubt(
                DisturbanceCause::Frequency,
                format!(
                    "equal work took {factor:.1} times as much processor time during the run as before it: processors \
                     slowed down"
                ),
                "keep their frequency constant (cpupower frequency-set -g performance), and check their temperature",
            )
        }),
    ];
    doubts.into_iter().flatten().for_each(|doubt| conditions.doubt(doubt));
    if figures.lost_before_share.is_some_and(|lost| lost > LOST_REFUSED) {
        // The run took place only because of `--force`.
        (conditions.verdict, conditions.is_forced) = (RunReliability::Refused, true);
    }
    conditions
}

fn doubt(cause: DisturbanceCause, observed: String, remedy: &str) -> MeasurementWarning {
    MeasurementWarning { cause, observed, remedy: remedy.to_owned(), cells: Vec::new() }
}

fn above(figure: Option<f64>, max: f64) -> Option<f64> {
    figure.filter(|figure| *figure > max)
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

fn lost_text(share: f64) -> String {
    format!("other processes took {} of the time of equal work on each processor", percent(share))
}

/// Returns the doubt, if any, caused by other processes before or after the run.
fn before_doubt(figures: &DisturbanceFigures) -> Option<MeasurementWarning> {
    let (share, when) = match above(figures.lost_before_share, LOST_MAX) {
        Some(share) => (share, "before"),
        None => (above(figures.lost_after_share, LOST_AFTER_MAX)?, "after"),
    };
    Some(doubt(
        DisturbanceCause::OtherProcesses,
        format!("{} {when} the run", lost_text(share)),
        IDLE_MACHINE,
    ))
}

/// Returns the doubt, if any, caused by other processes during the run.
fn during_doubt(figures: &DisturbanceFigures, counts_others: bool) -> Option<MeasurementWarning> {
    let others = figures.others_share.filter(|_| counts_others)?;
    let observed = match (above(Some(others), OTHERS_MAX), figures.run_queue_share) {
        (Some(share), _) => format!(
            "other processes took {} of the machine's processor time during the run: times are longer and vary more",
            percent(share)
        ),
        // Threads of the run can also delay each other, but such delays are part of the result.
        (None, Some(queued)) if queued > QUEUED_MAX && others > queued / 2.0 => format!(
            "threads of the run waited for a processor for {} of their time, while other processes ran",
            percent(queued)
        ),
        _ => return None,
    };
    Some(doubt(DisturbanceCause::OtherProcesses, observed, IDLE_MACHINE))
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

    /// Creates the files of a machine with process 10, its child 11, its grandchild 12, and the unrelated process 20.
    fn machine(busy: u32, idle: u32, stolen: u32, own: [u32; 3]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "proc/stat", &format!("cpu  {busy} 0 0 {idle} 0 0 0 {stolen} 0 0\ncpu0 1 2 3\n"));
        process(root.path(), 10, 1, own[0], 0);
        process(root.path(), 11, 10, own[1], 0);
        process(root.path(), 12, 11, own[2], 0);
        process(root.path(), 20, 1, 777, 0);
        root
    }

    fn read(root: &tempfile::TempDir) -> MachineCounters {
        MachineCounters::read(&SystemTree::at(root.path()), &[10])
    }

    /// Returns the figures of a run that lasts 1 s, computed from two readings of the counters and without samples.
    fn between(begin: &MachineCounters, end: &MachineCounters) -> DisturbanceFigures {
        figures(&PreRunConditions::default(), (begin, end), 1.0, &RunSamples::default(), None)
    }

    fn causes(figures: DisturbanceFigures) -> Vec<DisturbanceCause> {
        judge(figures, true, true).doubts.iter().map(|doubt| doubt.cause).collect()
    }

    #[test]
    fn own_work_raises_no_doubt_and_others_do() {
        let start = read(&machine(1000, 1000, 0, [10, 0, 0]));
        assert_eq!(start.own, 10.0);
        let alone = between(&start, &read(&machine(1100, 1100, 0, [40, 30, 35])));
        assert_eq!(judge(alone, true, true).verdict, RunReliability::Measured);
        let beside_others = between(&start, &read(&machine(1150, 1050, 0, [40, 30, 35])));
        let told = judge(beside_others, true, true);
        assert_eq!(told.verdict, RunReliability::Doubtful);
        assert!(told.doubts[0].observed.starts_with("other processes took 28 %"), "{told}");
        assert!(judge(beside_others, false, true).doubts.is_empty());
        assert!(judge(beside_others, true, false).doubts.is_empty());
    }

    #[test]
    fn what_a_descendant_took_counts_after_its_end() {
        let start = read(&machine(1000, 1000, 0, [10, 0, 0]));
        let root = machine(1150, 1050, 0, [40, 0, 0]);
        fs::remove_dir_all(root.path().join("proc/11")).unwrap();
        fs::remove_dir_all(root.path().join("proc/12")).unwrap();
        process(root.path(), 10, 1, 40, 110);
        assert_eq!(causes(between(&start, &read(&root))), []);
    }

    #[test]
    fn quotas_memory_and_storage_raise_doubts() {
        let start = machine(1000, 1000, 0, [10, 0, 0]);
        let end = machine(1000, 1090, 10, [10, 0, 0]);
        for (root, [memory_us, periods, throttled]) in [(&start, [0, 10, 0]), (&end, [90_000, 20, 5])] {
            write(root.path(), "proc/self/cgroup", "0::/job\n");
            let mount = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
            write(root.path(), "proc/self/mountinfo", mount);
            write(root.path(), "sys/fs/cgroup/job/cpu.max", "50000 100000\n");
            let stat = format!("nr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 700000\n");
            write(root.path(), "sys/fs/cgroup/job/cpu.stat", &stat);
            write(
                root.path(),
                "proc/pressure/memory",
                &format!("some avg10=0.00 total={memory_us}\nfull total=0"),
            );
        }
        let figures = between(&read(&start), &read(&end));
        assert_eq!(
            causes(figures),
            [DisturbanceCause::Hypervisor, DisturbanceCause::Quota, DisturbanceCause::Memory]
        );
        assert_eq!((figures.quota_processors, figures.throttled_share), (Some(0.5), Some(0.5)));
        assert_eq!((figures.stolen_share, figures.throttled_s), (Some(0.1), Some(0.0)));
        let busy =
            DisturbanceFigures { pressure_io_before_share: Some(0.6), ..DisturbanceFigures::default() };
        assert_eq!(causes(busy), [DisturbanceCause::Storage]);
    }

    /// Returns the figures of a run, from (periods, throttled) of the run's own group and of its parent, before and
    /// after the run.
    fn throttling(own: [(u32, u32); 2], parent: [(u32, u32); 2]) -> DisturbanceFigures {
        let readings = [0, 1].map(|at| {
            let root = machine(1000, 1000, 0, [10, 0, 0]);
            write(root.path(), "proc/self/cgroup", "0::/pod/job\n");
            let mount = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
            write(root.path(), "proc/self/mountinfo", mount);
            for (group, (periods, throttled)) in [("pod/job", own[at]), ("pod", parent[at])] {
                let us = 1000 * throttled;
                let stat = format!("nr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec {us}\n");
                write(root.path(), &format!("sys/fs/cgroup/{group}/cpu.stat"), &stat);
            }
            read(&root)
        });
        between(&readings[0], &readings[1])
    }

    #[test]
    fn throttling_long_ago_in_another_group_does_not_count() {
        let own = throttling([(0, 0), (30, 29)], [(100, 66), (100, 66)]);
        assert!((own.throttled_share.unwrap() - 29.0 / 30.0).abs() < 1e-9, "{own:?}");
        assert!((own.throttled_s.unwrap() - 0.029).abs() < 1e-9, "{own:?}");
        let overtaken = throttling([(0, 0), (200, 80)], [(100, 66), (100, 66)]);
        assert_eq!(overtaken.throttled_share, Some(0.4));
    }

    #[test]
    fn threads_that_wait_for_others_raise_a_doubt_and_those_that_wait_for_each_other_do_not() {
        let with = |others| DisturbanceFigures {
            others_share: Some(others),
            run_queue_share: Some(0.2),
            ..DisturbanceFigures::default()
        };
        assert_eq!(causes(with(0.12)), [DisturbanceCause::OtherProcesses]);
        assert_eq!(causes(with(0.01)), []);
    }

    #[test]
    fn a_busy_start_is_refused_and_a_slow_processor_is_named() {
        let lost =
            |share| DisturbanceFigures { lost_before_share: Some(share), ..DisturbanceFigures::default() };
        assert_eq!(judge(lost(0.02), true, true).verdict, RunReliability::Measured);
        assert_eq!(judge(lost(0.6), true, true).verdict, RunReliability::Doubtful);
        let refused = judge(lost(0.9), true, true);
        assert!(refused.is_forced && refused.verdict == RunReliability::Refused);
        let slow = DisturbanceFigures { work_slowdown: Some(2.0), ..DisturbanceFigures::default() };
        assert_eq!(causes(slow), [DisturbanceCause::Frequency]);
    }

    #[test]
    fn an_unreadable_machine_raises_no_doubt() {
        let root = tempfile::tempdir().unwrap();
        let (start, end) = (read(&root), read(&root));
        assert_eq!(judge(between(&start, &end), true, true).verdict, RunReliability::Measured);
    }
}
