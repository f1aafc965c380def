//! Multipart uploads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use fordway_store::{
    Bucket, ChecksumAlgorithm, ChecksumAlgorithmAndType, CompleteOptions, CompletedPart, ETag, Error,
    ErrorKind, ExpectedContent, Key, MAX_KEYS, PartInfo, PartListing, PartOptions, PartsQuery, PutOptions,
    Result, Store, UploadId, UploadPage, UploadSummary, UploadsQuery, Writer,
};
use fordway_sys::ProcessIdentity;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::argument::{
    ByteCount, PartNumber, ReadArguments, StartOffset, checksum_algorithm, conditions, part_marker,
};
use crate::content::{held_bytes, pieces, write_pieces};
use crate::interpreter::{drop_without_interpreter, to_python, without_interpreter};
use crate::listing::PyPutInfo;

/// An object that is uploaded in parts, and becomes visible as a whole when it is completed.
///
/// Threads may share an upload. As a context manager, an upload is completed at the end of its block. It is
/// aborted if the block raises or the completion fails, for example because a part is missing. If the block
/// itself completed or aborted the upload, the end of the block has no effect. It also has no effect in a
/// child that inherited the upload by a fork.
#[pyclass(frozen, name = "Upload", module = "fordway")]
pub(crate) struct PyUpload {
    store: Arc<dyn Store>,
    bucket: Bucket,
    key: Key,
    id: UploadId,
    /// A forked child that leaves the block of its parent's upload neither completes nor aborts the upload.
    begun_by: ProcessIdentity,
    /// The progress. The lock is held only while the GIL is held, so that a fork never copies a locked lock.
    progress: Mutex<UploadProgress>,
}

/// The state of the calls that were made through this object. Calls of other clients are not included.
#[derive(Default)]
struct UploadProgress {
    /// The number of calls that are sending each part.
    sending: BTreeMap<u16, usize>,
    /// Parts whose latest call failed.
    failed: BTreeSet<u16>,
    /// Whether the upload has been completed or aborted.
    is_over: bool,
}

impl UploadProgress {
    /// Checks that all parts have been sent. Errors: `InvalidPart` if a part is still being sent, or failed.
    fn check_finished(&self) -> Result<()> {
        let unfinished: BTreeSet<u16> = self.failed.iter().chain(self.sending.keys()).copied().collect();
        if unfinished.is_empty() {
            return Ok(());
        }
        let why = format!(
            "parts {unfinished:?} are still being sent or failed; send them again, or name the parts to publish"
        );
        Err(Error::new(ErrorKind::InvalidPart, why))
    }
}

impl PyUpload {
    /// Starts an upload. Errors: `NoSuchBucket`.
    pub(crate) fn begin(
        store: Arc<dyn Store>,
        bucket: String,
        key: String,
        options: &PutOptions,
    ) -> Result<Self> {
        let (bucket, key) = (Bucket::new(bucket)?, Key::new(key)?);
        let id = store.create_upload(&bucket, &key, options)?;
        Ok(PyUpload::new(store, (bucket, key), id))
    }

    /// Returns an upload that was started earlier. Errors: the name of the bucket or the key is invalid.
    pub(crate) fn resume(store: Arc<dyn Store>, bucket: String, key: String, id: String) -> Result<Self> {
        let (bucket, key, id) = (Bucket::new(bucket)?, Key::new(key)?, UploadId::foreign(id));
        Ok(PyUpload::new(store, (bucket, key), id))
    }

    fn new(store: Arc<dyn Store>, (bucket, key): (Bucket, Key), id: UploadId) -> Self {
        PyUpload { store, bucket, key, id, begun_by: ProcessIdentity::current(), progress: Mutex::default() }
    }

    fn progress(&self) -> MutexGuard<'_, UploadProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `send`, and records whether part `number` is being sent or has failed. The type of the number ensures that
    /// a part that cannot exist is never recorded.
    fn noting_part(
        &self,
        PartNumber(number): PartNumber,
        send: impl FnOnce() -> PyResult<PyPutInfo>,
    ) -> PyResult<PyPutInfo> {
        *self.progress().sending.entry(number).or_default() += 1;
        let sent = send();
        let mut progress = self.progress();
        if let Some(calls) = progress.sending.get_mut(&number) {
            *calls -= 1;
            if *calls == 0 {
                progress.sending.remove(&number);
            }
        }
        match &sent {
            Ok(_) => progress.failed.remove(&number),
            Err(_) => progress.failed.insert(number),
        };
        sent
    }

