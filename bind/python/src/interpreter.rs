//! Releases the GIL during calls, and converts errors to Python exceptions.

use fordway_store::{Error, Result};
use fordway_wire::s3_error::detail;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::{cancellation, signal};

/// Runs `call` without the GIL, so that other Python threads can run. Errors: the error of `call`, or the exception
/// that a signal handler raised during `call`; `Interrupted`, without running `call`, if the token of the thread is
/// cancelled.
pub(crate) fn without_interpreter<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T> + Send,
) -> PyResult<T> {
    // The check is in this closure because dropping `call` unused may also wait for a server.
    let done = py.detach(|| {
        cancellation::check()?;
        call()
    });
    match signal::take_raised() {
        Some(raised) => Err(raised),
        None => done.map_err(|error| to_python(py, &cancellation::explained(error))),
    }
}

/// Drops `value` without the GIL, because dropping a writer or a store may wait for a server.
pub(crate) fn drop_without_interpreter<T: Send>(value: T) {
    // If the interpreter no longer exists, `value` is dropped with this closure.
    let _ = Python::try_attach(move |py| {
        // Python may drop objects while it raises an exception. A signal handler must not see this exception, so it is
        // set aside.
        let raised = PyErr::take(py);
        py.detach(move || drop(value));
        if let Some(raised) = raised {
            raised.restore(py);
        }
    });
}

/// The module and function that create exceptions. They are in Python because exceptions with several base classes can
/// be defined only there.
const FACTORY: (&str, &str) = ("fordway.errors", "exception_for");

static EXCEPTION_FOR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Returns the Python exception for `error`, with its text as the message.
pub(crate) fn to_python(py: Python<'_>, error: &Error) -> PyErr {
    let made = EXCEPTION_FOR.import(py, FACTORY.0, FACTORY.1).and_then(|factory| {
        factory.call1((error.kind().name(), error.to_string(), error.target(), detail(error)))
    });
    made.map_or_else(|failure| failure, PyErr::from_value)
}

/// Returns the exception for `error` as an object, without raising it.
pub(crate) fn raised<'py>(py: Python<'py>, error: &Error) -> Bound<'py, PyAny> {
    to_python(py, error).into_value(py).into_bound(py).into_any()
}
