//! The store of the embedded lane, which follows the path of its root. A program may run for months, while its scratch
//! directory is purged and created again. The store keeps its root open, so without these checks it would list an empty
//! directory, or write into a directory that no longer has a name, until the program ends.
//!
//! Calls that find their bucket make no check, and no system call in addition to the store's. See
//! [`RootPathStore::look`] for the calls that check.

use std::io::ErrorKind::{NotADirectory, NotFound};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use fordway_posix::{PosixConfig, PosixStore, is_stale};
use fordway_store::{
    Bucket, BucketDocumentKind, BucketDocumentOperations, BucketInfo, ByteRange, CompleteOptions,
    CompletedPart, CopyOptions, DeleteOptions, DeleteResult, Error, ErrorKind, FileServerProbe, GetOptions,
    Key, ListQuery, LockConfiguration, MultipartUploadOperations, ObjectBatchOperations, ObjectInfo,
    ObjectListing, ObjectLockOperations, ObjectPart, ObjectRenameOperations, ObjectTagOperations,
    ObjectVersionOperations, Objects, OpenObject, PartListing, PartOptions, PartsQuery, PutOptions,
    PutResult, RenameOptions, Result, Retention, Store, Tags, UploadId, UploadListing, UploadsQuery,
    VersionId, VersionListing, VersioningState, VersionsQuery, Writer,
};
use fordway_sys::PerProcess;

/// The minimum time between two checks because of a missing object, which is common.
const MISSING_KEY_CHECK_MS: u64 = 1000;
/// The maximum number of attempts at a call, each of which found that its root had been replaced.
const ATTEMPTS_MAX: usize = 20;

/// A store in the directory that the root's path names now. A call whose bucket is missing is repeated if another
/// directory is at the path. Listing and creating buckets always use the directory at the path.
///
/// A root that was renamed, while another directory took its path, keeps its buckets. Calls for these buckets succeed
/// in the renamed root until a call checks the path.
pub(crate) struct RootPathStore {
    path: PathBuf,
    config: PosixConfig,
    /// The root at the time of opening. It stays open, so that calls need no lock while the root is never replaced.
    first: OpenedRoot,
    is_replaced: AtomicBool,
    /// The directory that has replaced the first root. A forked child looks for this directory again.
    latest: PerProcess<RwLock<Option<OpenedRoot>>>,
    opened: Instant,
    /// The time at which a missing object last caused a check, in milliseconds since `opened`.
    checked_ms: AtomicU64,
    /// The number of roots that were opened.
    opened_count: AtomicU64,
}

/// A root directory.
#[derive(Clone)]
struct OpenedRoot {
    store: PosixStore,
    identity: DirectoryIdentity,
    /// Differs between the roots of a process, even if a file server has given a new root the inode of an old root.
    number: RootNumber,
}

/// The result of a check of the root's path.
enum RootPathCheck {
    /// The root in use is at the path.
    InUse,
    /// Another root is in use now.
    Replaced,
    /// The path could not be looked up, so the root in use stays in use.
    Unknown(std::io::Error),
}

/// Identifies an [`OpenedRoot`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RootNumber(u64);

/// The device and the inode of a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
struct DirectoryIdentity(u64, u64);

impl OpenedRoot {
    /// Opens the root. Errors: as for [`PosixStore::open`].
    fn open(
        path: &Path,
        config: &PosixConfig,
        (identity, number): (DirectoryIdentity, RootNumber),
    ) -> Result<Self> {
        Ok(OpenedRoot { store: PosixStore::open(path, config.clone())?, identity, number })
    }
}

impl RootPathStore {
    /// Opens the store in `path`. Errors: as for [`PosixStore::open`].
    pub(crate) fn open(path: PathBuf, config: PosixConfig) -> Result<Self> {
        // If the directory is replaced before it is opened, the next check opens the new directory again.
        let identity = std::fs::metadata(&path)
            .map_or(DirectoryIdentity(0, 0), |found| DirectoryIdentity(found.dev(), found.ino()));
        let first = OpenedRoot::open(&path, &config, (identity, RootNumber(0)))?;
        Ok(RootPathStore {
            path,
            config,
            first,
            is_replaced: AtomicBool::new(false),
            latest: PerProcess::default(),
            opened: Instant::now(),
            checked_ms: AtomicU64::new(0),
            opened_count: AtomicU64::new(1),
        })
    }

