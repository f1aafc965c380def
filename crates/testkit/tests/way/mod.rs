//! The ways in which the scenarios run on a directory, shared by the tests that put faults into them.

use std::path::{Path, PathBuf};

use fordway_posix::{Durability, PRIVATE_DIR, PosixConfig, PosixStore};
use fordway_store::{ETagPolicy, Store};
use fordway_sys::fault::{Fault, Plan};
use fordway_sys::{Errno, Resolution};
use fordway_testkit::scenario::{Scenario, Snapshot, bucket, snapshot};

/// A kernel and file system on which the embedded store runs, and how it is configured there.
pub struct Way {
    pub name: &'static str,
    durability: Durability,
    resolution: Resolution,
    missing: &'static [(&'static str, Errno)],
}

pub const USUAL: Way =
    Way { name: "usual", durability: Durability::None, resolution: Resolution::Kernel, missing: &[] };

/// Everything on stable storage, and descriptors linked through `/proc`, as for ordinary users.
pub const DURABLE: Way = Way {
    name: "durable",
    durability: Durability::Full,
    resolution: Resolution::Kernel,
    missing: &[("link_by_descriptor", Errno::NOENT)],
};

/// Nothing that came to Linux late, and no file without a name.
pub const OLD_KERNEL: Way = Way {
    name: "old kernel",
    durability: Durability::None,
    resolution: Resolution::Walk,
    missing: &[
        ("open_tmpfile", Errno::OPNOTSUPP),
        ("openat2", Errno::NOSYS),
        ("getxattrat", Errno::NOSYS),
        ("copy_file_range", Errno::NOSYS),
    ],
};

pub const WAYS: &[&Way] = &[&USUAL, &DURABLE, &OLD_KERNEL];

impl Way {
    /// Opens the store that this way has in `dir`.
    pub fn open(&self, dir: &Path) -> PosixStore {
        let (durability, resolution) = (self.durability, self.resolution);
        let config =
            PosixConfig { etag_policy: ETagPolicy::Md5, durability, resolution, ..PosixConfig::default() };
        PosixStore::open(dir, config).unwrap()
    }

    /// What goes wrong, besides what this way lacks anyhow.
    pub fn plan(&self, nth: Option<(usize, Fault)>) -> Plan {
        Plan { nth, missing: self.missing }
    }

    /// What the scenario's bucket shows before and after, when nothing goes wrong.
    pub fn reference(&self, scenario: &Scenario) -> (Snapshot, Snapshot) {
        let dir = self.prepared(scenario);
        let store = self.open(dir.path());
        let before = snapshot(&store);
        let (done, _) = fordway_sys::fault::run(self.plan(None), || (scenario.act)(&store));
        assert_eq!(done.err().map(|error| error.kind()), scenario.refused, "{}", scenario.name);
        (before, snapshot(&store))
    }

    /// A directory in which the scenario can run.
    pub fn prepared(&self, scenario: &Scenario) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        scenario.prepare(&self.open(dir.path())).unwrap();
        dir
    }
}

/// The plain files below the bucket that are neither objects of `shown` nor in our own directory.
pub fn strays(root: &Path, shown: &Snapshot) -> Vec<PathBuf> {
    let bucket = root.join(bucket().as_str());
    let own = bucket.join(PRIVATE_DIR);
    let is_object = |file: &PathBuf| {
        file.strip_prefix(&bucket).ok().and_then(Path::to_str).is_some_and(|key| shown.contains_key(key))
    };
    files(&bucket).into_iter().filter(|file| !file.starts_with(&own) && !is_object(file)).collect()
}

/// All files below `dir` that are no directories.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}
