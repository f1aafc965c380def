//! Objects that are written in several calls.

use std::ffi::CString;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use fordway_store::{Error, ErrorKind, ExpectedContent, Result, Writer};
use fordway_sys::ProcessIdentity;
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::content::bytes_of_buffer;
use crate::interpreter::{drop_without_interpreter, without_interpreter};

/// An object being written in pieces. The object becomes visible as a whole at `commit`, or never.
///
/// As a context manager, the writer commits at the end of its block, or discards the object if the block
/// raises. If a write fails or is interrupted, the object is discarded, and the end of the block raises too.
/// The writer is also an unbuffered binary file (`io.RawIOBase`), which `io.TextIOWrapper` and other
/// libraries accept.
#[pyclass(frozen, name = "ObjectWriter", module = "fordway")]
pub(crate) struct PyObjectWriter {
    /// The state. No call waits for a server while it holds the lock: a signal handler, which runs on the waiting
    /// thread, may call the same writer.
    inner: Mutex<WriterState>,
    /// Notifies the threads that wait for the write of another thread.
    write_ended: Condvar,
    /// A forked child neither commits nor discards an object that its parent is writing.
    begun_by: ProcessIdentity,
    /// The exception that was being handled when the writer was created. If another exception is being handled when the
    /// writer is closed, the object is discarded. `None` if there was no exception, and after the object is committed
    /// or discarded: through its traceback, the exception refers to all local variables of the caller. The lock is held
    /// only while the GIL is held.
    begun_in: Mutex<Option<Py<PyAny>>>,
    /// The URL of the object (`s3://BUCKET/KEY`).
    target: String,
    written_bytes: AtomicU64,
    /// The length that the object must have, if the caller has specified it.
    stated_bytes: Option<u64>,
}

enum WriterState {
    Open(Box<dyn Writer>),
    /// A write is in progress.
    Busy {
        /// The thread of the write. Other threads wait for the end of the write. A signal handler on this thread cannot
        /// wait.
        thread: ThreadId,
        /// Whether a signal handler on this thread has discarded the object.
        is_discarded: bool,
        /// Whether other threads wait. Notifying no thread would still cost a system call.
        is_awaited: bool,
    },
    /// A write failed, and `close` has not yet reported that the object was not published.
    Failed,
    /// The object was committed or discarded, or the failure of a write was reported.
    Over,
}

/// Returns the exception that is being handled, or Python's `None`.
fn handled_exception(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    py.import("sys")?.call_method0("exception")
}

impl PyObjectWriter {
    pub(crate) fn new(
        py: Python<'_>,
        writer: Box<dyn Writer>,
        target: String,
        stated_bytes: Option<u64>,
    ) -> PyResult<Self> {
        Ok(PyObjectWriter {
            inner: Mutex::new(WriterState::Open(writer)),
            write_ended: Condvar::new(),
            begun_by: ProcessIdentity::current(),
            begun_in: Mutex::new(
                Some(handled_exception(py)?.unbind()).filter(|handled| !handled.is_none(py)),
            ),
            target,
            written_bytes: AtomicU64::new(0),
            stated_bytes,
        })
    }

    fn begun_in(&self) -> MutexGuard<'_, Option<Py<PyAny>>> {
        self.begun_in.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether `handled` is the exception that was being handled when the writer was created.
    fn is_begun_in(&self, handled: &Bound<'_, PyAny>) -> bool {
        self.begun_in().as_ref().is_some_and(|begun_in| handled.is(begun_in))
    }

    /// Releases the exception in which the writer was created, if the object has been committed or discarded.
    fn release_exception(&self, py: Python<'_>) {
        let is_over = |inner: MutexGuard<'_, WriterState>| matches!(*inner, WriterState::Over);
        if self.begun_in().is_none() || !py.detach(|| self.locked().is_some_and(is_over)) {
            return;
        }
        // The exception is dropped without the lock, because dropping it may run any code.
        let begun_in = self.begun_in().take();
        drop(begun_in);
    }

