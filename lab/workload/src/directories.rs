//! What the directories of a tree have to do with the cost of each object: who is first in one pays for making
//! it, who is last may pay for removing it.

use std::collections::HashSet;

use fordway_measure::ObjectRecord;

/// The records of objects with these keys and sizes in bytes, put, and later removed, in this order in `round`.
pub(crate) fn records<'k>(round: u16, objects: impl Iterator<Item = (&'k str, u64)>) -> Vec<ObjectRecord> {
    let objects: Vec<_> = objects.collect();
    let mut known = HashSet::new();
    let made: Vec<u16> = objects.iter().map(|(key, _)| new_in(&mut known, key)).collect();
    known.clear();
    // Backwards, the first to mention a directory is the last object in it.
    let emptied: Vec<u16> = objects.iter().rev().map(|(key, _)| new_in(&mut known, key)).collect();
    let with_directories = objects.iter().zip(made).zip(emptied.into_iter().rev());
    with_directories
        .map(|((&(key, bytes), made_directories), emptied_directories)| ObjectRecord {
            round,
            bytes,
            directories: above(key).count() as u16,
            made_directories,
            emptied_directories,
        })
        .collect()
}

/// The directories above `key`, outermost first.
fn above(key: &str) -> impl Iterator<Item = &str> {
    key.match_indices('/').map(|(at, _)| &key[..at])
}

fn new_in<'k>(known: &mut HashSet<&'k str>, key: &'k str) -> u16 {
    above(key).map(|directory| u16::from(known.insert(directory))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_makes_and_the_last_empties() {
        let keys = ["a/b/1", "top", "a/2", "a/b/3", "c/4"];
        let found = records(7, keys.iter().map(|key| (*key, 5)));
        let column = |value: fn(&ObjectRecord) -> u16| found.iter().map(value).collect::<Vec<_>>();
        assert_eq!(column(|object| object.directories), [2, 0, 1, 2, 1]);
        assert_eq!(column(|object| object.made_directories), [2, 0, 0, 0, 1]);
        assert_eq!(column(|object| object.emptied_directories), [0, 0, 0, 2, 1]);
        assert!(found.iter().all(|object| (object.round, object.bytes) == (7, 5)));
    }
}
