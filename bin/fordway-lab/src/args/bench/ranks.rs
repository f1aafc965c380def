//! Options of the benchmarks that run on ranks.

use clap::Args;
use fordway_workload::bench::Setting;
use fordway_workload::io500::Io500Plan;

/// A benchmark with its own options and the common ones.
#[derive(Debug, Args)]
pub(crate) struct RanksArgs<P: Args> {
    /// Where and on how many ranks.
    #[command(flatten)]
    pub(crate) common: RankArgs,
    /// What is done.
    #[command(flatten)]
    pub(crate) plan: P,
}

/// Where a benchmark runs, and on how many ranks. Without a place it is the endpoint.
#[derive(Debug, Args)]
pub(crate) struct RankArgs {
    /// Where, and how often.
    #[command(flatten)]
    pub(crate) setting: Setting,
    /// Take each DIRECTORY as plain files, as objects in this process, and through a gateway that is started
    #[arg(long)]
    pub(crate) all_lanes: bool,
    /// Ranks, each a thread that makes calls
    #[arg(long, short = 'T', default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: u16,
}

/// Options of `bench io500`.
#[derive(Debug, Args)]
pub(crate) struct Io500Args {
    /// What all benchmarks on ranks have.
    #[command(flatten)]
    pub(crate) ranks: RanksArgs<Io500Plan>,
    /// Show a table of Gadban and Kunkel 2021 beside the result, 1 to 6; may be given more than once
    #[arg(long, value_name = "TABLE", value_parser = clap::value_parser!(u8).range(1..=6))]
    pub(crate) published: Vec<u8>,
}
