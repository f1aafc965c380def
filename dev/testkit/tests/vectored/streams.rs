//! Tests of HTTP/2, where requests for ranges are streams of one connection. Tests that must pass over both HTTP/1.1
//! and HTTP/2 are in `hostile`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fordway_client::s3::{S3Config, S3Credentials, S3Store};
use fordway_http::vector::{AccessAdvice, ReadAheadSettings, RemoteFile, RemoteReader};
use fordway_http::{HttpVersion, TlsRoots};
use fordway_posix::{PosixConfig, PosixStore};
use fordway_serve::{AccessKeyPair, Gateway, GatewayConfig, RunningGateway, TlsCertificate, Users};
use fordway_store::{Bucket, ByteRange, ErrorKind, GetOptions, Key, Objects, PutOptions};
use fordway_testkit::hostile::{HostileServer, ResponseFault, ResponseFaultScript};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::servers::start_nginx;
use crate::shared::read_in_many_threads;
use crate::{expected, file, open_in, patient, read, session, some_ranges, spread};

fn served(lie: ResponseFault) -> HostileServer {
    HostileServer::start_http2(file(), ResponseFaultScript::honest().always(lie))
}

fn open(server: &HostileServer) -> RemoteFile {
    open_in(HttpVersion::Http2, &server.url())
}

#[test]
fn one_connection_is_enough() {
    let content = file();
    for (server, most) in [
        (HostileServer::start_http2(content.clone(), ResponseFaultScript::honest()), 1_000),
        (served(ResponseFault::WholeOverRanges(1)), 1),
    ] {
        let (opened, ranges) = (open(&server), spread(80, 100));
        assert!(read(&opened, &ranges).unwrap() == expected(&content, &ranges));
        assert_eq!(opened.learned().ranges_per_request, most);
        assert_eq!(server.connections(), 1, "a list that is refused ends its stream alone");
        let tickets: Vec<_> = (0..4).map(|_| opened.submit(&ranges, Vec::new()).unwrap()).collect();
        for ticket in tickets {
            assert!(opened.wait(ticket).unwrap().bytes == expected(&content, &ranges).concat());
        }
        // The number of single ranges exceeds the number of concurrent streams that the server allows.
        assert!(server.connections() <= if most == 1 { 8 } else { 1 });
    }
}

/// What a client learns about a server over HTTP/2 does not affect its use of HTTP/1.1, and vice versa.
#[test]
fn each_version_is_learned_by_itself() {
    let server = served(ResponseFault::WholeOverRanges(1));
    let opened = open(&server);
    read(&opened, &spread(20, 10)).unwrap();
    assert_eq!(opened.learned().ranges_per_request, 1);
    let other = session(|options| options.http = HttpVersion::Http1);
    // The server does not support HTTP/1.1, which the client detects by sending a request.
    assert!(RemoteFile::open(&other, &server.url()).is_err());
    let again = open(&server);
    let before = server.requests().len();
    read(&again, &spread(20, 10)).unwrap();
    assert_eq!(server.requests().len() - before, 20, "single ranges at once");
}

#[test]
fn no_more_streams_than_the_server_takes() {
    for most in [1, 3] {
        let told = ResponseFaultScript::honest()
            .always(ResponseFault::WholeOverRanges(1))
            .always(ResponseFault::StreamsMax(most));
        let server = HostileServer::start_http2(file(), told);
        let (opened, ranges) = (open(&server), spread(200, 50));
        read(&opened, &ranges).unwrap();
        let learned = server.requests().len();
        assert!(read(&opened, &ranges).unwrap() == expected(&file(), &ranges));
        // Each range was requested once: no stream was refused because there were too many.
        assert_eq!(server.requests().len() - learned, 200);
        assert!(server.connections() <= 8);
    }
}

