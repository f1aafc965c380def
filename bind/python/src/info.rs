//! An object as Python sees it.

use std::collections::BTreeMap;
use std::time::SystemTime;

use pyo3::prelude::*;

/// What is known of an object without reading it.
#[pyclass(frozen, get_all, module = "fordway")]
pub(crate) struct ObjectInfo {
    /// Bytes in the whole object.
    size: u64,
    /// Its entity tag, without quotes.
    etag: String,
    /// When it was last written, in UTC.
    modified: SystemTime,
    /// What its writer said it is; `None` if nothing.
    content_type: Option<String>,
    /// The writer's own names and values; names in lower case.
    metadata: BTreeMap<String, String>,
    /// Which version it is; `None` for one that was written while the bucket kept none.
    version: Option<String>,
    /// How many tags it has.
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
