//! Creates a site, runs a workload there, and removes the site. Also creates the run file for a workload that ran on
//! several sites.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use fordway_measure::{
    LaneIo500Score, LanePhaseResult, Machine, RowDescription, RunDocument, RunRecords, SCHEMA,
    SCHEMA_VERSION, SpeedRatio, SpeedVerdict, median_interval,
};
use fordway_store::{Bucket, Error, ErrorKind, Result};
use serde::Serialize;

use crate::io500::{self, Io500Plan};
use crate::ior::IorPlan;
use crate::mdtest::MdtestPlan;
use crate::mdworkbench::MdworkbenchPlan;
use crate::options::OutputFileArgs;
use crate::phase::WorkloadRank;
use crate::summary::{RunParallelism, forget_waiting, limit};
use crate::{EarlyEnd, PhaseResult, WorkloadLocation};

/// A workload that several ranks run together.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum WorkloadPlan {
    /// IOR: large files.
    Ior(IorPlan),
    /// mdtest: many small files.
    Mdtest(MdtestPlan),
    /// md-workbench: data sets of constant size.
    Mdworkbench(MdworkbenchPlan),
    /// IO500: a sequence of phases from IOR, mdtest and find.
    Io500(Io500Plan),
}

impl WorkloadPlan {
    /// Returns whether a phase of the workload removes all files.
    fn removes_files(&self) -> bool {
        matches!(self, WorkloadPlan::Mdworkbench(plan) if plan.ends())
    }

    /// Returns the workload's name in run files.
    pub fn name(&self) -> &'static str {
        match self {
            WorkloadPlan::Ior(_) => "ior",
            WorkloadPlan::Mdtest(_) => "mdtest",
            WorkloadPlan::Mdworkbench(_) => "mdworkbench",
            WorkloadPlan::Io500(_) => "io500",
        }
    }

    /// Returns the default name of the run file, without the extension. For a run of only some phases of mdworkbench,
    /// the name contains the names of the phases, so that the run of another phase does not replace this run.
    pub fn run_name(&self) -> String {
        match self {
            WorkloadPlan::Mdworkbench(plan) => self.name().to_owned() + &plan.chosen_phases(),
            _ => self.name().to_owned(),
        }
    }

    /// Checks that `ranks` ranks can run the plan. Errors: `InvalidArgument` if they cannot run the plan.
    pub fn check(&self, ranks: usize) -> Result<()> {
        match self {
            WorkloadPlan::Ior(plan) => plan.check(ranks),
            WorkloadPlan::Mdtest(plan) => plan.files().map(drop),
            WorkloadPlan::Mdworkbench(plan) => plan.check(),
            WorkloadPlan::Io500(plan) => plan.check(),
        }
    }

    /// Creates `site`, runs the workload there, and removes the site (even after a failure) unless `keep` is set. For
    /// mdworkbench, the chosen phases determine whether the site is created and removed, and `keep` has no effect. All
    /// ranks call this function and get the same result. Errors: `BucketAlreadyOwnedByYou` if the site exists, in which
    /// case nothing is changed; the errors of [`WorkloadPlan::check`]; any failure that would affect every operation;
    /// `Interrupted`.
    pub fn run(&self, crew: &WorkloadRank, site: &WorkloadLocation, keep: bool) -> Result<Vec<PhaseResult>> {
        self.run_round(crew, site, SiteRetention { after_success: keep, after_failure: keep })
    }

    fn run_round(
        &self,
        crew: &WorkloadRank,
        site: &WorkloadLocation,
        keep: SiteRetention,
    ) -> Result<Vec<PhaseResult>> {
        crew.agree(self.check(crew.team.size()))?;
        let begins = match self {
            WorkloadPlan::Mdworkbench(plan) => plan.begins(),
            _ => true,
        };
        if begins {
            crew.first_does(|| site.make())?;
        }
        let outcome = match self {
            WorkloadPlan::Ior(plan) => plan.run(crew, site),
            WorkloadPlan::Mdtest(plan) => plan.run(crew, site),
            WorkloadPlan::Mdworkbench(plan) => plan.run(crew, site),
            WorkloadPlan::Io500(plan) => plan.run(crew, site),
        };
        let ends = match self {
            WorkloadPlan::Mdworkbench(plan) => plan.ends(),
            _ if outcome.is_ok() => !keep.after_success,
            _ => !keep.after_failure,
        };
        // A site that could not be created, or that belongs to an earlier run, is not removed.
        if ends && (outcome.is_ok() || begins) {
            let cleaned = self.clean_up(crew, site);
            return match (outcome, cleaned) {
                (Err(error), Err(left)) => Err(with_left_over(error, &left, site)),
                (outcome, cleaned) => outcome.and_then(|results| cleaned.map(|()| results)),
            };
        }
        outcome
    }

    fn clean_up(&self, crew: &WorkloadRank, site: &WorkloadLocation) -> Result<()> {
        match self {
            WorkloadPlan::Ior(plan) => plan.clean_up(crew, site)?,
            WorkloadPlan::Mdworkbench(plan) => plan.clean_up(crew, site)?,
            WorkloadPlan::Mdtest(_) | WorkloadPlan::Io500(_) => {}
        }
        crew.first_does(|| site.remove())
    }
}

