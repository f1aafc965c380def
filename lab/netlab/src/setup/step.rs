//! The steps of a set-up (devices, rules and daemons), and the choice of a virtual machine's accelerator: hardware
//! (`kvm`), or a program that emulates a processor (`tcg`).

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};

use super::running::ProgramLog;
use super::{PlaceholderValues, SetupStep};
use crate::{MountNamespace, NamespaceProcess, NetworkNamespace};

/// The maximum time to wait until a daemon is ready.
const READY_WITHIN: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(5);
/// Directories of programs that are usually only in root's PATH.
const FOR_ROOT: &str = "/usr/local/sbin:/usr/sbin:/sbin";

/// A running program of a set-up, and its output.
#[derive(Debug)]
pub(super) struct SetupDaemon {
    pub(super) process: NamespaceProcess,
    pub(super) log: ProgramLog,
}

/// Returns PATH with root's directories added.
pub(super) fn path() -> String {
    format!("{}:{FOR_ROOT}", std::env::var("PATH").unwrap_or_default())
}

/// Returns the path of a program; `None` if it is not installed.
pub(super) fn found(program: &str) -> Option<PathBuf> {
    let candidates = std::env::split_paths(&path()).map(|dir| dir.join(program)).collect::<Vec<_>>();
    candidates.into_iter().find(|path| path.is_file())
}

impl SetupStep {
    /// Performs the step. Returns the program that continues to run after the step; `None` if the step starts no
    /// program.
    pub(super) fn take(
        &self,
        network: &NetworkNamespace,
        mounts: &MountNamespace,
        words: &PlaceholderValues,
    ) -> Result<Option<SetupDaemon>> {
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

impl SetupDaemon {
    /// Waits until `file` exists. Errors: `Unavailable` if the program exits first; `Timeout` after `READY_WITHIN`.
    fn wait_for(&mut self, network: &NetworkNamespace, mounts: &MountNamespace, file: &Path) -> Result<()> {
        let since = Instant::now();
        let device = file.strip_prefix("/sys/class/net").ok().map(Path::to_path_buf);
        while !is_there(network, mounts, file, device.as_deref())? {
            if let Some(status) = self.process.ended()? {
                let why =
                    format!("it ended ({status}) before {} existed: {}", file.display(), self.log.told());
                return Err(Error::new(ErrorKind::Unavailable, why));
            }
            if since.elapsed() > READY_WITHIN {
                let why =
                    format!("{} does not exist after {READY_WITHIN:?}: {}", file.display(), self.log.told());
                return Err(Error::new(ErrorKind::Timeout, why));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}

fn is_there(
    network: &NetworkNamespace,
    mounts: &MountNamespace,
    file: &Path,
    device: Option<&Path>,
) -> Result<bool> {
    match device {
        // The mounted `/sys` shows the devices of a different network, so read the list of devices in `/proc` of this
        // network.
        Some(device) => {
            let listed = network.run(|| std::fs::read_to_string("/proc/thread-self/net/dev"))?;
            let start = format!("{}:", device.display());
            Ok(listed.is_ok_and(|text| text.lines().any(|line| line.trim_start().starts_with(&start))))
        }
        None => mounts.run(|| file.exists()),
    }
}

/// Builds a command from `words`, the first of which is the program. Errors: `NotImplemented` if PATH has no such
/// program; `InvalidArgument` if `words` is empty.
pub(super) fn command(words: &[String]) -> Result<Command> {
    let [program, arguments @ ..] = words else {
        return Err(Error::new(ErrorKind::InvalidArgument, "the command is empty"));
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

/// Runs a command until it ends. Errors: `Io` with the command's error output if the command failed.
pub(super) fn run_in(
    network: &NetworkNamespace,
    mounts: Option<&MountNamespace>,
    mut command: Command,
    input: Option<String>,
) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.env("PATH", path()).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let run = || -> Result<std::io::Result<std::process::Output>> {
        mounts.map_or(Ok(()), MountNamespace::enter)?;
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

/// Starts a command that keeps running. All descendants of the command end together with the command.
pub(super) fn start_in(
    network: &NetworkNamespace,
    mounts: &MountNamespace,
    mut command: Command,
) -> Result<SetupDaemon> {
    let log = ProgramLog::new()?;
    // Standard input closes when this process ends. Programs on other machines exit at the end of their standard input.
    command.stdin(Stdio::piped()).stdout(log.stream()).stderr(log.stream());
    Ok(SetupDaemon { process: network.start_within(mounts, command)?, log })
}

/// The name of the placeholder for the accelerator.
pub(super) const ACCELERATOR_WORD: &str = "accelerator";
/// The value that selects the best accelerator of this machine.
const AUTO: &str = "auto";
const KVM: &str = "kvm";
const TCG: &str = "tcg";

/// Returns the accelerator to use: `said`, or this machine's best accelerator if `said` is `auto`.
pub(super) fn resolved_accelerator(said: &str) -> &str {
    match said {
        AUTO if is_virtualizing() => KVM,
        AUTO => TCG,
        said => said,
    }
}

/// Returns whether the accelerator emulates the processor, so that measured times differ from times on a real
/// processor.
pub(super) fn emulates(accelerator: &str) -> bool {
    accelerator != KVM
}

/// Returns whether this process is permitted to use KVM, and the processor has the features to run any kernel. Some
/// virtual machines offer KVM although their processors lack these features (`kvm_pvm`): `/dev/kvm` can then be opened,
/// but runs only kernels that were built for `kvm_pvm`.
fn is_virtualizing() -> bool {
    let may = OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok();
    may && std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|told| has_virtualization(&told))
}

fn has_virtualization(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processors_that_say_so_virtualize() {
        for (cpuinfo, expected) in [
            ("processor\t: 0\nflags\t\t: fpu vmx sse\nbugs\t\t: x\n", true),
            ("flags\t\t: fpu svm\n", true),
            ("model name\t: vmx svm\nflags\t\t: fpu svm_lock hypervisor\n", false),
            ("", false),
        ] {
            assert_eq!(has_virtualization(cpuinfo), expected, "{cpuinfo:?}");
        }
    }

    #[test]
    fn what_is_said_is_taken_and_all_but_kvm_emulates() {
        for said in [KVM, TCG] {
            assert_eq!(resolved_accelerator(said), said);
        }
        assert!([KVM, TCG].contains(&resolved_accelerator(AUTO)));
        assert!(emulates(TCG) && !emulates(KVM));
    }
}
