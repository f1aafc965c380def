//! Options of `compare`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{DurabilityArg, ETagArg};
use fordway_wire::size_text::parse_bytes;

/// Options of `compare`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway compare ~/results
  fordway compare /usr/share/doc --root /dev/shm --rounds 9
  fordway compare ./data --threads 8 --lane posix --lane http --out eight.run
  fordway compare ./data --check-instrument

Takes the files of DIR down every lane: puts all, lists, heads all, gets all, reads a random range of \
each, deletes all, in rounds, the lanes in turn block by block. Every read is compared with the \
source. The work is done in a temporary directory beside DIR (or in --root), which is removed at the \
end, also after Ctrl-C; DIR itself is only read. The first lane is what the others are compared with.")]
pub(crate) struct CompareArgs {
    /// The directory with the files to use
    pub(crate) dir: PathBuf,
    /// Where to work [default: a temporary directory on DIR's file system]
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// Lanes to compare
    #[arg(long = "lane", value_enum, default_values_t = [LaneArg::Posix, LaneArg::Embedded, LaneArg::Node, LaneArg::Http])]
    pub(crate) lanes: Vec<LaneArg>,
    /// Rounds that count
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,
    /// Rounds before them that do not count
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=100))]
    pub(crate) warm_up: u16,
    /// Threads that make calls at once
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: u16,
    /// Decides the order of files, blocks and lanes, and the ranges [default: drawn and reported]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// The most bytes of a range read
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = parse_bytes)]
    pub(crate) range_size: u64,
    /// The most files used; more are sampled
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub(crate) max_files: usize,
    /// The most bytes used; they are held in memory
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_bytes)]
    pub(crate) max_bytes: u64,
    /// What ETags are made of, on every lane that has ETags
    #[arg(long, value_enum, default_value_t = ETagArg::Fast)]
    pub(crate) etag: ETagArg,
    /// When a write counts as done, on every lane
    #[arg(long, value_enum, default_value_t = DurabilityArg::None)]
    pub(crate) durability: DurabilityArg,
    /// Where the run is written: a directory, made if it is missing
    #[arg(long, value_name = "NAME.run", default_value = "compare.run")]
    pub(crate) out: PathBuf,
    /// Write no HTML report
    #[arg(long)]
    pub(crate) no_report: bool,
    /// Add the reference lane once more, slowed by about 1 ms a call, and say whether the measurement finds that
    #[arg(long)]
    pub(crate) check_instrument: bool,
}

/// The lanes that `compare` can set up by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LaneArg {
    /// Plain files: write to a temporary name, rename
    Posix,
    /// S3 semantics in this process
    Embedded,
    /// The protocol of the node lane, from a gateway started for the purpose
    Node,
    /// S3 over HTTP, from a gateway started for the purpose
    Http,
    /// The same with TLS, and a certificate made for the purpose
    Https,
    /// S3 over HTTP/2 in the clear
    Http2,
}
