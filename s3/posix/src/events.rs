//! The journal of a bucket's events: one small file for each change to which a notification rule applies.
//!
//! A change and its record take three steps. Before the change, the writer creates an unnamed file and fills the file
//! with spaces. If the disk is full or a permission is missing, the call therefore fails before anything has changed.
//! Then the writer makes the change. Finally, the writer stores the record in the file and gives the file a name in
//! `events/`. The call returns only after these three steps. A crash between the change and its record leaves a change
//! without an event, but the caller of this change has received no response.
//!
//! The file `markers` is not empty if the bucket may have a notification configuration. Every writer reads the state of
//! this file for other purposes too. A bucket that never had a notification configuration therefore has no extra cost.
//! A byte is written to the file before the configuration is stored. The byte is never removed, because its removal
//! could race with another process that sets a configuration.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fordway_store::{
    Bucket, BucketDocumentKind, Conditions, DeleteOptions, ETag, Error, ErrorKind, Key, PutResult, Result,
    VersionId, VersioningState,
};
use fordway_sys::{FileStat, Mode, OFlags, PerProcess, set_mode, stat, stat_in, sync_all, write_all_at};
use fordway_wire::event_record::EventRecord;
use fordway_wire::notification::{EventKind, NotificationRule, read, rule_for};

use crate::area::{TrustedOwner, is_writable_by_others};
use crate::errors::from_errno;
use crate::layout::{MARKERS, ObjectPath, document_name, event_name, events_dir, join, private_dir};
use crate::mark::OwnerMark;
use crate::private::PrivateDirectoryContents;
use crate::record::ObjectRecord;
use crate::stage::{SETTING_MODE, StagedFile, hidden_name};
use crate::versions::names::{now_ns, order_in};
use crate::volume::{EVENTS_ADVICE, StoreDirectoryTree};
use crate::{Durability, PosixStoreState};

/// The kind of bucket document that contains the notification rules.
pub(crate) const NOTIFICATION: BucketDocumentKind = BucketDocumentKind::known("notification");

/// The kind in the owner's mark on a record.
pub(crate) const EVENT_MARK: &str = "event";
/// The age up to which the file of a record can get its owner's mark. A change can take longer; the record then needs a
/// new file.
const MARKABLE: Duration = Duration::from_secs(1);

/// Reports to the event delivery threads of this process which buckets have new events. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct EventSignal(Arc<PerProcess<(Mutex<SignalledBuckets>, Condvar)>>);

/// The buckets with new events, each with the number of its last event.
#[derive(Debug, Default)]
struct SignalledBuckets {
    /// The number of events so far.
    count: u64,
    last: BTreeMap<Bucket, u64>,
}

/// The maximum number of buckets in a signal. When the signal is full, all buckets are dropped from it, and the next
/// search of the journals finds their events.
const SIGNALLED_MAX: usize = 4096;

impl EventSignal {
    fn ring(&self, bucket: &Bucket) {
        let (state, is_rung) = &**self.0;
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        state.count += 1;
        let count = state.count;
        if state.last.len() >= SIGNALLED_MAX {
            state.last.clear();
        }
        state.last.insert(bucket.clone(), count);
        drop(state);
        is_rung.notify_all();
    }

    /// Waits for at most `patience` until there have been more than `seen` events. Returns the number of events so far,
    /// and the buckets of the events after the first `seen`.
    pub fn wait(&self, seen: u64, patience: Duration) -> (u64, Vec<Bucket>) {
        let (state, is_rung) = &**self.0;
        let state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = is_rung.wait_timeout_while(state, patience, |state| state.count <= seen);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let new = state.last.iter().filter(|(_, last)| **last > seen).map(|(bucket, _)| bucket.clone());
        (state.count, new.collect())
    }
}

