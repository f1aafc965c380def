//! The measuring commands: `fordway-lab` takes over.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use fordway_command::{Exit, external, file_error};
use fordway_store::{Error, ErrorKind, Result};

const PROGRAM: &str = "fordway-lab";

/// Becomes `fordway-lab` with the command line of this process; returns only if that fails.
/// Errors: `InvalidArgument` where there is no such program.
pub(super) fn run() -> Result<Exit> {
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_else(|| OsString::from("fordway"));
    let program = program();
    match Command::new(&program).arg0(name).args(words).exec() {
        error if error.kind() == io::ErrorKind::NotFound => Err(Error::new(
            ErrorKind::InvalidArgument,
            "measuring is done by the program fordway-lab, which is neither beside this one nor in PATH; install it, or \
             build it with `make build`",
        )),
        error => Err(file_error("running", program.display(), error)),
    }
}

/// What `fordway-lab` answers to these words; nothing if it is not there.
pub(super) fn output(words: &[&str]) -> Vec<u8> {
    let output = Command::new(program()).args(words).output();
    output.map(|output| output.stdout).unwrap_or_default()
}

fn program() -> PathBuf {
    external::beside(PROGRAM).unwrap_or_else(|| PathBuf::from(PROGRAM))
}
