//! HTTP/2 and HTTP/3 servers on loopback that count connections, requests and bytes.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use bytes::Bytes;
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tempfile::NamedTempFile;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{LocalSet, spawn_local};
use tokio_rustls::TlsAcceptor;

/// The size of every response's body.
pub(crate) const BODY_BYTES: usize = 1000;

/// The totals over all connections.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) connections: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) body_bytes: AtomicU64,
}

/// The properties of a server.
#[derive(Clone, Default)]
pub(crate) struct Manner {
    /// The certificate; `None` for a server without TLS.
    pub(crate) tls: Option<Certificate>,
    /// The number of requests after which a connection is closed gracefully.
    pub(crate) requests_per_connection: Option<u64>,
    /// Whether each response is sent before the body of the request is read.
    pub(crate) answers_early: bool,
}

/// A self-signed certificate for `localhost`.
#[derive(Clone)]
pub(crate) struct Certificate {
    chain: rustls::pki_types::CertificateDer<'static>,
    secret: Arc<PrivateKeyDer<'static>>,
    /// The certificate in PEM, for `--ca-bundle`.
    pub(crate) file: Arc<NamedTempFile>,
}

impl Certificate {
    pub(crate) fn make() -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let file = NamedTempFile::new().unwrap();
        std::fs::write(file.path(), made.cert.pem()).unwrap();
        let secret = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        Certificate { chain: made.cert.der().clone(), secret: Arc::new(secret), file: Arc::new(file) }
    }

    pub(crate) fn config(&self, protocol: &[u8]) -> ServerConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![self.chain.clone()], self.secret.clone_key())
            .unwrap();
        config.alpn_protocols = vec![protocol.to_vec()];
        config
    }
}

/// A server in its own thread. Dropping the value stops the server.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) seen: Arc<Seen>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server for HTTP/2. On a connection without TLS, the server uses HTTP/1.1 if the client starts with
    /// HTTP/1.1.
    pub(crate) fn http2(manner: Manner) -> Self {
        Self::start(|seen, told| async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            told.send(listener.local_addr().unwrap()).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                spawn_local(serve_tcp(stream, manner.clone(), seen.clone()));
            }
        })
    }

    #[cfg(feature = "http3")]
    pub(crate) fn http3(certificate: &Certificate) -> Self {
        let config = certificate.config(b"h3");
        Self::start(|seen, told| async move {
            let crypto = quinn::crypto::rustls::QuicServerConfig::try_from(config).unwrap();
            let config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
            let endpoint = quinn::Endpoint::server(config, "127.0.0.1:0".parse().unwrap()).unwrap();
            told.send(endpoint.local_addr().unwrap()).unwrap();
            while let Some(incoming) = endpoint.accept().await {
                spawn_local(serve_quic(incoming, seen.clone()));
            }
        })
    }

    fn start<F: Future<Output = ()>>(
        accept: impl FnOnce(Arc<Seen>, std::sync::mpsc::Sender<SocketAddr>) -> F + Send + 'static,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = std::sync::mpsc::channel();
        let seen = Arc::new(Seen::default());
        let of_thread = seen.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            LocalSet::new().block_on(&runtime, async {
                tokio::select! {
                    () = accept(of_thread, tell) => {}
                    _ = stopped => {}
                }
            });
        });
        Server { address: told.recv().unwrap(), seen, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn url(&self, scheme: &str, path: &str) -> String {
        format!("{scheme}://localhost:{}{path}", self.address.port())
    }

    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.seen.requests.load(Ordering::Relaxed), self.seen.body_bytes.load(Ordering::Relaxed))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().map(JoinHandle::join);
    }
}

async fn serve_tcp(mut stream: TcpStream, manner: Manner, seen: Arc<Seen>) {
    seen.connections.fetch_add(1, Ordering::Relaxed);
    if let Some(certificate) = &manner.tls {
        let acceptor = TlsAcceptor::from(Arc::new(certificate.config(b"h2")));
        if let Ok(stream) = acceptor.accept(stream).await {
            serve_http2(stream, &manner, &seen).await;
        }
        return;
    }
    let mut first = [0; 3];
    if matches!(stream.peek(&mut first).await, Ok(3)) && &first == b"PRI" {
        serve_http2(stream, &manner, &seen).await;
    } else {
        serve_http1(&mut stream, &seen).await;
    }
}

/// Serves requests without a body, each of which arrives in one segment.
async fn serve_http1(stream: &mut TcpStream, seen: &Seen) {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {BODY_BYTES}\r\n\r\n");
    let answer = [head.as_bytes(), &[b'x'; BODY_BYTES]].concat();
    let mut request = [0; 4096];
    while matches!(stream.read(&mut request).await, Ok(length) if length > 0) {
        seen.requests.fetch_add(1, Ordering::Relaxed);
        if stream.write_all(&answer).await.is_err() {
            return;
        }
    }
}

async fn serve_http2(stream: impl AsyncRead + AsyncWrite + Unpin, manner: &Manner, seen: &Arc<Seen>) {
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    let mut taken = 0;
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        taken += 1;
        if manner.requests_per_connection == Some(taken) {
            connection.graceful_shutdown();
        }
        if manner.answers_early {
            // The stream is reset when the unread body is dropped.
            let _ = respond.send_response(http::Response::new(()), true);
            continue;
        }
        spawn_local(answer_http2(request.into_body(), respond, seen.clone()));
    }
}

async fn answer_http2(
    mut body: h2::RecvStream,
    mut respond: h2::server::SendResponse<Bytes>,
    seen: Arc<Seen>,
) {
    while let Some(Ok(piece)) = body.data().await {
        seen.body_bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
        body.flow_control().release_capacity(piece.len()).unwrap();
    }
    seen.requests.fetch_add(1, Ordering::Relaxed);
    let Ok(mut stream) = respond.send_response(http::Response::new(()), false) else { return };
    stream.reserve_capacity(BODY_BYTES);
    while stream.capacity() < BODY_BYTES {
        if !matches!(poll_fn(|context| stream.poll_capacity(context)).await, Some(Ok(_))) {
            return;
        }
    }
    let _ = stream.send_data(Bytes::from_static(&[b'x'; BODY_BYTES]), true);
}

#[cfg(feature = "http3")]
async fn serve_quic(incoming: quinn::Incoming, seen: Arc<Seen>) {
    seen.connections.fetch_add(1, Ordering::Relaxed);
    let Ok(connection) = incoming.await else { return };
    let Ok(mut connection) = h3::server::Connection::new(h3_quinn::Connection::new(connection)).await else {
        return;
    };
    while let Ok(Some(request)) = connection.accept().await {
        let seen = seen.clone();
        spawn_local(async move {
            let (_, mut stream) = request.resolve_request().await.unwrap();
            while let Ok(Some(piece)) = stream.recv_data().await {
                seen.body_bytes.fetch_add(bytes::Buf::remaining(&piece) as u64, Ordering::Relaxed);
            }
            seen.requests.fetch_add(1, Ordering::Relaxed);
            let sent = stream.send_response(http::Response::new(())).await;
            if sent.is_ok() && stream.send_data(Bytes::from_static(&[b'x'; BODY_BYTES])).await.is_ok() {
                let _ = stream.finish().await;
            }
        });
    }
}
