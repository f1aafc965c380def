//! Options of `bench`, one group for each family of benchmarks.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use fordway_command::args::byte_range;
use fordway_command::units::parse_duration;
use fordway_store::ByteRange;
use fordway_wire::size_text::parse_bytes;
use fordway_workload::io500::Io500Plan;
use fordway_workload::ior::IorPlan;
use fordway_workload::mdtest::MdtestPlan;
use fordway_workload::mdworkbench::MdworkbenchPlan;
use fordway_workload::options::{OptionalOutArgs, ReportArgs, SeedArgs};

use crate::args::CallArgs;
use crate::args::LinkArgs;
use crate::args::netlab::percent;

/// Options of `bench`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway bench rest http://127.0.0.1:9000/bucket/key --connections 16 --duration 10s
  fordway bench vector http://127.0.0.1:8080/events.root --ranges baskets.txt --window 1,4
  fordway bench transport --size 1KiB..16MiB
  fordway bench ior /lustre/scratch --threads 4
  fordway bench mdtest --mode hard file:///lustre/objects http://127.0.0.1:9000
  fordway bench io500 /lustre/scratch --all-lanes --stonewall 10
  fordway bench pingpong --setup bare,vxlan --out out/layers.run")]
pub(crate) struct BenchArgs {
    /// What is run.
    #[command(subcommand)]
    pub(crate) benchmark: BenchmarkCommand,
}

const IOR_EXAMPLES: &str = "Examples:
  fordway bench ior /lustre/scratch --all-lanes --threads 4
  fordway bench ior /lustre/scratch http://127.0.0.1:9000 --rounds 5 --out out/ior.run";

const MDTEST_EXAMPLES: &str = "Examples:
  fordway bench mdtest /lustre/scratch --all-lanes --threads 4
  fordway bench mdtest --mode hard file:///lustre/objects https://s3.example.org --items 500";

const MDWORKBENCH_EXAMPLES: &str = "Examples:
  fordway bench mdworkbench /lustre/scratch --all-lanes
  fordway bench mdworkbench --phases precreate /lustre/scratch --threads 4
  fordway bench mdworkbench --phases benchmark /lustre/scratch --threads 4
  fordway bench mdworkbench --phases cleanup /lustre/scratch --threads 4";

const IO500_EXAMPLES: &str = "Examples:
  fordway bench io500 /lustre/scratch --all-lanes --stonewall 10
  fordway bench io500 /lustre/scratch --threads 4 --published 4 --out out/io500.run";

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchmarkCommand {
    /// HTTP load on a server: open or closed loop, over HTTP/1.1, 2 and 3
    Rest(RestArgs),
    /// Large files in blocks and transfers: bandwidth
    #[command(after_help = IOR_EXAMPLES)]
    Ior(WorkloadArgs<IorPlan>),
    /// Many small files: create, stat, read, delete
    #[command(after_help = MDTEST_EXAMPLES)]
    Mdtest(WorkloadArgs<MdtestPlan>),
    /// Data sets of constant size: the latency of each operation
    #[command(after_help = MDWORKBENCH_EXAMPLES)]
    Mdworkbench(WorkloadArgs<MdworkbenchPlan>),
    /// Many ranges of one file: each call waited for, and several under way
    Vector(VectorArgs),
    /// MPI, TCP, HTTP and the lanes side by side: latency and bandwidth for messages of many sizes
    Transport(TransportArgs),
    /// IO500's phases in their order, and its scores
    #[command(after_help = IO500_EXAMPLES)]
    Io500(Io500Args),
    /// Messages of many sizes over containers and overlay networks, beside bare ones
    Pingpong(PingpongBenchArgs),
}

/// Options of `bench rest`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway bench rest http://127.0.0.1:8080/1k --connections 16 --duration 10s --server-pid 4711
  fordway bench rest http://127.0.0.1:8080/1k --rate 20000 --duration 30s
  fordway bench rest 'http://127.0.0.1:9000/bucket/o-{number}' --method PUT --size 1KiB,1MiB \\
    --objects 1000 --sign
  fordway bench rest https://localhost:8443/1k --http 1.1,2,3 --rounds 7 --ca-bundle root.crt

