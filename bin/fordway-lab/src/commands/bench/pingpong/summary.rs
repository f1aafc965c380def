//! From blocks to the run file and the table.

use std::time::Instant;

use fordway_command::{Context, Exit};
use fordway_measure::{Machine, Records, Run, SCHEMA, SCHEMA_VERSION, load_table};
use fordway_store::{Error, ErrorKind, Result};
use fordway_workload::rest::{self, Arrivals, Block, LaneBlocks, Settings};
use serde_json::{Map, Value, json};

use super::points::Point;
use super::setups::{Lane, wire};
use super::sizes::Range;
use crate::args::{PingpongBenchArgs, ScaleArg};

/// The blocks of each combination and set-up.
pub(super) struct Measured(Vec<Vec<Vec<Block>>>);

impl Measured {
    pub(super) fn new(points: usize, lanes: usize) -> Self {
        Measured((0..points).map(|_| (0..lanes).map(|_| Vec::new()).collect()).collect())
    }

    pub(super) fn add(&mut self, point: usize, lane: usize, block: Block) {
        self.0[point][lane].push(block);
    }
}

/// What is known of a run besides what was measured.
pub(super) struct Facts<'a> {
    pub(super) args: &'a PingpongBenchArgs,
    pub(super) points: &'a [Point],
    pub(super) range: Range,
    pub(super) seed: u64,
    pub(super) machine: Machine,
    pub(super) started: (jiff::Timestamp, Instant),
}

impl Facts<'_> {
    /// Prints the table, and writes the run where that was asked for.
    pub(super) fn report(self, lanes: &[Lane], measured: Measured, context: &Context) -> Result<Exit> {
        let args = self.args;
        let (run, records) = self.run(lanes, measured);
        for summary in &run.summaries {
            context.output.row(summary)?;
        }
        context.output.text(&load_table(&run))?;
        for warning in &run.warnings {
            context.output.note(&format!("warning: {warning}"));
        }
        for lane in lanes {
            if let Some(problem) = lane.problem() {
                context.output.text(&format!("{}: not measured: {problem}", lane.label()))?;
            }
        }
        if let Some(dir) = &args.run {
            run.write(dir, &records).map_err(|e| Error::new(ErrorKind::Io, e.to_string()))?;
            context.output.text(&format!("run: {}", dir.display()))?;
        }
        Ok(exit(args, lanes, &run))
    }

    fn run(self, lanes: &[Lane], measured: Measured) -> (Run, Records) {
        let (mut summaries, mut warnings, mut rows) = (Vec::new(), Vec::new(), Vec::new());
        for (point, of_point) in self.points.iter().zip(measured.0) {
            let all: Vec<LaneBlocks> =
                lanes.iter().zip(of_point).map(|(lane, blocks)| self.row(point, lane, blocks)).collect();
            for (lane, row) in all.iter().enumerate().filter(|(_, row)| !row.blocks.is_empty()) {
                let reference = (lane > 0).then(|| &all[0]);
                let mut summary = rest::summarise(row, reference, self.seed);
                if let Some(load) = &mut summary.load {
                    // Only bodies are counted here.
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
        let lane = |lane: &Lane| fordway_measure::Lane {
            name: lane.label(),
            description: lane.setup.description.clone(),
        };
        let run = Run {
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
            phases: self.points.iter().map(Point::label).collect(),
            summaries,
            scores: Vec::new(),
            warnings,
        };
        (run, rest::records(rows))
    }

    fn row(&self, point: &Point, lane: &Lane, blocks: Vec<Block>) -> LaneBlocks {
        let settings = Settings {
            lane: lane.label(),
            phase: point.label(),
            arrivals: Arrivals::Closed,
            uploads: false,
            connections: u64::from(point.concurrency),
            streams: 1,
            threads: u64::from(point.concurrency),
            cpus: self.machine.cpus,
        };
        LaneBlocks { settings, blocks }
    }

    fn parameters(&self, lanes: &[Lane]) -> Map<String, Value> {
        let args = self.args;
        let all = args.max - args.min + 1;
        let drawn = self.range.points * u64::from(args.rounds);
        let phase = |point: &Point| {
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
            "scale": if args.scale == ScaleArg::Log { "log" } else { "linear" },
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

/// What is to be known before a set-up's figures are believed.
fn remark(lane: &Lane) -> Option<String> {
    let label = lane.label();
    match lane.problem() {
        Some(why) => Some(format!("{label} was not measured: {why}")),
        None if lane.setup.emulates() => Some(format!(
            "{label}: a program emulates its processor, so its times are not those of a machine of its kind"
        )),
        None => None,
    }
}

/// What a set-up was like, or why it was not.
fn described(lane: &Lane) -> Value {
    let settings = lane.running.as_ref().map(|all| all.iter().map(|one| one.settings()).collect::<Vec<_>>());
    json!({
        "name": lane.label(),
        "emulated": lane.setup.emulates(),
        "started_in_ns": lane.started_in.as_nanos() as u64,
        "settings": settings.unwrap_or_default(),
        "problem": lane.problem(),
    })
}

/// A set-up that was named and is not there is a failure; one of the usual ones is not.
fn exit(args: &PingpongBenchArgs, lanes: &[Lane], run: &Run) -> Exit {
    let nothing_succeeded = !run.summaries.iter().any(|summary| summary.operations > 0);
    let failed = run.summaries.iter().any(|summary| summary.errors > 0);
    let is_missing = !args.setup.is_empty() && lanes.iter().any(|lane| lane.running.is_err());
    match (nothing_succeeded, failed || is_missing) {
        (true, _) => Exit::Unavailable,
        (false, true) => Exit::Failure,
        (false, false) => Exit::Ok,
    }
}
