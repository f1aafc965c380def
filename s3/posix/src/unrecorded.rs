//! Remembers files that have no record, so that the record of an unchanged file is not looked for again.
//!
//! Files that POSIX programs create have no record, and most files of a root may be such files. The kernel changes a
//! file's status-change time (`st_ctime`) whenever an attribute is set, so a file with the same state still has no
//! record.

use std::hash::BuildHasher;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::quality::RandomState;
use fordway_sys::FileStat;

/// The number of slots; a power of two. A file displaces any other file in its slot.
const SLOTS: usize = 2048;

/// A table of 16 KiB, which is allocated when the first file is inserted. Threads share the table without locks.
#[derive(Default)]
pub(crate) struct UnrecordedFiles {
    hasher: RandomState,
    /// In each slot, the hash of the state of a file, or 0.
    slots: OnceLock<Box<[AtomicU64]>>,
}

impl UnrecordedFiles {
    /// Returns whether a file with this state had no record when it was inserted. Two states have the same hash of 64
    /// bits only by chance, because the hash has a random key.
    pub(crate) fn contains(&self, stat: &FileStat) -> bool {
        let Some(slots) = self.slots.get() else { return false };
        let hash = self.hash(stat);
        slots[hash as usize % SLOTS].load(Ordering::Relaxed) == hash
    }

    /// Records that the file has no record. The caller has checked, before it looked for the record, that only this
    /// kernel may change the file and that the file's times were older than a clock tick: otherwise, a record could
    /// have been attached since without a change of these times.
    pub(crate) fn insert(&self, stat: &FileStat) {
        let slots = self.slots.get_or_init(|| (0..SLOTS).map(|_| AtomicU64::new(0)).collect());
        let hash = self.hash(stat);
        slots[hash as usize % SLOTS].store(hash, Ordering::Relaxed);
    }

    fn hash(&self, stat: &FileStat) -> u64 {
        let FileStat { device, inode, changed_ns, modified_ns, size, .. } = *stat;
        self.hasher.hash_one((device, inode, changed_ns, modified_ns, size)).max(1)
    }
}

#[cfg(test)]
mod tests {
    use fordway_sys::stat;

    use super::*;

    #[test]
    fn a_state_is_known_until_it_changes() {
        let state = stat(tempfile::tempfile().unwrap()).unwrap();
        let files = UnrecordedFiles::default();
        assert!(!files.contains(&state));
        files.insert(&state);
        assert!(files.contains(&state));
        for other in [
            FileStat { changed_ns: state.changed_ns + 1, ..state },
            FileStat { modified_ns: state.modified_ns + 1, ..state },
            FileStat { inode: state.inode + 1, ..state },
            FileStat { device: state.device + 1, ..state },
            FileStat { size: state.size + 1, ..state },
        ] {
            assert!(!files.contains(&other));
        }
    }
}