Without --rate it is a closed loop: each connection sends its next request when it has its answer, and a \
server that stalls is asked less. With --rate it is an open loop: requests have intended times, and \
latency counts from them. In the URL {number} stands for a number that counts through --objects, and {size} \
for the size in bytes. Lists make a sweep: all combinations are measured, the HTTP versions in turn.")]
pub(crate) struct RestArgs {
    /// The URL, percent-encoded where that is needed
    pub(crate) url: String,
    /// What each request does
    #[arg(long, value_enum, ignore_case = true, default_value_t = MethodArg::Get)]
    pub(crate) method: MethodArg,
    /// Bytes of the body: what PUT sends, what GET expects [default: 1 KiB for PUT, any for GET]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_bytes)]
    pub(crate) size: Vec<u64>,
    /// Bytes that GET asks for: FIRST-LAST (both included), FIRST- or -COUNT (from the end)
    #[arg(long, value_name = "RANGE", value_parser = byte_range, allow_hyphen_values = true)]
    pub(crate) range: Option<ByteRange>,
    /// The number of objects: {number} in the URL counts from 0 to N-1
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) objects: u64,
    /// HTTP versions; the first is what the others are compared with
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [HttpArg::Http1])]
    pub(crate) http: Vec<HttpArg>,
    /// Connections on all threads together
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1], value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) connections: Vec<u32>,
    /// Requests at once on each connection (HTTP/2 and 3)
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1], value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) streams: Vec<u32>,
    /// Threads, which share the connections
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1], value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Vec<u32>,
    /// Requests per second (open loop) [default: closed loop]
    #[arg(long, value_name = "R", value_parser = parse_rate)]
    pub(crate) rate: Option<f64>,
    /// What decides when the requests of --rate start
    #[arg(long, value_enum, default_value_t = ArrivalsArg::Poisson, requires = "rate")]
    pub(crate) arrivals: ArrivalsArg,
    /// How long each combination is measured
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub(crate) duration: Duration,
    /// Measure this many requests instead
    #[arg(long, value_name = "N", conflicts_with = "duration", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: Option<u64>,
    /// Warm-up: load before the measurement that is not measured
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub(crate) warm_up: Duration,
    /// How often each combination is measured, in turn
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,
    /// How long a response may take
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
    /// Sign every request (SigV4) with the credentials of the AWS environment
    #[arg(long)]
    pub(crate) sign: bool,
    /// Trust the certificates of this PEM file and no others [default: AWS_CA_BUNDLE, else the system's]
    #[arg(long, value_name = "FILE", env = "AWS_CA_BUNDLE")]
    pub(crate) ca_bundle: Option<PathBuf>,
    /// The server's process, to read its counters and its descendants'
    #[arg(long, value_name = "PID")]
    pub(crate) server_pid: Option<u32>,
    /// Where the two sides run; the server is the process of --server-pid.
    #[command(flatten)]
    pub(crate) pins: PinArgs,
    /// What decides arrivals by chance.
    #[command(flatten)]
    pub(crate) chance: SeedArgs,
    /// Where the run is written.
    #[command(flatten)]
    pub(crate) output: OptionalOutArgs,
}

/// On which processors the two sides run.
#[derive(Clone, Debug, Args)]
pub(crate) struct PinArgs {
    /// Keep the client's threads on these processors [default: where the kernel puts them]
    #[arg(long, value_name = "CPUS", value_delimiter = ',')]
    pub(crate) pin_client: Vec<usize>,
    /// Keep the server's processes on these processors [default: where the kernel puts them]
    #[arg(long, value_name = "CPUS", value_delimiter = ',')]
    pub(crate) pin_server: Vec<usize>,
}

/// Methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "UPPER")]
pub(crate) enum MethodArg {
    /// Read
    Get,
    /// Write
    Put,
    /// Ask for the head only
    Head,
    /// Remove
    Delete,
}

/// HTTP versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HttpArg {
    /// HTTP/1.1 over TCP
    #[value(name = "1.1")]
    Http1,
    /// HTTP/2 over TCP: with prior knowledge, or by TLS
    #[value(name = "2")]
    Http2,
    /// HTTP/3 over QUIC
    #[cfg(feature = "http3")]
    #[value(name = "3")]
    Http3,
}

/// What decides when requests start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ArrivalsArg {
    /// Chance, as of many independent users
    Poisson,
    /// A clock, at equal intervals
    Fixed,
}

fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (0.001..=1e7).contains(&rate) => Ok(rate),
        _ => Err(format!("{text:?} is not a rate; write requests per second, from 0.001 to 10000000")),
    }
}