/// Requests that the server did not process are sent again any number of times, and do not count as failures.
#[test]
fn what_a_server_did_not_look_at_is_asked_for_again() {
    let content = file();
    let any = ResponseFaultScript::honest().always(ResponseFault::WholeOverRanges(1));
    let few = any.clone().always(ResponseFault::StreamsMax(2));
    for (single, lie) in [
        (&any, ResponseFault::RefusesStream),
        (&any, ResponseFault::ClosesAfter),
        (&few, ResponseFault::ClosesAfter),
    ] {
        let server = HostileServer::start_http2(content.clone(), single.clone());
        let opened = RemoteFile::open(
            &session(|options| {
                patient(options);
                (options.http, options.max_retries) = (HttpVersion::Http2, 0);
            }),
            &server.url(),
        );
        let (opened, ranges) = (opened.unwrap(), spread(60, 500));
        read(&opened, &ranges).unwrap();
        let asked = server.requests().len();
        let told = (1..40).step_by(3).fold(single.clone(), |script, number| {
            script.on_requests(asked + number..asked + number + 1, lie.clone())
        });
        server.follow(told);
        for _ in 0..2 {
            assert!(read(&opened, &ranges).unwrap() == expected(&content, &ranges), "{lie:?}");
        }
        assert!(server.requests().len() > asked + 120 || server.connections() > 1, "{lie:?} was not told");
    }
}

/// The client replaces a connection that the server closes abruptly while requests on it are in progress.
#[test]
fn a_connection_that_goes_away_is_replaced() {
    let content = file();
    for lie in [ResponseFault::DropsPipelined, ResponseFault::CloseAt(400)] {
        let single = ResponseFaultScript::honest().always(ResponseFault::WholeOverRanges(1));
        let server = HostileServer::start_http2(content.clone(), single.clone());
        let (opened, ranges) = (open(&server), spread(60, 500));
        read(&opened, &ranges).unwrap();
        let asked = server.requests().len();
        server.follow(single.on_requests(asked + 30..asked + 31, lie.clone()));
        assert!(read(&opened, &ranges).unwrap() == expected(&content, &ranges), "{lie:?}");
        assert_eq!(server.connections(), 2, "{lie:?}");
    }
}

#[test]
fn a_server_that_refuses_every_stream_is_unavailable() {
    let server = HostileServer::start_http2(file(), ResponseFaultScript::honest());
    let opened = open(&server);
    server.follow(ResponseFaultScript::honest().always(ResponseFault::RefusesStream));
    let error = read(&opened, &spread(30, 100)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("after 3 tries"), "{error}");
}

/// Cancelling a read ends its stream, but not the connection that other reads use.
#[test]
fn what_is_given_up_ends_no_connection() {
    let content = file();
    let server = HostileServer::start_http2(content.clone(), ResponseFaultScript::honest());
    let opened = open(&server);
    let first = server.requests().len();
    server.follow(ResponseFaultScript::honest().on_requests(first..first + 1, ResponseFault::StallAt(1_000)));
    let stalled = opened.submit(&[(0, 300_000)], Vec::new()).unwrap();
    let other = opened.submit(&[(7, 9_000)], Vec::new()).unwrap();
    assert!(opened.wait(other).unwrap().bytes == content[7..9_007]);
    opened.cancel(stalled);
    assert!(read(&opened, &[(5, 5)]).unwrap()[0] == content[5..10]);
    let third = opened.submit(&[(1, 3)], Vec::new()).unwrap();
    assert!(opened.wait(third).unwrap().bytes == content[1..4]);
    assert!(server.connections() <= 2, "one of the calls that wait, one of those that do not");
}

