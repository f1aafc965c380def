//! Clients that run in separate processes. Each client is a child of the measuring process. The measuring process sends
//! each client its share of every block over a socket, as a line of JSON, and receives the result in the same way.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use fordway_measure::RunClock;
use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::ForkedProcess;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::ComparePhase;
use super::share::{BlockShare, FileRangeAccess, ShareResult, ShareWork, SharedInputs, divide};

/// The time between the distribution of a block and its first calls. All clients must have received their shares by
/// then, so that the first client does not work alone.
const HEAD_START_NS: u64 = 300_000;

/// A child that performs shares until this value is dropped.
pub(super) struct ClientProcess {
    connection: BufReader<UnixStream>,
    _process: ForkedProcess,
}

impl ClientProcess {
    /// Forks a client. The child has its own copy of `inputs`; the kernel copies a page only when it is modified.
    /// Errors: `Io` if the system cannot start another process, or lacks descriptors or memory.
    pub(super) fn start(inputs: SharedInputs, client: usize) -> Result<Self> {
        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::from(&error), format!("starting client process {client}")).caused_by(error)
        };
        let (near, far) = UnixStream::pair().map_err(failed)?;
        let serve = || serve(BufReader::new(far), ShareWork::new(inputs, client));
        let process = fordway_sys::fork_process(serve).map_err(|errno| failed(errno.into()))?;
        Ok(ClientProcess { connection: BufReader::new(near), _process: process })
    }
}

/// Performs shares until the connection is closed.
fn serve(mut connection: BufReader<UnixStream>, mut work: ShareWork) {
    while let Ok(share) = receive::<BlockShare>(&mut connection) {
        if send(&mut connection, &work.perform(&share)).is_err() {
            break;
        }
    }
}

/// Divides `jobs` among `clients`, and returns their results in the order of `jobs`. Errors: `Internal` if a client has
/// ended.
pub(super) fn perform(
    clients: &mut [ClientProcess],
    (target, phase): (usize, ComparePhase),
    jobs: &[FileRangeAccess],
    clock: RunClock,
) -> Result<ShareResult> {
    let start_ns = clock.now_ns() + HEAD_START_NS;
    let parts: Vec<_> = divide(jobs.len(), clients.len()).collect();
    for (client, part) in clients.iter_mut().zip(&parts) {
        let share = BlockShare { target, phase, jobs: jobs[part.clone()].to_vec(), start_ns };
        send(&mut client.connection, &share).map_err(ended)?;
    }
    let mut all = ShareResult::default();
    for (client, _) in clients.iter_mut().zip(&parts) {
        let ShareResult { accesses, cpu_ns } = receive(&mut client.connection).map_err(ended)?;
        all.accesses.extend(accesses);
        all.cpu_ns += cpu_ns;
    }
    Ok(all)
}

fn ended(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Internal, "a client process has ended before its work was done").caused_by(error)
}

fn send(connection: &mut BufReader<UnixStream>, message: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    connection.get_mut().write_all(&line)
}

fn receive<T: DeserializeOwned>(connection: &mut BufReader<UnixStream>) -> std::io::Result<T> {
    let mut line = String::new();
    match connection.read_line(&mut line)? {
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(serde_json::from_str(&line)?),
    }
}
