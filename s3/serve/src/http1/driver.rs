//! Serves the requests of one connection, one after another.

use std::future::{Future, poll_fn};
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use bytes::Bytes;
use http::header::ALT_SVC;
use http::{Request, Response, StatusCode};

use crate::answer::{self, GatewayState, PreparedBody};
use crate::connection::ClientSocket;
use crate::gateway::StopReceiver;
use crate::http1::fast_path::FastPathOutcome;
use crate::http1::head::{HEADERS_MAX, MessageRefusal, RequestFraming, RequestHead, parse};
use crate::http1::incoming::{IncomingBody, RequestBody, SharedIncomingBody, take_back};
use crate::http1::outgoing::{OutgoingResponse, ResponseConstraints};
use crate::http1::wire::BufferedSocket;
use crate::limits::{BodyTransferLimits, ConnectionLimitState, LimitReason, is_shared, take_turn};
use crate::monitor::{self, RequestTrace, ResponseOutcome, TIMING_WANTED};
use crate::s3::ObjectUpload;
use crate::unsigned::ConnectionPeer;

/// The HTTP/2 connection preface, which a client with prior knowledge sends first (RFC 9113 section 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Serves one connection until it ends or the gateway is stopped. If the gateway is stopped, finishes the request in
/// progress. If no request is in progress, waits [`IDLE_CLOSE_DELAY`](crate::gateway::IDLE_CLOSE_DELAY) for a last
/// request. `ahead` contains the bytes that were already read. If the client begins with HTTP/2, returns the socket and
/// all bytes that were read from it.
pub(crate) async fn serve(
    socket: ClientSocket,
    ahead: Vec<u8>,
    (caller, account): (&ConnectionPeer, &Arc<ConnectionLimitState>),
    shared: &GatewayState,
    stopped: StopReceiver,
) -> io::Result<Option<(ClientSocket, Vec<u8>)>> {
    let mut wire = BufferedSocket::new(socket, ahead, shared.limits.body.clone());
    let driver = ConnectionDriver { shared, caller, account, stopped: stopped.clone() };
    let mut stop = pin!(stopped.over_and_left());
    match driver.opening(&mut wire, stop.as_mut()).await? {
        ConnectionProtocol::Http1 => driver.run(wire, stop.as_mut()).await?,
        ConnectionProtocol::Http2 => return Ok(Some(wire.into_parts())),
        ConnectionProtocol::Closed => wire.close().await,
    }
    Ok(None)
}

/// The protocol of a connection, according to its first bytes.
enum ConnectionProtocol {
    Http1,
    Http2,
    /// No protocol, because the client closed the connection or the gateway is stopping.
    Closed,
}

struct ConnectionDriver<'s> {
    shared: &'s GatewayState,
    caller: &'s ConnectionPeer,
    account: &'s Arc<ConnectionLimitState>,
    stopped: StopReceiver,
}

/// The next event on a connection.
enum NextConnectionEvent {
    Request(ReceivedRequest),
    Answered(PreparedResponse),
    Refused(MessageRefusal),
    Closed,
}

/// A request whose head has been read from the socket.
struct ReceivedRequest {
    work: RequestWork,
    framing: RequestFraming,
    keep_alive: bool,
    expects_continue: bool,
    form: ResponseConstraints,
    trace: RequestTrace,
    wants_timing: bool,
}

/// The work that a request requires.
enum RequestWork {
    /// A request that the fast path does not serve, and leaves to the S3 layer.
    Common(Request<()>),
    Upload(Box<ObjectUpload>),
}

/// A request whose response is ready to be sent.
struct PreparedResponse {
    outgoing: OutgoingResponse,
    keep_alive: bool,
    form: ResponseConstraints,
    trace: RequestTrace,
}

