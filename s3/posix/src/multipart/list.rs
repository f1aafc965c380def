//! Lists the uploads in progress, in the order of their keys.
//!
//! The name of an upload's directory does not contain the key, so the first listing of a bucket reads the record of
//! every upload. An upload never changes its key, so the keys are cached in order, within limits. Later listings read
//! only the records of new uploads, and of the uploads on the listed page. As long as the times of the directory of
//! uploads show that no upload was added or removed, later listings do not read the directory either.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::{HashMap, HashMapExt, HashSet};
use fordway_store::{Bucket, ErrorKind, Key, Result, UploadId, UploadListing, UploadSummary, UploadsQuery};
use fordway_sys::{CoarseInstant, Errno, FileStat};

use super::MultipartUploadManager;
use super::parts::{UploadDirectory, UploadRecord};
use crate::entries::collect_entries;
use crate::errors::{from_errno, is_stale};
use crate::index::DirectoryId;
use crate::layout::{upload_dir, upload_of, uploads_dir};
use crate::memory::{CacheMemory, CacheOwner, CacheSlot};
use crate::names::state_before;
use crate::private::times;
use crate::read::system_time;

/// The maximum memory for the cached keys of a bucket's uploads, in bytes. [`CacheMemory`] limits the memory for all
/// buckets.
const MOST_BYTES: usize = 64 << 20;
/// The estimated memory for a cached upload in addition to its key, in bytes.
const UPLOAD_BYTES: usize = 256;
/// The estimated memory for a bucket without uploads, in bytes.
const BUCKET_BYTES: usize = 512;

/// The keys of the uploads that listings have read.
#[derive(Default)]
pub(crate) struct UploadKeyCache {
    of: Mutex<UploadsOfBuckets>,
    pub(crate) owner: CacheOwner,
}

#[derive(Default)]
struct UploadsOfBuckets {
    of: HashMap<Bucket, Arc<CacheSlot<CachedUploads>>>,
    /// If the cache contains more buckets than this number, the buckets whose uploads were dropped are removed.
    most: usize,
}

/// The uploads of a bucket.
#[derive(Default)]
struct CachedUploads(Mutex<BucketUploads>);

#[derive(Default)]
struct BucketUploads {
    /// The uploads whose keys are known, in the order of a listing.
    by_key: BTreeSet<KeyedUpload>,
    key_of: HashMap<UploadId, Arc<str>>,
    /// The uploads whose keys are not known. Their records may be incomplete, or not readable by the caller, so each
    /// listing tries again.
    unread: HashSet<UploadId>,
    /// The state of the directory of uploads when it was read last.
    read: Option<ReadState>,
    /// The number of reads of the directory of uploads that have begun.
    reads: u64,
    /// The number of the latest read that has been applied.
    applied: u64,
    /// The estimated memory for the uploads whose keys are known.
    bytes: usize,
}

/// An upload and its key, which determine the order of uploads.
type KeyedUpload = (Arc<str>, UploadId);

/// The state of a directory before it was read.
#[derive(Clone, Copy)]
struct ReadState {
    id: DirectoryId,
    times: (i64, i64),
    /// The time at which these directory times were first seen.
    seen: CoarseInstant,
    /// Whether the times would show every later change, and all uploads are cached.
    is_current: bool,
}

impl ReadState {
    fn is_of(&self, stat: &FileStat) -> bool {
        (self.id, self.times) == ((stat.device, stat.inode), times(stat))
    }
}

impl UploadKeyCache {
    /// Returns the cached uploads of a bucket, which may be none.
    fn uploads(&self, bucket: &Bucket) -> (Arc<CachedUploads>, Arc<CacheSlot<CachedUploads>>) {
        let mut all = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((slot, uploads)) = all.of.get(bucket).and_then(|slot| Some((slot, slot.get()?))) {
            return (uploads, slot.clone());
        }
        // All buckets are looked at only after their number has doubled.
        if all.of.len() > all.most {
            all.of.retain(|_, slot| slot.has_content());
            all.most = 2 * all.of.len();
        }
        let uploads = Arc::<CachedUploads>::default();
        let slot = CacheMemory::of_process().keep(&self.owner, uploads.clone(), BUCKET_BYTES);
        all.of.insert(bucket.clone(), slot.clone());
        (uploads, slot)
    }
}

impl CachedUploads {
    fn lock(&self) -> MutexGuard<'_, BucketUploads> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a lower bound for the uploads that `query` selects.
fn first_selected(query: &UploadsQuery) -> KeyedUpload {
    let (prefix, after) = (query.prefix.as_str(), query.key_after.as_deref().unwrap_or_default());
    let upload = query.upload_after.as_deref().filter(|_| after >= prefix).unwrap_or_default();
    (after.max(prefix).into(), UploadId::foreign(upload))
}

impl BucketUploads {
    /// Returns the time at which the times of the directory of uploads were first seen. `now` is the directory's
    /// metadata.
    fn seen(&self, now: &FileStat) -> CoarseInstant {
        self.read.filter(|read| read.is_of(now)).map_or_else(CoarseInstant::now, |read| read.seen)
    }

