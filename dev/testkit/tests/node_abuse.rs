//! Tests a node gateway with clients that are hostile, and with clients that are killed.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fordway_client::node::{NodeAddress, NodeKeyPair, NodeStore};
use fordway_posix::{PRIVATE_DIR, PosixConfig, PosixStore};
use fordway_serve::AccessKeyPair;
use fordway_serve::node::{NodeGateway, NodeGatewayConfig, NodeTcpConfig, RunningNodeGateway};
use fordway_store::{
    Bucket, ByteRange, DeleteOptions, ErrorKind, ExpectedContent, GetOptions, Key, ListQuery,
    ObjectBatchOperations, ObjectContent, Objects, PutOptions, PutResult, Store,
};
use fordway_sys::{SocketBlockingMode, receive_with_descriptor};
use fordway_testkit::model;
use fordway_wire::node::{
    CLIENT_HELLO_BYTES, CommitResponse, FrameBuffer, GATEWAY_HELLO_BYTES, HEADER_BYTES, NONCE_BYTES,
    NodeClientHello, NodeGatewayHello, NodeResponse, ReadField, Request, ResponseFlags, StartWriteResponse,
    VERSION, take_reply,
};
use proptest::prelude::*;

struct Ground {
    dir: tempfile::TempDir,
    gateway: RunningNodeGateway,
}

impl Ground {
    fn new() -> Self {
        Ground::with(|config| config)
    }

    fn with(config: impl FnOnce(NodeGatewayConfig) -> NodeGatewayConfig) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("bucket")).unwrap();
        let open = move || Ok(Arc::new(PosixStore::open(&root, PosixConfig::default())?) as Arc<dyn Store>);
        let config = config(NodeGatewayConfig::new(dir.path().join("socket")));
        let gateway = NodeGateway::bind(Arc::new(open), config).unwrap().spawn().unwrap();
        Ground { dir, gateway }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    fn store(&self) -> NodeStore {
        NodeStore::new(NodeAddress::Unix(self.socket()))
    }

    /// Checks that the gateway still serves a put, a get and a delete.
    fn assert_works(&self) {
        let store = self.store();
        store.put(&bucket(), &key("works"), b"well", &PutOptions::default()).unwrap();
        assert_eq!(get(&store, "works"), b"well");
        store.delete(&bucket(), &key("works"), &DeleteOptions::default()).unwrap();
    }

    /// Returns the files below the bucket, except the lock table.
    fn files(&self) -> Vec<PathBuf> {
        fn below(dir: &Path) -> Vec<PathBuf> {
            let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
            entries.flat_map(|path| if path.is_dir() { below(&path) } else { vec![path] }).collect()
        }
        let all = below(&self.dir.path().join("root/bucket"));
        all.into_iter().filter(|path| !path.ends_with(Path::new(PRIVATE_DIR).join("locks"))).collect()
    }
}

/// A client that sends messages composed by the test.
struct Raw {
    socket: UnixStream,
    inbox: FrameBuffer,
    descriptor: Option<OwnedFd>,
}

impl Raw {
    fn connect(ground: &Ground) -> Self {
        let mut raw = Raw::silent(ground);
        raw.socket
            .write_all(&NodeClientHello { version: VERSION, takes_descriptors: true }.to_bytes())
            .unwrap();
        raw.socket.read_exact(&mut [0; GATEWAY_HELLO_BYTES]).unwrap();
        raw
    }

