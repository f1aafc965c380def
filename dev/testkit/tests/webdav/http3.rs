//! Tests of servers that cannot be reached over HTTP/3, and of connections that end.

use std::net::UdpSocket;
use std::time::Duration;

use fordway_http::vector::SessionOptions;
use fordway_http::{HttpVersion, ProxySettings, SessionCredentials, TlsRoots};
use fordway_store::{Error, ErrorKind};

use crate::dialogue::{Dialogue, answer, collection, file, multistatus};
use crate::{client, content, over_http3, put, quic};

fn failure(url: &str, change: impl FnOnce(&mut SessionOptions)) -> Error {
    let dav = client(|options| {
        (options.http, options.max_retries) = (HttpVersion::Http3, 0);
        change(options);
    });
    dav.stat(url).unwrap_err()
}

#[test]
fn a_server_that_cannot_be_reached_is_told_apart() {
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = failure(&format!("https://{closed}/"), |_| {});
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert!(refused.detail().contains("accepts no UDP packets"), "{refused}");
    let mute = UdpSocket::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/", mute.local_addr().unwrap());
    let late = failure(&url, |options| options.timeouts.connect = Duration::from_millis(200));
    assert_eq!(late.kind(), ErrorKind::Timeout);
    assert!(late.detail().contains("firewall"), "{late}");
    for error in [refused, late] {
        assert!(error.detail().contains("use HTTP 1.1 or 2 (FORDWAY_HTTP_VERSION)"), "{error}");
    }
    let plain = failure("http://127.0.0.1:1/", |_| {});
    assert_eq!(plain.kind(), ErrorKind::InvalidArgument);
    assert!(plain.detail().contains("always encrypted"), "{plain}");
    let proxied = failure("https://127.0.0.1:1/", |options| {
        let proxy = |name: &str| (name == "https_proxy").then(|| "http://127.0.0.1:1".to_owned());
        options.proxies = ProxySettings::resolve(&proxy);
    });
    assert_eq!(proxied.kind(), ErrorKind::InvalidArgument);
    assert!(proxied.detail().contains("does not go through a proxy"), "{proxied}");
}

#[test]
fn certificates_are_checked_on_both_sides() {
    over_http3(|| {
        let server = Dialogue::start(|_, _| answer(200, "", ""));
        let untrusted = failure(&server.url("f"), |options| options.tls_roots = TlsRoots::System);
        assert_eq!(untrusted.kind(), ErrorKind::BadResponse);
        assert!(untrusted.detail().contains("set AWS_CA_BUNDLE"), "{untrusted}");
        assert_eq!(server.requests().len(), 0);
        let asking = Dialogue::start_wanting(true, |_, _| answer(200, "", ""));
        let nameless = failure(&asking.url("f"), |_| {});
        assert_eq!(nameless.kind(), ErrorKind::AccessDenied, "{nameless}");
        assert!(nameless.detail().contains("requires a client certificate"), "{nameless}");
        let identified = SessionCredentials::none().with_certificate(quic::certificate(), quic::key());
        put(&client(|options| options.credentials = identified), &asking.url("f"), b"x", true).unwrap();
    });
}

/// A connection without requests must not keep a thread and a socket until the process ends.
#[test]
fn an_idle_connection_is_closed() {
    over_http3(|| {
        let server = Dialogue::start(|_, _| answer(201, "", ""));
        let dav = client(|options| options.timeouts.idle = Duration::from_millis(50));
        put(&dav, &server.url("f"), b"x", true).unwrap();
        server.wait_for_closed(1);
        put(&dav, &server.url("f"), b"x", true).unwrap();
        assert_eq!(server.requests().len(), 2);
    });
}

/// Content of unknown size is passed in chunks to the thread that serves the connection, and in frames to the server.
#[test]
fn content_of_unknown_size_arrives_as_it_is() {
    over_http3(|| {
        let server = Dialogue::start(|_, _| {
            let mut said = b"HTTP/1.1 100 Continue\r\n\r\n".to_vec();
            said.extend(answer(201, "", ""));
            said
        });
        for bytes in [0, 1, 99_999, 100_000, 1_000_001] {
            put(&client(|_| {}), &server.url("f"), &content(bytes), false).unwrap();
            let request = server.requests().pop().unwrap();
            assert_eq!((request.body_bytes, request.header("transfer-encoding")), (bytes, None));
        }
    });
}

/// Returns a frame of HTTP/3 of less than 16 KiB.
fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u16 | 0x4000).to_be_bytes();
    [&[kind], &length[..], payload].concat()
}

/// The first bytes of a frame of 2^40 bytes.
fn endless(kind: u8) -> Vec<u8> {
    [vec![kind], ((1_u64 << 40) | 3 << 62).to_be_bytes().to_vec()].concat()
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const UNKNOWN: u8 = 0x21;
/// The field section of a response with the status 200 and no other header (RFC 9204 section 4.5).
const OK: &[u8] = b"\0\0\xd9";

/// A frame of length 0 does not end a body, and a truncated body is not treated as complete.
#[test]
fn a_body_may_have_frames_of_every_kind() {
    over_http3(|| {
        let listing = multistatus(&(collection("/d/") + &file("/d/f", 7)));
        let at = listing.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
        let (first, second) = listing[at..].split_at(40);
        // The status 207, as a literal with the name of the static table's entry 24.
        let head = frame(HEADERS, b"\0\0\x5f\x09\x03207");
        let body = [frame(DATA, first), frame(DATA, b""), frame(UNKNOWN, b"x"), frame(DATA, second)];
        let server = quic::RawServer::start([vec![head], body.to_vec()].concat(), Vec::new());
        assert_eq!(client(|_| {}).list(&server.url("d/")).unwrap().members.len(), 1);
    });
}

/// A server cannot make the client hold frames of any length.
#[test]
fn a_frame_that_is_too_long_ends_the_connection() {
    over_http3(|| {
        let within_body = [frame(HEADERS, OK), frame(DATA, b"x"), endless(UNKNOWN)].concat();
        for (response, control) in [
            (endless(HEADERS), Vec::new()),
            (endless(UNKNOWN), Vec::new()),
            (within_body, Vec::new()),
            (Vec::new(), endless(UNKNOWN)),
        ] {
            let server = quic::RawServer::start(vec![response], control);
            let error = failure(&server.url("f"), |_| {});
            assert_eq!(error.kind(), ErrorKind::BadResponse, "{error}");
            assert!(error.detail().contains("is too long"), "{error}");
        }
    });
}
