//! The Python class for stores. Each method converts its arguments to the store's types, releases the GIL, makes one
//! call, and converts the result. An error becomes an exception.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fordway_store::{
    Bucket, ByteRange, Conditions, CopyOptions, DeleteOptions, Error, ErrorKind, ExpectedContent, GetOptions,
    Key, ListQuery, MAX_KEYS, ObjectInfo, OpenObject, PutOptions, PutResult, Result, UploadPage,
    UploadsQuery, VersionId, VersioningState, VersionsQuery,
};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use super::listing::PyObjectInfo;
use crate::argument::{
    ByteCount, ObjectPropertyArguments, ReadArguments, StartOffset, StoredHeaders, checksum_algorithm,
    conditions, range,
};
use crate::buffer::{MappedContent, read_into};
use crate::cancellation;
use crate::content::{CopiedOrOpenContent, bytes_of_buffer, held_bytes, pieces, u8_buffer, write_pieces};
use crate::interpreter::{drop_without_interpreter, raised, to_python, without_interpreter};
use crate::listing::{EntryIterator, PyBucketInfo, PyDeleteInfo, PyListPage, PyPutInfo, VersionIterator};
use crate::opening::OpenArguments;
use crate::stream::{InitialStreamContent, PyObjectStream};
use crate::upload::{self, PyUpload, PyUploadPage, PyUploadSummary};
use crate::writer::PyObjectWriter;

/// The objects behind an endpoint.
///
/// Threads may share a store. Calls that may wait release the GIL, so that other Python threads can run.
/// Unpickling a store opens it again at the same endpoint. As a context manager, a store is closed at the
/// end of its block.
#[pyclass(frozen, name = "Store", module = "fordway")]
pub(crate) struct PyStore {
    /// The store, or `None` after it is closed. The lock is held only while the GIL is held, so that a fork never
    /// copies a locked lock.
    inner: Mutex<Option<Arc<dyn fordway_store::Store>>>,
    lane: &'static str,
    opening: OpenArguments,
}

