//! Open files, identified by number, and the reads submitted for each. Reads fill the caller's memory while the caller
//! does other work. File numbers are not reused until they wrap around, so a call with the number of a closed file
//! returns an error instead of accessing another file.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use fordway_http::vector::{FragmentMemory, RangeReadTicket, RemoteFile};
use fordway_sys::PerProcess;

use crate::abi::Fragment;
use crate::failure::CallFailure;
use crate::source::OpenFileBackend;

/// An open file.
pub(crate) struct OpenFile {
    pub(crate) source: OpenFileBackend,
    submitted: Mutex<PendingReadTable>,
    /// Whether the file was closed. A submission holds the lock for reading, so that closing waits until the read is
    /// submitted.
    is_closed: RwLock<bool>,
}

#[derive(Default)]
struct PendingReadTable {
    last: i64,
    tickets: HashMap<i64, PendingRead>,
}

/// The read that a ticket identifies, and its length in bytes.
enum PendingRead {
    UnderWay(Arc<RemoteFile>, RangeReadTicket, usize),
    /// A read that was complete when it was submitted.
    Done(usize),
}

/// The open files by number.
type OpenFileTable = HashMap<c_int, Arc<OpenFile>>;

/// A forked child has its own table, because the child must not use its parent's connections.
static FILES: LazyLock<PerProcess<RwLock<OpenFileTable>>> = LazyLock::new(PerProcess::default);
static NEXT: AtomicI32 = AtomicI32::new(1);

/// Registers a file, and returns its number.
pub(crate) fn insert(source: OpenFileBackend) -> c_int {
    let file = Arc::new(OpenFile { source, submitted: Mutex::default(), is_closed: RwLock::default() });
    let mut files = changing();
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed) & c_int::MAX;
        if let Entry::Vacant(place) = files.entry(number) {
            place.insert(file);
            return number;
        }
    }
}

/// Returns the file with this number. Errors: `EBADF`.
pub(crate) fn get(number: c_int) -> Result<Arc<OpenFile>, CallFailure> {
    let files = FILES.read().unwrap_or_else(PoisonError::into_inner);
    files.get(&number).cloned().ok_or_else(|| not_open(number))
}

/// Closes a file. Cancels the reads in progress. Afterwards, nothing is written to the buffers of these reads. Errors:
/// `EBADF`.
pub(crate) fn close(number: c_int) -> Result<(), CallFailure> {
    let file = changing().remove(&number).ok_or_else(|| not_open(number))?;
    *file.is_closed.write().unwrap_or_else(PoisonError::into_inner) = true;
    file.locked().tickets.clear();
    if let OpenFileBackend::Remote { file, .. } = &file.source {
        file.cancel_all();
    }
    Ok(())
}

fn changing() -> RwLockWriteGuard<'static, OpenFileTable> {
    FILES.write().unwrap_or_else(PoisonError::into_inner)
}

fn not_open(number: c_int) -> CallFailure {
    CallFailure::new(
        libc::EBADF,
        format!(
            "{number} is not an open file: it was closed, it was opened before a fork, or fordway_open did not return it"
        ),
    )
}

impl OpenFile {
    /// Submits reads into `buffers`, and returns a ticket. Errors: any failure detected at submission.
    pub(crate) fn submit(&self, mut buffers: ReadBuffers) -> Result<i64, CallFailure> {
        let bytes = buffers.total_bytes()?;
        // The state stays locked until the ticket is stored, so that no read is submitted for a closed file.
        let is_closed = self.is_closed();
        if *is_closed {
            return Err(closed());
        }
        let pending = match &self.source {
            OpenFileBackend::Remote { file, .. } => {
                let ticket = file.submit_into(&buffers.ranges(), Box::new(buffers));
                let ticket = ticket.map_err(CallFailure::of_read)?;
                PendingRead::UnderWay(file.clone(), ticket, bytes)
            }
            other => {
                other.read_now(&mut buffers)?;
                PendingRead::Done(bytes)
            }
        };
        let mut submitted = self.locked();
        submitted.last += 1;
        let number = submitted.last;
        submitted.tickets.insert(number, pending);
        Ok(number)
    }

