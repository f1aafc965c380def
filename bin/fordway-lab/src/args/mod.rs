//! The definition of the measuring instrument's command line, from which the parser, `--help`, the manual pages and the
//! shell completions are generated. This file also defines the options of `compare`, `ledger` and `speedup`.

mod bench;
mod link;
mod machines;
mod netlab;
mod pingpong;
mod target;

pub(crate) use bench::{
    ArrivalProcessArg, BenchArgs, BenchEndpointArgs, BenchmarkCommand, ConnectionReuseArg, HttpMethodArg,
    HttpVersionArg, PingpongBenchArgs, RestBenchArgs, SizeDistributionArg, TransportBenchArgs,
    TransportKindArg, VectorReadBenchArgs,
};
pub(crate) use fordway_command::args::{DurabilityArg, ETagArg, GlobalArgs, ReplicaArgs, VectorReadArgs};
pub(crate) use fordway_command::manual::{CompletionsArgs, ManArgs};
pub(crate) use link::LinkArg;
pub(crate) use machines::{
    DoctorArgs, JobSchedulerArg, MachinesArgs, MachinesSubcommand, MeasureArgs, PickArgs, ProbeArgs,
    SimilarityArgs,
};
pub(crate) use netlab::{NetlabArgs, NetworkLinkArgs, SegmentOffloadArg};
pub(crate) use pingpong::{ListenArgs, PingArgs, PingpongArgs, PingpongSubcommand, PongArgs, TunnelArgs};
pub(crate) use target::TargetArg;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use fordway_command::units::parse_duration;
use fordway_command::version::long_version;
use fordway_wire::size_text::parse_bytes;
use fordway_workload::options::{ForceArgs, OutputFileArgs, ReportArgs, SeedArgs};

/// Measure the cost of S3, networks and machines on this system.
#[derive(Debug, Parser)]
#[command(name = "fordway-lab", version, long_version = long_version(FEATURES), propagate_version = true, max_term_width = 100)]
#[command(about = "Measure the cost of S3 objects on every lane")]
#[command(after_help = AFTER_HELP)]
pub(crate) struct LabCommandLine {
    /// Options of every command.
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    /// The command to run.
    #[command(subcommand)]
    pub(crate) command: LabSubcommand,
}

/// The optional features that `--version` reports.
const FEATURES: &[&str] = &[
    #[cfg(feature = "http3")]
    "http3",
];

const AFTER_HELP: &str = "\
`fordway NAME` runs these commands too: for example, `fordway compare DIR` runs `fordway-lab compare DIR`.

Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 permission or credentials, 5 condition or conflict, \
6 no space or quota, 7 endpoint unavailable, 8 data corrupt, 130 interrupted.";

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum LabSubcommand {
    /// Measure the cost of S3 on this machine, on every lane, with the files in a directory
    Compare(CompareArgs),
    /// Measure each component of a request separately, and check whether their times add up to the time of the whole
    /// request
    Ledger(LedgerArgs),
    /// Measure a machine for cost models, and compare machines
    Machines(MachinesArgs),
    /// Report what slows down programs on this node, and what to do about it
    Doctor(DoctorArgs),
    /// Measure how a parallel program speeds up with more ranks, over shared memory, TCP and overlay networks
    Speedup(SpeedupArgs),
    /// Run a benchmark: generate HTTP load on a server, or run ior, mdtest, mdworkbench or io500 on any lane
    Bench(BenchArgs),
    /// Run a client and a server over an emulated link with a given round-trip time, rate and loss
    Netlab(NetlabArgs),
    /// Run one end of an HTTP ping-pong or of a tunnel, as `bench pingpong` does
    Pingpong(PingpongArgs),
    /// Print the completion script for a shell
    Completions(CompletionsArgs),
    /// Print the manual page, or write the manual pages of all commands
    Man(ManArgs),
}

/// Options of `compare`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway compare ~/results
  fordway compare /usr/share/doc --root /dev/shm --rounds 9
  fordway compare ./data --threads 8 --lane posix,http --out eight.run
  fordway compare ./data --target other=http://127.0.0.1:7070
  fordway compare ./data --link rtt=5ms,rate=1gbit --max-files 500
  fordway compare ./data --cache cold --root /var/tmp
  fordway compare ./data --clients 4 --threads 2
  fordway compare ./data --check-instrument

