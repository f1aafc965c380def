//! Tests stores on a full file system, which is a small tmpfs mounted for the test. Requires root.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, RwLock};
use std::time::SystemTime;

use fordway_client::node::{NodeAddress, NodeStore};
use fordway_client::s3::{S3Config, S3Credentials, S3Store};
use fordway_posix::{EventJournal, PosixConfig, PosixStore};
use fordway_serve::node::{NodeGateway, NodeGatewayConfig};
use fordway_serve::{AccessKeyPair, Gateway, GatewayConfig, RunningGateway, Users};
use fordway_store::{
    Bucket, BucketDocumentKind, BucketDocumentOperations, DeleteOptions, ErrorKind, ExpectedContent,
    GetOptions, Key, ListQuery, Objects, PutOptions, Store,
};

/// A child process holds all files of this process open until it executes its program. The space of a file that is closed
/// meanwhile is not free yet. Tests that start a child hold this lock for writing, and tests that count free space hold
/// it for reading.
static CHILDREN: RwLock<()> = RwLock::new(());

/// Runs the command while no test counts free space. Returns whether it succeeded.
fn run(command: &mut Command) -> bool {
    let _lock = CHILDREN.write().unwrap_or_else(|poisoned| poisoned.into_inner());
    command.status().is_ok_and(|status| status.success())
}

/// A small tmpfs, which is unmounted when this value is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts a tmpfs of 2 MiB. Returns `None` and records a skip if the tmpfs cannot be mounted.
    fn mount(at: &Path) -> Option<Self> {
        SmallDisk::mount_with(at, "size=2m")
    }

    fn mount_with(at: &Path, options: &str) -> Option<Self> {
        if run(Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(at)) {
            return Some(SmallDisk(at.to_owned()));
        }
        fordway_needs::skip("a tmpfs cannot be mounted here; root is needed");
        None
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        run(Command::new("umount").arg("-l").arg(&self.0));
    }
}

/// Fills the file system with objects of several sizes. For each size, the error must be `NoSpace`, the old object must
/// remain, and no partially written object may be listed. The store must work again after space has been freed.
fn fills_up(store: &dyn Store) {
    let _lock = CHILDREN.read().unwrap_or_else(|poisoned| poisoned.into_inner());
    let bucket = Bucket::new("bucket").unwrap();
    let key = |name: &str| Key::new(name).unwrap();
    let put =
        |name: &str, size: usize| store.put(&bucket, &key(name), &vec![7; size], &PutOptions::default());
    store.create_bucket(&bucket).unwrap();
    put("dir/old", 1000).unwrap();
    put("filler", 1_500_000).unwrap();
    for size in [700_000, 2_000_000, 620_001] {
        for name in ["dir/old", "dir/new"] {
            let error = put(name, size).expect_err("it does not fit");
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            assert!(error.to_string().contains("bytes were written"), "{error}");
            // The failed write itself used up the rest of the space before it failed.
            let number = |before: &str| -> usize {
                let found =
                    error.detail().split_once(before).map(|(text, _)| text.rsplit(' ').next().unwrap());
                found.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{error}"))
            };
            let room = number(" bytes were written") + number(" were free");
            assert!((300_000..700_000).contains(&room), "{error}");
        }
        let mut writer = store.writer(&bucket, &key("dir/streamed"), &PutOptions::default()).unwrap();
        let written = (0..size / 50_000 + 1).try_for_each(|_| writer.write(&[1; 50_000]));
        let ended = written.and_then(|()| writer.commit(&ExpectedContent::default()).map(drop));
        assert_eq!(ended.expect_err("it does not fit").kind(), ErrorKind::NoSpace);
    }
    let listed = store.list(&bucket, &ListQuery::default()).unwrap();
    let names: Vec<&str> = listed.entries.iter().map(|entry| entry.name()).collect();
    assert_eq!(names, ["dir/old", "filler"]);
    let old = store.get(&bucket, &key("dir/old"), &GetOptions::default()).unwrap();
    assert_eq!(old.content.into_vec().unwrap(), vec![7; 1000]);
    store.delete(&bucket, &key("filler"), &DeleteOptions::default()).unwrap();
    put("dir/new", 700_000).unwrap();
}