impl ConnectionDriver<'_> {
    async fn run(
        &self,
        mut wire: BufferedSocket,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) -> io::Result<()> {
        loop {
            wire.settle()?;
            let again = match self.next(&mut wire, stop.as_mut()).await? {
                NextConnectionEvent::Request(received) => self.exchange(wire, received).await?,
                NextConnectionEvent::Answered(PreparedResponse { outgoing, keep_alive, form, trace }) => {
                    let is_welcome =
                        self.account.answered(trace.account(), trace.is_authenticated(), outgoing.status);
                    let goes_on = keep_alive && is_welcome && !self.stopped.is_stopped();
                    self.send(outgoing, &mut wire, goes_on, form, &trace).await?;
                    go_on_or_close(wire, goes_on).await
                }
                NextConnectionEvent::Refused(refusal) => {
                    refuse(wire, refusal).await?;
                    None
                }
                NextConnectionEvent::Closed => go_on_or_close(wire, false).await,
            };
            match again {
                Some(back) => wire = back,
                None => return Ok(()),
            }
        }
    }

    /// Reads until the received bytes show whether the connection begins with the HTTP/2 preface.
    async fn opening(
        &self,
        wire: &mut BufferedSocket,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) -> io::Result<ConnectionProtocol> {
        loop {
            let length = wire.ahead().len().min(HTTP2_PREFACE.len());
            if wire.ahead()[..length] != HTTP2_PREFACE[..length] {
                return Ok(ConnectionProtocol::Http1);
            }
            if length == HTTP2_PREFACE.len() {
                return Ok(ConnectionProtocol::Http2);
            }
            match self.read_more(wire, stop.as_mut()).await {
                Ok(0) => return Ok(ConnectionProtocol::Closed),
                // The driver then continues with HTTP/1.1, and `next` reaches the same timeout and sends the error
                // response.
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    return Ok(ConnectionProtocol::Http1);
                }
                read => read?,
            };
        }
    }

    /// Waits for a complete head. Between requests, the wait ends `IDLE_CLOSE_DELAY` after the gateway begins to stop.
    async fn next(
        &self,
        wire: &mut BufferedSocket,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) -> io::Result<NextConnectionEvent> {
        loop {
            if !wire.ahead().is_empty() && is_shared(self.account.user_id()) {
                take_turn(self.account.user()).await;
            }
            if let Some(next) = self.received(wire) {
                wire.end_wait();
                return Ok(next);
            }
            match self.read_more(wire, stop.as_mut()).await {
                Ok(0) => return Ok(NextConnectionEvent::Closed),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    return Ok(if wire.ahead().is_empty() {
                        NextConnectionEvent::Closed
                    } else {
                        NextConnectionEvent::Refused(TOO_SLOW)
                    });
                }
                read => read?,
            };
        }
    }

    /// Reads further bytes of a head. Returns 0 at the end of the stream, or if the gateway stops before the first byte
    /// of the head has arrived.
    async fn read_more(
        &self,
        wire: &mut BufferedSocket,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) -> io::Result<usize> {
        let timeout = self.shared.limits.header_timeout;
        let read = poll_fn(|context| {
            if let Poll::Ready(read) = wire.poll_ahead(context, timeout) {
                return Poll::Ready(read);
            }
            let is_idle = wire.ahead().is_empty();
            if is_idle && stop.as_mut().poll(context).is_ready() { Poll::Ready(Ok(0)) } else { Poll::Pending }
        });
        read.await
    }

    /// Parses the request at the start of the bytes read so far; returns `None` until its head is complete.
    fn received(&self, wire: &mut BufferedSocket) -> Option<NextConnectionEvent> {
        if wire.ahead().is_empty() {
            return None;
        }
        let (shared, limits) = (self.shared, &self.shared.limits);
        let start = Instant::now();
        let mut room = [const { MaybeUninit::uninit() }; HEADERS_MAX];
        let (head, length) = match parse(wire.ahead(), &mut room, limits.head_bytes_max) {
            Ok(parsed) => parsed?,
            Err(refusal) => return Some(NextConnectionEvent::Refused(refusal)),
        };
        if matches!(head.framing, RequestFraming::Length(bytes) if bytes > limits.body_bytes_max) {
            return Some(NextConnectionEvent::Refused(TOO_LARGE));
        }
        let form = ResponseConstraints { is_http_1_1: head.is_http_1_1, is_head: head.method == "HEAD" };
        let trace = shared.monitor.start((head.method, head.target), (self.caller, self.account), start);
        let wants_timing =
            head.headers.iter().any(|header| header.name.eq_ignore_ascii_case(TIMING_WANTED.as_str()));
        let work = match shared.fast_path.take(&head, self.caller, &trace) {
            Some(FastPathOutcome::Answered(mut outgoing)) => {
                if wants_timing {
                    add_timing(&mut outgoing, &trace);
                }
                let keep_alive = head.keep_alive;
                wire.consume(length);
                return Some(NextConnectionEvent::Answered(PreparedResponse {
                    outgoing,
                    keep_alive,
                    form,
                    trace,
                }));
            }
            Some(FastPathOutcome::Upload(upload)) => RequestWork::Upload(upload),
            None => match self.common(&head, &wire.ahead()[..length], &trace) {
                Ok(request) => RequestWork::Common(request),
                Err(refusal) => return Some(NextConnectionEvent::Refused(refusal)),
            },
        };
        let received = ReceivedRequest {
            framing: head.framing,
            keep_alive: head.keep_alive,
            expects_continue: head.expects_continue,
            form,
            trace,
            wants_timing,
            work,
        };
        wire.consume(length);
        Some(NextConnectionEvent::Request(received))
    }

    /// Converts a head, which was parsed from `source`, to a request for the S3 layer. Errors: the head is not a valid
    /// request.
    fn common(
        &self,
        head: &RequestHead<'_>,
        source: &[u8],
        trace: &RequestTrace,
    ) -> Result<Request<()>, MessageRefusal> {
        let request = head.to_request(source).inspect_err(|refusal| {
            let status = refusal.status;
            let ending =
                ResponseOutcome { status, body_bytes: None, ready: Instant::now(), is_complete: true };
            self.shared.monitor.finish(trace, &ending);
        })?;
        trace.parsed(if let RequestFraming::Length(bytes) = head.framing { bytes } else { 0 });
        Ok(request)
    }

    /// Sends a response, and records whether the client received the whole response.
    async fn send(
        &self,
        mut outgoing: OutgoingResponse,
        wire: &mut BufferedSocket,
        keep_alive: bool,
        form: ResponseConstraints,
        trace: &RequestTrace,
    ) -> io::Result<()> {
        if let Some(elsewhere) = self.shared.http3.as_ref().and_then(|value| value.to_str().ok()) {
            outgoing.add_header(ALT_SVC.as_str(), elsewhere);
        }
        outgoing.add_header(monitor::REQUEST_ID.as_str(), trace.id.as_str());
        outgoing.add_header(monitor::HOST_ID.as_str(), self.shared.monitor.ids.host_text());
        let (status, body_bytes, ready) = (outgoing.status, outgoing.body_bytes, Instant::now());
        if trace.is_paced() {
            wire.set_payer(trace.account().cloned());
        }
        let sent = outgoing.send(wire, keep_alive, form).await;
        wire.set_payer(None);
        if sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) {
            trace.limited(LimitReason::Slow);
        }
        let ending = ResponseOutcome { status, body_bytes, ready, is_complete: sent.is_ok() };
        self.shared.monitor.finish(trace, &ending);
        sent
    }

    /// Answers a request. Returns the socket if the connection remains open.
    async fn exchange(
        &self,
        wire: BufferedSocket,
        received: ReceivedRequest,
    ) -> io::Result<Option<BufferedSocket>> {
        let ReceivedRequest { work, framing, keep_alive, expects_continue, form, trace, wants_timing } =
            received;
        let (shared, trace) = (self.shared, Arc::new(trace));
        let (body, held) = hold(wire, framing, expects_continue, (shared.limits.body_bytes_max, &trace));
        let answered = match work {
            RequestWork::Common(request) => {
                Err(answer::answer(shared, self.caller, request.map(|()| body), trace.clone()).await)
            }
            RequestWork::Upload(upload) => {
                let condition = upload.condition;
                let received = shared.fast_path.receive(*upload, body).await;
                received.map_err(|failure| answer::of_failed_upload(shared, trace.id, condition, failure))
            }
        };
        let mut outgoing = answered.unwrap_or_else(|response| OutgoingResponse::new(response, form));
        if wants_timing {
            add_timing(&mut outgoing, &trace);
        }
        if matches!(held, SocketOwnership::Wire(_))
            && let (RequestFraming::Length(bytes), Some(account)) = (framing, trace.account())
        {
            // A body that arrived with its head has not been counted against the user's rate limit yet.
            account.charge(bytes);
        }
        let mut returned = match held.take_back() {
            Ok(returned) => returned,
            Err(error) => {
                let (status, body_bytes) = (outgoing.status, outgoing.body_bytes);
                let ending =
                    ResponseOutcome { status, body_bytes, ready: Instant::now(), is_complete: false };
                self.shared.monitor.finish(&trace, &ending);
                return Err(error);
            }
        };
        let is_welcome = self.account.answered(trace.account(), trace.is_authenticated(), outgoing.status);
        let goes_on = keep_alive
            && is_welcome
            && returned.can_go_on()
            && !outgoing.ends_connection()
            && !self.stopped.is_stopped();
        self.send(outgoing, returned.wire(), goes_on, form, &trace).await?;
        if goes_on {
            return Ok(Some(returned.discard().await?));
        }
        match returned {
            ReturnedSocket::Unread(incoming) => incoming.into_wire().close_after_answer().await,
            ReturnedSocket::Wire(wire) => wire.close().await,
        }
        Ok(None)
    }
}

