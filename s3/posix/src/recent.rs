//! Keys that this process has put and not deleted since.
//!
//! A put cannot know whether its key exists. It tries to create the name, and replaces it under the key's lock if the
//! name is taken. If this process has put the key before, the attempt to create it would most likely fail and is
//! skipped. A wrong guess is harmless: replacing a name that does not exist creates it.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;
use fordway_store::{Bucket, Key};

/// The number of slots; a power of two. A key displaces any other key in its slot.
const SLOTS: usize = 4096;

/// A table of 32 KiB. Threads share it without locks.
pub(crate) struct RecentPuts {
    hasher: RandomState,
    /// In each slot, the hash of the key that was put last; 0 for none.
    slots: Box<[AtomicU64]>,
}

impl Default for RecentPuts {
    fn default() -> Self {
        RecentPuts { hasher: RandomState::default(), slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl RecentPuts {
    /// Returns whether this process has put the key, and since then neither deleted nor displaced it.
    pub(crate) fn contains(&self, bucket: &Bucket, key: &Key) -> bool {
        let hash = self.hash(bucket, key);
        self.slot(hash).load(Ordering::Relaxed) == hash
    }

    /// Records that the key was put.
    pub(crate) fn insert(&self, bucket: &Bucket, key: &Key) {
        let hash = self.hash(bucket, key);
        self.slot(hash).store(hash, Ordering::Relaxed);
    }

    /// Records that the key was deleted.
    pub(crate) fn remove(&self, bucket: &Bucket, key: &Key) {
        let hash = self.hash(bucket, key);
        // If another key has taken the slot, that key stays.
        let _ = self.slot(hash).compare_exchange(hash, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn hash(&self, bucket: &Bucket, key: &Key) -> u64 {
        self.hasher.hash_one((bucket.as_str(), key.as_str())).max(1)
    }

    fn slot(&self, hash: u64) -> &AtomicU64 {
        &self.slots[hash as usize % SLOTS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_recent_until_it_is_deleted() {
        let (puts, bucket) = (RecentPuts::default(), Bucket::new("bucket").unwrap());
        let [a, b] = ["a", "b"].map(|key| Key::new(key).unwrap());
        assert!(!puts.contains(&bucket, &a));
        puts.insert(&bucket, &a);
        puts.remove(&bucket, &b);
        assert!(puts.contains(&bucket, &a) && !puts.contains(&bucket, &b));
        assert!(!puts.contains(&Bucket::new("other").unwrap(), &a));
        puts.remove(&bucket, &a);
        assert!(!puts.contains(&bucket, &a));
    }
}
