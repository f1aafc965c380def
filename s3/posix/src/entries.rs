//! Reads all entries of a directory while other programs rename files in it.
//!
//! A listing must contain every name that exists from its beginning to its end, and an overwrite is a rename over the
//! existing name. One `getdents64` sees a single state of the directory, but a directory of more than about a thousand
//! names needs several calls. On tmpfs and Btrfs, a rename over a name moves the directory entry to a new place. If the
//! entry moves from a place that the read has not reached yet to a place that the read never reaches, the read misses
//! the name, although the name always existed.
//!
//! The directory's times show whether this is possible. If it is possible, the directory is read again while the kernel
//! queues its changes (inotify). The second read returns every name whose entry does not move during the read, and the
//! queue contains every other name: the kernel queues a change before it releases the directory's lock, and
//! `getdents64` takes the same lock. Any change that hides an entry from the read precedes the last `getdents64`, and
//! is therefore in the queue. One further read is thus enough, no matter how many files are renamed during the read.

use std::fs::File;

use foldhash::{HashSet, HashSetExt as _};
use fordway_sys::{
    DirectoryChange, DirectoryWatcher, EntryKind, Errno, FileStat, keeps_entries_in_place, kind_in,
    name_to_text, read_dir, read_dir_in_steps, rewind, stat,
};

use crate::private::{is_settled, times};

/// The maximum number of reads under a watch. A further read is needed only if the kernel's queue overflowed.
const WATCHED_READS_MAX: usize = 3;
/// The number of entries after which the queue is emptied, so that the queue does not overflow during a long read.
const ENTRIES_BETWEEN: usize = 2_000;
/// The maximum number of further reads if the directory cannot be watched.
const UNWATCHED_READS_MAX: usize = 4;

/// Creates a collection with `begin`, calls `add` with it for every entry of `dir`, and returns the collection. The
/// result contains every name that exists during the whole call, and may contain a name twice. `dir` must be at its
/// start, and `before` is its state before this call. Without `before`, the directory is read only once, and renamed
/// names may be missing. Cost: as for [`read_dir`]; one `fstat` more if the entries needed several `getdents64`; if the
/// directory may have changed in the meantime, also one `fstatfs`, and except on ext4 and XFS, a second read.
pub(crate) fn collect_entries<C>(
    dir: &File,
    before: Option<&FileStat>,
    begin: impl Fn() -> C,
    mut add: impl FnMut(&mut C, &[u8], EntryKind),
) -> Result<C, Errno> {
    // A change within the clock tick of the directory's previous change might not alter the times.
    let shows_changes = before.is_some_and(is_settled);
    let mut found = begin();
    let is_snapshot = read_dir_in_steps(dir, |name, kind| add(&mut found, name, kind))?;
    let Some(before) = before.filter(|_| !is_snapshot) else { return Ok(found) };
    let is_unchanged = shows_changes && stat(dir).is_ok_and(|after| times(&after) == times(before));
    if is_unchanged || keeps_entries_in_place(dir) {
        return Ok(found);
    }
    for _ in 0..WATCHED_READS_MAX {
        let Some(queue) = watch(dir) else { break };
        let mut again = begin();
        if collect_watched(dir, queue, |name, kind| add(&mut again, name, kind))? {
            return Ok(again);
        }
    }
    collect_repeatedly(dir, |name, kind| add(&mut found, name, kind))?;
    Ok(found)
}

fn watch(dir: &File) -> Option<DirectoryWatcher> {
    let queue = DirectoryWatcher::new().ok()?;
    queue.watch(dir).ok().map(|_| queue)
}

