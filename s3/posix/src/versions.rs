//! Old versions and delete markers of a bucket that keeps them.
//!
//! The latest version lies where any object lies, so POSIX sees it. What is overwritten or deleted
//! gets a second name in the key's directory below `versions/` before it loses its first:
//!
//! ```text
//! versions/KEY/ORDER-VERSION           an old version; ORDER (16 hex digits) rises with time
//! versions/KEY/ORDER-VERSION-marker    a delete marker, empty
//! ```
//!
//! A process that is killed in between leaves a version under both names: then it is the latest, and
//! the other name says nothing. All this is done with the key's lock held.

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use fordway_store::{
    Bucket, Checksum, DeleteOptions, Deleted, Error, ErrorKind, Key, ListQuery, Result, Step,
    VersionCollector, VersionId, VersionListing, VersionSummary, Versioning, VersionsQuery,
};
use fordway_sys::{
    EntryKind, Errno, Mode, OFlags, link, link_unnamed, open_in, read_dir, remove_dir, rename,
};

use crate::Inner;
use crate::dirs::Dir;
use crate::errors::from_errno;
use crate::layout::{
    Place, VERSIONING, decode, join, odd, plain, private_dir, split, versions_dir, versions_of,
};
use crate::private::{Contents, ENABLED, SUSPENDED};
use crate::read::{Opened, system_time};
use crate::stage::{FILE_MODE, MAX_RACES, Staged, give_way, hidden_name};
use crate::volume::Volume;

/// What ends the name of a delete marker.
const MARKER: &str = "-marker";

/// A name in the directory of a key's versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Archived {
    /// The time in ns at which it ceased to be the latest, or a little later: no two are alike.
    order: u64,
    pub(crate) version: VersionId,
    pub(crate) is_marker: bool,
}

impl Archived {
    fn name(&self) -> String {
        let marker = if self.is_marker { MARKER } else { "" };
        format!("{:016x}-{}{marker}", self.order, self.version)
    }

    /// Reads a name; `None` for what is not ours.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (order, rest) = name.split_once('-')?;
        let (version, is_marker) = rest.strip_suffix(MARKER).map_or((rest, false), |version| (version, true));
        let found = Archived {
            order: u64::from_str_radix(order, 16).ok()?,
            version: VersionId::new(version).ok()?,
            is_marker,
        };
        (found.name() == name).then_some(found)
    }
}

/// A name for a new version; names sort by the time they were given.
pub(crate) fn new_version() -> Result<VersionId> {
    VersionId::new(format!("{:016x}{}", now_ns(), hidden_name()?))
}

/// Nanoseconds since 1970.
pub(crate) fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

impl Volume {
    pub(crate) fn versioning(&self, bucket: &Bucket) -> Result<Versioning> {
        self.require_bucket(bucket)?;
        Ok(self.contents(bucket)?.versioning)
    }

    /// Opens the latest version of an object, or the one called `version`.
    /// Errors: `NoSuchKey`, `NoSuchVersion`, `NoSuchBucket`, `MethodNotAllowed` for a delete marker.
    pub(crate) fn open_version(
        &self,
        bucket: &Bucket,
        key: &Key,
        version: Option<&VersionId>,
    ) -> Result<Opened> {
        let Some(version) = version else { return self.open_object(bucket, key) };
        let mut seen = None;
        for race in 0..MAX_RACES {
            give_way(race);
            let latest = self.find_object(bucket, key)?;
            let latest_version = match latest {
                Some(latest) if latest.version() == *version => return Ok(latest),
                latest => latest.map(|latest| latest.version()),
            };
            let archived = self.archived(bucket, key)?;
            if let Some(found) = archived.iter().find(|found| found.version == *version)
                && let Some(opened) = self.open_archived(bucket, key, found)?
            {
                return Ok(opened);
            }
            // An old version that becomes the latest is, for a moment, neither for a reader that looks there first.
            let now = Some((latest_version, archived));
            if now == seen {
                break;
            }
            seen = now;
        }
        self.require_bucket(bucket)?;
        Err(Error::new(ErrorKind::NoSuchVersion, version.as_str()))
    }

