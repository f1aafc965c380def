//! Tests objects that are not in the page cache. The gateway must not read such objects on the threads that serve its
//! clients, and must send the correct bytes. Content that the gateway gets from another server is also tested.

use std::fs::File;
use std::sync::Arc;

use fordway_client::s3::{S3Config, S3Credentials, S3Store};
use fordway_posix::{PosixConfig, PosixStore};
use fordway_serve::{AccessKeyPair, Gateway, GatewayConfig, Users};
use fordway_store::{Bucket, ByteRange, ErrorKind, GetOptions, Key, Objects, PutOptions};
use fordway_sys::fault::{self, FaultInjectionPlan};
use fordway_sys::without_waiting;

#[test]
fn what_has_to_be_waited_for_arrives_whole() {
    // Do not use the temporary directory, because it may be in memory.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let store = Arc::new(PosixStore::open(dir.path(), PosixConfig::default()).unwrap());
    let identity = AccessKeyPair::generate().unwrap();
    let credentials = S3Credentials::keys(&identity.access_key, &identity.secret_key, "the test");
    let config = GatewayConfig::new("127.0.0.1:0".parse().unwrap());
    let gateway = Gateway::bind(Users::one(identity, store), config).unwrap().spawn().unwrap();
    let endpoint = format!("http://{}", gateway.local_addr());
    let client = S3Store::new(S3Config::new(endpoint, "us-east-1", credentials)).unwrap();

    // The second gateway uses the first gateway as its store. The second gateway starts to respond while content is
    // still arriving from the first gateway.
    let identity = AccessKeyPair::generate().unwrap();
    let credentials = S3Credentials::keys(&identity.access_key, &identity.secret_key, "the test");
    let config = GatewayConfig::new("127.0.0.1:0".parse().unwrap());
    let second =
        Gateway::bind(Users::one(identity, Arc::new(client.clone())), config).unwrap().spawn().unwrap();
    let endpoint = format!("http://{}", second.local_addr());
    let behind = S3Store::new(S3Config::new(endpoint, "us-east-1", credentials)).unwrap();

    let bucket = Bucket::new("bucket").unwrap();
    client.create_bucket(&bucket).unwrap();
    let mut cold = 0;
    for size in [1, 4096, 65_536, 65_537, 8 << 20, (8 << 20) + 1] {
        let key = Key::new(format!("k{size}")).unwrap();
        let body: Vec<u8> = (0..size).map(|i| (i / 5) as u8).collect();
        client.put(&bucket, &key, &body, &PutOptions::default()).unwrap();
        let file = File::open(dir.path().join("bucket").join(key.as_str())).unwrap();
        file.sync_all().unwrap();
        fordway_sys::drop_cached(&file).unwrap();
        cold += usize::from(!fordway_sys::is_cached(&file, 0).unwrap());
        let whole = client.get(&bucket, &key, &GetOptions::default()).unwrap().content.into_vec().unwrap();
        assert!(whole == body, "{size}");
        fordway_sys::drop_cached(&file).unwrap();
        let last = client.get(&bucket, &key, &GetOptions::range(ByteRange::Last(5000))).unwrap();
        assert!(last.content.into_vec().unwrap() == body[body.len().saturating_sub(5000)..], "{size}");
        let far = behind.get(&bucket, &key, &GetOptions::default()).unwrap().content.into_vec().unwrap();
        assert!(far == body, "{size}");
    }
    if cold == 0 {
        fordway_needs::skip("this file system keeps what it is told to forget");
    }
}

/// Returns the result of a read, and the system calls that the read made.
fn calls_of<T>(read: impl FnOnce() -> T) -> (T, Vec<&'static str>) {
    fault::run(FaultInjectionPlan::default(), read)
}

#[test]
fn names_that_are_in_memory_cost_no_call_more() {
    let dir = tempfile::tempdir().unwrap();
    let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
    let (bucket, key, none) = (Bucket::new("bucket").unwrap(), Key::new("a/k"), Key::new("a/none"));
    let (key, none, options) = (key.unwrap(), none.unwrap(), GetOptions::default());
    store.create_bucket(&bucket).unwrap();
    store.put(&bucket, &key, b"hello", &PutOptions::default()).unwrap();
    let get = || store.get(&bucket, &key, &options).map(|object| object.info.size);
    let head = || store.head(&bucket, &key, &options).map(|info| info.size);
    for _ in 0..100 {
        let (asked, asking) = calls_of(|| without_waiting(get));
        if asked.is_none() {
            fordway_needs::skip("this file system does not look names up in memory alone");
            return;
        }
        let (waited, waiting) = calls_of(get);
        assert_eq!((asked.unwrap().unwrap(), waited.unwrap()), (5, 5));
        assert!(asking.len() <= 4 && waiting.len() <= 4, "{asking:?} {waiting:?}");
        let (asked, asking) = calls_of(|| without_waiting(head));
        assert_eq!(asked.unwrap().unwrap(), 5);
        assert!(asking.len() <= 3, "{asking:?}");
    }
    let missing = without_waiting(|| store.get(&bucket, &none, &options).map(drop));
    assert!(missing.is_none(), "nobody has requested it yet, so it is not in memory");
    let error = store.get(&bucket, &none, &options).map(drop).expect_err("it does not exist");
    assert_eq!(error.kind(), ErrorKind::NoSuchKey);
}
