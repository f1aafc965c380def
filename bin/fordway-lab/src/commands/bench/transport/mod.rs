//! `bench transport`: the same messages by MPI, TCP, HTTP and the lanes, in turn.

pub(in crate::commands) mod alone;
mod mpi;
mod nginx;
mod process;
mod setup;

use std::net::SocketAddr;
use std::time::Instant;

use fordway_command::{Context, Exit};
use fordway_measure::{Machine, Run, transfer_table};
use fordway_store::{Error, ErrorKind, Result};
use fordway_workload::summary::Header;
use fordway_workload::transport::{Outcome, Plan, Progress, TcpLink, describe, follow, run as drive};

use self::setup::Transports;
use crate::args::TransportArgs;
use crate::commands::page;

pub(super) fn run(args: &TransportArgs, context: &Context) -> Result<Exit> {
    if let Some(address) = args.follow {
        return follow_at(address);
    }
    let plan = args.setting.plan()?;
    let started = (jiff::Timestamp::now(), Instant::now());
    let root = args.root.clone().unwrap_or_else(std::env::temp_dir);
    // Looked at before the work, which would show in the load average.
    let machine = Machine::observe(&[("root", &root)]);
    let mut transports = Transports::open(args, &plan, &root)?;
    let outcome = measure(&plan, &mut transports, context);
    let (lanes, missing) = (transports.descriptions(), transports.missing.clone());
    let closed = transports.close();
    // Ctrl-C reaches launchers too, which then end as they please.
    context.interrupt.check()?;
    let outcome = outcome?;
    closed?;
    let header = Header {
        machine,
        started: started.0.to_string(),
        elapsed: started.1.elapsed(),
        parameters: parameters(args),
        warnings: missing,
    };
    let run = describe(&plan, lanes, &outcome, header);
    run.write(&args.setting.out, &outcome.records)
        .map_err(|error| Error::new(ErrorKind::Io, error.to_string()))?;
    report(args, &run, context)
}

/// The other side of a bare TCP connection, in a process of its own so that its CPU time is its own too.
fn follow_at(address: SocketAddr) -> Result<Exit> {
    follow(&mut TcpLink::connect(address)?)?;
    Ok(Exit::Ok)
}

fn measure(plan: &Plan, transports: &mut Transports, context: &Context) -> Result<Outcome> {
    context.output.start_steps();
    let mut progress = |at: Progress| context.output.steps(at.done, at.total, &at.phase);
    let outcome = drive(plan, transports.all(), context.interrupt.flag(), &mut progress);
    context.output.end_progress();
    outcome
}

fn parameters(args: &TransportArgs) -> serde_json::Map<String, serde_json::Value> {
    let mut parameters = args.setting.parameters();
    parameters.insert("connections".into(), args.connections.into());
    parameters.insert("mpi_yield_when_idle".into(), args.mpi_yield.into());
    parameters.insert("pin_client".into(), args.pin_client.clone().into());
    parameters.insert("pin_server".into(), args.pin_server.clone().into());
    parameters
}

fn report(args: &TransportArgs, run: &Run, context: &Context) -> Result<Exit> {
    for summary in &run.summaries {
        context.output.row(summary)?;
    }
    context.output.text(&transfer_table(run))?;
    for lane in &run.lanes {
        context.output.text(&format!("{}: {}", lane.name, lane.description))?;
    }
    for warning in &run.warnings {
        context.output.note(&format!("warning: {warning}"));
    }
    context.output.text(&format!("run: {}", args.setting.out.display()))?;
    if !args.no_report {
        page::write(&args.setting.out, context)?;
    }
    let is_wrong = run.summaries.iter().any(|summary| summary.errors > 0);
    Ok(if is_wrong { Exit::Corrupt } else { Exit::Ok })
}
