//! Buckets, objects and entries as seen from Python, and the iterators that fetch pages.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use std::vec;

use fordway_store::{
    Bucket, DeleteResult, ListEntry, ListQuery, ObjectListing, PutResult, Result, VersionsQuery,
};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::interpreter::without_interpreter;

/// A bucket.
#[pyclass(frozen, get_all, name = "BucketInfo", module = "fordway")]
pub(crate) struct PyBucketInfo {
    name: String,
    /// The time of creation, in UTC; 1970-01-01 if the time is unknown.
    created: SystemTime,
}

/// An object in a listing.
#[pyclass(frozen, get_all, name = "ObjectSummary", module = "fordway")]
pub(crate) struct PyObjectSummary {
    key: String,
    /// Size in bytes.
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
    /// The version ID; `"null"` if the version was written while the bucket kept no versions.
    version: String,
    /// True for the latest version, which calls use by default.
    is_latest: bool,
    /// True for a delete marker, which has no content.
    is_delete_marker: bool,
    /// The time of the write, in UTC.
    modified: SystemTime,
    /// Size in bytes; `None` for a delete marker.
    size: Option<u64>,
    /// The ETag, without quotes; `None` for a delete marker.
    etag: Option<String>,
}

/// The result of a put.
#[pyclass(frozen, get_all, name = "PutInfo", module = "fordway")]
pub(crate) struct PyPutInfo {
    /// The ETag, without quotes.
    etag: String,
    /// The version ID of the new object; `None` if the bucket never kept versions.
    version: Option<String>,
    /// The time of its publication, in UTC.
    modified: SystemTime,
    /// The requested checksum in base64, or `None`.
    checksum: Option<String>,
}

impl From<PutResult> for PyPutInfo {
    fn from(done: PutResult) -> Self {
        PyPutInfo {
            etag: done.etag.to_string(),
            version: done.version.map(|version| version.to_string()),
            modified: done.modified,
            checksum: done.checksum.map(|checksum| checksum.to_base64()),
        }
    }
}

#[pymethods]
impl PyPutInfo {
    fn __repr__(&self) -> String {
        format!("<PutInfo, ETag {}>", self.etag)
    }
}

/// The result of a delete in a bucket that keeps versions.
#[pyclass(frozen, get_all, name = "DeleteInfo", module = "fordway")]
pub(crate) struct PyDeleteInfo {
    /// The ID of the removed version, or of the new delete marker.
    version: String,
    /// Whether `version` is a delete marker.
    is_delete_marker: bool,
}

impl PyDeleteInfo {
    pub(crate) fn new(done: DeleteResult) -> Option<Self> {
        let version = done.version?.to_string();
        Some(PyDeleteInfo { version, is_delete_marker: done.is_marker })
    }
}

#[pymethods]
impl PyDeleteInfo {
    fn __repr__(&self) -> String {
        format!("<DeleteInfo {}>", self.version)
    }
}

/// One page of a listing.
#[pyclass(frozen, get_all, name = "ListPage", module = "fordway")]
pub(crate) struct PyListPage {
    /// Objects and common prefixes, in byte order of their names.
    entries: Py<PyList>,
    /// The `start_after` of the next page; `None` on the last page.
    next: Option<String>,
}

impl PyListPage {
    pub(crate) fn new(py: Python<'_>, listing: ObjectListing) -> PyResult<Self> {
        let entries = listing.entries.into_iter().map(|entry| to_object(py, entry));
        let entries = PyList::new(py, entries.collect::<PyResult<Vec<_>>>()?)?.unbind();
        Ok(PyListPage { entries, next: listing.next })
    }
}

#[pymethods]
impl PyListPage {
    fn __repr__(&self, py: Python<'_>) -> String {
        format!("<ListPage of {} entries>", self.entries.bind(py).len())
    }
}

/// The common prefix of one or more keys, up to and including the delimiter.
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

/// A listing that is fetched one page at a time, on demand. Threads may share it: each entry is returned once.
struct SharedListing<Q, E> {
    /// The lock is held only while the GIL is held, so that a fork never copies a locked lock. Pages are therefore
    /// fetched without the lock. Two threads may fetch the same page, but only one thread stores the page.
    position: Mutex<ListingPosition<Q, E>>,
}

