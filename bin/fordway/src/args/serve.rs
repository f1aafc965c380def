//! Options of the commands that open a store on a directory: `serve` and `node`, and also `gc` and `fsck`, which
//! maintain a directory that is served or embedded.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use fordway_command::units::parse_duration;
use fordway_posix::{PosixConfig, ReadConsistency};
use fordway_store::Bucket;
use fordway_wire::size_text::parse_bytes;

use super::{DurabilityArg, ETagArg};

/// Options of every gateway: how the directory is written and read, and how programs come to know of it.
#[derive(Debug, Args)]
pub struct GatewayArgs {
    /// When a write counts as done
    #[arg(long, value_enum, default_value_t = DurabilityArg::Data)]
    pub durability: DurabilityArg,
    /// Which conditions on writes hold
    #[arg(long, value_enum, default_value_t = ConditionsArg::All)]
    pub conditions: ConditionsArg,
    /// How old the data that a read returns may be, on a file system that other nodes change too
    #[arg(long, value_enum, default_value_t = ConsistencyArg::FileSystem)]
    pub consistency: ConsistencyArg,
    /// Write the endpoint, and the key pair if there is just one, to a file that a shell can source (mode 0600)
    #[arg(long, value_name = "FILE")]
    pub write_env: Option<PathBuf>,
    /// End when standard input ends, so that no gateway outlives the program that started it
    #[arg(long, hide = true)]
    pub until_eof: bool,
}

impl GatewayArgs {
    /// Returns the store's configuration, with the ETag policy `etag`.
    pub(crate) fn store(&self, etag: ETagArg) -> PosixConfig {
        PosixConfig {
            etag_policy: etag.into(),
            durability: self.durability.into(),
            if_match: self.conditions == ConditionsArg::All,
            consistency: self.consistency.into(),
            ..PosixConfig::default()
        }
    }
}

/// Options of `serve`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway serve /lustre/project/objects
  AWS_ACCESS_KEY_ID=me AWS_SECRET_ACCESS_KEY=secret fordway serve . --listen 127.0.0.1:9000
  fordway serve /data --listen 127.0.0.1:0 --etag fast --durability none
  fordway serve /lustre --credentials /etc/fordway/users.toml --access-log /var/log/fordway.log \\
    --metrics 127.0.0.1:9100
  fordway serve /data --write-env s3.env     # elsewhere: . ./s3.env && aws s3 ls
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
    /// Address and port; port 0 takes any free one. A socket that systemd passes (LISTEN_FDS) takes its place
    #[arg(long, default_value = "127.0.0.1:9000", value_name = "ADDRESS:PORT", value_parser = socket_address)]
    pub listen: SocketAddr,
    /// The server certificate in PEM, followed by its chain
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Also serve HTTP/3, on the same port over UDP
    #[cfg(feature = "http3")]
    #[arg(long, requires = "tls_cert")]
    pub http3: bool,
    /// A host name before which a bucket may stand, as BUCKET.NAME; may be given several times
    #[arg(long = "domain", value_name = "NAME")]
    pub domains: Vec<String>,
    /// What new objects' ETags are made of
    #[arg(long, value_enum, default_value_t = ETagArg::Md5)]
    pub etag: ETagArg,
    /// How the directory is written and read, and what else every gateway has.
    #[command(flatten)]
    pub common: GatewayArgs,
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
    /// Maximum number of threads that serve connections; only as many as the load needs run [default: one per core]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub threads: usize,
}

/// Which conditions on writes hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ConditionsArg {
    /// If-Match too, which takes a lock for every overwrite and delete
    All,
    /// If-None-Match: * alone; for mounts whose locks do not hold between nodes
    NoneMatchOnly,
}

/// How old what a read tells may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ConsistencyArg {
    /// As old as the caches of this node: seconds on NFS
    FileSystem,
    /// Not older than the request, for some round trips to the file server
    Strong,
}

