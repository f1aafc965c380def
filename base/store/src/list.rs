//! Listings: one page of a bucket, and the rules for turning keys into entries.

use std::time::SystemTime;

use crate::{ETag, Result};

/// The maximum number of entries on one page (S3's limit).
pub const MAX_KEYS: usize = 1000;

/// Selects the part of a bucket to list.
#[derive(Clone, Debug)]
pub struct ListQuery {
    /// Restricts the listing to keys with this prefix.
    pub prefix: String,
    /// Keys that are equal up to the first delimiter after `prefix` are rolled up into one entry.
    pub delimiter: Option<String>,
    /// Restricts the listing to entries after this name in byte order: a key, or the `next` of the previous page.
    pub start_after: Option<String>,
    /// The maximum number of entries to return; in-process stores allow more than [`MAX_KEYS`].
    pub max_keys: usize,
}

impl Default for ListQuery {
    fn default() -> Self {
        ListQuery { prefix: String::new(), delimiter: None, start_after: None, max_keys: MAX_KEYS }
    }
}

impl ListQuery {
    /// Returns a query for the keys that start with `prefix`, from the first of these keys.
    pub fn prefix(prefix: impl Into<String>) -> Self {
        ListQuery { prefix: prefix.into(), ..Default::default() }
    }

    /// Returns the part of `key` up to and including the first delimiter after the prefix; `None` if there is no such
    /// delimiter.
    pub fn common_prefix<'k>(&self, key: &'k str) -> Option<&'k str> {
        let delimiter = self.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty())?;
        let tail = key.strip_prefix(self.prefix.as_str())?;
        tail.find(delimiter).map(|at| &key[..self.prefix.len() + at + delimiter.len()])
    }

    /// Returns whether `key` comes after `start_after`. If `start_after` is a common prefix, it was an entry of the
    /// previous page. That entry represents every key below the prefix, so none of these keys comes after it.
    pub fn is_after_start(&self, key: &str) -> bool {
        let Some(start) = &self.start_after else { return true };
        key > start.as_str() && self.shown_prefix(key).is_none()
    }

    /// Returns `start_after` if it is a common prefix that represents `key`.
    fn shown_prefix(&self, key: &str) -> Option<&str> {
        let start = self.start_after.as_deref().filter(|start| key.starts_with(start))?;
        (self.common_prefix(start) == Some(start)).then_some(start)
    }
}

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectSummary {
    /// The key.
    pub key: String,
    /// The size in bytes.
    pub size: u64,
    /// The ETag.
    pub etag: ETag,
    /// The time at which the object was last written.
    pub modified: SystemTime,
    /// The algorithm and type of the object's checksum, if they are known without further reads.
    pub checksum: Option<crate::ChecksumAlgorithmAndType>,
}

/// One entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListEntry {
    /// An object.
    Object(ObjectSummary),
    /// A prefix that one or more keys share.
    CommonPrefix(String),
}

impl ListEntry {
    /// Returns the key or the prefix. Entries are ordered by this name.
    pub fn name(&self) -> &str {
        match self {
            ListEntry::Object(object) => &object.key,
            ListEntry::CommonPrefix(prefix) => prefix,
        }
    }

    /// Returns the object, if the entry is an object.
    pub fn object(&self) -> Option<&ObjectSummary> {
        match self {
            ListEntry::Object(object) => Some(object),
            ListEntry::CommonPrefix(_) => None,
        }
    }
}

/// One page of a bucket's listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectListing {
    /// Objects and common prefixes, in byte order of their names.
    pub entries: Vec<ListEntry>,
    /// The `start_after` of the next page; `None` on the last page.
    pub next: Option<String>,
}

/// Tells the code that walks a bucket how to continue after it has offered a key.
#[derive(Debug, PartialEq, Eq)]
pub enum WalkInstruction {
    /// Offer the next key.
    Next,
    /// Skip the remaining keys that start with this prefix, because the last entry of this page or of the previous page
    /// represents them.
    SkipPrefix(String),
    /// The page is full.
    Full,
}

/// Turns keys that arrive in byte order into one page.
pub struct ListPageBuilder<'q> {
    query: &'q ListQuery,
    entries: Vec<ListEntry>,
    full: bool,
}

impl<'q> ListPageBuilder<'q> {
    /// Starts an empty page for `query`.
    pub fn new(query: &'q ListQuery) -> Self {
        ListPageBuilder { query, entries: Vec::new(), full: false }
    }

