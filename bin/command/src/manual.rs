//! Generates manual pages and shell completions from the definition of a command line.

use std::path::{Path, PathBuf};

use clap::Args;
use clap_complete::Shell;
use clap_mangen::Man;
use fordway_store::Result;

use crate::exit::file_error;

/// Options of `completions`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway completions bash > ~/.local/share/bash-completion/completions/fordway
  fordway completions zsh > ~/.zfunc/_fordway
  fordway completions fish > ~/.config/fish/completions/fordway.fish

If the directory of the script does not exist, create it first with `mkdir -p`.")]
pub struct CompletionsArgs {
    /// Shell to generate the script for
    pub shell: Shell,
}

/// Options of `man`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway man | man -l -
  fordway man --out ~/.local/share/man/man1")]
pub struct ManArgs {
    /// Write one page per command to this directory, which is created if missing
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Returns the completion script of `shell` for the program `name`.
pub fn completions(shell: Shell, mut command: clap::Command, name: &str) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    match shell {
        Shell::Bash => with_one_separator(script, name),
        _ => script,
    }
}

/// Corrects a script for bash. clap_complete replaces a hyphen in the program's name with `__` where the script selects
/// a command, but with `__subcmd__` where the script lists the options of that command. Without the correction, bash
/// would complete no options.
fn with_one_separator(script: Vec<u8>, name: &str) -> Vec<u8> {
    let (of_list, of_selection) = (name.replace('-', "__subcmd__"), name.replace('-', "__"));
    match String::from_utf8(script) {
        Ok(text) => text.replace(&of_list, &of_selection).into_bytes(),
        Err(error) => error.into_bytes(),
    }
}

/// Returns the manual page of a program. Errors: `Io`.
pub fn front_page(command: clap::Command) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    let rendered = Man::new(command).render(&mut text);
    rendered.map(|()| text).map_err(|error| file_error("rendering", "the manual page", error))
}

/// Writes `PROGRAM.1`, and `PROGRAM-NAME.1` for each command, into `directory`. Errors: `Io`.
pub fn write_pages(command: clap::Command, directory: &Path) -> Result<()> {
    let made = std::fs::create_dir_all(directory);
    made.map_err(|error| file_error("creating", directory.display(), error))?;
    let pages = clap_mangen::generate_to(command.disable_help_subcommand(true), directory);
    pages.map_err(|error| file_error("writing manual pages in", directory.display(), error))
}
