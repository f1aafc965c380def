//! What each program is asked, and what its answer is.

use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use fordway_command::{Interrupt, file_error};
use fordway_measure::{FileSystem, bytes_text};
use fordway_store::{Error, ErrorKind, Result};
use tempfile::TempDir;

use super::tool::{Tool, number_at};

/// Spheres along each side of the cube in the picture.
const SPHERES: usize = 7;
/// The picture's width and height in pixels.
const PIXELS: usize = 1024;
/// How long iperf3 sends.
const NETWORK_SECONDS: &str = "2";
const BYTES_PER_MB: f64 = 1e6;

/// CPU time that tachyon takes for a picture on one thread, in seconds.
pub(super) fn tachyon(interrupt: &Interrupt) -> Result<f64> {
    let failed = |error| file_error("writing", "a scene for tachyon", error);
    let mut scene = tempfile::Builder::new().suffix(".dat").tempfile().map_err(failed)?;
    scene.write_all(scene_text().as_bytes()).map_err(failed)?;
    let mut command = Command::new("tachyon");
    command.arg(scene.path()).args(["-numthreads", "1", "-nosave"]);
    let done = Tool::start(command, "tachyon")?.finish(interrupt)?;
    // It ends well also with a scene that it does not understand.
    match done.stdout.contains("Ray Tracing Time") {
        true => Ok(done.cpu.as_secs_f64()),
        false => Err(Error::new(ErrorKind::BadResponse, "tachyon made no picture; is it another version?")),
    }
}

pub(super) fn tachyon_how() -> String {
    let count = SPHERES.pow(3);
    format!(
        "tachyon on one thread: {count} mirroring spheres on {PIXELS} x {PIXELS} pixels, user and system time"
    )
}

/// A cube of spheres that mirror one another, with two lights.
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

/// A disk, through a file in a directory of its own.
pub(super) struct Disk {
    dir: TempDir,
    bytes: u64,
    kind: String,
}

impl Disk {
    /// Errors: from making a directory in `parent`.
    pub(super) fn new(parent: &Path, bytes: u64) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("fordway-machines-").tempdir_in(parent);
        let dir = dir.map_err(|error| file_error("making a directory in", parent.display(), error))?;
        let kind = FileSystem::of("disk", parent).map_or("a file system".to_owned(), |found| found.kind);
        Ok(Disk { dir, bytes, kind })
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn how(&self) -> String {
        format!(
            "fio: {} in pieces of 1 MiB on {}; written with a sync at the end, read without the page cache",
            bytes_text(self.bytes),
            self.kind
        )
    }

    /// Writes the file and reads it: MB/s of both.
    /// Errors: `InvalidArgument` if there is no disk beneath.
    pub(super) fn write_and_read(&self, interrupt: &Interrupt) -> Result<Vec<f64>> {
        if matches!(self.kind.as_str(), "tmpfs" | "ramfs") {
            let why = format!("{} is memory, no disk; name a directory on a disk with --disk", self.kind);
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        ["write", "read"].into_iter().map(|what| self.fio(what, interrupt)).collect()
    }

    fn fio(&self, what: &str, interrupt: &Interrupt) -> Result<f64> {
        let mut command = Command::new("fio");
        command.args(["--name=fordway", "--bs=1M", "--ioengine=psync", "--end_fsync=1", "--invalidate=1"]);
        command.args([format!("--rw={what}"), format!("--size={}", self.bytes)]);
        command.arg("--output-format=json").arg("--filename=fordway").current_dir(self.path());
        let done = Tool::start(command, "fio")?.finish(interrupt)?;
        Ok(number_at("fio", &done.stdout, &format!("/jobs/0/{what}/bw_bytes"))? / BYTES_PER_MB)
    }
}

/// MB/s of one connection to `peer`, or without one to this machine by loopback.
pub(super) fn iperf3(peer: Option<&str>, interrupt: &Interrupt) -> Result<f64> {
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

fn loopback(interrupt: &Interrupt) -> Result<f64> {
    let failed = |error| file_error("looking for", "a free port", error);
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).map_err(failed)?;
    let port = free.port().to_string();
    let mut server = Command::new("iperf3");
    server.args(["--server", "--one-off", "--bind", "127.0.0.1", "--forceflush", "--port", &port]);
    let mut server = Tool::start(server, "iperf3")?;
    server.await_text("listening", interrupt)?;
    client("127.0.0.1", &port, interrupt)
}

fn client(host: &str, port: &str, interrupt: &Interrupt) -> Result<f64> {
    let mut command = Command::new("iperf3");
    command.args(["--client", host, "--port", port, "--time", NETWORK_SECONDS, "--json"]);
    let done = Tool::start(command, "iperf3")?.finish(interrupt)?;
    Ok(number_at("iperf3", &done.stdout, "/end/sum_received/bits_per_second")? / 8.0 / BYTES_PER_MB)
}
