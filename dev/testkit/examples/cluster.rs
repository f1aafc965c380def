//! Runs a shell command in an environment where a shared file system is mounted twice: `cluster nfs 'ls /mnt/1/root
//! /mnt/2/root'`. The command sees the files of this machine. The command may write below the two mounts, and below
//! `/run` and `/tmp`.

use std::process::ExitCode;

use fordway_testkit::cluster::SharedFileSystemFixture;

#[allow(clippy::print_stdout, clippy::print_stderr, reason = "this is a program")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, command] = &arguments[..] else {
        eprintln!("usage: cluster glusterfs|nfs|moosefs|cephfs COMMAND");
        return ExitCode::from(2);
    };
    let started = match name.as_str() {
        "glusterfs" => SharedFileSystemFixture::glusterfs(),
        "nfs" => SharedFileSystemFixture::nfs(),
        "moosefs" => SharedFileSystemFixture::moosefs(),
        "cephfs" => SharedFileSystemFixture::cephfs(),
        _ => {
            eprintln!("{name} is not a file system that this program starts");
            return ExitCode::from(2);
        }
    };
    // If the cluster does not start, the reason has already been printed.
    let Some(cluster) = started else { return ExitCode::FAILURE };
    print!("{}", cluster.task(command).output());
    ExitCode::SUCCESS
}
