//! A thread that observes a run in progress: the run-queue delay of the run's threads, the frequency of processors, and
//! the CPU time of a fixed task.

use std::collections::HashMap;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::doctor::{SystemTree, WorkQuantum};

/// The time between two samples. Each sample takes less than a millisecond, so the sampler uses less than 1 % of a
/// processor.
const INTERVAL: Duration = Duration::from_millis(200);
/// The maximum number of threads whose run-queue delay is read in one sample.
const MAX_THREADS: usize = 256;

/// A running sampler. Dropping it without [`RunSampler::stop`] also stops its thread.
#[derive(Debug)]
pub(super) struct RunSampler {
    stop: Sender<()>,
    thread: JoinHandle<RunSamples>,
}

/// The figures from the samples of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct RunSamples {
    /// For each thread of the run: its times at the first sample and at the last sample.
    threads: HashMap<u32, [ThreadSchedulingTimes; 2]>,
    /// Whether a sample omitted threads.
    is_partial: bool,
    /// The CPU times of the fixed task, ns.
    work_ns: Vec<u64>,
    pub(super) frequency_min_mhz: Option<f64>,
    pub(super) frequency_max_mhz: Option<f64>,
}

/// The times that a thread has spent on processors and in run queues since its start, ns.
#[derive(Clone, Copy, Debug, Default)]
struct ThreadSchedulingTimes {
    running: u64,
    queued: u64,
}

impl RunSampler {
    /// Starts the thread; `None` if the system cannot start another thread. `own` lists the processes whose threads and
    /// descendants belong to the run.
    pub(super) fn start(root: &str, own: Vec<u32>, work: WorkQuantum) -> Option<Self> {
        let tree = SystemTree::at(root);
        let (stop, stopped) = channel();
        let body = move || {
            fordway_measure::exclude_this_thread();
            let mut samples = RunSamples::default();
            loop {
                samples.add(&tree, &own, &work);
                match stopped.recv_timeout(INTERVAL) {
                    Err(RecvTimeoutError::Timeout) => {}
                    _ => break,
                }
            }
            samples.add(&tree, &own, &work);
            samples
        };
        let thread = Builder::new().name("conditions".to_owned()).spawn(body).ok()?;
        Some(RunSampler { stop, thread })
    }

    /// Stops the thread and returns its samples. Cost: one sample.
    pub(super) fn stop(self) -> RunSamples {
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}

impl RunSamples {
    fn add(&mut self, tree: &SystemTree, own: &[u32], work: &WorkQuantum) {
        let is_first = self.work_ns.is_empty();
        let times = thread_times(tree, own);
        // A sample has at most `MAX_THREADS` threads. After a full sample, a thread that appears for the first time may
        // be older than the run, so its earlier times do not count.
        self.is_partial |= times.len() >= MAX_THREADS;
        for (thread, time) in times {
            // Otherwise, a thread that appears after the first sample was started during the run, so its times began at
            // zero.
            let is_new = !is_first && !self.is_partial;
            let begin = if is_new { ThreadSchedulingTimes::default() } else { time };
            self.threads.entry(thread).or_insert([begin, time])[1] = time;
        }
        self.work_ns.push(work.processor_ns());
        let frequencies = frequencies(tree);
        let least = frequencies.iter().copied().reduce(f64::min);
        let most = frequencies.iter().copied().reduce(f64::max);
        self.frequency_min_mhz = [self.frequency_min_mhz, least].into_iter().flatten().reduce(f64::min);
        self.frequency_max_mhz = [self.frequency_max_mhz, most].into_iter().flatten().reduce(f64::max);
        tree.take_seen();
    }

    /// Returns the times, in seconds, that the run's threads spent on processors and in run queues.
    pub(super) fn running_and_queued_s(&self) -> (f64, f64) {
        let since = |time: fn(&ThreadSchedulingTimes) -> u64| {
            let all = self.threads.values().map(|[begin, end]| time(end).saturating_sub(time(begin)));
            all.sum::<u64>() as f64 / 1e9
        };
        (since(|time| time.running), since(|time| time.queued))
    }

