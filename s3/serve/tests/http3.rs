//! Tests valid and invalid HTTP/3 requests, as clients may send them.
#![cfg(feature = "http3")]

mod client;

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::frames::{DATA, HEADERS, RawHttp3, UNKNOWN, frame, head, run_until_sent};
use client::http2::{Http2, run};
use client::http3::{Http3, endpoint, take};
use client::slow::SlowStore;
use client::tls::Certificate;
use client::{BUCKET, Call, Fixture, bucket, key, serve_through, serve_with};
use fordway_serve::GatewayConfig;
use fordway_store::{ErrorKind, GetOptions, Objects, PutOptions};

fn serve_http3(change: impl FnOnce(&mut GatewayConfig)) -> (Fixture, Certificate) {
    let certificate = Certificate::new();
    let fixture = serve_with(|config| {
        config.tls = Some(certificate.load());
        config.http3 = true;
        change(config);
    });
    (fixture, certificate)
}

/// Returns the Initial packets of `count` connections. The packets are valid, but their sender ignores responses.
async fn first_packets(count: usize, certificate: &Certificate) -> Vec<Vec<u8>> {
    let captured = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(certificate.client_config("h3")).unwrap();
    let config = quinn::ClientConfig::new(std::sync::Arc::new(crypto));
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = captured.local_addr().unwrap();
    let connecting: Vec<_> =
        (0..count).map(|_| endpoint.connect_with(config.clone(), address, "localhost").unwrap()).collect();
    let mut by_connection = std::collections::HashMap::new();
    while by_connection.len() < count {
        let mut packet = vec![0; 2048];
        let length = captured.recv(&mut packet).await.unwrap();
        packet.truncate(length);
        // The connection ID of the server follows the version (RFC 9000 section 17.2). Its first bytes are random.
        by_connection.entry(packet[5..14].to_vec()).or_insert(packet);
    }
    drop(connecting);
    by_connection.into_values().collect()
}

