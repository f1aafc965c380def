//! Containers, run by `crun` or `runc`. A container has its own PID, mount, UTS and IPC namespaces, and the network of
//! the process that started it. No cgroup limits the memory or CPU time of the container. There are two kinds of
//! container:
//!
//! - for one of our programs: the root directory contains only the program and the libraries that it is linked against,
//!   mounted read-only at their usual paths. The container has no capabilities.
//! - [`MachineContainer`], for any program: the container has this machine's root directory, but its own `/proc` and
//!   its own `/dev`. Of `/dev`, only `/dev/shm` is shared with this machine. The container has the capabilities that
//!   Docker grants by default.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use fordway_store::{Error, ErrorKind, Result};
use serde_json::{Value, json};

use super::RequiredProgram;
use super::step::{command, found};
use crate::{MountNamespace, NamespaceProcess, NetworkNamespace};

/// A program that runs containers.
struct ContainerRuntime {
    program: &'static str,
    options: &'static [&'static str],
    /// A script that runs before the container starts. The script hides all cgroups, or removes the cgroups of earlier
    /// runs, because cgroups outlive a killed process.
    prepare: &'static str,
}

/// The supported runtimes, in order of preference.
const RUNTIMES: [ContainerRuntime; 2] = [
    // crun can run without cgroups, but still fails on some cgroup layouts, so a mount hides the cgroups.
    ContainerRuntime {
        program: "crun",
        options: &["--cgroup-manager=disabled"],
        prepare: "mount -t tmpfs none /sys/fs/cgroup",
    },
    // runc creates cgroups. The cgroups of killed runs are empty, so `rmdir` removes them; `rmdir` fails for cgroups in
    // use.
    ContainerRuntime {
        program: "runc",
        options: &[],
        prepare: "find /sys/fs/cgroup -depth -type d -name 'fordway-*-[0-9]*-[0-9]*' -exec rmdir '{}' + 2>/dev/null || true",
    },
];

/// Docker's default capabilities (moby, `oci/caps/defaults.go`).
const CAPABILITIES: [&str; 14] = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

/// The number of containers configured by this process, from which each container gets a unique name.
static DESCRIBED: AtomicU32 = AtomicU32::new(0);

fn runtime() -> Option<&'static ContainerRuntime> {
    RUNTIMES.iter().find(|runtime| found(runtime.program).is_some())
}

/// Returns the runtime to install if no runtime is installed.
pub(super) fn missing_runtime() -> Option<RequiredProgram> {
    let [best, ..] = &RUNTIMES;
    let program = best.program.to_owned();
    runtime().is_none().then(|| RequiredProgram { package: program.clone(), program })
}

/// Writes the runtime's configuration, and returns the command that runs `command` in a container called `name`. The
/// container contains only the program's own files. Errors: `NotImplemented` if there is no runtime.
pub(super) fn contained(mounts: &MountNamespace, name: &str, command: &[String]) -> Result<Vec<String>> {
    let program = command.first().map(PathBuf::from).unwrap_or_default();
    let config = own_files_config(name, command, &files_of(&program)?);
    run_command(mounts, name, &config, "")
}

/// Writes the configuration into `mounts`, and returns the command that runs the container. `prepare` is a further
/// script that runs before the container starts; `$bundle` is the container's directory.
fn run_command(mounts: &MountNamespace, name: &str, config: &Value, prepare: &str) -> Result<Vec<String>> {
    let runtime = runtime().ok_or_else(|| {
        Error::new(ErrorKind::NotImplemented, "there is neither `crun` nor `runc`; install crun")
    })?;
    let number = DESCRIBED.fetch_add(1, Ordering::Relaxed);
    let bundle = format!("{}/{name}-{number}", MountNamespace::SCRATCH);
    let write = || {
        std::fs::create_dir_all(format!("{bundle}/root"))?;
        std::fs::write(format!("{bundle}/config.json"), config.to_string())
    };
    mounts
        .run(write)?
        .map_err(|error| Error::new(ErrorKind::from(&error), "describing a container").caused_by(error))?;
    // The runtime reads its own entry in /proc, so /proc must show the runtime's own PID namespace.
    let prepare = format!("bundle={bundle}; {}; {prepare} exec \"$@\"", runtime.prepare);
    let mut words =
        vec!["unshare", "--mount", "--mount-proc", "sh", "-ec", &prepare, "container", runtime.program];
    words.extend(runtime.options);
    let state = format!("{bundle}/state");
    let id = format!("fordway-{name}-{}-{number}", std::process::id());
    words.extend(["--root", &state, "run", "--bundle", &bundle, &id]);
    Ok(words.into_iter().map(str::to_owned).collect())
}

/// Returns the program, and the libraries that it is linked against, as `ldd` lists them.
fn files_of(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().map_err(|error| {
        Error::new(ErrorKind::NotImplemented, "running ldd, which lists the libraries of a program")
            .caused_by(error)
    })?;
    let mut files = vec![program.to_path_buf()];
    // For a statically linked program, `ldd` prints no library and returns an error.
    files.extend(libraries(&String::from_utf8_lossy(&output.stdout)));
    Ok(files)
}

/// Parses lines such as `libc.so.6 => /lib/libc.so.6 (0x7f)` and `/lib64/ld-linux-x86-64.so.2 (0x7f)`.
fn libraries(told: &str) -> Vec<PathBuf> {
    let path_of = |line: &str| {
        let path = line.split_once("=>").map_or(line, |(_, path)| path).trim();
        let path = path.split(" (").next().unwrap_or_default();
        path.starts_with('/').then(|| PathBuf::from(path))
    };
    told.lines().filter_map(path_of).collect()
}

