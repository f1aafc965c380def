//! Tests uploads with the content coding `aws-chunked`: the decoding of their bodies, and the headers that describe the
//! coding.

mod client;

use std::io::Write as _;
use std::net::Shutdown;
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use client::{Answer, BUCKET, Call, Fixture, bucket, key, read_answer, serve, serve_openly, serve_with};
use fordway_store::{ErrorKind, GetOptions, Objects};
use fordway_wire::date;
use hmac::{Hmac, KeyInit as _, Mac as _};

const UNSIGNED_TRAILER: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";
const SIGNED: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
/// The header with which a client says how it signs the body, and its value.
const UNSIGNED_CHUNKS: (&str, &str) = ("x-amz-content-sha256", UNSIGNED_TRAILER);
/// The headers of every body below.
const CHUNKED: [(&str, &str); 2] =
    [("content-encoding", "aws-chunked"), ("x-amz-decoded-content-length", "5")];
const ANNOUNCED: (&str, &str) = ("x-amz-trailer", "x-amz-checksum-crc32");
/// "hello" in one chunk, with its CRC-32 as trailer.
const HELLO: &str = "5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n";

/// Starts a gateway with a bucket in which anyone may put objects.
fn open_to_all() -> Fixture {
    let fixture = serve_openly(|_| ());
    let policy = format!(
        r#"{{"Version": "2012-10-17", "Statement": [{{"Effect": "Allow", "Principal": "*",
            "Action": "s3:PutObject", "Resource": "arn:aws:s3:::{BUCKET}/*"}}]}}"#
    );
    fixture.client.send(&Call::new("PUT", format!("/{BUCKET}")).query("policy").body(policy)).ok();
    fixture
}

/// Sends an upload without a signature. A `length` of `None` sends the body with `Transfer-Encoding: chunked`.
fn put_unsigned(fixture: &Fixture, headers: &[(&str, &str)], body: &str, length: Option<usize>) -> Answer {
    let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let (framing, body) = match length {
        Some(length) => (format!("content-length: {length}"), body.to_owned()),
        None => ("transfer-encoding: chunked".to_owned(), format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len())),
    };
    let request =
        format!("PUT /{BUCKET}/k HTTP/1.1\r\nhost: h\r\nconnection: close\r\n{lines}{framing}\r\n\r\n{body}");
    fixture.client.send_raw("PUT", &request)
}

fn assert_nothing_stored(fixture: &Fixture) {
    let found = fixture.store.head(&bucket(), &key("k"), &GetOptions::default());
    assert_eq!(found.unwrap_err().kind(), ErrorKind::NoSuchKey);
}

/// Checks that the object is "hello", and removes it.
#[track_caller]
fn take_hello(fixture: &Fixture) {
    let stored = fixture.client.send(&Call::on("GET", "k")).ok();
    assert_eq!((stored.text().as_str(), stored.header("content-encoding")), ("hello", None));
    fixture.client.send(&Call::on("DELETE", "k")).ok();
}

/// boto3 and aws-cli send such requests with `--no-sign-request`. SDKs that add a header only while signing omit it.
#[test]
fn an_anonymous_upload_is_decoded() {
    let fixture = open_to_all();
    for stated in [&[UNSIGNED_CHUNKS][..], &[]] {
        let headers = [&CHUNKED[..], &[ANNOUNCED], stated].concat();
        // MinIO's client for Go sends a line feed before the line break of a trailer.
        for body in [HELLO, &HELLO.replace("==", "==\n")] {
            for length in [None, Some(body.len())] {
                let stored = put_unsigned(&fixture, &headers, body, length).ok();
                assert_eq!(stored.header("x-amz-checksum-crc32"), Some("NhCmhg=="), "{headers:?}");
                take_hello(&fixture);
            }
        }
        let wrong = HELLO.replace("NhCmhg", "AAAAAA");
        let refused = |body: &str| put_unsigned(&fixture, &headers, body, Some(body.len())).error();
        assert_eq!(refused(&wrong), (400, "BadDigest".to_owned()));
        assert_eq!(refused("5\r\nhello\r\n0\r\n\r\n"), (400, "MalformedTrailerError".to_owned()));
        assert_eq!(refused("hello"), (400, "IncompleteBody".to_owned()));
        assert_eq!(refused(&HELLO.replace("5\r\nhello", "4\r\nhell")), (400, "IncompleteBody".to_owned()));
        assert_nothing_stored(&fixture);
    }
}

#[test]
fn an_anonymous_upload_states_its_length() {
    let fixture = open_to_all();
    let headers = [CHUNKED[0], UNSIGNED_CHUNKS, ANNOUNCED];
    let answer = put_unsigned(&fixture, &headers, HELLO, Some(HELLO.len()));
    assert_eq!(answer.error(), (411, "MissingContentLength".to_owned()));
}

