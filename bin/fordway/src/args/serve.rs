//! Options of the commands that open a store on a directory. `serve` and `node` are gateways; `gc`, `lifecycle` and
//! `fsck` maintain the directory of a gateway or of an embedded store.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use fordway_command::units::parse_duration;
use fordway_posix::{PosixConfig, ReadConsistency};
use fordway_serve::{UserLimits, WebhookConfig};
use fordway_store::Bucket;
use fordway_wire::size_text::parse_bytes;

use super::{DurabilityArg, ETagArg};

/// Options of every gateway: how the gateway writes and reads the directory, and how programs learn its address.
#[derive(Debug, Args)]
pub struct GatewayArgs {
    /// When to report a write as complete
    #[arg(long, value_enum, default_value_t = DurabilityArg::Data)]
    pub durability: DurabilityArg,
    /// Which conditional writes to support
    #[arg(long, value_enum, default_value_t = ConditionalWritesArg::All)]
    pub conditions: ConditionalWritesArg,
    /// How stale a read may be, on a file system that other nodes also modify
    #[arg(long, value_enum, default_value_t = ConsistencyArg::FileSystem)]
    pub consistency: ConsistencyArg,
    /// Write the endpoint, and the key pair if there is only one, to a file that a shell can source (mode 0600)
    #[arg(long, value_name = "FILE")]
    pub write_env: Option<PathBuf>,
    /// Exit when standard input ends, so that no gateway outlives the program that started it
    #[arg(long, hide = true)]
    pub until_eof: bool,
}

fn rate(text: &str) -> Result<NonZeroU64, String> {
    NonZeroU64::new(parse_bytes(text)?)
        .ok_or_else(|| "the rate must be at least 1 byte per second".to_owned())
}

impl ServeArgs {
    /// Returns the limits for users whose entries in the credentials file do not set any limits. `connections` is the
    /// maximum number of connections of the gateway.
    pub(crate) fn user_limits(&self, connections: u32) -> UserLimits {
        // If there are several users, no single user can exhaust the gateway's limits.
        let share = if self.credentials.is_some() { connections.div_ceil(2) } else { connections };
        UserLimits {
            connections_max: self.user_connections.unwrap_or(share),
            requests_max: self.user_requests.unwrap_or(share),
            bytes_per_s_max: self.user_rate,
            ..UserLimits::default()
        }
    }
}

