//! The suite over HTTP: our client, our gateway, and a directory behind it.

use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fordway_client::s3::{S3Config, S3Credentials, S3Store, SignatureVersion};
use fordway_http::{HttpVersion, TlsRoots};
use fordway_posix::{PosixConfig, PosixStore};
use fordway_serve::{AccessKeyPair, Gateway, GatewayConfig, TlsCertificate, Users};
use fordway_store::{Bucket, ETagPolicy, ErrorKind, Key, MultipartUploads, Objects, PutOptions};
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
    let dir = tempfile::tempdir().unwrap();
    let config = PosixConfig { etag_policy: ETagPolicy::Md5, ..PosixConfig::default() };
    let store = Arc::new(PosixStore::open(dir.path(), config).unwrap());
    let identity = AccessKeyPair::generate().unwrap();
    let credentials = S3Credentials::keys(&identity.access_key, &identity.secret_key, "the test");
    let listen = "127.0.0.1:0".parse().unwrap();
    let signature_v2 = signature == SignatureVersion::V2;
    let tls = certificate.as_ref().map(Certificate::load);
    let config = GatewayConfig { signature_v2, tls, ..GatewayConfig::new(listen) };
    let gateway = Gateway::bind(Users::one(identity, store), config).unwrap().spawn().unwrap();
    let scheme = if certificate.is_some() { "https" } else { "http" };
    let endpoint = format!("{scheme}://{}", gateway.local_addr());
    let mut config = S3Config { signature, http, ..S3Config::new(endpoint, "us-east-1", credentials) };
    if let Some(certificate) = &certificate {
        config.tls_roots = TlsRoots::File(certificate.path("cert"));
    }
    let client = S3Store::new(config).unwrap();
    StoreFixture::new(client, (gateway, dir, certificate))
}

/// A certificate for the loopback address and its key.
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

/// The suite with the older signature version, which old services and their clients still use.
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

/// The first bytes that the client sends show which HTTP version it uses.
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

/// Callers do not notice that the gateway has closed an idle connection, even if the request may be sent only once.
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
