//! Tests attacks that could let one user read or destroy another user's data, or delay another user's requests.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use fordway_client::s3::{S3Config, S3Credentials, S3Store};
use fordway_posix::{PosixConfig, PosixStore};
use fordway_serve::{AccessKeyPair, Gateway, GatewayConfig, Users};
use fordway_store::{
    CompleteOptions, CompletedPart, CopyOptions, DeleteOptions, ETag, ErrorKind, ExpectedContent,
    ObjectTagOperations, ObjectVersionOperations, Objects, PartOptions, PutOptions, Store, Tags,
    VersioningState,
};

use crate::ground::{ALICE, BOB, Ground, Lane, as_user, bucket, chmod, is_root, key, put, read, snapshot};

/// Creates files in a user's directory that look like files that `gc` removes.
fn leave_precious_things(ground: &Ground) {
    ground.bucket("bob", BOB, 0o755);
    ground.write("bob/thesis", BOB, 0o600, "mine");
    ground.write("bob/0123456789abcdef", BOB, 0o644, "mine too");
    ground.write(&format!("bob/{}/upload", "0123456789abcdef".repeat(2)), BOB, 0o644, "not an upload");
    ground.write(&format!("bob/{}/00001", "0123456789abcdef".repeat(2)), BOB, 0o644, "nor a part");
    ground.write("bob/empty/nothing", BOB, 0o644, "");
    fs::remove_file(ground.path("bob/empty/nothing")).unwrap();
}

/// Replaces each directory of a bucket's private area, and the area itself, with a symbolic link to a victim's
/// directory. `gc` must not change this directory.
#[test]
fn gc_removes_nothing_behind_a_link() {
    if !is_root() {
        return;
    }
    for name in ["tmp", "mpu", "meta", "odd", "versions"] {
        let ground = Ground::new();
        leave_precious_things(&ground);
        let alice = ground.bucket("alice", ALICE, 0o755);
        ground.on(Lane::Embedded, ALICE, |store| put(store, &alice, "k", b"x").unwrap());
        ground.make_dirs(&ground.path("alice/.fordway"), ALICE);
        symlink("../../bob", ground.path(&format!("alice/.fordway/{name}"))).unwrap();
        let before = snapshot(&ground.path("bob"));
        let summary = ground.collect();
        assert_eq!(snapshot(&ground.path("bob")), before, "{name}");
        assert!(summary.failed > 0, "{name}: an administrator is told");
        assert!(
            ground.check().iter().any(|(kind, path)| kind == "not-ours" && path.ends_with(name)),
            "{name}"
        );
    }
    let ground = Ground::new();
    leave_precious_things(&ground);
    ground.bucket("alice", ALICE, 0o755);
    symlink("../bob", ground.path("alice/.fordway")).unwrap();
    let before = snapshot(&ground.path("bob"));
    ground.collect();
    assert_eq!(snapshot(&ground.path("bob")), before);
}

/// When root runs `gc`, the run removes old files of the bucket's owner. The run also removes another user's files in
/// the same directory, acting as that user.
#[test]
fn gc_still_collects_what_is_left() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let alice = ground.bucket("alice", ALICE, 0o1777);
    ground.on(Lane::Embedded, ALICE, |store| put(store, &alice, "k", b"x").unwrap());
    ground.write("alice/.fordway/tmp/0123456789abcdef", ALICE, 0o600, "staged");
    ground.write("alice/.fordway/tmp/0123456789abcdee", BOB, 0o600, "staged by Bob");
    let upload = "0123456789abcdef".repeat(2);
    ground.write(&format!("alice/.fordway/mpu/{upload}/upload"), BOB, 0o600, "\x01");
    fordway_sys::set_mode(File::open(ground.path("alice/.fordway/tmp")).unwrap(), 0o1777).unwrap();
    assert_eq!(ground.collect().removed, 3);
    for left in ["tmp/0123456789abcdef", "tmp/0123456789abcdee", &format!("mpu/{upload}")] {
        assert!(!ground.path(&format!("alice/.fordway/{left}")).exists(), "{left}");
    }
}

