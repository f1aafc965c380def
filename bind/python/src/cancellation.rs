//! Ends calls whose callers no longer wait for them. `fordway.aio` runs each call on a thread, with a token. When the
//! caller is cancelled, the token is cancelled too, and the call ends at its next wait for a server, or before its next
//! step.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use fordway_store::{Error, ErrorKind, Result};
use pyo3::prelude::*;

use crate::interpreter::to_python;

/// The end time of a call that was not cancelled.
const NEVER: u64 = u64::MAX;

/// The time from which end times are counted.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

thread_local! {
    /// The end time of the call that this thread runs, in milliseconds after [`START`].
    static CURRENT_END_MS: RefCell<Option<Arc<AtomicU64>>> = const { RefCell::new(None) };
}

/// Ends one call early. Used by `fordway.aio`.
#[pyclass(frozen, name = "_CancellationToken", module = "fordway._fordway")]
pub(crate) struct PyCancellationToken {
    /// The time at which the call must end, in milliseconds after [`START`].
    end_ms: Arc<AtomicU64>,
}

#[pymethods]
impl PyCancellationToken {
    #[new]
    fn new() -> Self {
        LazyLock::force(&START);
        PyCancellationToken { end_ms: Arc::new(AtomicU64::new(NEVER)) }
    }

    /// True if `cancel` was called.
    #[getter]
    fn cancelled(&self) -> bool {
        self.end_ms.load(Ordering::Relaxed) != NEVER
    }

    /// Makes the call end after `grace_ms` milliseconds. An earlier end time stays in effect.
    #[pyo3(signature = (grace_ms=0))]
    fn cancel(&self, grace_ms: u64) {
        self.end_ms.fetch_min(now_ms().saturating_add(grace_ms), Ordering::Relaxed);
    }

    /// Returns the result of `call()`. While `call` runs, this token can interrupt its waits.
    ///
    /// Raises `CallInterruptedError` if the token ended a wait. If the token's time has already passed,
    /// raises this error without calling `call`.
    fn run<'py>(&self, py: Python<'py>, call: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        /// Restores the token of the enclosing call, even if `call` panics.
        struct Restore(Option<Arc<AtomicU64>>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CURRENT_END_MS.set(self.0.take());
            }
        }
        let _restore = Restore(CURRENT_END_MS.replace(Some(self.end_ms.clone())));
        check().map_err(|error| to_python(py, &error))?;
        call.call0()
    }
}

fn now_ms() -> u64 {
    let elapsed = Instant::now().saturating_duration_since(*START);
    u64::try_from(elapsed.as_millis()).unwrap_or(NEVER - 1)
}

/// Returns whether the call that this thread runs must end.
pub(crate) fn must_end() -> bool {
    CURRENT_END_MS.with_borrow(|end| {
        end.as_ref().is_some_and(|end| {
            let end = end.load(Ordering::Relaxed);
            end != NEVER && end <= now_ms()
        })
    })
}

/// Errors: `Interrupted` if the call that this thread runs must end.
pub(crate) fn check() -> Result<()> {
    if must_end() { Err(cancelled()) } else { Ok(()) }
}

/// Returns the error of a cancelled call if a token, and not a signal, interrupted the wait. Returns any other error
/// unchanged.
pub(crate) fn explained(error: Error) -> Error {
    if error.kind() == ErrorKind::Interrupted && must_end() { cancelled() } else { error }
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Interrupted, "the call was cancelled, or its store was closed")
}
