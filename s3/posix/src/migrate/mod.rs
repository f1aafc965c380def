//! Bringing a root to this program's version of the format, and putting right what a copy of a root cannot
//! keep. Nothing of an object is changed, and nothing is removed.

mod owners;
mod sidecars;

use fordway_store::{Bucket, Result};

use crate::actors::Actors;
use crate::{PosixStore, format};

/// What a migration did to one file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// Where it lies, relative to the root.
    pub path: String,
    /// What was done.
    pub done: &'static str,
}

impl PosixStore {
    /// Gives what lies beside the objects of each bucket the owner, group and mode that this version makes
    /// it with, binds records kept apart to their objects again, and writes the root's version down. For
    /// root, or the owner of root and buckets; to be run while nobody else works there, because programs
    /// that are at work made things the old way. Memory: what all records kept apart of one bucket take.
    /// Errors: `NoSuchBucket`, errors of the file system, and what `tell` returns.
    pub fn migrate(&self, buckets: &[Bucket], tell: &mut dyn FnMut(Migrated) -> Result<()>) -> Result<()> {
        let actors = Actors::new();
        for bucket in self.chosen_buckets(buckets)? {
            self.inner.migrate_owners(&bucket, tell)?;
            actors.in_bucket(&self.inner, &bucket, || self.inner.rebind_sidecars(&bucket, tell))?;
        }
        if buckets.is_empty() && self.inner.root.format(self.path())? < format::VERSION {
            self.inner.root.write_format()?;
            let path = format!("{}/format", crate::PRIVATE_DIR);
            tell(Migrated { path, done: "written" })?;
        }
        Ok(())
    }
}
