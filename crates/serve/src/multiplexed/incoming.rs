//! Bodies of requests, in pieces as large as a store likes to write.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http_body::{Body, Frame, SizeHint};

use crate::buffers::{CHUNK_BYTES, Chunk};

/// The body as the S3 layer takes it.
pub(crate) fn gathered<B>(incoming: B) -> s3s::Body
where
    B: Body<Data = Bytes, Error: std::error::Error + Send + Sync> + Unpin + Send + 'static,
{
    match incoming.is_end_stream() {
        true => s3s::Body::empty(),
        false => {
            s3s::Body::http_body_unsync(Gathered { incoming, over: Bytes::new(), chunk: None, filled: 0 })
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
}

impl<B: Body<Data = Bytes> + Unpin> Body for Gathered<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
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
                Some(Ok(frame)) => body.over = frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
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