    fn part_writer(
        &self,
        PartNumber(number): PartNumber,
        checksum: Option<ChecksumAlgorithm>,
        size_hint: Option<u64>,
    ) -> Result<Box<dyn Writer>> {
        let options = PartOptions { checksum, size_hint, ..PartOptions::default() };
        self.store.part_writer(&self.bucket, &self.key, &self.id, number, &options)
    }

    fn all_parts(&self) -> Result<Vec<PartInfo>> {
        let mut parts: Vec<PartInfo> = Vec::new();
        loop {
            let after = parts.last().map_or(0, |part| part.number);
            let query = PartsQuery { after, ..PartsQuery::default() };
            let page = self.store.list_parts(&self.bucket, &self.key, &self.id, &query)?;
            let is_last = !page.truncated || page.parts.is_empty();
            parts.extend(page.parts);
            if is_last {
                return Ok(parts);
            }
        }
    }

    /// Publishes the object that consists of `parts`, or of all parts if `parts` is `None`.
    fn publish(
        &self,
        parts: Option<Vec<(PartNumber, String)>>,
        options: &CompleteOptions,
    ) -> Result<PyPutInfo> {
        let parts: Vec<CompletedPart> = match parts {
            Some(parts) => {
                let chosen = |(PartNumber(number), etag): (PartNumber, String)| {
                    CompletedPart::new(number, ETag::new(&etag))
                };
                parts.into_iter().map(chosen).collect()
            }
            None => {
                let chosen = |part: PartInfo| CompletedPart {
                    number: part.number,
                    etag: part.etag,
                    checksum: part.checksum,
                };
                self.all_parts()?.into_iter().map(chosen).collect()
            }
        };
        let done = self.store.complete_upload(&self.bucket, &self.key, &self.id, &parts, options)?;
        Ok(PyPutInfo::from(done))
    }

    /// Aborts the upload because of `error`, which is an exception or Python's `None`. A failure to abort is added to
    /// the exception as a note, so that it does not replace the exception.
    fn abort_after(&self, py: Python<'_>, error: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Err(left) = self.abort(py)
            && !error.is_none()
        {
            let note = format!("upload {} is not aborted: {left}", self.id.as_str());
            error.call_method1("add_note", (note,))?;
        }
        Ok(())
    }
}

#[pymethods]
impl PyUpload {
    /// The ID, which `Store.resume_upload` accepts.
    #[getter]
    fn id(&self) -> &str {
        self.id.as_str()
    }

    /// The bucket.
    #[getter]
    fn bucket(&self) -> String {
        self.bucket.to_string()
    }

    /// The key.
    #[getter]
    fn key(&self) -> String {
        self.key.to_string()
    }

    /// Sends a buffer as part `number` (1 to 10,000), replacing any part with that number.
    ///
    /// `data` may also be a binary file or an iterable of buffers, as for `Store.put`. Only the `http` lane
    /// keeps the whole part in memory. Every part except the last must be at least 5 MiB. `checksum` is the
    /// algorithm of the returned checksum, by default the upload's. Raises `NotFoundError` if the upload is
    /// completed or aborted, and `InvalidArgumentError` if the upload has another algorithm.
    #[pyo3(signature = (number, data, *, checksum=None))]
    fn put_part(
        &self,
        py: Python<'_>,
        number: PartNumber,
        data: Bound<'_, PyAny>,
        checksum: Option<&str>,
    ) -> PyResult<PyPutInfo> {
        self.noting_part(number, || {
            let checksum =
                checksum.map(checksum_algorithm).transpose().map_err(|error| to_python(py, &error))?;
            let Some(pieces) = pieces(&data)? else {
                let bytes = held_bytes(py, data)?;
                return without_interpreter(py, || {
                    let mut writer = self.part_writer(number, checksum, Some(bytes.len() as u64))?;
                    writer.write(&bytes)?;
                    writer.commit(&ExpectedContent::default()).map(PyPutInfo::from)
                });
            };
            let mut writer = without_interpreter(py, || self.part_writer(number, checksum, None))?;
            if let Err(error) = write_pieces(py, &mut *writer, pieces) {
                drop_without_interpreter(writer);
                return Err(error);
            }
            without_interpreter(py, || writer.commit(&ExpectedContent::default()).map(PyPutInfo::from))
        })
    }

