//! The store: each method turns its arguments into the store's types, lets go of the interpreter,
//! makes one call, and turns the answer back, or the error into the exception that Python code catches.

use std::collections::BTreeMap;
use std::sync::Arc;

use fordway_store::{
    BoxedMetadata, Bucket, ByteRange, Conditions, DeleteOptions, ETag, ETagMatch, Error, ErrorKind,
    GetOptions, Key, ListQuery, Metadata, ObjectContent, PutOptions, Result, VersionId, VersioningState,
    VersionsQuery,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

use super::listing::PyObjectInfo;
use crate::buffer::{MappedContent, read_into};
use crate::content::{FetchedContent, bytes_of_buffer, u8_buffer};
use crate::listing::{EntryIterator, PyBucketInfo, VersionIterator};

/// Opens the store at `endpoint`.
///
/// `file:///DIRECTORY` or `/DIRECTORY` is the lane `embedded`: each directory in it is a bucket.
/// `http(s)://HOST[:PORT]` is the lane `http`: any S3 service. `unix:///SOCKET` and `tcp://HOST:PORT` are
/// the lane `node`: a gateway started by `fordway node`. Without an endpoint,
/// `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, the AWS configuration file and at last AWS itself are taken.
///
/// Raises `InvalidArgumentError` if the endpoint is none of these or the directory is missing.
#[pyfunction]
#[pyo3(signature = (endpoint=None))]
pub(crate) fn open(py: Python<'_>, endpoint: Option<String>) -> PyResult<PyStore> {
    let options = fordway_lanes::LaneOptions { endpoint: endpoint.clone(), ..Default::default() };
    let lane = without_interpreter(py, || fordway_lanes::open(&options))?;
    Ok(PyStore { inner: lane.store, endpoint })
}

/// The objects behind an endpoint.
///
/// Threads may share a store. Every call that touches files lets other Python threads run meanwhile.
/// A pickled store is opened anew, by the same endpoint, where it is read.
#[pyclass(frozen, name = "Store", module = "fordway")]
pub(crate) struct PyStore {
    inner: Arc<dyn fordway_store::Store>,
    /// As it was opened by; `None` is what the environment names.
    endpoint: Option<String>,
}

#[pymethods]
impl PyStore {
    /// How the store is reached: `embedded`, `node` or `http`.
    #[getter]
    fn lane(&self) -> &'static str {
        self.inner.lane()
    }

    /// Returns all buckets in byte order of their names.
    fn list_buckets(&self, py: Python<'_>) -> PyResult<Vec<PyBucketInfo>> {
        let buckets = without_interpreter(py, || self.inner.list_buckets())?;
        Ok(buckets.into_iter().map(PyBucketInfo::from).collect())
    }

    /// Makes an empty bucket. Raises `AlreadyExistsError`, `InvalidNameError`.
    fn create_bucket(&self, py: Python<'_>, bucket: String) -> PyResult<()> {
        without_interpreter(py, || self.inner.create_bucket(&Bucket::new(bucket)?))
    }

    /// Removes an empty bucket. Raises `NotFoundError`, `BucketNotEmptyError`.
    fn delete_bucket(&self, py: Python<'_>, bucket: String) -> PyResult<()> {
        without_interpreter(py, || self.inner.delete_bucket(&Bucket::new(bucket)?))
    }

    /// Whether the bucket keeps old versions: `"enabled"`, `"suspended"`, or `None` if it never did.
    ///
    /// Raises `NotFoundError`.
    fn versioning(&self, py: Python<'_>, bucket: String) -> PyResult<Option<&'static str>> {
        let found = without_interpreter(py, || self.inner.versioning(&Bucket::new(bucket)?))?;
        Ok(match found {
            VersioningState::Unversioned => None,
            VersioningState::Enabled => Some("enabled"),
            VersioningState::Suspended => Some("suspended"),
        })
    }

    /// Has the bucket keep old versions from now on, or no longer. Raises `NotFoundError`.
    fn set_versioning(&self, py: Python<'_>, bucket: String, enabled: bool) -> PyResult<()> {
        let versioning = if enabled { VersioningState::Enabled } else { VersioningState::Suspended };
        without_interpreter(py, || self.inner.set_versioning(&Bucket::new(bucket)?, versioning))
    }

    /// Stores `data` under `key`, whole or not at all, and returns the new ETag (without quotes).
    ///
    /// `bytes` are written from where they lie; any other buffer in one piece, such as a NumPy array of
    /// whatever numbers, is copied once first. Text has to be encoded.
    /// `metadata` names are kept in lower case. `tags` are at most 10. `if_none_match="*"` creates and never
    /// replaces; `if_match=etag` replaces only while the object still has that ETag.
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
        let user = metadata.unwrap_or_default().into_iter();
        let user = user.map(|(name, value)| (name.to_lowercase(), value)).collect();
        let options = PutOptions {
            metadata: BoxedMetadata::from(Metadata { content_type, user, ..Metadata::default() }),
            tags: tags.unwrap_or_default(),
            conditions: conditions(if_match, if_none_match),
            ..PutOptions::default()
        };
        let put = |body: &[u8]| {
            without_interpreter(py, || {
                let (bucket, key) = (Bucket::new(bucket)?, Key::new(key)?);
                Ok(self.inner.put(&bucket, &key, body, &options)?.etag.to_string())
            })
        };
        match data.cast::<PyBytes>() {
            Ok(bytes) => put(bytes.as_bytes()),
            // Another thread may change any other buffer while the interpreter is free.
            Err(_) => put(&bytes_of_buffer(py, data)?),
        }
    }

    /// Returns the object, or a `version` of it: whole, or `length` bytes from byte `start` (or from 0).
    ///
    /// Fewer bytes come back only where the object ends before. Objects over 64 KiB are read straight
    /// into the result; smaller ones are copied once, which costs less than it saves.
    ///
    /// Raises `NotFoundError`; `InvalidArgumentError` if `start` is at or past the end, or `length` is 0.
    #[pyo3(signature = (bucket, key, *, start=None, length=None, version=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        bucket: String,
        key: String,
        start: Option<u64>,
        length: Option<u64>,
        version: Option<String>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let opened = without_interpreter(py, || {
            let asked = (range(start, length)?, version);
            FetchedContent::new(self.open(bucket, key, asked)?)
        })?;
        opened.into_bytes(py)
    }

    /// Reads the object into `buffer`, without a copy on the way, and returns how many bytes it has.
    ///
    /// With a `start`, reads as many bytes from there as fit; without one, the object must fit.
    /// Raises `NotFoundError`; `ValueError` if it does not fit; `BufferError` if `buffer` cannot be written.
    #[pyo3(signature = (bucket, key, buffer, *, start=None, version=None))]
    fn get_into(
        &self,
        py: Python<'_>,
        bucket: String,
        key: String,
        buffer: &Bound<'_, PyAny>,
        start: Option<u64>,
        version: Option<String>,
    ) -> PyResult<usize> {
        let room = start.map(|_| u8_buffer(py, buffer).map(|room| room.len_bytes() as u64)).transpose()?;
        let wanted = range(start, room).map_err(|error| to_python(py, &error))?;
        let asked = (wanted, version);
        let content = without_interpreter(py, || self.open(bucket, key, asked))?;
        read_into(py, content, buffer)
    }

    /// Returns many ranges of one version of an object, each given as start and length, in order.
    ///
    /// A range that ends behind the object is cut. Raises `NotFoundError`, and `InvalidArgumentError`
    /// if a range begins at or past the end, or has a length of 0.
    #[pyo3(signature = (bucket, key, ranges, *, version=None))]
    fn get_ranges<'py>(
        &self,
        py: Python<'py>,
        bucket: String,
        key: String,
        ranges: Vec<(u64, u64)>,
        version: Option<String>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let read = without_interpreter(py, || {
            let wanted = ranges.iter().map(|(start, length)| range(Some(*start), Some(*length)));
            let wanted: Vec<ByteRange> = wanted.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
            self.inner.read_ranges(&Bucket::new(bucket)?, &Key::new(key)?, &wanted, &of_version(version)?)
        })?;
        Ok(read.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }

    /// Returns the object, or a range of it as `get` takes, as memory: `memoryview(store.map(...))`.
    ///
    /// On the embedded lane that is the page cache itself, and nothing is read before it is touched.
    /// It stays the version it was, whatever is put later. A POSIX program that cuts the file short
    /// makes access behind its new end fatal (SIGBUS). Other lanes read it into memory of its own.
    #[pyo3(signature = (bucket, key, *, start=None, length=None, version=None))]
    fn map(
        &self,
        py: Python<'_>,
        bucket: String,
        key: String,
        start: Option<u64>,
        length: Option<u64>,
        version: Option<String>,
    ) -> PyResult<MappedContent> {
        without_interpreter(py, || {
            let asked = (range(start, length)?, version);
            MappedContent::new(self.open(bucket, key, asked)?)
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
        let head = || self.inner.head(&Bucket::new(bucket)?, &Key::new(key)?, &of_version(version)?);
        without_interpreter(py, head).map(PyObjectInfo::from)
    }

    /// Removes an object; removing what is not there succeeds, as in S3.
    ///
    /// Where the bucket keeps versions, the object becomes one of them and is hidden by a delete marker;
    /// with a `version`, that one is removed for good.
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
        without_interpreter(py, || {
            let version = version.map(VersionId::new).transpose()?;
            let options = DeleteOptions { conditions: conditions(if_match, None), version };
            self.inner.delete(&Bucket::new(bucket)?, &Key::new(key)?, &options).map(drop)
        })
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
        without_interpreter(py, || {
            let version = version.map(VersionId::new).transpose()?;
            self.inner.tags(&Bucket::new(bucket)?, &Key::new(key)?, version.as_ref())
        })
    }

    /// Replaces the tags of an object, or of a `version` of it; the object is not written again.
    ///
    /// Raises `NotFoundError`, and `InvalidArgumentError` for more than 10 tags or longer ones than S3 takes.
    #[pyo3(signature = (bucket, key, tags, *, version=None))]
    fn set_tags(
        &self,
        py: Python<'_>,
        bucket: String,
        key: String,
        tags: BTreeMap<String, String>,
        version: Option<String>,
    ) -> PyResult<()> {
        without_interpreter(py, || {
            let version = version.map(VersionId::new).transpose()?;
            self.inner.set_tags(&Bucket::new(bucket)?, &Key::new(key)?, version.as_ref(), &tags)
        })
    }

    /// Iterates over the keys that start with `prefix`, in byte order, a page of 1,000 at a time.
    ///
    /// With a `delimiter`, keys that share the part up to it come as one `CommonPrefix`.
    /// Raises `NotFoundError` (no bucket) when the first page is fetched.
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
        Ok(EntryIterator::new(Arc::clone(&self.inner), bucket, query))
    }

    /// Iterates over all versions and delete markers of the keys that start with `prefix`.
    ///
    /// They come by key in byte order, and the versions of one key from the newest to the oldest.
    /// Raises `NotFoundError` (no bucket) when the first page is fetched.
    #[pyo3(signature = (bucket, prefix=""))]
    fn list_versions(&self, py: Python<'_>, bucket: String, prefix: &str) -> PyResult<VersionIterator> {
        let bucket = Bucket::new(bucket).map_err(|error| to_python(py, &error))?;
        let query = VersionsQuery { prefix: prefix.to_owned(), ..VersionsQuery::default() };
        Ok(VersionIterator::new(Arc::clone(&self.inner), bucket, query))
    }

    fn __repr__(&self) -> String {
        format!("<Store, lane {}>", self.inner.lane())
    }

    /// How pickle makes it again: by opening it.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (Option<&str>,))> {
        Ok((py.import("fordway")?.getattr("open")?, (self.endpoint.as_deref(),)))
    }
}

