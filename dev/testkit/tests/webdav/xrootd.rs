//! Tests XRootD over HTTP: WebDAV, and copies from server to server.

use std::time::Duration;

use fordway_http::TlsRoots;
use fordway_http::webdav::{CopyDirection, ThirdPartyCopy, WebDavClient};
use fordway_store::{ErrorKind, Result};
use fordway_testkit::foreign::{ExternalServerProcess, SelfSignedCertificate};

use crate::{below, client, content, get, kind, put};

fn trusting(authority: &SelfSignedCertificate) -> WebDavClient {
    client(|options| options.tls_roots = TlsRoots::File(authority.file()))
}

#[test]
fn files_and_collections() {
    let authority = SelfSignedCertificate::new();
    let Some(server) = ExternalServerProcess::xrootd(&authority) else { return };
    let dav = trusting(&authority);
    dav.make_collections(&server.url("d/e")).unwrap();
    for (name, bytes, says_size) in
        [("d/small", 5, true), ("d/large", 3_000_000, true), ("d/chunks", 500_000, false)]
    {
        put(&dav, &server.url(name), &content(bytes), says_size).unwrap();
        assert!(get(&dav, &server.url(name)).unwrap() == content(bytes), "{name}");
    }
    assert_eq!(below(&dav, &server.url("")), ["d/", "d/chunks", "d/e/", "d/large", "d/small"]);
    dav.rename(&server.url("d/small"), &server.url("d/e/moved"), true).unwrap();
    assert_eq!(below(&dav, &server.url("d/e")), ["moved"]);
    assert_eq!(kind(dav.stat(&server.url("d/small"))), ErrorKind::NoSuchKey);
    let error = dav.remove(&server.url("d/e")).unwrap_err();
    assert!(error.detail().contains("directory not empty"), "{error}");
    dav.remove(&server.url("d/e/moved")).unwrap();
    dav.remove(&server.url("d/e")).unwrap();
}

fn copy(
    dav: &WebDavClient,
    from: &str,
    to: &str,
    direction: CopyDirection,
    replaces: bool,
) -> Result<Option<u64>> {
    let copy = ThirdPartyCopy { from, to, direction, replaces, silence: Duration::from_secs(60) };
    dav.third_party_copy(&copy, &mut |_, _| Ok(()))
}

#[test]
fn one_server_copies_from_and_to_another() {
    let authority = SelfSignedCertificate::new();
    let (Some(one), Some(two)) =
        (ExternalServerProcess::xrootd(&authority), ExternalServerProcess::xrootd(&authority))
    else {
        return;
    };
    let dav = trusting(&authority);
    put(&dav, &one.url("f"), &content(5_000_000), true).unwrap();
    for (direction, name) in [(CopyDirection::Pull, "pulled"), (CopyDirection::Push, "pushed")] {
        let to = two.url(name);
        assert_eq!(copy(&dav, &one.url("f"), &to, direction, false).unwrap(), Some(5_000_000));
        assert!(get(&dav, &to).unwrap() == content(5_000_000), "{direction:?}");
    }
    let pulled = two.url("pulled");
    assert_eq!(
        kind(copy(&dav, &one.url("f"), &pulled, CopyDirection::Pull, false)),
        ErrorKind::PreconditionFailed
    );
    put(&dav, &one.url("f"), b"shorter", true).unwrap();
    assert_eq!(copy(&dav, &one.url("f"), &pulled, CopyDirection::Pull, true).unwrap(), Some(7));
    assert_eq!(get(&dav, &pulled).unwrap(), b"shorter");
    assert_eq!(kind(copy(&dav, &one.url("no"), &pulled, CopyDirection::Pull, true)), ErrorKind::NoSuchKey);
}

#[test]
fn servers_that_do_no_such_copies_are_not_harmed() {
    let authority = SelfSignedCertificate::new();
    let Some(xrootd) = ExternalServerProcess::xrootd(&authority) else { return };
    let (Some(apache), Some(nginx)) = (ExternalServerProcess::apache(), ExternalServerProcess::nginx())
    else {
        return;
    };
    let dav = trusting(&authority);
    put(&dav, &xrootd.url("f"), b"from there", true).unwrap();
    for server in [&apache, &nginx] {
        put(&dav, &server.url("f"), b"mine", true).unwrap();
        put(&dav, &server.url("g"), b"mine too", true).unwrap();
        // Apache and nginx would treat the path of the destination URL as a path on their own server.
        let pushed = copy(&dav, &server.url("f"), &xrootd.url("g"), CopyDirection::Push, true);
        assert_eq!(kind(pushed), ErrorKind::NotImplemented);
        let pulled = copy(&dav, &xrootd.url("f"), &server.url("g"), CopyDirection::Pull, true);
        assert_eq!(kind(pulled), ErrorKind::NotImplemented);
        assert_eq!(get(&dav, &server.url("g")).unwrap(), b"mine too");
    }
    assert_eq!(kind(dav.stat(&xrootd.url("g"))), ErrorKind::NoSuchKey);
}
