//! Options of `ledger`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use fordway_wire::size_text::parse_bytes;

use fordway_command::units::parse_duration;

/// Options of `ledger`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway ledger
  fordway ledger --path node --path http --size 4KiB --size 1MiB --duration 20s
  fordway ledger --root /dev/shm --out shm.run && fordway report shm.run
  fordway ledger --path http --network bare --network vxlan

Measures every layer by itself (a copy in memory, a pread, a round trip over a socket, a signature, \
...), and beside them whole GETs and PUTs that are made of these layers; in random order, block by block. \
Prints what each layer costs per operation and per MiB, what the layers of each way add up to, what \
the way really took, and what is left unexplained, all with 95 % intervals. It works in a temporary \
directory, which is removed at the end. docs/explain/ledger.md explains the rungs and the columns.")]
pub(crate) struct LedgerArgs {
    /// Ways to take apart [default: all]
    #[arg(long = "path", value_enum, value_name = "WAY")]
    pub(crate) paths: Vec<PathArg>,
    /// Take an HTTP get apart through the network of a set-up too, as root: bare, vxlan, tunnel, or a file
    #[arg(long = "network", value_name = "SETUP")]
    pub(crate) networks: Vec<String>,
    /// Sizes to print, measured in any case [default: 4KiB and 1MiB]
    #[arg(long = "size", value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) sizes: Vec<u64>,
    /// Measure only the sizes that are printed; fits then have little to go by
    #[arg(long)]
    pub(crate) only_sizes: bool,
    /// How long rounds are begun; there are at least five, after one to warm up
    #[arg(long, value_name = "TIME", default_value = "50s", value_parser = parse_duration)]
    pub(crate) duration: Duration,
    /// On which processors the two sides run [default: apart, where there are two]
    #[arg(long, value_enum)]
    pub(crate) placement: Option<PlacementArg>,
    /// Where to work [default: the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// Decides every order [default: drawn and reported]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Where the run is written: a directory, made if it is missing
    #[arg(long, value_name = "NAME.run", default_value = "ledger.run")]
    pub(crate) out: PathBuf,
    /// Be the other side of the round trips, for the process that listens there.
    #[arg(long, hide = true, value_name = "ADDRESS")]
    pub(crate) echo: Option<String>,
    /// The file that the other side sends.
    #[arg(long, hide = true, requires = "echo", value_name = "FILE")]
    pub(crate) echo_file: Option<PathBuf>,
}

/// On which processors client and gateway run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlacementArg {
    /// The client on one, everything else on another
    Apart,
    /// All on one
    Together,
    /// Where the scheduler puts them, which differs from one pair of processes to the next
    Free,
}

/// The ways that `ledger` can take apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PathArg {
    /// A plain file by its absolute path
    Posix,
    /// S3 semantics in this process
    Embedded,
    /// The protocol of the node lane
    Node,
    /// S3 over HTTP/1.1
    Http,
    /// The same with TLS
    Https,
    /// S3 over HTTP/2 in the clear
    Http2,
    /// A put with S3 semantics in this process
    EmbeddedPut,
    /// A put by the protocol of the node lane
    NodePut,
    /// A put by S3 over HTTP/1.1
    HttpPut,
    /// The same with TLS
    HttpsPut,
}
