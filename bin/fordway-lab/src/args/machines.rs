//! Options of `machines`, which measures machines, and of `doctor`, which finds what slows programs down.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use fordway_command::units::parse_duration;
use fordway_machine::MachineFeature;
use fordway_workload::options::ForceArgs;

/// Options of `machines`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway machines probe
  fordway machines probe --json > probe.json && fordway model fit runs.csv --machine probe.json
  fordway machines measure --catalogue ours.toml
  fordway machines compare ours.toml theirs.toml
  fordway machines pick --like login1 --of ours.toml --in theirs.toml --at-least threads=16")]
pub(crate) struct MachinesArgs {
    /// The subcommand to run.
    #[command(subcommand)]
    pub(crate) action: MachinesSubcommand,
}

/// The subcommands of `machines`.
#[derive(Debug, Subcommand)]
pub(crate) enum MachinesSubcommand {
    /// Measure the inputs of cost models: reference frequency (R), memory, network, disk
    Probe(ProbeArgs),
    /// Measure the features used to compare machines, and add them to a catalogue
    Measure(MeasureArgs),
    /// Show how similar the machines of two catalogues are
    Compare(SimilarityArgs),
    /// Find the machine in a catalogue that is most similar to a given machine
    Pick(PickArgs),
}

/// Options of `machines probe`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway machines probe
  fordway machines probe --disk /scratch --peer http://storage:9000/bucket/large-object
  fordway machines probe --peer storage:9000 --json > probe.json

R is the frequency of reference cycles. Without --peer, the command measures the loopback interface. If a \
quantity cannot be measured, the output gives the reason, and JSON contains null; values are never estimated.")]
pub(crate) struct ProbeArgs {
    /// Directory on the disk to measure; the command writes and reads 256 MiB there [default: no disk is measured]
    #[arg(long, value_name = "DIR")]
    pub(crate) disk: Option<PathBuf>,
    /// Peer server for measuring the network: with HOST:PORT, the command measures the round-trip time, and
    /// with http://HOST[:PORT]/PATH, also the bandwidth [default: the loopback interface]
    #[arg(long, value_name = "PEER")]
    pub(crate) peer: Option<String>,
    /// The option that allows measuring on a busy machine.
    #[command(flatten)]
    pub(crate) trust: ForceArgs,
}

/// Options of `machines measure`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway machines measure
  fordway machines measure --disk /scratch --lanes --catalogue ours.toml
  iperf3 -s     # on storage1; then here:
  fordway machines measure --name login1 --peer storage1 --catalogue ours.toml

The command runs tachyon, STREAM's triad, fio and iperf3 one after the other, --rounds times, and records the \
medians. If a program is missing, the command names the program's Debian package and omits the features that the \
program measures. Each run of a program takes at most one minute.")]
pub(crate) struct MeasureArgs {
    /// Name of the machine [default: its host name]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Catalogue to add the machine to; created if missing
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) catalogue: Option<PathBuf>,
    /// Directory on the disk to measure
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) disk: PathBuf,
    /// Amount of data to write to the disk and read back
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = fordway_wire::size_text::parse_bytes)]
    pub(crate) disk_size: u64,
    /// Host that runs `iperf3 -s`: HOST or HOST:PORT [default: the loopback interface]
    #[arg(long, value_name = "PEER")]
    pub(crate) peer: Option<String>,
    /// Also measure GETs over the node lane and over loopback HTTP
    #[arg(long)]
    pub(crate) lanes: bool,
    /// Run only the program that measures this feature (may be repeated) [default: all]
    #[arg(long = "feature", value_name = "FEATURE", value_parser = parse_feature)]
    pub(crate) features: Vec<MachineFeature>,
    /// Number of runs of each program, from 1 to 100
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub(crate) rounds: u16,
    /// The option that allows measuring on a busy machine.
    #[command(flatten)]
    pub(crate) trust: ForceArgs,
}

/// Options of `machines compare`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway machines compare aws.toml gce.toml
  fordway machines compare ours.toml --heat-map ours.svg
  fordway machines compare aws.toml gce.toml --feature threads --feature memory_mb --json
  fordway machines compare --table contrib/catalogues/kratzke-quint-table-iv.toml

Machines with a similarity of 1 are equal, and machines with a similarity of 0 have nothing in common (eq. 2 of \
Kratzke and Quint). The command compares only features that all machines have, and names the other features. \
Shading: ░ for 0.5 and above, ▒ for 0.65, ▓ for 0.8, █ for 0.9.")]
pub(crate) struct SimilarityArgs {
    /// Catalogue whose machines form the rows
    #[arg(value_name = "CATALOGUE", required_unless_present = "table")]
    pub(crate) rows: Option<PathBuf>,
    /// Catalogue whose machines form the columns [default: CATALOGUE]
    #[arg(value_name = "OTHER")]
    pub(crate) columns: Option<PathBuf>,
    /// Table of similarities to use instead of catalogues
    #[arg(long, value_name = "FILE.toml", conflicts_with_all = ["rows", "features"])]
    pub(crate) table: Option<PathBuf>,
    /// Compare only this feature (may be repeated) [default: all features that every machine has]
    #[arg(long = "feature", value_name = "FEATURE", value_parser = parse_feature)]
    pub(crate) features: Vec<MachineFeature>,
    /// List pairs of machines with at least this similarity, from 0 to 1
    #[arg(long, value_name = "S", default_value_t = 0.9, value_parser = parse_similarity)]
    pub(crate) at_least: f64,
    /// Also write a heat map as an image
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) heat_map: Option<PathBuf>,
}

