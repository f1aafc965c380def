//! Lists the uploads in progress, in the order of their keys.
//!
//! The name of an upload's directory does not contain the key, so the first listing of a bucket reads the record of
//! every upload. An upload never changes its key, so the keys are cached in order, within limits. Later listings read
//! only the records of new uploads, and of the uploads on the listed page. As long as the times of the directory of
//! uploads show that no upload was added or removed, later listings do not read the directory either.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};

use foldhash::{HashMap, HashMapExt, HashSet};
use fordway_store::{Bucket, ErrorKind, Key, Result, UploadId, UploadListing, UploadSummary, UploadsQuery};
use fordway_sys::{CoarseInstant, Errno, FileStat};

use super::MultipartUploadManager;
use super::parts::{UploadDirectory, UploadRecord};
use crate::entries::collect_entries;
use crate::errors::{from_errno, is_stale};
use crate::index::DirectoryId;
use crate::layout::{upload_dir, upload_of, uploads_dir};
use crate::names::state_before;
use crate::private::times;
use crate::read::system_time;

/// The maximum memory for all cached keys of uploads, in bytes.
const MOST_BYTES: usize = 64 << 20;
/// The estimated memory for a cached upload in addition to its key, in bytes.
const UPLOAD_BYTES: usize = 256;

/// The keys of the uploads that listings have read.
#[derive(Default)]
pub(crate) struct UploadKeyCache(Mutex<CachedUploadKeys>);

#[derive(Default)]
struct CachedUploadKeys {
    of: HashMap<Bucket, BucketUploads>,
    bytes: usize,
}

/// The uploads of a bucket.
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
    /// The number of reads of the directory of uploads.
    reads: u64,
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
    fn lock(&self) -> MutexGuard<'_, CachedUploadKeys> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns when the times of the bucket's directory of uploads were first seen. `now` is the directory's state.
    fn seen(&self, bucket: &Bucket, now: &FileStat) -> CoarseInstant {
        let cached = self.lock();
        let read = cached.of.get(bucket).and_then(|known| known.read);
        read.filter(|read| read.is_of(now)).map_or_else(CoarseInstant::now, |read| read.seen)
    }

    /// Returns the uploads whose records have to be read, if the cache knows all uploads of a directory with this state.
    fn unread(&self, bucket: &Bucket, now: &FileStat) -> Option<Vec<UploadId>> {
        let cached = self.lock();
        let known = cached.of.get(bucket)?;
        let is_current = known.read.is_some_and(|read| read.is_current && read.is_of(now));
        is_current.then(|| known.unread.iter().cloned().collect())
    }

    /// Drops the cached uploads that are not `present`, the uploads that a read of the directory has found. Returns the
    /// uploads whose records have to be read, and the number of this read.
    fn update(&self, bucket: &Bucket, present: HashSet<UploadId>) -> (Vec<UploadId>, u64) {
        let mut cached = self.lock();
        let CachedUploadKeys { of, bytes } = &mut *cached;
        let known = of.entry(bucket.clone()).or_default();
        let ended: Vec<_> =
            known.key_of.keys().filter(|upload| !present.contains(*upload)).cloned().collect();
        ended.iter().for_each(|upload| *bytes -= known.remove(upload));
        known.unread = present.into_iter().filter(|upload| !known.key_of.contains_key(upload)).collect();
        // Another thread may have read the directory earlier, and must not mark its uploads as current.
        (known.read, known.reads) = (None, known.reads + 1);
        (known.unread.iter().cloned().collect(), known.reads)
    }

    /// Caches the keys of further uploads.
    fn add(&self, bucket: &Bucket, further: Vec<KeyedUpload>) {
        let mut cached = self.lock();
        for (key, upload) in further {
            let bytes = key.len() + UPLOAD_BYTES;
            if cached.bytes + bytes > MOST_BYTES {
                cached.of.retain(|other, _| other == bucket);
                cached.bytes = cached.of.values().map(BucketUploads::bytes).sum();
            }
            let is_full = cached.bytes + bytes > MOST_BYTES;
            let Some(known) = cached.of.get_mut(bucket) else { return };
            if is_full {
                // The next listing reads the directory, and the records that are not cached, again.
                known.read = None;
                return;
            }
            if known.insert((key, upload)) {
                cached.bytes += bytes;
            }
        }
    }

    /// Records the state in which the directory of uploads was read, unless it was read again in the meantime.
    fn note_read(&self, bucket: &Bucket, read: ReadState, number: u64) {
        if let Some(known) = self.lock().of.get_mut(bucket).filter(|known| known.reads == number) {
            known.read = Some(read);
        }
    }

    /// Returns the first `most` of the uploads after `last` that `query` selects.
    fn select(
        &self,
        bucket: &Bucket,
        query: &UploadsQuery,
        last: Option<&KeyedUpload>,
        most: usize,
    ) -> Vec<KeyedUpload> {
        let start = match last {
            Some(last) => Bound::Excluded(last.clone()),
            None => Bound::Included(first_selected(query)),
        };
        let cached = self.lock();
        let Some(known) = cached.of.get(bucket) else { return Vec::new() };
        let behind = known.by_key.range((start, Bound::Unbounded));
        let with_prefix = behind.take_while(|(key, _)| key.starts_with(&query.prefix));
        with_prefix.filter(|(key, upload)| query.selects(key, upload)).take(most).cloned().collect()
    }

    /// Removes the key of an upload whose record no longer has this key. If the upload has not ended, the next listing
    /// reads its record again.
    fn forget(&self, bucket: &Bucket, upload: &UploadId) {
        let mut cached = self.lock();
        let CachedUploadKeys { of, bytes } = &mut *cached;
        if let Some(known) = of.get_mut(bucket) {
            *bytes -= known.remove(upload);
            known.unread.insert(upload.clone());
        }
    }
}

