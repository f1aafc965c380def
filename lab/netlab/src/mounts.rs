//! Files that only the programs of a set-up see.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use fordway_store::Result;

use crate::namespace::{in_a_thread, refused};

/// A mount namespace whose `/run` is empty and in memory: programs keep their sockets, databases and
/// process numbers there, and none of it outlives this process, whatever way that ends. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Mounts(Arc<OwnedFd>);

impl Mounts {
    /// Where set-ups write their own files, within.
    pub const SCRATCH: &str = "/run/fordway";

    /// Makes one. Errors: `NotImplemented` where this process may not.
    pub fn new() -> Result<Self> {
        let made = in_a_thread(|| {
            let made = fordway_sys::new_mount_namespace(c"/run")?;
            std::fs::create_dir(Self::SCRATCH)?;
            Ok(made)
        })?;
        let descriptor = made.map_err(|error| refused("making a mount namespace", error))?;
        Ok(Mounts(Arc::new(descriptor)))
    }

    /// Puts the calling thread, and no other, into it, for good.
    pub(crate) fn enter(&self) -> Result<()> {
        let here = std::env::current_dir();
        fordway_sys::enter_mount_namespace(&*self.0)
            .map_err(|error| refused("entering a mount namespace", error))?;
        // Where the directory is hidden, the root will do.
        let _ = std::env::set_current_dir(here.as_deref().unwrap_or(Path::new("/")));
        Ok(())
    }

    /// Does `work` in a thread of its own that sees the files within.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        in_a_thread(|| self.enter().map(|()| work()))?
    }
}
