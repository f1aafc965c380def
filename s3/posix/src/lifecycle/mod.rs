//! Expires objects, versions and uploads according to their buckets' rules.
//!
//! A run lists a bucket, and examines each object that seems due. The run then takes the key's lock. The object is
//! changed only if the file, its size and its times are still the same, and a rule still applies. Any number of runs
//! may work on one root, on any nodes. A lock ensures that at most one run at a time works on a bucket; the kernel
//! releases this lock when the process dies. If a run is interrupted, the next run continues its work, because objects
//! that have already expired no longer exist.
//!
//! A run does not follow symbolic links to directories, which may lead to another bucket with other rules. A run skips
//! directories that it is not permitted to read.
//!
//! A locked version does not expire. The next run after the end of the version's retention removes the version.
//!
//! Rules that the bucket's owner or root has set are applied with the rights of the bucket's owner and of the objects'
//! owners. In a bucket that other users may write to, these users may also set rules. Such rules are applied with the
//! rights of the user who set them, so nobody can use rules to remove files that they could not remove themselves. The
//! mark on the rules' file shows who set them (see [`crate::mark`]); rules without a mark are not applied there.

mod versions;

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use fordway_store::{
    Bucket, BucketDocumentKind, Error, ErrorKind, Key, ListEntry, ListQuery, Result, UploadsQuery, VersionId,
    VersioningState,
};
use fordway_wire::lifecycle::{DAY, LifecycleRule, read};
use fordway_wire::notification::EventKind;

use fordway_sys::with_lock_patience;

use crate::actors::{ImpersonatedUserCache, bucket_owner};
use crate::events::{ChangeRecorder, EventFacts};
use crate::layout::{document_name, join, private_dir};
use crate::list::{LinkedDirectories, UnlistedDirectories};
use crate::mark::unmarked;
use crate::multipart::MultipartUploadManager;
use crate::multipart::parts::owner_of_upload;
use crate::read::{ObjectFile, system_time};
use crate::scan::{ChosenBuckets, PROGRESS_ENTRIES};
use crate::store::LANE;
use crate::{PosixStore, PosixStoreState};

/// The kind of bucket document that contains the lifecycle rules.
pub(crate) const RULES: BucketDocumentKind = BucketDocumentKind::known("lifecycle");
const OPERATION: &str = "apply the lifecycle of";
/// The longest sleep between two progress reports. The receiver can stop the run only at a report.
const NAP: Duration = Duration::from_millis(100);

/// The options of [`PosixStore::run_lifecycle`].
#[derive(Clone, Debug)]
pub struct LifecycleOptions {
    /// The buckets whose rules are applied. If the list is empty, the rules of all buckets are applied.
    pub buckets: Vec<Bucket>,
    /// Whether to only report what would expire.
    pub dry_run: bool,
    /// The maximum number of changes per second; `None` for no limit.
    pub rate: Option<f64>,
    /// The length of a day; shorter than 24 hours only in tests.
    pub day: Duration,
}

impl Default for LifecycleOptions {
    /// Returns the defaults: all buckets, no rate limit, and days of 24 hours.
    fn default() -> Self {
        LifecycleOptions { buckets: Vec::new(), dry_run: false, rate: None, day: DAY }
    }
}

/// The action of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifecycleAction {
    /// Removes an object in a bucket without versions.
    Expire,
    /// Hides the latest version behind a delete marker.
    Hide,
    /// Removes a version or a delete marker that is not the latest version.
    ExpireVersion,
    /// Removes a delete marker that hides nothing.
    ExpireMarker,
    /// Aborts a multipart upload.
    AbortUpload,
}

impl LifecycleAction {
    /// Returns the name used in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            LifecycleAction::Expire => "expire",
            LifecycleAction::Hide => "hide",
            LifecycleAction::ExpireVersion => "expire-version",
            LifecycleAction::ExpireMarker => "expire-marker",
            LifecycleAction::AbortUpload => "abort-upload",
        }
    }
}

/// A change that was made or, in a dry run, would have been made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LifecycleChange {
    /// The action that was performed.
    pub action: LifecycleAction,
    /// The bucket that contains the object or upload.
    pub bucket: Bucket,
    /// The key of the object or upload.
    pub key: String,
    /// The ID of the removed version or upload; `None` for an object without versions.
    pub version: Option<String>,
    /// The name of the rule that applies.
    pub rule: String,
    /// The size of the removed content in bytes.
    pub size_bytes: u64,
}

