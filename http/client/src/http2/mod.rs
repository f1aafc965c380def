//! HTTP/2 (RFC 9113): many concurrent requests on one connection. For callers written for HTTP/1.1, the connection is
//! also a transport that accepts requests and returns responses in HTTP/1.1 form (RFC 9113 section 8).
//!
//! A connection has neither a runtime nor a thread of its own. A connection progresses only while a caller drives it in
//! the caller's thread. Calls that carry a single request block; all other calls do not.

mod wire;

use std::future::{Future, poll_fn};
use std::io::{self, Read};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes};
use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::ProcessIdentity;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{Response, StatusCode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::wire::{Http2Socket, SocketFlowLimiter, SocketTransport};
use super::carrier::TcpOrTlsStream;
use super::heads::{head_of_response, request_of_head};
use super::socket::TcpSocket;
use super::tls::TlsConnector;
use super::{Origin, Timeouts};

/// The flow-control window, per request and per connection. The window is as large as the read-ahead of one file, so
/// that the server never waits for the client. The window uses no memory, because data is either consumed immediately
/// or waits in the socket buffer.
const WINDOW_BYTES: u32 = 64 << 20;
/// The maximum size of a data frame.
const FRAME_BYTES_MAX: u32 = 256 << 10;
/// The maximum number of body bytes handed to the HTTP/2 library at a time.
const PIECE_BYTES: usize = 256 << 10;
/// The maximum number of bytes that a turn receives before it processes them.
const TURN_BYTES: usize = 256 << 10;
/// The number of concurrent streams allowed until the server sends its limit (RFC 9113 section 6.5.2 recommends at
/// least this number).
const STREAMS: usize = 100;
/// The maximum number of cancelled streams whose bytes may still be in flight.
const RESET_STREAMS_MAX: usize = 1024;

/// An HTTP/2 connection. After a fork, only the process that opened the connection can use it.
pub(super) struct Http2Connection {
    connection: h2::client::Connection<Http2Socket, Bytes>,
    send: SendRequest<Bytes>,
    gauge: Arc<SocketFlowLimiter>,
    /// How the connection ended; `None` while it is open.
    end: Option<io::Error>,
    opened_by: ProcessIdentity,
    is_tls: bool,
    timeout: Duration,
    exchange: Http2ExchangeState,
    /// A second handle to the socket, for waiting on it and for querying the kernel.
    pub(super) socket: TcpSocket,
}

/// The state of a single request and its response.
#[derive(Default)]
enum Http2ExchangeState {
    #[default]
    Idle,
    /// The body of the request is being sent; the number is its remaining size, if known.
    Sending(SendStream<Bytes>, Option<u64>, ResponseFuture),
    Waiting(ResponseFuture),
    /// A response is being received: the unread part of the head as text, or the current piece of the body.
    Receiving(Bytes, RecvStream),
}

/// Whether the time limit of a call restarts with each byte that is sent or received.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TimeLimitRenewal {
    /// The limit does not restart, so a server whose response is due cannot extend the limit by sending other frames.
    Fixed,
    /// The limit restarts, because a body is being transferred.
    Renewed,
}

impl Http2Connection {
    /// Starts HTTP/2 on a new `carrier`, by prior knowledge or through TLS with ALPN. Errors: `Unavailable`, `Timeout`,
    /// `InvalidArgument`; `BadResponse` if the server does not support HTTP/2.
    pub(super) fn connect(
        origin: &Origin,
        carrier: TcpOrTlsStream,
        timeouts: &Timeouts,
        tls: &TlsConnector,
    ) -> Result<Self> {
        let unreachable = |error: io::Error| {
            Error::new(ErrorKind::Unavailable, format!("no HTTP/2 with {origin}")).caused_by(error)
        };
        let shared = carrier.tcp().share().map_err(unreachable)?;
        let transport = match origin.tls {
            false => SocketTransport::from(carrier),
            true => {
                let stream = tls.start(origin, carrier)?;
                if stream.conn.alpn_protocol() != Some(b"h2") {
                    let detail = format!("{origin} does not support HTTP/2; use HTTP/1.1");
                    return Err(Error::new(ErrorKind::BadResponse, detail));
                }
                SocketTransport::Tls(Box::new(stream))
            }
        };
        let gauge = Arc::new(SocketFlowLimiter::default());
        // The handshake only sends data, which fits into the send buffer of a new socket.
        let (send, connection) =
            match pin!(handshake(Http2Socket::new(transport, gauge.clone()))).poll(&mut looking()) {
                Poll::Ready(begun) => begun.map_err(unreachable)?,
                Poll::Pending => return Err(unreachable(io::ErrorKind::TimedOut.into())),
            };
        Ok(Http2Connection {
            connection,
            send,
            gauge,
            end: None,
            opened_by: ProcessIdentity::current(),
            is_tls: origin.tls,
            timeout: timeouts.progress,
            exchange: Http2ExchangeState::Idle,
            socket: shared,
        })
    }

