//! The command line of the instrument: the one definition that the parser, `--help`, the manual pages and the shell
//! completions are made from. The options of `compare`, `ledger` and `speedup` are here too.

mod bench;
mod machines;
mod netlab;
mod target;

pub(crate) use bench::{
    ArrivalsArg, BenchArgs, BenchmarkCommand, HttpArg, MethodArg, PingpongBenchArgs, PolicyArg, RankArgs,
    RestArgs, ScaleArg, TransportArg, TransportArgs, VectorArgs,
};
pub(crate) use fordway_command::args::{CallArgs, DurabilityArg, ETagArg, GlobalArgs, ReplicaArgs};
pub(crate) use fordway_command::manual::{CompletionsArgs, ManArgs};
pub(crate) use machines::{
    DoctorArgs, FixArg, MachinesAction, MachinesArgs, MeasureArgs, PickArgs, ProbeArgs, SimilarityArgs,
};
pub(crate) use netlab::{
    EndArgs, LinkArgs, NetlabArgs, OffloadArg, PingArgs, PingpongAction, PingpongArgs, PongArgs, TunnelArgs,
};
pub(crate) use target::TargetArg;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use fordway_command::units::parse_duration;
use fordway_command::version::long_version;
use fordway_wire::size_text::parse_bytes;
use fordway_workload::options::{OutArgs, ReportArgs, SeedArgs};

/// What S3, networks and machines cost here.
#[derive(Debug, Parser)]
#[command(name = "fordway-lab", version, long_version = long_version(FEATURES), propagate_version = true, max_term_width = 100)]
#[command(about = "Measure what every lane to the objects costs here")]
#[command(after_help = AFTER_HELP)]
pub(crate) struct LabCommandLine {
    /// Options of every command.
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: MeasuringCommand,
}

/// What `--version` says that this program is built with.
const FEATURES: &[&str] = &[
    #[cfg(feature = "http3")]
    "http3",
];

const AFTER_HELP: &str = "\
`fordway NAME` runs these commands too: `fordway compare DIR` is `fordway-lab compare DIR`.

Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 permission or credentials, 5 condition or conflict, \
6 no space or quota, 7 endpoint unavailable, 8 data corrupt, 130 interrupted.";

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum MeasuringCommand {
    /// Measure the cost of S3 on this machine: one real directory over every lane
    Compare(CompareArgs),
    /// Measure what each layer costs by itself, and whether the layers add up to the lanes
    Ledger(LedgerArgs),
    /// Measure what cost models want to know of a machine
    Machines(MachinesArgs),
    /// Report what slows down programs on this node, with advice
    Doctor(DoctorArgs),
    /// Measure how much faster a parallel program is with more ranks, over shared memory, TCP and overlays
    Speedup(SpeedupArgs),
    /// Run a benchmark: load on a server, or ior, mdtest, mdworkbench, io500 on any lane
    Bench(BenchArgs),
    /// Run a client and a server with an emulated link between them, with a given delay, rate and loss
    Netlab(NetlabArgs),
    /// Run one end of an HTTP ping-pong, or of a tunnel, as started by `bench pingpong`
    Pingpong(PingpongArgs),
    /// Print the completions of a shell
    Completions(CompletionsArgs),
    /// Print the manual page, or write the pages of all commands
    Man(ManArgs),
}

/// Options of `compare`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway compare ~/results
  fordway compare /usr/share/doc --root /dev/shm --rounds 9
  fordway compare ./data --threads 8 --lane posix,http --out eight.run
  fordway compare ./data --target other=http://127.0.0.1:7070
  fordway compare ./data --check-instrument

