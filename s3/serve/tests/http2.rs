//! Tests valid and invalid HTTP/2 requests, as clients may send them.

mod client;

use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use client::http2::{Http2, push, run, take};
use client::slow::SlowStore;
use client::tls::Certificate;
use client::{BUCKET, Call, bucket, key, serve, serve_through, serve_with};
use fordway_store::{Checksum, ChecksumAlgorithm, GetOptions, Objects, PutOptions};

const WAIT: Duration = Duration::from_millis(300);

/// Sends a few operations, and checks the statuses, some headers and the content of their responses.
async fn tour(http2: &Http2) {
    let content: Vec<u8> = (0..3_000_000_u32).map(|number| (number / 11) as u8).collect();
    let put = Call::on("PUT", "a b%2B").header("x-amz-meta-colour", "blue");
    assert_eq!(
        http2.send(&Call { path: format!("/{BUCKET}/a%20b%2B"), ..put }.body(&content[..])).await.status,
        200
    );
    let get = || Call::on("GET", "a%20b%2B");
    let whole = http2.send(&get()).await.ok();
    assert!(whole.body == content);
    assert_eq!(whole.header("content-length"), Some("3000000"));
    assert_eq!(whole.header("x-amz-meta-colour"), Some("blue"));
    let part = http2.send(&get().header("range", "bytes=10-1999999")).await;
    assert!(part.status == 206 && part.body == content[10..2_000_000]);
    let head = http2.send(&Call::on("HEAD", "a%20b%2B")).await.ok();
    assert_eq!((head.header("content-length"), head.body.len()), (Some("3000000"), 0));
    assert_eq!(http2.send(&Call::on("HEAD", "none")).await.status, 404);
    assert_eq!(http2.send(&Call::on("GET", "none")).await.error(), (404, "NoSuchKey".to_owned()));
    let etag = whole.header("etag").unwrap();
    assert_eq!(http2.send(&get().header("if-none-match", etag)).await.status, 304);
    let listed = http2.send(&Call::new("GET", format!("/{BUCKET}")).query("list-type=2")).await.ok();
    assert_eq!(listed.elements("Key"), ["a b+"]);
    assert_eq!(http2.send(&Call::on("DELETE", "a%20b%2B")).await.status, 204);
    let mut forged = http2.request(&get());
    forged.headers_mut().insert("range", http::HeaderValue::from_static("bytes=0-0"));
    forged.headers_mut().insert("x-amz-content-sha256", http::HeaderValue::from_static("UNSIGNED-PAYLOAD"));
    let (answer, _) = http2.send.clone().send_request(forged, true).unwrap();
    assert_eq!(answer.await.unwrap().status(), 403);
}

#[test]
fn with_prior_knowledge_and_by_alpn() {
    let fixture = serve();
    run(async { tour(&Http2::connect(&fixture.client).await).await });
    let certificate = Certificate::new();
    let fixture = serve_with(|config| config.tls = Some(certificate.load()));
    run(async { tour(&Http2::connect_tls(&fixture.client, &certificate).await).await });
}

#[test]
fn an_empty_object_and_one_of_unknown_length() {
    let fixture = serve();
    run(async {
        let http2 = Http2::connect(&fixture.client).await;
        http2.send(&Call::on("PUT", "empty")).await.ok();
        assert_eq!(http2.send(&Call::on("GET", "empty")).await.ok().body, b"");
        let put = Call::on("PUT", "k").payload("UNSIGNED-PAYLOAD");
        let mut request = http2.request(&put);
        request.headers_mut().remove("content-length");
        let (response, mut upload) = http2.send.clone().send_request(request, false).unwrap();
        for piece in [&b"one "[..], b"two ", b"three"] {
            // An error is ignored, because a server that refuses a body does not read the rest of the body.
            let _ = push(&mut upload, piece, false).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let _ = upload.send_data(Default::default(), true);
        assert_eq!(response.await.unwrap().status().as_u16(), 411, "S3 requires the length in the head");
        assert!(fixture.store.head(&bucket(), &key("k"), &GetOptions::default()).is_err());
    });
}

/// The preface may arrive in several pieces. Bytes that only begin like the preface are HTTP/1.1, or invalid.
#[test]
fn the_preface_is_told_from_other_requests() {
    let fixture = serve();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for cut in [1, 3, 10, 23] {
        let mut stream = fixture.client.connect();
        stream.write_all(&preface[..cut]).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        stream.write_all(&preface[cut..]).unwrap();
        // Sends empty SETTINGS; the server responds with its own SETTINGS, a frame of type 4.
        stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).unwrap();
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(head[3], 4, "{head:?}");
    }
    for other in [
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\rX",
        "PRI /x HTTP/1.1\r\nhost: h\r\n\r\n",
        "PRI * HTTP/2.0\r\nh: 1\r\n\r\n",
    ] {
        let mut stream = fixture.client.connect();
        stream.write_all(other.as_bytes()).unwrap();
        let mut answer = [0; 9];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 ", "{other}");
    }
}