    /// Makes a call to the store. Repeats the call if it failed because the root has been replaced. Errors: the errors
    /// of the call; `Unavailable` if a bucket is missing because its root is missing.
    fn call<T>(&self, mut call: impl FnMut(&PosixStore) -> Result<T>) -> Result<T> {
        // The root may be replaced again during the repeated call.
        for _ in 1..ATTEMPTS_MAX {
            match self.call_once(&mut call)? {
                (used, Err(error)) if self.is_elsewhere(&error, used)? => {}
                (_, done) => return done,
            }
        }
        self.call_once(call)?.1
    }

    /// Makes a call to the store, after a check of the path. Errors: the errors of the call; `Unavailable` if the root
    /// is missing.
    fn call_checked<T>(&self, call: impl FnOnce(&PosixStore) -> Result<T>) -> Result<T> {
        self.look(self.current().number)?;
        self.call_once(call)?.1
    }

    /// Makes a call to the root in use. Also returns the number of this root, because another thread may replace the
    /// root meanwhile. Errors: as for [`RootPathStore::latest`].
    fn call_once<T>(&self, call: impl FnOnce(&PosixStore) -> T) -> Result<(RootNumber, T)> {
        match self.is_replaced.load(Ordering::Acquire) {
            false => Ok((self.first.number, call(&self.first.store))),
            true => {
                let root = self.latest()?;
                Ok((root.number, call(&root.store)))
            }
        }
    }

    /// Returns the root that replaced the first one. A process that was forked after the replacement has not opened
    /// this root yet, and must not use a root that its parent no longer uses. Cost: one check of the path, once in such
    /// a process. Errors: in such a process, errors of [`RootPathStore::look`], and `Unavailable` if the path cannot be
    /// looked up.
    #[cold]
    fn latest(&self) -> Result<OpenedRoot> {
        let latest = self.latest.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(latest) = latest {
            return Ok(latest);
        }
        match self.look(self.first.number)? {
            RootPathCheck::Replaced => Ok(self.current()),
            RootPathCheck::InUse => {
                // The first root is at its path again.
                let mut latest = self.latest.write().unwrap_or_else(PoisonError::into_inner);
                Ok(latest.get_or_insert_with(|| self.first.clone()).clone())
            }
            RootPathCheck::Unknown(error) => {
                let why = format!("looking up {}, which is now a different directory", self.path.display());
                Err(Error::new(ErrorKind::Unavailable, why).caused_by(error))
            }
        }
    }

    /// Returns the root that is in use.
    fn current(&self) -> OpenedRoot {
        let latest = self.latest.read().unwrap_or_else(PoisonError::into_inner);
        latest.as_ref().unwrap_or(&self.first).clone()
    }

    /// Returns whether a call to the root `used` failed with `error` because this root has been replaced. Cost: one
    /// `stat` if a bucket is missing, or another node has removed a file that the call needs; if an object is missing,
    /// at most one per second. Errors: errors of [`RootPathStore::look`]. These errors are ignored if the call failed
    /// because an object is missing.
    #[cold]
    fn is_elsewhere(&self, error: &Error, used: RootNumber) -> Result<bool> {
        match error.kind() {
            ErrorKind::NoSuchBucket => self.is_replaced_now(used),
            // On a network file system, all calls to a root that another node has removed fail in this way.
            _ if is_stale(error) => {
                // Opening a directory makes the client check it at the server, while a `stat` may be answered from a
                // cache. Whether it can be opened does not matter.
                let _ = std::fs::File::open(&self.path);
                self.is_replaced_now(used)
            }
            ErrorKind::NoSuchKey if self.current().number != used => Ok(true),
            // A file that a write needs is missing, such as a directory of the private area.
            ErrorKind::NoSuchKey if !error.detail().is_empty() || self.is_check_due() => {
                Ok(self.is_replaced_now(used).unwrap_or(false))
            }
            _ => Ok(false),
        }
    }

