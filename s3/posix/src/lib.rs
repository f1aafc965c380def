//! S3 semantics inside the calling process: a bucket is a directory, and an object is a plain file whose path is its
//! key. This lane has no server, no copy of the data and no access key; the kernel's permission checks control access.
//!
//! The system calls that each operation makes:
//!
//! | call | system calls in the common case |
//! |---|---|
//! | `read` | `openat`, `fstat`, `pread`, `close` |
//! | `get` | `openat`, `fstat`; later the caller's reads, and `close` |
//! | `head` | `newfstatat` |
//! | `put` of a new key | `openat` (`O_TMPFILE`), `pwrite`, `utimensat`, `fstat`, `linkat`, `close` |
//! | `put` over a key | as for a new key; `linkat` fails; lock (`fcntl`, `fstat`), `linkat`, `renameat`, unlock (`fcntl`) |
//! | `delete` | lock (`fcntl`, `fstat`), `unlinkat`, unlock (`fcntl`) |
//!
//! An object with an MD5, metadata or similar properties also has a record. A put of such an object calls `fsetxattr`
//! instead of `utimensat`; `get` and `head` make one more call, `fgetxattr` or `getxattrat`. For a file written by a
//! POSIX program, `head` also repeats its `newfstatat`.
//!
//! The store keeps the directory of a key open, and looks it up again every 10 ms (one `openat2`, one `close`). A put
//! that creates directories needs more calls, and so does a delete that leaves directories empty.
//!
//! The modules `layout` (paths) and `record` (the attribute) describe the format on disk.

mod actors;
mod any_object;
mod area;
mod buckets;
mod contested;
mod delete;
mod dirs;
mod emptied;
mod encoded;
mod entries;
mod errors;
mod events;
mod format;
mod fsck;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gc;
mod index;
mod layout;
mod lifecycle;
mod list;
mod locks;
mod mark;
mod markers;
mod memory;
mod migrate;
mod multipart;
mod names;
mod object_lock;
mod patience;
mod private;
mod publish;
mod read;
mod rebind;
mod recent;
mod record;
mod remote;
mod removal;
mod rename;
mod scan;
mod server_clock;
mod shared;
mod sidecar;
mod site;
mod spool;
mod stage;
mod store;
mod summary;
mod unhide;
mod unrecorded;
mod usage;
mod versions;
mod volume;
mod walk;
mod write;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fordway_store::{ETagPolicy, Result};
use fordway_sys::{PathResolutionMethod, PerProcess};

pub use errors::is_stale;
pub use events::EventSignal;
pub use fsck::{
    DocumentCheckFunction, FindingKind, FindingSeverity, FsckEvent, FsckFinding, FsckOptions, FsckSummary,
};
pub use gc::{GarbageFile, GarbageKind, GcEvent, GcOptions, GcSummary};
pub use layout::PRIVATE_DIR;
pub use lifecycle::{LifecycleAction, LifecycleChange, LifecycleEvent, LifecycleOptions, LifecycleSummary};
use memory::CacheMemory;
pub use migrate::{MigrationEvent, MigrationStep};
pub use record::etag_of_bare_file;
pub use scan::ChosenBuckets;
pub use site::{note_on_mount, note_on_read_only_mount};
pub use spool::{EventJournal, ReadEvents, StoredEvent, WaitingEvents};
pub use usage::{FileTotals, UsageEvent, UserUsage};
use volume::StoreDirectoryTree;
pub use volume::SymlinkScope;

/// The durability that a write must have before it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// The content is in the page cache, as after a plain `write`: a crash of the node may lose the content.
    #[default]
    None,
    /// The content is on stable storage. A crash of the node may still lose the name.
    Data,
    /// Content and name are on stable storage.
    Full,
}

impl Durability {
    /// Returns the name used on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Durability::None => "none",
            Durability::Data => "data",
            Durability::Full => "full",
        }
    }
}

/// The permitted age of read results on a file system that other nodes also change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ReadConsistency {
    /// Results may be as old as the file system's caches on this node: up to several seconds on NFS and GlusterFS.
    #[default]
    FileSystem,
    /// A result is no older than the call, because each read first queries the server for the current state, as
    /// conditional writes do. The query costs nothing on a file system that only this kernel changes. On other file
    /// systems, the query costs two to five round trips per call, and a few more for each entry of a listing.
    Strong,
}

/// The default time to wait for a lock. Well-behaved processes hold a lock for milliseconds, or for seconds while they
/// join parts on a slow file system.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// The options of a [`PosixStore`].
#[derive(Clone, Debug)]
pub struct PosixConfig {
    /// The method of computing the ETags of new objects, unless the options of a put specify another method.
    pub etag_policy: ETagPolicy,
    /// The durability that a write must have before it returns.
    pub durability: Durability,
    /// Whether every overwrite and delete takes the key's lock (about 4 µs each), which makes `If-Match` on writes
    /// atomic. Without locks, `If-Match` on writes is refused.
    pub if_match: bool,
    /// The method that keeps paths beneath the root.
    pub resolution: PathResolutionMethod,
    /// The directory tree to which symbolic links in a bucket may lead.
    pub links: SymlinkScope,
    /// The permitted age of read results.
    pub consistency: ReadConsistency,
    /// The maximum time for which a writer waits for a key's lock that another writer holds. The write then fails with
    /// `LockTimeout`. The wait is limited because any writer of a bucket can hold the bucket's locks.
    pub lock_patience: Duration,
    /// Whether the files of locked versions get the immutable flag, so that POSIX programs cannot change or remove
    /// these files either. Requires `CAP_LINUX_IMMUTABLE` and a file system that supports the flag.
    pub immutable_locks: bool,
    /// The signal by which the store reports each recorded event to the threads that deliver events.
    pub event_signal: EventSignal,
    /// The list of open stores to which the store adds itself, so that [`OpenStores::close_unused`] closes the store's
    /// unused files.
    pub open_stores: Option<OpenStores>,
}

