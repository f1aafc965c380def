//! The command line of the instrument: the one definition that the parser, `--help`, the manual pages and the shell
//! completions are made from.

mod bench;
mod compare;
mod doctor;
mod ledger;
mod machines;
mod netlab;
mod pingpong;
mod speedup;

use clap::{Parser, Subcommand};

pub(crate) use fordway_command::args::{CallArgs, DurabilityArg, ETagArg, GlobalArgs, ReplicaArgs};
pub(crate) use fordway_command::manual::{CompletionsArgs, ManArgs};

pub(crate) use bench::{
    ArrivalsArg, BenchArgs, Benchmark, HttpArg, MethodArg, PingpongBenchArgs, PolicyArg, RankArgs, RestArgs,
    ScaleArg, TransportArg, TransportArgs, VectorArgs,
};
pub(crate) use compare::{CompareArgs, LaneArg};
pub(crate) use doctor::{DoctorArgs, FixArg};
pub(crate) use ledger::{LedgerArgs, PathArg, PlacementArg};
pub(crate) use machines::{MachinesAction, MachinesArgs, MeasureArgs, PickArgs, ProbeArgs, SimilarityArgs};
pub(crate) use netlab::{NetlabArgs, OffloadArg};
pub(crate) use pingpong::{EndArgs, PingArgs, PingpongAction, PingpongArgs, PongArgs, TunnelArgs};
pub(crate) use speedup::{SpeedupArgs, TimeArg};

/// What S3, networks and machines cost here.
#[derive(Debug, Parser)]
#[command(name = "fordway-lab", version, propagate_version = true, max_term_width = 100)]
#[command(about = "Measure what every way to the objects costs here")]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER_HELP: &str = "\
`fordway NAME` runs these commands too: `fordway compare DIR` is `fordway-lab compare DIR`.

Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 permission or credentials, 5 condition or conflict, \
6 no space or quota, 7 endpoint unavailable, 8 data corrupt, 130 interrupted.";

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure what S3 costs here: one real directory down every lane
    Compare(CompareArgs),
    /// Measure what each layer costs by itself, and whether the layers add up to the lanes
    Ledger(LedgerArgs),
    /// Measure what cost models want to know of a machine
    Machines(MachinesArgs),
    /// Say what about this node costs the programs that run on it, and what to do
    Doctor(DoctorArgs),
    /// Measure how much faster a parallel program is with more ranks, over shared memory, TCP and overlays
    Speedup(SpeedupArgs),
    /// Run a benchmark: load on a server, or ior, mdtest, mdworkbench, io500 on any lane
    Bench(BenchArgs),
    /// Run a client and a server with a link of some delay, rate and loss between them
    Netlab(NetlabArgs),
    /// Be one end of a ping-pong over HTTP, or of a tunnel: what `bench pingpong` starts
    Pingpong(PingpongArgs),
    /// Print the completions of a shell
    Completions(CompletionsArgs),
    /// Print the manual page, or write the pages of all commands
    Man(ManArgs),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.starts_with("Examples:\n  fordway "), "{} has none", command.get_name());
        }
    }
}
