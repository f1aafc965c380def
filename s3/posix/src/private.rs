//! Caches the contents of a bucket's private directory, and its lock table, to save lookups.
//!
//! Most buckets have no odd keys, no sidecar files and no versions. However, every put, every delete and every read of
//! a missing object must check for them. The contents of the private directory change only when a name in the bucket's
//! `.fordway` is created, replaced or removed. Every such change also alters the directory's times. The directory is
//! kept open. As long as its times are unchanged, the cached contents are valid.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, RwLock, RwLockReadGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use foldhash::HashMap;
use fordway_store::{Bucket, LockConfiguration, VersioningState};
use fordway_sys::{
    ByteRangeLocks, CoarseInstant, Errno, FileStat, FileSystemSharing, Mode, MountProblem, OFlags,
    PerProcess, forget_names, links_in, look_again, open_in, read_dir, stat, stat_in, stat_now,
};
use fordway_wire::notification::NotificationRule;

use crate::ReadConsistency;
use crate::area::{TrustedOwner, is_writable_by_others, read_small};
use crate::dirs::{DirectoryHandle, HOLD};
use crate::layout::{MARKERS, META, ODD, PRIVATE_DIR, VERSIONING, private_dir};
use crate::object_lock::VersioningAndLockSetting;
use crate::patience::pause;
use crate::remote::RemoteBuckets;
use crate::server_clock::is_recent;
use crate::shared::{MAX_STALE, NAME_TIMEOUT, look_before_opening, open_spared};
use crate::site::FileSystemTraits;
use crate::volume::BucketsRoot;

/// Two changes within one tick of the file system's clock (at most 10 ms) may give a file the same times. A time is
/// therefore trusted only if it is older than a tick.
const TICK: Duration = Duration::from_millis(12);

/// The time for which a device number is assumed to refer to the same device. A device may be unmounted, and its number
/// reused for another device.
const SAME_DEVICE: Duration = Duration::from_secs(1);

/// The maximum number of cached buckets. The number is limited because each cached bucket may keep a directory open.
const MOST: usize = 128;

/// The maximum length of a `versioning` file, in bytes. Every valid file is shorter.
pub(crate) const VERSIONING_BYTES: usize = 64;

/// The cache for all buckets that have been examined.
pub(crate) struct PrivateDirectoryCache {
    known: PerProcess<RwLock<HashMap<Bucket, Arc<CachedPrivateDirectory>>>>,
    /// The root's file system.
    site: FileSystemTraits,
    /// The file system of each device on which a bucket was found, and the time at which the file system was
    /// determined.
    devices: PerProcess<RwLock<HashMap<u64, (CoarseInstant, FileSystemTraits)>>>,
    /// The buckets that were last found on a file system that other nodes may change.
    pub(crate) remote: RemoteBuckets,
    /// The devices on which a file has one inode number under all of its names.
    pub(crate) numbered: RwLock<Vec<u64>>,
}

/// The contents of a bucket's private directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrivateDirectoryContents {
    /// Whether the directory exists.
    pub(crate) exists: bool,
    /// Whether any object may be at an odd path.
    pub(crate) has_odd: bool,
    /// Whether any record may be in a sidecar file.
    pub(crate) has_meta: bool,
    /// Whether any directory may be an object.
    pub(crate) has_markers: bool,
    /// Whether the bucket may have a notification configuration.
    pub(crate) may_notify: bool,
    /// Whether old versions are kept.
    pub(crate) versioning: VersioningState,
    /// The object lock setting; `None` for a bucket without object lock.
    pub(crate) object_lock: Option<LockConfiguration>,
    /// The device of the private directory, or of the bucket if there is no private directory; 0 if there is no bucket.
    pub(crate) device: u64,
    /// Whether other nodes may change the directory's file system.
    pub(crate) sharing: FileSystemSharing,
    /// The reason why nothing may be written to the directory's file system.
    pub(crate) unfit: Option<MountProblem>,
    /// The trusted owner; `None` if the bucket lacks the sticky bit, or if there is no private directory.
    pub(crate) guard: Option<TrustedOwner>,
    /// Whether users other than the bucket's owner and root may rename files in the private directory (see
    /// [`crate::mark`]).
    pub(crate) is_open_to_others: bool,
    /// Whether the mode of the bucket's directory lets users other than its owner write to it. Always false if there is
    /// no private directory.
    pub(crate) has_other_writers: bool,
}

