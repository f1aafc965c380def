//! A client that writes the frames of HTTP/3 itself, including frames that no library sends.

use http::Request;

use super::Client;
use super::http3::endpoint;
use super::tls::Certificate;

pub const DATA: u64 = 0;
pub const HEADERS: u64 = 1;
pub const SETTINGS: u64 = 4;
/// The type of a frame that has no meaning (RFC 9114 section 7.2.8).
pub const UNKNOWN: u64 = 0x21;

fn integer(value: u64) -> Vec<u8> {
    (value | 3 << 62).to_be_bytes().to_vec()
}

/// Returns the head of a frame.
pub fn head(kind: u64, length: u64) -> Vec<u8> {
    [integer(kind), integer(length)].concat()
}

pub fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    [head(kind, payload.len() as u64), payload.to_vec()].concat()
}

/// Encodes the length of a string, whose first byte has room for `bits` bits (RFC 7541 section 5.1).
fn length(flags: u8, bits: u32, length: usize) -> Vec<u8> {
    let most = (1 << bits) - 1;
    if length < most {
        return vec![flags | length as u8];
    }
    let (mut encoded, mut rest) = (vec![flags | most as u8], length - most);
    while rest >= 128 {
        encoded.push(rest as u8 | 128);
        rest >>= 7;
    }
    encoded.push(rest as u8);
    encoded
}

/// Returns the HEADERS frame of a request, whose names and values are literals (RFC 9204 section 4.5.6).
pub fn headers(request: &Request<()>) -> Vec<u8> {
    let uri = request.uri();
    let pseudo = [
        (":method", request.method().as_str()),
        (":scheme", "https"),
        (":authority", uri.authority().unwrap().as_str()),
        (":path", uri.path_and_query().unwrap().as_str()),
    ];
    let others = request.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap()));
    let mut section = vec![0, 0];
    for (name, value) in pseudo.into_iter().chain(others) {
        section.extend([length(0x20, 3, name.len()), name.as_bytes().to_vec()].concat());
        section.extend([length(0, 7, value.len()), value.as_bytes().to_vec()].concat());
    }
    frame(HEADERS, &section)
}

/// A connection on which SETTINGS has been sent.
pub struct RawHttp3 {
    pub quic: quinn::Connection,
    pub control: quinn::SendStream,
    _endpoint: quinn::Endpoint,
}

impl RawHttp3 {
    /// Connects. `send_window_bytes` is the number of bytes that the client sends without an acknowledgement.
    pub async fn connect(client: &Client, certificate: &Certificate, send_window_bytes: u64) -> Self {
        let mut transport = quinn::TransportConfig::default();
        transport.send_window(send_window_bytes);
        Self::connect_with(client, certificate, transport).await
    }

    pub async fn connect_with(
        client: &Client,
        certificate: &Certificate,
        transport: quinn::TransportConfig,
    ) -> Self {
        let endpoint = endpoint(certificate, transport);
        let quic = endpoint.connect(client.address, "localhost").unwrap().await.unwrap();
        let mut control = quic.open_uni().await.unwrap();
        control.write_all(&[vec![0], frame(SETTINGS, b"")].concat()).await.unwrap();
        RawHttp3 { quic, control, _endpoint: endpoint }
    }

    /// Opens a stream, and sends the head of a request with a body.
    pub async fn start(&self, request: &Request<()>) -> (quinn::SendStream, quinn::RecvStream) {
        let (mut send, receive) = self.quic.open_bi().await.unwrap();
        send.write_all(&headers(request)).await.unwrap();
        (send, receive)
    }

    /// Waits until the gateway closes the connection; returns the error code.
    pub async fn closed_with(&self) -> u64 {
        let closed = tokio::time::timeout(std::time::Duration::from_secs(20), self.quic.closed()).await;
        match closed.expect("the connection remains open") {
            quinn::ConnectionError::ApplicationClosed(close) => close.error_code.into_inner(),
            other => panic!("{other}"),
        }
    }
}

/// Lets the connections of this thread send what they have to send, in such a short time that few responses arrive.
pub async fn run_until_sent() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}
