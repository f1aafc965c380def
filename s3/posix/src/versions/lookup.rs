//! Finds names in a key's versions directory without reading all of them.
//!
//! A version whose ID contains its order has a known name. All names are needed to find the newest version, or to find
//! a version whose name differs from the name that follows from its ID. If a directory with many names is read again
//! within seconds, its names are kept in an index (see [`crate::index`]). Each further request then costs only a few
//! lookups in memory. On file systems that other nodes may change, there is no index, so the names are read each time.
//!
//! A POSIX program may copy an old version, with its ID, to the object's path. This module also distinguishes such a
//! copy from the version itself.

use std::collections::BTreeSet;
use std::fs::File;

use fordway_store::{ErrorKind, Result, VersionId, VersioningState};
use fordway_sys::{
    Errno, FileStat, Mode, OFlags, file_user, is_same_user, read_dir_briefly, stat, stat_in, would_wait,
};

use super::KeyVersions;
use super::names::{MARKER, NoncurrentVersionName, archived_place, order_in};
use super::owners::VersionOwners;
use crate::errors::from_errno;
use crate::index::{DirectoryRole, FEWEST};
use crate::layout::ObjectPath;
use crate::names::SortedNames;
use crate::private::PrivateDirectoryContents;
use crate::read::ObjectFile;
use crate::record::{ContentChangeStamp, ObjectRecord};
use crate::stage::is_bare;

/// The names of one version in a key's versions directory, and the newest other name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VersionNameMatches {
    /// The names of the version, from the newest to the oldest.
    pub(crate) names: Vec<NoncurrentVersionName>,
    /// The newest name of any other version.
    pub(crate) newest_other: Option<NoncurrentVersionName>,
}

impl VersionNameMatches {
    /// Returns the newest of `names` and `newest_other`.
    pub(crate) fn newest(&self) -> Option<&NoncurrentVersionName> {
        self.names.first().into_iter().chain(&self.newest_other).max_by_key(|found| found.order)
    }

    /// Adds a name if it belongs to `version`, or is the newest other name. Most names are rejected by their first
    /// bytes, because names sort by the order that they begin with.
    fn see(&mut self, version: &VersionId, name: &str, counts: impl Fn(&str) -> bool) {
        let Some((order, rest)) = name.split_at_checked(16) else { return };
        let Some(rest) = rest.strip_prefix('-') else { return };
        let is_it = rest.strip_suffix(MARKER).unwrap_or(rest) == version.as_str();
        let least = self.newest_other.as_ref().map_or(0, |newest| newest.order);
        if !is_it && u64::from_str_radix(order, 16).is_ok_and(|order| order < least) {
            return;
        }
        match NoncurrentVersionName::parse(name).filter(|_| counts(name)) {
            Some(found) if is_it => self.names.push(found),
            Some(found) => self.newest_other = Some(found),
            None => {}
        }
    }

    /// Looks up a version in `names`, which contains all names of a directory. `strays` contains the names that cannot
    /// be computed from an ID. Ignores the names that `counts` rejects.
    fn in_index(
        names: &BTreeSet<Box<str>>,
        strays: &BTreeSet<Box<str>>,
        version: &VersionId,
        counts: impl Fn(&str) -> bool,
    ) -> Self {
        let mut found = VersionNameMatches::default();
        let is_other = |name: &NoncurrentVersionName| name.version != *version && counts(&name.name());
        found.newest_other =
            names.iter().rev().filter_map(|name| NoncurrentVersionName::parse(name)).find(is_other);
        let computed =
            [false, true].into_iter().filter_map(|is_marker| NoncurrentVersionName::of(version, is_marker));
        let is_there = |name: &str| names.contains(name) && counts(name);
        found.names.extend(computed.filter(|name| is_there(&name.name())));
        strays.iter().for_each(|name| found.see(version, name, &counts));
        found.sorted()
    }

    fn sorted(mut self) -> Self {
        self.names.sort_by_key(|found| std::cmp::Reverse(found.order));
        self
    }
}

