//! The command line: the one definition that the parser, `--help`, the manual pages and the shell
//! completions are made from.

mod listing;
mod serve;
mod transfer;

pub(crate) use fordway_command::args::{
    CallArgs, DurabilityArg, ETagArg, GlobalArgs, ReplicaArgs, byte_range,
};
pub(crate) use fordway_command::manual::{CompletionsArgs, ManArgs};
pub(crate) use listing::{
    DuArgs, LsArgs, MbArgs, PresignArgs, RbArgs, StatArgs, TagArgs, VersioningArgs, VersioningChange,
};
pub(crate) use serve::{FsckArgs, GatewayArgs, GcArgs, NodeArgs, ServeArgs};
pub(crate) use transfer::{
    CatArgs, CpArgs, MakeArgs, MetalinkAction, MetalinkArgs, MkdirArgs, MvArgs, ReadArgs, RmArgs, ShowArgs,
    SyncArgs, ThirdPartyArg, TransferArgs,
};

use std::ffi::OsString;

use clap::{Args, Parser, Subcommand};
use fordway_command::version::long_version;
use fordway_store::VersionId;

/// S3 over a directory, in this process or over HTTP.
#[derive(Debug, Parser)]
#[command(name = "fordway", version, long_version = long_version(FEATURES), propagate_version = true, max_term_width = 100)]
#[command(about = "S3 objects on any lane: a directory of this machine, or an S3 service")]
#[command(after_help = AFTER_HELP)]
pub struct CommandLine {
    /// Options of every command.
    #[command(flatten)]
    pub global: GlobalArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: BuiltinCommand,
}

/// What `--version` says that this program is built with.
const FEATURES: &[&str] = &[
    #[cfg(feature = "http3")]
    "http3",
];

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

/// The built-in commands.
#[derive(Debug, Subcommand)]
pub enum BuiltinCommand {
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
    /// The measuring commands.
    #[command(flatten)]
    Lab(LabCommand),
    /// Remove what interrupted work left behind in a directory
    Gc(GcArgs),
    /// Check a directory against what is stored about its objects
    Fsck(FsckArgs),
    /// Print the completions of a shell
    Completions(CompletionsArgs),
    /// Print the manual page, or write the pages of all commands
    Man(ManArgs),
    /// Any other name: `fordway-NAME` from PATH.
    #[command(external_subcommand)]
    External(Vec<OsString>),
}

/// The commands of `fordway-lab`, which takes over: here they are only named, for `--help` and completions.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Measure the cost of S3 on this machine: one real directory over every lane
    #[command(disable_help_flag = true, after_help = lab_help("compare"))]
    Compare(LabArgs),
    /// Measure what each layer costs by itself, and whether the layers add up to the lanes
    #[command(disable_help_flag = true, after_help = lab_help("ledger"))]
    Ledger(LabArgs),
    /// Measure what cost models want to know of a machine
    #[command(disable_help_flag = true, after_help = lab_help("machines"))]
    Machines(LabArgs),
    /// Report what slows down programs on this node, with advice
    #[command(disable_help_flag = true, after_help = lab_help("doctor"))]
    Doctor(LabArgs),
    /// Measure how much faster a parallel program is with more ranks, over shared memory, TCP and overlays
    #[command(disable_help_flag = true, after_help = lab_help("speedup"))]
    Speedup(LabArgs),
    /// Run a benchmark: load on a server, or ior, mdtest, mdworkbench, io500 on any lane
    #[command(disable_help_flag = true, after_help = lab_help("bench"))]
    Bench(LabArgs),
    /// Run a client and a server with an emulated link between them, with a given delay, rate and loss
    #[command(disable_help_flag = true, after_help = lab_help("netlab"))]
    Netlab(LabArgs),
    /// Run one end of an HTTP ping-pong, or of a tunnel, as started by `bench pingpong`
    #[command(disable_help_flag = true, after_help = lab_help("pingpong"))]
    Pingpong(LabArgs),
}

/// The words of a command line that `fordway-lab` reads.
#[derive(Debug, Args)]
pub struct LabArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    words: Vec<OsString>,
}

fn lab_help(name: &str) -> String {
    format!("Examples:\n  fordway {name} --help")
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
        CommandLine::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        for command in CommandLine::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.starts_with("Examples:\n  fordway "), "{} has none", command.get_name());
        }
    }
}