    /// Reads from `offset` until `buffer` is full or the file ends; returns the number of bytes read. Errors:
    /// `ECANCELED` if another thread closes the file.
    pub(crate) fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, CallFailure> {
        match self.source.read_at(offset, buffer) {
            Err(_) if *self.is_closed() => Err(closed()),
            read => read,
        }
    }

    /// Waits for a ticket and consumes it; returns the number of bytes read.
    pub(crate) fn wait(&self, number: i64) -> Result<usize, CallFailure> {
        let (file, ticket, bytes) = match self.take(number)? {
            PendingRead::UnderWay(file, ticket, bytes) => (file, ticket, bytes),
            PendingRead::Done(bytes) => return Ok(bytes),
        };
        match file.wait(ticket) {
            Err(_) if *self.is_closed() => Err(closed()),
            waited => waited.map(|_| bytes).map_err(CallFailure::of_read),
        }
    }

    /// Cancels a ticket. Errors: `EINVAL` if the file does not have this ticket, or another thread waits for it.
    pub(crate) fn cancel(&self, number: i64) -> Result<(), CallFailure> {
        if let PendingRead::UnderWay(file, ticket, _) = self.take(number)? {
            file.cancel(ticket);
        }
        Ok(())
    }

    fn take(&self, number: i64) -> Result<PendingRead, CallFailure> {
        self.locked().tickets.remove(&number).ok_or_else(|| {
            let sentence = format!(
                "there is no ticket {number} of this file: it was waited for or cancelled, or another thread waits for it"
            );
            CallFailure::new(libc::EINVAL, sentence)
        })
    }

    fn locked(&self) -> MutexGuard<'_, PendingReadTable> {
        self.submitted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closed(&self) -> RwLockReadGuard<'_, bool> {
        self.is_closed.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn closed() -> CallFailure {
    CallFailure::new(libc::ECANCELED, "the file was closed by another thread")
}

/// The requested ranges, and the memory to read them into.
pub(crate) struct ReadBuffers {
    fragments: Vec<Fragment>,
}

// SAFETY: the caller does not free or use the memory until `wait`, `cancel` or `close` has returned. Until then, any
// thread that drives the connections may write to the memory.
unsafe impl Send for ReadBuffers {}

impl ReadBuffers {
    /// Takes ownership of fragments. Errors: `EINVAL` if the list is NULL, or longer than `isize::MAX` bytes.
    ///
    /// # Safety
    ///
    /// `fragments` is NULL or points to `count` fragments. Their buffers belong to the library until the returned value
    /// is dropped.
    pub(crate) unsafe fn new(fragments: *const Fragment, count: usize) -> Result<Self, CallFailure> {
        let fragments = match count {
            0 => Vec::new(),
            _ if fragments.is_null() || count > isize::MAX as usize / size_of::<Fragment>() => {
                let sentence = format!("the list of {count} fragments is NULL or impossibly long");
                return Err(CallFailure::new(libc::EINVAL, sentence));
            }
            // SAFETY: the caller guarantees `count` fragments. NULL and lists longer than `isize::MAX` bytes were
            // rejected above.
            _ => unsafe { std::slice::from_raw_parts(fragments, count) }.to_vec(),
        };
        Ok(ReadBuffers { fragments })
    }

    /// Wraps a buffer for bytes from `offset`.
    ///
    /// # Safety
    ///
    /// The buffer stays valid, and is not used, until the returned value is dropped.
    pub(crate) unsafe fn of(offset: u64, buffer: &mut [u8]) -> Self {
        let (length, buffer) = (buffer.len(), buffer.as_mut_ptr().cast());
        ReadBuffers { fragments: vec![Fragment { offset, length, buffer }] }
    }

