//! The early end of a measurement whose first rounds are complete.

use std::sync::atomic::{AtomicBool, Ordering};

use fordway_store::{Error, ErrorKind};

/// The early end of a measurement: the rounds that were complete, and the reason.
#[derive(Debug)]
pub struct EarlyEnd {
    /// The number of rounds that were complete; only these rounds are in the results.
    pub rounds: u16,
    /// The error that ended the measurement; `Interrupted` after a signal.
    pub error: Error,
}

impl EarlyEnd {
    /// Records that `error` ended the measurement after `rounds` complete rounds. If `stop` is set, the error becomes
    /// `Interrupted`, because operations that a signal disturbs may fail with any error.
    pub fn new(rounds: u16, error: Error, stop: &AtomicBool) -> Self {
        let is_consequence = stop.load(Ordering::Relaxed) && error.kind() != ErrorKind::Interrupted;
        let error = match is_consequence {
            true => Error::new(ErrorKind::Interrupted, format!("stopped by a signal, then: {error}")),
            false => error,
        };
        EarlyEnd { rounds, error }
    }

    /// Returns the warning for a measurement with `planned` rounds.
    pub fn warning(&self, planned: u16) -> String {
        let EarlyEnd { rounds, error } = self;
        format!(
            "interrupted after {rounds} of {planned} rounds: the results cover these rounds only; the reason: {error}"
        )
    }
}
