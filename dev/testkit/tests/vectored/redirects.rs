//! Tests files that are reached through redirects.

use fordway_http::SessionCredentials;
use fordway_http::vector::RemoteFile;
use fordway_store::{Error, ErrorKind};
use fordway_testkit::hostile::{HostileServer, ResponseFault, ResponseFaultScript};

use crate::{SIZE, expected, file, open, read, session, spread};

fn honest() -> HostileServer {
    HostileServer::start(file(), ResponseFaultScript::honest())
}

fn redirecting(status: u16, location: impl Into<String>) -> HostileServer {
    HostileServer::start(
        file(),
        ResponseFaultScript::honest().always(ResponseFault::Redirect(status, location.into())),
    )
}

fn refusal(url: &str) -> Error {
    let error = RemoteFile::open(&session(|_| {}), url).err().expect("an error");
    assert_eq!(error.kind(), ErrorKind::BadResponse, "{error}");
    error
}

#[test]
fn every_status_is_followed_once_for_the_life_of_a_file() {
    let ranges = spread(40, 100);
    for status in [301, 302, 303, 307, 308] {
        let there = honest();
        let door = redirecting(status, there.url());
        let opened = open(&door.url());
        assert_eq!(opened.size_bytes(), SIZE as u64);
        for _ in 0..3 {
            assert!(read(&opened, &ranges).unwrap() == expected(&file(), &ranges), "{status}");
        }
        assert_eq!((door.requests().len(), there.requests().len()), (1, 4), "{status}");
        assert_eq!((opened.traffic().requests, opened.traffic().connections), (5, 2));
    }
}

#[test]
fn what_moved_for_good_is_remembered_and_what_did_not_is_asked_for_again() {
    for (status, asked) in [(301, 1), (308, 1), (302, 3), (303, 3), (307, 3)] {
        let there = honest();
        let door = redirecting(status, there.url());
        let session = session(|_| {});
        (0..3).for_each(|_| drop(RemoteFile::open(&session, &door.url()).unwrap()));
        assert_eq!((door.requests().len(), there.requests().len()), (asked, 3), "{status}");
    }
}

/// The cached location of the file is no longer valid. The client discards it, and sends the next request to the
/// original address.
#[test]
fn a_file_that_moved_back_is_found_again() {
    let session = session(|_| {});
    let open = |url: &str| RemoteFile::open(&session, url).unwrap();
    let here = honest();
    let there = honest();
    here.follow(ResponseFaultScript::honest().always(ResponseFault::Redirect(301, there.url())));
    open(&here.url());
    here.follow(ResponseFaultScript::honest());
    there.follow(ResponseFaultScript::honest().always(ResponseFault::Redirect(301, here.url())));
    assert_eq!(open(&here.url()).size_bytes(), SIZE as u64);
    here.follow(ResponseFaultScript::honest().always(ResponseFault::Redirect(301, there.url())));
    there.follow(ResponseFaultScript::honest());
    open(&here.url());
    drop(there);
    here.follow(ResponseFaultScript::honest());
    assert_eq!(open(&here.url()).size_bytes(), SIZE as u64, "where it was is nobody any more");
}

#[test]
fn locations_may_be_relative_and_lead_on() {
    let script = ResponseFaultScript::honest()
        .on_requests(0..1, ResponseFault::Redirect(302, "moved/../new?a=1".into()))
        .on_requests(1..2, ResponseFault::Redirect(307, "/root".into()));
    let server = HostileServer::start(file(), script);
    assert_eq!(open(&server.url()).size_bytes(), SIZE as u64);
    let targets: Vec<_> = server.requests().into_iter().map(|request| request.target).collect();
    assert_eq!(targets, ["/file", "/new?a=1", "/root"]);
}

#[test]
fn a_server_without_head_may_redirect_the_first_byte() {
    let there = honest();
    let script = ResponseFaultScript::honest()
        .on_requests(0..1, ResponseFault::Status(405, None))
        .on_requests(1..2, ResponseFault::Redirect(302, there.url()));
    let door = HostileServer::start(file(), script);
    assert_eq!(open(&door.url()).size_bytes(), SIZE as u64);
    let methods: Vec<_> = door.requests().into_iter().map(|request| request.method).collect();
    assert_eq!(methods, ["HEAD", "GET"]);
}

#[test]
fn loops_are_refused_with_the_way() {
    for status in [301, 302] {
        let first = honest();
        let second = redirecting(status, first.url());
        first.follow(ResponseFaultScript::honest().always(ResponseFault::Redirect(status, second.url())));
        let (a, b) = (first.url(), second.url());
        let text = refusal(&a).to_string();
        assert!(
            text.contains(&format!("(redirected: {a} -> {b} -> {a})")) && text.contains("loop"),
            "{text}"
        );
        assert!(refusal(&a).to_string().contains("loop"));
    }
    let own = honest();
    own.follow(ResponseFaultScript::honest().always(ResponseFault::Redirect(302, own.url())));
    assert!(refusal(&own.url()).to_string().contains("loop"));
    assert_eq!(own.requests().len(), 1);
}

