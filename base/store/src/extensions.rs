//! The features of a store beyond buckets and objects. [`Store`](crate::Store) combines all of them.
//!
//! A document contains a setting of a whole bucket, such as its tags or its CORS rules, in S3's own XML or JSON. A
//! store keeps the bytes of a document without parsing them, so a new kind of document needs no change in the stores or
//! in the node protocol.
//!
//! Tags of objects are names and values that a writer can change without rewriting the object.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use crate::{
    Bucket, CompleteOptions, CompletedPart, Conditions, DeleteOptions, DeleteResult, Error, ErrorKind,
    ExpectedContent, GetOptions, Key, ObjectInfo, ObjectPart, Objects, PartListing, PartOptions, PartsQuery,
    PutOptions, PutResult, RenameOptions, Result, UploadId, UploadListing, UploadsQuery, VersionId,
    VersionListing, VersioningState, VersionsQuery, Writer,
};

/// Calls on many objects. The default implementations process objects one by one. Stores that have a faster way
/// override these implementations.
pub trait ObjectBatchOperations: Objects {
    /// Removes many objects; returns one result per key, in order.
    fn delete_many(&self, bucket: &Bucket, keys: &[Key]) -> Vec<Result<DeleteResult>> {
        one_by_one(keys, |key| self.delete(bucket, key, &DeleteOptions::default()))
    }

    /// Removes many versions of objects permanently, each as with [`Objects::delete`]; returns one result per version,
    /// in order.
    fn delete_versions(&self, bucket: &Bucket, versions: &[(Key, VersionId)]) -> Vec<Result<DeleteResult>> {
        one_by_one(versions, |(key, version)| {
            let options = DeleteOptions { version: Some(version.clone()), ..Default::default() };
            self.delete(bucket, key, &options)
        })
    }

    /// Reads many whole objects; returns one result per key, in order.
    fn get_many(&self, bucket: &Bucket, keys: &[Key]) -> Vec<Result<Vec<u8>>> {
        one_by_one(keys, |key| get_whole(self, bucket, key))
    }

    /// Returns the properties of many objects: one result per key, in order.
    fn head_many(&self, bucket: &Bucket, keys: &[Key]) -> Vec<Result<ObjectInfo>> {
        one_by_one(keys, |key| self.head(bucket, key, &GetOptions::default()))
    }

    /// Stores many objects, each as with [`Objects::put`]; returns one result per object, in order. If several objects
    /// have the same key, any of them may remain.
    fn put_many(
        &self,
        bucket: &Bucket,
        objects: &[(Key, &[u8])],
        options: &PutOptions,
    ) -> Vec<Result<PutResult>> {
        one_by_one(objects, |(key, body)| self.put(bucket, key, body, options))
    }
}

/// The call that renames objects.
pub trait ObjectRenameOperations {
    /// Renames an object within its bucket, replacing any object under the new key. Readers see the object under either
    /// the old or the new key. The object itself does not change: its content, ETag, metadata, tags and modification
    /// time stay the same. Errors: `NoSuchKey` for a missing source; `PreconditionFailed`; `InvalidArgument` if both
    /// keys are the same; `NotImplemented` for keys that the store cannot rename, and in a bucket that keeps versions,
    /// because old versions belong to their key.
    fn rename(&self, bucket: &Bucket, from: &Key, to: &Key, options: &RenameOptions) -> Result<()>;
}

/// The calls that return and replace the tags of objects.
pub trait ObjectTagOperations {
    /// Returns the tags of an object, or of a `version` of it. Errors: as for [`Objects::get`].
    fn tags(&self, bucket: &Bucket, key: &Key, version: Option<&VersionId>) -> Result<Tags>;

    /// Replaces the tags of an object, or of a `version` of it; the object's modification time does not change. Errors:
    /// as for [`Objects::get`], and `InvalidTag`.
    fn set_tags(&self, bucket: &Bucket, key: &Key, version: Option<&VersionId>, tags: &Tags) -> Result<()>;
}

/// The calls on the versioning state of buckets, and the listing of versions.
pub trait ObjectVersionOperations {
    /// Returns whether the bucket keeps old versions. Errors: `NoSuchBucket`.
    fn versioning(&self, bucket: &Bucket) -> Result<VersioningState>;