/// The addresses of Initial packets may be spoofed, so connections whose handshakes do not continue must not take the
/// slots of other connections.
#[test]
fn unfinished_handshakes_leave_connections_for_others() {
    let (fixture, certificate) = serve_http3(|config| {
        config.connections_max = 20;
        config.header_timeout = Duration::from_secs(120);
    });
    run(async {
        let packets = first_packets(60, &certificate).await;
        let sender = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        for packet in packets {
            sender.send_to(&packet, fixture.client.address).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        let served = async {
            let http2 = Http2::connect_tls(&fixture.client, &certificate).await;
            assert_eq!(http2.send(&Call::on("GET", "none")).await.status, 404);
            let mut http3 = Http3::connect(&fixture.client, &certificate).await;
            assert_eq!(http3.send(&Call::on("GET", "none")).await.status, 404);
        };
        tokio::time::timeout(Duration::from_secs(60), served).await.expect("others are not served");
    });
}

/// A connection without packets ends after the header timeout. While the gateway works on a request, the connection
/// must not end, although this client sends no packets of its own.
#[test]
fn a_request_on_which_the_gateway_works_for_long_is_not_ended() {
    const HEADER: Duration = Duration::from_secs(3);
    let certificate = Certificate::new();
    let fixture = serve_through(
        |inner| std::sync::Arc::new(SlowStore { inner, delay: 3 * HEADER, after_head: |_| () }),
        |config| {
            config.tls = Some(certificate.load());
            config.http3 = true;
            config.header_timeout = HEADER;
        },
    );
    fixture.store.put(&bucket(), &key("k"), b"content", &PutOptions::default()).unwrap();
    run(async {
        let mut http3 = Http3::connect(&fixture.client, &certificate).await;
        let copy = Call::on("PUT", "copy").header("x-amz-copy-source", format!("/{BUCKET}/k"));
        http3.send(&copy).await.ok();
        // Without a request, the connection ends.
        let ended = tokio::time::timeout(20 * HEADER, http3.connection.closed()).await;
        ended.expect("an idle connection remains open");
    });
}

fn content() -> Vec<u8> {
    (0..3_000_000_u32).map(|number| (number / 11) as u8).collect()
}

#[test]
fn a_tour() {
    let (fixture, certificate) = serve_http3(|_| ());
    run(async {
        let (mut http3, content) = (Http3::connect(&fixture.client, &certificate).await, content());
        let put = Call::new("PUT", format!("/{BUCKET}/a%20b%2B")).header("x-amz-meta-colour", "blue");
        http3.send(&put.body(&content[..])).await.ok();
        let get = || Call::on("GET", "a%20b%2B");
        let whole = http3.send(&get()).await.ok();
        assert!(whole.body == content);
        assert_eq!(whole.header("content-length"), Some("3000000"));
        assert_eq!(whole.header("x-amz-meta-colour"), Some("blue"));
        let part = http3.send(&get().header("range", "bytes=10-1999999")).await;
        assert!(part.status == 206 && part.body == content[10..2_000_000]);
        let parts = http3.send(&get().header("range", "bytes=0-4,2999999-")).await;
        assert!(
            parts.status == 206 && parts.header("content-type").unwrap().starts_with("multipart/byteranges")
        );
        let head = http3.send(&Call::on("HEAD", "a%20b%2B")).await.ok();
        assert_eq!((head.header("content-length"), head.body.len()), (Some("3000000"), 0));
        assert_eq!(http3.send(&Call::on("GET", "none")).await.error(), (404, "NoSuchKey".to_owned()));
        let etag = whole.header("etag").unwrap();
        assert_eq!(http3.send(&get().header("if-none-match", etag)).await.status, 304);
        let listed = http3.send(&Call::new("GET", format!("/{BUCKET}")).query("list-type=2")).await.ok();
        assert_eq!(listed.elements("Key"), ["a b+"]);
        assert_eq!(http3.send(&Call::new("PUT", "/new-bucket")).await.status, 200);
        assert_eq!(http3.send(&Call::on("DELETE", "a%20b%2B")).await.status, 204);
    });
}

/// Policies permit addresses, and QUIC clients can move. Requests that began before the client moved can end.
#[test]
fn a_client_keeps_the_address_of_its_handshake() {
    let (fixture, certificate) = serve_http3(|_| ());
    run(async {
        let mut http3 = Http3::connect(&fixture.client, &certificate).await;
        let get = Call::on("GET", "none");
        assert_eq!(http3.send(&get).await.status, 404);
        let endpoint = http3.endpoint.clone();
        let move_to = |address: &str| endpoint.rebind(std::net::UdpSocket::bind(address).unwrap()).unwrap();
        move_to("127.0.0.1:0");
        assert_eq!(http3.clone().send(&get).await.status, 404, "the port may change");
        let put = Call::on("PUT", "k").body(vec![5; 200_000]);
        let mut upload = http3.start(&put).await;
        upload.send_data(Bytes::copy_from_slice(&put.body[..100_000])).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        move_to("127.0.0.2:0");
        let mut stream = http3.start(&get).await;
        let _ = stream.finish().await;
        let error = stream.recv_response().await.expect_err("policies permit another address");
        let h3::error::StreamError::RemoteTerminate { code, .. } = error else { panic!("{error}") };
        assert_eq!(code, h3::error::Code::H3_REQUEST_REJECTED);
        upload.send_data(Bytes::copy_from_slice(&put.body[100_000..])).await.unwrap();
        upload.finish().await.unwrap();
        take(&mut upload).await.ok();
        http3.connection.closed().await;
    });
}

#[test]
fn policies_see_that_quic_has_tls_1_3() {
    let (fixture, certificate) = serve_http3(|_| ());
    run(async {
        let mut http3 = Http3::connect(&fixture.client, &certificate).await;
        for (version, status) in [("1.2", 404), ("1.3", 403)] {
            let policy = format!(
                "{{\"Version\": \"2012-10-17\", \"Statement\": {{\"Effect\": \"Deny\", \"Principal\": \"*\", \
                 \"Action\": \"s3:GetObject\", \"Resource\": \"arn:aws:s3:::{BUCKET}/*\", \
                 \"Condition\": {{\"NumericEquals\": {{\"s3:TlsVersion\": {version}}}}}}}}}"
            );
            let put = Call::new("PUT", format!("/{BUCKET}")).query("policy").body(policy);
            assert_eq!(http3.send(&put).await.status, 204);
            assert_eq!(http3.send(&Call::on("GET", "none")).await.status, status, "{version}");
        }
    });
}

#[test]
fn who_is_not_known_is_refused_and_too_much_too() {
    let (fixture, certificate) = serve_http3(|config| {
        config.body_bytes_max = 100_000;
        config.head_bytes_max = 4096;
    });
    run(async {
        let mut stranger = fixture.client.clone();
        stranger.identity.secret_key.push('x');
        let mut http3 = Http3::connect(&stranger, &certificate).await;
        assert_eq!(
            http3.send(&Call::on("GET", "k")).await.error(),
            (403, "SignatureDoesNotMatch".to_owned())
        );
        let mut http3 = Http3::connect(&fixture.client, &certificate).await;
        let large = http3.send(&Call::on("PUT", "k").body(vec![0; 100_001])).await;
        assert_eq!(large.status, 413);
        // The server announces the size limit for heads when the connection opens, and the client does not send a
        // longer head.
        let long = http3.try_start(&Call::on("PUT", "k").header("x-amz-meta-a", "x".repeat(6000))).await;
        let error = long.err().expect("it is too long");
        assert!(matches!(error, h3::error::StreamError::HeaderTooBig { max_size: 4096, .. }), "{error}");
        http3.send(&Call::on("PUT", "k").body(vec![0; 100_000])).await.ok();
    });
}

/// Runs many concurrent uploads and downloads on one connection.
#[test]
fn requests_share_a_connection() {
    let (fixture, certificate) = serve_http3(|_| ());
    run(async {
        let http3 = Http3::connect(&fixture.client, &certificate).await;
        let mut all = tokio::task::JoinSet::new();
        for number in 0..64_u8 {
            let mut http3 = http3.clone();
            all.spawn(async move {
                let (name, body) = (format!("k{number}"), vec![number; 300_000]);
                http3.send(&Call::on("PUT", &name).body(body.clone())).await.ok();
                assert!(http3.send(&Call::on("GET", &name)).await.ok().body == body);
            });
        }
        while let Some(done) = all.join_next().await {
            done.unwrap();
        }
    });
}

#[test]
fn clients_over_tcp_are_told_of_it() {
    let (fixture, certificate) = serve_http3(|_| ());
    let said = format!("h3=\":{}\"; ma=86400", fixture.client.address.port());
    run(async {
        let http2 = Http2::connect_tls(&fixture.client, &certificate).await;
        assert_eq!(http2.send(&Call::on("GET", "none")).await.header("alt-svc"), Some(&*said));
    });
    use std::io::Write as _;
    let mut stream = certificate.connect(&fixture.client).unwrap();
    stream.write_all(&client::lasting(&fixture.client, &Call::on("GET", "none"))).unwrap();
    assert!(client::next_answer(&mut stream).0.contains(&format!("alt-svc: {said}\r\n")));
    let plain = client::serve();
    assert_eq!(plain.client.send(&Call::on("GET", "none")).header("alt-svc"), None);
}

#[test]
fn a_newer_certificate_is_shown_to_those_who_come_then() {
    let mut certificate = Certificate::new();
    let tls = certificate.load();
    let fixture = serve_with(|config| {
        (config.tls, config.http3) = (Some(tls.clone()), true);
    });
    run(async {
        let mut before = Http3::connect(&fixture.client, &certificate).await;
        certificate.renew();
        assert!(
            Http3::try_connect(&fixture.client, &certificate).await.is_err(),
            "the old one is shown still"
        );
        tls.reload().unwrap();
        let mut after = Http3::connect(&fixture.client, &certificate).await;
        after.send(&Call::on("PUT", "k").body("x")).await.ok();
        assert_eq!(before.send(&Call::on("GET", "k")).await.ok().text(), "x");
    });
}

/// A stopping gateway finishes an upload that has begun, and accepts no new request.
#[test]
fn stopping_waits_for_what_was_begun() {
    let (fixture, certificate) = serve_http3(|_| ());
    let Fixture { store, client, gateway } = fixture;
    let (ended, has_ended) = channel();
    run(async {
        let mut http3 = Http3::connect(&client, &certificate).await;
        let idle = Http3::connect(&client, &certificate).await;
        let put = Call::on("PUT", "k").body(vec![5; 200_000]);
        let mut upload = http3.start(&put).await;
        upload.send_data(Bytes::copy_from_slice(&put.body[..100_000])).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        std::thread::spawn(move || {
            drop(gateway);
            ended.send(Instant::now())
        });
        idle.connection.closed().await;
        assert!(has_ended.try_recv().is_err(), "an upload is in progress");
        upload.send_data(Bytes::copy_from_slice(&put.body[100_000..])).await.unwrap();
        upload.finish().await.unwrap();
        take(&mut upload).await.ok();
    });
    has_ended.recv_timeout(Duration::from_secs(30)).unwrap();
    assert_eq!(store.head(&bucket(), &key("k"), &GetOptions::default()).unwrap().size, 200_000);
}

/// A client that stops sending a body gets an error, and the gateway asks a client without a request to close the
/// connection.
#[test]
fn who_does_not_move_is_not_waited_for() {
    let (fixture, certificate) = serve_http3(|config| {
        config.stall_timeout = Duration::from_millis(300);
        config.header_timeout = Duration::from_millis(600);
    });
    run(async {
        let mut http3 = Http3::connect(&fixture.client, &certificate).await;
        let put = Call::on("PUT", "k").body(vec![5; 200_000]);
        let mut upload = http3.start(&put).await;
        upload.send_data(Bytes::copy_from_slice(&put.body[..100_000])).await.unwrap();
        assert_eq!(take(&mut upload).await.error(), (400, "RequestTimeout".to_owned()));
        assert!(fixture.store.head(&bucket(), &key("k"), &GetOptions::default()).is_err());
        http3.connection.closed().await;
    });
}

/// Connects a client without limits for responses.
async fn connect_reader(fixture: &Fixture, certificate: &Certificate) -> RawHttp3 {
    let mut transport = quinn::TransportConfig::default();
    transport.stream_receive_window(quinn::VarInt::MAX).receive_window(quinn::VarInt::MAX);
    RawHttp3::connect_with(&fixture.client, certificate, transport).await
}

/// Responses have been sent as a whole, but the client receives only a part.
#[test]
fn a_client_that_does_not_receive_the_end_of_its_responses_is_disconnected() {
    let (fixture, certificate) = serve_http3(|config| config.stall_timeout = Duration::from_secs(1));
    fixture.store.put(&bucket(), &key("k"), &vec![7; 1_900_000], &PutOptions::default()).unwrap();
    run(async {
        let connection = connect_reader(&fixture, &certificate).await;
        let get = client::http3::request(&fixture.client, &Call::on("GET", "k"));
        let (mut send, mut receive) = connection.start(&get).await;
        send.finish().unwrap();
        receive.read_to_end(4 << 20).await.unwrap();
        let (mut send, mut receive) = connection.start(&get).await;
        send.finish().unwrap();
        run_until_sent().await;
        // The client runs on this thread, and acknowledges nothing.
        std::thread::sleep(Duration::from_secs(6));
        receive.read_to_end(4 << 20).await.expect_err("the connection is closed");
        // A client without a request may remain, if it has received everything.
        let connection = connect_reader(&fixture, &certificate).await;
        let (mut send, mut receive) = connection.start(&get).await;
        send.finish().unwrap();
        receive.read_to_end(4 << 20).await.unwrap();
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert!(connection.quic.close_reason().is_none());
    });
}

async fn read_whole(fixture: &Fixture, connection: &RawHttp3, name: &str) {
    let get = client::http3::request(&fixture.client, &Call::on("GET", name));
    let (mut send, mut receive) = connection.start(&get).await;
    send.finish().unwrap();
    receive.read_to_end(4 << 20).await.unwrap();
}

/// The gateway sends a byte on a stream to find out whether the client has acknowledged all data. A client need not
/// permit more than three streams (RFC 9114 section 6.2).
#[test]
fn an_idle_client_that_permits_few_streams_is_kept() {
    let (fixture, certificate) = serve_http3(|config| {
        (config.stall_timeout, config.header_timeout) = (Duration::from_secs(1), Duration::from_secs(5));
    });
    fixture.store.put(&bucket(), &key("k"), &vec![7; 1_900_000], &PutOptions::default()).unwrap();
    run(async {
        let connect = async |streams_max: u32| {
            let mut transport = quinn::TransportConfig::default();
            transport.stream_receive_window(quinn::VarInt::MAX).receive_window(quinn::VarInt::MAX);
            transport.max_concurrent_uni_streams(streams_max.into());
            RawHttp3::connect_with(&fixture.client, &certificate, transport).await
        };
        let (few, many) = (connect(3).await, connect(100).await);
        read_whole(&fixture, &few, "k").await;
        for _ in 0..3 {
            read_whole(&fixture, &many, "k").await;
            tokio::time::sleep(Duration::from_millis(1200)).await;
        }
        assert!(few.quic.close_reason().is_none(), "ended early");
        let mut streams = Vec::new();
        while let Ok(stream) = tokio::time::timeout(Duration::from_millis(100), many.quic.accept_uni()).await
        {
            streams.push(stream.unwrap());
        }
        // The control stream, the streams of QPACK, the stream of h3 without a meaning, and one of the gateway.
        assert!(streams.len() <= 5, "{} streams", streams.len());
        few.closed_with().await;
    });
}

/// Reads all streams of the gateway except responses. Returns the content of its control stream.
async fn control_stream(quic: quinn::Connection) -> Vec<u8> {
    let mut streams = tokio::task::JoinSet::new();
    while let Ok(mut stream) = quic.accept_uni().await {
        streams.spawn(async move {
            let mut content = Vec::new();
            while let Ok(Some(chunk)) = stream.read_chunk(1 << 10, true).await {
                content.extend_from_slice(&chunk.bytes);
            }
            content
        });
    }
    let streams = streams.join_all().await;
    streams.into_iter().find(|content| content.first() == Some(&0)).expect("there is a control stream")
}

/// When the gateway stops, there is no room for another frame, because the client pauses.
#[test]
fn a_stopping_gateway_tells_a_slow_client() {
    let (fixture, certificate) = serve_http3(|_| ());
    fixture.store.put(&bucket(), &key("k"), &vec![7; 30_000_000], &PutOptions::default()).unwrap();
    run(async {
        let connection = connect_reader(&fixture, &certificate).await;
        let control = tokio::spawn(control_stream(connection.quic.clone()));
        let get = client::http3::request(&fixture.client, &Call::on("GET", "k"));
        let (mut send, mut receive) = connection.start(&get).await;
        send.finish().unwrap();
        let mut taken = 0;
        while taken < 6_000_000 {
            taken += receive.read_chunk(1 << 20, true).await.unwrap().unwrap().bytes.len();
        }
        let stopping = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(fixture);
        });
        // The client runs on this thread.
        std::thread::sleep(Duration::from_millis(1600));
        receive.read_to_end(30_000_000).await.expect("the response is whole");
        let content = control.await.unwrap();
        // The GOAWAY frame with the ID of the next request.
        assert!(content.ends_with(&[7, 1, 4]), "{content:x?}");
        stopping.join().unwrap();
    });
}

