//! HTTP/3: many requests at once on each QUIC connection (RFC 9114).

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::TcpInfo;
use h3::error::StreamError;
use quinn::crypto::rustls::QuicClientConfig;
use tokio::task::JoinSet;

use super::multiplex::{ExchangeSender, FailedExchange, MultiplexedLoadGenerator, TimedExchange, failed};
use super::{NetworkTraffic, RequestSequence};
use fordway_http::parts::TlsConnector;
use fordway_http::{Origin, Timeouts, TlsRoots};

/// A load generator for HTTP/3 over QUIC. QUIC includes TLS, so the URL scheme must be `https`.
pub type Http3 = MultiplexedLoadGenerator<Http3Sender>;

/// One HTTP/3 connection.
#[derive(Clone)]
pub struct Http3Sender {
    send: h3::client::SendRequest<h3_quinn::OpenStreams, Bytes>,
    connection: quinn::Connection,
    requests: Arc<RequestSequence>,
}

impl ExchangeSender for Http3Sender {
    async fn connect(requests: &Arc<RequestSequence>, _timeouts: Timeouts, roots: &TlsRoots) -> Result<Self> {
        let origin = requests.origin();
        if !origin.tls {
            let detail =
                format!("HTTP/3 is always encrypted; write {origin} with https://, or leave 3 out of --http");
            return Err(Error::new(ErrorKind::InvalidArgument, detail));
        }
        let connection = quic(origin, roots).await?;
        let (mut driver, send) = h3::client::new(h3_quinn::Connection::new(connection.clone()))
            .await
            .map_err(|error| failed("HTTP/3", error))?;
        tokio::task::spawn_local(async move {
            let end = std::future::poll_fn(|context| driver.poll_close(context)).await;
            tracing::debug!(%end, "an HTTP/3 connection ended");
        });
        Ok(Http3Sender { send, connection, requests: requests.clone() })
    }

    async fn exchange(&mut self, exchange: &mut TimedExchange) -> Result<(), FailedExchange> {
        let body = self.requests.body().clone();
        let request = self.requests.http_request()?;
        exchange.started = Instant::now();
        let mut stream = self.send.send_request(request).await.map_err(broken)?;
        if !body.is_empty() {
            stream.send_data(Bytes::from_owner(body)).await.map_err(broken)?;
        }
        stream.finish().await.map_err(broken)?;
        let answer = stream.recv_response().await.map_err(broken)?;
        exchange.first_byte = Some(Instant::now());
        exchange.status = answer.status().as_u16();
        while let Some(piece) = stream.recv_data().await.map_err(broken)? {
            exchange.body_bytes += piece.remaining() as u64;
        }
        Ok(())
    }

    fn traffic(&self) -> NetworkTraffic {
        let stats = self.connection.stats();
        NetworkTraffic { sent_bytes: stats.udp_tx.bytes, received_bytes: stats.udp_rx.bytes, connections: 1 }
    }

    fn tcp(&self) -> Option<TcpInfo> {
        None
    }
}

fn broken(error: StreamError) -> FailedExchange {
    let ends_connection =
        matches!(error, StreamError::ConnectionError { .. } | StreamError::RemoteClosing { .. });
    FailedExchange { error: failed("HTTP/3", error), ends_connection }
}

/// The delay before the next address of a host is tried (RFC 8305 section 8). Waiting for the handshake to fail would
/// take too long: a UDP packet to a closed port is not always refused, and QUIC's handshake timeout is longer than
/// ours.
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(250);

/// Connects to whichever address of the host completes the handshake first. Errors: `Unavailable`, `InvalidArgument`.
async fn quic(origin: &Origin, roots: &TlsRoots) -> Result<quinn::Connection> {
    let unreachable = |error: Box<dyn std::error::Error + Send + Sync>| {
        Error::new(ErrorKind::Unavailable, format!("no QUIC connection to {origin}")).caused_by(error)
    };
    let tls = TlsConnector::new(roots.clone(), b"h3").config()?;
    let tls = QuicClientConfig::try_from(tls).map_err(|error| unreachable(error.into()))?;
    let config = quinn::ClientConfig::new(Arc::new(tls));
    let addresses = tokio::net::lookup_host((origin.host.as_str(), origin.port)).await;
    let mut attempts = JoinSet::new();
    for (rank, address) in (0..).zip(addresses.map_err(|error| unreachable(error.into()))?) {
        let (config, host) = (config.clone(), origin.host.clone());
        attempts.spawn_local(async move {
            tokio::time::sleep(NEXT_ADDRESS_AFTER * rank).await;
            quic_at(address, config, &host).await
        });
    }
    let mut last = unreachable("the host has no address".into());
    while let Some(attempt) = attempts.join_next().await {
        match attempt {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) => last = unreachable(error),
            Err(error) => last = unreachable(error.into()),
        }
    }
    Err(last)
}

async fn quic_at(
    address: SocketAddr,
    config: quinn::ClientConfig,
    host: &str,
) -> std::result::Result<quinn::Connection, Box<dyn std::error::Error + Send + Sync>> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let endpoint = quinn::Endpoint::client(any)?;
    Ok(endpoint.connect_with(config, address, host)?.await?)
}
