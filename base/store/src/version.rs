//! Versions of objects: their IDs, a bucket's versioning state, and pages of versions.

use std::fmt;
use std::time::SystemTime;

use crate::list::{ListQuery, MAX_KEYS, WalkInstruction};
use crate::{ChecksumAlgorithmAndType, ETag, Error, ErrorKind, Result};

/// The ID of one version of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VersionId(Box<str>);

impl VersionId {
    /// The ID of a version that is written while its bucket keeps no versions.
    pub const NULL: &'static str = "null";
    /// The maximum length of an ID (S3's limit).
    pub const MAX_BYTES: usize = 1024;
    /// The minimum length of the IDs, other than `null`, that Fordway's stores generate.
    pub const GENERATED_BYTES_MIN: usize = 24;

    /// Checks an ID that a client sent: 1 to 1,024 visible ASCII characters. Errors: `NoSuchVersion` for any other
    /// string, because no store creates such an ID.
    pub fn new(id: impl Into<String>) -> Result<Self> {
        let id = id.into();
        match (1..=Self::MAX_BYTES).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(VersionId(id.into())),
            false => Err(Error::new(ErrorKind::NoSuchVersion, format!("{id:?} is not a version ID"))),
        }
    }

    /// Checks that Fordway's stores may have generated this ID. Without the check, a delete would report success for a
    /// string that is never a version ID, such as `None`. Errors: `NoSuchVersion`.
    pub fn check_generated(&self) -> Result<()> {
        match self.is_null() || self.0.len() >= Self::GENERATED_BYTES_MIN {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::NoSuchVersion, format!("{:?} is not a version ID", self.0))),
        }
    }

    /// Returns the version `null`.
    pub fn null() -> Self {
        VersionId(Self::NULL.into())
    }

    /// Returns whether this is the version `null`.
    pub fn is_null(&self) -> bool {
        &*self.0 == Self::NULL
    }

    /// Returns the ID as a string.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for VersionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The versioning state of a bucket: whether it keeps overwritten and deleted versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VersioningState {
    /// The bucket never kept versions.
    #[default]
    Unversioned,
    /// The bucket keeps versions: every write creates a version with a new ID, and every delete creates a delete
    /// marker.
    Enabled,
    /// The bucket kept versions and still has them; writes replace the version `null`.
    Suspended,
}

impl VersioningState {
    /// Checks that a bucket can be set to this state. Errors: `InvalidArgument` for [`VersioningState::Unversioned`].
    pub fn check_settable(self) -> Result<()> {
        match self {
            VersioningState::Enabled | VersioningState::Suspended => Ok(()),
            VersioningState::Unversioned => Err(Error::new(
                ErrorKind::InvalidArgument,
                "versioning can be enabled or suspended, but not turned off",
            )),
        }
    }
}

impl VersioningState {
    /// Checks that object lock can be enabled for a bucket in this state. Errors: `InvalidArgument` if the bucket does
    /// not keep versions.
    pub fn check_lockable(self) -> Result<()> {
        match self {
            VersioningState::Enabled => Ok(()),
            VersioningState::Unversioned | VersioningState::Suspended => Err(Error::new(
                ErrorKind::InvalidArgument,
                "object lock needs a bucket that keeps versions; enable versioning first",
            )),
        }
    }

    /// Checks that a bucket can be set to this state; `has_object_lock` is true if the bucket has object lock. Errors:
    /// `InvalidArgument` if a bucket with object lock would stop keeping versions.
    pub fn check_lock(self, has_object_lock: bool) -> Result<()> {
        match has_object_lock && self != VersioningState::Enabled {
            true => Err(Error::new(
                ErrorKind::InvalidArgument,
                "the bucket has object lock, so its versioning stays enabled",
            )),
            false => Ok(()),
        }
    }
}

/// The result of a delete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteResult {
    /// The version that was removed, or the delete marker that was created; `None` in a bucket without versions.
    pub version: Option<VersionId>,
    /// Whether `version` is a delete marker.
    pub is_marker: bool,
}

/// One version of an object, or a delete marker, in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionSummary {
    /// The key.
    pub key: String,
    /// The version ID.
    pub version: VersionId,
    /// Whether this is the version that a request without a version ID refers to.
    pub is_latest: bool,
    /// The time at which the version was written.
    pub modified: SystemTime,
    /// Size in bytes, and ETag; `None` for a delete marker.
    pub content: Option<(u64, ETag)>,
    /// The algorithm and type of the version's checksum, without the value.
    pub checksum: Option<ChecksumAlgorithmAndType>,
}