const TOO_LARGE: MessageRefusal =
    MessageRefusal { status: StatusCode::PAYLOAD_TOO_LARGE, why: answer::TOO_LARGE };

/// Adds the `Server-Timing` header.
fn add_timing(outgoing: &mut OutgoingResponse, trace: &RequestTrace) {
    outgoing.add_header(monitor::SERVER_TIMING.as_str(), &trace.server_timing(Instant::now()));
}

async fn go_on_or_close(wire: BufferedSocket, goes_on: bool) -> Option<BufferedSocket> {
    if goes_on {
        return Some(wire);
    }
    wire.close().await;
    None
}

const TOO_SLOW: MessageRefusal =
    MessageRefusal { status: StatusCode::REQUEST_TIMEOUT, why: "the request's head did not arrive in time" };

/// The owner of the socket while a request is being answered.
enum SocketOwnership {
    Wire(BufferedSocket),
    Lent(SharedIncomingBody),
}

/// Returns the body of a request. If the whole body arrived with the head, the body consists of these bytes. If part of
/// the body has not arrived yet, the socket is lent to the body.
fn hold(
    mut wire: BufferedSocket,
    framing: RequestFraming,
    expects_continue: bool,
    (bytes_max, trace): (u64, &Arc<RequestTrace>),
) -> (s3s::Body, SocketOwnership) {
    let at_hand = wire.ahead().len() as u64;
    match framing {
        RequestFraming::Length(length) if length <= at_hand => {
            let body = Bytes::copy_from_slice(&wire.ahead()[..length as usize]);
            wire.consume(body.len());
            (if body.is_empty() { s3s::Body::empty() } else { body.into() }, SocketOwnership::Wire(wire))
        }
        framing => {
            let (body, lent) = RequestBody::lend(IncomingBody::new(
                wire,
                framing,
                expects_continue,
                bytes_max,
                trace.clone(),
            ));
            (body, SocketOwnership::Lent(lent))
        }
    }
}