/// Alice's object is in the private area, because another file of hers took the place of its directory. After Alice has
/// removed this file, Bob puts another one at the object's path.
#[test]
fn an_object_that_another_users_file_hides_is_not_garbage() {
    if !is_root() {
        return;
    }
    let hidden = "lab/.fordway/odd/results%2Frun1.csv";
    for by_rename in [false, true] {
        let ground = Ground::new();
        let lab = ground.bucket("lab", 0, 0o1777);
        ground.write("lab/results", ALICE, 0o644, "in the way");
        ground.on(Lane::Http, ALICE, |store| put(store, &lab, "results/run1.csv", b"Alice's").unwrap());
        assert!(ground.path(hidden).exists());
        fs::remove_file(ground.path("lab/results")).unwrap();
        ground.make_dirs(&ground.path("lab/results"), BOB);
        chmod(&ground.path("lab/results"), 0o777);
        match by_rename {
            false => ground.write("lab/results/run1.csv", BOB, 0o644, "false"),
            // The file belongs to Alice, but Bob decides its name.
            true => ground.write("lab/results/run1.csv", ALICE, 0o644, "false"),
        }
        let summary = ground.collect();
        assert!(ground.path(hidden).exists(), "renamed: {by_rename}");
        assert!(summary.failed > 0, "an administrator is told");
        ground.expire_all(&lab, 0);
        ground.expire();
        assert!(
            !ground.path("lab/results/run1.csv").exists(),
            "the file that lifecycle examined has expired"
        );
        ground.on(Lane::Http, ALICE, |store| {
            assert_eq!(read(store, &lab, "results/run1.csv").unwrap(), b"Alice's")
        });
        // A file that the bucket's owner has put there replaces the object.
        let _ = fs::remove_dir_all(ground.path("lab/results"));
        ground.write("lab/results/run1.csv", 0, 0o644, "newer");
        assert_eq!(ground.collect().failed, 0);
        assert!(!ground.path(hidden).exists());
    }
}

/// Replaces the lock table with a link to a victim's file, whose mode must not change.
#[test]
fn gc_changes_no_mode_behind_a_link() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    leave_precious_things(&ground);
    let alice = ground.bucket("alice", ALICE, 0o777);
    ground.on(Lane::Embedded, ALICE, |store| {
        for name in ["a/b", "a"] {
            put(store, &alice, name, b"x").unwrap();
        }
    });
    // A plain file at the path hides the odd key, which `gc` then removes while holding its lock.
    fs::remove_dir_all(ground.path("alice/a")).unwrap();
    ground.write("alice/a", ALICE, 0o644, "plain");
    let locks = ground.path("alice/.fordway/locks");
    fs::remove_file(&locks).unwrap();
    symlink("../../bob/thesis", &locks).unwrap();
    let before = snapshot(&ground.path("bob"));
    assert!(ground.collect().failed > 0);
    assert_eq!(snapshot(&ground.path("bob")), before);
    for lane in Lane::ALL {
        ground.on(lane, ALICE, |store| {
            put(store, &alice, "a", b"again").expect_err("there is no lock to be had")
        });
    }
    assert_eq!(snapshot(&ground.path("bob")), before);
}

/// Acquires all locks of a bucket, as the bucket's owner may do. Dropping the returned file releases the locks.
pub(crate) fn hold_all_locks(ground: &Ground, path: &str) -> File {
    as_user(ALICE, || hold_all_locks_here(&ground.path(path)))
}

fn hold_all_locks_here(path: &Path) -> File {
    let open = || fs::OpenOptions::new().write(true).open(path).unwrap();
    let table = open();
    fordway_sys::lock_file(&table, Duration::from_secs(5)).unwrap();
    fordway_sys::lock_file(open(), Duration::ZERO).expect_err("all locks are held");
    table
}

#[test]
fn locks_that_are_held_hold_up_their_holder_alone() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let (alices, bobs) = (ground.bucket("alice", ALICE, 0o755), ground.bucket("bob", BOB, 0o755));
    let (alice, bob) = (ground.client("alice"), ground.client("bob"));
    for name in ["k", "other"] {
        put(&alice, &alices, name, b"x").unwrap();
        put(&alice, &alices, name, b"y").unwrap();
        put(&bob, &bobs, name, b"x").unwrap();
    }
    let held = hold_all_locks(&ground, "alice/.fordway/locks");
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..60)
            .map(|number| {
                let (alice, alices) = (&alice, &alices);
                scope.spawn(move || {
                    let started = Instant::now();
                    let error = match number % 5 {
                        0 => alice.delete(alices, &key("k"), &DeleteOptions::default()).err(),
                        1 => put(alice, alices, "k", b"z").err(),
                        2 => alice.set_tags(alices, &key("k"), None, &Tags::new()).err(),
                        3 => alice.set_versioning(alices, VersioningState::Enabled).err(),
                        _ => {
                            let options = CopyOptions::default();
                            alice.copy((alices, &key("other")), alices, &key("k"), &options).err()
                        }
                    };
                    (number, error.expect("the lock is held"), started.elapsed())
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(300));
        // While Alice's requests wait for locks, each round of Bob's requests must take less than 2 s.
        for round in 0..20 {
            let started = Instant::now();
            assert_eq!(read(&bob, &bobs, "other").unwrap(), b"x");
            put(&bob, &bobs, "k", b"new").unwrap();
            bob.delete(&bobs, &key("k"), &DeleteOptions::default()).unwrap();
            assert_eq!(bob.list(&bobs, &Default::default()).unwrap().entries.len(), 1);
            let took = started.elapsed();
            assert!(took < Duration::from_secs(2), "round {round} took {took:?}");
        }
        for waiting in waiting {
            let (number, error, took) = waiting.join().unwrap();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{number}: {error}");
            assert!(took < Duration::from_secs(25), "{number} took {took:?}");
        }
    });
    drop(held);
    assert_eq!(read(&alice, &alices, "k").unwrap(), b"y", "nothing was changed");
    put(&alice, &alices, "k", b"free").unwrap();
}

