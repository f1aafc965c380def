//! The `fordway` binary. It reads the command line, sets up logging and signals, and runs the command.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use fordway_cli::davix::{self, DavixTool};
use fordway_cli::{BuiltinCommand, CommandLine, LabCommand};
use fordway_command::external::is_of_python;
use fordway_command::program;

#[global_allocator]
static ALLOCATOR: fordway_sys::HalfPageAllocator = fordway_sys::HalfPageAllocator;

fn main() -> ExitCode {
    let mut given = std::env::args_os();
    if let Some(tool) = given.next().and_then(|program| DavixTool::named(&program)) {
        return davix::run(tool, given.collect());
    }
    let cli = CommandLine::parse_from(words());
    // By default, gateways log warnings for their operator, and other commands log nothing.
    let log = matches!(cli.command, BuiltinCommand::Serve(_) | BuiltinCommand::Node(_)).then_some("warn");
    let global = cli.global.clone();
    let lane = cli.lane_options();
    program::run_on_lane(&global, lane, log, |context| fordway_cli::run(cli, context).into())
}

/// Returns the words of the command line. `help COMMAND` becomes `COMMAND --help` for a command of `fordway-lab` or of
/// the Python package, because only the program that provides such a command contains its help text.
fn words() -> Vec<OsString> {
    let mut words: Vec<_> = std::env::args_os().collect();
    let is_elsewhere = |word: &OsString| {
        word.to_str().is_some_and(|name| LabCommand::has_subcommand(name) || is_of_python(name))
    };
    if words.get(1).is_some_and(|word| word == "help") && words.get(2).is_some_and(is_elsewhere) {
        words.remove(1);
        words.push("--help".into());
    }
    words
}
