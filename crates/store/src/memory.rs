//! A store in memory: the model that tests compare every other lane with.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use bytes::Bytes;

use crate::{
    Bucket, BucketInfo, Collector, CompletedPart, Conditions, Content, CopyOptions, DeleteOptions, ETag,
    ETagPolicy, Error, ErrorKind, Expected, GetOptions, Hasher, Key, ListQuery, Listing, Object, ObjectInfo,
    ObjectSummary, PartInfo, PartListing, PartOptions, PartsQuery, PutOptions, PutResult, Result, Step,
    Store, UploadId, UploadListing, UploadSummary, UploadsQuery, Writer, checked_part_number, multipart_etag,
};

/// An object store that forgets everything when it is dropped. Clones share their content.
#[derive(Clone, Default)]
pub struct MemoryStore {
    policy: ETagPolicy,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    buckets: BTreeMap<Bucket, BucketState>,
    uploads_started: u64,
    /// Objects and parts published, which numbers their tags where these are not made of content.
    versions: u128,
}

struct BucketState {
    created: SystemTime,
    objects: BTreeMap<String, (ObjectInfo, Bytes)>,
    uploads: BTreeMap<UploadId, Upload>,
}

struct Upload {
    key: Key,
    started: SystemTime,
    options: PutOptions,
    parts: BTreeMap<u16, (PartInfo, Bytes)>,
}

