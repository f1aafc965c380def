//! Signals as flags that long work looks at, so that temporary things are removed on the way out.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fordway_store::{Error, ErrorKind, Result};

/// A request to stop; clones share it.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<State>);

#[derive(Default)]
struct State {
    is_raised: AtomicBool,
    on_hang_up: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Interrupt {
    /// Asks everything that shares this flag to stop at its next chunk; answers whether that had
    /// been asked before.
    pub fn raise(&self) -> bool {
        self.0.is_raised.swap(true, Ordering::Relaxed)
    }

    /// Whether work must stop.
    pub(crate) fn is_raised(&self) -> bool {
        self.0.is_raised.load(Ordering::Relaxed)
    }

    /// The flag itself, for what knows nothing of interrupts.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.0.is_raised
    }

    /// Errors: `Interrupted` once the flag is up.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_raised() {
            return Err(Error::new(ErrorKind::Interrupted, "stopped by a signal"));
        }
        Ok(())
    }
    /// From now on a hang-up is no request to stop, but calls `reload`, on another thread.
    pub(crate) fn on_hang_up(&self, reload: impl Fn() + Send + 'static) {
        *self.0.on_hang_up.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(reload));
    }

    /// The terminal is gone, or a daemon is to read its files again (SIGHUP); answers whether
    /// something took it for that.
    pub fn hang_up(&self) -> bool {
        let reload = self.0.on_hang_up.lock().unwrap_or_else(PoisonError::into_inner);
        reload.as_ref().map(|reload| reload()).is_some()
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Interrupt").field(&self.is_raised()).finish()
    }
}
