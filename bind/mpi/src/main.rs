//! The workloads of `fordway bench` on the ranks of an MPI job: `mpirun -n 4 fordway-mpi ior DIRECTORY`.

mod stencil;
mod team;
mod transport;
mod watch;

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clap::{Args, Parser, Subcommand};
use fordway_lanes::LaneConfigOverrides;
use fordway_measure::{Machine, RowDescription, RunClock, RunDocument, doubts_about_modes, result_file};
use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{Signal, is_ignored};
use fordway_workload::bench::{MeasuredLane, MeasurementArgs, RunMetadata, WorkloadPlan, describe};
use fordway_workload::io500::{self, Io500Plan};
use fordway_workload::ior::IorPlan;
use fordway_workload::mdtest::MdtestPlan;
use fordway_workload::mdworkbench::MdworkbenchPlan;
use fordway_workload::options::{ForceArgs, with_new_name};
use fordway_workload::report::table;
use fordway_workload::team::usable_processors;
use fordway_workload::{RankTeam, RunControl, WorkloadLocation, WorkloadRank, run_output};
use mpi::topology::SimpleCommunicator;
use mpi::traits::Communicator;
use signal_hook::iterator::Signals;

use self::stencil::StencilArgs;
use self::team::MpiTeam;
use self::transport::MpiTransportBenchArgs;
use self::watch::NodeWatch;

/// Set by SIGINT, SIGTERM and SIGHUP. `mpirun` forwards some of them to the ranks.
static STOP: AtomicBool = AtomicBool::new(false);

/// Run I/O workloads on the ranks of an MPI job, on plain files, objects in a directory, or S3
#[derive(Parser)]
#[command(name = "fordway-mpi", version, max_term_width = 100)]
#[command(after_help = "Examples:
  mpirun -n 4 fordway-mpi ior /lustre/scratch file:///lustre/scratch
  srun fordway-mpi io500 file:///lustre/scratch --stonewall 300")]
struct MpiCommandLine {
    #[command(subcommand)]
    benchmark: MpiBenchmark,
}

#[derive(Subcommand)]
enum MpiBenchmark {
    /// Measure the bandwidth of large files, written and read in blocks of transfers
    Ior(MpiBenchmarkArgs<IorPlan>),
    /// Measure the rates of creating, querying, reading and removing many small files
    Mdtest(MpiBenchmarkArgs<MdtestPlan>),
    /// Measure the latency of each operation on data sets of constant size
    Mdworkbench(MpiBenchmarkArgs<MdworkbenchPlan>),
    /// Run the phases of IO500 in order, and compute its scores
    Io500(MpiBenchmarkArgs<Io500Plan>),
    /// Measure latency and bandwidth between two ranks, for messages of many sizes
    Transport(MpiTransportBenchArgs),
    /// Run a 2-D heat stencil, a test program for `fordway speedup`
    Stencil(StencilArgs),
}

#[derive(Args)]
struct MpiBenchmarkArgs<P: Args> {
    #[command(flatten)]
    setting: MeasurementArgs,
    #[command(flatten)]
    plan: P,
    #[command(flatten)]
    trust: ForceArgs,
}

impl MpiBenchmark {
    /// Runs on the ranks of `world`; returns whether every operation succeeded.
    fn run(self, world: SimpleCommunicator) -> Result<bool> {
        let (workload, setting, trust) = match self {
            MpiBenchmark::Ior(job) => (WorkloadPlan::Ior(job.plan), job.setting, job.trust),
            MpiBenchmark::Mdtest(job) => (WorkloadPlan::Mdtest(job.plan), job.setting, job.trust),
            MpiBenchmark::Mdworkbench(job) => (WorkloadPlan::Mdworkbench(job.plan), job.setting, job.trust),
            MpiBenchmark::Io500(job) => (WorkloadPlan::Io500(job.plan), job.setting, job.trust),
            MpiBenchmark::Transport(args) => return transport::run_ranks(&args, &world, &STOP),
            MpiBenchmark::Stencil(args) => return stencil::run(&args, &world),
        };
        run(&workload, &setting, trust, &MpiTeam::new(world))
    }
}

