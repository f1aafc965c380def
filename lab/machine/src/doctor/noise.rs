//! Findings that come from measurements instead of files. Processor noise is measured by the fixed work quantum test
//! (FWQ): each processor repeats a small fixed task. If a repetition takes longer than the shortest repetition, the
//! kernel, other programs, the hypervisor or other guests have taken the additional time. Another program measures the
//! round trip between two MPI ranks, because this crate does not use MPI. This module turns the measured time into a
//! finding.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fordway_measure::{RunClock, ns_text};
use serde::Serialize;

use super::{DoctorFinding, FindingDraft, SystemTree, quota_counters};

const CHECK: &str = "noise";
const RICHTER: &[u8] = &[4, 8, 14];
/// The duration of the fixed task: short compared to a time slice, but long compared to a clock reading.
const QUANTUM_NS: u64 = 100_000;
/// A repetition of the fixed task counts as a detour if it takes at least this many times as long as the shortest
/// repetition.
const DETOUR: f64 = 1.1;
/// If at least this percentage of the time is lost to noise, the verdict is `costs`.
const COSTS: f64 = 1.0;

/// The noise on all measured processors together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SystemNoise {
    /// The number of processors on which noise was measured, all at the same time.
    pub processors: usize,
    /// The number of repetitions of the fixed task on all processors.
    pub quanta: usize,
    /// The duration of the shortest repetition.
    pub quantum_ns: u64,
    /// The time that repetitions took beyond the shortest duration on their processor, excluding the time for which the
    /// CPU quota stopped them. The value is a share of the total time, also without the stopped time.
    pub share: f64,
    /// The time for which the CPU quota stopped the repetitions, as a share of the total time.
    pub quota_share: f64,
    /// The number of repetitions that took at least a tenth longer than the shortest repetition on the same processor.
    pub detours: usize,
    /// The maximum difference between the duration of a repetition and the shortest duration on the same processor.
    pub detour_max_ns: u64,
}

impl SystemNoise {
    /// Measures noise for `duration` on each of `processors`, with one thread pinned to each. Stops early if `stop` is
    /// set. Cost: keeps these processors fully busy. Returns `None` if no repetition was completed.
    ///
    /// If the CPU quota is smaller than the number of processors, the kernel stops the measuring threads themselves.
    /// This time is subtracted, because no other program took it.
    pub fn listen(processors: &[usize], duration: Duration, stop: &AtomicBool) -> Option<Self> {
        let tree = SystemTree::at("/");
        let before = quota_counters(&tree);
        let heard = thread::scope(|scope| {
            let started = begin(scope, processors, duration, stop);
            started.into_iter().filter_map(|listener| listener.join().ok()).collect::<Vec<_>>()
        });
        let throttled = before.zip(quota_counters(&tree)).map(|(before, after)| after.since(&before));
        SystemNoise::of(&heard, throttled.map_or(0.0, |throttled| throttled.seconds))
    }

    /// Evaluates the durations of the fixed task's repetitions on each processor. The quota stopped the repetitions for
    /// `throttled_s` in total. Returns `None` if there are no durations.
    fn of(heard: &[Vec<u64>], throttled_s: f64) -> Option<Self> {
        let quantum_ns = heard.iter().flatten().copied().min()?;
        // Processors may differ in speed, so each time is compared with the shortest time on the same processor.
        let times = || {
            let of_one = |times: &Vec<u64>| {
                let shortest = times.iter().copied().min().unwrap_or(0);
                times.iter().map(move |time| (*time, shortest)).collect::<Vec<_>>()
            };
            heard.iter().flat_map(of_one)
        };
        let beyond = || times().map(|(time, shortest)| time - shortest);
        let total: u64 = heard.iter().flatten().sum();
        let lost: u64 = beyond().sum();
        let stopped = (throttled_s.max(0.0) * 1e9).min(lost as f64);
        let is_detour = |(time, shortest): &(u64, u64)| *time as f64 >= DETOUR * *shortest as f64;
        Some(SystemNoise {
            processors: heard.len(),
            quanta: heard.iter().map(Vec::len).sum(),
            quantum_ns,
            share: (lost as f64 - stopped) / (total as f64 - stopped).max(1.0),
            quota_share: stopped / total.max(1) as f64,
            detours: times().filter(is_detour).count(),
            detour_max_ns: beyond().max().unwrap_or(0),
        })
    }

