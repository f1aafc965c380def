//! Tests the users of a credentials file: whether they may write, which buckets they may use, and changes to the file.

mod client;

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use client::{Answer, Call, Client};
use fordway_serve::{AccessKeyPair, Gateway, GatewayConfig, RunningGateway, StoreOpenFunction, Users};
use fordway_store::{Bucket, MemoryStore, Objects, PutOptions};

const DENIED: (u16, &str) = (403, "AccessDenied");

/// A gateway over one in-memory store, with a credentials file.
struct Ground {
    dir: tempfile::TempDir,
    store: MemoryStore,
    /// Whether the store cannot be opened.
    is_broken: Arc<AtomicBool>,
    gateway: RunningGateway,
}

impl Ground {
    fn new(credentials: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = MemoryStore::default();
        for bucket in ["alpha", "beta-1", "gamma"] {
            let bucket = Bucket::new(bucket).unwrap();
            store.create_bucket(&bucket).unwrap();
            store.put(&bucket, &client::key("k"), b"hello", &PutOptions::default()).unwrap();
        }
        write(&file_in(dir.path()), credentials);
        std::fs::create_dir(dir.path().join("root")).unwrap();
        let config =
            GatewayConfig { threads: 2, ..GatewayConfig::new(SocketAddr::from(([127, 0, 0, 1], 0))) };
        let is_broken = Arc::<AtomicBool>::default();
        let users = users(dir.path(), &store, is_broken.clone()).unwrap();
        let gateway = Gateway::bind(users, config).unwrap().spawn().unwrap();
        Ground { dir, store, is_broken, gateway }
    }

    fn client(&self, access_key: &str) -> Client {
        let identity = AccessKeyPair { access_key: access_key.to_owned(), secret_key: "secret".to_owned() };
        Client { address: self.gateway.local_addr(), identity, clock_offset_s: 0, dates_by_date: false }
    }

    fn write(&self, credentials: &str) {
        write(&file_in(self.dir.path()), credentials);
    }

