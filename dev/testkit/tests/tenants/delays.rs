//! Tests directories and locks that a tenant could use to delay other tenants.

use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fordway_store::{Bucket, ErrorKind, GetOptions, Objects, VersioningState};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::criticals::hold_all_locks;
use crate::ground::{ALICE, BOB, Ground, Lane, as_user, is_root, key, put, read};

/// The number of files. In a debug build, removing this many files or reading their names takes several times
/// [`SHORT`].
const MANY: usize = 20_000;
/// The maximum time that one request of another tenant may wait.
const SHORT: Duration = Duration::from_millis(400);

/// Returns the longest time that any GET by Bob takes while Alice makes requests with `work`. The gateway has one
/// thread.
fn longest_wait(ground: &Ground, work: impl FnOnce() + Send) -> Duration {
    let (bobs, bob) = (ground.bucket("bob", BOB, 0o755), ground.client("bob"));
    put(&bob, &bobs, "k", b"x").unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            work();
            is_over.store(true, Ordering::Relaxed);
        });
        let (mut longest, mut gets) = (Duration::ZERO, 0);
        while !is_over.load(Ordering::Relaxed) {
            let started = Instant::now();
            assert_eq!(read(&bob, &bobs, "k").unwrap(), b"x");
            longest = longest.max(started.elapsed());
            gets += 1;
        }
        assert!(gets > 0, "Alice's requests ended before Bob's first");
        longest
    })
}

/// Fills a directory of Alice's private area with empty files.
fn fill(ground: &Ground, dir: &str, name: impl Fn(usize) -> String + Sync) {
    ground.make_dirs(&ground.path(dir), ALICE);
    as_user(ALICE, || (0..MANY).for_each(|n| fs::write(ground.path(dir).join(name(n)), "").unwrap()));
}

#[test]
fn removing_a_bucket_with_many_private_files_delays_nobody() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let alices = ground.bucket("alice", ALICE, 0o755);
    fill(&ground, "alice/.fordway/tmp", |n| format!("{n:016x}"));
    let alice = ground.client("alice");
    let longest = longest_wait(&ground, || alice.delete_bucket(&alices).unwrap());
    assert!(longest < SHORT, "{longest:?}");
}

#[test]
fn reading_many_old_versions_delays_nobody() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let alices = ground.bucket("alice", ALICE, 0o755);
    ground.on(Lane::Embedded, ALICE, |store| {
        store.set_versioning(&alices, VersioningState::Enabled).unwrap();
    });
    fill(&ground, "alice/.fordway/versions/k", |n| format!("{n:016x}-{n:016x}.{n:016x}-marker"));
    let alice = ground.client("alice");
    let longest = longest_wait(&ground, || {
        for _ in 0..10 {
            let missing = alice.get(&alices, &key("k"), &GetOptions::default()).map(drop).unwrap_err();
            assert_eq!(missing.kind(), ErrorKind::NoSuchKey);
        }
    });
    assert!(longest < SHORT / 4, "{longest:?}");
}

/// Creates files for odd keys, which plain files hide. `gc` removes each hidden file while holding the lock of its key.
fn leave_hidden_files(ground: &Ground, bucket: &Bucket) {
    for number in 0..20 {
        ground.write(&format!("{bucket}/d{number}/k"), ALICE, 0o644, "plain");
        ground.write(&format!("{bucket}/.fordway/odd/d{number}%2Fk"), ALICE, 0o644, "odd");
    }
    ground.write(&format!("{bucket}/.fordway/locks"), ALICE, 0o644, "");
}

#[test]
fn gc_waits_once_for_a_user_who_holds_all_locks() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    for name in ["alice", "bob"] {
        leave_hidden_files(&ground, &ground.bucket(name, ALICE, 0o755));
    }
    let held = hold_all_locks(&ground, "alice/.fordway/locks");
    let started = Instant::now();
    let done = ground.collect();
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    assert_eq!((done.failed, done.removed), (20, 20), "the other bucket is cleaned");
    drop(held);
    assert_eq!(ground.collect().removed, 20);
}

#[test]
fn a_lifecycle_run_waits_once_for_a_user_who_holds_all_locks() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    for name in ["alice", "bob"] {
        let bucket = ground.bucket(name, ALICE, 0o755);
        for number in 0..20 {
            ground.write(&format!("{name}/k{number}"), ALICE, 0o644, "old");
        }
        ground.expire_all(&bucket, ALICE);
        ground.write(&format!("{name}/.fordway/locks"), ALICE, 0o644, "");
    }
    let mut held = hold_key_locks(&ground, "alice/.fordway/locks");
    let started = Instant::now();
    let done = ground.expire();
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    assert_eq!((done.failed, done.changed), (20, 20), "objects in the other bucket expire");
    held.kill().unwrap();
    held.wait().unwrap();
    assert_eq!(ground.expire().changed, 20);
}

/// Starts a program that holds the locks of all keys, but not the lock for maintenance runs on the bucket.
fn hold_key_locks(ground: &Ground, path: &str) -> Child {
    let code = "import fcntl, sys; file = open(sys.argv[1], 'r+b'); fcntl.lockf(file, fcntl.LOCK_EX, 1 << 24); \
                print('held', end='', flush=True); sys.stdin.read()";
    let mut command = Command::new("python3");
    command.args(["-c", code]).arg(ground.path(path)).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = as_user(ALICE, || command.spawn().unwrap());
    let mut said = [0; 4];
    holder.stdout.take().unwrap().read_exact(&mut said).unwrap();
    holder
}

#[test]
fn a_bucket_that_vanishes_does_not_end_gc_or_fsck() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    ground.bucket("alice", ALICE, 0o755);
    ground.bucket("zoe", BOB, 0o755);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (here, away) = (ground.path("alice"), ground.path(".alice"));
            while !is_over.load(Ordering::Relaxed) {
                for (from, to) in [(&here, &away), (&away, &here)] {
                    renameat_with(CWD, from, CWD, to, RenameFlags::empty()).unwrap();
                }
            }
        });
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(2) {
            ground.write("zoe/.fordway/tmp/0123456789abcdef", BOB, 0o600, "staged");
            ground.collect();
            assert!(!ground.path("zoe/.fordway/tmp/0123456789abcdef").exists());
            ground.check();
        }
        is_over.store(true, Ordering::Relaxed);
    });
}
