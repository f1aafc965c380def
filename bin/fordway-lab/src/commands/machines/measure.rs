//! `machines measure`: measures a machine's features, each several times, in round-robin order. One of the features is
//! the rate of GETs of a small object on each lane that has a gateway.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind as IoErrorKind, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fordway_command::{CommandContext, CommandExit, InterruptFlag, file_error};
use fordway_machine::{MachineEntry, MachineFeature};
use fordway_measure::{Machine, RunReliability, RunReliabilityReport, median};
use fordway_posix::Durability;
use fordway_store::{Bucket, ETagPolicy, Error, ErrorKind, GetOptions, Key, PutOptions, Result, Store};
use serde::Serialize;

use super::probe::{StreamTriadParameters, usable_memory_bytes};
use super::tools::{self, MeasuredDisk};
use super::{ProbedQuantity, catalogue};
use crate::args::MeasureArgs;
use crate::commands::gateway::GatewayProcess;

/// The name of the JSON schema.
const SCHEMA: &str = "fordway.machine";
const BYTES_PER_MB: f64 = 1e6;

/// A benchmark that runs several times; each run returns one value for each of its features.
struct MachineBenchmark<'a> {
    features: &'static [MachineFeature],
    how: String,
    run: Box<dyn FnMut() -> Result<Vec<f64>> + 'a>,
}

/// The output of `machines measure`, printed as text or as JSON.
#[derive(Serialize)]
struct MachineMeasurements {
    schema: &'static str,
    name: String,
    machine: Machine,
    features: Vec<FeatureMeasurement>,
    conditions: RunReliabilityReport,
}

/// A feature and its measured values. The result is the median of the values.
#[derive(Serialize)]
struct FeatureMeasurement {
    #[serde(skip)]
    feature: MachineFeature,
    #[serde(flatten)]
    quantity: ProbedQuantity,
    values: Vec<f64>,
}

pub(super) fn run(args: &MeasureArgs, context: &CommandContext) -> Result<CommandExit> {
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    let name = args.name.clone().unwrap_or_else(host);
    // Check the catalogue first, because the measurement takes about a minute.
    args.catalogue.as_deref().map_or(Ok(()), |file| check_new(file, &name))?;
    let machine = Machine::observe(&[("disk", &args.disk)]);
    if cfg!(debug_assertions) {
        context.output.note("this is a debug build: triad and GETs are slower than the machine allows");
    }
    let watch = super::watch(args.trust, args.peer.as_deref())?;
    let features = measure(args, &machine, context)?;
    let is_early = context.interrupt.is_raised();
    let measured =
        MachineMeasurements { schema: SCHEMA, name, machine, features, conditions: watch.conditions() };
    match &args.catalogue {
        Some(_) if is_early => {
            context.output.note("not added to the catalogue: the measurement is incomplete")
        }
        Some(file) => {
            add(file, &measured.entry()?)?;
            context.output.note(&format!("added {} to {}", measured.name, file.display()));
        }
        None => {}
    }
    context.output.record(&measured)?;
    Ok(if is_early { super::interrupted(context) } else { CommandExit::Ok })
}

fn measure(
    args: &MeasureArgs,
    machine: &Machine,
    context: &CommandContext,
) -> Result<Vec<FeatureMeasurement>> {
    let disk = MeasuredDisk::new(&args.disk, args.disk_size)?;
    let mut features = vec![count(
        MachineFeature::Threads,
        machine.cpus_at_once() as f64,
        "processors that a process can use",
    )];
    features.extend(usable_memory_bytes(machine).map(|bytes| {
        let how = "MemTotal of /proc/meminfo, or the limit of this process's control groups";
        count(MachineFeature::Memory, bytes as f64 / BYTES_PER_MB, how)
    }));
    let mut benchmarks = benchmarks(args, machine, &disk, context);
    let is_asked = |feature: &MachineFeature| args.features.is_empty() || args.features.contains(feature);
    benchmarks.retain(|benchmark| benchmark.features.iter().any(is_asked));
    features.extend(in_turn(&mut benchmarks, args.rounds, context)?);
    features.retain(|measurement| is_asked(&measurement.feature));
    features.sort_by_key(|measurement| measurement.feature);
    Ok(features)
}

fn count(feature: MachineFeature, value: f64, how: &str) -> FeatureMeasurement {
    let quantity = ProbedQuantity::new(feature.name(), value, feature.unit(), how);
    FeatureMeasurement { feature, quantity, values: vec![value] }
}

