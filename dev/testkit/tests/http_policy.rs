//! Tests bucket policies with several users of one HTTP gateway, together with the kernel's access checks. Only root
//! can change the user of a thread, so these tests are skipped without root.

use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fordway_client::s3::{S3Config, S3Credentials, S3Store};
use fordway_posix::{PosixConfig, PosixStore};
use fordway_serve::{AnonymousUser, Gateway, GatewayConfig, RunningGateway, StoreOpenFunction, Users};
use fordway_store::{
    Bucket, BucketDocumentKind, BucketDocumentOperations, Conditions, CopyOptions, DeleteOptions, ETag,
    ErrorKind, GetOptions, Key, ListQuery, ObjectRenameOperations, Objects, PutOptions, RenameOptions,
    Result, Tags,
};
use fordway_sys::PeerCredentials;

const ALICE: u32 = 54_321;
const BOB: u32 = 54_322;
/// The user ID for anonymous requests.
const NOBODY: u32 = 54_323;
const POLICY: BucketDocumentKind = BucketDocumentKind::known("policy");

fn is_root() -> bool {
    fordway_needs::root("be several users")
}

/// A directory with Alice's bucket, to which all users may write, and a gateway for Alice and Bob that serves the
/// directory.
struct Ground {
    dir: tempfile::TempDir,
    gateway: RunningGateway,
}

impl Ground {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&root, Permissions::from_mode(0o1777)).unwrap();
        let gateway = gateway(dir.path(), &root, "");
        let ground = Ground { dir, gateway };
        ground.client("alice").create_bucket(&bucket()).unwrap();
        ground.allow("data", 0o777);
        for name in ["public/k", "private/k"] {
            ground.client("alice").put(&bucket(), &key(name), b"hello", &PutOptions::default()).unwrap();
        }
        ground
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join("root").join(path)
    }

    fn document(&self) -> PathBuf {
        self.path("data/.fordway/document-policy")
    }

    fn client(&self, name: &str) -> S3Store {
        client(&self.gateway, name)
    }

    fn allow(&self, path: &str, mode: u32) {
        fs::set_permissions(self.path(path), Permissions::from_mode(mode)).unwrap();
    }

    fn set_policy(&self, statements: &str) {
        let set = self.client("alice").set_document(&bucket(), &POLICY, policy(statements).as_bytes());
        set.unwrap_or_else(|error| panic!("{error}: {statements}"));
    }

    fn read(&self, name: &str, at: &str) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        self.client(name).read(&bucket(), &key(at), &GetOptions::default(), &mut content)?;
        Ok(content)
    }

    /// Returns the status of an anonymous GET.
    fn anonymous(&self, at: &str) -> u16 {
        self.anonymous_request(&format!("GET /data/{at}"), "")
    }

    /// Returns the status of an anonymous request; `line` is the method and the path.
    fn anonymous_request(&self, line: &str, body: &str) -> u16 {
        let mut stream = TcpStream::connect(self.gateway.local_addr()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let length = body.len();
        let headers = format!("Host: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
        write!(stream, "{line} HTTP/1.1\r\n{headers}{body}").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer)[9..12].parse().unwrap()
    }
}

fn gateway(dir: &Path, root: &Path, more: &str) -> RunningGateway {
    let path = dir.join("users.toml");
    let user = |name: &str, uid: u32| {
        format!("[[user]]\nname='{name}'\naccess_key='{name}'\nsecret_key='secret'\nuid={uid}\ngid={uid}\n")
    };
    fs::write(&path, format!("{}{}{more}", user("alice", ALICE), user("bob", BOB))).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let opened = root.to_owned();
    let open: StoreOpenFunction =
        Arc::new(move || Ok(Arc::new(PosixStore::open(&opened, PosixConfig::default())?)));
    let acts_as = Some(PeerCredentials { uid: NOBODY, gid: NOBODY, groups: Vec::new() });
    let users = Users::from_file(&path, root, open).unwrap();
    let users = users.with_anonymous(AnonymousUser { name: "nobody".to_owned(), acts_as }).unwrap();
    let config = GatewayConfig { threads: 1, ..GatewayConfig::new(SocketAddr::from(([127, 0, 0, 1], 0))) };
    Gateway::bind(users, config).unwrap().spawn().unwrap()
}