    fn is_check_due(&self) -> bool {
        let now_ms = self.opened.elapsed().as_millis() as u64;
        let checked_ms = self.checked_ms.load(Ordering::Relaxed);
        now_ms.saturating_sub(checked_ms) >= MISSING_KEY_CHECK_MS
            && self.checked_ms.swap(now_ms, Ordering::Relaxed) == checked_ms
    }

    /// Returns whether [`RootPathStore::look`] has found that `used` is no longer in use.
    fn is_replaced_now(&self, used: RootNumber) -> Result<bool> {
        Ok(matches!(self.look(used)?, RootPathCheck::Replaced))
    }

    /// Opens the directory at the path if it is not the root that is in use. Returns whether the root in use differs
    /// from `used`, which is also the case if another thread has already opened the directory. Cost: one `stat` and one
    /// `fstat` if the root is the same. Errors: `Unavailable` if there is no directory; as for [`PosixStore::open`].
    fn look(&self, used: RootNumber) -> Result<RootPathCheck> {
        let current = self.current();
        if current.number != used {
            return Ok(RootPathCheck::Replaced);
        }
        let found = match std::fs::metadata(&self.path) {
            Ok(found) if found.is_dir() => DirectoryIdentity(found.dev(), found.ino()),
            Ok(_) => return Err(self.missing()),
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => {
                return Err(self.missing().caused_by(error));
            }
            // For example, the process has given up the permission to look up its root, but keeps it open.
            Err(error) => return Ok(RootPathCheck::Unknown(error)),
        };
        // A file server may give a new directory the inode of a removed one.
        if found == current.identity && !current.store.is_root_removed() {
            return Ok(RootPathCheck::InUse);
        }
        self.replace(used, found)?;
        Ok(RootPathCheck::Replaced)
    }

    /// Replaces the root `used` with the directory `found` at the path, unless another thread has replaced it. Errors:
    /// as for [`PosixStore::open`].
    fn replace(&self, used: RootNumber, found: DirectoryIdentity) -> Result<()> {
        // Opening takes time, so other threads may use the store meanwhile.
        let number = RootNumber(self.opened_count.fetch_add(1, Ordering::Relaxed));
        let opened = OpenedRoot::open(&self.path, &self.config, (found, number))?;
        let mut latest = self.latest.write().unwrap_or_else(PoisonError::into_inner);
        if latest.as_ref().unwrap_or(&self.first).number == used {
            *latest = Some(opened);
            self.is_replaced.store(true, Ordering::Release);
            tracing::warn!("{} is now a different directory, which was opened", self.path.display());
        }
        Ok(())
    }

    fn missing(&self) -> Error {
        let why = format!("{} is missing; mount it, or restore it", self.path.display());
        Error::new(ErrorKind::Unavailable, why)
    }
}

/// Defines methods that pass their arguments on.
macro_rules! passed_on {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty;)*) => {
        $(fn $name(&self, $($argument: $type),*) -> $result {
            self.call(|store| store.$name($($argument),*))
        })*
    };
}

