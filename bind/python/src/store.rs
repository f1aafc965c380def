//! The store: each method turns its arguments into the store's types, lets go of the interpreter,
//! makes one call, and turns the answer back, or the error into the exception that Python code catches.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fordway_store::{
    Bucket, ByteRange, CopyOptions, DeleteOptions, Error, ErrorKind, GetOptions, Key, ListQuery, PutOptions,
    Result, VersionId, VersioningState, VersionsQuery,
};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

use super::listing::PyObjectInfo;
use crate::argument::{ByteCount, Description, ReadArguments, conditions, range};
use crate::buffer::{MappedContent, read_into};
use crate::content::{FetchedContent, bytes_of_buffer, u8_buffer};
use crate::listing::{EntryIterator, PyBucketInfo, VersionIterator};
use crate::signal;
use crate::writer::PyObjectWriter;

/// Opens the store at `endpoint`.
///
/// `file:///DIRECTORY` or `/DIRECTORY` selects the lane `embedded`: each subdirectory is a bucket.
/// `http(s)://HOST[:PORT]` selects the lane `http`: any S3 service. `unix:///SOCKET` and
/// `tcp://HOST:PORT` select the lane `node`: a gateway started by `fordway node`. Without an endpoint,
/// the store uses `AWS_ENDPOINT_URL_S3`, else `AWS_ENDPOINT_URL`, else the AWS configuration file, else
/// AWS.
///
/// Raises `InvalidArgumentError` if the endpoint has another form or the directory does not exist.
#[pyfunction]
#[pyo3(signature = (endpoint=None))]
pub(crate) fn open(py: Python<'_>, endpoint: Option<String>) -> PyResult<PyStore> {
    let options = fordway_lanes::LaneOptions { endpoint: endpoint.clone(), ..Default::default() };
    signal::listen();
    let opened = without_interpreter(py, || fordway_lanes::open(&options))?.store;
    Ok(PyStore { lane: opened.lane(), inner: Mutex::new(Some(opened)), endpoint })
}

/// The objects behind an endpoint.
///
/// Threads may share a store. Calls that access files release the interpreter, so that other Python
/// threads can run. Unpickling a store opens it again at the same endpoint. As a context manager, a
/// store is closed at the end of its block.
#[pyclass(frozen, name = "Store", module = "fordway")]
pub(crate) struct PyStore {
    /// `None` once it is closed. The lock is only taken with the interpreter held, so that no fork finds it taken.
    inner: Mutex<Option<Arc<dyn fordway_store::Store>>>,
    lane: &'static str,
    /// As it was opened by; `None` is what the environment names.
    endpoint: Option<String>,
}

