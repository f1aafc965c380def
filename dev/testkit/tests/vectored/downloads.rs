//! Tests of downloads of whole files, in one response or in as many responses as necessary.

use std::ops::Range;

use fordway_http::vector::RemoteFile;
use fordway_store::{Checksum, ChecksumAlgorithm, Error, ErrorKind, Result};
use fordway_testkit::hostile::{HostileServer, ResponseFault, ResponseFaultScript};

use crate::{SIZE, VERSIONS, file, open, open_in, start};

pub(crate) fn copy(opened: &RemoteFile, range: Range<u64>) -> Result<Vec<u8>> {
    let mut got = Vec::new();
    opened.copy_range(range, &mut |bytes| {
        got.extend_from_slice(bytes);
        Ok(())
    })?;
    Ok(got)
}

pub(crate) const WHOLE: Range<u64> = 0..SIZE as u64;

#[test]
fn one_request_brings_all_and_leaves_the_connection() {
    for version in VERSIONS {
        let server = start(version, file(), ResponseFaultScript::honest());
        let opened = open_in(version, &server.url());
        assert!(copy(&opened, WHOLE).unwrap() == file());
        assert!(copy(&opened, 7..SIZE as u64 - 3).unwrap() == file()[7..SIZE - 3]);
        assert_eq!(copy(&opened, 9..9).unwrap(), b"");
        assert_eq!((server.requests().len(), server.connections()), (3, 1));
        assert_eq!(server.requests()[1].header("range"), None);
        assert_eq!(copy(&opened, 1..SIZE as u64 + 1).unwrap_err().kind(), ErrorKind::InvalidRange);
    }
}

#[test]
fn what_breaks_off_is_resumed_where_it_ended() {
    for version in VERSIONS {
        for (lie, first) in [
            (ResponseFault::ResetAt(100_000), 100_000),
            (ResponseFault::CloseAt(250_001), 250_001),
            (ResponseFault::Status(503, Some(0)), 0),
            (ResponseFault::Status(429, None), 0),
        ] {
            let server = start(version, file(), ResponseFaultScript::honest());
            let opened = open_in(version, &server.url());
            server.follow(ResponseFaultScript::honest().on_requests(1..3, lie.clone()));
            assert!(copy(&opened, WHOLE).unwrap() == file(), "{lie:?}");
            let requests = server.requests();
            assert_eq!(requests.len(), 4, "{lie:?}");
            let resumed = (first > 0).then(|| format!("bytes={first}-{}", SIZE - 1));
            assert_eq!(requests[2].header("range"), resumed.as_deref());
            assert_eq!(requests[2].header("if-range").is_some(), first > 0);
        }
    }
}

#[test]
fn a_server_without_ranges_is_read_over() {
    for version in VERSIONS {
        let server =
            start(version, file(), ResponseFaultScript::honest().always(ResponseFault::WholeForRange));
        let opened = open_in(version, &server.url());
        server.follow(
            ResponseFaultScript::honest()
                .always(ResponseFault::WholeForRange)
                .on_requests(1..2, ResponseFault::CloseAt(99_999)),
        );
        assert!(copy(&opened, WHOLE).unwrap() == file());
    }
}

/// A server may send less than was requested (RFC 9110 section 15.3.7).
#[test]
fn shorter_ranges_are_put_together() {
    for version in VERSIONS {
        let short = ResponseFault::RangeBytesMax(250_000);
        let server = start(version, file(), ResponseFaultScript::honest().always(short));
        let opened = open_in(version, &server.url());
        assert!(copy(&opened, 5..SIZE as u64).unwrap() == file()[5..]);
        assert_eq!(server.requests().len(), 4, "HEAD, and three ranges");
        server.follow(ResponseFaultScript::honest().always(ResponseFault::RangeBytesMax(3)));
        assert_eq!(copy(&opened, 5..SIZE as u64).unwrap_err().kind(), ErrorKind::BadResponse);
    }
}

#[test]
fn two_versions_are_never_mixed() {
    for version in VERSIONS {
        let server = start(version, file(), ResponseFaultScript::honest());
        let opened = open_in(version, &server.url());
        server.follow(
            ResponseFaultScript::honest()
                .on_requests(1..2, ResponseFault::ResetAt(100_000))
                .on_requests(2..9, ResponseFault::Version(1)),
        );
        assert_eq!(copy(&opened, WHOLE).unwrap_err().kind(), ErrorKind::PreconditionFailed);
        let opened = open_in(version, &server.url());
        server.follow(ResponseFaultScript::honest());
        assert_eq!(copy(&opened, WHOLE).unwrap_err().kind(), ErrorKind::PreconditionFailed);
    }
}

