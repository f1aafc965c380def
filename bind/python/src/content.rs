//! Passes the content of objects to Python with as few copies as possible.

use std::cell::RefCell;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::{ptr, slice};

use fordway_store::{
    FileRegion, ObjectContent, ObjectInfo, OpenObject, Result, TRUSTED_BYTES, Writer, content_error,
};
use fordway_sys::{only_in_memory, read_cached, read_uninit};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyByteArray, PyBytes, PyIterator, PyMemoryView, PyString};

use crate::cancellation;
use crate::interpreter::without_interpreter;

/// Objects up to this size are read into a thread-local buffer while the GIL is released, and then copied. The copy
/// takes at most a few microseconds; acquiring the GIL a second time could take longer.
const COPIED_BYTES_MAX: u64 = 64 * 1024;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The content of an object, before the GIL is acquired again.
pub(crate) enum CopiedOrOpenContent {
    /// The content is in the thread's [`BUFFER`].
    Copied,
    /// The content has not been read yet.
    Open(ObjectContent),
}

impl CopiedOrOpenContent {
    /// Reads small content into the buffer of the current thread. The same thread must call
    /// [`CopiedOrOpenContent::into_bytes`].
    pub(crate) fn new(content: ObjectContent) -> Result<Self> {
        if content.len() > COPIED_BYTES_MAX {
            return Ok(CopiedOrOpenContent::Open(content));
        }
        // While the content arrives, a signal handler may run on this thread and read another object, so the buffer is
        // not borrowed during the read.
        let mut buffer = BUFFER.take();
        content.read_to(&mut buffer)?;
        BUFFER.set(buffer);
        Ok(CopiedOrOpenContent::Copied)
    }

    /// Opens an object without releasing the GIL, and reads small content that is in memory. Returns `None`
    /// if the names are not in memory, or after an error.
    ///
    /// If several threads read small objects, each acquisition of the GIL takes longer than a read from memory.
    pub(crate) fn from_memory(open: impl FnOnce() -> Result<OpenObject>) -> Option<(Self, ObjectInfo)> {
        let OpenObject { info, content, .. } = only_in_memory(open)?.ok()?;
        let is_copied = match &content {
            ObjectContent::File(region) if region.len <= COPIED_BYTES_MAX => copy_from_memory(region),
            _ => false,
        };
        let content =
            if is_copied { CopiedOrOpenContent::Copied } else { CopiedOrOpenContent::Open(content) };
        Some((content, info))
    }

    /// Returns the bytes object for the caller.
    pub(crate) fn into_bytes(self, py: Python<'_>) -> PyResult<Bound<'_, PyBytes>> {
        let content = match self {
            CopiedOrOpenContent::Copied => return BUFFER.with_borrow(|buffer| Ok(PyBytes::new(py, buffer))),
            CopiedOrOpenContent::Open(content) => content,
        };
        if let ObjectContent::File(region) = content {
            return bytes_of_file(py, &region);
        }
        let len = usize::try_from(content.len())?;
        if len > TRUSTED_BYTES && matches!(content, ObjectContent::Stream(..)) {
            // The server may send a false length. Memory is therefore allocated as the bytes arrive, which costs a
            // copy.
            let bytes = without_interpreter(py, || content.into_vec())?;
            return Ok(PyBytes::new(py, &bytes));
        }
        PyBytes::new_with(py, len, |bytes| without_interpreter(py, || read_all(content, bytes)))
    }
}

/// Reads bytes of a file that are in memory into the buffer of the current thread. Returns whether all bytes were in
/// memory.
fn copy_from_memory(region: &FileRegion) -> bool {
    let Ok(len) = usize::try_from(region.len) else { return false };
    let mut buffer = BUFFER.take();
    buffer.clear();
    let read = read_cached(&region.file, &mut buffer, region.offset, len);
    BUFFER.set(buffer);
    read == Ok(len)
}

/// Returns bytes of a file. Unlike `PyBytes::new_with`, this function does not set the bytes to zero first, which would
/// cost a pass over memory.
#[allow(unsafe_code, reason = "no safe function of PyO3 makes bytes without a first pass over them")]
fn bytes_of_file<'py>(py: Python<'py>, region: &FileRegion) -> PyResult<Bound<'py, PyBytes>> {
    let len = usize::try_from(region.len)?;
    let size = ffi::Py_ssize_t::try_from(len)?;
    // SAFETY: without a source, the function returns a new bytes object of `size` bytes, or null and an exception.
    let bytes = unsafe {
        let made = ffi::PyBytes_FromStringAndSize(ptr::null(), size);
        Bound::from_owned_ptr_or_err(py, made)?.cast_into_unchecked::<PyBytes>()
    };
    // SAFETY: the object has `len` bytes, and only this function has a reference to it. Its bytes may be uninitialised.
    let room: &mut [MaybeUninit<u8>] =
        unsafe { slice::from_raw_parts_mut(ffi::PyBytes_AsString(bytes.as_ptr()).cast(), len) };
    without_interpreter(py, || {
        let mut offset = region.offset;
        in_steps(room, |step| {
            let got = read_uninit(&region.file, step, offset).map_err(io::Error::from);
            let end = io::Error::from(io::ErrorKind::UnexpectedEof);
            let got = got.and_then(|got| if got == step.len() { Ok(got) } else { Err(end) });
            offset += got.map_err(|error| content_error(error, region.len))? as u64;
            Ok(())
        })
    })?;
    Ok(bytes)
}

