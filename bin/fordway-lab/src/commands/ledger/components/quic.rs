//! Round trips of the layers of HTTP/3: UDP datagrams without QUIC, QUIC streams, and HTTP/3 requests. Each layer
//! includes the work of the layer below it. This file also measures new QUIC connections. A separate process responds
//! to the messages. The code of our client opens the connections.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes};
use fordway_command::file_error;
use fordway_http::Origin;
use fordway_http::parts::{TlsConnector, open_quic};
use fordway_store::{Error, ErrorKind, Result};
use fordway_workload::ledger::LedgerComponent;
use h3::client::SendRequest;
use h3_quinn::OpenStreams;
use http::{HeaderName, HeaderValue, Request};
use quinn::VarInt;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{LocalSet, spawn_local};

use super::connections::tls_settings;
use super::framing::PIECE_BYTES;
use super::request::{HttpMessageHeads, S3RequestTemplate, fields};
use super::round_trip::{MessageSizes, PeerServer, RoundTripBuffers};
use super::{NonrepeatingContent, ObjectOperation};
use crate::commands::ledger::echo::ReplySendMethod;
use crate::commands::ledger::echo::datagrams::{DatagramEndpoint, on_the_wire};
use crate::commands::ledger::echo::quic::{NEXT_RESPONSE_PATH, frame_lengths, next_response};

/// The maximum idle time of a connection. A connection that was idle for longer is replaced, because one of its ends
/// may have closed it.
const FRESH_FOR: Duration = Duration::from_secs(10);

fn failed(error: io::Error) -> Error {
    file_error("a round trip by", "QUIC", error)
}

fn broken(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    failed(io::Error::other(error))
}

fn runtime() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().map_err(failed)
}

/// The sizes of the messages of one operation over HTTP/3. Clones share the measured sizes.
#[derive(Clone)]
pub(in crate::commands::ledger) struct Http3MessageSizes {
    request: S3RequestTemplate,
    /// The directory with the certificate of the responding process.
    certificate: PathBuf,
    /// The lengths of the HEADERS frames of a request and its response, by content size.
    known: Rc<RefCell<HashMap<u64, (usize, usize)>>>,
}

impl Http3MessageSizes {
    pub(in crate::commands::ledger) fn new(request: &S3RequestTemplate, certificate: &Path) -> Self {
        let (request, certificate) = (request.clone(), certificate.to_owned());
        Http3MessageSizes { request, certificate, known: Rc::default() }
    }

    /// Returns the lengths of the HEADERS frames of the request and of its response. Measures unknown lengths.
    fn heads(&self, size_bytes: u64) -> Result<(usize, usize)> {
        if let Some(known) = self.known.borrow().get(&size_bytes) {
            return Ok(*known);
        }
        let heads = self.request.heads(size_bytes)?;
        let asked = request_of(&self.request, size_bytes, &heads)?;
        let lengths = frame_lengths(&self.certificate, asked, &heads.answered);
        let lengths = LocalSet::new().block_on(&runtime()?, lengths).map_err(failed)?;
        self.known.borrow_mut().insert(size_bytes, lengths);
        Ok(lengths)
    }

    /// Returns the sizes of a request and its response on a QUIC stream.
    pub(in crate::commands::ledger) fn on_streams(&self, size_bytes: u64) -> Result<MessageSizes> {
        let (asked, answered) = self.heads(size_bytes)?;
        let (size, frames) = (size_bytes as usize, data_frame_heads(size_bytes));
        let form = ReplySendMethod::Bytes;
        Ok(match self.request.operation() {
            ObjectOperation::Get => MessageSizes {
                request_bytes: asked,
                head_bytes: answered + frames,
                body_bytes: size,
                form,
                rest_bytes: 0,
            },
            ObjectOperation::Put => MessageSizes {
                request_bytes: asked + frames + size,
                head_bytes: answered,
                body_bytes: 0,
                form,
                rest_bytes: size,
            },
        })
    }

    /// Returns the sizes of the messages from [`on_streams`](Self::on_streams), plus the overhead of QUIC packets.
    pub(in crate::commands::ledger) fn in_datagrams(&self, size_bytes: u64) -> Result<MessageSizes> {
        let sizes = self.on_streams(size_bytes)?;
        let response_bytes = on_the_wire(sizes.head_bytes + sizes.body_bytes);
        let head_bytes = response_bytes - sizes.body_bytes;
        Ok(MessageSizes { request_bytes: on_the_wire(sizes.request_bytes), head_bytes, ..sizes })
    }
}

