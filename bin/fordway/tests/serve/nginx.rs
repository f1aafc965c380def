//! Tests nginx as a load balancer and cache in front of two gateways, with the configuration in `contrib/nginx`.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use fordway_store::{
    ErrorKind, GetOptions, Key, ListQuery, Metadata, ObjectVersionOperations, Objects, PutOptions,
    VersioningState,
};

use crate::process::{KEYS, Process, bucket, client, place};
use crate::{ask, wait_for};

/// A running nginx, which is killed when this value is dropped.
struct Nginx(Child);

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts nginx with the shipped configuration, except for addresses and paths.
fn start(program: &Path, dir: &Path, gateways: &[Process; 2]) -> (Nginx, String) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/nginx/fordway.conf");
    let mut text = std::fs::read_to_string(shipped).unwrap();
    let cache = dir.join("cache").display().to_string();
    for (from, to) in [
        ("127.0.0.1:8000", format!("127.0.0.1:{port}")),
        ("127.0.0.1:9000", gateways[0].endpoint.replace("http://", "")),
        ("127.0.0.1:9001", gateways[1].endpoint.replace("http://", "")),
        ("/var/cache/nginx/fordway", cache),
    ] {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, &to);
    }
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {}/{kind};\n", dir.display()))
        .concat();
    let around = format!(
        "daemon off; master_process off; pid {0}/pid; error_log stderr; events {{}}\n\
         http {{ access_log off;\n{temporary}{text}\n}}",
        dir.display()
    );
    std::fs::write(dir.join("nginx.conf"), around).unwrap();
    let mut command = Command::new(program);
    command.arg("-c").arg(dir.join("nginx.conf")).arg("-p").arg(dir);
    let nginx =
        Nginx(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let address = format!("127.0.0.1:{port}");
    wait_for(|| std::net::TcpStream::connect(&address).is_ok());
    (nginx, address)
}

#[test]
fn a_balancer_and_cache_changes_nothing_but_where_bytes_come_from() {
    let Some(program) = fordway_needs::program("nginx") else { return };
    let dir = place();
    let gateways = [Process::start(dir.path(), &[]), Process::start(dir.path(), &[])];
    let (_nginx, address) = start(&program, dir.path(), &gateways);
    let store = client(&format!("http://{address}"), KEYS);
    let put = |key: &str, body: &[u8]| {
        store.put(&bucket(), &Key::new(key).unwrap(), body, &PutOptions::default()).unwrap();
    };
    let get = |key: &str| {
        let object = store.get(&bucket(), &Key::new(key).unwrap(), &GetOptions::default())?;
        object.content.into_vec()
    };
    for key in ["plain", "dir/a b+ü", "g//h", "tilde~(1)"] {
        put(key, key.as_bytes());
        for _ in 0..3 {
            assert_eq!(get(key).unwrap(), key.as_bytes(), "{key}");
        }
    }
    put("empty", b"");
    assert_eq!(get("empty").unwrap(), b"");
    let large = vec![7; 3_000_000];
    put("large", &large);
    assert_eq!(get("large").unwrap(), large);
    let range = GetOptions { range: Some(fordway_store::ByteRange::Last(3)), ..Default::default() };
    let last = store.get(&bucket(), &Key::new("plain").unwrap(), &range).unwrap();
    assert_eq!(last.content.into_vec().unwrap(), b"ain");
    assert_eq!(store.list(&bucket(), &ListQuery::default()).unwrap().entries.len(), 6);
    assert_eq!(get("none").err().map(|error| error.kind()), Some(ErrorKind::NoSuchKey));

    assert!(std::fs::read_dir(dir.path().join("cache")).unwrap().count() > 0, "nothing was cached");
    // Cached content is served only to clients that the gateway admits, and only while it matches the object.
    let unsigned = ask(&address, "/bucket/plain");
    assert!(unsigned.starts_with("HTTP/1.1 403") && unsigned.contains("AccessDenied"), "{unsigned}");
    let stranger = client(&format!("http://{address}"), (KEYS.0, "wrong"));
    let refused = stranger.get(&bucket(), &Key::new("plain").unwrap(), &GetOptions::default());
    assert_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::SignatureDoesNotMatch));
    put("plain", b"new");
    assert_eq!(get("plain").unwrap(), b"new");

    let (key, options) = (Key::new("plain").unwrap(), GetOptions::default());
    let described = |run: &str| {
        let metadata = Metadata { content_type: Some(format!("text/{run}")), ..Metadata::default() };
        let options = PutOptions { metadata: metadata.into(), ..PutOptions::default() };
        store.put(&bucket(), &key, b"new", &options).unwrap();
    };
    for run in ["first", "second"] {
        described(run);
        for _ in 0..2 {
            let found = store.get(&bucket(), &key, &options).unwrap().info.metadata;
            assert_eq!(found.content_type, Some(format!("text/{run}")), "the cache has other headers");
        }
    }
    store.set_versioning(&bucket(), VersioningState::Enabled).unwrap();
    for _ in 0..2 {
        let made = store.put(&bucket(), &key, b"new", &PutOptions::default()).unwrap();
        for _ in 0..2 {
            let found = store.get(&bucket(), &key, &options).unwrap().info.version;
            assert!(found.is_some() && found == made.version, "the cache has another version");
        }
    }

    let [first, second] = gateways;
    first.kill();
    for _ in 0..5 {
        assert_eq!(get("plain").unwrap(), b"new", "the other gateway goes on");
    }
    drop(second);
}
