//! Handles Ctrl-C during a wait. Python's own signal handler only records the signal. The signal becomes an exception
//! when the main thread checks for signals. If a signal wakes a call that is waiting for a server, the call checks for
//! signals. If a handler raised an exception, the call ends with this exception.

use std::cell::RefCell;

use pyo3::prelude::*;

use crate::cancellation;

thread_local! {
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Makes this process check for Python's signals whenever a signal interrupts a wait.
pub(crate) fn listen() {
    fordway_sys::ask_after_signals(must_stop);
}

/// Runs Python's handlers for the signals that have arrived. Returns whether a handler raised an exception, or the
/// token of this thread's call is cancelled. No handler runs outside the main thread, because Python runs handlers only
/// in the main thread.
fn must_stop() -> bool {
    if cancellation::must_end() {
        return true;
    }
    let asked = Python::try_attach(|py| match py.check_signals() {
        Ok(()) => false,
        Err(raised) => {
            RAISED.set(Some(raised));
            true
        }
    });
    // If the interpreter no longer exists, the result is not needed.
    asked.unwrap_or(true)
}

/// Removes and returns the exception that a handler raised during this thread's last call.
pub(crate) fn take_raised() -> Option<PyErr> {
    RAISED.take()
}