    /// Fills part `number` from an object of the store, or from `length` bytes of it from byte `start`.
    ///
    /// `if_match` is the ETag that the source must have. On the `node` and `http` lanes, the content does not
    /// pass through this process. Raises `NotFoundError`, `PreconditionFailedError`, `InvalidArgumentError`.
    #[pyo3(signature = (number, source_bucket, source_key, *, start=None, length=None, version=None, if_match=None))]
    #[allow(clippy::too_many_arguments, reason = "they are Python's keyword arguments")]
    fn copy_part(
        &self,
        py: Python<'_>,
        number: PartNumber,
        source_bucket: String,
        source_key: String,
        start: Option<ByteCount>,
        length: Option<ByteCount>,
        version: Option<String>,
        if_match: Option<&str>,
    ) -> PyResult<PyPutInfo> {
        let copy = || {
            let start = start.map(|start| StartOffset::FromStart(start.0));
            let options =
                ReadArguments { start, length, version, if_match, if_none_match: None }.options()?;
            let source = (&Bucket::new(source_bucket)?, &Key::new(source_key)?);
            let part = (&self.bucket, &self.key, &self.id, number.0);
            self.store.copy_part(source, &options, part).map(PyPutInfo::from)
        };
        self.noting_part(number, || without_interpreter(py, copy))
    }

    /// Returns the parts sent so far, ordered by number.
    fn parts(&self, py: Python<'_>) -> PyResult<Vec<PyPartSummary>> {
        let parts = without_interpreter(py, || self.all_parts())?;
        Ok(parts.into_iter().map(PyPartSummary::from).collect())
    }

    /// Returns one page of `parts`: at most `limit` parts (up to 1,000) numbered above `after`.
    #[pyo3(signature = (after=0, *, limit=MAX_KEYS))]
    fn parts_page(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = part_marker)] after: u16,
        limit: usize,
    ) -> PyResult<PyPartPage> {
        let page = without_interpreter(py, || {
            check_limit(limit)?;
            let query = PartsQuery { after, max_parts: limit };
            self.store.list_parts(&self.bucket, &self.key, &self.id, &query)
        })?;
        PyPartPage::new(py, page)
    }

    /// Publishes the object from `parts`, pairs of number and ETag in ascending order (default: all).
    ///
    /// Conditions are as for `Store.put`. Raises `PreconditionFailedError`, `NotFoundError`, and
    /// `InvalidArgumentError` for a part that is missing, too small or out of order. Without `parts`, the
    /// call also raises `InvalidArgumentError` while a part is being sent, and after a part has failed.
    #[pyo3(signature = (parts=None, *, if_none_match=None, if_match=None))]
    fn complete(
        &self,
        py: Python<'_>,
        parts: Option<Vec<(PartNumber, String)>>,
        if_none_match: Option<&str>,
        if_match: Option<&str>,
    ) -> PyResult<PyPutInfo> {
        let options = CompleteOptions::conditions(conditions(if_match, if_none_match));
        if parts.is_none() {
            self.progress().check_finished().map_err(|error| to_python(py, &error))?;
        }
        let made = without_interpreter(py, || self.publish(parts, &options))?;
        self.progress().is_over = true;
        Ok(made)
    }

    /// Removes the upload and its parts. Raises `NotFoundError` if the upload is already completed or
    /// aborted.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        without_interpreter(py, || self.store.abort_upload(&self.bucket, &self.key, &self.id))?;
        self.progress().is_over = true;
        Ok(())
    }

    fn __enter__(upload: PyRef<'_, Self>) -> PyRef<'_, Self> {
        upload
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if self.progress().is_over || !self.begun_by.is_current() {
            return Ok(());
        }
        if !kind.is_none() {
            return self.abort_after(py, error);
        }
        self.complete(py, None, None, None).map(drop).or_else(|failure| {
            self.abort_after(py, failure.value(py))?;
            Err(failure)
        })
    }

    /// Completes the upload, unless it is already completed or aborted. Used by `fordway.aio`, which
    /// aborts the upload in another call if the completion fails.
    fn _complete_if_open(&self, py: Python<'_>) -> PyResult<()> {
        if self.progress().is_over {
            return Ok(());
        }
        self.complete(py, None, None, None).map(drop)
    }

    fn __repr__(&self) -> String {
        format!("<Upload {} of s3://{}/{}>", self.id.as_str(), self.bucket, self.key)
    }
}

