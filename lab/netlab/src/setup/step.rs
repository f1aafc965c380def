//! The steps of a set-up: devices, rules, daemons.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};

use super::Step;
use super::log::Log;
use super::words::Words;
use crate::{Mounts, Namespace, Process};

/// How long a daemon may take until it is ready.
const READY_WITHIN: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(5);
/// Where programs lie that only root's PATH leads to.
const FOR_ROOT: &str = "/usr/local/sbin:/usr/sbin:/sbin";

/// A program of the set-up that goes on, and what it says.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) process: Process,
    pub(super) log: Log,
}

/// PATH with the places for root's programs.
pub(super) fn path() -> String {
    format!("{}:{FOR_ROOT}", std::env::var("PATH").unwrap_or_default())
}

/// Where a program is.
pub(super) fn found(program: &str) -> Option<PathBuf> {
    let candidates = std::env::split_paths(&path()).map(|dir| dir.join(program)).collect::<Vec<_>>();
    candidates.into_iter().find(|path| path.is_file())
}

impl Step {
    /// Does all that the step says; what goes on is returned.
    pub(super) fn take(&self, network: &Namespace, mounts: &Mounts, words: &Words) -> Result<Option<Daemon>> {
        for (parameter, value) in &self.set {
            network.set(parameter, &words.fill(value)?)?;
        }
        if let Some(commands) = &self.ip {
            network.ip(&words.fill(commands)?)?;
        }
        if let Some(run) = &self.run {
            let input = self.input.as_deref().map(|input| words.fill(input)).transpose()?;
            run_in(network, Some(mounts), command(&words.fill_all(run)?)?, input)?;
        }
        let Some(start) = &self.start else { return Ok(None) };
        let mut daemon = start_in(network, mounts, command(&words.fill_all(start)?)?)?;
        if let Some(ready) = &self.ready {
            daemon.wait_for(network, mounts, Path::new(&words.fill(ready)?))?;
        }
        Ok(Some(daemon))
    }
}

impl Daemon {
    /// Errors: `Unavailable` if it ended, `Timeout` if it takes too long.
    fn wait_for(&mut self, network: &Namespace, mounts: &Mounts, file: &Path) -> Result<()> {
        let since = Instant::now();
        let device = file.strip_prefix("/sys/class/net").ok().map(Path::to_path_buf);
        while !is_there(network, mounts, file, device.as_deref())? {
            if let Some(status) = self.process.ended()? {
                let why =
                    format!("it ended ({status}) before {} was there: {}", file.display(), self.log.told());
                return Err(Error::new(ErrorKind::Unavailable, why));
            }
            if since.elapsed() > READY_WITHIN {
                let why =
                    format!("{} is not there after {READY_WITHIN:?}: {}", file.display(), self.log.told());
                return Err(Error::new(ErrorKind::Timeout, why));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}

fn is_there(network: &Namespace, mounts: &Mounts, file: &Path, device: Option<&Path>) -> Result<bool> {
    match device {
        // What is mounted at /sys shows the devices of another network.
        Some(device) => {
            let listed = network.run(|| std::fs::read_to_string("/proc/thread-self/net/dev"))?;
            let start = format!("{}:", device.display());
            Ok(listed.is_ok_and(|text| text.lines().any(|line| line.trim_start().starts_with(&start))))
        }
        None => mounts.run(|| file.exists()),
    }
}

/// Errors: `NotImplemented` if there is no such program.
pub(super) fn command(words: &[String]) -> Result<Command> {
    let [program, arguments @ ..] = words else {
        return Err(Error::new(ErrorKind::InvalidArgument, "a command without a word"));
    };
    let path_of = match program.contains('/') {
        true => Some(PathBuf::from(program)),
        false => found(program),
    };
    let Some(path_of) = path_of else {
        return Err(Error::new(
            ErrorKind::NotImplemented,
            format!("there is no program `{program}` in PATH"),
        ));
    };
    let mut command = Command::new(path_of);
    command.args(arguments).env("PATH", path());
    Ok(command)
}

/// Runs a command to its end. Errors: `Io` with what it said where that was not good.
pub(super) fn run_in(
    network: &Namespace,
    mounts: Option<&Mounts>,
    mut command: Command,
    input: Option<String>,
) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.env("PATH", path()).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let run = || -> Result<std::io::Result<std::process::Output>> {
        mounts.map_or(Ok(()), Mounts::enter)?;
        Ok(finish(command, input))
    };
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            Error::new(ErrorKind::NotImplemented, format!("there is no program `{program}` in PATH"))
        }
        _ => Error::new(ErrorKind::Io, format!("running {program}")).caused_by(error),
    };
    let output = network.run(run)??.map_err(failed)?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.trim().lines().collect::<Vec<_>>().join(" / ");
            Err(Error::new(ErrorKind::Io, format!("{program} ended with {}: {said}", output.status)))
        }
    }
}

fn finish(mut command: Command, input: Option<String>) -> std::io::Result<std::process::Output> {
    fordway_sys::end_with_thread(&mut command);
    let mut running = command.spawn()?;
    let stdin = running.stdin.take();
    if let (Some(mut stdin), Some(input)) = (stdin, input) {
        stdin.write_all(input.as_bytes())?;
    }
    running.wait_with_output()
}

/// Starts a command that goes on, with all that it starts.
pub(super) fn start_in(network: &Namespace, mounts: &Mounts, mut command: Command) -> Result<Daemon> {
    let log = Log::new()?;
    // An input that ends when this process does tells programs elsewhere that nobody wants them any more.
    command.stdin(Stdio::piped()).stdout(log.stream()).stderr(log.stream());
    Ok(Daemon { process: network.start_within(mounts, command)?, log })
}
