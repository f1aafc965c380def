//! The suite over HTTP: our client, our gateway, and a directory behind it.

use std::sync::Arc;

use fordway_client::s3::{Credentials, S3Config, S3Store, Signature};
use fordway_posix::{PosixConfig, PosixStore};
use fordway_serve::{Gateway, GatewayConfig, Identity, Users};
use fordway_store::ETagPolicy;
use fordway_testkit::conformance::Fixture;
use fordway_testkit::model;
use proptest::prelude::*;

fn open() -> Fixture {
    open_signed(Signature::V4)
}

fn open_signed(signature: Signature) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let config = PosixConfig { etag_policy: ETagPolicy::Md5, ..PosixConfig::default() };
    let store = Arc::new(PosixStore::open(dir.path(), config).unwrap());
    let identity = Identity::generate().unwrap();
    let credentials = Credentials::keys(&identity.access_key, &identity.secret_key, "the test");
    let listen = "127.0.0.1:0".parse().unwrap();
    let signature_v2 = signature == Signature::V2;
    let config = GatewayConfig { signature_v2, ..GatewayConfig::new(listen) };
    let gateway = Gateway::bind(Users::one(identity, store), config).unwrap().spawn().unwrap();
    let endpoint = format!("http://{}", gateway.local_addr());
    let config = S3Config { signature, ..S3Config::new(endpoint, "us-east-1", credentials) };
    let client = S3Store::new(config).unwrap();
    Fixture::new(client, (gateway, dir))
}

fordway_testkit::conformance_suite!(open());

/// The same with the older signature, which old services and their clients use.
mod signed_by_version_2 {
    use super::*;

    fordway_testkit::conformance_suite!(open_signed(Signature::V2));
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
