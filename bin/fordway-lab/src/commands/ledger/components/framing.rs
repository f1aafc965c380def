//! Framing of content, without sockets: HTTP/2 frames, TLS records, and frames of the node lane. HTTP/2 frames pass
//! through a pipe in memory between the client's and the gateway's libraries. TLS records are encrypted by one end of a
//! connection and decrypted by the other end.

use std::borrow::Cow;
use std::convert::Infallible;
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use fordway_store::{
    Bucket, ETag, ErrorKind, ExpectedContent, GetOptions, Key, PutOptions, PutResult, Result,
};
use fordway_wire::node::{
    self, CommitResponse, ContentTransferMethod, FrameBuffer, FrameHeader, NodeResponse, ReadResponse,
    ResponseFlags, take_reply,
};
use fordway_workload::ledger::LedgerComponent;
use h2::client::SendRequest;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf};
use tokio::runtime::{Builder, Runtime};

use super::handshake::{TlsConnectionPair, TlsEndpointConfigs};
use super::request::{S3RequestTemplate, fields};
use super::{NonrepeatingContent, ObjectOperation, failed, same};

/// The number of bytes that the gateway reads from a file and sends at a time.
pub(in crate::commands::ledger) const PIECE_BYTES: usize = 64 << 10;
/// The number of response bytes that the gateway buffers until the client reads them; also the capacity of the pipe.
const SEND_BUFFER_BYTES: usize = 256 << 10;
/// The size of the client's flow-control windows.
const WINDOW_BYTES: u32 = 8 << 20;
/// The maximum size of a frame that the client accepts.
const FRAME_BYTES_MAX: u32 = 256 << 10;
/// A time limit that is never reached. The real client sets a time limit, and setting a limit takes time. Therefore,
/// the component also sets a limit.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Writes and reads the frames of a request and its response, including the content, with the libraries of the client
/// and the gateway. All requests use the same connection, because HPACK compresses a head by referring to earlier
/// heads.
pub(in crate::commands::ledger) struct Http2FramingComponent {
    runtime: Runtime,
    send: SendRequest<Bytes>,
    request: S3RequestTemplate,
    asked: Vec<(HeaderName, HeaderValue)>,
    answer: Arc<Mutex<ServerResponse>>,
    contents: NonrepeatingContent,
    received: Vec<u8>,
    /// The number of bytes sent to the server.
    asked_bytes: Arc<AtomicU64>,
    /// The number of bytes sent to the client.
    answered_bytes: Arc<AtomicU64>,
}

/// The headers and the content of the server's next response.
#[derive(Clone, Default)]
struct ServerResponse {
    headers: HeaderMap,
    content: Bytes,
}