#[pymethods]
impl PyStore {
    /// How the store is reached: `embedded`, `node` or `http`.
    #[getter]
    fn lane(&self) -> &'static str {
        self.lane
    }

    /// Closes the store and releases its files and connections. Closing it again does nothing.
    ///
    /// Calls, iterators and writers in progress continue; new calls raise `InvalidArgumentError`.
    fn close(&self, py: Python<'_>) {
        let closed = self.locked().take();
        py.detach(|| drop(closed));
    }

    /// Whether the store is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.locked().is_none()
    }

    fn __enter__(store: PyRef<'_, Self>) -> PyRef<'_, Self> {
        store
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) {
        self.close(py);
    }

    /// Returns all buckets in byte order of their names.
    fn list_buckets(&self, py: Python<'_>) -> PyResult<Vec<PyBucketInfo>> {
        let store = self.store(py)?;
        let buckets = without_interpreter(py, || store.list_buckets())?;
        Ok(buckets.into_iter().map(PyBucketInfo::from).collect())
    }

    /// Creates an empty bucket. Raises `AlreadyExistsError`, `InvalidNameError`.
    fn create_bucket(&self, py: Python<'_>, bucket: String) -> PyResult<()> {
        let store = self.store(py)?;
        without_interpreter(py, || store.create_bucket(&Bucket::new(bucket)?))
    }

    /// Describes a bucket. Raises `NotFoundError`.
    fn head_bucket(&self, py: Python<'_>, bucket: String) -> PyResult<PyBucketInfo> {
        let store = self.store(py)?;
        without_interpreter(py, || store.head_bucket(&Bucket::new(bucket)?)).map(PyBucketInfo::from)
    }

    /// Removes an empty bucket. Raises `NotFoundError`, `BucketNotEmptyError`.
    fn delete_bucket(&self, py: Python<'_>, bucket: String) -> PyResult<()> {
        let store = self.store(py)?;
        without_interpreter(py, || store.delete_bucket(&Bucket::new(bucket)?))
    }

    /// Whether the bucket keeps old versions: `"enabled"`, `"suspended"`, or `None` if it never did.
    ///
    /// Raises `NotFoundError`.
    fn versioning(&self, py: Python<'_>, bucket: String) -> PyResult<Option<&'static str>> {
        let store = self.store(py)?;
        let found = without_interpreter(py, || store.versioning(&Bucket::new(bucket)?))?;
        Ok(match found {
            VersioningState::Unversioned => None,
            VersioningState::Enabled => Some("enabled"),
            VersioningState::Suspended => Some("suspended"),
        })
    }

    /// Enables or suspends versioning of the bucket. Raises `NotFoundError`.
    fn set_versioning(&self, py: Python<'_>, bucket: String, enabled: bool) -> PyResult<()> {
        let store = self.store(py)?;
        let versioning = if enabled { VersioningState::Enabled } else { VersioningState::Suspended };
        without_interpreter(py, || store.set_versioning(&Bucket::new(bucket)?, versioning))
    }

    /// Stores `data` under `key`, whole or not at all, and returns the new ETag (without quotes).
    ///
    /// `bytes` are written without a copy; any other contiguous buffer, such as a NumPy array of any type,
    /// is copied once first. Text must be encoded. Names in `metadata` are stored in lower case. An object
    /// has at most 10 `tags`. `if_none_match="*"` creates an object but never replaces one; `if_match=etag`
    /// replaces the object only if it still has that ETag.
    ///
    /// Raises `NotFoundError` (no bucket), `PreconditionFailedError`, `NoSpaceError`, ...
    #[pyo3(signature = (bucket, key, data, *, content_type=None, metadata=None, tags=None, if_none_match=None, if_match=None))]
    #[allow(clippy::too_many_arguments, reason = "they are Python's keyword arguments")]
    fn put(
        &self,
        py: Python<'_>,
        bucket: String,
        key: String,
        data: &Bound<'_, PyAny>,
        content_type: Option<String>,
        metadata: Option<BTreeMap<String, String>>,
        tags: Option<BTreeMap<String, String>>,
        if_none_match: Option<&str>,
        if_match: Option<&str>,
    ) -> PyResult<String> {
        let store = self.store(py)?;
        let described = Description { content_type, metadata, tags };
        let options = described.options(conditions(if_match, if_none_match));
        let put = |body: &[u8]| {
            without_interpreter(py, || {
                let (bucket, key) = (Bucket::new(bucket)?, Key::new(key)?);
                Ok(store.put(&bucket, &key, body, &options)?.etag.to_string())
            })
        };
        match data.cast::<PyBytes>() {
            Ok(bytes) => put(bytes.as_bytes()),
            // Another thread may change any other buffer while the interpreter is free.
            Err(_) => put(&bytes_of_buffer(py, data)?),
        }
    }

    /// Returns the object, or a `version` of it: whole, or `length` bytes from byte `start` (or 0).
    ///
    /// Returns fewer bytes only at the end of the object. Objects over 64 KiB are read directly into the
    /// result; smaller ones are copied once, which is cheaper. With `if_match`, the object is read only if
    /// it has that ETag.
    ///
    /// Raises `NotFoundError`, `PreconditionFailedError`, and `InvalidArgumentError` if `start` is negative
    /// or not before the end, or `length` is 0.
    #[pyo3(signature = (bucket, key, *, start=None, length=None, version=None, if_match=None))]
    #[allow(clippy::too_many_arguments, reason = "they are Python's keyword arguments")]
    fn get<'py>(
        &self,
        py: Python<'py>,
        bucket: String,
        key: String,
        start: Option<ByteCount>,
        length: Option<ByteCount>,
        version: Option<String>,
        if_match: Option<&str>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let store = self.store(py)?;
        let opened = without_interpreter(py, || {
            let options = ReadArguments { start, length, version, if_match }.options()?;
            FetchedContent::new(store.get(&Bucket::new(bucket)?, &Key::new(key)?, &options)?.content)
        })?;
        opened.into_bytes(py)
    }

    /// Returns the bytes that `get` returns, and the description of the object, with a single open.
    ///
    /// Raises what `get` raises.
    #[pyo3(signature = (bucket, key, *, start=None, length=None, version=None, if_match=None))]
    #[allow(clippy::too_many_arguments, reason = "they are Python's keyword arguments")]
    fn get_with_info<'py>(
        &self,
        py: Python<'py>,
        bucket: String,
        key: String,
        start: Option<ByteCount>,
        length: Option<ByteCount>,
        version: Option<String>,
        if_match: Option<&str>,
    ) -> PyResult<(Bound<'py, PyBytes>, PyObjectInfo)> {
        let store = self.store(py)?;
        let (opened, info) = without_interpreter(py, || {
            let options = ReadArguments { start, length, version, if_match }.options()?;
            let found = store.get(&Bucket::new(bucket)?, &Key::new(key)?, &options)?;
            Ok((FetchedContent::new(found.content)?, found.info))
        })?;
        Ok((opened.into_bytes(py)?, PyObjectInfo::from(info)))
    }

    /// Reads the object into `buffer`, without a further copy, and returns its length in bytes.
    ///
    /// With `start`, reads as many bytes from there as fit; without it, the whole object must fit. Raises
    /// `NotFoundError`; `ValueError` if it does not fit; `BufferError` if `buffer` is not writable.
    #[pyo3(signature = (bucket, key, buffer, *, start=None, version=None, if_match=None))]
    #[allow(clippy::too_many_arguments, reason = "they are Python's keyword arguments")]
    fn get_into(
        &self,
        py: Python<'_>,
        bucket: String,
        key: String,
        buffer: &Bound<'_, PyAny>,
        start: Option<ByteCount>,
        version: Option<String>,
        if_match: Option<&str>,
    ) -> PyResult<usize> {
        let store = self.store(py)?;
        let room = |buffer: PyBuffer<u8>| ByteCount(buffer.len_bytes() as u64);
        let length = start.map(|_| u8_buffer(py, buffer).map(room)).transpose()?;
        let content = without_interpreter(py, || {
            let options = ReadArguments { start, length, version, if_match }.options()?;
            Ok(store.get(&Bucket::new(bucket)?, &Key::new(key)?, &options)?.content)
        })?;
        read_into(py, content, buffer)
    }

    /// Returns many ranges of one version of an object, each given as start and length, in order.
    ///
    /// A range that extends beyond the end of the object is shortened. Raises `NotFoundError`,
    /// `PreconditionFailedError`, and `InvalidArgumentError` if a range begins at or beyond the end, or has
    /// a length of 0.
    #[pyo3(signature = (bucket, key, ranges, *, version=None, if_match=None))]
    fn get_ranges<'py>(
        &self,
        py: Python<'py>,
        bucket: String,
        key: String,
        ranges: Vec<(ByteCount, ByteCount)>,
        version: Option<String>,
        if_match: Option<&str>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let store = self.store(py)?;
        let read = without_interpreter(py, || {
            let wanted = ranges.iter().map(|(start, length)| range(Some(*start), Some(*length)));
            let wanted: Vec<ByteRange> = wanted.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
            let options = ReadArguments { version, if_match, ..ReadArguments::default() }.options()?;
            store.read_ranges(&Bucket::new(bucket)?, &Key::new(key)?, &wanted, &options)
        })?;
        Ok(read.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }

    /// Returns the object, or a range of it as in `get`, as memory: `memoryview(store.map(...))`.
    ///
    /// On the embedded lane, this maps the page cache, and pages are read on first access. Later puts do
    /// not change the content. If a POSIX program truncates the file, access beyond its new end is fatal
    /// (SIGBUS). Other lanes read the content into separate memory.
    #[pyo3(signature = (bucket, key, *, start=None, length=None, version=None))]
    fn map(
        &self,
        py: Python<'_>,
        bucket: String,
        key: String,
        start: Option<ByteCount>,
        length: Option<ByteCount>,
        version: Option<String>,
    ) -> PyResult<MappedContent> {
        let store = self.store(py)?;
        without_interpreter(py, || {
            let options = ReadArguments { start, length, version, if_match: None }.options()?;
            MappedContent::new(store.get(&Bucket::new(bucket)?, &Key::new(key)?, &options)?.content)
        })
    }

    /// Describes an object, or a `version` of it, without reading it. Raises `NotFoundError`.
    #[pyo3(signature = (bucket, key, *, version=None))]
    fn head(
        &self,
        py: Python<'_>,
        bucket: String,
        key: String,
        version: Option<String>,
    ) -> PyResult<PyObjectInfo> {
        let store = self.store(py)?;
        let head = || store.head(&Bucket::new(bucket)?, &Key::new(key)?, &of_version(version)?);
        without_interpreter(py, head).map(PyObjectInfo::from)
    }

    /// Removes an object; removing an object that does not exist succeeds, as in S3.
    ///
    /// If the bucket keeps versions, the object becomes an old version behind a delete marker; with
    /// `version`, that version is removed permanently.
    ///
    /// Raises `NotFoundError` (no bucket, or `if_match` and no object), `PreconditionFailedError`.
    #[pyo3(signature = (bucket, key, *, if_match=None, version=None))]
    fn delete(
        &self,
        py: Python<'_>,
        bucket: String,
        key: String,
        if_match: Option<&str>,
        version: Option<String>,
    ) -> PyResult<()> {
        let store = self.store(py)?;
        without_interpreter(py, || {
            let version = version.map(VersionId::new).transpose()?;
            let options = DeleteOptions { conditions: conditions(if_match, None), version };
            store.delete(&Bucket::new(bucket)?, &Key::new(key)?, &options).map(drop)
        })
    }

    /// Removes many objects, in as few requests as the lane allows.
    ///
    /// Returns one result per key, in order: `None`, or the error.
    ///
    /// Raises `InvalidNameError`, before anything is removed.
    fn delete_many<'py>(
        &self,
        py: Python<'py>,
        bucket: String,
        keys: Vec<String>,
    ) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
        let store = self.store(py)?;
        let results = without_interpreter(py, || {
            let keys = keys.into_iter().map(Key::new).collect::<Result<Vec<_>>>()?;
            Ok(store.delete_many(&Bucket::new(bucket)?, &keys))
        })?;
        let raised = |error: Error| to_python(py, &error).into_value(py).into_bound(py).into_any();
        Ok(results.into_iter().map(|result| result.err().map(raised)).collect())
    }

    /// Copies an object, or a `version` of it, within the store; returns the copy's ETag (without quotes).
    ///
    /// On the lanes `node` and `http`, the content does not pass through this process. If `content_type` or
    /// `metadata` is given, both are replaced, and `tags` replaces all tags; otherwise, the copy has the
    /// source's metadata and tags. Conditions are as for `put`, and apply to the copy.
    ///
    /// Raises `NotFoundError`, `PreconditionFailedError`, and `InvalidArgumentError` for a copy of an
    /// object to itself that changes nothing.
    #[pyo3(signature = (source_bucket, source_key, bucket, key, *, version=None, content_type=None, metadata=None, tags=None, if_none_match=None, if_match=None))]
    #[allow(clippy::too_many_arguments, reason = "they are Python's keyword arguments")]
    fn copy(
        &self,
        py: Python<'_>,
        source_bucket: String,
        source_key: String,
        bucket: String,
        key: String,
        version: Option<String>,
        content_type: Option<String>,
        metadata: Option<BTreeMap<String, String>>,
        tags: Option<BTreeMap<String, String>>,
        if_none_match: Option<&str>,
        if_match: Option<&str>,
    ) -> PyResult<String> {
        let store = self.store(py)?;
        let mut described = Description { content_type, metadata, tags };
        without_interpreter(py, || {
            let options = CopyOptions {
                metadata: described.has_metadata().then(|| described.metadata()),
                tags: described.tags,
                source_version: version.map(VersionId::new).transpose()?,
                conditions: conditions(if_match, if_none_match),
                ..CopyOptions::default()
            };
            let source = (&Bucket::new(source_bucket)?, &Key::new(source_key)?);
            Ok(store.copy(source, &Bucket::new(bucket)?, &Key::new(key)?, &options)?.etag.to_string())
        })
    }

    /// Begins an object that is written in pieces and becomes visible as a whole at the commit.
    ///
    /// `size` is its length in bytes, if known, from which a lane chooses how to send it. The other
    /// arguments are as for `put`; conditions are checked at the commit.
    ///
    /// Raises `NotFoundError` (no bucket; perhaps only at `commit`).
    #[pyo3(signature = (bucket, key, *, size=None, content_type=None, metadata=None, tags=None, if_none_match=None, if_match=None))]
    #[allow(clippy::too_many_arguments, reason = "they are Python's keyword arguments")]
    fn writer(
        &self,
        py: Python<'_>,
        bucket: String,
        key: String,
        size: Option<ByteCount>,
        content_type: Option<String>,
        metadata: Option<BTreeMap<String, String>>,
        tags: Option<BTreeMap<String, String>>,
        if_none_match: Option<&str>,
        if_match: Option<&str>,
    ) -> PyResult<PyObjectWriter> {
        let store = self.store(py)?;
        let described = Description { content_type, metadata, tags };
        let options = PutOptions {
            size_hint: size.map(|size| size.0),
            ..described.options(conditions(if_match, if_none_match))
        };
        let begin = || store.writer(&Bucket::new(bucket)?, &Key::new(key)?, &options);
        without_interpreter(py, begin).map(PyObjectWriter::new)
    }

    /// Returns the tags of an object, or of a `version` of it. Raises `NotFoundError`.
    #[pyo3(signature = (bucket, key, *, version=None))]
    fn tags(
        &self,
        py: Python<'_>,
        bucket: String,
        key: String,
        version: Option<String>,
    ) -> PyResult<BTreeMap<String, String>> {
        let store = self.store(py)?;
        without_interpreter(py, || {
            let version = version.map(VersionId::new).transpose()?;
            store.tags(&Bucket::new(bucket)?, &Key::new(key)?, version.as_ref())
        })
    }

    /// Replaces the tags of an object, or of a `version` of it, without rewriting the content.
    ///
    /// Raises `NotFoundError`, and `InvalidArgumentError` for more than 10 tags or for tags that are too
    /// long.
    #[pyo3(signature = (bucket, key, tags, *, version=None))]
    fn set_tags(
        &self,
        py: Python<'_>,
        bucket: String,
        key: String,
        tags: BTreeMap<String, String>,
        version: Option<String>,
    ) -> PyResult<()> {
        let store = self.store(py)?;
        without_interpreter(py, || {
            let version = version.map(VersionId::new).transpose()?;
            store.set_tags(&Bucket::new(bucket)?, &Key::new(key)?, version.as_ref(), &tags)
        })
    }

    /// Iterates over the keys that start with `prefix`, in byte order, a page of 1,000 at a time.
    ///
    /// With a `delimiter`, keys with the same part up to it are returned as one `CommonPrefix`. Raises
    /// `NotFoundError` (no bucket) when the first page is fetched.
    #[pyo3(signature = (bucket, prefix="", delimiter=None))]
    fn list(
        &self,
        py: Python<'_>,
        bucket: String,
        prefix: &str,
        delimiter: Option<String>,
    ) -> PyResult<EntryIterator> {
        let bucket = Bucket::new(bucket).map_err(|error| to_python(py, &error))?;
        let query = ListQuery { prefix: prefix.to_owned(), delimiter, ..ListQuery::default() };
        Ok(EntryIterator::new(self.store(py)?, bucket, query))
    }

    /// Iterates over all versions and delete markers of the keys that start with `prefix`.
    ///
    /// Entries are ordered by key in byte order; versions of one key, from the newest to the oldest. Raises
    /// `NotFoundError` (no bucket) when the first page is fetched.
    #[pyo3(signature = (bucket, prefix=""))]
    fn list_versions(&self, py: Python<'_>, bucket: String, prefix: &str) -> PyResult<VersionIterator> {
        let bucket = Bucket::new(bucket).map_err(|error| to_python(py, &error))?;
        let query = VersionsQuery { prefix: prefix.to_owned(), ..VersionsQuery::default() };
        Ok(VersionIterator::new(self.store(py)?, bucket, query))
    }

    fn __repr__(&self) -> String {
        format!("<Store, lane {}>", self.lane)
    }

    /// How pickle makes it again: by opening it.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (Option<&str>,))> {
        Ok((py.import("fordway")?.getattr("open")?, (self.endpoint.as_deref(),)))
    }
}