    /// Waits until the gateway responds to a GET of this user with `status`.
    #[track_caller]
    fn wait_for(&self, access_key: &str, status: u16) {
        let start = Instant::now();
        while self.client(access_key).send(&Call::new("GET", "/alpha/k")).status != status {
            assert!(start.elapsed() < Duration::from_secs(20), "{access_key}: the status is never {status}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn users(dir: &Path, store: &MemoryStore, is_broken: Arc<AtomicBool>) -> fordway_store::Result<Users> {
    let store = store.clone();
    let open: StoreOpenFunction = Arc::new(move || match is_broken.load(Ordering::Relaxed) {
        false => Ok(Arc::new(store.clone())),
        true => Err(fordway_store::Error::new(fordway_store::ErrorKind::Io, "too many open files")),
    });
    Users::from_file(&file_in(dir), &dir.join("root"), open)
}

fn file_in(dir: &Path) -> PathBuf {
    dir.join("users.toml")
}

/// Replaces the credentials file with a file that contains `text`.
fn write(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::set_permissions(&new, Permissions::from_mode(0o600)).unwrap();
    std::fs::rename(&new, path).unwrap();
}

/// Returns the entry of a user with the uid of this test's process.
fn user(name: &str, more: &str) -> String {
    let (uid, gid) = (fordway_sys::user_id(), fordway_sys::group_id());
    format!(
        "[[user]]\nname='{name}'\naccess_key='{name}'\nsecret_key='secret'\nuid={uid}\ngid={gid}\n{more}\n"
    )
}

#[track_caller]
fn assert_denied(answer: &Answer, what: &str) {
    if answer.body.is_empty() {
        assert_eq!(answer.status, 403, "{what}");
        return;
    }
    let (status, code) = answer.error();
    assert_eq!((status, code.as_str()), DENIED, "{what}");
}

/// Whether an operation makes changes.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Reads,
    Writes,
}

use Kind::{Reads, Writes};

const COMPLETION: &str = "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>\"00000000000000000000000000000000\"</ETag></Part></CompleteMultipartUpload>";
const TAGGING: &str = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";
const DELETION: &str = "<Delete><Object><Key>k</Key></Object></Delete>";
const VERSIONING: &str = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";

const LOCK: &str =
    "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled></ObjectLockConfiguration>";

const LIFECYCLE: &str = "<LifecycleConfiguration><Rule><Prefix></Prefix><Status>Enabled</Status>\
    <Expiration><Days>1</Days></Expiration></Rule></LifecycleConfiguration>";

/// Every supported S3 operation, on the object `alpha/k`. In queries, `U` represents an upload ID.
const OPERATIONS: &[(Kind, &str, &str, &str, &str)] = &[
    (Reads, "GetObject", "GET /alpha/k", "", ""),
    (Reads, "GetObject of a version", "GET /alpha/k", "versionId=null", ""),
    (Reads, "HeadObject", "HEAD /alpha/k", "", ""),
    (Reads, "GetObjectAcl", "GET /alpha/k", "acl", ""),
    (Reads, "GetObjectTagging", "GET /alpha/k", "tagging", ""),
    (Reads, "GetObjectAttributes", "GET /alpha/k", "attributes", ""),
    (Reads, "ListParts", "GET /alpha/k", "uploadId=U", ""),
    (Reads, "ListObjects", "GET /alpha", "", ""),
    (Reads, "ListObjectsV2", "GET /alpha", "list-type=2", ""),
    (Reads, "ListObjectVersions", "GET /alpha", "versions", ""),
    (Reads, "ListMultipartUploads", "GET /alpha", "uploads", ""),
    (Reads, "HeadBucket", "HEAD /alpha", "", ""),
    (Reads, "GetBucketLocation", "GET /alpha", "location", ""),
    (Reads, "GetBucketVersioning", "GET /alpha", "versioning", ""),
    (Reads, "GetBucketAcl", "GET /alpha", "acl", ""),
    (Reads, "GetBucketPolicy", "GET /alpha", "policy", ""),
    (Reads, "GetBucketCors", "GET /alpha", "cors", ""),
    (Reads, "GetBucketLifecycleConfiguration", "GET /alpha", "lifecycle", ""),
    (Reads, "GetBucketTagging", "GET /alpha", "tagging", ""),
    (Writes, "PutObject", "PUT /alpha/k", "", "body"),
    (Writes, "CopyObject", "PUT /alpha/k2", "", "copy"),
    (Writes, "PutObjectTagging", "PUT /alpha/k", "tagging", TAGGING),
    (Writes, "DeleteObjectTagging", "DELETE /alpha/k", "tagging", ""),
    (Writes, "DeleteObject", "DELETE /alpha/k", "", ""),
    (Writes, "DeleteObject of a version", "DELETE /alpha/k", "versionId=null", ""),
    (Writes, "DeleteObjects", "POST /alpha", "delete", DELETION),
    (Writes, "CreateMultipartUpload", "POST /alpha/k", "uploads", ""),
    (Writes, "UploadPart", "PUT /alpha/k", "partNumber=1&uploadId=U", "body"),
    (Writes, "UploadPartCopy", "PUT /alpha/k", "partNumber=1&uploadId=U", "copy"),
    (Writes, "CompleteMultipartUpload", "POST /alpha/k", "uploadId=U", COMPLETION),
    (Writes, "AbortMultipartUpload", "DELETE /alpha/k", "uploadId=U", ""),
    (Writes, "CreateBucket", "PUT /new", "", ""),
    (Writes, "DeleteBucket", "DELETE /alpha", "", ""),
    (Writes, "PutBucketVersioning", "PUT /alpha", "versioning", VERSIONING),
    (Writes, "PutBucketLifecycleConfiguration", "PUT /alpha", "lifecycle", LIFECYCLE),
    (Writes, "DeleteBucketLifecycle", "DELETE /alpha", "lifecycle", ""),
];

fn call<'a>(
    (_, name, start, query, body): &(Kind, &str, &'a str, &'a str, &'a str),
    query_of_upload: &'a str,
) -> Call<'a> {
    let (method, path) = start.split_once(' ').unwrap();
    let query = if query.ends_with("uploadId=U") { query_of_upload } else { query };
    let mut call = Call::new(method, path).query(query);
    match *body {
        "copy" => call = call.header("x-amz-copy-source", "/alpha/k"),
        body => call = call.body(body),
    }
    if *name == "DeleteObjects" {
        call = call.header("content-md5", "5DKh5iefM5MSKvRILIuFwQ==");
    }
    if *name == "GetObjectAttributes" {
        call = call.header("x-amz-object-attributes", "ETag");
    }
    call
}

/// Starts an upload of `alpha/k`, and returns a query with its upload ID.
fn upload_query(client: &Client, query: &str) -> String {
    let begun = client.send(&Call::new("POST", "/alpha/k").query("uploads")).ok();
    query.replace("uploadId=U", &format!("uploadId={}", begun.element("UploadId").unwrap()))
}

#[test]
fn who_may_only_read_is_refused_every_write_and_nothing_else() {
    let ground = Ground::new(&(user("owner", "") + &user("reader", "read_only=true")));
    let (owner, reader) = (ground.client("owner"), ground.client("reader"));
    for operation in OPERATIONS {
        let (kind, name, _, query, _) = operation;
        let query = upload_query(&owner, query);
        let answer = reader.send(&call(operation, &query));
        match kind {
            Writes if *name == "DeleteObjects" => {
                assert_eq!(answer.element("Code").as_deref(), Some("AccessDenied"), "{}", answer.text());
            }
            Writes => assert_denied(&answer, name),
            // The status may be 404, because the gateway reports unsupported configurations as missing.
            Reads => {
                assert!(matches!(answer.status, 200 | 404), "{name}: {} {}", answer.status, answer.text())
            }
        }
    }
    assert_eq!(owner.send(&Call::new("GET", "/alpha/k")).ok().text(), "hello", "nothing was changed");
    assert!(ground.store.head_bucket(&Bucket::new("new").unwrap()).is_err());
}

#[test]
fn buckets_that_are_not_allowed_are_refused_whatever_is_asked() {
    let ground = Ground::new(&(user("owner", "") + &user("guest", "buckets=['gamma', 'beta-*']")));
    let (owner, guest) = (ground.client("owner"), ground.client("guest"));
    for operation in OPERATIONS {
        let query = upload_query(&owner, operation.3);
        let answer = guest.send(&call(operation, &query));
        match operation.1 {
            "DeleteObjects" => assert_eq!(answer.element("Code").as_deref(), Some("AccessDenied")),
            name => assert_denied(&answer, name),
        }
    }
    assert_eq!(guest.send(&Call::new("GET", "/gamma/k")).ok().text(), "hello");
    guest.send(&Call::new("PUT", "/beta-1/mine").body("x")).ok();
    guest.send(&Call::new("PUT", "/beta-2")).ok();
    let listed = guest.send(&Call::new("GET", "/")).ok();
    assert_eq!(listed.elements("Name"), ["beta-1", "beta-2", "gamma"]);
    let copy = Call::new("PUT", "/gamma/stolen").header("x-amz-copy-source", "/alpha/k");
    assert_denied(&guest.send(&copy), "a copy out of another's bucket");
    assert_eq!(owner.send(&Call::new("GET", "/")).ok().elements("Name").len(), 4);
}

/// A user with the prefix `mine/` must not change the object `k` or the bucket as a whole.
#[test]
fn a_user_with_prefixes_changes_nothing_elsewhere() {
    let ground = Ground::new(&(user("owner", "") + &user("guest", "prefixes=['mine/']")));
    let (owner, guest) = (ground.client("owner"), ground.client("guest"));
    for bucket in ["alpha", "gamma"] {
        owner.send(&Call::new("PUT", format!("/{bucket}/mine/k")).body("mine")).ok();
    }
    owner.send(&Call::new("PUT", "/gamma").query("versioning").body(VERSIONING)).ok();
    owner.send(&Call::new("PUT", "/gamma").query("object-lock").body(LOCK)).ok();
    owner.send(&Call::new("PUT", "/gamma/k").body("hello")).ok();

    let rename = |from: &str, to: &str| {
        let call = Call::new("PUT", format!("/alpha/{to}")).query("renameObject");
        guest.send(&call.header("x-amz-rename-source", from))
    };
    assert_denied(&rename("k", "mine/taken"), "an object of another user is taken");
    assert_denied(&rename("mine/k", "k"), "an object of another user is replaced");
    rename("mine/k", "mine/l").ok();

    let put = |path: &str, query: &'static str, body: &str| {
        guest.send(&Call::new("PUT", path).query(query).body(body))
    };
    let retention = "<Retention><Mode>GOVERNANCE</Mode>\
        <RetainUntilDate>2100-01-01T00:00:00Z</RetainUntilDate></Retention>";
    let hold = "<LegalHold><Status>ON</Status></LegalHold>";
    for (path, query, body) in [
        ("/gamma/k", "retention", retention),
        ("/gamma/k", "legal-hold", hold),
        ("/gamma", "object-lock", LOCK),
        ("/gamma", "versioning", VERSIONING),
        ("/gamma", "tagging", TAGGING),
    ] {
        assert_denied(&put(path, query, body), query);
    }
    put("/gamma/mine/k", "legal-hold", hold).ok();
    put("/gamma/mine/k", "legal-hold", &hold.replace("ON", "OFF")).ok();