#[pymethods]
impl PyStore {
    /// The lane of the store: `embedded`, `node` or `http`.
    #[getter]
    fn lane(&self) -> &'static str {
        self.lane
    }

    /// Closes the store and releases its files and connections. A second call does nothing.
    ///
    /// Calls, iterators and writers in progress continue; new calls raise `InvalidArgumentError`.
    fn close(&self, py: Python<'_>) {
        let closed = self.locked().take();
        py.detach(|| drop(closed));
    }

    /// True if the store is closed.
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

    /// Returns `"enabled"`, `"suspended"`, or `None` if versioning was never enabled.
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
    /// `bytes` are written without a copy; any other contiguous buffer, such as a NumPy array of any type, is
    /// copied once first. A binary file is read to its end, and the buffers of an iterable are written one by
    /// one. Neither a file nor an iterable is ever in memory as a whole. Text must be encoded. Names in
    /// `metadata` are stored in lower case; names that differ only in case are refused. `headers` may contain
    /// `cache-control`, `content-disposition`, `content-encoding`, `content-language` and `expires`. An
    /// object has at most 10 `tags`. `if_none_match="*"` creates an object but never replaces one;
    /// `if_match=etag` replaces the object only if it still has that ETag.
    ///
    /// Raises `NotFoundError` if the bucket does not exist, `PreconditionFailedError`, `NoSpaceError`, ...
    #[pyo3(signature = (bucket, key, data, *, content_type=None, metadata=None, headers=None, tags=None, if_none_match=None, if_match=None))]
    #[allow(clippy::too_many_arguments, reason = "they are Python's keyword arguments")]
    fn put(
        &self,
        py: Python<'_>,
        bucket: String,
        key: String,
        data: &Bound<'_, PyAny>,
        content_type: Option<String>,
        metadata: Option<BTreeMap<String, String>>,
        headers: Option<StoredHeaders>,
        tags: Option<BTreeMap<String, String>>,
        if_none_match: Option<&str>,
        if_match: Option<&str>,
    ) -> PyResult<String> {
        let store = self.store(py)?;
        let described = ObjectPropertyArguments { content_type, metadata, headers, tags };
        let options = described.put_options(py, conditions(if_match, if_none_match))?;
        put_data(py, &*store, (bucket, key), data, &options).map(|done| done.etag.to_string())
    }

    /// Stores `data` as `put` does, and returns the ETag, the version and the time of the new object.
    ///
    /// `checksum` names a checksum to compute, to store with the object, and to return: `CRC32`, `CRC32C`,
    /// `CRC64NVME`, `SHA1`, `SHA256`, `SHA512`, `MD5`, `XXHASH64`, `XXHASH3` or `XXHASH128`.
    ///
    /// Raises what `put` raises, and `InvalidArgumentError` for an unknown checksum.
    #[pyo3(signature = (bucket, key, data, *, content_type=None, metadata=None, headers=None, tags=None, if_none_match=None, if_match=None, checksum=None))]
    #[allow(clippy::too_many_arguments, reason = "they are Python's keyword arguments")]
    fn put_with_info(
        &self,
        py: Python<'_>,
        bucket: String,
        key: String,
        data: &Bound<'_, PyAny>,
        content_type: Option<String>,
        metadata: Option<BTreeMap<String, String>>,
        headers: Option<StoredHeaders>,
        tags: Option<BTreeMap<String, String>>,
        if_none_match: Option<&str>,
        if_match: Option<&str>,
        checksum: Option<&str>,
    ) -> PyResult<PyPutInfo> {
        let store = self.store(py)?;
        let described = ObjectPropertyArguments { content_type, metadata, headers, tags };
        let checksum = checksum.map(checksum_algorithm).transpose().map_err(|error| to_python(py, &error))?;
        let options =
            PutOptions { checksum, ..described.put_options(py, conditions(if_match, if_none_match))? };
        put_data(py, &*store, (bucket, key), data, &options).map(PyPutInfo::from)
    }

    /// Stores many objects, given as pairs of key and buffer, in as few requests as the lane allows.
    ///
    /// Returns one result per object, in order: its ETag (without quotes), or the error. If several objects
    /// have the same key, an arbitrary one of these objects is kept.
    ///
    /// Raises `InvalidNameError` for an invalid bucket or key, before anything is stored.
    fn put_many<'py>(
        &self,
        py: Python<'py>,
        bucket: String,
        objects: Vec<(String, Bound<'py, PyAny>)>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let store = self.store(py)?;
        let held = |(key, data): (String, Bound<'py, PyAny>)| Ok((key, held_bytes(py, data)?));
        let objects = objects.into_iter().map(held).collect::<PyResult<Vec<_>>>()?;
        let results = without_interpreter(py, || {
            let keys = objects.iter().map(|(key, _)| Key::new(key.clone())).collect::<Result<Vec<_>>>()?;
            let bodies = objects.iter().map(|(_, data)| &data[..]);
            let objects: Vec<(Key, &[u8])> = keys.into_iter().zip(bodies).collect();
            Ok(store.put_many(&Bucket::new(bucket)?, &objects, &PutOptions::default()))
        })?;
        let etag = |done: PutResult| Ok(PyString::new(py, &done.etag.to_string()).into_any());
        each(py, results, etag)
    }

    /// Returns many whole objects, read in as few requests as the lane allows.
    ///
    /// Returns one result per key, in order: the content, or the error. All contents are in memory together.
    ///
    /// Raises `InvalidNameError` for an invalid bucket or key, before anything is read.
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        bucket: String,
        keys: Vec<String>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let store = self.store(py)?;
        let results = without_interpreter(py, || Ok(store.get_many(&Bucket::new(bucket)?, &named(keys)?)))?;
        each(py, results, |content| Ok(PyBytes::new(py, &content).into_any()))
    }

    /// Describes many objects, in as few requests as the lane allows.
    ///
    /// Returns one result per key, in order: the description, or the error.
    ///
    /// Raises `InvalidNameError` for an invalid bucket or key, before anything is looked up.
    fn head_many<'py>(
        &self,
        py: Python<'py>,
        bucket: String,
        keys: Vec<String>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let store = self.store(py)?;
        let results = without_interpreter(py, || Ok(store.head_many(&Bucket::new(bucket)?, &named(keys)?)))?;
        each(py, results, |info| Ok(Bound::new(py, PyObjectInfo::from(info))?.into_any()))
    }

    /// Opens an object, or a `version` of it, as a binary file for reading and seeking.
    ///
    /// The file reads the version that existed when it was opened. The file is unbuffered: wrap it in
    /// `io.BufferedReader` for small reads. If the object is replaced meanwhile, reads raise
    /// `PreconditionFailedError`.
    ///
    /// Raises `NotFoundError`.
    #[pyo3(signature = (bucket, key, *, version=None))]
    fn reader<'py>(
        slf: &Bound<'py, Self>,
        bucket: String,
        key: String,
        version: Option<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let reader = slf.py().import("fordway.streams")?.getattr("ObjectReader")?;
        reader.call1((slf, bucket, key, version))
    }

    /// Returns the content of an object or `version`, or `length` bytes of it from `start` (default 0).
    ///
    /// A negative `start` counts from the end of the object; if the object is shorter, reading starts at its
    /// first byte. Returns fewer bytes only at the end of the object. Objects over 64 KiB are read directly
    /// into the result; smaller objects are copied once, because the copy is cheaper. With `if_match`, the
    /// object is read only if it has this ETag; with `if_none_match`, only if its ETag differs.
    ///
    /// Raises `NotFoundError`, `PreconditionFailedError`, `NotModifiedError` (`if_none_match`), and
    /// `InvalidArgumentError` if `start` is not before the end, or `length` is 0.
    #[pyo3(signature = (bucket, key, *, start=None, length=None, version=None, if_match=None, if_none_match=None))]
    #[allow(clippy::too_many_arguments, reason = "they are Python's keyword arguments")]
    fn get<'py>(
        &self,
        py: Python<'py>,
        bucket: String,
        key: String,
        start: Option<StartOffset>,
        length: Option<ByteCount>,
        version: Option<String>,
        if_match: Option<&str>,
        if_none_match: Option<&str>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let asked = ReadArguments { start, length, version, if_match, if_none_match };
        let (content, _) = self.read(py, asked, bucket, key)?;
        content.into_bytes(py)
    }

    /// Returns the content (as `get` does) and the object's metadata. Opens the object only once.
    ///
    /// Raises what `get` raises.
    #[pyo3(signature = (bucket, key, *, start=None, length=None, version=None, if_match=None, if_none_match=None))]
    #[allow(clippy::too_many_arguments, reason = "they are Python's keyword arguments")]
    fn get_with_info<'py>(
        &self,
        py: Python<'py>,
        bucket: String,
        key: String,
        start: Option<StartOffset>,
        length: Option<ByteCount>,
        version: Option<String>,
        if_match: Option<&str>,
        if_none_match: Option<&str>,
    ) -> PyResult<(Bound<'py, PyBytes>, PyObjectInfo)> {
        let asked = ReadArguments { start, length, version, if_match, if_none_match };
        let (content, info) = self.read(py, asked, bucket, key)?;
        Ok((content.into_bytes(py)?, PyObjectInfo::from(info)))
    }

    /// Opens the object once, for reading sequentially, and returns the stream and the description.
    ///
    /// The stream contains the bytes that `get` returns, even if the object is replaced or removed meanwhile.
    /// Content of up to 1 MiB is read immediately. The stream of longer content keeps a file or, on the
    /// `http` lane, a connection open. The end of the content or `close` releases the file or the connection.
    ///
    /// Raises what `get` raises.
    #[pyo3(signature = (bucket, key, *, start=None, length=None, version=None, if_match=None, if_none_match=None))]
    #[allow(clippy::too_many_arguments, reason = "they are Python's keyword arguments")]
    fn stream(
        &self,
        py: Python<'_>,
        bucket: String,
        key: String,
        start: Option<StartOffset>,
        length: Option<ByteCount>,
        version: Option<String>,
        if_match: Option<&str>,
        if_none_match: Option<&str>,
    ) -> PyResult<(PyObjectStream, PyObjectInfo)> {
        let store = self.store(py)?;
        let (content, info) = without_interpreter(py, || {
            let asked = ReadArguments { start, length, version, if_match, if_none_match };
            let found = asked.open(&*store, bucket, key)?;
            Ok((InitialStreamContent::new(found.content)?, found.info))
        })?;
        Ok((PyObjectStream::new(py, content)?, PyObjectInfo::from(info)))
    }

    /// Reads the object into `buffer`, without another copy, and returns the number of bytes read.
    ///
    /// With `start`, reads as many bytes from byte `start` as fit. Without `start`, the whole object must
    /// fit. Raises `NotFoundError`; `ValueError` if the object does not fit; `BufferError` if `buffer` is not
    /// writable.
    #[pyo3(signature = (bucket, key, buffer, *, start=None, version=None, if_match=None))]
    #[allow(clippy::too_many_arguments, reason = "they are Python's keyword arguments")]
    fn get_into(
        &self,
        py: Python<'_>,
        bucket: String,
        key: String,
        buffer: &Bound<'_, PyAny>,
        start: Option<StartOffset>,
        version: Option<String>,
        if_match: Option<&str>,
    ) -> PyResult<usize> {
        let store = self.store(py)?;
        let room = |buffer: PyBuffer<u8>| ByteCount(buffer.len_bytes() as u64);
        let length = start.map(|_| u8_buffer(py, buffer).map(room)).transpose()?;
        let content = without_interpreter(py, || {
            let asked = ReadArguments { start, length, version, if_match, if_none_match: None };
            Ok(asked.open(&*store, bucket, key)?.content)
        })?;
        read_into(py, content, buffer)
    }

    /// Returns many ranges (start, length) of one version of an object, in order: a vectored read.
    ///
    /// A range that extends beyond the end of the object is shortened. Raises `NotFoundError` if the object
    /// does not exist, `PreconditionFailedError` if its ETag is not `if_match`, and `InvalidArgumentError` if
    /// a range begins at or beyond the end or has a length of 0.
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
            let wanted = ranges
                .iter()
                .map(|(start, length)| range(Some(StartOffset::FromStart(start.0)), Some(*length)));
            let wanted: Vec<ByteRange> = wanted.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
            let options = ReadArguments { version, if_match, ..ReadArguments::default() }.options()?;
            store.read_ranges(&Bucket::new(bucket)?, &Key::new(key)?, &wanted, &options)
        })?;
        Ok(read.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }

    /// Returns the object, or a range of it as in `get`, as memory: `memoryview(store.map(...))`.
    ///
    /// On the embedded lane, the memory is a mapping of the page cache, and pages are read on first access.
    /// Later puts do not change the content. If a POSIX program truncates the file, access beyond its new end
    /// is fatal (SIGBUS). Other lanes read the content into separate memory.
    #[pyo3(signature = (bucket, key, *, start=None, length=None, version=None))]
    fn map(
        &self,
        py: Python<'_>,
        bucket: String,
        key: String,
        start: Option<StartOffset>,
        length: Option<ByteCount>,
        version: Option<String>,
    ) -> PyResult<MappedContent> {
        let store = self.store(py)?;
        without_interpreter(py, || {
            let asked = ReadArguments { start, length, version, ..ReadArguments::default() };
            MappedContent::new(asked.open(&*store, bucket, key)?.content)
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
    /// `version`, that version is removed permanently. Returns the new delete marker or the removed version;
    /// `None` if the bucket never kept versions.
    ///
    /// `if_match` is the ETag that an existing object must have. A result without an error does not prove
    /// that this call removed the object.
    ///
    /// Raises `NotFoundError` if the bucket does not exist; `PreconditionFailedError`.
    #[pyo3(signature = (bucket, key, *, if_match=None, version=None))]
    fn delete(
        &self,
        py: Python<'_>,
        bucket: String,
        key: String,
        if_match: Option<&str>,
        version: Option<String>,
    ) -> PyResult<Option<PyDeleteInfo>> {
        let store = self.store(py)?;
        let done = without_interpreter(py, || {
            let version = version.map(VersionId::new).transpose()?;
            let options =
                DeleteOptions { conditions: conditions(if_match, None), version, ..Default::default() };
            store.delete(&Bucket::new(bucket)?, &Key::new(key)?, &options)
        })?;
        Ok(PyDeleteInfo::new(done))
    }

    /// Removes many objects, in as few requests as the lane allows.
    ///
    /// Returns one result per key, in order: `None`, or the error.
    ///
    /// Raises `InvalidNameError` for an invalid bucket or key, before anything is removed.
    fn delete_many<'py>(
        &self,
        py: Python<'py>,
        bucket: String,
        keys: Vec<String>,
    ) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
        let store = self.store(py)?;
        let results =
            without_interpreter(py, || Ok(store.delete_many(&Bucket::new(bucket)?, &named(keys)?)))?;
        Ok(results.into_iter().map(|result| result.err().map(|error| raised(py, &error))).collect())
    }

    /// Copies an object, or a `version` of it, within the store; returns the copy's ETag (without quotes).
    ///
    /// On the `node` and `http` lanes, the content does not pass through this process. If `content_type`,
    /// `metadata` or `headers` is given, all three are replaced. `tags` replaces all tags. Without these
    /// arguments, the copy has the source's metadata and tags. Conditions are as for `put`, and apply to the
    /// copy.
    ///
    /// Raises `NotFoundError`, `PreconditionFailedError`, and `InvalidArgumentError` if a copy of an
    /// object to itself would change nothing.
    #[pyo3(signature = (source_bucket, source_key, bucket, key, *, version=None, content_type=None, metadata=None, headers=None, tags=None, if_none_match=None, if_match=None))]
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
        headers: Option<StoredHeaders>,
        tags: Option<BTreeMap<String, String>>,
        if_none_match: Option<&str>,
        if_match: Option<&str>,
    ) -> PyResult<String> {
        let store = self.store(py)?;
        let mut described = ObjectPropertyArguments { content_type, metadata, headers, tags };
        without_interpreter(py, || {
            let options = CopyOptions {
                metadata: described.has_metadata().then(|| described.metadata()).transpose()?,
                tags: described.tags,
                source_version: version.map(VersionId::new).transpose()?,
                conditions: conditions(if_match, if_none_match),
                ..CopyOptions::default()
            };
            let source = (&Bucket::new(source_bucket)?, &Key::new(source_key)?);
            Ok(store.copy(source, &Bucket::new(bucket)?, &Key::new(key)?, &options)?.etag.to_string())
        })
    }

    /// Starts an object that is written in several calls and becomes visible as a whole at the commit.
    ///
    /// `size` is the object's length in bytes, if known. A lane uses the size to choose how to send the
    /// object, and the commit checks it. The other arguments are as for `put`; conditions are checked at the
    /// commit.
    ///
    /// Raises `NotFoundError` if the bucket does not exist; on some lanes, only `commit` raises this error.
    #[pyo3(signature = (bucket, key, *, size=None, content_type=None, metadata=None, headers=None, tags=None, if_none_match=None, if_match=None))]
    #[allow(clippy::too_many_arguments, reason = "they are Python's keyword arguments")]
    fn writer(
        &self,
        py: Python<'_>,
        bucket: String,
        key: String,
        size: Option<ByteCount>,
        content_type: Option<String>,
        metadata: Option<BTreeMap<String, String>>,
        headers: Option<StoredHeaders>,
        tags: Option<BTreeMap<String, String>>,
        if_none_match: Option<&str>,
        if_match: Option<&str>,
    ) -> PyResult<PyObjectWriter> {
        let store = self.store(py)?;
        let described = ObjectPropertyArguments { content_type, metadata, headers, tags };
        let options = PutOptions {
            size_hint: size.map(|size| size.0),
            ..described.put_options(py, conditions(if_match, if_none_match))?
        };
        let target = format!("s3://{bucket}/{key}");
        let begin = || store.writer(&Bucket::new(bucket)?, &Key::new(key)?, &options);
        let writer = without_interpreter(py, begin)?;
        PyObjectWriter::new(py, writer, target, options.size_hint)
    }

    /// Begins a multipart upload: parts are sent in any order, by any thread, and published together.
    ///
    /// The arguments are as for `put`; `checksum` is as for `put_with_info` and applies to each part. An
    /// upload that is neither completed nor aborted keeps its parts.
    ///
    /// Raises `NotFoundError` if the bucket does not exist.
    #[pyo3(signature = (bucket, key, *, content_type=None, metadata=None, headers=None, tags=None, checksum=None))]
    #[allow(clippy::too_many_arguments, reason = "they are Python's keyword arguments")]
    fn upload(
        &self,
        py: Python<'_>,
        bucket: String,
        key: String,
        content_type: Option<String>,
        metadata: Option<BTreeMap<String, String>>,
        headers: Option<StoredHeaders>,
        tags: Option<BTreeMap<String, String>>,
        checksum: Option<&str>,
    ) -> PyResult<PyUpload> {
        let store = self.store(py)?;
        let checksum = checksum.map(checksum_algorithm).transpose().map_err(|error| to_python(py, &error))?;
        let described = ObjectPropertyArguments { content_type, metadata, headers, tags };
        let options = PutOptions { checksum, ..described.put_options(py, Conditions::default())? };
        without_interpreter(py, || PyUpload::begin(store, bucket, key, &options))
    }

    /// Returns the upload with this ID, which was begun earlier, perhaps by another process.
    ///
    /// Makes no request. If the upload does not exist, the methods of the returned object raise
    /// `NotFoundError`.
    fn resume_upload(&self, py: Python<'_>, bucket: String, key: String, id: String) -> PyResult<PyUpload> {
        let store = self.store(py)?;
        PyUpload::resume(store, bucket, key, id).map_err(|error| to_python(py, &error))
    }

    /// Returns the uploads in progress for keys that start with `prefix`, ordered by key.
    ///
    /// Raises `NotFoundError` if the bucket does not exist.
    #[pyo3(signature = (bucket, prefix=""))]
    fn list_uploads(&self, py: Python<'_>, bucket: String, prefix: &str) -> PyResult<Vec<PyUploadSummary>> {
        let store = self.store(py)?;
        without_interpreter(py, || upload::list(&*store, &Bucket::new(bucket)?, prefix))
    }

    /// Returns one page of the uploads in progress: at most `limit` entries (up to 1,000).
    ///
    /// Keys with `delimiter` after the prefix count as one entry per common prefix, as in `list_page`. The
    /// page starts after `after`: a key, and the ID of an upload of this key or `None`.
    ///
    /// Raises `NotFoundError` if the bucket does not exist.
    #[pyo3(signature = (bucket, prefix="", delimiter=None, *, after=None, limit=MAX_KEYS))]
    fn uploads_page(
        &self,
        py: Python<'_>,
        bucket: String,
        prefix: &str,
        delimiter: Option<&str>,
        after: Option<(String, Option<String>)>,
        limit: usize,
    ) -> PyResult<PyUploadPage> {
        let store = self.store(py)?;
        let (key_after, upload_after) = after.map_or((None, None), |(key, upload)| (Some(key), upload));
        let query = UploadsQuery { prefix: prefix.to_owned(), key_after, upload_after, max_uploads: limit };
        let page = without_interpreter(py, || {
            upload::check_limit(limit)?;
            UploadPage::read(&*store, &Bucket::new(bucket)?, &query, delimiter)
        })?;
        PyUploadPage::new(py, page)
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

    /// Iterates over the keys that start with `prefix`, in byte order, in pages of 1,000.
    ///
    /// With a `delimiter`, keys with the same beginning up to the delimiter are returned as one
    /// `CommonPrefix`. With `start_after`, only entries after that name are returned. If the bucket does not
    /// exist, the request for the first page raises `NotFoundError`.
    #[pyo3(signature = (bucket, prefix="", delimiter=None, *, start_after=None))]
    fn list(
        &self,
        py: Python<'_>,
        bucket: String,
        prefix: &str,
        delimiter: Option<String>,
        start_after: Option<String>,
    ) -> PyResult<EntryIterator> {
        let bucket = Bucket::new(bucket).map_err(|error| to_python(py, &error))?;
        let query = ListQuery { prefix: prefix.to_owned(), delimiter, start_after, ..ListQuery::default() };
        Ok(EntryIterator::new(self.store(py)?, bucket, query))
    }

    /// Returns one page of `list`: at most `limit` entries (1 to 1,000), and where the next page starts.
    ///
    /// Raises `NotFoundError` if the bucket does not exist, and `InvalidArgumentError` for any other `limit`.
    #[pyo3(signature = (bucket, prefix="", delimiter=None, *, start_after=None, limit=MAX_KEYS))]
    fn list_page(
        &self,
        py: Python<'_>,
        bucket: String,
        prefix: &str,
        delimiter: Option<String>,
        start_after: Option<String>,
        limit: usize,
    ) -> PyResult<PyListPage> {
        let store = self.store(py)?;
        let listing = without_interpreter(py, || {
            if !(1..=MAX_KEYS).contains(&limit) {
                let why = format!("a limit of {limit}; a page can have from 1 to {MAX_KEYS} entries");
                return Err(Error::new(ErrorKind::InvalidArgument, why));
            }
            let query = ListQuery { prefix: prefix.to_owned(), delimiter, start_after, max_keys: limit };
            store.list(&Bucket::new(bucket)?, &query)
        })?;
        PyListPage::new(py, listing)
    }

    /// Iterates over all versions and delete markers of the keys that start with `prefix`.
    ///
    /// Entries are in byte order of their keys; the versions of one key are ordered from newest to oldest. If
    /// the bucket does not exist, the request for the first page raises `NotFoundError`.
    #[pyo3(signature = (bucket, prefix=""))]
    fn list_versions(&self, py: Python<'_>, bucket: String, prefix: &str) -> PyResult<VersionIterator> {
        let bucket = Bucket::new(bucket).map_err(|error| to_python(py, &error))?;
        let query = VersionsQuery { prefix: prefix.to_owned(), ..VersionsQuery::default() };
        Ok(VersionIterator::new(self.store(py)?, bucket, query))
    }

    fn __repr__(&self) -> String {
        format!("<Store, lane {}>", self.lane)
    }

    /// Makes pickle reopen the store.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (Option<&str>,))> {
        let options = PyDict::new(py);
        options.set_item("timeout", self.opening.timeout)?;
        options.set_item("retries", self.opening.max_retries)?;
        let open = py.import("fordway")?.getattr("open")?;
        let opens = py.import("functools")?.getattr("partial")?.call((open,), Some(&options))?;
        Ok((opens, (self.opening.endpoint.as_deref(),)))
    }
}

