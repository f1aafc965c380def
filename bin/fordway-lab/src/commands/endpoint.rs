//! Reports an endpoint, a profile or a region that a command does not use. Such an option on the command line is an
//! error. `compare` and `ledger` print a note if they do not measure the endpoint from the environment.

use fordway_client::s3::S3Config;
use fordway_command::CommandContext;
use fordway_store::{Error, ErrorKind, Result};

use crate::args::{
    BenchArgs, BenchmarkCommand, CompareArgs, GlobalArgs, LabSubcommand, LedgerArgs, TargetArg,
};

/// Checks the endpoint. Errors: `InvalidArgument` if an option that selects a service is given to a command that
/// would ignore it.
pub(super) fn check(command: &LabSubcommand, global: &GlobalArgs, context: &CommandContext) -> Result<()> {
    if let (Some((option, value)), Some(instead)) = (of_service(command, global), instead(command)) {
        let detail = format!("{option} {value} is not used here: {instead}");
        return Err(Error::new(ErrorKind::InvalidArgument, detail));
    }
    if global.endpoint.is_none() {
        tell_of_environment(command, global, context)?;
    }
    Ok(())
}

/// Returns the first option on the command line that selects a service, and its value.
fn of_service<'g>(command: &LabSubcommand, global: &'g GlobalArgs) -> Option<(&'static str, &'g str)> {
    // Benchmarks without an endpoint sign requests to the targets on the command line.
    let signs = matches!(command, LabSubcommand::Bench(_));
    let options = [
        ("--endpoint", &global.endpoint, true),
        ("--profile", &global.profile, !signs),
        ("--region", &global.region, !signs),
    ];
    let given = |(option, value, is_unused): (&'static str, &'g Option<String>, bool)| {
        value.as_deref().filter(|_| is_unused).map(|value| (option, value))
    };
    options.into_iter().find_map(given)
}

/// Describes a command without an endpoint; `None` for commands that accept an endpoint.
fn instead(command: &LabSubcommand) -> Option<&'static str> {
    Some(match command {
        LabSubcommand::Compare(_) | LabSubcommand::Completions(_) | LabSubcommand::Man(_) => {
            return None;
        }
        LabSubcommand::Bench(BenchArgs { benchmark }) => return instead_of_bench(benchmark),
        LabSubcommand::Ledger(_) => {
            "`ledger` measures gateways that it starts itself; `compare DIR --target NAME=URL` measures a \
             service"
        }
        LabSubcommand::Speedup(_) => "`speedup` starts MPI programs",
        LabSubcommand::Machines(_) => "`machines` measures this machine, and the host of --peer",
        LabSubcommand::Doctor(_) => "`doctor` examines this node",
        LabSubcommand::Netlab(_) => "`netlab` starts the server of --server",
        LabSubcommand::Pingpong(_) => "`pingpong` listens on --listen and sends requests to --pong",
    })
}

fn instead_of_bench(benchmark: &BenchmarkCommand) -> Option<&'static str> {
    let places = |places: &[String]| {
        (!places.is_empty())
            .then_some("the command measures the TARGETs on the command line; add the endpoint to them")
    };
    match benchmark {
        BenchmarkCommand::Rest(_) => Some("`bench rest` measures the URL of the command line"),
        BenchmarkCommand::Transport(_) | BenchmarkCommand::Pingpong(_) => {
            Some("this benchmark starts its servers itself")
        }
        BenchmarkCommand::Vector(args) if !args.url.starts_with("s3://") => Some(
            "`bench vector` reads the URL of the command line and uses the endpoint only for s3://BUCKET/KEY",
        ),
        BenchmarkCommand::Vector(_) => None,
        BenchmarkCommand::Ior(args) => places(&args.common.setting.places),
        BenchmarkCommand::Mdtest(args) => places(&args.common.setting.places),
        BenchmarkCommand::Mdworkbench(args) => places(&args.common.setting.places),
        BenchmarkCommand::Io500(args) => places(&args.ranks.common.setting.places),
    }
}

/// Prints a note if `compare` or `ledger`, which measure lanes, does not measure the endpoint from the environment.
/// That endpoint is not measured by default, because writing to it could cost money.
fn tell_of_environment(command: &LabSubcommand, global: &GlobalArgs, context: &CommandContext) -> Result<()> {
    let (targets, advice): (&[TargetArg], _) = match command {
        LabSubcommand::Compare(CompareArgs { targets, .. }) => (targets, "--endpoint or --target adds it"),
        LabSubcommand::Ledger(LedgerArgs { echo: None, .. }) => {
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
