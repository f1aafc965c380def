//! Tests of servers that are reached through a proxy.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use fordway_client::s3::{self, S3Config, S3Store};
use fordway_http::vector::{HttpSession, RemoteFile, SessionOptions};
use fordway_http::{HttpVersion, ProxySettings, SessionCredentials, TlsRoots};
use fordway_store::{Bucket, Error, ErrorKind, GetOptions, Key, Objects};
use fordway_testkit::hostile::{HostileServer, ResponseFault, ResponseFaultScript};
use fordway_testkit::proxy::{ProxyBehaviour, ProxyServer};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::downloads::{WHOLE, copy};
use crate::servers::{Server, start_nginx};
use crate::{expected, file, read, session, spread};

/// The header value for the login `me:secret`.
const LOGIN: &str = "Basic bWU6c2VjcmV0";

fn by(proxy: &ProxyServer, except: &str) -> ProxySettings {
    let url = format!("http://me:secret@{}", proxy.address());
    let except = except.to_owned();
    ProxySettings::resolve(&move |name| match name {
        "all_proxy" => Some(url.clone()),
        "no_proxy" => Some(except.clone()),
        _ => None,
    })
}

fn through(proxies: ProxySettings, change: impl FnOnce(&mut SessionOptions)) -> Arc<HttpSession> {
    session(|options| {
        options.proxies = proxies;
        change(options);
    })
}

fn origin() -> HostileServer {
    HostileServer::start(file(), ResponseFaultScript::honest())
}

/// Returns the server's URL with a host name that only the proxy can resolve.
fn named(server: &HostileServer) -> String {
    format!("http://{}/file?x=1", name(server))
}

fn name(server: &HostileServer) -> String {
    let address = server.address();
    format!("{}.test:{}", address.ip().to_string().replace('.', "-"), address.port())
}

fn with_login() -> ProxyServer {
    ProxyServer::start(ProxyBehaviour { login: Some(LOGIN.to_owned()), ..ProxyBehaviour::default() })
}

#[test]
fn plain_requests_are_forwarded_in_absolute_form() {
    let (proxy, server) = (with_login(), origin());
    let opened = RemoteFile::open(&through(by(&proxy, ""), |_| {}), &named(&server)).unwrap();
    let ranges = spread(300, 200);
    for _ in 0..3 {
        assert!(read(&opened, &ranges).unwrap() == expected(&file(), &ranges));
    }
    let heads = proxy.heads();
    let (url, host) = (named(&server), name(&server));
    assert_eq!(heads.len(), server.requests().len());
    assert!(heads[0].starts_with(&format!("HEAD {url} HTTP/1.1\r\n")), "{}", heads[0]);
    for head in &heads {
        assert!(head.contains(&format!("\r\nHost: {host}\r\n")), "{head}");
        assert!(head.contains(&format!("\r\nProxy-Authorization: {LOGIN}\r\n")), "{head}");
    }
    for request in server.requests() {
        assert_eq!((request.target.as_str(), request.header("proxy-authorization")), ("/file?x=1", None));
    }
    assert_eq!(opened.traffic().connections, 1, "the one to the proxy");
}

#[test]
fn what_is_learned_by_way_of_a_proxy_is_of_that_way() {
    let (proxy, server) = (with_login(), origin());
    let url = server.url();
    let behind = RemoteFile::open(&through(by(&proxy, ""), |_| {}), &url).unwrap();
    server.follow(ResponseFaultScript::honest().always(ResponseFault::WholeOverRanges(1)));
    read(&behind, &spread(30, 50)).unwrap();
    let direct = RemoteFile::open(&session(|_| {}), &url).unwrap();
    assert_eq!((behind.learned().ranges_per_request, direct.learned().ranges_per_request), (1, 1_000));
}

#[test]
fn excepted_hosts_are_asked_directly() {
    let (proxy, server) = (with_login(), origin());
    let opened = RemoteFile::open(&through(by(&proxy, "127.0.0.0/8"), |_| {}), &server.url()).unwrap();
    assert!(read(&opened, &[(3, 9)]).unwrap()[0] == file()[3..12]);
    assert_eq!((proxy.heads().len(), server.requests().len()), (0, 2));
}

#[test]
fn our_token_is_not_told_to_a_proxy() {
    let (proxy, server) = (with_login(), origin());
    let session = through(by(&proxy, ""), |options| {
        options.credentials = SessionCredentials::none().with_bearer_token("ours");
    });
    RemoteFile::open(&session, &server.url()).unwrap();
    assert!(!proxy.heads()[0].contains("ours"), "nothing protects it on the way");
    server.follow(ResponseFaultScript::honest().always(ResponseFault::Status(401, None)));
    let error = RemoteFile::open(&session, &server.url()).err().expect("an error");
    assert!(error.to_string().contains("not sent without TLS"), "{error}");
}

fn refusal(rules: ProxyBehaviour, url: &str) -> (Error, usize) {
    let proxy = ProxyServer::start(rules);
    let error = RemoteFile::open(&through(by(&proxy, ""), |_| {}), url).err().expect("an error");
    assert!(!error.to_string().contains("secret"), "{error}");
    (error, proxy.heads().len())
}

