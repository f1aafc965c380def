//! Checks how much memory the gateway uses for HTTP/3 clients that acknowledge nothing.
//! This is the only test in its file, because memory is measured for the whole process.
#![cfg(feature = "http3")]

mod client;

use std::time::Duration;

use client::frames::RawHttp3;
use client::http2::run;
use client::tls::Certificate;
use client::{Call, Fixture, bucket, key, serve_with};
use fordway_store::{Objects, PutOptions};

const CLIENTS: u64 = 100;

fn resident_bytes() -> u64 {
    fordway_sys::usage_of(std::process::id()).unwrap().rss_bytes
}

async fn connect(fixture: &Fixture, certificate: &Certificate) -> RawHttp3 {
    let mut transport = quinn::TransportConfig::default();
    let large = quinn::VarInt::from_u32(1 << 30);
    transport.stream_receive_window(large).receive_window(large);
    RawHttp3::connect_with(&fixture.client, certificate, transport).await
}

async fn ask(fixture: &Fixture, connection: &RawHttp3, key: &str) -> (quinn::SendStream, quinn::RecvStream) {
    let get = client::http3::request(&fixture.client, &Call::on("GET", key));
    let (mut send, receive) = connection.start(&get).await;
    send.finish().unwrap();
    (send, receive)
}

#[test]
fn clients_that_acknowledge_nothing_need_little_memory() {
    let certificate = Certificate::new();
    let fixture = serve_with(|config| (config.tls, config.http3) = (Some(certificate.load()), true));
    fixture.store.put(&bucket(), &key("k"), &vec![7; 4 << 20], &PutOptions::default()).unwrap();
    run(async {
        let mut connections = Vec::new();
        for _ in 0..CLIENTS {
            connections.push(connect(&fixture, &certificate).await);
        }
        let (before, mut requests) = (resident_bytes(), Vec::new());
        for connection in &connections {
            requests.push(ask(&fixture, connection, "k").await);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        // Nothing on this thread runs in the meantime, neither this function nor the clients' connections.
        std::thread::sleep(Duration::from_secs(5));
        let growth = resident_bytes().saturating_sub(before);
        assert!(growth / CLIENTS < 512 << 10, "each client needs {} KiB", (growth / CLIENTS) >> 10);
    });
}
