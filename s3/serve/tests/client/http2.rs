//! An HTTP/2 client that tests can drive step by step.

use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::tls::{self, Certificate};
use super::{Answer, Call, Client};

pub struct Http2 {
    pub send: SendRequest<Bytes>,
    /// Finishes when the connection ends.
    pub ended: JoinHandle<Result<(), h2::Error>>,
    client: Client,
    scheme: &'static str,
}

/// Runs an asynchronous test for at most five minutes.
pub fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(300), test).await.expect("it hangs") });
}

impl Http2 {
    /// Connects with prior knowledge of HTTP/2.
    pub async fn connect(client: &Client) -> Self {
        let socket = TcpStream::connect(client.address).await.unwrap();
        socket.set_nodelay(true).unwrap();
        Self::over(socket, client, "http").await
    }

    /// Connects with TLS and negotiates HTTP/2 by ALPN.
    pub async fn connect_tls(client: &Client, certificate: &Certificate) -> Self {
        let socket = TcpStream::connect(client.address).await.unwrap();
        socket.set_nodelay(true).unwrap();
        let connector = tokio_rustls::TlsConnector::from(certificate.client_config("h2"));
        let stream = connector.connect(tls::name(), socket).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        Self::over(stream, client, "https").await
    }

    async fn over(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        client: &Client,
        scheme: &'static str,
    ) -> Self {
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(1 << 20).initial_connection_window_size(4 << 20);
        let (send, connection) = builder.handshake(stream).await.unwrap();
        Http2 { send, ended: tokio::spawn(connection), client: client.clone(), scheme }
    }

    /// Returns the signed head as HTTP/2 represents it.
    pub fn request(&self, call: &Call<'_>) -> Request<()> {
        let text = String::from_utf8(self.client.head(call)).unwrap();
        let mut lines = text.lines();
        let target = lines.next().unwrap().split(' ').nth(1).unwrap().to_owned();
        let headers: Vec<_> = lines.filter_map(|line| line.split_once(": ")).collect();
        let host = headers.iter().find(|(name, _)| *name == "host").unwrap().1;
        let mut request = Request::builder()
            .version(http::Version::HTTP_2)
            .method(call.method)
            .uri(format!("{}://{host}{target}", self.scheme));
        for (name, value) in headers.iter().filter(|(name, _)| !["host", "connection"].contains(name)) {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    /// Sends the head. The caller sends the body.
    pub async fn start(&self, call: &Call<'_>, is_all: bool) -> (ResponseFuture, SendStream<Bytes>) {
        let mut send = self.send.clone().ready().await.unwrap();
        send.send_request(self.request(call), is_all).unwrap()
    }

    pub async fn send(&self, call: &Call<'_>) -> Answer {
        let (response, mut upload) = self.start(call, call.body.is_empty()).await;
        if !call.body.is_empty() {
            push(&mut upload, &call.body, true).await.unwrap();
        }
        let (parts, mut body) = response.await.unwrap().into_parts();
        let bytes = take(&mut body).await.unwrap();
        answer(&Response::from_parts(parts, ()), bytes)
    }
}

/// Sends `body` in steps, each as large as the server's windows allow.
pub async fn push(upload: &mut SendStream<Bytes>, body: &[u8], is_end: bool) -> Result<(), h2::Error> {
    let mut body = Bytes::copy_from_slice(body);
    while !body.is_empty() {
        upload.reserve_capacity(body.len());
        let room = std::future::poll_fn(|context| upload.poll_capacity(context)).await;
        let room = room.ok_or(h2::Reason::STREAM_CLOSED)??;
        let piece = body.split_to(room.min(body.len()));
        upload.send_data(piece, is_end && body.is_empty())?;
    }
    Ok(())
}

pub async fn take(body: &mut RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut bytes = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

fn answer(response: &Response<()>, body: Vec<u8>) -> Answer {
    let text = |value: &http::HeaderValue| value.to_str().unwrap().to_owned();
    let headers = response.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    Answer { status: response.status().as_u16(), headers, body }
}
