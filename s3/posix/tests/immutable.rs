//! Tests the immutable flag on the files of locked versions. POSIX programs cannot change these files, but the store
//! can change them.

use std::fs;
use std::io::ErrorKind as IoErrorKind;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fordway_posix::{FsckEvent, FsckOptions, PosixConfig, PosixStore};
use fordway_store::{
    Bucket, DeleteOptions, ErrorKind, GetOptions, Key, LockConfiguration, ObjectLock, ObjectLockOperations,
    ObjectTagOperations, ObjectVersionOperations, Objects, PutOptions, Result, Retention, RetentionMode,
    Tags, VersionId, VersioningState,
};
use fordway_sys::{ImpersonatedUser, PeerCredentials, set_immutable};

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
    let dir = tempfile::tempdir().unwrap();
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
    let dir = tempfile::tempdir().unwrap();
    if !has_flag(dir.path()) {
        return;
    }
    let (store, bucket) = store_of_a_group(dir.path());
    let lock = ObjectLock { retention: None, legal_hold: Some(true) };
    for (key, lock) in [("free", ObjectLock::NONE), ("held", lock), ("left", lock)] {
        let options = PutOptions { lock, ..Default::default() };
        store.put(&bucket, &Key::new(key).unwrap(), b"content", &options).unwrap();
    }
    let set = |key: &str, is_immutable| {
        set_immutable(fs::File::open(dir.path().join("lck").join(key)).unwrap(), is_immutable).unwrap()
    };
    set("left", false);
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
    assert_eq!(findings(true), [("not-immutable", "lck/left".to_owned())]);
    assert_eq!(findings(false), []);
    // The test's directory must be removable.
    set("held", false);
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
    let dir = tempfile::tempdir().unwrap();
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
    assert_immutable(&old.clone().unwrap());
    // The test's directory must be removable.
    set_immutable(fs::File::open(old.unwrap()).unwrap(), false).unwrap();
}
