//! Options of `node`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use fordway_wire::size_text::parse_bytes;

use super::serve::{ConditionsArg, socket_address};
use super::{DurabilityArg, ETagArg};

/// Options of `node`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway node /lustre/project/objects
  fordway node /scratch --socket /run/fordway/node.sock
  fordway --endpoint unix:///run/fordway/node.sock ls s3://bucket
  fordway node . --socket ./s --tcp 127.0.0.1:0
  fordway node --status --socket /run/fordway/node.sock
  curl --unix-socket /run/fordway/node.sock http://localhost/bucket/key

Every directory in ROOT is a bucket, every file below it an object. Programs reach them by the \
endpoint unix://SOCKET, without a key: the kernel says who calls. Run by root, the gateway carries out each \
request as its caller, with that user's permissions; run by a user, it serves that user alone. \
When the gateway is ready it prints one line with its endpoints. SIGTERM and Ctrl-C finish the \
requests in progress. On the same socket, clients may also speak S3 over HTTP; signatures are not checked. By TCP clients must know the key pair of AWS_ACCESS_KEY_ID and \
AWS_SECRET_ACCESS_KEY; without them a pair is made and printed.")]
pub struct NodeArgs {
    /// The directory whose subdirectories are the buckets
    #[arg(required_unless_present = "status", conflicts_with = "status")]
    pub root: Option<PathBuf>,
    /// Show what the gateway at this socket has done so far, instead of starting one
    #[arg(long)]
    pub status: bool,
    /// Where to make the socket; at most 107 bytes [default: $XDG_RUNTIME_DIR/fordway.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Permissions of the socket [default: 0600; 0666 for root]
    #[arg(long, value_name = "OCTAL", value_parser = mode)]
    pub mode: Option<u32>,
    /// Serve this user too, who then acts as the gateway's own (may be repeated; root needs none)
    #[arg(long = "allow-uid", value_name = "UID")]
    pub allow_uids: Vec<u32>,
    /// Serve the same protocol by TCP too; port 0 takes any free one
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = socket_address)]
    pub tcp: Option<SocketAddr>,
    /// Let who comes by TCP act as root, if that is who runs this
    #[arg(long, requires = "tcp")]
    pub tcp_as_root: bool,
    /// What new objects' ETags are made of
    #[arg(long, value_enum, default_value_t = ETagArg::Fast)]
    pub etag: ETagArg,
    /// When a write counts as done
    #[arg(long, value_enum, default_value_t = DurabilityArg::Data)]
    pub durability: DurabilityArg,
    /// Which conditions on writes hold
    #[arg(long, value_enum, default_value_t = ConditionsArg::All)]
    pub conditions: ConditionsArg,
    /// Connections open at a time, a thread each; further ones are refused
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u16).range(1..))]
    pub connections: u16,
    /// Requests being done at a time; further ones wait [default: one of each connection]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub requests: Option<u16>,
    /// Memory for long messages and their answers, all connections together; each has 256 KiB besides
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_bytes)]
    pub memory: u64,
    /// The same of one connection; at 16 MiB and more every message of the protocol fits
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = parse_bytes)]
    pub connection_memory: u64,
    /// End when standard input ends, so that no gateway outlives the program that started it
    #[arg(long, hide = true)]
    pub until_eof: bool,
}

fn mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("use three octal digits, as in 0660".to_owned()),
    }
}
