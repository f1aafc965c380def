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
use fordway_workload::options::{ForceArgs, OptionalOutputFileArgs, ReportArgs, SeedArgs};

use crate::args::NetworkLinkArgs;
use crate::args::VectorReadArgs;
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
    /// The benchmark to run.
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
    /// Generate HTTP load on a server, in an open or closed loop, over HTTP/1.1, 2 or 3
    Rest(RestBenchArgs),
    /// Measure the bandwidth of writing and reading large files, in blocks that consist of transfers
    #[command(after_help = IOR_EXAMPLES)]
    Ior(WorkloadArgs<IorPlan>),
    /// Measure the rates of creating, querying, reading and removing many small files
    #[command(after_help = MDTEST_EXAMPLES)]
    Mdtest(WorkloadArgs<MdtestPlan>),
    /// Measure the latency of each operation on data sets of constant size
    #[command(after_help = MDWORKBENCH_EXAMPLES)]
    Mdworkbench(WorkloadArgs<MdworkbenchPlan>),
    /// Read many ranges of one file, with one call and with several calls in flight
    Vector(VectorReadBenchArgs),
    /// Compare latency and bandwidth of MPI, TCP, HTTP and the lanes for messages of many sizes
    Transport(TransportBenchArgs),
    /// Run the phases of IO500 in order, and compute its scores
    #[command(after_help = IO500_EXAMPLES)]
    Io500(Io500Args),
    /// Compare containers, overlay networks and bare networks, with messages of many sizes
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

Without --rate, the load is a closed loop: each connection sends its next request after it has received the \
previous response, so a server that stalls receives fewer requests. With --rate, the load is an open loop: each \
request has an intended start time, and its latency counts from that time. In the URL, {number} is replaced by a \
number from 0 to N-1 (N is the value of --objects), and {size} by the size in bytes. If options contain lists, the \
command measures all combinations, and the HTTP versions take turns.")]
pub(crate) struct RestBenchArgs {
    /// URL to request, percent-encoded if necessary
    pub(crate) url: String,
    /// HTTP method of the requests
    #[arg(long, value_enum, ignore_case = true, default_value_t = HttpMethodArg::Get)]
    pub(crate) method: HttpMethodArg,
    /// Size of the body that a PUT sends, or that the response to a GET must have [default: 1 KiB for PUT, any size for GET]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_bytes)]
    pub(crate) size: Vec<u64>,
    /// Byte range to fetch with GET: FIRST-LAST (inclusive), FIRST- or -COUNT (the last COUNT bytes)
    #[arg(long, value_name = "RANGE", value_parser = byte_range, allow_hyphen_values = true)]
    pub(crate) range: Option<ByteRange>,
    /// Number of objects: {number} in the URL runs from 0 to N-1
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) objects: u64,
    /// HTTP versions to measure; the first version is the reference
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [HttpVersionArg::Http1])]
    pub(crate) http: Vec<HttpVersionArg>,
    /// Total number of connections of all threads, from 1 to 65536; a list measures each value
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1], value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) connections: Vec<u32>,
    /// Number of concurrent requests on each connection (only HTTP/2 and HTTP/3), from 1 to 65536; a list measures each
    /// value
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1], value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) streams: Vec<u32>,
    /// Number of threads, which share the connections, from 1 to 1024; a list measures each value
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1], value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Vec<u32>,
    /// Send this many requests per second (open loop) [default: closed loop]
    #[arg(long, value_name = "R", value_parser = parse_rate)]
    pub(crate) rate: Option<f64>,
    /// Distribution of the start times of requests in an open loop (with --rate)
    #[arg(long, value_enum, default_value_t = ArrivalProcessArg::Poisson, requires = "rate")]
    pub(crate) arrivals: ArrivalProcessArg,
    /// Duration of each measurement
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub(crate) duration: Duration,
    /// Number of requests in each measurement, instead of a fixed duration
    #[arg(long, value_name = "N", conflicts_with = "duration", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: Option<u64>,
    /// Duration of the warm-up before each measurement
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub(crate) warm_up: Duration,
    /// Number of times to measure each combination, from 1 to 1000; in each round, the HTTP versions take turns
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,
    /// Time limit for a response
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
    /// Sign every request (SigV4) with the credentials from the AWS environment
    #[arg(long)]
    pub(crate) sign: bool,
    /// Trust only the certificates in this PEM file [default: AWS_CA_BUNDLE, else the system's certificates]
    #[arg(long, value_name = "FILE", env = "AWS_CA_BUNDLE")]
    pub(crate) ca_bundle: Option<PathBuf>,
    /// Process ID of the server; the CPU time and other counters of the server and its descendants are reported
    #[arg(long, value_name = "PID")]
    pub(crate) server_pid: Option<u32>,
    /// The processors of the client and of the server. The `--server-pid` option names the server's process.
    #[command(flatten)]
    pub(crate) pins: CpuPinArgs,
    /// The seed for random start times.
    #[command(flatten)]
    pub(crate) chance: SeedArgs,
    /// The run file to write.
    #[command(flatten)]
    pub(crate) output: OptionalOutputFileArgs,
    /// The option that allows measuring on a busy machine.
    #[command(flatten)]
    pub(crate) trust: ForceArgs,
}

