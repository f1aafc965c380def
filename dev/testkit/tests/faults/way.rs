//! The environments in which scenarios run on a directory, shared by the tests that inject faults.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use fordway_posix::{Durability, PRIVATE_DIR, PosixConfig, PosixStore};
use fordway_store::ETagPolicy;
use fordway_sys::fault::{FaultInjectionPlan, SyscallFault};
use fordway_sys::{Errno, FileSystemSharing, PathResolutionMethod};
use fordway_testkit::scenario::{BucketSnapshot, OperationScenario, SCENARIOS, bucket, snapshot};

const SIGKILL: i32 = 9;

/// An environment: the kernel and file system on which the embedded store runs, and the store's configuration.
pub(crate) struct Way {
    pub(crate) name: &'static str,
    durability: Durability,
    resolution: PathResolutionMethod,
    missing: &'static [(&'static str, Errno)],
    /// The sharing that is reported for every file system. `None` reports the actual sharing.
    sharing: Option<FileSystemSharing>,
}

pub(crate) const USUAL: Way = Way {
    name: "usual",
    durability: Durability::None,
    resolution: PathResolutionMethod::Kernel,
    missing: &[],
    sharing: None,
};

/// An environment with durability `full`, in which descriptors are linked through `/proc`, as for ordinary users.
pub(crate) const DURABLE: Way = Way {
    name: "durable",
    durability: Durability::Full,
    resolution: PathResolutionMethod::Kernel,
    missing: &[("link_by_descriptor", Errno::NOENT)],
    sharing: None,
};

/// A kernel without the newer system calls, and without unnamed files.
pub(crate) const OLD_KERNEL: Way = Way {
    name: "old kernel",
    durability: Durability::None,
    resolution: PathResolutionMethod::Walk,
    missing: &[
        ("open_tmpfile", Errno::OPNOTSUPP),
        ("openat2", Errno::NOSYS),
        ("getxattrat", Errno::NOSYS),
        ("copy_file_range", Errno::NOSYS),
    ],
    sharing: None,
};

/// A file system without extended attributes.
pub(crate) const NO_ATTRIBUTES: Way = Way {
    name: "no attributes",
    durability: Durability::None,
    resolution: PathResolutionMethod::Kernel,
    missing: &[
        ("fsetxattr", Errno::OPNOTSUPP),
        ("fgetxattr", Errno::OPNOTSUPP),
        ("getxattrat", Errno::OPNOTSUPP),
        ("lgetxattr", Errno::OPNOTSUPP),
    ],
    sharing: None,
};

/// A file system that other nodes may change, through FUSE.
pub(crate) const SHARED: Way = Way {
    name: "shared",
    durability: Durability::None,
    resolution: PathResolutionMethod::Kernel,
    missing: &[],
    sharing: Some(FileSystemSharing::Unknown),
};

impl Way {
    /// Runs `act` without the system calls that this environment lacks, and without any other fault.
    pub(crate) fn within<T>(&self, act: impl FnOnce() -> T) -> T {
        fordway_sys::fault::run(self.plan(None), act).0
    }

    /// Opens a store in `dir` with the configuration of this environment.
    pub(crate) fn open(&self, dir: &Path) -> PosixStore {
        let (durability, resolution) = (self.durability, self.resolution);
        let config =
            PosixConfig { etag_policy: ETagPolicy::Md5, durability, resolution, ..PosixConfig::default() };
        PosixStore::open(dir, config).unwrap()
    }

    /// Returns the faults to inject: this environment's faults, and optionally one more.
    pub(crate) fn plan(&self, nth: Option<(usize, SyscallFault)>) -> FaultInjectionPlan {
        FaultInjectionPlan {
            nth,
            missing: self.missing,
            sharing: self.sharing,
            ..FaultInjectionPlan::default()
        }
    }

    /// Returns the scenarios to run in this environment. Large scenarios run only in the usual environment, except in a
    /// soak test.
    pub(crate) fn scenarios(&self) -> impl Iterator<Item = &'static OperationScenario> {
        let all = self.name == USUAL.name || std::env::var_os("FORDWAY_SOAK").is_some();
        SCENARIOS.iter().filter(move |scenario| all || !scenario.is_large())
    }

    /// Returns the visible content of the scenario's bucket before and after the operation, if nothing fails.
    pub(crate) fn reference(&self, scenario: &OperationScenario) -> (BucketSnapshot, BucketSnapshot) {
        let dir = self.prepared(scenario);
        let store = self.open(dir.path());
        self.within(|| {
            let before = snapshot(&store);
            let done = (scenario.act)(&store);
            assert_eq!(done.err().map(|error| error.kind()), scenario.refused, "{}", scenario.name);
            (before, snapshot(&store))
        })
    }

    /// Returns a new temporary directory with the scenario's initial state.
    pub(crate) fn prepared(&self, scenario: &OperationScenario) -> tempfile::TempDir {
        let dir = scratch();
        self.within(|| scenario.prepare(&self.open(dir.path()))).unwrap();
        dir
    }
}

/// Runs a process that a fault may kill. Returns whether the process was killed. Panics if it failed in another way.
pub(crate) fn is_killed(process: &mut Command) -> bool {
    let status = process.status().unwrap();
    assert!(status.success() || status.signal() == Some(SIGKILL), "{status}");
    !status.success()
}

/// Returns a temporary directory. The directory is in `/dev/shm` if that file system supports extended attributes,
/// because the tests fill and empty hundreds of directories. `TMPDIR` has precedence if it is set.
pub(crate) fn scratch() -> tempfile::TempDir {
    if std::env::var_os("TMPDIR").is_some() {
        return tempfile::tempdir().unwrap();
    }
    let in_memory = tempfile::tempdir_in("/dev/shm").ok().filter(|dir| {
        let probe = std::fs::File::create(dir.path().join("probe"));
        let takes = |file| fordway_sys::set_xattr(file, c"user.fordway.probe", b"1").is_ok();
        probe.is_ok_and(takes) && std::fs::remove_file(dir.path().join("probe")).is_ok()
    });
    in_memory.unwrap_or_else(|| tempfile::tempdir().unwrap())
}

/// Returns the plain files below the bucket that are neither objects of `shown` nor in the bucket's private area.
pub(crate) fn strays(root: &Path, shown: &BucketSnapshot) -> Vec<PathBuf> {
    let bucket = root.join(bucket().as_str());
    let own = bucket.join(PRIVATE_DIR);
    let is_object = |file: &PathBuf| {
        file.strip_prefix(&bucket).ok().and_then(Path::to_str).is_some_and(|key| shown.contains_key(key))
    };
    files(&bucket).into_iter().filter(|file| !file.starts_with(&own) && !is_object(file)).collect()
}

/// Returns everything below `dir` except directories.
pub(crate) fn files(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}