/// A record whose file has no name yet. If the value is dropped, the file is removed.
pub(crate) struct PendingEvent {
    staged: StagedFile,
    kind: EventKind,
    key: Key,
    webhook: String,
    /// The owner's mark, which the record needs in a bucket where other users may rename its file.
    mark: Option<OwnerMark<'static>>,
    /// The time at which `staged` was created.
    prepared: Instant,
}

/// The properties of a change that are known only after the change.
pub(crate) struct EventFacts {
    /// The size of the new version in bytes; `None` if the change creates no version with content, as for a removal, a
    /// delete marker or a change of tags.
    pub(crate) size: Option<u64>,
    pub(crate) etag: Option<ETag>,
    pub(crate) version: Option<VersionId>,
}

impl EventFacts {
    /// Returns the facts of a removal.
    pub(crate) fn removed(version: Option<VersionId>) -> Self {
        EventFacts { size: None, etag: None, version }
    }
}

/// Records those changes in one bucket to which the bucket's rules apply.
#[derive(Clone, Copy)]
pub(crate) struct ChangeRecorder<'r> {
    store: &'r Arc<PosixStoreState>,
    bucket: &'r Bucket,
    /// The contents of the bucket's private directory, read before the change.
    contents: PrivateDirectoryContents,
}

impl<'r> ChangeRecorder<'r> {
    pub(crate) fn of(
        store: &'r Arc<PosixStoreState>,
        bucket: &'r Bucket,
        contents: PrivateDirectoryContents,
    ) -> Self {
        ChangeRecorder { store, bucket, contents }
    }

    /// Prepares the record of a change of `key`, if a rule of the bucket applies to the change. Must be called before
    /// the change. Cost: none in a bucket that never had a notification configuration. Otherwise, reading the rules at
    /// most every 10 ms; if a rule applies, also the calls that write a small file, and one `fchmod`. Errors: the
    /// errors of the file system; `AccessDenied` if the caller may not read the rules or write to the journal.
    pub(crate) fn prepare(&self, key: &Key, kind: EventKind) -> Result<Option<PendingEvent>> {
        let ChangeRecorder { store, bucket, contents } = *self;
        if !contents.may_notify {
            return Ok(None);
        }
        let rules = self.rules()?;
        let Some(rule) = rule_for(&rules, kind, key.as_str()) else { return Ok(None) };
        let staged = stage_record(store, bucket, key, &rule.webhook)?;
        let mark = match contents.is_open_to_others {
            true => Some(store.volume.owner_mark(bucket, EVENT_MARK)?),
            false => None,
        };
        let webhook = rule.webhook.clone();
        Ok(Some(PendingEvent { staged, kind, key: key.clone(), webhook, mark, prepared: Instant::now() }))
    }

    /// Returns the bucket's notification rules. A document that is not valid, or that an untrusted user wrote, is
    /// treated as a document without rules. Otherwise, anyone who may create a file in the private area could block the
    /// bucket's other writers.
    fn rules(&self) -> Result<Arc<[NotificationRule]>> {
        let ChangeRecorder { store, bucket, .. } = *self;
        let known = store.volume.private.held(bucket);
        if let Some(rules) = known.as_ref().and_then(|known| known.rules()) {
            return Ok(rules);
        }
        let document = match store.document(bucket, &NOTIFICATION) {
            Err(error) if error.kind() == ErrorKind::AccessDenied && !self.has_trusted_rules()? => None,
            found => found?,
        };
        let rules: Arc<[_]> = document.and_then(|document| read(&document).ok()).unwrap_or_default().into();
        if let Some(known) = known {
            known.remember_rules(rules.clone());
        }
        Ok(rules)
    }

