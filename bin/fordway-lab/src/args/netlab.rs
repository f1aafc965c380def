//! Options of `netlab` and `pingpong`: networks and the two ends of each.

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

COMMAND runs in a network of its own, --server in another, and a link as described is all there is \
between them. Both find the addresses in FORDWAY_NETLAB_SERVER and FORDWAY_NETLAB_CLIENT. When COMMAND \
ends, the server is asked to end, with all that it started; nothing is left, also after a kill. \
Without --rtt, --rate and --loss the two are joined by virtual Ethernet. It needs root, or a user \
namespace: `unshare --map-root-user fordway netlab ...`. The exit code is 0 if COMMAND's is.")]
pub(crate) struct NetlabArgs {
    /// What is between the two sides.
    #[command(flatten)]
    pub(crate) link: LinkArgs,
    /// Size of the link's queue [default: the bytes that the link carries in a round trip, at least 256KiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, requires = "rate")]
    pub(crate) queue: Option<u64>,
    /// Seed of packet loss: the same seed loses the same packets of a sequence
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Pass segments of up to 64 KiB as one packet, as network cards do; auto: only without loss
    #[arg(long, value_enum, default_value_t = OffloadArg::Auto)]
    pub(crate) tso: OffloadArg,
    /// Maximum size to which the kernel may grow the buffers of a TCP connection
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "64MiB")]
    pub(crate) tcp_buffer: u64,
    /// What to run as the server, by the shell
    #[arg(long, value_name = "COMMAND")]
    pub(crate) server: Option<String>,
    /// Wait until the server takes connections at this port (may be repeated)
    #[arg(long = "ready-port", value_name = "PORT", requires = "server")]
    pub(crate) ready_ports: Vec<u16>,
    /// Write what the link did, and how it was set up, to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) stats: Option<PathBuf>,
    /// What to run as the client
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) client: Vec<OsString>,
}

/// What a link between two networks is like, and how TCP behaves on it.
#[derive(Clone, Debug, Args)]
pub(crate) struct LinkArgs {
    /// Time from one side to the other and back, by the link emulator [default: as short as the machine's]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) rtt: Option<Duration>,
    /// Bits per second, each way, such as 1gbit [default: as fast as the machine is]
    #[arg(long, value_name = "RATE", value_parser = parse_bit_rate)]
    pub(crate) rate: Option<u64>,
    /// Share of packets that the link emulator loses, each way
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub(crate) loss: Option<f64>,
    /// Congestion control of TCP [default: the kernel's]
    #[arg(long, value_name = "NAME")]
    pub(crate) congestion: Option<String>,
}

/// Whether the link takes pieces that are larger than its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OffloadArg {
    /// Unless there is loss
    Auto,
    /// Always: cheaper
    On,
    /// Never: packet by packet
    Off,
}

/// Parses a percentage, with or without `%`, and returns it as a fraction of 1.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err(format!("{text:?} is not a share in percent; write a number from 0 to 100")),
    }
}

/// Options of `pingpong`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway pingpong pong --listen 127.0.0.1:8080
  fordway pingpong ping --listen 127.0.0.1:8081 --pong http://127.0.0.1:8080
  curl -so /dev/null -w '%{size_download}\\n' http://127.0.0.1:8081/ping/100000

GET /ping/N returns N bytes that ping has fetched from pong. `fordway bench pingpong` starts both in many set-ups \
and makes the load.")]
pub(crate) struct PingpongArgs {
    /// Which end.
    #[command(subcommand)]
    pub(crate) action: PingpongAction,
}

/// The ends.
#[derive(Debug, Subcommand)]
pub(crate) enum PingpongAction {
    /// Respond to GET /pong/N with N bytes from memory
    Pong(PongArgs),
    /// Respond to GET /ping/N with N bytes that are requested from pong
    Ping(PingArgs),
    /// Carry the packets of a new TUN device in UDP datagrams: one end of an overlay in user space
    Tunnel(TunnelArgs),
}

/// Where an end listens, and for how long.
#[derive(Debug, Args)]
pub(crate) struct EndArgs {
    /// Where to take connections; port 0 takes any free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    pub(crate) listen: String,
    /// Connections at once; others wait
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) workers: u16,
    /// End when standard input does, as well as at a signal
    #[arg(long)]
    pub(crate) until_eof: bool,
}

/// Options of `pingpong pong`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway pingpong pong --listen 0.0.0.0:8080
  fordway pingpong pong --delay 2ms --delay-from 262144

The delay is for tests of what looks for such steps.")]
pub(crate) struct PongArgs {
    /// Where, and for how long.
    #[command(flatten)]
    pub(crate) end: EndArgs,
    /// Wait this long before each response of at least --delay-from bytes
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) delay: Option<Duration>,
    /// The smallest response that is delayed
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, requires = "delay", default_value = "0")]
    pub(crate) delay_from: u64,
    /// The smallest response that is delayed, in units of TCP's first receive window (the second number of tcp_rmem)
    #[arg(long, value_name = "N", requires = "delay", conflicts_with = "delay_from")]
    pub(crate) delay_from_windows: Option<u64>,
}

/// Options of `pingpong ping`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway pingpong ping --listen 0.0.0.0:8081 --pong http://node2:8080
  fordway pingpong ping --pong 'http://node2/cgi/random?bytes={size}'

A request that asks for its connection to be closed is passed on by a new connection, which is closed too; others by \
connections that are kept.")]
pub(crate) struct PingArgs {
    /// Where, and for how long.
    #[command(flatten)]
    pub(crate) end: EndArgs,
    /// Where pong is; {size} stands for the number of bytes, without it /pong/SIZE is appended
    #[arg(long, value_name = "URL")]
    pub(crate) pong: String,
    /// How often pong is asked again before ping gives up; each time is counted
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) retries: u32,
    /// How long pong may take
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
}

/// Options of `pingpong tunnel`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway pingpong tunnel --device tun0 --listen 10.77.0.2:4789 --peer 10.77.0.1:4789

The device has no address and is down; `ip` makes it a part of the network. It needs root.")]
pub(crate) struct TunnelArgs {
    /// What to call the device
    #[arg(long, value_name = "NAME", default_value = "tun0")]
    pub(crate) device: String,
    /// This end
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) listen: String,
    /// The other end
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) peer: String,
}
