//! Interrupts the operations that create the files and directories that all writers of a bucket share, in a bucket to
//! which every user may write. Each of these files and directories must have the bucket's permissions, or must not
//! exist. Otherwise, all other writers are locked out.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{Bucket, Key, Objects, PutOptions, Result, Store, VersioningState};
use fordway_sys::Errno;
use fordway_sys::fault::{self, FaultInjectionPlan, SyscallFault};

use crate::way::is_killed;

/// The variable that contains the task of a child process: the operation, the call and the directory.
const CHILD: &str = "FORDWAY_TEST_AREA";
/// An upper bound on the number of calls that an operation makes.
const MOST_CALLS: usize = 500;

/// The operations, each of which creates a part of the private area.
const ACTS: &[fn(&dyn Store) -> Result<()>] = &[
    |store| put(store, "k", 0).and_then(|()| put(store, "k", 0)),
    |store| put(store, "a//k", 0),
    |store| put(store, "long", 5000),
    |store| {
        store.set_versioning(&bucket(), VersioningState::Enabled)?;
        put(store, "k", 0)?;
        put(store, "k", 0)
    },
    |store| store.create_upload(&bucket(), &key("u"), &PutOptions::default()).map(drop),
    |store| put(store, "dir/", 0),
];

fn bucket() -> Bucket {
    Bucket::new("bucket").unwrap()
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn open(dir: &Path) -> PosixStore {
    PosixStore::open(dir, PosixConfig::default()).unwrap()
}

fn put(store: &dyn Store, name: &str, metadata_bytes: usize) -> Result<()> {
    let mut options = PutOptions::default();
    if metadata_bytes > 0 {
        options.metadata.user.insert("long".to_owned(), "x".repeat(metadata_bytes));
    }
    store.put(&bucket(), &key(name), b"", &options).map(drop)
}

/// Creates a bucket to which every user may write.
fn prepared() -> tempfile::TempDir {
    let dir = crate::way::scratch();
    open(dir.path()).create_bucket(&bucket()).unwrap();
    fs::set_permissions(dir.path().join("bucket"), Permissions::from_mode(0o777)).unwrap();
    dir
}

/// Checks the modes of the private area, of the directories in it that belong to no single upload or key, and of the
/// shared files.
#[track_caller]
fn check_modes(root: &Path, place: &str) {
    let area = root.join("bucket/.fordway");
    let names = ["", "tmp", "mpu", "versions", "odd", "meta", "events"].map(|name| (name, 0o777));
    for (name, expected) in names.into_iter().chain([("locks", 0o666), ("markers", 0o666)]) {
        let Ok(state) = fs::metadata(area.join(name)) else { continue };
        let mode = state.permissions().mode() & 0o777;
        assert_eq!(mode, expected, "{place}: .fordway/{name} has the mode {mode:o}");
    }
}

#[test]
fn a_writer_that_dies_locks_no_other_writer_out() {
    kill_everywhere(prepared, check_modes);
}

/// Until a new directory has the bucket's group, it belongs to the group of its creator. The members of that group must
/// not write to the directory, because the name of a file in the private area can be an odd key, for example.
#[test]
fn a_writer_that_dies_lets_no_other_group_in() {
    const GROUP: u32 = 4000;
    if !fordway_needs::root("give a bucket to another group") {
        return;
    }
    let of_group = || {
        let dir = prepared();
        let path = dir.path().join("bucket");
        chown(&path, None, Some(GROUP)).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o775)).unwrap();
        dir
    };
    kill_everywhere(of_group, |root, place| {
        for name in ["", "tmp", "mpu", "versions", "odd", "meta"] {
            let Ok(state) = fs::metadata(root.join("bucket/.fordway").join(name)) else { continue };
            let is_closed = state.gid() == GROUP || state.mode() & 0o020 == 0;
            assert!(is_closed, "{place}: .fordway/{name} is open to the group {}", state.gid());
        }
    });
}

/// Kills each operation before each of its calls, in a new directory each time, and checks what remains.
#[track_caller]
fn kill_everywhere(prepared: impl Fn() -> tempfile::TempDir, check: impl Fn(&Path, &str)) {
    for act in 0..ACTS.len() {
        let dies_at = |at: &usize| {
            let dir = prepared();
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--ignored", "--exact", "area::the_process_that_dies", "--nocapture"]);
            child.env(CHILD, format!("{act} {at} {}", dir.path().display())).stdout(Stdio::null());
            let died = is_killed(&mut child);
            check(dir.path(), &format!("operation {act}, killed before call {at}"));
            died
        };
        let calls = (1..MOST_CALLS).take_while(dies_at).count();
        assert!((5..MOST_CALLS - 1).contains(&calls), "operation {act}: {calls} calls");
    }
}

#[test]
#[ignore = "run by another test, as a process of its own"]
fn the_process_that_dies() {
    let Ok(task) = std::env::var(CHILD) else { return };
    let [act, at, dir] = task.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{task}") };
    let nth = Some((at.parse().unwrap(), SyscallFault::Kill));
    let store = open(Path::new(dir));
    let act = ACTS[act.parse::<usize>().unwrap()];
    fault::run(FaultInjectionPlan { nth, ..Default::default() }, || act(&store)).0.unwrap();
}

#[test]
fn a_writer_whose_call_fails_locks_no_other_writer_out() {
    for (act, run) in ACTS.iter().enumerate() {
        for errno in [Errno::MFILE, Errno::IO, Errno::DQUOT] {
            let fails_at = |at: &usize| {
                let dir = prepared();
                let nth = Some((*at, SyscallFault::Fail(errno)));
                let store = open(dir.path());
                let plan = FaultInjectionPlan { nth, ..Default::default() };
                let (done, calls) = fault::run(plan, || run(&store));
                let call = calls.get(at - 1);
                check_modes(dir.path(), &format!("operation {act}, call {at}, {call:?}: {errno}: {done:?}"));
                calls.len() >= *at
            };
            let calls = (1..MOST_CALLS).take_while(fails_at).count();
            assert!((5..MOST_CALLS - 1).contains(&calls), "operation {act}: {calls} calls");
        }
    }
}

/// An earlier release, or a writer on a shared file system, may have left the lock table inaccessible to other writers.
#[test]
fn the_owner_of_a_closed_lock_table_opens_it_with_the_next_write() {
    let dir = prepared();
    let locks = dir.path().join("bucket/.fordway/locks");
    for _ in 0..2 {
        put(&open(dir.path()), "k", 0).unwrap();
    }
    fs::set_permissions(&locks, Permissions::from_mode(0o600)).unwrap();
    for _ in 0..2 {
        put(&open(dir.path()), "k", 0).unwrap();
    }
    check_modes(dir.path(), "after the next write");
    assert!(locks.exists());
}