fn client(gateway: &RunningGateway, name: &str) -> S3Store {
    let endpoint = format!("http://{}", gateway.local_addr());
    S3Store::new(S3Config::new(&endpoint, "us-east-1", S3Credentials::keys(name, "secret", "this test")))
        .unwrap()
}

fn bucket() -> Bucket {
    Bucket::new("data").unwrap()
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn policy(statements: &str) -> String {
    format!("{{\"Version\": \"2012-10-17\", \"Statement\": [{statements}]}}")
}

const PUBLIC: &str = r#"{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::data/public/*"}"#;

/// Waits until the gateway's cached rules have expired.
fn wait_for_rules() {
    std::thread::sleep(Duration::from_millis(1_200));
}

fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

const DENIED: Option<ErrorKind> = Some(ErrorKind::AccessDenied);

#[test]
fn a_policy_narrows_what_the_kernel_grants() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    assert_eq!(ground.read("bob", "private/k").unwrap(), b"hello", "the file system alone decides");
    ground.set_policy(PUBLIC);
    assert_eq!(ground.read("bob", "public/k").unwrap(), b"hello");
    assert_eq!(kind(ground.read("bob", "private/k")), DENIED);
    let bob = ground.client("bob");
    assert_eq!(kind(bob.put(&bucket(), &key("new"), b"x", &PutOptions::default())), DENIED);
    assert_eq!(kind(bob.list(&bucket(), &ListQuery::default())), DENIED);
    assert_eq!(kind(bob.delete(&bucket(), &key("public/k"), &DeleteOptions::default())), DENIED);
    assert_eq!(ground.read("alice", "private/k").unwrap(), b"hello", "she owns the bucket");
    ground.set_policy(r#"{"Effect": "Allow", "Principal": {"AWS": "bob"}, "Action": "s3:*", "Resource": "arn:aws:s3:::data/*"}"#);
    bob.put(&bucket(), &key("new"), b"x", &PutOptions::default()).unwrap();
    ground.client("alice").delete_document(&bucket(), &POLICY).unwrap();
    assert_eq!(ground.read("bob", "private/k").unwrap(), b"hello");
}

#[test]
fn a_policy_grants_nothing_that_the_kernel_denies() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    ground.set_policy(r#"{"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": ["arn:aws:s3:::data", "arn:aws:s3:::data/*"]}"#);
    ground.allow("data/private/k", 0o600);
    assert_eq!(kind(ground.read("bob", "private/k")), DENIED);
    assert_eq!((ground.anonymous("private/k"), ground.anonymous("public/k")), (403, 200));
    ground.allow("data", 0o755);
    let put = ground.client("bob").put(&bucket(), &key("new"), b"x", &PutOptions::default());
    assert_eq!(kind(put), DENIED);
}

#[test]
fn the_owner_alone_sets_the_rules() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let bob = ground.client("bob");
    assert_eq!(
        kind(bob.set_document(&bucket(), &POLICY, policy(PUBLIC).as_bytes())),
        DENIED,
        "everybody may write"
    );
    let block = BucketDocumentKind::known("public-access-block");
    let document = b"<PublicAccessBlockConfiguration></PublicAccessBlockConfiguration>";
    assert_eq!(kind(bob.set_document(&bucket(), &block, document)), DENIED);
    ground.set_policy(PUBLIC);
    assert_eq!(kind(bob.delete_document(&bucket(), &POLICY)), DENIED);
    assert_eq!(ground.anonymous("public/k"), 200);
}