    /// Turns versioning on, or suspends it.
    /// Errors: `NoSuchBucket`; `InvalidArgument` for [`VersioningState::Unversioned`], to which no bucket can return;
    /// `NotImplemented` if the store cannot keep versions.
    fn set_versioning(&self, bucket: &Bucket, versioning: VersioningState) -> Result<()>;

    /// Returns one page of all versions and delete markers, by key and then from the newest to the oldest. Errors:
    /// `NoSuchBucket`.
    fn list_versions(&self, bucket: &Bucket, query: &VersionsQuery) -> Result<VersionListing>;
}

/// The calls for multipart uploads.
pub trait MultipartUploadOperations: Objects {
    /// Returns the parts that an object was completed from, by number; an empty list if the object was put as a whole.
    /// Errors: as for [`Objects::get`].
    fn object_parts(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<Vec<ObjectPart>>;

    /// Starts a multipart upload. Errors: `NoSuchBucket`.
    fn create_upload(&self, bucket: &Bucket, key: &Key, options: &PutOptions) -> Result<UploadId>;

    /// Starts a part (`number` 1 to 10,000); a later part with the same number replaces the earlier part. Errors:
    /// `NoSuchUpload`, `InvalidArgument`.
    fn part_writer(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        number: u16,
        options: &PartOptions,
    ) -> Result<Box<dyn Writer>>;

    /// Fills a part from an existing object or a range of it. Errors: `NoSuchUpload`, `NoSuchKey`, `InvalidRange`.
    fn copy_part(
        &self,
        from: (&Bucket, &Key),
        options: &GetOptions,
        (bucket, key, upload, number): (&Bucket, &Key, &UploadId, u16),
    ) -> Result<PutResult> {
        let object = self.get(from.0, from.1, options).map_err(Conditions::of_copy_source)?;
        let part = PartOptions { size_hint: Some(object.content.len()), ..Default::default() };
        let mut writer = self.part_writer(bucket, key, upload, number, &part)?;
        object.content.for_each_chunk(|chunk| writer.write(chunk))?;
        writer.commit(&ExpectedContent::default())
    }

    /// Returns the parts that were uploaded so far, by number. Errors: `NoSuchUpload`.
    fn list_parts(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        query: &PartsQuery,
    ) -> Result<PartListing>;

    /// Returns the uploads in progress, by key and then by start. Errors: `NoSuchBucket`.
    fn list_uploads(&self, bucket: &Bucket, query: &UploadsQuery) -> Result<UploadListing>;

    /// Publishes the object that consists of `parts`, which must be in ascending order of number and match the uploaded
    /// parts. A repeated call with the same number of parts returns the result of the first call, as long as `key`
    /// still refers to that object. Errors: `NoSuchUpload`, `InvalidPart`, `InvalidPartOrder`, `EntityTooSmall`,
    /// `BadDigest`, `IncompleteBody`, `PreconditionFailed`.
    fn complete_upload(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        parts: &[CompletedPart],
        options: &CompleteOptions,
    ) -> Result<PutResult>;

    /// Removes an upload and its parts. Errors: `NoSuchUpload`.
    fn abort_upload(&self, bucket: &Bucket, key: &Key, upload: &UploadId) -> Result<()>;
}

/// Runs `call` for each item of a batch. After an interrupt, the remaining items are skipped, because a further call
/// could block again, and no further signal would end it.
fn one_by_one<I, T>(items: &[I], call: impl Fn(&I) -> Result<T>) -> Vec<Result<T>> {
    let mut is_interrupted = false;
    let one = |item| match is_interrupted {
        true => Err(ErrorKind::Interrupted.into()),
        false => {
            let result = call(item);
            is_interrupted =
                result.as_ref().is_err_and(|error: &Error| error.kind() == ErrorKind::Interrupted);
            result
        }
    };
    items.iter().map(one).collect()
}

/// Reads one object of a batch into a new buffer.
fn get_whole<S: Objects + ?Sized>(store: &S, bucket: &Bucket, key: &Key) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    store.read(bucket, key, &GetOptions::default(), &mut body)?;
    Ok(body)
}

