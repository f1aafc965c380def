//! Creates the run file for a set of jobs, and fits Amdahl's law with a communication cost to their times: `T(n) =
//! serial + parallel / n + further (n - 1)`.
//!
//! The three costs are fitted by least squares of relative errors, so that every rank count has the same weight. No
//! cost is negative: each subset of the three costs is fitted, and the best fit in which no cost is negative is used.

use fordway_measure::{
    ConfidenceInterval, LanePhaseResult, LimitingResource, Machine, ParallelJobSummary, RowDescription,
    RunDocument, SCHEMA, SCHEMA_VERSION, median, median_interval,
};
use serde::{Deserialize, Serialize};

use super::{FinishedJob, JobSample, JobTimeKind, SpeedupPlan, SpeedupResults};
use crate::summary::{RunFileHeader, RunParallelism, summarise_phase};

/// If the launch takes more than this share of a job's time on one rank, the run contains a warning.
const LAUNCH_SHARE_MAX: f64 = 0.1;

/// The costs of a set-up according to the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SetupSpeedupFit {
    /// The name of the set-up.
    pub lane: String,
    /// The fit; `None` for fewer than two rank counts.
    pub fit: Option<SpeedupFit>,
}

/// Returns the run file of `outcome`, which `plan` measured on `lanes`.
pub fn describe(
    plan: &SpeedupPlan,
    lanes: Vec<RowDescription>,
    outcome: &SpeedupResults,
    header: RunFileHeader,
) -> RunDocument {
    let phases: Vec<String> = plan.ranks.iter().map(|ranks| phase(*ranks)).collect();
    let summaries = (0..plan.ranks.len()).flat_map(|at| of_phase(plan, &lanes, at, outcome, &header.machine));
    let summaries: Vec<LanePhaseResult> = summaries.collect();
    let mut warnings = header.warnings;
    let told = |(lane, phase, error): &(usize, usize, fordway_store::Error)| {
        format!("{} with {}: {error}", lanes[*lane].name, phases[*phase])
    };
    warnings.extend(outcome.interrupted.map(|(done, total)| {
        format!("interrupted after {done} of {total} jobs: the results cover only the jobs that ended; run it again for all")
    }));
    warnings.extend(outcome.failures.iter().map(told));
    warnings.extend(doubts(plan, &summaries, &header.machine));
    RunDocument {
        schema: SCHEMA.into(),
        schema_version: SCHEMA_VERSION,
        fordway_version: env!("CARGO_PKG_VERSION").into(),
        kind: "speedup".into(),
        started: header.started,
        elapsed_ns: header.elapsed.as_nanos() as u64,
        command: std::env::args().collect(),
        machine: header.machine,
        parameters: header.parameters,
        phases,
        lanes,
        summaries,
        scores: Vec::new(),
        warnings,
        conditions: None,
    }
}

fn phase(ranks: u32) -> String {
    if ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") }
}

/// Returns one summary for each lane that ran jobs with this number of ranks.
fn of_phase(
    plan: &SpeedupPlan,
    lanes: &[RowDescription],
    at: usize,
    outcome: &SpeedupResults,
    machine: &Machine,
) -> Vec<LanePhaseResult> {
    let ranks = plan.ranks[at];
    let capacity = RunParallelism::of(ranks as usize, machine);
    let mut summaries = summarise_phase(lanes, (at as u8, &phase(ranks)), &outcome.records, capacity);
    for (lane, summary) in summaries.iter_mut().enumerate() {
        summary.parallel = Some(parallel(plan, outcome, (lane, at)));
        // Waiting ranks use as much CPU time as working ranks, so their CPU time is meaningless. The recorded CPU time
        // belongs to this process, not to the ranks.
        summary.client_cpu_ns_per_op = None;
        let evidence = "ranks poll while they wait, so that CPU time does not tell";
        summary.limit = LimitingResource { name: "cannot tell".into(), evidence: evidence.into() };
    }
    summaries.retain(|summary| summary.operations + summary.errors > 0);
    summaries
}