Takes the files of DIR down every lane: puts all, lists, heads all, gets all, reads a random range of \
each, deletes all, in rounds, the lanes in turn block by block. Every read is compared with the \
source. The work is done in a temporary directory beside DIR (or in --root), which is removed at the \
end, also after Ctrl-C; DIR itself is only read. The first lane is what the others are compared with. \
--target adds a service that runs already, with the keys of the AWS environment: the work is done in a bucket \
that is made for it, or below a prefix of the bucket that its URL names, and what was made is removed.")]
pub(crate) struct CompareArgs {
    /// The directory with the files to use
    pub(crate) dir: PathBuf,
    /// Where to work [default: a temporary directory on DIR's file system]
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// Lanes to compare
    #[arg(long = "lane", value_enum, value_delimiter = ',', default_values_t = [LaneArg::Posix, LaneArg::Embedded, LaneArg::Node, LaneArg::Http])]
    pub(crate) lanes: Vec<LaneArg>,
    /// A service to compare with, as a row NAME: http(s)://HOST[:PORT][/BUCKET[/PREFIX]], or the endpoint of any lane
    /// (may be repeated)
    #[arg(long = "target", value_name = "NAME=URL", value_parser = TargetArg::parse)]
    pub(crate) targets: Vec<TargetArg>,
    /// Rounds that count
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,
    /// Rounds before them that do not count
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=100))]
    pub(crate) warm_up_rounds: u16,
    /// Threads that make calls at once
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: u16,
    /// What decides every order.
    #[command(flatten)]
    pub(crate) chance: SeedArgs,
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
    /// Where the run is written.
    #[command(flatten)]
    pub(crate) output: OutArgs,
    /// Whether to write a page of the run.
    #[command(flatten)]
    pub(crate) page: ReportArgs,
    /// Also measure the reference lane with a delay of about 1 ms per call, and report whether the measurement finds it
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

/// Options of `ledger`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway ledger
  fordway ledger --path node,http --size 4KiB,1MiB --duration 20s
  fordway ledger --root /dev/shm --out shm.run && fordway report shm.run
  fordway ledger --path http --setup bare,vxlan

Measures every layer by itself (a copy in memory, a pread, a round trip over a socket, a signature, \
...), and beside them whole GETs and PUTs that are made of these layers; in random order, block by block. \
Prints what each layer costs per operation and per MiB, what the layers of each way add up to, what \
the path really took, and what is left unexplained, all with 95 % intervals. It works in a temporary \
directory, which is removed at the end. docs/explain/ledger.md explains the components and the columns.")]
pub(crate) struct LedgerArgs {
    /// Paths to take apart [default: all]
    #[arg(long = "path", value_enum, value_name = "PATH", value_delimiter = ',')]
    pub(crate) paths: Vec<PathArg>,
    /// Take an HTTP get apart through the network of a set-up too, as root: bare, vxlan, tunnel, or a file
    #[arg(long, value_name = "NAME|FILE", value_delimiter = ',')]
    pub(crate) setup: Vec<String>,
    /// Sizes to print, measured in any case [default: 4KiB and 1MiB]
    #[arg(long = "size", value_name = "SIZE", value_delimiter = ',', value_parser = parse_bytes)]
    pub(crate) sizes: Vec<u64>,
    /// Measure only the printed sizes; fits are then less reliable
    #[arg(long)]
    pub(crate) only_sizes: bool,
    /// How long new rounds are started; there are at least five, after one warm-up round
    #[arg(long, value_name = "TIME", default_value = "50s", value_parser = parse_duration)]
    pub(crate) duration: Duration,
    /// On which processors the two sides run [default: apart, where there are two]
    #[arg(long, value_enum)]
    pub(crate) placement: Option<PlacementArg>,
    /// Where to work [default: the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// What decides every order.
    #[command(flatten)]
    pub(crate) chance: SeedArgs,
    /// Where the run is written.
    #[command(flatten)]
    pub(crate) output: OutArgs,
    /// Be the other side of the round trips, for the process that listens there.
    #[arg(long, hide = true, value_name = "ADDRESS")]
    pub(crate) echo: Option<String>,
    /// The file that the other side sends.
    #[arg(long, hide = true, requires = "echo", value_name = "FILE")]
    pub(crate) echo_file: Option<PathBuf>,
}