In each round, every lane performs these operations on the files of DIR: PUT, LIST, HEAD, GET, GET of a random \
range, and DELETE. The lanes take turns, block by block. The command compares the content of every read with the \
source file. The command works in a temporary directory on DIR's file system (or in --root), and removes that \
directory at the end, even after Ctrl-C. The command does not change DIR itself. The first lane is the reference \
for the other lanes. --target adds a running service, which the command accesses with the AWS credentials from the \
environment variables and configuration files. On that service, the command works in a new bucket, or below a prefix \
of the bucket in the URL, and removes everything that it created.

With --link, the gateways of the HTTP lanes run at the far end of an emulated link, in a network namespace; the other \
lanes need no network, and are measured as without --link. --link needs root, or a user namespace: `unshare \
--map-root-user fordway compare ...`. With --cache cold, the content of objects is removed from the page cache before \
each phase that reads it. Names and inodes stay in memory, and the caches of a disk or file server are not emptied. With \
--clients, the calls are made by child processes, each with its own connections.")]
pub(crate) struct CompareArgs {
    /// Directory with the files to use
    pub(crate) dir: PathBuf,
    /// Directory for the command's working files [default: a temporary directory on DIR's file system]
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// Lanes to compare
    #[arg(long = "lane", value_enum, value_delimiter = ',', default_values_t = [LaneArg::Posix, LaneArg::Embedded, LaneArg::Node, LaneArg::Http])]
    pub(crate) lanes: Vec<LaneArg>,
    /// Service to add to the comparison as row NAME: http(s)://HOST[:PORT][/BUCKET[/PREFIX]], or the endpoint of any
    /// lane (may be repeated)
    #[arg(long = "target", value_name = "NAME=URL", value_parser = TargetArg::parse)]
    pub(crate) targets: Vec<TargetArg>,
    /// Number of measured rounds, from 1 to 1000
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,
    /// Number of warm-up rounds before the measured rounds, from 0 to 100
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=100))]
    pub(crate) warm_up_rounds: u16,
    /// Number of client processes that make calls in parallel, from 1 to 256
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) clients: u16,
    /// Number of threads of each client that make calls in parallel, from 1 to 1024
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: u16,
    /// Emulated link between the client and the gateways of the HTTP lanes: rtt=TIME, rate=RATE, loss=PERCENT,
    /// congestion=NAME, or several of these [default: the loopback interface]
    #[arg(long, value_name = "rtt=TIME,rate=RATE", value_parser = LinkArg::parse)]
    pub(crate) link: Option<LinkArg>,
    /// Whether the page cache contains the content of objects when they are read
    #[arg(long, value_enum, default_value_t = CacheArg::Warm)]
    pub(crate) cache: CacheArg,
    /// The seed of every random order.
    #[command(flatten)]
    pub(crate) chance: SeedArgs,
    /// Maximum size of a range in the phase that reads random ranges
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = parse_bytes)]
    pub(crate) range_size: u64,
    /// Maximum number of files to use; if there are more, a random sample is used
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub(crate) max_files: usize,
    /// Maximum total size of the files to use; the command keeps these files in memory
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_bytes)]
    pub(crate) max_bytes: u64,
    /// How to generate ETags, on every lane that has ETags
    #[arg(long, value_enum, default_value_t = ETagArg::Fast)]
    pub(crate) etag: ETagArg,
    /// When to report a write as complete, on every lane
    #[arg(long, value_enum, default_value_t = DurabilityArg::None)]
    pub(crate) durability: DurabilityArg,
    /// The run file to write.
    #[command(flatten)]
    pub(crate) output: OutputFileArgs,
    /// The option that allows measuring on a busy machine.
    #[command(flatten)]
    pub(crate) trust: ForceArgs,
    /// Whether to write a report of the run.
    #[command(flatten)]
    pub(crate) page: ReportArgs,
    /// Also measure the reference lane with a delay of about 1 ms per call, and report whether the measurement detects
    /// the delay
    #[arg(long, conflicts_with = "link")]
    pub(crate) check_instrument: bool,
}