fn parallel(plan: &SpeedupPlan, outcome: &SpeedupResults, place: (usize, usize)) -> ParallelJobSummary {
    let samples: Vec<&JobSample> =
        outcome.samples.iter().filter(|sample| (sample.lane, sample.phase) == place).collect();
    let of = |value: &dyn Fn(&FinishedJob) -> Option<f64>| {
        let values: Vec<f64> = samples.iter().filter_map(|sample| value(&sample.job)).collect();
        median_interval(&values)
    };
    let ranks = plan.ranks[place.1];
    let speedup = median_interval(&speedups(plan, outcome, &samples));
    ParallelJobSummary {
        ranks,
        wall_ns: of(&|job| Some(job.elapsed_ns as f64)),
        work_ns: of(&|job| job.work_ns().map(|ns| ns as f64)),
        speedup,
        efficiency: speedup.map(|speedup| divided(&speedup, f64::from(ranks))),
        communication_share: of(&FinishedJob::communication_share),
        late_ns: of(&|job| job.late_ns().map(|ns| ns as f64)),
    }
}

/// Returns the reference's time divided by the job's time, for each round that has both.
fn speedups(plan: &SpeedupPlan, outcome: &SpeedupResults, samples: &[&JobSample]) -> Vec<f64> {
    let reference = |round: u16| {
        let mut all = outcome.samples.iter();
        all.find(|sample| (sample.lane, sample.phase, sample.round) == (0, 0, round))?.job.time_ns(plan.time)
    };
    let ratio =
        |sample: &&JobSample| Some(reference(sample.round)? as f64 / sample.job.time_ns(plan.time)? as f64);
    samples.iter().filter_map(ratio).collect()
}

fn divided(interval: &ConfidenceInterval, by: f64) -> ConfidenceInterval {
    let ConfidenceInterval { value, low, high, .. } = interval;
    ConfidenceInterval { value: value / by, low: low / by, high: high / by, ..*interval }
}

/// Fits the model's costs to the median times of each lane. The reference's time on one rank is used for all lanes that
/// did not run jobs with one rank.
pub fn fits(plan: &SpeedupPlan, lanes: &[RowDescription], outcome: &SpeedupResults) -> Vec<SetupSpeedupFit> {
    let time = |lane: usize, phase: usize| {
        let samples = outcome.samples.iter().filter(|sample| (sample.lane, sample.phase) == (lane, phase));
        let times = samples.filter_map(|sample| sample.job.time_ns(plan.time));
        median(&times.map(|ns| ns as f64).collect::<Vec<_>>())
    };
    let points = |lane: usize| -> Vec<(u32, f64)> {
        let of = |(phase, ranks): (usize, &u32)| {
            Some((*ranks, time(if *ranks > 1 || plan.runs_alone[lane] { lane } else { 0 }, phase)?))
        };
        plan.ranks.iter().enumerate().filter_map(of).collect()
    };
    let fitted = |(at, lane): (usize, &RowDescription)| SetupSpeedupFit {
        lane: lane.name.clone(),
        fit: SpeedupFit::of(&points(at)),
    };
    lanes.iter().enumerate().map(fitted).collect()
}

/// Returns the reasons to doubt the speed-ups.
fn doubts(plan: &SpeedupPlan, summaries: &[LanePhaseResult], machine: &Machine) -> Vec<String> {
    let mut doubts: Vec<String> = launch_doubt(plan, summaries).into_iter().collect();
    let most = plan.ranks.iter().copied().max().unwrap_or(1);
    if most as usize > machine.cpus {
        doubts.push(format!(
            "{most} ranks share {} processors: what is slower may be the sharing, not the set-up; compare with \
             NAME+yield, where ranks give way while they wait",
            machine.cpus
        ));
    }
    if summaries.iter().all(|summary| summary.parallel.as_ref().is_none_or(|of| of.work_ns.is_none())) {
        doubts.push(
            "the ranks did not report, so that their work and communication are not measured; `make mpi` builds \
             what has them report (libfordway-pmpi.so)"
                .to_owned(),
        );
    }
    doubts
}