/// On which processors client and gateway run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlacementArg {
    /// The client on one, everything else on another
    Apart,
    /// All on one
    Together,
    /// Where the scheduler puts them, which differs from one pair of processes to the next
    Free,
}

/// The paths that `ledger` can take apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PathArg {
    /// A plain file by its absolute path
    Posix,
    /// S3 semantics in this process
    Embedded,
    /// The protocol of the node lane
    Node,
    /// S3 over HTTP/1.1
    Http,
    /// The same with TLS
    Https,
    /// S3 over HTTP/2 in the clear
    Http2,
    /// A put with S3 semantics in this process
    EmbeddedPut,
    /// A put by the protocol of the node lane
    NodePut,
    /// A put by S3 over HTTP/1.1
    HttpPut,
    /// The same with TLS
    HttpsPut,
}

/// Options of `speedup`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway speedup -- ./solver --cells 1000
  fordway speedup --ranks 1,2,4 --setup shm,loopback,bare,vxlan+yield --out solver.run -- ./solver
  fordway speedup --ranks 1,2 --deadline 5m -- sh -c './solver --parts {ranks}'
  fordway speedup --check richter
  fordway speedup --check table.csv

COMMAND is an MPI program, which is started by mpirun of Open MPI with each number of ranks in each \
set-up, in turn; {ranks} in it is their number. One rank is run in the first set-up, the reference. \
Set-ups: `default` is as Open MPI chooses, `shm` shared memory, `loopback` TCP on this machine's loopback \
device; any other is one of `fordway bench pingpong --list` that has two networks, or a file of such, with \
half of the ranks in each (needs root). NAME+yield has ranks give way while they wait. `make mpi` builds \
what has ranks report their communication.")]
pub(crate) struct SpeedupArgs {
    /// Numbers of ranks; 1 is always among them
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2",
        value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) ranks: Vec<u32>,
    /// Where ranks run and what carries their messages, the reference first
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "default,shm,loopback,bare,vxlan"
    )]
    pub(crate) setup: Vec<String>,
    /// Jobs of each kind that are measured, after one that is not
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(5..=1000))]
    pub(crate) rounds: u16,
    /// A job that takes longer has failed, and is ended with all its processes
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub(crate) deadline: Duration,
    /// Which time of a job the speed-up is computed from
    #[arg(long, value_enum, default_value_t = TimeArg::Wall)]
    pub(crate) time: TimeArg,
    /// The launcher [default: mpirun of PATH]
    #[arg(long, value_name = "FILE")]
    pub(crate) mpirun: Option<PathBuf>,
    /// What has ranks report [default: libfordway-pmpi.so beside this program, if it is there]
    #[arg(long, value_name = "FILE")]
    pub(crate) pmpi: Option<PathBuf>,
    /// Decides in which order the jobs of a round come
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Where the run is written.
    #[command(flatten)]
    pub(crate) output: OutArgs,
    /// Whether to write a page of the run.
    #[command(flatten)]
    pub(crate) page: ReportArgs,
    /// Recompute a published table instead: a CSV file, or richter, which is built in
    #[arg(long, value_name = "FILE", conflicts_with = "command")]
    pub(crate) check: Option<String>,
    /// Run what a launcher asks for in this network
    #[arg(long, value_name = "NETWORK", hide = true)]
    pub(crate) enter: Option<PathBuf>,
    /// The MPI program and its arguments
    #[arg(last = true, required_unless_present = "check", value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Which time of a job counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TimeArg {
    /// All of the job, its launch included
    Wall,
    /// From when the first rank has initialised MPI until the last rank finalises it
    Work,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        LabCommandLine::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        for command in LabCommandLine::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.starts_with("Examples:\n  fordway "), "{} has none", command.get_name());
        }
    }
}
