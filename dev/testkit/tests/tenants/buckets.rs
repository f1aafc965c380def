//! Names of buckets and keys.

use fordway_store::{CopyOptions, MultipartUploads, Objects};

use crate::ground::{ALICE, BOB, Ground, bucket, is_root, key, put, read};

/// A directory whose name AWS does not allow for a bucket can be the source of a copy like any other.
#[test]
fn copies_come_from_buckets_of_any_name() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let target = ground.bucket("target", ALICE, 0o755);
    let alice = ground.client("alice");
    for name in ["Big", "my_data", "ab", "x..y", "xn--example", &"n".repeat(200), "plain"] {
        let from = ground.bucket(name, ALICE, 0o755);
        put(&alice, &from, "dir/k ey+%2F?é", name.as_bytes()).unwrap();
        alice
            .copy((&from, &key("dir/k ey+%2F?é")), &target, &key("copied"), &CopyOptions::default())
            .unwrap();
        assert_eq!(read(&alice, &target, "copied").unwrap(), name.as_bytes());
        let upload = alice.create_upload(&target, &key("up"), &Default::default()).unwrap();
        alice
            .copy_part(
                (&from, &key("dir/k ey+%2F?é")),
                &Default::default(),
                (&target, &key("up"), &upload, 1),
            )
            .unwrap();
    }
    let closed = ground.bucket("Closed", BOB, 0o700);
    let error = alice
        .copy((&closed, &key("k")), &target, &key("copied"), &CopyOptions::default())
        .expect_err("it is not hers");
    assert_eq!(error.kind(), fordway_store::ErrorKind::AccessDenied, "{error}");
    let error = alice
        .copy((&bucket("No_Such"), &key("k")), &target, &key("copied"), &CopyOptions::default())
        .expect_err("it does not exist");
    assert_eq!(error.kind(), fordway_store::ErrorKind::NoSuchBucket, "{error}");
}
