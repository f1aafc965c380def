//! Tests HTTP on the Unix socket of a node gateway. Runs the conformance suite with our S3 client, whose signatures
//! have no effect on this socket, and sends unsigned requests.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use fordway_client::node::{NodeAddress, NodeStore};
use fordway_client::s3::{S3Config, S3Credentials, S3Store};
use fordway_posix::{PosixConfig, PosixStore};
use fordway_serve::node::{NodeGateway, NodeGatewayConfig, RunningNodeGateway};
use fordway_store::{ETagPolicy, ErrorKind, Objects, Store};
use fordway_sys::FileSystemSharing;
use fordway_sys::fault::FaultInjectionPlan;
use fordway_testkit::conformance::StoreFixture;

struct Ground {
    dir: tempfile::TempDir,
    gateway: RunningNodeGateway,
}

impl Ground {
    fn new() -> Self {
        Ground::with(|_| ())
    }

    fn with(change: impl FnOnce(&mut NodeGatewayConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("bucket")).unwrap();
        let mut config = NodeGatewayConfig::new(dir.path().join("socket"));
        change(&mut config);
        let gateway = NodeGateway::bind(Arc::new(opens(root)), config).unwrap().spawn().unwrap();
        Ground { dir, gateway }
    }

    /// Starts a gateway whose stores treat the file system as one that other nodes may change.
    fn on_shared_file_system() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("bucket")).unwrap();
        let open = opens(root);
        let open = move || {
            let sharing = Some(FileSystemSharing::Unknown);
            let plan = FaultInjectionPlan { sharing, ..FaultInjectionPlan::default() };
            fordway_sys::fault::run(plan, &open).0
        };
        assert!(open().unwrap().file_server("bucket").is_some());
        let config = NodeGatewayConfig::new(dir.path().join("socket"));
        let gateway = NodeGateway::bind(Arc::new(open), config).unwrap().spawn().unwrap();
        Ground { dir, gateway }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    fn file(&self, key: &str) -> Vec<u8> {
        std::fs::read(self.dir.path().join("root/bucket").join(key)).unwrap()
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Sends a request with `connection: close`. Returns the whole response.
    fn ask(&self, start: &str, headers: &str, body: &[u8]) -> String {
        ask(self.connect(), start, headers, body)
    }
}

fn opens(root: PathBuf) -> impl Fn() -> fordway_store::Result<Arc<dyn Store>> + Send + Sync {
    let config = PosixConfig { etag_policy: ETagPolicy::Md5, ..PosixConfig::default() };
    move || Ok(Arc::new(PosixStore::open(&root, config.clone())?))
}

fn ask(mut stream: UnixStream, start: &str, headers: &str, body: &[u8]) -> String {
    let length = body.len();
    write!(
        stream,
        "{start} HTTP/1.1\r\nhost: node\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
    )
    .unwrap();
    stream.write_all(body).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[track_caller]
fn assert_status(answer: &str, status: u16) {
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
}

/// Forwards bytes between a port of the loopback interface and the socket, for clients that support only TCP.
fn relay(socket: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(client) = client else { return };
            // If the gateway has ended, close the client's connection.
            let Ok(node) = UnixStream::connect(&socket) else { return };
            client.set_nodelay(true).unwrap();
            let (mut from, mut to) = (client.try_clone().unwrap(), node.try_clone().unwrap());
            thread::spawn(move || (io::copy(&mut from, &mut to), to.shutdown(Shutdown::Write)).1);
            let (mut from, mut to) = (node, client);
            thread::spawn(move || (io::copy(&mut from, &mut to), to.shutdown(Shutdown::Write)).1);
        }
    });
    endpoint
}

fn open() -> StoreFixture {
    let ground = Ground::new();
    std::fs::remove_dir(ground.dir.path().join("root/bucket")).unwrap();
    let nobody = S3Credentials::keys("nobody", "knows this", "the test");
    let client = S3Store::new(S3Config::new(relay(ground.socket()), "eu-central-7", nobody)).unwrap();
    StoreFixture::new(client, ground)
}