    /// Sets how long subsequent calls may block.
    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Returns whether, as far as the client knows, the server accepts another request.
    pub(super) fn is_open(&mut self) -> bool {
        self.exchange = Http2ExchangeState::Idle;
        if !self.opened_by.is_current() {
            return false;
        }
        self.turn();
        self.takes_more()
    }

    /// Sends and receives as much as possible without blocking; returns whether more data may be waiting to be
    /// received.
    pub(super) fn turn(&mut self) -> bool {
        self.move_on(TURN_BYTES);
        self.end.is_none() && self.gauge.is_used_up()
    }

    /// Sends as much as possible without blocking.
    pub(super) fn flush(&mut self) {
        self.move_on(0);
    }

    fn move_on(&mut self, room_bytes: usize) {
        self.gauge.open(room_bytes);
        if self.end.is_some() || !self.opened_by.is_current() {
            return;
        }
        if let Poll::Ready(ended) = Pin::new(&mut self.connection).poll(&mut looking()) {
            let gone = || io::Error::new(io::ErrorKind::ConnectionReset, "the server closed the connection");
            let end = ended.map_or_else(cut, |()| gone());
            self.end = Some(if self.gauge.wants_tls() { wants_tls() } else { end });
        }
    }

    /// Returns the error that ended the connection; `None` while it is open.
    pub(super) fn end(&self) -> Option<&io::Error> {
        self.end.as_ref()
    }

    /// Returns whether another request may be sent: the connection has not ended, and the server has not announced the
    /// end of the connection.
    pub(super) fn takes_more(&mut self) -> bool {
        let is_refused = matches!(self.send.poll_ready(&mut looking()), Poll::Ready(Err(_)));
        self.end.is_none() && !is_refused
    }

    /// Returns the number of concurrent requests that the server accepts.
    pub(super) fn streams_max(&self) -> usize {
        self.send.current_max_send_streams()
    }

    /// Returns whether data is waiting for room in the socket's buffer.
    pub(super) fn has_unsent(&self) -> bool {
        self.gauge.is_blocked()
    }

    /// Returns the number of bytes received since the connection was opened.
    pub(super) fn received_bytes(&self) -> u64 {
        self.gauge.received_bytes()
    }