/// A checksum: the algorithm (`"CRC32"`, ...) and the value in base64.
type ChecksumText = (&'static str, String);

/// The algorithm of the checksums of an upload, and their type: `"COMPOSITE"` or `"FULL_OBJECT"`.
type ChecksumFormatText = (&'static str, &'static str);

fn format_text(format: ChecksumAlgorithmAndType) -> ChecksumFormatText {
    (format.algorithm.name(), format.kind.name())
}

/// A part of an upload.
#[pyclass(frozen, get_all, name = "PartSummary", module = "fordway")]
pub(crate) struct PyPartSummary {
    /// The number, 1 to 10,000.
    number: u16,
    /// Size in bytes.
    size: u64,
    /// The ETag, without quotes.
    etag: String,
    /// The time of its arrival, in UTC.
    modified: SystemTime,
    /// The checksum of the part, as algorithm (`"CRC32"`, ...) and base64; or `None`.
    checksum: Option<ChecksumText>,
}

impl From<PartInfo> for PyPartSummary {
    fn from(part: PartInfo) -> Self {
        let (number, size, modified) = (part.number, part.size, part.modified);
        let checksum = part.checksum.map(|checksum| (checksum.algorithm.name(), checksum.to_base64()));
        PyPartSummary { number, size, etag: part.etag.to_string(), modified, checksum }
    }
}

/// One page of the parts of an upload.
#[pyclass(frozen, get_all, name = "PartPage", module = "fordway")]
pub(crate) struct PyPartPage {
    /// The parts, ordered by number.
    parts: Py<PyList>,
    /// Whether there are more parts.
    is_truncated: bool,
    /// The algorithm and type of the checksums that the upload was begun with; or `None`.
    checksum: Option<ChecksumFormatText>,
}

impl PyPartPage {
    fn new(py: Python<'_>, page: PartListing) -> PyResult<Self> {
        let parts = page.parts.into_iter().map(|part| Py::new(py, PyPartSummary::from(part)));
        let parts = PyList::new(py, parts.collect::<PyResult<Vec<_>>>()?)?.unbind();
        Ok(PyPartPage { parts, is_truncated: page.truncated, checksum: page.checksum.map(format_text) })
    }
}

/// An upload in progress.
#[pyclass(frozen, get_all, name = "UploadSummary", module = "fordway")]
pub(crate) struct PyUploadSummary {
    key: String,
    /// The ID, for `Store.resume_upload`.
    id: String,
    /// The time of its start, in UTC.
    started: SystemTime,
    /// The algorithm and type of the checksums that the upload was begun with; or `None`.
    checksum: Option<ChecksumFormatText>,
}

impl From<UploadSummary> for PyUploadSummary {
    fn from(upload: UploadSummary) -> Self {
        PyUploadSummary {
            id: upload.upload.as_str().to_owned(),
            key: upload.key,
            started: upload.started,
            checksum: upload.checksum.map(format_text),
        }
    }
}

/// One page of the uploads in progress.
#[pyclass(frozen, get_all, name = "UploadPage", module = "fordway")]
pub(crate) struct PyUploadPage {
    /// The uploads whose keys have no common prefix, ordered by key.
    uploads: Py<PyList>,
    /// The common prefixes of keys, in byte order.
    prefixes: Vec<String>,
    /// The `after` of the next page; `None` on the last page.
    next: Option<(String, String)>,
}

impl PyUploadPage {
    pub(crate) fn new(py: Python<'_>, page: UploadPage) -> PyResult<Self> {
        let uploads = page.uploads.into_iter().map(|upload| Py::new(py, PyUploadSummary::from(upload)));
        let uploads = PyList::new(py, uploads.collect::<PyResult<Vec<_>>>()?)?.unbind();
        let next = page.next.map(|(key, upload)| (key, upload.as_str().to_owned()));
        Ok(PyUploadPage { uploads, prefixes: page.prefixes, next })
    }
}

/// Errors: `InvalidArgument` for a page of more than 1,000 entries.
pub(crate) fn check_limit(limit: usize) -> Result<()> {
    if limit <= MAX_KEYS {
        return Ok(());
    }
    let why = format!("a limit of {limit}; a page can have up to {MAX_KEYS} entries");
    Err(Error::new(ErrorKind::InvalidArgument, why))
}

/// Returns all uploads in progress for keys that start with `prefix`. Errors: `NoSuchBucket`.
pub(crate) fn list(store: &dyn Store, bucket: &Bucket, prefix: &str) -> Result<Vec<PyUploadSummary>> {
    let mut query = UploadsQuery { prefix: prefix.to_owned(), ..UploadsQuery::default() };
    let mut found = Vec::new();
    loop {
        let page = store.list_uploads(bucket, &query)?;
        let Some(last) = page.uploads.last() else { return Ok(found) };
        (query.key_after, query.upload_after) =
            (Some(last.key.clone()), Some(last.upload.as_str().to_owned()));
        found.extend(page.uploads.into_iter().map(PyUploadSummary::from));
        if !page.truncated {
            return Ok(found);
        }
    }
}
