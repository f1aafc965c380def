//! Ctrl-C as a flag that long work looks at, so that temporary things are removed on the way out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fordway_store::{Error, ErrorKind, Result};

/// A request to stop; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Asks everything that shares this flag to stop at its next chunk; answers whether that had
    /// been asked before.
    pub fn raise(&self) -> bool {
        self.0.swap(true, Ordering::Relaxed)
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
