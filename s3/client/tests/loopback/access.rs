//! Tests which credentials are sent to which servers.

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use fordway_http::vector::{HttpSession, RemoteFile, SessionOptions};
use fordway_http::{SessionCredentials, TlsRoots};
use fordway_store::ErrorKind;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, ServerConfig, ServerConnection,
    SignatureScheme, StreamOwned, SupportedProtocolVersion,
};
use tempfile::TempDir;

use crate::scripted::read_head;

/// Requests a client certificate. Accepts any certificate, and clients without a certificate.
#[derive(Debug)]
struct Curious;

/// Requires a client certificate, and accepts no certificate.
#[derive(Debug)]
struct Strict;

impl ClientCertVerifier for Strict {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Err(CertificateError::Expired.into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Curious.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Curious.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        Curious.supported_verify_schemes()
    }
}

impl ClientCertVerifier for Curious {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

/// The data that a server received: the head of the request, and the client's certificate chain.
struct Told {
    head: String,
    chain: Vec<CertificateDer<'static>>,
}

struct TlsServer {
    url: String,
    certificate: String,
    thread: JoinHandle<Told>,
}

/// Starts a server that responds to one request.
fn serve(answer: String) -> TlsServer {
    let (config, certificate) = identified(rustls::DEFAULT_VERSIONS, Arc::new(Curious));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/file", listener.local_addr().unwrap());
    let thread = std::thread::spawn(move || {
        let (socket, _) = listener.accept().unwrap();
        let mut stream = StreamOwned::new(ServerConnection::new(Arc::new(config)).unwrap(), socket);
        let head = read_head(&mut stream).expect("a request");
        stream.write_all(answer.as_bytes()).unwrap();
        let chain = stream.conn.peer_certificates().unwrap_or_default();
        Told {
            head: head.to_ascii_lowercase(),
            chain: chain.iter().cloned().map(CertificateDer::into_owned).collect(),
        }
    });
    TlsServer { url, certificate, thread }
}

/// Returns the settings of a server, and its certificate.
fn identified(
    versions: &[&'static SupportedProtocolVersion],
    clients: Arc<dyn ClientCertVerifier>,
) -> (ServerConfig, String) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let secret = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![made.cert.der().clone()], secret)
        .unwrap();
    (config, made.cert.pem())
}

/// Starts a server that refuses one client in the handshake. The server then waits until the client has closed the
/// connection.
fn refuse(version: &'static SupportedProtocolVersion) -> (String, String, JoinHandle<()>) {
    let (config, certificate) = identified(&[version], Arc::new(Strict));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/file", listener.local_addr().unwrap());
    let thread = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut handshake = ServerConnection::new(Arc::new(config)).unwrap();
        while handshake.complete_io(&mut socket).is_ok() {}
        let _end_of_connection = std::io::copy(&mut socket, &mut std::io::sink());
    });
    (url, certificate, thread)
}

const FILE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n";

/// Creates a directory of trusted certificate authorities in the format that computing grids use. The directory
/// contains the certificates of `servers`.
fn trusting(servers: &[&TlsServer]) -> (TempDir, TlsRoots) {
    let dir = TempDir::new().unwrap();
    for (number, server) in servers.iter().enumerate() {
        std::fs::write(dir.path().join(format!("{number:08x}.0")), &server.certificate).unwrap();
    }
    std::fs::write(dir.path().join("00000000.signing_policy"), "access_id_CA X509 '/CN=x'").unwrap();
    let roots = TlsRoots::Directory(dir.path().to_owned());
    (dir, roots)
}

/// Writes a certificate with the critical extension of proxy certificates, and its key, to a file with `mode`.
fn proxy(dir: &TempDir, mode: u32) -> (PathBuf, CertificateDer<'static>) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    let mut info = CustomExtension::from_oid_content(&[1, 3, 6, 1, 5, 5, 7, 1, 14], vec![0x30, 0]);
    info.set_criticality(true);
    params.custom_extensions.push(info);
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let path = dir.path().join("proxy");
    std::fs::write(&path, certificate.pem() + &key.serialize_pem()).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    (path, certificate.der().clone())
}

