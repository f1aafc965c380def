//! A container around one program of ours: what an OCI runtime is told.
//!
//! Its root directory is empty but for the program and the libraries that it is linked to, mounted read-only
//! from where they are. It has process, mount, host-name and IPC namespaces of its own, no capabilities, and the
//! network of whoever starts it. Limits of memory and CPU time (cgroups) are not set.

use std::path::{Path, PathBuf};
use std::process::Command;

use fordway_store::{Error, ErrorKind, Result};
use serde_json::json;

use super::step::found;
use crate::Mounts;

/// A program that runs containers.
struct Runtime {
    program: &'static str,
    options: &'static [&'static str],
    /// Whether it can do without cgroups, which outlive a killed process.
    needs_cgroups: bool,
}

/// Those that are known, the best first.
const RUNTIMES: [Runtime; 2] = [
    Runtime { program: "crun", options: &["--cgroup-manager=disabled"], needs_cgroups: false },
    Runtime { program: "runc", options: &[], needs_cgroups: true },
];

/// Runs what follows where there are no cgroups to be seen: crun gives up at some of their layouts.
const WITHOUT_CGROUPS: [&str; 4] =
    ["sh", "-c", "mount -t tmpfs none /sys/fs/cgroup && exec \"$@\"", "without-cgroups"];

/// Writes what the runtime needs, and returns the command that runs `command` in a container called `name`.
/// Errors: `NotImplemented` where there is no runtime.
pub(super) fn contained(mounts: &Mounts, name: &str, command: &[String]) -> Result<Vec<String>> {
    let runtime = RUNTIMES.iter().find(|runtime| found(runtime.program).is_some());
    let runtime = runtime.ok_or_else(|| {
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
    // The runtime looks itself up in /proc, which must be that of the process namespace where it is.
    let mut words = vec!["unshare", "--mount", "--mount-proc"];
    if !runtime.needs_cgroups {
        words.extend(WITHOUT_CGROUPS);
    }
    words.push(runtime.program);
    words.extend(runtime.options);
    let mut words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    words.extend(["--root".to_owned(), format!("{bundle}/state"), "run".to_owned()]);
    words.extend(["--bundle".to_owned(), bundle, format!("fordway-{name}")]);
    Ok(words)
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