#[test]
fn ten_steps_are_followed_and_no_more() {
    for (steps, is_followed) in [(10, true), (11, false)] {
        let script = (0..steps).fold(ResponseFaultScript::honest(), |script, n| {
            script.on_requests(n..n + 1, ResponseFault::Redirect(302, format!("/step-{n}?secret=1")))
        });
        let server = HostileServer::start(file(), script);
        if is_followed {
            assert_eq!(open(&server.url()).size_bytes(), SIZE as u64);
        } else {
            let text = refusal(&server.url()).to_string();
            assert!(text.contains("more than 10 steps") && text.contains("/step-3 -> "), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
        assert_eq!(server.requests().len(), 11);
    }
}

#[test]
fn an_address_that_is_none_is_an_error_that_shows_it() {
    for location in ["ftp://127.0.0.1/x", "http://user:word@127.0.0.1/x", "http://", "//"] {
        let server = redirecting(302, location);
        assert!(refusal(&server.url()).to_string().contains("not the address of a file"), "{location}");
    }
}

#[test]
fn an_error_at_the_end_names_the_way() {
    let there = honest();
    there.follow(ResponseFaultScript::honest().always(ResponseFault::Status(404, None)));
    let door = redirecting(302, there.url());
    let error = RemoteFile::open(&session(|_| {}), &door.url()).err().expect("an error");
    assert_eq!(error.kind(), ErrorKind::NoSuchKey);
    let way = format!("(redirected: {} -> {})", door.url(), there.url());
    assert!(error.to_string().contains(&way) && error.to_string().starts_with("open http://"), "{error}");
}

#[test]
fn a_server_that_wants_time_gets_it() {
    let script = ResponseFaultScript::honest().on_requests(0..1, ResponseFault::Status(503, Some(1)));
    let server = HostileServer::start(file(), script);
    let started = std::time::Instant::now();
    assert_eq!(open(&server.url()).size_bytes(), SIZE as u64);
    assert!(started.elapsed().as_secs_f64() >= 1.0);
    assert_eq!(server.requests().len(), 2);
}

/// Starts a redirecting server, which itself responds to HEAD, and redirects GETs to the data server `there`.
fn door_to(there: &HostileServer, status: u16) -> HostileServer {
    HostileServer::start(
        file(),
        ResponseFaultScript::honest().on_method("GET", ResponseFault::Redirect(status, there.url())),
    )
}

#[test]
fn a_redirection_of_get_alone_is_followed_once_for_the_life_of_a_file() {
    let ranges = spread(40, 100);
    for status in [301, 302, 307] {
        // The data server refuses HEAD. It also sends no `ETag`, so its validators differ from the validators of the
        // redirecting server.
        let script = ResponseFaultScript::honest()
            .on_method("HEAD", ResponseFault::Status(403, None))
            .always(ResponseFault::NoETag);
        let there = HostileServer::start(file(), script);
        let door = door_to(&there, status);
        let opened = open(&door.url());
        for _ in 0..3 {
            assert!(read(&opened, &ranges).unwrap() == expected(&file(), &ranges), "{status}");
        }
        let tickets: Vec<_> = (0..3).map(|_| opened.submit(&ranges, Vec::new()).unwrap()).collect();
        for ticket in tickets {
            assert!(opened.wait(ticket).unwrap().bytes == expected(&file(), &ranges).concat());
        }
        let methods: Vec<_> = door.requests().into_iter().map(|request| request.method).collect();
        assert_eq!(methods, ["HEAD", "GET"], "{status}");
        assert_eq!(there.requests().len(), 1 + 6, "the first byte, and the calls");
    }
}

#[test]
fn where_gets_go_is_known_by_those_credentials_alone() {
    let there = honest();
    let door = door_to(&there, 301);
    let user = |name: &str| {
        session(|options| options.credentials = SessionCredentials::none().with_bearer_token(name))
    };
    let (ours, theirs) = (user("ours"), user("theirs"));
    for (session, asked) in [(&ours, 2), (&ours, 2), (&theirs, 4)] {
        let opened = RemoteFile::open(session, &door.url()).unwrap();
        assert!(read(&opened, &[(7, 100)]).unwrap()[0] == file()[7..107]);
        assert_eq!(door.requests().len(), asked);
    }
    assert!(
        door.requests()[..2].iter().all(|request| request.header("authorization") == Some("Bearer ours"))
    );
    assert!(there.requests().iter().all(|request| request.header("authorization").is_none()));
}

#[test]
fn another_version_elsewhere_is_not_mixed_in() {
    let there = honest();
    there.follow(ResponseFaultScript::honest().always(ResponseFault::Version(7)));
    let door = honest();
    let opened = open(&door.url());
    read(&opened, &[(0, 100)]).unwrap();
    door.follow(ResponseFaultScript::honest().on_method("GET", ResponseFault::Redirect(302, there.url())));
    let error = read(&opened, &[(200, 100)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PreconditionFailed, "{error}");
    let shorter = HostileServer::start(&file()[..SIZE - 1], ResponseFaultScript::honest());
    let door = door_to(&shorter, 302);
    let opened = open(&door.url());
    assert_eq!(read(&opened, &[(0, 100)]).unwrap_err().kind(), ErrorKind::PreconditionFailed);
}

#[test]
fn gets_that_lead_nowhere_are_errors() {
    let nowhere = HostileServer::start(
        file(),
        ResponseFaultScript::honest().on_method("GET", ResponseFault::Redirect(302, "/file".into())),
    );
    let opened = open(&nowhere.url());
    let error = read(&opened, &[(0, 9)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadResponse);
    assert!(error.to_string().contains("loop"), "{error}");
    // The data server responds to the first request, and redirects later requests back to the redirecting server.
    let there = honest();
    let door = door_to(&there, 302);
    let opened = open(&door.url());
    let back = ResponseFaultScript::honest().on_requests(1..99, ResponseFault::Redirect(302, door.url()));
    there.follow(back);
    let error = read(&opened, &[(0, 9)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadResponse, "{error}");
}