impl GatewayArgs {
    /// Returns the store's configuration, with the ETag policy `etag`.
    pub(crate) fn store(&self, etag: ETagArg) -> PosixConfig {
        PosixConfig {
            etag_policy: etag.into(),
            durability: self.durability.into(),
            if_match: self.conditions == ConditionalWritesArg::All,
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
  fordway serve /data --webhook ci=https://ci.example.org/hook \\
    --webhook-token ci=/etc/fordway/ci.token

Every directory in ROOT is a bucket, and every file below it is an object. Requests must be signed with the key \
pair in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. If these variables are not set, the gateway generates a key \
pair and prints it. --credentials defines several users. If root runs the gateway, it accesses files with the uid, \
gid and groups of the user, and the kernel checks the permissions. When the gateway is ready, it prints one line \
with its address. On SIGTERM and Ctrl-C, it finishes the requests in progress and exits. On SIGHUP, it reloads \
the certificate, its key and the credentials file, and reopens the access log. The gateway supports HTTP/1.1 and \
HTTP/2, which clients select in the TLS handshake or by prior knowledge; --http3 adds HTTP/3. Use a certificate \
if you listen on addresses other than 127.0.0.1. With --webhook, the gateway delivers the events that buckets report \
to the webhook: the changes made by the gateway itself, by other gateways and by programs without a gateway.")]
pub struct ServeArgs {
    /// The directory whose subdirectories are the buckets
    pub root: PathBuf,
    /// Address and port to listen on; port 0 selects a free port. A socket from systemd (LISTEN_FDS) takes precedence
    #[arg(long, default_value = "127.0.0.1:9000", value_name = "ADDRESS:PORT", value_parser = socket_address)]
    pub listen: SocketAddr,
    /// PEM file with the server certificate, followed by its chain
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with the private key of the certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Also serve HTTP/3, on the UDP port with the same number as the TCP port
    #[cfg(feature = "http3")]
    #[arg(long, requires = "tls_cert")]
    pub http3: bool,
    /// Domain for virtual-hosted-style requests, which are sent to BUCKET.NAME (may be repeated)
    #[arg(long = "domain", value_name = "NAME")]
    pub domains: Vec<String>,
    /// How to generate the ETags of new objects
    #[arg(long, value_enum, default_value_t = ETagArg::Md5)]
    pub etag: ETagArg,
    /// Options of every gateway.
    #[command(flatten)]
    pub common: GatewayArgs,
    /// File that lists the users, with their keys, uids and buckets (TOML, mode 0600, or 0640 if it belongs to root and
    /// to a group of the gateway; all members of this group can read the keys); replaces the single key pair
    #[arg(long, value_name = "FILE")]
    pub credentials: Option<PathBuf>,
    /// File with the keys that authenticate session tokens, one per line (mode 0600, or 0640 as for --credentials);
    /// gateways with the same file accept each other's tokens [default: a new key, so that tokens become invalid when
    /// the gateway exits]
    #[arg(long, value_name = "FILE")]
    pub session_key: Option<PathBuf>,
    /// Carry out anonymous requests as this system user, if the bucket's policy permits them; needs root, and the uid
    /// must differ from the uids of all users with keys [default: anonymous requests are refused]
    #[arg(long, value_name = "NAME")]
    pub anonymous_user: Option<String>,
    /// Write one line of JSON per request to this file, or to standard output if it is -
    #[arg(long, value_name = "FILE")]
    pub access_log: Option<PathBuf>,
    /// Serve /metrics (Prometheus), /health and /ready at this address, without authentication [default: not served]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = socket_address)]
    pub metrics: Option<SocketAddr>,
    /// Maximum number of open connections, at least 1; further clients wait
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..))]
    pub connections: u32,
    /// Maximum size of a request's head (request line and headers), from 4096 to 1048576 bytes
    #[arg(long, value_name = "BYTES", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(4096..=1_048_576))]
    pub head_bytes: u32,
    /// Maximum size of a request's body [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub body_bytes: Option<u64>,
    /// Time limit for receiving a request's head, including the idle time before the request
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub header_timeout: Duration,
    /// Maximum time without progress while a body is being transferred
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub stall_timeout: Duration,
    /// Minimum transfer rate of a request or response body, in bytes per second, averaged over --stall-timeout (only
    /// the time spent waiting for the client counts); 0 for no limit
    #[arg(long, value_name = "SIZE", default_value = "100", value_parser = parse_bytes)]
    pub body_rate: u64,
    /// Maximum number of open connections per user, at least 1; further connections get 503 SlowDown and are closed
    /// [default: the value of --connections; with --credentials, half of that value]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub user_connections: Option<u32>,
    /// Maximum number of requests in flight per user, at least 1; further requests get 503 SlowDown [default: the value
    /// of --connections; with --credentials, half of that value]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub user_requests: Option<u32>,
    /// Maximum rate of one user's request and response bodies together, in bytes per second [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    pub user_rate: Option<NonZeroU64>,
    /// Maximum number of connections from one address on which no request with a valid signature has arrived yet;
    /// further connections get 503 SlowDown
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    pub address_connections: u32,
    /// Time limit for finishing requests in progress after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub drain_timeout: Duration,
    /// Also accept Signature Version 2, used by old clients and by boto3's default presigned URLs
    #[arg(long)]
    pub signature_v2: bool,
    /// Set the immutable flag on the files of locked versions, so that POSIX programs cannot remove these files;
    /// needs root (the CAP_LINUX_IMMUTABLE capability), and a file system that supports the flag (ext4, XFS, Btrfs,
    /// tmpfs)
    #[arg(long)]
    pub immutable_locks: bool,
    /// Apply the lifecycle rules of all buckets at this interval, or every hour if no interval is given;
    /// `fordway lifecycle` applies the rules once [default: the rules are not applied]
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "1h", value_parser = parse_period)]
    pub lifecycle: Option<Duration>,
    /// Length of a day in lifecycle rules, for tests
    #[arg(long, value_name = "TIME", default_value = "24h", hide = true, requires = "lifecycle", value_parser = parse_period)]
    pub lifecycle_day: Duration,
    /// The options for events.
    #[command(flatten)]
    pub events: EventArgs,
    /// Maximum number of threads that serve connections; fewer threads run if the load is low [default: one per core]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub threads: usize,
}