/// All users may write to the bucket's directory, so they can replace the files in it. A document that another user has
/// written must be ignored.
#[test]
fn a_document_by_another_user_is_not_believed() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    ground.set_policy(PUBLIC);
    let wide = PUBLIC.replace("public/*", "*").replace("s3:GetObject", "s3:*");
    fs::remove_file(ground.document()).unwrap();
    fs::write(ground.document(), policy(&wide)).unwrap();
    chown(ground.document(), Some(BOB), Some(BOB)).unwrap();
    wait_for_rules();
    for at in ["public/k", "private/k"] {
        assert_eq!(ground.anonymous(at), 403, "{at}");
        assert_eq!(kind(ground.read("bob", at)), DENIED);
        assert_eq!(ground.read("alice", at).unwrap(), b"hello", "the owner can mend it");
    }
    fs::remove_file(ground.document()).unwrap();
    symlink(ground.path("data/public/k"), ground.document()).unwrap();
    wait_for_rules();
    assert_eq!((ground.anonymous("public/k"), kind(ground.read("bob", "public/k"))), (403, DENIED));
    ground.client("alice").delete_document(&bucket(), &POLICY).unwrap();
    ground.set_policy(PUBLIC);
    assert_eq!(ground.anonymous("public/k"), 200);
}

/// In a bucket that everybody may write to, only the owner can set the ACL, and an ACL that another user has written is
/// ignored. An ACL grants nothing that the kernel denies.
#[test]
fn an_acl_is_the_owners_and_grants_nothing_that_the_kernel_denies() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let (alice, bob) = (ground.client("alice"), ground.client("bob"));
    let [acl, ownership] = ["acl", "ownership"].map(BucketDocumentKind::known);
    let enabled = b"<OwnershipControls><Rule><ObjectOwnership>ObjectWriter</ObjectOwnership></Rule></OwnershipControls>";
    let grants = ["READ", "WRITE"].map(|permission| {
        let everybody = "<URI>http://acs.amazonaws.com/groups/global/AllUsers</URI>";
        format!("<Grant><Grantee>{everybody}</Grantee><Permission>{permission}</Permission></Grant>")
    });
    let of_grants = |grants: &str| {
        format!("<AccessControlPolicy><AccessControlList>{grants}</AccessControlList></AccessControlPolicy>")
    };
    let open = of_grants(&grants.concat());
    assert_eq!(kind(bob.set_document(&bucket(), &ownership, enabled)), DENIED);
    alice.set_document(&bucket(), &ownership, enabled).unwrap();
    assert_eq!(kind(bob.set_document(&bucket(), &acl, open.as_bytes())), DENIED);
    alice.set_document(&bucket(), &acl, open.as_bytes()).unwrap();
    let upload = || ground.anonymous_request("PUT /data/new", "x");
    assert_eq!((ground.anonymous(""), upload(), ground.anonymous("public/k")), (200, 200, 403));
    assert_eq!(fs::metadata(ground.path("data/new")).unwrap().uid(), NOBODY);
    ground.allow("data", 0o755);
    fs::remove_file(ground.path("data/new")).unwrap();
    assert_eq!((ground.anonymous(""), upload()), (200, 403));
    // If a policy grants nothing to Bob, he keeps the permissions that the ACL grants.
    ground.set_policy(PUBLIC);
    bob.list(&bucket(), &ListQuery::default()).unwrap();
    alice.delete_document(&bucket(), &POLICY).unwrap();
    let document = ground.path("data/.fordway/document-acl");
    chown(&document, Some(BOB), Some(BOB)).unwrap();
    wait_for_rules();
    assert_eq!((ground.anonymous(""), kind(bob.list(&bucket(), &ListQuery::default()))), (403, DENIED));
    assert_eq!(ground.read("alice", "private/k").unwrap(), b"hello");
    alice.set_document(&bucket(), &acl, of_grants("").as_bytes()).unwrap();
    assert_eq!(ground.anonymous(""), 403);
    bob.list(&bucket(), &ListQuery::default()).unwrap();
}