fn benchmarks<'a>(
    args: &'a MeasureArgs,
    machine: &'a Machine,
    disk: &'a MeasuredDisk,
    context: &'a CommandContext,
) -> Vec<MachineBenchmark<'a>> {
    let interrupt = &context.interrupt;
    let peer = args.peer.as_deref();
    let mut all = vec![
        one(&[MachineFeature::CpuTime], tools::tachyon_how(), move || tools::tachyon(interrupt)),
        triad(machine, interrupt),
        MachineBenchmark {
            features: &[MachineFeature::DiskWrite, MachineFeature::DiskRead],
            how: disk.how(),
            run: Box::new(move || disk.write_and_read(interrupt)),
        },
        one(
            if peer.is_some() { &[MachineFeature::Network] } else { &[MachineFeature::Loopback] },
            tools::iperf3_how(peer),
            move || tools::iperf3(peer, interrupt),
        ),
    ];
    if args.lanes {
        all.push(gets(&[MachineFeature::NodeGet], ObjectGetBenchmark::by_node, disk, context));
        all.push(gets(&[MachineFeature::HttpGet], ObjectGetBenchmark::by_http, disk, context));
    }
    all
}

/// Creates a benchmark of one feature.
fn one<'a>(
    features: &'static [MachineFeature],
    how: String,
    mut run: impl FnMut() -> Result<f64> + 'a,
) -> MachineBenchmark<'a> {
    MachineBenchmark { features, how, run: Box::new(move || run().map(|value| vec![value])) }
}

fn triad<'a>(machine: &Machine, interrupt: &'a InterruptFlag) -> MachineBenchmark<'a> {
    let triad = StreamTriadParameters::of(machine, usable_memory_bytes(machine));
    let how = triad.as_ref().map_or_else(|_| String::new(), StreamTriadParameters::how);
    one(&[MachineFeature::MemoryTriad], how, move || match &triad {
        Ok(triad) => triad.mb_per_s(interrupt),
        Err(error) => Err(Error::new(error.kind(), error.detail())),
    })
}

/// Creates the benchmark of a lane. The lane's gateway is started in the first round and keeps running in later rounds.
fn gets<'a>(
    features: &'static [MachineFeature],
    start: fn(&Path) -> Result<ObjectGetBenchmark>,
    disk: &'a MeasuredDisk,
    context: &'a CommandContext,
) -> MachineBenchmark<'a> {
    let mut started = None;
    let run = move || {
        let gets = match started.take() {
            Some(gets) => gets,
            None => start(disk.path())?,
        };
        let per_s = gets.per_s(&context.interrupt)?;
        started = Some(gets);
        Ok(per_s)
    };
    one(features, HOW.to_owned(), run)
}

/// Runs all benchmarks and reports the results. After a signal, the results cover the complete rounds. Errors: only
/// `Interrupted`, if no round was complete.
fn in_turn(
    benchmarks: &mut [MachineBenchmark],
    rounds: u16,
    context: &CommandContext,
) -> Result<Vec<FeatureMeasurement>> {
    context.output.start_steps();
    let found = run_in_turn(benchmarks, rounds, context);
    context.output.end_progress();
    let summaries = benchmarks.iter().zip(found?).flat_map(|(benchmark, found)| benchmark.summary(&found));
    Ok(summaries.collect())
}

/// The values from each round of a benchmark, or the error after which the benchmark was not run again.
type BenchmarkRoundResults = Result<Vec<Vec<f64>>>;

/// Runs the benchmarks in round-robin order, so that changes on the machine affect all of them. A benchmark that has
/// failed is not run again. Errors: only `Interrupted`, if a signal arrives before a round is complete.
fn run_in_turn(
    benchmarks: &mut [MachineBenchmark],
    rounds: u16,
    context: &CommandContext,
) -> Result<Vec<BenchmarkRoundResults>> {
    let mut found: Vec<BenchmarkRoundResults> = benchmarks.iter().map(|_| Ok(Vec::new())).collect();
    let total = u64::from(rounds) * benchmarks.len() as u64;
    for step in 0..total {
        let at = step as usize % benchmarks.len();
        context.output.steps(step, total, benchmarks[at].features[0].name());
        let new = match (&found[at], context.interrupt.check()) {
            (_, Err(interrupted)) => Err(interrupted),
            (Err(_), Ok(())) => continue,
            (Ok(_), Ok(())) => (benchmarks[at].run)(),
        };
        match (new, &mut found[at]) {
            (Ok(new), Ok(values)) => values.push(new),
            (Err(error), _) if error.kind() == ErrorKind::Interrupted => {
                let complete = step as usize / benchmarks.len();
                keep_rounds(&mut found, complete);
                return if complete > 0 { Ok(found) } else { Err(error) };
            }
            (Err(error), _) => found[at] = Err(error),
            (Ok(_), Err(_)) => {}
        }
    }
    Ok(found)
}

fn keep_rounds(found: &mut [BenchmarkRoundResults], rounds: usize) {
    found.iter_mut().flatten().for_each(|values| values.truncate(rounds));
}