    /// Returns the lower quartile of the fixed task's CPU times, in ns; `None` for fewer than 5 samples.
    pub(super) fn work_ns(&self) -> Option<u64> {
        let mut sorted = self.work_ns.clone();
        sorted.sort_unstable();
        (sorted.len() >= 5).then(|| sorted[sorted.len() / 4])
    }
}

/// Returns the times of at most [`MAX_THREADS`] threads of `roots` and their descendants.
fn thread_times(tree: &SystemTree, roots: &[u32]) -> Vec<(u32, ThreadSchedulingTimes)> {
    let (mut processes, mut times) = (roots.to_vec(), Vec::new());
    let mut at = 0;
    while let Some(process) = processes.get(at).copied().filter(|_| times.len() < MAX_THREADS) {
        at += 1;
        let threads = tree.names(&format!("proc/{process}/task")).unwrap_or_default();
        for thread in threads.into_iter().take(MAX_THREADS - times.len()) {
            let path = format!("proc/{process}/task/{thread}");
            let children = tree.read(&format!("{path}/children")).unwrap_or_default();
            let new = children.split_whitespace().filter_map(|child| child.parse().ok());
            processes.extend(new.filter(|child: &u32| !roots.contains(child)));
            let time = tree.read(&format!("{path}/schedstat")).ok().and_then(|text| parse_schedstat(&text));
            times.extend(thread.parse().ok().zip(time));
        }
    }
    times
}

/// Parses `/proc/PID/task/TID/schedstat`: time on processors, time in run queues, and number of time slices.
fn parse_schedstat(text: &str) -> Option<ThreadSchedulingTimes> {
    let mut fields = text.split_whitespace().map(|field| field.parse().ok());
    Some(ThreadSchedulingTimes { running: fields.next()??, queued: fields.next()?? })
}

/// Returns the current frequencies of the allowed processors, MHz; empty if the kernel does not report them.
fn frequencies(tree: &SystemTree) -> Vec<f64> {
    let cpus = fordway_sys::usable_cores();
    let texts = tree.read_each("sys/devices/system/cpu/cpu", &cpus, "/cpufreq/scaling_cur_freq");
    texts.iter().filter_map(|(_, khz)| Some(khz.parse::<f64>().ok()? / 1e3)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_of_threads_that_start_or_end_within_the_run_count() {
        let place = tempfile::tempdir().unwrap();
        let task = |thread: u32| place.path().join(format!("proc/10/task/{thread}"));
        let write = |thread: u32, running: u64, queued: u64| {
            std::fs::create_dir_all(task(thread)).unwrap();
            std::fs::write(task(thread).join("schedstat"), format!("{running} {queued} 3\n")).unwrap();
        };
        let (tree, work) = (SystemTree::at(place.path()), WorkQuantum::calibrate());
        let mut samples = RunSamples::default();
        write(10, 5_000_000_000, 7_000_000_000);
        samples.add(&tree, &[10], &work);
        write(10, 6_000_000_000, 7_000_000_000);
        write(11, 1_000_000_000, 2_000_000_000);
        samples.add(&tree, &[10], &work);
        std::fs::remove_dir_all(task(11)).unwrap();
        samples.add(&tree, &[10], &work);
        assert_eq!(samples.running_and_queued_s(), (2.0, 2.0));
        assert_eq!(samples.work_ns(), None);
    }

    #[test]
    fn threads_that_an_earlier_sample_omitted_are_not_new() {
        let place = tempfile::tempdir().unwrap();
        let task = |thread: usize| place.path().join(format!("proc/10/task/{thread}"));
        let write = |thread: usize| {
            std::fs::create_dir_all(task(thread)).unwrap();
            std::fs::write(task(thread).join("schedstat"), "5000000000 7000000000 3\n").unwrap();
        };
        (1_000..=1_000 + MAX_THREADS).for_each(write);
        let (tree, work) = (SystemTree::at(place.path()), WorkQuantum::calibrate());
        let mut samples = RunSamples::default();
        samples.add(&tree, &[10], &work);
        std::fs::remove_dir_all(task(1_000)).unwrap();
        samples.add(&tree, &[10], &work);
        assert_eq!(samples.running_and_queued_s(), (0.0, 0.0));
    }

    #[test]
    fn it_samples_this_process_until_stopped() {
        let own = vec![std::process::id()];
        let sampler = RunSampler::start("/", own, WorkQuantum::calibrate()).unwrap();
        std::thread::sleep(5 * INTERVAL);
        let samples = sampler.stop();
        assert!(samples.running_and_queued_s().0 > 0.0 && samples.work_ns().is_some(), "{samples:?}");
    }
}
