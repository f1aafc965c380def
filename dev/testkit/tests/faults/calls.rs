//! Compares the file-system calls of operations in buckets with and without object lock.

use std::collections::{BTreeMap, BTreeSet};

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{
    Bucket, DeleteOptions, GetOptions, Key, LockConfiguration, ObjectLockOperations, ObjectVersionOperations,
    Objects, PutOptions, VersioningState,
};
use fordway_sys::fault::{FaultInjectionPlan, run};

use crate::way::scratch;

/// The kind of bucket that a call uses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Versioned,
    Lockable,
}

/// The maximum number of runs of all operations.
const RUNS: usize = 40;

type Calls = Vec<(&'static str, Vec<&'static str>)>;

/// Returns the calls of each operation in a new bucket of this kind.
fn calls_in(kind: Kind) -> Calls {
    let dir = scratch();
    let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
    let (bucket, key) = (Bucket::new("bkt").unwrap(), Key::new("k").unwrap());
    store.create_bucket(&bucket).unwrap();
    if kind != Kind::Plain {
        store.set_versioning(&bucket, VersioningState::Enabled).unwrap();
    }
    // Both settings replace the file `versioning`, and therefore create the directory of staged files.
    match kind {
        Kind::Plain => {}
        Kind::Versioned => store.set_versioning(&bucket, VersioningState::Enabled).unwrap(),
        Kind::Lockable => store.set_lock_configuration(&bucket, &LockConfiguration::default()).unwrap(),
    }
    let put = || store.put(&bucket, &key, b"content", &PutOptions::default()).map(drop).unwrap();
    let delete = || store.delete(&bucket, &key, &DeleteOptions::default()).map(drop).unwrap();
    let get = || store.get(&bucket, &key, &GetOptions::default()).map(drop).unwrap();
    let head = || store.head(&bucket, &key, &GetOptions::default()).map(drop).unwrap();
    let operations: [(&'static str, &dyn Fn()); 6] = [
        ("put", &put),
        ("put over", &put),
        ("get", &get),
        ("head", &head),
        ("delete", &delete),
        ("put after a delete", &put),
    ];
    let measure = |(name, operation): (&'static str, &dyn Fn())| {
        // After this pause, all cached descriptors are closed, so every run makes the same calls.
        std::thread::sleep(std::time::Duration::from_millis(20));
        (name, run(FaultInjectionPlan::default(), operation).1)
    };
    operations.map(measure).to_vec()
}

/// All sequences of calls that each operation made. On a busy machine, an operation can have several sequences, because
/// a file that is kept open for 10 ms may have to be reopened during the operation.
type SeenCalls = BTreeMap<&'static str, BTreeSet<Vec<&'static str>>>;

/// Returns the operations that never made the same calls in the buckets of both kinds.
fn differing(one: &SeenCalls, other: &SeenCalls) -> Vec<&'static str> {
    let differs = |name: &&&'static str| one[**name].is_disjoint(&other[**name]);
    one.keys().filter(differs).copied().collect()
}

/// In a bucket with object lock, operations make the same calls as in a bucket that only keeps versions, as long as no
/// object is locked. In a bucket without versions, operations make none of the calls for locks.
#[test]
fn buckets_without_object_lock_pay_nothing() {
    let (mut lockable, mut versioned) = (SeenCalls::new(), SeenCalls::new());
    for _ in 0..RUNS {
        for (kind, seen) in [(Kind::Lockable, &mut lockable), (Kind::Versioned, &mut versioned)] {
            for (name, calls) in calls_in(kind) {
                seen.entry(name).or_default().insert(calls);
            }
        }
        if differing(&lockable, &versioned).is_empty() {
            break;
        }
    }
    assert_eq!(differing(&lockable, &versioned), [""; 0], "{lockable:?}\n{versioned:?}");
    for (name, calls) in calls_in(Kind::Plain) {
        let is_setting = |call: &&&str| **call == "ioctl_getflags" || **call == "ioctl_setflags";
        assert_eq!(calls.iter().filter(is_setting).count(), 0, "{name}: {calls:?}");
    }
}