impl KeyVersions<'_> {
    /// Returns the names of `version` among the key's old versions and delete markers, and the newest other name. Names
    /// of users other than `owners` are ignored. Cost: one read of the key's versions directory, or a few lookups in
    /// its index; one `newfstatat` for some of the names if only certain users' names count.
    pub(crate) fn look_up_version(
        &self,
        version: &VersionId,
        owners: VersionOwners<'_>,
    ) -> Result<VersionNameMatches> {
        let contents = self.volume.contents(self.bucket)?;
        let counts = self.counted_names(contents.guard, owners)?;
        let by_index = self.in_versions_index(contents, |names, strays| {
            VersionNameMatches::in_index(names, strays, version, &counts)
        });
        match by_index {
            Some(found) => Ok(found),
            None => {
                let mut found = VersionNameMatches::default();
                self.each_archived(contents, |name| found.see(version, name, &counts))?;
                Ok(found.sorted())
            }
        }
    }

    /// Returns the name of `version` if this is certainly its only name; `None` if the name has to be looked up. The
    /// caller must hold the key's lock. Cost: as for a HEAD.
    pub(crate) fn only_name_of(
        &self,
        version: &VersionId,
        contents: PrivateDirectoryContents,
    ) -> Option<NoncurrentVersionName> {
        let own = NoncurrentVersionName::of(version, false)?;
        if let Some(opened) = self.volume.open_file(self.bucket, &self.place_of(&own)).ok()? {
            // Anyone who may write to the bucket may have created another file with this name. A file with several hard
            // links may have further names in this directory. In a bucket with the sticky bit, another user's file with
            // this name may not be the version, which then has another name.
            let is_own = contents.guard.is_none() || is_same_user(opened.stat.user, file_user());
            return Some(own).filter(|_| is_own && opened.version() == *version && opened.stat.links == 1);
        }
        // In a bucket with the sticky bit, users who are not trusted may create delete markers with any ID.
        let marker = NoncurrentVersionName { is_marker: true, ..own };
        let is_there = contents.guard.is_none() && self.volume.is_file(&self.place_of(&marker).path());
        is_there.then_some(marker)
    }

    /// Returns the key's old versions and delete markers, from the newest to the oldest. Cost: one read of the key's
    /// versions directory.
    pub(crate) fn archived(&self) -> Result<Vec<NoncurrentVersionName>> {
        let mut found = Vec::new();
        let contents = self.volume.contents(self.bucket)?;
        self.each_archived(contents, |name| found.extend(NoncurrentVersionName::parse(name)))?;
        found.sort_unstable_by_key(|archived| std::cmp::Reverse(archived.order));
        Ok(found)
    }

    /// Returns the newest of the key's old versions and delete markers. Names of users other than `owners` are ignored.
    /// Keeps only one name in memory at a time. Cost: as for [`KeyVersions::look_up_version`].
    pub(crate) fn newest_archived(&self, owners: VersionOwners<'_>) -> Result<Option<NoncurrentVersionName>> {
        let contents = self.volume.contents(self.bucket)?;
        let counts = self.counted_names(contents.guard, owners)?;
        let parse = |name: &str| NoncurrentVersionName::parse(name).filter(|_| counts(name));
        let by_index =
            self.in_versions_index(contents, |names, _| names.iter().rev().find_map(|name| parse(name)));
        if let Some(newest) = by_index {
            return Ok(newest);
        }
        let mut newest = None::<NoncurrentVersionName>;
        self.each_archived(contents, |name| {
            // Names sort by the order that they begin with.
            let least = newest.as_ref().map_or(0, |newest| newest.order);
            let order = name.get(..16).and_then(|order| u64::from_str_radix(order, 16).ok());
            if order.is_some_and(|order| order >= least) {
                newest = parse(name).or(newest.take());
            }
        })?;
        Ok(newest)
    }

    /// Returns the `most` newest of the key's old versions, from the newest to the oldest. Delete markers do not count.
    /// Keeps only a few names in memory at a time. Cost: one read of the key's versions directory.
    pub(super) fn newest_versions(&self, most: usize) -> Result<Vec<NoncurrentVersionName>> {
        let mut found: Vec<NoncurrentVersionName> = Vec::new();
        let contents = self.volume.contents(self.bucket)?;
        let keep_newest = |found: &mut Vec<NoncurrentVersionName>| {
            found.sort_unstable_by_key(|version| std::cmp::Reverse(version.order));
            found.truncate(most);
        };
        self.each_archived(contents, |name| {
            found.extend(NoncurrentVersionName::parse(name).filter(|version| !version.is_marker));
            if found.len() > 2 * most {
                keep_newest(&mut found);
            }
        })?;
        keep_newest(&mut found);
        Ok(found)
    }

    /// Returns the paths of the `most` newest old versions, the newest first.
    pub(crate) fn newest_places(&self, most: usize) -> Result<Vec<ObjectPath<'static>>> {
        let newest = self.newest_versions(most)?;
        Ok(newest.iter().map(|version| archived_place(self.bucket, self.key, version)).collect())
    }

    /// Calls `answer` with the index of the key's versions directory. Returns `None` if there is no index.
    fn in_versions_index<T>(
        &self,
        contents: PrivateDirectoryContents,
        answer: impl FnOnce(&BTreeSet<Box<str>>, &BTreeSet<Box<str>>) -> T,
    ) -> Option<T> {
        let indexes = &self.volume.dirs.indexes;
        if indexes.is_empty() || contents.sharing.is_shared() || !keeps_versions(contents) {
            return None;
        }
        let path = self.path();
        let dir = self.volume.dirs.open(&self.volume.root, &path).ok()?;
        if dir.is_gone() {
            // Another process may have recreated the directory.
            self.volume.dirs.forget(&path);
            return None;
        }
        indexes.versions(&dir, answer)
    }

    /// Calls `visit` for each name in the key's versions directory.
    fn each_archived(&self, contents: PrivateDirectoryContents, visit: impl FnMut(&str)) -> Result<()> {
        if !keeps_versions(contents) {
            return Ok(());
        }
        let read = self.volume.open_to_scan(&self.path()).and_then(|dir| match would_wait() {
            // The directory may contain any number of names, so threads that serve many clients must not read it.
            true => Err(Errno::AGAIN),
            false => self.each_name_of(&dir, contents, visit),
        });
        match read {
            // Fordway creates only directories at this path; anything else is treated as an empty directory.
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
            Err(errno) => Err(from_errno(errno, "reading .fordway")),
        }
    }

    /// Calls `visit` for each name in the versions directory `dir`. If `dir` has many names and was read a short time
    /// ago, also creates its index, unless other nodes may change the directory.
    fn each_name_of(
        &self,
        dir: &File,
        contents: PrivateDirectoryContents,
        mut visit: impl FnMut(&str),
    ) -> Result<(), Errno> {
        let indexes = &self.volume.dirs.indexes;
        let state = match contents.sharing.is_shared() {
            true => None,
            false => Some(stat(dir)?).filter(|stat| {
                // The directory and its bucket may be on different mounts.
                self.volume.private.site_of(dir, stat.device).is_ok_and(|site| !site.sharing.is_shared())
            }),
        };
        if let Some(state) = &state
            && indexes.is_known_to_be_read(state)
        {
            let names =
                indexes.read(dir, state, DirectoryRole::Versions, || SortedNames::read_briefly(dir))?;
            (0..names.len()).for_each(|at| visit(names.get(at).text));
            return Ok(());
        }
        self.volume.freshen_names(dir, contents.sharing);
        let mut count = 0;
        read_dir_briefly(dir, |name, _| {
            count += 1;
            str::from_utf8(name).into_iter().for_each(&mut visit);
        })?;
        if let Some(state) = state.filter(|_| count >= FEWEST) {
            indexes.note_read(&state);
        }
        Ok(())
    }
}

