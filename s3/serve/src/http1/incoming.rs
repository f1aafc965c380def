//! Passes request bodies to the S3 layer, in pieces that are large enough for efficient writes.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::buffers::{CHUNK_BYTES, PartialChunk};
use crate::http1::chunked::{ChunkDecoder, ChunkStep};
use crate::http1::head::RequestFraming;
use crate::http1::wire::BufferedSocket;
use crate::limits::LimitReason;
use crate::monitor::RequestTrace;

/// The error message for a body that stopped arriving. The conversion to an S3 error recognizes this message.
pub(crate) const STALLED: &str = "the client stopped sending in the middle of the body";
/// The error message for a body whose chunked coding is invalid. The conversion to an S3 error recognizes this message.
pub(crate) const BROKEN: &str = "the body's transfer coding is invalid";

/// If at most this number of bytes of a refused body are unread, these bytes are read and discarded, so that the
/// connection can be used again. Clients send parts of 5 to 16 MiB, and read the response only after sending the whole
/// part.
const DISCARD_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The interim response to a client that waits before it sends a body.
const GO_ON: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The error type of request bodies.
type RequestBodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a request that is being read, and the socket on which the body arrives.
pub(crate) struct IncomingBody {
    wire: BufferedSocket,
    left: UnreadBody,
    /// The number of bytes of the response `100 Continue` that have been sent; `None` if the client does not wait for
    /// this response.
    told: Option<usize>,
    has_failed: bool,
    chunk: PartialChunk,
    /// The number of bytes that may still arrive, for a body of unstated length.
    room_bytes: u64,
    trace: Arc<RequestTrace>,
}

/// The part of the body that has not been read yet.
enum UnreadBody {
    Length(u64),
    Chunked(ChunkDecoder),
}

impl IncomingBody {
    /// Wraps the socket. Reading a body of unstated length fails beyond `bytes_max`.
    pub(crate) fn new(
        wire: BufferedSocket,
        framing: RequestFraming,
        expects_continue: bool,
        bytes_max: u64,
        trace: Arc<RequestTrace>,
    ) -> Self {
        let left = match framing {
            RequestFraming::Length(bytes) => UnreadBody::Length(bytes),
            RequestFraming::Chunked => UnreadBody::Chunked(ChunkDecoder::default()),
        };
        IncomingBody {
            wire,
            left,
            told: expects_continue.then_some(0),
            has_failed: false,
            chunk: PartialChunk::default(),
            room_bytes: bytes_max,
            trace,
        }
    }

    /// Returns whether all of the body has been read from the socket.
    pub(crate) fn is_done(&self) -> bool {
        match &self.left {
            UnreadBody::Length(left) => *left == 0,
            UnreadBody::Chunked(decoder) => decoder.is_done(),
        }
    }

    /// Returns whether the unread rest of the body is small enough to discard, so that the connection can be reused.
    pub(crate) fn is_worth_discarding(&self) -> bool {
        let is_small = matches!(self.left, UnreadBody::Length(left) if left <= DISCARD_BYTES_MAX);
        is_small && !self.has_failed && self.told.is_none()
    }

