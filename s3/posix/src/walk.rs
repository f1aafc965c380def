//! The path of a listing's walk through a bucket, and the directories that the walk need not enter again.
//!
//! Symbolic links to directories can lead a walk to one directory many times. If each directory contains two links to
//! the next one, the number of paths doubles with each level. Each path has its own keys, so a directory with objects
//! is listed once for each path. The walk records which directories contain no objects. Its cost therefore depends on
//! the number of directories and listed keys, not on the number of paths.

use foldhash::HashMap;

use crate::index::DirectoryId;

/// The maximum number of directory levels in the path of a 1,024-byte key.
const MAX_DEPTH: usize = 512;

/// A directory on the path of the walk.
struct EnteredDirectory {
    id: DirectoryId,
    /// The sequence number of the entry. The walk numbers the directories in the order in which it enters them.
    entry: u64,
}

/// The reasons why the walk did not enter directories, although they may contain objects.
#[derive(Clone, Copy, Default)]
struct SkippedDirectories {
    /// The directories are on the path of the walk, at the levels given by these bits.
    levels: [u64; MAX_DEPTH / 64],
    /// The keys in the directories are too long.
    are_long: bool,
    /// Symbolic links could not be followed. The kernel follows at most 40 links on a path, so a shorter path may
    /// succeed.
    are_linked: bool,
}

impl SkippedDirectories {
    fn add_level(&mut self, level: usize) {
        self.levels[level / 64] |= 1 << (level % 64);
    }

    fn add(&mut self, other: &SkippedDirectories) {
        self.levels.iter_mut().zip(other.levels).for_each(|(bits, more)| *bits |= more);
        self.are_long |= other.are_long;
        self.are_linked |= other.are_linked;
    }

    /// Drops the levels from `level` on.
    fn end_at(&mut self, level: usize) {
        for (at, bits) in self.levels.iter_mut().enumerate() {
            let kept = level.saturating_sub(at * 64).min(64) as u32;
            *bits &= 1u64.checked_shl(kept).map_or(u64::MAX, |bit| bit - 1);
        }
    }

    fn deepest_level(&self) -> Option<usize> {
        let (at, bits) = self.levels.iter().enumerate().rfind(|(_, bits)| **bits != 0)?;
        Some(at * 64 + bits.ilog2() as usize)
    }
}

/// A directory in which the walk has found no objects.
struct EmptyDirectory {
    /// The directories that the walk did not enter from this directory.
    skipped: SkippedDirectories,
    /// The deepest directory on the walk's path that was skipped, as its level and its entry. `EmptyDirectory` applies
    /// only while the walk is in the skipped directory. `None` if no directory on the path was skipped; the walk may
    /// then be anywhere.
    within: Option<(usize, u64)>,
    /// The number of bytes in the directory's key. Below a shorter key, fewer keys are too long.
    key_bytes: usize,
    /// The number of directories above this directory. On a path with fewer directories, more symbolic links may be
    /// followed.
    level: usize,
}

/// The state of the walk when it entered a directory.
pub(crate) struct DirectoryVisit {
    skipped: SkippedDirectories,
    found: u64,
}

/// The path of a walk.
#[derive(Default)]
pub(crate) struct WalkPath {
    /// The directories from the start of the walk down to the current one.
    above: Vec<EnteredDirectory>,
    entries: u64,
    empty: HashMap<DirectoryId, EmptyDirectory>,
    /// The directories that were skipped since the current directory was entered.
    skipped: SkippedDirectories,
    /// The number of entries found so far that show that a directory is not empty.
    found: u64,
    /// Whether the walk has seen a symbolic link. Without symbolic links, the walk enters no directory twice.
    has_links: bool,
}

impl WalkPath {
    /// Returns whether the walk has not entered a directory yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.above.is_empty()
    }

    /// Returns whether the walk is already in the directory `id`, or is too deep to enter another directory.
    pub(crate) fn has(&mut self, id: DirectoryId) -> bool {
        match self.above.iter().position(|above| above.id == id) {
            Some(level) => self.skipped.add_level(level),
            // Each level adds at least two bytes to the path, so all further keys are too long.
            None if self.above.len() >= MAX_DEPTH => self.skipped.are_long = true,
            None => return false,
        }
        true
    }

    /// Returns whether the directory `id`, with a key of `key_bytes`, is known to contain no objects.
    pub(crate) fn knows_as_empty(&mut self, id: DirectoryId, key_bytes: usize) -> bool {
        let Some(empty) = self.empty.get(&id) else { return false };
        let is_within = empty
            .within
            .is_none_or(|(level, entry)| self.above.get(level).is_some_and(|above| above.entry == entry));
        let is_long_enough = !empty.skipped.are_long || key_bytes >= empty.key_bytes;
        let is_deep_enough = !empty.skipped.are_linked || self.above.len() >= empty.level;
        if !(is_within && is_long_enough && is_deep_enough) {
            return false;
        }
        self.skipped.add(&empty.skipped);
        true
    }

    pub(crate) fn enter(&mut self, id: DirectoryId) {
        self.entries += 1;
        self.above.push(EnteredDirectory { id, entry: self.entries });
    }

    pub(crate) fn leave(&mut self) {
        self.above.pop();
    }

    /// Begins the visit of the directory that is entered next. `has_links` is true if the directory contains symbolic
    /// links.
    pub(crate) fn begin(&mut self, has_links: bool) -> DirectoryVisit {
        self.has_links |= has_links;
        DirectoryVisit { skipped: std::mem::take(&mut self.skipped), found: self.found }
    }

    /// Records whether the directory that was entered last contains symbolic links.
    pub(crate) fn note_links(&mut self, has_links: bool) {
        self.has_links |= has_links;
    }

    /// Ends a visit. `id` is the directory, or `None` if it was not visited completely; `key_bytes` is the length of
    /// its key.
    pub(crate) fn end(&mut self, visit: DirectoryVisit, id: Option<DirectoryId>, key_bytes: usize) {
        // Links back to the visited directory itself need not be recorded, because the next visit skips them again.
        self.skipped.end_at(self.above.len());
        if let Some(id) = id
            && self.has_links
            && self.found == visit.found
        {
            let deepest = self.skipped.deepest_level();
            let within = deepest.map(|level| (level, self.above[level].entry));
            self.empty.insert(
                id,
                EmptyDirectory { skipped: self.skipped, within, key_bytes, level: self.above.len() },
            );
        }
        self.skipped.add(&visit.skipped);
    }

    /// Records that the directory entered last is not empty.
    pub(crate) fn note_found(&mut self) {
        self.found += 1;
    }

    /// Records that a symbolic link was skipped because it could not be followed.
    pub(crate) fn note_refused_link(&mut self) {
        self.skipped.are_linked = true;
    }

    /// Records that a key was skipped because it is too long.
    pub(crate) fn note_long(&mut self) {
        self.skipped.are_long = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_bits() {
        let mut skipped = SkippedDirectories::default();
        for level in [0, 63, 64, 127, 128, 511] {
            skipped.add_level(level);
        }
        for (end, deepest) in [
            (512, Some(511)),
            (511, Some(128)),
            (128, Some(127)),
            (127, Some(64)),
            (64, Some(63)),
            (1, Some(0)),
            (0, None),
        ] {
            skipped.end_at(end);
            assert_eq!(skipped.deepest_level(), deepest, "{end}");
        }
    }
}
