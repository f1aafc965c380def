//! The `fordway-lab` binary, the instrument: reads the command line, makes its surroundings, and measures.

mod args;
mod commands;

use std::process::ExitCode;

use clap::Parser;
use fordway_command::program;

fn main() -> ExitCode {
    let cli = args::Cli::parse();
    let global = cli.global.clone();
    program::run(&global, None, |context| program::finish(commands::run(cli, context), context))
}