    // A user who is not permitted to change the bucket's settings cannot bypass a retention.
    let version = put("/gamma/mine/k", "", "new").ok().header("x-amz-version-id").unwrap().to_owned();
    put("/gamma/mine/k", "retention", retention).ok();
    const BYPASS: &str = "x-amz-bypass-governance-retention";
    let call = Call::new("PUT", "/gamma/mine/k").query("retention").body("<Retention/>");
    assert_denied(&guest.send(&call.header(BYPASS, "true")), "a retention is removed");
    let query = format!("versionId={version}");
    let delete = || Call::new("DELETE", "/gamma/mine/k").query(&query).header(BYPASS, "true");
    assert_denied(&guest.send(&delete()), "a version is deleted before its date");
    owner.send(&delete()).ok();
}

#[test]
fn users_have_secrets_and_names_of_their_own() {
    let ground = Ground::new(&(user("one", "") + &user("two", "").replace("'secret'", "'other'")));
    let mut two = ground.client("two");
    assert_eq!(two.send(&Call::new("GET", "/alpha/k")).error(), (403, "SignatureDoesNotMatch".to_owned()));
    two.identity.secret_key = "other".to_owned();
    assert_eq!(two.send(&Call::new("GET", "/alpha/k")).ok().text(), "hello");
    assert_eq!(two.send(&Call::new("GET", "/")).ok().element("DisplayName").as_deref(), Some("two"));
}

