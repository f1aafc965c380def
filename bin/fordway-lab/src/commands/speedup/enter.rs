//! What the launcher starts instead of ssh: the other machine is a network of this one.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use fordway_store::{Error, ErrorKind, Result};

use fordway_command::{Exit, file_error};

/// Becomes what the launcher asks for, in `network`. As with ssh, the words are the host, which is that
/// network's, and what a shell there is to run.
pub(super) fn run(network: &Path, words: &[OsString]) -> Result<Exit> {
    let Some((_host, command)) = words.split_first().filter(|(_, command)| !command.is_empty()) else {
        return Err(Error::new(ErrorKind::InvalidArgument, "--enter needs a host and what to run there"));
    };
    let name = network.display();
    let opened = std::fs::File::open(network).map_err(|error| file_error("opening", name, error))?;
    fordway_sys::enter_network_namespace(&opened)
        .map_err(|error| file_error("entering", network.display(), error.into()))?;
    // The program takes this one's place, in this thread, so it is in the network.
    let error = Command::new("sh").arg("-c").arg(command.join(OsString::from(" ").as_os_str())).exec();
    Err(file_error("starting", "sh", error))
}
