//! The process that responds over QUIC and HTTP/3. Like the gateway, the process reads the UDP socket in one thread,
//! and drives the connection and responds in another thread. The QUIC configuration is the gateway's, with a
//! certificate from the measuring process.

use std::io;
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use fordway_http::parts::{TlsConnector, open_quic};
use fordway_http::{Origin, TlsRoots};
use fordway_serve::{TlsCertificate, prepare_quic_socket, quic_server_config};
use fordway_store::Result;
use http::{HeaderName, HeaderValue, Request, Response};
use quinn::{Endpoint, EndpointConfig, Incoming, TokioRuntime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{LocalSet, spawn_local};

use super::connections::{runtime, until_closed};
use super::datagrams::DatagramEndpoint;
use super::{EchoRequest, PIECE_BYTES, announce};
use crate::commands::ledger::components::request::fields;

/// The idle timeout of a connection. A component is idle while all other components are measured.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);
/// The largest body of a [`NEXT_RESPONSE_PATH`] request.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// The body of a request to this path specifies the response to all later requests.
pub(in crate::commands::ledger) const NEXT_RESPONSE_PATH: &str = "/next-response";

/// The protocol on top of a QUIC connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuicApplicationProtocol {
    /// Streams without HTTP: a request is an [`EchoRequest`].
    Streams,
    /// HTTP/3, with the library of the gateway.
    Http3,
}

/// Responds to messages over UDP without QUIC. Errors: operating-system errors.
pub(super) fn serve_datagrams(control: TcpStream) -> io::Result<()> {
    let socket = bind(&control)?;
    runtime()?.block_on(async {
        let mut line = DatagramEndpoint::new(socket, None)?;
        let mut answer = Vec::new();
        let serve = async {
            loop {
                let EchoRequest { head_bytes, body_bytes, .. } = line.order(&answer).await?;
                answer.resize(head_bytes + body_bytes, 1);
                line.send(&answer).await?;
            }
        };
        until_closed(control, serve).await
    })
}

/// Responds over QUIC. Errors: operating-system errors, and an unusable certificate in the directory `certificate`.
pub(super) fn serve(
    control: TcpStream,
    certificate: &Path,
    application: QuicApplicationProtocol,
) -> io::Result<()> {
    let config = config(certificate).map_err(io::Error::other)?;
    let socket = bind(&control)?;
    let (accepted, waiting) = unbounded_channel();
    std::thread::Builder::new().name("connections".to_owned()).spawn(move || work(waiting, application))?;
    runtime()?.block_on(async {
        let endpoint =
            Endpoint::new(EndpointConfig::default(), Some(config), socket, Arc::new(TokioRuntime))?;
        until_closed(control, accept(endpoint, accepted)).await
    })
}

fn config(certificate: &Path) -> Result<quinn::ServerConfig> {
    let tls = TlsCertificate::load(&certificate.join("cert.pem"), &certificate.join("key.pem"))?;
    quic_server_config(&tls, IDLE_TIMEOUT)
}

/// Opens a UDP socket at the local address of the control connection, and reports the socket's address to the measuring
/// process.
fn bind(control: &TcpStream) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((control.local_addr()?.ip(), 0))?;
    prepare_quic_socket(&socket)?;
    announce(control, socket.local_addr()?)?;
    Ok(socket)
}

