//! The server of [`super::dialogue`] over HTTP/3.

use std::future::pending;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use bytes::{Buf as _, Bytes};
use h3::server::RequestStream;
use h3_quinn::BidiStream;
use quinn::crypto::rustls::QuicServerConfig;
use tokio::runtime::Builder as Runtime;
use tokio::sync::Notify;
use tokio::task::LocalSet;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::dialogue::{Request, Shared};
use super::streams::{LARGE_BYTES, end_of_head, translated};

/// The certificate and the key of all servers, and the directory with their PEM files.
struct Identity {
    dir: tempfile::TempDir,
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
}

static IDENTITY: LazyLock<Identity> = LazyLock::new(|| {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(dir.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let only_owner = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(dir.path().join("key.pem"), only_owner).unwrap();
    Identity { dir, certificate: made.cert.der().clone(), key: made.signing_key.serialize_der() }
});

/// Returns the PEM file of the certificate of all servers.
pub(super) fn certificate() -> PathBuf {
    Path::join(IDENTITY.dir.path(), "cert.pem")
}

/// Returns the PEM file of the key of all servers, readable by its owner only.
pub(super) fn key() -> PathBuf {
    Path::join(IDENTITY.dir.path(), "key.pem")
}

/// Returns the settings of a server, which may require client certificates.
fn settings(wants_certificate: bool) -> quinn::ServerConfig {
    let key = PrivateKeyDer::try_from(IDENTITY.key.clone()).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone());
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let builder = match wants_certificate {
        false => builder.with_no_client_auth(),
        true => {
            let mut roots = RootCertStore::empty();
            roots.add(IDENTITY.certificate.clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let mut tls = builder.with_single_cert(vec![IDENTITY.certificate.clone()], key).unwrap();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()))
}

/// Starts a server in its own thread, which runs until `stop` is notified. Returns the server's address and the thread.
pub(super) fn start(
    shared: Arc<Shared>,
    stop: Arc<Notify>,
    wants_certificate: bool,
) -> (SocketAddr, std::thread::JoinHandle<()>) {
    let (say, hear) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let runtime = Runtime::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let settings = settings(wants_certificate);
            let endpoint = quinn::Endpoint::server(settings, "127.0.0.1:0".parse().unwrap()).unwrap();
            say.send(endpoint.local_addr().unwrap()).unwrap();
            loop {
                tokio::select! {
                    () = stop.notified() => return,
                    Some(incoming) = endpoint.accept() => {
                        tokio::task::spawn_local(serve(incoming, shared.clone()));
                    }
                }
            }
        });
    });
    (hear.recv().unwrap(), thread)
}

/// A server that answers every request with the bytes of `response`, which need not be valid HTTP/3.
pub(super) struct RawServer {
    address: SocketAddr,
    stop: Arc<Notify>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl RawServer {
    /// Starts the server. `control` is sent on the control stream after the settings.
    pub(super) fn start(response: Vec<Vec<u8>>, control: Vec<u8>) -> Self {
        let (say, hear) = std::sync::mpsc::channel();
        let stop = Arc::new(Notify::new());
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let runtime = Runtime::new_current_thread().enable_all().build().unwrap();
            LocalSet::new().block_on(&runtime, async {
                let endpoint =
                    quinn::Endpoint::server(settings(false), "127.0.0.1:0".parse().unwrap()).unwrap();
                say.send(endpoint.local_addr().unwrap()).unwrap();
                loop {
                    tokio::select! {
                        () = stopped.notified() => return,
                        Some(incoming) = endpoint.accept() => {
                            tokio::task::spawn_local(serve_raw(incoming, response.clone(), control.clone()));
                        }
                    }
                }
            });
        });
        RawServer { address: hear.recv().unwrap(), stop, thread: Some(thread) }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("https://{}/{path}", self.address)
    }
}

impl Drop for RawServer {
    fn drop(&mut self) {
        self.stop.notify_one();
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Sends the pieces of `response` one after the other, in response to each request.
async fn serve_raw(incoming: quinn::Incoming, response: Vec<Vec<u8>>, control: Vec<u8>) {
    const SETTINGS: &[u8] = b"\0\x04\0";
    let Ok(quic) = incoming.await else { return };
    let mut sending = quic.open_uni().await.unwrap();
    let _ = sending.write_all(&[SETTINGS, &control].concat()).await;
    while let Ok((mut send, mut receive)) = quic.accept_bi().await {
        let _ = receive.read_to_end(1 << 20).await;
        for piece in &response {
            let _ = send.write_all(piece).await;
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        let _ = send.finish();
    }
}

/// Responds to the requests of a connection until either side ends it.
async fn serve(incoming: quinn::Incoming, shared: Arc<Shared>) {
    let Ok(quic) = incoming.await else { return };
    let Ok(mut connection) = h3::server::Connection::new(h3_quinn::Connection::new(quic)).await else {
        return;
    };
    while let Ok(Some(asked)) = connection.accept().await {
        let shared = shared.clone();
        tokio::task::spawn_local(async move {
            let Ok((head, stream)) = asked.resolve_request().await else { return };
            answer(head, stream, shared).await;
        });
    }
    shared.has_closed();
}

async fn answer(
    head: http::Request<()>,
    mut stream: RequestStream<BidiStream<Bytes>, Bytes>,
    shared: Arc<Shared>,
) {
    let mut request = Request::of(&head);
    let length = request.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0_u64);
    let asks_first = request.header("expect").is_some();
    if !asks_first && length < LARGE_BYTES {
        take(&mut stream, &mut request).await;
    }
    let mut said = shared.say(&request);
    if said.starts_with(b"HTTP/1.1 100") {
        said.drain(..end_of_head(&said));
        if asks_first {
            let go_on = http::Response::builder().status(100).body(()).unwrap();
            stream.send_response(go_on).await.unwrap();
        }
        take(&mut stream, &mut request).await;
    }
    shared.heard(request);
    if said.is_empty() {
        return stream.stop_stream(h3::error::Code::H3_INTERNAL_ERROR);
    }
    let (response, content, is_complete) = translated(&said);
    stream.send_response(response).await.unwrap();
    let sent = stream.send_data(content.into()).await;
    match sent.is_ok() && is_complete {
        true => drop(stream.finish().await),
        false => pending().await,
    }
}

async fn take(stream: &mut RequestStream<BidiStream<Bytes>, Bytes>, request: &mut Request) {
    while let Ok(Some(piece)) = stream.recv_data().await {
        request.body_bytes += piece.remaining();
    }
}
