//! Tests several users of one HTTP gateway. Only root can change the user of a thread, so these tests are skipped
//! without root.

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fordway_client::s3::{S3Config, S3Credentials, S3Store};
use fordway_posix::{PosixConfig, PosixStore};
use fordway_serve::{Gateway, GatewayConfig, RunningGateway, StoreOpenFunction, Users};
use fordway_store::{
    Bucket, CompleteOptions, CompletedPart, CopyOptions, DeleteOptions, ETagPolicy, ErrorKind,
    ExpectedContent, GetOptions, Key, ListQuery, MultipartUploadOperations, ObjectBatchOperations,
    ObjectTagOperations, ObjectVersionOperations, Objects, PartOptions, PutOptions, Result, Tags, VersionId,
    VersioningState, VersionsQuery,
};
use fordway_testkit::conformance::StoreFixture;

const ALICE: u32 = 54_321;
const BOB: u32 = 54_322;
/// A group that Bob belongs to, in addition to his own group.
const SHARED: u32 = 54_330;

fn is_root() -> bool {
    fordway_needs::root("be several users")
}

/// A directory in which all users may create buckets, and a gateway for Alice and Bob that serves the directory. One
/// thread serves both users, so that a test can detect state of one user that remains on the thread.
struct Ground {
    dir: tempfile::TempDir,
    gateway: RunningGateway,
}

impl Ground {
    fn new() -> Self {
        // Files that users create are readable by others, unless the test changes their mode.
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&root, Permissions::from_mode(0o1777)).unwrap();
        let users = Users::from_file(&credentials(dir.path()), &root, open(&root)).unwrap();
        let config =
            GatewayConfig { threads: 1, ..GatewayConfig::new(SocketAddr::from(([127, 0, 0, 1], 0))) };
        let gateway = Gateway::bind(users, config).unwrap().spawn().unwrap();
        Ground { dir, gateway }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join("root").join(path)
    }

    fn client(&self, name: &str) -> S3Store {
        let endpoint = format!("http://{}", self.gateway.local_addr());
        S3Store::new(S3Config::new(&endpoint, "us-east-1", S3Credentials::keys(name, "secret", "this test")))
            .unwrap()
    }

    fn allow(&self, path: &str, mode: u32) {
        fs::set_permissions(self.path(path), Permissions::from_mode(mode)).unwrap();
    }

    #[track_caller]
    fn assert_owner(&self, path: &str, uid: u32) {
        let found = fs::metadata(self.path(path)).unwrap();
        assert_eq!((found.uid(), found.gid()), (uid, uid), "{path}");
    }
}

/// Runs the whole suite as a user other than the gateway's user. If the gateway cannot act as another user, runs the
/// suite as the gateway's user.
mod as_a_user_of_the_file {
    use super::*;

    fn open_as_bob() -> StoreFixture {
        let (dir, uid, gid) = (tempfile::tempdir().unwrap(), fordway_sys::user_id(), fordway_sys::group_id());
        let (uid, gid) = if uid == 0 { (BOB, BOB) } else { (uid, gid) };
        let (root, path) = (dir.path().join("root"), dir.path().join("users.toml"));
        fs::create_dir(&root).unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&root, Permissions::from_mode(0o1777)).unwrap();
        let text =
            format!("[[user]]\nname='bob'\naccess_key='bob'\nsecret_key='secret'\nuid={uid}\ngid={gid}\n");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let users = Users::from_file(&path, &root, open_md5(&root)).unwrap();
        let config = GatewayConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
        let gateway = Gateway::bind(users, config).unwrap().spawn().unwrap();
        let endpoint = format!("http://{}", gateway.local_addr());
        let keys = S3Credentials::keys("bob", "secret", "this test");
        let client = S3Store::new(S3Config::new(&endpoint, "us-east-1", keys)).unwrap();
        StoreFixture::new(client, (gateway, dir))
    }

    fn open_md5(root: &Path) -> StoreOpenFunction {
        let root = root.to_owned();
        let config = PosixConfig { etag_policy: ETagPolicy::Md5, ..PosixConfig::default() };
        Arc::new(move || Ok(Arc::new(PosixStore::open(&root, config.clone())?)))
    }

    fordway_testkit::conformance_suite!(open_as_bob());
}

fn open(root: &Path) -> StoreOpenFunction {
    let root = root.to_owned();
    Arc::new(move || Ok(Arc::new(PosixStore::open(&root, PosixConfig::default())?)))
}