impl MachineBenchmark<'_> {
    fn summary(&self, found: &BenchmarkRoundResults) -> Vec<FeatureMeasurement> {
        let of = |(at, feature): (usize, &MachineFeature)| {
            let (name, unit) = (feature.name(), feature.unit());
            let values =
                found.as_ref().map_or_else(|_| Vec::new(), |rounds| rounds.iter().map(|r| r[at]).collect());
            let quantity = match (found, median(&values)) {
                (Ok(_), Some(value)) => ProbedQuantity::new(
                    name,
                    value,
                    unit,
                    format!("{}; median of {}", self.how, values.len()),
                ),
                (Err(error), _) => ProbedQuantity::unknown(name, unit, error.detail()),
                (Ok(_), None) => ProbedQuantity::unknown(name, unit, "not run"),
            };
            FeatureMeasurement { feature: *feature, quantity, values }
        };
        self.features.iter().enumerate().map(of).collect()
    }
}

impl MachineMeasurements {
    /// Returns the entry for a catalogue. Errors: `InvalidArgument` for an invalid feature value. No measurement
    /// returns such a value.
    fn entry(&self) -> Result<MachineEntry> {
        let mut entry = MachineEntry::new(&self.name);
        if self.conditions.verdict != RunReliability::Measured {
            entry.doubt(self.conditions.to_string().trim_start_matches("conditions: "));
        }
        for FeatureMeasurement { feature, quantity, .. } in &self.features {
            match quantity.value {
                Some(value) => {
                    entry.set(*feature, value)?;
                    entry.explain(*feature, &quantity.how);
                }
                None => entry.explain(*feature, &format!("not measured: {}", quantity.how)),
            }
        }
        Ok(entry)
    }
}

impl fmt::Display for MachineMeasurements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        for FeatureMeasurement { quantity: ProbedQuantity { name, value, unit, how }, .. } in &self.features {
            let text = value.map_or_else(|| "not measured".to_owned(), |value| super::figure(value, unit));
            write!(f, "\n{name:<22} {text:>14}  {how}")?;
        }
        write!(f, "\n{}", self.conditions)
    }
}

/// Checks that a machine called `name` can be added to the catalogue. Errors: `InvalidArgument` if the file is not a
/// catalogue, or already contains that machine.
fn check_new(file: &Path, name: &str) -> Result<()> {
    match fs::metadata(file) {
        Err(error) if error.kind() == IoErrorKind::NotFound => return Ok(()),
        Ok(found) if found.len() == 0 => return Ok(()),
        _ => {}
    }
    if catalogue(file)?.entries().iter().any(|entry| entry.name == name) {
        let why = format!(
            "{} already contains the machine {name}; give another --name, or remove that machine",
            file.display()
        );
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    Ok(())
}

/// Appends the entry to the file, so that the catalogue's comments and order are preserved.
fn add(file: &Path, entry: &MachineEntry) -> Result<()> {
    let failed = |error| file_error("writing", file.display(), error);
    let mut file = OpenOptions::new().create(true).append(true).open(file).map_err(failed)?;
    let gap = if file.metadata().map_err(failed)?.len() > 0 { "\n" } else { "" };
    file.write_all(format!("{gap}{}", entry.to_toml()).as_bytes()).map_err(failed)
}

const OBJECT_BYTES: usize = 4 << 10;
/// The duration of one measurement of GETs.
const DURATION: Duration = Duration::from_secs(1);
/// The number of GETs between two readings of the clock.
const BATCH: usize = 64;

/// A lane's gateway and an object to get from it.
pub(super) struct ObjectGetBenchmark {
    store: Arc<dyn Store>,
    bucket: Bucket,
    key: Key,
    // The gateway is the last field, so that it is dropped after the store's connections.
    _gateway: GatewayProcess,
}

pub(super) const HOW: &str = "GETs of 4 KiB by one thread for 1 s, from a gateway on the directory of --disk";

impl ObjectGetBenchmark {
    /// Starts a gateway of the node lane in `root`.
    pub(super) fn by_node(root: &Path) -> Result<Self> {
        Self::new(GatewayProcess::start_node(root, ETagPolicy::Fast, Durability::None)?, "machines-node")
    }

    /// Starts an HTTP gateway in `root`.
    pub(super) fn by_http(root: &Path) -> Result<Self> {
        Self::new(GatewayProcess::start(root, ETagPolicy::Fast, Durability::None)?, "machines-http")
    }

    fn new(gateway: GatewayProcess, bucket: &str) -> Result<Self> {
        let (store, bucket, key) = (gateway.client()?, Bucket::new(bucket)?, Key::new("object")?);
        store.create_bucket(&bucket)?;
        store.put(&bucket, &key, &[7; OBJECT_BYTES], &PutOptions::default())?;
        Ok(ObjectGetBenchmark { store, bucket, key, _gateway: gateway })
    }

    /// Measures GETs per second.
    pub(super) fn per_s(&self, interrupt: &InterruptFlag) -> Result<f64> {
        let (options, mut buffer) = (GetOptions::default(), Vec::new());
        let (since, mut done) = (Instant::now(), 0);
        while since.elapsed() < DURATION {
            interrupt.check()?;
            for _ in 0..BATCH {
                self.store.read(&self.bucket, &self.key, &options, &mut buffer)?;
            }
            done += BATCH;
        }
        Ok(done as f64 / since.elapsed().as_secs_f64())
    }
}
