//! One file or folder per command: from its options to a run, a table or a finding.

mod bench;
mod compare;
mod doctor;
mod gateway;
mod ledger;
mod machines;
mod netlab;
mod page;
mod pingpong;
mod speedup;

use clap::CommandFactory;
use fordway_command::{Context, Exit, manual};
use fordway_store::Result;

use crate::args::{Cli, Command, CompletionsArgs, ManArgs};

/// Carries out a command line.
pub(crate) fn run(cli: Cli, context: &Context) -> Result<Exit> {
    match cli.command {
        Command::Compare(args) => compare::run(&args, context),
        Command::Ledger(args) => ledger::run(&args, context),
        Command::Machines(args) => machines::run(&args, context),
        Command::Doctor(args) => doctor::run(&args, context),
        Command::Speedup(args) => speedup::run(&args, context),
        Command::Bench(args) => bench::run(&args, &cli.global, context),
        Command::Netlab(args) => netlab::run(&args, context),
        Command::Pingpong(args) => pingpong::run(&args, context),
        Command::Completions(args) => completions(&args, context),
        Command::Man(args) => man(&args, context),
    }
}

fn completions(args: &CompletionsArgs, context: &Context) -> Result<Exit> {
    context.output.data(&manual::completions(args.shell, Cli::command(), "fordway-lab")).map(|()| Exit::Ok)
}

fn man(args: &ManArgs, context: &Context) -> Result<Exit> {
    match &args.out {
        None => context.output.data(&manual::front_page(Cli::command())?)?,
        Some(directory) => manual::write_pages(Cli::command(), directory)?,
    }
    Ok(Exit::Ok)
}
