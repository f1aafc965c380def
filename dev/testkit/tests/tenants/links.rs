//! Tests symbolic links that a tenant creates in a shared bucket. A listing shows the objects to which the links lead.
//! If a user runs a program that removes or overwrites these objects, the program must not change files in another
//! directory of this user.

use std::fs;
use std::os::unix::fs::{lchown, symlink};

use fordway_store::{Bucket, DeleteOptions, ListQuery, Store, VersioningState};

use crate::ground::{ALICE, BOB, Ground, Lane, bucket, chmod, denied, is_root, key, put, read};

/// Creates Bob's private bucket, and Alice's bucket `team`, which is open to all users. `team` contains a link to Bob's
/// bucket. The link belongs to `owner`.
fn shared_with_a_link(owner: u32) -> (Ground, Bucket) {
    let ground = Ground::new();
    ground.bucket("bob", BOB, 0o700);
    for name in ["bob/thesis", "bob/sub/figure"] {
        ground.write(name, BOB, 0o600, "years of work");
    }
    let team = ground.bucket("team", ALICE, 0o777);
    symlink("../bob", ground.path("team/x")).unwrap();
    lchown(ground.path("team/x"), Some(owner), Some(owner)).unwrap();
    (ground, team)
}

/// Deletes everything that a listing shows, as `fordway rm --recursive` does. Returns the number of failures.
fn remove_all(store: &dyn Store, team: &Bucket) -> usize {
    let listed = store.list(team, &ListQuery::default()).unwrap();
    let remove = |name: &str| store.delete(team, &key(name), &DeleteOptions::default());
    listed.entries.iter().filter(|entry| remove(entry.name()).is_err()).count()
}

#[test]
fn nothing_is_changed_behind_a_link_of_another_user() {
    if !is_root() {
        return;
    }
    let (ground, team) = shared_with_a_link(ALICE);
    let bobs_change_nothing = |store: &dyn Store| {
        assert_eq!(read(store, &team, "x/thesis").unwrap(), b"years of work", "reads follow it");
        assert_eq!(remove_all(store, &team), 2);
        denied("a put over an object", put(store, &team, "x/thesis", b"nothing"));
        denied("a put of a new object", put(store, &team, "x/new", b"nothing"));
        denied("a put below a new directory", put(store, &team, "x/new/new", b"nothing"));
    };
    ground.on(Lane::Embedded, BOB, |store| {
        denied("a directory as an object", put(store, &team, "x/", b""));
        denied("another one", put(store, &team, "x/more/", b""));
    });
    for state in [VersioningState::Unversioned, VersioningState::Enabled, VersioningState::Suspended] {
        if state != VersioningState::Unversioned {
            ground.on(Lane::Embedded, ALICE, |store| store.set_versioning(&team, state).unwrap());
        }
        for lane in Lane::ALL {
            ground.on(lane, BOB, bobs_change_nothing);
        }
        // The kernel lets root change all files, so the store itself must prevent the changes.
        bobs_change_nothing(&ground.embedded());
        assert_eq!(fs::read_dir(ground.path("bob")).unwrap().count(), 2, "{state:?}");
    }
    assert!(!ground.path("team/.fordway/versions").exists(), "no name of Bob's file is left there");
    ground.on(Lane::Http, BOB, |store| store.delete(&team, &key("x"), &DeleteOptions::default()).unwrap());
}

#[test]
fn a_directory_behind_a_link_of_another_user_stays_an_object() {
    if !is_root() {
        return;
    }
    let (ground, team) = shared_with_a_link(ALICE);
    let bobs = bucket("bob");
    ground.on(Lane::Embedded, BOB, |store| put(store, &bobs, "folder/", b"").unwrap());
    ground.on(Lane::Embedded, ALICE, |store| put(store, &team, "own/", b"").unwrap());
    for lane in Lane::ALL {
        ground.on(lane, BOB, |store| {
            denied("a delete", store.delete(&team, &key("x/folder/"), &DeleteOptions::default()));
            store.head(&bobs, &key("folder/"), &Default::default()).unwrap();
        });
    }
}

