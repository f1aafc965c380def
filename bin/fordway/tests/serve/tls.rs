//! Tests TLS and the replacement of the certificate with a gateway in a separate process.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use fordway_client::s3::{S3Config, S3Credentials, S3Store};
use fordway_http::TlsRoots;
use fordway_store::{Bucket, GetOptions, Key, Objects, PutOptions};

pub(super) const KEYS: [&str; 2] = ["me", "my-secret-my-secret"];

pub(super) struct Place(tempfile::TempDir);

impl Place {
    pub(super) fn new() -> Self {
        let place = Place(tempfile::tempdir().unwrap());
        std::fs::create_dir_all(place.path("root/bucket")).unwrap();
        place
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(super) fn write_certificate(&self) {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        std::fs::write(self.path("cert"), made.cert.pem()).unwrap();
        std::fs::write(self.path("key"), made.signing_key.serialize_pem()).unwrap();
    }

    pub(super) fn command(&self) -> Command {
        self.command_at("127.0.0.1:0")
    }

    /// Returns the command for a gateway that listens on the address `listen`.
    fn command_at(&self, listen: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fordway"));
        command.arg("serve").arg(self.path("root")).args(["--listen", listen, "--tls-cert"]);
        command.arg(self.path("cert")).arg("--tls-key").arg(self.path("key"));
        command.env("AWS_ACCESS_KEY_ID", KEYS[0]).env("AWS_SECRET_ACCESS_KEY", KEYS[1]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

/// A gateway process, which is killed when this value is dropped.
pub(super) struct Gateway(pub(super) Child);

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Gateway {
    fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(name).arg(self.0.id().to_string()).status().unwrap();
        assert!(sent.success());
    }
}

/// Returns a client that trusts the certificate that is now in `file`.
fn client(endpoint: &str, file: &Path) -> S3Store {
    let keys = S3Credentials::keys(KEYS[0], KEYS[1], "the test");
    let mut config = S3Config::new(endpoint, "us-east-1", keys);
    config.tls_roots = TlsRoots::File(file.to_owned());
    config.max_retries = 0;
    S3Store::new(config).unwrap()
}

#[test]
fn a_hang_up_exchanges_the_certificate_and_a_broken_one_is_not_shown() {
    let place = Place::new();
    place.write_certificate();
    let mut gateway = Gateway(place.command().spawn().unwrap());
    let mut ready = String::new();
    BufReader::new(gateway.0.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let endpoint = ready.trim().rsplit_once(" at ").unwrap().1.to_owned();
    assert!(endpoint.starts_with("https://127.0.0.1:"), "{ready}");
    let (bucket, key) = (Bucket::new("bucket").unwrap(), Key::new("k").unwrap());
    let old = place.path("old");
    std::fs::copy(place.path("cert"), &old).unwrap();
    client(&endpoint, &old).put(&bucket, &key, b"hello", &PutOptions::default()).unwrap();
    let is_shown = |file: &Path| client(&endpoint, file).head(&bucket, &key, &GetOptions::default()).is_ok();

    std::fs::write(place.path("cert"), "no certificate").unwrap();
    gateway.signal("-HUP");
    let mut said = String::new();
    let mut errors = BufReader::new(gateway.0.stderr.take().unwrap());
    errors.read_line(&mut said).unwrap();
    assert!(said.contains("ERROR") && said.contains("is not a PEM file with a certificate"), "{said}");
    assert!(is_shown(&old));

    place.write_certificate();
    gateway.signal("-HUP");
    let start = Instant::now();
    while !is_shown(&place.path("cert")) {
        assert!(start.elapsed() < Duration::from_secs(10), "the new certificate is not shown");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!is_shown(&old));
    gateway.signal("-TERM");
    assert!(gateway.0.wait().unwrap().success());
}

#[test]
fn a_certificate_that_cannot_be_used_is_an_error_at_once() {
    let place = Place::new();
    let ran = place.command().output().unwrap();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(3), "{said}");
    assert!(said.contains(place.path("cert").to_str().unwrap()), "{said}");
    let ran = Command::new(env!("CARGO_BIN_EXE_fordway"))
        .args(["serve", "/", "--tls-cert", "/dev/null"])
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(2));
    assert!(String::from_utf8(ran.stderr).unwrap().contains("--tls-key"));
}

/// Runs `ls` over HTTP version `version` and returns the error message.
fn failure(place: &Place, endpoint: &str, version: &str) -> String {
    let ran = Command::new(env!("CARGO_BIN_EXE_fordway"))
        .args(["--endpoint", endpoint, "ls"])
        .env("AWS_ACCESS_KEY_ID", KEYS[0])
        .env("AWS_SECRET_ACCESS_KEY", KEYS[1])
        .env("AWS_REGION", "us-east-1")
        .env("AWS_CA_BUNDLE", place.path("cert"))
        .env("FORDWAY_HTTP_VERSION", version)
        .output()
        .unwrap();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(7), "{version}: {said}");
    said
}

#[test]
fn clients_explain_why_a_connection_with_tls_fails() {
    let place = Place::new();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut authority = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    std::fs::write(place.path("cert"), authority.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(place.path("key"), key.serialize_pem()).unwrap();
    let has_http3 = cfg!(feature = "http3");
    let mut command = place.command();
    command.args(has_http3.then_some("--http3"));
    let mut gateway = Gateway(command.spawn().unwrap());
    let mut ready = String::new();
    BufReader::new(gateway.0.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let endpoint = ready.trim().rsplit_once(" at ").unwrap().1;
    for version in ["1.1", "2"].into_iter().chain(has_http3.then_some("3")) {
        let said = failure(&place, endpoint, version);
        assert!(said.contains("CA:TRUE") && said.contains("CA:FALSE"), "{version}: {said}");
    }
    for version in ["1.1", "2"] {
        let said = failure(&place, &endpoint.replace("https", "http"), version);
        assert!(said.contains("is the address https://"), "{version}: {said}");
    }
}

/// Runs our load generator over each version of HTTP, including HTTP/3, against one gateway.
#[cfg(feature = "http3")]
#[test]
fn every_version_is_spoken_at_one_port() {
    let place = Place::new();
    place.write_certificate();
    std::fs::write(place.path("root/bucket/k"), vec![7; 300_000]).unwrap();
    let mut gateway = Gateway(place.command().arg("--http3").spawn().unwrap());
    let mut ready = String::new();
    BufReader::new(gateway.0.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let endpoint = ready.trim().rsplit_once(" at ").unwrap().1;
    let url = format!("{endpoint}/bucket/k");
    let load = Command::new(env!("CARGO_BIN_EXE_fordway"))
        .args(["--json", "bench", "rest", &url, "--http", "1.1,2,3", "--requests", "20", "--warm-up", "0s"])
        .args(["--streams", "4", "--sign", "--ca-bundle"])
        .arg(place.path("cert"))
        .env("AWS_ACCESS_KEY_ID", KEYS[0])
        .env("AWS_SECRET_ACCESS_KEY", KEYS[1])
        .env("AWS_REGION", "us-east-1")
        .output()
        .unwrap();
    let said = String::from_utf8(load.stderr).unwrap();
    assert!(load.status.success(), "{said}");
    let rows = String::from_utf8(load.stdout).unwrap();
    let rows: Vec<serde_json::Value> = rows.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
    assert_eq!(rows.len(), 3, "{rows:?}");
    for row in &rows {
        assert_eq!((row["operations"].as_u64(), row["errors"].as_u64()), (Some(20), Some(0)), "{row}");
        assert_eq!(row["bytes"], 20 * 300_000, "{row}");
    }
    gateway.signal("-TERM");
    assert!(gateway.0.wait().unwrap().success());
}

/// Reads a file at a presigned URL of a gateway over each HTTP version: as a whole, in ranges, with read-ahead, and
/// over several connections. Also uploads a file to a presigned URL.
#[cfg(feature = "http3")]
#[test]
fn files_at_urls_come_and_go_over_every_version() {
    let place = Place::new();
    place.write_certificate();
    let content: Vec<u8> = (0..5_000_000_u32).map(|at| (at / 7 % 251) as u8).collect();
    std::fs::write(place.path("root/bucket/k"), &content).unwrap();
    std::fs::write(place.path("ranges"), "4000000 1000\n7 100\n2000000 65536\n").unwrap();
    let mut gateway = Gateway(place.command().arg("--http3").spawn().unwrap());
    let mut ready = String::new();
    BufReader::new(gateway.0.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let endpoint = ready.trim().rsplit_once(" at ").unwrap().1;
    let signer = client(endpoint, &place.path("cert"));
    let (bucket, key, now) = (Bucket::new("bucket").unwrap(), Key::new("k").unwrap(), SystemTime::now());
    let get = signer.presign("GET", &bucket, &key, 600, now).unwrap();
    let put = signer.presign("PUT", &bucket, &Key::new("up").unwrap(), 600, now).unwrap();
    let (source, ranges) = (place.path("root/bucket/k"), place.path("ranges"));
    let (source, ranges) = (source.to_str().unwrap(), ranges.to_str().unwrap());
    let wanted = [&content[4_000_000..4_001_000], &content[7..107], &content[2_000_000..2_065_536]].concat();
    for version in ["1.1", "2", "3"] {
        let run = |words: &[&str]| {
            let ran = Command::new(env!("CARGO_BIN_EXE_fordway"))
                .args(words)
                .env("FORDWAY_HTTP_VERSION", version)
                .env("AWS_CA_BUNDLE", place.path("cert"))
                .output()
                .unwrap();
            assert!(ran.status.success(), "{version} {words:?}: {}", String::from_utf8_lossy(&ran.stderr));
            ran.stdout
        };
        assert!(run(&["cat", &get]) == content, "{version}");
        assert!(run(&["read", &get, "--ranges", ranges]) == wanted, "{version}");
        assert!(run(&["read", &get, "--sequential", "64KiB"]) == content, "{version}");
        let streams = place.path(&format!("streams{version}"));
        run(&["cp", "--streams", "3", &get, streams.to_str().unwrap()]);
        assert!(std::fs::read(streams).unwrap() == content, "{version}");
        run(&["cp", source, &put]);
        assert!(std::fs::read(place.path("root/bucket/up")).unwrap() == content, "{version}");
        std::fs::remove_file(place.path("root/bucket/up")).unwrap();
    }
    gateway.signal("-TERM");
    assert!(gateway.0.wait().unwrap().success());
}

/// A killed gateway cannot close its connections. The new gateway must tell the clients that these connections no
/// longer exist. Otherwise, the clients would wait for 30 s.
#[cfg(feature = "http3")]
#[test]
fn clients_of_http3_notice_at_once_that_a_gateway_was_killed_and_restarted() {
    let place = Place::new();
    place.write_certificate();
    let start = |listen: &str| {
        let mut gateway = Gateway(place.command_at(listen).arg("--http3").spawn().unwrap());
        let mut ready = String::new();
        BufReader::new(gateway.0.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        (gateway, ready.trim().rsplit_once(" at ").unwrap().1.to_owned())
    };
    let (gateway, endpoint) = start("127.0.0.1:0");
    let keys = S3Credentials::keys(KEYS[0], KEYS[1], "the test");
    let mut config = S3Config::new(&endpoint, "us-east-1", keys);
    config.tls_roots = TlsRoots::File(place.path("cert"));
    config.http = fordway_http::HttpVersion::Http3;
    let store = S3Store::new(config).unwrap();
    let (bucket, key) = (Bucket::new("bucket").unwrap(), Key::new("k").unwrap());
    store.put(&bucket, &key, b"hello", &PutOptions::default()).unwrap();
    drop(gateway);
    let (_gateway, _) = start(endpoint.strip_prefix("https://").unwrap());
    let begin = Instant::now();
    store.head(&bucket, &key, &GetOptions::default()).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
}
