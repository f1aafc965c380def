//! Tests of WebDAV against nginx with its dav module, which can change resources but not list them.

use fordway_http::HttpVersion;
use fordway_store::ErrorKind;
use fordway_testkit::foreign::ExternalServerProcess;

use crate::{client, content, get, kind, over_tcp, put, version};

#[test]
fn everything_but_listings() {
    over_tcp(|| {
        let found = match version() {
            HttpVersion::Http1 => ExternalServerProcess::nginx(),
            _ => ExternalServerProcess::nginx_with_http2(),
        };
        let Some(server) = found else { return };
        let dav = client(|_| {});
        dav.make_collections(&server.url("a/b")).unwrap();
        for (bytes, says_size) in [(7, true), (2_000_000, true), (300_000, false)] {
            put(&dav, &server.url("a/b/f"), &content(bytes), says_size).unwrap();
            assert!(get(&dav, &server.url("a/b/f")).unwrap() == content(bytes));
            let about = dav.stat(&server.url("a/b/f")).unwrap();
            assert_eq!((about.size_bytes, about.is_collection), (Some(bytes as u64), false));
        }
        dav.copy(&server.url("a/b/f"), &server.url("a/g"), false).unwrap();
        assert_eq!(
            kind(dav.copy(&server.url("a/b/f"), &server.url("a/g"), false)),
            ErrorKind::PreconditionFailed
        );
        dav.rename(&server.url("a/g"), &server.url("h"), false).unwrap();
        assert!(get(&dav, &server.url("h")).unwrap() == content(300_000));
        assert_eq!(kind(dav.stat(&server.url("a/g"))), ErrorKind::NoSuchKey);
        assert_eq!(kind(dav.make_collection(&server.url("a"))), ErrorKind::PreconditionFailed);
        assert_eq!(kind(dav.make_collection(&server.url("no/a"))), ErrorKind::NoSuchKey);
        // nginx responds with status 500 if the parent collection is missing.
        assert_eq!(kind(put(&dav, &server.url("no/f"), b"x", true)), ErrorKind::Io);
        dav.remove(&server.url("h")).unwrap();
        dav.remove(&server.url("a/")).unwrap();
        assert_eq!(std::fs::read_dir(server.files()).unwrap().count(), 0);
    });
}

#[test]
fn listings_are_refused_in_a_sentence() {
    let Some(server) = ExternalServerProcess::nginx() else { return };
    let error = client(|_| {}).list(&server.url("")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MethodNotAllowed);
    assert!(error.detail().contains("does not accept PROPFIND here"), "{error}");
}
