//! Tests valid and invalid HTTP/1.1 requests, which the tests send as raw bytes.

mod client;

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use client::{BUCKET, Call, bucket, key, lasting, next_answer, read_answer, serve, serve_with};
use fordway_store::{GetOptions, Objects, PutOptions};

#[test]
fn requests_sent_at_once_are_answered_in_turn() {
    let fixture = serve();
    let mut all = Vec::new();
    for number in 0..20 {
        let body = format!("body {number}");
        let put = Call::on("PUT", "k").body(body.as_bytes());
        all.extend(lasting(&fixture.client, &put));
        all.extend(body.as_bytes());
        all.extend(lasting(&fixture.client, &Call::on("GET", "k")));
    }
    let mut stream = fixture.client.connect();
    // The requests are sent in two writes, split in the middle of a body.
    let (first, second) = all.split_at(all.len() / 2 + 3);
    stream.write_all(first).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    stream.write_all(second).unwrap();
    for number in 0..20 {
        assert!(next_answer(&mut stream).0.starts_with("HTTP/1.1 200"), "{number}");
        let (head, body) = next_answer(&mut stream);
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert_eq!(String::from_utf8(body).unwrap(), format!("body {number}"));
    }
}

#[test]
fn a_body_is_asked_for_where_the_client_waits_to_be_asked() {
    let fixture = serve();
    let call = Call::on("PUT", "k").header("expect", "100-continue").body("hello");
    let mut stream = fixture.client.connect();
    stream.write_all(&lasting(&fixture.client, &call)).unwrap();
    assert_eq!(next_answer(&mut stream).0, "HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"hello").unwrap();
    assert!(next_answer(&mut stream).0.starts_with("HTTP/1.1 200"));
    stream.write_all(&lasting(&fixture.client, &Call::on("GET", "k"))).unwrap();
    assert_eq!(next_answer(&mut stream).1, b"hello");
}

/// The server sends the response instead of `100 Continue`. The connection then ends, because the server cannot
/// determine whether the body follows.
#[test]
fn a_body_that_is_not_wanted_is_not_asked_for() {
    let fixture = serve();
    let call = Call::new("PUT", "/no-bucket/k").header("expect", "100-continue").body("hello");
    let mut stream = fixture.client.connect();
    stream.write_all(&lasting(&fixture.client, &call)).unwrap();
    let (head, _) = next_answer(&mut stream);
    assert!(head.starts_with("HTTP/1.1 404") && head.contains("connection: close"), "{head}");
}

#[test]
fn a_body_in_chunks_arrives_whole() {
    let fixture = serve();
    let content: Vec<u8> = (0..700_000u32).map(|i| (i / 3) as u8).collect();
    let call = Call::on("PUT", "k")
        .header("x-amz-decoded-content-length", content.len().to_string())
        .header("content-encoding", "aws-chunked")
        .payload("STREAMING-AWS4-HMAC-SHA256-PAYLOAD");
    let head = String::from_utf8(lasting(&fixture.client, &call)).unwrap();
    let head = head.replace("content-length: 0\r\n", "transfer-encoding: chunked\r\n");
    let body = fixture.client.signed_chunks(head.as_bytes(), &content);
    let mut sent = head.into_bytes();
    for (number, chunk) in body.chunks(77_777).enumerate() {
        sent.extend(format!("{:x};n={number}\r\n", chunk.len()).as_bytes());
        sent.extend(chunk);
        sent.extend(b"\r\n");
    }
    sent.extend(b"0\r\nx-trailer: yes\r\n\r\n");
    sent.extend(lasting(&fixture.client, &Call::on("GET", "k")));
    let mut stream = fixture.client.connect();
    stream.write_all(&sent).unwrap();
    let (head, body) = next_answer(&mut stream);
    assert!(head.starts_with("HTTP/1.1 200"), "{head} {}", String::from_utf8_lossy(&body));
    assert!(next_answer(&mut stream).1 == content);
}

#[test]
fn broken_chunks_store_nothing_and_end_the_connection() {
    let fixture = serve();
    for body in
        ["5\r\nhelloX\r\n0\r\n\r\n", "zz\r\nhello\r\n", "5\nhello\r\n0\r\n\r\n", "-5\r\nhello\r\n0\r\n\r\n"]
    {
        let call = Call::on("PUT", "k")
            .header("x-amz-decoded-content-length", "5")
            .payload("STREAMING-UNSIGNED-PAYLOAD-TRAILER")
            .header("x-amz-trailer", "x-amz-checksum-crc32");
        let head = String::from_utf8(lasting(&fixture.client, &call)).unwrap();
        let head = head.replace("content-length: 0\r\n", "transfer-encoding: chunked\r\n");
        let mut stream = fixture.client.connect();
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        let answer = read_answer(&mut stream, "PUT");
        assert_eq!(answer.status, 400, "{body:?}: {}", answer.text());
        assert!(fixture.store.head(&bucket(), &key("k"), &GetOptions::default()).is_err());
    }
}

#[test]
fn http_1_0_is_answered_and_closed_unless_it_asks_otherwise() {
    let fixture = serve();
    fixture.client.send(&Call::on("PUT", "k").body("hello")).ok();
    let head = String::from_utf8(lasting(&fixture.client, &Call::on("GET", "k"))).unwrap();
    let old = head.replace("HTTP/1.1", "HTTP/1.0");
    let mut stream = fixture.client.connect();
    stream.write_all(old.replace("host:", "connection: keep-alive\r\nhost:").as_bytes()).unwrap();
    let (head, body) = next_answer(&mut stream);
    assert!(head.contains("connection: keep-alive") && body == b"hello", "{head}");
    stream.write_all(old.as_bytes()).unwrap();
    assert_eq!(read_answer(&mut stream, "GET").ok().text(), "hello");
}

/// A request that two programs could interpret differently ends the connection, and the bytes after it are never parsed
/// as a request.
#[test]
fn smuggled_requests_are_not_served() {
    let fixture = serve();
    fixture.client.send(&Call::on("PUT", "k").body("hello")).ok();
    let second = String::from_utf8(lasting(&fixture.client, &Call::on("DELETE", "k"))).unwrap();
    for head in [
        "content-length: 5\r\ntransfer-encoding: chunked\r\n",
        "content-length: 5\r\ncontent-length: 0\r\n",
        "content-length: 0, 5\r\n",
        "content-length : 0\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
        "transfer-encoding: identity\r\n",
        "x: y\r\n content-length: 5\r\n",
        "x: y\ncontent-length: 0\r\n",
        "x: y\rz\r\n",
        "host: other\r\n",
    ] {
        let request = format!("POST /{BUCKET}/k HTTP/1.1\r\nhost: h\r\n{head}\r\n0\r\n\r\n{second}");
        let answer = fixture.client.send_raw("POST", &request);
        assert_eq!(answer.status, 400, "{head:?}");
        assert_eq!(answer.element("Code").as_deref(), Some("BadRequest"));
        assert_eq!(answer.text().matches("<Error>").count(), 1, "{head:?}");
        fixture.store.head(&bucket(), &key("k"), &GetOptions::default()).unwrap();
    }
}

/// A server that receives only a part of a request must not serve the request, and must not fail.
#[test]
fn truncated_requests_are_not_served() {
    let fixture = serve();
    let call = Call::on("PUT", "k").body("hello");
    let whole = [fixture.client.head(&call), b"hello".to_vec()].concat();
    for end in (0..whole.len()).step_by(7) {
        let mut stream = fixture.client.connect();
        stream.write_all(&whole[..end]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert!(answer.is_empty() || answer.contains("IncompleteBody"), "{end}: {answer}");
        assert!(fixture.store.head(&bucket(), &key("k"), &GetOptions::default()).is_err());
    }
}

#[test]
fn a_refused_upload_does_not_end_the_connection() {
    let fixture = serve();
    let body = vec![1; 3_000_000];
    let mut stream = fixture.client.connect();
    for _ in 0..3 {
        let call = Call::new("PUT", "/no-bucket/k").payload("UNSIGNED-PAYLOAD").body(body.clone());
        stream.write_all(&lasting(&fixture.client, &call)).unwrap();
        stream.write_all(&body).unwrap();
        let (head, _) = next_answer(&mut stream);
        assert!(head.starts_with("HTTP/1.1 404") && !head.contains("connection: close"), "{head}");
    }
}

#[test]
fn a_head_that_takes_too_long_is_told_so() {
    let fixture = serve_with(|config| config.header_timeout = Duration::from_millis(300));
    let mut stream = fixture.client.connect();
    let start = Instant::now();
    // The time limit on a head applies even while bytes of the head keep arriving.
    for byte in b"GET / HTTP/1.1\r\nhost: h\r\n".iter().cycle() {
        if stream.write_all(&[*byte]).is_err() || start.elapsed() > Duration::from_secs(20) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
        stream.set_nonblocking(true).unwrap();
        let answered = stream.peek(&mut [0]).is_ok();
        stream.set_nonblocking(false).unwrap();
        if answered {
            break;
        }
    }
    assert!(start.elapsed() < Duration::from_secs(15));
    assert_eq!(read_answer(&mut stream, "GET").error(), (408, "RequestTimeout".to_owned()));
}

#[test]
fn a_head_request_and_304_have_no_body() {
    let fixture = serve();
    fixture.store.put(&bucket(), &key("k"), b"hello", &PutOptions::default()).unwrap();
    let mut stream = fixture.client.connect();
    let mut send = |call: Call<'_>| {
        stream.write_all(&lasting(&fixture.client, &call)).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        String::from_utf8(head).unwrap()
    };
    // The head of each response is followed directly by the head of the next response.
    assert!(send(Call::on("HEAD", "k")).contains("content-length: 5"));
    assert!(send(Call::on("HEAD", "none")).starts_with("HTTP/1.1 404"));
    let same = send(Call::on("GET", "k").header("if-none-match", "*"));
    assert!(same.starts_with("HTTP/1.1 304") && !same.contains("content-length"), "{same}");
    assert!(send(Call::on("DELETE", "k")).starts_with("HTTP/1.1 204"));
    assert!(send(Call::on("HEAD", "k")).starts_with("HTTP/1.1 404"));
}
