//! Records which keys this process has put and has not deleted since.
//!
//! A put cannot know whether its key exists. The put tries to create the name, and replaces the file under the key's
//! lock if the name is taken. If this process has already put the key, the attempt to create the name would most likely
//! fail, and is skipped. A wrong guess is harmless: replacing a name that does not exist creates it.

use std::hash::BuildHasher;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;
use fordway_store::{Bucket, Key};
use fordway_sys::FileStat;

use crate::record::ContentChangeStamp;

/// The number of slots; a power of two. A key displaces any other key in its slot.
const SLOTS: usize = 4096;

/// A table of 32 KiB. Threads share the table without locks.
pub(crate) struct RecentPuts {
    hasher: RandomState,
    /// In each slot, the hash of the key that was put most recently, or 0.
    slots: Box<[AtomicU64]>,
}

impl Default for RecentPuts {
    fn default() -> Self {
        RecentPuts { hasher: RandomState::default(), slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect() }
    }
}

/// The hash of a key. Each operation computes the hash only once, because computing it costs more than a lookup.
#[derive(Clone, Copy)]
pub(crate) struct KeyHash(u64);

impl RecentPuts {
    /// Returns the hash that the table stores for a key.
    pub(crate) fn hash(&self, bucket: &Bucket, key: &Key) -> KeyHash {
        KeyHash(self.hasher.hash_one((bucket.as_str(), key.as_str())).max(1))
    }

    /// Returns whether this process has put the key and not deleted it since, and no other key has displaced it from
    /// the table.
    pub(crate) fn contains(&self, key: KeyHash) -> bool {
        self.slot(key).load(Ordering::Relaxed) == key.0
    }

    /// Records that the key was put.
    pub(crate) fn insert(&self, key: KeyHash) {
        self.slot(key).store(key.0, Ordering::Relaxed);
    }

    /// Records that the key was deleted.
    pub(crate) fn remove(&self, key: KeyHash) {
        let slot = self.slot(key);
        // If another key has taken the slot, that key is kept. A key that takes the slot between the load and the store
        // is lost. This loss is harmless, and costs less than an atomic exchange.
        if slot.load(Ordering::Relaxed) == key.0 {
            slot.store(0, Ordering::Relaxed);
        }
    }

    fn slot(&self, key: KeyHash) -> &AtomicU64 {
        &self.slots[key.0 as usize % SLOTS]
    }
}

/// The states of files whose time is earlier than their record's, although no cache of this node is stale. A program,
/// for example `cp -p`, has set the time back. Only the first read of such a file then waits for caches to expire.
#[derive(Default)]
pub(crate) struct SetBackFiles(OnceLock<RecentPuts>);

impl SetBackFiles {
    /// Returns whether the file was recorded with the same state and a record of the same `seal`.
    pub(crate) fn contains(&self, seal: ContentChangeStamp, stat: &FileStat) -> bool {
        self.0.get().is_some_and(|table| table.contains(state_hash(table, seal, stat)))
    }

    /// Records the state and the `seal` of a file whose time was set back.
    pub(crate) fn insert(&self, seal: ContentChangeStamp, stat: &FileStat) {
        let table = self.0.get_or_init(RecentPuts::default);
        table.insert(state_hash(table, seal, stat));
    }
}

fn state_hash(table: &RecentPuts, seal: ContentChangeStamp, stat: &FileStat) -> KeyHash {
    let state = (stat.device, stat.inode, stat.size, stat.modified_ns);
    KeyHash(table.hasher.hash_one((state, seal.size, seal.modified_ns)).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_whose_time_was_set_back_is_known_until_anything_changes() {
        let (files, mut stat) = (SetBackFiles::default(), fordway_sys::stat(std::io::stdin()).unwrap());
        let seal = ContentChangeStamp { size: 1, modified_ns: stat.modified_ns + 1 };
        assert!(!files.contains(seal, &stat));
        files.insert(seal, &stat);
        assert!(files.contains(seal, &stat));
        assert!(!files.contains(ContentChangeStamp { size: 2, ..seal }, &stat));
        stat.size += 1;
        assert!(!files.contains(seal, &stat));
    }

    #[test]
    fn a_key_is_recent_until_it_is_deleted() {
        let (puts, bucket) = (RecentPuts::default(), Bucket::new("bucket").unwrap());
        let [a, b] = ["a", "b"].map(|key| puts.hash(&bucket, &Key::new(key).unwrap()));
        assert!(!puts.contains(a));
        puts.insert(a);
        puts.remove(b);
        assert!(puts.contains(a) && !puts.contains(b));
        let other = Bucket::new("other").unwrap();
        assert!(!puts.contains(puts.hash(&other, &Key::new("a").unwrap())));
        puts.remove(a);
        assert!(!puts.contains(a));
    }
}
