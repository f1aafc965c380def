//! Tests names that a user creates next to another user's old versions, in a bucket with the sticky bit. None of these
//! names may become the object, change the order of versions, or prevent a change of the key.

use std::fs::{self, File};
use std::path::PathBuf;

use fordway_store::{
    Bucket, DeleteOptions, GetOptions, ObjectVersionOperations, Store, VersionId, VersioningState,
};

use crate::ground::{ALICE, BOB, Ground, Lane, as_user, chmod, is_root, key, put, read};

/// The gateways create directories as the bucket's owner. Alice's own programs could not create them.
const LANES: [Lane; 2] = [Lane::Http, Lane::Node];

/// Creates a bucket that belongs to root, keeps versions, and has Alice's object `k` with one old version.
fn versioned(lane: Lane) -> (Ground, Bucket) {
    let ground = Ground::new();
    let shared = ground.bucket("shared", 0, 0o1777);
    ground.embedded().migrate(&[], &mut |_| Ok(())).unwrap();
    ground.embedded().set_versioning(&shared, VersioningState::Enabled).unwrap();
    ground.on(lane, ALICE, |store| {
        ["v0", "v1"].iter().for_each(|body| drop(put_version(store, &shared, body)))
    });
    (ground, shared)
}

fn put_version(store: &dyn Store, bucket: &Bucket, body: &str) -> VersionId {
    store.put(bucket, &key("k"), body.as_bytes(), &Default::default()).unwrap().version.unwrap()
}

fn delete(store: &dyn Store, bucket: &Bucket, version: Option<&VersionId>) -> VersionId {
    let options = DeleteOptions { version: version.cloned(), ..Default::default() };
    store.delete(bucket, &key("k"), &options).unwrap().version.unwrap()
}

fn read_version(store: &dyn Store, bucket: &Bucket, version: &VersionId) -> Vec<u8> {
    let object = store.get(bucket, &key("k"), &GetOptions::version(version.clone())).unwrap();
    object.content.into_vec().unwrap()
}

/// Creates a name among the versions of `k` as Bob. All users may link and write to the file.
fn forge(ground: &Ground, name: &str) -> PathBuf {
    let path = ground.path("shared/.fordway/versions/k").join(name);
    as_user(BOB, || fs::write(&path, "EVIL").unwrap());
    chmod(&path, 0o666);
    path
}

fn order_of(version: &VersionId) -> u64 {
    u64::from_str_radix(&version.as_str()[..16], 16).unwrap()
}

#[test]
fn an_undelete_brings_back_the_owners_version() {
    if !is_root() {
        return;
    }
    for (lane, deleter) in [(Lane::Http, ALICE), (Lane::Node, ALICE), (Lane::Embedded, 0)] {
        let (ground, shared) = versioned(Lane::Http);
        let marker = ground.on(Lane::Http, ALICE, |store| delete(store, &shared, None));
        let order = order_of(&marker) - 1;
        forge(&ground, &format!("{order:016x}-{order:016x}.0123456789abcdef"));
        match deleter {
            0 => drop(delete(&ground.embedded(), &shared, Some(&marker))),
            user => drop(ground.on(lane, user, |store| delete(store, &shared, Some(&marker)))),
        }
        ground.on(lane, ALICE, |store| assert_eq!(read(store, &shared, "k").unwrap(), b"v1", "{lane:?}"));
        assert_eq!(ground.owner("shared/k"), ALICE);
    }
}

#[test]
fn the_version_before_the_latest_is_the_owners() {
    if !is_root() {
        return;
    }
    for deleter in [ALICE, 0] {
        let (ground, shared) = versioned(Lane::Http);
        let latest = ground.on(Lane::Http, ALICE, |store| put_version(store, &shared, "v2"));
        forge(&ground, "ffffffffffffff00-ffffffffffffff00.0123456789abcdef");
        match deleter {
            0 => drop(delete(&ground.embedded(), &shared, Some(&latest))),
            _ => drop(ground.on(Lane::Http, ALICE, |store| delete(store, &shared, Some(&latest)))),
        }
        assert_eq!(
            ground.on(Lane::Http, BOB, |store| read(store, &shared, "k")).unwrap(),
            b"v1",
            "{deleter}"
        );
    }
}

