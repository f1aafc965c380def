//! The `fordway` binary: reads the command line, makes its surroundings, and runs it.

use std::process::ExitCode;

use clap::Parser;
use fordway_cli::{BuiltinCommand, CommandLine};
use fordway_command::program;

fn main() -> ExitCode {
    let cli = CommandLine::parse();
    // Gateways log what their operator should know, and other commands nothing.
    let log = matches!(cli.command, BuiltinCommand::Serve(_) | BuiltinCommand::Node(_)).then_some("warn");
    let global = cli.global.clone();
    program::run(&global, log, |context| fordway_cli::run(cli, context))
}