    /// Returns whether the rules' file is a regular file that only a trusted user can have written and named. The
    /// permission to read the file is not checked; where others may rename, a file that cannot be read is not trusted.
    fn has_trusted_rules(&self) -> Result<bool> {
        let ChangeRecorder { store, bucket, .. } = *self;
        let of = store.volume.state_of(bucket)?;
        let is_trusted = |state: &FileStat| {
            let is_owners = TrustedOwner::alone(&of).trusts(state.user);
            state.is_file && is_owners && !is_writable_by_others(state)
        };
        let kind = NOTIFICATION;
        let name = document_name(&kind);
        if !store.volume.may_others_rename(bucket, &of)? {
            let found = store.volume.open_dir(&private_dir(bucket)).and_then(|dir| stat_in(dir, &name));
            return Ok(found.is_ok_and(|state| is_trusted(&state)));
        }
        let mark = store.volume.owner_mark(bucket, kind.as_str())?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = store.volume.root.open_beneath(&join(&private_dir(bucket), &name), flags, Mode::empty());
        let found = opened.and_then(|file| stat(&file).map(|state| (file, state)));
        Ok(found.is_ok_and(|(file, state)| is_trusted(&state) && mark.is_on(&file, &state)))
    }

    /// Makes a change of `key`, and records the change if a rule applies to it. `change` returns its result and the
    /// facts of the event.
    pub(crate) fn record<T>(
        &self,
        key: &Key,
        kind: EventKind,
        change: impl FnOnce() -> Result<(T, EventFacts)>,
    ) -> Result<T> {
        let pending = self.prepare(key, kind)?;
        let (done, facts) = change()?;
        pending.map_or(Ok(()), |pending| pending.record(facts))?;
        Ok(done)
    }
}

/// Makes all writers look for notification rules. Also creates the directory of the journal, or sets the bucket's
/// current mode on the existing directory. In a bucket with the sticky bit, only the owner creates the directory,
/// because any other creator could deny access to the other writers.
pub(crate) fn announce_notifications(volume: &StoreDirectoryTree, bucket: &Bucket) -> Result<()> {
    let path = events_dir(bucket);
    volume.parent_of(bucket, &path)?;
    // A caller who may not read the directory may not change its mode either.
    let _ = volume.renew_private_dir(bucket, &path);
    let file = volume.open_shared_file(bucket, MARKERS)?;
    let marked = write_all_at(&file, b"n", 0).and_then(|()| match volume.config.durability {
        Durability::None => Ok(()),
        Durability::Data | Durability::Full => sync_all(&file),
    });
    marked.map_err(|errno| from_errno(errno, "writing .fordway/markers"))
}

/// Waits until no writer uses the state from before the rules were set or removed.
pub(crate) fn await_notifications(volume: &StoreDirectoryTree, bucket: &Bucket) -> Result<()> {
    volume.private.forget(bucket);
    volume.private.outlast(&volume.contents(bucket)?);
    Ok(())
}

/// Returns the event that reports a delete with these options.
pub(crate) fn kind_of_delete(options: &DeleteOptions, contents: PrivateDirectoryContents) -> EventKind {
    match options.version.is_none() && contents.versioning != VersioningState::Unversioned {
        true => EventKind::DeleteMarker,
        false => EventKind::Delete,
    }
}

/// Creates the file of an event's record, and reserves its space.
fn stage_record(
    store: &Arc<PosixStoreState>,
    bucket: &Bucket,
    key: &Key,
    webhook: &str,
) -> Result<StagedFile> {
    let name = event_name(now_ns(), &hidden_name()?, webhook);
    let place = ObjectPath { dir: events_dir(bucket).into(), name: name.into() };
    let staged = StagedFile::with_mode(store, bucket, place, false, SETTING_MODE);
    let mut staged = staged.map_err(|error| unwritable(bucket, error))?;
    // A gateway that runs as another user must be able to read the record, regardless of the writer's umask. An error
    // is ignored, because some file systems have no modes, and the gateway warns about records that it cannot read.
    let _ = set_mode(staged.file(), SETTING_MODE.as_raw_mode());
    staged.write(&vec![b' '; EventRecord::room_for(key.as_str())])?;
    Ok(staged)
}