fordway_testkit::conformance_suite!(open());

#[test]
fn requests_without_a_signature_are_their_senders() {
    let ground = Ground::new();
    assert_status(&ground.ask("PUT /bucket/dir/a%20b", "", b"hello"), 200);
    assert_eq!(ground.file("dir/a b"), b"hello");
    let got = ground.ask("GET /bucket/dir/a%20b", "", b"");
    assert_status(&got, 200);
    assert!(got.ends_with("\r\n\r\nhello"), "{got}");
    let range = ground.ask("GET /bucket/dir/a%20b", "range: bytes=1-2\r\n", b"");
    assert_status(&range, 206);
    assert!(range.ends_with("\r\n\r\nel"), "{range}");
    let several = ground.ask("GET /bucket/dir/a%20b", "range: bytes=0-0,3-4\r\n", b"");
    assert_status(&several, 206);
    assert!(several.contains("multipart/byteranges") && several.contains("\r\n\r\nlo\r\n"), "{several}");
    assert_status(&ground.ask("HEAD /bucket/dir/a%20b", "", b""), 200);
    let listed = ground.ask("GET /bucket?list-type=2&prefix=dir%2F", "", b"");
    assert!(listed.contains("<Key>dir/a b</Key>"), "{listed}");
    let missing = ground.ask("GET /bucket/none", "", b"");
    assert_status(&missing, 404);
    assert!(missing.contains("NoSuchKey"), "{missing}");
    assert_status(&ground.ask("DELETE /bucket/dir/a%20b", "", b""), 204);
    assert!(!ground.dir.path().join("root/bucket/dir/a b").exists());
}

/// A signature of any kind, date or age must have no effect, either in a header or in a URL.
#[test]
fn signatures_mean_nothing() {
    let ground = Ground::new();
    let presigned = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=x%2F20010101%2Fx%2Fs3%2Faws4_request\
                     &X-Amz-Date=20010101T000000Z&X-Amz-Expires=1&X-Amz-SignedHeaders=host&X-Amz-Signature=0";
    assert_status(&ground.ask(&format!("PUT /bucket/k?{presigned}"), "", b"new"), 200);
    let version_2 = "AWSAccessKeyId=x&Expires=1&Signature=x";
    for target in [format!("/bucket/k?{presigned}"), format!("/bucket/k?{version_2}"), "/bucket/k".to_owned()]
    {
        for header in ["", "authorization: AWS4-HMAC-SHA256 nonsense\r\n", "authorization: AWS a:b\r\n"] {
            let got = ground.ask(&format!("GET {target}"), header, b"");
            assert_status(&got, 200);
            assert!(got.ends_with("\r\n\r\nnew"), "{target} {header}: {got}");
        }
    }
    let other_body = format!("x-amz-content-sha256: {}\r\n", "0".repeat(64));
    assert_status(&ground.ask("PUT /bucket/k", &other_body, b"newer"), 200);
    assert_eq!(ground.file("k"), b"newer");
}