#[test]
fn what_stays_wrong_is_an_error_after_some_tries() {
    for version in VERSIONS {
        for (lie, kind) in [
            (ResponseFault::Status(503, None), ErrorKind::Unavailable),
            (ResponseFault::Status(404, None), ErrorKind::NoSuchKey),
            (ResponseFault::CloseAt(0), ErrorKind::Unavailable),
            (ResponseFault::StallAt(0), ErrorKind::Timeout),
            (ResponseFault::ContentRangeMoved(1), ErrorKind::BadResponse),
        ] {
            let server = start(version, file(), ResponseFaultScript::honest());
            let opened = open_in(version, &server.url());
            server.follow(ResponseFaultScript::honest().always(lie.clone()));
            let error = copy(&opened, 5..SIZE as u64).unwrap_err();
            assert_eq!(error.kind(), kind, "{lie:?}: {error}");
            let is_retried = matches!(kind, ErrorKind::Unavailable | ErrorKind::Timeout);
            assert_eq!(server.requests().len(), if is_retried { 4 } else { 2 }, "{lie:?}");
        }
    }
}

/// The body and the file have different sizes. The body's framing does not show the difference, because the body ends
/// with the last chunk or with the connection.
#[test]
fn a_body_that_does_not_end_with_the_file_is_an_error() {
    for version in VERSIONS {
        for (framing, off) in [
            (ResponseFault::Chunked(900), 11),
            (ResponseFault::UntilClose, 11),
            (ResponseFault::Chunked(900), -11),
            (ResponseFault::UntilClose, -11),
        ] {
            let server = start(version, file(), ResponseFaultScript::honest());
            let opened = open_in(version, &server.url());
            server.follow(
                ResponseFaultScript::honest().always(framing.clone()).always(ResponseFault::BodyOff(off)),
            );
            for range in [WHOLE, 5..SIZE as u64, 5..5_000] {
                let error = copy(&opened, range.clone()).unwrap_err();
                let kind = if off > 0 { ErrorKind::BadResponse } else { ErrorKind::Unavailable };
                assert_eq!(error.kind(), kind, "{framing:?} {off} {range:?}: {error}");
            }
            server.follow(ResponseFaultScript::honest().always(framing));
            assert!(copy(&opened, WHOLE).unwrap() == file());
        }
    }
}

/// The body is shorter or longer than the range, in a response whose framing is consistent.
#[test]
fn a_length_that_is_not_the_range_s_is_an_error() {
    for version in VERSIONS {
        for off in [11, -11] {
            let server = start(version, file(), ResponseFaultScript::honest());
            let opened = open_in(version, &server.url());
            server.follow(ResponseFaultScript::honest().always(ResponseFault::BodyOff(off)));
            let error = copy(&opened, 5..5_000).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadResponse, "{off}: {error}");
            assert_eq!(server.requests().len(), 2, "{off}: it is not tried again");
        }
    }
}

#[test]
fn the_receiver_may_end_it() {
    for version in VERSIONS {
        let server = start(version, file(), ResponseFaultScript::honest());
        let opened = open_in(version, &server.url());
        let error =
            opened.copy_range(WHOLE, &mut |_| Err(Error::new(ErrorKind::Unavailable, "no more, thanks")));
        assert!(error.unwrap_err().to_string().contains("no more, thanks"));
        assert_eq!(server.requests().len(), 2);
    }
}

/// Returns a fault that adds S3's header with the file's CRC-32C.
fn checksum() -> ResponseFault {
    let sum = Checksum::of(ChecksumAlgorithm::Crc32c, &file());
    ResponseFault::Header("x-amz-checksum-crc32c", sum.to_base64())
}

fn copy_verified(opened: &RemoteFile) -> Result<(Option<&'static str>, Vec<u8>)> {
    let mut got = Vec::new();
    let verified = opened.copy_verified(0, &|| unreachable!("nothing came before"), &mut |bytes| {
        got.extend_from_slice(bytes);
        Ok(())
    })?;
    Ok((verified, got))
}

#[test]
fn what_arrives_is_held_against_the_digest_that_is_stated() {
    for version in VERSIONS {
        let server = start(version, file(), ResponseFaultScript::honest());
        let opened = open_in(version, &server.url());
        assert_eq!(copy_verified(&opened).unwrap(), (None, file()));
        let asked = server.requests()[1].clone();
        assert!(asked.header("want-digest").is_some_and(|list| list.starts_with("adler32;q=")), "{asked:?}");
        server.follow(
            ResponseFaultScript::honest()
                .always(checksum())
                .on_requests(2..3, ResponseFault::ResetAt(70_000)),
        );
        assert_eq!(copy_verified(&opened).unwrap(), (Some("CRC32C"), file()), "in two responses");
        server.follow(ResponseFaultScript::honest().always(checksum()).always(ResponseFault::Flipped));
        let error = copy_verified(&opened).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadDigest);
        assert!(error.to_string().contains("CRC32C that the server states"), "{error}");
    }
}

#[test]
fn what_was_there_before_is_read_back() {
    for version in VERSIONS {
        let sum = Checksum::of(ChecksumAlgorithm::Sha256, &file());
        let stated = ResponseFault::Header("Repr-Digest", format!("sha-256=:{}:", sum.to_base64()));
        let server = start(version, file(), ResponseFaultScript::honest().always(stated));
        let opened = open_in(version, &server.url());
        for (there, is_right) in [(file(), true), (vec![0; SIZE], false)] {
            let received = || Ok(Box::new(std::io::Cursor::new(there.clone())) as Box<dyn std::io::Read>);
            let copied = opened.copy_verified(1_000, &received, &mut |_| Ok(()));
            match is_right {
                true => assert_eq!(copied.unwrap(), Some("SHA256")),
                false => assert_eq!(copied.unwrap_err().kind(), ErrorKind::BadDigest),
            }
        }
    }
}