    /// Returns the uploads whose records have to be read, if all uploads of a directory with this metadata are known.
    fn unread(&self, now: &FileStat) -> Option<Vec<UploadId>> {
        let is_current = self.read.is_some_and(|read| read.is_current && read.is_of(now));
        is_current.then(|| self.unread.iter().cloned().collect())
    }

    /// Returns the number of a read of the directory that begins now.
    fn begin_read(&mut self) -> u64 {
        self.reads += 1;
        self.reads
    }

    /// Drops the uploads that are not in `present`, which contains the uploads that the read with this number has
    /// found. Returns the uploads whose records have to be read.
    fn update(&mut self, present: HashSet<UploadId>, number: u64) -> Vec<UploadId> {
        let is_known = |upload: &UploadId| self.key_of.contains_key(upload);
        if number < self.applied {
            // A later read has been applied. The uploads that only the later read has found must stay.
            return present.into_iter().filter(|upload| !is_known(upload)).collect();
        }
        let ended: Vec<_> = self.key_of.keys().filter(|upload| !present.contains(*upload)).cloned().collect();
        self.unread = present.into_iter().filter(|upload| !is_known(upload)).collect();
        ended.iter().for_each(|upload| self.remove(upload));
        (self.read, self.applied) = (None, number);
        self.unread.iter().cloned().collect()
    }

    /// Adds the keys of further uploads. `read` is the number of a read of the directory, with the directory's state.
    /// If no read has begun later, and there is room for all keys, later listings need not read the directory in this
    /// state.
    fn add(&mut self, further: Vec<KeyedUpload>, read: Option<(u64, ReadState)>) {
        if let Some((_, read)) = read.filter(|(number, _)| *number == self.reads) {
            self.read = Some(read);
        }
        for upload in further {
            if self.bytes > MOST_BYTES {
                self.read = None;
                return;
            }
            self.insert(upload);
        }
    }

    /// Returns the first `most` of the uploads after `last` that `query` selects.
    fn select(&self, query: &UploadsQuery, last: Option<&KeyedUpload>, most: usize) -> Vec<KeyedUpload> {
        let start = match last {
            Some(last) => Bound::Excluded(last.clone()),
            None => Bound::Included(first_selected(query)),
        };
        let behind = self.by_key.range((start, Bound::Unbounded));
        let with_prefix = behind.take_while(|(key, _)| key.starts_with(&query.prefix));
        with_prefix.filter(|(key, upload)| query.selects(key, upload)).take(most).cloned().collect()
    }

    fn insert(&mut self, (key, upload): KeyedUpload) {
        self.unread.remove(&upload);
        if !self.key_of.contains_key(&upload) {
            self.bytes += key.len() + UPLOAD_BYTES;
            self.key_of.insert(upload.clone(), key.clone());
            self.by_key.insert((key, upload));
        }
    }

    fn remove(&mut self, upload: &UploadId) {
        if let Some(key) = self.key_of.remove(upload) {
            self.bytes -= key.len() + UPLOAD_BYTES;
            self.by_key.remove(&(key, upload.clone()));
        }
    }

    fn memory_bytes(&self) -> usize {
        BUCKET_BYTES + self.bytes + self.unread.len() * UPLOAD_BYTES
    }

    /// Removes the key of an upload whose record no longer has this key. If the upload has not ended, the next listing
    /// reads its record again.
    fn forget(&mut self, upload: &UploadId) {
        self.remove(upload);
        self.unread.insert(upload.clone());
    }
}

impl MultipartUploadManager<'_> {
    /// Lists the uploads in progress. Cost: one read of the directory of uploads, if it may have changed since it was
    /// read last; one read of the record of each upload on the page, of the upload after the page, and of each upload
    /// that no earlier listing has read.
    pub(crate) fn list_uploads(&self, bucket: &Bucket, query: &UploadsQuery) -> Result<UploadListing> {
        self.inner.head_bucket(bucket)?;
        let (cached, slot) = self.inner.upload_keys.uploads(bucket);
        let mut read = self.read_new(bucket, query, &cached)?;
        let bytes = cached.lock().memory_bytes();
        CacheMemory::of_process().resize(&slot, bytes);
        let (mut uploads, mut last) = (Vec::new(), None);
        while uploads.len() <= query.max_uploads {
            let most = query.max_uploads.saturating_add(1) - uploads.len();
            let selected = cached.lock().select(query, last.as_ref(), most);
            last = selected.last().cloned();
            for (key, upload) in selected {
                let summary = match read.remove(&upload) {
                    Some(summary) => Some(summary),
                    None => self.readable_summary_of(bucket, upload.clone())?,
                };
                match summary {
                    Some(summary) if *summary.key == *key => uploads.push(summary),
                    // The upload has ended, or a POSIX program has changed its record.
                    _ => cached.lock().forget(&upload),
                }
            }
            if last.is_none() {
                break;
            }
        }
        // These uploads are not cached, or come later.
        uploads.extend(read.into_values());
        Ok(query.page(uploads))
    }

