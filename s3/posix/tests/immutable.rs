//! Tests the immutable flag on the files of locked versions. POSIX programs cannot change these files, but the store
//! can change them.

use std::fs;
use std::io::ErrorKind as IoErrorKind;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fordway_posix::{FsckEvent, FsckOptions, LifecycleOptions, PosixConfig, PosixStore};
use fordway_store::{
    Bucket, BucketDocumentKind, BucketDocumentOperations, DefaultRetention, DeleteOptions, ErrorKind,
    GetOptions, Key, LockConfiguration, ObjectLock, ObjectLockOperations, ObjectTagOperations,
    ObjectVersionOperations, Objects, PutOptions, Result, Retention, RetentionMode, RetentionPeriod, Tags,
    VersionId, VersioningState,
};
use fordway_sys::{ImpersonatedUser, PeerCredentials, get_xattr, set_immutable, set_xattr};

/// A test's directory. Dropping the value clears the immutable flags in it, so that it can be removed.
struct TestDir(tempfile::TempDir);

impl TestDir {
    fn new() -> Self {
        TestDir(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        clear_flags(self.path());
    }
}

fn clear_flags(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap()) {
        match entry.file_type().unwrap().is_dir() {
            true => clear_flags(&entry.path()),
            false => drop(fs::File::open(entry.path()).map(|file| set_immutable(file, false))),
        }
    }
}

/// Returns whether files in `dir` can have the immutable flag. If the flag is not available, records that the test was
/// skipped.
fn has_flag(dir: &Path) -> bool {
    if !fordway_needs::root("set the immutable flag") {
        return false;
    }
    let probe = fs::File::create(dir.join("probe")).unwrap();
    let set = set_immutable(&probe, true).and_then(|_| set_immutable(&probe, false));
    if let Err(errno) = set {
        fordway_needs::skip(format_args!(
            "the file system of {} has no immutable flag: {errno}",
            dir.display()
        ));
    }
    set.is_ok()
}

/// Checks that not even root can change or remove the file.
fn assert_immutable(path: &Path) {
    let denied = |done: std::io::Result<()>| done.unwrap_err().kind() == IoErrorKind::PermissionDenied;
    assert!(denied(fs::remove_file(path)), "{} was removed", path.display());
    assert!(denied(fs::write(path, "x")), "{} was written", path.display());
    assert!(denied(fs::rename(path, path.with_extension("other"))), "{} was renamed", path.display());
}

#[test]
fn a_locked_file_is_out_of_reach_and_the_store_still_works() {
    let dir = TestDir::new();
    if !has_flag(dir.path()) {
        return;
    }
    let config = PosixConfig { immutable_locks: true, ..PosixConfig::default() };
    let store = PosixStore::open(dir.path(), config).unwrap();
    let (bucket, key) = (Bucket::new("bkt").unwrap(), Key::new("k").unwrap());
    store.create_bucket(&bucket).unwrap();
    store.set_versioning(&bucket, VersioningState::Enabled).unwrap();
    store.set_lock_configuration(&bucket, &LockConfiguration::default()).unwrap();
    let put = |lock: ObjectLock| {
        let options = PutOptions { lock, ..Default::default() };
        store.put(&bucket, &key, b"content", &options).unwrap().version.unwrap()
    };
    let delete = |version: Option<&VersionId>| {
        let options = DeleteOptions { version: version.cloned(), ..Default::default() };
        store.delete(&bucket, &key, &options).map(drop)
    };
    let plain = dir.path().join("bkt/k");
    let held = put(ObjectLock { retention: None, legal_hold: Some(true) });
    assert_immutable(&plain);
    // When the version is overwritten, its file is kept under another name, and is immutable under that name too.
    let free = put(ObjectLock::NONE);
    let old = fs::read_dir(dir.path().join("bkt/.fordway/versions/k")).unwrap().next().unwrap().unwrap();
    assert_immutable(&old.path());
    let tags = Tags::from([("name".to_owned(), "value".to_owned())]);
    store.set_tags(&bucket, &key, Some(&held), &tags).unwrap();
    assert_immutable(&old.path());
    // A locked version becomes the latest again; then a delete marker hides it.
    delete(Some(&free)).unwrap();
    assert_immutable(&plain);
    delete(None).unwrap();
    assert_immutable(&old.path());
    assert_eq!(delete(Some(&held)).unwrap_err().kind(), ErrorKind::AccessDenied);
    store.set_legal_hold(&bucket, &key, Some(&held), false).unwrap();
    delete(Some(&held)).unwrap();
    assert!(store.head(&bucket, &key, &GetOptions::version(held)).is_err());
}

