//! Measures messages between two ranks, either for `fordway bench transport` or standalone.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use clap::Args;
use fordway_measure::{Machine, RowDescription, RunClock, transfer_table};
use fordway_store::{Error, ErrorKind, Result};
use fordway_workload::options::ForceArgs;
use fordway_workload::summary::RunFileHeader;
use fordway_workload::transport::{
    LinkTransport, MessageLink, MessageTransport, MpiJobHello, MpiJobProcess, TransportMessageArgs, answer,
    describe, follow, run,
};
use fordway_workload::{RunControl, WorkloadRank, run_output};
use mpi::Rank;
use mpi::request::multiple_scope;
use mpi::topology::{Process, SimpleCommunicator};
use mpi::traits::{Communicator, Destination, Source};

use crate::team::MpiTeam;
use crate::watch::NodeWatch;

/// How often an idle rank checks for a message.
const IDLE: Duration = Duration::from_millis(1);

/// Options of `transport`.
#[derive(Args)]
#[command(after_help = "Examples:
  mpirun -n 2 fordway-mpi transport --out two-nodes.run
  mpirun -n 2 fordway-mpi transport --size 1KiB..1MiB --factor 2 --rounds 9

Rank 0 sends requests and rank 1 responds, on the nodes that the launcher selects. On a single machine,
`fordway bench transport` runs this command together with TCP, HTTP and the lanes.")]
pub(crate) struct MpiTransportBenchArgs {
    #[command(flatten)]
    setting: TransportMessageArgs,
    /// Print the MPI library that this program is linked to, and exit
    #[arg(long)]
    pub(crate) which: bool,
    #[command(flatten)]
    trust: ForceArgs,
    /// Receive commands from the listener at this address
    #[arg(long, value_name = "HOST:PORT", hide = true)]
    control: Option<SocketAddr>,
}

/// Returns the name and version of the MPI library, taken from the first line of its description.
pub(crate) fn library() -> String {
    let text = mpi::environment::library_version().unwrap_or_default();
    let line = text.trim_matches(char::from(0)).lines().next().unwrap_or_default();
    let name = line.split(',').next().unwrap_or_default();
    name.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Runs the transport benchmark on the two ranks of `world`. Returns whether all received bytes were correct. Errors:
/// `InvalidArgument` if the number of ranks is not two.
pub(crate) fn run_ranks(
    args: &MpiTransportBenchArgs,
    world: &SimpleCommunicator,
    stop: &AtomicBool,
) -> Result<bool> {
    if world.size() != 2 {
        let why = format!("transport needs 2 ranks but has {}; start it with mpirun -n 2", world.size());
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let team = MpiTeam::new(SimpleCommunicator::world());
    // If another program gives the commands, that program also observes the machine.
    let watch = match args.control {
        Some(_) => None,
        None => Some(watch(args, &team, stop)?),
    };
    let mut link = MpiLink { world: SimpleCommunicator::world(), other: 1 - world.rank() };
    if world.rank() == 1 {
        link.send(&MpiJobProcess::own().to_bytes())?;
        let followed = follow(&mut link);
        watch.map_or(Ok(None), |watch| watch.conditions(&team))?;
        return followed.map(|()| true);
    }
    let mut theirs = [0; 8];
    link.receive(&mut theirs)?;
    let hello = MpiJobHello {
        implementation: library(),
        sides: [MpiJobProcess::own(), MpiJobProcess::from_bytes(theirs)],
    };
    let description = format!("2 ranks of {}, as the launcher placed them", hello.implementation);
    let lane = RowDescription { name: "mpi".to_owned(), description };
    let mut linked = LinkTransport::new(lane, link);
    match (args.control, watch) {
        (Some(control), _) => answer(control, &hello, &mut linked).map(|()| true),
        (None, watch) => by_itself(&args.setting, linked, stop, (watch, &team)),
    }
}

/// Checks the output directory, and starts to observe the nodes of both ranks.
fn watch(args: &MpiTransportBenchArgs, team: &MpiTeam, stop: &AtomicBool) -> Result<NodeWatch> {
    let show = |_: &str, _: u64| {};
    let control = RunControl::new(stop, &show);
    let crew = WorkloadRank::new(team, &control, RunClock::start());
    crew.first_does(|| run_output::check(&args.setting.path()))?;
    NodeWatch::start((&crew, team), args.trust.force, false)
}

fn by_itself(
    setting: &TransportMessageArgs,
    linked: LinkTransport<MpiLink>,
    stop: &AtomicBool,
    (watch, team): (Option<NodeWatch>, &MpiTeam),
) -> Result<bool> {
    let started = (jiff::Timestamp::now(), Instant::now());
    let machine = Machine::observe(&[]);
    let lane = linked.lane().clone();
    let measured = setting.plan().and_then(|plan| {
        let outcome = run(&plan, &mut [Box::new(linked)], stop, &mut |_| ())?;
        Ok((plan, outcome))
    });
    // The other rank waits here, even if this rank has failed.
    let conditions = watch.map_or(Ok(None), |watch| watch.conditions(team))?;
    let (plan, outcome) = measured?;
    let header = RunFileHeader {
        machine,
        started: started.0.to_string(),
        elapsed: started.1.elapsed(),
        parameters: setting.parameters(),
        warnings: Vec::new(),
    };
    let mut run = describe(&plan, vec![lane], &outcome, header);
    conditions.into_iter().for_each(|conditions| run.add_conditions(conditions));
    println!("{}", transfer_table(&run));
    run.conditions.iter().for_each(|conditions| println!("{conditions}"));
    run.warnings.iter().for_each(|warning| eprintln!("fordway-mpi: warning: {warning}"));
    run.write(&setting.path(), &outcome.records)
        .map_err(|error| Error::new(ErrorKind::Io, error.to_string()))?;
    println!("run: {}", setting.path().display());
    Ok(outcome.interrupted_after.is_none() && run.summaries.iter().all(|summary| summary.errors == 0))
}

/// The link to the other rank. MPI aborts the job if a message cannot be sent, so no method returns an error.
struct MpiLink {
    world: SimpleCommunicator,
    other: Rank,
}

impl MpiLink {
    fn other(&self) -> Process<'_> {
        self.world.process_at_rank(self.other)
    }
}

impl MessageLink for MpiLink {
    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.other().send(bytes);
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.other().receive_into(buffer);
        Ok(())
    }

    fn send_window(&mut self, bytes: &[u8], times: usize) -> Result<()> {
        multiple_scope(times, |scope, requests| {
            for _ in 0..times {
                requests.add(self.other().immediate_send(scope, bytes));
            }
            requests.wait_all(&mut Vec::with_capacity(times));
        });
        Ok(())
    }

    fn receive_window(&mut self, buffer: &mut [u8], size: usize) -> Result<()> {
        let times = buffer.len() / size;
        multiple_scope(times, |scope, requests| {
            for message in buffer.chunks_exact_mut(size) {
                requests.add(self.other().immediate_receive_into(scope, message));
            }
            requests.wait_all(&mut Vec::with_capacity(times));
        });
        Ok(())
    }

    fn receive_idly(&mut self, buffer: &mut [u8]) -> Result<()> {
        // A blocking MPI receive would busy-poll, and take CPU time from the transports being measured.
        while self.other().immediate_probe().is_none() {
            std::thread::sleep(IDLE);
        }
        self.receive(buffer)
    }
}
