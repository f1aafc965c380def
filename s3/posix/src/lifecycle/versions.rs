//! Expires versions and delete markers in buckets that keep versions.

use std::cell::Cell;
use std::fs::File;
use std::sync::Arc;
use std::time::SystemTime;

use fordway_store::{Bucket, Key, Result, VersionId, VersionSummary, VersionsQuery};
use fordway_sys::{Errno, FileStat, is_same_user, look_again, stat_in};
use fordway_wire::lifecycle::LifecycleRule;
use fordway_wire::notification::EventKind;

use super::{
    ExpiryRecheck, ExpiryRecheckResult, LifecycleAction, LifecycleChange, LifecycleRun, is_same, named,
};
use crate::PosixStoreState;
use crate::area::TrustedOwner;
use crate::errors::from_errno;
use crate::events::{ChangeRecorder, EventFacts};
use crate::layout::{marked_dir, plain, versions_of};
use crate::list::{LinkedDirectories, UnlistedDirectories};
use crate::names::SortedNames;
use crate::object_lock::VersionProtection;
use crate::private::PrivateDirectoryContents;
use crate::read::{ObjectFile, system_time};
use crate::versions::delete::VersionDeletion;
use crate::versions::list::{archived_names, list_versions};
use crate::versions::names::{NoncurrentVersionName, archived_place, order_in};

/// The scan state of the key that the listing has reached.
#[derive(Default)]
struct VersionScanState {
    key: String,
    /// The time at which the next newer version was written, which made this version noncurrent.
    replaced: Option<SystemTime>,
    /// The number of newer noncurrent versions of the key.
    newer: u32,
    /// A delete marker that is the latest version, until another version of its key is found.
    marker: Option<(VersionId, SystemTime)>,
    /// The names of the key's versions, read when the first due version is found.
    names: Option<VersionNames>,
}

/// The names of a key's versions, which are read once for each key. A scan goes through the versions from the newest to
/// the oldest. Names that are created after the read belong to newer versions, so they can only make more versions due.
/// Before any removal that depends on a name, the run checks again that the name still exists.
struct VersionNames {
    names: Arc<SortedNames>,
    /// The position of the version that the scan has reached, plus one; the position itself if the scan has removed
    /// that version.
    end: usize,
    /// The positions of the newer versions that the scan has not removed, the oldest of them last.
    newer: Vec<usize>,
}

impl VersionNames {
    fn of(inner: &PosixStoreState, bucket: &Bucket, key: &Key) -> Result<Self> {
        let names = archived_names(inner, bucket, key)?.map(|(_, names)| names).unwrap_or_default();
        Ok(VersionNames { end: names.len(), names, newer: Vec::new() })
    }

    fn at(&self, position: usize) -> Option<NoncurrentVersionName> {
        NoncurrentVersionName::parse(self.names.get(position).text)
    }

    /// Moves to `version`, which is older than all versions already reached, and returns its name. Returns `None` if
    /// the version has no name. Cost: one step for each version in between.
    fn reach(&mut self, version: &VersionId) -> Option<NoncurrentVersionName> {
        let is_it = |at: &usize| self.at(*at).is_some_and(|found| found.version == *version);
        let at = (0..self.end).rev().find(is_it)?;
        self.newer.extend((at + 1..self.end).rev());
        self.end = at + 1;
        self.at(at)
    }

    /// Records that the version that the scan has reached was removed.
    fn drop_reached(&mut self) {
        self.end -= 1;
    }

    /// Returns the names newer than the version that the scan has reached, the oldest first.
    fn newer(&self) -> impl Iterator<Item = NoncurrentVersionName> {
        self.newer.iter().rev().filter_map(|at| self.at(*at))
    }
}

