//! The command line. The parser, `--help`, the manual pages and the shell completions are generated from this
//! definition.

mod admin;
mod aws;
mod listing;
mod metadata;
mod policy;
mod serve;
mod transfer;

pub(crate) use admin::{
    AdminArgs, AdminBucketAclArgs, AdminGetArgs, AdminRmArgs, AdminSetArgs, AdminShowArgs, AdminSubcommand,
    AdminUsersArgs, BucketSettingArg,
};
pub(crate) use aws::AwsOptions;
pub(crate) use fordway_command::args::{
    DurabilityArg, ETagArg, GlobalArgs, ReplicaArgs, VectorReadArgs, byte_range,
};
pub(crate) use fordway_command::manual::{CompletionsArgs, ManArgs};
pub(crate) use listing::{
    ClientToolArg, DuArgs, EnvArgs, LsArgs, MbArgs, PresignArgs, RbArgs, StatArgs, TagArgs, VersioningArgs,
    VersioningChange,
};
pub(crate) use metadata::{MetadataArgs, MetadataDirectiveArg};
pub(crate) use policy::{ExplainArgs, PolicyArgs, PolicySubcommand};
pub(crate) use serve::{FsckArgs, GatewayArgs, GcArgs, LifecycleRunArgs, NodeArgs, ServeArgs, StoreRootArgs};
pub(crate) use transfer::{
    CatArgs, CpArgs, MetalinkArgs, MetalinkMakeArgs, MetalinkShowArgs, MetalinkSubcommand, MkdirArgs, MvArgs,
    ReadArgs, RmArgs, SyncArgs, ThirdPartyCopyArg, TransferArgs,
};

use std::ffi::OsString;

use clap::{Args, Parser, Subcommand};
use fordway_client::s3::S3Credentials;
use fordway_command::external::PYTHON_COMMANDS;
use fordway_command::version::long_version;
use fordway_http::TlsRoots;
use fordway_lanes::LaneConfigOverrides;
use fordway_posix::Durability;
use fordway_store::VersionId;

/// The command line of `fordway`, which accesses objects in a directory or on an S3 service.
#[derive(Debug, Parser)]
#[command(name = "fordway", version, long_version = long_version(FEATURES), propagate_version = true, max_term_width = 100)]
#[command(args_override_self = true)]
#[command(about = "Work with S3 objects in a local directory or on an S3 service")]
#[command(after_help = after_help())]
pub struct CommandLine {
    /// Options of every command.
    #[command(flatten)]
    pub global: GlobalArgs,
    /// Options for connections to services.
    #[command(flatten)]
    pub connection: ConnectionArgs,
    /// The command to run.
    #[command(subcommand)]
    pub command: BuiltinCommand,
}

/// Options for connections to services, of every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct ConnectionArgs {
    /// Do not sign requests to S3, and do not look for credentials
    #[arg(long, global = true)]
    pub no_sign_request: bool,
    /// Do not verify server certificates. Attackers on the network can then read and change all data
    #[arg(long, global = true)]
    pub no_verify_ssl: bool,
}

impl CommandLine {
    /// Returns the options that select a lane.
    pub fn lane_options(&self) -> LaneConfigOverrides {
        LaneConfigOverrides {
            credentials: self.connection.no_sign_request.then_some(S3Credentials::Anonymous),
            tls_roots: self.connection.no_verify_ssl.then_some(TlsRoots::Unverified),
            durability: self.durability(),
            ..self.global.lane_options()
        }
    }

    /// Returns the durability that the command needs on the embedded lane. A move that copies the content then removes
    /// the source, which is the only other copy.
    fn durability(&self) -> Option<Durability> {
        match &self.command {
            BuiltinCommand::Mv(args) if args.copies_into_bucket() => Some(Durability::Full),
            _ => None,
        }
    }
}

/// The optional features that `--version` reports.
const FEATURES: &[&str] = &[
    #[cfg(feature = "http3")]
    "http3",
];

/// Returns the text after the help: the commands of the Python package, and facts about all commands.
fn after_help() -> String {
    let rows = PYTHON_COMMANDS.iter().map(|(name, about)| format!("  {name:<11}  {about}\n"));
    format!("Python package:\n{}\n{AFTER_HELP}", rows.collect::<String>())
}

const AFTER_HELP: &str = "\
Addresses are s3://BUCKET/KEY, local paths, http(s):// or dav(s):// URLs, or - for standard input and output. Quote wildcards ('s3://b/logs/*.gz'): fordway expands them itself, and * also matches slashes.

