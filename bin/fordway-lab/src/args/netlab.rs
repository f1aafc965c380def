//! Options of `netlab`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use fordway_wire::size_text::parse_bytes;

use fordway_command::units::{parse_bit_rate, parse_duration};

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
    /// Time from the client to the server and back
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) rtt: Option<Duration>,
    /// Bits of IP packets per second, each way, such as 1gbit
    #[arg(long, value_name = "RATE", value_parser = parse_bit_rate)]
    pub(crate) rate: Option<u64>,
    /// Share of packets that is lost, each way
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub(crate) loss: Option<f64>,
    /// How much may wait for the line [default: what it carries in a round trip, at least 256KiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, requires = "rate")]
    pub(crate) queue: Option<u64>,
    /// Lose the same packets of the same sequence
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Let pieces of up to 64 KiB through as one, as network cards do; auto: unless there is loss
    #[arg(long, value_enum, default_value_t = OffloadArg::Auto)]
    pub(crate) tso: OffloadArg,
    /// How large the buffers of a TCP connection may grow by themselves
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "64MiB")]
    pub(crate) tcp_buffer: u64,
    /// Congestion control of TCP [default: the kernel's]
    #[arg(long, value_name = "NAME")]
    pub(crate) congestion: Option<String>,
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

/// A share as a fraction of 1.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err(format!("{text:?} is not a share in percent; write a number from 0 to 100")),
    }
}