/// Calls `add` for every entry of `dir`, and for every name that was created, or renamed to, during the read. `queue`
/// watches `dir`. Returns `false` if the queue has overflowed, so that names may be missing.
#[cold]
fn collect_watched(
    dir: &File,
    mut queue: DirectoryWatcher,
    mut add: impl FnMut(&[u8], EntryKind),
) -> Result<bool, Errno> {
    let (mut made, mut is_complete, mut count): (HashSet<Box<[u8]>>, _, _) = (HashSet::new(), true, 0);
    let mut empty_queue = |made: &mut HashSet<Box<[u8]>>| {
        let read = queue.changes(|_, change| {
            if let DirectoryChange::Made { name, .. } = change
                && !made.contains(name)
            {
                made.insert(name.into());
            }
        });
        is_complete &= read.is_ok();
    };
    rewind(dir)?;
    read_dir(dir, |name, kind| {
        count += 1;
        if count % ENTRIES_BETWEEN == 0 {
            empty_queue(&mut made);
        }
        add(name, kind);
    })?;
    empty_queue(&mut made);
    for name in made {
        // A name that is gone did not exist during the whole read.
        if let Ok(kind) = kind_in(dir, &name_to_text(&name)) {
            add(&name, kind);
        }
    }
    Ok(is_complete)
}

/// Reads `dir` again until it does not change during a read, at most [`UNWATCHED_READS_MAX`] times. A name is then
/// missing only if its entry was moved during each of the reads, and each time from a place that the read had not
/// reached yet.
#[cold]
fn collect_repeatedly(dir: &File, mut add: impl FnMut(&[u8], EntryKind)) -> Result<(), Errno> {
    for _ in 0..UNWATCHED_READS_MAX {
        let before = stat(dir)?;
        let shows_changes = is_settled(&before);
        rewind(dir)?;
        read_dir(dir, &mut add)?;
        if shows_changes && times(&stat(dir)?) == times(&before) {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;

    /// More names than one `getdents64` returns.
    const NAMES: usize = 3_000;

    /// A directory on tmpfs, where a rename over a name moves the directory entry.
    struct Rig {
        root: tempfile::TempDir,
        dir: File,
        before: FileStat,
    }

    impl Rig {
        fn new() -> Option<Self> {
            let root = tempfile::tempdir_in("/dev/shm")
                .ok()
                .filter(|root| File::open(root.path()).is_ok_and(|dir| !keeps_entries_in_place(dir)));
            let Some(root) = root else {
                fordway_needs::skip("/dev/shm is not a tmpfs");
                return None;
            };
            fs::create_dir(root.path().join("names")).unwrap();
            for at in 0..NAMES {
                fs::write(root.path().join(format!("names/{at:05}")), "").unwrap();
            }
            let dir = File::open(root.path().join("names")).unwrap();
            let before = stat(&dir).unwrap();
            Some(Rig { root, dir, before })
        }

        /// Replaces the oldest and the newest files, as overwrites of these objects do. A read of the directory begins
        /// with either the oldest or the newest files.
        fn replace_some(&self) {
            let new = self.root.path().join("new");
            for at in (0..NAMES / 10).chain(NAMES - NAMES / 10..NAMES) {
                fs::write(&new, "").unwrap();
                fs::rename(&new, self.root.path().join(format!("names/{at:05}"))).unwrap();
            }
        }

        /// Returns the number of names found by a read during which files are replaced.
        fn found(&self, before: Option<&FileStat>) -> usize {
            let names = collect_entries(&self.dir, before, BTreeSet::new, |names, name, _| {
                // The first `getdents64` of a read has returned.
                if names.is_empty() {
                    self.replace_some();
                }
                names.insert(name.to_owned());
            });
            names.unwrap().len()
        }
    }

    #[test]
    fn names_that_are_replaced_during_a_read_are_found() {
        let Some(rig) = Rig::new() else { return };
        if rig.found(None) == NAMES {
            return fordway_needs::skip("a rename in this tmpfs moves no directory entry");
        }
        rewind(&rig.dir).unwrap();
        assert_eq!(rig.found(Some(&rig.before)), NAMES);
    }

    #[test]
    fn names_are_found_without_a_watch_once_the_directory_is_unchanged() {
        let Some(rig) = Rig::new() else { return };
        let (mut names, mut reads) = (BTreeSet::new(), 0);
        collect_repeatedly(&rig.dir, |name, _| {
            if reads == 0 {
                rig.replace_some();
            }
            reads += 1;
            names.insert(name.to_owned());
        })
        .unwrap();
        assert_eq!(names.len(), NAMES);
    }
}
