//! Lists the versions of a bucket's objects: the latest versions from the objects themselves, and the old versions and
//! delete markers from the directory `versions/`.

use std::cell::OnceCell;
use std::fs::File;
use std::sync::Arc;

use fordway_store::{
    Bucket, Checksum, ErrorKind, Key, ListEntry, ListQuery, MAX_KEYS, ObjectInfo, Result, VersionId,
    VersionListing, VersionPageBuilder, VersionSummary, VersioningState, VersionsQuery, WalkInstruction,
};
use fordway_sys::Errno;

use super::names::{ListedKeyVersions, ListedVersion, NoncurrentVersionName, archived_place, read_names};
use crate::PosixStoreState;
use crate::encoded::{EncodedKeyTree, EncodedKeyWalk};
use crate::errors::from_errno;
use crate::layout::{ObjectPath, odd, plain, versions_of};
use crate::list::{LinkedDirectories, PATIENCE};
use crate::names::{SortedNames, state_before};
use crate::patience::within;
use crate::read::{NameLookup, system_time};
use crate::stage::{MAX_RACES, give_way};

/// Returns one page of the versions of a bucket's objects.
pub(crate) fn list_versions(
    store: &PosixStoreState,
    bucket: &Bucket,
    query: &VersionsQuery,
    linked: LinkedDirectories<'_>,
) -> Result<VersionListing> {
    within(PATIENCE, || VersionLister::open(store, bucket)?.page(query, linked))
}

/// Lists the versions of one bucket.
struct VersionLister<'l> {
    store: &'l PosixStoreState,
    bucket: &'l Bucket,
    /// Whether the bucket keeps, or has kept, versions.
    is_versioned: bool,
}

/// The keys with old versions, read before and after the objects. A delete moves the latest version to the old
/// versions, and the removal of a delete marker moves it back. If the read of the objects missed a key, either its
/// version had already become an old version, and the later walk finds the key, or its version was still an old
/// version, and the earlier walk finds the key. Long keys are an exception, because their subdirectories are read only
/// when a walk reaches them.
struct ArchivedKeys<'w> {
    before: EncodedKeyWalk<'w>,
    after: EncodedKeyWalk<'w>,
}

impl ArchivedKeys<'_> {
    /// Returns the next key of both walks, and moves past it, if `is_wanted` accepts the key.
    fn next_if(&mut self, is_wanted: impl Fn(&Key) -> bool) -> Result<Option<Key>> {
        let next = match (self.before.peek()?, self.after.peek()?) {
            (Some(before), Some(after)) => before.min(after).clone(),
            (Some(only), None) | (None, Some(only)) => only.clone(),
            (None, None) => return Ok(None),
        };
        if !is_wanted(&next) {
            return Ok(None);
        }
        for walk in [&mut self.before, &mut self.after] {
            if walk.peek()? == Some(&next) {
                walk.next()?;
            }
        }
        Ok(Some(next))
    }
}

impl<'l> VersionLister<'l> {
    fn open(store: &'l PosixStoreState, bucket: &'l Bucket) -> Result<Self> {
        store.volume.require_bucket(bucket)?;
        let is_versioned = store.volume.contents(bucket)?.versioning != VersioningState::Unversioned;
        Ok(VersionLister { store, bucket, is_versioned })
    }

    fn page(&self, query: &VersionsQuery, linked: LinkedDirectories<'_>) -> Result<VersionListing> {
        let VersionLister { store, bucket, .. } = *self;
        let mut page = VersionPageBuilder::new(query);
        if let (Some(key), Some(_)) = (&query.key_after, &query.version_after) {
            // The previous page ended among the versions of this key, so this page begins with the key's remaining
            // versions.
            if self.offer_key(&mut page, key)? == WalkInstruction::Full {
                return Ok(page.finish());
            }
        }
        let walk = |after: Option<&str>| {
            EncodedKeyWalk::start(store, bucket, EncodedKeyTree::Versions, (&query.prefix, after))
        };
        let mut before = walk(query.key_after.as_deref())?;
        // A page may need more keys than it has entries, because a version may be gone by the time it is described. A
        // page also needs one additional key, to determine whether there is a next page.
        let mut keys = query.keys();
        keys.max_keys = query.max_keys.saturating_add(1).min(MAX_KEYS);
        let mut archived = loop {
            let current = store.list_linked(bucket, &keys, linked)?;
            let after = walk(keys.start_after.as_deref())?;
            let mut archived = ArchivedKeys { before, after };
            for entry in &current.entries {
                while let Some(key) = archived.next_if(|key| key.as_str() < entry.name())? {
                    if self.offer_key(&mut page, key.as_str())? == WalkInstruction::Full {
                        return Ok(page.finish());
                    }
                }
                archived.next_if(|key| key.as_str() == entry.name())?;
                let offered = match entry {
                    ListEntry::Object(object) => self.offer_key(&mut page, &object.key)?,
                    ListEntry::CommonPrefix(prefix) => page.offer_prefix(prefix.clone()),
                };
                if offered == WalkInstruction::Full {
                    return Ok(page.finish());
                }
            }
            match current.next {
                Some(next) => {
                    let max_keys = keys.max_keys.saturating_mul(2).min(MAX_KEYS);
                    keys = ListQuery { start_after: Some(next), max_keys, ..keys };
                    before = archived.after;
                }
                None => break archived,
            }
        };
        while let Some(key) = archived.next_if(|_| true)? {
            if self.offer_key(&mut page, key.as_str())? == WalkInstruction::Full {
                break;
            }
        }
        Ok(page.finish())
    }