#[test]
fn two_hundred_requests_at_once_on_one_connection() {
    let fixture = serve();
    let content = vec![7; 100_000];
    fixture.store.put(&bucket(), &key("k"), &content, &PutOptions::default()).unwrap();
    run(async {
        let http2 = Http2::connect(&fixture.client).await;
        let mut started = Vec::new();
        for _ in 0..200 {
            let answer = http2.start(&Call::on("GET", "k"), true).await.0;
            started.push(tokio::spawn(async { take(&mut answer.await.unwrap().into_body()).await.unwrap() }));
        }
        for taken in started {
            assert!(taken.await.unwrap() == content);
        }
    });
}

/// If a request stalls, the gateway ends only this request. Other requests on the connection continue.
#[test]
fn a_client_that_neither_sends_nor_takes_is_cut_off() {
    let fixture = serve_with(|config| config.stall_timeout = WAIT);
    let content = vec![7; 4_000_000];
    fixture.store.put(&bucket(), &key("large"), &content, &PutOptions::default()).unwrap();
    run(async {
        let http2 = Http2::connect(&fixture.client).await;
        let start = Instant::now();
        let put = Call::on("PUT", "half").payload("UNSIGNED-PAYLOAD").body(vec![1; 1000]);
        let (answer, mut upload) = http2.start(&put, false).await;
        push(&mut upload, &[1; 500], false).await.unwrap();
        let (download, _) = http2.start(&Call::on("GET", "large"), true).await;
        let mut body = download.await.unwrap().into_body();
        // The client never opens its window again.
        let mut taken = 0;
        let error = loop {
            match body.data().await.expect("it cannot end well") {
                Ok(piece) => taken += piece.len(),
                Err(error) => break error,
            }
        };
        assert!(error.is_reset() && taken <= 1 << 20, "{error}");
        let error = answer.await.expect_err("half of it is missing");
        assert!(error.is_reset(), "{error}");
        let took = start.elapsed();
        assert!(took >= WAIT && took < 60 * WAIT, "{took:?}");
        assert!(fixture.store.head(&bucket(), &key("half"), &GetOptions::default()).is_err());
        assert_eq!(http2.send(&Call::on("HEAD", "large")).await.status, 200);
    });
}

/// The stall timeout limits the time for which the gateway waits for the client, not the time for which the gateway
/// works. A client that then does not receive the response is still cut off.
#[test]
fn a_request_on_which_the_gateway_works_for_long_is_not_ended() {
    let fixture = serve_through(
        |inner| std::sync::Arc::new(SlowStore { inner, delay: 4 * WAIT, after_head: |_| () }),
        |config| config.stall_timeout = WAIT,
    );
    fixture.store.put(&bucket(), &key("k"), b"content", &PutOptions::default()).unwrap();
    let many = |number: usize| key(&format!("{number:0>1000}"));
    (0..1000).for_each(|number| {
        fixture.store.put(&bucket(), &many(number), b"", &PutOptions::default()).unwrap();
    });
    run(async {
        let http2 = Http2::connect(&fixture.client).await;
        let copy = Call::on("PUT", "copy").header("x-amz-copy-source", format!("/{BUCKET}/k"));
        let start = Instant::now();
        http2.send(&copy).await.ok();
        assert!(start.elapsed() >= 4 * WAIT, "the copy was not slow");
        http2.send(&Call::on("GET", "copy")).await.ok();

        let begun = http2.send(&Call::on("POST", "up").query("uploads")).await.ok();
        let query = format!("uploadId={}", begun.element("UploadId").unwrap());
        let number = format!("partNumber=1&{query}");
        let part = http2.send(&Call::on("PUT", "up").query(&number).body("part")).await.ok();
        let etag = part.header("etag").unwrap();
        let parts = format!(
            "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>"
        );
        // The body arrives in two pieces, so that the gateway first waits for the client and then works.
        let complete = Call::on("POST", "up").query(&query).payload("UNSIGNED-PAYLOAD").body(parts);
        let (answer, mut upload) = http2.start(&complete, false).await;
        push(&mut upload, &complete.body[..20], false).await.unwrap();
        tokio::time::sleep(WAIT / 10).await;
        push(&mut upload, &complete.body[20..], true).await.unwrap();
        assert_eq!(answer.await.unwrap().status(), 200);

        let list = Call::new("GET", format!("/{BUCKET}")).query("list-type=2");
        let mut body = http2.start(&list, true).await.0.await.unwrap().into_body();
        let error = loop {
            // The client never opens its window again.
            match body.data().await.map(|piece| piece.map(|piece| piece.len())) {
                Some(Ok(_)) => {}
                Some(Err(error)) => break error,
                None => panic!("the listing fits into the window"),
            }
        };
        assert!(error.is_reset(), "{error}");
    });
}

