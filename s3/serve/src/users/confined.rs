//! A store that enforces the permissions of one user: the allowed buckets and keys, read-only access, and the
//! permissions that the kernel grants the user. The S3 layer accesses the store of a restricted user only through this
//! type, so no operation can omit the checks.

use std::sync::Arc;

use fordway_store::{
    Bucket, BucketDocumentKind, BucketDocumentOperations, BucketInfo, CommitFailure, CompleteOptions,
    CompletedPart, CopyOptions, DeleteOptions, DeleteResult, Error, ErrorKind, ExpectedContent,
    FileServerProbe, GetOptions, Key, ListQuery, LockConfiguration, MultipartUploadOperations,
    ObjectBatchOperations, ObjectInfo, ObjectListing, ObjectLockOperations, ObjectPart,
    ObjectRenameOperations, ObjectTagOperations, ObjectVersionOperations, Objects, OpenObject, PartListing,
    PartOptions, PartsQuery, PutOptions, PutResult, RenameOptions, Result, Retention, Store, Tags, UploadId,
    UploadListing, UploadsQuery, VersionId, VersionListing, VersioningState, VersionsQuery, Writer,
};
use fordway_sys::{Errno, ImpersonatedUser};

use crate::users::file::UserEntry;
use crate::users::{AnonymousUser, StoreOpenFunction};

/// The advice to users whose access key lacks a permission.
const OTHER_KEY: &str = "use another key, or ask the gateway's operator";

/// The restrictions that the credentials file sets for a user or a role, in addition to the kernel's permissions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AccessLimits {
    /// Patterns of bucket names; `None` allows all buckets.
    pub(super) buckets: Option<Vec<String>>,
    /// Allowed prefixes of keys; `None` allows all keys.
    pub(super) prefixes: Option<Vec<String>>,
    pub(super) read_only: bool,
}

impl AccessLimits {
    fn allows(&self, bucket: &Bucket) -> bool {
        self.buckets
            .as_ref()
            .is_none_or(|patterns| patterns.iter().any(|pattern| fits(pattern, bucket.as_str())))
    }

    /// Checks that the user may access the bucket. Errors: `AccessDenied`.
    pub(super) fn admit(&self, bucket: &Bucket) -> Result<()> {
        match self.allows(bucket) {
            true => Ok(()),
            false => {
                let why = format!("this access key may not access the bucket {bucket}; {OTHER_KEY}");
                Err(Error::new(ErrorKind::AccessDenied, why))
            }
        }
    }

    /// Checks that the user may access keys that start with `start`, which is a key or the prefix of a listing. Errors:
    /// `AccessDenied`.
    pub(super) fn admit_keys(&self, start: &str) -> Result<()> {
        let is_within =
            |prefixes: &Vec<String>| prefixes.iter().any(|prefix| start.starts_with(prefix.as_str()));
        match self.prefixes.as_ref().is_none_or(is_within) {
            true => Ok(()),
            false => {
                let why = "the key does not start with a prefix of this access key; use the prefixes in the users file";
                Err(Error::new(ErrorKind::AccessDenied, why))
            }
        }
    }

    /// Checks that the user may change the bucket as a whole. Errors: `AccessDenied`.
    pub(super) fn admit_whole(&self) -> Result<()> {
        match self.prefixes {
            None => Ok(()),
            Some(_) => {
                let why = format!(
                    "this access key may change keys below its prefixes, but not buckets; {OTHER_KEY}"
                );
                Err(Error::new(ErrorKind::AccessDenied, why))
            }
        }
    }

    /// Checks that the user is not restricted to reading. Errors: `AccessDenied`.
    pub(super) fn admit_change(&self) -> Result<()> {
        match self.read_only {
            false => Ok(()),
            true => {
                let why = format!("this access key is read-only; {OTHER_KEY}");
                Err(Error::new(ErrorKind::AccessDenied, why))
            }
        }
    }
}

/// A store that enforces a user's limits, and that acts with the permissions of the user's role.
pub(super) struct ConfinedStore {
    inner: Arc<dyn Store>,
    role: Option<Arc<ImpersonatedUser>>,
    limits: AccessLimits,
}