    fn offer_key(&self, page: &mut VersionPageBuilder, key: &str) -> Result<WalkInstruction> {
        let dir = OnceCell::new();
        let list = |after: Option<&VersionId>| match self.versions_to_show(key, &dir) {
            // A key that the caller is not permitted to read is skipped, so that the other keys are shown.
            Err(error) if error.kind() == ErrorKind::AccessDenied => Ok(ListedKeyVersions::default()),
            versions => Ok(versions?.after(after)),
        };
        let describe = |(is_latest, shown): (bool, ListedVersion)| {
            let described = match shown {
                ListedVersion::Latest(info) => Some(summary(key, info)),
                ListedVersion::Archived(found) => self.describe_old(key, (dir.get(), &found))?,
            };
            Ok(described.map(|summary| VersionSummary { is_latest, ..summary }))
        };
        page.offer(key, list, describe)
    }

    /// Returns all versions of a key. Only the latest version has been described yet. Sets `dir` to the directory of
    /// the old versions, if it exists.
    fn versions_to_show(&self, key: &str, dir: &OnceCell<File>) -> Result<ListedKeyVersions> {
        let VersionLister { store, bucket, .. } = *self;
        let key = Key::new(key)?;
        store.volume.freshen(bucket, &key)?;
        let (mut latest, mut names) = (self.latest(&key)?, Arc::default());
        for race in 0..MAX_RACES {
            give_way(race);
            if let Some((opened, found)) = archived_names(store, bucket, &key)? {
                names = found;
                let _ = dir.set(opened);
            }
            // The lookup in the directory may have missed a version that has become the latest, or has stopped being
            // the latest, in the meantime.
            let now = self.latest(&key)?;
            let is_same = version_of(&now) == version_of(&latest);
            latest = now;
            if is_same {
                break;
            }
        }
        if latest
            .as_ref()
            .and_then(|info| info.version.as_ref())
            .is_some_and(|version| has_name(&names, version))
        {
            self.disown_listed(&key, &mut latest)?;
        }
        Ok(ListedKeyVersions::new(latest, names))
    }

    /// Removes the version ID from the description of the latest version if a POSIX program created the version's file
    /// by copying an old version (see [`crate::versions::KeyVersions::disown_copy`]).
    #[cold]
    fn disown_listed(&self, key: &Key, latest: &mut Option<ObjectInfo>) -> Result<()> {
        let (volume, bucket) = (&self.store.volume, self.bucket);
        let opened = volume.find_object(bucket, key)?;
        let (Some(mut opened), Some(info)) = (opened, latest) else { return Ok(()) };
        volume.unhide_record(bucket, &mut opened)?;
        if let Some(version) = info.version.as_ref().filter(|version| opened.version() == **version)
            && volume.versions(bucket, key).is_copy(&opened.stat, version)?
        {
            info.version = None;
        }
        Ok(())
    }

