//! `bench pingpong`: compares messages over containers and overlay networks with messages over plain networks. This
//! file also converts the measured blocks into the run file and the table.

mod load;
mod setups;

use std::sync::Arc;
use std::time::Instant;

use fordway_command::{CommandContext, CommandExit};
use fordway_machine::MachineWatch;
use fordway_measure::{
    Machine, RunClock, RunDocument, RunRecords, SCHEMA, SCHEMA_VERSION, SeededRandom, load_table,
};
use fordway_netlab::setup::{NetworkSetup, PingpongSide, RunningNetworkSetup};
use fordway_store::{Error, ErrorKind, Result};
use fordway_workload::rest::{
    self, ArrivalProcess, BlockPosition, LaneBlocks, LoadBlockResult, LoadPlan, SummaryRowLoadSettings,
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use self::load::{
    MessageSizeRange, MessageSizeSequence, PingChannel, PingpongParameterSet, UnansweredMessages, points,
};
use self::setups::{MeasuredNetworkSetup, wire};
use crate::args::{ConnectionReuseArg, PingpongBenchArgs, SizeDistributionArg};
use crate::commands;
use crate::commands::run_output;

pub(super) fn run(args: &PingpongBenchArgs, context: &CommandContext) -> Result<CommandExit> {
    if args.list {
        return list(context);
    }
    args.output.out.as_deref().map_or(Ok(()), run_output::check)?;
    let seed = args.chance.seed()?;
    let started = (jiff::Timestamp::now(), Instant::now());
    let machine = Machine::observe(&[]);
    let cores = fordway_sys::usable_cores();
    let (points, range) = (points(args, cores.len())?, MessageSizeRange::new(args)?);
    let setups = setups::chosen(args)?;
    check_pong(args, &setups)?;
    let watch = MachineWatch::start(&[], args.trust.force)?;
    let has_unknown_servers = args.pong.is_some() || setups.iter().any(NetworkSetup::runs_elsewhere);
    let watch = if has_unknown_servers { watch.beside_unknown_servers() } else { watch };
    context.output.start_steps();
    let lanes = setups::bring_up(args, setups, context)?;
    let task = PingpongMeasurementPlan { args, points: &points, range, seed, cores };
    let measured = task.measure(&lanes, context);
    context.output.end_progress();
    let facts = PingpongRunMetadata { args, points: &points, range, seed, machine, started };
    let outcome = measured.and_then(|measured| facts.report((&lanes, watch), measured, context));
    setups::take_down(lanes);
    outcome
}

/// Checks that `--pong` is used only with the `loopback` set-up. Requests to a `pong` that the user provides are sent
/// only from this machine's network.
fn check_pong(args: &PingpongBenchArgs, setups: &[NetworkSetup]) -> Result<()> {
    let is_alone = setups.iter().all(|setup| setup.name == "loopback");
    match args.pong.is_some() && !is_alone {
        false => Ok(()),
        true => {
            let detail = "--pong works only with the set-up loopback, because others start their own pong; add \
                 --setup loopback";
            Err(Error::new(ErrorKind::InvalidArgument, detail))
        }
    }
}

/// An entry in the list of built-in set-ups.
#[derive(Serialize)]
struct BuiltinSetupDescription {
    name: String,
    description: String,
    /// Missing programs, each with its package.
    missing: Vec<String>,
    /// Placeholder words that `--set` must define.
    unset: Vec<String>,
    /// Whether this machine emulates the set-up's processor.
    emulated: bool,
}

impl std::fmt::Display for BuiltinSetupDescription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:<18}{}", self.name, self.description)?;
        if self.emulated {
            write!(f, " (emulated here)")?;
        }
        if !self.missing.is_empty() {
            write!(f, " (missing: {})", self.missing.join(", "))?;
        }
        if !self.unset.is_empty() {
            write!(f, " (needs --set {})", self.unset.join(", "))?;
        }
        Ok(())
    }
}

fn list(context: &CommandContext) -> Result<CommandExit> {
    for setup in NetworkSetup::all()? {
        let missing =
            setup.missing().iter().map(|need| format!("{} of {}", need.program, need.package)).collect();
        let unset = setup.variables.iter().filter(|(_, value)| value.is_empty());
        let unset = unset.map(|(word, _)| word.clone()).collect();
        let emulated = setup.emulates();
        let NetworkSetup { name, description, .. } = setup;
        context.output.record(&BuiltinSetupDescription { name, description, missing, unset, emulated })?;
    }
    Ok(CommandExit::Ok)
}

