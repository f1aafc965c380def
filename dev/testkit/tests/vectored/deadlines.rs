//! Tests operations that end at their deadline, and their error messages.

use std::sync::Arc;
use std::time::Duration;

use fordway_http::vector::{HttpSession, RemoteFile};
use fordway_store::ErrorKind;
use fordway_testkit::hostile::{HostileServer, ResponseFault, ResponseFaultScript};

use crate::downloads::{WHOLE, copy};
use crate::{file, read, session, spread};

/// Returns a session with this deadline. The session's other timeouts are longer than the test.
fn hurried(deadline: Duration) -> Arc<HttpSession> {
    session(|options| {
        options.deadline = Some(deadline);
        options.timeouts.progress = Duration::from_secs(600);
        options.timeouts.first_byte = Duration::from_secs(600);
    })
}

#[test]
fn a_wish_beyond_the_deadline_ends_it_at_once() {
    let server = HostileServer::start(file(), ResponseFaultScript::honest());
    let opened = RemoteFile::open(&hurried(Duration::from_secs(60)), &server.url()).unwrap();
    server.follow(ResponseFaultScript::honest().always(ResponseFault::Status(503, Some(3_600))));
    for error in [copy(&opened, WHOLE).unwrap_err(), read(&opened, &[(0, 9)]).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("requests a retry after 3600s"), "{error}");
    }
    assert_eq!(server.requests().len(), 3, "HEAD, and one for each");
}

#[test]
fn a_silent_server_is_given_up_when_the_time_is_up() {
    for silent in [ResponseFault::StallAt(0), ResponseFault::StallAt(20_000)] {
        let server = HostileServer::start(file(), ResponseFaultScript::honest());
        let opened = RemoteFile::open(&hurried(Duration::from_secs(3)), &server.url()).unwrap();
        server.follow(ResponseFaultScript::honest().always(silent.clone()));
        let ticket = opened.submit(&[(0, 50_000)], Vec::new()).unwrap();
        for error in [
            read(&opened, &spread(9, 9_000)).unwrap_err(),
            opened.wait(ticket).unwrap_err(),
            copy(&opened, WHOLE).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Timeout, "{silent:?}: {error}");
        }
        server.follow(ResponseFaultScript::honest());
        assert!(read(&opened, &[(5, 9)]).unwrap()[0] == file()[5..14], "the next one has time of its own");
    }
}

#[test]
fn the_first_cause_is_told_beside_the_last() {
    let server = HostileServer::start(file(), ResponseFaultScript::honest());
    let patient = session(|options| options.max_retries = 2);
    let opened = RemoteFile::open(&patient, &server.url()).unwrap();
    for _ in 0..2 {
        let before = server.requests().len();
        let first = ResponseFaultScript::honest().on_requests(before..before + 1, ResponseFault::CloseAt(0));
        server.follow(first.on_requests(before + 1..99, ResponseFault::Status(503, None)));
        let text = read(&opened, &[(0, 9)]).unwrap_err().to_string();
        assert!(text.contains("HTTP status 503) (at first: "), "{text}");
        assert!(text.contains("after 3 tries"), "{text}");
    }
}