impl LifecycleRun<'_> {
    /// Expires versions in a bucket that keeps versions.
    pub(super) fn versions(&mut self, bucket: &Bucket, rules: &[LifecycleRule]) -> Result<()> {
        let (mut query, mut state) = (VersionsQuery::default(), VersionScanState::default());
        let (skipped, mut told) = (UnlistedDirectories::default(), [false; 2]);
        loop {
            let page = list_versions(self.inner, bucket, &query, LinkedDirectories::Skipped(&skipped))?;
            self.skipped(bucket, &skipped, &mut told)?;
            for version in &page.versions {
                self.looked_at_one()?;
                if version.is_latest || version.key != state.key {
                    let ended = std::mem::take(&mut state);
                    self.end_of_key(bucket, ended, rules)?;
                    state.key.clone_from(&version.key);
                }
                let done = self.version(bucket, version, &mut state, rules);
                self.survive(bucket, &version.key, done)?;
            }
            let Some((key, version)) = page.next else { return self.end_of_key(bucket, state, rules) };
            (query.key_after, query.version_after) = (Some(key), version);
        }
    }

    fn version(
        &mut self,
        bucket: &Bucket,
        found: &VersionSummary,
        state: &mut VersionScanState,
        rules: &[LifecycleRule],
    ) -> Result<()> {
        let replaced = state.replaced.replace(found.modified);
        if found.is_latest {
            match &found.content {
                None => state.marker = Some((found.version.clone(), found.modified)),
                Some((size, _)) => {
                    if self.current_rule(rules, (&found.key, *size, found.modified), None).is_some() {
                        self.hide(bucket, &found.key, rules)?;
                    }
                }
            }
            return Ok(());
        }
        state.marker = None;
        let newer = state.newer;
        state.newer += 1;
        let Some(replaced) = replaced else { return Ok(()) };
        let size = found.content.as_ref().map_or(0, |(size, _)| *size);
        let day = self.day();
        let is_due = |rule: &&LifecycleRule| {
            rule.filter.has_key(&found.key)
                && rule.filter.has_size(size)
                && self.is_due(rule.noncurrent_expiry(replaced, newer, day))
        };
        let candidates: Vec<&LifecycleRule> = rules.iter().filter(is_due).collect();
        match candidates.is_empty() {
            true => Ok(()),
            false => self.expire_version(bucket, (found, newer), &candidates, &mut state.names),
        }
    }

    /// Hides the latest version behind a delete marker.
    fn hide(&mut self, bucket: &Bucket, key: &str, rules: &[LifecycleRule]) -> Result<()> {
        let (inner, key) = (self.inner, Key::new(key)?);
        let Some(mut seen) = inner.volume.find_object(bucket, &key)? else { return Ok(()) };
        // The check under the key's lock also reads the record that the sticky bit hides from `find_object`.
        inner.volume.unhide_record(bucket, &mut seen)?;
        match inner.volume.require_own_file(bucket, &key, &seen) {
            // The key is a symbolic link to a file of another bucket, which cannot become an old version of this
            // bucket.
            Err(error) if error.leaves_bucket() => return Ok(()),
            checked => checked?,
        }
        if is_behind_link(inner, bucket, &key)? {
            return Ok(());
        }
        let Some(rule) = self.rule_of(rules, &key, &seen) else { return Ok(()) };
        let change = self.changed(LifecycleAction::Hide, bucket, &key, &seen.version(), rule, &seen);
        let check = ExpiryRecheck { now: self.now, day: self.day(), rule };
        self.change(change, Some(seen.stat.user), || {
            inner.locked(bucket, &key, |contents| {
                let now = inner.volume.latest_file(bucket, &key, contents)?;
                if !now.is_some_and(|now| is_same(&seen, &now) && check.is_due(&now)) {
                    return Ok(ExpiryRecheckResult::Spared);
                }
                // Each expiration creates one delete marker, even if the run is killed during the expiration.
                ChangeRecorder::of(inner, bucket, contents).record(&key, EventKind::ExpireMarker, || {
                    let mut version = None;
                    if !inner.end_delete(bucket, &key, contents)? {
                        version = inner.delete_latest(bucket, &key, contents)?.version;
                    }
                    Ok((ExpiryRecheckResult::Changed, EventFacts::removed(version)))
                })
            })
        })
    }

    fn changed(
        &self,
        action: LifecycleAction,
        bucket: &Bucket,
        key: &Key,
        version: &VersionId,
        rule: &LifecycleRule,
        seen: &ObjectFile,
    ) -> LifecycleChange {
        LifecycleChange {
            action,
            bucket: bucket.clone(),
            key: key.as_str().to_owned(),
            version: named(version),
            rule: rule.id.clone(),
            size_bytes: seen.stat.size,
        }
    }

    /// Removes a version that is not the latest, according to the first rule that still applies when the key is locked.
    fn expire_version(
        &mut self,
        bucket: &Bucket,
        (found, newer): (&VersionSummary, u32),
        rules: &[&LifecycleRule],
        names: &mut Option<VersionNames>,
    ) -> Result<()> {
        let (inner, key) = (self.inner, Key::new(found.key.as_str())?);
        let names = match names {
            Some(names) => names,
            None => names.insert(VersionNames::of(inner, bucket, &key)?),
        };
        let Some(name) = names.reach(&found.version) else { return Ok(()) };
        let old = NoncurrentVersionReference { bucket, key: &key, name: &name, names };
        let seen = match found.content {
            Some(_) => match old.open(inner)? {
                Some(seen) => Some(seen),
                None => return Ok(()),
            },
            None => None,
        };
        let day = self.day();
        // A dry run makes no other check of the file's times.
        let applies = |rule: &&&LifecycleRule| match &seen {
            Some(seen) => {
                rule.filter.has_tags(&seen.record().tags)
                    && self.is_due(rule.noncurrent_expiry(replaced_min(&seen.stat), newer, day))
            }
            // A delete marker has no tags.
            None => rule.filter.tags.is_empty(),
        };
        let Some(rule) = rules.iter().find(applies) else { return Ok(()) };
        if is_behind_link(inner, bucket, &key)? {
            return Ok(());
        }
        let change = LifecycleChange {
            action: LifecycleAction::ExpireVersion,
            bucket: bucket.clone(),
            key: found.key.clone(),
            version: named(&found.version),
            rule: rule.id.clone(),
            size_bytes: seen.as_ref().map_or(0, |seen| seen.stat.size),
        };
        let check = ExpiryRecheck { now: self.now, day: self.day(), rule };
        let owner = seen.as_ref().map(|seen| seen.stat.user);
        let is_removed = Cell::new(false);
        let done = self.change(change, owner, || {
            let done =
                inner.locked(bucket, &key, |contents| old.expire(inner, seen.as_ref(), &check, contents));
            is_removed.set(matches!(done, Ok(ExpiryRecheckResult::Changed)));
            done
        });
        if is_removed.get() {
            names.drop_reached();
        }
        done
    }

    /// Removes the delete marker of a key that has no other versions.
    fn end_of_key(
        &mut self,
        bucket: &Bucket,
        state: VersionScanState,
        rules: &[LifecycleRule],
    ) -> Result<()> {
        let Some((version, made)) = state.marker else { return Ok(()) };
        let day = self.day();
        let is_due = |rule: &&LifecycleRule| {
            let filter = &rule.filter;
            filter.has_key(&state.key)
                && filter.has_size(0)
                && filter.tags.is_empty()
                && self.is_due(rule.marker_expiry(made, day))
        };
        let Some(rule) = rules.iter().find(is_due) else { return Ok(()) };
        let change = LifecycleChange {
            action: LifecycleAction::ExpireMarker,
            bucket: bucket.clone(),
            key: state.key.clone(),
            version: named(&version),
            rule: rule.id.clone(),
            size_bytes: 0,
        };
        let (inner, key) = (self.inner, Key::new(state.key.as_str())?);
        self.change(change, None, || {
            inner.locked(bucket, &key, |contents| {
                let is_alone = inner.volume.locate(bucket, &key, contents)?.is_none()
                    && matches!(&inner.volume.versions(bucket, &key).archived()?[..],
                        [only] if only.is_marker && only.version == version);
                match is_alone {
                    true => expire_version(inner, (bucket, &key, &version), contents),
                    false => Ok(ExpiryRecheckResult::Spared),
                }
            })
        })
    }
}

