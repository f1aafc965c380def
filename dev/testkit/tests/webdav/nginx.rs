//! Tests of WebDAV against nginx with its dav module, which can change resources but not list them.

use fordway_http::HttpVersion;
use fordway_store::ErrorKind;
use fordway_testkit::foreign::ExternalServerProcess;

use crate::dialogue::{Dialogue, answer};
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

/// The redirector's paths have a prefix that the server's paths do not have. The server interprets only the path of
/// `Destination`, so the client must send the destination's address on the server.
#[test]
fn a_destination_is_redirected_like_its_source() {
    let Some(server) = ExternalServerProcess::nginx() else { return };
    let base = server.url("");
    let door = Dialogue::start(move |request, _| match request.target.strip_prefix("/p/") {
        Some(path) => answer(307, &format!("Location: {base}{path}\r\n"), ""),
        None => answer(404, "", ""),
    });
    let dav = client(|_| {});
    put(&dav, &door.url("p/a"), b"content", true).unwrap();
    dav.copy(&door.url("p/a"), &door.url("p/b"), false).unwrap();
    dav.rename(&door.url("p/a"), &door.url("p/c"), false).unwrap();
    for (path, is_there) in [("a", false), ("b", true), ("c", true)] {
        assert_eq!(get(&dav, &door.url(&format!("p/{path}"))).is_ok(), is_there, "{path}");
        assert_eq!(server.files().join(path).exists(), is_there, "{path}");
    }
    // The door does not redirect this address, so it is not an address on the server.
    for refused in
        [dav.copy(&door.url("p/b"), &door.url("d"), true), dav.rename(&door.url("p/b"), &door.url("d"), true)]
    {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.detail().contains("is not on the same server as"), "{error}");
    }
    assert!(get(&dav, &door.url("p/b")).unwrap() == b"content");
    assert_eq!(std::fs::read_dir(server.files()).unwrap().count(), 2);
}
