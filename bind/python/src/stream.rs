//! Objects that are opened once and read sequentially.

use std::io::Read;
use std::mem;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fordway_store::{Error, ErrorKind, ObjectContent, Result, content_error};
use fordway_sys::ProcessIdentity;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::fill_buffer;
use crate::content::{CopiedOrOpenContent, in_steps};
use crate::interpreter::{drop_without_interpreter, to_python, without_interpreter};

/// Content up to this size is read completely when the object is opened, so that a program can have many streams of
/// small objects without many open files.
const READ_AT_ONCE_BYTES: u64 = 1 << 20;

/// The content of an object, before the GIL is acquired again.
pub(crate) enum InitialStreamContent {
    Short(CopiedOrOpenContent),
    Long(ObjectContent),
}

impl InitialStreamContent {
    /// Reads small content into the buffer of the current thread. The same thread must use the content.
    pub(crate) fn new(content: ObjectContent) -> Result<Self> {
        match content.len() {
            ..=READ_AT_ONCE_BYTES => CopiedOrOpenContent::new(content).map(InitialStreamContent::Short),
            _ => Ok(InitialStreamContent::Long(content)),
        }
    }
}

/// The content of an object as it was when the object was opened, read sequentially.
///
/// `Store.stream` opens the stream, which is an unbuffered binary file (`io.RawIOBase`): wrap it in
/// `io.BufferedReader` for small reads. As a context manager, the stream is closed at the end of its block. A
/// forked child can read the stream only if the content does not arrive over a connection. Otherwise, reads
/// in the child raise `InvalidArgumentError`, and the parent can continue to read.
#[pyclass(frozen, name = "ObjectStream", module = "fordway")]
pub(crate) struct PyObjectStream {
    /// The state. The lock is held only while the GIL is held, so that a fork never copies a locked lock.
    inner: Mutex<ObjectStreamState>,
    /// A forked child does not read from a connection of its parent, because each process would receive only a part of
    /// the response.
    begun_by: ProcessIdentity,
}

struct ObjectStreamState {
    content: StreamContent,
    position: u64,
}

enum StreamContent {
    /// All bytes of the content. The bytes before the position have already been read.
    Held(Py<PyBytes>),
    /// The content from the position to the end.
    Open(ObjectContent),
    /// A call in another thread is reading.
    Busy,
    /// The stream was closed, or a read failed.
    Closed,
}

impl PyObjectStream {
    pub(crate) fn new(py: Python<'_>, content: InitialStreamContent) -> PyResult<Self> {
        let content = match content {
            InitialStreamContent::Short(fetched) => StreamContent::Held(fetched.into_bytes(py)?.unbind()),
            InitialStreamContent::Long(content) => StreamContent::Open(content),
        };
        let inner = Mutex::new(ObjectStreamState { content, position: 0 });
        Ok(PyObjectStream { inner, begun_by: ProcessIdentity::current() })
    }

    fn locked(&self) -> MutexGuard<'_, ObjectStreamState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether `content` arrives over a connection that the parent process opened before it forked this
    /// process.
    fn is_of_parent(&self, content: &StreamContent) -> bool {
        matches!(content, StreamContent::Open(ObjectContent::Stream(..))) && !self.begun_by.is_current()
    }

    /// Removes the content from the stream for one read. Errors: `ValueError` if the stream is closed;
    /// `InvalidArgument` in a forked child if the content arrives over a connection that the parent opened.
    fn begin(&self, py: Python<'_>) -> PyResult<(StreamContent, u64)> {
        let mut state = self.locked();
        if self.is_of_parent(&state.content) {
            return Err(to_python(py, &Error::new(ErrorKind::InvalidArgument, OF_PARENT)));
        }
        match mem::replace(&mut state.content, StreamContent::Busy) {
            StreamContent::Busy => Err(PyRuntimeError::new_err(
                "another thread is reading this stream; give each thread its own",
            )),
            StreamContent::Closed => {
                state.content = StreamContent::Closed;
                Err(PyValueError::new_err("I/O operation on closed file."))
            }
            content => Ok((content, state.position)),
        }
    }

    /// Puts the content back after a read of `read_bytes`. After an error, the position is unknown, so the stream is
    /// closed.
    fn end<T>(&self, content: StreamContent, done: PyResult<(T, u64)>) -> PyResult<T> {
        let mut state = self.locked();
        let (result, read_bytes) = done.inspect_err(|_| state.content = StreamContent::Closed)?;
        // If the stream was closed during the read, it stays closed.
        if matches!(state.content, StreamContent::Busy) {
            state.content = match content {
                // Dropping the finished content releases the file or the connection.
                StreamContent::Open(rest) if rest.is_empty() => StreamContent::Open(nothing()),
                content => content,
            };
        }
        state.position += read_bytes;
        Ok(result)
    }
}

const OF_PARENT: &str =
    "the stream reads from a connection of the process that forked this one; open another";

impl Drop for PyObjectStream {
    fn drop(&mut self) {
        self.close();
    }
}

#[pymethods]
impl PyObjectStream {
    /// True if the stream is closed, or a read failed.
    #[getter]
    fn closed(&self) -> bool {
        matches!(self.locked().content, StreamContent::Closed)
    }