/// Options for delivering the events of buckets.
#[derive(Debug, Args)]
pub struct EventArgs {
    /// Deliver events to this URL; the notification configurations of buckets name it as
    /// arn:fordway:sqs::NAME:webhook (may be repeated)
    #[arg(long = "webhook", value_name = "NAME=URL", value_parser = named)]
    pub webhooks: Vec<(String, String)>,
    /// File with a bearer token for the webhook NAME (mode 0600, or 0640 as for --credentials)
    #[arg(long = "webhook-token", value_name = "NAME=FILE", value_parser = named, requires = "webhooks")]
    pub tokens: Vec<(String, String)>,
    /// PEM file with the certificate authorities for the webhook NAME [default: the system's authorities]
    #[arg(long = "webhook-ca", value_name = "NAME=FILE", value_parser = named, requires = "webhooks")]
    pub authorities: Vec<(String, String)>,
    /// Permit the webhook NAME to have an address in a private network or on this machine; a webhook on this machine
    /// may then use http
    #[arg(long = "webhook-private", value_name = "NAME", requires = "webhooks")]
    pub private: Vec<String>,
    /// Drop events that have remained undelivered for longer than this
    #[arg(long, value_name = "TIME", default_value = "7d", requires = "webhooks", value_parser = parse_period)]
    pub event_age: Duration,
}

impl EventArgs {
    /// Returns the configurations of the webhooks. Errors: `InvalidArgument` if an option names no webhook, or if two
    /// webhooks have the same name.
    pub(crate) fn configurations(&self) -> fordway_store::Result<Vec<WebhookConfig>> {
        let wrong = |why: String| fordway_store::Error::new(fordway_store::ErrorKind::InvalidArgument, why);
        let mut all: Vec<WebhookConfig> = Vec::new();
        for (name, url) in &self.webhooks {
            if all.iter().any(|other| other.name == *name) {
                return Err(wrong(format!("there are two webhooks {name:?}; give each its own name")));
            }
            all.push(WebhookConfig { name: name.clone(), url: url.clone(), ..WebhookConfig::default() });
        }
        fn find<'a>(all: &'a mut [WebhookConfig], name: &str) -> Option<&'a mut WebhookConfig> {
            all.iter_mut().find(|webhook| webhook.name == name)
        }
        let missing = |name: &str| wrong(format!("there is no --webhook {name}=URL; add one"));
        for (name, file) in &self.tokens {
            find(&mut all, name).ok_or_else(|| missing(name))?.token = Some(file.into());
        }
        for (name, file) in &self.authorities {
            find(&mut all, name).ok_or_else(|| missing(name))?.ca_bundle = Some(file.into());
        }
        for name in &self.private {
            find(&mut all, name).ok_or_else(|| missing(name))?.allows_private = true;
        }
        Ok(all)
    }
}

fn named(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err("write a name and a value, as in ci=https://ci.example.org/hook".to_owned()),
    }
}

