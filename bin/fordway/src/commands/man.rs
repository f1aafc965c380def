//! `man`: the manual pages, made from the definition of the command line.

use clap::CommandFactory;
use fordway_command::{Context, Exit, manual};
use fordway_store::Result;

use super::lab;
use crate::args::{Cli, ManArgs};

pub(super) fn run(args: &ManArgs, context: &Context) -> Result<Exit> {
    match &args.out {
        None => context.output.data(&manual::front_page(Cli::command())?)?,
        Some(directory) => {
            manual::write_pages(Cli::command(), directory)?;
            lab::output(&["man", "--out", &directory.to_string_lossy()]);
        }
    }
    Ok(Exit::Ok)
}
