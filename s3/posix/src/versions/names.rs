//! The names and the order of a key's versions.
//!
//! A version ID begins with the version's creation time, which is later than the ORDER of every version that the key
//! already has. The creation time becomes the ORDER of the new version. The version can therefore be archived, and
//! later found by its ID, without reading the directory. The IDs that earlier releases generated, and `null`, contain
//! no order; to find a version with one of these IDs, the directory is read.

use std::fs::File;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use fordway_store::{Bucket, DeleteMarker, Key, ObjectInfo, Result, VersionId};
use fordway_sys::{Errno, FileStat};

use crate::layout::{ObjectPath, versions_of};
use crate::names::SortedNames;
use crate::read::system_time;
use crate::stage::hidden_name;

/// The suffix of a delete marker's name.
pub(crate) const MARKER: &str = "-marker";

/// A name in a key's versions directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoncurrentVersionName {
    /// The version's creation time in nanoseconds since 1970, increased if necessary so that it is unique within the
    /// key.
    pub(crate) order: u64,
    pub(crate) version: VersionId,
    pub(crate) is_marker: bool,
}

impl NoncurrentVersionName {
    pub(crate) fn name(&self) -> String {
        let marker = if self.is_marker { MARKER } else { "" };
        format!("{:016x}-{}{marker}", self.order, self.version)
    }

    /// Returns the name that `version` has in the versions directory; `None` if its ID does not contain its order.
    pub(crate) fn of(version: &VersionId, is_marker: bool) -> Option<Self> {
        Some(NoncurrentVersionName { order: order_in(version)?, version: version.clone(), is_marker })
    }

    /// Returns the ID and the time of the delete marker with this name.
    pub(crate) fn as_marker(&self) -> DeleteMarker {
        let created = system_time(i64::try_from(self.order).unwrap_or(i64::MAX));
        DeleteMarker { version: self.version.clone(), created }
    }

    /// Parses a name; returns `None` if Fordway never writes this name.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (order, rest) = name.split_once('-')?;
        let (version, is_marker) = rest.strip_suffix(MARKER).map_or((rest, false), |version| (version, true));
        let found = NoncurrentVersionName {
            order: u64::from_str_radix(order, 16).ok()?,
            version: VersionId::new(version).ok()?,
            is_marker,
        };
        (found.name() == name).then_some(found)
    }
}

/// Returns the ID for a new version, whose order is higher than `floor`. IDs sort by creation time.
pub(crate) fn new_version(floor: u64) -> Result<VersionId> {
    VersionId::new(format!("{:016x}.{}", now_ns().max(floor.saturating_add(1)), hidden_name()?))
}

/// Returns the order contained in a version's ID; `None` for `null`, and for IDs that earlier releases generated.
pub(crate) fn order_in(version: &VersionId) -> Option<u64> {
    let (time, random) = version.as_str().split_once('.')?;
    let is_hex =
        |text: &str| text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (is_hex(time) && is_hex(random)).then(|| u64::from_str_radix(time, 16).ok()).flatten()
}

/// Returns whether `name` is the name of a version, but not the name that [`NoncurrentVersionName::of`] returns for the
/// version's ID.
pub(crate) fn is_stray(name: &str) -> bool {
    NoncurrentVersionName::parse(name).is_some_and(|found| order_in(&found.version) != Some(found.order))
}

/// Returns the current time in nanoseconds since 1970.
pub(crate) fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the path of an old version or a delete marker.
pub(crate) fn archived_place(
    bucket: &Bucket,
    key: &Key,
    archived: &NoncurrentVersionName,
) -> ObjectPath<'static> {
    ObjectPath { dir: versions_of(bucket, key).into(), name: archived.name().into() }
}