async fn accept(endpoint: Endpoint, accepted: UnboundedSender<Incoming>) -> io::Result<()> {
    while let Some(incoming) = endpoint.accept().await {
        accepted.send(incoming).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Drives connections, until the process exits.
fn work(mut waiting: UnboundedReceiver<Incoming>, application: QuicApplicationProtocol) -> io::Result<()> {
    let serve = async move {
        while let Some(incoming) = waiting.recv().await {
            spawn_local(async move {
                // If a connection fails, the measuring process reports the error.
                let _ = match application {
                    QuicApplicationProtocol::Streams => serve_streams(incoming).await,
                    QuicApplicationProtocol::Http3 => serve_http3(incoming).await,
                };
            });
        }
    };
    LocalSet::new().block_on(&runtime()?, serve);
    Ok(())
}

async fn serve_streams(incoming: Incoming) -> io::Result<()> {
    let connection = incoming.accept()?.await?;
    let mut answer = Vec::new();
    loop {
        let (mut send, mut receive) = connection.accept_bi().await?;
        let mut order = None;
        while let Some(chunk) = receive.read_chunk(usize::MAX, true).await? {
            order = order.or_else(|| EchoRequest::read(&chunk.bytes));
        }
        let EchoRequest { head_bytes, body_bytes, .. } = order.ok_or(io::ErrorKind::InvalidData)?;
        answer.resize(head_bytes + body_bytes, 1);
        let (head, body) = answer.split_at(head_bytes);
        for piece in [head].into_iter().chain(body.chunks(PIECE_BYTES)) {
            send.write_all(piece).await?;
        }
        send.finish()?;
    }
}

/// The response to all requests until a request to [`NEXT_RESPONSE_PATH`] replaces it.
#[derive(Default)]
struct NextResponse {
    head: Response<()>,
    content: Bytes,
}

impl NextResponse {
    fn parse(body: &[u8]) -> Option<Self> {
        let (content_bytes, head) = body.split_first_chunk::<8>()?;
        let content = vec![1; u64::from_le_bytes(*content_bytes) as usize].into();
        Some(NextResponse { head: response_of(head)?, content })
    }
}

/// Returns the body of a request to [`NEXT_RESPONSE_PATH`]: the number of content bytes of the next responses, and the
/// head of these responses in HTTP/1.1 format.
pub(in crate::commands::ledger) fn next_response(head: &[u8], content_bytes: u64) -> Bytes {
    [&content_bytes.to_le_bytes(), head].concat().into()
}

/// Converts a head in HTTP/1.1 format to an HTTP/3 response, which has no `connection` header.
fn response_of(head: &[u8]) -> Option<Response<()>> {
    let mut response = Response::new(());
    for (name, value) in fields(head).into_iter().filter(|(name, _)| name != "connection") {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        response.headers_mut().append(name, HeaderValue::try_from(value).ok()?);
    }
    Some(response)
}

/// Returns the lengths of two HEADERS frames (RFC 9114 section 7.2.2), as the library writes them: the frame of a
/// request, and the frame of the response with the head `answered`. First, the request is sent to a server that only
/// counts its bytes. Then these bytes are sent to an HTTP/3 server, and the bytes of its response are counted. Call
/// this function in a [`LocalSet`]. Errors: operating-system errors.
pub(in crate::commands::ledger) async fn frame_lengths(
    certificate: &Path,
    asked: Request<()>,
    answered: &[u8],
) -> io::Result<(usize, usize)> {
    let config = config(certificate).map_err(io::Error::other)?;
    let endpoint = Endpoint::server(config, (Ipv4Addr::LOCALHOST, 0).into())?;
    let origin = format!("https://{}", endpoint.local_addr()?);
    let (origin, _) = Origin::parse(&origin).map_err(io::Error::other)?;
    let tls = TlsConnector::new(TlsRoots::File(certificate.join("cert.pem")), b"h3");
    let connect = || async {
        let (client, server) = tokio::join!(open_quic(&origin, &tls), async {
            endpoint
                .accept()
                .await
                .ok_or(io::ErrorKind::NotConnected)?
                .accept()?
                .await
                .map_err(io::Error::from)
        });
        io::Result::Ok((client.map_err(io::Error::other)?, server?))
    };

    let (client, server) = connect().await?;
    let (_driver, mut send) =
        h3::client::new(h3_quinn::Connection::new(client)).await.map_err(io::Error::other)?;
    let mut stream = send.send_request(asked).await.map_err(io::Error::other)?;
    stream.finish().await.map_err(io::Error::other)?;
    let (_, mut receive) = server.accept_bi().await?;
    let request = receive.read_to_end(HEAD_BYTES_MAX).await.map_err(io::Error::other)?;

    let (client, server) = connect().await?;
    let response = response_of(answered).ok_or(io::ErrorKind::InvalidData)?;
    spawn_local(respond_once(server, response));
    let (mut send, mut receive) = client.open_bi().await?;
    send.write_all(&request).await?;
    send.finish()?;
    let response = receive.read_to_end(HEAD_BYTES_MAX).await.map_err(io::Error::other)?;
    Ok((request.len(), response.len()))
}

/// Responds to one request, and keeps the connection until the client closes it.
async fn respond_once(connection: quinn::Connection, response: Response<()>) -> io::Result<()> {
    let mut connection: h3::server::Connection<_, Bytes> =
        h3::server::builder().build(h3_quinn::Connection::new(connection)).await.map_err(io::Error::other)?;
    let Some(resolver) = connection.accept().await.map_err(io::Error::other)? else { return Ok(()) };
    let (_, mut stream) = resolver.resolve_request().await.map_err(io::Error::other)?;
    stream.send_response(response).await.map_err(io::Error::other)?;
    stream.finish().await.map_err(io::Error::other)?;
    connection.accept().await.map_err(io::Error::other).map(drop)
}

async fn serve_http3(incoming: Incoming) -> io::Result<()> {
    let quic = h3_quinn::Connection::new(incoming.accept()?.await?);
    let mut connection: h3::server::Connection<_, Bytes> =
        h3::server::builder().build(quic).await.map_err(io::Error::other)?;
    let mut next = NextResponse::default();
    while let Some(resolver) = connection.accept().await.map_err(io::Error::other)? {
        let (request, mut stream) = resolver.resolve_request().await.map_err(io::Error::other)?;
        let is_specification = request.uri().path() == NEXT_RESPONSE_PATH;
        let mut specified = Vec::new();
        while let Some(mut data) = stream.recv_data().await.map_err(io::Error::other)? {
            let data = data.copy_to_bytes(data.remaining());
            if is_specification && specified.len() < HEAD_BYTES_MAX {
                specified.extend_from_slice(&data);
            }
        }
        if is_specification {
            next = NextResponse::parse(&specified).ok_or(io::ErrorKind::InvalidData)?;
            stream.send_response(Response::new(())).await.map_err(io::Error::other)?;
        } else {
            stream.send_response(next.head.clone()).await.map_err(io::Error::other)?;
            let mut content = next.content.clone();
            while !content.is_empty() {
                let piece = content.split_to(content.len().min(PIECE_BYTES));
                stream.send_data(piece).await.map_err(io::Error::other)?;
            }
        }
        stream.finish().await.map_err(io::Error::other)?;
    }
    Ok(())
}

/// Serves streams in the calling runtime, for tests.
#[cfg(test)]
pub(in crate::commands::ledger) fn serve_locally(certificate: &Path) -> io::Result<std::net::SocketAddr> {
    let config = config(certificate).map_err(io::Error::other)?;
    let endpoint = Endpoint::server(config, (Ipv4Addr::LOCALHOST, 0).into())?;
    let address = endpoint.local_addr()?;
    spawn_local(async move {
        while let Some(incoming) = endpoint.accept().await {
            spawn_local(serve_streams(incoming));
        }
    });
    Ok(address)
}
