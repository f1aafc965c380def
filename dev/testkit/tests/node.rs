//! Runs the conformance suite on the node lane: with our client, our gateway, and a directory that the gateway serves,
//! over both kinds of sockets.

use std::sync::Arc;

use fordway_client::node::{NodeAddress, NodeKeyPair, NodeStore};
use fordway_posix::{PosixConfig, PosixStore};
use fordway_serve::AccessKeyPair;
use fordway_serve::node::{NodeGateway, NodeGatewayConfig, NodeTcpConfig};
use fordway_store::{Objects as _, Store};
use fordway_testkit::conformance::StoreFixture;
use fordway_testkit::model;
use proptest::prelude::*;

/// Starts a gateway on a new directory, and opens a client for its Unix socket or TCP port.
fn open(by_tcp: bool) -> StoreFixture {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let socket = dir.path().join("socket");
    let keys = AccessKeyPair::generate().unwrap();
    let secret = NodeKeyPair { access_key: keys.access_key.clone(), secret_key: keys.secret_key.clone() };
    let tcp = NodeTcpConfig { listen: "127.0.0.1:0".parse().unwrap(), keys, may_be_root: true };
    let config = NodeGatewayConfig { tcp: by_tcp.then_some(tcp), ..NodeGatewayConfig::new(&socket) };
    let open = move || Ok(Arc::new(PosixStore::open(&root, PosixConfig::default())?) as Arc<dyn Store>);
    let gateway = NodeGateway::bind(Arc::new(open), config).unwrap().spawn().unwrap();
    let address = match gateway.tcp_addr() {
        Some(address) => NodeAddress::Tcp(address.to_string(), secret),
        None => NodeAddress::Unix(socket),
    };
    StoreFixture::new(NodeStore::new(address), (gateway, dir))
}

mod unix {
    use super::*;

    fordway_testkit::conformance_suite!(open(false));
}

mod tcp {
    use super::*;

    fordway_testkit::conformance_suite!(open(true));
}

/// When a gateway ends, it closes idle TCP connections. The next request then uses a new connection, even if it is a
/// request that the client must not send twice.
#[test]
fn a_request_that_must_not_be_repeated_succeeds_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let keys = || AccessKeyPair { access_key: "key".to_owned(), secret_key: "s".repeat(40) };
    let secret = NodeKeyPair { access_key: keys().access_key, secret_key: keys().secret_key };
    let start = |listen: std::net::SocketAddr| {
        let root = dir.path().to_owned();
        let tcp = Some(NodeTcpConfig { listen, keys: keys(), may_be_root: true });
        let config = NodeGatewayConfig { tcp, ..NodeGatewayConfig::new(dir.path().join(".socket")) };
        let open = move || Ok(Arc::new(PosixStore::open(&root, PosixConfig::default())?) as Arc<dyn Store>);
        NodeGateway::bind(Arc::new(open), config).unwrap().spawn().unwrap()
    };
    let gateway = start("127.0.0.1:0".parse().unwrap());
    let address = gateway.tcp_addr().unwrap();
    let store = NodeStore::new(NodeAddress::Tcp(address.to_string(), secret));
    let bucket = |name: &str| fordway_store::Bucket::new(name).unwrap();
    store.create_bucket(&bucket("before")).unwrap();
    drop(gateway);
    let _gateway = start(address);
    store.create_bucket(&bucket("after")).unwrap();
}

proptest! {
    #![proptest_config(model::config(60))]

    #[test]
    fn random_operations_agree_with_the_model(operations in model::operations(60)) {
        model::check(&*open(false), &operations);
    }

    #[test]
    fn versions_agree_with_the_model(operations in model::versioned_operations(60)) {
        model::check(&*open(false), &operations);
    }

    #[test]
    fn random_operations_by_tcp_agree_with_the_model(operations in model::versioned_operations(30)) {
        model::check(&*open(true), &operations);
    }
}
