//! Checks how much memory the gateway uses for many simultaneous clients, on a real directory. This is the only test in
//! its file, because memory is measured for the whole process. The sizes are smaller than the documented sizes, which
//! `bench/gateway-memory` measures.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use fordway_client::s3::{S3Config, S3Credentials, S3Store};
use fordway_posix::{PosixConfig, PosixStore};
use fordway_serve::{AccessKeyPair, Gateway, GatewayConfig, RunningGateway, Users};
use fordway_store::{Bucket, ETagPolicy, Key, Objects};
use fordway_sys::usage_of;

const CLIENTS: usize = 16;
const OBJECT_BYTES: usize = 24 << 20;
const IDLE: usize = 500;

struct Served {
    gateway: RunningGateway,
    client: S3Store,
    _dir: tempfile::TempDir,
}

fn serve() -> Served {
    let dir = tempfile::tempdir().unwrap();
    let config = PosixConfig { etag_policy: ETagPolicy::Fast, ..PosixConfig::default() };
    let store = PosixStore::open(dir.path(), config).unwrap();
    store.create_bucket(&Bucket::new("bucket").unwrap()).unwrap();
    let identity = AccessKeyPair::generate().unwrap();
    let credentials = S3Credentials::keys(&identity.access_key, &identity.secret_key, "the test");
    let config = GatewayConfig::new("127.0.0.1:0".parse().unwrap());
    let gateway = Gateway::bind(Users::one(identity, Arc::new(store)), config).unwrap().spawn().unwrap();
    let endpoint = format!("http://{}", gateway.local_addr());
    let client = S3Store::new(S3Config::new(endpoint, "us-east-1", credentials)).unwrap();
    Served { gateway, client, _dir: dir }
}

fn resident_mib() -> u64 {
    usage_of(std::process::id()).unwrap().rss_bytes >> 20
}

impl Served {
    /// Opens a connection and sends the head of a presigned request, without a body.
    fn ask(&self, method: &'static str, key: &str, body_bytes: usize) -> TcpStream {
        let (bucket, key) = (Bucket::new("bucket").unwrap(), Key::new(key).unwrap());
        let url = self.client.presign(method, &bucket, &key, 600, SystemTime::now()).unwrap();
        let address = self.gateway.local_addr();
        let target = url.strip_prefix(&format!("http://{address}")).unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        let head =
            format!("{method} {target} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {body_bytes}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream
    }
}

fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

#[test]
fn memory_is_bounded_however_many_clients_there_are() {
    let served = serve();
    let before_mib = resident_mib();
    let piece = vec![5u8; 1 << 20];
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (served, piece) = (&served, &piece);
            scope.spawn(move || {
                let mut stream = served.ask("PUT", &format!("k{number}"), OBJECT_BYTES);
                (0..OBJECT_BYTES >> 20).for_each(|_| stream.write_all(piece).unwrap());
                assert!(read_head(&mut stream).starts_with("HTTP/1.1 200"));
            });
        }
        for number in 0..CLIENTS {
            let served = &served;
            scope.spawn(move || {
                // After this pause, the upload of the same key may be in progress, complete, or not yet started.
                thread::sleep(Duration::from_millis(300));
                let mut stream = served.ask("GET", &format!("k{number}"), 0);
                let mut head = read_head(&mut stream);
                while head.starts_with("HTTP/1.1 404") {
                    thread::sleep(Duration::from_millis(50));
                    stream = served.ask("GET", &format!("k{number}"), 0);
                    head = read_head(&mut stream);
                }
                assert!(head.starts_with("HTTP/1.1 200"), "{head}");
                let mut buffer = vec![0; 64 << 10];
                (0..OBJECT_BYTES / buffer.len()).for_each(|_| stream.read_exact(&mut buffer).unwrap());
            });
        }
    });
    let grown_mib = resident_mib().saturating_sub(before_mib);
    assert!(grown_mib < 60, "{grown_mib} MiB for {} MiB", (CLIENTS * OBJECT_BYTES) >> 20);

    // Some clients become idle after a response, and others do not read the responses to their requests.
    let mut kept = Vec::new();
    for _ in 0..IDLE {
        let mut stream = served.ask("HEAD", "k0", 0);
        assert!(read_head(&mut stream).starts_with("HTTP/1.1 200"));
        kept.push(stream);
    }
    kept.extend((0..CLIENTS).map(|number| served.ask("GET", &format!("k{number}"), 0)));
    thread::sleep(Duration::from_millis(300));
    let grown_mib = resident_mib().saturating_sub(before_mib);
    assert!(grown_mib < 64, "{grown_mib} MiB with {} quiet connections", kept.len());
    for unread in &mut kept[IDLE..] {
        assert!(read_head(unread).starts_with("HTTP/1.1 200"));
    }
}
