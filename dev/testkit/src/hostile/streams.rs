//! The server over HTTP/2. A library produces the frames, and this file adds the faults.

use std::future::pending;
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::sync::Arc;
use std::{fmt, io};

use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Builder as Runtime;
use tokio::task::{LocalSet, yield_now};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use super::answer::{self, HostileResponse};
use super::{HostileState, RecordedRequest, ResponseFault, lock};

/// The default number of concurrent streams.
const STREAMS_MAX: u32 = 100;
/// The number of turns of the event loop within which the library sends all data that was passed to it, unless the
/// socket buffer is full.
const TURNS: usize = 8;

/// The server's certificate.
pub(super) struct HostileCertificate {
    pub(super) pem: String,
    acceptor: TlsAcceptor,
}

impl HostileCertificate {
    /// Creates a self-signed certificate for this address.
    pub(super) fn new(address: Ipv4Addr) -> Self {
        let made = rcgen::generate_simple_self_signed(vec![address.to_string()]).expect("a certificate");
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("its key");
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.expect("versions of TLS").with_no_client_auth();
        let config = config.with_single_cert(vec![made.cert.der().clone()], key);
        let mut config = config.expect("a key that fits");
        config.alpn_protocols = vec![b"h2".to_vec()];
        HostileCertificate { pem: made.cert.pem(), acceptor: TlsAcceptor::from(Arc::new(config)) }
    }
}

impl fmt::Debug for HostileCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificate")
    }
}

/// Responds to the requests of a connection until either side ends it, over TLS if there is a certificate.
pub(super) fn serve(
    stream: &TcpStream,
    connection: usize,
    shared: &HostileState,
    certificate: Option<&HostileCertificate>,
) {
    let Ok(runtime) = Runtime::new_current_thread().enable_io().build() else { return };
    let answering = async {
        let socket = stream.try_clone()?;
        socket.set_nonblocking(true)?;
        let socket = tokio::net::TcpStream::from_std(socket)?;
        match certificate {
            Some(own) => answer_all(own.acceptor.accept(socket).await?, stream, (connection, shared)).await,
            None => answer_all(socket, stream, (connection, shared)).await,
        }
    };
    // The task ends when the connection ends for any reason. Dropping the `LocalSet` ends the remaining responses.
    let _ = LocalSet::new().block_on(&runtime, answering);
    // Closing the socket with unread requests would send a reset, and the last bytes might be lost.
    if stream.shutdown(Shutdown::Write).and_then(|()| stream.set_nonblocking(false)).is_ok() {
        super::drain(&mut &*stream);
    }
}

async fn answer_all(
    socket: impl AsyncRead + AsyncWrite + Unpin,
    stream: &TcpStream,
    (connection, shared): (usize, &HostileState),
) -> io::Result<()> {
    let told = lock(&shared.script).lies(usize::MAX, connection, "");
    let most = told
        .iter()
        .find_map(|lie| if let ResponseFault::StreamsMax(most) = lie { Some(*most) } else { None });
    let mut builder = Builder::new();
    builder.max_concurrent_streams(most.unwrap_or(STREAMS_MAX));
    let mut server: Connection<_, Bytes> = builder.handshake(socket).await.map_err(io::Error::other)?;
    while let Some(asked) = server.accept().await {
        let (asked, respond) = asked.map_err(io::Error::other)?;
        let request = read(&asked, connection);
        let lies = shared.lies_for(&request);
        let answer = answer::answer(&request, &shared.file, &lies);
        let lies = if answer.is_aside { Vec::new() } else { lies };
        let closes =
            |lie: &ResponseFault| matches!(lie, ResponseFault::ClosesAfter | ResponseFault::UntilClose);
        if lies.iter().any(closes) {
            server.graceful_shutdown();
        } else if lies.contains(&ResponseFault::DropsPipelined) {
            server.abrupt_shutdown(Reason::NO_ERROR);
        }
        let closer = stream.try_clone()?;
        tokio::task::spawn_local(send(respond, answer, lies, closer));
    }
    Ok(())
}

/// Converts a request to HTTP/1.1 form. The length of the head is approximately its length in HTTP/1.1.
fn read(asked: &http::Request<RecvStream>, connection: usize) -> RecordedRequest {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers: Vec<_> =
        asked.headers().iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect();
    let target = asked.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let head_bytes =
        target.len() + headers.iter().map(|(name, value)| name.len() + value.len() + 4).sum::<usize>();
    RecordedRequest { connection, method: asked.method().to_string(), target, headers, head_bytes }
}

/// Sends a response, with those faults in `lies` that affect the transmission.
async fn send(
    mut respond: SendResponse<Bytes>,
    answer: HostileResponse,
    lies: Vec<ResponseFault>,
    socket: TcpStream,
) {
    if lies.contains(&ResponseFault::RefusesStream) {
        return respond.send_reset(Reason::REFUSED_STREAM);
    }
    if lies.contains(&ResponseFault::Mute) {
        return pending().await;
    }
    let is_last = answer.is_head_only || answer.body.is_empty();
    let Ok(mut stream) = respond.send_response(head(&answer, &lies), is_last) else { return };
    if is_last {
        return;
    }
    let cut = lies.iter().find_map(|lie| match lie {
        ResponseFault::ResetAt(at) | ResponseFault::CloseAt(at) | ResponseFault::StallAt(at) => {
            Some((*at, lie))
        }
        _ => None,
    });
    let Some((at, lie)) = cut else {
        let _ = stream.send_data(answer.body.into(), true);
        return;
    };
    let body = Bytes::from(answer.body);
    let _ = stream.send_data(body.slice(..at.min(body.len())), false);
    for _ in 0..TURNS {
        yield_now().await;
    }
    end(stream, lie, &socket).await;
}

/// Ends a response early.
async fn end(mut stream: SendStream<Bytes>, lie: &ResponseFault, socket: &TcpStream) {
    match lie {
        ResponseFault::ResetAt(_) => stream.send_reset(Reason::INTERNAL_ERROR),
        ResponseFault::CloseAt(_) => {
            let _ = socket.shutdown(Shutdown::Both);
        }
        _ => pending().await,
    }
}

fn head(answer: &HostileResponse, lies: &[ResponseFault]) -> http::Response<()> {
    let mut head = http::Response::builder().status(answer.status);
    for (name, value) in &answer.headers {
        head = head.header(*name, value);
    }
    let has_length =
        !lies.iter().any(|lie| matches!(lie, ResponseFault::Chunked(_) | ResponseFault::UntilClose));
    if has_length {
        let off = lies
            .iter()
            .find_map(|lie| if let ResponseFault::ContentLengthOff(by) = lie { Some(*by) } else { None });
        let length = (answer.body.len() as u64).saturating_add_signed(off.unwrap_or(0));
        head = head.header("content-length", length);
    }
    head.body(()).expect("headers that a script can have")
}
