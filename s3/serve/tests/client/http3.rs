//! An HTTP/3 client.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use http::Request;
use quinn::crypto::rustls::QuicClientConfig;

use super::tls::Certificate;
use super::{Answer, Call, Client};

pub type Stream = h3::client::RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>;
type Sender = h3::client::SendRequest<h3_quinn::OpenStreams, Bytes>;

#[derive(Clone)]
pub struct Http3 {
    pub connection: quinn::Connection,
    pub endpoint: quinn::Endpoint,
    send: Sender,
    client: Client,
}

/// Returns an endpoint that accepts `certificate`.
pub fn endpoint(certificate: &Certificate, transport: quinn::TransportConfig) -> quinn::Endpoint {
    let crypto = QuicClientConfig::try_from(certificate.client_config("h3")).unwrap();
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut endpoint = quinn::Endpoint::client(any).unwrap();
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    config.transport_config(Arc::new(transport));
    endpoint.set_default_client_config(config);
    endpoint
}

/// Returns the signed head as HTTP/3 represents it.
pub fn request(client: &Client, call: &Call<'_>) -> Request<()> {
    let text = String::from_utf8(client.head(call)).unwrap();
    let mut lines = text.lines();
    let target = lines.next().unwrap().split(' ').nth(1).unwrap().to_owned();
    let headers: Vec<_> = lines.filter_map(|line| line.split_once(": ")).collect();
    let host = headers.iter().find(|(name, _)| *name == "host").unwrap().1;
    let mut request = Request::builder().method(call.method).uri(format!("https://{host}{target}"));
    for (name, value) in headers.iter().filter(|(name, _)| !["host", "connection"].contains(name)) {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap()
}

impl Http3 {
    /// Opens a connection. Fails if the server presents another certificate.
    pub async fn try_connect(
        client: &Client,
        certificate: &Certificate,
    ) -> Result<Self, quinn::ConnectionError> {
        let endpoint = endpoint(certificate, quinn::TransportConfig::default());
        let connection = endpoint.connect(client.address, "localhost").unwrap().await?;
        let (mut driver, send) =
            h3::client::new(h3_quinn::Connection::new(connection.clone())).await.unwrap();
        tokio::spawn(async move { std::future::poll_fn(|context| driver.poll_close(context)).await });
        Ok(Http3 { connection, endpoint, send, client: client.clone() })
    }

    pub async fn connect(client: &Client, certificate: &Certificate) -> Self {
        Self::try_connect(client, certificate).await.unwrap()
    }

    /// Returns the signed head as HTTP/3 represents it.
    pub fn request(&self, call: &Call<'_>) -> Request<()> {
        request(&self.client, call)
    }

    /// Sends the head. The caller sends the body.
    pub async fn start(&mut self, call: &Call<'_>) -> Stream {
        self.try_start(call).await.unwrap()
    }

    pub async fn try_start(&mut self, call: &Call<'_>) -> Result<Stream, h3::error::StreamError> {
        let request = self.request(call);
        self.start_request(request).await
    }

    pub async fn start_request(&mut self, request: Request<()>) -> Result<Stream, h3::error::StreamError> {
        self.send.send_request(request).await
    }

    pub async fn send(&mut self, call: &Call<'_>) -> Answer {
        let mut stream = self.start(call).await;
        // An error is ignored, because a server that refuses a body does not read the rest of the body. After an error,
        // h3 would close the connection in `finish`.
        if call.body.is_empty() || stream.send_data(Bytes::copy_from_slice(&call.body)).await.is_ok() {
            let _ = stream.finish().await;
        }
        take(&mut stream).await
    }
}

/// Receives the whole response.
pub async fn take(stream: &mut Stream) -> Answer {
    let head = stream.recv_response().await.unwrap();
    let text = |value: &http::HeaderValue| value.to_str().unwrap().to_owned();
    let headers = head.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    let mut body = Vec::new();
    while let Some(mut piece) = stream.recv_data().await.unwrap() {
        body.extend_from_slice(&piece.copy_to_bytes(piece.remaining()));
    }
    Answer { status: head.status().as_u16(), headers, body }
}
