//! Content on its way in and out: no byte is copied that need not be, and memory is bounded.

use std::cell::RefCell;
use std::io::Read;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use fordway_store::{Content, Result};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;

/// Content up to this size is read before the answer's head is sent, and leaves in one segment with it.
const INLINE_BYTES: u64 = 64 * 1024;
/// Bytes of a larger content in memory at a time.
const CHUNK_BYTES: usize = 256 * 1024;
/// Chunks that a thread keeps for its next answers: fresh memory costs more than the read into it.
const SPARE_CHUNKS_MAX: usize = 16;

/// What bodies fail with.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// An object's content on its way from the S3 operation to the transport, as an extension of the
/// response: the transport sees an open file for what it is.
#[derive(Clone)]
pub(crate) struct Payload(Arc<Mutex<Option<Content>>>);

impl Payload {
    /// Takes content as the store hands it out; small files are read at once.
    /// Errors: those of reading, while the answer can still be an error.
    pub(crate) fn new(content: Content) -> Result<Self> {
        let content = match content {
            Content::File(region) if region.len <= INLINE_BYTES => {
                Content::Bytes(Content::File(region).into_vec()?.into())
            }
            content => content,
        };
        Ok(Payload(Arc::new(Mutex::new(Some(content)))))
    }

    fn take(self) -> Option<Content> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The body of an answer.
pub(crate) struct ResponseBody(Source);

enum Source {
    /// In memory, to be sent once.
    Bytes(Bytes),
    /// Read as the client takes it.
    Reader { reader: Box<dyn Read + Send>, left: u64, chunk: Arc<Chunk> },
    /// An XML document of the S3 layer.
    Document(s3s::Body),
}

impl ResponseBody {
    /// No bytes.
    pub(crate) fn empty() -> Self {
        ResponseBody(Source::Bytes(Bytes::new()))
    }

    /// An answer of the S3 layer that is not an object's content.
    pub(crate) fn document(body: s3s::Body) -> Self {
        ResponseBody(Source::Document(body))
    }