impl PyStore {
    fn locked(&self) -> MutexGuard<'_, Option<Arc<dyn fordway_store::Store>>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store itself. Errors: `InvalidArgument` if it is closed.
    fn store(&self, py: Python<'_>) -> PyResult<Arc<dyn fordway_store::Store>> {
        self.locked().clone().ok_or_else(|| {
            let why = "the store is closed; open another by fordway.open()";
            to_python(py, &Error::new(ErrorKind::InvalidArgument, why))
        })
    }
}

/// Runs `call` while other Python threads may run. Errors: the error of `call`, or what a handler of a signal raised
/// during it.
pub(crate) fn without_interpreter<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T> + Send,
) -> PyResult<T> {
    let done = py.detach(call);
    match signal::take_raised() {
        Some(raised) => Err(raised),
        None => done.map_err(|error| to_python(py, &error)),
    }
}

fn of_version(version: Option<String>) -> Result<GetOptions> {
    Ok(GetOptions { version: version.map(VersionId::new).transpose()?, ..GetOptions::default() })
}

/// The class for each kind is chosen in `fordway/errors.py`, where exceptions with several bases
/// can be written.
const FACTORY: (&str, &str) = ("fordway.errors", "exception_for");

static EXCEPTION_FOR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// The exception for `error`; its message is the error's own sentence.
pub(crate) fn to_python(py: Python<'_>, error: &Error) -> PyErr {
    let made = EXCEPTION_FOR
        .import(py, FACTORY.0, FACTORY.1)
        .and_then(|factory| factory.call1((error.kind().name(), error.to_string(), error.target())));
    made.map_or_else(|failure| failure, PyErr::from_value)
}