    /// `None` if it is no old version any more. Errors: `MethodNotAllowed` for a delete marker.
    fn open_archived(&self, bucket: &Bucket, key: &Key, found: &Archived) -> Result<Option<Opened>> {
        if found.is_marker {
            let why = "the version is a delete marker";
            return Err(Error::new(ErrorKind::MethodNotAllowed, why).at_delete_marker());
        }
        self.open_file(bucket, &archived_place(bucket, key, found))
    }

    /// What the directory of the key's versions holds, from the newest to the oldest.
    pub(crate) fn archived(&self, bucket: &Bucket, key: &Key) -> Result<Vec<Archived>> {
        if self.contents(bucket)?.versioning == Versioning::Unversioned {
            return Ok(Vec::new());
        }
        let mut found: Vec<Archived> = self
            .names_in(&versions_of(bucket, key))?
            .iter()
            .filter_map(|name| Archived::parse(name))
            .collect();
        found.sort_unstable_by_key(|archived| std::cmp::Reverse(archived.order));
        Ok(found)
    }

    /// Makes a name in the directory of the key's versions. That is made anew where it is gone: another
    /// process may have removed the last name in it while this one holds it open.
    fn among_versions(
        &self,
        bucket: &Bucket,
        key: &Key,
        make: impl Fn(&Dir) -> Result<(), Errno>,
    ) -> Result<()> {
        let path = versions_of(bucket, key);
        for race in 0..MAX_RACES {
            give_way(race);
            let dir = self.parent_of(bucket, &path)?;
            match make(&dir) {
                Err(_) if dir.is_removed() => self.dirs.forget(&path),
                done => return done.map_err(|errno| from_errno(errno, "naming a version")),
            }
        }
        Err(ErrorKind::ConditionalConflict.into())
    }

    fn make_marker(&self, bucket: &Bucket, key: &Key, marker: &Archived) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        self.among_versions(bucket, key, |dir| open_in(dir, &marker.name(), flags, FILE_MODE).map(drop))
    }

    /// Makes `newest` the latest version in place of that at `place`, which goes.
    fn promote_over(&self, bucket: &Bucket, key: &Key, newest: &Archived, place: &Place) -> Result<()> {
        let from = self.versions_opened(bucket, key)?;
        let to = self.parent_of(bucket, &place.dir)?;
        rename(&from, &newest.name(), &to, &place.name)
            .map_err(|errno| from_errno(errno, "making an old version the latest"))
    }

    /// Makes `newest` the latest version of a key that has none; it keeps its name among the old ones.
    fn promote(&self, bucket: &Bucket, key: &Key, newest: &Archived) -> Result<()> {
        let from = self.versions_opened(bucket, key)?;
        let name = newest.name();
        for place in plain(bucket, key).into_iter().chain([odd(bucket, key)]) {
            let to = match self.parent_of(bucket, &place.dir) {
                Ok(to) => to,
                // The file of another key is in the way.
                Err(error) if error.kind() == ErrorKind::NoSuchKey => continue,
                Err(error) => return Err(error),
            };
            match link(&from, &name, &to, &place.name) {
                Err(Errno::EXIST) => {}
                done => {
                    return done.map_err(|errno| from_errno(errno, "making an old version the latest"));
                }
            }
        }
        // Another writer, who needs no lock for it, has just made a newer one.
        Ok(())
    }

    /// Opened anew: one that is held may have been removed and made again by another process.
    fn versions_opened(&self, bucket: &Bucket, key: &Key) -> Result<File> {
        self.open_dir(&versions_of(bucket, key)).map_err(|errno| from_errno(errno, "opening the versions"))
    }

    /// Removes the directory at `path` if nothing is in it.
    fn remove_empty(&self, bucket: &Bucket, path: &str) {
        let mut path = path;
        let top = versions_dir(bucket);
        while path.len() > top.len() {
            let (parent, name) = split(path);
            let removed = self.open_dir(parent).and_then(|parent| remove_dir(&parent, name));
            self.dirs.forget(path);
            if removed.is_err() {
                return;
            }
            path = parent;
        }
    }
}

