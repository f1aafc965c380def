//! The command line: the one definition that the parser, `--help`, the manual pages and the shell
//! completions are made from.

mod bench;
mod care;
mod compare;
mod dav;
mod doctor;
mod filters;
mod ledger;
mod listing;
mod machines;
mod netlab;
mod node;
mod pingpong;
mod read;
mod replicas;
mod serve;
mod speedup;
mod transfer;
mod versions;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use fordway_store::VersionId;

pub(crate) use bench::{
    ArrivalsArg, BenchArgs, Benchmark, HttpArg, MethodArg, PingpongBenchArgs, PolicyArg, RankArgs, RestArgs,
    ScaleArg, TransportArg, TransportArgs, VectorArgs,
};
pub(crate) use care::{FsckArgs, GcArgs};
pub(crate) use compare::{CompareArgs, LaneArg};
pub(crate) use dav::{MkdirArgs, MvArgs, ThirdPartyArg};
pub(crate) use doctor::{DoctorArgs, FixArg};
pub(crate) use ledger::{LedgerArgs, PathArg, PlacementArg};
pub(crate) use listing::{DuArgs, LsArgs, MbArgs, PresignArgs, RbArgs, StatArgs};
pub(crate) use machines::{MachinesAction, MachinesArgs, MeasureArgs, PickArgs, ProbeArgs, SimilarityArgs};
pub(crate) use netlab::{NetlabArgs, OffloadArg};
pub(crate) use node::NodeArgs;
pub(crate) use pingpong::{EndArgs, PingArgs, PingpongAction, PingpongArgs, PongArgs, TunnelArgs};
pub(crate) use read::{CallArgs, ReadArgs};
pub(crate) use replicas::{MakeArgs, MetalinkAction, MetalinkArgs, ReplicaArgs, ShowArgs};
pub(crate) use serve::{ConditionsArg, ServeArgs};
pub(crate) use speedup::{SpeedupArgs, TimeArg};
pub(crate) use transfer::{CatArgs, CpArgs, RmArgs, SyncArgs, TransferArgs};
pub(crate) use versions::{TagArgs, VersioningArgs, VersioningChange};

/// S3 over a directory, in this process or over HTTP.
#[derive(Debug, Parser)]
#[command(name = "fordway", version, propagate_version = true, max_term_width = 100)]
#[command(about = "S3 objects on any lane: a directory of this machine, or an S3 service")]
#[command(after_help = AFTER_HELP)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: GlobalArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "\
Addresses are s3://BUCKET/KEY, local paths, http(s):// or dav(s):// URLs, or - for standard input and output. Quote wildcards \
('s3://b/logs/*.gz'): they are expanded here, and * also stands for slashes.

The endpoint picks the lane: --endpoint, else AWS_ENDPOINT_URL_S3, else AWS_ENDPOINT_URL, else \
endpoint_url of the AWS configuration file, else AWS. FORDWAY_HTTP_VERSION=2 asks \
in HTTP/2. FORDWAY_LOG=debug logs to standard error.

Exit codes: 0 done, 1 failed or nothing listed, 2 usage, 3 not found, 4 permission or credentials, \
5 condition or conflict, 6 no space or quota, 7 endpoint unavailable, 8 data corrupt, 130 interrupted. \
When some of many objects fail, the others are done and the first failure gives the code.

`fordway NAME` runs `fordway-NAME` from PATH where NAME is none of these commands.";

/// Options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct GlobalArgs {
    /// Where the objects are: file:///DIRECTORY, /DIRECTORY, unix:///SOCKET, tcp://HOST:PORT, or http(s)://HOST[:PORT]
    #[arg(long, global = true, value_name = "URL", alias = "endpoint-url")]
    pub endpoint: Option<String>,
    /// Profile of the AWS configuration and credentials files [default: AWS_PROFILE, else default]
    #[arg(long, global = true, value_name = "NAME")]
    pub profile: Option<String>,
    /// Region to sign for [default: as configured for AWS]
    #[arg(long, global = true, value_name = "NAME")]
    pub region: Option<String>,
    /// Print one JSON object per line
    #[arg(long, global = true)]
    pub json: bool,
    /// Print neither progress nor what was done to which object; errors are still reported
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Show no progress bar
    #[arg(long, global = true)]
    pub no_progress: bool,
}

/// The built-in commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List buckets, objects or a local directory
    Ls(LsArgs),
    /// Copy objects and files
    #[command(visible_aliases = ["get", "put"])]
    Cp(CpArgs),
    /// Write objects to standard output
    Cat(CatArgs),
    /// Make descriptions of files that are at several places, or show them
    Metalink(MetalinkArgs),
    /// Read many ranges of a file or object in few requests
    Read(ReadArgs),
    /// Move objects and files
    Mv(MvArgs),
    /// Make collections of WebDAV servers, or prefixes
    Mkdir(MkdirArgs),
    /// Remove objects
    Rm(RmArgs),
    /// Show all that is known of objects or buckets
    Stat(StatArgs),
    /// Make buckets
    Mb(MbArgs),
    /// Remove buckets
    Rb(RbArgs),
    /// Add up the sizes of objects
    Du(DuArgs),
    /// Make a directory or prefix like another
    Sync(SyncArgs),
    /// Show the tags of an object, or replace them
    Tag(TagArgs),
    /// Say whether a bucket keeps versions, or change it
    Versioning(VersioningArgs),
    /// Make a URL that gives access to an object for some time
    Presign(PresignArgs),
    /// Serve a directory as an S3 endpoint
    Serve(ServeArgs),
    /// Serve a directory to the programs of this node
    Node(NodeArgs),
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
    /// Remove what interrupted work left behind in a directory
    Gc(GcArgs),
    /// Check a directory against what is stored about its objects
    Fsck(FsckArgs),
    /// Print the completions of a shell
    Completions(CompletionsArgs),
    /// Print the manual page, or write those of all commands
    Man(ManArgs),
    /// Any other name: `fordway-NAME` from PATH.
    #[command(external_subcommand)]
    External(Vec<OsString>),
}

/// Options of `completions`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway completions bash > ~/.local/share/bash-completion/completions/fordway
  fordway completions zsh > ~/.zfunc/_fordway
  fordway completions fish > ~/.config/fish/completions/fordway.fish")]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// Options of `man`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway man | man -l -
  fordway man --out ~/.local/share/man/man1")]
pub struct ManArgs {
    /// Write one page per command into this directory, which is made if it is missing
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

fn version_id(text: &str) -> Result<VersionId, String> {
    VersionId::new(text).map_err(|error| error.detail().to_owned())
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