    /// Adds `key`, or its common prefix, to the page if the query selects it. Calls `describe` only if the key itself
    /// becomes an entry; `describe` returns `None` if the object no longer exists.
    pub fn offer(
        &mut self,
        key: &str,
        describe: impl FnOnce() -> Result<Option<ObjectSummary>>,
    ) -> Result<WalkInstruction> {
        // Most listings have no prefix, and a comparison with an empty prefix would still call libc.
        let prefix = self.query.prefix.as_str();
        if !(prefix.is_empty() || key.starts_with(prefix)) {
            return Ok(WalkInstruction::Next);
        }
        if !self.query.is_after_start(key) {
            let shown = self.query.shown_prefix(key);
            return Ok(
                shown.map_or(WalkInstruction::Next, |shown| WalkInstruction::SkipPrefix(shown.to_owned()))
            );
        }
        let prefix = self.query.common_prefix(key);
        let last = self.entries.last().map(ListEntry::name);
        // Keys arrive in order, so all keys below one prefix are adjacent.
        if let Some(prefix) = prefix.filter(|prefix| Some(*prefix) == last) {
            return Ok(WalkInstruction::SkipPrefix(prefix.to_owned()));
        }
        // The page counts as full only if there is an entry for the next page. The next page is therefore never empty.
        if self.entries.len() >= self.query.max_keys {
            self.full = true;
            return Ok(WalkInstruction::Full);
        }
        match prefix {
            Some(prefix) => {
                self.entries.push(ListEntry::CommonPrefix(prefix.to_owned()));
                Ok(WalkInstruction::SkipPrefix(prefix.to_owned()))
            }
            None => {
                self.entries.extend(describe()?.map(ListEntry::Object));
                Ok(WalkInstruction::Next)
            }
        }
    }

    /// Returns the page. The page's `next` is set only if an offered key did not fit.
    pub fn finish(self) -> ObjectListing {
        let last = self.entries.last().map(|entry| entry.name().to_owned());
        ObjectListing { next: last.filter(|_| self.full), entries: self.entries }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn page(keys: &[&str], query: &ListQuery) -> (Vec<String>, Option<String>) {
        let mut collector = ListPageBuilder::new(query);
        for key in keys {
            let summary = ObjectSummary {
                key: (*key).to_owned(),
                size: 0,
                etag: ETag::new("t"),
                modified: UNIX_EPOCH,
                checksum: None,
            };
            if collector.offer(key, || Ok(Some(summary))).unwrap() == WalkInstruction::Full {
                break;
            }
        }
        let listing = collector.finish();
        (listing.entries.iter().map(|entry| entry.name().to_owned()).collect(), listing.next)
    }

    #[test]
    fn pages_of_any_size_are_the_whole() {
        let keys = ["a", "b/", "b/1", "b/2/x", "c", "d/1", "d/2"];
        for (delimiter, whole) in [(None, keys.to_vec()), (Some("/".to_owned()), vec!["a", "b/", "c", "d/"])]
        {
            for max_keys in 1..9 {
                let mut query = ListQuery { delimiter: delimiter.clone(), max_keys, ..Default::default() };
                let mut seen = Vec::new();
                loop {
                    let (entries, next) = page(&keys, &query);
                    assert!(entries.len() <= max_keys);
                    seen.extend(entries);
                    if next.is_none() {
                        break;
                    }
                    query.start_after = next;
                }
                assert_eq!(seen, whole, "pages of {max_keys}");
            }
        }
    }

    /// The object `p/` is an entry of a listing with the prefix `p/`, and does not represent the other keys that start
    /// with `p/`.
    #[test]
    fn a_marker_that_is_the_prefix_hides_nothing() {
        let keys = ["p/", "p/a", "p/b/1"];
        let query = ListQuery { delimiter: Some("/".into()), max_keys: 1, ..ListQuery::prefix("p/") };
        assert_eq!(page(&keys, &query), (vec!["p/".into()], Some("p/".into())));
        let rest = ListQuery { start_after: Some("p/".into()), max_keys: 9, ..query };
        assert_eq!(page(&keys, &rest), (vec!["p/a".into(), "p/b/".into()], None));
    }

    #[test]
    fn prefix_and_delimiter() {
        let keys = ["p/a", "p/b/1", "p/b/2", "q"];
        let query = ListQuery { delimiter: Some("/".into()), ..ListQuery::prefix("p/") };
        assert_eq!(page(&keys, &query), (vec!["p/a".into(), "p/b/".into()], None));
        let query = ListQuery { max_keys: 0, ..Default::default() };
        assert_eq!(page(&keys, &query), (vec![], None));
    }
}