/// Options of `bench transport`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway bench transport
  fordway bench transport --size 1..1MiB --factor 2 --rounds 9 --out small.run
  fordway bench transport --transport tcp,nginx,http --size 4KiB,1MiB
  fordway bench transport --pin-client 0 --pin-server 1
  fordway bench transport --mpi target/release/fordway-mpi,target/mpicc.mpich/release/fordway-mpi

Everything runs on this machine, over loopback or shared memory. A latency is the time from asking for \
a message until all of it is here; for MPI and TCP the half round trip is there too. MPI is measured by \
fordway-mpi, which `make mpi` builds; what is not installed is left out, and named. The first transport \
is what the others are compared with: MPI over TCP where it is there.")]
pub(crate) struct TransportArgs {
    /// What is measured, and how often.
    #[command(flatten)]
    pub(crate) setting: fordway_workload::transport::TransportSetting,
    /// Transports to measure [default: all that are installed]
    #[arg(long = "transport", value_enum, value_delimiter = ',')]
    pub(crate) transports: Vec<TransportArg>,
    /// fordway-mpi, one for each MPI [default: the one beside this program, or on PATH]
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    pub(crate) mpi: Vec<PathBuf>,
    /// What starts the ranks [default: mpirun.openmpi or mpirun.mpich, else mpirun]
    #[arg(long, value_name = "CMD")]
    pub(crate) mpirun: Option<PathBuf>,
    /// Let waiting ranks of Open MPI yield the processor to other processes (mpi_yield_when_idle)
    #[arg(long)]
    pub(crate) mpi_yield: bool,
    /// Connections, and threads that use them, for the bandwidth of nginx, http, node and embedded
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) connections: u16,
    /// Where the two sides run.
    #[command(flatten)]
    pub(crate) pins: PinArgs,
    /// Where the messages lie that servers read [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// Whether to write a page of the run.
    #[command(flatten)]
    pub(crate) page: ReportArgs,
    /// Be the other side of the bare TCP connection
    #[arg(long, value_name = "ADDRESS", hide = true)]
    pub(crate) follow: Option<SocketAddr>,
}

/// What `bench transport` can measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportArg {
    /// Two ranks of each MPI, over TCP and over shared memory
    Mpi,
    /// A bare TCP connection on loopback between two processes
    Tcp,
    /// GET of static files from nginx
    Nginx,
    /// S3 over HTTP, from a gateway started for the purpose
    Http,
    /// The protocol of the node lane, from a gateway started for the purpose
    Node,
    /// S3 semantics in this process
    Embedded,
}

impl TransportArg {
    /// All transports, in the order of the table.
    pub(crate) const ALL: [TransportArg; 6] = [
        TransportArg::Mpi,
        TransportArg::Tcp,
        TransportArg::Nginx,
        TransportArg::Http,
        TransportArg::Node,
        TransportArg::Embedded,
    ];
}

/// Options of `bench pingpong`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway bench pingpong --out out/layers.run && fordway report out/layers.run
  fordway bench pingpong --setup bare,vxlan,tunnel --rate 1gbit --out out/gigabit.run
  fordway bench pingpong --setup bare --tcp-rmem 87380,174760 --connection-policy per-request
  fordway bench pingpong --setup loopback --pong http://127.0.0.1:8080
  fordway bench pingpong --setup loopback,ssh --set pong-host=node2 --out out/node2.run
  fordway bench pingpong --setup bare,vm --set kernel-root=target/vm-kernel

