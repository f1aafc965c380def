//! Records which buckets of a root are on file systems that other nodes may change, so that calls on these buckets can
//! be kept apart from other calls. A file server that does not respond blocks every call on its buckets.
//!
//! All stores of a root in this process share this knowledge. A gateway opens one store for each user, and a user's
//! first call on a bucket must not have to find out whether the bucket's file server responds.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, RwLock, Weak};

use foldhash::HashMap;
use fordway_store::Bucket;
use fordway_sys::{PerProcess, remote_mounts_in};

/// What the stores of each root know, by the root's device and inode numbers.
type KnownRoots = Mutex<HashMap<(u64, u64), Weak<KnownBuckets>>>;

/// The roots of all open stores of this process.
static ROOTS: LazyLock<PerProcess<KnownRoots>> = LazyLock::new(PerProcess::default);

/// What one store knows about the remote buckets of its root.
pub(crate) struct RemoteBuckets {
    known: Arc<KnownBuckets>,
    /// Set once this store has examined the mounts.
    examined: OnceLock<()>,
}

/// What all stores of a root know.
#[derive(Default)]
struct KnownBuckets {
    /// The devices of the buckets.
    devices: PerProcess<RwLock<HashMap<Bucket, u64>>>,
    /// Whether `devices` has any entries. An empty map need not be locked.
    has_any: AtomicBool,
}

impl RemoteBuckets {
    /// Returns the remote buckets of the root with these device and inode numbers.
    pub(crate) fn of_root(root: (u64, u64)) -> Self {
        let mut roots = ROOTS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let known = roots.get(&root).and_then(Weak::upgrade).unwrap_or_else(|| {
            roots.retain(|_, known| known.strong_count() > 0);
            let known = Arc::default();
            roots.insert(root, Arc::downgrade(&known));
            known
        });
        RemoteBuckets { known, examined: OnceLock::new() }
    }

    /// Records the buckets that are separate mounts of remote file systems below `root`. Asks no file server. Cost: one
    /// read of the list of mounts by the first call for each store.
    pub(crate) fn examine_mounts(&self, root: impl AsFd) {
        self.examined.get_or_init(|| {
            for (name, device) in remote_mounts_in(root) {
                if let Ok(bucket) = Bucket::new(&*name) {
                    self.known.add(bucket, device);
                }
            }
        });
    }

    /// Returns the device and the name of `bucket` if it was last found on a file system that other nodes may change.
    /// If `bucket` is empty, returns the device and the name of any bucket on such a file system. Cost: no system call.
    pub(crate) fn find(&self, bucket: &str) -> Option<(u64, String)> {
        if !self.known.has_any.load(Ordering::Relaxed) {
            return None;
        }
        let devices = self.known.devices.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let found = match bucket.is_empty() {
            true => devices.iter().next(),
            false => devices.get_key_value(&Bucket::new(bucket).ok()?),
        };
        found.map(|(name, device)| (*device, name.as_str().to_owned()))
    }

    /// Records that `bucket` was found on `device`, and whether other nodes may change that file system.
    pub(crate) fn note(&self, bucket: &Bucket, device: u64, is_remote: bool) {
        match is_remote {
            true => self.known.add(bucket.clone(), device),
            false if self.known.has_any.load(Ordering::Relaxed) => self.known.remove(bucket),
            false => {}
        }
    }

    /// Records that `bucket` was removed. Otherwise, the record would grow with each bucket that ever existed.
    pub(crate) fn forget(&self, bucket: &Bucket) {
        if self.known.has_any.load(Ordering::Relaxed) {
            self.known.remove(bucket);
        }
    }
}

impl KnownBuckets {
    fn add(&self, bucket: Bucket, device: u64) {
        let mut devices = self.devices.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        devices.insert(bucket, device);
        self.has_any.store(true, Ordering::Relaxed);
    }

    fn remove(&self, bucket: &Bucket) {
        let mut devices = self.devices.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        devices.remove(bucket);
        self.has_any.store(!devices.is_empty(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_stores_of_a_root_know_its_remote_buckets() {
        let bucket = Bucket::new("bucket").unwrap();
        let root = (u64::MAX, 1);
        let [first, second] = [(); 2].map(|()| RemoteBuckets::of_root(root));
        let other = RemoteBuckets::of_root((u64::MAX, 2));
        first.note(&bucket, 7, true);
        assert_eq!(second.find("bucket"), Some((7, "bucket".to_owned())));
        assert_eq!(RemoteBuckets::of_root(root).find("bucket"), Some((7, "bucket".to_owned())));
        assert_eq!(other.find("bucket"), None);
        first.note(&Bucket::new("bucket2").unwrap(), 9, true);
        assert_eq!(second.find("bucket"), Some((7, "bucket".to_owned())));
        for missing in ["bucket3", "buck", "not a name"] {
            assert_eq!(second.find(missing), None, "{missing}");
        }
        first.forget(&bucket);
        assert_eq!(second.find("bucket"), None);
        assert_eq!(second.find(""), Some((9, "bucket2".to_owned())));
        second.note(&Bucket::new("bucket2").unwrap(), 8, false);
        assert_eq!(first.find(""), None);
        first.note(&bucket, 7, true);
        drop((first, second));
        assert_eq!(RemoteBuckets::of_root(root).find("bucket"), None, "no store of the root was open");
    }
}
