//! The suite over HTTP: our client, our gateway, and a directory behind it.

use std::path::PathBuf;
use std::sync::Arc;

use fordway_client::http::TlsRoots;
use fordway_client::s3::{Credentials, S3Config, S3Store, Signature};
use fordway_posix::{PosixConfig, PosixStore};
use fordway_serve::{Gateway, GatewayConfig, Identity, Tls, Users};
use fordway_store::ETagPolicy;
use fordway_testkit::conformance::Fixture;
use fordway_testkit::model;
use proptest::prelude::*;

fn open() -> Fixture {
    open_with(Signature::V4, None)
}

fn open_with(signature: Signature, certificate: Option<Certificate>) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let config = PosixConfig { etag_policy: ETagPolicy::Md5, ..PosixConfig::default() };
    let store = Arc::new(PosixStore::open(dir.path(), config).unwrap());
    let identity = Identity::generate().unwrap();
    let credentials = Credentials::keys(&identity.access_key, &identity.secret_key, "the test");
    let listen = "127.0.0.1:0".parse().unwrap();
    let signature_v2 = signature == Signature::V2;
    let tls = certificate.as_ref().map(Certificate::load);
    let config = GatewayConfig { signature_v2, tls, ..GatewayConfig::new(listen) };
    let gateway = Gateway::bind(Users::one(identity, store), config).unwrap().spawn().unwrap();
    let scheme = if certificate.is_some() { "https" } else { "http" };
    let endpoint = format!("{scheme}://{}", gateway.local_addr());
    let mut config = S3Config { signature, ..S3Config::new(endpoint, "us-east-1", credentials) };
    if let Some(certificate) = &certificate {
        config.tls_roots = TlsRoots::File(certificate.path("cert"));
    }
    let client = S3Store::new(config).unwrap();
    Fixture::new(client, (gateway, dir, certificate))
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

    fn load(&self) -> Tls {
        Tls::load(&self.path("cert"), &self.path("key")).unwrap()
    }
}

fordway_testkit::conformance_suite!(open());

/// The same with the older signature, which old services and their clients use.
mod signed_by_version_2 {
    use super::*;

    fordway_testkit::conformance_suite!(open_with(Signature::V2, None));
}

mod over_tls {
    use super::*;

    fordway_testkit::conformance_suite!(open_with(Signature::V4, Some(Certificate::new())));
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
