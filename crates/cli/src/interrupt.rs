//! Signals as flags that long work looks at, so that temporary things are removed on the way out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fordway_store::{Error, ErrorKind, Result};

/// A request to stop, and one to read files anew; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    stop: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
}

impl Interrupt {
    /// Asks everything that shares this flag to stop at its next chunk; answers whether that had
    /// been asked before.
    pub fn raise(&self) -> bool {
        self.stop.swap(true, Ordering::Relaxed)
    }

    /// Asks a gateway to read its files anew.
    pub fn ask_for_reload(&self) {
        self.reload.store(true, Ordering::Relaxed);
    }

    /// Whether that was asked since the last call.
    pub(crate) fn takes_reload(&self) -> bool {
        self.reload.swap(false, Ordering::Relaxed)
    }

    /// Whether work must stop.
    pub(crate) fn is_raised(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The flag itself, for what knows nothing of interrupts.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.stop
    }

    /// Errors: `Interrupted` once the flag is up.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_raised() {
            return Err(Error::new(ErrorKind::Interrupted, "stopped by a signal"));
        }
        Ok(())
    }
}