    /// Locks the state. Returns `None` in a forked child, where the lock may stay locked because its owner does not
    /// exist.
    fn locked(&self) -> Option<MutexGuard<'_, WriterState>> {
        let is_ours = self.begun_by.is_current();
        is_ours.then(|| self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Locks the state, like [`PyObjectWriter::locked`], after the writes of other threads have ended. The state is
    /// `Busy` only in a signal handler that runs during a write of this thread.
    fn idle(&self) -> Option<MutexGuard<'_, WriterState>> {
        let mut inner = self.locked()?;
        while let WriterState::Busy { thread, is_awaited, .. } = &mut *inner
            && *thread != thread::current().id()
        {
            *is_awaited = true;
            inner = self.write_ended.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        Some(inner)
    }

    /// Closes the writer for a commit. Returns `None` if the writer was already closed. Errors: `InvalidArgument` in
    /// the first call after a failed write, and during a write of this thread.
    fn take(&self) -> Result<Option<Box<dyn Writer>>> {
        let Some(mut inner) = self.idle() else { return Ok(None) };
        if let WriterState::Busy { is_discarded, .. } = *inner {
            return if is_discarded { Ok(None) } else { Err(in_progress()) };
        }
        match mem::replace(&mut *inner, WriterState::Over) {
            WriterState::Open(writer) => Ok(Some(writer)),
            WriterState::Failed => Err(Error::new(ErrorKind::InvalidArgument, FAILED)),
            WriterState::Busy { .. } | WriterState::Over => Ok(None),
        }
    }

    /// Discards the object, and returns whether the writer was open. During a write of this thread, the object is
    /// discarded at the end of the write.
    fn abandon(&self) -> bool {
        let Some(mut inner) = self.idle() else { return false };
        if let WriterState::Busy { is_discarded, .. } = &mut *inner {
            return !mem::replace(is_discarded, true);
        }
        let state = mem::replace(&mut *inner, WriterState::Over);
        // Dropping the writer may wait for a server.
        drop(inner);
        matches!(state, WriterState::Open(_))
    }

    /// Removes the writer from the state for one write. Errors: `InvalidArgument` if the writer is closed, and during a
    /// write of this thread.
    fn begin(&self) -> Result<RunningWrite<'_>> {
        let mut inner = self.idle().ok_or_else(closed)?;
        let thread = thread::current().id();
        let busy = WriterState::Busy { thread, is_discarded: false, is_awaited: false };
        match mem::replace(&mut *inner, busy) {
            WriterState::Open(writer) => {
                Ok(RunningWrite { object: self, writer: Some(writer), is_complete: false })
            }
            other => {
                let is_busy = matches!(other, WriterState::Busy { is_discarded: false, .. });
                *inner = other;
                Err(if is_busy { in_progress() } else { closed() })
            }
        }
    }

    /// Appends `data`. If the write fails, it is unknown how much of the data has been written, so the object is
    /// discarded.
    fn append(&self, data: &[u8]) -> Result<usize> {
        self.begin()?.append(data)?;
        self.written_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        Ok(data.len())
    }

    /// Discards the object if `done` is an error, because an interrupted caller does not know whether its data was
    /// written, and may write the data again.
    fn unless_interrupted(&self, py: Python<'_>, done: PyResult<usize>) -> PyResult<usize> {
        done.inspect_err(|_| {
            py.detach(|| {
                let Some(mut inner) = self.idle() else { return };
                if matches!(*inner, WriterState::Open(_)) {
                    let open = mem::replace(&mut *inner, WriterState::Failed);
                    // Dropping the writer may wait for a server.
                    drop(inner);
                    drop(open);
                }
            });
        })
    }

    fn expected(&self) -> ExpectedContent {
        ExpectedContent { size: self.stated_bytes, ..ExpectedContent::default() }
    }

    /// Publishes the object unless the writer is already closed. Errors: as for [`Writer::commit`] and
    /// [`PyObjectWriter::take`].
    fn publish(&self, py: Python<'_>) -> PyResult<()> {
        let published = without_interpreter(py, || match self.take()? {
            Some(writer) => writer.commit(&self.expected()).map(drop),
            None => Ok(()),
        });
        self.release_exception(py);
        published
    }

    /// Discards the object. Issues a warning, because the caller may not expect the object to be discarded.
    fn discard_while_handling(&self, py: Python<'_>, handled: &Bound<'_, PyAny>) -> PyResult<()> {
        let abandoned = without_interpreter(py, || Ok(self.abandon()));
        self.release_exception(py);
        if !abandoned? {
            return Ok(());
        }
        let why = format!(
            "{} is discarded, because it was closed while {} was handled; call commit() to publish it",
            self.target,
            handled.get_type().name()?
        );
        let warned = PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &CString::new(why)?, 1);
        // If warnings are errors, the warning raises an exception, which must not replace the exception that is being
        // handled.
        warned.or_else(|error| {
            error.write_unraisable(py, None);
            Ok(())
        })
    }
}

impl Drop for PyObjectWriter {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        let state = mem::replace(inner, WriterState::Over);
        match self.begun_by.is_current() {
            true => drop_without_interpreter(state),
            false => mem::forget(state),
        }
    }
}

/// A write in progress. At its end, the writer is put back or dropped.
struct RunningWrite<'w> {
    object: &'w PyObjectWriter,
    writer: Option<Box<dyn Writer>>,
    is_complete: bool,
}

impl RunningWrite<'_> {
    fn append(mut self, data: &[u8]) -> Result<()> {
        if let Some(writer) = &mut self.writer {
            writer.write(data)?;
        }
        self.is_complete = true;
        Ok(())
    }
}