/// The state of the page cache before reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CacheArg {
    /// The cache contains the data just written
    Warm,
    /// No content is cached, so all content is read from the disk or the file server
    Cold,
}

/// The lanes that `compare` can set up by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LaneArg {
    /// Plain files, written under a temporary name and renamed
    Posix,
    /// S3 semantics in this process
    Embedded,
    /// The node protocol, with a gateway that the command starts
    Node,
    /// S3 over HTTP, with a gateway that the command starts
    Http,
    /// S3 over HTTPS, with a gateway and a certificate that the command creates
    Https,
    /// S3 over HTTP/2 without TLS
    Http2,
    /// S3 over HTTP/3, with a gateway and a certificate that the command creates
    #[cfg(feature = "http3")]
    Http3,
}

/// Options of `ledger`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway ledger
  fordway ledger --path node,http --size 4KiB,1MiB --duration 20s
  fordway ledger --root /dev/shm --out shm.run && fordway report shm.run
  fordway ledger --path http --setup bare,vxlan
  fordway ledger --path http --setup container,bare+container

The command measures every component alone (a copy in memory, a pread, a round trip over a socket, a signature, ...). \
It also measures whole GETs and PUTs that consist of these components. The blocks of all these measurements run in \
random order. For each component, the command prints the cost per operation and per MiB. For each path, it prints the \
sum of the components, the measured time, and the residual that the sum does not explain. All values have 95 % \
intervals. The command works in a temporary directory, and removes it at the end. docs/explain/ledger.md explains the \
components and the columns.")]
pub(crate) struct LedgerArgs {
    /// Paths to break down into components [default: all]
    #[arg(long = "path", value_enum, value_name = "PATH", value_delimiter = ',')]
    pub(crate) paths: Vec<LedgerPathArg>,
    /// Also break down an HTTP GET over the network of a set-up: bare, vxlan, tunnel, or the path of a set-up file.
    /// With NAME+container, the gateway runs in a container in the second network of that set-up; with container, the
    /// gateway runs in a container in this machine's network. All set-ups need root
    #[arg(long, value_name = "NAME|FILE", value_delimiter = ',')]
    pub(crate) setup: Vec<String>,
    /// Content sizes to print; other sizes are measured for the fits but not printed [default: 4KiB and 1MiB]
    #[arg(long = "size", value_name = "SIZE", value_delimiter = ',', value_parser = parse_bytes)]
    pub(crate) sizes: Vec<u64>,
    /// Measure only the printed sizes, which makes the fits less reliable
    #[arg(long)]
    pub(crate) only_sizes: bool,
    /// Time during which new rounds start; at least five rounds are measured, after one warm-up round
    #[arg(long, value_name = "TIME", default_value = "50s", value_parser = parse_duration)]
    pub(crate) duration: Duration,
    /// How to place client and server on processors [default: apart, if there are at least two processors]
    #[arg(long, value_enum)]
    pub(crate) placement: Option<CpuPlacementArg>,
    /// Directory for the command's working files [default: the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// The seed of every random order.
    #[command(flatten)]
    pub(crate) chance: SeedArgs,
    /// The run file to write.
    #[command(flatten)]
    pub(crate) output: OutputFileArgs,
    /// The option that allows measuring on a busy machine.
    #[command(flatten)]
    pub(crate) trust: ForceArgs,
    /// Run as the process that responds in round trips, for the measuring process that listens at this address.
    #[arg(long, hide = true, value_name = "ADDRESS")]
    pub(crate) echo: Option<String>,
    /// The file that the responding process sends, or the directory with the certificate of the responding process.
    #[arg(long, hide = true, requires = "echo", value_name = "FILE")]
    pub(crate) echo_file: Option<PathBuf>,
}

/// The processors that client and gateway run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CpuPlacementArg {
    /// The client on one processor, everything else on another
    Apart,
    /// Everything on one processor
    Together,
    /// Any processors that the scheduler chooses; its choice can differ between pairs of processes
    Free,
}

