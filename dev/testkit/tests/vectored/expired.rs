//! Tests redirect targets that start to refuse requests while the file is open. The server at the address that the
//! caller opened redirects to the current location.

use std::sync::Arc;
use std::time::Duration;

use fordway_http::vector::{HttpSession, RemoteFile};
use fordway_store::ErrorKind;
use fordway_testkit::hostile::{HostileServer, ResponseFault, ResponseFaultScript};

use crate::{expected, file, patient, read, session, spread};

/// Returns a session with long timeouts. These tests count requests, so no request may be retried because the machine
/// is slow.
fn unhurried() -> Arc<HttpSession> {
    session(|options| {
        patient(options);
        options.patience = Duration::from_secs(30);
    })
}

fn open(url: &str) -> RemoteFile {
    RemoteFile::open(&unhurried(), url).unwrap()
}

fn serving(script: ResponseFaultScript) -> HostileServer {
    HostileServer::start(file(), script)
}

/// Returns a script that redirects all requests, or only GETs.
fn to(there: &HostileServer, status: u16, gets_alone: bool) -> ResponseFaultScript {
    let lie = ResponseFault::Redirect(status, format!("{}?signature=1", there.url()));
    if gets_alone {
        ResponseFaultScript::honest().on_method("GET", lie)
    } else {
        ResponseFaultScript::honest().always(lie)
    }
}

fn refusing(status: u16) -> ResponseFaultScript {
    ResponseFaultScript::honest().always(ResponseFault::Status(status, None))
}

fn gets(server: &HostileServer) -> usize {
    server.requests().iter().filter(|request| request.method == "GET").count()
}

/// A file that was opened through a redirect to a location that now refuses requests.
struct Expired {
    door: HostileServer,
    _first: HostileServer,
    second: HostileServer,
    opened: RemoteFile,
}

/// Reads a file. Then makes the file's location refuse requests, and makes the redirecting server redirect to another
/// location.
fn expired(refused: u16, gets_alone: bool) -> Expired {
    let (first, second) = (serving(ResponseFaultScript::honest()), serving(ResponseFaultScript::honest()));
    let door = serving(to(&first, 302, gets_alone));
    let opened = open(&door.url());
    assert!(read(&opened, &[(7, 100)]).unwrap()[0] == file()[7..107]);
    first.follow(refusing(refused));
    door.follow(to(&second, 302, gets_alone));
    Expired { door, _first: first, second, opened }
}

#[test]
fn the_door_is_asked_again_once_for_all_reads_that_follow() {
    let ranges = spread(40, 100);
    for refused in [401, 403, 404, 410] {
        for gets_alone in [false, true] {
            let Expired { door, second, opened, _first } = expired(refused, gets_alone);
            let before = door.requests().len();
            for _ in 0..3 {
                assert!(read(&opened, &ranges).unwrap() == expected(&file(), &ranges), "{refused}");
            }
            assert_eq!(door.requests().len() - before, 1, "{refused} {gets_alone}");
            assert_eq!(gets(&second), 1 + 3, "the first byte, and the reads");
        }
    }
}

#[test]
fn batches_under_way_go_on_at_the_other_place() {
    let ranges = spread(40, 100);
    let Expired { door, second, opened, _first } = expired(403, true);
    let before = door.requests().len();
    let tickets: Vec<_> = (0..5).map(|_| opened.submit(&ranges, Vec::new()).unwrap()).collect();
    for ticket in tickets {
        assert!(opened.wait(ticket).unwrap().bytes == expected(&file(), &ranges).concat());
    }
    assert_eq!((door.requests().len() - before, gets(&second)), (1, 1 + 5));
}

/// If the requests of several threads are refused at the same time, only one thread requests the new location, and all
/// threads use it.
#[test]
fn threads_ask_once_between_them() {
    let ranges = spread(40, 100);
    let Expired { door, second: _second, opened, _first } = expired(403, false);
    let before = door.requests().len();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert!(read(&opened, &ranges).unwrap() == expected(&file(), &ranges)));
        }
    });
    assert_eq!(door.requests().len() - before, 1);
}

