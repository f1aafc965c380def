//! Options of `bench transport`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use fordway_workload::transport::Setting;

/// Options of `bench transport`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway bench transport
  fordway bench transport --sizes 1..1MiB --factor 2 --rounds 9 --out small.run
  fordway bench transport --transport tcp,nginx,http --sizes 4KiB,1MiB
  fordway bench transport --pin-client 0 --pin-server 1
  fordway bench transport --mpi target/release/fordway-mpi,target/mpicc.mpich/release/fordway-mpi

Everything runs on this machine, over loopback or shared memory. A latency is the time from asking for \
a message until all of it is here; for MPI and TCP the half round trip is there too. MPI is measured by \
fordway-mpi, which `make mpi` builds; what is not installed is left out, and named. The first transport \
is what the others are compared with: MPI over TCP where it is there.")]
pub(crate) struct TransportArgs {
    /// What is measured, and how often.
    #[command(flatten)]
    pub(crate) setting: Setting,
    /// Transports to measure [default: all that are installed]
    #[arg(long = "transport", value_enum, value_delimiter = ',')]
    pub(crate) transports: Vec<TransportArg>,
    /// fordway-mpi, one for each MPI [default: the one beside this program, or on PATH]
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    pub(crate) mpi: Vec<PathBuf>,
    /// What starts the ranks [default: mpirun.openmpi or mpirun.mpich, else mpirun]
    #[arg(long, value_name = "CMD")]
    pub(crate) mpirun: Option<PathBuf>,
    /// Have ranks of Open MPI that wait give way to other processes (mpi_yield_when_idle)
    #[arg(long)]
    pub(crate) mpi_yield: bool,
    /// Connections, and threads that use them, for the bandwidth of nginx, http, node and embedded
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) connections: u16,
    /// Keep who asks on these processors [default: where the kernel puts it]
    #[arg(long, value_name = "CPUS", value_delimiter = ',')]
    pub(crate) pin_client: Vec<usize>,
    /// Keep who answers on these processors
    #[arg(long, value_name = "CPUS", value_delimiter = ',')]
    pub(crate) pin_server: Vec<usize>,
    /// Where the messages lie that servers read [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// Write no HTML report
    #[arg(long)]
    pub(crate) no_report: bool,
    /// Be the other side of the bare TCP connection
    #[arg(long, value_name = "ADDRESS", hide = true)]
    pub(crate) follow: Option<SocketAddr>,
}

/// What `bench transport` can measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportArg {
    /// Two ranks of each MPI, over TCP and over shared memory
    Mpi,
    /// A bare TCP connection on loopback between two processes
    Tcp,
    /// GET of static files from nginx
    Nginx,
    /// S3 over HTTP, from a gateway started for the purpose
    Http,
    /// The protocol of the node lane, from a gateway started for the purpose
    Node,
    /// S3 semantics in this process
    Embedded,
}

impl TransportArg {
    /// In the order of the table.
    pub(crate) const ALL: [TransportArg; 6] = [
        TransportArg::Mpi,
        TransportArg::Tcp,
        TransportArg::Nginx,
        TransportArg::Http,
        TransportArg::Node,
        TransportArg::Embedded,
    ];
}
