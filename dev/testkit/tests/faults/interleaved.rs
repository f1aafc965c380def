//! Runs an operation of another store just before each file-system call of an operation. Whatever the order, the result
//! of both operations must be correct.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{
    Bucket, CompleteOptions, CompletedPart, Conditions, DeleteOptions, ETag, ErrorKind, ExpectedContent,
    GetOptions, Key, LockConfiguration, MAX_TAGS, Metadata, MultipartUploadOperations, ObjectLockOperations,
    ObjectTagOperations, ObjectVersionOperations, Objects, PartOptions, PartsQuery, PutOptions, Tags,
    UploadId, VersionListing, VersioningState, VersionsQuery,
};
use fordway_sys::fault::{self, FaultInjectionPlan};

/// An upper bound on the number of calls of one operation.
const MOST_CALLS: usize = 1000;

/// Opens a store that waits only briefly for locks, because the other operation does not continue in the meantime.
fn open(root: &Path) -> PosixStore {
    let config = PosixConfig { lock_patience: Duration::from_millis(5), ..Default::default() };
    PosixStore::open(root, config).unwrap()
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

/// Returns options with tags that do not fit into an attribute.
fn with_many_tags() -> PutOptions {
    let tags: Tags = (0..MAX_TAGS).map(|n| (format!("{n:0>100}"), "v".repeat(256))).collect();
    let metadata = Metadata { content_type: Some("text/x".into()), ..Metadata::default() };
    PutOptions { tags, metadata: metadata.into(), ..PutOptions::default() }
}

/// Runs `act` once for each of its calls, with `other` just before that call. `check` gets both results.
fn interleave<R: 'static, T>(
    prepare: impl Fn(&Path),
    other: impl Fn(&PosixStore) -> R + Copy + 'static,
    act: impl Fn(&PosixStore) -> T,
    check: impl Fn((&PosixStore, &Path), R, T, &str),
) {
    for at in 1..MOST_CALLS {
        let dir = crate::way::scratch();
        prepare(dir.path());
        let (store, second) = (open(dir.path()), open(dir.path()));
        let result = Rc::new(RefCell::new(None));
        let of_other = result.clone();
        let meanwhile = move || drop(of_other.borrow_mut().replace(other(&second)));
        let (done, calls) =
            fault::run_interleaved(FaultInjectionPlan::default(), (at, meanwhile), || act(&store));
        let Some(other) = result.borrow_mut().take() else {
            assert!(at > 5, "{at}");
            return;
        };
        let call = calls.get(at - 1).copied().unwrap_or_default();
        check((&store, dir.path()), other, done, &format!("before call {at}, {call}"));
    }
    panic!("the operation makes too many calls");
}

fn bucket() -> Bucket {
    Bucket::new("bucket").unwrap()
}

/// A refused removal takes nothing away: neither a running upload, nor the metadata of an object that was created in
/// the meantime.
#[test]
fn a_bucket_that_gets_an_object_during_its_removal_stays_as_it_was() {
    let prepare = |root: &Path| {
        let store = open(root);
        store.create_bucket(&bucket()).unwrap();
        let upload = store.create_upload(&bucket(), &key("u"), &PutOptions::default()).unwrap();
        std::fs::write(root.join("upload"), upload.as_str()).unwrap();
    };
    let put = |store: &PosixStore| store.put(&bucket(), &key("k"), b"content", &with_many_tags()).is_ok();
    let remove = |store: &PosixStore| store.delete_bucket(&bucket());
    interleave(prepare, put, remove, |(store, root), was_put, removed, place| {
        if removed.is_ok() {
            assert!(!was_put, "{place}");
            let left = std::fs::read_dir(root).unwrap().count();
            assert_eq!(left, 1, "only the file `upload` is left: {place}");
            return;
        }
        assert!(was_put, "{place}: {removed:?}");
        let tags = store.tags(&bucket(), &key("k"), None).expect(place);
        assert_eq!(tags.len(), MAX_TAGS, "{place}");
        let upload = std::fs::read_to_string(root.join("upload")).unwrap();
        let upload = UploadId::new(upload).unwrap();
        store.list_parts(&bucket(), &key("u"), &upload, &PartsQuery::default()).expect(place);
    });
}