/// Fills `bytes` with the content, which has exactly this length.
pub(crate) fn read_all(content: ObjectContent, bytes: &mut [u8]) -> Result<()> {
    let len = bytes.len();
    let mut reader = content.into_reader();
    in_steps(bytes, |step| reader.read_exact(step).map_err(|error| content_error(error, len as u64)))
}

/// The number of bytes after which a read checks whether its call was cancelled.
const STEP_BYTES: usize = 8 << 20;

/// Fills `bytes` in steps by calling `fill`. Errors: the errors of `fill`; `Interrupted` before the next step if
/// the call was cancelled.
pub(crate) fn in_steps<B>(bytes: &mut [B], mut fill: impl FnMut(&mut [B]) -> Result<()>) -> Result<()> {
    bytes.chunks_mut(STEP_BYTES).try_for_each(|step| {
        cancellation::check()?;
        fill(step)
    })
}

/// Returns a copy of the bytes of any object that supports the buffer protocol.
pub(crate) fn bytes_of_buffer(py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    u8_buffer(py, data)?.to_vec(py)
}

/// Returns a buffer's bytes in a form that cannot change while the GIL is released: an immutable `bytes` object itself,
/// or a copy of any other buffer.
pub(crate) fn held_bytes(py: Python<'_>, data: Bound<'_, PyAny>) -> PyResult<PyBackedBytes> {
    match data.cast_into::<PyBytes>() {
        Ok(bytes) => Ok(bytes.into()),
        Err(other) => Ok(PyBytes::new(py, &bytes_of_buffer(py, &other.into_inner())?).into()),
    }
}

/// The number of bytes read from a file at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Returns the pieces of content that is not a buffer: the blocks of a file, or the items of an iterable. Returns
/// `None` for a buffer or any other object.
pub(crate) fn pieces<'py>(data: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyIterator>>> {
    let py = data.py();
    if PyMemoryView::from(data).is_ok() || data.is_instance_of::<PyString>() {
        return Ok(None);
    }
    if item_bytes_of_times(data)?.is_some() {
        return Ok(None);
    }
    if let Some(read) = data.getattr_opt("read")? {
        let block = py.import("functools")?.getattr("partial")?.call1((read, PIECE_BYTES))?;
        let blocks = py.import("builtins")?.getattr("iter")?.call1((block, PyBytes::new(py, b"")))?;
        return blocks.try_iter().map(Some);
    }
    Ok(data.try_iter().ok())
}

/// Writes the pieces of content, one after another.
pub(crate) fn write_pieces(
    py: Python<'_>,
    writer: &mut dyn Writer,
    pieces: Bound<'_, PyIterator>,
) -> PyResult<()> {
    for piece in pieces {
        let bytes = held_bytes(py, piece?)?;
        without_interpreter(py, || writer.write(&bytes))?;
    }
    Ok(())
}

/// Returns the size of an item if `data` is a NumPy array of dates (`datetime64`), of durations (`timedelta64`) or of
/// records, which may contain dates. NumPy gives no buffer for dates and durations.
fn item_bytes_of_times(data: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    let Some(item_type) = data.getattr_opt("dtype")? else { return Ok(None) };
    let Some(kind) = item_type.getattr_opt("kind")? else { return Ok(None) };
    let is_refused = kind.eq("M")? || kind.eq("m")? || kind.eq("V")?;
    is_refused.then(|| item_type.getattr("itemsize")?.extract()).transpose()
}

/// Returns the buffer of an object as bytes, regardless of its item type. Errors: `TypeError` for an object without a
/// buffer, and for a buffer of pointers to Python objects; `BufferError` for a buffer that is not contiguous.
pub(crate) fn u8_buffer(py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<PyBuffer<u8>> {
    if let Ok(buffer) = data.extract() {
        return Ok(buffer);
    }
    let opaque = |item_bytes| data.call_method1("view", (format!("V{item_bytes}"),));
    let view = match item_bytes_of_times(data)? {
        Some(item_bytes) if PyMemoryView::from(data).is_err() => PyMemoryView::from(&opaque(item_bytes)?),
        _ => PyMemoryView::from(data),
    };
    let view = view.map_err(|cause| {
        let error = PyTypeError::new_err(format!(
            "expected bytes or another buffer, not {}; encode text, and read files",
            data.get_type()
        ));
        error.set_cause(py, Some(cause));
        error
    })?;
    // In a buffer's format string, colons enclose the names of fields.
    let format: String = view.getattr("format")?.extract()?;
    if format.split(':').step_by(2).any(|items| items.contains('O')) {
        // A buffer with the format `O` contains pointers to Python objects. Overwriting the pointers would crash the
        // process.
        return Err(PyTypeError::new_err("the buffer has references to objects; convert it to plain items"));
    }
    if view.getattr("nbytes")?.extract::<usize>()? == 0 {
        // Python refuses to cast an empty view with several dimensions.
        return PyByteArray::new(py, b"").extract();
    }
    let bytes = view.call_method1("cast", ("B",)).and_then(|bytes| bytes.extract());
    bytes.map_err(|cause| {
        let error = PyBufferError::new_err("the buffer must be contiguous; copy it first");
        error.set_cause(py, Some(cause));
        error
    })
}
