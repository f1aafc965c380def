//! Tests buckets that keep versions, with several stores, or with a user whose permissions are limited.

use std::ffi::CStr;
use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{
    Bucket, CompleteOptions, CompletedPart, DeleteOptions, ETag, ErrorKind, ExpectedContent, GetOptions, Key,
    ListQuery, LockConfiguration, Metadata, MultipartUploadOperations, ObjectLock, ObjectLockOperations,
    ObjectTagOperations, ObjectVersionOperations, Objects, PartOptions, PutOptions, Result, Tags, VersionId,
    VersioningState, VersionsQuery,
};
use rustix::process::geteuid;
use rustix::thread::set_thread_res_uid;
use tempfile::TempDir;

/// A user who owns no file or directory in these tests.
const NOBODY: u32 = 65_534;

fn open() -> (TempDir, Bucket) {
    let (dir, bucket) = (tempfile::tempdir().unwrap(), Bucket::new("bucket").unwrap());
    store(&dir).create_bucket(&bucket).unwrap();
    store(&dir).set_versioning(&bucket, VersioningState::Enabled).unwrap();
    (dir, bucket)
}

fn store(dir: &TempDir) -> PosixStore {
    PosixStore::open(dir.path(), PosixConfig::default()).unwrap()
}

fn key(key: &str) -> Key {
    Key::new(key).unwrap()
}

/// One store keeps the directory of a key's versions open while another store removes the last version from the
/// directory.
#[test]
fn a_directory_of_versions_that_another_removes_is_made_again() {
    let (dir, bucket) = open();
    let (one, other) = (store(&dir), store(&dir));
    let put = |body: &str| one.put(&bucket, &key("k"), body.as_bytes(), &PutOptions::default()).unwrap();
    let delete = |version: Option<VersionId>| {
        let options = DeleteOptions { version, ..Default::default() };
        other.delete(&bucket, &key("k"), &options).unwrap()
    };
    let versions = || other.list_versions(&bucket, &VersionsQuery::default()).unwrap().versions;
    for round in 0..20 {
        put("first");
        put("second");
        put("third");
        versions().iter().skip(1).for_each(|old| drop(delete(Some(old.version.clone()))));
        assert!(!dir.path().join("bucket/.fordway/versions/k").exists(), "round {round}");
        put("fourth");
        assert_eq!(versions().len(), 2, "round {round}");
        one.delete(&bucket, &key("k"), &DeleteOptions::default()).unwrap();
        versions().iter().for_each(|each| drop(delete(Some(each.version.clone()))));
        assert!(versions().is_empty(), "round {round}");
    }
}

/// A client that missed the response to a completion gets the same response when it repeats the request, even after
/// newer versions were created.
#[test]
fn a_completion_is_repeated_after_newer_versions() {
    let (dir, bucket) = open();
    let store = store(&dir);
    let upload = store.create_upload(&bucket, &key("k"), &PutOptions::default()).unwrap();
    let mut writer = store.part_writer(&bucket, &key("k"), &upload, 1, &PartOptions::default()).unwrap();
    writer.write(b"content").unwrap();
    let etag = writer.commit(&ExpectedContent::default()).unwrap().etag;
    let complete = |etag: &ETag| {
        let parts = [CompletedPart::new(1, etag.clone())];
        store.complete_upload(&bucket, &key("k"), &upload, &parts, &CompleteOptions::default())
    };
    let made = complete(&etag).unwrap();
    store.put(&bucket, &key("k"), b"newer", &PutOptions::default()).unwrap();
    assert_eq!(complete(&etag).unwrap(), made);
    store.delete(&bucket, &key("k"), &DeleteOptions::default()).unwrap();
    assert_eq!(complete(&etag).unwrap(), made);
    let refused = complete(&ETag::new("00000000000000000000000000000000")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSuchUpload);
    let versions = store.list_versions(&bucket, &VersionsQuery::default()).unwrap().versions;
    assert_eq!(versions.len(), 3, "{versions:?}");
    let options = DeleteOptions { version: made.version.clone(), ..Default::default() };
    store.delete(&bucket, &key("k"), &options).unwrap();
    assert_eq!(complete(&etag).unwrap_err().kind(), ErrorKind::NoSuchUpload);
}

/// If a delete reaches a large directory on a thread that must not scan the directory, the delete changes nothing that
/// readers see. Another thread can then perform the delete.
#[test]
fn a_delete_that_must_read_many_old_versions_can_be_made_again() {
    for versioning in [VersioningState::Enabled, VersioningState::Suspended] {
        let (dir, bucket) = open();
        let store = store(&dir);
        store.set_versioning(&bucket, versioning).unwrap();
        let made = store.put(&bucket, &key("k"), b"content", &PutOptions::default()).unwrap();
        let versions = dir.path().join("bucket/.fordway/versions/k");
        fs::create_dir_all(&versions).unwrap();
        for number in 1..=3000 {
            fs::write(versions.join(format!("{number:016x}-{number:016x}.{number:016x}-marker")), "")
                .unwrap();
        }
        let options = match versioning {
            VersioningState::Enabled => DeleteOptions { version: made.version, ..Default::default() },
            _ => DeleteOptions::default(),
        };
        let attempt = || store.delete(&bucket, &key("k"), &options);
        let brief = fordway_sys::without_scanning(attempt);
        assert!(brief.is_none(), "{versioning:?}: {brief:?}");
        let read = |name: &str| store.read(&bucket, &key(name), &GetOptions::default(), &mut Vec::new());
        assert!(read("k").is_ok(), "{versioning:?}");
        attempt().unwrap();
        assert_eq!(read("k").unwrap_err().kind(), ErrorKind::NoSuchKey, "{versioning:?}");
    }
}