/// An upload that arrived while the lock was held is published when the lock is released.
#[test]
fn a_put_that_waited_for_a_lock_is_done() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let (alices, alice) = (ground.bucket("alice", ALICE, 0o755), ground.client("alice"));
    put(&alice, &alices, "k", b"x").unwrap();
    put(&alice, &alices, "k", b"y").unwrap();
    let held = hold_all_locks(&ground, "alice/.fordway/locks");
    std::thread::scope(|scope| {
        let putting = scope.spawn(|| put(&alice, &alices, "k", b"at last"));
        let deleting = scope.spawn(|| alice.delete(&alices, &key("none"), &DeleteOptions::default()));
        std::thread::sleep(Duration::from_millis(500));
        drop(held);
        putting.join().unwrap().unwrap();
        deleting.join().unwrap().unwrap();
    });
    assert_eq!(read(&alice, &alices, "k").unwrap(), b"at last");
}

/// A lock table that has been renamed is no longer used, because other processes do not find it.
#[test]
fn a_lock_table_is_used_only_by_its_name() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let alices = ground.bucket("alice", ALICE, 0o755);
    let area = ground.path("alice/.fordway");
    ground.on(Lane::Embedded, ALICE, |store| {
        for body in [b"x", b"y"] {
            put(store, &alices, "k", body).unwrap();
        }
        fs::rename(area.join("locks"), area.join("locks-aside")).unwrap();
        fs::write(area.join("locks"), "").unwrap();
        let _held = hold_all_locks_here(&area.join("locks"));
        for attempt in 0..3 {
            let error = put(store, &alices, "k", b"z").expect_err("the lock is held");
            assert_eq!(error.kind(), ErrorKind::LockTimeout, "attempt {attempt}");
        }
    });
}

#[test]
fn a_held_lock_is_a_clear_error() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let alices = ground.bucket("alice", ALICE, 0o755);
    ground.on(Lane::Embedded, ALICE, |store| {
        put(store, &alices, "k", b"x").unwrap();
        put(store, &alices, "k", b"y").unwrap();
    });
    let _held = hold_all_locks(&ground, "alice/.fordway/locks");
    for lane in [Lane::Embedded, Lane::Node] {
        let error =
            ground.on(lane, ALICE, |store| put(store, &alices, "k", b"z").expect_err("the lock is held"));
        assert_eq!(error.kind(), ErrorKind::LockTimeout, "{lane:?}");
        assert!(error.to_string().contains("lslocks"), "{error}");
    }
    // S3 clients receive the following response.
    let alice = ground.client("alice");
    let url = alice.presign("DELETE", &alices, &key("k"), 60, std::time::SystemTime::now()).unwrap();
    let answer = http(&ground, "DELETE", &url);
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.to_ascii_lowercase().contains("\r\nretry-after: 1\r\n"), "{answer}");
    assert!(answer.contains("<Code>SlowDown</Code>"), "{answer}");
}