impl ConfinedStore {
    /// Opens the store as the user, and wraps the store only if there are restrictions to enforce. Errors: the errors
    /// of opening the directory; `AccessDenied` if the gateway is not permitted to act as the user.
    pub(super) fn open(entry: &UserEntry, open: &StoreOpenFunction) -> Result<Arc<dyn Store>> {
        let role = match entry.acts_as() {
            Some(peer) => Some(Arc::new(ImpersonatedUser::new(&peer).map_err(not_allowed)?)),
            None => None,
        };
        // A user with a list of buckets must not reach other buckets through a symbolic link inside an allowed bucket.
        let open = || match (open()?, &entry.buckets) {
            (store, Some(_)) => Ok(store.within_buckets()?.unwrap_or(store)),
            (store, None) => Ok(store),
        };
        let inner = play(role.as_deref(), open).map_err(|error: Error| {
            let why = format!("the user {:?} cannot open the directory: {}", entry.name, error.detail());
            Error::new(error.kind(), why).caused_by(error)
        })?;
        let (buckets, prefixes) = (entry.buckets.clone(), entry.prefixes.clone());
        let limits = AccessLimits { buckets, prefixes, read_only: entry.read_only };
        match role.is_none() && limits == AccessLimits::default() {
            true => Ok(inner),
            false => Ok(Arc::new(ConfinedStore { inner, role, limits })),
        }
    }

    /// Opens the store as the user for anonymous requests. The store never follows symbolic links to other buckets,
    /// because the rules of those buckets would not be checked. Errors: as for [`ConfinedStore::open`].
    pub(super) fn open_as(user: &AnonymousUser, open: &StoreOpenFunction) -> Result<Arc<dyn Store>> {
        let role = user.acts_as.as_ref().map(|peer| ImpersonatedUser::new(peer).map(Arc::new)).transpose();
        let role = role.map_err(not_allowed)?;
        let opened = play(role.as_deref(), || {
            let store = open()?;
            Ok(store.within_buckets()?.unwrap_or(store))
        });
        let inner = opened.map_err(|error: Error| {
            let why = format!("the user {:?} cannot open the directory: {}", user.name, error.detail());
            Error::new(error.kind(), why).caused_by(error)
        })?;
        Ok(Arc::new(ConfinedStore { inner, role, limits: AccessLimits::default() }))
    }

    /// Calls the store for an operation that changes nothing. Errors: `AccessDenied`.
    fn read<T>(&self, bucket: &Bucket, call: impl FnOnce(&dyn Store) -> Result<T>) -> Result<T> {
        self.limits.admit(bucket)?;
        play(self.role.as_deref(), || call(&*self.inner))
    }

    /// Calls the store for an operation that may make changes. Errors: `AccessDenied`.
    fn write<T>(&self, bucket: &Bucket, call: impl FnOnce(&dyn Store) -> Result<T>) -> Result<T> {
        self.limits.admit_change()?;
        self.read(bucket, call)
    }

    fn confine(&self, writer: Box<dyn Writer>) -> Box<dyn Writer> {
        match &self.role {
            Some(role) => confined(writer, role.clone()),
            None => writer,
        }
    }
}

fn confined(writer: Box<dyn Writer>, role: Arc<ImpersonatedUser>) -> Box<dyn Writer> {
    Box::new(ConfinedWriter { inner: Some(writer), role })
}

/// Runs `work` as the user that `role` impersonates, or as the gateway's own user if there is no role.
fn play<T>(role: Option<&ImpersonatedUser>, work: impl FnOnce() -> Result<T>) -> Result<T> {
    match role {
        Some(role) => role.play(work).map_err(not_allowed)?,
        None => work(),
    }
}

fn not_allowed(errno: Errno) -> Error {
    let why = "the gateway may not act as another user; it needs CAP_SETUID and CAP_SETGID";
    Error::new(ErrorKind::AccessDenied, why).caused_by(errno)
}