/// During the removal of a bucket with object lock, no version is created without a version ID.
#[test]
fn a_locked_bucket_accepts_no_unprotected_object_during_its_removal() {
    let prepare = |root: &Path| {
        let store = open(root);
        store.create_bucket(&bucket()).unwrap();
        store.set_versioning(&bucket(), VersioningState::Enabled).unwrap();
        store.set_lock_configuration(&bucket(), &LockConfiguration::default()).unwrap();
    };
    let put = |store: &PosixStore| store.put(&bucket(), &key("k"), b"content", &PutOptions::default());
    let remove = |store: &PosixStore| store.delete_bucket(&bucket());
    interleave(prepare, put, remove, |(store, _), put, removed, place| {
        let Ok(made) = put else { return };
        assert!(removed.is_err(), "{place}");
        assert!(made.version.is_some(), "{place}");
        store
            .head(&bucket(), &key("k"), &GetOptions { version: made.version, ..Default::default() })
            .expect(place);
        assert_eq!(
            store.lock_configuration(&bucket()).unwrap(),
            Some(LockConfiguration::default()),
            "{place}"
        );
    });
    // The other way round: the bucket is removed in the middle of a put.
    interleave(
        prepare,
        |store| store.delete_bucket(&bucket()).is_ok(),
        put,
        |(store, _), is_removed, put, place| {
            if let Ok(made) = put {
                assert!(!is_removed && made.version.is_some(), "{place}");
                store.head(&bucket(), &key("k"), &GetOptions::default()).expect(place);
            }
        },
    );
}

/// A put replaces an object that another put has created at the plain path, instead of being hidden by it.
#[test]
fn a_put_that_moves_to_its_odd_path_is_not_hidden() {
    let prepare = |root: &Path| {
        let store = open(root);
        store.create_bucket(&bucket()).unwrap();
        store.put(&bucket(), &key("k/x"), b"x", &PutOptions::default()).unwrap();
    };
    let create = |store: &PosixStore| {
        let _ = store.delete(&bucket(), &key("k/x"), &DeleteOptions::default());
        let options = PutOptions { conditions: Conditions::create_only(), ..Default::default() };
        store.put(&bucket(), &key("k"), b"created", &options).is_ok()
    };
    let put = |store: &PosixStore| store.put(&bucket(), &key("k"), b"put", &PutOptions::default()).is_ok();
    interleave(prepare, create, put, |(store, _), is_created, is_put, place| {
        let read = || {
            let object = store.get(&bucket(), &key("k"), &GetOptions::default())?;
            object.content.into_vec()
        };
        // The creation succeeds only if the put has not created the object yet, so the put comes later.
        if is_put {
            assert_eq!(read().expect(place), b"put", "{place}");
        } else if is_created {
            assert_eq!(read().expect(place), b"created", "{place}");
        }
    });
}

/// A reader that has opened a file that is then replaced still gets its metadata.
#[test]
fn a_replaced_object_is_read_with_its_metadata() {
    let put = |store: &PosixStore| store.put(&bucket(), &key("k"), b"again", &with_many_tags()).is_ok();
    let prepare = |root: &Path| {
        let store = open(root);
        store.create_bucket(&bucket()).unwrap();
        put(&store);
    };
    let get = |store: &PosixStore| store.get(&bucket(), &key("k"), &GetOptions::default());
    interleave(prepare, put, get, |_, was_put, object, place| {
        assert!(was_put, "{place}");
        let info = object.expect(place).info;
        assert_eq!(
            (info.metadata.content_type.as_deref(), info.tag_count),
            (Some("text/x"), MAX_TAGS),
            "{place}"
        );
    });
}

/// A version that exists during the whole listing is listed, although a delete turns it from the latest into an old
/// version, or the removal of a delete marker turns it back.
#[test]
fn a_version_that_moves_during_a_listing_is_listed() {
    let prepare = |root: &Path| {
        let store = open(root);
        store.create_bucket(&bucket()).unwrap();
        store.set_versioning(&bucket(), VersioningState::Enabled).unwrap();
        for name in ["a", "d/k", "z"] {
            store.put(&bucket(), &key(name), b"content", &PutOptions::default()).unwrap();
        }
    };
    let prepare_deleted = |root: &Path| {
        prepare(root);
        open(root).delete(&bucket(), &key("d/k"), &DeleteOptions::default()).unwrap();
    };
    let delete = |store: &PosixStore| {
        store.delete(&bucket(), &key("d/k"), &DeleteOptions::default()).unwrap();
    };
    let undelete = |store: &PosixStore| {
        let listed = store.list_versions(&bucket(), &VersionsQuery::default()).unwrap();
        let marker = listed.versions.into_iter().find(|version| version.content.is_none());
        let version = marker.map(|marker| marker.version);
        let options = DeleteOptions { version, ..Default::default() };
        store.delete(&bucket(), &key("d/k"), &options).unwrap();
    };
    let list = |store: &PosixStore| store.list_versions(&bucket(), &VersionsQuery::default()).unwrap();
    let check = |_: (&PosixStore, &Path), (): (), listed: VersionListing, place: &str| {
        let found: Vec<_> = listed.versions.iter().filter(|version| version.content.is_some()).collect();
        assert_eq!(found.len(), 3, "{place}: {found:?}");
    };
    interleave(prepare, delete, list, check);
    interleave(prepare_deleted, undelete, list, check);
}