/// Only a version 4 signature of the head determines the signatures of the chunks.
#[test]
fn signed_chunks_need_a_signed_head() {
    let fixture = open_to_all();
    let headers = [&CHUNKED[..], &[("x-amz-content-sha256", SIGNED)]].concat();
    let body = format!("5;chunk-signature={0}\r\nhello\r\n0;chunk-signature={0}\r\n\r\n", "ab".repeat(32));
    let answer = put_unsigned(&fixture, &headers, &body, Some(body.len()));
    assert_eq!(answer.error(), (400, "InvalidRequest".to_owned()));
    assert_nothing_stored(&fixture);
}

#[test]
fn an_upload_with_a_version_2_signature_is_decoded() {
    let fixture = serve_with(|config| config.signature_v2 = true);
    let headers = [UNSIGNED_CHUNKS, CHUNKED[1], ANNOUNCED];
    let now = date::format_http(SystemTime::now());
    let lines: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let identity = &fixture.client.identity;
    let mut mac = Hmac::<sha1::Sha1>::new_from_slice(identity.secret_key.as_bytes()).unwrap();
    mac.update(format!("PUT\n\n\n{now}\n{lines}/{BUCKET}/k").as_bytes());
    let signature = BASE64.encode(mac.finalize().into_bytes());
    let authorization = format!("AWS {}:{signature}", identity.access_key);
    let headers = [&headers[..], &[("date", &now), ("authorization", &authorization)]].concat();
    put_unsigned(&fixture, &headers, HELLO, Some(HELLO.len())).ok();
    take_hello(&fixture);
}

/// The gateway must neither store framing as content, nor ignore a trailer.
#[test]
fn headers_that_contradict_each_other_are_refused() {
    let fixture = serve();
    let put = |headers: &[(&'static str, &str)], payload: Option<&str>| {
        let call = headers.iter().fold(Call::on("PUT", "k"), |call, (name, value)| call.header(name, *value));
        fixture.client.send(&Call { payload: payload.map(str::to_owned), ..call.body(HELLO) }).error()
    };
    for payload in [Some("UNSIGNED-PAYLOAD"), None] {
        assert_eq!(put(&CHUNKED, payload), (400, "InvalidRequest".to_owned()), "{payload:?}");
        assert_eq!(put(&[ANNOUNCED], payload), (400, "MalformedTrailerError".to_owned()), "{payload:?}");
    }
    assert_nothing_stored(&fixture);
}

/// boto3 sends uploads over TLS without `Content-Length`. A source that ends early then shows only in the length of the
/// content.
#[test]
fn content_has_the_stated_length_without_a_content_length() {
    let fixture = serve();
    let query = {
        let started = fixture.client.send(&Call::on("POST", "k").query("uploads")).ok();
        format!("partNumber=1&uploadId={}", started.element("UploadId").unwrap())
    };
    let put = |length: &str, query: &str| {
        let call = Call::on("PUT", "k")
            .query(query)
            .header("x-amz-decoded-content-length", length)
            .header("x-amz-trailer", ANNOUNCED.1)
            .header("transfer-encoding", "chunked")
            .payload(UNSIGNED_TRAILER);
        let head = String::from_utf8(fixture.client.head(&call)).unwrap();
        let head = head.replace("content-length: 0\r\n", "");
        fixture.client.send_raw("PUT", &format!("{head}{:x}\r\n{HELLO}\r\n0\r\n\r\n", HELLO.len()))
    };
    for query in ["", &query] {
        for wrong in ["4", "999"] {
            assert_eq!(put(wrong, query).error(), (400, "IncompleteBody".to_owned()), "{wrong} {query}");
        }
        put("5", query).ok();
    }
    take_hello(&fixture);
}

/// SDKs send a body of known length as one chunk, of any size.
#[test]
fn a_chunk_may_have_more_than_4_gib() {
    let fixture = serve();
    let length = 5_u64 << 30;
    let call = Call::on("PUT", "k")
        .header("x-amz-decoded-content-length", length.to_string())
        .header("content-length", (length + 100).to_string())
        .payload(UNSIGNED_TRAILER);
    let mut stream = fixture.client.connect();
    stream.write_all(&fixture.client.head(&call)).unwrap();
    stream.write_all(format!("{length:x}\r\nhello").as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let answer = read_answer(&mut stream, "PUT");
    assert_eq!(answer.error(), (400, "IncompleteBody".to_owned()));
    assert!(!answer.text().contains("not valid aws-chunked"), "{}", answer.text());
}

/// The gateway keeps a signed chunk in memory until its signature has been checked.
#[test]
fn a_signed_chunk_has_a_maximum_size() {
    let fixture = serve();
    let call = Call::on("PUT", "k").header("x-amz-decoded-content-length", "1000000000").payload(SIGNED);
    let line = format!("{:x};chunk-signature={}\r\n", 1_000_000_000, "ab".repeat(32));
    let head = fixture.client.head(&call.header("content-length", "2000000000"));
    let mut stream = fixture.client.connect();
    stream.write_all(&[head, line.into_bytes(), vec![0; 256 * 1024]].concat()).unwrap();
    assert_eq!(read_answer(&mut stream, "PUT").error(), (400, "InvalidChunkSizeError".to_owned()));
}