/// Returns whether a string, such as a bucket name, matches a pattern in which each `*` matches any characters.
pub(crate) fn fits(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(start) else { return false };
    let Some((middle, end)) = rest.rsplit_once('*') else { return name.ends_with(rest) };
    for piece in middle.split('*') {
        let Some(at) = name.find(piece) else { return false };
        name = &name[at + piece.len()..];
    }
    name.ends_with(end)
}

impl Objects for ConfinedStore {
    fn lane(&self) -> &'static str {
        self.inner.lane()
    }

    fn list_buckets(&self) -> Result<Vec<BucketInfo>> {
        self.find_buckets(&|_| true, usize::MAX)
    }

    fn find_buckets(&self, wanted: &dyn Fn(&Bucket) -> bool, most: usize) -> Result<Vec<BucketInfo>> {
        let is_allowed = |bucket: &Bucket| wanted(bucket) && self.limits.allows(bucket);
        play(self.role.as_deref(), || self.inner.find_buckets(&is_allowed, most))
    }

    fn create_bucket(&self, bucket: &Bucket) -> Result<()> {
        self.limits.admit_whole()?;
        self.write(bucket, |store| store.create_bucket(bucket))
    }

    fn head_bucket(&self, bucket: &Bucket) -> Result<BucketInfo> {
        self.read(bucket, |store| store.head_bucket(bucket))
    }

    fn delete_bucket(&self, bucket: &Bucket) -> Result<()> {
        self.limits.admit_whole()?;
        self.write(bucket, |store| store.delete_bucket(bucket))
    }

    fn writer(&self, bucket: &Bucket, key: &Key, options: &PutOptions) -> Result<Box<dyn Writer>> {
        self.limits.admit_keys(key.as_str())?;
        self.write(bucket, |store| store.writer(bucket, key, options)).map(|writer| self.confine(writer))
    }

    fn get(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<OpenObject> {
        self.limits.admit_keys(key.as_str())?;
        self.read(bucket, |store| store.get(bucket, key, options))
    }

    fn head(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<ObjectInfo> {
        self.limits.admit_keys(key.as_str())?;
        self.read(bucket, |store| store.head(bucket, key, options))
    }

    fn delete(&self, bucket: &Bucket, key: &Key, options: &DeleteOptions) -> Result<DeleteResult> {
        self.limits.admit_keys(key.as_str())?;
        // Only users who may change the settings of a bucket may bypass a retention.
        let bypass_governance = options.bypass_governance && self.limits.prefixes.is_none();
        let options = DeleteOptions { bypass_governance, ..options.clone() };
        self.write(bucket, |store| store.delete(bucket, key, &options))
    }

    fn copy(
        &self,
        from: (&Bucket, &Key),
        bucket: &Bucket,
        key: &Key,
        options: &CopyOptions,
    ) -> Result<PutResult> {
        self.limits.admit_keys(from.1.as_str())?;
        self.limits.admit_keys(key.as_str())?;
        self.limits.admit(from.0)?;
        self.write(bucket, |store| store.copy(from, bucket, key, options))
    }

    fn list(&self, bucket: &Bucket, query: &ListQuery) -> Result<ObjectListing> {
        self.limits.admit_keys(&query.prefix)?;
        self.read(bucket, |store| store.list(bucket, query))
    }
}

/// Uses the default methods, which process the objects of a batch one by one. The inner store's own methods might use
/// threads that do not act as the user.
impl ObjectBatchOperations for ConfinedStore {}

impl ObjectRenameOperations for ConfinedStore {
    fn rename(&self, bucket: &Bucket, from: &Key, to: &Key, options: &RenameOptions) -> Result<()> {
        self.limits.admit_keys(from.as_str())?;
        self.limits.admit_keys(to.as_str())?;
        self.write(bucket, |store| store.rename(bucket, from, to, options))
    }
}

impl ObjectTagOperations for ConfinedStore {
    fn tags(&self, bucket: &Bucket, key: &Key, version: Option<&VersionId>) -> Result<Tags> {
        self.limits.admit_keys(key.as_str())?;
        self.read(bucket, |store| store.tags(bucket, key, version))
    }

    fn set_tags(&self, bucket: &Bucket, key: &Key, version: Option<&VersionId>, tags: &Tags) -> Result<()> {
        self.limits.admit_keys(key.as_str())?;
        self.write(bucket, |store| store.set_tags(bucket, key, version, tags))
    }
}

impl ObjectVersionOperations for ConfinedStore {
    fn versioning(&self, bucket: &Bucket) -> Result<VersioningState> {
        self.read(bucket, |store| store.versioning(bucket))
    }

    fn set_versioning(&self, bucket: &Bucket, versioning: VersioningState) -> Result<()> {
        self.limits.admit_whole()?;
        self.write(bucket, |store| store.set_versioning(bucket, versioning))
    }

    fn list_versions(&self, bucket: &Bucket, query: &VersionsQuery) -> Result<VersionListing> {
        self.limits.admit_keys(&query.prefix)?;
        self.read(bucket, |store| store.list_versions(bucket, query))
    }
}

impl ObjectLockOperations for ConfinedStore {
    fn lock_configuration(&self, bucket: &Bucket) -> Result<Option<LockConfiguration>> {
        self.read(bucket, |store| store.lock_configuration(bucket))
    }

    fn set_lock_configuration(&self, bucket: &Bucket, configuration: &LockConfiguration) -> Result<()> {
        self.limits.admit_whole()?;
        self.write(bucket, |store| store.set_lock_configuration(bucket, configuration))
    }

    fn set_retention(
        &self,
        bucket: &Bucket,
        key: &Key,
        version: Option<&VersionId>,
        retention: Option<Retention>,
        bypass: bool,
    ) -> Result<()> {
        self.limits.admit_keys(key.as_str())?;
        if bypass {
            self.limits.admit_whole()?;
        }
        self.write(bucket, |store| store.set_retention(bucket, key, version, retention, bypass))
    }

    fn set_legal_hold(
        &self,
        bucket: &Bucket,
        key: &Key,
        version: Option<&VersionId>,
        is_on: bool,
    ) -> Result<()> {
        self.limits.admit_keys(key.as_str())?;
        self.write(bucket, |store| store.set_legal_hold(bucket, key, version, is_on))
    }
}

impl BucketDocumentOperations for ConfinedStore {
    fn document(&self, bucket: &Bucket, kind: &BucketDocumentKind) -> Result<Option<Vec<u8>>> {
        self.read(bucket, |store| store.document(bucket, kind))
    }

    fn set_document(&self, bucket: &Bucket, kind: &BucketDocumentKind, document: &[u8]) -> Result<()> {
        self.limits.admit_whole()?;
        self.write(bucket, |store| store.set_document(bucket, kind, document))
    }

    fn delete_document(&self, bucket: &Bucket, kind: &BucketDocumentKind) -> Result<()> {
        self.limits.admit_whole()?;
        self.write(bucket, |store| store.delete_document(bucket, kind))
    }

    fn bucket_owner(&self, bucket: &Bucket) -> Result<Option<u32>> {
        self.read(bucket, |store| store.bucket_owner(bucket))
    }
}

impl MultipartUploadOperations for ConfinedStore {
    fn object_parts(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<Vec<ObjectPart>> {
        self.limits.admit_keys(key.as_str())?;
        self.read(bucket, |store| store.object_parts(bucket, key, options))
    }

    fn create_upload(&self, bucket: &Bucket, key: &Key, options: &PutOptions) -> Result<UploadId> {
        self.limits.admit_keys(key.as_str())?;
        self.write(bucket, |store| store.create_upload(bucket, key, options))
    }

    fn part_writer(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        number: u16,
        options: &PartOptions,
    ) -> Result<Box<dyn Writer>> {
        self.limits.admit_keys(key.as_str())?;
        self.write(bucket, |store| store.part_writer(bucket, key, upload, number, options))
            .map(|writer| self.confine(writer))
    }

    fn copy_part(
        &self,
        from: (&Bucket, &Key),
        options: &GetOptions,
        to: (&Bucket, &Key, &UploadId, u16),
    ) -> Result<PutResult> {
        self.limits.admit_keys(from.1.as_str())?;
        self.limits.admit_keys(to.1.as_str())?;
        self.limits.admit(from.0)?;
        self.write(to.0, |store| store.copy_part(from, options, to))
    }

    fn list_parts(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        query: &PartsQuery,
    ) -> Result<PartListing> {
        self.limits.admit_keys(key.as_str())?;
        self.read(bucket, |store| store.list_parts(bucket, key, upload, query))
    }

    fn list_uploads(&self, bucket: &Bucket, query: &UploadsQuery) -> Result<UploadListing> {
        self.limits.admit_keys(&query.prefix)?;
        self.read(bucket, |store| store.list_uploads(bucket, query))
    }

    fn complete_upload(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        parts: &[CompletedPart],
        options: &CompleteOptions,
    ) -> Result<PutResult> {
        self.limits.admit_keys(key.as_str())?;
        self.write(bucket, |store| store.complete_upload(bucket, key, upload, parts, options))
    }

    fn abort_upload(&self, bucket: &Bucket, key: &Key, upload: &UploadId) -> Result<()> {
        self.limits.admit_keys(key.as_str())?;
        self.write(bucket, |store| store.abort_upload(bucket, key, upload))
    }
}

impl Store for ConfinedStore {
    fn file_server(&self, bucket: &str) -> Option<FileServerProbe> {
        self.inner.file_server(bucket)
    }
}

/// Writes an object as the user. The user's quotas therefore apply, and unpublished staged files are removed with the
/// user's permissions.
struct ConfinedWriter {
    /// The writer of the store; `None` after the commit.
    inner: Option<Box<dyn Writer>>,
    role: Arc<ImpersonatedUser>,
}

impl Writer for ConfinedWriter {
    fn write(&mut self, data: &[u8]) -> Result<()> {
        let ended = || Error::new(ErrorKind::Internal, "the writer was used after commit or abort");
        let writer = self.inner.as_mut().ok_or_else(ended)?;
        play(Some(&self.role), || writer.write(data))
    }

    fn note_form(&mut self) {
        if let Some(writer) = &mut self.inner {
            writer.note_form();
        }
    }

    fn commit(mut self: Box<Self>, expected: &ExpectedContent) -> Result<PutResult> {
        let ended = || Error::new(ErrorKind::Internal, "the writer was used after commit or abort");
        let writer = self.inner.take().ok_or_else(ended)?;
        play(Some(&self.role), || writer.commit(expected))
    }

    fn try_commit(mut self: Box<Self>, expected: &ExpectedContent) -> Result<PutResult, CommitFailure> {
        let ended = || Error::new(ErrorKind::Internal, "the writer was used after commit or abort");
        let writer = self.inner.take().ok_or_else(ended).map_err(CommitFailure::Failed)?;
        let done =
            play(Some(&self.role), || Ok(writer.try_commit(expected))).map_err(CommitFailure::Failed)?;
        done.map_err(|why| match why {
            CommitFailure::Locked(writer, error) => {
                CommitFailure::Locked(confined(writer, self.role.clone()), error)
            }
            failed => failed,
        })
    }
}

impl Drop for ConfinedWriter {
    fn drop(&mut self) {
        if let Some(writer) = self.inner.take()
            && let Err(errno) = self.role.play(|| drop(writer))
        {
            tracing::error!(%errno, "a staged file could not be removed as its user");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_whole_names() {
        for (pattern, name) in [
            ("a", "a"),
            ("b-*", "b-"),
            ("b-*", "b-x"),
            ("*", "abc"),
            ("a*c", "abc"),
            ("*b*", "abc"),
            ("a*b*c", "aXbYc"),
        ] {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("a", "ab"), ("b-*", "b"), ("b-*", "ab-x"), ("a*a", "a"), ("*b*c", "acb"), ("ab*b", "ab")]
        {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }
}
