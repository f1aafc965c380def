//! Open files by number, and what was submitted of each. A number is not used again soon, so one that is
//! used after its file was closed is an error and never another file.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use fordway_http::vector::{RemoteFile, Ticket};

use crate::buffers::Buffers;
use crate::failure::Failure;
use crate::source::Source;

/// A file that was opened.
pub(crate) struct OpenFile {
    pub(crate) source: Source,
    submitted: Mutex<Submitted>,
}

#[derive(Default)]
struct Submitted {
    is_closed: bool,
    last: i64,
    tickets: HashMap<i64, Pending>,
}

/// What a ticket stands for; with its bytes.
enum Pending {
    UnderWay(Arc<RemoteFile>, Ticket, usize),
    /// Of a file that is read at once.
    Done(usize),
}

static FILES: RwLock<Option<HashMap<c_int, Arc<OpenFile>>>> = RwLock::new(None);
static NEXT: AtomicI32 = AtomicI32::new(1);

/// Gives a file its number.
pub(crate) fn insert(source: Source) -> c_int {
    let file = Arc::new(OpenFile { source, submitted: Mutex::default() });
    let mut files = FILES.write().unwrap_or_else(PoisonError::into_inner);
    let files = files.get_or_insert_default();
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed) & c_int::MAX;
        if let Entry::Vacant(place) = files.entry(number) {
            place.insert(file);
            return number;
        }
    }
}

/// The file of a number. Errors: `EBADF`.
pub(crate) fn get(number: c_int) -> Result<Arc<OpenFile>, Failure> {
    let files = FILES.read().unwrap_or_else(PoisonError::into_inner);
    files.as_ref().and_then(|files| files.get(&number)).cloned().ok_or_else(|| not_open(number))
}

/// Closes a file: what is under way is given up, and nothing is written to its buffers any more.
/// Errors: `EBADF`.
pub(crate) fn close(number: c_int) -> Result<(), Failure> {
    let mut files = FILES.write().unwrap_or_else(PoisonError::into_inner);
    let file = files.as_mut().and_then(|files| files.remove(&number)).ok_or_else(|| not_open(number))?;
    drop(files);
    let mut submitted = file.locked();
    submitted.is_closed = true;
    submitted.tickets.clear();
    if let Source::Remote { file, .. } = &file.source {
        file.cancel_all();
    }
    Ok(())
}

fn not_open(number: c_int) -> Failure {
    Failure::new(
        libc::EBADF,
        format!("{number} is not an open file: it was closed, or is no answer of fordway_open"),
    )
}

impl OpenFile {
    /// Sends for `buffers`, and returns a ticket. Errors: those that are known at once.
    pub(crate) fn submit(&self, mut buffers: Buffers) -> Result<i64, Failure> {
        let bytes = buffers.total_bytes()?;
        // Held so that a file that is closed meanwhile has nothing submitted after that.
        let mut submitted = self.locked();
        if submitted.is_closed {
            return Err(closed());
        }
        let pending = match &self.source {
            Source::Remote { file, .. } => {
                let ticket = file.submit_into(&buffers.ranges(), Box::new(buffers))?;
                Pending::UnderWay(file.clone(), ticket, bytes)
            }
            other => {
                other.read_now(&mut buffers)?;
                Pending::Done(bytes)
            }
        };
        submitted.last += 1;
        let number = submitted.last;
        submitted.tickets.insert(number, pending);
        Ok(number)
    }

    /// Waits for a ticket, which is then gone; returns its bytes.
    pub(crate) fn wait(&self, number: i64) -> Result<usize, Failure> {
        let (file, ticket, bytes) = match self.take(number)? {
            Pending::UnderWay(file, ticket, bytes) => (file, ticket, bytes),
            Pending::Done(bytes) => return Ok(bytes),
        };
        match file.wait(ticket) {
            Err(_) if self.locked().is_closed => Err(closed()),
            waited => Ok(waited.map(|_| bytes)?),
        }
    }

    /// Gives a ticket up.
    pub(crate) fn cancel(&self, number: i64) -> Result<(), Failure> {
        if let Pending::UnderWay(file, ticket, _) = self.take(number)? {
            file.cancel(ticket);
        }
        Ok(())
    }

    fn take(&self, number: i64) -> Result<Pending, Failure> {
        self.locked().tickets.remove(&number).ok_or_else(|| {
            let sentence = format!(
                "there is no ticket {number} of this file: it was waited for or cancelled, or another thread waits for it"
            );
            Failure::new(libc::EINVAL, sentence)
        })
    }

    fn locked(&self) -> MutexGuard<'_, Submitted> {
        self.submitted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn closed() -> Failure {
    Failure::new(libc::ECANCELED, "the file was closed by another thread")
}
