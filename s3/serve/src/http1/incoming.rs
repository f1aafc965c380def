//! Request bodies on their way to the S3 layer, in pieces of a size that suits stores.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::{io, mem};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::buffers::{BufferChunk, CHUNK_BYTES};
use crate::http1::chunked::{ChunkDecoder, ChunkStep};
use crate::http1::head::RequestFraming;
use crate::http1::wire::BufferedSocket;

/// The error of a body that stopped arriving; the S3 operation recognizes the text.
pub(crate) const STALLED: &str = "the client stopped sending in the middle of the body";
/// The error of a body whose chunked coding is invalid; the S3 operation recognizes the text.
pub(crate) const BROKEN: &str = "the body's transfer coding is broken";

/// The maximum number of unread bytes of a refused body that are read and discarded so that the connection can be used
/// again. Clients send parts of 5 to 16 MiB, and read the response only afterwards.
const DISCARD_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The interim response to a client that waits before it sends a body.
const GO_ON: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The error type of request bodies.
type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A request's body that is being read, with its socket.
pub(crate) struct IncomingBody {
    wire: BufferedSocket,
    left: UnreadBody,
    /// For a client that waits for `100 Continue`: how many bytes of that response were sent.
    told: Option<usize>,
    has_failed: bool,
    chunk: Option<BufferChunk>,
    filled: usize,
    /// For a body of unstated length: the number of bytes that may still arrive.
    room_bytes: u64,
}

/// The part of the body that has not been read yet.
enum UnreadBody {
    Length(u64),
    Chunked(ChunkDecoder),
}

impl IncomingBody {
    /// Wraps the socket. A body of unstated length fails beyond `bytes_max`.
    pub(crate) fn new(
        wire: BufferedSocket,
        framing: RequestFraming,
        expects_continue: bool,
        bytes_max: u64,
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
            chunk: None,
            filled: 0,
            room_bytes: bytes_max,
        }
    }

    /// Whether all of the body has been read from the socket.
    pub(crate) fn is_done(&self) -> bool {
        match &self.left {
            UnreadBody::Length(left) => *left == 0,
            UnreadBody::Chunked(decoder) => decoder.is_done(),
        }
    }

    /// Whether the unread rest of the body is small enough to discard, so that the connection can be reused.
    pub(crate) fn is_worth_discarding(&self) -> bool {
        let is_small = matches!(self.left, UnreadBody::Length(left) if left <= DISCARD_BYTES_MAX);
        is_small && !self.has_failed && self.told.is_none()
    }

    /// Reads and discards the rest of the body. Errors: from the socket.
    pub(crate) async fn discard(&mut self) -> io::Result<()> {
        while let Some(piece) = std::future::poll_fn(|context| self.poll_piece(context)).await {
            piece.map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// Returns the socket, on which the response is then sent.
    pub(crate) fn wire(&mut self) -> &mut BufferedSocket {
        &mut self.wire
    }

    pub(crate) fn into_wire(self) -> BufferedSocket {
        self.wire
    }

    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        let filled = ready!(self.poll_fill(context));
        let piece = filled.map(|()| self.take_piece());
        self.has_failed |= piece.is_err();
        Poll::Ready(piece.transpose())
    }

    /// Fills a whole chunk, or as much of it as the rest of the body fills.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        ready!(self.poll_tell(context))?;
        while self.filled < CHUNK_BYTES && !self.is_done() {
            let done = match &self.left {
                UnreadBody::Length(left) => self.poll_plain(context, *left).map_err(BodyError::from),
                UnreadBody::Chunked(_) => self.poll_chunked(context),
            };
            ready!(done)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Sends `100 Continue` if the client waits for it and has not begun to send anyway. Waits until the socket is
    /// writable: a socket that has just moved to this thread is not registered as writable yet.
    fn poll_tell(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(told) = &mut self.told {
            if *told > 0 || self.wire.ahead().is_empty() {
                ready!(self.wire.poll_send(context, GO_ON, told))?;
            }
            self.told = None;
        }
        Poll::Ready(Ok(()))
    }

    fn take_piece(&mut self) -> Option<Bytes> {
        let chunk = self.chunk.take()?;
        Some(chunk.into_bytes(mem::take(&mut self.filled))).filter(|piece| !piece.is_empty())
    }

    /// Reads some more bytes, starting with those that arrived with the head.
    fn poll_plain(&mut self, context: &mut Context<'_>, left: u64) -> Poll<io::Result<()>> {
        let chunk = self.chunk.get_or_insert_with(BufferChunk::new);
        let room = &mut chunk.memory()[self.filled..];
        let wanted = room.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let ahead = self.wire.ahead();
        let count = if ahead.is_empty() {
            ended_early(ready!(self.wire.poll_read(context, &mut room[..wanted])))?
        } else {
            let count = wanted.min(ahead.len());
            room[..count].copy_from_slice(&ahead[..count]);
            self.wire.consume(count);
            count
        };
        self.filled += count;
        self.left = UnreadBody::Length(left - count as u64);
        Poll::Ready(Ok(()))
    }

    fn poll_chunked(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        let UnreadBody::Chunked(decoder) = &mut self.left else { return Poll::Ready(Ok(())) };
        let chunk = self.chunk.get_or_insert_with(BufferChunk::new);
        let room = &mut chunk.memory()[self.filled..];
        let ahead = self.wire.ahead();
        let step = decoder.step(ahead, room.len());
        match step.map_err(|refusal| format!("{BROKEN}: {}", refusal.why))? {
            // S3's trailers are sent within `aws-chunked`, so these are ignored.
            ChunkStep::Skip(count) | ChunkStep::Trailer(count) => self.wire.consume(count),
            ChunkStep::Data(count) if count as u64 > self.room_bytes => {
                return Poll::Ready(Err(format!("{BROKEN}: it is larger than this gateway takes").into()));
            }
            ChunkStep::Data(count) => {
                self.room_bytes -= count as u64;
                room[..count].copy_from_slice(&ahead[..count]);
                self.filled += count;
                self.wire.consume(count);
            }
            ChunkStep::End => {}
            ChunkStep::More => {
                let timeout = self.wire.stall_timeout();
                ended_early(ready!(self.wire.poll_ahead(context, timeout)))?;
                self.wire.end_wait();
            }
        }
        Poll::Ready(Ok(()))
    }
}

fn ended_early(read: io::Result<usize>) -> io::Result<usize> {
    match read {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            Err(io::Error::new(io::ErrorKind::TimedOut, STALLED))
        }
        read => read,
    }
}

