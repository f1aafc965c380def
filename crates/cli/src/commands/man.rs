//! `man`: the manual pages, made from the definition of the command line.

use std::path::Path;

use clap::CommandFactory;
use clap_mangen::Man;
use fordway_store::Result;

use crate::args::{Cli, ManArgs};
use crate::context::Context;
use crate::exit::{Exit, file_error};

pub(super) fn run(args: &ManArgs, context: &Context) -> Result<Exit> {
    match &args.out {
        None => context.output.data(&front_page()?)?,
        Some(directory) => write_all(directory)?,
    }
    Ok(Exit::Ok)
}

fn front_page() -> Result<Vec<u8>> {
    let mut text = Vec::new();
    let rendered = Man::new(Cli::command()).render(&mut text);
    rendered.map(|()| text).map_err(|error| file_error("rendering", "the manual page", error))
}

/// `fordway.1`, and `fordway-NAME.1` for each command.
fn write_all(directory: &Path) -> Result<()> {
    let made = std::fs::create_dir_all(directory);
    made.map_err(|error| file_error("making", directory.display(), error))?;
    let pages = clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), directory);
    pages.map_err(|error| file_error("writing manual pages in", directory.display(), error))
}
