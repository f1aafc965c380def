//! Tests that the client detects only once that a server does not support a feature, and does not use the feature
//! again.

use std::time::Duration;

use fordway_http::vector::RemoteFile;
use fordway_store::ErrorKind;
use fordway_testkit::hostile::{HostileServer, ResponseFault, ResponseFaultScript};

use crate::{VERSIONS, expected, file, open, open_in, read, session, spread, start};

fn served(lie: ResponseFault) -> HostileServer {
    HostileServer::start(file(), ResponseFaultScript::honest().always(lie))
}

#[test]
fn as_few_requests_as_the_header_allows() {
    let server = HostileServer::start(file(), ResponseFaultScript::honest());
    let opened = open(&server.url());
    assert!(read(&opened, &spread(500, 100)).unwrap() == expected(&file(), &spread(500, 100)));
    let requests = server.requests();
    assert_eq!((requests.len(), server.connections()), (2, 1), "HEAD and one list");
    let list = requests[1].header("range").unwrap();
    assert!(list.starts_with("bytes=0-99,1200-1299,") && !list.contains(' '), "{list}");

    let many = spread(1_500, 10);
    assert!(read(&opened, &many).unwrap() == expected(&file(), &many));
    let lists = &server.requests()[2..];
    assert!(lists.len() == 3 && lists.iter().all(|request| request.head_bytes < 8_192));
}

#[test]
fn neighbours_are_read_as_one() {
    let server = HostileServer::start(file(), ResponseFaultScript::honest());
    let opened = open(&server.url());
    let ranges = [(1_000, 50), (1_100, 50), (0, 20), (20, 5), (1_120, 500)];
    assert!(read(&opened, &ranges).unwrap() == expected(&file(), &ranges));
    assert_eq!(server.requests()[1].header("range"), Some("bytes=0-24,1000-1619"));
}

#[test]
fn a_refusal_of_lists_is_learned_once() {
    for (lie, most_ranges) in [
        (ResponseFault::WholeOverRanges(1), 1),
        (ResponseFault::RefusesLists(416), 1),
        (ResponseFault::RefusesLists(403), 1),
        (ResponseFault::FirstRangeOnly, 1),
        (ResponseFault::WholeOverRanges(10), 10),
        (ResponseFault::WholeOverRanges(200), 200),
    ] {
        let server = served(lie.clone());
        let opened = open(&server.url());
        let ranges = spread(300, 50);
        assert!(read(&opened, &ranges).unwrap() == expected(&file(), &ranges), "{lie:?}");
        assert_eq!(opened.learned().ranges_per_request, most_ranges, "{lie:?}");
        let before = server.requests().len();
        // The second open uses another session. The known properties of a server apply to the whole process.
        let second = open(&server.url());
        assert!(read(&second, &ranges).unwrap() == expected(&file(), &ranges));
        let asked = &server.requests()[before..];
        assert!(asked.iter().all(|request| request.ranges() <= most_ranges), "{lie:?}");
    }
}

/// A firewall may refuse a list of ranges. A request for a single range shows whether the file itself is refused.
#[test]
fn a_refused_file_is_not_taken_for_refused_lists() {
    for version in VERSIONS {
        let server = start(version, file(), ResponseFaultScript::honest());
        let opened = open_in(version, &server.url());
        server.follow(ResponseFaultScript::honest().always(ResponseFault::Status(403, None)));
        assert_eq!(read(&opened, &spread(9, 50)).unwrap_err().kind(), ErrorKind::AccessDenied);
        assert!(opened.learned().ranges_per_request > 1);
        server.follow(ResponseFaultScript::honest());
        let before = server.requests().len();
        assert!(read(&opened, &spread(9, 50)).unwrap() == expected(&file(), &spread(9, 50)));
        // The refused read has pipelined requests for single ranges. The server may receive some of them late.
        let asked: Vec<usize> = server.requests()[before..].iter().map(|request| request.ranges()).collect();
        assert!(asked.iter().filter(|ranges| **ranges > 1).eq(&[9]), "lists are used again: {asked:?}");
    }
}

#[test]
fn shorter_heads_are_learned() {
    let server = served(ResponseFault::HeadBytesMax(3_000));
    let opened = open(&server.url());
    for _ in 0..2 {
        assert!(read(&opened, &spread(400, 50)).unwrap() == expected(&file(), &spread(400, 50)));
    }
    let refused = server.requests().iter().filter(|request| request.head_bytes > 3_000).count();
    assert!((1..=3).contains(&refused), "{refused}");
    assert!(opened.learned().ranges_per_request > 1);
}