/// Selects the versions to list.
#[derive(Clone, Debug)]
pub struct VersionsQuery {
    /// Restricts the listing to keys with this prefix.
    pub prefix: String,
    /// Keys that are equal up to the first delimiter after `prefix` are rolled up into one entry.
    pub delimiter: Option<String>,
    /// Restricts the listing to keys after this key; with `version_after`, older versions of this key are also listed.
    pub key_after: Option<String>,
    /// With `key_after`, restricts the listing to versions of that key that are older than this version, and to
    /// versions of later keys.
    pub version_after: Option<VersionId>,
    /// The maximum number of versions and common prefixes to return.
    pub max_keys: usize,
}

impl Default for VersionsQuery {
    fn default() -> Self {
        VersionsQuery {
            prefix: String::new(),
            delimiter: None,
            key_after: None,
            version_after: None,
            max_keys: MAX_KEYS,
        }
    }
}

impl VersionsQuery {
    /// Returns the query for a listing of the keys that may have versions on this page.
    pub fn keys(&self) -> ListQuery {
        ListQuery {
            prefix: self.prefix.clone(),
            delimiter: self.delimiter.clone(),
            start_after: self.key_after.clone(),
            max_keys: self.max_keys,
        }
    }

    /// Returns whether some versions of `key` were on the previous page.
    fn is_resumed(&self, key: &str) -> bool {
        self.version_after.is_some() && self.key_after.as_deref() == Some(key)
    }
}

/// One page of versions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionListing {
    /// The versions, in byte order of their keys; the versions of one key are sorted from the newest to the oldest.
    pub versions: Vec<VersionSummary>,
    /// Prefixes that one or more keys share, in byte order.
    pub prefixes: Vec<String>,
    /// The `key_after` and `version_after` of the next page; `None` on the last page.
    pub next: Option<(String, Option<VersionId>)>,
}

/// Turns keys that arrive in byte order, with their versions, into one page.
pub struct VersionPageBuilder<'q> {
    query: &'q VersionsQuery,
    keys: ListQuery,
    page: VersionListing,
    last: Option<(String, Option<VersionId>)>,
}

impl<'q> VersionPageBuilder<'q> {
    /// Starts an empty page for `query`.
    pub fn new(query: &'q VersionsQuery) -> Self {
        VersionPageBuilder { query, keys: query.keys(), page: VersionListing::default(), last: None }
    }

    /// Adds the versions of `key`, or its common prefix, to the page if the query selects them. `list` is called only
    /// if the key's versions may become entries, and returns versions from the newest to the oldest. The argument of
    /// `list` is the key's last version on the previous page, and `list` returns only versions after this version. If
    /// the argument is `None`, `list` returns all versions. `list` also returns all versions if the version no longer
    /// exists, because its position is then unknown. `describe` is called only for versions that become entries, and
    /// returns `None` for a version that no longer exists.
    pub fn offer<V, L: Iterator<Item = (VersionId, V)>>(
        &mut self,
        key: &str,
        list: impl FnOnce(Option<&VersionId>) -> Result<L>,
        mut describe: impl FnMut(V) -> Result<Option<VersionSummary>>,
    ) -> Result<WalkInstruction> {
        let is_wanted = key.starts_with(&self.query.prefix)
            && (self.keys.is_after_start(key) || self.query.is_resumed(key));
        if !is_wanted {
            return Ok(WalkInstruction::Next);
        }
        if let Some(prefix) = self.keys.common_prefix(key).map(str::to_owned) {
            return Ok(self.offer_prefix(prefix));
        }
        let after = self.query.version_after.as_ref().filter(|_| self.query.is_resumed(key));
        for (name, version) in list(after)? {
            if self.is_full() {
                return Ok(WalkInstruction::Full);
            }
            self.last = Some((key.to_owned(), Some(name)));
            self.page.versions.extend(describe(version)?);
        }
        Ok(WalkInstruction::Next)
    }