impl Default for PosixConfig {
    fn default() -> Self {
        PosixConfig {
            etag_policy: ETagPolicy::Fast,
            durability: Durability::None,
            if_match: true,
            resolution: PathResolutionMethod::Kernel,
            links: SymlinkScope::default(),
            consistency: ReadConsistency::default(),
            lock_patience: LOCK_PATIENCE,
            immutable_locks: false,
            event_signal: EventSignal::default(),
            open_stores: None,
        }
    }
}

/// The time after which [`OpenStores::close_unused`] closes the files that a store keeps open but does not use.
const UNUSED: Duration = Duration::from_millis(500);

/// A list of open stores, whose unused files can be closed. Clones share the list.
#[derive(Clone, Debug, Default)]
pub struct OpenStores(Arc<PerProcess<Mutex<Vec<Weak<PosixStoreState>>>>>);

impl OpenStores {
    fn add(&self, store: &Arc<PosixStoreState>) {
        let mut stores = self.stores();
        stores.retain(|store| store.strong_count() > 0);
        stores.push(Arc::downgrade(store));
    }

    /// Closes the directories and lock tables that the stores have not used for half a second. As long as a store has a
    /// file open, its file system cannot be unmounted. The stores' root directories remain open. Also drops the names
    /// that no store of this process has used for a minute.
    pub fn close_unused(&self) {
        // The list is not locked while files are closed, because closing them may take a long time on a network file
        // system.
        let open: Vec<_> = self.stores().iter().filter_map(Weak::upgrade).collect();
        open.iter().for_each(|store| close_unused_in(store));
        CacheMemory::of_process().enforce_limits(memory::UNUSED);
    }

    fn stores(&self) -> MutexGuard<'_, Vec<Weak<PosixStoreState>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn close_unused_in(store: &PosixStoreState) {
    let StoreDirectoryTree { dirs, private, .. } = &store.volume;
    dirs.close_unused(UNUSED);
    private.close_unused(UNUSED);
    store.locks.close_unused(|bucket| private.is_open(bucket));
}

/// An object store in a directory. Clones are cheap and share open files.
#[derive(Clone)]
pub struct PosixStore {
    inner: Arc<PosixStoreState>,
}

/// The state that all clones of a store share.
struct PosixStoreState {
    volume: StoreDirectoryTree,
    locks: PerProcess<locks::BucketLocks>,
    remembered: PerProcess<names::NameCache>,
    encoded_keys: PerProcess<encoded::EncodedKeyCache>,
    upload_keys: PerProcess<multipart::list::UploadKeyCache>,
    recent_puts: recent::RecentPuts,
}

impl PosixStoreState {
    /// Makes one limit apply to all caches of this store. In a forked child, the limit applies to each cache.
    fn share_cache_limit(&self) {
        // A child must not initialize the memory that its parent was initializing at the time of the fork.
        CacheMemory::of_process();
        let owner = &self.remembered.owner;
        self.volume.dirs.indexes.owner.join(owner);
        self.encoded_keys.owner.join(owner);
        self.upload_keys.owner.join(owner);
    }
}

impl PosixStore {
    /// Opens the store whose buckets are the directories in `root`, which must exist. Cost: opening the root and one
    /// `fstatfs`; on a file system that other nodes change, also reading the list of mounts. Errors: `InvalidArgument`
    /// if `root` is missing or not a directory; `AccessDenied`; `NotImplemented` if the root has a later format
    /// version, or if its mount is known to break the store's guarantees.
    pub fn open(root: &Path, config: PosixConfig) -> Result<Self> {
        let store = PosixStore::open_for_care(root, config)?;
        store.inner.volume.require_fit()?;
        Ok(store)
    }

    /// Opens the store as [`PosixStore::open`] does, but accepts any mount. Intended for `fsck`, which changes nothing,
    /// and `gc`, which skips files that it cannot lock. Writes to a mount that breaks the store's guarantees fail with
    /// `NotImplemented`.
    pub fn open_for_care(root: &Path, config: PosixConfig) -> Result<Self> {
        let volume = StoreDirectoryTree::open(root, config)?;
        let inner = PosixStoreState {
            volume,
            locks: PerProcess::default(),
            remembered: PerProcess::default(),
            encoded_keys: PerProcess::default(),
            upload_keys: PerProcess::default(),
            recent_puts: recent::RecentPuts::default(),
        };
        inner.share_cache_limit();
        let inner = Arc::new(inner);
        if let Some(stores) = &inner.volume.config.open_stores {
            stores.add(&inner);
        }
        Ok(PosixStore { inner })
    }

    /// Returns the store's root directory.
    pub fn path(&self) -> &Path {
        &self.inner.volume.path
    }

    /// Returns whether the root directory has been removed since it was opened. Cost: one `fstat`.
    pub fn is_root_removed(&self) -> bool {
        fordway_sys::stat(self.inner.volume.root.dir())
            .map_or_else(|errno| matches!(errno, fordway_sys::Errno::STALE), |root| root.links == 0)
    }

    /// Returns whether the root directory seems to be a bucket of another root: whether its private directory contains
    /// a name that only the private directories of buckets have. Cost: at most one system call for each of these names.
    pub fn resembles_bucket(&self) -> bool {
        let private = self.path().join(PRIVATE_DIR);
        layout::BUCKET_NAMES.iter().any(|name| private.join(name).symlink_metadata().is_ok())
    }

    /// Returns the store's configuration.
    pub fn config(&self) -> &PosixConfig {
        &self.inner.volume.config
    }
}