#[test]
fn chunked_bodies_are_undone_and_their_checksums_hold() {
    let ground = Ground::new();
    let content = [b'x'; 70_000];
    // Each row contains the value of `x-amz-content-sha256`, the chunk extension, the trailers, and whether the gateway
    // must accept the body. A body with the checksum of other content must be rejected.
    for (kind, extension, trailers, is_right) in [
        (
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
            format!(";chunk-signature={}", "a".repeat(64)),
            String::new(),
            true,
        ),
        ("STREAMING-UNSIGNED-PAYLOAD-TRAILER", String::new(), trailer(&content), true),
        ("STREAMING-UNSIGNED-PAYLOAD-TRAILER", String::new(), trailer(b"other"), false),
        (
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
            format!(";chunk-signature={}", "b".repeat(64)),
            format!("{}x-amz-trailer-signature:{}\r\n", trailer(&content), "c".repeat(64)),
            true,
        ),
    ] {
        let mut body = Vec::new();
        for chunk in content.chunks(65_536).chain([&b""[..]]) {
            write!(body, "{:x}{extension}\r\n", chunk.len()).unwrap();
            body.extend_from_slice(chunk);
            body.extend_from_slice(if chunk.is_empty() { b"" } else { b"\r\n" });
        }
        write!(body, "{trailers}\r\n").unwrap();
        let announced = if trailers.is_empty() { "" } else { "x-amz-trailer: x-amz-checksum-crc32\r\n" };
        let headers = format!(
            "x-amz-content-sha256: {kind}\r\ncontent-encoding: aws-chunked\r\n{announced}\
             x-amz-decoded-content-length: {}\r\nauthorization: AWS4-HMAC-SHA256 Credential=a/b/c/s3/aws4_request\r\n",
            content.len()
        );
        let answer = ground.ask("PUT /bucket/k", &headers, &body);
        if is_right {
            assert_status(&answer, 200);
            assert!(ground.file("k") == content, "{kind}");
            let got = ground.ask("HEAD /bucket/k", "", b"").to_lowercase();
            assert!(!got.contains("aws-chunked") && got.contains("content-length: 70000"), "{got}");
            assert_status(&ground.ask("DELETE /bucket/k", "", b""), 204);
        } else {
            assert_status(&answer, 400);
            assert!(answer.contains("BadDigest"), "{answer}");
        }
    }
    let headers =
        "x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\nx-amz-decoded-content-length: 5\r\n";
    for (body, code) in [
        ("5\r\nhello\r\n", "IncompleteBody"),
        ("5\r\nhel\r\n0\r\n\r\n", "IncompleteBody"),
        ("4\r\nhell\r\n0\r\n\r\n", "IncompleteBody"),
    ] {
        let answer = ground.ask("PUT /bucket/k", headers, body.as_bytes());
        assert_status(&answer, 400);
        assert!(answer.contains(code), "{body:?}: {answer}");
    }
}

/// Returns the trailer with the CRC-32 of `content`.
fn trailer(content: &[u8]) -> String {
    let checksum = fordway_store::Checksum::of(fordway_store::ChecksumAlgorithm::Crc32, content);
    format!("x-amz-checksum-crc32:{}\r\n", checksum.to_base64())
}

#[test]
fn many_requests_use_one_connection() {
    let ground = Ground::new();
    let mut stream = ground.connect();
    for round in 0..50 {
        let body = vec![round; 200_000];
        write!(stream, "PUT /bucket/k HTTP/1.1\r\nhost: node\r\ncontent-length: {}\r\n\r\n", body.len())
            .unwrap();
        stream.write_all(&body).unwrap();
        assert!(head(&mut stream).starts_with("HTTP/1.1 200 "));
        write!(stream, "GET /bucket/k HTTP/1.1\r\nhost: node\r\n\r\n").unwrap();
        assert!(head(&mut stream).starts_with("HTTP/1.1 200 "));
        let mut got = vec![0; body.len()];
        stream.read_exact(&mut got).unwrap();
        assert!(got == body);
    }
}

/// Reads the head of a response, including the empty line at its end.
fn head(stream: &mut UnixStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// When the gateway is stopped, it finishes the requests in progress and closes idle connections.
#[test]
fn stopping_waits_for_an_upload_and_not_for_the_idle() {
    let ground = Ground::new();
    let mut idle = ground.connect();
    write!(idle, "HEAD /bucket/none HTTP/1.1\r\nhost: node\r\n\r\n").unwrap();
    assert!(head(&mut idle).starts_with("HTTP/1.1 404 "));
    let mut upload = ground.connect();
    write!(
        upload,
        "PUT /bucket/k HTTP/1.1\r\nhost: node\r\nexpect: 100-continue\r\ncontent-length: 10\r\n\r\n"
    )
    .unwrap();
    let told = head(&mut upload);
    assert!(told.starts_with("HTTP/1.1 100 "), "{told}");
    let Ground { dir, gateway } = ground;
    let (ended, has_ended) = channel();
    thread::spawn(move || {
        drop(gateway);
        ended.send(())
    });
    assert_eq!(idle.read(&mut [0]).unwrap(), 0, "the idle one is closed");
    has_ended.recv_timeout(Duration::from_millis(100)).expect_err("an upload is in progress");
    upload.write_all(b"0123456789").unwrap();
    let answer = head(&mut upload);
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("connection: close"), "{answer}");
    has_ended.recv_timeout(Duration::from_secs(30)).unwrap();
    assert_eq!(std::fs::read(dir.path().join("root/bucket/k")).unwrap(), b"0123456789");
}

