//! Runs measuring programs that are installed on the system. This file defines the arguments of each program, and the
//! figure to read from its output.

use std::fs::File;
use std::io::{self, Write};
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fordway_command::{InterruptFlag, file_error};
use fordway_measure::{FileSystem, bytes_text};
use fordway_store::{Error, ErrorKind, Result};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use serde_json::Value;

use crate::commands::scratch::ScratchDirectory;

/// The number of spheres along each side of the cube in the scene.
const SPHERES: usize = 7;
/// The width and height of the picture, in pixels.
const PIXELS: usize = 1024;
/// The time for which iperf3 sends data, in seconds.
const NETWORK_SECONDS: &str = "2";
const BYTES_PER_MB: f64 = 1e6;

/// Measures the CPU time, in seconds, that tachyon needs to render a scene on one thread.
pub(super) fn tachyon(interrupt: &InterruptFlag) -> Result<f64> {
    let failed = |error| file_error("writing", "a scene for tachyon", error);
    let mut scene = tempfile::Builder::new().suffix(".dat").tempfile().map_err(failed)?;
    scene.write_all(scene_text().as_bytes()).map_err(failed)?;
    let mut command = Command::new("tachyon");
    command.arg(scene.path()).args(["-numthreads", "1", "-nosave"]);
    let done = ToolProcess::start(command, "tachyon")?.finish(interrupt)?;
    // tachyon exits with success even if it cannot parse the scene.
    match done.stdout.contains("Ray Tracing Time") {
        true => Ok(done.cpu.as_secs_f64()),
        false => {
            Err(Error::new(ErrorKind::BadResponse, "tachyon created no image; is it a different version?"))
        }
    }
}

pub(super) fn tachyon_how() -> String {
    let count = SPHERES.pow(3);
    format!(
        "tachyon on one thread: {count} mirroring spheres on {PIXELS} x {PIXELS} pixels, user and system time"
    )
}

/// Returns a scene with two lights and a cube of spheres that reflect each other.
fn scene_text() -> String {
    let head = format!(
        "BEGIN_SCENE\nRESOLUTION {PIXELS} {PIXELS}\nCAMERA\nZOOM 1.0\nASPECTRATIO 1.0\nANTIALIASING 1\nRAYDEPTH 8\n\
         CENTER 0.0 0.0 -16.0\nVIEWDIR 0.0 0.0 1.0\nUPDIR 0.0 1.0 0.0\nEND_CAMERA\nBACKGROUND 0.1 0.1 0.2\n\
         LIGHT CENTER 10.0 12.0 -14.0 RAD 0.1 COLOR 1.0 1.0 1.0\nLIGHT CENTER -12.0 6.0 -10.0 RAD 0.1 COLOR 0.6 0.6 0.6\n"
    );
    let at = |step: usize| 2.0 * step as f64 - (SPHERES - 1) as f64;
    let sphere = |number: usize| {
        let (x, y, z) = (number % SPHERES, number / SPHERES % SPHERES, number / SPHERES.pow(2));
        format!(
            "SPHERE CENTER {:.1} {:.1} {:.1} RAD 0.9 TEXTURE AMBIENT 0.1 DIFFUSE 0.5 SPECULAR 0.4 OPACITY 1.0 \
             COLOR 0.9 0.6 0.3 TEXFUNC 0\n",
            at(x),
            at(y),
            2.0 * z as f64
        )
    };
    head + &(0..SPHERES.pow(3)).map(sphere).collect::<String>() + "END_SCENE\n"
}

/// A disk, measured through a file in a new directory.
pub(super) struct MeasuredDisk {
    dir: ScratchDirectory,
    bytes: u64,
    kind: String,
}

