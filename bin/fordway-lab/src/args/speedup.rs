//! Options of `speedup`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use fordway_command::units::parse_duration;

/// Options of `speedup`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway speedup -- ./solver --cells 1000
  fordway speedup --ranks 1,2,4 --setup shm,loopback,bare,vxlan+yield --out solver.run -- ./solver
  fordway speedup --ranks 1,2 --deadline 5m -- sh -c './solver --parts {ranks}'
  fordway speedup --check richter
  fordway speedup --check table.csv

COMMAND is an MPI program, which is started by mpirun of Open MPI with each number of ranks in each \
set-up, in turn; {ranks} in it is their number. One rank is run in the first set-up, the reference. \
Set-ups: `default` is as Open MPI chooses, `shm` shared memory, `loopback` TCP on this machine's loopback \
device; any other is one of `fordway bench pingpong --list` that has two networks, or a file of such, with \
half of the ranks in each (needs root). NAME+yield has ranks give way while they wait. `make mpi` builds \
what has ranks report their communication.")]
pub(crate) struct SpeedupArgs {
    /// Numbers of ranks; 1 is always among them
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2",
        value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) ranks: Vec<u32>,
    /// Where ranks run and what carries their messages, the reference first
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "default,shm,loopback,bare,vxlan"
    )]
    pub(crate) setup: Vec<String>,
    /// Jobs of each kind that count; one more comes before them and does not
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(5..=1000))]
    pub(crate) repeat: u16,
    /// A job that takes longer has failed, and is ended with all its processes
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub(crate) deadline: Duration,
    /// Which time speed-up is made of
    #[arg(long, value_enum, default_value_t = TimeArg::Wall)]
    pub(crate) time: TimeArg,
    /// The launcher [default: mpirun of PATH]
    #[arg(long, value_name = "FILE")]
    pub(crate) mpirun: Option<PathBuf>,
    /// What has ranks report [default: libfordway-pmpi.so beside this program, if it is there]
    #[arg(long, value_name = "FILE")]
    pub(crate) pmpi: Option<PathBuf>,
    /// Decides in which order the jobs of a round come
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Where the run is written: a directory, made if it is missing
    #[arg(long, value_name = "NAME.run", default_value = "speedup.run")]
    pub(crate) out: PathBuf,
    /// Make no HTML report of the run
    #[arg(long)]
    pub(crate) no_report: bool,
    /// Recompute a published table instead: a CSV file, or richter, which is built in
    #[arg(long, value_name = "FILE", conflicts_with = "command")]
    pub(crate) check: Option<String>,
    /// Run what a launcher asks for in this network
    #[arg(long, value_name = "NETWORK", hide = true)]
    pub(crate) enter: Option<PathBuf>,
    /// The MPI program and its arguments
    #[arg(last = true, required_unless_present = "check", value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Which time of a job counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TimeArg {
    /// All of the job, its launch included
    Wall,
    /// From when the first rank can communicate until the last has nothing more to say
    Work,
}
