//! Tests files that are opened by their first read.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use fordway_http::HttpVersion;
use fordway_http::vector::{RangeReadTicket, RemoteFile};
use fordway_store::{ErrorKind, Result};
use fordway_testkit::hostile::{HostileServer, ResponseFault, ResponseFaultScript};
use proptest::prelude::*;

use crate::hostile::some_lie;
use crate::{SIZE, VERSIONS, expected, file, read, session, some_ranges, spread, start};

fn open_reading(
    version: HttpVersion,
    url: &str,
    ranges: &[(u64, usize)],
) -> Result<(RemoteFile, RangeReadTicket)> {
    let session = session(|options| options.http = version);
    RemoteFile::open_reading(&session, url, ranges, Vec::new())
}

fn read_first(version: HttpVersion, url: &str, ranges: &[(u64, usize)]) -> Result<Vec<u8>> {
    let (file, ticket) = open_reading(version, url, ranges)?;
    Ok(file.wait(ticket)?.bytes)
}

fn refusal(server: &HostileServer, ranges: &[(u64, usize)]) -> ErrorKind {
    read_first(HttpVersion::Http1, &server.url(), ranges).expect_err("a refusal").kind()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Runs the same test as for a file that is already open. The client accepts the size and version of the first
    /// response. If the first response is of another version of the file, all reads must return that version.
    #[test]
    fn lies_give_the_right_bytes_or_an_error(
        lies in prop::collection::vec((some_lie(), prop::option::of(1_usize..6)), 1..3),
        ranges in some_ranges(30),
        version in prop::sample::select(&VERSIONS[..]),
    ) {
        let content = file();
        let mut script = ResponseFaultScript::honest();
        for (lie, first) in &lies {
            script = match first {
                Some(requests) => script.on_requests(0..*requests, lie.clone()),
                None => script.always(lie.clone()),
            };
        }
        let told = |wanted: fn(&ResponseFault) -> bool| lies.iter().any(|(lie, _)| wanted(lie));
        let is_changed = told(|lie| matches!(lie, ResponseFault::Version(_)));
        let is_unmarked = is_changed && told(|lie| matches!(lie, ResponseFault::NoETag));
        let is_deceived = is_unmarked || told(|lie| matches!(lie, ResponseFault::ContentRangeMoved(_)));
        let server = start(version, content.clone(), script);
        match read_first(version, &server.url(), &ranges) {
            Ok(found) => {
                let changed: Vec<u8> = content.iter().map(|byte| byte ^ 1).collect();
                let is_of = |content: &[u8]| found == expected(content, &ranges).concat();
                prop_assert!(is_deceived || is_of(&content) || (is_changed && is_of(&changed)));
            }
            Err(error) => prop_assert!(error.to_string().contains(&server.url()[..20]), "{error}"),
        }
    }
}

#[test]
fn what_is_read_first_costs_no_question_before() {
    let content = file();
    let server = HostileServer::start(content.clone(), ResponseFaultScript::honest());
    let ranges = spread(300, 500);
    for first_ranges in [10, 300] {
        let before = server.requests().len();
        let (opened, ticket) = open_reading(HttpVersion::Http1, &server.url(), &ranges).unwrap();
        assert_eq!(opened.size_bytes(), SIZE as u64);
        assert!(opened.version().etag.is_some());
        assert!(opened.wait(ticket).unwrap().bytes == expected(&content, &ranges).concat());
        assert!(read(&opened, &ranges).unwrap() == expected(&content, &ranges));
        let asked = server.requests().split_off(before);
        assert!(asked.iter().all(|request| request.method == "GET"), "{asked:?}");
        assert_eq!((asked[0].ranges(), asked[0].header("if-range")), (first_ranges, None));
        assert!(asked[1..].iter().all(|request| request.header("if-range").is_some()));
        assert_eq!(opened.traffic().requests, asked.len() as u64);
        assert_eq!(opened.traffic().connections, 1);
    }
    assert_eq!(server.connections(), 2);
}

#[test]
fn the_file_is_read_where_the_first_request_leads() {
    let there = HostileServer::start(file(), ResponseFaultScript::honest());
    let door = HostileServer::start(
        file(),
        ResponseFaultScript::honest().always(ResponseFault::Redirect(307, there.url())),
    );
    let ranges = spread(20, 100);
    let found = read_first(HttpVersion::Http1, &door.url(), &ranges).unwrap();
    assert!(found == expected(&file(), &ranges).concat());
    let methods = |server: &HostileServer| server.requests().iter().all(|request| request.method == "GET");
    assert_eq!((door.requests().len(), there.requests().len()), (1, 2));
    assert!(methods(&door) && methods(&there));
}