impl MeasuredDisk {
    /// Creates the directory in `parent`. Errors: the errors of creating the directory.
    pub(super) fn new(parent: &Path, bytes: u64) -> Result<Self> {
        let dir = ScratchDirectory::new("machines", parent);
        let dir = dir.map_err(|error| file_error("creating a directory in", parent.display(), error))?;
        let kind = FileSystem::of("disk", parent).map_or("a file system".to_owned(), |found| found.kind);
        Ok(MeasuredDisk { dir, bytes, kind })
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn how(&self) -> String {
        format!(
            "fio: {} in blocks of 1 MiB on {}; written with a sync at the end, read without the page cache",
            bytes_text(self.bytes),
            self.kind
        )
    }

    /// Writes the file and reads it; returns both rates in MB/s. Errors: `InvalidArgument` if the directory is in
    /// memory instead of on a disk, and errors of fio.
    pub(super) fn write_and_read(&self, interrupt: &InterruptFlag) -> Result<Vec<f64>> {
        if matches!(self.kind.as_str(), "tmpfs" | "ramfs") {
            let why =
                format!("{} is in memory, not on a disk; give a directory on a disk with --disk", self.kind);
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        ["write", "read"].into_iter().map(|what| self.fio(what, interrupt)).collect()
    }

    fn fio(&self, what: &str, interrupt: &InterruptFlag) -> Result<f64> {
        let mut command = Command::new("fio");
        command.args(["--name=fordway", "--bs=1M", "--ioengine=psync", "--end_fsync=1", "--invalidate=1"]);
        command.args([format!("--rw={what}"), format!("--size={}", self.bytes)]);
        command.arg("--output-format=json").arg("--filename=fordway").current_dir(self.path());
        let done = ToolProcess::start(command, "fio")?.finish(interrupt)?;
        Ok(number_at("fio", &done.stdout, &format!("/jobs/0/{what}/bw_bytes"))? / BYTES_PER_MB)
    }
}

/// Measures the bandwidth, in MB/s, of one connection to `peer`, or over loopback if there is no peer.
pub(super) fn iperf3(peer: Option<&str>, interrupt: &InterruptFlag) -> Result<f64> {
    let Some(peer) = peer else { return loopback(interrupt) };
    let (host, port) = match peer.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() && !host.ends_with(':') => (host, port),
        _ => (peer, "5201"),
    };
    client(host.trim_matches(['[', ']']), port, interrupt)
}

pub(super) fn iperf3_how(peer: Option<&str>) -> String {
    let place = peer.unwrap_or("127.0.0.1, this machine");
    format!("iperf3: one TCP connection for {NETWORK_SECONDS} s to {place}, bytes received")
}

fn loopback(interrupt: &InterruptFlag) -> Result<f64> {
    let failed = |error| file_error("looking for", "a free port", error);
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).map_err(failed)?;
    let port = free.port().to_string();
    let mut server = Command::new("iperf3");
    server.args(["--server", "--one-off", "--bind", "127.0.0.1", "--forceflush", "--port", &port]);
    let mut server = ToolProcess::start(server, "iperf3")?;
    server.await_text("listening", interrupt)?;
    client("127.0.0.1", &port, interrupt)
}

fn client(host: &str, port: &str, interrupt: &InterruptFlag) -> Result<f64> {
    let mut command = Command::new("iperf3");
    command.args(["--client", host, "--port", port, "--time", NETWORK_SECONDS, "--json"]);
    let done = ToolProcess::start(command, "iperf3")?.finish(interrupt)?;
    Ok(number_at("iperf3", &done.stdout, "/end/sum_received/bits_per_second")? / 8.0 / BYTES_PER_MB)
}

/// The maximum time for one run of a program.
const LIMIT: Duration = Duration::from_secs(60);
/// The interval at which a running program is checked.
const POLL: Duration = Duration::from_millis(5);

/// A running program. The program is killed when this value is dropped, and when this process exits.
pub(super) struct ToolProcess {
    program: String,
    child: Child,
    stdout: File,
    stderr: File,
    started: Instant,
}

/// The output and CPU time of a program that succeeded.
pub(super) struct ToolResult {
    pub(super) stdout: String,
    pub(super) cpu: Duration,
}

impl ToolProcess {
    /// Starts `command`, which is in the Debian package `package`. Errors: `Unavailable` if the program is not
    /// installed.
    pub(super) fn start(mut command: Command, package: &str) -> Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let failed = |error| file_error("starting", &program, error);
        // The output is written to files. A pipe would fill up, because nothing reads the output while the program
        // measures.
        let (stdout, stderr) = (tempfile::tempfile().map_err(failed)?, tempfile::tempfile().map_err(failed)?);
        command.stdin(Stdio::null());
        command.stdout(stdout.try_clone().map_err(failed)?).stderr(stderr.try_clone().map_err(failed)?);
        fordway_sys::end_with_thread(&mut command);
        let child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                let why = format!("{program} is not installed; on Debian, install the package {package}");
                Error::new(ErrorKind::Unavailable, why)
            }
            _ => failed(error),
        })?;
        Ok(ToolProcess { program, child, stdout, stderr, started: Instant::now() })
    }

    /// Waits until the program has printed `text` on standard output. Errors: `Unavailable` if the program exited
    /// without printing `text`.
    pub(super) fn await_text(&mut self, text: &str, interrupt: &InterruptFlag) -> Result<()> {
        loop {
            // Check for the exit before reading the output, because a program that is about to exit may print `text`
            // between the two checks.
            let has_ended = self.has_ended()?;
            match content(&self.stdout)?.contains(text) {
                true => return Ok(()),
                false if has_ended => return Err(self.failed("exited before it was ready")),
                false => self.pause(interrupt)?,
            }
        }
    }

    /// Waits until the program has exited. Errors: `Unavailable` if the program failed; `Timeout` if the program took
    /// too long.
    pub(super) fn finish(mut self, interrupt: &InterruptFlag) -> Result<ToolResult> {
        while !self.has_ended()? {
            self.pause(interrupt)?;
        }
        // The program has not been reaped yet, so its CPU time can still be read.
        let cpu = fordway_sys::process_cpu_ns(self.child.id());
        let cpu = cpu.map_err(|errno| file_error("reading the CPU time of", &self.program, errno.into()))?;
        let status = self.child.wait().map_err(|error| file_error("waiting for", &self.program, error))?;
        match status.success() {
            true => Ok(ToolResult { stdout: content(&self.stdout)?, cpu: Duration::from_nanos(cpu) }),
            false => Err(self.failed(&format!("exited with {status}"))),
        }
    }

    fn has_ended(&self) -> Result<bool> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let asked = pid.map_or(Ok(None), |pid| waitid(WaitId::Pid(pid), options));
        asked.map(|ended| ended.is_some()).map_err(|e| file_error("waiting for", &self.program, e.into()))
    }

    fn pause(&self, interrupt: &InterruptFlag) -> Result<()> {
        interrupt.check()?;
        if self.started.elapsed() > LIMIT {
            let why = format!("{} took more than {} s and was terminated", self.program, LIMIT.as_secs());
            return Err(Error::new(ErrorKind::Timeout, why));
        }
        std::thread::sleep(POLL);
        Ok(())
    }

    /// Returns the error of a failed program, with the last line of its output, which usually contains the reason.
    fn failed(&self, what: &str) -> Error {
        let said = content(&self.stderr).unwrap_or_default() + &content(&self.stdout).unwrap_or_default();
        let said = said
            .lines()
            .map(str::trim)
            .rfind(|line| line.chars().any(char::is_alphabetic))
            .unwrap_or("nothing");
        Error::new(ErrorKind::Unavailable, format!("{} {what}; its output: {said}", self.program))
    }
}