impl PyStore {
    /// Opens a range of an object or of a version of it.
    fn open(
        &self,
        bucket: String,
        key: String,
        (range, version): (Option<ByteRange>, Option<String>),
    ) -> Result<ObjectContent> {
        let options = GetOptions { range, ..of_version(version)? };
        Ok(self.inner.get(&Bucket::new(bucket)?, &Key::new(key)?, &options)?.content)
    }
}

/// Runs `call` while other Python threads may run.
pub(crate) fn without_interpreter<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T> + Send,
) -> PyResult<T> {
    py.detach(call).map_err(|error| to_python(py, &error))
}

/// `start` and `length` as the range of a request; `None` is all of the object.
/// Errors: `InvalidArgument` for a length of 0.
pub(crate) fn range(start: Option<u64>, length: Option<u64>) -> Result<Option<ByteRange>> {
    match (start, length) {
        (None, None) => Ok(None),
        (Some(start), None) => Ok(Some(ByteRange::From(start))),
        (_, Some(0)) => {
            Err(Error::new(ErrorKind::InvalidArgument, "a length of 0; ask for one byte or more"))
        }
        (start, Some(length)) => {
            let start = start.unwrap_or(0);
            Ok(Some(ByteRange::Inclusive(start, start.saturating_add(length - 1))))
        }
    }
}

pub(crate) fn of_version(version: Option<String>) -> Result<GetOptions> {
    Ok(GetOptions { version: version.map(VersionId::new).transpose()?, ..GetOptions::default() })
}

pub(crate) fn conditions(if_match: Option<&str>, if_none_match: Option<&str>) -> Conditions {
    let tags = |text: &str| match text {
        "*" => ETagMatch::Any,
        tag => ETagMatch::Tags(vec![ETag::new(tag)]),
    };
    Conditions {
        if_match: if_match.map(tags),
        if_none_match: if_none_match.map(tags),
        ..Conditions::default()
    }
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
