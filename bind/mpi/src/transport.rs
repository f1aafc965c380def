//! Measures messages between two ranks, either for `fordway bench transport` or standalone.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use clap::Args;
use fordway_measure::{Machine, RowDescription, transfer_table};
use fordway_store::{Error, ErrorKind, Result};
use fordway_workload::summary::RunHeader;
use fordway_workload::transport::{
    LinkTransport, MessageLink, MessageTransport, MpiJobDescription, MpiJobProcess, TransportMessageArgs,
    answer, describe, follow, run,
};
use mpi::Rank;
use mpi::request::multiple_scope;
use mpi::topology::{Process, SimpleCommunicator};
use mpi::traits::{Communicator, Destination, Source};

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
    let mut link = MpiLink { world: SimpleCommunicator::world(), other: 1 - world.rank() };
    if world.rank() == 1 {
        link.send(&MpiJobProcess::own().to_bytes())?;
        return follow(&mut link).map(|()| true);
    }
    let mut theirs = [0; 8];
    link.receive(&mut theirs)?;
    let hello = MpiJobDescription {
        implementation: library(),
        sides: [MpiJobProcess::own(), MpiJobProcess::from_bytes(theirs)],
    };
    let description = format!("2 ranks of {}, as the launcher placed them", hello.implementation);
    let lane = RowDescription { name: "mpi".to_owned(), description };
    let mut linked = LinkTransport::new(lane, link);
    match args.control {
        Some(control) => answer(control, &hello, &mut linked).map(|()| true),
        None => by_itself(&args.setting, linked, stop),
    }
}

fn by_itself(
    setting: &TransportMessageArgs,
    linked: LinkTransport<MpiLink>,
    stop: &AtomicBool,
) -> Result<bool> {
    let started = (jiff::Timestamp::now(), Instant::now());
    let machine = Machine::observe(&[]);
    let plan = setting.plan()?;
    let lane = linked.lane().clone();
    let outcome = run(&plan, &mut [Box::new(linked)], stop, &mut |_| ())?;
    let header = RunHeader {
        machine,
        started: started.0.to_string(),
        elapsed: started.1.elapsed(),
        parameters: setting.parameters(),
        warnings: Vec::new(),
    };
    let run = describe(&plan, vec![lane], &outcome, header);
    run.write(&setting.path(), &outcome.records)
        .map_err(|error| Error::new(ErrorKind::Io, error.to_string()))?;
    println!("{}", transfer_table(&run));
    run.warnings.iter().for_each(|warning| eprintln!("fordway-mpi: warning: {warning}"));
    println!("run: {}", setting.path().display());
    Ok(run.summaries.iter().all(|summary| summary.errors == 0))
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
