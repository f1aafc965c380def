//! Options of `doctor`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use fordway_command::units::parse_duration;

/// Options of `doctor`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway doctor
  fordway doctor --json | jq 'select(.verdict == \"costs\")'
  fordway doctor --fix slurm --nodes 4 > job.sh && sbatch --test-only job.sh
  fordway doctor --fix kubernetes > job.yaml
  fordway doctor --save node17 && fordway doctor --root node17

It reads /proc and /sys, mostly without being root, and changes nothing. Only two things are measured: noise, for \
a second, and the round trip between two MPI ranks, where there is fordway-mpi. What cannot be read is \
told as such. The checks, and what to do: docs/reference/doctor.md.")]
pub(crate) struct DoctorArgs {
    /// Print settings that address what was found, as a file for that scheduler
    #[arg(long, value_enum)]
    pub(crate) fix: Option<FixArg>,
    /// Nodes of the job that settings are printed for
    #[arg(long, value_name = "N", default_value_t = 2, requires = "fix", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) nodes: u32,
    /// How long to listen for noise, on all processors at once; at most a minute
    #[arg(long, value_name = "TIME", value_parser = listening, default_value = "1s")]
    pub(crate) listen: Duration,
    /// Measure nothing: only read
    #[arg(long)]
    pub(crate) no_measure: bool,
    /// Examine a copy of another node's files, made with --save; nothing is measured
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// Copy the files that are read into this directory
    #[arg(long, value_name = "DIR", conflicts_with = "root")]
    pub(crate) save: Option<PathBuf>,
}

/// For whom settings are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FixArg {
    /// A job script
    Slurm,
    /// A PodGroup and a Job
    Kubernetes,
}

fn listening(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        long if long > Duration::from_secs(60) => {
            Err("listening takes all processors; at most 60s".to_owned())
        }
        duration => Ok(duration),
    }
}