impl Inner {
    pub(crate) fn set_versioning(self: &Arc<Self>, bucket: &Bucket, versioning: Versioning) -> Result<()> {
        versioning.check_settable()?;
        self.volume.require_bucket(bucket)?;
        self.require_locks("keeping versions")?;
        self.volume.check_decides(bucket, "keeps old versions")?;
        let private = private_dir(bucket);
        let place = Place { dir: private.into(), name: VERSIONING.into() };
        let mut staged = Staged::at(self, bucket, place)?;
        let text = if versioning == Versioning::Enabled { ENABLED } else { SUSPENDED };
        staged.write(format!("{text}\n").as_bytes())?;
        staged.publish_private()?;
        self.volume.private.forget(bucket);
        Ok(())
    }

    /// Keeps `current`, which a version called `next` (`None` for `null`) is about to replace.
    pub(crate) fn keep_version(
        &self,
        bucket: &Bucket,
        key: &Key,
        current: &Opened,
        next: Option<&VersionId>,
    ) -> Result<()> {
        let version = current.version();
        if next.is_none() && version.is_null() {
            return Ok(());
        }
        let archived = self.volume.archived(bucket, key)?;
        if version.is_null() {
            self.remove_archived(bucket, key, &archived, &version)?;
        }
        let kept = Archived { order: after(&archived), version, is_marker: false };
        self.volume.among_versions(bucket, key, |dir| link_unnamed(&current.file, dir, &kept.name()))
    }

    /// Removes the version `null` that was kept, now that there is another.
    pub(crate) fn forget_null(&self, bucket: &Bucket, key: &Key) -> Result<()> {
        let archived = self.volume.archived(bucket, key)?;
        self.remove_archived(bucket, key, &archived, &VersionId::null()).map(drop)
    }

    /// Removes the names of `version`; says whether it was a delete marker.
    fn remove_archived(
        &self,
        bucket: &Bucket,
        key: &Key,
        archived: &[Archived],
        version: &VersionId,
    ) -> Result<bool> {
        let contents = self.volume.contents(bucket)?;
        let mut was_marker = false;
        for found in archived.iter().filter(|found| found.version == *version) {
            self.remove_at(bucket, &archived_place(bucket, key, found), contents)?;
            was_marker |= found.is_marker;
        }
        Ok(was_marker)
    }

    /// Hides the object behind a delete marker, which becomes the latest version.
    pub(crate) fn delete_latest(&self, bucket: &Bucket, key: &Key, contents: Contents) -> Result<Deleted> {
        self.require_locks("a delete in a bucket that keeps versions")?;
        let version = match contents.versioning {
            Versioning::Enabled => new_version()?,
            _ => VersionId::null(),
        };
        let current = self.volume.locate(bucket, key, contents)?;
        if current.is_none() {
            self.volume.require_bucket(bucket)?;
        }
        let mut current_place = None;
        if let Some((place, opened)) = current {
            self.keep_version(bucket, key, &opened, Some(&version).filter(|version| !version.is_null()))?;
            // The file is closed by now: FUSE hides an open one under another name when it is removed.
            current_place = Some(place);
        }
        let archived = self.volume.archived(bucket, key)?;
        let marker = Archived { order: after(&archived), version: version.clone(), is_marker: true };
        self.volume.make_marker(bucket, key, &marker)?;
        if version.is_null() {
            self.remove_archived(bucket, key, &archived, &version)?;
        }
        if let Some(place) = &current_place {
            // The hidden one first, or it would come back in the place of what hides it.
            self.remove_hidden_odd(bucket, key, place, contents)?;
            self.remove_at(bucket, place, contents)?;
        }
        self.remove_marker(bucket, key, contents)?;
        Ok(Deleted { version: Some(version), is_marker: true })
    }

