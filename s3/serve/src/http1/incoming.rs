//! Bodies of requests on their way to the S3 layer, in pieces as large as a store likes to write.

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

/// Said by a body that stopped arriving; the S3 operation recognises it.
pub(crate) const STALLED: &str = "the client stopped sending in the middle of the body";
/// Said by a body whose chunks cannot be told apart; the S3 operation recognises it.
pub(crate) const BROKEN: &str = "the body's transfer coding is broken";

/// What is not taken of a body that was refused is read and thrown away up to this size, so that the
/// connection can be used again: clients send parts of 5 to 16 MiB and look at the answer afterwards.
const DISCARD_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// What a client is told that waits before it sends a body.
const GO_ON: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// What bodies fail with.
type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The socket while a body is read from it.
pub(crate) struct IncomingBody {
    wire: BufferedSocket,
    left: UnreadBody,
    /// Of a client that waits to be told to send: bytes that it was told.
    told: Option<usize>,
    has_failed: bool,
    chunk: Option<BufferChunk>,
    filled: usize,
    /// Bytes that a body of unstated length may still have.
    room_bytes: u64,
}

/// What is still to come.
enum UnreadBody {
    Length(u64),
    Chunked(ChunkDecoder),
}

impl IncomingBody {
    /// A body of unstated length fails beyond `bytes_max`.
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

    /// Whether every byte of the body has been taken off the socket.
    pub(crate) fn is_done(&self) -> bool {
        match &self.left {
            UnreadBody::Length(left) => *left == 0,
            UnreadBody::Chunked(decoder) => decoder.is_done(),
        }
    }

    /// Whether the rest, which nobody wants, is worth reading so that the connection can go on.
    pub(crate) fn is_worth_discarding(&self) -> bool {
        let is_small = matches!(self.left, UnreadBody::Length(left) if left <= DISCARD_BYTES_MAX);
        is_small && !self.has_failed && self.told.is_none()
    }

    /// Reads the rest for nobody. Errors: from the socket.
    pub(crate) async fn discard(&mut self) -> io::Result<()> {
        while let Some(piece) = std::future::poll_fn(|context| self.poll_piece(context)).await {
            piece.map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// The socket, to send the answer on.
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

    /// Gathers a whole chunk, or what there is up to the body's end.
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

    /// Tells the client to send, if it waits for that and has not begun all the same. A socket that has just
    /// come to this thread is not known to take anything before the thread has looked.
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

    /// Some more bytes: first those that came with the head.
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
            // What S3 sends in trailers travels inside of `aws-chunked`.
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

/// A body as the S3 layer takes it; the connection takes the socket back when the answer is there.
pub(crate) struct RequestBody {
    incoming: Lent,
    length: Option<u64>,
}

/// A socket that is lent for a request.
pub(crate) type Lent = Arc<Mutex<Option<IncomingBody>>>;

impl RequestBody {
    /// The body, and what the connection keeps to get its socket back.
    pub(crate) fn lend(incoming: IncomingBody) -> (s3s::Body, Lent) {
        let length = match incoming.left {
            UnreadBody::Length(left) => Some(left),
            UnreadBody::Chunked(_) => None,
        };
        let lent = Arc::new(Mutex::new(Some(incoming)));
        (s3s::Body::http_body_unsync(RequestBody { incoming: lent.clone(), length }), lent)
    }
}

/// Takes the socket back; a body that somebody still holds fails from now on.
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

    /// A thread that has just got a socket does not know yet that it takes something, and says that it would
    /// have to wait.
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