/// A user who cannot read whether old versions are kept must not overwrite anything.
#[test]
fn without_a_look_at_versioning_nothing_is_written() {
    let (dir, bucket) = open();
    store(&dir).put(&bucket, &key("k"), b"old", &PutOptions::default()).unwrap();
    let private = dir.path().join("bucket/.fordway");
    for path in [dir.path().to_owned(), dir.path().join("bucket"), private.clone()] {
        fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
    }
    for path in [dir.path().join("bucket/k"), private.join("locks")] {
        let _ = fs::set_permissions(path, Permissions::from_mode(0o666));
    }
    fs::set_permissions(private.join("versioning"), Permissions::from_mode(0o000)).unwrap();
    as_nobody(|| {
        let store = store(&dir);
        let writes: [(&str, Result<()>); 4] = [
            ("put", store.put(&bucket, &key("k"), b"new", &PutOptions::default()).map(drop)),
            ("put a new key", store.put(&bucket, &key("new"), b"new", &PutOptions::default()).map(drop)),
            ("delete", store.delete(&bucket, &key("k"), &DeleteOptions::default()).map(drop)),
            ("versioning", store.versioning(&bucket).map(drop)),
        ];
        for (what, done) in writes {
            let error = done.err().unwrap_or_else(|| panic!("{what} went on"));
            assert_eq!(error.kind(), ErrorKind::AccessDenied, "{what}: {error}");
            assert!(error.to_string().contains(".fordway/versioning"), "{what}: {error}");
        }
        let object = store.get(&bucket, &key("k"), &GetOptions::default()).unwrap();
        assert_eq!(object.content.into_vec().unwrap(), b"old");
    });
    assert_eq!(fs::read(dir.path().join("bucket/k")).unwrap(), b"old");
    assert!(!dir.path().join("bucket/new").exists());
}

/// Runs `act` as a user without root's permissions.
fn as_nobody(act: impl FnOnce() + Send) {
    let denied = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if geteuid().is_root() {
                let nobody = rustix::process::Uid::from_raw(NOBODY);
                // The change of user applies only to the current thread, which ends when `act` has returned.
                set_thread_res_uid(nobody, nobody, nobody).unwrap();
            }
            act();
        });
        thread.join()
    });
    denied.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// An odd file that is hidden by a plain file remains hidden, even when the plain file is deleted.
#[test]
fn a_delete_brings_nothing_back_that_was_hidden() {
    let (dir, bucket) = (tempfile::tempdir().unwrap(), Bucket::new("bucket").unwrap());
    let store = store(&dir);
    store.create_bucket(&bucket).unwrap();
    let put = |name: &str, body: &str| {
        store.put(&bucket, &key(name), body.as_bytes(), &PutOptions::default()).unwrap()
    };
    put("a/b", "in the way");
    put("a", "old");
    fs::remove_dir_all(dir.path().join("bucket/a")).unwrap();
    fs::write(dir.path().join("bucket/a"), "new").unwrap();
    store.set_versioning(&bucket, VersioningState::Enabled).unwrap();
    let read = || store.get(&bucket, &key("a"), &GetOptions::default());
    assert_eq!(read().unwrap().content.into_vec().unwrap(), b"new");
    let deleted = store.delete(&bucket, &key("a"), &DeleteOptions::default()).unwrap();
    assert!(deleted.is_marker);
    assert_eq!(
        read().map(|found| found.content.into_vec().unwrap()).map_err(|error| error.kind()),
        Err(ErrorKind::NoSuchKey)
    );
    for each in store.list_versions(&bucket, &VersionsQuery::default()).unwrap().versions {
        let options = DeleteOptions { version: Some(each.version), ..Default::default() };
        store.delete(&bucket, &key("a"), &options).unwrap();
    }
    assert_eq!(read().map(drop).map_err(|error| error.kind()), Err(ErrorKind::NoSuchKey));
}

/// If a POSIX program has removed an object, the object does not reappear when an older version is permanently deleted.
#[test]
fn what_posix_removed_stays_removed() {
    let (dir, bucket) = open();
    let store = store(&dir);
    for body in ["first", "second", "third"] {
        store.put(&bucket, &key("k"), body.as_bytes(), &PutOptions::default()).unwrap();
    }
    fs::remove_file(dir.path().join("bucket/k")).unwrap();
    let versions = store.list_versions(&bucket, &VersionsQuery::default()).unwrap().versions;
    assert_eq!(versions.len(), 2);
    let options = DeleteOptions { version: Some(versions[0].version.clone()), ..Default::default() };
    store.delete(&bucket, &key("k"), &options).unwrap();
    let read = store.get(&bucket, &key("k"), &GetOptions::default());
    assert_eq!(read.map(drop).map_err(|error| error.kind()), Err(ErrorKind::NoSuchKey));
}