/// The processors on which the client and the server run.
#[derive(Clone, Debug, Args)]
pub(crate) struct CpuPinArgs {
    /// Processors to run the client's threads on [default: any]
    #[arg(long, value_name = "CPUS", value_delimiter = ',')]
    pub(crate) pin_client: Vec<usize>,
    /// Processors to run the server's processes on [default: any]
    #[arg(long, value_name = "CPUS", value_delimiter = ',')]
    pub(crate) pin_server: Vec<usize>,
}

/// The HTTP method of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "UPPER")]
pub(crate) enum HttpMethodArg {
    /// Read
    Get,
    /// Write
    Put,
    /// Request only the head of the response
    Head,
    /// Remove
    Delete,
}

/// The HTTP version of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HttpVersionArg {
    /// HTTP/1.1 over TCP
    #[value(name = "1.1")]
    Http1,
    /// HTTP/2 over TCP, negotiated by TLS or with prior knowledge
    #[value(name = "2")]
    Http2,
    /// HTTP/3 over QUIC
    #[cfg(feature = "http3")]
    #[value(name = "3")]
    Http3,
}

/// The distribution of the start times of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ArrivalProcessArg {
    /// At random (a Poisson process), as from many independent users
    Poisson,
    /// At equal intervals
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

All transports run on this machine, over loopback or shared memory. The latency is the time from the request for a \
message until the message has been received completely. For MPI and TCP, the command also reports half of the \
round-trip time. The fordway-mpi program, which `make mpi` builds, measures MPI. The command skips transports that \
are not installed, and names them. The first transport is the reference: MPI over TCP, if it is installed.")]
pub(crate) struct TransportBenchArgs {
    /// The sizes of messages and the number of rounds.
    #[command(flatten)]
    pub(crate) setting: fordway_workload::transport::TransportMessageArgs,
    /// Transports to measure [default: all transports that are installed]
    #[arg(long = "transport", value_enum, value_delimiter = ',')]
    pub(crate) transports: Vec<TransportKindArg>,
    /// Paths of fordway-mpi, one for each MPI implementation [default: fordway-mpi next to this program, or on PATH]
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    pub(crate) mpi: Vec<PathBuf>,
    /// MPI launcher [default: mpirun.openmpi or mpirun.mpich, else mpirun]
    #[arg(long, value_name = "CMD")]
    pub(crate) mpirun: Option<PathBuf>,
    /// Make waiting ranks of Open MPI yield the processor to other processes (mpi_yield_when_idle)
    #[arg(long)]
    pub(crate) mpi_yield: bool,
    /// Number of connections, each with its own thread, for measuring the bandwidth of nginx, http, node and embedded;
    /// from 1 to 256
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) connections: u16,
    /// The processors of the two sides.
    #[command(flatten)]
    pub(crate) pins: CpuPinArgs,
    /// Directory in which the command stores the messages as files, which nginx and the gateways then send to the
    /// client [default: the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// Whether to write a report of the run.
    #[command(flatten)]
    pub(crate) page: ReportArgs,
    /// The option that allows measuring on a busy machine.
    #[command(flatten)]
    pub(crate) trust: ForceArgs,
    /// Run as the responding process of the `tcp` transport
    #[arg(long, value_name = "ADDRESS", hide = true)]
    pub(crate) follow: Option<SocketAddr>,
}