/// An event during a run. The receiver can stop the run by returning an error.
#[derive(Debug)]
pub enum LifecycleEvent {
    /// The number of objects, versions and uploads examined so far.
    Progress {
        /// The number of entries examined since the start.
        entries: u64,
    },
    /// A change was made or, in a dry run, would have been made.
    Changed(LifecycleChange),
    /// Another run is working on this bucket.
    Busy(Bucket),
    /// The symbolic link with this key leads to a directory, and the bucket may contain more links to directories.
    /// Objects reached through links to directories do not expire. Reported once for each bucket.
    SkippedLink(Bucket, String),
    /// The run is not permitted to read the directory with this key, and the bucket may contain more such directories.
    /// Objects in these directories do not expire. Reported once for each bucket.
    SkippedDirectory(Bucket, String),
    /// An object could not be examined or removed; the run continues.
    Failed(Error),
}

/// The totals of a run or a dry run: examined entries, changes, and entries and buckets that were skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LifecycleSummary {
    /// The number of objects, versions and uploads examined.
    pub entries: u64,
    /// The number of changes.
    pub changed: u64,
    /// The number of bytes that expired.
    pub expired_bytes: u64,
    /// The number of versions that are due, but are locked.
    pub locked: u64,
    /// The number of buckets that another run was working on.
    pub busy: u64,
    /// The number of objects, versions and uploads that could not be examined or removed.
    pub failed: u64,
}

impl PosixStore {
    /// Applies the lifecycle rules of the buckets in `options` once, and reports each change to `tell`. A process that
    /// may act as other users works in each bucket as the bucket's owner, and on other users' files as the users who
    /// own them. If neither the bucket's owner nor root has set the rules, the process works only as the user who set
    /// them. Memory: one page of a listing, and the names of all versions of one key. Cost: one listing of each bucket
    /// that has rules; for each change, one examination of the file and one delete; for each key with expired versions,
    /// one more read of the names of its versions. Errors: `NoSuchBucket` before anything is changed; errors that
    /// `tell` returns.
    pub fn run_lifecycle(
        &self,
        options: &LifecycleOptions,
        tell: &mut dyn FnMut(LifecycleEvent) -> Result<()>,
    ) -> Result<LifecycleSummary> {
        let chosen = ChosenBuckets::of(self, &options.buckets)?;
        let actors = Rc::new(ImpersonatedUserCache::new(&self.inner));
        let mut run = LifecycleRun::new(&self.inner, actors.clone(), options, tell);
        for (bucket, error) in chosen.unreadable {
            run.failed(&bucket, "", error)?;
        }
        for bucket in &chosen.buckets {
            match bucket_owner(&self.inner, bucket) {
                Ok(Some(owner)) => {
                    let done = actors.act_as(owner, || Ok(run.bucket(bucket, owner)))?;
                    run.survive(bucket, "", done)?;
                }
                // The bucket's owner has removed the bucket in the meantime.
                Ok(None) => {}
                Err(error) => run.failed(bucket, "", error)?,
            }
        }
        Ok(run.summary)
    }
}

/// A run in progress.
pub(super) struct LifecycleRun<'s> {
    pub(super) inner: &'s Arc<PosixStoreState>,
    actors: Rc<ImpersonatedUserCache>,
    options: &'s LifecycleOptions,
    tell: &'s mut dyn FnMut(LifecycleEvent) -> Result<()>,
    pub(super) summary: LifecycleSummary,
    /// The time when work on the bucket started. An object expires only if the object was due by that time.
    now: SystemTime,
    /// The earliest time of the next change.
    next: Instant,
    /// Whether `tell` has stopped the run.
    is_ended: bool,
    /// Whether waiting for a lock in the current bucket has timed out. After a timeout, the run does not wait for other
    /// locks in this bucket, so that a user who holds all locks cannot stop the run.
    finds_locks_held: bool,
    /// Whether the run may act as the owner of an object.
    acts_for_owners: bool,
}

/// The result of checking again, under the key's lock, whether an object is due.
pub(super) enum ExpiryRecheckResult {
    Changed,
    /// The object is no longer due, or no longer exists.
    Spared,
    Locked,
}