/// A version, or a delete marker, that was not the latest when it was listed.
struct NoncurrentVersionReference<'v> {
    bucket: &'v Bucket,
    key: &'v Key,
    name: &'v NoncurrentVersionName,
    names: &'v VersionNames,
}

impl NoncurrentVersionReference<'_> {
    fn open(&self, inner: &PosixStoreState) -> Result<Option<ObjectFile>> {
        match self.name.is_marker {
            true => Ok(None),
            false => inner.volume.open_file(self.bucket, &archived_place(self.bucket, self.key, self.name)),
        }
    }

    /// Removes the version if it is still the version `seen`, is neither the latest nor locked, and is still due. The
    /// function determines again whether the version is due, because a newer version of the key may have been removed.
    fn expire(
        &self,
        inner: &Arc<PosixStoreState>,
        seen: Option<&ObjectFile>,
        check: &ExpiryRecheck,
        contents: PrivateDirectoryContents,
    ) -> Result<ExpiryRecheckResult> {
        let NoncurrentVersionReference { bucket, key, name, names } = *self;
        let current = inner.volume.locate(bucket, key, contents)?.map(|(_, opened)| opened);
        let Some(witnesses) = VersionWitnesses::of(inner, (bucket, key, name), contents)? else {
            return Ok(ExpiryRecheckResult::Spared);
        };
        if !check.is_noncurrent_due(&name.version, current.as_ref(), names.newer(), &witnesses) {
            return Ok(ExpiryRecheckResult::Spared);
        }
        if let Some(seen) = seen {
            let Some(now) = self.open(inner)? else { return Ok(ExpiryRecheckResult::Spared) };
            if !is_same(seen, &now) || !check.rule.filter.has_tags(&now.record().tags) {
                return Ok(ExpiryRecheckResult::Spared);
            }
            let protection = VersionProtection { volume: &inner.volume, bucket, contents };
            if protection.check_unlocked(&now, false).is_err() {
                return Ok(ExpiryRecheckResult::Locked);
            }
        }
        expire_version(inner, (bucket, key, &name.version), contents)
    }
}

