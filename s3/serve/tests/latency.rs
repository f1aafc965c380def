//! Tests that requests do not stall for 40 ms. If TCP_NODELAY is not set, such a stall occurs between two small
//! segments at some sizes.

mod client;

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use client::http2::{Http2, run};
use client::tls::Certificate;
use client::{Answer, Call, Client, lasting, next_answer, serve, serve_with};

/// Sizes from 1 B to 1 MiB, including the edges of segments, pieces and pipes.
fn sizes() -> impl Iterator<Item = usize> {
    (0..=20).map(|power| 1 << power).chain([1459, 1460, 1461, 65_535, 65_537, 262_145])
}

/// The number of requests of each kind in a batch, and the number of batches after which a size is considered to stall.
const BATCH: usize = 9;
const BATCHES: usize = 20;

/// The durations of requests of one size.
#[derive(Debug, Default)]
struct RequestTimes {
    puts: Vec<Duration>,
    gets: Vec<Duration>,
}

impl RequestTimes {
    /// Returns whether at least a third of a batch's puts, and at least a third of its gets, took less time than a
    /// stall. A stall delays almost every request. A busy machine delays some requests, or all requests of a batch.
    fn are_short(&mut self) -> bool {
        [&mut self.puts, &mut self.gets].iter_mut().all(|times| {
            times.sort();
            times[times.len() / 4] < Duration::from_millis(20)
        })
    }
}

/// Puts and gets an object of each size with `send`.
async fn check_sizes(mut send: impl AsyncFnMut(&Call<'static>) -> Answer) {
    for size in sizes() {
        let put = Call::on("PUT", "k").payload("UNSIGNED-PAYLOAD").body(vec![3; size]);
        let get = Call::on("GET", "k");
        for batch in 1.. {
            let mut times = RequestTimes::default();
            for _ in 0..BATCH {
                let start = Instant::now();
                assert_eq!(send(&put).await.status, 200);
                times.puts.push(start.elapsed());
                let start = Instant::now();
                assert!(send(&get).await.body == put.body);
                times.gets.push(start.elapsed());
            }
            if times.are_short() {
                break;
            }
            assert!(batch < BATCHES, "requests of {size} bytes: {times:?}");
        }
    }
}

/// Puts and gets an object of each size over one HTTP/1.1 connection.
fn check_http1(client: &Client, stream: &mut (impl Read + Write)) {
    run(check_sizes(async |call| {
        stream.write_all(&[lasting(client, call), call.body.clone()].concat()).unwrap();
        let (head, body) = next_answer(stream);
        Answer { status: head[9..12].parse().unwrap(), headers: Vec::new(), body }
    }));
}

#[test]
fn no_size_stalls() {
    let fixture = serve();
    check_http1(&fixture.client, &mut fixture.client.connect());
}

#[test]
fn no_size_stalls_over_http2() {
    let fixture = serve();
    run(async {
        let http2 = Http2::connect(&fixture.client).await;
        check_sizes(async |call| http2.send(call).await).await;
    });
}

#[test]
fn no_size_stalls_over_tls() {
    let certificate = Certificate::new();
    let fixture = serve_with(|config| config.tls = Some(certificate.load()));
    check_http1(&fixture.client, &mut certificate.connect(&fixture.client).unwrap());
    run(async {
        let http2 = Http2::connect_tls(&fixture.client, &certificate).await;
        check_sizes(async |call| http2.send(call).await).await;
    });
}

#[cfg(feature = "http3")]
#[test]
fn no_size_stalls_over_http3() {
    let certificate = Certificate::new();
    let fixture = serve_with(|config| (config.tls, config.http3) = (Some(certificate.load()), true));
    run(async {
        let mut http3 = client::http3::Http3::connect(&fixture.client, &certificate).await;
        check_sizes(async |call| http3.send(call).await).await;
    });
}