Ping asks pong for messages of random sizes; a set-up is how both are started and what network is between them. \
Set-ups are measured in turn, in random order, with the same sizes. Each is a small TOML file: name built-in ones, or \
files. A set-up that does not start is told, and the others go on. Namespaces need root; `loopback` does not.")]
pub(crate) struct PingpongBenchArgs {
    /// Set-ups, the reference first [default: all built-in ones in namespaces that need no --set and emulate no
    /// processor]
    #[arg(long, value_name = "NAME|FILE", value_delimiter = ',')]
    pub(crate) setup: Vec<String>,
    /// Show the set-ups that are built in, and end
    #[arg(long)]
    pub(crate) list: bool,
    /// What a word in braces of a set-up stands for (may be repeated)
    #[arg(long, value_name = "WORD=VALUE", value_parser = word)]
    pub(crate) set: Vec<(String, String)>,
    /// The URL of an existing pong, for set-up `loopback`; {size} stands for the number of bytes
    #[arg(long, value_name = "URL")]
    pub(crate) pong: Option<String>,
    /// Whether each request has a connection of its own, or connections are kept
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [PolicyArg::PerRequest, PolicyArg::Kept])]
    pub(crate) connection_policy: Vec<PolicyArg>,
    /// The smallest message
    #[arg(long, value_name = "SIZE", default_value = "1", value_parser = parse_bytes)]
    pub(crate) min: u64,
    /// The largest message
    #[arg(long, value_name = "SIZE", default_value = "500kB", value_parser = parse_bytes)]
    pub(crate) max: u64,
    /// Whether sizes are drawn evenly from all sizes, or from their logarithms
    #[arg(long, value_enum, default_value_t = ScaleArg::Log)]
    pub(crate) scale: ScaleArg,
    /// Sizes drawn in each round
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) points: u32,
    /// Draw enough sizes that all rounds together cover this percentage of all sizes
    #[arg(long, value_name = "PERCENT", value_parser = percent, conflicts_with = "points")]
    pub(crate) coverage: Option<f64>,
    /// How often each size is asked for in a round
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) repetitions: u16,
    /// How often everything is measured, in turn
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,
    /// Requests at once
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [4], value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) concurrency: Vec<u16>,
    /// Keep each side on this many processors: ping on the first, pong on the last [default: all for both]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) cores: Vec<u16>,
    /// Load before each measurement that does not count
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse_duration)]
    pub(crate) warm_up: Duration,
    /// How often ping asks again when pong fails
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) retries: u32,
    /// How long a response may take
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
    /// What is between ping and pong.
    #[command(flatten)]
    pub(crate) link: LinkArgs,
    /// The largest packet on the wire, bytes [default: 1500]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(576..=65_535))]
    pub(crate) mtu: Option<u32>,
    /// Send packets over the wire one by one, like a network card without segmentation offload
    #[arg(long)]
    pub(crate) no_offload: bool,
    /// TCP's initial receive window (the second number of tcp_rmem); a list repeats all measurements with each value
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_bytes)]
    pub(crate) tcp_rmem: Vec<u64>,
    /// An option for the built-in pong, such as --delay=2ms (may be repeated)
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    pub(crate) pong_option: Vec<String>,
    /// What decides sizes and orders.
    #[command(flatten)]
    pub(crate) chance: SeedArgs,
    /// Where the run is written.
    #[command(flatten)]
    pub(crate) output: OptionalOutArgs,
}

/// Connections, at both legs: from the load to ping and from ping to pong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyArg {
    /// A new one for each request
    PerRequest,
    /// Kept and used again
    Kept,
}

/// From what sizes are drawn evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScaleArg {
    /// Their logarithms: as many from 1 to 2 kB as from 100 to 200 kB
    Log,
    /// All sizes
    Linear,
}

fn word(text: &str) -> Result<(String, String), String> {
    let refused = || format!("{text:?} sets nothing; write WORD=VALUE, such as pong-host=node2");
    let (word, value) = text.split_once('=').filter(|(word, _)| !word.is_empty()).ok_or_else(refused)?;
    Ok((word.to_owned(), value.to_owned()))
}

/// Options of `bench vector`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway bench vector http://127.0.0.1:8080/events.root --ranges baskets.txt --window 1,4 \\
    --rounds 7
  fordway bench vector s3://data/events.root --ranges baskets.txt --out out/vector.run

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
    /// Where the run is written.
    #[command(flatten)]
    pub(crate) output: OptionalOutArgs,
}

/// A benchmark with its own options and the common ones.
#[derive(Debug, Args)]
pub(crate) struct WorkloadArgs<P: Args> {
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
    pub(crate) setting: fordway_workload::bench::WorkloadSetting,
    /// Measure each DIRECTORY as plain files, as objects in this process, and through a gateway that is started for it
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
    pub(crate) ranks: WorkloadArgs<Io500Plan>,
    /// Show a table of Gadban and Kunkel 2021 beside the result, 1 to 6; may be given more than once
    #[arg(long, value_name = "TABLE", value_parser = clap::value_parser!(u8).range(1..=6))]
    pub(crate) published: Vec<u8>,
}
