//! Buckets, objects and entries as Python sees them, and the iterator that fetches pages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;
use std::vec;

use fordway_store::{Bucket, ListEntry, ListQuery, VersionsQuery};
use pyo3::prelude::*;

use super::store::without_interpreter;

/// A bucket.
#[pyclass(frozen, get_all, name = "BucketInfo", module = "fordway")]
pub(crate) struct PyBucketInfo {
    name: String,
    /// The time of creation, as far as the store knows it, in UTC.
    created: SystemTime,
}

/// An object in a listing.
#[pyclass(frozen, get_all, name = "ObjectSummary", module = "fordway")]
pub(crate) struct PyObjectSummary {
    key: String,
    /// Bytes.
    size: u64,
    /// The ETag, without quotes.
    etag: String,
    /// The time of the last write, in UTC.
    modified: SystemTime,
}

/// A version of an object, or a delete marker, in a listing.
#[pyclass(frozen, get_all, name = "VersionSummary", module = "fordway")]
pub(crate) struct PyVersionSummary {
    key: String,
    /// The version ID; `"null"` if it was written while the bucket kept no versions.
    version: String,
    /// Whether this is the latest version, which calls without a version use.
    is_latest: bool,
    /// Whether this is a delete marker, which has no content.
    is_delete_marker: bool,
    /// The time of the write, in UTC.
    modified: SystemTime,
    /// Size in bytes; `None` for a delete marker.
    size: Option<u64>,
    /// The ETag, without quotes; `None` for a delete marker.
    etag: Option<String>,
}

/// The common beginning of several keys, up to the delimiter.
#[pyclass(frozen, get_all, module = "fordway")]
pub(crate) struct CommonPrefix {
    prefix: String,
}

#[pymethods]
impl PyBucketInfo {
    fn __repr__(&self) -> String {
        format!("<Bucket {}>", self.name)
    }
}

#[pymethods]
impl PyObjectSummary {
    fn __repr__(&self) -> String {
        format!("<Object {:?}, {} bytes>", self.key, self.size)
    }
}

#[pymethods]
impl CommonPrefix {
    fn __repr__(&self) -> String {
        format!("<Prefix {:?}>", self.prefix)
    }
}

#[pymethods]
impl PyVersionSummary {
    fn __repr__(&self) -> String {
        let kind = if self.is_delete_marker { "DeleteMarker" } else { "Version" };
        format!("<{kind} {:?}, {}>", self.key, self.version)
    }
}

impl From<fordway_store::VersionSummary> for PyVersionSummary {
    fn from(found: fordway_store::VersionSummary) -> Self {
        let (size, etag) = found.content.map(|(size, etag)| (size, etag.to_string())).unzip();
        PyVersionSummary {
            key: found.key,
            version: found.version.to_string(),
            is_latest: found.is_latest,
            is_delete_marker: size.is_none(),
            modified: found.modified,
            size,
            etag,
        }
    }
}

impl From<fordway_store::BucketInfo> for PyBucketInfo {
    fn from(info: fordway_store::BucketInfo) -> Self {
        PyBucketInfo { name: info.name.to_string(), created: info.created }
    }
}

/// The entries of a listing, fetched one page at a time, on demand.
#[pyclass(name = "Entries", module = "fordway")]
pub(crate) struct EntryIterator {
    store: Arc<dyn fordway_store::Store>,
    bucket: Bucket,
    /// What to ask for next; `None` after the last page.
    query: Option<ListQuery>,
    page: vec::IntoIter<ListEntry>,
}

impl EntryIterator {
    pub(crate) fn new(store: Arc<dyn fordway_store::Store>, bucket: Bucket, query: ListQuery) -> Self {
        EntryIterator { store, bucket, query: Some(query), page: Vec::new().into_iter() }
    }

