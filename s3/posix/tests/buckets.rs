//! Tests which files must remain when the removal of a bucket is refused, and that no files remain when a bucket is
//! removed.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{
    Bucket, BucketDocumentKind, BucketDocumentOperations, CopyOptions, DeleteOptions, Error, ErrorKind,
    GetOptions, Key, MultipartUploadOperations, ObjectVersionOperations, Objects, PutOptions, UploadsQuery,
    VersioningState,
};
use tempfile::TempDir;

fn open() -> (TempDir, PosixStore) {
    let dir = tempfile::tempdir().unwrap();
    let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
    (dir, store)
}

fn bucket(name: &str) -> Bucket {
    Bucket::new(name).unwrap()
}

fn key(key: &str) -> Key {
    Key::new(key).unwrap()
}

/// An empty directory created by a POSIX program is not an object, but prevents its bucket from being removed. The
/// bucket must then keep its versioning state and its uploads.
#[test]
fn a_bucket_that_stays_stays_what_it_is() {
    let (dir, store) = open();
    let bucket = bucket("bucket");
    store.create_bucket(&bucket).unwrap();
    store.set_versioning(&bucket, VersioningState::Enabled).unwrap();
    store.create_upload(&bucket, &key("k"), &PutOptions::default()).unwrap();
    fs::create_dir(dir.path().join("bucket/empty")).unwrap();
    let error = store.delete_bucket(&bucket).expect_err("there is a directory in it");
    assert_eq!(error.kind(), ErrorKind::BucketNotEmpty);
    assert_eq!(store.versioning(&bucket).unwrap(), VersioningState::Enabled);
    assert_eq!(store.list_uploads(&bucket, &UploadsQuery::default()).unwrap().uploads.len(), 1);
    fs::remove_dir(dir.path().join("bucket/empty")).unwrap();
    store.delete_bucket(&bucket).unwrap();
    assert!(!dir.path().join("bucket").exists());
}

/// A bucket that is a link is not removed, and neither is its target. A file named `.fordway` does not prevent the
/// removal of a bucket.
#[test]
fn a_link_is_not_removed_and_a_file_in_the_way_is() {
    let (dir, store) = open();
    let (real, link) = (bucket("real"), bucket("link"));
    store.create_bucket(&real).unwrap();
    store.set_versioning(&real, VersioningState::Enabled).unwrap();
    symlink("real", dir.path().join("link")).unwrap();
    let error = store.delete_bucket(&link).expect_err("it is a link");
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    assert_eq!(store.versioning(&real).unwrap(), VersioningState::Enabled);
    store.delete_bucket(&real).unwrap();
    store.create_bucket(&real).unwrap();
    fs::write(dir.path().join("real/.fordway"), "").unwrap();
    store.delete_bucket(&real).unwrap();
}

/// Creating and removing buckets does not leave files open.
#[test]
fn buckets_leave_no_file_open() {
    let (_dir, store) = open();
    let open_files = || fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open_files();
    for number in 0..1000 {
        let bucket = bucket(&format!("bucket-{number}"));
        store.create_bucket(&bucket).unwrap();
        store.put(&bucket, &key("k"), b"1", &PutOptions::default()).unwrap();
        store.put(&bucket, &key("k"), b"2", &PutOptions::default()).unwrap();
        store.delete(&bucket, &key("k"), &DeleteOptions::default()).unwrap();
        let gone = store.head(&bucket, &key("k"), &GetOptions::default());
        assert_eq!(gone.expect_err("it was deleted").kind(), ErrorKind::NoSuchKey);
        store.delete_bucket(&bucket).unwrap();
    }
    let after = open_files();
    assert!(after < before + 700, "{before} files were open before, {after} after");
}

