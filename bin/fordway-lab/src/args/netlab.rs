//! Options of `netlab`, which emulates a network, and of `pingpong`, which runs a program at one end of a network.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
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

/// Options of `pingpong`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway pingpong pong --listen 127.0.0.1:8080
  fordway pingpong ping --listen 127.0.0.1:8081 --pong http://127.0.0.1:8080
  curl -so /dev/null -w '%{size_download}\\n' http://127.0.0.1:8081/ping/100000

GET /ping/N returns N bytes that `ping` fetches from `pong`. `fordway bench pingpong` starts `ping` and `pong` in \
many set-ups and generates the load.")]
pub(crate) struct PingpongArgs {
    /// The end to run.
    #[command(subcommand)]
    pub(crate) action: PingpongSubcommand,
}

/// The ends that `pingpong` can run.
#[derive(Debug, Subcommand)]
pub(crate) enum PingpongSubcommand {
    /// Respond to GET /pong/N with N bytes from memory
    Pong(PongArgs),
    /// Respond to GET /ping/N with N bytes fetched from `pong`
    Ping(PingArgs),
    /// Run one end of a user-space overlay, which carries the packets of a TUN device in UDP datagrams
    Tunnel(TunnelArgs),
}

/// Where an end listens, how many connections it accepts, and when it exits.
#[derive(Debug, Args)]
pub(crate) struct ListenArgs {
    /// Address and port to listen on; port 0 selects a free port
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    pub(crate) listen: String,
    /// Maximum number of connections, from 1 to 4096; further connections wait
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) workers: u16,
    /// Exit at the end of standard input, and also on a signal
    #[arg(long)]
    pub(crate) until_eof: bool,
}

/// Options of `pingpong pong`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway pingpong pong --listen 0.0.0.0:8080
  fordway pingpong pong --delay 2ms --delay-from 262144

Use the delay to test programs that detect steps in response times.")]
pub(crate) struct PongArgs {
    /// Where to listen, and when to exit.
    #[command(flatten)]
    pub(crate) end: ListenArgs,
    /// Delay of each response of at least --delay-from bytes, such as 2ms [default: no delay]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) delay: Option<Duration>,
    /// Minimum size of a delayed response
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, requires = "delay", default_value = "0")]
    pub(crate) delay_from: u64,
    /// Minimum size of a delayed response, in units of TCP's initial receive window (the second number of tcp_rmem)
    #[arg(long, value_name = "N", requires = "delay", conflicts_with = "delay_from")]
    pub(crate) delay_from_windows: Option<u64>,
}

/// Options of `pingpong ping`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway pingpong ping --listen 0.0.0.0:8081 --pong http://node2:8080
  fordway pingpong ping --pong 'http://node2/cgi/random?bytes={size}'

`ping` forwards a request with `Connection: close` over a new connection, and closes that connection afterwards. \
`ping` forwards other requests over persistent connections.")]
pub(crate) struct PingArgs {
    /// Where to listen, and when to exit.
    #[command(flatten)]
    pub(crate) end: ListenArgs,
    /// URL of `pong`; {size} is replaced by the number of bytes; without {size}, /pong/SIZE is appended
    #[arg(long, value_name = "URL")]
    pub(crate) pong: String,
    /// Number of times `ping` retries a failed request to `pong`; the fordway-retries response header contains the
    /// number of retries made
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) retries: u32,
    /// Time limit for a response from `pong`
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
}

/// Options of `pingpong tunnel`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway pingpong tunnel --device tun0 --listen 10.77.0.2:4789 --peer 10.77.0.1:4789

The new device is down and has no address; configure it with `ip`. The command needs root.")]
pub(crate) struct TunnelArgs {
    /// Name of the TUN device
    #[arg(long, value_name = "NAME", default_value = "tun0")]
    pub(crate) device: String,
    /// Address and UDP port of this end
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) listen: String,
    /// Address and UDP port of the peer
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) peer: String,
}
