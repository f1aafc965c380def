//! Shares memory with Python through its buffer protocol. This is the only file in this crate with `unsafe`.
#![expect(unsafe_code, reason = "the buffer protocol is a C interface")]

use std::ffi::c_int;

use fordway_store::{Error, ErrorKind, ObjectContent, Result};
use fordway_sys::FileMapping;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::content::{read_all, u8_buffer};
use crate::interpreter::without_interpreter;

/// Reads `content` into the caller's buffer and returns its length.
pub(crate) fn read_into(
    py: Python<'_>,
    content: ObjectContent,
    target: &Bound<'_, PyAny>,
) -> PyResult<usize> {
    let (len, room) = (usize::try_from(content.len())?, u8_buffer(py, target)?.len_bytes());
    if len > room {
        return Err(PyValueError::new_err(format!("{len} bytes do not fit into a buffer of {room}")));
    }
    fill_buffer(py, target, len as u64, |bytes| read_all(content, bytes))
}

/// Calls `fill` to write the first bytes of the caller's buffer (at most `max_bytes`) while other Python threads may
/// run. Returns the number of bytes.
pub(crate) fn fill_buffer(
    py: Python<'_>,
    target: &Bound<'_, PyAny>,
    max_bytes: u64,
    fill: impl FnOnce(&mut [u8]) -> Result<()> + Send,
) -> PyResult<usize> {
    let buffer = u8_buffer(py, target)?;
    if buffer.readonly() || !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("the buffer must be writable and contiguous"));
    }
    let room = buffer.len_bytes();
    let len = usize::try_from(max_bytes).map_or(room, |max_bytes| max_bytes.min(room));
    if len == 0 {
        return Ok(0);
    }
    // SAFETY: `buffer` keeps `room` contiguous writable bytes valid at the same address until it is dropped. Another
    // Python thread that accesses these bytes in the meantime sees them change, as with any `readinto`.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.buf_ptr().cast::<u8>(), len) };
    without_interpreter(py, || fill(bytes))?;
    Ok(len)
}

/// An object's content as read-only memory, for `memoryview` or `numpy.frombuffer`.
#[pyclass(frozen, name = "Mapped", module = "fordway")]
pub(crate) struct MappedContent(ContentMemory);

enum ContentMemory {
    File(FileMapping),
    Own(Vec<u8>),
}

impl MappedContent {
    /// Errors: the errors of reading the content; `Io` if the file system does not support mapping files.
    pub(crate) fn new(content: ObjectContent) -> Result<Self> {
        let ObjectContent::File(region) = content else {
            return Ok(MappedContent(ContentMemory::Own(content.into_vec()?)));
        };
        match FileMapping::new(&region.file, region.offset, region.len) {
            Ok(mapping) => Ok(MappedContent(ContentMemory::File(mapping))),
            Err(errno) => Err(Error::new(ErrorKind::Io, "the file cannot be mapped").caused_by(errno)),
        }
    }

    fn bytes(&self) -> &[u8] {
        match &self.0 {
            ContentMemory::File(mapping) => mapping,
            ContentMemory::Own(bytes) => bytes,
        }
    }
}

#[pymethods]
impl MappedContent {
    fn __len__(&self) -> usize {
        self.bytes().len()
    }

    /// # Safety
    /// Python calls this method as part of the buffer protocol. `view` is null or points to a structure to fill in.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = slf.get().bytes();
        let (start, len) = (bytes.as_ptr().cast_mut().cast(), isize::try_from(bytes.len())?);
        // SAFETY: the memory does not move while the object exists, and the view holds a reference to the object. The
        // view is read-only.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 1, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}
