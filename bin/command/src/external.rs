//! External commands. If `NAME` is not a built-in command, `fordway NAME` runs the `fordway-NAME` program. That program
//! must be in the directory of the running program (as in a Python environment) or in PATH.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use fordway_store::{Error, ErrorKind, Result};

use crate::exit::{CommandExit, file_error};

/// The commands that the Python package provides, with their descriptions.
pub const PYTHON_COMMANDS: [(&str, &str); 4] = [
    ("run", "Run an unchanged S3 program on a directory"),
    ("report", "Write an HTML report of the runs of measuring commands"),
    ("model", "Fit a cost model to runs, check it, predict costs and advise"),
    ("diff", "Show the differences between two runs"),
];

/// Returns whether the Python package provides this command.
pub fn is_of_python(name: &str) -> bool {
    PYTHON_COMMANDS.iter().any(|(known, _)| *known == name)
}

/// Replaces this process with `fordway-NAME`; returns only on failure. Errors: `InvalidArgument` if there is no such
/// program.
pub fn run(words: &[OsString]) -> Result<CommandExit> {
    let [name, arguments @ ..] = words else {
        return Err(Error::new(ErrorKind::InvalidArgument, "no command given; see `fordway --help`"));
    };
    let name = name.to_string_lossy();
    if name.contains('/') {
        return Err(missing(&name));
    }
    let program = format!("fordway-{name}");
    let program = beside(&program).unwrap_or_else(|| PathBuf::from(program));
    let mut command = Command::new(&program);
    command.args(arguments);
    // `run` starts gateways of this program, which need not be on PATH, and removes the variable.
    if is_of_python(&name)
        && let Ok(own) = std::env::current_exe()
    {
        command.env("FORDWAY_RUN_PROGRAM", own);
    }
    match command.exec() {
        error if error.kind() == io::ErrorKind::NotFound => Err(missing(&name)),
        error => Err(file_error("running", program.display(), error)),
    }
}

fn missing(name: &str) -> Error {
    let why = match is_of_python(name) {
        true => {
            format!(
                "`fordway {name}` is part of the Python package; install that (`pip install` the wheel that `make \
                 dist` makes, or `make build`), and add the environment's bin to PATH"
            )
        }
        false => format!(
            "`{name}` is not a fordway command, and there is no fordway-{name} next to fordway or in PATH; see \
             `fordway --help`"
        ),
    };
    Error::new(ErrorKind::InvalidArgument, why)
}

/// Returns the path of the program `name` in the directory of the running program, if that file exists.
pub fn beside(name: &str) -> Option<PathBuf> {
    let file = std::env::current_exe().ok()?.parent()?.join(name);
    file.is_file().then_some(file)
}

/// Returns the path of the file `name` in the first directory of PATH that contains it.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}
