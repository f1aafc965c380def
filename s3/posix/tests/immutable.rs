//! The immutable flag on the files of locked versions: POSIX programs cannot change these files, but the store still
//! can.

use std::fs;
use std::io::ErrorKind as IoErrorKind;
use std::path::Path;

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{
    Bucket, DeleteOptions, ErrorKind, GetOptions, Key, LockConfiguration, ObjectLock, ObjectLockOperations,
    ObjectTagOperations, ObjectVersionOperations, Objects, PutOptions, Tags, VersionId, VersioningState,
};
use fordway_sys::set_immutable;

/// Returns whether files in `dir` can have the immutable flag. If the flag is not available, records that the test was
/// skipped.
fn has_flag(dir: &Path) -> bool {
    if !fordway_needs::root("set the immutable flag") {
        return false;
    }
    let probe = fs::File::create(dir.join("probe")).unwrap();
    let set = set_immutable(&probe, true).and_then(|()| set_immutable(&probe, false));
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