/// Returns the total size of the headers of all DATA frames (RFC 9114 section 7.1). A header consists of a one-byte
/// type and a length of 1, 2 or 4 bytes.
fn data_frame_heads(size_bytes: u64) -> usize {
    let head_bytes = |piece_bytes: usize| match piece_bytes {
        0 => 0,
        1..64 => 2,
        64..16_384 => 3,
        _ => 5,
    };
    let (pieces, rest) = (size_bytes as usize / PIECE_BYTES, size_bytes as usize % PIECE_BYTES);
    pieces * head_bytes(PIECE_BYTES) + head_bytes(rest)
}

/// Returns an HTTP/3 request with the headers of an HTTP/1.1 request.
fn request_of(request: &S3RequestTemplate, size_bytes: u64, heads: &HttpMessageHeads) -> Result<Request<()>> {
    let uri = format!("https://127.0.0.1:9000{}", request.asked(size_bytes).path);
    let mut request = Request::builder().method(request.method()).uri(uri);
    let is_carried = |(name, _): &(String, String)| name != "connection" && name != "host";
    for (name, value) in fields(&heads.asked).into_iter().filter(is_carried) {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(broken)?;
        request = request.header(name, HeaderValue::try_from(value).map_err(broken)?);
    }
    request.body(()).map_err(broken)
}

/// Round trips of UDP datagrams without QUIC.
pub(in crate::commands::ledger) struct UdpRoundTripComponent {
    runtime: Runtime,
    line: DatagramEndpoint,
    trip: RoundTripBuffers,
    server: PeerServer,
}

impl UdpRoundTripComponent {
    /// Starts the responding process. The process gets the directory of a certificate as an argument, but does not use
    /// the certificate.
    pub(in crate::commands::ledger) fn new(messages: &Http3MessageSizes) -> Result<Self> {
        let server = PeerServer::start("udp", &messages.certificate)?;
        let runtime = runtime()?;
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(failed)?;
        let line = runtime.block_on(async { DatagramEndpoint::new(socket, Some(server.address)) });
        let messages = messages.clone();
        let trip = RoundTripBuffers::new(Box::new(move |size_bytes| messages.in_datagrams(size_bytes)));
        Ok(UdpRoundTripComponent { runtime, line: line.map_err(failed)?, trip, server })
    }
}

impl LedgerComponent for UdpRoundTripComponent {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.trip.prepare(size_bytes)
    }

    fn before(&mut self) -> Result<()> {
        self.trip.rest();
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let UdpRoundTripComponent { runtime, line, trip, .. } = self;
        let expected = trip.expected();
        let done = runtime.block_on(async {
            line.send(&trip.request).await?;
            line.receive(expected).await
        });
        done.map_err(|error| file_error("a round trip by", "UDP", error))?;
        trip.received = expected;
        Ok(())
    }

    fn check(&self) -> Result<()> {
        self.trip.check()
    }

    fn server_pid(&self) -> Option<u32> {
        self.server.pid()
    }
}

/// The client's side of QUIC connections to one process.
struct QuicClient {
    runtime: Runtime,
    local: LocalSet,
    tls: TlsConnector,
    server: PeerServer,
    /// The time at which a connection was last used.
    used: Instant,
}

impl QuicClient {
    /// Starts the responding process.
    fn new(kind: &str, certificate: &Path) -> Result<Self> {
        let server = PeerServer::start(kind, certificate)?;
        let tls = tls_settings(certificate, b"h3")?;
        Ok(QuicClient { runtime: runtime()?, local: LocalSet::new(), tls, server, used: Instant::now() })
    }

    fn drive<T>(&mut self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let done = self.local.block_on(&self.runtime, work);
        self.used = Instant::now();
        done
    }

    fn connect(&mut self) -> Result<quinn::Connection> {
        let (origin, _) = Origin::parse(&format!("https://{}", self.server.address))?;
        let QuicClient { local, runtime, tls, .. } = self;
        local.block_on(runtime, open_quic(&origin, tls))
    }

    fn is_stale(&self) -> bool {
        self.used.elapsed() > FRESH_FOR
    }
}

/// Round trips over one QUIC connection, each on a new stream.
pub(in crate::commands::ledger) struct QuicRoundTripComponent {
    connection: Option<quinn::Connection>,
    trip: RoundTripBuffers,
    client: QuicClient,
}

impl QuicRoundTripComponent {
    pub(in crate::commands::ledger) fn new(messages: &Http3MessageSizes) -> Result<Self> {
        let client = QuicClient::new("quic", &messages.certificate)?;
        let messages = messages.clone();
        let trip = RoundTripBuffers::new(Box::new(move |size_bytes| messages.on_streams(size_bytes)));
        Ok(QuicRoundTripComponent { connection: None, trip, client })
    }
}