    /// Removes one version for good; the newest that is left becomes the latest.
    pub(crate) fn delete_version(
        &self,
        bucket: &Bucket,
        key: &Key,
        version: &VersionId,
        contents: Contents,
    ) -> Result<Deleted> {
        self.require_locks("a delete in a bucket that keeps versions")?;
        let current = self.volume.locate(bucket, key, contents)?;
        let current = current.map(|(place, opened)| (place, opened.version()));
        if current.is_none() {
            self.volume.require_bucket(bucket)?;
        }
        let is_current = current.as_ref().is_some_and(|(_, current)| current == version);
        let archived = self.volume.archived(bucket, key)?;
        let newest = archived.iter().find(|found| found.version != *version).filter(|found| !found.is_marker);
        // What has no latest version and no delete marker either was removed by a POSIX program.
        let is_newest = archived.first().is_some_and(|first| first.is_marker && first.version == *version);
        if let (None, Some(newest), true) = (&current, newest, is_newest) {
            // Before the delete marker goes, so that no moment is without a latest version.
            self.volume.promote(bucket, key, newest)?;
        }
        let is_marker = self.remove_archived(bucket, key, &archived, version)? && !is_current;
        if let Some((place, _)) = current.as_ref().filter(|_| is_current) {
            self.remove_hidden_odd(bucket, key, place, contents)?;
        }
        match (current, newest) {
            (Some((place, _)), Some(newest)) if is_current => {
                self.volume.promote_over(bucket, key, newest, &place)?
            }
            (Some((place, _)), None) if is_current => drop(self.remove_at(bucket, &place, contents)?),
            (None, Some(newest)) if is_newest => {
                self.remove_at(bucket, &archived_place(bucket, key, newest), contents)?;
            }
            _ => {}
        }
        self.volume.remove_empty(bucket, &versions_of(bucket, key));
        Ok(Deleted { version: Some(version.clone()), is_marker })
    }

    /// Deletes as `options` say, with the key's lock held.
    pub(crate) fn delete_versioned(
        &self,
        (bucket, key): (&Bucket, &Key),
        options: &DeleteOptions,
        contents: Contents,
    ) -> Result<Deleted> {
        match &options.version {
            Some(version) => self.delete_version(bucket, key, version, contents),
            None => self.delete_latest(bucket, key, contents),
        }
    }
}

/// An order behind all of `archived`, which has the newest first.
fn after(archived: &[Archived]) -> u64 {
    archived.first().map_or(0, |newest| newest.order + 1).max(now_ns())
}

fn archived_place(bucket: &Bucket, key: &Key, archived: &Archived) -> Place<'static> {
    Place { dir: versions_of(bucket, key).into(), name: archived.name().into() }
}

impl Inner {
    pub(crate) fn list_versions(&self, bucket: &Bucket, query: &VersionsQuery) -> Result<VersionListing> {
        self.volume.require_bucket(bucket)?;
        let mut page = VersionCollector::new(query);
        let mut archived = self.versioned_keys(bucket, &query.prefix)?;
        if let (Some(key), Some(_)) = (&query.key_after, &query.version_after) {
            // The rest of the versions of the key that the page before ended in.
            if self.offer_key(&mut page, bucket, key)? == Step::Full {
                return Ok(page.finish());
            }
            archived.retain(|other| other > key);
        }
        let mut archived = archived.into_iter().peekable();
        let mut keys = query.keys();
        keys.max_keys = fordway_store::MAX_KEYS;
        loop {
            let current = self.list(bucket, &keys)?;
            for entry in &current.entries {
                while let Some(key) = archived.next_if(|key| key.as_str() < entry.name()) {
                    if self.offer_key(&mut page, bucket, &key)? == Step::Full {
                        return Ok(page.finish());
                    }
                }
                archived.next_if(|key| key == entry.name());
                if self.offer_key(&mut page, bucket, entry.name())? == Step::Full {
                    return Ok(page.finish());
                }
            }
            match current.next {
                Some(next) => keys = ListQuery { start_after: Some(next), ..keys },
                None => break,
            }
        }
        for key in archived {
            if self.offer_key(&mut page, bucket, &key)? == Step::Full {
                break;
            }
        }
        Ok(page.finish())
    }

    fn offer_key(&self, page: &mut VersionCollector, bucket: &Bucket, key: &str) -> Result<Step> {
        page.offer(key, || match self.versions_to_show(bucket, key) {
            // Of a key that is closed to the caller nothing is shown, and the others are.
            Err(error) if error.kind() == ErrorKind::AccessDenied => Ok(Vec::new()),
            versions => versions,
        })
    }