impl ServeArgs {
    /// Returns the store's configuration.
    pub(crate) fn store(&self) -> PosixConfig {
        PosixConfig { immutable_locks: self.immutable_locks, ..self.common.store(self.etag) }
    }
}

/// The conditional writes that are supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ConditionalWritesArg {
    /// If-Match and If-None-Match; every overwrite and delete acquires a lock
    All,
    /// Only If-None-Match: *; for mounts whose locks do not work between nodes
    NoneMatchOnly,
}

/// How stale the result of a read may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ConsistencyArg {
    /// As stale as this node's caches, which can be seconds old on NFS
    FileSystem,
    /// At least as recent as the start of the request; costs round trips to the file server
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

/// Parses the address to listen on. Errors are messages that clap prints; they contain an example.
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

Every directory in ROOT is a bucket, and every file below it is an object. Programs use the endpoint \
unix://SOCKET. They need no key, because the kernel identifies the caller. If root runs the gateway, it carries out \
each request with the permissions of the caller. If another user runs the gateway, it serves only that user. When the \
gateway is ready, it prints one line with its endpoints. On SIGTERM and Ctrl-C, it finishes the requests in progress \
and exits. On the same socket, clients can also use S3 over HTTP; the gateway does not check their signatures. TCP \
clients need the key pair in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. If these variables are not set, the gateway \
generates a key pair and prints it.")]
pub struct NodeArgs {
    /// The directory whose subdirectories are the buckets
    #[arg(required_unless_present = "status", conflicts_with = "status")]
    pub root: Option<PathBuf>,
    /// Show the counters of the gateway that listens on --socket, instead of starting a gateway
    #[arg(long)]
    pub status: bool,
    /// Path of the socket, at most 107 bytes [default: $XDG_RUNTIME_DIR/fordway.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Permissions of the socket, as an octal number [default: 0600; 0666 if root runs the gateway]
    #[arg(long, value_name = "OCTAL", value_parser = mode)]
    pub mode: Option<u32>,
    /// Also serve the user with this uid, with the permissions of the gateway's own user (may be repeated; not needed
    /// if root runs the gateway)
    #[arg(long = "allow-uid", value_name = "UID")]
    pub allow_uids: Vec<u32>,
    /// Also serve the node protocol over TCP; port 0 selects a free port
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = socket_address)]
    pub tcp: Option<SocketAddr>,
    /// If the gateway runs as root, also carry out requests from TCP clients as root
    #[arg(long, requires = "tcp")]
    pub tcp_as_root: bool,
    /// How to generate the ETags of new objects
    #[arg(long, value_enum, default_value_t = ETagArg::Fast)]
    pub etag: ETagArg,
    /// Options of every gateway.
    #[command(flatten)]
    pub common: GatewayArgs,
    /// Maximum number of open connections, each with its own thread; further connections are refused
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u16).range(1..))]
    pub connections: u16,
    /// Maximum number of requests processed in parallel; further requests wait [default: one per connection]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub requests: Option<u16>,
    /// Maximum memory for the long messages of all connections and for their responses; in addition, each connection
    /// uses 256 KiB
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_bytes)]
    pub memory: u64,
    /// Maximum memory for the long messages of one connection; 16 MiB is enough for every message of the protocol
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = parse_bytes)]
    pub connection_memory: u64,
    /// Maximum number of open connections per user; further connections are refused [default: the value of
    /// --connections; if several users can connect, half of that value]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub user_connections: Option<u16>,
    /// Maximum number of requests in flight per user; one HTTP/2 connection can have many requests in flight
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..))]
    pub user_requests: u32,
    /// Maximum memory for the long messages of one user [default: the value of --memory; if several users can connect,
    /// half of that value]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub user_memory: Option<u64>,
}

impl NodeArgs {
    /// Returns the number of shares into which the limits of the gateway are divided by default.
    pub(crate) fn shares(&self) -> u64 {
        if fordway_sys::user_id() == 0 || !self.allow_uids.is_empty() { 2 } else { 1 }
    }
}