impl Objects for RootPathStore {
    fn lane(&self) -> &'static str {
        self.first.store.lane()
    }

    fn list_buckets(&self) -> Result<Vec<BucketInfo>> {
        self.call_checked(PosixStore::list_buckets)
    }

    fn create_bucket(&self, bucket: &Bucket) -> Result<()> {
        self.call_checked(|store| store.create_bucket(bucket))
    }

    fn read(&self, bucket: &Bucket, key: &Key, options: &GetOptions, buffer: &mut Vec<u8>) -> Result<u64> {
        self.call(|store| store.read(bucket, key, options, buffer))
    }

    passed_on! {
        fn head_bucket(bucket: &Bucket) -> Result<BucketInfo>;
        fn delete_bucket(bucket: &Bucket) -> Result<()>;
        fn writer(bucket: &Bucket, key: &Key, options: &PutOptions) -> Result<Box<dyn Writer>>;
        fn put(bucket: &Bucket, key: &Key, body: &[u8], options: &PutOptions) -> Result<PutResult>;
        fn get(bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<OpenObject>;
        fn head(bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<ObjectInfo>;
        fn read_ranges(bucket: &Bucket, key: &Key, ranges: &[ByteRange], options: &GetOptions) -> Result<Vec<Vec<u8>>>;
        fn delete(bucket: &Bucket, key: &Key, options: &DeleteOptions) -> Result<DeleteResult>;
        fn copy(from: (&Bucket, &Key), bucket: &Bucket, key: &Key, options: &CopyOptions) -> Result<PutResult>;
        fn list(bucket: &Bucket, query: &ListQuery) -> Result<ObjectListing>;
    }
}

impl ObjectBatchOperations for RootPathStore {
    fn put_many(
        &self,
        bucket: &Bucket,
        objects: &[(Key, &[u8])],
        options: &PutOptions,
    ) -> Vec<Result<PutResult>> {
        let (mut stored, mut refused) = self.put_many_once(bucket, objects, options);
        for _ in 1..ATTEMPTS_MAX {
            if refused.is_empty() {
                break;
            }
            let again: Vec<_> = refused.iter().map(|at| objects[*at].clone()).collect();
            let (results, still) = self.put_many_once(bucket, &again, options);
            let still = still.into_iter().map(|at| refused[at]).collect();
            for (at, result) in refused.into_iter().zip(results) {
                stored[at] = result;
            }
            refused = still;
        }
        stored
    }
}

impl RootPathStore {
    /// Stores the objects in the root in use. Also returns the positions of the objects that failed because this root
    /// has been replaced.
    fn put_many_once(
        &self,
        bucket: &Bucket,
        objects: &[(Key, &[u8])],
        options: &PutOptions,
    ) -> (Vec<Result<PutResult>>, Vec<usize>) {
        let (used, mut stored) = match self.call_once(|store| store.put_many(bucket, objects, options)) {
            Ok(done) => done,
            Err(error) => {
                let of_each = |_: &(Key, &[u8])| Err(Error::new(error.kind(), error.detail()));
                return (objects.iter().map(of_each).collect(), Vec::new());
            }
        };
        let (mut refused, mut is_checked) = (Vec::new(), false);
        for (at, result) in stored.iter_mut().enumerate() {
            let Err(error) = result else { continue };
            if is_checked {
                break;
            }
            // One check is enough for all objects if it finds the root that was used.
            let needs_check = error.kind() == ErrorKind::NoSuchBucket || is_stale(error);
            match self.is_elsewhere(error, used) {
                Ok(true) => refused.push(at),
                Ok(false) => is_checked = needs_check,
                Err(missing) => *result = Err(missing),
            }
        }
        (stored, refused)
    }
}

impl ObjectRenameOperations for RootPathStore {
    passed_on! {
        fn rename(bucket: &Bucket, from: &Key, to: &Key, options: &RenameOptions) -> Result<()>;
    }
}

impl ObjectTagOperations for RootPathStore {
    passed_on! {
        fn tags(bucket: &Bucket, key: &Key, version: Option<&VersionId>) -> Result<Tags>;
        fn set_tags(bucket: &Bucket, key: &Key, version: Option<&VersionId>, tags: &Tags) -> Result<()>;
    }
}

impl ObjectVersionOperations for RootPathStore {
    passed_on! {
        fn versioning(bucket: &Bucket) -> Result<VersioningState>;
        fn set_versioning(bucket: &Bucket, versioning: VersioningState) -> Result<()>;
        fn list_versions(bucket: &Bucket, query: &VersionsQuery) -> Result<VersionListing>;
    }
}

impl ObjectLockOperations for RootPathStore {
    passed_on! {
        fn lock_configuration(bucket: &Bucket) -> Result<Option<LockConfiguration>>;
        fn set_lock_configuration(bucket: &Bucket, configuration: &LockConfiguration) -> Result<()>;
        fn set_retention(
            bucket: &Bucket,
            key: &Key,
            version: Option<&VersionId>,
            retention: Option<Retention>,
            bypass: bool,
        ) -> Result<()>;
        fn set_legal_hold(bucket: &Bucket, key: &Key, version: Option<&VersionId>, is_on: bool) -> Result<()>;
    }
}

impl BucketDocumentOperations for RootPathStore {
    passed_on! {
        fn document(bucket: &Bucket, kind: &BucketDocumentKind) -> Result<Option<Vec<u8>>>;
        fn set_document(bucket: &Bucket, kind: &BucketDocumentKind, document: &[u8]) -> Result<()>;
        fn delete_document(bucket: &Bucket, kind: &BucketDocumentKind) -> Result<()>;
        fn bucket_owner(bucket: &Bucket) -> Result<Option<u32>>;
    }
}

impl MultipartUploadOperations for RootPathStore {
    passed_on! {
        fn object_parts(bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<Vec<ObjectPart>>;
        fn create_upload(bucket: &Bucket, key: &Key, options: &PutOptions) -> Result<UploadId>;
        fn part_writer(
            bucket: &Bucket,
            key: &Key,
            upload: &UploadId,
            number: u16,
            options: &PartOptions,
        ) -> Result<Box<dyn Writer>>;
        fn copy_part(
            from: (&Bucket, &Key),
            options: &GetOptions,
            to: (&Bucket, &Key, &UploadId, u16),
        ) -> Result<PutResult>;
        fn list_parts(bucket: &Bucket, key: &Key, upload: &UploadId, query: &PartsQuery) -> Result<PartListing>;
        fn list_uploads(bucket: &Bucket, query: &UploadsQuery) -> Result<UploadListing>;
        fn complete_upload(
            bucket: &Bucket,
            key: &Key,
            upload: &UploadId,
            parts: &[CompletedPart],
            options: &CompleteOptions,
        ) -> Result<PutResult>;
        fn abort_upload(bucket: &Bucket, key: &Key, upload: &UploadId) -> Result<()>;
    }
}

impl Store for RootPathStore {
    fn within_buckets(&self) -> Result<Option<Arc<dyn Store>>> {
        self.call_once(PosixStore::within_buckets)?.1
    }

    fn file_server(&self, bucket: &str) -> Option<FileServerProbe> {
        self.call_once(|store| store.file_server(bucket)).ok()?.1
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read as _, Write as _};
    use std::time::Duration;

    use fordway_sys::Errno;
    use fordway_sys::fault::{self, FaultInjectionPlan};
    use tempfile::TempDir;

    use super::*;

    /// A root with the bucket `bkt`, and its store.
    struct Rig {
        dir: TempDir,
        store: RootPathStore,
    }

    impl Rig {
        fn new() -> Self {
            let dir = TempDir::new().unwrap();
            fs::create_dir_all(dir.path().join("root/bkt")).unwrap();
            let store = RootPathStore::open(dir.path().join("root"), PosixConfig::default()).unwrap();
            let rig = Rig { dir, store };
            rig.put("one").unwrap();
            rig
        }

        fn root(&self) -> PathBuf {
            self.dir.path().join("root")
        }

        fn replace(&self, bucket: &str) {
            fs::remove_dir_all(self.root()).unwrap();
            fs::create_dir_all(self.root().join(bucket)).unwrap();
        }

        fn put(&self, key: &str) -> Result<PutResult> {
            self.store.put(&bucket("bkt"), &Key::new(key).unwrap(), b"content", &PutOptions::default())
        }

        /// Puts `a` and `b` with one call.
        fn put_two(&self) -> [Result<PutResult>; 2] {
            let objects = [(Key::new("a").unwrap(), &b"1"[..]), (Key::new("b").unwrap(), b"2")];
            self.store.put_many(&bucket("bkt"), &objects, &PutOptions::default()).try_into().unwrap()
        }

        fn head(&self, key: &str) -> Result<ObjectInfo> {
            self.store.head(&bucket("bkt"), &Key::new(key).unwrap(), &GetOptions::default())
        }

        fn buckets(&self) -> Vec<String> {
            let buckets = self.store.list_buckets().unwrap();
            buckets.iter().map(|bucket| bucket.name.as_str().to_owned()).collect()
        }
    }

    fn bucket(name: &str) -> Bucket {
        Bucket::new(name).unwrap()
    }

    #[test]
    fn calls_use_the_directory_that_replaced_the_root() {
        let rig = Rig::new();
        for round in 0..3 {
            rig.replace("bkt");
            rig.put(&format!("key-{round}")).unwrap();
            assert!(rig.root().join(format!("bkt/key-{round}")).is_file());
            assert_eq!(rig.head("one").unwrap_err().kind(), ErrorKind::NoSuchKey);
        }
        rig.replace("bkt");
        assert!(rig.put_two().iter().all(Result::is_ok) && rig.root().join("bkt/b").is_file());
        rig.replace("bkt");
        let listed = rig.store.list(&bucket("bkt"), &ListQuery::default()).unwrap();
        assert!(listed.entries.is_empty());
    }

    #[test]
    fn buckets_are_those_of_the_directory_at_the_path() {
        let rig = Rig::new();
        rig.replace("other");
        assert_eq!(rig.buckets(), ["other"]);
        rig.replace("another");
        rig.store.create_bucket(&bucket("new")).unwrap();
        assert_eq!(rig.buckets(), ["another", "new"]);
        assert_eq!(rig.put("two").unwrap_err().kind(), ErrorKind::NoSuchBucket);
        rig.replace("bkt");
        rig.store.head_bucket(&bucket("bkt")).unwrap();
    }

    #[test]
    fn a_missing_root_is_not_a_missing_bucket() {
        let rig = Rig::new();
        fs::remove_dir_all(rig.root()).unwrap();
        let unavailable = [
            rig.store.list_buckets().unwrap_err(),
            rig.store.create_bucket(&bucket("new")).unwrap_err(),
            rig.put("two").unwrap_err(),
            rig.head("one").unwrap_err(),
        ];
        for error in unavailable.into_iter().chain(rig.put_two().map(Result::unwrap_err)) {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("root is missing"), "{error}");
        }
        fs::create_dir_all(rig.root().join("bkt")).unwrap();
        rig.put("two").unwrap();
    }

    #[test]
    fn a_renamed_root_is_left_when_a_call_checks_the_path() {
        let rig = Rig::new();
        fs::rename(rig.root(), rig.dir.path().join("old")).unwrap();
        fs::create_dir_all(rig.root().join("bkt")).unwrap();
        assert_eq!(rig.buckets(), ["bkt"]);
        rig.put("two").unwrap();
        assert!(rig.root().join("bkt/two").is_file());
        // A missing object causes a check as well, at most once a second.
        fs::rename(rig.root(), rig.dir.path().join("older")).unwrap();
        fs::create_dir_all(rig.root().join("bkt")).unwrap();
        fs::write(rig.root().join("bkt/three"), "").unwrap();
        std::thread::sleep(Duration::from_millis(MISSING_KEY_CHECK_MS));
        rig.head("three").unwrap();
    }

    /// A complete root is at the path at every moment, so no thread loses a call.
    #[test]
    fn every_busy_thread_uses_the_directory_that_replaced_the_root() {
        const LONGEST: Duration = Duration::from_secs(60);
        let (rig, is_over, begun) = (Rig::new(), AtomicBool::new(false), Instant::now());
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..8)
                .map(|writer| {
                    let (rig, is_over) = (&rig, &is_over);
                    scope.spawn(move || {
                        // If the test fails, its threads must end too.
                        while !is_over.load(Ordering::Relaxed) && begun.elapsed() < LONGEST {
                            match writer % 2 {
                                0 => drop(rig.put(&format!("key-{writer}"))?),
                                _ => rig.put_two().into_iter().try_for_each(|stored| stored.map(drop))?,
                            }
                        }
                        Ok::<_, Error>(())
                    })
                })
                .collect();
            let [new, old] = ["new", "old"].map(|name| rig.dir.path().join(name));
            for _ in 0..20 {
                fs::create_dir_all(new.join("bkt")).unwrap();
                exchange(&rig.root(), &new);
                fs::rename(&new, &old).unwrap();
                // The writers may create files while the directory is removed.
                while fs::remove_dir_all(&old).is_err() {}
                std::thread::sleep(Duration::from_millis(5));
            }
            is_over.store(true, Ordering::Relaxed);
            for writer in writers {
                writer.join().unwrap().unwrap();
            }
        });
    }

    /// A child uses neither a root that its parent no longer uses, nor a root that is missing.
    #[test]
    fn a_forked_child_uses_the_directory_that_replaced_the_root() {
        let rig = Rig::new();
        let old = rig.dir.path().join("old");
        fs::rename(rig.root(), &old).unwrap();
        fs::create_dir_all(rig.root().join("bkt")).unwrap();
        rig.buckets();
        rig.put("parent").unwrap();
        run_in_child(|| drop(rig.put("child").unwrap()));
        assert!(rig.root().join("bkt/child").is_file() && !old.join("bkt/child").exists());
        fs::rename(rig.root(), rig.dir.path().join("new")).unwrap();
        run_in_child(|| {
            for error in rig.put_two().into_iter().chain([rig.put("child")]).map(Result::unwrap_err) {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            }
        });
        // The directory is at its path again.
        fs::rename(&old, rig.root()).unwrap();
        run_in_child(|| {
            rig.put("again").unwrap();
            rig.put("and again").unwrap();
        });
        assert!(rig.root().join("bkt/and again").is_file());
    }

    /// A child that cannot look up the path must not use the root that its parent has left. The child looks again in
    /// its next call.
    #[test]
    fn a_forked_child_uses_no_root_while_it_cannot_look_up_the_path() {
        let rig = Rig::new();
        let [old, aside] = ["old", "aside"].map(|name| rig.dir.path().join(name));
        fs::rename(rig.root(), &old).unwrap();
        fs::create_dir_all(rig.root().join("bkt")).unwrap();
        rig.buckets();
        run_in_child(|| {
            // The path is a loop of symbolic links. Permissions would not stop root.
            fs::rename(rig.root(), &aside).unwrap();
            std::os::unix::fs::symlink(rig.root(), rig.root()).unwrap();
            for error in rig.put_two().into_iter().chain([rig.put("child")]).map(Result::unwrap_err) {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            }
            assert_eq!(rig.store.list_buckets().unwrap_err().kind(), ErrorKind::Unavailable);
            fs::remove_file(rig.root()).unwrap();
            fs::rename(&aside, rig.root()).unwrap();
            rig.put("child").unwrap();
        });
        assert!(rig.root().join("bkt/child").is_file() && !old.join("bkt/child").exists());
    }

    /// Runs `work` in a forked child, and waits for the child.
    fn run_in_child(work: impl FnOnce()) {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        let child = fordway_sys::fork_process(|| {
            work();
            writer.write_all(b"done").unwrap();
        });
        let child = child.unwrap();
        drop(writer);
        let mut said = String::new();
        reader.read_to_string(&mut said).unwrap();
        drop(child);
        assert_eq!(said, "done", "the child has failed");
    }

    fn exchange(one: &Path, other: &Path) {
        let script = "import ctypes, sys; sys.exit(ctypes.CDLL(None).renameat2(-100, sys.argv[1].encode(), -100, \
                      sys.argv[2].encode(), 2))";
        let mut command = std::process::Command::new("python3");
        assert!(command.args(["-c", script]).args([one, other]).status().unwrap().success());
    }

    #[test]
    fn a_root_that_another_node_removed_is_replaced() {
        let rig = Rig::new();
        let stale = FaultInjectionPlan { missing: &[("openat2", Errno::STALE)], ..Default::default() };
        type Call = fn(&PosixStore) -> Result<()>;
        let calls: [Call; 2] = [
            |store| {
                let options = PutOptions::default();
                store.put(&bucket("bkt"), &Key::new("two").unwrap(), b"content", &options).map(drop)
            },
            |store| store.list(&bucket("bkt"), &ListQuery::default()).map(drop),
        ];
        for (round, call) in calls.into_iter().enumerate() {
            // The renamed root represents a stale root.
            fs::rename(rig.root(), rig.dir.path().join(format!("old-{round}"))).unwrap();
            fs::create_dir_all(rig.root().join("bkt")).unwrap();
            let used = rig.store.current();
            let error = fault::run(stale, || call(&used.store)).0.unwrap_err();
            assert!(is_stale(&error) && rig.store.is_elsewhere(&error, used.number).unwrap(), "{error}");
            rig.put("new").unwrap();
            assert!(rig.root().join("bkt/new").is_file());
        }
    }
}
