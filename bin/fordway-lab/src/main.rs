//! The `fordway-lab` binary, the measuring instrument. It reads the command line, sets up logging and signals, and runs
//! a measuring command.

mod args;
mod commands;

use std::process::ExitCode;

use clap::Parser;
use fordway_command::program;
use fordway_workload::options::with_new_name;

#[global_allocator]
static ALLOCATOR: fordway_sys::HalfPageAllocator = fordway_sys::HalfPageAllocator;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let cli = args::LabCommandLine::try_parse().unwrap_or_else(|error| with_new_name(error, &words).exit());
    let global = cli.global.clone();
    program::run(&global, None, |context| program::finish(commands::run(cli, context), context))
}