#[test]
fn fsck_finds_locked_files_without_the_flag() {
    let dir = TestDir::new();
    if !has_flag(dir.path()) {
        return;
    }
    let (store, bucket) = store_of_a_group(dir.path());
    let lock = ObjectLock { retention: None, legal_hold: Some(true) };
    for (key, lock) in [("free", ObjectLock::NONE), ("held", lock), ("left", lock)] {
        let options = PutOptions { lock, ..Default::default() };
        store.put(&bucket, &Key::new(key).unwrap(), b"content", &options).unwrap();
    }
    for left in ["left", ".fordway/versioning"] {
        set_immutable(fs::File::open(dir.path().join("lck").join(left)).unwrap(), false).unwrap();
    }
    let findings = |immutable_locks| {
        let (mut found, options) = (Vec::new(), FsckOptions { immutable_locks, ..Default::default() });
        let checked = store.check(&options, &mut |event| {
            if let FsckEvent::Found(finding) = event {
                found.push((finding.kind.name(), finding.path));
            }
            Ok(())
        });
        checked.unwrap();
        found
    };
    let found = ["lck/left", "lck/.fordway/versioning"].map(|path| ("not-immutable", path.to_owned()));
    assert_eq!(findings(true), found);
    assert_eq!(findings(false), []);
}

/// Creates a store in `dir` with a bucket of user 1001 and group 2000, whose versions can be locked.
fn store_of_a_group(dir: &Path) -> (PosixStore, Bucket) {
    let config = PosixConfig { immutable_locks: true, ..PosixConfig::default() };
    let store = PosixStore::open(dir, config).unwrap();
    let bucket = Bucket::new("lck").unwrap();
    fs::set_permissions(dir, PermissionsExt::from_mode(0o777)).unwrap();
    as_user(1001, || store.create_bucket(&bucket)).unwrap();
    chown(dir.join("lck"), Some(1001), Some(2000)).unwrap();
    fs::set_permissions(dir.join("lck"), PermissionsExt::from_mode(0o2775)).unwrap();
    as_user(1001, || store.set_versioning(&bucket, VersioningState::Enabled)).unwrap();
    as_user(1001, || store.set_lock_configuration(&bucket, &LockConfiguration::default())).unwrap();
    (store, bucket)
}

/// Runs `work` as a user in group 2000.
fn as_user<T>(uid: u32, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let peer = PeerCredentials { uid, gid: uid, groups: vec![2000] };
    ImpersonatedUser::new(&peer).unwrap().play(work).unwrap()
}

#[test]
fn a_refused_change_leaves_the_flag() {
    let dir = TestDir::new();
    if !has_flag(dir.path()) {
        return;
    }
    let (store, bucket) = store_of_a_group(dir.path());
    let key = Key::new("k").unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let until_ms = |days: u64| (now + Duration::from_secs(days * 86_400)).as_millis() as u64;
    let retention = |days| Retention { mode: RetentionMode::Compliance, until_ms: until_ms(days) };
    let lock = ObjectLock { retention: Some(retention(1)), legal_hold: None };
    let options = PutOptions { lock, ..Default::default() };
    as_user(1001, || store.put(&bucket, &key, b"content", &options)).unwrap();
    let plain = dir.path().join("lck/k");
    assert_immutable(&plain);
    let tags = Tags::from([("name".to_owned(), "value".to_owned())]);
    let refused: [(&str, &dyn Fn() -> Result<()>); 5] = [
        ("put", &|| store.put(&bucket, &key, b"other", &PutOptions::default()).map(drop)),
        ("delete", &|| store.delete(&bucket, &key, &DeleteOptions::default()).map(drop)),
        ("set_tags", &|| store.set_tags(&bucket, &key, None, &tags)),
        ("set_legal_hold", &|| store.set_legal_hold(&bucket, &key, None, true)),
        ("set_retention", &|| store.set_retention(&bucket, &key, None, Some(retention(2)), false)),
    ];
    for (name, request) in refused {
        let error = as_user(1002, request).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::AccessDenied, "{name}: {error}");
        assert_immutable(&plain);
    }
    // The requests of the owner succeed, and the flag remains set.
    as_user(1001, || store.set_tags(&bucket, &key, None, &tags)).unwrap();
    assert_immutable(&plain);
    as_user(1001, || store.set_retention(&bucket, &key, None, Some(retention(2)), false)).unwrap();
    assert_immutable(&plain);
    as_user(1001, || store.delete(&bucket, &key, &DeleteOptions::default())).unwrap();
    let old = fs::read_dir(dir.path().join("lck/.fordway/versions/k")).unwrap();
    let old =
        old.map(|entry| entry.unwrap().path()).find(|path| !path.to_str().unwrap().ends_with("-marker"));
    assert_immutable(&old.unwrap());
}