/// Tests documents of the owner that are not valid policies, which may occur after a disk failure.
#[test]
fn a_broken_document_closes_the_bucket_to_others() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let whole = policy(PUBLIC);
    ground.set_policy(PUBLIC);
    for broken in ["", "{", &whole[..whole.len() - 2], "{\"Statement\": []}", &"x".repeat(100_000)] {
        fs::write(ground.document(), broken).unwrap();
        wait_for_rules();
        let start = &broken[..broken.len().min(40)];
        assert_eq!(ground.anonymous("public/k"), 403, "{start}");
        assert_eq!(kind(ground.read("bob", "public/k")), DENIED, "{start}");
        assert_eq!(ground.read("alice", "public/k").unwrap(), b"hello", "{start}");
    }
    // Others may rename files in the bucket, so writing to the file does not restore the owner's mark.
    fs::write(ground.document(), &whole).unwrap();
    wait_for_rules();
    assert_eq!(ground.anonymous("public/k"), 403);
    ground.set_policy(PUBLIC);
    assert_eq!(ground.anonymous("public/k"), 200);
}

/// A gateway notices a change made through another gateway within about one second. A change made through the gateway
/// itself is effective immediately.
#[test]
fn a_change_by_another_gateway_is_noticed() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let other = gateway(ground.dir.path(), &ground.path(""), "");
    assert_eq!(ground.anonymous("public/k"), 403);
    client(&other, "alice").set_document(&bucket(), &POLICY, policy(PUBLIC).as_bytes()).unwrap();
    let started = Instant::now();
    while ground.anonymous("public/k") != 200 {
        assert!(started.elapsed() < Duration::from_secs(20), "it is not noticed");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A symbolic link into another bucket must not bypass the policy of that bucket.
#[test]
fn links_of_a_public_bucket_stay_in_it() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let hidden = Bucket::new("hidden").unwrap();
    ground.client("alice").create_bucket(&hidden).unwrap();
    ground.client("alice").put(&hidden, &key("secret"), b"s", &PutOptions::default()).unwrap();
    symlink("../../hidden/secret", ground.path("data/public/link")).unwrap();
    ground.set_policy(PUBLIC);
    assert_eq!(ground.anonymous("public/k"), 200);
    assert_eq!(ground.anonymous("public/link"), 403);
}

#[test]
fn a_user_with_prefixes_keeps_to_them() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&root, Permissions::from_mode(0o1777)).unwrap();
    let gateway = gateway(dir.path(), &root, "prefixes=['home/bob/']\n");
    let (alice, bob) = (client(&gateway, "alice"), client(&gateway, "bob"));
    alice.create_bucket(&bucket()).unwrap();
    fs::set_permissions(root.join("data"), Permissions::from_mode(0o777)).unwrap();
    alice.put(&bucket(), &key("home/alice/k"), b"a", &PutOptions::default()).unwrap();
    fs::set_permissions(root.join("data/home"), Permissions::from_mode(0o777)).unwrap();
    bob.put(&bucket(), &key("home/bob/k"), b"b", &PutOptions::default()).unwrap();
    let list =
        |prefix: &str| bob.list(&bucket(), &ListQuery { prefix: prefix.to_owned(), ..Default::default() });
    assert_eq!(list("home/bob/").unwrap().entries.len(), 1);
    for prefix in ["", "home/", "home/alice/", "home/bob"] {
        assert_eq!(kind(list(prefix)), DENIED, "{prefix}");
    }
    assert_eq!(kind(bob.head(&bucket(), &key("home/alice/k"), &GetOptions::default())), DENIED);
    assert_eq!(kind(bob.put(&bucket(), &key("home/bobby"), b"b", &PutOptions::default())), DENIED);
    assert_eq!(kind(bob.delete(&bucket(), &key("home/alice/k"), &DeleteOptions::default())), DENIED);
    let copy =
        bob.copy((&bucket(), &key("home/alice/k")), &bucket(), &key("home/bob/c"), &Default::default());
    assert_eq!(kind(copy), DENIED);
    assert_eq!(kind(bob.create_bucket(&Bucket::new("another").unwrap())), DENIED);
}

fn allow(actions: &str, condition: &str) -> String {
    format!(
        r#"{{"Effect": "Allow", "Principal": {{"AWS": "bob"}}, "Action": {actions}, "Resource": "arn:aws:s3:::data/*"{condition}}}"#
    )
}