/// A request that waits while other requests use all of a slow link has a longer timeout than a request on an idle
/// link.
#[test]
fn a_request_among_others_that_move_is_waited_for_longer() {
    // The stall timeout is long enough for a client that is delayed by other processes on the machine.
    const STALL: Duration = Duration::from_millis(300);
    let fixture = serve_with(|config| config.stall_timeout = STALL);
    run(async {
        let http2 = Http2::connect(&fixture.client).await;
        let start = Instant::now();
        let put = Call::on("PUT", "half").payload("UNSIGNED-PAYLOAD").body(vec![1; 1000]);
        let (mut answer, mut upload) = http2.start(&put, false).await;
        push(&mut upload, &[1; 500], false).await.unwrap();
        let busy = Call::on("PUT", "busy").payload("UNSIGNED-PAYLOAD").body(vec![1; 1_000_000]);
        let (_busy, mut other) = http2.start(&busy, false).await;
        let error = loop {
            push(&mut other, &[1; 100], false).await.unwrap();
            if let Ok(answer) = tokio::time::timeout(STALL / 15, &mut answer).await {
                break answer.expect_err("half of it is missing");
            }
        };
        assert!(error.is_reset(), "{error}");
        let took = start.elapsed();
        assert!(took >= 9 * STALL && took < 200 * STALL, "{took:?}");
    });
}

#[test]
fn a_connection_without_requests_ends() {
    let fixture = serve_with(|config| config.header_timeout = WAIT);
    // The server's wait begins when it accepts a connection.
    let start = Instant::now();
    run(async { Http2::connect(&fixture.client).await.ended.await.unwrap().unwrap() });
    assert!(start.elapsed() >= WAIT && start.elapsed() < 200 * WAIT, "{:?}", start.elapsed());
    // The client sends only half of a head: a HEADERS frame that announces a continuation.
    let start = Instant::now();
    let mut stream = fixture.client.connect();
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x01\x01\0\0\0\0\x01\x82")
        .unwrap();
    let _ = stream.read_to_end(&mut Vec::new());
    assert!(start.elapsed() >= WAIT && start.elapsed() < 200 * WAIT, "{:?}", start.elapsed());
}

#[test]
fn requests_in_progress_are_finished_when_the_gateway_stops() {
    let fixture = serve();
    run(async {
        let mut http2 = Http2::connect(&fixture.client).await;
        let put = Call::on("PUT", "k").payload("UNSIGNED-PAYLOAD").body(vec![1; 1000]);
        let (answer, mut upload) = http2.start(&put, false).await;
        push(&mut upload, &[1; 500], false).await.unwrap();
        // When this response arrives, the server has started to process the upload.
        http2.send(&Call::on("HEAD", "k")).await;
        fixture.gateway.stop_handle().trigger();
        // After GOAWAY, the server accepts no further request.
        while std::future::poll_fn(|context| http2.send.poll_ready(context)).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        push(&mut upload, &[1; 500], true).await.unwrap();
        assert_eq!(answer.await.unwrap().status(), 200);
        http2.ended.await.unwrap().unwrap();
    });
    fixture.store.head(&bucket(), &key("k"), &GetOptions::default()).unwrap();
}

/// A client that reads from its connection only when it sends a request does not notice GOAWAY.
#[test]
fn a_client_that_does_not_listen_does_not_delay_the_end() {
    let fixture = serve_with(|config| config.drain_timeout = Duration::from_secs(3600));
    let mut silent = fixture.client.connect();
    // Sends the preface and empty SETTINGS; the server responds with its own SETTINGS.
    silent.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    silent.read_exact(&mut [0; 9]).unwrap();
    fixture.gateway.stop_handle().trigger();
    let (ended, is_over) = std::sync::mpsc::channel();
    std::thread::spawn(move || ended.send(fixture.gateway.join()));
    is_over.recv_timeout(Duration::from_secs(60)).expect("the gateway goes on").unwrap();
}

