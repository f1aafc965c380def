//! A QUIC connection for h3, whose received streams pass through [`FrameFilter`]. A violation of the protocol closes
//! the connection.

use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h3::error::Code;
use h3::quic::{self, BidiStream as _, ConnectionErrorIncoming, StreamErrorIncoming, StreamId, WriteBuf};
use h3_quinn::{BidiStream, OpenStreams, RecvStream, SendStream};
use quinn::VarInt;

use super::frames::{FrameFilter, FrameViolation};

/// The maximum length of a frame on a control stream, in bytes. The longest of these frames, SETTINGS, has a few bytes
/// per setting.
const CONTROL_FRAME_BYTES_MAX: u64 = 16 << 10;

/// Closes a connection at the first violation of the protocol.
#[derive(Clone)]
pub(super) struct ViolationGuard {
    quic: quinn::Connection,
    first: Arc<OnceLock<FrameViolation>>,
}

impl ViolationGuard {
    fn close(&self, violation: FrameViolation) -> StreamErrorIncoming {
        if self.first.set(violation).is_ok() {
            self.quic.close(VarInt::from_u32(violation.code()), violation.to_string().as_bytes());
        }
        let connection_error = ConnectionErrorIncoming::Undefined(Arc::new(violation));
        StreamErrorIncoming::ConnectionErrorIncoming { connection_error }
    }

    /// Returns the violation that closed the connection, if any.
    pub(super) fn violation(&self) -> Option<FrameViolation> {
        self.first.get().copied()
    }
}

/// A QUIC connection as h3 uses it. Holds at most one frame other than DATA per stream, and no content.
pub struct FilteredConnection {
    inner: h3_quinn::Connection,
    guard: ViolationGuard,
    head_bytes_max: u64,
}

impl FilteredConnection {
    /// Returns `quic` for h3. `head_bytes_max` is the maximum length of the head of a received message, in bytes, as it
    /// is encoded.
    pub fn new(quic: quinn::Connection, head_bytes_max: u64) -> Self {
        let guard = ViolationGuard { quic: quic.clone(), first: Arc::default() };
        FilteredConnection { inner: h3_quinn::Connection::new(quic), guard, head_bytes_max }
    }

    pub(super) fn guard(&self) -> ViolationGuard {
        self.guard.clone()
    }
}

/// The opener of a connection's streams.
pub struct FilteredOpener {
    inner: OpenStreams,
    guard: ViolationGuard,
    head_bytes_max: u64,
}

impl Clone for FilteredOpener {
    fn clone(&self) -> Self {
        let (inner, guard) = (self.inner.clone(), self.guard.clone());
        FilteredOpener { inner, guard, head_bytes_max: self.head_bytes_max }
    }
}

/// Returns the stream of a request, whose received half is filtered.
fn filtered<B: Buf>(
    stream: BidiStream<B>,
    guard: &ViolationGuard,
    head_bytes_max: u64,
) -> FilteredBidiStream<B> {
    let (send, receive) = stream.split();
    let filter = FrameFilter::of_message(head_bytes_max);
    FilteredBidiStream { send, receive: FilteredRecvStream::new(receive, filter, guard) }
}

impl<B: Buf> quic::Connection<B> for FilteredConnection {
    type RecvStream = FilteredRecvStream;
    type OpenStreams = FilteredOpener;

    fn poll_accept_recv(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Self::RecvStream, ConnectionErrorIncoming>> {
        let stream = ready!(quic::Connection::<B>::poll_accept_recv(&mut self.inner, context))?;
        let filter = FrameFilter::of_unidirectional(CONTROL_FRAME_BYTES_MAX);
        Poll::Ready(Ok(FilteredRecvStream::new(stream, filter, &self.guard)))
    }

    fn poll_accept_bidi(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Self::BidiStream, ConnectionErrorIncoming>> {
        let stream = ready!(quic::Connection::<B>::poll_accept_bidi(&mut self.inner, context))?;
        Poll::Ready(Ok(filtered(stream, &self.guard, self.head_bytes_max)))
    }

    fn opener(&self) -> Self::OpenStreams {
        let inner = quic::Connection::<B>::opener(&self.inner);
        FilteredOpener { inner, guard: self.guard.clone(), head_bytes_max: self.head_bytes_max }
    }
}

/// Opens streams through the field `inner`.
macro_rules! opens_streams {
    ($opener:ty) => {
        impl<B: Buf> quic::OpenStreams<B> for $opener {
            type BidiStream = FilteredBidiStream<B>;
            type SendStream = SendStream<B>;

            fn poll_open_bidi(
                &mut self,
                context: &mut Context<'_>,
            ) -> Poll<Result<Self::BidiStream, StreamErrorIncoming>> {
                let stream = ready!(self.inner.poll_open_bidi(context))?;
                Poll::Ready(Ok(filtered(stream, &self.guard, self.head_bytes_max)))
            }

            fn poll_open_send(
                &mut self,
                context: &mut Context<'_>,
            ) -> Poll<Result<Self::SendStream, StreamErrorIncoming>> {
                self.inner.poll_open_send(context)
            }

            fn close(&mut self, code: Code, reason: &[u8]) {
                quic::OpenStreams::<B>::close(&mut self.inner, code, reason);
            }
        }
    };
}

opens_streams!(FilteredConnection);
opens_streams!(FilteredOpener);

/// A received stream in the form that h3 expects.
pub struct FilteredRecvStream {
    inner: RecvStream,
    received: Bytes,
    filter: FrameFilter,
    guard: ViolationGuard,
}

impl FilteredRecvStream {
    fn new(inner: RecvStream, filter: FrameFilter, guard: &ViolationGuard) -> Self {
        FilteredRecvStream { inner, received: Bytes::new(), filter, guard: guard.clone() }
    }
}

impl quic::RecvStream for FilteredRecvStream {
    type Buf = Bytes;

    fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        loop {
            match self.filter.next(&mut self.received) {
                Ok(Some(piece)) => return Poll::Ready(Ok(Some(piece))),
                Ok(None) => {}
                Err(violation) => {
                    self.received.clear();
                    return Poll::Ready(Err(self.guard.close(violation)));
                }
            }
            match ready!(self.inner.poll_data(context))? {
                Some(received) => self.received = received,
                None => {
                    let ended = self.filter.end().map(|()| None);
                    return Poll::Ready(ended.map_err(|violation| self.guard.close(violation)));
                }
            }
        }
    }

    fn stop_sending(&mut self, error_code: u64) {
        self.inner.stop_sending(error_code);
    }

    fn recv_id(&self) -> StreamId {
        self.inner.recv_id()
    }
}

/// The stream of a request.
pub struct FilteredBidiStream<B: Buf> {
    send: SendStream<B>,
    receive: FilteredRecvStream,
}

impl<B: Buf> quic::BidiStream<B> for FilteredBidiStream<B> {
    type SendStream = SendStream<B>;
    type RecvStream = FilteredRecvStream;