/// Returns a warning if the launch takes a large share of the time, because a long launch hides the gain from more
/// ranks.
fn launch_doubt(plan: &SpeedupPlan, summaries: &[LanePhaseResult]) -> Option<String> {
    let reference = summaries.first()?.parallel.as_ref()?;
    let share = 1.0 - reference.work_ns?.value / reference.wall_ns?.value;
    (plan.time == JobTimeKind::Wall && share > LAUNCH_SHARE_MAX).then(|| {
        format!(
            "{:.0} % of the time of one rank is the launch, which differs between set-ups; take a longer job, or \
             --time work",
            100.0 * share
        )
    })
}

/// The number of costs in the model.
const COSTS: usize = 3;

/// The costs of a job as a function of its number of ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedupFit {
    /// The serial time, which more ranks do not shorten, ns.
    pub serial_ns: f64,
    /// The parallel time, which ranks share, as measured on one rank, ns.
    pub parallel_ns: f64,
    /// The time that each additional rank adds, ns.
    pub further_rank_ns: f64,
    /// The serial share of Amdahl's law: the serial time as a share of the time on one rank.
    pub serial_share: f64,
    /// The number of points (rank counts) to which the model was fitted.
    pub points: usize,
    /// The largest relative error at the fitted points.
    pub error_max: f64,
    /// Whether there were more points than costs. Without more points than costs, the curve passes through all points,
    /// so a good fit proves nothing.
    pub is_tested: bool,
}

impl SpeedupFit {
    /// Fits points of (ranks, ns), with at most one point per rank count. Returns `None` for fewer than two points, or
    /// if a time is not positive.
    pub fn of(points: &[(u32, f64)]) -> Option<Self> {
        if points.len() < 2 || points.iter().any(|(ranks, ns)| *ranks == 0 || *ns <= 0.0) {
            return None;
        }
        let subsets = 1u8..1 << COSTS;
        let candidates = subsets.filter_map(|subset| solve(points, subset));
        let [serial_ns, parallel_ns, further_rank_ns] =
            candidates.min_by(|a, b| badness(points, a).total_cmp(&badness(points, b)))?;
        let costs = [serial_ns, parallel_ns, further_rank_ns];
        let error = |(ranks, ns): &(u32, f64)| (predict(&costs, *ranks) / ns - 1.0).abs();
        Some(SpeedupFit {
            serial_ns,
            parallel_ns,
            further_rank_ns,
            serial_share: serial_ns / (serial_ns + parallel_ns),
            points: points.len(),
            error_max: points.iter().map(error).fold(0.0, f64::max),
            is_tested: points.len() > COSTS,
        })
    }

    /// Returns the predicted time on `ranks` ranks, in nanoseconds.
    pub fn predict_ns(&self, ranks: u32) -> f64 {
        predict(&[self.serial_ns, self.parallel_ns, self.further_rank_ns], ranks)
    }
}

fn terms(ranks: u32) -> [f64; COSTS] {
    let ranks = f64::from(ranks);
    [1.0, 1.0 / ranks, ranks - 1.0]
}

fn predict(costs: &[f64; COSTS], ranks: u32) -> f64 {
    terms(ranks).iter().zip(costs).map(|(term, cost)| term * cost).sum()
}

/// Returns the sum of squared relative errors. A sum within rounding error counts as 0. Therefore, if several subsets
/// of the costs fit exactly, the first of these subsets is chosen. Subsets without the communication cost come first.
fn badness(points: &[(u32, f64)], costs: &[f64; COSTS]) -> f64 {
    let sum: f64 = points.iter().map(|(ranks, ns)| (predict(costs, *ranks) / ns - 1.0).powi(2)).sum();
    if sum < 1e-18 { 0.0 } else { sum }
}

/// Fits the costs whose bits are set in `subset` by least squares; `None` if the costs are not uniquely determined, or
/// if a cost is negative.
fn solve(points: &[(u32, f64)], subset: u8) -> Option<[f64; COSTS]> {
    let used: Vec<usize> = (0..COSTS).filter(|cost| subset & (1 << cost) != 0).collect();
    let mut matrix = vec![vec![0.0; used.len() + 1]; used.len()];
    for (ranks, ns) in points {
        let row = terms(*ranks).map(|term| term / ns);
        for (line, &a) in matrix.iter_mut().zip(&used) {
            for (cell, &b) in line.iter_mut().zip(&used) {
                *cell += row[a] * row[b];
            }
            line[used.len()] += row[a];
        }
    }
    let solved = eliminate(matrix)?;
    let mut costs = [0.0; COSTS];
    used.iter().zip(solved).for_each(|(at, cost)| costs[*at] = cost);
    costs.iter().all(|cost| *cost >= 0.0).then_some(costs)
}