/// A lock that ends in a year.
fn compliance() -> ObjectLock {
    let until = SystemTime::now() + Duration::from_secs(365 * 86_400);
    let until_ms = until.duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    ObjectLock { retention: Some(Retention { mode: RetentionMode::Compliance, until_ms }), legal_hold: None }
}

/// Puts `content` as user 1001; returns the ID of the version.
fn put(store: &PosixStore, bucket: &Bucket, key: &str, lock: ObjectLock) -> Option<VersionId> {
    let options = PutOptions { lock, ..Default::default() };
    as_user(1001, || store.put(bucket, &Key::new(key).unwrap(), b"precious", &options)).unwrap().version
}

/// Asserts that user 1001 cannot delete the version, neither with a request nor with a lifecycle rule.
fn assert_kept(store: &PosixStore, bucket: &Bucket, key: &str, version: &VersionId) {
    let options =
        DeleteOptions { version: Some(version.clone()), bypass_governance: true, ..Default::default() };
    let done = as_user(1001, || store.delete(bucket, &Key::new(key).unwrap(), &options).map(drop));
    assert_eq!(done.unwrap_err().kind(), ErrorKind::AccessDenied, "{key}");
    let rules = "<LifecycleConfiguration><Rule><Status>Enabled</Status><Filter/><NoncurrentVersionExpiration>\
                 <NoncurrentDays>1</NoncurrentDays></NoncurrentVersionExpiration></Rule></LifecycleConfiguration>";
    let kind = BucketDocumentKind::known("lifecycle");
    as_user(1001, || store.set_document(bucket, &kind, rules.as_bytes())).unwrap();
    let options = LifecycleOptions { day: Duration::from_nanos(1), ..Default::default() };
    let done = store.run_lifecycle(&options, &mut |_| Ok(())).unwrap();
    assert_eq!((done.changed, done.failed), (0, 0), "{key}");
    let options = GetOptions::version(version.clone());
    store.head(bucket, &Key::new(key).unwrap(), &options).unwrap();
}

/// Gives the bucket the setting `text`, as the owner could if the gateway did not protect the setting.
fn forge_setting(dir: &Path, text: &str) {
    let path = dir.join("lck/.fordway/versioning");
    set_immutable(fs::File::open(&path).unwrap(), false).unwrap();
    let forged = path.with_extension("new");
    fs::write(&forged, text).unwrap();
    chown(&forged, Some(1001), Some(1001)).unwrap();
    fs::rename(forged, path).unwrap();
    std::thread::sleep(Duration::from_millis(50));
}

#[test]
fn the_setting_of_a_bucket_with_object_lock_is_out_of_reach() {
    let dir = TestDir::new();
    if !has_flag(dir.path()) {
        return;
    }
    let (store, bucket) = store_of_a_group(dir.path());
    let setting = dir.path().join("lck/.fordway/versioning");
    assert_immutable(&setting);
    let lock = LockConfiguration {
        default: Some(DefaultRetention { mode: RetentionMode::Compliance, period: RetentionPeriod::Days(1) }),
    };
    as_user(1001, || store.set_lock_configuration(&bucket, &lock)).unwrap();
    assert_immutable(&setting);
    assert_eq!(store.lock_configuration(&bucket).unwrap(), Some(lock));
    // An empty bucket can still be removed.
    store.delete_bucket(&bucket).unwrap();
    let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = names.filter(|name| name != "probe" && name != ".fordway").collect();
    assert_eq!(left, [""; 0]);
}