impl<'s> LifecycleRun<'s> {
    fn new(
        inner: &'s Arc<PosixStoreState>,
        actors: Rc<ImpersonatedUserCache>,
        options: &'s LifecycleOptions,
        tell: &'s mut dyn FnMut(LifecycleEvent) -> Result<()>,
    ) -> Self {
        let (summary, now, next) = (LifecycleSummary::default(), SystemTime::now(), Instant::now());
        LifecycleRun {
            inner,
            actors,
            options,
            tell,
            summary,
            now,
            next,
            is_ended: false,
            finds_locks_held: false,
            acts_for_owners: false,
        }
    }

    /// Reports an event. Errors: any error that the receiver returns, which stops the run.
    fn say(&mut self, event: LifecycleEvent) -> Result<()> {
        let said = (self.tell)(event);
        self.is_ended |= said.is_err();
        said
    }

    fn failed(&mut self, bucket: &Bucket, key: &str, error: Error) -> Result<()> {
        self.summary.failed += 1;
        self.say(LifecycleEvent::Failed(error.during(OPERATION, LANE, bucket.as_str(), key)))
    }

    /// Reports an error and continues, unless the receiver has stopped the run.
    pub(super) fn survive(&mut self, bucket: &Bucket, key: &str, done: Result<()>) -> Result<()> {
        match done {
            Err(error) if !self.is_ended => self.failed(bucket, key, error),
            done => done,
        }
    }

    fn bucket(&mut self, bucket: &Bucket, owner: u32) -> Result<()> {
        self.finds_locks_held = false;
        let Some(document) = self.inner.stored_document(bucket, &RULES)? else { return Ok(()) };
        // Rules of an unknown author are not applied.
        let author =
            document.author.ok_or_else(|| unmarked(&join(&private_dir(bucket), &document_name(&RULES))))?;
        self.acts_for_owners = author == owner || author == 0;
        let rules = read(&document.bytes).map_err(|error| {
            let why = format!("the lifecycle rules are not valid: {}; put valid ones", error.message);
            Error::new(ErrorKind::Corrupt, why)
        })?;
        let rules: Vec<_> = rules.into_iter().filter(|rule| rule.is_enabled).collect();
        match self.acts_for_owners {
            true => self.alone_in(bucket, &rules),
            false => self.actors.clone().act_as(author, || self.alone_in(bucket, &rules)),
        }
    }

    fn alone_in(&mut self, bucket: &Bucket, rules: &[LifecycleRule]) -> Result<()> {
        let inner = self.inner;
        match inner.alone_in(bucket, || self.apply(bucket, rules))? {
            Some(()) => Ok(()),
            None => {
                self.summary.busy += 1;
                self.say(LifecycleEvent::Busy(bucket.clone()))
            }
        }
    }

    fn apply(&mut self, bucket: &Bucket, rules: &[LifecycleRule]) -> Result<()> {
        self.now = SystemTime::now();
        if rules.iter().any(|rule| rule.abort_days.is_some()) {
            self.uploads(bucket, rules)?;
        }
        if rules.iter().all(|rule| rule.expiration.is_none() && rule.noncurrent.is_none()) {
            return Ok(());
        }
        match self.inner.volume.contents(bucket)?.versioning {
            VersioningState::Unversioned => self.objects(bucket, rules),
            VersioningState::Enabled | VersioningState::Suspended => self.versions(bucket, rules),
        }
    }

    /// Reports a symbolic link and a directory that the listing of a bucket has skipped. `told` contains whether the
    /// run has already reported a link, and a directory, of the bucket.
    pub(super) fn skipped(
        &mut self,
        bucket: &Bucket,
        skipped: &UnlistedDirectories,
        told: &mut [bool; 2],
    ) -> Result<()> {
        let [told_link, told_closed] = told;
        if let Some(key) = skipped.link.take().filter(|_| !std::mem::replace(told_link, true)) {
            self.say(LifecycleEvent::SkippedLink(bucket.clone(), key))?;
        }
        if let Some(key) = skipped.closed.take().filter(|_| !std::mem::replace(told_closed, true)) {
            self.say(LifecycleEvent::SkippedDirectory(bucket.clone(), key))?;
        }
        Ok(())
    }

    pub(super) fn looked_at_one(&mut self) -> Result<()> {
        self.summary.entries += 1;
        let entries = self.summary.entries;
        match entries.is_multiple_of(PROGRESS_ENTRIES) {
            true => self.say(LifecycleEvent::Progress { entries }),
            false => Ok(()),
        }
    }

