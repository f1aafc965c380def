//! The file-system calls of operations in buckets with and without object lock.

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{
    Bucket, DeleteOptions, GetOptions, Key, LockConfiguration, ObjectLocks, ObjectVersions, Objects,
    PutOptions, VersioningState,
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

/// The number of runs. The run with the fewest calls is used.
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
    // Both replace the file `versioning`, for which they create the directory of staged files.
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

/// Keeps, for each operation, the run with the fewest calls. On a busy machine, a file that is kept open for 10 ms may
/// have to be reopened in the middle of an operation. Among runs with the same number of calls, the names of the calls
/// decide, so that enough runs always lead to the same result.
fn keep_shortest(kept: &mut Calls, others: Calls) {
    for ((_, kept), (_, other)) in kept.iter_mut().zip(others) {
        if (other.len(), &other) < (kept.len(), &*kept) {
            *kept = other;
        }
    }
}

/// In a bucket whose objects can be locked, operations make the same calls as in a bucket that only keeps versions, as
/// long as no object is locked. In a bucket without versions, they make none of the calls for locks.
#[test]
fn buckets_without_object_lock_pay_nothing() {
    let (mut lockable, mut versioned) = (calls_in(Kind::Lockable), calls_in(Kind::Versioned));
    for _ in 0..RUNS {
        if lockable == versioned {
            break;
        }
        keep_shortest(&mut lockable, calls_in(Kind::Lockable));
        keep_shortest(&mut versioned, calls_in(Kind::Versioned));
    }
    assert_eq!(lockable, versioned);
    for (name, calls) in calls_in(Kind::Plain) {
        let is_setting = |call: &&&str| **call == "ioctl_getflags" || **call == "ioctl_setflags";
        assert_eq!(calls.iter().filter(is_setting).count(), 0, "{name}: {calls:?}");
    }
}