    /// Describes the key's latest version. The sticky bit does not hide its version ID, because requests for a version
    /// by its ID also ignore the bit. A file whose record cannot be decoded is described without a record, so that it
    /// does not hide the versions of other keys. Cost: as for a HEAD; one more `getxattrat` and one more `newfstatat`
    /// for a bare object in a bucket that keeps versions.
    fn latest(&self, key: &Key) -> Result<Option<ObjectInfo>> {
        match self.recorded_latest(key) {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                for place in plain(self.bucket, key).into_iter().chain([odd(self.bucket, key)]) {
                    if let Some(info) = self.store.volume.describe_without_record(&place)? {
                        return Ok(Some(info));
                    }
                }
                Ok(None)
            }
            latest => latest,
        }
    }

    fn recorded_latest(&self, key: &Key) -> Result<Option<ObjectInfo>> {
        let VersionLister { store: PosixStoreState { volume, .. }, bucket, is_versioned } = *self;
        let describe = |place: ObjectPath| match is_versioned {
            true => volume.describe_unhidden(&place),
            false => volume.describe(&place),
        };
        if let Some(info) = plain(bucket, key).map_or(Ok(None), describe)? {
            return Ok(Some(info));
        }
        let Some(mut opened) = volume.find_object(bucket, key)? else { return Ok(None) };
        if is_versioned {
            volume.unhide_record(bucket, &mut opened)?;
        }
        Ok(Some(opened.into_info().1))
    }

    /// Describes a version as [`VersionLister::describe_archived`] does, even if the version has become the latest
    /// since it was listed.
    fn describe_old(
        &self,
        key: &str,
        (dir, found): (Option<&File>, &NoncurrentVersionName),
    ) -> Result<Option<VersionSummary>> {
        let mut seen = None;
        for race in 0..MAX_RACES {
            give_way(race);
            if let Some(described) = self.describe_archived(key, (dir, found))? {
                return Ok(Some(described));
            }
            let now = self.latest(&Key::new(key)?)?;
            if version_of(&now) == Some(&Some(found.version.clone())) {
                return Ok(now.map(|info| summary(key, info)));
            }
            // Two successive lookups found the version in neither place, and nothing changed between the lookups, so
            // the version is gone.
            let now = Some(version_of(&now).cloned());
            if now == seen {
                break;
            }
            seen = now;
        }
        Ok(None)
    }

    /// Describes an old version; returns `None` if it no longer exists. Cost: one `newfstatat`, and one `getxattrat`
    /// unless the object is bare.
    fn describe_archived(
        &self,
        key: &str,
        (dir, found): (Option<&File>, &NoncurrentVersionName),
    ) -> Result<Option<VersionSummary>> {
        let (volume, bucket) = (&self.store.volume, self.bucket);
        if found.is_marker {
            return Ok(Some(VersionSummary {
                key: key.to_owned(),
                version: found.version.clone(),
                is_latest: false,
                modified: system_time(i64::try_from(found.order).unwrap_or(i64::MAX)),
                content: None,
                checksum: None,
            }));
        }
        let as_found = |info| ObjectInfo { version: Some(found.version.clone()), ..info };
        if let Some(dir) = dir
            && let Ok(NameLookup::Found(object)) = volume.describe_in(dir, &found.name())
        {
            return Ok(Some(summary(key, as_found(object.into_info()))));
        }
        let place = archived_place(bucket, &Key::new(key)?, found);
        let info = match volume.open_file(bucket, &place) {
            // Any writer may create an unreadable file with this name, so the error must not hide other versions.
            Err(error) if error.kind() == ErrorKind::AccessDenied => None,
            Err(error) if error.kind() == ErrorKind::Corrupt => volume.describe_without_record(&place)?,
            opened => opened?.map(|opened| opened.into_info().1),
        };
        Ok(info.map(|info| summary(key, as_found(info))))
    }
}

/// Returns the key's versions directory and the names in it, if the directory exists. The names are cached until
/// the directory changes.
pub(crate) fn archived_names(
    store: &PosixStoreState,
    bucket: &Bucket,
    key: &Key,
) -> Result<Option<(File, Arc<SortedNames>)>> {
    let contents = store.volume.contents(bucket)?;
    if contents.versioning == VersioningState::Unversioned {
        return Ok(None);
    }
    let path = versions_of(bucket, key);
    let read = store.volume.read_existing(&path, || {
        let dir = store.volume.open_to_scan(&path)?;
        let before = state_before(&dir, contents.sharing)?;
        let directory_times = store.volume.directory_times(contents.sharing);
        let known = Some(&before).filter(|_| !contents.sharing.is_shared());
        let read = || {
            store.volume.freshen_names(&dir, contents.sharing);
            read_names(&dir, known)
        };
        let names = store.remembered.names(&before, directory_times, read)?;
        Ok((dir, names))
    });
    match read {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(errno) => Err(from_errno(errno, "reading .fordway")),
    }
}

/// Returns whether the bucket has old versions or delete markers.
pub(crate) fn has_versions(store: &PosixStoreState, bucket: &Bucket) -> Result<bool> {
    let mut keys = EncodedKeyWalk::start(store, bucket, EncodedKeyTree::Versions, ("", None))?;
    while let Some(key) = keys.next()? {
        if !store.volume.versions(bucket, &key).archived()?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether `version` has its own name among the sorted `names`.
fn has_name(names: &SortedNames, version: &VersionId) -> bool {
    let Some(name) = NoncurrentVersionName::of(version, false).map(|kept| kept.name()) else { return false };
    let at = names.first_from(&name);
    at < names.len() && names.get(at).text == name
}

fn version_of(info: &Option<ObjectInfo>) -> Option<&Option<VersionId>> {
    info.as_ref().map(|info| &info.version)
}

fn summary(key: &str, info: ObjectInfo) -> VersionSummary {
    VersionSummary {
        key: key.to_owned(),
        version: info.version.unwrap_or_else(VersionId::null),
        is_latest: false,
        modified: info.modified,
        checksum: info.checksum.as_ref().map(Checksum::plan),
        content: Some((info.size, info.etag)),
    }
}