The endpoint determines the lane, that is, how fordway accesses the objects. The endpoint is the first of these that \
is set: --endpoint, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, endpoint_url in the AWS configuration file; the default is \
AWS. FORDWAY_HTTP_VERSION=2 or 3 selects HTTP/2 or HTTP/3. FORDWAY_LOG=debug logs to standard error.

Exit codes: 0 done, 1 failed or nothing listed, 2 usage, 3 not found, 4 permission or credentials, \
5 condition or conflict, 6 no space or quota, 7 endpoint unavailable, 8 data corrupt, 130 interrupted. \
If an object fails, the remaining objects are still processed, and the first failure sets the exit code.

If NAME is not one of these commands, `fordway NAME` runs the `fordway-NAME` program next to fordway or in PATH.";

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
    /// Create or show Metalinks, which describe files and their replicas
    Metalink(MetalinkArgs),
    /// Read many ranges of a file or object in few requests
    Read(ReadArgs),
    /// Move objects and files
    Mv(MvArgs),
    /// Create WebDAV collections or S3 prefixes
    Mkdir(MkdirArgs),
    /// Remove objects
    Rm(RmArgs),
    /// Show the metadata of objects or buckets
    Stat(StatArgs),
    /// Create buckets
    Mb(MbArgs),
    /// Remove buckets
    Rb(RbArgs),
    /// Show the total size of objects
    Du(DuArgs),
    /// Synchronize one directory or prefix with another
    Sync(SyncArgs),
    /// Show, replace or remove an object's tags
    Tag(TagArgs),
    /// Show or change a bucket's versioning
    Versioning(VersioningArgs),
    /// Explain what a bucket's rules permit
    Policy(PolicyArgs),
    /// Show or change the settings of a bucket, such as its policy and CORS rules
    Admin(AdminArgs),
    /// Create a URL that grants access to an object for a limited time
    Presign(PresignArgs),
    /// Print the settings that other programs need to access the objects
    Env(EnvArgs),
    /// Serve a directory as an S3 endpoint
    Serve(ServeArgs),
    /// Serve a directory to programs on this node
    Node(NodeArgs),
    /// The measuring commands.
    #[command(flatten)]
    Lab(LabCommand),
    /// Remove the leftover files of interrupted operations from a directory
    Gc(GcArgs),
    /// Apply the lifecycle rules of the buckets in a directory: remove expired objects, versions and uploads
    Lifecycle(LifecycleRunArgs),
    /// Check the files of a directory against their stored metadata
    Fsck(FsckArgs),
    /// Print the completion script for a shell
    Completions(CompletionsArgs),
    /// Print the manual page, or write the manual pages of all commands
    Man(ManArgs),
    /// Any other name runs the `fordway-NAME` program next to this program or in PATH.
    #[command(external_subcommand)]
    External(Vec<OsString>),
}

/// The commands of `fordway-lab`. These entries exist for `--help` and completions. `fordway` starts `fordway-lab` to
/// run the commands.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Measure the cost of S3 on this machine, on every lane, with the files in a directory
    #[command(disable_help_flag = true, after_help = lab_help("compare"))]
    Compare(LabPassthroughArgs),
    /// Measure each component of a request separately, and check whether their times add up to the time of the whole
    /// request
    #[command(disable_help_flag = true, after_help = lab_help("ledger"))]
    Ledger(LabPassthroughArgs),
    /// Measure a machine for cost models, and compare machines
    #[command(disable_help_flag = true, after_help = lab_help("machines"))]
    Machines(LabPassthroughArgs),
    /// Report what slows down programs on this node, and what to do about it
    #[command(disable_help_flag = true, after_help = lab_help("doctor"))]
    Doctor(LabPassthroughArgs),
    /// Measure how a parallel program speeds up with more ranks, over shared memory, TCP and overlay networks
    #[command(disable_help_flag = true, after_help = lab_help("speedup"))]
    Speedup(LabPassthroughArgs),
    /// Run a benchmark: generate HTTP load on a server, or run ior, mdtest, mdworkbench or io500 on any lane
    #[command(disable_help_flag = true, after_help = lab_help("bench"))]
    Bench(LabPassthroughArgs),
    /// Run a client and a server over an emulated link with a given round-trip time, rate and loss
    #[command(disable_help_flag = true, after_help = lab_help("netlab"))]
    Netlab(LabPassthroughArgs),
    /// Run one end of an HTTP ping-pong or of a tunnel, as `bench pingpong` does
    #[command(disable_help_flag = true, after_help = lab_help("pingpong"))]
    Pingpong(LabPassthroughArgs),
}

/// The command-line arguments, which `fordway-lab` parses.
#[derive(Debug, Args)]
pub struct LabPassthroughArgs {
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
