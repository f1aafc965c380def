//! Options of `bench vector`.

use std::path::PathBuf;

use clap::Args;

use crate::args::CallArgs;

/// Options of `bench vector`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway bench vector http://127.0.0.1:8080/events.root --ranges baskets.txt --window 1,4 \\
    --rounds 7
  fordway bench vector s3://data/events.root --ranges baskets.txt --run out/vector.run

Every round reads all ranges once with each window, in turn; each time on new connections, and with the \
file opened anew. An operation is a call: from when it is made until its bytes are there.")]
pub(crate) struct VectorArgs {
    /// http(s)://HOST/PATH, or s3://BUCKET/KEY on any lane
    pub(crate) url: String,
    /// Where the ranges are: a file of `offset length` lines, or - for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) ranges: PathBuf,
    /// Calls under way at once; the first is what the others are compared with
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 4], value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) window: Vec<u32>,
    /// How the ranges are read.
    #[command(flatten)]
    pub(crate) calls: CallArgs,
    /// How often everything is read with each window
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,
    /// Write the run, with a record of every call, to this directory
    #[arg(long, value_name = "NAME.run")]
    pub(crate) run: Option<PathBuf>,
}
