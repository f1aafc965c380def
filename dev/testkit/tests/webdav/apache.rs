//! Tests of WebDAV against Apache httpd with mod_dav.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use fordway_http::webdav::DavUploadOptions;
use fordway_store::ErrorKind;
use fordway_testkit::foreign::ExternalServerProcess;

use crate::{below, client, content, get, kind, over_tcp, put};

#[test]
fn files_and_collections_come_and_go() {
    over_tcp(|| {
        let Some(server) = ExternalServerProcess::apache() else { return };
        let dav = client(|_| {});
        dav.make_collection(&server.url("d")).unwrap();
        for (name, bytes, says_size) in [
            ("d/small", 5, true),
            ("d/empty", 0, true),
            ("d/large", 3_000_000, true),
            ("d/chunks", 500_000, false),
        ] {
            put(&dav, &server.url(name), &content(bytes), says_size).unwrap();
            assert!(get(&dav, &server.url(name)).unwrap() == content(bytes), "{name}");
            assert_eq!(dav.stat(&server.url(name)).unwrap().size_bytes, Some(bytes as u64), "{name}");
        }
        put(&dav, &server.url("d/small"), b"other", true).unwrap();
        assert_eq!(get(&dav, &server.url("d/small")).unwrap(), b"other");
        let about = dav.stat(&server.url("d/large")).unwrap();
        assert!(!about.is_collection && about.modified.is_some() && about.etag.is_some());
        assert!(dav.stat(&server.url("d")).unwrap().is_collection);
        dav.make_collections(&server.url("d/e/f/")).unwrap();
        put(&dav, &server.url("d/e/f/g"), b"g", true).unwrap();
        let all = ["d/", "d/chunks", "d/e/", "d/empty", "d/large", "d/small", "d/e/f/", "d/e/f/g"];
        assert_eq!(below(&dav, &server.url("")), all);
        assert_eq!(dav.list(&server.url("d/small")).unwrap().members, []);
        dav.copy(&server.url("d/"), &server.url("copy/"), false).unwrap();
        dav.rename(&server.url("d/e/"), &server.url("e/"), false).unwrap();
        assert_eq!(below(&dav, &server.url("e")), ["f/", "f/g"]);
        dav.remove(&server.url("d/small")).unwrap();
        dav.remove(&server.url("d/")).unwrap();
        dav.remove(&server.url("e/")).unwrap();
        assert_eq!(
            below(&dav, &server.url("copy")),
            ["chunks", "e/", "empty", "large", "small", "e/f/", "e/f/g"]
        );
    });
}

/// Apache sends a strong ETag when a file is at least one second old.
#[test]
fn another_version_is_neither_removed_nor_moved() {
    over_tcp(|| {
        let Some(server) = ExternalServerProcess::apache() else { return };
        let dav = client(|_| {});
        let (f, g) = (server.url("f"), server.url("g"));
        put(&dav, &f, b"old", true).unwrap();
        let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        let file = std::fs::File::options().write(true).open(server.files().join("f")).unwrap();
        file.set_modified(long_ago).unwrap();
        let old = dav.stat(&f).unwrap();
        assert!(old.etag.as_deref().is_some_and(|etag| etag.starts_with('"')), "{old:?}");
        put(&dav, &f, b"newer", true).unwrap();
        assert!(!old.is_same_version(&dav.stat(&f).unwrap()));
        assert_eq!(kind(dav.remove_version(&old)), ErrorKind::PreconditionFailed);
        assert_eq!(kind(dav.rename_version(&old, &g, true)), ErrorKind::PreconditionFailed);
        assert_eq!(get(&dav, &f).unwrap(), b"newer");
        dav.rename_version(&dav.stat(&f).unwrap(), &g, false).unwrap();
        dav.remove_version(&dav.stat(&g).unwrap()).unwrap();
        assert_eq!(below(&dav, &server.url("")), Vec::<String>::new());
    });
}

#[test]
fn names_are_what_they_are() {
    let Some(server) = ExternalServerProcess::apache() else { return };
    let dav = client(|_| {});
    let names = ["a b", "a+b", "a&b<c>", "d\u{e4}", "p%20q", "q#r?s", "x;y=z", "~'(!)*"];
    for name in names {
        let mut encoded = String::new();
        fordway_wire::uri::push_query(&mut encoded, name);
        put(&dav, &server.url(&encoded), name.as_bytes(), true).unwrap();
    }
    let listing = dav.list(&server.url("")).unwrap();
    let mut expected: Vec<_> = names.to_vec();
    expected.sort_unstable();
    assert_eq!(listing.members.iter().map(|member| member.relative.as_str()).collect::<Vec<_>>(), expected);
    for member in listing.members {
        assert_eq!(get(&dav, &member.url).unwrap(), member.relative.as_bytes());
        dav.remove(&member.url).unwrap();
    }
    assert_eq!(dav.list(&server.url("")).unwrap().members, []);
}

