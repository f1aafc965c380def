//! `bench transport`: sends the same messages over MPI, TCP, HTTP and the lanes, which take turns. This file also
//! starts the transports for a run, with the servers and processes that they need.

pub(in crate::commands) mod mpi;
mod process;

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use fordway_command::{CommandContext, CommandExit, file_error};
use fordway_machine::MachineWatch;
use fordway_measure::{Machine, RowDescription, RunDocument, RunRecords, transfer_table};
use fordway_posix::{Durability, PosixConfig, PosixStore};
use fordway_store::{Bucket, ETagPolicy, Error, ErrorKind, Objects as _, PutOptions, Result, Store};
use fordway_workload::summary::RunFileHeader;
use fordway_workload::transport::{
    LinkTransport, MessageTransport, ObjectTransport, TcpLink, TransportPlan, TransportProgress,
    TransportResults, describe, follow, message_of, run as drive,
};

use self::process::{ChildProgram, ChildProgramListener, NginxServer};
use crate::args::{TransportBenchArgs, TransportKindArg};
use crate::commands;
use crate::commands::gateway::GatewayProcess;
use crate::commands::run_output;
use crate::commands::scratch::ScratchDirectory;

pub(super) fn run(args: &TransportBenchArgs, context: &CommandContext) -> Result<CommandExit> {
    if let Some(address) = args.follow {
        return follow_at(address);
    }
    let plan = args.setting.plan()?;
    run_output::check(&args.setting.path())?;
    let started = (jiff::Timestamp::now(), Instant::now());
    let root = args.root.clone().unwrap_or_else(std::env::temp_dir);
    // Observe the machine before the measurement starts, because the measurement raises the load average.
    let machine = Machine::observe(&[("root", &root)]);
    let watch = MachineWatch::start(&[], args.trust.force)?;
    let mut transports = TransportSet::open(args, &plan, &root)?;
    let outcome = measure(&plan, &mut transports, context);
    let (lanes, missing) = (transports.descriptions(), transports.missing.clone());
    let closed = transports.close();
    let (outcome, closed) = match (outcome, closed) {
        (Ok(outcome), closed) => (outcome, closed),
        // Ctrl-C also stops the launchers, which then report failures. Check for an interrupt first, so that
        // `Interrupted` is returned instead of these failures. Without an interrupt, the failure of a program explains
        // the failure of its transport.
        (Err(error), closed) => {
            context.interrupt.check()?;
            return Err(closed.err().unwrap_or(error));
        }
    };
    let header = RunFileHeader {
        machine,
        started: started.0.to_string(),
        elapsed: started.1.elapsed(),
        parameters: parameters(args),
        warnings: missing,
    };
    let mut run = describe(&plan, lanes, &outcome, header);
    commands::judge_rounds(&mut run, &outcome.records, watch);
    let exit = report(args, (&run, &outcome.records), context)?;
    if outcome.interrupted_after.is_some() {
        return Ok(CommandExit::Interrupted);
    }
    // All rounds are complete, so a failure at the end does not invalidate them. A signal also stops the launchers, so
    // ignore their failures after a signal.
    match context.interrupt.is_raised() {
        true => Ok(exit),
        false => closed.map(|()| exit),
    }
}

/// Responds to the measuring process over a bare TCP connection. The responding process is a separate process, so that
/// its CPU time is counted separately.
fn follow_at(address: SocketAddr) -> Result<CommandExit> {
    follow(&mut TcpLink::connect(address)?)?;
    Ok(CommandExit::Ok)
}

fn measure(
    plan: &TransportPlan,
    transports: &mut TransportSet,
    context: &CommandContext,
) -> Result<TransportResults> {
    context.output.start_steps();
    let mut progress = |at: TransportProgress| context.output.steps(at.done, at.total, &at.phase);
    let outcome = drive(plan, transports.all(), context.interrupt.flag(), &mut progress);
    context.output.end_progress();
    outcome
}

fn parameters(args: &TransportBenchArgs) -> serde_json::Map<String, serde_json::Value> {
    let mut parameters = args.setting.parameters();
    parameters.insert("connections".into(), args.connections.into());
    parameters.insert("mpi_yield_when_idle".into(), args.mpi_yield.into());
    parameters.insert("pin_client".into(), args.pins.pin_client.clone().into());
    parameters.insert("pin_server".into(), args.pins.pin_server.clone().into());
    parameters
}