impl PrivateDirectoryContents {
    /// Returns whether every key has exactly one path and one version.
    pub(crate) fn is_simple(&self) -> bool {
        !self.has_odd && self.versioning == VersioningState::Unversioned
    }
}

/// The cached state of the private directory of one bucket.
pub(crate) struct CachedPrivateDirectory {
    /// The directory whose times change with the contents: the private directory, or the bucket's directory if there is
    /// no private directory.
    watched: File,
    opened: CoarseInstant,
    /// The times of `watched` for which `contents` is valid; `None` if these times were too recent to trust.
    times: Option<(i64, i64)>,
    pub(crate) contents: PrivateDirectoryContents,
    /// The lock table, if it was found in the private directory while the directory had these `times`.
    lock_table: OnceLock<Arc<ByteRangeLocks>>,
    /// The notification rules, if they were read while the directory had these `times`.
    rules: OnceLock<Arc<[NotificationRule]>>,
    /// The address of the handle to the bucket's directory, if the directory existed and contained `watched` while
    /// `watched` had these `times`; otherwise 0.
    bucket: AtomicUsize,
}

impl CachedPrivateDirectory {
    /// Returns whether the contents were read in the last 10 ms.
    pub(crate) fn is_recent(&self) -> bool {
        self.opened.elapsed() < HOLD
    }

    /// Returns whether `contents` is still valid. Cost: one `fstat`.
    pub(crate) fn is_unchanged(&self) -> bool {
        stat(&self.watched).is_ok_and(|now| now.links > 0 && self.times == Some(times(&now)))
    }

    /// Returns the notification rules, or `None` if they are not cached. Cost: none.
    pub(crate) fn rules(&self) -> Option<Arc<[NotificationRule]>> {
        self.rules.get().cloned()
    }

    /// Records the notification rules, which were read after the contents.
    pub(crate) fn remember_rules(&self, rules: Arc<[NotificationRule]>) {
        let _ = self.rules.set(rules);
    }

    /// Returns the bucket's lock table, or `None` if it is not cached. The lock table is current if the directory is
    /// found to be unchanged after this call. Cost: none.
    pub(crate) fn lock_table(&self) -> Option<&ByteRangeLocks> {
        self.lock_table.get().map(Arc::as_ref)
    }
}

/// The result of one check of a bucket's private directory.
pub(crate) struct PrivateDirectoryLookup {
    pub(crate) contents: PrivateDirectoryContents,
    /// The cached contents, if the directory was found to be unchanged.
    known: Option<Arc<CachedPrivateDirectory>>,
}

impl PrivateDirectoryLookup {
    /// Returns whether the lookup has found that `dir` is the bucket's directory. The bucket need not have a private
    /// directory. If the result is `true`, `dir` still exists.
    pub(crate) fn is_held_by(&self, dir: &DirectoryHandle) -> bool {
        self.known.as_ref().is_some_and(|known| known.bucket.load(Ordering::Relaxed) == dir.address())
    }

    /// Records that `dir`, opened by the bucket's path, still existed after this lookup.
    pub(crate) fn was_held_by(&self, dir: &DirectoryHandle) {
        if let Some(known) = &self.known {
            known.bucket.store(dir.address(), Ordering::Relaxed);
        }
    }

    /// Records that `locks` was current after this lookup. If the lock table is replaced later, the next lookup detects
    /// the replacement.
    pub(crate) fn vouch_for(&self, locks: Arc<ByteRangeLocks>) {
        if let Some(known) = &self.known {
            let _ = known.lock_table.set(locks);
        }
    }
}

impl PrivateDirectoryCache {
    /// Creates the cache for a root on `site`. `remote` contains what other stores know about the root's buckets.
    pub(crate) fn new(site: FileSystemTraits, remote: RemoteBuckets) -> Self {
        let (known, devices, numbered) = Default::default();
        PrivateDirectoryCache { known, site, devices, remote, numbered }
    }