    /// Returns the next `size` bytes, or all remaining bytes. Returns fewer bytes only at the end.
    ///
    /// Raises `DataError` if the content ends early, `ValueError` if the stream is closed.
    #[pyo3(signature = (size=None))]
    fn read<'py>(&self, py: Python<'py>, size: Option<i64>) -> PyResult<Bound<'py, PyBytes>> {
        let limit = size.and_then(|size| u64::try_from(size).ok()).unwrap_or(u64::MAX);
        let (content, position) = self.begin(py)?;
        match content {
            StreamContent::Held(bytes) => {
                let read = slice(bytes.bind(py), position, limit);
                let read_bytes = read.as_bytes().len() as u64;
                self.end(StreamContent::Held(bytes), Ok((read, read_bytes)))
            }
            StreamContent::Open(content) if limit >= content.len() => {
                let len = content.len();
                let read = CopiedOrOpenContent::Open(content).into_bytes(py);
                self.end(StreamContent::Open(nothing()), read.map(|read| (read, len)))
            }
            StreamContent::Open(mut content) => {
                let len = usize::try_from(limit)?;
                let fill = |bytes: &mut [u8]| without_interpreter(py, || read_front(&mut content, bytes));
                let read = PyBytes::new_with(py, len, fill);
                self.end(StreamContent::Open(content), read.map(|read| (read, limit)))
            }
            // `begin` never returns these variants.
            StreamContent::Busy | StreamContent::Closed => Ok(PyBytes::new(py, b"")),
        }
    }

    /// Returns all remaining bytes.
    fn readall<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.read(py, None)
    }

    /// Reads into `buffer` until it is full or the content ends, and returns the number of bytes read.
    ///
    /// Raises what `read` raises.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let (content, position) = self.begin(py)?;
        match content {
            StreamContent::Held(bytes) => {
                let left = slice(bytes.bind(py), position, u64::MAX);
                let left = left.as_bytes();
                let copy = |room: &mut [u8]| {
                    room.copy_from_slice(&left[..room.len()]);
                    Ok(())
                };
                let read = fill_buffer(py, buffer, left.len() as u64, copy);
                self.end(StreamContent::Held(bytes), read.map(|len| (len, len as u64)))
            }
            StreamContent::Open(mut content) => {
                let left = content.len();
                let read = fill_buffer(py, buffer, left, |room| read_front(&mut content, room));
                self.end(StreamContent::Open(content), read.map(|len| (len, len as u64)))
            }
            // `begin` never returns these variants.
            StreamContent::Busy | StreamContent::Closed => Ok(0),
        }
    }

    /// Returns the number of bytes read so far.
    fn tell(&self) -> u64 {
        self.locked().position
    }

    /// Does nothing: the stream is read-only.
    fn flush(&self) {}

    /// Releases the file or the connection. A second call does nothing.
    fn close(&self) {
        let closed = mem::replace(&mut self.locked().content, StreamContent::Closed);
        match self.is_of_parent(&closed) {
            // Dropping the connection may send messages, which would abort the parent's read.
            true => mem::forget(closed),
            false => drop_without_interpreter(closed),
        }
    }

    /// Returns true.
    fn readable(&self) -> bool {
        true
    }

    /// Returns false.
    fn writable(&self) -> bool {
        false
    }

    /// Returns false.
    fn seekable(&self) -> bool {
        false
    }

    fn __enter__(stream: PyRef<'_, Self>) -> PyRef<'_, Self> {
        stream
    }

    fn __exit__(&self, _kind: &Bound<'_, PyAny>, _error: &Bound<'_, PyAny>, _trace: &Bound<'_, PyAny>) {
        self.close();
    }
}

fn nothing() -> ObjectContent {
    ObjectContent::Bytes(Default::default())
}

/// Returns at most `limit` bytes, starting at `position`. Returns `bytes` itself if the result is all of `bytes`.
fn slice<'py>(bytes: &Bound<'py, PyBytes>, position: u64, limit: u64) -> Bound<'py, PyBytes> {
    let all = bytes.as_bytes();
    let start = usize::try_from(position).map_or(all.len(), |start| start.min(all.len()));
    let end = usize::try_from(limit).map_or(all.len(), |limit| start.saturating_add(limit).min(all.len()));
    match (start, end) {
        (0, end) if end == all.len() => bytes.clone(),
        _ => PyBytes::new(bytes.py(), &all[start..end]),
    }
}

/// Moves the first `bytes.len()` bytes of `content` into `bytes`. The content must be at least that long.
fn read_front(content: &mut ObjectContent, bytes: &mut [u8]) -> Result<()> {
    in_steps(bytes, |step| read_step(content, step))
}

fn read_step(content: &mut ObjectContent, bytes: &mut [u8]) -> Result<()> {
    let len = bytes.len() as u64;
    let read = match content {
        ObjectContent::Bytes(held) => {
            bytes.copy_from_slice(&held.split_to(bytes.len()));
            Ok(())
        }
        ObjectContent::File(region) => {
            let read = region.file.read_exact_at(bytes, region.offset);
            region.offset += len;
            region.len -= len;
            read
        }
        ObjectContent::Stream(reader, left) => {
            *left -= len;
            reader.read_exact(bytes)
        }
    };
    read.map_err(|error| content_error(error, len))
}