fn report(
    args: &TransportBenchArgs,
    (run, records): (&RunDocument, &RunRecords),
    context: &CommandContext,
) -> Result<CommandExit> {
    commands::write_summaries(run, context)?;
    context.output.text(&transfer_table(run))?;
    for lane in &run.lanes {
        context.output.text(&format!("{}: {}", lane.name, lane.description))?;
    }
    commands::write_trust(run, context)?;
    run_output::write(&args.setting.path(), run, records)?;
    context.output.text(&format!("run: {}", args.setting.path().display()))?;
    commands::write_or_remove_page(&args.setting.path(), args.page.no_report, context)?;
    let is_wrong = run.summaries.iter().any(|summary| summary.errors > 0);
    Ok(if is_wrong { CommandExit::Corrupt } else { CommandExit::Ok })
}

/// The bucket that holds the messages.
const BUCKET: &str = "transport";
/// The directory of the store that contains the messages.
const STORE: &str = "s3";

/// All transports, ready to use.
struct TransportSet {
    all: Vec<Box<dyn MessageTransport>>,
    /// The started programs, which exit when their transports are closed.
    programs: Vec<ChildProgram>,
    gateways: Vec<GatewayProcess>,
    nginx: Option<NginxServer>,
    /// The process IDs of the processes that send requests, including this process.
    askers: Vec<u32>,
    /// The process IDs of the processes that respond.
    answerers: Vec<u32>,
    /// The transports that were skipped, and the reasons.
    missing: Vec<String>,
    dir: ScratchDirectory,
}

impl TransportSet {
    /// Starts the transports that `args` lists, or all installed transports if the list is empty, and writes the
    /// messages of `plan` to a new directory in `root`. Errors: `Unavailable` for a listed transport that is not
    /// installed.
    fn open(args: &TransportBenchArgs, plan: &TransportPlan, root: &Path) -> Result<Self> {
        let dir = ScratchDirectory::new("transport", root);
        let dir = dir.map_err(|error| file_error("creating a directory in", root.display(), error))?;
        let mut transports = TransportSet {
            all: Vec::new(),
            programs: Vec::new(),
            gateways: Vec::new(),
            nginx: None,
            askers: vec![std::process::id()],
            answerers: Vec::new(),
            missing: Vec::new(),
            dir,
        };
        let is_asked = |one: &TransportKindArg| args.transports.is_empty() || args.transports.contains(one);
        let store = transports.messages(plan)?;
        for transport in TransportKindArg::ALL.into_iter().filter(is_asked) {
            let before = transports.all.len();
            transports.add(transport, args, &store)?;
            if transports.all.len() == before && !args.transports.is_empty() {
                return Err(Error::new(ErrorKind::Unavailable, transports.missing.join("; ")));
            }
        }
        keep_on(&transports.askers, &args.pins.pin_client)?;
        keep_on(&transports.answerers, &args.pins.pin_server)?;
        Ok(transports)
    }

    /// Stores one message of each size in a new store, and returns the store.
    fn messages(&self, plan: &TransportPlan) -> Result<Arc<dyn Store>> {
        let (root, bucket) = (self.dir.path().join(STORE), Bucket::new(BUCKET)?);
        std::fs::create_dir(&root).map_err(|error| file_error("creating", root.display(), error))?;
        let config = PosixConfig { etag_policy: ETagPolicy::Fast, ..PosixConfig::default() };
        let store = PosixStore::open(&root, config)?;
        store.create_bucket(&bucket)?;
        for size in &plan.sizes {
            store.put(
                &bucket,
                &message_of(*size)?,
                &ObjectTransport::content(*size),
                &PutOptions::default(),
            )?;
        }
        Ok(Arc::new(store))
    }

    fn add(
        &mut self,
        transport: TransportKindArg,
        args: &TransportBenchArgs,
        embedded: &Arc<dyn Store>,
    ) -> Result<()> {
        let root = self.dir.path().join(STORE);
        match transport {
            TransportKindArg::Mpi => self.add_mpi(args),
            TransportKindArg::Tcp => self.add_tcp(),
            TransportKindArg::Nginx => self.add_nginx(args),
            TransportKindArg::Http => {
                let gateway = GatewayProcess::start(&root, ETagPolicy::Fast, Durability::None)?;
                let what = "signed GET over HTTP/1.1 on loopback from a gateway process";
                self.add_gateway("http", what, gateway, args)
            }
            TransportKindArg::Node => {
                let gateway = GatewayProcess::start_node(&root, ETagPolicy::Fast, Durability::None)?;
                let what = "messages over a Unix socket from a gateway process, descriptors of large files";
                self.add_gateway("node", what, gateway, args)
            }
            TransportKindArg::Embedded => {
                let what = "S3 semantics as POSIX calls in this process, without a second process";
                self.add_objects("embedded", what, embedded.clone(), None, args)
            }
        }
    }