/// A store keeps directories open in which it has just found a key missing. If another store then recreates the bucket
/// and puts the key, the first store must find the key.
#[test]
fn a_bucket_made_again_by_another_store_is_seen_at_once() {
    let (dir, reader) = open();
    let writer = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
    let (bucket, options) = (bucket("bucket"), GetOptions::default());
    for round in 0..50 {
        writer.create_bucket(&bucket).unwrap();
        writer.put(&bucket, &key("first"), b"1", &PutOptions::default()).unwrap();
        // A state that was read in the same tick of the clock as its last change is not cached.
        thread::sleep(std::time::Duration::from_millis(15));
        for _ in 0..4 {
            let missing = reader.head(&bucket, &key("k"), &options).expect_err("it was not put");
            assert_eq!(missing.kind(), ErrorKind::NoSuchKey);
        }
        writer.delete(&bucket, &key("first"), &DeleteOptions::default()).unwrap();
        writer.delete_bucket(&bucket).unwrap();
        writer.create_bucket(&bucket).unwrap();
        writer.put(&bucket, &key("k"), b"22", &PutOptions::default()).unwrap();
        let found = reader.head(&bucket, &key("k"), &options);
        assert_eq!(found.unwrap_or_else(|error| panic!("round {round}: {error}")).size, 2);
        writer.delete(&bucket, &key("k"), &DeleteOptions::default()).unwrap();
        writer.delete_bucket(&bucket).unwrap();
    }
}

/// Sets the flag when this value is dropped, even after a panic.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// While one store tries to remove the bucket, another store puts objects at plain paths and at odd paths. Every object
/// whose put succeeded is kept.
#[test]
fn no_object_goes_with_a_bucket() {
    let (dir, remover) = open();
    let (bucket, is_over) = (bucket("bucket"), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let _ = remover.delete_bucket(&bucket);
            }
        });
        let _over = Over(&is_over);
        let writer = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
        // While a removal finds out that the bucket is not empty, requests do not find the bucket for a moment.
        let is_hidden = |error: &Error| error.kind() == ErrorKind::NoSuchBucket;
        let done_or_again = |done: Result<(), Error>, what: &str| match done {
            Err(error) if error.kind() != ErrorKind::ConditionalConflict && !is_hidden(&error) => {
                panic!("{what}: {error}")
            }
            _ => {}
        };
        let mut put = 0;
        for name in ["odd//key", "plain"].into_iter().cycle().take(1500) {
            // The bucket may still exist, or may immediately be removed again.
            let _ = writer.create_bucket(&bucket);
            if writer.put(&bucket, &key(name), b"body", &PutOptions::default()).is_err() {
                continue;
            }
            put += 1;
            if put % 2 == 0 {
                let over = writer.put(&bucket, &key(name), b"body", &PutOptions::default());
                done_or_again(over.map(drop), "put over it");
            }
            let mut body = Vec::new();
            let begin = Instant::now();
            let mut read = || writer.read(&bucket, &key(name), &GetOptions::default(), &mut body);
            let found = loop {
                match read() {
                    Err(error) if is_hidden(&error) && begin.elapsed() < Duration::from_secs(10) => {}
                    done => break done,
                }
            };
            found.unwrap_or_else(|error| panic!("object {put} is lost: {error}"));
            let deleted = writer.delete(&bucket, &key(name), &DeleteOptions::default());
            done_or_again(deleted.map(drop), "delete it");
        }
        assert!(put > 0, "nothing was put");
    });
}

/// A user may create a tree of any depth where odd keys are stored. The removal of such a tree must not exhaust the
/// stack or the file descriptors of the process.
#[test]
fn a_tree_deeper_than_any_key_is_not_removed() {
    let (dir, store) = open();
    let bucket = bucket("bucket");
    store.create_bucket(&bucket).unwrap();
    fs::create_dir_all(dir.path().join("bucket/.fordway/odd").join("a/".repeat(900))).unwrap();
    let error = store.delete_bucket(&bucket).expect_err("there are directories in it");
    assert_eq!(error.kind(), ErrorKind::BucketNotEmpty, "{error}");
    fs::remove_dir_all(dir.path().join("bucket/.fordway/odd/a")).unwrap();
    store.delete_bucket(&bucket).unwrap();
}

/// A directory that has the name of a document, or of the versioning setting, is named in the error of each operation.
#[test]
fn a_directory_in_place_of_a_document_is_named() {
    let (dir, store) = open();
    let bucket = bucket("bucket");
    store.create_bucket(&bucket).unwrap();
    let kind = BucketDocumentKind::known("policy");
    let document = dir.path().join("bucket/.fordway/document-policy");
    for content in ["", "/content"] {
        fs::create_dir_all(document.join(&content[content.len().min(1)..])).unwrap();
        for error in [
            store.set_document(&bucket, &kind, b"{}").expect_err("it cannot be replaced"),
            store.document(&bucket, &kind).expect_err("it cannot be read"),
            store.delete_document(&bucket, &kind).expect_err("it cannot be removed"),
        ] {
            assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
            assert!(error.detail().starts_with("bucket/.fordway/document-policy is not a"), "{error}");
            assert!(error.detail().contains("have the bucket's owner remove it"), "{error}");
        }
    }
    fs::remove_dir_all(&document).unwrap();
    store.set_document(&bucket, &kind, b"{}").unwrap();
    store.delete_document(&bucket, &kind).unwrap();
    fs::create_dir_all(dir.path().join("bucket/.fordway/versioning")).unwrap();
    let error = store.set_versioning(&bucket, VersioningState::Enabled).expect_err("it cannot be replaced");
    assert!(error.kind() != ErrorKind::Io, "{error}");
}

