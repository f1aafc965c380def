//! The access log: lines are gathered in memory, and a thread of their own writes them.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use fordway_store::{Error, ErrorKind, Result};
use serde::Serialize;

/// How long a line may wait to be written.
const DELAY: Duration = Duration::from_millis(200);
/// Bytes that are written without waiting for more.
const FULL_BYTES: usize = 256 * 1024;
/// Bytes that wait at most; while the disk takes none, further lines are dropped and counted.
const WAITING_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Lines of JSON on their way to a file or to standard output. What was written before it is dropped
/// is in the file.
pub(crate) struct AccessLog {
    queue: Arc<Queue>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Queue {
    waiting: Mutex<Vec<u8>>,
    wake: Condvar,
    dropped: AtomicU64,
    is_over: AtomicBool,
    reopen: AtomicBool,
}

impl AccessLog {
    /// Appends to the file at `path`, made with permissions for its owner alone; `-` is standard
    /// output. Errors: `InvalidArgument` if it cannot be opened.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let failed = |error: io::Error| {
            let why = format!("the access log {} cannot be opened", path.display());
            Error::new(ErrorKind::InvalidArgument, why).caused_by(error)
        };
        let sink = Sink::open(path).map_err(failed)?;
        let queue = Arc::new(Queue::default());
        let (theirs, path) = (queue.clone(), path.to_owned());
        let named = std::thread::Builder::new().name("fordway-log".to_owned());
        let writer = named.spawn(move || theirs.drain(sink, &path)).map_err(failed)?;
        Ok(AccessLog { queue, writer: Some(writer) })
    }

    /// Adds a line. Cost: writing it to memory, and a lock for the copy.
    pub(crate) fn write(&self, line: &impl Serialize) {
        // Every line has a form in JSON.
        if let Ok(mut text) = serde_json::to_vec(line) {
            text.push(b'\n');
            self.queue.push(&text);
        }
    }

    /// Has the file opened anew by its name, after it was moved away.
    pub(crate) fn reopen(&self) {
        self.queue.reopen.store(true, Ordering::Relaxed);
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.queue.is_over.store(true, Ordering::Release);
        self.queue.wake.notify_one();
        if self.writer.take().is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the thread that writes the access log panicked");
        }
    }
}

impl Queue {
    fn locked(&self) -> MutexGuard<'_, Vec<u8>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: &[u8]) {
        let mut waiting = self.locked();
        if waiting.len() + line.len() > WAITING_BYTES_MAX {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let was_full = waiting.len() >= FULL_BYTES;
        waiting.extend_from_slice(line);
        if !was_full && waiting.len() >= FULL_BYTES {
            self.wake.notify_one();
        }
    }

    fn drain(&self, mut sink: Sink, path: &Path) {
        let mut batch = Vec::new();
        loop {
            let is_over = self.is_over.load(Ordering::Acquire);
            let mut waiting = self.locked();
            if !is_over && waiting.len() < FULL_BYTES {
                waiting = self.wake.wait_timeout(waiting, DELAY).unwrap_or_else(PoisonError::into_inner).0;
            }
            std::mem::swap(&mut *waiting, &mut batch);
            drop(waiting);
            if self.reopen.swap(false, Ordering::Relaxed) {
                match Sink::open(path) {
                    Ok(opened) => sink = opened,
                    Err(error) => tracing::error!(%error, "the access log goes on in the old file"),
                }
            }
            if let Err(error) = sink.write(&batch) {
                tracing::error!(%error, path = %path.display(), "lines of the access log are lost");
            }
            batch.clear();
            let dropped = self.dropped.swap(0, Ordering::Relaxed);
            if dropped > 0 {
                tracing::error!(
                    dropped,
                    "lines of the access log are lost: they could not be written fast enough"
                );
            }
            if is_over {
                return;
            }
        }
    }
}

enum Sink {
    Output(io::Stdout),
    File(File),
}

impl Sink {
    fn open(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Ok(Sink::Output(io::stdout()));
        }
        OpenOptions::new().create(true).append(true).mode(0o600).open(path).map(Sink::File)
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            Sink::Output(output) => output.write_all(lines).and_then(|()| output.flush()),
            Sink::File(file) => file.write_all(lines),
        }
    }
}
