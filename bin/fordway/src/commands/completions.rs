//! `completions`: what a shell needs to complete our command lines.

use clap::CommandFactory;
use fordway_command::{Context, Exit, manual};
use fordway_store::Result;

use super::lab;
use crate::args::{Cli, CompletionsArgs};

pub(super) fn run(args: &CompletionsArgs, context: &Context) -> Result<Exit> {
    context.output.data(&manual::completions(args.shell, Cli::command(), "fordway"))?;
    context.output.data(&lab::output(&["completions", &args.shell.to_string()]))?;
    Ok(Exit::Ok)
}
