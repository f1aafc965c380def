//! Programs in containers: gateways, and the processes that respond in round trips.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, PipeReader};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use fordway_command::file_error;
use fordway_netlab::NamespaceProcess;
use fordway_netlab::setup::{ContainerCommand, MachineContainer, NetworkEndpoint};
use fordway_store::{Error, ErrorKind, Result};

/// The maximum time for a program to exit after SIGTERM.
const STOPPED_WITHIN: Duration = Duration::from_secs(10);

/// The runtime and the network of a container.
#[derive(Clone, Copy)]
pub(super) struct ContainerPlacement<'a> {
    pub(super) containers: &'a MachineContainer,
    /// The network of the container, at the far end of a wire; `None` for the network of this machine.
    pub(super) far: Option<&'a NetworkEndpoint>,
}

/// A program in a container. The program is stopped when this value is dropped.
pub(super) struct ContainedProgram {
    process: NamespaceProcess,
    /// The program's standard output.
    output: BufReader<PipeReader>,
    /// The program's name, which distinguishes its process from the processes of the container's runtime.
    program: String,
    /// The program's process ID; `None` until [`ContainedProgram::find`].
    pid: Option<u32>,
}

impl ContainedProgram {
    /// Starts a container with this command. Errors: the errors of [`MachineContainer::start`].
    pub(super) fn start(
        place: ContainerPlacement<'_>,
        words: &[OsString],
        variables: &[(String, String)],
    ) -> Result<Self> {
        let (output, stdout) =
            std::io::pipe().map_err(|error| file_error("creating", "a pipe for a container", error))?;
        let network = place.far.map(|far| &far.network);
        let asked = ContainerCommand { name: "ledger", words, variables, network };
        let process = place.containers.start(&asked, stdout.into(), Stdio::inherit())?;
        let program = words.first().and_then(|program| Path::new(program).file_name());
        let program = program.unwrap_or_default().to_string_lossy().into_owned();
        Ok(ContainedProgram { process, output: BufReader::new(output), program, pid: None })
    }

    /// Returns the process ID of the program outside the container; `None` until [`ContainedProgram::find`].
    pub(super) fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Finds the program's process. The caller must have checked that the program is running. Errors: `Unavailable` if
    /// the program has exited.
    pub(super) fn find(&mut self) -> Result<()> {
        let family = fordway_sys::descendants(self.process.id());
        let family = family.map_err(|error| file_error("listing", "the processes of a container", error))?;
        let is_program = |pid: &u32| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.trim_end() == self.program
        };
        self.pid = family.into_iter().find(is_program);
        let gone = || Error::new(ErrorKind::Unavailable, format!("{} ended in its container", self.program));
        self.pid.map(drop).ok_or_else(gone)
    }

    /// Reads the next line of the program's output. The line is empty if the container has stopped.
    pub(super) fn line(&mut self) -> String {
        let mut line = String::new();
        let _ = self.output.read_line(&mut line);
        line
    }

    /// Returns whether the container has stopped.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.process.ended(), Ok(None))
    }

    /// Terminates the program if its process has been found, and waits until the container has stopped, for at most
    /// `STOPPED_WITHIN`.
    pub(super) fn stop(&mut self) {
        // The runtime is the first process of a PID namespace, so the kernel does not deliver SIGTERM to the runtime.
        // Send the signal to the program itself instead.
        let told = self.pid.take().map(fordway_sys::terminate);
        let since = Instant::now();
        if matches!(told, Some(Ok(()))) {
            let _ = self.process.wait(|| since.elapsed() > STOPPED_WITHIN);
        }
    }
}

impl Drop for ContainedProgram {
    fn drop(&mut self) {
        self.stop();
    }
}