/// Returns whether the key leads through a symbolic link to a directory. Objects reached through links to directories
/// do not expire, but the key may be listed because of its old versions.
fn is_behind_link(inner: &PosixStoreState, bucket: &Bucket, key: &Key) -> Result<bool> {
    let dir = plain(bucket, key).map(|place| place.dir.into_owned()).or_else(|| marked_dir(bucket, key));
    let is_behind = dir.map_or(Ok(false), |dir| inner.volume.root.is_behind_link(&dir));
    is_behind.map_err(|errno| from_errno(errno, "looking for links"))
}

/// Removes a version, and records the event.
fn expire_version(
    inner: &Arc<PosixStoreState>,
    (bucket, key, version): (&Bucket, &Key, &VersionId),
    contents: PrivateDirectoryContents,
) -> Result<ExpiryRecheckResult> {
    ChangeRecorder::of(inner, bucket, contents).record(key, EventKind::Expire, || {
        let deleted =
            VersionDeletion { store: inner, bucket, key, version, contents, bypass: false }.run()?;
        Ok((ExpiryRecheckResult::Changed, EventFacts::removed(deleted.version)))
    })
}

/// Determines which files prove that a version was replaced. A file that has been removed proves nothing. In a bucket
/// with the sticky bit, any user may create names next to another user's versions. The names that other users create
/// must not make a version seem older than it is, or seem to have more newer versions than it has.
struct VersionWitnesses {
    /// The key's versions directory.
    dir: File,
    /// Whether other nodes may change the directory.
    is_shared: bool,
    /// The owner of the version, and the bucket's trusted owner; `None` if every writer is trusted.
    doubts: Option<(u32, TrustedOwner)>,
    /// The earliest time at which the version can have become noncurrent.
    replaced_min: SystemTime,
}

