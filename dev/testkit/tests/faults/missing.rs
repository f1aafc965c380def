//! Tests names that the client of a shared file system has wrongly cached as missing. Each call in turn fails once with
//! `ENOENT`, on a file system that is reported as NFS. No such failure may cause the loss of an object, its record or
//! its lock.

use std::time::{Duration, SystemTime};

use fordway_posix::{GcEvent, GcOptions, PosixConfig, PosixStore};
use fordway_store::{
    Bucket, Conditions, DeleteOptions, ETagMatch, ErrorKind, GetOptions, Key, LockConfiguration, MAX_TAGS,
    Metadata, ObjectLock, ObjectLockOperations, ObjectTagOperations, ObjectVersionOperations, Objects,
    PutOptions, Retention, RetentionMode, Tags, VersioningState, ms_since_1970,
};
use fordway_sys::fault::{self, FaultInjectionPlan, SyscallFault};
use fordway_sys::{Errno, FileSystemSharing};

/// An upper bound on the number of calls that an operation makes.
const MOST_CALLS: usize = 1000;

fn bucket() -> Bucket {
    Bucket::new("bucket").unwrap()
}

fn key() -> Key {
    Key::new("dir/k").unwrap()
}

/// Returns a plan that reports the file system as NFS. The system calls in `missing` always fail, for example those
/// that read extended attributes.
fn shared(
    nth: Option<(usize, SyscallFault)>,
    missing: &'static [(&'static str, Errno)],
) -> FaultInjectionPlan {
    let sharing = Some(FileSystemSharing::Nfs);
    FaultInjectionPlan { nth, missing, sharing, ..FaultInjectionPlan::default() }
}

/// Runs `act` once for each call that it makes, with a new bucket that `prepare` fills. In each run, one call fails as
/// if its name did not exist. `check` receives the result of `act`. Returns the result of the last run, in which no
/// call failed.
fn each_miss<P, T>(
    missing: &'static [(&'static str, Errno)],
    prepare: impl Fn(&PosixStore) -> P,
    act: impl Fn(&PosixStore, &P) -> T,
    check: impl Fn(&PosixStore, P, &T, &str),
) -> T {
    let mut at = 1;
    loop {
        let dir = crate::way::scratch();
        let open = || {
            let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
            store.create_bucket(&bucket()).or_else(|_| store.head_bucket(&bucket()).map(drop)).unwrap();
            store
        };
        let (prepared, _) = fault::run(shared(None, missing), || prepare(&open()));
        let nth = Some((at, SyscallFault::Fail(Errno::NOENT)));
        let store = fault::run(shared(None, missing), open).0;
        let (done, calls) = fault::run(shared(nth, missing), || act(&store, &prepared));
        let place = format!("call {at} of {calls:?}");
        fault::run(shared(None, missing), || check(&open(), prepared, &done, &place));
        if calls.len() < at {
            assert!((10..MOST_CALLS).contains(&at), "{at} calls");
            return done;
        }
        at += 1;
    }
}

pub(crate) const NO_ATTRIBUTES: &[(&str, Errno)] = &[
    ("fsetxattr", Errno::OPNOTSUPP),
    ("fgetxattr", Errno::OPNOTSUPP),
    ("getxattrat", Errno::OPNOTSUPP),
    ("lgetxattr", Errno::OPNOTSUPP),
];

fn body(store: &PosixStore, options: &GetOptions) -> Result<Vec<u8>, ErrorKind> {
    let object = store.get(&bucket(), &key(), options).map_err(|error| error.kind())?;
    Ok(object.content.into_vec().unwrap())
}

#[test]
fn a_delete_that_succeeds_has_removed_the_object() {
    for conditions in
        [Conditions::default(), Conditions { if_match: Some(ETagMatch::Any), ..Conditions::default() }]
    {
        let options = DeleteOptions { conditions, ..DeleteOptions::default() };
        each_miss(
            &[],
            |store| store.put(&bucket(), &key(), b"content", &PutOptions::default()).unwrap(),
            |store, _| store.delete(&bucket(), &key(), &options),
            |store, _, deleted, place| {
                let left = body(store, &GetOptions::default());
                assert!(deleted.is_err() || left == Err(ErrorKind::NoSuchKey), "{place}");
            },
        )
        .unwrap();
    }
}

/// The record with the lock is in an extended attribute, or in a sidecar file if the file system has no extended
/// attributes. The locked version is an old version or the latest version.
#[test]
fn a_locked_version_is_never_deleted() {
    let until = SystemTime::now() + Duration::from_secs(3600);
    let retention =
        Retention { mode: RetentionMode::Compliance, until_ms: ms_since_1970(until) / 1000 * 1000 };
    let locked = ObjectLock { retention: Some(retention), legal_hold: None };
    for missing in [&[], NO_ATTRIBUTES] {
        for is_old in [true, false] {
            let refused = each_miss(
                missing,
                |store| {
                    store.set_versioning(&bucket(), VersioningState::Enabled).unwrap();
                    store.set_lock_configuration(&bucket(), &LockConfiguration::default()).unwrap();
                    let options = PutOptions { lock: locked, ..PutOptions::default() };
                    let made = store.put(&bucket(), &key(), b"locked", &options).unwrap();
                    if is_old {
                        store.put(&bucket(), &key(), b"new", &PutOptions::default()).unwrap();
                    }
                    made.version.unwrap()
                },
                |store, version| {
                    let options = DeleteOptions { version: Some(version.clone()), ..Default::default() };
                    store.delete(&bucket(), &key(), &options)
                },
                |store, version, deleted, place| {
                    let left = body(store, &GetOptions::version(version));
                    assert_eq!(left, Ok(b"locked".to_vec()), "{missing:?}, {is_old}, {deleted:?}, {place}");
                },
            );
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::AccessDenied);
        }
    }
}

fn long_tags() -> Tags {
    (0..MAX_TAGS).map(|n| (format!("{n:0>100}"), "v".repeat(256))).collect()
}

/// Returns options with a record that does not fit into an extended attribute.
fn long() -> PutOptions {
    let metadata = Metadata { content_type: Some("text/x-test".into()), ..Metadata::default() };
    PutOptions { tags: long_tags(), metadata: metadata.into(), ..PutOptions::default() }
}

fn content_type(store: &PosixStore) -> Option<String> {
    store.head(&bucket(), &key(), &GetOptions::default()).unwrap().metadata.content_type.clone()
}

#[test]
fn tags_that_are_set_cost_no_metadata() {
    for missing in [&[], NO_ATTRIBUTES] {
        each_miss(
            missing,
            |store| store.put(&bucket(), &key(), b"content", &long()).unwrap(),
            |store, _| store.set_tags(&bucket(), &key(), None, &Tags::default()),
            |store, _, set, place| {
                assert_eq!(content_type(store).as_deref(), Some("text/x-test"), "{set:?}, {place}");
            },
        )
        .unwrap();
    }
}

#[test]
fn gc_removes_no_record_of_an_object() {
    let swept = each_miss(
        NO_ATTRIBUTES,
        |store| store.put(&bucket(), &key(), b"content", &long()).unwrap(),
        |store, _| {
            let options = GcOptions { staged_age: Duration::ZERO, ..GcOptions::default() };
            store.collect_garbage(&options, &mut |_: GcEvent| Ok(()))
        },
        |store, _, swept, place| {
            assert_eq!(content_type(store).as_deref(), Some("text/x-test"), "{swept:?}, {place}");
        },
    );
    let swept = swept.unwrap();
    assert!(swept.entries > 0 && swept.failed == 0, "{swept:?}");
}