#[test]
fn what_cannot_be_is_told_apart() {
    over_tcp(|| {
        let Some(server) = ExternalServerProcess::apache() else { return };
        let dav = client(|_| {});
        put(&dav, &server.url("f"), b"f", true).unwrap();
        dav.make_collection(&server.url("d")).unwrap();
        let (f, d) = (server.url("f"), server.url("d"));
        assert_eq!(kind(dav.make_collection(&d)), ErrorKind::PreconditionFailed);
        dav.make_collections(&d).unwrap();
        // Apache responds with status 400 if the name of a file ends in a slash.
        assert_eq!(kind(dav.make_collections(&f)), ErrorKind::InvalidArgument);
        assert_eq!(kind(dav.make_collection(&server.url("no/d"))), ErrorKind::NoSuchKey);
        assert_eq!(kind(put(&dav, &server.url("no/f"), b"x", true)), ErrorKind::NoSuchKey);
        assert_eq!(kind(put(&dav, &server.url("no/f"), &content(1_000_000), true)), ErrorKind::NoSuchKey);
        assert_eq!(kind(dav.stat(&server.url("no"))), ErrorKind::NoSuchKey);
        assert_eq!(kind(dav.list(&server.url("no/"))), ErrorKind::NoSuchKey);
        assert_eq!(kind(dav.remove(&server.url("no"))), ErrorKind::NoSuchKey);
        assert_eq!(kind(dav.copy(&f, &server.url("no/f"), true)), ErrorKind::NoSuchKey);
        assert_eq!(kind(dav.copy(&f, &d, false)), ErrorKind::PreconditionFailed);
        assert_eq!(kind(dav.rename(&f, &d, false)), ErrorKind::PreconditionFailed);
        assert_eq!(kind(dav.copy(&f, "http://127.0.0.1:1/f", true)), ErrorKind::InvalidArgument);
        assert!(kind(dav.walk(&f).next().unwrap()) == ErrorKind::InvalidArgument);
        let new = DavUploadOptions { size_bytes: Some(1), only_new: true, ..DavUploadOptions::default() };
        assert_eq!(kind(dav.put(&f, &new, &mut |sink| sink(b"x"))), ErrorKind::PreconditionFailed);
        dav.put(&server.url("new"), &new, &mut |sink| sink(b"x")).unwrap();
        // If a source delivers fewer or more bytes than it declared, nothing is published.
        let says_two = DavUploadOptions { size_bytes: Some(2), ..DavUploadOptions::default() };
        assert_eq!(
            kind(dav.put(&server.url("short"), &says_two, &mut |sink| sink(b"x"))),
            ErrorKind::IncompleteBody
        );
        assert_eq!(
            kind(dav.put(&server.url("long"), &says_two, &mut |sink| sink(b"xyz"))),
            ErrorKind::IncompleteBody
        );
        assert_eq!(below(&dav, &server.url("")), ["d/", "f", "new"]);
    });
}

/// Locks a resource as another client would.
fn lock(server: &ExternalServerProcess, path: &str) {
    let url = server.url(path);
    let authority = url.split('/').nth(2).unwrap();
    let body = "<lockinfo xmlns=\"DAV:\"><lockscope><exclusive/></lockscope><locktype><write/></locktype></lockinfo>";
    let head = format!(
        "LOCK /{path} HTTP/1.1\r\nHost: {authority}\r\nDepth: 0\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(authority).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn what_is_locked_is_named() {
    over_tcp(|| {
        let Some(server) = ExternalServerProcess::apache() else { return };
        let dav = client(|_| {});
        dav.make_collection(&server.url("d")).unwrap();
        put(&dav, &server.url("d/held"), b"1", true).unwrap();
        put(&dav, &server.url("d/free"), b"1", true).unwrap();
        lock(&server, "d/held");
        assert_eq!(kind(dav.remove(&server.url("d/held"))), ErrorKind::ConditionalConflict);
        assert_eq!(kind(put(&dav, &server.url("d/held"), b"2", true)), ErrorKind::ConditionalConflict);
        let error = dav.remove(&server.url("d/")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConditionalConflict, "{error}");
        assert!(error.detail().contains("/d/held"), "{error}");
        assert_eq!(get(&dav, &server.url("d/held")).unwrap(), b"1");
    });
}