/// The paths that `ledger` can break down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LedgerPathArg {
    /// Plain file, opened by its absolute path
    Posix,
    /// S3 semantics in this process
    Embedded,
    /// The node protocol
    Node,
    /// S3 over HTTP/1.1
    Http,
    /// S3 over HTTPS
    Https,
    /// S3 over HTTP/2 without TLS
    Http2,
    /// S3 over HTTP/3
    Http3,
    /// S3 over HTTP/1.1, each GET on a new connection
    HttpNew,
    /// S3 over HTTPS, each GET on a new connection, with and without a resumed TLS session
    HttpsNew,
    /// S3 over HTTP/3, each GET on a new connection, with and without a resumed TLS session
    Http3New,
    /// PUT with S3 semantics in this process
    EmbeddedPut,
    /// PUT over the node protocol
    NodePut,
    /// PUT with S3 over HTTP/1.1
    HttpPut,
    /// PUT with S3 over HTTPS
    HttpsPut,
    /// PUT with S3 over HTTP/3
    Http3Put,
}

/// Options of `speedup`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway speedup -- ./solver --cells 1000
  fordway speedup --ranks 1,2,4 --setup shm,loopback,bare,vxlan+yield --out solver.run -- ./solver
  fordway speedup --ranks 1,2 --deadline 5m -- sh -c './solver --parts {ranks}'
  fordway speedup --check richter
  fordway speedup --check table.csv

COMMAND is an MPI program. Open MPI's mpirun starts the program in each set-up with each rank count, one job after \
the other. {ranks} in COMMAND is replaced by the rank count. A single rank runs only in the first set-up, which is \
the reference. In the `default` set-up, Open MPI chooses how ranks communicate; `shm` uses shared memory, and `loopback` \
uses TCP on this machine's loopback device. Other set-ups are the built-in set-ups with two networks (`fordway bench \
pingpong --list`), or files that describe such set-ups. Set-ups with two networks need root, and half of the ranks \
run in each network. With NAME+yield, waiting ranks yield the processor. `make mpi` builds the library that reports \
the communication of the ranks.")]
pub(crate) struct SpeedupArgs {
    /// Rank counts to measure, each from 1 to 4096; 1 is always included
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2",
        value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) ranks: Vec<u32>,
    /// Set-ups to measure: where ranks run, and how they communicate; the first set-up is the reference
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "default,shm,loopback,bare,vxlan"
    )]
    pub(crate) setup: Vec<String>,
    /// Number of measured jobs for each set-up and rank count, from 5 to 1000, after one warm-up job
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(5..=1000))]
    pub(crate) rounds: u16,
    /// Time limit for a job; a job that takes longer fails, and its processes are terminated
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub(crate) deadline: Duration,
    /// How to measure a job's time when computing the speed-up
    #[arg(long, value_enum, default_value_t = SpeedupTimeArg::Wall)]
    pub(crate) time: SpeedupTimeArg,
    /// MPI launcher [default: mpirun.openmpi, else mpirun, from PATH]
    #[arg(long, value_name = "FILE")]
    pub(crate) mpirun: Option<PathBuf>,
    /// Library that is preloaded into the ranks and records their MPI calls [default: libfordway-pmpi.so next to this
    /// program, if it exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) pmpi: Option<PathBuf>,
    /// Seed for the random order of jobs within a round
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// The run file to write.
    #[command(flatten)]
    pub(crate) output: OutputFileArgs,
    /// The option that allows measuring on a busy machine.
    #[command(flatten)]
    pub(crate) trust: ForceArgs,
    /// Whether to write a report of the run.
    #[command(flatten)]
    pub(crate) page: ReportArgs,
    /// Recompute a published table instead of running jobs: a CSV file, or the built-in table `richter`
    #[arg(long, value_name = "FILE", conflicts_with = "command")]
    pub(crate) check: Option<String>,
    /// Run the command that a launcher requests, in this network or in the container at this address
    #[arg(long, value_name = "NETWORK|ADDRESS", hide = true)]
    pub(crate) enter: Option<PathBuf>,
    /// Run the commands that arrive at this address
    #[arg(long, value_name = "ADDRESS", hide = true, conflicts_with = "command")]
    pub(crate) accept: Option<std::net::IpAddr>,
    /// MPI program and its arguments
    #[arg(last = true, required_unless_present_any = ["check", "accept"], value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// How a job's time is measured when the speed-up is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SpeedupTimeArg {
    /// The whole job, including its launch
    Wall,
    /// From the first rank's MPI initialization to the last rank's finalization
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