/// The lock of a file with the immutable flag counts, whatever the bucket's setting says.
#[test]
fn a_locked_version_outlives_the_setting_of_its_bucket() {
    for setting in ["Enabled\n", "Suspended\n"] {
        let dir = TestDir::new();
        if !has_flag(dir.path()) {
            return;
        }
        let (store, bucket) = store_of_a_group(dir.path());
        let only = put(&store, &bucket, "only", compliance()).unwrap();
        let old = put(&store, &bucket, "old", compliance()).unwrap();
        put(&store, &bucket, "old", ObjectLock::NONE);
        forge_setting(dir.path(), setting);
        assert_kept(&store, &bucket, "only", &only);
        assert_kept(&store, &bucket, "old", &old);
        // A put and a delete hide the version, as always.
        put(&store, &bucket, "only", ObjectLock::NONE);
        assert_kept(&store, &bucket, "only", &only);
    }
}

#[test]
fn a_locked_version_that_is_moved_to_another_bucket_is_kept() {
    let dir = TestDir::new();
    if !has_flag(dir.path()) {
        return;
    }
    let (store, bucket) = store_of_a_group(dir.path());
    let plain = Bucket::new("plain").unwrap();
    as_user(1001, || store.create_bucket(&plain)).unwrap();
    as_user(1001, || store.set_versioning(&plain, VersioningState::Enabled)).unwrap();
    let only = put(&store, &bucket, "d/only", compliance()).unwrap();
    let old = put(&store, &bucket, "old", compliance()).unwrap();
    put(&store, &bucket, "old", ObjectLock::NONE);
    fs::rename(dir.path().join("lck/d"), dir.path().join("plain/d")).unwrap();
    put(&store, &plain, "old", ObjectLock::NONE);
    let versions = dir.path().join("plain/.fordway/versions");
    fs::create_dir_all(&versions).unwrap();
    fs::rename(dir.path().join("lck/.fordway/versions/old"), versions.join("old")).unwrap();
    assert_kept(&store, &plain, "d/only", &only);
    assert_kept(&store, &plain, "old", &old);
}

/// A put in a bucket whose versioning is suspended replaces the version `null`, unless that version is locked.
#[test]
fn a_locked_version_null_is_not_replaced() {
    for is_old in [false, true] {
        let dir = TestDir::new();
        if !has_flag(dir.path()) {
            return;
        }
        let (store, bucket) = store_of_a_group(dir.path());
        let (key, null) = (Key::new("k").unwrap(), VersionId::null());
        fs::write(dir.path().join("lck/k"), "precious").unwrap();
        chown(dir.path().join("lck/k"), Some(1001), Some(1001)).unwrap();
        store.set_retention(&bucket, &key, None, compliance().retention, false).unwrap();
        if is_old {
            put(&store, &bucket, "k", ObjectLock::NONE);
        }
        forge_setting(dir.path(), "Suspended\n");
        let done = as_user(1001, || store.put(&bucket, &key, b"ransom", &PutOptions::default()).map(drop));
        assert_eq!(done.map_err(|error| error.kind()).is_ok(), is_old);
        if !is_old {
            assert_kept(&store, &bucket, "k", &null);
            let done = as_user(1001, || store.delete(&bucket, &key, &DeleteOptions::default()).map(drop));
            assert_eq!(done.unwrap_err().kind(), ErrorKind::AccessDenied);
        }
        let versions = dir.path().join("lck/.fordway/versions/k");
        let old = fs::read_dir(&versions).into_iter().flatten().map(|entry| entry.unwrap().path());
        let kept = old.chain([dir.path().join("lck/k")]).filter_map(|path| fs::read(path).ok());
        assert!(kept.into_iter().any(|content| content == b"precious"), "{is_old}");
    }
}

