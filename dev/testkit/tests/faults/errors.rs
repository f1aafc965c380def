//! Makes every file-system call of every operation that changes something fail, with one of the relevant errors, or in
//! a soak test with each of them. The operation must return the error or succeed without the call. No operation may
//! take effect partially, and no stray files may remain.

use std::collections::BTreeSet;
use std::path::Path;

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{Bucket, DeleteOptions, Error, ErrorKind, Key, Objects, PutOptions};
use fordway_sys::fault::{self, SyscallFault};
use fordway_sys::{Errno, FileSystemSharing};
use fordway_testkit::conformance::{StoreFixture, cases_written, run_all};
use fordway_testkit::scenario::{BucketSnapshot, OperationScenario, bucket, snapshot, works};

use crate::way::{DURABLE, NO_ATTRIBUTES, OLD_KERNEL, SHARED, USUAL, Way, files, strays};

/// The errors with which calls fail, each with the kind of error that the caller must see. Successive calls fail with
/// successive errors of this list. In a soak test, each call fails once with each error of the list.
const FAILURES: &[(Errno, ErrorKind)] = &[
    (Errno::NOSPC, ErrorKind::NoSpace),
    (Errno::DQUOT, ErrorKind::QuotaExceeded),
    (Errno::IO, ErrorKind::Io),
    (Errno::ACCESS, ErrorKind::AccessDenied),
    (Errno::ROFS, ErrorKind::ReadOnly),
    (Errno::MFILE, ErrorKind::TooManyOpenFiles),
];

/// Calls that a signal may interrupt, and that are repeated after an interruption.
const INTERRUPTIBLE: &[&str] = &["pread", "pwrite", "copy_file_range", "fcntl"];

/// Calls on open files, which take no name.
pub(crate) const ON_OPEN_FILES: &[&str] = &[
    "copy_file_range",
    "fcntl",
    "fdatasync",
    "fgetxattr",
    "flistxattr",
    "fsetxattr",
    "fstat",
    "fsync",
    "futimens",
    "pread",
    "pwrite",
];

/// One failure to be injected into one scenario.
struct Case<'c> {
    way: &'c Way,
    scenario: &'c OperationScenario,
    before: &'c BucketSnapshot,
    after: &'c BucketSnapshot,
    at: usize,
    errno: Errno,
}

/// Checks that a put waits for a file that another client has open. An NFS server returns the injected error while it
/// recalls a delegation from another client.
#[test]
fn a_file_that_another_client_has_open_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
    let (bucket, key) = (Bucket::new("bucket").unwrap(), Key::new("k").unwrap());
    store.create_bucket(&bucket).unwrap();
    let put = || store.put(&bucket, &key, b"content", &PutOptions::default()).map(drop);
    let delete = || store.delete(&bucket, &key, &DeleteOptions::default()).map(drop);
    for (call, act) in [("renameat", &put as &dyn Fn() -> Result<(), Error>), ("unlinkat", &delete)] {
        let run = |nth| {
            put().unwrap();
            // After this pause, all cached descriptors are closed, so runs make the same calls. Exceptions are the
            // first run, which also creates directories, and runs on a busy machine.
            std::thread::sleep(std::time::Duration::from_millis(20));
            fault::run(fault::FaultInjectionPlan { nth, ..Default::default() }, act)
        };
        let mut waited = 0;
        for _ in 0..20 {
            let (_, calls) = run(None);
            let at = 1 + calls.iter().position(|made| *made == call).unwrap();
            let (done, calls) = run(Some((at, SyscallFault::Fail(Errno::TXTBSY))));
            if calls.get(at - 1..).is_some_and(|rest| rest.starts_with(&[call, call])) {
                done.unwrap_or_else(|error| panic!("{call}: {error}"));
                waited += 1;
            }
        }
        assert!(waited > 0, "{call}");
    }
}