impl Drop for RunningWrite<'_> {
    fn drop(&mut self) {
        let Some(mut inner) = self.object.locked() else {
            // A signal handler forked this process, which must not end the parent's write.
            return mem::forget(self.writer.take());
        };
        if !self.is_complete || matches!(*inner, WriterState::Busy { is_discarded: true, .. }) {
            // Dropping the writer may wait for a server. Other threads wait until the object is discarded.
            drop(inner);
            self.writer = None;
            let Some(again) = self.object.locked() else { return };
            inner = again;
        }
        let is_discarded = matches!(*inner, WriterState::Busy { is_discarded: true, .. });
        let next = match self.writer.take() {
            Some(writer) => WriterState::Open(writer),
            None if is_discarded => WriterState::Over,
            None => WriterState::Failed,
        };
        if let WriterState::Busy { is_awaited: true, .. } = mem::replace(&mut *inner, next) {
            self.object.write_ended.notify_all();
        }
    }
}

const FAILED: &str = "a write failed or was interrupted, so the object is discarded; begin another";

fn closed() -> Error {
    let why =
        "the object is committed, discarded, failed, or of the process that forked this one; begin another";
    Error::new(ErrorKind::InvalidArgument, why)
}

fn in_progress() -> Error {
    let why = "a signal handler interrupted a write of this object, which continues after the handler; only discard it";
    Error::new(ErrorKind::InvalidArgument, why)
}

#[pymethods]
impl PyObjectWriter {
    /// True if the object was committed or discarded, a write failed, or the writer is a forked copy.
    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        let is_open = |state: &WriterState| {
            matches!(state, WriterState::Open(_) | WriterState::Busy { is_discarded: false, .. })
        };
        py.detach(|| self.locked().is_none_or(|inner| !is_open(&inner)))
    }

    /// Appends `data`, any contiguous buffer, and returns its length in bytes.
    ///
    /// The `http` lane sends each part as soon as it is full, and keeps at most one part in memory. After an
    /// error, the object is discarded. Raises `InvalidArgumentError` if the writer is closed, and
    /// `NoSpaceError` or another error if the write fails.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        match data.cast::<PyBytes>() {
            Ok(bytes) => {
                let bytes = bytes.as_bytes();
                self.unless_interrupted(py, without_interpreter(py, || self.append(bytes)))
            }
            Err(_) => {
                let bytes = bytes_of_buffer(py, data)?;
                self.unless_interrupted(py, without_interpreter(py, || self.append(&bytes)))
            }
        }
    }

    /// Publishes the object and returns its ETag (without quotes).
    ///
    /// Raises `PreconditionFailedError`, and `InvalidArgumentError` if the writer is closed.
    fn commit(&self, py: Python<'_>) -> PyResult<String> {
        let etag = without_interpreter(py, || {
            let writer = self.take()?.ok_or_else(closed)?;
            Ok(writer.commit(&self.expected())?.etag.to_string())
        });
        self.release_exception(py);
        etag
    }

    /// Discards the written data; does nothing if the writer is closed.
    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        let discarded = without_interpreter(py, || {
            self.abandon();
            Ok(())
        });
        self.release_exception(py);
        discarded
    }

    /// Publishes the object, unless an exception raised after the writer was begun is being handled.
    ///
    /// In that case, the object is discarded, with a `RuntimeWarning`: a file that is closed because its
    /// block raised is incomplete. Does nothing if the writer is closed. Raises what `commit` raises, and
    /// `InvalidArgumentError` if a write failed, because nothing is published then.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let handled = handled_exception(py)?;
        match handled.is_none() || self.is_begun_in(&handled) {
            true => self.publish(py),
            false => self.discard_while_handling(py, &handled),
        }
    }

    /// Returns the number of bytes written so far.
    fn tell(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    /// Does nothing: nothing is visible before the commit.
    fn flush(&self) {}

    /// Returns true.
    fn writable(&self) -> bool {
        true
    }

    /// Returns false.
    fn readable(&self) -> bool {
        false
    }

    /// Returns false.
    fn seekable(&self) -> bool {
        false
    }

    /// `io` calls this method before it closes a file that was never closed explicitly. The object of this
    /// file is incomplete.
    fn _dealloc_warn(&self, py: Python<'_>, _source: &Bound<'_, PyAny>) -> PyResult<()> {
        self.discard(py)
    }

    fn __enter__(writer: PyRef<'_, Self>) -> PyRef<'_, Self> {
        writer
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        match kind.is_none() {
            true => self.publish(py),
            false => self.discard(py),
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Python's garbage collector must not wait. It frees no object that it did not visit.
        let Ok(begun_in) = self.begun_in.try_lock() else { return Ok(()) };
        visit.call(&*begun_in)
    }

    fn __clear__(&self) {
        let begun_in = self.begun_in().take();
        drop(begun_in);
    }
}
