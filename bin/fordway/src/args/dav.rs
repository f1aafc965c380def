//! Options of `mv` and `mkdir`, and how servers copy to one another.

use clap::{Args, ValueEnum};

use super::TransferArgs;

/// Options of `mv`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway mv s3://data/a s3://data/b
  fordway mv run.h5 s3://data/2024/
  fordway mv davs://host.example/new/run.h5 davs://host.example/done/

Objects and files are copied, and each is removed when its copy is there, as `aws s3 mv` does. Within a WebDAV \
server MOVE does it in one step, for whole collections too (with --recursive).")]
pub struct MvArgs {
    /// Files, directories, s3:// addresses, wildcards, or http(s):// and dav(s):// addresses
    #[arg(required = true, value_name = "SOURCE")]
    pub sources: Vec<String>,
    /// A file, a directory, or an s3://, http(s):// or dav(s):// address
    pub destination: String,
    /// Move all that lies below the source
    #[arg(long, short)]
    pub recursive: bool,
    /// Take * and ? in sources literally
    #[arg(long)]
    pub raw: bool,
    /// Skip what is at the destination already
    #[arg(long, short, conflicts_with = "if_none_match")]
    pub no_clobber: bool,
    /// Fail where something is at the destination already
    #[arg(long)]
    pub if_none_match: bool,
    /// How to copy between web servers
    #[arg(long, value_enum, value_name = "WHO", default_value_t = ThirdPartyArg::Pull)]
    pub third_party: ThirdPartyArg,
    /// What to move and how
    #[command(flatten)]
    pub transfer: TransferArgs,
}

/// Options of `mkdir`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway mkdir davs://host.example/data/2024
  fordway mkdir --parents davs://host.example/data/2024/05
  fordway mkdir s3://data/2024

In a bucket it makes an empty object whose key ends with a slash, which other programs show as a directory; \
nothing needs one. Buckets are made by `fordway mb`.")]
pub struct MkdirArgs {
    /// http(s):// or dav(s):// addresses, or s3://BUCKET/PREFIX
    #[arg(required = true, value_name = "ADDRESS")]
    pub addresses: Vec<String>,
    /// Make those above it too, and be content if it is there
    #[arg(long, short)]
    pub parents: bool,
}

/// Which server copies from one web server to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ThirdPartyArg {
    /// The destination reads from the source; where it cannot, this program copies
    #[default]
    Pull,
    /// The source writes to the destination; where it cannot, this program copies
    Push,
    /// This program reads from the one and writes to the other
    Never,
}
