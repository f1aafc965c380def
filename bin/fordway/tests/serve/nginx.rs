//! Tests nginx as a load balancer and cache in front of two gateways, with the configuration in `contrib/nginx`.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fordway_store::{
    BucketDocumentKind, BucketDocumentOperations, ErrorKind, GetOptions, Key, ListQuery, LockConfiguration,
    Metadata, ObjectLockOperations, ObjectVersionOperations, Objects, PutOptions, Retention, RetentionMode,
    VersioningState,
};

use crate::process::{KEYS, Process, bucket, client, place};
use crate::{ask, wait_for, write_credentials};

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
    wait_for(|| TcpStream::connect(&address).is_ok());
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

/// Sends a presigned GET of `key` through nginx, and returns the response. `headers` is a part of the request's head.
fn get_presigned(address: &str, (user, key): (&str, &str), headers: &str) -> String {
    let store = client(&format!("http://{address}"), (user, "secret"));
    let key = Key::new(key).unwrap();
    let url = store.presign("GET", &bucket(), &key, 600, SystemTime::now()).unwrap();
    let target = url.strip_prefix(&format!("http://{address}")).unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {target} HTTP/1.1\r\nhost: {address}\r\n{headers}connection: close\r\n\r\n").unwrap();
    // A response whose body is delayed by a limit is returned without the body.
    stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response);
    String::from_utf8(response).unwrap()
}

/// A gateway returns 503 to a user who exceeds a limit. The gateway remains available to other users.
#[test]
fn one_users_limit_does_not_stop_other_users() {
    let Some(program) = fordway_needs::program("nginx") else { return };
    let dir = place();
    std::fs::write(dir.path().join("root/bucket/k"), "content").unwrap();
    let users = dir.path().join("users.toml");
    write_credentials(&users, &["noisy", "quiet"]);
    let limited = std::fs::read_to_string(&users).unwrap().replacen("uid=", "rate='1000'\nuid=", 1);
    std::fs::write(&users, limited).unwrap();
    let options = ["--credentials", users.to_str().unwrap()];
    let gateways = [Process::start(dir.path(), &options), Process::start(dir.path(), &options)];
    let (_nginx, address) = start(&program, dir.path(), &gateways);
    // At 1,000 bytes per second, these uploads never end.
    for gateway in &gateways {
        let store = gateway.client_of("noisy", "secret");
        std::thread::spawn(move || {
            let _ = store.put(&bucket(), &Key::new("u").unwrap(), &[1; 200_000], &PutOptions::default());
        });
    }
    let status = |user: &str| get_presigned(&address, (user, "k"), "").chars().take(12).collect::<String>();
    wait_for(|| status("noisy") == "HTTP/1.1 503");
    for _ in 0..4 {
        assert_eq!(status("noisy"), "HTTP/1.1 503");
        assert_eq!(status("quiet"), "HTTP/1.1 200");
    }
}

/// The CORS headers of a response belong to the page that sent the request.
#[test]
fn the_cache_has_no_response_for_the_page_of_another_site() {
    let Some(program) = fordway_needs::program("nginx") else { return };
    let dir = place();
    std::fs::write(dir.path().join("root/bucket/k"), "content").unwrap();
    let users = dir.path().join("users.toml");
    write_credentials(&users, &["one"]);
    let options = ["--credentials", users.to_str().unwrap()];
    let gateways = [Process::start(dir.path(), &options), Process::start(dir.path(), &options)];
    let rules = "<CORSConfiguration><CORSRule><AllowedMethod>GET</AllowedMethod>\
                 <AllowedOrigin>https://a.example</AllowedOrigin><AllowedOrigin>https://c.example</AllowedOrigin>\
                 </CORSRule></CORSConfiguration>";
    let store = gateways[0].client_of("one", "secret");
    store.set_document(&bucket(), &BucketDocumentKind::known("cors"), rules.as_bytes()).unwrap();
    let (_nginx, address) = start(&program, dir.path(), &gateways);
    let get = |headers: &str| get_presigned(&address, ("one", "k"), headers).to_lowercase();
    for _ in 0..2 {
        let own = get("");
        assert!(own.starts_with("http/1.1 200") && !own.contains("access-control-allow-origin"), "{own}");
        for site in ["https://a.example", "https://c.example"] {
            let response = get(&format!("origin: {site}\r\n"));
            assert!(response.contains(&format!("access-control-allow-origin: {site}\r\n")), "{response}");
        }
    }
}

/// The lock of an object can change without its content, its version and its time, and some users may not read it.
#[test]
fn the_cache_returns_the_present_lock_to_users_who_may_read_it() {
    let Some(program) = fordway_needs::program("nginx") else { return };
    let dir = place();
    let users = dir.path().join("users.toml");
    write_credentials(&users, &["one", "two"]);
    let options = ["--credentials", users.to_str().unwrap()];
    let gateways = [Process::start(dir.path(), &options), Process::start(dir.path(), &options)];
    let (store, key) = (gateways[0].client_of("one", "secret"), Key::new("k").unwrap());
    store.set_versioning(&bucket(), VersioningState::Enabled).unwrap();
    store.set_lock_configuration(&bucket(), &LockConfiguration::default()).unwrap();
    store.put(&bucket(), &key, b"content", &PutOptions::default()).unwrap();
    let policy = r#"{"Version": "2012-10-17", "Statement": {"Effect": "Deny", "Principal": {"AWS": "two"},
        "Action": ["s3:GetObjectRetention", "s3:GetObjectLegalHold"], "Resource": "arn:aws:s3:::bucket/*"}}"#;
    store.set_document(&bucket(), &BucketDocumentKind::known("policy"), policy.as_bytes()).unwrap();
    let (_nginx, address) = start(&program, dir.path(), &gateways);
    let get = |user: &str| get_presigned(&address, (user, "k"), "").to_lowercase();
    for is_on in [true, false] {
        store.set_legal_hold(&bucket(), &key, None, is_on).unwrap();
        let hold = format!("x-amz-object-lock-legal-hold: {}\r\n", if is_on { "on" } else { "off" });
        for cache in ["miss", "hit"] {
            let response = get("one");
            assert!(response.contains(&hold), "{response}");
            assert!(response.contains(&format!("x-cache: {cache}\r\n")), "{response}");
        }
        let response = get("two");
        assert!(response.starts_with("http/1.1 200") && !response.contains("object-lock"), "{response}");
    }
    let until_ms = (SystemTime::now() + Duration::from_secs(3600)).duration_since(UNIX_EPOCH).unwrap();
    let retention = Retention { mode: RetentionMode::Governance, until_ms: until_ms.as_millis() as u64 };
    store.set_retention(&bucket(), &key, None, Some(retention), false).unwrap();
    let response = get("one");
    assert!(response.contains("x-amz-object-lock-mode: governance\r\n"), "{response}");
    assert!(!get("two").contains("object-lock"));
}
