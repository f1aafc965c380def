//! The `fordway` binary: reads the command line, sets up logging and signals, and runs the command.

use std::process::ExitCode;

use clap::Parser;
use fordway_cli::{BuiltinCommand, CommandLine};
use fordway_command::program;

#[global_allocator]
static ALLOCATOR: fordway_sys::HalfPageAllocator = fordway_sys::HalfPageAllocator;

fn main() -> ExitCode {
    let cli = CommandLine::parse();
    // By default, gateways log warnings for their operator, and other commands log nothing.
    let log = matches!(cli.command, BuiltinCommand::Serve(_) | BuiltinCommand::Node(_)).then_some("warn");
    let global = cli.global.clone();
    program::run(&global, log, |context| fordway_cli::run(cli, context))
}
