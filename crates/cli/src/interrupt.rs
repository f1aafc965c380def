//! Ctrl-C as a flag that long work looks at, so that temporary things are removed on the way out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fordway_store::{Error, ErrorKind, Result};

/// A request to stop; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Raised by SIGINT, SIGTERM and SIGHUP of this process. A second signal is ignored: the first
    /// stops transfers at their next chunk. Errors: `Internal` when called twice.
    pub fn on_signals() -> Result<Self> {
        let interrupt = Interrupt::default();
        let raised = interrupt.clone();
        ctrlc::set_handler(move || raised.raise())
            .map_err(|error| Error::new(ErrorKind::Internal, "handling signals").caused_by(error))?;
        Ok(interrupt)
    }

    /// Asks everything that shares this flag to stop.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether work must stop.
    pub(crate) fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Errors: `Interrupted` once the flag is up.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_raised() {
            return Err(Error::new(ErrorKind::Interrupted, "stopped by a signal"));
        }
        Ok(())
    }
}