/// Objects whose removals cause events must be removable from a full disk.
#[test]
fn reported_objects_are_removed_from_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path()) else { return };
    let store = PosixStore::open(&disk.0, PosixConfig::default()).unwrap();
    let (bucket, key) = (Bucket::new("bucket").unwrap(), |name: &str| Key::new(name).unwrap());
    store.create_bucket(&bucket).unwrap();
    let rules = b"<NotificationConfiguration><QueueConfiguration><Queue>arn:fordway:sqs::ci:webhook</Queue>\
        <Event>s3:ObjectRemoved:*</Event></QueueConfiguration></NotificationConfiguration>";
    store.set_document(&bucket, &BucketDocumentKind::known("notification"), rules).unwrap();
    let put = |name: &str, size: usize| {
        store.put(&bucket, &key(name), &vec![7; size], &PutOptions::default()).is_ok()
    };
    assert!(put("large", 1_000_000));
    let mut count = 0;
    while put(&format!("{count}"), 4096) {
        count += 1;
    }
    let fill = |number: usize| std::fs::write(disk.0.join(format!("rest-{number}")), b"x").is_ok();
    (0..1000).take_while(|number| fill(*number)).count();
    store.delete(&bucket, &key("large"), &DeleteOptions::default()).unwrap();
    let waiting = EventJournal::of(&store).waiting(&bucket, "ci", None, 10).unwrap();
    assert_eq!(waiting.total, 1);
}

/// The number of inodes of the file system that [`empties`] fills with files.
const INODES: usize = 40;

/// Checks that a bucket in which no lock was ever acquired can be emptied when its file system has no free inodes.
fn empties(disk: &Path, store: &dyn Store) {
    let bucket = Bucket::new("bucket").unwrap();
    let key = |name: &str| Key::new(name).unwrap();
    store.create_bucket(&bucket).unwrap();
    let names: Vec<String> = (0..INODES).map(|number| format!("dir/{number:02}")).collect();
    let put = |name: &String| store.put(&bucket, &key(name), b"x", &PutOptions::default());
    let made = names.iter().take_while(|name| put(name).is_ok()).count();
    assert!((10..INODES).contains(&made), "{made} objects fit");
    assert!(!disk.join("bucket/.fordway").exists());
    let error = put(&names[made]).expect_err("there is no inode left");
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    let conditional = DeleteOptions {
        conditions: fordway_store::Conditions::only_if(fordway_store::ETag::opaque(7)),
        ..Default::default()
    };
    let error = store.delete(&bucket, &key(&names[0]), &conditional).expect_err("that needs a lock");
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    store.delete(&bucket, &key("none"), &DeleteOptions::default()).unwrap();
    for name in &names[..made] {
        store.delete(&bucket, &key(name), &DeleteOptions::default()).unwrap();
    }
    assert_eq!(store.list(&bucket, &ListQuery::default()).unwrap().entries, []);
    put(&names[0]).unwrap();
}

fn disk_without_inodes(at: &Path) -> Option<SmallDisk> {
    SmallDisk::mount_with(at, &format!("size=2m,nr_inodes={INODES}"))
}

#[test]
fn the_embedded_lane_empties_a_disk_without_inodes() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = disk_without_inodes(dir.path()) else { return };
    empties(&disk.0, &PosixStore::open(&disk.0, PosixConfig::default()).unwrap());
}

#[test]
fn the_http_lane_empties_a_disk_without_inodes() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = disk_without_inodes(dir.path()) else { return };
    let (_gateway, client) = serve(&disk);
    empties(&disk.0, &client);
}

#[test]
fn the_node_lane_empties_a_disk_without_inodes() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = disk_without_inodes(dir.path()) else { return };
    let (root, away) = (disk.0.clone(), tempfile::tempdir().unwrap());
    let open = move || Ok(Arc::new(PosixStore::open(&root, PosixConfig::default())?) as Arc<dyn Store>);
    let socket = away.path().join("socket");
    let _gateway =
        NodeGateway::bind(Arc::new(open), NodeGatewayConfig::new(&socket)).unwrap().spawn().unwrap();
    empties(&disk.0, &NodeStore::new(NodeAddress::Unix(socket)));
}