impl SocketOwnership {
    fn take_back(self) -> io::Result<ReturnedSocket> {
        let lent = match self {
            SocketOwnership::Wire(wire) => return Ok(ReturnedSocket::Wire(wire)),
            SocketOwnership::Lent(lent) => lent,
        };
        let gone = || io::Error::other("the socket was not given back");
        let incoming = take_back(&lent).ok_or_else(gone)?;
        Ok(if incoming.is_done() {
            ReturnedSocket::Wire(incoming.into_wire())
        } else {
            ReturnedSocket::Unread(incoming)
        })
    }
}

/// The socket after the response has been prepared.
enum ReturnedSocket {
    Wire(BufferedSocket),
    /// Part of the request's body has not been read yet.
    Unread(IncomingBody),
}

impl ReturnedSocket {
    fn can_go_on(&self) -> bool {
        match self {
            ReturnedSocket::Wire(_) => true,
            ReturnedSocket::Unread(incoming) => incoming.is_worth_discarding(),
        }
    }

    fn wire(&mut self) -> &mut BufferedSocket {
        match self {
            ReturnedSocket::Wire(wire) => wire,
            ReturnedSocket::Unread(incoming) => incoming.wire(),
        }
    }

    /// Discards the unread body and returns the socket, positioned at the start of the next request.
    async fn discard(self) -> io::Result<BufferedSocket> {
        match self {
            ReturnedSocket::Wire(wire) => Ok(wire),
            ReturnedSocket::Unread(mut incoming) => {
                incoming.discard().await?;
                Ok(incoming.into_wire())
            }
        }
    }
}

/// Sends the reason for the refusal and closes the connection, because the start of the next request is unknown.
async fn refuse(wire: BufferedSocket, refusal: MessageRefusal) -> io::Result<()> {
    send_last(wire, answer::refusal(refusal.status, refusal.why)).await
}

/// Sends `response` to the client without reading its request, and closes the connection.
pub(crate) async fn turn_away(
    socket: ClientSocket,
    response: Response<PreparedBody>,
    limits: BodyTransferLimits,
) -> io::Result<()> {
    send_last(BufferedSocket::new(socket, Vec::new(), limits), response).await
}

async fn send_last(mut wire: BufferedSocket, response: Response<PreparedBody>) -> io::Result<()> {
    let form = ResponseConstraints { is_http_1_1: true, is_head: false };
    OutgoingResponse::new(response, form).send(&mut wire, false, form).await?;
    wire.close_after_answer().await;
    Ok(())
}
