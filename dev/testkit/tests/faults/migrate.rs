//! Kills a migration before each of its calls, and then repeats the migration. No record of an object may be lost.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{Bucket, GetOptions, Key, MAX_TAGS, Metadata, Objects, PutOptions, Tags};
use fordway_sys::fault::{self, FaultInjectionPlan, SyscallFault};

/// The variable that contains the number of the call before which a child process is killed, and the directory.
const CHILD: &str = "FORDWAY_TEST_MIGRATE";
/// An upper bound on the number of calls that the migration makes.
const MOST_CALLS: usize = 1000;
const KEYS: [&str; 3] = ["a", "b", "c"];

fn bucket() -> Bucket {
    Bucket::new("bucket").unwrap()
}

fn open(dir: &Path) -> PosixStore {
    PosixStore::open(dir, PosixConfig::default()).unwrap()
}

/// Creates objects with records that do not fit into an extended attribute. Then renames the sidecar files, so that
/// each has the name of another object's sidecar file. The same mismatch occurs in a copy of a root whose files have
/// the original's inode numbers in another order.
fn prepare(dir: &Path) {
    let store = open(dir);
    store.create_bucket(&bucket()).unwrap();
    let tags: Tags = (0..MAX_TAGS).map(|n| (format!("{n:0>100}"), "v".repeat(256))).collect();
    for name in KEYS {
        let metadata = Metadata { content_type: Some(format!("text/x-{name}")), ..Metadata::default() };
        let options = PutOptions { tags: tags.clone(), metadata: metadata.into(), ..PutOptions::default() };
        store.put(&bucket(), &Key::new(name).unwrap(), name.as_bytes(), &options).unwrap();
    }
    let at = dir.join("bucket");
    let sidecars = KEYS.map(|name| {
        let inode = fs::metadata(at.join(name)).unwrap().ino();
        at.join(".fordway/meta").join(format!("{inode:016x}"))
    });
    let aside = at.join("aside");
    fs::rename(&sidecars[0], &aside).unwrap();
    fs::rename(&sidecars[1], &sidecars[0]).unwrap();
    fs::rename(&sidecars[2], &sidecars[1]).unwrap();
    fs::rename(&aside, &sidecars[2]).unwrap();
}

fn migrate(store: &PosixStore) {
    store.migrate(&[], &mut |_| Ok(())).unwrap();
}

#[test]
fn a_migration_that_dies_can_be_repeated() {
    let calls = (1..MOST_CALLS).take_while(|at| dies_at(*at)).count();
    assert!((10..MOST_CALLS - 1).contains(&calls), "{calls} calls");
}

fn dies_at(at: usize) -> bool {
    let dir = crate::way::scratch();
    prepare(dir.path());
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--ignored", "--exact", "migrate::the_process_that_dies", "--nocapture"])
        .stdout(Stdio::null());
    let died = crate::way::is_killed(child.env(CHILD, format!("{at} {}", dir.path().display())));
    let store = open(dir.path());
    migrate(&store);
    for name in KEYS {
        let info = store.head(&bucket(), &Key::new(name).unwrap(), &GetOptions::default()).unwrap();
        let expected = format!("text/x-{name}");
        assert_eq!(info.metadata.content_type, Some(expected), "{name}, killed before call {at}");
    }
    let left = fs::read_dir(dir.path().join("bucket/.fordway/meta")).unwrap().count();
    assert!(died || left == KEYS.len(), "{left} sidecar files");
    died
}

#[test]
#[ignore = "run by another test, as a process of its own"]
fn the_process_that_dies() {
    let Ok(task) = std::env::var(CHILD) else { return };
    let (at, dir) = task.split_once(' ').unwrap();
    let nth = Some((at.parse().unwrap(), SyscallFault::Kill));
    let store = open(Path::new(dir));
    fault::run(FaultInjectionPlan { nth, ..FaultInjectionPlan::default() }, || migrate(&store));
}