/// While newer versions are created and deleted, a version is alternately the latest version and an old version. A
/// caller that reads or lists the version must always find it.
#[test]
fn a_version_that_becomes_the_latest_is_never_missing() {
    let (dir, bucket) = open();
    let (one, other) = (store(&dir), store(&dir));
    let put =
        |body: &[u8]| one.put(&bucket, &key("k"), body, &PutOptions::default()).unwrap().version.unwrap();
    let kept = put(b"kept");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let options = DeleteOptions { version: Some(put(b"above")), ..Default::default() };
                one.delete(&bucket, &key("k"), &options).unwrap();
            }
        });
        let read = thread::Builder::new().spawn_scoped(scope, || {
            for round in 0..3000 {
                let options = GetOptions::version(kept.clone());
                let found = other.get(&bucket, &key("k"), &options);
                let found = found.unwrap_or_else(|error| panic!("round {round}: {error}"));
                assert_eq!(found.content.into_vec().unwrap(), b"kept", "round {round}");
                let listed = other.list_versions(&bucket, &VersionsQuery::default()).unwrap().versions;
                assert_eq!(listed.iter().filter(|each| each.version == kept).count(), 1, "round {round}");
            }
        });
        let read = read.unwrap().join();
        is_over.store(true, Ordering::Relaxed);
        read.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// A POSIX program gives the key a new file without a record, which counts as the version `null`. A locked version with
/// the ID `null` is still kept.
#[test]
fn a_locked_version_null_survives_a_file_of_a_program() {
    let (dir, bucket) = (tempfile::tempdir().unwrap(), Bucket::new("bucket").unwrap());
    let (store, key) = (store(&dir), key("n"));
    store.create_bucket(&bucket).unwrap();
    let put = |body: &[u8]| store.put(&bucket, &key, body, &PutOptions::default()).unwrap();
    put(b"locked");
    store.set_versioning(&bucket, VersioningState::Enabled).unwrap();
    store.set_lock_configuration(&bucket, &LockConfiguration::default()).unwrap();
    store.set_legal_hold(&bucket, &key, Some(&VersionId::null()), true).unwrap();
    put(b"second");
    for round in 0..2 {
        let other = dir.path().join("other");
        fs::write(&other, format!("program {round}")).unwrap();
        fs::rename(&other, dir.path().join("bucket/n")).unwrap();
        match round {
            0 => drop(put(b"third")),
            _ => drop(store.delete(&bucket, &key, &DeleteOptions::default()).unwrap()),
        }
    }
    let read = |version: &VersionId| {
        let options = GetOptions { version: Some(version.clone()), ..Default::default() };
        let object = store.get(&bucket, &key, &options).unwrap();
        String::from_utf8(object.content.into_vec().unwrap()).unwrap()
    };
    assert_eq!(read(&VersionId::null()), "locked");
    let listed = store.list_versions(&bucket, &VersionsQuery::default()).unwrap().versions;
    let mut kept: Vec<_> =
        listed.iter().filter(|each| each.content.is_some()).map(|each| read(&each.version)).collect();
    kept.sort_unstable();
    // The POSIX program itself has replaced the versions `second` and `third`.
    assert_eq!(kept, ["locked", "program 0", "program 1"]);
}

#[test]
fn a_common_prefix_is_listed_after_a_key_within_it() {
    let (dir, bucket) = open();
    let store = store(&dir);
    for name in ["p/a", "p/b", "q"] {
        store.put(&bucket, &key(name), b"x", &PutOptions::default()).unwrap();
    }
    let query = VersionsQuery {
        delimiter: Some("/".to_owned()),
        key_after: Some("p/a".to_owned()),
        ..Default::default()
    };
    assert_eq!(store.list_versions(&bucket, &query).unwrap().prefixes, ["p/"]);
}

/// One store has just read that the bucket keeps no versions when another store enables versioning. After the call that
/// enables versioning has returned, the first store keeps the version that it overwrites.
#[test]
fn versioning_holds_for_every_store_once_it_is_enabled() {
    for round in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let (one, other, bucket) = (store(&dir), store(&dir), Bucket::new("bucket").unwrap());
        one.create_bucket(&bucket).unwrap();
        let put = |body: &str| one.put(&bucket, &key("k"), body.as_bytes(), &PutOptions::default()).unwrap();
        put("first");
        if round % 2 == 0 {
            // This put creates the bucket's private directory.
            put("second");
        }
        other.set_versioning(&bucket, VersioningState::Enabled).unwrap();
        put("third");
        let kept = one.list_versions(&bucket, &VersionsQuery::default()).unwrap().versions.len();
        assert_eq!(kept, 2, "round {round}");
    }
}

/// The attribute that contains an object's record.
const ATTRIBUTE: &CStr = c"user.fordway";

/// A bucket `bucket` that keeps versions, and its store.
struct VersionedBucket {
    dir: TempDir,
    bucket: Bucket,
    store: PosixStore,
}