fn own_files_config(name: &str, command: &[String], files: &[PathBuf]) -> Value {
    let files = files.iter().map(
        |file| json!({ "destination": file, "type": "bind", "source": file, "options": ["bind", "ro"] }),
    );
    let process = json!({
        "user": { "uid": 0, "gid": 0 },
        "args": command,
        "cwd": "/",
        "env": ["PATH=/"],
        "noNewPrivileges": true,
    });
    config(name, &process, files.collect())
}

fn config(name: &str, process: &Value, further_mounts: Vec<Value>) -> Value {
    let mut mounts = vec![
        json!({ "destination": "/proc", "type": "proc", "source": "proc" }),
        json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"] }),
    ];
    mounts.extend(further_mounts);
    json!({
        "ociVersion": "1.0.2",
        "hostname": name,
        "root": { "path": "root" },
        "process": process,
        "mounts": mounts,
        "linux": {
            "namespaces": [{ "type": "pid" }, { "type": "mount" }, { "type": "ipc" }, { "type": "uts" }],
        },
    })
}

/// A command to run in a [`MachineContainer`].
#[derive(Debug)]
pub struct ContainerCommand<'a> {
    /// The name of the container, which is its host name.
    pub name: &'a str,
    /// The program and its arguments.
    pub words: &'a [OsString],
    /// Variables that are added to the environment of this process, or replace variables of the same name.
    pub variables: &'a [(String, String)],
    /// The network of the container; `None` for the network of this process.
    pub network: Option<&'a NetworkNamespace>,
}

/// Runs programs in containers that have all files of this machine, in the directory and with the environment of this
/// process. A program cannot see the processes of other containers.
#[derive(Debug)]
pub struct MachineContainer {
    mounts: MountNamespace,
}

impl MachineContainer {
    /// Creates the mount namespace for the configurations of the containers. Errors: `NotImplemented` if a runtime or a
    /// privilege is missing.
    pub fn new() -> Result<Self> {
        match missing_runtime() {
            None => Ok(MachineContainer { mounts: MountNamespace::new()? }),
            Some(need) => {
                let detail = format!("there is no program `{}`; install {}", need.program, need.package);
                Err(Error::new(ErrorKind::NotImplemented, detail))
            }
        }
    }

    /// Starts a container. Dropping the returned value ends the container. A signal to the process group of this
    /// process (Ctrl-C) does not reach the container. Errors: `InvalidArgument` if a word or the working directory is
    /// not UTF-8.
    pub fn start(
        &self,
        asked: &ContainerCommand<'_>,
        stdout: Stdio,
        stderr: Stdio,
    ) -> Result<NamespaceProcess> {
        let config = machine_config(asked)?;
        // The container's root directory cannot be `/` itself, because the runtime turns the root directory into a
        // separate mount.
        let prepare = "mount --rbind / $bundle/root; mount --make-rprivate $bundle/root;";
        let words = run_command(&self.mounts, asked.name, &config, prepare)?;
        let mut run = command(&words)?;
        run.stdin(Stdio::null()).stdout(stdout).stderr(stderr).process_group(0);
        match asked.network {
            Some(network) => network.start_within(&self.mounts, run),
            None => NamespaceProcess::start_within_here(&self.mounts, run),
        }
    }
}

fn machine_config(asked: &ContainerCommand<'_>) -> Result<Value> {
    let not_text = |what: &dyn std::fmt::Debug| {
        Error::new(ErrorKind::InvalidArgument, format!("{what:?} is not UTF-8, which containers require"))
    };
    let words = asked.words.iter().map(|word| word.to_str().ok_or_else(|| not_text(word)));
    let words = words.collect::<Result<Vec<_>>>()?;
    let here = std::env::current_dir()
        .map_err(|error| Error::new(ErrorKind::Io, "finding the working directory").caused_by(error))?;
    let here = here.to_str().ok_or_else(|| not_text(&here))?;
    let is_new = |name: &str| asked.variables.iter().any(|(new, _)| new == name);
    let inherited = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.to_str().filter(|name| !is_new(name))?;
        Some(format!("{name}={}", value.to_str()?))
    });
    let new = asked.variables.iter().map(|(name, value)| format!("{name}={value}"));
    let variables = inherited.chain(new);
    let process = json!({
        "user": { "uid": 0, "gid": 0 },
        "args": words,
        "cwd": here,
        "env": variables.collect::<Vec<_>>(),
        "capabilities": { "bounding": CAPABILITIES, "effective": CAPABILITIES, "permitted": CAPABILITIES },
    });
    let mounts = vec![
        json!({ "destination": "/dev/pts", "type": "devpts", "source": "devpts",
            "options": ["newinstance", "ptmxmode=0666", "nosuid", "noexec"] }),
        // Share `/dev/shm` with this machine, because users also keep data there.
        json!({ "destination": "/dev/shm", "type": "bind", "source": "/dev/shm", "options": ["bind", "rw"] }),
    ];
    Ok(config(asked.name, &process, mounts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_those_with_a_place() {
        let told = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n\tlibgone.so => not found\n";
        let found = libraries(told);
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(found, expected);
        assert!(libraries("\tstatically linked\n").is_empty());
    }
}