/// Options of `machines pick`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway machines pick --like m3.large --of aws.toml --in gce.toml
  fordway machines pick --like login1 --in ours.toml --at-least threads=16 --at-most cpu_time_s=2

The exit code is 1 if no machine meets the conditions.")]
pub(crate) struct PickArgs {
    /// Name of the given machine
    #[arg(long, value_name = "NAME")]
    pub(crate) like: String,
    /// Catalogue that contains the given machine [default: the value of --in]
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) of: Option<PathBuf>,
    /// Catalogue to pick from
    #[arg(long = "in", value_name = "FILE.toml")]
    pub(crate) within: PathBuf,
    /// Minimum value of a feature (may be repeated)
    #[arg(long, value_name = "FEATURE=VALUE", value_parser = parse_bound)]
    pub(crate) at_least: Vec<(MachineFeature, f64)>,
    /// Maximum value of a feature (may be repeated)
    #[arg(long, value_name = "FEATURE=VALUE", value_parser = parse_bound)]
    pub(crate) at_most: Vec<(MachineFeature, f64)>,
    /// Compare only this feature (may be repeated) [default: all features that every machine has]
    #[arg(long = "feature", value_name = "FEATURE", value_parser = parse_feature)]
    pub(crate) features: Vec<MachineFeature>,
}

fn parse_feature(text: &str) -> Result<MachineFeature, String> {
    MachineFeature::from_name(text).ok_or_else(|| MachineFeature::unknown(text))
}

fn parse_bound(text: &str) -> Result<(MachineFeature, f64), String> {
    let (name, value) = text.split_once('=').ok_or("write FEATURE=VALUE")?;
    let value = value.parse().map_err(|_| format!("{value} is not a number"))?;
    Ok((parse_feature(name)?, value))
}

fn parse_similarity(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value| (0.0..=1.0).contains(value));
    value.ok_or_else(|| "a similarity must be from 0 to 1".to_owned())
}

/// Options of `doctor`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway doctor
  fordway doctor --json | jq 'select(.verdict == \"costs\")'
  fordway doctor --fix slurm --nodes 4 > job.sh && sbatch --test-only job.sh
  fordway doctor --fix kubernetes > job.yaml
  fordway doctor --save node17 && fordway doctor --root node17
  fordway doctor --shared /mnt/a/scratch /mnt/b/scratch

The command reads /proc and /sys, mostly without root, and changes nothing. The command measures only two \
quantities: noise, for one second, and, if fordway-mpi is installed, the round-trip time between two MPI ranks. The \
command reports which values it cannot read. docs/reference/doctor.md describes the checks and their remedies.")]
pub(crate) struct DoctorArgs {
    /// Print settings that address the findings, as a file for this scheduler
    #[arg(long, value_enum)]
    pub(crate) fix: Option<JobSchedulerArg>,
    /// Number of nodes of the job for which --fix prints settings, at least 1
    #[arg(long, value_name = "N", default_value_t = 2, requires = "fix", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) nodes: u32,
    /// Duration of the noise measurement, which runs on all processors at once; at most one minute
    #[arg(long, value_name = "TIME", value_parser = listening, default_value = "1s")]
    pub(crate) listen: Duration,
    /// Only read files; measure neither noise nor round trips
    #[arg(long)]
    pub(crate) no_measure: bool,
    /// Examine a copy of another node's files, created with --save, and measure nothing
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// Test two mounts of one file system, given as two writable directories. The test checks whether locks and
    /// exclusive creation work between the mounts, and whether a file's content is visible when its name becomes
    /// visible. The test also measures how long changes take to become visible
    #[arg(long, num_args = 2, value_names = ["DIR", "DIR"], conflicts_with_all = ["root", "save", "fix", "no_measure"])]
    pub(crate) shared: Option<Vec<PathBuf>>,
    /// Write the verdict on the two mounts to this file. Fordway reads the verdict from .fordway/verdict in the root
    /// directory of the buckets
    #[arg(long, value_name = "FILE", requires = "shared")]
    pub(crate) verdict: Option<PathBuf>,
    /// Copy the files that the checks read to this directory
    #[arg(long, value_name = "DIR", conflicts_with = "root")]
    pub(crate) save: Option<PathBuf>,
}

/// The scheduler to print settings for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum JobSchedulerArg {
    /// A job script
    Slurm,
    /// A PodGroup and a Job
    Kubernetes,
}

fn listening(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        long if long > Duration::from_secs(60) => {
            Err("listening keeps all processors busy; use at most 60s".to_owned())
        }
        duration => Ok(duration),
    }
}
