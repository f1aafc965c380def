//! Objects that are written in several calls.

use std::ffi::CString;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fordway_store::{Error, ErrorKind, ExpectedContent, Result, Writer};
use fordway_sys::ProcessIdentity;
use pyo3::exceptions::PyRuntimeWarning;
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
    inner: Mutex<WriterState>,
    /// A forked child neither commits nor discards an object that its parent is writing.
    begun_by: ProcessIdentity,
    /// The exception that was being handled when the writer was created. If another exception is being handled when the
    /// writer is closed, the object is discarded.
    begun_in: Py<PyAny>,
    /// The URL of the object (`s3://BUCKET/KEY`).
    target: String,
    written_bytes: AtomicU64,
}

enum WriterState {
    Open(Box<dyn Writer>),
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
    pub(crate) fn new(py: Python<'_>, writer: Box<dyn Writer>, target: String) -> PyResult<Self> {
        Ok(PyObjectWriter {
            inner: Mutex::new(WriterState::Open(writer)),
            begun_by: ProcessIdentity::current(),
            begun_in: handled_exception(py)?.unbind(),
            target,
            written_bytes: AtomicU64::new(0),
        })
    }

    /// Locks the state. Returns `None` in a forked child, where the lock may stay locked because its owner does not
    /// exist.
    fn locked(&self) -> Option<MutexGuard<'_, WriterState>> {
        let is_ours = self.begun_by.is_current();
        is_ours.then(|| self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Closes the writer, and returns its previous state.
    fn take(&self) -> WriterState {
        self.locked().map_or(WriterState::Over, |mut inner| mem::replace(&mut *inner, WriterState::Over))
    }

    /// Appends `data`. If the write fails, it is unknown how much of the data has been written, so the object is
    /// discarded.
    fn append(&self, data: &[u8]) -> Result<usize> {
        let mut inner = self.locked().ok_or_else(closed)?;
        let WriterState::Open(writer) = &mut *inner else { return Err(closed()) };
        if let Err(error) = writer.write(data) {
            *inner = WriterState::Failed;
            return Err(error);
        }
        self.written_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        Ok(data.len())
    }

    /// Discards the object if `done` is an error, because an interrupted caller does not know whether its data was
    /// written, and may write the data again.
    fn unless_interrupted(&self, py: Python<'_>, done: PyResult<usize>) -> PyResult<usize> {
        done.inspect_err(|_| {
            py.detach(|| {
                let Some(mut inner) = self.locked() else { return };
                if matches!(*inner, WriterState::Open(_)) {
                    *inner = WriterState::Failed;
                }
            });
        })
    }

    /// Publishes the object unless the writer is already closed. Errors: as for [`Writer::commit`]; `InvalidArgument`
    /// in the first call after a failed write.
    fn publish(&self, py: Python<'_>) -> PyResult<()> {
        without_interpreter(py, || match self.take() {
            WriterState::Open(writer) => writer.commit(&ExpectedContent::default()).map(drop),
            WriterState::Failed => Err(Error::new(ErrorKind::InvalidArgument, FAILED)),
            WriterState::Over => Ok(()),
        })
    }

    /// Discards the object. Issues a warning, because the caller may not expect the object to be discarded.
    fn discard_while_handling(&self, py: Python<'_>, handled: &Bound<'_, PyAny>) -> PyResult<()> {
        if !without_interpreter(py, || Ok(matches!(self.take(), WriterState::Open(_))))? {
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

const FAILED: &str = "a write failed or was interrupted, so the object is discarded; begin another";

fn closed() -> Error {
    let why =
        "the object is committed, discarded, failed, or of the process that forked this one; begin another";
    Error::new(ErrorKind::InvalidArgument, why)
}

#[pymethods]
impl PyObjectWriter {
    /// True if the object was committed or discarded, a write failed, or the writer is a forked copy.
    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        py.detach(|| self.locked().is_none_or(|inner| !matches!(*inner, WriterState::Open(_))))
    }

    /// Appends `data`, any contiguous buffer, and returns its length in bytes.
    ///
    /// The lane `http` sends each part as soon as it is full, and keeps at most one part in memory. After an
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
        without_interpreter(py, || {
            let WriterState::Open(writer) = self.take() else { return Err(closed()) };
            Ok(writer.commit(&ExpectedContent::default())?.etag.to_string())
        })
    }

    /// Discards the written data; does nothing if the writer is closed.
    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        without_interpreter(py, || {
            drop(self.take());
            Ok(())
        })
    }

    /// Publishes the object, unless an exception raised after the writer was begun is being handled.
    ///
    /// In that case, the object is discarded, with a `RuntimeWarning`: a file that is closed because its
    /// block raised is incomplete. Does nothing if the writer is closed. Raises what `commit` raises, and
    /// `InvalidArgumentError` if a write failed, because nothing is published then.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let handled = handled_exception(py)?;
        match handled.is_none() || handled.is(&self.begun_in) {
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
}
