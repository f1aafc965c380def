//! Checks how much memory the gateway uses for HTTP/3 clients that acknowledge nothing, from the beginning or later.
//! This is the only test in its file, because memory is measured for the whole process. Clients that receive responses
//! need memory too, so they are a process of their own.
#![cfg(feature = "http3")]

mod client;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use client::frames::{RawHttp3, run_until_sent};
use client::http2::run;
use client::tls::Certificate;
use client::{Call, Client, Fixture, bucket, key, serve_with};
use fordway_serve::AccessKeyPair;
use fordway_store::{Objects, PutOptions};

const CLIENTS: u64 = 100;

fn resident_bytes() -> u64 {
    fordway_sys::usage_of(std::process::id()).unwrap().rss_bytes
}

async fn connect(client: &Client, certificate: &Certificate) -> RawHttp3 {
    let mut transport = quinn::TransportConfig::default();
    let large = quinn::VarInt::from_u32(1 << 30);
    transport.stream_receive_window(large).receive_window(large);
    RawHttp3::connect_with(client, certificate, transport).await
}

async fn ask(client: &Client, connection: &RawHttp3, key: &str) -> (quinn::SendStream, quinn::RecvStream) {
    let get = client::http3::request(client, &Call::on("GET", key));
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
            connections.push(connect(&fixture.client, &certificate).await);
        }
        let (before, mut requests) = (resident_bytes(), Vec::new());
        for connection in &connections {
            requests.push(ask(&fixture.client, connection, "k").await);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        // Nothing on this thread runs in the meantime, neither this function nor the clients' connections.
        std::thread::sleep(Duration::from_secs(5));
        let growth = resident_bytes().saturating_sub(before);
        assert!(growth / CLIENTS < 512 << 10, "each client needs {} KiB", (growth / CLIENTS) >> 10);
    });
    check_clients_that_acknowledge_only_at_first(&fixture, &certificate);
}

const GROUPS: u64 = 8;
const GROUP: u64 = 10;

/// The process of the clients says a word whenever a group of them no longer receives anything.
fn check_clients_that_acknowledge_only_at_first(fixture: &Fixture, certificate: &Certificate) {
    let mut clients = start_clients(fixture, certificate);
    let mut said = BufReader::new(clients.stdout.take().unwrap());
    let (mut word, mut before) = (String::new(), 0);
    for group in 0..=GROUPS {
        while !word.contains("deaf") {
            word.clear();
            assert!(said.read_line(&mut word).unwrap() > 0, "the clients have ended");
        }
        word.clear();
        std::thread::sleep(Duration::from_secs(2));
        // The first group shows what the gateway needs for clients that have acknowledged nothing but one response.
        if group == 0 {
            before = resident_bytes();
        }
    }
    let growth = resident_bytes().saturating_sub(before);
    drop(clients.stdin.take());
    said.read_to_string(&mut word).unwrap();
    assert!(clients.wait().unwrap().success(), "{word}");
    assert!(growth < 80 << 20, "{} clients need {} MiB", GROUPS * GROUP, growth >> 20);
}

fn start_clients(fixture: &Fixture, certificate: &Certificate) -> Child {
    let Client { address, identity, .. } = &fixture.client;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "clients_that_go_deaf", "--nocapture"]);
    command.env(ADDRESS, address.to_string()).env(DIRECTORY, certificate.directory());
    command.env(ACCESS_KEY, &identity.access_key).env(SECRET_KEY, &identity.secret_key);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

const ADDRESS: &str = "FORDWAY_TEST_ADDRESS";
const DIRECTORY: &str = "FORDWAY_TEST_DIRECTORY";
const ACCESS_KEY: &str = "FORDWAY_TEST_ACCESS_KEY";
const SECRET_KEY: &str = "FORDWAY_TEST_SECRET_KEY";

/// Each client reads an object, so that its window grows. Then it asks for the object again, and acknowledges nothing
/// more. This object is smaller than the largest window.
#[test]
#[ignore = "run by another test, as a process of its own"]
fn clients_that_go_deaf() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let of = |name| std::env::var(name).unwrap();
    let identity = AccessKeyPair { access_key: of(ACCESS_KEY), secret_key: of(SECRET_KEY) };
    let address = address.parse().unwrap();
    let client = Client { address, identity, clock_offset_s: 0, dates_by_date: false };
    let certificate = Certificate::of_other_process(of(DIRECTORY).into());
    let mut groups = Vec::new();
    for _ in 0..=GROUPS {
        // A runtime that nobody drives receives nothing.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        groups.push((runtime.block_on(a_group(&client, &certificate)), runtime));
        writeln!(std::io::stdout(), "deaf").unwrap();
        std::thread::sleep(Duration::from_secs(2));
    }
    // The test closes standard input.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    for (connections, runtime) in groups {
        connections.iter().for_each(|connection| connection.quic.close(0_u32.into(), b""));
        runtime.block_on(run_until_sent());
    }
}

async fn a_group(client: &Client, certificate: &Certificate) -> Vec<RawHttp3> {
    let mut connections = Vec::new();
    for _ in 0..GROUP {
        let connection = connect(client, certificate).await;
        let (_, mut receive) = ask(client, &connection, "smaller").await;
        receive.read_to_end(4 << 20).await.unwrap();
        connections.push(connection);
    }
    for connection in &connections {
        // Without the streams, the client would reset them.
        std::mem::forget(ask(client, connection, "smaller").await);
    }
    run_until_sent().await;
    connections
}