#[test]
fn a_copy_is_redirected_too() {
    for version in VERSIONS {
        let there = start(version, file(), ResponseFaultScript::honest());
        let door = start(
            version,
            file(),
            ResponseFaultScript::honest().on_method("GET", ResponseFault::Redirect(307, there.url())),
        );
        let opened = open_in(version, &door.url());
        assert!(copy(&opened, WHOLE).unwrap() == file());
        assert!(copy(&opened, 5..900).unwrap() == file()[5..900]);
        let count = |server: &HostileServer| server.requests().len();
        assert_eq!((count(&door), count(&there)), (2, 3), "HEAD and GET; the first byte and two copies");
    }
}

#[test]
fn a_server_that_refuses_to_speak_of_digests_is_asked_without() {
    for version in VERSIONS {
        for status in [405, 500] {
            let server = start(
                version,
                file(),
                ResponseFaultScript::honest().always(ResponseFault::RefusesDigests(status)),
            );
            let opened = open_in(version, &server.url());
            for asked in [3, 4] {
                assert_eq!(copy_verified(&opened).unwrap(), (None, file()));
                assert_eq!(server.requests().len(), asked, "it is asked once");
            }
        }
    }
}

/// XRootD computes a missing digest before it sends the first byte, which takes minutes for a large file.
#[test]
fn a_server_that_takes_too_long_for_digests_is_asked_without() {
    for version in VERSIONS {
        let script = ResponseFaultScript::honest().always(ResponseFault::MuteForDigests);
        let server = start(version, file(), script);
        let opened = open_in(version, &server.url());
        for asked in [3, 4] {
            assert_eq!(copy_verified(&opened).unwrap(), (None, file()));
            assert_eq!(server.requests().len(), asked, "it is asked once");
        }
    }
}

/// Returns scripts for two servers whose validators do not identify a version. One server sends no ETag, and the other
/// server sends a weak ETag.
fn without_strong_validator() -> [ResponseFaultScript; 2] {
    let none = ResponseFaultScript::honest().always(ResponseFault::NoETag);
    let weak = none.clone().always(ResponseFault::Header("ETag", "W/\"same\"".to_owned()));
    [none, weak]
}

/// Parts of a file may be put together only with a strong validator (RFC 9110 section 15.3.7.3). Without a strong
/// validator, the client requests the last bytes that have arrived again, and compares them.
#[test]
fn a_resumed_copy_without_a_strong_validator_compares_what_it_has() {
    for (version, script) in
        VERSIONS.into_iter().flat_map(|version| without_strong_validator().map(|script| (version, script)))
    {
        for whole in [false, true] {
            let script =
                if whole { script.clone().always(ResponseFault::WholeForRange) } else { script.clone() };
            let server = start(version, file(), script.clone());
            let opened = open_in(version, &server.url());
            server.follow(script.clone().on_requests(1..2, ResponseFault::CloseAt(100_000)));
            assert!(copy(&opened, WHOLE).unwrap() == file(), "{version:?} {script:?}");
            let first = format!("bytes={}-{}", 100_000 - 16_384, SIZE - 1);
            assert_eq!(server.requests()[2].header("range"), Some(first.as_str()));

            let before = server.requests().len();
            let changed = script.clone().on_requests(before + 1..99, ResponseFault::Version(1));
            server.follow(changed.on_requests(before..before + 1, ResponseFault::CloseAt(100_000)));
            let error = copy(&opened, WHOLE).map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PreconditionFailed, "{version:?} {script:?}: {error}");
            assert!(error.detail().contains("before byte 100000"), "{error}");
        }
    }
}

/// Tests three cases: the first response ends before the client has enough bytes to compare, all responses are short,
/// and `Last-Modified` changes although the weak ETag is the same.
#[test]
fn parts_without_a_strong_validator_are_put_together_with_care() {
    let [none, weak] = without_strong_validator();
    for (script, first) in [
        (none.clone().on_requests(1..2, ResponseFault::CloseAt(100)), 0),
        (weak.clone().always(ResponseFault::RangeBytesMax(50_000)), 9),
    ] {
        let server = HostileServer::start(file(), script.clone());
        let opened = open(&server.url());
        assert!(copy(&opened, first..SIZE as u64).unwrap() == file()[first as usize..], "{script:?}");
    }
    let time = |time: &str| ResponseFault::Header("Last-Modified", format!("Fri, 24 May 2013 {time} GMT"));
    let script = weak
        .on_requests(0..2, time("00:00:00"))
        .on_requests(1..2, ResponseFault::CloseAt(100_000))
        .on_requests(2..99, time("00:00:01"));
    let server = HostileServer::start(file(), script);
    let error = copy(&open(&server.url()), WHOLE).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PreconditionFailed, "{error}");
    assert!(error.detail().contains("Last-Modified was"), "{error}");
}
