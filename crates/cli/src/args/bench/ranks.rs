//! Options of the benchmarks that run on ranks.

use std::path::PathBuf;

use clap::Args;
use fordway_store::Bucket;
use fordway_workload::io500::Io500Plan;

/// A benchmark with its own options and those of all.
#[derive(Debug, Args)]
pub struct RanksArgs<P: Args> {
    /// Where and on how many ranks.
    #[command(flatten)]
    pub common: RankArgs,
    /// What is done.
    #[command(flatten)]
    pub plan: P,
}

/// Where a benchmark runs, and on how many ranks.
#[derive(Debug, Args)]
pub struct RankArgs {
    /// Where to work, one or more: DIRECTORY (plain files), file:///DIRECTORY (objects in this process) or
    /// http(s)://HOST[:PORT]; the first is what the others are compared with [default: the endpoint]
    #[arg(value_name = "PLACE")]
    pub places: Vec<String>,
    /// Take each DIRECTORY as plain files, as objects in this process, and through a gateway that is started
    #[arg(long)]
    pub all_lanes: bool,
    /// Ranks, each a thread that makes calls
    #[arg(long, short = 'T', default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// How often all is done, the places in turn; five or more give ratios an interval
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: u16,
    /// The bucket or directory that is made, and removed at the end
    #[arg(long, default_value = "fordway-bench", value_parser = bucket)]
    pub name: Bucket,
    /// Leave what was written
    #[arg(long)]
    pub keep: bool,
    /// Where the run is written: a directory, made if it is missing [default: BENCHMARK.run]
    #[arg(long, value_name = "NAME.run")]
    pub run: Option<PathBuf>,
}

/// Options of `bench io500`.
#[derive(Debug, Args)]
pub struct Io500Args {
    /// What all benchmarks on ranks have.
    #[command(flatten)]
    pub ranks: RanksArgs<Io500Plan>,
    /// Show a table of Gadban and Kunkel 2021 beside the result, 1 to 6; may be given more than once
    #[arg(long, value_name = "TABLE", value_parser = clap::value_parser!(u8).range(1..=6))]
    pub published: Vec<u8>,
}

fn bucket(text: &str) -> Result<Bucket, String> {
    // Benchmarks name further buckets after this one, which takes up to 32 bytes.
    match text.len() {
        0..=31 => Bucket::new(text).map_err(|error| error.to_string()),
        _ => Err("use at most 31 characters".to_owned()),
    }
}
