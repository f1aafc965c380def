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

mod list;

use std::fs::File;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use fordway_store::{Bucket, DeleteOptions, Deleted, Error, ErrorKind, Key, Result, VersionId, Versioning};
use fordway_sys::{Errno, OFlags, link, link_unnamed, open_in, remove_dir, rename};

use crate::Inner;
use crate::dirs::Dir;
use crate::errors::from_errno;
use crate::layout::{Place, VERSIONING, odd, plain, private_dir, split, versions_dir, versions_of};
use crate::private::{Contents, ENABLED, SUSPENDED};
use crate::read::Opened;
use crate::stage::{FILE_MODE, MAX_RACES, Staged, give_way, hidden_name};

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

impl Inner {
    pub(crate) fn versioning(&self, bucket: &Bucket) -> Result<Versioning> {
        self.require_bucket(bucket)?;
        Ok(self.contents(bucket)?.versioning)
    }

    pub(crate) fn set_versioning(self: &Arc<Self>, bucket: &Bucket, versioning: Versioning) -> Result<()> {
        versioning.check_settable()?;
        self.require_bucket(bucket)?;
        self.require_locks("keeping versions")?;
        self.check_decides(bucket, "keeps old versions")?;
        let private = private_dir(bucket);
        let place = Place { dir: private.into(), name: VERSIONING.into() };
        let mut staged = Staged::at(self, bucket, place)?;
        let text = if versioning == Versioning::Enabled { ENABLED } else { SUSPENDED };
        staged.write(format!("{text}\n").as_bytes())?;
        staged.publish_private()?;
        self.private.forget(bucket);
        Ok(())
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

    /// Why there is no object: the bucket is missing, a delete marker hides it, or there never was one.
    pub(crate) fn missing_object(&self, bucket: &Bucket, key: &Key) -> Error {
        let error = self.missing(bucket, ErrorKind::NoSuchKey);
        let is_hidden =
            || self.archived(bucket, key).is_ok_and(|all| all.first().is_some_and(|it| it.is_marker));
        match error.kind() == ErrorKind::NoSuchKey && is_hidden() {
            true => error.at_delete_marker(),
            false => error,
        }
    }

    /// What the directory of the key's versions holds, from the newest to the oldest.
    fn archived(&self, bucket: &Bucket, key: &Key) -> Result<Vec<Archived>> {
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
        let archived = self.archived(bucket, key)?;
        if version.is_null() {
            self.remove_archived(bucket, key, &archived, &version)?;
        }
        let kept = Archived { order: after(&archived), version, is_marker: false };
        self.among_versions(bucket, key, |dir| link_unnamed(&current.file, dir, &kept.name()))
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

    /// Removes the version `null` that was kept, now that there is another.
    pub(crate) fn forget_null(&self, bucket: &Bucket, key: &Key) -> Result<()> {
        let archived = self.archived(bucket, key)?;
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
        let contents = self.contents(bucket)?;
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
        let current = self.locate(bucket, key, contents)?;
        if current.is_none() {
            self.require_bucket(bucket)?;
        }
        let mut current_place = None;
        if let Some((place, opened)) = current {
            self.keep_version(bucket, key, &opened, Some(&version).filter(|version| !version.is_null()))?;
            // The file is closed by now: FUSE hides an open one under another name when it is removed.
            current_place = Some(place);
        }
        let archived = self.archived(bucket, key)?;
        let marker = Archived { order: after(&archived), version: version.clone(), is_marker: true };
        self.make_marker(bucket, key, &marker)?;
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

    fn make_marker(&self, bucket: &Bucket, key: &Key, marker: &Archived) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        self.among_versions(bucket, key, |dir| open_in(dir, &marker.name(), flags, FILE_MODE).map(drop))
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
        let current = self.locate(bucket, key, contents)?;
        let current = current.map(|(place, opened)| (place, opened.version()));
        if current.is_none() {
            self.require_bucket(bucket)?;
        }
        let is_current = current.as_ref().is_some_and(|(_, current)| current == version);
        let archived = self.archived(bucket, key)?;
        let newest = archived.iter().find(|found| found.version != *version).filter(|found| !found.is_marker);
        // What has no latest version and no delete marker either was removed by a POSIX program.
        let is_newest = archived.first().is_some_and(|first| first.is_marker && first.version == *version);
        if let (None, Some(newest), true) = (&current, newest, is_newest) {
            // Before the delete marker goes, so that no moment is without a latest version.
            self.promote(bucket, key, newest)?;
        }
        let is_marker = self.remove_archived(bucket, key, &archived, version)? && !is_current;
        if let Some((place, _)) = current.as_ref().filter(|_| is_current) {
            self.remove_hidden_odd(bucket, key, place, contents)?;
        }
        match (current, newest) {
            (Some((place, _)), Some(newest)) if is_current => {
                self.promote_over(bucket, key, newest, &place)?
            }
            (Some((place, _)), None) if is_current => drop(self.remove_at(bucket, &place, contents)?),
            (None, Some(newest)) if is_newest => {
                self.remove_at(bucket, &archived_place(bucket, key, newest), contents)?;
            }
            _ => {}
        }
        self.remove_empty(bucket, &versions_of(bucket, key));
        Ok(Deleted { version: Some(version.clone()), is_marker })
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
