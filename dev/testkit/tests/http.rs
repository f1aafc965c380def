//! Runs the conformance suite over HTTP: with our client, our gateway, and a directory that the gateway serves.

use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fordway_client::s3::{S3Config, S3Credentials, S3Store, SignatureVersion};
use fordway_http::vector::Fragment;
use fordway_http::{HttpVersion, TlsRoots};
use fordway_posix::{PosixConfig, PosixStore};
use fordway_serve::{AccessKeyPair, Gateway, GatewayConfig, RunningGateway, TlsCertificate, Users};
use fordway_store::{
    Bucket, ETagPolicy, ErrorKind, GetOptions, Key, MemoryStore, MultipartUploadOperations, Objects,
    PutOptions,
};
use fordway_testkit::conformance::StoreFixture;
use fordway_testkit::model;
use proptest::prelude::*;

fn open() -> StoreFixture {
    open_with(SignatureVersion::V4, HttpVersion::Http1, None)
}

fn open_with(
    signature: SignatureVersion,
    http: HttpVersion,
    certificate: Option<Certificate>,
) -> StoreFixture {
    let (client, server) = open_s3(signature, http, certificate);
    StoreFixture::new(client, server)
}

/// The resources that must exist as long as a client uses a server.
type ServerFixture = (RunningGateway, tempfile::TempDir, Option<Certificate>);

fn open_s3(
    signature: SignatureVersion,
    http: HttpVersion,
    certificate: Option<Certificate>,
) -> (S3Store, ServerFixture) {
    let dir = tempfile::tempdir().unwrap();
    let config = PosixConfig { etag_policy: ETagPolicy::Md5, ..PosixConfig::default() };
    let store = Arc::new(PosixStore::open(dir.path(), config).unwrap());
    let identity = AccessKeyPair::generate().unwrap();
    let credentials = S3Credentials::keys(&identity.access_key, &identity.secret_key, "the test");
    let listen = "127.0.0.1:0".parse().unwrap();
    let signature_v2 = signature == SignatureVersion::V2;
    let tls = certificate.as_ref().map(Certificate::load);
    let http3 = http == HttpVersion::Http3;
    let config = GatewayConfig { signature_v2, tls, http3, ..GatewayConfig::new(listen) };
    let gateway = Gateway::bind(Users::one(identity, store), config).unwrap().spawn().unwrap();
    let scheme = if certificate.is_some() { "https" } else { "http" };
    let endpoint = format!("{scheme}://{}", gateway.local_addr());
    let mut config = S3Config { signature, http, ..S3Config::new(endpoint, "us-east-1", credentials) };
    if let Some(certificate) = &certificate {
        config.tls_roots = TlsRoots::File(certificate.path("cert"));
    }
    (S3Store::new(config).unwrap(), (gateway, dir, certificate))
}

/// A certificate for the loopback address, and its key.
struct Certificate(tempfile::TempDir);

impl Certificate {
    fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = Certificate(tempfile::tempdir().unwrap());
        std::fs::write(certificate.path("cert"), made.cert.pem()).unwrap();
        std::fs::write(certificate.path("key"), made.signing_key.serialize_pem()).unwrap();
        certificate
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn load(&self) -> TlsCertificate {
        TlsCertificate::load(&self.path("cert"), &self.path("key")).unwrap()
    }
}

fordway_testkit::conformance_suite!(open());

/// Runs the suite with Signature Version 2, which old services and their clients still use.
mod signed_by_version_2 {
    use super::*;

    fordway_testkit::conformance_suite!(open_with(SignatureVersion::V2, HttpVersion::Http1, None));
}

mod over_tls {
    use super::*;

    fordway_testkit::conformance_suite!(open_with(
        SignatureVersion::V4,
        HttpVersion::Http1,
        Some(Certificate::new())
    ));
}

mod over_http2 {
    use super::*;

    fordway_testkit::conformance_suite!(open_with(SignatureVersion::V4, HttpVersion::Http2, None));
}

mod over_http2_and_tls {
    use super::*;

    fordway_testkit::conformance_suite!(open_with(
        SignatureVersion::V4,
        HttpVersion::Http2,
        Some(Certificate::new())
    ));
}

mod over_http3 {
    use super::*;

    fordway_testkit::conformance_suite!(open_with(
        SignatureVersion::V4,
        HttpVersion::Http3,
        Some(Certificate::new())
    ));
}

