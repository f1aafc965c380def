//! The `fordway._fordway` module: S3 semantics inside a Python process.
//!
//! Every call that may access a file or a socket releases the GIL during the call, so that other threads can run. The
//! package around this module (`fordway/`) adds the exceptions and the type stubs.

mod argument;
mod buffer;
mod cancellation;
mod content;
mod interpreter;
mod listing;
mod opening;
mod remote;
mod signal;
mod store;
mod stream;
mod upload;
mod writer;

#[global_allocator]
static ALLOCATOR: fordway_sys::HalfPageAllocator = fordway_sys::HalfPageAllocator;

/// S3 semantics over POSIX directories.
#[pyo3::pymodule]
mod _fordway {
    use fordway_store::ErrorKind;
    use fordway_wire::s3_error::{ACCESS_DENIED, ERROR_FACTS, aws_message, to_s3};
    use pyo3::prelude::*;
    use pyo3::types::{PyDict, PyTuple};

    #[pymodule_export]
    use crate::buffer::MappedContent;
    #[pymodule_export]
    use crate::cancellation::PyCancellationToken;
    #[pymodule_export]
    use crate::listing::PyObjectInfo;
    #[pymodule_export]
    use crate::listing::{
        CommonPrefix, EntryIterator, PyBucketInfo, PyDeleteInfo, PyListPage, PyObjectSummary, PyPutInfo,
        PyVersionSummary, VersionIterator,
    };
    #[pymodule_export]
    use crate::opening::open;
    #[pymodule_export]
    use crate::remote::{PyRemoteFile, open_url};
    #[pymodule_export]
    use crate::store::PyStore;
    #[pymodule_export]
    use crate::stream::PyObjectStream;
    #[pymodule_export]
    use crate::upload::{PyPartPage, PyPartSummary, PyUpload, PyUploadPage, PyUploadSummary};
    #[pymodule_export]
    use crate::writer::PyObjectWriter;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let kinds = PyTuple::new(module.py(), ErrorKind::ALL.iter().map(|kind| kind.name()))?;
        module.add("ERROR_KINDS", kinds)?;
        module.add("S3_ERRORS", s3_errors(module.py())?)?;
        module.add("S3_ERROR_FACTS", s3_error_facts(module.py())?)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }

    /// Returns the names of the elements that AWS adds to error documents, for each code that has such elements.
    fn s3_error_facts(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        let facts = PyDict::new(py);
        for (code, names) in ERROR_FACTS {
            facts.set_item(code, PyTuple::new(py, names)?)?;
        }
        Ok(facts)
    }

    /// Returns the status, the code and AWS's message in S3's error responses for each error kind.
    fn s3_errors(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        let errors = PyDict::new(py);
        for kind in ErrorKind::ALL {
            let (status, code) = to_s3(*kind);
            let message = match kind {
                ErrorKind::AccessDenied => Some(ACCESS_DENIED),
                _ => aws_message(code),
            };
            errors.set_item(kind.name(), (status, code, message))?;
        }
        Ok(errors)
    }
}
