//! Tests slow clients, too many clients, and graceful shutdown.

mod client;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use client::{BUCKET, Call, bucket, key, read_answer, serve, serve_with};
use fordway_serve::{AccessKeyPair, Gateway, GatewayConfig, Users};
use fordway_store::{
    BucketDocumentKind, BucketDocumentOperations, ErrorKind, GetOptions, MemoryStore, Objects, PutOptions,
};

fn nobody() -> Users {
    Users::one(AccessKeyPair::generate().unwrap(), Arc::new(MemoryStore::default()))
}

#[test]
fn a_taken_port_is_named_with_a_way_out() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let config = GatewayConfig::new(address);
    let error = Gateway::bind(nobody(), config).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let text = error.to_string();
    assert!(text.contains(&address.to_string()) && text.contains("choose another port"), "{text}");
}

#[test]
fn a_foreign_address_is_refused() {
    let address = SocketAddr::from(([192, 0, 2, 1], 0));
    let config = GatewayConfig::new(address);
    let error = Gateway::bind(nobody(), config).err().unwrap();
    assert!(error.to_string().contains("not an address of this machine"), "{error}");
}

/// A gateway that is stopped during an upload completes the upload. The gateway then no longer accepts connections.
#[test]
fn stopping_finishes_what_is_in_progress() {
    let fixture = serve();
    let call = Call::on("PUT", "k").body("hello");
    let mut stream = fixture.client.connect();
    stream.write_all(&fixture.client.head(&call)).unwrap();
    stream.write_all(b"he").unwrap();
    thread::sleep(Duration::from_millis(100));
    fixture.gateway.stop_handle().trigger();
    thread::sleep(Duration::from_millis(100));
    stream.write_all(b"llo").unwrap();
    read_answer(&mut stream, "PUT").ok();
    fixture.gateway.join().unwrap();
    assert!(fixture.store.head(&bucket(), &key("k"), &GetOptions::default()).is_ok());
    assert!(TcpStream::connect(fixture.client.address).is_err());
}

#[test]
fn stopping_waits_for_nobody_for_ever() {
    let fixture = serve_with(|config| config.drain_timeout = Duration::from_millis(200));
    let mut stream = fixture.client.connect();
    let call = Call::on("PUT", "k").header("content-length", "10");
    stream.write_all(&fixture.client.head(&call)).unwrap();
    thread::sleep(Duration::from_millis(100));
    let start = Instant::now();
    fixture.gateway.stop_handle().trigger();
    fixture.gateway.join().unwrap();
    let took = start.elapsed();
    assert!((Duration::from_millis(150)..Duration::from_secs(20)).contains(&took), "{took:?}");
}

#[test]
fn idle_connections_do_not_delay_the_end() {
    let fixture = serve();
    let idle = fixture.client.connect();
    thread::sleep(Duration::from_millis(100));
    let start = Instant::now();
    fixture.gateway.stop_handle().trigger();
    fixture.gateway.join().unwrap();
    assert!(start.elapsed() < Duration::from_secs(20));
    drop(idle);
}

/// Closing a connection while its next request is in transit would make that request fail.
#[test]
fn a_request_that_comes_while_the_gateway_stops_is_answered() {
    let fixture = serve();
    let call = Call::on("PUT", "k").body("hello");
    let kept = String::from_utf8(fixture.client.head(&call)).unwrap().replace("connection: close\r\n", "");
    let mut streams = [fixture.client.connect(), fixture.client.connect()];
    // The first connection has carried a request before the stop, and the second connection has not.
    for (after_stop, stream) in [(0, 0), (1, 0), (1, 1)] {
        if after_stop == 1 && stream == 0 {
            fixture.gateway.stop_handle().trigger();
            thread::sleep(Duration::from_millis(100));
        }
        streams[stream].write_all(kept.as_bytes()).unwrap();
        streams[stream].write_all(b"hello").unwrap();
        let answer = read_answer(&mut streams[stream], "PUT").ok();
        let is_last = answer.header("connection") == Some("close");
        assert_eq!(is_last, after_stop == 1, "{:?}", answer.headers);
    }
    fixture.gateway.join().unwrap();
}

#[test]
fn a_head_that_never_comes_ends_the_connection() {
    let fixture = serve_with(|config| config.header_timeout = Duration::from_millis(200));
    let mut stream = fixture.client.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: h\r\n").unwrap();
    let mut rest = Vec::new();
    let start = Instant::now();
    let _ = stream.read_to_end(&mut rest);
    assert!(start.elapsed() < Duration::from_secs(20), "the server did not close");
}

#[test]
fn a_body_that_stops_is_answered_with_a_timeout() {
    let fixture = serve_with(|config| config.stall_timeout = Duration::from_millis(200));
    let mut stream = fixture.client.connect();
    let call = Call::on("PUT", "k").header("content-length", "10").payload("UNSIGNED-PAYLOAD");
    stream.write_all(&fixture.client.head(&call)).unwrap();
    stream.write_all(b"hello").unwrap();
    assert_eq!(read_answer(&mut stream, "PUT").error(), (400, "RequestTimeout".to_owned()));
    let found = fixture.store.head(&bucket(), &key("k"), &GetOptions::default());
    assert_eq!(found.unwrap_err().kind(), ErrorKind::NoSuchKey);
}