    fn silent(ground: &Ground) -> Self {
        let socket = UnixStream::connect(ground.socket()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Raw { socket, inbox: FrameBuffer::default(), descriptor: None }
    }

    fn send(&mut self, request: &Request<'_>, body: &[u8]) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        request.put(&mut bytes, 1, body.len());
        bytes.extend_from_slice(body);
        self.socket.write_all(&bytes)
    }

    fn reply<T: ReadField>(&mut self) -> fordway_store::Result<T> {
        loop {
            if let Some(header) = self.inbox.next_header().unwrap() {
                let answer = take_reply(&self.inbox.frame(&header).unwrap());
                self.inbox.consume(header.frame_bytes());
                return answer;
            }
            let (count, passed) =
                receive_with_descriptor(&self.socket, self.inbox.room(), SocketBlockingMode::Yes).unwrap();
            assert!(count > 0, "the gateway closed the connection");
            self.descriptor = passed.and_then(Result::ok).or(self.descriptor.take());
            self.inbox.filled(count);
        }
    }

    /// Starts an object. Returns the file to which the content must be written.
    fn start(&mut self, name: &str) -> File {
        let options = PutOptions::default();
        let (bucket, key) = (bucket(), key(name));
        let request = Request::Start {
            bucket: std::borrow::Cow::Borrowed(&bucket),
            key: std::borrow::Cow::Borrowed(&key),
            options: std::borrow::Cow::Borrowed(&options),
        };
        self.send(&request, &[]).unwrap();
        assert!(self.reply::<StartWriteResponse>().unwrap().has_file);
        File::from(self.descriptor.take().unwrap())
    }

    fn commit(&mut self, filled: u64) -> fordway_store::Result<PutResult> {
        let expected = ExpectedContent::default();
        let request = Request::Commit {
            expected: std::borrow::Cow::Borrowed(&expected),
            filled: Some(filled),
            wants_spare: false,
        };
        self.send(&request, &[]).unwrap();
        self.reply().map(|done: CommitResponse| done.made)
    }

    /// Returns whether the gateway closes the connection within 20 s.
    fn is_closed(&mut self) -> bool {
        let mut rest = [0; 1 << 16];
        loop {
            match self.socket.read(&mut rest) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }
}

fn bucket() -> Bucket {
    Bucket::new("bucket").unwrap()
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn get(store: &dyn Store, name: &str) -> Vec<u8> {
    store.get(&bucket(), &key(name), &GetOptions::default()).unwrap().content.into_vec().unwrap()
}

fn listed(store: &dyn Store) -> usize {
    store.list(&bucket(), &ListQuery::default()).unwrap().entries.len()
}

#[test]
fn what_is_no_greeting_ends_the_connection() {
    let ground = Ground::new();
    for greeting in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64], &[0xff; 8]] {
        let mut raw = Raw::silent(&ground);
        raw.socket.write_all(greeting).unwrap();
        assert!(raw.is_closed());
    }
    let mut raw = Raw::silent(&ground);
    raw.socket.write_all(&NodeClientHello { version: 99, takes_descriptors: true }.to_bytes()).unwrap();
    let mut said = Vec::new();
    raw.socket.read_to_end(&mut said).unwrap();
    assert!(String::from_utf8_lossy(&said).contains("version 5 of the protocol, the client 99"));
    ground.assert_works();
}

/// TCP clients that are not authenticated, and that send a byte from time to time, use no connection of the gateway's
/// user. They are disconnected when the time for the handshake is over.
#[test]
fn tcp_clients_without_authentication_leave_connections_for_others() {
    const STALL: Duration = Duration::from_secs(3);
    let keys = AccessKeyPair::generate().unwrap();
    let secret = NodeKeyPair { access_key: keys.access_key.clone(), secret_key: keys.secret_key.clone() };
    let ground = Ground::with(|config| NodeGatewayConfig {
        tcp: Some(NodeTcpConfig { listen: "127.0.0.1:0".parse().unwrap(), keys, may_be_root: true }),
        connections_max: 16,
        user_connections_max: 2,
        stall_timeout: STALL,
        ..config
    });
    let address = ground.gateway.tcp_addr().unwrap();
    // The greeting, and the beginning of a long request, which continues for longer than the test.
    let mut beginning = NodeClientHello { version: VERSION, takes_descriptors: false }.to_bytes().to_vec();
    let (access_key, nonce, proof) = ("k".repeat(4000).into(), [0; NONCE_BYTES], [0; 32]);
    Request::Authenticate { access_key, nonce, proof }.put(&mut beginning, 1, 0);
    beginning.truncate(100);
    let start = Instant::now();
    let mut strangers: Vec<_> = (0..32).map(|_| TcpStream::connect(address).unwrap()).collect();
    ground.assert_works();
    for stranger in &mut strangers {
        // The gateway may already have refused the client.
        let _ = stranger.write_all(&beginning);
        stranger.set_nonblocking(true).unwrap();
    }
    let is_open = |mut stranger: &TcpStream| {
        let _ = stranger.write(b"k");
        let mut said = [0; 1024];
        loop {
            match stranger.read(&mut said) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
            }
        }
    };
    while !strangers.is_empty() {
        strangers.retain(|stranger| is_open(stranger));
        ground.assert_works();
        assert!(start.elapsed() < 20 * STALL, "{} clients remain", strangers.len());
        std::thread::sleep(STALL / 30);
    }
    assert!(start.elapsed() >= STALL, "clients have some time for the handshake");
    let store = NodeStore::new(NodeAddress::Tcp(address.to_string(), secret));
    store.put(&bucket(), &key("by-tcp"), b"proved", &PutOptions::default()).unwrap();
    assert_eq!(get(&store, "by-tcp"), b"proved");
}