fn credentials(dir: &Path) -> PathBuf {
    let path = dir.join("users.toml");
    let user = |name: &str, uid: u32, more: &str| {
        format!(
            "[[user]]\nname='{name}'\naccess_key='{name}'\nsecret_key='secret'\nuid={uid}\ngid={uid}\n{more}\n"
        )
    };
    let text =
        user("alice", ALICE, "") + &user("bob", BOB, &format!("groups=[{SHARED}]")) + &user("root", 0, "");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    path
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn bucket() -> Bucket {
    Bucket::new("alice").unwrap()
}

fn own() -> Bucket {
    Bucket::new("bob").unwrap()
}

fn put(store: &S3Store, name: &str, body: &[u8]) -> Result<()> {
    store.put(&bucket(), &key(name), body, &PutOptions::default()).map(drop)
}

fn read(store: &S3Store, name: &str) -> Result<Vec<u8>> {
    store.get(&bucket(), &key(name), &GetOptions::default())?.content.into_vec()
}

/// Returns every operation that reads the content or the tags of `name`, with its result.
fn all_ways(store: &S3Store, name: &str, version: Option<&VersionId>) -> Vec<(&'static str, Result<()>)> {
    let (bucket, key) = (bucket(), key(name));
    let get = GetOptions { version: version.cloned(), ..Default::default() };
    let range = GetOptions { range: Some(fordway_store::ByteRange::From(0)), ..get.clone() };
    let copy = CopyOptions { source_version: version.cloned(), ..Default::default() };
    let upload = store.create_upload(&own(), &key, &PutOptions::default()).unwrap();
    vec![
        ("get", store.get(&bucket, &key, &get).map(drop)),
        ("get of a range", store.get(&bucket, &key, &range).map(drop)),
        ("tags", store.tags(&bucket, &key, version).map(drop)),
        ("copy", store.copy((&bucket, &key), &own(), &key, &copy).map(drop)),
        ("copy of a part", store.copy_part((&bucket, &key), &get, (&own(), &key, &upload, 1)).map(drop)),
    ]
}

#[track_caller]
fn denied(what: &str, result: Result<impl Sized>) {
    let error = result.err().unwrap_or_else(|| panic!("{what} succeeded"));
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{what}: {error}");
}

#[test]
fn the_kernel_decides_about_objects_and_directories() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let (alice, bob) = (ground.client("alice"), ground.client("bob"));
    alice.create_bucket(&bucket()).unwrap();
    bob.create_bucket(&own()).unwrap();
    let large = vec![7; 1 << 20];
    for name in ["open", "closed", "dir/in"] {
        put(&alice, name, name.as_bytes()).unwrap();
    }
    put(&alice, "large", &large).unwrap();
    for path in ["alice", "alice/open", "alice/large", "alice/dir", "alice/dir/in"] {
        ground.assert_owner(path, ALICE);
    }
    ground.assert_owner("bob", BOB);
    for (path, mode) in [("alice/closed", 0o600), ("alice/large", 0o600), ("alice/dir", 0o700)] {
        ground.allow(path, mode);
    }
    assert_eq!(read(&bob, "open").unwrap(), b"open");
    for name in ["closed", "large", "dir/in"] {
        all_ways(&bob, name, None).into_iter().for_each(|(way, answer)| denied(way, answer));
    }
    denied("head", bob.head(&bucket(), &key("dir/in"), &GetOptions::default()));
    denied("put", put(&bob, "new", b"b"));
    denied("overwrite", put(&bob, "open", b"b"));
    denied("a large put", put(&bob, "new", &large));
    denied("set_tags", bob.set_tags(&bucket(), &key("open"), None, &Tags::default()));
    denied("delete", bob.delete(&bucket(), &key("open"), &DeleteOptions::default()));
    let many = bob.delete_many(&bucket(), &[key("open"), key("dir/in")]);
    many.into_iter().for_each(|answer| denied("delete_many", answer));
    denied("delete_bucket", bob.delete_bucket(&bucket()));
    denied("create_upload", bob.create_upload(&bucket(), &key("up"), &PutOptions::default()));
    denied("a listing of a closed directory", bob.list(&bucket(), &ListQuery::prefix("dir/")));

    assert_eq!(read(&alice, "closed").unwrap(), b"closed");
    assert_eq!(read(&alice, "large").unwrap(), large);
    assert_eq!(alice.list(&bucket(), &ListQuery::prefix("dir/")).unwrap().entries.len(), 1);
    // A user with root's uid in the credentials file has root's permissions.
    assert_eq!(read(&ground.client("root"), "closed").unwrap(), b"closed");
}

