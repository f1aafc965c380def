//! The store: each method turns its arguments into the store's types, lets go of the interpreter,
//! makes one call, and turns the answer (or the error) back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use fordway_store::{
    BoxedMetadata, Bucket, ByteRange, Conditions, Content, DeleteOptions, ETag, ETagMatch, Error, ErrorKind,
    GetOptions, Key, ListQuery, Metadata, PutOptions, Result, VersionId, Versioning, VersionsQuery,
};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::{Mapped, read_into};
use crate::content::{Opened, bytes_of_buffer};
use crate::errors::to_python;
use crate::listing::{BucketInfo, Entries, Versions};

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
        let metadata = info.metadata.into_inner();
        ObjectInfo {
            size: info.size,
            etag: info.etag.to_string(),
            modified: info.modified,
            content_type: metadata.content_type,
            metadata: metadata.user,
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
            Opened::new(self.open(bucket, key, asked)?)
        })?;
        opened.into_bytes(py)
    }

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
        let room = buffer.getattr("nbytes").and_then(|bytes| bytes.extract::<u64>());
        let room = room.or_else(|_| buffer.len().map(|len| len as u64))?;
        let wanted = range(start, start.map(|_| room)).map_err(|error| to_python(py, &error))?;
        let asked = (wanted, version);
        let content = without_interpreter(py, || self.open(bucket, key, asked))?;
        read_into(py, content, buffer)
    }

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

    #[pyo3(signature = (bucket, key, *, start=None, length=None, version=None))]
    fn map(
        &self,
        py: Python<'_>,
        bucket: String,
        key: String,
        start: Option<u64>,
        length: Option<u64>,
        version: Option<String>,
    ) -> PyResult<Mapped> {
        without_interpreter(py, || {
            let asked = (range(start, length)?, version);
            Mapped::new(self.open(bucket, key, asked)?)
        })
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

impl Store {
    /// Opens a range of an object or of a version of it.
    fn open(
        &self,
        bucket: String,
        key: String,
        (range, version): (Option<ByteRange>, Option<String>),
    ) -> Result<Content> {
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
fn range(start: Option<u64>, length: Option<u64>) -> Result<Option<ByteRange>> {
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
