//! Measures one parallel job with different rank counts in several set-ups, to determine the speed-up from more ranks
//! and the time that ranks spend on communication. The caller launches the jobs.

mod published;
mod summary;

pub use published::{RICHTER, SpeedupRow, check};
pub use summary::{SetupSpeedupFit, SpeedupFit, describe, fits};

use std::sync::atomic::{AtomicBool, Ordering};

use fordway_measure::{BlockRecord, OperationRecord, RunClock, RunRecords, SeededRandom};
use fordway_store::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// The jobs to run, and the number of times to run each job.
#[derive(Clone, Debug)]
pub struct SpeedupPlan {
    /// The rank counts, in ascending order, starting with 1.
    pub ranks: Vec<u32>,
    /// For each lane, whether the lane runs jobs with one rank. The first lane, which is the reference, always runs
    /// these jobs.
    pub runs_alone: Vec<bool>,
    /// The number of recorded jobs of each kind; before these jobs, one job of each kind runs as a warm-up and is not
    /// recorded.
    pub repeat: u16,
    /// The seed of the random order in each round.
    pub seed: u64,
    /// The kind of time from which the speed-up is computed.
    pub time: JobTimeKind,
}

/// The part of a job's duration that counts as its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobTimeKind {
    /// The whole duration of the job, including its launch.
    Wall,
    /// The time from when the first rank was able to communicate until the last rank finished communicating.
    Work,
}

/// The report of one rank about its job. Times are from the monotonic clock, which all ranks of a machine share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankReport {
    /// The rank, from 0.
    pub rank: u32,
    /// The time at which the rank was able to communicate, ns.
    pub start_ns: u64,
    /// The time at which the rank finished communicating, ns.
    pub end_ns: u64,
    /// The time spent in MPI calls between `start_ns` and `end_ns`, ns.
    pub mpi_ns: u64,
}

/// A job that ended successfully.
#[derive(Clone, Debug, Default)]
pub struct FinishedJob {
    /// The wall time of the job.
    pub elapsed_ns: u64,
    /// The reports of the job's ranks; empty if the ranks did not report.
    pub ranks: Vec<RankReport>,
}

impl FinishedJob {
    /// Returns the time from the first rank's start to the last rank's end.
    pub fn work_ns(&self) -> Option<u64> {
        let start = self.ranks.iter().map(|rank| rank.start_ns).min()?;
        self.ranks.iter().map(|rank| rank.end_ns).max()?.checked_sub(start)
    }

    /// Returns the time between the end of the first rank and the end of the last rank; `None` for a single rank.
    pub fn late_ns(&self) -> Option<u64> {
        let ends = || self.ranks.iter().map(|rank| rank.end_ns);
        Some(ends().max()? - ends().min()?).filter(|_| self.ranks.len() > 1)
    }

    /// Returns the share of the ranks' total time that was spent in MPI calls.
    pub fn communication_share(&self) -> Option<f64> {
        let time: u64 = self.ranks.iter().map(|rank| rank.end_ns.saturating_sub(rank.start_ns)).sum();
        let mpi: u64 = self.ranks.iter().map(|rank| rank.mpi_ns).sum();
        (time > 0).then(|| mpi as f64 / time as f64)
    }

    fn time_ns(&self, time: JobTimeKind) -> Option<u64> {
        match time {
            JobTimeKind::Wall => Some(self.elapsed_ns),
            JobTimeKind::Work => self.work_ns(),
        }
    }
}

/// Launches the jobs of a measurement.
pub trait JobLauncher {
    /// Runs one job until it ends. Errors: `Interrupted`, which ends the whole measurement; any other error, if the job
    /// failed.
    fn launch(&mut self, lane: usize, ranks: u32) -> Result<FinishedJob>;
}

/// A recorded job, and its position in the measurement.
#[derive(Clone, Debug)]
pub struct JobSample {
    /// Index into the lanes.
    pub lane: usize,
    /// Index into the rank counts.
    pub phase: usize,
    /// The round, from 0, without the warm-up round.
    pub round: u16,
    /// The result of the job.
    pub job: FinishedJob,
}

/// The results of a speed-up measurement.
#[derive(Debug, Default)]
pub struct SpeedupResults {
    /// Every recorded job that ended successfully.
    pub samples: Vec<JobSample>,
    /// Records of all jobs after the warm-up, and of the failed jobs of the warm-up.
    pub records: RunRecords,
    /// The combinations of lane and rank count that failed, each with the error. Failed combinations are not retried.
    pub failures: Vec<(usize, usize, Error)>,
    /// The number of jobs done and the total number, if a signal ended the measurement early.
    pub interrupted: Option<(u64, u64)>,
}