/// A body that is shorter than announced is not published.
#[test]
fn a_body_cut_short_is_refused() {
    let (fixture, certificate) = serve_http3(|_| ());
    run(async {
        let mut http3 = Http3::connect(&fixture.client, &certificate).await;
        let put = Call::on("PUT", "k").body(vec![5; 200_000]);
        let mut upload = http3.start(&put).await;
        upload.send_data(Bytes::copy_from_slice(&put.body[..100_000])).await.unwrap();
        upload.finish().await.unwrap();
        assert_eq!(take(&mut upload).await.error().0, 400);
        let stored = fixture.store.head(&bucket(), &key("k"), &GetOptions::default());
        assert_eq!(stored.expect_err("half a body is not an object").kind(), ErrorKind::NoSuchKey);
    });
}

/// RFC 9114 sections 4.1.2 and 4.2 define which requests are malformed.
#[test]
fn malformed_requests_are_reset() {
    let (fixture, certificate) = serve_http3(|_| ());
    run(async {
        let mut http3 = Http3::connect(&fixture.client, &certificate).await;
        let put = Call::on("PUT", "k").body(vec![5; 1000]);
        for (name, values) in [
            ("content-length", &["0"][..]),
            ("content-length", &["5, 1000"]),
            ("content-length", &["1000, 1000"]),
            ("content-length", &["5", "1000"]),
            ("content-length", &["1000", "5"]),
            ("content-length", &["+1000"]),
            ("content-length", &["-1"]),
            ("content-length", &[""]),
            ("content-length", &["99999999999999999999999"]),
            ("transfer-encoding", &["chunked"]),
            ("connection", &["close"]),
            ("keep-alive", &["timeout=5"]),
            ("te", &["gzip"]),
        ] {
            let mut request = http3.request(&put);
            request.headers_mut().remove(name);
            for value in values {
                request.headers_mut().append(name, value.parse().unwrap());
            }
            let mut stream = http3.start_request(request).await.unwrap();
            let _ = stream.send_data(Bytes::copy_from_slice(&put.body)).await;
            let _ = stream.finish().await;
            let error = stream.recv_response().await.expect_err("it is malformed");
            let h3::error::StreamError::RemoteTerminate { code, .. } = error else {
                panic!("{name} {values:?}: {error}")
            };
            assert_eq!(code, h3::error::Code::H3_MESSAGE_ERROR, "{name} {values:?}");
        }
        assert!(fixture.store.head(&bucket(), &key("k"), &GetOptions::default()).is_err());
        let mut request = http3.request(&put);
        request.headers_mut().append("content-length", "1000".parse().unwrap());
        request.headers_mut().append("te", "trailers".parse().unwrap());
        let mut stream = http3.start_request(request).await.unwrap();
        stream.send_data(Bytes::copy_from_slice(&put.body)).await.unwrap();
        stream.finish().await.unwrap();
        take(&mut stream).await.ok();
        http3.send(&Call::on("PUT", "empty")).await.ok();
    });
}

