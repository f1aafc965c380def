//! HTTP/1.1 on one socket: time limits, the access log, and the step from S3's answers to bytes.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use http::header::{CONTENT_RANGE, CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use s3s::service::S3Service;
use tokio::net::TcpStream;
use tokio::time::Sleep;

use crate::body::{Payload, RequestBody, ResponseBody};
use crate::gateway::Stopped;
use crate::identity;

/// The most bytes a request's head may have, and that one read takes from the socket.
const READ_BUFFER_BYTES: usize = 128 * 1024;

/// Time limits of a connection.
pub(crate) struct Limits {
    /// For a request's head.
    pub(crate) header_timeout: Duration,
    /// Between two pieces of a body, in either direction.
    pub(crate) stall_timeout: Duration,
}

/// What all connections of a gateway share.
pub(crate) struct Shared {
    pub(crate) service: S3Service,
    pub(crate) region: String,
    pub(crate) limits: Limits,
}

/// Serves one connection until it ends, or until `stopped` and its request in progress is answered.
pub(crate) async fn serve(socket: std::net::TcpStream, shared: &Shared, mut stopped: Stopped) {
    let stream = match TcpStream::from_std(socket) {
        Ok(stream) => PatientStream::new(stream, shared.limits.stall_timeout),
        Err(error) => return tracing::warn!(%error, "cannot serve a connection"),
    };
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(shared.limits.header_timeout)
            .max_buf_size(READ_BUFFER_BYTES)
            .serve_connection(stream, service_fn(|request| answer(shared, request)))
    );
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = stopped.wait() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Answers a request; what goes wrong is part of the answer.
async fn answer(shared: &Shared, request: Request<Incoming>) -> Result<Response<ResponseBody>, Infallible> {
    let log = AccessLog::start(&request);
    if identity::signs_for_no_region(request.headers()) {
        return Ok(other_region(&shared.region));
    }
    let stall_timeout = shared.limits.stall_timeout;
    let request = request.map(|body| RequestBody::wrap(body, stall_timeout));
    let response = match shared.service.call(request).await {
        Ok(response) => with_payload(response),
        Err(error) => {
            tracing::error!(?error, "an answer could not be written as S3 has it");
            status_only(StatusCode::INTERNAL_SERVER_ERROR)
        }
    };
    if let Some(log) = log {
        log.finish(&response);
    }
    Ok(response)
}

/// Puts an object's content in place of the empty body that goes with it through the S3 layer.
fn with_payload(response: Response<s3s::Body>) -> Response<ResponseBody> {
    let (mut parts, body) = response.into_parts();
    if parts.status == StatusCode::OK && parts.headers.contains_key(CONTENT_RANGE) {
        // The S3 layer sees to that for GET, but not for HEAD.
        parts.status = StatusCode::PARTIAL_CONTENT;
    }
    let body = match parts.extensions.remove::<Payload>() {
        Some(payload) => ResponseBody::content(payload),
        None if parts.status == StatusCode::NOT_MODIFIED => ResponseBody::empty(),
        None => ResponseBody::document(body),
    };
    Response::from_parts(parts, body)
}

/// What S3 answers to a signature for another region; the client repeats its request for this one.
fn other_region(region: &str) -> Response<ResponseBody> {
    let document = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>AuthorizationHeaderMalformed</Code>\
         <Message>the signature's region is wrong; sign for {region}</Message><Region>{region}</Region></Error>"
    );
    let mut response = Response::new(ResponseBody::document(document.into()));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    response
}

fn status_only(status: StatusCode) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::empty());
    *response.status_mut() = status;
    response
}

/// One line of the access log, made only where somebody listens.
struct AccessLog {
    method: http::Method,
    path: String,
    start: Instant,
}

impl AccessLog {
    fn start(request: &Request<Incoming>) -> Option<Self> {
        tracing::enabled!(target: "fordway::access", tracing::Level::DEBUG).then(|| AccessLog {
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            start: Instant::now(),
        })
    }

    /// `us` is the time until the answer's head was ready; its body is sent after that.
    fn finish(self, response: &Response<ResponseBody>) {
        tracing::debug!(
            target: "fordway::access",
            method = %self.method,
            path = self.path,
            status = response.status().as_u16(),
            bytes = http_body::Body::size_hint(response.body()).exact(),
            us = self.start.elapsed().as_micros(),
        );
    }
}

/// A socket on which a write fails once the other side has taken nothing for too long.
struct PatientStream {
    stream: TokioIo<TcpStream>,
    stall_timeout: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl PatientStream {
    fn new(stream: TcpStream, stall_timeout: Duration) -> Self {
        PatientStream { stream: TokioIo::new(stream), stall_timeout, stalled: None }
    }

    /// Starts the clock when a write has to wait, and stops it when one goes through.
    fn timed<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut TokioIo<TcpStream>>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(written) = write(Pin::new(&mut self.stream), context) {
            self.stalled = None;
            return Poll::Ready(written);
        }
        let timeout = self.stall_timeout;
        let timer = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        ready!(timer.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes no data")))
    }
}

impl Read for PatientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl Write for PatientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.timed(context, |stream, context| stream.poll_write(context, data))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.timed(context, |stream, context| stream.poll_write_vectored(context, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
