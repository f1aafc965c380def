//! Tests HTTP/1.1 over TLS, and the replacement of certificates.

mod client;

use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use client::tls::{Certificate, TlsStream};
use client::{BUCKET, Call, Fixture, lasting, next_answer, serve_with};
use rustls::ClientConnection;
use rustls::version::{TLS12, TLS13};

fn serve_tls(certificate: &Certificate) -> Fixture {
    serve_with(|config| config.tls = Some(certificate.load()))
}

fn ask(stream: &mut TlsStream, fixture: &Fixture, call: &Call<'_>) -> (String, Vec<u8>) {
    stream.write_all(&lasting(&fixture.client, call)).unwrap();
    stream.write_all(&call.body).unwrap();
    next_answer(stream)
}

#[test]
fn a_tour_over_one_connection() {
    let certificate = Certificate::new();
    let fixture = serve_tls(&certificate);
    let content: Vec<u8> = (0..3_000_000_u32).map(|number| (number / 11) as u8).collect();
    let mut stream = certificate.connect(&fixture.client).unwrap();
    let put = Call::on("PUT", "k").body(&content[..]);
    assert!(ask(&mut stream, &fixture, &put).0.starts_with("HTTP/1.1 200"));
    assert!(ask(&mut stream, &fixture, &Call::on("GET", "k")).1 == content);
    let (head, body) = ask(&mut stream, &fixture, &Call::on("GET", "k").header("range", "bytes=7-1000006"));
    assert!(head.starts_with("HTTP/1.1 206") && body == content[7..1_000_007]);
    assert!(ask(&mut stream, &fixture, &Call::on("GET", "none")).0.starts_with("HTTP/1.1 404"));
    // A client that waits for `100 Continue` receives it.
    let put = Call::on("PUT", "k").header("expect", "100-continue").body("hello");
    stream.write_all(&lasting(&fixture.client, &put)).unwrap();
    assert!(next_answer(&mut stream).0.starts_with("HTTP/1.1 100"));
    stream.write_all(&put.body).unwrap();
    assert!(next_answer(&mut stream).0.starts_with("HTTP/1.1 200"));
    // The server ends TLS with `close_notify`. Without `close_notify`, this read would fail.
    stream.write_all(&fixture.client.head(&Call::on("GET", "k"))).unwrap();
    let mut last = Vec::new();
    stream.read_to_end(&mut last).unwrap();
    assert!(last.ends_with(b"\r\n\r\nhello"));
}

/// HTTP/1.1 is preferred, because the gateway sends `100 Continue` over HTTP/1.1 but not over HTTP/2.
#[test]
fn a_client_that_supports_both_versions_gets_http1() {
    let certificate = Certificate::new();
    let fixture = serve_tls(&certificate);
    for (offered, chosen) in [(&["h2", "http/1.1"][..], "http/1.1"), (&["h2"], "h2")] {
        let mut config = (*certificate.client_config("h2")).clone();
        config.alpn_protocols = offered.iter().map(|name| name.as_bytes().to_vec()).collect();
        let mut session = ClientConnection::new(config.into(), client::tls::name()).unwrap();
        let mut socket = fixture.client.connect();
        while session.is_handshaking() {
            session.complete_io(&mut socket).unwrap();
        }
        assert_eq!(session.alpn_protocol(), Some(chosen.as_bytes()));
    }
}

#[test]
fn a_newer_certificate_is_shown_to_newer_connections() {
    let mut certificate = Certificate::new();
    let tls = certificate.load();
    let fixture = serve_with(|config| config.tls = Some(tls.clone()));
    let mut old = certificate.connect(&fixture.client).unwrap();
    certificate.renew();
    assert!(certificate.connect(&fixture.client).is_err(), "the old one is still shown");
    std::fs::write(certificate.path(), "no certificate").unwrap();
    assert!(tls.reload().is_err());
    certificate.renew();
    tls.reload().unwrap();
    let mut new = certificate.connect(&fixture.client).unwrap();
    for stream in [&mut old, &mut new] {
        assert!(ask(stream, &fixture, &Call::on("GET", "none")).0.starts_with("HTTP/1.1 404"));
    }
}

#[test]
fn policies_see_the_version_of_tls() {
    let certificate = Certificate::new();
    let fixture = serve_tls(&certificate);
    let connect = |version| certificate.connect_with(&fixture.client, &[version]).unwrap();
    let put = |stream: &mut TlsStream, operator: &str, key: &str, value: &str| {
        let policy = format!(
            "{{\"Version\": \"2012-10-17\", \"Statement\": {{\"Effect\": \"Deny\", \"Principal\": \"*\", \
             \"Action\": \"s3:GetObject\", \"Resource\": \"arn:aws:s3:::{BUCKET}/*\", \
             \"Condition\": {{\"{operator}\": {{\"{key}\": {value}}}}}}}}}"
        );
        let call = Call::new("PUT", format!("/{BUCKET}")).query("policy").body(policy);
        let (head, body) = ask(stream, &fixture, &call);
        assert!(head.starts_with("HTTP/1.1 204"), "{}", String::from_utf8_lossy(&body));
    };
    let (mut old, mut new) = (connect(&TLS12), connect(&TLS13));
    let status = |stream: &mut TlsStream| {
        let (head, _) = ask(stream, &fixture, &Call::on("GET", "none"));
        head.split(' ').nth(1).map(str::to_owned)
    };
    for (operator, value, of_old, of_new) in [
        ("NumericLessThan", "1.2", "404", "404"),
        ("NumericLessThan", "\"1.3\"", "403", "404"),
        ("NumericGreaterThanEquals", "1.3", "404", "403"),
        ("NumericEquals", "[1.2, 1.3]", "403", "403"),
        ("Null", "true", "404", "404"),
    ] {
        put(&mut new, operator, "s3:TlsVersion", value);
        assert_eq!(status(&mut old).as_deref(), Some(of_old), "{operator} {value}");
        assert_eq!(status(&mut new).as_deref(), Some(of_new), "{operator} {value}");
    }
    put(&mut new, "Bool", "aws:SecureTransport", "true");
    assert_eq!(status(&mut old).as_deref(), Some("403"));
}

#[test]
fn who_does_not_shake_hands_is_not_waited_for() {
    let certificate = Certificate::new();
    let fixture = serve_with(|config| {
        config.tls = Some(certificate.load());
        config.header_timeout = Duration::from_millis(300);
    });
    let start = Instant::now();
    let silent = fixture.client.connect();
    let mut clear = fixture.client.connect();
    clear.write_all(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n").unwrap();
    for mut stream in [clear, silent] {
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    }
    assert!(start.elapsed() < Duration::from_secs(20));
}