/// Shows the progress: the number of jobs done, the total number of jobs, and the lane and number of ranks of the
/// current job.
pub type SpeedupProgressCallback<'a> = &'a mut dyn FnMut(u64, u64, usize, u32);

/// Runs all combinations of lane and rank count in every round, in random order; the first round is a warm-up. A
/// combination that fails is omitted from the following rounds. If `stop` is set, the outcome contains the jobs that
/// had already ended.
///
/// Errors: `Interrupted` if no recorded job had ended.
pub fn measure(
    plan: &SpeedupPlan,
    launch: &mut dyn JobLauncher,
    stop: &AtomicBool,
    progress: SpeedupProgressCallback<'_>,
) -> Result<SpeedupResults> {
    let clock = RunClock::start();
    let mut random = SeededRandom::new(plan.seed);
    let mut outcome = SpeedupResults::default();
    let mut combinations = plan.combinations();
    let total = combinations.len() as u64 * (u64::from(plan.repeat) + 1);
    let mut done = 0;
    for round in 0..=plan.repeat {
        random.shuffle(&mut combinations);
        for &(lane, phase) in &combinations {
            if stop.load(Ordering::Relaxed) {
                return outcome.interrupted_at(done, total);
            }
            progress(done, total, lane, plan.ranks[phase]);
            let turn = JobStartRecord { lane, phase, round, start_ns: clock.now_ns() };
            let cpu_ns = own_cpu_ns();
            let launched = launch.launch(lane, plan.ranks[phase]);
            let spent = JobCost { elapsed_ns: clock.now_ns() - turn.start_ns, cpu_ns: own_cpu_ns() - cpu_ns };
            if launched.as_ref().is_err_and(|error| error.kind() == ErrorKind::Interrupted) {
                return outcome.interrupted_at(done, total);
            }
            outcome.add(plan, &turn, &spent, launched);
            done += 1;
        }
        combinations.retain(|(lane, phase)| !outcome.has_failed(*lane, *phase));
    }
    Ok(outcome)
}

impl SpeedupPlan {
    /// Returns the pairs of lane and number of ranks to run, as indices.
    fn combinations(&self) -> Vec<(usize, usize)> {
        let lanes = 0..self.runs_alone.len();
        let all = lanes.flat_map(|lane| (0..self.ranks.len()).map(move |phase| (lane, phase)));
        all.filter(|(lane, phase)| self.runs_alone[*lane] || self.ranks[*phase] > 1).collect()
    }
}

impl SpeedupResults {
    fn has_failed(&self, lane: usize, phase: usize) -> bool {
        self.failures.iter().any(|failure| (failure.0, failure.1) == (lane, phase))
    }

    fn add(
        &mut self,
        plan: &SpeedupPlan,
        turn: &JobStartRecord,
        spent: &JobCost,
        launched: Result<FinishedJob>,
    ) {
        let counted = turn.round.checked_sub(1);
        if counted.is_some() || launched.is_err() {
            let place = JobStartRecord { round: counted.unwrap_or_default(), ..*turn };
            let elapsed_ns = launched.as_ref().map_or(spent.elapsed_ns, |job| job.elapsed_ns);
            self.record(plan, &place, &JobCost { elapsed_ns, ..*spent }, launched.is_ok());
        }
        let JobStartRecord { lane, phase, .. } = *turn;
        match (launched, counted) {
            (Err(error), _) => self.failures.push((lane, phase, error)),
            (Ok(job), Some(round)) => self.samples.push(JobSample { lane, phase, round, job }),
            (Ok(_), None) => {}
        }
    }

    fn interrupted_at(mut self, done: u64, total: u64) -> Result<Self> {
        self.interrupted = Some((done, total));
        match self.samples.is_empty() {
            true => Err(Error::new(
                ErrorKind::Interrupted,
                "stopped by a signal before the first recorded job ended",
            )),
            false => Ok(self),
        }
    }

    fn record(&mut self, plan: &SpeedupPlan, turn: &JobStartRecord, spent: &JobCost, ok: bool) {
        let (lane, phase, round) = (turn.lane as u8, turn.phase as u8, turn.round);
        let block = u32::from(round) * plan.ranks.len() as u32 + u32::from(phase);
        self.records.operations.push(OperationRecord {
            lane,
            phase,
            round,
            block,
            thread: 0,
            start_ns: turn.start_ns,
            duration_ns: spent.elapsed_ns,
            bytes: 0,
            ok,
            intended_ns: None,
            first_byte_ns: None,
        });
        if ok {
            self.records.blocks.push(BlockRecord {
                lane,
                phase,
                round,
                block,
                operations: 1,
                bytes: 0,
                elapsed_ns: spent.elapsed_ns,
                client_cpu_ns: spent.cpu_ns,
                server_cpu_ns: None,
            });
        }
    }
}