fn mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("use three octal digits, as in 0660".to_owned()),
    }
}

/// The root of a store, and the buckets to process.
#[derive(Debug, Args)]
pub struct StoreRootArgs {
    /// The directory whose subdirectories are the buckets
    pub root: PathBuf,
    /// Process only this bucket (may be repeated)
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

The command removes the leftovers of interrupted operations: staged files, abandoned multipart uploads, events \
that no gateway delivered, files that are hidden by another file of the same key (in buckets without versions), and \
empty directories that S3 clients created. The command can run while programs read and write. The age of a file is \
the time since its last change, by the clock of the file system. If the command cannot remove something, it reports \
the failure and continues.")]
pub struct GcArgs {
    /// The directory and the buckets to process
    #[command(flatten)]
    pub directory: StoreRootArgs,
    /// Remove staged files and empty directories that have not changed for this long; choose a time that is longer than
    /// any pause of a writer
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_duration)]
    pub older_than: Duration,
    /// Remove multipart uploads that have received no data for this long
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = parse_duration)]
    pub uploads_older_than: Duration,
    /// Remove events that have remained undelivered for longer than this
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = parse_duration)]
    pub events_older_than: Duration,
    /// Show what would be removed, without removing it
    #[arg(long)]
    pub dry_run: bool,
}

/// Options of `lifecycle`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway lifecycle /lustre/project/objects --dry-run
  fordway lifecycle /lustre/project/objects --rate 100 --quiet
  fordway lifecycle . --bucket logs --json

The command applies the lifecycle rules of the buckets (PutBucketLifecycleConfiguration) once: it removes expired \
objects, versions, delete markers and uploads. Run the command every day, from a timer on any node, or use `fordway \
serve --lifecycle`. Several instances of the command may process one directory at the same time, but only one of \
them processes a given bucket. If an instance is killed, the next instance continues the work. A locked version \
does not expire. An object that changes after the command has examined it is kept. If the command cannot remove \
something, it reports the failure and continues.")]
pub struct LifecycleRunArgs {
    /// The directory and the buckets to process
    #[command(flatten)]
    pub directory: StoreRootArgs,
    /// Show what would expire, without removing it
    #[arg(long)]
    pub dry_run: bool,
    /// Maximum number of objects and versions to remove per second [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// Length of a day in lifecycle rules, for tests
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_period)]
    pub day: Duration,
}

fn parse_period(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("the time must be longer than 0".to_owned()),
        day => Ok(day),
    }
}

/// Options of `fsck`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway fsck /lustre/project/objects
  fordway fsck /lustre/project/objects --read --json > findings.jsonl
  fordway fsck . --bucket results --read
  fordway fsck /lustre/project/objects --migrate

The command compares the files on disk with their stored metadata. Without --migrate, the command changes nothing. \
Each finding is one line: severity, kind, path, and the recommended action. With --read, the command also reads the \
content of objects that have an MD5 or a checksum, and compares the content with these values. The command does not \
read objects that have neither an MD5 nor a checksum, because ETags of type `fast` do not depend on the \
content. The exit code is 8 if anything is corrupt, 1 if something could not be read, and otherwise 0, even if \
there are notes.")]
pub struct FsckArgs {
    /// The directory and the buckets to process
    #[command(flatten)]
    pub directory: StoreRootArgs,
    /// Also read the content of objects, and compare it with the stored MD5 and checksum
    #[arg(long)]
    pub read: bool,
    /// Also report locked versions whose files are not immutable; gateways with --immutable-locks make these files
    /// immutable
    #[arg(long)]
    pub immutable_locks: bool,
    /// Before the check, convert the directory to the format of this release, reattach metadata after a restore from a
    /// backup, and remove the sticky bit from files whose metadata it hides
    #[arg(long)]
    pub migrate: bool,
}
