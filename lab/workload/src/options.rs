//! Options that several measuring commands share, and the former names of options. Each option is defined once, so that
//! it has the same name in all commands.

use std::path::PathBuf;

use clap::Args;
use clap::error::{ContextKind, ContextValue, ErrorKind as ClapKind};
use fordway_store::{Error, ErrorKind, Result};

/// The run file that a command writes.
#[derive(Clone, Debug, Args)]
pub struct OutputFileArgs {
    /// Directory to write the run to, created if missing [default: the command's name and .run, such as compare.run]
    #[arg(long, value_name = "NAME.run")]
    pub out: Option<PathBuf>,
}

impl OutputFileArgs {
    /// Returns the directory for the run of the command `name`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.out.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.run")))
    }
}

/// The run file that a command writes, if any.
#[derive(Clone, Debug, Args)]
pub struct OptionalOutputFileArgs {
    /// Directory to write the run to, with a record of every operation; created if missing [default: no run is
    /// written]
    #[arg(long, value_name = "NAME.run")]
    pub out: Option<PathBuf>,
}

/// Whether to write an HTML report of the run.
#[derive(Clone, Debug, Args)]
pub struct ReportArgs {
    /// Do not write an HTML report
    #[arg(long)]
    pub no_report: bool,
}

/// Whether to measure even on a machine that is too busy.
#[derive(Clone, Copy, Debug, Args)]
pub struct ForceArgs {
    /// Measure even if other processes leave less than 20 % of each processor idle; the run is marked as forced
    #[arg(long, env = "FORDWAY_LAB_FORCE", value_parser = clap::builder::FalseyValueParser::new())]
    pub force: bool,
}

/// The seed of all random choices.
#[derive(Clone, Debug, Args)]
pub struct SeedArgs {
    /// Seed for all random choices, such as the order of operations [default: a random seed, which is reported]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

impl SeedArgs {
    /// Returns the user's seed, or a random seed if the user specified no seed. Errors: `Io`.
    pub fn seed(&self) -> Result<u64> {
        let drawn = || {
            let failed = |error| Error::new(ErrorKind::Io, "no random seed").caused_by(error);
            getrandom::u32().map(u64::from).map_err(failed)
        };
        self.seed.map_or_else(drawn, Ok)
    }
}

/// A subcommand, the former name of one of its options, and the current name.
type RenamedOption = (&'static str, &'static str, &'static str);

const RENAMED: [RenamedOption; 10] = [
    ("bench", "--run", "--out"),
    ("ior", "--run", "--out"),
    ("mdtest", "--run", "--out"),
    ("mdworkbench", "--run", "--out"),
    ("io500", "--run", "--out"),
    ("transport", "--sizes", "--size"),
    ("ledger", "--network", "--setup"),
    ("speedup", "--repeat", "--rounds"),
    ("compare", "--warm-up", "--warm-up-rounds"),
    ("pingpong", "--connections", "--connection-policy"),
];

/// Returns the error to report for a command line that clap rejected. If the unknown option is the former name of an
/// option, the error contains the current name. `words` are the words of the command line.
pub fn with_new_name(error: clap::Error, words: &[String]) -> clap::Error {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else { return error };
    if error.kind() != ClapKind::UnknownArgument {
        return error;
    }
    // clap may report the option together with its value, as `--run <NAME>`.
    let option = unknown.split([' ', '=']).next().unwrap_or(unknown);
    let is_it = |(word, old, _): &&RenamedOption| option == *old && words.iter().any(|given| given == word);
    match RENAMED.iter().find(is_it) {
        Some((word, old, new)) => {
            clap::Error::raw(ClapKind::UnknownArgument, format!("{old} of `{word}` is now {new}\n"))
        }
        None => error,
    }
}