/// Scripts treat the error for a bucket that they already own as success, and then upload into the bucket.
#[test]
fn a_bucket_of_another_user_is_not_ones_own() {
    if !fordway_needs::root("to act as other users") {
        return;
    }
    let (dir, store) = open();
    fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
    let make = |uid| {
        let peer = fordway_sys::PeerCredentials { uid, gid: uid, groups: vec![] };
        let user = fordway_sys::ImpersonatedUser::new(&peer).unwrap();
        user.play(|| store.create_bucket(&bucket("shared"))).unwrap().map_err(|error| error.kind())
    };
    assert_eq!(make(1001), Ok(()));
    assert_eq!(make(1001), Err(ErrorKind::BucketAlreadyOwnedByYou));
    assert_eq!(make(1002), Err(ErrorKind::BucketAlreadyExists));
    let error = store.create_bucket(&bucket("shared")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BucketAlreadyOwnedByYou, "root owns every bucket");
}

/// Clients that create a bucket before they use it treat this error as success.
#[test]
fn a_directory_with_a_name_that_is_not_allowed_for_new_buckets_is_taken() {
    let (dir, store) = open();
    for name in ["rb", "Big-"] {
        let create = || store.create_bucket(&bucket(name)).map_err(|error| error.kind());
        assert_eq!(create(), Err(ErrorKind::InvalidBucketName), "{name}");
        fs::create_dir(dir.path().join(name)).unwrap();
        assert_eq!(create(), Err(ErrorKind::BucketAlreadyOwnedByYou), "{name}");
    }
}

#[test]
fn a_copy_names_the_source_that_is_missing() {
    let (_dir, store) = open();
    let (here, from, to) = (bucket("here"), key("from"), key("to"));
    store.create_bucket(&here).unwrap();
    let upload = store.create_upload(&here, &to, &PutOptions::default()).unwrap();
    for source in [bucket("gone"), here.clone()] {
        let named = format!("s3://{source}/from");
        let error = store.copy((&source, &from), &here, &to, &CopyOptions::default()).unwrap_err();
        assert_eq!(error.target(), named);
        let options = GetOptions::default();
        let error = store.copy_part((&source, &from), &options, (&here, &to, &upload, 1)).unwrap_err();
        assert_eq!(error.target(), named);
    }
}

/// In a bucket with directories that are objects, each emptied directory is removed, regardless of which keys share an
/// in-process lock with it.
#[test]
fn every_emptied_directory_is_removed() {
    let (dir, store) = open();
    let bucket = bucket("bucket");
    store.create_bucket(&bucket).unwrap();
    let (put, delete) = (PutOptions::default(), DeleteOptions::default());
    store.put(&bucket, &key("folder/"), b"", &put).unwrap();
    store.delete(&bucket, &key("folder/"), &delete).unwrap();
    // The names with the numbers 363 and 477 share an in-process lock with `run/`.
    for at in 300..500 {
        let name = key(&format!("run/{at}"));
        store.put(&bucket, &name, b"content", &put).unwrap();
        store.delete(&bucket, &name, &delete).unwrap();
        assert!(!dir.path().join("bucket/run").exists(), "{name}");
    }
    // When several threads empty a directory, the last of them removes it.
    thread::scope(|scope| {
        for thread in 0..4 {
            let (store, bucket) = (&store, &bucket);
            scope.spawn(move || {
                for at in 0..50 {
                    let name = key(&format!("run/{thread}/{at}"));
                    store.put(bucket, &name, b"content", &PutOptions::default()).unwrap();
                    store.delete(bucket, &name, &DeleteOptions::default()).unwrap();
                }
            });
        }
    });
    store.delete_bucket(&bucket).unwrap();
}