/// Sends a message on a stream, and returns the number of bytes of the response.
async fn exchange(connection: &quinn::Connection, message: &[u8]) -> io::Result<usize> {
    let (mut send, mut receive) = connection.open_bi().await?;
    for piece in message.chunks(PIECE_BYTES) {
        send.write_all(piece).await?;
    }
    send.finish()?;
    let mut received = 0;
    while let Some(chunk) = receive.read_chunk(usize::MAX, true).await? {
        received += chunk.bytes.len();
    }
    Ok(received)
}

impl LedgerComponent for QuicRoundTripComponent {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        if self.connection.is_none() || self.client.is_stale() {
            self.connection = Some(self.client.connect()?);
        }
        self.trip.prepare(size_bytes)
    }

    fn before(&mut self) -> Result<()> {
        self.trip.rest();
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let QuicRoundTripComponent { connection: Some(connection), trip, client } = self else {
            return Ok(());
        };
        trip.received = client.drive(async { exchange(connection, &trip.request).await.map_err(failed) })?;
        trip.check()
    }

    fn check(&self) -> Result<()> {
        self.trip.check()
    }

    fn server_pid(&self) -> Option<u32> {
        self.client.server.pid()
    }
}

/// The kind of handshake that opens an operation's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::commands::ledger) enum QuicHandshakeKind {
    /// A new connection with a full handshake (RFC 9001 section 4).
    Full,
    /// A new connection that resumes an earlier TLS session (RFC 9001 section 4.5), without early data.
    Resumed,
}

/// Round trips over QUIC, each on a new connection.
pub(in crate::commands::ledger) struct QuicConnectionComponent {
    setup: QuicHandshakeKind,
    certificate: PathBuf,
    connection: Option<quinn::Connection>,
    trip: RoundTripBuffers,
    client: QuicClient,
}

impl QuicConnectionComponent {
    pub(in crate::commands::ledger) fn new(
        setup: QuicHandshakeKind,
        messages: &Http3MessageSizes,
    ) -> Result<Self> {
        let certificate = messages.certificate.clone();
        let client = QuicClient::new("quic", &certificate)?;
        let messages = messages.clone();
        let trip = RoundTripBuffers::new(Box::new(move |size_bytes| messages.on_streams(size_bytes)));
        Ok(QuicConnectionComponent { setup, certificate, connection: None, trip, client })
    }

    /// Closes the connection, and waits until the responding process has been notified.
    fn close(&mut self) -> Result<()> {
        let Some(connection) = self.connection.take() else { return Ok(()) };
        connection.close(VarInt::from_u32(0), b"");
        self.client.drive(async {
            connection.closed().await;
            tokio::task::yield_now().await;
            Ok(())
        })
    }
}

impl LedgerComponent for QuicConnectionComponent {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.trip.prepare(size_bytes)?;
        // Open the session that later operations resume.
        if self.connection.is_none() { self.run() } else { Ok(()) }
    }

    fn before(&mut self) -> Result<()> {
        self.close()?;
        if self.setup == QuicHandshakeKind::Full {
            // A session can be resumed only with the settings that opened it, so new settings prevent a resumption.
            self.client.tls = tls_settings(&self.certificate, b"h3")?;
        }
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let connection = self.client.connect()?;
        let QuicConnectionComponent { trip, client, .. } = self;
        trip.received = client.drive(async { exchange(&connection, &trip.request).await.map_err(failed) })?;
        self.connection = Some(connection);
        self.trip.check()
    }

    fn check(&self) -> Result<()> {
        self.trip.check()
    }

    fn server_pid(&self) -> Option<u32> {
        self.client.server.pid()
    }
}

/// HTTP/3 requests to a process that responds with the same heads as a gateway.
pub(in crate::commands::ledger) struct Http3RoundTripComponent {
    send: Option<SendRequest<OpenStreams, Bytes>>,
    request: S3RequestTemplate,
    asked: Request<()>,
    /// The request of the next operation.
    next: Option<Request<()>>,
    contents: NonrepeatingContent,
    /// The content of a put.
    content: Bytes,
    /// The expected number of content bytes of the response.
    expected: u64,
    received: u64,
    client: QuicClient,
}

impl Http3RoundTripComponent {
    pub(in crate::commands::ledger) fn new(
        messages: &Http3MessageSizes,
        contents: &NonrepeatingContent,
    ) -> Result<Self> {
        let client = QuicClient::new("http3", &messages.certificate)?;
        Ok(Http3RoundTripComponent {
            send: None,
            request: messages.request.clone(),
            asked: Request::default(),
            next: None,
            contents: contents.clone(),
            content: Bytes::new(),
            expected: 0,
            received: 0,
            client,
        })
    }

    fn connect(&mut self) -> Result<()> {
        let connection = self.client.connect()?;
        let connected = async {
            let (mut driver, send) =
                h3::client::new(h3_quinn::Connection::new(connection)).await.map_err(broken)?;
            spawn_local(async move {
                // If the connection fails, its requests fail too and report the error.
                let _ = poll_fn(|context| driver.poll_close(context)).await;
            });
            Ok(send)
        };
        self.send = Some(self.client.drive(connected)?);
        Ok(())
    }

