//! Options of `machines` and `doctor`: what a node is, and what about it costs programs.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use fordway_command::units::parse_duration;
use fordway_machine::Feature;

/// Options of `machines`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway machines probe
  fordway machines probe --json > probe.json && fordway model fit runs.csv --machine probe.json
  fordway machines measure --catalogue ours.toml
  fordway machines compare ours.toml theirs.toml
  fordway machines pick --like login1 --of ours.toml --in theirs.toml --at-least threads=16")]
pub(crate) struct MachinesArgs {
    /// What is to be done.
    #[command(subcommand)]
    pub(crate) action: MachinesAction,
}

/// What can be done with machines.
#[derive(Debug, Subcommand)]
pub(crate) enum MachinesAction {
    /// Measure the quantities that cost models ask for: R, memory, network, disk
    Probe(ProbeArgs),
    /// Measure the features by which machines are compared, and add them to a catalogue
    Measure(MeasureArgs),
    /// Say how similar the machines of two catalogues are
    Compare(SimilarityArgs),
    /// Find the machine in a catalogue that is most like a given one
    Pick(PickArgs),
}

/// Options of `machines probe`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway machines probe
  fordway machines probe --disk /scratch --peer http://storage:9000/bucket/large-object
  fordway machines probe --peer storage:9000 --json > probe.json

R is the clock at which reference cycles count. Without --peer the network is the loopback interface. \
What cannot be measured says why; it is null in JSON, and never guessed.")]
pub(crate) struct ProbeArgs {
    /// A directory whose disk is written to and read, with 256 MiB
    #[arg(long, value_name = "DIR")]
    pub(crate) disk: Option<PathBuf>,
    /// The other end of the network: HOST:PORT to measure its round trip, http://HOST[:PORT]/PATH to measure bandwidth
    /// too
    #[arg(long, value_name = "PEER")]
    pub(crate) peer: Option<String>,
}

/// Options of `machines measure`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway machines measure
  fordway machines measure --disk /scratch --lanes --catalogue ours.toml
  iperf3 -s     # on storage1; then here:
  fordway machines measure --name login1 --peer storage1 --catalogue ours.toml

Runs tachyon, STREAM's triad, fio and iperf3 in turn, --rounds times, and takes the medians. A program \
that is missing is named with its Debian package, and what it measures is left out, never guessed. \
Each run of a program has a minute at most.")]
pub(crate) struct MeasureArgs {
    /// The machine's name [default: its host name]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// The catalogue that the machine is added to; made if it is missing
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) catalogue: Option<PathBuf>,
    /// A directory whose disk is written to and read, with --disk-size
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) disk: PathBuf,
    /// How much is written to the disk and read again
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = fordway_wire::size_text::parse_bytes)]
    pub(crate) disk_size: u64,
    /// Where `iperf3 -s` runs: HOST or HOST:PORT [default: the loopback interface]
    #[arg(long, value_name = "PEER")]
    pub(crate) peer: Option<String>,
    /// Measure GETs over the node lane and over loopback HTTP too
    #[arg(long)]
    pub(crate) lanes: bool,
    /// Measure this feature alone, with its program; may be given several times [default: all]
    #[arg(long = "feature", value_name = "FEATURE", value_parser = parse_feature)]
    pub(crate) features: Vec<Feature>,
    /// How often each is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub(crate) rounds: u16,
}

/// Options of `machines compare`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway machines compare aws.toml gce.toml
  fordway machines compare ours.toml --heat-map ours.svg
  fordway machines compare aws.toml gce.toml --feature threads --feature memory_mb --json
  fordway machines compare --table contrib/catalogues/kratzke-quint-table-iv.toml

1 is equal, 0 is not alike at all (eq. 2 of Kratzke and Quint). Compared is by the features that all
machines have; those that some lack are named. Shades: ░ from 0.5, ▒ 0.65, ▓ 0.8, █ 0.9.")]
pub(crate) struct SimilarityArgs {
    /// The catalogue of the rows
    #[arg(value_name = "CATALOGUE", required_unless_present = "table")]
    pub(crate) rows: Option<PathBuf>,
    /// The catalogue of the columns [default: the same]
    #[arg(value_name = "OTHER")]
    pub(crate) columns: Option<PathBuf>,
    /// Similarities that are known already, in place of catalogues
    #[arg(long, value_name = "FILE.toml", conflicts_with_all = ["rows", "features"])]
    pub(crate) table: Option<PathBuf>,
    /// Compare by this feature; may be given several times [default: all that all machines have]
    #[arg(long = "feature", value_name = "FEATURE", value_parser = parse_feature)]
    pub(crate) features: Vec<Feature>,
    /// Pairs from this similarity on are listed
    #[arg(long, value_name = "S", default_value_t = 0.9, value_parser = parse_similarity)]
    pub(crate) at_least: f64,
    /// Write a picture too
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) heat_map: Option<PathBuf>,
}

/// Options of `machines pick`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway machines pick --like m3.large --of aws.toml --in gce.toml
  fordway machines pick --like login1 --in ours.toml --at-least threads=16 --at-most cpu_time_s=2

Exit code 1: no machine fulfils the conditions.")]
pub(crate) struct PickArgs {
    /// The machine that others shall be like
    #[arg(long, value_name = "NAME")]
    pub(crate) like: String,
    /// The catalogue that it is in [default: the value of --in]
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) of: Option<PathBuf>,
    /// The catalogue to pick from
    #[arg(long = "in", value_name = "FILE.toml")]
    pub(crate) within: PathBuf,
    /// What a machine must have at least; may be given several times
    #[arg(long, value_name = "FEATURE=VALUE", value_parser = parse_bound)]
    pub(crate) at_least: Vec<(Feature, f64)>,
    /// What it may have at most
    #[arg(long, value_name = "FEATURE=VALUE", value_parser = parse_bound)]
    pub(crate) at_most: Vec<(Feature, f64)>,
    /// Compare by this feature; may be given several times [default: all that all machines have]
    #[arg(long = "feature", value_name = "FEATURE", value_parser = parse_feature)]
    pub(crate) features: Vec<Feature>,
}

fn parse_feature(text: &str) -> Result<Feature, String> {
    Feature::from_name(text).ok_or_else(|| Feature::unknown(text))
}

fn parse_bound(text: &str) -> Result<(Feature, f64), String> {
    let (name, value) = text.split_once('=').ok_or("write FEATURE=VALUE")?;
    let value = value.parse().map_err(|_| format!("{value} is no number"))?;
    Ok((parse_feature(name)?, value))
}

fn parse_similarity(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value| (0.0..=1.0).contains(value));
    value.ok_or_else(|| "similarities are from 0 to 1".to_owned())
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
    /// Measure what two mounts of one file system promise each other, in directories that may be written to: locks,
    /// exclusive names, content before names, and how long each shows what the other has changed
    #[arg(long, num_args = 2, value_names = ["DIR", "DIR"], conflicts_with_all = ["root", "save", "fix", "no_measure"])]
    pub(crate) shared: Option<Vec<PathBuf>>,
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