/// The combinations and message sizes to measure. All random choices derive from `seed`.
struct PingpongMeasurementPlan<'a> {
    args: &'a PingpongBenchArgs,
    points: &'a [PingpongParameterSet],
    range: MessageSizeRange,
    seed: u64,
    /// The processors of this machine.
    cores: Vec<usize>,
}

impl PingpongMeasurementPlan<'_> {
    /// Measures all rounds. A round measures all combinations in random order and, for each combination, all set-ups in
    /// random order. If a signal or an error ends the measurement early, returns the complete rounds with this error.
    /// Errors: the error that ended the measurement before a round was complete.
    fn measure(
        &self,
        lanes: &[MeasuredNetworkSetup],
        context: &CommandContext,
    ) -> Result<(SetupMeasurementBlocks, Option<Error>)> {
        let clock = RunClock::start();
        let mut measured = SetupMeasurementBlocks::new(self.points.len(), lanes.len());
        let mut random = SeededRandom::new(self.seed);
        let up: Vec<usize> = (0..lanes.len()).filter(|lane| lanes[*lane].running.is_ok()).collect();
        let total = self.args.rounds as u64 * (self.points.len() * up.len()) as u64;
        let (mut number, mut done) = (0, 0);
        for round in 0..self.args.rounds {
            let mut phases: Vec<usize> = (0..self.points.len()).collect();
            random.shuffle(&mut phases);
            for phase in phases {
                let mut order = up.clone();
                random.shuffle(&mut order);
                for lane in order {
                    let doing =
                        format_args!("{} {}", self.points[phase].label(), lanes[lane].label()).to_string();
                    context.output.steps(done, total, doing);
                    let Ok(running) = &lanes[lane].running else { continue };
                    let running = &running[self.points[phase].window];
                    let place = BlockPosition { lane: lane as u8, phase: phase as u8, round, block: number };
                    let block = self.block(running, &self.points[phase], place, clock, context);
                    // A block that a signal interrupts is shorter than the other blocks, or fails, so check for a
                    // signal first.
                    match context.interrupt.check().and(block) {
                        Ok(block) => measured.add(phase, lane, block),
                        Err(error) if round == 0 => return Err(error),
                        Err(error) => {
                            measured.keep_rounds(usize::from(round));
                            return Ok((measured, Some(error)));
                        }
                    }
                    done += 1;
                }
                // All set-ups of a combination have now completed the same block.
                number += 1;
            }
        }
        Ok((measured, None))
    }

    fn block(
        &self,
        running: &RunningNetworkSetup,
        point: &PingpongParameterSet,
        place: BlockPosition,
        clock: RunClock,
        context: &CommandContext,
    ) -> Result<LoadBlockResult> {
        if !self.args.cores.is_empty() {
            self.pin(running, point)?;
        }
        // All set-ups exchange messages of the same sizes.
        let sizes = Arc::new(MessageSizeSequence::new(
            self.range.draw(self.seed.wrapping_add(1 + u64::from(place.block))),
        ));
        let plan = LoadPlan {
            arrivals: ArrivalProcess::Closed,
            duration: self.args.timeout,
            requests: Some(sizes.len() as u64),
            warm_up: self.args.warm_up,
            threads: usize::from(point.concurrency),
            seed: self.seed,
            client_cpus: Vec::new(),
            // If the user provides `pong`, its process ID is unknown.
            server_pid: running.pong_id().filter(|_| self.args.pong.is_none()),
            keep_operations: true,
        };
        let keep = point.policy == ConnectionReuseArg::Kept;
        let unanswered = Arc::new(UnansweredMessages::new(self.args.timeout));
        let connect = |_| -> Result<Box<dyn rest::RequestChannel>> {
            if let Some(network) = running.ping_network() {
                network.enter()?;
            }
            Ok(Box::new(PingChannel::new(&running.ping_address, (&sizes, &unanswered), keep)?))
        };
        rest::run_block(&plan, place, clock, &connect, context.interrupt.flag(), &mut |_| ())
    }

    /// Pins `ping` to the first processors and `pong` to the last processors. If there are too few processors for both,
    /// the two sets overlap.
    fn pin(&self, running: &RunningNetworkSetup, point: &PingpongParameterSet) -> Result<()> {
        let count = point.cores.map_or(self.cores.len(), usize::from);
        let split = self.cores.len() - count;
        running.pin(PingpongSide::Ping, &self.cores[..count])?;
        running.pin(PingpongSide::Pong, &self.cores[split..])
    }
}

