//! Options of `bench rest`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use fordway_command::args::byte_range;
use fordway_command::units::parse_duration;
use fordway_store::ByteRange;
use fordway_wire::size_text::parse_bytes;

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
    /// Objects that {number} counts through
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
    /// Threads, of which each has its share of the connections
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
    /// Load before that which does not count
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub(crate) warm_up: Duration,
    /// How often each combination is measured, in turn
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,
    /// How long an answer may take
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
    /// Keep the threads on these processors
    #[arg(long, value_name = "CPUS", value_delimiter = ',')]
    pub(crate) pin_client: Vec<usize>,
    /// Keep the server's processes on these processors
    #[arg(long, value_name = "CPUS", value_delimiter = ',', requires = "server_pid")]
    pub(crate) pin_server: Vec<usize>,
    /// Decides the arrivals by chance [default: drawn and reported]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Write the run, with a record of every request, to this directory
    #[arg(long, value_name = "NAME.run")]
    pub(crate) run: Option<PathBuf>,
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
