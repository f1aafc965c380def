//! The load on ping: one message at a time, of the next size.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fordway_http::Response;
use fordway_load::pingpong::RETRIES;
use fordway_measure::Connections;
use fordway_store::{Error, ErrorKind, Result};
use fordway_workload::rest::{Answer, Channel, Failure, Traffic};

use crate::commands::pingpong::caller::Caller;

/// The most of an answer that is kept as the reason of a failure.
const REASON_BYTES_MAX: usize = 500;

/// The sizes of a block, of which each thread takes the next, over and over.
#[derive(Debug)]
pub(super) struct Sizes {
    all: Vec<u64>,
    next: AtomicUsize,
}

impl Sizes {
    pub(super) fn new(all: Vec<u64>) -> Self {
        Sizes { all, next: AtomicUsize::new(0) }
    }

    /// How many messages are all of them.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    fn next(&self) -> u64 {
        self.all[self.next.fetch_add(1, Ordering::Relaxed) % self.all.len()]
    }
}

/// One thread's way to ping.
pub(super) struct Siege {
    caller: Caller,
    sizes: Arc<Sizes>,
    keep: bool,
    room: Vec<u8>,
    is_due: bool,
    connections: u64,
}

/// What a message came to.
struct Received {
    first_byte: Instant,
    retries: u32,
    /// The reason where it is no success.
    failure: Option<Failure>,
}

impl Siege {
    pub(super) fn new(address: &str, sizes: Arc<Sizes>, keep: bool, timeout: Duration) -> Result<Self> {
        let caller = Caller::new(&format!("http://{address}"), "ping", timeout)?;
        Ok(Siege { caller, sizes, keep, room: Vec::new(), is_due: false, connections: 0 })
    }

    fn receive(&mut self, bytes: u64) -> Result<Received> {
        let mut response = self.caller.ask(bytes, self.keep).map_err(|failure| failure.error)?;
        let first_byte = Instant::now();
        self.connections += u64::from(response.is_first());
        let retries = response.header(RETRIES).and_then(|text| text.parse().ok()).unwrap_or_default();
        if response.status() != 200 {
            let failure = refused(&mut response);
            return Ok(Received { first_byte, retries, failure: Some(failure) });
        }
        if response.body_bytes() != Some(bytes) {
            let detail = format!("the answer says it has {:?} bytes, not {bytes}", response.body_bytes());
            return Err(Error::new(ErrorKind::BadResponse, detail));
        }
        let room = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.room.resize(room.max(self.room.len()), 0);
        response.read_into(&mut self.room[..room])?;
        Ok(Received { first_byte, retries, failure: None })
    }
}

/// What ping said to a message that it has not.
fn refused(response: &mut Response) -> Failure {
    let kind = format!("status {}", response.status());
    let said = response.read_rest(REASON_BYTES_MAX).unwrap_or_default();
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    Failure { detail: if said.is_empty() { kind.clone() } else { said }, kind: kind.into() }
}

impl Channel for Siege {
    fn slots(&self) -> usize {
        1
    }

    fn start(&mut self, _slot: usize) {
        self.is_due = true;
    }

    /// Does the whole exchange: nothing else is under way in this thread.
    fn wait(&mut self, _limit: Duration, answers: &mut Vec<Answer>) -> Result<()> {
        if !std::mem::take(&mut self.is_due) {
            return Ok(());
        }
        let bytes = self.sizes.next();
        let started = Instant::now();
        let received = self.receive(bytes);
        let ended = Instant::now();
        let (first_byte, retries, failure) = match received {
            Ok(Received { first_byte, retries, failure }) => (Some(first_byte), retries, failure),
            Err(error) => {
                let failure = Failure { kind: error.kind().name().into(), detail: error.to_string() };
                (None, 0, Some(failure))
            }
        };
        // A failure keeps the size that was asked for: what fails is of interest by size, too.
        answers.push(Answer { slot: 0, started, first_byte, ended, body_bytes: bytes, retries, failure });
        Ok(())
    }

    fn traffic(&self) -> Traffic {
        Traffic { connections: self.connections, ..Traffic::default() }
    }

    fn connections(&self) -> Option<Connections> {
        None
    }
}
