//! Options of `machines`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Options of `machines`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway machines probe
  fordway machines probe --json > probe.json && fordway model fit runs.csv --machine probe.json")]
pub struct MachinesArgs {
    /// What is to be done.
    #[command(subcommand)]
    pub action: MachinesAction,
}

/// What can be done with machines.
#[derive(Debug, Subcommand)]
pub enum MachinesAction {
    /// Measure the quantities that cost models ask for: R, memory, network, disk
    Probe(ProbeArgs),
}

/// Options of `machines probe`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway machines probe
  fordway machines probe --disk /scratch --peer http://storage:9000/bucket/large-object
  fordway machines probe --peer storage:9000 --json > probe.json

R is the clock at which reference cycles count. Without --peer the network is the loopback interface.
What cannot be measured says why; it is null in JSON, and never guessed.")]
pub struct ProbeArgs {
    /// A directory whose disk is written to and read, with 256 MiB
    #[arg(long, value_name = "DIR")]
    pub disk: Option<PathBuf>,
    /// Where the network leads to: HOST:PORT for its round trip, http://HOST[:PORT]/PATH for its bandwidth too
    #[arg(long, value_name = "PEER")]
    pub peer: Option<String>,
}