    /// Adds a common prefix. At least one key with this prefix must be after the start of the page.
    pub fn offer_prefix(&mut self, prefix: String) -> WalkInstruction {
        // This check precedes the check for room on the page, because a prefix that is already on the page needs no
        // further entry.
        if self.page.prefixes.last() != Some(&prefix) {
            if self.is_full() {
                return WalkInstruction::Full;
            }
            self.last = Some((prefix.clone(), None));
            self.page.prefixes.push(prefix.clone());
        }
        WalkInstruction::SkipPrefix(prefix)
    }

    /// Returns whether the page is full. If the page is full, sets its `next` to the last entry.
    fn is_full(&mut self) -> bool {
        let is_full = self.page.versions.len() + self.page.prefixes.len() >= self.query.max_keys;
        if is_full {
            self.page.next = self.last.clone();
        }
        is_full
    }

    /// Returns the page.
    pub fn finish(self) -> VersionListing {
        self.page
    }
}

/// Returns the elements of `versions` after the version `after`, or all elements if none of them is `after`.
pub(crate) fn versions_after<V>(
    mut versions: Vec<(VersionId, V)>,
    after: Option<&VersionId>,
) -> std::vec::IntoIter<(VersionId, V)> {
    let shown = versions.iter().position(|(name, _)| after == Some(name)).map_or(0, |at| at + 1);
    versions.drain(..shown);
    versions.into_iter()
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    /// Returns a page of a bucket that has two versions each of `a`, `b/x`, `b/y` and `c`.
    fn page(query: &VersionsQuery) -> VersionListing {
        let mut page = VersionPageBuilder::new(query);
        for key in ["a", "b/x", "b/y", "c"] {
            let version = |(name, is_latest): (&str, bool)| VersionSummary {
                key: key.to_owned(),
                version: VersionId::new(name).unwrap(),
                is_latest,
                modified: UNIX_EPOCH,
                checksum: None,
                content: None,
            };
            let both = [("2", true), ("1", false)].map(version).map(|it| (it.version.clone(), it));
            let versions = |after: Option<&VersionId>| Ok(versions_after(both.to_vec(), after));
            if page.offer(key, versions, |version| Ok(Some(version))).unwrap() == WalkInstruction::Full {
                break;
            }
        }
        page.finish()
    }

    fn names(page: &VersionListing) -> Vec<String> {
        page.versions.iter().map(|version| format!("{}@{}", version.key, version.version)).collect()
    }

    #[test]
    fn pages_of_every_length_join_to_the_whole() {
        let whole = names(&page(&VersionsQuery::default()));
        assert_eq!(whole.len(), 8);
        for max_keys in 1..9 {
            let (mut query, mut joined) = (VersionsQuery { max_keys, ..Default::default() }, Vec::new());
            loop {
                let page = page(&query);
                assert!(page.versions.len() <= max_keys);
                joined.extend(names(&page));
                let Some((key, version)) = page.next else { break };
                (query.key_after, query.version_after) = (Some(key), version);
            }
            assert_eq!(joined, whole, "{max_keys} at a time");
        }
    }

    #[test]
    fn a_delimiter_rolls_up() {
        let mut query = VersionsQuery { delimiter: Some("/".into()), max_keys: 3, ..Default::default() };
        let first = page(&query);
        assert_eq!((names(&first).join(" "), first.prefixes.join(" ")), ("a@2 a@1".into(), "b/".into()));
        let (key, version) = first.next.unwrap();
        (query.key_after, query.version_after) = (Some(key), version);
        let second = page(&query);
        assert_eq!((names(&second).join(" "), second.prefixes.len()), ("c@2 c@1".into(), 0));
        assert_eq!(second.next, None);
    }

    #[test]
    fn a_prefix_and_a_start() {
        let query = VersionsQuery { prefix: "b".into(), key_after: Some("b/x".into()), ..Default::default() };
        assert_eq!(names(&page(&query)), ["b/y@2", "b/y@1"]);
        let nothing = VersionsQuery { max_keys: 0, ..Default::default() };
        assert!(page(&nothing).versions.is_empty());
    }

    #[test]
    fn names_of_versions() {
        for bad in ["", "a b", "ä", &"x".repeat(1025)] {
            assert_eq!(VersionId::new(bad).unwrap_err().kind(), ErrorKind::NoSuchVersion);
        }
        assert!(VersionId::new("null").unwrap().is_null());
    }
}