/// Returns a lower bound for the uploads that `query` selects.
fn first_selected(query: &UploadsQuery) -> KeyedUpload {
    let (prefix, after) = (query.prefix.as_str(), query.key_after.as_deref().unwrap_or_default());
    let upload = query.upload_after.as_deref().filter(|_| after >= prefix).unwrap_or_default();
    (after.max(prefix).into(), UploadId::foreign(upload))
}

impl BucketUploads {
    /// Adds an upload, and returns whether it was not cached before.
    fn insert(&mut self, (key, upload): KeyedUpload) -> bool {
        self.unread.remove(&upload);
        if self.key_of.contains_key(&upload) {
            return false;
        }
        self.key_of.insert(upload.clone(), key.clone());
        self.by_key.insert((key, upload))
    }

    /// Removes an upload, and returns the memory that it needed.
    fn remove(&mut self, upload: &UploadId) -> usize {
        let Some(key) = self.key_of.remove(upload) else { return 0 };
        let bytes = key.len() + UPLOAD_BYTES;
        self.by_key.remove(&(key, upload.clone()));
        bytes
    }

    fn bytes(&self) -> usize {
        self.by_key.iter().map(|(key, _)| key.len() + UPLOAD_BYTES).sum()
    }
}

impl MultipartUploadManager<'_> {
    /// Lists the uploads in progress. Cost: one read of the directory of uploads, if it may have changed since it was
    /// read last; one read of the record of each upload on the page, of the upload after the page, and of each upload
    /// that no earlier listing has read.
    pub(crate) fn list_uploads(&self, bucket: &Bucket, query: &UploadsQuery) -> Result<UploadListing> {
        self.inner.head_bucket(bucket)?;
        let cache = &self.inner.upload_keys;
        let mut read = self.read_new(bucket, query)?;
        let (mut uploads, mut last) = (Vec::new(), None);
        while uploads.len() <= query.max_uploads {
            let most = query.max_uploads.saturating_add(1) - uploads.len();
            let selected = cache.select(bucket, query, last.as_ref(), most);
            last = selected.last().cloned();
            for (key, upload) in selected {
                let summary = match read.remove(&upload) {
                    Some(summary) => Some(summary),
                    None => self.readable_summary_of(bucket, upload.clone())?,
                };
                match summary {
                    Some(summary) if *summary.key == *key => uploads.push(summary),
                    // The upload has ended, or a POSIX program has changed its record.
                    _ => cache.forget(bucket, &upload),
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

    /// Reads the records of all uploads whose keys are not cached, and caches their keys. Returns those of the uploads
    /// that `query` selects.
    fn read_new(&self, bucket: &Bucket, query: &UploadsQuery) -> Result<HashMap<UploadId, UploadSummary>> {
        let (volume, cache) = (&self.inner.volume, &self.inner.upload_keys);
        let (path, sharing) = (uploads_dir(bucket), volume.sharing_of(bucket));
        volume.freshen_dir(&path, false, sharing);
        let failed = |errno| from_errno(errno, "reading .fordway");
        let dir = match volume.open_to_scan(&path) {
            Ok(dir) => dir,
            // Fordway creates only directories at this path; anything else is treated as an empty directory.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                cache.update(bucket, HashSet::default());
                return Ok(HashMap::new());
            }
            Err(errno) => return Err(failed(errno)),
        };
        let before = state_before(&dir, sharing).map_err(failed)?;
        let seen = cache.seen(bucket, &before);
        // This is determined before the read. A change during the read might otherwise have the times of `before`.
        let is_current = volume.directory_times(sharing).show_changes(&before, seen.elapsed());
        let (unread, number) = match cache.unread(bucket, &before) {
            Some(unread) => (unread, None),
            None => {
                let known = Some(&before).filter(|_| !sharing.is_shared());
                let (unread, number) = cache.update(bucket, uploads_in(&dir, known).map_err(failed)?);
                (unread, Some(number))
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
        if let Some(number) = number {
            let id = (before.device, before.inode);
            cache.note_read(bucket, ReadState { id, times: times(&before), seen, is_current }, number);
        }
        cache.add(bucket, further);
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

/// Returns the uploads in the directory of uploads, which had the state `before` unless other nodes may change it.
fn uploads_in(dir: &File, before: Option<&FileStat>) -> Result<HashSet<UploadId>, Errno> {
    collect_entries(dir, before, HashSet::default, |uploads, name, _| {
        uploads.extend(str::from_utf8(name).ok().and_then(upload_of));
    })
}
