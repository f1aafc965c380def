//! Options of `read`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use fordway_wire::size_text::parse_bytes;

use super::{CallArgs, ReplicaArgs};

/// Options of `read`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["ranges", "sequential"]))]
#[command(after_help = "Examples:
  fordway read https://data.example.org/events.root --ranges baskets.txt --output baskets.bin
  echo '0 4096' | fordway read s3://data/run.h5 --ranges - | xxd
  fordway read http://127.0.0.1:8080/events.root --ranges baskets.txt --window 4 --discard --json
  fordway read http://127.0.0.1:8080/events.root --sequential 64KiB --discard
  fordway read https://data.example.org/events.root --ranges baskets.txt --http 2 --discard
  fordway read --metalink events.meta4 --ranges baskets.txt --output baskets.bin

A line of --ranges is an offset and a length in bytes: `4096 1000`. The bytes are written one range behind \
the other, in the order asked for. Ranges may overlap; one that ends behind the file is an error.")]
pub struct ReadArgs {
    /// http(s)://HOST/PATH, or s3://BUCKET/KEY on any lane
    #[arg(required_unless_present = "metalink")]
    pub url: Option<String>,
    /// Where the ranges are: a file of `offset length` lines, or - for standard input
    #[arg(long, value_name = "FILE")]
    pub ranges: Option<PathBuf>,
    /// Read all of a file, or of an object by HTTP, in blocks of this size, one behind the other, and read ahead
    #[arg(long, value_name = "SIZE", value_parser = block_bytes, conflicts_with_all = ["window", "per_call"])]
    pub sequential: Option<u64>,
    /// Memory for what --sequential reads ahead
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "64MiB", requires = "sequential")]
    pub read_ahead: u64,
    /// Calls under way at once; with 1 each waits for the one before
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub window: u32,
    /// How the ranges are read.
    #[command(flatten)]
    pub calls: CallArgs,
    /// Where else an http(s) file is
    #[command(flatten)]
    pub replicas: ReplicaArgs,
    /// Read just the ranges, and not the pieces that they lie in, which a Metalink has digests of
    #[arg(long)]
    pub no_verify: bool,
    /// Write to this file instead of standard output
    #[arg(long, short, value_name = "FILE", conflicts_with = "discard")]
    pub output: Option<PathBuf>,
    /// Throw the bytes away, and report what reading them took
    #[arg(long)]
    pub discard: bool,
}

fn block_bytes(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        0 => Err("blocks have one byte or more".to_owned()),
        bytes => Ok(bytes),
    }
}