#[test]
fn single_ranges_go_into_a_pipeline() {
    let server = served(ResponseFault::WholeOverRanges(1));
    let opened = open(&server.url());
    assert!(read(&opened, &spread(15, 50)).unwrap() == expected(&file(), &spread(15, 50)));
    let before = server.connections();
    assert!(read(&opened, &spread(15, 60)).unwrap() == expected(&file(), &spread(15, 60)));
    assert_eq!(server.connections(), before, "on the existing connection");
    assert!(opened.learned().pipelines);
}

#[test]
fn a_server_without_pipelining_gets_several_connections() {
    let script = ResponseFaultScript::honest()
        .always(ResponseFault::DropsPipelined)
        .always(ResponseFault::WholeOverRanges(1));
    let server = HostileServer::start(file(), script);
    let opened = open(&server.url());
    assert!(read(&opened, &spread(60, 50)).unwrap() == expected(&file(), &spread(60, 50)));
    assert!(!opened.learned().pipelines);
}

/// The client does not wait for a timeout when a server ignores pipelined requests, and does not count the ignored
/// requests as failures. With `max_retries` 0, a failure would end the read.
#[test]
fn a_server_that_leaves_pipelined_requests_is_found_out_soon() {
    let script = ResponseFaultScript::honest()
        .always(ResponseFault::LeavesPipelined)
        .always(ResponseFault::WholeOverRanges(1));
    let server = HostileServer::start(file(), script);
    let patient = session(|options| {
        options.patience = Duration::from_millis(50);
        options.timeouts.first_byte = Duration::from_secs(60);
        options.max_retries = 0;
    });
    let opened = RemoteFile::open(&patient, &server.url()).unwrap();
    for _ in 0..2 {
        assert!(read(&opened, &spread(60, 50)).unwrap() == expected(&file(), &spread(60, 50)));
    }
    assert!(!opened.learned().pipelines);
    let made = server.connections();
    assert!(read(&opened, &spread(60, 50)).unwrap() == expected(&file(), &spread(60, 50)));
    assert_eq!(server.connections(), made, "nothing is found out twice");
}

/// The server occasionally ignores a pipelined request. The client waits for the timeout twice, and then stops
/// pipelining.
#[test]
fn a_server_that_forgets_requests_is_not_sent_any_ahead() {
    let content = file();
    let ranges = spread(60, 50);
    let honest = || ResponseFaultScript::honest().always(ResponseFault::WholeOverRanges(1));
    let server = HostileServer::start(content.clone(), honest());
    let one = session(|options| options.connections_per_origin = 1);
    let opened = RemoteFile::open(&one, &server.url()).unwrap();
    assert!(read(&opened, &ranges).unwrap() == expected(&content, &ranges));
    assert!(opened.learned().pipelines);
    for pipelines in [true, false] {
        let next = server.requests().len() + 5;
        server.follow(honest().on_requests(next..next + 1, ResponseFault::LeavesPipelined));
        assert!(read(&opened, &ranges).unwrap() == expected(&content, &ranges));
        assert_eq!(opened.learned().pipelines, pipelines);
    }
}

#[test]
fn a_server_without_ranges_is_read_whole() {
    let server = served(ResponseFault::WholeForRange);
    let opened = open(&server.url());
    for _ in 0..2 {
        assert!(read(&opened, &spread(30, 50)).unwrap() == expected(&file(), &spread(30, 50)));
    }
    assert!(opened.learned().ignores_ranges);
    let before = server.requests().len();
    assert!(read(&opened, &spread(30, 50)).unwrap() == expected(&file(), &spread(30, 50)));
    assert_eq!(server.requests().len(), before + 1, "one request for all of it");
}

#[test]
fn merged_and_reordered_parts_are_put_where_they_belong() {
    let content = file();
    let ranges = [(590_000, 500), (5, 10), (300_000, 20_000), (1_005, 10), (305_000, 10)];
    for lie in [
        ResponseFault::OneSpan,
        ResponseFault::MergedParts(2_000),
        ResponseFault::ReversedParts,
        ResponseFault::BareLineFeeds,
        ResponseFault::Preamble,
    ] {
        let server = served(lie.clone());
        assert!(read(&open(&server.url()), &ranges).unwrap() == expected(&content, &ranges), "{lie:?}");
        assert_eq!(server.requests().len(), 2, "{lie:?}");
    }
}