/// Replaces each copy of `from` in the sidecar file of the file at `path`, as user 1001 can.
fn forge_sidecar(path: &Path, from: &[u8], to: &[u8]) {
    use std::os::unix::fs::MetadataExt;
    let inode = fs::metadata(path).unwrap().ino();
    let sidecar = path.parent().unwrap().join(format!(".fordway/meta/{inode:016x}"));
    let mut record = fs::read(&sidecar).unwrap();
    let at = record.windows(from.len()).position(|bytes| bytes == from).expect("the lock's end");
    record.splice(at..at + from.len(), to.iter().copied());
    let forged = sidecar.with_extension("new");
    fs::write(&forged, record).unwrap();
    chown(&forged, Some(1001), Some(1001)).unwrap();
    fs::rename(forged, sidecar).unwrap();
}

/// The lock is in the attribute, which the flag protects. The sidecar file of a long record repeats the lock, but a
/// user of the bucket can replace the sidecar file.
#[test]
fn a_lock_does_not_end_in_the_sidecar() {
    let dir = TestDir::new();
    if !has_flag(dir.path()) {
        return;
    }
    let (store, bucket) = store_of_a_group(dir.path());
    let (key, lock) = (Key::new("k").unwrap(), compliance());
    let version = put(&store, &bucket, "k", lock).unwrap();
    let tags: Tags = (0..10).map(|n| (format!("name{n}"), "ä".repeat(250))).collect();
    as_user(1001, || store.set_tags(&bucket, &key, None, &tags)).unwrap();
    let until_ms = lock.retention.unwrap().until_ms;
    forge_sidecar(&dir.path().join("lck/k"), &until_ms.to_le_bytes(), &1000_u64.to_le_bytes());
    assert_eq!(store.head(&bucket, &key, &GetOptions::default()).unwrap().lock, lock);
    assert_eq!(store.tags(&bucket, &key, None).unwrap(), tags);
    assert_kept(&store, &bucket, "k", &version);
    put(&store, &bucket, "k", ObjectLock::NONE);
    assert_kept(&store, &bucket, "k", &version);
    // A later change of the record does not store the forged lock either.
    as_user(1001, || store.set_tags(&bucket, &key, Some(&version), &Tags::new())).unwrap();
    assert_kept(&store, &bucket, "k", &version);
}

/// In a bucket without object lock, any user who may write to a file can write a lock into its record. Such a lock
/// neither counts nor gets the flag, so that it makes no file of another user permanent.
#[test]
fn a_forged_lock_makes_no_file_permanent() {
    let dir = TestDir::new();
    if !has_flag(dir.path()) {
        return;
    }
    let (store, bucket) = store_of_a_group(dir.path());
    let (plain, key) = (Bucket::new("plain").unwrap(), Key::new("k").unwrap());
    as_user(1001, || store.create_bucket(&plain)).unwrap();
    as_user(1001, || store.set_versioning(&plain, VersioningState::Enabled)).unwrap();
    put(&store, &bucket, "k", compliance());
    let locked = fs::File::open(dir.path().join("lck/k")).unwrap();
    let mut record = [0; 4096];
    let record = get_xattr(&locked, c"user.fordway", &mut record).unwrap().unwrap();
    let forged = dir.path().join("plain/k");
    fs::write(&forged, "precious").unwrap();
    set_xattr(fs::File::open(&forged).unwrap(), c"user.fordway", record).unwrap();
    chown(&forged, Some(1001), Some(1001)).unwrap();
    let version = store.head(&plain, &key, &GetOptions::default()).unwrap().version.unwrap();
    let newer = put(&store, &plain, "k", ObjectLock::NONE).unwrap();
    let marked = as_user(1001, || store.delete(&plain, &key, &DeleteOptions::default())).unwrap();
    let tags = Tags::from([("name".to_owned(), "value".to_owned())]);
    as_user(1001, || store.set_tags(&plain, &key, Some(&version), &tags)).unwrap();
    for version in [marked.version.unwrap(), newer, version] {
        let options = DeleteOptions { version: Some(version), ..Default::default() };
        as_user(1001, || store.delete(&plain, &key, &options)).unwrap();
    }
    assert!(!forged.exists());
}

