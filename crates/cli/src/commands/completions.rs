//! `completions`: what a shell needs to complete our command lines.

use clap::CommandFactory;
use fordway_store::Result;

use crate::args::{Cli, CompletionsArgs};
use crate::context::Context;
use crate::exit::Exit;

pub(super) fn run(args: &CompletionsArgs, context: &Context) -> Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "fordway", &mut script);
    context.output.data(&script).map(|()| Exit::Ok)
}
