//! Options of the commands that read files with replicas, and of `metalink`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use fordway_wire::size_text::parse_bytes;

/// Options of `metalink`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway metalink make events.root --replica https://a.example.org/d/ \\
    --replica https://b.example.org/d/
  fordway metalink make events.root --replica https://a.example.org/d/events.root@ch \\
    --out events.meta4
  fordway metalink show events.meta4
  fordway metalink show https://a.example.org/d/events.root --json")]
pub struct MetalinkArgs {
    /// What to do
    #[command(subcommand)]
    pub action: MetalinkAction,
}

/// What to do with Metalinks.
#[derive(Debug, Subcommand)]
pub enum MetalinkAction {
    /// Describe files of this machine: size, digests of the whole and of pieces, and where they are
    Make(MakeArgs),
    /// Show what a Metalink says, or what a server tells of a file
    Show(ShowArgs),
}

/// Options of `metalink make`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway metalink make events.root --replica https://a.example.org/d/ \\
    --replica https://b.example.org/d/
  fordway metalink make *.root --replica https://a.example.org/d/ --out run7.meta4

A URL that ends in / has the file's name behind it. The first has priority 1, the next 2. @ch at the end of a URL states a country.")]
pub struct MakeArgs {
    /// The files
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Where they can be read, the best first
    #[arg(long = "replica", required = true, value_name = "URL")]
    pub replicas: Vec<String>,
    /// Bytes of a piece [default: 256KiB, or as many as keep a file to 4,096 pieces]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub piece_size: Option<u64>,
    /// Write here [default: FILE.meta4 beside each file; - for standard output]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// Options of `metalink show`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway metalink show events.meta4
  fordway metalink show https://a.example.org/d/events.root --json")]
pub struct ShowArgs {
    /// A Metalink or a list of URLs, in a file or at a URL; or the URL of a file, whose server is asked
    pub source: String,
}