#[test]
fn a_deadline_ends_a_call_and_the_next_has_its_own() {
    let server = HostileServer::start_http2(file(), ResponseFaultScript::honest());
    let hurried = session(|options| {
        options.http = HttpVersion::Http2;
        options.deadline = Some(Duration::from_secs(3));
        options.timeouts.progress = Duration::from_secs(600);
        options.timeouts.first_byte = Duration::from_secs(600);
    });
    let opened = RemoteFile::open(&hurried, &server.url()).unwrap();
    for silent in [ResponseFault::Mute, ResponseFault::StallAt(20_000)] {
        server.follow(ResponseFaultScript::honest().always(silent.clone()));
        let error = read(&opened, &[(0, 50_000)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{silent:?}: {error}");
        server.follow(ResponseFaultScript::honest());
        assert!(read(&opened, &[(5, 9)]).unwrap()[0] == file()[5..14]);
    }
}

/// The requested bytes exceed all flow-control windows together, and the test waits for the last batch first. The
/// client must also receive the other batches, because otherwise the windows would be full before the last batch.
#[test]
fn what_is_waited_for_last_does_not_hold_up_the_others() {
    const BATCH_BYTES: usize = 8 << 20;
    let content: Vec<u8> = (0..BATCH_BYTES * 10).map(|at| (at >> 12) as u8).collect();
    let server = HostileServer::start_http2(content.clone(), ResponseFaultScript::honest());
    let opened = RemoteFile::open(
        &session(|options| {
            patient(options);
            (options.http, options.window_bytes) = (HttpVersion::Http2, 1 << 30);
        }),
        &server.url(),
    )
    .unwrap();
    let submit = |batch| opened.submit(&[((batch * BATCH_BYTES) as u64, BATCH_BYTES)], Vec::new()).unwrap();
    let tickets: Vec<_> = (0..10).map(submit).collect();
    for (batch, ticket) in tickets.into_iter().enumerate().rev() {
        assert!(
            opened.wait(ticket).unwrap().bytes == content[batch * BATCH_BYTES..][..BATCH_BYTES],
            "{batch}"
        );
    }
}

#[test]
fn reading_ahead_is_by_streams() {
    let content = file();
    let server = HostileServer::start_http2(content.clone(), ResponseFaultScript::honest());
    let mut reader = RemoteReader::new(Arc::new(open(&server)), ReadAheadSettings { max_bytes: 4 << 20 });
    reader.advise(AccessAdvice::Sequential).unwrap();
    let (mut copy, mut block) = (Vec::new(), vec![0; 10_000]);
    loop {
        let count = reader.read_at(copy.len() as u64, &mut block).unwrap();
        if count == 0 {
            break;
        }
        copy.extend_from_slice(&block[..count]);
    }
    assert!(copy == content);
    assert_eq!(server.connections(), 1);
    let asked = server.requests().len();
    assert!(asked < 20, "{asked} requests for 60 reads");
}

/// An HTTP/1.1 client learns in the handshake, and only once, that the server does not support that version.
#[test]
fn a_server_that_knows_nothing_else_is_asked_by_it() {
    let server = HostileServer::start_secure_http2(file(), ResponseFaultScript::honest());
    let trusted = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(trusted.path(), server.certificate().unwrap()).unwrap();
    let ranges = spread(300, 200);
    for (version, connections) in [(HttpVersion::Http2, 1), (HttpVersion::Http1, 1 + 2)] {
        let session = session(|options| {
            options.http = version;
            options.tls_roots = TlsRoots::File(trusted.path().to_owned());
        });
        for _ in 0..2 {
            let opened = RemoteFile::open(&session, &server.url()).unwrap();
            assert!(read(&opened, &ranges).unwrap() == expected(&file(), &ranges));
        }
        assert_eq!(server.connections(), connections, "{version:?}");
    }
}

/// Tests nginx with TLS, where the handshake selects the HTTP version. nginx closes a connection gracefully after 1,000
/// requests.
#[test]
fn nginx_by_http2() {
    let Some(program) = fordway_needs::program("nginx") else { return };
    let server = start_nginx(&program, |dir, port| {
        certify(Path::new(dir));
        format!(
            "listen 127.0.0.1:{port} ssl http2; ssl_certificate {dir}/cert; ssl_certificate_key {dir}/key;"
        )
    });
    let url = server.url.replace("http://", "https://");
    let trusting = |version| {
        session(|options| {
            patient(options);
            (options.http, options.max_retries) = (version, 0);
            options.tls_roots = TlsRoots::File(server.dir.path().join("cert"));
        })
    };
    let opened = RemoteFile::open(&trusting(HttpVersion::Http2), &url).unwrap();
    holds_for_any_ranges(|ranges| read(&opened, ranges));
    let many = spread(1_200, 200);
    assert!(read(&opened, &many).unwrap() == expected(&file(), &many));
    // On the same port, an HTTP/1.1 client gets HTTP/1.1 responses.
    let plain = RemoteFile::open(&trusting(HttpVersion::Http1), &url).unwrap();
    assert!(read(&plain, &many).unwrap() == expected(&file(), &many));
    read_in_many_threads(&Arc::new(opened), 100);
}

/// Debian's nginx also supports HTTP/2 without TLS, on a port that supports only HTTP/2.
#[test]
fn nginx_by_prior_knowledge_with_lists_and_without() {
    let Some(program) = fordway_needs::program("nginx") else { return };
    for (most, directive) in [(1_000, ""), (1, "max_ranges 1;")] {
        let server = start_nginx(&program, |_, port| format!("listen 127.0.0.1:{port} http2; {directive}"));
        let by_http2 = session(|options| {
            patient(options);
            (options.http, options.max_retries) = (HttpVersion::Http2, 0);
        });
        let opened = RemoteFile::open(&by_http2, &server.url).unwrap();
        let many = spread(1_200, 200);
        for _ in 0..3 {
            assert!(read(&opened, &many).unwrap() == expected(&file(), &many));
        }
        assert_eq!(opened.learned().ranges_per_request, most);
    }
}

#[test]
fn our_gateway_by_http2() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    for certificate in [None, Some(dirs[1].path())] {
        let (client, _gateway) = gateway(dirs[0].path(), certificate);
        let bucket = Bucket::new(if certificate.is_some() { "secure" } else { "plain" }).unwrap();
        let key = Key::new("a b/k").unwrap();
        client.create_bucket(&bucket).unwrap();
        client.put(&bucket, &key, &file(), &PutOptions::default()).unwrap();
        holds_for_any_ranges(|ranges| {
            let last = |(offset, length): &(u64, usize)| offset + *length as u64 - 1;
            let is_empty = |(_, length): &(u64, usize)| *length == 0;
            let some = ranges.iter().filter(|range| !is_empty(range));
            let wanted: Vec<_> = some.map(|range| ByteRange::Inclusive(range.0, last(range))).collect();
            let mut found = client.read_ranges(&bucket, &key, &wanted, &GetOptions::default())?.into_iter();
            let of = |range| if is_empty(range) { Vec::new() } else { found.next().unwrap() };
            Ok(ranges.iter().map(of).collect())
        });
    }
}

fn gateway(root: &Path, certificate: Option<&Path>) -> (S3Store, RunningGateway) {
    let store = Arc::new(PosixStore::open(root, PosixConfig::default()).unwrap());
    let identity = AccessKeyPair::generate().unwrap();
    let keys = S3Credentials::keys(&identity.access_key, &identity.secret_key, "the test");
    let tls = certificate.map(|dir| {
        let (cert, key) = certify(dir);
        TlsCertificate::load(&cert, &key).unwrap()
    });
    let config = GatewayConfig { tls, ..GatewayConfig::new("127.0.0.1:0".parse().unwrap()) };
    let gateway = Gateway::bind(Users::one(identity, store), config).unwrap().spawn().unwrap();
    let scheme = if certificate.is_some() { "https" } else { "http" };
    let endpoint = format!("{scheme}://{}", gateway.local_addr());
    let mut config = S3Config { http: HttpVersion::Http2, ..S3Config::new(endpoint, "us-east-1", keys) };
    if let Some(dir) = certificate {
        config.tls_roots = TlsRoots::File(dir.join("cert"));
    }
    (S3Store::new(config).unwrap(), gateway)
}

/// Creates a certificate for 127.0.0.1, and its key.
pub(crate) fn certify(dir: &Path) -> (PathBuf, PathBuf) {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let (cert, key) = (dir.join("cert"), dir.join("key"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    (cert, key)
}

/// Checks `read` with random ranges.
fn holds_for_any_ranges(read: impl Fn(&[(u64, usize)]) -> fordway_store::Result<Vec<Vec<u8>>>) {
    let content = file();
    let mut runner = TestRunner::new(ProptestConfig { cases: 100, ..ProptestConfig::default() });
    let tested = runner.run(&some_ranges(60), |ranges| {
        let found = read(&ranges).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert!(found == expected(&content, &ranges), "other bytes");
        Ok(())
    });
    tested.unwrap();
}