/// The maximum size of a document, in bytes. AWS allows the same size for CORS rules, its longest kind of document.
pub const MAX_DOCUMENT_BYTES: usize = 64 * 1024;
/// The maximum length of a kind's name, in bytes.
const MAX_KIND_BYTES: usize = 32;

/// The kind of a document: the name of the S3 subresource, such as `cors` or `tagging`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BucketDocumentKind(Cow<'static, str>);

impl BucketDocumentKind {
    /// Creates a kind whose name is a constant in the program. `name` must consist of lower-case letters and hyphens,
    /// which is not checked.
    pub const fn known(name: &'static str) -> Self {
        BucketDocumentKind(Cow::Borrowed(name))
    }

    /// Returns the kind with this name. Errors: `InvalidArgument` unless the name consists of 1 to 32 lower-case
    /// letters and hyphens.
    pub fn new(name: &str) -> Result<Self> {
        let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
        if name.is_empty() || name.len() > MAX_KIND_BYTES || !is_name {
            let why = format!("{name:?} is not a kind of document; write lower-case letters and hyphens");
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        Ok(BucketDocumentKind(Cow::Owned(name.to_owned())))
    }

    /// Returns the name as a string.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether documents of this kind control access to the bucket.
    pub fn decides_access(&self) -> bool {
        ["acl", "ownership", "policy", "public-access-block"].contains(&self.as_str())
    }

    /// Returns whether only root and the bucket's owner can set documents of this kind. A document that another user
    /// wrote is ignored.
    pub fn is_owners(&self) -> bool {
        self.decides_access() || self.as_str() == "notification"
    }

    /// Returns the root element of the document that S3 returns for a bucket without this setting. Putting a document
    /// with only this element removes the setting. Returns `None` for a kind that S3 reports as missing, with an error.
    pub fn absent_root(&self) -> Option<&'static str> {
        match self.as_str() {
            "notification" => Some("NotificationConfiguration"),
            _ => None,
        }
    }
}

impl fmt::Display for BucketDocumentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The documents of buckets: at most one of each kind per bucket.
pub trait BucketDocumentOperations {
    /// Returns the document; `None` if the bucket does not have the document. Errors: `NoSuchBucket`.
    fn document(&self, bucket: &Bucket, kind: &BucketDocumentKind) -> Result<Option<Vec<u8>>>;

    /// Sets or replaces the document; readers see either the old or the new document. The bytes are not checked.
    /// Errors: `NoSuchBucket`; `EntityTooLarge` beyond [`MAX_DOCUMENT_BYTES`]; `AccessDenied` for users without
    /// permission to change the bucket's settings.
    fn set_document(&self, bucket: &Bucket, kind: &BucketDocumentKind, document: &[u8]) -> Result<()>;

    /// Removes the document; removing a missing document succeeds. Errors: as for
    /// [`BucketDocumentOperations::set_document`].
    fn delete_document(&self, bucket: &Bucket, kind: &BucketDocumentKind) -> Result<()>;

    /// Returns the user ID of the bucket's owner; `None` if the store has no owners. Errors: `NoSuchBucket`.
    fn bucket_owner(&self, bucket: &Bucket) -> Result<Option<u32>>;
}

/// Checks the size of a document. Errors: `EntityTooLarge` beyond [`MAX_DOCUMENT_BYTES`].
pub fn check_document(document: &[u8]) -> Result<()> {
    if document.len() <= MAX_DOCUMENT_BYTES {
        return Ok(());
    }
    let why =
        format!("a document of a bucket has at most {MAX_DOCUMENT_BYTES} bytes, this one {}", document.len());
    Err(Error::new(ErrorKind::EntityTooLarge, why))
}

/// A set of tags: values by name.
pub type Tags = BTreeMap<String, String>;

/// The maximum number of tags per object (S3's limit).
pub const MAX_TAGS: usize = 10;
/// The maximum length of a tag's name, in characters.
const MAX_NAME_CHARS: usize = 128;
/// The maximum length of a tag's value, in characters.
const MAX_VALUE_CHARS: usize = 256;