/// The requests of a vectored read are in flight concurrently, each in a separate stream. The bodies are larger than
/// every buffer between client and server.
#[test]
fn large_objects_and_many_ranges_go_over_http3() {
    let (client, _server) = open_s3(SignatureVersion::V4, HttpVersion::Http3, Some(Certificate::new()));
    let (bucket, key) = (Bucket::new("bucket").unwrap(), Key::new("k").unwrap());
    client.create_bucket(&bucket).unwrap();
    let content: Vec<u8> = (0..10_000_000_u32).flat_map(u32::to_le_bytes).collect();
    client.put(&bucket, &key, &content, &PutOptions::default()).unwrap();
    let mut whole = Vec::new();
    client.read(&bucket, &key, &GetOptions::default(), &mut whole).unwrap();
    assert!(whole == content);
    let file = client.open_file(&bucket, &key).unwrap();
    let mut buffers = vec![[0_u8; 100]; 1_000];
    let start = |at: usize| at * 39_989;
    let mut fragments: Vec<_> = buffers
        .iter_mut()
        .enumerate()
        .map(|(at, buffer)| Fragment { offset: start(at) as u64, buffer: &mut buffer[..] })
        .collect();
    file.read_ranges(&mut fragments).unwrap();
    for (at, buffer) in buffers.iter().enumerate() {
        assert!(buffer[..] == content[start(at)..start(at) + 100], "range {at}");
    }
}

/// HTTP/3 needs TLS, a server that supports it, and a certificate that the client trusts.
#[test]
fn http3_without_what_it_needs_is_an_error() {
    let certificate = Certificate::new();
    let listen = "127.0.0.1:0".parse().unwrap();
    let serve = |http3| {
        let users = Users::one(AccessKeyPair::generate().unwrap(), Arc::new(MemoryStore::default()));
        let config = GatewayConfig { tls: Some(certificate.load()), http3, ..GatewayConfig::new(listen) };
        Gateway::bind(users, config).unwrap().spawn().unwrap()
    };
    let ask = |endpoint: String, trusts: bool| {
        let mut config = S3Config {
            http: HttpVersion::Http3,
            ..S3Config::new(endpoint, "us-east-1", S3Credentials::Anonymous)
        };
        config.max_retries = 0;
        config.timeouts.connect = Duration::from_millis(500);
        if trusts {
            config.tls_roots = TlsRoots::File(certificate.path("cert"));
        }
        S3Store::new(config).unwrap().list_buckets().unwrap_err()
    };
    let (with, without) = (serve(true), serve(false));
    let error = ask(format!("http://{}", with.local_addr()), true);
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains("https://"), "{error}");
    let error = ask(format!("https://{}", with.local_addr()), false);
    assert_eq!(error.kind(), ErrorKind::BadResponse, "{error}");
    let error = ask(format!("https://{}", without.local_addr()), true);
    assert!([ErrorKind::Timeout, ErrorKind::Unavailable].contains(&error.kind()), "{error}");
    assert_eq!(ask(format!("https://{}", with.local_addr()), true).kind(), ErrorKind::AccessDenied);
}

/// Checks the HTTP version that the client uses, which the first bytes of the connection show.
#[test]
fn the_version_asked_for_is_spoken() {
    for (http, start) in
        [(HttpVersion::Http1, "GET / HTTP/1.1\r\n"), (HttpVersion::Http2, "PRI * HTTP/2.0\r\n")]
    {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let mut config = S3Config { http, ..S3Config::new(endpoint, "r", S3Credentials::Anonymous) };
        config.max_retries = 0;
        let asked = std::thread::spawn(move || S3Store::new(config).unwrap().list_buckets());
        let mut said = [0; 16];
        listener.accept().unwrap().0.read_exact(&mut said).unwrap();
        assert_eq!(std::str::from_utf8(&said), Ok(start));
        drop(listener);
        let error = asked.join().unwrap().expect_err("nobody answered");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}

/// If the gateway has closed an idle connection, the client opens a new connection without an error, even for a request
/// that may be sent only once.
#[test]
fn an_idle_http2_connection_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(PosixStore::open(dir.path(), PosixConfig::default()).unwrap());
    let identity = AccessKeyPair::generate().unwrap();
    let keys = S3Credentials::keys(&identity.access_key, &identity.secret_key, "the test");
    let mut config = GatewayConfig::new("127.0.0.1:0".parse().unwrap());
    config.header_timeout = Duration::from_secs(1);
    let gateway = Gateway::bind(Users::one(identity, store), config).unwrap().spawn().unwrap();
    let endpoint = format!("http://{}", gateway.local_addr());
    let mut config = S3Config { http: HttpVersion::Http2, ..S3Config::new(endpoint, "us-east-1", keys) };
    config.max_retries = 0;
    let client = S3Store::new(config).unwrap();
    let (bucket, key) = (Bucket::new("bucket").unwrap(), Key::new("k").unwrap());
    client.create_bucket(&bucket).unwrap();
    for _ in 0..2 {
        std::thread::sleep(Duration::from_secs(2));
        let upload = client.create_upload(&bucket, &key, &PutOptions::default()).unwrap();
        std::thread::sleep(Duration::from_secs(2));
        client.abort_upload(&bucket, &key, &upload).unwrap();
    }
}

proptest! {
    #![proptest_config(model::config(40))]

    #[test]
    fn random_operations_agree_with_the_model(operations in model::operations(60)) {
        model::check(&*open(), &operations);
    }

    #[test]
    fn versions_agree_with_the_model(operations in model::versioned_operations(60)) {
        model::check(&*open(), &operations);
    }
}