/// A request's body in the form that the S3 layer takes. The connection takes the socket back when the response is
/// ready.
pub(crate) struct RequestBody {
    incoming: Lent,
    length: Option<u64>,
}

/// A body with its socket, lent for the duration of a request.
pub(crate) type Lent = Arc<Mutex<Option<IncomingBody>>>;

impl RequestBody {
    /// Returns the body, and a handle with which the connection gets its socket back.
    pub(crate) fn lend(incoming: IncomingBody) -> (s3s::Body, Lent) {
        let length = match incoming.left {
            UnreadBody::Length(left) => Some(left),
            UnreadBody::Chunked(_) => None,
        };
        let lent = Arc::new(Mutex::new(Some(incoming)));
        (s3s::Body::http_body_unsync(RequestBody { incoming: lent.clone(), length }), lent)
    }
}

/// Takes the socket back. If the body is still in use, its further reads fail.
pub(crate) fn take_back(lent: &Lent) -> Option<IncomingBody> {
    lent.lock().unwrap_or_else(PoisonError::into_inner).take()
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
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

    /// A thread that has just received a socket does not know yet that it is writable, and reports that a write would
    /// block.
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
            let wire = BufferedSocket::new(socket, Vec::new(), Duration::from_secs(60));
            let mut incoming = IncomingBody::new(wire, RequestFraming::Length(4), true, 100);
            std::future::poll_fn(|context| incoming.poll_piece(context)).await
        });
        assert_eq!(body.unwrap().unwrap(), "body");
        assert_eq!(sender.join().unwrap(), GO_ON);
    }
}