#[derive(Clone)]
struct ListingPosition<Q, E> {
    /// The next request, or `None` after the last page.
    query: Option<Q>,
    page: vec::IntoIter<E>,
    /// The number of changes so far. A thread compares this number to detect that another thread has read the listing.
    changes: u64,
}

impl<Q: Clone + Send + Sync, E: Send> SharedListing<Q, E> {
    fn new(query: Q) -> Self {
        let position = ListingPosition { query: Some(query), page: Vec::new().into_iter(), changes: 0 };
        SharedListing { position: Mutex::new(position) }
    }

    fn locked(&self) -> MutexGuard<'_, ListingPosition<Q, E>> {
        self.position.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next entry. If the current page has no more entries, calls `fetch`, which returns the next page and
    /// the query for the following page. After an error, the next call requests the same page again.
    fn next(
        &self,
        py: Python<'_>,
        fetch: impl Fn(&Q) -> Result<(Vec<E>, Option<Q>)> + Sync,
    ) -> PyResult<Option<E>> {
        loop {
            let (query, changes) = {
                let mut position = self.locked();
                // Usually, the page has an entry, and the GIL does not need to be released.
                if let Some(entry) = position.page.next() {
                    position.changes += 1;
                    return Ok(Some(entry));
                }
                let Some(query) = position.query.clone() else { return Ok(None) };
                (query, position.changes)
            };
            let (entries, query) = without_interpreter(py, || fetch(&query))?;
            self.replace(changes, ListingPosition { query, page: entries.into_iter(), changes });
        }
    }

    /// Sets the position, unless there were changes after `changes`. Returns whether the position was set.
    fn replace(&self, changes: u64, next: ListingPosition<Q, E>) -> bool {
        let mut position = self.locked();
        let is_unchanged = position.changes == changes;
        if is_unchanged {
            *position = ListingPosition { changes: changes + 1, ..next };
        }
        is_unchanged
    }
}

/// The entries of a listing, fetched one page at a time, on demand.
///
/// Threads may share the iterator: each entry is returned once.
#[pyclass(frozen, name = "Entries", module = "fordway")]
pub(crate) struct EntryIterator {
    store: Arc<dyn fordway_store::Store>,
    bucket: Bucket,
    listing: SharedListing<ListQuery, ListEntry>,
}

impl EntryIterator {
    pub(crate) fn new(store: Arc<dyn fordway_store::Store>, bucket: Bucket, query: ListQuery) -> Self {
        EntryIterator { store, bucket, listing: SharedListing::new(query) }
    }

    /// Returns the entries of the page that `query` requests, and the query for the next page.
    fn page(&self, query: &ListQuery) -> Result<(Vec<ListEntry>, Option<ListQuery>)> {
        let listing = self.store.list(&self.bucket, query)?;
        let next = listing.next.map(|next| ListQuery { start_after: Some(next), ..query.clone() });
        Ok((listing.entries, next))
    }

    /// Returns the columns of the entries from a position to the end.
    fn columns(&self, position: ListingPosition<ListQuery, ListEntry>) -> Result<EntryColumns> {
        let mut columns = EntryColumns::default();
        position.page.for_each(|entry| columns.push(entry));
        let mut query = position.query;
        while let Some(wanted) = query {
            let (entries, next) = self.page(&wanted)?;
            entries.into_iter().for_each(|entry| columns.push(entry));
            query = next;
        }
        Ok(columns)
    }
}

/// The entries of a listing as columns. Fields that a common prefix does not have are `None`.
#[derive(Default)]
struct EntryColumns {
    keys: Vec<String>,
    sizes: Vec<Option<u64>>,
    etags: Vec<Option<String>>,
    modified_ns: Vec<Option<i128>>,
}

impl EntryColumns {
    fn push(&mut self, entry: ListEntry) {
        let (key, object) = match entry {
            ListEntry::CommonPrefix(prefix) => (prefix, None),
            ListEntry::Object(object) => {
                (object.key, Some((object.size, object.etag.to_string(), since_epoch_ns(object.modified))))
            }
        };
        self.keys.push(key);
        self.sizes.push(object.as_ref().map(|object| object.0));
        self.modified_ns.push(object.as_ref().map(|object| object.2));
        self.etags.push(object.map(|object| object.1));
    }
}

fn since_epoch_ns(time: SystemTime) -> i128 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_nanos().cast_signed(),
        Err(before) => -before.duration().as_nanos().cast_signed(),
    }
}

