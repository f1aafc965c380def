//! Options of `serve`, and of what else opens a store on a directory.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::{DurabilityArg, ETagArg};
use clap::{Args, ValueEnum};
use fordway_wire::size_text::parse_bytes;

use fordway_command::units::parse_duration;

/// Options of `serve`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway serve /lustre/project/objects
  AWS_ACCESS_KEY_ID=me AWS_SECRET_ACCESS_KEY=secret fordway serve . --listen 127.0.0.1:9000
  fordway serve /data --listen 127.0.0.1:0 --etag fast --durability none
  fordway serve /lustre --credentials /etc/fordway/users.toml --access-log /var/log/fordway.log \\
    --metrics 127.0.0.1:9100
  fordway serve /data --listen 0.0.0.0:443 --tls-cert cert.pem --tls-key key.pem \\
    --domain s3.example.org

Every directory in ROOT is a bucket, every file below it an object. Requests must be signed with the \
one key pair of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; without them a pair is made and printed. \
With --credentials there are several users; run by root, the gateway uses files as the uid, gid and \
groups that the file says, and the kernel decides what they may. \
When the gateway is ready it prints one line with its address. SIGTERM and Ctrl-C finish the requests \
in progress; SIGHUP reads certificate, key and credentials file again and opens the access log anew. \
HTTP/1.1 and HTTP/2 are spoken, the latter to clients that choose it in their TLS handshake or begin \
with it; HTTP/3 is with --http3. Give a certificate before you listen beyond 127.0.0.1.")]
pub struct ServeArgs {
    /// The directory whose subdirectories are the buckets
    pub root: PathBuf,
    /// Address and port; port 0 takes any free one
    #[arg(long, default_value = "127.0.0.1:9000", value_name = "ADDRESS:PORT", value_parser = socket_address)]
    pub listen: SocketAddr,
    /// The certificate to show, in PEM, with those that lead to a trusted one behind it
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Speak HTTP/3 too, at the same port by UDP, to clients that look for it there
    #[cfg(feature = "http3")]
    #[arg(long, requires = "tls_cert")]
    pub http3: bool,
    /// A host name before which a bucket may stand, as BUCKET.NAME; may be given several times
    #[arg(long = "domain", value_name = "NAME")]
    pub domains: Vec<String>,
    /// What new objects' ETags are made of
    #[arg(long, value_enum, default_value_t = ETagArg::Md5)]
    pub etag: ETagArg,
    /// When a write counts as done
    #[arg(long, value_enum, default_value_t = DurabilityArg::Data)]
    pub durability: DurabilityArg,
    /// Which conditions on writes hold
    #[arg(long, value_enum, default_value_t = ConditionsArg::All)]
    pub conditions: ConditionsArg,
    /// Users with keys, uids and buckets (TOML, mode 0600), in place of the one key pair
    #[arg(long, value_name = "FILE")]
    pub credentials: Option<PathBuf>,
    /// Write a line of JSON for each request; - is standard output
    #[arg(long, value_name = "FILE")]
    pub access_log: Option<PathBuf>,
    /// Answer /metrics (Prometheus), /health and /ready there, to anyone who asks
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = socket_address)]
    pub metrics: Option<SocketAddr>,
    /// Connections open at a time; further clients wait
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..))]
    pub connections: u32,
    /// The most bytes of a request's head
    #[arg(long, value_name = "BYTES", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(4096..=1_048_576))]
    pub head_bytes: u32,
    /// The most bytes of a request's body [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub body_bytes: Option<u64>,
    /// How long a client may take to send a request's head, idle time included
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub header_timeout: Duration,
    /// How long a client may send or take nothing in the middle of a body
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub stall_timeout: Duration,
    /// How long requests in progress may go on after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub drain_timeout: Duration,
    /// Take signatures of version 2 too, which clients from before 2014 make
    #[arg(long)]
    pub signature_v2: bool,
    /// The most threads that serve connections; as few of them work as the load needs [default: one per core]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub threads: usize,
    /// End when standard input ends, so that no gateway outlives the program that started it
    #[arg(long, hide = true)]
    pub until_eof: bool,
}

/// Which conditions on writes hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ConditionsArg {
    /// If-Match too, which takes a lock for every overwrite and delete
    All,
    /// If-None-Match: * alone; for mounts whose locks do not hold between nodes
    NoneMatchOnly,
}

/// Where to listen. Errors: as clap shows them, with an example.
pub(super) fn socket_address(text: &str) -> Result<SocketAddr, String> {
    let example =
        "write an address and a port, such as 127.0.0.1:9000, [::1]:9000 or 0.0.0.0:9000 (all addresses)";
    text.parse().map_err(|_| example.to_owned())
}
