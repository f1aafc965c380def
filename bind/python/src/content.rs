//! What of an object reaches Python, and by how many copies.

use std::cell::RefCell;
use std::io::Read;

use fordway_store::{Error, ErrorKind, ObjectContent, Result, TRUSTED_BYTES};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

use crate::store::without_interpreter;

/// Up to this size an object is read without the interpreter into a buffer of the thread's own, and
/// then copied: a few microseconds at most, less than taking the interpreter a second time may cost.
const COPIED_BYTES_MAX: u64 = 64 * 1024;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What an object's content has become before the interpreter is taken again.
pub(crate) enum FetchedContent {
    /// It is in the thread's [`BUFFER`].
    Copied,
    /// It is still to be read.
    Open(ObjectContent),
}

impl FetchedContent {
    /// Reads what is small, in the thread that will take it.
    pub(crate) fn new(content: ObjectContent) -> Result<Self> {
        if content.len() > COPIED_BYTES_MAX {
            return Ok(FetchedContent::Open(content));
        }
        BUFFER.with_borrow_mut(|buffer| content.read_to(buffer))?;
        Ok(FetchedContent::Copied)
    }

    /// The bytes object that the caller gets.
    pub(crate) fn into_bytes(self, py: Python<'_>) -> PyResult<Bound<'_, PyBytes>> {
        let content = match self {
            FetchedContent::Copied => return BUFFER.with_borrow(|buffer| Ok(PyBytes::new(py, buffer))),
            FetchedContent::Open(content) => content,
        };
        let len = usize::try_from(content.len())?;
        if len > TRUSTED_BYTES && matches!(content, ObjectContent::Stream(..)) {
            // A server says how many there are; they are believed as they come, at the price of a copy.
            let bytes = without_interpreter(py, || content.into_vec())?;
            return Ok(PyBytes::new(py, &bytes));
        }
        PyBytes::new_with(py, len, |bytes| without_interpreter(py, || read_all(content, bytes)))
    }
}

/// Fills `bytes` with the content, which has just this many.
pub(crate) fn read_all(content: ObjectContent, bytes: &mut [u8]) -> Result<()> {
    let len = bytes.len();
    content.into_reader().read_exact(bytes).map_err(|error| {
        let why = format!("the content could not be read to its end at {len} bytes");
        Error::new(ErrorKind::IncompleteBody, why).caused_by(error)
    })
}

/// The bytes of any object with the buffer protocol, copied.
pub(crate) fn bytes_of_buffer(py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    u8_buffer(py, data)?.to_vec(py)
}

/// The buffer behind an object that has one, as bytes whatever its items are.
/// Errors: `TypeError` for what has no buffer, `BufferError` for one in several pieces.
pub(crate) fn u8_buffer(py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<PyBuffer<u8>> {
    if let Ok(buffer) = data.extract() {
        return Ok(buffer);
    }
    let view = PyMemoryView::from(data).map_err(|cause| {
        let error = PyTypeError::new_err(format!(
            "bytes or another buffer are wanted, not {}; encode text, and read files",
            data.get_type()
        ));
        error.set_cause(py, Some(cause));
        error
    })?;
    let bytes = view.call_method1("cast", ("B",)).and_then(|bytes| bytes.extract());
    bytes.map_err(|cause| {
        let error = PyBufferError::new_err("the buffer must be in one piece; copy it first");
        error.set_cause(py, Some(cause));
        error
    })
}
