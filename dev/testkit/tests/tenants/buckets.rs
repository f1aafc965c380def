//! Tests names of buckets and keys.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::symlink;

use fordway_posix::{ChosenBuckets, UsageEvent};
use fordway_store::{CopyOptions, MultipartUploadOperations, Objects};

use crate::ground::{ALICE, BOB, Ground, Lane, as_user, bucket, chmod, is_root, key, put, read};

/// A directory whose name AWS does not allow for a bucket can be the source of a copy, like any other bucket.
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

/// A user who may write only to a subdirectory of a bucket can create and read objects in this subdirectory. An
/// overwrite also needs the bucket's private area. The error names the directory of the private area, because the user
/// does not know this directory.
#[test]
fn a_user_who_may_write_only_below_a_bucket_is_told_what_else_needs() {
    if !is_root() {
        return;
    }
    for lane in Lane::ALL {
        let ground = Ground::new();
        let lab = ground.bucket("lab", 0, 0o755);
        ground.make_dirs(&ground.path("lab/alice"), ALICE);
        ground.on(lane, ALICE, |store| {
            put(store, &lab, "alice/x", b"first").unwrap();
            let error = put(store, &lab, "alice/x", b"second").expect_err("there is no .fordway");
            assert_eq!(error.kind(), fordway_store::ErrorKind::AccessDenied, "{lane:?}: {error}");
            let told = error.to_string();
            assert!(
                told.contains("lab/.fordway") && told.contains("the bucket's directory"),
                "{lane:?}: {told}"
            );
            assert_eq!(read(store, &lab, "alice/x").unwrap(), b"first");
        });
    }
}

/// A user who may not write to the root cannot remove a bucket. The attempt must not remove the bucket's uploads and
/// waiting events.
#[test]
fn an_owner_who_may_not_remove_a_bucket_loses_nothing() {
    if !is_root() {
        return;
    }
    for (lane, root_mode) in Lane::ALL.into_iter().flat_map(|lane| [(lane, 0o755), (lane, 0o1777)]) {
        let ground = Ground::new();
        // In a sticky root, only the owner of the bucket may remove it.
        let (owner, mode) = if root_mode == 0o755 { (ALICE, 0o755) } else { (BOB, 0o777) };
        let lab = ground.bucket("lab", owner, mode);
        chmod(&ground.path(""), root_mode);
        ground.on(lane, ALICE, |store| {
            let upload = store.create_upload(&lab, &key("up"), &Default::default()).unwrap();
            let error = store.delete_bucket(&lab).expect_err("the root is not hers");
            assert_eq!(error.kind(), fordway_store::ErrorKind::AccessDenied, "{lane:?}: {error}");
            store.abort_upload(&lab, &key("up"), &upload).unwrap();
        });
    }
}

/// Bob cannot open the directory of a bucket. The check must not skip this bucket.
#[test]
fn a_bucket_that_cannot_be_opened_is_reported() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let closed = ground.bucket("closed", ALICE, 0o755);
    ground.make_dirs(&ground.path("closed/real"), ALICE);
    chmod(&ground.path("closed"), 0o700);
    std::os::unix::fs::symlink("closed/real", ground.path("dead")).unwrap();
    std::os::unix::fs::symlink("/etc", ground.path("outside")).unwrap();
    std::os::unix::fs::symlink("nowhere", ground.path("dangling")).unwrap();
    let found = as_user(BOB, || ground.check());
    assert!(found.contains(&("unreadable".to_owned(), "dead".to_owned())), "{found:?}");
    assert!(found.iter().all(|(_, path)| path == "dead" || path.starts_with("closed")), "{found:?}");
    assert!(as_user(BOB, || ground.collect()).failed >= 2);
    assert_eq!(ChosenBuckets::of(&ground.embedded(), &[]).unwrap().buckets, [closed, bucket("dead")]);
}

/// Bob lets others read the names in his directory, but not examine the files.
#[test]
fn files_that_only_their_owner_may_examine_are_counted() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let shared = ground.bucket("shared", ALICE, 0o777);
    for name in ["big/one", "big/two", "big/deep/three"] {
        ground.write(&format!("shared/{name}"), BOB, 0o644, "12345");
    }
    chmod(&ground.path("shared/big"), 0o744);
    let usage = || {
        let failed = Cell::new(0);
        let counted = ground.embedded().usage(&shared, &mut |event| {
            failed.set(failed.get() + u32::from(matches!(event, UsageEvent::Failed(_))));
            Ok(())
        });
        (counted.unwrap().get(&BOB).map(|bob| bob.objects.size_bytes), failed.get())
    };
    assert_eq!(usage(), (Some(15), 0));
    assert_eq!(as_user(ALICE, usage), (None, 1));
}

/// Clients treat the error `BucketAlreadyOwnedByYou` as success.
#[test]
fn a_name_that_is_not_a_bucket_is_not_the_callers_bucket() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    as_user(BOB, || {
        symlink("nowhere", ground.path("link")).unwrap();
        fs::write(ground.path("file"), "").unwrap();
    });
    for (lane, name) in Lane::ALL.into_iter().flat_map(|lane| [(lane, "link"), (lane, "file")]) {
        let error = ground.on(lane, ALICE, |store| store.create_bucket(&bucket(name)).unwrap_err());
        assert_eq!(error.kind(), fordway_store::ErrorKind::BucketAlreadyExists, "{lane:?} {name}");
    }
}