fn session(tls_roots: TlsRoots, credentials: SessionCredentials) -> Arc<HttpSession> {
    Arc::new(HttpSession::new(SessionOptions {
        tls_roots,
        credentials,
        max_retries: 0,
        ..SessionOptions::default()
    }))
}

#[test]
fn a_proxy_and_a_token_go_to_the_host_that_was_named_and_not_where_it_sends_us() {
    let storage = serve(FILE.to_owned());
    let redirection = format!("HTTP/1.1 307 Go\r\nLocation: {}\r\nContent-Length: 0\r\n\r\n", storage.url);
    let door = serve(redirection);
    let (dir, roots) = trusting(&[&door, &storage]);
    let (path, certificate) = proxy(&dir, 0o600);
    let who = SessionCredentials::none().with_bearer_token("secret").with_certificate(&path, &path);
    let opened = RemoteFile::open(&session(roots, who), &door.url).unwrap();
    assert_eq!(opened.size_bytes(), 9);
    let told = door.thread.join().unwrap();
    assert!(told.head.contains("\r\nauthorization: bearer secret\r\n"), "{}", told.head);
    assert_eq!(told.chain, [certificate]);
    let told = storage.thread.join().unwrap();
    assert!(!told.head.contains("authorization") && !told.head.contains("secret"), "{}", told.head);
    assert_eq!(told.chain, []);
}

#[test]
fn tls_is_not_left_by_a_redirection() {
    let door =
        serve("HTTP/1.1 301 Go\r\nLocation: http://127.0.0.1:1/x\r\nContent-Length: 0\r\n\r\n".to_owned());
    let (_dir, roots) = trusting(&[&door]);
    let error =
        RemoteFile::open(&session(roots, SessionCredentials::none()), &door.url).err().expect("an error");
    assert_eq!(error.kind(), ErrorKind::BadResponse);
    assert!(error.to_string().contains("from https to http://127.0.0.1:1/x"), "{error}");
    door.thread.join().unwrap();
}

#[test]
fn keys_that_others_can_read_are_not_used() {
    let dir = TempDir::new().unwrap();
    let (path, _) = proxy(&dir, 0o644);
    let server = serve(FILE.to_owned());
    let (_roots, roots) = trusting(&[&server]);
    let who = SessionCredentials::none().with_certificate(&path, &path);
    let error = RemoteFile::open(&session(roots.clone(), who), &server.url).err().expect("an error");
    assert_eq!(error.kind(), ErrorKind::AccessDenied);
    assert!(error.to_string().contains("chmod 600"), "{error}");
    RemoteFile::open(&session(roots, SessionCredentials::none()), &server.url).unwrap();
    assert_eq!(server.thread.join().unwrap().chain, []);
}

/// With TLS 1.3, the server's refusal of the client's certificate reaches the client only when the client reads the
/// response.
#[test]
fn a_server_that_does_not_accept_the_certificate_is_no_passing_failure() {
    for (version, has_certificate, words) in [
        (&rustls::version::TLS12, true, "does not accept the client certificate"),
        (&rustls::version::TLS13, true, "does not accept the client certificate"),
        (&rustls::version::TLS13, false, "requires a client certificate"),
    ] {
        let (url, certificate, thread) = refuse(version);
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("ca.pem"), certificate).unwrap();
        let (path, _) = proxy(&dir, 0o600);
        let none = SessionCredentials::none();
        let who = if has_certificate { none.with_certificate(&path, &path) } else { none };
        let session = HttpSession::new(SessionOptions {
            tls_roots: TlsRoots::File(dir.path().join("ca.pem")),
            credentials: who,
            ..SessionOptions::default()
        });
        let error = RemoteFile::open(&Arc::new(session), &url).err().expect("an error");
        assert_eq!((error.kind(), error.tries()), (ErrorKind::AccessDenied, 1), "{error}");
        assert!(error.to_string().contains(words), "{error}");
        thread.join().unwrap();
    }
}

#[test]
fn passwords_in_addresses_are_refused_with_a_hint() {
    let error = RemoteFile::open(
        &session(TlsRoots::System, SessionCredentials::none()),
        "http://me:secret@127.0.0.1:1/x",
    );
    let error = error.err().expect("an error");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("~/.netrc") && !error.to_string().contains("secret"), "{error}");
}
