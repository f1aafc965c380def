//! Ctrl-C during a wait. Python's own signal handler only records the signal; it becomes an exception when the main
//! thread checks for signals. If a signal wakes a call that waits for a server, the call checks, and then ends with
//! that exception.

use std::cell::RefCell;

use pyo3::prelude::*;

thread_local! {
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Makes waits of this process check Python's signals.
pub(crate) fn listen() {
    fordway_sys::ask_after_signals(must_stop);
}

/// Runs Python's handlers of the signals that arrived; returns whether one raised an exception. Always false outside
/// of the main thread, because Python runs handlers only there.
fn must_stop() -> bool {
    let asked = Python::try_attach(|py| match py.check_signals() {
        Ok(()) => false,
        Err(raised) => {
            RAISED.set(Some(raised));
            true
        }
    });
    // Without an interpreter, the result is no longer needed.
    asked.unwrap_or(true)
}

/// The exception that a handler raised during this thread's last call.
pub(crate) fn take_raised() -> Option<PyErr> {
    RAISED.take()
}
