//! Python's access to files on web servers.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fordway_http::vector::{self, Fragment, HttpSession, SessionOptions};
use fordway_store::{Error, ErrorKind, Result, TRUSTED_BYTES, check_room, receive_rest};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::argument::ByteCount;
use crate::interpreter::without_interpreter;
use crate::signal;

/// The size of each request for a long range. The memory for the range grows only as bytes arrive.
const PIECE_BYTES: usize = 64 << 20;

/// The maximum number of connections to one server, as on the command line.
const CONNECTIONS_MAX: usize = 1024;

/// The session for all files opened without options. These files share its connections and the known properties of
/// servers.
static USUAL: OnceLock<Arc<HttpSession>> = OnceLock::new();

fn usual() -> Result<Arc<HttpSession>> {
    if let Some(session) = USUAL.get() {
        return Ok(session.clone());
    }
    let options = SessionOptions::discover(None)?;
    Ok(USUAL.get_or_init(|| Arc::new(HttpSession::new(options))).clone())
}

fn session(
    connections: Option<usize>,
    ca_bundle: Option<String>,
    deadline: Option<f64>,
) -> Result<Arc<HttpSession>> {
    if connections.is_none() && ca_bundle.is_none() && deadline.is_none() {
        return usual();
    }
    let wrong = |why: String| Error::new(ErrorKind::InvalidArgument, why);
    if let Some(path) = &ca_bundle {
        let opened = std::fs::File::open(path);
        opened.map_err(|error| wrong(format!("cannot read the ca_bundle {path:?}")).caused_by(error))?;
    }
    let mut options = SessionOptions::discover(ca_bundle.map(Into::into))?;
    if let Some(count) = connections {
        if !(1..=CONNECTIONS_MAX).contains(&count) {
            return Err(wrong(format!("connections must be from 1 to {CONNECTIONS_MAX}, and not {count}")));
        }
        options.connections_per_origin = count;
    }
    options.deadline = deadline.map(|seconds| positive(seconds).map_err(wrong)).transpose()?;
    Ok(Arc::new(HttpSession::new(options)))
}

fn positive(seconds: f64) -> Result<Duration, String> {
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err(format!("a deadline must be a positive number of seconds, and not {seconds}")),
    }
}

/// A file on a web server, in the version that existed when the file was opened.
///
/// Threads may share the file. If the file changes on the server, reads raise `PreconditionFailedError`. The
/// file cannot be pickled: pass its URL to other processes, and open it there.
#[pyclass(frozen, name = "RemoteFile", module = "fordway")]
pub(crate) struct PyRemoteFile {
    inner: vector::RemoteFile,
    url: String,
}

