//! S3 semantics inside the calling process: a bucket is a directory, an object is a plain file at
//! the path its key spells. No server, no copy, no key: the kernel's permissions decide.
//!
//! How a call becomes system calls:
//!
//! | call | system calls where nothing is in the way |
//! |---|---|
//! | `read` | `openat`, `fstat`, `pread`, `close` |
//! | `get` | `openat`, `fstat`; then what the caller reads, and `close` |
//! | `head` | `newfstatat` |
//! | `put` of a new key | `openat` (`O_TMPFILE`), `pwrite`, `utimensat`, `fstat`, `linkat`, `close` |
//! | `put` over a key | the same with a failed `linkat`, then lock (`fcntl`, `fstat`), `getrandom`, `linkat`, `renameat`, unlock (`fcntl`) |
//! | `delete` | lock (`fcntl`, `fstat`), `unlinkat`, unlock (`fcntl`) |
//!
//! An object with an MD5, metadata or the like has a record too: `fsetxattr` in the place of
//! `utimensat`, and one `fgetxattr` or `getxattrat` more for `get` and `head`.
//!
//! The directory of a key is held open and found anew each 10 ms (one `openat2`, one `close`).
//! A put that makes directories, and a delete that empties them, pay for that too.
//!
//! The format on disk is in `layout` (paths) and `record` (the attribute).

mod actors;
mod area;
mod buckets;
mod delete;
mod dirs;
mod errors;
mod format;
mod fsck;
mod gc;
mod layout;
mod list;
mod locks;
mod markers;
mod migrate;
mod multipart;
mod names;
mod private;
mod publish;
mod read;
mod record;
mod scan;
mod shared;
mod sidecar;
mod site;
mod stage;
mod store;
mod versions;
mod volume;
mod write;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fordway_store::{ETagPolicy, Result};
use fordway_sys::PathResolution;

pub use fsck::{FindingKind, FindingSeverity, FsckEvent, FsckFinding, FsckOptions, FsckSummary};
pub use gc::{GarbageFile, GarbageKind, GcEvent, GcOptions, GcSummary};
pub use layout::PRIVATE_DIR;
pub use migrate::MigrationStep;
pub use volume::LinkRule;
use volume::RootVolume;

/// When a write counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// When the page cache has it, as with POSIX itself: a crash of the node may lose it.
    #[default]
    None,
    /// When the content is on stable storage. The name may still be lost with the node.
    Data,
    /// When content and name are on stable storage.
    Full,
}

impl Durability {
    /// The policy's name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Durability::None => "none",
            Durability::Data => "data",
            Durability::Full => "full",
        }
    }
}

/// How old what a read tells may be, where other nodes change the file system too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ReadConsistency {
    /// As old as the file system's caches on this node: seconds on NFS and GlusterFS.
    #[default]
    FileSystem,
    /// Not older than the call: each read asks the server first, as writes with a condition do. On a file system that this
    /// kernel alone changes it costs nothing, elsewhere two to five round trips a call, and some for each entry of a
    /// listing.
    Strong,
}

/// How long a lock is waited for, unless somebody says otherwise. Who holds one properly does so for
/// milliseconds; one that joins parts on a slow file system, for seconds.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// How a [`PosixStore`] behaves where there is a choice.
#[derive(Clone, Debug)]
pub struct PosixConfig {
    /// What new objects' ETags are made of, unless the caller of a put says otherwise.
    pub etag_policy: ETagPolicy,
    /// When a write counts as done.
    pub durability: Durability,
    /// Whether every overwrite and delete takes the key's lock, which is what makes `If-Match` on
    /// writes atomic (about 4 µs each). Without it `If-Match` on writes is refused.
    pub if_match: bool,
    /// How paths are kept beneath the root.
    pub resolution: PathResolution,
    /// How far symbolic links in a bucket may lead.
    pub links: LinkRule,
    /// How old what a read tells may be.
    pub consistency: ReadConsistency,
    /// How long a writer waits for another that holds the lock of the same key. Then it fails with
    /// `LockTimeout`: any writer of a bucket can hold its locks.
    pub lock_patience: Duration,
}

impl Default for PosixConfig {
    fn default() -> Self {
        PosixConfig {
            etag_policy: ETagPolicy::Fast,
            durability: Durability::None,
            if_match: true,
            resolution: PathResolution::Kernel,
            links: LinkRule::default(),
            consistency: ReadConsistency::default(),
            lock_patience: LOCK_PATIENCE,
        }
    }
}

/// The object store on a directory. Clones are cheap and share what is open.
#[derive(Clone)]
pub struct PosixStore {
    inner: Arc<SharedStore>,
}

/// What all clones of a store share, and what its operations need beside the volume.
struct SharedStore {
    volume: RootVolume,
    locks: locks::BucketLocks,
    remembered: names::NameCache,
}

impl PosixStore {
    /// Opens the store whose buckets are the directories in `root`, which must exist.
    /// Cost beyond opening it: one `fstatfs`; on a file system that other nodes change, the list of mounts is read too.
    /// Errors: `InvalidArgument` if it is missing or no directory, `AccessDenied`, `NotImplemented` if it was
    /// written by a later version of the format, or lies on a mount that is known not to keep what is promised.
    pub fn open(root: &Path, config: PosixConfig) -> Result<Self> {
        let store = PosixStore::open_for_care(root, config)?;
        store.inner.volume.require_fit()?;
        Ok(store)
    }

    /// As [`PosixStore::open`], but on any mount: for `fsck`, which changes nothing, and `gc`, which leaves alone what it
    /// cannot lock. Writes to such a mount are refused with `NotImplemented`.
    pub fn open_for_care(root: &Path, config: PosixConfig) -> Result<Self> {
        let volume = RootVolume::open(root, config)?;
        let inner = SharedStore {
            volume,
            locks: locks::BucketLocks::default(),
            remembered: names::NameCache::default(),
        };
        Ok(PosixStore { inner: Arc::new(inner) })
    }

    /// The directory it was opened on.
    pub fn path(&self) -> &Path {
        &self.inner.volume.path
    }

    /// How it was configured.
    pub fn config(&self) -> &PosixConfig {
        &self.inner.volume.config
    }
}
