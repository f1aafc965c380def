//! Tests keys for which two users have files, in a bucket with the sticky bit: one at the key's plain path, and one at
//! its odd path, in `.fordway/odd`.

use std::fs;

use fordway_store::{
    Bucket, DeleteOptions, ErrorKind, ObjectVersionOperations, RenameOptions, VersionId, VersioningState,
};

use crate::ground::{ALICE, BOB, Ground, Lane, as_user, chmod, denied, is_root, key, put, read};

const ODD: &str = "shared/.fordway/odd/f%2Fx";

/// Creates Alice's object `f/x` at its odd path, because `f` is a file. Then Alice deletes `f`, and Bob creates a
/// directory and another file `f/x` in its place.
fn hidden_by_bob(lane: Lane) -> (Ground, Bucket) {
    let ground = Ground::new();
    let shared = ground.bucket("shared", 0, 0o1777);
    ground.on(lane, ALICE, |store| {
        ["f", "f/x"].iter().for_each(|name| put(store, &shared, name, b"alice").unwrap());
        store.delete(&shared, &key("f"), &DeleteOptions::default()).unwrap();
    });
    assert_eq!(ground.owner(ODD), ALICE);
    as_user(BOB, || {
        fs::create_dir(ground.path("shared/f")).unwrap();
        fs::write(ground.path("shared/f/x"), "bob").unwrap();
        // Puts are staged in this directory.
        chmod(&ground.path("shared/f"), 0o777);
    });
    (ground, shared)
}

#[test]
fn an_odd_key_is_changed_by_its_owner_alone() {
    if !is_root() {
        return;
    }
    for lane in [Lane::Http, Lane::Node] {
        let (ground, shared) = hidden_by_bob(lane);
        ground.on(lane, BOB, |store| {
            store.delete(&shared, &key("f/x"), &DeleteOptions::default()).unwrap();
        });
        ground.on(lane, ALICE, |store| assert_eq!(read(store, &shared, "f/x").unwrap(), b"alice"));
        let (ground, shared) = hidden_by_bob(lane);
        ground.on(lane, ALICE, |store| put(store, &shared, "f/x", b"again").unwrap());
        assert_eq!(fs::read(ground.path(ODD)).unwrap(), b"again");
        ground.on(lane, ALICE, |store| {
            store.delete(&shared, &key("f/x"), &DeleteOptions::default()).unwrap();
        });
        assert!(!ground.path(ODD).exists(), "{lane:?}");
        assert_eq!(fs::read(ground.path("shared/f/x")).unwrap(), b"bob", "{lane:?}");
    }
}

/// A file that hides another user's object expires without this object.
#[test]
fn a_hidden_object_does_not_expire_with_the_file_that_hides_it() {
    if !is_root() {
        return;
    }
    let (ground, shared) = hidden_by_bob(Lane::Http);
    ground.expire_all(&shared, 0);
    assert_eq!(ground.expire().changed, 1);
    assert_eq!(fs::read(ground.path(ODD)).unwrap(), b"alice");
    assert!(!ground.path("shared/f/x").exists());
}

/// A key whose path another user's file or directory blocks is refused, because this user could later put another file
/// at the path.
#[test]
fn no_object_is_stored_where_another_user_could_hide_it() {
    if !is_root() {
        return;
    }
    for lane in [Lane::Http, Lane::Node] {
        let ground = Ground::new();
        let shared = ground.bucket("shared", 0, 0o1777);
        ground.on(lane, BOB, |store| {
            put(store, &shared, "file", b"bob").unwrap();
            put(store, &shared, "dir/k", b"bob").unwrap();
        });
        ground.on(lane, ALICE, |store| {
            put(store, &shared, "own", b"alice").unwrap();
            put(store, &shared, "own/x", b"alice").unwrap();
            put(store, &shared, "a//b", b"alice").unwrap();
            let rename = |name| store.rename(&shared, &key("own"), &key(name), &RenameOptions::default());
            for name in ["file/x", "file/x/y", "dir"] {
                denied(name, put(store, &shared, name, b"alice"));
                denied(name, rename(name));
            }
            assert_eq!(read(store, &shared, "own").unwrap(), b"alice", "{lane:?}");
            rename("own/y").unwrap();
            assert_eq!(read(store, &shared, "own/y").unwrap(), b"alice", "{lane:?}");
        });
    }
}

/// If another user's file blocks the path of a deleted key, no old version becomes the latest again.
#[test]
fn no_version_is_brought_back_where_another_user_could_hide_it() {
    if !is_root() {
        return;
    }
    for lane in [Lane::Http, Lane::Node] {
        let ground = Ground::new();
        let shared = ground.bucket("shared", 0, 0o1777);
        ground.embedded().migrate(&[], &mut |_| Ok(())).unwrap();
        ground.embedded().set_versioning(&shared, VersioningState::Enabled).unwrap();
        let undelete = |name| {
            ground.on(lane, ALICE, |store| {
                put(store, &shared, name, b"alice").unwrap();
                store.delete(&shared, &key(name), &DeleteOptions::default()).unwrap().version
            })
        };
        let [other, own] = ["file/x", "own/x"].map(undelete);
        ground.on(lane, BOB, |store| put(store, &shared, "file", b"bob").unwrap());
        ground.on(lane, ALICE, |store| {
            put(store, &shared, "own", b"alice").unwrap();
            let remove = |name, version: &Option<VersionId>| {
                let options = DeleteOptions { version: version.clone(), ..Default::default() };
                store.delete(&shared, &key(name), &options)
            };
            denied("file/x", remove("file/x", &other));
            // The delete marker is still there, so the owner of the version can bring it back later.
            assert_eq!(read(store, &shared, "file/x").unwrap_err().kind(), ErrorKind::NoSuchKey, "{lane:?}");
            remove("own/x", &own).unwrap();
            assert_eq!(read(store, &shared, "own/x").unwrap(), b"alice", "{lane:?}");
        });
        ground.on(lane, BOB, |store| store.delete(&shared, &key("file"), &DeleteOptions::default()).unwrap());
        ground.on(lane, ALICE, |store| {
            let options = DeleteOptions { version: other.clone(), ..Default::default() };
            store.delete(&shared, &key("file/x"), &options).unwrap();
            assert_eq!(read(store, &shared, "file/x").unwrap(), b"alice", "{lane:?}");
        });
    }
}

/// A file that Bob creates at the odd path of Alice's plain key does not affect Alice's writes.
#[test]
fn a_file_at_the_odd_path_of_a_plain_key_prevents_no_write() {
    if !is_root() {
        return;
    }
    for lane in [Lane::Http, Lane::Node] {
        let ground = Ground::new();
        let shared = ground.bucket("shared", 0, 0o1777);
        ground.on(lane, ALICE, |store| {
            put(store, &shared, "a//b", b"alice").unwrap();
            put(store, &shared, "k", b"alice").unwrap();
        });
        let forged = ground.path("shared/.fordway/odd/k");
        as_user(BOB, || fs::write(&forged, "bob").unwrap());
        ground.on(lane, ALICE, |store| {
            put(store, &shared, "k", b"again").unwrap();
            assert_eq!(read(store, &shared, "k").unwrap(), b"again");
            store.delete(&shared, &key("k"), &DeleteOptions::default()).unwrap();
        });
        assert!(forged.exists() && !ground.path("shared/k").exists(), "{lane:?}");
    }
}
