//! Objects that are written in several calls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fordway_store::{Error, ErrorKind, ExpectedContent, Result, Writer};
use fordway_sys::ProcessIdentity;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::content::bytes_of_buffer;
use crate::store::without_interpreter;

/// An object being written in pieces. It becomes visible as a whole at `commit`, or never.
///
/// As a context manager, it commits at the end of its block, or discards the object if the block raises. It
/// is also a raw binary file of `io`, which `io.TextIOWrapper` and other libraries accept.
#[pyclass(frozen, name = "ObjectWriter", module = "fordway")]
pub(crate) struct PyObjectWriter {
    /// `None` once the object is committed or discarded, or a write has failed.
    inner: Mutex<Option<Box<dyn Writer>>>,
    /// A forked child neither commits nor discards an object that its parent is writing.
    begun_by: ProcessIdentity,
    /// The exception that was being handled when the writer was created: if another exception is being handled at the
    /// end, the object is discarded.
    begun_in: Py<PyAny>,
    written_bytes: AtomicU64,
}

/// The exception that is being handled, or `None`.
fn handled_exception(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    py.import("sys")?.call_method0("exception")
}

impl PyObjectWriter {
    pub(crate) fn new(py: Python<'_>, writer: Box<dyn Writer>) -> PyResult<Self> {
        Ok(PyObjectWriter {
            inner: Mutex::new(Some(writer)),
            begun_by: ProcessIdentity::current(),
            begun_in: handled_exception(py)?.unbind(),
            written_bytes: AtomicU64::new(0),
        })
    }

    /// `None` in a forked child, where the lock may be held forever by a thread that does not exist there.
    fn locked(&self) -> Option<MutexGuard<'_, Option<Box<dyn Writer>>>> {
        let is_ours = self.begun_by.is_current();
        is_ours.then(|| self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn take(&self) -> Option<Box<dyn Writer>> {
        self.locked().and_then(|mut inner| inner.take())
    }

    /// Appends `data`. After an error, it is unknown how much of the data has been written, so the object is discarded.
    fn append(&self, data: &[u8]) -> Result<usize> {
        let mut inner = self.locked().ok_or_else(closed)?;
        let mut writer = inner.take().ok_or_else(closed)?;
        writer.write(data)?;
        *inner = Some(writer);
        self.written_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        Ok(data.len())
    }
}

impl Drop for PyObjectWriter {
    fn drop(&mut self) {
        if !self.begun_by.is_current() {
            let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(inner.take());
        }
    }
}

fn closed() -> Error {
    let why =
        "the object is committed, discarded, failed, or of the process that forked this one; begin another";
    Error::new(ErrorKind::InvalidArgument, why)
}

#[pymethods]
impl PyObjectWriter {
    /// True if writing is no longer possible: committed, discarded, failed, or inherited by a fork.
    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        py.detach(|| self.locked().is_none_or(|inner| inner.is_none()))
    }

    /// Appends `data`, any contiguous buffer, and returns its length in bytes.
    ///
    /// The lane `http` sends each part as soon as it is full and holds at most one in memory. After an
    /// error, the object is discarded. Raises `InvalidArgumentError` if the writer is closed,
    /// `NoSpaceError`, ...
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        match data.cast::<PyBytes>() {
            Ok(bytes) => {
                let bytes = bytes.as_bytes();
                without_interpreter(py, || self.append(bytes))
            }
            Err(_) => {
                let bytes = bytes_of_buffer(py, data)?;
                without_interpreter(py, || self.append(&bytes))
            }
        }
    }

    /// Publishes the object and returns its ETag (without quotes).
    ///
    /// Raises `PreconditionFailedError`, and `InvalidArgumentError` if the writer is closed.
    fn commit(&self, py: Python<'_>) -> PyResult<String> {
        without_interpreter(py, || {
            let writer = self.take().ok_or_else(closed)?;
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
    /// In that case, the object is discarded: a file that is closed because its block raised is incomplete.
    /// Does nothing if the writer is closed. Raises what `commit` raises.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let handled = handled_exception(py)?;
        if self.closed(py) || !(handled.is_none() || handled.is(&self.begun_in)) {
            return self.discard(py);
        }
        self.commit(py).map(drop)
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

    /// `io` calls this before it closes a file that was never closed explicitly: its object is incomplete.
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
        if !kind.is_none() || self.closed(py) {
            return self.discard(py);
        }
        self.commit(py).map(drop)
    }
}