    /// Returns the next entry, and fetches another page if this one is used up.
    fn advance(&mut self) -> fordway_store::Result<Option<ListEntry>> {
        loop {
            if let Some(entry) = self.page.next() {
                return Ok(Some(entry));
            }
            let Some(mut query) = self.query.take() else { return Ok(None) };
            let listing = self.store.list(&self.bucket, &query)?;
            self.page = listing.entries.into_iter();
            if let Some(next) = listing.next {
                query.start_after = Some(next);
                self.query = Some(query);
            }
        }
    }
}

#[pymethods]
impl EntryIterator {
    fn __iter__(entries: PyRef<'_, Self>) -> PyRef<'_, Self> {
        entries
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        // Most entries are in the page that was fetched last: there is no reason to release the interpreter for them.
        let ready = self.page.next();
        let entry = match ready {
            Some(entry) => Some(entry),
            None => without_interpreter(py, || self.advance())?,
        };
        entry.map(|entry| to_object(py, entry)).transpose()
    }
}

fn to_object(py: Python<'_>, entry: ListEntry) -> PyResult<Py<PyAny>> {
    Ok(match entry {
        ListEntry::CommonPrefix(prefix) => Py::new(py, CommonPrefix { prefix })?.into_any(),
        ListEntry::Object(object) => {
            let (key, size, modified) = (object.key, object.size, object.modified);
            Py::new(py, PyObjectSummary { key, size, etag: object.etag.to_string(), modified })?.into_any()
        }
    })
}

/// The versions of a listing, fetched one page at a time, on demand.
#[pyclass(name = "Versions", module = "fordway")]
pub(crate) struct VersionIterator {
    store: Arc<dyn fordway_store::Store>,
    bucket: Bucket,
    /// What to ask for next; `None` after the last page.
    query: Option<VersionsQuery>,
    page: vec::IntoIter<fordway_store::VersionSummary>,
}

impl VersionIterator {
    pub(crate) fn new(store: Arc<dyn fordway_store::Store>, bucket: Bucket, query: VersionsQuery) -> Self {
        VersionIterator { store, bucket, query: Some(query), page: Vec::new().into_iter() }
    }

    fn advance(&mut self) -> fordway_store::Result<Option<fordway_store::VersionSummary>> {
        loop {
            if let Some(version) = self.page.next() {
                return Ok(Some(version));
            }
            let Some(mut query) = self.query.take() else { return Ok(None) };
            let listing = self.store.list_versions(&self.bucket, &query)?;
            self.page = listing.versions.into_iter();
            if let Some((key, version)) = listing.next {
                (query.key_after, query.version_after) = (Some(key), version);
                self.query = Some(query);
            }
        }
    }
}

#[pymethods]
impl VersionIterator {
    fn __iter__(versions: PyRef<'_, Self>) -> PyRef<'_, Self> {
        versions
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<PyVersionSummary>> {
        let ready = self.page.next();
        let version = match ready {
            Some(version) => Some(version),
            None => without_interpreter(py, || self.advance())?,
        };
        Ok(version.map(PyVersionSummary::from))
    }
}

/// The metadata of an object.
#[pyclass(frozen, get_all, name = "ObjectInfo", module = "fordway")]
pub(crate) struct PyObjectInfo {
    /// Size of the whole object, in bytes.
    size: u64,
    /// The ETag, without quotes.
    etag: String,
    /// The time of the last write, in UTC.
    modified: SystemTime,
    /// The Content-Type that its writer stored, or `None`.
    content_type: Option<String>,
    /// The metadata that its writer stored, with names in lower case.
    metadata: BTreeMap<String, String>,
    /// The version ID; `None` if the object was written while the bucket kept no versions.
    version: Option<String>,
    /// The number of tags.
    tag_count: usize,
}

#[pymethods]
impl PyObjectInfo {
    fn __repr__(&self) -> String {
        format!("<ObjectInfo {} bytes, ETag {}>", self.size, self.etag)
    }
}

impl From<fordway_store::ObjectInfo> for PyObjectInfo {
    fn from(info: fordway_store::ObjectInfo) -> Self {
        let metadata = info.metadata.into_inner();
        PyObjectInfo {
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
