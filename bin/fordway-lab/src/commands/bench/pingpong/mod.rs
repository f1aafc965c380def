//! `bench pingpong`: messages over containers and overlay networks, beside bare ones.

mod points;
mod setups;
mod siege;
mod sizes;
mod summary;

use std::sync::Arc;
use std::time::Instant;

use fordway_command::{Context, Exit};
use fordway_measure::{Clock, Machine, Shuffle};
use fordway_netlab::setup::{Running, Setup, Side};
use fordway_store::{Error, ErrorKind, Result};
use fordway_workload::rest::{self, Arrivals, Block, Place, Plan};
use serde::Serialize;

use self::points::{Point, points};
use self::setups::Lane;
use self::siege::{Siege, Sizes};
use self::sizes::Range;
use self::summary::{Facts, Measured};
use crate::args::{PingpongBenchArgs, PolicyArg};

pub(super) fn run(args: &PingpongBenchArgs, context: &Context) -> Result<Exit> {
    if args.list {
        return list(context);
    }
    let seed = match args.seed {
        Some(seed) => seed,
        None => {
            u64::from(getrandom::u32().map_err(|e| Error::new(ErrorKind::Io, "no random seed").caused_by(e))?)
        }
    };
    let started = (jiff::Timestamp::now(), Instant::now());
    let machine = Machine::observe(&[]);
    let cores = fordway_sys::usable_cores();
    let (points, range) = (points(args, cores.len())?, Range::new(args)?);
    let setups = setups::chosen(args)?;
    check_pong(args, &setups)?;
    context.output.start_steps();
    let lanes = setups::bring_up(args, setups, context)?;
    let task = Task { args, points: &points, range, seed, cores };
    let measured = task.measure(&lanes, context);
    context.output.end_progress();
    let facts = Facts { args, points: &points, range, seed, machine, started };
    let outcome = measured.and_then(|measured| facts.report(&lanes, measured, context));
    setups::take_down(lanes);
    outcome
}

/// A pong of the user's is asked from the network of this machine only.
fn check_pong(args: &PingpongBenchArgs, setups: &[Setup]) -> Result<()> {
    let is_alone = setups.iter().all(|setup| setup.name == "loopback");
    match args.pong.is_some() && !is_alone {
        false => Ok(()),
        true => {
            let detail =
                "--pong is for the set-up loopback: others bring a pong of their own; add --setup loopback";
            Err(Error::new(ErrorKind::InvalidArgument, detail))
        }
    }
}

/// A set-up in the list of those that are built in.
#[derive(Serialize)]
struct Listed {
    name: String,
    description: String,
    /// Programs that are missing, each with its package.
    missing: Vec<String>,
    /// Words that must be said by `--set`.
    unset: Vec<String>,
    /// Whether its processor is emulated, on this machine.
    emulated: bool,
}

impl std::fmt::Display for Listed {
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

fn list(context: &Context) -> Result<Exit> {
    for setup in Setup::all()? {
        let missing =
            setup.missing().iter().map(|need| format!("{} of {}", need.program, need.package)).collect();
        let unset = setup.variables.iter().filter(|(_, value)| value.is_empty());
        let unset = unset.map(|(word, _)| word.clone()).collect();
        let emulated = setup.emulates();
        let Setup { name, description, .. } = setup;
        context.output.record(&Listed { name, description, missing, unset, emulated })?;
    }
    Ok(Exit::Ok)
}

/// What is measured.
struct Task<'a> {
    args: &'a PingpongBenchArgs,
    points: &'a [Point],
    range: Range,
    seed: u64,
    /// The processors that there are.
    cores: Vec<usize>,
}

impl Task<'_> {
    /// Measures all combinations in each round, in random order, and for each of them all set-ups, likewise.
    fn measure(&self, lanes: &[Lane], context: &Context) -> Result<Measured> {
        let clock = Clock::start();
        let mut measured = Measured::new(self.points.len(), lanes.len());
        let mut random = Shuffle::new(self.seed);
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
                    context.interrupt.check()?;
                    let doing =
                        format_args!("{} {}", self.points[phase].label(), lanes[lane].label()).to_string();
                    context.output.steps(done, total, doing);
                    let Ok(running) = &lanes[lane].running else { continue };
                    let running = &running[self.points[phase].window];
                    let place = Place { lane: lane as u8, phase: phase as u8, round, block: number };
                    measured.add(
                        phase,
                        lane,
                        self.block(running, &self.points[phase], place, clock, context)?,
                    );
                    done += 1;
                }
                number += 1;
            }
        }
        Ok(measured)
    }

    fn block(
        &self,
        running: &Running,
        point: &Point,
        place: Place,
        clock: Clock,
        context: &Context,
    ) -> Result<Block> {
        if !self.args.cores.is_empty() {
            self.pin(running, point)?;
        }
        // The same messages for all set-ups.
        let sizes = Arc::new(Sizes::new(self.range.draw(self.seed.wrapping_add(1 + u64::from(place.block)))));
        let plan = Plan {
            arrivals: Arrivals::Closed,
            duration: self.args.timeout,
            requests: Some(sizes.len() as u64),
            warm_up: self.args.warm_up,
            threads: usize::from(point.concurrency),
            seed: self.seed,
            client_cpus: Vec::new(),
            // A pong that was there already is no process that we know.
            server_pid: running.pong_id().filter(|_| self.args.pong.is_none()),
            keep_operations: true,
        };
        let keep = point.policy == PolicyArg::Kept;
        let connect = |_| -> Result<Box<dyn rest::Channel>> {
            if let Some(network) = running.ping_network() {
                network.enter()?;
            }
            let siege = Siege::new(&running.ping_address, Arc::clone(&sizes), keep, self.args.timeout)?;
            Ok(Box::new(siege))
        };
        rest::run_block(&plan, place, clock, &connect, context.interrupt.flag(), &mut |_| ())
    }

    /// Ping on the first processors, pong on the last; where there are too few for both, they share.
    fn pin(&self, running: &Running, point: &Point) -> Result<()> {
        let count = point.cores.map_or(self.cores.len(), usize::from);
        let split = self.cores.len() - count;
        running.pin(Side::Ping, &self.cores[..count])?;
        running.pin(Side::Pong, &self.cores[split..])
    }
}