    /// Reads and discards the rest of the body. Errors: the errors of the socket.
    pub(crate) async fn discard(&mut self) -> io::Result<()> {
        while let Some(piece) = std::future::poll_fn(|context| self.poll_piece(context)).await {
            piece.map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// Returns the socket, so that the caller can send the response on it.
    pub(crate) fn wire(&mut self) -> &mut BufferedSocket {
        &mut self.wire
    }

    pub(crate) fn into_wire(self) -> BufferedSocket {
        self.wire
    }

    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, RequestBodyError>>> {
        if self.trace.is_paced() {
            self.wire.set_payer(self.trace.account().cloned());
            ready!(self.wire.poll_allowed(context));
        }
        let filled = ready!(self.poll_fill(context));
        let piece = filled.map(|()| self.chunk.take());
        self.has_failed |= piece.is_err();
        Poll::Ready(piece.transpose())
    }

    /// Fills a buffer chunk. If the body ends first, part of the chunk remains empty. If memory is scarce and no
    /// further bytes have arrived, passes on the filled part, or keeps it in as little memory as possible.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<Result<(), RequestBodyError>> {
        ready!(self.poll_tell(context))?;
        while self.chunk.filled() < CHUNK_BYTES && !self.is_done() {
            let done = match &self.left {
                UnreadBody::Length(left) => self.poll_plain(context, *left).map_err(RequestBodyError::from),
                UnreadBody::Chunked(_) => self.poll_chunked(context),
            };
            if done.is_pending() && self.chunk.is_to_be_passed_on() {
                return Poll::Ready(Ok(()));
            }
            ready!(done)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Sends `100 Continue` if the client waits for it and has not begun to send the body. Waits until the socket is
    /// writable, because a socket that has just moved to this thread is not registered as writable yet.
    fn poll_tell(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(told) = &mut self.told {
            if *told > 0 || self.wire.ahead().is_empty() {
                ready!(self.wire.poll_send(context, GO_ON, told))?;
            }
            self.told = None;
        }
        Poll::Ready(Ok(()))
    }

    /// Reads further bytes of a body without chunks, starting with the bytes that arrived with the head.
    fn poll_plain(&mut self, context: &mut Context<'_>, left: u64) -> Poll<io::Result<()>> {
        let room = self.chunk.room();
        let wanted = room.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let ahead = self.wire.ahead();
        let count = if ahead.is_empty() {
            let read = ready!(self.wire.poll_read(context, &mut room[..wanted]));
            ended_early(read, &self.trace)?
        } else {
            let count = wanted.min(ahead.len());
            room[..count].copy_from_slice(&ahead[..count]);
            self.wire.consume(count);
            count
        };
        self.chunk.add(count);
        self.left = UnreadBody::Length(left - count as u64);
        Poll::Ready(Ok(()))
    }

    fn poll_chunked(&mut self, context: &mut Context<'_>) -> Poll<Result<(), RequestBodyError>> {
        let UnreadBody::Chunked(decoder) = &mut self.left else { return Poll::Ready(Ok(())) };
        let room = self.chunk.room();
        let ahead = self.wire.ahead();
        let step = decoder.step(ahead, room.len());
        match step.map_err(|refusal| format!("{BROKEN}: {}", refusal.why))? {
            // S3's trailers are sent within `aws-chunked`, so the trailers of the transfer coding are ignored.
            ChunkStep::Skip(count) | ChunkStep::Trailer(count) => self.wire.consume(count),
            ChunkStep::Data(count) if count as u64 > self.room_bytes => {
                return Poll::Ready(Err(format!("{BROKEN}: it exceeds this gateway's limit").into()));
            }
            ChunkStep::Data(count) => {
                self.room_bytes -= count as u64;
                room[..count].copy_from_slice(&ahead[..count]);
                self.chunk.add(count);
                self.wire.consume(count);
            }
            ChunkStep::End => {}
            ChunkStep::More => {
                ended_early(ready!(self.wire.poll_ahead_in_body(context)), &self.trace)?;
            }
        }
        Poll::Ready(Ok(()))
    }
}

fn ended_early(read: io::Result<usize>, trace: &RequestTrace) -> io::Result<usize> {
    match read {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            trace.limited(LimitReason::Slow);
            Err(io::Error::new(io::ErrorKind::TimedOut, STALLED))
        }
        read => read,
    }
}

/// A request's body in the form that the S3 layer accepts. The connection takes its socket back when the response is
/// ready.
pub(crate) struct RequestBody {
    incoming: SharedIncomingBody,
    length: Option<u64>,
}

/// A body and its socket, lent for the duration of a request.
pub(crate) type SharedIncomingBody = Arc<Mutex<Option<IncomingBody>>>;

impl RequestBody {
    /// Returns the body, and a handle with which the connection gets its socket back.
    pub(crate) fn lend(incoming: IncomingBody) -> (s3s::Body, SharedIncomingBody) {
        let length = match incoming.left {
            UnreadBody::Length(left) => Some(left),
            UnreadBody::Chunked(_) => None,
        };
        let lent = Arc::new(Mutex::new(Some(incoming)));
        (s3s::Body::http_body_unsync(RequestBody { incoming: lent.clone(), length }), lent)
    }
}

/// Takes the socket back. Further reads of the body fail if the body is still in use.
pub(crate) fn take_back(lent: &SharedIncomingBody) -> Option<IncomingBody> {
    lent.lock().unwrap_or_else(PoisonError::into_inner).take()
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        let body = &mut *self;
        let mut lent = body.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(incoming) = lent.as_mut() else {
            return Poll::Ready(Some(Err("the request was answered before its body was read".into())));
        };
        let piece = ready!(incoming.poll_piece(context));
        if let (Some(length), Some(Ok(piece))) = (&mut body.length, &piece) {
            *length -= piece.len() as u64;
        }
        Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.length == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map(SizeHint::with_exact).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;
    use crate::connection::ClientSocket;
    use crate::limits::{BodyTransferLimits, ConnectionLimitState};
    use crate::monitor::RequestMonitor;
    use crate::unsigned::ConnectionPeer;

    /// On a thread that has just received a socket, the runtime does not yet know that the socket is writable. The
    /// runtime therefore reports that a write would block.
    #[test]
    fn who_waits_is_told_to_send_also_on_a_new_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        let sender = std::thread::spawn(move || {
            let mut told = vec![0; GO_ON.len()];
            client.read_exact(&mut told).unwrap();
            client.write_all(b"body").unwrap();
            told
        });
        let body = crate::workers::new_runtime().unwrap().block_on(async {
            let socket = ClientSocket::Plain(tokio::net::TcpStream::from_std(socket).unwrap());
            let limits = BodyTransferLimits::of_tests(Duration::from_secs(60));
            let wire = BufferedSocket::new(socket, Vec::new(), limits);
            let address = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
            let caller = ConnectionPeer::Remote { address, tls: None };
            let connection = Arc::new(ConnectionLimitState::new(None, Arc::default()));
            let now = std::time::Instant::now();
            let trace = RequestMonitor::new(None).start(("PUT", "/b/k"), (&caller, &connection), now);
            let framing = RequestFraming::Length(4);
            let mut incoming = IncomingBody::new(wire, framing, true, 100, Arc::new(trace));
            std::future::poll_fn(|context| incoming.poll_piece(context)).await
        });
        assert_eq!(body.unwrap().unwrap(), "body");
        assert_eq!(sender.join().unwrap(), GO_ON);
    }
}