    fn add_mpi(&mut self, args: &TransportBenchArgs) -> Result<()> {
        let (found, missing) = mpi::find(args);
        self.missing.extend(missing);
        for mpi in found {
            for carrier in mpi.carriers() {
                let job = mpi.start(*carrier, args.mpi_yield)?;
                self.all.push(Box::new(job.remote));
                self.programs.push(job.program);
                self.askers.push(job.sides[0]);
                self.answerers.push(job.sides[1]);
            }
        }
        Ok(())
    }

    fn add_tcp(&mut self) -> Result<()> {
        let door = ChildProgramListener::open()?;
        let exe = std::env::current_exe().map_err(|error| file_error("finding", "this program", error))?;
        let mut command = Command::new(exe);
        command.args(["bench", "transport", "--follow", &door.address()?.to_string()]).stdin(Stdio::null());
        let mut program = ChildProgram::start("tcp", &mut command)?;
        let link = TcpLink::new(door.wait_for(&mut program)?)?;
        let what = "a bare TCP connection on loopback between two processes, blocking, with TCP_NODELAY";
        self.all.push(Box::new(LinkTransport::new(lane("tcp", what), link)));
        self.answerers.push(program.pid());
        self.programs.push(program);
        Ok(())
    }

    fn add_nginx(&mut self, args: &TransportBenchArgs) -> Result<()> {
        let Some(nginx) = NginxServer::start(STORE, self.dir.path())? else {
            self.missing.push("skipped nginx: it is not installed (Debian: nginx-light)".to_owned());
            return Ok(());
        };
        let what = "GET of static files over HTTP/1.1 on loopback from one process of nginx";
        self.add_objects("nginx", what, nginx.client()?, Some(nginx.pid()), args)?;
        self.nginx = Some(nginx);
        Ok(())
    }

    fn add_gateway(
        &mut self,
        name: &str,
        what: &str,
        gateway: GatewayProcess,
        args: &TransportBenchArgs,
    ) -> Result<()> {
        self.add_objects(name, what, gateway.client()?, Some(gateway.pid()), args)?;
        self.gateways.push(gateway);
        Ok(())
    }

    fn add_objects(
        &mut self,
        name: &str,
        what: &str,
        store: Arc<dyn Store>,
        server_pid: Option<u32>,
        args: &TransportBenchArgs,
    ) -> Result<()> {
        let connections = usize::from(args.connections);
        self.answerers.extend(server_pid);
        let lane = lane(name, &format!("{what}; bandwidth by up to {connections} threads"));
        let bucket = Bucket::new(BUCKET)?;
        self.all.push(Box::new(ObjectTransport::new(lane, store, bucket, server_pid, connections)));
        Ok(())
    }

    fn all(&mut self) -> &mut [Box<dyn MessageTransport>] {
        &mut self.all
    }

    fn descriptions(&self) -> Vec<RowDescription> {
        self.all.iter().map(|transport| transport.lane().clone()).collect()
    }

    /// Closes all transports and removes the messages. Errors: a program or a gateway failed, or the messages cannot be
    /// removed.
    fn close(self) -> Result<()> {
        // The programs exit when their connections are closed.
        drop(self.all);
        drop(self.nginx);
        self.programs.into_iter().try_for_each(ChildProgram::finish)?;
        self.gateways.into_iter().try_for_each(GatewayProcess::stop)?;
        let path = self.dir.path().to_owned();
        self.dir.close().map_err(|error| file_error("removing", path.display(), error))
    }
}

/// Pins processes to `cpus`, unless `cpus` is empty. Errors: `InvalidArgument` if these processors do not exist.
fn keep_on(processes: &[u32], cpus: &[usize]) -> Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    let pinned = processes.iter().try_for_each(|process| fordway_sys::pin_process(*process, cpus));
    pinned.map_err(|errno| {
        let why = format!("processes cannot be pinned to processors {cpus:?}; choose others");
        Error::new(ErrorKind::InvalidArgument, why).caused_by(std::io::Error::from(errno))
    })
}

fn lane(name: &str, description: &str) -> RowDescription {
    RowDescription { name: name.to_owned(), description: description.to_owned() }
}
