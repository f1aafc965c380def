//! Options of `bench pingpong`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use fordway_wire::size_text::parse_bytes;

use crate::args::netlab::percent;
use fordway_command::units::{parse_bit_rate, parse_duration};

/// Options of `bench pingpong`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway bench pingpong --run out/layers.run && fordway report out/layers.run
  fordway bench pingpong --setup bare,vxlan,tunnel --rate 1gbit --run out/gigabit.run
  fordway bench pingpong --setup bare --tcp-rmem 87380,174760 --connections per-request
  fordway bench pingpong --setup loopback --pong http://127.0.0.1:8080
  fordway bench pingpong --setup loopback,ssh --set pong-host=node2 --run out/node2.run
  fordway bench pingpong --setup bare,vm --set kernel-root=target/vm-kernel

Ping asks pong for messages of random sizes; a set-up is how both are started and what network is between them. \
Set-ups are measured in turn, in random order, with the same sizes. Each is a small TOML file: name built-in ones, or \
files. A set-up that does not start is told, and the others go on. Namespaces need root; `loopback` does not.")]
pub(crate) struct PingpongBenchArgs {
    /// Set-ups, the reference first [default: all that are built in, ask for nothing and emulate no processor]
    #[arg(long, value_name = "NAME|FILE", value_delimiter = ',')]
    pub(crate) setup: Vec<String>,
    /// Show the set-ups that are built in, and end
    #[arg(long)]
    pub(crate) list: bool,
    /// What a word in braces of a set-up stands for (may be repeated)
    #[arg(long, value_name = "WORD=VALUE", value_parser = word)]
    pub(crate) set: Vec<(String, String)>,
    /// A pong that is there already, for set-up `loopback`; {size} stands for the number of bytes
    #[arg(long, value_name = "URL")]
    pub(crate) pong: Option<String>,
    /// Whether each request has a connection of its own, or connections are kept
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [PolicyArg::PerRequest, PolicyArg::Kept])]
    pub(crate) connections: Vec<PolicyArg>,
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
    /// Draw enough sizes that all rounds cover this share of all sizes instead
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
    /// How long an answer may take
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
    /// Bits per second of the wire, each way (a token bucket, tbf) [default: as fast as the machine is]
    #[arg(long, value_name = "RATE", value_parser = parse_bit_rate)]
    pub(crate) rate: Option<u64>,
    /// A round trip, by the link emulator
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) rtt: Option<Duration>,
    /// Share of packets that the link emulator loses
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub(crate) loss: Option<f64>,
    /// The largest packet on the wire, bytes [default: 1500]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(576..=65_535))]
    pub(crate) mtu: Option<u32>,
    /// Have the wire take packets one by one, as a network card does that cannot cut pieces of 64 KiB
    #[arg(long)]
    pub(crate) no_offload: bool,
    /// The receive window that TCP begins with (the second number of tcp_rmem); a list repeats all with each
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_bytes)]
    pub(crate) tcp_rmem: Vec<u64>,
    /// Congestion control of TCP [default: the kernel's]
    #[arg(long, value_name = "NAME")]
    pub(crate) congestion: Option<String>,
    /// An option for the built-in pong, such as --delay=2ms (may be repeated)
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    pub(crate) pong_option: Vec<String>,
    /// Decides sizes and order [default: drawn and reported]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Write the run, with a record of every message, to this directory
    #[arg(long, value_name = "NAME.run")]
    pub(crate) run: Option<PathBuf>,
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