#[test]
fn refusals_say_who_refuses_and_what_to_do() {
    let server = origin();
    let (plain, tls) = (server.url(), server.url().replace("http:", "https:"));
    let strict = ProxyBehaviour { login: Some("Basic other".to_owned()), ..ProxyBehaviour::default() };
    for url in [&plain, &tls] {
        let (error, asked) = refusal(strict.clone(), url);
        assert_eq!((error.kind(), asked), (ErrorKind::AccessDenied, 1));
        let text = error.to_string();
        assert!(text.contains("a different user and password") && text.contains("HTTP status 407"), "{text}");
    }
    let refusing = |status| ProxyBehaviour { refuses: Some(status), ..ProxyBehaviour::default() };
    let (error, asked) = refusal(refusing(502), &tls);
    assert_eq!((error.kind(), asked), (ErrorKind::Unavailable, 3), "it may pass");
    let text = error.to_string();
    assert!(text.contains(&tls[..18]) && text.contains("cannot connect to it now"), "{text}");
    let (error, asked) = refusal(refusing(403), &tls);
    assert_eq!((error.kind(), asked), (ErrorKind::AccessDenied, 1));
    assert!(error.to_string().contains("no_proxy"), "{error}");
    assert_eq!(server.requests().len(), 0);
}

#[test]
fn a_proxy_that_says_nothing_is_a_timeout() {
    let mute = ProxyBehaviour { is_mute: true, ..ProxyBehaviour::default() };
    let (error, _) = refusal(mute, "https://data.test:1/x");
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(error.to_string().contains("the proxy http://127.0.0.1:"), "{error}");
}

#[test]
fn a_proxy_that_is_not_there_is_named() {
    let proxies = ProxySettings::resolve(&|name| (name == "all_proxy").then(|| "127.0.0.1:1".to_owned()));
    let error = RemoteFile::open(&through(proxies, |_| {}), "http://data.test/x").err().expect("an error");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("no connection to the proxy http://127.0.0.1:1"), "{error}");
}

/// The S3 client uses the same code for proxies. Requests are signed for the origin, and the proxy receives its own
/// login.
#[test]
fn objects_are_read_by_way_of_a_proxy() {
    for http in [HttpVersion::Http1, HttpVersion::Http2] {
        let (proxy, server) = (with_login(), origin());
        let host = name(&server);
        let endpoint = format!("http://{host}");
        let keys = s3::S3Credentials::keys("AK", "SK", "the test");
        let mut config = S3Config { http, max_retries: 0, ..S3Config::new(endpoint, "r", keys) };
        config.proxies = by(&proxy, "");
        let store = S3Store::new(config).unwrap();
        let mut bytes = Vec::new();
        let options = GetOptions::default();
        let read = store.read(&Bucket::new("bkt").unwrap(), &Key::new("k").unwrap(), &options, &mut bytes);
        let head = proxy.heads().remove(0);
        assert!(head.contains(LOGIN), "{head}");
        if http == HttpVersion::Http1 {
            read.unwrap();
            assert!(bytes == file());
            assert!(head.starts_with(&format!("GET http://{host}/bkt/k HTTP/1.1")), "{head}");
            assert!(server.requests()[0].header("authorization").unwrap().starts_with("AWS4-HMAC-SHA256"));
        } else {
            // The server does not support HTTP/2. The test checks only that the request is sent through a tunnel.
            read.unwrap_err();
            assert!(head.starts_with(&format!("CONNECT {host} ")) && !head.contains("AWS4"), "{head}");
        }
    }
}

/// Starts a server that terminates TLS in front of a proxy. Returns the server's address, and the directory with its
/// certificate.
fn behind_tls(proxy: &ProxyServer) -> (SocketAddr, tempfile::TempDir) {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("cert"), made.cert.pem()).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let tls = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let tls = tls.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, behind) = (listener.local_addr().unwrap(), proxy.address());
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let acceptor = acceptor.clone();
            std::thread::spawn(move || relay(socket.unwrap(), behind, &acceptor));
        }
    });
    (address, dir)
}

fn relay(socket: TcpStream, behind: SocketAddr, acceptor: &TlsAcceptor) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let _ = runtime.block_on(async {
        socket.set_nonblocking(true)?;
        let mut front = acceptor.accept(tokio::net::TcpStream::from_std(socket)?).await?;
        let mut back = tokio::net::TcpStream::connect(behind).await?;
        tokio::io::copy_bidirectional(&mut front, &mut back).await
    });
}

