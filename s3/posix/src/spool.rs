//! Reads the journals of events for a program that delivers the events, and removes delivered records.
//!
//! Anyone who may write to a bucket may create any file in its journal. A record is therefore trusted only to report a
//! change that its writer could have made. The event's bucket is the bucket whose journal contains the record. The
//! rules of the bucket's owner apply. The event's user is the owner of the file, to which nobody else may write; where
//! other users may rename files, the file must have its owner's mark (see [`crate::mark`]). Links, FIFOs, devices and
//! large files are never read. A process that may act as other users works as the bucket's owner.

use std::collections::BinaryHeap;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fordway_store::{Bucket, Error, ErrorKind, Result};
use fordway_sys::{EntryKind, Errno, FileStat, Mode, OFlags, open_in, read_dir, remove_dir, stat_in};
use fordway_wire::event_record::{EventRecord, RECORD_BYTES_MAX};
use fordway_wire::notification::{NotificationRule, read, rule_for};

use crate::actors::ImpersonatedUserCache;
use crate::area::{is_writable_by_others, read_small, remove_if_file};
use crate::errors::from_errno;
use crate::events::{EVENT_MARK, NOTIFICATION};
use crate::layout::{events_dir, webhook_of_event};
use crate::locks::alone_for;
use crate::mark::OwnerMark;
use crate::volume::StoreDirectoryTree;
use crate::{PosixStore, PosixStoreState};

/// The journals of all buckets, for use by one program that delivers events.
pub struct EventJournal {
    store: PosixStore,
    actors: ImpersonatedUserCache,
}

/// The records that wait for one webhook in one bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitingEvents {
    /// The names of the oldest records that follow the name that the caller passed, the oldest first. The list has at
    /// most the requested number of names.
    pub names: Vec<String>,
    /// The total number of records whose names follow the name that the caller passed.
    pub later: u64,
    /// The total number of records that wait.
    pub total: u64,
}

/// An event to deliver to a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    /// The name of the record.
    pub name: String,
    /// The record of the change. Its `bucket` is the bucket whose journal contains the record.
    pub record: EventRecord,
    /// The name of the rule that applies.
    pub rule: String,
    /// The user who wrote the record.
    pub writer: u32,
}

/// The result of reading records that wait for delivery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadEvents {
    /// The events to deliver.
    pub events: Vec<StoredEvent>,
    /// The number of records that were removed because they are too old.
    pub expired: u64,
    /// The number of records that were removed because no rule applies to them any more.
    pub unwanted: u64,
    /// The number of entries that are not records of this bucket. Entries other than directories are removed at the age
    /// limit.
    pub ignored: u64,
    /// The number of records that this process is not permitted to remove. Their events are not in `events`, because
    /// records that remain would be delivered repeatedly.
    pub stuck: u64,
    /// The number of entries that this process is not permitted to read. They are removed at the age limit if this
    /// process is permitted to remove them.
    pub unreadable: u64,
}

impl EventJournal {
    /// Returns the journals of the store's buckets. The value cannot be moved to another thread.
    pub fn of(store: &PosixStore) -> EventJournal {
        EventJournal { store: store.clone(), actors: ImpersonatedUserCache::new(&store.inner) }
    }

    fn inner(&self) -> &Arc<PosixStoreState> {
        &self.store.inner
    }

    /// Returns the buckets that have a journal, which may be empty. Cost: listing the root, and one `openat2` for each
    /// bucket.
    pub fn buckets(&self) -> Result<Vec<Bucket>> {
        let volume = &self.inner().volume;
        let all = self.inner().bucket_names()?.into_iter();
        Ok(all.filter(|bucket| volume.open_dir(&events_dir(bucket)).is_ok()).collect())
    }

    /// Returns the user ID of the bucket's owner. Errors: `NoSuchBucket`.
    pub fn owner(&self, bucket: &Bucket) -> Result<u32> {
        self.inner().volume.owner_of(bucket)
    }

    /// Returns the records that wait for `webhook`, with at most `names_max` of the names that are greater than
    /// `after`. Memory: the returned names. Cost: reading the directory. Errors: `NoSuchBucket`, and errors of the file
    /// system.
    pub fn waiting(
        &self,
        bucket: &Bucket,
        webhook: &str,
        after: Option<&str>,
        names_max: usize,
    ) -> Result<WaitingEvents> {
        self.actors.in_bucket(bucket, || {
            let Some(dir) = self.open(bucket)? else { return Ok(WaitingEvents::default()) };
            // The heap's greatest element is the newest of the names. If the heap is full, an older name replaces it.
            let (mut oldest, mut later, mut total) = (BinaryHeap::new(), 0, 0);
            let read = read_dir(&dir, |name, kind| {
                let name = str::from_utf8(name).ok().filter(|name| webhook_of_event(name) == Some(webhook));
                let Some(name) = name.filter(|_| kind != EntryKind::Dir) else { return };
                total += 1;
                if after.is_some_and(|after| name <= after) {
                    return;
                }
                later += 1;
                if oldest.len() >= names_max {
                    match oldest.peek() {
                        Some(youngest) if name < String::as_str(youngest) => drop(oldest.pop()),
                        _ => return,
                    }
                }
                oldest.push(name.to_owned());
            });
            read.map_err(|errno| from_errno(errno, "reading the journal of events"))?;
            Ok(WaitingEvents { names: oldest.into_sorted_vec(), later, total })
        })
    }