impl Http2FramingComponent {
    pub(in crate::commands::ledger) fn new(
        request: &S3RequestTemplate,
        contents: &NonrepeatingContent,
    ) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_time().build().map_err(failed)?;
        let (near, far) = tokio::io::duplex(SEND_BUFFER_BYTES);
        let (near, far) = (ByteCountingPipe::new(near), ByteCountingPipe::new(far));
        let (asked_bytes, answered_bytes) = (near.written.clone(), far.written.clone());
        let answer = Arc::new(Mutex::new(ServerResponse::default()));
        runtime.spawn(serve(far, answer.clone()));
        let send = runtime.block_on(connect(near))?;
        let (request, contents) = (request.clone(), contents.clone());
        let (asked, received) = (Vec::new(), Vec::new());
        Ok(Http2FramingComponent {
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

    /// Returns the lengths, in bytes, of the request and of the response with its content. The heads are compressed.
    pub(in crate::commands::ledger) fn lengths(&mut self, size_bytes: u64) -> Result<(usize, usize)> {
        self.prepare(size_bytes)?;
        // In the first request, both sides store the heads, which shortens later heads. Therefore, measure the lengths
        // of the second request.
        self.run()?;
        let before = [&self.asked_bytes, &self.answered_bytes].map(|count| count.load(Ordering::Relaxed));
        self.run()?;
        let after = [&self.asked_bytes, &self.answered_bytes].map(|count| count.load(Ordering::Relaxed));
        Ok(((after[0] - before[0]) as usize, (after[1] - before[1]) as usize))
    }

    /// Runs the event loop, with the client's and the gateway's side, until `work` is done. Errors: `Internal` if
    /// `work` fails or exceeds the time limit.
    fn drive<T>(&self, work: impl Future<Output = Result<T, h2::Error>>) -> Result<T> {
        let limited = async { tokio::time::timeout(TIMEOUT, work).await };
        self.runtime.block_on(limited).map_err(failed)?.map_err(failed)
    }
}

impl LedgerComponent for Http2FramingComponent {
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
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = ServerResponse { headers, content };
        self.received.resize(size_bytes as usize, 0);
        Ok(())
    }

    /// Enters the event loop three times, as the client does: to send the request, to wait for the head, and to receive
    /// the content.
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

/// Opens the client's side of a connection.
async fn connect(pipe: ByteCountingPipe) -> Result<SendRequest<Bytes>> {
    let (send, connection) = h2::client::Builder::new()
        .initial_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .enable_push(false)
        .handshake(pipe)
        .await
        .map_err(failed)?;
    tokio::spawn(async move {
        // If the connection fails, its requests fail too and report the error.
        let _ = connection.await;
    });
    Ok(send)
}

/// Runs the gateway's side of a connection.
async fn serve(pipe: ByteCountingPipe, answer: Arc<Mutex<ServerResponse>>) {
    let service = service_fn(move |_: Request<Incoming>| {
        let ServerResponse { headers, content } =
            answer.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut response = Response::new(PiecewiseBody(content));
        *response.headers_mut() = headers;
        async { Ok::<_, Infallible>(response) }
    });
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).max_send_buf_size(SEND_BUFFER_BYTES);
    // If the connection fails, the client reports the error.
    let _ = builder.serve_connection(TokioIo::new(pipe), service).await;
}

/// A body that yields its content in pieces, like a body that is read from a file.
struct PiecewiseBody(Bytes);

impl Body for PiecewiseBody {
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

/// Uses only the pipe: writes as many bytes as a request and its response have, and reads these bytes from the other
/// end of the pipe.
pub(in crate::commands::ledger) struct MemoryPipeComponent {
    runtime: Runtime,
    near: DuplexStream,
    far: DuplexStream,
    frames: Http2FramingComponent,
    lengths: (usize, usize),
    room: Vec<u8>,
}

impl MemoryPipeComponent {
    /// Creates a pipe for the messages of `frames`.
    pub(in crate::commands::ledger) fn new(frames: Http2FramingComponent) -> Result<Self> {
        let runtime = Builder::new_current_thread().build().map_err(failed)?;
        let (near, far) = tokio::io::duplex(SEND_BUFFER_BYTES);
        Ok(MemoryPipeComponent { runtime, near, far, frames, lengths: (0, 0), room: vec![0; PIECE_BYTES] })
    }
}

impl LedgerComponent for MemoryPipeComponent {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.lengths = self.frames.lengths(size_bytes)?;
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let MemoryPipeComponent { runtime, near, far, frames, lengths: (asked, answered), room } = self;
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

/// An end of the pipe that counts the bytes written to it.
struct ByteCountingPipe {
    pipe: DuplexStream,
    written: Arc<AtomicU64>,
}

impl ByteCountingPipe {
    fn new(pipe: DuplexStream) -> Self {
        ByteCountingPipe { pipe, written: Arc::default() }
    }

    fn count(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(count)) = &written {
            self.written.fetch_add(*count as u64, Ordering::Relaxed);
        }
        written
    }
}

impl AsyncRead for ByteCountingPipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_read(context, room)
    }
}

impl AsyncWrite for ByteCountingPipe {
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

/// The number of bytes that this component passes to TLS at a time, as the gateway does.
const TLS_PIECE_BYTES: usize = 256 << 10;

/// Both ends of a TLS session after the handshake.
pub(in crate::commands::ledger) struct TlsRecordComponent {
    session: TlsConnectionPair,
    contents: NonrepeatingContent,
    sealed: Vec<u8>,
    opened: Vec<u8>,
}

impl TlsRecordComponent {
    pub(in crate::commands::ledger) fn new(contents: &NonrepeatingContent) -> Result<Self> {
        let mut session = TlsEndpointConfigs::make()?.session()?;
        session.server.set_buffer_limit(None);
        let contents = contents.clone();
        Ok(TlsRecordComponent { session, contents, sealed: Vec::new(), opened: Vec::new() })
    }
}

impl LedgerComponent for TlsRecordComponent {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.opened.resize(size_bytes as usize, 0);
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let TlsConnectionPair { client, server } = &mut self.session;
        let mut done = 0;
        for piece in self.contents.of(self.opened.len() as u64).chunks(TLS_PIECE_BYTES) {
            self.sealed.clear();
            server.writer().write_all(piece).map_err(failed)?;
            while server.wants_write() {
                server.write_tls(&mut self.sealed).map_err(failed)?;
            }
            let mut rest = self.sealed.as_slice();
            while !rest.is_empty() {
                client.read_tls(&mut rest).map_err(failed)?;
                let ready = client.process_new_packets().map_err(failed)?.plaintext_bytes_to_read();
                client.reader().read_exact(&mut self.opened[done..done + ready]).map_err(failed)?;
                done += ready;
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        same(&self.opened, self.contents.of(self.opened.len() as u64))
    }
}

/// The maximum size of an object that a put sends in one message, in bytes. The client writes larger content to a file
/// that the gateway provides.
pub(in crate::commands::ledger) const WHOLE_BYTES_MAX: u64 = 128 << 10;

/// Writes and reads the frames of an operation on the node lane. This component does the work of the client and of the
/// gateway, without the socket and the content.
pub(in crate::commands::ledger) struct NodeFramingComponent {
    operation: ObjectOperation,
    bucket: Bucket,
    key: Key,
    read: GetOptions,
    write: PutOptions,
    expected: ExpectedContent,
    made: CommitResponse,
    size_bytes: u64,
    out: Vec<u8>,
    inbox: FrameBuffer,
}

impl NodeFramingComponent {
    pub(in crate::commands::ledger) fn new(operation: ObjectOperation, bucket: &Bucket) -> Result<Self> {
        let etag = ETag::opaque(u128::MAX);
        let made = PutResult { etag, modified: UNIX_EPOCH, checksum: None, version: None };
        Ok(NodeFramingComponent {
            operation,
            bucket: bucket.clone(),
            key: Key::new(operation.name(0))?,
            read: GetOptions::default(),
            write: PutOptions::default(),
            expected: ExpectedContent::default(),
            made: CommitResponse { made, has_spare: true },
            size_bytes: 0,
            out: Vec::new(),
            inbox: FrameBuffer::default(),
        })
    }