    /// Returns the properties of the file system of `file`, which is on `device`. Cost: at most one `fstatfs` per
    /// second.
    pub(crate) fn site_of(&self, file: impl AsFd, device: u64) -> Result<FileSystemTraits, Errno> {
        let known =
            self.devices.read().unwrap_or_else(|poisoned| poisoned.into_inner()).get(&device).copied();
        if let Some((since, site)) = known
            && since.elapsed() < SAME_DEVICE
        {
            return Ok(site);
        }
        let site = FileSystemTraits::of(file)?;
        let mut devices = self.devices.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        devices.insert(device, (CoarseInstant::now(), site));
        Ok(site)
    }

    /// Checks whether anything has changed in the private directory of `bucket`. Cost: usually one `fstat`; one
    /// `openat2` if there is no private directory and names in the bucket change.
    pub(crate) fn glance(
        &self,
        root: &BucketsRoot,
        bucket: &Bucket,
    ) -> Result<PrivateDirectoryLookup, Errno> {
        if let Some(known) = self.held(bucket)
            && known.is_unchanged()
        {
            return Ok(PrivateDirectoryLookup { contents: known.contents, known: Some(known) });
        }
        Ok(PrivateDirectoryLookup { contents: self.look_anew(root, bucket)?, known: None })
    }

    fn look_anew(&self, root: &BucketsRoot, bucket: &Bucket) -> Result<PrivateDirectoryContents, Errno> {
        for _ in 0..MAX_STALE {
            match self.look(root, bucket) {
                Err(Errno::STALE) => look_again(root.dir(), &private_dir(bucket)),
                contents => return contents,
            }
        }
        Err(Errno::STALE)
    }

    /// Returns the contents of the private directory of `bucket`, which may be up to 10 ms old. The writer of a small
    /// object may use the result for another 10 ms. Cost: usually none. The result determines how an object is created.
    /// A stale result is harmless, because readers also look for odd keys. A write that does not see yet that
    /// versioning was enabled counts as an earlier write. With strong consistency, if other nodes may change the
    /// bucket, every call queries the server.
    pub(crate) fn glance_for_write(
        &self,
        root: &BucketsRoot,
        bucket: &Bucket,
        consistency: ReadConsistency,
    ) -> Result<PrivateDirectoryContents, Errno> {
        let is_strong = consistency == ReadConsistency::Strong;
        let is_valid = |known: &&Arc<CachedPrivateDirectory>| {
            known.is_recent() && !(is_strong && known.contents.sharing.is_shared())
        };
        // The contents are copied under the lock, because a copy takes less time than incrementing a reference count.
        let contents = self.all_known().get(bucket).filter(is_valid).map(|known| known.contents);
        contents.map_or_else(|| self.look_anew(root, bucket), Ok)
    }

    /// Waits until no writer in any process still uses the contents that the private directory had before this call.
    /// For example, every put that begins after versioning was enabled must keep versions. The contents may be 10 ms
    /// old when a writer reads them, and the writer may use them for another 10 ms. Some clients of shared file systems
    /// cache missing names for longer.
    pub(crate) fn outlast(&self, contents: &PrivateDirectoryContents) {
        let names = match contents.sharing {
            FileSystemSharing::Local | FileSystemSharing::Nfs => Duration::ZERO,
            FileSystemSharing::Unknown => NAME_TIMEOUT,
        };
        pause(names + 2 * HOLD + TICK);
    }

    /// Drops the cached contents of `bucket`, because this process has just changed the bucket.
    pub(crate) fn forget(&self, bucket: &Bucket) {
        self.known.write().unwrap_or_else(|poisoned| poisoned.into_inner()).remove(bucket);
    }

    /// Closes the private directories that were opened at least `unused` ago.
    pub(crate) fn close_unused(&self, unused: Duration) {
        let mut known = self.known.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        known.retain(|_, known| known.opened.elapsed() < unused);
    }

    /// Returns whether the cache keeps the private directory of `bucket` open.
    pub(crate) fn is_open(&self, bucket: &Bucket) -> bool {
        self.all_known().contains_key(bucket)
    }

    /// Returns the cached state of the private directory of `bucket`, unless this state is older than 10 ms. Cost:
    /// none.
    pub(crate) fn held(&self, bucket: &Bucket) -> Option<Arc<CachedPrivateDirectory>> {
        self.all_known().get(bucket).filter(|known| known.is_recent()).cloned()
    }