    /// Begins a request without a body, which the next call of [`Http2Connection::turn`] sends. Returns `None` if the
    /// server currently accepts no more requests. Errors: `ConnectionReset` if the connection fails; `InvalidInput` for
    /// a head that HTTP/2 does not allow.
    pub(super) fn open_stream(&mut self, head: &[u8]) -> io::Result<Option<ResponseFuture>> {
        match self.send.poll_ready(&mut looking()) {
            Poll::Pending => return Ok(None),
            Poll::Ready(ready) => ready.map_err(cut)?,
        }
        let request = request_of_head(head, self.is_tls).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Some(self.send.send_request(request, true).map_err(cut)?.0))
    }

    /// Accepts a whole head, or part of the body that the head announced; returns the number of bytes accepted. Errors:
    /// `TimedOut`; `ConnectionReset` if the connection fails; `InvalidInput` for a head that HTTP/2 does not allow;
    /// `BrokenPipe` if the server has responded before it received the whole body.
    pub(super) fn write(&mut self, head: &[u8], body: &[u8]) -> io::Result<usize> {
        if !head.is_empty() {
            self.start(head, Some(body.len() as u64))?;
            return Ok(head.len());
        }
        let Http2ExchangeState::Sending(mut stream, left, mut response) = std::mem::take(&mut self.exchange)
        else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let wanted = body.len().min(PIECE_BYTES);
        stream.reserve_capacity(wanted);
        let turn = self.drive(
            TimeLimitRenewal::Renewed,
            poll_fn(|context| poll_send(&mut stream, &mut response, context)),
        );
        // Keep `response` even after an error, because the server may respond even though it accepts no more of the
        // body.
        let room = match turn {
            Ok(BodySendEvent::Room(room)) => room.min(wanted),
            Ok(BodySendEvent::Answered(answer)) => {
                self.exchange = receiving(answer);
                return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the server has responded already"));
            }
            Err(error) => {
                self.exchange = Http2ExchangeState::Sending(stream, left, response);
                return Err(error);
            }
        };
        let rest = left.map(|left| left.saturating_sub(room as u64));
        let sent = stream.send_data(Bytes::copy_from_slice(&body[..room]), rest == Some(0)).map_err(cut);
        self.exchange = match (&sent, rest) {
            (Ok(()), Some(0)) => Http2ExchangeState::Waiting(response),
            _ => Http2ExchangeState::Sending(stream, rest, response),
        };
        sent?;
        if rest == Some(0) {
            self.drain()?;
        } else {
            // Check for a response after each piece, even if the server's window is so large that sending never waits.
            self.turn();
        }
        Ok(room)
    }

    /// Sends the head of a request whose body follows in pieces. `body_bytes` is the size of the body, if known.
    pub(super) fn start(&mut self, head: &[u8], body_bytes: Option<u64>) -> io::Result<()> {
        let request = request_of_head(head, self.is_tls).ok_or(io::ErrorKind::InvalidInput)?;
        let (send, has_no_body) = (self.send.clone(), body_bytes == Some(0));
        let (response, stream) = self.drive(TimeLimitRenewal::Renewed, async {
            let mut send = send.ready().await.map_err(cut)?;
            send.send_request(request, has_no_body).map_err(cut)
        })?;
        self.exchange = match has_no_body {
            true => Http2ExchangeState::Waiting(response),
            false => Http2ExchangeState::Sending(stream, body_bytes, response),
        };
        Ok(())
    }

    /// Ends the body of a request that was started without a known size.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        if let Http2ExchangeState::Sending(mut stream, None, response) = std::mem::take(&mut self.exchange) {
            let ended = stream.send_data(Bytes::new(), true).map_err(cut);
            self.exchange = Http2ExchangeState::Waiting(response);
            ended?;
            self.drain()?;
        }
        Ok(())
    }

    /// Waits until the socket has accepted all data, so that the time limit for the response does not begin earlier.
    fn drain(&mut self) -> io::Result<()> {
        self.flush();
        let gauge = self.gauge.clone();
        let is_sent = move || if gauge.is_blocked() { Poll::Pending } else { Poll::Ready(Ok(())) };
        self.drive(TimeLimitRenewal::Renewed, poll_fn(|_| is_sent()))
    }

    /// Waits until the server sends a final response or `100 Continue`. Returns whether it was a final response.
    /// Errors: `TimedOut`, after which the next call continues to wait; `ConnectionReset`.
    pub(super) fn await_word(&mut self) -> io::Result<bool> {
        let mut exchange = std::mem::take(&mut self.exchange);
        let word = match &mut exchange {
            Http2ExchangeState::Sending(_, _, response) | Http2ExchangeState::Waiting(response) => {
                self.drive(TimeLimitRenewal::Fixed, poll_fn(|context| poll_word(response, context)))
            }
            _ => Err(io::ErrorKind::ConnectionReset.into()),
        };
        match word {
            Ok(Some(answer)) => {
                self.exchange = receiving(answer);
                Ok(true)
            }
            word => {
                self.exchange = exchange;
                word.map(|_| false)
            }
        }
    }

    /// Receives part of the response (the head, then the body); returns 0 at the end of the response. Fills all of
    /// `room` if `is_all_wanted` is set. After `TimedOut`, the next call continues to receive.
    fn receive(&mut self, room: &mut [u8], is_all_wanted: bool) -> io::Result<usize> {
        let mut exchange = std::mem::take(&mut self.exchange);
        let received = self.receive_of(&mut exchange, room, is_all_wanted);
        if received.as_ref().map_or_else(|error| error.kind() == io::ErrorKind::TimedOut, |_| true) {
            self.exchange = exchange;
        }
        received
    }

    fn receive_of(
        &mut self,
        exchange: &mut Http2ExchangeState,
        room: &mut [u8],
        is_all_wanted: bool,
    ) -> io::Result<usize> {
        if let Http2ExchangeState::Waiting(response) | Http2ExchangeState::Sending(_, _, response) = exchange
        {
            let answer =
                self.drive(TimeLimitRenewal::Fixed, async { Pin::new(response).await.map_err(cut) })?;
            *exchange = receiving(answer);
        }
        let Http2ExchangeState::Receiving(at_hand, body) = exchange else { return Ok(0) };
        self.drive(TimeLimitRenewal::Renewed, async {
            let mut done = 0;
            while done < room.len() {
                if at_hand.is_empty() {
                    if done > 0 && !is_all_wanted {
                        break;
                    }
                    let Some(piece) = body.data().await else { break };
                    *at_hand = piece.map_err(cut)?;
                    body.flow_control().release_capacity(at_hand.len()).map_err(cut)?;
                    continue;
                }
                let count = at_hand.len().min(room.len() - done);
                at_hand.copy_to_slice(&mut room[done..done + count]);
                done += count;
            }
            Ok(done)
        })
    }

    /// Receives until `room` is full or the body ends.
    pub(super) fn receive_all(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.receive(room, true)
    }

    /// Drives the connection in this thread until `work` is done. Errors: `TimedOut` if there is no progress within the
    /// timeout; the errors of `work`.
    fn drive<T>(
        &mut self,
        patience: TimeLimitRenewal,
        work: impl Future<Output = io::Result<T>>,
    ) -> io::Result<T> {
        let driven = self.drive_to_end(patience, work);
        driven.map_err(|error| if self.gauge.wants_tls() { wants_tls() } else { error })
    }

    fn drive_to_end<T>(
        &mut self,
        patience: TimeLimitRenewal,
        work: impl Future<Output = io::Result<T>>,
    ) -> io::Result<T> {
        if !self.opened_by.is_current() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let mut work = pin!(work);
        let (mut deadline, mut is_still) = (Instant::now() + self.timeout, false);
        loop {
            if let Poll::Ready(done) = work.as_mut().poll(&mut looking()) {
                self.flush();
                return done;
            }
            if self.end.is_some() {
                // The original error has already been reported, and `work` did not cause it.
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            if is_still {
                self.wait_until(deadline)?;
            }
            let (received, sent) = (self.received_bytes(), self.gauge.sent_bytes());
            let has_more = self.turn();
            let has_come = self.received_bytes() > received;
            is_still = !has_come && !has_more && self.end.is_none();
            if patience == TimeLimitRenewal::Renewed && (has_come || self.gauge.sent_bytes() > sent) {
                deadline = Instant::now() + self.timeout;
            }
        }
    }

    /// Waits until the socket is ready. Errors: `TimedOut`.
    fn wait_until(&self, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        let sending = if self.has_unsent() { PollFlags::OUT } else { PollFlags::empty() };
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN | sending)];
        let limit = Timespec::try_from(fordway_sys::wait_at_most(left)).ok();
        match poll(&mut polled, limit.as_ref()) {
            Ok(0) if Instant::now() >= deadline => Err(io::ErrorKind::TimedOut.into()),
            // After a signal, check everything again, as after an event.
            Ok(1..) => Ok(()),
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(fordway_sys::after_signal()?),
            Err(error) => Err(error.into()),
        }
    }
}