#[test]
fn a_message_that_is_too_long_ends_the_connection_and_takes_no_memory() {
    let ground = Ground::new();
    let mut raw = Raw::connect(&ground);
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    raw.socket.write_all(&header).unwrap();
    let error = raw.reply::<()>().unwrap_err();
    assert!(error.to_string().contains("4294967295 bytes are more than"), "{error}");
    assert!(raw.is_closed());
    ground.assert_works();
}

#[test]
fn an_unknown_operation_is_answered_and_the_next_one_served() {
    let ground = Ground::new();
    let mut raw = Raw::connect(&ground);
    let mut bytes = Vec::new();
    Request::ListBuckets {}.put(&mut bytes, 1, 0);
    bytes[12] = 200;
    raw.socket.write_all(&bytes).unwrap();
    assert_eq!(raw.reply::<()>().unwrap_err().kind(), ErrorKind::InvalidArgument);
    raw.send(&Request::ListBuckets {}, &[]).unwrap();
    assert_eq!(raw.reply::<Vec<fordway_store::BucketInfo>>().unwrap().len(), 1);
}

#[test]
fn a_client_that_dies_between_the_halves_leaves_nothing() {
    let ground = Ground::new();
    for written in [0, 1 << 20] {
        let mut raw = Raw::connect(&ground);
        let file = raw.start("dir/k");
        file.write_all_at(&vec![1; written], 0).unwrap();
        drop(raw);
        let mut raw = Raw::connect(&ground);
        raw.start("dir/k");
        raw.send(&Request::Append {}, &[0; 1000]).unwrap();
        // The connection ends in the middle of a message.
        raw.socket.write_all(&[1, 2, 3]).unwrap();
    }
    ground.assert_works();
    let deadline = Instant::now() + Duration::from_secs(10);
    while !ground.files().is_empty() {
        assert!(Instant::now() < deadline, "{:?}", ground.files());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(listed(&ground.store()), 0);
}

#[test]
fn what_was_announced_is_held_against_the_file() {
    let ground = Ground::new();
    let mut raw = Raw::connect(&ground);
    raw.start("k").write_all_at(b"12345", 0).unwrap();
    assert_eq!(raw.commit(6).unwrap_err().kind(), ErrorKind::IncompleteBody);
    assert_eq!(listed(&ground.store()), 0);
    // A repeated commit is refused, because the object is already committed.
    raw.start("k").write_all_at(b"12345", 0).unwrap();
    raw.commit(5).unwrap();
    assert_eq!(raw.commit(5).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(get(&ground.store(), "k"), b"12345");
}

fn content(store: &NodeStore, bucket: &Bucket, name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    store.read(bucket, &key(name), &GetOptions::default(), &mut bytes).unwrap();
    bytes
}

/// After each large object, the gateway prepares a spare file for the next large object. The spare file must not be
/// used for an object for which it is not suitable.
#[test]
fn a_spare_file_takes_the_next_large_object_like_the_last() {
    let ground = Ground::new();
    let store = ground.store();
    fs::create_dir(ground.dir.path().join("root/other")).unwrap();
    let body = |seed: usize| (0..300_000 + seed).map(|at| (at * 7 + seed) as u8).collect::<Vec<_>>();
    let put = |seed: usize, bucket: &str, name: &str, options: &PutOptions| {
        let bucket = Bucket::new(bucket).unwrap();
        let made = store.put(&bucket, &key(name), &body(seed), options)?;
        let read = store.get(&bucket, &key(name), &GetOptions::default()).unwrap();
        assert_eq!(read.info.etag, made.etag);
        assert!(content(&store, &bucket, name) == body(seed), "{name}");
        Ok::<_, fordway_store::Error>((
            counter(&store, "requests_start"),
            counter(&store, "requests_put_spare"),
        ))
    };
    let (plain, create) = (
        PutOptions::default(),
        PutOptions { conditions: fordway_store::Conditions::create_only(), ..Default::default() },
    );
    let typed = fordway_store::Metadata { content_type: Some("text/x".to_owned()), ..Default::default() };
    let typed = PutOptions { metadata: typed.into(), ..Default::default() };
    for (seed, bucket, name, options, counted) in [
        (0, "bucket", "a", &plain, (1, 0)),
        (1, "bucket", "b", &plain, (1, 1)),
        (2, "bucket", "a", &plain, (1, 2)),
        (3, "bucket", "d/a", &plain, (2, 2)),
        (4, "bucket", "d/b", &plain, (2, 3)),
        (5, "other", "d/b", &plain, (3, 3)),
        (6, "other", "d/b", &typed, (4, 3)),
        (7, "other", "d/c", &typed, (4, 4)),
        (8, "other", "d/n", &create, (5, 4)),
        (9, "other", "d/m", &create, (5, 5)),
        // The client considers the spare file suitable, but the gateway does not: the key cannot be a path.
        (10, "other", "d/..", &create, (6, 6)),
    ] {
        assert_eq!(put(seed, bucket, name, options).unwrap(), counted, "{seed}");
    }
    assert_eq!(put(11, "other", "d/n2", &create).unwrap().0, 7, "what suits an odd key suits no other");
    let taken = put(12, "other", "d/n", &create).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::PreconditionFailed);
    let other = Bucket::new("other").unwrap();
    assert!(content(&store, &other, "d/n") == body(8), "the old object is kept");
}

/// When the spare file is used, the directory's name already refers to another directory.
#[test]
fn a_spare_file_stays_out_of_directories_that_were_moved() {
    let ground = Ground::new();
    let (store, root) = (ground.store(), ground.dir.path().join("root/bucket"));
    let put = |name: &str| store.put(&bucket(), &key(name), &[7; 200_000], &PutOptions::default()).unwrap();
    put("d/a");
    put("d/b");
    assert_eq!(counter(&store, "requests_put_spare"), 1);
    fs::rename(root.join("d"), root.join("moved")).unwrap();
    fs::create_dir(root.join("d")).unwrap();
    // The gateway keeps a directory open for 10 ms after looking it up.
    std::thread::sleep(Duration::from_millis(40));
    put("d/c");
    assert_eq!((counter(&store, "requests_put_spare"), counter(&store, "requests_start")), (2, 2));
    assert!(root.join("d/c").exists() && !root.join("moved/c").exists());
    fs::remove_dir_all(root.join("d")).unwrap();
    std::thread::sleep(Duration::from_millis(40));
    put("d/e");
    assert!(root.join("d/e").exists());
}

/// A client keeps the descriptor of a file that it wrote. If it later writes through this descriptor, the write counts
/// as a change through POSIX, and the gateway does not serve the object with the old ETag.
#[test]
fn a_descriptor_that_was_kept_fakes_no_version() {
    let ground = Ground::new();
    let mut raw = Raw::connect(&ground);
    let file = raw.start("k");
    file.write_all_at(&[1; 100], 0).unwrap();
    let made = raw.commit(100).unwrap();
    let head = || ground.store().head(&bucket(), &key("k"), &GetOptions::default()).unwrap();
    assert_eq!(head().etag, made.etag);
    std::thread::sleep(Duration::from_millis(20));
    file.write_all_at(&[2; 100], 0).unwrap();
    assert_ne!(head().etag, made.etag);
}

#[test]
fn descriptors_of_objects_are_for_reading_one_version_only() {
    let ground = Ground::new();
    let store = ground.store();
    store.put(&bucket(), &key("k"), &vec![1; 1 << 20], &PutOptions::default()).unwrap();
    let object = store.get(&bucket(), &key("k"), &GetOptions::default()).unwrap();
    let ObjectContent::File(region) = object.content else { panic!("{:?}", object.content) };
    store.put(&bucket(), &key("k"), &vec![2; 1 << 20], &PutOptions::default()).unwrap();
    let mut first = [0; 10];
    region.file.read_exact_at(&mut first, 0).unwrap();
    assert_eq!(first, [1; 10], "it remains the requested version");
    region.file.write_at(b"x", 0).expect_err("it is read-only");
    region.file.set_len(0).expect_err("it is read-only");
}

#[test]
fn a_client_that_never_reads_is_dropped() {
    let ground =
        Ground::with(|config| NodeGatewayConfig { stall_timeout: Duration::from_millis(300), ..config });
    ground.store().put(&bucket(), &key("k"), &vec![1; 60_000], &PutOptions::default()).unwrap();
    let mut raw = Raw::connect(&ground);
    let (bucket, key, options) = (bucket(), key("k"), GetOptions::default());
    let request = Request::Get {
        bucket: std::borrow::Cow::Borrowed(&bucket),
        key: std::borrow::Cow::Borrowed(&key),
        options: std::borrow::Cow::Borrowed(&options),
    };
    raw.socket.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    // If the gateway buffered all responses, they would need 60 GB of memory.
    let ended = (0..1_000_000).find_map(|_| raw.send(&request, &[]).err());
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
    let ended = ended.expect("the gateway closed the connection").kind();
    assert!([BrokenPipe, ConnectionReset].contains(&ended), "{ended}");
    ground.assert_works();
}

/// Announces a message of 16 MiB, and sends all of it except the last bytes.
fn send_most_of_a_long_message(raw: &mut Raw) {
    let mut bytes = Vec::new();
    Request::Append {}.put(&mut bytes, 1, 16 << 20);
    bytes.resize(16 << 20, 0);
    // A gateway without memory for the message does not read the whole message, so the write may time out.
    raw.socket.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let _ = raw.socket.write_all(&bytes);
}

fn counter(store: &NodeStore, name: &str) -> u64 {
    let counters = store.stats().unwrap();
    counters.into_iter().find(|(found, _)| found == name).map_or(0, |(_, count)| count)
}

#[test]
fn memory_for_long_messages_is_limited() {
    let ground = Ground::with(|config| NodeGatewayConfig {
        memory_bytes_max: 20 << 20,
        stall_timeout: Duration::from_secs(2),
        ..config
    });
    let store = ground.store();
    let mut first = Raw::connect(&ground);
    send_most_of_a_long_message(&mut first);
    assert!((16 << 20..20 << 20).contains(&counter(&store, "memory_bytes")));
    // A second long message waits for the first, which is never complete. Short messages do not need this memory.
    let mut second = Raw::connect(&ground);
    send_most_of_a_long_message(&mut second);
    ground.assert_works();
    drop(first);
    let deadline = Instant::now() + Duration::from_secs(20);
    while counter(&store, "memory_bytes") != 0 {
        assert!(Instant::now() < deadline, "the memory is not given back");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(second.is_closed());

    let ground = Ground::with(|config| NodeGatewayConfig { connection_bytes_max: 1 << 20, ..config });
    let mut raw = Raw::connect(&ground);
    send_most_of_a_long_message(&mut raw);
    let error = raw.reply::<()>().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::EntityTooLarge);
    assert!(error.to_string().contains("raise --connection-memory"), "{error}");
    assert!(raw.is_closed());
    ground.assert_works();
}

#[test]
fn requests_that_ask_for_too_much_at_once_are_refused() {
    let ground = Ground::new();
    let mut raw = Raw::connect(&ground);
    let (bucket, keys) = (bucket(), vec![key("k"); 1025]);
    let (bucket, keys) = (std::borrow::Cow::Borrowed(&bucket), std::borrow::Cow::from(&keys));
    raw.send(&Request::HeadMany { bucket: bucket.clone(), keys }, &[]).unwrap();
    assert_eq!(raw.reply::<()>().unwrap_err().kind(), ErrorKind::InvalidArgument);
    let (key, options) = (std::borrow::Cow::Owned(key("k")), std::borrow::Cow::Owned(GetOptions::default()));
    let ranges = vec![ByteRange::Last(9 << 20)].into();
    raw.send(&Request::ReadRanges { bucket, key, ranges, options }, &[]).unwrap();
    assert_eq!(raw.reply::<()>().unwrap_err().kind(), ErrorKind::InvalidArgument);
    ground.assert_works();
}

#[test]
fn with_one_request_at_a_time_all_clients_are_served() {
    let ground = Ground::with(|config| NodeGatewayConfig { requests_max: Some(1), ..config });
    std::thread::scope(|scope| {
        for client in 0..8u8 {
            let store = ground.store();
            scope.spawn(move || {
                for _ in 0..50 {
                    let name = format!("k{client}");
                    store.put(&bucket(), &key(&name), &[client; 100], &PutOptions::default()).unwrap();
                    assert_eq!(get(&store, &name), [client; 100]);
                }
            });
        }
    });
    assert_eq!(counter(&ground.store(), "requests_put"), 400);
}

/// After a refused commit, the client sends no further message about its write, so the gateway must keep no state of
/// the write.
#[test]
fn a_refused_commit_ends_the_write() {
    let ground = Ground::with(|config| NodeGatewayConfig {
        requests_max: Some(1),
        stall_timeout: Duration::from_millis(300),
        ..config
    });
    let store = ground.store();
    for body in [b"first", b"again"] {
        // The second put creates the lock table.
        store.put(&bucket(), &key("held"), body, &PutOptions::default()).unwrap();
    }
    let mut raw = Raw::connect(&ground);
    raw.start("k").write_all_at(b"content", 0).unwrap();
    let locks = ground.dir.path().join("root/bucket").join(PRIVATE_DIR).join("locks");
    let locks = File::options().write(true).open(locks).unwrap();
    fordway_sys::lock_file(&locks, Duration::from_secs(5)).unwrap();
    std::thread::scope(|scope| {
        // This put waits for the lock, and is meanwhile the only request in progress.
        let waiting = scope.spawn(|| store.put(&bucket(), &key("held"), b"later", &PutOptions::default()));
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(raw.commit(7).unwrap_err().kind(), ErrorKind::Unavailable);
        fordway_sys::unlock_file(&locks);
        waiting.join().unwrap().unwrap();
    });
    assert_eq!(raw.commit(7).unwrap_err().kind(), ErrorKind::InvalidArgument, "there is no write to commit");
    raw.start("k").write_all_at(b"content", 0).unwrap();
    raw.commit(7).unwrap();
    assert_eq!(get(&store, "k"), b"content");
}

/// The response to a batch consists of several messages. The results are in the order of the requests, for objects of
/// any size.
#[test]
fn batches_come_back_in_order() {
    let ground = Ground::new();
    let store = ground.store();
    let size = |at: usize| match at % 10 {
        0 => 0,
        3 => 100_000,
        _ => 5000 + at,
    };
    let keys: Vec<Key> = (0..300).map(|at| key(&format!("k{at}"))).collect();
    for (at, key) in keys.iter().enumerate().filter(|(at, _)| at % 10 != 7) {
        store.put(&bucket(), key, &vec![at as u8; size(at)], &PutOptions::default()).unwrap();
    }
    for (at, got) in store.get_many(&bucket(), &keys).into_iter().enumerate() {
        match at % 10 {
            7 => assert_eq!(got.unwrap_err().kind(), ErrorKind::NoSuchKey),
            _ => assert!(got.unwrap() == vec![at as u8; size(at)], "object {at}"),
        }
    }
    assert!(counter(&store, "descriptors_out") >= 30, "large ones do not go through the socket");
}

/// A gateway that returns fewer or more objects than requested causes an error in the client.
#[test]
fn a_batch_that_is_not_answered_whole_is_an_error() {
    for (answered, flags) in
        [(1u32, ResponseFlags::default()), (2, ResponseFlags::MORE), (3, ResponseFlags::default())]
    {
        let dir = tempfile::tempdir().unwrap();
        let listener = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
        let gateway = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            socket.read_exact(&mut [0; CLIENT_HELLO_BYTES]).unwrap();
            let welcome = NodeGatewayHello {
                version: VERSION,
                wants_proof: false,
                is_refusal: false,
                nonce: [0; NONCE_BYTES],
            };
            let mut bytes = welcome.to_bytes().to_vec();
            let results: Vec<fordway_store::Result<Option<u32>>> =
                (0..answered).map(|_| Ok(Some(0))).collect();
            NodeResponse { id: 1, flags, answer: Ok(&results), body_bytes: 0 }.put(&mut bytes);
            socket.write_all(&bytes).unwrap();
            // Keep the connection open until the client closes it.
            let _ = socket.read_to_end(&mut Vec::new());
        });
        let store = NodeStore::new(NodeAddress::Unix(dir.path().join("socket")));
        let got = store.get_many(&bucket(), &[key("a"), key("b")]);
        let told = got.into_iter().next_back().unwrap().unwrap_err();
        assert_eq!(told.kind(), ErrorKind::BadResponse, "{answered}: {told}");
        drop(store);
        gateway.join().unwrap();
    }
}

