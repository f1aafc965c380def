//! Tests in which the first replica fails in every known way while the second replica works.

use fordway_http::replicas::{ReplicaCredentialScope, ReplicaOptions, ReplicatedFile};
use fordway_http::{HttpVersion, SessionCredentials};
use fordway_store::ErrorKind;
use fordway_testkit::hostile::{HostileServer, RecordedRequest, ResponseFault, ResponseFaultScript};
use fordway_wire::metalink::MetalinkFile;

use crate::{
    SIZE, VERSION, at, completed, content, copied, described, expected, open, read, server, some_ranges,
};

/// Returns a URL at which no server listens.
fn dead() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}/file", listener.local_addr().unwrap())
}

/// Opens a file with long timeouts, so that no second replica is tried in parallel merely because the machine is busy.
fn open_patiently(described: &MetalinkFile, locations: &[&str]) -> ReplicatedFile {
    let day = std::time::Duration::from_secs(86_400);
    let locations = locations.iter().map(|place| (*place).to_owned()).collect();
    let options = ReplicaOptions { stall: day, detection: day, locations, ..crate::options() };
    ReplicatedFile::open(described, options).unwrap()
}

fn faults() -> Vec<(&'static str, ResponseFaultScript)> {
    let always = |lie| ResponseFaultScript::honest().always(lie);
    vec![
        ("500", always(ResponseFault::Status(500, None))),
        ("404", always(ResponseFault::Status(404, None))),
        ("403", always(ResponseFault::Status(403, None))),
        (
            "500 once open",
            ResponseFaultScript::honest().on_requests(1..1_000, ResponseFault::Status(500, None)),
        ),
        ("dies", ResponseFaultScript::honest().on_requests(1..1_000, ResponseFault::ResetAt(450_000))),
        ("truncates", ResponseFaultScript::honest().on_requests(1..1_000, ResponseFault::CloseAt(450_000))),
        ("corrupt", always(ResponseFault::FlippedAt(750_001))),
        (
            "another size in parts",
            ResponseFaultScript::honest().on_requests(1..1_000, ResponseFault::ContentRangeSize(7)),
        ),
        ("another version", ResponseFaultScript::honest().on_requests(1..1_000, ResponseFault::Version(3))),
        ("slow", always(ResponseFault::Slow(60_000))),
        ("redirects to nobody", always(ResponseFault::Redirect(302, dead()))),
        ("hangs at once", always(ResponseFault::Mute)),
        (
            "hangs in the middle",
            ResponseFaultScript::honest().on_requests(1..1_000, ResponseFault::StallAt(450_000)),
        ),
        ("knows no ranges", always(ResponseFault::WholeForRange)),
    ]
}

/// Runs `check` with each fault at the first replica, over HTTP/1.1 and 2.
fn with_each_fault(check: impl Fn(&str, &MetalinkFile, &HostileServer)) {
    for version in [HttpVersion::Http1, HttpVersion::Http2] {
        VERSION.set(version);
        let good = server(ResponseFaultScript::honest());
        for (name, script) in faults() {
            let bad = server(script);
            check(&format!("{name}, {version:?}"), &described(&[&bad, &good]), &good);
        }
        let mut refusing = described(&[&good]);
        refusing.replicas.insert(0, at(&dead(), 1));
        refusing.replicas[1].priority = 2;
        check(&format!("refuses, {version:?}"), &refusing, &good);
    }
}

/// Every server must support the configured version, so a replica on a server without HTTP/2 counts as failed.
#[test]
fn a_replica_without_the_version_is_passed_over() {
    let plain = server(ResponseFaultScript::honest());
    VERSION.set(HttpVersion::Http2);
    let good = server(ResponseFaultScript::honest());
    let file = open(&described(&[&plain, &good]));
    assert!(copied(&file).unwrap() == content());
    let seen = plain.requests();
    assert!(seen.iter().all(|request| !["HEAD", "GET"].contains(&request.method.as_str())), "{seen:?}");
    assert_eq!(seen[0].method, "PRI", "the preface of HTTP/2");
}

#[test]
fn a_download_has_the_right_bytes() {
    with_each_fault(|name, described, _| {
        let part = tempfile::tempfile().unwrap();
        let file = open(described);
        assert_eq!(completed(&file, &part).unwrap_or_else(|error| panic!("{name}: {error}")), 0, "{name}");
        let mut bytes = vec![0; SIZE];
        std::os::unix::fs::FileExt::read_exact_at(&part, &mut bytes, 0).unwrap();
        assert!(bytes == content() && part.metadata().unwrap().len() == SIZE as u64, "{name}");
    });
}