/// Whether the site of a round is kept.
#[derive(Clone, Copy)]
struct SiteRetention {
    after_success: bool,
    /// Whether the site is kept after a failure or a signal.
    after_failure: bool,
}

/// Adds to the message of `error` that the site could not be removed.
fn with_left_over(error: Error, left: &Error, site: &WorkloadLocation) -> Error {
    let detail = format!(
        "{error}; {} on lane {} could not be removed ({left}); remove it yourself",
        site.name(),
        site.lane().name
    );
    Error::new(error.kind(), detail)
}

/// The targets on which a workload runs, and the number of rounds.
#[derive(Clone, Debug, Args)]
pub struct MeasurementArgs {
    /// Targets to measure: DIRECTORY (plain files), file:///DIRECTORY (objects in this process) or
    /// http(s)://HOST[:PORT]; the first target is the reference
    #[arg(value_name = "TARGET")]
    pub places: Vec<String>,
    /// Number of rounds, in which the targets take turns; intervals of ratios need at least five rounds
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: u16,
    /// Bucket or directory to create for the run; it is removed at the end
    #[arg(long, default_value = "fordway-bench", value_parser = bucket)]
    pub name: Bucket,
    /// Do not remove the bucket or directory of the last round, or of a round that was ended by a signal or an error
    #[arg(long)]
    pub keep: bool,
    /// The run file to write.
    #[command(flatten)]
    pub output: OutputFileArgs,
}

/// Parses a bucket name that is short enough for workloads to append up to 32 bytes.
fn bucket(text: &str) -> Result<Bucket, String> {
    match text.len() {
        0..=31 => Bucket::new(text).map_err(|error| error.to_string()),
        _ => Err("use at most 31 characters".to_owned()),
    }
}

