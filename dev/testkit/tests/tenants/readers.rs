//! Tests users who may only read a bucket. Nothing that they do delays or stops the bucket's writers.

use std::fs::{self, File};
use std::io::ErrorKind as IoErrorKind;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;

use fordway_posix::MigrationEvent;
use fordway_store::{
    Bucket, CompleteOptions, CompletedPart, DeleteOptions, ExpectedContent, PartOptions, PutOptions, Store,
    UploadId,
};

use crate::ground::{ALICE, BOB, Ground, Lane, TEAM, as_user, chmod, is_root, key, put, read};

/// Overwrites and deletes objects, and starts an upload that has one part.
fn use_bucket(store: &dyn Store, bucket: &Bucket) -> (UploadId, [CompletedPart; 1]) {
    for body in [b"x", b"y"] {
        put(store, bucket, "k", body).unwrap();
    }
    store.delete(bucket, &key("k"), &DeleteOptions::default()).unwrap();
    let upload = store.create_upload(bucket, &key("up"), &PutOptions::default()).unwrap();
    let mut part = store.part_writer(bucket, &key("up"), &upload, 1, &PartOptions::default()).unwrap();
    part.write(b"part").unwrap();
    let made = part.commit(&ExpectedContent::default()).unwrap();
    (upload, [CompletedPart { number: 1, etag: made.etag, checksum: None }])
}

fn mode_of(ground: &Ground, path: &str) -> u32 {
    fs::metadata(ground.path(path)).unwrap().permissions().mode() & 0o7777
}

/// Checks that Bob can open neither the lock table nor the lock of the upload, in which he could take a read lock.
#[track_caller]
fn assert_bob_gets_no_lock(ground: &Ground, bucket: &Bucket, upload: &UploadId) {
    let locks =
        [format!("{bucket}/.fordway/locks"), format!("{bucket}/.fordway/mpu/{}/data", upload.as_str())];
    let paths: Vec<PathBuf> = locks.iter().map(|path| ground.path(path)).collect();
    as_user(BOB, || {
        for path in &paths {
            let error = File::open(path).err().unwrap_or_else(|| panic!("Bob opened {}", path.display()));
            assert_eq!(error.kind(), IoErrorKind::PermissionDenied, "{}", path.display());
        }
    });
}

#[test]
fn who_may_only_read_a_bucket_gets_none_of_its_locks() {
    if !is_root() {
        return;
    }
    for (lane, mode) in Lane::ALL.into_iter().flat_map(|lane| [(lane, 0o755), (lane, 0o775), (lane, 0o1775)])
    {
        let ground = Ground::new();
        let alices = ground.bucket("alice", ALICE, mode);
        let (upload, parts) = ground.on(lane, ALICE, |store| use_bucket(store, &alices));
        assert_bob_gets_no_lock(&ground, &alices, &upload);
        let expected = if mode & 0o020 != 0 { 0o660 } else { 0o600 };
        assert_eq!(mode_of(&ground, "alice/.fordway/locks"), expected, "{lane:?} {mode:o}");
        ground.on(lane, BOB, |store| {
            let listed = store.list_uploads(&alices, &Default::default()).unwrap();
            assert_eq!(listed.uploads, [], "{lane:?} {mode:o}");
        });
        ground.on(lane, ALICE, |store| {
            let complete = CompleteOptions::default();
            store.complete_upload(&alices, &key("up"), &upload, &parts, &complete).unwrap();
        });
        ground.on(lane, BOB, |store| assert_eq!(read(store, &alices, "up").unwrap(), b"part"));
        assert_eq!(ground.check(), []);
    }
}

/// In a bucket that a group may write to, every member can use the lock table and the uploads of all members.
#[test]
fn all_writers_of_a_bucket_get_its_locks() {
    if !is_root() {
        return;
    }
    for lane in Lane::ALL {
        let ground = Ground::new();
        let team = ground.bucket("team", ALICE, 0o775);
        chown(ground.path("team"), None, Some(TEAM)).unwrap();
        let (upload, _) = ground.on(lane, BOB, |store| use_bucket(store, &team));
        ground.on(lane, ALICE, |store| {
            use_bucket(store, &team);
            let listed = store.list_uploads(&team, &Default::default()).unwrap().uploads;
            assert!(listed.iter().any(|found| found.upload == upload), "{lane:?}: {listed:?}");
        });
    }
}

/// Earlier releases let everyone who could read the bucket open its locks. The owner's next use of the bucket repairs
/// the lock table, and `fsck --migrate` also repairs uploads.
#[test]
fn locks_of_earlier_releases_are_closed_to_readers() {
    if !is_root() {
        return;
    }
    for migrates in [false, true] {
        let ground = Ground::new();
        let alices = ground.bucket("alice", ALICE, 0o755);
        let (upload, _) = ground.on(Lane::Embedded, ALICE, |store| use_bucket(store, &alices));
        let dir = format!("alice/.fordway/mpu/{}", upload.as_str());
        chmod(&ground.path("alice/.fordway/locks"), 0o644);
        chmod(&ground.path(&dir), 0o755);
        if !migrates {
            ground.on(Lane::Embedded, ALICE, |store| drop(use_bucket(store, &alices)));
            assert_eq!(mode_of(&ground, "alice/.fordway/locks"), 0o600);
            continue;
        }
        let mut changed = Vec::new();
        let tell = &mut |event: MigrationEvent| {
            if let MigrationEvent::Done(step) = event {
                changed.push(step.path);
            }
            Ok(())
        };
        ground.embedded().migrate(&[], tell).unwrap();
        assert!(
            changed.contains(&dir) && changed.contains(&"alice/.fordway/locks".to_owned()),
            "{changed:?}"
        );
        assert_bob_gets_no_lock(&ground, &alices, &upload);
    }
}