    pub(super) fn is_due(&self, due: Option<SystemTime>) -> bool {
        due.is_some_and(|due| due <= self.now)
    }

    pub(super) fn day(&self) -> Duration {
        self.options.day
    }

    /// Waits until the rate allows another change.
    fn pace(&mut self) -> Result<()> {
        let Some(rate) = self.options.rate else { return Ok(()) };
        while let Some(left) = self.next.checked_duration_since(Instant::now()) {
            std::thread::sleep(left.min(NAP));
            self.say(LifecycleEvent::Progress { entries: self.summary.entries })?;
        }
        self.next = Instant::now() + Duration::try_from_secs_f64(1.0 / rate).unwrap_or_default();
        Ok(())
    }

    /// Makes a change, and reports it. In a dry run, only reports the change. `act` checks again whether the change is
    /// due; if access is denied, `act` is called once more as the user `owner`.
    pub(super) fn change(
        &mut self,
        change: LifecycleChange,
        owner: Option<u32>,
        act: impl Fn() -> Result<ExpiryRecheckResult>,
    ) -> Result<()> {
        let done = match self.options.dry_run {
            true => Ok(ExpiryRecheckResult::Changed),
            false => {
                self.pace()?;
                let owner = owner.filter(|_| self.acts_for_owners);
                match self.finds_locks_held {
                    true => with_lock_patience(Duration::ZERO, || self.actors.or_as(owner, act)),
                    false => self.actors.or_as(owner, act),
                }
            }
        };
        self.finds_locks_held |= done.as_ref().is_err_and(|error| error.kind() == ErrorKind::LockTimeout);
        match done {
            Ok(ExpiryRecheckResult::Changed) => {
                self.summary.changed += 1;
                self.summary.expired_bytes += change.size_bytes;
                self.say(LifecycleEvent::Changed(change))
            }
            Ok(ExpiryRecheckResult::Locked) => {
                self.summary.locked += 1;
                Ok(())
            }
            Ok(ExpiryRecheckResult::Spared) => Ok(()),
            Err(error) => {
                let LifecycleChange { bucket, key, .. } = change;
                self.failed(&bucket, &key, error)
            }
        }
    }

    fn uploads(&mut self, bucket: &Bucket, rules: &[LifecycleRule]) -> Result<()> {
        let mut query = UploadsQuery::default();
        loop {
            let page = MultipartUploadManager::of(self.inner).list_uploads(bucket, &query)?;
            for upload in &page.uploads {
                self.looked_at_one()?;
                let (started, day) = (upload.started, self.day());
                let is_due = |rule: &&LifecycleRule| {
                    rule.filter.has_key(&upload.key) && self.is_due(rule.abort_expiry(started, day))
                };
                let Some(rule) = rules.iter().find(is_due) else { continue };
                let change = LifecycleChange {
                    action: LifecycleAction::AbortUpload,
                    bucket: bucket.clone(),
                    key: upload.key.clone(),
                    version: Some(upload.upload.as_str().to_owned()),
                    rule: rule.id.clone(),
                    size_bytes: 0,
                };
                let (inner, key) = (self.inner, Key::new(upload.key.as_str())?);
                let owner = owner_of_upload(&inner.volume, bucket, &upload.upload);
                self.change(change, owner, || {
                    match MultipartUploadManager::of(inner).abort_upload(bucket, &key, &upload.upload) {
                        Ok(()) => Ok(ExpiryRecheckResult::Changed),
                        // The upload was completed or aborted in the meantime.
                        Err(error) if error.kind() == ErrorKind::NoSuchUpload => {
                            Ok(ExpiryRecheckResult::Spared)
                        }
                        Err(error) => Err(error),
                    }
                })?;
            }
            let Some(last) = page.uploads.last().filter(|_| page.truncated) else { return Ok(()) };
            query.key_after = Some(last.key.clone());
            query.upload_after = Some(last.upload.as_str().to_owned());
        }
    }

    /// Expires objects in a bucket that has never kept versions.
    fn objects(&mut self, bucket: &Bucket, rules: &[LifecycleRule]) -> Result<()> {
        let (mut query, skipped, mut told) =
            (ListQuery::default(), UnlistedDirectories::default(), [false; 2]);
        loop {
            let page = self.inner.list_linked(bucket, &query, LinkedDirectories::Skipped(&skipped))?;
            self.skipped(bucket, &skipped, &mut told)?;
            for entry in &page.entries {
                let ListEntry::Object(found) = entry else { continue };
                self.looked_at_one()?;
                if self.current_rule(rules, (&found.key, found.size, found.modified), None).is_some() {
                    let done = self.object(bucket, &found.key, rules);
                    self.survive(bucket, &found.key, done)?;
                }
            }
            let Some(next) = page.next else { return Ok(()) };
            query.start_after = Some(next);
        }
    }