/// Starts a gateway on the disk. The returned client sends each request only once.
fn serve(disk: &SmallDisk) -> (RunningGateway, S3Store) {
    let store = Arc::new(PosixStore::open(&disk.0, PosixConfig::default()).unwrap());
    let identity = AccessKeyPair::generate().unwrap();
    let credentials = S3Credentials::keys(&identity.access_key, &identity.secret_key, "the test");
    let listen = "127.0.0.1:0".parse().unwrap();
    let gateway =
        Gateway::bind(Users::one(identity, store), GatewayConfig::new(listen)).unwrap().spawn().unwrap();
    let endpoint = format!("http://{}", gateway.local_addr());
    let config = S3Config { max_retries: 0, ..S3Config::new(endpoint, "us-east-1", credentials) };
    let client = S3Store::new(config).unwrap();
    (gateway, client)
}

#[test]
fn the_embedded_lane_on_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path()) else { return };
    fills_up(&PosixStore::open(&disk.0, PosixConfig::default()).unwrap());
}

#[test]
fn the_http_lane_on_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path()) else { return };
    let (_gateway, client) = serve(&disk);
    fills_up(&client);
}

/// An upload that does not fit is refused while it arrives. Later requests on the same connection still get responses.
#[test]
fn a_connection_survives_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path()) else { return };
    let store = Arc::new(PosixStore::open(&disk.0, PosixConfig::default()).unwrap());
    store.create_bucket(&Bucket::new("bucket").unwrap()).unwrap();
    let identity = AccessKeyPair::generate().unwrap();
    let credentials = S3Credentials::keys(&identity.access_key, &identity.secret_key, "the test");
    let listen = "127.0.0.1:0".parse().unwrap();
    // Only one connection is allowed, so a second connection would wait forever.
    let config = GatewayConfig { connections_max: 1, ..GatewayConfig::new(listen) };
    let gateway = Gateway::bind(Users::one(identity, store), config).unwrap().spawn().unwrap();
    let url = |path: &str| format!("http://{}/bucket/{path}", gateway.local_addr());
    let config = S3Config::new(format!("http://{}", gateway.local_addr()), "us-east-1", credentials);
    let client = S3Store::new(config).unwrap();
    let presigned = |method: &'static str, key: &str| {
        let key = Key::new(key).unwrap();
        client.presign(method, &Bucket::new("bucket").unwrap(), &key, 600, SystemTime::now()).unwrap()
    };
    assert!(presigned("PUT", "a").starts_with(&url("a")));
    let mut stream = TcpStream::connect(gateway.local_addr()).unwrap();
    let mut send = |method: &'static str, key: &str, body: &[u8]| {
        let target = presigned(method, key);
        let path = target.split_once("://").unwrap().1;
        let path = &path[path.find('/').unwrap()..];
        let host = gateway.local_addr();
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            answer.push(byte[0]);
        }
        let head = String::from_utf8(answer).unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
        let mut body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut body).unwrap();
        (head, body)
    };
    assert!(send("PUT", "old", &[7; 1000]).0.starts_with("HTTP/1.1 200"));
    for key in ["old", "new"] {
        let (head, body) = send("PUT", key, &[1; 4_000_000]);
        assert!(head.starts_with("HTTP/1.1 507"), "{head}");
        assert!(String::from_utf8(body).unwrap().contains("<Code>InsufficientStorage</Code>"));
    }
    assert_eq!(send("GET", "old", b"").1, [7; 1000]);
    assert!(send("GET", "new", b"").0.starts_with("HTTP/1.1 404"));
}

#[test]
fn the_node_lane_on_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path()) else { return };
    let (root, away) = (disk.0.clone(), tempfile::tempdir().unwrap());
    let open = move || Ok(Arc::new(PosixStore::open(&root, PosixConfig::default())?) as Arc<dyn Store>);
    let socket = away.path().join("socket");
    let _gateway =
        NodeGateway::bind(Arc::new(open), NodeGatewayConfig::new(&socket)).unwrap().spawn().unwrap();
    fills_up(&NodeStore::new(NodeAddress::Unix(socket)));
}
