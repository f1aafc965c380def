//! Options of `pingpong`, which runs a program at one end of a network.

use std::time::Duration;

use clap::{Args, Subcommand};
use fordway_command::units::parse_duration;
use fordway_wire::size_text::parse_bytes;

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