#[pymethods]
impl EntryIterator {
    fn __iter__(entries: PyRef<'_, Self>) -> PyRef<'_, Self> {
        entries
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let entry = self.listing.next(py, |query| self.page(query))?;
        entry.map(|entry| to_object(py, entry)).transpose()
    }

    /// Returns all further entries as a `pyarrow.Table`: `key`, `size`, `etag` and `modified`.
    ///
    /// In the row of a common prefix, only `key` is set. Needs pyarrow.
    ///
    /// Raises `RuntimeError` if another thread reads the listing meanwhile.
    #[allow(
        clippy::wrong_self_convention,
        reason = "the name that other libraries use; it exhausts the iterator"
    )]
    fn to_arrow<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let table = py.import("fordway.arrow")?.getattr("listing_table")?;
        let start = self.listing.locked().clone();
        let end = ListingPosition { query: None, page: Vec::new().into_iter(), changes: start.changes };
        // After an error, the position is unchanged, so that the next call also returns these entries.
        let columns = without_interpreter(py, || self.columns(start))?;
        if !self.listing.replace(end.changes, end) {
            return Err(PyRuntimeError::new_err(
                "another thread has read this listing meanwhile; give each thread its own",
            ));
        }
        table.call1((columns.keys, columns.sizes, columns.etags, columns.modified_ns))
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
///
/// Threads may share the iterator: each version is returned once.
#[pyclass(frozen, name = "Versions", module = "fordway")]
pub(crate) struct VersionIterator {
    store: Arc<dyn fordway_store::Store>,
    bucket: Bucket,
    listing: SharedListing<VersionsQuery, fordway_store::VersionSummary>,
}

impl VersionIterator {
    pub(crate) fn new(store: Arc<dyn fordway_store::Store>, bucket: Bucket, query: VersionsQuery) -> Self {
        VersionIterator { store, bucket, listing: SharedListing::new(query) }
    }

    /// Returns the versions of the page that `query` requests, and the query for the next page.
    fn page(
        &self,
        query: &VersionsQuery,
    ) -> Result<(Vec<fordway_store::VersionSummary>, Option<VersionsQuery>)> {
        let listing = self.store.list_versions(&self.bucket, query)?;
        let next = listing.next.map(|(key, version)| VersionsQuery {
            key_after: Some(key),
            version_after: version,
            ..query.clone()
        });
        Ok((listing.versions, next))
    }
}

#[pymethods]
impl VersionIterator {
    fn __iter__(versions: PyRef<'_, Self>) -> PyRef<'_, Self> {
        versions
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<PyVersionSummary>> {
        let version = self.listing.next(py, |query| self.page(query))?;
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
    /// Other headers that its writer stored, such as `content-encoding`, with names in lower case.
    headers: BTreeMap<&'static str, String>,
    /// The checksum that its writer sent, as algorithm (`"CRC32"`, ...) and base64; or `None`.
    checksum: Option<(&'static str, String)>,
    /// The number of parts of its upload; `None` if the object was put as a whole.
    part_count: Option<u16>,
    /// The retention of this version, as mode (`"GOVERNANCE"` or `"COMPLIANCE"`) and the time at which it
    /// ends, which may be past; or `None`.
    retention: Option<(&'static str, SystemTime)>,
    /// Whether this version has a legal hold; `None` if the hold was never set.
    legal_hold: Option<bool>,
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
        let checksum = info.checksum.map(|checksum| (checksum.algorithm.name(), checksum.to_base64()));
        let others = [
            ("cache-control", metadata.cache_control),
            ("content-disposition", metadata.content_disposition),
            ("content-encoding", metadata.content_encoding),
            ("content-language", metadata.content_language),
            ("expires", metadata.expires),
        ];
        PyObjectInfo {
            headers: others.into_iter().filter_map(|(name, value)| Some((name, value?))).collect(),
            checksum,
            part_count: info.part_count,
            size: info.size,
            etag: info.etag.to_string(),
            modified: info.modified,
            content_type: metadata.content_type,
            metadata: metadata.user,
            version: info.version.map(|version| version.to_string()),
            tag_count: info.tag_count,
            retention: info.lock.retention.map(|retention| (retention.mode.name(), retention.until())),
            legal_hold: info.lock.legal_hold,
        }
    }
}
