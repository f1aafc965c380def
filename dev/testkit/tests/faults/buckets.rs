//! Removes a bucket with a fault. A bucket that could not be removed must keep its settings.

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{
    Bucket, BucketDocumentKind, BucketDocumentOperations, ErrorKind, ObjectVersionOperations, Objects,
    VersioningState,
};
use fordway_sys::Errno;
use fordway_sys::fault::{self, FaultInjectionPlan, SyscallFault};

const KINDS: &[&str] = &["policy", "cors", "lifecycle", "tagging"];
/// An upper bound on the number of calls that the removal makes.
const MOST_CALLS: usize = 1000;

/// Makes each call of the removal fail once with each of three errors: the bucket is in use, the file system has an
/// error, and access is denied.
#[test]
fn a_bucket_that_cannot_be_removed_keeps_its_settings() {
    for errno in [Errno::NOTEMPTY, Errno::IO, Errno::ACCESS] {
        let mut failures = 0;
        let calls = (1..MOST_CALLS).take_while(|at| fails_at(*at, errno, &mut failures)).count();
        assert!((10..MOST_CALLS - 1).contains(&calls), "{calls} calls");
        assert!(failures > 0, "{errno}");
    }
}

/// Makes call number `at` of the removal fail, and counts the removals that fail. Returns false if the removal made
/// fewer calls.
fn fails_at(at: usize, errno: Errno, failures: &mut usize) -> bool {
    let dir = crate::way::scratch();
    let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
    let bucket = Bucket::new("bucket").unwrap();
    store.create_bucket(&bucket).unwrap();
    store.set_versioning(&bucket, VersioningState::Suspended).unwrap();
    for name in KINDS {
        store.set_document(&bucket, &BucketDocumentKind::new(name).unwrap(), name.as_bytes()).unwrap();
    }
    let plan =
        FaultInjectionPlan { nth: Some((at, SyscallFault::Fail(errno))), ..FaultInjectionPlan::default() };
    let (removed, calls) = fault::run(plan, || store.delete_bucket(&bucket));
    let place = format!("{errno} at call {at}: {removed:?}");
    match removed {
        Ok(()) => {
            let error = store.head_bucket(&bucket).expect_err(&place);
            assert_eq!(error.kind(), ErrorKind::NoSuchBucket, "{place}");
        }
        Err(_) => {
            assert!(calls.len() >= at, "without a fault: {place}");
            *failures += 1;
            assert_eq!(store.versioning(&bucket).expect(&place), VersioningState::Suspended, "{place}");
            for name in KINDS {
                let document = store.document(&bucket, &BucketDocumentKind::new(name).unwrap()).unwrap();
                assert_eq!(document.as_deref(), Some(name.as_bytes()), "{place}");
            }
        }
    }
    calls.len() >= at
}