/// Checks that a put opens the lock table again if the server of a shared file system no longer has the open file. The
/// client of GlusterFS may return `NOENT` in this case.
#[test]
fn a_lock_table_that_the_server_no_longer_knows_is_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
    let (bucket, key) = (Bucket::new("bucket").unwrap(), Key::new("k").unwrap());
    store.create_bucket(&bucket).unwrap();
    let put = |nth| {
        // After this pause, all cached descriptors are closed, so runs usually make the same calls.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let sharing = Some(FileSystemSharing::Unknown);
        let put = || store.put(&bucket, &key, b"content", &PutOptions::default()).map(drop);
        fault::run(fault::FaultInjectionPlan { nth, sharing, ..Default::default() }, put)
    };
    // On a busy machine, the put may make other calls before the call that must fail.
    let is_opened_again = |call, errno| {
        let (_, usual) = put(None);
        let locked = usual.iter().position(|made| *made == "fcntl").unwrap();
        let at = locked + usual[locked..].iter().position(|made| *made == call).unwrap();
        let (done, calls) = put(Some((at + 1, SyscallFault::Fail(errno))));
        let is_same = calls.get(..at + 1) == usual.get(..at + 1);
        if is_same {
            done.unwrap_or_else(|error| panic!("{call}, {errno}: {error}"));
            assert!(calls[at + 1..].contains(&"openat") && calls[at + 1..].contains(&"fcntl"), "{calls:?}");
        }
        is_same
    };
    put(None).0.unwrap();
    for call in ["fcntl", "statx"] {
        for errno in [Errno::NOENT, Errno::STALE] {
            assert!((0..20).any(|_| is_opened_again(call, errno)), "{call}, {errno}");
        }
    }
}

#[test]
fn every_call_fails_in_the_usual_way() {
    every_call_fails(&USUAL);
}

#[test]
fn every_call_fails_with_full_durability() {
    every_call_fails(&DURABLE);
}

#[test]
fn every_call_fails_without_attributes() {
    every_call_fails(&NO_ATTRIBUTES);
}

#[test]
fn every_call_fails_on_an_old_kernel() {
    every_call_fails(&OLD_KERNEL);
}

#[allow(clippy::print_stdout)]
fn every_call_fails(way: &Way) {
    for scenario in way.scenarios() {
        let (before, after) = way.reference(scenario);
        let calls = calls_of(way, scenario);
        for (at, name) in (1..).zip(&calls) {
            // No operation returns an error of this kind, because an interrupted call must be repeated.
            let interrupted = INTERRUPTIBLE.contains(name).then_some((Errno::INTR, ErrorKind::Interrupted));
            let chosen = FAILURES.iter().enumerate().filter(|(i, _)| is_soak() || at % FAILURES.len() == *i);
            for (errno, kind) in chosen.map(|(_, failure)| *failure).chain(interrupted) {
                let case = Case { way, scenario, before: &before, after: &after, at, errno };
                let checked = std::panic::catch_unwind(|| case.run(kind));
                assert!(checked.is_ok(), "{}, {}: call {at}, {name}: {errno}", way.name, scenario.name);
            }
        }
        println!("{}, {}: each of {} calls failed", way.name, scenario.name, calls.len());
    }
}

/// Makes every call on an open file fail once with `NOENT`, which the client of GlusterFS may return when another node
/// has removed or replaced the file. An operation must try again, or return an error after which clients try again. The
/// operation must not report a missing object.
#[test]
fn an_open_file_that_the_server_no_longer_has_is_not_a_missing_object() {
    let mut failed = 0;
    for scenario in SHARED.scenarios() {
        for (at, name) in (1..).zip(calls_of(&SHARED, scenario)) {
            // Operations on shared file systems wait for caches to expire. Except in soak tests, at most every 20th
            // call therefore fails.
            if !ON_OPEN_FILES.contains(&name) || (!is_soak() && at % 20 != 0) {
                continue;
            }
            let dir = SHARED.prepared(scenario);
            let store = SHARED.open(dir.path());
            let plan = SHARED.plan(Some((at, SyscallFault::Fail(Errno::NOENT))));
            let (done, calls) = fault::run(plan, || (scenario.act)(&store));
            if !calls.get(at - 1).is_some_and(|made| ON_OPEN_FILES.contains(made)) {
                continue;
            }
            failed += 1;
            let kind = done.err().map(|error| error.kind());
            let is_expected = kind == scenario.refused || kind == Some(ErrorKind::ConditionalConflict);
            assert!(is_expected, "{}: call {at}, {name}: {kind:?}", scenario.name);
        }
    }
    assert!(failed > 10, "{failed}");
}

