//! An in-memory store: the model that tests compare every other lane with.

mod bucket;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use bytes::Bytes;

use crate::{
    Bucket, BucketDocumentKind, BucketDocumentOperations, BucketInfo, ChecksumType, CompleteOptions,
    CompletedPart, ContentHasher, CopyOptions, DeleteOptions, DeleteResult, ETag, ETagPolicy, Error,
    ErrorKind, ExpectedContent, GetOptions, Key, ListPageBuilder, ListQuery, LockConfiguration,
    MultipartUploadOperations, ObjectBatchOperations, ObjectContent, ObjectInfo, ObjectListing, ObjectLock,
    ObjectLockOperations, ObjectPart, ObjectRenameOperations, ObjectSummary, ObjectTagOperations,
    ObjectVersionOperations, Objects, OpenObject, PartInfo, PartListing, PartOptions, PartsQuery, PutOptions,
    PutResult, RenameOptions, Result, Retention, Store, Tags, UploadId, UploadListing, UploadSummary,
    UploadsQuery, VersionId, VersionListing, VersioningState, VersionsQuery, WalkInstruction, Writer,
    check_document, check_tags, checked_part_number, multipart_checksum, multipart_etag,
};
use bucket::{BucketState, MemoryUpload, StoredObject};

/// An object store in memory. Clones share their content, which is lost when the last clone is dropped.
#[derive(Clone, Default)]
pub struct MemoryStore {
    policy: ETagPolicy,
    state: Arc<Mutex<MemoryState>>,
}

#[derive(Default)]
struct MemoryState {
    buckets: BTreeMap<Bucket, BucketState>,
    uploads_started: u64,
    /// The number that was assigned last. Numbers identify versions, and are the basis of ETags that are not computed
    /// from content.
    versions: u128,
}

impl MemoryStore {
    /// Creates an empty store. New objects get ETags according to `policy` unless the caller requests another policy.
    pub fn new(policy: ETagPolicy) -> Self {
        MemoryStore { policy, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, MemoryState> {
        // A panic elsewhere cannot leave an incomplete change, because no code panics between the first and the last
        // step of a change.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn next_version(&self) -> u128 {
        let mut state = self.state();
        state.versions += 1;
        state.versions
    }

    /// Runs `act` on a bucket, and adds the operation's name to its error. Errors: `NoSuchBucket`.
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
        publish: WriteDestination,
    ) -> Box<dyn Writer> {
        let policy = options.etag_policy.unwrap_or(self.policy);
        Box::new(MemoryWriter {
            store: self.clone(),
            bucket: bucket.clone(),
            key: key.clone(),
            hasher: ContentHasher::new(policy, options.check_md5, options.checksum),
            body: Vec::new(),
            options,
            publish,
        })
    }
}

/// What a writer creates: an object, or a part of an upload.
enum WriteDestination {
    Object,
    Part(UploadId, u16),
}

struct MemoryWriter {
    store: MemoryStore,
    bucket: Bucket,
    key: Key,
    hasher: ContentHasher,
    body: Vec<u8>,
    options: PutOptions,
    publish: WriteDestination,
}

impl Writer for MemoryWriter {
    fn write(&mut self, data: &[u8]) -> Result<()> {
        self.hasher.update(data);
        self.body.extend_from_slice(data);
        Ok(())
    }

    fn commit(self: Box<Self>, expected: &ExpectedContent) -> Result<PutResult> {
        let MemoryWriter { store, bucket, key, hasher, body, options, publish } = *self;
        let (body, modified) = (Bytes::from(body), SystemTime::now());
        let number = store.next_version();
        store.on("put", &bucket, key.as_str(), |state| {
            let found = hasher.finish(expected)?;
            let (size, checksum) = (found.size, found.checksum);
            let etag = found.etag.unwrap_or_else(|| ETag::opaque(number));
            match publish {
                WriteDestination::Object => {
                    let PutOptions { metadata, tags, conditions, lock, .. } = options;
                    let tag_count = tags.len();
                    let info = ObjectInfo {
                        modified,
                        checksum,
                        metadata,
                        tag_count,
                        lock,
                        ..ObjectInfo::new(size, etag)
                    };
                    let new = StoredObject { info, body, tags, parts: Vec::new(), made_by: None };
                    state.publish(&key, new, version_id(number), &conditions)
                }
                WriteDestination::Part(upload, number) => {
                    let part =
                        PartInfo { number, size, etag: etag.clone(), modified, checksum: checksum.clone() };
                    state.upload(&key, &upload)?.parts.insert(number, (part, body));
                    Ok(PutResult { etag, modified, checksum, version: None })
                }
            }
        })
    }
}

impl Objects for MemoryStore {
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
        state.buckets.insert(bucket.clone(), BucketState::new());
        Ok(())
    }