impl MemoryStore {
    /// An empty store whose new objects get ETags of `policy` unless the caller says otherwise.
    pub fn new(policy: ETagPolicy) -> Self {
        MemoryStore { policy, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere cannot leave a half-made change: each one is a single map operation.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn next_version(&self) -> u128 {
        let mut state = self.state();
        state.versions += 1;
        state.versions
    }

    /// Runs `act` on a bucket and names the operation in what goes wrong.
    fn on<T>(
        &self,
        operation: &'static str,
        bucket: &Bucket,
        key: &str,
        act: impl FnOnce(&mut BucketState) -> Result<T>,
    ) -> Result<T> {
        let mut state = self.state();
        let found = state.buckets.get_mut(bucket).ok_or_else(|| ErrorKind::NoSuchBucket.into());
        found.and_then(act).map_err(|error| error.during(operation, "memory", bucket.as_str(), key))
    }

    fn new_writer(
        &self,
        bucket: &Bucket,
        key: &Key,
        options: PutOptions,
        publish: Publish,
    ) -> Box<dyn Writer> {
        let policy = options.etag_policy.unwrap_or(self.policy);
        Box::new(MemoryWriter {
            store: self.clone(),
            bucket: bucket.clone(),
            key: key.clone(),
            hasher: Hasher::new(policy, options.check_md5, options.checksum),
            body: Vec::new(),
            options,
            publish,
        })
    }
}

impl BucketState {
    fn object(&self, key: &Key) -> Result<&(ObjectInfo, Bytes)> {
        self.objects.get(key.as_str()).ok_or_else(|| ErrorKind::NoSuchKey.into())
    }

    fn publish(
        &mut self,
        key: &Key,
        info: ObjectInfo,
        body: Bytes,
        conditions: &Conditions,
    ) -> Result<PutResult> {
        conditions.check_write(self.objects.get(key.as_str()).map(|(info, _)| &info.etag))?;
        let made =
            PutResult { etag: info.etag.clone(), modified: info.modified, checksum: info.checksum.clone() };
        self.objects.insert(key.as_str().to_owned(), (info, body));
        Ok(made)
    }

    fn upload(&mut self, key: &Key, upload: &UploadId) -> Result<&mut Upload> {
        self.uploads
            .get_mut(upload)
            .filter(|found| found.key == *key)
            .ok_or_else(|| Error::new(ErrorKind::NoSuchUpload, upload.as_str()))
    }
}

/// What a finished writer becomes.
enum Publish {
    Object,
    Part(UploadId, u16),
}

struct MemoryWriter {
    store: MemoryStore,
    bucket: Bucket,
    key: Key,
    hasher: Hasher,
    body: Vec<u8>,
    options: PutOptions,
    publish: Publish,
}

impl Writer for MemoryWriter {
    fn write(&mut self, data: &[u8]) -> Result<()> {
        self.hasher.update(data);
        self.body.extend_from_slice(data);
        Ok(())
    }

    fn commit(self: Box<Self>, expected: &Expected) -> Result<PutResult> {
        let MemoryWriter { store, bucket, key, hasher, body, options, publish } = *self;
        let (body, modified) = (Bytes::from(body), SystemTime::now());
        let version = store.next_version();
        store.on("put", &bucket, key.as_str(), |state| {
            let found = hasher.finish(expected)?;
            let (size, checksum) = (found.size, found.checksum);
            let etag = found.etag.unwrap_or_else(|| ETag::opaque(version));
            match publish {
                Publish::Object => {
                    let info = ObjectInfo { size, modified, etag, checksum, metadata: options.metadata };
                    state.publish(&key, info, body, &options.conditions)
                }
                Publish::Part(upload, number) => {
                    let part = PartInfo { number, size, etag: etag.clone(), modified };
                    state.upload(&key, &upload)?.parts.insert(number, (part, body));
                    Ok(PutResult { etag, modified, checksum })
                }
            }
        })
    }
}

impl Store for MemoryStore {
    fn lane(&self) -> &'static str {
        "memory"
    }

    fn list_buckets(&self) -> Result<Vec<BucketInfo>> {
        let info = |(name, state): (&Bucket, &BucketState)| BucketInfo {
            name: name.clone(),
            created: state.created,
        };
        Ok(self.state().buckets.iter().map(info).collect())
    }

    fn create_bucket(&self, bucket: &Bucket) -> Result<()> {
        let failed = |error: Error| error.during("create bucket", "memory", bucket.as_str(), "");
        bucket.for_creation().map_err(failed)?;
        let mut state = self.state();
        if state.buckets.contains_key(bucket) {
            return Err(failed(ErrorKind::BucketAlreadyOwnedByYou.into()));
        }
        let new =
            BucketState { created: SystemTime::now(), objects: BTreeMap::new(), uploads: BTreeMap::new() };
        state.buckets.insert(bucket.clone(), new);
        Ok(())
    }

    fn head_bucket(&self, bucket: &Bucket) -> Result<BucketInfo> {
        self.on("head bucket", bucket, "", |state| {
            Ok(BucketInfo { name: bucket.clone(), created: state.created })
        })
    }

    fn delete_bucket(&self, bucket: &Bucket) -> Result<()> {
        self.on("delete bucket", bucket, "", |state| match state.objects.is_empty() {
            true => Ok(()),
            false => Err(ErrorKind::BucketNotEmpty.into()),
        })?;
        self.state().buckets.remove(bucket);
        Ok(())
    }

    fn writer(&self, bucket: &Bucket, key: &Key, options: &PutOptions) -> Result<Box<dyn Writer>> {
        self.on("put", bucket, key.as_str(), |_| Ok(()))?;
        Ok(self.new_writer(bucket, key, options.clone(), Publish::Object))
    }

    fn get(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<Object> {
        self.on("get", bucket, key.as_str(), |state| {
            let (info, body) = state.object(key)?;
            options.conditions.check_read(info)?;
            let range = options.range.map_or(Ok(0..info.size), |range| range.resolve(info.size))?;
            let content = Content::Bytes(body.slice(range.start as usize..range.end as usize));
            Ok(Object { info: info.clone(), range, content })
        })
    }

    fn head(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<ObjectInfo> {
        self.on("head", bucket, key.as_str(), |state| {
            let (info, _) = state.object(key)?;
            options.conditions.check_read(info)?;
            Ok(info.clone())
        })
    }

    fn delete(&self, bucket: &Bucket, key: &Key, options: &DeleteOptions) -> Result<()> {
        self.on("delete", bucket, key.as_str(), |state| {
            if !options.conditions.is_empty() {
                options
                    .conditions
                    .check_write(state.objects.get(key.as_str()).map(|(info, _)| &info.etag))?;
            }
            state.objects.remove(key.as_str());
            Ok(())
        })
    }

    fn copy(
        &self,
        from: (&Bucket, &Key),
        bucket: &Bucket,
        key: &Key,
        options: &CopyOptions,
    ) -> Result<PutResult> {
        let (info, body) = self.on("copy", from.0, from.1.as_str(), |state| {
            if from == (bucket, key) && options.metadata.is_none() {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    "a copy onto itself must change the metadata",
                ));
            }
            let (info, body) = state.object(from.1)?;
            options.source_conditions.check_copy_source(info)?;
            Ok((info.clone(), body.clone()))
        })?;
        self.on("copy", bucket, key.as_str(), |state| {
            let metadata = options.metadata.clone().unwrap_or_else(|| info.metadata.clone());
            let info = ObjectInfo { modified: SystemTime::now(), metadata, ..info };
            state.publish(key, info, body, &options.conditions)
        })
    }

    fn list(&self, bucket: &Bucket, query: &ListQuery) -> Result<Listing> {
        self.on("list", bucket, "", |state| {
            let mut page = Collector::new(query);
            for (key, (info, _)) in state.objects.range(query.prefix.clone()..) {
                let summary = || ObjectSummary {
                    key: key.clone(),
                    size: info.size,
                    etag: info.etag.clone(),
                    modified: info.modified,
                };
                let beyond = !key.starts_with(&query.prefix);
                if beyond || page.offer(key, || Ok(Some(summary())))? == Step::Full {
                    break;
                }
            }
            Ok(page.finish())
        })
    }

    fn create_upload(&self, bucket: &Bucket, key: &Key, options: &PutOptions) -> Result<UploadId> {
        let number = {
            let mut state = self.state();
            state.uploads_started += 1;
            state.uploads_started
        };
        let id = UploadId::new(format!("{number:016x}"))?;
        self.on("create upload", bucket, key.as_str(), |state| {
            let (started, parts) = (SystemTime::now(), BTreeMap::new());
            let upload = Upload { key: key.clone(), started, options: options.clone(), parts };
            state.uploads.insert(id.clone(), upload);
            Ok(id)
        })
    }

    fn part_writer(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        number: u16,
        options: &PartOptions,
    ) -> Result<Box<dyn Writer>> {
        let etag_policy = self.on("put part", bucket, key.as_str(), |state| {
            checked_part_number(number)?;
            Ok(state.upload(key, upload)?.options.etag_policy)
        })?;
        let PartOptions { check_md5, checksum, size_hint } = *options;
        let options = PutOptions { etag_policy, check_md5, checksum, size_hint, ..Default::default() };
        Ok(self.new_writer(bucket, key, options, Publish::Part(upload.clone(), number)))
    }

    fn list_parts(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        query: &PartsQuery,
    ) -> Result<PartListing> {
        self.on("list parts", bucket, key.as_str(), |state| {
            let all = &state.upload(key, upload)?.parts;
            let mut rest = all.values().map(|(part, _)| part).filter(|part| part.number > query.after);
            let parts = rest.by_ref().take(query.max_parts).cloned().collect();
            Ok(PartListing { parts, truncated: rest.next().is_some() })
        })
    }

    fn list_uploads(&self, bucket: &Bucket, query: &UploadsQuery) -> Result<UploadListing> {
        self.on("list uploads", bucket, "", |state| {
            let summary = |(id, upload): (&UploadId, &Upload)| UploadSummary {
                key: upload.key.as_str().to_owned(),
                upload: id.clone(),
                started: upload.started,
            };
            Ok(query.page(state.uploads.iter().map(summary).collect()))
        })
    }

    fn complete_upload(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        parts: &[CompletedPart],
        conditions: &Conditions,
    ) -> Result<PutResult> {
        let policy = self.policy;
        self.on("complete upload", bucket, key.as_str(), |state| {
            let found = state.upload(key, upload)?;
            let present: Vec<PartInfo> = found.parts.values().map(|(part, _)| part.clone()).collect();
            let chosen = CompletedPart::select(parts, &present)?;
            let body: Vec<u8> = chosen.iter().flat_map(|part| found.parts[&part.number].1.to_vec()).collect();
            let policy = found.options.etag_policy.unwrap_or(policy);
            let info = ObjectInfo {
                modified: SystemTime::now(),
                metadata: found.options.metadata.clone(),
                ..ObjectInfo::new(body.len() as u64, multipart_etag(policy, &chosen))
            };
            let made = state.publish(key, info, Bytes::from(body), conditions)?;
            state.uploads.remove(upload);
            Ok(made)
        })
    }

    fn abort_upload(&self, bucket: &Bucket, key: &Key, upload: &UploadId) -> Result<()> {
        self.on("abort upload", bucket, key.as_str(), |state| {
            state.upload(key, upload)?;
            state.uploads.remove(upload);
            Ok(())
        })
    }
}
