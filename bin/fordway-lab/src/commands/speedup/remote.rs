//! The programs that the launcher uses instead of ssh and an ssh server, to start ranks in the second network of a
//! set-up.
//!
//! `enter` replaces ssh: it enters another network of this machine, or sends the command to a container or a kernel. In
//! the container or kernel, `accept` replaces the ssh server. Only the two networks of the set-up can reach `accept`.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use fordway_command::{CommandExit, file_error};
use fordway_netlab::NamespaceProcess;
use fordway_store::{Error, ErrorKind, Result};

/// The port at which a container or a kernel accepts commands. Addresses on the command line do not contain the port,
/// because the launcher treats the string after a colon as the name of another agent.
const PORT: u16 = 18_082;
/// The maximum time to wait until a container or a kernel accepts commands.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// The time limit of one connection attempt. The limit is short, because packets to a booting kernel are lost.
const CONNECT_WITHIN: Duration = Duration::from_millis(200);
const POLL: Duration = Duration::from_millis(5);

/// Runs the command that the launcher requests at `place`, which is a network of this machine or the address of a
/// container or a kernel. As with ssh, `words` consists of a host at `place`, and a command for a shell on that host.
pub(super) fn enter(place: &Path, words: &[OsString]) -> Result<CommandExit> {
    let Some((_host, command)) = words.split_first().filter(|(_, command)| !command.is_empty()) else {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            "--enter needs a host and a command to run there",
        ));
    };
    let command = command.join(OsStr::new(" "));
    match place.to_str().and_then(|text| text.parse::<IpAddr>().ok()) {
        Some(address) => send(SocketAddr::new(address, PORT), &command),
        None => enter_network(place, &command),
    }
}

/// Replaces this process with the command, in `network`.
fn enter_network(network: &Path, command: &OsStr) -> Result<CommandExit> {
    let name = network.display();
    let opened = std::fs::File::open(network).map_err(|error| file_error("opening", name, error))?;
    fordway_sys::enter_network_namespace(&opened)
        .map_err(|error| file_error("entering", network.display(), error.into()))?;
    // This thread is now in the network, so the program that replaces this process runs there too.
    let error = shell(command).exec();
    Err(file_error("starting", "sh", error))
}

fn shell(command: &OsStr) -> Command {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command);
    shell
}

/// Sends the command to a container or a kernel, and prints the command's output until the command exits.
fn send(address: SocketAddr, command: &OsStr) -> Result<CommandExit> {
    let failed = |error| Error::new(ErrorKind::Unavailable, format!("asking {address}")).caused_by(error);
    let mut stream = TcpStream::connect(address).map_err(failed)?;
    stream.write_all(command.as_bytes()).and_then(|()| stream.shutdown(Shutdown::Write)).map_err(failed)?;
    match print_all_but_last(&mut stream, &mut std::io::stdout().lock()).map_err(failed)? {
        Some(SUCCEEDED) => Ok(CommandExit::Ok),
        Some(FAILED) => Err(Error::new(ErrorKind::Io, format!("the command at {address} failed"))),
        // The connection was closed without a status byte, for example because the container or the kernel stopped.
        _ => Err(Error::new(ErrorKind::Unavailable, format!("the command at {address} was cut off"))),
    }
}

/// The last byte of the response, after the output of the command, shows whether the command succeeded.
const SUCCEEDED: u8 = 1;
const FAILED: u8 = 0;

/// Copies everything except the last byte, and returns that byte; `None` if nothing was received.
fn print_all_but_last(from: &mut impl Read, to: &mut impl Write) -> std::io::Result<Option<u8>> {
    let (mut last, mut piece) = (None, [0; 4096]);
    loop {
        let got = from.read(&mut piece)?;
        let Some((newest, others)) = piece[..got].split_last() else { return Ok(last) };
        if let Some(earlier) = last.replace(*newest) {
            to.write_all(&[earlier])?;
        }
        to.write_all(others)?;
        to.flush()?;
    }
}

/// Runs every command that arrives at `address`, until this process exits.
pub(super) fn accept(address: IpAddr) -> Result<CommandExit> {
    let address = SocketAddr::new(address, PORT);
    let failed =
        |error| Error::new(ErrorKind::Unavailable, format!("listening at {address}")).caused_by(error);
    let listener = TcpListener::bind(address).map_err(failed)?;
    for stream in listener.incoming() {
        let stream = stream.map_err(failed)?;
        std::thread::Builder::new()
            .spawn(move || run(stream))
            .map_err(|error| Error::new(ErrorKind::Io, "starting a thread").caused_by(error))?;
    }
    Ok(CommandExit::Ok)
}

fn run(mut stream: TcpStream) {
    let mut command = Vec::new();
    // The peer opens a connection without a command only to check whether this program is ready.
    if stream.read_to_end(&mut command).is_err() || command.is_empty() {
        return;
    }
    let has_succeeded = run_shell(&OsString::from_vec(command), &stream).is_ok_and(|status| status.success());
    // Ignore the error: if the peer has exited, no program needs the result.
    let _ = stream.write_all(&[if has_succeeded { SUCCEEDED } else { FAILED }]);
    // Shut the connection down, because processes that the command started may still have its descriptor open.
    let _ = stream.shutdown(Shutdown::Both);
}

/// Runs a command, and sends its output over the connection.
fn run_shell(command: &OsStr, stream: &TcpStream) -> std::io::Result<ExitStatus> {
    let output = || stream.try_clone().map(OwnedFd::from).map(Stdio::from);
    shell(command).stdin(Stdio::null()).stdout(output()?).stderr(output()?).status()
}

/// Waits until `process` accepts commands at `address`. Errors: `Unavailable` if the process exited; `Timeout`.
pub(super) fn wait_for(address: IpAddr, process: &mut NamespaceProcess) -> Result<()> {
    let address = SocketAddr::new(address, PORT);
    let since = Instant::now();
    while TcpStream::connect_timeout(&address, CONNECT_WITHIN).is_err() {
        if let Some(status) = process.ended()? {
            return Err(Error::new(ErrorKind::Unavailable, format!("the peer stopped: {status}")));
        }
        if since.elapsed() > READY_WITHIN {
            let detail = format!("the peer does not respond after {READY_WITHIN:?}");
            return Err(Error::new(ErrorKind::Timeout, detail));
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}
