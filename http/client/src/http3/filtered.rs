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

/// A QUIC connection as h3 uses it. Holds at most one frame per stream that is not DATA, and no content.
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