impl VersionedBucket {
    fn new(has_object_lock: bool) -> Self {
        let (dir, bucket) = open();
        let store = store(&dir);
        if has_object_lock {
            store.set_lock_configuration(&bucket, &LockConfiguration::default()).unwrap();
        }
        VersionedBucket { dir, bucket, store }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join("bucket").join(below)
    }

    fn put(&self, name: &str, body: &str) -> VersionId {
        let made = self.store.put(&self.bucket, &key(name), body.as_bytes(), &PutOptions::default());
        made.unwrap().version.unwrap()
    }

    fn put_held(&self, name: &str, body: &str) -> VersionId {
        let lock = ObjectLock { legal_hold: Some(true), ..ObjectLock::NONE };
        let options = PutOptions { lock, ..Default::default() };
        self.store.put(&self.bucket, &key(name), body.as_bytes(), &options).unwrap().version.unwrap()
    }

    /// Returns the content of a version, or of the latest version, and the ID in the response.
    fn read(&self, name: &str, version: Option<&VersionId>) -> Result<(String, Option<VersionId>)> {
        let options = GetOptions { version: version.cloned(), ..Default::default() };
        let info = self.store.head(&self.bucket, &key(name), &options)?;
        let found = self.store.get(&self.bucket, &key(name), &options)?;
        assert_eq!(found.info.version, info.version);
        Ok((String::from_utf8(found.content.into_vec()?).unwrap(), info.version))
    }

    fn delete(&self, name: &str, version: Option<&VersionId>) -> Result<()> {
        let options = DeleteOptions { version: version.cloned(), ..Default::default() };
        self.store.delete(&self.bucket, &key(name), &options).map(drop)
    }

    /// Returns all versions that are not delete markers, the newest of each key first.
    fn listed(&self) -> Vec<VersionId> {
        let listing = self.store.list_versions(&self.bucket, &VersionsQuery::default()).unwrap();
        listing.versions.into_iter().filter(|each| each.content.is_some()).map(|each| each.version).collect()
    }

    /// Returns the path of the key's only old version with this ID.
    fn archived(&self, name: &str, version: &VersionId) -> PathBuf {
        let dir = self.path(&format!(".fordway/versions/{name}")).read_dir().unwrap();
        let mut paths = dir.map(|entry| entry.unwrap().path());
        let suffix = format!("-{version}");
        paths.find(|path| path.to_str().unwrap().ends_with(&suffix)).unwrap()
    }
}

/// Copies a file with its attribute and time, as `cp -a` does.
fn copy_all(from: &Path, to: &Path) {
    let (source, mut buffer) = (File::open(from).unwrap(), [0; 4096]);
    fs::copy(from, to).unwrap();
    let copy = File::options().write(true).open(to).unwrap();
    if let Some(record) = fordway_sys::get_xattr(&source, ATTRIBUTE, &mut buffer).unwrap() {
        fordway_sys::set_xattr(&copy, ATTRIBUTE, record).unwrap();
    }
    copy.set_modified(source.metadata().unwrap().modified().unwrap()).unwrap();
}

/// Sets the sticky bit, as `chmod -R 1777` does.
fn set_sticky(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o1777)).unwrap();
}

/// A user restores a locked version by copying it, with its attribute, over the latest version. The copy is the version
/// `null`, and no write or delete of the copy removes the locked version.
#[test]
fn a_copy_of_a_locked_version_does_not_replace_it() {
    for (is_edited, is_deleted) in [(true, false), (false, false), (true, true)] {
        let bucket = VersionedBucket::new(true);
        let first = bucket.put_held("a", "one");
        let second = bucket.put("a", "two");
        thread::sleep(Duration::from_millis(1100));
        copy_all(&bucket.archived("a", &first), &bucket.path("a"));
        let mut content = "one".to_owned();
        if is_edited {
            File::options().append(true).open(bucket.path("a")).unwrap().write_all(b"EDITED").unwrap();
            content.push_str("EDITED");
        }
        assert_eq!(bucket.listed(), [VersionId::null(), first.clone()]);
        assert_eq!(bucket.read("a", None).unwrap(), (content.clone(), None));
        assert_eq!(bucket.read("a", Some(&VersionId::null())).unwrap(), (content.clone(), None));
        assert_eq!(bucket.read("a", Some(&first)).unwrap(), ("one".to_owned(), Some(first.clone())));
        assert_eq!(bucket.delete("a", Some(&first)).unwrap_err().kind(), ErrorKind::AccessDenied);
        match is_deleted {
            true => bucket.delete("a", None).unwrap(),
            false => drop(bucket.put("a", "three")),
        }
        assert_eq!(bucket.read("a", Some(&first)).unwrap(), ("one".to_owned(), Some(first.clone())));
        assert_eq!(bucket.delete("a", Some(&first)).unwrap_err().kind(), ErrorKind::AccessDenied);
        let listed = bucket.listed();
        let copied = &listed[listed.len() - 2];
        assert!(![&first, &second].contains(&copied) && listed.last() == Some(&first), "{listed:?}");
        assert_eq!(bucket.read("a", Some(copied)).unwrap(), (content, Some(copied.clone())));
        // The lock was copied together with the version ID.
        assert_eq!(bucket.delete("a", Some(copied)).unwrap_err().kind(), ErrorKind::AccessDenied);
    }
}