/// The transports that `bench transport` can measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportKindArg {
    /// Two ranks of each MPI implementation, over TCP and over shared memory
    Mpi,
    /// A TCP connection over loopback between two processes
    Tcp,
    /// GETs of static files from nginx
    Nginx,
    /// S3 over HTTP, with a gateway that the command starts
    Http,
    /// The node protocol, with a gateway that the command starts
    Node,
    /// S3 semantics in this process
    Embedded,
}

impl TransportKindArg {
    /// All transports, in the order of the table that the command prints.
    pub(crate) const ALL: [TransportKindArg; 6] = [
        TransportKindArg::Mpi,
        TransportKindArg::Tcp,
        TransportKindArg::Nginx,
        TransportKindArg::Http,
        TransportKindArg::Node,
        TransportKindArg::Embedded,
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

`ping` requests messages of random sizes from `pong`. A set-up defines how `ping` and `pong` are started, and which \
network connects them. Each round measures all set-ups, in random order, with the same sizes. A set-up is a small \
TOML file: give the name of a built-in set-up, or the path of your own file. If a set-up does not start, the \
command reports the reason and measures the other set-ups. Set-ups with namespaces need root; the `loopback` set-up \
does not.")]
pub(crate) struct PingpongBenchArgs {
    /// Set-ups to measure; the first set-up is the reference [default: all built-in set-ups that use namespaces, and
    /// need neither --set nor an emulated processor]
    #[arg(long, value_name = "NAME|FILE", value_delimiter = ',')]
    pub(crate) setup: Vec<String>,
    /// List the built-in set-ups and exit
    #[arg(long)]
    pub(crate) list: bool,
    /// Value to substitute for {WORD} in set-ups (may be repeated)
    #[arg(long, value_name = "WORD=VALUE", value_parser = word)]
    pub(crate) set: Vec<(String, String)>,
    /// URL of a running `pong`, for the `loopback` set-up; {size} is replaced by the number of bytes
    #[arg(long, value_name = "URL")]
    pub(crate) pong: Option<String>,
    /// Whether to open a new connection for each request or keep connections alive
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [ConnectionReuseArg::PerRequest, ConnectionReuseArg::Kept])]
    pub(crate) connection_policy: Vec<ConnectionReuseArg>,
    /// Minimum size of a message, in bytes unless a unit follows
    #[arg(long, value_name = "SIZE", default_value = "1", value_parser = parse_bytes)]
    pub(crate) min: u64,
    /// Maximum size of a message, in bytes unless a unit follows
    #[arg(long, value_name = "SIZE", default_value = "500kB", value_parser = parse_bytes)]
    pub(crate) max: u64,
    /// Distribution of the random sizes
    #[arg(long, value_enum, default_value_t = SizeDistributionArg::Log)]
    pub(crate) scale: SizeDistributionArg,
    /// Number of random sizes in each round, from 1 to 1000000
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) points: u32,
    /// Draw enough random sizes that all rounds together cover this percentage of all possible sizes
    #[arg(long, value_name = "PERCENT", value_parser = percent, conflicts_with = "points")]
    pub(crate) coverage: Option<f64>,
    /// Number of requests of each size in a round, at least 1
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) repetitions: u16,
    /// Number of rounds, from 1 to 1000; each round measures all combinations
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,
    /// Number of concurrent requests, from 1 to 1024; a list measures each value
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [4], value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) concurrency: Vec<u16>,
    /// Number of processors for each side: `ping` runs on the first N processors, `pong` on the last N; a list measures
    /// each value [default: both run on all processors]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) cores: Vec<u16>,
    /// Duration of the warm-up before each measurement
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse_duration)]
    pub(crate) warm_up: Duration,
    /// Number of times `ping` retries a failed request to `pong`
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) retries: u32,
    /// Time limit for a response
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
    /// The link between `ping` and `pong`.
    #[command(flatten)]
    pub(crate) link: NetworkLinkArgs,
    /// MTU of the wire (maximum packet size), from 576 to 65535 bytes [default: 1500]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(576..=65_535))]
    pub(crate) mtu: Option<u32>,
    /// Send packets over the wire one by one, like a network card without segmentation offload
    #[arg(long)]
    pub(crate) no_offload: bool,
    /// TCP's initial receive window (the second number of tcp_rmem); a list repeats all measurements with each value
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_bytes)]
    pub(crate) tcp_rmem: Vec<u64>,
    /// Option to pass to the built-in `pong`, such as --delay=2ms (may be repeated)
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    pub(crate) pong_option: Vec<String>,
    /// The seed for the random sizes and orders.
    #[command(flatten)]
    pub(crate) chance: SeedArgs,
    /// The run file to write.
    #[command(flatten)]
    pub(crate) output: OptionalOutputFileArgs,
    /// The option that allows measuring on a busy machine.
    #[command(flatten)]
    pub(crate) trust: ForceArgs,
}

