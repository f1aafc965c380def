//! Bodies of requests, in pieces as large as a store likes to write.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http_body::{Body, Frame, SizeHint};

use crate::buffers::{CHUNK_BYTES, Chunk};
use crate::http1::BROKEN;

/// What bodies fail with.
type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body as the S3 layer takes it. It fails beyond `bytes_max`.
pub(crate) fn gathered<B>(incoming: B, bytes_max: u64) -> s3s::Body
where
    B: Body<Data = Bytes, Error: std::error::Error + Send + Sync> + Unpin + Send + 'static,
{
    match incoming.is_end_stream() {
        true => s3s::Body::empty(),
        false => {
            let (over, room_bytes) = (Bytes::new(), bytes_max);
            s3s::Body::http_body_unsync(Gathered { incoming, over, chunk: None, filled: 0, room_bytes })
        }
    }
}

/// Frames are copied together: a write of 256 KiB costs less than sixteen of 16 KiB and the copies.
struct Gathered<B> {
    incoming: B,
    /// What of a frame had no room in the piece before.
    over: Bytes,
    chunk: Option<Chunk>,
    filled: usize,
    /// Bytes that may still come.
    room_bytes: u64,
}

impl<B> Gathered<B> {
    fn gather(&mut self) {
        let chunk = self.chunk.get_or_insert_with(Chunk::new);
        let count = self.over.len().min(CHUNK_BYTES - self.filled);
        chunk.memory()[self.filled..self.filled + count].copy_from_slice(&self.over[..count]);
        self.over.advance(count);
        self.filled += count;
    }

    /// What was gathered, if anything was.
    fn take(&mut self) -> Option<Bytes> {
        let filled = std::mem::take(&mut self.filled);
        self.chunk.take().map(|chunk| chunk.into_bytes(filled))
    }

    /// Takes a frame in. Errors: it is more than the gateway takes.
    fn receive(&mut self, data: Bytes) -> Result<(), BodyError> {
        let left = self.room_bytes.checked_sub(data.len() as u64);
        self.room_bytes = left.ok_or_else(|| format!("{BROKEN}: it is larger than this gateway takes"))?;
        self.over = data;
        Ok(())
    }
}

impl<B> Body for Gathered<B>
where
    B: Body<Data = Bytes, Error: std::error::Error + Send + Sync + 'static> + Unpin,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let body = &mut *self;
        loop {
            if !body.over.is_empty() {
                if body.chunk.is_none() && body.incoming.is_end_stream() {
                    return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut body.over)))));
                }
                body.gather();
                if body.filled < CHUNK_BYTES {
                    continue;
                }
                return Poll::Ready(body.take().map(|piece| Ok(Frame::data(piece))));
            }
            match ready!(Pin::new(&mut body.incoming).poll_frame(context)) {
                Some(Ok(frame)) => body.receive(frame.into_data().unwrap_or_default())?,
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(body.take().map(|piece| Ok(Frame::data(piece)))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.over.is_empty() && self.chunk.is_none() && self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let held = (self.over.len() + self.filled) as u64;
        let left = self.incoming.size_hint().exact();
        left.map(|left| SizeHint::with_exact(left + held)).unwrap_or_default()
    }
}
