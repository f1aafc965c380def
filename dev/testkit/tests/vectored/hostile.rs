//! Tests reads of random ranges from a server with faults.

use std::time::Duration;

use fordway_http::HttpVersion;
use fordway_http::retry::StagingRetries;
use fordway_http::vector::{RemoteFile, copy_unsized};
use fordway_store::{ErrorKind, Result};
use fordway_testkit::hostile::{HostileServer, ResponseFault, ResponseFaultScript};
use proptest::prelude::*;

use crate::downloads::{WHOLE, copy};
use crate::{SIZE, VERSIONS, expected, file, open, open_in, read, session, some_ranges, spread, start};

/// Generates faults that a read may survive. The faults do not include stalled responses.
pub(crate) fn some_lie() -> impl Strategy<Value = ResponseFault> {
    let boundary = prop_oneof![Just(("a b;c", true)), Just(("--", false)), Just(("x\"y", false))];
    prop_oneof![
        (0_u8..8).prop_map(|status| ResponseFault::Status(
            [200, 301, 400, 403, 416, 431, 500, 503][status as usize],
            None
        )),
        Just(ResponseFault::WholeForRange),
        (1_usize..8).prop_map(ResponseFault::WholeOverRanges),
        (100_usize..500).prop_map(ResponseFault::HeadBytesMax),
        Just(ResponseFault::OneSpan),
        Just(ResponseFault::FirstRangeOnly),
        (5_000_u64..60_000).prop_map(ResponseFault::RangeBytesMax),
        (0_u64..5_000).prop_map(ResponseFault::MergedParts),
        Just(ResponseFault::ReversedParts),
        (0_usize..4).prop_map(ResponseFault::MissingPart),
        Just(ResponseFault::Version(1)),
        Just(ResponseFault::IgnoresIfRange),
        (-100_i64..100).prop_map(ResponseFault::ContentRangeMoved),
        (0_u64..700_000).prop_map(ResponseFault::ContentRangeSize),
        (-4_i64..4).prop_map(ResponseFault::PartBytesOff),
        Just(ResponseFault::NoContentRange),
        Just(ResponseFault::BareLineFeeds),
        boundary.prop_map(|(boundary, is_quoted)| ResponseFault::Boundary(boundary, is_quoted)),
        Just(ResponseFault::NoFinalBoundary),
        Just(ResponseFault::Preamble),
        (0_usize..2).prop_map(ResponseFault::UnevenHeads),
        Just(ResponseFault::NoETag),
        (1_usize..5_000).prop_map(ResponseFault::Chunked),
        Just(ResponseFault::UntilClose),
        (-50_i64..0).prop_map(ResponseFault::ContentLengthOff),
        (0_usize..60_000).prop_map(ResponseFault::ResetAt),
        (0_usize..60_000).prop_map(ResponseFault::CloseAt),
        Just(ResponseFault::ClosesAfter),
        Just(ResponseFault::DropsPipelined),
        Just(ResponseFault::LeavesPipelined),
        Just(ResponseFault::RefusesStream),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// A shifted `Content-Range` within the requested range cannot be detected if the version has no validator. All
    /// other faults can be detected.
    #[test]
    fn lies_give_the_right_bytes_or_an_error(
        lies in prop::collection::vec((some_lie(), prop::option::of(1_usize..6)), 1..3),
        ranges in some_ranges(30),
        version in prop::sample::select(&VERSIONS[..]),
    ) {
        let content = file();
        let server = start(version, content.clone(), ResponseFaultScript::honest());
        let opened = open_in(version, &server.url());
        let mut script = ResponseFaultScript::honest();
        for (lie, first) in &lies {
            script = match first {
                Some(requests) => script.on_requests(1..1 + requests, lie.clone()),
                None => script.always(lie.clone()),
            };
        }
        let is_deceived = lies.iter().any(|(lie, _)| matches!(lie, ResponseFault::ContentRangeMoved(_)));
        server.follow(script);
        match read(&opened, &ranges) {
            Ok(found) => prop_assert!(is_deceived || found == expected(&content, &ranges)),
            Err(error) => prop_assert!(error.to_string().contains(&server.url()[..20]), "{error}"),
        }
    }
}

/// The client detects bytes beyond the range only after all requested bytes have arrived. Missing bytes never arrive.
#[test]
fn a_body_that_does_not_end_with_its_range_is_an_error() {
    let content = file();
    let ranges: [&[(u64, usize)]; 3] = [&[(7, 20_000)], &[(SIZE as u64 - 9, 9)], &[(0, SIZE)]];
    for version in VERSIONS {
        for (framing, off) in [
            (ResponseFault::Chunked(900), 11),
            (ResponseFault::UntilClose, 11),
            (ResponseFault::Chunked(900), -11),
            (ResponseFault::UntilClose, -11),
        ] {
            for ranges in ranges {
                let server = start(version, content.clone(), ResponseFaultScript::honest());
                let opened = open_in(version, &server.url());
                server.follow(
                    ResponseFaultScript::honest().always(framing.clone()).always(ResponseFault::BodyOff(off)),
                );
                let error = read(&opened, ranges).unwrap_err();
                let kind = if off > 0 { ErrorKind::BadResponse } else { ErrorKind::Unavailable };
                assert_eq!(error.kind(), kind, "{version:?} {framing:?} {off} {ranges:?}: {error}");
            }
        }
    }
}

/// A read must fail if a server that ignores ranges sends more or fewer bytes than the file has.
#[test]
fn a_whole_file_that_does_not_end_where_it_should_is_an_error() {
    let content = file();
    for (version, off) in VERSIONS.into_iter().flat_map(|version| [(version, 11), (version, -11)]) {
        let server = start(version, content.clone(), ResponseFaultScript::honest());
        let opened = open_in(version, &server.url());
        let whole = ResponseFaultScript::honest()
            .always(ResponseFault::WholeForRange)
            .always(ResponseFault::Chunked(900));
        server.follow(whole.always(ResponseFault::BodyOff(off)));
        let error = read(&opened, &[(9, SIZE - 9)]).unwrap_err();
        let kind = if off > 0 { ErrorKind::BadResponse } else { ErrorKind::Unavailable };
        assert_eq!(error.kind(), kind, "{version:?} {off}: {error}");
    }
}

/// The carriage return or the first bytes of a delimiter must not be interpreted as content.
#[test]
fn parts_that_are_a_byte_off_are_an_error() {
    let content = file();
    for (version, off) in VERSIONS.into_iter().flat_map(|version| [-2, -1, 1, 2].map(|off| (version, off))) {
        for breaks in [None, Some(ResponseFault::BareLineFeeds)] {
            let server = start(version, content.clone(), ResponseFaultScript::honest());
            let opened = open_in(version, &server.url());
            let script = ResponseFaultScript::honest().always(ResponseFault::PartBytesOff(off));
            server.follow(breaks.iter().fold(script, |script, lie| script.always(lie.clone())));
            let error = read(&opened, &spread(20, 100)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadResponse, "{version:?} {off} {breaks:?}: {error}");
        }
        // If the response ends within the first part, the rest is requested again and arrives correctly. If the
        // response ends within the delimiter, the client may already have detected the wrong length.
        let end_of_part = FIRST_PART_BYTES.saturating_add_signed(off as isize);
        for end in [end_of_part - 1, end_of_part] {
            assert!(is_right_after_a_cut(version, off, end).unwrap(), "{version:?} {off} {end}");
        }
        for end in end_of_part + 1..end_of_part + 8 {
            let is_right = is_right_after_a_cut(version, off, end);
            assert!(is_right.unwrap_or(true), "{version:?} {off} {end}");
        }
    }
}

/// Each part is much shorter than its head specifies, so the client receives delimiters and heads as content until the
/// response ends within the declared length. The client must not use these bytes.
#[test]
fn heads_are_not_content_of_a_part_that_is_cut_off() {
    for (version, off) in VERSIONS.into_iter().flat_map(|version| [(version, -99), (version, -20)]) {
        let end_of_part = FIRST_PART_BYTES.saturating_add_signed(off);
        for end in (end_of_part..FIRST_PART_BYTES).step_by(3) {
            assert!(is_right_after_a_cut(version, off as i64, end).unwrap(), "{version:?} {off} {end}");
        }
    }
}

/// The client joins ranges across small gaps, so a part contains unwanted bytes. What arrived before a cut is kept.
#[test]
fn a_part_with_gaps_that_is_cut_off_is_resumed() {
    let content = file();
    let near = (0..9).map(|number| (number * 40_100, 40_000));
    let wanted: Vec<_> = near.chain([(SIZE as u64 - 100, 100)]).collect();
    for version in VERSIONS {
        let server = start(version, content.clone(), ResponseFaultScript::honest());
        let opened = open_in(version, &server.url());
        server.follow(ResponseFaultScript::honest().always(ResponseFault::CloseAt(100_000)));
        assert!(read(&opened, &wanted).unwrap() == expected(&content, &wanted), "{version:?}");
        assert!(server.requests().len() < 10, "{version:?}: {}", server.requests().len());
    }
}

/// The position in a response at which the first part of 100 bytes ends.
const FIRST_PART_BYTES: usize = 212;

/// Reads ranges from a server whose first response ends at `end`, and has parts that are `off` bytes too long. Returns
/// whether the bytes are right.
fn is_right_after_a_cut(version: HttpVersion, off: i64, end: usize) -> Result<bool> {
    let (content, wanted) = (file(), spread(20, 100));
    let server = start(version, content.clone(), ResponseFaultScript::honest());
    let opened = open_in(version, &server.url());
    let script = ResponseFaultScript::honest().on_requests(1..2, ResponseFault::PartBytesOff(off));
    server.follow(script.on_requests(1..2, ResponseFault::CloseAt(end)));
    Ok(read(&opened, &wanted)? == expected(&content, &wanted))
}

/// Reads adjacent ranges into more buffers than one system call can fill.
#[test]
fn thousands_of_neighbours_are_read() {
    let content = file();
    for (version, bytes) in
        VERSIONS.into_iter().flat_map(|version| [1, 60, 300].map(|bytes| (version, bytes)))
    {
        let server = start(version, content.clone(), ResponseFaultScript::honest());
        let opened = open_in(version, &server.url());
        let ranges: Vec<_> = (0..1_900).map(|number| (number * bytes as u64, bytes)).collect();
        assert!(read(&opened, &ranges).unwrap() == expected(&content, &ranges), "{bytes}");
    }
}

/// The client predicts where the parts of a response start, and receives them directly into their buffers. In this
/// test, the prediction is wrong.
#[test]
fn parts_that_come_otherwise_than_foreseen_are_put_right() {
    let content = file();
    let uneven = [0, 1].map(ResponseFault::UnevenHeads);
    let missing = [3, 11, 19, 26, 34].map(ResponseFault::MissingPart);
    let others = [ResponseFault::ReversedParts, ResponseFault::MergedParts(700), ResponseFault::Preamble];
    let lies = uneven.into_iter().chain(missing).chain(others);
    for (lie, bytes) in lies.flat_map(|lie| [1_200, 9_000].map(|bytes| (lie.clone(), bytes))) {
        let server = start(VERSIONS[0], content.clone(), ResponseFaultScript::honest());
        let opened = open_in(VERSIONS[0], &server.url());
        server.follow(ResponseFaultScript::honest().always(lie.clone()));
        let mut ranges = spread(40, bytes);
        ranges.iter_mut().step_by(7).for_each(|(_, length)| *length -= 600);
        assert!(read(&opened, &ranges).unwrap() == expected(&content, &ranges), "{lie:?}");
    }
}

#[test]
fn a_lie_that_passes_is_survived() {
    let content = file();
    let ranges = spread(40, 3_000);
    let lies = [
        ResponseFault::Status(503, Some(0)),
        ResponseFault::Status(500, None),
        ResponseFault::ResetAt(30_000),
        ResponseFault::CloseAt(30_000),
        ResponseFault::StallAt(30_000),
        ResponseFault::NoContentRange,
        ResponseFault::ContentLengthOff(-400),
    ];
    for (version, lie) in VERSIONS.into_iter().flat_map(|version| lies.clone().map(|lie| (version, lie))) {
        let server = start(version, content.clone(), ResponseFaultScript::honest());
        let opened = open_in(version, &server.url());
        server.follow(ResponseFaultScript::honest().on_requests(1..2, lie.clone()));
        assert!(read(&opened, &ranges).unwrap() == expected(&content, &ranges), "{lie:?}");
        assert!(server.requests().len() > 2, "{lie:?} was not told");
    }
}

#[test]
fn a_lie_that_stays_is_an_error_that_says_why() {
    let lies = [
        (ResponseFault::Status(403, None), ErrorKind::AccessDenied, "HTTP status 403"),
        (ResponseFault::Status(404, None), ErrorKind::NoSuchKey, "HTTP status 404"),
        (ResponseFault::Status(503, None), ErrorKind::Unavailable, "after 3 tries"),
        (
            ResponseFault::Redirect(302, "http://127.0.0.1:1/f".into()),
            ErrorKind::Unavailable,
            "127.0.0.1:1/f",
        ),
        (ResponseFault::StallAt(0), ErrorKind::Timeout, "nothing arrived for"),
        (ResponseFault::ResetAt(0), ErrorKind::Unavailable, "after 3 tries"),
        (ResponseFault::NoContentRange, ErrorKind::BadResponse, "Content-Range"),
        (ResponseFault::ContentRangeSize(7_000_000), ErrorKind::PreconditionFailed, "the file changed"),
        (ResponseFault::Version(3), ErrorKind::PreconditionFailed, "the file changed"),
    ];
    let both = VERSIONS.into_iter().flat_map(|version| lies.clone().map(|told| (version, told)));
    for (version, (lie, kind, why)) in both {
        let server = start(version, file(), ResponseFaultScript::honest());
        let opened = open_in(version, &server.url());
        server.follow(ResponseFaultScript::honest().always(lie.clone()));
        let error = read(&opened, &[(5, 10), (90_000, 10)]).unwrap_err();
        assert_eq!(error.kind(), kind, "{lie:?}: {error}");
        assert!(error.to_string().contains(why), "{lie:?}: {error}");
    }
}

/// The client stops reading from a server that sends only a few bytes per response, because the read would take
/// thousands of requests.
#[test]
fn a_server_that_cuts_every_answer_short_is_given_up() {
    for version in VERSIONS {
        let server = start(version, file(), ResponseFaultScript::honest());
        let opened = open_in(version, &server.url());
        server.follow(ResponseFaultScript::honest().always(ResponseFault::CloseAt(200)));
        let read = read(&opened, &[(0, 500_000)]).map(|_| ());
        for ended in [read, opened.copy_range(0..500_000, &mut |_| Ok(()))] {
            let error = ended.expect_err("it would take thousands of requests");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
        assert!(server.requests().len() < 100, "{} requests", server.requests().len());
    }
}

/// Several connections break, and each delivers some of the bytes. Received bytes are not requested again.
#[test]
fn a_cut_answer_is_resumed() {
    let content = file();
    for version in VERSIONS {
        let server = start(version, content.clone(), ResponseFaultScript::honest());
        let opened = open_in(version, &server.url());
        server.follow(ResponseFaultScript::honest().on_requests(1..9, ResponseFault::ResetAt(50_000)));
        assert!(read(&opened, &[(0, 500_000)]).unwrap()[0] == content[..500_000]);
        let asked = server.requests();
        let starts: Vec<_> =
            asked[1..].iter().map(|request| request.header("range").unwrap().to_owned()).collect();
        assert!(starts.windows(2).all(|pair| pair[0] != pair[1]), "{version:?} {starts:?}");
    }
}

#[test]
fn a_file_that_changes_is_never_mixed() {
    let content = file();
    let ranges = spread(60, 2_000);
    for (version, ignores) in VERSIONS.into_iter().flat_map(|version| [(version, false), (version, true)]) {
        let server = start(version, content.clone(), ResponseFaultScript::honest());
        let opened = open_in(version, &server.url());
        read(&opened, &ranges[..5]).unwrap();
        let mut changed = ResponseFaultScript::honest().always(ResponseFault::Version(9));
        if ignores {
            changed = changed.always(ResponseFault::IgnoresIfRange);
        }
        server.follow(changed);
        let error = read(&opened, &ranges).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PreconditionFailed, "{error}");
        assert!(server.requests().iter().skip(1).all(|request| request.header("if-range").is_some()));
        let again = open_in(version, &server.url());
        let changed: Vec<u8> = content.iter().map(|byte| byte ^ 9).collect();
        assert!(read(&again, &ranges).unwrap() == expected(&changed, &ranges));
    }
}

#[test]
fn who_may_read_need_not_be_let_ask() {
    let content = file();
    for status in [400, 403, 404, 405, 406, 500, 501] {
        let script = ResponseFaultScript::honest().on_requests(0..1, ResponseFault::Status(status, None));
        let server = HostileServer::start(content.clone(), script);
        let opened = open(&server.url());
        assert_eq!(opened.size_bytes(), content.len() as u64);
        assert!(opened.version().etag.is_some());
        assert!(read(&opened, &[(7, 9)]).unwrap()[0] == content[7..16]);
        assert_eq!((server.connections(), server.requests()[1].header("range")), (1, Some("bytes=0-0")));
    }
    let empty = HostileServer::start(
        [],
        ResponseFaultScript::honest().on_requests(0..1, ResponseFault::Status(405, None)),
    );
    assert_eq!(open(&empty.url()).size_bytes(), 0);
}

/// A server that has to fetch a file from tape responds with status 202 and a message in the meantime.
#[test]
fn a_file_that_is_staged_is_waited_for() {
    for version in VERSIONS {
        let staged = ResponseFault::Status(202, None);
        let always = ResponseFaultScript::honest().always(staged.clone());
        let server = start(version, file(), always.clone());
        let opened = RemoteFile::open(&session(|options| options.http = version), &server.url());
        let error = opened.err().expect("an error");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("from tape; try again later (HTTP status 202)"), "{error}");
        let unsized_copy =
            copy_unsized(&session(|options| options.http = version), &server.url(), true, &mut |_| Ok(()));
        assert_eq!(unsized_copy.unwrap_err().kind(), ErrorKind::Unavailable);
        server.follow(ResponseFaultScript::honest());
        let opened = open_in(version, &server.url());
        server.follow(always);
        assert_eq!(read(&opened, &[(7, 9)]).unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(copy(&opened, WHOLE).unwrap_err().kind(), ErrorKind::Unavailable);
        let patient = session(|options| {
            options.http = version;
            options.staging = Some(StagingRetries { max_retries: 99, delay: Duration::from_millis(1) });
        });
        let server = start(version, file(), ResponseFaultScript::honest().on_requests(0..60, staged));
        let opened = RemoteFile::open(&patient, &server.url()).unwrap();
        assert!(read(&opened, &[(7, 9)]).unwrap()[0] == file()[7..16]);
    }
}

/// Some servers respond incorrectly to HEAD: they set `Content-Length` to 0, which is the length of the body that they
/// send.
#[test]
fn a_head_that_states_no_bytes_is_not_believed() {
    let stated = ResponseFault::ContentLengthOff(-(SIZE as i64));
    let server =
        HostileServer::start(file(), ResponseFaultScript::honest().on_method("HEAD", stated.clone()));
    let opened = open(&server.url());
    assert_eq!((opened.size_bytes(), server.requests().len()), (SIZE as u64, 2));
    assert!(read(&opened, &[(7, 9)]).unwrap()[0] == file()[7..16]);
    // A server that refuses the range of an empty file need not send the size again.
    let refused = ResponseFault::Status(416, None);
    let empty = HostileServer::start([], ResponseFaultScript::honest().on_method("GET", refused));
    assert_eq!(open(&empty.url()).size_bytes(), 0);
    // XRootD announces byte 0 of an empty file, and does not send it.
    let announced = ResponseFaultScript::honest()
        .on_method("GET", ResponseFault::Status(206, None))
        .on_method("GET", ResponseFault::ContentLengthOff(1));
    let empty = HostileServer::start([], announced);
    assert_eq!(open(&empty.url()).size_bytes(), 0);
    assert_eq!(empty.requests().len(), 2);
}

/// Any server error may be temporary. For example, content delivery networks use non-standard statuses for an origin
/// that does not respond.
#[test]
fn any_failure_of_the_server_may_pass() {
    for version in VERSIONS {
        for (status, passes) in [(500, true), (520, true), (599, true), (501, false), (507, false)] {
            let server = start(version, file(), ResponseFaultScript::honest());
            let opened = open_in(version, &server.url());
            server
                .follow(ResponseFaultScript::honest().on_requests(1..2, ResponseFault::Status(status, None)));
            assert_eq!(read(&opened, &[(7, 9)]).is_ok(), passes, "{status}");
        }
    }
}

/// OpenStack Swift and some other programs omit the quotes of an ETag. No server recognizes an ETag without quotes in
/// `If-Range`.
#[test]
fn an_etag_without_quotes_pins_nothing_and_is_compared() {
    let with = |etag: &str| {
        let etag = ResponseFault::Header("ETag", etag.to_owned());
        ResponseFaultScript::honest().always(ResponseFault::NoETag).always(etag)
    };
    let server = HostileServer::start(file(), with("d41d8"));
    let opened = open(&server.url());
    assert!(read(&opened, &spread(60, 50)).unwrap() == expected(&file(), &spread(60, 50)));
    assert_eq!((server.requests().len(), opened.learned().ignores_ranges), (2, false));
    server.follow(with("e52e9"));
    assert_eq!(read(&opened, &[(7, 9)]).unwrap_err().kind(), ErrorKind::PreconditionFailed);
}

#[test]
fn a_server_that_is_gone_is_unavailable() {
    let server = HostileServer::start(file(), ResponseFaultScript::honest());
    let opened = open(&server.url());
    drop(server);
    let started = std::time::Instant::now();
    let error = read(&opened, &[(0, 10)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(started.elapsed() < Duration::from_secs(20));
}

/// Apache's ETag is weak during the first second after a change. Afterwards, the ETag is strong but has the same value.
#[test]
fn a_weak_etag_that_becomes_strong_is_no_change() {
    let with = |etag: &str| {
        let etag = ResponseFault::Header("ETag", etag.to_owned());
        ResponseFaultScript::honest().always(ResponseFault::NoETag).always(etag)
    };
    let server = HostileServer::start(file(), with("W/\"a\""));
    let opened = open(&server.url());
    for (etag, kind) in [("\"a\"", None), ("\"b\"", Some(ErrorKind::PreconditionFailed))] {
        server.follow(with(etag));
        assert_eq!(read(&opened, &[(7, 9)]).err().map(|error| error.kind()), kind, "{etag}");
    }
}