/// A child process that was forked during a failed completion has inherited the upload's lock, and must not hold it.
#[test]
fn a_forked_child_does_not_keep_the_lock_of_an_upload() {
    let dir = crate::way::scratch();
    let store = open(dir.path());
    store.create_bucket(&bucket()).unwrap();
    let upload = store.create_upload(&bucket(), &key("k"), &PutOptions::default()).unwrap();
    let mut part = store.part_writer(&bucket(), &key("k"), &upload, 1, &PartOptions::default()).unwrap();
    part.write(b"part").unwrap();
    let etag = part.commit(&ExpectedContent::default()).unwrap().etag;
    let complete = |etag| {
        let parts = [CompletedPart { number: 1, etag, checksum: None }];
        store.complete_upload(&bucket(), &key("k"), &upload, &parts, &CompleteOptions::default())
    };
    for at in 1..MOST_CALLS {
        let child = Rc::new(RefCell::new(None));
        let of_child = child.clone();
        let fork = move || {
            let sleep = || std::thread::sleep(Duration::from_secs(60));
            *of_child.borrow_mut() = Some(fordway_sys::fork_process(sleep).unwrap());
        };
        let (failed, calls) = fault::run_interleaved(FaultInjectionPlan::default(), (at, fork), || {
            complete(ETag::new("wrong"))
        });
        // The child still runs during the second completion.
        for failed in [failed, complete(ETag::new("wrong"))] {
            assert_eq!(failed.unwrap_err().kind(), ErrorKind::InvalidPart, "fork before call {at}");
        }
        if calls.len() < at {
            break;
        }
    }
    complete(etag).unwrap();
}

/// A creation that cannot get the key's lock withdraws its object, but not the object of the writer that holds the
/// lock and has replaced it.
#[test]
fn a_creation_withdraws_only_its_own_object() {
    let mut replaced = 0;
    for at in 1..MOST_CALLS {
        let dir = crate::way::scratch();
        let store = open(dir.path());
        store.create_bucket(&bucket()).unwrap();
        for _ in 0..2 {
            store.put(&bucket(), &key("other"), b"", &PutOptions::default()).unwrap();
        }
        let locks =
            std::fs::OpenOptions::new().write(true).open(dir.path().join("bucket/.fordway/locks")).unwrap();
        let _held = fordway_sys::lock_range(locks.into(), 0..0x0100_0000, Duration::ZERO).unwrap();
        // The creation does not know yet that the bucket has odd keys.
        std::fs::create_dir(dir.path().join("bucket/.fordway/odd")).unwrap();
        let (new, named) = (dir.path().join("new"), dir.path().join("bucket/k"));
        std::fs::write(&new, "other").unwrap();
        let is_replaced = Rc::new(RefCell::new(false));
        let was_replaced = is_replaced.clone();
        let (from, to) = (new.clone(), named.clone());
        let replace = move || {
            if to.exists() {
                std::fs::rename(from, to).unwrap();
                *was_replaced.borrow_mut() = true;
            }
        };
        let create = || {
            let options = PutOptions { conditions: Conditions::create_only(), ..Default::default() };
            store.put(&bucket(), &key("k"), b"created", &options)
        };
        let (created, calls) = fault::run_interleaved(FaultInjectionPlan::default(), (at, replace), create);
        assert!(created.is_err(), "before call {at}");
        if *is_replaced.borrow() {
            replaced += 1;
            assert_eq!(std::fs::read(&named).unwrap(), b"other", "before call {at} of {calls:?}");
        }
        if calls.len() < at {
            break;
        }
    }
    if replaced == 0 {
        fordway_needs::skip("the machine is too slow: the creation knows that the bucket has odd keys");
    }
}