    /// Creates the finding that noise was not measured; its verdict is `cannot_see`.
    pub fn unheard() -> DoctorFinding {
        let so = "not measured: there was no time for it, or /proc does not list the processors";
        FindingDraft::cannot_see(so, "listen longer: --listen 1s").put_down(CHECK, RICHTER)
    }

    /// Creates the finding for the measured noise; its verdict is `costs` if the noise is at least `COSTS` percent.
    pub fn finding(&self) -> DoctorFinding {
        let percent = 100.0 * self.share;
        let of_quota = match self.quota_share > 0.0 {
            true => format!(
                ", not counting the {:.1} % for which the quota of processor time stopped it",
                100.0 * self.quota_share
            ),
            false => String::new(),
        };
        let so = format!(
            "{percent:.1} % of the time on {} processors was lost to other work{of_quota}, at most {} at a time, in {} \
             of {} pieces of {}",
            self.processors,
            ns_text(self.detour_max_ns),
            self.detours,
            self.quanta,
            ns_text(self.quantum_ns)
        );
        let said = match percent >= COSTS {
            true => FindingDraft::costs(
                format!("{so}; at each barrier all ranks wait for the last rank"),
                "use whole nodes (sbatch --exclusive) or dedicated processors, and leave one processor to the system \
                 (--core-spec=1)",
            ),
            false => FindingDraft::ok(so),
        };
        let said = said
            .measured("noise", percent, "%")
            .measured("longest detour", self.detour_max_ns as f64, "ns")
            .measured("quantum", self.quantum_ns as f64, "ns");
        said.put_down(CHECK, RICHTER)
    }
}

type NoiseThreadHandle<'scope> = thread::ScopedJoinHandle<'scope, Vec<u64>>;

fn begin<'scope, 'env>(
    scope: &'scope thread::Scope<'scope, 'env>,
    processors: &'env [usize],
    duration: Duration,
    stop: &'env AtomicBool,
) -> Vec<NoiseThreadHandle<'scope>> {
    let quantum = WorkQuantum::calibrate();
    let listener = |&processor: &usize| {
        scope.spawn(move || {
            // Ignore the error: a thread that cannot be pinned measures the processors on which it runs.
            let _ = fordway_sys::pin_thread(&[processor]);
            times(quantum, duration, stop)
        })
    };
    processors.iter().map(listener).collect()
}

/// A fixed task, which always performs the same computation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkQuantum {
    rounds: u64,
}

impl WorkQuantum {
    /// Doubles the number of rounds until even the shortest of several runs takes at least [`QUANTUM_NS`].
    pub(crate) fn calibrate() -> Self {
        let mut quantum = WorkQuantum { rounds: 1024 };
        let clock = RunClock::start();
        while (0..8).map(|_| quantum.elapsed_ns(clock)).min().unwrap_or(QUANTUM_NS) < QUANTUM_NS {
            quantum.rounds *= 2;
        }
        quantum
    }

    /// Performs the task once, and returns its duration.
    fn elapsed_ns(&self, clock: RunClock) -> u64 {
        let begin_ns = clock.now_ns();
        work(self.rounds);
        clock.now_ns() - begin_ns
    }

    /// Performs the task once, and returns the CPU time that it took. CPU time excludes waiting for a processor.
    pub(crate) fn processor_ns(&self) -> u64 {
        let begin_ns = fordway_sys::thread_cpu_ns();
        work(self.rounds);
        fordway_sys::thread_cpu_ns() - begin_ns
    }
}

fn times(quantum: WorkQuantum, duration: Duration, stop: &AtomicBool) -> Vec<u64> {
    let clock = RunClock::start();
    let end_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let mut times = Vec::with_capacity((end_ns / QUANTUM_NS) as usize);
    while clock.now_ns() < end_ns && !stop.load(Ordering::Relaxed) {
        times.push(quantum.elapsed_ns(clock));
    }
    times
}