    fn all_known(&self) -> RwLockReadGuard<'_, HashMap<Bucket, Arc<CachedPrivateDirectory>>> {
        self.known.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn look(&self, root: &BucketsRoot, bucket: &Bucket) -> Result<PrivateDirectoryContents, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let private = match root.open_beneath(&private_dir(bucket), flags, Mode::empty()) {
            Ok(private) => private,
            // A missing directory has no contents. If the path leads to something other than a directory, Fordway did
            // not create it, and the directory counts as missing.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                return self.look_without(root, bucket);
            }
            Err(errno) => return Err(errno),
        };
        // The times are read before the contents, so that later changes are detected.
        let before = stat(&private)?;
        let is_settled = is_settled(&before);
        let FileSystemTraits { sharing, unfit } = self.site_of(&private, before.device)?;
        if sharing.is_shared() {
            // The following calls make changes by other nodes visible.
            stat_now(&private)?;
            look_again(&private, VERSIONING);
        }
        if sharing == FileSystemSharing::Nfs {
            // The size of this file shows whether there are notification rules, and can change although the directory's
            // names do not.
            let _ = links_in(&private, MARKERS);
        }
        let contents = PrivateDirectoryContents {
            device: before.device,
            unfit,
            ..contents_of(&private, &before, sharing)?
        };
        // Timestamps from another node's clock, whose resolution is unknown, are not trusted.
        let times = (!sharing.is_shared() && is_settled).then(|| times(&before));
        self.remember(bucket, private, times, contents);
        Ok(contents)
    }

    /// Returns the contents of a bucket without a private directory, which may be a separate mount. Cost: four
    /// system calls, at most once every 10 ms.
    fn look_without(&self, root: &BucketsRoot, bucket: &Bucket) -> Result<PrivateDirectoryContents, Errno> {
        if let Some(known) = self.held(bucket).filter(|known| !known.contents.exists) {
            return Ok(known.contents);
        }
        let dir = match root.open_beneath(bucket.as_str(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()) {
            Ok(dir) => dir,
            // The caller detects that the bucket is missing.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                let FileSystemTraits { sharing, unfit } = self.site;
                return Ok(PrivateDirectoryContents {
                    sharing,
                    unfit,
                    ..PrivateDirectoryContents::default()
                });
            }
            Err(errno) => return Err(errno),
        };
        // The times are read before the second lookup, because a private directory that is created later changes these
        // times.
        let before = stat(&dir)?;
        let is_settled = is_settled(&before);
        if stat_in(&dir, PRIVATE_DIR).is_ok_and(|made| made.is_dir) {
            return Err(Errno::STALE);
        }
        let FileSystemTraits { sharing, unfit } = self.site_of(&dir, before.device)?;
        if sharing.is_shared() && has_at_server(&dir, PRIVATE_DIR, sharing)? {
            return Err(Errno::STALE);
        }
        let contents = PrivateDirectoryContents {
            device: before.device,
            sharing,
            unfit,
            ..PrivateDirectoryContents::default()
        };
        let times = (!sharing.is_shared() && is_settled).then(|| times(&before));
        self.remember(bucket, dir, times, contents);
        Ok(contents)
    }

    fn remember(
        &self,
        bucket: &Bucket,
        watched: File,
        times: Option<(i64, i64)>,
        contents: PrivateDirectoryContents,
    ) {
        self.remote.note(bucket, contents.device, contents.sharing.is_shared());
        let (lock_table, rules, bucket_dir) = (OnceLock::new(), OnceLock::new(), AtomicUsize::new(0));
        let opened = CoarseInstant::now();
        let known = CachedPrivateDirectory {
            watched,
            opened,
            times,
            contents,
            lock_table,
            rules,
            bucket: bucket_dir,
        };
        let mut all = self.known.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        if all.len() >= MOST {
            all.retain(|_, known| known.opened.elapsed() < HOLD);
        }
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(bucket.clone(), Arc::new(known));
    }
}