#[test]
fn a_copy_is_resumed_at_the_other_place() {
    let second = serving(ResponseFaultScript::honest());
    // The location responds to the HEAD, sends a truncated response, and refuses all later requests.
    let first = serving(
        ResponseFaultScript::honest()
            .on_requests(1..2, ResponseFault::ResetAt(50_000))
            .on_requests(2..usize::MAX, ResponseFault::Status(403, None)),
    );
    let door = serving(to(&first, 302, false));
    let opened = open(&door.url());
    door.follow(to(&second, 302, false));
    let mut copied = Vec::new();
    let take = &mut |bytes: &[u8]| {
        copied.extend_from_slice(bytes);
        Ok(())
    };
    opened.copy_range(0..opened.size_bytes(), take).unwrap();
    assert!(copied == file());
    assert_eq!(door.requests().len(), 2);
}

#[test]
fn another_version_behind_the_door_is_not_mixed_in() {
    let Expired { second, opened, door: _door, _first } = expired(403, false);
    second.follow(ResponseFaultScript::honest().always(ResponseFault::Version(7)));
    let error = read(&opened, &[(200, 100)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PreconditionFailed, "{error}");
    // Another version is refused even if the caller has not received any bytes yet, because the caller knows which
    // version was opened.
    let (first, second) = (
        serving(ResponseFaultScript::honest()),
        serving(ResponseFaultScript::honest().always(ResponseFault::Version(7))),
    );
    let door = serving(to(&first, 302, false));
    let opened = open(&door.url());
    first.follow(refusing(403));
    door.follow(to(&second, 302, false));
    let error = read(&opened, &[(200, 100)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PreconditionFailed, "{error}");
}

#[test]
fn a_door_that_refuses_too_is_the_error() {
    for (status, kind) in [(403, ErrorKind::AccessDenied), (404, ErrorKind::NoSuchKey)] {
        let Expired { door, second: _second, opened, _first } = expired(403, false);
        let before = door.requests().len();
        door.follow(refusing(status));
        let error = read(&opened, &[(200, 100)]).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(door.requests().len() - before, 1);
        let text = error.to_string();
        assert!(text.contains(&door.url()) && !text.contains("signature"), "{text}");
    }
}

/// The location refuses a read. After the client has requested the location again, a read of the first byte succeeds,
/// but the location refuses the repeated read.
#[test]
fn a_place_that_goes_on_refusing_is_asked_for_once_a_call() {
    let first = serving(ResponseFaultScript::honest());
    let door = serving(to(&first, 302, false));
    let opened = open(&door.url());
    let numbers = first.requests().len();
    let script = [numbers, numbers + 2].into_iter().fold(ResponseFaultScript::honest(), |script, number| {
        script.on_requests(number..number + 1, ResponseFault::Status(403, None))
    });
    first.follow(script);
    let error = read(&opened, &[(200, 100)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    assert_eq!((door.requests().len(), first.requests().len()), (2, numbers + 3));
    assert!(read(&opened, &[(200, 100)]).unwrap()[0] == file()[200..300]);
}

#[test]
fn what_moved_for_good_is_forgotten_where_it_refuses() {
    let (first, second) = (serving(ResponseFaultScript::honest()), serving(ResponseFaultScript::honest()));
    let door = serving(to(&first, 301, false));
    let session = unhurried();
    let opened = RemoteFile::open(&session, &door.url()).unwrap();
    first.follow(refusing(404));
    door.follow(to(&second, 301, false));
    assert!(read(&opened, &[(7, 100)]).unwrap()[0] == file()[7..107]);
    assert_eq!((door.requests().len(), gets(&second)), (2, 2));
    RemoteFile::open(&session, &door.url()).unwrap();
    assert_eq!(door.requests().len(), 2, "the new place is remembered");
}

#[test]
fn a_file_that_nobody_led_to_is_refused_at_once() {
    let server = serving(ResponseFaultScript::honest());
    let opened = open(&server.url());
    server.follow(refusing(403));
    assert_eq!(read(&opened, &[(7, 100)]).unwrap_err().kind(), ErrorKind::AccessDenied);
    assert_eq!(server.requests().len(), 2);
}