/// The lifetime of connections, both from the load generator to `ping` and from `ping` to `pong`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConnectionReuseArg {
    /// A new connection for each request
    PerRequest,
    /// Persistent connections, which are reused
    Kept,
}

/// The distribution of random sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SizeDistributionArg {
    /// The logarithms of the sizes are uniformly distributed: as many sizes from 1 to 2 kB as from 100 to 200 kB
    Log,
    /// The sizes are uniformly distributed
    Linear,
}

fn word(text: &str) -> Result<(String, String), String> {
    let refused = || format!("{text:?} is not of the form WORD=VALUE, such as pong-host=node2");
    let (word, value) = text.split_once('=').filter(|(word, _)| !word.is_empty()).ok_or_else(refused)?;
    Ok((word.to_owned(), value.to_owned()))
}

/// Options of `bench vector`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway bench vector http://127.0.0.1:8080/events.root --ranges baskets.txt --window 1,4 \\
    --rounds 7
  fordway bench vector s3://data/events.root --ranges baskets.txt --out out/vector.run

Each round reads all ranges once with each window. Before each window, the command reopens the file on new \
connections. An operation is one call, from its start until all of its bytes have been received.")]
pub(crate) struct VectorReadBenchArgs {
    /// http(s)://HOST/PATH, or s3://BUCKET/KEY on any lane
    pub(crate) url: String,
    /// File with one range per line, as `offset length`; - for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) ranges: PathBuf,
    /// Numbers of calls in flight to compare, each from 1 to 1024; the first number is the reference
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 4], value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) window: Vec<u32>,
    /// How ranges are grouped into calls and requests.
    #[command(flatten)]
    pub(crate) calls: VectorReadArgs,
    /// Number of times to read all ranges with each window, from 1 to 1000
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,
    /// The run file to write.
    #[command(flatten)]
    pub(crate) output: OptionalOutputFileArgs,
    /// The option that allows measuring on a busy machine.
    #[command(flatten)]
    pub(crate) trust: ForceArgs,
}

/// The options of a workload that runs on ranks: the common options, and the workload's own options.
#[derive(Debug, Args)]
pub(crate) struct WorkloadArgs<P: Args> {
    /// The endpoints, and the number of ranks.
    #[command(flatten)]
    pub(crate) common: BenchEndpointArgs,
    /// The benchmark's own options.
    #[command(flatten)]
    pub(crate) plan: P,
}

/// The endpoints that a benchmark measures, and the number of ranks. By default, only the command's endpoint is
/// measured.
#[derive(Debug, Args)]
pub(crate) struct BenchEndpointArgs {
    /// The endpoints to measure, and the number of rounds.
    #[command(flatten)]
    pub(crate) setting: fordway_workload::bench::MeasurementArgs,
    /// Measure each DIRECTORY as plain files, as objects in this process, and through a gateway that the command
    /// starts
    #[arg(long)]
    pub(crate) all_lanes: bool,
    /// Number of ranks, each of which is a thread, from 1 to 1024
    #[arg(long, short = 'T', default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: u16,
    /// The option that allows measuring on a busy machine.
    #[command(flatten)]
    pub(crate) trust: ForceArgs,
}

/// Options of `bench io500`.
#[derive(Debug, Args)]
pub(crate) struct Io500Args {
    /// The endpoints and the number of ranks, and the options of IO500.
    #[command(flatten)]
    pub(crate) ranks: WorkloadArgs<Io500Plan>,
    /// Also show the table with this number (1 to 6) from Gadban and Kunkel 2021 (may be repeated)
    #[arg(long, value_name = "TABLE", value_parser = clap::value_parser!(u8).range(1..=6))]
    pub(crate) published: Vec<u8>,
}