#[test]
fn a_pause_within_a_message_ends_the_connection_and_one_between_messages_does_not() {
    let ground =
        Ground::with(|config| NodeGatewayConfig { stall_timeout: Duration::from_millis(200), ..config });
    let (mut idle, mut stalled) = (Raw::connect(&ground), Raw::connect(&ground));
    stalled.socket.write_all(&[9; 5]).unwrap();
    assert!(stalled.is_closed());
    std::thread::sleep(Duration::from_millis(500));
    idle.send(&Request::ListBuckets {}, &[]).unwrap();
    assert_eq!(idle.reply::<Vec<fordway_store::BucketInfo>>().unwrap().len(), 1);
}

#[test]
fn a_thousand_connections_are_served_and_one_more_is_refused() {
    let ground = Ground::with(|config| NodeGatewayConfig { connections_max: 1000, ..config });
    let mut all: Vec<Raw> = (0..1000).map(|_| Raw::connect(&ground)).collect();
    for raw in &mut all {
        raw.send(&Request::ListBuckets {}, &[]).unwrap();
    }
    for raw in &mut all {
        assert_eq!(raw.reply::<Vec<fordway_store::BucketInfo>>().unwrap().len(), 1);
    }
    let error = ground.store().list_buckets().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("1000 connections open, its maximum"), "{error}");
    drop(all);
    let deadline = Instant::now() + Duration::from_secs(20);
    while ground.store().list_buckets().is_err() {
        assert!(Instant::now() < deadline, "no connection is free again");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_root_that_vanishes_is_told() {
    let ground = Ground::new();
    let store = ground.store();
    store.put(&bucket(), &key("k"), b"1", &PutOptions::default()).unwrap();
    fs::remove_dir_all(ground.dir.path().join("root")).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    let put = store.put(&bucket(), &key("k"), b"2", &PutOptions::default());
    assert_eq!(put.unwrap_err().kind(), ErrorKind::NoSuchBucket);
    let get = store.get(&bucket(), &key("k"), &GetOptions::default());
    assert_eq!(get.unwrap_err().kind(), ErrorKind::NoSuchBucket);
    assert_eq!(store.list_buckets().unwrap(), []);
}

/// When a gateway is stopped, it first finishes the operations that clients have started.
#[test]
fn stopping_waits_for_what_was_started() {
    let ground = Ground::new();
    let mut raw = Raw::connect(&ground);
    let mut idle = Raw::connect(&ground);
    let file = raw.start("k");
    ground.gateway.stop_handle().trigger();
    assert!(idle.is_closed(), "an idle client is released immediately");
    assert!(UnixStream::connect(ground.socket()).is_err(), "nobody new is served");
    file.write_all_at(b"in time", 0).unwrap();
    raw.commit(7).unwrap();
    assert!(raw.is_closed());
    assert_eq!(fs::read(ground.dir.path().join("root/bucket/k")).unwrap(), b"in time");
}

proptest! {
    #![proptest_config(model::config(200))]

    /// After random bytes, alone or after a valid frame header, the gateway closes the connection or responds, and
    /// continues to work.
    #[test]
    fn random_bytes_do_no_harm(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..400),
        code in any::<u8>(),
        is_frame in any::<bool>(),
    ) {
        static GROUND: std::sync::OnceLock<Ground> = std::sync::OnceLock::new();
        let ground = GROUND.get_or_init(Ground::new);
        let mut raw = Raw::connect(ground);
        if is_frame {
            let mut header = [0; HEADER_BYTES];
            header[..4].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
            header[12] = code;
            bytes.splice(0..0, header);
        }
        // The gateway may close the connection before it has read everything.
        let _ = raw.socket.write_all(&bytes);
        raw.socket.shutdown(std::net::Shutdown::Write).unwrap();
        prop_assert!(raw.is_closed());
        ground.assert_works();
    }
}
