//! Batches of versions that several workers remove at the same time.
//!
//! A store locks a key while it removes a version of the key. Workers that removed versions of one key at the same time
//! would therefore only wait for each other, and a gateway refuses a request that waits too long. Therefore, all
//! versions of a key are in one batch. If a key has too many versions for one batch, its batches are removed one after
//! the other.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, PoisonError};

use fordway_store::{Result, VersionSummary};

/// The maximum number of versions in a batch: as many as one request of S3 can remove.
const BATCH_MAX: usize = 1000;

/// Groups the pages of a version listing into batches. Versions of one key are divided between batches only if they do
/// not fit into one batch. In that case, all of these batches except the last contain only this key.
pub(super) struct VersionBatches<P> {
    pages: P,
    /// Versions that were listed, but are in no batch yet.
    listed: Vec<VersionSummary>,
}

impl<P: Iterator<Item = Result<Vec<VersionSummary>>>> VersionBatches<P> {
    pub(super) fn new(pages: P) -> Self {
        VersionBatches { pages, listed: Vec::new() }
    }
}

impl<P: Iterator<Item = Result<Vec<VersionSummary>>>> Iterator for VersionBatches<P> {
    type Item = Result<Vec<VersionSummary>>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.listed.len() <= BATCH_MAX {
            match self.pages.next() {
                Some(Ok(page)) => self.listed.extend(page),
                Some(Err(error)) => return Some(Err(error)),
                None => {
                    let last = std::mem::take(&mut self.listed);
                    return (!last.is_empty()).then_some(Ok(last));
                }
            }
        }
        let next_key = &self.listed[BATCH_MAX].key;
        let last_other = self.listed[..BATCH_MAX].iter().rposition(|version| version.key != *next_key);
        let rest = self.listed.split_off(last_other.map_or(BATCH_MAX, |at| at + 1));
        Some(Ok(std::mem::replace(&mut self.listed, rest)))
    }
}

/// The first keys of the batches that are being removed.
#[derive(Default)]
pub(super) struct BusyKeys {
    keys: Mutex<HashSet<String>>,
    is_freed: Condvar,
}

impl BusyKeys {
    /// Waits until no other worker removes a batch that begins with `key`. The key is busy until the result is dropped.
    pub(super) fn wait_for(&self, key: &str) -> BusyKey<'_> {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.is_freed.wait_while(keys, |keys| keys.contains(key));
        waited.unwrap_or_else(PoisonError::into_inner).insert(key.to_owned());
        BusyKey { keys: self, key: key.to_owned() }
    }
}

/// A key whose versions one worker is removing.
pub(super) struct BusyKey<'k> {
    keys: &'k BusyKeys,
    key: String,
}

impl Drop for BusyKey<'_> {
    fn drop(&mut self) {
        self.keys.keys.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
        self.keys.is_freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use fordway_store::{ErrorKind, VersionId};

    use super::*;

    fn versions(key: &str, count: usize) -> Vec<VersionSummary> {
        let version = VersionSummary {
            key: key.to_owned(),
            version: VersionId::null(),
            is_latest: false,
            modified: SystemTime::UNIX_EPOCH,
            content: None,
            checksum: None,
        };
        vec![version; count]
    }

    /// Returns the keys of each batch, with the number of their versions.
    fn batches(pages: Vec<Result<Vec<VersionSummary>>>) -> Vec<Result<Vec<(String, usize)>>> {
        let counted = |batch: Vec<VersionSummary>| {
            let groups = batch.chunk_by(|one, next| one.key == next.key);
            groups.map(|group| (group[0].key.clone(), group.len())).collect()
        };
        VersionBatches::new(pages.into_iter()).map(|batch| batch.map(counted)).collect()
    }

    fn all(batches: Vec<Result<Vec<(String, usize)>>>) -> Vec<Vec<(String, usize)>> {
        batches.into_iter().map(Result::unwrap).collect()
    }

    fn counts(batch: &[(&str, usize)]) -> Vec<(String, usize)> {
        batch.iter().map(|(key, count)| ((*key).to_owned(), *count)).collect()
    }

    #[test]
    fn a_key_is_in_one_batch() {
        let page = |parts: &[(&str, usize)]| Ok(parts.iter().flat_map(|(k, n)| versions(k, *n)).collect());
        let found = all(batches(vec![
            page(&[("a", 400), ("b", 600)]),
            page(&[("b", 300), ("c", 700)]),
            page(&[]),
            page(&[("c", 300), ("d", 2)]),
        ]));
        assert_eq!(
            found,
            [counts(&[("a", 400)]), counts(&[("b", 900)]), counts(&[("c", 1000)]), counts(&[("d", 2)])]
        );
        assert!(batches(vec![page(&[])]).is_empty());
    }

    #[test]
    fn a_key_with_too_many_versions_begins_its_batches() {
        let mut pages = vec![Ok([versions("a", 1), versions("b", 999)].concat())];
        pages.extend((0..2).map(|_| Ok(versions("b", 1000))));
        pages.push(Ok(versions("c", 5)));
        let found = all(batches(pages));
        let [first, full] = [counts(&[("a", 1)]), counts(&[("b", 1000)])];
        assert_eq!(found, [first, full.clone(), full, counts(&[("b", 999)]), counts(&[("c", 5)])]);
    }

    #[test]
    fn what_was_listed_before_an_error_is_still_in_a_batch() {
        let found = batches(vec![Ok(versions("a", 3)), Err(ErrorKind::Unavailable.into())]);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].as_ref().unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(*found[1].as_ref().unwrap(), counts(&[("a", 3)]));
    }
}