/// Until its end arrives, a request that declares an empty body counts as well-formed.
#[test]
fn a_request_without_an_end_is_cancelled() {
    let (fixture, certificate) = serve_http3(|config| config.stall_timeout = Duration::from_millis(300));
    run(async {
        let mut http3 = Http3::connect(&fixture.client, &certificate).await;
        let mut request = http3.request(&Call::on("PUT", "k"));
        request.headers_mut().insert("content-length", "0".parse().unwrap());
        let mut stream = http3.start_request(request).await.unwrap();
        let error = stream.recv_response().await.expect_err("the end never arrives");
        let h3::error::StreamError::RemoteTerminate { code, .. } = error else { panic!("{error}") };
        assert_eq!(code, h3::error::Code::H3_REQUEST_CANCELLED);
        assert!(fixture.store.head(&bucket(), &key("k"), &GetOptions::default()).is_err());
    });
}

/// The body is longer than the `content-length` of the request.
#[test]
fn a_body_longer_than_stated_is_refused() {
    let (fixture, certificate) = serve_http3(|_| ());
    run(async {
        let mut http3 = Http3::connect(&fixture.client, &certificate).await;
        for pause in [Duration::ZERO, Duration::from_millis(200)] {
            let put = Call::on("PUT", "k").body(vec![5; 1000]);
            let mut upload = http3.start(&put).await;
            upload.send_data(Bytes::copy_from_slice(&put.body)).await.unwrap();
            tokio::time::sleep(pause).await;
            let _ = upload.send_data(Bytes::from_static(b"more")).await;
            let _ = upload.finish().await;
            assert_eq!(take(&mut upload).await.error().0, 400, "{pause:?}");
            assert!(fixture.store.head(&bucket(), &key("k"), &GetOptions::default()).is_err());
        }
    });
}

