//! A container around one program of ours: what an OCI runtime is told.
//!
//! Its root directory is empty but for the program and the libraries that it is linked to, mounted read-only
//! from where they are. It has process, mount, host-name and IPC namespaces of its own, no capabilities, and its
//! starter's network. Limits of memory and CPU time (cgroups) are not set.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use fordway_store::{Error, ErrorKind, Result};
use serde_json::json;

use super::Need;
use super::step::found;
use crate::Mounts;

/// A program that runs containers.
struct Runtime {
    program: &'static str,
    options: &'static [&'static str],
    /// What is done about cgroups, which outlive a killed process, before it is started: a script.
    prepare: &'static str,
}

/// Those that are known, the best first.
const RUNTIMES: [Runtime; 2] = [
    // It does without, and gives up at some of their layouts even so, unless there are none to be seen.
    Runtime {
        program: "crun",
        options: &["--cgroup-manager=disabled"],
        prepare: "mount -t tmpfs none /sys/fs/cgroup",
    },
    // It makes some. Those of runs that were killed are empty; of others, none can be removed.
    Runtime {
        program: "runc",
        options: &[],
        prepare: "find /sys/fs/cgroup -depth -type d -name 'fordway-p[io]ng-*' -exec rmdir '{}' + 2>/dev/null || true",
    },
];

/// How many containers this process has described: their names are told apart by it.
static DESCRIBED: AtomicU32 = AtomicU32::new(0);

fn runtime() -> Option<&'static Runtime> {
    RUNTIMES.iter().find(|runtime| found(runtime.program).is_some())
}

/// The runtime to install where there is none.
pub(super) fn missing() -> Option<Need> {
    let [best, ..] = &RUNTIMES;
    let program = best.program.to_owned();
    runtime().is_none().then(|| Need { package: program.clone(), program })
}

/// Writes what the runtime needs, and returns the command that runs `command` in a container called `name`.
/// Errors: `NotImplemented` where there is no runtime.
pub(super) fn contained(mounts: &Mounts, name: &str, command: &[String]) -> Result<Vec<String>> {
    let runtime = runtime().ok_or_else(|| {
        Error::new(ErrorKind::NotImplemented, "there is neither `crun` nor `runc`; install crun")
    })?;
    let program = command.first().map(PathBuf::from).unwrap_or_default();
    let config = config(name, command, &files_of(&program)?).to_string();
    let bundle = format!("{}/{name}", Mounts::SCRATCH);
    let write = || {
        std::fs::create_dir_all(format!("{bundle}/root"))?;
        std::fs::write(format!("{bundle}/config.json"), config)
    };
    mounts
        .run(write)?
        .map_err(|error| Error::new(ErrorKind::Io, "describing a container").caused_by(error))?;
    // The runtime looks itself up in /proc, which must belong to its own process namespace.
    let prepare = format!("{}; exec \"$@\"", runtime.prepare);
    let mut words =
        vec!["unshare", "--mount", "--mount-proc", "sh", "-ec", &prepare, "container", runtime.program];
    words.extend(runtime.options);
    let state = format!("{bundle}/state");
    let id = format!("fordway-{name}-{}-{}", std::process::id(), DESCRIBED.fetch_add(1, Ordering::Relaxed));
    words.extend(["--root", &state, "run", "--bundle", &bundle, &id]);
    Ok(words.into_iter().map(str::to_owned).collect())
}

/// The program, and the libraries that it is linked to, as `ldd` tells them.
fn files_of(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().map_err(|error| {
        Error::new(ErrorKind::NotImplemented, "running ldd, which tells what a program is linked to")
            .caused_by(error)
    })?;
    let mut files = vec![program.to_path_buf()];
    // Of what is linked to nothing it says so, by an error.
    files.extend(libraries(&String::from_utf8_lossy(&output.stdout)));
    Ok(files)
}

/// `libc.so.6 => /lib/libc.so.6 (0x7f)`, and `/lib64/ld-linux-x86-64.so.2 (0x7f)`.
fn libraries(told: &str) -> Vec<PathBuf> {
    let path_of = |line: &str| {
        let path = line.split_once("=>").map_or(line, |(_, path)| path).trim();
        let path = path.split(" (").next().unwrap_or_default();
        path.starts_with('/').then(|| PathBuf::from(path))
    };
    told.lines().filter_map(path_of).collect()
}

fn config(name: &str, command: &[String], files: &[PathBuf]) -> serde_json::Value {
    let mut mounts = vec![
        json!({ "destination": "/proc", "type": "proc", "source": "proc" }),
        json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"] }),
    ];
    mounts.extend(files.iter().map(
        |file| json!({ "destination": file, "type": "bind", "source": file, "options": ["bind", "ro"] }),
    ));
    json!({
        "ociVersion": "1.0.2",
        "hostname": name,
        "root": { "path": "root" },
        "process": {
            "user": { "uid": 0, "gid": 0 },
            "args": command,
            "cwd": "/",
            "env": ["PATH=/"],
            "noNewPrivileges": true,
        },
        "mounts": mounts,
        "linux": {
            "namespaces": [{ "type": "pid" }, { "type": "mount" }, { "type": "ipc" }, { "type": "uts" }],
        },
    })
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