/// Uses a single thread, on which a client that does not read could block all other clients.
#[test]
fn a_client_that_does_not_read_holds_up_nobody_and_is_dropped() {
    let fixture = serve_with(|config| {
        config.threads = 1;
        config.stall_timeout = Duration::from_secs(2);
    });
    let body = vec![1u8; 32 * 1024 * 1024];
    fixture.store.put(&bucket(), &key("large"), &body, &PutOptions::default()).unwrap();
    let mut lazy = fixture.client.connect();
    lazy.write_all(&fixture.client.head(&Call::on("GET", "large"))).unwrap();
    thread::sleep(Duration::from_millis(100));
    let start = Instant::now();
    fixture.client.send(&Call::on("HEAD", "large")).ok();
    assert!(start.elapsed() < Duration::from_secs(2), "it waited for another's end");
    thread::sleep(Duration::from_secs(4));
    let mut taken = Vec::new();
    let _ = lazy.read_to_end(&mut taken);
    assert!(taken.len() < body.len(), "all {} bytes came", taken.len());
}

#[test]
fn clients_beyond_the_limit_wait_their_turn() {
    let fixture = serve_with(|config| config.connections_max = 1);
    let first = fixture.client.connect();
    thread::sleep(Duration::from_millis(100));
    let client = fixture.client.clone();
    let second = thread::spawn(move || client.send(&Call::new("GET", "/")));
    thread::sleep(Duration::from_millis(200));
    assert!(!second.is_finished());
    drop(first);
    second.join().unwrap().ok();
}

#[test]
fn an_endless_head_is_refused() {
    let fixture = serve();
    let mut stream = fixture.client.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: h\r\nx: ").unwrap();
    let _ = stream.write_all(&vec![b'a'; 300 * 1024]);
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text);
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 431"), "{text}");
}

/// The gateway sends the response before it receives the body. A client that sends the whole body before it reads still
/// gets the response.
#[test]
fn a_refusal_reaches_a_client_that_is_still_sending() {
    let fixture = serve();
    for _ in 0..5 {
        let call =
            Call::new("PUT", "/no-bucket/k").payload("UNSIGNED-PAYLOAD").body(vec![0; 8 * 1024 * 1024]);
        assert_eq!(fixture.client.send(&call).error(), (404, "NoSuchBucket".to_owned()));
    }
}

/// The XML parser does not support entities, which could expand to gigabytes. If a document is larger than any
/// legitimate document, the gateway does not read the whole document.
#[test]
fn xml_bombs_do_not_go_off() {
    let fixture = serve();
    let mut bomb = "<!DOCTYPE d [<!ENTITY e0 \"ha\">".to_owned();
    for level in 1..30 {
        let before = level - 1;
        bomb += &format!("<!ENTITY e{level} \"&e{before};&e{before};&e{before};&e{before};\">");
    }
    bomb += "]><Delete><Object><Key>&e29;</Key></Object></Delete>";
    let deep = "<Delete>".repeat(200_000);
    let huge = format!("<Delete>{}</Delete>", "<Object><Key>k</Key></Object>".repeat(300_000));
    let call = Call::new("PUT", format!("/{}/k", client::BUCKET)).body("x");
    fixture.client.send(&call).ok();
    for (name, document) in [("entities", bomb), ("depth", deep), ("size", huge)] {
        let start = Instant::now();
        let call = Call::new("POST", format!("/{}", client::BUCKET)).query("delete").body(document);
        let (status, code) = fixture.client.send(&call).error();
        assert!(status >= 400, "{name}: {status} {code}");
        assert!(start.elapsed() < Duration::from_secs(30), "{name}");
        assert!(fixture.store.head(&bucket(), &key("k"), &GetOptions::default()).is_ok(), "{name}");
    }
}

/// Clients cannot parse a malformed document, so the gateway returns an error.
#[test]
fn a_broken_document_of_a_bucket_is_an_error() {
    let fixture = serve();
    for (kind, query) in [
        ("cors", "cors"),
        ("lifecycle", "lifecycle"),
        ("notification", "notification"),
        ("ownership", "ownershipControls"),
        ("policy", "policy"),
        ("policy", "policyStatus"),
        ("public-access-block", "publicAccessBlock"),
        ("tagging", "tagging"),
    ] {
        let (name, kind) = (kind, BucketDocumentKind::known(kind));
        for broken in [&b"\xff<x"[..], b"", b"<x/>", b"\0\0\0\0"] {
            fixture.store.set_document(&bucket(), &kind, broken).unwrap();
            let get = fixture.client.send(&Call::new("GET", format!("/{BUCKET}")).query(query));
            assert_eq!(get.error(), (500, "CorruptObject".to_owned()), "{name} {broken:?}");
            let text = get.text();
            assert!(text.contains(&format!("the stored {name} document is malformed")), "{text}");
            assert!(text.contains("set it again, or delete it"), "{text}");
        }
        fixture.store.delete_document(&bucket(), &kind).unwrap();
    }
}

/// A document may have been stored before the gateway had a rule about its content, so the gateway still returns the
/// document.
#[test]
fn a_well_formed_document_is_returned_whatever_it_says() {
    let fixture = serve();
    let tags = b"<Tagging><TagSet><Tag><Key>a!</Key><Value>1</Value></Tag></TagSet></Tagging>";
    fixture.store.set_document(&bucket(), &BucketDocumentKind::known("tagging"), tags).unwrap();
    let get = fixture.client.send(&Call::new("GET", format!("/{BUCKET}")).query("tagging")).ok();
    assert_eq!(get.elements("Key"), ["a!"]);
}
