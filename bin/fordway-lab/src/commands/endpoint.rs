//! What becomes of an endpoint that a command does not use: it is refused where the command line names it, and told where
//! the environment does.

use fordway_client::s3::S3Config;
use fordway_command::CommandContext;
use fordway_store::{Error, ErrorKind, Result};

use crate::args::{
    BenchArgs, BenchmarkCommand, CompareArgs, GlobalArgs, LedgerArgs, MeasuringCommand, TargetArg,
};

/// Errors: `InvalidArgument` for `--endpoint` of a command that would ignore it.
pub(super) fn check(command: &MeasuringCommand, global: &GlobalArgs, context: &CommandContext) -> Result<()> {
    if let (Some(endpoint), Some(instead)) = (&global.endpoint, instead(command)) {
        let detail = format!("--endpoint {endpoint} is not used here: {instead}");
        return Err(Error::new(ErrorKind::InvalidArgument, detail));
    }
    if global.endpoint.is_none() {
        tell_of_environment(command, global, context)?;
    }
    Ok(())
}

/// What a command does that has no use for an endpoint.
fn instead(command: &MeasuringCommand) -> Option<&'static str> {
    Some(match command {
        MeasuringCommand::Compare(_) | MeasuringCommand::Completions(_) | MeasuringCommand::Man(_) => {
            return None;
        }
        MeasuringCommand::Bench(BenchArgs { benchmark }) => return instead_of_bench(benchmark),
        MeasuringCommand::Ledger(_) => {
            "`ledger` takes apart gateways that it starts itself; `compare DIR --target NAME=URL` measures a service"
        }
        MeasuringCommand::Speedup(_) => "`speedup` starts MPI programs",
        MeasuringCommand::Machines(_) => "`machines` measures this machine, and what --peer names",
        MeasuringCommand::Doctor(_) => "`doctor` examines this node",
        MeasuringCommand::Netlab(_) => "`netlab` starts the server that --server names",
        MeasuringCommand::Pingpong(_) => "`pingpong` listens at --listen, and asks what --pong names",
    })
}

fn instead_of_bench(benchmark: &BenchmarkCommand) -> Option<&'static str> {
    let places = |places: &[String]| {
        (!places.is_empty()).then_some("the PLACEs of the command line are measured; make it one of them")
    };
    match benchmark {
        BenchmarkCommand::Rest(_) => Some("`bench rest` asks the URL of the command line"),
        BenchmarkCommand::Transport(_) | BenchmarkCommand::Pingpong(_) => {
            Some("this benchmark starts its servers itself")
        }
        BenchmarkCommand::Vector(args) if !args.url.starts_with("s3://") => {
            Some("`bench vector` reads the URL of the command line; it is for s3://BUCKET/KEY")
        }
        BenchmarkCommand::Vector(_) => None,
        BenchmarkCommand::Ior(args) => places(&args.common.setting.places),
        BenchmarkCommand::Mdtest(args) => places(&args.common.setting.places),
        BenchmarkCommand::Mdworkbench(args) => places(&args.common.setting.places),
        BenchmarkCommand::Io500(args) => places(&args.ranks.common.setting.places),
    }
}

/// A note where `compare` and `ledger`, which measure lanes, leave out the one that the environment names: to write to it
/// unasked could cost money.
fn tell_of_environment(
    command: &MeasuringCommand,
    global: &GlobalArgs,
    context: &CommandContext,
) -> Result<()> {
    let (targets, advice): (&[TargetArg], _) = match command {
        MeasuringCommand::Compare(CompareArgs { targets, .. }) => (targets, "--endpoint or --target adds it"),
        MeasuringCommand::Ledger(LedgerArgs { echo: None, .. }) => {
            (&[], "`compare DIR --target NAME=URL` measures a service")
        }
        _ => return Ok(()),
    };
    let named = S3Config::find_endpoint(None, &|name| super::variable(global, name))?;
    let is_row =
        |endpoint: &String| targets.iter().any(|target| target.endpoint == endpoint.trim_end_matches('/'));
    if let Some(endpoint) = named.filter(|endpoint| !is_row(endpoint)) {
        context
            .output
            .note(&format!("the endpoint of the environment, {endpoint}, is not measured; {advice}"));
    }
    Ok(())
}