/// Computes without memory accesses: each step depends on the previous step.
fn work(rounds: u64) {
    let mut state = black_box(0x9e37_79b9_7f4a_7c15_u64);
    for _ in 0..rounds {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    black_box(state);
}

const LATENCY_CHECK: &str = "mpi-latency";
const LATENCY_RICHTER: &[u8] = &[6, 9];
/// Within one node, half a round trip takes less than this time through shared memory, and more than this time over
/// TCP.
const SHARED_MEMORY_NS: u64 = 5_000;

impl DoctorFinding {
    /// Creates the finding from the time that one byte takes between two ranks of `library` on this node: half the
    /// round-trip time, in nanoseconds.
    pub fn of_ranks(half_round_trip_ns: u64, library: &str) -> DoctorFinding {
        let so = format!("{} for a byte between two ranks here, by {library}", ns_text(half_round_trip_ns));
        let said = match half_round_trip_ns {
            ..SHARED_MEMORY_NS => FindingDraft::ok(so),
            _ => FindingDraft::costs(
                format!(
                    "{so}: shared memory takes a few µs at most, so MPI uses TCP, or ranks wait for processors"
                ),
                "check that MPI can use shared memory (/dev/shm, its options), and that each rank has its own processor",
            ),
        };
        said.measured("half a round trip", half_round_trip_ns as f64, "ns")
            .put_down(LATENCY_CHECK, LATENCY_RICHTER)
    }

    /// Creates the finding that the round trip was not measured, for the reason `why`.
    pub fn without_ranks(why: &str) -> DoctorFinding {
        FindingDraft::cannot_see(
            format!("not measured: {why}"),
            "put fordway-mpi next to fordway, or on PATH",
        )
        .put_down(LATENCY_CHECK, LATENCY_RICHTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::DoctorVerdict;

    #[test]
    fn what_is_beyond_the_shortest_is_noise() {
        let noise = SystemNoise::of(&[vec![100, 100, 105], vec![100, 195]], 0.0).unwrap();
        assert_eq!((noise.processors, noise.quanta, noise.quantum_ns), (2, 5, 100));
        assert_eq!((noise.detours, noise.detour_max_ns), (1, 95));
        assert!((noise.share - 100.0 / 600.0).abs() < 1e-12);
        assert_eq!(noise.finding().verdict, DoctorVerdict::Costs);
        let quiet = SystemNoise::of(&[vec![1000, 1001]], 0.0).unwrap();
        assert_eq!(quiet.finding().verdict, DoctorVerdict::Ok);
        assert_eq!(SystemNoise::of(&[vec![]], 0.0), None);
    }

    #[test]
    fn what_the_quota_took_is_not_lost_to_other_work() {
        // A quota stopped both threads for 70 of 100 ms, and other work took 1 ms of the remaining 60.
        let heard = [vec![100_000; 299], vec![100_000; 290]].map(|mut times| {
            times.push(70_100_000);
            times
        });
        let noise = SystemNoise::of(&heard, 0.139).unwrap();
        assert!((noise.share - 1.0 / 60.1).abs() < 1e-3, "{noise:?}");
        assert!((noise.quota_share - 0.139 / 0.1991).abs() < 1e-3, "{noise:?}");
        let what = noise.finding().what;
        assert!(what.contains("not counting the 69.8 % for which the quota"), "{what}");
        let more_than_lost = SystemNoise::of(&heard, 1.0).unwrap();
        assert_eq!(more_than_lost.share, 0.0);
    }

    #[test]
    fn it_hears_on_every_processor_and_ends_when_asked() {
        let heard = SystemNoise::listen(&[0], Duration::from_millis(20), &AtomicBool::new(false)).unwrap();
        assert!(heard.processors == 1 && heard.quanta > 0 && heard.quantum_ns > 0);
        assert_eq!(SystemNoise::listen(&[0], Duration::from_secs(3600), &AtomicBool::new(true)), None);
    }

    #[test]
    fn shared_memory_is_fast() {
        assert_eq!(DoctorFinding::of_ranks(600, "Open MPI").verdict, DoctorVerdict::Ok);
        let slow = DoctorFinding::of_ranks(20_000, "Open MPI");
        assert!(slow.verdict == DoctorVerdict::Costs && slow.what.starts_with("20.0 µs"));
        let missing = DoctorFinding::without_ranks("there is no fordway-mpi");
        assert!(missing.verdict == DoctorVerdict::CannotSee && missing.measured.is_empty());
    }
}