impl Drop for PyStore {
    fn drop(&mut self) {
        let store = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        drop_without_interpreter(store);
    }
}

impl PyStore {
    pub(crate) fn new(opened: Arc<dyn fordway_store::Store>, opening: OpenArguments) -> Self {
        PyStore { lane: opened.lane(), inner: Mutex::new(Some(opened)), opening }
    }

    fn locked(&self) -> MutexGuard<'_, Option<Arc<dyn fordway_store::Store>>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens an object, and reads its content if it is small.
    fn read(
        &self,
        py: Python<'_>,
        asked: ReadArguments<'_>,
        bucket: String,
        key: String,
    ) -> PyResult<(CopiedOrOpenContent, ObjectInfo)> {
        let store = self.store(py)?;
        let request = asked.request(bucket, key).map_err(|error| to_python(py, &error))?;
        if self.lane == "embedded"
            && !cancellation::must_end()
            && let Some(read) = CopiedOrOpenContent::from_memory(|| request.open(&*store))
        {
            return Ok(read);
        }
        without_interpreter(py, || {
            let OpenObject { info, content, .. } = request.open(&*store)?;
            Ok((CopiedOrOpenContent::new(content)?, info))
        })
    }

    /// Returns the store. Errors: `InvalidArgument` if the store is closed.
    fn store(&self, py: Python<'_>) -> PyResult<Arc<dyn fordway_store::Store>> {
        self.locked().clone().ok_or_else(|| {
            let why = "the store is closed; open another with fordway.open()";
            to_python(py, &Error::new(ErrorKind::InvalidArgument, why))
        })
    }
}

