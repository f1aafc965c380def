//! Tests files and directories that a user creates in `.fordway` of a bucket with the sticky bit, so that other users
//! could not use the bucket.

use std::fs;

use fordway_store::{Bucket, BucketDocumentKind, DeleteOptions, Store, VersioningState};

use crate::ground::{ALICE, BOB, Ground, Lane, as_user, chmod, is_root, key, put, read};

fn use_bucket(store: &dyn Store, bucket: &Bucket) {
    for body in [b"x", b"y"] {
        put(store, bucket, "k", body).unwrap();
        assert_eq!(read(store, bucket, "k").unwrap(), body);
    }
    assert_eq!(store.list(bucket, &Default::default()).unwrap().entries.len(), 1);
    store.delete(bucket, &key("k"), &DeleteOptions::default()).unwrap();
}

#[test]
fn an_unreadable_versioning_file_of_another_user_stops_nobody() {
    if !is_root() {
        return;
    }
    for lane in Lane::ALL {
        let ground = Ground::new();
        let shared = ground.bucket("shared", ALICE, 0o1777);
        ground.embedded().migrate(&[], &mut |_| Ok(())).unwrap();
        ground.write("shared/.fordway/versioning", BOB, 0o000, "Suspended\n");
        std::thread::sleep(std::time::Duration::from_millis(30));
        ground.on(lane, ALICE, |store| {
            use_bucket(store, &shared);
            assert_eq!(store.versioning(&shared).unwrap(), VersioningState::Enabled, "{lane:?}");
            store.set_versioning(&shared, VersioningState::Suspended).unwrap();
            assert_eq!(store.versioning(&shared).unwrap(), VersioningState::Suspended, "{lane:?}");
        });
    }
}

/// A document of another user is ignored in a bucket with the sticky bit, where this user cannot have replaced the
/// owner's document.
#[test]
fn a_policy_of_another_user_denies_nobody_access() {
    if !is_root() {
        return;
    }
    let carol = 54_323;
    let more = format!(
        "[[user]]\nname='carol'\naccess_key='carol'\nsecret_key='secret'\nuid={carol}\ngid={carol}\n"
    );
    for (name, mode) in [("document-policy", 0o644), ("document-policy", 0o000), ("document-acl", 0o644)] {
        let ground = Ground::with_user(&more);
        let shared = ground.bucket("shared", ALICE, 0o1777);
        ground.embedded().migrate(&[], &mut |_| Ok(())).unwrap();
        ground.write(&format!("shared/.fordway/{name}"), BOB, mode, "x");
        use_bucket(&ground.client("carol"), &shared);
        let policy = BucketDocumentKind::known("policy");
        let own = br#"{"Version":"2012-10-17","Statement":[{"Effect":"Deny","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::shared/secret"}]}"#;
        ground.on(Lane::Embedded, ALICE, |store| store.set_document(&shared, &policy, own).unwrap());
        let found = ground.on(Lane::Embedded, ALICE, |store| store.document(&shared, &policy).unwrap());
        assert_eq!(found.as_deref(), Some(&own[..]), "{name}");
    }
    // If Bob owned `.fordway`, he could have removed the owner's policy.
    let ground = Ground::with_user(&more);
    let shared = ground.bucket("shared", ALICE, 0o1777);
    ground.write("shared/.fordway/document-policy", BOB, 0o644, "x");
    chmod(&ground.path("shared/.fordway"), 0o1777);
    put(&ground.client("carol"), &shared, "k", b"x").expect_err("the policy cannot be relied on");
}

#[test]
fn a_migration_makes_the_directories_that_most_writes_need() {
    if !is_root() {
        return;
    }
    for twice in [false, true] {
        let ground = Ground::new();
        let shared = ground.bucket("shared", ALICE, 0o1777);
        if twice {
            ground.make_dirs(&ground.path("shared/.fordway"), ALICE);
        }
        ground.embedded().migrate(&[], &mut |_| Ok(())).unwrap();
        for name in ["tmp", "mpu", "versions"] {
            let path = ground.path(&format!("shared/.fordway/{name}"));
            as_user(BOB, || fs::create_dir(&path).expect_err("the directory exists"));
            assert_eq!(ground.owner(&format!("shared/.fordway/{name}")), ALICE);
        }
        ground.on(Lane::Http, BOB, |store| use_bucket(store, &shared));
    }
}