#[test]
fn a_refused_list_is_no_refusal_of_the_file() {
    let (content, ranges) = (file(), spread(20, 100));
    for lie in [
        ResponseFault::Status(400, None),
        ResponseFault::Status(416, None),
        ResponseFault::Status(431, None),
        ResponseFault::NoContentRange,
    ] {
        let server = HostileServer::start(
            content.clone(),
            ResponseFaultScript::honest().on_requests(0..1, lie.clone()),
        );
        let found = read_first(HttpVersion::Http1, &server.url(), &ranges).unwrap();
        assert!(found == expected(&content, &ranges).concat(), "{lie:?}");
    }
    for lie in [
        ResponseFault::WholeForRange,
        ResponseFault::WholeOverRanges(1),
        ResponseFault::RefusesLists(403),
        ResponseFault::Chunked(700),
        ResponseFault::UntilClose,
        ResponseFault::ClosesAfter,
    ] {
        let server = HostileServer::start(content.clone(), ResponseFaultScript::honest().always(lie.clone()));
        let found = read_first(HttpVersion::Http1, &server.url(), &ranges).unwrap();
        assert!(found == expected(&content, &ranges).concat(), "{lie:?}");
    }
}

#[test]
fn a_refusal_of_the_file_is_told_at_once() {
    for (status, kind) in [(403, ErrorKind::AccessDenied), (404, ErrorKind::NoSuchKey)] {
        let server = HostileServer::start(
            file(),
            ResponseFaultScript::honest().always(ResponseFault::Status(status, None)),
        );
        assert_eq!(refusal(&server, &[(0, 10)]), kind);
        assert_eq!(server.requests().len(), 1);
    }
    let server = HostileServer::start(file(), ResponseFaultScript::honest());
    for beyond in [(SIZE as u64 - 5, 6), (SIZE as u64, 1), (u64::MAX, 2), (3, usize::MAX)] {
        assert_eq!(refusal(&server, &[(0, 10), beyond]), ErrorKind::InvalidRange, "{beyond:?}");
    }
    assert_eq!(read_first(HttpVersion::Http1, &server.url(), &[]).unwrap(), b"");
    let silent =
        HostileServer::start(file(), ResponseFaultScript::honest().always(ResponseFault::StallAt(0)));
    assert_eq!(refusal(&silent, &[(0, 10)]), ErrorKind::Timeout);
}

/// If the first response is truncated, only the rest is requested again, and the received bytes are kept.
#[test]
fn a_first_answer_that_is_cut_is_resumed() {
    let content = file();
    let server = HostileServer::start(
        content.clone(),
        ResponseFaultScript::honest().on_requests(0..4, ResponseFault::ResetAt(50_000)),
    );
    let (opened, ticket) = open_reading(HttpVersion::Http1, &server.url(), &[(0, 300_000)]).unwrap();
    assert!(opened.wait(ticket).unwrap().bytes == content[..300_000]);
    let asked = server.requests();
    let starts: Vec<_> = asked.iter().map(|request| request.header("range").unwrap().to_owned()).collect();
    assert!(starts.windows(2).all(|pair| pair[0] != pair[1]), "{starts:?}");
}

/// Requests in progress still count towards the limit on connections.
#[test]
fn the_cap_on_connections_holds() {
    let content = file();
    let server = HostileServer::start(content.clone(), ResponseFaultScript::honest());
    let shared = session(|options| options.connections_per_origin = 1);
    for _ in 0..3 {
        let ranges = spread(40, 3_000);
        let (opened, ticket) = RemoteFile::open_reading(&shared, &server.url(), &ranges, Vec::new()).unwrap();
        assert!(opened.wait(ticket).unwrap().bytes == expected(&content, &ranges).concat());
        assert!(read(&opened, &ranges).unwrap() == expected(&content, &ranges));
    }
    assert_eq!(server.connections(), 1);
}

/// The body of a response without parts ends on a connection that stays open, so the client must not wait for more
/// bytes.
#[test]
fn a_list_without_parts_is_not_waited_for() {
    let body = "\r\n--B--\r\n";
    let parts = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Type: multipart/byteranges; boundary=B\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/f", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let (mut stream, mut request) = (listener.accept().unwrap().0, [0; 4096]);
        assert!(stream.read(&mut request).unwrap() > 0);
        stream.write_all(parts.as_bytes()).unwrap();
        // The client requests the size on another connection.
        let (mut second, _) = listener.accept().unwrap();
        assert!(second.read(&mut request).unwrap() > 0);
        second.write_all(b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n").unwrap();
    });
    let session = session(crate::patient);
    let begun = Instant::now();
    let opened = RemoteFile::open_reading(&session, &url, &[(0, 9), (50, 9)], Vec::new());
    assert_eq!(opened.map(drop).unwrap_err().kind(), ErrorKind::NoSuchKey);
    assert!(begun.elapsed() < Duration::from_secs(20), "the client waits for bytes beyond the body");
    server.join().unwrap();
}