    /// Runs `act` and returns its result; returns `None` immediately if another program delivers the bucket's events to
    /// `webhook`. If the store takes no locks, several programs may deliver the same event. `act` runs with the
    /// process's own identity.
    pub fn claim<T>(&self, bucket: &Bucket, webhook: &str, act: impl FnOnce() -> T) -> Result<Option<T>> {
        match self.actors.in_bucket(bucket, || self.inner().claims_of(bucket))? {
            Some(locks) => alone_for(&locks, webhook, act),
            None => Ok(Some(act())),
        }
    }

    /// Reads the records with these names. Removes records that are older than `age_max`, and records to which no rule
    /// applies any more. Omits records that another program has removed, and records that this process could not remove
    /// after their delivery. Cost: reading the rules, and five calls for each record.
    pub fn read(
        &self,
        bucket: &Bucket,
        webhook: &str,
        names: &[String],
        age_max: Duration,
    ) -> Result<ReadEvents> {
        self.actors.in_bucket(bucket, || {
            let mut done = ReadEvents::default();
            let Some(dir) = self.open(bucket)? else { return Ok(done) };
            let rules = self.rules(bucket)?;
            let mark = event_mark(&self.inner().volume, bucket)?;
            for name in names {
                match self.read_one((bucket, webhook, &rules), (&dir, mark.as_ref()), name, age_max)? {
                    Entry::Event(event) => done.events.push(event),
                    Entry::Expired => done.expired += 1,
                    Entry::Unwanted => done.unwanted += 1,
                    Entry::Odd => done.ignored += 1,
                    Entry::Stuck => done.stuck += 1,
                    Entry::Unreadable => done.unreadable += 1,
                    Entry::Gone => {}
                }
            }
            Ok(done)
        })
    }

    /// Returns the bucket's rules. Errors: `AccessDenied` or `Corrupt` for a document that writers ignore. The records
    /// then wait until the bucket's owner repairs the document.
    fn rules(&self, bucket: &Bucket) -> Result<Vec<NotificationRule>> {
        let Some(document) = self.inner().document(bucket, &NOTIFICATION)? else { return Ok(Vec::new()) };
        read(&document).map_err(|error| {
            let why = format!("the notification configuration is not valid: {}; set it again", error.message);
            Error::new(ErrorKind::Corrupt, why)
        })
    }