/// A marker with the highest possible order would otherwise leave no higher order for later versions.
#[test]
fn another_users_marker_does_not_use_up_the_orders() {
    if !is_root() {
        return;
    }
    for lane in LANES {
        for state in [VersioningState::Enabled, VersioningState::Suspended] {
            let (ground, shared) = versioned(lane);
            ground.on(lane, ALICE, |store| delete(store, &shared, None));
            let forged = forge(&ground, "ffffffffffffffff-ffffffffffffffff.0000000000000000-marker");
            fs::write(forged, "").unwrap();
            if state == VersioningState::Suspended {
                ground.embedded().set_versioning(&shared, state).unwrap();
                ground.on(lane, ALICE, |store| {
                    put(store, &shared, "k", b"null").unwrap();
                    delete(store, &shared, None);
                });
                ground.embedded().set_versioning(&shared, VersioningState::Enabled).unwrap();
            }
            ground.on(lane, ALICE, |store| {
                let made: Vec<_> = (1..=6).map(|n| put_version(store, &shared, &format!("v{n}"))).collect();
                assert!(made.is_sorted() && order_of(&made[0]) < u64::MAX, "{lane:?} {made:?}");
                delete(store, &shared, made.last());
                assert_eq!(read(store, &shared, "k").unwrap(), b"v5", "{lane:?} {state:?}");
            });
        }
    }
}

#[test]
fn another_users_name_with_the_same_id_prevents_no_delete() {
    if !is_root() {
        return;
    }
    for lane in LANES {
        let (ground, shared) = versioned(lane);
        let old = ground.on(lane, ALICE, |store| put_version(store, &shared, "v2"));
        let latest = ground.on(lane, ALICE, |store| put_version(store, &shared, "v3"));
        let forged = [&old, &latest].map(|version| forge(&ground, &format!("0000000000000001-{version}")));
        ground.on(lane, ALICE, |store| {
            delete(store, &shared, Some(&latest));
            assert_eq!(read(store, &shared, "k").unwrap(), b"v2");
            delete(store, &shared, Some(&old));
            assert_eq!(read(store, &shared, "k").unwrap(), b"v1");
        });
        assert!(forged.iter().all(|path| path.exists()), "Alice may not remove Bob's files");
    }
}

#[test]
fn another_users_null_version_prevents_no_write() {
    if !is_root() {
        return;
    }
    for lane in LANES {
        let (ground, shared) = versioned(lane);
        ground.embedded().set_versioning(&shared, VersioningState::Suspended).unwrap();
        forge(&ground, "0000000000000001-null");
        ground.on(lane, ALICE, |store| {
            for body in ["n1", "n2"] {
                put(store, &shared, "k", body.as_bytes()).unwrap();
                assert_eq!(read_version(store, &shared, &VersionId::null()), body.as_bytes());
            }
            delete(store, &shared, None);
            put(store, &shared, "k", b"n3").unwrap();
        });
        ground.embedded().set_versioning(&shared, VersioningState::Enabled).unwrap();
        ground.on(lane, ALICE, |store| {
            put_version(store, &shared, "v4");
            assert_eq!(read_version(store, &shared, &VersionId::null()), b"n3", "{lane:?}");
        });
    }
}

/// Bob takes the name that Alice's latest version will have when it becomes an old version, with a record that contains
/// the version's ID.
#[test]
fn the_content_of_a_version_is_its_writers() {
    if !is_root() {
        return;
    }
    for lane in LANES {
        let (ground, shared) = versioned(lane);
        let version = ground.on(lane, ALICE, |store| put_version(store, &shared, "mine"));
        let forged = forge(&ground, &format!("{:016x}-{version}", order_of(&version)));
        let length = version.as_str().len() as u16;
        let record = [&[1, 16][..], &length.to_le_bytes(), version.as_str().as_bytes()].concat();
        fordway_sys::set_xattr(File::open(forged).unwrap(), c"user.fordway", &record).unwrap();
        ground.on(lane, ALICE, |store| {
            put_version(store, &shared, "newer");
            assert_eq!(read_version(store, &shared, &version), b"mine", "{lane:?}");
            delete(store, &shared, Some(&version));
        });
    }
}
