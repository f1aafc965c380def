//! HTTP/2 without sockets: the client's library and the gateway's talk through a pipe in memory.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use fordway_store::Result;
use fordway_workload::ledger::Rung;
use h2::client::SendRequest;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf};
use tokio::runtime::{Builder, Runtime};

use super::request::{S3Request, fields};
use super::{Contents, failed, same};

/// What the gateway reads of a file, and hands on, at a time.
pub(in super::super) const PIECE_BYTES: usize = 64 << 10;
/// What the gateway keeps of an answer that is not taken yet; so much is in the pipe too.
const SEND_BUFFER_BYTES: usize = 256 << 10;
/// The client's windows and frames.
const WINDOW_BYTES: u32 = 8 << 20;
const FRAME_BYTES_MAX: u32 = 256 << 10;
/// Never reached; the client has such a limit, and it costs time to set.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Writing and reading the frames of a request and its answer, content included, by both libraries. The heads
/// are compressed with what both sides remember of those before.
pub(in super::super) struct Http2Frames {
    runtime: Runtime,
    send: SendRequest<Bytes>,
    request: S3Request,
    asked: Vec<(HeaderName, HeaderValue)>,
    answer: Arc<Mutex<Answer>>,
    contents: Contents,
    received: Vec<u8>,
    /// Bytes that went through the pipe, there and back.
    asked_bytes: Arc<AtomicU64>,
    answered_bytes: Arc<AtomicU64>,
}

/// What the server answers.
#[derive(Clone, Default)]
struct Answer {
    headers: HeaderMap,
    content: Bytes,
}

impl Http2Frames {
    pub(in super::super) fn new(request: &S3Request, contents: &Contents) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_time().build().map_err(failed)?;
        let (near, far) = tokio::io::duplex(SEND_BUFFER_BYTES);
        let (near, far) = (Counted::new(near), Counted::new(far));
        let (asked_bytes, answered_bytes) = (near.written.clone(), far.written.clone());
        let answer = Arc::new(Mutex::new(Answer::default()));
        runtime.spawn(serve(far, answer.clone()));
        let send = runtime.block_on(connect(near))?;
        let (request, contents) = (request.clone(), contents.clone());
        let (asked, received) = (Vec::new(), Vec::new());
        Ok(Http2Frames {
            runtime,
            send,
            request,
            asked,
            answer,
            contents,
            received,
            asked_bytes,
            answered_bytes,
        })
    }

    /// The lengths of the request and of the answer with its content, in bytes, heads being compressed.
    pub(in super::super) fn lengths(&mut self, size_bytes: u64) -> Result<(usize, usize)> {
        self.prepare(size_bytes)?;
        // From the second time on both sides remember the heads.
        self.run()?;
        let before = [&self.asked_bytes, &self.answered_bytes].map(|count| count.load(Ordering::Relaxed));
        self.run()?;
        let after = [&self.asked_bytes, &self.answered_bytes].map(|count| count.load(Ordering::Relaxed));
        Ok(((after[0] - before[0]) as usize, (after[1] - before[1]) as usize))
    }

    /// Has both sides move until `work` is done, with the limit that the client has.
    fn drive<T>(&self, work: impl Future<Output = Result<T, h2::Error>>) -> Result<T> {
        let limited = async { tokio::time::timeout(TIMEOUT, work).await };
        self.runtime.block_on(limited).map_err(failed)?.map_err(failed)
    }
}