/// Checks tags against S3's limits: at most 10 tags, with names of 1 to 128 and values of up to 256 characters,
/// consisting of letters, digits, blanks and `+-=._:/@`. Names that begin with `aws:` are reserved. Errors:
/// `InvalidTag`.
pub fn check_tags(tags: &Tags) -> Result<()> {
    let refuse = |why: String| Err(Error::new(ErrorKind::InvalidTag, why));
    if tags.len() > MAX_TAGS {
        return refuse(format!("{} tags are more than {MAX_TAGS}", tags.len()));
    }
    tags.iter().try_for_each(|(name, value)| check_tag(name, value))
}

/// Checks one tag against S3's limits. Errors: `InvalidTag`.
fn check_tag(name: &str, value: &str) -> Result<()> {
    let refuse = |why: String| Err(Error::new(ErrorKind::InvalidTag, why));
    if !(1..=MAX_NAME_CHARS).contains(&name.chars().count()) {
        return refuse(format!("the tag name {name:?} must be 1 to {MAX_NAME_CHARS} characters long"));
    }
    if is_reserved_tag(name) {
        return refuse(format!(
            "the tag name {name:?} begins with `aws:`, which S3 reserves; use another name"
        ));
    }
    if value.chars().count() > MAX_VALUE_CHARS {
        return refuse(format!("the value of the tag {name:?} has over {MAX_VALUE_CHARS} characters"));
    }
    match name.chars().chain(value.chars()).find(|character| !is_of_tags(*character)) {
        Some(character) => refuse(format!(
            "the tag {name:?} has the character {character:?}; use letters, digits, blanks and {TAG_PUNCTUATION}"
        )),
        None => Ok(()),
    }
}

/// Returns whether a tag's name has the prefix that S3 reserves for its own tags, in any case.
pub fn is_reserved_tag(name: &str) -> bool {
    name.get(..4).is_some_and(|prefix| prefix.eq_ignore_ascii_case("aws:"))
}

/// Returns whether S3 allows the character in the name or value of a tag: letters, digits, blanks, and `+-=._:/@`.
pub fn is_of_tags(character: char) -> bool {
    character.is_alphanumeric() || character.is_whitespace() || TAG_PUNCTUATION.contains(character)
}

/// The punctuation in tags (see "Categorizing your objects using tags" in the S3 user guide).
const TAG_PUNCTUATION: &str = "+-=._:/@";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_ends_a_batch() {
        let called = std::cell::Cell::new(0);
        let results = one_by_one(&[1, 2, 3, 4], |item| {
            called.set(called.get() + 1);
            match item {
                1 => Ok(()),
                2 => Err(Error::from(ErrorKind::Io)),
                _ => Err(Error::from(ErrorKind::Interrupted)),
            }
        });
        let kinds: Vec<_> =
            results.into_iter().map(|result| result.err().map(|error| error.kind())).collect();
        let interrupted = Some(ErrorKind::Interrupted);
        assert_eq!(kinds, [None, Some(ErrorKind::Io), interrupted, interrupted]);
        assert_eq!(called.get(), 3);
    }

    #[test]
    fn kinds_are_plain_names() {
        for name in ["cors", "object-lock", "a"] {
            assert_eq!(BucketDocumentKind::new(name).unwrap().as_str(), name);
        }
        let long = "a".repeat(33);
        for name in ["", "..", "a/b", "CORS", "a.b", "a b", "c\0", &long] {
            assert_eq!(
                BucketDocumentKind::new(name).unwrap_err().kind(),
                ErrorKind::InvalidArgument,
                "{name:?}"
            );
        }
    }

    #[test]
    fn documents_have_an_end() {
        assert!(check_document(&[0; MAX_DOCUMENT_BYTES]).is_ok());
        assert_eq!(
            check_document(&[0; MAX_DOCUMENT_BYTES + 1]).unwrap_err().kind(),
            ErrorKind::EntityTooLarge
        );
    }

    #[test]
    fn limits() {
        let tags = |count: usize, name: usize, value: usize| -> Tags {
            (0..count).map(|at| (format!("{at:x>name$}"), "ä".repeat(value))).collect()
        };
        assert!(check_tags(&tags(10, 128, 256)).is_ok());
        for bad in
            [tags(11, 2, 0), tags(1, 129, 0), tags(1, 1, 257), Tags::from([(String::new(), "v".into())])]
        {
            assert_eq!(check_tags(&bad).unwrap_err().kind(), ErrorKind::InvalidTag);
        }
    }
}