fn is_soak() -> bool {
    std::env::var_os("FORDWAY_SOAK").is_some()
}

fn calls_of(way: &Way, scenario: &OperationScenario) -> Vec<&'static str> {
    let dir = way.prepared(scenario);
    let store = way.open(dir.path());
    fault::run(way.plan(None), || (scenario.act)(&store)).1
}

impl Case<'_> {
    fn run(&self, kind: ErrorKind) {
        let dir = self.way.prepared(self.scenario);
        let store = self.way.open(dir.path());
        let plan = self.way.plan(Some((self.at, SyscallFault::Fail(self.errno))));
        let (done, calls) = fault::run(plan, || (self.scenario.act)(&store));
        drop(store);
        // The call at this position may differ from the call in the previous run, because cached information is
        // occasionally looked up again.
        let call = calls.get(self.at - 1).copied().unwrap_or_default();
        let kind = match self.errno {
            Errno::INTR if !INTERRUPTIBLE.contains(&call) => ErrorKind::Io,
            _ => kind,
        };
        assert_eq!(descriptors_below(dir.path()), BTreeSet::new());
        // If a name cannot be removed, the file remains until the next garbage collection.
        if call != "unlinkat" {
            let staged = dir.path().join(bucket().as_str()).join(fordway_posix::PRIVATE_DIR).join("tmp");
            assert_eq!(files(&staged), [] as [&Path; 0]);
        }
        let shown = self.way.within(|| snapshot(&self.way.open(dir.path())));
        match done {
            Ok(()) => assert!(self.scenario.refused.is_none() && shown == *self.after, "it is not done"),
            Err(error) => {
                assert!(error.kind() == kind || Some(error.kind()) == self.scenario.refused, "{error}");
                assert!(error.to_string().contains("s3://bucket"), "{error}");
                assert!(shown == *self.before || shown == *self.after, "it shows {:?}", shown.keys());
                // A client that repeats a conditional request must not find its own object.
                // At `full`, the object already has its name when its directory is synced.
                let is_create = self.scenario.name.starts_with("create a key");
                let is_withdrawn = is_create && self.way.name != DURABLE.name;
                assert!(!is_withdrawn || shown == *self.before, "it was created");
            }
        }
        assert_eq!(strays(dir.path(), &shown), [] as [&Path; 0]);
        self.way.within(|| works(&self.way.open(dir.path()), &shown));
    }
}

/// Returns the paths below `dir` for which this process has open descriptors.
fn descriptors_below(dir: &Path) -> BTreeSet<String> {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    targets.filter(|target| target.starts_with(dir)).map(|target| target.display().to_string()).collect()
}

/// The whole suite passes if no file has extended attributes.
#[test]
fn the_suite_passes_without_attributes() {
    let with_md5 = || {
        let dir = tempfile::tempdir().unwrap();
        StoreFixture::new(NO_ATTRIBUTES.open(dir.path()), dir)
    };
    let with_fast_tags = || {
        let dir = tempfile::tempdir().unwrap();
        StoreFixture::new(PosixStore::open(dir.path(), PosixConfig::default()).unwrap(), dir)
    };
    for open in [&with_md5 as &dyn Fn() -> StoreFixture, &with_fast_tags] {
        let (cases, calls) = fault::run(NO_ATTRIBUTES.plan(None), || run_all(open));
        assert_eq!(cases, cases_written());
        assert!(calls.contains(&"fsetxattr"));
    }
}

/// The whole suite passes without the system calls that newer kernels added.
#[test]
fn the_suite_passes_on_an_old_kernel() {
    let open = || {
        let dir = tempfile::tempdir().unwrap();
        StoreFixture::new(OLD_KERNEL.open(dir.path()), dir)
    };
    let (cases, calls) = fault::run(OLD_KERNEL.plan(None), || run_all(&open));
    assert_eq!(cases, cases_written());
    assert!(calls.contains(&"lgetxattr") && calls.contains(&"open_tmpfile"));
}