fn keeps_versions(contents: PrivateDirectoryContents) -> bool {
    contents.versioning != VersioningState::Unversioned
}

impl KeyVersions<'_> {
    /// Opens the latest version, if it is a file, to compare its ID with `asked`. A copy of an old version has no
    /// version ID, even if the copy is recent. Cost: as for opening the object; one more `fgetxattr` for a file with
    /// the sticky bit in a bucket that keeps versions; if `asked` is the ID of the latest version, or is `null`, also
    /// as for [`KeyVersions::is_copy`].
    pub(super) fn find_latest(&self, asked: &VersionId) -> Result<Option<ObjectFile>> {
        let mut latest = self.volume.find_object(self.bucket, self.key)?;
        if let Some(latest) = &mut latest {
            if is_bare(&latest.stat)
                && self.volume.contents(self.bucket)?.versioning != VersioningState::Unversioned
            {
                self.volume.unhide_record(self.bucket, latest)?;
            }
            let is_concerned = |version: &VersionId| asked.is_null() || version == asked;
            self.disown_any_copy(latest, is_concerned)?;
        }
        Ok(latest)
    }

    /// Removes the version ID as [`KeyVersions::disown_copy`] does, but detects even the most recent copies.
    /// Examines the file only if `is_concerned` accepts its ID. Returns whether the file is a copy. Intended for
    /// callers that change or remove a version, or that look for a version by its ID.
    pub(crate) fn disown_any_copy(
        &self,
        latest: &mut ObjectFile,
        is_concerned: impl FnOnce(&VersionId) -> bool,
    ) -> Result<bool> {
        let Some(record) = &mut latest.recorded else { return Ok(false) };
        let Some(version) = &record.version else { return Ok(false) };
        let is_copy = is_concerned(version) && self.is_copy(&latest.stat, version)?;
        if is_copy {
            record.version = None;
        }
        Ok(is_copy)
    }

    /// Removes the version ID from the record of a key's latest version if the file is a copy of an existing old
    /// version. A POSIX program created this file, so it is the version `null`. `stat` is the metadata of the file.
    /// Cost: usually none. If the content was changed, or the file was changed more than a second after the version
    /// with this ID was created, one `openat2`. If an old version with this ID exists, also the cost of
    /// [`KeyVersions::is_copy`]. Within the first second after the creation of the ID, an unchanged copy may therefore
    /// have the ID of the original. Intended for readers of the latest version.
    #[inline]
    pub(crate) fn disown_copy(
        &self,
        stat: &FileStat,
        recorded: &mut Option<Box<ObjectRecord>>,
    ) -> Result<()> {
        let Some(record) = recorded else { return Ok(()) };
        let Some(version) = &record.version else { return Ok(()) };
        let is_edited = record.seal != Some(ContentChangeStamp::of(stat));
        if (is_edited || was_changed_later(stat, version))
            && self.has_old_version(version)
            && self.is_copy(stat, version)?
        {
            record.version = None;
        }
        Ok(())
    }

    /// Returns whether there may be an old version with the ID `version`. A latest version whose tags or permissions
    /// were changed usually has no old version with its ID, so its reads cost little more. Cost: one `openat2`; if
    /// there is such a version, also a `close`.
    fn has_old_version(&self, version: &VersionId) -> bool {
        let Some(kept) = NoncurrentVersionName::of(version, false) else { return false };
        let path = self.place_of(&kept).path();
        let opened = self.volume.root.open_beneath(&path, OFlags::PATH, Mode::empty());
        !matches!(opened, Err(Errno::NOENT | Errno::NOTDIR))
    }

    /// Returns whether the latest version, whose file has the metadata `stat` and whose record has the ID `version`, is
    /// a copy of an old version. If it is a copy, another file, among the old versions, is the version with this ID.
    /// Cost: one `newfstatat`; if there is another file, also an open of that file.
    pub(crate) fn is_copy(&self, stat: &FileStat, version: &VersionId) -> Result<bool> {
        let Some(kept) = NoncurrentVersionName::of(version, false) else { return Ok(false) };
        let place = self.place_of(&kept);
        let named =
            self.volume.dirs.open(&self.volume.root, &place.dir).and_then(|dir| stat_in(&dir, &place.name));
        let is_other = |named: FileStat| (named.device, named.inode) != (stat.device, stat.inode);
        Ok(named.is_ok_and(is_other) && self.is_version_at(&kept, stat.user)?)
    }

    /// Returns whether the file with the name `kept` is the version that its name specifies. Anyone who may write to
    /// the bucket may create other files with such names. In a bucket with the sticky bit, the file must therefore
    /// belong to `owner`, the bucket's owner or root.
    pub(super) fn is_version_at(&self, kept: &NoncurrentVersionName, owner: u32) -> Result<bool> {
        let opened = self.volume.open_file(self.bucket, &self.place_of(kept)).and_then(|mut opened| {
            opened
                .as_mut()
                .map_or(Ok(()), |opened| self.volume.unhide_record(self.bucket, opened))
                .map(|()| opened)
        });
        let opened = match opened {
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::AccessDenied) => None,
            opened => opened?,
        };
        let guard = self.volume.contents(self.bucket)?.guard;
        let is_believed =
            |user: u32| guard.as_ref().is_none_or(|guard| is_same_user(user, owner) || guard.trusts(user));
        Ok(opened.is_some_and(|opened| opened.version() == kept.version && is_believed(opened.stat.user)))
    }

    /// Returns whether `found` is a name of the file of `current`.
    pub(super) fn is_name_of(&self, found: &NoncurrentVersionName, current: &FileStat) -> bool {
        let place = self.place_of(found);
        let named = self.volume.open_dir(&place.dir).and_then(|dir| stat_in(&dir, &place.name));
        named.is_ok_and(|named| (named.device, named.inode) == (current.device, current.inode))
    }
}