/// The position of a job, and its start.
#[derive(Clone, Copy)]
struct JobStartRecord {
    lane: usize,
    phase: usize,
    round: u16,
    start_ns: u64,
}

/// The duration of a job, and the CPU time of this process, which only waited for the job.
#[derive(Clone, Copy)]
struct JobCost {
    elapsed_ns: u64,
    cpu_ns: u64,
}

fn own_cpu_ns() -> u64 {
    let usage = fordway_sys::process_usage();
    usage.user_ns + usage.system_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A launcher whose jobs follow a known law: 1 s of serial time, 8 s of parallel time, and 0.5 s for each
    /// additional rank. The second lane takes twice as long as the first lane.
    pub(super) struct ScalingLawLauncher {
        pub(super) failing: Option<(usize, u32)>,
        pub(super) launched: Vec<(usize, u32)>,
    }

    impl JobLauncher for ScalingLawLauncher {
        fn launch(&mut self, lane: usize, ranks: u32) -> Result<FinishedJob> {
            self.launched.push((lane, ranks));
            if self.failing == Some((lane, ranks)) {
                return Err(Error::new(ErrorKind::Timeout, "it hangs"));
            }
            let n = f64::from(ranks);
            let elapsed_ns = ((1.0 + 8.0 / n + 0.5 * (n - 1.0)) * 1e9) as u64 * (lane as u64 + 1);
            let rank = |rank| RankReport {
                rank,
                start_ns: 100 + u64::from(rank),
                end_ns: elapsed_ns - 1_000 + u64::from(rank) * 10,
                mpi_ns: elapsed_ns / 4,
            };
            Ok(FinishedJob { elapsed_ns, ranks: (0..ranks).map(rank).collect() })
        }
    }

    pub(super) fn plan(ranks: &[u32]) -> SpeedupPlan {
        SpeedupPlan {
            ranks: ranks.to_vec(),
            runs_alone: vec![true, false],
            repeat: 5,
            seed: 1,
            time: JobTimeKind::Wall,
        }
    }

    pub(super) fn measured(plan: &SpeedupPlan, law: &mut ScalingLawLauncher) -> SpeedupResults {
        measure(plan, law, &AtomicBool::new(false), &mut |_, _, _, _| ()).unwrap()
    }

    #[test]
    fn every_round_has_every_combination_and_the_first_does_not_count() {
        let mut law = ScalingLawLauncher { failing: None, launched: Vec::new() };
        let outcome = measured(&plan(&[1, 2, 4]), &mut law);
        assert_eq!(law.launched.len(), 6 * 5);
        for round in law.launched.chunks(5) {
            let mut round = round.to_vec();
            round.sort_unstable();
            assert_eq!(round, [(0, 1), (0, 2), (0, 4), (1, 2), (1, 4)], "one rank only in the reference");
        }
        assert_eq!((outcome.samples.len(), outcome.records.operations.len()), (25, 25));
    }

    #[test]
    fn what_fails_is_told_and_not_tried_again() {
        let mut law = ScalingLawLauncher { failing: Some((1, 2)), launched: Vec::new() };
        let outcome = measured(&plan(&[1, 2]), &mut law);
        assert_eq!(law.launched.iter().filter(|at| **at == (1, 2)).count(), 1);
        assert_eq!(outcome.records.operations.iter().filter(|operation| !operation.ok).count(), 1);
        let [(1, 1, error)] = &outcome.failures[..] else { panic!("{:?}", outcome.failures) };
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert_eq!(outcome.samples.len(), 10);
    }

    #[test]
    fn a_job_is_made_of_its_ranks() {
        let rank = |rank, start_ns, end_ns, mpi_ns| RankReport { rank, start_ns, end_ns, mpi_ns };
        let job =
            FinishedJob { elapsed_ns: 900, ranks: vec![rank(0, 100, 500, 100), rank(1, 150, 550, 300)] };
        assert_eq!(
            (job.work_ns(), job.late_ns(), job.communication_share()),
            (Some(450), Some(50), Some(0.5))
        );
        let silent = FinishedJob { elapsed_ns: 900, ranks: Vec::new() };
        assert_eq!((silent.work_ns(), silent.late_ns(), silent.communication_share()), (None, None, None));
    }
}