#[test]
fn the_file_is_read_again_and_a_broken_one_changes_nothing() {
    let ground = Ground::new(&user("first", ""));
    let get = Call::new("GET", "/alpha/k");
    ground.client("first").send(&get).ok();
    assert_eq!(ground.client("second").send(&get).error().1, "InvalidAccessKeyId");

    ground.write(&(user("second", "") + "[[user]]\nname='broken\n"));
    ground.gateway.reload_handle().trigger();
    std::thread::sleep(Duration::from_millis(300));
    ground.client("first").send(&get).ok();

    // The gateway notices the change and reads the file within about a second.
    ground.write(&user("second", ""));
    let start = Instant::now();
    while ground.client("second").send(&get).status != 200 {
        assert!(start.elapsed() < Duration::from_secs(10), "the file was not read again");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(ground.client("first").send(&get).error().1, "InvalidAccessKeyId");
}

/// A failure to open the store of one user must not keep another user's removed key valid, and must not end the access
/// of a user whose entry has not changed.
#[test]
fn a_removed_user_is_refused_although_a_store_cannot_be_opened() {
    let ground = Ground::new(&(user("removed", "") + &user("restricted", "") + &user("same", "")));
    ground.wait_for("removed", 200);
    ground.is_broken.store(true, Ordering::Relaxed);
    ground.write(&(user("same", "") + &user("restricted", "buckets=['gamma']") + &user("new", "")));
    ground.wait_for("removed", 403);
    assert_eq!(ground.client("same").send(&Call::new("GET", "/alpha/k")).ok().text(), "hello");
    for pending in ["restricted", "new"] {
        let refused = ground.client(pending).send(&Call::new("GET", "/alpha/k")).error();
        assert_eq!(refused.1, "InvalidAccessKeyId", "{pending} has no store yet");
    }
    ground.is_broken.store(false, Ordering::Relaxed);
    ground.wait_for("new", 200);
    ground.client("restricted").send(&Call::new("GET", "/gamma/k")).ok();
    assert_denied(&ground.client("restricted").send(&Call::new("GET", "/alpha/k")), "its old buckets");
}

/// The credentials file may be on a file server that does not respond. Opening a pipe that nobody writes to blocks in
/// the same way.
#[test]
fn a_credentials_file_that_cannot_be_read_delays_no_request() {
    let ground = Ground::new(&user("ann", ""));
    let pipe = ground.dir.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::fs::rename(&pipe, file_in(ground.dir.path())).unwrap();
    // The gateway checks the file once a second.
    std::thread::sleep(Duration::from_millis(2500));
    let client = ground.client("ann");
    let (send, answers) = std::sync::mpsc::channel();
    std::thread::spawn(move || send.send(client.send(&Call::new("GET", "/alpha/none")).status));
    let answer = answers.recv_timeout(Duration::from_secs(5));
    // The gateway reads an empty file from the pipe, and can end.
    std::fs::write(file_in(ground.dir.path()), "").unwrap();
    assert_eq!(answer, Ok(404));
}

#[test]
fn a_root_that_goes_away_is_said_and_comes_back() {
    let ground = Ground::new(&user("one", ""));
    let (one, root) = (ground.client("one"), ground.dir.path().join("root"));
    one.send(&Call::new("GET", "/")).ok();
    std::fs::rename(&root, ground.dir.path().join("away")).unwrap();
    // After the root has been moved away, requests that need the root fail immediately. All requests fail as soon as
    // the watch thread has checked the root.
    assert_eq!(one.send(&Call::new("GET", "/")).error(), (503, "ServiceUnavailable".to_owned()));
    assert_eq!(one.send(&Call::new("GET", "/alpha/k")).error(), (503, "ServiceUnavailable".to_owned()));
    assert_eq!(one.send(&Call::new("PUT", "/alpha/k").body("x")).error().0, 503);
    std::fs::rename(ground.dir.path().join("away"), &root).unwrap();
    let start = Instant::now();
    while one.send(&Call::new("GET", "/alpha/k")).status != 200 {
        assert!(start.elapsed() < Duration::from_secs(10), "it did not come back");
        std::thread::sleep(Duration::from_millis(50));
    }
    // If a new directory is at the root's path, the gateway opens the new directory.
    std::fs::remove_dir(&root).unwrap();
    assert_eq!(one.send(&Call::new("GET", "/")).error().0, 503);
    std::fs::create_dir(&root).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    one.send(&Call::new("GET", "/alpha/k")).ok();
}