/// The store still follows links within the bucket that the caller or the administrator has created.
#[test]
fn changes_go_through_links_of_the_caller_and_of_root() {
    if !is_root() {
        return;
    }
    for owner in [BOB, 0, ALICE] {
        let (ground, team) = shared_with_a_link(owner);
        fs::create_dir(ground.path("team/home")).unwrap();
        lchown(ground.path("team/home"), Some(BOB), Some(BOB)).unwrap();
        symlink("home", ground.path("team/y")).unwrap();
        lchown(ground.path("team/y"), Some(owner), Some(owner)).unwrap();
        for lane in Lane::ALL {
            ground.on(lane, BOB, |store| denied("another bucket", put(store, &team, "x/new/new", b"new")));
            if owner == ALICE {
                ground.on(lane, BOB, |store| denied("Alice's", put(store, &team, "y/new/new", b"new")));
                continue;
            }
            ground.on(lane, BOB, |store| {
                put(store, &team, "y/new/new", b"new").unwrap();
                put(store, &team, "y/new/new", b"newer").unwrap();
            });
            assert_eq!(fs::read(ground.path("team/home/new/new")).unwrap(), b"newer", "{owner} {lane:?}");
            ground.on(lane, BOB, |store| {
                store.delete(&team, &key("y/new/new"), &DeleteOptions::default()).unwrap();
            });
            assert!(!ground.path("team/home/new").exists(), "{owner} {lane:?}");
        }
        assert_eq!(fs::read_dir(ground.path("bob")).unwrap().count(), 2, "{owner}");
    }
}

/// A directory and a link to Bob's private bucket repeatedly exchange their names while Bob deletes and overwrites
/// objects below one of the names. The objects in the private bucket must not change.
#[test]
fn no_race_of_a_directory_and_a_link_leads_a_delete_astray() {
    if !is_root() {
        return;
    }
    let (ground, team) = shared_with_a_link(ALICE);
    fs::create_dir(ground.path("team/y")).unwrap();
    chmod(&ground.path("team/y"), 0o777);
    let (link, dir) = (ground.path("team/x"), ground.path("team/y"));
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                let (from, to) = (rustix::fs::CWD, rustix::fs::CWD);
                let exchange = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(from, &link, to, &dir, exchange).unwrap();
            }
        });
        let started = std::time::Instant::now();
        while started.elapsed() < std::time::Duration::from_secs(2) {
            for lane in Lane::ALL {
                ground.on(lane, BOB, |store| {
                    let _ = store.delete(&team, &key("x/thesis"), &DeleteOptions::default());
                    let _ = put(store, &team, "x/sub/figure", b"nothing");
                });
            }
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(fs::read(ground.path("bob/thesis")).unwrap(), b"years of work");
    assert_eq!(fs::read(ground.path("bob/sub/figure")).unwrap(), b"years of work");
}

/// If the bucket's owner may not remove a file, a lifecycle run acts as the owner of the file. The run must not follow
/// a link that the bucket's owner created to another user's directory.
#[test]
fn objects_behind_a_link_do_not_expire() {
    if !is_root() {
        return;
    }
    for state in [VersioningState::Unversioned, VersioningState::Enabled] {
        let ground = Ground::new();
        ground.bucket("bob", BOB, 0o755);
        ground.write("bob/d/thesis", BOB, 0o644, "years of work");
        let team = ground.bucket("team", ALICE, 0o755);
        ground.write("team/own", ALICE, 0o644, "work");
        symlink("../bob/d", ground.path("team/x")).unwrap();
        lchown(ground.path("team/x"), Some(ALICE), Some(ALICE)).unwrap();
        if state == VersioningState::Enabled {
            ground.on(Lane::Embedded, ALICE, |store| store.set_versioning(&team, state).unwrap());
        }
        ground.expire_all(&team, ALICE);
        let done = ground.expire();
        assert_eq!(fs::read(ground.path("bob/d/thesis")).unwrap(), b"years of work", "{state:?}: {done:?}");
        assert_eq!((done.entries, done.changed), (1, 1), "{state:?}: {done:?}");
    }
}