    /// Returns the lengths of the request and of the response without their bodies, in bytes.
    pub(in crate::commands::ledger) fn lengths(&mut self, size_bytes: u64) -> Result<(usize, usize)> {
        self.prepare(size_bytes)?;
        self.put_request();
        let request_bytes = self.out.len();
        self.put_reply();
        Ok((request_bytes, self.out.len()))
    }

    fn is_whole(&self) -> bool {
        self.size_bytes <= WHOLE_BYTES_MAX
    }

    fn put_request(&mut self) {
        self.out.clear();
        let (bucket, key) = (Cow::Borrowed(&self.bucket), Cow::Borrowed(&self.key));
        let options = Cow::Borrowed(&self.write);
        let request = match self.operation {
            ObjectOperation::Get => {
                node::Request::Read { bucket, key, options: Cow::Borrowed(&self.read), is_large: false }
            }
            ObjectOperation::Put if self.is_whole() => {
                node::Request::Put { bucket, key, options, expected: Cow::Borrowed(&self.expected) }
            }
            ObjectOperation::Put => {
                node::Request::PutSpare { bucket, key, options, filled: self.size_bytes, core: 0 }
            }
        };
        request.put(&mut self.out, 1, 0);
    }

    fn put_reply(&mut self) {
        self.out.clear();
        let flags = ResponseFlags::default();
        match self.operation {
            ObjectOperation::Get => {
                let sent = ContentTransferMethod::Descriptor(0, self.size_bytes);
                let answer = ReadResponse { size: self.size_bytes, sent };
                NodeResponse { id: 1, flags, answer: Ok(&answer), body_bytes: 0 }.put(&mut self.out);
            }
            ObjectOperation::Put if self.is_whole() => {
                NodeResponse { id: 1, flags, answer: Ok(&self.made.made), body_bytes: 0 }.put(&mut self.out);
            }
            ObjectOperation::Put => {
                let answer = Some(self.made.clone());
                NodeResponse { id: 1, flags, answer: Ok(&answer), body_bytes: 0 }.put(&mut self.out);
            }
        }
    }

    /// Passes the bytes that one side has written to the other side, which reads them.
    fn arrive(&mut self) -> Result<FrameHeader> {
        let room = self.inbox.room();
        room[..self.out.len()].copy_from_slice(&self.out);
        self.inbox.filled(self.out.len());
        self.inbox.next_header()?.ok_or_else(|| ErrorKind::Internal.into())
    }

    fn take_request(&mut self) -> Result<()> {
        let header = self.arrive()?;
        let frame = self.inbox.frame(&header).ok_or(ErrorKind::Internal)?;
        black_box(node::Request::take(header.code, frame.fields)?);
        self.inbox.consume(header.frame_bytes());
        Ok(())
    }

    fn take_reply(&mut self) -> Result<()> {
        let header = self.arrive()?;
        let frame = self.inbox.frame(&header).ok_or(ErrorKind::Internal)?;
        match self.operation {
            ObjectOperation::Get => drop(black_box(take_reply::<ReadResponse>(&frame)?)),
            ObjectOperation::Put if self.is_whole() => drop(black_box(take_reply::<PutResult>(&frame)?)),
            ObjectOperation::Put => drop(black_box(take_reply::<Option<CommitResponse>>(&frame)?)),
        }
        self.inbox.consume(header.frame_bytes());
        Ok(())
    }
}

impl LedgerComponent for NodeFramingComponent {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.key = Key::new(self.operation.name(size_bytes))?;
        self.size_bytes = size_bytes;
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        self.put_request();
        self.take_request()?;
        self.put_reply();
        self.take_reply()
    }
}
