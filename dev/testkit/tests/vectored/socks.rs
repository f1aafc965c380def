//! Tests servers that are accessed through a SOCKS proxy.

use std::sync::Arc;

use fordway_http::vector::{HttpSession, RemoteFile};
use fordway_http::{HttpVersion, ProxySettings, SessionCredentials, TlsRoots};
use fordway_store::{Error, ErrorKind};
use fordway_testkit::hostile::HostileServer;
use fordway_testkit::hostile::ResponseFaultScript;
use fordway_testkit::socks::{SocksBehaviour, SocksServer};

use crate::servers::start_nginx;
use crate::streams::certify;
use crate::{VERSIONS, expected, file, read, session, spread, start};

/// Returns a session that uses the proxy, as if `ALL_PROXY` named it.
fn through(scheme: &str, login: &str, proxy: &SocksServer, version: HttpVersion) -> Arc<HttpSession> {
    let url = format!("{scheme}://{login}{}", proxy.address());
    session(|options| {
        options.http = version;
        options.proxies = ProxySettings::resolve(&|name| (name == "ALL_PROXY").then(|| url.clone()));
        // The token is for the server. Without TLS to the server, the client does not send the token through a proxy.
        options.credentials = SessionCredentials::none().with_bearer_token("ours");
    })
}

fn refused(rules: SocksBehaviour, login: &str) -> Error {
    let (proxy, server) =
        (SocksServer::start(rules), HostileServer::start(file(), ResponseFaultScript::honest()));
    let session = through("socks5h", login, &proxy, HttpVersion::Http1);
    let error = RemoteFile::open(&session, &server.url()).err().expect("an error");
    assert!(error.to_string().contains(&format!("the proxy socks5h://{}", proxy.address())), "{error}");
    assert!(server.requests().is_empty() && !error.to_string().contains("secret"), "{error}");
    error
}

#[test]
fn names_are_looked_up_by_whom_the_scheme_says() {
    let ranges = spread(300, 200);
    for version in VERSIONS {
        let server = start(version, file(), ResponseFaultScript::honest());
        let address = server.address().to_string();
        let name = address.replacen('.', "-", 3).replace(':', ".test:");
        for (scheme, host) in [("socks5h", &name), ("socks5h", &address), ("socks5", &address)] {
            let proxy = SocksServer::start(SocksBehaviour {
                login: Some(("me", "p@ss")),
                ..SocksBehaviour::default()
            });
            let session = through(scheme, "me:p%40ss@", &proxy, version);
            let opened = RemoteFile::open(&session, &format!("http://{host}/file")).unwrap();
            assert!(read(&opened, &ranges).unwrap() == expected(&file(), &ranges));
            assert_eq!(proxy.asked(), [host.as_str()], "{scheme}");
        }
        // Only the proxy can resolve the name.
        let proxy = SocksServer::start(SocksBehaviour::default());
        let session = through("socks5", "", &proxy, version);
        let error = RemoteFile::open(&session, &format!("http://{name}/file")).err().expect("an error");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("with socks5h:// the proxy resolves the name"), "{error}");
        assert!(proxy.asked().is_empty());
        let asked = server.requests();
        assert!(asked.iter().all(|request| request.header("authorization").is_none()), "{asked:?}");
    }
}

#[test]
fn refusals_say_why() {
    let wants_login = SocksBehaviour { login: Some(("me", "secret")), ..SocksBehaviour::default() };
    let refuses = |reply| SocksBehaviour { refuses: Some(reply), ..SocksBehaviour::default() };
    let says = |said| SocksBehaviour { says: Some(said), ..SocksBehaviour::default() };
    for (rules, login, kind, why) in [
        (wants_login.clone(), "", ErrorKind::AccessDenied, "requires a user and password"),
        (wants_login, "me:secrets@", ErrorKind::AccessDenied, "requires a different user and password"),
        (refuses(2), "", ErrorKind::AccessDenied, "no_proxy"),
        (refuses(5), "", ErrorKind::Unavailable, "the connection was refused"),
        (says(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "", ErrorKind::BadResponse, "not SOCKS 5"),
        (says(b"\x05"), "", ErrorKind::Timeout, "did not respond within"),
    ] {
        let error = refused(rules, login);
        assert!(error.kind() == kind && error.to_string().contains(why), "{error}");
    }
}

/// TLS is end-to-end between the client and the server. The proxy sees no content, so the client may send a token.
#[test]
fn tls_goes_through() {
    let Some(program) = fordway_needs::program("nginx") else { return };
    let server = start_nginx(&program, |dir, port| {
        certify(std::path::Path::new(dir));
        format!(
            "listen 127.0.0.1:{port} ssl http2; ssl_certificate {dir}/cert; ssl_certificate_key {dir}/key;"
        )
    });
    let url = server.url.replace("http://", "https://");
    for version in VERSIONS {
        let proxy = SocksServer::start(SocksBehaviour::default());
        let name = format!("socks5h://{}", proxy.address());
        let session = session(|options| {
            options.http = version;
            options.tls_roots = TlsRoots::File(server.dir.path().join("cert"));
            options.proxies =
                ProxySettings::resolve(&|variable| (variable == "https_proxy").then(|| name.clone()));
        });
        let opened = RemoteFile::open(&session, &url).unwrap();
        assert!(read(&opened, &spread(900, 300)).unwrap() == expected(&file(), &spread(900, 300)));
        assert_eq!(proxy.asked().len(), 1);
    }
}