/// Deletes of the original and of the copy each remove one file.
#[test]
fn a_copy_of_an_old_version_and_its_original_are_deleted_separately() {
    for (is_original, is_edited) in [(true, true), (true, false), (false, true), (false, false)] {
        let bucket = VersionedBucket::new(false);
        let first = bucket.put("a", "one");
        bucket.put("a", "two");
        copy_all(&bucket.archived("a", &first), &bucket.path("a"));
        if is_edited {
            File::options().append(true).open(bucket.path("a")).unwrap().write_all(b"EDITED").unwrap();
        }
        match is_original {
            true => {
                bucket.delete("a", Some(&first)).unwrap();
                let content = if is_edited { "oneEDITED" } else { "one" };
                assert_eq!(bucket.read("a", None).unwrap(), (content.to_owned(), None));
                assert_eq!(bucket.listed(), [VersionId::null()]);
                assert_eq!(bucket.read("a", Some(&first)).unwrap_err().kind(), ErrorKind::NoSuchVersion);
            }
            false => {
                bucket.delete("a", Some(&VersionId::null())).unwrap();
                assert_eq!(bucket.read("a", None).unwrap(), ("one".to_owned(), Some(first.clone())));
                assert_eq!(bucket.listed(), [first]);
            }
        }
    }
}

/// A program edits a copy of an old version right after the version was stored. A request that names the version does
/// not affect the copy, and a change of the latest version does not affect the original.
#[test]
fn a_recent_copy_is_not_changed_in_place_of_the_original() {
    let bucket = VersionedBucket::new(true);
    let first = bucket.put("a", "one");
    bucket.put("a", "two");
    copy_all(&bucket.archived("a", &first), &bucket.path("a"));
    let held = |version: Option<&VersionId>| {
        let options = GetOptions { version: version.cloned(), ..Default::default() };
        let info = bucket.store.head(&bucket.bucket, &key("a"), &options).unwrap();
        info.lock.legal_hold == Some(true)
    };
    bucket.store.set_legal_hold(&bucket.bucket, &key("a"), Some(&first), true).unwrap();
    assert!(held(Some(&first)) && !held(Some(&VersionId::null())));
    File::options().append(true).open(bucket.path("a")).unwrap().write_all(b"EDITED").unwrap();
    assert_eq!(bucket.read("a", None).unwrap(), ("oneEDITED".to_owned(), None));
    assert_eq!(bucket.read("a", Some(&first)).unwrap(), ("one".to_owned(), Some(first.clone())));
    assert_eq!(bucket.read("a", Some(&VersionId::null())).unwrap().0, "oneEDITED");
    bucket.store.set_legal_hold(&bucket.bucket, &key("a"), None, true).unwrap();
    bucket.store.set_legal_hold(&bucket.bucket, &key("a"), Some(&first), false).unwrap();
    assert!(held(None) && !held(Some(&first)));
    bucket.delete("a", Some(&first)).unwrap();
    assert_eq!(bucket.listed(), [VersionId::null()]);
    assert_eq!(bucket.read("a", None).unwrap(), ("oneEDITED".to_owned(), None));
}

/// A POSIX program replaces the latest version several times. No old version `null` is lost when S3 clients overwrite
/// the files that the program has written.
#[test]
fn an_old_version_null_is_kept_when_a_program_writes_another() {
    let (dir, bucket) = (tempfile::tempdir().unwrap(), Bucket::new("bucket").unwrap());
    let store = store(&dir);
    store.create_bucket(&bucket).unwrap();
    store.put(&bucket, &key("a"), b"before versioning", &PutOptions::default()).unwrap();
    store.set_versioning(&bucket, VersioningState::Enabled).unwrap();
    let bucket = VersionedBucket { dir, bucket, store };
    bucket.put("a", "one");
    for body in ["program 1", "program 2"] {
        let other = bucket.dir.path().join("other");
        fs::write(&other, body).unwrap();
        fs::rename(&other, bucket.path("a")).unwrap();
        bucket.put("a", "two");
    }
    let listed = bucket.listed();
    let mut contents: Vec<_> =
        listed.iter().map(|version| bucket.read("a", Some(version)).unwrap().0).collect();
    contents.sort_unstable();
    assert_eq!(contents, ["before versioning", "program 1", "program 2", "two"]);
    assert_eq!(bucket.read("a", Some(&VersionId::null())).unwrap().0, "before versioning");
    // The version keeps its ID when it becomes the latest again.
    bucket.delete("a", Some(&listed[0])).unwrap();
    assert_eq!(bucket.listed(), listed[1..]);
    assert_eq!(bucket.read("a", None).unwrap(), ("program 2".to_owned(), Some(listed[1].clone())));
}

