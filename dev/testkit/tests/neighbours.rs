//! Checks that a client's request does not delay the requests of other clients, even if one thread serves all clients.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fordway_client::s3::{S3Config, S3Credentials, S3Store};
use fordway_posix::{PosixConfig, PosixStore};
use fordway_serve::{AccessKeyPair, Gateway, GatewayConfig, RunningGateway, Users};
use fordway_store::{
    Bucket, ExpectedContent, GetOptions, Key, MultipartUploadOperations, Objects, PartOptions, PutOptions,
    UploadId,
};
use fordway_wire::sigv4::{PresignedRequest, SigningKey};

const PARTS: u16 = 1_500;
const UPLOADS: usize = 1_500;

struct Served {
    _dir: tempfile::TempDir,
    gateway: RunningGateway,
    identity: AccessKeyPair,
    client: S3Store,
    bucket: Bucket,
    key: Key,
    upload: UploadId,
}

fn serve() -> Served {
    let dir = tempfile::tempdir().unwrap();
    let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
    let (bucket, key) = (Bucket::new("bucket").unwrap(), Key::new("k").unwrap());
    store.create_bucket(&bucket).unwrap();
    store.put(&bucket, &key, b"x", &PutOptions::default()).unwrap();
    let upload = store.create_upload(&bucket, &key, &PutOptions::default()).unwrap();
    for number in 1..=PARTS {
        let mut part = store.part_writer(&bucket, &key, &upload, number, &PartOptions::default()).unwrap();
        part.write(b"x").unwrap();
        part.commit(&ExpectedContent::default()).unwrap();
    }
    for _ in 0..UPLOADS {
        store.create_upload(&bucket, &key, &PutOptions::default()).unwrap();
    }
    let identity = AccessKeyPair::generate().unwrap();
    let mut config = GatewayConfig::new("127.0.0.1:0".parse().unwrap());
    config.threads = 1;
    let users = Users::one(identity.clone(), Arc::new(store));
    let gateway = Gateway::bind(users, config).unwrap().spawn().unwrap();
    let keys = S3Credentials::keys(&identity.access_key, &identity.secret_key, "the test");
    let client =
        S3Store::new(S3Config::new(format!("http://{}", gateway.local_addr()), "us-east-1", keys)).unwrap();
    Served { client, identity, gateway, _dir: dir, bucket, key, upload }
}

/// Sends ten GETs, each while a listing is in progress. Returns how many of them complete before the listing.
fn gets_that_overtake(served: &Served, path: &str, parameters: &[(&str, &str)]) -> u32 {
    let overtakes = |_: &u32| {
        let mut listing = served.ask(path, parameters);
        // After this pause, the listing has started but is not finished: a listing of 1,000 parts takes about 10 ms.
        std::thread::sleep(Duration::from_millis(1));
        let object = served.client.get(&served.bucket, &served.key, &GetOptions::default()).unwrap();
        object.content.into_vec().unwrap();
        listing.set_nonblocking(true).unwrap();
        let is_first = listing.peek(&mut [0]).is_err();
        listing.set_nonblocking(false).unwrap();
        let mut answer = [0; 12];
        listing.read_exact(&mut answer).unwrap();
        assert_eq!(answer, *b"HTTP/1.1 200");
        is_first
    };
    (0..10).filter(overtakes).count() as u32
}

impl Served {
    /// Opens a connection, and sends a request for a listing on it.
    fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> TcpStream {
        let (now, address) = (SystemTime::now(), self.gateway.local_addr());
        let host = address.to_string();
        let request = PresignedRequest { method: "GET", host: &host, path, parameters };
        let key = SigningKey::new(&self.identity.secret_key, now, "us-east-1", "s3");
        let query = key.presigned_query(&self.identity.access_key, None, now, 600, &request);
        let mut stream = TcpStream::connect(address).unwrap();
        let head = format!("GET {path}?{query} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream
    }
}

#[test]
fn listings_hold_up_nobody() {
    let served = serve();
    let of_parts = [("max-parts", "1000"), ("uploadId", served.upload.as_str())];
    let overtaken = gets_that_overtake(&served, "/bucket/k", &of_parts);
    assert!(overtaken >= 5, "{overtaken} of 10 GETs overtook a listing of parts");
    let overtaken = gets_that_overtake(&served, "/bucket", &[("uploads", "")]);
    assert!(overtaken >= 5, "{overtaken} of 10 GETs overtook a listing of uploads");
}