/// Returns the names of a key's old versions and delete markers, one for each version, the newest last.
pub(crate) fn read_names(dir: &File, before: Option<&FileStat>) -> Result<SortedNames, Errno> {
    let mut is_unique = true;
    let is_version = |name: &[u8]| {
        let found = str::from_utf8(name).ok().and_then(NoncurrentVersionName::parse);
        // A version whose ID contains its order has one name; any other version may have two names.
        is_unique &= found.as_ref().is_none_or(|found| order_in(&found.version) == Some(found.order));
        found.is_some()
    };
    let mut names = SortedNames::read_files(dir, before, is_version)?;
    if !is_unique {
        let mut seen = foldhash::HashSet::default();
        names.retain_from_last(|name| {
            NoncurrentVersionName::parse(name).is_some_and(|found| seen.insert(found.version))
        });
    }
    Ok(names)
}

/// The versions of a key, from the newest to the oldest.
#[derive(Default)]
pub(crate) struct ListedKeyVersions {
    /// The latest version, if it exists and has not been returned yet.
    latest: Option<ObjectInfo>,
    /// The ID of the latest version. If this version also has a name among the old versions, that name is ignored.
    latest_id: Option<VersionId>,
    names: Arc<SortedNames>,
    /// The position after the last name that has not been returned yet.
    end: usize,
    has_shown: bool,
}

impl ListedKeyVersions {
    pub(crate) fn new(latest: Option<ObjectInfo>, names: Arc<SortedNames>) -> Self {
        let latest_id = latest.as_ref().map(|info| info.version.clone().unwrap_or_else(VersionId::null));
        ListedKeyVersions { latest, latest_id, end: names.len(), names, has_shown: false }
    }

    /// Returns the versions after `shown`, or all versions if `shown` is not among them. Cost: a binary search, if the
    /// ID `shown` contains an order.
    pub(crate) fn after(mut self, shown: Option<&VersionId>) -> Self {
        let Some(shown) = shown else { return self };
        let end = match self.latest_id.as_ref() == Some(shown) {
            true => Some(self.end),
            false => self.position(shown),
        };
        if let Some(end) = end {
            self = ListedKeyVersions { latest: None, end, has_shown: true, ..self };
        }
        self
    }

    fn position(&self, version: &VersionId) -> Option<usize> {
        let is_there = |at: &usize| self.archived(*at).is_some_and(|found| found.version == *version);
        let by_order =
            order_in(version).map(|order| self.names.first_from(&format!("{order:016x}-{version}")));
        let by_order = by_order.filter(|at| *at < self.names.len()).filter(is_there);
        by_order.or_else(|| (0..self.names.len()).rev().find(is_there))
    }

    fn archived(&self, at: usize) -> Option<NoncurrentVersionName> {
        NoncurrentVersionName::parse(self.names.get(at).text)
    }
}

impl Iterator for ListedKeyVersions {
    type Item = (VersionId, (bool, ListedVersion));

    fn next(&mut self) -> Option<Self::Item> {
        let is_latest = !std::mem::replace(&mut self.has_shown, true);
        if let (Some(info), Some(version)) = (self.latest.take(), &self.latest_id) {
            return Some((version.clone(), (is_latest, ListedVersion::Latest(info))));
        }
        while self.end > 0 {
            self.end -= 1;
            let found =
                self.archived(self.end).filter(|found| self.latest_id.as_ref() != Some(&found.version));
            if let Some(found) = found {
                return Some((found.version.clone(), (is_latest, ListedVersion::Archived(found))));
            }
        }
        None
    }
}

/// A version in a listing.
pub(crate) enum ListedVersion {
    Latest(ObjectInfo),
    Archived(NoncurrentVersionName),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_their_order_or_nothing() {
        let version = new_version(0).unwrap();
        assert!(order_in(&version).unwrap().abs_diff(now_ns()) < 60_000_000_000);
        assert_eq!(order_in(&new_version(u64::MAX - 1).unwrap()), Some(u64::MAX));
        for other in [
            "null",
            "0123456789abcdef0123456789abcdef",
            "0123456789abcdef.0123456789abcde",
            "+123456789abcdef.0123456789abcdef",
        ] {
            assert_eq!(order_in(&VersionId::new(other).unwrap()), None, "{other}");
        }
    }
}