/// The sticky bit hides a file's record from readers. Deletes and overwrites still respect the version ID and the lock.
#[test]
fn a_sticky_bit_does_not_break_a_lock() {
    let bucket = VersionedBucket::new(true);
    let held = bucket.put_held("a", "held");
    set_sticky(&bucket.path("a"));
    bucket.delete("a", Some(&VersionId::null())).unwrap();
    assert_eq!(fs::read(bucket.path("a")).unwrap(), b"held");
    assert_eq!(bucket.delete("a", Some(&held)).unwrap_err().kind(), ErrorKind::AccessDenied);
    assert_eq!(bucket.read("a", Some(&held)).unwrap(), ("held".to_owned(), Some(held.clone())));
    bucket.put("a", "newer");
    assert_eq!(bucket.read("a", Some(&held)).unwrap(), ("held".to_owned(), Some(held.clone())));
    assert_eq!(bucket.delete("a", Some(&held)).unwrap_err().kind(), ErrorKind::AccessDenied);
    assert_eq!(bucket.delete("a", Some(&VersionId::null())).map_err(|error| error.kind()), Ok(()));
    assert_eq!(bucket.listed()[1..], *std::slice::from_ref(&held));
    // A change of the lock removes the sticky bit.
    bucket.store.set_legal_hold(&bucket.bucket, &key("a"), Some(&held), false).unwrap();
    let mode = bucket.archived("a", &held).metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o1000, 0);
    bucket.delete("a", Some(&held)).unwrap();
    assert_eq!(bucket.listed().len(), 1);
}

/// Listings use the record that the sticky bit hides, so every listed version can be read and deleted.
#[test]
fn a_version_with_the_sticky_bit_is_listed_with_its_id() {
    let bucket = VersionedBucket::new(false);
    let versions = [bucket.put("a", "new"), bucket.put("x//a", "odd")];
    fs::write(bucket.path("program"), "program").unwrap();
    for path in ["a", ".fordway/odd/x%2F%2Fa", "program"] {
        set_sticky(&bucket.path(path));
    }
    assert_eq!(bucket.listed(), [versions[0].clone(), VersionId::null(), versions[1].clone()]);
    assert_eq!(bucket.read("a", Some(&versions[0])).unwrap().0, "new");
    bucket.delete("a", Some(&versions[0])).unwrap();
    bucket.delete("x//a", Some(&versions[1])).unwrap();
    bucket.delete("program", Some(&VersionId::null())).unwrap();
    assert!(bucket.listed().is_empty());
    // A copy of an old version is the version `null`, even if the copy has the sticky bit.
    let first = bucket.put("a", "one");
    bucket.put("a", "two");
    copy_all(&bucket.archived("a", &first), &bucket.path("a"));
    set_sticky(&bucket.path("a"));
    assert_eq!(bucket.listed(), [VersionId::null(), first]);
}

/// A write of tags to a file with the sticky bit keeps the metadata that the bit hides.
#[test]
fn tags_of_a_sticky_file_do_not_replace_its_metadata() {
    for state in [None, Some(VersioningState::Enabled)] {
        let (dir, bucket) = (tempfile::tempdir().unwrap(), Bucket::new("bucket").unwrap());
        let store = store(&dir);
        store.create_bucket(&bucket).unwrap();
        state.map_or(Ok(()), |state| store.set_versioning(&bucket, state)).unwrap();
        let metadata = Metadata { content_type: Some("text/x".to_owned()), ..Default::default() };
        let options = PutOptions { metadata: metadata.into(), ..Default::default() };
        let made = store.put(&bucket, &key("a"), b"content", &options).unwrap();
        set_sticky(&dir.path().join("bucket/a"));
        let tags: Tags = [("name".to_owned(), "value".to_owned())].into();
        store.set_tags(&bucket, &key("a"), None, &tags).unwrap();
        let info = store.head(&bucket, &key("a"), &GetOptions::default()).unwrap();
        assert_eq!(info.metadata.content_type.as_deref(), Some("text/x"));
        assert_eq!((info.tag_count, info.etag, info.version), (1, made.etag, made.version));
    }
}