    /// An object's content.
    pub(crate) fn content(payload: Payload) -> Self {
        let source = match payload.take() {
            None => Source::Bytes(Bytes::new()),
            Some(Content::Bytes(bytes)) => Source::Bytes(bytes),
            Some(content) => {
                let left = content.len();
                Source::Reader { reader: content.into_reader(), left, chunk: Chunk::new() }
            }
        };
        ResponseBody(source)
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, BodyError>>> {
        match &mut self.0 {
            Source::Bytes(bytes) if bytes.is_empty() => Poll::Ready(None),
            Source::Bytes(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Source::Reader { left: 0, .. } => Poll::Ready(None),
            Source::Reader { reader, left, chunk } => {
                Poll::Ready(Some(next_piece(reader, left, chunk).map(Frame::data).inspect_err(|error| {
                    // The head is sent: all that is left is to end the connection early.
                    tracing::warn!(%error, "an object could not be read to its end");
                })))
            }
            Source::Document(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Source::Bytes(bytes) => bytes.is_empty(),
            Source::Reader { left, .. } => *left == 0,
            Source::Document(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Source::Bytes(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Source::Reader { left, .. } => SizeHint::with_exact(*left),
            Source::Document(body) => body.size_hint(),
        }
    }
}

thread_local! {
    static SPARE_CHUNKS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// [`CHUNK_BYTES`] of memory that go back to their thread's stock, whoever drops them last.
struct Chunk(Vec<u8>);

impl Chunk {
    fn new() -> Arc<Self> {
        let spare = SPARE_CHUNKS.with_borrow_mut(Vec::pop);
        Arc::new(Chunk(spare.unwrap_or_else(|| vec![0; CHUNK_BYTES])))
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.0);
        let keep = |spare: &RefCell<Vec<Vec<u8>>>| {
            let mut spare = spare.borrow_mut();
            if spare.len() < SPARE_CHUNKS_MAX {
                spare.push(memory);
            }
        };
        // At the end of a thread its stock may be gone already; the memory is simply freed then.
        let _ = SPARE_CHUNKS.try_with(keep);
    }
}

/// The filled part of a chunk, as the transport holds it.
struct Filled(Arc<Chunk>, usize);

impl AsRef<[u8]> for Filled {
    fn as_ref(&self) -> &[u8] {
        &self.0.0[..self.1]
    }
}

/// The next piece of at most `left` bytes, which is reduced by what was read. `chunk` is replaced
/// while the transport still holds it.
fn next_piece(
    reader: &mut dyn Read,
    left: &mut u64,
    chunk: &mut Arc<Chunk>,
) -> std::result::Result<Bytes, BodyError> {
    if Arc::get_mut(chunk).is_none() {
        *chunk = Chunk::new();
    }
    let Some(Chunk(memory)) = Arc::get_mut(chunk) else { return Err("a new chunk is in use".into()) };
    let wanted = CHUNK_BYTES.min(usize::try_from(*left).unwrap_or(CHUNK_BYTES));
    let got = reader.read(&mut memory[..wanted])?;
    if got == 0 {
        return Err(format!("the content ended {left} bytes early").into());
    }
    *left -= got as u64;
    Ok(Bytes::from_owner(Filled(chunk.clone(), got)))
}

/// Said by a body that stopped arriving; the S3 operation recognises it.
pub(crate) const STALLED: &str = "the client stopped sending in the middle of the body";

/// The body of a request, which fails once nothing has arrived for too long.
pub(crate) struct RequestBody {
    incoming: Incoming,
    stall_timeout: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl RequestBody {
    /// The body as the S3 layer takes it.
    pub(crate) fn wrap(incoming: Incoming, stall_timeout: Duration) -> s3s::Body {
        if incoming.is_end_stream() {
            return s3s::Body::empty();
        }
        s3s::Body::http_body_unsync(RequestBody { incoming, stall_timeout, stalled: None })
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, BodyError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.incoming).poll_frame(context) {
            self.stalled = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let timeout = self.stall_timeout;
        let timer = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        ready!(timer.as_mut().poll(context));
        Poll::Ready(Some(Err(STALLED.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Write as _;

    use fordway_store::FileRegion;

    use super::*;

    fn region(len: usize) -> (FileRegion, Vec<u8>) {
        let data: Vec<u8> = (0..len + 7).map(|i| (i / 3) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&data).unwrap();
        (FileRegion { file, offset: 7, len: len as u64 }, data[7..].to_vec())
    }

    /// The pieces that a transport sees; each is dropped before the next is asked for.
    fn pieces(mut body: ResponseBody) -> std::result::Result<(Vec<usize>, Vec<u8>), BodyError> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (mut sizes, mut all) = (Vec::new(), Vec::new());
        runtime.block_on(async {
            while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
                let data = frame?.into_data().unwrap_or_default();
                sizes.push(data.len());
                all.extend_from_slice(&data);
            }
            Ok((sizes, all))
        })
    }

    #[test]
    fn a_small_file_is_one_piece_and_a_large_one_several() {
        for (len, count) in
            [(0, 0), (1, 1), (INLINE_BYTES as usize, 1), (CHUNK_BYTES, 1), (CHUNK_BYTES * 2 + 1, 3)]
        {
            let (region, data) = region(len);
            let body = ResponseBody::content(Payload::new(Content::File(region)).unwrap());
            assert_eq!(body.size_hint().exact(), Some(len as u64));
            let (sizes, all) = pieces(body).unwrap();
            assert_eq!(sizes.len(), count, "{len}");
            assert!(all == data);
        }
    }

    #[test]
    fn a_file_that_shrank_is_an_error_and_never_padded() {
        let (mut region, _) = region(CHUNK_BYTES);
        region.len += 1;
        assert!(pieces(ResponseBody::content(Payload::new(Content::File(region)).unwrap())).is_err());
        let (mut small, _) = self::region(10);
        small.len += 1;
        assert!(Payload::new(Content::File(small)).is_err());
    }

    #[test]
    fn chunks_are_used_again_but_not_while_they_are_held() {
        let mut reader: Box<dyn Read + Send> = Box::new(std::io::repeat(1));
        let (mut left, mut chunk) = (u64::MAX, Chunk::new());
        let first = next_piece(&mut reader, &mut left, &mut chunk).unwrap();
        let second = next_piece(&mut reader, &mut left, &mut chunk).unwrap();
        assert_ne!(first.as_ptr(), second.as_ptr());
        let memory = first.as_ptr();
        drop(first);
        let held = second.clone();
        drop(second);
        let third = next_piece(&mut reader, &mut left, &mut chunk).unwrap();
        assert_eq!(third.as_ptr(), memory);
        assert!(held.iter().all(|byte| *byte == 1));
    }
}
