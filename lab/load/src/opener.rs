//! Opens connections on helper threads. Opening takes one round trip, or several with TLS or a proxy. The load thread
//! must not wait for this time, because it also reads the responses on all its other connections.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fordway_http::parts::{BufferedConnection, Connector};
use fordway_store::{Error, ErrorKind, Result};
use rustix::event::{EventfdFlags, eventfd};

use super::{AFTER_REFUSAL, RequestSequence};

/// The stack size of a helper thread, which is sufficient for a TLS handshake.
const STACK_BYTES: usize = 512 << 10;

/// Opens connections for the slots of one load generator, any number at the same time.
pub(super) struct ConnectionOpener {
    connector: Connector,
    requests: Arc<RequestSequence>,
    /// The channels to the helper threads, by thread number. Each thread opens one connection at a time.
    threads: Vec<Sender<usize>>,
    /// The numbers of the threads without work.
    idle: Vec<usize>,
    results: Receiver<OpenedConnection>,
    /// The sending end of `results`, which each new thread clones.
    sender: Sender<OpenedConnection>,
    /// Held during the pause after a failed attempt.
    refusal: Arc<Mutex<()>>,
    /// Readable if there is a result.
    wake: Arc<OwnedFd>,
}

struct OpenedConnection {
    thread: usize,
    slot: usize,
    connection: Result<BufferedConnection>,
}

impl ConnectionOpener {
    /// Creates an opener without threads. Errors: `Io`.
    pub(super) fn new(connector: Connector, requests: Arc<RequestSequence>) -> Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::new(ErrorKind::Io, "eventfd").caused_by(io::Error::from(errno)))?;
        let (sender, results) = channel();
        Ok(ConnectionOpener {
            connector,
            requests,
            threads: Vec::new(),
            idle: Vec::new(),
            results,
            sender,
            refusal: Arc::default(),
            wake: Arc::new(wake),
        })
    }

    /// Starts to open a connection for `slot`. Errors: `Io` if no thread can be started.
    pub(super) fn open(&mut self, slot: usize) -> Result<()> {
        let idle = self.idle.pop();
        let thread = match idle.map_or_else(|| self.add_thread(), Ok) {
            // If the system refuses to start another thread, an existing thread opens the connection after its current
            // one.
            Err(_) if !self.threads.is_empty() => slot % self.threads.len(),
            thread => thread?,
        };
        self.threads[thread].send(slot).map_err(|_| ErrorKind::Internal.into())
    }

    /// Returns the slot and the connection of an attempt that has ended, waiting for up to `limit`.
    pub(super) fn take(&mut self, limit: Duration) -> Option<(usize, Result<BufferedConnection>)> {
        let opened = match limit {
            Duration::ZERO => self.results.try_recv().ok()?,
            _ => self.results.recv_timeout(limit).ok()?,
        };
        self.idle.push(opened.thread);
        Some((opened.slot, opened.connection))
    }

    /// Makes the descriptor unreadable until the next attempt ends. Call this before the results are taken.
    pub(super) fn clear(&self) {
        // An error means that the descriptor is not readable.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    fn add_thread(&mut self) -> Result<usize> {
        let thread = self.threads.len();
        let (sender, slots) = channel();
        let (connector, requests) = (self.connector.clone(), self.requests.clone());
        let (results, wake, refusal) = (self.sender.clone(), self.wake.clone(), self.refusal.clone());
        let work = move || {
            for slot in slots {
                let connection = connector.connect(requests.origin());
                if connection.is_err() {
                    // One pause after the other, so that the number of attempts does not grow with the threads.
                    let _turn = refusal.lock();
                    std::thread::sleep(AFTER_REFUSAL);
                }
                if results.send(OpenedConnection { thread, slot, connection }).is_err() {
                    return;
                }
                // An error means that the counter is at its maximum, so the descriptor is readable.
                let _ = rustix::io::write(&wake, &1_u64.to_ne_bytes());
            }
        };
        std::thread::Builder::new()
            .stack_size(STACK_BYTES)
            .spawn(work)
            .map_err(|error| Error::new(ErrorKind::Io, "starting a thread").caused_by(error))?;
        self.threads.push(sender);
        Ok(thread)
    }
}

impl AsFd for ConnectionOpener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
