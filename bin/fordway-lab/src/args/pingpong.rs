//! Options of `pingpong`.

use std::time::Duration;

use clap::{Args, Subcommand};
use fordway_wire::size_text::parse_bytes;

use fordway_command::units::parse_duration;

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
    /// Answer GET /pong/N with N bytes out of memory
    Pong(PongArgs),
    /// Answer GET /ping/N with N bytes that are asked of pong
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
    /// Wait so long before each answer of at least --delay-from bytes
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) delay: Option<Duration>,
    /// The smallest answer that waits
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, requires = "delay", default_value = "0")]
    pub(crate) delay_from: u64,
    /// The smallest answer that waits, in units of TCP's first receive window (the second number of tcp_rmem)
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