    /// Checks each fragment. Errors: `EINVAL` for a fragment that has bytes but no buffer, or is longer than
    /// `isize::MAX` bytes.
    pub(crate) fn check(&self) -> Result<(), CallFailure> {
        let is_wrong = |part: &Fragment| {
            (part.length > 0 && part.buffer.is_null()) || isize::try_from(part.length).is_err()
        };
        match self.fragments.iter().position(is_wrong) {
            Some(index) => {
                let Fragment { length, buffer, .. } = self.fragments[index];
                let why = if buffer.is_null() {
                    "but has no buffer for them; set its buffer"
                } else {
                    "which no buffer can hold; correct its length"
                };
                let sentence = format!("fragment {index} requests {length} bytes {why}");
                Err(CallFailure::new(libc::EINVAL, sentence))
            }
            None => Ok(()),
        }
    }

    /// Returns the position and length of each fragment.
    pub(crate) fn ranges(&self) -> Vec<(u64, usize)> {
        self.fragments.iter().map(|part| (part.offset, part.length)).collect()
    }

    /// Returns the total length of all fragments, in bytes. Errors: `EINVAL` if the total exceeds `isize::MAX`.
    pub(crate) fn total_bytes(&self) -> Result<usize, CallFailure> {
        let total = self.fragments.iter().try_fold(0_usize, |total, part| total.checked_add(part.length));
        total.filter(|total| isize::try_from(*total).is_ok()).ok_or_else(|| {
            CallFailure::new(
                libc::EINVAL,
                "the fragments have more bytes than there is memory; request fewer",
            )
        })
    }
}

impl ReadBuffers {
    /// Returns the address of `len` bytes at offset `within` in a fragment. Panics if the fragment is too short.
    fn place(&self, fragment: usize, within: usize, len: usize) -> *mut u8 {
        let Fragment { length, buffer, .. } = self.fragments[fragment];
        assert!(within.checked_add(len).is_some_and(|end| end <= length), "a fragment ends before that");
        buffer.cast::<u8>().wrapping_add(within)
    }
}

impl FragmentMemory for ReadBuffers {
    fn slice(&mut self, fragment: usize, within: usize, len: usize) -> &mut [u8] {
        if len == 0 {
            return &mut [];
        }
        let place = self.place(fragment, within, len);
        // SAFETY: the caller provided `len` bytes at this address, and does not use them at the same time. `check` has
        // verified that the address is not NULL. The borrow of `self` prevents a second slice of overlapping memory.
        unsafe { std::slice::from_raw_parts_mut(place, len) }
    }

    fn slices(&mut self, places: &[(usize, usize, usize)]) -> Vec<&mut [u8]> {
        let mut end = 0;
        // The caller's buffers may overlap by mistake, so they are borrowed together only if they are in ascending
        // order and do not overlap.
        let is_behind = |(fragment, within, len): &&(usize, usize, usize)| {
            let start = self.place(*fragment, *within, *len).addr();
            start >= std::mem::replace(&mut end, start + len) && *len > 0
        };
        let count = places.iter().take_while(is_behind).count();
        let lend = |(fragment, within, len): &(usize, usize, usize)| {
            let place = self.place(*fragment, *within, *len);
            // SAFETY: each slice meets the requirements stated in `slice`. Each slice begins at or after the end of the
            // previous slice, so the slices do not overlap.
            unsafe { std::slice::from_raw_parts_mut(place, *len) }
        };
        places[..count].iter().map(lend).collect()
    }

    fn copy(&mut self, from: (usize, usize), to: (usize, usize), len: usize) {
        let (source, target) = (self.place(from.0, from.1, len), self.place(to.0, to.1, len));
        // SAFETY: the caller provided `len` bytes at each address. `copy` allows the two ranges to overlap.
        unsafe { std::ptr::copy(source, target, len) };
    }
}