/// A cached lookup that was made for one user must not give access to another user on the same thread.
#[test]
fn nothing_remembered_gets_past_the_kernel() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let (alice, bob) = (ground.client("alice"), ground.client("bob"));
    alice.create_bucket(&bucket()).unwrap();
    put(&alice, "dir/k", b"a").unwrap();
    ground.allow("alice/dir", 0o700);
    for _ in 0..200 {
        assert_eq!(read(&alice, "dir/k").unwrap(), b"a");
        denied("get", read(&bob, "dir/k"));
    }
    // The caller's supplementary group gives access.
    chown(ground.path("alice/dir"), None, Some(SHARED)).unwrap();
    ground.allow("alice/dir", 0o750);
    assert_eq!(read(&bob, "dir/k").unwrap(), b"a");
}

#[test]
fn uploads_belong_to_who_made_them() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let (alice, bob) = (ground.client("alice"), ground.client("bob"));
    alice.create_bucket(&bucket()).unwrap();
    let upload = alice.create_upload(&bucket(), &key("up"), &PutOptions::default()).unwrap();
    let mut part = alice.part_writer(&bucket(), &key("up"), &upload, 1, &PartOptions::default()).unwrap();
    part.write(&vec![3; 700_000]).unwrap();
    let made = part.commit(&ExpectedContent::default()).unwrap();
    let parts = [CompletedPart { number: 1, etag: made.etag, checksum: None }];
    let complete = CompleteOptions::default();
    denied("complete", bob.complete_upload(&bucket(), &key("up"), &upload, &parts, &complete));
    denied("abort", bob.abort_upload(&bucket(), &key("up"), &upload));
    let theirs = bob
        .part_writer(&bucket(), &key("up"), &upload, 1, &PartOptions::default())
        .and_then(|mut part| part.write(b"bob's").and_then(|()| part.commit(&ExpectedContent::default())));
    denied("a part", theirs);
    alice.complete_upload(&bucket(), &key("up"), &upload, &parts, &complete).unwrap();
    ground.assert_owner("alice/up", ALICE);
    assert_eq!(read(&alice, "up").unwrap(), vec![3; 700_000]);
}

#[test]
fn versions_are_as_private_as_the_object() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let (alice, bob) = (ground.client("alice"), ground.client("bob"));
    alice.create_bucket(&bucket()).unwrap();
    bob.create_bucket(&own()).unwrap();
    alice.set_versioning(&bucket(), VersioningState::Enabled).unwrap();
    put(&alice, "k", b"old").unwrap();
    put(&alice, "k", b"new").unwrap();
    let all = alice.list_versions(&bucket(), &VersionsQuery::default()).unwrap().versions;
    assert_eq!(all.len(), 2);
    let old = all[1].version.clone();
    ground.allow("alice", 0o700);
    all_ways(&bob, "k", Some(&old)).into_iter().for_each(|(way, answer)| denied(way, answer));
    denied("list_versions", bob.list_versions(&bucket(), &VersionsQuery::default()));
    denied("list", bob.list(&bucket(), &ListQuery::default()));
    let delete = DeleteOptions { version: Some(old.clone()), ..Default::default() };
    denied("delete of a version", bob.delete(&bucket(), &key("k"), &delete));
    denied("set_versioning", bob.set_versioning(&bucket(), VersioningState::Suspended));
    let object = alice.get(&bucket(), &key("k"), &GetOptions::version(old)).unwrap();
    assert_eq!(object.content.into_vec().unwrap(), b"old");
}

/// Following a symbolic link for the first time updates its access time, which may block. If the update would block,
/// the whole lookup is repeated on another thread, as the same user.
#[test]
fn what_is_looked_up_elsewhere_is_looked_up_as_the_user() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let (alice, root) = (ground.client("alice"), ground.client("root"));
    alice.create_bucket(&bucket()).unwrap();
    put(&alice, "own", b"hello").unwrap();
    fs::write(ground.path("alice/secret"), "secret").unwrap();
    ground.allow("alice/secret", 0o600);
    for n in 0..50 {
        let (to_own, to_secret) = (format!("own-{n}"), format!("secret-{n}"));
        symlink("own", ground.path(&format!("alice/{to_own}"))).unwrap();
        symlink("secret", ground.path(&format!("alice/{to_secret}"))).unwrap();
        assert_eq!(read(&alice, &to_own).unwrap(), b"hello");
        denied(&to_secret, read(&alice, &to_secret));
        assert_eq!(read(&root, &to_secret).unwrap(), b"secret", "the thread is nobody's for good");
        let error = read(&alice, &format!("none-{n}")).expect_err("it does not exist");
        assert_eq!(error.kind(), ErrorKind::NoSuchKey);
    }
}