impl MeasurementArgs {
    /// Runs `workload` at each of `sites`, one site after the other, once per round. All ranks call this function. If a
    /// signal or an error ends the run after the first round, returns the complete rounds. Errors: the errors of
    /// [`WorkloadPlan::run`], if the first round was not complete; `InvalidArgument` if the site must be kept, but a
    /// phase of the workload removes it.
    pub fn run(
        &self,
        workload: &WorkloadPlan,
        crew: &WorkloadRank,
        sites: &[WorkloadLocation],
    ) -> Result<MeasuredRounds> {
        if self.keep && workload.removes_files() {
            let why = "--keep contradicts the phase cleanup; leave cleanup out of --phases";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        let empty = |site: &WorkloadLocation| MeasuredLane {
            lane: site.lane().clone(),
            has_unknown_server: site.has_unknown_server(),
            rounds: Vec::new(),
        };
        let mut lanes: Vec<MeasuredLane> = sites.iter().map(empty).collect();
        for round in 0..self.rounds {
            // The next round creates the sites again, so only the sites of the last round can be kept.
            let is_last = round + 1 == self.rounds;
            let keep = SiteRetention { after_success: self.keep && is_last, after_failure: self.keep };
            let results: Result<Vec<_>> =
                sites.iter().map(|site| workload.run_round(crew, site, keep)).collect();
            match results {
                Ok(results) => {
                    lanes.iter_mut().zip(results).for_each(|(lane, result)| lane.rounds.push(result))
                }
                // Neither a signal nor a server that stops answering invalidates the complete rounds.
                Err(error) if round > 0 => {
                    let early_end = Some(EarlyEnd::new(round, error, crew.stop_flag()));
                    return Ok(MeasuredRounds { lanes, planned: self.rounds, early_end });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(MeasuredRounds { lanes, planned: self.rounds, early_end: None })
    }

    /// Returns the directory to which the run is written.
    pub fn path(&self, workload: &WorkloadPlan) -> PathBuf {
        self.output.path(&workload.run_name())
    }

    /// Returns the chosen parameters, for the run file.
    pub fn parameters(&self) -> serde_json::Map<String, serde_json::Value> {
        let entries = [("places", self.places.clone().into()), ("rounds", self.rounds.into())];
        entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// The complete rounds of a run.
#[derive(Debug)]
pub struct MeasuredRounds {
    /// The results of each lane. The first lane is the reference.
    pub lanes: Vec<MeasuredLane>,
    /// The planned number of rounds.
    pub planned: u16,
    /// The early end; `None` if all rounds were complete. At least one round is complete.
    pub early_end: Option<EarlyEnd>,
}

impl MeasuredRounds {
    /// Returns the kind of the first failure of an operation; `None` if no operation failed. Later failures may be
    /// consequences, such as wrong content in a file that was not written completely.
    pub fn first_failure(&self) -> Option<ErrorKind> {
        let phases = self.lanes.iter().flat_map(|lane| lane.rounds.iter().flatten());
        let failed = phases.filter_map(|phase| Some((phase.origin_ns, phase.first_failure()?)));
        failed.min_by_key(|(origin_ns, _)| *origin_ns).map(|(_, kind)| kind)
    }
}

/// A lane and its results: its phases, round by round.
#[derive(Clone, Debug)]
pub struct MeasuredLane {
    /// The lane that was measured.
    pub lane: RowDescription,
    /// Whether the lane's server is a process that this run does not know.
    pub has_unknown_server: bool,
    /// The phases of each round.
    pub rounds: Vec<Vec<PhaseResult>>,
}

impl MeasuredLane {
    /// Returns the results of one phase in all rounds.
    pub(crate) fn phase(&self, name: &str) -> Vec<&PhaseResult> {
        self.rounds.iter().flatten().filter(|result| result.phase == name).collect()
    }

    fn summary(
        &self,
        phase: &str,
        reference: Option<&MeasuredLane>,
        capacity: RunParallelism,
    ) -> LanePhaseResult {
        let rounds = self.phase(phase);
        let sum = |value: fn(&PhaseResult) -> u64| rounds.iter().map(|round| value(round)).sum::<u64>();
        let elapsed_s = sum(PhaseResult::elapsed_ns) as f64 / 1e9;
        let (operations, bytes) = (sum(PhaseResult::succeeded), sum(PhaseResult::bytes));
        let per_s = |count: u64| (count > 0 && elapsed_s > 0.0).then(|| count as f64 / elapsed_s);
        let is_whole = rounds.iter().all(|round| !round.is_part);
        let per_op = |ns: u64| (operations > 0 && is_whole).then(|| ns as f64 / operations as f64);
        let client_ns = sum(PhaseResult::client_cpu_ns);
        let server_ns = rounds.iter().map(|round| round.server_cpu_ns).sum::<Option<u64>>();
        let mut latencies = fordway_measure::LatencyHistogram::default();
        rounds.iter().for_each(|round| latencies.add(&round.latencies()));
        let mut row = LanePhaseResult {
            lane: self.lane.name.clone(),
            phase: phase.to_owned(),
            operations,
            errors: sum(PhaseResult::errors),
            bytes,
            ops_per_s: per_s(operations),
            bytes_per_s: per_s(bytes),
            latency: latencies.quantiles(),
            histogram: latencies.to_base64(),
            client_cpu_ns_per_op: per_op(client_ns),
            server_cpu_ns_per_op: server_ns.and_then(per_op),
            ratio: reference.map(|reference| ratio(&rounds, reference, phase)),
            limit: limit(client_ns, server_ns, sum(PhaseResult::wall_ns) as f64 / 1e9, capacity),
            load: None,
            transfer: None,
            parallel: None,
        };
        if self.has_unknown_server {
            forget_waiting(&mut row);
        }
        row
    }
}

/// Returns the speed relative to the reference, computed over pairs of rounds. The comparison uses rates, because the
/// amount of work in a stonewalled phase varies. A round with errors on one of the lanes forms no pair, because failing
/// takes less time than working.
fn ratio(rounds: &[&PhaseResult], reference: &MeasuredLane, phase: &str) -> SpeedRatio {
    let others = reference.phase(phase);
    let is_clean = |(mine, theirs): &(&&PhaseResult, &&PhaseResult)| mine.errors() + theirs.errors() == 0;
    let pairs = rounds.iter().zip(&others).filter(is_clean);
    let pairs = pairs.filter_map(|(mine, theirs)| Some(mine.ops_per_s()? / theirs.ops_per_s()?));
    let interval = median_interval(&pairs.collect::<Vec<_>>());
    SpeedRatio { to: reference.lane.name.clone(), interval, verdict: SpeedVerdict::of(interval.as_ref()) }
}

/// Data about a run other than its results.
#[derive(Debug)]
pub struct RunMetadata {
    /// The machine that performed the run.
    pub machine: Machine,
    /// The start time, RFC 3339 in UTC.
    pub started: String,
    /// The duration of the run.
    pub elapsed: Duration,
    /// The number of ranks.
    pub ranks: usize,
    /// The number of processors that all ranks together can keep busy.
    pub cpus_at_once: usize,
    /// The chosen parameters other than the plan.
    pub parameters: serde_json::Map<String, serde_json::Value>,
}

/// Returns the run file for `measured`, and its records.
pub fn describe(
    workload: &WorkloadPlan,
    header: RunMetadata,
    measured: &MeasuredRounds,
) -> (RunDocument, RunRecords) {
    let lanes = &measured.lanes;
    let mut phases: Vec<String> = Vec::new();
    for result in lanes.iter().flat_map(|lane| lane.rounds.iter().flatten()) {
        if !phases.contains(&result.phase) {
            phases.push(result.phase.clone());
        }
    }
    let capacity =
        RunParallelism { threads: header.ranks.min(header.cpus_at_once), cpus: header.machine.cpus };
    let summaries = phases
        .iter()
        .flat_map(|phase| {
            lanes
                .iter()
                .enumerate()
                .map(move |(number, lane)| lane.summary(phase, (number > 0).then(|| &lanes[0]), capacity))
        })
        .collect();
    let records = records(lanes, &phases);
    let mut parameters = header.parameters;
    if let Ok(serde_json::Value::Object(plan)) = serde_json::to_value(workload) {
        parameters.extend(plan);
    }
    parameters.insert("ranks".into(), header.ranks.into());
    let mut warnings = warnings(workload, lanes);
    warnings.extend(measured.early_end.as_ref().map(|end| end.warning(measured.planned)));
    let run = RunDocument {
        schema: SCHEMA.into(),
        schema_version: SCHEMA_VERSION,
        fordway_version: env!("CARGO_PKG_VERSION").into(),
        kind: workload.name().into(),
        started: header.started,
        elapsed_ns: header.elapsed.as_nanos() as u64,
        command: std::env::args().collect(),
        machine: header.machine,
        parameters,
        lanes: lanes.iter().map(|lane| lane.lane.clone()).collect(),
        phases,
        summaries,
        scores: scores(workload, lanes),
        warnings,
        conditions: None,
    };
    (run, records)
}

fn scores(workload: &WorkloadPlan, lanes: &[MeasuredLane]) -> Vec<LaneIo500Score> {
    match workload {
        WorkloadPlan::Io500(plan) => {
            io500::score(plan, lanes, None).into_iter().map(|(score, _)| score).collect()
        }
        _ => Vec::new(),
    }
}

fn records(lanes: &[MeasuredLane], phases: &[String]) -> RunRecords {
    let mut records = RunRecords::default();
    for (number, lane) in (0u8..).zip(lanes) {
        for (round, results) in (0u16..).zip(&lane.rounds) {
            for result in results {
                let phase = phases.iter().position(|name| *name == result.phase).unwrap_or_default();
                // Blocks with the same number do the same work on different lanes.
                let block = u32::from(round) * phases.len() as u32 + phase as u32;
                result.record((number, phase as u8, round), block, &mut records);
            }
        }
    }
    records
}

fn warnings(workload: &WorkloadPlan, lanes: &[MeasuredLane]) -> Vec<String> {
    let mut warnings = Vec::new();
    for lane in lanes {
        let name = &lane.lane.name;
        for result in lane.rounds.iter().flatten() {
            warnings.extend(result.failures().iter().map(|failure| format!("failed on {name}: {failure}")));
            let not_kept: u64 = result.ranks.iter().map(|rank| rank.not_kept).sum();
            if not_kept > 0 && !result.operations.is_empty() {
                warnings.push(format!(
                    "{not_kept} operations of {} on {name} are in the histogram but have no individual records",
                    result.phase
                ));
            }
        }
        let scored = lane.rounds.get(io500::scored_round(&lane.rounds));
        if let (WorkloadPlan::Io500(plan), Some(results)) = (workload, scored) {
            warnings.extend(plan.stamp(results).map(|stamp| format!("{name}: {stamp}")));
        }
    }
    warnings
}