#[test]
fn it_needs_a_certificate() {
    let mut config = GatewayConfig::new("127.0.0.1:0".parse().unwrap());
    config.http3 = true;
    let users = fordway_serve::Users::one(
        fordway_serve::AccessKeyPair::generate().unwrap(),
        std::sync::Arc::new(fordway_store::MemoryStore::default()),
    );
    let refused = fordway_serve::Gateway::bind(users, config).err().expect("there is no certificate");
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn an_upload_without_a_length_is_refused() {
    let (fixture, certificate) = serve_http3(|_| ());
    run(async {
        let mut http3 = Http3::connect(&fixture.client, &certificate).await;
        for body in [&b""[..], b"content"] {
            let mut request = http3.request(&Call::on("PUT", "k").payload("UNSIGNED-PAYLOAD"));
            request.headers_mut().remove("content-length");
            let mut upload = http3.start_request(request).await.unwrap();
            // An error is ignored, because a server that refuses a body does not read the rest of the body.
            let _ = upload.send_data(Bytes::from_static(body)).await;
            let _ = upload.finish().await;
            let answer = take(&mut upload).await;
            assert_eq!(answer.error(), (411, "MissingContentLength".to_owned()));
            assert!(fixture.store.head(&bucket(), &key("k"), &GetOptions::default()).is_err());
        }
    });
}

/// Many large responses share one connection, and none of them waits until the others are finished. A response that the
/// client does not read does not delay other responses, and is ended by a timeout.
#[test]
fn large_answers_share_a_connection_fairly() {
    let (fixture, certificate) = serve_http3(|config| config.stall_timeout = Duration::from_secs(3));
    run(async {
        let mut http3 = Http3::connect(&fixture.client, &certificate).await;
        let body = vec![9; 16 << 20];
        http3.send(&Call::on("PUT", "k").body(body.clone())).await.ok();
        let mut unread = http3.start(&Call::on("GET", "k")).await;
        unread.finish().await.unwrap();
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..16 {
            let mut http3 = http3.clone();
            all.spawn(async move {
                let mut stream = http3.start(&Call::on("GET", "k")).await;
                stream.finish().await.unwrap();
                stream.recv_response().await.unwrap();
                stream.recv_data().await.unwrap().unwrap();
                let first = Instant::now();
                let mut taken = 0;
                while let Some(piece) = stream.recv_data().await.unwrap() {
                    taken += bytes::Buf::remaining(&piece);
                }
                assert!(taken > 15 << 20);
                (first, Instant::now())
            });
        }
        let times: Vec<_> = all.join_all().await;
        let last_first = times.iter().map(|(first, _)| *first).max().unwrap();
        let first_last = times.iter().map(|(_, last)| *last).min().unwrap();
        assert!(last_first < first_last, "a response began after another had ended");
        unread.recv_response().await.unwrap();
        tokio::time::sleep(Duration::from_secs(7)).await;
        let cut = async {
            while unread.recv_data().await?.is_some() {}
            Ok::<(), h3::error::StreamError>(())
        };
        cut.await.expect_err("it was not read for longer than a client may pause");
    });
}

/// The error code of a connection (RFC 9114 section 8.1).
const EXCESSIVE_LOAD: u64 = 0x107;

/// QUIC keeps the memory of a refused connection for a while. Until then, clients with other connections must first
/// validate their addresses. Refusing these clients costs no memory, because it precedes the handshake.
#[test]
fn few_refused_connections_use_memory_at_once() {
    let (fixture, certificate) = serve_http3(|config| {
        config.connections_max = 8;
        config.address_connections_max = 1;
    });
    run(async {
        let endpoint = endpoint(&certificate, quinn::TransportConfig::default());
        let connect = || endpoint.connect(fixture.client.address, "localhost").unwrap();
        let _first = connect().await.unwrap();
        // On a slow machine, QUIC may already have freed the memory when the next client connects.
        for _ in 0..20 {
            // The client's handshake ends before the gateway's.
            tokio::time::sleep(Duration::from_millis(500)).await;
            let Ok(refused) = connect().await else { continue };
            match refused.closed().await {
                quinn::ConnectionError::ApplicationClosed(why) => {
                    assert_eq!(why.error_code.into_inner(), EXCESSIVE_LOAD);
                }
                other => panic!("{other}"),
            }
            if let Err(quinn::ConnectionError::ConnectionClosed(_)) = connect().await {
                return;
            }
        }
        panic!("no client had to validate its address");
    });
}

/// A client that announces a frame of any length must not make the gateway hold the frame.
#[test]
fn a_frame_that_is_too_long_ends_the_connection() {
    let (fixture, certificate) = serve_http3(|_| ());
    run(async {
        let raw = || RawHttp3::connect(&fixture.client, &certificate, 1 << 20);
        for kind in [HEADERS, UNKNOWN] {
            let connection = raw().await;
            let (mut send, _receive) = connection.quic.open_bi().await.unwrap();
            send.write_all(&head(kind, 1 << 40)).await.unwrap();
            assert_eq!(connection.closed_with().await, EXCESSIVE_LOAD, "{kind} at the beginning");
            let mut connection = raw().await;
            connection.control.write_all(&head(kind, 1 << 40)).await.unwrap();
            assert_eq!(connection.closed_with().await, EXCESSIVE_LOAD, "{kind} on the control stream");
            let connection = raw().await;
            let put = Call::on("PUT", "k").payload("UNSIGNED-PAYLOAD").body(vec![5; 1000]);
            let request = client::http3::request(&fixture.client, &put);
            let (mut send, _receive) = connection.start(&request).await;
            let begun = [frame(DATA, &put.body[..500]), head(kind, 1 << 40)].concat();
            send.write_all(&begun).await.unwrap();
            assert_eq!(connection.closed_with().await, EXCESSIVE_LOAD, "{kind} within a body");
        }
        let mut http3 = Http3::connect(&fixture.client, &certificate).await;
        assert_eq!(http3.send(&Call::on("GET", "k")).await.status, 404);
    });
}

/// The frames of a body have any length, including 0, and there may be unknown frames and trailers.
#[test]
fn a_body_may_have_frames_of_every_kind() {
    let (fixture, certificate) = serve_http3(|_| ());
    run(async {
        let connection = RawHttp3::connect(&fixture.client, &certificate, 1 << 20).await;
        let put = Call::on("PUT", "k").payload("UNSIGNED-PAYLOAD").body("helloworld");
        let request = client::http3::request(&fixture.client, &put);
        let (mut send, mut receive) = connection.start(&request).await;
        let body = [("", DATA), ("hello", DATA), ("x", UNKNOWN), ("", DATA), ("world", DATA)];
        for (payload, kind) in body {
            send.write_all(&frame(kind, payload.as_bytes())).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        send.write_all(&frame(HEADERS, &[0, 0])).await.unwrap();
        send.finish().unwrap();
        receive.read_to_end(1 << 20).await.unwrap();
        let mut http3 = Http3::connect(&fixture.client, &certificate).await;
        assert_eq!(http3.send(&Call::on("GET", "k")).await.ok().text(), "helloworld");
    });
}

/// A client may wait for this response before it sends a body (RFC 9110 section 10.1.1).
#[test]
fn clients_that_expect_it_are_told_to_continue() {
    let (fixture, certificate) = serve_http3(|_| ());
    run(async {
        let mut http3 = Http3::connect(&fixture.client, &certificate).await;
        let put = Call::on("PUT", "k").header("expect", "100-continue").body(vec![5; 100_000]);
        let mut upload = http3.start(&put).await;
        assert_eq!(upload.recv_response().await.unwrap().status(), 100);
        upload.send_data(Bytes::copy_from_slice(&put.body)).await.unwrap();
        upload.finish().await.unwrap();
        take(&mut upload).await.ok();
        assert_eq!(http3.send(&Call::on("HEAD", "k")).await.ok().header("content-length"), Some("100000"));
        let mut stranger = fixture.client.clone();
        stranger.identity.secret_key.push('x');
        let mut http3 = Http3::connect(&stranger, &certificate).await;
        let mut upload = http3.start(&put).await;
        assert_eq!(upload.recv_response().await.unwrap().status(), 403);
    });
}