impl Drop for ToolProcess {
    fn drop(&mut self) {
        // Ignore errors: for a program that has already been reaped, both calls do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the current content of a file, without moving the file position, which this process shares with the writer.
fn content(file: &File) -> Result<String> {
    let failed = |error| file_error("reading", "the output of a program", error);
    let mut bytes = vec![0; file.metadata().map_err(failed)?.len() as usize];
    file.read_exact_at(&mut bytes, 0).map_err(failed)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns a number in JSON that a program printed, possibly after other text. Errors: `BadResponse` if the number is
/// missing or not above 0.
pub(super) fn number_at(program: &str, text: &str, pointer: &str) -> Result<f64> {
    let json = text.find('{').and_then(|start| serde_json::from_str::<Value>(&text[start..]).ok());
    let number = json.as_ref().and_then(|json| json.pointer(pointer)).and_then(Value::as_f64);
    number.filter(|number| *number > 0.0).ok_or_else(|| {
        Error::new(
            ErrorKind::BadResponse,
            format!("the output of {program} lacks {pointer}; is it a different version?"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn what_it_said_and_used() {
        let interrupt = InterruptFlag::default();
        // The output is larger than the buffer of a pipe.
        let script = "i=0; while [ $i -lt 20000 ]; do echo 12345; i=$((i+1)); done";
        let done = ToolProcess::start(shell(script), "dash").unwrap().finish(&interrupt).unwrap();
        assert_eq!(done.stdout.lines().count(), 20_000);
        assert!(done.cpu > Duration::ZERO);
    }

    #[test]
    fn why_it_failed() {
        let interrupt = InterruptFlag::default();
        let failed =
            ToolProcess::start(shell("echo no disk >&2; exit 3"), "dash").unwrap().finish(&interrupt);
        let error = failed.err().expect("it went well");
        assert!(error.to_string().contains("no disk"), "{error}");
        let mut ended = ToolProcess::start(shell("echo busy; exit 0"), "dash").unwrap();
        let error = ended.await_text("ready", &interrupt).expect_err("it was ready");
        assert!(error.to_string().contains("before it was ready; its output: busy"), "{error}");
        let missing = ToolProcess::start(Command::new("/nonexistent/fio"), "fio");
        let error = missing.err().expect("there is no such program");
        assert!(error.to_string().contains("not installed; on Debian, install the package fio"), "{error}");
    }

    #[test]
    fn ready_and_interrupted() {
        let interrupt = InterruptFlag::default();
        let mut waits = ToolProcess::start(shell("echo ready; exec sleep 60"), "dash").unwrap();
        waits.await_text("ready", &interrupt).unwrap();
        interrupt.raise();
        let error = waits.finish(&interrupt).err().expect("it slept for a minute");
        assert_eq!(error.kind(), ErrorKind::Interrupted);
    }

    #[test]
    fn numbers_in_json() {
        let text = "note: ...\n{\"jobs\": [{\"read\": {\"bw_bytes\": 12}}]}";
        assert_eq!(number_at("fio", text, "/jobs/0/read/bw_bytes").unwrap(), 12.0);
        for text in ["", "{}", "{\"jobs\": [{\"read\": {\"bw_bytes\": 0}}]}"] {
            let error = number_at("fio", text, "/jobs/0/read/bw_bytes").expect_err("there was a number");
            assert_eq!(error.kind(), ErrorKind::BadResponse);
        }
    }
}
