//! Tests for the 40 ms stalls between two small segments that occur at some sizes without TCP_NODELAY.

mod client;

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use client::http2::{Http2, run};
use client::tls::Certificate;
use client::{Call, Client, lasting, next_answer, serve, serve_with};

/// Sizes from 1 B to 1 MiB, including the edges of segments, pieces and pipes.
fn sizes() -> impl Iterator<Item = usize> {
    (0..=20).map(|power| 1 << power).chain([1459, 1460, 1461, 65_535, 65_537, 262_145])
}

fn put(size: usize) -> Call<'static> {
    Call::on("PUT", "k").payload("UNSIGNED-PAYLOAD").body(vec![3; size])
}

#[track_caller]
fn check(what: &str, size: usize, mut times: Vec<Duration>) {
    times.sort();
    // A stall delays every request; a busy machine delays only some.
    assert!(times[times.len() / 4] < Duration::from_millis(20), "{what} of {size} bytes: {times:?}");
}

fn http1(client: &Client, stream: &mut (impl Read + Write)) {
    for size in sizes() {
        let put = put(size);
        let request = [lasting(client, &put), put.body.clone()].concat();
        let get = lasting(client, &Call::on("GET", "k"));
        let (mut puts, mut gets) = (Vec::new(), Vec::new());
        for _ in 0..9 {
            let start = Instant::now();
            stream.write_all(&request).unwrap();
            assert!(next_answer(stream).0.starts_with("HTTP/1.1 200"));
            puts.push(start.elapsed());
            let start = Instant::now();
            stream.write_all(&get).unwrap();
            assert!(next_answer(stream).1 == put.body);
            gets.push(start.elapsed());
        }
        check("PUT", size, puts);
        check("GET", size, gets);
    }
}

#[cfg(feature = "http3")]
async fn http3(http3: &mut client::http3::Http3) {
    for size in sizes() {
        let (put, get) = (put(size), Call::on("GET", "k"));
        let (mut puts, mut gets) = (Vec::new(), Vec::new());
        for _ in 0..9 {
            let start = Instant::now();
            assert_eq!(http3.send(&put).await.status, 200);
            puts.push(start.elapsed());
            let start = Instant::now();
            assert!(http3.send(&get).await.body == put.body);
            gets.push(start.elapsed());
        }
        check("PUT", size, puts);
        check("GET", size, gets);
    }
}

async fn http2(http2: &Http2) {
    for size in sizes() {
        let (put, get) = (put(size), Call::on("GET", "k"));
        let (mut puts, mut gets) = (Vec::new(), Vec::new());
        for _ in 0..9 {
            let start = Instant::now();
            assert_eq!(http2.send(&put).await.status, 200);
            puts.push(start.elapsed());
            let start = Instant::now();
            assert!(http2.send(&get).await.body == put.body);
            gets.push(start.elapsed());
        }
        check("PUT", size, puts);
        check("GET", size, gets);
    }
}

#[test]
fn no_size_stalls() {
    let fixture = serve();
    http1(&fixture.client, &mut fixture.client.connect());
}

#[test]
fn no_size_stalls_over_http2() {
    let fixture = serve();
    run(async { http2(&Http2::connect(&fixture.client).await).await });
}

#[test]
fn no_size_stalls_over_tls() {
    let certificate = Certificate::new();
    let fixture = serve_with(|config| config.tls = Some(certificate.load()));
    http1(&fixture.client, &mut certificate.connect(&fixture.client).unwrap());
    run(async { http2(&Http2::connect_tls(&fixture.client, &certificate).await).await });
}

#[cfg(feature = "http3")]
#[test]
fn no_size_stalls_over_http3() {
    let certificate = Certificate::new();
    let fixture = serve_with(|config| (config.tls, config.http3) = (Some(certificate.load()), true));
    run(async { http3(&mut client::http3::Http3::connect(&fixture.client, &certificate).await).await });
}