    fn read_one(
        &self,
        (bucket, webhook, rules): (&Bucket, &str, &[NotificationRule]),
        (dir, mark): (&File, Option<&OwnerMark<'_>>),
        name: &str,
        age_max: Duration,
    ) -> Result<Entry> {
        let state = match stat_in(dir, name) {
            Ok(state) => state,
            Err(Errno::NOENT) => return Ok(Entry::Gone),
            Err(errno) => return Err(from_errno(errno, "reading the journal of events")),
        };
        // The owner of a file can set its modification time, but not its change time.
        if age_of(&state) > age_max && !state.is_dir {
            return self.dropped(dir, name, Entry::Expired);
        }
        let (record, writer) = match self.record_in((dir, mark), name, &state) {
            Ok(Some(found)) => found,
            Ok(None) | Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(Entry::Odd),
            Err(Errno::ACCESS | Errno::PERM) => return Ok(Entry::Unreadable),
            // Another node has delivered the record.
            Err(Errno::STALE) => return Ok(Entry::Gone),
            Err(errno) => return Err(from_errno(errno, "reading a record of the journal of events")),
        };
        if record.bucket != bucket.as_str() {
            return Ok(Entry::Odd);
        }
        match rule_for(rules, record.kind, &record.key).filter(|rule| rule.webhook == webhook) {
            None => self.dropped(dir, name, Entry::Unwanted),
            Some(rule) => match self.check_removable(dir, name) {
                Err(errno) if is_forbidden(errno) => Ok(Entry::Stuck),
                // Other errors do not delay the event.
                _ => {
                    let (name, rule) = (name.to_owned(), rule.id.clone());
                    Ok(Entry::Event(StoredEvent { name, record, rule, writer }))
                }
            },
        }
    }

    /// Removes an entry, and returns `entry`, or [`Entry::Stuck`] if this process is not permitted to remove the entry.
    fn dropped(&self, dir: &File, name: &str, entry: Entry) -> Result<Entry> {
        match self.remove_one(dir, name) {
            Ok(()) => Ok(entry),
            Err(errno) if is_forbidden(errno) => Ok(Entry::Stuck),
            Err(errno) => Err(unremoved(errno)),
        }
    }

    /// Checks that [`EventJournal::remove`] may remove the file `name`, by trying to remove a directory with this name.
    /// This works because the kernel checks the permissions before the type of the file.
    fn check_removable(&self, dir: &File, name: &str) -> Result<(), Errno> {
        self.actors.or_as_owner(dir, name, || match remove_dir(dir, name) {
            Err(Errno::NOTDIR) => Ok(()),
            done => done,
        })
    }

    /// Returns the record in the file with this name, and the owner of the file; `None` if the file is not a record.
    fn record_in(
        &self,
        (dir, mark): (&File, Option<&OwnerMark<'_>>),
        name: &str,
        state: &FileStat,
    ) -> Result<Option<(EventRecord, u32)>, Errno> {
        // A second hard link could make another bucket's record, or any other file of a user, appear in this journal.
        if !state.is_file || state.links != 1 {
            return Ok(None);
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
        let open = || {
            let file = open_in(dir, name, flags, Mode::empty())?;
            Ok(read_small(&file, RECORD_BYTES_MAX)?.filter(|(_, state)| is_writers(&file, state, mark)))
        };
        let found = self.actors.or_as_owner(dir, name, open)?;
        Ok(found.and_then(|(text, state)| EventRecord::decode(&text).map(|record| (record, state.user))))
    }

    /// Removes records that were delivered. If some records cannot be removed, still removes the other records. Errors:
    /// the first error.
    pub fn remove(&self, bucket: &Bucket, events: &[StoredEvent]) -> Result<()> {
        self.actors.in_bucket(bucket, || {
            let Some(dir) = self.open(bucket)? else { return Ok(()) };
            let removed = events.iter().map(|event| self.remove_one(&dir, &event.name).map_err(unremoved));
            let removed = removed.fold(Ok(()), Result::and);
            let synced = self.inner().volume.sync_names(&dir);
            removed.and(synced.map_err(|errno| from_errno(errno, "writing the journal to stable storage")))
        })
    }

    /// Removes an entry that is not a directory. If the bucket's owner is not permitted to remove the entry, removes it
    /// as the entry's owner.
    fn remove_one(&self, dir: &File, name: &str) -> Result<(), Errno> {
        self.actors.or_as_owner(dir, name, || remove_if_file(dir, name))
    }

    fn open(&self, bucket: &Bucket) -> Result<Option<File>> {
        match self.inner().volume.open_to_scan(&events_dir(bucket)) {
            Ok(dir) => Ok(Some(dir)),
            // Fordway creates only a directory at this path.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(from_errno(errno, "opening the journal of events")),
        }
    }
}

/// Returns the mark that the records of the bucket must have; `None` if nobody else may rename a writer's record.
pub(crate) fn event_mark(volume: &StoreDirectoryTree, bucket: &Bucket) -> Result<Option<OwnerMark<'static>>> {
    match volume.may_others_rename(bucket, &volume.state_of(bucket)?)? {
        true => volume.owner_mark(bucket, EVENT_MARK).map(Some),
        false => Ok(None),
    }
}

/// Returns whether it is certain that the open file, whose metadata is `state`, was written as a record by its owner.
pub(crate) fn is_writers(file: impl AsFd, state: &FileStat, mark: Option<&OwnerMark<'_>>) -> bool {
    state.links == 1 && !is_writable_by_others(state) && mark.is_none_or(|mark| mark.is_on(file, state))
}

/// The result of examining an entry of a journal.
enum Entry {
    Event(StoredEvent),
    Expired,
    Unwanted,
    Odd,
    Stuck,
    Unreadable,
    Gone,
}

/// Returns whether the error means that the process is not permitted to remove an entry.
fn is_forbidden(errno: Errno) -> bool {
    matches!(errno, Errno::ACCESS | Errno::PERM | Errno::ROFS)
}

fn unremoved(errno: Errno) -> Error {
    from_errno(errno, "removing a record from the journal of events")
}

/// Returns the time since the last change of the file's state, by the clock of this node.
fn age_of(state: &FileStat) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::from_nanos(u64::try_from(state.changed_ns).unwrap_or_default()))
}