    /// Sends a request, and returns the number of content bytes of the response.
    fn ask(&mut self, request: Request<()>, content: Bytes) -> Result<u64> {
        let Http3RoundTripComponent { send: Some(send), client, .. } = self else { return Ok(0) };
        client.drive(async {
            let mut stream = send.send_request(request).await.map_err(broken)?;
            let mut rest = content;
            while !rest.is_empty() {
                let piece = rest.split_to(rest.len().min(PIECE_BYTES));
                stream.send_data(piece).await.map_err(broken)?;
            }
            stream.finish().await.map_err(broken)?;
            let response = stream.recv_response().await.map_err(broken)?;
            let mut received = 0;
            while let Some(piece) = stream.recv_data().await.map_err(broken)? {
                received += piece.remaining() as u64;
            }
            match response.status().is_success() {
                true => Ok(received),
                false => Err(Error::new(ErrorKind::BadResponse, "the HTTP/3 peer failed")),
            }
        })
    }
}

impl LedgerComponent for Http3RoundTripComponent {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        if self.send.is_none() || self.client.is_stale() {
            self.connect()?;
        }
        let heads = self.request.heads(size_bytes)?;
        self.asked = request_of(&self.request, size_bytes, &heads)?;
        let is_put = self.request.operation() == ObjectOperation::Put;
        self.content = if is_put { self.contents.share(size_bytes) } else { Bytes::new() };
        self.expected = if is_put { 0 } else { size_bytes };
        let specification = Request::put(format!("https://127.0.0.1:9000{NEXT_RESPONSE_PATH}"));
        let specification = specification.body(()).map_err(broken)?;
        self.ask(specification, next_response(&heads.answered, self.expected)).map(drop)
    }

    fn before(&mut self) -> Result<()> {
        self.next = Some(self.asked.clone());
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let request = self.next.take().unwrap_or_else(|| self.asked.clone());
        self.received = self.ask(request, self.content.clone())?;
        Ok(())
    }

    fn check(&self) -> Result<()> {
        match self.received == self.expected {
            true => Ok(()),
            false => {
                let why = format!("received {} bytes of {}", self.received, self.expected);
                Err(Error::new(ErrorKind::IncompleteBody, why))
            }
        }
    }

    fn server_pid(&self) -> Option<u32> {
        self.client.server.pid()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use quinn::crypto::rustls::QuicClientConfig;
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::{DigitallySignedStruct, SignatureScheme};

    use super::super::connections::short_order;
    use super::*;
    use crate::commands::gateway::ServerCertificate;
    use crate::commands::ledger::echo::quic::serve_locally;

    /// A verifier that accepts any certificate, and counts the certificates it verifies. A resumed handshake has no
    /// certificate.
    #[derive(Debug, Default)]
    struct CountingVerifier(AtomicU32);

    impl ServerCertVerifier for CountingVerifier {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, rustls::Error> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(ServerCertVerified::assertion())
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
            rustls::crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
        }
    }

    /// quinn does not report whether a handshake resumes a session, so a component cannot check the kind of its
    /// handshakes. This test checks the kind.
    #[test]
    fn sessions_are_resumed_with_the_settings_of_client_and_gateway() {
        let certificate = ServerCertificate::for_loopback().unwrap();
        let tls = tls_settings(certificate.directory(), b"h3").unwrap();
        let mut settings = (*tls.config().unwrap()).clone();
        let verifier = Arc::new(CountingVerifier::default());
        settings.dangerous().set_certificate_verifier(verifier.clone());
        let settings = QuicClientConfig::try_from(settings).unwrap();
        let config = quinn::ClientConfig::new(Arc::new(settings));
        LocalSet::new().block_on(&runtime().unwrap(), async {
            let address = serve_locally(certificate.directory()).unwrap();
            for _ in 0..4 {
                let endpoint = quinn::Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
                let connecting = endpoint.connect_with(config.clone(), address, "127.0.0.1").unwrap();
                let connection = connecting.await.unwrap();
                let received = exchange(&connection, &short_order().to_bytes()).await.unwrap();
                assert_eq!(received, short_order().head_bytes);
            }
        });
        assert_eq!(verifier.0.load(Ordering::Relaxed), 1, "only the first handshake shows a certificate");
    }

    #[test]
    fn each_piece_of_content_has_a_head() {
        for (size_bytes, expected) in
            [(0, 0), (1, 2), (63, 2), (64, 3), (16_383, 3), (16_384, 5), (65_536, 5), (65_537, 7)]
        {
            assert_eq!(data_frame_heads(size_bytes), expected, "{size_bytes}");
        }
    }
}