#[test]
fn a_copy_in_order_has_the_right_bytes() {
    with_each_fault(|name, described, _| {
        let bytes = copied(&open(described)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(bytes == content(), "{name}");
    });
}

#[test]
fn vectored_reads_have_the_right_bytes() {
    let ranges = some_ranges();
    with_each_fault(|name, described, _| {
        let file = open(described);
        for round in 0..3 {
            let found = read(&file, &ranges).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(found == expected(&ranges), "{name}, round {round}");
        }
    });
}

/// Without piece digests, range reads cannot detect a corrupt replica. Failover still works for all other faults.
#[test]
fn what_has_no_pieces_still_fails_over() {
    let ranges = some_ranges();
    with_each_fault(|name, described, _| {
        let without = MetalinkFile { pieces: None, ..described.clone() };
        let part = tempfile::tempfile().unwrap();
        completed(&open(&without), &part).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut bytes = vec![0; SIZE];
        std::os::unix::fs::FileExt::read_exact_at(&part, &mut bytes, 0).unwrap();
        assert!(bytes == content(), "{name}");
        if name != "corrupt" {
            let found = read(&open(&without), &ranges).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(found == expected(&ranges), "{name}");
        }
    });
}

/// A part that is not as long as stated contains bytes of a delimiter. Another replica must send all of this part.
#[test]
fn bytes_of_a_rejected_response_are_not_used() {
    let ranges: Vec<_> = (0..60).map(|number| (number * (SIZE as u64 / 60), 1_000)).collect();
    for off in [-40, -5] {
        let bad = server(ResponseFaultScript::honest().always(ResponseFault::PartBytesOff(off)));
        let good = server(ResponseFaultScript::honest());
        let without = MetalinkFile { pieces: None, ..described(&[&bad, &good]) };
        let found = read(&open(&without), &ranges).unwrap();
        assert!(found == expected(&ranges), "{off}");
        assert!(
            bad.requests().iter().any(|request| request.header("range").is_some_and(|r| r.contains(',')))
        );
    }
}

#[test]
fn a_list_without_sizes_or_digests_is_enough() {
    let (bad, good) = (
        server(ResponseFaultScript::honest().always(ResponseFault::Status(503, None))),
        server(ResponseFaultScript::honest()),
    );
    let replicas = vec![at(&bad.url(), 1), at(&good.url(), 2)];
    let file = open(&MetalinkFile { replicas, ..MetalinkFile::default() });
    assert_eq!(file.size_bytes(), SIZE as u64);
    assert!(copied(&file).unwrap() == content());
}

/// Bytes that a replica sent before it failed are not requested again.
#[test]
fn a_download_goes_on_at_the_byte() {
    let dying = ResponseFaultScript::honest().on_requests(1..2, ResponseFault::CloseAt(450_000));
    let bad = server(dying.on_requests(2..1_000, ResponseFault::Status(500, None)));
    let good = server(ResponseFaultScript::honest());
    let file = open_patiently(&described(&[&bad, &good]), &[]);
    assert!(copied(&file).unwrap() == content());
    let start = |request: &RecordedRequest| {
        let range = request.header("range").and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
        range.and_then(|(first, _)| first.parse::<u64>().ok())
    };
    let starts: Vec<_> = good.requests()[1..].iter().map(start).collect();
    assert!(!starts.is_empty() && starts.iter().all(|start| *start >= Some(300_000)), "{starts:?}");
}

#[test]
fn a_corrupt_replica_is_not_asked_again() {
    let (bad, good) = (
        server(ResponseFaultScript::honest().always(ResponseFault::FlippedAt(750_001))),
        server(ResponseFaultScript::honest()),
    );
    let file = open(&described(&[&bad, &good]));
    assert!(copied(&file).unwrap() == content());
    let asked = bad.requests().len();
    let why = file.replicas()[0].out.clone().unwrap();
    assert!(why.contains("digest"), "{why}");
    assert!(read(&file, &some_ranges()).unwrap() == expected(&some_ranges()));
    assert_eq!(bad.requests().len(), asked);
}

#[test]
fn what_no_replica_has_is_an_error_that_names_all() {
    let corrupt = || server(ResponseFaultScript::honest().always(ResponseFault::FlippedAt(7)));
    let (one, other) = (corrupt(), corrupt());
    let error = copied(&open(&described(&[&one, &other]))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadDigest, "{error}");
    assert!(error.to_string().contains(&one.url()) && error.to_string().contains(&other.url()), "{error}");
    let missing = || server(ResponseFaultScript::honest().always(ResponseFault::Status(404, None)));
    let error = copied(&open(&described(&[&missing(), &missing()]))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSuchKey, "{error}");
    let (missing, broken) =
        (missing(), server(ResponseFaultScript::honest().always(ResponseFault::Status(500, None))));
    let error = copied(&open(&described(&[&missing, &broken]))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[test]
fn a_replica_that_comes_back_is_asked_again() {
    let only = server(ResponseFaultScript::honest().always(ResponseFault::Status(503, None)));
    let file = open(&described(&[&only]));
    assert_eq!(copied(&file).unwrap_err().kind(), ErrorKind::Unavailable);
    only.follow(ResponseFaultScript::honest());
    assert!(copied(&file).unwrap() == content());
}

/// Nothing shows which of the two replicas sent the wrong byte, so the whole file is requested from each replica.
#[test]
fn a_wrong_whole_is_made_right_by_one_replica() {
    let (bad, good) = (
        server(ResponseFaultScript::honest().always(ResponseFault::FlippedAt(1_400_000))),
        server(ResponseFaultScript::honest()),
    );
    let without = MetalinkFile { pieces: None, ..described(&[&bad, &good]) };
    let mut options = crate::options();
    options.streams = Some(2);
    let file = ReplicatedFile::open(&without, options).unwrap();
    let part = tempfile::tempfile().unwrap();
    completed(&file, &part).unwrap();
    let mut bytes = vec![0; SIZE];
    std::os::unix::fs::FileExt::read_exact_at(&part, &mut bytes, 0).unwrap();
    assert!(bytes == content());
}

#[test]
fn priorities_and_locations_choose() {
    let (one, other) = (server(ResponseFaultScript::honest()), server(ResponseFaultScript::honest()));
    let mut both = described(&[&one, &other]);
    (both.replicas[0].priority, both.replicas[1].priority) = (5, 2);
    assert!(copied(&open_patiently(&both, &[])).unwrap() == content());
    assert_eq!(one.requests().len(), 0);
    both.replicas[1].priority = 5;
    both.replicas[1].location = Some("ch".into());
    let before = other.requests().len();
    assert!(copied(&open_patiently(&both, &["CH"])).unwrap() == content());
    assert!(one.requests().is_empty() && other.requests().len() > before);
}

#[test]
fn a_server_that_knows_no_ranges_is_read_in_few_passes() {
    let large: Vec<u8> = content().repeat(16);
    let only = HostileServer::start(
        large.clone(),
        ResponseFaultScript::honest().always(ResponseFault::WholeForRange),
    );
    let replicas = vec![at(&only.url(), 1)];
    let described =
        MetalinkFile { size_bytes: Some(large.len() as u64), replicas, ..MetalinkFile::default() };
    assert!(copied(&open(&described)).unwrap() == large);
    let asked = only.requests().iter().filter(|request| request.method == "GET").count();
    assert!(asked <= 8, "{asked} times for {} bytes", large.len());
    let ranges = [(0, 9), (20_000_000, 100_000), (9_000_000, 3)];
    let found = read(&open(&described), &ranges).unwrap();
    let wanted: Vec<_> = ranges.iter().map(|(at, len)| large[*at as usize..][..*len].to_vec()).collect();
    assert!(found == wanted);
}

/// A Metalink may name any server, so a server receives the user's token only if the user named the server.
#[test]
fn credentials_go_only_to_servers_that_the_user_named() {
    const TOKEN: Option<&str> = Some("Bearer secret");
    for wanted in [[None, None], [TOKEN, None], [TOKEN, TOKEN]] {
        let refusing = ResponseFaultScript::honest().always(ResponseFault::Status(503, None));
        let servers = [server(refusing), server(ResponseFaultScript::honest())];
        let mut options = crate::options();
        options.session.credentials = SessionCredentials::none().with_bearer_token("secret");
        options.credentials = match wanted {
            [None, _] => ReplicaCredentialScope::default(),
            [Some(_), None] => ReplicaCredentialScope::Named(vec![servers[0].url()]),
            [Some(_), Some(_)] => ReplicaCredentialScope::All,
        };
        let file = ReplicatedFile::open(&described(&servers.iter().collect::<Vec<_>>()), options).unwrap();
        let mut copy = Vec::new();
        file.copy_range(0..file.size_bytes(), &mut |bytes| {
            copy.extend_from_slice(bytes);
            Ok(())
        })
        .unwrap();
        assert!(copy == content());
        for (server, wanted) in servers.iter().zip(wanted) {
            let requests = server.requests();
            let told = |request: &RecordedRequest| {
                let mut headers = request.headers.iter();
                headers.find(|(name, _)| name == "authorization").map(|(_, value)| value.clone())
            };
            assert!(!requests.is_empty());
            assert!(requests.iter().all(|request| told(request).as_deref() == wanted), "{requests:?}");
        }
    }
}
