//! From an error of the store to the exception that Python code catches.

use fordway_store::Error;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

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