/// A proxy with TLS forwards and tunnels requests as other proxies do, over all versions of HTTP that a proxy supports.
/// TLS with the server runs inside TLS with the proxy.
#[test]
fn a_proxy_may_need_tls_itself() {
    let proxy = ProxyServer::start(ProxyBehaviour::default());
    let (address, dir) = behind_tls(&proxy);
    let by_tls = || {
        let url = format!("https://{address}");
        ProxySettings::resolve(&move |name| (name == "all_proxy").then(|| url.clone()))
    };
    let ranges = spread(300, 200);
    let servers = [
        (HttpVersion::Http1, HostileServer::start(file(), ResponseFaultScript::honest()), "GET http://"),
        (HttpVersion::Http2, HostileServer::start_http2(file(), ResponseFaultScript::honest()), "CONNECT "),
        (
            HttpVersion::Http2,
            HostileServer::start_secure_http2(file(), ResponseFaultScript::honest()),
            "CONNECT ",
        ),
    ];
    for (http, server, line) in servers {
        let mut trusted = std::fs::read_to_string(dir.path().join("cert")).unwrap();
        trusted.push_str(server.certificate().unwrap_or_default());
        std::fs::write(dir.path().join("both"), trusted).unwrap();
        for proxies in [by_tls(), by(&proxy, "")] {
            let session = through(proxies, |options| {
                (options.http, options.tls_roots) = (http, TlsRoots::File(dir.path().join("both")));
            });
            let opened = RemoteFile::open(&session, &server.url()).unwrap();
            for _ in 0..3 {
                assert!(read(&opened, &ranges).unwrap() == expected(&file(), &ranges));
            }
            assert!(copy(&opened, WHOLE).unwrap() == file());
            assert!(proxy.heads().pop().unwrap().starts_with(line), "{:?}", proxy.heads());
        }
    }
    let untrusting = through(by_tls(), |options| options.tls_roots = TlsRoots::System);
    let error = RemoteFile::open(&untrusting, "http://h.test/x").err().expect("an error");
    assert_eq!(error.kind(), ErrorKind::BadResponse);
    assert!(error.to_string().contains("no connection to the proxy https://127.0.0.1:"), "{error}");
}

/// Uses Apache httpd as a proxy that requires a login, because our own test proxy and our client could share a
/// misunderstanding of the protocol.
#[test]
fn apache_forwards_and_tunnels() {
    let (Some(apache), Some(nginx)) = (fordway_needs::program("apache2"), fordway_needs::program("nginx"))
    else {
        return;
    };
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let secure = start_nginx(&nginx, |dir, port| {
        std::fs::write(format!("{dir}/cert"), made.cert.pem()).unwrap();
        std::fs::write(format!("{dir}/key"), made.signing_key.serialize_pem()).unwrap();
        format!("listen 127.0.0.1:{port} ssl; ssl_certificate {dir}/cert; ssl_certificate_key {dir}/key;")
    });
    let tls = secure.url.replace("http://", "https://");
    let plain = origin();
    let (_, tls_port) = tls.rsplit_once(':').unwrap();
    let tls_port = tls_port.trim_end_matches("/f");
    for scheme in ["http", "https"] {
        let proxy = Server::start(&apache, &["-X", "-f", "CONFIG"], |dir, port| {
            let modules = ["mpm_event", "authz_core", "authz_user", "authn_core", "authn_file", "auth_basic"];
            let modules = modules.iter().chain(&["proxy", "proxy_http", "proxy_connect", "ssl"]);
            let modules: String = modules
                .map(|name| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"))
                .collect();
            // The password is `secret`.
            std::fs::write(format!("{dir}/users"), "me:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n").unwrap();
            let own = secure.dir.path().display();
            let tls = match scheme {
                "http" => String::new(),
                _ => {
                    format!("SSLEngine On\nSSLCertificateFile {own}/cert\nSSLCertificateKeyFile {own}/key\n")
                }
            };
            format!(
                "ServerName localhost\nServerRoot {dir}\nListen 127.0.0.1:{port}\nPidFile {dir}/pid\n\
             ErrorLog {dir}/log\n{modules}{tls}ProxyRequests On\nAllowCONNECT {tls_port}\n\
             <Proxy *>\nAuthType Basic\nAuthName p\nAuthUserFile {dir}/users\nRequire valid-user\n</Proxy>\n"
            )
        });
        let address = proxy.url.trim_start_matches("http://").trim_end_matches("/f").to_owned();
        let by = |login: &str| {
            let url = format!("{scheme}://{login}{address}");
            through(ProxySettings::resolve(&|name| (name == "all_proxy").then(|| url.clone())), |options| {
                options.tls_roots = TlsRoots::File(secure.dir.path().join("cert"));
            })
        };
        let ranges = spread(300, 200);
        for url in [plain.url(), tls.clone()] {
            let opened = RemoteFile::open(&by("me:secret@"), &url).unwrap();
            assert!(read(&opened, &ranges).unwrap() == expected(&file(), &ranges), "{url}");
            for login in ["", "me:wrong@"] {
                let error = RemoteFile::open(&by(login), &url).err().expect("an error");
                assert_eq!(error.kind(), ErrorKind::AccessDenied, "{url}: {error}");
                assert!(error.to_string().contains("HTTP status 407"), "{error}");
            }
        }
        assert!(plain.requests().iter().all(|request| request.header("proxy-authorization").is_none()));
        let error = RemoteFile::open(&by("me:secret@"), "https://127.0.0.1:1/f").err().expect("an error");
        assert_eq!(error.kind(), ErrorKind::AccessDenied, "a port that it opens no tunnels to: {error}");
    }
}