/// Sends one request. Returns the response.
fn http(ground: &Ground, method: &str, url: &str) -> String {
    use std::io::{Read, Write};
    let endpoint = ground.endpoint();
    let host = endpoint.strip_prefix("http://").unwrap();
    let path = url.strip_prefix(endpoint.as_str()).unwrap();
    let mut stream = std::net::TcpStream::connect(host).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Returns the record of a part. If `file` is given, the record specifies that this file contains the part's bytes. Any
/// program could write such a record.
pub(crate) fn record_of_part(size: u64, etag: &str, file: Option<&str>) -> Vec<u8> {
    let mut record = vec![1];
    let mut field = |tag: u8, value: &[u8]| {
        record.push(tag);
        record.extend_from_slice(&(value.len() as u16).to_le_bytes());
        record.extend_from_slice(value);
    };
    field(1, &[size.to_le_bytes(), 0_u64.to_le_bytes()].concat());
    field(2, etag.as_bytes());
    if let Some(file) = file {
        field(11, file.as_bytes());
    }
    record
}

/// A part's record names a file that only the gateway's user may read. Completing the upload must not publish this
/// file.
#[test]
fn a_completion_publishes_no_file_that_a_record_names() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let root = dir.path().join("root");
    fs::create_dir_all(root.join("shared")).unwrap();
    fs::set_permissions(root.join("shared"), fs::Permissions::from_mode(0o777)).unwrap();
    let secret = "the gateway's own words";
    fs::write(dir.path().join("secret"), secret).unwrap();
    fs::set_permissions(dir.path().join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    let store = PosixStore::open(&root, PosixConfig::default()).unwrap();
    let identity = AccessKeyPair::generate().unwrap();
    let keys = S3Credentials::keys(&identity.access_key, &identity.secret_key, "this test");
    let config = GatewayConfig::new("127.0.0.1:0".parse().unwrap());
    let gateway = Gateway::bind(Users::one(identity, std::sync::Arc::new(store.clone())), config);
    let gateway = gateway.unwrap().spawn().unwrap();
    let http =
        S3Store::new(S3Config::new(format!("http://{}", gateway.local_addr()), "us-east-1", keys)).unwrap();
    let shared = bucket("shared");
    for store in [&store as &dyn Store, &http] {
        for name in [
            "../../../../../secret",
            "../../../../other",
            "/etc/passwd",
            "data",
            "upload",
            "00002-0123456789abcdef",
            "00001-link",
            "00001-0123456789abcdef",
            "00001-0123456789abcdef/../../../../../../secret",
        ] {
            fs::write(root.join("other"), secret).unwrap();
            let upload = store.create_upload(&shared, &key("k"), &PutOptions::default()).unwrap();
            let place = root.join("shared/.fordway/mpu").join(upload.as_str());
            let etag = ETag::opaque(7);
            let record = record_of_part(secret.len() as u64, etag.as_str(), Some(name));
            fs::write(place.join("00001"), record).unwrap();
            symlink(dir.path().join("secret"), place.join("00001-link")).unwrap();
            symlink("../../../../../secret", place.join("00001-0123456789abcdef")).unwrap();
            let parts = [CompletedPart { number: 1, etag, checksum: None }];
            let done =
                store.complete_upload(&shared, &key("k"), &upload, &parts, &CompleteOptions::default());
            let error = done.err().unwrap_or_else(|| panic!("{name} was published"));
            assert!(
                matches!(error.kind(), ErrorKind::InvalidPart | ErrorKind::AccessDenied),
                "{name}: {error}"
            );
            read(store, &shared, "k").expect_err("there is no object");
            store.abort_upload(&shared, &key("k"), &upload).unwrap();
        }
    }
}

/// Impossible numbers in the records of parts are never used as offsets, in sums, or as allocation sizes.
#[test]
fn numbers_in_records_are_checked() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let alices = ground.bucket("alice", ALICE, 0o755);
    for lane in Lane::ALL {
        for (size, uniform) in [
            (u64::MAX, "18446744073709551615"),
            (i64::MAX as u64, "9223372036854775807"),
            (1 << 60, "922337203685477"),
            (4, "99999999999999999999999"),
            (1 << 50, "-1"),
        ] {
            let upload = ground.on(lane, ALICE, |store| {
                store.create_upload(&alices, &key("k"), &PutOptions::default()).unwrap()
            });
            let place = format!("alice/.fordway/mpu/{}", upload.as_str());
            let etag = ETag::opaque(7);
            for number in [1, 2, 10_000] {
                let record = record_of_part(size, etag.as_str(), None);
                ground.write(&format!("{place}/{number:05}"), ALICE, 0o644, record);
            }
            ground.write(&format!("{place}/part-size"), ALICE, 0o644, uniform);
            ground.on(lane, ALICE, |store| {
                let part = |number| CompletedPart { number, etag: etag.clone(), checksum: None };
                let parts = [part(1), part(2), part(10_000)];
                let place = format!("{lane:?} {size} {uniform}");
                let done =
                    store.complete_upload(&alices, &key("k"), &upload, &parts, &CompleteOptions::default());
                let expected = if size == 4 { ErrorKind::EntityTooSmall } else { ErrorKind::InvalidPart };
                assert_eq!(done.unwrap_err().kind(), expected, "{place}");
                let options = PartOptions { size_hint: Some(6 << 20), ..Default::default() };
                let sent =
                    store.part_writer(&alices, &key("k"), &upload, 9_999, &options).and_then(|mut part| {
                        part.write(&vec![1; 6 << 20])?;
                        part.commit(&ExpectedContent::default())
                    });
                let listed = store.list_parts(&alices, &key("k"), &upload, &Default::default());
                let listed: Vec<_> =
                    listed.unwrap().parts.iter().map(|part| (part.number, part.size)).collect();
                match sent {
                    Ok(_) => assert!(listed.contains(&(9_999, 6 << 20)), "{place}: {listed:?}"),
                    // The position of the part may exceed the maximum file size of the file system.
                    Err(error) => assert_eq!(error.kind(), ErrorKind::EntityTooLarge, "{place}: {error}"),
                }
                store.abort_upload(&alices, &key("k"), &upload).unwrap();
            });
        }
    }
}