/// The measured blocks, grouped by combination and set-up.
struct SetupMeasurementBlocks(Vec<Vec<Vec<LoadBlockResult>>>);

impl SetupMeasurementBlocks {
    fn new(points: usize, lanes: usize) -> Self {
        SetupMeasurementBlocks((0..points).map(|_| (0..lanes).map(|_| Vec::new()).collect()).collect())
    }

    fn add(&mut self, point: usize, lane: usize, block: LoadBlockResult) {
        self.0[point][lane].push(block);
    }

    fn keep_rounds(&mut self, rounds: usize) {
        self.0.iter_mut().flatten().for_each(|blocks| blocks.truncate(rounds));
    }
}

/// The data that a run file contains in addition to the measurements.
struct PingpongRunMetadata<'a> {
    args: &'a PingpongBenchArgs,
    points: &'a [PingpongParameterSet],
    range: MessageSizeRange,
    seed: u64,
    machine: Machine,
    started: (jiff::Timestamp, Instant),
}

impl PingpongRunMetadata<'_> {
    /// Prints the table, and writes the run file if one was requested.
    fn report(
        self,
        (lanes, watch): (&[MeasuredNetworkSetup], MachineWatch),
        (measured, early_end): (SetupMeasurementBlocks, Option<Error>),
        context: &CommandContext,
    ) -> Result<CommandExit> {
        let args = self.args;
        let (mut run, records) = self.run(lanes, measured);
        if let Some(error) = &early_end {
            run.warnings.push(format!(
                "interrupted: the results cover only the rounds that were complete; the reason: {error}"
            ));
        }
        commands::judge_rounds(&mut run, &records, watch);
        commands::write_summaries(&run, context)?;
        context.output.text(&load_table(&run))?;
        commands::write_trust(&run, context)?;
        for lane in lanes {
            if let Some(problem) = lane.problem() {
                context.output.text(&format!("{}: not measured: {problem}", lane.label()))?;
            }
        }
        if let Some(dir) = &args.output.out {
            run_output::write(dir, &run, &records)?;
            context.output.text(&format!("run: {}", dir.display()))?;
        }
        Ok(early_end.map_or_else(|| exit(args, lanes, &run), |error| CommandExit::of(&error)))
    }

    fn run(
        self,
        lanes: &[MeasuredNetworkSetup],
        measured: SetupMeasurementBlocks,
    ) -> (RunDocument, RunRecords) {
        let (mut summaries, mut warnings, mut rows) = (Vec::new(), Vec::new(), Vec::new());
        for (point, of_point) in self.points.iter().zip(measured.0) {
            let all: Vec<LaneBlocks> =
                lanes.iter().zip(of_point).map(|(lane, blocks)| self.row(point, lane, blocks)).collect();
            for (lane, row) in all.iter().enumerate().filter(|(_, row)| !row.blocks.is_empty()) {
                let reference = (lane > 0).then(|| &all[0]);
                let mut summary = rest::summarise(row, reference);
                if let Some(load) = &mut summary.load {
                    // `ping` and `pong` count only the bytes of bodies, so the sizes of headers are unknown.
                    (load.header_sent_bytes_per_op, load.header_received_bytes_per_op) = (None, None);
                }
                warnings.extend(rest::warnings(row, &summary));
                summaries.push(summary);
            }
            rows.extend(all);
        }
        for lane in lanes {
            warnings.extend(remark(lane));
        }
        let lane = |lane: &MeasuredNetworkSetup| fordway_measure::RowDescription {
            name: lane.label(),
            description: lane.setup.description.clone(),
        };
        let run = RunDocument {
            schema: SCHEMA.into(),
            schema_version: SCHEMA_VERSION,
            fordway_version: env!("CARGO_PKG_VERSION").into(),
            kind: "pingpong".into(),
            started: self.started.0.to_string(),
            elapsed_ns: self.started.1.elapsed().as_nanos() as u64,
            command: std::env::args().collect(),
            parameters: self.parameters(lanes),
            machine: self.machine,
            lanes: lanes.iter().map(lane).collect(),
            phases: self.points.iter().map(PingpongParameterSet::label).collect(),
            summaries,
            scores: Vec::new(),
            warnings,
            conditions: None,
        };
        (run, rest::records(rows))
    }

    fn row(
        &self,
        point: &PingpongParameterSet,
        lane: &MeasuredNetworkSetup,
        blocks: Vec<LoadBlockResult>,
    ) -> LaneBlocks {
        let settings = SummaryRowLoadSettings {
            lane: lane.label(),
            phase: point.label(),
            arrivals: ArrivalProcess::Closed,
            uploads: false,
            connections: u64::from(point.concurrency),
            streams: 1,
            threads: u64::from(point.concurrency),
            cpus: self.machine.cpus_at_once(),
        };
        LaneBlocks { settings, blocks }
    }

    fn parameters(&self, lanes: &[MeasuredNetworkSetup]) -> Map<String, Value> {
        let args = self.args;
        let all = args.max - args.min + 1;
        let drawn = self.range.points * u64::from(args.rounds);
        let phase = |point: &PingpongParameterSet| {
            json!({
                "phase": point.label(),
                "connections": format!("{:?}", point.policy),
                "concurrency": point.concurrency,
                "cores": point.cores,
                "tcp_rmem_bytes": point.tcp_rmem_bytes,
            })
        };
        let parameters = json!({
            "seed": self.seed,
            "rounds": args.rounds,
            "min_bytes": args.min,
            "max_bytes": args.max,
            "scale": if args.scale == SizeDistributionArg::Log { "log" } else { "linear" },
            "points": self.range.points,
            "repetitions": args.repetitions,
            "coverage_at_most": (drawn as f64 / all as f64).min(1.0),
            "warm_up_ns": args.warm_up.as_nanos() as u64,
            "timeout_ns": args.timeout.as_nanos() as u64,
            "retries_at_most": args.retries,
            "pong": args.pong,
            "pong_options": args.pong_option,
            "wire": wire(args, None),
            "factors": self.points.iter().map(phase).collect::<Vec<_>>(),
            "setups": lanes.iter().map(described).collect::<Vec<_>>(),
        });
        match parameters {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }
}

