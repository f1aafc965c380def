//! Options of `netlab`, which emulates a network.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use fordway_command::units::{parse_bit_rate, parse_duration};
use fordway_wire::size_text::parse_bytes;

/// Options of `netlab`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway netlab --rtt 30ms -- sh -c 'ping -c 3 $FORDWAY_NETLAB_SERVER'
  fordway netlab --rtt 30ms --rate 1gbit --queue 64MiB --server 'python3 -m http.server 8080' \\
    --ready-port 8080 -- sh -c 'curl -o /dev/null http://$FORDWAY_NETLAB_SERVER:8080/big'
  fordway netlab --rtt 80ms --rate 100mbit --loss 0.1 --stats link.json -- ./client

COMMAND and the --server command each run in a separate network namespace; the emulated link is the only connection \
between them. FORDWAY_NETLAB_SERVER and FORDWAY_NETLAB_CLIENT contain the addresses of the server and of the \
client. When COMMAND exits, netlab terminates the server, and all processes that COMMAND and the server started. No \
process and no part of the network remains, even if netlab is killed. COMMAND is the first process of a PID namespace, \
so it sees no processes outside, and gets only signals for which it has a handler. Without --rtt, --rate and --loss, \
the link is virtual Ethernet. The command needs root, or a user namespace: `unshare --map-root-user fordway netlab \
...`. The exit code is 0 if COMMAND exits with 0.")]
pub(crate) struct NetlabArgs {
    /// The link between the two sides.
    #[command(flatten)]
    pub(crate) link: NetworkLinkArgs,
    /// Size of the link's queue [default: the bandwidth-delay product, at least 256KiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, requires = "rate")]
    pub(crate) queue: Option<u64>,
    /// Seed for random packet loss; links with the same seed drop the same packets of equal sequences
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Whether to pass segments of up to 64 KiB as one packet, as network cards do
    #[arg(long, value_enum, default_value_t = SegmentOffloadArg::Auto)]
    pub(crate) tso: SegmentOffloadArg,
    /// Maximum size of each of the kernel's two buffers (send and receive) of a TCP connection
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "64MiB")]
    pub(crate) tcp_buffer: u64,
    /// Shell command to run as the server
    #[arg(long, value_name = "COMMAND")]
    pub(crate) server: Option<String>,
    /// Wait until the server accepts connections on this port (may be repeated)
    #[arg(long = "ready-port", value_name = "PORT", requires = "server")]
    pub(crate) ready_ports: Vec<u16>,
    /// Write the settings and counters of the link to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) stats: Option<PathBuf>,
    /// Command to run as the client
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) client: Vec<OsString>,
}

/// The properties of a link between two networks, and of TCP on that link.
#[derive(Clone, Debug, Args)]
pub(crate) struct NetworkLinkArgs {
    /// Round-trip time of the emulated link [default: no added delay]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) rtt: Option<Duration>,
    /// Bit rate of the emulated link in each direction, such as 1gbit [default: unlimited]
    #[arg(long, value_name = "RATE", value_parser = parse_bit_rate)]
    pub(crate) rate: Option<u64>,
    /// Percentage of packets that the emulated link drops in each direction
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub(crate) loss: Option<f64>,
    /// TCP congestion control algorithm [default: the kernel's]
    #[arg(long, value_name = "NAME")]
    pub(crate) congestion: Option<String>,
}

/// Whether the link accepts segments that are larger than its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SegmentOffloadArg {
    /// Only if the link drops no packets
    Auto,
    /// Always, which costs less CPU time
    On,
    /// Never
    Off,
}

/// Parses a percentage, with or without `%`, and returns a fraction from 0 to 1.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err(format!("{text:?} is not a percentage; write a number from 0 to 100")),
    }
}