#[test]
fn nonsense_is_refused_in_the_words_of_http() {
    let ground = Ground::new();
    let mut stream = ground.connect();
    stream.write_all(b"NONSENSE\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_status(&answer, 400);
    // Neither HTTP requests nor frames of the node protocol start with a lower-case letter.
    let mut stream = ground.connect();
    stream.write_all(b"get / http/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // The gateway closes or resets the connection.
    let is_reset = |error: io::Error| error.kind() == io::ErrorKind::ConnectionReset;
    assert!(stream.read_to_end(&mut answer).map_or_else(is_reset, |count| count == 0));
    assert!(answer.is_empty());
}

mod users {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    const ALICE: u32 = 54_321;
    const BOB: u32 = 54_322;

    fn is_root() -> bool {
        fordway_needs::root("be several users")
    }

    /// Runs `act` in a thread that has `uid` as its real, effective and saved user ID.
    fn as_user<T: Send>(uid: u32, act: impl FnOnce() -> T + Send) -> T {
        let become_user = || {
            let (user, group) = (Some(rustix::fs::Uid::from_raw(uid)), Some(rustix::fs::Gid::from_raw(uid)));
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_gid(group, group, group).unwrap();
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            act()
        };
        thread::scope(|scope| scope.spawn(become_user).join().unwrap())
    }

    fn allow(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn the_kernel_decides_who_reads_what() {
        if !is_root() {
            return;
        }
        let ground = Ground::new();
        let bucket = ground.dir.path().join("root/bucket");
        allow(ground.dir.path(), 0o755);
        allow(&bucket, 0o1777);
        // The object is large enough to be read on separate threads if it is not in the page cache.
        let large = vec![b'A'; 3 << 20];
        as_user(ALICE, || {
            assert_status(&ground.ask("PUT /bucket/hers", "", &large), 200);
            assert_status(&ground.ask("PUT /bucket/shown", "", b"shown"), 200);
        });
        assert_eq!(std::fs::metadata(bucket.join("hers")).unwrap().uid(), ALICE);
        allow(&bucket.join("hers"), 0o600);
        let hers = as_user(ALICE, || ground.ask("GET /bucket/hers", "", b""));
        assert_status(&hers, 200);
        assert!(hers.len() > large.len());
        as_user(BOB, || {
            for request in [
                "GET /bucket/hers",
                "GET /bucket/hers?X-Amz-Signature=1",
                "DELETE /bucket/hers",
                "PUT /bucket/hers",
            ] {
                let refused =
                    ground.ask(request, "authorization: AWS4-HMAC-SHA256 Credential=54321/x\r\n", b"");
                assert_status(&refused, 403);
                assert!(refused.contains("AccessDenied"), "{request}: {refused}");
            }
            let copied = ground.ask("PUT /bucket/copy", "x-amz-copy-source: bucket/hers\r\n", b"");
            assert_status(&copied, 403);
            assert!(ground.ask("GET /bucket/shown", "", b"").ends_with("\r\n\r\nshown"));
            assert_status(&ground.ask("PUT /bucket/his", "", b"his"), 200);
        });
        assert_eq!(std::fs::metadata(bucket.join("his")).unwrap().uid(), BOB);
        assert!(std::fs::read(bucket.join("hers")).unwrap() == large);
    }

    /// Returns the body of a form that uploads `content` as `key`.
    fn form(key: &str, content: &str) -> String {
        format!(
            "--b\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\n{key}\r\n\
             --b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n{content}\r\n--b--\r\n"
        )
    }

    const FORM: &str = "content-type: multipart/form-data; boundary=b\r\n";

    /// On a shared file system too, each request has the permissions of its sender, and not of an earlier sender.
    #[test]
    fn the_kernel_decides_on_a_shared_file_system_too() {
        if !is_root() {
            return;
        }
        let ground = Ground::on_shared_file_system();
        let bucket = ground.dir.path().join("root/bucket");
        allow(ground.dir.path(), 0o755);
        allow(&bucket, 0o1777);
        let owner = |key: &str| std::fs::metadata(bucket.join(key)).unwrap().uid();
        let large = vec![b'A'; 3 << 20];
        // Root sends the first requests, so that threads with root's permissions exist if any thread is kept.
        assert_status(&ground.ask("PUT /bucket/roots", "", b"secret"), 200);
        assert_status(&ground.ask("GET /bucket/roots", "", b""), 200);
        allow(&bucket.join("roots"), 0o600);
        for (uid, other, name) in [(ALICE, "roots", "hers"), (BOB, "hers", "his")] {
            as_user(uid, || {
                let put = |key: &str, body: &[u8]| ground.ask(&format!("PUT /bucket/{key}"), "", body);
                for request in ["GET", "PUT", "DELETE"] {
                    assert_status(&ground.ask(&format!("{request} /bucket/{other}"), "", b""), 403);
                }
                let ranges = "range: bytes=0-0,2-2\r\n";
                assert_status(&ground.ask(&format!("GET /bucket/{other}"), ranges, b""), 403);
                let source = format!("x-amz-copy-source: bucket/{other}\r\n");
                assert_status(&ground.ask("PUT /bucket/copy", &source, b""), 403);
                assert_status(&put(name, &large), 200);
                assert_status(&put(&format!("{name}-dir/k"), b"k"), 200);
                let form = form(&format!("{name}-form"), "sent");
                assert_status(&ground.ask("POST /bucket", FORM, form.as_bytes()), 204);
                assert!(ground.ask(&format!("GET /bucket/{name}"), "", b"").len() > large.len());
            });
            for key in
                [name.to_owned(), format!("{name}-dir"), format!("{name}-dir/k"), format!("{name}-form")]
            {
                assert_eq!(owner(&key), uid, "{key}");
            }
            allow(&bucket.join(name), 0o600);
            allow(&bucket.join(format!("{name}-dir")), 0o700);
        }
        as_user(BOB, || {
            assert_status(&ground.ask("GET /bucket/hers-dir/k", "", b""), 403);
            assert_status(&ground.ask("GET /bucket?list-type=2&prefix=hers-dir%2F", "", b""), 403);
        });
        assert!(std::fs::read(bucket.join("hers")).unwrap() == large);
        assert!(!bucket.join("copy").exists());
    }

    /// Connections over both protocols count towards one limit.
    #[test]
    fn a_user_with_many_connections_leaves_room_for_others() {
        if !is_root() {
            return;
        }
        let ground = Ground::with(|config| {
            (config.connections_max, config.user_connections_max) = (6, 3);
        });
        allow(ground.dir.path(), 0o755);
        allow(&ground.dir.path().join("root/bucket"), 0o1777);
        let held = as_user(ALICE, || {
            let store = NodeStore::new(NodeAddress::Unix(ground.socket()));
            assert_eq!(store.list_buckets().unwrap().len(), 1);
            let mut silent = [ground.connect(), ground.connect()];
            for stream in &mut silent {
                stream
                    .write_all(b"PUT /bucket/k HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\nhalf")
                    .unwrap();
            }
            let refused = NodeStore::new(NodeAddress::Unix(ground.socket())).list_buckets().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unavailable);
            assert!(refused.to_string().contains("you have 3 connections open"), "{refused}");
            (store, silent)
        });
        as_user(BOB, || {
            for _ in 0..10 {
                assert_status(&ground.ask("PUT /bucket/his", "", b"his"), 200);
            }
        });
        let stats = NodeStore::new(NodeAddress::Unix(ground.socket())).stats().unwrap();
        assert!(stats.contains(&("connections_refused".to_owned(), 1)), "{stats:?}");
        drop(held);
    }

    #[test]
    fn who_is_not_allowed_is_told_so() {
        if !is_root() {
            return;
        }
        // The gateway runs as an ordinary user, and another user sends requests.
        let dir = tempfile::tempdir().unwrap();
        let (root, socket) = (dir.path().join("root"), dir.path().join("socket"));
        std::fs::create_dir_all(root.join("bucket")).unwrap();
        for path in [dir.path(), &root, &root.join("bucket")] {
            allow(path, 0o777);
        }
        let process = GatewayOf { uid: ALICE, root: &root, socket: &socket };
        process.run(|| {
            let call = || ask(UnixStream::connect(&socket).unwrap(), "PUT /bucket/k", "", b"content");
            let refused = as_user(BOB, call);
            assert_status(&refused, 403);
            assert!(refused.contains("AccessDenied") && refused.contains("--allow-uid 54322"), "{refused}");
            assert_status(&as_user(ALICE, call), 200);
        });
        assert_eq!(std::fs::metadata(root.join("bucket/k")).unwrap().uid(), ALICE);
    }

    /// A gateway whose threads all run as an ordinary user.
    struct GatewayOf<'p> {
        uid: u32,
        root: &'p Path,
        socket: &'p Path,
    }

    impl GatewayOf<'_> {
        fn run(&self, act: impl FnOnce()) {
            let gateway = as_user(self.uid, || {
                let config = NodeGatewayConfig { mode: Some(0o666), ..NodeGatewayConfig::new(self.socket) };
                // The threads that the gateway starts inherit the user.
                NodeGateway::bind(Arc::new(opens(self.root.to_owned())), config).unwrap().spawn().unwrap()
            });
            act();
            drop(gateway);
        }
    }
}

