//! The store: each method turns its arguments into the store's types, lets go of the interpreter,
//! makes one call, and turns the answer (or the error) back.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;
use std::time::SystemTime;

use fordway_store::{
    Bucket, ByteRange, Conditions, Content, DeleteOptions, ETag, ETagMatch, Error, ErrorKind, GetOptions,
    Key, ListQuery, Metadata, PutOptions, Result, VersionId, Versioning, VersionsQuery,
};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::to_python;
use crate::listing::{BucketInfo, Entries, Versions};

/// Up to this size an object is read without the interpreter into a buffer of the thread's own, and
/// then copied: a few microseconds at most, less than taking the interpreter a second time may cost.
const COPIED_BYTES_MAX: u64 = 64 * 1024;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Opens the store at `endpoint`.
#[pyfunction]
#[pyo3(signature = (endpoint=None))]
pub(crate) fn open(py: Python<'_>, endpoint: Option<String>) -> PyResult<Store> {
    let options = fordway_lanes::Options { endpoint, ..Default::default() };
    let lane = without_interpreter(py, || fordway_lanes::open(&options))?;
    Ok(Store { inner: lane.store })
}

/// What is known of an object without reading it.
#[pyclass(frozen, get_all, module = "fordway")]
pub(crate) struct ObjectInfo {
    size: u64,
    etag: String,
    modified: SystemTime,
    content_type: Option<String>,
    metadata: BTreeMap<String, String>,
    version: Option<String>,
    tag_count: usize,
}

#[pymethods]
impl ObjectInfo {
    fn __repr__(&self) -> String {
        format!("<ObjectInfo {} bytes, ETag {}>", self.size, self.etag)
    }
}

impl From<fordway_store::ObjectInfo> for ObjectInfo {
    fn from(info: fordway_store::ObjectInfo) -> Self {
        ObjectInfo {
            size: info.size,
            etag: info.etag.to_string(),
            modified: info.modified,
            content_type: info.metadata.content_type,
            metadata: info.metadata.user,
            version: info.version.map(|version| version.to_string()),
            tag_count: info.tag_count,
        }
    }
}

/// The objects behind an endpoint. Threads may share it.
#[pyclass(frozen, module = "fordway")]
pub(crate) struct Store {
    inner: Arc<dyn fordway_store::Store>,
}