/// Opens the file at an `http(s)://` URL, following redirects.
///
/// Credentials, proxies and the HTTP version (`FORDWAY_HTTP_VERSION`) come from the environment, as for
/// `fordway read`. `connections` is the maximum number of connections to one server (1 to 1024,
/// default 8).
/// `ca_bundle` is a PEM file with the trusted certificates (default `AWS_CA_BUNDLE`, else the system's
/// certificates). `deadline` is the time limit for an operation, in seconds. Files opened without these
/// options share their connections.
///
/// Raises `NotFoundError`, `AccessDeniedError`, `UnavailableError`, `DeadlineError`, `InvalidArgumentError`.
#[pyfunction]
#[pyo3(signature = (url, *, connections=None, ca_bundle=None, deadline=None))]
pub(crate) fn open_url(
    py: Python<'_>,
    url: String,
    connections: Option<usize>,
    ca_bundle: Option<String>,
    deadline: Option<f64>,
) -> PyResult<PyRemoteFile> {
    signal::listen();
    without_interpreter(py, || {
        if let Some(object) = url.strip_prefix("s3://") {
            return Err(object_is_not_a_file(object));
        }
        if url.starts_with("file:") || !url.contains("://") {
            let why = format!("{url:?} is not an http(s):// URL; read local files with Python's open()");
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        let inner = vector::RemoteFile::open(&session(connections, ca_bundle, deadline)?, &url)?;
        Ok(PyRemoteFile { inner, url })
    })
}

/// Returns the error for `s3://BUCKET/KEY`, which requires an endpoint.
fn object_is_not_a_file(object: &str) -> Error {
    let (bucket, key) = object.split_once('/').unwrap_or((object, "KEY"));
    let why = format!(
        "s3://{object} is an object and not a URL; read it with fordway.open(ENDPOINT).get({bucket:?}, {key:?})"
    );
    Error::new(ErrorKind::InvalidArgument, why)
}

#[pymethods]
impl PyRemoteFile {
    /// The URL that the file was opened with.
    #[getter]
    fn url(&self) -> &str {
        &self.url
    }

    /// Size in bytes.
    #[getter]
    fn size(&self) -> u64 {
        self.inner.size_bytes()
    }

    /// The server's entity tag, with its quotes.
    #[getter]
    fn etag(&self) -> Option<&str> {
        self.inner.version().etag.as_deref()
    }

    /// The time of the last change, in the server's format.
    #[getter]
    fn last_modified(&self) -> Option<&str> {
        self.inner.version().last_modified.as_deref()
    }

    /// The number of requests sent so far.
    #[getter]
    fn requests(&self) -> u64 {
        self.inner.traffic().requests
    }

    /// Returns `length` bytes from offset `start`, or fewer at the end of the file.
    fn read<'py>(
        &self,
        py: Python<'py>,
        start: ByteCount,
        length: ByteCount,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (ByteCount(start), ByteCount(length)) = (start, length);
        let there = self.inner.size_bytes().saturating_sub(start).min(length);
        // Above this size, do not allocate memory merely because a server claims that the file is this large.
        if there > TRUSTED_BYTES as u64 {
            let bytes = without_interpreter(py, || self.read_growing(start, usize::try_from(there).ok()))?;
            return Ok(PyBytes::new(py, &bytes));
        }
        PyBytes::new_with(py, usize::try_from(there)?, |bytes| {
            without_interpreter(py, || self.inner.read_at(start, bytes).map(drop))
        })
    }

    /// Returns the bytes of each range (start, length): a vectored read.
    ///
    /// Ranges may be in any order and may overlap. They are requested together, in as few requests as the
    /// server allows. Raises `InvalidArgumentError`, before anything is read, if a range ends beyond the end
    /// of the file.
    fn read_ranges<'py>(
        &self,
        py: Python<'py>,
        ranges: Vec<(ByteCount, ByteCount)>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let range = |(start, length): &(ByteCount, ByteCount)| Ok((start.0, usize::try_from(length.0)?));
        let ranges = ranges.iter().map(range).collect::<PyResult<Vec<_>>>()?;
        let read = without_interpreter(py, || {
            self.check(&ranges)?;
            let mut buffers: Vec<Vec<u8>> = ranges.iter().map(|(_, length)| vec![0; *length]).collect();
            let mut fragments: Vec<_> = ranges
                .iter()
                .zip(&mut buffers)
                .map(|((offset, _), buffer)| Fragment { offset: *offset, buffer })
                .collect();
            self.inner.read_ranges(&mut fragments)?;
            Ok(buffers)
        })?;
        Ok(read.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }

    fn __repr__(&self) -> String {
        // The rest of the URL may contain a signature.
        let shown = self.url.split(['?', '#']).next().unwrap_or_default();
        format!("<RemoteFile {shown}, {} bytes>", self.inner.size_bytes())
    }
}

impl PyRemoteFile {
    /// Reads a long range of a file. The server may send a false size, so memory is allocated as bytes arrive.
    fn read_growing(&self, mut start: u64, length: Option<usize>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        receive_rest(&mut bytes, length.unwrap_or(usize::MAX), PIECE_BYTES, |piece| {
            let count = piece.len() as u64;
            self.inner.read_ranges(&mut [Fragment { offset: start, buffer: piece }])?;
            start += count;
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Checks ranges before memory is allocated. Errors: `InvalidRange`.
    fn check(&self, ranges: &[(u64, usize)]) -> Result<()> {
        let size = self.inner.size_bytes();
        let is_behind = |(offset, length): &&(u64, usize)| {
            offset.checked_add(*length as u64).is_none_or(|end| end > size)
        };
        ranges.iter().find(is_behind).map_or(Ok(()), |(offset, length)| {
            let detail = format!("{length} bytes at {offset} of a file of {size} bytes");
            Err(Error::new(ErrorKind::InvalidRange, detail))
        })?;
        // For a short time, two copies of the bytes exist: as received, and as Python objects.
        let lengths = ranges.iter().map(|(_, length)| *length);
        check_room(lengths.clone().chain(lengths))
    }
}