#[global_allocator]
static ALLOCATOR: fordway_sys::HalfPageAllocator = fordway_sys::HalfPageAllocator;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let cli = MpiCommandLine::try_parse().unwrap_or_else(|error| with_new_name(error, &words).exit());
    let benchmark = cli.benchmark;
    if matches!(&benchmark, MpiBenchmark::Transport(args) if args.which) {
        println!("{}", transport::library());
        return ExitCode::SUCCESS;
    }
    let Some(universe) = mpi::initialize() else {
        eprintln!(
            "fordway-mpi: MPI could not be started; run fordway-mpi with mpirun or srun of the MPI that it \
             was built for"
        );
        return ExitCode::FAILURE;
    };
    let world = universe.world();
    let rank = world.rank();
    end_the_job_on_panic(rank);
    if let Err(error) = stop_on_signals() {
        eprintln!("fordway-mpi: cannot handle signals: {error}");
    }
    match benchmark.run(world) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // All ranks receive the same error, so only one rank prints the error.
            if rank == 0 {
                eprintln!("fordway-mpi: {error}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Makes signals stop the workload. A signal that is ignored when the process starts, such as SIGHUP under `nohup`,
/// stays ignored.
fn stop_on_signals() -> std::io::Result<()> {
    let caught = [Signal::INT, Signal::TERM, Signal::HUP].into_iter().filter(|signal| !is_ignored(*signal));
    let mut signals = Signals::new(caught.map(Signal::as_raw))?;
    let wait = move || signals.forever().for_each(|_| STOP.store(true, Ordering::Relaxed));
    std::thread::Builder::new().name("fordway-signals".to_owned()).spawn(wait).map(drop)
}

/// Makes a panic in any rank abort the job, so that the other ranks do not wait for that rank.
fn end_the_job_on_panic(rank: i32) {
    std::panic::set_hook(Box::new(move |panic| {
        eprintln!("fordway-mpi: rank {rank} failed, which ends the job: {panic}");
        mpi::topology::SimpleCommunicator::world().abort(1);
    }));
}

/// Runs a workload on the ranks of `team`; returns whether every operation succeeded and no signal
/// stopped the run.
fn run(workload: &WorkloadPlan, setting: &MeasurementArgs, trust: ForceArgs, team: &MpiTeam) -> Result<bool> {
    let show = |_: &str, _: u64| {};
    let control = RunControl::new(&STOP, &show);
    let crew = WorkloadRank::new(team, &control, RunClock::start());
    let path = setting.path(workload);
    crew.first_does(|| run_output::check(&path))?;
    let opened = open(setting);
    let (sites, outcome) = opened.map_or_else(|error| (Vec::new(), Err(error)), |sites| (sites, Ok(())));
    // All ranks must fail together. If only this rank failed, the other ranks would wait for it in the workload.
    crew.agree(outcome)?;
    let started = (jiff::Timestamp::now(), Instant::now());
    let dirs: Vec<(&str, &Path)> = setting.places.iter().map(|place| ("root", Path::new(place))).collect();
    let mut machine = Machine::observe(&dirs);
    // The counters of a phase are sums over all ranks, so the processors of all ranks are counted.
    machine.cpus = usable_processors(team)?.unwrap_or(machine.cpus * team.size());
    let has_unknown_servers = sites.iter().any(WorkloadLocation::has_unknown_server);
    let watch = NodeWatch::start((&crew, team), trust.force, has_unknown_servers)?;
    let measured = setting.run(workload, &crew, &sites)?;
    let header = RunMetadata {
        cpus_at_once: machine.cpus,
        machine,
        started: started.0.to_string(),
        elapsed: started.1.elapsed(),
        ranks: team.size(),
        parameters: setting.parameters(),
    };
    let (mut run, records) = describe(workload, header, &measured);
    if let Some(mut conditions) = watch.conditions(team)? {
        doubts_about_modes(&run, &records).into_iter().for_each(|doubt| conditions.doubt(doubt));
        run.add_conditions(conditions);
    }
    let is_good = measured.early_end.is_none() && run.summaries.iter().all(|summary| summary.errors == 0);
    crew.first_does(|| {
        run.write(&path, &records).map_err(|error| Error::new(ErrorKind::Io, error.to_string()))?;
        report(workload, &run, &measured.lanes, &path)
    })?;
    Ok(is_good)
}

/// Opens each target as a separate location. Errors: `InvalidArgument` if there is no target; errors of the lanes.
fn open(setting: &MeasurementArgs) -> Result<Vec<WorkloadLocation>> {
    if setting.places.is_empty() {
        let why = "give at least one TARGET: a DIRECTORY, file:///DIRECTORY or http(s)://HOST[:PORT]";
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let mut sites: Vec<WorkloadLocation> = Vec::new();
    for place in &setting.places {
        if !place.contains("://") {
            sites.push(WorkloadLocation::files(Path::new(place), setting.name.clone()));
            continue;
        }
        let options = LaneConfigOverrides { endpoint: Some(place.clone()), ..LaneConfigOverrides::default() };
        let store = fordway_lanes::open(&options)?.store;
        let lane = RowDescription { name: store.lane().to_owned(), description: format!("S3 on {place}") };
        sites.push(WorkloadLocation::objects(lane, store, setting.name.clone(), None));
    }
    WorkloadLocation::number_lanes(&mut sites);
    Ok(sites)
}

/// Prints the table, warnings and scores on rank 0, and writes the scores to the run file.
fn report(workload: &WorkloadPlan, run: &RunDocument, lanes: &[MeasuredLane], path: &Path) -> Result<()> {
    println!("{}", table(run, lanes));
    run.conditions.iter().for_each(|conditions| println!("{conditions}"));
    run.warnings.iter().for_each(|warning| eprintln!("fordway-mpi: warning: {warning}"));
    if let WorkloadPlan::Io500(plan) = workload {
        for (score, text) in io500::score(plan, lanes, run.conditions.as_ref()) {
            let file = path.join(result_file(&score.lane));
            std::fs::write(&file, &text).map_err(|error| {
                Error::new(ErrorKind::Io, format!("writing {}", file.display())).caused_by(error)
            })?;
            println!("{}: {}", score.lane, text.lines().last().unwrap_or_default());
        }
    }
    println!("run: {}", path.display());
    Ok(())
}
