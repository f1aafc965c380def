//! HTTP/3: many requests at once on each QUIC connection (RFC 9114).

use std::sync::Arc;
use std::time::Instant;

use bytes::{Buf, Bytes};
use fordway_store::Result;
use fordway_sys::TcpInfo;
use h3::error::StreamError;

use super::multiplex::{ExchangeSender, FailedExchange, MultiplexedLoadGenerator, TimedExchange, failed};
use super::{NetworkTraffic, RequestSequence};
use fordway_http::parts::{FilteredConnection, FilteredOpener, TlsConnector, open_quic};
use fordway_http::{Timeouts, TlsRoots};

/// The maximum length of the head of a response in bytes.
const HEAD_BYTES_MAX: u64 = 128 << 10;

/// A load generator for HTTP/3 over QUIC. QUIC includes TLS, so the URL scheme must be `https`.
pub type Http3LoadGenerator = MultiplexedLoadGenerator<Http3Sender>;

/// An HTTP/3 connection, on which each request is a QUIC stream.
#[derive(Clone)]
pub struct Http3Sender {
    send: h3::client::SendRequest<FilteredOpener, Bytes>,
    connection: quinn::Connection,
    requests: Arc<RequestSequence>,
}

impl ExchangeSender for Http3Sender {
    async fn connect(requests: &Arc<RequestSequence>, _timeouts: Timeouts, roots: &TlsRoots) -> Result<Self> {
        let tls = TlsConnector::new(roots.clone(), b"h3");
        let connection = open_quic(requests.origin(), &tls).await?;
        let (mut driver, send) = h3::client::new(FilteredConnection::new(connection.clone(), HEAD_BYTES_MAX))
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