/// Rapid reset (CVE-2023-44487): each request is reset in the same segment in which it arrives.
#[test]
fn requests_taken_back_at_once_end_the_connection() {
    let fixture = serve();
    let mut stream = fixture.client.connect();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    for first in (1_u32..200_000).step_by(128) {
        let frames = (first..first + 128).step_by(2).flat_map(|stream_id| {
            let id = stream_id.to_be_bytes();
            // A HEADERS frame for `GET http://h/` with entries of the static table, and a RST_STREAM frame with CANCEL.
            let head = [&[0, 0, 6, 1, 5][..], &id, &[0x82, 0x84, 0x86, 0x41, 1, b'h']].concat();
            [head, [&[0, 0, 4, 3, 0][..], &id, &[0, 0, 0, 8]].concat()].concat()
        });
        if stream.write_all(&frames.collect::<Vec<_>>()).is_err() {
            break;
        }
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    // A GOAWAY frame with ENHANCE_YOUR_CALM.
    let is_goaway = |frame: &[u8]| frame[3] == 7 && frame[13..17] == [0, 0, 0, 11];
    assert!(answer.windows(17).any(is_goaway), "{} bytes", answer.len());
    assert_eq!(fixture.client.send(&Call::on("HEAD", "none")).status, 404);
}

/// Reads frames until a frame has the type `wanted` or is GOAWAY, and returns the type of this frame.
fn read_until(stream: &mut impl std::io::Read, wanted: u8) -> u8 {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        stream.read_exact(&mut vec![0; length as usize]).unwrap();
        if [wanted, 7].contains(&head[3]) {
            return head[3];
        }
    }
}

/// A client does not know that its request is refused until the response arrives. A body that is in transit at that
/// time is not an error of the client.
#[test]
fn bodies_that_arrive_after_the_refusal_do_not_end_the_connection() {
    const HEADERS: u8 = 1;
    const PING: u8 = 6;
    let ping = [&[0, 0, 8, PING, 0, 0, 0, 0, 0][..], &[1; 8]].concat();
    let fixture = serve();
    let mut stream = fixture.client.connect();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    // A WINDOW_UPDATE frame that enlarges the connection's window, so that the responses to all requests fit.
    stream.write_all(&[0, 0, 4, 8, 0, 0, 0, 0, 0, 0x0f, 0, 0, 0]).unwrap();
    let ids: Vec<u32> = (1..1001).step_by(2).collect();
    for ids in ids.chunks(100) {
        // A HEADERS frame for `POST http://h/` with entries of the static table, without END_STREAM.
        let head =
            |id: &u32| [&[0, 0, 6, 1, 4][..], &id.to_be_bytes(), &[0x83, 0x84, 0x86, 0x41, 1, b'h']].concat();
        stream.write_all(&ids.iter().flat_map(head).collect::<Vec<_>>()).unwrap();
        for _ in ids {
            assert_eq!(read_until(&mut stream, HEADERS), HEADERS);
        }
        stream.write_all(&ping).unwrap();
        assert_eq!(read_until(&mut stream, PING), PING);
        let body = |id: &u32| [&[0, 0, 1, 0, 1][..], &id.to_be_bytes(), b"x"].concat();
        stream.write_all(&ids.iter().flat_map(body).collect::<Vec<_>>()).unwrap();
        stream.write_all(&ping).unwrap();
        assert_eq!(read_until(&mut stream, PING), PING);
    }
}

#[test]
fn a_head_that_is_too_large_is_refused() {
    let fixture = serve();
    run(async {
        let http2 = Http2::connect(&fixture.client).await;
        let call = Call::on("GET", "k").header("x-long", "a".repeat(70_000));
        let answer = http2.send(&call).await;
        assert_eq!(answer.status, 431);
        assert_eq!(http2.send(&Call::on("GET", "k")).await.status, 404);
    });
}

/// A body without `content-length` has the same size limit as other bodies.
#[test]
fn a_body_of_unstated_length_is_limited_too() {
    let fixture = serve_with(|config| config.body_bytes_max = 100_000);
    run(async {
        let http2 = Http2::connect(&fixture.client).await;
        for (size, status) in [(90_000, 200), (200_000, 400)] {
            let put = Call::on("PUT", "k")
                .payload("STREAMING-UNSIGNED-PAYLOAD-TRAILER")
                .header("x-amz-decoded-content-length", size.to_string())
                .header("x-amz-trailer", "x-amz-checksum-crc32");
            let content = vec![7; size];
            let sum = Checksum::of(ChecksumAlgorithm::Crc32, &content).to_base64();
            let end = format!("\r\n0\r\nx-amz-checksum-crc32:{sum}\r\n\r\n");
            let body = [format!("{size:x}\r\n").as_bytes(), &content, end.as_bytes()].concat();
            let mut request = http2.request(&put);
            request.headers_mut().remove("content-length");
            let (response, mut upload) = http2.send.clone().send_request(request, false).unwrap();
            // An error is ignored, because a server that refuses a body does not read the rest of the body.
            let _ = push(&mut upload, &body, true).await;
            assert_eq!(response.await.unwrap().status().as_u16(), status, "{size}");
            let stored = fixture.store.head(&bucket(), &key("k"), &GetOptions::default());
            assert_eq!(stored.unwrap().size, 90_000, "{size}");
        }
    });
}
