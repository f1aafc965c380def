//! What a store has beyond buckets and objects. [`Store`](crate::Store) is all of it.

use crate::{
    Bucket, CompleteOptions, CompletedPart, DeleteOptions, Deleted, Expected, GetOptions, Key, ObjectInfo,
    ObjectPart, Objects, PartListing, PartOptions, PartsQuery, PutOptions, PutResult, Result, Tags, UploadId,
    UploadListing, UploadsQuery, VersionId, VersionListing, Versioning, VersionsQuery, Writer,
};

/// Many objects by one call. A store that can do better than one after the other says how.
pub trait ObjectBatches: Objects {
    /// Removes many objects; one result per key, in order.
    fn delete_many(&self, bucket: &Bucket, keys: &[Key]) -> Vec<Result<Deleted>> {
        keys.iter().map(|key| self.delete(bucket, key, &DeleteOptions::default())).collect()
    }

    /// Reads many objects whole; one result per key, in order.
    fn get_many(&self, bucket: &Bucket, keys: &[Key]) -> Vec<Result<Vec<u8>>> {
        keys.iter().map(|key| get_whole(self, bucket, key)).collect()
    }

    /// Describes many objects; one result per key, in order.
    fn head_many(&self, bucket: &Bucket, keys: &[Key]) -> Vec<Result<ObjectInfo>> {
        keys.iter().map(|key| self.head(bucket, key, &GetOptions::default())).collect()
    }

    /// Stores many objects, each as [`Objects::put`] does; one result per object, in order. Of several
    /// under one key any may be the last.
    fn put_many(
        &self,
        bucket: &Bucket,
        objects: &[(Key, &[u8])],
        options: &PutOptions,
    ) -> Vec<Result<PutResult>> {
        objects.iter().map(|(key, body)| self.put(bucket, key, body, options)).collect()
    }
}

/// The tags of objects.
pub trait ObjectTags {
    /// The tags of an object, or of a `version` of it. Errors: as [`Objects::get`].
    fn tags(&self, bucket: &Bucket, key: &Key, version: Option<&VersionId>) -> Result<Tags>;

    /// Replaces the tags of an object, or of a `version` of it; its modification time stays.
    /// Errors: as [`Objects::get`], and `InvalidTag`.
    fn set_tags(&self, bucket: &Bucket, key: &Key, version: Option<&VersionId>, tags: &Tags) -> Result<()>;
}

/// Buckets that keep old versions.
pub trait ObjectVersions {
    /// Whether the bucket keeps old versions. Errors: `NoSuchBucket`.
    fn versioning(&self, bucket: &Bucket) -> Result<Versioning>;

    /// Has the bucket keep old versions from now on, or no longer.
    /// Errors: `NoSuchBucket`; `InvalidArgument` for [`Versioning::Unversioned`], to which there is no
    /// way back; `NotImplemented` where the store cannot keep them.
    fn set_versioning(&self, bucket: &Bucket, versioning: Versioning) -> Result<()>;

    /// One page of all versions and delete markers, by key and then from the newest to the oldest.
    /// Errors: `NoSuchBucket`.
    fn list_versions(&self, bucket: &Bucket, query: &VersionsQuery) -> Result<VersionListing>;
}

/// Objects that are put in parts.
pub trait MultipartUploads: Objects {
    /// The parts that an object was completed of, by number; none for one that was put whole.
    /// Errors: as [`Objects::get`].
    fn object_parts(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<Vec<ObjectPart>>;

    /// Starts a multipart upload. Errors: `NoSuchBucket`.
    fn create_upload(&self, bucket: &Bucket, key: &Key, options: &PutOptions) -> Result<UploadId>;

    /// Starts one part (`number` 1 to 10,000); a later part of the same number replaces an earlier.
    /// Errors: `NoSuchUpload`, `InvalidArgument`.
    fn part_writer(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        number: u16,
        options: &PartOptions,
    ) -> Result<Box<dyn Writer>>;

    /// Fills a part from (a range of) an object that exists. Errors: `NoSuchUpload`, `NoSuchKey`,
    /// `InvalidRange`.
    fn copy_part(
        &self,
        from: (&Bucket, &Key),
        options: &GetOptions,
        (bucket, key, upload, number): (&Bucket, &Key, &UploadId, u16),
    ) -> Result<PutResult> {
        let object = self.get(from.0, from.1, options)?;
        let part = PartOptions { size_hint: Some(object.content.len()), ..Default::default() };
        let mut writer = self.part_writer(bucket, key, upload, number, &part)?;
        object.content.for_each_chunk(|chunk| writer.write(chunk))?;
        writer.commit(&Expected::default())
    }

    /// The parts an upload has so far, by number. Errors: `NoSuchUpload`.
    fn list_parts(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        query: &PartsQuery,
    ) -> Result<PartListing>;

    /// Uploads in progress, by key and then by start. Errors: `NoSuchBucket`.
    fn list_uploads(&self, bucket: &Bucket, query: &UploadsQuery) -> Result<UploadListing>;

    /// Publishes the object made of `parts`, which must rise in number and match what was sent. Sent again
    /// with as many parts it answers the same, while the object is the one at `key`.
    /// Errors: `NoSuchUpload`, `InvalidPart`, `InvalidPartOrder`, `EntityTooSmall`, `BadDigest`,
    /// `IncompleteBody`, `PreconditionFailed`.
    fn complete_upload(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        parts: &[CompletedPart],
        options: &CompleteOptions,
    ) -> Result<PutResult>;

    /// Forgets an upload and its parts. Errors: `NoSuchUpload`.
    fn abort_upload(&self, bucket: &Bucket, key: &Key, upload: &UploadId) -> Result<()>;
}

/// One object of a batch, into memory of its own.
fn get_whole<S: Objects + ?Sized>(store: &S, bucket: &Bucket, key: &Key) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    store.read(bucket, key, &GetOptions::default(), &mut body)?;
    Ok(body)
}