/// Solves a linear system by Gaussian elimination with pivoting; `None` for a singular system.
fn eliminate(mut lines: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    let size = lines.len();
    let scale = lines.iter().flatten().fold(0.0, |most: f64, value| most.max(value.abs()));
    for at in 0..size {
        let best = (at..size).max_by(|a, b| lines[*a][at].abs().total_cmp(&lines[*b][at].abs()))?;
        lines.swap(at, best);
        if lines[at][at].abs() <= scale * 1e-12 {
            return None;
        }
        let pivot = lines[at].clone();
        for (number, line) in lines.iter_mut().enumerate() {
            let factor = line[at] / pivot[at];
            if number != at {
                line.iter_mut().zip(&pivot).for_each(|(value, above)| *value -= factor * above);
            }
        }
    }
    Some((0..size).map(|at| lines[at][size] / lines[at][at]).collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::{ScalingLawLauncher, measured, plan};
    use super::*;

    fn run(time: JobTimeKind) -> (RunDocument, Vec<SetupSpeedupFit>) {
        let plan = SpeedupPlan { time, ..plan(&[1, 2, 4, 8]) };
        let outcome =
            measured(&plan, &mut ScalingLawLauncher { failing: Some((1, 8)), launched: Vec::new() });
        let lane = |name: &str| RowDescription { name: name.into(), description: String::new() };
        let lanes = vec![lane("a"), lane("b")];
        let fits = fits(&plan, &lanes, &outcome);
        let header = RunFileHeader {
            machine: Machine { cpus: 2, ..Machine::observe(&[]) },
            started: String::new(),
            elapsed: Duration::ZERO,
            parameters: serde_json::Map::new(),
            warnings: Vec::new(),
        };
        (describe(&plan, lanes, &outcome, header), fits)
    }

    fn of<'r>(run: &'r RunDocument, lane: &str, ranks: u32) -> &'r ParallelJobSummary {
        let all = run.summaries.iter().filter(|row| row.lane == lane);
        all.filter_map(|row| row.parallel.as_ref()).find(|of| of.ranks == ranks).unwrap()
    }

    #[test]
    fn speed_up_and_efficiency_are_the_laws() {
        let (run, _) = run(JobTimeKind::Wall);
        let four = of(&run, "a", 4);
        let speedup = four.speedup.unwrap();
        // According to the law, a job takes 9 s on one rank, and 1 + 2 + 1.5 s on four ranks.
        assert_eq!((speedup.value, speedup.low, speedup.high, speedup.samples), (2.0, 2.0, 2.0, 5));
        assert_eq!(four.efficiency.unwrap().value, 0.5);
        assert_eq!(of(&run, "b", 4).speedup.unwrap().value, 1.0, "against the first lane");
        assert_eq!(of(&run, "a", 1).speedup.unwrap().value, 1.0);
        assert_eq!((of(&run, "a", 1).late_ns, four.late_ns.unwrap().value), (None, 30.0));
        assert!((four.communication_share.unwrap().value - 0.25).abs() < 1e-3);
        let table = fordway_measure::parallel_table(&run);
        assert!(table.contains("2.00 [2.00, 2.00]") && table.contains("50.0 % [50.0, 50.0]"), "{table}");
    }

    #[test]
    fn what_failed_has_no_figures_and_is_told() {
        let (run, fits) = run(JobTimeKind::Wall);
        let failed = of(&run, "b", 8);
        assert_eq!((&failed.speedup, &failed.efficiency, &failed.wall_ns), (&None, &None, &None));
        assert!(run.warnings.iter().any(|told| told.contains("b with 8 ranks: ") && told.contains("hangs")));
        assert!(run.warnings.iter().any(|told| told.contains("8 ranks share 2 processors")));
        let points = fits.iter().map(|fitted| fitted.fit.as_ref().unwrap().points);
        assert_eq!(points.collect::<Vec<_>>(), [4, 3]);
        assert!((fits[0].fit.as_ref().unwrap().serial_ns - 1e9).abs() < 1e3, "{fits:?}");
    }

    #[test]
    fn a_long_launch_is_told() {
        let plan = plan(&[1, 2]);
        let mut outcome = measured(&plan, &mut ScalingLawLauncher { failing: None, launched: Vec::new() });
        let told = |outcome: &SpeedupResults| {
            let lane = |name: &str| RowDescription { name: name.into(), description: String::new() };
            let machine = Machine::observe(&[]);
            let rows = of_phase(&plan, &[lane("a"), lane("b")], 0, outcome, &machine);
            launch_doubt(&plan, &rows)
        };
        assert_eq!(told(&outcome), None);
        outcome.samples.iter_mut().for_each(|sample| sample.job.elapsed_ns *= 2);
        assert!(told(&outcome).unwrap().starts_with("50 % of the time of one rank is the launch"));
    }

    #[test]
    fn work_can_be_what_counts() {
        let (run, _) = run(JobTimeKind::Work);
        let two = of(&run, "a", 2);
        let expected = (9e9 - 1_100.0) / (5.5e9 - 1_000.0 + 10.0 - 100.0);
        assert!((two.speedup.unwrap().value - expected).abs() < 1e-9);
        assert!(two.work_ns.unwrap().value < two.wall_ns.unwrap().value);
    }

    fn fit_of(costs: [f64; 3], ranks: &[u32]) -> SpeedupFit {
        let points: Vec<_> = ranks.iter().map(|ranks| (*ranks, predict(&costs, *ranks))).collect();
        SpeedupFit::of(&points).unwrap()
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-6 * b.abs().max(1.0)
    }

    #[test]
    fn the_truth_is_recovered() {
        let fit = fit_of([2e9, 8e9, 1e8], &[1, 2, 4, 8, 16]);
        assert!(close(fit.serial_ns, 2e9) && close(fit.parallel_ns, 8e9) && close(fit.further_rank_ns, 1e8));
        assert!(close(fit.serial_share, 0.2) && fit.is_tested && fit.error_max < 1e-9, "{fit:?}");
        assert!(close(fit.predict_ns(32), 2e9 + 8e9 / 32.0 + 31e8));
        let alone = fit_of([0.0, 5e9, 0.0], &[1, 2, 4, 8]);
        assert!(close(alone.parallel_ns, 5e9) && alone.serial_share < 1e-9, "{alone:?}");
    }

    /// Noise of a few percent must not make a cost negative or change the shares much.
    #[test]
    fn noise_leaves_costs_plausible() {
        let noise = [1.02, 0.97, 1.01, 0.99, 1.03];
        let ranks = [1, 2, 4, 8, 16];
        let points: Vec<_> =
            ranks.iter().zip(noise).map(|(n, noise)| (*n, predict(&[1e9, 9e9, 0.0], *n) * noise)).collect();
        let fit = SpeedupFit::of(&points).unwrap();
        assert!((0.05..0.15).contains(&fit.serial_share), "{fit:?}");
        assert!(fit.further_rank_ns >= 0.0 && fit.error_max < 0.06, "{fit:?}");
    }

    #[test]
    fn few_points_are_said_to_test_nothing() {
        assert!(!fit_of([1e9, 4e9, 1e8], &[1, 2, 4]).is_tested);
        assert!(!fit_of([1e9, 4e9, 0.0], &[1, 2]).is_tested);
        assert_eq!(SpeedupFit::of(&[(1, 1e9)]), None);
        assert_eq!(SpeedupFit::of(&[(1, 1e9), (2, 0.0)]), None);
    }

    /// For a job that only gets slower with more ranks, the fit has no parallel time. Such a fit is not an error.
    #[test]
    fn a_job_that_gets_slower_is_communication() {
        let fit = SpeedupFit::of(&[(1, 1e9), (2, 3e9), (4, 7e9), (8, 15e9)]).unwrap();
        assert!(close(fit.further_rank_ns, 2e9), "{fit:?}");
    }
}
