//! Whole files in one answer, or in as many as it takes.

use std::ops::Range;

use fordway_client::http::vector::RemoteFile;
use fordway_store::{Error, ErrorKind, Result};
use fordway_testkit::hostile::{HostileServer, Lie, Script};

use crate::{SIZE, file, open};

fn copy(opened: &RemoteFile, range: Range<u64>) -> Result<Vec<u8>> {
    let mut got = Vec::new();
    opened.copy_range(range, &mut |bytes| {
        got.extend_from_slice(bytes);
        Ok(())
    })?;
    Ok(got)
}

const WHOLE: Range<u64> = 0..SIZE as u64;

#[test]
fn one_request_brings_all_and_leaves_the_connection() {
    let server = HostileServer::start(file(), Script::honest());
    let opened = open(&server.url());
    assert!(copy(&opened, WHOLE).unwrap() == file());
    assert!(copy(&opened, 7..SIZE as u64 - 3).unwrap() == file()[7..SIZE - 3]);
    assert_eq!(copy(&opened, 9..9).unwrap(), b"");
    assert_eq!((server.requests().len(), server.connections()), (3, 1));
    assert_eq!(server.requests()[1].header("range"), None);
    assert_eq!(copy(&opened, 1..SIZE as u64 + 1).unwrap_err().kind(), ErrorKind::InvalidRange);
}

#[test]
fn what_breaks_off_is_resumed_where_it_ended() {
    for (lie, first) in [
        (Lie::ResetAt(100_000), 100_000),
        (Lie::CloseAt(250_001), 250_001),
        (Lie::Status(503, Some(0)), 0),
        (Lie::Status(429, None), 0),
    ] {
        let server = HostileServer::start(file(), Script::honest());
        let opened = open(&server.url());
        server.follow(Script::honest().on_requests(1..3, lie.clone()));
        assert!(copy(&opened, WHOLE).unwrap() == file(), "{lie:?}");
        let requests = server.requests();
        assert_eq!(requests.len(), 4, "{lie:?}");
        let resumed = (first > 0).then(|| format!("bytes={first}-{}", SIZE - 1));
        assert_eq!(requests[2].header("range"), resumed.as_deref());
        assert_eq!(requests[2].header("if-range").is_some(), first > 0);
    }
}

#[test]
fn a_server_without_ranges_is_read_over() {
    let server = HostileServer::start(file(), Script::honest().always(Lie::WholeForRange));
    let opened = open(&server.url());
    server.follow(Script::honest().always(Lie::WholeForRange).on_requests(1..2, Lie::CloseAt(99_999)));
    assert!(copy(&opened, WHOLE).unwrap() == file());
}

#[test]
fn two_versions_are_never_mixed() {
    let server = HostileServer::start(file(), Script::honest());
    let opened = open(&server.url());
    server
        .follow(Script::honest().on_requests(1..2, Lie::ResetAt(100_000)).on_requests(2..9, Lie::Version(1)));
    assert_eq!(copy(&opened, WHOLE).unwrap_err().kind(), ErrorKind::PreconditionFailed);
    let opened = open(&server.url());
    server.follow(Script::honest());
    assert_eq!(copy(&opened, WHOLE).unwrap_err().kind(), ErrorKind::PreconditionFailed);
}

#[test]
fn what_stays_wrong_is_an_error_after_some_tries() {
    for (lie, kind) in [
        (Lie::Status(503, None), ErrorKind::Unavailable),
        (Lie::Status(404, None), ErrorKind::NoSuchKey),
        (Lie::CloseAt(0), ErrorKind::IncompleteBody),
        (Lie::StallAt(0), ErrorKind::Timeout),
        (Lie::ContentRangeMoved(1), ErrorKind::BadResponse),
    ] {
        let server = HostileServer::start(file(), Script::honest());
        let opened = open(&server.url());
        server.follow(Script::honest().always(lie.clone()));
        let error = copy(&opened, 5..SIZE as u64).unwrap_err();
        assert_eq!(error.kind(), kind, "{lie:?}: {error}");
        let is_retried =
            matches!(kind, ErrorKind::Unavailable | ErrorKind::IncompleteBody | ErrorKind::Timeout);
        assert_eq!(server.requests().len(), if is_retried { 4 } else { 2 }, "{lie:?}");
    }
}

#[test]
fn the_receiver_may_end_it() {
    let server = HostileServer::start(file(), Script::honest());
    let opened = open(&server.url());
    let error = opened.copy_range(WHOLE, &mut |_| Err(Error::new(ErrorKind::Unavailable, "no more, thanks")));
    assert!(error.unwrap_err().to_string().contains("no more, thanks"));
    assert_eq!(server.requests().len(), 2);
}
