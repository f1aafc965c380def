//! Tests reads over TLS, and the errors for untrusted certificates and for the wrong scheme.

use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;

use fordway_client::s3::{S3Config, S3Credentials, S3Store};
use fordway_http::TlsRoots;
use fordway_store::{ErrorKind, GetOptions, Objects};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tempfile::NamedTempFile;

use crate::scripted::{bucket, key, object, read_head};

/// Starts a server that accepts one connection and sends `bodies`. Returns the server's URL, its self-signed
/// certificate (PEM), and a thread that returns the number of responses sent.
fn start(bodies: Vec<Vec<u8>>) -> (String, String, JoinHandle<usize>) {
    start_as(IsCa::ExplicitNoCa, bodies)
}

fn start_as(is_ca: IsCa, bodies: Vec<Vec<u8>>) -> (String, String, JoinHandle<usize>) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    params.is_ca = is_ca;
    let made = params.self_signed(&key).unwrap();
    let secret = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.der().clone()], secret)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let thread = std::thread::spawn(move || {
        let (socket, _) = listener.accept().unwrap();
        let mut stream = StreamOwned::new(ServerConnection::new(Arc::new(config)).unwrap(), socket);
        let mut answered = 0;
        for body in bodies {
            if read_head(&mut stream).is_none() || stream.write_all(&object(body)).is_err() {
                break;
            }
            answered += 1;
        }
        answered
    });
    (url, made.pem(), thread)
}

/// Returns a store that trusts the certificates `trusted`, and the file that contains these certificates. The store
/// reads the file at the first connection, so the caller must keep the file until then.
fn store(url: &str, trusted: &str) -> (S3Store, NamedTempFile) {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), trusted).unwrap();
    let mut config = S3Config::new(url, "us-east-1", S3Credentials::Anonymous);
    config.tls_roots = TlsRoots::File(file.path().to_owned());
    config.max_retries = 0;
    (S3Store::new(config).unwrap(), file)
}

#[test]
fn objects_arrive_whole_on_one_session() {
    let bodies = vec![b"small".to_vec(), (0..3_000_000_u32).map(|i| (i >> 6) as u8).collect(), Vec::new()];
    let (url, certificate, server) = start(bodies.clone());
    let (store, _file) = store(&url, &certificate);
    let mut buffer = Vec::new();
    for body in &bodies {
        store.read(&bucket(), &key("k"), &GetOptions::default(), &mut buffer).unwrap();
        assert!(buffer == *body);
    }
    assert_eq!(server.join().unwrap(), bodies.len());
}

#[test]
fn a_stranger_is_not_trusted() {
    let (url, _, server) = start(vec![b"secret".to_vec()]);
    let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap().cert.pem();
    let mut buffer = Vec::new();
    let (store, _file) = store(&url, &other);
    let read = store.read(&bucket(), &key("k"), &GetOptions::default(), &mut buffer);
    let error = read.unwrap_err();
    assert_eq!(
        (error.kind(), error.tries()),
        (ErrorKind::BadResponse, 1),
        "a retry would get the same certificate"
    );
    assert!(error.to_string().contains("no TLS session with https://127.0.0.1:"), "{error}");
    assert!(error.to_string().contains("no trusted authority"), "{error}");
    assert_eq!(server.join().unwrap(), 0);
}

/// By default, `openssl req -x509` creates a certificate for a certificate authority. The client refuses a server that
/// has such a certificate, even if the certificate is trusted.
#[test]
fn a_certificate_for_signing_others_is_explained() {
    let (url, certificate, server) =
        start_as(IsCa::Ca(BasicConstraints::Unconstrained), vec![b"secret".to_vec()]);
    let (store, _file) = store(&url, &certificate);
    let read = store.read(&bucket(), &key("k"), &GetOptions::default(), &mut Vec::new());
    let error = read.expect_err("it is not a server's");
    assert!(error.to_string().contains("basicConstraints=critical,CA:FALSE"), "{error}");
    assert_eq!(server.join().unwrap(), 0);
}

#[test]
fn a_server_of_tls_is_called_one() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        assert!(read_head(&mut socket).is_some());
        socket.write_all(&[21, 3, 3, 0, 2, 2, 50]).unwrap();
    });
    let (store, _file) = store(&url, "");
    let read = store.read(&bucket(), &key("k"), &GetOptions::default(), &mut Vec::new());
    let error = read.expect_err("it speaks TLS");
    assert_eq!(error.kind(), ErrorKind::BadResponse);
    assert!(error.to_string().contains("is the address https://"), "{error}");
    server.join().unwrap();
}

#[test]
fn a_server_without_tls_is_called_one() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        // The server waits until the client closes the connection, because a reset could discard the response.
        std::io::copy(&mut socket, &mut std::io::sink()).ok();
    });
    let trusted = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap().cert.pem();
    let (store, _file) = store(&url, &trusted);
    let read = store.read(&bucket(), &key("k"), &GetOptions::default(), &mut Vec::new());
    let error = read.expect_err("it speaks no TLS");
    assert!(error.to_string().contains("is the address http://"), "{error}");
    drop(store);
    server.join().unwrap();
}