/// Reads the contents of the directory `private`, whose metadata is `before`.
fn contents_of(
    private: &File,
    before: &FileStat,
    sharing: FileSystemSharing,
) -> Result<PrivateDirectoryContents, Errno> {
    let find = |name| match stat_in(private, name) {
        Ok(state) => Ok(Some(state)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    };
    let has_dir = |name| find(name).map(|found| found.is_some_and(|state| state.is_dir));
    let of = stat_in(private, "..")?;
    let guard = TrustedOwner::of(&of);
    // The caller has just queried the server for this state.
    let state = || stat(private);
    if sharing == FileSystemSharing::Nfs && is_recent(&state()?) {
        correct_names(private)?;
    }
    let setting = open_spared(private, VERSIONING, sharing, state, |name| {
        look_before_opening(private, name, sharing)?;
        open_in(private, name, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty())
    });
    let is_closed = matches!(setting, Err(Errno::ACCESS | Errno::PERM | Errno::AGAIN));
    let is_strangers =
        |guard: TrustedOwner| stat_in(private, VERSIONING).is_ok_and(|state| !guard.trusts(state.user));
    let VersioningAndLockSetting { versioning, object_lock } = match guard {
        // The content does not matter, because another user's file is not trusted.
        Some(guard) if is_closed && is_strangers(guard) => VersioningAndLockSetting::ENABLED,
        _ => read_versioning(setting, guard)?,
    };
    let (has_odd, has_meta) = (has_dir(ODD)?, has_dir(META)?);
    let markers = find(MARKERS)?.filter(|state| state.is_file);
    let (exists, has_markers) = (true, markers.is_some());
    let may_notify = markers.is_some_and(|state| state.size > 0);
    Ok(PrivateDirectoryContents {
        exists,
        has_odd,
        has_meta,
        has_markers,
        may_notify,
        versioning,
        object_lock,
        sharing,
        guard,
        is_open_to_others: TrustedOwner::is_open_to_others(&of, before),
        has_other_writers: is_writable_by_others(&of),
        ..PrivateDirectoryContents::default()
    })
}

/// Returns whether `dir` has the directory `name`, according to the file server. If another node has just stored the
/// first setting of a bucket, the bucket must not appear to have no settings. Cost: several round trips; on NFS, a
/// directory that has changed recently is also read.
fn has_at_server(dir: &File, name: &str, sharing: FileSystemSharing) -> Result<bool, Errno> {
    let state = stat_now(dir)?;
    look_again(dir, name);
    let has = || stat_in(dir, name).is_ok_and(|made| made.is_dir);
    if !has() && sharing == FileSystemSharing::Nfs && is_recent(&state) {
        correct_names(dir)?;
    }
    Ok(has())
}

/// Reads the names in `dir` from the server. The read corrects the view of an NFS client that has cached existing names
/// as missing. A client may cache a name as missing if the name is created within the same step of the server's clock
/// as an earlier change of the directory. Cost: four calls.
pub(crate) fn correct_names(dir: &File) -> Result<(), Errno> {
    let dir = open_in(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    forget_names(&dir);
    read_dir(&dir, |_, _| {})
}

/// Reads whether old versions are kept. Old versions are also kept if the content of `versioning` is not valid, or if
/// the owner of the file is not trusted. Otherwise, versions could be lost, and could not be restored.
fn read_versioning(
    opened: Result<OwnedFd, Errno>,
    guard: Option<TrustedOwner>,
) -> Result<VersioningAndLockSetting, Errno> {
    let file = match opened {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(VersioningAndLockSetting::default()),
        Err(Errno::LOOP | Errno::NXIO) => return Ok(VersioningAndLockSetting::ENABLED),
        Err(errno) => return Err(errno),
    };
    let Some((text, state)) = read_small(&file, VERSIONING_BYTES)? else {
        return Ok(VersioningAndLockSetting::ENABLED);
    };
    let is_believed = guard.is_none_or(|guard| guard.trusts(state.user));
    Ok(VersioningAndLockSetting::parse(&text)
        .filter(|_| is_believed)
        .unwrap_or(VersioningAndLockSetting::ENABLED))
}

pub(crate) fn times(stat: &FileStat) -> (i64, i64) {
    (stat.modified_ns, stat.changed_ns)
}

pub(crate) fn is_settled(stat: &FileStat) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as i64;
    let youngest = stat.modified_ns.max(stat.changed_ns);
    now.saturating_sub(youngest) > TICK.as_nanos() as i64
}
