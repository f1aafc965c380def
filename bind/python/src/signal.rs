//! Ctrl-C during a wait. Python's own handler of a signal only notes it; what was noted becomes an exception when the
//! main thread asks. A call that waits for a server asks when a signal wakes it up, and then ends with that exception.

use std::cell::RefCell;

use pyo3::prelude::*;

thread_local! {
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Has waits of this process ask Python after signals.
pub(crate) fn listen() {
    fordway_sys::ask_after_signals(must_stop);
}

/// Runs Python's handlers of the signals that came; whether one raised an exception. Always false outside of the main
/// thread, where Python runs no handlers.
fn must_stop() -> bool {
    let asked = Python::try_attach(|py| match py.check_signals() {
        Ok(()) => false,
        Err(raised) => {
            RAISED.set(Some(raised));
            true
        }
    });
    // Without an interpreter nobody wants the answer any more.
    asked.unwrap_or(true)
}

/// The exception that a handler raised during this thread's last call.
pub(crate) fn take_raised() -> Option<PyErr> {
    RAISED.take()
}