    fn head_bucket(&self, bucket: &Bucket) -> Result<BucketInfo> {
        self.on("head bucket", bucket, "", |state| {
            Ok(BucketInfo { name: bucket.clone(), created: state.created })
        })
    }

    fn delete_bucket(&self, bucket: &Bucket) -> Result<()> {
        self.on("delete bucket", bucket, "", |state| match state.is_empty() {
            true => Ok(()),
            false => Err(ErrorKind::BucketNotEmpty.into()),
        })?;
        self.state().buckets.remove(bucket);
        Ok(())
    }

    fn writer(&self, bucket: &Bucket, key: &Key, options: &PutOptions) -> Result<Box<dyn Writer>> {
        self.on("put", bucket, key.as_str(), |state| {
            check_tags(&options.tags)?;
            state.check_lock(options.lock)
        })?;
        Ok(self.new_writer(bucket, key, options.clone(), WriteDestination::Object))
    }

    fn get(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<OpenObject> {
        self.on("get", bucket, key.as_str(), |state| {
            let found = state.checked(key, options)?;
            let range = options.wanted(found.info.size, &found.parts)?;
            let content = ObjectContent::Bytes(found.body.slice(range.start as usize..range.end as usize));
            Ok(OpenObject { info: found.info.clone(), range, content })
        })
    }

    fn head(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<ObjectInfo> {
        self.on("head", bucket, key.as_str(), |state| Ok(state.checked(key, options)?.info.clone()))
    }

    fn delete(&self, bucket: &Bucket, key: &Key, options: &DeleteOptions) -> Result<DeleteResult> {
        let marker = version_id(self.next_version());
        self.on("delete", bucket, key.as_str(), |state| {
            options.version.as_ref().map_or(Ok(()), VersionId::check_generated)?;
            if !options.conditions.is_empty() {
                let found = state.object(key, options.version.as_ref());
                if !options.conditions.check_delete(found.map(|object| object.info.etag.clone()))? {
                    return Ok(DeleteResult { version: options.version.clone(), is_marker: false });
                }
            }
            match &options.version {
                Some(version) => state.delete_version(key, version, options.bypass_governance),
                None => Ok(state.delete(key, marker)),
            }
        })
    }

    fn copy(
        &self,
        from: (&Bucket, &Key),
        bucket: &Bucket,
        key: &Key,
        options: &CopyOptions,
    ) -> Result<PutResult> {
        let source = self.on("copy", from.0, from.1.as_str(), |state| {
            options.check_target(from, (bucket, key))?;
            let source = state.object(from.1, options.source_version.as_ref())?;
            options.source_conditions.check_copy_source(&source.info)?;
            Ok(source.clone())
        })?;
        let fresh = version_id(self.next_version());
        self.on("copy", bucket, key.as_str(), |state| {
            let metadata = options.metadata.clone().unwrap_or(source.info.metadata);
            let tags = options.tags.clone().unwrap_or(source.tags);
            check_tags(&tags)?;
            state.check_lock(options.lock)?;
            let (modified, tag_count) = (SystemTime::now(), tags.len());
            let mut info = ObjectInfo { modified, metadata, tag_count, lock: options.lock, ..source.info };
            let mut parts = source.parts;
            if let Some(algorithm) = options.new_checksum(info.checksum.as_ref()) {
                info.checksum = Some(crate::Checksum::of(algorithm, &source.body));
                parts.iter_mut().for_each(|part| part.checksum = None);
            }
            state.publish(
                key,
                StoredObject { info, body: source.body, tags, parts, made_by: None },
                fresh,
                &options.conditions,
            )
        })
    }

    fn list(&self, bucket: &Bucket, query: &ListQuery) -> Result<ObjectListing> {
        self.on("list", bucket, "", |state| {
            let mut page = ListPageBuilder::new(query);
            for (key, StoredObject { info, .. }) in state.objects.range(query.prefix.clone()..) {
                let summary = || ObjectSummary {
                    key: key.clone(),
                    size: info.size,
                    etag: info.etag.clone(),
                    modified: info.modified,
                    checksum: info.checksum.as_ref().map(crate::Checksum::plan),
                };
                let beyond = !key.starts_with(&query.prefix);
                if beyond || page.offer(key, || Ok(Some(summary())))? == WalkInstruction::Full {
                    break;
                }
            }
            Ok(page.finish())
        })
    }
}

impl ObjectBatchOperations for MemoryStore {}

impl ObjectRenameOperations for MemoryStore {
    fn rename(&self, bucket: &Bucket, from: &Key, to: &Key, options: &RenameOptions) -> Result<()> {
        self.on("rename", bucket, from.as_str(), |state| state.rename(from, to, options))
    }
}

impl ObjectTagOperations for MemoryStore {
    fn tags(&self, bucket: &Bucket, key: &Key, version: Option<&VersionId>) -> Result<Tags> {
        self.on("get tags", bucket, key.as_str(), |state| Ok(state.object(key, version)?.tags.clone()))
    }

    fn set_tags(&self, bucket: &Bucket, key: &Key, version: Option<&VersionId>, tags: &Tags) -> Result<()> {
        self.on("set tags", bucket, key.as_str(), |state| {
            check_tags(tags)?;
            state.set_tags(key, version, tags)
        })
    }
}

impl ObjectVersionOperations for MemoryStore {
    fn versioning(&self, bucket: &Bucket) -> Result<VersioningState> {
        self.on("get versioning", bucket, "", |state| Ok(state.versioning))
    }

    fn set_versioning(&self, bucket: &Bucket, versioning: VersioningState) -> Result<()> {
        self.on("set versioning", bucket, "", |state| {
            versioning.check_settable()?;
            versioning.check_lock(state.object_lock.is_some())?;
            state.versioning = versioning;
            Ok(())
        })
    }

    fn list_versions(&self, bucket: &Bucket, query: &VersionsQuery) -> Result<VersionListing> {
        self.on("list versions", bucket, "", |state| state.list_versions(query))
    }
}

impl ObjectLockOperations for MemoryStore {
    fn lock_configuration(&self, bucket: &Bucket) -> Result<Option<LockConfiguration>> {
        self.on("get object lock", bucket, "", |state| Ok(state.object_lock))
    }

    fn set_lock_configuration(&self, bucket: &Bucket, configuration: &LockConfiguration) -> Result<()> {
        self.on("set object lock", bucket, "", |state| {
            configuration.check()?;
            state.versioning.check_lockable()?;
            state.object_lock = Some(*configuration);
            Ok(())
        })
    }

    fn set_retention(
        &self,
        bucket: &Bucket,
        key: &Key,
        version: Option<&VersionId>,
        retention: Option<Retention>,
        bypass: bool,
    ) -> Result<()> {
        self.on("set retention", bucket, key.as_str(), |state| {
            state.change_lock(key, version, |lock| lock.with_retention(retention, SystemTime::now(), bypass))
        })
    }

    fn set_legal_hold(
        &self,
        bucket: &Bucket,
        key: &Key,
        version: Option<&VersionId>,
        is_on: bool,
    ) -> Result<()> {
        self.on("set legal hold", bucket, key.as_str(), |state| {
            state.change_lock(key, version, |lock| Ok(ObjectLock { legal_hold: Some(is_on), ..lock }))
        })
    }
}

impl BucketDocumentOperations for MemoryStore {
    fn document(&self, bucket: &Bucket, kind: &BucketDocumentKind) -> Result<Option<Vec<u8>>> {
        self.on("get document", bucket, "", |state| Ok(state.documents.get(kind).cloned()))
    }

    fn set_document(&self, bucket: &Bucket, kind: &BucketDocumentKind, document: &[u8]) -> Result<()> {
        self.on("set document", bucket, "", |state| {
            check_document(document)?;
            state.documents.insert(kind.clone(), document.to_vec());
            Ok(())
        })
    }

    fn delete_document(&self, bucket: &Bucket, kind: &BucketDocumentKind) -> Result<()> {
        self.on("delete document", bucket, "", |state| {
            state.documents.remove(kind);
            Ok(())
        })
    }

    /// An in-memory store has no owners.
    fn bucket_owner(&self, bucket: &Bucket) -> Result<Option<u32>> {
        self.on("get owner", bucket, "", |_| Ok(None))
    }
}

impl MultipartUploadOperations for MemoryStore {
    fn object_parts(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<Vec<ObjectPart>> {
        self.on("get parts", bucket, key.as_str(), |state| Ok(state.checked(key, options)?.parts.clone()))
    }

    fn create_upload(&self, bucket: &Bucket, key: &Key, options: &PutOptions) -> Result<UploadId> {
        let number = {
            let mut state = self.state();
            state.uploads_started += 1;
            state.uploads_started
        };
        let id = UploadId::new(format!("{number:016x}"))?;
        self.on("create upload", bucket, key.as_str(), |state| {
            options.check_upload()?;
            state.check_lock(options.lock)?;
            let (started, parts) = (SystemTime::now(), BTreeMap::new());
            let upload = MemoryUpload { key: key.clone(), started, options: options.clone(), parts };
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
        let (etag_policy, checksum) = self.on("put part", bucket, key.as_str(), |state| {
            checked_part_number(number)?;
            let whole = &state.upload(key, upload)?.options;
            Ok((whole.etag_policy, options.checksum_within(whole.checksum)?))
        })?;
        let PartOptions { check_md5, size_hint, .. } = *options;
        let options = PutOptions { etag_policy, check_md5, checksum, size_hint, ..Default::default() };
        Ok(self.new_writer(bucket, key, options, WriteDestination::Part(upload.clone(), number)))
    }

    fn list_parts(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        query: &PartsQuery,
    ) -> Result<PartListing> {
        self.on("list parts", bucket, key.as_str(), |state| {
            let upload = state.upload(key, upload)?;
            let mut rest =
                upload.parts.values().map(|(part, _)| part).filter(|part| part.number > query.after);
            let parts = rest.by_ref().take(query.max_parts).cloned().collect();
            Ok(PartListing {
                parts,
                truncated: rest.next().is_some(),
                checksum: upload.options.checksum_plan(),
            })
        })
    }

    fn list_uploads(&self, bucket: &Bucket, query: &UploadsQuery) -> Result<UploadListing> {
        self.on("list uploads", bucket, "", |state| {
            let summary = |(id, upload): (&UploadId, &MemoryUpload)| UploadSummary {
                key: upload.key.as_str().to_owned(),
                upload: id.clone(),
                started: upload.started,
                checksum: upload.options.checksum_plan(),
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
        options: &CompleteOptions,
    ) -> Result<PutResult> {
        let (policy, fresh) = (self.policy, version_id(self.next_version()));
        self.on("complete upload", bucket, key.as_str(), |state| {
            // A repeated completion returns the result of the first completion, if the object of that completion still
            // exists.
            if let Some(made) = state.made_before(key, upload, parts) {
                return Ok(made);
            }
            let found = state.upload(key, upload)?;
            let new = found.assemble(policy, parts, options)?;
            let new = StoredObject { made_by: Some(upload.clone()), ..new };
            let made = state.publish(key, new, fresh, &options.conditions)?;
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

impl Store for MemoryStore {}

impl MemoryUpload {
    /// Assembles the object from the parts in `wanted`.
    fn assemble(
        &self,
        policy: ETagPolicy,
        wanted: &[CompletedPart],
        options: &CompleteOptions,
    ) -> Result<StoredObject> {
        let present: Vec<PartInfo> = self.parts.values().map(|(part, _)| part.clone()).collect();
        let chosen = CompletedPart::select(wanted, &present)?;
        let body: Vec<u8> = chosen.iter().flat_map(|part| self.parts[&part.number].1.to_vec()).collect();
        let checksum = self.options.checksum.and_then(|algorithm| {
            let kind = self.options.checksum_type.unwrap_or(ChecksumType::default_of(algorithm));
            multipart_checksum(algorithm, kind, &chosen)
        });
        options.check(body.len() as u64, checksum.as_ref())?;
        let etag = multipart_etag(self.options.etag_policy.unwrap_or(policy), &chosen);
        let (metadata, tags) = (self.options.metadata.clone(), self.options.tags.clone());
        let info = ObjectInfo {
            modified: SystemTime::now(),
            metadata,
            checksum,
            tag_count: tags.len(),
            part_count: u16::try_from(chosen.len()).ok(),
            lock: self.options.lock,
            ..ObjectInfo::new(body.len() as u64, etag)
        };
        let parts = ObjectPart::of(&chosen);
        Ok(StoredObject { info, body: Bytes::from(body), tags, parts, made_by: None })
    }
}

/// Returns the version ID with this number.
fn version_id(number: u128) -> VersionId {
    VersionId::new(format!("{number:032x}")).unwrap_or_else(|_| VersionId::null())
}