impl VersionWitnesses {
    /// Opens the versions directory of the key. Returns `None` if the version `this` has been removed.
    fn of(
        inner: &PosixStoreState,
        (bucket, key, this): (&Bucket, &Key, &NoncurrentVersionName),
        contents: PrivateDirectoryContents,
    ) -> Result<Option<Self>> {
        let (path, is_shared) = (versions_of(bucket, key), contents.sharing.is_shared());
        if is_shared {
            inner.volume.refresh_dirs(&path);
        }
        let dir = match inner.volume.open_dir(&path) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            dir => dir.map_err(|errno| from_errno(errno, "reading .fordway"))?,
        };
        let mut witnesses =
            VersionWitnesses { dir, is_shared, doubts: None, replaced_min: SystemTime::UNIX_EPOCH };
        let Some(state) = witnesses.state_of(this) else { return Ok(None) };
        witnesses.doubts = contents.guard.map(|guard| (state.user, guard));
        witnesses.replaced_min = replaced_min(&state).max(written(this));
        Ok(Some(witnesses))
    }

    /// Returns the metadata of the file with this name, or `None` if there is no file. Cost: one `newfstatat`; three
    /// calls if other nodes may change the directory.
    fn state_of(&self, name: &NoncurrentVersionName) -> Option<FileStat> {
        if self.is_shared {
            look_again(&self.dir, &name.name());
        }
        stat_in(&self.dir, &name.name()).ok()
    }

    fn trusts(&self, user: u32) -> bool {
        self.doubts.as_ref().is_none_or(|(owner, guard)| is_same_user(user, *owner) || guard.trusts(user))
    }

    /// Returns whether this name still exists and a trusted user created it. Cost: as for
    /// [`VersionWitnesses::state_of`].
    fn has(&self, name: &NoncurrentVersionName) -> bool {
        self.state_of(name).is_some_and(|state| self.trusts(state.user))
    }

    /// Returns the time at which the latest version was written. Users may set any modification time on their own
    /// files, and programs such as rsync do. For a file without a version ID, and for a file of an untrusted user, the
    /// change time therefore also counts.
    fn written_latest(&self, current: &ObjectFile) -> SystemTime {
        let (by_id, by_file) = (order_in(&current.version()).map(at), system_time(current.stat.modified_ns));
        match by_id.filter(|_| self.trusts(current.stat.user)) {
            Some(by_id) => by_id.max(by_file),
            None => by_file.max(system_time(current.stat.changed_ns)),
        }
    }
}

impl ExpiryRecheck<'_> {
    /// Returns whether `version` is a noncurrent version of its key and is due for removal. `newer` contains the names
    /// of newer versions, the oldest first. Cost: one call to [`VersionWitnesses::has`] for each name that is examined.
    /// Without concurrent deletes, at most two names more than the rule keeps are examined.
    fn is_noncurrent_due(
        &self,
        version: &VersionId,
        current: Option<&ObjectFile>,
        newer: impl Iterator<Item = NoncurrentVersionName>,
        witnesses: &VersionWitnesses,
    ) -> bool {
        let latest = current.map(ObjectFile::version);
        if latest.as_ref() == Some(version) {
            return false;
        }
        // The latest version may also have a name among the old versions.
        let newer = newer.filter(|found| latest.as_ref() != Some(&found.version));
        let kept = self.rule.noncurrent.and_then(|rule| rule.newer).unwrap_or(0) as usize;
        // If there is no current version, the newest name is the latest version, a delete marker.
        let hidden = usize::from(current.is_none());
        let newer: Vec<_> = newer.filter(|found| witnesses.has(found)).take(kept.max(1) + hidden).collect();
        let replaced = match (newer.first(), current) {
            (Some(next), _) => written(next),
            (None, Some(current)) => witnesses.written_latest(current),
            // The version is now the latest, and is kept, because a POSIX program has removed the file of the previous
            // latest version.
            (None, None) => return false,
        };
        let replaced = replaced.max(witnesses.replaced_min);
        let newer = u32::try_from(newer.len() - hidden).unwrap_or(u32::MAX);
        self.rule.noncurrent_expiry(replaced, newer, self.day).is_some_and(|due| due <= self.now)
    }
}

/// Returns the time at which a version was written.
fn written(found: &NoncurrentVersionName) -> SystemTime {
    at(found.order)
}

fn at(order: u64) -> SystemTime {
    system_time(i64::try_from(order).unwrap_or(i64::MAX))
}

/// Returns the earliest time at which the old version whose file has this metadata can have become noncurrent. The file
/// got its name among the old versions when it was replaced, which set its change time. The times of the following
/// version do not suffice: a POSIX program can put a file with old times, or the object of another key, at the key's
/// path.
fn replaced_min(state: &FileStat) -> SystemTime {
    system_time(state.changed_ns)
}