impl PendingEvent {
    /// Records the change. Must be called after the change was made. Errors: the errors of the file system; the message
    /// advises the caller to repeat the change.
    pub(crate) fn record(self, facts: EventFacts) -> Result<()> {
        let PendingEvent { mut staged, kind, key, webhook, mark, prepared } = self;
        let (inner, bucket) = (staged.inner.clone(), staged.bucket.clone());
        if mark.is_some() && prepared.elapsed() > MARKABLE {
            staged = stage_record(&inner, &bucket, &key, &webhook)
                .map_err(|error| unrecorded(kind, &key, error))?;
        }
        // A new version is ordered after all earlier versions, even if the clocks of nodes differ.
        let creates = kind.is_creation() || matches!(kind, EventKind::DeleteMarker | EventKind::ExpireMarker);
        let order = facts.version.as_ref().and_then(order_in).filter(|_| creates);
        let record = EventRecord {
            bucket: bucket.as_str().to_owned(),
            kind,
            key: key.as_str().to_owned(),
            time_ns: order.unwrap_or_else(now_ns),
            size: facts.size,
            etag: facts.etag.map(|etag| etag.as_str().to_owned()),
            version: facts.version.map(|version| version.as_str().to_owned()),
        };
        let bytes = record.encode(EventRecord::room_for(key.as_str()));
        let stored = write_all_at(staged.file(), &bytes, 0)
            .map_err(|errno| from_errno(errno, "writing the record"))
            .and_then(|()| {
                let name = event_name(record.time_ns, &hidden_name()?, &webhook);
                staged.place.name = name.into();
                match mark {
                    Some(mark) => {
                        let set = mark.set(staged.file());
                        set.map_err(|errno| from_errno(errno, "marking the record"))?;
                        staged.publish_new_marked(&mark)
                    }
                    None => staged.publish_if_new(),
                }
            });
        let why = match stored {
            Ok(true) => {
                inner.volume.config.event_signal.ring(&bucket);
                return Ok(());
            }
            Ok(false) => Error::new(ErrorKind::ConditionalConflict, "the name of the record is taken"),
            Err(error) => error,
        };
        Err(unrecorded(kind, &key, why))
    }
}

/// Returns the error for a change that was made, but could not be recorded because of `why`.
pub(crate) fn unrecorded(kind: EventKind, key: &Key, why: Error) -> Error {
    let detail = format!(
        "{} of {key} has taken effect, but is not in the bucket's journal of events: {}; repeat the request",
        kind.name(),
        why.detail()
    );
    Error::new(why.kind(), detail).caused_by(why)
}

impl StagedFile {
    /// Publishes the file as [`StagedFile::publish_object`] does, and records the event of the new object.
    pub(crate) fn publish_and_record(
        &mut self,
        key: &Key,
        record: &mut ObjectRecord,
        conditions: &Conditions,
        seen: PrivateDirectoryContents,
    ) -> Result<PutResult> {
        let (inner, bucket) = (self.inner.clone(), self.bucket.clone());
        let pending = ChangeRecorder::of(&inner, &bucket, seen).prepare(key, self.event)?;
        let made = self.publish_object(key, record, conditions, seen)?;
        if let Some(pending) = pending {
            let size = stat(&self.file).map_err(|errno| from_errno(errno, "reading the object's size"))?.size;
            pending.record(facts_of(&made, size))?;
        }
        Ok(made)
    }
}

/// Returns the error for a record that could not be created because of `error`.
fn unwritable(bucket: &Bucket, error: Error) -> Error {
    let path = events_dir(bucket);
    if error.kind() != ErrorKind::AccessDenied || error.detail().contains(&path) {
        return error;
    }
    let detail = format!("cannot write to {path}: {}; {EVENTS_ADVICE}", error.detail());
    Error::new(ErrorKind::AccessDenied, detail).caused_by(error)
}

/// Returns the facts of an object that was written.
pub(crate) fn facts_of(made: &PutResult, size: u64) -> EventFacts {
    EventFacts { size: Some(size), etag: Some(made.etag.clone()), version: made.version.clone() }
}