/// The result of a conditional request shows whether the object has a given ETag. The request therefore requires
/// permission to read the object. The response never reveals the object's actual ETag.
#[test]
fn conditions_reveal_nothing_to_those_who_may_not_read() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    // The kernel lets Bob replace files that are directly in the bucket's directory.
    let made = ground.client("alice").put(&bucket(), &key("top"), b"hello", &PutOptions::default());
    let etag = made.unwrap().etag;
    let bob = ground.client("bob");
    let put = |tag: &str| {
        let conditions = Conditions::only_if(ETag::new(tag));
        bob.put(&bucket(), &key("top"), b"x", &PutOptions { conditions, ..Default::default() })
    };
    let delete = |tag: &str| {
        let conditions = Conditions::only_if(ETag::new(tag));
        bob.delete(&bucket(), &key("top"), &DeleteOptions { conditions, ..Default::default() })
    };
    ground.set_policy(&allow(r#"["s3:PutObject", "s3:DeleteObject"]"#, ""));
    wait_for_rules();
    for tag in ["other", etag.as_str()] {
        assert_eq!(kind(put(tag)), DENIED, "{tag}");
        assert_eq!(kind(delete(tag)), DENIED, "{tag}");
    }
    ground.set_policy(&allow(r#"["s3:PutObject", "s3:DeleteObject", "s3:GetObject"]"#, ""));
    wait_for_rules();
    for refused in [put("other").err(), delete("other").err()] {
        let refused = refused.unwrap();
        assert_eq!(refused.kind(), ErrorKind::PreconditionFailed);
        assert!(!refused.to_string().contains(etag.as_str()), "{refused}");
    }
    delete(etag.as_str()).unwrap();
}

/// A copy that does not replace tags has the tags of its source, regardless of its tagging header.
#[test]
fn a_copy_has_only_the_tags_that_it_gets() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let condition = r#", "Condition": {"StringEquals": {"s3:RequestObjectTag/team": "b"}}"#;
    let statements =
        [allow(r#"["s3:PutObject", "s3:PutObjectTagging"]"#, condition), allow(r#""s3:GetObject""#, "")];
    ground.set_policy(&statements.join(", "));
    wait_for_rules();
    let bob = ground.client("bob");
    let copy = |tags: Option<&str>| {
        let tags = tags.map(|value| Tags::from([("team".to_owned(), value.to_owned())]));
        let options = CopyOptions { tags, ..Default::default() };
        bob.copy((&bucket(), &key("public/k")), &bucket(), &key("copy"), &options)
    };
    assert_eq!(kind(copy(None)), DENIED);
    assert_eq!(kind(copy(Some("a"))), DENIED);
    copy(Some("b")).unwrap();
}

/// A renamed object keeps its tags, so a rename sets tags under the new key.
#[test]
fn a_rename_of_tagged_objects_needs_the_actions_on_tags() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let alice = ground.client("alice");
    let team = |value: &str| Tags::from([("team".to_owned(), value.to_owned())]);
    for (name, tags) in [("plain", Tags::new()), ("a", team("a")), ("b", team("b"))] {
        alice.put(&bucket(), &key(name), b"x", &PutOptions { tags, ..Default::default() }).unwrap();
    }
    let objects = allow(r#"["s3:PutObject", "s3:GetObject", "s3:DeleteObject"]"#, "");
    ground.set_policy(&objects);
    wait_for_rules();
    let bob = ground.client("bob");
    let rename = |name: &str| {
        bob.rename(&bucket(), &key(name), &key(&format!("new-{name}")), &RenameOptions::default())
    };
    rename("plain").unwrap();
    assert_eq!(kind(rename("a")), DENIED);
    let condition = r#", "Condition": {"StringEquals": {"s3:RequestObjectTag/team": "b"}}"#;
    let statements =
        [objects, allow(r#""s3:GetObjectTagging""#, ""), allow(r#""s3:PutObjectTagging""#, condition)];
    ground.set_policy(&statements.join(", "));
    wait_for_rules();
    assert_eq!(kind(rename("a")), DENIED);
    rename("b").unwrap();
}