/// Returns a note if the set-up was not measured, or if its processor is emulated.
fn remark(lane: &MeasuredNetworkSetup) -> Option<String> {
    let label = lane.label();
    match lane.problem() {
        Some(why) => Some(format!("{label} was not measured: {why}")),
        None if lane.setup.emulates() => Some(format!(
            "{label}: its processor is emulated in software, so its times differ from times on real hardware"
        )),
        None => None,
    }
}

/// Returns the set-up's entry in the run file. If the set-up is not running, the entry contains the reason.
fn described(lane: &MeasuredNetworkSetup) -> Value {
    let settings = lane.running.as_ref().map(|all| all.iter().map(|one| one.settings()).collect::<Vec<_>>());
    json!({
        "name": lane.label(),
        "emulated": lane.setup.emulates(),
        "started_in_ns": lane.started_in.as_nanos() as u64,
        "settings": settings.unwrap_or_default(),
        "problem": lane.problem(),
    })
}

/// Returns the exit code. `Unavailable` means that no message succeeded. The command also fails if a message failed, or
/// if a set-up that the user named could not be started. A default set-up that could not be started is not a failure.
fn exit(args: &PingpongBenchArgs, lanes: &[MeasuredNetworkSetup], run: &RunDocument) -> CommandExit {
    let nothing_succeeded = !run.summaries.iter().any(|summary| summary.operations > 0);
    let failed = run.summaries.iter().any(|summary| summary.errors > 0);
    let is_missing = !args.setup.is_empty() && lanes.iter().any(|lane| lane.running.is_err());
    match (nothing_succeeded, failed || is_missing) {
        (true, _) => CommandExit::Unavailable,
        (false, true) => CommandExit::Failure,
        (false, false) => CommandExit::Ok,
    }
}
