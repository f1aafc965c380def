//! Tests several users of one node gateway. Only root can change the user of a thread, so these tests are skipped
//! without root.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fordway_client::node::{NodeAddress, NodeStore};
use fordway_posix::{PosixConfig, PosixStore};
use fordway_serve::node::{NodeGateway, NodeGatewayConfig, RunningNodeGateway};
use fordway_store::{
    Bucket, CopyOptions, DeleteOptions, Error, ErrorKind, GetOptions, Key, ListQuery, ObjectBatchOperations,
    ObjectTagOperations, ObjectVersionOperations, Objects, PutOptions, Result, Store, VersionId,
    VersioningState, VersionsQuery,
};
use rustix::fs::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

const ALICE: u32 = 54_321;
const BOB: u32 = 54_322;
/// A group that Bob belongs to, in addition to his own group.
const SHARED: u32 = 54_330;

fn is_root() -> bool {
    fordway_needs::root("be several users")
}

/// Runs `act` in a thread that has `uid` as its real, effective and saved user ID.
fn as_user<T: Send>(uid: u32, groups: &[u32], act: impl FnOnce() -> T + Send) -> T {
    let become_user = || {
        let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
        let (user, group) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid)));
        set_thread_groups(&groups).unwrap();
        set_thread_res_gid(group, group, group).unwrap();
        set_thread_res_uid(user, user, user).unwrap();
        act()
    };
    std::thread::scope(|scope| {
        scope.spawn(become_user).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A directory in which all users may create buckets, and a gateway that serves it.
struct Ground {
    dir: tempfile::TempDir,
    gateway: Option<RunningNodeGateway>,
}

impl Ground {
    fn new() -> Self {
        // Files that users create are readable by others, unless the test changes their mode.
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        let dir = tempfile::tempdir().unwrap();
        let ground = Ground { dir, gateway: None };
        fs::create_dir(ground.root()).unwrap();
        fs::set_permissions(ground.dir.path(), Permissions::from_mode(0o777)).unwrap();
        fs::set_permissions(ground.root(), Permissions::from_mode(0o1777)).unwrap();
        ground
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// Starts the gateway as the user of the calling thread.
    fn serve(mut self, config: impl FnOnce(NodeGatewayConfig) -> NodeGatewayConfig) -> Self {
        let root = self.root();
        let open = move || Ok(Arc::new(PosixStore::open(&root, PosixConfig::default())?) as Arc<dyn Store>);
        let config = config(NodeGatewayConfig::new(self.socket()));
        self.gateway = Some(NodeGateway::bind(Arc::new(open), config).unwrap().spawn().unwrap());
        self
    }

    fn as_user<T: Send>(&self, uid: u32, act: impl FnOnce(&NodeStore) -> T + Send) -> T {
        let groups = if uid == BOB { &[SHARED][..] } else { &[] };
        // The client is created in the thread of the user, so that this user opens its connections.
        as_user(uid, groups, || act(&NodeStore::new(NodeAddress::Unix(self.socket()))))
    }

    fn allow(&self, path: &str, mode: u32) {
        fs::set_permissions(self.root().join(path), Permissions::from_mode(mode)).unwrap();
    }
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn bucket() -> Bucket {
    Bucket::new("alice").unwrap()
}

fn put(store: &NodeStore, name: &str, body: &[u8]) -> Result<()> {
    store.put(&bucket(), &key(name), body, &PutOptions::default()).map(drop)
}

fn read(store: &NodeStore, name: &str) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    store.read(&bucket(), &key(name), &GetOptions::default(), &mut body).map(|_| body)
}

/// Returns every operation that accesses `name`, with its result.
fn all_ways(store: &NodeStore, name: &str, version: Option<&VersionId>) -> Vec<(&'static str, Result<()>)> {
    let (bucket, key, own) = (bucket(), key(name), Bucket::new("bob").unwrap());
    let get = GetOptions { version: version.cloned(), ..Default::default() };
    let copy = CopyOptions { source_version: version.cloned(), ..Default::default() };
    let keys = std::slice::from_ref(&key);
    vec![
        ("read", store.read(&bucket, &key, &get, &mut Vec::new()).map(drop)),
        ("get", store.get(&bucket, &key, &get).map(drop)),
        ("get_many", store.get_many(&bucket, keys).remove(0).map(drop)),
        ("tags", store.tags(&bucket, &key, version).map(drop)),
        ("copy away", store.copy((&bucket, &key), &own, &key, &copy).map(drop)),
    ]
}

#[track_caller]
fn assert_denied(answers: Vec<(&'static str, Result<()>)>) {
    for (way, answer) in answers {
        let error = answer.err().unwrap_or_else(|| panic!("{way} succeeded"));
        assert_eq!(error.kind(), ErrorKind::AccessDenied, "{way}: {error}");
    }
}

fn denied(result: Result<impl Sized>) -> Error {
    let error = result.err().expect("this is denied");
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    error
}

#[test]
fn the_kernel_decides_about_files_and_directories() {
    if !is_root() {
        return;
    }
    let ground = Ground::new().serve(|config| config);
    let large = vec![7; 1 << 20];
    ground.as_user(ALICE, |store| {
        store.create_bucket(&bucket()).unwrap();
        for name in ["open", "closed", "dir/in"] {
            put(store, name, name.as_bytes()).unwrap();
        }
        put(store, "large", &large).unwrap();
        // There are enough keys for the store to use several threads.
        let keys: Vec<Key> = (0..600).map(|number| key(&format!("many/{number}"))).collect();
        let objects: Vec<(Key, &[u8])> = keys.iter().map(|key| (key.clone(), &b"x"[..])).collect();
        store
            .put_many(&bucket(), &objects, &PutOptions::default())
            .into_iter()
            .for_each(|made| drop(made.unwrap()));
    });
    let owner =
        |path: &str| fs::metadata(ground.root().join(path)).map(|found| (found.uid(), found.gid())).unwrap();
    for path in ["alice", "alice/open", "alice/large", "alice/dir", "alice/dir/in"] {
        assert_eq!(owner(path), (ALICE, ALICE), "{path}");
    }
    (0..600).for_each(|number| assert_eq!(owner(&format!("alice/many/{number}")), (ALICE, ALICE)));
    ground.allow("alice/closed", 0o600);
    ground.allow("alice/large", 0o600);
    ground.allow("alice/dir", 0o700);
    ground.as_user(BOB, |store| {
        store.create_bucket(&Bucket::new("bob").unwrap()).unwrap();
        assert_eq!(read(store, "open").unwrap(), b"open");
        for name in ["closed", "large", "dir/in"] {
            assert_denied(all_ways(store, name, None));
        }
        denied(store.head(&bucket(), &key("dir/in"), &GetOptions::default()));
        denied(put(store, "new", b"b"));
        denied(put(store, "open", b"b"));
        denied(put(store, "new", &large));
        denied(store.delete(&bucket(), &key("open"), &DeleteOptions::default()));
        denied(store.delete_bucket(&bucket()));
        denied(store.list(&bucket(), &ListQuery::prefix("dir/")));
    });
    ground.as_user(ALICE, |store| {
        assert_eq!(read(store, "closed").unwrap(), b"closed");
        assert_eq!(read(store, "large").unwrap(), large);
        assert_eq!(store.list(&bucket(), &ListQuery::prefix("dir/")).unwrap().entries.len(), 1);
    });
    // Bob owns the bucket that he created.
    assert_eq!(owner("bob"), (BOB, BOB));
}

/// A store must not use a cached directory after it has lost the permission to search the directory. A cached lookup
/// that was made for one user must not give access to another user.
#[test]
fn nothing_remembered_gets_past_the_kernel() {
    if !is_root() {
        return;
    }
    let ground = Ground::new().serve(|config| config);
    ground.as_user(ALICE, |store| {
        store.create_bucket(&bucket()).unwrap();
        for number in 0..700 {
            put(store, &format!("dir/{number:03}"), b"a").unwrap();
        }
        // After these reads, Alice's store keeps the object open.
        (0..100).for_each(|_| drop(read(store, "dir/000").unwrap()));
    });
    let page = ListQuery { max_keys: 10, ..ListQuery::prefix("dir/") };
    let (bob, next) = ground.as_user(BOB, |store| {
        (0..50).for_each(|_| drop(read(store, "dir/000").unwrap()));
        let listed = store.list(&bucket(), &page).unwrap();
        assert_eq!(listed.entries.len(), 10);
        (store.clone(), listed.next)
    });
    ground.allow("alice/dir", 0o700);
    // These requests use the connection that Bob opened above.
    as_user(BOB, &[SHARED], || {
        denied(read(&bob, "dir/000"));
        denied(bob.get(&bucket(), &key("dir/001"), &GetOptions::default()));
        // This page continues a listing that Bob began while he had access.
        denied(bob.list(&bucket(), &ListQuery { start_after: next, ..page }));
    });
    ground.as_user(ALICE, |store| assert_eq!(read(store, "dir/000").unwrap(), b"a"));
    // The caller's supplementary group gives access.
    std::os::unix::fs::chown(ground.root().join("alice/dir"), None, Some(SHARED)).unwrap();
    ground.allow("alice/dir", 0o750);
    ground.as_user(BOB, |store| assert_eq!(read(store, "dir/000").unwrap(), b"a"));
    let other = NodeAddress::Unix(ground.socket());
    as_user(54_323, &[], || denied(read(&NodeStore::new(other), "dir/000")));
}

/// The gateway determines the user of a connection when the connection is opened.
#[test]
fn a_program_that_changes_its_user_has_the_rights_of_its_present_user() {
    if !is_root() {
        return;
    }
    let ground = Ground::new().serve(|config| config);
    let store = NodeStore::new(NodeAddress::Unix(ground.socket()));
    for round in 0..3 {
        as_user(ALICE, &[], || {
            let _ = store.create_bucket(&bucket());
            put(&store, "k", b"private").unwrap();
            fs::set_permissions(ground.root().join("alice/k"), Permissions::from_mode(0o600)).unwrap();
            assert_eq!(read(&store, "k").unwrap(), b"private");
        });
        as_user(BOB, &[], || {
            denied(read(&store, "k"));
            denied(put(&store, "k", b"of bob"));
        });
        put(&store, "of-root", b"root").unwrap();
        let owner = fs::metadata(ground.root().join("alice/of-root")).unwrap().uid();
        assert_eq!(owner, 0, "round {round}");
    }
}

#[test]
fn versions_are_as_private_as_the_object() {
    if !is_root() {
        return;
    }
    let ground = Ground::new().serve(|config| config);
    let old = ground.as_user(ALICE, |store| {
        store.create_bucket(&bucket()).unwrap();
        store.set_versioning(&bucket(), VersioningState::Enabled).unwrap();
        put(store, "k", b"old").unwrap();
        put(store, "k", b"new").unwrap();
        let all = store.list_versions(&bucket(), &VersionsQuery::default()).unwrap().versions;
        assert_eq!(all.len(), 2);
        all[1].version.clone()
    });
    ground.allow("alice", 0o700);
    ground.as_user(BOB, |store| {
        store.create_bucket(&Bucket::new("bob").unwrap()).unwrap();
        assert_denied(all_ways(store, "k", Some(&old)));
        denied(store.list_versions(&bucket(), &VersionsQuery::default()));
        let delete = DeleteOptions { version: Some(old.clone()), ..Default::default() };
        denied(store.delete(&bucket(), &key("k"), &delete));
        denied(store.set_versioning(&bucket(), VersioningState::Suspended));
    });
    ground.as_user(ALICE, |store| {
        let object = store.get(&bucket(), &key("k"), &GetOptions::version(old)).unwrap();
        assert_eq!(object.content.into_vec().unwrap(), b"old");
    });
}

#[test]
fn a_users_gateway_serves_that_user_and_whom_it_allows() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    // The socket's own permissions are checked first.
    let ground = as_user(ALICE, &[], || ground.serve(|config| config));
    ground.as_user(ALICE, |store| store.create_bucket(&bucket()).unwrap());
    ground.as_user(BOB, |store| denied(put(store, "k", b"b")));
    drop(ground);

    let open_to_all = |config: NodeGatewayConfig| NodeGatewayConfig { mode: Some(0o666), ..config };
    let ground = Ground::new();
    let ground = as_user(ALICE, &[], || ground.serve(open_to_all));
    let error = ground.as_user(BOB, |store| denied(put(store, "k", b"b")));
    assert!(error.to_string().contains(&format!("--allow-uid {BOB}")), "{error}");
    drop(ground);

    let ground = Ground::new();
    let with_bob = |config| NodeGatewayConfig { allow_uids: vec![BOB], ..open_to_all(config) };
    let ground = as_user(ALICE, &[], || ground.serve(with_bob));
    ground.as_user(BOB, |store| {
        store.create_bucket(&bucket()).unwrap();
        put(store, "small", b"b").unwrap();
        put(store, "large", &vec![1; 1 << 20]).unwrap();
        assert_eq!(read(store, "large").unwrap().len(), 1 << 20);
    });
    for path in ["alice/small", "alice/large"] {
        let made = fs::metadata(ground.root().join(path)).unwrap();
        assert_eq!(made.uid(), ALICE, "{path}: a permitted caller acts as the gateway's user");
    }
    as_user(54_323, &[], || denied(put(&NodeStore::new(NodeAddress::Unix(ground.socket())), "k", b"c")));
}

/// A user without permission to search the root is denied access at the first request, and not earlier.
#[test]
fn a_closed_root_is_denied_in_plain_words() {
    if !is_root() {
        return;
    }
    let ground = Ground::new().serve(|config| config);
    fs::set_permissions(ground.root(), Permissions::from_mode(0o700)).unwrap();
    let error = ground.as_user(BOB, |store| denied(store.list_buckets()));
    assert!(error.to_string().contains(&Path::new("root").display().to_string()), "{error}");
    assert!(NodeStore::new(NodeAddress::Unix(ground.socket())).list_buckets().unwrap().is_empty());
}