/// After the setting of a bucket was replaced, the owner can remove what hides a locked version.
#[test]
fn a_locked_version_becomes_the_latest_again_whatever_the_setting() {
    for hidden_by_marker in [false, true] {
        let dir = TestDir::new();
        if !has_flag(dir.path()) {
            return;
        }
        let (store, bucket) = store_of_a_group(dir.path());
        let key = Key::new("k").unwrap();
        let locked = put(&store, &bucket, "k", compliance()).unwrap();
        forge_setting(dir.path(), "Enabled\n");
        let newer = match hidden_by_marker {
            true => as_user(1001, || store.delete(&bucket, &key, &DeleteOptions::default())).unwrap().version,
            false => put(&store, &bucket, "k", ObjectLock::NONE),
        };
        let options = DeleteOptions { version: newer, ..Default::default() };
        as_user(1001, || store.delete(&bucket, &key, &options)).unwrap();
        assert_eq!(store.head(&bucket, &key, &GetOptions::default()).unwrap().version, Some(locked.clone()));
        assert_immutable(&dir.path().join("lck/k"));
        assert_kept(&store, &bucket, "k", &locked);
    }
}

/// A lock that came with a file into a bucket without object lock can be removed as in any other bucket.
#[test]
fn a_lock_in_a_bucket_without_object_lock_can_be_removed() {
    let dir = TestDir::new();
    if !has_flag(dir.path()) {
        return;
    }
    let (store, bucket) = store_of_a_group(dir.path());
    let key = Key::new("k").unwrap();
    let until_ms = compliance().retention.unwrap().until_ms;
    let retention = Some(Retention { mode: RetentionMode::Governance, until_ms });
    let version = put(&store, &bucket, "k", ObjectLock { retention, legal_hold: Some(true) }).unwrap();
    forge_setting(dir.path(), "Enabled\n");
    assert_kept(&store, &bucket, "k", &version);
    let of = Some(&version);
    as_user(1001, || store.set_legal_hold(&bucket, &key, of, false)).unwrap();
    assert_immutable(&dir.path().join("lck/k"));
    let done = as_user(1001, || store.set_legal_hold(&bucket, &key, of, true));
    assert_eq!(done.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let done = as_user(1001, || store.set_retention(&bucket, &key, of, None, false));
    assert_eq!(done.unwrap_err().kind(), ErrorKind::AccessDenied);
    as_user(1001, || store.set_retention(&bucket, &key, of, None, true)).unwrap();
    let options = DeleteOptions { version: Some(version), ..Default::default() };
    as_user(1001, || store.delete(&bucket, &key, &options)).unwrap();
    put(&store, &bucket, "other", ObjectLock::NONE);
    let done = store.set_legal_hold(&bucket, &Key::new("other").unwrap(), None, false);
    assert_eq!(done.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

/// A file that was moved to a bucket that keeps no versions can be removed and replaced once its lock has ended.
#[test]
fn a_moved_file_without_versions_is_free_when_its_lock_ends() {
    let dir = TestDir::new();
    if !has_flag(dir.path()) {
        return;
    }
    let (store, bucket) = store_of_a_group(dir.path());
    let plain = Bucket::new("plain").unwrap();
    as_user(1001, || store.create_bucket(&plain)).unwrap();
    let until = SystemTime::now() + Duration::from_millis(1500);
    let until_ms = until.duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let retention = Some(Retention { mode: RetentionMode::Compliance, until_ms });
    let keys = ["d/removed", "d/replaced"].map(|key| Key::new(key).unwrap());
    for key in &keys {
        put(&store, &bucket, key.as_str(), ObjectLock { retention, legal_hold: None });
    }
    fs::rename(dir.path().join("lck/d"), dir.path().join("plain/d")).unwrap();
    let [removed, replaced] = &keys;
    let remove = || as_user(1001, || store.delete(&plain, removed, &DeleteOptions::default()).map(drop));
    let replace = || as_user(1001, || store.put(&plain, replaced, b"new", &PutOptions::default()).map(drop));
    assert_eq!(remove().unwrap_err().kind(), ErrorKind::AccessDenied);
    assert_eq!(replace().unwrap_err().kind(), ErrorKind::AccessDenied);
    assert_immutable(&dir.path().join("plain/d/removed"));
    std::thread::sleep(
        until.duration_since(SystemTime::now()).unwrap_or_default() + Duration::from_millis(50),
    );
    remove().unwrap();
    replace().unwrap();
    assert!(!dir.path().join("plain/d/removed").exists());
    assert_eq!(fs::read(dir.path().join("plain/d/replaced")).unwrap(), b"new");
}