/// Repeats a GET until the response has this status, and returns the response.
fn ask_until(ground: &Ground, status: u16) -> String {
    for _ in 0..1000 {
        let answer = ground.ask("GET /bucket/k", "", b"");
        if answer.starts_with(&format!("HTTP/1.1 {status}")) {
            return answer;
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("no response has the status {status}");
}

#[test]
fn a_user_with_too_many_requests_is_told_to_slow_down() {
    let ground = Ground::with(|config| config.user_limits.requests_max = 1);
    assert_status(&ground.ask("PUT /bucket/k", "", b"content"), 200);
    let mut upload = start_upload(&ground);
    let refused = ask_until(&ground, 503);
    assert!(refused.contains("<Code>SlowDown</Code>") && refused.contains("retry-after: 1\r\n"), "{refused}");
    let store = NodeStore::new(NodeAddress::Unix(ground.socket()));
    assert_eq!(store.list_buckets().unwrap_err().kind(), ErrorKind::Unavailable, "the node protocol too");
    let stats = |name: &str| {
        store.stats().map(|all| all.iter().find(|(found, _)| found == name).map(|(_, count)| *count))
    };
    upload.write_all(b"half").unwrap();
    assert!(head(&mut upload).starts_with("HTTP/1.1 200"));
    ask_until(&ground, 200);
    assert_eq!(store.list_buckets().unwrap().len(), 1);
    assert!(stats("requests_limited").unwrap() >= Some(1));
}

/// The limit also applies to operations that are not on single objects.
#[test]
fn lists_count_towards_the_limit_of_a_user() {
    let ground = Ground::with(|config| config.user_limits.requests_max = 1);
    let mut upload = start_upload(&ground);
    for target in ["GET /bucket?list-type=2", "HEAD /bucket", "GET /bucket?versions", "DELETE /bucket/none"] {
        assert_status(&ground.ask(target, "", b""), 503);
    }
    upload.write_all(b"half").unwrap();
    assert!(head(&mut upload).starts_with("HTTP/1.1 200"));
    ask_until(&ground, 404);
    assert_status(&ground.ask("GET /bucket?list-type=2", "", b""), 200);
}

/// A request that expects another owner of the bucket has no effect, regardless of its operation.
#[test]
fn no_operation_ignores_the_expected_owner() {
    let ground = Ground::new();
    let owner = fordway_sys::user_id();
    assert_status(&ground.ask("PUT /bucket/k", "x-amz-tagging: a=b\r\n", b"hello"), 200);
    assert_status(&ground.ask("PUT /empty", "", b""), 200);
    let begun = ground.ask("POST /bucket/parts?uploads", "", b"");
    let upload = begun.split("<UploadId>").nth(1).unwrap().split("</UploadId>").next().unwrap();
    let tags = "<Tagging><TagSet><Tag><Key>c</Key><Value>d</Value></Tag></TagSet></Tagging>";
    let versions = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    let delete = "<Delete><Object><Key>k</Key></Object></Delete>";
    let calls = [
        ("GET /bucket?list-type=2", ""),
        ("GET /bucket", ""),
        ("HEAD /bucket", ""),
        ("GET /bucket?location", ""),
        ("GET /bucket?versioning", ""),
        ("GET /bucket?versions", ""),
        ("GET /bucket?uploads", ""),
        ("GET /bucket?acl", ""),
        ("GET /bucket/k", ""),
        ("HEAD /bucket/k", ""),
        ("GET /bucket/k?tagging", ""),
        ("GET /bucket/k?acl", ""),
        ("GET /bucket/k?attributes", ""),
        ("GET /bucket/parts?uploadId=UPLOAD", ""),
        ("PUT /bucket/k", "other"),
        ("PUT /bucket/k?tagging", tags),
        ("PUT /bucket?versioning", versions),
        ("POST /bucket?delete", delete),
        ("DELETE /bucket/k?tagging", ""),
        ("DELETE /bucket/k", ""),
        ("DELETE /bucket/parts?uploadId=UPLOAD", ""),
        ("DELETE /empty", ""),
    ];
    let ask = |(target, body): (&str, &str), owner: &str| {
        let sum = fordway_store::Checksum::of(fordway_store::ChecksumAlgorithm::Crc32, body.as_bytes());
        let mut headers = format!("x-amz-expected-bucket-owner: {owner}\r\n");
        if target.contains("delete") {
            headers += &format!("x-amz-checksum-crc32: {}\r\n", sum.to_base64());
        }
        if target.contains("attributes") {
            headers += "x-amz-object-attributes: ETag\r\n";
        }
        ground.ask(&target.replace("UPLOAD", upload), &headers, body.as_bytes())
    };
    for call in calls {
        let refused = ask(call, "somebody-else");
        assert!(refused.starts_with("HTTP/1.1 403 "), "{call:?}: {refused}");
    }
    assert_eq!(ground.file("k"), b"hello");
    assert!(ground.ask("GET /bucket/k?tagging", "", b"").contains("<Key>a</Key>"));
    assert!(!ground.ask("GET /bucket?versioning", "", b"").contains("Enabled"));
    assert!(ground.ask("GET /bucket?uploads", "", b"").contains(upload));
    for call in calls {
        let answer = ask(call, &owner.to_string());
        assert!(!answer.starts_with("HTTP/1.1 403 "), "{call:?}: {answer}");
    }
    assert!(!ground.dir.path().join("root/empty").exists());
}

/// Headers in a presigned URL apply, as on AWS. Headers in any other URL are refused.
#[test]
fn headers_in_a_presigned_url_apply() {
    let ground = Ground::new();
    let presigned = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=x%2F20010101%2Fx%2Fs3%2Faws4_request\
                     &X-Amz-Date=20010101T000000Z&X-Amz-Expires=1&X-Amz-SignedHeaders=host&X-Amz-Signature=0";
    let put = format!("PUT /bucket/k?x-amz-meta-a=b%20c&{presigned}&X-Amz-Tagging=t%3Du");
    assert_status(&ground.ask(&put, "", b"new"), 200);
    let described = ground.ask("HEAD /bucket/k", "", b"").to_lowercase();
    assert!(described.contains("x-amz-meta-a: b c\r\n"), "{described}");
    assert!(described.contains("x-amz-tagging-count: 1\r\n"), "{described}");
    let owner = format!("DELETE /bucket/k?{presigned}&x-amz-expected-bucket-owner=somebody-else");
    assert_status(&ground.ask(&owner, "", b""), 403);
    assert_status(&ground.ask("PUT /bucket/k?x-amz-meta-a=b", "", b"newer"), 501);
    assert_status(&ground.ask(&put, "x-amz-meta-a: d\r\n", b"newer"), 501);
    let in_chunks =
        format!("PUT /bucket/k?{presigned}&x-amz-content-sha256=STREAMING-UNSIGNED-PAYLOAD-TRAILER");
    let length = "x-amz-decoded-content-length: 5\r\n";
    assert_status(&ground.ask(&in_chunks, length, b"5\r\nhello\r\n0\r\n\r\n"), 200);
    assert_eq!(ground.file("k"), b"hello");
}

/// Starts an upload, waits until the gateway has admitted it, and sends half of its body. Without the wait, the gateway
/// could admit a later request first.
fn start_upload(ground: &Ground) -> UnixStream {
    let mut upload = ground.connect();
    let start = "PUT /bucket/u HTTP/1.1\r\nhost: h\r\ncontent-length: 8\r\nexpect: 100-continue\r\n\r\n";
    upload.write_all(start.as_bytes()).unwrap();
    assert!(head(&mut upload).starts_with("HTTP/1.1 100"));
    upload.write_all(b"half").unwrap();
    upload
}

/// If a condition cannot be checked because the object is unreadable, the object is not deleted.
#[test]
fn a_delete_whose_condition_cannot_be_checked_deletes_nothing() {
    let ground = Ground::new();
    assert_status(&ground.ask("PUT /bucket/k", "x-amz-meta-a: b\r\n", b"hello"), 200);
    let file = std::fs::File::open(ground.dir.path().join("root/bucket/k")).unwrap();
    fordway_sys::set_xattr(&file, c"user.fordway", b"damaged").unwrap();
    let refused = ground.ask("DELETE /bucket/k", "x-amz-if-match-size: 4\r\n", b"");
    assert_status(&refused, 500);
    assert_eq!(ground.file("k"), b"hello");
    fordway_sys::remove_xattr(&file, c"user.fordway").unwrap();
    assert_status(&ground.ask("DELETE /bucket/k", "x-amz-if-match-size: 4\r\n", b""), 412);
    assert_status(&ground.ask("DELETE /bucket/k", "x-amz-if-match-size: 5\r\n", b""), 204);
    assert_status(&ground.ask("DELETE /bucket/k", "x-amz-if-match-size: 5\r\n", b""), 204);
}

/// A bucket for which one of the requested settings cannot be stored is not created. A repeated request would otherwise
/// report that the bucket exists, and the client would assume that the bucket has object lock.
#[test]
fn a_bucket_without_its_settings_is_not_created() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let opened = root.clone();
    let open = move || -> fordway_store::Result<Arc<dyn Store>> {
        let config = PosixConfig { if_match: false, ..PosixConfig::default() };
        Ok(Arc::new(PosixStore::open(&opened, config)?))
    };
    let config = NodeGatewayConfig::new(dir.path().join("socket"));
    let gateway = NodeGateway::bind(Arc::new(open), config).unwrap().spawn().unwrap();
    let ground = Ground { dir, gateway };
    for _ in 0..2 {
        let answer = ground.ask("PUT /locked", "x-amz-bucket-object-lock-enabled: true\r\n", b"");
        assert_status(&answer, 501);
        assert!(!root.join("locked").exists());
    }
    assert_status(&ground.ask("PUT /locked", "", b""), 200);
}
