//! A directory that several users share, with the gateways that serve it and the commands that maintain it. Root runs
//! the gateways and the commands.

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fordway_client::node::{NodeAddress, NodeStore};
use fordway_client::s3::{S3Config, S3Credentials, S3Store};
use fordway_posix::{
    FsckEvent, FsckOptions, GcEvent, GcOptions, GcSummary, LifecycleOptions, LifecycleSummary, PosixConfig,
    PosixStore,
};
use fordway_serve::node::{NodeGateway, NodeGatewayConfig, RunningNodeGateway};
use fordway_serve::{Gateway, GatewayConfig, RunningGateway, StoreOpenFunction, Users};
use fordway_store::{Bucket, BucketDocumentKind, ErrorKind, GetOptions, Key, PutOptions, Result, Store};
use rustix::fs::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

pub(crate) const ALICE: u32 = 54_321;
pub(crate) const BOB: u32 = 54_322;
/// A group that Alice and Bob belong to, in addition to their own groups.
pub(crate) const TEAM: u32 = 54_330;

pub(crate) fn is_root() -> bool {
    fordway_needs::root("be several users")
}

/// Runs `act` in a thread that has `uid` as its real, effective and saved user ID, and is a member of the team.
pub(crate) fn as_user<T: Send>(uid: u32, act: impl FnOnce() -> T + Send) -> T {
    let become_user = || {
        let (user, group) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid)));
        set_thread_groups(&[Gid::from_raw(TEAM)]).unwrap();
        set_thread_res_gid(group, group, group).unwrap();
        set_thread_res_uid(user, user, user).unwrap();
        act()
    };
    std::thread::scope(|scope| {
        scope.spawn(become_user).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// One of the lanes to the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Http,
    Node,
    Embedded,
}

impl Lane {
    pub(crate) const ALL: [Lane; 3] = [Lane::Http, Lane::Node, Lane::Embedded];
}

/// A directory in which all users may create buckets, with a node gateway, and an HTTP gateway that has one thread.
pub(crate) struct Ground {
    dir: tempfile::TempDir,
    http: RunningGateway,
    _node: RunningNodeGateway,
}

impl Ground {
    pub(crate) fn new() -> Self {
        Ground::with_user("")
    }

    /// Creates the directory with one more user in the credentials file.
    pub(crate) fn with_user(more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir(&root).unwrap();
        chmod(dir.path(), 0o755);
        chmod(&root, 0o1777);
        let users = Users::from_file(&credentials(dir.path(), more), &root, open(&root)).unwrap();
        let config =
            GatewayConfig { threads: 1, ..GatewayConfig::new(SocketAddr::from(([127, 0, 0, 1], 0))) };
        let http = Gateway::bind(users, config).unwrap().spawn().unwrap();
        let node = NodeGatewayConfig::new(dir.path().join("socket"));
        let node = NodeGateway::bind(open(&root), node).unwrap().spawn().unwrap();
        Ground { dir, http, _node: node }
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join("root").join(below)
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.http.local_addr())
    }

    pub(crate) fn client(&self, name: &str) -> S3Store {
        let keys = S3Credentials::keys(name, "secret", "this test");
        let config = S3Config::new(self.endpoint(), "us-east-1", keys);
        S3Store::new(S3Config { max_retries: 0, ..config }).unwrap()
    }

    /// Runs `act` with the store on `lane` as `uid`.
    pub(crate) fn on<T: Send>(&self, lane: Lane, uid: u32, act: impl FnOnce(&dyn Store) -> T + Send) -> T {
        match lane {
            Lane::Http => act(&self.client(if uid == ALICE { "alice" } else { "bob" })),
            // The client is created in the thread of the user, so that this user opens its connection.
            Lane::Node => {
                as_user(uid, || act(&NodeStore::new(NodeAddress::Unix(self.dir.path().join("socket")))))
            }
            Lane::Embedded => as_user(uid, || act(&self.embedded())),
        }
    }

    /// Opens the store in the calling thread.
    pub(crate) fn embedded(&self) -> PosixStore {
        PosixStore::open(&self.path(""), impatient()).unwrap()
    }

    /// Runs `gc` as root, with all minimum ages set to 0. The summary also counts failures.
    pub(crate) fn collect(&self) -> GcSummary {
        let (staged_age, upload_age, empty_dir_age) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        let event_age = Duration::ZERO;
        let options = GcOptions {
            buckets: Vec::new(),
            staged_age,
            upload_age,
            empty_dir_age,
            event_age,
            dry_run: false,
        };
        self.embedded().collect_garbage(&options, &mut |_: GcEvent| Ok(())).unwrap()
    }

    /// Sets a rule as `uid` that makes every object of the bucket expire after a day.
    pub(crate) fn expire_all(&self, bucket: &Bucket, uid: u32) {
        self.set_rule(bucket, uid, "<Expiration><Days>1</Days></Expiration>");
    }

    /// Sets a lifecycle rule as `uid`. `action` is the part of the rule that specifies what expires.
    pub(crate) fn set_rule(&self, bucket: &Bucket, uid: u32, action: &str) {
        let document = format!(
            "<LifecycleConfiguration><Rule><Status>Enabled</Status><Filter/>{action}</Rule></LifecycleConfiguration>"
        );
        let kind = BucketDocumentKind::known("lifecycle");
        self.on(Lane::Embedded, uid, |store| store.set_document(bucket, &kind, document.as_bytes()).unwrap());
    }

    /// Runs `lifecycle` as root, and counts each nanosecond as a day.
    pub(crate) fn expire(&self) -> LifecycleSummary {
        let options = LifecycleOptions { day: Duration::from_nanos(1), ..LifecycleOptions::default() };
        self.embedded().run_lifecycle(&options, &mut |_| Ok(())).unwrap()
    }

    /// Runs `fsck --read` as root. Returns the kinds and paths of its findings.
    pub(crate) fn check(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let options = FsckOptions { read: true, ..Default::default() };
        self.embedded()
            .check(&options, &mut |event| {
                if let FsckEvent::Found(finding) = event {
                    found.push((finding.kind.name().to_owned(), finding.path));
                }
                Ok(())
            })
            .unwrap();
        found
    }

    /// Creates a directory in the root, as a bucket that `uid` owns.
    pub(crate) fn bucket(&self, name: &str, uid: u32, mode: u32) -> Bucket {
        fs::create_dir(self.path(name)).unwrap();
        lchown(self.path(name), Some(uid), Some(uid)).unwrap();
        chmod(&self.path(name), mode);
        bucket(name)
    }

    /// Writes a file owned by `uid`, and its parent directories.
    pub(crate) fn write(&self, below: &str, uid: u32, mode: u32, body: impl AsRef<[u8]>) {
        let path = self.path(below);
        self.make_dirs(path.parent().unwrap(), uid);
        fs::write(&path, body).unwrap();
        lchown(&path, Some(uid), Some(uid)).unwrap();
        chmod(&path, mode);
    }

    pub(crate) fn make_dirs(&self, dir: &Path, uid: u32) {
        if !dir.exists() {
            self.make_dirs(dir.parent().unwrap(), uid);
            fs::create_dir(dir).unwrap();
            lchown(dir, Some(uid), Some(uid)).unwrap();
        }
    }

    /// Returns the user ID of the owner of the file or directory.
    pub(crate) fn owner(&self, below: &str) -> u32 {
        fs::symlink_metadata(self.path(below)).unwrap().uid()
    }
}