impl From<ConsistencyArg> for ReadConsistency {
    fn from(arg: ConsistencyArg) -> Self {
        match arg {
            ConsistencyArg::FileSystem => ReadConsistency::FileSystem,
            ConsistencyArg::Strong => ReadConsistency::Strong,
        }
    }
}

/// Parses the address to listen at. Errors have an example, in the form that clap shows.
pub(super) fn socket_address(text: &str) -> Result<SocketAddr, String> {
    let example =
        "write an address and a port, such as 127.0.0.1:9000, [::1]:9000 or 0.0.0.0:9000 (all addresses)";
    text.parse().map_err(|_| example.to_owned())
}

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
requests in progress. On the same socket, clients may also speak S3 over HTTP; signatures are not \
checked. By TCP clients must know the key pair of AWS_ACCESS_KEY_ID and \
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
    /// Let clients over TCP act as root, if root runs the gateway
    #[arg(long, requires = "tcp")]
    pub tcp_as_root: bool,
    /// What new objects' ETags are made of
    #[arg(long, value_enum, default_value_t = ETagArg::Fast)]
    pub etag: ETagArg,
    /// How the directory is written and read, and what else every gateway has.
    #[command(flatten)]
    pub common: GatewayArgs,
    /// Connections open at a time, a thread each; further ones are refused
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u16).range(1..))]
    pub connections: u16,
    /// Requests being done at a time; further ones wait [default: one of each connection]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub requests: Option<u16>,
    /// Memory for long messages and their responses on all connections together; each connection has 256 KiB besides
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_bytes)]
    pub memory: u64,
    /// Memory for the long messages of one connection; from 16 MiB on, every message of the protocol fits
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = parse_bytes)]
    pub connection_memory: u64,
}

fn mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("use three octal digits, as in 0660".to_owned()),
    }
}

/// Which directory, and which buckets of it.
#[derive(Debug, Args)]
pub struct DirectoryArgs {
    /// The directory whose subdirectories are the buckets
    pub root: PathBuf,
    /// Only this bucket; may be given more than once
    #[arg(long = "bucket", value_name = "NAME", value_parser = parse_bucket)]
    pub buckets: Vec<Bucket>,
}

fn parse_bucket(name: &str) -> Result<Bucket, String> {
    Bucket::new(name).map_err(|error| error.to_string())
}

/// Options of `gc`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway gc /lustre/project/objects --dry-run
  fordway gc /lustre/project/objects --uploads-older-than 30d --quiet
  fordway gc . --bucket results --bucket scratch --json

Removes what interrupted work left behind: staged files, multipart uploads that nobody went on with,
files that another one of the same key hides, and empty directories that S3 clients had made. It may
run at any time beside programs that read and write. Ages count from the last change on the file
system's clock. What cannot be removed is reported, and the rest is done.")]
pub struct GcArgs {
    /// Where
    #[command(flatten)]
    pub directory: DirectoryArgs,
    /// Remove staged files and empty directories that did not change for so long; longer than any writer pauses
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_duration)]
    pub older_than: Duration,
    /// Remove multipart uploads for which nothing arrived for so long
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = parse_duration)]
    pub uploads_older_than: Duration,
    /// Show what would be removed, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// Options of `fsck`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway fsck /lustre/project/objects
  fordway fsck /lustre/project/objects --read --json > findings.jsonl
  fordway fsck . --bucket results --read
  fordway fsck /lustre/project/objects --migrate

Holds what lies on disk against what is stored about it, and changes nothing but with --migrate. Each finding is one line: \
severity, kind, path, and what to do next. With --read, content that has an MD5 or a checksum is read \
and compared; an ETag of the kind `fast` says nothing of content, so such objects are not read. Exit code \
8 if anything is corrupt, 1 if something could not be read, 0 otherwise, also with notes.")]
pub struct FsckArgs {
    /// Where
    #[command(flatten)]
    pub directory: DirectoryArgs,
    /// Read content and compare it with its MD5 and checksum
    #[arg(long)]
    pub read: bool,
    /// First bring the directory to this version's format, and bind metadata again after a restore
    #[arg(long)]
    pub migrate: bool,
}