    /// Returns the first rule according to which an object is due. The object's tags are checked only if `opened` is
    /// not `None`.
    pub(super) fn current_rule<'r>(
        &self,
        rules: &'r [LifecycleRule],
        (key, size, modified): (&str, u64, SystemTime),
        opened: Option<&ObjectFile>,
    ) -> Option<&'r LifecycleRule> {
        let has_tags =
            |rule: &LifecycleRule| opened.is_none_or(|opened| rule.filter.has_tags(&opened.record().tags));
        rules.iter().find(|rule| {
            rule.filter.has_key(key)
                && rule.filter.has_size(size)
                && self.is_due(rule.current_expiry(modified, self.day()))
                && has_tags(rule)
        })
    }

    /// Returns the first rule according to which the open object is due. Also checks the object's tags.
    pub(super) fn rule_of<'r>(
        &self,
        rules: &'r [LifecycleRule],
        key: &Key,
        opened: &ObjectFile,
    ) -> Option<&'r LifecycleRule> {
        let modified = system_time(opened.stat.modified_ns);
        self.current_rule(rules, (key.as_str(), opened.stat.size, modified), Some(opened))
    }

    fn object(&mut self, bucket: &Bucket, key: &str, rules: &[LifecycleRule]) -> Result<()> {
        let (inner, key) = (self.inner, Key::new(key)?);
        let Some(seen) = inner.volume.find_object(bucket, &key)? else { return Ok(()) };
        let Some(rule) = self.rule_of(rules, &key, &seen) else { return Ok(()) };
        let change = LifecycleChange {
            action: LifecycleAction::Expire,
            bucket: bucket.clone(),
            key: key.as_str().to_owned(),
            version: None,
            rule: rule.id.clone(),
            size_bytes: seen.stat.size,
        };
        // `self` is borrowed to report the change, so the check under the lock uses a separate value with the same
        // time.
        let check = ExpiryRecheck { now: self.now, day: self.day(), rule };
        self.change(change, Some(seen.stat.user), || {
            inner.locked(bucket, &key, |contents| {
                let is_unversioned = contents.versioning == VersioningState::Unversioned;
                let now = inner.volume.latest_file(bucket, &key, contents)?;
                let is_due = now.is_some_and(|now| is_same(&seen, &now) && check.is_due(&now));
                match is_unversioned && is_due {
                    true => {
                        ChangeRecorder::of(inner, bucket, contents).record(&key, EventKind::Expire, || {
                            inner.remove_seen(bucket, &key, contents)?;
                            Ok((ExpiryRecheckResult::Changed, EventFacts::removed(None)))
                        })
                    }
                    false => Ok(ExpiryRecheckResult::Spared),
                }
            })
        })
    }
}

/// Checks again, under a key's lock, that a rule still applies.
pub(super) struct ExpiryRecheck<'r> {
    pub(super) now: SystemTime,
    pub(super) day: Duration,
    pub(super) rule: &'r LifecycleRule,
}

impl ExpiryRecheck<'_> {
    /// Returns whether the latest version, `opened`, is due. The key and size are not checked again, because they have
    /// not changed.
    pub(super) fn is_due(&self, opened: &ObjectFile) -> bool {
        let due = self.rule.current_expiry(system_time(opened.stat.modified_ns), self.day);
        due.is_some_and(|due| due <= self.now) && self.rule.filter.has_tags(&opened.record().tags)
    }
}

/// Returns whether `seen` and `now` are the same file with the same content, according to the file's metadata.
pub(super) fn is_same(seen: &ObjectFile, now: &ObjectFile) -> bool {
    let state = |opened: &ObjectFile| {
        let stat = &opened.stat;
        (stat.device, stat.inode, stat.size, stat.modified_ns, opened.version())
    };
    state(seen) == state(now)
}

/// Returns the version ID as it appears in reported changes.
pub(super) fn named(version: &VersionId) -> Option<String> {
    Some(version.as_str().to_owned())
}