    fn split(self) -> (Self::SendStream, Self::RecvStream) {
        (self.send, self.receive)
    }
}

impl<B: Buf> quic::RecvStream for FilteredBidiStream<B> {
    type Buf = Bytes;

    fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        self.receive.poll_data(context)
    }

    fn stop_sending(&mut self, error_code: u64) {
        self.receive.stop_sending(error_code);
    }

    fn recv_id(&self) -> StreamId {
        self.receive.recv_id()
    }
}

impl<B: Buf> quic::SendStream<B> for FilteredBidiStream<B> {
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.send.poll_ready(context)
    }

    fn send_data<T: Into<WriteBuf<B>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        self.send.send_data(data)
    }

    fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.send.poll_finish(context)
    }

    fn reset(&mut self, reset_code: u64) {
        self.send.reset(reset_code);
    }

    fn send_id(&self) -> StreamId {
        self.send.send_id()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
    use quinn::{Endpoint, TransportConfig};
    use tokio::task::{LocalSet, spawn_local, yield_now};

    use super::*;

    const WINDOW_BYTES: u32 = 256 << 10;
    const PAYLOAD_BYTES: usize = 300;

    fn endpoints() -> (Endpoint, Endpoint) {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider.clone());
        let tls = tls.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let tls = tls.with_single_cert(vec![made.cert.der().clone()], key).unwrap();
        let mut transport = TransportConfig::default();
        transport.send_window(64 << 10);
        let mut config = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()));
        config.transport_config(Arc::new(transport));
        let server = Endpoint::server(config, "127.0.0.1:0".parse().unwrap()).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let tls = rustls::ClientConfig::builder_with_provider(provider);
        let tls = tls.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
        let crypto = QuicClientConfig::try_from(tls.with_no_client_auth()).unwrap();
        let mut transport = TransportConfig::default();
        transport.stream_receive_window(VarInt::from_u32(WINDOW_BYTES));
        let mut config = quinn::ClientConfig::new(Arc::new(crypto));
        config.transport_config(Arc::new(transport));
        let mut client = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        client.set_default_client_config(config);
        (server, client)
    }

    /// Sends an endless body in small frames, and counts its bytes.
    async fn send_endlessly(server: Endpoint, sent: Arc<AtomicUsize>) {
        let quic = server.accept().await.unwrap().await.unwrap();
        let mut control = quic.open_uni().await.unwrap();
        control.write_all(b"\0\x04\0").await.unwrap();
        let (mut send, _receive) = quic.accept_bi().await.unwrap();
        // The response has the status 200 and no other header.
        send.write_all(b"\x01\x03\0\0\xd9").await.unwrap();
        let frame = [&b"\0\x41\x2c"[..], &[7; PAYLOAD_BYTES]].concat();
        while send.write_all(&frame).await.is_ok() {
            sent.fetch_add(PAYLOAD_BYTES, Ordering::Relaxed);
        }
    }

    /// h3 receives no more content than its caller takes, regardless of how the body is divided into frames.
    #[test]
    fn a_body_in_small_frames_is_not_read_ahead() {
        const PIECES: usize = 4000;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let ((server, client), sent) = (endpoints(), Arc::new(AtomicUsize::new(0)));
            let address = server.local_addr().unwrap();
            spawn_local(send_endlessly(server, sent.clone()));
            let quic = client.connect(address, "localhost").unwrap().await.unwrap();
            let connection = FilteredConnection::new(quic, 1000);
            let (mut driver, mut send) = h3::client::new(connection).await.unwrap();
            spawn_local(async move { std::future::poll_fn(|context| driver.poll_close(context)).await });
            let request = http::Request::get("https://localhost/").body(()).unwrap();
            let mut stream = send.send_request(request).await.unwrap();
            stream.finish().await.unwrap();
            assert_eq!(stream.recv_response().await.unwrap().status(), 200);
            for _ in 0..PIECES {
                assert!(stream.recv_data().await.unwrap().unwrap().remaining() <= PAYLOAD_BYTES);
                // In the meantime, more data can arrive.
                for _ in 0..5 {
                    yield_now().await;
                }
            }
            let (sent, most) =
                (sent.load(Ordering::Relaxed), PIECES * PAYLOAD_BYTES + 3 * WINDOW_BYTES as usize);
            assert!(sent <= most, "{sent} bytes were sent, of which at most {most} may be held");
        });
    }
}