#[pymethods]
impl Store {
    /// The lane's name.
    #[getter]
    fn lane(&self) -> &'static str {
        self.inner.lane()
    }

    fn list_buckets(&self, py: Python<'_>) -> PyResult<Vec<BucketInfo>> {
        let buckets = without_interpreter(py, || self.inner.list_buckets())?;
        Ok(buckets.into_iter().map(BucketInfo::from).collect())
    }

    fn create_bucket(&self, py: Python<'_>, bucket: String) -> PyResult<()> {
        without_interpreter(py, || self.inner.create_bucket(&Bucket::new(bucket)?))
    }

    fn delete_bucket(&self, py: Python<'_>, bucket: String) -> PyResult<()> {
        without_interpreter(py, || self.inner.delete_bucket(&Bucket::new(bucket)?))
    }

    /// `enabled`, `suspended`, or nothing.
    fn versioning(&self, py: Python<'_>, bucket: String) -> PyResult<Option<&'static str>> {
        let found = without_interpreter(py, || self.inner.versioning(&Bucket::new(bucket)?))?;
        Ok(match found {
            Versioning::Unversioned => None,
            Versioning::Enabled => Some("enabled"),
            Versioning::Suspended => Some("suspended"),
        })
    }

    fn set_versioning(&self, py: Python<'_>, bucket: String, enabled: bool) -> PyResult<()> {
        let versioning = if enabled { Versioning::Enabled } else { Versioning::Suspended };
        without_interpreter(py, || self.inner.set_versioning(&Bucket::new(bucket)?, versioning))
    }

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
            metadata: Metadata { content_type, user, ..Metadata::default() },
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
            if length == Some(0) {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    "a length of 0; ask for one byte or more",
                ));
            }
            let options = GetOptions { range: range(start, length), ..of_version(version)? };
            let object = self.inner.get(&Bucket::new(bucket)?, &Key::new(key)?, &options)?;
            small_content(object.content)
        })?;
        match opened {
            Opened::Copied => BUFFER.with_borrow(|buffer| Ok(PyBytes::new(py, buffer))),
            Opened::Open(content) => read_into_bytes(py, content),
        }
    }

    #[pyo3(signature = (bucket, key, *, version=None))]
    fn head(
        &self,
        py: Python<'_>,
        bucket: String,
        key: String,
        version: Option<String>,
    ) -> PyResult<ObjectInfo> {
        let head = || self.inner.head(&Bucket::new(bucket)?, &Key::new(key)?, &of_version(version)?);
        without_interpreter(py, head).map(ObjectInfo::from)
    }

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

    #[pyo3(signature = (bucket, prefix=String::new(), delimiter=None))]
    fn list(
        &self,
        py: Python<'_>,
        bucket: String,
        prefix: String,
        delimiter: Option<String>,
    ) -> PyResult<Entries> {
        let bucket = Bucket::new(bucket).map_err(|error| to_python(py, &error))?;
        let query = ListQuery { prefix, delimiter, ..ListQuery::default() };
        Ok(Entries::new(Arc::clone(&self.inner), bucket, query))
    }

    #[pyo3(signature = (bucket, prefix=String::new()))]
    fn list_versions(&self, py: Python<'_>, bucket: String, prefix: String) -> PyResult<Versions> {
        let bucket = Bucket::new(bucket).map_err(|error| to_python(py, &error))?;
        let query = VersionsQuery { prefix, ..VersionsQuery::default() };
        Ok(Versions::new(Arc::clone(&self.inner), bucket, query))
    }

    fn __repr__(&self) -> String {
        format!("<Store, lane {}>", self.inner.lane())
    }
}

/// Runs `call` while other Python threads may run.
fn without_interpreter<T: Send>(py: Python<'_>, call: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    py.detach(call).map_err(|error| to_python(py, &error))
}

/// What an object's content has become before the interpreter is taken again.
enum Opened {
    /// It is in the thread's [`BUFFER`].
    Copied,
    /// It is still to be read.
    Open(Content),
}

fn small_content(content: Content) -> Result<Opened> {
    if content.len() > COPIED_BYTES_MAX {
        return Ok(Opened::Open(content));
    }
    BUFFER.with_borrow_mut(|buffer| content.read_to(buffer))?;
    Ok(Opened::Copied)
}

/// Reads `content` into the bytes object that the caller gets, without a copy on the way.
fn read_into_bytes(py: Python<'_>, content: Content) -> PyResult<Bound<'_, PyBytes>> {
    let len = usize::try_from(content.len())?;
    PyBytes::new_with(py, len, |bytes| {
        without_interpreter(py, || {
            content.into_reader().read_exact(bytes).map_err(|error| {
                let why = format!("the content could not be read to its end at {len} bytes");
                Error::new(ErrorKind::IncompleteBody, why).caused_by(error)
            })
        })
    })
}

fn bytes_of_buffer(py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let buffer: PyBuffer<u8> = data.extract().map_err(|cause: PyErr| {
        let error = PyBufferError::new_err("data must be bytes or a buffer of unsigned bytes");
        error.set_cause(py, Some(cause));
        error
    })?;
    buffer.to_vec(py)
}

/// `start` and `length` as the range of a request; `None` is all of the object.
fn range(start: Option<u64>, length: Option<u64>) -> Option<ByteRange> {
    match (start, length) {
        (None, None) => None,
        (Some(start), None) => Some(ByteRange::From(start)),
        (start, Some(length)) => {
            let start = start.unwrap_or(0);
            Some(ByteRange::Inclusive(start, start.saturating_add(length).saturating_sub(1)))
        }
    }
}

fn of_version(version: Option<String>) -> Result<GetOptions> {
    Ok(GetOptions { version: version.map(VersionId::new).transpose()?, ..GetOptions::default() })
}

fn conditions(if_match: Option<&str>, if_none_match: Option<&str>) -> Conditions {
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
