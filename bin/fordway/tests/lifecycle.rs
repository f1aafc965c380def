//! Tests lifecycle runs as separate processes. Eight processes work on one directory at the same time, two of them
//! through another mount. The processes are killed at random times.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{
    Bucket, BucketDocumentKind, BucketDocumentOperations, Key, ListQuery, LockConfiguration, ObjectLock,
    ObjectLockOperations, ObjectVersionOperations, Objects, PutOptions, VersionId, VersioningState,
    VersionsQuery,
};

const KIND: BucketDocumentKind = BucketDocumentKind::known("lifecycle");
/// The length of a day in these tests. Tests set back the modification times of files instead of waiting for days.
const DAY: Duration = Duration::from_secs(1000);
const ROUNDS: usize = 6;
const OLD: usize = 60;

fn bucket(name: &str) -> Bucket {
    Bucket::new(name).unwrap()
}

fn key(at: usize) -> Key {
    Key::new(format!("dir{}/k{at}", at % 7)).unwrap()
}

fn set_rules(store: &PosixStore, b: &Bucket, inner: &str) {
    let document = format!(
        "<LifecycleConfiguration><Rule><Prefix></Prefix><Status>Enabled</Status>{inner}</Rule></LifecycleConfiguration>"
    );
    store.set_document(b, &KIND, document.as_bytes()).unwrap();
}

/// Puts an object that is `days` days old.
fn put_old(root: &Path, store: &PosixStore, b: &Bucket, at: usize, days: u32) {
    store.put(b, &key(at), b"content", &PutOptions::default()).unwrap();
    let path = root.join(b.as_str()).join(key(at).as_str());
    File::options().write(true).open(path).unwrap().set_modified(SystemTime::now() - DAY * days).unwrap();
}

/// A directory with three buckets: one without versions, one with versions, and one whose old versions are locked.
struct Rig {
    dir: tempfile::TempDir,
    store: PosixStore,
    held: BTreeMap<String, VersionId>,
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir(&root).unwrap();
        let store = PosixStore::open(&root, PosixConfig::default()).unwrap();
        let names = ["held", "plain", "versioned"].map(bucket);
        names.iter().for_each(|b| store.create_bucket(b).unwrap());
        let [held, plain, versioned] = names;
        for b in [&held, &versioned] {
            store.set_versioning(b, VersioningState::Enabled).unwrap();
        }
        store.set_lock_configuration(&held, &LockConfiguration::default()).unwrap();
        for b in [&plain, &versioned] {
            set_rules(&store, b, "<Expiration><Days>2</Days></Expiration>");
            (0..OLD).for_each(|at| put_old(&root, &store, b, at, 4));
            (OLD..OLD + 10).for_each(|at| put_old(&root, &store, b, at, 0));
        }
        set_rules(
            &store,
            &held,
            "<NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays></NoncurrentVersionExpiration>",
        );
        let lock = ObjectLock { retention: None, legal_hold: Some(true) };
        let put = |at: usize| {
            let options = PutOptions { lock, ..Default::default() };
            let version = store.put(&held, &key(at), b"held", &options).unwrap().version.unwrap();
            store.put(&held, &key(at), b"latest", &PutOptions::default()).unwrap();
            (key(at).as_str().to_owned(), version)
        };
        let versions = (0..20).map(put).collect();
        Rig { dir, store, held: versions }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// Starts a run whose output is written to a separate file. If `other` is set, the run uses that path as another
    /// mount.
    fn start(&self, number: usize, other: Option<&Path>) -> Child {
        let output = File::create(self.dir.path().join(format!("out{number}"))).unwrap();
        let program = env!("CARGO_BIN_EXE_fordway");
        let words = ["--day", "1000s", "--rate", "60", "--json"];
        let mut command = match other {
            None => {
                let mut command = Command::new(program);
                command.arg("lifecycle").arg(self.root());
                command
            }
            Some(other) => {
                let mut command = Command::new("unshare");
                let script = "mount --bind \"$1\" \"$2\" && exec \"$0\" lifecycle \"$2\" \"${@:3}\"";
                command.args(["--mount", "--", "bash", "-c", script, program]).arg(self.root()).arg(other);
                command
            }
        };
        command.args(words).stdin(Stdio::null()).stdout(output).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Returns the reports of all runs, without truncated lines.
    fn reported(&self, runs: usize) -> Vec<(String, String, String)> {
        let text =
            |number: usize| std::fs::read_to_string(self.dir.path().join(format!("out{number}"))).unwrap();
        let all: String = (0..runs).map(text).collect::<Vec<_>>().join("\n");
        let field = |line: &str, name: &str| {
            let rest = line.split_once(&format!("\"{name}\":\""))?.1;
            Some(rest.split('"').next()?.to_owned())
        };
        all.lines()
            .filter(|line| line.ends_with('}'))
            .filter_map(|line| Some((field(line, "kind")?, field(line, "bucket")?, field(line, "key")?)))
            .collect()
    }
}

/// Returns a random number below `most`.
fn below(most: u64) -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(SystemTime::now()) % most
}

#[test]
fn eight_runs_on_one_root_expire_each_object_once() {
    let rig = Rig::new();
    let has_mounts = fordway_needs::root("mount the directory a second time")
        && fordway_needs::programs(&["unshare", "mount", "bash"]);
    let other = rig.dir.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let mut number = 0;
    for _ in 0..ROUNDS {
        let mut runs: Vec<Child> = (0..8)
            .map(|at| {
                number += 1;
                rig.start(number - 1, (has_mounts && at < 2).then_some(&*other))
            })
            .collect();
        for run in &mut runs {
            std::thread::sleep(Duration::from_millis(below(100)));
            run.kill().unwrap();
            run.wait().unwrap();
        }
    }
    // A final run, which is not killed, completes the work. Locks of killed runs must not block the final run.
    let status = rig.start(number, None).wait().unwrap();
    assert!(status.success(), "{status}");
    let reported = rig.reported(number + 1);
    let distinct: BTreeSet<_> = reported.iter().collect();
    assert_eq!(distinct.len(), reported.len(), "something was reported twice");

    let young: Vec<String> = (OLD..OLD + 10).map(|at| key(at).as_str().to_owned()).collect();
    let sorted = |mut keys: Vec<String>| {
        keys.sort_unstable();
        keys
    };
    for name in ["plain", "versioned"] {
        let listing = rig.store.list(&bucket(name), &ListQuery::default()).unwrap();
        let keys = listing.entries.iter().map(|entry| entry.name().to_owned()).collect();
        assert_eq!(sorted(keys), sorted(young.clone()), "{name}: none early, and all that are due");
    }
    let versions = |name| rig.store.list_versions(&bucket(name), &VersionsQuery::default()).unwrap().versions;
    let all = versions("versioned");
    let markers = all.iter().filter(|version| version.content.is_none()).count();
    assert_eq!((markers, all.len()), (OLD, 2 * OLD + 10), "one delete marker each, and no version is gone");
    for (key, version) in &rig.held {
        let is_there = versions("held").iter().any(|found| found.key == *key && found.version == *version);
        assert!(is_there, "the locked version of {key} is gone");
    }
}

#[test]
fn a_locked_version_is_kept_and_counted() {
    let rig = Rig::new();
    let run = Command::new(env!("CARGO_BIN_EXE_fordway"))
        .arg("lifecycle")
        .arg(rig.root())
        .args(["--bucket", "held", "--day", "1us", "--json"])
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let text = String::from_utf8(run.stdout).unwrap();
    assert!(text.contains("\"locked\":20"), "{text}");
    assert!(text.contains("\"changed\":0"), "{text}");
}