impl Read for Http2Connection {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.receive(room, false)
    }
}

/// What happened while a body was sent.
enum BodySendEvent {
    /// The server accepts this many bytes.
    Room(usize),
    /// The server has responded.
    Answered(Response<RecvStream>),
}

/// Checks for a response before it checks for room, because a server that refuses a body may never open its window.
fn poll_send(
    stream: &mut SendStream<Bytes>,
    response: &mut ResponseFuture,
    context: &mut Context<'_>,
) -> Poll<io::Result<BodySendEvent>> {
    if let Poll::Ready(answer) = Pin::new(response).poll(context) {
        return Poll::Ready(answer.map(BodySendEvent::Answered).map_err(cut));
    }
    if stream.capacity() > 0 {
        return Poll::Ready(Ok(BodySendEvent::Room(stream.capacity())));
    }
    let room = ready!(stream.poll_capacity(context)).ok_or(io::ErrorKind::BrokenPipe)?;
    Poll::Ready(room.map(BodySendEvent::Room).map_err(cut))
}

/// Returns the final response, or `None` for `100 Continue`, which requests the body.
fn poll_word(
    response: &mut ResponseFuture,
    context: &mut Context<'_>,
) -> Poll<io::Result<Option<Response<RecvStream>>>> {
    while let Poll::Ready(Some(interim)) = response.poll_informational(context) {
        if interim.map_err(cut)?.status() == StatusCode::CONTINUE {
            return Poll::Ready(Ok(None));
        }
    }
    Pin::new(response).poll(context).map(|answer| answer.map(Some).map_err(cut))
}

/// Returns the exchange state for a response whose head has arrived.
fn receiving(answer: Response<RecvStream>) -> Http2ExchangeState {
    let mut head = head_of_response(&answer);
    head.extend_from_slice(b"\r\n");
    Http2ExchangeState::Receiving(Bytes::from(head), answer.into_body())
}

async fn handshake(
    wire: Http2Socket,
) -> io::Result<(SendRequest<Bytes>, h2::client::Connection<Http2Socket, Bytes>)> {
    h2::client::Builder::new()
        .initial_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .initial_max_send_streams(STREAMS)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_concurrent_reset_streams(RESET_STREAMS_MAX)
        .enable_push(false)
        .handshake(wire)
        .await
        .map_err(cut)
}

/// Creates a context for callers that poll again when the socket is ready, and therefore need no waker.
fn looking() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// Returns the error for a server that accepts only TLS.
fn wants_tls() -> io::Error {
    let detail = "the server's response is not HTTP; is the address https:// ?";
    io::Error::other(Error::new(ErrorKind::BadResponse, detail))
}

/// Returns the error for a connection or stream that ended early.
fn cut(error: h2::Error) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, error)
}