impl Rung for Http2Frames {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        let heads = self.request.heads(size_bytes)?;
        let is_carried = |(name, _): &(String, String)| name != "connection" && name != "host";
        let header = |(name, value): (String, String)| {
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(failed)?;
            Ok((name, HeaderValue::try_from(value).map_err(failed)?))
        };
        let asked = fields(&heads.asked).into_iter().filter(is_carried).map(header);
        self.asked = asked.collect::<Result<_>>()?;
        let headers = fields(&heads.answered).into_iter().filter(is_carried).map(header);
        let headers = headers.collect::<Result<HeaderMap>>()?;
        let content = self.contents.share(size_bytes);
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Answer { headers, content };
        self.received.resize(size_bytes as usize, 0);
        Ok(())
    }

    /// Three times, as the client: it sends the request, waits for the head, and takes the content.
    fn run(&mut self) -> Result<()> {
        let mut request = Request::builder().uri("http://127.0.0.1:9000/ledger/object");
        for (name, value) in &self.asked {
            request = request.header(name, value);
        }
        let request = request.body(()).map_err(failed)?;
        let send = self.send.clone();
        let (answer, _) = self.drive(async { send.ready().await?.send_request(request, true) })?;
        let mut content = self.drive(answer)?.into_body();
        let mut received = std::mem::take(&mut self.received);
        received.clear();
        self.drive(async {
            while let Some(piece) = content.data().await {
                let piece = piece?;
                content.flow_control().release_capacity(piece.len())?;
                received.extend_from_slice(&piece);
            }
            Ok(())
        })?;
        self.received = received;
        Ok(())
    }

    fn check(&self) -> Result<()> {
        same(&self.received, self.contents.of(self.received.len() as u64))
    }
}

/// The client's side of a connection.
async fn connect(pipe: Counted) -> Result<SendRequest<Bytes>> {
    let (send, connection) = h2::client::Builder::new()
        .initial_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .enable_push(false)
        .handshake(pipe)
        .await
        .map_err(failed)?;
    tokio::spawn(async move {
        // Requests on it learn of its end by themselves.
        let _ = connection.await;
    });
    Ok(send)
}

/// The gateway's side.
async fn serve(pipe: Counted, answer: Arc<Mutex<Answer>>) {
    let service = service_fn(move |_: Request<Incoming>| {
        let Answer { headers, content } = answer.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut response = Response::new(Pieces(content));
        *response.headers_mut() = headers;
        async { Ok::<_, Infallible>(response) }
    });
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).max_send_buf_size(SEND_BUFFER_BYTES);
    // The client learns of its end by itself.
    let _ = builder.serve_connection(TokioIo::new(pipe), service).await;
}

/// Content that comes in pieces, as files do.
struct Pieces(Bytes);

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let count = self.0.len().min(PIECE_BYTES);
        Poll::Ready((count > 0).then(|| Ok(Frame::data(self.0.split_to(count)))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

/// The pipe alone: as many bytes through it as a request and its answer have, one end after the other.
pub(in super::super) struct Pipe {
    runtime: Runtime,
    near: DuplexStream,
    far: DuplexStream,
    frames: Http2Frames,
    lengths: (usize, usize),
    room: Vec<u8>,
}

impl Pipe {
    /// For the messages of `frames`.
    pub(in super::super) fn new(frames: Http2Frames) -> Result<Self> {
        let runtime = Builder::new_current_thread().build().map_err(failed)?;
        let (near, far) = tokio::io::duplex(SEND_BUFFER_BYTES);
        Ok(Pipe { runtime, near, far, frames, lengths: (0, 0), room: vec![0; PIECE_BYTES] })
    }
}

impl Rung for Pipe {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.lengths = self.frames.lengths(size_bytes)?;
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let Pipe { runtime, near, far, frames, lengths: (asked, answered), room } = self;
        let content = &frames.received;
        let done = runtime.block_on(async {
            far.write_all(&room[..*asked]).await?;
            near.read_exact(&mut room[..*asked]).await?;
            let mut left = *answered;
            for piece in content.chunks(PIECE_BYTES) {
                far.write_all(piece).await?;
                near.read_exact(&mut room[..piece.len()]).await?;
                left -= piece.len();
            }
            far.write_all(&room[..left]).await?;
            near.read_exact(&mut room[..left]).await.map(drop)
        });
        done.map_err(failed)
    }
}

/// An end of the pipe that counts what is written to it.
struct Counted {
    pipe: DuplexStream,
    written: Arc<AtomicU64>,
}

impl Counted {
    fn new(pipe: DuplexStream) -> Self {
        Counted { pipe, written: Arc::default() }
    }

    fn count(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(count)) = &written {
            self.written.fetch_add(*count as u64, Ordering::Relaxed);
        }
        written
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_read(context, room)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.pipe).poll_write(context, data);
        self.count(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.pipe).poll_write_vectored(context, pieces);
        self.count(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.pipe.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(context)
    }
}
