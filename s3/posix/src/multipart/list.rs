//! Lists the uploads in progress, in the order of their keys.
//!
//! The name of an upload's directory does not contain the key, so the first listing of a bucket reads the record of
//! every upload. An upload never changes its key, so the keys are cached, within limits. Later listings read only the
//! records of new uploads, and of the uploads on the listed page.

use std::sync::{Mutex, MutexGuard};

use foldhash::{HashMap, HashMapExt};
use fordway_store::{Bucket, ErrorKind, Key, Result, UploadId, UploadListing, UploadSummary, UploadsQuery};

use super::MultipartUploadManager;
use super::parts::{UploadDirectory, UploadRecord};
use crate::errors::is_stale;
use crate::layout::{upload_dir, upload_of, uploads_dir};
use crate::read::system_time;

/// The maximum memory for all cached keys of uploads, in bytes.
const MOST_BYTES: usize = 64 << 20;
/// The estimated memory for a cached upload in addition to its key, in bytes.
const UPLOAD_BYTES: usize = 96;
/// The number of ended uploads that may always stay in the cache.
const ENDED_MAX: usize = 1_000;

/// The keys of the uploads that listings have read.
#[derive(Default)]
pub(crate) struct UploadKeyCache(Mutex<CachedUploadKeys>);

#[derive(Default)]
struct CachedUploadKeys {
    of: HashMap<Bucket, HashMap<UploadId, Box<str>>>,
    bytes: usize,
}

/// An upload and its key.
type KeyedUpload = (Box<str>, UploadId);

impl UploadKeyCache {
    fn lock(&self) -> MutexGuard<'_, CachedUploadKeys> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns the uploads whose cached keys `query` selects, and the uploads whose keys are not cached.
    fn sort_out(
        &self,
        bucket: &Bucket,
        uploads: Vec<UploadId>,
        query: &UploadsQuery,
    ) -> (Vec<KeyedUpload>, Vec<UploadId>) {
        let cached = self.lock();
        let Some(known) = cached.of.get(bucket) else { return (Vec::new(), uploads) };
        let (mut selected, mut unknown) = (Vec::new(), Vec::new());
        for upload in uploads {
            match known.get(&upload) {
                Some(key) if query.selects(key, &upload) => selected.push((key.clone(), upload)),
                Some(_) => {}
                None => unknown.push(upload),
            }
        }
        (selected, unknown)
    }

    /// Caches the keys of further uploads. `present` is the number of uploads that the bucket has.
    fn add(&self, bucket: &Bucket, present: usize, further: Vec<KeyedUpload>) {
        let mut cached = self.lock();
        // Most of the cached uploads have ended, so all cached keys of the bucket are dropped. The next listing reads
        // the uploads in progress again.
        if cached.of.get(bucket).is_some_and(|known| known.len() > 2 * present + ENDED_MAX) {
            cached.of.remove(bucket);
            cached.count();
        }
        for (key, upload) in further {
            let bytes = key.len() + UPLOAD_BYTES;
            if cached.bytes + bytes > MOST_BYTES {
                cached.of.retain(|other, _| other == bucket);
                cached.count();
            }
            if cached.bytes + bytes > MOST_BYTES {
                break;
            }
            cached.bytes += bytes;
            cached.of.entry(bucket.clone()).or_default().insert(upload, key);
        }
    }

    fn forget(&self, bucket: &Bucket, upload: &UploadId) {
        let mut cached = self.lock();
        if let Some(key) = cached.of.get_mut(bucket).and_then(|known| known.remove(upload)) {
            cached.bytes -= key.len() + UPLOAD_BYTES;
        }
    }
}

impl CachedUploadKeys {
    /// Recomputes the memory that the cached keys need.
    fn count(&mut self) {
        self.bytes = self.of.values().flat_map(HashMap::values).map(|key| key.len() + UPLOAD_BYTES).sum();
    }
}

impl MultipartUploadManager<'_> {
    /// Lists the uploads in progress. Cost: one read of the directory of uploads; one read of the record of each upload
    /// on the page, of the upload after the page, and of each upload that no earlier listing has read.
    pub(crate) fn list_uploads(&self, bucket: &Bucket, query: &UploadsQuery) -> Result<UploadListing> {
        self.inner.head_bucket(bucket)?;
        let (volume, cache) = (&self.inner.volume, &self.inner.upload_keys);
        volume.freshen_dir(&uploads_dir(bucket), false, volume.sharing_of(bucket));
        let names = volume.names_in(&uploads_dir(bucket))?;
        let uploads: Vec<UploadId> = names.iter().filter_map(|name| upload_of(name)).collect();
        let present = uploads.len();
        let (mut selected, unknown) = cache.sort_out(bucket, uploads, query);
        let (mut further, mut read) = (Vec::new(), HashMap::new());
        for upload in unknown {
            let Some(summary) = self.readable_summary_of(bucket, upload)? else { continue };
            let keyed: KeyedUpload = (summary.key.as_str().into(), summary.upload.clone());
            if query.selects(&keyed.0, &keyed.1) {
                selected.push(keyed.clone());
                read.insert(keyed.1.clone(), summary);
            }
            further.push(keyed);
        }
        cache.add(bucket, present, further);
        selected.sort_unstable();
        let mut uploads = Vec::new();
        for (key, upload) in selected {
            if uploads.len() > query.max_uploads {
                break;
            }
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
        Ok(query.page(uploads))
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