/// Stores `data`, which is a buffer, a file or an iterable of buffers.
fn put_data(
    py: Python<'_>,
    store: &dyn fordway_store::Store,
    (bucket, key): (String, String),
    data: &Bound<'_, PyAny>,
    options: &PutOptions,
) -> PyResult<PutResult> {
    let named = || -> Result<(Bucket, Key)> { Ok((Bucket::new(bucket)?, Key::new(key)?)) };
    if let Ok(bytes) = data.cast::<PyBytes>() {
        let bytes = bytes.as_bytes();
        return without_interpreter(py, || {
            let (bucket, key) = named()?;
            store.put(&bucket, &key, bytes, options)
        });
    }
    let Some(pieces) = pieces(data)? else {
        // Another thread may change any buffer except `bytes` while the GIL is released.
        let bytes = bytes_of_buffer(py, data)?;
        return without_interpreter(py, || {
            let (bucket, key) = named()?;
            store.put(&bucket, &key, &bytes, options)
        });
    };
    let mut writer = without_interpreter(py, || {
        let (bucket, key) = named()?;
        store.writer(&bucket, &key, options)
    })?;
    if let Err(error) = write_pieces(py, &mut *writer, pieces) {
        drop_without_interpreter(writer);
        return Err(error);
    }
    // If the call was cancelled in the meantime, nothing is published.
    without_interpreter(py, || writer.commit(&ExpectedContent::default()))
}

fn named(keys: Vec<String>) -> Result<Vec<Key>> {
    keys.into_iter().map(Key::new).collect()
}

/// Returns the results of a batch, with each error as an exception object that is not raised.
fn each<'py, T>(
    py: Python<'py>,
    results: Vec<Result<T>>,
    into_object: impl Fn(T) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let result = |result| match result {
        Ok(value) => into_object(value),
        Err(error) => Ok(raised(py, &error)),
    };
    results.into_iter().map(result).collect()
}

fn of_version(version: Option<String>) -> Result<GetOptions> {
    Ok(GetOptions { version: version.map(VersionId::new).transpose()?, ..GetOptions::default() })
}