/// Returns a configuration with a short lock timeout.
fn impatient() -> PosixConfig {
    PosixConfig { lock_patience: Duration::from_millis(300), ..PosixConfig::default() }
}

fn open(root: &Path) -> StoreOpenFunction {
    let root = root.to_owned();
    Arc::new(move || Ok(Arc::new(PosixStore::open(&root, impatient())?)))
}

fn credentials(dir: &Path, more: &str) -> PathBuf {
    let path = dir.join("users.toml");
    let user = |name: &str, uid: u32| {
        format!(
            "[[user]]\nname='{name}'\naccess_key='{name}'\nsecret_key='secret'\nuid={uid}\ngid={uid}\ngroups=[{TEAM}]\n"
        )
    };
    fs::write(&path, user("alice", ALICE) + &user("bob", BOB) + more).unwrap();
    chmod(&path, 0o600);
    path
}

pub(crate) fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

pub(crate) fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

pub(crate) fn bucket(name: &str) -> Bucket {
    Bucket::new(name).unwrap()
}

pub(crate) fn put(store: &dyn Store, bucket: &Bucket, name: &str, body: &[u8]) -> Result<()> {
    store.put(bucket, &key(name), body, &PutOptions::default()).map(drop)
}

pub(crate) fn read(store: &dyn Store, bucket: &Bucket, name: &str) -> Result<Vec<u8>> {
    store.get(bucket, &key(name), &GetOptions::default())?.content.into_vec()
}

#[track_caller]
pub(crate) fn denied(what: &str, result: Result<impl Sized>) {
    let error = result.err().unwrap_or_else(|| panic!("{what} succeeded"));
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{what}: {error}");
}

/// Returns a line for each file below `dir`: its path, mode, owner, group, number of links, modification time and
/// content.
pub(crate) fn snapshot(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    look_at(dir, &mut found);
    found.sort();
    found
}

fn look_at(path: &Path, found: &mut Vec<String>) {
    let state = fs::symlink_metadata(path).unwrap();
    let content = if state.is_file() { fs::read(path).unwrap() } else { Vec::new() };
    let (mode, uid, gid, mtime) = (state.mode(), state.uid(), state.gid(), state.mtime_nsec());
    found.push(format!("{} {mode:o} {uid} {gid} {} {mtime} {content:?}", path.display(), state.nlink()));
    if state.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| look_at(&entry.unwrap().path(), found));
    }
}