    /// Reads the records of all uploads whose keys are not cached, and caches their keys. Returns the records of the
    /// uploads that `query` selects.
    fn read_new(
        &self,
        bucket: &Bucket,
        query: &UploadsQuery,
        cached: &CachedUploads,
    ) -> Result<HashMap<UploadId, UploadSummary>> {
        let volume = &self.inner.volume;
        let (path, sharing) = (uploads_dir(bucket), volume.sharing_of(bucket));
        volume.freshen_dir(&path, false, sharing);
        let reads_before = cached.lock().reads;
        let failed = |errno| from_errno(errno, "reading .fordway");
        let open = || {
            let dir = volume.open_to_scan(&path)?;
            state_before(&dir, sharing).map(|before| (dir, before))
        };
        let (dir, before) = match volume.read_existing(&path, open) {
            Ok(opened) => opened,
            // Fordway creates only directories at this path; anything else is treated as an empty directory.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                cached.lock().update(HashSet::default(), reads_before);
                return Ok(HashMap::new());
            }
            Err(errno) => return Err(failed(errno)),
        };
        let seen = cached.lock().seen(&before);
        // This check must precede the read. Otherwise, a change during the read might leave the directory with the
        // times in `before`.
        let is_current = volume.directory_times(sharing).show_changes(&before, seen.elapsed());
        let state = ReadState { id: (before.device, before.inode), times: times(&before), seen, is_current };
        let known = cached.lock().unread(&before);
        let (unread, read_state) = match known {
            Some(unread) => (unread, None),
            None => {
                volume.freshen_names(&dir, sharing);
                let number = cached.lock().begin_read();
                let known = Some(&before).filter(|_| !sharing.is_shared());
                let present = uploads_in(&dir, known).map_err(failed)?;
                (cached.lock().update(present, number), Some((number, state)))
            }
        };
        let (mut further, mut read) = (Vec::new(), HashMap::new());
        for upload in unread {
            let Some(summary) = self.readable_summary_of(bucket, upload)? else { continue };
            further.push((Arc::from(summary.key.as_str()), summary.upload.clone()));
            if query.selects(&summary.key, &summary.upload) {
                read.insert(summary.upload.clone(), summary);
            }
        }
        cached.lock().add(further, read_state);
        Ok(read)
    }

    /// Returns an upload's listing entry, or `None` if the upload has ended or cannot be read.
    fn readable_summary_of(&self, bucket: &Bucket, upload: UploadId) -> Result<Option<UploadSummary>> {
        match self.summary_of(bucket, upload) {
            // A damaged upload must not hide other uploads; `fordway fsck` reports the damage.
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::AccessDenied) => Ok(None),
            // Another node has ended the upload.
            Err(error) if is_stale(&error) => Ok(None),
            found => found,
        }
    }

    fn summary_of(&self, bucket: &Bucket, upload: UploadId) -> Result<Option<UploadSummary>> {
        let dir = upload_dir(bucket, &upload);
        // A closed upload is being completed, or was being completed when the completing process died. A closed upload
        // is listed, because a client may try again to complete or abort the upload.
        let found = UploadDirectory::new(&self.inner.volume, &dir).record_of_upload()?;
        // An upload with an invalid key is not listed, because no request could complete or abort it.
        Ok(found.and_then(|UploadRecord { record, started_ns, .. }| {
            let key = record.key.filter(|key| Key::new(key).is_ok())?;
            let (started, checksum) = (system_time(started_ns), record.upload_checksum);
            Some(UploadSummary { key, upload, started, checksum })
        }))
    }
}

/// Returns the uploads in the directory of uploads, which had the metadata `before` unless other nodes may change it.
fn uploads_in(dir: &File, before: Option<&FileStat>) -> Result<HashSet<UploadId>, Errno> {
    collect_entries(dir, before, HashSet::default, |uploads, name, _| {
        uploads.extend(str::from_utf8(name).ok().and_then(upload_of));
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the keys that all pages show.
    fn keys(uploads: &BucketUploads) -> Vec<&str> {
        uploads.by_key.iter().map(|(key, _)| &**key).collect()
    }

    #[test]
    fn an_upload_stays_if_an_earlier_read_is_applied_later() {
        let [old, new, ended] = ["old", "new", "ended"].map(UploadId::foreign);
        let present = |all: &[&UploadId]| all.iter().map(|upload| (*upload).clone()).collect::<HashSet<_>>();
        let keyed = |all: Vec<UploadId>| all.into_iter().map(|upload| (Arc::from(upload.as_str()), upload));
        let mut uploads = BucketUploads::default();
        let (first, second) = (uploads.begin_read(), uploads.begin_read());
        let unread = uploads.update(present(&[&old, &new]), second);
        uploads.add(keyed(unread).collect(), None);
        assert_eq!(keys(&uploads), ["new", "old"]);
        let unread = uploads.update(present(&[&old, &ended]), first);
        assert_eq!(unread, [ended], "the caller of the earlier read looks at what only this read has found");
        assert_eq!(keys(&uploads), ["new", "old"]);
        let third = uploads.begin_read();
        assert!(uploads.update(present(&[&old]), third).is_empty());
        assert_eq!(keys(&uploads), ["old"], "uploads that a later read does not find have ended");
    }
}