/// A file whose record cannot be decoded is listed as the version `null`, and S3 clients can replace and delete it.
#[test]
fn a_file_with_a_bad_record_does_not_hide_other_versions() {
    let bucket = VersionedBucket::new(false);
    let (first, second) = (bucket.put("bad", "one"), bucket.put("bad", "two"));
    let other = bucket.put("other", "fine");
    bucket.put("x//bad", "odd");
    let spoil =
        |path: PathBuf| fordway_sys::set_xattr(File::open(path).unwrap(), ATTRIBUTE, b"junk").unwrap();
    spoil(bucket.path("bad"));
    spoil(bucket.path(".fordway/odd/x%2F%2Fbad"));
    let null = VersionId::null();
    assert_eq!(bucket.listed(), [null.clone(), first.clone(), other.clone(), null.clone()]);
    let objects = bucket.store.list(&bucket.bucket, &ListQuery::default()).unwrap().entries;
    assert_eq!(objects.iter().map(|entry| entry.name()).collect::<Vec<_>>(), ["bad", "other", "x//bad"]);
    assert_eq!(bucket.read("bad", None).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(bucket.read("bad", Some(&first)).unwrap().0, "one");
    assert_eq!(bucket.read("bad", Some(&second)).unwrap_err().kind(), ErrorKind::NoSuchVersion);

    let third = bucket.put("bad", "three");
    bucket.delete("x//bad", None).unwrap();
    let listed = bucket.listed();
    // The files were archived under new IDs, because their IDs are unknown.
    let (bad, odd) = (listed[1].clone(), listed[4].clone());
    assert!(![&null, &second].contains(&&bad) && !odd.is_null());
    assert_eq!(listed, [third.clone(), bad.clone(), first.clone(), other, odd.clone()]);
    bucket.delete("bad", None).unwrap();
    for version in [&bad, &third, &first] {
        bucket.delete("bad", Some(version)).unwrap();
    }
    bucket.delete("x//bad", Some(&odd)).unwrap();
    assert_eq!(bucket.listed().len(), 1);
    // The latest version can also be deleted permanently.
    spoil(bucket.path("other"));
    bucket.delete("other", Some(&null)).unwrap();
    assert_eq!(bucket.listed().len(), 0);
}

/// While versioning is suspended, a write replaces the version `null`. A file whose record cannot be decoded may have
/// another ID, so it is archived.
#[test]
fn a_file_with_a_bad_record_is_kept_while_versioning_is_suspended() {
    for is_deleted in [false, true] {
        let bucket = VersionedBucket::new(false);
        bucket.put("a", "one");
        bucket.store.set_versioning(&bucket.bucket, VersioningState::Suspended).unwrap();
        fordway_sys::set_xattr(File::open(bucket.path("a")).unwrap(), ATTRIBUTE, b"junk").unwrap();
        let put = |body: &[u8]| {
            bucket.store.put(&bucket.bucket, &key("a"), body, &PutOptions::default()).unwrap();
        };
        if is_deleted {
            bucket.delete("a", None).unwrap()
        } else {
            put(b"two")
        }
        put(b"three");
        let listed = bucket.listed();
        assert!(listed.len() == 2 && listed[0].is_null() && !listed[1].is_null(), "{listed:?}");
        assert_eq!(fs::read(bucket.archived("a", &listed[1])).unwrap(), b"one");
        assert_eq!(bucket.read("a", None).unwrap().0, "three");
        bucket.delete("a", Some(&listed[1])).unwrap();
        assert_eq!(bucket.listed(), listed[..1]);
    }
}

/// A record that cannot be decoded may contain a lock, so a bucket with object lock keeps the file.
#[test]
fn a_file_with_a_bad_record_may_be_locked() {
    let bucket = VersionedBucket::new(true);
    bucket.put_held("bad", "held");
    let null = VersionId::null();
    let is_kept = |version| bucket.delete("bad", Some(version)).unwrap_err().kind() == ErrorKind::Corrupt;
    fordway_sys::set_xattr(File::open(bucket.path("bad")).unwrap(), ATTRIBUTE, b"junk").unwrap();
    assert!(is_kept(&null));
    bucket.put("bad", "newer");
    let bad = &bucket.listed()[1];
    assert!(is_kept(bad));
    bucket.delete("bad", None).unwrap();
    assert!(is_kept(bad));
    assert_eq!(fs::read(bucket.archived("bad", bad)).unwrap(), b"held");
}

/// Two keys conflict as paths, so the version of the second is at its odd path. A POSIX program then replaces the
/// directory at the plain path with a file, which hides the version. The next write or delete of the key archives it.
#[test]
fn a_version_hidden_by_a_file_of_a_program_is_kept() {
    let null = VersionId::null();
    for versioning in [VersioningState::Enabled, VersioningState::Suspended] {
        for change in ["put", "delete", "delete null", "delete another", "delete the version"] {
            let bucket = VersionedBucket::new(false);
            let other = bucket.put("a/b", "conflicts");
            let first = bucket.put("a", "one");
            fs::remove_dir_all(bucket.path("a")).unwrap();
            fs::write(bucket.path("a"), "program").unwrap();
            bucket.store.set_versioning(&bucket.bucket, versioning).unwrap();
            let read_first = || bucket.read("a", Some(&first)).map_err(|error| error.kind());
            assert_eq!(read_first().unwrap().0, "one");
            match change {
                "put" => drop(bucket.put("a", "two")),
                "delete" => bucket.delete("a", None).unwrap(),
                "delete null" => bucket.delete("a", Some(&null)).unwrap(),
                "delete another" => bucket.delete("a", Some(&other)).unwrap(),
                _ => bucket.delete("a", Some(&first)).unwrap(),
            }
            assert!(!bucket.path(".fordway/odd/a").exists(), "{change}");
            let is_kept = change != "delete the version";
            assert_eq!(bucket.listed().contains(&first), is_kept, "{change}");
            let expected = is_kept.then(|| ("one".to_owned(), Some(first.clone())));
            assert_eq!(read_first(), expected.ok_or(ErrorKind::NoSuchVersion), "{change}");
            let latest = bucket.read("a", None).map(|(content, _)| content).map_err(|error| error.kind());
            let expected = match change {
                "put" => Ok("two"),
                "delete" => Err(ErrorKind::NoSuchKey),
                "delete null" => Ok("one"),
                _ => Ok("program"),
            };
            assert_eq!(latest.as_deref(), expected.as_deref(), "{change}");
        }
    }
}

/// A hidden version keeps its lock when it becomes an old version.
#[test]
fn a_hidden_version_stays_locked() {
    let bucket = VersionedBucket::new(true);
    bucket.put("a/b", "conflicts");
    let held = bucket.put_held("a", "held");
    fs::remove_dir_all(bucket.path("a")).unwrap();
    fs::write(bucket.path("a"), "program").unwrap();
    assert_eq!(bucket.delete("a", Some(&held)).unwrap_err().kind(), ErrorKind::AccessDenied);
    bucket.put("a", "two");
    assert_eq!(bucket.delete("a", Some(&held)).unwrap_err().kind(), ErrorKind::AccessDenied);
    assert_eq!(bucket.read("a", Some(&held)).unwrap().0, "held");
}

/// Both files of a key were created before versioning was enabled, so both are versions `null`.
#[test]
fn a_hidden_version_null_is_kept_with_the_file_that_hides_it() {
    let (dir, bucket) = (tempfile::tempdir().unwrap(), Bucket::new("bucket").unwrap());
    let store = store(&dir);
    store.create_bucket(&bucket).unwrap();
    for (name, content) in [("a/b", "conflicts"), ("a", "hidden")] {
        store.put(&bucket, &key(name), content.as_bytes(), &PutOptions::default()).unwrap();
    }
    store.set_versioning(&bucket, VersioningState::Enabled).unwrap();
    let bucket = VersionedBucket { dir, bucket, store };
    fs::remove_dir_all(bucket.path("a")).unwrap();
    fs::write(bucket.path("a"), "program").unwrap();
    bucket.put("a", "new");
    let contents: Vec<_> =
        bucket.listed().iter().map(|version| bucket.read("a", Some(version)).unwrap().0).collect();
    assert_eq!(contents, ["new", "program", "hidden"]);
}

/// A folder, which is stored as a directory, was put before versioning was enabled. It is a version like any other.
#[test]
fn a_folder_from_before_versioning_is_a_version() {
    let null = VersionId::null();
    for change in ["delete null", "put", "delete"] {
        let (dir, bucket) = (tempfile::tempdir().unwrap(), Bucket::new("bucket").unwrap());
        let store = store(&dir);
        store.create_bucket(&bucket).unwrap();
        let metadata = Metadata { content_type: Some("text/x".to_owned()), ..Default::default() };
        let tags: Tags = [("name".to_owned(), "value".to_owned())].into();
        let options = PutOptions { metadata: metadata.into(), tags, ..Default::default() };
        let made = store.put(&bucket, &key("dir/"), b"", &options).unwrap();
        assert!(dir.path().join("bucket/dir").is_dir());
        store.set_versioning(&bucket, VersioningState::Enabled).unwrap();
        let bucket = VersionedBucket { dir, bucket, store };
        let head = || {
            let options = GetOptions::version(null.clone());
            bucket.store.head(&bucket.bucket, &key("dir/"), &options).map_err(|error| error.kind())
        };
        let before = head().unwrap();
        match change {
            "put" => drop(bucket.put("dir/", "content")),
            "delete" => bucket.delete("dir/", None).unwrap(),
            _ => bucket.delete("dir/", Some(&null)).unwrap(),
        }
        if change == "delete null" {
            assert_eq!(head(), Err(ErrorKind::NoSuchVersion));
        } else {
            let info = head().unwrap();
            assert_eq!(info.metadata.content_type.as_deref(), Some("text/x"), "{change}");
            assert_eq!((info.tag_count, &info.etag, info.size), (1, &made.etag, 0), "{change}");
            assert_eq!(info.modified, before.modified, "{change}");
            assert_eq!(bucket.read("dir/", Some(&null)).unwrap().0, "", "{change}");
        }
        let listing = bucket.store.list_versions(&bucket.bucket, &VersionsQuery::default()).unwrap();
        let count = if change == "delete null" { 0 } else { 2 };
        assert_eq!(listing.versions.len(), count, "{change}");
        for each in listing.versions {
            bucket.delete("dir/", Some(&each.version)).unwrap();
        }
        bucket.store.delete_bucket(&bucket.bucket).unwrap();
    }
}

/// Another program renames a file over the key while an S3 client changes the key. The store then archives the file
/// that it finds next.
#[test]
fn a_file_renamed_over_the_key_during_a_change_does_not_fail_the_change() {
    let bucket = VersionedBucket::new(false);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                fs::write(bucket.path("other"), "program").unwrap();
                fs::rename(bucket.path("other"), bucket.path("k")).unwrap();
            }
        });
        let change = thread::Builder::new().spawn_scoped(scope, || {
            for round in 0..1000 {
                let changed = match round % 4 {
                    3 => bucket.delete("k", None),
                    _ => {
                        let put = bucket.store.put(&bucket.bucket, &key("k"), b"put", &PutOptions::default());
                        put.map(drop)
                    }
                };
                changed.unwrap_or_else(|error| panic!("round {round}: {error}"));
            }
        });
        let change = change.unwrap().join();
        is_over.store(true, Ordering::Relaxed);
        change.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}