    /// All versions of a key, from the newest to the oldest.
    fn versions_to_show(&self, bucket: &Bucket, key: &str) -> Result<Vec<VersionSummary>> {
        let key = Key::new(key)?;
        let (mut latest, mut versions) = (self.volume.find_object(bucket, &key)?, Vec::new());
        for race in 0..MAX_RACES {
            give_way(race);
            let version = latest.as_ref().map(Opened::version);
            versions = self.versions_with(bucket, &key, latest)?;
            // What became the latest meanwhile, or ceased to be it, may have been missed.
            latest = self.volume.find_object(bucket, &key)?;
            if latest.as_ref().map(Opened::version) == version {
                break;
            }
        }
        if let Some(newest) = versions.first_mut() {
            newest.is_latest = true;
        }
        Ok(versions)
    }

    fn versions_with(
        &self,
        bucket: &Bucket,
        key: &Key,
        latest: Option<Opened>,
    ) -> Result<Vec<VersionSummary>> {
        let mut shown: BTreeSet<VersionId> = BTreeSet::new();
        let mut versions = Vec::new();
        if let Some(opened) = latest {
            let version = opened.version();
            shown.insert(version.clone());
            versions.push(summary(key, version, opened));
        }
        for archived in self.volume.archived(bucket, key)? {
            if !shown.insert(archived.version.clone()) {
                continue;
            }
            versions.extend(self.describe_archived(bucket, key, &archived)?);
        }
        Ok(versions)
    }

    /// `None` if it is gone by now.
    fn describe_archived(
        &self,
        bucket: &Bucket,
        key: &Key,
        found: &Archived,
    ) -> Result<Option<VersionSummary>> {
        let version = found.version.clone();
        if found.is_marker {
            let modified = system_time(i64::try_from(found.order).unwrap_or(i64::MAX));
            let key = key.as_str().to_owned();
            return Ok(Some(VersionSummary {
                key,
                version,
                is_latest: false,
                modified,
                content: None,
                checksum: None,
            }));
        }
        let opened = match self.volume.open_file(bucket, &archived_place(bucket, key, found)) {
            // Anybody may put a closed file there: it hides no other version.
            Err(error) if error.kind() == ErrorKind::AccessDenied => None,
            opened => opened?,
        };
        Ok(opened.map(|opened| summary(key, version, opened)))
    }

    /// Keys with `prefix` that have old versions or delete markers, sorted.
    fn versioned_keys(&self, bucket: &Bucket, prefix: &str) -> Result<Vec<String>> {
        let top = versions_dir(bucket);
        let (mut keys, mut dirs) = (Vec::new(), vec![String::new()]);
        while let Some(below) = dirs.pop() {
            let path = if below.is_empty() { top.clone() } else { join(&top, &below) };
            let dir =
                match self.volume.root.open_beneath(&path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
                {
                    Ok(dir) => dir,
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => continue,
                    // What one user has closed, or led elsewhere, hides nothing of another's.
                    Err(Errno::ACCESS | Errno::LOOP) if !below.is_empty() => continue,
                    Err(errno) => return Err(from_errno(errno, "opening the versions")),
                };
            let read = read_dir(dir, |name, kind| {
                let Ok(name) = std::str::from_utf8(name) else { return };
                let below = if below.is_empty() { name.to_owned() } else { join(&below, name) };
                match name.ends_with('%') {
                    true => dirs.push(below),
                    false if kind == EntryKind::File => {}
                    false => keys.extend(decode(&below).map(|key| key.as_str().to_owned())),
                }
            });
            read.map_err(|errno| from_errno(errno, "reading the versions"))?;
        }
        keys.retain(|key| key.starts_with(prefix));
        keys.sort_unstable();
        Ok(keys)
    }

    /// Whether the bucket has old versions or delete markers.
    pub(crate) fn has_versions(&self, bucket: &Bucket) -> Result<bool> {
        for key in self.versioned_keys(bucket, "")? {
            if !self.volume.archived(bucket, &Key::new(key)?)?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn summary(key: &Key, version: VersionId, opened: Opened) -> VersionSummary {
    let info = opened.into_info().1;
    VersionSummary {
        key: key.as_str().to_owned(),
        version,
        is_latest: false,
        modified: info.modified,
        checksum: info.checksum.as_ref().map(Checksum::plan),
        content: Some((info.size, info.etag)),
    }
}