/// The time in ns between the creation of a version ID and the last change of the file. If more time has passed, a
/// reader examines whether a POSIX program created the file by copying an old version.
const SETTLING_NS: u64 = 1_000_000_000;

/// Returns whether a file whose metadata is `stat` may be a copy of `version`, because the file was changed long after
/// the version's ID was created. Only an old version can be copied, and programs cannot set a file's change time.
fn was_changed_later(stat: &FileStat, version: &VersionId) -> bool {
    let changed = u64::try_from(stat.changed_ns).unwrap_or_default();
    order_in(version).is_some_and(|order| changed > order.saturating_add(SETTLING_NS))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::names::is_stray;
    use super::*;

    fn id(order: u64) -> VersionId {
        VersionId::new(format!("{order:016x}.{order:016x}")).unwrap()
    }

    proptest! {
        /// An index and a scan of the same names lead to the same result.
        #[test]
        fn index_and_scan_agree(
            found in proptest::collection::hash_set((0..9_u64, 0..9_u64, any::<bool>(), any::<bool>()), 0..20),
            wanted in 0..9_u64,
            wants_null in any::<bool>(),
            ignored in "[7-9]-",
        ) {
            let ignored = ignored.as_str();
            let name = |(at, (order, of, is_null, is_marker)): (usize, (u64, u64, bool, bool))| {
                let version = if is_null { VersionId::null() } else { id(of * 100) };
                // No two names have the same order.
                let order = if order == of { order * 100 } else { order * 100 + at as u64 + 1 };
                NoncurrentVersionName { order, version, is_marker }.name()
            };
            let names: BTreeSet<Box<str>> =
                found.into_iter().enumerate().map(name).chain(["other".into(), "zé".into()]).map(Box::from).collect();
            let strays = names.iter().filter(|name| is_stray(name)).cloned().collect();
            let version = if wants_null { VersionId::null() } else { id(wanted * 100) };
            let mut scanned = VersionNameMatches::default();
            let counts = |name: &str| !name.contains(ignored);
            names.iter().rev().for_each(|name| scanned.see(&version, name, counts));
            let indexed = VersionNameMatches::in_index(&names, &strays, &version, counts);
            let scanned = scanned.sorted();
            let order = |found: &VersionNameMatches| found.newest_other.as_ref().map(|found| found.order);
            let set = |found: &VersionNameMatches| found.names.iter().map(NoncurrentVersionName::name).collect::<BTreeSet<_>>();
            prop_assert_eq!((order(&scanned), set(&scanned)), (order(&indexed), set(&indexed)));
            prop_assert!(indexed.names.is_sorted_by_key(|found| std::cmp::Reverse(found.order)));
            let parse = |name: &str| NoncurrentVersionName::parse(name).filter(|_| counts(name));
            let newest = names.iter().rev().find_map(|name| parse(name)).map(|found| found.order);
            prop_assert_eq!(scanned.newest().map(|found| found.order), newest);
        }
    }
}
