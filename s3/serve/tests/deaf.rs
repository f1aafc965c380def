//! Checks how much memory the gateway uses for HTTP/3 clients that acknowledge nothing, from the beginning or later.
//! This is the only test in its file, because memory is measured for the whole process.
#![cfg(feature = "http3")]

mod client;

use std::time::Duration;

use client::frames::{RawHttp3, run_until_sent};
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
    for (name, size) in [("k", 4 << 20), ("smaller", 1_900_000)] {
        fixture.store.put(&bucket(), &key(name), &vec![7; size], &PutOptions::default()).unwrap();
    }
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
    check_clients_that_acknowledge_only_at_first(&fixture, &certificate);
}

/// Each client reads an object, so that its window grows. Then it asks for the object again, and acknowledges nothing
/// more. This object is smaller than the largest window.
fn check_clients_that_acknowledge_only_at_first(fixture: &Fixture, certificate: &Certificate) {
    const GROUPS: u64 = 8;
    const GROUP: u64 = 10;
    let (mut before, mut groups) = (0, Vec::new());
    for group in 0..=GROUPS {
        // A runtime that nobody drives receives nothing.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let kept = runtime.block_on(async {
            let (mut connections, mut requests) = (Vec::new(), Vec::new());
            for _ in 0..GROUP {
                let connection = connect(fixture, certificate).await;
                let (_, mut receive) = ask(fixture, &connection, "smaller").await;
                receive.read_to_end(4 << 20).await.unwrap();
                connections.push(connection);
            }
            for connection in &connections {
                requests.push(ask(fixture, connection, "smaller").await);
            }
            run_until_sent().await;
            // The first group acknowledges everything, and shows how much memory the clients themselves need.
            if group == 0 {
                tokio::time::sleep(Duration::from_secs(3)).await;
            }
            (connections, requests)
        });
        groups.push((kept, runtime));
        std::thread::sleep(Duration::from_secs(2));
        if group == 0 {
            before = resident_bytes();
        }
    }
    let growth = resident_bytes().saturating_sub(before);
    for ((connections, _), runtime) in groups {
        connections.iter().for_each(|connection| connection.quic.close(0_u32.into(), b""));
        runtime.block_on(run_until_sent());
    }
    assert!(growth < 80 << 20, "{} clients need {} MiB", GROUPS * GROUP, growth >> 20);
}
